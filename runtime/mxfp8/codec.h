/* MXFP8, one number at a time, in integer arithmetic: exact, and the same whatever rounding or denormal mode the
 * caller's thread has set. blocks.c does the same for whole rows; the tests hold the two against each other.
 *
 * An element is E4M3: sign, four bits of exponent with bias 7, three bits of mantissa; no infinities, 0x7F and 0xFF are
 * NaN, the largest is 448 = 0x7E, the smallest 2^-9 = 0x01. A scale is E8M0: byte s stands for 2^(s - 127), also for
 * s = 0, and 255 is NaN. */
#ifndef PURR_MXFP8_CODEC_H
#define PURR_MXFP8_CODEC_H

#include "base/base.h"
#include "base/bf16.h"

#define PURR__E4M3_MAX 0x7Eu /* 448 */
#define PURR__E4M3_NAN 0x7Fu /* the only NaN that Purr writes */
#define PURR__E8M0_NAN 255u

/* The scale of a block whose largest magnitude has these FP32 bits. Rceil: the smallest power of two with
 * amax / scale <= 448 = 1.75 * 2^8. Floor, as in the OCP text: 2^(floor(log2 amax) - 8), where up to 512 remains and
 * elements saturate. Both end at byte 0 for tiny blocks, where elements are then E4M3 denormals; so does an all-zero
 * block. An Inf or NaN gives 255. */
static inline uint32_t purr__e8m0_of_amax(uint32_t amax_bits, int32_t rule) {
  if (amax_bits >= 0x7F800000u) return PURR__E8M0_NAN;
  uint32_t scale = amax_bits >> 23; /* 0 for a denormal amax, which needs byte 0 under either rule */
  if (rule == PURR_SCALE_RULE_RCEIL) scale += (amax_bits & 0x7FFFFFu) > 0x600000u;
  return scale > 8 ? scale - 8 : 0;
}

static inline float purr__fp32_from_e8m0(uint32_t scale) {
  if (scale == PURR__E8M0_NAN) return purr__fp32_from_bits(PURR__FP32_NAN);
  return purr__fp32_from_bits(scale == 0 ? 0x400000u : scale << 23);
}

/* The element nearest to value / 2^(scale - 127), ties to even, saturated to +-448; NaN for a NaN or Inf, and where the
 * scale is NaN. A value that rounds to zero keeps its sign. */
static inline uint8_t purr__e4m3_from_fp32(uint32_t value_bits, uint32_t scale) {
  const uint32_t magnitude = value_bits & 0x7FFFFFFFu, sign = value_bits >> 24 & 0x80u;
  if (magnitude >= 0x7F800000u || scale == PURR__E8M0_NAN) return PURR__E4M3_NAN;
  if (magnitude == 0) return (uint8_t)sign;
  /* value / 2^(scale - 127) = significand * 2^(exponent - 23), with bit 23 of the significand set. */
  int exponent = (int)(magnitude >> 23) - (int)scale;
  uint32_t significand = magnitude & 0x7FFFFFu;
  if (magnitude >= 0x800000u)
    significand |= 0x800000u;
  else
    for (exponent++; significand < 0x800000u; exponent--) significand <<= 1;
  /* Elements with exponent e stand 2^(e - 3) apart, denormals as those with e = -6. */
  const int element_exponent = exponent > -6 ? exponent : -6;
  const int shift = 20 + element_exponent - exponent;
  if (shift > 25) return (uint8_t)sign;
  const uint32_t half = 1u << (shift - 1);
  const uint32_t rounded = (significand + half - 1 + (significand >> shift & 1u)) >> shift;
  const uint32_t code = ((uint32_t)(element_exponent + 6) << 3) + rounded; /* a carry steps to the next exponent */
  return (uint8_t)(sign | (code < PURR__E4M3_MAX ? code : PURR__E4M3_MAX));
}

/* Bits of element * 2^(scale - 127): exact in FP32, except that what exceeds it becomes Inf (only with scale bytes from
 * 247 on: 256 * 2^120 = 2^128). */
static inline uint32_t purr__fp32_from_e4m3(uint8_t element, uint32_t scale) {
  const uint32_t magnitude = element & 0x7Fu, sign = (uint32_t)(element & 0x80u) << 24;
  if (magnitude == PURR__E4M3_NAN || scale == PURR__E8M0_NAN) return PURR__FP32_NAN;
  if (magnitude == 0) return sign;
  const int element_exponent = magnitude < 8 ? -6 : (int)(magnitude >> 3) - 7;
  uint32_t significand = magnitude < 8 ? magnitude : 8 + (magnitude & 7u);
  int biased = element_exponent + (int)scale; /* of the result, while bit 3 of the significand is its leading one */
  while (significand < 8) {
    significand <<= 1;
    biased--;
  }
  if (biased >= 255) return sign | 0x7F800000u;
  if (biased <= 0) return sign | significand << (20 + biased - 1); /* at least 2^-136, far above FP32's 2^-149 */
  return sign | (uint32_t)biased << 23 | (significand & 7u) << 20;
}

#endif
