/* CUDA C++ for kernels that are compiled for the emulated machine: included before every kernel's source. */
#ifndef PURR_EMULATED_CUDA_H
#define PURR_EMULATED_CUDA_H

#include <math.h>
#include <string.h>

#include <type_traits>

#include "machine.h"

#define __device__
#define __host__
#define __global__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
/* The machine puts each block's own values here while the block runs. */
#define __shared__ static __attribute__((section("block_shared")))

#define threadIdx (machine::current->index)
#define blockIdx (machine::current->block->index)
#define blockDim (machine::block_dim())
#define gridDim (machine::grid_dim())

namespace machine {
const Dim &block_dim();
const Dim &grid_dim();
}  // namespace machine

struct int4 {
  int x, y, z, w;
} __attribute__((aligned(16)));
struct uint4 {
  unsigned x, y, z, w;
} __attribute__((aligned(16)));
struct ulonglong2 {
  unsigned long long x, y;
} __attribute__((aligned(16)));
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }

template <typename A, typename B>
inline std::common_type_t<A, B> min(A a, B b) {
  return (std::common_type_t<A, B>)a < (std::common_type_t<A, B>)b ? a : b;
}
template <typename A, typename B>
inline std::common_type_t<A, B> max(A a, B b) {
  return (std::common_type_t<A, B>)a > (std::common_type_t<A, B>)b ? a : b;
}

template <typename To, typename From>
inline To emulated_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
inline float __int_as_float(int v) { return emulated_bits<float>(v); }
inline float __uint_as_float(unsigned v) { return emulated_bits<float>(v); }
inline unsigned __float_as_uint(float v) { return emulated_bits<unsigned>(v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }

template <typename T>
inline void __stcs(T *at, T value) {
  *at = value;
}
inline void __threadfence() { machine::maybe_yield(); }
inline void __threadfence_system() { machine::maybe_yield(); }

/* ---- atomics: between two of them any thread may run, within one none ---- */

template <typename T, typename V>
inline T atomicAdd(T *at, V value) {
  machine::maybe_yield();
  const T before = *at;
  *at = (T)(before + (T)value);
  return before;
}
template <typename T, typename V>
inline T atomicMin(T *at, V value) {
  machine::maybe_yield();
  const T before = *at;
  if ((T)value < before) *at = (T)value;
  return before;
}
template <typename T, typename C, typename V>
inline T atomicCAS(T *at, C compare, V value) {
  machine::maybe_yield();
  const T before = *at;
  if (before == (T)compare) *at = (T)value;
  return before;
}

/* ---- threads together ---- */

void __syncthreads();
void __syncwarp(unsigned mask = 0xFFFFFFFFu);

namespace machine {

struct Shuffled {
  uint64_t value;
  int from;
  uint64_t result;
};
int lanes_of(unsigned mask); /* that are alive */
void shuffle(unsigned mask, const char *what, Shuffled *own);

template <typename T>
inline T shuffle_from(unsigned mask, const char *what, T value, int from) {
  Shuffled own = {0, from, 0};
  memcpy(&own.value, &value, sizeof value);
  shuffle(mask, what, &own);
  memcpy(&value, &own.result, sizeof value);
  return value;
}

template <typename T, typename Work>
inline T reduce(unsigned mask, const char *what, T value, Work work) {
  struct Own {
    T value, result;
  } own = {value, {}};
  meet(current->warp->meeting, what, current->rank % 32, lanes_of(mask), &own, [&](void **all) {
    for (int i = 0; i < 32; i++)
      if (all[i] != nullptr) static_cast<Own *>(all[i])->result = work(all, i);
  });
  return own.result;
}

}  // namespace machine

template <typename T>
inline T __shfl_sync(unsigned mask, T value, int from) {
  return machine::shuffle_from(mask, "__shfl_sync", value, from & 31);
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int by) {
  return machine::shuffle_from(mask, "__shfl_xor_sync", value, machine::current->rank % 32 ^ by);
}
template <typename T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned by) {
  const int lane = machine::current->rank % 32;
  return machine::shuffle_from(mask, "__shfl_up_sync", value, lane >= (int)by ? lane - (int)by : lane);
}
inline int __reduce_add_sync(unsigned mask, int value) {
  return machine::reduce(mask, "__reduce_add_sync", value, [](void **all, int) {
    int sum = 0;
    for (int i = 0; i < 32; i++)
      if (all[i] != nullptr) sum += *static_cast<int *>(all[i]);
    return sum;
  });
}
inline unsigned __match_any_sync(unsigned mask, int value) {
  return machine::reduce(mask, "__match_any_sync", (unsigned)value, [](void **all, int own) {
    unsigned same = 0;
    for (int i = 0; i < 32; i++)
      if (all[i] != nullptr && *static_cast<unsigned *>(all[i]) == *static_cast<unsigned *>(all[own])) same |= 1u << i;
    return same;
  });
}
inline unsigned __ballot_sync(unsigned mask, int value) {
  return machine::reduce(mask, "__ballot_sync", (unsigned)(value != 0), [](void **all, int) {
    unsigned votes = 0;
    for (int i = 0; i < 32; i++)
      if (all[i] != nullptr && *static_cast<unsigned *>(all[i]) != 0) votes |= 1u << i;
    return votes;
  });
}
inline int __all_sync(unsigned mask, int value) {
  return machine::reduce(mask, "__all_sync", value, [](void **all, int) {
    int are = 1;
    for (int i = 0; i < 32; i++)
      if (all[i] != nullptr && *static_cast<int *>(all[i]) == 0) are = 0;
    return are;
  });
}

#include "ptx.h"

#endif
