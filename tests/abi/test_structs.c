/* Callers built against other versions of purr.h. For every public struct and every size that a version could have had
 * (the end of each field): a shorter struct works as far as the call can do without the missing fields, and nothing
 * behind it is read or written; a longer one works while its unknown tail is zero, and is refused when it is not (S13).
 *
 * Each struct lies at the end of a block of its own size, so that the address sanitizer sees a byte too many. */
#include "purr.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/main.h"

#define END_OF(type, field) (uint32_t)(offsetof(type, field) + sizeof(((type *)0)->field))
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { TOKENS = 3, TOP_K = 2, HIDDEN = 16, INTERMEDIATE = 8, EXPERTS = 4 };

/* One small layer, ready to run. */
static struct {
  purr_context_t *context;
  purr_layer_desc_t layer;
  purr_config_t *config;
  purr_plan_t *plan;
  purr_weights_t *weights;
  purr_workspace_t *workspace;
  purr_saved_t *saved;
  purr_schedule_t *schedule;
  purr_result_t *result;
  purr_checkpoint_t *checkpoint;
  purr_checkpoint_layer_t *checkpoint_layer;
  purr_kernel_t *kernel;
  _Alignas(16) uint16_t gate_up_data[EXPERTS * 2 * INTERMEDIATE * HIDDEN];
  _Alignas(16) uint16_t down_data[EXPERTS * HIDDEN * INTERMEDIATE];
  _Alignas(16) uint16_t d_gate_up_data[EXPERTS * 2 * INTERMEDIATE * HIDDEN];
  _Alignas(16) uint16_t d_down_data[EXPERTS * HIDDEN * INTERMEDIATE];
  _Alignas(16) uint16_t x_data[TOKENS * HIDDEN];
  _Alignas(16) uint16_t output_data[TOKENS * HIDDEN];
  _Alignas(16) uint16_t d_output_data[TOKENS * HIDDEN];
  _Alignas(16) uint8_t e4m3_data[32 * 64];
  _Alignas(16) uint8_t scale_data[32 * 2];
  _Alignas(16) int32_t ids_data[TOKENS * TOP_K];
  _Alignas(16) float topk_weights_data[TOKENS * TOP_K];
  purr_tensor_t gate_up, down, d_gate_up, d_down, x, ids, topk_weights, output, d_output, quantized;
  purr_scales_t scales;
  purr_weights_desc_t weights_desc, gradients;
  purr_forward_args_t forward;
  purr_backward_args_t backward;
} f;

static purr_tensor_t tensor(int32_t dtype, void *data, int32_t num_dims, int64_t a, int64_t b, int64_t c) {
  return (purr_tensor_t){sizeof(purr_tensor_t), dtype, num_dims, 0, data, NULL, {a, b, c}, {0}, NULL};
}

#define TRITON PURR_TEST_DATA "/triton/3.6.0/"
static const purr_kernel_desc_t kernel_desc = {
    sizeof(purr_kernel_desc_t), 0, TRITON "add", NULL, NULL, 0, NULL, 0, NULL, NULL, {NULL, NULL, NULL}};

static purr_status_t open_kernel(const void *desc, purr_kernel_t **kernel, purr_error_t *err) {
  return purr_kernel_open(f.context, desc, kernel, err);
}

static bool set_up(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  desc.num_threads = 1;
  f.layer = (purr_layer_desc_t)PURR_LAYER_DESC_INIT;
  f.layer.hidden_size = HIDDEN;
  f.layer.intermediate_size = INTERMEDIATE;
  f.layer.num_experts = EXPERTS;
  f.layer.top_k = TOP_K;
  f.gate_up = tensor(PURR_DTYPE_BF16, f.gate_up_data, 3, EXPERTS, 2 * INTERMEDIATE, HIDDEN);
  f.down = tensor(PURR_DTYPE_BF16, f.down_data, 3, EXPERTS, HIDDEN, INTERMEDIATE);
  f.x = tensor(PURR_DTYPE_BF16, f.x_data, 2, TOKENS, HIDDEN, 0);
  f.ids = tensor(PURR_DTYPE_INT32, f.ids_data, 2, TOKENS, TOP_K, 0);
  f.topk_weights = tensor(PURR_DTYPE_FP32, f.topk_weights_data, 2, TOKENS, TOP_K, 0);
  f.output = tensor(PURR_DTYPE_BF16, f.output_data, 2, TOKENS, HIDDEN, 0);
  f.d_output = tensor(PURR_DTYPE_BF16, f.d_output_data, 2, TOKENS, HIDDEN, 0);
  f.scales = (purr_scales_t)PURR_SCALES_INIT;
  f.scales.data = f.scale_data;
  f.quantized = tensor(PURR_DTYPE_E4M3, f.e4m3_data, 2, 32, 64, 0);
  f.quantized.scales = &f.scales;
  f.weights_desc = (purr_weights_desc_t)PURR_WEIGHTS_DESC_INIT;
  f.weights_desc.gate_up = &f.gate_up;
  f.weights_desc.down = &f.down;
  f.d_gate_up = tensor(PURR_DTYPE_BF16, f.d_gate_up_data, 3, EXPERTS, 2 * INTERMEDIATE, HIDDEN);
  f.d_down = tensor(PURR_DTYPE_BF16, f.d_down_data, 3, EXPERTS, HIDDEN, INTERMEDIATE);
  f.gradients = (purr_weights_desc_t)PURR_WEIGHTS_DESC_INIT;
  f.gradients.gate_up = &f.d_gate_up;
  f.gradients.down = &f.d_down;
  if (purr_context_create(&desc, &f.context, &err) != PURR_STATUS_OK ||
      purr_config_create(f.context, &f.layer, &f.config, &err) != PURR_STATUS_OK ||
      purr_plan_create(f.context, f.config, NULL, &f.plan, &err) != PURR_STATUS_OK ||
      purr_weights_create(f.plan, &f.weights_desc, &f.weights, &err) != PURR_STATUS_OK ||
      purr_workspace_create(f.plan, NULL, NULL, &f.workspace, &err) != PURR_STATUS_OK ||
      purr_saved_create(f.plan, NULL, 0, &f.saved, &err) != PURR_STATUS_OK ||
      purr_schedule_create(f.plan, &f.schedule, &err) != PURR_STATUS_OK ||
      purr_schedule_build(f.schedule, f.workspace, &f.ids, NULL, &err) != PURR_STATUS_OK ||
      purr_result_create(f.context, &f.result, &err) != PURR_STATUS_OK ||
      purr_checkpoint_open(f.context, PURR_TEST_DATA "/qwen3-moe", &f.checkpoint, &err) != PURR_STATUS_OK ||
      purr_checkpoint_load_layer(f.checkpoint, -1, 0, 1, &f.checkpoint_layer, &err) != PURR_STATUS_OK ||
      open_kernel(&kernel_desc, &f.kernel, &err) != PURR_STATUS_OK) {
    fprintf(stderr, "set-up: %s\n", err.message);
    return false;
  }
  f.forward = (purr_forward_args_t)PURR_FORWARD_ARGS_INIT;
  f.forward.weights = f.weights;
  f.forward.x = &f.x;
  f.forward.topk_ids = &f.ids;
  f.forward.topk_weights = &f.topk_weights;
  f.forward.output = &f.output;
  f.forward.saved = f.saved;
  f.forward.result = f.result;
  f.backward = (purr_backward_args_t)PURR_BACKWARD_ARGS_INIT;
  f.backward.weights = f.weights;
  f.backward.saved = f.saved;
  f.backward.x = &f.x;
  f.backward.topk_weights = &f.topk_weights;
  f.backward.d_output = &f.d_output;
  if (purr_forward(f.plan, f.workspace, &f.forward, &err) == PURR_STATUS_OK) return true;
  fprintf(stderr, "set-up: %s\n", err.message);
  return false;
}

static void tear_down(void) {
  purr_context_destroy(f.context);
  purr_config_destroy(f.config);
  purr_plan_destroy(f.plan);
  purr_weights_destroy(f.weights);
  purr_workspace_destroy(f.workspace);
  purr_saved_destroy(f.saved);
  purr_schedule_destroy(f.schedule);
  purr_result_destroy(f.result);
  purr_checkpoint_layer_destroy(f.checkpoint_layer);
  purr_checkpoint_destroy(f.checkpoint);
  purr_kernel_destroy(f.kernel);
}

/* ---- calls that read the struct under test ---- */

static void *plain_allocate(void *user, uint64_t bytes, uint64_t alignment) {
  (void)user;
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void plain_release(void *user, void *memory, uint64_t bytes) {
  (void)user;
  (void)bytes;
  free(memory);
}

static void *no_device_memory(void *user, int32_t device, uint64_t bytes, uint64_t alignment) {
  (void)user;
  (void)device;
  (void)bytes;
  (void)alignment;
  return NULL;
}

static void no_device_release(void *user, int32_t device, void *memory, uint64_t bytes) {
  (void)user;
  (void)device;
  (void)memory;
  (void)bytes;
}

static const purr_context_desc_t context_desc = PURR_CONTEXT_DESC_INIT;
static const purr_group_desc_t group_desc = {sizeof(purr_group_desc_t), 1, 0};
static const purr_plan_desc_t plan_desc = PURR_PLAN_DESC_INIT;
static const purr_workspace_desc_t workspace_desc = PURR_WORKSPACE_DESC_INIT;
static const purr_trace_desc_t trace_desc = PURR_TRACE_DESC_INIT;
static const purr_allocator_t allocator = {sizeof(purr_allocator_t), 0, plain_allocate, plain_release, NULL};
static const purr_device_allocator_t device_allocator = {sizeof(purr_device_allocator_t), 0, no_device_memory,
                                                         no_device_release, NULL};

static purr_status_t create_context(const void *desc, purr_error_t *err) {
  purr_context_t *context = NULL;
  purr_status_t status = purr_context_create(desc, &context, err);
  purr_context_destroy(context);
  return status;
}

static purr_status_t give_allocator(const void *hooks, purr_error_t *err) {
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  desc.host_allocator = hooks;
  return create_context(&desc, err);
}

static purr_status_t give_device_allocator(const void *hooks, purr_error_t *err) {
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  desc.device_allocator = hooks;
  return create_context(&desc, err);
}

static purr_status_t create_config(const void *layer, purr_error_t *err) {
  purr_config_t *config = NULL;
  purr_status_t status = purr_config_create(f.context, layer, &config, err);
  purr_config_destroy(config);
  return status;
}

static purr_status_t create_group(const void *desc, purr_error_t *err) {
  purr_group_t *group = NULL;
  purr_status_t status = purr_group_create_local(f.context, desc, &group, err);
  purr_group_destroy(group);
  return status;
}

static purr_status_t create_plan(const void *desc, purr_error_t *err) {
  purr_plan_t *plan = NULL;
  purr_status_t status = purr_plan_create(f.context, f.config, desc, &plan, err);
  purr_plan_destroy(plan);
  return status;
}

static purr_status_t create_weights(const void *desc, purr_error_t *err) {
  purr_weights_t *weights = NULL;
  purr_status_t status = purr_weights_create(f.plan, desc, &weights, err);
  purr_weights_destroy(weights);
  return status;
}

static purr_status_t give_weight(const void *down, purr_error_t *err) {
  purr_weights_desc_t desc = f.weights_desc;
  desc.down = down;
  return create_weights(&desc, err);
}

static purr_status_t create_workspace(const void *desc, purr_error_t *err) {
  purr_workspace_t *workspace = NULL;
  purr_status_t status = purr_workspace_create(f.plan, NULL, desc, &workspace, err);
  purr_workspace_destroy(workspace);
  return status;
}

static purr_status_t create_trace(const void *desc, purr_error_t *err) {
  purr_trace_t *trace = NULL;
  purr_status_t status = purr_trace_create(f.plan, desc, &trace, err);
  purr_trace_destroy(trace);
  return status;
}

static purr_status_t run_forward(const void *args, purr_error_t *err) {
  return purr_forward(f.plan, f.workspace, args, err);
}

static purr_status_t give_x(const void *x, purr_error_t *err) {
  purr_forward_args_t args = f.forward;
  args.x = x;
  return run_forward(&args, err);
}

static purr_status_t give_ids(const void *ids, purr_error_t *err) {
  return purr_schedule_build(f.schedule, f.workspace, ids, NULL, err);
}

static purr_status_t run_backward(const void *args, purr_error_t *err) {
  return purr_backward(f.plan, f.workspace, args, err);
}

static purr_status_t give_gradients(const void *desc, purr_error_t *err) {
  purr_backward_args_t args = f.backward;
  args.d_weights = desc;
  return run_backward(&args, err);
}

static purr_status_t size_scales(const void *tensor_of_scales, purr_error_t *err) {
  purr_scales_info_t info = {.struct_size = sizeof info};
  return purr_scales_query(f.context, tensor_of_scales, &info, err);
}

static purr_status_t give_scales(const void *scales, purr_error_t *err) {
  purr_tensor_t t = f.quantized;
  t.scales = scales;
  purr_scales_info_t info = {.struct_size = sizeof info};
  return purr_scales_query(f.context, &t, &info, err);
}

static purr_status_t convert_scales(const void *scales, purr_error_t *err) {
  return purr_scales_convert(f.context, &f.quantized, scales, err);
}

static purr_status_t read_kernel(const void *desc, purr_error_t *err) {
  purr_kernel_t *kernel = NULL;
  purr_status_t status = open_kernel(desc, &kernel, err);
  purr_kernel_destroy(kernel);
  return status;
}

/* `needed`: how much of the struct the call cannot do without. */
static const struct {
  const char *type, *call;
  const void *good;
  uint32_t bytes, needed;
  purr_status_t (*use)(const void *callers, purr_error_t *err);
} readers[] = {
#define READS(type, good, needed, use) \
  { #type, #use, good, sizeof(type), needed, use }
    READS(purr_context_desc_t, &context_desc, 8, create_context),
    READS(purr_allocator_t, &allocator, END_OF(purr_allocator_t, release), give_allocator),
    READS(purr_device_allocator_t, &device_allocator, END_OF(purr_device_allocator_t, release), give_device_allocator),
    READS(purr_layer_desc_t, &f.layer, END_OF(purr_layer_desc_t, top_k), create_config),
    READS(purr_group_desc_t, &group_desc, END_OF(purr_group_desc_t, num_ranks), create_group),
    READS(purr_plan_desc_t, &plan_desc, 8, create_plan),
    READS(purr_weights_desc_t, &f.weights_desc, END_OF(purr_weights_desc_t, down), create_weights),
    READS(purr_weights_desc_t, &f.gradients, 8, give_gradients),
    READS(purr_tensor_t, &f.down, END_OF(purr_tensor_t, shape), give_weight),
    READS(purr_tensor_t, &f.x, END_OF(purr_tensor_t, shape), give_x),
    READS(purr_tensor_t, &f.ids, END_OF(purr_tensor_t, shape), give_ids),
    READS(purr_workspace_desc_t, &workspace_desc, 8, create_workspace),
    READS(purr_trace_desc_t, &trace_desc, 8, create_trace),
    READS(purr_forward_args_t, &f.forward, END_OF(purr_forward_args_t, output), run_forward),
    READS(purr_backward_args_t, &f.backward, END_OF(purr_backward_args_t, d_output), run_backward),
    READS(purr_tensor_t, &f.quantized, END_OF(purr_tensor_t, scales), size_scales),
    READS(purr_scales_t, &f.scales, 8, give_scales),
    READS(purr_scales_t, &f.scales, END_OF(purr_scales_t, data), convert_scales),
    READS(purr_kernel_desc_t, &kernel_desc, END_OF(purr_kernel_desc_t, path), read_kernel),
#undef READS
};

/* ---- calls that write the struct under test ---- */

static purr_status_t query_counters(void *out, purr_error_t *err) {
  return purr_context_query_counters(f.context, out, err);
}
static purr_status_t get_layer(void *out, purr_error_t *err) { return purr_config_get_layer(f.config, out, err); }
static purr_status_t query_plan(void *out, purr_error_t *err) { return purr_plan_query(f.plan, out, err); }
static purr_status_t query_result(void *out, purr_error_t *err) { return purr_result_query(f.result, out, err); }
static purr_status_t get_view(void *out, purr_error_t *err) { return purr_schedule_get_view(f.schedule, out, err); }
static purr_status_t query_scales(void *out, purr_error_t *err) {
  return purr_scales_query(f.context, &f.quantized, out, err);
}
static purr_status_t find_tensor(void *out, purr_error_t *err) {
  return purr_checkpoint_find(f.checkpoint, purr_checkpoint_tensor_name(f.checkpoint, 0), out, err);
}
static purr_status_t get_weights(void *out, purr_error_t *err) {
  return purr_checkpoint_layer_get_weights(f.checkpoint_layer, out, err);
}
static purr_status_t get_router(void *out, purr_error_t *err) {
  purr_tensor_t weight = {.struct_size = sizeof weight}, bias = {.struct_size = sizeof bias};
  return purr_checkpoint_layer_get_router(f.checkpoint_layer, out, &weight, &bias, err);
}
static purr_status_t get_router_weight(void *out, purr_error_t *err) {
  purr_router_desc_t router = {.struct_size = sizeof router};
  purr_tensor_t bias = {.struct_size = sizeof bias};
  return purr_checkpoint_layer_get_router(f.checkpoint_layer, &router, out, &bias, err);
}
static purr_status_t get_router_bias(void *out, purr_error_t *err) {
  purr_router_desc_t router = {.struct_size = sizeof router};
  purr_tensor_t weight = {.struct_size = sizeof weight};
  return purr_checkpoint_layer_get_router(f.checkpoint_layer, &router, &weight, out, err);
}
static purr_status_t get_argument(void *out, purr_error_t *err) {
  return purr_kernel_get_argument(f.kernel, 0, out, err);
}
static purr_status_t report_error(void *out, purr_error_t *err) {
  (void)err;
  return purr_plan_query(NULL, NULL, out) == PURR_STATUS_INVALID_ARGUMENT ? PURR_STATUS_OK : PURR_STATUS_INTERNAL;
}

static const struct {
  const char *type, *call;
  uint32_t bytes;
  purr_status_t (*use)(void *callers, purr_error_t *err);
} writers[] = {
#define WRITES(type, use) \
  { #type, #use, sizeof(type), use }
    WRITES(purr_error_t, report_error),           WRITES(purr_counters_t, query_counters),
    WRITES(purr_layer_desc_t, get_layer),         WRITES(purr_plan_info_t, query_plan),
    WRITES(purr_result_info_t, query_result),     WRITES(purr_schedule_view_t, get_view),
    WRITES(purr_scales_info_t, query_scales),     WRITES(purr_tensor_t, find_tensor),
    WRITES(purr_weights_desc_t, get_weights),     WRITES(purr_router_desc_t, get_router),
    WRITES(purr_tensor_t, get_router_weight),     WRITES(purr_tensor_t, get_router_bias),
    WRITES(purr_kernel_argument_t, get_argument),
#undef WRITES
};

/* ---- the sizes that a version of a struct could have ---- */

static const struct {
  const char *type, *field;
  uint32_t end;
} field_ends[] = {
#define PURR_STRUCT(type, bytes)
#define PURR_FIELD(type, field, offset, bytes) {#type, #field, offset + bytes},
#define PURR_CONSTANT(name, value)
#include "layout.def"
#undef PURR_STRUCT
#undef PURR_FIELD
#undef PURR_CONSTANT
};

static void report(const char *type, const char *call, uint32_t size, purr_status_t status, const purr_error_t *err) {
  fprintf(stderr, "%s of %u bytes given to %s: %s: %s\n", type, size, call, purr_status_name(status), err->message);
}

static void shorter_structs_are_read(void) {
  for (size_t i = 0; i < COUNT(readers); i++)
    for (size_t j = 0; j < COUNT(field_ends); j++) {
      uint32_t size = field_ends[j].end;
      if (strcmp(field_ends[j].type, readers[i].type) != 0 || size < 8) continue;
      char *block = malloc(size);
      memcpy(block, readers[i].good, size);
      memcpy(block, &size, sizeof size);
      purr_error_t err = PURR_ERROR_INIT;
      purr_status_t status = readers[i].use(block, &err);
      bool is_right = size >= readers[i].needed ? status == PURR_STATUS_OK : status != PURR_STATUS_INTERNAL;
      if (!is_right) report(readers[i].type, readers[i].call, size, status, &err);
      CU_ASSERT(is_right);
      free(block);
    }
}

static void longer_structs_are_read_while_their_tail_is_zero(void) {
  enum { MORE = 16 };
  for (size_t i = 0; i < COUNT(readers); i++)
    for (uint32_t at = 0; at <= MORE; at++) { /* a non-zero byte in the tail; none when at = MORE */
      uint32_t size = readers[i].bytes + MORE;
      char *block = calloc(1, size);
      memcpy(block, readers[i].good, readers[i].bytes);
      memcpy(block, &size, sizeof size);
      if (at < MORE) block[readers[i].bytes + at] = 1;
      purr_error_t err = PURR_ERROR_INIT;
      purr_status_t status = readers[i].use(block, &err);
      bool is_right = status == (at < MORE ? PURR_STATUS_INCOMPATIBLE_STRUCT : PURR_STATUS_OK);
      if (!is_right) report(readers[i].type, readers[i].call, size, status, &err);
      CU_ASSERT(is_right);
      free(block);
    }
}

/* Only fields that are zero today can get a meaning tomorrow. */
static void reserved_fields_are_zero(void) {
  int num_tried = 0;
  for (size_t i = 0; i < COUNT(readers); i++)
    for (size_t j = 0; j < COUNT(field_ends); j++) {
      if (strcmp(field_ends[j].type, readers[i].type) != 0 || strcmp(field_ends[j].field, "reserved") != 0) continue;
      char *block = malloc(readers[i].bytes);
      memcpy(block, readers[i].good, readers[i].bytes);
      const int32_t value = 7;
      memcpy(block + field_ends[j].end - sizeof value, &value, sizeof value);
      purr_error_t err = PURR_ERROR_INIT;
      purr_status_t status = readers[i].use(block, &err);
      bool is_right = status == PURR_STATUS_INVALID_ARGUMENT && strstr(err.message, "reserved = 7; it must be 0");
      if (!is_right) report(readers[i].type, readers[i].call, readers[i].bytes, status, &err);
      CU_ASSERT(is_right);
      free(block);
      num_tried++;
    }
  CU_ASSERT(num_tried >= 10);
}

static void writing_stays_inside(void) {
  enum { MORE = 16, CANARY = 0xEE };
  for (size_t i = 0; i < COUNT(writers); i++) {
    /* What a caller of this very version gets. */
    unsigned char *whole = calloc(1, writers[i].bytes);
    memcpy(whole, &writers[i].bytes, sizeof writers[i].bytes);
    purr_error_t err = PURR_ERROR_INIT;
    purr_status_t status = writers[i].use(whole, &err);
    if (status != PURR_STATUS_OK) report(writers[i].type, writers[i].call, writers[i].bytes, status, &err);
    CU_ASSERT_EQUAL(status, PURR_STATUS_OK);
    for (size_t j = 0; j <= COUNT(field_ends); j++) {
      bool is_longer = j == COUNT(field_ends);
      if (!is_longer && strcmp(field_ends[j].type, writers[i].type) != 0) continue;
      uint32_t size = is_longer ? writers[i].bytes + MORE : field_ends[j].end;
      if (size < 8) continue;
      unsigned char *block = malloc(size + MORE);
      memset(block, CANARY, size + MORE);
      memcpy(block, &size, sizeof size);
      status = writers[i].use(block, &err);
      uint32_t known = is_longer ? writers[i].bytes : size;
      bool is_right = status == PURR_STATUS_OK && memcmp(block, &size, sizeof size) == 0;
      /* An error's message is cut to fit: its last byte is the terminator there. */
      uint32_t same = strcmp(writers[i].type, "purr_error_t") == 0 && known > END_OF(purr_error_t, column)
                          ? END_OF(purr_error_t, column)
                          : known;
      if (memcmp(block + 4, whole + 4, same - 4) != 0) is_right = false;
      for (uint32_t k = known; k < size + MORE; k++) is_right = is_right && block[k] == CANARY;
      if (!is_right) report(writers[i].type, writers[i].call, size, status, &err);
      CU_ASSERT(is_right);
      free(block);
    }
    free(whole);
  }
}

/* A struct that is new in purr.h needs a row above. */
static void every_struct_is_tried(void) {
  for (size_t j = 0; j < COUNT(field_ends); j++) {
    bool is_tried = false;
    for (size_t i = 0; i < COUNT(readers); i++) is_tried = is_tried || strcmp(readers[i].type, field_ends[j].type) == 0;
    for (size_t i = 0; i < COUNT(writers); i++) is_tried = is_tried || strcmp(writers[i].type, field_ends[j].type) == 0;
    /* Only a GPU, or unit/test_triton.c with a fake one, can make a launcher. */
    is_tried = is_tried || strcmp(field_ends[j].type, "purr_launcher_info_t") == 0;
    if (!is_tried) fprintf(stderr, "no call in this test takes a %s\n", field_ends[j].type);
    CU_ASSERT(is_tried);
  }
}

int main(void) {
  if (!set_up()) return 1;
  int num_failures = purr_test_main("structs", (purr_test_t[]){
                                                   {"shorter structs are read", shorter_structs_are_read},
                                                   {"longer structs are read while their tail is zero",
                                                    longer_structs_are_read_while_their_tail_is_zero},
                                                   {"reserved fields are zero", reserved_fields_are_zero},
                                                   {"writing stays inside", writing_stays_inside},
                                                   {"every struct is tried", every_struct_is_tried},
                                                   {0},
                                               });
  tear_down();
  return num_failures;
}
