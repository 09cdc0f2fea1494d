/* The purr_trace_t of one rank: its memory, and what calls do with it. */
#include "trace/trace.h"

#include "driver/driver.h"
#include "launch/call.h"
#include "workspace/memory.h"

/* Enough for the tiles of one SM in a call of some milliseconds; a thread of the host has more tiles to itself. */
enum { DEVICE_EVENTS = 4096, HOST_EVENTS = 32768, MAX_EVENTS = 1 << 20 };

/* What a trace of this plan holds. */
static purr_status_t lay_out(const purr_plan_t *plan, const purr_trace_desc_t *desc, purr_trace_t *out,
                             purr_error_t *err) {
  purr_trace_desc_t own = PURR_TRACE_DESC_INIT;
  if (desc != NULL) {
    purr_status_t status = purr__read_struct(&own, sizeof own, desc, "purr_trace_desc_t", err);
    if (status == PURR_STATUS_OK) status = purr__check_reserved(own.reserved, "purr_trace_desc_t", err);
    if (status != PURR_STATUS_OK) return status;
  }
  if (own.events_per_track < 0 || own.events_per_track > MAX_EVENTS)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "events_per_track is %lld; allowed is 0 (the default) to %d",
                      (long long)own.events_per_track, MAX_EVENTS);
  const purr__backend_t *backend = purr__backend_of(plan);
  if (backend->traces == PURR__TRACES_NOTHING)
    return purr__fail(err, PURR_STATUS_UNSUPPORTED, "the %s backend records no timeline", backend->name);
  if (backend->traces == PURR__TRACES_LAUNCHES) return PURR_STATUS_OK; /* without memory */
  const bool is_host = plan->device == NULL;
  out->tracks_per_block = is_host ? 1 : PURR__TRACE_TRACKS_PER_BLOCK;
  out->num_tracks = is_host ? (uint32_t)purr__num_threads(plan->object.context)
                            : (uint32_t)plan->device->num_sms * PURR__TRACE_TRACKS_PER_BLOCK;
  out->events_per_track = own.events_per_track > 0 ? (uint32_t)own.events_per_track
                          : is_host                ? HOST_EVENTS
                                                   : DEVICE_EVENTS;
  out->bytes = sizeof(purr__trace_header_t) +
               out->num_tracks * (sizeof(purr__trace_track_t) + out->events_per_track * sizeof(purr__trace_event_t));
  out->memory = own.memory;
  if (own.memory != NULL && own.bytes < out->bytes)
    return purr__fail(err, PURR_STATUS_BUFFER_TOO_SMALL,
                      "the trace memory has %llu bytes, %llu are needed (purr_trace_query says so)",
                      (unsigned long long)own.bytes, (unsigned long long)out->bytes);
  if ((uintptr_t)own.memory % PURR__MEMORY_ALIGNMENT != 0)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "the trace memory is at %p; it must be %d-byte aligned",
                      own.memory, PURR__MEMORY_ALIGNMENT);
  return PURR_STATUS_OK;
}

purr_status_t purr_trace_query(const purr_plan_t *plan, const purr_trace_desc_t *desc, uint64_t *out_bytes,
                               purr_error_t *err) {
  if (out_bytes == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_bytes is NULL");
  purr_status_t status = purr__check(plan, PURR__PLAN, err);
  purr_trace_t layout = {0};
  if (status == PURR_STATUS_OK) status = lay_out(plan, desc, &layout, err);
  if (status == PURR_STATUS_OK) *out_bytes = layout.bytes;
  return status;
}

static void trace_free(void *object) {
  purr_trace_t *trace = object;
  if (trace->owns_memory) purr__memory_release(trace->plan, trace->memory, trace->bytes);
  purr__trace_launches_free(trace);
  purr__object_release(trace->plan);
}

static purr_status_t prepare_memory(purr_trace_t *trace, purr_error_t *err) {
  purr_status_t status = PURR_STATUS_OK;
  if (trace->memory == NULL) {
    trace->owns_memory = true;
    status = purr__memory_allocate(trace->plan, trace->bytes, "the trace", (void **)&trace->memory, err);
  }
  const purr__trace_header_t header = {.magic = PURR__TRACE_MAGIC,
                                       .layout = PURR__TRACE_LAYOUT,
                                       .num_tracks = trace->num_tracks,
                                       .tracks_per_block = trace->tracks_per_block,
                                       .events_per_track = trace->events_per_track};
  return status == PURR_STATUS_OK ? purr__memory_copy(trace->plan, trace->memory, &header, sizeof header, err) : status;
}

purr_status_t purr_trace_create(const purr_plan_t *plan, const purr_trace_desc_t *desc, purr_trace_t **out_trace,
                                purr_error_t *err) {
  if (out_trace == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_trace is NULL");
  *out_trace = NULL;
  purr_status_t status = purr__check(plan, PURR__PLAN, err);
  purr_trace_t layout = {0};
  if (status == PURR_STATUS_OK) status = lay_out(plan, desc, &layout, err);
  if (status == PURR_STATUS_OK) status = purr__plan_check_memory(plan, layout.memory, "the trace memory", err);
  if (status != PURR_STATUS_OK) return status;
  void *object;
  status = purr__object_create(plan->object.context, PURR__TRACE, sizeof(purr_trace_t), trace_free, &object, err);
  if (status != PURR_STATUS_OK) return status;
  purr_trace_t *trace = object;
  purr__object_retain(plan);
  trace->plan = plan;
  trace->bytes = layout.bytes;
  trace->num_tracks = layout.num_tracks;
  trace->tracks_per_block = layout.tracks_per_block;
  trace->events_per_track = layout.events_per_track;
  trace->memory = layout.memory;
  trace->rank = -1;
  status = trace->bytes > 0 ? prepare_memory(trace, err) : purr__trace_launches_create(trace, err);
  if (status != PURR_STATUS_OK) {
    purr__object_release(trace);
    return status;
  }
  *out_trace = trace;
  return PURR_STATUS_OK;
}

void purr_trace_destroy(purr_trace_t *trace) { purr__object_release(trace); }

/* ---- recording ---- */

purr_status_t purr__trace_start(purr_trace_t *trace, int64_t num_blocks, void *stream, void **out_buffer,
                                purr_error_t *err) {
  *out_buffer = NULL;
  if (num_blocks * trace->tracks_per_block > trace->num_tracks)
    return purr__fail(err, PURR_STATUS_UNSUPPORTED, "the call has %lld blocks, a trace of this device has room for %u",
                      (long long)num_blocks, trace->num_tracks / trace->tracks_per_block);
  char *tracks = trace->memory + sizeof(purr__trace_header_t);
  const uint64_t bytes = trace->num_tracks * sizeof(purr__trace_track_t);
  if (trace->plan->device == NULL) {
    /* A thread that gets nothing to do is there too, and idle. */
    const uint64_t now = (uint64_t)purr__now_ns();
    for (uint32_t t = 0; t < trace->num_tracks; t++)
      ((purr__trace_track_t *)tracks)[t] =
          (purr__trace_track_t){.clock_begin = now,
                                .ns_begin = now,
                                .clock_end = now,
                                .ns_end = now,
                                .processor = t,
                                .block = t,
                                .role = t == 0 ? PURR__TRACE_ROLE_CALLER : PURR__TRACE_ROLE_WORKER};
  } else {
    purr_status_t status = purr__device_fill(trace->plan->device, tracks, 0, bytes, stream, err);
    if (status != PURR_STATUS_OK) return status;
  }
  *out_buffer = trace->memory;
  return PURR_STATUS_OK;
}

void purr__trace_record(purr_trace_t *trace, int worker_idx, const purr__trace_event_t *event) {
  purr__trace_track_t *tracks = (purr__trace_track_t *)(trace->memory + sizeof(purr__trace_header_t));
  purr__trace_track_t *track = &tracks[worker_idx];
  track->clock_end = track->ns_end = event->end;
  if (track->num_events == trace->events_per_track) {
    track->num_dropped++;
    return;
  }
  purr__trace_event_t *events = (purr__trace_event_t *)(tracks + trace->num_tracks);
  events[(uint64_t)worker_idx * trace->events_per_track + track->num_events++] = *event;
}

/* ---- writing ---- */

/* The first of the traces that are made of launches: its start is where those of all count from. */
static const purr_trace_t *first_of_launches(const purr_trace_t *const *traces) {
  int i = 0;
  while (traces[i]->launches == NULL) i++;
  return traces[i];
}

/* Brings every rank's memory to the host. */
static purr_status_t fetch(const purr_trace_t *const *traces, int num_traces, purr__trace_image_t *images,
                           purr_error_t *err) {
  for (int i = 0; i < num_traces; i++) {
    const purr_trace_t *trace = traces[i];
    const purr__device_t *device = trace->plan->device;
    images[i] = (purr__trace_image_t){.memory = trace->memory,
                                      .bytes = trace->launches != NULL ? purr__trace_launches_bytes() : trace->bytes,
                                      .rank = trace->rank,
                                      .device = device != NULL ? device->ordinal : -1};
    if (device == NULL) continue;
    void *copy = purr__allocate(trace->object.context, images[i].bytes);
    if (copy == NULL) return purr__fail_memory(err, "the timeline", images[i].bytes);
    images[i].memory = copy;
    purr_status_t status = trace->launches != NULL
                               ? purr__trace_launches_read(trace, first_of_launches(traces), copy, err)
                               : purr__memory_copy(trace->plan, copy, trace->memory, trace->bytes, err);
    if (status != PURR_STATUS_OK) return status;
  }
  return PURR_STATUS_OK;
}

static purr_status_t check_traces(const purr_trace_t *const *traces, int32_t num_traces, purr_error_t *err) {
  if (traces == NULL || num_traces < 1)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s", traces == NULL ? "traces is NULL" : "there is no trace");
  for (int i = 0; i < num_traces; i++) {
    purr_status_t status = purr__check(traces[i], PURR__TRACE, err);
    if (status != PURR_STATUS_OK) return status;
    if (traces[i]->object.context != traces[0]->object.context)
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "the traces belong to different contexts");
    if (traces[i]->rank < 0)
      return purr__fail(err, PURR_STATUS_INVALID_STATE, "nothing was recorded; give the trace to a purr_forward first");
    for (int j = 0; j < i; j++)
      if (traces[j]->rank == traces[i]->rank)
        return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "traces %d and %d are both of rank %d", j, i,
                          traces[i]->rank);
  }
  return PURR_STATUS_OK;
}

static purr_status_t add(purr__text_t *text, const purr__timeline_t *timeline, int32_t format, purr_error_t *err) {
  switch (format) {
    case PURR_TRACE_PERFETTO:
      purr__timeline_add_perfetto(text, timeline);
      return PURR_STATUS_OK;
    case PURR_TRACE_SVG:
      return purr__timeline_add_svg(text, timeline, err);
    default:
      return purr__timeline_add_summary(text, timeline, format == PURR_TRACE_JSON, err);
  }
}

purr_status_t purr_trace_write(const purr_trace_t *const *traces, int32_t num_traces, int32_t format, char *buffer,
                               uint64_t capacity, uint64_t *out_length, purr_error_t *err) {
  purr_status_t status = check_traces(traces, num_traces, err);
  if (status != PURR_STATUS_OK) return status;
  if (format < PURR_TRACE_TEXT || format > PURR_TRACE_SVG)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "format is %d; allowed are PURR_TRACE_TEXT to PURR_TRACE_SVG",
                      format);
  purr_context_t *context = traces[0]->object.context;
  const uint64_t image_bytes = (uint64_t)num_traces * sizeof(purr__trace_image_t);
  purr__trace_image_t *images = purr__allocate_zeroed(context, image_bytes);
  if (images == NULL) return purr__fail_memory(err, "the timeline", image_bytes);
  purr__timeline_t timeline = {0};
  purr__text_t text = {.context = context};
  status = fetch(traces, num_traces, images, err);
  if (status == PURR_STATUS_OK) status = purr__timeline_read(context, images, num_traces, &timeline, err);
  if (status == PURR_STATUS_OK) {
    timeline.layer = traces[0]->plan->name;
    status = add(&text, &timeline, format, err);
    purr__timeline_free(&timeline);
  }
  for (int i = 0; i < num_traces; i++)
    if (images[i].memory != traces[i]->memory) purr__release(context, (void *)images[i].memory);
  purr__release(context, images);
  if (status == PURR_STATUS_OK) return purr__text_deliver(&text, buffer, capacity, out_length, err);
  purr__text_free(&text);
  return status;
}
