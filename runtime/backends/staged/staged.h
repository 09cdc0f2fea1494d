/* The staged backend: one kernel for each stage, for any GPU from sm_80 on. Forward, BF16.
 *
 *   count, place   the routing table from the ids; of few, both in one
 *   gate_up        rows gathered from x, SwiGLU in the epilogue; the shared expert rides along
 *   down           results scattered to their slots; likewise. With one slot a token, and nothing to add: to the output
 *   slot_sum       output = bf16(shared + sum of s * y)
 *
 * A call only enqueues. What it finds wrong on the way, the kernels after it see in the table's status word and return
 * at once; the last one tells the result, and its last block makes that final. Calls that overlap in one workspace
 * find out on the device: kernels/turn.cuh. */
#ifndef PURR_STAGED_H
#define PURR_STAGED_H

#include "kernels/layout.h"
#include "launch/call.h"
#include "package/package.h"
#include "result/mirror.h"

/* The weights as kernels take them. The maps are for kernels that load through the copy engine. */
typedef struct purr__staged_weights {
  purr__weight_t gate, up, down;                      /* routed */
  purr__weight_t shared_gate, shared_up, shared_down; /* one expert each */
  const void *shared_expert_gate;
  purr__gemm_maps_t gate_up_maps, down_maps, shared_gate_up_maps, shared_down_maps; /* without the maps of a */
  void *device_memory; /* pointers and maps of experts that lie anywhere */
  uint64_t device_bytes;
} purr__staged_weights_t;

purr_status_t purr__staged_prepare_weights(purr_weights_t *weights, purr_error_t *err);
void purr__staged_release_weights(purr_weights_t *weights);
/* The two without the object; `staged` is zero at first. */
purr_status_t purr__staged_fill_weights(const purr_weights_t *weights, purr__staged_weights_t *staged,
                                        purr_error_t *err);
void purr__staged_drop_weights(const purr_weights_t *weights, purr__staged_weights_t *staged);

/* Describes a BF16 matrix [depth, rows, k] to the copy engine; depth 0: [rows, k]. */
purr_status_t purr__staged_encode_map(purr__device_t *device, purr__tensor_map_t *map, const void *data, int64_t k,
                                      int64_t rows, int64_t depth, int64_t row_stride, int64_t depth_stride,
                                      int box_rows, purr_error_t *err);

/* Describes any BF16 tensor to the copy engine: sizes and box in elements, fastest first, strides in bytes. */
purr_status_t purr__staged_encode_tensor(purr__device_t *device, purr__tensor_map_t *map, const void *data,
                                         int num_dims, const uint64_t *size, const uint64_t *stride,
                                         const uint32_t *box, purr_error_t *err);

/* How the building of a table went, in device memory beside it. */
static inline purr__device_status_t *purr__staged_status(const purr_plan_t *plan, const purr__table_t *table) {
  char *block = (char *)table->header - plan->table[PURR__TABLE_HEADER].offset;
  return (purr__device_status_t *)(block + plan->table[PURR__TABLE_STATUS].offset);
}

/* A routing table as kernels take it. */
static inline purr__device_table_t purr__staged_device_table(const purr__table_t *table) {
  return (purr__device_table_t){.header = (purr__device_table_header_t *)table->header,
                                .expert_count = table->expert_count,
                                .expert_begin = table->expert_begin,
                                .row_rank = table->row_rank,
                                .row_slot = table->row_slot,
                                .tile_begin = table->tile_begin,
                                .tile_expert = table->tile_expert};
}

/* A call's turn in its workspace, for the kernels of this call alone. */
purr__turn_t purr__staged_turn(const purr__call_t *call, int64_t first_blocks, int64_t last_blocks);
/* The turn as one kernel of the call sees it; `place` is a sum of PURR__TURN_*. */
static inline purr__turn_t purr__staged_turn_at(const purr__turn_t *turn, int32_t place) {
  purr__turn_t own = *turn;
  own.place = place;
  return own;
}

/* ---- peers.c: the other ranks, R > 1 ---- */
/* Ranks of the workspace's group that share its device. */
int purr__staged_num_on_device(const purr_workspace_t *workspace);
purr_status_t purr__staged_prepare_workspace(purr_workspace_t *workspace, purr_error_t *err);
const purr__ids_t *purr__staged_sources(const purr_workspace_t *workspace); /* device [R], NULL when R = 1 */
void *const *purr__staged_ranks(const purr_workspace_t *workspace);         /* device [R], NULL when R = 1 */
purr__device_rank_header_t *purr__staged_header(const purr__call_t *call);
/* The ids of this rank as kernels take them. */
static inline purr__ids_t purr__staged_ids(const purr__view_t *view, int64_t num_tokens) {
  return (purr__ids_t){.data = view->data,
                       .num_tokens = num_tokens,
                       .row_stride = view->row_stride,
                       .column_stride = view->column_stride,
                       .is_int64 = view->dtype == PURR_DTYPE_INT64};
}
/* What all ranks must agree on in a call: the layer, and whether tokens travel. */
uint64_t purr__staged_tag(const purr__call_t *call, bool has_tokens);
/* Blocks of the exchange. */
int64_t purr__staged_exchange_blocks(const purr__call_t *call);
/* Enqueues: the call takes the workspace, and this rank's ids, and x unless it is NULL, go where the others reach them;
 * with one rank nothing goes. */
purr_status_t purr__staged_exchange(const purr__call_t *call, const purr__turn_t *turn, const purr__view_t *topk_ids,
                                    const purr__view_t *x, purr_error_t *err);
/* The wait for all ranks. `found`, unless NULL, gets PEER_FAILED. */
purr__barrier_params_t purr__staged_barrier_params(const purr__call_t *call, const purr__turn_t *turn, int32_t place,
                                                   purr__device_status_t *found);
purr_status_t purr__staged_barrier(const purr__call_t *call, const purr__turn_t *turn, int32_t place,
                                   purr__device_status_t *found, purr_error_t *err);
/* The group is whole; the caller's stream belongs to the device, and is its own where ranks share one. Entered. */
purr_status_t purr__staged_check_stream(const purr__call_t *call, purr_error_t *err);
/* The last of the checks: the call is going to be enqueued, in a stream in which no other rank waits. Entered. */
purr_status_t purr__staged_start_call(const purr__call_t *call, purr_error_t *err);

/* ---- stages.c: kernels of Triton's in the place of stages ---- */
/* One product of the routed experts: c of the problem, or another place for it. */
purr_status_t purr__staged_stage_gemm(const purr__forward_call_t *call, const purr__gemm_params_t *gemm,
                                      const purr__weight_t *weight, const purr__rows_t *c, purr_error_t *err);
/* Gate and up where a kernel of Triton's makes them, and the activation behind them. */
purr_status_t purr__staged_stage_activation(const purr__forward_call_t *call, const purr__gemm_params_t *gate_up,
                                            const purr__table_t *table, purr_error_t *err);
/* The sum over slots; the library's own kernel then ends the call. */
purr_status_t purr__staged_stage_combine(const purr__forward_call_t *call, const purr__slot_sum_params_t *sum,
                                         purr_error_t *err);

/* ---- forward.c: what the megakernel's forward has in common ---- */
/* Rows of H elements in a region of every rank's symmetric memory. */
purr__rows_t purr__staged_rows_of_ranks(const purr__call_t *call, int region, int32_t placement);
/* Where the results of the routed experts go: by slot to the ranks that their tokens are of, or multiplied by the
 * slots' weights into the output. */
typedef struct purr__staged_results {
  purr__rows_t rows;
  const float *slot_weights; /* NULL: as they are */
  int64_t slot_weights_stride;
} purr__staged_results_t;
purr__staged_results_t purr__staged_results_of(const purr__forward_call_t *call);
/* The routing table that a call fills: its own, that of saved, or the one that was built before. */
purr__table_t purr__staged_table_of(const purr__forward_call_t *call);
/* Blocks of the schedule for each rank. */
int32_t purr__staged_num_chunks(const purr__call_t *call);
/* Parameters of the schedule's kernels; the turn's place is to be set. */
purr__schedule_params_t purr__staged_schedule_params(const purr__call_t *call, const purr__turn_t *turn,
                                                     bool is_forward, const purr__view_t *topk_ids,
                                                     const purr__table_t *table);
/* Whether the schedule's kernel can wait for the other ranks itself. It then holds an SM with each of its blocks, which
 * are a cluster, in one GPC. Those of all ranks of the device together hold half of its SMs at most: then all find a
 * place at the same time, since a GPC has room for clusters on more than half of its SMs, if it has for one. */
bool purr__staged_schedule_can_meet(const purr__call_t *call);
/* Enqueues the kernels of the schedule, with the megakernel's order of work where that is not NULL.
 * @param meets  the other ranks are waited for first, which only a schedule that can does. */
purr_status_t purr__staged_build_table(const purr__call_t *call, const purr__turn_t *turn, bool is_forward, bool meets,
                                       const purr__view_t *topk_ids, const purr__table_t *table,
                                       const purr__unit_order_t *order, purr_error_t *err);
/* Enqueues a copy of a schedule that was built before to saved, where there are both. */
purr_status_t purr__staged_keep_schedule(const purr__forward_call_t *call, purr_error_t *err);
/* Enqueues the sum over slots, which ends the call; how many blocks it has. */
purr_status_t purr__staged_sum(const purr__forward_call_t *call, const purr__turn_t *turn,
                               const purr__staged_weights_t *weights, const purr__table_t *table, purr_error_t *err);
int64_t purr__staged_sum_blocks(const purr__call_t *call);
/* A call that could not be enqueued to its end gives nothing back: the next one finds the workspace free all the same.
 */
purr_status_t purr__staged_end_turn(const purr__call_t *call, purr_status_t status);
/* Enters the device, checks streams and tensors, calls `enqueue`, and notes what saved holds. */
purr_status_t purr__staged_run_forward(const purr__forward_call_t *call,
                                       purr_status_t (*enqueue)(const purr__forward_call_t *call, purr_error_t *err),
                                       purr_error_t *err);

/* Builds a schedule, with tiles as high as `order` says where it is not NULL. */
purr_status_t purr__staged_run_schedule(const purr__schedule_call_t *call, const purr__unit_order_t *order,
                                        purr_error_t *err);

purr_status_t purr__staged_build_schedule(const purr__schedule_call_t *call, purr_error_t *err);
purr_status_t purr__staged_forward(const purr__forward_call_t *call, purr_error_t *err);
purr_status_t purr__staged_backward(const purr__backward_call_t *call, purr_error_t *err);

#endif
