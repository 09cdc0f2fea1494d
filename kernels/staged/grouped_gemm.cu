/* SPDX-License-Identifier: Apache-2.0
 *
 * The grouped GEMMs of the staged backend for every GPU from sm_80 on: mma.sync m16n8k16, ldmatrix, multistage
 * cp.async.
 *   purr_gate_up  a = bf16(silu(g) * u), g = bf16(x . Wg), u = bf16(x . Wu), rows of x gathered
 *   purr_down     y = bf16(a . Wd), rows scattered to the slots they came from
 *
 * Persistent blocks of 8 warps, one block an SM, tile t = block, block + grid, ... Each warp owns 64 rows by 64 rows of
 * B. Every output element is one chain over ascending k in one thread, so its bits depend on nothing but its row of A
 * and its row of B. While a tile's results are written, the first stages of the next are already coming. */
#include "staged/tiles.cuh"
#include "sums.cuh"
#include "turn.cuh"

namespace purr {
namespace {

/* ---------------------------------------------------------------------------------------------------------- types */

/* Shared memory decides: 163 KiB on sm_80, 99 KiB on sm_86, 89 and 120, 227 KiB elsewhere. */
#if __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ == 1200
constexpr int kStageK = 32, kStages = 4;
#elif __CUDA_ARCH__ == 800
constexpr int kStageK = 64, kStages = 3;
#else
constexpr int kStageK = 64, kStages = 4;
#endif

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kChunks = kStageK / 8;              /* 16-byte chunks of a row in one stage */
constexpr int kRowBytes = kStageK * 2;            /* of one stage */
constexpr int kRowsAtOnce = kThreads / kChunks;   /* rows that the block copies together */
constexpr int kCopiesA = kTileRows / kRowsAtOnce; /* of one thread */

/* A kernel: its GEMM. */
template <Role kRole_>
struct Variant {
  static constexpr Role kRole = kRole_;
  static constexpr int kTileWeightRows = 256; /* rows of B */
  static constexpr int kColumns = kTileColumns<kRole, kTileWeightRows>;
  static constexpr int kCopiesB = kTileWeightRows / kRowsAtOnce; /* of one thread */
  /* Of one warp's accumulators. */
  static constexpr int kWarpWeightRows = 64, kWarpColumns = kTileWeightRows / kWarpWeightRows;
  static constexpr int kWarpRows = kTileRows / (kWarps / kWarpColumns);
  static constexpr int kRowGroups = kWarpRows / 16, kColumnGroups = kWarpWeightRows / 8; /* m16, n8 */
};

/* Stage s of both operands. A row's chunks are swizzled, so that 8 rows of one chunk lie in 8 different banks. */
template <typename V>
struct SharedStorage {
  char a[kStages][kTileRows * kRowBytes];
  char b[kStages][V::kTileWeightRows * kRowBytes];
};

template <typename V>
constexpr int table_shared_bytes() {
#define PURR_KERNEL(entry, role, source, target, arch, threads, shared_bytes, cluster, tile_m, tile_n)          \
  if (arch * 10 == __CUDA_ARCH__ && tile_m == kTileRows && tile_n == V::kTileWeightRows && threads == kThreads) \
    return shared_bytes;
#ifdef __CUDA_ARCH__
#include "kernels.def"
#endif
#undef PURR_KERNEL
  return (int)sizeof(SharedStorage<V>);
}
template <typename V>
constexpr bool kTableAgrees = sizeof(SharedStorage<V>) == table_shared_bytes<V>();
static_assert(kTableAgrees<Variant<Role::kGateUp>> && kTableAgrees<Variant<Role::kDown>>,
              "kernels.def has another number");

__device__ __forceinline__ int swizzle(int row) { return kChunks == 8 ? row & 7 : row >> 1 & 3; }

/* ---------------------------------------------------------------------------------------------------------- roles */

/* Copying: this thread's chunk of its rows of A and B.
 * reads A and B, writes stages, signals through its cp.async groups. */
template <typename V>
struct Loader {
  const char *a[kCopiesA]; /* this thread's chunk 0 of its rows; NULL = padding */
  const char *b[2];        /* its first row of each weight */
  int64_t b_step;          /* bytes between its rows of B */
  int b_rows[2];           /* rows of each weight that exist from its first one on */
  int k;                   /* elements of the contraction */

  __device__ __forceinline__ void start(const purr__gemm_params_t &params, const Tile &tile) {
    const purr__gemm_t &gemm = params.problem[tile.problem];
    const int chunk = threadIdx.x % kChunks, row = threadIdx.x / kChunks;
#pragma unroll
    for (int i = 0; i < kCopiesA; i++) {
      int r = row + i * kRowsAtOnce;
      a[i] = r < tile.num_rows ? row_address(gemm, gemm.a, tile.row + r) + chunk * 16 : nullptr;
    }
#pragma unroll
    for (int w = 0; w < (V::kRole == Role::kGateUp ? 2 : 1); w++) {
      b[w] = weight_address(gemm.b[w], tile.expert) + (tile.column + row) * gemm.b[w].row_stride * 2 + chunk * 16;
      b_rows[w] = gemm.n - tile.column - row;
    }
    b_step = gemm.b[0].row_stride * 2 * kRowsAtOnce;
    if (V::kRole == Role::kGateUp) b_step_up = gemm.b[1].row_stride * 2 * kRowsAtOnce;
    k = gemm.k;
  }

  __device__ __forceinline__ void load(SharedStorage<V> *shared, int stage, int step) const {
    const int chunk = threadIdx.x % kChunks, row = threadIdx.x / kChunks;
    const bool inside = step * kStageK + chunk * 8 < k;
    const int64_t at = (int64_t)step * kRowBytes;
    const uint32_t to = row * kRowBytes + ((chunk ^ swizzle(row)) << 4);
    const uint32_t to_a = ptx::shared_address(shared->a[stage]) + to, to_b = ptx::shared_address(shared->b[stage]) + to;
#pragma unroll
    for (int i = 0; i < kCopiesA; i++) {
      bool valid = inside && a[i] != nullptr;
      ptx::cp_async_16_zfill(to_a + i * kRowsAtOnce * kRowBytes, valid ? a[i] + at : b[0], valid);
    }
#pragma unroll
    for (int i = 0; i < V::kCopiesB; i++) {
      const int w = V::kRole == Role::kGateUp ? i / (V::kCopiesB / 2) : 0,
                j = V::kRole == Role::kGateUp ? i % (V::kCopiesB / 2) : i;
      bool valid = inside && j * kRowsAtOnce < b_rows[w];
      ptx::cp_async_16_zfill(to_b + i * kRowsAtOnce * kRowBytes,
                             valid ? b[w] + at + j * (w == 0 ? b_step : b_step_up) : b[0], valid);
    }
  }

  /* Fills all stages; one group each, empty or not. */
  __device__ __forceinline__ void load_first(SharedStorage<V> *shared) const {
    for (int s = 0; s < kStages; s++) {
      if (s * kStageK < k) load(shared, s, s);
      ptx::cp_async_commit();
    }
  }

 private:
  int64_t b_step_up;
};

/* Multiplying: this warp's accumulators, and the fragments of two steps of 16 k: one is read from shared memory while
 * the other is multiplied. */
template <typename V>
struct Accumulators {
  static constexpr int kRowGroups = V::kRowGroups, kColumnGroups = V::kColumnGroups;
  float value[kRowGroups][kColumnGroups][4];
  uint32_t a_part[2][kRowGroups][4], b_part[2][kColumnGroups / 2][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kRowGroups; i++)
#pragma unroll
      for (int j = 0; j < kColumnGroups; j++)
#pragma unroll
        for (int v = 0; v < 4; v++) value[i][j][v] = 0;
  }

  __device__ __forceinline__ void scale(float factor) {
#pragma unroll
    for (int i = 0; i < kRowGroups; i++)
#pragma unroll
      for (int j = 0; j < kColumnGroups; j++)
#pragma unroll
        for (int v = 0; v < 4; v++) value[i][j][v] *= factor;
  }

  /* Row of B where the warp's j-th group of 16 begins: gate-up takes half of them from each weight. */
  static __device__ __forceinline__ int weight_row(int warp_column, int j) {
    return V::kRole == Role::kGateUp
               ? warp_column * (V::kWarpWeightRows / 2) + j % 2 * 16 + j / 2 * (V::kTileWeightRows / 2)
               : warp_column * V::kWarpWeightRows + j * 16;
  }

  /* Reads the fragments of 16 k, the step-th of a stage. */
  __device__ __forceinline__ void fetch(const SharedStorage<V> *shared, int stage, int step, int warp_row,
                                        int warp_column) {
    const int lane = threadIdx.x % 32;
    const int a_row = warp_row * V::kWarpRows + lane % 16, b_row = lane % 8 + lane / 16 * 8;
    const uint32_t a = ptx::shared_address(shared->a[stage]) + a_row * kRowBytes + ((lane / 16 ^ swizzle(a_row)) << 4);
    const uint32_t b =
        ptx::shared_address(shared->b[stage]) + b_row * kRowBytes + ((lane / 8 % 2 ^ swizzle(b_row)) << 4);
#pragma unroll
    for (int i = 0; i < kRowGroups; i++) ptx::ldmatrix_x4(a_part[step % 2][i], (a + i * 16 * kRowBytes) ^ step << 5);
#pragma unroll
    for (int j = 0; j < kColumnGroups / 2; j++)
      ptx::ldmatrix_x4(b_part[step % 2][j], (b + weight_row(warp_column, j) * kRowBytes) ^ step << 5);
  }

  __device__ __forceinline__ void multiply(int step) {
#pragma unroll
    for (int i = 0; i < kRowGroups; i++)
#pragma unroll
      for (int j = 0; j < kColumnGroups; j++)
        ptx::mma_m16n8k16_bf16(value[i][j], a_part[step % 2][i], b_part[step % 2][j / 2][j % 2 * 2],
                               b_part[step % 2][j / 2][j % 2 * 2 + 1]);
  }

  __device__ __forceinline__ void store(const purr__gemm_t &gemm, const Tile &tile, int warp_row,
                                        int warp_column) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kRowGroups; i++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int row = warp_row * V::kWarpRows + i * 16 + half * 8 + lane / 4;
        const RowTarget target = row_target<V::kRole>(gemm, tile, row, target_place(gemm, tile, row));
        float part[2][4][2];
#pragma unroll
        for (int j = 0; j < kColumnGroups; j++)
#pragma unroll
          for (int v = 0; v < 2; v++) part[j / 4][j % 4][v] = value[i][j][half * 2 + v];
        if (V::kRole == Role::kGateUp) {
          store_gate_up(gemm, target, tile.column + warp_column * 32, part[0], part[1]);
        } else {
          store_down(gemm, target, tile.column + warp_column * 64, part[0]);
          store_down(gemm, target, tile.column + warp_column * 64 + 32, part[1]);
        }
      }
  }
};

/* --------------------------------------------------------------------------------------------------------- kernel */

template <typename V>
__device__ __forceinline__ void grouped_gemm(const purr__gemm_params_t &params) {
  char *dynamic_shared = ptx::dynamic_shared<char, 1024>();
  SharedStorage<V> *shared = reinterpret_cast<SharedStorage<V> *>(dynamic_shared);
  if (!turn::owns(params.turn) || params.status->status != 0) return;

  const int warp = threadIdx.x / 32, warp_row = warp / V::kWarpColumns, warp_column = warp % V::kWarpColumns;
  Tile tile;
  int t = blockIdx.x;
  const Extent extent[2] = {extent_of<V::kColumns>(params, 0), extent_of<V::kColumns>(params, 1)};
  if (!find_tile<V::kColumns>(params, extent, t, &tile)) return;

  Loader<V> loader;
  Accumulators<V> sum;
  loader.start(params, tile);
  loader.load_first(shared);

  for (bool more = true; more;) {
    constexpr int kSteps = kStageK / 16;
    const int num_stages = (loader.k + kStageK - 1) / kStageK;
    const bool has_rows = warp_row * V::kWarpRows < tile.num_rows;
    const SumParts<kStageK> parts = {num_stages, false};
    sum.clear();
    ptx::cp_async_wait<kStages - 1>();
    __syncthreads();
    if (has_rows) sum.fetch(shared, 0, 0, warp_row, warp_column);
    for (int n = 0, stage = 0; n < num_stages; n++) {
      const int next_stage = stage == kStages - 1 ? 0 : stage + 1;
#pragma unroll
      for (int step = 0; step < kSteps; step++) {
        const bool last = step == kSteps - 1;
        if (last) {
          ptx::cp_async_wait<kStages - 2>();
          __syncthreads(); /* the next stage is here for all; all have read this one, which is refilled below */
        }
        if (has_rows) {
          if (!last || n + 1 < num_stages)
            sum.fetch(shared, last ? next_stage : stage, last ? 0 : step + 1, warp_row, warp_column);
          sum.multiply(step);
        }
      }
      if (parts.ends_at(n + 1) || n + 1 == num_stages) sum.scale(parts.factor_at(n + 1));
      if (n + kStages < num_stages) loader.load(shared, stage, n + kStages);
      ptx::cp_async_commit();
      stage = next_stage;
    }

    const Tile done = tile;
    t += gridDim.x;
    more = find_tile<V::kColumns>(params, extent, t, &tile);
    if (more) {
      loader.start(params, tile);
      loader.load_first(shared); /* after the last barrier every stage is free */
    }
    if (has_rows) sum.store(params.problem[done.problem], done, warp_row, warp_column);
  }
  ptx::cp_async_wait<0>();
}

}  // namespace
}  // namespace purr

/* reads   rows of x, Wg, Wu, the table
 * writes  rows of a; g and u where wanted */
extern "C" __global__ void __launch_bounds__(purr::kThreads, 1)
    purr_gate_up(const __grid_constant__ purr__gemm_params_t params) {
  purr::grouped_gemm<purr::Variant<purr::Role::kGateUp>>(params);
}

/* reads   rows of a, Wd, the table
 * writes  rows of y */
extern "C" __global__ void __launch_bounds__(purr::kThreads, 1)
    purr_down(const __grid_constant__ purr__gemm_params_t params) {
  purr::grouped_gemm<purr::Variant<purr::Role::kDown>>(params);
}
