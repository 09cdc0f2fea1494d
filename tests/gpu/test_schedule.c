/* The routing table that the device makes, and the megakernel's list of units with it: equal to the host's, and the
 * same bytes whether one launch makes them or two, however many blocks these have. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/staged/staged.h"
#include "base/context.h"
#include "gpu/raw_driver.h"
#include "plan/units.h"
#include "support/main.h"
#include "support/rank.h"

enum {
  K = 4,
  LIMIT = PURR__SCHEDULE_CHUNK_SLOTS / K, /* of one block */
  CLUSTER_LIMIT = PURR__SCHEDULE_TOGETHER_BLOCKS * PURR__SCHEDULE_TOGETHER_PART_SLOTS / K,
  MAX_TOKENS = CLUSTER_LIMIT + 1,
  NUM_AREAS = 3
};
#define POISON 0xCB

typedef struct area {
  char *device;
  uint64_t bytes;
} area_t;

static purr_error_t err;
static purr_context_t *context;
static purr_plan_t *plan;
static purr_group_t *group;
static purr_workspace_t *workspace;
static void *device_ids;
static area_t areas[NUM_AREAS]; /* the table, units, where their blocks meet */
static int32_t ids[MAX_TOKENS * K];
static int64_t num_tokens;
static bool is_int64;

static void open_layer(int64_t num_experts) {
  test_problem_t *problem = test_problem_create(1, 264, 136, num_experts, K, 72, false);
  const test_run_t run = {.backend = test_backend(), .max_tokens = MAX_TOKENS};
  const purr_group_desc_t desc = {.struct_size = sizeof desc, .num_ranks = 1};
  CU_ASSERT_EQUAL_FATAL(purr_context_create(NULL, &context, NULL), PURR_STATUS_OK);
  plan = raw_plan(context, problem, &run, 0);
  CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
  test_problem_free(problem);
  ASSERT_OK(purr_group_create_local(context, &desc, &group, &err));
  ASSERT_OK(purr_workspace_create(plan, group, NULL, &workspace, &err));
  int64_t num_units = 0, num_sync_words = 0;
  if (plan->backend == PURR_BACKEND_MEGA) purr__unit_room(plan, &num_units, &num_sync_words);
  const uint64_t bytes[NUM_AREAS] = {plan->table_bytes, (uint64_t)num_units * sizeof(purr__unit_t),
                                     (uint64_t)num_sync_words * sizeof(int32_t)};
  for (int i = 0; i < NUM_AREAS; i++) {
    void *memory = NULL;
    if (bytes[i] > 0) ASSERT_OK(purr_memory_allocate(plan, bytes[i], &memory, &err));
    areas[i] = (area_t){memory, bytes[i]};
  }
  ASSERT_OK(purr_memory_allocate(plan, sizeof(int64_t) * MAX_TOKENS * K, &device_ids, &err));
}

static void close_layer(void) {
  for (int i = 0; i < NUM_AREAS; i++) purr_memory_release(plan, areas[i].device, areas[i].bytes);
  purr_memory_release(plan, device_ids, sizeof(int64_t) * MAX_TOKENS * K);
  purr_workspace_destroy(workspace);
  purr_group_destroy(group);
  purr_plan_destroy(plan);
  purr_context_destroy(context);
}

static void route(int64_t tokens, bool as_int64, uint64_t seed) {
  const int64_t num_experts = plan->layer.num_experts;
  num_tokens = tokens;
  is_int64 = as_int64;
  for (int64_t i = 0; i < tokens * K; i++) {
    const uint64_t bits = test_random_bits(&seed);
    ids[i] = bits % 5 == 0 ? -1 : bits % 3 == 0 ? 1 : (int32_t)(bits / 16 % (uint64_t)num_experts);
  }
}

static void put_ids(void) {
  static int64_t wide[MAX_TOKENS * K];
  for (int64_t i = 0; i < num_tokens * K; i++) wide[i] = ids[i];
  if (num_tokens == 0) return;
  ASSERT_OK(purr_memory_copy(plan, device_ids, is_int64 ? (void *)wide : ids,
                             (uint64_t)(num_tokens * K) * (is_int64 ? sizeof wide[0] : sizeof ids[0]), &err));
}

/* Blocks that one launch can have. */
static int32_t most_blocks(void) {
  const int32_t room = plan->device->num_sms / 2;
  return plan->device->cc_major < 9 || room < 1  ? 1
         : room < PURR__SCHEDULE_TOGETHER_BLOCKS ? room
                                                 : PURR__SCHEDULE_TOGETHER_BLOCKS;
}

/* All that the schedule writes, one area after the other: with so many blocks, by one launch or by two. */
static char *run(bool is_together, int32_t chunks, bool has_units) {
  uint64_t bytes = 0, at = 0;
  for (int i = 0; i < NUM_AREAS; i++) bytes += areas[i].bytes;
  char *image = malloc(bytes);
  memset(image, POISON, bytes);
  for (int i = 0; i < NUM_AREAS; i++)
    if (areas[i].bytes > 0) ASSERT_OK(purr_memory_copy(plan, areas[i].device, image, areas[i].bytes, &err));
  put_ids();
  const purr__call_t call = {.plan = plan, .workspace = workspace, .num_tokens = num_tokens};
  const purr__view_t view = {
      .data = device_ids, .dtype = is_int64 ? PURR_DTYPE_INT64 : PURR_DTYPE_INT32, .row_stride = K, .column_stride = 1};
  const purr__table_t table = purr__table_at(plan, areas[0].device);
  purr__schedule_params_t params = purr__staged_schedule_params(&call, &(purr__turn_t){0}, false, &view, &table);
  params.chunks_per_rank = chunks;
  const int64_t part = is_together ? (num_tokens * K + chunks - 1) / chunks : 0;
  params.num_pieces = purr__schedule_pieces(plan->num_local_experts, part,
                                            is_together ? PURR__SCHEDULE_TOGETHER_PIECES : PURR__SCHEDULE_WARPS,
                                            plan->device->max_shared_bytes - 1024);
  if (plan->backend == PURR_BACKEND_MEGA)
    params.order = purr__unit_order_of(plan, num_tokens, plan->kernels.forward.tile_rows);
  if (has_units) {
    params.order.units = (purr__unit_t *)areas[1].device;
    params.order.sync = (purr__unit_sync_t *)areas[2].device;
    params.order.num_sync_words = (int32_t)(areas[2].bytes / sizeof(int32_t));
  }
  purr__launch_t launch = {
      .grid = {(uint32_t)chunks, 1, 1},
      .shared_bytes = (uint32_t)purr__schedule_shared_bytes(plan->num_local_experts, params.num_pieces, part)};
  for (int i = 0; i < 3 && is_together && chunks > 1; i++) launch.cluster[i] = launch.grid[i];
  ASSERT_OK(purr__device_enter(plan->device, &err));
  if (is_together) {
    ASSERT_OK(purr__kernel_launch(plan->kernels.schedule, &launch, &params, &err));
  } else {
    ASSERT_OK(purr__kernel_launch(plan->kernels.schedule_count, &launch, &params, &err));
    ASSERT_OK(purr__kernel_launch(plan->kernels.schedule_place, &launch, &params, &err));
  }
  ASSERT_OK(purr__device_synchronize(plan->device, NULL, &err));
  purr__device_leave(plan->device);
  for (int i = 0; i < NUM_AREAS; at += areas[i++].bytes)
    if (areas[i].bytes > 0) ASSERT_OK(purr_memory_copy(plan, image + at, areas[i].device, areas[i].bytes, &err));
  return image;
}

/* The parts of the table that the host makes too. */
static void compare_with_host(char *image) {
  char *memory = malloc(plan->table_bytes);
  const purr__table_t host = purr__table_at(plan, memory), device = purr__table_at(plan, image);
  purr__table_build(plan, 0, (const int32_t *const[]){ids}, &num_tokens, &host);
  const size_t experts = (size_t)plan->num_local_experts * sizeof(int32_t);
  const size_t rows = (size_t)host.header->num_padded_rows * sizeof(int32_t);
  CU_ASSERT_EQUAL(memcmp(host.header, device.header, sizeof *host.header), 0);
  CU_ASSERT_EQUAL(memcmp(host.expert_count, device.expert_count, experts), 0);
  CU_ASSERT_EQUAL(memcmp(host.expert_begin, device.expert_begin, experts + sizeof(int32_t)), 0);
  CU_ASSERT_EQUAL(memcmp(host.row_rank, device.row_rank, rows), 0);
  CU_ASSERT_EQUAL(memcmp(host.row_slot, device.row_slot, rows), 0);
  const purr__device_status_t *found = purr__staged_status(plan, &device);
  CU_ASSERT(found->status == PURR_STATUS_OK && found->rank == -1 && found->num_rows == host.header->num_rows);
  free(memory);
}

/* One launch of one block, which the host's table vouches for, and of more; and two. */
static void compare(void) {
  uint64_t bytes = 0;
  for (int i = 0; i < NUM_AREAS; i++) bytes += areas[i].bytes;
  for (int has_units = 0; has_units <= (plan->backend == PURR_BACKEND_MEGA); has_units++) {
    char *alone = run(true, 1, has_units);
    compare_with_host(alone);
    for (int i = 0; i < 7; i++) {
      const int32_t chunks = (int32_t[]){1, 3, 2, 3, 4, 7, 8}[i];
      if (i >= 2 && chunks > most_blocks()) continue;
      char *image = run(i >= 2, chunks, has_units);
      CU_ASSERT_EQUAL(memcmp(alone, image, bytes), 0);
      free(image);
    }
    free(alone);
  }
}

static void tables(void) {
  static const int64_t experts[] = {K, 70, 384, 4096}; /* the last: too many for many pieces */
  static const int64_t tokens[] = {0, 1, 9, LIMIT - 1, LIMIT};
  for (size_t e = 0; e < sizeof experts / sizeof experts[0]; e++) {
    open_layer(experts[e]);
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
      route(tokens[i], i % 2 == 0, 17 * e + i + 1);
      compare();
    }
    route(LIMIT, true, 3);
    for (int i = 0; i < LIMIT * K; i++) ids[i] = -1;
    compare();
    close_layer();
  }
}

/* The first of several bad ids is told, and nothing else is written. */
static void bad_ids(void) {
  enum { FIRST = 30 * K + 2 };
  static const int32_t bad[] = {-2, INT32_MIN, 70, INT32_MAX};
  open_layer(70);
  uint64_t bytes = 0;
  for (int i = 0; i < NUM_AREAS; i++) bytes += areas[i].bytes;
  for (int i = 0; i < 4; i++) {
    route(LIMIT, i % 2 == 0, (uint64_t)i + 1);
    ids[FIRST] = ids[FIRST + 1] = ids[LIMIT * K - 1] = bad[i];
    char *alone = run(true, 1, plan->backend == PURR_BACKEND_MEGA);
    const purr__table_t table = purr__table_at(plan, alone);
    const purr__device_status_t *found = purr__staged_status(plan, &table);
    CU_ASSERT(found->status == PURR_STATUS_BAD_ROUTE && found->rank == 0);
    CU_ASSERT(found->token == FIRST / K && found->slot == FIRST % K && found->expert == bad[i]);
    for (uint64_t b = 0; b < bytes; b++)
      if (alone + b < (const char *)found || alone + b >= (const char *)(found + 1))
        CU_ASSERT_EQUAL_FATAL((unsigned char)alone[b], POISON);
    for (int is_together = 0; is_together <= (most_blocks() >= 3); is_together++) {
      char *image = run(is_together, 3, plan->backend == PURR_BACKEND_MEGA);
      CU_ASSERT_EQUAL(memcmp(alone, image, bytes), 0);
      free(image);
    }
    free(alone);
  }
  close_layer();
}

/* By the public function: one launch up to the limit of a block, or of a cluster of them, and two past it. */
static void launches(void) {
  static const int64_t cases[] = {0, 1, LIMIT, LIMIT + 1, 2 * LIMIT + 1, CLUSTER_LIMIT, MAX_TOKENS, 1};
  open_layer(70);
  int64_t limit = LIMIT;
  for (int blocks = 2; blocks <= most_blocks(); blocks *= 2)
    limit = (int64_t)blocks * PURR__SCHEDULE_TOGETHER_PART_SLOTS / K;
  char *image = malloc(plan->table_bytes);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    route(cases[i], true, i + 1);
    put_ids();
    purr_schedule_t *schedule = NULL;
    ASSERT_OK(purr_schedule_create(plan, &schedule, &err));
    const purr_tensor_t tensor = {.struct_size = sizeof tensor,
                                  .dtype = PURR_DTYPE_INT64,
                                  .num_dims = 2,
                                  .data = device_ids,
                                  .shape = {num_tokens, K}};
    purr_counters_t before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    purr_context_query_counters(context, &before, NULL);
    ASSERT_OK(purr_schedule_build(schedule, workspace, &tensor, NULL, &err));
    purr_context_query_counters(context, &after, NULL);
    CU_ASSERT_EQUAL(after.num_launches - before.num_launches, cases[i] <= limit ? 1 : 2);
    ASSERT_OK(purr_memory_copy(plan, image, schedule->table_memory, plan->table_bytes, &err));
    compare_with_host(image);
    purr_schedule_destroy(schedule);
  }
  free(image);
  close_layer();
}

int main(void) {
  setenv("PURR_TEST_BACKEND", "staged", 0);
  return test_layer_main(
      "schedule on the device",
      (purr_test_t[]){{"tables and units", tables}, {"bad ids", bad_ids}, {"one launch or two", launches}, {0}});
}
