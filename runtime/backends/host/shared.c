/* The shared expert: a dense MLP over this rank's own tokens, always in BF16, with an optional sigmoid gate z.
 *
 * Backward mirrors the routed experts with z in the place of the router weight s: dA' = dO.Wd, dz = <dA', a>,
 * dA = z*dA', dWd = bf16(z*a)^T.dO, and the gate's logit adds dz*z*(1-z)*w to dx as the last step of its chain. */
#include "backends/host/pass.h"

#define TOKENS_PER_TASK 16

static void *scratch(const purr__pass_t *pass, int region) {
  return purr__workspace_at(pass->workspace, pass->plan, region);
}

static purr__operand_t token_rows(const purr__view_t *view) {
  return purr__rows((const purr__bf16_t *)view->data, view->row_stride);
}
static purr__operand_t token_columns(const purr__view_t *view) {
  return purr__columns((const purr__bf16_t *)view->data, view->row_stride);
}
static purr__operand_t weight_rows(const purr__view_t *view) {
  return purr__rows(purr__weight(view, 0), view->row_stride);
}
static purr__operand_t weight_columns(const purr__view_t *view) {
  return purr__columns(purr__weight(view, 0), view->row_stride);
}

/* ---- forward ---- */

typedef struct gate_task {
  purr__pass_t *pass;
  float *z;
  purr__bf16_t *out;
} gate_task_t;

static void apply_gate(void *arg, int64_t task_idx) {
  const gate_task_t *task = arg;
  const int64_t hidden = task->pass->plan->layer.hidden_size;
  const int64_t begin = task_idx * TOKENS_PER_TASK;
  for (int64_t t = begin; t < purr__min(begin + TOKENS_PER_TASK, task->pass->num_tokens); t++)
    purr__host_scale(task->out + t * hidden, task->z[t], hidden, task->out + t * hidden);
}

/* z[t] = sigmoid(x[t] . w): one chain over H for each token. */
static float *gate_scores(purr__pass_t *pass) {
  float *z = scratch(pass, PURR__WS_SHARED_SCORE);
  const purr__gemm_t logits = {.m = pass->num_tokens,
                               .n = 1,
                               .num_segments = 1,
                               .segment = {{.a = token_rows(pass->x),
                                            .b = weight_rows(&pass->weights->shared_expert_gate),
                                            .k = pass->plan->layer.hidden_size}},
                               .c = z,
                               .c_dtype = PURR_DTYPE_FP32,
                               .c_row_stride = 1,
                               .trace = pass->trace,
                               .trace_kind = PURR__TRACE_SHARED_EPILOGUE,
                               .expert = -1};
  purr__host_gemm(pass->context, &logits, 1);
  for (int64_t t = 0; t < pass->num_tokens; t++) z[t] = purr__host_sigmoid(z[t]);
  return z;
}

static int64_t num_token_tasks(const purr__pass_t *pass) {
  return (pass->num_tokens + TOKENS_PER_TASK - 1) / TOKENS_PER_TASK;
}

const purr__bf16_t *purr__shared_forward(purr__pass_t *pass, purr__bf16_t *gate, purr__bf16_t *up) {
  const int64_t inner = pass->plan->layer.shared_intermediate_size, hidden = pass->plan->layer.hidden_size;
  const purr__weight_views_t *weights = pass->weights;
  if (inner == 0) return NULL;
  purr__bf16_t *a = scratch(pass, PURR__WS_SHARED_A), *out = scratch(pass, PURR__WS_SHARED_OUT);

  const purr__gemm_t gate_up[2] = {
      {.m = pass->num_tokens,
       .n = inner,
       .num_segments = 1,
       .segment = {{.a = token_rows(pass->x), .b = weight_rows(&weights->shared_gate), .k = hidden}},
       .c = gate,
       .c_dtype = PURR_DTYPE_BF16,
       .c_row_stride = inner,
       .trace = pass->trace,
       .trace_kind = PURR__TRACE_SHARED_GATE_UP,
       .expert = -1},
      {.m = pass->num_tokens,
       .n = inner,
       .num_segments = 1,
       .segment = {{.a = token_rows(pass->x), .b = weight_rows(&weights->shared_up), .k = hidden}},
       .c = up,
       .c_dtype = PURR_DTYPE_BF16,
       .c_row_stride = inner,
       .trace = pass->trace,
       .trace_kind = PURR__TRACE_SHARED_GATE_UP,
       .expert = -1}};
  purr__host_gemm(pass->context, gate_up, 2);
  purr__step_swiglu(pass, PURR__TRACE_SHARED_EPILOGUE, gate, up, pass->num_tokens * inner, a);
  const purr__gemm_t down = {
      .m = pass->num_tokens,
      .n = hidden,
      .num_segments = 1,
      .segment = {{.a = purr__rows(a, inner), .b = weight_rows(&weights->shared_down), .k = inner}},
      .c = out,
      .c_dtype = PURR_DTYPE_BF16,
      .c_row_stride = hidden,
      .trace = pass->trace,
      .trace_kind = PURR__TRACE_SHARED_DOWN,
      .expert = -1};
  purr__host_gemm(pass->context, &down, 1);
  if (pass->plan->layer.shared_gate == PURR_SHARED_GATE_SIGMOID) {
    gate_task_t task = {pass, gate_scores(pass), out};
    purr__pass_parallel(pass, PURR__TRACE_SHARED_EPILOGUE, num_token_tasks(pass), apply_gate, &task);
  }
  purr__pass_lap(pass, PURR_PHASE_SHARED);
  return out;
}

/* ---- backward ---- */

typedef struct activation_task {
  purr__pass_t *pass;
  const purr__bf16_t *gate, *up;
  const float *d_a1, *z; /* z is NULL without a gate */
  float *d_logit;
  purr__bf16_t *d_gate, *d_up, *scaled_a;
} activation_task_t;

static void activation_backward(void *arg, int64_t task_idx) {
  const activation_task_t *task = arg;
  const int64_t inner = task->pass->plan->layer.shared_intermediate_size;
  const float limit = task->pass->plan->layer.swiglu_limit;
  const int64_t begin = task_idx * TOKENS_PER_TASK;
  for (int64_t t = begin; t < purr__min(begin + TOKENS_PER_TASK, task->pass->num_tokens); t++) {
    const int64_t row = t * inner;
    const float z = task->z != NULL ? task->z[t] : 1.0f;
    const float d_z = purr__host_swiglu_backward(task->gate + row, task->up + row, task->d_a1 + row, z, limit, inner,
                                                 task->d_gate + row, task->d_up + row, task->scaled_a + row);
    if (task->z != NULL) task->d_logit[t] = d_z * z * (1.0f - z);
  }
}

/* dx = bf16(dG.Wg + dU.Wu), with the gate's d_logit * w as the last step where there is one. */
static void token_gradients(purr__pass_t *pass, const activation_task_t *done, purr__bf16_t *d_x) {
  const int64_t inner = pass->plan->layer.shared_intermediate_size, hidden = pass->plan->layer.hidden_size;
  const bool gated = done->z != NULL;
  float *partial = gated ? scratch(pass, PURR__WS_SHARED_D_X) : NULL;
  const purr__gemm_t chain = {
      .m = pass->num_tokens,
      .n = hidden,
      .num_segments = 2,
      .segment = {{.a = purr__rows(done->d_gate, inner), .b = weight_columns(&pass->weights->shared_gate), .k = inner},
                  {.a = purr__rows(done->d_up, inner), .b = weight_columns(&pass->weights->shared_up), .k = inner}},
      .c = gated ? (void *)partial : (void *)d_x,
      .c_dtype = gated ? PURR_DTYPE_FP32 : PURR_DTYPE_BF16,
      .c_row_stride = hidden};
  purr__host_gemm(pass->context, &chain, 1);
  if (!gated) return;
  const purr__gemm_t last_step = {.m = pass->num_tokens,
                                  .n = hidden,
                                  .num_segments = 1,
                                  .segment = {{.a = {done->d_logit, PURR_DTYPE_FP32, 1, 1},
                                               .b = weight_columns(&pass->weights->shared_expert_gate),
                                               .k = 1}},
                                  .initial = partial,
                                  .initial_stride = hidden,
                                  .c = d_x,
                                  .c_dtype = PURR_DTYPE_BF16,
                                  .c_row_stride = hidden};
  purr__host_gemm(pass->context, &last_step, 1);
}

/* One weight gradient: [m, n] = a^T.b summed over this rank's tokens. */
static purr__gemm_t weight_gradient(const purr__pass_t *pass, int64_t m, int64_t n, purr__operand_t a,
                                    purr__operand_t b, const purr__view_t *out, bool accumulate) {
  return (purr__gemm_t){.m = m,
                        .n = n,
                        .num_segments = 1,
                        .segment = {{.a = a, .b = b, .k = pass->num_tokens}},
                        .c = purr__view_slice(out, 0, purr__dtype_bytes(out->dtype)),
                        .c_dtype = out->dtype,
                        .c_row_stride = out->row_stride,
                        .accumulate = accumulate};
}

static void weight_gradients(purr__pass_t *pass, const activation_task_t *done, const purr__weight_views_t *gradients,
                             bool accumulate) {
  const int64_t inner = pass->plan->layer.shared_intermediate_size, hidden = pass->plan->layer.hidden_size;
  const purr__operand_t x = token_columns(pass->x), d_output = token_columns(pass->d_output);
  purr__gemm_t problems[4];
  int num_problems = 0;
  if (gradients->has_shared_gate)
    problems[num_problems++] = weight_gradient(pass, inner, hidden, purr__columns(done->d_gate, inner), x,
                                               &gradients->shared_gate, accumulate);
  if (gradients->has_shared_up)
    problems[num_problems++] =
        weight_gradient(pass, inner, hidden, purr__columns(done->d_up, inner), x, &gradients->shared_up, accumulate);
  if (gradients->has_shared_down)
    problems[num_problems++] = weight_gradient(pass, hidden, inner, d_output, purr__columns(done->scaled_a, inner),
                                               &gradients->shared_down, accumulate);
  if (gradients->has_shared_expert_gate)
    problems[num_problems++] = weight_gradient(pass, 1, hidden, (purr__operand_t){done->d_logit, PURR_DTYPE_FP32, 0, 1},
                                               x, &gradients->shared_expert_gate, accumulate);
  purr__host_gemm(pass->context, problems, num_problems);
}

const purr__bf16_t *purr__shared_backward(purr__pass_t *pass, const purr__bf16_t *gate, const purr__bf16_t *up,
                                          const purr__weight_views_t *gradients, bool accumulate) {
  const int64_t inner = pass->plan->layer.shared_intermediate_size;
  if (inner == 0) return NULL;
  purr__bf16_t *d_x = scratch(pass, PURR__WS_SHARED_OUT);
  float *d_a1 = scratch(pass, PURR__WS_SHARED_D_A);
  activation_task_t task = {.pass = pass,
                            .gate = gate,
                            .up = up,
                            .d_a1 = d_a1,
                            .d_gate = scratch(pass, PURR__WS_SHARED_D_GATE),
                            .d_up = scratch(pass, PURR__WS_SHARED_D_UP),
                            .scaled_a = scratch(pass, PURR__WS_SHARED_A)};
  if (pass->plan->layer.shared_gate == PURR_SHARED_GATE_SIGMOID) {
    task.z = gate_scores(pass);
    task.d_logit = (float *)scratch(pass, PURR__WS_SHARED_SCORE) + pass->plan->layer.max_tokens;
  }
  const purr__gemm_t d_activation = {.m = pass->num_tokens,
                                     .n = inner,
                                     .num_segments = 1,
                                     .segment = {{.a = token_rows(pass->d_output),
                                                  .b = weight_columns(&pass->weights->shared_down),
                                                  .k = pass->plan->layer.hidden_size}},
                                     .c = d_a1,
                                     .c_dtype = PURR_DTYPE_FP32,
                                     .c_row_stride = inner};
  purr__host_gemm(pass->context, &d_activation, 1);
  purr__parallel_for(pass->context, num_token_tasks(pass), activation_backward, &task);
  token_gradients(pass, &task, d_x);
  weight_gradients(pass, &task, gradients, accumulate);
  purr__pass_lap(pass, PURR_PHASE_SHARED);
  return d_x;
}
