/* MXFP8 tensors through the public interface: scale layouts and their padding, strides, another form of the same
 * scales, what is refused. Every buffer starts as 0xFF and stands between canaries. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "support/main.h"
#include "support/mxfp8.h"

static purr_context_t *context;
static purr_error_t err;

/* ---- guarded memory ---- */

enum { GUARD_BYTES = 4096 };

static uint8_t *guarded(size_t bytes) {
  uint8_t *block = malloc(bytes + 2 * GUARD_BYTES);
  if (block == NULL) abort();
  memset(block, 0xA5, bytes + 2 * GUARD_BYTES);
  memset(block + GUARD_BYTES, 0xFF, bytes);
  return block + GUARD_BYTES;
}

static void release_guarded(uint8_t *memory, size_t bytes) {
  for (size_t i = 0; i < GUARD_BYTES; i++)
    if (memory[-(ptrdiff_t)i - 1] != 0xA5 || memory[bytes + i] != 0xA5) {
      CU_FAIL("a canary was overwritten");
      break;
    }
  free(memory - GUARD_BYTES);
}

/* ---- tensors ---- */

static purr_tensor_t tensor_2d(void *data, int32_t dtype, int64_t num_rows, int64_t num_columns) {
  return (purr_tensor_t){.struct_size = sizeof(purr_tensor_t),
                         .dtype = dtype,
                         .num_dims = 2,
                         .data = data,
                         .shape = {num_rows, num_columns}};
}

static purr_scales_t scales_of(int32_t axis, int32_t granularity, int32_t layout) {
  purr_scales_t scales = PURR_SCALES_INIT;
  scales.axis = axis;
  scales.granularity = granularity;
  scales.layout = layout;
  return scales;
}

/* FP32 numbers whose blocks have scales that differ from one to the next. */
static void fill(float *out, int64_t num_rows, int64_t num_columns) {
  uint64_t state = 2463534242u;
  for (int64_t i = 0; i < num_rows * num_columns; i++) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    const int exponent = (int)((i / num_columns / 32 * 3 + i % num_columns / 32 * 5 + i / num_columns) % 23);
    out[i] = (float)ldexp((double)(int64_t)(state >> 40) / 0x1p23 - 1, exponent - 11);
  }
}

/* What each element's scale byte and the elements must be. */
typedef struct model {
  int64_t num_rows, num_columns;
  float *values;
  uint8_t *elements, *scales;
} model_t;

static model_t model_create(int64_t num_rows, int64_t num_columns, int32_t granularity, int32_t axis, int32_t rule) {
  const size_t num = (size_t)(num_rows * num_columns);
  model_t m = {num_rows, num_columns, malloc(num * sizeof(float)), malloc(num), malloc(num)};
  double *doubles = malloc(num * sizeof(double));
  if (m.values == NULL || m.elements == NULL || m.scales == NULL || doubles == NULL) abort();
  fill(m.values, num_rows, num_columns);
  for (size_t i = 0; i < num; i++) doubles[i] = (double)m.values[i];
  purr_test_mxfp8_quantize(doubles, num_rows, num_columns, granularity, axis, rule, m.elements, m.scales);
  free(doubles);
  return m;
}

static void model_destroy(model_t *m) {
  free(m->values);
  free(m->elements);
  free(m->scales);
}

static uint8_t model_scale(const model_t *m, int32_t axis, int64_t outer, int64_t block) {
  const int64_t row = axis == PURR_SCALE_ALONG_ROW ? outer : block * 32;
  const int64_t column = axis == PURR_SCALE_ALONG_ROW ? block * 32 : outer;
  return m->scales[row * m->num_columns + column];
}

/* All bytes of a tiled scale buffer, each found anew from its position: padding is 0. */
static void check_tiles(const model_t *m, int32_t axis, const uint8_t *data, const purr_scales_info_t *info) {
  const int64_t num_tiles_across = (info->num_blocks + 3) / 4;
  int64_t num_wrong = 0;
  for (int64_t i = 0; i < (int64_t)info->num_bytes; i++) {
    const int64_t tile = i / 512, byte = i % 512;
    const int64_t outer = tile / num_tiles_across * 128 + byte % 16 / 4 * 32 + byte / 16;
    const int64_t block = tile % num_tiles_across * 4 + byte % 4;
    const bool padding = outer >= info->num_outer || block >= info->num_blocks;
    num_wrong += data[i] != (padding ? 0 : model_scale(m, axis, outer, block));
  }
  CU_ASSERT_EQUAL(num_wrong, 0);
}

static void check_plain(const model_t *m, int32_t axis, const uint8_t *data, const purr_scales_info_t *info) {
  int64_t num_wrong = 0;
  for (int64_t o = 0; o < info->num_outer; o++)
    for (int64_t b = 0; b < info->num_blocks; b++)
      num_wrong += data[o * info->outer_stride + b * info->block_stride] != model_scale(m, axis, o, b);
  CU_ASSERT_EQUAL(num_wrong, 0);
}

/* ---- layouts ---- */

static void sizes(void) {
  static const struct {
    int64_t num_rows, num_columns;
    int32_t axis, layout;
    int64_t num_outer, num_blocks;
    uint64_t num_bytes;
  } cases[] = {
      {130, 288, PURR_SCALE_ALONG_ROW, PURR_SCALE_LAYOUT_PLAIN, 130, 9, 1170},
      {130, 288, PURR_SCALE_ALONG_ROW, PURR_SCALE_LAYOUT_TILE_128X4, 130, 9, 256 * 12},
      {130, 288, PURR_SCALE_ALONG_COLUMN, PURR_SCALE_LAYOUT_PLAIN, 288, 5, 1440},
      {130, 288, PURR_SCALE_ALONG_COLUMN, PURR_SCALE_LAYOUT_TILE_128X4, 288, 5, 384 * 8},
      {1, 1, PURR_SCALE_ALONG_ROW, PURR_SCALE_LAYOUT_TILE_128X4, 1, 1, 512},
      {0, 64, PURR_SCALE_ALONG_ROW, PURR_SCALE_LAYOUT_TILE_128X4, 0, 2, 0},
      {64, 0, PURR_SCALE_ALONG_COLUMN, PURR_SCALE_LAYOUT_PLAIN, 0, 2, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const purr_scales_t scales = scales_of(cases[i].axis, PURR_GRANULARITY_1X32, cases[i].layout);
    purr_tensor_t tensor = tensor_2d(NULL, PURR_DTYPE_E4M3, cases[i].num_rows, cases[i].num_columns);
    tensor.scales = &scales;
    purr_scales_info_t info = {.struct_size = sizeof info};
    ASSERT_OK(purr_scales_query(context, &tensor, &info, &err));
    CU_ASSERT_EQUAL(info.num_slices, 1);
    CU_ASSERT_EQUAL(info.num_outer, cases[i].num_outer);
    CU_ASSERT_EQUAL(info.num_blocks, cases[i].num_blocks);
    CU_ASSERT_EQUAL(info.num_bytes, cases[i].num_bytes);
  }
  /* Slices at a distance: the last one ends the memory. */
  purr_scales_t scales = scales_of(0, 0, PURR_SCALE_LAYOUT_TILE_128X4);
  scales.slice_stride = 5000;
  const purr_tensor_t tensor = {.struct_size = sizeof tensor, .num_dims = 3, .shape = {3, 130, 288}, .scales = &scales};
  purr_scales_info_t info = {.struct_size = sizeof info};
  ASSERT_OK(purr_scales_query(context, &tensor, &info, &err));
  CU_ASSERT_EQUAL(info.num_slices, 3);
  CU_ASSERT_EQUAL(info.slice_stride, 5000);
  CU_ASSERT_EQUAL(info.num_bytes, 2 * 5000 + 256 * 12);
}

/* B21: sizes that are no multiple of the tile, buffers full of 0xFF. Every form of every granularity, there and back.
 */
static void layouts_and_padding(void) {
  static const int64_t shapes[][2] = {{130, 288}, {130, 160}, {5, 32}, {257, 129}};
  for (int i = 0; i < 4; i++)
    for (int form = 0; form < 16; form++) {
      const int64_t num_rows = shapes[i][0], num_columns = shapes[i][1];
      const int32_t granularity = form & 3, axis = form >> 2 & 1, layout = form >> 3;
      model_t m = model_create(num_rows, num_columns, granularity, axis, PURR_SCALE_RULE_RCEIL);
      const size_t num = (size_t)(num_rows * num_columns);
      purr_scales_t scales = scales_of(axis, granularity, layout);
      uint8_t *elements = guarded(num);
      const purr_tensor_t source = tensor_2d(m.values, PURR_DTYPE_FP32, num_rows, num_columns);
      purr_tensor_t quantized = tensor_2d(elements, PURR_DTYPE_E4M3, num_rows, num_columns);
      quantized.scales = &scales;
      purr_scales_info_t info = {.struct_size = sizeof info};
      REQUIRE_OK(purr_scales_query(context, &quantized, &info, &err));
      uint8_t *bytes = guarded(info.num_bytes);
      scales.data = bytes;
      scales.data_bytes = info.num_bytes;
      ASSERT_OK(purr_mxfp8_quantize(context, &source, PURR_SCALE_RULE_RCEIL, &quantized, &err));
      CU_ASSERT_EQUAL(memcmp(elements, m.elements, num), 0);
      if (layout == PURR_SCALE_LAYOUT_PLAIN)
        check_plain(&m, axis, bytes, &info);
      else
        check_tiles(&m, axis, bytes, &info);

      float *back = (float *)(void *)guarded(num * sizeof(float));
      const purr_tensor_t destination = tensor_2d(back, PURR_DTYPE_FP32, num_rows, num_columns);
      ASSERT_OK(purr_mxfp8_dequantize(context, &quantized, &destination, &err));
      int64_t num_wrong = 0;
      for (size_t k = 0; k < num; k++)
        num_wrong += (double)back[k] != purr_test_mxfp8_value(m.elements[k], m.scales[k]);
      CU_ASSERT_EQUAL(num_wrong, 0);
      release_guarded((uint8_t *)back, num * sizeof(float));
      release_guarded(elements, num);
      release_guarded(bytes, info.num_bytes);
      model_destroy(&m);
    }
}

/* From each layout to each other, with strides of all kinds in between. */
static void layouts_convert(void) {
  for (int axis = 0; axis < 2; axis++) {
    model_t m = model_create(130, 288, PURR_GRANULARITY_1X32, axis, PURR_SCALE_RULE_FLOOR);
    const int64_t num_outer = axis ? 288 : 130, num_blocks = axis ? 5 : 9;
    /* plain, plain transposed, plain with gaps, tiles */
    purr_scales_t forms[4];
    uint8_t *memory[4];
    purr_scales_info_t info[4];
    purr_tensor_t tensor = tensor_2d(NULL, PURR_DTYPE_E4M3, 130, 288);
    for (int i = 0; i < 4; i++) {
      forms[i] = scales_of(axis, PURR_GRANULARITY_1X32, i == 3);
      if (i == 1) forms[i].outer_stride = 1, forms[i].block_stride = num_outer;
      if (i == 2) forms[i].outer_stride = 3 * num_blocks + 7, forms[i].block_stride = 3;
      tensor.scales = &forms[i];
      info[i].struct_size = sizeof info[i];
      REQUIRE_OK(purr_scales_query(context, &tensor, &info[i], &err));
    }
    for (int from = 0; from < 4; from++)
      for (int to = 0; to < 4; to++) {
        if (from == to) continue;
        for (int i = 0; i < 4; i++) {
          memory[i] = guarded(info[i].num_bytes);
          forms[i].data = memory[i];
        }
        for (int64_t o = 0; o < num_outer; o++)
          for (int64_t b = 0; b < num_blocks; b++) {
            const int64_t tile = o / 128 * ((num_blocks + 3) / 4) + b / 4;
            const int64_t tiled = tile * 512 + o % 32 * 16 + o % 128 / 32 * 4 + b % 4;
            const int64_t plain = o * info[from].outer_stride + b * info[from].block_stride;
            memory[from][from == 3 ? tiled : plain] = model_scale(&m, axis, o, b);
          }
        tensor.scales = &forms[from];
        ASSERT_OK(purr_scales_convert(context, &tensor, &forms[to], &err));
        if (to == 3)
          check_tiles(&m, axis, memory[to], &info[to]);
        else
          check_plain(&m, axis, memory[to], &info[to]);
        if (to == 2) { /* gaps stay */
          CU_ASSERT_EQUAL(memory[2][1], 0xFF);
          CU_ASSERT_EQUAL(memory[2][3 * num_blocks + 6], 0xFF);
        }
        for (int i = 0; i < 4; i++) release_guarded(memory[i], info[i].num_bytes);
      }
    model_destroy(&m);
  }
}

/* One quantised copy of a weight serves both passes: square granularities turn to the other axis, and coarse ones may
 * be called finer. The elements are the same either way. */
static void squares_turn(void) {
  static const struct {
    int32_t from, to;
    bool turned_allowed, straight_allowed;
  } cases[] = {
      {PURR_GRANULARITY_32X32, PURR_GRANULARITY_32X32, true, true},
      {PURR_GRANULARITY_32X32, PURR_GRANULARITY_1X32, true, true},
      {PURR_GRANULARITY_32X32, PURR_GRANULARITY_1X128, false, false},
      {PURR_GRANULARITY_128X128, PURR_GRANULARITY_1X128, true, true},
      {PURR_GRANULARITY_128X128, PURR_GRANULARITY_32X32, true, true},
      {PURR_GRANULARITY_128X128, PURR_GRANULARITY_128X128, true, true},
      {PURR_GRANULARITY_1X128, PURR_GRANULARITY_1X32, false, true},
      {PURR_GRANULARITY_1X128, PURR_GRANULARITY_128X128, false, false},
      {PURR_GRANULARITY_1X32, PURR_GRANULARITY_1X32, false, true},
      {PURR_GRANULARITY_1X32, PURR_GRANULARITY_1X128, false, false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int form = 0; form < 8; form++) {
      const int axis = form & 1, layout = form >> 1 & 1, turned = form >> 2, new_axis = axis ^ turned;
      model_t m = model_create(160, 290, cases[i].from, axis, PURR_SCALE_RULE_RCEIL);
      uint8_t *elements = guarded(160 * 290), *old_bytes = guarded(64 * 1024), *new_bytes = guarded(64 * 1024);
      purr_scales_t old_scales = scales_of(axis, cases[i].from, !layout);
      purr_scales_t new_scales = scales_of(new_axis, cases[i].to, layout);
      old_scales.data = old_bytes;
      new_scales.data = new_bytes;
      const purr_tensor_t source = tensor_2d(m.values, PURR_DTYPE_FP32, 160, 290);
      purr_tensor_t quantized = tensor_2d(elements, PURR_DTYPE_E4M3, 160, 290);
      quantized.scales = &old_scales;
      REQUIRE_OK(purr_mxfp8_quantize(context, &source, PURR_SCALE_RULE_RCEIL, &quantized, &err));
      const bool allowed = turned ? cases[i].turned_allowed : cases[i].straight_allowed;
      ASSERT_STATUS(allowed ? PURR_STATUS_OK : PURR_STATUS_INVALID_ARGUMENT,
                    purr_scales_convert(context, &quantized, &new_scales, &err));
      quantized.scales = &new_scales;
      purr_scales_info_t info = {.struct_size = sizeof info};
      REQUIRE_OK(purr_scales_query(context, &quantized, &info, &err));
      if (!allowed)
        CU_ASSERT_EQUAL(new_bytes[0], 0xFF) /* nothing was written */
      else if (layout == PURR_SCALE_LAYOUT_PLAIN)
        check_plain(&m, new_axis, new_bytes, &info);
      else
        check_tiles(&m, new_axis, new_bytes, &info);
      CU_ASSERT_EQUAL(memcmp(elements, m.elements, 160 * 290), 0);
      release_guarded(elements, 160 * 290);
      release_guarded(old_bytes, 64 * 1024);
      release_guarded(new_bytes, 64 * 1024);
      model_destroy(&m);
    }
}

/* ---- strides, slices, types ---- */

/* A weight [3, 70, 96] in parts of a larger block, once by strides and once by an array of pointers. */
static void slices_and_strides(void) {
  enum { SLICES = 3, ROWS = 70, COLUMNS = 96, ROW_STRIDE = 104, SLICE_STRIDE = 9000, SCALE_STRIDE = 1024 };
  float *values = malloc(SLICES * ROWS * COLUMNS * sizeof(float));
  uint8_t *wanted = malloc(ROWS * COLUMNS), *wanted_scales = malloc(ROWS * COLUMNS);
  double *doubles = malloc(ROWS * COLUMNS * sizeof(double));
  uint16_t *source = (uint16_t *)(void *)guarded(SLICES * SLICE_STRIDE * 2);
  if (values == NULL || wanted == NULL || wanted_scales == NULL || doubles == NULL) abort();
  fill(values, SLICES * ROWS, COLUMNS);
  for (int64_t i = 0; i < SLICES * ROWS * COLUMNS; i++) {
    const int64_t slice = i / (ROWS * COLUMNS), row = i / COLUMNS % ROWS, column = i % COLUMNS;
    source[slice * SLICE_STRIDE + row * ROW_STRIDE + column] = purr__bf16_from_fp32(values[i]);
  }
  for (int with_pointers = 0; with_pointers < 2; with_pointers++)
    for (int axis = 0; axis < 2; axis++) {
      const size_t element_bytes = SLICES * SLICE_STRIDE, scale_bytes = SLICES * SCALE_STRIDE;
      uint8_t *elements = guarded(element_bytes), *bytes = guarded(scale_bytes);
      void *src_pointers[SLICES], *dst_pointers[SLICES];
      for (int s = 0; s < SLICES; s++) {
        src_pointers[s] = source + s * SLICE_STRIDE;
        dst_pointers[s] = elements + s * SLICE_STRIDE;
      }
      purr_scales_t scales = scales_of(axis, PURR_GRANULARITY_1X32, PURR_SCALE_LAYOUT_TILE_128X4);
      scales.data = bytes;
      scales.slice_stride = SCALE_STRIDE;
      purr_tensor_t src = {.struct_size = sizeof src,
                           .dtype = PURR_DTYPE_BF16,
                           .num_dims = 3,
                           .data = source,
                           .shape = {SLICES, ROWS, COLUMNS},
                           .stride = {SLICE_STRIDE, ROW_STRIDE, 1}};
      purr_tensor_t dst = src;
      dst.dtype = PURR_DTYPE_E4M3;
      dst.data = elements;
      dst.scales = &scales;
      if (with_pointers) {
        src.data = dst.data = NULL;
        src.pointers = src_pointers;
        dst.pointers = dst_pointers;
      }
      ASSERT_OK(purr_mxfp8_quantize(context, &src, PURR_SCALE_RULE_RCEIL, &dst, &err));
      float *back = (float *)(void *)guarded(element_bytes * 4);
      const purr_tensor_t read = {.struct_size = sizeof read,
                                  .dtype = PURR_DTYPE_FP32,
                                  .num_dims = 3,
                                  .data = back,
                                  .shape = {SLICES, ROWS, COLUMNS},
                                  .stride = {SLICE_STRIDE, ROW_STRIDE, 1}};
      ASSERT_OK(purr_mxfp8_dequantize(context, &dst, &read, &err));
      int64_t num_wrong = 0;
      for (int64_t s = 0; s < SLICES; s++) {
        for (int64_t i = 0; i < ROWS * COLUMNS; i++)
          doubles[i] = (double)purr__fp32_from_bf16(source[s * SLICE_STRIDE + i / COLUMNS * ROW_STRIDE + i % COLUMNS]);
        purr_test_mxfp8_quantize(doubles, ROWS, COLUMNS, PURR_GRANULARITY_1X32, axis, PURR_SCALE_RULE_RCEIL, wanted,
                                 wanted_scales);
        for (int64_t r = 0; r < SLICE_STRIDE / ROW_STRIDE; r++)
          for (int64_t c = 0; c < ROW_STRIDE; c++) {
            const int64_t at = s * SLICE_STRIDE + r * ROW_STRIDE + c, i = r * COLUMNS + c;
            const bool inside = r < ROWS && c < COLUMNS;
            num_wrong += elements[at] != (inside ? wanted[i] : 0xFF);
            num_wrong += inside ? (double)back[at] != purr_test_mxfp8_value(wanted[i], wanted_scales[i])
                                : purr__fp32_bits(back[at]) != 0xFFFFFFFFu;
          }
      }
      CU_ASSERT_EQUAL(num_wrong, 0);
      release_guarded(elements, element_bytes);
      release_guarded(bytes, scale_bytes);
      release_guarded((uint8_t *)back, element_bytes * 4);
    }
  free(values);
  free(wanted);
  free(wanted_scales);
  free(doubles);
  release_guarded((uint8_t *)source, SLICES * SLICE_STRIDE * 2);
}

/* B15 through the public call, and tensors that a reader may broadcast. */
static void handmade_scales(void) {
  uint8_t elements[32], scale;
  memset(elements, 0x38, sizeof elements);
  static const struct {
    uint8_t scale;
    float value;
  } cases[] = {{0, 0x1p-127f}, {1, 0x1p-126f}, {127, 1.0f}, {254, 0x1p127f}, {255, NAN}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int axis = 0; axis < 2; axis++) {
      float fp32[32];
      uint16_t bf16[32];
      scale = cases[i].scale;
      purr_scales_t scales = scales_of(axis, 0, 0);
      scales.data = &scale;
      purr_tensor_t source = tensor_2d(elements, PURR_DTYPE_E4M3, axis ? 32 : 1, axis ? 1 : 32);
      source.scales = &scales;
      purr_tensor_t destination = tensor_2d(fp32, PURR_DTYPE_FP32, axis ? 32 : 1, axis ? 1 : 32);
      ASSERT_OK(purr_mxfp8_dequantize(context, &source, &destination, &err));
      destination.dtype = PURR_DTYPE_BF16;
      destination.data = bf16;
      ASSERT_OK(purr_mxfp8_dequantize(context, &source, &destination, &err));
      for (int k = 0; k < 32; k++) {
        const float canonical = purr__canonical_fp32(cases[i].value);
        CU_ASSERT_EQUAL(purr__fp32_bits(fp32[k]), purr__fp32_bits(canonical));
        CU_ASSERT_EQUAL((uint32_t)bf16[k] << 16, purr__fp32_bits(canonical));
      }
    }
  /* One scale byte and one row for everything: strides that a written tensor may not have. */
  float back[8 * 32];
  scale = 128;
  purr_scales_t scales = scales_of(0, 0, 0);
  scales.data = &scale;
  scales.data_bytes = 8;
  scales.block_stride = 1;
  purr_tensor_t source = tensor_2d(elements, PURR_DTYPE_E4M3, 8, 32);
  source.stride[1] = 1;
  source.scales = &scales;
  const purr_tensor_t destination = tensor_2d(back, PURR_DTYPE_FP32, 8, 32);
  ASSERT_OK(purr_mxfp8_dequantize(context, &source, &destination, &err));
  for (int i = 0; i < 8 * 32; i++) CU_ASSERT_EQUAL(back[i], 2.0f);
}

static void empty_tensors(void) {
  static const int64_t shapes[][3] = {{0, 4, 32}, {2, 0, 32}, {2, 4, 0}};
  for (int i = 0; i < 3; i++)
    for (int form = 0; form < 4; form++) {
      purr_scales_t scales = scales_of(form & 1, 0, form >> 1);
      purr_scales_t other = scales_of(form & 1, 0, !(form >> 1));
      purr_tensor_t source = {.struct_size = sizeof source, .dtype = PURR_DTYPE_BF16, .num_dims = 3};
      memcpy(source.shape, shapes[i], sizeof shapes[i]);
      purr_tensor_t destination = source;
      destination.dtype = PURR_DTYPE_E4M3;
      destination.scales = &scales;
      ASSERT_OK(purr_mxfp8_quantize(context, &source, PURR_SCALE_RULE_RCEIL, &destination, &err));
      ASSERT_OK(purr_mxfp8_dequantize(context, &destination, &source, &err));
      ASSERT_OK(purr_scales_convert(context, &destination, &other, &err));
    }
}

/* ---- what is refused ---- */

static uint16_t some_bf16[64 * 64];
static uint8_t some_e4m3[64 * 64], some_scales[4096] __attribute__((aligned(16)));
static purr_tensor_t bad_source, bad_destination;
static purr_scales_t bad_scales;

static void start_over(void) {
  bad_source = tensor_2d(some_bf16, PURR_DTYPE_BF16, 64, 64);
  bad_destination = tensor_2d(some_e4m3, PURR_DTYPE_E4M3, 64, 64);
  bad_scales = scales_of(PURR_SCALE_ALONG_ROW, PURR_GRANULARITY_1X32, PURR_SCALE_LAYOUT_PLAIN);
  bad_scales.data = some_scales;
  bad_scales.data_bytes = sizeof some_scales;
  bad_destination.scales = &bad_scales;
  memset(some_e4m3, 0xFF, sizeof some_e4m3);
  memset(some_scales, 0xFF, sizeof some_scales);
}

/* The call fails, says each of the words, and has written nothing. */
static void refuse(purr_status_t expected, const char *word, const char *other_word) {
  ASSERT_STATUS(expected, purr_mxfp8_quantize(context, &bad_source, PURR_SCALE_RULE_RCEIL, &bad_destination, &err));
  if (strstr(err.message, word) == NULL || strstr(err.message, other_word) == NULL) {
    fprintf(stderr, "'%s' should name '%s' and '%s'\n", err.message, word, other_word);
    CU_FAIL("the message does not say what is wrong");
  }
  for (size_t i = 0; i < sizeof some_e4m3; i++)
    if (some_e4m3[i] != 0xFF || some_scales[i] != 0xFF) {
      CU_FAIL("a refused call wrote something");
      break;
    }
  start_over();
}

static void wrong_tensors_are_refused(void) {
  const purr_status_t wrong = PURR_STATUS_INVALID_ARGUMENT;
  start_over();
  bad_source.dtype = PURR_DTYPE_FP16;
  refuse(wrong, "source", "FP16");
  bad_destination.dtype = PURR_DTYPE_E5M2;
  refuse(wrong, "destination", "E5M2");
  bad_source.num_dims = 1;
  refuse(wrong, "source", "1 dimensions");
  bad_source.num_dims = -7;
  refuse(wrong, "source", "-7 dimensions");
  bad_destination.shape[0] = 63;
  refuse(wrong, "destination", "[63, 64]");
  bad_source.shape[1] = -1;
  refuse(wrong, "source", "-1");
  bad_source.shape[0] = bad_destination.shape[0] = INT64_MAX;
  bad_source.stride[1] = 1;
  refuse(wrong, "source", "9223372036854775807");
  bad_source.stride[0] = 64;
  bad_source.stride[1] = 2;
  refuse(wrong, "source", "stride[1]");
  bad_destination.stride[0] = 63;
  bad_destination.stride[1] = 1;
  refuse(wrong, "destination", "overlap");
  bad_source.data = NULL;
  refuse(wrong, "source", "NULL");
  bad_source.scales = &bad_scales;
  refuse(wrong, "source", "scales");
  bad_destination.scales = NULL;
  refuse(wrong, "destination", "no scales");
  bad_source.shape[2] = bad_source.shape[1];
  bad_source.shape[1] = bad_source.shape[0];
  bad_source.shape[0] = 2;
  bad_source.num_dims = 3;
  refuse(wrong, "destination", "[2, 64, 64]");
  ASSERT_STATUS(wrong, purr_mxfp8_quantize(context, &bad_source, 2, &bad_destination, &err));
  ASSERT_STATUS(wrong, purr_mxfp8_quantize(context, &bad_source, -1, &bad_destination, &err));
  ASSERT_STATUS(wrong, purr_mxfp8_quantize(NULL, &bad_source, 0, &bad_destination, &err));
  ASSERT_STATUS(wrong, purr_mxfp8_quantize(context, NULL, 0, &bad_destination, &err));
  ASSERT_STATUS(wrong, purr_mxfp8_quantize(context, &bad_source, 0, NULL, &err));
  ASSERT_STATUS(wrong, purr_mxfp8_dequantize(context, &bad_destination, NULL, &err));
  ASSERT_STATUS(wrong, purr_mxfp8_dequantize(context, NULL, &bad_source, &err));
  CU_ASSERT_EQUAL(purr_mxfp8_quantize(context, NULL, 0, NULL, NULL), wrong);
}

static void wrong_scales_are_refused(void) {
  const purr_status_t wrong = PURR_STATUS_INVALID_ARGUMENT;
  start_over();
  bad_scales.axis = 2;
  refuse(wrong, "axis", "0 to 1");
  bad_scales.granularity = -1;
  refuse(wrong, "granularity", "0 to 3");
  bad_scales.layout = 7;
  refuse(wrong, "layout", "is 7");
  bad_scales.format = PURR_DTYPE_FP32;
  refuse(wrong, "format", "FP32");
  bad_scales.block_length = 16;
  refuse(wrong, "block_length", "16");
  bad_scales.outer_stride = -2;
  refuse(wrong, "strides", "-2");
  bad_scales.outer_stride = 1; /* block_stride 0: both blocks of a row in one byte */
  refuse(wrong, "strides", "share bytes");
  bad_scales.outer_stride = 1, bad_scales.block_stride = 63;
  refuse(wrong, "strides", "share bytes");
  bad_scales.outer_stride = INT64_MAX / 2, bad_scales.block_stride = 1;
  refuse(wrong, "strides", "more than fits");
  bad_scales.layout = PURR_SCALE_LAYOUT_TILE_128X4, bad_scales.outer_stride = 4;
  refuse(wrong, "outer_stride", "tiles");
  bad_scales.layout = PURR_SCALE_LAYOUT_TILE_128X4, bad_scales.data = some_scales + 4;
  refuse(wrong, "16 bytes", "starts at");
  bad_scales.data = NULL;
  refuse(wrong, "NULL", "128 bytes");
  bad_scales.data_bytes = 127;
  refuse(PURR_STATUS_BUFFER_TOO_SMALL, "127", "128");
  bad_scales.layout = PURR_SCALE_LAYOUT_TILE_128X4, bad_scales.data_bytes = 511;
  refuse(PURR_STATUS_BUFFER_TOO_SMALL, "511", "512");
  bad_scales.struct_size = 4;
  refuse(wrong, "purr_scales_t", "struct_size");

  ASSERT_STATUS(wrong, purr_scales_convert(context, &bad_destination, NULL, &err));
  ASSERT_STATUS(wrong, purr_scales_convert(context, NULL, &bad_scales, &err));
  ASSERT_STATUS(wrong, purr_scales_query(context, &bad_destination, NULL, &err));
  ASSERT_STATUS(wrong, purr_scales_query(context, &bad_source, &(purr_scales_info_t){.struct_size = 8}, &err));
  /* A newer caller's struct with something that this library does not know. */
  struct {
    purr_scales_t known;
    uint64_t unknown;
  } newer = {bad_scales, 1};
  newer.known.struct_size = sizeof newer;
  bad_destination.scales = &newer.known;
  refuse(PURR_STATUS_INCOMPATIBLE_STRUCT, "purr_scales_t", "newer header");
}

int main(void) {
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  desc.num_threads = 3;
  err = (purr_error_t)PURR_ERROR_INIT;
  if (purr_context_create(&desc, &context, &err) != PURR_STATUS_OK) {
    fprintf(stderr, "%s\n", err.message);
    return 1;
  }
  const int failures =
      purr_test_main("mxfp8 tensors", (purr_test_t[]){{"sizes of scales", sizes},
                                                      {"layouts and their padding (B21)", layouts_and_padding},
                                                      {"layouts convert into each other", layouts_convert},
                                                      {"square granularities turn to the other axis", squares_turn},
                                                      {"slices, strides and pointers", slices_and_strides},
                                                      {"scales made by hand (B15)", handmade_scales},
                                                      {"empty tensors", empty_tensors},
                                                      {"wrong tensors are refused", wrong_tensors_are_refused},
                                                      {"wrong scales are refused", wrong_scales_are_refused},
                                                      {0}});
  purr_context_destroy(context);
  return failures;
}
