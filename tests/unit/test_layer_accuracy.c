/* Accuracy of both passes against two references in float64: one with the contract's rounding points (every bf16() of
 * section "Numerics"), whose only difference is the order and precision of sums, and one that never rounds.
 * Bounds, as relative L2 error: 0.1 % and 0.5 %. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "support/layer.h"
#include "support/main.h"

typedef struct reference {
  bool rounds;
  double *output, *d_x, *d_topk_weights, *d_gate, *d_up, *d_down, *d_s_gate, *d_s_up, *d_s_down, *d_z;
} reference_t;

static double wide(purr__bf16_t value) { return purr__fp32_from_bf16(value); }
static double bf16(const reference_t *r, double value) {
  return r->rounds ? (double)purr__fp32_from_bf16(purr__bf16_from_fp32((float)value)) : value;
}
static double sigmoid(double v) { return 1.0 / (1.0 + exp(-v)); }

/* One expert on one token. Adds weight * y to `y_sum` unless it is NULL, and gradients where d_output is given. */
typedef struct expert {
  const purr__bf16_t *gate, *up, *down;
  int64_t inner;
  double *d_gate, *d_up, *d_down;
} expert_t;

/* y = the expert's result. */
static void expert_forward(const reference_t *r, const test_problem_t *p, const expert_t *e, const purr__bf16_t *x,
                           double *g, double *u, double *a, double *y) {
  const double limit = p->swiglu_limit;
  for (int64_t i = 0; i < e->inner; i++) {
    g[i] = u[i] = 0.0;
    for (int64_t h = 0; h < p->hidden; h++) {
      g[i] += wide(x[h]) * wide(e->gate[i * p->hidden + h]);
      u[i] += wide(x[h]) * wide(e->up[i * p->hidden + h]);
    }
    g[i] = bf16(r, g[i]);
    u[i] = bf16(r, u[i]);
    const double gc = limit > 0 ? fmin(g[i], limit) : g[i], uc = limit > 0 ? fmax(fmin(u[i], limit), -limit) : u[i];
    a[i] = bf16(r, gc * sigmoid(gc) * uc);
  }
  for (int64_t h = 0; h < p->hidden; h++) {
    y[h] = 0.0;
    for (int64_t i = 0; i < e->inner; i++) y[h] += a[i] * wide(e->down[h * e->inner + i]);
    y[h] = bf16(r, y[h]);
  }
}

/* dx of the row; returns ds. */
static double expert_backward(const reference_t *r, const test_problem_t *p, const expert_t *e, const purr__bf16_t *x,
                              const purr__bf16_t *d_output, double weight, const double *g, const double *u,
                              const double *a, double *d_x) {
  const double limit = p->swiglu_limit;
  double ds = 0.0;
  for (int64_t h = 0; h < p->hidden; h++) d_x[h] = 0.0;
  for (int64_t i = 0; i < e->inner; i++) {
    double d_a1 = 0.0;
    for (int64_t h = 0; h < p->hidden; h++) d_a1 += wide(d_output[h]) * wide(e->down[h * e->inner + i]);
    ds += d_a1 * a[i];
    const double gc = limit > 0 ? fmin(g[i], limit) : g[i], uc = limit > 0 ? fmax(fmin(u[i], limit), -limit) : u[i];
    const double s = sigmoid(gc), d_a = weight * d_a1;
    double d_g = bf16(r, d_a * uc * s * (1.0 + gc * (1.0 - s))), d_u = bf16(r, d_a * gc * s);
    if (limit > 0 && g[i] > limit) d_g = 0.0;
    if (limit > 0 && (u[i] > limit || u[i] < -limit)) d_u = 0.0;
    const double scaled = bf16(r, weight * a[i]);
    for (int64_t h = 0; h < p->hidden; h++) {
      d_x[h] += d_g * wide(e->gate[i * p->hidden + h]) + d_u * wide(e->up[i * p->hidden + h]);
      e->d_gate[i * p->hidden + h] += d_g * wide(x[h]);
      e->d_up[i * p->hidden + h] += d_u * wide(x[h]);
      e->d_down[h * e->inner + i] += scaled * wide(d_output[h]);
    }
  }
  return ds;
}

static void run_reference(const test_problem_t *p, reference_t *r) {
  const int64_t inner = p->inner > p->shared ? p->inner : p->shared, slice = p->inner * p->hidden;
  double *g = malloc((size_t)inner * sizeof *g), *u = malloc((size_t)inner * sizeof *u);
  double *a = malloc((size_t)inner * sizeof *a), *y = malloc((size_t)p->hidden * sizeof *y);
  for (int64_t t = 0; t < p->tokens; t++) {
    const purr__bf16_t *x = p->x + t * p->hidden, *d_output = p->d_output + t * p->hidden;
    double *out = r->output + t * p->hidden, *d_x = r->d_x + t * p->hidden;
    if (p->shared > 0) {
      const expert_t e = {p->s_gate, p->s_up, p->s_down, p->shared, r->d_s_gate, r->d_s_up, r->d_s_down};
      double z = 1.0, logit = 0.0;
      for (int64_t h = 0; h < p->hidden; h++) logit += wide(x[h]) * wide(p->z[h]);
      if (p->shared_gate) z = sigmoid(logit);
      expert_forward(r, p, &e, x, g, u, a, y);
      for (int64_t h = 0; h < p->hidden; h++) out[h] = bf16(r, z * y[h]);
      const double d_logit = expert_backward(r, p, &e, x, d_output, z, g, u, a, y) * z * (1.0 - z);
      for (int64_t h = 0; h < p->hidden; h++) {
        const bool gated = p->shared_gate;
        d_x[h] = bf16(r, y[h] + (gated ? d_logit * wide(p->z[h]) : 0.0));
        if (gated) r->d_z[h] += d_logit * wide(x[h]);
      }
    }
    for (int64_t k = 0; k < p->top_k; k++) {
      const int64_t id = p->ids[t * p->top_k + k];
      const double weight = p->topk_weights[t * p->top_k + k];
      if (id < 0) continue;
      const expert_t e = {p->gate + id * slice,   p->up + id * slice,   p->down + id * slice,  p->inner,
                          r->d_gate + id * slice, r->d_up + id * slice, r->d_down + id * slice};
      expert_forward(r, p, &e, x, g, u, a, y);
      for (int64_t h = 0; h < p->hidden; h++) out[h] += weight * y[h];
      r->d_topk_weights[t * p->top_k + k] = expert_backward(r, p, &e, x, d_output, weight, g, u, a, y);
      for (int64_t h = 0; h < p->hidden; h++) d_x[h] += bf16(r, y[h]);
    }
    for (int64_t h = 0; h < p->hidden; h++) {
      out[h] = bf16(r, out[h]);
      d_x[h] = bf16(r, d_x[h]);
    }
  }
  free(g);
  free(u);
  free(a);
  free(y);
}

static double *zeros(int64_t num) { return calloc((size_t)num + 1, sizeof(double)); }

static double error_fp32(const float *got, const double *wanted, int64_t num) {
  double difference = 0.0, norm = 0.0;
  for (int64_t i = 0; i < num; i++) {
    difference += (got[i] - wanted[i]) * (got[i] - wanted[i]);
    norm += wanted[i] * wanted[i];
  }
  return norm > 0.0 ? sqrt(difference / norm) : difference == 0.0 ? 0.0 : INFINITY;
}

static double error_bf16(const purr__bf16_t *got, const double *wanted, int64_t num) {
  float *values = malloc(((size_t)num + 1) * sizeof *values);
  for (int64_t i = 0; i < num; i++) values[i] = purr__fp32_from_bf16(got[i]);
  const double error = error_fp32(values, wanted, num);
  free(values);
  return error;
}

static void check(const test_problem_t *p, const test_outcome_t *o, bool rounds, double bound) {
  const int64_t hidden = p->tokens * p->hidden, weights = p->experts * p->inner * p->hidden;
  const int64_t shared = p->shared * p->hidden;
  reference_t r = {rounds,         zeros(hidden),  zeros(hidden),   zeros(p->tokens * p->top_k),
                   zeros(weights), zeros(weights), zeros(weights),  zeros(shared),
                   zeros(shared),  zeros(shared),  zeros(p->hidden)};
  run_reference(p, &r);
  const struct {
    const char *name;
    double error;
  } all[] = {{"output", error_bf16(o->output, r.output, hidden)},
             {"d_x", error_bf16(o->d_x, r.d_x, hidden)},
             {"d_topk_weights", error_fp32(o->d_topk_weights, r.d_topk_weights, p->tokens * p->top_k)},
             {"d_gate", error_fp32(o->d_gate, r.d_gate, weights)},
             {"d_up", error_fp32(o->d_up, r.d_up, weights)},
             {"d_down", error_fp32(o->d_down, r.d_down, weights)},
             {"d_shared_gate", error_fp32(o->d_s_gate, r.d_s_gate, shared)},
             {"d_shared_up", error_fp32(o->d_s_up, r.d_s_up, shared)},
             {"d_shared_down", error_fp32(o->d_s_down, r.d_s_down, shared)},
             {"d_shared_expert_gate", p->shared_gate ? error_fp32(o->d_z, r.d_z, p->hidden) : 0.0}};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    if (!(all[i].error <= bound))
      fprintf(stderr, "%s: relative L2 error %.3g, allowed %.3g\n", all[i].name, all[i].error, bound);
    CU_ASSERT_TRUE(all[i].error <= bound);
  }
  double *const arrays[] = {r.output, r.d_x,      r.d_topk_weights, r.d_gate,   r.d_up,
                            r.d_down, r.d_s_gate, r.d_s_up,         r.d_s_down, r.d_z};
  for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) free(arrays[i]);
}

static void compare(int64_t shared, bool shared_gate, float limit, uint64_t seed) {
  test_problem_t *p = test_random(seed, 200, 128, 72, 8, 2, shared, shared_gate);
  p->swiglu_limit = limit;
  test_outcome_t *o = test_layer_run(p, &(test_run_t){.ranks = 2});
  CU_ASSERT_EQUAL_FATAL(o->status, PURR_STATUS_OK);
  check(p, o, true, 0.001);
  /* Rounding moves values across the clamp's edge, where the gradient jumps: no bound of this form holds there. */
  if (limit == 0.0f) check(p, o, false, 0.005);
  test_outcome_free(o);
  test_problem_free(p);
}

static void routed(void) { compare(0, false, 0.0f, 11); }
static void with_shared_expert(void) { compare(88, false, 0.0f, 12); }
static void with_gated_shared_expert(void) { compare(88, true, 0.0f, 13); }
static void with_clamp(void) { compare(40, true, 0.75f, 14); }

int main(void) {
  return purr_test_main("accuracy", (purr_test_t[]){{"routed experts", routed},
                                                    {"shared expert", with_shared_expert},
                                                    {"gated shared expert", with_gated_shared_expert},
                                                    {"clamped SwiGLU", with_clamp},
                                                    {0}});
}
