/* SPDX-License-Identifier: Apache-2.0
 *
 * How ranks meet: each puts its tokens and ids where the others can reach them, and waits until all have. Only the
 * barrier waits for a peer, in one small block, or the schedule in its place, where there is room for that: kernels
 * that compute never wait, so ranks that share a device cannot hold each other up. */
#include "layout.h"
#include "meet_ranks.cuh"
#include "purr.h"
#include "turn.cuh"

/* Launch 1: takes the workspace. Each block takes every gridDim.x-th token.
 * reads   this rank's x and ids
 * writes  its symmetric memory: tokens, ids as int32, number of tokens, tag. An id that does not fit in int32 becomes
 *         the nearest that does: it is out of range all the same */
extern "C" __global__ void purr_exchange(const __grid_constant__ purr__exchange_params_t params) {
  __shared__ bool is_ours;
  if (threadIdx.x == 0) is_ours = turn::take(params.turn);
  __syncthreads();
  if (!is_ours) return;
  const int chunks = params.hidden / 8; /* of 16 bytes */
  for (int64_t token = blockIdx.x; token < params.ids.num_tokens; token += gridDim.x) {
    const uint4 *from =
        reinterpret_cast<const uint4 *>(static_cast<const char *>(params.x) + token * params.x_row_stride * 2);
    uint4 *to = static_cast<uint4 *>(params.tokens) + token * chunks;
    for (int i = threadIdx.x; i < chunks; i += blockDim.x) to[i] = from[i];
    for (int k = threadIdx.x; k < params.top_k; k += blockDim.x) {
      const int64_t at = token * params.ids.row_stride + k * params.ids.column_stride;
      int64_t id = params.ids.is_int64 ? static_cast<const int64_t *>(params.ids.data)[at]
                                       : static_cast<const int32_t *>(params.ids.data)[at];
      id = id > INT32_MAX ? INT32_MAX : id < INT32_MIN ? INT32_MIN : id;
      params.ids_out[token * params.top_k + k] = (int32_t)id;
    }
  }
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  params.header->num_tokens = params.ids.num_tokens;
  params.header->tag = params.tag;
}

/* One block. A call that does not own the workspace signals nobody: the words are those of the one that does. */
extern "C" __global__ void purr_barrier(const __grid_constant__ purr__barrier_params_t params) {
  __shared__ int missing;
  if (turn::owns(params.turn)) meet_ranks(params, &missing);
  if (params.turn.place == PURR__TURN_LAST && threadIdx.x == 0) turn::give_back(params.turn);
}
