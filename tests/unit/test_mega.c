/* The mega backend without a GPU: the package of this build on a fake driver, what a forward launches, and what is
 * refused. Skipped in a build without GPU kernels. (Results: tests/gpu/staged_forward.cu.) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/mega/mega.h"
#include "plan/units.h"
#include "support/fake_cuda.h"
#include "support/main.h"

enum { T = 400, K = 3, E = 5 };

static purr_error_t err;
static fake_cuda_t *fake;
static purr_context_t *context;
static purr_plan_t *plan;
static purr_group_t *group;
static purr_workspace_t *workspace;
static purr_weights_t *weights;
static char *memory; /* of the fake device: every tensor of the caller */
static int64_t hidden, inner, shared;

static int64_t max_tokens = T;

static purr_status_t open_plan(int32_t backend, int cc, int32_t num_ranks) {
  const purr_layer_desc_t layer = {.struct_size = sizeof layer,
                                   .hidden_size = hidden,
                                   .intermediate_size = inner,
                                   .shared_intermediate_size = shared,
                                   .num_experts = E,
                                   .top_k = K,
                                   .max_tokens = max_tokens,
                                   .backend = backend};
  const purr_plan_desc_t desc = {.struct_size = sizeof desc, .num_ranks = num_ranks};
  return fake_cuda_plan(&layer, &desc, cc, &fake, &context, &plan, &err);
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

/* The schedule is one block, or a cluster of them. */
static void three_launches(void) {
  static const int64_t shapes[][3] = {{64, 32, 0}, {64, 32, 48}, {4096, 64, 0}};
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    hidden = shapes[i][0], inner = shapes[i][1], shared = shapes[i][2];
    open_layer();
    ASSERT_OK(make_weights(false, 0));
    const char *const mega = plan->kernels.forward.kernel->entry->entry;
    const int before = fake->num_allocations;
    for (int64_t num_tokens = 0; num_tokens <= T; num_tokens += T) {
      ASSERT_OK(forward(num_tokens, NULL, NULL, NULL));
      assert_launches((const char *const[]){"purr_schedule", mega, "purr_slot_sum", NULL});
      const unsigned blocks = num_tokens == 0 ? 1 : 2;
      CU_ASSERT_EQUAL(fake->launches[0].grid[0], blocks);
      CU_ASSERT_EQUAL(fake->launches[0].cluster[0], blocks > 1 ? blocks : 0);
      const fake_launch_t *launch = &fake->launches[1];
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
  assert_launches((const char *const[]){"purr_exchange", "purr_unit_list", plan->kernels.forward.kernel->entry->entry,
                                        "purr_slot_sum", NULL});
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
  assert_launches((const char *const[]){"purr_schedule", "purr_forward_208_traced", "purr_slot_sum", NULL});
  purr_trace_destroy(trace);
  close_layer();
}

static void what_is_refused(void) {
  hidden = 64, inner = 32, shared = 0;
  max_tokens = (1 << 28) / K + 1;
  ASSERT_FAILS(open_plan(PURR_BACKEND_MEGA, 90, 5), PURR_STATUS_UNSUPPORTED, "numbers slots and ranks in 31 bits");
  max_tokens = T;
  purr_context_destroy(context);
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

/* ---- variants ---- */

typedef struct variant {
  const char *entry, *role;
  int tile_rows, stages;
  bool traces, peers;
  int shared_bytes;
} variant_t;

static const variant_t variants[] = {
#define PURR_FORWARD_VARIANT(entry, role, tile_rows, stages, slots, traces, peers, shared_bytes) \
  {#entry, #role, tile_rows, stages, traces, peers, shared_bytes},
#include "kernels/sm90a/forward_variants.def"
#undef PURR_FORWARD_VARIANT
};
enum { NUM_VARIANTS = sizeof variants / sizeof variants[0] };

#define ANY_ROWS INT64_MAX
static const struct choice {
  const char *role;
  int64_t most_rows;
  const char *entry, *why;
} choices[] = {
#define PURR_FORWARD_CHOICE(role, most_rows, entry, why) {#role, most_rows, #entry, why},
#include "plan/forward_choice.def"
#undef PURR_FORWARD_CHOICE
};
enum { NUM_CHOICES = sizeof choices / sizeof choices[0] };

static const variant_t *find_variant(const char *entry) {
  for (int i = 0; i < NUM_VARIANTS; i++)
    if (strcmp(variants[i].entry, entry) == 0) return &variants[i];
  return NULL;
}

/* Names and roles say what the other columns say, and the package has what the table promises. */
static void the_table_of_variants(void) {
  hidden = inner = 64, shared = 0;
  REQUIRE_OK(open_plan(PURR_BACKEND_MEGA, 90, 0));
  const purr__kernels_t *kernels = NULL;
  ASSERT_OK(purr__kernels_get(plan->device, &kernels, &err));
  for (int i = 0; i < NUM_VARIANTS; i++) {
    const variant_t *v = &variants[i];
    char name[64], role[64];
    const char *peers = v->peers ? "_peers" : "", *traced = v->traces ? "_traced" : "";
    snprintf(name, sizeof name, "purr_forward_%d%s%s", v->tile_rows, peers, traced);
    snprintf(role, sizeof role, "forward%s%s", peers, traced);
    CU_ASSERT_STRING_EQUAL(v->entry, name);
    CU_ASSERT_STRING_EQUAL(v->role, role);
    CU_ASSERT(v->tile_rows % PURR__MAP_ROWS_TOKENS == 0 && v->tile_rows <= PURR__UNIT_MAX_ROWS);
    CU_ASSERT(v->shared_bytes <= 232448);
    const purr__kernel_need_t need = {.role = v->role,
                                      .params_version = PURR__KERNEL_LAYOUT,
                                      .params_bytes = sizeof(purr__forward_params_t),
                                      .entry = v->entry};
    const purr__kernel_t *kernel = NULL;
    REQUIRE_OK(purr__kernels_find(kernels, &need, &kernel, &err));
    CU_ASSERT_STRING_EQUAL(kernel->entry->entry, v->entry);
    CU_ASSERT_EQUAL(kernel->entry->shared_bytes, v->shared_bytes);
    CU_ASSERT_EQUAL(kernel->entry->tile[0], v->tile_rows);
  }
  purr_plan_destroy(plan);
  purr_context_destroy(context);
}

/* Every row of the choice is of a variant with that role, narrower rows stand first, and each of the roles without a
 * timeline ends with a row for all. */
static void the_table_of_choices(void) {
  static const char *const roles[] = {"forward", "forward_peers"};
  int num = 0;
  for (int r = 0; r < 2; r++) {
    int64_t before = 0;
    for (int i = 0; i < NUM_CHOICES; i++) {
      if (strcmp(choices[i].role, roles[r]) != 0) continue;
      const variant_t *v = find_variant(choices[i].entry);
      CU_ASSERT_PTR_NOT_NULL_FATAL(v);
      CU_ASSERT_STRING_EQUAL(v->role, roles[r]);
      CU_ASSERT(choices[i].most_rows > before);
      CU_ASSERT(strlen(choices[i].why) > 0 && strlen(choices[i].why) < 100);
      before = choices[i].most_rows;
      num++;
    }
    CU_ASSERT_EQUAL(before, ANY_ROWS);
  }
  CU_ASSERT_EQUAL(num, NUM_CHOICES);
}

/* The plan takes the first row that fits, at each row's edges, and says so. */
static void the_first_row_that_fits(void) {
  hidden = inner = 64, shared = 0;
  for (int i = 0; i < NUM_CHOICES; i++)
    for (int past = 0; past < 2; past++) {
      const bool peers = strstr(choices[i].role, "_peers") != NULL;
      const int64_t rows = choices[i].most_rows == ANY_ROWS ? 5000 : choices[i].most_rows + past; /* of an expert */
      int first = 0;
      while (strcmp(choices[first].role, choices[i].role) != 0 || choices[first].most_rows < rows) first++;
      max_tokens = peers ? rows / K : rows * E / K;
      REQUIRE_OK(open_plan(PURR_BACKEND_MEGA, 90, peers ? E : 1));
      max_tokens = T;
      const char *entry = choices[first].entry;
      CU_ASSERT_STRING_EQUAL(plan->kernels.forward.kernel->entry->entry, entry);
      CU_ASSERT_EQUAL(plan->kernels.forward.tile_rows, find_variant(entry)->tile_rows);
      CU_ASSERT_PTR_NOT_NULL(plan->kernels.forward.traced);
      char text[32768], expected[300];
      ASSERT_OK(purr_plan_describe(plan, PURR_FORMAT_TEXT, text, sizeof text, NULL, &err));
      snprintf(expected, sizeof expected, "%s: tiles of up to %d rows; row %d of %d in the table", entry,
               find_variant(entry)->tile_rows, first + 1, NUM_CHOICES);
      CU_ASSERT_PTR_NOT_NULL(strstr(text, expected));
      CU_ASSERT_PTR_NOT_NULL(strstr(text, choices[first].why)); /* to its end */
      ASSERT_OK(purr_plan_describe(plan, PURR_FORMAT_JSON, text, sizeof text, NULL, &err));
      snprintf(expected, sizeof expected, "\"forward_kernel\": \"%s\"", entry);
      CU_ASSERT_PTR_NOT_NULL(strstr(text, expected));
      purr_plan_destroy(plan);
      purr_context_destroy(context);
    }
}

static void a_variant_that_is_not_there(void) {
  hidden = inner = 64, shared = 0;
  REQUIRE_OK(open_plan(PURR_BACKEND_MEGA, 90, 0));
  const purr__kernel_t *before = plan->kernels.forward.kernel;
  ASSERT_FAILS(purr__plan_take_forward(plan, "purr_forward_7", &err), PURR_STATUS_MISSING_KERNEL,
               "no forward kernel purr_forward_7 is in the");
  ASSERT_FAILS(purr__plan_take_forward(plan, "purr_forward_208_peers", &err), PURR_STATUS_MISSING_KERNEL,
               "no forward kernel purr_forward_208_peers is in the");
  CU_ASSERT_PTR_EQUAL(plan->kernels.forward.kernel, before);
  purr_plan_destroy(plan);
  purr_context_destroy(context);
}

/* Lists and tables of every variant have room for the worst that routing can do. */
static void room_for_all_units(void) {
  hidden = 264, inner = 72, shared = 0;
  for (int i = 0; i < NUM_VARIANTS; i++) {
    if (variants[i].traces || variants[i].peers) continue;
    REQUIRE_OK(open_plan(PURR_BACKEND_MEGA, 90, 0));
    ASSERT_OK(purr__plan_take_forward(plan, variants[i].entry, &err));
    CU_ASSERT(purr__plan_lay_out(plan));
    int64_t room, words;
    purr__unit_room(plan, &room, &words);
    const purr__unit_order_t order = purr__unit_order_of(plan, T, plan->kernels.forward.tile_rows);
    const int64_t table = (int64_t)(plan->table[PURR__TABLE_TILE_EXPERT].bytes / sizeof(int32_t));
    const int64_t pairs = order.gate_up_pairs + order.down_pairs;
    CU_ASSERT_EQUAL(order.gate_up_pairs, 1);
    CU_ASSERT_EQUAL(order.down_pairs, (hidden + 255) / 256);
    CU_ASSERT_EQUAL(order.tile_rows, variants[i].tile_rows);
    for (int64_t first = 0; first <= T * K;
         first++) { /* one expert has so many rows, the others a row each, then all */
      int64_t tiles = 0, left = T * K;
      for (int e = 0; e < E; e++) {
        const int64_t rows = e == 0 ? first : e == E - 1 ? left : purr__min(left, 1);
        tiles += (rows + order.tile_rows - 1) / order.tile_rows;
        left -= rows;
      }
      if (tiles * pairs > room ||
          (int64_t)(sizeof(purr__unit_sync_t) + (uint64_t)tiles * sizeof(purr__unit_tile_sync_t)) / 4 > words ||
          tiles > table) {
        CU_FAIL("more units than room");
        break;
      }
    }
    purr_plan_destroy(plan);
    purr_context_destroy(context);
  }
}

/* A plan may be laid out again: nothing is counted twice. */
static void laid_out_again(void) {
  hidden = inner = 64, shared = 48;
  REQUIRE_OK(open_plan(PURR_BACKEND_MEGA, 90, 0));
  const purr_plan_t before = *plan;
  CU_ASSERT(purr__plan_lay_out(plan));
  CU_ASSERT_EQUAL(memcmp(&before, plan, sizeof before), 0);
  purr_plan_destroy(plan);
  purr_context_destroy(context);
}

int main(void) {
  return fake_cuda_test_main("the mega backend",
                             (purr_test_t[]){{"three launches", three_launches},
                                             {"interleaved weights", interleaved_weights},
                                             {"a schedule that was built before", a_schedule_that_was_built_before},
                                             {"a timeline", a_timeline},
                                             {"what is refused", what_is_refused},
                                             {"the table of variants", the_table_of_variants},
                                             {"the table of choices", the_table_of_choices},
                                             {"the first row that fits", the_first_row_that_fits},
                                             {"a variant that is not there", a_variant_that_is_not_there},
                                             {"room for all units", room_for_all_units},
                                             {"laid out again", laid_out_again},
                                             {0}});
}
