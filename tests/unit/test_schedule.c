/* The routing table against a brute-force definition, its printed forms, and the walk over it: every row computed once,
 * every ring row free before it is used again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/walk.h"
#include "support/layer.h"
#include "support/main.h"

static purr_plan_t *plan_of(int64_t experts, int64_t top_k, int64_t max_tokens, int ranks, int64_t minibatch,
                            int64_t macrobatch) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = NULL;
  purr_config_t *config = NULL;
  purr_plan_t *plan = NULL;
  const purr_layer_desc_t layer = {.struct_size = sizeof layer,
                                   .hidden_size = 8,
                                   .intermediate_size = 8,
                                   .num_experts = experts,
                                   .top_k = top_k,
                                   .max_tokens = max_tokens,
                                   .num_ranks = ranks,
                                   .minibatch_rows = minibatch,
                                   .macrobatch_rows = macrobatch};
  ASSERT_OK(purr_context_create(NULL, &context, &err));
  ASSERT_OK(purr_config_create(context, &layer, &config, &err));
  ASSERT_OK(purr_plan_create(context, config, NULL, &plan, &err));
  purr_config_destroy(config);
  purr_context_destroy(context);
  return plan;
}

/* Random ids with dropped slots and duplicates, skewed towards low experts. */
static int32_t *random_ids(uint64_t *state, int64_t num, int64_t experts) {
  int32_t *ids = malloc((size_t)num * sizeof *ids + 1);
  for (int64_t i = 0; i < num; i++) {
    const uint64_t bits = test_random_bits(state);
    const int64_t range = (bits & 3) == 0 ? experts : experts / 3 + 1;
    ids[i] = bits % 13 == 0 ? -1 : (int32_t)((bits >> 8) % (uint64_t)range);
  }
  return ids;
}

/* The definition: for each expert, all slots in the order (rank, token, slot), then padding to a multiple of 64. */
static void check_table(const purr_plan_t *plan, int rank, const int32_t *const *ids, const int64_t *tokens,
                        const purr__table_t *table) {
  int64_t row = 0, rows = 0;
  for (int64_t e = 0; e < plan->num_local_experts; e++) {
    CU_ASSERT_EQUAL_FATAL(table->expert_begin[e], row);
    int64_t count = 0;
    for (int r = 0; r < plan->layer.num_ranks; r++)
      for (int64_t s = 0; s < tokens[r] * plan->layer.top_k; s++) {
        if (ids[r][s] != rank * plan->num_local_experts + e) continue;
        CU_ASSERT_EQUAL_FATAL(table->row_rank[row + count], r);
        CU_ASSERT_EQUAL_FATAL(table->row_slot[row + count], s);
        count++;
      }
    CU_ASSERT_EQUAL_FATAL(table->expert_count[e], count);
    rows += count;
    for (; count % 64 != 0; count++) {
      CU_ASSERT_EQUAL_FATAL(table->row_rank[row + count], -1);
      CU_ASSERT_EQUAL_FATAL(table->row_slot[row + count], -1);
    }
    row += count;
  }
  CU_ASSERT_EQUAL(table->expert_begin[plan->num_local_experts], row);
  CU_ASSERT_EQUAL(table->header->num_padded_rows, row);
  CU_ASSERT_EQUAL(table->header->num_rows, rows);
  CU_ASSERT_TRUE(row <= plan->max_rows);
}

/* Every used row comes up once, in order, whatever ranges the table is read in. */
static void check_runs(const purr__table_t *table) {
  const int64_t steps[] = {64, 128, 192, 1 << 20};
  for (int i = 0; i < 4; i++) {
    int64_t seen = 0, expert = 0, row = 0;
    for (int64_t begin = 0; begin < table->header->num_padded_rows; begin += steps[i]) {
      purr__run_t run;
      row = begin;
      expert = 0;
      while (purr__table_next_run(table, begin + steps[i], &row, &expert, &run)) {
        for (int64_t r = run.begin; r < run.end; r++) CU_ASSERT_TRUE_FATAL(table->row_rank[r] >= 0);
        CU_ASSERT_EQUAL(run.first, run.begin == table->expert_begin[run.expert]);
        CU_ASSERT_EQUAL(run.last, run.end == table->expert_begin[run.expert] + table->expert_count[run.expert]);
        seen += run.end - run.begin;
      }
    }
    CU_ASSERT_EQUAL(seen, table->header->num_rows);
  }
}

/* Interprets the walk on a model of the ring: a ring row belongs to the row that was last dispatched into it. */
static void check_walk(const purr_plan_t *plan, const purr__table_t *table, int64_t minibatch, bool descending) {
  const int64_t ring_rows = plan->macrobatch_rows, padded = table->header->num_padded_rows;
  int64_t *ring = malloc((size_t)ring_rows * sizeof *ring), computed = 0, last_macrobatch = -1, overlapped = 0;
  unsigned char *state = calloc((size_t)padded + 1, 1); /* 1: first half done, 2: finished */
  for (int64_t i = 0; i < ring_rows; i++) ring[i] = -1;
  purr__walk_t walk;
  purr__step_t step;
  purr__walk_start(&walk, table, ring_rows, minibatch, descending);
  while (purr__walk_next(&walk, &step)) {
    const purr__minibatch_t *m = &step.minibatch;
    CU_ASSERT_TRUE_FATAL(m->begin < m->end && m->begin % 64 == 0 && m->end % 64 == 0);
    CU_ASSERT_TRUE_FATAL(m->end - m->begin <= purr__max_minibatch(ring_rows, minibatch));
    CU_ASSERT_TRUE_FATAL(m->begin >= m->macrobatch * ring_rows && m->end <= (m->macrobatch + 1) * ring_rows);
    CU_ASSERT_EQUAL_FATAL(m->ends_macrobatch, m->end == purr__min((m->macrobatch + 1) * ring_rows, padded));
    if (step.kind == PURR__STEP_FIRST_HALF) {
      if (last_macrobatch >= 0)
        CU_ASSERT_TRUE_FATAL(descending ? m->macrobatch <= last_macrobatch : m->macrobatch >= last_macrobatch);
      last_macrobatch = m->macrobatch;
      for (int64_t r = m->begin; r < m->end; r++) {
        int64_t *slot = &ring[r % ring_rows];
        CU_ASSERT_TRUE_FATAL(*slot < 0 || state[*slot] == 2); /* drained before it is reused */
        CU_ASSERT_EQUAL_FATAL(state[r], 0);
        *slot = r;
        state[r] = 1;
      }
      overlapped += walk.num_waiting == 2;
    } else {
      for (int64_t r = m->begin; r < m->end; r++) {
        CU_ASSERT_EQUAL_FATAL(ring[r % ring_rows], r);
        CU_ASSERT_EQUAL_FATAL(state[r], 1);
        state[r] = 2;
        computed++;
      }
    }
  }
  CU_ASSERT_EQUAL(computed, padded);
  if (padded > 2 * ring_rows && ring_rows >= 4 * minibatch) CU_ASSERT_TRUE(overlapped > 0);
  free(state);
  free(ring);
}

static void random_tables(void) {
  static const struct {
    int64_t experts, top_k, tokens, minibatch, macrobatch;
    int ranks;
  } cases[] = {{8, 2, 40, 0, 0, 1},     {8, 2, 300, 64, 128, 2},   {24, 3, 200, 64, 192, 4}, {6, 1, 500, 128, 256, 3},
               {64, 8, 64, 64, 256, 1}, {512, 16, 16, 64, 128, 8}, {1, 1, 700, 192, 448, 1}, {4, 4, 333, 256, 1024, 2}};
  uint64_t seed = 7;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    purr_plan_t *plan = plan_of(cases[i].experts, cases[i].top_k, cases[i].tokens, cases[i].ranks, cases[i].minibatch,
                                cases[i].macrobatch);
    void *memory = malloc(plan->table_bytes);
    int32_t *ids[8];
    int64_t tokens[8];
    for (int repeat = 0; repeat < 4; repeat++) {
      for (int r = 0; r < cases[i].ranks; r++) {
        tokens[r] = repeat == 3 ? 0 : (int64_t)(test_random_bits(&seed) % (uint64_t)(cases[i].tokens + 1));
        ids[r] = random_ids(&seed, tokens[r] * cases[i].top_k, cases[i].experts);
      }
      for (int r = 0; r < cases[i].ranks; r++) {
        memset(memory, 0xFF, plan->table_bytes);
        const purr__table_t table = purr__table_at(plan, memory);
        purr__table_build(plan, r, (const int32_t *const *)ids, tokens, &table);
        check_table(plan, r, (const int32_t *const *)ids, tokens, &table);
        check_runs(&table);
        check_walk(plan, &table, plan->minibatch_rows, true);
        check_walk(plan, &table, plan->minibatch_rows_backward, false);
      }
      for (int r = 0; r < cases[i].ranks; r++) free(ids[r]);
    }
    free(memory);
    purr_plan_destroy(plan);
  }
}

/* The worst that routing can do fits: all slots on one expert, or one row on every expert. */
static void worst_cases_fit(void) {
  purr_plan_t *plan = plan_of(8, 4, 33, 1, 0, 0);
  void *memory = malloc(plan->table_bytes);
  const purr__table_t table = purr__table_at(plan, memory);
  int32_t ids[33 * 4];
  const int32_t *all[1] = {ids};
  const int64_t tokens[1] = {33};
  for (int i = 0; i < 33 * 4; i++) ids[i] = 7;
  purr__table_build(plan, 0, all, tokens, &table);
  check_table(plan, 0, all, tokens, &table);
  for (int i = 0; i < 33 * 4; i++) ids[i] = i < 8 ? i : -1;
  purr__table_build(plan, 0, all, tokens, &table);
  check_table(plan, 0, all, tokens, &table);
  CU_ASSERT_EQUAL(table.header->num_padded_rows, 8 * 64);
  free(memory);
  purr_plan_destroy(plan);
}

static void printed(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_plan_t *plan = plan_of(2, 2, 4, 1, 0, 0);
  purr_workspace_t *workspace = NULL;
  purr_schedule_t *schedule = NULL;
  REQUIRE_OK(purr_workspace_create(plan, NULL, NULL, &workspace, &err));
  REQUIRE_OK(purr_schedule_create(plan, &schedule, &err));
  char text[1024];
  uint64_t length = 0;
  ASSERT_STATUS(PURR_STATUS_INVALID_STATE,
                purr_schedule_describe(schedule, PURR_FORMAT_TEXT, text, sizeof text, &length, &err));
  int32_t ids[] = {1, 0, -1, 1};
  purr_tensor_t tensor = {
      .struct_size = sizeof tensor, .dtype = PURR_DTYPE_INT32, .num_dims = 2, .data = ids, .shape = {2, 2}};
  REQUIRE_OK(purr_schedule_build(schedule, workspace, &tensor, NULL, &err));
  REQUIRE_OK(purr_schedule_describe(schedule, PURR_FORMAT_TEXT, text, sizeof text, &length, &err));
  CU_ASSERT_STRING_EQUAL(text,
                         "3 rows of 2 experts (128 with padding); rows as rank:token/slot\n"
                         "expert 0  rows 0..64  1 used  0:0/1\n"
                         "expert 1  rows 64..128  2 used  0:0/0 0:1/1\n");
  CU_ASSERT_EQUAL(length, strlen(text));
  ASSERT_STATUS(PURR_STATUS_BUFFER_TOO_SMALL,
                purr_schedule_describe(schedule, PURR_FORMAT_TEXT, text, 10, &length, &err));
  REQUIRE_OK(purr_schedule_describe(schedule, PURR_FORMAT_JSON, NULL, 0, &length, &err));
  CU_ASSERT_TRUE(length > 100);
  purr_schedule_view_t view = {.struct_size = sizeof view};
  REQUIRE_OK(purr_schedule_get_view(schedule, &view, &err));
  CU_ASSERT_EQUAL(view.num_rows, 3);
  CU_ASSERT_EQUAL(view.row_slot[64], 0);
  purr_schedule_destroy(schedule);
  purr_workspace_destroy(workspace);
  purr_plan_destroy(plan);
}

int main(void) {
  return purr_test_main(
      "schedule",
      (purr_test_t[]){
          {"random tables and walks", random_tables}, {"worst cases fit", worst_cases_fit}, {"printed", printed}, {0}});
}
