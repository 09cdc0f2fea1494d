/* What the host backend's forward and backward share: where each rank's data is, the exchange between ranks, the steps
 * of a minibatch.
 *
 * A pass interprets the walk literally, on real rings. For each minibatch: pull its rows, compute, push the results
 * home. Ranks meet twice: after everybody's tokens and ids lie in symmetric memory, and after everybody has pushed. */
#ifndef PURR_HOST_PASS_H
#define PURR_HOST_PASS_H

#include "backends/host/math.h"
#include "launch/call.h"
#include "schedule/walk.h"

/* The passes that ranks can be in; all must be in the same. */
typedef enum purr__pass_kind {
  PURR__PASS_SCHEDULE = 1,
  PURR__PASS_FORWARD,
  PURR__PASS_FORWARD_SCHEDULED, /* with a schedule built before */
  PURR__PASS_BACKWARD,
} purr__pass_kind_t;

typedef struct purr__pass {
  purr_context_t *context;
  const purr_plan_t *plan;
  purr_workspace_t *workspace;
  purr_group_t *group;
  purr_result_t *result;
  int64_t num_tokens;
  const purr__weight_views_t *weights;
  /* This rank's tensors; at R = 1 rows are pulled straight from them. d_output is NULL in forward. */
  const purr__view_t *x, *d_output, *topk_weights;
  purr__table_t table;
  const int32_t *ids;  /* [T, K] of this rank */
  uint64_t clock_ns;   /* start of the phase that runs now */
  purr_trace_t *trace; /* NULL = no timeline is wanted */
} purr__pass_t;

void purr__pass_start(purr__pass_t *pass, const purr__call_t *call);
/* Charges the time since the last call to `phase`. */
void purr__pass_lap(purr__pass_t *pass, int phase);

/* ---- steps.c: the timeline ---- */

/* purr__parallel_for whose tasks are events of `kind`. */
void purr__pass_parallel(const purr__pass_t *pass, int kind, int64_t num_tasks, purr__task_fn task, void *arg);
/* What the calling thread itself did from `start_ns`, which is purr__pass_clock's, until now. */
void purr__pass_record(const purr__pass_t *pass, int kind, uint64_t start_ns);
static inline uint64_t purr__pass_clock(const purr__pass_t *pass) { return pass->trace != NULL ? purr__now_ns() : 0; }

/* ---- exchange.c ---- */

/* The first meeting. Puts this rank's header and, as far as given, ids, x, router weights and dO into symmetric memory,
 * waits for all ranks, and holds their headers against each other. On failure all ranks fail alike, and none reads
 * another's memory afterwards. */
purr_status_t purr__exchange_begin(purr__pass_t *pass, purr__pass_kind_t kind, const purr__view_t *topk_ids,
                                   purr_error_t *err);
/* Builds this rank's table from the gathered ids into pass->table. */
void purr__exchange_build_table(purr__pass_t *pass);
/* The last meeting: all pushes have landed, all pulls are done. */
purr_status_t purr__exchange_end(purr__pass_t *pass, purr_error_t *err);

/* A rank's data, as this rank addresses it. */
typedef struct purr__source {
  const purr__bf16_t *x, *d_output;
  int64_t x_stride, d_output_stride;
  const float *topk_weights;
  int64_t topk_weights_row_stride, topk_weights_column_stride;
  purr__bf16_t *slots;   /* [T * K, H] */
  float *d_topk_weights; /* [T * K] */
} purr__source_t;
purr__source_t purr__source_of(const purr__pass_t *pass, int rank);

/* ---- steps.c ---- */

typedef enum purr__pull_what { PURR__PULL_X, PURR__PULL_D_OUTPUT } purr__pull_what_t;
/* Pulls the rows of a minibatch into a ring; padding rows become zero. */
void purr__step_pull(purr__pass_t *pass, const purr__minibatch_t *minibatch, purr__pull_what_t what);
/* Pushes ring rows (y, or dX) to their slots at home. */
void purr__step_push(purr__pass_t *pass, const purr__minibatch_t *minibatch);
/* g and u of a minibatch from its tokens, [rows of the minibatch, H]. */
void purr__step_gate_up(purr__pass_t *pass, const purr__minibatch_t *minibatch, const purr__bf16_t *x,
                        purr__bf16_t *gate, purr__bf16_t *up);

/* a = bf16(silu(g) * u) with the layer's clamp, elementwise; an event of `kind`. */
void purr__step_swiglu(const purr__pass_t *pass, int kind, const purr__bf16_t *gate, const purr__bf16_t *up,
                       int64_t num_elements, purr__bf16_t *a);

/* The ring rows of a minibatch begin here. */
static inline int64_t purr__ring_row(const purr__pass_t *pass, const purr__minibatch_t *minibatch) {
  return minibatch->begin - minibatch->macrobatch * pass->plan->macrobatch_rows;
}
/* A BF16 ring of `columns`, at the minibatch's first row. */
static inline purr__bf16_t *purr__ring_at(const purr__pass_t *pass, int region, int64_t columns,
                                          const purr__minibatch_t *minibatch) {
  purr__bf16_t *ring = purr__workspace_at(pass->workspace, pass->plan, region);
  return ring + purr__ring_row(pass, minibatch) * columns;
}

/* out[t] = bf16(base[t] + sum over slots of weight * slots[t * K + k]) for this rank's tokens. base is [T, H] or NULL;
 * without `weighted` the weights are 1 (plain additions). */
void purr__sum_slots(purr__pass_t *pass, const purr__bf16_t *base, bool weighted, const purr__view_t *out);

/* ---- operands of the GEMMs ---- */

/* Rows of activations: element (row, k), k adjacent. */
static inline purr__operand_t purr__rows(const purr__bf16_t *data, int64_t row_stride) {
  return (purr__operand_t){data, PURR_DTYPE_BF16, row_stride, 1};
}
/* The same memory the other way round: element (column, k = row). */
static inline purr__operand_t purr__columns(const purr__bf16_t *data, int64_t row_stride) {
  return (purr__operand_t){data, PURR_DTYPE_BF16, 1, row_stride};
}
static inline const purr__bf16_t *purr__weight(const purr__view_t *view, int64_t expert) {
  return (const purr__bf16_t *)purr__view_slice(view, expert, sizeof(purr__bf16_t));
}

/* ---- batch.c: a grouped GEMM over the experts of a range of rows ----
 * In BF16 all problems run together at the end. In MXFP8 each expert's problems run as soon as they are complete: their
 * quantised weights share one scratch. Quantising a BF16 value and reading it back gives a BF16 value again, so the
 * same GEMM serves both precisions. */
typedef struct purr__batch {
  purr__pass_t *pass;
  purr__gemm_t *problems;
  int64_t num_problems;
} purr__batch_t;

purr__batch_t purr__batch_start(purr__pass_t *pass);
void purr__batch_add(purr__batch_t *batch, purr__gemm_t problem);
void purr__batch_end_expert(purr__batch_t *batch);
void purr__batch_finish(purr__batch_t *batch);

/* An expert's weight matrix [rows, columns] as the operand b of a problem. `along` is the contraction axis: its rows,
 * as in forward (element (row, k = column)), or its columns, as in the data gradients (element (column, k = row)).
 * `scratch_idx` is 0 or 1, a different one for each weight of an expert's problems. */
purr__operand_t purr__batch_weight(purr__batch_t *batch, const purr__view_t *view, int64_t expert, int64_t rows,
                                   int64_t columns, int32_t along, int scratch_idx);

/* Rows [num_rows, columns] for a GEMM that contracts over their columns: as they are, or in MXFP8 quantised into `to`,
 * which may be the rows themselves. Returns where the operand's data is. */
const purr__bf16_t *purr__quantize_rows(purr__pass_t *pass, const purr__bf16_t *rows, int64_t num_rows, int64_t columns,
                                        purr__bf16_t *to);
/* In MXFP8, quantises an expert's rows in place along the token axis, in blocks of 32 rows counted from the expert's
 * first row, the last one short. Always 32: a longer block could be cut by a macrobatch's boundary, and the bits would
 * depend on it. */
void purr__quantize_tokens(purr__pass_t *pass, purr__bf16_t *rows, int64_t num_rows, int64_t columns);

/* ---- shared.c: the shared expert of this rank's tokens ---- */

/* Leaves bf16(z * y) in PURR__WS_SHARED_OUT; returns it, or NULL without a shared expert. g and u go to `gate`, `up`.
 */
const purr__bf16_t *purr__shared_forward(purr__pass_t *pass, purr__bf16_t *gate, purr__bf16_t *up);
/* Leaves its dx in PURR__WS_SHARED_OUT, writes its weight gradients. */
const purr__bf16_t *purr__shared_backward(purr__pass_t *pass, const purr__bf16_t *gate, const purr__bf16_t *up,
                                          const purr__weight_views_t *gradients, bool accumulate);

/* ---- the backend's functions ---- */
purr_status_t purr__host_build_schedule(const purr__schedule_call_t *call, purr_error_t *err);
purr_status_t purr__host_forward(const purr__forward_call_t *call, purr_error_t *err);
purr_status_t purr__host_backward(const purr__backward_call_t *call, purr_error_t *err);

#endif
