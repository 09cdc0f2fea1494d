/* SPDX-License-Identifier: Apache-2.0
 *
 * How a rank waits for all others: the only wait for a peer that there is. */
#ifndef PURR_KERNELS_STAGED_MEET_RANKS_CUH
#define PURR_KERNELS_STAGED_MEET_RANKS_CUH

#include "layout.h"
#include "ptx.cuh"
#include "purr.h"

/* By one block, with a word of its shared memory. What the first thread does behind this comes after what the other
 * ranks did before theirs; so it does for others that the first thread meets.
 *
 * reads     the rank's own barrier words
 * writes    its word on every rank; its epoch; when a rank does not come, the sticky `broken`, `told` of all ranks, the
 *           group's word and the status
 * waits on  every rank's word for this epoch, at most timeout_ns, or until it is told that a rank did not come
 * signals   all ranks */
__device__ inline void meet_ranks(const purr__barrier_params_t &params, int *missing) {
  purr__device_rank_header_t *header = params.header;
  const uint64_t epoch = header->epoch + 1;
  volatile int32_t *told = &header->told;
  if (threadIdx.x == 0) {
    const int32_t broken = header->broken != 0 ? header->broken : *told;
    *missing = broken != 0 ? broken - 1 : INT32_MAX;
  }
  __syncthreads();
  const bool was_broken = *missing != INT32_MAX;

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
      atomicMin(missing, broken != 0 ? broken - 1 : r);
      break;
    }
  __syncthreads();
  if (threadIdx.x != 0) return;
  header->epoch = epoch;
  if (*missing != INT32_MAX) {
    header->broken = *missing + 1;
    if (!was_broken) {
      const int64_t header_offset = reinterpret_cast<char *>(header) - static_cast<char *>(params.ranks[params.rank]);
      for (int r = 0; r < params.num_ranks; r++)
        *(volatile int32_t *)&reinterpret_cast<purr__device_rank_header_t *>(static_cast<char *>(params.ranks[r]) +
                                                                             header_offset)
             ->told = *missing + 1;
      *(volatile int32_t *)params.group_broken = *missing + 1;
    }
    if (params.status != nullptr) *params.status = {PURR_STATUS_PEER_FAILED, *missing, -1, -1, -1, 0, 0};
  }
}

#endif
