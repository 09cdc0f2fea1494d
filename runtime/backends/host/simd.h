/* The vector layer of the host kernels: FP32 lanes of one instruction set, chosen by the macro that the including
 * isa_*.c file defines. All of it is the compilers' generic vectors, except what those cannot say or do not say well:
 * the fused multiply-add, the broadcast, changes of width (whose values fit) and the transpose. Each operation gives
 * the same bits in every set. */
#ifndef PURR_HOST_SIMD_H
#define PURR_HOST_SIMD_H

#include <float.h>
#include <stdint.h>
#include <string.h>

#include "base/bf16.h"

_Static_assert(FLT_EVAL_METHOD == 0, "float expressions must be rounded to float");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a pair of BF16 is read as one 32-bit word, low half first");

/* NUM_LANES: floats in a vector. BLOCK_ROWS by BLOCK_VECTORS: the accumulators that the registers hold at a time. */
#if defined(PURR__ISA_AVX512)
#include <immintrin.h>
enum { NUM_LANES = 16, BLOCK_ROWS = 14, BLOCK_VECTORS = 2, HAS_FMA = 1 };
#elif defined(PURR__ISA_AVX2)
#include <immintrin.h>
enum { NUM_LANES = 8, BLOCK_ROWS = 6, BLOCK_VECTORS = 2, HAS_FMA = 1 };
#elif defined(PURR__ISA_NEON)
#include <arm_neon.h>
enum { NUM_LANES = 4, BLOCK_ROWS = 6, BLOCK_VECTORS = 4, HAS_FMA = 1 };
#else
enum { NUM_LANES = 4, BLOCK_ROWS = 4, BLOCK_VECTORS = 2, HAS_FMA = 0 };
#endif

typedef float vfloat_t __attribute__((vector_size(4 * NUM_LANES)));
typedef int32_t vint_t __attribute__((vector_size(4 * NUM_LANES)));
typedef uint32_t vuint_t __attribute__((vector_size(4 * NUM_LANES)));
typedef uint16_t vbf16_t __attribute__((vector_size(2 * NUM_LANES)));

#define ALWAYS_INLINE static inline __attribute__((always_inline))
/* Loops over a block of registers must unroll whole, or the block lives in memory. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

ALWAYS_INLINE vfloat_t vload(const float *from) {
  vfloat_t x;
  memcpy(&x, from, sizeof x);
  return x;
}

ALWAYS_INLINE void vstore(float *to, vfloat_t x) { memcpy(to, &x, sizeof x); }

#if defined(PURR__ISA_AVX512)

ALWAYS_INLINE vfloat_t vset(float x) { return (vfloat_t)_mm512_set1_ps(x); }

ALWAYS_INLINE vfloat_t vfma(vfloat_t a, vfloat_t b, vfloat_t c) {
  return (vfloat_t)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

ALWAYS_INLINE vuint_t vextend(vbf16_t x) { return (vuint_t)_mm512_cvtepu16_epi32((__m256i)x); }

ALWAYS_INLINE vbf16_t vshorten(vuint_t x) { return (vbf16_t)_mm512_cvtepi32_epi16((__m512i)x); }

/* x[i][j] <-> x[j][i]: pairs, then quads within 128 bits, then 128-bit quarters. */
ALWAYS_INLINE void vtranspose(vfloat_t x[NUM_LANES]) {
  __m512 y[16], z[16];
  UNROLL for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_ps((__m512)x[i], (__m512)x[i + 1]);
    y[i + 1] = _mm512_unpackhi_ps((__m512)x[i], (__m512)x[i + 1]);
  }
  UNROLL for (int i = 0; i < 16; i += 4) UNROLL for (int j = 0; j < 2; j++) {
    __m512d low = _mm512_castps_pd(y[i + j]), high = _mm512_castps_pd(y[i + j + 2]);
    z[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
    z[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
  }
  UNROLL for (int j = 0; j < 4; j++) {
    __m512 even_low = _mm512_shuffle_f32x4(z[j], z[j + 4], 0x88), odd_low = _mm512_shuffle_f32x4(z[j], z[j + 4], 0xDD);
    __m512 even_high = _mm512_shuffle_f32x4(z[j + 8], z[j + 12], 0x88);
    __m512 odd_high = _mm512_shuffle_f32x4(z[j + 8], z[j + 12], 0xDD);
    x[j] = (vfloat_t)_mm512_shuffle_f32x4(even_low, even_high, 0x88);
    x[j + 4] = (vfloat_t)_mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
    x[j + 8] = (vfloat_t)_mm512_shuffle_f32x4(even_low, even_high, 0xDD);
    x[j + 12] = (vfloat_t)_mm512_shuffle_f32x4(odd_low, odd_high, 0xDD);
  }
}

#elif defined(PURR__ISA_AVX2)

ALWAYS_INLINE vfloat_t vset(float x) { return (vfloat_t)_mm256_set1_ps(x); }

ALWAYS_INLINE vfloat_t vfma(vfloat_t a, vfloat_t b, vfloat_t c) {
  return (vfloat_t)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

ALWAYS_INLINE vuint_t vextend(vbf16_t x) { return (vuint_t)_mm256_cvtepu16_epi32((__m128i)x); }

ALWAYS_INLINE vbf16_t vshorten(vuint_t x) {
  return (vbf16_t)_mm_packus_epi32(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
}

ALWAYS_INLINE void vtranspose(vfloat_t x[NUM_LANES]) {
  __m256 y[8], z[8];
  UNROLL for (int i = 0; i < 8; i += 2) {
    y[i] = _mm256_unpacklo_ps((__m256)x[i], (__m256)x[i + 1]);
    y[i + 1] = _mm256_unpackhi_ps((__m256)x[i], (__m256)x[i + 1]);
  }
  UNROLL for (int i = 0; i < 8; i += 4) UNROLL for (int j = 0; j < 2; j++) {
    __m256d low = _mm256_castps_pd(y[i + j]), high = _mm256_castps_pd(y[i + j + 2]);
    z[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high));
    z[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
  }
  UNROLL for (int j = 0; j < 4; j++) {
    x[j] = (vfloat_t)_mm256_permute2f128_ps(z[j], z[j + 4], 0x20);
    x[j + 4] = (vfloat_t)_mm256_permute2f128_ps(z[j], z[j + 4], 0x31);
  }
}

#else /* four lanes: NEON, or whatever the compiler makes of generic vectors */

ALWAYS_INLINE vuint_t vextend(vbf16_t x) { return __builtin_convertvector(x, vuint_t); }

ALWAYS_INLINE vbf16_t vshorten(vuint_t x) { return __builtin_convertvector(x, vbf16_t); }

ALWAYS_INLINE void vtranspose(vfloat_t x[NUM_LANES]) {
  vfloat_t y0 = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5), y1 = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
  vfloat_t y2 = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5), y3 = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
  x[0] = __builtin_shufflevector(y0, y2, 0, 1, 4, 5);
  x[1] = __builtin_shufflevector(y0, y2, 2, 3, 6, 7);
  x[2] = __builtin_shufflevector(y1, y3, 0, 1, 4, 5);
  x[3] = __builtin_shufflevector(y1, y3, 2, 3, 6, 7);
}

#if defined(PURR__ISA_NEON)

ALWAYS_INLINE vfloat_t vset(float x) { return (vfloat_t)vdupq_n_f32(x); }

ALWAYS_INLINE vfloat_t vfma(vfloat_t a, vfloat_t b, vfloat_t c) {
  return (vfloat_t)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}

#else

ALWAYS_INLINE vfloat_t vset(float x) { return (vfloat_t){x, x, x, x}; }

typedef double vdouble_t __attribute__((vector_size(8 * NUM_LANES)));
typedef int64_t vlong_t __attribute__((vector_size(8 * NUM_LANES)));

/* fmaf without the instruction. The product of two floats is exact in double (48 bits of 53), and so is the error of
 * the double sum (TwoSum; nothing here can overflow or underflow a double). Where the sum is inexact it is moved to the
 * odd one of the two doubles around the true value: with at least two bits to spare, rounding that to float equals
 * rounding the true value once (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008). Infinities
 * and NaN make the error NaN, which compares false and moves nothing. */
ALWAYS_INLINE vfloat_t vfma(vfloat_t a, vfloat_t b, vfloat_t c) {
  vdouble_t product = __builtin_convertvector(a, vdouble_t) * __builtin_convertvector(b, vdouble_t);
  vdouble_t addend = __builtin_convertvector(c, vdouble_t);
  vdouble_t sum = product + addend;
  vdouble_t part = sum - product;
  vdouble_t error = (product - (sum - part)) + (addend - part);
  vlong_t error_below = error<0.0, error_above = error> 0.0, sum_below = sum < 0.0;
  vlong_t bits = (vlong_t)sum;
  vlong_t is_even = (bits & 1) - 1;
  vlong_t step = (error_below ^ sum_below) | 1; /* one away from zero, or -1 one towards it */
  bits += step & is_even & (error_below | error_above);
  return __builtin_convertvector((vdouble_t)bits, vfloat_t);
}

#endif
#endif

ALWAYS_INLINE vfloat_t vselect(vint_t mask, vfloat_t if_set, vfloat_t if_clear) {
  return (vfloat_t)((mask & (vint_t)if_set) | (~mask & (vint_t)if_clear));
}

ALWAYS_INLINE vfloat_t vwiden(vbf16_t x) { return (vfloat_t)(vextend(x) << 16); }

ALWAYS_INLINE vfloat_t vcanonical(vfloat_t x) {
  return vselect(x != x, (vfloat_t)(((vuint_t){0}) + PURR__FP32_NAN), x);
}

/* As purr__bf16_from_fp32. */
ALWAYS_INLINE vbf16_t vnarrow(vfloat_t x) {
  vuint_t bits = (vuint_t)x;
  vuint_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  vuint_t is_nan = (vuint_t)(x != x);
  return vshorten((rounded & ~is_nan) | (is_nan & PURR__BF16_NAN));
}

/* The first `num` lanes (all, if there are as many) from or to memory; the others read as `fill`. */
ALWAYS_INLINE vfloat_t vload_some(const float *from, int64_t num, float fill) {
  if (num >= NUM_LANES) return vload(from);
  float lanes[NUM_LANES];
  for (int64_t i = 0; i < NUM_LANES; i++) lanes[i] = i < num ? from[i] : fill;
  return vload(lanes);
}

ALWAYS_INLINE vfloat_t vload_bf16(const purr__bf16_t *from, int64_t num, float fill) {
  vbf16_t x;
  if (num >= NUM_LANES) {
    memcpy(&x, from, sizeof x);
    return vwiden(x);
  }
  float lanes[NUM_LANES];
  for (int64_t i = 0; i < NUM_LANES; i++) lanes[i] = i < num ? purr__fp32_from_bf16(from[i]) : fill;
  return vload(lanes);
}

ALWAYS_INLINE void vstore_some(float *to, int64_t num, vfloat_t x) {
  if (num >= NUM_LANES)
    vstore(to, x);
  else
    memcpy(to, &x, (size_t)num * sizeof *to);
}

ALWAYS_INLINE void vstore_bf16(purr__bf16_t *to, int64_t num, vfloat_t x) {
  vbf16_t narrow = vnarrow(x);
  if (num >= NUM_LANES)
    memcpy(to, &narrow, sizeof narrow);
  else
    memcpy(to, &narrow, (size_t)num * sizeof *to);
}

#endif
