/* The forward pass of the mega backend: three launches, five where there are other ranks; up to two more where a
 * schedule is too large to be one launch, or was built before. */
#include "backends/mega/mega.h"
#include "plan/units.h"

/* Longer than any wait inside takes: past it the kernel has a fault, which it reports. */
#define WAIT_LIMIT_NS 10000000000ll

static void *workspace_at(const purr__call_t *call, int region) {
  return purr__workspace_at(call->workspace, call->plan, region);
}

static purr__rows_t dense_rows(void *data, int64_t row_stride) {
  return (purr__rows_t){.data = data, .row_stride = row_stride, .placement = PURR__ROWS_DENSE};
}

/* ---- what all kernels of a call share ---- */

static purr__unit_order_t order_of(const purr__call_t *call, bool traced) {
  const purr__mega_variant_t *variant = &call->plan->kernels.forward;
  purr__unit_order_t order =
      purr__unit_order_of(call->plan, call->num_tokens, traced ? variant->traced_tile_rows : variant->tile_rows);
  order.units = workspace_at(call, PURR__WS_UNITS);
  order.sync = workspace_at(call, PURR__WS_UNIT_SYNC);
  order.num_sync_words = (int32_t)(call->plan->ws[PURR__WS_UNIT_SYNC].bytes / sizeof(int32_t));
  return order;
}

/* The list of units of a table that is there already. */
static purr_status_t list_units(const purr__forward_call_t *call, const purr__turn_t *turn, const purr__table_t *table,
                                const purr__unit_order_t *order, purr_error_t *err) {
  const purr_plan_t *plan = call->base.plan;
  purr__schedule_params_t params = purr__staged_schedule_params(&call->base, turn, true, &call->topk_ids, table);
  params.order = *order;
  const purr__launch_t launch = {.grid = {(uint32_t)(plan->num_local_experts / 8 + 1), 1, 1},
                                 .stream = call->base.stream};
  return purr__kernel_launch(plan->kernels.unit_list, &launch, &params, err);
}

/* ---- the megakernel ---- */

/* The two maps of a matrix of rows, [rows, k]. An empty one is never read. */
static purr_status_t encode_rows(purr__device_t *device, purr__tensor_map_t maps[2], const void *data, int64_t k,
                                 int64_t rows, int64_t row_stride, purr_error_t *err) {
  static const int box_rows[2] = {PURR__MAP_ROWS_TOKENS, PURR__MAP_ROWS_MANY_TOKENS};
  purr_status_t status = PURR_STATUS_OK;
  for (int i = 0; i < 2 && status == PURR_STATUS_OK && rows > 0 && k > 0; i++)
    status = purr__staged_encode_map(device, &maps[i], data, k, rows, 0, row_stride, 0, box_rows[i], err);
  return status;
}

static purr_status_t encode_operands(const purr__forward_call_t *call, purr__forward_params_t *params,
                                     purr_error_t *err) {
  const purr__call_t *base = &call->base;
  const purr_plan_t *plan = base->plan;
  const int64_t hidden = plan->layer.hidden_size, inner = plan->layer.intermediate_size;
  const int64_t shared = plan->layer.shared_intermediate_size;
  const int64_t ring_rows = purr__ring_rows(plan), rows = ring_rows > 0 ? ring_rows : plan->max_rows;
  purr_status_t status = encode_rows(plan->device, params->x_ring, params->x_rows.data, hidden, rows, hidden, err);
  if (status == PURR_STATUS_OK)
    status = encode_rows(plan->device, params->a, params->a_rows.data, inner, rows, inner, err);
  if (status == PURR_STATUS_OK && shared > 0)
    status =
        encode_rows(plan->device, params->x_tokens, call->x.data, hidden, base->num_tokens, call->x.row_stride, err);
  if (status == PURR_STATUS_OK && shared > 0)
    status =
        encode_rows(plan->device, params->shared_a, params->shared_a_rows.data, shared, base->num_tokens, shared, err);
  return status;
}

/* Pairs of blocks, one an SM: ranks that share a device share its SMs. */
static int32_t num_blocks(const purr__call_t *call) {
  const int num_sms = call->plan->device->num_sms, num_ranks = purr__staged_num_on_device(call->workspace);
  return (int32_t)purr__max(2, num_sms / num_ranks & ~1);
}

/* Of these, those that pull: none where all ranks are on this device, whose memory every SM reaches as well. */
static int32_t num_pull_blocks(const purr__call_t *call) {
  const purr_layer_desc_t *layer = &call->plan->layer;
  if (layer->num_ranks == 1) return 0;
  int64_t num = layer->num_comm_sms;
  if (num == 0) num = purr__staged_num_on_device(call->workspace) == layer->num_ranks ? 0 : PURR__NUM_PULL_SMS;
  return (int32_t)purr__min((num + 1) & ~1, (num_blocks(call) - 2) & ~1);
}

static purr__forward_params_t forward_params(const purr__forward_call_t *call, const purr__turn_t *turn,
                                             const purr__table_t *table, const purr__unit_order_t *order) {
  const purr__call_t *base = &call->base;
  const purr_plan_t *plan = base->plan;
  const purr__mega_weights_t *weights = call->prepared_weights;
  const int64_t hidden = plan->layer.hidden_size, inner = plan->layer.intermediate_size;
  const int64_t shared = plan->layer.shared_intermediate_size;
  const bool has_peers = plan->layer.num_ranks > 1;
  const purr__staged_results_t results = purr__staged_results_of(call);
  purr__forward_params_t params = {
      .gate_up = weights->gate_up,
      .down = weights->down,
      .shared_gate_up = weights->shared_gate_up,
      .shared_down = weights->shared_down,
      .gate_up_by_expert = weights->gate_up_by_expert,
      .down_by_expert = weights->down_by_expert,
      .order = *order,
      .table = purr__staged_device_table(table),
      .x = has_peers ? purr__staged_rows_of_ranks(base, PURR__SYM_TOKENS, PURR__ROWS_TOKEN)
                     : (purr__rows_t){call->x.data, NULL, call->x.row_stride, PURR__ROWS_TOKEN, 0},
      .x_rows = dense_rows(workspace_at(base, PURR__WS_RING_X), hidden),
      .a_rows = dense_rows(workspace_at(base, PURR__WS_RING_A), inner),
      .y = results.rows,
      .slot_weights = results.slot_weights,
      .slot_weights_stride = results.slot_weights_stride,
      .hidden = (int32_t)hidden,
      .intermediate = (int32_t)inner,
      .shared_intermediate = (int32_t)shared,
      .num_experts = (int32_t)plan->num_local_experts,
      .top_k = (int32_t)plan->layer.top_k,
      .up_first = weights->up_first,
      .shared_up_first = weights->shared_up_first,
      .num_pull_blocks = num_pull_blocks(base),
      .slot_bits = purr__num_bits(plan->layer.max_tokens * plan->layer.top_k),
      .swiglu_limit = plan->layer.swiglu_limit,
      .timeout_ns = WAIT_LIMIT_NS,
      .status = purr__staged_status(plan, table),
      .turn = *turn};
  if (shared > 0) {
    params.shared_a_rows = dense_rows(workspace_at(base, PURR__WS_SHARED_A), shared);
    params.shared_out = dense_rows(workspace_at(base, PURR__WS_SHARED_OUT), hidden);
  }
  if (call->saved != NULL) {
    params.saved[0] = dense_rows(purr__saved_at(call->saved, plan, PURR__SAVED_GATE), inner);
    params.saved[1] = dense_rows(purr__saved_at(call->saved, plan, PURR__SAVED_UP), inner);
    params.num_saved_rows = plan->kept_rows;
    if (shared > 0) {
      params.shared_saved[0] = dense_rows(purr__saved_at(call->saved, plan, PURR__SAVED_SHARED_GATE), shared);
      params.shared_saved[1] = dense_rows(purr__saved_at(call->saved, plan, PURR__SAVED_SHARED_UP), shared);
    }
  }
  return params;
}

static purr_status_t launch_forward(const purr__forward_call_t *call, const purr__turn_t *turn,
                                    const purr__table_t *table, const purr__unit_order_t *order, void *trace,
                                    purr_error_t *err) {
  const purr_plan_t *plan = call->base.plan;
  const purr__launch_t launch = {
      .grid = {(uint32_t)num_blocks(&call->base), 1, 1}, .stream = call->base.stream, .is_cooperative = true};
  purr__forward_params_t params = forward_params(call, turn, table, order);
  params.trace = trace;
  purr_status_t status = encode_operands(call, &params, err);
  if (status != PURR_STATUS_OK) return status;
  const purr__mega_variant_t *variant = &plan->kernels.forward;
  return purr__kernel_launch(call->trace != NULL ? variant->traced : variant->kernel, &launch, &params, err);
}

/* What a kernel writes its timeline to, where one is wanted. */
static purr_status_t start_trace(const purr__forward_call_t *call, void **out_trace, purr_error_t *err) {
  const purr_plan_t *plan = call->base.plan;
  const purr__mega_variant_t *variant = &plan->kernels.forward;
  *out_trace = NULL;
  if (call->trace == NULL) return PURR_STATUS_OK;
  if (variant->traced == NULL)
    return purr__fail(err, PURR_STATUS_UNSUPPORTED,
                      "the package that %.128s comes from has no kernel of this kind that writes a timeline",
                      variant->kernel->entry->entry);
  if (call->schedule != NULL && variant->traced_tile_rows != variant->tile_rows)
    return purr__fail(err, PURR_STATUS_UNSUPPORTED,
                      "a timeline of layer '%s' needs other tiles than a schedule that was built before has; let the "
                      "forward build its own",
                      plan->name);
  return purr__trace_start(call->trace, num_blocks(&call->base), call->base.stream, out_trace, err);
}

/* ---- the call ---- */

static purr_status_t enqueue_forward(const purr__forward_call_t *call, purr_error_t *err) {
  const purr__call_t *base = &call->base;
  const purr_plan_t *plan = base->plan;
  const purr__mega_weights_t *weights = call->prepared_weights;
  const purr__table_t table = purr__staged_table_of(call);
  const purr__unit_order_t order = order_of(base, call->trace != NULL);
  void *trace;
  purr_status_t status = start_trace(call, &trace, err);
  if (status != PURR_STATUS_OK) return status;
  const bool has_peers = plan->layer.num_ranks > 1, begins_with_exchange = has_peers || call->schedule != NULL;
  purr__device_status_t *found = purr__staged_status(plan, &table);
  const purr__turn_t turn =
      purr__staged_turn(base, begins_with_exchange ? purr__staged_exchange_blocks(base) : purr__staged_num_chunks(base),
                        purr__staged_sum_blocks(base));
  const bool meets = has_peers && call->schedule == NULL && purr__staged_schedule_can_meet(base);
  if (begins_with_exchange) status = purr__staged_exchange(base, &turn, &call->topk_ids, &call->x, err);
  if (status == PURR_STATUS_OK && has_peers && !meets)
    status = purr__staged_barrier(base, &turn, 0, call->schedule != NULL ? found : NULL, err);
  if (status == PURR_STATUS_OK && call->schedule == NULL)
    status = purr__staged_build_table(base, &turn, true, meets, &call->topk_ids, &table, &order, err);
  if (status == PURR_STATUS_OK && call->schedule != NULL) {
    status = purr__staged_keep_schedule(call, err);
    if (status == PURR_STATUS_OK) status = list_units(call, &turn, &table, &order, err);
  }
  if (status == PURR_STATUS_OK) status = launch_forward(call, &turn, &table, &order, trace, err);
  if (status == PURR_STATUS_OK && has_peers) status = purr__staged_barrier(base, &turn, 0, found, err);
  if (status == PURR_STATUS_OK) status = purr__staged_sum(call, &turn, &weights->staged, &table, err);
  if (status != PURR_STATUS_OK) return purr__staged_end_turn(base, status);
  return purr__result_mirrored(base->result, base->stream, err);
}

static purr_status_t mega_forward(const purr__forward_call_t *call, purr_error_t *err) {
  return purr__staged_run_forward(call, enqueue_forward, err);
}

static purr_status_t mega_build_schedule(const purr__schedule_call_t *call, purr_error_t *err) {
  const purr__unit_order_t order = {.tile_rows = call->base.plan->kernels.forward.tile_rows};
  return purr__staged_run_schedule(call, &order, err);
}

const purr__backend_t purr__mega_backend = {.name = "mega",
                                            .build_schedule = mega_build_schedule,
                                            .forward = mega_forward,
                                            .backward = purr__staged_backward,
                                            .prepare_weights = purr__mega_prepare_weights,
                                            .release_weights = purr__mega_release_weights,
                                            .prepare_workspace = purr__staged_prepare_workspace,
                                            .is_asynchronous = true,
                                            .traces = PURR__TRACES_THREADS};
