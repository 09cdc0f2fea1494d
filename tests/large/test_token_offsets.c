/* B11: token index times row stride beyond 31 bits. T * K * H is 2147475456 and 2147532800 here, either side of 2^31
 * elements. Takes about 6 GB. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/buffer.h"
#include "support/layer.h"
#include "support/main.h"

enum { HIDDEN = 7168, INNER = 128, EXPERTS = 8, TOP_K = 8, MAX_TOKENS = 37450 };

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

/* Every row is one of four, or two; each is held against its own as a whole. */
static void expect_rows(const char *what, const test_buffer_t *buffer, int64_t num_tokens, bool is_gradient) {
  purr__bf16_t row[4][HIDDEN] = {{0}};
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

static void b11_token_offsets(void) {
  /* Fixture F's experts; its tokens are made here, without the copies that its problem would keep. */
  test_problem_t *problem = test_fixture_f(1, HIDDEN, INNER, EXPERTS, TOP_K, 0);
  const purr_layer_desc_t layer = {.struct_size = sizeof layer,
                                   .hidden_size = HIDDEN,
                                   .intermediate_size = INNER,
                                   .num_experts = EXPERTS,
                                   .top_k = TOP_K,
                                   .max_tokens = MAX_TOKENS,
                                   .minibatch_rows = 4096, /* small rings: they are not what is large here */
                                   .macrobatch_rows = 8192,
                                   .backend = PURR_BACKEND_HOST};
  purr_context_t *context = NULL;
  purr_config_t *config = NULL;
  purr_plan_t *plan = NULL;
  purr_weights_t *weights = NULL;
  purr_workspace_t *workspace = NULL;
  purr_saved_t *saved = NULL;
  REQUIRE_OK(purr_context_create(NULL, &context, &err));
  REQUIRE_OK(purr_config_create(context, &layer, &config, &err));
  REQUIRE_OK(purr_plan_create(context, config, NULL, &plan, &err));
  purr_tensor_t gate = tensor(PURR_DTYPE_BF16, problem->gate, 3, EXPERTS, INNER, HIDDEN);
  purr_tensor_t up = tensor(PURR_DTYPE_BF16, problem->up, 3, EXPERTS, INNER, HIDDEN);
  purr_tensor_t down = tensor(PURR_DTYPE_BF16, problem->down, 3, EXPERTS, HIDDEN, INNER);
  const purr_weights_desc_t desc = {.struct_size = sizeof desc, .gate = &gate, .up = &up, .down = &down};
  REQUIRE_OK(purr_weights_create(plan, &desc, &weights, &err));
  REQUIRE_OK(purr_workspace_create(plan, NULL, NULL, &workspace, &err));
  REQUIRE_OK(purr_saved_create(plan, NULL, 0, &saved, &err));

  /* The same ids, weights and dO for every token: inputs may have a row stride of 0. */
  int32_t ids[TOP_K];
  float topk_weights[TOP_K];
  for (int k = 0; k < TOP_K; k++) {
    ids[k] = k;
    topk_weights[k] = 0.125f;
  }
  _Alignas(16) static purr__bf16_t d_output_row[HIDDEN];
  d_output_row[1] = purr__bf16_from_fp32(1.0f);
  test_buffer_t x = test_buffer_create(MAX_TOKENS, HIDDEN, 0, 2), out = test_buffer_create(MAX_TOKENS, HIDDEN, 0, 2);
  test_buffer_t d_ids = test_buffer_create(MAX_TOKENS, TOP_K, 0, 4);
  for (int64_t t = 0; t < MAX_TOKENS; t++)
    for (int64_t h = 0; h < HIDDEN; h++)
      ((purr__bf16_t *)(void *)test_buffer_row(&x, t))[h] = purr__bf16_from_fp32(x_at(t, h));
  float *d_down_data = malloc((size_t)EXPERTS * HIDDEN * INNER * sizeof *d_down_data);
  const purr_tensor_t d_down = tensor(PURR_DTYPE_FP32, d_down_data, 3, EXPERTS, HIDDEN, INNER);
  const purr_weights_desc_t gradients = {.struct_size = sizeof gradients, .down = &d_down};

  for (int64_t num_tokens = MAX_TOKENS - 1; num_tokens <= MAX_TOKENS; num_tokens++) {
    purr_tensor_t x_tensor = test_buffer_matrix(&x, PURR_DTYPE_BF16), out_tensor = x_tensor, ids_tensor, weights_tensor,
                  d_output = x_tensor, d_weights = test_buffer_matrix(&d_ids, PURR_DTYPE_FP32);
    ids_tensor = tensor(PURR_DTYPE_INT32, ids, 2, num_tokens, TOP_K, 0);
    weights_tensor = tensor(PURR_DTYPE_FP32, topk_weights, 2, num_tokens, TOP_K, 0);
    ids_tensor.stride[1] = weights_tensor.stride[1] = 1;
    d_output.data = d_output_row;
    d_output.stride[0] = 0;
    out_tensor.data = test_buffer_data(&out);
    x_tensor.shape[0] = out_tensor.shape[0] = d_output.shape[0] = d_weights.shape[0] = num_tokens;
    test_buffer_poison(&out);
    const purr_forward_args_t forward = {.struct_size = sizeof forward,
                                         .weights = weights,
                                         .x = &x_tensor,
                                         .topk_ids = &ids_tensor,
                                         .topk_weights = &weights_tensor,
                                         .output = &out_tensor,
                                         .saved = saved};
    REQUIRE_OK(purr_forward(plan, workspace, &forward, &err));
    expect_rows("output", &out, num_tokens, false);
    test_buffer_poison(&out);
    test_buffer_poison(&d_ids);
    const purr_backward_args_t backward = {.struct_size = sizeof backward,
                                           .weights = weights,
                                           .saved = saved,
                                           .x = &x_tensor,
                                           .topk_weights = &weights_tensor,
                                           .d_output = &d_output,
                                           .d_x = &out_tensor,
                                           .d_topk_weights = &d_weights,
                                           .d_weights = &gradients};
    REQUIRE_OK(purr_backward(plan, workspace, &backward, &err));
    expect_rows("d_x", &out, num_tokens, true);
    expect_d_down(d_down_data, num_tokens);
    int64_t num_wrong = 0;
    for (int64_t t = 0; t < num_tokens; t++)
      for (int k = 0; k < TOP_K; k++)
        num_wrong += ((const float *)(const void *)test_buffer_row(&d_ids, t))[k] != (float)(k + 1) * x_at(t, 1);
    CU_ASSERT_EQUAL(num_wrong, 0);
    CU_ASSERT_TRUE(test_buffer_canaries_intact(&d_ids));
  }
  free(d_down_data);
  test_buffer_free(&x);
  test_buffer_free(&out);
  test_buffer_free(&d_ids);
  purr_saved_destroy(saved);
  purr_workspace_destroy(workspace);
  purr_weights_destroy(weights);
  purr_plan_destroy(plan);
  purr_config_destroy(config);
  purr_context_destroy(context);
  test_problem_free(problem);
}

int main(void) {
  return purr_test_main("large", (purr_test_t[]){{"B11 token offsets beyond 31 bits", b11_token_offsets}, {0}});
}
