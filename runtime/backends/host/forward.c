/* The forward pass on the host. */
#include "backends/host/pass.h"

/* Where g and u of a minibatch go: kept for backward, or into the rings. A minibatch is kept whole or not at all. */
static void gate_up_memory(const purr__pass_t *pass, const purr_saved_t *saved, const purr__minibatch_t *minibatch,
                           purr__bf16_t **gate, purr__bf16_t **up) {
  const int64_t inner = pass->plan->layer.intermediate_size;
  if (saved != NULL && minibatch->begin < pass->plan->kept_rows) {
    *gate = (purr__bf16_t *)purr__saved_at(saved, pass->plan, PURR__SAVED_GATE) + minibatch->begin * inner;
    *up = (purr__bf16_t *)purr__saved_at(saved, pass->plan, PURR__SAVED_UP) + minibatch->begin * inner;
  } else {
    *gate = purr__ring_at(pass, PURR__WS_RING_GATE, inner, minibatch);
    *up = purr__ring_at(pass, PURR__WS_RING_UP, inner, minibatch);
  }
}

static void first_half(purr__pass_t *pass, const purr_saved_t *saved, const purr__minibatch_t *minibatch) {
  const int64_t hidden = pass->plan->layer.hidden_size, inner = pass->plan->layer.intermediate_size;
  purr__bf16_t *x = purr__ring_at(pass, PURR__WS_RING_X, hidden, minibatch);
  purr__bf16_t *a = purr__ring_at(pass, PURR__WS_RING_A, inner, minibatch);
  purr__bf16_t *gate, *up;
  gate_up_memory(pass, saved, minibatch, &gate, &up);
  purr__step_pull(pass, minibatch, PURR__PULL_X);
  purr__step_gate_up(pass, minibatch, purr__quantize_rows(pass, x, minibatch->end - minibatch->begin, hidden, x), gate,
                     up);
  int64_t row = minibatch->begin, expert = 0;
  purr__run_t run;
  while (purr__table_next_run(&pass->table, minibatch->end, &row, &expert, &run)) {
    const int64_t offset = (run.begin - minibatch->begin) * inner;
    purr__step_swiglu(pass, PURR__TRACE_EPILOGUE, gate + offset, up + offset, (run.end - run.begin) * inner,
                      a + offset);
  }
  purr__pass_lap(pass, PURR_PHASE_GATE_UP);
}

static void second_half(purr__pass_t *pass, const purr__minibatch_t *minibatch) {
  const int64_t hidden = pass->plan->layer.hidden_size, inner = pass->plan->layer.intermediate_size;
  purr__bf16_t *a = purr__ring_at(pass, PURR__WS_RING_A, inner, minibatch);
  purr__bf16_t *y = purr__ring_at(pass, PURR__WS_RING_Y, hidden, minibatch);
  purr__batch_t batch = purr__batch_start(pass);
  int64_t num_rows = 0, row = minibatch->begin, expert = 0;
  purr__run_t run;
  while (purr__table_next_run(&pass->table, minibatch->end, &row, &expert, &run)) {
    const int64_t offset = run.begin - minibatch->begin, m = run.end - run.begin;
    purr__bf16_t *rows = a + offset * inner;
    purr__batch_add(
        &batch, (purr__gemm_t){.m = m,
                               .n = hidden,
                               .num_segments = 1,
                               .segment = {{.a = purr__rows(purr__quantize_rows(pass, rows, m, inner, rows), inner),
                                            .b = purr__batch_weight(&batch, &pass->weights->down, run.expert, hidden,
                                                                    inner, PURR_SCALE_ALONG_ROW, 0),
                                            .k = inner}},
                               .c = y + offset * hidden,
                               .c_dtype = PURR_DTYPE_BF16,
                               .c_row_stride = hidden,
                               .trace = pass->trace,
                               .trace_kind = PURR__TRACE_DOWN,
                               .expert = (int32_t)run.expert});
    purr__batch_end_expert(&batch);
    num_rows += m;
  }
  purr__batch_finish(&batch);
  purr__pass_lap(pass, PURR_PHASE_DOWN);
  purr__step_push(pass, minibatch);
  purr__result_add_rows_done(pass->result, num_rows);
}

/* The table lies where the longest-lived of its users is: saved, the caller's schedule, the workspace. */
static void make_table(purr__pass_t *pass, const purr__forward_call_t *call) {
  const purr_plan_t *plan = pass->plan;
  const size_t ids_bytes = (size_t)(pass->num_tokens * plan->layer.top_k) * sizeof(int32_t);
  void *kept = call->saved != NULL ? purr__saved_at(call->saved, plan, PURR__SAVED_SCHEDULE) : NULL;
  if (call->schedule == NULL) {
    pass->table =
        purr__table_at(plan, kept != NULL ? kept : purr__workspace_at(pass->workspace, plan, PURR__WS_SCHEDULE));
    purr__exchange_build_table(pass);
    pass->ids = purr__symmetric_at(pass->workspace, plan, pass->group->rank, PURR__SYM_IDS);
  } else {
    pass->table = purr__table_at(plan, call->schedule->table_memory);
    pass->ids = call->schedule->ids;
    if (kept != NULL) memcpy(kept, call->schedule->table_memory, plan->table_bytes);
  }
  if (call->saved != NULL) memcpy(purr__saved_at(call->saved, plan, PURR__SAVED_IDS), pass->ids, ids_bytes);
  const purr__table_header_t *header = pass->table.header;
  purr__result_set_rows(pass->result, pass->table.expert_count, header->num_local_experts, header->num_rows);
  purr__count(pass->context, PURR__COUNT_ROWS, (uint64_t)header->num_rows);
}

purr_status_t purr__host_forward(const purr__forward_call_t *call, purr_error_t *err) {
  purr__pass_t pass;
  purr__pass_start(&pass, &call->base);
  pass.weights = call->weights;
  pass.x = &call->x;
  pass.topk_weights = &call->topk_weights;
  if (call->saved != NULL) call->saved->filled = false;
  if (call->trace != NULL) {
    void *buffer;
    purr_status_t status = purr__trace_start(call->trace, purr__num_threads(pass.context), NULL, &buffer, err);
    if (status != PURR_STATUS_OK) return status;
    pass.trace = call->trace;
  }

  const bool scheduled = call->schedule != NULL;
  purr_status_t status = purr__exchange_begin(&pass, scheduled ? PURR__PASS_FORWARD_SCHEDULED : PURR__PASS_FORWARD,
                                              scheduled ? NULL : &call->topk_ids, err);
  if (status != PURR_STATUS_OK) return status;
  make_table(&pass, call);

  const purr_plan_t *plan = pass.plan;
  purr__bf16_t *shared_gate = call->saved != NULL ? purr__saved_at(call->saved, plan, PURR__SAVED_SHARED_GATE)
                                                  : purr__workspace_at(pass.workspace, plan, PURR__WS_SHARED_GATE);
  purr__bf16_t *shared_up = call->saved != NULL ? purr__saved_at(call->saved, plan, PURR__SAVED_SHARED_UP)
                                                : purr__workspace_at(pass.workspace, plan, PURR__WS_SHARED_UP);
  const purr__bf16_t *shared = purr__shared_forward(&pass, shared_gate, shared_up);

  purr__walk_t walk;
  purr__step_t step;
  purr__walk_start(&walk, &pass.table, plan->macrobatch_rows, plan->minibatch_rows, true);
  while (purr__walk_next(&walk, &step)) {
    if (step.kind == PURR__STEP_FIRST_HALF)
      first_half(&pass, call->saved, &step.minibatch);
    else
      second_half(&pass, &step.minibatch);
  }

  status = purr__exchange_end(&pass, err);
  if (status != PURR_STATUS_OK) return status;
  purr__sum_slots(&pass, shared, true, &call->output);
  if (call->saved != NULL) {
    call->saved->plan_hash = plan->hash;
    call->saved->num_tokens = pass.num_tokens;
    call->saved->filled = true;
  }
  return PURR_STATUS_OK;
}
