#include "checkpoint/matrix.h"

#include <stdio.h>

#include "checkpoint/safetensors.h"
#include "mxfp8/codec.h"

/* ---- finding ---- */

static int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

static purr_status_t fail_shape(const purr_checkpoint_t *checkpoint, const purr__entry_t *entry, const char *needed_by,
                                const char *allowed, purr_error_t *err) {
  return purr__fail(err, PURR_STATUS_CHECKPOINT, "%s: tensor '%s' has shape %s; %s needs %s",
                    purr__checkpoint_file(checkpoint, entry), purr__shown(entry->name).text,
                    purr__shown_shape(entry->shape, entry->num_dims).text, needed_by, allowed);
}

static bool has_shape(const purr__entry_t *entry, const int64_t *shape, int32_t num_dims) {
  return entry->num_dims == num_dims && memcmp(entry->shape, shape, (size_t)num_dims * sizeof *shape) == 0;
}

purr_status_t purr__tensor_require(const purr_checkpoint_t *checkpoint, const purr__wanted_t *wanted,
                                   const char *needed_by, purr__entry_t **out_entry, purr_error_t *err) {
  purr_status_t status = purr__checkpoint_lookup(checkpoint, wanted->name, needed_by, out_entry, err);
  if (status != PURR_STATUS_OK || has_shape(*out_entry, wanted->shape, wanted->num_dims)) return status;
  return fail_shape(checkpoint, *out_entry, needed_by, purr__shown_shape(wanted->shape, wanted->num_dims).text, err);
}

/* The scales of an E4M3 tensor stand beside it, under its name with an ending. */
static purr_status_t find_scales(const purr_checkpoint_t *checkpoint, const purr__entry_t *entry, const char *needed_by,
                                 purr__entry_t **out_scales, purr_error_t *err) {
  static const char *const endings[] = {"_scale", "_scale_inv"};
  char name[PURR__MAX_TENSOR_NAME + 16];
  for (int i = 0; i < 2; i++) {
    int length = snprintf(name, sizeof name, "%s%s", entry->name, endings[i]);
    *out_scales = purr__directory_find(&checkpoint->tensors, name, (uint64_t)length);
    if (*out_scales != NULL) break;
  }
  if (*out_scales == NULL) return purr__checkpoint_lookup(checkpoint, name, needed_by, out_scales, err);
  int32_t dtype = (*out_scales)->dtype;
  if (dtype == PURR_DTYPE_FP32 || dtype == PURR_DTYPE_BF16 || dtype == PURR_DTYPE_E8M0 || dtype == PURR_DTYPE_UINT8)
    return PURR_STATUS_OK;
  return purr__fail(err, PURR_STATUS_CHECKPOINT,
                    "%s: the scales '%s' have dtype %s; allowed are F32, BF16, F8_E8M0, U8",
                    purr__checkpoint_file(checkpoint, *out_scales), purr__shown((*out_scales)->name).text,
                    purr__safetensors_dtype_name(dtype));
}

static bool holds_exponents(const purr__entry_t *scales) {
  return scales->dtype == PURR_DTYPE_E8M0 || scales->dtype == PURR_DTYPE_UINT8;
}

/* The block that shares a scale is what config.json says; without a word there, 128 by 128 for factors as DeepSeek has
 * them, 1 by 32 for exponents as MXFP8 has them. Exponents may be MXFP8's whatever it says, and a file that does not
 * say anything may have one factor a row. The shape decides. */
static purr_status_t find_block(const purr_checkpoint_t *checkpoint, const purr__model_t *model,
                                const purr__entry_t *entry, const char *needed_by, purr__matrix_t *matrix,
                                purr_error_t *err) {
  bool is_given = model->block_rows > 0, has_exponents = holds_exponents(matrix->scales);
  bool is_packed = entry->num_dims == 3;
  const int64_t candidates[2][2] = {{is_given ? model->block_rows : 128, is_given ? model->block_cols : 128},
                                    {1, has_exponents ? 32 : matrix->num_cols}};
  int num_candidates = has_exponents || !is_given ? 2 : 1;
  char allowed[256] = "";
  for (int i = 0; i < num_candidates; i++) {
    int64_t rows = candidates[i][0], cols = candidates[i][1];
    int64_t scale_rows = matrix->num_rows / matrix->part_rows * ceil_divide(matrix->part_rows, rows);
    int64_t shape[3] = {entry->shape[0], scale_rows, ceil_divide(matrix->num_cols, cols)};
    const int64_t *own = is_packed ? shape : shape + 1;
    if (has_shape(matrix->scales, own, entry->num_dims)) {
      matrix->block_rows = rows;
      matrix->block_cols = cols;
      return PURR_STATUS_OK;
    }
    size_t used = strlen(allowed);
    snprintf(allowed + used, sizeof allowed - used, "%s%s for blocks of %lld by %lld", i > 0 ? ", or " : "",
             purr__shown_shape(own, entry->num_dims).text, (long long)rows, (long long)cols);
  }
  return fail_shape(checkpoint, matrix->scales, needed_by, allowed, err);
}

purr_status_t purr__matrix_find(const purr_checkpoint_t *checkpoint, const purr__model_t *model,
                                const purr__naming_t *naming, purr__role_t role, int64_t expert, const char *needed_by,
                                purr__matrix_t *out_matrix, purr_error_t *err) {
  purr__wanted_t wanted;
  purr__naming_want(model, naming, role, expert, &wanted);
  purr__entry_t *entry, *scales = NULL;
  purr_status_t status = purr__tensor_require(checkpoint, &wanted, needed_by, &entry, err);
  if (status != PURR_STATUS_OK) return status;
  if (entry->dtype != PURR_DTYPE_BF16 && entry->dtype != PURR_DTYPE_E4M3)
    return purr__fail(err, PURR_STATUS_CHECKPOINT,
                      "%s: tensor '%s' has dtype %s; %s needs BF16, or F8_E4M3 with scales",
                      purr__checkpoint_file(checkpoint, entry), purr__shown(entry->name).text,
                      purr__safetensors_dtype_name(entry->dtype), needed_by);
  const int64_t *matrix_shape = wanted.shape + wanted.num_dims - 2;
  purr__matrix_t matrix = {.entry = entry, .num_rows = matrix_shape[0], .num_cols = matrix_shape[1]};
  matrix.part_rows = role == PURR__ROLE_GATE_UP ? matrix.num_rows / 2 : matrix.num_rows;
  if (entry->dtype == PURR_DTYPE_E4M3) {
    status = find_scales(checkpoint, entry, needed_by, &scales, err);
    matrix.scales = scales;
    if (status == PURR_STATUS_OK) status = find_block(checkpoint, model, entry, needed_by, &matrix, err);
    if (status != PURR_STATUS_OK) return status;
  }
  if (wanted.num_dims == 3) {
    uint64_t slice = (uint64_t)expert, num_slices = (uint64_t)wanted.shape[0];
    matrix.byte_offset = entry->num_bytes / num_slices * slice;
    if (scales != NULL) matrix.scale_offset = scales->num_bytes / num_slices * slice;
  }
  *out_matrix = matrix;
  return PURR_STATUS_OK;
}

/* ---- converting ---- */

/* Data in a file has no alignment: elements are copied out. */
static float read_scale(const purr__matrix_t *matrix, const char *scales, int64_t idx) {
  float value;
  uint16_t half;
  switch (matrix->scales->dtype) {
    case PURR_DTYPE_FP32:
      memcpy(&value, scales + idx * (int64_t)sizeof value, sizeof value);
      return value;
    case PURR_DTYPE_BF16:
      memcpy(&half, scales + idx * (int64_t)sizeof half, sizeof half);
      return purr__fp32_from_bf16(half);
    default:
      return purr__fp32_from_e8m0((uint8_t)scales[idx]);
  }
}

/* One block with one scale. A large one turns all 256 codes into BF16 first, and then only looks up. */
static void convert_block(const uint8_t *codes, const float *values, int64_t num_rows, int64_t num_cols, int64_t stride,
                          float scale, uint16_t *out) {
  uint16_t products[256];
  bool by_table = num_rows * num_cols >= 1024;
  for (int i = 0; by_table && i < 256; i++) products[i] = purr__bf16_from_fp32(values[i] * scale);
  for (int64_t row = 0; row < num_rows; row++, codes += stride, out += stride) {
    if (by_table)
      for (int64_t col = 0; col < num_cols; col++) out[col] = products[codes[col]];
    else
      for (int64_t col = 0; col < num_cols; col++) out[col] = purr__bf16_from_fp32(values[codes[col]] * scale);
  }
}

void purr__matrix_convert(const purr__matrix_t *matrix, const char *data, const char *scales, uint16_t *out) {
  int64_t num_rows = matrix->num_rows, num_cols = matrix->num_cols;
  data += matrix->byte_offset;
  if (matrix->scales == NULL) {
    memcpy(out, data, (size_t)(num_rows * num_cols) * sizeof *out);
    return;
  }
  scales += matrix->scale_offset;
  const uint8_t *codes = (const uint8_t *)data;
  float values[256];
  for (int i = 0; i < 256; i++) values[i] = purr__fp32_from_bits(purr__fp32_from_e4m3((uint8_t)i, 127));
  int64_t scale_idx = 0;
  for (int64_t part = 0; part < num_rows; part += matrix->part_rows)
    for (int64_t row = part; row < part + matrix->part_rows; row += matrix->block_rows)
      for (int64_t col = 0; col < num_cols; col += matrix->block_cols)
        convert_block(codes + row * num_cols + col, values,
                      purr__min(matrix->block_rows, part + matrix->part_rows - row),
                      purr__min(matrix->block_cols, num_cols - col), num_cols, read_scale(matrix, scales, scale_idx++),
                      out + row * num_cols + col);
}
