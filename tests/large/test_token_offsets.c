/* B11: token index times row stride beyond 31 bits. T * K * H is 2147475456 and 2147532800 in the first test, either
 * side of 2^31 elements; in the second few tokens stand so far apart that their own rows lie beyond 2^31. On the host,
 * or on the backend that PURR_TEST_BACKEND names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "plan/plan.h"
#include "support/buffer.h"
#include "support/device.h"
#include "support/layer.h"
#include "support/main.h"

enum { HIDDEN = 7168, INNER = 128, EXPERTS = 8, TOP_K = 8, MAX_TOKENS = 37450, CANARY_BYTES = 4096, CANARY = 0xA5 };

static purr_error_t err;
static const float pattern[4] = {-2.0f, -1.0f, 1.0f, 2.0f};

static float x_at(int64_t t, int64_t h) { return h == 0 ? 1.0f : pattern[(t + h) % 4]; }

static purr_tensor_t tensor(int32_t dtype, const void *data, int num_dims, int64_t a, int64_t b, int64_t c) {
  return (purr_tensor_t){.struct_size = sizeof(purr_tensor_t),
                         .dtype = dtype,
                         .num_dims = num_dims,
                         .data = (void *)(uintptr_t)data,
                         .shape = {a, b, c}};
}

static bool is_on_device(void) { return test_backend() != PURR_BACKEND_HOST; }

/* ---- memory where the backend reads it ---- */

/* Memory of the device, or of the host: there only the pages that are used are taken. */
static void *take(const purr_plan_t *plan, uint64_t bytes) {
  void *memory = NULL;
  if (is_on_device()) {
    ASSERT_OK(purr_memory_allocate(plan, bytes, &memory, &err));
  } else {
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) memory = NULL;
  }
  CU_ASSERT_PTR_NOT_NULL_FATAL(memory);
  return memory;
}

static void give_back(const purr_plan_t *plan, void *memory, uint64_t bytes) {
  if (is_on_device())
    purr_memory_release(plan, memory, bytes);
  else if (memory != NULL)
    munmap(memory, bytes);
}

static void copy(const purr_plan_t *plan, void *to, const void *from, uint64_t bytes) {
  if (is_on_device())
    ASSERT_OK(purr_memory_copy(plan, to, from, bytes, &err));
  else
    memcpy(to, from, bytes);
}

/* A test buffer with a copy on the device, canaries included. */
typedef struct placed {
  test_buffer_t host;
  char *block;
  uint64_t bytes;
} placed_t;

static placed_t place(const purr_plan_t *plan, test_buffer_t host) {
  placed_t placed = {.host = host, .block = host.block};
  placed.bytes = (uint64_t)(host.rows * host.row_stride * host.element_bytes) + 2 * CANARY_BYTES;
  if (is_on_device()) placed.block = take(plan, placed.bytes);
  return placed;
}

static void send(const purr_plan_t *plan, const placed_t *placed) {
  if (placed->block != placed->host.block) copy(plan, placed->block, placed->host.block, placed->bytes);
}

static void fetch(const purr_plan_t *plan, const placed_t *placed) {
  if (placed->block != placed->host.block) copy(plan, placed->host.block, placed->block, placed->bytes);
}

static void drop(const purr_plan_t *plan, placed_t *placed) {
  if (placed->block != placed->host.block) give_back(plan, placed->block, placed->bytes);
  test_buffer_free(&placed->host);
}

/* The first `rows` rows of it. */
static purr_tensor_t rows_of(const placed_t *placed, int32_t dtype, int64_t rows) {
  purr_tensor_t matrix = test_buffer_matrix(&placed->host, dtype);
  matrix.data = placed->block + CANARY_BYTES;
  matrix.shape[0] = rows;
  return matrix;
}

/* ---- a layer with fixture F's experts ---- */

typedef struct layer {
  test_problem_t *problem;
  purr_context_t *context;
  purr_plan_t *plan;
  purr_weights_t *weights;
  purr_workspace_t *workspace;
  purr_result_t *result;
  void *stream;
  void *matrices[3];
  uint64_t matrix_bytes;
} layer_t;

static bool open_layer(layer_t *layer, test_problem_t *problem, int64_t max_tokens, bool small_rings) {
  const int64_t H = problem->hidden, I = problem->inner, E = problem->experts;
  const purr_layer_desc_t desc = {.struct_size = sizeof desc,
                                  .hidden_size = H,
                                  .intermediate_size = I,
                                  .num_experts = E,
                                  .top_k = problem->top_k,
                                  .max_tokens = max_tokens,
                                  .minibatch_rows = small_rings ? 4096 : 0,
                                  .macrobatch_rows = small_rings ? 8192 : 0,
                                  .backend = test_backend()};
  *layer = (layer_t){.problem = problem, .matrix_bytes = (uint64_t)(E * I * H) * sizeof(purr__bf16_t)};
  purr_config_t *config = NULL;
  purr_status_t status = purr_context_create(NULL, &layer->context, &err);
  if (status == PURR_STATUS_OK) status = purr_config_create(layer->context, &desc, &config, &err);
  if (status == PURR_STATUS_OK) status = purr_plan_create(layer->context, config, NULL, &layer->plan, &err);
  purr_config_destroy(config);
  const void *const matrices[] = {problem->gate, problem->up, problem->down};
  purr_tensor_t tensors[3];
  for (int i = 0; i < 3 && status == PURR_STATUS_OK; i++) {
    layer->matrices[i] = take(layer->plan, layer->matrix_bytes);
    copy(layer->plan, layer->matrices[i], matrices[i], layer->matrix_bytes);
    tensors[i] = tensor(PURR_DTYPE_BF16, layer->matrices[i], 3, E, i < 2 ? I : H, i < 2 ? H : I);
  }
  const purr_weights_desc_t weights = {
      .struct_size = sizeof weights, .gate = &tensors[0], .up = &tensors[1], .down = &tensors[2]};
  if (status == PURR_STATUS_OK) status = purr_weights_create(layer->plan, &weights, &layer->weights, &err);
  if (status == PURR_STATUS_OK) status = purr_workspace_create(layer->plan, NULL, NULL, &layer->workspace, &err);
  if (status == PURR_STATUS_OK) status = purr_result_create(layer->context, &layer->result, &err);
  if (status == PURR_STATUS_OK && is_on_device()) status = purr_stream_create(layer->plan, &layer->stream, &err);
  if (status != PURR_STATUS_OK) fprintf(stderr, "%s: %s\n", purr_status_name(status), err.message);
  CU_ASSERT_EQUAL(status, PURR_STATUS_OK);
  return status == PURR_STATUS_OK;
}

static void close_layer(layer_t *layer) {
  if (is_on_device()) purr_stream_destroy(layer->plan, layer->stream);
  purr_result_destroy(layer->result);
  purr_workspace_destroy(layer->workspace);
  purr_weights_destroy(layer->weights);
  for (int i = 0; i < 3; i++) give_back(layer->plan, layer->matrices[i], layer->matrix_bytes);
  purr_plan_destroy(layer->plan);
  purr_context_destroy(layer->context);
  test_problem_free(layer->problem);
}

/* Calls and waits. */
static void run_forward(const layer_t *layer, const purr_tensor_t *x, const purr_tensor_t *ids,
                        const purr_tensor_t *weights, const purr_tensor_t *out, purr_saved_t *saved) {
  const purr_forward_args_t args = {.struct_size = sizeof args,
                                    .weights = layer->weights,
                                    .x = x,
                                    .topk_ids = ids,
                                    .topk_weights = weights,
                                    .output = out,
                                    .saved = saved,
                                    .result = layer->result,
                                    .stream = layer->stream};
  purr_result_info_t info = {.struct_size = sizeof info};
  ASSERT_OK(purr_forward(layer->plan, layer->workspace, &args, &err));
  if (is_on_device()) ASSERT_OK(purr_stream_synchronize(layer->plan, layer->stream, &err));
  ASSERT_OK(purr_result_query(layer->result, &info, &err));
  CU_ASSERT_EQUAL(info.status, PURR_STATUS_OK);
}

/* ---- many tokens ---- */

/* Every row is one of four; each is held against its own as a whole. */
static void expect_rows(const char *what, const test_buffer_t *buffer, int64_t num_tokens, bool is_gradient) {
  static purr__bf16_t row[4][HIDDEN];
  memset(row, 0, sizeof row);
  for (int t = 0; t < 4; t++) {
    if (is_gradient) {
      row[t][0] = purr__bf16_from_fp32(4.5f * x_at(t, 1));
      row[t][1] = purr__bf16_from_fp32(4.5f);
    } else {
      for (int h = 0; h < INNER; h++) row[t][h] = purr__bf16_from_fp32(4.5f * x_at(t, h));
    }
  }
  int64_t num_wrong = 0, first = -1;
  for (int64_t t = 0; t < num_tokens; t++)
    if (memcmp(test_buffer_row(buffer, t), row[t % 4], sizeof row[0]) != 0 && num_wrong++ == 0) first = t;
  if (num_wrong > 0)
    fprintf(stderr, "%lld tokens: %lld rows of %s are wrong, the first is %lld\n", (long long)num_tokens,
            (long long)num_wrong, what, (long long)first);
  CU_ASSERT_EQUAL(num_wrong, 0);
  CU_ASSERT_TRUE(test_buffer_canaries_intact(buffer));
}

/* d_down[e][1][i] = sum of 32 * w * x[t][i], and 0 in all other rows. */
static void expect_d_down(const float *d_down, int64_t num_tokens) {
  float sum[INNER] = {0};
  for (int64_t t = 0; t < num_tokens; t++)
    for (int i = 0; i < INNER; i++) sum[i] += 4.0f * x_at(t, i);
  int num_wrong = 0;
  for (int64_t e = 0; e < EXPERTS; e++)
    for (int64_t h = 0; h < HIDDEN; h++)
      for (int64_t i = 0; i < INNER; i++) num_wrong += d_down[(e * HIDDEN + h) * INNER + i] != (h == 1 ? sum[i] : 0.0f);
  CU_ASSERT_EQUAL(num_wrong, 0);
}

/* On the host alone. `out` is used again, for d_x. */
static void run_backward(const layer_t *layer, purr_saved_t *saved, const placed_t *x, const placed_t *weights,
                         const placed_t *d_output, const placed_t *out, int64_t num_tokens) {
  test_buffer_t d_weights = test_buffer_create(MAX_TOKENS, TOP_K, 0, 4);
  float *d_down_data = malloc((size_t)EXPERTS * HIDDEN * INNER * sizeof *d_down_data);
  memset(d_down_data, TEST_POISON, (size_t)EXPERTS * HIDDEN * INNER * sizeof *d_down_data);
  const purr_tensor_t d_down = tensor(PURR_DTYPE_FP32, d_down_data, 3, EXPERTS, HIDDEN, INNER);
  const purr_weights_desc_t gradients = {.struct_size = sizeof gradients, .down = &d_down};
  purr_tensor_t x_tensor = rows_of(x, PURR_DTYPE_BF16, num_tokens),
                weights_tensor = rows_of(weights, PURR_DTYPE_FP32, num_tokens),
                d_output_tensor = rows_of(d_output, PURR_DTYPE_BF16, num_tokens),
                d_x_tensor = rows_of(out, PURR_DTYPE_BF16, num_tokens),
                d_weights_tensor = test_buffer_matrix(&d_weights, PURR_DTYPE_FP32);
  d_weights_tensor.shape[0] = num_tokens;
  test_buffer_poison(&out->host);
  test_buffer_poison(&d_weights);
  const purr_backward_args_t args = {.struct_size = sizeof args,
                                     .weights = layer->weights,
                                     .saved = saved,
                                     .x = &x_tensor,
                                     .topk_weights = &weights_tensor,
                                     .d_output = &d_output_tensor,
                                     .d_x = &d_x_tensor,
                                     .d_topk_weights = &d_weights_tensor,
                                     .d_weights = &gradients};
  ASSERT_OK(purr_backward(layer->plan, layer->workspace, &args, &err));
  expect_rows("d_x", &out->host, num_tokens, true);
  expect_d_down(d_down_data, num_tokens);
  int64_t num_wrong = 0;
  for (int64_t t = 0; t < num_tokens; t++)
    for (int k = 0; k < TOP_K; k++)
      num_wrong += ((const float *)(const void *)test_buffer_row(&d_weights, t))[k] != (float)(k + 1) * x_at(t, 1);
  CU_ASSERT_EQUAL(num_wrong, 0);
  CU_ASSERT_TRUE(test_buffer_canaries_intact(&d_weights));
  free(d_down_data);
  test_buffer_free(&d_weights);
}

static void many_tokens(void) {
  layer_t layer;
  /* On the host small rings: they are not what is large there. A GPU keeps a row of H for every slot, in the combine
   * buffer; the megakernel also gathers as many. */
  if (!open_layer(&layer, test_fixture_f(1, HIDDEN, INNER, EXPERTS, TOP_K, 0), MAX_TOKENS, !is_on_device())) return;
  const purr_plan_t *plan = layer.plan;
  purr_plan_info_t info = {.struct_size = sizeof info};
  purr_saved_t *saved = NULL;
  REQUIRE_OK(purr_plan_query(plan, &info, &err));
  if (is_on_device()) {
    CU_ASSERT(info.combine_bytes > (UINT64_C(1) << 31) * sizeof(purr__bf16_t));
  } else {
    REQUIRE_OK(purr_saved_create(plan, NULL, 0, &saved, &err));
  }

  placed_t x = place(plan, test_buffer_create(MAX_TOKENS, HIDDEN, 0, 2)),
           out = place(plan, test_buffer_create(MAX_TOKENS, HIDDEN, 0, 2)),
           ids = place(plan, test_buffer_create(MAX_TOKENS, TOP_K, 0, 4)),
           weights = place(plan, test_buffer_create(MAX_TOKENS, TOP_K, 0, 4)), d_output = {0};
  if (!is_on_device()) d_output = place(plan, test_buffer_create(MAX_TOKENS, HIDDEN, 0, 2));
  for (int64_t t = 0; t < MAX_TOKENS; t++) {
    for (int64_t h = 0; h < HIDDEN; h++)
      ((purr__bf16_t *)(void *)test_buffer_row(&x.host, t))[h] = purr__bf16_from_fp32(x_at(t, h));
    for (int k = 0; k < TOP_K; k++) {
      ((int32_t *)(void *)test_buffer_row(&ids.host, t))[k] = k;
      ((float *)(void *)test_buffer_row(&weights.host, t))[k] = 0.125f;
    }
    if (is_on_device()) continue;
    memset(test_buffer_row(&d_output.host, t), 0, HIDDEN * sizeof(purr__bf16_t));
    ((purr__bf16_t *)(void *)test_buffer_row(&d_output.host, t))[1] = purr__bf16_from_fp32(1.0f);
  }
  send(plan, &x);
  send(plan, &ids);
  send(plan, &weights);
  for (int64_t num_tokens = MAX_TOKENS - 1; num_tokens <= MAX_TOKENS; num_tokens++) {
    const purr_tensor_t x_tensor = rows_of(&x, PURR_DTYPE_BF16, num_tokens),
                        ids_tensor = rows_of(&ids, PURR_DTYPE_INT32, num_tokens),
                        weights_tensor = rows_of(&weights, PURR_DTYPE_FP32, num_tokens),
                        out_tensor = rows_of(&out, PURR_DTYPE_BF16, num_tokens);
    test_buffer_poison(&out.host);
    send(plan, &out);
    run_forward(&layer, &x_tensor, &ids_tensor, &weights_tensor, &out_tensor, saved);
    fetch(plan, &out);
    expect_rows("output", &out.host, num_tokens, false);
    if (saved != NULL) run_backward(&layer, saved, &x, &weights, &d_output, &out, num_tokens);
  }
  placed_t *const all[] = {&x, &out, &ids, &weights};
  for (int i = 0; i < 4; i++) drop(plan, all[i]);
  if (!is_on_device()) drop(plan, &d_output);
  purr_saved_destroy(saved);
  close_layer(&layer);
}

/* ---- rows far apart ---- */

enum { STRIDE = (1 << 26) + 64, ROW_BYTES = 512 };

/* Rows with a canary before and behind each, and nothing else in between. */
typedef struct scattered {
  char *memory;
  int64_t num_rows, row_bytes, stride_bytes;
} scattered_t;

static uint64_t scattered_bytes(const scattered_t *s) {
  return (uint64_t)((s->num_rows - 1) * s->stride_bytes + s->row_bytes + 2 * CANARY_BYTES);
}

static scattered_t scatter(const purr_plan_t *plan, int64_t num_rows, int64_t row_bytes, int64_t element_bytes) {
  scattered_t s = {NULL, num_rows, row_bytes, STRIDE * element_bytes};
  s.memory = take(plan, scattered_bytes(&s));
  return s;
}

/* `rows` NULL poisons them. */
static void put_rows(const purr_plan_t *plan, const scattered_t *s, const void *rows) {
  char piece[ROW_BYTES + 2 * CANARY_BYTES];
  memset(piece, CANARY, sizeof piece);
  memset(piece + CANARY_BYTES, TEST_POISON, (size_t)s->row_bytes);
  for (int64_t t = 0; t < s->num_rows; t++) {
    if (rows != NULL) memcpy(piece + CANARY_BYTES, (const char *)rows + t * s->row_bytes, (size_t)s->row_bytes);
    copy(plan, s->memory + t * s->stride_bytes, piece, (uint64_t)s->row_bytes + 2 * CANARY_BYTES);
  }
}

static void expect_scattered(const char *what, const purr_plan_t *plan, const scattered_t *s, const void *rows) {
  char piece[ROW_BYTES + 2 * CANARY_BYTES], expected[ROW_BYTES + 2 * CANARY_BYTES];
  memset(expected, CANARY, sizeof expected);
  int num_wrong = 0;
  for (int64_t t = 0; t < s->num_rows; t++) {
    const size_t bytes = (size_t)s->row_bytes + 2 * CANARY_BYTES;
    copy(plan, piece, s->memory + t * s->stride_bytes, bytes);
    memcpy(expected + CANARY_BYTES, (const char *)rows + t * s->row_bytes, (size_t)s->row_bytes);
    if (memcmp(piece, expected, bytes) != 0 && num_wrong++ == 0)
      fprintf(stderr, "%s of token %lld is wrong\n", what, (long long)t);
  }
  CU_ASSERT_EQUAL(num_wrong, 0);
}

/* The last row of every tensor begins beyond 2^31 elements; on a GPU beyond 2^32 too. */
static void far_rows(void) {
  enum { H = 256, I = 128, E = 8, K = 2, MOST = 66 };
  const int64_t num_tokens = is_on_device() && !test_is_emulated() ? MOST : 34;
  static purr__bf16_t expected[MOST][H];
  int32_t id_rows[MOST][K];
  test_problem_t *problem = test_fixture_f(num_tokens, H, I, E, K, 0);
  layer_t layer;
  if (!open_layer(&layer, problem, num_tokens, false)) return;
  CU_ASSERT((num_tokens - 1) * STRIDE > INT64_C(1) << (num_tokens == MOST ? 32 : 31));
  for (int64_t t = 0; t < num_tokens; t++) {
    float sum = 0.0f;
    for (int k = 0; k < K; k++) {
      id_rows[t][k] = (int32_t)problem->ids[t * K + k];
      sum += problem->topk_weights[t * K + k] * (float)(id_rows[t][k] + 1);
    }
    for (int h = 0; h < H; h++) expected[t][h] = purr__bf16_from_fp32(h < I ? sum * x_at(t, h) : 0.0f);
  }
  const purr_plan_t *plan = layer.plan;
  scattered_t x = scatter(plan, num_tokens, H * 2, 2), out = scatter(plan, num_tokens, H * 2, 2),
              ids = scatter(plan, num_tokens, K * 4, 4), weights = scatter(plan, num_tokens, K * 4, 4);
  scattered_t *const all[] = {&x, &out, &ids, &weights};
  static const int32_t dtypes[] = {PURR_DTYPE_BF16, PURR_DTYPE_BF16, PURR_DTYPE_INT32, PURR_DTYPE_FP32};
  purr_tensor_t tensors[4];
  for (int i = 0; i < 4; i++) {
    tensors[i] = tensor(dtypes[i], all[i]->memory + CANARY_BYTES, 2, num_tokens, i < 2 ? H : K, 0);
    tensors[i].stride[0] = STRIDE;
    tensors[i].stride[1] = 1;
  }
  put_rows(plan, &x, problem->x);
  put_rows(plan, &out, NULL);
  put_rows(plan, &ids, id_rows);
  put_rows(plan, &weights, problem->topk_weights);
  run_forward(&layer, &tensors[0], &tensors[2], &tensors[3], &tensors[1], NULL);
  expect_scattered("output", plan, &out, expected);
  expect_scattered("x", plan, &x, problem->x);
  expect_scattered("topk_ids", plan, &ids, id_rows);
  expect_scattered("topk_weights", plan, &weights, problem->topk_weights);
  for (int i = 0; i < 4; i++) give_back(plan, all[i]->memory, scattered_bytes(all[i]));
  close_layer(&layer);
}

int main(void) {
  return test_layer_main(
      "large",
      (purr_test_t[]){{"B11 token offsets beyond 31 bits", many_tokens}, {"B11 rows far apart", far_rows}, {0}});
}
