/* A rank's tensors in the memory of the plan's backend. With the host backend they stay where they are. */
#include <stdlib.h>

#include "layer.h"

static bool is_on_host(const layer_t *layer) { return layer->info.backend == PURR_BACKEND_HOST; }

static uint64_t tensor_bytes(const purr_tensor_t *tensor) {
  const uint64_t element_bytes = tensor->dtype == PURR_DTYPE_BF16                                        ? 2
                                 : tensor->dtype == PURR_DTYPE_FP32 || tensor->dtype == PURR_DTYPE_INT32 ? 4
                                                                                                         : 8;
  return (uint64_t)tensor_count(tensor) * element_bytes;
}

/* Copies a contiguous tensor, or one of contiguous slices, to its place. */
static purr_status_t upload(const rank_t *rank, void *to, const purr_tensor_t *from, purr_error_t *err) {
  const uint64_t bytes = tensor_bytes(from);
  if (from->pointers == NULL) return purr_memory_copy(rank->plan, to, from->data, bytes, err);
  const uint64_t slice = bytes / (uint64_t)from->shape[0];
  purr_status_t status = PURR_STATUS_OK;
  for (int64_t i = 0; i < from->shape[0] && status == PURR_STATUS_OK; i++)
    status = purr_memory_copy(rank->plan, (char *)to + (uint64_t)i * slice, from->pointers[i], slice, err);
  return status;
}

purr_status_t place_tensor(const layer_t *layer, rank_t *rank, purr_tensor_t *tensor, purr_error_t *err) {
  const uint64_t bytes = tensor_bytes(tensor);
  if (is_on_host(layer) || bytes == 0) return PURR_STATUS_OK;
  void *memory = NULL;
  purr_status_t status = purr_memory_allocate(rank->plan, bytes, &memory, err);
  if (status != PURR_STATUS_OK) return status;
  rank->placed[rank->num_placed++] = (placed_t){memory, bytes};
  status = upload(rank, memory, tensor, err);
  tensor->data = memory;
  tensor->pointers = NULL;
  for (int i = 0; i < 4; i++) tensor->stride[i] = 0;
  return status;
}

purr_status_t fetch_tensor(const layer_t *layer, const rank_t *rank, const purr_tensor_t *tensor, void *to,
                           purr_error_t *err) {
  if (is_on_host(layer) || tensor_bytes(tensor) == 0) return PURR_STATUS_OK;
  return purr_memory_copy(rank->plan, to, tensor->data, tensor_bytes(tensor), err);
}

void release_placed(rank_t *rank) {
  while (rank->num_placed > 0) {
    const placed_t *placed = &rank->placed[--rank->num_placed];
    purr_memory_release(rank->plan, placed->memory, placed->bytes);
  }
}
