/* From what the threads of all ranks wrote to one timeline. The memory comes from a device where anything may have gone
 * wrong, so every number of it is held against what is possible before it is used. */
#include "trace/intervals.h"
#include "trace/trace.h"

const purr__trace_kind_info_t purr__trace_kinds[PURR__NUM_TRACE_KINDS] = {
#define PURR_TRACE_KIND(name, label, group, colour) {label, colour, PURR__TRACE_GROUP_##group},
#include "kernels/trace.def"
};

const char *const purr__trace_groups[PURR__NUM_TRACE_GROUPS] = {"compute",       "epilogue", "load",
                                                                "communication", "wait",     "other"};

const char *const purr__trace_roles[PURR__NUM_TRACE_ROLES] = {
#define PURR_TRACE_ROLE(name, label) label,
#include "kernels/trace.def"
};

/* Nearly five hours, longer than any call: the sum over all tracks stays far from overflow. */
#define MAX_NS ((uint64_t)1 << 44)

/* One track of one image, and the line through its two anchors. */
typedef struct source {
  const purr__trace_track_t *track;
  const purr__trace_event_t *events;
  int image_idx;
  uint32_t track_idx;
  double ns_per_clock;
} source_t;

typedef struct reader {
  purr_context_t *context;
  const purr__trace_image_t *images;
  int num_images;
  source_t *sources;
  int64_t num_sources, capacity;
  int64_t num_unfinished;
  uint64_t num_events, most_events, num_dropped;
  uint64_t *image_begin, *image_end; /* the instants of each image's tracks, on its device's clock */
} reader_t;

/* ---- checking ---- */

static purr_status_t garbled(purr_error_t *err, int rank, const char *what) {
  return purr__fail(err, PURR_STATUS_INVALID_STATE,
                    "the trace of rank %d is damaged: %s; something wrote over its memory, or its call still runs",
                    rank, what);
}

static purr_status_t check_header(const purr__trace_image_t *image, purr_error_t *err) {
  const purr__trace_header_t *header = image->memory;
  if (image->bytes < sizeof *header || header->magic != PURR__TRACE_MAGIC)
    return garbled(err, image->rank, "it does not begin as a trace does");
  if (header->layout != PURR__TRACE_LAYOUT) return garbled(err, image->rank, "its layout is another version's");
  uint64_t events_bytes, bytes;
  if (!purr__multiply(header->events_per_track, sizeof(purr__trace_event_t), &events_bytes) ||
      !purr__multiply(header->num_tracks, sizeof(purr__trace_track_t) + events_bytes, &bytes) ||
      !purr__add(bytes, sizeof *header, &bytes) || bytes > image->bytes)
    return garbled(err, image->rank, "its tracks do not fit in it");
  return PURR_STATUS_OK;
}

static purr_status_t check_track(const purr__trace_header_t *header, const purr__trace_track_t *track, int rank,
                                 purr_error_t *err) {
  if (track->num_events > header->events_per_track) return garbled(err, rank, "a track has more events than room");
  if (track->role >= PURR__NUM_TRACE_ROLES) return garbled(err, rank, "a track has an unknown role");
  if (track->clock_end < track->clock_begin || track->ns_end < track->ns_begin)
    return garbled(err, rank, "a track ends before it begins");
  if (track->ns_end - track->ns_begin > MAX_NS || track->clock_end - track->clock_begin > 16 * MAX_NS)
    return garbled(err, rank, "a track lasts for hours");
  return PURR_STATUS_OK;
}

static purr_status_t check_events(const source_t *source, int rank, purr_error_t *err) {
  const purr__trace_track_t *track = source->track;
  for (uint32_t i = 0; i < track->num_events; i++) {
    const purr__trace_event_t *event = &source->events[i];
    if (event->kind >= PURR__NUM_TRACE_KINDS) return garbled(err, rank, "an event has an unknown kind");
    if (event->end < event->begin || event->begin < track->clock_begin || event->end > track->clock_end)
      return garbled(err, rank, "an event lies outside its track");
  }
  return PURR_STATUS_OK;
}

/* ---- collecting the tracks ---- */

/* A short track on a coarse timer has both anchors in one tick. It then takes the pace of all tracks of its image,
 * which run on one clock or nearly so. */
static void set_pace(source_t *sources, int64_t num) {
  double clocks = 0.0, ns = 0.0;
  for (int64_t i = 0; i < num; i++) {
    clocks += (double)(sources[i].track->clock_end - sources[i].track->clock_begin);
    ns += (double)(sources[i].track->ns_end - sources[i].track->ns_begin);
  }
  for (int64_t i = 0; i < num; i++) {
    const purr__trace_track_t *track = sources[i].track;
    const uint64_t own_clocks = track->clock_end - track->clock_begin, own_ns = track->ns_end - track->ns_begin;
    sources[i].ns_per_clock = own_clocks == 0 ? 0.0
                              : own_ns > 0    ? (double)own_ns / (double)own_clocks
                              : ns > 0.0      ? ns / clocks
                                              : 1.0;
  }
}

static purr_status_t collect(reader_t *reader, int image_idx, purr_error_t *err) {
  const purr__trace_image_t *image = &reader->images[image_idx];
  const purr__trace_header_t *header = image->memory;
  const purr__trace_track_t *tracks = (const purr__trace_track_t *)(header + 1);
  const purr__trace_event_t *events = (const purr__trace_event_t *)(tracks + header->num_tracks);
  const int64_t first = reader->num_sources;
  uint64_t begin = UINT64_MAX, end = 0;
  for (uint32_t t = 0; t < header->num_tracks; t++) {
    const purr__trace_track_t *track = &tracks[t];
    if (track->clock_begin == 0) continue;
    if (track->clock_end == 0) {
      reader->num_unfinished++;
      continue;
    }
    purr_status_t status = check_track(header, track, image->rank, err);
    if (status != PURR_STATUS_OK) return status;
    source_t source = {.track = track,
                       .events = events + (uint64_t)t * header->events_per_track,
                       .image_idx = image_idx,
                       .track_idx = t};
    status = check_events(&source, image->rank, err);
    if (status != PURR_STATUS_OK) return status;
    reader->sources[reader->num_sources++] = source;
    reader->num_events += track->num_events;
    if (track->num_events > reader->most_events) reader->most_events = track->num_events;
    /* What a damaged counter says of the dropped ones must not overflow their sum. */
    reader->num_dropped += track->num_dropped < MAX_NS ? track->num_dropped : MAX_NS;
    if (track->ns_begin < begin) begin = track->ns_begin;
    if (track->ns_end > end) end = track->ns_end;
  }
  if (reader->num_sources == first)
    return purr__fail(err, PURR_STATUS_INVALID_STATE,
                      "nothing was recorded for rank %d; run a forward with its trace, and wait until it is done",
                      image->rank);
  if (end - begin > MAX_NS) return garbled(err, image->rank, "its tracks lie hours apart");
  set_pace(reader->sources + first, reader->num_sources - first);
  reader->image_begin[image_idx] = begin;
  reader->image_end[image_idx] = end;
  return PURR_STATUS_OK;
}

/* The instant that is 0 on the timeline, for each image. Ranks on one device have one clock; between devices the timers
 * are believed as long as the ranks' times meet, for they waited for each other. Else each device begins at 0. */
static bool choose_origins(const reader_t *reader, uint64_t *origins) {
  const purr__trace_image_t *images = reader->images;
  uint64_t begin = UINT64_MAX;
  bool all_meet = true;
  for (int i = 0; i < reader->num_images; i++) {
    if (reader->image_begin[i] < begin) begin = reader->image_begin[i];
    for (int j = 0; j < i; j++)
      if (images[i].device != images[j].device &&
          (reader->image_begin[i] > reader->image_end[j] || reader->image_begin[j] > reader->image_end[i]))
        all_meet = false;
  }
  for (int i = 0; i < reader->num_images; i++) {
    origins[i] = begin;
    if (all_meet) continue;
    origins[i] = reader->image_begin[i];
    for (int j = 0; j < reader->num_images; j++)
      if (images[j].device == images[i].device && reader->image_begin[j] < origins[i])
        origins[i] = reader->image_begin[j];
  }
  return !all_meet;
}

/* ---- order ---- */

static bool lane_before(const void *a, const void *b) {
  const purr__lane_t *x = a, *y = b;
  if (x->rank != y->rank) return x->rank < y->rank;
  if (x->processor != y->processor) return x->processor < y->processor;
  if (x->block != y->block) return x->block < y->block;
  return x->role < y->role;
}

static bool span_before(const void *a, const void *b) {
  const purr__span_t *x = a, *y = b;
  return x->begin != y->begin ? x->begin < y->begin : x->end > y->end;
}

/* ---- spans and segments ---- */

/* Events in clocks become spans in nanoseconds of the timeline. */
static void convert(const source_t *source, uint64_t origin, purr__span_t *spans) {
  const purr__trace_track_t *track = source->track;
  const int64_t begin = (int64_t)(track->ns_begin - origin);
  for (uint32_t i = 0; i < track->num_events; i++) {
    const purr__trace_event_t *event = &source->events[i];
    double from = (double)(event->begin - track->clock_begin) * source->ns_per_clock;
    double to = (double)(event->end - track->clock_begin) * source->ns_per_clock;
    if (to > (double)MAX_NS) to = (double)MAX_NS; /* a pace from other tracks may lead anywhere */
    if (from > to) from = to;
    spans[i] = (purr__span_t){.begin = begin + (int64_t)(from + 0.5),
                              .end = begin + (int64_t)(to + 0.5),
                              .kind = event->kind,
                              .rank = event->rank,
                              .expert = event->expert,
                              .row = event->row,
                              .column = event->column};
  }
}

static void add_segment(purr__lane_t *lane, int64_t begin, int64_t end, int kind) {
  if (end > begin) lane->segments[lane->num_segments++] = (purr__segment_t){begin, end, kind};
}

/* Every span gives at most two segments: one that its begin ends, one at its own end. `open` has room for all spans. */
static void flatten(purr__lane_t *lane, int64_t *open) {
  int64_t num_open = 0, at = 0;
  for (int64_t i = 0; i <= lane->num_spans; i++) {
    const int64_t next = i < lane->num_spans ? lane->spans[i].begin : INT64_MAX;
    while (num_open > 0 && lane->spans[open[num_open - 1]].end <= next) {
      const purr__span_t *span = &lane->spans[open[--num_open]];
      add_segment(lane, at, span->end, span->kind);
      at = purr__max(at, span->end);
    }
    if (i == lane->num_spans) break;
    if (num_open > 0) add_segment(lane, at, next, lane->spans[open[num_open - 1]].kind);
    at = next;
    open[num_open++] = i;
  }
}

static void find_processors(purr__timeline_t *timeline) {
  for (int64_t i = 0; i < timeline->num_lanes; i++) {
    purr__lane_t *lane = &timeline->lanes[i];
    purr__processor_t *last = timeline->num_processors > 0 ? &timeline->processors[timeline->num_processors - 1] : NULL;
    if (last == NULL || last->rank != lane->rank || last->number != lane->processor) {
      last = &timeline->processors[timeline->num_processors++];
      *last = (purr__processor_t){.rank = lane->rank, .number = lane->processor, .first_lane = i};
    }
    last->num_lanes++;
    lane->processor_idx = (int)timeline->num_processors - 1;
  }
}

/* ---- all together ---- */

static purr_status_t build(const reader_t *reader, const uint64_t *origins, purr__timeline_t *out, purr_error_t *err) {
  purr_context_t *context = reader->context;
  const uint64_t num_lanes = (uint64_t)reader->num_sources, num_events = reader->num_events;
  const uint64_t lane_bytes = num_lanes * sizeof(purr__lane_t), span_bytes = reader->most_events * sizeof(purr__span_t);
  const uint64_t scratch_bytes = lane_bytes > span_bytes ? lane_bytes : span_bytes;
  out->lanes = purr__allocate_zeroed(context, num_lanes * sizeof *out->lanes);
  out->processors = purr__allocate_zeroed(context, num_lanes * sizeof *out->processors);
  out->spans = purr__allocate(context, (num_events + 1) * sizeof *out->spans);
  out->segments = purr__allocate(context, (2 * num_events + 1) * sizeof *out->segments);
  void *scratch = purr__allocate(context, scratch_bytes + 1);
  int64_t *open = purr__allocate(context, (reader->most_events + 1) * sizeof *open);
  purr_status_t status = PURR_STATUS_OK;
  if (out->lanes == NULL || out->processors == NULL || out->spans == NULL || out->segments == NULL || scratch == NULL ||
      open == NULL)
    status = purr__fail_memory(err, "the timeline", num_events * (sizeof *out->spans + 2 * sizeof *out->segments));
  for (int64_t i = 0; status == PURR_STATUS_OK && i < reader->num_sources; i++) {
    const source_t *source = &reader->sources[i];
    const uint64_t origin = origins[source->image_idx];
    purr__lane_t *lane = &out->lanes[i];
    *lane = (purr__lane_t){.rank = reader->images[source->image_idx].rank,
                           .processor = source->track->processor,
                           .block = source->track->block,
                           .role = source->track->role,
                           .spans = out->spans + out->num_spans,
                           .num_spans = source->track->num_events,
                           .segments = out->segments + 2 * out->num_spans};
    convert(source, origin, lane->spans);
    purr__sort(lane->spans, scratch, lane->num_spans, sizeof *lane->spans, span_before);
    flatten(lane, open);
    out->num_spans += lane->num_spans;
    out->length = purr__max(out->length, (int64_t)(source->track->ns_end - origin));
    for (int64_t j = 0; j < lane->num_spans; j++) out->length = purr__max(out->length, lane->spans[j].end);
  }
  out->num_lanes = reader->num_sources;
  if (status == PURR_STATUS_OK) {
    purr__sort(out->lanes, scratch, out->num_lanes, sizeof *out->lanes, lane_before);
    find_processors(out);
    const uint32_t role = out->lanes[0].role;
    out->noun = role == PURR__TRACE_ROLE_CALLER || role == PURR__TRACE_ROLE_WORKER ? "thread"
                : role == PURR__TRACE_ROLE_STREAM                                  ? "stream"
                                                                                   : "SM";
  }
  purr__release(context, scratch);
  purr__release(context, open);
  return status;
}

purr_status_t purr__timeline_read(purr_context_t *context, const purr__trace_image_t *images, int num_images,
                                  purr__timeline_t *out, purr_error_t *err) {
  *out = (purr__timeline_t){.context = context, .layer = "", .noun = "SM", .num_ranks = num_images};
  reader_t reader = {.context = context, .images = images, .num_images = num_images};
  for (int i = 0; i < num_images; i++) {
    purr_status_t status = check_header(&images[i], err);
    if (status != PURR_STATUS_OK) return status;
    reader.capacity += ((const purr__trace_header_t *)images[i].memory)->num_tracks;
  }
  const uint64_t source_bytes = (uint64_t)reader.capacity * sizeof *reader.sources;
  reader.sources = purr__allocate_zeroed(context, source_bytes + 1);
  reader.image_begin = purr__allocate_zeroed(context, 3 * (uint64_t)num_images * sizeof *reader.image_begin);
  purr_status_t status = PURR_STATUS_OK;
  if (reader.sources == NULL || reader.image_begin == NULL)
    status = purr__fail_memory(err, "the timeline", source_bytes);
  else
    reader.image_end = reader.image_begin + num_images;
  for (int i = 0; status == PURR_STATUS_OK && i < num_images; i++) status = collect(&reader, i, err);
  if (status == PURR_STATUS_OK) {
    uint64_t *origins = reader.image_end + num_images;
    out->was_aligned = choose_origins(&reader, origins);
    for (int i = 0; status == PURR_STATUS_OK && i < num_images; i++)
      if (reader.image_end[i] - origins[i] > MAX_NS)
        status = garbled(err, images[i].rank, "it lies hours apart from another rank's");
    out->num_unfinished = reader.num_unfinished;
    out->num_dropped = reader.num_dropped;
    if (status == PURR_STATUS_OK) status = build(&reader, origins, out, err);
  }
  purr__release(context, reader.sources);
  purr__release(context, reader.image_begin);
  if (status != PURR_STATUS_OK) purr__timeline_free(out);
  return status;
}

void purr__timeline_free(purr__timeline_t *timeline) {
  purr__release(timeline->context, timeline->lanes);
  purr__release(timeline->context, timeline->processors);
  purr__release(timeline->context, timeline->spans);
  purr__release(timeline->context, timeline->segments);
  *timeline = (purr__timeline_t){.context = timeline->context};
}
