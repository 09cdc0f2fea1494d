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

struct Place {
  const purr__unit_order_t &order;
  int num_tiles; /* of all routed experts */

  __device__ int routed_gate_up() const { return order.num_shared_tiles * order.shared_gate_up_pairs; }
  __device__ int shared_down() const { return routed_gate_up() + num_tiles * order.gate_up_pairs; }
  __device__ int routed_down() const { return shared_down() + order.num_shared_tiles * order.down_pairs; }
  __device__ int end() const { return routed_down() + num_tiles * order.down_pairs; }
};

/* By one warp: the units of `rows`, one after the other from `first` on, for the pairs [from, to) of columns. */
__device__ __forceinline__ void write(purr__unit_t *first, const Rows &rows, int first_tile, int expert, int from,
                                      int to, int kind) {
  const int height = purr__unit_tile_height(rows.count, rows.num_tiles);
  for (int i = threadIdx.x % 32; i < (to - from) * rows.num_tiles; i += 32) {
    const int tile = i % rows.num_tiles, row = tile * height;
    first[i] = {rows.first + row,
                first_tile + tile,
                (uint16_t)expert,
                (uint16_t)kind,
                (uint16_t)(from + i / rows.num_tiles),
                (uint16_t)min(height, rows.count - row)};
  }
}

/* By one warp: all units of a routed expert. */
__device__ __forceinline__ void write_expert(const Place &place, const Rows &rows, int expert) {
  const purr__unit_order_t &order = place.order;
  if (rows.num_tiles == 0) return;
  write(order.units + place.routed_gate_up() + rows.tiles_before * order.gate_up_pairs, rows, rows.tiles_before, expert,
        0, order.gate_up_pairs, PURR__UNIT_GATE_UP);
  write(order.units + place.routed_down() + rows.tiles_before * order.down_pairs, rows, rows.tiles_before, expert, 0,
        order.down_pairs, PURR__UNIT_DOWN);
}

/* By one warp: all units of the shared expert. Its tiles are counted behind those of the routed experts. */
__device__ __forceinline__ void write_shared(const Place &place) {
  const purr__unit_order_t &order = place.order;
  const Rows rows = {0, order.num_tokens, 0, order.num_shared_tiles};
  if (rows.num_tiles == 0) return;
  write(order.units, rows, place.num_tiles, 0, 0, order.shared_gate_up_pairs, PURR__UNIT_SHARED_GATE_UP);
  write(order.units + place.shared_down(), rows, place.num_tiles, 0, 0, order.down_pairs, PURR__UNIT_SHARED_DOWN);
}

/* By all threads of the grid: everything that is counted starts from zero. */
__device__ __forceinline__ void reset(const Place &place) {
  int32_t *words = reinterpret_cast<int32_t *>(place.order.sync);
  const int num_units = place.end();
  constexpr int kNumUnits = offsetof(purr__unit_sync_t, num_units) / sizeof(int32_t);
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < place.order.num_sync_words; i += gridDim.x * blockDim.x)
    words[i] = i == kNumUnits ? num_units : 0;
}

}  // namespace units

#endif
