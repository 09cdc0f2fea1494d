/* A caller on a GPU with fixture F: tensors, a stream, a workspace, a result, and what must come out. */
#ifndef PURR_TEST_LANE_H
#define PURR_TEST_LANE_H

#include <stdlib.h>

#include "gpu/raw_driver.h"

/* One caller: its tensors on the device, a stream, a workspace, a result. */
typedef struct lane {
  test_rank_t rank;
  raw_driver_t raw;
  purr__bf16_t *x;
  int32_t *ids;
  float *weights;
  purr__bf16_t *expected, *output;
  purr_result_info_t info;
  purr_error_t err; /* of the result */
} lane_t;

/* On the tests' backend; main sets it. */
static test_run_t plain_run = {.inference = true, .int32_ids = true};

static inline int64_t num_slots(const lane_t *lane) { return lane->rank.tokens * lane->rank.problem->top_k; }
static inline int64_t num_values(const lane_t *lane) { return lane->rank.tokens * lane->rank.problem->hidden; }

/* Puts the lane's inputs where the call reads them, and works out what must come. */
static inline void upload(lane_t *lane) {
  purr_error_t err;
  const purr_plan_t *plan = lane->rank.plan;
  ASSERT_OK(purr_memory_copy(plan, lane->rank.tensor.x.data, lane->x, (uint64_t)num_values(lane) * 2, &err));
  ASSERT_OK(purr_memory_copy(plan, lane->rank.tensor.ids.data, lane->ids, (uint64_t)num_slots(lane) * 4, &err));
  ASSERT_OK(
      purr_memory_copy(plan, lane->rank.tensor.topk_weights.data, lane->weights, (uint64_t)num_slots(lane) * 4, &err));
  raw_fixture_output(lane->rank.problem, lane->rank.tokens, lane->x, lane->ids, lane->weights, lane->expected);
}

static inline void poison(lane_t *lane) {
  purr_error_t err;
  memset(lane->output, TEST_POISON, (size_t)num_values(lane) * 2);
  ASSERT_OK(purr_memory_copy(lane->rank.plan, lane->rank.tensor.output.data, lane->output,
                             (uint64_t)num_values(lane) * 2, &err));
}

static inline purr_status_t query(lane_t *lane) {
  lane->info = (purr_result_info_t){.struct_size = sizeof lane->info};
  lane->err = (purr_error_t)PURR_ERROR_INIT;
  CU_ASSERT_EQUAL(purr_result_query(lane->rank.result, &lane->info, &lane->err), PURR_STATUS_OK);
  return lane->info.status;
}

/* Waits for the lane's stream, takes output and outcome. */
static inline purr_status_t finish(lane_t *lane) {
  purr_error_t err;
  ASSERT_OK(purr_stream_synchronize(lane->rank.plan, lane->rank.stream, &err));
  ASSERT_OK(purr_memory_copy(lane->rank.plan, lane->output, lane->rank.tensor.output.data,
                             (uint64_t)num_values(lane) * 2, &err));
  return query(lane);
}

static inline bool is_exact(const lane_t *lane) {
  return memcmp(lane->output, lane->expected, (size_t)num_values(lane) * 2) == 0;
}

static inline bool is_untouched(const lane_t *lane) {
  const unsigned char *bytes = (const unsigned char *)lane->output;
  for (int64_t i = 0; i < num_values(lane) * 2; i++)
    if (bytes[i] != TEST_POISON) return false;
  return true;
}

static inline purr_status_t forward_in(lane_t *lane, purr_workspace_t *workspace) {
  purr_error_t err = PURR_ERROR_INIT;
  const purr_status_t status = purr_forward(lane->rank.plan, workspace, &lane->rank.forward, &err);
  if (status != PURR_STATUS_OK && status != PURR_STATUS_BUSY) fprintf(stderr, "forward: %s\n", err.message);
  return status;
}

static inline purr_status_t forward(lane_t *lane) { return forward_in(lane, lane->rank.workspace); }

/* Runs once from upload to download; the output is exact. */
static inline void run_exact(lane_t *lane) {
  upload(lane);
  poison(lane);
  CU_ASSERT_EQUAL(forward(lane), PURR_STATUS_OK);
  CU_ASSERT_EQUAL(finish(lane), PURR_STATUS_OK);
  CU_ASSERT(is_exact(lane));
}

static inline bool start(lane_t *lane, purr_context_t *context, const purr_plan_t *plan, const test_problem_t *problem,
                         int64_t tokens) {
  purr_error_t err = PURR_ERROR_INIT;
  *lane = (lane_t){.rank = {.problem = problem,
                            .run = &plain_run,
                            .context = context,
                            .plan = plan,
                            .tokens = tokens,
                            .experts = problem->experts}};
  test_rank_prepare(&lane->rank);
  ASSERT_OK(test_rank_create_objects(&lane->rank, &err));
  lane->raw = raw_driver_of(plan);
  lane->x = malloc((size_t)num_values(lane) * 2);
  lane->output = malloc((size_t)num_values(lane) * 2);
  lane->expected = malloc((size_t)num_values(lane) * 2);
  lane->ids = malloc((size_t)num_slots(lane) * 4);
  lane->weights = malloc((size_t)num_slots(lane) * 4);
  memcpy(lane->x, problem->x, (size_t)num_values(lane) * 2);
  memcpy(lane->weights, problem->topk_weights, (size_t)num_slots(lane) * 4);
  for (int64_t i = 0; i < num_slots(lane); i++) lane->ids[i] = (int32_t)problem->ids[i];
  upload(lane);
  return lane->rank.workspace != NULL && lane->rank.result != NULL;
}

static inline void stop(lane_t *lane) {
  purr_stream_synchronize(lane->rank.plan, lane->rank.stream, NULL);
  test_rank_destroy_objects(&lane->rank);
  test_rank_free(&lane->rank);
  free(lane->x);
  free(lane->output);
  free(lane->expected);
  free(lane->ids);
  free(lane->weights);
}

/* A context, a layer and one lane: what most tests need. */
typedef struct scene {
  purr_context_t *context;
  test_problem_t *problem;
  purr_plan_t *plan;
  lane_t lane;
} scene_t;

static inline bool open_scene_with(scene_t *scene, const purr_context_desc_t *desc, test_problem_t *problem) {
  *scene = (scene_t){.problem = problem};
  CU_ASSERT_EQUAL_FATAL(purr_context_create(desc, &scene->context, NULL), PURR_STATUS_OK);
  scene->plan = raw_plan(scene->context, problem, &plain_run, 0);
  return scene->plan != NULL && start(&scene->lane, scene->context, scene->plan, problem, problem->tokens);
}

static inline bool open_scene(scene_t *scene, int64_t tokens, int64_t top_k) {
  return open_scene_with(scene, NULL, test_fixture_f(tokens, 256, 128, 8, top_k, 0));
}

static inline void close_scene(scene_t *scene) {
  stop(&scene->lane);
  purr_plan_destroy(scene->plan);
  purr_context_destroy(scene->context);
  test_problem_free(scene->problem);
}

/* ---- graphs ---- */

typedef struct graph {
  void *graph, *exec;
} graph_t;

/* One forward of the lane, captured in global mode. */
static inline graph_t capture(lane_t *lane) {
  graph_t graph = {0};
  CU_ASSERT_EQUAL_FATAL(purr__device_enter(lane->raw.device, NULL), PURR_STATUS_OK);
  CU_ASSERT_EQUAL(lane->raw.begin_capture(lane->rank.stream, 0), CUDA_SUCCESS);
  CU_ASSERT_EQUAL(forward(lane), PURR_STATUS_OK);
  CU_ASSERT_EQUAL(lane->raw.end_capture(lane->rank.stream, &graph.graph), CUDA_SUCCESS);
  CU_ASSERT_EQUAL_FATAL(lane->raw.instantiate(&graph.exec, graph.graph, 0), CUDA_SUCCESS);
  purr__device_leave(lane->raw.device);
  return graph;
}

static inline void replay(lane_t *lane, const graph_t *graph) {
  CU_ASSERT_EQUAL_FATAL(purr__device_enter(lane->raw.device, NULL), PURR_STATUS_OK);
  CU_ASSERT_EQUAL(lane->raw.launch(graph->exec, lane->rank.stream), CUDA_SUCCESS);
  purr__device_leave(lane->raw.device);
}

static inline void drop_graph(lane_t *lane, graph_t *graph) {
  CU_ASSERT_EQUAL_FATAL(purr__device_enter(lane->raw.device, NULL), PURR_STATUS_OK);
  lane->raw.destroy_exec(graph->exec);
  lane->raw.destroy_graph(graph->graph);
  purr__device_leave(lane->raw.device);
}

/* The routings that replays go through. */
static inline void route(lane_t *lane, int pattern) {
  const int64_t slots = num_slots(lane), top_k = lane->rank.problem->top_k;
  for (int64_t i = 0; i < slots; i++) {
    const int64_t t = i / top_k, k = i % top_k, from_end = lane->rank.tokens - 1 - t;
    const int32_t ids[] = {(int32_t)((t + 3 * k) % 8),
                           0,
                           -1,
                           t == 5 ? (int32_t)(k + 2) : -1,
                           (int32_t)((from_end + 3 * k) % 8),
                           7,
                           (int32_t)(t % 2 ? -1 : k),
                           (int32_t)((t * 5 + k) % 8)};
    lane->ids[i] = ids[pattern];
    lane->weights[i] = (k == 0 ? 0.5f : 0.25f) * (float)(pattern % 2 ? -2 : 1);
  }
  for (int64_t t = 0; t < lane->rank.tokens; t++)
    for (int64_t h = 1; h < lane->rank.problem->hidden; h++) {
      static const float v[4] = {-2.0f, -1.0f, 1.0f, 2.0f};
      lane->x[t * lane->rank.problem->hidden + h] = purr__bf16_from_fp32(v[(t + h + pattern) % 4]);
    }
}

#endif
