#include "triton/grid.h"

#include <stdio.h>

#include "base/number.h"

#define MAX_DEPTH 32

typedef struct reader {
  const char *rule, *at;
  purr__grid_lookup_fn lookup;
  const void *user;
  char *why;
  uint64_t capacity;
  int depth;
  bool failed;
} reader_t;

PURR__PRINTF(2, 3)
static int64_t stop(reader_t *r, const char *format, ...) {
  if (!r->failed) {
    va_list args;
    va_start(args, format);
    vsnprintf(r->why, r->capacity, format, args);
    va_end(args);
  }
  r->failed = true;
  return 0;
}

static char next(reader_t *r) {
  while (*r->at == ' ') r->at++;
  return *r->at;
}

static bool take(reader_t *r, char c) {
  if (next(r) != c) return false;
  r->at++;
  return true;
}

static void expect(reader_t *r, char c) {
  if (!r->failed && !take(r, c))
    stop(r, "at character %d stands '%.8s', where '%c' was expected", (int)(r->at - r->rule) + 1, r->at, c);
}

static int64_t read_sum(reader_t *r);

static bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

static int64_t divide(reader_t *r, int64_t a, int64_t b) {
  if (b == 0) return r->lookup != NULL ? stop(r, "it divides by 0") : 1;
  if (a == INT64_MIN && b == -1) return stop(r, "it leaves 64 bits");
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0));
}

static int64_t remainder_of(reader_t *r, int64_t a, int64_t b) {
  if (b == 0) return r->lookup != NULL ? stop(r, "it divides by 0") : 1;
  if (b == -1) return 0;
  const int64_t left = a % b;
  return left != 0 && (left < 0) != (b < 0) ? left + b : left;
}

static int64_t read_call(reader_t *r, const char *name, uint64_t length) {
  expect(r, '(');
  const int64_t a = read_sum(r);
  expect(r, ',');
  const int64_t b = read_sum(r);
  expect(r, ')');
  if (r->failed) return 0;
  if (length == 4 && memcmp(name, "cdiv", 4) == 0)
    return a == INT64_MIN ? stop(r, "it leaves 64 bits") : -divide(r, -a, b);
  if (length == 3 && memcmp(name, "min", 3) == 0) return a < b ? a : b;
  if (length == 3 && memcmp(name, "max", 3) == 0) return a > b ? a : b;
  return stop(r, "'%.*s' is no function; there are cdiv, min and max", (int)(length < 32 ? length : 32), name);
}

static int64_t read_name(reader_t *r) {
  const char *name = r->at;
  while (is_name_char(*r->at)) r->at++;
  const uint64_t length = (uint64_t)(r->at - name);
  int64_t value = 1;
  if (next(r) == '(') return read_call(r, name, length);
  if (r->lookup != NULL && !r->lookup(r->user, name, length, &value))
    return stop(r, "'%.*s' is no integer argument that is set", (int)(length < 64 ? length : 64), name);
  return value;
}

static int64_t read_value(reader_t *r) {
  const char c = next(r);
  if (r->failed) return 0;
  if (c >= '0' && c <= '9') {
    const uint64_t length = strspn(r->at, "0123456789");
    int64_t value = 0;
    if (purr__number_parse_integer(r->at, length, &value) != PURR__NUMBER_GOOD)
      return stop(r, "'%.24s' is no number of 64 bits", r->at);
    r->at += length;
    return value;
  }
  if (is_name_char(c) && c != '.') return read_name(r);
  expect(r, '(');
  const int64_t value = read_sum(r);
  expect(r, ')');
  return value;
}

static int64_t read_unary(reader_t *r) {
  if (++r->depth > MAX_DEPTH) return stop(r, "it nests more than %d deep", MAX_DEPTH);
  const bool is_negative = take(r, '-');
  int64_t value = is_negative ? read_unary(r) : read_value(r);
  r->depth--;
  if (is_negative && value == INT64_MIN) return stop(r, "it leaves 64 bits");
  return is_negative ? -value : value;
}

static int64_t read_product(reader_t *r) {
  int64_t value = read_unary(r);
  while (!r->failed) {
    const char op = next(r);
    if (op != '*' && op != '/' && op != '%') break;
    r->at++;
    const int64_t factor = read_unary(r);
    if (op == '*' && __builtin_mul_overflow(value, factor, &value)) return stop(r, "it leaves 64 bits");
    if (op != '*') value = op == '/' ? divide(r, value, factor) : remainder_of(r, value, factor);
  }
  return value;
}

static int64_t read_sum(reader_t *r) {
  int64_t value = read_product(r);
  while (!r->failed) {
    const char op = next(r);
    if (op != '+' && op != '-') break;
    r->at++;
    const int64_t term = read_product(r);
    const bool overflows =
        op == '+' ? __builtin_add_overflow(value, term, &value) : __builtin_sub_overflow(value, term, &value);
    if (overflows) return stop(r, "it leaves 64 bits");
  }
  return value;
}

bool purr__grid_evaluate(const char *rule, purr__grid_lookup_fn lookup, const void *user, int64_t *out_value, char *why,
                         uint64_t capacity) {
  reader_t r = {.rule = rule, .at = rule, .lookup = lookup, .user = user, .why = why, .capacity = capacity};
  *out_value = read_sum(&r);
  if (!r.failed && next(&r) != '\0')
    stop(&r, "at character %d stands '%.8s', which belongs to nothing", (int)(r.at - rule) + 1, r.at);
  return !r.failed;
}
