#include "support/layer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CANARY_BYTES 4096
#define POISON 0xFF
#define CANARY 0xA5

/* ---- memory ---- */

static void *poisoned_allocate(void *user, uint64_t bytes, uint64_t alignment) {
  (void)user;
  void *memory = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory != NULL) memset(memory, POISON, bytes);
  return memory;
}

static void plain_release(void *user, void *memory, uint64_t bytes) {
  (void)user;
  (void)bytes;
  free(memory);
}

/* A tensor of the caller with canaries on both sides and, if wanted, gaps between its rows. */
typedef struct buffer {
  char *block;
  int64_t rows, columns, row_stride, element_bytes;
} buffer_t;

static char *buffer_data(const buffer_t *b) { return b->block + CANARY_BYTES; }
static char *buffer_row(const buffer_t *b, int64_t row) {
  return buffer_data(b) + row * b->row_stride * b->element_bytes;
}
static int64_t buffer_bytes(const buffer_t *b) { return b->rows * b->row_stride * b->element_bytes; }

static buffer_t buffer_create(int64_t rows, int64_t columns, int64_t gap, int64_t element_bytes) {
  buffer_t b = {NULL, rows, columns, columns + gap, element_bytes};
  b.block = aligned_alloc(4096, (size_t)(buffer_bytes(&b) + 2 * CANARY_BYTES + 4095) / 4096 * 4096);
  memset(b.block, CANARY, (size_t)(buffer_bytes(&b) + 2 * CANARY_BYTES));
  return b;
}

/* Poisons the rows, leaving the gaps as canaries. */
static void buffer_poison(const buffer_t *b) {
  for (int64_t r = 0; r < b->rows; r++) memset(buffer_row(b, r), POISON, (size_t)(b->columns * b->element_bytes));
}

static bool all_bytes(const char *bytes, int64_t num, int value) {
  for (int64_t i = 0; i < num; i++)
    if ((unsigned char)bytes[i] != value) return false;
  return true;
}

static bool buffer_canaries_intact(const buffer_t *b) {
  bool intact =
      all_bytes(b->block, CANARY_BYTES, CANARY) && all_bytes(buffer_data(b) + buffer_bytes(b), CANARY_BYTES, CANARY);
  const int64_t used = b->columns * b->element_bytes, row = b->row_stride * b->element_bytes;
  for (int64_t r = 0; r < b->rows; r++) intact = intact && all_bytes(buffer_row(b, r) + used, row - used, CANARY);
  return intact;
}

static bool buffer_untouched(const buffer_t *b) {
  for (int64_t r = 0; r < b->rows; r++)
    if (!all_bytes(buffer_row(b, r), b->columns * b->element_bytes, POISON)) return false;
  return true;
}

/* ---- one rank ---- */

enum { D_GATE, D_UP, D_DOWN, D_S_GATE, D_S_UP, D_S_DOWN, D_Z, NUM_GRADIENTS };

typedef struct rank {
  const test_problem_t *problem;
  const test_run_t *run;
  purr_context_t *context;
  const purr_plan_t *plan;
  purr_group_t *group;
  int64_t first_token, tokens, first_expert, experts;
  buffer_t x, ids, topk_weights, d_output, output, d_x, d_topk_weights, gradient[NUM_GRADIENTS];
  int64_t *tokens_per_expert;
  int64_t num_replayed_rows;
  purr_status_t status;
  purr_error_t err;
  purr_result_info_t info;
} rank_t;

static purr_tensor_t matrix(const buffer_t *b, int32_t dtype) {
  return (purr_tensor_t){.struct_size = sizeof(purr_tensor_t),
                         .dtype = dtype,
                         .num_dims = 2,
                         .data = buffer_data(b),
                         .shape = {b->rows, b->columns},
                         .stride = {b->row_stride, 1}};
}

/* [experts, rows, columns] stored as experts * rows rows. */
static purr_tensor_t expert_matrix(const buffer_t *b, int32_t dtype, int64_t experts) {
  const int64_t rows = b->rows / experts;
  return (purr_tensor_t){.struct_size = sizeof(purr_tensor_t),
                         .dtype = dtype,
                         .num_dims = 3,
                         .data = buffer_data(b),
                         .shape = {experts, rows, b->columns},
                         .stride = {rows * b->row_stride, b->row_stride, 1}};
}

static void copy_rows(const buffer_t *to, const void *from) {
  const int64_t bytes = to->columns * to->element_bytes;
  for (int64_t r = 0; r < to->rows; r++) memcpy(buffer_row(to, r), (const char *)from + r * bytes, (size_t)bytes);
}

static void rank_buffers(rank_t *rank) {
  const test_problem_t *p = rank->problem;
  const test_run_t *run = rank->run;
  const int64_t wide = run->strided ? 64 : 0, narrow = run->strided ? 8 : 0, slots = run->strided ? 3 : 0;
  const int64_t gradient_bytes = run->bf16_gradients ? 2 : 4, experts = rank->experts;
  rank->x = buffer_create(rank->tokens, p->hidden, wide, 2);
  rank->d_output = buffer_create(rank->tokens, p->hidden, narrow, 2);
  rank->ids = buffer_create(rank->tokens, p->top_k, slots, run->int32_ids ? 4 : 8);
  rank->topk_weights = buffer_create(rank->tokens, p->top_k, slots, 4);
  rank->output = buffer_create(rank->tokens, p->hidden, narrow, 2);
  rank->d_x = buffer_create(rank->tokens, p->hidden, narrow, 2);
  rank->d_topk_weights = buffer_create(rank->tokens, p->top_k, slots, 4);
  rank->gradient[D_GATE] = buffer_create(experts * p->inner, p->hidden, narrow, gradient_bytes);
  rank->gradient[D_UP] = buffer_create(experts * p->inner, p->hidden, narrow, gradient_bytes);
  rank->gradient[D_DOWN] = buffer_create(experts * p->hidden, p->inner, narrow, gradient_bytes);
  rank->gradient[D_S_GATE] = buffer_create(p->shared, p->hidden, narrow, gradient_bytes);
  rank->gradient[D_S_UP] = buffer_create(p->shared, p->hidden, narrow, gradient_bytes);
  rank->gradient[D_S_DOWN] = buffer_create(p->shared ? p->hidden : 0, p->shared, narrow, gradient_bytes);
  rank->gradient[D_Z] = buffer_create(p->shared_gate ? 1 : 0, p->hidden, narrow, gradient_bytes);

  copy_rows(&rank->x, p->x + rank->first_token * p->hidden);
  copy_rows(&rank->d_output, p->d_output + rank->first_token * p->hidden);
  copy_rows(&rank->topk_weights, p->topk_weights + rank->first_token * p->top_k);
  for (int64_t t = 0; t < rank->tokens; t++)
    for (int64_t k = 0; k < p->top_k; k++) {
      const int64_t id = p->ids[(rank->first_token + t) * p->top_k + k];
      if (run->int32_ids)
        ((int32_t *)buffer_row(&rank->ids, t))[k] = (int32_t)id;
      else
        ((int64_t *)buffer_row(&rank->ids, t))[k] = id;
    }
  rank->tokens_per_expert = calloc((size_t)experts, sizeof *rank->tokens_per_expert);
}

static void fill_gradient(const buffer_t *b, float value) {
  for (int64_t r = 0; r < b->rows; r++)
    for (int64_t c = 0; c < b->columns; c++) {
      if (b->element_bytes == 4)
        ((float *)buffer_row(b, r))[c] = value;
      else
        ((purr__bf16_t *)buffer_row(b, r))[c] = purr__bf16_from_fp32(value);
    }
}

static void poison_outputs(rank_t *rank) {
  buffer_poison(&rank->output);
  buffer_poison(&rank->d_x);
  buffer_poison(&rank->d_topk_weights);
  for (int i = 0; i < NUM_GRADIENTS; i++) {
    if (rank->run->accumulate)
      fill_gradient(&rank->gradient[i], rank->run->initial_gradient);
    else
      buffer_poison(&rank->gradient[i]);
  }
}

/* The weights of this rank, as the run wants them laid out. */
typedef struct rank_weights {
  purr_tensor_t gate_up, gate, up, down, s_gate, s_up, s_down, z;
  void *packed;
  void **pointers[3];
  purr_weights_desc_t desc;
} rank_weights_t;

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

static void rank_weights(const rank_t *rank, rank_weights_t *w) {
  const test_problem_t *p = rank->problem;
  const int64_t first = rank->first_expert * p->inner * p->hidden, slice = p->inner * p->hidden;
  *w = (rank_weights_t){.gate = plain(p->gate + first, 3, rank->experts, p->inner, p->hidden),
                        .up = plain(p->up + first, 3, rank->experts, p->inner, p->hidden),
                        .down = plain(p->down + first, 3, rank->experts, p->hidden, p->inner),
                        .s_gate = plain(p->s_gate, 2, p->shared, p->hidden, 0),
                        .s_up = plain(p->s_up, 2, p->shared, p->hidden, 0),
                        .s_down = plain(p->s_down, 2, p->hidden, p->shared, 0),
                        .z = plain(p->z, 1, p->hidden, 0, 0)};
  w->desc = (purr_weights_desc_t){.struct_size = sizeof w->desc, .down = &w->down};
  if (rank->run->packed) {
    purr__bf16_t *packed = w->packed = malloc((size_t)(2 * rank->experts * slice) * sizeof *packed);
    for (int64_t e = 0; e < rank->experts; e++) {
      memcpy(packed + 2 * e * slice, p->gate + first + e * slice, (size_t)slice * sizeof *packed);
      memcpy(packed + (2 * e + 1) * slice, p->up + first + e * slice, (size_t)slice * sizeof *packed);
    }
    w->gate_up = plain(packed, 3, rank->experts, 2 * p->inner, p->hidden);
    w->desc.gate_up = &w->gate_up;
  } else {
    w->desc.gate = &w->gate;
    w->desc.up = &w->up;
  }
  if (rank->run->pointers) {
    use_pointers(&w->down, &w->pointers[0]);
    if (rank->run->packed) {
      use_pointers(&w->gate_up, &w->pointers[1]);
    } else {
      use_pointers(&w->gate, &w->pointers[1]);
      use_pointers(&w->up, &w->pointers[2]);
    }
  }
  if (p->shared > 0) {
    w->desc.shared_gate = &w->s_gate;
    w->desc.shared_up = &w->s_up;
    w->desc.shared_down = &w->s_down;
  }
  if (p->shared_gate) w->desc.shared_expert_gate = &w->z;
}

static void rank_weights_free(rank_weights_t *w) {
  free(w->packed);
  for (int i = 0; i < 3; i++) free(w->pointers[i]);
}

typedef struct rank_objects {
  purr_workspace_t *workspace;
  purr_weights_t *weights;
  purr_saved_t *saved;
  purr_result_t *result;
  purr_schedule_t *schedule;
} rank_objects_t;

static purr_status_t forward(rank_t *rank, const rank_objects_t *objects) {
  const test_run_t *run = rank->run;
  purr_tensor_t x = matrix(&rank->x, PURR_DTYPE_BF16), output = matrix(&rank->output, PURR_DTYPE_BF16);
  purr_tensor_t ids = matrix(&rank->ids, run->int32_ids ? PURR_DTYPE_INT32 : PURR_DTYPE_INT64);
  purr_tensor_t weights = matrix(&rank->topk_weights, PURR_DTYPE_FP32);
  if (run->schedule_first) {
    purr_status_t status = purr_schedule_build(objects->schedule, objects->workspace, &ids, NULL, &rank->err);
    if (status != PURR_STATUS_OK) return status;
  }
  const purr_forward_args_t args = {.struct_size = sizeof args,
                                    .weights = objects->weights,
                                    .x = &x,
                                    .topk_ids = run->schedule_first ? NULL : &ids,
                                    .topk_weights = &weights,
                                    .output = &output,
                                    .schedule = run->schedule_first ? objects->schedule : NULL,
                                    .saved = run->inference ? NULL : objects->saved,
                                    .result = objects->result};
  return purr_forward(rank->plan, objects->workspace, &args, &rank->err);
}

static purr_status_t backward(rank_t *rank, const rank_objects_t *objects) {
  const test_problem_t *p = rank->problem;
  const int32_t dtype = rank->run->bf16_gradients ? PURR_DTYPE_BF16 : PURR_DTYPE_FP32;
  purr_tensor_t x = matrix(&rank->x, PURR_DTYPE_BF16), d_output = matrix(&rank->d_output, PURR_DTYPE_BF16);
  purr_tensor_t weights = matrix(&rank->topk_weights, PURR_DTYPE_FP32), d_x = matrix(&rank->d_x, PURR_DTYPE_BF16);
  purr_tensor_t d_weights = matrix(&rank->d_topk_weights, PURR_DTYPE_FP32);
  purr_tensor_t gradient[NUM_GRADIENTS];
  for (int i = 0; i < NUM_GRADIENTS; i++)
    gradient[i] =
        i <= D_DOWN ? expert_matrix(&rank->gradient[i], dtype, rank->experts) : matrix(&rank->gradient[i], dtype);
  purr_weights_desc_t gradients = {
      .struct_size = sizeof gradients, .gate = &gradient[D_GATE], .up = &gradient[D_UP], .down = &gradient[D_DOWN]};
  if (p->shared > 0) {
    gradients.shared_gate = &gradient[D_S_GATE];
    gradients.shared_up = &gradient[D_S_UP];
    gradients.shared_down = &gradient[D_S_DOWN];
  }
  if (p->shared_gate) gradients.shared_expert_gate = &gradient[D_Z];
  const purr_backward_args_t args = {.struct_size = sizeof args,
                                     .flags = rank->run->accumulate ? PURR_BACKWARD_ACCUMULATE : 0,
                                     .weights = objects->weights,
                                     .saved = objects->saved,
                                     .x = &x,
                                     .topk_weights = &weights,
                                     .d_output = &d_output,
                                     .d_x = &d_x,
                                     .d_topk_weights = &d_weights,
                                     .d_weights = &gradients,
                                     .result = objects->result};
  return purr_backward(rank->plan, objects->workspace, &args, &rank->err);
}

static purr_status_t run_once(rank_t *rank, const rank_objects_t *objects) {
  poison_outputs(rank);
  rank->info.struct_size = sizeof rank->info;
  purr_status_t status = forward(rank, objects);
  purr_result_query(objects->result, &rank->info, NULL);
  if (status == PURR_STATUS_OK)
    status = purr_result_tokens_per_expert(objects->result, rank->tokens_per_expert, rank->experts, &rank->err);
  if (status == PURR_STATUS_OK && !rank->run->inference) {
    status = backward(rank, objects);
    purr_result_info_t info = {.struct_size = sizeof info};
    purr_result_query(objects->result, &info, NULL);
    rank->num_replayed_rows = info.num_replayed_rows;
    if (status != PURR_STATUS_OK) rank->info = info;
  }
  return status;
}

static void *rank_main(void *arg) {
  rank_t *rank = arg;
  rank->err = (purr_error_t)PURR_ERROR_INIT;
  rank_buffers(rank);
  poison_outputs(rank);
  rank_weights_t w;
  rank_weights(rank, &w);
  rank_objects_t objects = {0};
  purr_status_t status = purr_workspace_create(rank->plan, rank->group, NULL, &objects.workspace, &rank->err);
  if (status == PURR_STATUS_OK) status = purr_weights_create(rank->plan, &w.desc, &objects.weights, &rank->err);
  if (status == PURR_STATUS_OK) status = purr_saved_create(rank->plan, NULL, 0, &objects.saved, &rank->err);
  if (status == PURR_STATUS_OK) status = purr_schedule_create(rank->plan, &objects.schedule, &rank->err);
  if (status == PURR_STATUS_OK) status = purr_result_create(rank->context, &objects.result, &rank->err);
  for (int i = 0; i < 2 && status == PURR_STATUS_OK; i++) status = run_once(rank, &objects);
  rank->status = status;
  purr_result_destroy(objects.result);
  purr_schedule_destroy(objects.schedule);
  purr_saved_destroy(objects.saved);
  purr_weights_destroy(objects.weights);
  purr_workspace_destroy(objects.workspace);
  rank_weights_free(&w);
  return NULL;
}

/* ---- all ranks ---- */

static float gradient_value(const buffer_t *b, int64_t row, int64_t column) {
  return b->element_bytes == 4 ? ((const float *)buffer_row(b, row))[column]
                               : purr__fp32_from_bf16(((const purr__bf16_t *)buffer_row(b, row))[column]);
}

static void collect_gradient(const buffer_t *b, float *out, bool add) {
  for (int64_t r = 0; r < b->rows; r++)
    for (int64_t c = 0; c < b->columns; c++) {
      const float value = gradient_value(b, r, c);
      out[r * b->columns + c] = add ? out[r * b->columns + c] + value : value;
    }
}

static void collect_rows(const buffer_t *b, void *out) {
  const int64_t bytes = b->columns * b->element_bytes;
  for (int64_t r = 0; r < b->rows; r++) memcpy((char *)out + r * bytes, buffer_row(b, r), (size_t)bytes);
}

static bool rank_canaries_intact(const rank_t *rank) {
  const buffer_t *const all[] = {&rank->x,      &rank->ids, &rank->topk_weights,  &rank->d_output,
                                 &rank->output, &rank->d_x, &rank->d_topk_weights};
  bool intact = true;
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) intact = intact && buffer_canaries_intact(all[i]);
  for (int i = 0; i < NUM_GRADIENTS; i++) intact = intact && buffer_canaries_intact(&rank->gradient[i]);
  return intact;
}

static void collect(const test_problem_t *p, const rank_t *rank, bool first, test_outcome_t *o) {
  o->canaries_intact = o->canaries_intact && rank_canaries_intact(rank);
  o->untouched = o->untouched && buffer_untouched(&rank->output) && buffer_untouched(&rank->d_x);
  o->num_replayed_rows += rank->num_replayed_rows;
  if (first || (o->status == PURR_STATUS_OK && rank->status != PURR_STATUS_OK)) {
    o->status = rank->status;
    o->info = rank->info;
    o->err = rank->err;
  }
  const int64_t slice = p->inner * p->hidden;
  collect_rows(&rank->output, o->output + rank->first_token * p->hidden);
  collect_rows(&rank->d_x, o->d_x + rank->first_token * p->hidden);
  collect_rows(&rank->d_topk_weights, o->d_topk_weights + rank->first_token * p->top_k);
  collect_gradient(&rank->gradient[D_GATE], o->d_gate + rank->first_expert * slice, false);
  collect_gradient(&rank->gradient[D_UP], o->d_up + rank->first_expert * slice, false);
  collect_gradient(&rank->gradient[D_DOWN], o->d_down + rank->first_expert * slice, false);
  collect_gradient(&rank->gradient[D_S_GATE], o->d_s_gate, !first);
  collect_gradient(&rank->gradient[D_S_UP], o->d_s_up, !first);
  collect_gradient(&rank->gradient[D_S_DOWN], o->d_s_down, !first);
  collect_gradient(&rank->gradient[D_Z], o->d_z, !first);
  memcpy(o->tokens_per_expert + rank->first_expert, rank->tokens_per_expert, (size_t)rank->experts * sizeof(int64_t));
}

static test_outcome_t *outcome_create(const test_problem_t *p) {
  test_outcome_t *o = calloc(1, sizeof *o);
  const size_t slice = (size_t)(p->inner * p->hidden), experts = (size_t)p->experts;
  o->canaries_intact = o->untouched = true;
  o->output = calloc((size_t)(p->tokens * p->hidden) + 1, sizeof *o->output);
  o->d_x = calloc((size_t)(p->tokens * p->hidden) + 1, sizeof *o->d_x);
  o->d_topk_weights = calloc((size_t)(p->tokens * p->top_k) + 1, sizeof(float));
  o->d_gate = calloc(experts * slice, sizeof(float));
  o->d_up = calloc(experts * slice, sizeof(float));
  o->d_down = calloc(experts * slice, sizeof(float));
  o->d_s_gate = calloc((size_t)(p->shared * p->hidden) + 1, sizeof(float));
  o->d_s_up = calloc((size_t)(p->shared * p->hidden) + 1, sizeof(float));
  o->d_s_down = calloc((size_t)(p->shared * p->hidden) + 1, sizeof(float));
  o->d_z = calloc((size_t)p->hidden, sizeof(float));
  o->tokens_per_expert = calloc(experts, sizeof(int64_t));
  return o;
}

void test_outcome_free(test_outcome_t *o) {
  free(o->output);
  free(o->d_x);
  free(o->d_topk_weights);
  free(o->d_gate);
  free(o->d_up);
  free(o->d_down);
  free(o->d_s_gate);
  free(o->d_s_up);
  free(o->d_s_down);
  free(o->d_z);
  free(o->tokens_per_expert);
  free(o);
}

static void rank_free(rank_t *rank) {
  buffer_t *const all[] = {&rank->x,      &rank->ids, &rank->topk_weights,  &rank->d_output,
                           &rank->output, &rank->d_x, &rank->d_topk_weights};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]->block);
  for (int i = 0; i < NUM_GRADIENTS; i++) free(rank->gradient[i].block);
  free(rank->tokens_per_expert);
  purr_group_destroy(rank->group);
}

static purr_status_t make_plan(purr_context_t *context, const test_problem_t *p, const test_run_t *run, int ranks,
                               purr_plan_t **out_plan, purr_error_t *err) {
  const purr_layer_desc_t layer = {.struct_size = sizeof layer,
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
                                   .backend = PURR_BACKEND_HOST,
                                   .swiglu_limit = p->swiglu_limit,
                                   .num_ranks = ranks,
                                   .minibatch_rows = run->minibatch,
                                   .macrobatch_rows = run->macrobatch,
                                   .activation_memory = run->activation_memory,
                                   .timeout_ms = 60000,
                                   .mxfp8_scale_rule = run->scale_rule,
                                   .mxfp8_activation_granularity = run->activation_granularity,
                                   .mxfp8_weight_granularity = run->weight_granularity};
  purr_config_t *config = NULL;
  purr_status_t status = purr_config_create(context, &layer, &config, err);
  if (status == PURR_STATUS_OK) status = purr_plan_create(context, config, NULL, out_plan, err);
  purr_config_destroy(config);
  return status;
}

test_outcome_t *test_layer_run(const test_problem_t *p, const test_run_t *run) {
  const int ranks = run->ranks ? run->ranks : 1;
  test_outcome_t *o = outcome_create(p);
  o->err = (purr_error_t)PURR_ERROR_INIT;
  const purr_allocator_t allocator = {sizeof allocator, 0, poisoned_allocate, plain_release, NULL};
  const purr_context_desc_t desc = {.struct_size = sizeof desc,
                                    .num_threads = run->threads ? (uint32_t)run->threads : 2,
                                    .host_allocator = &allocator};
  purr_context_t *context = NULL;
  purr_plan_t *plan = NULL;
  purr_group_t **groups = calloc((size_t)ranks, sizeof *groups);
  const purr_group_desc_t group_desc = {sizeof group_desc, ranks, 60000};
  o->status = purr_context_create(&desc, &context, &o->err);
  if (o->status == PURR_STATUS_OK) o->status = make_plan(context, p, run, ranks, &plan, &o->err);
  if (o->status == PURR_STATUS_OK) o->status = purr_group_create_local(context, &group_desc, groups, &o->err);
  if (o->status == PURR_STATUS_OK) {
    rank_t *all = calloc((size_t)ranks, sizeof *all);
    pthread_t *threads = calloc((size_t)ranks, sizeof *threads);
    int64_t first_token = 0;
    for (int r = 0; r < ranks; r++) {
      const int64_t even = p->tokens * (r + 1) / ranks - p->tokens * r / ranks;
      const int64_t tokens = run->tokens_of_rank != NULL ? run->tokens_of_rank[r] : even;
      all[r] = (rank_t){.problem = p,
                        .run = run,
                        .context = context,
                        .plan = plan,
                        .group = groups[r],
                        .first_token = first_token,
                        .tokens = tokens,
                        .first_expert = r * (p->experts / ranks),
                        .experts = p->experts / ranks};
      first_token += tokens;
      pthread_create(&threads[r], NULL, rank_main, &all[r]);
    }
    for (int r = 0; r < ranks; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < ranks; r++) {
      collect(p, &all[r], r == 0, o);
      rank_free(&all[r]);
    }
    free(threads);
    free(all);
  }
  free(groups);
  purr_plan_destroy(plan);
  purr_context_destroy(context);
  return o;
}

static uint64_t hash_bytes(uint64_t hash, const void *bytes, int64_t num) {
  for (int64_t i = 0; i < num; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
  return hash;
}

uint64_t test_outcome_hash(const test_problem_t *p, const test_outcome_t *o) {
  const int64_t weights = p->experts * p->inner * p->hidden * (int64_t)sizeof(float);
  uint64_t hash = 0xcbf29ce484222325u;
  hash = hash_bytes(hash, o->output, p->tokens * p->hidden * 2);
  hash = hash_bytes(hash, o->d_x, p->tokens * p->hidden * 2);
  hash = hash_bytes(hash, o->d_topk_weights, p->tokens * p->top_k * (int64_t)sizeof(float));
  hash = hash_bytes(hash, o->d_gate, weights);
  hash = hash_bytes(hash, o->d_up, weights);
  return hash_bytes(hash, o->d_down, weights);
}
