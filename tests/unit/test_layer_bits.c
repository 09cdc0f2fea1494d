/* The same inputs give the same bits: for every group size, thread count, minibatch, ring, amount kept for backward,
 * storage of ids and weights, and whatever other tokens share the batch. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "support/layer.h"
#include "support/main.h"

static uint64_t hash_of_run(const test_problem_t *p, const test_run_t *run) {
  test_outcome_t *o = test_layer_run(p, run);
  if (o->status != PURR_STATUS_OK) fprintf(stderr, "%s: %s\n", purr_status_name(o->status), o->err.message);
  CU_ASSERT_EQUAL(o->status, PURR_STATUS_OK);
  CU_ASSERT_TRUE(o->canaries_intact);
  const uint64_t hash = test_outcome_hash(p, o);
  test_outcome_free(o);
  return hash;
}

/* 24 experts divide by 1, 2, 3, 4, 6 and 8. */
static test_problem_t *problem(uint64_t seed) {
  test_problem_t *p = test_random(seed, 150, 48, 40, 24, 3, 24, true);
  p->swiglu_limit = 1.5f;
  for (int64_t t = 0; t < p->tokens; t += 7) p->ids[t * 3 + t % 3] = -1;         /* dropped */
  for (int64_t t = 1; t < p->tokens; t += 11) p->ids[t * 3 + 1] = p->ids[t * 3]; /* duplicates */
  for (int64_t t = 0; t < p->tokens; t += 4) p->ids[t * 3 + 2] = 5; /* one popular expert, cut by ring boundaries */
  return p;
}

static void over_ranks_and_rings(void) {
  static const int ranks[] = {1, 2, 3, 4, 6, 8};
  static const int64_t rings[][2] = {{0, 0}, {64, 128}, {64, 192}, {128, 256}, {192, 448}};
  static const int64_t kept[] = {0, -1, 4 * 40 * 128, 4 * 40 * 256};
  test_problem_t *p = problem(1);
  const uint64_t wanted = hash_of_run(p, &(test_run_t){0});
  for (size_t r = 0; r < sizeof ranks / sizeof ranks[0]; r++)
    for (size_t i = 0; i < sizeof rings / sizeof rings[0]; i++) {
      if (test_is_emulated() && (r + i) % 3 != 0) continue; /* still every number of ranks, and every ring */
      const test_run_t run = {.ranks = ranks[r],
                              .minibatch = rings[i][0],
                              .macrobatch = rings[i][1],
                              .activation_memory = kept[(r + i) % 4],
                              .threads = 1 + (int)(r + i) % 3,
                              .schedule_first = (r + i) % 2 == 1,
                              .int32_ids = i % 2 == 1,
                              .packed = r % 2 == 1,
                              .pointers = i % 3 == 1,
                              .strided = r % 3 == 1};
      const uint64_t got = hash_of_run(p, &run);
      if (got != wanted)
        fprintf(stderr, "R %d, minibatch %lld, macrobatch %lld, kept %lld differ\n", run.ranks,
                (long long)run.minibatch, (long long)run.macrobatch, (long long)run.activation_memory);
      CU_ASSERT_EQUAL(got, wanted);
    }
  test_problem_free(p);
}

/* The same for MXFP8, whose blocks along the tokens must not depend on where a ring cuts an expert. */
static void mxfp8_over_ranks_and_rings(void) {
  test_problem_t *p = test_random(7, 150, 64, 96, 24, 3, 24, true);
  for (int64_t t = 0; t < p->tokens; t += 2) p->ids[t * 3 + 2] = 5;
  for (int32_t weights = PURR_GRANULARITY_1X32; weights <= PURR_GRANULARITY_128X128; weights += 3) {
    test_run_t run = {.precision = PURR_PRECISION_MXFP8,
                      .weight_granularity = weights,
                      .activation_granularity = weights == 0 ? PURR_GRANULARITY_1X32 : PURR_GRANULARITY_1X128};
    const uint64_t wanted = hash_of_run(p, &run);
    static const struct {
      int ranks, threads;
      int64_t minibatch, macrobatch, kept;
    } cases[] = {{1, 1, 64, 128, -1}, {2, 3, 64, 192, 0}, {3, 2, 128, 320, 4 * 96 * 320},
                 {4, 1, 64, 128, -1}, {6, 2, 0, 0, 0},    {8, 5, 64, 128, 4 * 96 * 128}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
      run.ranks = cases[i].ranks;
      run.threads = cases[i].threads;
      run.minibatch = cases[i].minibatch;
      run.macrobatch = cases[i].macrobatch;
      run.activation_memory = cases[i].kept;
      CU_ASSERT_EQUAL(hash_of_run(p, &run), wanted);
    }
  }
  test_problem_free(p);
}

static void ragged(void) {
  test_problem_t *p = problem(2);
  const uint64_t wanted = hash_of_run(p, &(test_run_t){0});
  static const int64_t splits[][4] = {{150, 0, 0, 0}, {0, 0, 0, 150}, {1, 148, 0, 1}, {100, 3, 40, 7}};
  for (int i = 0; i < 4; i++)
    CU_ASSERT_EQUAL(
        hash_of_run(
            p,
            &(test_run_t){
                .ranks = 4, .tokens_of_rank = splits[i], .minibatch = 64, .macrobatch = 128, .max_tokens = 200}),
        wanted);
  test_problem_free(p);
}

static void over_threads(void) {
  test_problem_t *p = problem(3);
  const uint64_t wanted = hash_of_run(p, &(test_run_t){.threads = 1});
  for (int threads = 2; threads <= 9; threads += 3)
    for (int repeat = 0; repeat < 3; repeat++)
      CU_ASSERT_EQUAL(hash_of_run(p, &(test_run_t){.threads = threads}), wanted);
  test_problem_free(p);
}

/* Token 7's output, dx and router gradients do not know their neighbours. */
static void whatever_shares_the_batch(void) {
  test_problem_t *p = problem(4), *alone = problem(4);
  alone->tokens = 1;
  memcpy(alone->x, p->x + 7 * p->hidden, (size_t)p->hidden * sizeof *p->x);
  memcpy(alone->d_output, p->d_output + 7 * p->hidden, (size_t)p->hidden * sizeof *p->x);
  memcpy(alone->ids, p->ids + 7 * 3, 3 * sizeof *p->ids);
  memcpy(alone->topk_weights, p->topk_weights + 7 * 3, 3 * sizeof *p->topk_weights);
  test_outcome_t *all = test_layer_run(p, &(test_run_t){.ranks = 2});
  test_outcome_t *one = test_layer_run(alone, &(test_run_t){0});
  CU_ASSERT_EQUAL_FATAL(all->status, PURR_STATUS_OK);
  CU_ASSERT_EQUAL_FATAL(one->status, PURR_STATUS_OK);
  CU_ASSERT_EQUAL(memcmp(all->output + 7 * p->hidden, one->output, (size_t)p->hidden * 2), 0);
  CU_ASSERT_EQUAL(memcmp(all->d_x + 7 * p->hidden, one->d_x, (size_t)p->hidden * 2), 0);
  CU_ASSERT_EQUAL(memcmp(all->d_topk_weights + 7 * 3, one->d_topk_weights, 3 * sizeof(float)), 0);
  test_outcome_free(all);
  test_outcome_free(one);
  test_problem_free(p);
  test_problem_free(alone);
}

/* The hash of a fixed problem, the same for every compiler, instruction set and machine. A change of numerics changes
 * it: then write the new value here, and say so in the commit. */
#define GOLDEN 0xe470054d01fa1dbeu
static void golden(void) {
  if (test_backend() != PURR_BACKEND_HOST) return;
  test_problem_t *p = problem(5);
  const uint64_t got = hash_of_run(p, &(test_run_t){.ranks = 2});
  if (got != GOLDEN) fprintf(stderr, "golden hash is now 0x%016llxu\n", (unsigned long long)got);
  CU_ASSERT_EQUAL(got, GOLDEN);
  test_problem_free(p);
}

/* With one slot a token GPUs multiply by its weight where y is made, on one rank; with several, or where a second slot
 * is dropped, the sum over slots does. */
static void one_slot_a_token(void) {
  enum { EXPERTS = 12 };
  static const test_run_t runs[] = {{.int32_ids = true},
                                    {.strided = true, .schedule_first = true},
                                    {.int32_ids = true, .minibatch = 64, .macrobatch = 448},
                                    {.ranks = 2},
                                    {.ranks = 3, .int32_ids = true}};
  const int64_t hidden = test_is_emulated() ? 264 : 2056;
  test_problem_t *one = test_random(8, 301, hidden, 40, EXPERTS, 1, 0, false);
  test_problem_t *two = test_random(8, 301, hidden, 40, EXPERTS, 2, 0, false);
  for (int64_t t = 0; t < one->tokens; t++) {
    if (t % 9 == 4 || t == 300) one->ids[t] = -1;
    if (t % 5 == 2) one->topk_weights[t] = -one->topk_weights[t];
    if (t == 11) one->topk_weights[t] = 0;
    if (t % 7 == 3) memset(one->x + t * one->hidden, 0, (size_t)one->hidden * 2); /* -0 becomes +0 */
    two->ids[2 * t] = one->ids[t];
    two->ids[2 * t + 1] = -1;
    two->topk_weights[2 * t] = one->topk_weights[t];
  }
  memcpy(two->x, one->x, (size_t)(one->tokens * one->hidden) * 2);
  const size_t weight_bytes = (size_t)(EXPERTS * one->inner * one->hidden) * 2;
  memcpy(two->gate, one->gate, weight_bytes);
  memcpy(two->up, one->up, weight_bytes);
  memcpy(two->down, one->down, weight_bytes);
  test_outcome_t *summed = test_layer_run(two, &(test_run_t){0});
  CU_ASSERT_EQUAL_FATAL(summed->status, PURR_STATUS_OK);
  for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
    test_outcome_t *got = test_layer_run(one, &runs[i]);
    CU_ASSERT_EQUAL_FATAL(got->status, PURR_STATUS_OK);
    CU_ASSERT_TRUE(got->canaries_intact);
    CU_ASSERT_EQUAL(memcmp(got->output, summed->output, (size_t)(one->tokens * one->hidden) * 2), 0);
    test_outcome_free(got);
  }
  test_outcome_free(summed);
  test_problem_free(one);
  test_problem_free(two);
}

/* What is kept is what the plan says: replayed rows are counted. */
static void replay_is_real(void) {
  test_problem_t *p = problem(6);
  int64_t rows = 0;
  for (int64_t i = 0; i < p->tokens * 3; i++) rows += p->ids[i] >= 0;
  static const int64_t kept[] = {0, -1, 4 * 40 * 128};
  for (int i = 0; i < 3; i++) {
    test_outcome_t *o = test_layer_run(
        p, &(test_run_t){.minibatch = 64, .macrobatch = 128, .activation_memory = kept[i], .ranks = 1 + i % 2});
    CU_ASSERT_EQUAL_FATAL(o->status, PURR_STATUS_OK);
    if (i == 0) CU_ASSERT_EQUAL(o->num_replayed_rows, 0);
    if (i == 1) CU_ASSERT_EQUAL(o->num_replayed_rows, rows);
    if (i == 2) CU_ASSERT_TRUE(o->num_replayed_rows > 0 && o->num_replayed_rows < rows);
    test_outcome_free(o);
  }
  test_problem_free(p);
}

int main(void) {
  return test_layer_main("bits of a layer", (purr_test_t[]){{"over ranks and rings", over_ranks_and_rings},
                                                            {"MXFP8 over ranks and rings", mxfp8_over_ranks_and_rings},
                                                            {"ragged ranks", ragged},
                                                            {"over threads", over_threads},
                                                            {"whatever shares the batch", whatever_shares_the_batch},
                                                            {"one slot a token", one_slot_a_token},
                                                            {"golden hash", golden},
                                                            {"replay is real", replay_is_real},
                                                            {0}});
}
