/* SPDX-License-Identifier: Apache-2.0
 *
 * Part of roles of the forward megakernel: bringing rows of x to their experts, ahead of the multiplying.
 *
 * The rows of all tiles, in their order, are dealt to the blocks in turn. In a block, whoever has time takes the next
 * few: the writers between jobs, and the consumers at the very start. */
#ifndef PURR_KERNELS_SM90A_FORWARD_GATHER_CUH
#define PURR_KERNELS_SM90A_FORWARD_GATHER_CUH

#include "forward_types.cuh"

namespace purr {
namespace {

constexpr int kFirstRows = 24; /* of a block: its consumers help to bring them, where they have nothing else to do */

/* kAhead: 16-byte loads of a lane that are in flight together. kRowsTaken: by a warp at a time; a lane looks up each.
 */
template <int kAhead, int kRowsTaken>
struct Gather {
  const purr__forward_params_t &params;
  int *next_rows; /* shared: rows of the block's that have been taken */
  /* Of the rows taken, a lane each: */
  const char *from = nullptr;
  int row = 0, tile = 0;
  int num_taken = 0, num_copied = 0;
  bool done = false;

  __device__ __forceinline__ Gather(const purr__forward_params_t &params_, int *next_rows_)
      : params(params_), next_rows(next_rows_) {}

  /* Takes the block's next rows, up to the limit; false when there are none. */
  __device__ __forceinline__ bool take(int limit) {
    const purr__device_table_t &table = params.table;
    const int lane = threadIdx.x % 32, tile_rows = params.order.tile_rows;
    int first = 0;
    if (lane == 0) first = *(volatile int *)next_rows < limit ? atomicAdd(next_rows, kRowsTaken) : INT_MAX / 2;
    first = __shfl_sync(0xFFFFFFFFu, first, 0);
    num_copied = num_taken = 0;
    from = nullptr;
    if (first == INT_MAX / 2) return false;
    /* Of all tiles, each with room for tile_rows. The plan sees to it that 32 bits do. */
    const int end = table.tile_begin[params.num_experts] * tile_rows;
    if (first * (int)gridDim.x + (int)blockIdx.x >= end) {
      done = true;
      return false;
    }
    num_taken = kRowsTaken;
    const int idx = (first + lane) * (int)gridDim.x + (int)blockIdx.x;
    if (lane >= kRowsTaken || idx >= end) return true;
    tile = idx / tile_rows;
    const int expert = table.tile_expert[tile], count = table.expert_count[expert];
    const int tiles_before = table.tile_begin[expert];
    const int height = purr__unit_tile_height(count, table.tile_begin[expert + 1] - tiles_before);
    const int in_tile = idx - tile * tile_rows, in_expert = (tile - tiles_before) * height + in_tile;
    if (in_tile >= height || in_expert >= count) return true;
    row = table.expert_begin[expert] + in_expert;
    from = static_cast<const char *>(params.x.data) + table.row_slot[row] / params.top_k * params.x.row_stride * 2;
    return true;
  }

  /* One row; whether there was one to do. */
  __device__ __forceinline__ bool step(int limit = INT_MAX / 4) {
    if (num_copied == num_taken && (done || !take(limit))) return false;
    const int lane = threadIdx.x % 32, i = num_copied++;
    const char *row_from =
        reinterpret_cast<const char *>(__shfl_sync(0xFFFFFFFFu, reinterpret_cast<uint64_t>(from), i));
    const int row_to = __shfl_sync(0xFFFFFFFFu, row, i), of_tile = __shfl_sync(0xFFFFFFFFu, tile, i);
    if (row_from == nullptr) return true;
    char *to = static_cast<char *>(params.x_rows.data) + row_to * params.x_rows.row_stride * 2;
    const int bytes = params.hidden * 2;
    for (int at = lane * 16; at < bytes; at += kAhead * 512) {
      uint4 v[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; j++)
        if (at + j * 512 < bytes) v[j] = ptx::ld_16_streaming(row_from + at + j * 512);
#pragma unroll
      for (int j = 0; j < kAhead; j++)
        if (at + j * 512 < bytes) ptx::st_16(to + at + j * 512, v[j]);
    }
    ptx::fence_proxy_async_global(); /* the copy engine will read it */
    __syncwarp();
    if (lane == 0) ptx::red_add_release_gpu(&PURR__UNIT_TILE_SYNC(params.order.sync)[of_tile].rows_there, 1);
    return true;
  }
};

/* The first rows, by a warp that has nothing to do before they are there. */
template <typename V>
__device__ __forceinline__ void gather_first_rows(const purr__forward_params_t &params, SharedStorage<V> *shared) {
  Gather<6, 2> gather(params, &shared->next_rows);
  while (gather.step(kFirstRows)) {
  }
}

}  // namespace
}  // namespace purr

#endif
