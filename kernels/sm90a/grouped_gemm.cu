/* SPDX-License-Identifier: Apache-2.0
 *
 * The grouped GEMMs of the staged backend for H100 and H200: wgmma m64n256k16, operands copied by a warpgroup of its
 * own. Same roles, parameters and numbering of tiles as staged/grouped_gemm.cu: purr_gate_up_wgmma  a = bf16(silu(g) *
 * u), g = bf16(x . Wg), u = bf16(x . Wu), rows of x gathered purr_down_wgmma     y = bf16(a . Wd), rows scattered to
 * the slots they came from
 *
 * Persistent blocks, one an SM, of three warpgroups:
 *   loader      registers  72  copies rows of A and B into a ring of stages with cp.async, 16 bytes a thread
 *   consumer 0  registers 216  rows  0 to  63 of the tile: 64 x 256 accumulators, then their way to memory
 *   consumer 1  registers 216  rows 64 to 127
 * The loader runs ahead over tile boundaries, so that the next tile arrives while results are written. A consumer
 * without rows in a tile leaves the tensor cores to the other: an expert's last 64 rows cost half a tile. Every output
 * element is one chain over ascending k. */
#include "staged/tiles.cuh"

namespace purr {
namespace {

/* ------------------------------------------------------------------------------------------------------------- types
 */

constexpr int kStageK = 64, kStages = 4;
constexpr int kRowBytes = kStageK * 2; /* of one stage: the width of the 128-byte swizzle */
constexpr int kThreads = 384;
constexpr int kWarpgroup = 128;
constexpr int kConsumers = 2;
constexpr int kConsumerRows = kTileRows / kConsumers;
constexpr int kLoaderRegisters = 72, kConsumerRegisters = 216;
static_assert((kLoaderRegisters + kConsumers * kConsumerRegisters) * kWarpgroup <= 64512, "the register file");

constexpr int kChunks = kStageK / 8;              /* 16-byte chunks of a row in one stage */
constexpr int kRowsAtOnce = kWarpgroup / kChunks; /* rows that the loader copies together */
constexpr int kCopiesA = kTileRows / kRowsAtOnce, kCopiesB = kTileWeightRows / kRowsAtOnce; /* of one thread */

struct SharedStorage {
  char a[kStages][kTileRows * kRowBytes];
  char b[kStages][kTileWeightRows * kRowBytes];
  uint64_t full[kStages];  /* arrivals: the loader's threads, when their copies into the stage are done */
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
static_assert(sizeof(SharedStorage) + kAlignment <= table_shared_bytes() &&
                  sizeof(SharedStorage) + kAlignment + 128 > table_shared_bytes(),
              "kernels.def has another number");

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

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* -------------------------------------------------------------------------------------------------------------- roles
 */

/* ROLE loader
 * reads     the table, A, B
 * writes    stages
 * waits on  empty
 * signals   full */
template <Role kRole>
__device__ __forceinline__ void load_tiles(const purr__gemm_params_t &params, SharedStorage *shared) {
  const int chunk = threadIdx.x % kChunks, row = threadIdx.x % kWarpgroup / kChunks;
  const uint32_t to = row * kRowBytes + ((chunk ^ (row & 7)) << 4);
  Ring ring;
  Tile tile;
  for (int64_t t = blockIdx.x; find_tile<kRole>(params, t, &tile); t += gridDim.x) {
    const purr__gemm_t &gemm = params.problem[tile.problem];

    /* This thread's chunk of its rows: all of A, the first of each weight. */
    const char *a[kCopiesA];
#pragma unroll
    for (int i = 0; i < kCopiesA; i++) {
      int r = row + i * kRowsAtOnce;
      a[i] = r < tile.num_rows ? row_address(gemm, gemm.a, tile.row + r) + chunk * 16 : nullptr;
    }
    constexpr int kWeights = kRole == Role::kGateUp ? 2 : 1;
    const char *b[kWeights];
    int64_t b_step[kWeights];
#pragma unroll
    for (int w = 0; w < kWeights; w++) {
      b[w] = weight_address(gemm.b[w], tile.expert) + (tile.column + row) * gemm.b[w].row_stride * 2 + chunk * 16;
      b_step[w] = gemm.b[w].row_stride * 2 * kRowsAtOnce;
    }
    const int b_rows = gemm.n - tile.column - row;
    const bool half = tile.num_rows <= kConsumerRows; /* nobody reads the other rows of A */

    for (int k = chunk * 8; k < gemm.k + chunk * 8; k += kStageK) {
      const bool inside = k < gemm.k;
      ptx::mbarrier_wait_acquire(&shared->empty[ring.stage], ring.round ^ 1);
      const uint32_t to_a = ptx::shared_address(shared->a[ring.stage]) + to;
      const uint32_t to_b = ptx::shared_address(shared->b[ring.stage]) + to;
#pragma unroll
      for (int i = 0; i < kCopiesA; i++) {
        if (i >= kCopiesA / 2 && half) break;
        bool valid = inside && a[i] != nullptr;
        ptx::cp_async_16_zfill(to_a + i * kRowsAtOnce * kRowBytes, valid ? a[i] : b[0], valid);
        if (a[i] != nullptr) a[i] += kRowBytes;
      }
#pragma unroll
      for (int w = 0; w < kWeights; w++) {
        const char *from = b[w];
#pragma unroll
        for (int i = 0; i < kCopiesB / kWeights; i++) {
          bool valid = inside && i * kRowsAtOnce < b_rows;
          ptx::cp_async_16_zfill(to_b + (w * (kCopiesB / kWeights) + i) * kRowsAtOnce * kRowBytes,
                                 valid ? from : params.problem[tile.problem].b[0].data, valid);
          from += b_step[w];
        }
        b[w] += kRowBytes;
      }
      ptx::cp_async_mbarrier_arrive_noinc(&shared->full[ring.stage]);
      ring.advance();
    }
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
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
      ptx::fence_proxy_async_shared(); /* cp.async wrote it, the tensor cores read it */
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

/* ------------------------------------------------------------------------------------------------------------- kernel
 */

template <Role kRole>
__device__ __forceinline__ void grouped_gemm(const purr__gemm_params_t &params) {
  extern __shared__ char dynamic_shared[];
  SharedStorage *shared = reinterpret_cast<SharedStorage *>(
      dynamic_shared + (kAlignment - ptx::shared_address(dynamic_shared) % kAlignment) % kAlignment);
  if (params.status->status != 0) return;

  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; s++) {
      ptx::mbarrier_init(&shared->full[s], kWarpgroup);
      ptx::mbarrier_init(&shared->empty[s], kConsumers * kWarpgroup / 32);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();

  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<kLoaderRegisters>();
    load_tiles<kRole>(params, shared);
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    multiply_tiles<kRole>(params, shared, warpgroup - 1);
  }
}

#endif

}  // namespace
}  // namespace purr

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* reads   rows of x, Wg, Wu, the table
 * writes  rows of a; g and u where wanted */
extern "C" __global__ void __launch_bounds__(purr::kThreads, 1)
    purr_gate_up_wgmma(const __grid_constant__ purr__gemm_params_t params) {
  purr::grouped_gemm<purr::Role::kGateUp>(params);
}

/* reads   rows of a, Wd, the table
 * writes  rows of y */
extern "C" __global__ void __launch_bounds__(purr::kThreads, 1)
    purr_down_wgmma(const __grid_constant__ purr__gemm_params_t params) {
  purr::grouped_gemm<purr::Role::kDown>(params);
}

#endif
