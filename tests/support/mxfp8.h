/* MXFP8 from its definition, slowly and in double precision: what the library and the kernels are held against. */
#ifndef PURR_TEST_MXFP8_H
#define PURR_TEST_MXFP8_H

#include <stdbool.h>
#include <stdint.h>

/* The value of an E4M3 code; NaN for 0x7F and 0xFF. */
double purr_test_e4m3_value(uint8_t code);
/* The code nearest to `value`: ties go to the even mantissa, beyond 448 saturates. */
uint8_t purr_test_e4m3_nearest(double value);
/* The scale byte of a block with this largest magnitude. */
uint8_t purr_test_e8m0_of_amax(double amax, int32_t rule);

/* Quantises a matrix [rows, columns]. elements and scales are [rows, columns]; scales holds each element's own byte. */
void purr_test_mxfp8_quantize(const double *values, int64_t num_rows, int64_t num_columns, int32_t granularity,
                              int32_t axis, int32_t rule, uint8_t *elements, uint8_t *scales);
/* element * 2^(scale - 127); NaN where either is. */
double purr_test_mxfp8_value(uint8_t element, uint8_t scale);

#endif
