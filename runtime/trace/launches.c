/* The timeline of a backend whose kernels record nothing: the time between its launches, by events of the driver. One
 * track a rank. */
#include "driver/driver.h"
#include "trace/trace.h"

enum { MAX_LAUNCHES = 16 };

struct purr__trace_launches {
  CUevent stamps[MAX_LAUNCHES + 1]; /* in front of the first launch, and behind each */
  uint16_t kinds[MAX_LAUNCHES];
  int num_stamps; /* of the last call */
};

purr_status_t purr__trace_launches_create(purr_trace_t *trace, purr_error_t *err) {
  purr__device_t *device = trace->plan->device;
  trace->launches = purr__allocate_zeroed(trace->object.context, sizeof *trace->launches);
  if (trace->launches == NULL) return purr__fail_memory(err, "the trace", sizeof *trace->launches);
  purr_status_t status = purr__device_enter(device, err);
  if (status != PURR_STATUS_OK) return status;
  const int mode = purr__device_allow_capture(device);
  for (int i = 0; i <= MAX_LAUNCHES && status == PURR_STATUS_OK; i++)
    status = PURR__CUDA(device, err, cuEventCreate, (&trace->launches->stamps[i], 0), "creating an event");
  purr__device_restore_capture(device, mode);
  purr__device_leave(device);
  return status;
}

void purr__trace_launches_free(purr_trace_t *trace) {
  purr__device_t *device = trace->plan->device;
  if (trace->launches == NULL) return;
  if (purr__device_enter(device, NULL) == PURR_STATUS_OK) {
    const int mode = purr__device_allow_capture(device);
    for (int i = 0; i <= MAX_LAUNCHES; i++)
      if (trace->launches->stamps[i] != NULL) (void)device->driver->cuda.cuEventDestroy(trace->launches->stamps[i]);
    purr__device_restore_capture(device, mode);
    purr__device_leave(device);
  }
  purr__release(trace->object.context, trace->launches);
}

static purr_status_t stamp(purr_trace_t *trace, CUstream stream, purr_error_t *err) {
  struct purr__trace_launches *launches = trace->launches;
  return PURR__CUDA(trace->plan->device, err, cuEventRecord, (launches->stamps[launches->num_stamps++], stream),
                    "recording an event");
}

purr_status_t purr__trace_launches_start(purr_trace_t *trace, void *stream, purr_error_t *err) {
  if (trace == NULL) return PURR_STATUS_OK;
  int capture = 0;
  purr_status_t status = PURR__CUDA(trace->plan->device, err, cuStreamIsCapturing, (stream, &capture),
                                    "asking whether the stream is captured");
  if (status == PURR_STATUS_OK && capture != 0)
    status = purr__fail(err, PURR_STATUS_UNSUPPORTED,
                        "this backend's timeline is made of its launches, which have no times inside a graph; trace a "
                        "call outside of it");
  trace->launches->num_stamps = 0;
  return status == PURR_STATUS_OK ? stamp(trace, stream, err) : status;
}

purr_status_t purr__trace_launched(purr_trace_t *trace, int kind, void *stream, purr_error_t *err) {
  if (trace == NULL || trace->launches->num_stamps > MAX_LAUNCHES) return PURR_STATUS_OK;
  trace->launches->kinds[trace->launches->num_stamps - 1] = (uint16_t)kind;
  return stamp(trace, stream, err);
}

/* Nanoseconds from one event to another of the same device. */
static purr_status_t elapsed(purr__device_t *device, CUevent from, CUevent to, int64_t *out_ns, purr_error_t *err) {
  float milliseconds = 0.0f;
  purr_status_t status = purr__device_enter(device, err);
  if (status != PURR_STATUS_OK) return status;
  const int mode = purr__device_allow_capture(device);
  status = PURR__CUDA(device, err, cuEventElapsedTime, (&milliseconds, from, to), "reading the trace");
  purr__device_restore_capture(device, mode);
  purr__device_leave(device);
  *out_ns = (int64_t)((double)milliseconds * 1e6);
  return status;
}

/* Nanoseconds from the start of a call to the end of its first barrier, 0 where there is none. */
static purr_status_t until_barrier(const purr_trace_t *trace, int64_t *out_ns, purr_error_t *err) {
  const struct purr__trace_launches *launches = trace->launches;
  int i = 1;
  while (i < launches->num_stamps && launches->kinds[i - 1] != PURR__TRACE_WAIT_PEER) i++;
  *out_ns = 0;
  if (i >= launches->num_stamps) return PURR_STATUS_OK;
  return elapsed(trace->plan->device, launches->stamps[0], launches->stamps[i], out_ns, err);
}

/* When a call began, on the clock of another rank's. Events of two devices have no time between them, but all ranks
 * leave a barrier together, within some microseconds. */
static purr_status_t find_begin(const purr_trace_t *trace, const purr_trace_t *first, int64_t *out_ns,
                                purr_error_t *err) {
  purr__device_t *device = trace->plan->device;
  if (first->plan->device == device)
    return elapsed(device, first->launches->stamps[0], trace->launches->stamps[0], out_ns, err);
  int64_t own = 0, other = 0;
  purr_status_t status = until_barrier(trace, &own, err);
  if (status == PURR_STATUS_OK) status = until_barrier(first, &other, err);
  *out_ns = other - own;
  return status;
}

uint64_t purr__trace_launches_bytes(void) {
  return sizeof(purr__trace_header_t) + sizeof(purr__trace_track_t) + MAX_LAUNCHES * sizeof(purr__trace_event_t);
}

purr_status_t purr__trace_launches_read(const purr_trace_t *trace, const purr_trace_t *first, void *image,
                                        purr_error_t *err) {
  const struct purr__trace_launches *launches = trace->launches;
  purr__device_t *device = trace->plan->device;
  purr__trace_header_t *header = image;
  purr__trace_track_t *track = (purr__trace_track_t *)(header + 1);
  purr__trace_event_t *events = (purr__trace_event_t *)(track + 1);
  memset(image, 0, purr__trace_launches_bytes());
  *header = (purr__trace_header_t){.magic = PURR__TRACE_MAGIC,
                                   .layout = PURR__TRACE_LAYOUT,
                                   .num_tracks = 1,
                                   .tracks_per_block = 1,
                                   .events_per_track = MAX_LAUNCHES};
  if (launches->num_stamps < 2) return PURR_STATUS_OK; /* cut short: nothing was recorded */
  int64_t begin = 0, from = 0, to = 0;
  purr_status_t status = find_begin(trace, first, &begin, err);
  begin += (int64_t)1 << 50; /* the first of all need not be the earliest */
  for (int i = 1; i < launches->num_stamps && status == PURR_STATUS_OK; i++, from = to) {
    status = elapsed(device, launches->stamps[0], launches->stamps[i], &to, err);
    if (to < from) to = from; /* each is rounded by itself */
    events[i - 1] = (purr__trace_event_t){.begin = (uint64_t)(begin + from),
                                          .end = (uint64_t)(begin + to),
                                          .kind = launches->kinds[i - 1],
                                          .rank = -1,
                                          .expert = -1,
                                          .row = -1,
                                          .column = -1};
  }
  *track = (purr__trace_track_t){.clock_begin = (uint64_t)begin,
                                 .ns_begin = (uint64_t)begin,
                                 .clock_end = (uint64_t)(begin + to),
                                 .ns_end = (uint64_t)(begin + to),
                                 .role = PURR__TRACE_ROLE_STREAM,
                                 .num_events = (uint32_t)launches->num_stamps - 1};
  return status;
}
