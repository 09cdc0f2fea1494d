/* purr_mxfp8_quantize and purr_mxfp8_dequantize: checked tensors in, one matrix a slice to blocks.c. */
#include "mxfp8/blocks.h"
#include "tensor/tensor.h"

/* Checks one of the two tensors. Both have the shape of the source; scales are checked apart. */
static purr_status_t check_tensor(const purr_tensor_t *tensor, const char *name, const purr_tensor_t *source,
                                  bool quantized, bool written, purr__view_t *out_view, purr_error_t *err) {
  purr_tensor_t own;
  purr_status_t status = purr__read_struct(&own, sizeof own, tensor, name, err);
  if (status != PURR_STATUS_OK) return status;
  if (quantized) own.scales = NULL;
  purr__tensor_rule_t rule = {.name = name,
                              .dtypes = {PURR_DTYPE_BF16, PURR_DTYPE_FP32},
                              .num_dims = source->num_dims,
                              .unit_column = true,
                              .written = written};
  if (quantized) rule.dtypes[0] = PURR_DTYPE_E4M3, rule.dtypes[1] = 0;
  memcpy(rule.shape, source->shape, sizeof rule.shape);
  return purr__tensor_check(&own, &rule, out_view, err);
}

/* Both directions: everything is checked, then each slice is one matrix. */
static purr_status_t convert(purr_context_t *context, const purr_tensor_t *source, const purr_tensor_t *destination,
                             bool quantizing, int32_t rule, purr_error_t *err) {
  purr_tensor_t own_src, own_dst;
  purr__scales_shape_t shape, dst_shape;
  purr__view_t src, dst;
  purr__scales_view_t scales;
  purr_scales_info_t info;
  purr_status_t status = purr__check(context, PURR__CONTEXT, err);
  if (status == PURR_STATUS_OK) status = purr__scales_shape(source, "source", &own_src, &shape, err);
  if (status == PURR_STATUS_OK) status = check_tensor(&own_src, "source", &own_src, !quantizing, false, &src, err);
  if (status == PURR_STATUS_OK && !quantizing)
    status = purr__scales_check(own_src.scales, &shape, PURR__SCALES_READ, &scales, &info, err);
  if (status == PURR_STATUS_OK) status = purr__scales_shape(destination, "destination", &own_dst, &dst_shape, err);
  if (status == PURR_STATUS_OK) status = check_tensor(&own_dst, "destination", &own_src, quantizing, true, &dst, err);
  if (status == PURR_STATUS_OK && quantizing)
    status = purr__scales_check(own_dst.scales, &dst_shape, PURR__SCALES_WRITTEN, &scales, &info, err);
  if (status != PURR_STATUS_OK) return status;

  for (int64_t i = 0; i < shape.num_slices && info.num_bytes > 0; i++) {
    purr__mxfp8_matrix_t matrix = {
        .granularity = scales.granularity,
        .axis = scales.axis,
        .rule = rule,
        .src_dtype = src.dtype,
        .dst_dtype = dst.dtype,
        .src = purr__view_slice(&src, i, purr__dtype_bytes(src.dtype)),
        .dst = purr__view_slice(&dst, i, purr__dtype_bytes(dst.dtype)),
        .src_stride = src.row_stride,
        .dst_stride = dst.row_stride,
        .num_rows = shape.num_rows,
        .num_columns = shape.num_columns,
        .scales = scales,
    };
    matrix.scales.data += i * info.slice_stride;
    purr__mxfp8_convert(context, &matrix, 1);
  }
  return PURR_STATUS_OK;
}

purr_status_t purr_mxfp8_quantize(purr_context_t *context, const purr_tensor_t *source, int32_t rule,
                                  const purr_tensor_t *destination, purr_error_t *err) {
  if (rule != PURR_SCALE_RULE_RCEIL && rule != PURR_SCALE_RULE_FLOOR)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "rule is %d; allowed are %d (rceil) and %d (floor)", rule,
                      PURR_SCALE_RULE_RCEIL, PURR_SCALE_RULE_FLOOR);
  return convert(context, source, destination, true, rule, err);
}

purr_status_t purr_mxfp8_dequantize(purr_context_t *context, const purr_tensor_t *source,
                                    const purr_tensor_t *destination, purr_error_t *err) {
  return convert(context, source, destination, false, 0, err);
}
