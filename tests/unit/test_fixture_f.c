/* Fixture F: "scaler experts" whose results have a closed form and are exact to the bit in every precision, and the
 * bug reports of other systems that it can show. The closed forms here are written from the definition of F alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "backends/host/math.h"
#include "support/device.h"
#include "support/layer.h"
#include "support/main.h"

/* ---- the closed form ---- */

static float multiplier(int64_t id) { return (float)(id % 8 + 1); }

static float x_at(const test_problem_t *p, int64_t t, int64_t h) {
  return purr__fp32_from_bf16(p->x[t * p->hidden + h]);
}

/* Sum over the slots of w * m(id). */
static double routed_scale(const test_problem_t *p, int64_t t) {
  double sum = 0.0;
  for (int64_t k = 0; k < p->top_k; k++) {
    const int64_t id = p->ids[t * p->top_k + k];
    if (id >= 0) sum += (double)p->topk_weights[t * p->top_k + k] * multiplier(id);
  }
  return sum;
}

/* The shared expert adds 16 to the columns that it has. */
static double scale_of(const test_problem_t *p, int64_t t) { return routed_scale(p, t) + (p->shared > 0 ? 16.0 : 0.0); }

static int num_wrong; /* of one comparison, so that one line says how many */

static void expect_bf16(purr__bf16_t got, double wanted) {
  if (got != purr__bf16_from_fp32((float)wanted)) num_wrong++;
}
/* Gradients compare as values, so that -0 counts as wrong where +0 is due. */
static void expect_fp32(float got, double wanted, bool as_bf16) {
  float value = (float)wanted;
  if (as_bf16) value = purr__fp32_from_bf16(purr__bf16_from_fp32(value));
  if (purr__fp32_bits(got) != purr__fp32_bits(value)) num_wrong++;
}

static void expect_output(const test_problem_t *p, const test_outcome_t *o) {
  for (int64_t t = 0; t < p->tokens; t++)
    for (int64_t h = 0; h < p->hidden; h++) {
      const double scale = (h < p->inner ? routed_scale(p, t) : 0.0) + (h < p->shared ? 16.0 : 0.0);
      expect_bf16(o->output[t * p->hidden + h], scale != 0.0 ? scale * x_at(p, t, h) : 0.0);
    }
}

static void expect_token_gradients(const test_problem_t *p, const test_outcome_t *o) {
  for (int64_t t = 0; t < p->tokens; t++) {
    const double scale = scale_of(p, t), x1 = x_at(p, t, 1);
    for (int64_t h = 0; h < p->hidden; h++)
      expect_bf16(o->d_x[t * p->hidden + h], h == 0 && scale != 0.0 ? scale * x1 : h == 1 ? scale : 0.0);
    for (int64_t k = 0; k < p->top_k; k++) {
      const int64_t id = p->ids[t * p->top_k + k];
      expect_fp32(o->d_topk_weights[t * p->top_k + k], id >= 0 ? multiplier(id) * x1 : 0.0, false);
    }
  }
}

/* d_down[e][1][i] = sum 32*w*x[t][i], d_up[e][1][h] = sum w*m*x[t][h], d_gate[e][1][h] = sum (w*m/32)*x[t][1]*x[t][h].
 */
static void expect_weight_gradients(const test_problem_t *p, const test_outcome_t *o, const test_run_t *run) {
  const bool bf16 = run->bf16_gradients;
  const double initial = run->accumulate ? run->initial_gradient : 0.0;
  double *down = calloc((size_t)(p->experts * p->inner), sizeof *down);
  double *up = calloc((size_t)(p->experts * p->hidden), sizeof *up);
  double *gate = calloc((size_t)(p->experts * p->hidden), sizeof *gate);
  for (int64_t t = 0; t < p->tokens; t++)
    for (int64_t k = 0; k < p->top_k; k++) {
      const int64_t id = p->ids[t * p->top_k + k];
      const double w = p->topk_weights[t * p->top_k + k];
      if (id < 0) continue;
      for (int64_t i = 0; i < p->inner; i++) down[id * p->inner + i] += 32.0 * w * x_at(p, t, i);
      for (int64_t h = 0; h < p->hidden; h++) {
        up[id * p->hidden + h] += w * multiplier(id) * x_at(p, t, h);
        gate[id * p->hidden + h] += w * multiplier(id) / 32.0 * x_at(p, t, 1) * x_at(p, t, h);
      }
    }
  for (int64_t e = 0; e < p->experts; e++) {
    for (int64_t h = 0; h < p->hidden; h++)
      for (int64_t i = 0; i < p->inner; i++)
        expect_fp32(o->d_down[(e * p->hidden + h) * p->inner + i], initial + (h == 1 ? down[e * p->inner + i] : 0.0),
                    bf16);
    for (int64_t i = 0; i < p->inner; i++)
      for (int64_t h = 0; h < p->hidden; h++) {
        const int64_t at = (e * p->inner + i) * p->hidden + h;
        expect_fp32(o->d_up[at], initial + (i == 1 ? up[e * p->hidden + h] : 0.0), bf16);
        expect_fp32(o->d_gate[at], initial + (i == 1 ? gate[e * p->hidden + h] : 0.0), bf16);
      }
  }
  free(gate);
  free(up);
  free(down);
}

/* The shared expert is a scaler with m = 16 and weight 1 on every token. */
static void expect_shared_gradients(const test_problem_t *p, const test_outcome_t *o) {
  for (int64_t i = 0; i < p->shared; i++)
    for (int64_t h = 0; h < p->hidden; h++) {
      double up = 0.0, gate = 0.0, down = 0.0;
      for (int64_t t = 0; t < p->tokens; t++) {
        up += 16.0 * x_at(p, t, h);
        gate += 0.5 * x_at(p, t, 1) * x_at(p, t, h);
        down += 32.0 * x_at(p, t, i);
      }
      expect_fp32(o->d_s_up[i * p->hidden + h], i == 1 ? up : 0.0, false);
      expect_fp32(o->d_s_gate[i * p->hidden + h], i == 1 ? gate : 0.0, false);
      expect_fp32(o->d_s_down[h * p->shared + i], h == 1 ? down : 0.0, false);
    }
}

/* Runs and holds everything against the closed form. Frees nothing of the problem. */
static void check_exact(const char *what, const test_problem_t *p, const test_run_t *run) {
  test_outcome_t *o = test_layer_run(p, run);
  if (o->status != PURR_STATUS_OK) fprintf(stderr, "%s: %s: %s\n", what, purr_status_name(o->status), o->err.message);
  CU_ASSERT_EQUAL_FATAL(o->status, PURR_STATUS_OK);
  CU_ASSERT_TRUE(o->canaries_intact);
  const struct {
    const char *name;
    bool run;
  } parts[] = {{"output", true},
               {"token gradients", !run->inference},
               {"weight gradients", !run->inference},
               {"shared gradients", !run->inference && !run->accumulate && !run->bf16_gradients}};
  for (int i = 0; i < 4; i++) {
    num_wrong = 0;
    if (i == 0) expect_output(p, o);
    if (i == 1 && parts[i].run) expect_token_gradients(p, o);
    if (i == 2 && parts[i].run) expect_weight_gradients(p, o, run);
    if (i == 3 && parts[i].run) expect_shared_gradients(p, o);
    if (num_wrong > 0) fprintf(stderr, "%s: %d elements of %s differ\n", what, num_wrong, parts[i].name);
    CU_ASSERT_EQUAL(num_wrong, 0);
  }
  /* Counts agree with a recount of the ids. */
  int64_t *counts = calloc((size_t)p->experts, sizeof *counts);
  for (int64_t s = 0; s < p->tokens * p->top_k; s++)
    if (p->ids[s] >= 0) counts[p->ids[s]]++;
  for (int64_t e = 0; e < p->experts; e++) CU_ASSERT_EQUAL(o->tokens_per_expert[e], counts[e]);
  free(counts);
  test_outcome_free(o);
}

/* ---- helpers of the cases ---- */

static test_problem_t *fixture(int64_t tokens, int64_t experts, int64_t top_k) {
  return test_fixture_f(tokens, 256, 128, experts, top_k, 0);
}

static void set_route(test_problem_t *p, int64_t t, const int64_t *ids, const float *weights) {
  for (int64_t k = 0; k < p->top_k; k++) {
    p->ids[t * p->top_k + k] = ids[k];
    p->topk_weights[t * p->top_k + k] = weights[k];
  }
}

static void set_all_routes(test_problem_t *p, const int64_t *ids, const float *weights) {
  for (int64_t t = 0; t < p->tokens; t++) set_route(p, t, ids, weights);
}

/* ---- the fixture itself ---- */

static void sizes_and_layouts(void) {
  static const int64_t tokens[] = {1, 2, 63, 64, 65, 130, 300};
  for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
    test_problem_t *p = fixture(tokens[i], 8, 2);
    check_exact("plain", p, &(test_run_t){0});
    check_exact("two ranks", p, &(test_run_t){.ranks = 2});
    test_problem_free(p);
  }
  test_problem_t *p = test_fixture_f(130, 288, 160, 8, 2, 0);
  check_exact("H 288, I 160", p, &(test_run_t){0});
  check_exact("packed", p, &(test_run_t){.packed = true});
  check_exact("pointers", p, &(test_run_t){.pointers = true});
  check_exact("packed pointers", p, &(test_run_t){.packed = true, .pointers = true});
  check_exact("schedule built first", p, &(test_run_t){.schedule_first = true, .ranks = 4});
  check_exact("int32 ids", p, &(test_run_t){.int32_ids = true});
  check_exact("inference", p, &(test_run_t){.inference = true});
  check_exact("BF16 gradients", p, &(test_run_t){.bf16_gradients = true});
  check_exact("adding to FP32", p, &(test_run_t){.accumulate = true, .initial_gradient = 0.5f});
  check_exact("adding to BF16", p, &(test_run_t){.accumulate = true, .initial_gradient = 0.5f, .bf16_gradients = true});
  test_problem_free(p);
}

static void small_rings_and_replay(void) {
  test_problem_t *p = fixture(300, 8, 2);
  for (int ranks = 1; ranks <= 4; ranks *= 2)
    for (int64_t memory = -1; memory <= 1; memory++)
      check_exact("ring of two minibatches", p,
                  &(test_run_t){.ranks = ranks,
                                .minibatch = 64,
                                .macrobatch = 128,
                                .activation_memory = memory == 1 ? 4 * 128 * 200 : memory});
  test_problem_free(p);
}

static void shared_expert(void) {
  for (int64_t shared = 64; shared <= 192; shared += 64) {
    test_problem_t *p = test_fixture_f(37, 256, 128, 8, 2, shared);
    check_exact("shared expert", p, &(test_run_t){.ranks = shared == 128 ? 2 : 1});
    test_problem_free(p);
  }
}

/* F is exact in MXFP8 too, in every recipe. */
static void mxfp8(void) {
  for (int32_t rule = 0; rule <= 1; rule++)
    for (int32_t weights = PURR_GRANULARITY_1X32; weights <= PURR_GRANULARITY_128X128; weights++) {
      const bool wide = weights >= PURR_GRANULARITY_1X128;
      const test_run_t run = {.precision = PURR_PRECISION_MXFP8,
                              .scale_rule = rule,
                              .weight_granularity = weights,
                              .activation_granularity = wide ? PURR_GRANULARITY_1X128 : PURR_GRANULARITY_1X32,
                              .ranks = 1 + weights % 2,
                              .minibatch = 64,
                              .macrobatch = 128,
                              .activation_memory = weights == 1 ? -1 : 0};
      test_problem_t *p = test_fixture_f(130, 256, 128, 8, 2, rule == 0 ? 128 : 0);
      check_exact("MXFP8", p, &run);
      test_problem_free(p);
      /* B21: sizes whose blocks do not fill a tile of scales. */
      p = test_fixture_f(130, 288, 160, 8, 1, 0);
      check_exact("B21", p, &run);
      test_problem_free(p);
      p = test_fixture_f(5, 256, 128, 8, 2, 0);
      check_exact("B31, MXFP8", p, &run);
      test_problem_free(p);
    }
}

/* ---- bug reports of other systems ---- */

static void b01_empty_experts(void) {
  test_problem_t *p = fixture(4, 8, 2);
  set_all_routes(p, (int64_t[]){1, 6}, (float[]){0.5f, 0.25f});
  check_exact("B01", p, &(test_run_t){0});
  check_exact("B01, adding", p, &(test_run_t){.accumulate = true, .initial_gradient = 2.0f});
  test_problem_free(p);
  p = fixture(0, 8, 2);
  check_exact("B01, T = 0", p, &(test_run_t){0});
  check_exact("B01, T = 0 on two ranks", p, &(test_run_t){.ranks = 2});
  test_problem_free(p);
}

static void b03_all_to_one_expert(void) {
  test_problem_t *p = fixture(2048, 8, 1);
  set_all_routes(p, (int64_t[]){7}, (float[]){1.0f});
  check_exact("B03", p, &(test_run_t){.ranks = 2});
  test_problem_free(p);
}

static void b05_dropped_and_bad_ids(void) {
  test_problem_t *p = fixture(3, 8, 2);
  set_route(p, 0, (int64_t[]){-1, -1}, (float[]){0.5f, 0.5f});
  set_route(p, 1, (int64_t[]){3, -1}, (float[]){0.5f, 0.25f});
  set_route(p, 2, (int64_t[]){-1, 5}, (float[]){1.0f, 0.25f});
  check_exact("B05", p, &(test_run_t){0});
  p->topk_weights[1] = NAN; /* the weight of a dropped slot is never read */
  check_exact("B05, NaN weight of a dropped slot", p, &(test_run_t){0});
  static const int64_t bad[] = {-2, 8, 2147483647, INT64_MIN, 4294967299, INT64_MAX};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    for (int ranks = 1; ranks <= 2; ranks++)
      for (int first = 0; first <= 1; first++) {
        p->ids[2] = bad[i];
        test_outcome_t *o = test_layer_run(p, &(test_run_t){.ranks = ranks, .schedule_first = first == 1});
        CU_ASSERT_EQUAL(o->status, PURR_STATUS_BAD_ROUTE);
        CU_ASSERT_TRUE(o->canaries_intact);
        CU_ASSERT_TRUE(o->untouched);
        /* With two ranks tokens 1 and 2 live on rank 1, where token 1 is the first. */
        CU_ASSERT_EQUAL(o->err.rank, ranks - 1);
        if (first == 0) {
          CU_ASSERT_EQUAL(o->info.status, PURR_STATUS_BAD_ROUTE);
          CU_ASSERT_EQUAL(o->info.rank, ranks - 1);
          CU_ASSERT_EQUAL(o->info.token, ranks == 1 ? 1 : 0);
          CU_ASSERT_EQUAL(o->info.slot, 0);
          /* Between GPUs ids travel as int32: what does not fit comes as the nearest that does. */
          const bool is_exact =
              ranks == 1 || !test_backend_serves(&(test_run_t){.ranks = ranks}) || (bad[i] == (int32_t)bad[i]);
          CU_ASSERT_EQUAL(o->info.expert, is_exact ? bad[i] : bad[i] < 0 ? INT32_MIN : INT32_MAX);
        }
        test_outcome_free(o);
      }
  test_problem_free(p);
}

static void b07_duplicates_and_nan(void) {
  test_problem_t *p = fixture(8, 8, 4);
  set_all_routes(p, (int64_t[]){0, 2, 4, 6}, (float[]){0.25f, 0.25f, 0.25f, 0.25f});
  test_outcome_t *plain = test_layer_run(p, &(test_run_t){0});
  set_route(p, 5, (int64_t[]){0, 0, 0, 0}, (float[]){NAN, NAN, NAN, NAN});
  test_outcome_t *o = test_layer_run(p, &(test_run_t){0});
  CU_ASSERT_EQUAL(o->status, PURR_STATUS_OK);
  CU_ASSERT_TRUE(o->canaries_intact);
  for (int64_t t = 0; t < 8; t++)
    for (int64_t h = 0; h < 256; h++) {
      if (t == 5)
        CU_ASSERT_TRUE_FATAL(isnan(purr__fp32_from_bf16(o->output[t * 256 + h])))
      else
        CU_ASSERT_EQUAL_FATAL(o->output[t * 256 + h], plain->output[t * 256 + h]);
    }
  for (int64_t e = 2; e <= 6; e += 2)
    for (int64_t i = 0; i < 128 * 256; i++)
      CU_ASSERT_TRUE_FATAL(isfinite(o->d_gate[e * 128 * 256 + i]) && isfinite(o->d_up[e * 128 * 256 + i]) &&
                           isfinite(o->d_down[e * 128 * 256 + i]));
  test_outcome_free(o);
  test_outcome_free(plain);
  set_route(p, 5, (int64_t[]){2, 2, 2, 2}, (float[]){0.25f, 0.25f, 0.25f, 0.25f});
  check_exact("B07, duplicates", p, &(test_run_t){0});
  check_exact("B07, duplicates, two ranks", p, &(test_run_t){.ranks = 2});
  test_problem_free(p);
}

static void b09_uneven_counts(void) {
  static const int64_t counts[3][8] = {
      {128, 130, 65, 0, 0, 0, 0, 0}, {1, 0, 127, 1, 129, 0, 63, 2}, {65, 0, 130, 0, 0, 0, 0, 128}};
  for (int i = 0; i < 3; i++) {
    int64_t left[8], tokens = 0;
    for (int e = 0; e < 8; e++) tokens += left[e] = counts[i][e];
    test_problem_t *p = fixture(tokens, 8, 1);
    int64_t expert = 0;
    for (int64_t t = 0; t < tokens; t++) { /* interleaved */
      while (left[expert % 8] == 0) expert++;
      left[expert % 8]--;
      p->ids[t] = expert++ % 8;
    }
    check_exact("B09", p, &(test_run_t){0});
    check_exact("B09, small ring", p, &(test_run_t){.minibatch = 64, .macrobatch = 192});
    test_problem_free(p);
  }
}

static void b23_strides(void) {
  test_problem_t *p = fixture(33, 8, 2);
  check_exact("B23", p, &(test_run_t){.strided = true, .packed = true});
  check_exact("B23, two ranks", p, &(test_run_t){.strided = true, .packed = true, .ranks = 2});
  check_exact("B23, BF16 gradients", p, &(test_run_t){.strided = true, .bf16_gradients = true});
  test_problem_free(p);
}

/* With another number of threads each time. */
static void b25_repeat(test_problem_t *p) {
  const int num_repeats = test_is_emulated() ? 5 : 40;
  test_outcome_t *first = test_layer_run(p, &(test_run_t){0});
  int num_different = 0;
  for (int i = 0; i < num_repeats; i++) {
    test_outcome_t *again = test_layer_run(p, &(test_run_t){.threads = 1 + i % 5});
    num_different += again->status != PURR_STATUS_OK || test_outcome_hash(p, again) != test_outcome_hash(p, first);
    test_outcome_free(again);
  }
  CU_ASSERT_EQUAL(num_different, 0);
  test_outcome_free(first);
}

static void b25_sum_of_slots(void) {
  test_problem_t *p = fixture(8, 64, 8);
  set_all_routes(p, (int64_t[]){0, 8, 16, 24, 32, 40, 48, 56}, (float[]){256, 1, 1, 1, 1, 1, 1, 1});
  check_exact("B25", p, &(test_run_t){0});
  test_outcome_t *o = test_layer_run(p, &(test_run_t){.inference = true});
  for (int64_t t = 0; t < 8; t++)
    if (x_at(p, t, 2) == 1.0f) CU_ASSERT_EQUAL(purr__fp32_from_bf16(o->output[t * 256 + 2]), 264.0f);
  test_outcome_free(o);
  b25_repeat(p);
  test_problem_free(p);
  p = fixture(8, 64, 3);
  set_all_routes(p, (int64_t[]){0, 8, 16}, (float[]){1.0f, 1.0f / 512, -1.0f});
  check_exact("B25, cancellation", p, &(test_run_t){0});
  b25_repeat(p);
  test_problem_free(p);
}

static void b27_weight_applied_once(void) {
  test_problem_t *p = fixture(4, 8, 1);
  set_all_routes(p, (int64_t[]){3}, (float[]){0.5f});
  check_exact("B27", p, &(test_run_t){0});
  test_problem_free(p);
}

static void b29_zero_and_negative_weights(void) {
  test_problem_t *p = fixture(5, 8, 2);
  static const int64_t ids[5][2] = {{0, 4}, {1, 5}, {2, -1}, {-1, 7}, {3, 6}};
  for (int64_t t = 0; t < 5; t++) set_route(p, t, ids[t], (float[]){0.5f, 0.25f});
  set_route(p, 4, ids[4], (float[]){0.0f, 1.0f});
  check_exact("B29", p, &(test_run_t){0});
  check_exact("B29, two ranks", p, &(test_run_t){.ranks = 2});
  set_route(p, 4, ids[4], (float[]){-2.0f, 1.0f});
  test_outcome_t *o = test_layer_run(p, &(test_run_t){0}); /* ds has no division by s: right for s < 0 too */
  CU_ASSERT_EQUAL(o->d_topk_weights[8], 4.0f * x_at(p, 4, 1));
  test_outcome_free(o);
  test_problem_free(p);
}

static void b31_recycled_memory(void) {
  test_problem_t *p = fixture(5, 8, 2);
  for (int i = 0; i < 3; i++) check_exact("B31", p, &(test_run_t){.ranks = 1 + i % 2});
  test_problem_free(p);
}

static void b33_pairing_of_slots(void) {
  test_problem_t *p = fixture(2, 8, 4);
  set_route(p, 0, (int64_t[]){7, 6, 5, 4}, (float[]){1.0f, 0.5f, 0.25f, 0.125f});
  set_route(p, 1, (int64_t[]){4, 5, 6, 7}, (float[]){0.125f, 0.25f, 0.5f, 1.0f});
  check_exact("B33", p, &(test_run_t){0});
  check_exact("B33, two ranks", p, &(test_run_t){.ranks = 2});
  CU_ASSERT_EQUAL(scale_of(p, 0), 13.625);
  test_problem_free(p);
  p = fixture(2, 8, 2);
  set_route(p, 0, (int64_t[]){5, 2}, (float[]){0.25f, 0.5f});
  set_route(p, 1, (int64_t[]){2, 5}, (float[]){0.5f, 0.25f});
  check_exact("B33, K = 2", p, &(test_run_t){0});
  test_problem_free(p);
}

/* Every variant of the host's kernels that this CPU can run. */
static void s01_every_instruction_set(void) {
  static const char *const isas[] = {"baseline", "avx2", "avx512", "neon"};
  test_problem_t *p = test_fixture_f(130, 288, 160, 8, 2, 64);
  for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
    if (!purr__host_set_isa(isas[i])) continue;
    check_exact(isas[i], p, &(test_run_t){.ranks = 2});
    check_exact(isas[i], p, &(test_run_t){.precision = PURR_PRECISION_MXFP8, .bf16_gradients = true});
  }
  CU_ASSERT_TRUE(purr__host_set_isa("auto"));
  test_problem_free(p);
}

static void s03_shared_counted_once(void) {
  test_problem_t *p = test_fixture_f(8, 256, 128, 8, 2, 128);
  set_all_routes(p, (int64_t[]){1, 6}, (float[]){0.5f, 0.25f});
  CU_ASSERT_EQUAL(scale_of(p, 0), 18.75);
  for (int ranks = 1; ranks <= 4; ranks *= 2) check_exact("S03", p, &(test_run_t){.ranks = ranks});
  test_problem_free(p);
}

static void s05_uneven_split(void) {
  test_problem_t *p = fixture(4, 6, 1);
  test_outcome_t *o = test_layer_run(p, &(test_run_t){.ranks = 4});
  CU_ASSERT_EQUAL(o->status, PURR_STATUS_CONFIG);
  CU_ASSERT_PTR_NOT_NULL(strstr(o->err.message, "6"));
  CU_ASSERT_PTR_NOT_NULL(strstr(o->err.message, "4"));
  test_outcome_free(o);
  test_problem_free(p);
}

static void s17_counts_and_order_agree(void) {
  test_problem_t *p = fixture(40, 8, 4);
  for (int64_t t = 0; t < 40; t++)
    set_route(p, t, (int64_t[]){t % 8, t % 3 ? -1 : 5, t % 8, t % 5 ? 2 : -1}, (float[]){0.5f, 0.25f, 1.0f, 2.0f});
  check_exact("S17", p, &(test_run_t){.ranks = 2});
  test_problem_free(p);
}

static void ragged_ranks(void) {
  test_problem_t *p = fixture(50, 8, 2);
  check_exact("ragged", p, &(test_run_t){.ranks = 4, .tokens_of_rank = (int64_t[]){0, 33, 1, 16}});
  check_exact("one rank has all", p, &(test_run_t){.ranks = 2, .tokens_of_rank = (int64_t[]){0, 50}});
  test_problem_free(p);
}

int main(void) {
  return test_layer_main("fixture F", (purr_test_t[]){{"sizes and layouts", sizes_and_layouts},
                                                      {"small rings and replay", small_rings_and_replay},
                                                      {"shared expert", shared_expert},
                                                      {"MXFP8 and B21", mxfp8},
                                                      {"B01 empty experts", b01_empty_experts},
                                                      {"B03 all tokens to one expert", b03_all_to_one_expert},
                                                      {"B05 dropped and bad ids", b05_dropped_and_bad_ids},
                                                      {"B07 duplicates and NaN", b07_duplicates_and_nan},
                                                      {"B09 uneven counts", b09_uneven_counts},
                                                      {"B23 strides", b23_strides},
                                                      {"B25 sum of slots", b25_sum_of_slots},
                                                      {"B27 router weight applied once", b27_weight_applied_once},
                                                      {"B29 zero and negative weights", b29_zero_and_negative_weights},
                                                      {"B31 recycled memory", b31_recycled_memory},
                                                      {"B33 pairing of slots", b33_pairing_of_slots},
                                                      {"S01 every instruction set", s01_every_instruction_set},
                                                      {"S03 shared expert counted once", s03_shared_counted_once},
                                                      {"S05 uneven expert split", s05_uneven_split},
                                                      {"S17 counts and order agree", s17_counts_and_order_agree},
                                                      {"ragged ranks", ragged_ranks},
                                                      {0}});
}
