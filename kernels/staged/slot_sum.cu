/* SPDX-License-Identifier: Apache-2.0
 *
 * out = bf16(shared + sum over k of weight_k * y_k): FP32, fused multiply-adds in slot order, starting from the shared
 * expert's BF16 result (+0 without one). With the sigmoid gate, shared = bf16(z * shared), z = sigmoid(x . gate). Where
 * a token has one slot and nothing is added to it, down has written the output, and only dropped slots are left. */
#include "columns.cuh"
#include "layout.h"
#include "ptx.cuh"
#include "turn.cuh"

using namespace purr;

namespace {

constexpr int kThreads = 256;
constexpr int kSlotsAhead = 4; /* rows whose loads are in flight together */
static_assert(kThreads * kColumns == PURR__SLOT_SUM_COLUMNS, "one block covers PURR__SLOT_SUM_COLUMNS columns");
static_assert(PURR__SLOT_SUM_TOKENS_TO_CLEAR == 32, "a token for each lane");

__device__ const char *row_at(const void *data, int64_t row, int64_t stride) {
  return static_cast<const char *>(data) + row * stride * 2;
}

__device__ int64_t load_id(const purr__ids_t &ids, int64_t token, int k) {
  int64_t at = token * ids.row_stride + k * ids.column_stride;
  return ids.is_int64 ? static_cast<const int64_t *>(ids.data)[at] : static_cast<const int32_t *>(ids.data)[at];
}

/* z of one token, the same in every block of the token: each thread adds its columns in ascending order, then lanes and
 * warps are added in a fixed tree. */
__device__ float gate_score(const purr__slot_sum_params_t &params, int64_t token) {
  __shared__ float warp_sum[kThreads / 32];
  const char *x = row_at(params.x, token, params.x_row_stride);
  const char *gate = static_cast<const char *>(params.shared_gate);
  float sum = 0;
  for (int column = threadIdx.x * kColumns; column < params.hidden; column += PURR__SLOT_SUM_COLUMNS) {
    Columns a = unpack(*reinterpret_cast<const uint4 *>(x + column * 2));
    Columns b = unpack(*reinterpret_cast<const uint4 *>(gate + column * 2));
#pragma unroll
    for (int i = 0; i < kColumns; i++) sum = fmaf(a.value[i], b.value[i], sum);
  }
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, d);
  __syncthreads(); /* all have read those of the token before */
  if (threadIdx.x % 32 == 0) warp_sum[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; w++) sum += warp_sum[w];
  return 1.0f / (1.0f + expf(-sum));
}

__device__ __forceinline__ void sum_slots(const purr__slot_sum_params_t &params, int64_t token, int column) {
  float z = 1;
  if (params.shared_gate != nullptr) {
    z = gate_score(params, token);
    if (params.score != nullptr && column == 0) params.score[token] = z;
  }
  if (column >= params.hidden) return;

  Columns sum = {};
  if (params.shared != nullptr) {
    sum = unpack(ptx::ld_16_streaming(row_at(params.shared, token, params.shared_row_stride) + column * 2));
    if (params.shared_gate != nullptr) {
#pragma unroll
      for (int i = 0; i < kColumns; i++) sum.value[i] *= z;
      sum = unpack(pack(sum));
    }
  }

  for (int k0 = 0; k0 < params.top_k; k0 += kSlotsAhead) {
    float weight[kSlotsAhead];
    uint4 row[kSlotsAhead];
    bool used[kSlotsAhead];
#pragma unroll
    for (int j = 0; j < kSlotsAhead; j++) {
      int k = k0 + j;
      used[j] = k < params.top_k && load_id(params.ids, token, k) >= 0;
      if (!used[j]) continue;
      weight[j] = params.topk_weights[token * params.weights_row_stride + k * params.weights_column_stride];
      row[j] =
          ptx::ld_16_streaming(row_at(params.slots, token * params.top_k + k, params.slots_row_stride) + column * 2);
    }
#pragma unroll
    for (int j = 0; j < kSlotsAhead; j++) {
      if (used[j]) add_weighted(sum, weight[j], row[j]);
    }
  }
  ptx::st_16(const_cast<char *>(row_at(params.out, token, params.out_row_stride)) + column * 2, pack(sum));
}

/* Where the output is there already but for tokens whose slot is dropped: zeros for these. Each warp takes tokens, a
 * lane each; the warps of a block, those that lie far apart. */
__device__ void clear_dropped(const purr__slot_sum_params_t &params) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t step = (int64_t)gridDim.x * kThreads;
  for (int64_t first = ((int64_t)warp * gridDim.x + blockIdx.x) * 32; first < params.ids.num_tokens; first += step) {
    const bool dropped = first + lane < params.ids.num_tokens && load_id(params.ids, first + lane, 0) < 0;
    for (unsigned left = __ballot_sync(0xFFFFFFFFu, dropped); left != 0; left &= left - 1) {
      const char *row = row_at(params.out, first + __ffs((int)left) - 1, params.out_row_stride);
      for (int column = lane * kColumns; column < params.hidden; column += 32 * kColumns)
        ptx::st_16(const_cast<char *>(row) + column * 2, {});
    }
  }
}

/* What the call found, for its result: by one block, whether the others have ended or not. */
__device__ void tell(const purr__slot_sum_params_t &params, bool owns) {
  purr__outcome_t *outcome = params.turn.outcome;
  const int32_t status = owns ? params.status->status : PURR_STATUS_BUSY;
  for (int64_t e = threadIdx.x; status == PURR_STATUS_OK && e < params.num_experts; e += blockDim.x)
    PURR__OUTCOME_COUNTS(outcome)[e] = params.expert_count[e];
  if (threadIdx.x != 0) return;
  if (owns)
    outcome->found = *params.status;
  else
    outcome->found = {PURR_STATUS_BUSY, -1, -1, -1, -1, 0, 0};
}

/* By one thread of each block, behind all that the block writes: gives the workspace back, and when all have, makes the
 * outcome final. No copy does that: copies of several ranks can share a queue, where one that waits for its call holds
 * up the end of another rank's, which that call waits for. */
__device__ void finish(const purr__slot_sum_params_t &params, bool owns) {
  const int32_t status = owns ? params.status->status : PURR_STATUS_BUSY; /* before others can change it */
  const bool is_last = turn::give_back(params.turn);
  if (params.turn.outcome == nullptr || !(owns ? is_last : blockIdx.x == 0)) return;
  __threadfence_system();
  *(volatile int32_t *)&params.turn.outcome->status = status;
}

}  // namespace

/* The last launch of a call. Each block takes every gridDim.x-th piece: a token's PURR__SLOT_SUM_COLUMNS columns.
 * reads   ids, weights of slots that are not dropped, slot rows, the shared expert's row, x and the gate
 * writes  out, score, the outcome */
extern "C" __global__ void __launch_bounds__(kThreads, PURR__SLOT_SUM_BLOCKS_PER_SM)
    purr_slot_sum(const __grid_constant__ purr__slot_sum_params_t params) {
  const uint32_t of_token = (params.hidden + PURR__SLOT_SUM_COLUMNS - 1) / PURR__SLOT_SUM_COLUMNS;
  const uint32_t num_pieces = (uint32_t)params.ids.num_tokens * of_token; /* 4 KiB each, or a token: 32 bits do */
  auto column_of = [&](uint32_t piece) {
    return (int)(piece % of_token) * PURR__SLOT_SUM_COLUMNS + (int)threadIdx.x * kColumns;
  };
  /* The rows' addresses are known before the ids are: start them on their way from memory to L2. */
  auto prefetch = [&](uint32_t piece) {
    if (piece >= num_pieces || column_of(piece) >= params.hidden) return;
    const int64_t first = (int64_t)(piece / of_token) * params.top_k;
    for (int k = 0; k < min(params.top_k, kSlotsAhead); k++)
      ptx::prefetch_l2(row_at(params.slots, first + k, params.slots_row_stride) + column_of(piece) * 2);
  };
  const bool is_there = params.slots == nullptr;
  if (!is_there) prefetch(blockIdx.x);
  const bool owns = turn::owns(params.turn);
  if (params.turn.outcome != nullptr && blockIdx.x == 0) tell(params, owns);
  if (owns && params.status->status == 0 && is_there) clear_dropped(params);
  if (owns && params.status->status == 0 && !is_there)
    for (uint32_t piece = blockIdx.x; piece < num_pieces; piece += gridDim.x) {
      prefetch(piece + gridDim.x);
      sum_slots(params, piece / of_token, column_of(piece));
    }
  __syncthreads();
  if (threadIdx.x == 0) finish(params, owns);
}
