/* SPDX-License-Identifier: Apache-2.0
 *
 * The grouped GEMMs of the staged backend for H100 and H200: wgmma m64n256k16, weights through the copy engine.
 * Same tiles and numbering as staged/grouped_gemm.cu:
 *   purr_gate_up_wgmma  a = bf16(silu(g) * u), g = bf16(x . Wg), u = bf16(x . Wu), rows of x gathered
 *   purr_down_wgmma     y = bf16(a . Wd), rows scattered to the slots they came from
 *
 * Persistent blocks, one an SM, in clusters of two. A pair takes two row tiles of one column, and each block sends its
 * half of the weight tile to both; an expert's odd last row tile goes to the pair as two columns, nothing shared. Both
 * blocks of a pair always walk through the same number of stages. Three warpgroups a block:
 *   loader      registers  56  finds tiles and fills a ring of stages: weights with TMA; rows of x with cp.async, 16
 *                              bytes a thread, since TMA cannot gather here; rows of a with TMA
 *   consumer 0  registers 224  rows  0 to  63 of the tile: 64 x 256 accumulators, then their way to memory
 *   consumer 1  registers 224  rows 64 to 127
 * The loader runs ahead over tile boundaries, so that the next tile arrives while results are written. A consumer
 * without rows in a tile leaves the tensor cores to the other: an expert's last 64 rows cost half a tile. Every output
 * element is one chain over ascending k. */
#include "staged/tiles.cuh"

namespace purr {
namespace {

/* ---------------------------------------------------------------------------------------------------------- types */

constexpr int kStageK = 64, kStages = 4;
constexpr int kRowBytes = kStageK * 2; /* of one stage: the width of the 128-byte swizzle */
constexpr int kThreads = 384;
constexpr int kWarpgroup = 128;
constexpr int kConsumers = 2;
constexpr int kConsumerRows = kTileRows / kConsumers;
constexpr int kLoaderRegisters = 56, kConsumerRegisters = 224;
static_assert((kLoaderRegisters + kConsumers * kConsumerRegisters) * kWarpgroup <= 64512, "the register file");
static_assert(kStageK == PURR__MAP_STAGE_K && kConsumerRows == PURR__MAP_ROWS_A, "the boxes of the tensor maps");

constexpr int kCluster = 2;
constexpr int kChunks = kStageK / 8;              /* 16-byte chunks of a row in one stage */
constexpr int kRowsAtOnce = kWarpgroup / kChunks; /* rows that the loader gathers together */
constexpr int kCopies = kTileRows / kRowsAtOnce;  /* of one thread */
constexpr int kStageBytesA = kTileRows * kRowBytes, kStageBytesB = kTileWeightRows * kRowBytes;
constexpr int kBoxRowsB = PURR__MAP_ROWS_B, kBoxBytesB = kBoxRowsB * kRowBytes; /* half of B: one block's share */
static_assert(kTileWeightRows == 2 * kBoxRowsB, "two boxes of B");

struct SharedStorage {
  char a[kStages][kStageBytesA];
  char b[kStages][kStageBytesB];
  Tile tile[kStages];      /* the tile that begins in the stage; problem -1: no more */
  uint64_t full[kStages];  /* arrivals: the loader, with the bytes it expects; in gate-up also its gathering threads */
  uint64_t empty[kStages]; /* arrivals: the consumers' warps of both blocks, when they are done with the stage */
};
constexpr int kAlignment = 1024; /* of the swizzle; dynamic shared memory promises less */

constexpr int table_shared_bytes() {
#define PURR_KERNEL(entry, role, source, target, arch, threads, shared_bytes, cluster, tile_m, tile_n) \
  if (arch == 90 && tile_m != 0 && threads == kThreads) return shared_bytes;
#include "kernels.def"
#undef PURR_KERNEL
  return 0;
}
static_assert(sizeof(SharedStorage) + kAlignment == table_shared_bytes(), "kernels.def has another number");

/* Which stage comes next, and in which round. */
struct Ring {
  int stage = 0;
  uint32_t round = 0; /* parity */

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      round ^= 1;
    }
  }
};

#ifdef PURR_HAS_WGMMA

/* The unit-th piece of work of the pair of blocks, and this block's tile of it. Units go column pair by column pair; of
 * an expert with m row tiles each column pair has m units: m / 2 for either column, then the odd row tile. A tile
 * without rows only keeps step. False when there are not that many. */
struct Unit {
  Tile tile;
  bool shares; /* both blocks multiply with the same B */
};

template <Role kRole>
__device__ __forceinline__ bool find_unit(const purr__gemm_params_t &params, int64_t u, int block, Unit *unit) {
  for (int p = 0; p < params.num_problems; p++) {
    const purr__gemm_t &gemm = params.problem[p];
    const int columns = num_column_tiles<kRole>(gemm), column_pairs = (columns + 1) / 2;
    const int64_t num_units = (int64_t)num_row_tiles(gemm) * column_pairs;
    if (u >= num_units) {
      u -= num_units;
      continue;
    }
    const Segment segment = find_segment(gemm, (int)(u / column_pairs));
    const int within = (int)(u - (int64_t)segment.row_tiles_before * column_pairs);
    const int left = within % segment.row_tiles, row_pairs = segment.row_tiles / 2;
    unit->shares = left < 2 * row_pairs;
    const int row_tile = unit->shares ? left % row_pairs * 2 + block : segment.row_tiles - 1;
    const int column = within / segment.row_tiles * 2 + (unit->shares ? left / row_pairs : block);
    unit->tile = tile_of<kRole>(segment, p, row_tile, column);
    if (column >= columns) unit->tile.num_rows = 0;
    return true;
  }
  return false;
}

/* -------------------------------------------------------------------------------------------------------------- roles
 */

/* The copy engine's part of B in one stage. Gate-up: box 0 is of gate, box 1 of up, at the same rows. Down: box 1 are
 * the rows after box 0. */
template <Role kRole>
__device__ __forceinline__ void load_weights(const purr__gemm_maps_t &maps, SharedStorage *shared, int stage, int k,
                                             const Unit &unit, int block) {
#pragma unroll
  for (int box = 0; box < 2; box++) {
    const int w = kRole == Role::kGateUp ? box : 0;
    const purr__tensor_map_t *by_expert = maps.b_by_expert[w];
    const purr__tensor_map_t *map = by_expert != nullptr ? by_expert + unit.tile.expert : &maps.b[w];
    const int row = unit.tile.column + (kRole == Role::kGateUp ? 0 : box * kBoxRowsB);
    const int expert = by_expert != nullptr ? 0 : unit.tile.expert;
    char *to = shared->b[stage] + box * kBoxBytesB;
    if (!unit.shares)
      ptx::tma_load_3d(to, map, &shared->full[stage], k, row, expert);
    else if (box == block)
      ptx::tma_load_3d_multicast(to, map, &shared->full[stage], k, row, expert, (1 << kCluster) - 1);
  }
}

/* ROLE loader of gate-up: all threads gather A, the first one also starts B.
 * reads     the table, A, B
 * writes    stages, tiles
 * waits on  empty
 * signals   full */
__device__ __forceinline__ void gather_units(const purr__gemm_tma_params_t &params, SharedStorage *shared, int block) {
  const int chunk = threadIdx.x % kChunks, row = threadIdx.x / kChunks;
  const uint32_t to = row * kRowBytes + ((chunk ^ (row & 7)) << 4);
  Ring ring;
  Unit unit;
  for (int64_t u = blockIdx.x / kCluster; find_unit<Role::kGateUp>(params.gemm, u, block, &unit);
       u += gridDim.x / kCluster) {
    if (unit.shares && unit.tile.num_rows == 0) continue; /* right of the last column, for both blocks */
    const purr__gemm_t &gemm = params.gemm.problem[unit.tile.problem];
    const char *a[kCopies]; /* this thread's chunk of its rows; NULL = padding */
#pragma unroll
    for (int i = 0; i < kCopies; i++) {
      int r = row + i * kRowsAtOnce;
      a[i] = r < unit.tile.num_rows ? row_address(gemm, gemm.a, unit.tile.row + r) + chunk * 16 : nullptr;
    }
    const bool any = unit.tile.num_rows > 0, half = unit.tile.num_rows <= kConsumerRows;

    for (int k = 0; k < gemm.k; k += kStageK) {
      ptx::mbarrier_wait_acquire(&shared->empty[ring.stage], ring.round ^ 1);
      if (threadIdx.x == 0) {
        if (k == 0) shared->tile[ring.stage] = unit.tile;
        ptx::mbarrier_arrive_expect_tx(&shared->full[ring.stage], any ? kStageBytesB : 0);
        if (any) load_weights<Role::kGateUp>(params.maps[unit.tile.problem], shared, ring.stage, k, unit, block);
      }
      const bool inside = k + chunk * 8 < gemm.k;
      const uint32_t to_a = ptx::shared_address(shared->a[ring.stage]) + to;
#pragma unroll
      for (int i = 0; i < kCopies; i++) {
        if (i >= kCopies / 2 && half) break; /* nobody reads those rows */
        bool valid = inside && a[i] != nullptr;
        ptx::cp_async_16_zfill(to_a + i * kRowsAtOnce * kRowBytes, valid ? a[i] + k * 2 : gemm.a.data, valid);
      }
      ptx::cp_async_mbarrier_arrive_noinc(&shared->full[ring.stage]);
      ring.advance();
    }
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  ptx::mbarrier_wait_acquire(&shared->empty[ring.stage], ring.round ^ 1);
  if (threadIdx.x == 0) {
    shared->tile[ring.stage].problem = -1;
    ptx::mbarrier_arrive_release(&shared->full[ring.stage]);
  }
  ptx::mbarrier_arrive_release(&shared->full[ring.stage]);
}

/* ROLE loader of down: one thread; the others of its warp help to find tiles.
 * reads     the table, A, B
 * writes    stages, tiles
 * waits on  empty
 * signals   full */
__device__ __forceinline__ void load_units(const purr__gemm_tma_params_t &params, SharedStorage *shared, int block) {
  Ring ring;
  Unit unit;
  for (int64_t u = blockIdx.x / kCluster; find_unit<Role::kDown>(params.gemm, u, block, &unit);
       u += gridDim.x / kCluster) {
    if (unit.shares && unit.tile.num_rows == 0) continue; /* right of the last column, for both blocks */
    const purr__gemm_t &gemm = params.gemm.problem[unit.tile.problem];
    const purr__gemm_maps_t &maps = params.maps[unit.tile.problem];
    const int boxes = (unit.tile.num_rows + kConsumerRows - 1) / kConsumerRows; /* of A */
    const uint32_t bytes = boxes > 0 ? kStageBytesB + boxes * (kStageBytesA / kConsumers) : 0;
    for (int k = 0; k < gemm.k; k += kStageK) {
      if (threadIdx.x == 0) {
        ptx::mbarrier_wait_acquire(&shared->empty[ring.stage], ring.round ^ 1);
        if (k == 0) shared->tile[ring.stage] = unit.tile;
        ptx::mbarrier_arrive_expect_tx(&shared->full[ring.stage], bytes);
        if (boxes > 0) load_weights<Role::kDown>(maps, shared, ring.stage, k, unit, block);
        for (int i = 0; i < boxes; i++)
          ptx::tma_load_2d(shared->a[ring.stage] + i * (kStageBytesA / kConsumers), &maps.a, &shared->full[ring.stage],
                           k, unit.tile.row + i * kConsumerRows);
      }
      ring.advance();
    }
    __syncwarp();
  }
  if (threadIdx.x == 0) {
    ptx::mbarrier_wait_acquire(&shared->empty[ring.stage], ring.round ^ 1);
    shared->tile[ring.stage].problem = -1;
    ptx::mbarrier_arrive_release(&shared->full[ring.stage]);
  }
}

/* ROLE consumer
 * reads     stages, tiles
 * writes    rows of C; of g and u where wanted
 * waits on  full
 * signals   empty, in both blocks */
template <Role kRole>
__device__ __forceinline__ void multiply_tiles(const purr__gemm_params_t &params, SharedStorage *shared, int consumer) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kWarpgroup / 32;
  const int first_row = consumer * kConsumerRows;
  auto release = [&](int stage) {
    if (lane < kCluster) ptx::mbarrier_arrive_release_cta_at(&shared->empty[stage], lane);
  };
  Ring ring;
  for (;;) {
    ptx::mbarrier_wait_acquire(&shared->full[ring.stage], ring.round);
    const Tile tile = shared->tile[ring.stage];
    if (tile.problem < 0) break;
    const purr__gemm_t &gemm = params.problem[tile.problem];
    const int num_steps = (gemm.k + kStageK - 1) / kStageK;
    if (first_row >= tile.num_rows) {
      for (int step = 0; step < num_steps; step++) {
        ptx::mbarrier_wait_acquire(&shared->full[ring.stage], ring.round);
        __syncwarp(); /* all lanes have read the tile */
        release(ring.stage);
        ring.advance();
      }
      continue;
    }

    /* An accumulator holds two rows of a thread. Their places arrive while the tile is multiplied. */
    RowPlace place[2];
#pragma unroll
    for (int half = 0; half < 2; half++)
      place[half] = target_place(gemm, tile, first_row + warp * 16 + half * 8 + lane / 4);

    float sum[128];
    int previous = 0;
    for (int step = 0; step < num_steps; step++) {
      ptx::mbarrier_wait_acquire(&shared->full[ring.stage], ring.round);
      if (kRole == Role::kGateUp) ptx::fence_proxy_async_shared(); /* cp.async wrote A, the tensor cores read it */
      const uint64_t a = ptx::wgmma_descriptor_128b(ptx::shared_address(shared->a[ring.stage]) + first_row * kRowBytes);
      const uint64_t b = ptx::wgmma_descriptor_128b(ptx::shared_address(shared->b[ring.stage]));
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kStageK / 16; i++) ptx::wgmma_m64n256k16_bf16(sum, a + i * 2, b + i * 2, step + i != 0);
      ptx::wgmma_commit();
      if (step > 0) {
        ptx::wgmma_wait<1>();
        release(previous);
      }
      previous = ring.stage;
      ring.advance();
    }
    ptx::wgmma_wait<0>();
    release(previous);

    RowTarget target[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      ptx::hold_back(place[half].slot);
      target[half] = row_target<kRole>(gemm, tile, first_row + warp * 16 + half * 8 + lane / 4, place[half]);
    }
    /* Groups of 8 columns: sum[4 * group + 2 * half + column of the pair]. */
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int block = 0; block < (kRole == Role::kGateUp ? 4 : 8); block++) {
        float first[4][2], second[4][2];
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
          for (int v = 0; v < 2; v++) {
            first[j][v] = sum[(block * 4 + j) * 4 + half * 2 + v];
            second[j][v] = sum[(block * 4 + j + 16) % 32 * 4 + half * 2 + v];
          }
        if (kRole == Role::kGateUp)
          store_gate_up(gemm, target[half], tile.column + block * 32, first, second);
        else
          store_down(gemm, target[half], tile.column + block * 32, first);
      }
  }
}

/* --------------------------------------------------------------------------------------------------------- kernel */

template <Role kRole>
__device__ __forceinline__ void grouped_gemm(const purr__gemm_tma_params_t &params) {
  extern __shared__ char dynamic_shared[];
  SharedStorage *shared = reinterpret_cast<SharedStorage *>(
      dynamic_shared + (kAlignment - ptx::shared_address(dynamic_shared) % kAlignment) % kAlignment);
  if (params.gemm.status->status != 0) return;

  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; s++) {
      ptx::mbarrier_init(&shared->full[s], kRole == Role::kGateUp ? kWarpgroup + 1 : 1);
      ptx::mbarrier_init(&shared->empty[s], kCluster * kConsumers * kWarpgroup / 32);
    }
    ptx::fence_mbarrier_init();
  }
  __syncwarp();
  ptx::cluster_sync_acq_rel(); /* no block signals one whose barriers are not there */

  const int block = (int)ptx::cluster_block_rank(), warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<kLoaderRegisters>();
    if (kRole == Role::kGateUp)
      gather_units(params, shared, block);
    else if (threadIdx.x < 32)
      load_units(params, shared, block);
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    multiply_tiles<kRole>(params.gemm, shared, warpgroup - 1);
  }
  __syncwarp();
  ptx::cluster_sync_acq_rel(); /* no block leaves while the other may still signal it */
}

#endif

}  // namespace
}  // namespace purr

#ifdef PURR_HAS_WGMMA

/* reads   rows of x, Wg, Wu, the table
 * writes  rows of a; g and u where wanted */
extern "C" __global__ void __cluster_dims__(purr::kCluster, 1, 1) __launch_bounds__(purr::kThreads, 1)
    purr_gate_up_wgmma(const __grid_constant__ purr__gemm_tma_params_t params) {
  purr::grouped_gemm<purr::Role::kGateUp>(params);
}

/* reads   rows of a, Wd, the table
 * writes  rows of y */
extern "C" __global__ void __cluster_dims__(purr::kCluster, 1, 1) __launch_bounds__(purr::kThreads, 1)
    purr_down_wgmma(const __grid_constant__ purr__gemm_tma_params_t params) {
  purr::grouped_gemm<purr::Role::kDown>(params);
}

#endif
