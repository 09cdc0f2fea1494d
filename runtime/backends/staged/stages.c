/* Kernels that Triton compiled in the place of stages: what each is given of a call. plan/stages.h lists the values. */
#include "plan/stages.h"

#include "backends/staged/staged.h"

#define TURN_OWNER_SHIFT 12 /* of a turn word >> 28: ticket, then blocks of the first kernel; see purr__turn_t */

/* What every stage is given. Its kernel does nothing unless *status is 0 and *turn >> 28 is turn_owner: see turn.cuh.
 */
static void give_common(purr__stage_value_t values[PURR__NUM_STAGE_VALUES], const purr__device_status_t *status,
                        const purr__turn_t *turn) {
  values[PURR__STAGE_status].pointer = &status->status;
  values[PURR__STAGE_turn].pointer = turn->word;
  values[PURR__STAGE_turn_owner].integer = (int64_t)turn->ticket << TURN_OWNER_SHIFT | turn->first_blocks;
}

static void *scratch_of(const purr__forward_call_t *call) {
  return purr__workspace_at(call->base.workspace, call->base.plan, PURR__WS_STAGE_SCRATCH);
}

/* One product of the routed experts: c of the problem, or another place for it. */
purr_status_t purr__staged_stage_gemm(const purr__forward_call_t *call, const purr__gemm_params_t *gemm,
                                      const purr__weight_t *weight, const purr__rows_t *c, purr_error_t *err) {
  const purr__gemm_t *routed = &gemm->problem[0];
  purr__stage_value_t values[PURR__NUM_STAGE_VALUES] = {0};
  if (weight->by_expert != NULL)
    return purr__fail(
        err, PURR_STATUS_UNSUPPORTED,
        "the experts' weights are given by a pointer each, which a grouped_gemm kernel of Triton's does not "
        "take; give one tensor for all");
  give_common(values, gemm->status, &gemm->turn);
  values[PURR__STAGE_slot].pointer = routed->row_slot;
  values[PURR__STAGE_expert_begin].pointer = routed->expert_begin;
  values[PURR__STAGE_expert_count].pointer = routed->expert_count;
  values[PURR__STAGE_tile_begin].pointer = routed->tile_begin;
  values[PURR__STAGE_tile_expert].pointer = routed->tile_expert;
  values[PURR__STAGE_num_experts].integer = routed->num_experts;
  values[PURR__STAGE_a].pointer = routed->a.data;
  values[PURR__STAGE_a_stride].integer = routed->a.row_stride;
  values[PURR__STAGE_a_divisor].integer = routed->a.placement == PURR__ROWS_TOKEN ? routed->top_k : 0;
  values[PURR__STAGE_b].pointer = weight->data;
  values[PURR__STAGE_b_expert_stride].integer = weight->expert_stride;
  values[PURR__STAGE_b_stride].integer = weight->row_stride;
  values[PURR__STAGE_c].pointer = c->data;
  values[PURR__STAGE_c_stride].integer = c->row_stride;
  values[PURR__STAGE_c_scatter].integer = c->placement == PURR__ROWS_SLOT;
  values[PURR__STAGE_n].integer = routed->n;
  values[PURR__STAGE_k].integer = routed->k;
  return purr__stage_launch(call->base.plan->stages, PURR__STAGE_GROUPED_GEMM, values, scratch_of(call),
                            call->base.stream, err);
}

/* Gate and up where a kernel of Triton's makes them, and the activation behind them. */
purr_status_t purr__staged_stage_activation(const purr__forward_call_t *call, const purr__gemm_params_t *gate_up,
                                            const purr__table_t *table, purr_error_t *err) {
  const purr__gemm_t *routed = &gate_up->problem[0];
  const purr__stages_t *stages = call->base.plan->stages;
  purr_status_t status = PURR_STATUS_OK;
  for (int i = 0; i < 2 && status == PURR_STATUS_OK && purr__stages_have(stages, PURR__STAGE_GROUPED_GEMM); i++)
    status = purr__staged_stage_gemm(call, gate_up, &routed->b[i], &routed->saved[i], err);
  if (status != PURR_STATUS_OK) return status;
  purr__stage_value_t values[PURR__NUM_STAGE_VALUES] = {0};
  give_common(values, gate_up->status, &gate_up->turn);
  values[PURR__STAGE_rows].pointer = &table->header->num_padded_rows;
  values[PURR__STAGE_gate].pointer = routed->saved[0].data;
  values[PURR__STAGE_up].pointer = routed->saved[1].data;
  values[PURR__STAGE_out].pointer = routed->c.data;
  values[PURR__STAGE_columns].integer = routed->n;
  values[PURR__STAGE_limit].real = (double)routed->swiglu_limit;
  return purr__stage_launch(stages, PURR__STAGE_ACTIVATION, values, scratch_of(call), call->base.stream, err);
}

/* The sum over slots; the library's own kernel then ends the call. */
purr_status_t purr__staged_stage_combine(const purr__forward_call_t *call, const purr__slot_sum_params_t *sum,
                                         purr_error_t *err) {
  const int64_t id_words = sum->ids.is_int64 ? 2 : 1;
  const int64_t row_stride = sum->ids.row_stride != 0 ? sum->ids.row_stride : sum->top_k;
  purr__stage_value_t values[PURR__NUM_STAGE_VALUES] = {0};
  if (call->base.num_tokens == 0) return PURR_STATUS_OK;
  give_common(values, sum->status, &sum->turn);
  values[PURR__STAGE_ids].pointer = sum->ids.data;
  values[PURR__STAGE_ids_stride].integer = row_stride * id_words;
  values[PURR__STAGE_ids_step].integer = sum->ids.column_stride * id_words;
  values[PURR__STAGE_weights].pointer = sum->topk_weights;
  values[PURR__STAGE_weights_stride].integer = sum->weights_row_stride;
  values[PURR__STAGE_weights_step].integer = sum->weights_column_stride;
  values[PURR__STAGE_slots].pointer = sum->slots;
  values[PURR__STAGE_slots_stride].integer = sum->slots_row_stride;
  values[PURR__STAGE_out].pointer = sum->out;
  values[PURR__STAGE_out_stride].integer = sum->out_row_stride;
  values[PURR__STAGE_num_tokens].integer = call->base.num_tokens;
  values[PURR__STAGE_top_k].integer = sum->top_k;
  values[PURR__STAGE_hidden].integer = sum->hidden;
  return purr__stage_launch(call->base.plan->stages, PURR__STAGE_COMBINE, values, scratch_of(call), call->base.stream,
                            err);
}
