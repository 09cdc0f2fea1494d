/* The two tensors of a quantisation, checked. */
#ifndef PURR_MXFP8_TENSORS_H
#define PURR_MXFP8_TENSORS_H

#include "mxfp8/scales.h"
#include "tensor/tensor.h"

typedef struct purr__mxfp8_pair {
  purr__scales_shape_t shape;
  purr__view_t src, dst;
  purr__scales_view_t scales; /* of slice 0 */
  purr_scales_info_t info;    /* num_bytes is 0 where there is nothing to do */
} purr__mxfp8_pair_t;

/* Bytes that rows must start at multiples of; 0 = of the element. */
typedef struct purr__mxfp8_alignment {
  int64_t src, dst;
} purr__mxfp8_alignment_t;

/* Everything that purr_mxfp8_quantize checks, whatever memory the tensors are in. */
purr_status_t purr__mxfp8_check_quantize(const purr_tensor_t *source, int32_t rule, const purr_tensor_t *destination,
                                         const purr__mxfp8_alignment_t *alignment, purr__mxfp8_pair_t *out_pair,
                                         purr_error_t *err);

#endif
