/* The plan: every decision that does not need data. Each byte layout is a table of regions, so that it can be printed,
 * checked and handed to kernels. */
#ifndef PURR_PLAN_H
#define PURR_PLAN_H

#include "config/config.h"

/* One named piece of a block of memory. */
typedef struct purr__region {
  const char *name;
  uint64_t offset, bytes;
} purr__region_t;

/* Memory that peers read and write; the same on every rank. */
enum {
  PURR__SYM_HEADER,         /* host: see exchange.c; GPU: purr__device_rank_header_t */
  PURR__SYM_BARRIER,        /* GPU: uint64 [R], the epoch that each rank has come to. Up to the ids, offsets depend on R
                               alone, so that layers can share a workspace */
  PURR__SYM_IDS,            /* int32 [max_tokens, K] */
  PURR__SYM_TOPK_WEIGHTS,   /* fp32 [max_tokens, K] */
  PURR__SYM_TOKENS,         /* bf16 [max_tokens, H], x; absent when R = 1 */
  PURR__SYM_D_OUTPUT,       /* bf16 [max_tokens, H]; absent when R = 1 */
  PURR__SYM_SLOTS,          /* bf16 [max_tokens * K, H], the combine buffer: y in forward, dX rows in backward;
                               absent where down writes the output */
  PURR__SYM_D_TOPK_WEIGHTS, /* fp32 [max_tokens, K] */
  PURR__NUM_SYM_REGIONS
};

/* A rank's own memory. Row r of the schedule lives in ring row r mod macrobatch_rows. */
enum {
  PURR__WS_SCHEDULE,    /* the routing table, where the caller gives none */
  PURR__WS_RANKS,       /* host: for each rank the address of its ids and its number of tokens */
  PURR__WS_CHUNK_COUNT, /* GPU: scratch of the schedule, see purr__schedule_params_t */
  PURR__WS_CHUNK_BAD,
  PURR__WS_STAGE_SCRATCH, /* scratch memory of Triton's kernels, one launch after the other */
  PURR__WS_UNITS,         /* megakernel: purr__unit_t */
  PURR__WS_UNIT_SYNC,     /* megakernel: purr__unit_sync_t and what follows it */
  PURR__WS_TASKS,         /* the host backend's list of the problems of one grouped GEMM: three an expert at most */
  PURR__WS_RING_X,        /* bf16 [ring, H] */
  PURR__WS_RING_Y,        /* bf16 [ring, H]: y, in backward dX rows */
  PURR__WS_RING_A,        /* bf16 [ring, I]: a, in backward s*a */
  PURR__WS_RING_GATE,     /* bf16 [ring, I]: g where it is not kept, or replayed */
  PURR__WS_RING_UP,       /* bf16 [ring, I] */
  PURR__WS_RING_D_OUTPUT, /* bf16 [ring, H] */
  PURR__WS_RING_D_GATE,   /* bf16 [ring, I] */
  PURR__WS_RING_D_UP,     /* bf16 [ring, I] */
  PURR__WS_MINIBATCH_D_A, /* fp32 [largest minibatch, I]: dA' */
  PURR__WS_QUANT_ROWS,    /* MXFP8: bf16 [largest minibatch, max(H, 2I)]: rows quantised for one GEMM */
  PURR__WS_QUANT_WEIGHTS, /* MXFP8: bf16 [2, I * H]: one expert's weights quantised for one GEMM */
  PURR__WS_WGRAD_CARRY,   /* fp32 [3, I * H]: accumulators of the one expert that a macrobatch boundary cuts */
  PURR__WS_SHARED_GATE,   /* bf16 [max_tokens, S], where it is not kept */
  PURR__WS_SHARED_UP,     /* bf16 [max_tokens, S] */
  PURR__WS_SHARED_A,      /* bf16 [max_tokens, S] */
  PURR__WS_SHARED_OUT,    /* bf16 [max_tokens, H]: the shared expert's output, in backward its dx */
  PURR__WS_SHARED_D_A,    /* fp32 [max_tokens, S] */
  PURR__WS_SHARED_D_GATE, /* bf16 [max_tokens, S] */
  PURR__WS_SHARED_D_UP,   /* bf16 [max_tokens, S] */
  PURR__WS_SHARED_SCORE,  /* fp32 [2, max_tokens]: z, and the gradient of its logit */
  PURR__WS_SHARED_D_X,    /* fp32 [max_tokens, H]: the chain of its dx before the gate's step */
  PURR__NUM_WS_REGIONS
};

/* What a forward keeps for its backward. */
enum {
  PURR__SAVED_SCHEDULE,
  PURR__SAVED_IDS,         /* int32 [max_tokens, K] of this rank */
  PURR__SAVED_GATE,        /* bf16 [kept_rows, I] */
  PURR__SAVED_UP,          /* bf16 [kept_rows, I] */
  PURR__SAVED_SHARED_GATE, /* bf16 [max_tokens, S] */
  PURR__SAVED_SHARED_UP,   /* bf16 [max_tokens, S] */
  PURR__NUM_SAVED_REGIONS
};

/* The routing table's own layout; see schedule/table.h. */
enum {
  PURR__TABLE_HEADER,
  PURR__TABLE_EXPERT_COUNT,
  PURR__TABLE_EXPERT_BEGIN,
  PURR__TABLE_ROW_RANK,
  PURR__TABLE_ROW_SLOT,
  PURR__TABLE_STATUS,      /* GPU: purr__device_status_t, how the building went */
  PURR__TABLE_TILE_BEGIN,  /* GPU: int32 [E_l + 1], tiles of the grouped GEMMs before each expert */
  PURR__TABLE_TILE_EXPERT, /* GPU: int32 [tiles], the expert of each tile */
  PURR__NUM_TABLE_REGIONS
};

struct purr__kernel;
struct purr__stages;

/* A variant of the forward megakernel. */
typedef struct purr__mega_variant {
  const struct purr__kernel *kernel, *traced; /* traced: the same with a timeline, NULL where there is none */
  int32_t tile_rows, traced_tile_rows;
} purr__mega_variant_t;

/* The kernels of a GPU plan. The tma ones are NULL where the device has none. */
typedef struct purr__plan_kernels {
  const struct purr__kernel *schedule, *schedule_count, *schedule_place;
  const struct purr__kernel *gate_up, *down, *gate_up_tma, *down_tma, *slot_sum;
  const struct purr__kernel *exchange, *barrier; /* used when R > 1 */
  const struct purr__kernel *unit_list;
  purr__mega_variant_t forward; /* of the mega backend; which one says forward_choice.def */
} purr__plan_kernels_t;

struct purr_plan {
  purr__object_t object;
  purr_layer_desc_t layer; /* after overrides, defaults filled in */
  purr__texts_t texts;     /* name, and the pinned package */
  const char *name;        /* texts.name */
  int backend;             /* chosen */
  char backend_reason[256];
  char forward_reason[384];    /* why this variant of the megakernel; "" without */
  struct purr__device *device; /* NULL: the host backend */
  purr__plan_kernels_t kernels;
  struct purr__stages *stages; /* of Triton's; NULL = none. plan/stages.h */
  int num_sms, tile_m, tile_n;
  int64_t num_local_experts;
  int64_t max_rows; /* of the schedule of one step, padding included */
  int64_t min_minibatch_rows_forward, min_minibatch_rows_backward;
  int64_t minibatch_rows, minibatch_rows_backward;
  int64_t macrobatch_rows; /* rows of the ring; see purr__plan_batches */
  int64_t kept_rows; /* rows 0 .. kept_rows-1 keep g and u for backward; a multiple of the macrobatch or max_rows */
  purr__region_t sym[PURR__NUM_SYM_REGIONS];
  purr__region_t ws[PURR__NUM_WS_REGIONS];
  purr__region_t saved[PURR__NUM_SAVED_REGIONS];
  purr__region_t table[PURR__NUM_TABLE_REGIONS];
  uint64_t sym_bytes, ws_bytes, saved_bytes, table_bytes, ring_bytes, weight_bytes;
  uint64_t hash;
};

#define PURR__MEMORY_ALIGNMENT 256

/* ---- steps of purr_plan_create ---- */
/* Chooses plan->backend, and the device and kernels of a GPU backend. `device_idx` is -1 for the current device. */
purr_status_t purr__plan_choose_backend(purr_plan_t *plan, int device_idx, purr_error_t *err);
/* Gives a plan of the mega backend this variant of the forward megakernel, and its twin with a timeline. The byte
 * layout depends on it. MISSING_KERNEL, or what purr__kernels_find returns, where the packages do not have it. */
purr_status_t purr__plan_take_forward(purr_plan_t *plan, const char *entry, purr_error_t *err);
/* "host", "staged", "mega", "auto". */
const char *purr__backend_name(int32_t backend);
/* False when some size does not fit in 63 bits. Starts afresh when called again. */
bool purr__plan_lay_out(purr_plan_t *plan);

/* Whether a GPU's down writes the output itself: with one slot a token, and nothing to be added to it, the sum over
 * slots is a product, and no combine buffer is needed. */
bool purr__plan_sums_in_down(const purr_plan_t *plan);

/* How the plan's backend cuts a call's rows; all 0 where it takes them at once. */
typedef struct purr__batches {
  int64_t minibatch_rows; /* of forward */
  int64_t ring_rows;
  int32_t tile_rows; /* the megakernel's: the others come in tiles of it; else 0 */
} purr__batches_t;
purr__batches_t purr__plan_batches(const purr_plan_t *plan);

/* ---- where things are (place.c) ---- */
/* INVALID_ARGUMENT, with both places, unless what was made for the plan `other` lies where `plan` runs. Hashes do not
 * tell: ranks of one group agree on them and are on different devices. `thing` is "the weights". */
purr_status_t purr__plan_check_place(const purr_plan_t *plan, const purr_plan_t *other, const char *thing,
                                     purr_error_t *err);
/* INVALID_ARGUMENT unless `memory` lies on the plan's device; any will do for the host, and NULL is not looked at. */
purr_status_t purr__plan_check_memory(const purr_plan_t *plan, const void *memory, const char *name, purr_error_t *err);
#define PURR__TASK_BYTES 512 /* room for one purr__gemm_t */

/* A minibatch boundary moves by at most a quarter of a minibatch, to an expert's boundary. */
static inline int64_t purr__minibatch_slack(int64_t minibatch_rows) {
  return minibatch_rows / 4 / PURR__ROW_ALIGNMENT * PURR__ROW_ALIGNMENT;
}
/* Bits that hold 0 .. num - 1. */
static inline int purr__num_bits(int64_t num) {
  int bits = 0;
  while (bits < 62 && (int64_t)1 << bits < num) bits++;
  return bits;
}
/* Most rows that a minibatch can have. */
static inline int64_t purr__max_minibatch(int64_t macrobatch_rows, int64_t minibatch_rows) {
  return purr__min(macrobatch_rows, minibatch_rows + purr__minibatch_slack(minibatch_rows));
}

#endif
