#include "support/mxfp8.h"

#include <math.h>

#include "purr.h"

double purr_test_e4m3_value(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return NAN;
  const double magnitude = exponent == 0 ? ldexp(mantissa / 8.0, -6) : ldexp(1 + mantissa / 8.0, exponent - 7);
  return code & 0x80 ? -magnitude : magnitude;
}

uint8_t purr_test_e4m3_nearest(double value) {
  static double values[127];
  if (values[1] == 0)
    for (int code = 0; code < 127; code++) values[code] = purr_test_e4m3_value((uint8_t)code);
  if (!isfinite(value)) return 0x7F;
  const double magnitude = fabs(value);
  int below = 0, above = 126; /* the codes on both sides, since values ascend */
  while (above - below > 1) {
    const int middle = (below + above) / 2;
    if (values[middle] <= magnitude)
      below = middle;
    else
      above = middle;
  }
  const double to_below = magnitude - values[below], to_above = fabs(values[above] - magnitude);
  const int best = to_below < to_above || (to_below == to_above && below % 2 == 0) ? below : above;
  return (uint8_t)(best | (signbit(value) ? 0x80 : 0));
}

uint8_t purr_test_e8m0_of_amax(double amax, int32_t rule) {
  if (!isfinite(amax)) return 255;
  if (amax == 0) return 0;
  int power = -127;
  if (rule == PURR_SCALE_RULE_FLOOR)
    power = (int)fmax(power, floor(log2(amax)) - 8);
  else
    while (amax > ldexp(448, power)) power++;
  return (uint8_t)(power + 127);
}

void purr_test_mxfp8_quantize(const double *values, int64_t num_rows, int64_t num_columns, int32_t granularity,
                              int32_t axis, int32_t rule, uint8_t *elements, uint8_t *scales) {
  static const int along_row[4][2] = {{1, 32}, {32, 32}, {1, 128}, {128, 128}};
  const bool swapped = axis == PURR_SCALE_ALONG_COLUMN;
  const int granule_rows = along_row[granularity][swapped], granule_columns = along_row[granularity][!swapped];
  for (int64_t r0 = 0; r0 < num_rows; r0 += granule_rows)
    for (int64_t c0 = 0; c0 < num_columns; c0 += granule_columns) {
      const int64_t r1 = r0 + granule_rows < num_rows ? r0 + granule_rows : num_rows;
      const int64_t c1 = c0 + granule_columns < num_columns ? c0 + granule_columns : num_columns;
      double amax = 0;
      for (int64_t r = r0; r < r1; r++)
        for (int64_t c = c0; c < c1; c++) {
          const double magnitude = fabs(values[r * num_columns + c]);
          if (!(magnitude <= amax)) amax = isnan(amax) ? amax : magnitude; /* a NaN stays */
        }
      const uint8_t scale = purr_test_e8m0_of_amax(amax, rule);
      for (int64_t r = r0; r < r1; r++)
        for (int64_t c = c0; c < c1; c++) {
          const int64_t i = r * num_columns + c;
          scales[i] = scale;
          elements[i] = scale == 255 ? 0x7F : amax == 0 ? 0 : purr_test_e4m3_nearest(ldexp(values[i], 127 - scale));
        }
    }
}

double purr_test_mxfp8_value(uint8_t element, uint8_t scale) {
  return scale == 255 ? NAN : ldexp(purr_test_e4m3_value(element), scale - 127);
}
