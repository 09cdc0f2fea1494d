/* The host backend's exp, sigmoid, SwiGLU and sums over slots: accuracy against long double where that is the claim,
 * and bits against the formulas of backends/host/math.h, written here as plain scalar loops. */
#include <fenv.h>
#include <stdlib.h>

#include "support/host_math.h"

static float widen(purr__bf16_t x) { return purr__fp32_from_bf16(x); }

static float rounded(float x) { return purr__fp32_from_bf16(purr__bf16_from_fp32(x)); }

/* ---- exp and sigmoid ---- */

/* The error in units of the last place of `exact`, a positive number. */
static double ulps(float got, long double exact) {
  int exponent;
  frexpl(exact, &exponent);
  return (double)(fabsl((long double)got - exact) / ldexpl(1.0L, exponent - 24 < -149 ? -149 : exponent - 24));
}

enum { SWEEP_STEP = 1021 }; /* between the bit patterns tried: about 600 thousand numbers */

/* Calls check for numbers of both signs, from those where e^x is 1 to those where it is infinite or 0. */
static void sweep(void (*check)(float x)) {
  for (uint32_t bits = 0x32000000u; bits < 0x42D80000u; bits += SWEEP_STEP) {
    check(purr__fp32_from_bits(bits));
    check(purr__fp32_from_bits(bits | 0x80000000u));
  }
}

static double worst;
static uint64_t sweep_hash;

static void exp_of(float x) {
  const float e = purr__host_exp(x);
  sweep_hash = test_hash(sweep_hash, &e, sizeof e);
}

static void sigmoid_of(float x) {
  const float s = purr__host_sigmoid(x);
  sweep_hash = test_hash(sweep_hash, &s, sizeof s);
}

static void exp_error_of(float x) {
  const long double exact = expl((long double)x);
  if (exact >= 0x1.ffffffp127L) {
    CU_ASSERT(isinf(purr__host_exp(x)));
    return;
  }
  worst = fmax(worst, ulps(purr__host_exp(x), exact));
}

static void sigmoid_error_of(float x) {
  worst = fmax(worst, ulps(purr__host_sigmoid(x), 1.0L / (1.0L + expl(-(long double)x))));
}

static void exp_is_accurate(void) {
  worst = 0;
  sweep(exp_error_of);
  CU_ASSERT(worst <= 1.0);
  if (worst > 1.0) fprintf(stderr, "exp is off by %.3f ulp\n", worst);
}

/* e and 1 + e carry one rounding each beyond the two of the contract's formula, so three last places are the bound. */
static void sigmoid_is_accurate(void) {
  worst = 0;
  sweep(sigmoid_error_of);
  CU_ASSERT(worst <= 3.0);
  if (worst > 3.0) fprintf(stderr, "sigmoid is off by %.3f ulp\n", worst);
}

static void known_sweep(void) {
  sweep_hash = TEST_HASH_START;
  sweep(exp_of);
  sweep(sigmoid_of);
  if (sweep_hash != 0xB15CA55B61DBF72Eu)
    fprintf(stderr, "%s: hash 0x%llX\n", purr__host_isa(), (unsigned long long)sweep_hash);
  CU_ASSERT_EQUAL(sweep_hash, 0xB15CA55B61DBF72Eu);
}

static void exp_has_known_bits(void) { test_every_isa(known_sweep); }

/* e^x must not fall where x rises, among the numbers where the results become subnormal, 0 and infinite. */
static void exp_is_monotone_around(float x) {
  const uint32_t middle = purr__fp32_bits(x);
  float last = purr__host_exp(purr__fp32_from_bits(x < 0 ? middle + 20000 : middle - 20000));
  for (uint32_t i = 0; i <= 40000; i++) {
    const float e = purr__host_exp(purr__fp32_from_bits(x < 0 ? middle + 20000 - i : middle - 20000 + i));
    if (e < last) {
      CU_FAIL("exp falls");
      return;
    }
    last = e;
  }
}

static void check_exp_ends(void) {
  exp_is_monotone_around(88.722839f);
  exp_is_monotone_around(-87.336544f);
  exp_is_monotone_around(-103.97208f);
  CU_ASSERT_EQUAL(purr__host_exp(0.0f), 1.0f);
  CU_ASSERT_EQUAL(purr__host_exp(-0.0f), 1.0f);
  CU_ASSERT(isfinite(purr__host_exp(0x1.62e42ep+6f))); /* the last one whose power is a number */
  const float above[] = {0x1.62e43p+6f, 89.0f, 1000.0f, FLT_MAX, INFINITY};
  for (size_t i = 0; i < sizeof above / sizeof *above; i++) CU_ASSERT(isinf(purr__host_exp(above[i])));
  const float below[] = {-104.0f, -1000.0f, -FLT_MAX, -INFINITY};
  for (size_t i = 0; i < sizeof below / sizeof *below; i++)
    CU_ASSERT_EQUAL(purr__fp32_bits(purr__host_exp(below[i])), 0);
  CU_ASSERT_EQUAL(purr__host_exp(-103.9f), 0x1p-149f);
  CU_ASSERT_EQUAL(purr__fp32_bits(purr__host_exp(purr__fp32_from_bits(0xFF800001u))), PURR__FP32_NAN);
  CU_ASSERT_EQUAL(purr__host_sigmoid(0.0f), 0.5f);
  CU_ASSERT_EQUAL(purr__host_sigmoid(INFINITY), 1.0f);
  CU_ASSERT_EQUAL(purr__host_sigmoid(100.0f), 1.0f);
  CU_ASSERT_EQUAL(purr__fp32_bits(purr__host_sigmoid(-INFINITY)), 0);
  CU_ASSERT(purr__host_sigmoid(-100.0f) > 0.0f); /* a subnormal number */
  CU_ASSERT_EQUAL(purr__fp32_bits(purr__host_sigmoid(-NAN)), PURR__FP32_NAN);
}

static void exp_ends_well(void) { test_every_isa(check_exp_ends); }

/* ---- SwiGLU ---- */

static float clamped_gate(float g, float limit) { return limit > 0 && g > limit ? limit : g; }

static float clamped_up(float u, float limit) {
  if (limit > 0 && u > limit) return limit;
  return limit > 0 && u < -limit ? -limit : u;
}

static float silu(float g) { return g * purr__host_sigmoid(g); }

static purr__bf16_t expected_swiglu(purr__bf16_t g, purr__bf16_t u, float limit) {
  return purr__bf16_from_fp32(silu(clamped_gate(widen(g), limit)) * clamped_up(widen(u), limit));
}

static void fill(purr__bf16_t *x, int64_t num, test_values_t values, uint64_t *random) {
  for (int64_t i = 0; i < num; i++) x[i] = purr__bf16_from_fp32(3.0f * test_value(random, values));
}

enum { MAX_NUM = 210, GUARD = 0x5A5A };

static const float limits[] = {0.0f, 1.5f, 7.0f, INFINITY};

static void check_swiglu(void) {
  uint64_t random = 11;
  for (int64_t num = 0; num < MAX_NUM; num++) {
    purr__bf16_t *g = malloc((size_t)num * 2 + 1), *u = malloc((size_t)num * 2 + 1), a[MAX_NUM + 1];
    CU_ASSERT_FATAL(g != NULL && u != NULL);
    fill(g, num, (test_values_t)(num % 3), &random);
    fill(u, num, (test_values_t)(num % 3), &random);
    a[num] = GUARD;
    purr__host_swiglu(g, u, num, limits[num % 4], a);
    for (int64_t i = 0; i < num; i++) CU_ASSERT_EQUAL(a[i], expected_swiglu(g[i], u[i], limits[num % 4]));
    CU_ASSERT_EQUAL(a[num], GUARD);
    free(g);
    free(u);
  }
}

static void swiglu_follows_the_formula(void) { test_every_isa(check_swiglu); }

/* Every BF16 gate, beside an up of 1, 0 and infinity. */
static void check_all_gates(void) {
  static purr__bf16_t g[65536], u[65536], a[65536];
  static const purr__bf16_t ups[] = {0x3F80, 0x8000, 0x7F80};
  for (int j = 0; j < 3; j++) {
    for (uint32_t i = 0; i < 65536; i++) g[i] = (purr__bf16_t)i, u[i] = ups[j];
    purr__host_swiglu(g, u, 65536, 0.0f, a);
    bool equal = true;
    for (uint32_t i = 0; i < 65536; i++) equal = equal && a[i] == expected_swiglu(g[i], u[i], 0.0f);
    CU_ASSERT(equal);
  }
}

static void swiglu_takes_every_gate(void) { test_every_isa(check_all_gates); }

static void check_swiglu_ends(void) {
  const float g[] = {NAN, 1.0f, INFINITY, -INFINITY, 9.0f, 9.0f, 1.0f, 1.0f};
  const float u[] = {1.0f, NAN, 2.0f, 1.0f, 20.0f, -20.0f, 7.0f, -7.0f};
  purr__bf16_t gate[8], up[8], a[8], limited[8];
  for (int i = 0; i < 8; i++) gate[i] = purr__bf16_from_fp32(g[i]), up[i] = purr__bf16_from_fp32(u[i]);
  purr__host_swiglu(gate, up, 8, 0.0f, a);
  purr__host_swiglu(gate, up, 8, 7.0f, limited);
  CU_ASSERT_EQUAL(a[0], PURR__BF16_NAN);
  CU_ASSERT_EQUAL(limited[0], PURR__BF16_NAN);
  CU_ASSERT_EQUAL(limited[1], PURR__BF16_NAN);
  CU_ASSERT(isinf(widen(a[2])));
  CU_ASSERT_EQUAL(widen(limited[2]), rounded(silu(7.0f) * 2.0f));
  CU_ASSERT_EQUAL(a[3], PURR__BF16_NAN); /* -inf times a sigmoid of 0, as the formula says */
  CU_ASSERT_EQUAL(widen(limited[4]), rounded(silu(7.0f) * 7.0f));
  CU_ASSERT_EQUAL(widen(limited[5]), rounded(silu(7.0f) * -7.0f));
  CU_ASSERT_EQUAL(limited[6], a[6]); /* at the limit nothing happens */
  CU_ASSERT_EQUAL(limited[7], a[7]);
}

static void swiglu_ends_well(void) { test_every_isa(check_swiglu_ends); }

/* ---- its backward ---- */

typedef struct gradients {
  purr__bf16_t d_gate[MAX_NUM + 1], d_up[MAX_NUM + 1], scaled_a[MAX_NUM + 1];
  float d_weight;
} gradients_t;

static gradients_t expected_gradients(const purr__bf16_t *g, const purr__bf16_t *u, const float *d_a1, float weight,
                                      float limit, int64_t num) {
  gradients_t out = {.d_weight = 0};
  for (int64_t block = 0; block < num; block += 64) {
    float lanes[16] = {0};
    for (int64_t i = block; i < block + 64 && i < num; i++) {
      const float gate = clamped_gate(widen(g[i]), limit), up = clamped_up(widen(u[i]), limit);
      const float a = rounded(silu(gate) * up), d_a = weight * d_a1[i], sigmoid = purr__host_sigmoid(gate);
      const float slope = sigmoid * fmaf(gate, 1.0f - sigmoid, 1.0f);
      const bool gate_clipped = limit > 0 && widen(g[i]) > limit, up_clipped = limit > 0 && fabsf(widen(u[i])) > limit;
      lanes[i % 16] = fmaf(d_a1[i], a, lanes[i % 16]);
      out.d_gate[i] = purr__bf16_from_fp32(gate_clipped ? 0.0f : d_a * up * slope);
      out.d_up[i] = purr__bf16_from_fp32(up_clipped ? 0.0f : d_a * silu(gate));
      out.scaled_a[i] = purr__bf16_from_fp32(weight * a);
    }
    for (int i = 0; i < 8; i++) lanes[i] += lanes[i + 8];
    for (int i = 0; i < 4; i++) lanes[i] += lanes[i + 4];
    out.d_weight += (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
  }
  out.d_weight = purr__canonical_fp32(out.d_weight);
  out.d_gate[num] = out.d_up[num] = out.scaled_a[num] = GUARD;
  return out;
}

static void check_backward(void) {
  static const float weights[] = {0.0f, 1.0f, -0.37f, 1e-30f};
  uint64_t random = 12;
  for (int64_t num = 0; num < MAX_NUM; num++) {
    purr__bf16_t *g = malloc((size_t)num * 2 + 1), *u = malloc((size_t)num * 2 + 1);
    float *d_a1 = malloc((size_t)num * 4 + 1);
    CU_ASSERT_FATAL(g != NULL && u != NULL && d_a1 != NULL);
    fill(g, num, (test_values_t)(num % 3), &random);
    fill(u, num, (test_values_t)(num % 3), &random);
    for (int64_t i = 0; i < num; i++) d_a1[i] = test_value(&random, (test_values_t)(num % 3));
    const float weight = weights[num / 4 % 4], limit = limits[num % 4];
    const gradients_t want = expected_gradients(g, u, d_a1, weight, limit, num);
    gradients_t got = {.d_weight = NAN};
    got.d_gate[num] = got.d_up[num] = got.scaled_a[num] = GUARD;
    got.d_weight = purr__host_swiglu_backward(g, u, d_a1, weight, limit, num, got.d_gate, got.d_up, got.scaled_a);
    const size_t bytes = (size_t)(num + 1) * sizeof *got.d_gate;
    CU_ASSERT_EQUAL(memcmp(got.d_gate, want.d_gate, bytes), 0);
    CU_ASSERT_EQUAL(memcmp(got.d_up, want.d_up, bytes), 0);
    CU_ASSERT_EQUAL(memcmp(got.scaled_a, want.scaled_a, bytes), 0);
    CU_ASSERT_EQUAL(purr__fp32_bits(got.d_weight), purr__fp32_bits(want.d_weight));
    const float without = purr__host_swiglu_backward(g, u, d_a1, weight, limit, num, got.d_gate, got.d_up, NULL);
    CU_ASSERT_EQUAL(purr__fp32_bits(without), purr__fp32_bits(want.d_weight));
    free(g);
    free(u);
    free(d_a1);
  }
}

static void backward_follows_the_formulas(void) { test_every_isa(check_backward); }

/* The formulas themselves: close to the differences of silu(g) * u in double. BF16 results, so half of 2^-8 relative,
 * plus what cancellation near the minimum of silu (g = -1.28) takes. */
static void backward_is_the_derivative(void) {
  for (float g = -20.0f; g <= 20.0f; g += 0.25f) {
    const purr__bf16_t gate = purr__bf16_from_fp32(g), up = purr__bf16_from_fp32(1.5f);
    const float d_a1 = 2.0f;
    purr__bf16_t d_gate, d_up;
    purr__host_swiglu_backward(&gate, &up, &d_a1, 0.5f, 0.0f, 1, &d_gate, &d_up, NULL);
    const double x = (double)widen(gate), step = 1e-5;
    const double left = (x - step) / (1.0 + exp(step - x)), right = (x + step) / (1.0 + exp(-x - step));
    const double d_silu = (right - left) / (2 * step);
    CU_ASSERT_DOUBLE_EQUAL((double)widen(d_gate), 1.5 * d_silu, 1.5 * fabs(d_silu) * 0x1p-8 + 1e-7);
    CU_ASSERT_DOUBLE_EQUAL((double)widen(d_up), x / (1.0 + exp(-x)), fabs(x) / (1.0 + exp(-x)) * 0x1p-8);
  }
}

/* ---- sums over slots, and scaling ---- */

static void check_slot_sum(void) {
  enum { MAX_SLOTS = 9 };
  uint64_t random = 13;
  for (int64_t num = 0; num < 70; num++) {
    purr__bf16_t base[70], rows[MAX_SLOTS][70], out[71];
    const purr__bf16_t *pointers[MAX_SLOTS];
    float weights[MAX_SLOTS];
    const int num_slots = (int)(num % (MAX_SLOTS + 1));
    fill(base, num, (test_values_t)(num % 3), &random);
    for (int k = 0; k < num_slots; k++) {
      fill(rows[k], num, (test_values_t)(num % 3), &random);
      const bool is_dropped = test_random_bits(&random) % 4 == 0;
      pointers[k] = is_dropped ? NULL : rows[k];
      weights[k] = is_dropped ? NAN : test_random_normal(&random);
    }
    /* Equal and opposite: what is left is the rounding of the first product, and nothing if the second rounds too. */
    if (num_slots == 2) pointers[0] = pointers[1] = rows[0], weights[0] = 0.3f, weights[1] = -0.3f;
    for (int form = 0; form < 4; form++) {
      out[num] = GUARD;
      purr__host_slot_sum(form & 1 ? base : NULL, pointers, form & 2 ? weights : NULL, num_slots, num, out);
      for (int64_t i = 0; i < num; i++) {
        float sum = form & 1 ? widen(base[i]) : 0.0f;
        for (int k = 0; k < num_slots; k++)
          if (pointers[k] != NULL)
            sum = form & 2 ? fmaf(weights[k], widen(pointers[k][i]), sum) : sum + widen(pointers[k][i]);
        CU_ASSERT_EQUAL(out[i], purr__bf16_from_fp32(sum));
      }
      CU_ASSERT_EQUAL(out[num], GUARD);
    }
  }
}

static void slot_sums_follow_the_order(void) { test_every_isa(check_slot_sum); }

static void check_scale(void) {
  uint64_t random = 14;
  for (int64_t num = 0; num < 70; num++) {
    purr__bf16_t in[70], out[71];
    fill(in, num, (test_values_t)(num % 3), &random);
    memcpy(out, in, sizeof in);
    out[num] = GUARD;
    purr__host_scale(out, 0.3f, num, out);
    for (int64_t i = 0; i < num; i++) CU_ASSERT_EQUAL(out[i], purr__bf16_from_fp32(0.3f * widen(in[i])));
    CU_ASSERT_EQUAL(out[num], GUARD);
  }
}

static void scales_in_place(void) { test_every_isa(check_scale); }

/* ---- the caller's floating-point mode ---- */

static void callers_rounding_does_not_matter(void) {
  fesetround(FE_DOWNWARD);
  const float e = purr__host_exp(1.0f), s = purr__host_sigmoid(1.0f);
  CU_ASSERT_EQUAL(fegetround(), FE_DOWNWARD);
  fesetround(FE_TONEAREST);
  CU_ASSERT_EQUAL(e, purr__host_exp(1.0f));
  CU_ASSERT_EQUAL(s, purr__host_sigmoid(1.0f));
}

#if defined(__SSE2__)
#include <xmmintrin.h>

/* As code built with -ffast-math leaves its threads. */
static void callers_flush_to_zero_does_not_matter(void) {
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040u);
  const float tiny = purr__host_exp(-100.0f);
  const purr__bf16_t smallest[2] = {0x0001, 0x0001};
  const purr__bf16_t *rows[1] = {smallest};
  purr__bf16_t sum[2];
  purr__host_slot_sum(smallest, rows, NULL, 1, 2, sum);
  CU_ASSERT_EQUAL(_mm_getcsr() & 0x8040u, 0x8040u);
  _mm_setcsr(saved);
  CU_ASSERT_EQUAL(purr__fp32_bits(tiny), purr__fp32_bits(purr__host_exp(-100.0f)));
  CU_ASSERT(tiny > 0.0f);
  CU_ASSERT_EQUAL(sum[0], 0x0002);
}
#endif

int main(void) {
  const purr_test_t tests[] = {
    {"exp is within 1 ulp", exp_is_accurate},
    {"sigmoid is within 3 ulp", sigmoid_is_accurate},
    {"exp and sigmoid have known bits", exp_has_known_bits},
    {"exp and sigmoid end well", exp_ends_well},
    {"swiglu follows the formula", swiglu_follows_the_formula},
    {"swiglu takes every gate", swiglu_takes_every_gate},
    {"swiglu ends well", swiglu_ends_well},
    {"swiglu's backward follows the formulas", backward_follows_the_formulas},
    {"swiglu's backward is the derivative", backward_is_the_derivative},
    {"slot sums follow the order", slot_sums_follow_the_order},
    {"scaling in place", scales_in_place},
    {"the caller's rounding mode", callers_rounding_does_not_matter},
#if defined(__SSE2__)
    {"the caller's flush to zero", callers_flush_to_zero_does_not_matter},
#endif
    {0},
  };
  return purr_test_main("host math", tests);
}
