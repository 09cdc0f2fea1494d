/* A rank's weights, checked against its plan; also the gradients of a backward call. */
#ifndef PURR_WEIGHTS_H
#define PURR_WEIGHTS_H

#include "plan/plan.h"
#include "tensor/apart.h"
#include "tensor/tensor.h"

/* Views by role. `present` is false for a gradient that is not wanted, or a part the layer does not have. */
typedef struct purr__weight_views {
  purr__view_t gate, up, down;                      /* [E_l, I, H], [E_l, I, H], [E_l, H, I] */
  purr__view_t shared_gate, shared_up, shared_down; /* [1, S, H], [1, S, H], [1, H, S] */
  purr__view_t shared_expert_gate;                  /* [1, 1, H] */
  bool has_gate, has_up, has_down, has_shared_gate, has_shared_up, has_shared_down, has_shared_expert_gate;
} purr__weight_views_t;

struct purr_weights {
  purr__object_t object;
  const purr_plan_t *plan;
  purr__weight_views_t views;
  void **pointers; /* copies of the caller's per-expert pointer arrays, one block */
  void *prepared;  /* what the plan's backend made of them: purr__backend_t.prepare_weights */
};

enum { PURR__MAX_WEIGHT_AREAS = 7 };
/* Lists the tensors that are there, for purr__check_apart; returns how many. */
int purr__weight_areas(const purr_plan_t *plan, const purr__weight_views_t *views, bool gradient, purr__area_t *areas);

/* Checks the gradient tensors of a backward call. Pointer arrays are read during the call only. */
purr_status_t purr__check_gradients(const purr_plan_t *plan, const purr_weights_desc_t *desc,
                                    purr__weight_views_t *out_views, purr_error_t *err);

#endif
