/* Groups of ranks in one process: meeting, not coming, leaving, disagreeing, running out of memory. */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/main.h"

#define MAX_RANKS 8

/* What one rank does in a test. */
typedef struct rank {
  int number;
  purr_context_t *context;
  purr_config_t *config;
  purr_group_t *group;
  int64_t max_tokens;   /* of this rank's plan: differs to bring another layer */
  int calls;            /* schedule builds to take part in before it stops coming */
  bool leaves;          /* destroys its group handle instead of just not coming */
  purr_status_t status; /* of its last call */
  int status_rank;
  double seconds; /* that its last call took */
  char message[512];
} rank_t;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *rank_main(void *arg) {
  rank_t *rank = arg;
  purr_error_t err = PURR_ERROR_INIT;
  purr_plan_t *plan = NULL;
  purr_workspace_t *workspace = NULL;
  purr_schedule_t *schedule = NULL;
  const purr_plan_desc_t desc = {.struct_size = sizeof desc, .max_tokens = rank->max_tokens};
  purr_status_t status = purr_plan_create(rank->context, rank->config, &desc, &plan, &err);
  if (status == PURR_STATUS_OK) status = purr_schedule_create(plan, &schedule, &err);
  double start = now();
  if (status == PURR_STATUS_OK) status = purr_workspace_create(plan, rank->group, NULL, &workspace, &err);
  int32_t ids[4] = {0, 1, 2, 3};
  const purr_tensor_t tensor = {
      .struct_size = sizeof tensor, .dtype = PURR_DTYPE_INT32, .num_dims = 2, .data = ids, .shape = {4, 1}};
  for (int i = 0; i < rank->calls && status == PURR_STATUS_OK; i++) {
    start = now();
    status = purr_schedule_build(schedule, workspace, &tensor, NULL, &err);
  }
  rank->status = status;
  rank->status_rank = err.rank;
  rank->seconds = now() - start;
  memcpy(rank->message, err.message, sizeof rank->message);
  if (rank->leaves) {
    purr_group_destroy(rank->group);
    rank->group = NULL;
  }
  purr_schedule_destroy(schedule);
  purr_workspace_destroy(workspace);
  purr_plan_destroy(plan);
  return NULL;
}

static purr_context_t *context;
static purr_config_t *config;

/* Runs `num` ranks, of which those with calls < 0 never start, in a group with the given timeout. */
static void run_ranks(int num, int64_t timeout_ms, rank_t *ranks) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_group_t *groups[MAX_RANKS];
  const purr_group_desc_t desc = {sizeof desc, num, timeout_ms};
  REQUIRE_OK(purr_group_create_local(context, &desc, groups, &err));
  pthread_t threads[MAX_RANKS];
  for (int r = 0; r < num; r++) {
    ranks[r].number = r;
    ranks[r].context = context;
    ranks[r].config = config;
    ranks[r].group = groups[r];
    if (ranks[r].calls >= 0) pthread_create(&threads[r], NULL, rank_main, &ranks[r]);
  }
  for (int r = 0; r < num; r++)
    if (ranks[r].calls >= 0) pthread_join(threads[r], NULL);
  for (int r = 0; r < num; r++)
    if (ranks[r].calls >= 0 && ranks[r].status == PURR_STATUS_PEER_FAILED && ranks[r].group != NULL)
      ASSERT_STATUS(PURR_STATUS_PEER_FAILED, purr_group_query_status(ranks[r].group, &err));
  for (int r = 0; r < num; r++) purr_group_destroy(ranks[r].group);
}

static void set_up(int num_ranks) {
  purr_error_t err = PURR_ERROR_INIT;
  const purr_layer_desc_t layer = {.struct_size = sizeof layer,
                                   .hidden_size = 8,
                                   .intermediate_size = 8,
                                   .num_experts = 24,
                                   .top_k = 1,
                                   .max_tokens = 4,
                                   .num_ranks = num_ranks};
  ASSERT_OK(purr_context_create(NULL, &context, &err));
  ASSERT_OK(purr_config_create(context, &layer, &config, &err));
}

static void tear_down(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_config_destroy(config);
  purr_counters_t counters = {.struct_size = sizeof counters};
  ASSERT_OK(purr_context_query_counters(context, &counters, &err));
  CU_ASSERT_TRUE(counters.host_bytes < 4096); /* the context's own worker list is all that is left */
  purr_context_destroy(context);
}

static void all_come(void) {
  for (int num = 1; num <= 8; num *= 2) {
    set_up(num);
    rank_t ranks[MAX_RANKS] = {0};
    for (int r = 0; r < num; r++) ranks[r].calls = 50;
    run_ranks(num, 60000, ranks);
    for (int r = 0; r < num; r++) CU_ASSERT_EQUAL(ranks[r].status, PURR_STATUS_OK);
    tear_down();
  }
}

static void one_never_comes(void) {
  set_up(3);
  rank_t ranks[MAX_RANKS] = {{.calls = 1}, {.calls = 1}, {.calls = -1}};
  run_ranks(3, 200, ranks);
  for (int r = 0; r < 2; r++) {
    CU_ASSERT_EQUAL(ranks[r].status, PURR_STATUS_PEER_FAILED);
    CU_ASSERT_EQUAL(ranks[r].status_rank, 2);
    CU_ASSERT_PTR_NOT_NULL(strstr(ranks[r].message, "rank 2 did not come"));
    CU_ASSERT_TRUE(ranks[r].seconds < 10.0);
  }
  /* A new group of the same ranks works. */
  rank_t again[MAX_RANKS] = {{.calls = 2}, {.calls = 2}, {.calls = 2}};
  run_ranks(3, 60000, again);
  for (int r = 0; r < 3; r++) CU_ASSERT_EQUAL(again[r].status, PURR_STATUS_OK);
  purr_error_t err = PURR_ERROR_INIT;
  purr_counters_t counters = {.struct_size = sizeof counters};
  ASSERT_OK(purr_context_query_counters(context, &counters, &err));
  CU_ASSERT_EQUAL(counters.num_timeouts, 1);
  tear_down();
}

static void one_stops_coming(void) {
  set_up(2);
  rank_t ranks[MAX_RANKS] = {{.calls = 5}, {.calls = 3}};
  run_ranks(2, 200, ranks);
  CU_ASSERT_EQUAL(ranks[0].status, PURR_STATUS_PEER_FAILED);
  CU_ASSERT_EQUAL(ranks[0].status_rank, 1);
  CU_ASSERT_EQUAL(ranks[1].status, PURR_STATUS_OK);
  tear_down();
}

/* Leaving is told at once, long before the timeout, and does not spoil calls that had met already. */
static void one_leaves(void) {
  set_up(2);
  rank_t ranks[MAX_RANKS] = {{.calls = 5}, {.calls = 3, .leaves = true}};
  run_ranks(2, 600000, ranks);
  CU_ASSERT_EQUAL(ranks[0].status, PURR_STATUS_PEER_FAILED);
  CU_ASSERT_EQUAL(ranks[0].status_rank, 1);
  CU_ASSERT_PTR_NOT_NULL(strstr(ranks[0].message, "left"));
  CU_ASSERT_TRUE(ranks[0].seconds < 60.0);
  CU_ASSERT_EQUAL(ranks[1].status, PURR_STATUS_OK);
  tear_down();
}

static void different_layers(void) {
  set_up(3);
  rank_t ranks[MAX_RANKS] = {{.calls = 1}, {.calls = 1, .max_tokens = 5}, {.calls = 1}};
  run_ranks(3, 60000, ranks);
  for (int r = 0; r < 3; r++) {
    CU_ASSERT_EQUAL(ranks[r].status, PURR_STATUS_PEER_MISMATCH);
    CU_ASSERT_EQUAL(ranks[r].status_rank, 1);
  }
  tear_down();
}

static void bad_arguments(void) {
  set_up(2);
  purr_error_t err = PURR_ERROR_INIT;
  purr_group_t *groups[2] = {(purr_group_t *)1, (purr_group_t *)1};
  purr_plan_t *plan = NULL;
  purr_workspace_t *workspace = NULL;
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT,
                purr_group_create_local(context, &(purr_group_desc_t){sizeof(purr_group_desc_t), 0, 0}, groups, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT,
                purr_group_create_local(context, &(purr_group_desc_t){sizeof(purr_group_desc_t), 2, -1}, groups, &err));
  CU_ASSERT_PTR_NULL(groups[0]);
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_group_query_status(NULL, &err));
  CU_ASSERT_EQUAL(purr_group_rank(NULL), 0);
  CU_ASSERT_EQUAL(purr_group_num_ranks(NULL), 1);
  ASSERT_OK(purr_plan_create(context, config, NULL, &plan, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_workspace_create(plan, NULL, NULL, &workspace, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "2"));
  purr_plan_destroy(plan);
  tear_down();
}

int main(void) {
  return purr_test_main("local group", (purr_test_t[]){{"all come", all_come},
                                                       {"B43 one never comes", one_never_comes},
                                                       {"one stops coming", one_stops_coming},
                                                       {"one leaves", one_leaves},
                                                       {"different layers", different_layers},
                                                       {"bad arguments", bad_arguments},
                                                       {0}});
}
