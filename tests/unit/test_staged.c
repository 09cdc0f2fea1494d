/* The staged backend without a GPU: the package of this build on a fake driver, which kernels a forward launches for
 * which layer and device, and how weights are described to the copy engine. Skipped in a build without GPU kernels.
 * (Results: tests/gpu/staged_forward.cu.) */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backends/staged/staged.h"
#include "base/context.h"
#include "kernels/layout.h"
#include "support/fake_cuda.h"
#include "support/main.h"

enum { T = 40, K = 2, E = 3, MEMORY_BYTES = 64 << 20 };

static purr_error_t err;
static fake_cuda_t *fake;
static purr_context_t *context;
static purr_plan_t *plan;
static char *memory; /* of the fake device: every tensor of the caller */

typedef struct shape {
  int64_t hidden, inner, shared;
} shape_t;

static purr_status_t open_plan(const shape_t *shape, int32_t backend, int cc) {
  const purr_layer_desc_t layer = {.struct_size = sizeof layer,
                                   .hidden_size = shape->hidden,
                                   .intermediate_size = shape->inner,
                                   .shared_intermediate_size = shape->shared,
                                   .num_experts = E,
                                   .top_k = K,
                                   .max_tokens = T,
                                   .backend = backend};
  return fake_cuda_plan(&layer, NULL, cc, &fake, &context, &plan, &err);
}

static void close_plan(void) {
  purr_plan_destroy(plan);
  purr_context_destroy(context);
  CU_ASSERT_EQUAL(fake->num_allocations, 0);
}

static purr_tensor_t matrix(int64_t offset, int32_t dtype, int64_t rows, int64_t columns) {
  return (purr_tensor_t){.struct_size = sizeof(purr_tensor_t),
                         .dtype = dtype,
                         .num_dims = 2,
                         .data = memory + offset,
                         .shape = {rows, columns}};
}

static purr_tensor_t experts(int64_t offset, int64_t rows, int64_t columns) {
  return (purr_tensor_t){.struct_size = sizeof(purr_tensor_t),
                         .dtype = PURR_DTYPE_BF16,
                         .num_dims = 3,
                         .data = memory + offset,
                         .shape = {E, rows, columns}};
}

/* One tensor of all experts, or each expert's by its address. */
static void make_weights(const shape_t *s, bool by_pointer, purr_weights_t **weights) {
  const int64_t bytes = E * s->inner * s->hidden * 2, shared_bytes = s->shared * s->hidden * 2;
  purr_tensor_t routed[3] = {experts(0, s->inner, s->hidden), experts(bytes, s->inner, s->hidden),
                             experts(2 * bytes, s->hidden, s->inner)};
  void *pointers[3][E];
  for (int i = 0; i < 3 && by_pointer; i++) {
    for (int e = 0; e < E; e++) pointers[i][e] = memory + i * bytes + e * (bytes / E);
    routed[i].data = NULL;
    routed[i].pointers = pointers[i];
  }
  const purr_tensor_t shared[3] = {matrix(3 * bytes, PURR_DTYPE_BF16, s->shared, s->hidden),
                                   matrix(3 * bytes + shared_bytes, PURR_DTYPE_BF16, s->shared, s->hidden),
                                   matrix(3 * bytes + 2 * shared_bytes, PURR_DTYPE_BF16, s->hidden, s->shared)};
  const purr_weights_desc_t desc = {.struct_size = sizeof desc,
                                    .gate = &routed[0],
                                    .up = &routed[1],
                                    .down = &routed[2],
                                    .shared_gate = s->shared > 0 ? &shared[0] : NULL,
                                    .shared_up = s->shared > 0 ? &shared[1] : NULL,
                                    .shared_down = s->shared > 0 ? &shared[2] : NULL};
  REQUIRE_OK(purr_weights_create(plan, &desc, weights, &err));
}

static void forward(const shape_t *s, const purr_weights_t *weights) {
  const int64_t at = MEMORY_BYTES / 2, row = s->hidden * 2;
  const purr_group_desc_t group_desc = {.struct_size = sizeof group_desc, .num_ranks = 1};
  const purr_tensor_t x = matrix(at, PURR_DTYPE_BF16, T, s->hidden),
                      out = matrix(at + T * row, PURR_DTYPE_BF16, T, s->hidden),
                      ids = matrix(at + 2 * T * row, PURR_DTYPE_INT32, T, K),
                      scores = matrix(at + 2 * T * row + T * K * 4, PURR_DTYPE_FP32, T, K);
  const purr_forward_args_t args = {.struct_size = sizeof args,
                                    .weights = weights,
                                    .x = &x,
                                    .topk_ids = &ids,
                                    .topk_weights = &scores,
                                    .output = &out};
  purr_group_t *group = NULL;
  purr_workspace_t *workspace = NULL;
  REQUIRE_OK(purr_group_create_local(context, &group_desc, &group, &err));
  REQUIRE_OK(purr_workspace_create(plan, group, NULL, &workspace, &err));
  fake->num_launches = 0;
  ASSERT_OK(purr_forward(plan, workspace, &args, &err));
  purr_workspace_destroy(workspace);
  purr_group_destroy(group);
}

/* ---- kernels.def ---- */

typedef struct row {
  const char *entry, *role, *source, *target;
  unsigned arch, threads, shared_bytes, cluster;
  int tile_m, tile_n;
} row_t;

static const row_t rows[] = {
#define PURR_KERNEL(entry, role, source, target, arch, threads, shared_bytes, cluster, tile_m, tile_n) \
  {#entry, #role, source, target, arch, threads, shared_bytes, cluster, tile_m, tile_n},
#include "kernels/kernels.def"
#undef PURR_KERNEL
};
enum { NUM_ROWS = sizeof rows / sizeof rows[0] };

/* ---- launches ---- */

static void assert_gemm(const fake_launch_t *launch, const char *entry, const char *target) {
  const row_t *row = NULL;
  for (int i = 0; i < NUM_ROWS; i++)
    if (strcmp(rows[i].entry, entry) == 0 && strcmp(rows[i].target, target) == 0) row = &rows[i];
  CU_ASSERT_PTR_NOT_NULL_FATAL(row);
  CU_ASSERT_STRING_EQUAL(launch->kernel, entry);
  CU_ASSERT_EQUAL(launch->block[0], row->threads);
  CU_ASSERT_EQUAL(launch->shared_bytes, row->shared_bytes);
  CU_ASSERT_EQUAL(launch->grid[0], (unsigned)fake->num_sms & ~(row->cluster - 1));
}

/* Few tokens: one launch makes the schedule. */
static void four_launches(void) {
  static const struct {
    shape_t shape;
    int cc;
    const char *target, *gate_up, *down, *words;
  } cases[] = {
      {{64, 32, 48}, 90, "sm_90a", "purr_gate_up_wgmma", "purr_down_wgmma", "(compute capability 9.0), wgmma GEMMs"},
      {{2056, 64, 0}, 90, "sm_90a", "purr_gate_up_wgmma", "purr_down_wgmma", "wgmma GEMMs"},
      {{64, 32, 48}, 80, "sm_80", "purr_gate_up", "purr_down", "mma.sync GEMMs"},
      {{2056, 32, 0}, 86, "sm_86", "purr_gate_up", "purr_down", "mma.sync GEMMs"},
      {{64, 32, 2056}, 100, "sm_100", "purr_gate_up", "purr_down", "mma.sync GEMMs"},
      {{64, 32, 2048}, 120, "sm_120", "purr_gate_up", "purr_down", "mma.sync GEMMs"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    purr_weights_t *weights = NULL;
    void *device = NULL;
    REQUIRE_OK(open_plan(&cases[i].shape, PURR_BACKEND_STAGED, cases[i].cc));
    REQUIRE_OK(purr_memory_allocate(plan, MEMORY_BYTES, &device, &err));
    memory = device;
    make_weights(&cases[i].shape, false, &weights);
    forward(&cases[i].shape, weights);
    CU_ASSERT_EQUAL(fake->num_launches, 4);
    CU_ASSERT_STRING_EQUAL(fake->launches[0].kernel, "purr_schedule");
    CU_ASSERT_EQUAL(fake->launches[0].grid[0], 1);
    assert_gemm(&fake->launches[1], cases[i].gate_up, cases[i].target);
    assert_gemm(&fake->launches[2], cases[i].down, cases[i].target);
    CU_ASSERT_STRING_EQUAL(fake->launches[3].kernel, "purr_slot_sum");
    char text[32768];
    ASSERT_OK(purr_plan_describe(plan, PURR_FORMAT_TEXT, text, sizeof text, NULL, &err));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, cases[i].words));
    purr_weights_destroy(weights);
    purr_memory_release(plan, memory, MEMORY_BYTES);
    close_plan();
  }
}

/* A box of a weight is half of what a tile takes: in one tensor, by pointer, and of the shared expert. The map that is
 * made last is down's. */
static void boxes_of_weights(void) {
  static const struct {
    shape_t shape;
    int cc, by_pointer, num_maps;
  } cases[] = {{{2056, 64, 0}, 90, false, 3},
               {{2056, 64, 0}, 90, true, 3 * E},
               {{64, 64, 2056}, 90, false, 6},
               {{64, 64, 2056}, 80, false, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const shape_t *s = &cases[i].shape;
    purr_weights_t *weights = NULL;
    void *device = NULL;
    REQUIRE_OK(open_plan(s, PURR_BACKEND_STAGED, cases[i].cc));
    REQUIRE_OK(purr_memory_allocate(plan, MEMORY_BYTES, &device, &err));
    memory = device;
    make_weights(s, cases[i].by_pointer, &weights);
    CU_ASSERT_EQUAL(fake->num_encodings, cases[i].num_maps);
    if (cases[i].num_maps > 0) {
      CU_ASSERT_EQUAL(fake->encoding.box[0], PURR__MAP_STAGE_K);
      CU_ASSERT_EQUAL(fake->encoding.box[1], PURR__MAP_ROWS_B);
      CU_ASSERT_EQUAL(fake->encoding.dims[0], (uint64_t)(s->shared > 0 ? s->shared : s->inner));
      CU_ASSERT_EQUAL(fake->encoding.dims[1], (uint64_t)s->hidden);
    }
    purr_weights_destroy(weights);
    purr_memory_release(plan, memory, MEMORY_BYTES);
    close_plan();
  }
}

/* ---- ranks that share a device ---- */

enum { RANKS = 4 };

typedef struct member {
  purr_group_t *group;
  purr_status_t status;
  purr_error_t err;
} member_t;

static void *create_workspace(void *arg) {
  member_t *member = arg;
  purr_workspace_t *workspace = NULL;
  member->err = (purr_error_t)PURR_ERROR_INIT;
  member->status = purr_workspace_create(plan, member->group, NULL, &workspace, &member->err);
  purr_workspace_destroy(workspace);
  return NULL;
}

/* While ranks wait on the device for one of them, it must find room there. */
static void two_sms_for_each_rank(void) {
  const purr_layer_desc_t layer = {.struct_size = sizeof layer,
                                   .hidden_size = 128,
                                   .intermediate_size = 128,
                                   .num_experts = RANKS,
                                   .top_k = 1,
                                   .max_tokens = T,
                                   .num_ranks = RANKS,
                                   .backend = PURR_BACKEND_STAGED};
  const purr_group_desc_t desc = {.struct_size = sizeof desc, .num_ranks = RANKS};
  for (int num_sms = 2 * RANKS - 1; num_sms <= 2 * RANKS; num_sms++) {
    REQUIRE_OK(fake_cuda_plan(&layer, NULL, 90, &fake, &context, &plan, &err));
    plan->device->num_sms = num_sms;
    purr_group_t *groups[RANKS];
    REQUIRE_OK(purr_group_create_local(context, &desc, groups, &err));
    member_t members[RANKS];
    pthread_t threads[RANKS];
    for (int r = 0; r < RANKS; r++) {
      members[r] = (member_t){.group = groups[r]};
      pthread_create(&threads[r], NULL, create_workspace, &members[r]);
    }
    for (int r = 0; r < RANKS; r++) {
      pthread_join(threads[r], NULL);
      if (num_sms == 2 * RANKS) {
        CU_ASSERT_EQUAL(members[r].status, PURR_STATUS_OK);
      } else {
        CU_ASSERT_EQUAL(members[r].status, PURR_STATUS_UNSUPPORTED);
        CU_ASSERT_PTR_NOT_NULL(strstr(members[r].err.message, "4 ranks share a device that has 7 SMs; they need 8"));
      }
    }
    for (int r = 0; r < RANKS; r++) purr_group_destroy(groups[r]);
    close_plan();
  }
}

/* ---- a GPU that cannot serve ---- */

static int num_warnings;
static char warning[1024];

static void keep_warning(void *user, int32_t level, const char *message) {
  (void)user;
  if (level > PURR_LOG_WARNING) return;
  num_warnings++;
  snprintf(warning, sizeof warning, "%s", message);
}

/* `auto` goes on with the host, and says so; where there is no GPU there is nothing to say. */
static void auto_does_not_fall_to_the_host_in_silence(void) {
  const purr_layer_desc_t layer = {
      .struct_size = sizeof layer, .hidden_size = 128, .intermediate_size = 128, .num_experts = 1, .top_k = 1};
  for (int num_devices = 0; num_devices <= 1; num_devices++) {
    fake = fake_cuda_open();
    fake->num_devices = num_devices;
    fake->cc[0] = 70; /* for which there are no kernels */
    purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
    purr_config_t *config = NULL;
    desc.log = keep_warning;
    num_warnings = 0;
    REQUIRE_OK(purr_context_create(&desc, &context, &err));
    context->driver_library = PURR_FAKE_CUDA;
    REQUIRE_OK(purr_config_create(context, &layer, &config, &err));
    REQUIRE_OK(purr_plan_create(context, config, NULL, &plan, &err));
    CU_ASSERT_EQUAL(plan->backend, PURR_BACKEND_HOST);
    CU_ASSERT_EQUAL(num_warnings, num_devices);
    purr_config_destroy(config);
    close_plan();
  }
  CU_ASSERT_PTR_NOT_NULL(strstr(warning, "layer 'layer' runs on the host: "));
  CU_ASSERT_PTR_NOT_NULL(strstr(warning, "sm_70"));
}

int main(void) {
  return fake_cuda_test_main("the staged backend",
                             (purr_test_t[]){{"four launches", four_launches},
                                             {"boxes of weights", boxes_of_weights},
                                             {"two SMs for each rank", two_sms_for_each_rank},
                                             {"auto falls to the host", auto_does_not_fall_to_the_host_in_silence},
                                             {0}});
}
