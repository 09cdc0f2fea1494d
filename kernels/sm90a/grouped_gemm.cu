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
 *   loader      finds tiles and fills a ring of stages: weights with TMA; rows of x with cp.async, 16 bytes a thread,
 *               since TMA cannot gather here; rows of a with TMA
 *   consumer 0  rows 0 to 63 of the tile: 64 x 256 accumulators, then their way to memory
 *   consumer 1  rows 64 to 127; its sums have the same parts, since which rows it gets depends on the other tokens
 * The loader runs ahead over tile boundaries, so that the next tile arrives while results are written. A consumer
 * without rows in a tile leaves the tensor cores to the other: an expert's last 64 rows cost half a tile. Every output
 * element is one chain over ascending k. */
#include "sm90a/wgmma.cuh"
#include "staged/tiles.cuh"
#include "sums.cuh"
#include "turn.cuh"

namespace purr {
namespace {

/* ---------------------------------------------------------------------------------------------------------- types */

constexpr int kStageK = 64;
constexpr int kRowBytes = kStageK * 2; /* of one stage: the width of the 128-byte swizzle */
constexpr int kThreads = 384;
constexpr int kWarpgroup = 128;
constexpr int kConsumers = 2;
constexpr int kConsumerRows = kTileRows / kConsumers;
static_assert(kStageK == PURR__MAP_STAGE_K && kConsumerRows == PURR__MAP_ROWS_A, "the boxes of the tensor maps");

constexpr int kCluster = 2;
constexpr int kChunks = kStageK / 8;              /* 16-byte chunks of a row in one stage */
constexpr int kRowsAtOnce = kWarpgroup / kChunks; /* rows that the loader gathers together */
constexpr int kCopies = kTileRows / kRowsAtOnce;  /* of one thread */
constexpr int kStageBytesA = kTileRows * kRowBytes;
constexpr int kWarpRows = 16; /* of a consumer's warp */

/* A kernel: its GEMM. */
template <Role kRole_>
struct Variant {
  static constexpr Role kRole = kRole_;
  static constexpr int kTileWeightRows = 256, kStages = 4;
  static constexpr int kColumns = kTileColumns<kRole, kTileWeightRows>;
  static constexpr int kSums = kTileWeightRows / 2;  /* of a thread */
  static constexpr int kBoxRowsB = PURR__MAP_ROWS_B; /* half of B: one block's share */
  static constexpr int kBoxBytesB = kBoxRowsB * kRowBytes, kStageBytesB = kTileWeightRows * kRowBytes;
  static_assert(kTileWeightRows == 2 * kBoxRowsB, "two boxes of B");
  static constexpr int kStagingColumns = kTileWeightRows / 2; /* what a consumer warp writes out at once */
  /* Registers of a thread: gate-up's epilogue needs more, down's loader. */
  static constexpr int kLoaderRegisters = kRole == Role::kGateUp ? 40 : 72;
  static constexpr int kConsumerRegisters = kRole == Role::kGateUp ? 232 : 216;
  static_assert((kLoaderRegisters + kConsumers * kConsumerRegisters) * kWarpgroup <= 64512, "the register file");
};

template <typename V>
struct SharedStorage {
  char a[V::kStages][kStageBytesA];
  char b[V::kStages][V::kStageBytesB];
  char staging[kConsumers * kWarpgroup / 32][kWarpRows * V::kStagingColumns * 2]; /* of each consumer warp */
  Tile tile[V::kStages];      /* the tile that begins in the stage; problem -1: no more */
  uint64_t full[V::kStages];  /* arrivals: the loader, with the bytes it expects; in gate-up all its threads besides */
  uint64_t empty[V::kStages]; /* arrivals: the consumers' warps of both blocks, when they are done with the stage */
};
constexpr int kAlignment = 1024; /* of the swizzle; dynamic shared memory promises less */

template <typename V>
constexpr int table_shared_bytes() {
#define PURR_KERNEL(entry, role, source, target, arch, threads, shared_bytes, cluster, tile_m, tile_n) \
  if (arch == 90 && tile_m == kTileRows && tile_n == V::kTileWeightRows && threads == kThreads) return shared_bytes;
#include "kernels.def"
#undef PURR_KERNEL
  return 0;
}
template <typename V>
constexpr bool kTableAgrees = sizeof(SharedStorage<V>) + kAlignment == table_shared_bytes<V>();
static_assert(kTableAgrees<Variant<Role::kGateUp>> && kTableAgrees<Variant<Role::kDown>>,
              "kernels.def has another number");

/* Which stage comes next, and in which round. */
template <int kStages>
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

/* The unit-th piece of work of the pair of blocks, and this block's tile of it. Columns are taken two by two; of an
 * expert with m row tiles each such pair of columns has m units: m / 2 for either column, then the odd row tile with
 * both. In an odd last column all row tiles are taken two by two, over the experts' borders, after everything else. A
 * tile without rows only keeps step with the other block's. False when there are not that many units. */
struct Unit {
  Tile tile;
  bool shares; /* both blocks multiply with the same B */
};

__device__ __forceinline__ int num_units(Extent size) {
  return size.rows * (size.columns / 2) + (size.columns % 2 != 0 ? (size.rows + 1) / 2 : 0);
}

template <int kColumns>
__device__ __forceinline__ bool find_unit(const purr__gemm_params_t &params, const Extent (&extent)[2], int u,
                                          int block, Unit *unit) {
  const int problem = u >= num_units(extent[0]);
  if (problem == 1) u -= num_units(extent[0]);
  const Extent size = problem == 0 ? extent[0] : extent[1];
  if (u >= num_units(size)) return false;
  const purr__gemm_t &gemm = params.problem[problem];
  const int column_pairs = size.columns / 2, paired = size.rows * column_pairs;
  Segment segment;
  int row_tile, column;
  if (u < paired) {
    segment = find_segment(gemm, u / column_pairs);
    const int within = u - segment.row_tiles_before * column_pairs;
    const int left = within % segment.row_tiles, row_pairs = segment.row_tiles / 2;
    unit->shares = left < 2 * row_pairs;
    row_tile = unit->shares ? left % row_pairs * 2 + block : segment.row_tiles - 1;
    column = within / segment.row_tiles * 2 + (unit->shares ? left / row_pairs : block);
  } else {
    const int first = (u - paired) * 2, other = min(first + 1, size.rows - 1);
    const int mine = block == 0 ? first : other;
    segment = find_segment(gemm, mine);
    row_tile = first + block - segment.row_tiles_before;
    column = size.columns - 1;
    unit->shares = other != first && find_segment(gemm, first + other - mine).expert == segment.expert;
  }
  unit->tile = tile_of<kColumns>(segment, problem, row_tile, column);
  return true;
}

/* -------------------------------------------------------------------------------------------------------------- roles
 */

/* The copy engine's part of B in one stage. Gate-up: box 0 is of gate, box 1 of up, at the same rows. Down: box 1 are
 * the rows after box 0. */
template <typename V>
__device__ __forceinline__ void load_weights(const purr__gemm_maps_t &maps, SharedStorage<V> *shared, int stage, int k,
                                             const Unit &unit, int block) {
#pragma unroll
  for (int box = 0; box < 2; box++) {
    const int w = V::kRole == Role::kGateUp ? box : 0;
    const purr__tensor_map_t *by_expert = maps.b_by_expert[w];
    const purr__tensor_map_t *map = by_expert != nullptr ? by_expert + unit.tile.expert : &maps.b[w];
    const int row = unit.tile.column + (V::kRole == Role::kGateUp ? 0 : box * V::kBoxRowsB);
    const int expert = by_expert != nullptr ? 0 : unit.tile.expert;
    char *to = shared->b[stage] + box * V::kBoxBytesB;
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
template <typename V>
__device__ __forceinline__ void gather_units(const purr__gemm_tma_params_t &params, SharedStorage<V> *shared,
                                             int block) {
  const int chunk = threadIdx.x % kChunks, row = threadIdx.x / kChunks;
  const uint32_t to = row * kRowBytes + ((chunk ^ (row & 7)) << 4);
  const Extent extent[2] = {extent_of<V::kColumns>(params.gemm, 0), extent_of<V::kColumns>(params.gemm, 1)};
  Ring<V::kStages> ring;
  Unit unit, next;
  int u = blockIdx.x / kCluster;
  for (bool more = find_unit<V::kColumns>(params.gemm, extent, u, block, &unit); more; unit = next) {
    u += gridDim.x / kCluster;
    const purr__gemm_t &gemm = params.gemm.problem[unit.tile.problem];
    const int middle =
        gemm.k / 2 / kStageK * kStageK; /* where the next unit is looked up: with stages full on all sides */
    const char *a[kCopies];             /* this thread's chunk of its rows; NULL = padding */
#pragma unroll
    for (int i = 0; i < kCopies; i++) {
      int r = row + i * kRowsAtOnce;
      a[i] = r < unit.tile.num_rows ? row_address(gemm, gemm.a, unit.tile.row + r) + chunk * 16 : nullptr;
    }
    const bool any = unit.tile.num_rows > 0, half = unit.tile.num_rows <= kConsumerRows;

#pragma unroll 1
    for (int k = 0; k < gemm.k; k += kStageK) {
      ptx::mbarrier_wait_acquire(&shared->empty[ring.stage], ring.round ^ 1);
      if (threadIdx.x == 0) {
        if (k == 0) shared->tile[ring.stage] = unit.tile;
        ptx::mbarrier_arrive_expect_tx(&shared->full[ring.stage], any ? V::kStageBytesB : 0);
        if (any) load_weights<V>(params.maps[unit.tile.problem], shared, ring.stage, k, unit, block);
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
      if (k == middle) more = find_unit<V::kColumns>(params.gemm, extent, u, block, &next);
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

/* ROLE loader of down: one thread.
 * reads     the table, A, B
 * writes    stages, tiles
 * waits on  empty
 * signals   full */
template <typename V>
__device__ __forceinline__ void load_units(const purr__gemm_tma_params_t &params, SharedStorage<V> *shared, int block) {
  const Extent extent[2] = {extent_of<V::kColumns>(params.gemm, 0), extent_of<V::kColumns>(params.gemm, 1)};
  Ring<V::kStages> ring;
  Unit unit, next;
  int u = blockIdx.x / kCluster;
  for (bool more = find_unit<V::kColumns>(params.gemm, extent, u, block, &unit); more; unit = next) {
    u += gridDim.x / kCluster;
    const purr__gemm_t &gemm = params.gemm.problem[unit.tile.problem];
    const purr__gemm_maps_t &maps = params.maps[unit.tile.problem];
    const int boxes = (unit.tile.num_rows + kConsumerRows - 1) / kConsumerRows; /* of A */
    const uint32_t bytes = boxes > 0 ? V::kStageBytesB + boxes * (kStageBytesA / kConsumers) : 0;
    const int middle = gemm.k / 2 / kStageK * kStageK; /* as in gather_units */
#pragma unroll 1
    for (int k = 0; k < gemm.k; k += kStageK) {
      ptx::mbarrier_wait_acquire(&shared->empty[ring.stage], ring.round ^ 1);
      if (k == 0) shared->tile[ring.stage] = unit.tile;
      ptx::mbarrier_arrive_expect_tx(&shared->full[ring.stage], bytes);
      if (boxes > 0) load_weights<V>(maps, shared, ring.stage, k, unit, block);
      if (boxes > 0) ptx::tma_load_2d(shared->a[ring.stage], &maps.a, &shared->full[ring.stage], k, unit.tile.row);
      if (boxes > 1)
        ptx::tma_load_2d(shared->a[ring.stage] + kStageBytesA / kConsumers, &maps.a, &shared->full[ring.stage], k,
                         unit.tile.row + kConsumerRows);
      ring.advance();
      if (k == middle) more = find_unit<V::kColumns>(params.gemm, extent, u, block, &next);
    }
  }
  ptx::mbarrier_wait_acquire(&shared->empty[ring.stage], ring.round ^ 1);
  shared->tile[ring.stage].problem = -1;
  ptx::mbarrier_arrive_release(&shared->full[ring.stage]);
}

/* Where a chunk of a row lies in staging memory: 8 rows of one chunk in 8 different banks. */
__device__ __forceinline__ int staged_chunk(int row, int chunk) { return chunk ^ (row & 7); }

/* A consumer warp's 16 rows of kStagingColumns, by way of its staging memory: accumulators hold 4 bytes of a row here
 * and there, memory wants whole lines. pair_of(group, half) is the BF16 pair of a group of 8 columns and a half of the
 * rows; change(r, columns) is what 8 columns of row r become. Lanes r and r + 16 give the address of row r; NULL = not
 * written. */
template <typename V, typename PairOf, typename Change>
__device__ __forceinline__ void store_block(char *staging, PairOf pair_of, const char *row, int column, int n,
                                            Change change) {
  const int lane = threadIdx.x % 32;
  constexpr int kPitch = V::kStagingColumns * 2;  /* bytes */
  constexpr int kGroups = V::kStagingColumns / 8; /* of columns: 16-byte chunks of a row */
  static_assert(kGroups == 16, "half a warp writes a row");
  const uint32_t base = ptx::shared_address(staging);
  const int to_row = lane % 16;
#pragma unroll
  for (int group = 0; group < kGroups; group += 2)
    ptx::stmatrix_x4(base + to_row * kPitch + (staged_chunk(to_row, group + lane / 16) << 4), pair_of(group, 0),
                     pair_of(group, 1), pair_of(group + 1, 0), pair_of(group + 1, 1));
  __syncwarp();
  const int chunk = lane % 16;
  const bool inside = column + chunk * 8 < n;
#pragma unroll
  for (int i = 0; i < kWarpRows / 2; i++) {
    const int from_row = i * 2 + lane / 16;
    char *to = reinterpret_cast<char *>(__shfl_sync(0xFFFFFFFFu, reinterpret_cast<uint64_t>(row), from_row));
    const uint4 v =
        change(from_row, ptx::ld_shared_16(base + from_row * kPitch + (staged_chunk(from_row, chunk) << 4)));
    if (inside && to != nullptr) ptx::st_16(to + (column + chunk * 8) * 2, v);
  }
  __syncwarp();
}

/* A tile in shared memory, read by the lane that will release its stage. */
__device__ __forceinline__ Tile read_tile(const Tile &from, int lane) {
  Tile tile;
  const int *words = reinterpret_cast<const int *>(&from);
  int *own = reinterpret_cast<int *>(&tile);
#pragma unroll
  for (int i = 0; i < (int)(sizeof(Tile) / sizeof(int)); i++)
    own[i] = __shfl_sync(0xFFFFFFFFu, lane == 0 ? words[i] : 0, 0);
  return tile;
}

/* ROLE consumer
 * reads     stages, tiles
 * writes    rows of C; of g and u where wanted
 * waits on  full
 * signals   empty, in both blocks */
template <typename V>
__device__ __forceinline__ void multiply_tiles(const purr__gemm_params_t &params, SharedStorage<V> *shared, int block,
                                               int consumer) {
  constexpr Role kRole = V::kRole;
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kWarpgroup / 32;
  const int first_row = consumer * kConsumerRows;
  /* Called when all lanes are done with the stage. */
  auto release = [&](int stage) {
    if (lane == 0) ptx::mbarrier_arrive_release(&shared->empty[stage]);
    if (lane == 1) ptx::mbarrier_arrive_release_cta_at(&shared->empty[stage], block ^ 1);
  };
  Ring<V::kStages> ring;
  auto multiply_steps = [&](int num, float(&d)[V::kSums]) {
    const SumParts<kStageK> parts = {num, false};
    auto give_back = [&](int done) {
      const float factor = parts.factor_at(done);
#pragma unroll
      for (int i = 0; i < V::kSums; i++) {
        ptx::hold_back(d[i]); /* it is there only now */
        d[i] *= factor;
      }
    };
    int previous = 0;
#pragma unroll 2
    for (int step = 0; step < num; step++) {
      ptx::mbarrier_wait_acquire(&shared->full[ring.stage], ring.round);
      if (kRole == Role::kGateUp) ptx::fence_proxy_async_shared(); /* cp.async wrote A, the tensor cores read it */
      const uint64_t a = ptx::wgmma_descriptor_128b(ptx::shared_address(shared->a[ring.stage]) + first_row * kRowBytes);
      const uint64_t b = ptx::wgmma_descriptor_128b(ptx::shared_address(shared->b[ring.stage]));
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kStageK / 16; i++)
        ptx::wgmma_m64nNk16_bf16<V::kTileWeightRows>(d, a + i * 2, b + i * 2, step + i != 0);
      ptx::wgmma_commit();
      if (step > 0) {
        ptx::wgmma_wait<1>();
        release(previous);
      }
      previous = ring.stage;
      ring.advance();
      if (parts.ends_at(step + 1)) {
        ptx::wgmma_wait<0>();
        give_back(step + 1);
      }
    }
    ptx::wgmma_wait<0>();
    release(previous);
    give_back(num);
  };
  for (;;) {
    ptx::mbarrier_wait_acquire(&shared->full[ring.stage], ring.round);
    const Tile tile = read_tile(shared->tile[ring.stage], lane);
    if (tile.problem < 0) break;
    const purr__gemm_t &gemm = params.problem[tile.problem];
    const int num_steps = (gemm.k + kStageK - 1) / kStageK;
    if (first_row >= tile.num_rows) {
      for (int step = 0; step < num_steps; step++) {
        ptx::mbarrier_wait_acquire(&shared->full[ring.stage], ring.round);
        __syncwarp(); /* no lane still waits for this round when the next begins */
        release(ring.stage);
        ring.advance();
      }
      continue;
    }

    /* This lane's row, and its place, which arrives while the tile is multiplied. */
    const int row_in_tile = first_row + warp * kWarpRows + lane % 16;
    RowPlace place = kRole == Role::kDown ? target_place(gemm, tile, row_in_tile) : RowPlace{};

    float sum[V::kSums];
    multiply_steps(num_steps, sum);

    /* Groups of 8 columns: sum[4 * group + 2 * half + column of the pair]. */
    char *staging = shared->staging[consumer * (kWarpgroup / 32) + warp];
    ptx::hold_back(place.slot);
    ptx::hold_back(place.weight);
    const int end = tile.num_rows;
    auto address_of = [&](const purr__rows_t &rows, int64_t rows_end) -> const char * {
      const int row = tile.row + row_in_tile;
      return row_in_tile < end && row < rows_end ? row_address(gemm, rows, row, place) : nullptr;
    };
    auto sum_of = [&](int group, int half) { /* of all the tile's weight rows */
                                             const float *value = sum + group * 4 + half * 2;
                                             return ptx::pack_bf16x2(value[0], value[1]);
    };
    auto upper_sum_of = [&](int group, int half) { return sum_of(group + V::kStagingColumns / 8, half); };
    if (kRole == Role::kGateUp) {
      const float limit = clamp_limit(gemm);
      auto a_of = [&](int group, int half) {
        return swiglu_pair(sum_of(group, half), upper_sum_of(group, half), limit);
      };
      auto same = [](int, uint4 v) { return v; };
      store_block<V>(staging, a_of, address_of(gemm.c, INT64_MAX), tile.column, gemm.n, same);
      if (gemm.saved[0].data != nullptr)
        store_block<V>(staging, sum_of, address_of(gemm.saved[0], gemm.num_saved_rows), tile.column, gemm.n, same);
      if (gemm.saved[1].data != nullptr)
        store_block<V>(staging, upper_sum_of, address_of(gemm.saved[1], gemm.num_saved_rows), tile.column, gemm.n,
                       same);
    } else {
      const char *row = address_of(gemm.c, INT64_MAX);
      auto weigh = [&](int r, uint4 v) {
        const float weight = __shfl_sync(0xFFFFFFFFu, place.weight, r);
        return gemm.slot_weights != nullptr ? weighted(weight, v) : v;
      };
      store_block<V>(staging, sum_of, row, tile.column, gemm.n, weigh);
      store_block<V>(staging, upper_sum_of, row, tile.column + V::kStagingColumns, gemm.n, weigh);
    }
  }
}

/* --------------------------------------------------------------------------------------------------------- kernel */

template <typename V>
__device__ __forceinline__ void grouped_gemm(const purr__gemm_tma_params_t &params) {
  constexpr Role kRole = V::kRole;
  char *dynamic_shared = ptx::dynamic_shared<char>();
  SharedStorage<V> *shared = reinterpret_cast<SharedStorage<V> *>(
      dynamic_shared + (kAlignment - ptx::shared_address(dynamic_shared) % kAlignment) % kAlignment);
  if (!turn::owns(params.gemm.turn) || params.gemm.status->status != 0) return;

  if (threadIdx.x == 0) {
    for (int s = 0; s < V::kStages; s++) {
      ptx::mbarrier_init(&shared->full[s], kRole == Role::kGateUp ? kWarpgroup + 1 : 1);
      ptx::mbarrier_init(&shared->empty[s], kCluster * kConsumers * kWarpgroup / 32);
    }
    ptx::fence_mbarrier_init();
  }
  __syncwarp();
  ptx::cluster_sync_acq_rel(); /* no block signals one whose barriers are not there */

  const int block = (int)ptx::cluster_block_rank(), warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<V::kLoaderRegisters>();
    if (kRole == Role::kGateUp)
      gather_units<V>(params, shared, block);
    else if (threadIdx.x == 0)
      load_units<V>(params, shared, block);
  } else {
    ptx::setmaxnreg_inc<V::kConsumerRegisters>();
    multiply_tiles<V>(params.gemm, shared, block, warpgroup - 1);
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
  purr::grouped_gemm<purr::Variant<purr::Role::kGateUp>>(params);
}

/* reads   rows of a, Wd, the table
 * writes  rows of y */
extern "C" __global__ void __cluster_dims__(purr::kCluster, 1, 1) __launch_bounds__(purr::kThreads, 1)
    purr_down_wgmma(const __grid_constant__ purr__gemm_tma_params_t params) {
  purr::grouped_gemm<purr::Variant<purr::Role::kDown>>(params);
}

#endif
