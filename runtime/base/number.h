/* Numbers as text: strict to read, exact to write back, the same under every locale. */
#ifndef PURR_NUMBER_H
#define PURR_NUMBER_H

#include "base/base.h"

typedef enum purr__number { PURR__NUMBER_GOOD, PURR__NUMBER_MALFORMED, PURR__NUMBER_OUT_OF_RANGE } purr__number_t;

/* Plain decimal: an optional minus, then 0 or digits that do not start with 0. No plus, no point, no exponent. */
purr__number_t purr__number_parse_integer(const char *text, uint64_t length, int64_t *out_value);

/* An integer as above, with or without KiB, MiB or GiB right behind it. */
purr__number_t purr__number_parse_bytes(const char *text, uint64_t length, int64_t *out_bytes);

/* Decimal with optional sign, point and exponent: "1e5", "1.0E+5", ".5". OUT_OF_RANGE where no finite float is near, or
 * where only 0 is near and the number is not 0. No infinities and no NaN. */
purr__number_t purr__number_parse_fp32(const char *text, uint64_t length, float *out_value);

/* The shortest decimal that reads back as the same float. */
void purr__text_add_fp32(purr__text_t *text, float value);

#endif
