/* SPDX-License-Identifier: Apache-2.0
 *
 * What every grouped GEMM shares: which tile is the t-th, where its rows live, and the way from accumulators to memory.
 *
 * Tiles are numbered problem by problem, expert by expert, column by column, row tiles innermost: the blocks that run
 * side by side read one expert's weight tile from L2. */
#ifndef PURR_KERNELS_STAGED_TILES_CUH
#define PURR_KERNELS_STAGED_TILES_CUH

#include "columns.cuh"
#include "layout.h"
#include "ptx.cuh"

namespace purr {

/* Which GEMM a kernel is. Gate-up multiplies with two weights and fuses SwiGLU. */
enum class Role { kGateUp, kDown };

constexpr int kTileRows = PURR__TILE_ROWS;

/* Output columns of a tile with so many rows of B: those of down, or the same columns of gate and of up. */
template <Role kRole, int kTileWeightRows>
constexpr int kTileColumns = kRole == Role::kGateUp ? kTileWeightRows / 2 : kTileWeightRows;

struct Tile {
  int problem, expert;
  int row;      /* first row: of the table, or of the dense problem */
  int num_rows; /* rows in use, at most kTileRows */
  int column;   /* first output column */
};

template <int kColumns>
__device__ __forceinline__ int num_column_tiles(const purr__gemm_t &gemm) {
  return (gemm.n + kColumns - 1) / kColumns;
}

__device__ __forceinline__ int num_row_tiles(const purr__gemm_t &gemm) {
  return gemm.tile_begin != nullptr ? gemm.tile_begin[gemm.num_experts]
                                    : (int)((gemm.num_rows + kTileRows - 1) / kTileRows);
}

/* The rows that one expert has in a problem. */
struct Segment {
  int expert;
  int row_tiles_before, row_tiles;
  int first_row, num_rows;
};

__device__ __forceinline__ Segment segment_of(const purr__gemm_t &gemm, int expert) {
  if (gemm.tile_begin == nullptr) return {0, 0, num_row_tiles(gemm), 0, (int)gemm.num_rows};
  const int before = gemm.tile_begin[expert];
  return {expert, before, gemm.tile_begin[expert + 1] - before, gemm.expert_begin[expert], gemm.expert_count[expert]};
}

/* Those of the expert that the row_tile-th row tile of the problem belongs to. */
__device__ __forceinline__ Segment find_segment(const purr__gemm_t &gemm, int row_tile) {
  return segment_of(gemm, gemm.tile_begin != nullptr ? gemm.tile_expert[row_tile] : 0);
}

template <int kColumns>
__device__ __forceinline__ Tile tile_of(const Segment &segment, int problem, int row_tile, int column_tile) {
  return {problem, segment.expert, segment.first_row + row_tile * kTileRows,
          max(0, min(segment.num_rows - row_tile * kTileRows, kTileRows)), column_tile * kColumns};
}

/* How many tiles a problem has each way. */
struct Extent {
  int rows, columns;
};

template <int kColumns>
__device__ __forceinline__ Extent extent_of(const purr__gemm_params_t &params, int problem) {
  if (problem >= params.num_problems) return {0, 0};
  return {num_row_tiles(params.problem[problem]), num_column_tiles<kColumns>(params.problem[problem])};
}

/* Tile number `t`; false when there are not that many. */
template <int kColumns>
__device__ __forceinline__ bool find_tile(const purr__gemm_params_t &params, const Extent (&extent)[2], int t,
                                          Tile *tile) {
  const int problem = t >= extent[0].rows * extent[0].columns;
  if (problem == 1) t -= extent[0].rows * extent[0].columns;
  const Extent size = problem == 0 ? extent[0] : extent[1];
  if (t >= size.rows * size.columns) return false;
  const Segment segment = find_segment(params.problem[problem], t / size.columns);
  const int within = t - segment.row_tiles_before * size.columns;
  *tile = tile_of<kColumns>(segment, problem, within % segment.row_tiles, within / segment.row_tiles);
  return true;
}

/* What the table says of a row, where its place depends on it. */
struct RowPlace {
  int slot, rank;
  float weight; /* of the slot, where C is multiplied by it */
};

__device__ __forceinline__ RowPlace load_place(const purr__gemm_t &gemm, const purr__rows_t &rows, int row) {
  RowPlace place = {};
  if (rows.placement != PURR__ROWS_DENSE) {
    place.slot = gemm.row_slot[row];
    if (rows.by_rank != nullptr) place.rank = gemm.row_rank[row];
  }
  return place;
}

/* Where row `row` of an operand lives. */
__device__ __forceinline__ char *row_address(const purr__gemm_t &gemm, const purr__rows_t &rows, int row,
                                             RowPlace place) {
  char *base = static_cast<char *>(rows.data);
  if (rows.by_rank != nullptr) base = static_cast<char *>(rows.by_rank[place.rank]) + reinterpret_cast<intptr_t>(base);
  int64_t at = rows.placement == PURR__ROWS_DENSE   ? row
               : rows.placement == PURR__ROWS_TOKEN ? place.slot / gemm.top_k
                                                    : place.slot;
  return base + at * rows.row_stride * 2;
}

__device__ __forceinline__ char *row_address(const purr__gemm_t &gemm, const purr__rows_t &rows, int row) {
  return row_address(gemm, rows, row, load_place(gemm, rows, row));
}

/* Row 0 of an expert's weight. */
__device__ __forceinline__ const char *weight_address(const purr__weight_t &weight, int expert) {
  return weight.by_expert != nullptr ? static_cast<const char *>(weight.by_expert[expert])
                                     : static_cast<const char *>(weight.data) + expert * weight.expert_stride * 2;
}

/* ---------------------------------------------------------------------------------------------------- epilogue
 *
 * mma.sync leaves accumulators so: in each group of 8 columns, lane q of a quad holds columns 2q and 2q+1 of its row.
 * Four groups (32 columns) of one row go to memory together. */

struct Pairs {
  uint32_t pair[4]; /* BF16 pairs of this lane in the four groups */
};

/* Lane q gets the 8 columns of group q: a 4x4 transpose within the quad. */
__device__ __forceinline__ uint4 transpose_quad(Pairs p) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
  uint32_t *v = p.pair;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, odd ? v[i] : v[i + 1], 1);
    if (odd)
      v[i] = got;
    else
      v[i + 1] = got;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, high ? v[i] : v[i + 2], 2);
    if (high)
      v[i] = got;
    else
      v[i + 2] = got;
  }
  return {v[0], v[1], v[2], v[3]};
}

/* Writes 32 columns of one row from `column` on, changed by `change`; what is right of n is not written. `row` NULL:
 * nothing is. */
template <typename Change>
__device__ __forceinline__ void store_columns(char *row, int column, int n, Pairs p, Change change) {
  uint4 v = transpose_quad(p);
  column += threadIdx.x % 4 * 8;
  if (row != nullptr && column < n) ptx::st_16(row + column * 2, change(v));
}
__device__ __forceinline__ void store_columns(char *row, int column, int n, Pairs p) {
  store_columns(row, column, n, p, [](uint4 v) { return v; });
}

/* The clamp that a problem asks for: none is one at infinity. */
__device__ __forceinline__ float clamp_limit(const purr__gemm_t &gemm) {
  return gemm.swiglu_limit > 0 ? gemm.swiglu_limit : __int_as_float(0x7F800000);
}

/* a = silu(g) * u in FP32. NaN passes the clamp. */
__device__ __forceinline__ float swiglu(float g, float u, float limit) {
  constexpr float kMinusLog2E = -1.44269504088896340736f;
  g = ptx::min_nan(g, limit);
  u = ptx::max_nan(ptx::min_nan(u, limit), -limit);
  return g * ptx::rcp_approx(1.0f + ptx::ex2_approx(g * kMinusLog2E)) * u;
}

/* The same of two columns, BF16 in and out. */
__device__ __forceinline__ uint32_t swiglu_pair(uint32_t g, uint32_t u, float limit) {
  return ptx::pack_bf16x2(swiglu(ptx::low_bf16(g), ptx::low_bf16(u), limit),
                          swiglu(ptx::high_bf16(g), ptx::high_bf16(u), limit));
}

/* One row of a tile on its way out: where its columns go. */
struct RowTarget {
  char *c, *gate, *up; /* NULL = not written */
  float weight;        /* RowPlace */
};

template <Role kRole>
__device__ __forceinline__ RowTarget row_target(const purr__gemm_t &gemm, const Tile &tile, int row_in_tile,
                                                RowPlace place) {
  RowTarget target = {};
  if (row_in_tile >= tile.num_rows) return target;
  const int row = tile.row + row_in_tile;
  target.c = row_address(gemm, gemm.c, row, place);
  target.weight = place.weight;
  if (kRole == Role::kGateUp && row < gemm.num_saved_rows) {
    if (gemm.saved[0].data != nullptr) target.gate = row_address(gemm, gemm.saved[0], row, place);
    if (gemm.saved[1].data != nullptr) target.up = row_address(gemm, gemm.saved[1], row, place);
  }
  return target;
}

/* The place of a row of C; of nothing in particular past the tile's rows. */
__device__ __forceinline__ RowPlace target_place(const purr__gemm_t &gemm, const Tile &tile, int row_in_tile) {
  if (row_in_tile >= tile.num_rows) return {};
  RowPlace place = load_place(gemm, gemm.c, tile.row + row_in_tile);
  if (gemm.slot_weights != nullptr) place.weight = gemm.slot_weights[place.slot * gemm.slot_weights_stride];
  return place;
}

/* Gate-up: g = bf16(first), u = bf16(second), a = bf16(swiglu(g, u)). Index: [group][column of the pair]. */
__device__ __forceinline__ void store_gate_up(const purr__gemm_t &gemm, const RowTarget &target, int column,
                                              const float (&first)[4][2], const float (&second)[4][2]) {
  Pairs g, u, a;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    g.pair[j] = ptx::pack_bf16x2(first[j][0], first[j][1]);
    u.pair[j] = ptx::pack_bf16x2(second[j][0], second[j][1]);
    a.pair[j] = swiglu_pair(g.pair[j], u.pair[j], clamp_limit(gemm));
  }
  store_columns(target.c, column, gemm.n, a);
  if (gemm.saved[0].data != nullptr) store_columns(target.gate, column, gemm.n, g);
  if (gemm.saved[1].data != nullptr) store_columns(target.up, column, gemm.n, u);
}

/* Down: y = bf16(sum), or weight * y. */
__device__ __forceinline__ void store_down(const purr__gemm_t &gemm, const RowTarget &target, int column,
                                           const float (&sum)[4][2]) {
  Pairs y;
#pragma unroll
  for (int j = 0; j < 4; j++) y.pair[j] = ptx::pack_bf16x2(sum[j][0], sum[j][1]);
  store_columns(target.c, column, gemm.n, y,
                [&](uint4 v) { return gemm.slot_weights != nullptr ? weighted(target.weight, v) : v; });
}

}  // namespace purr

#endif
