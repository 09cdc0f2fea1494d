/* Any numbers, any form: quantising follows the definition byte for byte, reading back gives the exact values, and
 * quantising those again changes nothing. */
#include <math.h>

#include "backends/host/math.h"
#include "base/bf16.h"
#include "fuzz.h"
#include "support/mxfp8.h"

enum { MAX_ROWS = 160, MAX_COLUMNS = 160, MAX_ELEMENTS = 2048 };

typedef struct form {
  int32_t granularity, axis, rule, layout, dtype;
  int64_t num_rows, num_columns;
} form_t;

/* Four bytes of form, then the elements' bits, over and over. */
static form_t take_form(fuzz_input_t *input) {
  static const char *const isas[] = {"auto", "baseline", "avx2", "avx512"};
  const uint8_t bits = fuzz_take(input);
  purr__host_set_isa(isas[fuzz_take(input) % 4]);
  form_t form = {.granularity = bits & 3,
                 .axis = bits >> 2 & 1,
                 .rule = bits >> 3 & 1,
                 .layout = bits >> 4 & 1,
                 .dtype = bits >> 5 & 1 ? PURR_DTYPE_BF16 : PURR_DTYPE_FP32,
                 .num_rows = 1 + fuzz_take(input) % MAX_ROWS,
                 .num_columns = 1 + fuzz_take(input) % MAX_COLUMNS};
  while (form.num_rows * form.num_columns > MAX_ELEMENTS) form.num_rows--;
  return form;
}

static purr_tensor_t tensor_of(const form_t *form, int32_t dtype, void *data) {
  return (purr_tensor_t){.struct_size = sizeof(purr_tensor_t),
                         .dtype = dtype,
                         .num_dims = 2,
                         .data = data,
                         .shape = {form->num_rows, form->num_columns}};
}

/* Scales in memory of exactly their size. */
static purr_scales_t scales_for(purr_tensor_t *tensor, const form_t *form, int32_t layout) {
  purr_scales_t scales = PURR_SCALES_INIT;
  scales.axis = form->axis;
  scales.granularity = form->granularity;
  scales.layout = layout;
  tensor->scales = &scales;
  purr_scales_info_t info = {.struct_size = sizeof info};
  FUZZ_CHECK(purr_scales_query(fuzz_context(), tensor, &info, NULL) == PURR_STATUS_OK);
  tensor->scales = NULL;
  scales.data_bytes = info.num_bytes;
  if (posix_memalign(&scales.data, 16, info.num_bytes) != 0) abort();
  memset(scales.data, 0xFF, info.num_bytes);
  return scales;
}

static uint8_t plain_scale(const form_t *form, const purr_scales_t *plain, int64_t row, int64_t column) {
  const int64_t along = form->axis == PURR_SCALE_ALONG_ROW ? form->num_columns : form->num_rows;
  const int64_t num_blocks = (along + 31) / 32;
  return ((const uint8_t *)plain->data)[form->axis == PURR_SCALE_ALONG_ROW ? row * num_blocks + column / 32
                                                                           : column * num_blocks + row / 32];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  purr_context_t *context = fuzz_context();
  fuzz_input_t input = {data, num_bytes};
  const form_t form = take_form(&input);
  const int64_t num = form.num_rows * form.num_columns;
  const size_t element_bytes = form.dtype == PURR_DTYPE_BF16 ? 2 : 4;
  uint8_t *values = fuzz_allocate((size_t)num * element_bytes);
  for (size_t i = 0; i < (size_t)num * element_bytes; i++)
    values[i] = input.num_bytes > 0 ? input.data[i % input.num_bytes] : (uint8_t)i;

  /* The definition. */
  double *doubles = fuzz_allocate((size_t)num * sizeof *doubles);
  uint8_t *wanted = fuzz_allocate((size_t)num), *wanted_scales = fuzz_allocate((size_t)num);
  for (int64_t i = 0; i < num; i++) {
    uint32_t bits = 0;
    memcpy((char *)&bits + (4 - element_bytes), values + (size_t)i * element_bytes, element_bytes);
    doubles[i] = (double)purr__fp32_from_bits(bits);
  }
  purr_test_mxfp8_quantize(doubles, form.num_rows, form.num_columns, form.granularity, form.axis, form.rule, wanted,
                           wanted_scales);

  uint8_t *elements = fuzz_allocate((size_t)num);
  memset(elements, 0xFF, (size_t)num);
  const purr_tensor_t source = tensor_of(&form, form.dtype, values);
  purr_tensor_t quantized = tensor_of(&form, PURR_DTYPE_E4M3, elements);
  purr_scales_t scales = scales_for(&quantized, &form, form.layout);
  purr_scales_t plain = scales_for(&quantized, &form, PURR_SCALE_LAYOUT_PLAIN);
  quantized.scales = &scales;
  FUZZ_CHECK(purr_mxfp8_quantize(context, &source, form.rule, &quantized, NULL) == PURR_STATUS_OK);
  FUZZ_CHECK(purr_scales_convert(context, &quantized, &plain, NULL) == PURR_STATUS_OK);
  FUZZ_CHECK(memcmp(elements, wanted, (size_t)num) == 0);
  for (int64_t i = 0; i < num; i++)
    FUZZ_CHECK(plain_scale(&form, &plain, i / form.num_columns, i % form.num_columns) == wanted_scales[i]);

  /* There and back, twice. */
  float *back = fuzz_allocate((size_t)num * sizeof *back), *again = fuzz_allocate((size_t)num * sizeof *again);
  purr_tensor_t read = tensor_of(&form, PURR_DTYPE_FP32, back);
  FUZZ_CHECK(purr_mxfp8_dequantize(context, &quantized, &read, NULL) == PURR_STATUS_OK);
  bool overflows = false; /* 2^128 and above are Inf in FP32, and Inf is NaN in MXFP8 */
  for (int64_t i = 0; i < num; i++) {
    const double value = purr_test_mxfp8_value(wanted[i], wanted_scales[i]);
    FUZZ_CHECK(isnan(value) ? purr__fp32_bits(back[i]) == PURR__FP32_NAN : back[i] == (float)value);
    overflows = overflows || isinf(back[i]);
  }
  FUZZ_CHECK(purr_mxfp8_quantize(context, &read, form.rule, &quantized, NULL) == PURR_STATUS_OK);
  read.data = again;
  FUZZ_CHECK(purr_mxfp8_dequantize(context, &quantized, &read, NULL) == PURR_STATUS_OK);
  for (int64_t i = 0; i < num && !overflows; i++)
    FUZZ_CHECK(again[i] == back[i] || (isnan(again[i]) && isnan(back[i]))); /* -0 may come back as 0 */

  free(values);
  free(doubles);
  free(wanted);
  free(wanted_scales);
  free(elements);
  free(scales.data);
  free(plain.data);
  free(back);
  free(again);
  return 0;
}
