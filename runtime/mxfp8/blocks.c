/* MXFP8 over whole matrices.
 *
 * The unit of work is a granule, the rows and columns that share a scale: its largest magnitude, from that the scale,
 * then the elements, run by run. Granules of one column are done up to 256 side by side. The loops over a run are what
 * the compiler turns into vectors, once per instruction set.
 *
 * Rounding works on the unscaled value v, since scales are powers of two. Let e be the power of two at or below |v|, or
 * the smallest normal element times the scale if that is larger. Elements near v are e / 8 apart, and adding 2^20 * e
 * in FP32 rounds |v| to exactly this distance, to nearest and ties to even. The sum's low bits are then the mantissa,
 * and subtracting 2^20 * e again gives the rounded value. This holds while nothing leaves the normal range: scale bytes
 * 16 to 220. The few granules outside, those of zeros and those with a NaN or Inf are done by codec.h. */
#include "mxfp8/blocks.h"

#include "backends/host/float_mode.h"
#include "backends/host/math.h"
#include "mxfp8/codec.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { TASK_ROWS = 128, TASK_COLUMNS = 512, MAX_RUN = 256 };
enum { FIRST_FAST_SCALE = 16, LAST_FAST_SCALE = 220, ANY_FAST_SCALE = 127 };

/* ---- a granule's scale ---- */

typedef struct granule {
  float smallest, largest; /* 2^-6 and 448 times the scale */
  uint8_t scale;
  bool is_zero, is_special; /* special: left to codec.h */
} granule_t;

ALWAYS_INLINE granule_t choose_scale(uint32_t amax, int32_t rule) {
  const uint32_t scale = purr__e8m0_of_amax(amax, rule);
  const bool special = amax == 0 || scale < FIRST_FAST_SCALE || scale > LAST_FAST_SCALE;
  const uint32_t fast = special ? ANY_FAST_SCALE : scale;
  return (granule_t){.smallest = purr__fp32_from_bits((fast - 6) << 23),
                     .largest = purr__fp32_from_bits((fast + 8) << 23 | 0x600000u),
                     .scale = (uint8_t)scale,
                     .is_zero = amax == 0,
                     .is_special = special};
}

/* ---- a run: adjacent elements of one row ---- */

ALWAYS_INLINE const void *run_at(const purr__mxfp8_matrix_t *m, int64_t row, int64_t column) {
  return (const char *)m->src + (row * m->src_stride + column) * (m->src_dtype == PURR_DTYPE_BF16 ? 2 : 4);
}

/* Bits of the elements as FP32. */
ALWAYS_INLINE void load_run(int32_t dtype, const void *src, int num, uint32_t *bits) {
  if (dtype == PURR_DTYPE_BF16)
    for (int i = 0; i < num; i++) bits[i] = (uint32_t)((const uint16_t *)src)[i] << 16;
  else
    memcpy(bits, src, (size_t)num * sizeof *bits);
}

/* FP32 bits of the largest magnitude. Magnitudes order as their bits do, NaNs on top. */
ALWAYS_INLINE uint32_t amax_of_run(int32_t dtype, const void *src, int num) {
  if (dtype == PURR_DTYPE_BF16) {
    int16_t amax = 0;
    for (int i = 0; i < num; i++) {
      const int16_t magnitude = (int16_t)(((const uint16_t *)src)[i] & 0x7FFF);
      amax = magnitude > amax ? magnitude : amax;
    }
    return (uint32_t)amax << 16;
  }
  int32_t amax = 0;
  for (int i = 0; i < num; i++) {
    const int32_t magnitude = (int32_t)(((const uint32_t *)src)[i] & 0x7FFFFFFFu);
    amax = magnitude > amax ? magnitude : amax;
  }
  return (uint32_t)amax;
}

/* |v| saturated, e, 2^20 * e and |v| + 2^20 * e; see the top of the file. */
typedef struct rounding {
  float power, shifted_power, sum;
} rounding_t;
ALWAYS_INLINE rounding_t round_magnitude(uint32_t bits, float smallest, float largest) {
  float magnitude = purr__fp32_from_bits(bits & 0x7FFFFFFFu);
  magnitude = magnitude < largest ? magnitude : largest;
  float power = purr__fp32_from_bits(purr__fp32_bits(magnitude) & 0x7F800000u);
  power = power > smallest ? power : smallest;
  const float shifted_power = purr__fp32_from_bits(purr__fp32_bits(power) + (20u << 23));
  return (rounding_t){power, shifted_power, magnitude + shifted_power};
}

ALWAYS_INLINE uint32_t element_of(uint32_t bits, float smallest, float largest) {
  const rounding_t r = round_magnitude(bits, smallest, largest);
  const uint32_t mantissa = purr__fp32_bits(r.sum) - purr__fp32_bits(r.shifted_power);
  const uint32_t exponent = (purr__fp32_bits(r.power) - purr__fp32_bits(smallest)) >> 20;
  return (exponent + mantissa) | (bits >> 24 & 0x80u);
}

ALWAYS_INLINE uint32_t rounded_bits(uint32_t bits, float smallest, float largest) {
  const rounding_t r = round_magnitude(bits, smallest, largest);
  return purr__fp32_bits(r.sum - r.shifted_power) | (bits & 0x80000000u);
}

/* With `step` 0 the run lies in one granule, with 1 each element has its own. */
ALWAYS_INLINE void store_run(int32_t dtype, const uint32_t *bits, int num, const float *smallest, const float *largest,
                             int step, void *dst) {
  if (dtype == PURR_DTYPE_E4M3)
    for (int i = 0; i < num; i++)
      ((uint8_t *)dst)[i] = (uint8_t)element_of(bits[i], smallest[i * step], largest[i * step]);
  else if (dtype == PURR_DTYPE_BF16)
    for (int i = 0; i < num; i++)
      ((uint16_t *)dst)[i] = (uint16_t)(rounded_bits(bits[i], smallest[i * step], largest[i * step]) >> 16);
  else
    for (int i = 0; i < num; i++) ((uint32_t *)dst)[i] = rounded_bits(bits[i], smallest[i * step], largest[i * step]);
}

static void store_special(int32_t dtype, uint32_t bits, const granule_t *granule, void *dst, int i) {
  const uint8_t element = granule->is_zero ? 0 : purr__e4m3_from_fp32(bits, granule->scale);
  const uint32_t value = purr__fp32_from_e4m3(element, granule->scale);
  if (dtype == PURR_DTYPE_E4M3)
    ((uint8_t *)dst)[i] = element;
  else if (dtype == PURR_DTYPE_BF16)
    ((uint16_t *)dst)[i] = (uint16_t)(value >> 16);
  else
    ((uint32_t *)dst)[i] = value;
}

ALWAYS_INLINE void *out_at(const purr__mxfp8_matrix_t *m, int64_t row, int64_t column) {
  return (char *)m->dst + (row * m->dst_stride + column) * (m->dst_dtype == PURR_DTYPE_E4M3   ? 1
                                                            : m->dst_dtype == PURR_DTYPE_BF16 ? 2
                                                                                              : 4);
}

/* ---- quantising ---- */

/* One granule of 32 or 128 columns and any number of rows, or what the edge of the matrix leaves of it. */
ALWAYS_INLINE void quantize_wide(const purr__mxfp8_matrix_t *m, int64_t row, int64_t num_rows, int64_t column,
                                 int num) {
  uint32_t amax = 0;
  for (int64_t r = 0; r < num_rows; r++) {
    const uint32_t amax_of_row = amax_of_run(m->src_dtype, run_at(m, row + r, column), num);
    amax = amax_of_row > amax ? amax_of_row : amax;
  }
  const granule_t g = choose_scale(amax, m->rule);
  for (int64_t r = 0; r < num_rows; r++) {
    uint32_t bits[MAX_RUN];
    void *dst = out_at(m, row + r, column);
    load_run(m->src_dtype, run_at(m, row + r, column), num, bits);
    if (g.is_special)
      for (int i = 0; i < num; i++) store_special(m->dst_dtype, bits[i], &g, dst, i);
    else
      store_run(m->dst_dtype, bits, num, &g.smallest, &g.largest, 0, dst);
  }
  if (m->dst_dtype != PURR_DTYPE_E4M3) return;
  const bool along_row = m->axis == PURR_SCALE_ALONG_ROW;
  for (int64_t r = 0; r < num_rows; r += along_row ? 1 : PURR__BLOCK_LENGTH)
    for (int64_t c = column; c < column + num; c += along_row ? PURR__BLOCK_LENGTH : 1)
      *purr__scale_at(&m->scales, along_row ? row + r : c, (along_row ? c : row + r) / PURR__BLOCK_LENGTH) = g.scale;
}

/* Granules of one column and 32 or 128 rows, or what the edge leaves of them: up to MAX_RUN side by side. */
ALWAYS_INLINE void quantize_tall(const purr__mxfp8_matrix_t *m, int64_t row, int64_t num_rows, int64_t column,
                                 int num) {
  uint32_t bits[MAX_RUN];
  int32_t amax[MAX_RUN];
  float smallest[MAX_RUN], largest[MAX_RUN];
  granule_t granules[MAX_RUN];
  bool any_special = false;
  for (int i = 0; i < num; i++) amax[i] = 0;
  for (int64_t r = 0; r < num_rows; r++) {
    load_run(m->src_dtype, run_at(m, row + r, column), num, bits);
    for (int i = 0; i < num; i++) {
      const int32_t magnitude = (int32_t)(bits[i] & 0x7FFFFFFFu);
      amax[i] = magnitude > amax[i] ? magnitude : amax[i];
    }
  }
  for (int i = 0; i < num; i++) {
    granules[i] = choose_scale((uint32_t)amax[i], m->rule);
    smallest[i] = granules[i].smallest;
    largest[i] = granules[i].largest;
    any_special |= granules[i].is_special;
    for (int64_t r = 0; r < num_rows && m->dst_dtype == PURR_DTYPE_E4M3; r += PURR__BLOCK_LENGTH)
      *purr__scale_at(&m->scales, column + i, (row + r) / PURR__BLOCK_LENGTH) = granules[i].scale;
  }
  for (int64_t r = 0; r < num_rows; r++) {
    void *dst = out_at(m, row + r, column);
    load_run(m->src_dtype, run_at(m, row + r, column), num, bits);
    store_run(m->dst_dtype, bits, num, smallest, largest, 1, dst);
    for (int i = 0; any_special && i < num; i++)
      if (granules[i].is_special) store_special(m->dst_dtype, bits[i], &granules[i], dst, i);
  }
}

/* Runs of full length get it as a constant: the compiler then unrolls them. */
ALWAYS_INLINE void quantize_part(const purr__mxfp8_matrix_t *m, int64_t row, int64_t num_rows, int64_t column,
                                 int64_t num_columns) {
  const int64_t granule_rows = purr__granule_rows(m->granularity, m->axis);
  const int64_t granule_columns = purr__granule_columns(m->granularity, m->axis);
  const int64_t run = granule_columns == 1 ? MAX_RUN : granule_columns;
  for (int64_t r = 0; r < num_rows; r += granule_rows)
    for (int64_t c = 0; c < num_columns; c += run) {
      const int64_t n = purr__min(granule_rows, num_rows - r);
      const int num = (int)purr__min(run, num_columns - c);
      if (granule_columns == 1)
        quantize_tall(m, row + r, n, column + c, num);
      else if (num == 32)
        quantize_wide(m, row + r, n, column + c, 32);
      else
        quantize_wide(m, row + r, n, column + c, num);
    }
}

/* ---- reading back ---- */

/* Scales that codec.h decodes: the small ones, whose values may be FP32 denormals, and NaN. */
ALWAYS_INLINE bool is_special_scale(uint8_t scale) { return scale < FIRST_FAST_SCALE || scale == PURR__E8M0_NAN; }

/* An element with its scale as a factor. The denormal elements, m * 2^-9, come as 2^-6 * (1 + m / 8) - 2^-6. */
ALWAYS_INLINE uint32_t scaled_bits(uint32_t element, float factor) {
  const uint32_t magnitude = element & 0x7Fu, denormal = magnitude < 8, nan = magnitude == PURR__E4M3_NAN;
  const float value = purr__fp32_from_bits((magnitude << 20) + ((120u + denormal) << 23));
  const float excess = purr__fp32_from_bits(-denormal & (121u << 23));
  const uint32_t bits = purr__fp32_bits((value - excess) * factor) | (element & 0x80u) << 24;
  return (bits & (nan - 1)) | (-nan & PURR__FP32_NAN);
}

ALWAYS_INLINE void dequantize_run(const purr__mxfp8_matrix_t *m, int64_t row, int64_t column, int num,
                                  const uint8_t *scale, const float *factor, int step, bool has_special) {
  uint32_t bits[MAX_RUN];
  const uint8_t *src = (const uint8_t *)m->src + row * m->src_stride + column;
  for (int i = 0; i < num; i++) bits[i] = scaled_bits(src[i], factor[i * step]);
  for (int i = 0; has_special && i < num; i++)
    if (is_special_scale(scale[i * step])) bits[i] = purr__fp32_from_e4m3(src[i], scale[i * step]);
  void *dst = out_at(m, row, column);
  if (m->dst_dtype == PURR_DTYPE_FP32)
    memcpy(dst, bits, (size_t)num * sizeof *bits);
  else
    for (int i = 0; i < num; i++) ((uint16_t *)dst)[i] = purr__bf16_from_fp32(purr__fp32_from_bits(bits[i]));
}

ALWAYS_INLINE void dequantize_part(const purr__mxfp8_matrix_t *m, int64_t row, int64_t num_rows, int64_t column,
                                   int64_t num_columns) {
  if (m->axis == PURR_SCALE_ALONG_ROW) {
    for (int64_t r = row; r < row + num_rows; r++)
      for (int64_t c = column; c < column + num_columns; c += PURR__BLOCK_LENGTH) {
        const uint8_t scale = *purr__scale_at(&m->scales, r, c / PURR__BLOCK_LENGTH);
        const float factor = purr__fp32_from_e8m0(scale);
        const int num = (int)purr__min(PURR__BLOCK_LENGTH, column + num_columns - c);
        dequantize_run(m, r, c, num, &scale, &factor, 0, is_special_scale(scale));
      }
    return;
  }
  for (int64_t r = row; r < row + num_rows; r += PURR__BLOCK_LENGTH)
    for (int64_t c = column; c < column + num_columns; c += MAX_RUN) {
      uint8_t scale[MAX_RUN];
      float factor[MAX_RUN];
      bool has_special = false;
      const int num = (int)purr__min(MAX_RUN, column + num_columns - c);
      for (int i = 0; i < num; i++) {
        scale[i] = *purr__scale_at(&m->scales, c + i, r / PURR__BLOCK_LENGTH);
        factor[i] = purr__fp32_from_e8m0(scale[i]);
        has_special |= is_special_scale(scale[i]);
      }
      const int64_t end = purr__min(r + PURR__BLOCK_LENGTH, row + num_rows);
      for (int64_t k = r; k < end; k++) dequantize_run(m, k, c, num, scale, factor, 1, has_special);
    }
}

/* ---- one version per instruction set ---- */

/* Types as constants, and a copy of the descriptor that no store can reach, keep the loops free of decisions. */
ALWAYS_INLINE void convert_part(const purr__mxfp8_matrix_t *matrix, int64_t row, int64_t num_rows, int64_t column,
                                int64_t num_columns) {
  purr__mxfp8_matrix_t m = *matrix;
#define CONVERT(from, to, part)                       \
  if (m.src_dtype == (from) && m.dst_dtype == (to)) { \
    m.src_dtype = (from), m.dst_dtype = (to);         \
    part(&m, row, num_rows, column, num_columns);     \
    return;                                           \
  }
  CONVERT(PURR_DTYPE_BF16, PURR_DTYPE_BF16, quantize_part)
  CONVERT(PURR_DTYPE_BF16, PURR_DTYPE_FP32, quantize_part)
  CONVERT(PURR_DTYPE_BF16, PURR_DTYPE_E4M3, quantize_part)
  CONVERT(PURR_DTYPE_FP32, PURR_DTYPE_E4M3, quantize_part)
  CONVERT(PURR_DTYPE_E4M3, PURR_DTYPE_FP32, dequantize_part)
  CONVERT(PURR_DTYPE_E4M3, PURR_DTYPE_BF16, dequantize_part)
#undef CONVERT
}

typedef void (*convert_part_fn)(const purr__mxfp8_matrix_t *m, int64_t row, int64_t num_rows, int64_t column,
                                int64_t num_columns);

static void convert_part_baseline(const purr__mxfp8_matrix_t *m, int64_t row, int64_t num_rows, int64_t column,
                                  int64_t num_columns) {
  convert_part(m, row, num_rows, column, num_columns);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void convert_part_avx2(const purr__mxfp8_matrix_t *m, int64_t row,
                                                              int64_t num_rows, int64_t column, int64_t num_columns) {
  convert_part(m, row, num_rows, column, num_columns);
}
#endif

static convert_part_fn best_convert_part(void) {
#if defined(__x86_64__)
  if (strncmp(purr__host_isa(), "avx", 3) == 0) return convert_part_avx2;
#endif
  return convert_part_baseline;
}

void purr__mxfp8_convert_part(const purr__mxfp8_matrix_t *matrix, int64_t row, int64_t num_rows, int64_t column,
                              int64_t num_columns) {
  if (matrix->dst_dtype == PURR_DTYPE_E4M3)
    purr__scales_clear_padding(&matrix->scales, row, num_rows, column, num_columns);
  const uint64_t mode = purr__float_mode_enter();
  best_convert_part()(matrix, row, num_rows, column, num_columns);
  purr__float_mode_leave(mode);
}

/* ---- over threads ---- */

typedef struct job {
  const purr__mxfp8_matrix_t *matrices;
  int64_t num_matrices;
} job_t;

static int64_t num_tasks_across(const purr__mxfp8_matrix_t *m) {
  return (m->num_columns + TASK_COLUMNS - 1) / TASK_COLUMNS;
}

static int64_t num_tasks_of(const purr__mxfp8_matrix_t *m) {
  return (m->num_rows + TASK_ROWS - 1) / TASK_ROWS * num_tasks_across(m);
}

static void run_task(void *arg, int64_t task_idx) {
  const job_t *job = arg;
  const purr__mxfp8_matrix_t *m = job->matrices;
  for (int64_t n = num_tasks_of(m); task_idx >= n; n = num_tasks_of(m)) {
    task_idx -= n;
    m++;
  }
  const int64_t row = task_idx / num_tasks_across(m) * TASK_ROWS;
  const int64_t column = task_idx % num_tasks_across(m) * TASK_COLUMNS;
  purr__mxfp8_convert_part(m, row, purr__min(TASK_ROWS, m->num_rows - row), column,
                           purr__min(TASK_COLUMNS, m->num_columns - column));
}

void purr__mxfp8_convert(purr_context_t *context, const purr__mxfp8_matrix_t *matrices, int64_t num_matrices) {
  job_t job = {matrices, num_matrices};
  int64_t num_tasks = 0;
  for (int64_t i = 0; i < num_matrices; i++) num_tasks += num_tasks_of(&matrices[i]);
  purr__parallel_for(context, num_tasks, run_task, &job);
}
