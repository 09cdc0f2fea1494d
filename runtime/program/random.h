/* Random numbers by index: element i of a stream is a function of (seed, stream, i) alone. So any thread can make any
 * part, every rank count sees the same data, and, without libm, every machine does too. */
#ifndef PURR_PROGRAM_RANDOM_H
#define PURR_PROGRAM_RANDOM_H

#include <stdint.h>

/* The streams of a run. */
enum {
  RANDOM_X,
  RANDOM_D_OUTPUT,
  RANDOM_GATE_UP,
  RANDOM_DOWN,
  RANDOM_SHARED_GATE,
  RANDOM_SHARED_UP,
  RANDOM_SHARED_DOWN,
  RANDOM_SHARED_EXPERT_GATE,
  RANDOM_ROUTE,
  RANDOM_ROUTE_WEIGHT,
  RANDOM_ROUTE_ORDER,
};

/* The step and the finaliser of splitmix64 (Steele, Lea, Flood 2014). */
static inline uint64_t random_mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

static inline uint64_t random_key(uint64_t seed, uint64_t stream) {
  return random_mix(random_mix(seed + 0x9E3779B97F4A7C15u) + stream);
}

static inline uint64_t random_bits(uint64_t key, uint64_t idx) {
  return random_mix(key + (idx + 1) * 0x9E3779B97F4A7C15u);
}

/* Strictly between 0 and 1. */
static inline double random_uniform(uint64_t key, uint64_t idx) {
  return ((double)(random_bits(key, idx) >> 12) + 0.5) * 0x1p-52;
}

/* Close to normal, mean 0, deviation 1: the sum of four 16-bit uniform numbers, within +-3.47. */
static inline float random_normal(uint64_t key, uint64_t idx) {
  uint64_t bits = random_bits(key, idx);
  int sum = (int)(bits & 0xFFFF) + (int)(bits >> 16 & 0xFFFF) + (int)(bits >> 32 & 0xFFFF) + (int)(bits >> 48);
  return (float)(sum - 131070) * (1.0f / 37837.228f); /* deviation of the sum: 65536 / sqrt(3) */
}

#endif
