/* Numbers as text. The C library converts, but only what a grammar here has passed, and under the C locale of this
 * thread alone: a caller's decimal comma must not change what a file means. */
#include "base/number.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

purr__number_t purr__number_parse_integer(const char *text, uint64_t length, int64_t *out_value) {
  bool negative = length > 0 && text[0] == '-';
  uint64_t first = negative ? 1 : 0;
  if (length == first || (text[first] == '0' && length > first + 1)) return PURR__NUMBER_MALFORMED;
  for (uint64_t i = first; i < length; i++)
    if (!is_digit(text[i])) return PURR__NUMBER_MALFORMED;
  int64_t value = 0;
  for (uint64_t i = first; i < length; i++)
    if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, text[i] - '0', &value))
      return PURR__NUMBER_OUT_OF_RANGE;
  *out_value = negative ? -value : value;
  return PURR__NUMBER_GOOD;
}

purr__number_t purr__number_parse_bytes(const char *text, uint64_t length, int64_t *out_bytes) {
  static const char units[] = "KMG";
  int64_t unit = 1;
  if (length > 3 && text[length - 2] == 'i' && text[length - 1] == 'B') {
    const char *letter = memchr(units, text[length - 3], sizeof units - 1);
    if (letter == NULL) return PURR__NUMBER_MALFORMED;
    unit = (int64_t)1 << (10 * (letter - units + 1));
    length -= 3;
  }
  int64_t value = 0;
  purr__number_t number = purr__number_parse_integer(text, length, &value);
  if (number == PURR__NUMBER_GOOD && __builtin_mul_overflow(value, unit, out_bytes)) return PURR__NUMBER_OUT_OF_RANGE;
  return number;
}

/* Length of the run of digits at text[at]. */
static uint64_t count_digits(const char *text, uint64_t length, uint64_t at) {
  uint64_t end = at;
  while (end < length && is_digit(text[end])) end++;
  return end - at;
}

static bool is_decimal(const char *text, uint64_t length) {
  uint64_t at = length > 0 && (text[0] == '+' || text[0] == '-') ? 1 : 0;
  uint64_t digits = count_digits(text, length, at);
  at += digits;
  if (at < length && text[at] == '.') {
    uint64_t fraction = count_digits(text, length, at + 1);
    digits += fraction;
    at += 1 + fraction;
  }
  if (digits == 0) return false;
  if (at < length && (text[at] == 'e' || text[at] == 'E')) {
    at++;
    if (at < length && (text[at] == '+' || text[at] == '-')) at++;
    uint64_t exponent = count_digits(text, length, at);
    if (exponent == 0) return false;
    at += exponent;
  }
  return at == length;
}

purr__number_t purr__number_parse_fp32(const char *text, uint64_t length, float *out_value) {
  char copy[64];
  if (length >= sizeof copy || !is_decimal(text, length)) return PURR__NUMBER_MALFORMED;
  memcpy(copy, text, length);
  copy[length] = '\0';
  locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  if (c_locale == (locale_t)0) return PURR__NUMBER_MALFORMED;
  float value = strtof_l(copy, NULL, c_locale);
  freelocale(c_locale);
  copy[strcspn(copy, "eE")] = '\0';
  bool is_zero = strpbrk(copy, "123456789") == NULL;
  if (value - value != 0.0f || (value == 0.0f && !is_zero)) return PURR__NUMBER_OUT_OF_RANGE;
  *out_value = value;
  return PURR__NUMBER_GOOD;
}

void purr__text_add_fp32(purr__text_t *text, float value) {
  char digits[64] = "";
  locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  if (c_locale == (locale_t)0) {
    text->failed = true;
    return;
  }
  locale_t callers = uselocale(c_locale);
  for (int precision = 1; precision <= 9; precision++) {
    snprintf(digits, sizeof digits, "%.*g", precision, (double)value);
    if (strtof(digits, NULL) == value) break;
  }
  uselocale(callers);
  freelocale(c_locale);
  purr__text_add(text, "%s", digits);
}
