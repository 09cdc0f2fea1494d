/* Weights as the kernels take them: addresses, strides, maps for the copy engine. Made once; the values may change. */
#include "backends/staged/staged.h"

#define DATA_TYPE_BF16 9
#define SWIZZLE_128B 3
#define L2_PROMOTION_256B 3

purr_status_t purr__staged_encode_tensor(purr__device_t *device, purr__tensor_map_t *map, const void *data,
                                         int num_dims, const uint64_t *size, const uint64_t *stride,
                                         const uint32_t *box, purr_error_t *err) {
  const uint32_t step[5] = {1, 1, 1, 1, 1};
  return PURR__CUDA(device, err, cuTensorMapEncodeTiled,
                    ((CUtensorMap *)map, DATA_TYPE_BF16, (uint32_t)num_dims, (void *)(uintptr_t)data, size, stride, box,
                     step, 0, SWIZZLE_128B, L2_PROMOTION_256B, 0),
                    "describing a tensor of %d dimensions, rows of %lld, to the copy engine", num_dims,
                    (long long)size[0]);
}

purr_status_t purr__staged_encode_map(purr__device_t *device, purr__tensor_map_t *map, const void *data, int64_t k,
                                      int64_t rows, int64_t depth, int64_t row_stride, int64_t depth_stride,
                                      int box_rows, purr_error_t *err) {
  /* The stride of a dimension of one may be anything, and the copy engine takes not just anything. */
  if (rows == 1) row_stride = k;
  if (depth == 1) depth_stride = rows * row_stride;
  const uint64_t size[3] = {(uint64_t)k, (uint64_t)rows, (uint64_t)depth};
  const uint64_t stride[2] = {(uint64_t)row_stride * 2, (uint64_t)depth_stride * 2};
  const uint32_t box[3] = {PURR__MAP_STAGE_K, (uint32_t)box_rows, 1};
  return purr__staged_encode_tensor(device, map, data, depth > 0 ? 3 : 2, size, stride, box, err);
}

static purr__weight_t weight_of(const purr__view_t *view) {
  return (purr__weight_t){.data = view->pointers == NULL ? purr__view_slice(view, 0, 2) : NULL,
                          .expert_stride = view->slice_stride,
                          .row_stride = view->row_stride};
}

/* The three routed weights with what the kernels need for each. */
typedef struct routed {
  const purr__view_t *view;
  purr__weight_t *weight;
  purr__gemm_maps_t *maps;
  int map_idx; /* of maps->b */
  int64_t rows, columns;
} routed_t;

static void list_routed(const purr_weights_t *weights, purr__staged_weights_t *staged, routed_t routed[3]) {
  const purr__weight_views_t *views = &weights->views;
  const int64_t hidden = weights->plan->layer.hidden_size, inner = weights->plan->layer.intermediate_size;
  routed[0] = (routed_t){&views->gate, &staged->gate, &staged->gate_up_maps, 0, inner, hidden};
  routed[1] = (routed_t){&views->up, &staged->up, &staged->gate_up_maps, 1, inner, hidden};
  routed[2] = (routed_t){&views->down, &staged->down, &staged->down_maps, 0, hidden, inner};
}

/* Experts that lie anywhere: their addresses, and a map of each, go to device memory. */
static purr_status_t place_experts(const purr_weights_t *weights, purr__staged_weights_t *staged,
                                   const routed_t routed[3], bool with_maps, purr_error_t *err) {
  const purr_plan_t *plan = weights->plan;
  purr_context_t *context = plan->object.context;
  const uint64_t num_experts = (uint64_t)plan->num_local_experts;
  const uint64_t map_bytes = 3 * num_experts * sizeof(purr__tensor_map_t), pointer_bytes = 3 * num_experts * 8;
  char *host = purr__allocate_zeroed(context, map_bytes + pointer_bytes);
  if (host == NULL) return purr__fail_memory(err, "the maps of the experts", map_bytes + pointer_bytes);
  purr_status_t status = purr__device_allocate(plan->device, map_bytes + pointer_bytes, "the maps of the experts",
                                               &staged->device_memory, err);
  staged->device_bytes = map_bytes + pointer_bytes;
  char *device = staged->device_memory;
  for (uint64_t i = 0; i < 3 && status == PURR_STATUS_OK; i++) {
    if (routed[i].view->pointers == NULL) continue;
    const uint64_t maps_at = i * num_experts * sizeof(purr__tensor_map_t),
                   pointers_at = map_bytes + i * num_experts * 8;
    for (uint64_t e = 0; e < num_experts && status == PURR_STATUS_OK; e++) {
      const void *slice = purr__view_slice(routed[i].view, (int64_t)e, 2);
      memcpy(host + pointers_at + e * 8, &slice, 8);
      if (with_maps)
        status = purr__staged_encode_map(plan->device, (purr__tensor_map_t *)(host + maps_at) + e, slice,
                                         routed[i].columns, routed[i].rows, 1, routed[i].view->row_stride,
                                         routed[i].rows * routed[i].view->row_stride, PURR__MAP_ROWS_B, err);
    }
    routed[i].weight->by_expert = (const void *const *)(device + pointers_at);
    if (with_maps) routed[i].maps->b_by_expert[routed[i].map_idx] = (const purr__tensor_map_t *)(device + maps_at);
  }
  if (status == PURR_STATUS_OK)
    status = purr__device_copy(plan->device, device, host, map_bytes + pointer_bytes, NULL, err);
  if (status == PURR_STATUS_OK) status = purr__device_synchronize(plan->device, NULL, err);
  purr__release(context, host);
  return status;
}

static purr_status_t prepare_routed(const purr_weights_t *weights, purr__staged_weights_t *staged, bool with_maps,
                                    purr_error_t *err) {
  routed_t routed[3];
  list_routed(weights, staged, routed);
  bool any_pointers = false;
  purr_status_t status = PURR_STATUS_OK;
  for (int i = 0; i < 3 && status == PURR_STATUS_OK; i++) {
    const routed_t *r = &routed[i];
    *r->weight = weight_of(r->view);
    any_pointers = any_pointers || r->view->pointers != NULL;
    if (with_maps && r->view->pointers == NULL)
      status = purr__staged_encode_map(weights->plan->device, &r->maps->b[r->map_idx], r->weight->data, r->columns,
                                       r->rows, weights->plan->num_local_experts, r->view->row_stride,
                                       r->view->slice_stride, PURR__MAP_ROWS_B, err);
  }
  return status == PURR_STATUS_OK && any_pointers ? place_experts(weights, staged, routed, with_maps, err) : status;
}

static purr_status_t prepare_shared(const purr_weights_t *weights, purr__staged_weights_t *staged, bool with_maps,
                                    purr_error_t *err) {
  const purr_plan_t *plan = weights->plan;
  const purr__weight_views_t *views = &weights->views;
  const int64_t hidden = plan->layer.hidden_size, inner = plan->layer.shared_intermediate_size;
  if (inner == 0) return PURR_STATUS_OK;
  const struct {
    const purr__view_t *view;
    purr__weight_t *weight;
    purr__tensor_map_t *map;
    int64_t rows, columns;
  } all[3] = {{&views->shared_gate, &staged->shared_gate, &staged->shared_gate_up_maps.b[0], inner, hidden},
              {&views->shared_up, &staged->shared_up, &staged->shared_gate_up_maps.b[1], inner, hidden},
              {&views->shared_down, &staged->shared_down, &staged->shared_down_maps.b[0], hidden, inner}};
  purr_status_t status = PURR_STATUS_OK;
  for (int i = 0; i < 3 && status == PURR_STATUS_OK; i++) {
    *all[i].weight = weight_of(all[i].view);
    if (with_maps)
      status = purr__staged_encode_map(plan->device, all[i].map, all[i].weight->data, all[i].columns, all[i].rows, 1,
                                       all[i].view->row_stride, all[i].rows * all[i].view->row_stride, PURR__MAP_ROWS_B,
                                       err);
  }
  if (views->has_shared_expert_gate) staged->shared_expert_gate = views->shared_expert_gate.data;
  return status;
}

purr_status_t purr__staged_fill_weights(const purr_weights_t *weights, purr__staged_weights_t *staged,
                                        purr_error_t *err) {
  const purr_plan_t *plan = weights->plan;
  const bool with_maps = plan->kernels.gate_up_tma != NULL || plan->kernels.down_tma != NULL;
  purr_status_t status = purr__device_enter(plan->device, err);
  if (status != PURR_STATUS_OK) return status;
  status = prepare_routed(weights, staged, with_maps, err);
  if (status == PURR_STATUS_OK) status = prepare_shared(weights, staged, with_maps, err);
  purr__device_leave(plan->device);
  return status;
}

void purr__staged_drop_weights(const purr_weights_t *weights, purr__staged_weights_t *staged) {
  purr__device_release(weights->plan->device, staged->device_memory, staged->device_bytes);
}

purr_status_t purr__staged_prepare_weights(purr_weights_t *weights, purr_error_t *err) {
  purr__staged_weights_t *staged = purr__allocate_zeroed(weights->plan->object.context, sizeof *staged);
  if (staged == NULL) return purr__fail_memory(err, "the prepared weights", sizeof *staged);
  weights->prepared = staged; /* released with the weights, also after a failure */
  return purr__staged_fill_weights(weights, staged, err);
}

void purr__staged_release_weights(purr_weights_t *weights) {
  purr__staged_drop_weights(weights, weights->prepared);
  purr__release(weights->object.context, weights->prepared);
}
