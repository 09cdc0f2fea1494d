/* The arithmetic of the host backend. Every function gives the same bits for any number of threads, any compiler and
 * any instruction set: each GEMM element is one chain of fused multiply-adds over ascending k, starting at +0 (or at
 * the element of `initial`); elementwise work uses the project's own exp; reductions have a fixed lane order. Results
 * that are NaN are the canonical NaN of base/bf16.h. */
#ifndef PURR_HOST_MATH_H
#define PURR_HOST_MATH_H

#include "base/base.h"
#include "base/bf16.h"

/* A matrix operand: element (row, k) is at data + row * row_stride + k * k_stride elements. dtype BF16 or FP32. */
typedef struct purr__operand {
  const void *data;
  int32_t dtype;
  int64_t row_stride, k_stride;
} purr__operand_t;

/* acc[m][n] = initial[m][n] + sum over segments in order, over ascending k, of a[m][k] * b[n][k];
 * then c = acc, or c = c + acc (one FP32 addition) with `accumulate`, rounded to c's type. */
typedef struct purr__gemm {
  int64_t m, n;
  int num_segments; /* 1 or 2: the second continues the chain of the first */
  struct {
    purr__operand_t a, b;
    int64_t k;
  } segment[2];
  const float *initial; /* [m, n] with row stride initial_stride, or NULL for +0; may be c itself */
  int64_t initial_stride;
  void *c; /* BF16 or FP32, unit column stride */
  int32_t c_dtype;
  int64_t c_row_stride;
  bool accumulate;
  purr_trace_t *trace; /* gets an event for each tile; NULL = no timeline is wanted */
  int trace_kind;      /* PURR__TRACE_* */
  int32_t expert;      /* for it */
} purr__gemm_t;

/* Runs independent problems (one an expert, say) over the context's threads. m, n or k may be 0: c is then written with
 * what the chain has, that is `initial` or +0. Needs no memory from the caller and allocates none per call beyond
 * fixed per-thread stack. */
void purr__host_gemm(purr_context_t *context, const purr__gemm_t *problems, int64_t num_problems);

/* a = bf16(silu(g) * u), with g = min(g, limit), u = clamp(u, -limit, limit) first where limit > 0 (NaN passes).
 * silu(g) = g * sigmoid(g) in FP32, as it stands: at g = -inf, where that is -inf * 0, it is NaN. */
void purr__host_swiglu(const purr__bf16_t *g, const purr__bf16_t *u, int64_t num, float limit, purr__bf16_t *a);

/* One row of the SwiGLU backward. d_a1 is dA' = dO.Wd in FP32, `weight` is s. a is recomputed as above (its bf16
 * value). d_gate = bf16(s*dA' * u * silu'(g)),  d_up = bf16(s*dA' * silu(g)),  zero gradient where the clamp acted,
 *   scaled_a = bf16(s * a)
 * Returns ds = sum of dA' * a in FP32: partials over 64 columns with 16 fixed lanes each, added in ascending order.
 * scaled_a may be NULL. */
float purr__host_swiglu_backward(const purr__bf16_t *g, const purr__bf16_t *u, const float *d_a1, float weight,
                                 float limit, int64_t num, purr__bf16_t *d_gate, purr__bf16_t *d_up,
                                 purr__bf16_t *scaled_a);

/* out[h] = bf16(base[h] + sum over k of weights[k] * rows[k][h]), FMAs in order of k, starting from base (NULL = +0).
 * rows[k] == NULL is a dropped slot: skipped. weights == NULL: plain additions (dx). */
void purr__host_slot_sum(const purr__bf16_t *base, const purr__bf16_t *const *rows, const float *weights, int num_slots,
                         int64_t num, purr__bf16_t *out);

/* out[h] = bf16(scale * in[h]). May work in place. */
void purr__host_scale(const purr__bf16_t *in, float scale, int64_t num, purr__bf16_t *out);

float purr__host_exp(float x);     /* within 1 ulp, monotonic at the ends: 0 below, inf above, NaN stays NaN */
float purr__host_sigmoid(float x); /* 1 / (1 + exp(-x)) */

/* The instruction set in use: "avx512", "avx2", "baseline", "neon". Static storage. */
const char *purr__host_isa(void);
/* For tests: use this one if the CPU has it ("auto" returns to the best). False if it cannot. Not thread-safe. */
bool purr__host_set_isa(const char *name);

#endif
