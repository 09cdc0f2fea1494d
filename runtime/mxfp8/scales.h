/* Where the scale byte of a block is. */
#ifndef PURR_MXFP8_SCALES_H
#define PURR_MXFP8_SCALES_H

#include "base/base.h"

enum {
  PURR__BLOCK_LENGTH = 32,
  PURR__TILE_OUTER = 128, /* a tile of PURR_SCALE_LAYOUT_TILE_128X4 */
  PURR__TILE_BLOCKS = 4,
  PURR__TILE_BYTES = PURR__TILE_OUTER * PURR__TILE_BLOCKS,
};

/* The scales of one matrix, checked. */
typedef struct purr__scales_view {
  uint8_t *data;
  int32_t axis, granularity, layout;
  int64_t num_outer, num_blocks;
  int64_t outer_stride, block_stride; /* plain layout */
  int64_t tile_row_bytes;             /* tiles: bytes of the tiles that share an outer range */
} purr__scales_view_t;

static inline uint8_t *purr__scale_at(const purr__scales_view_t *scales, int64_t outer, int64_t block) {
  if (scales->layout == PURR_SCALE_LAYOUT_PLAIN)
    return scales->data + outer * scales->outer_stride + block * scales->block_stride;
  const int64_t in_tile = outer % PURR__TILE_OUTER;
  return scales->data + outer / PURR__TILE_OUTER * scales->tile_row_bytes +
         block / PURR__TILE_BLOCKS * PURR__TILE_BYTES + in_tile % 32 * 16 + in_tile / 32 * 4 +
         block % PURR__TILE_BLOCKS;
}

/* Rows and columns of the matrix that share a scale value. */
static inline int64_t purr__granule_rows(int32_t granularity, int32_t axis) {
  const bool wide = granularity == PURR_GRANULARITY_1X128 || granularity == PURR_GRANULARITY_128X128;
  const bool square = granularity == PURR_GRANULARITY_32X32 || granularity == PURR_GRANULARITY_128X128;
  return axis == PURR_SCALE_ALONG_COLUMN || square ? (wide ? 128 : 32) : 1;
}
static inline int64_t purr__granule_columns(int32_t granularity, int32_t axis) {
  return purr__granule_rows(granularity, axis == PURR_SCALE_ALONG_ROW ? PURR_SCALE_ALONG_COLUMN : PURR_SCALE_ALONG_ROW);
}

/* Zeroes the padding of the tiles that hold the scales of a part of the matrix; rows and columns begin at multiples of
 * 128. Nothing to do in the plain layout. */
void purr__scales_clear_padding(const purr__scales_view_t *scales, int64_t row, int64_t num_rows, int64_t column,
                                int64_t num_columns);

/* A scale descriptor against the shape of its tensor. */
typedef struct purr__scales_shape {
  const char *name; /* of the tensor, for messages */
  int64_t num_slices, num_rows, num_columns;
} purr__scales_shape_t;

/* Reads a tensor's struct and its shape, 2-D or 3-D; nothing else of it is checked. */
purr_status_t purr__scales_shape(const purr_tensor_t *tensor, const char *name, purr_tensor_t *out_own,
                                 purr__scales_shape_t *out_shape, purr_error_t *err);

typedef enum purr__scales_use {
  PURR__SCALES_SIZED,   /* no memory needed */
  PURR__SCALES_READ,    /* memory needed; blocks may share bytes */
  PURR__SCALES_WRITTEN, /* memory needed, one byte for each block */
} purr__scales_use_t;

/* Checks `scales`. out_view is that of slice 0, out_info has every stride filled in. */
purr_status_t purr__scales_check(const purr_scales_t *scales, const purr__scales_shape_t *shape, purr__scales_use_t use,
                                 purr__scales_view_t *out_view, purr_scales_info_t *out_info, purr_error_t *err);

#endif
