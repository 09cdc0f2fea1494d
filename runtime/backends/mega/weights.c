/* Weights as the megakernel takes them: eight rows of gate and eight of up in turn, which one tensor map of both can
 * say as long as their strides agree. Other weights are refused. */
#include "backends/mega/mega.h"

#define MOST_STRIDE_BYTES ((int64_t)1 << 40) /* of a tensor map */

/* Gate and up of one expert, or of all: where they begin, and the distance between them. */
typedef struct gate_up {
  const char *first; /* the lower of the two */
  int64_t distance;  /* bytes from it to the other */
  bool up_first;
} gate_up_t;

static purr_status_t fail_apart(const purr_plan_t *plan, const char *which, purr_error_t *err) {
  return purr__fail(
      err, PURR_STATUS_UNSUPPORTED,
      "layer '%s': the megakernel reads %s as one tensor, which takes equal strides, and a distance "
      "between them that is a multiple of 16 bytes, below 2^40 and the same way round for all experts; use "
      "backend 'staged' or 'auto'",
      plan->name, which);
}

static bool pair_up(const char *gate, const char *up, gate_up_t *out_pair) {
  const bool up_first = up < gate;
  const int64_t distance = up_first ? gate - up : up - gate;
  *out_pair = (gate_up_t){up_first ? up : gate, distance, up_first};
  return distance > 0 && distance < MOST_STRIDE_BYTES && distance % 16 == 0;
}

/* [depth, rows, k], gate and up alike. The strides do not ascend, which the driver takes. */
static purr_status_t encode_gate_up(purr__device_t *device, purr__tensor_map_t *map, const gate_up_t *pair, int64_t k,
                                    int64_t rows, int64_t depth, int64_t row_stride, int64_t depth_stride,
                                    purr_error_t *err) {
  if (depth == 1) depth_stride = rows * row_stride; /* it may be anything */
  const uint64_t run = PURR__MAP_ROWS_INTERLEAVED, row_bytes = (uint64_t)row_stride * 2;
  const uint64_t size[5] = {(uint64_t)k, run, 2, (uint64_t)rows / run, (uint64_t)depth};
  const uint64_t stride[4] = {row_bytes, (uint64_t)pair->distance, row_bytes * run, (uint64_t)depth_stride * 2};
  const uint32_t box[5] = {PURR__MAP_STAGE_K, PURR__MAP_ROWS_INTERLEAVED, 2,
                           PURR__UNIT_WEIGHT_ROWS / 2 / PURR__MAP_ROWS_INTERLEAVED, 1};
  return purr__staged_encode_tensor(device, map, pair->first, 5, size, stride, box, err);
}

/* Experts that lie anywhere: a map of each, in device memory. */
static purr_status_t map_experts(const purr_weights_t *weights, purr__mega_weights_t *mega, purr_error_t *err) {
  const purr_plan_t *plan = weights->plan;
  purr_context_t *context = plan->object.context;
  const purr__weight_views_t *views = &weights->views;
  const int64_t hidden = plan->layer.hidden_size, inner = plan->layer.intermediate_size;
  const int64_t num_experts = plan->num_local_experts;
  const uint64_t bytes = 2 * (uint64_t)num_experts * sizeof(purr__tensor_map_t);
  purr__tensor_map_t *host = purr__allocate_zeroed(context, bytes);
  if (host == NULL) return purr__fail_memory(err, "the maps of the experts", bytes);
  purr_status_t status = PURR_STATUS_OK;
  for (int64_t e = 0; e < num_experts && status == PURR_STATUS_OK; e++) {
    gate_up_t pair;
    if (!pair_up(purr__view_slice(&views->gate, e, 2), purr__view_slice(&views->up, e, 2), &pair) ||
        (e > 0 && pair.up_first != mega->up_first)) {
      status = fail_apart(plan, "gate and up", err);
      break;
    }
    mega->up_first = pair.up_first;
    const int64_t stride = views->gate.row_stride, down_stride = views->down.row_stride;
    status = encode_gate_up(plan->device, &host[e], &pair, hidden, inner, 1, stride, inner * stride, err);
    if (status == PURR_STATUS_OK)
      status =
          purr__staged_encode_map(plan->device, &host[num_experts + e], purr__view_slice(&views->down, e, 2), inner,
                                  hidden, 1, down_stride, hidden * down_stride, PURR__UNIT_WEIGHT_ROWS, err);
  }
  if (status == PURR_STATUS_OK)
    status = purr__device_allocate(plan->device, bytes, "the maps of the experts", &mega->device_memory, err);
  if (status == PURR_STATUS_OK) {
    mega->device_bytes = bytes;
    mega->gate_up_by_expert = mega->device_memory;
    mega->down_by_expert = mega->gate_up_by_expert + num_experts;
    status = purr__device_copy(plan->device, mega->device_memory, host, bytes, NULL, err);
    if (status == PURR_STATUS_OK) status = purr__device_synchronize(plan->device, NULL, err);
  }
  purr__release(context, host);
  return status;
}

static purr_status_t map_routed(const purr_weights_t *weights, purr__mega_weights_t *mega, purr_error_t *err) {
  const purr_plan_t *plan = weights->plan;
  const purr__weight_views_t *views = &weights->views;
  const int64_t hidden = plan->layer.hidden_size, inner = plan->layer.intermediate_size;
  if (views->gate.row_stride != views->up.row_stride) return fail_apart(plan, "gate and up", err);
  if ((views->gate.pointers != NULL || views->up.pointers != NULL || views->down.pointers != NULL))
    return map_experts(weights, mega, err);
  gate_up_t pair;
  if ((views->gate.slice_stride != views->up.slice_stride && plan->num_local_experts > 1) ||
      !pair_up(purr__view_slice(&views->gate, 0, 2), purr__view_slice(&views->up, 0, 2), &pair))
    return fail_apart(plan, "gate and up", err);
  mega->up_first = pair.up_first;
  purr_status_t status = encode_gate_up(plan->device, &mega->gate_up, &pair, hidden, inner, plan->num_local_experts,
                                        views->gate.row_stride, views->gate.slice_stride, err);
  if (status != PURR_STATUS_OK) return status;
  return purr__staged_encode_map(plan->device, &mega->down, purr__view_slice(&views->down, 0, 2), inner, hidden,
                                 plan->num_local_experts, views->down.row_stride, views->down.slice_stride,
                                 PURR__UNIT_WEIGHT_ROWS, err);
}

static purr_status_t map_shared(const purr_weights_t *weights, purr__mega_weights_t *mega, purr_error_t *err) {
  const purr_plan_t *plan = weights->plan;
  const purr__weight_views_t *views = &weights->views;
  const int64_t hidden = plan->layer.hidden_size, inner = plan->layer.shared_intermediate_size;
  if (inner == 0) return PURR_STATUS_OK;
  const int64_t stride = views->shared_gate.row_stride, down_stride = views->shared_down.row_stride;
  gate_up_t pair;
  if (stride != views->shared_up.row_stride ||
      !pair_up(purr__view_slice(&views->shared_gate, 0, 2), purr__view_slice(&views->shared_up, 0, 2), &pair))
    return fail_apart(plan, "the shared expert's gate and up", err);
  mega->shared_up_first = pair.up_first;
  purr_status_t status =
      encode_gate_up(plan->device, &mega->shared_gate_up, &pair, hidden, inner, 1, stride, inner * stride, err);
  if (status != PURR_STATUS_OK) return status;
  return purr__staged_encode_map(plan->device, &mega->shared_down, purr__view_slice(&views->shared_down, 0, 2), inner,
                                 hidden, 1, down_stride, hidden * down_stride, PURR__UNIT_WEIGHT_ROWS, err);
}

purr_status_t purr__mega_prepare_weights(purr_weights_t *weights, purr_error_t *err) {
  const purr_plan_t *plan = weights->plan;
  purr__mega_weights_t *mega = purr__allocate_zeroed(plan->object.context, sizeof *mega);
  if (mega == NULL) return purr__fail_memory(err, "the prepared weights", sizeof *mega);
  weights->prepared = mega; /* released with the weights, also after a failure */
  purr_status_t status = purr__staged_fill_weights(weights, &mega->staged, err);
  if (status == PURR_STATUS_OK) status = purr__device_enter(plan->device, err);
  if (status != PURR_STATUS_OK) return status;
  status = map_routed(weights, mega, err);
  if (status == PURR_STATUS_OK) status = map_shared(weights, mega, err);
  purr__device_leave(plan->device);
  return status;
}

void purr__mega_release_weights(purr_weights_t *weights) {
  purr__mega_weights_t *mega = weights->prepared;
  purr__staged_drop_weights(weights, &mega->staged);
  purr__device_release(weights->plan->device, mega->device_memory, mega->device_bytes);
  purr__release(weights->object.context, mega);
}
