/* The timeline in numbers, as a table and as JSON: where the time of all tracks went, how idle the processors were, how
 * much of the end was a tail, how much of the communication was hidden. */
#include "trace/intervals.h"
#include "trace/trace.h"

typedef struct kind_sum {
  int64_t num, ns, longest; /* ns: without what lies inside */
} kind_sum_t;

typedef struct processor_sum {
  int64_t compute, busy; /* ns in which any of its tracks computes; does anything but wait */
  int64_t done;          /* end of its last work */
} processor_sum_t;

typedef struct rank_sum {
  int rank;
  int64_t num_processors;
  int64_t compute, communication, hidden; /* ns in which any processor does; hidden: both at once */
} rank_sum_t;

typedef struct summary {
  const purr__timeline_t *timeline;
  kind_sum_t kinds[PURR__NUM_TRACE_KINDS];
  processor_sum_t *processors;
  rank_sum_t *ranks;
  int num_ranks;
  int64_t compute, idle;   /* ns of all processors; idle: all of their tracks wait */
  int64_t tail, mean_tail; /* ns from the first processor's last work to the end; the same of all, on average */
  int64_t most_idle, least_idle;
} summary_t;

/* ---- adding up ---- */

#define GROUP(name) (1u << PURR__TRACE_GROUP_##name)
#define WORK_GROUPS (~GROUP(WAIT))

/* The instants in which any of the lanes does something of these groups; returns the number of intervals. */
static int64_t instants(const purr__timeline_t *timeline, int64_t first_lane, int64_t num_lanes, unsigned groups,
                        purr__interval_t *intervals, purr__interval_t *scratch) {
  int64_t num = 0;
  for (int64_t i = first_lane; i < first_lane + num_lanes; i++) {
    const purr__lane_t *lane = &timeline->lanes[i];
    for (int64_t j = 0; j < lane->num_segments; j++)
      if ((groups >> purr__trace_kinds[lane->segments[j].kind].group & 1) != 0)
        intervals[num++] = (purr__interval_t){lane->segments[j].begin, lane->segments[j].end};
  }
  return purr__intervals_unite(intervals, scratch, num);
}

static void add_up_kinds(summary_t *summary) {
  const purr__timeline_t *timeline = summary->timeline;
  for (const purr__lane_t *lane = timeline->lanes; lane < timeline->lanes + timeline->num_lanes; lane++) {
    for (int64_t i = 0; i < lane->num_spans; i++) {
      kind_sum_t *sum = &summary->kinds[lane->spans[i].kind];
      sum->num++;
      sum->longest = purr__max(sum->longest, lane->spans[i].end - lane->spans[i].begin);
    }
    for (int64_t i = 0; i < lane->num_segments; i++)
      summary->kinds[lane->segments[i].kind].ns += lane->segments[i].end - lane->segments[i].begin;
  }
}

static void add_up_processors(summary_t *summary, purr__interval_t *a, purr__interval_t *scratch) {
  const purr__timeline_t *timeline = summary->timeline;
  int64_t first_done = timeline->length, sum_done = 0;
  summary->least_idle = timeline->length;
  for (int64_t i = 0; i < timeline->num_processors; i++) {
    const purr__processor_t *processor = &timeline->processors[i];
    processor_sum_t *sum = &summary->processors[i];
    int64_t num = instants(timeline, processor->first_lane, processor->num_lanes, GROUP(COMPUTE), a, scratch);
    sum->compute = purr__intervals_length(a, num);
    num = instants(timeline, processor->first_lane, processor->num_lanes, WORK_GROUPS, a, scratch);
    sum->busy = purr__intervals_length(a, num);
    sum->done = num > 0 ? a[num - 1].end : 0;
    const int64_t idle = timeline->length - sum->busy;
    summary->compute += sum->compute;
    summary->idle += idle;
    summary->most_idle = purr__max(summary->most_idle, idle);
    summary->least_idle = purr__min(summary->least_idle, idle);
    first_done = purr__min(first_done, sum->done);
    sum_done += sum->done;
  }
  summary->tail = timeline->length - first_done;
  summary->mean_tail = timeline->length - sum_done / timeline->num_processors;
}

static void add_up_ranks(summary_t *summary, purr__interval_t *a, purr__interval_t *b, purr__interval_t *scratch) {
  const purr__timeline_t *timeline = summary->timeline;
  for (int64_t first = 0, end; first < timeline->num_processors; first = end) {
    const int rank = timeline->processors[first].rank;
    int64_t num_lanes = 0;
    for (end = first; end < timeline->num_processors && timeline->processors[end].rank == rank; end++)
      num_lanes += timeline->processors[end].num_lanes;
    const int64_t first_lane = timeline->processors[first].first_lane;
    rank_sum_t *sum = &summary->ranks[summary->num_ranks++];
    const int64_t num_a = instants(timeline, first_lane, num_lanes, GROUP(COMPUTE) | GROUP(EPILOGUE), a, scratch);
    const int64_t num_b = instants(timeline, first_lane, num_lanes, GROUP(COMMUNICATION), b, scratch);
    *sum = (rank_sum_t){.rank = rank,
                        .num_processors = end - first,
                        .compute = purr__intervals_length(a, num_a),
                        .communication = purr__intervals_length(b, num_b),
                        .hidden = purr__intervals_common(a, num_a, b, num_b)};
  }
}

static purr_status_t add_up(const purr__timeline_t *timeline, summary_t *out, purr_error_t *err) {
  purr_context_t *context = timeline->context;
  *out = (summary_t){.timeline = timeline};
  const uint64_t num = 2 * (uint64_t)timeline->num_spans + 1, bytes = 3 * num * sizeof(purr__interval_t);
  purr__interval_t *intervals = purr__allocate(context, bytes);
  out->processors = purr__allocate_zeroed(context, (uint64_t)timeline->num_processors * sizeof *out->processors);
  out->ranks = purr__allocate_zeroed(context, (uint64_t)timeline->num_processors * sizeof *out->ranks);
  purr_status_t status = PURR_STATUS_OK;
  if (intervals == NULL || out->processors == NULL || out->ranks == NULL) {
    status = purr__fail_memory(err, "the summary of a timeline", bytes);
  } else {
    add_up_kinds(out);
    add_up_processors(out, intervals, intervals + num);
    add_up_ranks(out, intervals, intervals + num, intervals + 2 * num);
  }
  purr__release(context, intervals);
  return status;
}

/* ---- numbers as text, whatever the locale ---- */

/* "12.3 us", "1234.5 us", "12.3 ms". */
static void add_time(purr__text_t *text, int width, int64_t ns) {
  const bool is_ms = ns >= 10000000;
  const int64_t tenths = (ns + (is_ms ? 50000 : 50)) / (is_ms ? 100000 : 100);
  purr__text_add(text, "%*lld.%lld %s", width, (long long)(tenths / 10), (long long)(tenths % 10), is_ms ? "ms" : "us");
}

static void add_percent(purr__text_t *text, int width, double part, double whole) {
  const long long permille = whole > 0.0 ? (long long)(1000.0 * part / whole + 0.5) : 0;
  purr__text_add(text, "%*lld.%lld %%", width, permille / 10, permille % 10);
}

/* A share as JSON: 0.123456. */
static void add_share(purr__text_t *text, double part, double whole) {
  const long long millionths = whole > 0.0 ? (long long)(1e6 * part / whole + 0.5) : 0;
  purr__text_add(text, "%lld.%06lld", millionths / 1000000, millionths % 1000000);
}

/* ---- a table ---- */

static void add_kinds(purr__text_t *text, const summary_t *summary) {
  const purr__timeline_t *timeline = summary->timeline;
  const double whole = (double)timeline->length * (double)timeline->num_lanes;
  int64_t rest = 0;
  purr__text_add(text, "  %-16s  %-13s  %9s  %11s  %8s  %11s\n", "event", "group", "number", "time", "share",
                 "longest");
  for (int kind = 0; kind < PURR__NUM_TRACE_KINDS; kind++) {
    const kind_sum_t *sum = &summary->kinds[kind];
    if (sum->num == 0) continue;
    purr__text_add(text, "  %-16s  %-13s  %9lld  ", purr__trace_kinds[kind].label,
                   purr__trace_groups[purr__trace_kinds[kind].group], (long long)sum->num);
    add_time(text, 6, sum->ns);
    purr__text_add(text, "  ");
    add_percent(text, 4, (double)sum->ns, whole);
    purr__text_add(text, "  ");
    add_time(text, 6, sum->longest);
    purr__text_add(text, "\n");
    rest += sum->ns;
  }
  purr__text_add(text, "  %-16s  %-13s  %9s  ", "(nothing)", "", "");
  rest = timeline->length * timeline->num_lanes - rest;
  add_time(text, 6, purr__max(rest, 0));
  purr__text_add(text, "  ");
  add_percent(text, 4, (double)purr__max(rest, 0), whole);
  purr__text_add(text, "\n\n");
}

static void add_processors(purr__text_t *text, const summary_t *summary) {
  const purr__timeline_t *timeline = summary->timeline;
  const double length = (double)timeline->length, whole = length * (double)timeline->num_processors;
  const char *noun = timeline->noun;
  purr__text_add(text, "  computing   ");
  add_percent(text, 4, (double)summary->compute, whole);
  purr__text_add(text, "  of the %ss' time\n  idle        ", noun);
  add_percent(text, 4, (double)summary->idle, whole);
  purr__text_add(text, "  of the %ss' time; from ", noun);
  add_percent(text, 0, (double)summary->least_idle, length);
  purr__text_add(text, " to ");
  add_percent(text, 0, (double)summary->most_idle, length);
  purr__text_add(text, " of one\n  tail        ");
  add_percent(text, 4, (double)summary->mean_tail, length);
  purr__text_add(text, "  of the %ss' time lies behind their last work; the first is done ", noun);
  add_time(text, 0, summary->tail);
  purr__text_add(text, " before the end\n");
  for (int i = 0; i < summary->num_ranks; i++) {
    const rank_sum_t *sum = &summary->ranks[i];
    if (sum->communication == 0 || timeline->num_ranks == 1) continue; /* alone it goes nowhere */
    purr__text_add(text, "  rank %-5d  ", sum->rank);
    add_percent(text, 5, (double)sum->hidden, (double)sum->communication);
    purr__text_add(text, "  of ");
    add_time(text, 0, sum->communication);
    purr__text_add(text, " of communication while it computes\n");
  }
}

static void add_warnings(purr__text_t *text, const purr__timeline_t *timeline) {
  if (timeline->num_dropped > 0)
    purr__text_add(
        text,
        "\n  Incomplete: %llu events found no room; ask for more (purr_trace_desc_t.events_per_track, --events).\n",
        (unsigned long long)timeline->num_dropped);
  if (timeline->num_unfinished > 0)
    purr__text_add(text, "\n  Incomplete: %lld tracks have no end and were left out; the call was cut short.\n",
                   (long long)timeline->num_unfinished);
  if (timeline->was_aligned)
    purr__text_add(text, "\n  The devices' timers disagree: each device was made to begin at 0.\n");
}

static void add_text(purr__text_t *text, const summary_t *summary) {
  const purr__timeline_t *timeline = summary->timeline;
  purr__text_add(text, "Timeline of layer %s: ", timeline->layer);
  add_time(text, 0, timeline->length);
  purr__text_add(text, ", %d rank%s, %lld %s%s, %lld event%s on %lld track%s\n\n", timeline->num_ranks,
                 timeline->num_ranks == 1 ? "" : "s", (long long)timeline->num_processors, timeline->noun,
                 timeline->num_processors == 1 ? "" : "s", (long long)timeline->num_spans,
                 timeline->num_spans == 1 ? "" : "s", (long long)timeline->num_lanes,
                 timeline->num_lanes == 1 ? "" : "s");
  add_kinds(text, summary);
  add_processors(text, summary);
  add_warnings(text, timeline);
}

/* ---- JSON ---- */

static void add_json(purr__text_t *text, const summary_t *summary) {
  const purr__timeline_t *timeline = summary->timeline;
  const double length = (double)timeline->length, whole = length * (double)timeline->num_processors;
  purr__text_add(text, "{\n  \"layer\": ");
  purr__text_add_json_string(text, timeline->layer);
  purr__text_add(
      text,
      ",\n  \"num_ranks\": %d,\n  \"total_ns\": %lld,\n  \"num_processors\": %lld,\n  \"num_tracks\": %lld,\n"
      "  \"num_events\": %lld,\n  \"num_dropped_events\": %llu,\n  \"num_unfinished_tracks\": %lld,\n"
      "  \"timers_disagree\": %s,\n  \"kinds\": {",
      timeline->num_ranks, (long long)timeline->length, (long long)timeline->num_processors,
      (long long)timeline->num_lanes, (long long)timeline->num_spans, (unsigned long long)timeline->num_dropped,
      (long long)timeline->num_unfinished, timeline->was_aligned ? "true" : "false");
  bool is_first = true;
  for (int kind = 0; kind < PURR__NUM_TRACE_KINDS; kind++) {
    const kind_sum_t *sum = &summary->kinds[kind];
    if (sum->num == 0) continue;
    purr__text_add(text, "%s\n    \"%s\": {\"group\": \"%s\", \"num\": %lld, \"ns\": %lld, \"longest_ns\": %lld}",
                   is_first ? "" : ",", purr__trace_kinds[kind].label,
                   purr__trace_groups[purr__trace_kinds[kind].group], (long long)sum->num, (long long)sum->ns,
                   (long long)sum->longest);
    is_first = false;
  }
  purr__text_add(text, "%s},\n  \"compute_share\": ", is_first ? "" : "\n  ");
  add_share(text, (double)summary->compute, whole);
  purr__text_add(text, ",\n  \"idle_share\": ");
  add_share(text, (double)summary->idle, whole);
  purr__text_add(text, ",\n  \"tail_share\": ");
  add_share(text, (double)summary->mean_tail, length);
  purr__text_add(text, ",\n  \"tail_ns\": %lld,\n  \"ranks\": [", (long long)summary->tail);
  for (int i = 0; i < summary->num_ranks; i++) {
    const rank_sum_t *sum = &summary->ranks[i];
    purr__text_add(text,
                   "%s\n    {\"rank\": %d, \"num_processors\": %lld, \"compute_ns\": %lld, \"communication_ns\": %lld, "
                   "\"hidden_communication_ns\": %lld}",
                   i == 0 ? "" : ",", sum->rank, (long long)sum->num_processors, (long long)sum->compute,
                   (long long)sum->communication, (long long)sum->hidden);
  }
  purr__text_add(text, "\n  ],\n  \"processors\": [");
  for (int64_t i = 0; i < timeline->num_processors; i++) {
    const processor_sum_t *sum = &summary->processors[i];
    purr__text_add(text,
                   "%s\n    {\"rank\": %d, \"number\": %u, \"compute_ns\": %lld, \"idle_ns\": %lld, \"done_ns\": %lld}",
                   i == 0 ? "" : ",", timeline->processors[i].rank, timeline->processors[i].number,
                   (long long)sum->compute, (long long)(timeline->length - sum->busy), (long long)sum->done);
  }
  purr__text_add(text, "\n  ]\n}\n");
}

purr_status_t purr__timeline_add_summary(purr__text_t *text, const purr__timeline_t *timeline, bool json,
                                         purr_error_t *err) {
  summary_t summary;
  purr_status_t status = add_up(timeline, &summary, err);
  if (status == PURR_STATUS_OK) {
    if (json)
      add_json(text, &summary);
    else
      add_text(text, &summary);
  }
  purr__release(timeline->context, summary.processors);
  purr__release(timeline->context, summary.ranks);
  return status;
}
