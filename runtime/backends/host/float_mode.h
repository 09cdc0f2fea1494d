/* A caller's thread may round differently or flush small numbers to zero (code built with -ffast-math turns that on at
 * load), while the worker threads do not: arithmetic that promises bits runs between enter and leave. */
#ifndef PURR_HOST_FLOAT_MODE_H
#define PURR_HOST_FLOAT_MODE_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* Round to nearest, no flush to zero, no traps; returns what was set. */
static inline uint64_t purr__float_mode_enter(void) {
#if defined(__x86_64__)
  uint64_t saved = _mm_getcsr();
  _mm_setcsr(0x1F80);
  return saved;
#elif defined(__aarch64__)
  uint64_t saved;
  __asm__ volatile("mrs %0, fpcr" : "=r"(saved)::"memory");
  __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)0) : "memory");
  return saved;
#else
  return 0;
#endif
}

static inline void purr__float_mode_leave(uint64_t saved) {
#if defined(__x86_64__)
  _mm_setcsr((unsigned)saved);
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" ::"r"(saved) : "memory");
#else
  (void)saved;
#endif
}

#endif
