/* One table with a call of every function of the interface. What holds for all of them is tried for each:
 *   no memory     each allocation may fail, once or from there on: a clean status, nothing kept, and all goes on;
 *   malloc        the library's memory comes from the context's hooks, except libyaml's, which may fail as well;
 *   fork          an inherited handle is refused, and destroying it does nothing (B57);
 *   no handle     NULL is refused.
 * A function that the table does not have fails the test. */
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/context.h"
#include "support/allocator.h"
#include "support/fake_cuda.h"
#include "support/main.h"
#include "support/package.h"
#include "support/rank.h"

static purr_error_t err;

/* ---- malloc, as this program sees it (the linker puts these in its place) ---- */

static long long malloc_calls, malloc_fail_at; /* fail_at counts from 1; 0 = never */
static bool malloc_counts;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t num, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t num, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
char *__wrap_strdup(const char *text);

static bool malloc_fails(void) { return malloc_counts && ++malloc_calls == malloc_fail_at; }
void *__wrap_malloc(size_t bytes) { return malloc_fails() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t num, size_t bytes) { return malloc_fails() ? NULL : __real_calloc(num, bytes); }
void *__wrap_realloc(void *memory, size_t bytes) { return malloc_fails() ? NULL : __real_realloc(memory, bytes); }
char *__wrap_strdup(const char *text) { return malloc_fails() ? NULL : __real_strdup(text); }

/* ---- one of everything ---- */

#define YAML_FILE PURR_SOURCE_DIR "/configs/qwen3_30b.yaml"
#define YAML                                                                                              \
  "hidden_size: 64\nintermediate_size: 32\nnum_experts: 4\ntop_k: 2\nname: \"a \\x41\"\nshared_expert:\n" \
  "  intermediate_size: 8\n"
#define CHECKPOINT PURR_TEST_DATA "/deepseek-v3"
#define TRITON PURR_TEST_DATA "/triton/3.6.0/package"
#define CUBIN PURR_TEST_DATA "/cubins/kernels.sm_90.cubin"

static test_folder_t folder; /* a package; and beside it the same as a tar */
static char tar_path[300];
static unsigned char *tar;
static uint64_t tar_bytes;

static const test_run_t run = {.max_tokens = 6, .pointers = true};
static test_problem_t *problem;
static test_outcome_t *expected;

static struct {
  purr_test_allocator_t memory;
  purr_context_t *context;
  purr_config_t *config;
  purr_plan_t *plan;
  purr_group_t *group;
  test_rank_t rank;
  purr_checkpoint_t *checkpoint;
  purr_checkpoint_layer_t *layer;
  purr_package_t *package;
  purr_trace_t *trace;
  void *block;                 /* of purr_memory_allocate */
  purr_context_t *gpu_context; /* with a fake driver, for what needs a device */
  purr_kernel_t *kernel;
  purr_launcher_t *launcher;
} world;

static uint16_t mxfp8_source[32 * 64];
static uint8_t mxfp8_elements[32 * 64], mxfp8_scales[32 * 2], more_scales[512];
static const purr_scales_t scales = {.struct_size = sizeof scales, .data = mxfp8_scales};
static const purr_scales_t tiled = {
    .struct_size = sizeof tiled, .layout = PURR_SCALE_LAYOUT_TILE_128X4, .data = more_scales};
static const purr_tensor_t source = {
    .struct_size = sizeof source, .dtype = PURR_DTYPE_BF16, .num_dims = 2, .data = mxfp8_source, .shape = {32, 64}};
static const purr_tensor_t quantized = {.struct_size = sizeof quantized,
                                        .dtype = PURR_DTYPE_E4M3,
                                        .num_dims = 2,
                                        .data = mxfp8_elements,
                                        .shape = {32, 64},
                                        .scales = &scales};

/* A handle that is surely no handle: what a failing call must replace by NULL. */
static char nonsense;

/* All of Triton's vector add but its scratch, which it does not need. */
static void open_launcher(void) {
  const purr_context_desc_t desc = {
      .struct_size = sizeof desc, .num_threads = 1, .host_allocator = &world.memory.hooks};
  const purr_kernel_desc_t kernel = {.struct_size = sizeof kernel, .path = TRITON, .name = "add_kernel"};
  CU_ASSERT_EQUAL_FATAL(purr_context_create(&desc, &world.gpu_context, &err), PURR_STATUS_OK);
  world.gpu_context->driver_library = PURR_FAKE_CUDA;
  fake_cuda_open()->reaches_host_memory = 1;
  CU_ASSERT_EQUAL_FATAL(purr_kernel_open(world.gpu_context, &kernel, &world.kernel, &err), PURR_STATUS_OK);
  CU_ASSERT_EQUAL_FATAL(purr_launcher_create(world.kernel, 0, &world.launcher, &err), PURR_STATUS_OK);
  for (int i = 0; i < 3; i++)
    CU_ASSERT_EQUAL(purr_launcher_set_pointer(world.launcher, i, &nonsense, &err), PURR_STATUS_OK);
  CU_ASSERT_EQUAL(purr_launcher_set_real(world.launcher, 3, 1.0, &err), PURR_STATUS_OK);
  CU_ASSERT_EQUAL(purr_launcher_set_integer(world.launcher, 4, 33, &err), PURR_STATUS_OK);
}

/* Everything ready: saved is filled, the schedule built, the result that of a call. */
static void open_world(void) {
  memset(&world, 0, sizeof world);
  purr_test_allocator_init(&world.memory);
  const purr_context_desc_t desc = {
      .struct_size = sizeof desc, .num_threads = 2, .host_allocator = &world.memory.hooks};
  CU_ASSERT_EQUAL_FATAL(purr_context_create(&desc, &world.context, &err), PURR_STATUS_OK);
  world.context->driver_library = "no driver, wherever this runs";
  const purr_layer_desc_t layer = test_layer_desc(problem, &run);
  CU_ASSERT_EQUAL_FATAL(purr_config_create(world.context, &layer, &world.config, &err), PURR_STATUS_OK);
  CU_ASSERT_EQUAL_FATAL(purr_plan_create(world.context, world.config, NULL, &world.plan, &err), PURR_STATUS_OK);
  const purr_group_desc_t alone = {sizeof alone, 1, 0};
  CU_ASSERT_EQUAL_FATAL(purr_group_create_local(world.context, &alone, &world.group, &err), PURR_STATUS_OK);
  world.rank = (test_rank_t){
      .problem = problem, .run = &run, .context = world.context, .plan = world.plan, .group = world.group};
  test_rank_prepare(&world.rank);
  CU_ASSERT_EQUAL_FATAL(test_rank_create_objects(&world.rank, &err), PURR_STATUS_OK);
  CU_ASSERT_EQUAL_FATAL(
      purr_schedule_build(world.rank.schedule, world.rank.workspace, &world.rank.tensor.ids, NULL, &err),
      PURR_STATUS_OK);
  CU_ASSERT_EQUAL_FATAL(purr_trace_create(world.plan, NULL, &world.trace, &err), PURR_STATUS_OK);
  world.rank.forward.trace = world.trace;
  CU_ASSERT_EQUAL_FATAL(test_rank_forward(&world.rank, &err), PURR_STATUS_OK);
  CU_ASSERT_EQUAL_FATAL(purr_checkpoint_open(world.context, CHECKPOINT, &world.checkpoint, &err), PURR_STATUS_OK);
  CU_ASSERT_EQUAL_FATAL(purr_checkpoint_load_layer(world.checkpoint, -1, 0, 1, &world.layer, &err), PURR_STATUS_OK);
  CU_ASSERT_EQUAL_FATAL(purr_package_open(world.context, folder.path, &world.package, &err), PURR_STATUS_OK);
  CU_ASSERT_EQUAL_FATAL(purr_memory_allocate(world.plan, 64, &world.block, &err), PURR_STATUS_OK);
  open_launcher();
}

static void close_world(void) {
  purr_trace_destroy(world.trace);
  purr_launcher_destroy(world.launcher);
  purr_kernel_destroy(world.kernel);
  purr_context_destroy(world.gpu_context);
  purr_memory_release(world.plan, world.block, 64);
  purr_package_destroy(world.package);
  purr_checkpoint_layer_destroy(world.layer);
  purr_checkpoint_destroy(world.checkpoint);
  test_rank_destroy_objects(&world.rank);
  test_rank_free(&world.rank);
  purr_group_destroy(world.group);
  purr_plan_destroy(world.plan);
  purr_config_destroy(world.config);
  purr_context_destroy(world.context);
  CU_ASSERT_EQUAL(world.memory.num_live, 0);
  CU_ASSERT_EQUAL(world.memory.num_wrong, 0);
}

static bool layer_is_exact(void) {
  test_rank_poison(&world.rank);
  return test_rank_forward(&world.rank, &err) == PURR_STATUS_OK &&
         test_rank_backward(&world.rank, &err) == PURR_STATUS_OK && test_rank_forward_equals(&world.rank, expected) &&
         test_rank_backward_equals(&world.rank, expected) && test_rank_canaries_intact(&world.rank);
}

/* ---- a call of each ---- */

static bool in_child; /* of a fork: all handles are inherited */

/* On success destroys what was made; on failure there must be nothing. */
#define CREATE(type, noun, call)                                              \
  type *out = (type *)(void *)&nonsense;                                      \
  purr_status_t status = (call);                                              \
  if (status != PURR_STATUS_OK && out != NULL) status = PURR_STATUS_INTERNAL; \
  if (status == PURR_STATUS_OK) purr_##noun##_destroy(out);                   \
  return status
/* The text of a describe, whole. */
#define DESCRIBE(call)                     \
  static char buffer[1 << 17];             \
  const uint64_t capacity = sizeof buffer; \
  uint64_t length;                         \
  return (call)
#define CALL(name) static purr_status_t call_##name(void)

CALL(purr_version) { return purr_version() == PURR_VERSION ? PURR_STATUS_OK : PURR_STATUS_INTERNAL; }
CALL(purr_version_string) { return purr_version_string() != NULL ? PURR_STATUS_OK : PURR_STATUS_INTERNAL; }
CALL(purr_status_name) { return purr_status_name(-12345) != NULL ? PURR_STATUS_OK : PURR_STATUS_INTERNAL; }
CALL(purr_status_text) { return purr_status_text(0) != NULL ? PURR_STATUS_OK : PURR_STATUS_INTERNAL; }
CALL(purr_phase_name) { return purr_phase_name(99) == NULL ? PURR_STATUS_OK : PURR_STATUS_INTERNAL; }

CALL(purr_context_create) {
  const purr_context_desc_t desc = {.struct_size = sizeof desc, .host_allocator = &world.memory.hooks};
  CREATE(purr_context_t, context, purr_context_create(&desc, &out, &err));
}
CALL(purr_context_destroy) {
  purr_context_destroy(world.context);
  if (world.context != NULL && world.context->pid == getpid()) purr__object_retain(world.context); /* given back */
  return PURR_STATUS_OK;
}
CALL(purr_context_query_counters) {
  purr_counters_t counters = {.struct_size = sizeof counters};
  return purr_context_query_counters(world.context, &counters, &err);
}
CALL(purr_context_diagnose) {
  DESCRIBE(purr_context_diagnose(world.context, PURR_FORMAT_JSON, buffer, capacity, &length, NULL, &err));
}
CALL(purr_context_add_package) { return purr_context_add_package(world.context, world.package, &err); }

CALL(purr_config_load) { CREATE(purr_config_t, config, purr_config_load(world.context, YAML_FILE, &out, &err)); }
CALL(purr_config_parse) {
  CREATE(purr_config_t, config, purr_config_parse(world.context, YAML, strlen(YAML), NULL, &out, &err));
}
CALL(purr_config_create) {
  const purr_layer_desc_t layer = test_layer_desc(problem, &run);
  CREATE(purr_config_t, config, purr_config_create(world.context, &layer, &out, &err));
}
CALL(purr_config_get_layer) {
  purr_layer_desc_t layer = {.struct_size = sizeof layer};
  return purr_config_get_layer(world.config, &layer, &err);
}
CALL(purr_config_write) { DESCRIBE(purr_config_write(world.config, buffer, capacity, &length, &err)); }
CALL(purr_config_describe) {
  DESCRIBE(purr_config_describe(world.config, PURR_FORMAT_JSON, buffer, capacity, &length, &err));
}

CALL(purr_scales_query) {
  purr_scales_info_t info = {.struct_size = sizeof info};
  return purr_scales_query(world.context, &quantized, &info, &err);
}
CALL(purr_mxfp8_quantize) { return purr_mxfp8_quantize(world.context, &source, 0, &quantized, &err); }
CALL(purr_mxfp8_quantize_on) { return purr_mxfp8_quantize_on(world.plan, &source, 0, &quantized, NULL, &err); }
CALL(purr_mxfp8_dequantize) { return purr_mxfp8_dequantize(world.context, &quantized, &source, &err); }
CALL(purr_scales_convert) { return purr_scales_convert(world.context, &quantized, &tiled, &err); }

CALL(purr_group_create_local) {
  purr_group_t *out[3];
  for (int r = 0; r < 3; r++) out[r] = (purr_group_t *)(void *)&nonsense;
  const purr_group_desc_t desc = {sizeof desc, 3, 0};
  purr_status_t status = purr_group_create_local(world.context, &desc, out, &err);
  for (int r = 0; r < 3; r++) {
    if (status != PURR_STATUS_OK && out[r] != NULL) return PURR_STATUS_INTERNAL;
    purr_group_destroy(out[r]);
  }
  return status;
}
CALL(purr_group_query_status) { return purr_group_query_status(world.group, &err); }
CALL(purr_group_rank) { return purr_group_rank(world.group) == 0 ? PURR_STATUS_OK : PURR_STATUS_INTERNAL; }
CALL(purr_group_num_ranks) { return purr_group_num_ranks(world.group) == 1 ? PURR_STATUS_OK : PURR_STATUS_INTERNAL; }

CALL(purr_plan_create) { CREATE(purr_plan_t, plan, purr_plan_create(world.context, world.config, NULL, &out, &err)); }
CALL(purr_plan_query) {
  purr_plan_info_t info = {.struct_size = sizeof info};
  return purr_plan_query(world.plan, &info, &err);
}
CALL(purr_plan_describe) {
  DESCRIBE(purr_plan_describe(world.plan, PURR_FORMAT_TEXT, buffer, capacity, &length, &err));
}

CALL(purr_weights_create) {
  CREATE(purr_weights_t, weights, purr_weights_create(world.plan, &world.rank.weights_desc, &out, &err));
}
CALL(purr_memory_allocate) {
  void *out = &nonsense;
  purr_status_t status = purr_memory_allocate(world.plan, 100, &out, &err);
  if (status != PURR_STATUS_OK) return out == NULL ? status : PURR_STATUS_INTERNAL;
  purr_memory_release(world.plan, out, 100);
  return status;
}
CALL(purr_memory_copy) { return purr_memory_copy(world.plan, more_scales, mxfp8_scales, 4, &err); }
CALL(purr_memory_release) {
  purr_memory_release(NULL, NULL, 64);
  return PURR_STATUS_OK;
}
CALL(purr_stream_create) {
  void *out = &nonsense;
  purr_status_t status = purr_stream_create(world.plan, &out, &err);
  if (out != NULL) return PURR_STATUS_INTERNAL; /* the host has none */
  return status;
}
CALL(purr_stream_destroy) {
  purr_stream_destroy(world.plan, NULL);
  return PURR_STATUS_OK;
}
CALL(purr_stream_synchronize) { return purr_stream_synchronize(world.plan, NULL, &err); }
CALL(purr_workspace_create) {
  CREATE(purr_workspace_t, workspace, purr_workspace_create(world.plan, NULL, NULL, &out, &err));
}
CALL(purr_saved_create) { CREATE(purr_saved_t, saved, purr_saved_create(world.plan, NULL, 0, &out, &err)); }
CALL(purr_result_create) { CREATE(purr_result_t, result, purr_result_create(world.context, &out, &err)); }
CALL(purr_result_query) {
  purr_result_info_t info = {.struct_size = sizeof info};
  return purr_result_query(world.rank.result, &info, &err);
}
CALL(purr_result_tokens_per_expert) {
  int64_t counts[4];
  return purr_result_tokens_per_expert(world.rank.result, counts, 4, &err);
}
CALL(purr_trace_query) {
  uint64_t bytes;
  return purr_trace_query(world.plan, NULL, &bytes, &err);
}
CALL(purr_trace_create) { CREATE(purr_trace_t, trace, purr_trace_create(world.plan, NULL, &out, &err)); }
static purr_status_t write_trace(int32_t format) {
  const purr_trace_t *traces[] = {world.trace};
  DESCRIBE(purr_trace_write(traces, 1, format, buffer, capacity, &length, &err));
}
CALL(purr_trace_write) {
  purr_status_t status = PURR_STATUS_OK;
  for (int32_t format = PURR_TRACE_TEXT; format <= PURR_TRACE_SVG && status == PURR_STATUS_OK; format++)
    status = write_trace(format);
  return status;
}
CALL(purr_schedule_create) { CREATE(purr_schedule_t, schedule, purr_schedule_create(world.plan, &out, &err)); }
CALL(purr_schedule_build) {
  return purr_schedule_build(world.rank.schedule, world.rank.workspace, &world.rank.tensor.ids, NULL, &err);
}
CALL(purr_schedule_get_view) {
  purr_schedule_view_t view = {.struct_size = sizeof view};
  return purr_schedule_get_view(world.rank.schedule, &view, &err);
}
CALL(purr_schedule_describe) {
  DESCRIBE(purr_schedule_describe(world.rank.schedule, PURR_FORMAT_TEXT, buffer, capacity, &length, &err));
}
CALL(purr_forward) { return purr_forward(world.plan, world.rank.workspace, &world.rank.forward, &err); }
CALL(purr_backward) { return purr_backward(world.plan, world.rank.workspace, &world.rank.backward, &err); }

CALL(purr_checkpoint_open) {
  CREATE(purr_checkpoint_t, checkpoint, purr_checkpoint_open(world.context, CHECKPOINT, &out, &err));
}
CALL(purr_checkpoint_num_tensors) {
  const int64_t num = purr_checkpoint_num_tensors(world.checkpoint);
  return (num > 0) == (world.checkpoint != NULL && !in_child) ? PURR_STATUS_OK : PURR_STATUS_INTERNAL;
}
CALL(purr_checkpoint_tensor_name) {
  return purr_checkpoint_tensor_name(world.checkpoint, -1) == NULL ? PURR_STATUS_OK : PURR_STATUS_INTERNAL;
}
CALL(purr_checkpoint_find) {
  purr_tensor_t tensor = {.struct_size = sizeof tensor};
  return purr_checkpoint_find(world.checkpoint, "model.layers.1.mlp.gate.weight", &tensor, &err);
}
CALL(purr_checkpoint_describe) {
  DESCRIBE(purr_checkpoint_describe(world.checkpoint, PURR_FORMAT_JSON, buffer, capacity, &length, &err));
}
CALL(purr_checkpoint_create_config) {
  CREATE(purr_config_t, config, purr_checkpoint_create_config(world.checkpoint, -1, &out, &err));
}
CALL(purr_checkpoint_load_layer) {
  CREATE(purr_checkpoint_layer_t, checkpoint_layer, purr_checkpoint_load_layer(world.checkpoint, -1, 0, 2, &out, &err));
}
CALL(purr_checkpoint_layer_get_weights) {
  purr_weights_desc_t weights = {.struct_size = sizeof weights};
  return purr_checkpoint_layer_get_weights(world.layer, &weights, &err);
}
CALL(purr_checkpoint_layer_get_router) {
  purr_router_desc_t router = {.struct_size = sizeof router};
  purr_tensor_t weight = {.struct_size = sizeof weight}, bias = {.struct_size = sizeof bias};
  return purr_checkpoint_layer_get_router(world.layer, &router, &weight, &bias, &err);
}

CALL(purr_package_open) { CREATE(purr_package_t, package, purr_package_open(world.context, folder.path, &out, &err)); }
CALL(purr_package_open_memory) {
  CREATE(purr_package_t, package, purr_package_open_memory(world.context, tar, tar_bytes, NULL, &out, &err));
}
CALL(purr_package_verify) { return purr_package_verify(world.package, &err); }
CALL(purr_package_describe) {
  DESCRIBE(purr_package_describe(world.package, PURR_FORMAT_JSON, buffer, capacity, &length, &err));
}
CALL(purr_cubin_describe) {
  DESCRIBE(purr_cubin_describe(world.context, CUBIN, PURR_FORMAT_TEXT, buffer, capacity, &length, &err));
}

CALL(purr_kernel_open) {
  const purr_kernel_desc_t desc = {.struct_size = sizeof desc, .path = TRITON, .name = "add_kernel"};
  CREATE(purr_kernel_t, kernel, purr_kernel_open(world.gpu_context, &desc, &out, &err));
}
CALL(purr_kernel_num_arguments) {
  const int32_t num = purr_kernel_num_arguments(world.kernel);
  return (num == 6) == (world.kernel != NULL && !in_child) ? PURR_STATUS_OK : PURR_STATUS_INTERNAL;
}
CALL(purr_kernel_get_argument) {
  purr_kernel_argument_t argument = {.struct_size = sizeof argument};
  return purr_kernel_get_argument(world.kernel, 0, &argument, &err);
}
CALL(purr_kernel_find_argument) {
  int32_t index;
  return purr_kernel_find_argument(world.kernel, "n", &index, &err);
}
CALL(purr_kernel_describe) {
  DESCRIBE(purr_kernel_describe(world.kernel, PURR_FORMAT_JSON, buffer, capacity, &length, &err));
}
CALL(purr_launcher_create) { CREATE(purr_launcher_t, launcher, purr_launcher_create(world.kernel, 0, &out, &err)); }
CALL(purr_launcher_set_pointer) { return purr_launcher_set_pointer(world.launcher, 0, &nonsense, &err); }
CALL(purr_launcher_set_integer) { return purr_launcher_set_integer(world.launcher, 4, 32, &err); }
CALL(purr_launcher_set_real) { return purr_launcher_set_real(world.launcher, 3, 0.5, &err); }
CALL(purr_launcher_set_bytes) { return purr_launcher_set_bytes(world.launcher, 3, "\0\0\0", 4, &err); }
CALL(purr_launcher_set_tensor) {
  const purr_tensor_t tensor = {
      .struct_size = sizeof tensor, .dtype = PURR_DTYPE_FP32, .num_dims = 1, .data = mxfp8_source, .shape = {32}};
  return purr_launcher_set_tensor(world.launcher, 1, &tensor, 0, &err);
}
CALL(purr_launcher_unset) { return purr_launcher_unset(world.launcher, 5, &err); }
CALL(purr_launcher_set_grid) { return purr_launcher_set_grid(world.launcher, 1, 1, 1, &err); }
CALL(purr_launcher_set_scratch) { return purr_launcher_set_scratch(world.launcher, NULL, 0, &err); }
CALL(purr_launcher_query) {
  purr_launcher_info_t info = {.struct_size = sizeof info};
  return purr_launcher_query(world.launcher, &info, &err);
}
CALL(purr_launcher_launch) { return purr_launcher_launch(world.launcher, NULL, &err); }

/* In the child of a fork the world's handles are inherited; elsewhere there is nothing to destroy here. */
#define DESTROY(noun, handle)                    \
  CALL(purr_##noun##_destroy) {                  \
    if (in_child) purr_##noun##_destroy(handle); \
    purr_##noun##_destroy(NULL);                 \
    return PURR_STATUS_OK;                       \
  }
DESTROY(config, world.config)
DESTROY(group, world.group)
DESTROY(plan, world.plan)
DESTROY(weights, world.rank.weights)
DESTROY(workspace, world.rank.workspace)
DESTROY(saved, world.rank.saved)
DESTROY(result, world.rank.result)
DESTROY(trace, world.trace)
DESTROY(schedule, world.rank.schedule)
DESTROY(checkpoint_layer, world.layer)
DESTROY(checkpoint, world.checkpoint)
DESTROY(package, world.package)
DESTROY(kernel, world.kernel)
DESTROY(launcher, world.launcher)

enum {
  PLAIN = 0,
  HANDLE = 1,    /* takes a handle, and returns a status: refuses NULL and inherited ones */
  USES_YAML = 2, /* libyaml takes memory from malloc */
  ONCE = 4,      /* a second call with the same arguments is another matter */
  SAYS_SO = 8,   /* puts some failures into its text, and succeeds */
  KEEPS = 16,    /* makes parts of the context, which stay */
};

static const struct {
  const char *name;
  purr_status_t (*call)(void);
  int traits;
} functions[] = {
#define ROW(name, traits) \
  { #name, call_##name, traits }
    ROW(purr_version, PLAIN),
    ROW(purr_version_string, PLAIN),
    ROW(purr_status_name, PLAIN),
    ROW(purr_status_text, PLAIN),
    ROW(purr_phase_name, PLAIN),
    ROW(purr_context_create, PLAIN),
    ROW(purr_context_destroy, PLAIN),
    ROW(purr_context_query_counters, HANDLE),
    ROW(purr_context_add_package, HANDLE | ONCE),
    ROW(purr_context_diagnose, HANDLE | SAYS_SO | KEEPS),
    ROW(purr_config_load, HANDLE | USES_YAML),
    ROW(purr_config_parse, HANDLE | USES_YAML),
    ROW(purr_config_create, HANDLE),
    ROW(purr_config_get_layer, HANDLE),
    ROW(purr_config_write, HANDLE),
    ROW(purr_config_describe, HANDLE),
    ROW(purr_config_destroy, PLAIN),
    ROW(purr_scales_query, HANDLE),
    ROW(purr_mxfp8_quantize, HANDLE),
    ROW(purr_mxfp8_quantize_on, HANDLE),
    ROW(purr_mxfp8_dequantize, HANDLE),
    ROW(purr_scales_convert, HANDLE),
    ROW(purr_group_create_local, HANDLE),
    ROW(purr_group_query_status, HANDLE),
    ROW(purr_group_rank, PLAIN),
    ROW(purr_group_num_ranks, PLAIN),
    ROW(purr_group_destroy, PLAIN),
    ROW(purr_plan_create, HANDLE),
    ROW(purr_plan_query, HANDLE),
    ROW(purr_plan_describe, HANDLE),
    ROW(purr_plan_destroy, PLAIN),
    ROW(purr_weights_create, HANDLE),
    ROW(purr_weights_destroy, PLAIN),
    ROW(purr_memory_allocate, HANDLE),
    ROW(purr_memory_copy, HANDLE),
    ROW(purr_memory_release, PLAIN),
    ROW(purr_stream_create, HANDLE),
    ROW(purr_stream_destroy, PLAIN),
    ROW(purr_stream_synchronize, HANDLE),
    ROW(purr_workspace_create, HANDLE),
    ROW(purr_workspace_destroy, PLAIN),
    ROW(purr_saved_create, HANDLE),
    ROW(purr_saved_destroy, PLAIN),
    ROW(purr_result_create, HANDLE),
    ROW(purr_result_query, HANDLE),
    ROW(purr_result_tokens_per_expert, HANDLE),
    ROW(purr_result_destroy, PLAIN),
    ROW(purr_trace_query, HANDLE),
    ROW(purr_trace_create, HANDLE),
    ROW(purr_trace_write, HANDLE),
    ROW(purr_trace_destroy, PLAIN),
    ROW(purr_schedule_create, HANDLE),
    ROW(purr_schedule_build, HANDLE),
    ROW(purr_schedule_get_view, HANDLE),
    ROW(purr_schedule_describe, HANDLE),
    ROW(purr_schedule_destroy, PLAIN),
    ROW(purr_forward, HANDLE),
    ROW(purr_backward, HANDLE),
    ROW(purr_checkpoint_open, HANDLE),
    ROW(purr_checkpoint_num_tensors, PLAIN),
    ROW(purr_checkpoint_tensor_name, PLAIN),
    ROW(purr_checkpoint_find, HANDLE),
    ROW(purr_checkpoint_describe, HANDLE),
    ROW(purr_checkpoint_create_config, HANDLE),
    ROW(purr_checkpoint_load_layer, HANDLE),
    ROW(purr_checkpoint_layer_get_weights, HANDLE),
    ROW(purr_checkpoint_layer_get_router, HANDLE),
    ROW(purr_checkpoint_layer_destroy, PLAIN),
    ROW(purr_checkpoint_destroy, PLAIN),
    ROW(purr_package_open, HANDLE),
    ROW(purr_package_open_memory, HANDLE),
    ROW(purr_package_verify, HANDLE),
    ROW(purr_package_describe, HANDLE | SAYS_SO),
    ROW(purr_package_destroy, PLAIN),
    ROW(purr_cubin_describe, HANDLE),
    ROW(purr_kernel_open, HANDLE),
    ROW(purr_kernel_num_arguments, PLAIN),
    ROW(purr_kernel_get_argument, HANDLE),
    ROW(purr_kernel_find_argument, HANDLE),
    ROW(purr_kernel_describe, HANDLE),
    ROW(purr_kernel_destroy, PLAIN),
    ROW(purr_launcher_create, HANDLE),
    ROW(purr_launcher_set_pointer, HANDLE),
    ROW(purr_launcher_set_integer, HANDLE),
    ROW(purr_launcher_set_real, HANDLE),
    ROW(purr_launcher_set_bytes, HANDLE),
    ROW(purr_launcher_set_tensor, HANDLE),
    ROW(purr_launcher_unset, HANDLE),
    ROW(purr_launcher_set_grid, HANDLE),
    ROW(purr_launcher_set_scratch, HANDLE),
    ROW(purr_launcher_query, HANDLE),
    ROW(purr_launcher_launch, HANDLE),
    ROW(purr_launcher_destroy, PLAIN),
#undef ROW
};
enum { NUM_FUNCTIONS = sizeof functions / sizeof functions[0] };

static purr_status_t call(int function) {
  err = (purr_error_t)PURR_ERROR_INIT;
  return functions[function].call();
}

static void expect(const char *what, int function, purr_status_t wanted, purr_status_t got) {
  if (got != wanted)
    fprintf(stderr, "%s: %s gave %s, expected %s: %s\n", functions[function].name, what, purr_status_name(got),
            purr_status_name(wanted), err.message);
  CU_ASSERT_EQUAL(got, wanted);
}

/* ---- what holds for all ---- */

/* libpurr.map lists what is exported; each name must stand in the table once. */
static void no_function_is_missing(void) {
  FILE *file = fopen(PURR_SOURCE_DIR "/runtime/libpurr.map", "r");
  CU_ASSERT_PTR_NOT_NULL_FATAL(file);
  char line[256], name[128];
  int num_listed = 0;
  while (fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, " %127[a-z0-9_];", name) != 1 || strncmp(name, "purr_", 5) != 0) continue;
    num_listed++;
    int num_rows = 0;
    for (int f = 0; f < NUM_FUNCTIONS; f++) num_rows += strcmp(functions[f].name, name) == 0;
    if (num_rows != 1) fprintf(stderr, "%s stands in the table of this test %d times, expected once\n", name, num_rows);
    CU_ASSERT_EQUAL(num_rows, 1);
  }
  fclose(file);
  CU_ASSERT_EQUAL(num_listed, NUM_FUNCTIONS);
}

static int num_open_files(void) {
  int num = 0;
  DIR *files = opendir("/proc/self/fd");
  if (files == NULL) return 0;
  while (readdir(files) != NULL) num++;
  closedir(files);
  return num;
}

static int num_mapped_checkpoints(void) {
  int num = 0;
  char line[1024];
  FILE *maps = fopen("/proc/self/maps", "r");
  if (maps == NULL) return 0;
  while (fgets(line, sizeof line, maps) != NULL) num += strstr(line, "safetensors") != NULL;
  fclose(maps);
  return num;
}

static void all_succeed(void) {
  const int num_files = num_open_files();
  open_world();
  CU_ASSERT_TRUE(num_open_files() > num_files); /* the package's folder */
  CU_ASSERT_TRUE(num_mapped_checkpoints() > 0);
  for (int f = 0; f < NUM_FUNCTIONS; f++) {
    expect("a good call", f, PURR_STATUS_OK, call(f));
    if (!(functions[f].traits & ONCE)) expect("the same again", f, PURR_STATUS_OK, call(f));
  }
  CU_ASSERT_TRUE(layer_is_exact());
  close_world();
}

/* Fails the Nth allocation of one call, N = 1, 2, 3 ... until it succeeds. */
static void each_allocation_fails(void) {
  const int num_files = num_open_files();
  for (int f = 0; f < NUM_FUNCTIONS; f++)
    for (int for_good = 0; for_good < 2; for_good++) {
      bool has_failed = true;
      for (long long n = 1; has_failed; n++) {
        CU_ASSERT_FATAL(n < 500);
        open_world();
        purr_test_allocator_t *memory = &world.memory;
        const long long num_live = memory->num_live;
        memory->fail_at = memory->num_calls + n;
        memory->fail_for_good = for_good == 1;
        const purr_status_t status = call(f);
        has_failed = memory->num_calls >= memory->fail_at;
        memory->fail_at = 0;
        char what[64];
        snprintf(what, sizeof what, "without memory from allocation %lld %s", n, for_good ? "on" : "alone");
        const bool may_succeed = (functions[f].traits & SAYS_SO) != 0 && status == PURR_STATUS_OK;
        if (has_failed && !may_succeed) {
          expect(what, f, PURR_STATUS_OUT_OF_HOST_MEMORY, status);
          CU_ASSERT_TRUE(err.message[0] != '\0');
          const bool has_leaked = memory->num_live != num_live && !(functions[f].traits & KEEPS);
          if (has_leaked)
            fprintf(stderr, "%s %s left %lld blocks\n", functions[f].name, what,
                    (long long)memory->num_live - num_live);
          CU_ASSERT_FALSE(has_leaked);
        }
        if (!has_failed) expect("with all memory", f, PURR_STATUS_OK, status);
        /* What failed can be done now. */
        if (has_failed && !(may_succeed && (functions[f].traits & ONCE)))
          expect("afterwards", f, PURR_STATUS_OK, call(f));
        CU_ASSERT_TRUE(layer_is_exact());
        close_world();
      }
      CU_ASSERT_EQUAL(num_open_files(), num_files);
      CU_ASSERT_EQUAL(num_mapped_checkpoints(), 0);
    }
}

/* The library calls malloc nowhere, and where libyaml does, each call may fail. */
static void malloc_fails_too(void) {
  for (int f = 0; f < NUM_FUNCTIONS; f++) {
    const bool uses_malloc = (functions[f].traits & USES_YAML) != 0;
    bool has_failed = true;
    for (long long n = 1; has_failed; n++) {
      CU_ASSERT_FATAL(n < 500);
      open_world();
      const long long num_live = world.memory.num_live;
      malloc_calls = 0;
      malloc_fail_at = uses_malloc ? n : 0;
      malloc_counts = true;
      const purr_status_t status = call(f);
      malloc_counts = false;
      has_failed = uses_malloc && malloc_calls >= n;
      expect(has_failed ? "without memory from malloc" : "with memory from malloc", f,
             has_failed ? PURR_STATUS_OUT_OF_HOST_MEMORY : PURR_STATUS_OK, status);
      if (has_failed) CU_ASSERT_EQUAL(world.memory.num_live, num_live);
      if (!uses_malloc && malloc_calls > 0) fprintf(stderr, "%s calls malloc\n", functions[f].name);
      if (!uses_malloc) CU_ASSERT_EQUAL(malloc_calls, 0);
      if (uses_malloc && !has_failed) CU_ASSERT_TRUE(n > 5); /* it was libyaml that was failed */
      expect("afterwards", f, PURR_STATUS_OK, functions[f].traits & ONCE ? PURR_STATUS_OK : call(f));
      close_world();
    }
  }
}

/* Leaves no trace in the parent; says on stderr what is wrong. */
static int try_inherited_handles(void) {
  int num_wrong = 0;
  in_child = true;
  for (int f = 0; f < NUM_FUNCTIONS; f++) {
    const purr_status_t wanted = functions[f].traits & HANDLE ? PURR_STATUS_FORKED : PURR_STATUS_OK;
    const purr_status_t got = call(f);
    if (got == wanted && (got == PURR_STATUS_OK || strstr(err.message, "fork") != NULL)) continue;
    fprintf(stderr, "%s: after fork: got %s, expected %s: %s\n", functions[f].name, purr_status_name(got),
            purr_status_name(wanted), err.message);
    num_wrong++;
  }
  return num_wrong;
}

static void inherited_handles_are_refused(void) {
  open_world();
  CU_ASSERT_TRUE(layer_is_exact());
  const long long num_live = world.memory.num_live;
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0) _exit(try_inherited_handles());
  int status = -1;
  CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
  CU_ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CU_ASSERT_EQUAL(world.memory.num_live, num_live);
  CU_ASSERT_TRUE(layer_is_exact());
  for (int f = 0; f < NUM_FUNCTIONS; f++) expect("in the parent", f, PURR_STATUS_OK, call(f));
  close_world();
}

static void null_handles_are_refused(void) {
  open_world();
  for (int err_is_given = 0; err_is_given < 2; err_is_given++)
    for (int f = 0; f < NUM_FUNCTIONS; f++) {
      purr_context_t *const context = world.context;
      purr_config_t *const config = world.config;
      purr_plan_t *const plan = world.plan;
      purr_group_t *const group = world.group;
      purr_checkpoint_t *const checkpoint = world.checkpoint;
      purr_checkpoint_layer_t *const layer = world.layer;
      purr_package_t *const package = world.package;
      purr_context_t *const gpu_context = world.gpu_context;
      purr_kernel_t *const kernel = world.kernel;
      purr_launcher_t *const launcher = world.launcher;
      purr_workspace_t *const workspace = world.rank.workspace;
      purr_schedule_t *const schedule = world.rank.schedule;
      purr_result_t *const result = world.rank.result;
      purr_trace_t *const trace = world.trace;
      world.context = NULL;
      world.config = NULL;
      world.plan = NULL;
      world.group = NULL;
      world.checkpoint = NULL;
      world.layer = NULL;
      world.package = NULL;
      world.gpu_context = NULL;
      world.kernel = NULL;
      world.launcher = NULL;
      world.rank.workspace = NULL;
      world.rank.schedule = NULL;
      world.rank.result = NULL;
      world.trace = NULL;
      const purr_status_t got = call(f);
      world.context = context;
      world.config = config;
      world.plan = plan;
      world.group = group;
      world.checkpoint = checkpoint;
      world.layer = layer;
      world.package = package;
      world.gpu_context = gpu_context;
      world.kernel = kernel;
      world.launcher = launcher;
      world.rank.workspace = workspace;
      world.rank.schedule = schedule;
      world.rank.result = result;
      world.trace = trace;
      const bool refuses = (functions[f].traits & HANDLE) != 0;
      expect("without a handle", f, refuses ? PURR_STATUS_INVALID_ARGUMENT : PURR_STATUS_OK, got);
      if (refuses) CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "NULL"));
    }
  CU_ASSERT_TRUE(layer_is_exact());
  close_world();
}

/* ---- set-up ---- */

static bool make_package(void) {
  folder = test_folder_make();
  test_package_fill(&folder, "p", "sm_90");
  snprintf(tar_path, sizeof tar_path, "%s.purr", folder.path);
  char command[1024];
  snprintf(command, sizeof command, "tar --format=ustar -cf '%s' -C '%s' manifest.json kernels.sm_90.cubin", tar_path,
           folder.path);
  if (system(command) != 0) return false;
  tar = test_read_file(tar_path, &tar_bytes);
  return tar != NULL;
}

int main(void) {
  unsetenv("PURR_PACKAGE_PATH");
  problem = test_fixture_f(5, 32, 16, 4, 2, 16);
  expected = test_layer_run(problem, &run);
  if (!make_package() || expected->status != PURR_STATUS_OK) {
    fprintf(stderr, "set-up failed: %s\n", expected->err.message);
    return 1;
  }
  const int code =
      purr_test_main("every function", (purr_test_t[]){{"no function is missing", no_function_is_missing},
                                                       {"all succeed", all_succeed},
                                                       {"each allocation fails", each_allocation_fails},
                                                       {"malloc fails too", malloc_fails_too},
                                                       {"inherited handles are refused", inherited_handles_are_refused},
                                                       {"NULL handles are refused", null_handles_are_refused},
                                                       {0}});
  free(tar);
  remove(tar_path);
  test_folder_remove(&folder);
  test_outcome_free(expected);
  test_problem_free(problem);
  return code;
}
