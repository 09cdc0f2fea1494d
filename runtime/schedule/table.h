/* The routing table: which (rank, token, slot) stands in which row of this rank. Plain memory without pointers, so that
 * a device's table can be compared with the host's byte for byte; this one is the specification.
 *
 * Local expert e owns rows expert_begin[e] .. expert_begin[e+1]-1; the first expert_count[e] of them are used, the rest
 * is padding. expert_begin[e] is a multiple of 64. Rows of an expert stand in canonical order: by source rank, then
 * token, then slot. What lies behind the last padded row is not part of the table. */
#ifndef PURR_TABLE_H
#define PURR_TABLE_H

#include "plan/plan.h"

typedef struct purr__table_header {
  int64_t num_rows, num_padded_rows;
  int64_t num_local_experts;
  int64_t reserved[5];
} purr__table_header_t;

typedef struct purr__table {
  purr__table_header_t *header;
  int32_t *expert_count; /* [E_l] */
  int32_t *expert_begin; /* [E_l + 1] */
  int32_t *row_rank;     /* [num_padded_rows] source rank, -1 in padding */
  int32_t *row_slot;     /* [num_padded_rows] token * K + k there, -1 in padding */
  int32_t *tile_begin;   /* GPU plans: [E_l + 1] tiles of the grouped GEMMs before each expert; no part of the table */
  int32_t *tile_expert;  /* GPU plans: [tiles] the expert of each; likewise */
} purr__table_t;

/* The table's parts in a block of plan->table_bytes. */
purr__table_t purr__table_at(const purr_plan_t *plan, void *memory);

/* Builds the table of `rank`. ids[r] is int32 [num_tokens[r], K] of rank r, contiguous, every id in -1..E-1. */
void purr__table_build(const purr_plan_t *plan, int rank, const int32_t *const *ids, const int64_t *num_tokens,
                       const purr__table_t *table);

/* The next run of used rows of one expert at or after *row and before `end`. Advances *row and *expert (start with row
 * = the range's begin, expert = 0). False when the range is done. */
typedef struct purr__run {
  int64_t expert, begin, end; /* rows begin .. end-1 are used rows of `expert` */
  bool first, last;           /* begins, ends the expert's used rows */
} purr__run_t;
bool purr__table_next_run(const purr__table_t *table, int64_t end, int64_t *row, int64_t *expert, purr__run_t *out_run);

#endif
