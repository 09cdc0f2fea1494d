/* The timeline in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open: a process for each rank, a
 * thread for each track. */
#include "trace/trace.h"

/* Perfetto takes a thread's number as unique in the whole file, and 0 as the idle one. Number 1 is the call's own. */
static long long thread_number(const purr__timeline_t *timeline, const purr__lane_t *lane) {
  return (long long)(lane - timeline->lanes) + 2;
}
static int process_number(int rank) { return rank + 2; }

static void add_metadata(purr__text_t *text, const char *what, int rank, long long thread) {
  purr__text_add(text, ",\n{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%lld,\"args\":", what, process_number(rank),
                 thread);
}

static void add_names(purr__text_t *text, const purr__timeline_t *timeline) {
  int rank = -1;
  for (const purr__lane_t *lane = timeline->lanes; lane < timeline->lanes + timeline->num_lanes; lane++) {
    const long long thread = thread_number(timeline, lane);
    if (lane->rank != rank) {
      rank = lane->rank;
      add_metadata(text, "process_name", rank, thread);
      purr__text_add(text, "{\"name\":\"rank %d\"}}", rank);
      add_metadata(text, "process_sort_index", rank, thread);
      purr__text_add(text, "{\"sort_index\":%d}}", rank);
    }
    add_metadata(text, "thread_name", rank, thread);
    if (strcmp(timeline->noun, "SM") != 0)
      purr__text_add(text, "{\"name\":\"%s %u\"}}", purr__trace_roles[lane->role], lane->block);
    else
      purr__text_add(text, "{\"name\":\"SM %03u block %u %s\"}}", lane->processor, lane->block,
                     purr__trace_roles[lane->role]);
    add_metadata(text, "thread_sort_index", rank, thread);
    purr__text_add(text, "{\"sort_index\":%lld}}", thread);
  }
}

static void add_args(purr__text_t *text, const purr__span_t *span) {
  const struct {
    const char *name;
    int32_t value;
  } args[] = {{"expert", span->expert}, {"row", span->row}, {"column", span->column}, {"rank", span->rank}};
  bool has_args = false;
  for (int i = 0; i < 4; i++) {
    if (args[i].value < 0) continue;
    purr__text_add(text, "%s\"%s\":%d", has_args ? "," : ",\"args\":{", args[i].name, args[i].value);
    has_args = true;
  }
  if (has_args) purr__text_add(text, "}");
}

void purr__timeline_add_perfetto(purr__text_t *text, const purr__timeline_t *timeline) {
  purr__text_add(text, "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"layer\":");
  purr__text_add_json_string(text, timeline->layer);
  purr__text_add(text, ",\"dropped_events\":%llu},\"traceEvents\":[\n", (unsigned long long)timeline->num_dropped);
  /* The first entry has no comma before it; it also says how long the whole took. */
  purr__text_add(text, "{\"ph\":\"X\",\"name\":\"forward\",\"cat\":\"call\",\"pid\":1,\"tid\":1,\"ts\":0.000,\"dur\":");
  purr__text_add_us(text, timeline->length);
  purr__text_add(text, "}");
  add_names(text, timeline);
  for (const purr__lane_t *lane = timeline->lanes; lane < timeline->lanes + timeline->num_lanes; lane++)
    for (const purr__span_t *span = lane->spans; span < lane->spans + lane->num_spans; span++) {
      const purr__trace_kind_info_t *kind = &purr__trace_kinds[span->kind];
      purr__text_add(text,
                     ",\n{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%lld,\"ts\":", kind->label,
                     purr__trace_groups[kind->group], process_number(lane->rank), thread_number(timeline, lane));
      purr__text_add_us(text, span->begin);
      purr__text_add(text, ",\"dur\":");
      purr__text_add_us(text, span->end - span->begin);
      add_args(text, span);
      purr__text_add(text, "}");
    }
  purr__text_add(text, "\n]}\n");
}
