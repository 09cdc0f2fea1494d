/* Every way to misuse a call: handles, tensors, flags, states, memory. Each is refused with a sentence that names what
 * is wrong, nothing is written, and the next good call is exact. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/allocator.h"
#include "support/main.h"
#include "support/rank.h"

/* ---- one layer, ready to run ---- */

static purr_error_t err; /* of the last call */
static purr_test_allocator_t memory;
static purr_context_t *context;
static purr_config_t *config;
static purr_plan_t *plan;
static test_problem_t *problem;
static test_outcome_t *expected;
static test_run_t run;
static test_rank_t rank;

static void set_up(const test_run_t *how) {
  run = how != NULL ? *how : (test_run_t){0};
  run.max_tokens = 6;
  problem = test_fixture_f(5, 32, 16, 4, 2, 16);
  problem->shared_gate = run.packed; /* as good an occasion as any */
  expected = test_layer_run(problem, &run);
  purr_test_allocator_init(&memory);
  memory.keeps_released = true;
  const purr_context_desc_t desc = {.struct_size = sizeof desc, .num_threads = 2, .host_allocator = &memory.hooks};
  const purr_layer_desc_t layer = test_layer_desc(problem, &run);
  CU_ASSERT_EQUAL_FATAL(expected->status, PURR_STATUS_OK);
  CU_ASSERT_EQUAL_FATAL(purr_context_create(&desc, &context, &err), PURR_STATUS_OK);
  CU_ASSERT_EQUAL_FATAL(purr_config_create(context, &layer, &config, &err), PURR_STATUS_OK);
  CU_ASSERT_EQUAL_FATAL(purr_plan_create(context, config, NULL, &plan, &err), PURR_STATUS_OK);
  rank = (test_rank_t){.problem = problem, .run = &run, .context = context, .plan = plan};
  test_rank_prepare(&rank);
  CU_ASSERT_EQUAL_FATAL(test_rank_create_objects(&rank, &err), PURR_STATUS_OK);
}

static void tear_down(void) {
  test_rank_destroy_objects(&rank);
  test_rank_free(&rank);
  purr_plan_destroy(plan);
  purr_config_destroy(config);
  purr_context_destroy(context);
  test_problem_free(problem);
  test_outcome_free(expected);
  CU_ASSERT_EQUAL(memory.num_live, 0);
  CU_ASSERT_EQUAL(memory.num_wrong, 0);
  purr_test_allocator_free_kept(&memory);
}

static void expect_exact(const char *what) {
  test_rank_poison(&rank);
  ASSERT_OK(test_rank_forward(&rank, &err));
  ASSERT_OK(test_rank_backward(&rank, &err));
  if (!test_rank_forward_equals(&rank, expected) || !test_rank_backward_equals(&rank, expected))
    fprintf(stderr, "after %s: the layer is not exact\n", what);
  CU_ASSERT_TRUE(test_rank_forward_equals(&rank, expected));
  CU_ASSERT_TRUE(test_rank_backward_equals(&rank, expected));
  CU_ASSERT_TRUE(test_rank_canaries_intact(&rank));
  test_rank_poison(&rank);
}

/* A refusal: the status, the words that must be in the sentence, and no output touched. */
static void expect_refused(const char *what, purr_status_t wanted, purr_status_t got, const char *word,
                           const char *other_word) {
  const bool said = strstr(err.message, word) != NULL && strstr(err.message, other_word) != NULL;
  if (got != wanted || err.status != wanted || !said)
    fprintf(stderr, "%s: got %s, expected %s with '%s' and '%s': %s\n", what, purr_status_name(got),
            purr_status_name(wanted), word, other_word, err.message);
  CU_ASSERT_EQUAL(got, wanted);
  CU_ASSERT_EQUAL(err.status, wanted);
  CU_ASSERT_TRUE(said);
  CU_ASSERT_TRUE(test_rank_untouched(&rank));
}

#define REFUSED(what, wanted, call, word, other_word)    \
  do {                                                   \
    err = (purr_error_t)PURR_ERROR_INIT;                 \
    const purr_status_t got = (call);                    \
    expect_refused(what, wanted, got, word, other_word); \
  } while (0)
#define INVALID PURR_STATUS_INVALID_ARGUMENT

/* ---- handles ---- */

static void handles(void) {
  set_up(NULL);
  purr_context_t *const other = context; /* a live handle of another kind */
  REFUSED("no plan", INVALID, purr_forward(NULL, rank.workspace, &rank.forward, &err), "plan", "NULL");
  REFUSED("no plan", INVALID, purr_backward(NULL, rank.workspace, &rank.backward, &err), "plan", "NULL");
  REFUSED("no workspace", INVALID, purr_forward(plan, NULL, &rank.forward, &err), "workspace", "NULL");
  REFUSED("no workspace", INVALID, purr_backward(plan, NULL, &rank.backward, &err), "workspace", "NULL");
  REFUSED("no arguments", INVALID, purr_forward(plan, rank.workspace, NULL, &err), "purr_forward_args_t", "NULL");
  REFUSED("no arguments", INVALID, purr_backward(plan, rank.workspace, NULL, &err), "purr_backward_args_t", "NULL");
  REFUSED("a context as plan", INVALID, purr_forward((purr_plan_t *)(void *)other, rank.workspace, &rank.forward, &err),
          "plan", "not a live plan");
  REFUSED("a plan as workspace", INVALID, purr_backward(plan, (purr_workspace_t *)(void *)plan, &rank.backward, &err),
          "workspace", "not a live");
  REFUSED("no schedule", INVALID, purr_schedule_build(NULL, rank.workspace, &rank.tensor.ids, NULL, &err), "schedule",
          "NULL");
  REFUSED("no workspace", INVALID, purr_schedule_build(rank.schedule, NULL, &rank.tensor.ids, NULL, &err), "workspace",
          "NULL");
  REFUSED("a result as schedule", INVALID,
          purr_schedule_build((purr_schedule_t *)(void *)rank.result, rank.workspace, &rank.tensor.ids, NULL, &err),
          "schedule", "not a live");

  purr_forward_args_t forward = rank.forward;
  purr_backward_args_t backward = rank.backward;
  forward.weights = NULL;
  REFUSED("no weights", INVALID, purr_forward(plan, rank.workspace, &forward, &err), "weights", "NULL");
  backward.weights = (purr_weights_t *)(void *)other;
  REFUSED("other weights", INVALID, purr_backward(plan, rank.workspace, &backward, &err), "weights", "not a live");
  forward = rank.forward;
  forward.saved = (purr_saved_t *)(void *)other;
  REFUSED("other saved", INVALID, purr_forward(plan, rank.workspace, &forward, &err), "saved", "not a live");
  forward = rank.forward;
  forward.result = (purr_result_t *)(void *)other;
  REFUSED("other result", INVALID, purr_forward(plan, rank.workspace, &forward, &err), "result", "not a live");
  forward = rank.forward;
  forward.schedule = (purr_schedule_t *)(void *)other;
  REFUSED("other schedule", INVALID, purr_forward(plan, rank.workspace, &forward, &err), "schedule", "not a live");
  backward = rank.backward;
  backward.saved = NULL;
  REFUSED("no saved", INVALID, purr_backward(plan, rank.workspace, &backward, &err), "saved", "NULL");
  backward = rank.backward;
  backward.result = (purr_result_t *)(void *)other;
  expect_exact("bad handles"); /* saved is filled, so that the result is looked at */
  REFUSED("other result", INVALID, purr_backward(plan, rank.workspace, &backward, &err), "result", "not a live");
  expect_exact("bad handles");
  tear_down();
}

/* The allocator of these tests keeps what is released: a destroyed handle can be tried. */
static void destroyed_handles(void) {
  set_up(NULL);
  expect_exact("set-up");
  test_rank_t gone = rank;
  test_rank_destroy_objects(&rank);
  ASSERT_OK(test_rank_create_objects(&rank, &err));
  expect_exact("new objects");
  purr_forward_args_t forward = rank.forward;
  REFUSED("workspace", INVALID, purr_forward(plan, gone.workspace, &rank.forward, &err), "workspace", "not a live");
  forward.weights = gone.weights;
  REFUSED("weights", INVALID, purr_forward(plan, rank.workspace, &forward, &err), "weights", "not a live");
  forward = rank.forward;
  forward.saved = gone.saved;
  REFUSED("saved", INVALID, purr_forward(plan, rank.workspace, &forward, &err), "saved", "not a live");
  forward = rank.forward;
  forward.result = gone.result;
  REFUSED("result", INVALID, purr_forward(plan, rank.workspace, &forward, &err), "result", "not a live");
  forward = rank.forward;
  forward.schedule = gone.schedule;
  REFUSED("schedule", INVALID, purr_forward(plan, rank.workspace, &forward, &err), "schedule", "not a live");
  purr_result_info_t info = {.struct_size = sizeof info};
  REFUSED("result", INVALID, purr_result_query(gone.result, &info, &err), "result", "not a live");
  purr_schedule_view_t view = {.struct_size = sizeof view};
  REFUSED("schedule", INVALID, purr_schedule_get_view(gone.schedule, &view, &err), "schedule", "not a live");
  expect_exact("destroyed handles");
  tear_down();
}

/* ---- tensors ---- */

static void not_a_dtype(purr_tensor_t *t) { t->dtype = 999; }
static void no_dtype(purr_tensor_t *t) { t->dtype = PURR_DTYPE_NONE; }
static void fp16(purr_tensor_t *t) { t->dtype = PURR_DTYPE_FP16; }
static void one_dim(purr_tensor_t *t) { t->num_dims = 1; }
static void four_dims(purr_tensor_t *t) { t->num_dims = 4; }
static void dims_below_zero(purr_tensor_t *t) { t->num_dims = -1; }
static void more_dims_than_fit(purr_tensor_t *t) { t->num_dims = 1 << 30; }
static void other_rows(purr_tensor_t *t) { t->shape[t->num_dims - 2] += 8; }
static void other_columns(purr_tensor_t *t) { t->shape[t->num_dims - 1] += 8; }
static void no_columns(purr_tensor_t *t) { t->shape[t->num_dims - 1] = 0; }
static void rows_below_zero(purr_tensor_t *t) { t->shape[t->num_dims - 2] = -1; }
static void huge_rows(purr_tensor_t *t) { t->shape[t->num_dims - 2] = INT64_MAX; }
static void stride_below_zero(purr_tensor_t *t) { t->stride[t->num_dims - 2] = -t->shape[t->num_dims - 1] * 8; }
static void huge_stride(purr_tensor_t *t) { t->stride[t->num_dims - 2] = INT64_MAX / 16 * 8; }
static void odd_stride(purr_tensor_t *t) {
  t->stride[t->num_dims - 1] = 1;
  t->stride[t->num_dims - 2] = t->shape[t->num_dims - 1] + 1;
}
static void apart_columns(purr_tensor_t *t) { t->stride[t->num_dims - 1] = 2; }
static void one_row_for_all(purr_tensor_t *t) {
  t->stride[t->num_dims - 1] = 1;
  t->stride[t->num_dims - 2] = 0;
}
static void overlapping_rows(purr_tensor_t *t) { t->stride[t->num_dims - 2] = t->shape[t->num_dims - 1] / 2; }
static void no_data(purr_tensor_t *t) { t->data = NULL; }
static void odd_address(purr_tensor_t *t) { t->data = (char *)t->data + 1; }
static void address_of_8(purr_tensor_t *t) { t->data = (char *)t->data + 8; }
static void with_pointers(purr_tensor_t *t) {
  static void *pointers[64];
  for (int i = 0; i < 64; i++) pointers[i] = t->data;
  t->pointers = pointers;
}
static void with_scales(purr_tensor_t *t) {
  static const purr_scales_t scales = PURR_SCALES_INIT;
  t->scales = &scales;
}
static void no_struct_size(purr_tensor_t *t) { t->struct_size = 0; }

/* Which tensors a damage is one for. */
enum {
  HIDDEN = 1,  /* rows of 16-byte multiples */
  SLOTS = 2,   /* [T, K] */
  WRITTEN = 4, /* by the call */
  FIRST = 8,   /* says how many tokens there are */
  EXPERTS = 16 /* may be an array of pointers */
};

static const struct {
  const char *name;
  void (*apply)(purr_tensor_t *tensor);
  int needs, spares; /* tried on tensors that have all bits of the one and none of the other */
  const char *word;
} damages[] = {
    {"an unknown type", not_a_dtype, 0, 0, "dtype unknown (999); allowed: "},
    {"no type", no_dtype, 0, 0, "dtype unknown (0); allowed: "},
    {"FP16", fp16, 0, 0, "dtype FP16 (32); allowed: "},
    {"one dimension", one_dim, 0, 0, "; it must be ["},
    {"four dimensions", four_dims, 0, 0, "; it must be ["},
    {"less than no dimension", dims_below_zero, 0, 0, "; it must be ["},
    {"2^30 dimensions", more_dims_than_fit, 0, 0, "; it must be ["},
    {"other rows", other_rows, 0, FIRST, "; it must be ["},
    {"other columns", other_columns, 0, 0, "; it must be ["},
    {"no columns", no_columns, 0, 0, "; it must be ["},
    {"less than no rows", rows_below_zero, 0, 0, "-1, "},
    {"more rows than memory", huge_rows, 0, FIRST, "; it must be ["},
    {"a negative stride", stride_below_zero, 0, 0, "strides are not negative"},
    {"a huge stride", huge_stride, 0, 0, "beyond 2^59 bytes"},
    {"an odd stride", odd_stride, HIDDEN, 0, "must be a multiple of 16 bytes"},
    {"columns that stand apart", apart_columns, HIDDEN, 0, "elements of a row must be adjacent"},
    {"one row for all", one_row_for_all, 0, 0, "] = 0 in a dimension of "},
    {"overlapping rows", overlapping_rows, WRITTEN, 0, "would overlap"},
    {"no data", no_data, 0, 0, "has no data (NULL)"},
    {"an odd address", odd_address, 0, 0, "it must be a multiple of "},
    {"an address of 8", address_of_8, HIDDEN, 0, "it must be a multiple of 16 bytes"},
    {"an array of pointers", with_pointers, 0, EXPERTS, "pointer array"},
    {"scales", with_scales, 0, 0, "has scales"},
    {"no struct_size", no_struct_size, 0, 0, "struct_size 0"},
};

/* Damages the tensor in every way that is one for it; `call` returns what the call with it returns. */
static void damage(const char *name, purr_tensor_t *tensor, int kind, purr_status_t (*call)(purr_error_t *)) {
  const purr_tensor_t good = *tensor;
  for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
    if ((kind & damages[i].needs) != damages[i].needs || (kind & damages[i].spares) != 0) continue;
    char what[96];
    snprintf(what, sizeof what, "%s with %s", name, damages[i].name);
    damages[i].apply(tensor);
    REFUSED(what, INVALID, call(&err), name, damages[i].word);
    *tensor = good;
  }
  tensor->struct_size = sizeof *tensor;
}

static purr_status_t call_forward(purr_error_t *out_err) {
  return purr_forward(plan, rank.workspace, &rank.forward, out_err);
}
static purr_status_t call_backward(purr_error_t *out_err) {
  return purr_backward(plan, rank.workspace, &rank.backward, out_err);
}
static purr_status_t call_build(purr_error_t *out_err) {
  return purr_schedule_build(rank.schedule, rank.workspace, &rank.tensor.ids, NULL, out_err);
}
static purr_status_t call_weights(purr_error_t *out_err) {
  purr_weights_t *weights = (purr_weights_t *)(void *)&rank;
  const purr_status_t status = purr_weights_create(plan, &rank.weights_desc, &weights, out_err);
  if (status != PURR_STATUS_OK) CU_ASSERT_PTR_NULL(weights);
  if (status == PURR_STATUS_OK) purr_weights_destroy(weights);
  return status;
}

static void tensors_of_calls(void) {
  set_up(NULL);
  damage("x", &rank.tensor.x, HIDDEN | FIRST, call_forward);
  damage("topk_ids", &rank.tensor.ids, SLOTS, call_forward);
  damage("topk_weights", &rank.tensor.topk_weights, SLOTS, call_forward);
  damage("output", &rank.tensor.output, HIDDEN | WRITTEN, call_forward);
  damage("topk_ids", &rank.tensor.ids, SLOTS | FIRST, call_build);
  expect_exact("bad tensors of forward");
  damage("x", &rank.tensor.x, HIDDEN, call_backward);
  damage("topk_weights", &rank.tensor.topk_weights, SLOTS, call_backward);
  damage("d_output", &rank.tensor.d_output, HIDDEN, call_backward);
  damage("d_x", &rank.tensor.d_x, HIDDEN | WRITTEN, call_backward);
  damage("d_topk_weights", &rank.tensor.d_topk_weights, SLOTS | WRITTEN, call_backward);
  static const char *const names[TEST_NUM_GRADIENTS] = {"d_weights.gate",      "d_weights.up",
                                                        "d_weights.down",      "d_weights.shared_gate",
                                                        "d_weights.shared_up", "d_weights.shared_down"};
  for (int i = TEST_D_GATE; i <= TEST_D_S_DOWN; i++)
    damage(names[i], &rank.tensor.gradient[i], HIDDEN | WRITTEN | (i <= TEST_D_DOWN ? EXPERTS : 0), call_backward);
  expect_exact("bad tensors of backward");

  /* Those that may not be missing. */
  const struct {
    const char *name;
    const purr_tensor_t **slot;
    purr_status_t (*call)(purr_error_t *);
  } needed[] = {{"x", &rank.forward.x, call_forward},
                {"topk_ids", &rank.forward.topk_ids, call_forward},
                {"topk_weights", &rank.forward.topk_weights, call_forward},
                {"output", &rank.forward.output, call_forward},
                {"x", &rank.backward.x, call_backward},
                {"topk_weights", &rank.backward.topk_weights, call_backward},
                {"d_output", &rank.backward.d_output, call_backward}};
  for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
    const purr_tensor_t *const good = *needed[i].slot;
    *needed[i].slot = NULL;
    REFUSED("a missing tensor", INVALID, needed[i].call(&err), needed[i].name, "NULL");
    *needed[i].slot = good;
  }
  REFUSED("no ids", INVALID, purr_schedule_build(rank.schedule, rank.workspace, NULL, NULL, &err), "topk_ids", "NULL");
  /* Gradients of a part that the layer does not have. */
  rank.gradients.shared_expert_gate = &rank.tensor.d_x;
  REFUSED("a gradient of no weight", INVALID, call_backward(&err), "d_weights.shared_expert_gate", "no shared gate");
  rank.gradients.shared_expert_gate = NULL;
  rank.gradients.gate_up = &rank.tensor.gradient[TEST_D_GATE];
  REFUSED("gate twice", INVALID, call_backward(&err), "d_weights", "not both");
  rank.gradients.gate_up = NULL;
  expect_exact("missing tensors");
  tear_down();
}

static void tensors_of_weights(void) {
  for (int packed = 0; packed <= 1; packed++) {
    set_up(&(test_run_t){.packed = packed == 1});
    const struct {
      const char *name;
      const purr_tensor_t **slot;
      purr_tensor_t *tensor;
      bool used, expert;
    } parts[] = {
        {"weights.gate_up", &rank.weights_desc.gate_up, &rank.tensor.gate_up, packed == 1, true},
        {"weights.gate", &rank.weights_desc.gate, &rank.tensor.gate, packed == 0, true},
        {"weights.up", &rank.weights_desc.up, &rank.tensor.up, packed == 0, true},
        {"weights.down", &rank.weights_desc.down, &rank.tensor.down, true, true},
        {"weights.shared_gate", &rank.weights_desc.shared_gate, &rank.tensor.s_gate, true, false},
        {"weights.shared_up", &rank.weights_desc.shared_up, &rank.tensor.s_up, true, false},
        {"weights.shared_down", &rank.weights_desc.shared_down, &rank.tensor.s_down, true, false},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
      if (!parts[i].used) continue;
      damage(parts[i].name, parts[i].tensor, HIDDEN | (parts[i].expert ? EXPERTS : 0), call_weights);
      if (strcmp(parts[i].name, "weights.gate_up") == 0) continue; /* without it, gate is missed */
      *parts[i].slot = NULL;
      REFUSED("a missing weight", INVALID, call_weights(&err), parts[i].name, "missing");
      *parts[i].slot = parts[i].tensor;
    }
    /* The shared gate is a vector, [H] or [1, H]. */
    if (packed) {
      rank.tensor.z.shape[0] = 31;
      REFUSED("a short vector", INVALID, call_weights(&err), "weights.shared_expert_gate", "it must be [32]");
      rank.tensor.z = (purr_tensor_t){.struct_size = sizeof rank.tensor.z,
                                      .dtype = PURR_DTYPE_BF16,
                                      .num_dims = 2,
                                      .data = problem->z,
                                      .shape = {2, 32}};
      REFUSED("two rows", INVALID, call_weights(&err), "weights.shared_expert_gate", "it must be [1, 32]");
      rank.tensor.z.shape[0] = 1;
      ASSERT_OK(call_weights(&err));
      rank.weights_desc.gate = &rank.tensor.gate;
      REFUSED("gate twice", INVALID, call_weights(&err), "weights", "not both");
      rank.weights_desc.gate = NULL;
    }
    REFUSED("no description", INVALID, purr_weights_create(plan, NULL, &(purr_weights_t *){NULL}, &err),
            "purr_weights_desc_t", "NULL");
    REFUSED("no place for the handle", INVALID, purr_weights_create(plan, &rank.weights_desc, NULL, &err),
            "out_weights", "NULL");
    REFUSED("no plan", INVALID, purr_weights_create(NULL, &rank.weights_desc, &(purr_weights_t *){NULL}, &err), "plan",
            "NULL");
    expect_exact("bad weights");
    tear_down();
  }
}

/* Arrays of pointers with a hole, with an odd address; and the array need not outlive the call. */
static void pointer_arrays(void) {
  set_up(&(test_run_t){.pointers = true});
  void *good[4];
  for (int part = 0; part < 3; part++) {
    static const char *const names[] = {"weights.down", "weights.gate", "weights.up"};
    memcpy(good, rank.pointers[part], sizeof good);
    rank.pointers[part][3] = NULL;
    REFUSED("a hole", INVALID, call_weights(&err), names[part], "no data (NULL)");
    rank.pointers[part][3] = (char *)good[3] + 2;
    REFUSED("an odd address", INVALID, call_weights(&err), names[part], "multiple of 16 bytes");
    rank.pointers[part][3] = good[3];
  }
  for (int part = 0; part < 3; part++) memset(rank.pointers[part], 0xFF, sizeof good);
  expect_exact("pointer arrays that are gone");
  /* Gradients by pointers, one of them missing. */
  void *pointers[4];
  for (int e = 0; e < 4; e++) pointers[e] = test_buffer_row(&rank.gradient[TEST_D_DOWN], e * problem->hidden);
  purr_tensor_t *down = &rank.tensor.gradient[TEST_D_DOWN];
  down->data = NULL;
  down->pointers = pointers;
  expect_exact("gradients by pointers");
  pointers[2] = NULL;
  REFUSED("a hole", INVALID, call_backward(&err), "d_weights.down", "no data (NULL)");
  pointers[2] = test_buffer_row(&rank.gradient[TEST_D_DOWN], 2 * problem->hidden);
  expect_exact("a hole in the gradients");
  tear_down();
}

/* ---- numbers ---- */

static void too_many_tokens(void) {
  set_up(NULL);
  test_problem_t *larger = test_fixture_f(7, 32, 16, 4, 2, 16);
  test_rank_t many = {.problem = larger, .run = &run, .context = context, .plan = plan};
  test_rank_prepare(&many);
  purr_forward_args_t args = rank.forward;
  args.x = &many.tensor.x;
  args.topk_ids = &many.tensor.ids;
  args.topk_weights = &many.tensor.topk_weights;
  args.output = &many.tensor.output;
  REFUSED("7 tokens", INVALID, purr_forward(plan, rank.workspace, &args, &err), "7 tokens", "at most 6 (max_tokens)");
  REFUSED("7 tokens", INVALID, purr_schedule_build(rank.schedule, rank.workspace, &many.tensor.ids, NULL, &err),
          "7 tokens", "at most 6 (max_tokens)");
  CU_ASSERT_TRUE(test_rank_untouched(&many));
  expect_exact("too many tokens");
  test_rank_free(&many);
  test_problem_free(larger);
  tear_down();
}

static void flags_and_versions(void) {
  set_up(NULL);
  expect_exact("set-up");
  purr_backward_args_t backward = rank.backward;
  backward.flags = 2;
  REFUSED("an unknown flag", INVALID, purr_backward(plan, rank.workspace, &backward, &err), "flags is 0x2",
          "PURR_BACKWARD_ACCUMULATE");
  backward.flags = UINT32_MAX;
  REFUSED("all flags", INVALID, purr_backward(plan, rank.workspace, &backward, &err), "flags is 0xffffffff",
          "PURR_BACKWARD_ACCUMULATE");
  struct {
    purr_forward_args_t known;
    uint64_t unknown;
  } newer = {rank.forward, 1};
  newer.known.struct_size = sizeof newer;
  REFUSED("a newer struct", PURR_STATUS_INCOMPATIBLE_STRUCT, purr_forward(plan, rank.workspace, &newer.known, &err),
          "purr_forward_args_t", "newer header");
  REFUSED("an unset struct", INVALID, purr_forward(plan, rank.workspace, &(purr_forward_args_t){0}, &err),
          "purr_forward_args_t", "struct_size 0");
  expect_exact("flags");
  tear_down();
}

/* ---- states ---- */

static void states_of_saved(void) {
  set_up(NULL);
  REFUSED("never filled", PURR_STATUS_INVALID_STATE, call_backward(&err), "saved", "not filled");
  ASSERT_OK(call_forward(&err));
  test_rank_poison(&rank);
  /* A step that fails leaves nothing to go back from. */
  int64_t *id = (int64_t *)(void *)test_buffer_row(&rank.ids, 3);
  const int64_t good = *id;
  *id = 4;
  REFUSED("a bad id", PURR_STATUS_BAD_ROUTE, call_forward(&err), "token 3, slot 0", "expert id 4");
  REFUSED("after a bad id", PURR_STATUS_INVALID_STATE, call_backward(&err), "saved", "not filled");
  *id = good;
  expect_exact("a bad id");
  /* A call that is refused before it runs keeps what was saved. */
  rank.forward.topk_weights = NULL;
  REFUSED("no weights", INVALID, call_forward(&err), "topk_weights", "NULL");
  rank.forward.topk_weights = &rank.tensor.topk_weights;
  ASSERT_OK(call_backward(&err));
  CU_ASSERT_TRUE(test_rank_backward_equals(&rank, expected));
  test_rank_poison(&rank);

  /* Filled by another plan: another layer, and the same layer with another activation memory. */
  purr_layer_desc_t layer = test_layer_desc(problem, &run);
  layer.activation_memory = -1;
  purr_config_t *other_config = NULL;
  purr_plan_t *other_plan = NULL;
  REQUIRE_OK(purr_config_create(context, &layer, &other_config, &err));
  REQUIRE_OK(purr_plan_create(context, other_config, NULL, &other_plan, &err));
  REFUSED("another plan", INVALID, purr_backward(other_plan, rank.workspace, &rank.backward, &err), "weights",
          "another plan");
  purr_backward_args_t backward = rank.backward;
  purr_weights_t *other_weights = NULL;
  REQUIRE_OK(purr_weights_create(other_plan, &rank.weights_desc, &other_weights, &err));
  backward.weights = other_weights;
  REFUSED("another plan's step", INVALID, purr_backward(other_plan, rank.workspace, &backward, &err), "saved",
          "another plan");
  /* A saved that is too small for the plan. */
  purr_saved_t *small = NULL;
  REQUIRE_OK(purr_saved_create(other_plan, NULL, 0, &small, &err));
  purr_forward_args_t forward = rank.forward;
  forward.saved = small;
  REFUSED("a small saved", PURR_STATUS_BUFFER_TOO_SMALL, purr_forward(plan, rank.workspace, &forward, &err), "saved",
          "needs");
  backward = rank.backward;
  backward.saved = small;
  REFUSED("a small saved", PURR_STATUS_BUFFER_TOO_SMALL, purr_backward(plan, rank.workspace, &backward, &err), "saved",
          "needs");
  purr_saved_destroy(small);
  purr_weights_destroy(other_weights);
  purr_plan_destroy(other_plan);
  purr_config_destroy(other_config);

  /* The tokens of backward are those of the forward. */
  rank.tensor.x.shape[0] = 4;
  REFUSED("other tokens", INVALID, call_backward(&err), "x has shape [4, 32]", "must be [5, 32]");
  rank.tensor.x.shape[0] = 5;
  expect_exact("states of saved");
  tear_down();
}

static void states_of_schedules(void) {
  set_up(NULL);
  purr_schedule_view_t view = {.struct_size = sizeof view};
  REFUSED("not built", PURR_STATUS_INVALID_STATE, purr_schedule_get_view(rank.schedule, &view, &err), "schedule",
          "not been built");
  REFUSED("not built", PURR_STATUS_INVALID_STATE,
          purr_schedule_describe(rank.schedule, PURR_FORMAT_TEXT, NULL, 0, NULL, &err), "schedule", "not been built");
  rank.forward.schedule = rank.schedule;
  REFUSED("not built", PURR_STATUS_INVALID_STATE, call_forward(&err), "schedule", "not been built");
  ASSERT_OK(call_build(&err));
  expect_exact("a schedule");
  /* A build that fails undoes the one before. */
  int64_t *id = (int64_t *)(void *)test_buffer_row(&rank.ids, 1);
  const int64_t good = id[1];
  id[1] = -7;
  REFUSED("a bad id", PURR_STATUS_BAD_ROUTE, call_build(&err), "token 1, slot 1", "expert id -7");
  REFUSED("after a bad id", PURR_STATUS_INVALID_STATE, call_forward(&err), "schedule", "not been built");
  id[1] = good;
  ASSERT_OK(call_build(&err));
  expect_exact("a schedule built again");
  /* One that is refused does not. */
  rank.tensor.ids.shape[1] = 3;
  REFUSED("bad ids", INVALID, call_build(&err), "topk_ids", "must be");
  rank.tensor.ids.shape[1] = 2;
  expect_exact("a refused building");
  /* Another number of tokens than it was built for. */
  rank.tensor.x.shape[0] = rank.tensor.ids.shape[0] = rank.tensor.topk_weights.shape[0] = 4;
  rank.tensor.output.shape[0] = 4;
  REFUSED("other tokens", INVALID, call_forward(&err), "built for 5 tokens", "x has 4");
  rank.tensor.x.shape[0] = rank.tensor.ids.shape[0] = rank.tensor.topk_weights.shape[0] = 5;
  rank.tensor.output.shape[0] = 5;
  /* Of another plan. */
  const purr_plan_desc_t desc = {.struct_size = sizeof desc, .max_tokens = 5};
  purr_plan_t *other_plan = NULL;
  purr_schedule_t *other = NULL;
  purr_workspace_t *workspace = NULL;
  REQUIRE_OK(purr_plan_create(context, config, &desc, &other_plan, &err));
  REQUIRE_OK(purr_workspace_create(other_plan, NULL, NULL, &workspace, &err));
  REQUIRE_OK(purr_schedule_create(other_plan, &other, &err));
  REQUIRE_OK(purr_schedule_build(other, workspace, &rank.tensor.ids, NULL, &err));
  rank.forward.schedule = other;
  REFUSED("another plan's schedule", INVALID, call_forward(&err), "schedule", "another plan");
  rank.forward.schedule = NULL;
  purr_schedule_destroy(other);
  purr_workspace_destroy(workspace);
  purr_plan_destroy(other_plan);
  REFUSED("no place for the handle", INVALID, purr_schedule_create(plan, NULL, &err), "out_schedule", "NULL");
  REFUSED("an unknown format", INVALID, purr_schedule_describe(rank.schedule, 7, NULL, 0, NULL, &err), "format is 7",
          "JSON");
  expect_exact("states of schedules");
  tear_down();
}

static void results(void) {
  set_up(NULL);
  purr_result_info_t info = {.struct_size = sizeof info};
  int64_t counts[4];
  ASSERT_OK(purr_result_query(rank.result, &info, &err));
  CU_ASSERT_EQUAL(info.status, PURR_STATUS_NOT_READY);
  REFUSED("no call yet", PURR_STATUS_NOT_READY, purr_result_tokens_per_expert(rank.result, counts, 4, &err),
          "has not finished", "");
  ASSERT_OK(call_forward(&err));
  test_rank_poison(&rank);
  ASSERT_OK(purr_result_query(rank.result, &info, &err));
  CU_ASSERT_EQUAL(info.status, PURR_STATUS_OK);
  CU_ASSERT_EQUAL(info.num_rows, 10);
  CU_ASSERT_EQUAL(info.num_rows_done, 10);
  CU_ASSERT_EQUAL(info.rank, -1);
  CU_ASSERT_EQUAL(info.token, -1);
  CU_ASSERT_EQUAL(info.slot, -1);
  CU_ASSERT_TRUE(info.total_ns > 0);
  ASSERT_OK(purr_result_tokens_per_expert(rank.result, counts, 4, &err));
  CU_ASSERT_EQUAL(counts[0] + counts[1] + counts[2] + counts[3], 10);
  REFUSED("3 counts", INVALID, purr_result_tokens_per_expert(rank.result, counts, 3, &err), "num_counts is 3",
          "4 experts");
  REFUSED("-1 counts", INVALID, purr_result_tokens_per_expert(rank.result, counts, -1, &err), "num_counts is -1",
          "4 experts");
  REFUSED("nowhere to write", INVALID, purr_result_tokens_per_expert(rank.result, NULL, 4, &err), "out_counts", "NULL");
  REFUSED("nowhere to write", INVALID, purr_result_query(rank.result, NULL, &err), "out_info", "NULL");
  REFUSED("no result", INVALID, purr_result_query(NULL, &info, &err), "result", "NULL");
  REFUSED("no place for the handle", INVALID, purr_result_create(context, NULL, &err), "out_result", "NULL");

  /* A refused call leaves the result alone; one that fails while running is told by it, with its sentence. */
  rank.forward.x = NULL;
  REFUSED("no x", INVALID, call_forward(&err), "x", "NULL");
  rank.forward.x = &rank.tensor.x;
  ASSERT_OK(purr_result_query(rank.result, &info, &err));
  CU_ASSERT_EQUAL(info.status, PURR_STATUS_OK);
  int64_t *id = (int64_t *)(void *)test_buffer_row(&rank.ids, 2);
  const int64_t good = id[0];
  id[0] = 1000;
  REFUSED("a bad id", PURR_STATUS_BAD_ROUTE, call_forward(&err), "token 2, slot 0",
          "expert id 1000; allowed are 0 to 3, and -1 for a dropped slot");
  err = (purr_error_t)PURR_ERROR_INIT;
  CU_ASSERT_EQUAL(purr_result_query(rank.result, &info, &err), PURR_STATUS_OK);
  CU_ASSERT_EQUAL(info.status, PURR_STATUS_BAD_ROUTE);
  CU_ASSERT_EQUAL(err.status, PURR_STATUS_BAD_ROUTE);
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "token 2, slot 0"));
  CU_ASSERT_EQUAL(info.rank, 0);
  CU_ASSERT_EQUAL(info.token, 2);
  CU_ASSERT_EQUAL(info.slot, 0);
  CU_ASSERT_EQUAL(info.expert, 1000);
  REFUSED("no table", PURR_STATUS_INVALID_STATE, purr_result_tokens_per_expert(rank.result, counts, 4, &err),
          "before its routing table", "");
  id[0] = good;
  expect_exact("a bad id");
  ASSERT_OK(purr_result_query(rank.result, &info, &err));
  CU_ASSERT_EQUAL(info.status, PURR_STATUS_OK);
  CU_ASSERT_EQUAL(info.token, -1);
  /* Without a result everything works as well. */
  rank.forward.result = rank.backward.result = NULL;
  expect_exact("no result");
  tear_down();
}

/* ---- memory that a call would write and read at once ---- */

static void overlapping_memory(void) {
  set_up(NULL);
  const purr_forward_args_t forward = rank.forward;
  const purr_backward_args_t backward = rank.backward;
  purr_tensor_t own = *forward.output;
  rank.forward.output = &own;
  own.data = forward.x->data;
  REFUSED("output is x", INVALID, call_forward(&err), "output at 0x", "overlaps x at 0x");
  own.data = (char *)forward.x->data + 2 * 16;
  own.shape[0] = rank.tensor.x.shape[0];
  REFUSED("output begins in x", INVALID, call_forward(&err), "output at 0x", "overlaps x at 0x");
  rank.forward = forward;

  own = *backward.d_x;
  rank.backward.d_x = &own;
  own.data = backward.d_output->data;
  /* No saved yet: what is wrong with the addresses comes behind it. */
  test_rank_poison(&rank);
  ASSERT_OK(test_rank_forward(&rank, &err));
  err = (purr_error_t)PURR_ERROR_INIT;
  CU_ASSERT_EQUAL(call_backward(&err), INVALID);
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "d_x at 0x"));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "overlaps d_output at 0x"));
  own.data = backward.x->data;
  err = (purr_error_t)PURR_ERROR_INIT;
  CU_ASSERT_EQUAL(call_backward(&err), INVALID);
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "overlaps x at 0x"));
  rank.backward = backward;
  own = *backward.d_topk_weights;
  rank.backward.d_topk_weights = &own;
  own.data = backward.topk_weights->data;
  err = (purr_error_t)PURR_ERROR_INIT;
  CU_ASSERT_EQUAL(call_backward(&err), INVALID);
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "d_topk_weights at 0x"));
  rank.backward = backward;
  expect_exact("overlapping memory");
  tear_down();
}

/* x and output as the halves of one matrix, left and right, and as alternating rows. */
static void interleaved_memory(void) {
  set_up(NULL);
  enum { T = 5, H = 32 };
  _Alignas(16) static uint16_t both[2 * T * H];
  const purr_tensor_t x = *rank.forward.x, output = *rank.forward.output;
  purr_tensor_t left = x, right = output;
  left.data = both;
  right.data = both + H;
  left.stride[0] = right.stride[0] = 2 * H;
  left.stride[1] = right.stride[1] = 1;
  for (int order = 0; order < 2; order++) {
    purr_tensor_t *in = order == 0 ? &left : &right, *out = order == 0 ? &right : &left;
    for (int t = 0; t < T; t++) memcpy((uint16_t *)in->data + 2 * t * H, problem->x + t * H, H * sizeof(uint16_t));
    rank.forward.x = in;
    rank.forward.output = out;
    ASSERT_OK(call_forward(&err));
    for (int t = 0; t < T; t++)
      CU_ASSERT_EQUAL(memcmp((uint16_t *)out->data + 2 * t * H, expected->output + t * H, H * sizeof(uint16_t)), 0);
  }
  /* One element too far to the left. */
  rank.forward.x = &left;
  rank.forward.output = &right;
  right.data = both + H - 8;
  REFUSED("columns that meet", INVALID, call_forward(&err), "output at 0x", "overlaps x at 0x");
  rank.forward.x = &rank.tensor.x;
  rank.forward.output = &rank.tensor.output;
  expect_exact("interleaved memory");
  tear_down();
}

/* S19: one bad id in step 3 of 10. Step 3 says so and names it; the steps around it are exact. */
static void s19_one_bad_step(void) {
  set_up(NULL);
  purr_counters_t counters = {.struct_size = sizeof counters};
  for (int step = 1; step <= 10; step++) {
    if (step != 3) {
      expect_exact("S19");
      continue;
    }
    int64_t *id = (int64_t *)(void *)test_buffer_row(&rank.ids, 4);
    const int64_t good = id[1];
    id[1] = 4;
    REFUSED("step 3", PURR_STATUS_BAD_ROUTE, call_forward(&err), "rank 0, token 4, slot 1", "expert id 4");
    REFUSED("its backward", PURR_STATUS_INVALID_STATE, call_backward(&err), "saved", "not filled");
    id[1] = good;
  }
  ASSERT_OK(purr_context_query_counters(context, &counters, &err));
  CU_ASSERT_EQUAL(counters.num_bad_routes, 1);
  CU_ASSERT_EQUAL(counters.num_forward_calls, 10);
  CU_ASSERT_EQUAL(counters.num_backward_calls, 9);
  tear_down();
}

int main(void) {
  return purr_test_main("calls", (purr_test_t[]){{"handles", handles},
                                                 {"destroyed handles", destroyed_handles},
                                                 {"tensors of calls", tensors_of_calls},
                                                 {"tensors of weights", tensors_of_weights},
                                                 {"arrays of pointers", pointer_arrays},
                                                 {"too many tokens", too_many_tokens},
                                                 {"flags and versions", flags_and_versions},
                                                 {"states of saved", states_of_saved},
                                                 {"states of schedules", states_of_schedules},
                                                 {"results", results},
                                                 {"overlapping memory", overlapping_memory},
                                                 {"interleaved memory", interleaved_memory},
                                                 {"S19 one bad step of ten", s19_one_bad_step},
                                                 {0}});
}
