/* SPDX-License-Identifier: Apache-2.0
 *
 * Eight BF16 columns of a row: 16 bytes in memory, FP32 to be computed with. */
#ifndef PURR_KERNELS_COLUMNS_CUH
#define PURR_KERNELS_COLUMNS_CUH

#include "ptx.cuh"

namespace purr {

constexpr int kColumns = 8;

struct Columns {
  float value[kColumns];
};

__device__ __forceinline__ Columns unpack(uint4 v) {
  return {{ptx::low_bf16(v.x), ptx::high_bf16(v.x), ptx::low_bf16(v.y), ptx::high_bf16(v.y), ptx::low_bf16(v.z),
           ptx::high_bf16(v.z), ptx::low_bf16(v.w), ptx::high_bf16(v.w)}};
}

__device__ __forceinline__ uint4 pack(const Columns &c) {
  return {ptx::pack_bf16x2(c.value[0], c.value[1]), ptx::pack_bf16x2(c.value[2], c.value[3]),
          ptx::pack_bf16x2(c.value[4], c.value[5]), ptx::pack_bf16x2(c.value[6], c.value[7])};
}

/* sum += weight * y: a step of the sum over slots. */
__device__ __forceinline__ void add_weighted(Columns &sum, float weight, uint4 y) {
  const Columns columns = unpack(y);
#pragma unroll
  for (int i = 0; i < kColumns; i++) sum.value[i] = fmaf(weight, columns.value[i], sum.value[i]);
}

/* The whole sum where a token has one slot: bf16(0 + weight * y). */
__device__ __forceinline__ uint4 weighted(float weight, uint4 y) {
  Columns sum = {};
  add_weighted(sum, weight, y);
  return pack(sum);
}

}  // namespace purr

#endif
