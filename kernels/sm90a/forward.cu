/* SPDX-License-Identifier: Apache-2.0
 *
 * The forward megakernel for H100 and H200: everything between the schedule and the sum over slots in one launch.
 * Blocks, one an SM, come in pairs (clusters of two) that take units from one list, in its order (purr__unit_t): a tile
 * of rows times 128 weight rows for each block. Weights are wgmma's A, rows of tokens its B, whose number steps by 8.
 *
 *   gather   rows of x to the order of the table, ahead of the multiplying
 *   gate-up  64 rows of gate and 64 of up, interleaved by eights, times the tile: g and u of one element meet in one
 *            thread, and a = bf16(silu(g) * u) goes to memory
 *   down     128 rows of down times the tile, once all of the tile's a is there: y goes to its slots
 *
 * Three warpgroups a block:
 *   loader     one thread: units, weights, rows of tokens; half of a tile's rows, for both blocks of the pair
 *   consumers  two warpgroups of 64 weight rows; each leaves its results in staging memory and goes on
 *   writers    three warps: staging memory to where the rows belong; meanwhile rows of x to their experts
 *
 * With kPeers rows of x are read from the ranks that have them, and y is written to the ranks that want it. Some blocks
 * may then do nothing but pull rows (forward_pull.cuh); nobody waits for another rank, barriers around the launch do.
 * x as it is gathered, and a, may lie in a ring.
 *
 * Units are taken in order by blocks that run, and a unit waits only for earlier ones. It waits for rows of x too,
 * which are dealt to blocks: the launch is cooperative, so all of them are resident. Every output element is one
 * chain over ascending k. */
#include "columns.cuh"
#include "forward_gather.cuh"
#include "forward_pull.cuh"
#include "forward_types.cuh"
#include "staged/tiles.cuh"
#include "sums.cuh"
#include "trace.cuh"
#include "turn.cuh"
#include "wgmma.cuh"

namespace purr {
namespace {

#ifdef PURR_HAS_WGMMA

/* -------------------------------------------------------------------------------------------------------------- roles
 */

/* The next unit, for a whole warp or for one thread. */
template <typename V>
__device__ __forceinline__ purr__unit_t next_unit(SharedStorage<V> *shared, Turns<kUnits> &turn, bool for_warp = true) {
  ptx::mbarrier_wait_acquire(&shared->unit_full[turn.at()], turn.round());
  const purr__unit_t unit = to_unit(shared->unit[turn.at()]);
  if (for_warp) __syncwarp();
  if (!for_warp || threadIdx.x % 32 == 0) ptx::mbarrier_arrive_release_cta_at(&shared->unit_empty[turn.at()], 0);
  turn.advance();
  return unit;
}

/* ROLE loader, in the first block also of units: one thread. Each block loads its own weights, and every second box of
 * the tokens for both.
 * reads     the list of units, weights, x as it was gathered, a
 * writes    stages; tokens in both blocks' stages; units of both blocks
 * waits on  empty, which both blocks' consumers signal; unit_empty; the tile's rows of x, or all of its a
 * signals   full of both blocks; unit_full */
template <typename V>
__device__ __forceinline__ void load(const purr__forward_params_t &params, SharedStorage<V> *shared, int block) {
  const bool leads = block == 0;
  const int num_units = params.order.sync->num_units;
  Turns<V::kStages> stage;
  Turns<kUnits> turn, next;
  trace::Tracer<V::kTraces> tracer(params.trace, 0, PURR__TRACE_ROLE_LOADER, true);
  auto claim = [&]() { return atomicAdd(&params.order.sync->next_unit, 1); };
  auto look_up = [&](int u) {
    return u < num_units ? *reinterpret_cast<const int4 *>(params.order.units + u)
                         : make_int4(0, 0, PURR__UNIT_END << 16, 0);
  };
  auto announce = [&](int4 unit) {
    ptx::mbarrier_arrive_expect_tx(&shared->unit_full[next.at()], sizeof(int4));
    if (leads) {
      ptx::mbarrier_wait_acquire(&shared->unit_empty[next.at()], next.round() ^ 1);
      for (int b = 0; b < kCluster; b++)
        ptx::st_async_16(&shared->unit[next.at()], &shared->unit_full[next.at()], b, unit);
    }
    next.advance();
  };
  int4 following = make_int4(0, 0, 0, 0);
  if (leads) following = look_up(claim());
  announce(following);
  for (;;) {
    const purr__unit_t unit = next_unit(shared, turn, false);
    if (unit.kind == PURR__UNIT_END) break;
    const bool gate_up = is_gate_up(unit.kind), of_shared = is_shared(unit.kind);
    const purr__tensor_map_t *by_expert = of_shared ? nullptr
                                          : gate_up ? params.gate_up_by_expert
                                                    : params.down_by_expert;
    const purr__tensor_map_t *map = by_expert != nullptr ? by_expert + unit.expert
                                    : of_shared          ? (gate_up ? &params.shared_gate_up : &params.shared_down)
                                                         : (gate_up ? &params.gate_up : &params.down);
    if (by_expert != nullptr) ptx::fence_proxy_tensormap_acquire_sys(map);
    const int expert = by_expert != nullptr ? 0 : unit.expert;
    const int row = (unit.column_pair * kCluster + block) * PURR__UNIT_WEIGHT_ROWS;
    const int boxes = (unit.num_rows + kBoxRows - 1) / kBoxRows;
    const purr__tensor_map_t *tokens =
        of_shared ? (gate_up ? params.x_tokens : params.shared_a) : (gate_up ? params.x_ring : params.a);
    const int first_token = of_shared ? unit.row : ring_row<V>(params, unit.tile, unit.row);
    const int large_boxes = unit.num_rows / kLargeBoxRows, small_begin = large_boxes * kLargeBoxRows;
    const purr__unit_tile_sync_t *tile = PURR__UNIT_TILE_SYNC(params.order.sync) + unit.tile;
    const int32_t *counter = gate_up ? &tile->rows_there : &tile->gate_up_done;
    const int expected = !gate_up ? kCluster * kWriterWarps *
                                        (of_shared ? params.order.shared_gate_up_pairs : params.order.gate_up_pairs)
                         : of_shared ? 0
                                     : unit.num_rows;
    const int steps = num_steps(params, unit.kind);
    /* The unit after this one is asked for, looked up and announced where the answers have had time to come. */
    const int look_at = min(steps - 1, V::kStages + 1), announce_at = min(steps - 1, V::kStages + 3);
    int u = 0;
    auto load_weights = [&](int s) {
      const Turns<V::kStages> to = {stage.count + s};
      ptx::mbarrier_wait_acquire(&shared->empty[to.at()], to.round() ^ 1);
      ptx::mbarrier_arrive_expect_tx(&shared->full[to.at()], kWeightBytes + boxes * kBoxBytes);
      if (gate_up)
        ptx::tma_load_5d(shared->weights[to.at()], map, &shared->full[to.at()], s * kStageK, 0, 0,
                         row / (2 * PURR__MAP_ROWS_INTERLEAVED), expert);
      else
        ptx::tma_load_3d(shared->weights[to.at()], map, &shared->full[to.at()], s * kStageK, row, expert);
      if (leads && s == 0) u = claim();
      if (leads && s == look_at) following = look_up(u);
      if (s == announce_at) announce(following);
    };
    auto load_tokens = [&](int s) {
      const Turns<V::kStages> to = {stage.count + s};
      auto load_box = [&](int first_row, const purr__tensor_map_t *box) {
        ptx::tma_load_2d_multicast(shared->tokens[to.at()] + first_row * kRowBytes, box, &shared->full[to.at()],
                                   s * kStageK, first_token + first_row, kBothBlocks);
      };
      for (int r = block * kLargeBoxRows; r < small_begin; r += kCluster * kLargeBoxRows) load_box(r, &tokens[1]);
      for (int r = small_begin + block * kBoxRows; r < unit.num_rows; r += kCluster * kBoxRows) load_box(r, &tokens[0]);
    };
    /* Weights depend on nothing: they go ahead of the tokens, as far as there are stages. */
    int ahead = 0;
    bool there = expected == 0 || ptx::ld_acquire_gpu(counter) >= expected;
    for (; !there && ahead < min(steps, V::kStages); there = ptx::ld_acquire_gpu(counter) >= expected)
      load_weights(ahead++);
    const auto waiting = tracer.begin();
    if (!there) wait_for(params, counter, expected, gate_up ? kSiteGateUp : kSiteDown);
    ptx::fence_proxy_async_global();
    tracer.end_if_long(waiting, PURR__TRACE_WAIT_DEPENDENCY, unit.expert, unit.row, unit.column_pair);
    const auto loading = tracer.begin();
    for (int s = 0; s < ahead; s++) load_tokens(s);
#pragma unroll 1
    for (int s = ahead; s < steps; s++) {
      load_weights(s);
      load_tokens(s);
    }
    stage.advance(steps);
    tracer.end(loading, PURR__TRACE_LOAD, unit.expert, unit.row, unit.column_pair);
  }
  tracer.finish();
}

/* One unit's product, kN rows of tokens: sum[4 * j + 2 * half + i] is weight row (lane / 4 + 8 * half) of the warp's 16
 * times row 8 * j + lane % 4 * 2 + i of the tile. */
template <typename V, int kN>
__device__ __forceinline__ void multiply(SharedStorage<V> *shared, int consumer, int steps, Turns<V::kStages> &stage,
                                         float (&sum)[V::kTileRows / 2]) {
  const int lane = threadIdx.x % 32;
  /* Called when all lanes are done with the stage; one arrival for each block. */
  auto release = [&](uint32_t at) {
    if (lane < kCluster) ptx::mbarrier_arrive_release_cta_at(&shared->empty[at], lane);
  };
  const SumParts<kStageK> parts = {steps, consumer != 0};
  auto give_back = [&](int done) {
    const float factor = parts.factor_at(done);
#pragma unroll
    for (int i = 0; i < kN / 2; i++) {
      ptx::hold_back(sum[i]); /* it is there only now */
      sum[i] *= factor;
    }
  };
  ptx::wgmma_fence();
  /* One loop over all steps: within two the compiler would not see that the warp is together, and take some 14 more
   * instructions to each wgmma's descriptors. */
#pragma unroll 1
  for (int s = 0; s < steps; s++) {
    ptx::mbarrier_wait_acquire(&shared->full[stage.at()], stage.round());
    const uint64_t a = ptx::wgmma_descriptor_128b(ptx::shared_address(shared->weights[stage.at()]) +
                                                  consumer * kConsumerRows * kRowBytes);
    const uint64_t b = ptx::wgmma_descriptor_128b(ptx::shared_address(shared->tokens[stage.at()]));
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kStageK / 16; i++) ptx::wgmma_m64nNk16_bf16<kN>(sum, a + i * 2, b + i * 2, s + i != 0);
    ptx::wgmma_commit();
    if (s > 0) {
      ptx::wgmma_wait<1>();
      release(Turns<V::kStages>{stage.count - 1}.at());
    }
    stage.advance();
    if (parts.ends_at(s + 1)) {
      ptx::wgmma_wait<0>();
      give_back(s + 1);
    }
  }
  ptx::wgmma_wait<0>();
  release(Turns<V::kStages>{stage.count - 1}.at());
  give_back(steps);
}

template <typename V, int kN>
__device__ __forceinline__ void multiply_rows(int rows, SharedStorage<V> *shared, int consumer, int steps,
                                              Turns<V::kStages> &stage, float (&sum)[V::kTileRows / 2]) {
  if constexpr (kN > 8) {
    if (rows <= kN - 8) return multiply_rows<V, kN - 8>(rows, shared, consumer, steps, stage, sum);
  }
  multiply<V, kN>(shared, consumer, steps, stage, sum);
}

/* ROLE consumer
 * reads     stages
 * writes    staging memory: [row][64 columns], chunks of 16 bytes swizzled by row mod 8. Gate-up: a, then g and u where
 *           they are wanted, 32 columns of each consumer. Down: y, the 64 columns of one consumer, then of the other
 * waits on  full, jobs_written
 * signals   empty in both blocks, staging_full */
template <typename V>
__device__ __forceinline__ void consume(const purr__forward_params_t &params, SharedStorage<V> *shared, int consumer) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kWarpgroup / 32;
  const float limit = params.swiglu_limit > 0 ? params.swiglu_limit : __int_as_float(0x7F800000);
  Turns<V::kStages> stage;
  Turns<kUnits> turn;
  Turns<V::kSlots> job;
  float sum[V::kTileRows / 2];
  trace::Tracer<V::kTraces> tracer(params.trace, 1 + consumer, PURR__TRACE_ROLE_CONSUMER_0 + consumer,
                                   threadIdx.x % kWarpgroup == 0);
  if (params.order.num_shared_tiles == 0) gather_first_rows(params, shared);
  for (;;) {
    const auto waiting = tracer.begin();
    const purr__unit_t unit = next_unit(shared, turn);
    if (unit.kind == PURR__UNIT_END) break;
    if (V::kTraces) ptx::mbarrier_wait_acquire(&shared->full[stage.at()], stage.round());
    tracer.end_if_long(waiting, PURR__TRACE_WAIT_FULL, unit.expert, unit.row, unit.column_pair);
    const auto multiplying = tracer.begin();
    multiply_rows<V, V::kTileRows>(unit.num_rows, shared, consumer, num_steps(params, unit.kind), stage, sum);
    tracer.end(multiplying,
               is_shared(unit.kind) ? PURR__TRACE_SHARED_GATE_UP + (unit.kind - PURR__UNIT_SHARED_GATE_UP)
                                    : PURR__TRACE_GATE_UP + unit.kind,
               unit.expert, unit.row, unit.column_pair);
    const auto leaving = tracer.begin();

    auto stage_job = [&](int chunk, int arrivals, auto pair_of) {
      while (ptx::ld_acquire_shared(&shared->jobs_written[job.at()]) < kWriterWarps * (int)(job.count / V::kSlots)) {
      }
      __syncwarp();
      const uint32_t to = ptx::shared_address(shared->staging[job.at()]) + lane * (kJobColumns * 2);
#pragma unroll
      for (int i = 0; i < V::kStagingRows / 32; i++) {
        if (i * 32 >= unit.num_rows) break;
        pair_of(i * 4, to + i * 32 * (kJobColumns * 2), chunk);
      }
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive_release(&shared->staging_full[job.at()], arrivals);
    };
    auto pair = [&](int j, int half) { /* past the tile: of staging memory alone */
                                       return j * 8 < V::kTileRows
                                                  ? ptx::pack_bf16x2(sum[j * 4 + half * 2], sum[j * 4 + half * 2 + 1])
                                                  : 0;
    };
    auto address = [&](uint32_t row, int chunk) { return row + ((chunk ^ (lane & 7)) << 4); };
    if (is_gate_up(unit.kind)) {
      const bool of_shared = is_shared(unit.kind);
      const int up = of_shared ? params.shared_up_first : params.up_first; /* the half that up is in: 0 or 1 */
      const int chunk = consumer * 4 + warp;
      const bool swap = up != 0;
      auto g = [&](int j) { return swap ? pair(j, 1) : pair(j, 0); };
      auto u = [&](int j) { return swap ? pair(j, 0) : pair(j, 1); };
      auto a = [&](int j) { return swiglu_pair(g(j), u(j), limit); };
      auto store = [&](auto value) {
        return [&, value](int j, uint32_t row, int chunk_) {
          ptx::stmatrix_x4_trans(address(row, chunk_), value(j), value(j + 1), value(j + 2), value(j + 3));
        };
      };
      stage_job(chunk, 1, store(a));
      job.advance();
      if (params.saved[0].data != nullptr) { /* then those of the shared expert too */
        stage_job(chunk, 1, store(g));
        job.advance();
        stage_job(chunk, 1, store(u));
        job.advance();
      }
    } else {
      job.advance(consumer);
      stage_job(2 * warp, kConsumers, [&](int j, uint32_t row, int chunk) {
#pragma unroll
        for (int half = 0; half < 2; half++)
          ptx::stmatrix_x4_trans(address(row, chunk + half), pair(j, half), pair(j + 1, half), pair(j + 2, half),
                                 pair(j + 3, half));
      });
      job.advance(kConsumers - consumer);
    }
    tracer.end(leaving, is_shared(unit.kind) ? PURR__TRACE_SHARED_EPILOGUE : PURR__TRACE_EPILOGUE, unit.expert,
               unit.row, unit.column_pair);
  }
  tracer.finish();
}

/* ROLE writers: three warps, each with every third four rows of a tile.
 * reads     staging memory, the table, x; the slots' weights where y is multiplied by them
 * writes    rows of a, g, u, y; rows of x where they are gathered
 * waits on  staging_full; with a ring, down_done of the tile that lies where a goes
 * signals   jobs_written, gate_up_done, down_done, rows_there */
template <typename V>
__device__ __forceinline__ void write(const purr__forward_params_t &params, SharedStorage<V> *shared, int block,
                                      int warp) {
  constexpr int kStepRows = kWriterWarps * 4; /* 8 lanes have a row */
  constexpr int kSteps = (V::kTileRows + kStepRows - 1) / kStepRows, kLookUps = kSteps / 8 + 1;
  const int lane = threadIdx.x % 32, chunk = lane % 8, first_row = warp * 4 + lane / 8;
  Turns<kUnits> turn;
  Turns<V::kSlots> job;
  Gather<V, V::kAhead, 4> gather(params, &shared->next_rows);
  const bool has_ring = V::kPeers && params.order.ring_tiles > 0;
  trace::Tracer<V::kTraces> tracer(params.trace, 3, PURR__TRACE_ROLE_PUSHER, lane == 0 && warp == 0);
  purr__unit_t unit = {};
  int jobs = 0, j = 0; /* of this unit; the next of them */
  int slot[kLookUps];  /* of the warp's rows, a lane each; with kPeers, the rank in the bits above */
  const bool weighs = params.slot_weights != nullptr;
  float weight[kLookUps]; /* of these slots */
  bool waits_for_place = false;
  int rows_before = 0; /* of x, that earlier units in the list need */
  while (unit.kind != PURR__UNIT_END || !gather.rows.is_over) {
    /* What there is to do next: rows of x, while there is nothing else; and those that earlier units need in any case.
     * Or the blocks that come to down first, whose results never end, would keep all others waiting for their rows. */
    const bool ended = unit.kind == PURR__UNIT_END;
    uint64_t *barrier = j < jobs ? &shared->staging_full[job.at()] : &shared->unit_full[turn.at()];
    const uint32_t round = j < jobs ? job.round() : turn.round();
    const auto begun = tracer.begin();
    if (V::kPeers && waits_for_place)
      waits_for_place =
          ptx::ld_acquire_gpu(&PURR__UNIT_TILE_SYNC(params.order.sync)[unit.tile - params.order.ring_tiles].down_done) <
          all_down(params);
    if (ended || gather.rows.comes_before(rows_before) || (V::kPeers && !__all_sync(0xFFFFFFFFu, !waits_for_place)) ||
        !__all_sync(0xFFFFFFFFu, ptx::mbarrier_test_acquire(barrier, round))) {
      /* With other ranks it is what blocks that do nothing else call pulling. */
      if (gather.step())
        tracer.end(begun, V::kPeers && params.x.by_rank != nullptr ? PURR__TRACE_PULL : PURR__TRACE_GATHER);
      continue;
    }
    if (j == jobs) {
      unit = next_unit(shared, turn);
      j = 0;
      rows_before = rows_before_unit<V>(params, unit);
      jobs = unit.kind == PURR__UNIT_END ? 0 : !is_gate_up(unit.kind) ? 2 : params.saved[0].data != nullptr ? 3 : 1;
#pragma unroll
      for (int i = 0; i < kLookUps; i++) {
        const int r = (i * 8 + lane / 4) * kStepRows + warp * 4 + lane % 4;
        if (unit.kind != PURR__UNIT_DOWN || r >= unit.num_rows) continue;
        slot[i] = params.table.row_slot[unit.row + r];
        if (weighs) weight[i] = params.slot_weights[slot[i] * params.slot_weights_stride];
        if (V::kPeers) slot[i] |= params.table.row_rank[unit.row + r] << params.slot_bits;
      }
      waits_for_place = has_ring && unit.kind == PURR__UNIT_GATE_UP && unit.tile >= params.order.ring_tiles;
      continue;
    }

    const bool of_shared = is_shared(unit.kind), gate_up = is_gate_up(unit.kind);
    const purr__rows_t &rows = !gate_up ? (of_shared ? params.shared_out : params.y)
                               : j > 0  ? (of_shared ? params.shared_saved : params.saved)[j - 1]
                                        : (of_shared ? params.shared_a_rows : params.a_rows);
    const int column = (unit.column_pair * kCluster + block) * (gate_up ? kJobColumns : PURR__UNIT_WEIGHT_ROWS) +
                       (gate_up ? 0 : j * kJobColumns) + chunk * 8;
    const int n = !gate_up ? params.hidden : of_shared ? params.shared_intermediate : params.intermediate;
    const int64_t end = gate_up && j > 0 && !of_shared ? params.num_saved_rows : INT64_MAX;
    const int num_rows = column >= n ? 0 : (int)min((int64_t)unit.num_rows, end - unit.row);
    const uint32_t from = ptx::shared_address(shared->staging[job.at()]);
    char *to = static_cast<char *>(rows.data) + column * 2;
    const int64_t row_bytes = rows.row_stride * 2;
    const int dense_row =
        V::kPeers && gate_up && j == 0 && !of_shared ? ring_row<V>(params, unit.tile, unit.row) : unit.row;
#pragma unroll
    for (int first = 0; first < kSteps; first += V::kBatch) {
      if (first * kStepRows >= unit.num_rows) break;
      uint4 v[V::kBatch];
#pragma unroll
      for (int i = 0; i < V::kBatch; i++) {
        const int r = (first + i) * kStepRows + first_row;
        if (r < num_rows) v[i] = ptx::ld_shared_16(from + r * (kJobColumns * 2) + ((chunk ^ (r & 7)) << 4));
      }
#pragma unroll
      for (int i = 0; i < V::kBatch; i++) {
        const int r = (first + i) * kStepRows + first_row;
        int row = __shfl_sync(0xFFFFFFFFu, slot[(first + i) / 8], (first + i) % 8 * 4 + lane / 8);
        char *base = to;
        if (rows.placement != PURR__ROWS_SLOT) {
          row = dense_row + r;
        } else if (V::kPeers) {
          if (r < num_rows && rows.by_rank != nullptr)
            base += reinterpret_cast<int64_t>(rows.by_rank[row >> params.slot_bits]);
          row &= (1 << params.slot_bits) - 1;
        }
        if (weighs && unit.kind == PURR__UNIT_DOWN)
          v[i] = weighted(__shfl_sync(0xFFFFFFFFu, weight[(first + i) / 8], (first + i) % 8 * 4 + lane / 8), v[i]);
        if (r >= num_rows) continue;
        ptx::st_16(base + row * row_bytes, v[i]);
      }
    }
    __syncwarp();
    if (lane == 0) ptx::red_add_release_shared(&shared->jobs_written[job.at()], 1);
    job.advance();
    j++;
    tracer.end(begun, PURR__TRACE_PUSH, unit.expert, unit.row, column);
    if (gate_up && j == 1) {
      ptx::fence_proxy_async_global(); /* the copy engine will read a */
      __syncwarp();
      if (lane == 0) ptx::red_add_release_gpu(&PURR__UNIT_TILE_SYNC(params.order.sync)[unit.tile].gate_up_done, 1);
    }
    if (has_ring && unit.kind == PURR__UNIT_DOWN && j == jobs && lane == 0) /* a of the tile has been read */
      ptx::red_add_release_gpu(&PURR__UNIT_TILE_SYNC(params.order.sync)[unit.tile].down_done, 1);
  }
  tracer.finish();
}

/* --------------------------------------------------------------------------------------------------------- kernel */

template <typename V>
__device__ __forceinline__ void run_units(const purr__forward_params_t &params) {
  char *dynamic_shared = ptx::dynamic_shared<char>();
  SharedStorage<V> *shared = reinterpret_cast<SharedStorage<V> *>(
      dynamic_shared + (kAlignment - ptx::shared_address(dynamic_shared) % kAlignment) % kAlignment);
  static_assert(sizeof(PullStorage) <= sizeof(SharedStorage<V>), "pulling blocks have the same shared memory");
  if (V::kPeers && (int)blockIdx.x < params.num_pull_blocks) {
    pull<V>(params, reinterpret_cast<PullStorage *>(shared));
    return;
  }
  if (threadIdx.x == 0) {
    for (int s = 0; s < V::kStages; s++) {
      ptx::mbarrier_init(&shared->full[s], 1);
      ptx::mbarrier_init(&shared->empty[s], kCluster * kConsumerWarps);
    }
    for (int u = 0; u < kUnits; u++) {
      ptx::mbarrier_init(&shared->unit_full[u], 1);
      ptx::mbarrier_init(&shared->unit_empty[u], kCluster * kUnitReaders);
    }
    shared->next_rows = 0;
    for (int j = 0; j < V::kSlots; j++) {
      shared->jobs_written[j] = 0;
      ptx::mbarrier_init(&shared->staging_full[j], kConsumerWarps);
    }
    ptx::fence_mbarrier_init();
  }
  __syncwarp();
  ptx::cluster_sync_acq_rel(); /* no block signals one whose barriers are not there */

  const int block = (int)ptx::cluster_block_rank();
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / kWarpgroup, 0); /* uniform, as the compiler can see */
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x % kWarpgroup / 32, 0);
  if (warpgroup == 0) {
    if (warp > 0)
      write(params, shared, block, warp - 1);
    else if (threadIdx.x == 0)
      load(params, shared, block);
  } else {
    consume(params, shared, warpgroup - 1);
  }
  __syncwarp();
  ptx::cluster_sync_acq_rel(); /* no block leaves while the other may still signal it */
}

template <typename V>
__device__ __forceinline__ void forward(const purr__forward_params_t &params) {
  const bool owns = turn::owns(params.turn);
  const int status = params.status->status; /* INTERNAL: of a block that waited too long; its pair goes on too */
  if (owns && (status == PURR_STATUS_OK || status == PURR_STATUS_INTERNAL)) run_units<V>(params);
}

#endif

}  // namespace
}  // namespace purr

#ifdef PURR_HAS_WGMMA

/* reads   x, the weights, the routing table, the list of units
 * writes  the output; a, y and the shared expert's in the workspace; g and u where wanted */
#define PURR_FORWARD_VARIANT(name, role, tile_rows, stages, slots, traces, peers, shared_bytes)                 \
  static_assert(                                                                                                \
      sizeof(purr::SharedStorage<purr::Variant<tile_rows, stages, slots, traces, peers>>) + purr::kAlignment == \
          shared_bytes,                                                                                         \
      "as the table says");                                                                                     \
  extern "C" __global__ void __cluster_dims__(purr::kCluster, 1, 1) __launch_bounds__(purr::kThreads, 1)        \
      name(const __grid_constant__ purr__forward_params_t params) {                                             \
    purr::forward<purr::Variant<tile_rows, stages, slots, traces, peers>>(params);                              \
  }
#include "forward_variants.def"
#undef PURR_FORWARD_VARIANT

#endif
