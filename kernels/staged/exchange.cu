/* SPDX-License-Identifier: Apache-2.0
 *
 * How ranks meet: each puts its tokens and ids where the others can reach them, and waits until all have. Only the
 * barrier waits for a peer, and it takes one small block: kernels that compute never wait, so ranks that share a device
 * cannot hold each other up. */
#include "layout.h"
#include "ptx.cuh"
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

/* One block. A call that does not own the workspace signals nobody: the words are those of the one that does.
 * reads     its own barrier words
 * writes    its word on every rank; its epoch; when a rank does not come, the sticky `broken`, `told` of all ranks, the
 *           group's word and the status
 * waits on  every rank's word for this epoch, at most timeout_ns, or until it is told that a rank did not come
 * signals   all ranks */
extern "C" __global__ void purr_barrier(const __grid_constant__ purr__barrier_params_t params) {
  if (!turn::owns(params.turn)) {
    if (params.turn.place == PURR__TURN_LAST && threadIdx.x == 0) turn::give_back(params.turn);
    return;
  }
  __shared__ int missing;
  purr__device_rank_header_t *header = params.header;
  const uint64_t epoch = header->epoch + 1;
  volatile int32_t *told = &header->told;
  if (threadIdx.x == 0) {
    const int32_t broken = header->broken != 0 ? header->broken : *told;
    missing = broken != 0 ? broken - 1 : INT32_MAX;
  }
  __syncthreads();
  const bool was_broken = missing != INT32_MAX;

  for (int r = threadIdx.x; r < params.num_ranks && !was_broken; r += blockDim.x) {
    uint64_t *words = reinterpret_cast<uint64_t *>(static_cast<char *>(params.ranks[r]) + params.words_offset);
    ptx::st_release_sys(words + params.rank, epoch);
  }
  const uint64_t *own =
      reinterpret_cast<const uint64_t *>(static_cast<const char *>(params.ranks[params.rank]) + params.words_offset);
  const uint64_t start = ptx::global_timer_ns();
  for (int r = threadIdx.x; r < params.num_ranks && !was_broken; r += blockDim.x)
    while (ptx::ld_acquire_sys(own + r) < epoch) {
      const int32_t broken = *told;
      if (broken == 0 && ptx::global_timer_ns() - start <= (uint64_t)params.timeout_ns) continue;
      atomicMin(&missing, broken != 0 ? broken - 1 : r);
      break;
    }
  __syncthreads();
  if (threadIdx.x != 0) return;
  header->epoch = epoch;
  if (missing != INT32_MAX) {
    header->broken = missing + 1;
    if (!was_broken) {
      const int64_t header_offset = reinterpret_cast<char *>(header) - static_cast<char *>(params.ranks[params.rank]);
      for (int r = 0; r < params.num_ranks; r++)
        *(volatile int32_t *)&reinterpret_cast<purr__device_rank_header_t *>(static_cast<char *>(params.ranks[r]) +
                                                                             header_offset)
             ->told = missing + 1;
      *(volatile int32_t *)params.group_broken = missing + 1;
    }
    if (params.status != nullptr) *params.status = {PURR_STATUS_PEER_FAILED, missing, -1, -1, -1, 0, 0};
  }
  if (params.turn.place == PURR__TURN_LAST) turn::give_back(params.turn);
}
