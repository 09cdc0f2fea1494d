/* A checked call, as launch/ hands it to a backend. */
#ifndef PURR_CALL_H
#define PURR_CALL_H

#include "result/result.h"
#include "schedule/schedule.h"
#include "tensor/weights.h"
#include "trace/trace.h"
#include "workspace/saved.h"
#include "workspace/workspace.h"

/* What forward, backward and the building of a schedule have in common. */
typedef struct purr__call {
  const purr_plan_t *plan;
  purr_workspace_t *workspace;
  purr_result_t *result; /* NULL = not wanted */
  void *stream;
  int64_t num_tokens; /* T of this rank */
} purr__call_t;

typedef struct purr__forward_call {
  purr__call_t base;
  const purr__weight_views_t *weights;
  const void *prepared_weights; /* of the backend */
  purr__view_t x, topk_ids, topk_weights, output;
  purr_schedule_t *schedule; /* built from these ids, or NULL: the call builds its own */
  purr_saved_t *saved;       /* NULL = inference */
  purr_trace_t *trace;       /* NULL = no timeline is wanted; else purr__trace_start gives what a kernel writes to */
} purr__forward_call_t;

typedef struct purr__backward_call {
  purr__call_t base;
  const purr__weight_views_t *weights;
  const purr_saved_t *saved;
  purr__view_t x, topk_weights, d_output, d_x, d_topk_weights;
  bool has_d_x, has_d_topk_weights;
  purr__weight_views_t gradients;
  bool accumulate;
} purr__backward_call_t;

typedef struct purr__schedule_call {
  purr__call_t base;
  purr_schedule_t *schedule;
  purr__view_t topk_ids;
} purr__schedule_call_t;

/* A backend. Its functions are collective, like the public ones. */
typedef struct purr__backend {
  const char *name;
  purr_status_t (*build_schedule)(const purr__schedule_call_t *call, purr_error_t *err);
  purr_status_t (*forward)(const purr__forward_call_t *call, purr_error_t *err);
  purr_status_t (*backward)(const purr__backward_call_t *call, purr_error_t *err);
  /* Optional: what can be made of the weights once, and its end. */
  purr_status_t (*prepare_weights)(purr_weights_t *weights, purr_error_t *err);
  void (*release_weights)(purr_weights_t *weights);
  /* Optional: what kernels need to know of the workspace and of the other ranks. */
  purr_status_t (*prepare_workspace)(purr_workspace_t *workspace, purr_error_t *err);
  /* The calls only enqueue: the result is then finished by what the backend enqueued last. */
  bool is_asynchronous;
  purr__trace_means_t traces; /* how forward records a timeline where it is given a trace */
} purr__backend_t;

extern const purr__backend_t purr__host_backend, purr__staged_backend, purr__mega_backend;

/* The backend that a plan chose. */
const purr__backend_t *purr__backend_of(const purr_plan_t *plan);

#endif
