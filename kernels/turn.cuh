/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls take turns in a workspace: the first kernel of a call takes the turn word, the last gives it back. Calls in
 * stream order never notice. Calls that overlap, on two streams or in graph replays, do: the later one finds the word
 * taken, leaves the workspace alone and reports BUSY. See purr__turn_t for the word. */
#ifndef PURR_TURN_CUH
#define PURR_TURN_CUH

#include "layout.h"
#include "purr.h"

namespace turn {

constexpr int kTicketShift = 40, kSignedShift = PURR__TURN_LEFT_BITS;
constexpr unsigned long long kLeftMask = (1ull << kSignedShift) - 1, kSignedMask = PURR__TURN_MAX_FIRST;

/* First kernel: every block, by one thread. Whether the workspace is this call's, as far as this block can tell. When a
 * holder ends in between, some blocks are too late and some are not: the call then does not own it. */
__device__ inline bool take(const purr__turn_t &turn) {
  if (blockIdx.x == 0 && turn.outcome != nullptr) { /* with `reserved`, where the host marks what it counted */
    static_assert(offsetof(purr__outcome_t, status) % 8 == 0 && PURR_STATUS_NOT_READY > 0, "one store");
    *(volatile int64_t *)&turn.outcome->status = PURR_STATUS_NOT_READY;
  }
  if (turn.word == nullptr) return true;
  unsigned long long *word = reinterpret_cast<unsigned long long *>(turn.word);
  const unsigned long long ticket = turn.ticket, left = (unsigned)turn.last_blocks;
  unsigned long long now = *(volatile unsigned long long *)word;
  if ((now & kLeftMask) == 0) {
    const unsigned long long free_word = now;
    now = atomicCAS(word, free_word, ticket << kTicketShift | 1ull << kSignedShift | left);
    if (now == free_word) return true;
  }
  if (now >> kTicketShift != ticket || (now & kLeftMask) != left ||
      (now >> kSignedShift & kSignedMask) >= (unsigned)turn.first_blocks)
    return false;
  atomicAdd(word, 1ull << kSignedShift);
  return true;
}

/* Later kernels: whether the workspace is this call's. The same for every thread, and until the call ends. */
__device__ inline bool owns(const purr__turn_t &turn) {
  return turn.word == nullptr ||
         *(volatile uint64_t *)turn.word >> kSignedShift ==
             ((uint64_t)turn.ticket << (kTicketShift - kSignedShift) | (unsigned)turn.first_blocks);
}

/* Last kernel: every block, by one thread, when the block needs the workspace no more and its threads have met behind
 * all that they write. Whether it is the last block, where a result is wanted: then what all blocks wrote comes before
 * what this thread writes. Without a result nobody asks, and the fences, which hold up every block, are left out. */
__device__ inline bool give_back(const purr__turn_t &turn) {
  if (turn.word == nullptr || *(volatile uint64_t *)turn.word >> kTicketShift != turn.ticket) return false;
  unsigned long long *word = reinterpret_cast<unsigned long long *>(turn.word);
  if (turn.outcome == nullptr) {
    atomicAdd(word, ~0ull);
    return false;
  }
  __threadfence();
  if ((atomicAdd(word, ~0ull) & kLeftMask) != 1) return false;
  __threadfence();
  return true;
}

}  // namespace turn

#endif
