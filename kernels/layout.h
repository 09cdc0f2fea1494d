/* SPDX-License-Identifier: Apache-2.0
 *
 * What the host and the kernels agree on: the parameter structs of every kernel, byte for byte. Plain C and CUDA C++.
 * Each kernel takes one struct by value. All pointers are device addresses; all strides count elements.
 *
 * A change of any struct, or of what kernels do with one, raises PURR__KERNEL_LAYOUT, which each kernel package records
 * and the runtime compares. */
#ifndef PURR_KERNELS_LAYOUT_H
#define PURR_KERNELS_LAYOUT_H

#include <assert.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>

#define PURR__KERNEL_LAYOUT 7

/* Rows of an expert's segment come in multiples of this. */
#define PURR__SEGMENT_ROWS 64
/* Rows of one output tile of the staged grouped GEMMs; the schedule's tile_begin counts tiles of this height, or of the
 * megakernel's where that is to run. */
#define PURR__TILE_ROWS 128

/* ----------------------------------------------------------------------------------------------------------- turns */

/* How the schedule went, written anew by every schedule. The kernels after it return at once unless status is 0; what
 * the megakernel waits for too long becomes INTERNAL, with the site, the counter, what was expected and what was seen
 * in rank, token, slot and expert. */
typedef struct purr__device_status {
  int32_t status; /* PURR_STATUS_OK, BAD_ROUTE, PEER_FAILED, PEER_MISMATCH, BUSY or INTERNAL */
  int32_t rank;   /* where the first bad id is, in the order (rank, token, slot); else -1 */
  int64_t token, slot, expert;
  int64_t num_rows, num_padded_rows; /* of the table; 0 after a bad id */
} purr__device_status_t;

/* What a call leaves for its result: page-locked host memory. int32 [E_l] follows, the tokens of each expert. */
typedef struct purr__outcome {
  purr__device_status_t found;
  int32_t status; /* NOT_READY from the call's first kernel on; written last of all, by the block that ends the call */
  int32_t reserved;
} purr__outcome_t;

#define PURR__OUTCOME_COUNTS(outcome) ((int32_t *)((outcome) + 1))

/* A call's turn in its workspace: kernels/turn.cuh. The word stands at the head of the workspace's symmetric memory:
 *
 *   bits 63..40  ticket of the call that took the workspace last
 *        39..28  blocks of that call's first kernel that found it theirs
 *        27..0   blocks of its last kernel that have still to end; 0 = the workspace is free
 *
 * The call owns the workspace when all blocks of its first kernel found it theirs. A call that does not own it writes
 * nothing but BUSY. Tickets come from the host, so a replay has that of the call that was captured: two graphs of one
 * capture must not run at once. */
typedef struct purr__turn {
  uint64_t *word;           /* NULL: nobody else is there */
  purr__outcome_t *outcome; /* NULL = no result is wanted */
  uint32_t ticket;          /* modulo 2^24 */
  int32_t first_blocks;     /* of the call's first kernel, at most PURR__TURN_MAX_FIRST */
  int32_t last_blocks;      /* of its last kernel, below 2^28 */
  int32_t place;            /* of this kernel in the call: PURR__TURN_* */
} purr__turn_t;

enum { PURR__TURN_FIRST = 1, PURR__TURN_LAST = 2 };
#define PURR__TURN_MAX_FIRST 4095
#define PURR__TURN_LEFT_BITS 28 /* of the word: blocks that have still to end */

/* ------------------------------------------------------------------------------------------------------- schedule */

/* The head of a rank's symmetric memory. Zero at first. */
typedef struct purr__device_rank_header {
  uint64_t turn;      /* of the calls in this workspace: purr__turn_t */
  uint64_t tag;       /* of the call that runs, the same on all ranks: layer and kind of call */
  int64_t num_tokens; /* T of the call that runs */
  uint64_t epoch;     /* barriers that this rank has come to */
  int32_t broken;     /* 1 + the rank that did not come; stays. Written by this rank's barriers alone */
  int32_t told;       /* the same, from a peer that found it; heard by the next barrier */
} purr__device_rank_header_t;

/* purr_barrier, and purr_schedule where it waits for the other ranks itself. */
typedef struct purr__barrier_params {
  void *const *ranks;   /* device [R]: each rank's symmetric memory */
  int64_t words_offset; /* of the barrier words there: uint64 [R] */
  purr__device_rank_header_t *header;
  purr__device_status_t *status; /* gets PEER_FAILED; may be NULL */
  int32_t *group_broken;         /* page-locked: gets 1 + the rank that did not come */
  int64_t timeout_ns;
  int32_t rank, num_ranks;
  purr__turn_t turn;
} purr__barrier_params_t;

/* The head of a routing table: runtime/schedule/table.h, purr__table_header_t. */
typedef struct purr__device_table_header {
  int64_t num_rows, num_padded_rows;
  int64_t num_local_experts;
  int64_t reserved[5];
} purr__device_table_header_t;

/* One rank's expert ids. */
typedef struct purr__ids {
  const void *data;             /* int32 or int64 [num_tokens, K] */
  const int64_t *num_tokens_at; /* where T of that rank stands, or NULL: num_tokens below */
  const uint64_t *tag_at;       /* where the tag of its call stands, or NULL: it makes the same call for sure */
  int64_t num_tokens;
  int64_t row_stride, column_stride; /* row_stride 0: K */
  int32_t is_int64;
  int32_t reserved;
} purr__ids_t;

/* The routing table as the kernels see it: runtime/schedule/table.h, and what the tile lookup needs. */
typedef struct purr__device_table {
  purr__device_table_header_t *header;
  int32_t *expert_count; /* [E_l] */
  int32_t *expert_begin; /* [E_l + 1] */
  int32_t *row_rank;     /* [padded rows] */
  int32_t *row_slot;     /* [padded rows] */
  /* Not part of the host's table: */
  int32_t *tile_begin;  /* [E_l + 1] tiles of PURR__TILE_ROWS rows before expert e */
  int32_t *tile_expert; /* [tiles] the expert of each; there are at most padded rows / PURR__SEGMENT_ROWS */
} purr__device_table_t;

/* What a pair of blocks of the forward megakernel does in one go: a tile of rows times 128 weight rows for each block.
 * Units are handed out in the order of their list. */
typedef struct purr__unit {
  int32_t row;     /* first row: of the table, or of the tokens */
  int32_t tile;    /* which of the sync's counters speak of these rows */
  uint16_t expert; /* 0 for the shared expert */
  uint16_t kind;   /* PURR__UNIT_* */
  uint16_t
      column_pair;   /* the blocks take weight rows 256 * column_pair on, 128 each; gate-up: of gate and up together */
  uint16_t num_rows; /* 1 .. tile_rows */
} purr__unit_t;

enum {
  PURR__UNIT_GATE_UP = 0,
  PURR__UNIT_DOWN = 1,
  PURR__UNIT_SHARED_GATE_UP = 2,
  PURR__UNIT_SHARED_DOWN = 3,
  PURR__UNIT_END = 4, /* not in the list: there is no more */
};
#define PURR__UNIT_MAX_ROWS 256    /* the largest tile_rows */
#define PURR__UNIT_WEIGHT_ROWS 128 /* of one block */

/* Where the blocks of the megakernel meet. Zeroed when the list is made. Counters of each tile follow, of the routed
 * experts' and then of the shared expert's. */
typedef struct purr__unit_sync {
  int32_t next_unit; /* to be handed out */
  int32_t num_units; /* in the list */
  int32_t reserved[14];
} purr__unit_sync_t;

typedef struct purr__unit_tile_sync {
  int32_t rows_there;   /* rows of x that have been gathered */
  int32_t gate_up_done; /* warps that have written their part of a */
  int32_t down_done;    /* warps that have written their part of y, counted where there is a ring */
  int32_t reserved;
} purr__unit_tile_sync_t;

#define PURR__UNIT_TILE_SYNC(sync) ((purr__unit_tile_sync_t *)((sync) + 1))

/* How the units of a layer are cut and ordered. The tiles of all experts are taken in minibatches; gate-up of minibatch
 * q + 1 comes before down of q. Gate-up of the shared expert is the very first, its down stands before the last down.
 * In an expert the tiles of one column follow each other: they share its weights. units NULL: no list is made.
 *
 * With a ring, x as it is gathered, and a, have room for ring_tiles tiles, of tile_rows rows each: tile t lies in place
 * t mod ring_tiles. Without one they have room for all rows, and a row lies where the table has it. */
typedef struct purr__unit_order {
  purr__unit_t *units;
  purr__unit_sync_t *sync;
  int32_t num_sync_words;       /* of sync and the tiles' */
  int32_t tile_rows;            /* most rows of a unit */
  int32_t gate_up_pairs;        /* pairs of 128 weight rows, of gate and up together */
  int32_t shared_gate_up_pairs; /* the same of the shared expert, or 0 */
  int32_t down_pairs;           /* of down, also of the shared expert's */
  int32_t num_shared_tiles;     /* of T tokens, or 0 */
  int32_t num_tokens;
  int32_t minibatch_tiles; /* 0: all tiles are one minibatch */
  int32_t ring_tiles;      /* at least two minibatches; 0: no ring */
  int32_t reserved;
} purr__unit_order_t;

/* Tiles of equal height, a multiple of 8, hold `count` rows: how high, when there are as few as can be. */
static inline
#ifdef __CUDACC__
    __host__ __device__
#endif
        int32_t
        purr__unit_tile_height(int32_t count, int32_t num_tiles) {
  return num_tiles == 0 ? 0 : ((count + num_tiles - 1) / num_tiles + 7) / 8 * 8;
}

/* purr_schedule_count, purr_schedule_place. A grid of num_ranks * chunks_per_rank blocks; block r * chunks_per_rank + c
 * looks at the c-th part of rank r's slots. Where that is one block, or one cluster of blocks: purr_schedule, which
 * does what both do. */
typedef struct purr__schedule_params {
  purr__ids_t own;            /* read when sources is NULL, which is allowed for num_ranks == 1 */
  const purr__ids_t *sources; /* [num_ranks], device memory */
  int32_t num_ranks, chunks_per_rank;
  int32_t top_k;
  int32_t num_experts;                     /* E */
  int32_t first_expert, num_local_experts; /* those of this rank */
  int32_t *chunk_count;                    /* scratch [blocks][E_l]: slots of each local expert in the block's part */
  int32_t *chunk_bad; /* scratch [blocks]: first slot with a bad id in the block's part, -1 without */
  purr__device_table_t table;
  purr__device_status_t *status;
  const purr__device_rank_header_t *header; /* this rank's, or NULL: when it is broken nothing is read */
  uint64_t tag;                             /* of this call, held against the other ranks' */
  int32_t table_is_own;                     /* 1: table and status lie outside the workspace, and hear of BUSY */
  int32_t num_pieces;                       /* of a block's part, each placed by a warp; no more than warps */
  purr__turn_t turn;
  purr__unit_order_t order;       /* of the megakernel's units; its tile_rows also counts in the table's tiles */
  purr__barrier_params_t meeting; /* of purr_schedule, before it reads anything; num_ranks 0: there was one */
} purr__schedule_params_t;

#define PURR__SCHEDULE_CHUNK_SLOTS 1024

/* Blocks for one rank: enough that a block has about so many slots, few enough that summing over the blocks stays
 * cheap. */
static inline int32_t purr__schedule_chunks(int64_t slots_per_rank, int32_t num_ranks) {
  int64_t chunks = (slots_per_rank + PURR__SCHEDULE_CHUNK_SLOTS - 1) / PURR__SCHEDULE_CHUNK_SLOTS;
  const int64_t most = 128 / num_ranks;
  if (chunks > most) chunks = most;
  return chunks < 1 ? 1 : (int32_t)chunks;
}

#define PURR__SCHEDULE_WARPS 8 /* of the two, a piece each */
#define PURR__SCHEDULE_TOGETHER_WARPS 32
#define PURR__SCHEDULE_TOGETHER_PIECES 32
#define PURR__SCHEDULE_TOGETHER_BLOCKS 8        /* most that every device takes as a cluster */
#define PURR__SCHEDULE_TOGETHER_PART_SLOTS 8192 /* most of a block, where there are several */

/* Dynamic shared memory of a schedule kernel: four tables over the local experts, one for each piece, and where the two
 * are together the experts of the part's slots. */
static inline int64_t purr__schedule_shared_bytes(int64_t num_local_experts, int64_t num_pieces, int64_t part_slots) {
  return num_local_experts * (num_pieces + 4) * (int64_t)sizeof(int32_t) + part_slots * (int64_t)sizeof(uint16_t);
}

/* How the schedule is launched. */
typedef struct purr__schedule_shape {
  int32_t is_together; /* purr_schedule; its blocks are one cluster */
  int32_t chunks_per_rank, num_pieces;
  int64_t shared_bytes;
} purr__schedule_shape_t;

/* As many pieces as there is shared memory for, at most so many; 4096 experts on every device have one. */
static inline int32_t purr__schedule_pieces(int64_t num_local_experts, int64_t part_slots, int32_t most_pieces,
                                            int64_t most_shared_bytes) {
  int32_t pieces = most_pieces;
  while (pieces > 1 && purr__schedule_shared_bytes(num_local_experts, pieces, part_slots) > most_shared_bytes)
    pieces /= 2;
  return pieces;
}

/* Together where the slots are few enough: for one block, or for a cluster of `most_blocks` at most. */
static inline purr__schedule_shape_t purr__schedule_shape(int64_t slots_per_rank, int32_t num_ranks,
                                                          int64_t num_local_experts, int32_t most_blocks,
                                                          int64_t most_shared_bytes) {
  const int32_t chunks = purr__schedule_chunks(slots_per_rank, num_ranks);
  purr__schedule_shape_t together = {1, 1, 0, 0}, apart = {0, chunks, 0, 0};
  while (2 * together.chunks_per_rank <= chunks && 2 * together.chunks_per_rank * num_ranks <= most_blocks)
    together.chunks_per_rank *= 2;
  const int32_t blocks = together.chunks_per_rank * num_ranks;
  const int64_t part = (slots_per_rank + together.chunks_per_rank - 1) / together.chunks_per_rank;
  const int64_t most_slots = blocks > 1 ? PURR__SCHEDULE_TOGETHER_PART_SLOTS : PURR__SCHEDULE_CHUNK_SLOTS;
  together.num_pieces =
      purr__schedule_pieces(num_local_experts, part, PURR__SCHEDULE_TOGETHER_PIECES, most_shared_bytes);
  together.shared_bytes = purr__schedule_shared_bytes(num_local_experts, together.num_pieces, part);
  if (blocks <= most_blocks && part <= most_slots && num_local_experts < UINT16_MAX &&
      together.shared_bytes <= most_shared_bytes)
    return together;
  apart.num_pieces = purr__schedule_pieces(num_local_experts, 0, PURR__SCHEDULE_WARPS, most_shared_bytes);
  apart.shared_bytes = purr__schedule_shared_bytes(num_local_experts, apart.num_pieces, 0);
  return apart;
}

/* --------------------------------------------------------------------------------------------------- grouped GEMM */

/* How a GEMM row finds its memory. */
enum {
  PURR__ROWS_DENSE = 0, /* row r of the table (or of the dense problem) is row r */
  PURR__ROWS_TOKEN = 1, /* row_slot[r] / K of rank row_rank[r] */
  PURR__ROWS_SLOT = 2,  /* row_slot[r] of rank row_rank[r] */
};

/* A BF16 matrix whose rows the kernel gathers or scatters. Rows start at multiples of 16 bytes. */
typedef struct purr__rows {
  void *data;           /* row 0; with by_rank, the bytes from each of its addresses to row 0 */
  void *const *by_rank; /* [R] where each source rank's memory is, or NULL */
  int64_t row_stride;
  int32_t placement; /* PURR__ROWS_* */
  int32_t reserved;
} purr__rows_t;

/* The BF16 weights [num_experts, n, k] of one operand, as nn.Linear stores them. */
typedef struct purr__weight {
  const void *data;
  const void *const *by_expert; /* [E_l] address of each expert's slice, or NULL: data + e * expert_stride */
  int64_t expert_stride, row_stride;
} purr__weight_t;

/* C[row, :] = f(A[row, :] . B[expert of row]), for all rows of the table (tile_begin not NULL) or for num_rows dense
 * rows of one expert. f is the SwiGLU of two products for purr_gate_up, the identity for purr_down. */
typedef struct purr__gemm {
  purr__rows_t a;         /* [rows, k] */
  purr__weight_t b[2];    /* gate and up; down and nothing */
  purr__rows_t c;         /* [rows, n]; PURR__ROWS_DENSE for gate-up */
  purr__rows_t saved[2];  /* g and u, always PURR__ROWS_DENSE; data NULL = not wanted */
  int64_t num_saved_rows; /* rows below this one save g and u */
  const int32_t *expert_count, *expert_begin, *tile_begin, *tile_expert, *row_rank,
      *row_slot;    /* the table's, or NULL */
  int64_t num_rows; /* of a dense problem */
  int32_t num_experts, top_k;
  int32_t n, k;       /* both multiples of 8 */
  float swiglu_limit; /* 0 = no clamp */
  int32_t reserved;
  /* Where a token has one slot and nothing is added to it, c of down is the output itself: each row is multiplied by
   * its slot's weight on the way there, with the bits of purr_slot_sum. NULL: it is not. */
  const float *slot_weights;
  int64_t slot_weights_stride;
} purr__gemm_t;

/* purr_gate_up, purr_down. Up to two problems share a launch: the routed experts and the shared expert. */
typedef struct purr__gemm_params {
  purr__gemm_t problem[2];
  int32_t num_problems;
  int32_t reserved;
  const purr__device_status_t *status;
  purr__turn_t turn;
} purr__gemm_params_t;

/* A CUtensorMap: what the copy engine must know of a matrix. cuTensorMapEncodeTiled makes it, without a device. */
typedef struct purr__tensor_map {
  alignas(64) uint64_t opaque[16];
} purr__tensor_map_t;

/* The maps of one problem. All: BF16, no interleave, 128-byte swizzle, zeros outside, dimensions fastest first.
 *   b  {k, n, num_experts}, strides {row_stride, expert_stride}, box {64, 128, 1}
 *   a  {k, rows}, stride {row_stride}, box {64, 64}; down only: gate-up gathers its rows */
typedef struct purr__gemm_maps {
  purr__tensor_map_t a, b[2];
  const purr__tensor_map_t *b_by_expert[2]; /* device [E_l], one map {k, n, 1} each; or NULL: b */
} purr__gemm_maps_t;

/* purr_gate_up_wgmma, purr_down_wgmma. */
typedef struct purr__gemm_tma_params {
  purr__gemm_maps_t maps[2]; /* of each problem */
  purr__gemm_params_t gemm;
} purr__gemm_tma_params_t;

#define PURR__MAP_STAGE_K 64
#define PURR__MAP_ROWS_A 64
#define PURR__MAP_ROWS_B 128

/* Tensor cores lose this part of an accumulator in each step of 16 k; kernels give it back at the end of a sum, and in
 * longer ones after every so much of k: kernels/sums.cuh. */
#define PURR__STEP_LOSS (0.5f / 16777216)
#define PURR__SUM_PART_K 2048

/* ------------------------------------------------------------------------------------------------------- slot sum */

/* purr_slot_sum: out = bf16(shared + sum over k of weight_k * y_k). Blocks take pieces in turn, a token's
 * PURR__SLOT_SUM_COLUMNS columns each; there is one block at least, and no more than stay on the SMs together: each
 * counts in the turn's word. The call's last kernel: it tells how it went. */
typedef struct purr__slot_sum_params {
  purr__ids_t ids;           /* this rank's */
  const float *topk_weights; /* [T, K] */
  int64_t weights_row_stride, weights_column_stride;
  const void *slots; /* bf16 [T * K, H], the combine buffer; NULL: out is there but for dropped slots, and K is 1 */
  int64_t slots_row_stride;
  const void *shared; /* bf16 [T, H], or NULL: no shared expert */
  int64_t shared_row_stride;
  const void *shared_gate; /* bf16 [H], or NULL: no sigmoid gate */
  const void *x;           /* bf16 [T, H], read for the gate alone */
  int64_t x_row_stride;
  float *score; /* fp32 [T]: the gate z of each token, written where not NULL */
  void *out;    /* bf16 [T, H] */
  int64_t out_row_stride;
  int32_t hidden, top_k;
  const purr__device_status_t *status;
  const int32_t *expert_count; /* the table's */
  int64_t num_experts;
  int64_t reserved;
  purr__turn_t turn;
} purr__slot_sum_params_t;

#define PURR__SLOT_SUM_COLUMNS 2048
#define PURR__SLOT_SUM_BLOCKS_PER_SM 4
#define PURR__SLOT_SUM_TOKENS_TO_CLEAR 32 /* that a warp looks at together, where slots is NULL */

/* Blocks of the slot sum on so many SMs; one at least, which ends the call. */
static inline int64_t purr__slot_sum_blocks(int64_t num_tokens, int64_t hidden, int64_t num_sms, int32_t has_slots) {
  const int64_t of_token = (hidden + PURR__SLOT_SUM_COLUMNS - 1) / PURR__SLOT_SUM_COLUMNS;
  const int64_t most = PURR__SLOT_SUM_BLOCKS_PER_SM * num_sms;
  const int64_t blocks = has_slots ? num_tokens * of_token : num_tokens / PURR__SLOT_SUM_TOKENS_TO_CLEAR + 1;
  return blocks < 1 ? 1 : blocks < most ? blocks : most;
}

/* ------------------------------------------------------------------------------------------------------- megakernel */

/* purr_forward_*: everything between the schedule and the sum over slots, in one launch of pairs of blocks. All maps as
 * in purr__gemm_maps_t, dimensions fastest first. Those of rows come twice, with boxes of {64, 16} and of {64, 64}:
 *   x_ring            {H, rows}: x as it was gathered, of all rows or of the ring
 *   x_tokens          {H, T}: the shared expert's
 *   a, shared_a       {I or S, rows}
 *   gate_up           {H, 8, 2, I / 8, experts}, box {64, 8, 2, 8, 1}: eight rows of gate, eight of up, and so on
 *   down              {I or S, H, experts}, box {64, 128, 1} */
typedef struct purr__forward_params {
  purr__tensor_map_t x_ring[2], x_tokens[2], a[2], shared_a[2];
  purr__tensor_map_t gate_up, down, shared_gate_up, shared_down;
  const purr__tensor_map_t *gate_up_by_expert, *down_by_expert; /* device [E_l], one expert each; or NULL */
  purr__unit_order_t order;
  purr__device_table_t table;
  purr__rows_t x, x_rows;                 /* x by token; where it is gathered: dense, or the ring */
  purr__rows_t a_rows, shared_a_rows;     /* where gate-up writes: dense, or the ring */
  purr__rows_t saved[2], shared_saved[2]; /* g and u, dense; data NULL = not wanted */
  int64_t num_saved_rows;
  purr__rows_t y;            /* by slot: the combine buffers, or with slot_weights the output */
  const float *slot_weights; /* as in purr__gemm_t */
  int64_t slot_weights_stride;
  purr__rows_t shared_out; /* dense */
  int32_t hidden, intermediate, shared_intermediate;
  int32_t num_experts, top_k;        /* those of this rank */
  int32_t up_first, shared_up_first; /* 1: the map of gate_up begins with up */
  int32_t num_pull_blocks; /* the first ones only bring rows of x, pairs of them; 0: all do, beside the rest */
  int32_t slot_bits;       /* so many hold any slot of a rank; with those of the rank above, fewer than 32 */
  float swiglu_limit;      /* 0 = no clamp */
  int64_t timeout_ns;      /* of one wait inside */
  void *trace;             /* kernels/trace.h, of the traced kernels; NULL = no timeline */
  purr__device_status_t *status;
  purr__turn_t turn;
} purr__forward_params_t;

#define PURR__MAP_ROWS_TOKENS 16
#define PURR__MAP_ROWS_MANY_TOKENS 64
#define PURR__MAP_ROWS_INTERLEAVED 8 /* rows of gate or up in a run */

/* ------------------------------------------------------------------------------------------------------- exchange */

/* purr_exchange: a grid of at most PURR__TURN_MAX_FIRST blocks. The call's first kernel. */
typedef struct purr__exchange_params {
  purr__ids_t ids; /* this rank's */
  const void *x;   /* bf16 [T, H] */
  int64_t x_row_stride;
  void *tokens;     /* bf16 [T, H], symmetric */
  int32_t *ids_out; /* [T, K], symmetric */
  purr__device_rank_header_t *header;
  uint64_t tag;
  int32_t hidden, top_k;
  purr__turn_t turn;
} purr__exchange_params_t;

/* ----------------------------------------------------------------------------------------------- MXFP8 quantiser */

/* purr_quantize_mxfp8: BF16 to MXFP8, blocks of 32 along the row. A grid of (column groups, row groups, slices); see
 * purr__quantize_row_groups. ptx/quantize_mxfp8.ptx loads each field into a register of its name. */
typedef struct purr__quantize_mxfp8_params {
  const void *source;            /* bf16 [slices, rows, columns], rows at multiples of 16 bytes */
  uint8_t *elements;             /* e4m3, the same shape, rows at multiples of 8 bytes */
  uint8_t *scales;               /* e8m0 */
  int64_t num_rows, num_columns; /* columns a multiple of 8 */
  int64_t source_row_stride, source_slice_stride;
  int64_t elements_row_stride, elements_slice_stride;
  int64_t scales_slice_stride;
  int64_t scales_outer_stride;              /* plain: from row to row; tiles: from 128 rows to the next 128 */
  int64_t scales_block_stride;              /* plain: from block to block */
  int64_t num_scale_rows, num_scale_blocks; /* to be written: with tiles padded to whole ones */
  int32_t scale_layout;                     /* PURR_SCALE_LAYOUT_* */
  int32_t scale_rule;                       /* PURR_SCALE_RULE_* */
} purr__quantize_mxfp8_params_t;

#define PURR__QUANTIZE_GROUP_COLUMNS 256
#define PURR__QUANTIZE_GROUP_ROWS 8

/* Row groups of a launch: about eight rows for each warp, so that all but the first load early, and a multiple of 16.
 */
static inline int64_t purr__quantize_row_groups(int64_t num_scale_rows) {
  const int64_t sixteens = (num_scale_rows + 1023) / 1024;
  return sixteens < 4095 ? sixteens * 16 : 65520;
}

static_assert(sizeof(void *) == 8, "the layouts are for 64-bit hosts");
static_assert(sizeof(purr__device_status_t) == 48, "layout");
static_assert(sizeof(purr__device_table_header_t) == 64, "layout");
static_assert(sizeof(purr__outcome_t) == 56, "layout");
static_assert(sizeof(purr__turn_t) == 32, "layout");
static_assert(sizeof(purr__ids_t) == 56, "layout");
static_assert(sizeof(purr__device_table_t) == 56, "layout");
static_assert(sizeof(purr__unit_t) == 16, "layout");
static_assert(sizeof(purr__unit_sync_t) == 64, "layout");
static_assert(sizeof(purr__unit_tile_sync_t) == 16, "layout");
static_assert(offsetof(purr__schedule_params_t, order) == 224, "layout");
static_assert(sizeof(purr__unit_order_t) == 56, "layout");
static_assert(sizeof(purr__schedule_params_t) == 368, "layout");
static_assert(offsetof(purr__schedule_params_t, chunk_count) == 88, "layout");
static_assert(offsetof(purr__schedule_params_t, status) == 160, "layout");
static_assert(sizeof(purr__rows_t) == 32, "layout");
static_assert(sizeof(purr__weight_t) == 32, "layout");
static_assert(sizeof(purr__gemm_t) == 296, "layout");
static_assert(offsetof(purr__gemm_t, expert_count) == 200, "layout");
static_assert(offsetof(purr__gemm_t, n) == 264, "layout");
static_assert(sizeof(purr__gemm_params_t) == 640, "layout");
static_assert(sizeof(purr__gemm_maps_t) == 448, "layout");
static_assert(offsetof(purr__gemm_tma_params_t, gemm) == 896, "layout");
static_assert(sizeof(purr__gemm_tma_params_t) == 1536, "layout");
static_assert(sizeof(purr__slot_sum_params_t) == 232, "layout");
static_assert(sizeof(purr__device_rank_header_t) == 40, "layout");
static_assert(sizeof(purr__exchange_params_t) == 144, "layout");
static_assert(sizeof(purr__barrier_params_t) == 88, "layout");
static_assert(offsetof(purr__slot_sum_params_t, hidden) == 160, "layout");
static_assert(offsetof(purr__quantize_mxfp8_params_t, num_rows) == 24, "layout");
static_assert(offsetof(purr__quantize_mxfp8_params_t, scales_slice_stride) == 72, "layout");
static_assert(offsetof(purr__quantize_mxfp8_params_t, num_scale_rows) == 96, "layout");
static_assert(offsetof(purr__quantize_mxfp8_params_t, scale_rule) == 116, "layout");
static_assert(sizeof(purr__quantize_mxfp8_params_t) == 120, "layout");

#endif
