/* The problems that the layer tests run. */
#include <math.h>
#include <stdlib.h>

#include "support/layer.h"

test_problem_t *test_problem_create(int64_t tokens, int64_t hidden, int64_t inner, int64_t experts, int64_t top_k,
                                    int64_t shared, bool shared_gate) {
  test_problem_t *p = calloc(1, sizeof *p);
  *p = (test_problem_t){.tokens = tokens,
                        .hidden = hidden,
                        .inner = inner,
                        .experts = experts,
                        .top_k = top_k,
                        .shared = shared,
                        .shared_gate = shared_gate};
  const size_t bf16 = sizeof(purr__bf16_t);
  p->x = calloc((size_t)(tokens * hidden) + 1, bf16);
  p->d_output = calloc((size_t)(tokens * hidden) + 1, bf16);
  p->ids = calloc((size_t)(tokens * top_k) + 1, sizeof *p->ids);
  p->topk_weights = calloc((size_t)(tokens * top_k) + 1, sizeof *p->topk_weights);
  p->gate = calloc((size_t)(experts * inner * hidden), bf16);
  p->up = calloc((size_t)(experts * inner * hidden), bf16);
  p->down = calloc((size_t)(experts * inner * hidden), bf16);
  p->s_gate = calloc((size_t)(shared * hidden) + 1, bf16);
  p->s_up = calloc((size_t)(shared * hidden) + 1, bf16);
  p->s_down = calloc((size_t)(shared * hidden) + 1, bf16);
  p->z = calloc((size_t)hidden, bf16);
  return p;
}

void test_problem_free(test_problem_t *p) {
  free(p->x);
  free(p->d_output);
  free(p->ids);
  free(p->topk_weights);
  free(p->gate);
  free(p->up);
  free(p->down);
  free(p->s_gate);
  free(p->s_up);
  free(p->s_down);
  free(p->z);
  free(p);
}

/* One scaler expert: gate 32 in column 0, up the identity modulo H, down m/32 on the diagonal. */
static void scaler_expert(purr__bf16_t *gate, purr__bf16_t *up, purr__bf16_t *down, int64_t hidden, int64_t inner,
                          float m) {
  for (int64_t i = 0; i < inner; i++) {
    gate[i * hidden] = purr__bf16_from_fp32(32.0f);
    up[i * hidden + i % hidden] = purr__bf16_from_fp32(1.0f);
    if (i < hidden) down[i * inner + i] = purr__bf16_from_fp32(m / 32.0f);
  }
}

test_problem_t *test_fixture_f(int64_t tokens, int64_t hidden, int64_t inner, int64_t experts, int64_t top_k,
                               int64_t shared) {
  static const float v[4] = {-2.0f, -1.0f, 1.0f, 2.0f};
  test_problem_t *p = test_problem_create(tokens, hidden, inner, experts, top_k, shared, false);
  for (int64_t e = 0; e < experts; e++)
    scaler_expert(p->gate + e * inner * hidden, p->up + e * inner * hidden, p->down + e * inner * hidden, hidden, inner,
                  (float)(e % 8 + 1));
  if (shared > 0) scaler_expert(p->s_gate, p->s_up, p->s_down, hidden, shared, 16.0f);
  for (int64_t t = 0; t < tokens; t++) {
    for (int64_t h = 0; h < hidden; h++) p->x[t * hidden + h] = purr__bf16_from_fp32(h == 0 ? 1.0f : v[(t + h) % 4]);
    p->d_output[t * hidden + 1] = purr__bf16_from_fp32(1.0f);
    for (int64_t k = 0; k < top_k; k++) {
      p->ids[t * top_k + k] = (t + 3 * k) % experts;
      p->topk_weights[t * top_k + k] = top_k == 1 ? 1.0f : ldexpf(0.5f, -(int)k);
    }
  }
  return p;
}

uint64_t test_random_bits(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* The sum of twelve uniforms less six: near enough to normal, and the same bits everywhere. */
float test_random_normal(uint64_t *state) {
  int64_t sum = 0;
  for (int i = 0; i < 6; i++) {
    const uint64_t bits = test_random_bits(state);
    sum += (int64_t)(bits & 0xFFFFFF) + (int64_t)(bits >> 40);
  }
  return (float)(sum - 6 * (1 << 24)) / (float)(1 << 24);
}

static void fill_normal(purr__bf16_t *values, int64_t num, float scale, uint64_t *state) {
  for (int64_t i = 0; i < num; i++) values[i] = purr__bf16_from_fp32(scale * test_random_normal(state));
}

test_problem_t *test_random(uint64_t seed, int64_t tokens, int64_t hidden, int64_t inner, int64_t experts,
                            int64_t top_k, int64_t shared, bool shared_gate) {
  test_problem_t *p = test_problem_create(tokens, hidden, inner, experts, top_k, shared, shared_gate);
  const float to_hidden = 1.0f / sqrtf((float)hidden), to_inner = 1.0f / sqrtf((float)inner);
  fill_normal(p->x, tokens * hidden, 1.0f, &seed);
  fill_normal(p->d_output, tokens * hidden, 1.0f, &seed);
  fill_normal(p->gate, experts * inner * hidden, to_hidden, &seed);
  fill_normal(p->up, experts * inner * hidden, to_hidden, &seed);
  fill_normal(p->down, experts * inner * hidden, to_inner, &seed);
  fill_normal(p->s_gate, shared * hidden, to_hidden, &seed);
  fill_normal(p->s_up, shared * hidden, to_hidden, &seed);
  if (shared > 0) fill_normal(p->s_down, shared * hidden, 1.0f / sqrtf((float)shared), &seed);
  fill_normal(p->z, hidden, to_hidden, &seed);
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t k = 0; k < top_k; k++) {
      int64_t *ids = p->ids + t * top_k;
      bool again = true;
      while (again) {
        ids[k] = (int64_t)(test_random_bits(&seed) % (uint64_t)experts);
        again = false;
        for (int64_t j = 0; j < k && k < experts; j++) again = again || ids[j] == ids[k];
      }
      p->topk_weights[t * top_k + k] = 0.3f * test_random_normal(&seed);
    }
  return p;
}
