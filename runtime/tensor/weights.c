/* A rank's weights and a backward call's gradients: which tensors a layer has, and what each must look like. */
#include "tensor/weights.h"

#include <stdio.h>

#include "launch/call.h"

/* One tensor of the layer: its member in purr_weights_desc_t, its view, and its shape. */
typedef struct part {
  const char *name, *gradient_name;
  size_t member;    /* offset of the pointer in purr_weights_desc_t */
  size_t view, has; /* offsets in purr__weight_views_t */
  bool shared;
} part_t;

#define PART(field, shared)                                                                        \
  {                                                                                                \
    "weights." #field, "d_weights." #field, offsetof(purr_weights_desc_t, field),                  \
        offsetof(purr__weight_views_t, field), offsetof(purr__weight_views_t, has_##field), shared \
  }

static const part_t parts[] = {
    PART(gate, false),
    PART(up, false),
    PART(down, false),
    PART(shared_gate, true),
    PART(shared_up, true),
    PART(shared_down, true),
    PART(shared_expert_gate, true),
};
enum { GATE, UP, DOWN, SHARED_GATE, SHARED_UP, SHARED_DOWN, SHARED_EXPERT_GATE, NUM_PARTS };

static purr__tensor_rule_t rule_of(const purr_plan_t *plan, int part_idx, bool gradient) {
  const int64_t hidden = plan->layer.hidden_size;
  const int64_t inner = parts[part_idx].shared ? plan->layer.shared_intermediate_size : plan->layer.intermediate_size;
  const bool is_down = part_idx == DOWN || part_idx == SHARED_DOWN;
  const int64_t rows = part_idx == SHARED_EXPERT_GATE ? 1 : is_down ? hidden : inner;
  const int64_t columns = is_down ? inner : hidden;
  purr__tensor_rule_t rule = {.name = gradient ? parts[part_idx].gradient_name : parts[part_idx].name,
                              .dtypes = {PURR_DTYPE_BF16, gradient ? PURR_DTYPE_FP32 : 0},
                              .num_dims = parts[part_idx].shared ? 2 : 3,
                              .row_alignment = 16,
                              .unit_column = true,
                              .written = gradient};
  if (parts[part_idx].shared) {
    rule.shape[0] = rows;
    rule.shape[1] = columns;
  } else {
    rule.shape[0] = plan->num_local_experts;
    rule.shape[1] = rows;
    rule.shape[2] = columns;
  }
  return rule;
}

static bool layer_has(const purr_plan_t *plan, int part_idx) {
  if (part_idx == SHARED_EXPERT_GATE) return plan->layer.shared_gate != PURR_SHARED_GATE_NONE;
  return !parts[part_idx].shared || plan->layer.shared_intermediate_size > 0;
}

/* gate_up [E_l, 2I, H] is two views of one tensor. With a pointer array the views keep the array, and up an offset. */
static purr_status_t split_gate_up(const purr_plan_t *plan, const purr_tensor_t *gate_up, bool gradient,
                                   purr__weight_views_t *views, purr_error_t *err) {
  purr__tensor_rule_t rule = rule_of(plan, GATE, gradient);
  rule.name = gradient ? "d_weights.gate_up" : "weights.gate_up";
  rule.shape[1] = 2 * plan->layer.intermediate_size;
  purr_status_t status = purr__tensor_check(gate_up, &rule, &views->gate, err);
  if (status != PURR_STATUS_OK) return status;
  views->up = views->gate;
  views->up.offset = plan->layer.intermediate_size * views->gate.row_stride;
  views->has_gate = views->has_up = true;
  return PURR_STATUS_OK;
}

static purr_status_t check(const purr_plan_t *plan, const purr_weights_desc_t *callers, bool gradient,
                           purr__weight_views_t *views, purr_error_t *err) {
  *views = (purr__weight_views_t){0};
  purr_weights_desc_t desc;
  purr_status_t status =
      purr__read_struct(&desc, sizeof desc, callers, gradient ? "d_weights" : "purr_weights_desc_t", err);
  if (status == PURR_STATUS_OK)
    status = purr__check_reserved(desc.reserved, gradient ? "d_weights" : "purr_weights_desc_t", err);
  if (status != PURR_STATUS_OK) return status;
  if (desc.gate_up != NULL) {
    if (desc.gate != NULL || desc.up != NULL)
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s: give gate_up, or gate and up, not both",
                        gradient ? "d_weights" : "weights");
    status = split_gate_up(plan, desc.gate_up, gradient, views, err);
    if (status != PURR_STATUS_OK) return status;
  }
  for (int i = 0; i < NUM_PARTS; i++) {
    const purr_tensor_t *tensor;
    memcpy(&tensor, (const char *)&desc + parts[i].member, sizeof tensor);
    bool *has = (bool *)((char *)views + parts[i].has);
    if (*has) continue;
    const char *name = gradient ? parts[i].gradient_name : parts[i].name;
    if (!layer_has(plan, i)) {
      if (tensor != NULL)
        return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s is given, but layer '%s' has no %s", name, plan->name,
                          i == SHARED_EXPERT_GATE ? "shared gate" : "shared expert");
      continue;
    }
    if (tensor == NULL) {
      if (gradient) continue;
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s is missing; layer '%s' needs it", name, plan->name);
    }
    purr__tensor_rule_t rule = rule_of(plan, i, gradient);
    purr_tensor_t vector;
    if (i == SHARED_EXPERT_GATE) { /* [H] is taken as [1, H] */
      status = purr__read_struct(&vector, sizeof vector, tensor, name, err);
      if (status != PURR_STATUS_OK) return status;
      if (vector.num_dims == 1) {
        rule.num_dims = 1;
        rule.shape[0] = plan->layer.hidden_size;
      }
    }
    status = purr__tensor_check(tensor, &rule, (purr__view_t *)((char *)views + parts[i].view), err);
    if (status != PURR_STATUS_OK) return status;
    *has = true;
  }
  return PURR_STATUS_OK;
}

purr_status_t purr__check_gradients(const purr_plan_t *plan, const purr_weights_desc_t *desc,
                                    purr__weight_views_t *out_views, purr_error_t *err) {
  return check(plan, desc, true, out_views, err);
}

int purr__weight_areas(const purr_plan_t *plan, const purr__weight_views_t *views, bool gradient, purr__area_t *areas) {
  _Static_assert((int)PURR__MAX_WEIGHT_AREAS == (int)NUM_PARTS, "one area for each part");
  int num_areas = 0;
  for (int i = 0; i < NUM_PARTS; i++) {
    if (!*(const bool *)((const char *)views + parts[i].has)) continue;
    const purr__tensor_rule_t rule = rule_of(plan, i, gradient);
    areas[num_areas++] = (purr__area_t){.name = rule.name,
                                        .view = (const purr__view_t *)((const char *)views + parts[i].view),
                                        .num_slices = rule.num_dims == 3 ? rule.shape[0] : 1,
                                        .num_rows = rule.shape[rule.num_dims - 2],
                                        .num_columns = rule.shape[rule.num_dims - 1],
                                        .written = gradient};
  }
  return num_areas;
}

/* Whether every tensor, and every expert of those in pieces, lies where the plan runs. */
static purr_status_t check_memory(const purr_plan_t *plan, const purr__weight_views_t *views, purr_error_t *err) {
  purr__area_t areas[PURR__MAX_WEIGHT_AREAS];
  const int num_areas = plan->device != NULL ? purr__weight_areas(plan, views, false, areas) : 0;
  purr_status_t status = PURR_STATUS_OK;
  for (int i = 0; i < num_areas && status == PURR_STATUS_OK; i++) {
    const purr__view_t *view = areas[i].view;
    const bool is_packed = views->up.offset > 0;
    if (is_packed && view == &views->up) continue; /* the same as gate */
    const char *name = is_packed && view == &views->gate ? "weights.gate_up" : areas[i].name;
    if (view->pointers == NULL) status = purr__plan_check_memory(plan, view->data, name, err);
    for (int64_t e = 0; view->pointers != NULL && e < areas[i].num_slices && status == PURR_STATUS_OK; e++) {
      char entry[64];
      snprintf(entry, sizeof entry, "%s.pointers[%lld]", name, (long long)e);
      status = purr__plan_check_memory(plan, view->pointers[e], entry, err);
    }
  }
  return status;
}

/* The caller's pointer arrays need not outlive purr_weights_create: each view gets a copy. */
static purr_status_t copy_pointers(purr_weights_t *weights, purr_error_t *err) {
  purr__view_t *const views[] = {&weights->views.gate, &weights->views.up, &weights->views.down};
  const uint64_t num_experts = (uint64_t)weights->plan->num_local_experts;
  const uint64_t bytes = 3 * num_experts * sizeof(void *);
  if (views[0]->pointers == NULL && views[1]->pointers == NULL && views[2]->pointers == NULL) return PURR_STATUS_OK;
  weights->pointers = purr__allocate(weights->object.context, bytes);
  if (weights->pointers == NULL) return purr__fail_memory(err, "the pointer arrays of the weights", bytes);
  for (int i = 0; i < 3; i++) {
    if (views[i]->pointers == NULL) continue;
    void **copy = weights->pointers + (uint64_t)i * num_experts;
    memcpy(copy, views[i]->pointers, num_experts * sizeof(void *));
    views[i]->pointers = copy;
  }
  return PURR_STATUS_OK;
}

static void weights_free(void *object) {
  purr_weights_t *weights = object;
  if (weights->prepared != NULL) purr__backend_of(weights->plan)->release_weights(weights);
  purr__release(weights->object.context, weights->pointers);
  purr__object_release(weights->plan);
}

purr_status_t purr_weights_create(const purr_plan_t *plan, const purr_weights_desc_t *desc,
                                  purr_weights_t **out_weights, purr_error_t *err) {
  if (out_weights == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_weights is NULL");
  *out_weights = NULL;
  purr_status_t status = purr__check(plan, PURR__PLAN, err);
  if (status != PURR_STATUS_OK) return status;
  purr__weight_views_t views;
  status = check(plan, desc, false, &views, err);
  if (status == PURR_STATUS_OK) status = check_memory(plan, &views, err);
  if (status != PURR_STATUS_OK) return status;

  void *object;
  status = purr__object_create(plan->object.context, PURR__WEIGHTS, sizeof(purr_weights_t), weights_free, &object, err);
  if (status != PURR_STATUS_OK) return status;
  purr_weights_t *weights = object;
  purr__object_retain(plan);
  weights->plan = plan;
  weights->views = views;
  status = copy_pointers(weights, err);
  const purr__backend_t *backend = purr__backend_of(plan);
  if (status == PURR_STATUS_OK && backend->prepare_weights != NULL) status = backend->prepare_weights(weights, err);
  if (status != PURR_STATUS_OK) {
    purr__object_release(weights);
    return status;
  }
  *out_weights = weights;
  return PURR_STATUS_OK;
}

void purr_weights_destroy(purr_weights_t *weights) { purr__object_release(weights); }
