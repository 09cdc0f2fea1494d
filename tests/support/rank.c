#include "support/device.h"

#include <stdlib.h>
#include <string.h>

purr_layer_desc_t test_layer_desc(const test_problem_t *p, const test_run_t *run) {
  return (purr_layer_desc_t){.struct_size = sizeof(purr_layer_desc_t),
                             .precision = run->precision,
                             .hidden_size = p->hidden,
                             .intermediate_size = p->inner,
                             .num_experts = p->experts,
                             .top_k = p->top_k,
                             .max_tokens = run->max_tokens ? run->max_tokens
                                           : p->tokens > 0 ? p->tokens
                                                           : 1,
                             .shared_intermediate_size = p->shared,
                             .shared_gate = p->shared_gate ? PURR_SHARED_GATE_SIGMOID : PURR_SHARED_GATE_NONE,
                             .backend = run->backend ? run->backend : PURR_BACKEND_HOST,
                             .swiglu_limit = p->swiglu_limit,
                             .num_ranks = run->ranks ? run->ranks : 1,
                             .minibatch_rows = run->minibatch,
                             .macrobatch_rows = run->macrobatch,
                             .num_comm_sms = run->comm_sms,
                             .activation_memory = run->activation_memory,
                             .timeout_ms = 60000,
                             .mxfp8_scale_rule = run->scale_rule,
                             .mxfp8_activation_granularity = run->activation_granularity,
                             .mxfp8_weight_granularity = run->weight_granularity};
}

/* ---- what the caller holds ---- */

static void make_buffers(test_rank_t *rank) {
  const test_problem_t *p = rank->problem;
  const test_run_t *run = rank->run;
  const int64_t wide = run->strided ? 64 : 0, narrow = run->strided ? 8 : 0, slots = run->strided ? 3 : 0;
  const int64_t gradient_bytes = run->bf16_gradients ? 2 : 4, experts = rank->experts;
  rank->x = test_buffer_create(rank->tokens, p->hidden, wide, 2);
  rank->d_output = test_buffer_create(rank->tokens, p->hidden, narrow, 2);
  rank->ids = test_buffer_create(rank->tokens, p->top_k, slots, run->int32_ids ? 4 : 8);
  rank->topk_weights = test_buffer_create(rank->tokens, p->top_k, slots, 4);
  rank->output = test_buffer_create(rank->tokens, p->hidden, narrow, 2);
  rank->d_x = test_buffer_create(rank->tokens, p->hidden, narrow, 2);
  rank->d_topk_weights = test_buffer_create(rank->tokens, p->top_k, slots, 4);
  rank->gradient[TEST_D_GATE] = test_buffer_create(experts * p->inner, p->hidden, narrow, gradient_bytes);
  rank->gradient[TEST_D_UP] = test_buffer_create(experts * p->inner, p->hidden, narrow, gradient_bytes);
  rank->gradient[TEST_D_DOWN] = test_buffer_create(experts * p->hidden, p->inner, narrow, gradient_bytes);
  rank->gradient[TEST_D_S_GATE] = test_buffer_create(p->shared, p->hidden, narrow, gradient_bytes);
  rank->gradient[TEST_D_S_UP] = test_buffer_create(p->shared, p->hidden, narrow, gradient_bytes);
  rank->gradient[TEST_D_S_DOWN] = test_buffer_create(p->shared ? p->hidden : 0, p->shared, narrow, gradient_bytes);
  rank->gradient[TEST_D_Z] = test_buffer_create(p->shared_gate ? 1 : 0, p->hidden, narrow, gradient_bytes);

  test_buffer_set(&rank->x, p->x + rank->first_token * p->hidden);
  test_buffer_set(&rank->d_output, p->d_output + rank->first_token * p->hidden);
  test_buffer_set(&rank->topk_weights, p->topk_weights + rank->first_token * p->top_k);
  for (int64_t t = 0; t < rank->tokens; t++)
    for (int64_t k = 0; k < p->top_k; k++) {
      const int64_t id = p->ids[(rank->first_token + t) * p->top_k + k];
      if (run->int32_ids)
        ((int32_t *)test_buffer_row(&rank->ids, t))[k] = (int32_t)id;
      else
        ((int64_t *)test_buffer_row(&rank->ids, t))[k] = id;
    }
}

static purr_tensor_t plain(const void *data, int num_dims, int64_t a, int64_t b, int64_t c) {
  return (purr_tensor_t){.struct_size = sizeof(purr_tensor_t),
                         .dtype = PURR_DTYPE_BF16,
                         .num_dims = num_dims,
                         .data = (void *)(uintptr_t)data,
                         .shape = {a, b, c}};
}

static void use_pointers(purr_tensor_t *tensor, void ***out_pointers) {
  const int64_t slice = tensor->shape[1] * tensor->shape[2];
  void **pointers = malloc((size_t)tensor->shape[0] * sizeof(void *));
  for (int64_t e = 0; e < tensor->shape[0]; e++) pointers[e] = (purr__bf16_t *)tensor->data + e * slice;
  tensor->data = NULL;
  tensor->pointers = *out_pointers = pointers;
}

/* The weights of this rank, as the run wants them laid out. */
static void make_weights(test_rank_t *rank) {
  const test_problem_t *p = rank->problem;
  const int64_t first = rank->first_expert * p->inner * p->hidden, slice = p->inner * p->hidden;
  rank->tensor.gate = plain(p->gate + first, 3, rank->experts, p->inner, p->hidden);
  rank->tensor.up = plain(p->up + first, 3, rank->experts, p->inner, p->hidden);
  rank->tensor.down = plain(p->down + first, 3, rank->experts, p->hidden, p->inner);
  rank->tensor.s_gate = plain(p->s_gate, 2, p->shared, p->hidden, 0);
  rank->tensor.s_up = plain(p->s_up, 2, p->shared, p->hidden, 0);
  rank->tensor.s_down = plain(p->s_down, 2, p->hidden, p->shared, 0);
  rank->tensor.z = plain(p->z, 1, p->hidden, 0, 0);
  purr_weights_desc_t *desc = &rank->weights_desc;
  *desc = (purr_weights_desc_t){.struct_size = sizeof *desc, .down = &rank->tensor.down};
  if (rank->run->packed) {
    purr__bf16_t *packed = rank->packed = malloc((size_t)(2 * rank->experts * slice) * sizeof *packed);
    for (int64_t e = 0; e < rank->experts; e++) {
      memcpy(packed + 2 * e * slice, p->gate + first + e * slice, (size_t)slice * sizeof *packed);
      memcpy(packed + (2 * e + 1) * slice, p->up + first + e * slice, (size_t)slice * sizeof *packed);
    }
    rank->tensor.gate_up = plain(packed, 3, rank->experts, 2 * p->inner, p->hidden);
    desc->gate_up = &rank->tensor.gate_up;
  } else {
    desc->gate = &rank->tensor.gate;
    desc->up = &rank->tensor.up;
  }
  if (rank->run->pointers) {
    use_pointers(&rank->tensor.down, &rank->pointers[0]);
    if (rank->run->packed) {
      use_pointers(&rank->tensor.gate_up, &rank->pointers[1]);
    } else {
      use_pointers(&rank->tensor.gate, &rank->pointers[1]);
      use_pointers(&rank->tensor.up, &rank->pointers[2]);
    }
  }
  if (p->shared > 0) {
    desc->shared_gate = &rank->tensor.s_gate;
    desc->shared_up = &rank->tensor.s_up;
    desc->shared_down = &rank->tensor.s_down;
  }
  if (p->shared_gate) desc->shared_expert_gate = &rank->tensor.z;
}

static void make_gradients(test_rank_t *rank) {
  const test_problem_t *p = rank->problem;
  const int32_t dtype = rank->run->bf16_gradients ? PURR_DTYPE_BF16 : PURR_DTYPE_FP32;
  purr_tensor_t *gradient = rank->tensor.gradient;
  for (int i = 0; i < TEST_NUM_GRADIENTS; i++)
    gradient[i] = i <= TEST_D_DOWN ? test_buffer_experts(&rank->gradient[i], dtype, rank->experts)
                                   : test_buffer_matrix(&rank->gradient[i], dtype);
  rank->gradients = (purr_weights_desc_t){.struct_size = sizeof rank->gradients,
                                          .gate = &gradient[TEST_D_GATE],
                                          .up = &gradient[TEST_D_UP],
                                          .down = &gradient[TEST_D_DOWN]};
  if (p->shared > 0) {
    rank->gradients.shared_gate = &gradient[TEST_D_S_GATE];
    rank->gradients.shared_up = &gradient[TEST_D_S_UP];
    rank->gradients.shared_down = &gradient[TEST_D_S_DOWN];
  }
  if (p->shared_gate) rank->gradients.shared_expert_gate = &gradient[TEST_D_Z];
}

void test_rank_prepare(test_rank_t *rank) {
  if (rank->tokens == 0 && rank->experts == 0) rank->tokens = rank->problem->tokens;
  if (rank->experts == 0) rank->experts = rank->problem->experts;
  make_buffers(rank);
  make_weights(rank);
  make_gradients(rank);
  rank->tensor.x = test_buffer_matrix(&rank->x, PURR_DTYPE_BF16);
  rank->tensor.ids = test_buffer_matrix(&rank->ids, rank->run->int32_ids ? PURR_DTYPE_INT32 : PURR_DTYPE_INT64);
  rank->tensor.topk_weights = test_buffer_matrix(&rank->topk_weights, PURR_DTYPE_FP32);
  rank->tensor.d_output = test_buffer_matrix(&rank->d_output, PURR_DTYPE_BF16);
  rank->tensor.output = test_buffer_matrix(&rank->output, PURR_DTYPE_BF16);
  rank->tensor.d_x = test_buffer_matrix(&rank->d_x, PURR_DTYPE_BF16);
  rank->tensor.d_topk_weights = test_buffer_matrix(&rank->d_topk_weights, PURR_DTYPE_FP32);
  rank->forward = (purr_forward_args_t){.struct_size = sizeof rank->forward,
                                        .x = &rank->tensor.x,
                                        .topk_ids = &rank->tensor.ids,
                                        .topk_weights = &rank->tensor.topk_weights,
                                        .output = &rank->tensor.output};
  rank->backward = (purr_backward_args_t){.struct_size = sizeof rank->backward,
                                          .flags = rank->run->accumulate ? PURR_BACKWARD_ACCUMULATE : 0,
                                          .x = &rank->tensor.x,
                                          .topk_weights = &rank->tensor.topk_weights,
                                          .d_output = &rank->tensor.d_output,
                                          .d_x = &rank->tensor.d_x,
                                          .d_topk_weights = &rank->tensor.d_topk_weights,
                                          .d_weights = &rank->gradients};
  test_rank_poison(rank);
}

void test_rank_free(test_rank_t *rank) {
  test_buffer_t *const all[] = {&rank->x,      &rank->ids, &rank->topk_weights,  &rank->d_output,
                                &rank->output, &rank->d_x, &rank->d_topk_weights};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) test_buffer_free(all[i]);
  for (int i = 0; i < TEST_NUM_GRADIENTS; i++) test_buffer_free(&rank->gradient[i]);
  free(rank->packed);
  for (int i = 0; i < 3; i++) free(rank->pointers[i]);
}

/* ---- what was written ---- */

static void fill_gradient(const test_buffer_t *b, float value) {
  for (int64_t r = 0; r < b->rows; r++)
    for (int64_t c = 0; c < b->columns; c++) {
      if (b->element_bytes == 4)
        ((float *)test_buffer_row(b, r))[c] = value;
      else
        ((purr__bf16_t *)test_buffer_row(b, r))[c] = purr__bf16_from_fp32(value);
    }
}

void test_rank_poison(test_rank_t *rank) {
  test_buffer_poison(&rank->output);
  test_buffer_poison(&rank->d_x);
  test_buffer_poison(&rank->d_topk_weights);
  for (int i = 0; i < TEST_NUM_GRADIENTS; i++) {
    if (rank->run->accumulate)
      fill_gradient(&rank->gradient[i], rank->run->initial_gradient);
    else
      test_buffer_poison(&rank->gradient[i]);
  }
}

bool test_rank_canaries_intact(const test_rank_t *rank) {
  const test_buffer_t *const all[] = {&rank->x,      &rank->ids, &rank->topk_weights,  &rank->d_output,
                                      &rank->output, &rank->d_x, &rank->d_topk_weights};
  bool intact = true;
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) intact = intact && test_buffer_canaries_intact(all[i]);
  for (int i = 0; i < TEST_NUM_GRADIENTS; i++) intact = intact && test_buffer_canaries_intact(&rank->gradient[i]);
  return intact;
}

bool test_rank_untouched(const test_rank_t *rank) {
  bool untouched = test_buffer_untouched(&rank->output) && test_buffer_untouched(&rank->d_x) &&
                   test_buffer_untouched(&rank->d_topk_weights);
  for (int i = 0; i < TEST_NUM_GRADIENTS; i++) untouched = untouched && test_buffer_untouched(&rank->gradient[i]);
  return untouched;
}

float test_rank_gradient(const test_buffer_t *b, int64_t row, int64_t column) {
  return b->element_bytes == 4 ? ((const float *)test_buffer_row(b, row))[column]
                               : purr__fp32_from_bf16(((const purr__bf16_t *)test_buffer_row(b, row))[column]);
}

static bool rows_equal(const test_buffer_t *b, const void *expected) {
  const int64_t bytes = b->columns * b->element_bytes;
  for (int64_t r = 0; r < b->rows; r++)
    if (memcmp(test_buffer_row(b, r), (const char *)expected + r * bytes, (size_t)bytes) != 0) return false;
  return true;
}

static bool gradient_equals(const test_buffer_t *b, const float *expected) {
  for (int64_t r = 0; r < b->rows; r++)
    for (int64_t c = 0; c < b->columns; c++)
      if (purr__fp32_bits(test_rank_gradient(b, r, c)) != purr__fp32_bits(expected[r * b->columns + c])) return false;
  return true;
}

bool test_rank_forward_equals(const test_rank_t *rank, const test_outcome_t *expected) {
  return rows_equal(&rank->output, expected->output + rank->first_token * rank->problem->hidden);
}

bool test_rank_backward_equals(const test_rank_t *rank, const test_outcome_t *expected) {
  const test_problem_t *p = rank->problem;
  const int64_t experts = rank->first_expert * p->inner * p->hidden;
  bool equal = rows_equal(&rank->d_x, expected->d_x + rank->first_token * p->hidden) &&
               rows_equal(&rank->d_topk_weights, expected->d_topk_weights + rank->first_token * p->top_k) &&
               gradient_equals(&rank->gradient[TEST_D_GATE], expected->d_gate + experts) &&
               gradient_equals(&rank->gradient[TEST_D_UP], expected->d_up + experts) &&
               gradient_equals(&rank->gradient[TEST_D_DOWN], expected->d_down + experts);
  if (rank->tokens == p->tokens)
    equal = equal && gradient_equals(&rank->gradient[TEST_D_S_GATE], expected->d_s_gate) &&
            gradient_equals(&rank->gradient[TEST_D_S_UP], expected->d_s_up) &&
            gradient_equals(&rank->gradient[TEST_D_S_DOWN], expected->d_s_down) &&
            gradient_equals(&rank->gradient[TEST_D_Z], expected->d_z);
  return equal;
}

/* ---- objects and calls ---- */

purr_status_t test_rank_create_objects(test_rank_t *rank, purr_error_t *err) {
  const purr_plan_t *plan = rank->plan;
  purr_status_t status = rank->workspace == NULL ? test_device_attach(rank, err) : PURR_STATUS_OK;
  if (status == PURR_STATUS_OK && rank->workspace == NULL)
    status = purr_workspace_create(plan, rank->group, NULL, &rank->workspace, err);
  if (status == PURR_STATUS_OK && rank->weights == NULL)
    status = purr_weights_create(plan, &rank->weights_desc, &rank->weights, err);
  if (status == PURR_STATUS_OK && rank->saved == NULL) status = purr_saved_create(plan, NULL, 0, &rank->saved, err);
  if (status == PURR_STATUS_OK && rank->schedule == NULL) status = purr_schedule_create(plan, &rank->schedule, err);
  if (status == PURR_STATUS_OK && rank->result == NULL) status = purr_result_create(rank->context, &rank->result, err);
  rank->forward.weights = rank->backward.weights = rank->weights;
  rank->forward.saved = rank->run->inference ? NULL : rank->saved;
  rank->backward.saved = rank->saved;
  rank->forward.result = rank->backward.result = rank->result;
  rank->forward.schedule = rank->run->schedule_first ? rank->schedule : NULL;
  return status;
}

void test_rank_destroy_objects(test_rank_t *rank) {
  purr_result_destroy(rank->result);
  purr_schedule_destroy(rank->schedule);
  purr_saved_destroy(rank->saved);
  purr_weights_destroy(rank->weights);
  purr_workspace_destroy(rank->workspace);
  rank->result = NULL;
  rank->schedule = NULL;
  rank->saved = NULL;
  rank->weights = NULL;
  rank->workspace = NULL;
  if (test_rank_is_on_device(rank)) test_device_detach(rank);
}

/* A GPU call only enqueues: its status is in the result. */
static purr_status_t finish_on_device(test_rank_t *rank, purr_error_t *err) {
  purr_status_t status = purr_stream_synchronize(rank->plan, rank->stream, err);
  if (status == PURR_STATUS_OK) status = test_device_download(rank, err);
  purr_result_info_t info = {.struct_size = sizeof info};
  if (status == PURR_STATUS_OK) status = purr_result_query(rank->result, &info, err);
  return status == PURR_STATUS_OK ? info.status : status;
}

purr_status_t test_rank_forward(test_rank_t *rank, purr_error_t *err) {
  const bool on_device = test_rank_is_on_device(rank);
  purr_status_t status = on_device ? test_device_upload(rank, err) : PURR_STATUS_OK;
  if (status == PURR_STATUS_OK && rank->run->schedule_first)
    status = purr_schedule_build(rank->schedule, rank->workspace, &rank->tensor.ids, rank->stream, err);
  if (status == PURR_STATUS_OK) status = purr_forward(rank->plan, rank->workspace, &rank->forward, err);
  return status == PURR_STATUS_OK && on_device ? finish_on_device(rank, err) : status;
}

purr_status_t test_rank_backward(test_rank_t *rank, purr_error_t *err) {
  return purr_backward(rank->plan, rank->workspace, &rank->backward, err);
}
