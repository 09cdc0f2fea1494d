/* SPDX-License-Identifier: Apache-2.0
 *
 * What the roles of the forward megakernel share: its sizes and variants, shared memory, units, waits with a limit.
 */
#ifndef PURR_KERNELS_SM90A_FORWARD_TYPES_CUH
#define PURR_KERNELS_SM90A_FORWARD_TYPES_CUH

#include <limits.h>

#include "layout.h"
#include "ptx.cuh"
#include "purr.h"

namespace purr {
namespace {

/* ---------------------------------------------------------------------------------------------------------- types */

constexpr int kStageK = 64;
constexpr int kRowBytes = kStageK * 2; /* of one stage: the width of the 128-byte swizzle */
constexpr int kWarpgroup = 128, kThreads = 3 * kWarpgroup;
constexpr int kCluster = 2;
constexpr uint16_t kBothBlocks = 3;
constexpr int kConsumers = 2, kConsumerWarps = 8, kConsumerRows = 64;
constexpr int kWriterWarps = 3;
constexpr int kWeightBytes = PURR__UNIT_WEIGHT_ROWS * kRowBytes;                  /* of a stage */
constexpr int kBoxRows = PURR__MAP_ROWS_TOKENS, kBoxBytes = kBoxRows * kRowBytes; /* of the small boxes */
constexpr int kLargeBoxRows = PURR__MAP_ROWS_MANY_TOKENS;
constexpr int kJobColumns = 64; /* of staging memory: 128 bytes */
constexpr int kUnits = 4;       /* known ahead */
static_assert(kStageK == PURR__MAP_STAGE_K, "the boxes of the tensor maps");

/* A variant: rows of the largest tile, stages and slots of staging memory that they leave room for, whether a timeline
 * is written, and whether rows may be other ranks' and lie in a ring. */
template <int kTileRows_, int kStages_, int kSlots_, bool kTraces_, bool kPeers_>
struct Variant {
  static constexpr int kTileRows = kTileRows_, kStages = kStages_, kSlots = kSlots_;
  static constexpr bool kTraces = kTraces_, kPeers = kPeers_;
  static constexpr int kStagingRows = (kTileRows + 31) / 32 * 32; /* results leave by 32 rows */
  static constexpr int kAhead = kTraces && kPeers ? 4 : 8;        /* 16-byte loads of a lane that gathers, together */
  static constexpr int kBatch = 8;                                /* the same of a lane that writes a job */
  static_assert(kTileRows % kBoxRows == 0 && kTileRows <= PURR__UNIT_MAX_ROWS, "whole boxes");
};

template <typename V>
struct SharedStorage {
  char weights[V::kStages][kWeightBytes];
  char tokens[V::kStages][V::kTileRows * kRowBytes];
  char staging[V::kSlots][V::kStagingRows * kJobColumns * 2];
  int4 unit[kUnits];
  uint64_t full[V::kStages];        /* arrivals: the loader, with the bytes it expects */
  uint64_t empty[V::kStages];       /* arrivals: the consumers' warps of both blocks */
  uint64_t unit_full[kUnits];       /* arrivals: the loader, with the 16 bytes from the first block */
  uint64_t unit_empty[kUnits];      /* of the first block; arrivals: all warps of both blocks that read units */
  uint64_t staging_full[V::kSlots]; /* arrivals: the consumers' warps */
  int jobs_written[V::kSlots]; /* counts the writers' warps: a barrier's two phases do not do, since consumers skip jobs
                                */
  int next_rows;               /* of those to be gathered that the block's warps share out among themselves */
};
constexpr int kUnitReaders = 1 + kConsumerWarps + kWriterWarps; /* of one block: the loader, the warps */
constexpr int kAlignment = 1024; /* of the swizzle; dynamic shared memory promises less */

/* Position in a ring of kSize barriers. A launch comes nowhere near 2^32 turns, so that kSize may be any number. */
template <int kSize>
struct Turns {
  uint32_t count = 0;

  __device__ __forceinline__ uint32_t at() const { return count % kSize; }
  __device__ __forceinline__ uint32_t round() const { return count / kSize % 2; } /* parity */
  __device__ __forceinline__ void advance(uint32_t by = 1) { count += by; }
};

__device__ __forceinline__ purr__unit_t to_unit(int4 v) {
  return {v.x, v.y, (uint16_t)v.z, (uint16_t)((unsigned)v.z >> 16), (uint16_t)v.w, (uint16_t)((unsigned)v.w >> 16)};
}

__device__ __forceinline__ bool is_gate_up(int kind) {
  return kind == PURR__UNIT_GATE_UP || kind == PURR__UNIT_SHARED_GATE_UP;
}
__device__ __forceinline__ bool is_shared(int kind) { return kind >= PURR__UNIT_SHARED_GATE_UP; }

/* Where the rows of a routed tile lie among those of x as it was gathered, and of a. */
template <typename V>
__device__ __forceinline__ int ring_row(const purr__forward_params_t &params, int tile, int table_row) {
  if (!V::kPeers || params.order.ring_tiles == 0) return table_row;
  return tile % params.order.ring_tiles * params.order.tile_rows;
}

/* How many rows of x, each tile with room for tile_rows, gate-up units before a down unit in the list need. Gate-up
 * units themselves find theirs there. */
template <typename V>
__device__ __forceinline__ int rows_before_unit(const purr__forward_params_t &params, const purr__unit_t &unit) {
  if (unit.kind != PURR__UNIT_DOWN && unit.kind != PURR__UNIT_SHARED_DOWN) return 0;
  const int batch = params.order.minibatch_tiles;
  if (!V::kPeers || batch == 0 || unit.kind == PURR__UNIT_SHARED_DOWN) return INT_MAX;
  return (unit.tile / batch + 2) * batch * params.order.tile_rows;
}

/* How often a tile's counters are counted up. */
__device__ __forceinline__ int all_gate_up(const purr__forward_params_t &params) {
  return kCluster * kWriterWarps * params.order.gate_up_pairs;
}
__device__ __forceinline__ int all_down(const purr__forward_params_t &params) {
  return kCluster * kWriterWarps * params.order.down_pairs;
}

/* How long the chains of a unit are. */
__device__ __forceinline__ int num_steps(const purr__forward_params_t &params, int kind) {
  const int k = is_gate_up(kind) ? params.hidden : is_shared(kind) ? params.shared_intermediate : params.intermediate;
  return (k + kStageK - 1) / kStageK;
}

/* Waits until a counter has come to `expected`. Past the limit the call is given up: the status says which wait, and
 * the kernel runs to its end without waiting. (What blocks wait for inside themselves and their pair has no limit.) */
__device__ __forceinline__ void wait_for(const purr__forward_params_t &params, const int32_t *counter, int expected,
                                         int site) {
  uint64_t begin = 0;
  for (int tries = 0;; tries++) {
    const int seen = ptx::ld_acquire_gpu(counter);
    if (seen >= expected) return;
    if (tries % 256 != 255) continue;
    const uint64_t now = ptx::global_timer_ns();
    if (begin == 0) begin = now;
    if (*(volatile int32_t *)&params.status->status != 0) return;
    if ((int64_t)(now - begin) < params.timeout_ns) continue;
    if (atomicCAS(&params.status->status, PURR_STATUS_OK, PURR_STATUS_INTERNAL) != PURR_STATUS_OK) return;
    params.status->rank = site;
    params.status->token = counter - reinterpret_cast<const int32_t *>(params.order.sync);
    params.status->slot = expected;
    params.status->expert = seen;
    return;
  }
}
enum { kSiteGateUp = 1, kSiteDown = 2, kSiteRing = 3 };

}  // namespace
}  // namespace purr

#endif
