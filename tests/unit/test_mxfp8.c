/* MXFP8 numbers: the element and scale codecs over all their codes, the fast row code against the definition, the
 * handed cases byte for byte. */
#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/host/math.h"
#include "mxfp8/blocks.h"
#include "mxfp8/codec.h"
#include "support/main.h"
#include "support/mxfp8.h"

static purr_context_t *context;

static float bf16(uint32_t bits) { return purr__fp32_from_bits(bits << 16); }

/* For loops over everything: only what differs is counted, and a few of it printed. */
static int num_different;
static void check(uint32_t got, uint32_t wanted, const char *what, double value) {
  if (got == wanted) return;
  if (num_different++ < 8) fprintf(stderr, "%s of %a: got 0x%X, expected 0x%X\n", what, value, got, wanted);
  if (num_different < 1000) CU_FAIL("a value differs");
}

/* ---- a small matrix through blocks.c ---- */

enum { MAX_ELEMENTS = 128 * 1024 };
static uint8_t elements[MAX_ELEMENTS], scale_bytes[MAX_ELEMENTS];
static double doubles[MAX_ELEMENTS];
static uint8_t wanted_elements[MAX_ELEMENTS], wanted_scales[MAX_ELEMENTS];

static purr__mxfp8_matrix_t matrix_of(const void *src, int32_t dtype, int64_t num_rows, int64_t num_columns,
                                      int32_t granularity, int32_t axis, int32_t rule) {
  const bool along_row = axis == PURR_SCALE_ALONG_ROW;
  const int64_t num_outer = along_row ? num_rows : num_columns, along = along_row ? num_columns : num_rows;
  memset(elements, 0xFF, sizeof elements);
  memset(scale_bytes, 0xFF, sizeof scale_bytes);
  return (purr__mxfp8_matrix_t){
      .granularity = granularity,
      .axis = axis,
      .rule = rule,
      .src_dtype = dtype,
      .dst_dtype = PURR_DTYPE_E4M3,
      .src = src,
      .dst = elements,
      .src_stride = num_columns,
      .dst_stride = num_columns,
      .num_rows = num_rows,
      .num_columns = num_columns,
      .scales = {scale_bytes, axis, granularity, PURR_SCALE_LAYOUT_PLAIN, num_outer, (along + 31) / 32,
                 (along + 31) / 32, 1, 0},
  };
}

static uint8_t scale_of(const purr__mxfp8_matrix_t *m, int64_t r, int64_t c) {
  return m->axis == PURR_SCALE_ALONG_ROW ? *purr__scale_at(&m->scales, r, c / 32)
                                         : *purr__scale_at(&m->scales, c, r / 32);
}

static double source_value(const purr__mxfp8_matrix_t *m, int64_t r, int64_t c) {
  const int64_t i = r * m->src_stride + c;
  return (double)(m->src_dtype == PURR_DTYPE_BF16 ? bf16(((const uint16_t *)m->src)[i]) : ((const float *)m->src)[i]);
}

/* Quantises and compares every element and scale byte with the definition. */
static void check_matrix(const void *src, int32_t dtype, int64_t num_rows, int64_t num_columns, int32_t granularity,
                         int32_t axis, int32_t rule) {
  const purr__mxfp8_matrix_t m = matrix_of(src, dtype, num_rows, num_columns, granularity, axis, rule);
  for (int64_t r = 0; r < num_rows; r++)
    for (int64_t c = 0; c < num_columns; c++) doubles[r * num_columns + c] = source_value(&m, r, c);
  purr_test_mxfp8_quantize(doubles, num_rows, num_columns, granularity, axis, rule, wanted_elements, wanted_scales);
  purr__mxfp8_convert(context, &m, 1);
  for (int64_t r = 0; r < num_rows; r++)
    for (int64_t c = 0; c < num_columns; c++) {
      const int64_t i = r * num_columns + c;
      check(scale_of(&m, r, c), wanted_scales[i], "scale", doubles[i]);
      check(elements[i], wanted_elements[i], "element", doubles[i]);
    }
}

/* ---- codecs ---- */

static void elements_decode(void) {
  /* Anchors from the OCP text, then every code. */
  CU_ASSERT_EQUAL(purr__fp32_from_bits(purr__fp32_from_e4m3(0x7E, 127)), 448.0f);
  CU_ASSERT_EQUAL(purr__fp32_from_bits(purr__fp32_from_e4m3(0x08, 127)), 0x1p-6f);
  CU_ASSERT_EQUAL(purr__fp32_from_bits(purr__fp32_from_e4m3(0x07, 127)), 0.875f * 0x1p-6f);
  CU_ASSERT_EQUAL(purr__fp32_from_bits(purr__fp32_from_e4m3(0x01, 127)), 0x1p-9f);
  CU_ASSERT_EQUAL(purr__fp32_from_bits(purr__fp32_from_e4m3(0x38, 127)), 1.0f);
  CU_ASSERT_EQUAL(purr__fp32_from_e4m3(0x80, 127), 0x80000000u);
  for (int scale = 0; scale < 256; scale++)
    for (int code = 0; code < 256; code++) {
      const double value = purr_test_mxfp8_value((uint8_t)code, (uint8_t)scale);
      const uint32_t wanted = isnan(value) ? PURR__FP32_NAN : purr__fp32_bits((float)value);
      if (isfinite((float)value) && (double)(float)value != value) CU_FAIL("FP32 must be exact");
      check(purr__fp32_from_e4m3((uint8_t)code, (uint32_t)scale), wanted, "value", value);
    }
}

static void scales_decode(void) {
  for (int scale = 0; scale < 255; scale++)
    CU_ASSERT_EQUAL((double)purr__fp32_from_e8m0((uint32_t)scale), ldexp(1, scale - 127));
  CU_ASSERT(isnan(purr__fp32_from_e8m0(255)));
}

static void scales_follow_the_rule(void) {
  static const uint32_t mantissas[] = {0, 1, 0x3FFFFF, 0x5FFFFF, 0x600000, 0x600001, 0x7FFFFF};
  for (int32_t rule = 0; rule < 2; rule++) {
    for (uint32_t bits = 0; bits < 0x8000; bits++)
      check(purr__e8m0_of_amax(bits << 16, rule), purr_test_e8m0_of_amax((double)bf16(bits), rule), "scale",
            (double)bf16(bits));
    for (uint32_t exponent = 0; exponent < 255; exponent++)
      for (size_t i = 0; i < sizeof mantissas / sizeof *mantissas; i++) {
        const uint32_t bits = exponent << 23 | mantissas[i];
        const double amax = (double)purr__fp32_from_bits(bits);
        check(purr__e8m0_of_amax(bits, rule), purr_test_e8m0_of_amax(amax, rule), "scale", amax);
      }
  }
}

static void elements_encode(void) {
  static const int scales[] = {0, 1, 5, 6, 7, 16, 100, 119, 127, 134, 220, 247, 254};
  for (size_t s = 0; s < sizeof scales / sizeof *scales; s++)
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
      const double value = (double)bf16(bits);
      check(purr__e4m3_from_fp32(bits << 16, (uint32_t)scales[s]),
            purr_test_e4m3_nearest(ldexp(value, 127 - scales[s])), "element", value);
    }
  /* Around each point where FP32 rounds from one code to the next. */
  for (int code = 0; code < 126; code++) {
    const double middle = (purr_test_e4m3_value((uint8_t)code) + purr_test_e4m3_value((uint8_t)(code + 1))) / 2;
    for (int step = -1; step <= 1; step++) {
      const uint32_t bits = purr__fp32_bits((float)middle) + (uint32_t)step;
      const double value = (double)purr__fp32_from_bits(bits);
      check(purr__e4m3_from_fp32(bits, 127), purr_test_e4m3_nearest(value), "element", value);
    }
  }
  CU_ASSERT_EQUAL(purr__e4m3_from_fp32(purr__fp32_bits(1.0f), 255), 0x7F);
}

/* ---- rows ---- */

/* Every BF16 value within a block whose scale is forced by one more element. */
static void every_value_in_every_range(void) {
  static const int scales[] = {0, 1, 15, 16, 17, 60, 119, 127, 180, 220, 221, 246};
  static uint16_t src[MAX_ELEMENTS];
  for (int32_t rule = 0; rule < 2; rule++)
    for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
      /* 1.75 or 1.9921875 times 2^(scale + 8): the largest that the rule gives this scale. */
      const uint32_t top = (uint32_t)(scales[s] + 8) << 7 | (rule == PURR_SCALE_RULE_RCEIL ? 0x60u : 0x7Fu);
      int64_t num = 0;
      for (uint32_t bits = 0; bits < 0x10000; bits++) {
        if ((bits & 0x7FFFu) > top) continue;
        if (num % 32 == 0) src[num++] = (uint16_t)top;
        src[num++] = (uint16_t)bits;
      }
      while (num % 32 != 0) src[num++] = 0;
      CU_ASSERT_EQUAL(purr__e8m0_of_amax(top << 16, rule), (uint32_t)scales[s]);
      check_matrix(src, PURR_DTYPE_BF16, num / 32, 32, PURR_GRANULARITY_1X32, PURR_SCALE_ALONG_ROW, rule);
    }
}

/* xorshift; values over many magnitudes, with zeros, negative zeros and, if wanted, NaN and Inf. */
static uint64_t random_state;
static uint64_t next_random(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}
static float random_value(int num_binades, int center, bool with_specials) {
  const uint64_t x = next_random();
  if (x % 61 == 0) return x % 2 ? 0.0f : -0.0f;
  if (with_specials && x % 1999 == 0) return x % 3 == 0 ? NAN : x % 3 == 1 ? INFINITY : -INFINITY;
  const int exponent = center + (int)(x >> 8 & 0xFF) % num_binades - num_binades / 2;
  const float value = (float)ldexp(1 + (double)(x >> 40) / 0x1p24, exponent);
  return x & 4 ? -value : value;
}
static void fill_random(void *out, int32_t dtype, int64_t num, int num_binades, int center, bool with_specials) {
  for (int64_t i = 0; i < num; i++) {
    const float value = random_value(num_binades, center, with_specials);
    if (dtype == PURR_DTYPE_BF16)
      ((uint16_t *)out)[i] = purr__bf16_from_fp32(value);
    else
      ((float *)out)[i] = value;
  }
}

static const struct {
  int64_t num_rows, num_columns;
} shapes[] = {{1, 32}, {1, 7}, {5, 288}, {33, 160}, {31, 257}, {260, 33}, {129, 270}};
static const struct { int num_binades, center; } spreads[] = {{4, 0}, {30, -3}, {8, -126}, {6, 118}, {250, 0}};

static void every_form_follows_the_definition(void) {
  static union {
    uint16_t bf16[MAX_ELEMENTS];
    float fp32[MAX_ELEMENTS];
  } src;
  random_state = 88172645463325252u;
  for (size_t shape = 0; shape < sizeof shapes / sizeof *shapes; shape++)
    for (size_t spread = 0; spread < sizeof spreads / sizeof *spreads; spread++)
      for (int dtype = PURR_DTYPE_BF16; dtype <= PURR_DTYPE_FP32; dtype++) {
        const int64_t num_rows = shapes[shape].num_rows, num_columns = shapes[shape].num_columns;
        fill_random(&src, dtype, num_rows * num_columns, spreads[spread].num_binades, spreads[spread].center, true);
        for (int form = 0; form < 16; form++)
          check_matrix(&src, dtype, num_rows, num_columns, form & 3, form >> 2 & 1, form >> 3);
      }
}

/* ---- reading back, and both at once ---- */

static void check_round_trips(const uint16_t *src, int64_t num_rows, int64_t num_columns, int32_t granularity,
                              int32_t axis, int32_t rule) {
  static float through_fp32[MAX_ELEMENTS], direct_fp32[MAX_ELEMENTS];
  static uint16_t through_bf16[MAX_ELEMENTS], direct_bf16[MAX_ELEMENTS];
  const int64_t num = num_rows * num_columns;
  purr__mxfp8_matrix_t quantize = matrix_of(src, PURR_DTYPE_BF16, num_rows, num_columns, granularity, axis, rule);
  purr__mxfp8_matrix_t back = quantize, fake = quantize;
  memset(through_fp32, 0xFF, sizeof through_fp32);
  memset(direct_fp32, 0xFF, sizeof direct_fp32);
  memset(through_bf16, 0xFF, sizeof through_bf16);
  purr__mxfp8_convert(context, &quantize, 1);
  back.src = elements;
  back.src_dtype = PURR_DTYPE_E4M3;
  back.dst = through_fp32;
  back.dst_dtype = PURR_DTYPE_FP32;
  purr__mxfp8_convert(context, &back, 1);
  back.dst = through_bf16;
  back.dst_dtype = PURR_DTYPE_BF16;
  purr__mxfp8_convert(context, &back, 1);
  fake.scales = (purr__scales_view_t){0};
  fake.dst = direct_fp32;
  fake.dst_dtype = PURR_DTYPE_FP32;
  purr__mxfp8_convert(context, &fake, 1);
  memcpy(direct_bf16, src, (size_t)num * sizeof *src); /* in place */
  fake.src = fake.dst = direct_bf16;
  fake.dst_dtype = PURR_DTYPE_BF16;
  purr__mxfp8_convert(context, &fake, 1);
  for (int64_t i = 0; i < num; i++) {
    const uint8_t scale = scale_of(&quantize, i / num_columns, i % num_columns);
    const double value = purr_test_mxfp8_value(elements[i], scale);
    const uint32_t wanted = isnan(value) ? PURR__FP32_NAN : purr__fp32_bits((float)value);
    check(purr__fp32_bits(through_fp32[i]), wanted, "FP32 read back", value);
    check(purr__fp32_bits(direct_fp32[i]), wanted, "FP32 in one step", value);
    /* Exact in BF16, whatever the scale: the source was BF16. */
    check((uint32_t)through_bf16[i] << 16, wanted, "BF16 read back", value);
    check((uint32_t)direct_bf16[i] << 16, wanted, "BF16 in one step", value);
  }
}

static void reading_back_is_exact(void) {
  static uint16_t src[MAX_ELEMENTS];
  random_state = 362436069;
  for (size_t spread = 0; spread < sizeof spreads / sizeof *spreads; spread++)
    for (int form = 0; form < 16; form++) {
      fill_random(src, PURR_DTYPE_BF16, 130 * 290, spreads[spread].num_binades, spreads[spread].center, true);
      check_round_trips(src, 130, 290, form & 3, form >> 2 & 1, form >> 3);
    }
  for (uint32_t bits = 0; bits < 0x10000; bits++) src[bits] = (uint16_t)bits;
  for (int form = 0; form < 16; form++) check_round_trips(src, 256, 256, form & 3, form >> 2 & 1, form >> 3);
}

/* With any code and any scale byte, as a file may hold them; BF16 is the FP32 value rounded once. */
static void every_code_reads_back(void) {
  static float fp32[256 * 256];
  static uint16_t rounded[256 * 256];
  for (int axis = 0; axis < 2; axis++) {
    purr__mxfp8_matrix_t m =
        matrix_of(elements, PURR_DTYPE_E4M3, axis ? 32 * 8 : 256, axis ? 256 : 32 * 8, PURR_GRANULARITY_1X32, axis, 0);
    for (int outer = 0; outer < 256; outer++)
      for (int k = 0; k < 256; k++) elements[axis ? k * 256 + outer : outer * 256 + k] = (uint8_t)k;
    for (int outer = 0; outer < 256; outer++) memset(scale_bytes + outer * 8, outer, 8);
    m.dst = fp32;
    m.dst_dtype = PURR_DTYPE_FP32;
    purr__mxfp8_convert(context, &m, 1);
    m.dst = rounded;
    m.dst_dtype = PURR_DTYPE_BF16;
    purr__mxfp8_convert(context, &m, 1);
    for (int outer = 0; outer < 256; outer++)
      for (int k = 0; k < 256; k++) {
        const int i = axis ? k * 256 + outer : outer * 256 + k;
        const double value = purr_test_mxfp8_value((uint8_t)k, (uint8_t)outer);
        const uint32_t wanted = isnan(value) ? PURR__FP32_NAN : purr__fp32_bits((float)value);
        check(purr__fp32_bits(fp32[i]), wanted, "FP32", value);
        if (isnan(value))
          check(rounded[i], PURR__BF16_NAN, "BF16", value);
        else if (outer >= 3)
          check((uint32_t)rounded[i] << 16, wanted, "BF16", value); /* exact, or Inf as in FP32 */
        else if (fabs((double)bf16(rounded[i]) - value) > 0x1p-134)
          CU_FAIL("a BF16 denormal is off by more than half of its step, 2^-133");
      }
  }
}

/* rceil: scale < amax / 224. A normal element is within 1/16 of itself, a denormal within 2^-10 * scale. floor: amax is
 * below 512 * scale, where it saturates at 448 and loses at most 1/8; scale <= amax / 256. */
static void errors_stay_within_the_bound(void) {
  static float src[MAX_ELEMENTS];
  double worst[2] = {0, 0};
  random_state = 521288629;
  for (int32_t rule = 0; rule < 2; rule++) {
    fill_random(src, PURR_DTYPE_FP32, 1024 * 64, 24, 0, false);
    const purr__mxfp8_matrix_t m = matrix_of(src, PURR_DTYPE_FP32, 1024, 64, PURR_GRANULARITY_1X32, 0, rule);
    purr__mxfp8_convert(context, &m, 1);
    for (int64_t b = 0; b < 1024 * 2; b++) {
      double amax = 0;
      for (int64_t i = b * 32; i < b * 32 + 32; i++) amax = fmax(amax, (double)fabsf(src[i]));
      for (int64_t i = b * 32; i < b * 32 + 32; i++) {
        const double value = (double)src[i];
        const double error = fabs(purr_test_mxfp8_value(elements[i], scale_bytes[b]) - value);
        const double scale_bound = rule == PURR_SCALE_RULE_RCEIL ? amax / 224 : amax / 256;
        const double relative = rule == PURR_SCALE_RULE_RCEIL ? 1.0 / 16 : 1.0 / 8;
        if (error > fmax(fabs(value) * relative, 0x1p-10 * scale_bound)) CU_FAIL("an error is beyond the bound");
        worst[rule] = fmax(worst[rule], error / amax);
      }
    }
  }
  /* The bounds are reached, so this test would see a scale or a rounding that is off. */
  CU_ASSERT(worst[0] > 0.9 / 17 && worst[0] <= 1.0 / 17);
  CU_ASSERT(worst[1] > 0.9 / 8 && worst[1] <= 1.0 / 8);
}

/* ---- the handed cases ---- */

typedef struct block_case {
  float big; /* first element */
  float rest;
  int32_t rule;
  uint8_t scale, big_element, rest_element;
} block_case_t;

/* The same 32 numbers as a row and as a column, as FP32 and, where they are BF16, as that. */
static void check_block(block_case_t block) {
  float fp32[32];
  uint16_t half[32];
  bool is_bf16 = true;
  for (int i = 0; i < 32; i++) {
    fp32[i] = i == 0 ? block.big : block.rest;
    half[i] = purr__bf16_from_fp32(fp32[i]);
    is_bf16 = is_bf16 && (isnan(fp32[i]) || bf16(half[i]) == fp32[i]);
  }
  for (int axis = 0; axis < 2; axis++)
    for (int type = 0; type < (is_bf16 ? 2 : 1); type++) {
      const purr__mxfp8_matrix_t m =
          matrix_of(type ? (const void *)half : (const void *)fp32, type ? PURR_DTYPE_BF16 : PURR_DTYPE_FP32,
                    axis ? 32 : 1, axis ? 1 : 32, PURR_GRANULARITY_1X32, axis, block.rule);
      purr__mxfp8_convert(context, &m, 1);
      check(scale_bytes[0], block.scale, "scale of the block", (double)block.big);
      check(elements[0], block.big_element, "first element", (double)block.big);
      for (int i = 1; i < 32; i++) check(elements[i], block.rest_element, "other element", (double)block.rest);
    }
}

static void tiny_blocks(void) { /* B13 */
  for (int32_t rule = 0; rule < 2; rule++) {
    check_block((block_case_t){0x1p-126f, 0x1p-126f, rule, 0, 0x40, 0x40});
    check_block((block_case_t){0x1p-133f, 0x1p-133f, rule, 0, 0x08, 0x08});
    check_block((block_case_t){1.0f, 0x1p-133f, rule, 119, 0x78, 0x00});
    check_block((block_case_t){-0x1p-149f, 0x1p-136f, rule, 0, 0x80, 0x01});
    check_block((block_case_t){0x1p-137f, 0x1p-137f, rule, 0, 0x00, 0x00}); /* a tie, to the even zero */
  }
  CU_ASSERT_EQUAL(purr__fp32_from_bits(purr__fp32_from_e4m3(0x40, 0)), 0x1p-126f);
  CU_ASSERT_EQUAL(purr__fp32_from_bits(purr__fp32_from_e4m3(0x08, 0)), 0x1p-133f);
}

static void scale_from_unrounded_amax(void) { /* B17 */
  check_block((block_case_t){255.75f, 1.0f, PURR_SCALE_RULE_FLOOR, 126, 0x7E, 0x40});
  check_block((block_case_t){448.5f, 1.0f, PURR_SCALE_RULE_RCEIL, 128, 0x76, 0x30});
  check_block((block_case_t){448.0f, 1.0f, PURR_SCALE_RULE_RCEIL, 127, 0x7E, 0x38});
  check_block((block_case_t){nextafterf(448.0f, 1000.0f), 1.0f, PURR_SCALE_RULE_RCEIL, 128, 0x76, 0x30});
}

static void saturation(void) { /* B19 */
  static const struct {
    float value;
    uint8_t element;
  } casts[] = {{448, 0x7E},   {464, 0x7E},   {465, 0x7E},    {480, 0x7E}, {1000, 0x7E},
               {-1000, 0xFE}, {3e38f, 0x7E}, {-3e38f, 0xFE}, {NAN, 0x7F}, {INFINITY, 0x7F}};
  for (size_t i = 0; i < sizeof casts / sizeof *casts; i++)
    check(purr__e4m3_from_fp32(purr__fp32_bits(casts[i].value), 127), casts[i].element, "element",
          (double)casts[i].value);
  check_block((block_case_t){480, 1, PURR_SCALE_RULE_FLOOR, 127, 0x7E, 0x38});
  check_block((block_case_t){-480, 1, PURR_SCALE_RULE_FLOOR, 127, 0xFE, 0x38});
  check_block((block_case_t){480, 1, PURR_SCALE_RULE_RCEIL, 128, 0x77, 0x30});
}

static void zeros_and_not_a_numbers(void) {
  for (int32_t rule = 0; rule < 2; rule++) {
    check_block((block_case_t){0.0f, 0.0f, rule, 0, 0x00, 0x00});
    check_block((block_case_t){-0.0f, -0.0f, rule, 0, 0x00, 0x00});
    check_block((block_case_t){256.0f, -0.0f, rule, 127, 0x78, 0x80}); /* beside others a zero keeps its sign */
    check_block((block_case_t){NAN, 1.0f, rule, 255, 0x7F, 0x7F});
    check_block((block_case_t){-NAN, -1.0f, rule, 255, 0x7F, 0x7F});
    check_block((block_case_t){INFINITY, 0.0f, rule, 255, 0x7F, 0x7F});
    check_block((block_case_t){1.0f, -INFINITY, rule, 255, 0x7F, 0x7F});
  }
  /* The largest scale that quantising gives: 2^120, where 1.99 * 2^127 rounds to 2^128. */
  check_block((block_case_t){0x1.fep127f, 0x1p127f, PURR_SCALE_RULE_RCEIL, 247, 0x78, 0x70});
  check_block((block_case_t){0x1.fep127f, 0x1p127f, PURR_SCALE_RULE_FLOOR, 246, 0x7E, 0x78});
}

/* ---- what must not matter ---- */

/* Every instruction set, number of threads, cut into parts, and floating-point mode of the caller: the same bytes. */
static void bytes_are_always_the_same(void) {
  static const char *const isas[] = {"baseline", "avx2", "avx512", "neon"};
  static uint16_t src[300 * 1100];
  static uint8_t first[300 * 1100], first_scales[300 * 1100], other[300 * 1100], other_scales[300 * 1100];
  random_state = 1013904223;
  fill_random(src, PURR_DTYPE_BF16, 300 * 1100, 40, 0, true);
  fill_random(src + 300 * 500, PURR_DTYPE_BF16, 300 * 100, 20, -120, false);
  purr_error_t err;
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  desc.num_threads = 5;
  purr_context_t *many;
  REQUIRE_OK(purr_context_create(&desc, &many, &err));
  for (int form = 0; form < 8; form++) {
    purr__mxfp8_matrix_t m = matrix_of(src, PURR_DTYPE_BF16, 300, 1100, form & 3, form >> 2, 0);
    m.dst = first;
    m.scales.data = first_scales;
    CU_ASSERT(purr__host_set_isa("baseline"));
    purr__mxfp8_convert(context, &m, 1);
    m.dst = other;
    m.scales.data = other_scales;
    for (int variant = 0; variant < 8; variant++) {
      const bool has_isa = purr__host_set_isa(variant < 4 ? isas[variant] : "auto");
      if (!has_isa) continue;
      memset(other, 0xFF, sizeof other);
      if (variant == 4) fesetround(FE_UPWARD);
      if (variant == 5)
        for (int64_t r = 0; r < 300; r += 128)
          for (int64_t c = 0; c < 1100; c += 256)
            purr__mxfp8_convert_part(&m, r, purr__min(128, 300 - r), c, purr__min(256, 1100 - c));
      else
        purr__mxfp8_convert(variant >= 6 ? many : context, &m, 1);
      CU_ASSERT_EQUAL(fegetround(), variant == 4 ? FE_UPWARD : FE_TONEAREST); /* the caller's mode is back */
      fesetround(FE_TONEAREST);
      CU_ASSERT_EQUAL(memcmp(first, other, sizeof first), 0);
      const int64_t num_scales = m.scales.num_outer * m.scales.num_blocks;
      CU_ASSERT_EQUAL(memcmp(first_scales, other_scales, (size_t)num_scales), 0);
    }
  }
  CU_ASSERT(purr__host_set_isa("auto"));
  purr_context_destroy(many);
}

/* Many matrices in one call, empty ones among them. */
static void many_matrices_in_one_call(void) {
  static uint16_t src[64 * 64];
  static uint16_t together[5][64 * 64], alone[64 * 64];
  random_state = 5772156649;
  fill_random(src, PURR_DTYPE_BF16, 64 * 64, 10, 0, false);
  memset(together, 0xFF, sizeof together);
  purr__mxfp8_matrix_t matrices[5];
  static const int64_t num_rows[5] = {0, 3, 0, 64, 33};
  for (int i = 0; i < 5; i++) {
    matrices[i] = matrix_of(src, PURR_DTYPE_BF16, num_rows[i], 64, PURR_GRANULARITY_1X32, PURR_SCALE_ALONG_COLUMN, 0);
    matrices[i].dst = together[i];
    matrices[i].dst_dtype = PURR_DTYPE_BF16;
  }
  purr__mxfp8_convert(context, matrices, 5);
  for (int i = 0; i < 5; i++) {
    memset(alone, 0xFF, sizeof alone);
    matrices[i].dst = alone;
    purr__mxfp8_convert(context, &matrices[i], 1);
    CU_ASSERT_EQUAL(memcmp(alone, together[i], sizeof alone), 0);
    for (int64_t k = num_rows[i] * 64; k < 64 * 64; k++) CU_ASSERT_EQUAL(alone[k], 0xFFFF);
  }
  purr__mxfp8_convert(context, NULL, 0);
}

int main(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  desc.num_threads = 1;
  if (purr_context_create(&desc, &context, &err) != PURR_STATUS_OK) {
    fprintf(stderr, "%s\n", err.message);
    return 1;
  }
  const int failures = purr_test_main(
      "mxfp8", (purr_test_t[]){{"all element codes, with all scales, have their value", elements_decode},
                               {"all scale bytes have their value", scales_decode},
                               {"scales follow both rules", scales_follow_the_rule},
                               {"all BF16 values go to the nearest element", elements_encode},
                               {"all BF16 values in blocks of every range", every_value_in_every_range},
                               {"every granularity, axis, rule and type", every_form_follows_the_definition},
                               {"quantised values read back, also in one step", reading_back_is_exact},
                               {"any code with any scale byte reads back", every_code_reads_back},
                               {"errors stay within the bound and reach it", errors_stay_within_the_bound},
                               {"tiny blocks (B13)", tiny_blocks},
                               {"the scale comes from the unrounded maximum (B17)", scale_from_unrounded_amax},
                               {"saturation (B19)", saturation},
                               {"zeros, NaN and Inf", zeros_and_not_a_numbers},
                               {"the same bytes always", bytes_are_always_the_same},
                               {"many matrices in one call", many_matrices_in_one_call},
                               {0}});
  purr_context_destroy(context);
  return failures;
}
