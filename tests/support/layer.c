#include "support/layer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"

/* ---- memory ---- */

static void *poisoned_allocate(void *user, uint64_t bytes, uint64_t alignment) {
  (void)user;
  void *memory = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory != NULL) memset(memory, TEST_POISON, bytes);
  return memory;
}

static void plain_release(void *user, void *memory, uint64_t bytes) {
  (void)user;
  (void)bytes;
  free(memory);
}

/* ---- one rank ---- */

typedef struct runner {
  test_rank_t rank;
  int64_t *tokens_per_expert;
  int64_t num_replayed_rows;
  purr_status_t status;
  purr_error_t err;
  purr_result_info_t info;
} runner_t;

static purr_status_t run_once(runner_t *runner) {
  test_rank_t *rank = &runner->rank;
  test_rank_poison(rank);
  runner->info.struct_size = sizeof runner->info;
  purr_status_t status = test_rank_forward(rank, &runner->err);
  purr_result_query(rank->result, &runner->info, NULL);
  if (status == PURR_STATUS_OK)
    status = purr_result_tokens_per_expert(rank->result, runner->tokens_per_expert, rank->experts, &runner->err);
  if (status == PURR_STATUS_OK && !rank->run->inference) {
    status = test_rank_backward(rank, &runner->err);
    purr_result_info_t info = {.struct_size = sizeof info};
    purr_result_query(rank->result, &info, NULL);
    runner->num_replayed_rows = info.num_replayed_rows;
    if (status != PURR_STATUS_OK) runner->info = info;
  }
  return status;
}

static void *runner_main(void *arg) {
  runner_t *runner = arg;
  runner->err = (purr_error_t)PURR_ERROR_INIT;
  test_rank_prepare(&runner->rank);
  runner->tokens_per_expert = calloc((size_t)runner->rank.experts, sizeof *runner->tokens_per_expert);
  runner->status = test_rank_create_objects(&runner->rank, &runner->err);
  for (int i = 0; i < 2 && runner->status == PURR_STATUS_OK; i++) runner->status = run_once(runner);
  test_rank_destroy_objects(&runner->rank);
  return NULL;
}

/* ---- all ranks ---- */

static void collect_gradient(const test_buffer_t *b, float *out, bool add) {
  for (int64_t r = 0; r < b->rows; r++)
    for (int64_t c = 0; c < b->columns; c++) {
      const float value = test_rank_gradient(b, r, c);
      out[r * b->columns + c] = add ? out[r * b->columns + c] + value : value;
    }
}

static void collect(const test_problem_t *p, const runner_t *runner, bool first, test_outcome_t *o) {
  const test_rank_t *rank = &runner->rank;
  o->canaries_intact = o->canaries_intact && test_rank_canaries_intact(rank);
  o->untouched = o->untouched && test_buffer_untouched(&rank->output) && test_buffer_untouched(&rank->d_x);
  o->num_replayed_rows += runner->num_replayed_rows;
  if (first || (o->status == PURR_STATUS_OK && runner->status != PURR_STATUS_OK)) {
    o->status = runner->status;
    o->info = runner->info;
    o->err = runner->err;
  }
  const int64_t slice = p->inner * p->hidden;
  test_buffer_get(&rank->output, o->output + rank->first_token * p->hidden);
  test_buffer_get(&rank->d_x, o->d_x + rank->first_token * p->hidden);
  test_buffer_get(&rank->d_topk_weights, o->d_topk_weights + rank->first_token * p->top_k);
  collect_gradient(&rank->gradient[TEST_D_GATE], o->d_gate + rank->first_expert * slice, false);
  collect_gradient(&rank->gradient[TEST_D_UP], o->d_up + rank->first_expert * slice, false);
  collect_gradient(&rank->gradient[TEST_D_DOWN], o->d_down + rank->first_expert * slice, false);
  collect_gradient(&rank->gradient[TEST_D_S_GATE], o->d_s_gate, !first);
  collect_gradient(&rank->gradient[TEST_D_S_UP], o->d_s_up, !first);
  collect_gradient(&rank->gradient[TEST_D_S_DOWN], o->d_s_down, !first);
  collect_gradient(&rank->gradient[TEST_D_Z], o->d_z, !first);
  memcpy(o->tokens_per_expert + rank->first_expert, runner->tokens_per_expert, (size_t)rank->experts * sizeof(int64_t));
}

static test_outcome_t *outcome_create(const test_problem_t *p) {
  test_outcome_t *o = calloc(1, sizeof *o);
  const size_t slice = (size_t)(p->inner * p->hidden), experts = (size_t)p->experts;
  o->canaries_intact = o->untouched = true;
  o->output = calloc((size_t)(p->tokens * p->hidden) + 1, sizeof *o->output);
  o->d_x = calloc((size_t)(p->tokens * p->hidden) + 1, sizeof *o->d_x);
  o->d_topk_weights = calloc((size_t)(p->tokens * p->top_k) + 1, sizeof(float));
  o->d_gate = calloc(experts * slice, sizeof(float));
  o->d_up = calloc(experts * slice, sizeof(float));
  o->d_down = calloc(experts * slice, sizeof(float));
  o->d_s_gate = calloc((size_t)(p->shared * p->hidden) + 1, sizeof(float));
  o->d_s_up = calloc((size_t)(p->shared * p->hidden) + 1, sizeof(float));
  o->d_s_down = calloc((size_t)(p->shared * p->hidden) + 1, sizeof(float));
  o->d_z = calloc((size_t)p->hidden, sizeof(float));
  o->tokens_per_expert = calloc(experts, sizeof(int64_t));
  return o;
}

void test_outcome_free(test_outcome_t *o) {
  free(o->output);
  free(o->d_x);
  free(o->d_topk_weights);
  free(o->d_gate);
  free(o->d_up);
  free(o->d_down);
  free(o->d_s_gate);
  free(o->d_s_up);
  free(o->d_s_down);
  free(o->d_z);
  free(o->tokens_per_expert);
  free(o);
}

/* A plan for each rank: on GPUs, the tests' devices take turns. */
static purr_status_t make_plans(purr_context_t *context, const test_problem_t *p, const test_run_t *run, int ranks,
                                purr_plan_t **out_plans, purr_error_t *err) {
  const purr_layer_desc_t layer = test_layer_desc(p, run);
  purr_config_t *config = NULL;
  purr_status_t status = purr_config_create(context, &layer, &config, err);
  for (int r = 0; r < ranks && status == PURR_STATUS_OK; r++) {
    const purr_plan_desc_t desc = {.struct_size = sizeof desc, .device = r % test_num_devices() + 1};
    status = purr_plan_create(context, config, run->backend != 0 ? &desc : NULL, &out_plans[r], err);
  }
  purr_config_destroy(config);
  return status;
}

static test_outcome_t *run_on_backend(const test_problem_t *p, const test_run_t *run) {
  const int ranks = run->ranks ? run->ranks : 1;
  test_outcome_t *o = outcome_create(p);
  o->err = (purr_error_t)PURR_ERROR_INIT;
  const purr_allocator_t allocator = {sizeof allocator, 0, poisoned_allocate, plain_release, NULL};
  const purr_context_desc_t desc = {.struct_size = sizeof desc,
                                    .num_threads = run->threads ? (uint32_t)run->threads : 2,
                                    .host_allocator = &allocator};
  purr_context_t *context = NULL;
  purr_plan_t **plans = calloc((size_t)ranks, sizeof *plans);
  purr_group_t **groups = calloc((size_t)ranks, sizeof *groups);
  const purr_group_desc_t group_desc = {sizeof group_desc, ranks, 60000};
  o->status = purr_context_create(&desc, &context, &o->err);
  if (o->status == PURR_STATUS_OK) o->status = make_plans(context, p, run, ranks, plans, &o->err);
  if (o->status == PURR_STATUS_OK) o->status = purr_group_create_local(context, &group_desc, groups, &o->err);
  if (o->status == PURR_STATUS_OK) {
    runner_t *all = calloc((size_t)ranks, sizeof *all);
    pthread_t *threads = calloc((size_t)ranks, sizeof *threads);
    int64_t first_token = 0;
    for (int r = 0; r < ranks; r++) {
      const int64_t even = p->tokens * (r + 1) / ranks - p->tokens * r / ranks;
      const int64_t tokens = run->tokens_of_rank != NULL ? run->tokens_of_rank[r] : even;
      all[r].rank = (test_rank_t){.problem = p,
                                  .run = run,
                                  .context = context,
                                  .plan = plans[r],
                                  .group = groups[r],
                                  .first_token = first_token,
                                  .tokens = tokens,
                                  .first_expert = r * (p->experts / ranks),
                                  .experts = p->experts / ranks};
      first_token += tokens;
      pthread_create(&threads[r], NULL, runner_main, &all[r]);
    }
    for (int r = 0; r < ranks; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < ranks; r++) {
      collect(p, &all[r], r == 0, o);
      test_rank_free(&all[r].rank);
      free(all[r].tokens_per_expert);
      purr_group_destroy(groups[r]);
    }
    free(threads);
    free(all);
  }
  for (int r = 0; r < ranks; r++) purr_plan_destroy(plans[r]);
  free(plans);
  free(groups);
  purr_context_destroy(context);
  return o;
}

/* Takes over what forward gives. */
static void take_forward(const test_problem_t *p, test_outcome_t *o, const test_outcome_t *from) {
  memcpy(o->output, from->output, (size_t)(p->tokens * p->hidden) * sizeof *o->output);
  memcpy(o->tokens_per_expert, from->tokens_per_expert, (size_t)p->experts * sizeof *o->tokens_per_expert);
  o->status = from->status;
  o->info = from->info;
  o->err = from->err;
  o->canaries_intact = o->canaries_intact && from->canaries_intact;
  o->untouched = o->untouched && from->untouched;
}

test_outcome_t *test_layer_run(const test_problem_t *p, const test_run_t *run) {
  test_outcome_t *o = run_on_backend(p, run);
  if (run->backend != 0 || !test_backend_serves(run)) return o;
  test_run_t forward = *run;
  forward.backend = test_backend();
  forward.inference = true;
  test_outcome_t *on_backend = run_on_backend(p, &forward);
  take_forward(p, o, on_backend);
  test_outcome_free(on_backend);
  return o;
}

static uint64_t hash_bytes(uint64_t hash, const void *bytes, int64_t num) {
  for (int64_t i = 0; i < num; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
  return hash;
}

uint64_t test_outcome_hash(const test_problem_t *p, const test_outcome_t *o) {
  const int64_t weights = p->experts * p->inner * p->hidden * (int64_t)sizeof(float);
  uint64_t hash = 0xcbf29ce484222325u;
  hash = hash_bytes(hash, o->output, p->tokens * p->hidden * 2);
  hash = hash_bytes(hash, o->d_x, p->tokens * p->hidden * 2);
  hash = hash_bytes(hash, o->d_topk_weights, p->tokens * p->top_k * (int64_t)sizeof(float));
  hash = hash_bytes(hash, o->d_gate, weights);
  hash = hash_bytes(hash, o->d_up, weights);
  return hash_bytes(hash, o->d_down, weights);
}
