/* Scale descriptors: checking, sizing, padding, and writing scales in another form. */
#include "mxfp8/scales.h"

#include "tensor/tensor.h"

void purr__scales_clear_padding(const purr__scales_view_t *scales, int64_t row, int64_t num_rows, int64_t column,
                                int64_t num_columns) {
  if (scales->layout != PURR_SCALE_LAYOUT_TILE_128X4 || num_rows <= 0 || num_columns <= 0) return;
  const bool along_row = scales->axis == PURR_SCALE_ALONG_ROW;
  const int64_t outer_begin = along_row ? row : column, outer_end = outer_begin + (along_row ? num_rows : num_columns);
  const int64_t begin = along_row ? column : row, end = begin + (along_row ? num_columns : num_rows);
  const int64_t block_begin = begin / PURR__BLOCK_LENGTH;
  const int64_t block_end = (end + PURR__BLOCK_LENGTH - 1) / PURR__BLOCK_LENGTH;
  /* The part's own share: what stands beyond the last block of its outers, and the outers beyond the last one. */
  const bool last_outers = outer_end == scales->num_outer, last_blocks = block_end == scales->num_blocks;
  const int64_t padded_outer = last_outers ? purr__round_up(outer_end, PURR__TILE_OUTER) : outer_end;
  const int64_t padded_blocks = last_blocks ? purr__round_up(block_end, PURR__TILE_BLOCKS) : block_end;
  for (int64_t o = outer_begin; o < padded_outer; o++)
    for (int64_t b = o < outer_end ? block_end : block_begin; b < padded_blocks; b++) *purr__scale_at(scales, o, b) = 0;
}

/* The matrix of scale bytes: where its strides are left to us, and how many bytes it spans. */
static purr_status_t resolve_strides(const purr_scales_t *own, const purr__scales_shape_t *shape,
                                     purr_scales_info_t *info, int64_t *out_matrix_bytes, purr_error_t *err) {
  uint64_t bytes = 0;
  bool fits;
  if (own->layout == PURR_SCALE_LAYOUT_TILE_128X4) {
    if (own->outer_stride != 0 || own->block_stride != 0)
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                        "%s.scales has outer_stride %lld and block_stride %lld; tiles have none, both must be 0",
                        shape->name, (long long)own->outer_stride, (long long)own->block_stride);
    fits = purr__multiply((uint64_t)purr__round_up(info->num_outer, PURR__TILE_OUTER),
                          (uint64_t)purr__round_up(info->num_blocks, PURR__TILE_BLOCKS), &bytes);
  } else {
    const bool adjacent = own->outer_stride == 0 && own->block_stride == 0;
    info->outer_stride = adjacent ? info->num_blocks : own->outer_stride;
    info->block_stride = adjacent ? 1 : own->block_stride;
    uint64_t outer_reach = 0, block_reach = 0;
    fits = info->num_outer == 0 || info->num_blocks == 0 ||
           (purr__multiply((uint64_t)info->num_outer - 1, (uint64_t)info->outer_stride, &outer_reach) &&
            purr__multiply((uint64_t)info->num_blocks - 1, (uint64_t)info->block_stride, &block_reach) &&
            purr__add(outer_reach, block_reach, &bytes) && purr__add(bytes, 1, &bytes));
  }
  *out_matrix_bytes = (int64_t)bytes;
  info->slice_stride = own->slice_stride ? own->slice_stride : (int64_t)bytes;
  uint64_t slices_reach = 0;
  fits = fits && (info->num_slices == 0 || bytes == 0 ||
                  (purr__multiply((uint64_t)info->num_slices - 1, (uint64_t)info->slice_stride, &slices_reach) &&
                   purr__add(slices_reach, bytes, &info->num_bytes)));
  if (!fits)
    return purr__fail(
        err, PURR_STATUS_INVALID_ARGUMENT,
        "%s.scales needs %lld x %lld x %lld bytes with strides %lld, %lld, %lld, more than fits in memory", shape->name,
        (long long)info->num_slices, (long long)info->num_outer, (long long)info->num_blocks,
        (long long)info->slice_stride, (long long)info->outer_stride, (long long)info->block_stride);
  return PURR_STATUS_OK;
}

static purr_status_t check_choice(const purr__scales_shape_t *shape, const char *field, int32_t value, int32_t last,
                                  purr_error_t *err) {
  if (value >= 0 && value <= last) return PURR_STATUS_OK;
  return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s.scales.%s is %d; allowed are 0 to %d", shape->name, field,
                    value, last);
}

static purr_status_t check_fields(const purr_scales_t *own, const purr__scales_shape_t *shape, purr_error_t *err) {
  purr_status_t status = check_choice(shape, "axis", own->axis, PURR_SCALE_ALONG_COLUMN, err);
  if (status == PURR_STATUS_OK)
    status = check_choice(shape, "granularity", own->granularity, PURR_GRANULARITY_128X128, err);
  if (status == PURR_STATUS_OK) status = check_choice(shape, "layout", own->layout, PURR_SCALE_LAYOUT_TILE_128X4, err);
  if (status != PURR_STATUS_OK) return status;
  if (own->format != 0 && own->format != PURR_DTYPE_E8M0)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s.scales.format is %s (%d); it must be E8M0 (%d) or 0",
                      shape->name, purr__dtype_name(own->format), own->format, PURR_DTYPE_E8M0);
  if (own->block_length != 0 && own->block_length != PURR__BLOCK_LENGTH)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s.scales.block_length is %d; it must be %d or 0",
                      shape->name, own->block_length, PURR__BLOCK_LENGTH);
  if (own->slice_stride < 0 || own->outer_stride < 0 || own->block_stride < 0)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "%s.scales has strides %lld, %lld, %lld (slice, outer, block); strides are not negative",
                      shape->name, (long long)own->slice_stride, (long long)own->outer_stride,
                      (long long)own->block_stride);
  return PURR_STATUS_OK;
}

static purr_status_t check_memory(const purr_scales_t *own, const purr__scales_shape_t *shape,
                                  const purr_scales_info_t *info, purr_error_t *err) {
  if (info->num_bytes == 0) return PURR_STATUS_OK;
  if (own->data == NULL)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s.scales has no data (NULL); it needs %llu bytes",
                      shape->name, (unsigned long long)info->num_bytes);
  if (own->data_bytes != 0 && own->data_bytes < info->num_bytes)
    return purr__fail(err, PURR_STATUS_BUFFER_TOO_SMALL, "%s.scales has %llu bytes; it needs %llu", shape->name,
                      (unsigned long long)own->data_bytes, (unsigned long long)info->num_bytes);
  if (own->layout == PURR_SCALE_LAYOUT_TILE_128X4 &&
      ((uintptr_t)own->data % 16 != 0 || (info->num_slices > 1 && info->slice_stride % 16 != 0)))
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "%s.scales starts at %p with slice stride %lld; tiles lie at multiples of 16 bytes", shape->name,
                      own->data, (long long)info->slice_stride);
  return PURR_STATUS_OK;
}

purr_status_t purr__scales_check(const purr_scales_t *scales, const purr__scales_shape_t *shape, purr__scales_use_t use,
                                 purr__scales_view_t *out_view, purr_scales_info_t *out_info, purr_error_t *err) {
  if (scales == NULL)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s has no scales; an MXFP8 tensor needs a purr_scales_t",
                      shape->name);
  purr_scales_t own;
  purr_status_t status = purr__read_struct(&own, sizeof own, scales, "purr_scales_t", err);
  if (status == PURR_STATUS_OK) status = check_fields(&own, shape, err);
  if (status != PURR_STATUS_OK) return status;
  const bool along_row = own.axis == PURR_SCALE_ALONG_ROW;
  const int64_t along = along_row ? shape->num_columns : shape->num_rows;
  purr_scales_info_t info = {.struct_size = sizeof info,
                             .num_slices = shape->num_slices,
                             .num_outer = along_row ? shape->num_rows : shape->num_columns,
                             .num_blocks = along / PURR__BLOCK_LENGTH + (along % PURR__BLOCK_LENGTH != 0)};
  int64_t matrix_bytes = 0;
  status = resolve_strides(&own, shape, &info, &matrix_bytes, err);
  if (status != PURR_STATUS_OK) return status;

  const bool tiled = own.layout == PURR_SCALE_LAYOUT_TILE_128X4;
  const int64_t counts[] = {info.num_slices, tiled ? 1 : info.num_outer, tiled ? 1 : info.num_blocks};
  const int64_t strides[] = {info.slice_stride, info.outer_stride, info.block_stride};
  if (use == PURR__SCALES_WRITTEN && !purr__strides_are_distinct(counts, strides, 3, tiled ? matrix_bytes : 1))
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "%s.scales has strides %lld, %lld, %lld (slice, outer, block) over %lld x %lld x %lld: blocks "
                      "would share bytes",
                      shape->name, (long long)strides[0], (long long)strides[1], (long long)strides[2],
                      (long long)info.num_slices, (long long)info.num_outer, (long long)info.num_blocks);
  if (use != PURR__SCALES_SIZED) status = check_memory(&own, shape, &info, err);
  if (status != PURR_STATUS_OK) return status;
  *out_view = (purr__scales_view_t){
      .data = own.data,
      .axis = own.axis,
      .granularity = own.granularity,
      .layout = own.layout,
      .num_outer = info.num_outer,
      .num_blocks = info.num_blocks,
      .outer_stride = info.outer_stride,
      .block_stride = info.block_stride,
      .tile_row_bytes = purr__round_up(info.num_blocks, PURR__TILE_BLOCKS) * PURR__TILE_OUTER,
  };
  *out_info = info;
  return PURR_STATUS_OK;
}

purr_status_t purr__scales_shape(const purr_tensor_t *tensor, const char *name, purr_tensor_t *out_own,
                                 purr__scales_shape_t *out_shape, purr_error_t *err) {
  purr_status_t status = purr__read_struct(out_own, sizeof *out_own, tensor, name, err);
  if (status == PURR_STATUS_OK) status = purr__check_reserved(out_own->reserved, name, err);
  if (status != PURR_STATUS_OK) return status;
  const int64_t *shape = out_own->shape;
  if (out_own->num_dims != 2 && out_own->num_dims != 3)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s has %d dimensions; it must have 2 or 3", name,
                      out_own->num_dims);
  for (int i = 0; i < out_own->num_dims; i++)
    if (shape[i] < 0 || shape[i] > INT64_MAX / 256)
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s has shape[%d] = %lld; allowed are 0 to %lld", name, i,
                        (long long)shape[i], (long long)(INT64_MAX / 256));
  const int row_dim = out_own->num_dims - 2;
  *out_shape = (purr__scales_shape_t){name, row_dim > 0 ? shape[0] : 1, shape[row_dim], shape[row_dim + 1]};
  return PURR_STATUS_OK;
}

purr_status_t purr_scales_query(purr_context_t *context, const purr_tensor_t *tensor, purr_scales_info_t *out_info,
                                purr_error_t *err) {
  purr_tensor_t own;
  purr__scales_shape_t shape;
  purr__scales_view_t view;
  purr_scales_info_t info;
  purr_status_t status = purr__check(context, PURR__CONTEXT, err);
  if (status == PURR_STATUS_OK) status = purr__scales_shape(tensor, "tensor", &own, &shape, err);
  if (status == PURR_STATUS_OK) status = purr__scales_check(own.scales, &shape, PURR__SCALES_SIZED, &view, &info, err);
  if (status != PURR_STATUS_OK) return status;
  return purr__write_struct(out_info, &info, sizeof info, "out_info", err);
}

/* ---- another form ---- */

typedef struct conversion {
  purr__scales_view_t src, dst; /* of slice 0 */
  int64_t src_slice_stride, dst_slice_stride;
  int64_t num_rows, num_columns;
  int64_t bands_per_slice;
} conversion_t;

/* 128 rows of one slice. */
static void convert_band(void *arg, int64_t task_idx) {
  const conversion_t *job = arg;
  const int64_t slice = task_idx / job->bands_per_slice;
  purr__scales_view_t src = job->src, dst = job->dst;
  src.data += slice * job->src_slice_stride;
  dst.data += slice * job->dst_slice_stride;
  const int64_t row_begin = task_idx % job->bands_per_slice * PURR__TILE_OUTER;
  const int64_t row_end = purr__min(row_begin + PURR__TILE_OUTER, job->num_rows);
  const bool dst_along_row = dst.axis == PURR_SCALE_ALONG_ROW, src_along_row = src.axis == PURR_SCALE_ALONG_ROW;
  purr__scales_clear_padding(&dst, row_begin, row_end - row_begin, 0, job->num_columns);
  for (int64_t r = row_begin; r < row_end; r += dst_along_row ? 1 : PURR__BLOCK_LENGTH)
    for (int64_t c = 0; c < job->num_columns; c += dst_along_row ? PURR__BLOCK_LENGTH : 1) {
      const uint8_t scale = src_along_row ? *purr__scale_at(&src, r, c / PURR__BLOCK_LENGTH)
                                          : *purr__scale_at(&src, c, r / PURR__BLOCK_LENGTH);
      if (dst_along_row)
        *purr__scale_at(&dst, r, c / PURR__BLOCK_LENGTH) = scale;
      else
        *purr__scale_at(&dst, c, r / PURR__BLOCK_LENGTH) = scale;
    }
}

/* What the source promises must include what the destination promises. */
static purr_status_t check_granularities(const purr__scales_view_t *src, const purr__scales_view_t *dst,
                                         purr_error_t *err) {
  static const char *const names[] = {"1x32", "32x32", "1x128", "128x128"};
  static const char *const axes[] = {"rows", "columns"};
  const int64_t src_rows = purr__granule_rows(src->granularity, src->axis);
  const int64_t src_columns = purr__granule_columns(src->granularity, src->axis);
  if (src_rows >= purr__granule_rows(dst->granularity, dst->axis) &&
      src_columns >= purr__granule_columns(dst->granularity, dst->axis))
    return PURR_STATUS_OK;
  return purr__fail(
      err, PURR_STATUS_INVALID_ARGUMENT,
      "scales of granularity %s along %s cannot be written as %s along %s: there a value must repeat over "
      "more rows or columns; quantise again from the original",
      names[src->granularity], axes[src->axis], names[dst->granularity], axes[dst->axis]);
}

purr_status_t purr_scales_convert(purr_context_t *context, const purr_tensor_t *tensor,
                                  const purr_scales_t *destination, purr_error_t *err) {
  purr_tensor_t own;
  purr__scales_shape_t shape;
  purr_scales_info_t src_info, dst_info;
  conversion_t job;
  purr_status_t status = purr__check(context, PURR__CONTEXT, err);
  if (status == PURR_STATUS_OK) status = purr__scales_shape(tensor, "tensor", &own, &shape, err);
  if (status == PURR_STATUS_OK)
    status = purr__scales_check(own.scales, &shape, PURR__SCALES_READ, &job.src, &src_info, err);
  if (status != PURR_STATUS_OK) return status;
  shape.name = "destination";
  status = purr__scales_check(destination, &shape, PURR__SCALES_WRITTEN, &job.dst, &dst_info, err);
  if (status == PURR_STATUS_OK) status = check_granularities(&job.src, &job.dst, err);
  if (status != PURR_STATUS_OK) return status;
  job.src_slice_stride = src_info.slice_stride;
  job.dst_slice_stride = dst_info.slice_stride;
  job.num_rows = shape.num_rows;
  job.num_columns = shape.num_columns;
  job.bands_per_slice = (shape.num_rows + PURR__TILE_OUTER - 1) / PURR__TILE_OUTER;
  if (dst_info.num_bytes > 0) purr__parallel_for(context, job.bands_per_slice * shape.num_slices, convert_band, &job);
  return PURR_STATUS_OK;
}
