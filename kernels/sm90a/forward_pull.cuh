/* SPDX-License-Identifier: Apache-2.0
 *
 * ROLE puller of the forward megakernel: whole blocks that bring rows of x from all ranks, by the copy engine, while
 * the others multiply. Every warp pulls rows of its own, in pieces, through its part of shared memory. reads     the
 * table, x of all ranks writes    rows of x where they are gathered waits on  gate_up_done of the tile that lies in a
 * row's place of the ring signals   rows_there */
#ifndef PURR_KERNELS_SM90A_FORWARD_PULL_CUH
#define PURR_KERNELS_SM90A_FORWARD_PULL_CUH

#include "bulk.cuh"
#include "forward_gather.cuh"
#include "trace.cuh"

namespace purr {
namespace {

constexpr int kPullWarps = kThreads / 32, kPullRows = 8; /* rows that a warp takes at a time */
constexpr int kPieces = 4, kPieceBytes = 3584;           /* of a warp: four hold a row of 7168 */
constexpr int kPiecesLoading = 2;                        /* the others are on their way out */

struct Piece {
  char *to;
  int32_t *counter; /* of the row's tile, behind the row's last piece; else NULL */
  int bytes;
};

struct PullStorage {
  char data[kPullWarps][kPieces][kPieceBytes];
  Piece piece[kPullWarps][kPieces];
  uint64_t there[kPullWarps][kPieces]; /* arrivals: the puller, with the bytes it expects */
  int next_rows;
};

/* Pieces under way, in order: the first `num_over` are written, up to `num_stored` are being written, up to
 * `num_loaded` are being read. One thread. */
struct Pieces {
  char (*data)[kPieceBytes];
  Piece *piece;
  uint64_t *there;
  int num_loaded = 0, num_stored = 0, num_over = 0;

  __device__ __forceinline__ void load(const char *from, const Piece &next) {
    if (num_loaded - num_over == kPieces) {
      ptx::bulk_wait<kPieces - kPiecesLoading - 1>();
      end_one();
    }
    const int at = num_loaded % kPieces;
    piece[at] = next;
    ptx::mbarrier_arrive_expect_tx(&there[at], next.bytes);
    ptx::bulk_load(data[at], from, next.bytes, &there[at]);
    num_loaded++;
    if (num_loaded - num_stored > kPiecesLoading) store_one();
  }

  __device__ __forceinline__ void finish() {
    while (num_stored < num_loaded) store_one();
    ptx::bulk_wait<0>();
    while (num_over < num_stored) end_one();
  }

  __device__ __forceinline__ void store_one() {
    const int at = num_stored % kPieces;
    ptx::mbarrier_wait_acquire(&there[at], num_stored / kPieces % 2);
    ptx::bulk_store(piece[at].to, data[at], piece[at].bytes);
    ptx::bulk_commit();
    num_stored++;
  }

  __device__ __forceinline__ void end_one() {
    int32_t *counter = piece[num_over % kPieces].counter;
    num_over++;
    if (counter == nullptr) return;
    ptx::fence_proxy_async_global();
    ptx::red_add_release_gpu(counter, 1);
  }
};

template <typename V>
__device__ __forceinline__ void pull(const purr__forward_params_t &params, PullStorage *shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) shared->next_rows = 0;
  if (lane == 0) {
    for (int s = 0; s < kPieces; s++) ptx::mbarrier_init(&shared->there[warp][s], 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  trace::Tracer<V::kTraces> tracer(params.trace, 0, PURR__TRACE_ROLE_PULLER, threadIdx.x == 0);
  TakenRows<V, kPullRows, true> rows(params, &shared->next_rows);
  Pieces pieces = {shared->data[warp], shared->piece[warp], shared->there[warp]};
  const int bytes = params.hidden * 2;
  while (rows.take(INT_MAX / 4)) {
#pragma unroll 1
    for (int i = 0; i < rows.num_taken; i++) {
      const char *from = rows.row_from(i);
      char *to = rows.address_of(rows.place_of(i));
      const int tile = rows.tile_of(i);
      if (from == nullptr) continue;
      if (!rows.is_free(tile)) {
        const auto waiting = tracer.begin();
        if (lane == 0) pieces.finish(); /* what others wait for before they free the place */
        __syncwarp();
        wait_for(params, rows.ring_counter(tile), all_gate_up(params), kSiteRing);
        tracer.end_if_long(waiting, PURR__TRACE_WAIT_RING, -1, tile);
      }
      const auto begun = tracer.begin();
      if (lane == 0)
        for (int at = 0; at < bytes; at += kPieceBytes) {
          const bool is_last = at + kPieceBytes >= bytes;
          pieces.load(from + at,
                      {to + at, is_last ? rows.counter_of(tile) : nullptr, is_last ? bytes - at : kPieceBytes});
        }
      __syncwarp();
      tracer.end(begun, PURR__TRACE_PULL, -1, tile);
    }
  }
  if (lane == 0) pieces.finish();
  tracer.finish();
}

}  // namespace
}  // namespace purr

#endif
