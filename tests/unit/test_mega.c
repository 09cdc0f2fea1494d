/* The mega backend without a GPU: the package of this build on a fake driver, what a forward launches, and what is
 * refused. Skipped in a build without GPU kernels. (Results: tests/gpu/staged_forward.cu.) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/mega/mega.h"
#include "plan/units.h"
#include "support/fake_cuda.h"
#include "support/main.h"

enum { T = 300, K = 3, E = 5 };

static purr_error_t err;
static fake_cuda_t *fake;
static purr_context_t *context;
static purr_plan_t *plan;
static purr_group_t *group;
static purr_workspace_t *workspace;
static purr_weights_t *weights;
static char *memory; /* of the fake device: every tensor of the caller */
static int64_t hidden, inner, shared;

static purr_status_t open_plan(int32_t backend, int cc, int32_t num_ranks) {
  const purr_layer_desc_t layer = {.struct_size = sizeof layer,
                                   .hidden_size = hidden,
                                   .intermediate_size = inner,
                                   .shared_intermediate_size = shared,
                                   .num_experts = E,
                                   .top_k = K,
                                   .max_tokens = T,
                                   .backend = backend};
  const purr_plan_desc_t desc = {.struct_size = sizeof desc, .num_ranks = num_ranks};
  purr_config_t *config = NULL;
  plan = NULL;
  err = (purr_error_t)PURR_ERROR_INIT;
  fake = fake_cuda_open();
  fake->cc[0] = cc;
  context = fake_cuda_context();
  purr_status_t status = purr_config_create(context, &layer, &config, &err);
  if (status == PURR_STATUS_OK) status = purr_plan_create(context, config, &desc, &plan, &err);
  purr_config_destroy(config);
  return status;
}

static purr_tensor_t matrix(int64_t offset, int32_t dtype, int64_t rows, int64_t columns) {
  return (purr_tensor_t){.struct_size = sizeof(purr_tensor_t),
                         .dtype = dtype,
                         .num_dims = 2,
                         .data = memory + offset,
                         .shape = {rows, columns}};
}

/* [E, rows, columns] at `offset`, experts so far apart. */
static purr_tensor_t experts(int64_t offset, int64_t rows, int64_t columns, int64_t stride) {
  return (purr_tensor_t){.struct_size = sizeof(purr_tensor_t),
                         .dtype = PURR_DTYPE_BF16,
                         .num_dims = 3,
                         .data = memory + offset,
                         .shape = {E, rows, columns},
                         .stride = {stride, columns, 1}};
}

/* Gate and up in one tensor [E, 2I, H], up before gate where wanted; `gap` elements between the experts of up alone. */
static purr_status_t make_weights(bool up_first, int64_t gap) {
  const int64_t half = inner * hidden, bytes = E * 2 * (half + gap) * 2;
  const purr_tensor_t gate = experts(up_first ? half * 2 : 0, inner, hidden, 2 * half),
                      up = experts(up_first ? 0 : half * 2, inner, hidden, 2 * half + gap),
                      down = experts(bytes, hidden, inner, half);
  const int64_t common = bytes + E * half * 2;
  const purr_tensor_t shared_gate = matrix(common, PURR_DTYPE_BF16, shared, hidden),
                      shared_up = matrix(common + shared * hidden * 2, PURR_DTYPE_BF16, shared, hidden),
                      shared_down = matrix(common + 2 * shared * hidden * 2, PURR_DTYPE_BF16, hidden, shared);
  const purr_weights_desc_t desc = {.struct_size = sizeof desc,
                                    .gate = &gate,
                                    .up = &up,
                                    .down = &down,
                                    .shared_gate = shared > 0 ? &shared_gate : NULL,
                                    .shared_up = shared > 0 ? &shared_up : NULL,
                                    .shared_down = shared > 0 ? &shared_down : NULL};
  weights = NULL;
  return purr_weights_create(plan, &desc, &weights, &err);
}

enum { MEMORY_BYTES = 64 << 20 };

static void open_layer(void) {
  REQUIRE_OK(open_plan(PURR_BACKEND_MEGA, 90, 0));
  CU_ASSERT_EQUAL(plan->backend, PURR_BACKEND_MEGA);
  const purr_group_desc_t desc = {.struct_size = sizeof desc, .num_ranks = 1};
  void *device = NULL;
  REQUIRE_OK(purr_memory_allocate(plan, MEMORY_BYTES, &device, &err));
  memory = device;
  REQUIRE_OK(purr_group_create_local(context, &desc, &group, &err));
  REQUIRE_OK(purr_workspace_create(plan, group, NULL, &workspace, &err));
}

static void close_layer(void) {
  purr_weights_destroy(weights);
  purr_workspace_destroy(workspace);
  purr_group_destroy(group);
  purr_memory_release(plan, memory, MEMORY_BYTES);
  purr_plan_destroy(plan);
  purr_context_destroy(context);
  CU_ASSERT_EQUAL(fake->num_allocations, 0);
}

/* A forward of num_tokens; tensors lie at the end of the memory. */
static purr_status_t forward(int64_t num_tokens, purr_schedule_t *schedule, purr_saved_t *saved, purr_trace_t *trace) {
  const int64_t at = MEMORY_BYTES / 2;
  const purr_tensor_t x = matrix(at, PURR_DTYPE_BF16, num_tokens, hidden),
                      out = matrix(at + T * hidden * 2, PURR_DTYPE_BF16, num_tokens, hidden),
                      ids = matrix(at + 2 * T * hidden * 2, PURR_DTYPE_INT32, num_tokens, K),
                      scores = matrix(at + 2 * T * hidden * 2 + T * K * 4, PURR_DTYPE_FP32, num_tokens, K);
  const purr_forward_args_t args = {.struct_size = sizeof args,
                                    .weights = weights,
                                    .x = &x,
                                    .topk_ids = &ids,
                                    .topk_weights = &scores,
                                    .output = &out,
                                    .schedule = schedule,
                                    .saved = saved,
                                    .trace = trace};
  fake->num_launches = 0;
  return purr_forward(plan, workspace, &args, &err);
}

static void assert_launches(const char *const *names) {
  int n = 0;
  for (; names[n] != NULL; n++) CU_ASSERT_STRING_EQUAL(fake->launches[n].kernel, names[n]);
  CU_ASSERT_EQUAL(fake->num_launches, n);
}

/* The call fails with this status and these words in its sentence. */
#define ASSERT_FAILS(call, status, words)               \
  do {                                                  \
    ASSERT_STATUS(status, call);                        \
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, words)); \
  } while (0)

/* ---- tests ---- */

static void four_launches(void) {
  static const int64_t shapes[][3] = {{64, 32, 0}, {64, 32, 48}, {4096, 64, 0}};
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    hidden = shapes[i][0], inner = shapes[i][1], shared = shapes[i][2];
    open_layer();
    ASSERT_OK(make_weights(false, 0));
    const bool promotes = hidden > 2048;
    const char *const mega = promotes ? "purr_forward_176_promoted" : "purr_forward_208";
    const int before = fake->num_allocations;
    for (int64_t num_tokens = 0; num_tokens <= T; num_tokens += T) {
      ASSERT_OK(forward(num_tokens, NULL, NULL, NULL));
      assert_launches((const char *const[]){"purr_schedule_count", "purr_schedule_place", mega, "purr_slot_sum", NULL});
      const fake_launch_t *launch = &fake->launches[2];
      CU_ASSERT_EQUAL(launch->grid[0], (unsigned)fake->num_sms & ~1u);
      CU_ASSERT_EQUAL(launch->block[0], 384);
      CU_ASSERT(launch->is_cooperative); /* its blocks wait for each other */
    }
    CU_ASSERT_EQUAL(fake->num_allocations, before);
    close_layer();
  }
}

/* Gate and up are one tensor, by eights, whichever comes first. */
static void interleaved_weights(void) {
  hidden = 64, inner = 32, shared = 0;
  for (int up_first = 0; up_first < 2; up_first++) {
    open_layer();
    ASSERT_OK(make_weights(up_first, 0));
    const purr__mega_weights_t *mega = weights->prepared;
    CU_ASSERT_EQUAL(mega->up_first, (bool)up_first);
    ASSERT_OK(forward(T, NULL, NULL, NULL));
    close_layer();
  }
}

static void a_schedule_that_was_built_before(void) {
  hidden = 64, inner = 32, shared = 0;
  open_layer();
  ASSERT_OK(make_weights(false, 0));
  purr_schedule_t *schedule = NULL;
  ASSERT_OK(purr_schedule_create(plan, &schedule, &err));
  const purr_tensor_t ids = matrix(MEMORY_BYTES / 2 + 2 * T * hidden * 2, PURR_DTYPE_INT32, T, K);
  ASSERT_OK(purr_schedule_build(schedule, workspace, &ids, NULL, &err));
  ASSERT_OK(forward(T, schedule, NULL, NULL));
  assert_launches((const char *const[]){"purr_exchange", "purr_unit_list", "purr_forward_208", "purr_slot_sum", NULL});
  purr_schedule_destroy(schedule);
  close_layer();
}

static void a_timeline(void) {
  hidden = 64, inner = 32, shared = 0;
  open_layer();
  ASSERT_OK(make_weights(false, 0));
  purr_trace_t *trace = NULL;
  ASSERT_OK(purr_trace_create(plan, NULL, &trace, &err));
  ASSERT_OK(forward(T, NULL, NULL, trace));
  assert_launches((const char *const[]){"purr_schedule_count", "purr_schedule_place", "purr_forward_208_traced",
                                        "purr_slot_sum", NULL});
  purr_trace_destroy(trace);
  close_layer();
}

static void what_is_refused(void) {
  hidden = 64, inner = 32, shared = 0;
  ASSERT_FAILS(open_plan(PURR_BACKEND_MEGA, 80, 0), PURR_STATUS_INCOMPATIBLE_BINARY, "forward kernel");
  purr_context_destroy(context);
  open_layer();
  ASSERT_FAILS(make_weights(false, 8), PURR_STATUS_UNSUPPORTED, "gate and up as one tensor");
  ASSERT_OK(make_weights(false, 0)); /* the context is as good as before */
  ASSERT_OK(forward(T, NULL, NULL, NULL));
  close_layer();
  ASSERT_OK(open_plan(PURR_BACKEND_AUTO, 90, 0));
  CU_ASSERT_EQUAL(plan->backend, PURR_BACKEND_STAGED);
  purr_plan_destroy(plan);
  purr_context_destroy(context);
}

/* The list has room for the worst that routing can do. */
static void room_for_all_units(void) {
  hidden = 264, inner = 72, shared = 0;
  REQUIRE_OK(open_plan(PURR_BACKEND_MEGA, 90, 0));
  int64_t room, words;
  purr__unit_room(plan, &room, &words);
  const purr__unit_order_t order = purr__unit_order_of(plan, T, plan->kernels.forward.tile_rows);
  CU_ASSERT_EQUAL(order.gate_up_pairs, 1);
  CU_ASSERT_EQUAL(order.down_pairs, 2);
  for (int64_t first = 0; first <= T * K; first++) { /* one expert has so many rows, the others a row each, then all */
    int64_t tiles = 0, left = T * K;
    for (int e = 0; e < E; e++) {
      const int64_t rows = e == 0 ? first : e == E - 1 ? left : purr__min(left, 1);
      tiles += (rows + order.tile_rows - 1) / order.tile_rows;
      left -= rows;
    }
    if (tiles * 3 > room || (int64_t)(sizeof(purr__unit_sync_t) / 4) + 2 * tiles > words) {
      CU_FAIL("more units than room");
      break;
    }
  }
  purr_plan_destroy(plan);
  purr_context_destroy(context);
}

int main(void) {
  hidden = inner = 64;
  const purr_status_t status = open_plan(PURR_BACKEND_STAGED, 90, 0);
  purr_plan_destroy(plan);
  purr_context_destroy(context);
  if (status == PURR_STATUS_MISSING_KERNEL) {
    fprintf(stderr, "skipped: %s\n", err.message);
    return PURR_TEST_SKIPPED;
  }
  return purr_test_main("the mega backend",
                        (purr_test_t[]){{"four launches", four_launches},
                                        {"interleaved weights", interleaved_weights},
                                        {"a schedule that was built before", a_schedule_that_was_built_before},
                                        {"a timeline", a_timeline},
                                        {"what is refused", what_is_refused},
                                        {"room for all units", room_for_all_units},
                                        {0}});
}
