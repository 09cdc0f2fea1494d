#include "support/device.h"

#include <stdlib.h>
#include <string.h>

int32_t test_backend(void) {
  const char *name = getenv("PURR_TEST_BACKEND");
  if (name == NULL) return PURR_BACKEND_HOST;
  return strcmp(name, "mega") == 0 ? PURR_BACKEND_MEGA : PURR_BACKEND_STAGED;
}

int test_num_devices(void) {
  const char *text = getenv("PURR_TEST_DEVICES");
  const int num = text != NULL ? atoi(text) : 1;
  return num > 0 ? num : 1;
}

bool test_is_emulated(void) { return getenv("PURR_TEST_EMULATED") != NULL; }

bool test_backend_serves(const test_run_t *run) {
  return test_backend() != PURR_BACKEND_HOST && run->precision == PURR_PRECISION_BF16;
}

static int start_backend(void) {
  if (test_backend() == PURR_BACKEND_HOST) return 0;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* up to 8 ranks share the device */
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = NULL;
  purr_config_t *config = NULL;
  purr_plan_t *plan = NULL;
  void *memory = NULL;
  const purr_layer_desc_t layer = {.struct_size = sizeof layer,
                                   .hidden_size = 8,
                                   .intermediate_size = 8,
                                   .num_experts = 1,
                                   .top_k = 1,
                                   .backend = test_backend()};
  purr_status_t status = purr_context_create(NULL, &context, &err);
  if (status == PURR_STATUS_OK) status = purr_config_create(context, &layer, &config, &err);
  /* Never freed: it keeps the primary contexts from being made anew for each test. */
  for (int i = 0; i < test_num_devices() && status == PURR_STATUS_OK; i++) {
    const purr_plan_desc_t desc = {.struct_size = sizeof desc, .device = i + 1};
    status = purr_plan_create(context, config, &desc, &plan, &err);
    if (status == PURR_STATUS_OK) status = purr_memory_allocate(plan, 256, &memory, &err);
  }
  if (status == PURR_STATUS_OK) return 0;
  fprintf(stderr, "skipped: %s\n", err.message);
  return status == PURR_STATUS_NO_DEVICE ? PURR_TEST_SKIPPED : 1;
}

int test_layer_main(const char *suite, const purr_test_t *tests) {
  const int unready = start_backend();
  return unready != 0 ? unready : purr_test_main(suite, tests);
}

bool test_rank_is_on_device(const test_rank_t *rank) {
  purr_plan_info_t info = {.struct_size = sizeof info};
  return purr_plan_query(rank->plan, &info, NULL) == PURR_STATUS_OK && info.backend != PURR_BACKEND_HOST;
}

/* ---- buffers ---- */

#define CANARY_BYTES 4096

typedef struct shuttle {
  test_buffer_t *buffer;
  purr_tensor_t *tensor;
} shuttle_t;

enum { NUM_BUFFERS = 4 };

static void list_buffers(test_rank_t *rank, shuttle_t all[NUM_BUFFERS]) {
  all[0] = (shuttle_t){&rank->x, &rank->tensor.x};
  all[1] = (shuttle_t){&rank->ids, &rank->tensor.ids};
  all[2] = (shuttle_t){&rank->topk_weights, &rank->tensor.topk_weights};
  all[3] = (shuttle_t){&rank->output, &rank->tensor.output};
}

static uint64_t block_bytes(const test_buffer_t *b) {
  return (uint64_t)(b->rows * b->row_stride * b->element_bytes + 2 * CANARY_BYTES);
}

static purr_status_t copy_all(test_rank_t *rank, bool to_device, purr_error_t *err) {
  shuttle_t all[NUM_BUFFERS];
  list_buffers(rank, all);
  purr_status_t status = PURR_STATUS_OK;
  for (int i = 0; i < NUM_BUFFERS && status == PURR_STATUS_OK; i++) {
    char *device = rank->device_blocks[i], *host = all[i].buffer->block;
    status = purr_memory_copy(rank->plan, to_device ? device : host, to_device ? host : device,
                              block_bytes(all[i].buffer), err);
  }
  return status;
}

purr_status_t test_device_upload(test_rank_t *rank, purr_error_t *err) { return copy_all(rank, true, err); }
purr_status_t test_device_download(test_rank_t *rank, purr_error_t *err) { return copy_all(rank, false, err); }

/* ---- weights ---- */

static int64_t num_elements(const purr_tensor_t *tensor) {
  int64_t num = 1;
  for (int i = 0; i < tensor->num_dims; i++) num *= tensor->shape[i];
  return num;
}

/* Copies a contiguous weight to the device; with pointers, every slice to its place in the copy. */
static purr_status_t attach_weight(test_rank_t *rank, purr_tensor_t *tensor, int idx, purr_error_t *err) {
  const int64_t num = num_elements(tensor);
  void *device = NULL;
  if (num == 0 || (tensor->data == NULL && tensor->pointers == NULL)) return PURR_STATUS_OK;
  purr_status_t status = purr_memory_allocate(rank->plan, (uint64_t)num * 2, &device, err);
  if (status != PURR_STATUS_OK) return status;
  rank->device_weights[idx] = device;
  rank->device_weight_bytes[idx] = (uint64_t)num * 2;
  if (tensor->pointers == NULL) {
    status = purr_memory_copy(rank->plan, device, tensor->data, (uint64_t)num * 2, err);
    tensor->data = device;
    return status;
  }
  const int64_t slice = tensor->shape[1] * tensor->shape[2] * 2;
  void **pointers = (void **)(uintptr_t)tensor->pointers;
  for (int64_t e = 0; e < tensor->shape[0] && status == PURR_STATUS_OK; e++) {
    char *to = (char *)device + e * slice;
    status = purr_memory_copy(rank->plan, to, pointers[e], (uint64_t)slice, err);
    pointers[e] = to;
  }
  return status;
}

purr_status_t test_device_attach(test_rank_t *rank, purr_error_t *err) {
  if (!test_rank_is_on_device(rank)) return PURR_STATUS_OK;
  shuttle_t all[NUM_BUFFERS];
  list_buffers(rank, all);
  purr_status_t status = purr_stream_create(rank->plan, &rank->stream, err);
  rank->forward.stream = rank->stream;
  for (int i = 0; i < NUM_BUFFERS && status == PURR_STATUS_OK; i++) {
    status = purr_memory_allocate(rank->plan, block_bytes(all[i].buffer), &rank->device_blocks[i], err);
    all[i].tensor->data = (char *)rank->device_blocks[i] + CANARY_BYTES;
  }
  purr_tensor_t *const weights[] = {&rank->tensor.gate_up, &rank->tensor.gate, &rank->tensor.up,     &rank->tensor.down,
                                    &rank->tensor.s_gate,  &rank->tensor.s_up, &rank->tensor.s_down, &rank->tensor.z};
  for (int i = 0; i < TEST_NUM_WEIGHTS && status == PURR_STATUS_OK; i++) {
    const bool is_packed_away = rank->run->packed && (i == 1 || i == 2);
    if (!is_packed_away) status = attach_weight(rank, weights[i], i, err);
  }
  return status;
}

void test_device_detach(test_rank_t *rank) {
  shuttle_t all[NUM_BUFFERS];
  list_buffers(rank, all);
  for (int i = 0; i < NUM_BUFFERS; i++)
    purr_memory_release(rank->plan, rank->device_blocks[i], block_bytes(all[i].buffer));
  for (int i = 0; i < TEST_NUM_WEIGHTS; i++)
    purr_memory_release(rank->plan, rank->device_weights[i], rank->device_weight_bytes[i]);
  purr_stream_destroy(rank->plan, rank->stream);
  rank->stream = NULL;
}
