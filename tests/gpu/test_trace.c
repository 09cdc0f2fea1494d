/* kernels/trace.cuh on a GPU: what a kernel writes is what the reader finds, in nanoseconds, on one timeline of all
 * SMs. Uses the kernels of trace_writer.cu, which the build compiles. */
#include <stdio.h>
#include <stdlib.h>

#include "driver/driver.h"
#include "package/package.h"
#include "support/main.h"
#include "trace/trace.h"

typedef struct writer_params {
  void *trace;
  unsigned *arrived;
  uint64_t hold_ns;
  int num_events;
} writer_params_t;

enum { HOLD_NS = 20000, CAPACITY = 8 };

static purr_error_t err;
static purr_context_t *context;
static purr__device_t *device;
static purr_plan_t *plan;
static CUfunction writer, nothing;

static purr_status_t find_kernel(CUlibrary library, const char *name, CUfunction *out) {
  CUkernel kernel;
  purr_status_t status = PURR__CUDA(device, &err, cuLibraryGetKernel, (&kernel, library, name), "finding %s", name);
  if (status != PURR_STATUS_OK) return status;
  return PURR__CUDA(device, &err, cuKernelGetFunction, (out, kernel), "loading %s", name);
}

static bool set_up(void) {
  const char *path = getenv("PURR_TEST_TRACE_WRITER");
  unsigned char *data = NULL;
  uint64_t bytes;
  CUlibrary library;
  void *object;
  if (path == NULL) return false;
  if (purr_context_create(NULL, &context, &err) != PURR_STATUS_OK ||
      purr__device_get(context, 0, &device, &err) != PURR_STATUS_OK ||
      purr__object_create(context, PURR__PLAN, sizeof(purr_plan_t), NULL, &object, &err) != PURR_STATUS_OK ||
      purr__read_file(context, path, PURR__CUBIN_MAX_BYTES, &data, &bytes, &err) != PURR_STATUS_OK ||
      purr__device_enter(device, &err) != PURR_STATUS_OK)
    return false;
  plan = object;
  plan->device = device;
  plan->backend = PURR_BACKEND_HOST; /* as any whose threads record */
  plan->name = "writer";
  purr_status_t status =
      PURR__CUDA(device, &err, cuLibraryLoadData, (&library, data, NULL, NULL, 0, NULL, NULL, 0), "loading %s", path);
  if (status == PURR_STATUS_OK) status = find_kernel(library, "trace_writer", &writer);
  if (status == PURR_STATUS_OK) status = find_kernel(library, "trace_nothing", &nothing);
  purr__device_leave(device);
  purr__release(context, data);
  return status == PURR_STATUS_OK;
}

/* Runs a kernel on all SMs; `trace` may be NULL. */
static void run(CUfunction function, purr_trace_t *trace, int num_events) {
  void *arrived = NULL, *buffer = NULL;
  REQUIRE_OK(purr__device_enter(device, &err));
  REQUIRE_OK(purr__device_allocate(device, 4, "a counter", &arrived, &err));
  ASSERT_OK(purr__device_fill(device, arrived, 0, 4, NULL, &err));
  if (trace != NULL) ASSERT_OK(purr__trace_start(trace, device->num_sms, NULL, &buffer, &err));
  writer_params_t params = {buffer, arrived, HOLD_NS, num_events};
  const purr__launch_t launch = {
      .name = "trace_writer", .grid = {(uint32_t)device->num_sms, 1, 1}, .threads = 64, .is_cooperative = true};
  ASSERT_OK(purr__device_launch(device, function, &launch, (const void *const[]){&params}, &err));
  ASSERT_OK(purr__device_synchronize(device, NULL, &err));
  purr__device_release(device, arrived, 4);
  purr__device_leave(device);
  if (trace != NULL) trace->rank = 0;
}

static purr_trace_t *make_trace(void) {
  purr_trace_desc_t desc = PURR_TRACE_DESC_INIT;
  purr_trace_t *trace = NULL;
  desc.events_per_track = CAPACITY;
  ASSERT_OK(purr_trace_create(plan, &desc, &trace, &err));
  return trace;
}

static void read_back(const purr_trace_t *trace, purr__timeline_t *timeline) {
  void *copy = malloc(trace->bytes);
  ASSERT_OK(purr_memory_copy(plan, copy, trace->memory, trace->bytes, &err));
  const purr__trace_image_t image = {copy, trace->bytes, 0, 0};
  ASSERT_OK(purr__timeline_read(context, &image, 1, timeline, &err));
  free(copy);
}

static void events_are_what_was_done(void) {
  purr_trace_t *trace = make_trace();
  if (trace == NULL) return;
  run(writer, trace, CAPACITY - 1);
  purr__timeline_t timeline;
  read_back(trace, &timeline);
  CU_ASSERT_EQUAL(timeline.num_lanes, 2 * device->num_sms);
  CU_ASSERT_EQUAL(timeline.num_processors, device->num_sms); /* one block on each */
  CU_ASSERT_EQUAL(timeline.num_dropped, 0);
  CU_ASSERT_EQUAL(timeline.num_unfinished, 0);
  int64_t first = INT64_MAX, last = 0, shortest = INT64_MAX, longest = 0;
  for (int64_t l = 0; l < timeline.num_lanes; l++) {
    const purr__lane_t *lane = &timeline.lanes[l];
    CU_ASSERT_EQUAL_FATAL(lane->num_spans, CAPACITY); /* the short waits are none */
    CU_ASSERT_EQUAL(lane->spans[0].kind, PURR__TRACE_WAIT_PEER);
    CU_ASSERT_EQUAL(lane->spans[0].rank, 5);
    CU_ASSERT_EQUAL(lane->spans[0].expert, -1);
    first = purr__min(first, lane->spans[0].end);
    last = purr__max(last, lane->spans[0].end);
    for (int i = 1; i < CAPACITY; i++) {
      const purr__span_t *span = &lane->spans[i];
      CU_ASSERT_EQUAL(span->kind, PURR__TRACE_GATE_UP);
      CU_ASSERT_EQUAL(span->expert, i - 1);
      CU_ASSERT_EQUAL(span->row, (int32_t)lane->block);
      CU_ASSERT_EQUAL(span->column, lane->role == PURR__TRACE_ROLE_LOADER ? 0 : 1);
      shortest = purr__min(shortest, span->end - span->begin);
      longest = purr__max(longest, span->end - span->begin);
    }
  }
  /* The timer of some devices ticks once a microsecond. */
  fprintf(stderr, "  %d ns lasted from %lld to %lld ns; all left the meeting within %lld ns\n", HOLD_NS,
          (long long)shortest, (long long)longest, (long long)(last - first));
  CU_ASSERT(shortest > HOLD_NS - 3000 && longest < HOLD_NS + 5000);
  CU_ASSERT(last - first < 6000);
  purr__timeline_free(&timeline);
  char text[8192];
  ASSERT_OK(purr_trace_write((const purr_trace_t *[]){trace}, 1, PURR_TRACE_TEXT, text, sizeof text, NULL, &err));
  fprintf(stderr, "%s", text);
  purr_trace_destroy(trace);
}

static void what_finds_no_room_is_counted(void) {
  purr_trace_t *trace = make_trace();
  if (trace == NULL) return;
  run(writer, trace, CAPACITY + 4);
  purr__timeline_t timeline;
  read_back(trace, &timeline);
  CU_ASSERT_EQUAL(timeline.num_dropped, 5 * (uint64_t)timeline.num_lanes);
  CU_ASSERT_EQUAL(timeline.num_spans, CAPACITY * timeline.num_lanes);
  purr__timeline_free(&timeline);
  purr_trace_destroy(trace);
}

static void nothing_is_written_without_a_buffer(void) {
  run(writer, NULL, 2);
  purr_trace_t *trace = make_trace();
  if (trace == NULL) return;
  run(nothing, trace, 2);
  char text[64];
  ASSERT_STATUS(PURR_STATUS_INVALID_STATE,
                purr_trace_write((const purr_trace_t *[]){trace}, 1, PURR_TRACE_TEXT, text, sizeof text, NULL, &err));
  purr_trace_destroy(trace);
}

int main(void) {
  int failures = PURR_TEST_SKIPPED;
  if (set_up())
    failures = purr_test_main("trace on a GPU",
                              (purr_test_t[]){{"events are what was done", events_are_what_was_done},
                                              {"what finds no room is counted", what_finds_no_room_is_counted},
                                              {"nothing without a buffer", nothing_is_written_without_a_buffer},
                                              {0}});
  else
    fprintf(stderr, "skipped: %s\n", err.message[0] != '\0' ? err.message : "the build has no nvcc");
  purr__object_release(plan);
  purr_context_destroy(context);
  return failures;
}
