/* SPDX-License-Identifier: Apache-2.0
 *
 * Part of roles of the forward megakernel: bringing rows of x to their experts, ahead of the multiplying.
 *
 * The rows of all tiles, in their order, are dealt to blocks in turn: to those that pull and do nothing else, or, where
 * there are none, to all. In a block whoever has time takes the next few. A row's place in the ring must be free: the
 * tile that lay there has been multiplied. */
#ifndef PURR_KERNELS_SM90A_FORWARD_GATHER_CUH
#define PURR_KERNELS_SM90A_FORWARD_GATHER_CUH

#include "forward_types.cuh"

namespace purr {
namespace {

/* The rows that a warp has taken, kRowsTaken at a time: a lane knows each. kPulls: of a block that does nothing else.
 */
template <typename V, int kRowsTaken, bool kPulls = false>
struct TakenRows {
  const purr__forward_params_t &params;
  int *next_rows; /* shared: rows of the block's that have been taken */
  const char *from = nullptr;
  int row_to = 0, tile = 0;
  int first = 0, num_taken = 0, num_done = 0;
  int free_tiles = 0; /* places of tiles below this one are free, for all that is still to come */
  bool is_over = false;

  __device__ __forceinline__ TakenRows(const purr__forward_params_t &params_, int *next_rows_)
      : params(params_), next_rows(next_rows_) {
    if (V::kPeers) free_tiles = has_ring() ? params.order.ring_tiles : INT_MAX;
    if (V::kPeers && !kPulls) is_over = params.num_pull_blocks > 0;
  }

  __device__ __forceinline__ bool has_ring() const { return V::kPeers && params.order.ring_tiles > 0; }
  /* Blocks that rows are dealt to. */
  __device__ __forceinline__ int num_dealt() const { return kPulls ? params.num_pull_blocks : (int)gridDim.x; }

  /* The first of the rows that this thread's warp takes; the limit or more when there are none below it. Other warps
   * take rows meanwhile, also after a look at what is left: one that took more than it may would never bring them. */
  __device__ __forceinline__ int take_first(int limit) {
    int next = *(volatile int *)next_rows;
    while (next < limit) {
      const int seen = atomicCAS(next_rows, next, next + kRowsTaken);
      if (seen == next) break;
      next = seen;
    }
    return next;
  }

  /* Takes the block's next rows, up to the limit; false when there are none. */
  __device__ __forceinline__ bool take(int limit) {
    const purr__device_table_t &table = params.table;
    const int lane = threadIdx.x % 32, tile_rows = params.order.tile_rows;
    if (lane == 0) first = take_first(limit);
    first = __shfl_sync(0xFFFFFFFFu, first, 0);
    num_done = num_taken = 0;
    from = nullptr;
    if (first >= limit) return false;
    /* Of all tiles, each with room for tile_rows. The plan sees to it that 32 bits do. */
    const int end = table.tile_begin[params.num_experts] * tile_rows;
    if (first * num_dealt() + (int)blockIdx.x >= end) {
      is_over = true;
      return false;
    }
    num_taken = kRowsTaken;
    const int idx = (first + lane) * num_dealt() + (int)blockIdx.x;
    if (lane >= kRowsTaken || idx >= end) return true;
    tile = idx / tile_rows;
    const int expert = table.tile_expert[tile], count = table.expert_count[expert];
    const int tiles_before = table.tile_begin[expert];
    const int height = purr__unit_tile_height(count, table.tile_begin[expert + 1] - tiles_before);
    const int in_tile = idx - tile * tile_rows, in_expert = (tile - tiles_before) * height + in_tile;
    if (in_tile >= height || in_expert >= count) return true;
    const int row = table.expert_begin[expert] + in_expert;
    row_to = has_ring() ? ring_row<V>(params, tile, 0) + in_tile : row;
    from = static_cast<const char *>(params.x.data) + table.row_slot[row] / params.top_k * params.x.row_stride * 2;
    if (V::kPeers && params.x.by_rank != nullptr)
      from += reinterpret_cast<int64_t>(params.x.by_rank[table.row_rank[row]]);
    return true;
  }

  /* Whether the next row is one of the first `end` of all tiles; the same for all lanes. */
  __device__ __forceinline__ bool comes_before(int end) const {
    if (is_over && num_done == num_taken) return false;
    const int next = num_done < num_taken ? first + num_done : __shfl_sync(0xFFFFFFFFu, *(volatile int *)next_rows, 0);
    return next * num_dealt() + (int)blockIdx.x < end;
  }

  /* The i-th row taken, the same in all lanes; NULL where there is none. */
  __device__ __forceinline__ const char *row_from(int i) const {
    return reinterpret_cast<const char *>(__shfl_sync(0xFFFFFFFFu, reinterpret_cast<uint64_t>(from), i));
  }
  __device__ __forceinline__ int place_of(int i) const { return __shfl_sync(0xFFFFFFFFu, row_to, i); }
  __device__ __forceinline__ char *address_of(int place) const {
    return static_cast<char *>(params.x_rows.data) + place * params.x_rows.row_stride * 2;
  }
  __device__ __forceinline__ int tile_of(int i) const { return __shfl_sync(0xFFFFFFFFu, tile, i); }
  __device__ __forceinline__ int32_t *counter_of(int tile) const {
    return &PURR__UNIT_TILE_SYNC(params.order.sync)[tile].rows_there;
  }

  /* What must have come to all_gate_up() before the tile's place is free. */
  __device__ __forceinline__ const int32_t *ring_counter(int tile) const {
    return &PURR__UNIT_TILE_SYNC(params.order.sync)[tile - params.order.ring_tiles].gate_up_done;
  }
  /* Whether it is, the same for all lanes; asked with tiles that do not descend. */
  __device__ __forceinline__ bool is_free(int tile) {
    if (!V::kPeers || tile < free_tiles) return true;
    if (!__all_sync(0xFFFFFFFFu, ptx::ld_acquire_gpu(ring_counter(tile)) >= all_gate_up(params))) return false;
    free_tiles = tile + 1;
    return true;
  }
};

/* Rows by ordinary loads and stores. kAhead: 16-byte loads of a lane that are in flight together. */
template <typename V, int kAhead, int kRowsTaken>
struct Gather {
  TakenRows<V, kRowsTaken> rows;

  __device__ __forceinline__ Gather(const purr__forward_params_t &params, int *next_rows) : rows(params, next_rows) {}

  /* One row; whether there was one to do. */
  __device__ __forceinline__ bool step(int limit = INT_MAX / 4) {
    if (rows.num_done == rows.num_taken && (rows.is_over || !rows.take(limit))) return false;
    const purr__forward_params_t &params = rows.params;
    const int lane = threadIdx.x % 32, i = rows.num_done;
    const char *from = rows.row_from(i);
    const int row_to = rows.place_of(i), tile = rows.tile_of(i);
    if (V::kPeers && from != nullptr && !rows.is_free(tile)) return false;
    rows.num_done = i + 1;
    if (from == nullptr) return true;
    char *to = rows.address_of(row_to);
    const int bytes = params.hidden * 2;
    for (int at = lane * 16; at < bytes; at += kAhead * 512) {
      uint4 v[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; j++)
        if (at + j * 512 < bytes) v[j] = ptx::ld_16_streaming(from + at + j * 512);
#pragma unroll
      for (int j = 0; j < kAhead; j++)
        if (at + j * 512 < bytes) ptx::st_16(to + at + j * 512, v[j]);
    }
    ptx::fence_proxy_async_global(); /* the copy engine will read it */
    __syncwarp();
    if (lane == 0) ptx::red_add_release_gpu(rows.counter_of(tile), 1);
    return true;
  }
};

constexpr int kFirstRows = 24; /* of a block: its consumers help to bring them, where they have nothing else to do */

/* The first rows, by a warp that has nothing to do before they are there. Those of the ring's first round alone: a warp
 * that had to wait for a place could not multiply what frees it. */
template <typename V>
__device__ __forceinline__ void gather_first_rows(const purr__forward_params_t &params, SharedStorage<V> *shared) {
  constexpr int kTaken = 2;
  Gather<V, 6, kTaken> gather(params, &shared->next_rows);
  int limit = kFirstRows;
  if (V::kPeers && params.order.ring_tiles > 0)
    limit = min(limit, params.order.ring_tiles * params.order.tile_rows / (int)gridDim.x - (kTaken - 1));
  while (gather.step(limit)) {
  }
}

}  // namespace
}  // namespace purr

#endif
