/* MXFP8 over whole matrices: fast, without allocation, the same bytes for any number of threads and any instruction
 * set.
 *
 * One descriptor serves three jobs, told apart by the types:
 *   BF16 or FP32 -> E4M3            quantise; the scales go to `scales`
 *   BF16 or FP32 -> BF16 or FP32    what quantising and reading back gives, in one step; `scales` is not used
 *   E4M3         -> BF16 or FP32    read back
 * From BF16, the second job is exact in BF16 whatever the scales are: a BF16 value is a multiple of 2^-133, and so is
 * what E4M3 keeps of it. Source and destination may be the same memory there. FP32 to BF16 is not offered, it would
 * round twice. */
#ifndef PURR_MXFP8_BLOCKS_H
#define PURR_MXFP8_BLOCKS_H

#include "mxfp8/scales.h"

typedef struct purr__mxfp8_matrix {
  int32_t granularity, axis; /* PURR_GRANULARITY_*, PURR_SCALE_ALONG_* */
  int32_t rule;              /* PURR_SCALE_RULE_*; not used when reading back */
  int32_t src_dtype, dst_dtype;
  const void *src;
  void *dst;
  int64_t src_stride, dst_stride; /* elements from row to row */
  int64_t num_rows, num_columns;
  purr__scales_view_t scales; /* padding of tiles is written too */
} purr__mxfp8_matrix_t;

/* Runs all of it over the context's threads. Returns when done. */
void purr__mxfp8_convert(purr_context_t *context, const purr__mxfp8_matrix_t *matrices, int64_t num_matrices);

/* Runs a part of one matrix on the calling thread. `row` and `column` are multiples of 128, and so are the counts
 * unless the part ends with the matrix; for scales along rows with granularity 1x32 or 1x128 any rows will do. */
void purr__mxfp8_convert_part(const purr__mxfp8_matrix_t *matrix, int64_t row, int64_t num_rows, int64_t column,
                              int64_t num_columns);

#endif
