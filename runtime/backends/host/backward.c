/* The backward pass on the host.
 *
 * Macrobatches ascend. For each minibatch: pull dO and x, take g and u from what was kept or compute them again, then
 * dA' = dO.Wd, the SwiGLU backward with ds, and dX = dG.Wg + dU.Wu; then push dX home. When a macrobatch is complete
 * its rows enter the weight gradients: one chain of an expert's rows in canonical order. The one expert that the
 * boundary cuts carries its FP32 accumulators over in PURR__WS_WGRAD_CARRY. */
#include "backends/host/pass.h"

typedef struct backward {
  purr__pass_t pass;
  const purr_saved_t *saved;
  const purr__weight_views_t *gradients;
  bool accumulate;
} backward_t;

/* The rings of a minibatch. */
typedef struct rings {
  const purr__bf16_t *gate, *up;
  purr__bf16_t *x, *d_output, *d_gate, *d_up, *scaled_a, *d_x;
  float *d_a1; /* dA' of this minibatch alone */
} rings_t;

static bool is_kept(const backward_t *b, const purr__minibatch_t *minibatch) {
  return minibatch->begin < b->pass.plan->kept_rows;
}

static rings_t rings_of(const backward_t *b, const purr__minibatch_t *minibatch) {
  const purr__pass_t *pass = &b->pass;
  const int64_t hidden = pass->plan->layer.hidden_size, inner = pass->plan->layer.intermediate_size;
  rings_t rings = {.gate = purr__ring_at(pass, PURR__WS_RING_GATE, inner, minibatch),
                   .up = purr__ring_at(pass, PURR__WS_RING_UP, inner, minibatch),
                   .x = purr__ring_at(pass, PURR__WS_RING_X, hidden, minibatch),
                   .d_output = purr__ring_at(pass, PURR__WS_RING_D_OUTPUT, hidden, minibatch),
                   .d_gate = purr__ring_at(pass, PURR__WS_RING_D_GATE, inner, minibatch),
                   .d_up = purr__ring_at(pass, PURR__WS_RING_D_UP, inner, minibatch),
                   .scaled_a = purr__ring_at(pass, PURR__WS_RING_A, inner, minibatch),
                   .d_x = purr__ring_at(pass, PURR__WS_RING_Y, hidden, minibatch),
                   .d_a1 = purr__workspace_at(pass->workspace, pass->plan, PURR__WS_MINIBATCH_D_A)};
  if (is_kept(b, minibatch)) {
    rings.gate = (purr__bf16_t *)purr__saved_at(b->saved, pass->plan, PURR__SAVED_GATE) + minibatch->begin * inner;
    rings.up = (purr__bf16_t *)purr__saved_at(b->saved, pass->plan, PURR__SAVED_UP) + minibatch->begin * inner;
  }
  return rings;
}

static int64_t count_rows(const backward_t *b, const purr__minibatch_t *minibatch) {
  int64_t num_rows = 0, row = minibatch->begin, expert = 0;
  purr__run_t run;
  while (purr__table_next_run(&b->pass.table, minibatch->end, &row, &expert, &run)) num_rows += run.end - run.begin;
  return num_rows;
}

/* ---- data gradients ---- */

/* Scratch for the rows of a minibatch in MXFP8. */
static purr__bf16_t *quantized_rows(const backward_t *b) {
  return purr__workspace_at(b->pass.workspace, b->pass.plan, PURR__WS_QUANT_ROWS);
}

/* dA' = dO.Wd */
static void down_gradient(backward_t *b, const purr__minibatch_t *minibatch, const rings_t *rings) {
  purr__pass_t *pass = &b->pass;
  const int64_t hidden = pass->plan->layer.hidden_size, inner = pass->plan->layer.intermediate_size;
  const purr__bf16_t *d_output =
      purr__quantize_rows(pass, rings->d_output, minibatch->end - minibatch->begin, hidden, quantized_rows(b));
  purr__batch_t batch = purr__batch_start(pass);
  int64_t row = minibatch->begin, expert = 0;
  purr__run_t run;
  while (purr__table_next_run(&pass->table, minibatch->end, &row, &expert, &run)) {
    const int64_t offset = run.begin - minibatch->begin;
    purr__batch_add(
        &batch, (purr__gemm_t){.m = run.end - run.begin,
                               .n = inner,
                               .num_segments = 1,
                               .segment = {{.a = purr__rows(d_output + offset * hidden, hidden),
                                            .b = purr__batch_weight(&batch, &pass->weights->down, run.expert, hidden,
                                                                    inner, PURR_SCALE_ALONG_COLUMN, 0),
                                            .k = hidden}},
                               .c = rings->d_a1 + offset * inner,
                               .c_dtype = PURR_DTYPE_FP32,
                               .c_row_stride = inner});
    purr__batch_end_expert(&batch);
  }
  purr__batch_finish(&batch);
}

typedef struct activation_task {
  const backward_t *b;
  const rings_t *rings;
  int64_t begin, end;
} activation_task_t;

#define ROWS_PER_TASK 16

static void activation_backward(void *arg, int64_t task_idx) {
  const activation_task_t *task = arg;
  const purr__pass_t *pass = &task->b->pass;
  const rings_t *rings = task->rings;
  const int64_t inner = pass->plan->layer.intermediate_size, top_k = pass->plan->layer.top_k;
  const int64_t begin = task->begin + task_idx * ROWS_PER_TASK;
  for (int64_t row = begin; row < purr__min(begin + ROWS_PER_TASK, task->end); row++) {
    const int rank = pass->table.row_rank[row];
    if (rank < 0) continue;
    const int64_t slot = pass->table.row_slot[row], offset = (row - task->begin) * inner;
    const purr__source_t source = purr__source_of(pass, rank);
    const float weight = source.topk_weights[slot / top_k * source.topk_weights_row_stride +
                                             slot % top_k * source.topk_weights_column_stride];
    source.d_topk_weights[slot] = purr__host_swiglu_backward(
        rings->gate + offset, rings->up + offset, rings->d_a1 + offset, weight, pass->plan->layer.swiglu_limit, inner,
        rings->d_gate + offset, rings->d_up + offset, rings->scaled_a + offset);
  }
}

/* dX = dG.Wg + dU.Wu: one chain, all gate steps first. */
static void token_gradient(backward_t *b, const purr__minibatch_t *minibatch, const rings_t *rings) {
  purr__pass_t *pass = &b->pass;
  const int64_t hidden = pass->plan->layer.hidden_size, inner = pass->plan->layer.intermediate_size;
  const purr__view_t *const weights[2] = {&pass->weights->gate, &pass->weights->up};
  const purr__bf16_t *const gradients[2] = {rings->d_gate, rings->d_up};
  purr__batch_t batch = purr__batch_start(pass);
  int64_t row = minibatch->begin, expert = 0;
  purr__run_t run;
  while (purr__table_next_run(&pass->table, minibatch->end, &row, &expert, &run)) {
    const int64_t offset = run.begin - minibatch->begin, m = run.end - run.begin;
    purr__gemm_t chain = {.m = m,
                          .n = hidden,
                          .num_segments = 2,
                          .c = rings->d_x + offset * hidden,
                          .c_dtype = PURR_DTYPE_BF16,
                          .c_row_stride = hidden};
    for (int i = 0; i < 2; i++) {
      const purr__bf16_t *rows =
          purr__quantize_rows(pass, gradients[i] + offset * inner, m, inner, quantized_rows(b) + i * m * inner);
      chain.segment[i].a = purr__rows(rows, inner);
      chain.segment[i].b =
          purr__batch_weight(&batch, weights[i], run.expert, inner, hidden, PURR_SCALE_ALONG_COLUMN, i);
      chain.segment[i].k = inner;
    }
    purr__batch_add(&batch, chain);
    purr__batch_end_expert(&batch);
  }
  purr__batch_finish(&batch);
}

/* ---- weight gradients ---- */

/* One of the three gradients of an expert: [m, n] = a^T.b over rows of the macrobatch. */
typedef struct wgrad {
  bool wanted;
  const purr__view_t *out;
  int64_t m, n;
  purr__operand_t a, b; /* at the macrobatch's first row */
  int64_t a_row, b_row; /* elements of one row */
} wgrad_t;

static purr__operand_t from_row(purr__operand_t operand, int64_t row, int64_t row_elements) {
  operand.data = (const purr__bf16_t *)operand.data + row * row_elements;
  return operand;
}

/* In MXFP8 the weight gradients' operands are quantised along the tokens of the expert. The data gradients have used
 * the rings by then, and nothing else will. */
static void quantize_run(purr__pass_t *pass, const rings_t *rings, int64_t first_row, int64_t num_rows) {
  const int64_t hidden = pass->plan->layer.hidden_size, inner = pass->plan->layer.intermediate_size;
  purr__quantize_tokens(pass, rings->x + first_row * hidden, num_rows, hidden);
  purr__quantize_tokens(pass, rings->d_output + first_row * hidden, num_rows, hidden);
  purr__quantize_tokens(pass, rings->d_gate + first_row * inner, num_rows, inner);
  purr__quantize_tokens(pass, rings->d_up + first_row * inner, num_rows, inner);
  purr__quantize_tokens(pass, rings->scaled_a + first_row * inner, num_rows, inner);
}

static void weight_gradients(backward_t *b, int64_t macrobatch, int64_t end) {
  purr__pass_t *pass = &b->pass;
  const int64_t hidden = pass->plan->layer.hidden_size, inner = pass->plan->layer.intermediate_size;
  const int64_t begin = macrobatch * pass->plan->macrobatch_rows;
  const purr__minibatch_t whole = {.macrobatch = macrobatch, .begin = begin, .end = end};
  const rings_t rings = rings_of(b, &whole);
  const purr__weight_views_t *gradients = b->gradients;
  const wgrad_t wgrads[3] = {
      {gradients->has_gate, &gradients->gate, inner, hidden, purr__columns(rings.d_gate, inner),
       purr__columns(rings.x, hidden), inner, hidden},
      {gradients->has_up, &gradients->up, inner, hidden, purr__columns(rings.d_up, inner),
       purr__columns(rings.x, hidden), inner, hidden},
      {gradients->has_down, &gradients->down, hidden, inner, purr__columns(rings.d_output, hidden),
       purr__columns(rings.scaled_a, inner), hidden, inner},
  };
  float *carry = purr__workspace_at(pass->workspace, pass->plan, PURR__WS_WGRAD_CARRY);
  purr__batch_t batch = purr__batch_start(pass);
  int64_t row = begin, expert = 0;
  purr__run_t run;
  while (purr__table_next_run(&pass->table, end, &row, &expert, &run)) {
    quantize_run(pass, &rings, run.begin - begin, run.end - run.begin);
    for (int i = 0; i < 3; i++) {
      const wgrad_t *w = &wgrads[i];
      if (!w->wanted) continue;
      float *carried = carry + i * inner * hidden;
      purr__gemm_t problem = {.m = w->m,
                              .n = w->n,
                              .num_segments = 1,
                              .segment = {{.a = from_row(w->a, run.begin - begin, w->a_row),
                                           .b = from_row(w->b, run.begin - begin, w->b_row),
                                           .k = run.end - run.begin}},
                              .initial = run.first ? NULL : carried,
                              .initial_stride = w->n};
      if (run.last) {
        problem.c = purr__view_slice(w->out, run.expert, purr__dtype_bytes(w->out->dtype));
        problem.c_dtype = w->out->dtype;
        problem.c_row_stride = w->out->row_stride;
        problem.accumulate = b->accumulate;
      } else {
        problem.c = carried;
        problem.c_dtype = PURR_DTYPE_FP32;
        problem.c_row_stride = w->n;
      }
      purr__batch_add(&batch, problem);
    }
    purr__batch_end_expert(&batch);
    /* What was carried in is read before the expert that the other end cuts is carried out into the same memory. */
    if (!run.first) purr__batch_finish(&batch);
  }
  purr__batch_finish(&batch);
  purr__pass_lap(pass, PURR_PHASE_WGRAD);
}

/* Experts without rows: exact zeros, or left alone when adding. */
static void clear_empty_experts(const backward_t *b) {
  const purr_plan_t *plan = b->pass.plan;
  const struct {
    bool wanted;
    const purr__view_t *out;
    int64_t num_rows, num_columns;
  } all[3] = {
      {b->gradients->has_gate, &b->gradients->gate, plan->layer.intermediate_size, plan->layer.hidden_size},
      {b->gradients->has_up, &b->gradients->up, plan->layer.intermediate_size, plan->layer.hidden_size},
      {b->gradients->has_down, &b->gradients->down, plan->layer.hidden_size, plan->layer.intermediate_size},
  };
  if (b->accumulate) return;
  for (int i = 0; i < 3; i++)
    for (int64_t e = 0; all[i].wanted && e < plan->num_local_experts; e++) {
      if (b->pass.table.expert_count[e] > 0) continue;
      const int64_t bytes = purr__dtype_bytes(all[i].out->dtype);
      char *slice = purr__view_slice(all[i].out, e, bytes);
      for (int64_t row = 0; row < all[i].num_rows; row++)
        memset(slice + row * all[i].out->row_stride * bytes, 0, (size_t)(all[i].num_columns * bytes));
    }
}

/* ---- the pass ---- */

static void first_half(backward_t *b, const purr__minibatch_t *minibatch) {
  purr__pass_t *pass = &b->pass;
  const rings_t rings = rings_of(b, minibatch);
  const int64_t num_rows = minibatch->end - minibatch->begin;
  purr__step_pull(pass, minibatch, PURR__PULL_D_OUTPUT);
  purr__step_pull(pass, minibatch, PURR__PULL_X);
  if (!is_kept(b, minibatch)) {
    const int64_t hidden = pass->plan->layer.hidden_size, inner = pass->plan->layer.intermediate_size;
    purr__step_gate_up(pass, minibatch, purr__quantize_rows(pass, rings.x, num_rows, hidden, quantized_rows(b)),
                       purr__ring_at(pass, PURR__WS_RING_GATE, inner, minibatch),
                       purr__ring_at(pass, PURR__WS_RING_UP, inner, minibatch));
    purr__result_add_replayed(pass->result, count_rows(b, minibatch));
    purr__pass_lap(pass, PURR_PHASE_GATE_UP);
  }
  down_gradient(b, minibatch, &rings);
  activation_task_t task = {b, &rings, minibatch->begin, minibatch->end};
  purr__parallel_for(pass->context, (num_rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK, activation_backward, &task);
  purr__pass_lap(pass, PURR_PHASE_DOWN);
  token_gradient(b, minibatch, &rings);
  purr__pass_lap(pass, PURR_PHASE_DGRAD);
  /* The next macrobatch overwrites these rings at its first dispatch. */
  if (minibatch->ends_macrobatch) weight_gradients(b, minibatch->macrobatch, minibatch->end);
}

/* ds of this rank's slots lies in its symmetric memory; dropped slots get 0. */
static void deliver_router_gradient(const purr__pass_t *pass, const purr__view_t *out) {
  const int64_t top_k = pass->plan->layer.top_k;
  const float *slots = purr__source_of(pass, pass->group->rank).d_topk_weights;
  for (int64_t t = 0; t < pass->num_tokens; t++)
    for (int64_t k = 0; k < top_k; k++)
      ((float *)out->data)[t * out->row_stride + k * out->column_stride] =
          pass->ids[t * top_k + k] < 0 ? 0.0f : slots[t * top_k + k];
}

purr_status_t purr__host_backward(const purr__backward_call_t *call, purr_error_t *err) {
  backward_t b = {.saved = call->saved, .gradients = &call->gradients, .accumulate = call->accumulate};
  purr__pass_t *pass = &b.pass;
  purr__pass_start(pass, &call->base);
  const purr_plan_t *plan = pass->plan;
  pass->weights = call->weights;
  pass->x = &call->x;
  pass->d_output = &call->d_output;
  pass->topk_weights = &call->topk_weights;
  pass->table = purr__table_at(plan, purr__saved_at(call->saved, plan, PURR__SAVED_SCHEDULE));
  pass->ids = purr__saved_at(call->saved, plan, PURR__SAVED_IDS);
  const purr__table_header_t *header = pass->table.header;
  purr__result_set_rows(pass->result, pass->table.expert_count, header->num_local_experts, header->num_rows);
  purr__count(pass->context, PURR__COUNT_ROWS, (uint64_t)header->num_rows);

  purr_status_t status = purr__exchange_begin(pass, PURR__PASS_BACKWARD, NULL, err);
  if (status != PURR_STATUS_OK) return status;
  const purr__bf16_t *shared =
      purr__shared_backward(pass, purr__saved_at(call->saved, plan, PURR__SAVED_SHARED_GATE),
                            purr__saved_at(call->saved, plan, PURR__SAVED_SHARED_UP), b.gradients, b.accumulate);
  clear_empty_experts(&b);

  purr__walk_t walk;
  purr__step_t step;
  purr__walk_start(&walk, &pass->table, plan->macrobatch_rows, plan->minibatch_rows_backward, false);
  while (purr__walk_next(&walk, &step)) {
    if (step.kind == PURR__STEP_FIRST_HALF) {
      first_half(&b, &step.minibatch);
    } else {
      purr__step_push(pass, &step.minibatch);
      purr__result_add_rows_done(pass->result, count_rows(&b, &step.minibatch));
    }
  }

  status = purr__exchange_end(pass, err);
  if (status != PURR_STATUS_OK) return status;
  if (call->has_d_x) purr__sum_slots(pass, shared, false, &call->d_x);
  if (call->has_d_topk_weights) deliver_router_gradient(pass, &call->d_topk_weights);
  return PURR_STATUS_OK;
}
