/* BF16 as its 16 bits, and the one rounding that Purr knows: nearest, ties to even; every NaN becomes 0x7FC0, so that
 * bits agree across compilers and instruction sets. */
#ifndef PURR_BF16_H
#define PURR_BF16_H

#include <stdint.h>
#include <string.h>

typedef uint16_t purr__bf16_t;

#define PURR__BF16_NAN 0x7FC0u
#define PURR__FP32_NAN 0x7FC00000u

static inline uint32_t purr__fp32_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float purr__fp32_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline float purr__fp32_from_bf16(purr__bf16_t value) { return purr__fp32_from_bits((uint32_t)value << 16); }

static inline purr__bf16_t purr__bf16_from_fp32(float value) {
  uint32_t bits = purr__fp32_bits(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return PURR__BF16_NAN;
  return (purr__bf16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

/* FP32 results that leave the library carry the one NaN too. */
static inline float purr__canonical_fp32(float value) {
  return value != value ? purr__fp32_from_bits(PURR__FP32_NAN) : value;
}

#endif
