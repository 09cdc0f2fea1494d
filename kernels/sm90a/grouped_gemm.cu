/* SPDX-License-Identifier: Apache-2.0
 *
 * The grouped GEMMs of the staged backend for H100 and H200: wgmma m64n256k16, weights through the copy engine.
 * Same tiles and numbering as staged/grouped_gemm.cu:
 *   purr_gate_up_wgmma  a = bf16(silu(g) * u), g = bf16(x . Wg), u = bf16(x . Wu), rows of x gathered
 *   purr_down_wgmma     y = bf16(a . Wd), rows scattered to the slots they came from
 *
 * Persistent blocks, one an SM, of three warpgroups:
 *   loader      registers  40  fills a ring of stages: weights with TMA; rows of x with cp.async, 16 bytes a thread,
 *                              since TMA cannot gather here; rows of a with TMA
 *   consumer 0  registers 232  rows  0 to  63 of the tile: 64 x 256 accumulators, then their way to memory
 *   consumer 1  registers 232  rows 64 to 127
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
constexpr int kLoaderRegisters = 40, kConsumerRegisters = 232;
static_assert((kLoaderRegisters + kConsumers * kConsumerRegisters) * kWarpgroup <= 64512, "the register file");
static_assert(kStageK == PURR__MAP_STAGE_K && kConsumerRows == PURR__MAP_ROWS_A, "the boxes of the tensor maps");

constexpr int kChunks = kStageK / 8;              /* 16-byte chunks of a row in one stage */
constexpr int kRowsAtOnce = kWarpgroup / kChunks; /* rows that the loader gathers together */
constexpr int kCopies = kTileRows / kRowsAtOnce;  /* of one thread */
constexpr int kStageBytesA = kTileRows * kRowBytes, kStageBytesB = kTileWeightRows * kRowBytes;

struct SharedStorage {
  char a[kStages][kStageBytesA];
  char b[kStages][kStageBytesB];
  uint64_t full[kStages];  /* arrivals: the copy engine's bytes are announced; gate-up also the gathering threads */
  uint64_t empty[kStages]; /* arrivals: the consumers' warps, when they are done with the stage */
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

/* ---------------------------------------------------------------------------------------------------------- roles */

/* The copy engine's part of one stage of B. */
template <Role kRole>
__device__ __forceinline__ void load_weights(const purr__gemm_maps_t &maps, SharedStorage *shared, int stage, int k,
                                             const Tile &tile) {
  constexpr int kWeights = kRole == Role::kGateUp ? 2 : 1;
#pragma unroll
  for (int w = 0; w < kWeights; w++) {
    const purr__tensor_map_t *by_expert = maps.b_by_expert[w];
    ptx::tma_load_3d(shared->b[stage] + w * (kStageBytesB / kWeights),
                     by_expert != nullptr ? by_expert + tile.expert : &maps.b[w], &shared->full[stage], k, tile.column,
                     by_expert != nullptr ? 0 : tile.expert);
  }
}

/* ROLE loader of gate-up: all threads gather A, the first one also starts B.
 * reads     the table, A, B
 * writes    stages
 * waits on  empty
 * signals   full */
__device__ __forceinline__ void gather_tiles(const purr__gemm_tma_params_t &params, SharedStorage *shared) {
  const int chunk = threadIdx.x % kChunks, row = threadIdx.x / kChunks;
  const uint32_t to = row * kRowBytes + ((chunk ^ (row & 7)) << 4);
  Ring ring;
  Tile tile;
  for (int64_t t = blockIdx.x; find_tile<Role::kGateUp>(params.gemm, t, &tile); t += gridDim.x) {
    const purr__gemm_t &gemm = params.gemm.problem[tile.problem];
    const char *a[kCopies]; /* this thread's chunk of its rows; NULL = padding */
#pragma unroll
    for (int i = 0; i < kCopies; i++) {
      int r = row + i * kRowsAtOnce;
      a[i] = r < tile.num_rows ? row_address(gemm, gemm.a, tile.row + r) + chunk * 16 : nullptr;
    }
    const bool half = tile.num_rows <= kConsumerRows; /* nobody reads the other rows of A */

    for (int k = 0; k < gemm.k; k += kStageK) {
      ptx::mbarrier_wait_acquire(&shared->empty[ring.stage], ring.round ^ 1);
      if (threadIdx.x == 0) {
        ptx::mbarrier_arrive_expect_tx(&shared->full[ring.stage], kStageBytesB);
        load_weights<Role::kGateUp>(params.maps[tile.problem], shared, ring.stage, k, tile);
      }
      const bool inside = k + chunk * 8 < gemm.k;
      const uint32_t to_a = ptx::shared_address(shared->a[ring.stage]) + to;
#pragma unroll
      for (int i = 0; i < kCopies; i++) {
        if (i >= kCopies / 2 && half) break;
        bool valid = inside && a[i] != nullptr;
        ptx::cp_async_16_zfill(to_a + i * kRowsAtOnce * kRowBytes, valid ? a[i] + k * 2 : gemm.a.data, valid);
      }
      ptx::cp_async_mbarrier_arrive_noinc(&shared->full[ring.stage]);
      ring.advance();
    }
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
}

/* ROLE loader of down: one thread; the others of its warp help to find tiles.
 * reads     the table, A, B
 * writes    stages
 * waits on  empty
 * signals   full */
__device__ __forceinline__ void load_tiles(const purr__gemm_tma_params_t &params, SharedStorage *shared) {
  Ring ring;
  Tile tile;
  for (int64_t t = blockIdx.x; find_tile<Role::kDown>(params.gemm, t, &tile); t += gridDim.x) {
    const purr__gemm_t &gemm = params.gemm.problem[tile.problem];
    const purr__gemm_maps_t &maps = params.maps[tile.problem];
    const int boxes = tile.num_rows <= kConsumerRows ? 1 : kConsumers; /* of A */
    for (int k = 0; k < gemm.k; k += kStageK) {
      if (threadIdx.x == 0) {
        ptx::mbarrier_wait_acquire(&shared->empty[ring.stage], ring.round ^ 1);
        ptx::mbarrier_arrive_expect_tx(&shared->full[ring.stage], kStageBytesB + boxes * (kStageBytesA / kConsumers));
        load_weights<Role::kDown>(maps, shared, ring.stage, k, tile);
        for (int i = 0; i < boxes; i++)
          ptx::tma_load_2d(shared->a[ring.stage] + i * (kStageBytesA / kConsumers), &maps.a, &shared->full[ring.stage],
                           k, tile.row + i * kConsumerRows);
      }
      ring.advance();
    }
    __syncwarp();
  }
}

/* ROLE consumer
 * reads     stages
 * writes    rows of C; of g and u where wanted
 * waits on  full
 * signals   empty */
template <Role kRole>
__device__ __forceinline__ void multiply_tiles(const purr__gemm_params_t &params, SharedStorage *shared, int consumer) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kWarpgroup / 32;
  const int first_row = consumer * kConsumerRows;
  Ring ring;
  Tile tile;
  for (int64_t t = blockIdx.x; find_tile<kRole>(params, t, &tile); t += gridDim.x) {
    const purr__gemm_t &gemm = params.problem[tile.problem];
    const int num_steps = (gemm.k + kStageK - 1) / kStageK;
    if (first_row >= tile.num_rows) {
      for (int step = 0; step < num_steps; step++) {
        ptx::mbarrier_wait_acquire(&shared->full[ring.stage], ring.round);
        if (lane == 0) ptx::mbarrier_arrive_release(&shared->empty[ring.stage]);
        ring.advance();
      }
      continue;
    }

    RowTarget target[2]; /* an accumulator holds two rows of a thread */
#pragma unroll
    for (int half = 0; half < 2; half++)
      target[half] = row_target<kRole>(gemm, tile, first_row + warp * 16 + half * 8 + lane / 4);

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
        if (lane == 0) ptx::mbarrier_arrive_release(&shared->empty[previous]);
      }
      previous = ring.stage;
      ring.advance();
    }
    ptx::wgmma_wait<0>();
    if (lane == 0) ptx::mbarrier_arrive_release(&shared->empty[previous]);

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
      ptx::mbarrier_init(&shared->empty[s], kConsumers * kWarpgroup / 32);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();

  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<kLoaderRegisters>();
    if (kRole == Role::kGateUp)
      gather_tiles(params, shared);
    else if (threadIdx.x < 32)
      load_tiles(params, shared);
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    multiply_tiles<kRole>(params.gemm, shared, warpgroup - 1);
  }
}

#endif

}  // namespace
}  // namespace purr

#ifdef PURR_HAS_WGMMA

/* reads   rows of x, Wg, Wu, the table
 * writes  rows of a; g and u where wanted */
extern "C" __global__ void __launch_bounds__(purr::kThreads, 1)
    purr_gate_up_wgmma(const __grid_constant__ purr__gemm_tma_params_t params) {
  purr::grouped_gemm<purr::Role::kGateUp>(params);
}

/* reads   rows of a, Wd, the table
 * writes  rows of y */
extern "C" __global__ void __launch_bounds__(purr::kThreads, 1)
    purr_down_wgmma(const __grid_constant__ purr__gemm_tma_params_t params) {
  purr::grouped_gemm<purr::Role::kDown>(params);
}

#endif
