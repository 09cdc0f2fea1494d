/* SPDX-License-Identifier: Apache-2.0
 *
 * The routing table on the device: count, prefix-sum, place. Equal to runtime/schedule/table.c byte for byte.
 *
 * Every rank reads all ranks' ids, so that all find the same bad id. A block owns one contiguous part of one rank's
 * slots, a warp a contiguous piece of that part; blocks, warps and lanes in ascending order are the canonical order
 * (source rank, token, slot). A row number is then: begin of the expert + its slots in earlier blocks + in earlier
 * warps + in earlier lanes. Only integers are added, and shared-memory atomics only count, so nothing depends on
 * timing.
 *
 * Loops are not unrolled, but for two that wait for memory: what takes time here is code that comes from memory for the
 * first time, not running it. */
#include "layout.h"
#include "meet_ranks.cuh"
#include "ptx.cuh"
#include "purr.h"
#include "turn.cuh"
#include "units.cuh"

namespace {

constexpr unsigned kAllLanes = 0xFFFFFFFFu;

/* The slots [begin, end) of one rank that a block looks at. */
struct Part {
  purr__ids_t ids;
  int rank, begin, end;
};

/* A rank that makes another call has other things where its ids would be. */
__device__ bool makes_same_call(const purr__schedule_params_t &params, const purr__ids_t &ids) {
  return ids.tag_at == nullptr || *ids.tag_at == params.tag;
}

__device__ Part part_of_block(const purr__schedule_params_t &params) {
  Part part;
  part.rank = blockIdx.x / params.chunks_per_rank;
  int chunk = blockIdx.x % params.chunks_per_rank;
  part.ids = params.sources != nullptr ? params.sources[part.rank] : params.own;
  int64_t num_tokens = part.ids.num_tokens_at != nullptr ? *part.ids.num_tokens_at : part.ids.num_tokens;
  if (!makes_same_call(params, part.ids)) num_tokens = 0;
  const int num_slots = (int)num_tokens * params.top_k; /* a row's slot is 32 bits */
  const int size = num_slots / params.chunks_per_rank + (num_slots % params.chunks_per_rank != 0);
  part.begin = min(chunk * size, num_slots);
  part.end = min(part.begin + size, num_slots);
  return part;
}

__device__ int64_t load_id(const purr__ids_t &ids, int slot, int top_k) {
  int token = slot / top_k;
  int64_t at = token * (ids.row_stride != 0 ? ids.row_stride : top_k) + (slot - token * top_k) * ids.column_stride;
  return ids.is_int64 ? static_cast<const int64_t *>(ids.data)[at] : static_cast<const int32_t *>(ids.data)[at];
}

/* The local expert of a slot, -1 where another rank or nobody has it. */
__device__ int local_expert(const purr__schedule_params_t &params, int64_t id) {
  int64_t expert = id - params.first_expert;
  return id >= 0 && expert >= 0 && expert < params.num_local_experts ? (int)expert : -1;
}

/* The sum of the values of this and all lower lanes. */
__device__ int warp_prefix_sum(int value) {
  for (int d = 1; d < 32; d *= 2) {
    int lower = __shfl_up_sync(kAllLanes, value, d);
    if (threadIdx.x % 32 >= d) value += lower;
  }
  return value;
}

/* Counts the block's part: the slots of each local expert, and the first one with a bad id, -1 without; keeps the
 * experts unless `keep` is NULL. Whether the workspace is the call's, as far as the block can tell. */
__device__ bool count_part(const purr__schedule_params_t &params, const Part &part, int32_t *count, uint16_t *keep,
                           int *out_bad) {
  __shared__ int first_bad;
  __shared__ bool is_ours;
#pragma unroll 1
  for (int e = threadIdx.x; e < params.num_local_experts; e += blockDim.x) count[e] = 0;
  if (threadIdx.x == 0) {
    first_bad = INT32_MAX;
    is_ours = true;
  }
  __syncthreads();

  /* Beside the counting, which touches nothing of the workspace. */
  if ((params.turn.place & PURR__TURN_FIRST) != 0 && threadIdx.x == blockDim.x - 1) is_ours = turn::take(params.turn);
#pragma unroll 4
  for (int slot = part.begin + threadIdx.x; slot < part.end; slot += blockDim.x) {
    int64_t id = load_id(part.ids, slot, params.top_k);
    if (id < -1 || id >= params.num_experts) atomicMin(&first_bad, slot);
    int expert = local_expert(params, id);
    if (keep != nullptr) keep[slot - part.begin] = (uint16_t)expert;
    if (expert >= 0) atomicAdd(&count[expert], 1);
  }
  __syncthreads();
  *out_bad = first_bad == INT32_MAX ? -1 : first_bad;
  return is_ours;
}

/* By one thread: the status of a call with this bad id. */
__device__ void tell_bad_route(const purr__schedule_params_t &params, int rank, int slot) {
  const purr__ids_t ids = params.sources != nullptr ? params.sources[rank] : params.own;
  *params.status = {
      PURR_STATUS_BAD_ROUTE, rank, slot / params.top_k, slot % params.top_k, load_id(ids, slot, params.top_k), 0, 0};
}

/* By one thread, where the workspace is another call's. */
__device__ void tell_busy(const purr__schedule_params_t &params) {
  if (params.table_is_own) *params.status = {PURR_STATUS_BUSY, -1, -1, -1, -1, 0, 0};
}

/* Dynamic shared memory. */
struct Shared {
  int32_t *total;      /* [E_l] slots of the expert in all blocks */
  int32_t *before;     /* [E_l] in earlier blocks */
  int32_t *begin;      /* [E_l] first row of the expert */
  int32_t *first_tile; /* [E_l] first tile of the expert */
  int32_t *next;       /* [pieces][E_l] next row that a warp gives out */
  uint16_t *expert;    /* [slots of the part] the local expert, 0xFFFF where there is none; or NULL */
};

__device__ Shared shared_memory(const purr__schedule_params_t &params, bool keeps_experts) {
  const int num_experts = params.num_local_experts;
  int32_t *shared = ptx::dynamic_shared<int32_t>(), *next = shared + 4 * num_experts;
  uint16_t *expert = reinterpret_cast<uint16_t *>(next + params.num_pieces * num_experts);
  return {shared,
          shared + num_experts,
          shared + 2 * num_experts,
          shared + 3 * num_experts,
          next,
          keeps_experts ? expert : nullptr};
}

/* Places the block's part, once `total` and `before` are there, and writes its share of all else. */
__device__ void place_part(const purr__schedule_params_t &params, const Part &part, const Shared &shared) {
  __shared__ int num_tiles;
  const int num_experts = params.num_local_experts;
  const bool has_units = params.order.units != nullptr, has_peers = params.num_ranks > 1;
  const int tile_rows = params.order.tile_rows != 0 ? params.order.tile_rows : PURR__TILE_ROWS;
  auto rows_of = [](int count) { return (count + PURR__SEGMENT_ROWS - 1) / PURR__SEGMENT_ROWS * PURR__SEGMENT_ROWS; };
  auto tiles_of = [&](int count) { return (count + tile_rows - 1) / tile_rows; };

  /* Each warp's piece of the part, in whole warps of slots. There are not always as many as warps. */
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
  const int most_pieces = params.num_pieces, num_slots = part.end - part.begin;
  const int piece = max(1, ((num_slots + most_pieces - 1) / most_pieces + 31) / 32) * 32;
  const int num_pieces = (num_slots + piece - 1) / piece;
  const int piece_begin = min(part.begin + warp * piece, part.end), piece_end = min(piece_begin + piece, part.end);
  int32_t *next_of_warp = shared.next + warp * num_experts;
  auto expert_of = [&](int slot) {
    if (shared.expert == nullptr) return local_expert(params, load_id(part.ids, slot, params.top_k));
    const int expert = shared.expert[slot - part.begin];
    return expert == 0xFFFF ? -1 : expert;
  };
#pragma unroll 1
  for (int i = threadIdx.x; i < num_pieces * num_experts; i += blockDim.x) shared.next[i] = 0;
  __syncthreads();

  /* Prefix sums over experts, by warp 0: rows in whole segments, and tiles. A lane has experts one after the other. */
  if (warp == 0) {
    const int of_lane = (num_experts + 31) / 32, from = min(lane * of_lane, num_experts);
    const int to = min(from + of_lane, num_experts);
    int used = 0, rows = 0, tiles = 0;
#pragma unroll 1
    for (int e = from; e < to; e++) {
      used += shared.total[e];
      rows += rows_of(shared.total[e]);
      tiles += tiles_of(shared.total[e]);
    }
    int row = warp_prefix_sum(rows) - rows, tile = warp_prefix_sum(tiles) - tiles;
    used = __reduce_add_sync(kAllLanes, used);
#pragma unroll 1
    for (int e = from; e < to; e++) {
      shared.begin[e] = row;
      shared.first_tile[e] = tile;
      row += rows_of(shared.total[e]);
      tile += tiles_of(shared.total[e]);
    }
    if (lane == 31) num_tiles = tile;
    if (lane == 31 && blockIdx.x == 0) {
      params.table.expert_begin[num_experts] = row;
      params.table.tile_begin[num_experts] = tile;
      *params.table.header = {used, row, num_experts, {0, 0, 0, 0, 0}};
      *params.status = {PURR_STATUS_OK, -1, -1, -1, -1, used, row};
    }
  }
#pragma unroll 1
  for (int slot = piece_begin + lane; slot < piece_end; slot += 32) {
    int expert = expert_of(slot);
    if (expert >= 0) atomicAdd(&next_of_warp[expert], 1);
  }
  __syncthreads();
#pragma unroll 1
  for (int e = threadIdx.x; e < num_experts; e += blockDim.x) {
    int row = shared.begin[e] + shared.before[e];
#pragma unroll 1
    for (int w = 0; w < num_pieces; w++) {
      int count = shared.next[w * num_experts + e];
      shared.next[w * num_experts + e] = row;
      row += count;
    }
    if (blockIdx.x != 0) continue;
    params.table.expert_count[e] = shared.total[e];
    params.table.expert_begin[e] = shared.begin[e];
    params.table.tile_begin[e] = shared.first_tile[e];
  }
  __syncthreads();

  /* Placing: lanes with the same expert number themselves in lane order. */
#pragma unroll 1
  for (int slot0 = piece_begin; slot0 < piece_end; slot0 += 32) {
    int slot = slot0 + lane;
    int expert = slot < piece_end ? expert_of(slot) : -1;
    unsigned same = __match_any_sync(kAllLanes, expert);
    int earlier = __popc(same & ((1u << lane) - 1));
    if (expert >= 0) {
      int row = next_of_warp[expert] + earlier;
      if (has_peers) params.table.row_rank[row] = part.rank;
      params.table.row_slot[row] = slot;
    }
    __syncwarp();
    if (expert >= 0 && earlier == 0) next_of_warp[expert] += __popc(same);
    __syncwarp();
  }

  /* Padding, ranks where there is but one, the experts of the tiles, the units: a warp for each expert. */
  const units::Place place = {params.order, num_tiles};
  if (has_units) units::reset(place);
  if (has_units && blockIdx.x == gridDim.x - 1 && warp == num_warps - 1) units::write_shared(place);
#pragma unroll 1
  for (int e = blockIdx.x * num_warps + warp; e < num_experts; e += gridDim.x * num_warps) {
    const int begin = shared.begin[e], total = shared.total[e], first_tile = shared.first_tile[e];
#pragma unroll 1
    for (int i = (has_peers ? total : 0) + lane; i < rows_of(total); i += 32) {
      params.table.row_rank[begin + i] = i < total ? 0 : -1;
      if (i >= total) params.table.row_slot[begin + i] = -1;
    }
    const int tiles = tiles_of(total);
#pragma unroll 1
    for (int tile = lane; tile < tiles; tile += 32) params.table.tile_expert[first_tile + tile] = e;
    if (has_units) units::write_expert(place, {begin, total, first_tile, tiles}, e);
  }
}

/* What the block has counted, for all blocks. */
__device__ void publish(const purr__schedule_params_t &params, const int32_t *count, int bad) {
  int32_t *out = params.chunk_count + (int64_t)blockIdx.x * params.num_local_experts;
#pragma unroll 1
  for (int e = threadIdx.x; e < params.num_local_experts; e += blockDim.x) out[e] = count[e];
  if (threadIdx.x == 0) params.chunk_bad[blockIdx.x] = bad;
}

/* Where all blocks have published: the sums over blocks. False, and the status is told, where nothing is to be placed.
 */
__device__ bool add_up(const purr__schedule_params_t &params, const Shared &shared) {
  const bool tells = blockIdx.x == 0 && threadIdx.x == 0;
  if (params.header != nullptr && params.header->broken != 0) {
    if (tells) *params.status = {PURR_STATUS_PEER_FAILED, params.header->broken - 1, -1, -1, -1, 0, 0};
    return false;
  }
  __shared__ int bad_block, other_rank;
  const int num_experts = params.num_local_experts, num_blocks = gridDim.x;

  /* A bad id anywhere: the first block that has one has the first one. */
  if (threadIdx.x == 0) bad_block = other_rank = INT32_MAX;
  __syncthreads();
#pragma unroll 1
  for (int r = threadIdx.x; r < params.num_ranks && params.sources != nullptr; r += blockDim.x)
    if (!makes_same_call(params, params.sources[r])) atomicMin(&other_rank, r);
#pragma unroll 1
  for (int b = threadIdx.x; b < num_blocks; b += blockDim.x)
    if (params.chunk_bad[b] >= 0) atomicMin(&bad_block, b);
  __syncthreads();
  if (other_rank != INT32_MAX) {
    if (tells) *params.status = {PURR_STATUS_PEER_MISMATCH, other_rank, -1, -1, -1, 0, 0};
    return false;
  }
  if (bad_block != INT32_MAX) {
    if (tells) tell_bad_route(params, bad_block / params.chunks_per_rank, params.chunk_bad[bad_block]);
    return false;
  }

#pragma unroll 1
  for (int e = threadIdx.x; e < num_experts; e += blockDim.x) {
    int sum = 0, sum_before = 0;
#pragma unroll 8
    for (int b = 0; b < num_blocks; b++) {
      int count = params.chunk_count[(int64_t)b * num_experts + e];
      sum += count;
      if (b < (int)blockIdx.x) sum_before += count;
    }
    shared.total[e] = sum;
    shared.before[e] = sum_before;
  }
  return true;
}

/* The same where one block has counted alone: `total` is there. */
__device__ bool add_up_alone(const purr__schedule_params_t &params, const Shared &shared, int bad) {
#pragma unroll 1
  for (int e = threadIdx.x; e < params.num_local_experts; e += blockDim.x) shared.before[e] = 0;
  if (bad >= 0 && threadIdx.x == 0) tell_bad_route(params, 0, bad);
  return bad < 0;
}

}  // namespace

/* Launch 1. Takes the workspace where no exchange came before.
 * reads   all ids
 * writes  chunk_count, chunk_bad: this block's row */
extern "C" __global__ void purr_schedule_count(const __grid_constant__ purr__schedule_params_t params) {
  if (params.turn.place != PURR__TURN_FIRST && !turn::owns(params.turn)) return;
  if (params.header != nullptr && params.header->broken != 0) return;
  int32_t *count = ptx::dynamic_shared<int32_t>(); /* [E_l] */
  int bad;
  if (count_part(params, part_of_block(params), count, nullptr, &bad)) publish(params, count, bad);
}

/* Launch 2, same grid.
 * reads   chunk_count, chunk_bad of all blocks; the block's ids again
 * writes  its part's rows of the table and the padding and tiles of some experts; block 0 also the header, the
 * per-expert arrays and the status. After a bad id the status alone */
extern "C" __global__ void purr_schedule_place(const __grid_constant__ purr__schedule_params_t params) {
  const Shared shared = shared_memory(params, false);
  if (!turn::owns(params.turn)) {
    if (blockIdx.x == 0 && threadIdx.x == 0) tell_busy(params);
  } else if (add_up(params, shared)) {
    place_part(params, part_of_block(params), shared);
  }
  if (params.turn.place != PURR__TURN_LAST) return;
  __syncthreads();
  if (threadIdx.x == 0) turn::give_back(params.turn);
}

/* In place of both: one block, or one cluster of blocks, whose barrier is what the end of a launch is to the two. Takes
 * the workspace where no exchange came before; else it may stand for the barrier behind the exchange too.
 * reads   all ids, once
 * writes  what the two write; one block nothing to chunk_count and chunk_bad */
extern "C" __global__ void __launch_bounds__(PURR__SCHEDULE_TOGETHER_WARPS * 32)
    purr_schedule(const __grid_constant__ purr__schedule_params_t params) {
  const Shared shared = shared_memory(params, true);
  int bad = -1;
#ifdef PURR_HAS_CLUSTERS
  if (params.meeting.num_ranks > 0) { /* then there are several blocks */
    __shared__ int missing;
    if (blockIdx.x == 0 && turn::owns(params.turn)) meet_ranks(params.meeting, &missing);
    __syncwarp();
    ptx::cluster_sync_acq_rel();
  }
#endif
  bool is_ours = (params.turn.place & PURR__TURN_FIRST) != 0 || turn::owns(params.turn);
  const bool counts = is_ours && (params.header == nullptr || params.header->broken == 0);
  Part part = {};
  if (counts) {
    part = part_of_block(params);
    is_ours = count_part(params, part, shared.total, shared.expert, &bad);
  }
#ifdef PURR_HAS_CLUSTERS
  if (gridDim.x > 1) {
    if (counts && is_ours) publish(params, shared.total, bad);
    __syncwarp();
    ptx::cluster_sync_acq_rel();
    is_ours = turn::owns(params.turn);
  }
#endif
  if (is_ours && (gridDim.x > 1 ? add_up(params, shared) : add_up_alone(params, shared, bad)))
    place_part(params, part, shared);
  if (!is_ours && blockIdx.x == 0 && threadIdx.x == 0) tell_busy(params);
  if ((params.turn.place & PURR__TURN_LAST) == 0) return;
  __syncthreads();
  if (threadIdx.x == 0) turn::give_back(params.turn);
}

/* In place of these where the table is there already: the list of units alone. One block for each eight experts, or so.
 * reads   the table
 * writes  the units and where their blocks meet */
extern "C" __global__ void purr_unit_list(const __grid_constant__ purr__schedule_params_t params) {
  if (!turn::owns(params.turn)) return;
  /* The status is the schedule's own: a wait that took too long in an earlier call is over. */
  const int32_t status = *(volatile int32_t *)&params.status->status;
  if (status != PURR_STATUS_OK && status != PURR_STATUS_INTERNAL) return;
  if (status != PURR_STATUS_OK && blockIdx.x == 0 && threadIdx.x == 0) params.status->status = PURR_STATUS_OK;
  const purr__device_table_t &table = params.table;
  const units::Place place = {params.order, table.tile_begin[params.num_local_experts]};
  units::reset(place);
  const int warps = gridDim.x * (blockDim.x / 32), first = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
#pragma unroll 1
  for (int e = first; e <= params.num_local_experts; e += warps) {
    if (e == params.num_local_experts)
      units::write_shared(place);
    else
      units::write_expert(place,
                          {table.expert_begin[e], table.expert_count[e], table.tile_begin[e],
                           table.tile_begin[e + 1] - table.tile_begin[e]},
                          e);
  }
}
