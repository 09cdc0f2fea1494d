/* purr_mxfp8_quantize and purr_mxfp8_dequantize: checked tensors in, one matrix a slice to blocks.c. */
#include "mxfp8/tensors.h"

#include "mxfp8/blocks.h"

/* Checks one of the two tensors. Both have the shape of the source; scales are checked apart. */
static purr_status_t check_tensor(const purr_tensor_t *tensor, const char *name, const purr_tensor_t *source,
                                  bool quantized, bool written, int64_t row_alignment, purr__view_t *out_view,
                                  purr_error_t *err) {
  purr_tensor_t own;
  purr_status_t status = purr__read_struct(&own, sizeof own, tensor, name, err);
  if (status != PURR_STATUS_OK) return status;
  if (quantized) own.scales = NULL;
  purr__tensor_rule_t rule = {.name = name,
                              .dtypes = {PURR_DTYPE_BF16, PURR_DTYPE_FP32},
                              .num_dims = source->num_dims,
                              .row_alignment = row_alignment,
                              .unit_column = true,
                              .written = written,
                              .may_repeat = true};
  if (quantized) rule.dtypes[0] = PURR_DTYPE_E4M3, rule.dtypes[1] = 0;
  memcpy(rule.shape, source->shape, sizeof rule.shape);
  return purr__tensor_check(&own, &rule, out_view, err);
}

/* Both directions. The scales are those of the quantised one. */
static purr_status_t check_pair(const purr_tensor_t *source, const purr_tensor_t *destination, bool quantizing,
                                const purr__mxfp8_alignment_t *alignment, purr__mxfp8_pair_t *pair, purr_error_t *err) {
  purr_tensor_t own_src, own_dst;
  purr__scales_shape_t dst_shape;
  purr_status_t status = purr__scales_shape(source, "source", &own_src, &pair->shape, err);
  if (status == PURR_STATUS_OK)
    status = check_tensor(&own_src, "source", &own_src, !quantizing, false, alignment->src, &pair->src, err);
  if (status == PURR_STATUS_OK && !quantizing)
    status = purr__scales_check(own_src.scales, &pair->shape, PURR__SCALES_READ, &pair->scales, &pair->info, err);
  if (status == PURR_STATUS_OK) status = purr__scales_shape(destination, "destination", &own_dst, &dst_shape, err);
  if (status == PURR_STATUS_OK)
    status = check_tensor(&own_dst, "destination", &own_src, quantizing, true, alignment->dst, &pair->dst, err);
  if (status == PURR_STATUS_OK && quantizing)
    status = purr__scales_check(own_dst.scales, &dst_shape, PURR__SCALES_WRITTEN, &pair->scales, &pair->info, err);
  return status;
}

purr_status_t purr__mxfp8_check_quantize(const purr_tensor_t *source, int32_t rule, const purr_tensor_t *destination,
                                         const purr__mxfp8_alignment_t *alignment, purr__mxfp8_pair_t *out_pair,
                                         purr_error_t *err) {
  if (rule != PURR_SCALE_RULE_RCEIL && rule != PURR_SCALE_RULE_FLOOR)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "rule is %d; allowed are %d (rceil) and %d (floor)", rule,
                      PURR_SCALE_RULE_RCEIL, PURR_SCALE_RULE_FLOOR);
  return check_pair(source, destination, true, alignment, out_pair, err);
}

/* Each slice is one matrix. */
static void convert(purr_context_t *context, const purr__mxfp8_pair_t *pair, int32_t rule) {
  for (int64_t i = 0; i < pair->shape.num_slices && pair->info.num_bytes > 0; i++) {
    purr__mxfp8_matrix_t matrix = {
        .granularity = pair->scales.granularity,
        .axis = pair->scales.axis,
        .rule = rule,
        .src_dtype = pair->src.dtype,
        .dst_dtype = pair->dst.dtype,
        .src = purr__view_slice(&pair->src, i, purr__dtype_bytes(pair->src.dtype)),
        .dst = purr__view_slice(&pair->dst, i, purr__dtype_bytes(pair->dst.dtype)),
        .src_stride = pair->src.row_stride,
        .dst_stride = pair->dst.row_stride,
        .num_rows = pair->shape.num_rows,
        .num_columns = pair->shape.num_columns,
        .scales = pair->scales,
    };
    matrix.scales.data += i * pair->info.slice_stride;
    purr__mxfp8_convert(context, &matrix, 1);
  }
}

/* Host memory may stand anywhere. */
static const purr__mxfp8_alignment_t any_alignment;

purr_status_t purr_mxfp8_quantize(purr_context_t *context, const purr_tensor_t *source, int32_t rule,
                                  const purr_tensor_t *destination, purr_error_t *err) {
  purr__mxfp8_pair_t pair;
  purr_status_t status = purr__check(context, PURR__CONTEXT, err);
  if (status == PURR_STATUS_OK)
    status = purr__mxfp8_check_quantize(source, rule, destination, &any_alignment, &pair, err);
  if (status == PURR_STATUS_OK) convert(context, &pair, rule);
  return status;
}

purr_status_t purr_mxfp8_dequantize(purr_context_t *context, const purr_tensor_t *source,
                                    const purr_tensor_t *destination, purr_error_t *err) {
  purr__mxfp8_pair_t pair;
  purr_status_t status = purr__check(context, PURR__CONTEXT, err);
  if (status == PURR_STATUS_OK) status = check_pair(source, destination, false, &any_alignment, &pair, err);
  if (status == PURR_STATUS_OK) convert(context, &pair, 0);
  return status;
}
