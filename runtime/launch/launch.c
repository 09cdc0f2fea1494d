/* The public calls: check everything, then hand a checked call to the plan's backend. Nothing is written before all
 * checks have passed. */
#include "launch/call.h"

const purr__backend_t *purr__backend_of(const purr_plan_t *plan) {
  switch (plan->backend) {
    case PURR_BACKEND_HOST:
      return &purr__host_backend;
    case PURR_BACKEND_MEGA:
      return &purr__mega_backend;
    default:
      return &purr__staged_backend;
  }
}

/* ---- what a call's tensors must look like ---- */

/* [T, H] with the given T, or any T where it is -1. */
static purr_status_t check_hidden(const purr_plan_t *plan, const purr_tensor_t *tensor, const char *name, bool written,
                                  int64_t num_tokens, purr__view_t *out_view, purr_error_t *err) {
  const purr__tensor_rule_t rule = {.name = name,
                                    .dtypes = {PURR_DTYPE_BF16},
                                    .num_dims = 2,
                                    .shape = {num_tokens, plan->layer.hidden_size},
                                    .row_alignment = 16,
                                    .unit_column = true,
                                    .written = written};
  return purr__tensor_check(tensor, &rule, out_view, err);
}

/* [T, K], likewise; elements may stand anywhere. */
static purr_status_t check_slots(const purr_plan_t *plan, const purr_tensor_t *tensor, const char *name, bool written,
                                 int64_t num_tokens, purr__view_t *out_view, purr_error_t *err) {
  const purr__tensor_rule_t rule = {.name = name,
                                    .dtypes = {PURR_DTYPE_FP32},
                                    .num_dims = 2,
                                    .shape = {num_tokens, plan->layer.top_k},
                                    .written = written};
  return purr__tensor_check(tensor, &rule, out_view, err);
}

static purr_status_t check_ids(const purr_plan_t *plan, const purr_tensor_t *tensor, int64_t num_tokens,
                               purr__view_t *out_view, purr_error_t *err) {
  const purr__tensor_rule_t rule = {.name = "topk_ids",
                                    .dtypes = {PURR_DTYPE_INT32, PURR_DTYPE_INT64},
                                    .num_dims = 2,
                                    .shape = {num_tokens, plan->layer.top_k}};
  return purr__tensor_check(tensor, &rule, out_view, err);
}

static purr_status_t check_num_tokens(const purr_plan_t *plan, int64_t num_tokens, purr_error_t *err) {
  if (num_tokens > plan->layer.max_tokens)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "the call has %lld tokens, layer '%s' was planned for at most %lld (max_tokens)",
                      (long long)num_tokens, plan->name, (long long)plan->layer.max_tokens);
  return PURR_STATUS_OK;
}

static purr_status_t check_weights(const purr_plan_t *plan, const purr_weights_t *weights, purr_error_t *err) {
  purr_status_t status = purr__check(weights, PURR__WEIGHTS, err);
  if (status == PURR_STATUS_OK) status = purr__plan_check_place(plan, weights->plan, "the weights", err);
  if (status == PURR_STATUS_OK && weights->plan->hash != plan->hash)
    status = purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "the weights were checked for another plan");
  return status;
}

static purr_status_t check_saved(const purr_plan_t *plan, const purr_saved_t *saved, purr_error_t *err) {
  purr_status_t status = purr__check(saved, PURR__SAVED, err);
  if (status == PURR_STATUS_OK) status = purr__plan_check_place(plan, saved->plan, "saved", err);
  if (status == PURR_STATUS_OK && saved->bytes < plan->saved_bytes)
    status = purr__fail(err, PURR_STATUS_BUFFER_TOO_SMALL, "saved has %llu bytes, the plan needs %llu",
                        (unsigned long long)saved->bytes, (unsigned long long)plan->saved_bytes);
  return status;
}

static purr_status_t check_result(const purr_plan_t *plan, const purr_result_t *result, purr_error_t *err) {
  purr_status_t status = purr__check(result, PURR__RESULT, err);
  if (status == PURR_STATUS_OK && result->object.context != plan->object.context)
    status = purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "the result and the plan belong to different contexts");
  return status;
}

/* Reads may share memory with reads, nothing with what is written. */
static purr_status_t check_forward_apart(const purr__forward_call_t *call, purr_error_t *err) {
  const purr_plan_t *plan = call->base.plan;
  const int64_t hidden = plan->layer.hidden_size, top_k = plan->layer.top_k, num_tokens = call->base.num_tokens;
  purr__area_t areas[4 + PURR__MAX_WEIGHT_AREAS] = {{"output", &call->output, 1, num_tokens, hidden, true},
                                                    {"x", &call->x, 1, num_tokens, hidden, false},
                                                    {"topk_ids", &call->topk_ids, 1, num_tokens, top_k, false},
                                                    {"topk_weights", &call->topk_weights, 1, num_tokens, top_k, false}};
  const int num_weights = purr__weight_areas(plan, call->weights, false, areas + 4);
  return purr__check_apart(areas, 4 + num_weights, err);
}

static purr_status_t check_backward_apart(const purr__backward_call_t *call, purr_error_t *err) {
  const purr_plan_t *plan = call->base.plan;
  const int64_t hidden = plan->layer.hidden_size, top_k = plan->layer.top_k, num_tokens = call->base.num_tokens;
  purr__area_t areas[5 + 2 * PURR__MAX_WEIGHT_AREAS] = {
      {"x", &call->x, 1, num_tokens, hidden, false},
      {"topk_weights", &call->topk_weights, 1, num_tokens, top_k, false},
      {"d_output", &call->d_output, 1, num_tokens, hidden, false}};
  int num_areas = 3;
  if (call->has_d_x) areas[num_areas++] = (purr__area_t){"d_x", &call->d_x, 1, num_tokens, hidden, true};
  if (call->has_d_topk_weights)
    areas[num_areas++] = (purr__area_t){"d_topk_weights", &call->d_topk_weights, 1, num_tokens, top_k, true};
  num_areas += purr__weight_areas(plan, call->weights, false, areas + num_areas);
  num_areas += purr__weight_areas(plan, &call->gradients, true, areas + num_areas);
  return purr__check_apart(areas, num_areas, err);
}

static purr_status_t check_trace(const purr_plan_t *plan, const purr_trace_t *trace, purr_error_t *err) {
  purr_status_t status = purr__check(trace, PURR__TRACE, err);
  if (status == PURR_STATUS_OK) status = purr__plan_check_place(plan, trace->plan, "the trace", err);
  if (status == PURR_STATUS_OK && trace->plan->backend != plan->backend)
    status = purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "the trace is for backend %s, the plan for backend %s",
                        purr__backend_name(trace->plan->backend), purr__backend_name(plan->backend));
  return status;
}

/* ---- one call from start to end ---- */

typedef purr_status_t (*run_fn)(const void *call, purr_error_t *err);

/* Takes the workspace, runs, reports to the result. Errors of the caller found before this point leave the result as it
 * was; from here on it has the call's status. */
static purr_status_t run(const purr__call_t *base, const void *call, run_fn backend_run, purr__counter_t counter,
                         purr_error_t *err) {
  const uint64_t start_ns = purr__now_ns();
  purr_status_t status = purr__workspace_acquire(base->workspace, base->plan, err);
  if (status != PURR_STATUS_OK) return status;
  purr__result_start(base->result);
  purr_error_t own = PURR_ERROR_INIT;
  purr__count(base->plan->object.context, counter, 1);
  status = backend_run(call, &own);
  if (status != PURR_STATUS_OK || !purr__backend_of(base->plan)->is_asynchronous)
    purr__result_finish(base->result, status, &own, purr__now_ns() - start_ns);
  if (status != PURR_STATUS_OK) purr__fail_copy(err, &own);
  purr__workspace_release(base->workspace);
  return status;
}

static purr_status_t run_forward(const void *call, purr_error_t *err) {
  const purr__forward_call_t *forward = call;
  if (forward->trace != NULL) forward->trace->rank = forward->base.workspace->group->rank;
  return purr__backend_of(forward->base.plan)->forward(forward, err);
}

static purr_status_t run_backward(const void *call, purr_error_t *err) {
  const purr__backward_call_t *backward = call;
  return purr__backend_of(backward->base.plan)->backward(backward, err);
}

/* ---- schedule ---- */

purr_status_t purr_schedule_build(purr_schedule_t *schedule, purr_workspace_t *workspace, const purr_tensor_t *topk_ids,
                                  void *stream, purr_error_t *err) {
  purr_status_t status = purr__check(schedule, PURR__SCHEDULE, err);
  if (status != PURR_STATUS_OK) return status;
  const purr_plan_t *plan = schedule->plan;
  purr__schedule_call_t call = {.base = {.plan = plan, .workspace = workspace, .stream = stream}, .schedule = schedule};
  status = check_ids(plan, topk_ids, -1, &call.topk_ids, err);
  if (status == PURR_STATUS_OK) status = check_num_tokens(plan, call.topk_ids.num_rows, err);
  if (status != PURR_STATUS_OK) return status;
  call.base.num_tokens = call.topk_ids.num_rows;
  status = purr__workspace_acquire(workspace, plan, err);
  if (status != PURR_STATUS_OK) return status;
  schedule->built = false;
  status = purr__backend_of(plan)->build_schedule(&call, err);
  if (status == PURR_STATUS_OK) {
    schedule->built = true;
    schedule->stream = stream;
    schedule->num_tokens = call.base.num_tokens;
    schedule->rank = workspace->group->rank;
  }
  purr__workspace_release(workspace);
  return status;
}

/* ---- forward ---- */

static purr_status_t check_forward(const purr_plan_t *plan, const purr_forward_args_t *args, purr__forward_call_t *call,
                                   purr_error_t *err) {
  purr_status_t status = check_weights(plan, args->weights, err);
  if (status == PURR_STATUS_OK) status = check_hidden(plan, args->x, "x", false, -1, &call->x, err);
  if (status != PURR_STATUS_OK) return status;
  const int64_t num_tokens = call->base.num_tokens = call->x.num_rows;
  call->weights = &args->weights->views;
  call->prepared_weights = args->weights->prepared;
  call->schedule = args->schedule;
  call->saved = args->saved;
  call->trace = args->trace;
  status = check_num_tokens(plan, num_tokens, err);
  if (status == PURR_STATUS_OK) status = check_ids(plan, args->topk_ids, num_tokens, &call->topk_ids, err);
  if (status == PURR_STATUS_OK)
    status = check_slots(plan, args->topk_weights, "topk_weights", false, num_tokens, &call->topk_weights, err);
  if (status == PURR_STATUS_OK)
    status = check_hidden(plan, args->output, "output", true, num_tokens, &call->output, err);
  if (status == PURR_STATUS_OK && args->saved != NULL) status = check_saved(plan, args->saved, err);
  if (status == PURR_STATUS_OK) status = check_forward_apart(call, err);
  if (status == PURR_STATUS_OK && args->result != NULL) status = check_result(plan, args->result, err);
  if (status == PURR_STATUS_OK && args->trace != NULL) status = check_trace(plan, args->trace, err);
  if (status != PURR_STATUS_OK || args->schedule == NULL) return status;

  status = purr__check(args->schedule, PURR__SCHEDULE, err);
  if (status == PURR_STATUS_OK) status = purr__plan_check_place(plan, args->schedule->plan, "the schedule", err);
  if (status != PURR_STATUS_OK) return status;
  if (!args->schedule->built)
    return purr__fail(err, PURR_STATUS_INVALID_STATE,
                      "the schedule has not been built; call purr_schedule_build first");
  if (args->schedule->plan->hash != plan->hash)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "the schedule was built for another plan");
  if (args->schedule->num_tokens != num_tokens)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "the schedule was built for %lld tokens, x has %lld",
                      (long long)args->schedule->num_tokens, (long long)num_tokens);
  return PURR_STATUS_OK;
}

purr_status_t purr_forward(const purr_plan_t *plan, purr_workspace_t *workspace, const purr_forward_args_t *args,
                           purr_error_t *err) {
  purr_status_t status = purr__check(plan, PURR__PLAN, err);
  if (status == PURR_STATUS_OK) status = purr__check(workspace, PURR__WORKSPACE, err);
  if (status != PURR_STATUS_OK) return status;
  purr_forward_args_t own;
  status = purr__read_struct(&own, sizeof own, args, "purr_forward_args_t", err);
  if (status == PURR_STATUS_OK) status = purr__check_reserved(own.reserved, "purr_forward_args_t", err);
  if (status != PURR_STATUS_OK) return status;
  purr__forward_call_t call = {
      .base = {.plan = plan, .workspace = workspace, .result = own.result, .stream = own.stream}};
  status = check_forward(plan, &own, &call, err);
  if (status != PURR_STATUS_OK) return status;
  return run(&call.base, &call, run_forward, PURR__COUNT_FORWARD, err);
}

/* ---- backward ---- */

static purr_status_t check_backward(const purr_plan_t *plan, const purr_backward_args_t *args,
                                    purr__backward_call_t *call, purr_error_t *err) {
  if ((args->flags & ~(uint32_t)PURR_BACKWARD_ACCUMULATE) != 0)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "flags is 0x%x; allowed is PURR_BACKWARD_ACCUMULATE (0x%x)",
                      args->flags, PURR_BACKWARD_ACCUMULATE);
  purr_status_t status = check_weights(plan, args->weights, err);
  if (status == PURR_STATUS_OK) status = check_saved(plan, args->saved, err);
  if (status != PURR_STATUS_OK) return status;
  if (!args->saved->filled)
    return purr__fail(err, PURR_STATUS_INVALID_STATE, "saved was not filled by a forward that succeeded");
  if (args->saved->plan_hash != plan->hash)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "saved was filled by a forward of another plan");
  const int64_t num_tokens = call->base.num_tokens = args->saved->num_tokens;
  call->weights = &args->weights->views;
  call->saved = args->saved;
  call->accumulate = (args->flags & PURR_BACKWARD_ACCUMULATE) != 0;
  call->has_d_x = args->d_x != NULL;
  call->has_d_topk_weights = args->d_topk_weights != NULL;
  status = check_hidden(plan, args->x, "x", false, num_tokens, &call->x, err);
  if (status == PURR_STATUS_OK)
    status = check_slots(plan, args->topk_weights, "topk_weights", false, num_tokens, &call->topk_weights, err);
  if (status == PURR_STATUS_OK)
    status = check_hidden(plan, args->d_output, "d_output", false, num_tokens, &call->d_output, err);
  if (status == PURR_STATUS_OK && call->has_d_x)
    status = check_hidden(plan, args->d_x, "d_x", true, num_tokens, &call->d_x, err);
  if (status == PURR_STATUS_OK && call->has_d_topk_weights)
    status = check_slots(plan, args->d_topk_weights, "d_topk_weights", true, num_tokens, &call->d_topk_weights, err);
  if (status == PURR_STATUS_OK && args->d_weights != NULL)
    status = purr__check_gradients(plan, args->d_weights, &call->gradients, err);
  if (status == PURR_STATUS_OK && args->result != NULL) status = check_result(plan, args->result, err);
  if (status == PURR_STATUS_OK) status = check_backward_apart(call, err);
  return status;
}

purr_status_t purr_backward(const purr_plan_t *plan, purr_workspace_t *workspace, const purr_backward_args_t *args,
                            purr_error_t *err) {
  purr_status_t status = purr__check(plan, PURR__PLAN, err);
  if (status == PURR_STATUS_OK) status = purr__check(workspace, PURR__WORKSPACE, err);
  if (status != PURR_STATUS_OK) return status;
  purr_backward_args_t own;
  status = purr__read_struct(&own, sizeof own, args, "purr_backward_args_t", err);
  if (status != PURR_STATUS_OK) return status;
  purr__backward_call_t call = {
      .base = {.plan = plan, .workspace = workspace, .result = own.result, .stream = own.stream}};
  status = check_backward(plan, &own, &call, err);
  if (status != PURR_STATUS_OK) return status;
  return run(&call.base, &call, run_backward, PURR__COUNT_BACKWARD, err);
}
