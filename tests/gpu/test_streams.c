/* Streams and graphs on a GPU: what a call does to the host, which inputs it reads, and what a replay reads and
 * tells. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/lane.h"
#include "support/allocator.h"

/* ---- nothing waits, nothing is allocated ---- */

static purr__cuda_t true_driver;
static atomic_int num_allocations, num_waits;

static CUresult counting_alloc(CUdeviceptr *address, size_t bytes) {
  num_allocations++;
  return true_driver.cuMemAlloc(address, bytes);
}
static CUresult counting_host_alloc(void **memory, size_t bytes, unsigned flags) {
  num_allocations++;
  return true_driver.cuMemHostAlloc(memory, bytes, flags);
}
static CUresult counting_event_create(CUevent *event, unsigned flags) {
  num_allocations++;
  return true_driver.cuEventCreate(event, flags);
}
static CUresult counting_stream_wait(CUstream stream) {
  num_waits++;
  return true_driver.cuStreamSynchronize(stream);
}
static CUresult counting_event_wait(CUevent event) {
  num_waits++;
  return true_driver.cuEventSynchronize(event);
}

static void calls_only_enqueue(void) {
  purr_test_allocator_t memory;
  purr_test_allocator_init(&memory);
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  desc.host_allocator = &memory.hooks;
  scene_t scene;
  if (!open_scene_with(&scene, &desc, test_fixture_f(64, 256, 128, 8, 2, 0))) return;
  lane_t *lane = &scene.lane;
  run_exact(lane);
  poison(lane);
  purr_counters_t before = {.struct_size = sizeof before}, after = before;
  volatile uint32_t *gate = raw_gate_create(&lane->raw);

  purr__cuda_t *driver = &scene.plan->device->driver->cuda;
  true_driver = *driver;
  driver->cuMemAlloc = counting_alloc;
  driver->cuMemHostAlloc = counting_host_alloc;
  driver->cuEventCreate = counting_event_create;
  driver->cuStreamSynchronize = counting_stream_wait;
  driver->cuEventSynchronize = counting_event_wait;
  num_allocations = num_waits = 0;
  const long long calls = memory.num_calls;
  purr_context_query_counters(scene.context, &before, NULL);

  CU_ASSERT_EQUAL(raw_wait(&lane->raw, lane->rank.stream, gate, 1), CUDA_SUCCESS);
  const uint64_t begin = purr__now_ns();
  for (int i = 0; i < 20; i++) CU_ASSERT_EQUAL(forward(lane), PURR_STATUS_OK);
  const uint64_t took = purr__now_ns() - begin;
  CU_ASSERT_EQUAL(query(lane), PURR_STATUS_NOT_READY);
  CU_ASSERT_EQUAL(num_allocations, 0);
  CU_ASSERT_EQUAL(num_waits, 0);
  CU_ASSERT_EQUAL(memory.num_calls, calls);
  purr_context_query_counters(scene.context, &after, NULL);
  CU_ASSERT_EQUAL(after.device_bytes, before.device_bytes);
  CU_ASSERT_EQUAL(after.num_launches - before.num_launches, 20 * (plain_run.backend == PURR_BACKEND_MEGA ? 3 : 4));
  CU_ASSERT(took < UINT64_C(2000000000));
  *driver = true_driver;

  *gate = 1;
  CU_ASSERT_EQUAL(finish(lane), PURR_STATUS_OK);
  CU_ASSERT(is_exact(lane));
  CU_ASSERT_EQUAL(lane->info.num_rows, 128);
  fprintf(stderr, "  a call took %.1f us to enqueue\n", (double)took / 20e3);
  raw_gate_destroy(&lane->raw, gate);
  close_scene(&scene);
  CU_ASSERT_EQUAL(memory.num_live, 0);
  CU_ASSERT_EQUAL(memory.num_wrong, 0);
}

/* ---- graphs ---- */

static void expect_counts(lane_t *lane) {
  int64_t counts[8], expected[8] = {0}, rows = 0;
  for (int64_t i = 0; i < num_slots(lane); i++)
    if (lane->ids[i] >= 0) expected[lane->ids[i]]++;
  for (int e = 0; e < 8; e++) rows += expected[e];
  CU_ASSERT_EQUAL(purr_result_tokens_per_expert(lane->rank.result, counts, 8, NULL), PURR_STATUS_OK);
  CU_ASSERT_EQUAL(memcmp(counts, expected, sizeof counts), 0);
  CU_ASSERT_EQUAL(lane->info.num_rows, rows);
}

/* B35 */
static void replays_read_what_is_there(void) {
  scene_t scene;
  lane_t eager;
  if (!open_scene(&scene, 64, 2) || !start(&eager, scene.context, scene.plan, scene.problem, 64)) return;
  lane_t *lane = &scene.lane;
  run_exact(lane);
  graph_t graph = capture(lane);
  for (int pattern = 0; pattern < 8; pattern++) {
    route(lane, pattern);
    route(&eager, pattern);
    upload(lane);
    poison(lane);
    replay(lane, &graph);
    CU_ASSERT_EQUAL(finish(lane), PURR_STATUS_OK);
    CU_ASSERT(is_exact(lane));
    expect_counts(lane);
    run_exact(&eager);
    CU_ASSERT_EQUAL(memcmp(lane->output, eager.output, (size_t)num_values(lane) * 2), 0);
  }
  /* A bad id in a replay, and none in the next. */
  lane->ids[2 * 9 + 1] = 8;
  upload(lane);
  poison(lane);
  replay(lane, &graph);
  CU_ASSERT_EQUAL(finish(lane), PURR_STATUS_BAD_ROUTE);
  CU_ASSERT(is_untouched(lane));
  CU_ASSERT_EQUAL(lane->info.token, 9);
  CU_ASSERT_EQUAL(lane->info.slot, 1);
  CU_ASSERT_EQUAL(lane->info.expert, 8);
  CU_ASSERT_EQUAL(purr_result_tokens_per_expert(lane->rank.result, (int64_t[8]){0}, 8, NULL),
                  PURR_STATUS_INVALID_STATE);
  lane->ids[2 * 9 + 1] = 3;
  upload(lane);
  for (int i = 0; i < 3; i++) replay(lane, &graph); /* without waiting in between */
  CU_ASSERT_EQUAL(finish(lane), PURR_STATUS_OK);
  CU_ASSERT(is_exact(lane));
  CU_ASSERT_STRING_EQUAL(lane->err.message, "");
  /* The expert's weights in place: down of expert 3 becomes that of expert 7. */
  purr_error_t err;
  const uint64_t slice = 256 * 128 * 2;
  char *down = scene.lane.rank.tensor.down.data;
  ASSERT_OK(purr_memory_copy(scene.plan, down + 3 * slice, down + 7 * slice, slice, &err));
  for (int64_t i = 0; i < num_slots(lane); i++) lane->ids[i] = 3;
  upload(lane);
  for (int64_t i = 0; i < num_slots(lane); i++) lane->ids[i] = 7;
  raw_fixture_output(scene.problem, 64, lane->x, lane->ids, lane->weights, lane->expected);
  replay(lane, &graph);
  CU_ASSERT_EQUAL(finish(lane), PURR_STATUS_OK);
  CU_ASSERT(is_exact(lane));
  drop_graph(lane, &graph);
  stop(&eager);
  close_scene(&scene);
}

/* Another thread copies, calls, polls and waits while this one captures, which the library must not break. The first
 * call of a result may be a captured one. */
static void *work_beside_a_capture(void *arg) {
  lane_t *lane = arg;
  purr_error_t err;
  upload(lane);
  poison(lane);
  CU_ASSERT_EQUAL(forward(lane), PURR_STATUS_OK);
  while (query(lane) == PURR_STATUS_NOT_READY) {
  }
  ASSERT_OK(purr_memory_copy(lane->rank.plan, lane->output, lane->rank.tensor.output.data,
                             (uint64_t)num_values(lane) * 2, &err));
  CU_ASSERT(is_exact(lane));
  purr_result_t *result = NULL;
  ASSERT_OK(purr_result_create(lane->rank.context, &result, &err));
  purr_result_destroy(result);
  return NULL;
}

static void captures_stay_whole(void) {
  scene_t scene;
  lane_t other;
  if (!open_scene(&scene, 64, 2) || !start(&other, scene.context, scene.plan, scene.problem, 64)) return;
  lane_t *lane = &scene.lane;
  graph_t graph = {0};
  pthread_t thread;
  CU_ASSERT_EQUAL_FATAL(purr__device_enter(lane->raw.device, NULL), PURR_STATUS_OK);
  CU_ASSERT_EQUAL(lane->raw.begin_capture(lane->rank.stream, 0), CUDA_SUCCESS);
  CU_ASSERT_EQUAL(forward(lane), PURR_STATUS_OK);
  pthread_create(&thread, NULL, work_beside_a_capture, &other);
  pthread_join(thread, NULL);
  CU_ASSERT_EQUAL(forward(lane), PURR_STATUS_OK);
  CU_ASSERT_EQUAL_FATAL(lane->raw.end_capture(lane->rank.stream, &graph.graph), CUDA_SUCCESS);
  CU_ASSERT_EQUAL_FATAL(lane->raw.instantiate(&graph.exec, graph.graph, 0), CUDA_SUCCESS);
  purr__device_leave(lane->raw.device);
  poison(lane);
  replay(lane, &graph);
  CU_ASSERT_EQUAL(finish(lane), PURR_STATUS_OK);
  CU_ASSERT(is_exact(lane));
  drop_graph(lane, &graph);
  stop(&other);
  close_scene(&scene);
}

/* B39 */
static void a_larger_call_leaves_a_graph_alone(void) {
  enum { CANARY_BYTES = 1 << 30, CHUNK = 64 << 20 };
  purr_error_t err;
  scene_t scene, large;
  if (!open_scene(&scene, 16, 2)) return;
  lane_t *lane = &scene.lane;
  run_exact(lane);
  graph_t graph = capture(lane);
  if (!open_scene(&large, 4096, 2)) return;
  run_exact(&large.lane);
  void *canary = NULL;
  REQUIRE_OK(purr_memory_allocate(scene.plan, CANARY_BYTES, &canary, &err));
  ASSERT_OK(purr__device_fill(scene.plan->device, canary, 0xA5, CANARY_BYTES, NULL, &err));
  ASSERT_OK(purr_stream_synchronize(scene.plan, NULL, &err));
  for (int i = 0; i < 3; i++) {
    poison(lane);
    replay(lane, &graph);
    CU_ASSERT_EQUAL(finish(lane), PURR_STATUS_OK);
    CU_ASSERT(is_exact(lane));
  }
  run_exact(lane);
  unsigned char *chunk = malloc(CHUNK), *expected = malloc(CHUNK);
  memset(expected, 0xA5, CHUNK);
  for (uint64_t at = 0; at < CANARY_BYTES; at += CHUNK) {
    ASSERT_OK(purr_memory_copy(scene.plan, chunk, (char *)canary + at, CHUNK, &err));
    CU_ASSERT_EQUAL(memcmp(chunk, expected, CHUNK), 0);
  }
  free(chunk);
  free(expected);
  purr_memory_release(scene.plan, canary, CANARY_BYTES);
  drop_graph(lane, &graph);
  close_scene(&large);
  close_scene(&scene);
}

/* ---- inputs made on the stream ---- */

/* B37: the inputs of round r are written by copies that stand behind a gate, on the call's stream or on another one
 * that it waits for by an event; the host opens the gate when everything is enqueued. */
static void inputs_come_late(void) {
  enum { T = 64 };
  const int num_rounds = test_is_emulated() ? 20 : 100;
  purr_error_t err;
  scene_t scene;
  if (!open_scene(&scene, T, 1)) return;
  lane_t *lane = &scene.lane;
  run_exact(lane);
  const purr__cuda_t *cuda = &scene.plan->device->driver->cuda;
  const uint64_t ids_bytes = T * 4, x_bytes = T * 256 * 2;
  void *second = NULL, *staged = NULL, *out = NULL;
  CUevent event = NULL;
  REQUIRE_OK(purr_stream_create(scene.plan, &second, &err));
  /* Page-locked: copies from it wait for their turn in the stream. */
  REQUIRE_OK(purr__device_allocate_pinned(scene.plan->device, 2 * ids_bytes + ids_bytes + x_bytes, &staged, &err));
  REQUIRE_OK(purr__device_allocate_pinned(scene.plan->device, (uint64_t)num_rounds * x_bytes, &out, &err));
  volatile uint32_t *gate = raw_gate_create(&lane->raw);
  int32_t *ids = staged;
  for (int i = 0; i < T; i++) {
    ids[i] = 0;
    ids[T + i] = 7;
    ((float *)staged)[2 * T + i] = 1.0f;
  }
  char *x = (char *)staged + 3 * ids_bytes;
  memcpy(x, lane->x, x_bytes);
  REQUIRE_OK(purr__device_enter(scene.plan->device, &err));
  CU_ASSERT_EQUAL(cuda->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  for (int joined = 0; joined < 2; joined++) {
    memset(out, 0, (uint64_t)num_rounds * x_bytes);
    *gate = 0;
    for (int round = 0; round < num_rounds; round++) {
      CUstream stream = lane->rank.stream, source = joined ? second : stream;
      CU_ASSERT_EQUAL(lane->raw.wait_value(source, (CUdeviceptr)(uintptr_t)gate, (uint32_t)round + 1, 0), CUDA_SUCCESS);
      /* Something wrong first, so that reading early shows. */
      ASSERT_OK(purr__device_fill(scene.plan->device, lane->rank.tensor.ids.data, 3, ids_bytes, source, &err));
      ASSERT_OK(purr__device_copy(scene.plan->device, lane->rank.tensor.ids.data, ids + round % 2 * T, ids_bytes,
                                  source, &err));
      ASSERT_OK(purr__device_copy(scene.plan->device, lane->rank.tensor.topk_weights.data, ids + 2 * T, ids_bytes,
                                  source, &err));
      ASSERT_OK(purr__device_copy(scene.plan->device, lane->rank.tensor.x.data, x, x_bytes, source, &err));
      if (joined) {
        CU_ASSERT_EQUAL(cuda->cuEventRecord(event, second), CUDA_SUCCESS);
        CU_ASSERT_EQUAL(cuda->cuStreamWaitEvent(stream, event, 0), CUDA_SUCCESS);
      }
      CU_ASSERT_EQUAL(forward(lane), PURR_STATUS_OK);
      ASSERT_OK(purr__device_copy(scene.plan->device, (char *)out + (uint64_t)round * x_bytes,
                                  lane->rank.tensor.output.data, x_bytes, stream, &err));
      if (joined) { /* the next round's inputs come after this round's call */
        CU_ASSERT_EQUAL(cuda->cuEventRecord(event, stream), CUDA_SUCCESS);
        CU_ASSERT_EQUAL(cuda->cuStreamWaitEvent(second, event, 0), CUDA_SUCCESS);
      }
      *gate = (uint32_t)round + 1;
    }
    CU_ASSERT_EQUAL(finish(lane), PURR_STATUS_OK);
    for (int round = 0; round < num_rounds; round++) {
      raw_fixture_output(scene.problem, T, lane->x, ids + round % 2 * T, (const float *)staged + 2 * T, lane->expected);
      CU_ASSERT_EQUAL(memcmp((char *)out + (uint64_t)round * x_bytes, lane->expected, x_bytes), 0);
    }
  }
  cuda->cuEventDestroy(event);
  purr__device_leave(scene.plan->device);
  raw_gate_destroy(&lane->raw, gate);
  purr__device_release_pinned(scene.plan->device, staged);
  purr__device_release_pinned(scene.plan->device, out);
  purr_stream_synchronize(scene.plan, second, NULL);
  purr_stream_destroy(scene.plan, second);
  close_scene(&scene);
}

/* S19: ten steps in one stream, the fourth with a bad id; nobody waits before the end. With one slot a token down
 * writes the output itself. */
static void a_step_has_a_bad_id(int64_t top_k) {
  enum { STEPS = 10, T = 32 };
  scene_t scene;
  if (!open_scene(&scene, T, top_k)) return;
  lane_t steps[STEPS];
  for (int i = 0; i < STEPS; i++) {
    if (!start(&steps[i], scene.context, scene.plan, scene.problem, T)) return;
    if (i == 3) steps[i].ids[top_k * 11 + top_k - 1] = -2;
    upload(&steps[i]);
    poison(&steps[i]);
  }
  for (int i = 0; i < STEPS; i++) {
    steps[i].rank.forward.stream = scene.lane.rank.stream;
    CU_ASSERT_EQUAL(forward_in(&steps[i], scene.lane.rank.workspace), PURR_STATUS_OK);
  }
  purr_stream_synchronize(scene.plan, scene.lane.rank.stream, NULL);
  for (int i = 0; i < STEPS; i++) {
    CU_ASSERT_EQUAL(finish(&steps[i]), i == 3 ? PURR_STATUS_BAD_ROUTE : PURR_STATUS_OK);
    CU_ASSERT(i == 3 ? is_untouched(&steps[i]) : is_exact(&steps[i]));
  }
  CU_ASSERT_EQUAL(steps[3].info.rank, 0);
  CU_ASSERT_EQUAL(steps[3].info.token, 11);
  CU_ASSERT_EQUAL(steps[3].info.slot, top_k - 1);
  CU_ASSERT_EQUAL(steps[3].info.expert, -2);
  fprintf(stderr, "  %s\n", steps[3].err.message);
  for (int i = 0; i < STEPS; i++) stop(&steps[i]);
  close_scene(&scene);
}

static void a_bad_id_is_told_at_its_step(void) {
  for (int64_t top_k = 1; top_k <= 2; top_k++) a_step_has_a_bad_id(top_k);
}

/* ---- arguments ---- */

static void host_memory_is_refused(void) {
  purr_error_t err;
  scene_t scene;
  if (!open_scene(&scene, 16, 2)) return;
  lane_t *lane = &scene.lane;
  purr_tensor_t *const tensors[] = {&lane->rank.tensor.x, &lane->rank.tensor.ids, &lane->rank.tensor.topk_weights,
                                    &lane->rank.tensor.output};
  static const char *const names[] = {"x", "topk_ids", "topk_weights", "output"};
  void *host = aligned_alloc(4096, 1 << 16), *pinned = NULL;
  REQUIRE_OK(purr__device_allocate_pinned(scene.plan->device, 1 << 16, &pinned, &err));
  for (int i = 0; i < 4; i++)
    for (int k = 0; k < 2; k++) {
      void *const device = tensors[i]->data;
      tensors[i]->data = k ? pinned : host;
      ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT,
                    purr_forward(scene.plan, lane->rank.workspace, &lane->rank.forward, &err));
      CU_ASSERT_EQUAL(strncmp(err.message, names[i], strlen(names[i])), 0);
      if (i == 0) fprintf(stderr, "  %s\n", err.message);
      tensors[i]->data = device;
    }
  run_exact(lane);
  purr__device_release_pinned(scene.plan->device, pinned);
  free(host);
  close_scene(&scene);
}

/* ---- */

static int in_child(int (*run)(void)) {
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    const int code = run();
    fflush(NULL);
    _exit(code);
  }
  int code = -1;
  waitpid(child, &code, 0);
  return code;
}

static int look_for_device(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = NULL;
  purr__device_t *device;
  purr_status_t status = purr_context_create(NULL, &context, &err);
  if (status == PURR_STATUS_OK) status = purr__device_get(context, 0, &device, &err);
  if (status != PURR_STATUS_OK) fprintf(stderr, "skipped: %s\n", err.message);
  purr_context_destroy(context);
  return status == PURR_STATUS_OK ? 0 : 1;
}

int main(void) {
  setenv("PURR_TEST_BACKEND", "staged", 0);
  plain_run.backend = test_backend();
  if (in_child(look_for_device) != 0) return PURR_TEST_SKIPPED;
  return test_layer_main(
      "streams on a GPU",
      (purr_test_t[]){{"a call only enqueues", calls_only_enqueue},
                      {"B35: replays read what is there", replays_read_what_is_there},
                      {"captures stay whole", captures_stay_whole},
                      {"B37: inputs come late", inputs_come_late},
                      {"B39: a larger call leaves a graph alone", a_larger_call_leaves_a_graph_alone},
                      {"S19: a bad id is told at its step", a_bad_id_is_told_at_its_step},
                      {"host memory is refused", host_memory_is_refused},
                      {0}});
}
