/* Accuracy of both passes against two references in float64: one with the contract's rounding points (every bf16() and
 * quantise step of the design), whose only difference is the order and precision of sums, and one that never rounds.
 *
 * Bounds on the relative L2 error: BF16 0.1 % and 0.5 %; MXFP8 0.5 % and, as measured, 8 % (rceil) and 9 % (floor).
 * The reference works slot by slot and expert by expert, from the definitions alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "mxfp8/codec.h"
#include "support/device.h"
#include "support/layer.h"
#include "support/main.h"

typedef struct reference {
  const test_problem_t *p;
  const test_run_t *run;
  bool rounds; /* at the contract's points */
  bool mxfp8;  /* and quantises too */
  double *output, *d_x, *d_topk_weights, *d_gate, *d_up, *d_down, *d_s_gate, *d_s_up, *d_s_down, *d_z;
} reference_t;

/* ---- rounding ---- */

static double wide(purr__bf16_t value) { return purr__fp32_from_bf16(value); }
static double bf16(const reference_t *r, double value) {
  return r->rounds ? (double)purr__fp32_from_bf16(purr__bf16_from_fp32((float)value)) : value;
}
static double sigmoid(double v) { return 1.0 / (1.0 + exp(-v)); }

/* Quantises the block of `rows` x `columns` at `values` with one scale. */
static void quantize_block(const reference_t *r, double *values, int64_t stride, int64_t rows, int64_t columns) {
  float largest = 0.0f;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) largest = fmaxf(largest, fabsf((float)values[i * stride + j]));
  const uint32_t scale = purr__e8m0_of_amax(purr__fp32_bits(largest), r->run->scale_rule);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) {
      const uint8_t element = purr__e4m3_from_fp32(purr__fp32_bits((float)values[i * stride + j]), scale);
      values[i * stride + j] = purr__fp32_from_bits(purr__fp32_from_e4m3(element, scale));
    }
}

/* Quantises a matrix in blocks of `block_rows` x `block_columns`, the last ones short. */
static void quantize(const reference_t *r, double *values, int64_t rows, int64_t columns, int64_t block_rows,
                     int64_t block_columns) {
  if (!r->mxfp8) return;
  for (int64_t i = 0; i < rows; i += block_rows)
    for (int64_t j = 0; j < columns; j += block_columns)
      quantize_block(r, values + i * columns + j, columns, i + block_rows < rows ? block_rows : rows - i,
                     j + block_columns < columns ? block_columns : columns - j);
}

static void quantize_row(const reference_t *r, double *row, int64_t num) {
  quantize(r, row, 1, num, 1, r->run->activation_granularity == PURR_GRANULARITY_1X128 ? 128 : 32);
}

/* The operand that a weight matrix is, contracted along its rows or along its columns. */
static double *weight_operand(const reference_t *r, const purr__bf16_t *weight, int64_t rows, int64_t columns,
                              bool along_row) {
  static const int64_t outer[4] = {1, 32, 1, 128}, along[4] = {32, 32, 128, 128};
  double *values = malloc((size_t)(rows * columns) * sizeof *values);
  for (int64_t i = 0; i < rows * columns; i++) values[i] = wide(weight[i]);
  const int32_t granularity = r->run->weight_granularity;
  if (along_row)
    quantize(r, values, rows, columns, outer[granularity], along[granularity]);
  else
    quantize(r, values, rows, columns, along[granularity], outer[granularity]);
  return values;
}

/* ---- one expert over its rows ---- */

/* The rows of an expert, in canonical order: slots of tokens, or all tokens for the shared expert. */
typedef struct expert {
  const purr__bf16_t *gate, *up, *down;
  int64_t inner, num_rows;
  const int64_t *token;  /* [rows] */
  const double *weight;  /* [rows] s, or z */
  double *y, *d_x, *d_s; /* [rows, H], [rows, H], [rows] */
  double *d_gate, *d_up, *d_down;
} expert_t;

static void dot_rows(const double *row, const double *matrix, int64_t num_out, int64_t num_in, double *out) {
  for (int64_t i = 0; i < num_out; i++) {
    out[i] = 0.0;
    for (int64_t j = 0; j < num_in; j++) out[i] += row[j] * matrix[i * num_in + j];
  }
}

static void add_columns(const double *row, const double *matrix, int64_t num_in, int64_t num_out, double *out) {
  for (int64_t i = 0; i < num_in; i++)
    for (int64_t j = 0; j < num_out; j++) out[j] += row[i] * matrix[i * num_out + j];
}

static void outer_products(const double *left, const double *right, int64_t rows, int64_t m, int64_t n, double *out) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < m; i++)
      for (int64_t j = 0; j < n; j++) out[i * n + j] += left[r * m + i] * right[r * n + j];
}

static double *rows_of(const reference_t *r, const purr__bf16_t *tokens, const expert_t *e) {
  double *rows = malloc((size_t)(e->num_rows * r->p->hidden + 1) * sizeof *rows);
  for (int64_t i = 0; i < e->num_rows; i++)
    for (int64_t h = 0; h < r->p->hidden; h++)
      rows[i * r->p->hidden + h] = wide(tokens[e->token[i] * r->p->hidden + h]);
  return rows;
}

static void run_expert(const reference_t *r, const expert_t *e) {
  const int64_t hidden = r->p->hidden, inner = e->inner, rows = e->num_rows;
  const double limit = r->p->swiglu_limit;
  double *const gate = weight_operand(r, e->gate, inner, hidden, true);
  double *const up = weight_operand(r, e->up, inner, hidden, true);
  double *const down = weight_operand(r, e->down, hidden, inner, true);
  double *const gate_back = weight_operand(r, e->gate, inner, hidden, false);
  double *const up_back = weight_operand(r, e->up, inner, hidden, false);
  double *const down_back = weight_operand(r, e->down, hidden, inner, false);
  double *const x = rows_of(r, r->p->x, e), *const d_output = rows_of(r, r->p->d_output, e);
  const size_t bytes = (size_t)(rows * inner + 1) * sizeof(double);
  double *const d_g = malloc(bytes), *const d_u = malloc(bytes), *const scaled = malloc(bytes);
  double *const operand = malloc((size_t)(hidden + inner) * sizeof(double));
  double *const g = malloc((size_t)inner * 4 * sizeof(double)), *const u = g + inner, *const a = u + inner,
                *const d_a1 = a + inner;
  for (int64_t i = 0; i < rows; i++) {
    memcpy(operand, x + i * hidden, (size_t)hidden * sizeof(double));
    quantize_row(r, operand, hidden);
    dot_rows(operand, gate, inner, hidden, g);
    dot_rows(operand, up, inner, hidden, u);
    memcpy(operand, d_output + i * hidden, (size_t)hidden * sizeof(double));
    quantize_row(r, operand, hidden);
    memset(d_a1, 0, (size_t)inner * sizeof(double));
    add_columns(operand, down_back, hidden, inner, d_a1);
    e->d_s[i] = 0.0;
    for (int64_t j = 0; j < inner; j++) {
      g[j] = bf16(r, g[j]);
      u[j] = bf16(r, u[j]);
      const double gc = limit > 0 ? fmin(g[j], limit) : g[j], uc = limit > 0 ? fmax(fmin(u[j], limit), -limit) : u[j];
      const double s = sigmoid(gc), d_a = e->weight[i] * d_a1[j];
      a[j] = bf16(r, gc * s * uc);
      e->d_s[i] += d_a1[j] * a[j];
      d_g[i * inner + j] = limit > 0 && g[j] > limit ? 0.0 : bf16(r, d_a * uc * s * (1.0 + gc * (1.0 - s)));
      d_u[i * inner + j] = limit > 0 && fabs(u[j]) > limit ? 0.0 : bf16(r, d_a * gc * s);
      scaled[i * inner + j] = bf16(r, e->weight[i] * a[j]);
    }
    quantize_row(r, a, inner);
    dot_rows(a, down, hidden, inner, e->y + i * hidden);
    for (int64_t h = 0; h < hidden; h++) e->y[i * hidden + h] = bf16(r, e->y[i * hidden + h]);
    memcpy(operand, d_g + i * inner, (size_t)inner * sizeof(double));
    quantize_row(r, operand, inner);
    add_columns(operand, gate_back, inner, hidden, e->d_x + i * hidden);
    memcpy(operand, d_u + i * inner, (size_t)inner * sizeof(double));
    quantize_row(r, operand, inner);
    add_columns(operand, up_back, inner, hidden, e->d_x + i * hidden);
  }
  quantize(r, x, rows, hidden, 32, 1);
  quantize(r, d_output, rows, hidden, 32, 1);
  quantize(r, d_g, rows, inner, 32, 1);
  quantize(r, d_u, rows, inner, 32, 1);
  quantize(r, scaled, rows, inner, 32, 1);
  outer_products(d_g, x, rows, inner, hidden, e->d_gate);
  outer_products(d_u, x, rows, inner, hidden, e->d_up);
  outer_products(d_output, scaled, rows, hidden, inner, e->d_down);
  double *const all[] = {gate, up, down, gate_back, up_back, down_back, x, d_output, d_g, d_u, scaled, operand, g};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

/* ---- the layer ---- */

static double *zeros(int64_t num) { return calloc((size_t)num + 1, sizeof(double)); }

static void run_shared(reference_t *r) {
  const test_problem_t *p = r->p;
  int64_t *token = malloc((size_t)p->tokens * sizeof *token);
  double *z = zeros(p->tokens), *y = zeros(p->tokens * p->hidden), *d_x = zeros(p->tokens * p->hidden);
  double *d_s = zeros(p->tokens);
  for (int64_t t = 0; t < p->tokens; t++) {
    double logit = 0.0;
    for (int64_t h = 0; h < p->hidden; h++) logit += wide(p->x[t * p->hidden + h]) * wide(p->z[h]);
    token[t] = t;
    z[t] = p->shared_gate ? sigmoid(logit) : 1.0;
  }
  const expert_t shared = {p->s_gate, p->s_up, p->s_down, p->shared,   p->tokens, token,      z,
                           y,         d_x,     d_s,       r->d_s_gate, r->d_s_up, r->d_s_down};
  reference_t bf16_only = *r;
  bf16_only.mxfp8 = false; /* the shared expert always is */
  run_expert(&bf16_only, &shared);
  for (int64_t t = 0; t < p->tokens; t++)
    for (int64_t h = 0; h < p->hidden; h++) {
      const int64_t at = t * p->hidden + h;
      const double d_logit = p->shared_gate ? d_s[t] * z[t] * (1.0 - z[t]) : 0.0;
      r->output[at] = bf16(r, z[t] * y[at]);
      r->d_x[at] = bf16(r, d_x[at] + d_logit * wide(p->z[h]));
      r->d_z[h] += d_logit * wide(p->x[at]);
    }
  free(token);
  free(z);
  free(y);
  free(d_x);
  free(d_s);
}

static void run_reference(reference_t *r) {
  const test_problem_t *p = r->p;
  const int64_t slice = p->inner * p->hidden, slots = p->tokens * p->top_k;
  if (p->shared > 0) run_shared(r);
  /* Each slot's results, so that the sums can go in slot order. */
  double *y = zeros(slots * p->hidden), *d_x = zeros(slots * p->hidden);
  for (int64_t id = 0; id < p->experts; id++) {
    int64_t *token = malloc((size_t)(slots + 1) * sizeof *token), *slot = malloc((size_t)(slots + 1) * sizeof *slot);
    double *weight = zeros(slots), *own_y, *own_d_x, *d_s = zeros(slots);
    expert_t e = {p->gate + id * slice, p->up + id * slice, p->down + id * slice, p->inner, .num_rows = 0};
    for (int64_t s = 0; s < slots; s++) {
      if (p->ids[s] != id) continue;
      slot[e.num_rows] = s;
      token[e.num_rows] = s / p->top_k;
      weight[e.num_rows++] = p->topk_weights[s];
    }
    e.token = token;
    e.weight = weight;
    e.y = own_y = zeros(e.num_rows * p->hidden);
    e.d_x = own_d_x = zeros(e.num_rows * p->hidden);
    e.d_s = d_s;
    e.d_gate = r->d_gate + id * slice;
    e.d_up = r->d_up + id * slice;
    e.d_down = r->d_down + id * slice;
    run_expert(r, &e);
    for (int64_t i = 0; i < e.num_rows; i++) {
      memcpy(y + slot[i] * p->hidden, own_y + i * p->hidden, (size_t)p->hidden * sizeof *y);
      memcpy(d_x + slot[i] * p->hidden, own_d_x + i * p->hidden, (size_t)p->hidden * sizeof *d_x);
      r->d_topk_weights[slot[i]] = d_s[i];
    }
    free(own_y);
    free(own_d_x);
    free(d_s);
    free(weight);
    free(slot);
    free(token);
  }
  for (int64_t t = 0; t < p->tokens; t++)
    for (int64_t h = 0; h < p->hidden; h++) {
      double *out = &r->output[t * p->hidden + h], *grad = &r->d_x[t * p->hidden + h];
      for (int64_t k = 0; k < p->top_k; k++) {
        const int64_t s = t * p->top_k + k;
        if (p->ids[s] < 0) continue;
        *out += p->topk_weights[s] * y[s * p->hidden + h];
        *grad += bf16(r, d_x[s * p->hidden + h]);
      }
      *out = bf16(r, *out);
      *grad = bf16(r, *grad);
    }
  free(y);
  free(d_x);
}

/* ---- comparison ---- */

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

static void check(const test_problem_t *p, const test_run_t *run, const test_outcome_t *o, bool rounds, double bound) {
  const int64_t hidden = p->tokens * p->hidden, weights = p->experts * p->inner * p->hidden;
  const int64_t shared = p->shared * p->hidden;
  reference_t r = {p,
                   run,
                   rounds,
                   rounds && run->precision == PURR_PRECISION_MXFP8,
                   zeros(hidden),
                   zeros(hidden),
                   zeros(p->tokens * p->top_k),
                   zeros(weights),
                   zeros(weights),
                   zeros(weights),
                   zeros(shared),
                   zeros(shared),
                   zeros(shared),
                   zeros(p->hidden)};
  run_reference(&r);
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

static void compare(int64_t shared, bool shared_gate, float limit, uint64_t seed, test_run_t with) {
  const test_run_t *run = &with;
  const bool mxfp8 = run->precision == PURR_PRECISION_MXFP8;
  const double unrounded = !mxfp8 ? 0.005 : run->scale_rule == PURR_SCALE_RULE_RCEIL ? 0.08 : 0.09;
  test_problem_t *p = test_random(seed, 200, 160, 96, 8, 2, shared, shared_gate);
  p->swiglu_limit = limit;
  test_outcome_t *o = test_layer_run(p, run);
  CU_ASSERT_EQUAL_FATAL(o->status, PURR_STATUS_OK);
  check(p, run, o, true, mxfp8 ? 0.005 : 0.001);
  /* Rounding moves values across the clamp's edge, where the gradient jumps: no bound of this form holds there. */
  if (limit == 0.0f) check(p, run, o, false, unrounded);
  test_outcome_free(o);
  test_problem_free(p);
}

static test_run_t plain(void) { return (test_run_t){.ranks = 2}; }

static void routed(void) { compare(0, false, 0.0f, 11, plain()); }
static void with_shared_expert(void) { compare(88, false, 0.0f, 12, plain()); }
static void with_gated_shared_expert(void) { compare(88, true, 0.0f, 13, plain()); }
static void with_clamp(void) { compare(40, true, 0.75f, 14, plain()); }

/* So long that kernels take them in parts: along H, along I, along the shared expert's I. The last is so long that it
 * keeps to its smaller bound only where sums are given back what tensor cores lose (kernels/sums.cuh). */
static void long_sums(void) {
  static const struct {
    int64_t tokens, hidden, inner, shared, experts;
    double bound;
  } shapes[] = {{70, 2312, 72, 0, 4, 0.001},
                {70, 72, 3080, 40, 4, 0.001},
                {70, 136, 40, 2056, 4, 0.001},
                {40, 7168, 256, 0, 2, 0.0005}};
  const bool is_host = test_backend() == PURR_BACKEND_HOST; /* which loses nothing */
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0] - is_host; i++) {
    const test_run_t run = plain();
    test_problem_t *p = test_random(30 + i, shapes[i].tokens, shapes[i].hidden, shapes[i].inner, shapes[i].experts, 2,
                                    shapes[i].shared, false);
    test_outcome_t *o = test_layer_run(p, &run);
    CU_ASSERT_EQUAL_FATAL(o->status, PURR_STATUS_OK);
    check(p, &run, o, true, shapes[i].bound);
    test_outcome_free(o);
    test_problem_free(p);
  }
}

/* Every recipe, on rings that replay. */
static void mxfp8_recipes(void) {
  for (int32_t rule = 0; rule <= 1; rule++)
    for (int32_t weights = PURR_GRANULARITY_1X32; weights <= PURR_GRANULARITY_128X128; weights++) {
      const bool wide_blocks = weights >= PURR_GRANULARITY_1X128;
      const test_run_t run = {.ranks = 1 + weights % 2,
                              .precision = PURR_PRECISION_MXFP8,
                              .scale_rule = rule,
                              .weight_granularity = weights,
                              .activation_granularity = wide_blocks ? PURR_GRANULARITY_1X128 : PURR_GRANULARITY_1X32,
                              .minibatch = 64,
                              .macrobatch = 192,
                              .activation_memory = -1};
      compare(weights == 0 ? 48 : 0, weights == 0, weights == 1 ? 0.75f : 0.0f, (uint64_t)(20 + weights), run);
    }
}

int main(void) {
  return test_layer_main("accuracy", (purr_test_t[]){{"routed experts", routed},
                                                     {"shared expert", with_shared_expert},
                                                     {"gated shared expert", with_gated_shared_expert},
                                                     {"clamped SwiGLU", with_clamp},
                                                     {"long sums", long_sums},
                                                     {"MXFP8 recipes", mxfp8_recipes},
                                                     {0}});
}
