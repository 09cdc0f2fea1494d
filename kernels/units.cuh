/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of units that the forward megakernel works through, from the routing table; see purr__unit_order_t. Where
 * each unit stands in the list follows from prefix sums alone, so that warps can write it side by side. */
#ifndef PURR_KERNELS_UNITS_CUH
#define PURR_KERNELS_UNITS_CUH

#include "layout.h"

namespace units {

/* Rows that share their weights: an expert's, or all tokens for the shared expert. */
struct Rows {
  int first, count;
  int tiles_before, num_tiles; /* tiles of the routed experts before them; of their own */
};

/* What stands where in the list: G0 G1 D0 G2 D1 ... of the minibatches of tiles, about them the shared expert. */
struct Place {
  const purr__unit_order_t &order;
  int num_tiles; /* of all routed experts */

  __device__ int batch_tiles() const { return order.minibatch_tiles > 0 ? order.minibatch_tiles : max(num_tiles, 1); }
  __device__ int last_batch() const { return num_tiles == 0 ? 0 : (num_tiles - 1) / batch_tiles(); }
  __device__ int routed_begin() const { return order.num_shared_tiles * order.shared_gate_up_pairs; }
  __device__ int gate_up(int batch) const {
    return routed_begin() + batch * batch_tiles() * order.gate_up_pairs +
           max(batch - 1, 0) * batch_tiles() * order.down_pairs;
  }
  __device__ int shared_down() const {
    return routed_begin() + num_tiles * order.gate_up_pairs + last_batch() * batch_tiles() * order.down_pairs;
  }
  __device__ int down(int batch) const {
    if (batch == last_batch()) return shared_down() + order.num_shared_tiles * order.down_pairs;
    return routed_begin() + min((batch + 2) * batch_tiles(), num_tiles) * order.gate_up_pairs +
           batch * batch_tiles() * order.down_pairs;
  }
  __device__ int end() const {
    return routed_begin() + order.num_shared_tiles * order.down_pairs +
           num_tiles * (order.gate_up_pairs + order.down_pairs);
  }
};

/* By one warp: the units of the tiles [from, to) of `rows`, one after the other from `first` on. `tile_base`: the
 * number of the rows' first tile. */
__device__ __forceinline__ void write(purr__unit_t *first, const Rows &rows, int tile_base, int from, int to,
                                      int expert, int num_pairs, int kind) {
  const int height = purr__unit_tile_height(rows.count, rows.num_tiles);
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < (to - from) * num_pairs; i += 32) {
    const int tile = from + i % (to - from), row = tile * height;
    first[i] = {rows.first + row,
                tile_base + tile,
                (uint16_t)expert,
                (uint16_t)kind,
                (uint16_t)(i / (to - from)),
                (uint16_t)min(height, rows.count - row)};
  }
}

/* By one warp: all units of a routed expert, minibatch by minibatch. */
__device__ __forceinline__ void write_expert(const Place &place, const Rows &rows, int expert) {
  const purr__unit_order_t &order = place.order;
  const int batch_tiles = place.batch_tiles(), end = rows.tiles_before + rows.num_tiles;
  for (int from = rows.tiles_before; from < end;) {
    const int batch = from / batch_tiles, to = min((batch + 1) * batch_tiles, end);
    const int before = from - batch * batch_tiles; /* tiles of the minibatch */
#pragma unroll 1
    for (int down = 0; down < 2; down++) {
      const int pairs = down ? order.down_pairs : order.gate_up_pairs;
      write(order.units + (down ? place.down(batch) : place.gate_up(batch)) + before * pairs, rows, rows.tiles_before,
            from - rows.tiles_before, to - rows.tiles_before, expert, pairs,
            down ? PURR__UNIT_DOWN : PURR__UNIT_GATE_UP);
    }
    from = to;
  }
}

/* By one warp: all units of the shared expert. Its tiles are counted behind those of the routed experts. */
__device__ __forceinline__ void write_shared(const Place &place) {
  const purr__unit_order_t &order = place.order;
  const Rows rows = {0, order.num_tokens, 0, order.num_shared_tiles};
  if (rows.num_tiles == 0) return;
#pragma unroll 1
  for (int down = 0; down < 2; down++)
    write(order.units + (down ? place.shared_down() : 0), rows, place.num_tiles, 0, rows.num_tiles, 0,
          down ? order.down_pairs : order.shared_gate_up_pairs,
          down ? PURR__UNIT_SHARED_DOWN : PURR__UNIT_SHARED_GATE_UP);
}

/* By all threads of the grid: everything that is counted starts from zero. */
__device__ __forceinline__ void reset(const Place &place) {
  int32_t *words = reinterpret_cast<int32_t *>(place.order.sync);
  const int num_units = place.end();
  constexpr int kNumUnits = offsetof(purr__unit_sync_t, num_units) / sizeof(int32_t);
#pragma unroll 1
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < place.order.num_sync_words; i += gridDim.x * blockDim.x)
    words[i] = i == kNumUnits ? num_units : 0;
}

}  // namespace units

#endif
