/* The kernels of the host backend that exist once per instruction set. isa_NAME.c compiles kernels.inc for one set;
 * math.c picks a table at run time and is the only caller. */
#ifndef PURR_HOST_KERNELS_H
#define PURR_HOST_KERNELS_H

#include "backends/host/math.h"

/* The largest tile of a GEMM, and so the size of its buffers: about 260 KiB of stack. */
enum { PURR__TILE_M = 96, PURR__TILE_N = 256 };

typedef struct purr__host_kernels {
  const char *isa;
  /* Rows [row, row + num_rows) by columns [column, column + num_columns), at most TILE_M by TILE_N. */
  void (*gemm_tile)(const purr__gemm_t *gemm, int64_t row, int64_t num_rows, int64_t column, int64_t num_columns);
  void (*swiglu)(const purr__bf16_t *g, const purr__bf16_t *u, int64_t num, float limit, purr__bf16_t *a);
  float (*swiglu_backward)(const purr__bf16_t *g, const purr__bf16_t *u, const float *d_a1, float weight, float limit,
                           int64_t num, purr__bf16_t *d_gate, purr__bf16_t *d_up, purr__bf16_t *scaled_a);
  void (*slot_sum)(const purr__bf16_t *base, const purr__bf16_t *const *rows, const float *weights, int num_slots,
                   int64_t num, purr__bf16_t *out);
  void (*scale)(const purr__bf16_t *in, float scale, int64_t num, purr__bf16_t *out);
  float (*exp)(float x);
  float (*sigmoid)(float x);
} purr__host_kernels_t;

extern const purr__host_kernels_t purr__host_kernels_avx512, purr__host_kernels_avx2, purr__host_kernels_neon,
    purr__host_kernels_baseline;

#endif
