/* For the tests of the host backend's arithmetic: numbers of every kind, and a loop over what must not matter. */
#ifndef PURR_TEST_HOST_MATH_H
#define PURR_TEST_HOST_MATH_H

#include <float.h>
#include <math.h>
#include <stdio.h>

#include "backends/host/math.h"
#include "support/layer.h"
#include "support/main.h"

/* Calls `check` once with each instruction set that this CPU has, and returns to the best. */
static inline void test_every_isa(void (*check)(void)) {
  static const char *const isas[] = {"baseline", "avx2", "avx512", "neon"};
  int num_isas = 0;
  for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
    if (!purr__host_set_isa(isas[i])) continue;
    CU_ASSERT_STRING_EQUAL(purr__host_isa(), isas[i]);
    const unsigned failures = CU_get_number_of_failures();
    check();
    if (CU_get_number_of_failures() != failures) fprintf(stderr, "... failed with %s\n", isas[i]);
    num_isas++;
  }
  CU_ASSERT(num_isas >= 1);
  CU_ASSERT(purr__host_set_isa("auto"));
}

typedef enum test_values {
  TEST_NORMAL,  /* as activations and weights are */
  TEST_WIDE,    /* any exponent, subnormals and both zeros included */
  TEST_SPECIAL, /* as normal, with a NaN, an infinity or a zero now and then */
} test_values_t;

static inline float test_value(uint64_t *state, test_values_t values) {
  const uint64_t bits = test_random_bits(state);
  if (values == TEST_WIDE) {
    const float x = purr__fp32_from_bits((uint32_t)bits);
    return bits >> 59 == 0 ? copysignf(0.0f, x) : isfinite(x) ? x : 1.0f;
  }
  if (values == TEST_SPECIAL) {
    static const float specials[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f};
    if (bits % 97 < 5) return specials[bits % 97];
  }
  return test_random_normal(state);
}

/* Bits, except that two NaN are always equal. */
static inline bool test_same_float(float a, float b) {
  return purr__fp32_bits(purr__canonical_fp32(a)) == purr__fp32_bits(purr__canonical_fp32(b));
}

/* FNV-1a. */
static inline uint64_t test_hash(uint64_t hash, const void *data, size_t num_bytes) {
  for (size_t i = 0; i < num_bytes; i++) hash = (hash ^ ((const uint8_t *)data)[i]) * 0x100000001B3u;
  return hash;
}

#define TEST_HASH_START 0xCBF29CE484222325u

#endif
