/* purr_mxfp8_quantize_on: checked tensors to the kernel of role quantize_mxfp8, to the one of Triton's that the config
 * names, or to the host's quantiser. */
#include "kernels/layout.h"
#include "mxfp8/tensors.h"
#include "package/package.h"
#include "plan/plan.h"
#include "plan/stages.h"

enum { MOST_SLICES = 65535 }; /* the third dimension of a grid */

/* What the host quantises and the kernel does not. */
static purr_status_t check_served(const purr__mxfp8_pair_t *pair, purr_error_t *err) {
  static const char *const granularities[] = {"1x32", "32x32", "1x128", "128x128"};
  static const char *const axes[] = {"rows", "columns"};
  if (pair->src.dtype != PURR_DTYPE_BF16)
    return purr__fail(err, PURR_STATUS_UNSUPPORTED, "source is %s; a device quantises BF16, the host FP32 too",
                      purr__dtype_name(pair->src.dtype));
  if (pair->scales.granularity != PURR_GRANULARITY_1X32 || pair->scales.axis != PURR_SCALE_ALONG_ROW)
    return purr__fail(
        err, PURR_STATUS_UNSUPPORTED,
        "destination.scales has granularity %s along %s; a device quantises 1x32 along rows, the host all "
        "of them",
        granularities[pair->scales.granularity], axes[pair->scales.axis]);
  if (pair->shape.num_columns % 8 != 0)
    return purr__fail(err, PURR_STATUS_UNSUPPORTED,
                      "source has rows of %lld elements; a device quantises multiples of 8, the host any number",
                      (long long)pair->shape.num_columns);
  if (pair->src.pointers != NULL || pair->dst.pointers != NULL)
    return purr__fail(err, PURR_STATUS_UNSUPPORTED,
                      "%s has a pointer array; a device quantises slices that are one stride apart",
                      pair->src.pointers != NULL ? "source" : "destination");
  if (pair->shape.num_slices > MOST_SLICES)
    return purr__fail(err, PURR_STATUS_UNSUPPORTED, "source has %lld slices; a device quantises up to %d in one call",
                      (long long)pair->shape.num_slices, MOST_SLICES);
  return PURR_STATUS_OK;
}

static purr__quantize_mxfp8_params_t params_of(const purr__mxfp8_pair_t *pair, int32_t rule) {
  const bool is_tiled = pair->scales.layout == PURR_SCALE_LAYOUT_TILE_128X4;
  return (purr__quantize_mxfp8_params_t){
      .source = pair->src.data,
      .elements = (uint8_t *)pair->dst.data,
      .scales = pair->scales.data,
      .num_rows = pair->shape.num_rows,
      .num_columns = pair->shape.num_columns,
      .source_row_stride = pair->src.row_stride,
      .source_slice_stride = pair->src.slice_stride,
      .elements_row_stride = pair->dst.row_stride,
      .elements_slice_stride = pair->dst.slice_stride,
      .scales_slice_stride = pair->info.slice_stride,
      .scales_outer_stride = is_tiled ? pair->scales.tile_row_bytes : pair->scales.outer_stride,
      .scales_block_stride = pair->scales.block_stride,
      .num_scale_rows = is_tiled ? purr__round_up(pair->scales.num_outer, PURR__TILE_OUTER) : pair->scales.num_outer,
      .num_scale_blocks =
          is_tiled ? purr__round_up(pair->scales.num_blocks, PURR__TILE_BLOCKS) : pair->scales.num_blocks,
      .scale_layout = pair->scales.layout,
      .scale_rule = rule};
}

static purr_status_t launch_kernel(const purr__kernel_t *kernel, const purr__quantize_mxfp8_params_t *params,
                                   int64_t num_slices, void *stream, purr_error_t *err) {
  const int64_t columns = params->num_scale_blocks * PURR__BLOCK_LENGTH;
  const purr__launch_t launch = {
      .grid = {(uint32_t)((columns + PURR__QUANTIZE_GROUP_COLUMNS - 1) / PURR__QUANTIZE_GROUP_COLUMNS),
               (uint32_t)purr__quantize_row_groups(params->num_scale_rows), (uint32_t)num_slices},
      .stream = stream};
  return purr__kernel_launch(kernel, &launch, params, err);
}

/* The same for a kernel of Triton's: the parameters, one by one. */
static purr_status_t launch_stage(const purr__stages_t *stages, const purr__quantize_mxfp8_params_t *params,
                                  int64_t num_slices, void *stream, purr_error_t *err) {
  const purr__stage_value_t values[PURR__NUM_STAGE_VALUES] = {
      [PURR__STAGE_source].pointer = params->source,
      [PURR__STAGE_source_row_stride].integer = params->source_row_stride,
      [PURR__STAGE_source_slice_stride].integer = params->source_slice_stride,
      [PURR__STAGE_elements].pointer = params->elements,
      [PURR__STAGE_elements_row_stride].integer = params->elements_row_stride,
      [PURR__STAGE_elements_slice_stride].integer = params->elements_slice_stride,
      [PURR__STAGE_scales].pointer = params->scales,
      [PURR__STAGE_scales_slice_stride].integer = params->scales_slice_stride,
      [PURR__STAGE_scales_outer_stride].integer = params->scales_outer_stride,
      [PURR__STAGE_scales_block_stride].integer = params->scales_block_stride,
      [PURR__STAGE_num_slices].integer = num_slices,
      [PURR__STAGE_num_rows].integer = params->num_rows,
      [PURR__STAGE_num_columns].integer = params->num_columns,
      [PURR__STAGE_num_scale_rows].integer = params->num_scale_rows,
      [PURR__STAGE_num_scale_blocks].integer = params->num_scale_blocks,
      [PURR__STAGE_scale_layout].integer = params->scale_layout,
      [PURR__STAGE_scale_rule].integer = params->scale_rule};
  return purr__stage_launch(stages, PURR__STAGE_QUANTISE, values, NULL, stream, err);
}

/* The device is entered. The kernel is NULL where one of Triton's stands in for it. */
static purr_status_t enqueue(const purr_plan_t *plan, const purr__kernel_t *kernel, const purr__mxfp8_pair_t *pair,
                             int32_t rule, void *stream, purr_error_t *err) {
  purr__device_t *device = plan->device;
  const purr__quantize_mxfp8_params_t params = params_of(pair, rule);
  purr_status_t status = purr__device_check_stream(device, stream, err);
  if (status == PURR_STATUS_OK) status = purr__device_check_pointer(device, params.source, "source", err);
  if (status == PURR_STATUS_OK) status = purr__device_check_pointer(device, params.elements, "destination", err);
  if (status == PURR_STATUS_OK) status = purr__device_check_pointer(device, params.scales, "destination.scales", err);
  if (status != PURR_STATUS_OK) return status;
  return kernel != NULL ? launch_kernel(kernel, &params, pair->shape.num_slices, stream, err)
                        : launch_stage(plan->stages, &params, pair->shape.num_slices, stream, err);
}

purr_status_t purr_mxfp8_quantize_on(const purr_plan_t *plan, const purr_tensor_t *source, int32_t rule,
                                     const purr_tensor_t *destination, void *stream, purr_error_t *err) {
  static const purr__mxfp8_alignment_t alignment = {.src = 16, .dst = 8};
  static const purr__kernel_need_t need = {.role = "quantize_mxfp8",
                                           .params_version = PURR__KERNEL_LAYOUT,
                                           .params_bytes = sizeof(purr__quantize_mxfp8_params_t)};
  purr_status_t status = purr__check(plan, PURR__PLAN, err);
  if (status != PURR_STATUS_OK) return status;
  purr__device_t *device = plan->device;
  if (device == NULL) return purr_mxfp8_quantize(plan->object.context, source, rule, destination, err);

  purr__mxfp8_pair_t pair;
  const purr__kernels_t *kernels;
  const purr__kernel_t *kernel = NULL;
  const bool is_stage = purr__stages_have(plan->stages, PURR__STAGE_QUANTISE);
  status = purr__mxfp8_check_quantize(source, rule, destination, &alignment, &pair, err);
  if (status == PURR_STATUS_OK) status = check_served(&pair, err);
  if (status == PURR_STATUS_OK && !is_stage) status = purr__kernels_get(device, &kernels, err);
  if (status == PURR_STATUS_OK && !is_stage) status = purr__kernels_find(kernels, &need, &kernel, err);
  if (status != PURR_STATUS_OK || pair.info.num_bytes == 0) return status;
  status = purr__device_enter(device, err);
  if (status != PURR_STATUS_OK) return status;
  status = enqueue(plan, kernel, &pair, rule, stream, err);
  purr__device_leave(device);
  return status;
}
