/* The forward pass of the staged backend: four launches, seven where there are other ranks; one more where a schedule
 * is too large to be one launch. */
#include "backends/staged/staged.h"
#include "plan/stages.h"

static void *workspace_at(const purr__call_t *call, int region) {
  return purr__workspace_at(call->workspace, call->plan, region);
}

/* ---- turns ---- */

purr__turn_t purr__staged_turn(const purr__call_t *call, int64_t first_blocks, int64_t last_blocks) {
  call->workspace->last_turn = (call->workspace->last_turn + 1) & 0xFFFFFF;
  return (purr__turn_t){.word = &purr__staged_header(call)->turn,
                        .outcome = call->result != NULL ? call->result->mirror : NULL,
                        .ticket = call->workspace->last_turn,
                        .first_blocks = (int32_t)first_blocks,
                        .last_blocks = (int32_t)last_blocks};
}

purr_status_t purr__staged_end_turn(const purr__call_t *call, purr_status_t status) {
  if (status != PURR_STATUS_OK)
    purr__device_fill(call->plan->device, &purr__staged_header(call)->turn, 0, sizeof(uint64_t), call->stream, NULL);
  return status;
}

/* ---- schedule ---- */

static purr__schedule_shape_t schedule_shape(const purr__call_t *call) {
  enum { STATIC_SHARED_BYTES = 1024 }; /* more than the kernels have */
  const purr_layer_desc_t *layer = &call->plan->layer;
  const purr__device_t *device = call->plan->device;
  /* Small devices, and small parts of large ones, have no room for large clusters. */
  const int32_t most_blocks =
      device->cc_major >= 9 ? (int32_t)purr__max(1, purr__min(PURR__SCHEDULE_TOGETHER_BLOCKS, device->num_sms / 2)) : 1;
  /* How many tokens other ranks have, only the device knows. */
  const int64_t num_tokens = layer->num_ranks > 1 ? layer->max_tokens : call->num_tokens;
  return purr__schedule_shape(num_tokens * layer->top_k, layer->num_ranks, call->plan->num_local_experts, most_blocks,
                              device->max_shared_bytes - STATIC_SHARED_BYTES);
}

int32_t purr__staged_num_chunks(const purr__call_t *call) { return schedule_shape(call).chunks_per_rank; }

bool purr__staged_schedule_can_meet(const purr__call_t *call) {
  const purr__schedule_shape_t shape = schedule_shape(call);
  const int blocks = call->plan->layer.num_ranks * shape.chunks_per_rank;
  return shape.is_together && purr__staged_num_on_device(call->workspace) * blocks <= call->plan->device->num_sms / 2;
}

purr__schedule_params_t purr__staged_schedule_params(const purr__call_t *call, const purr__turn_t *turn,
                                                     bool is_forward, const purr__view_t *topk_ids,
                                                     const purr__table_t *table) {
  const purr_plan_t *plan = call->plan;
  const bool has_peers = plan->layer.num_ranks > 1;
  const purr__schedule_shape_t shape = schedule_shape(call);
  const char *own = call->workspace->memory, *at = (const char *)table->header;
  return (purr__schedule_params_t){.own = purr__staged_ids(topk_ids, call->num_tokens),
                                   .sources = purr__staged_sources(call->workspace),
                                   .num_ranks = plan->layer.num_ranks,
                                   .chunks_per_rank = shape.chunks_per_rank,
                                   .num_pieces = shape.num_pieces,
                                   .top_k = (int32_t)plan->layer.top_k,
                                   .num_experts = (int32_t)plan->layer.num_experts,
                                   .first_expert = (int32_t)(call->workspace->group->rank * plan->num_local_experts),
                                   .num_local_experts = (int32_t)plan->num_local_experts,
                                   .chunk_count = workspace_at(call, PURR__WS_CHUNK_COUNT),
                                   .chunk_bad = workspace_at(call, PURR__WS_CHUNK_BAD),
                                   .table = purr__staged_device_table(table),
                                   .status = purr__staged_status(plan, table),
                                   .header = has_peers ? purr__staged_header(call) : NULL,
                                   .tag = purr__staged_tag(call, is_forward),
                                   .table_is_own = at < own || at >= own + call->workspace->bytes,
                                   .turn = *turn};
}

/* Counts and places, of a forward or the building of a schedule alone. With one rank the first launch takes the
 * workspace. */
purr_status_t purr__staged_build_table(const purr__call_t *call, const purr__turn_t *turn, bool is_forward, bool meets,
                                       const purr__view_t *topk_ids, const purr__table_t *table,
                                       const purr__unit_order_t *order, purr_error_t *err) {
  const purr_plan_t *plan = call->plan;
  const bool has_peers = plan->layer.num_ranks > 1;
  purr__schedule_params_t params = purr__staged_schedule_params(call, turn, is_forward, topk_ids, table);
  if (order != NULL) params.order = *order;
  if (meets) params.meeting = purr__staged_barrier_params(call, turn, 0, NULL);
  const int32_t first = has_peers ? 0 : PURR__TURN_FIRST, last = has_peers || is_forward ? 0 : PURR__TURN_LAST;
  const purr__schedule_shape_t shape = schedule_shape(call);
  purr__launch_t launch = {.grid = {(uint32_t)(params.num_ranks * shape.chunks_per_rank), 1, 1},
                           .shared_bytes = (uint32_t)shape.shared_bytes,
                           .stream = call->stream};
  if (shape.is_together) {
    if (launch.grid[0] > 1)
      for (int i = 0; i < 3; i++) launch.cluster[i] = launch.grid[i];
    params.turn.place = first | last;
    return purr__kernel_launch(plan->kernels.schedule, &launch, &params, err);
  }
  params.turn.place = first;
  purr_status_t status = purr__kernel_launch(plan->kernels.schedule_count, &launch, &params, err);
  if (status != PURR_STATUS_OK) return status;
  params.turn.place = last;
  return purr__kernel_launch(plan->kernels.schedule_place, &launch, &params, err);
}

/* ---- grouped GEMMs ---- */

/* The routed experts' problem, without what tells gate-up from down. */
static purr__gemm_t routed_problem(const purr_plan_t *plan, const purr__table_t *table) {
  return (purr__gemm_t){.expert_count = table->expert_count,
                        .expert_begin = table->expert_begin,
                        .tile_begin = table->tile_begin,
                        .tile_expert = table->tile_expert,
                        .row_rank = table->row_rank,
                        .row_slot = table->row_slot,
                        .num_experts = (int32_t)plan->num_local_experts,
                        .top_k = (int32_t)plan->layer.top_k};
}

static purr__rows_t rows_at(void *data, int64_t row_stride, int32_t placement) {
  return (purr__rows_t){.data = data, .row_stride = row_stride, .placement = placement};
}

purr__rows_t purr__staged_rows_of_ranks(const purr__call_t *call, int region, int32_t placement) {
  return (purr__rows_t){.data = (void *)(uintptr_t)call->plan->sym[region].offset,
                        .by_rank = purr__staged_ranks(call->workspace),
                        .row_stride = call->plan->layer.hidden_size,
                        .placement = placement};
}

purr__staged_results_t purr__staged_results_of(const purr__forward_call_t *call) {
  const purr__call_t *base = &call->base;
  const purr_plan_t *plan = base->plan;
  if (purr__plan_sums_in_down(plan))
    return (purr__staged_results_t){.rows = rows_at(call->output.data, call->output.row_stride, PURR__ROWS_SLOT),
                                    .slot_weights = (const float *)call->topk_weights.data,
                                    .slot_weights_stride = call->topk_weights.row_stride};
  if (plan->layer.num_ranks > 1)
    return (purr__staged_results_t){.rows = purr__staged_rows_of_ranks(base, PURR__SYM_SLOTS, PURR__ROWS_SLOT)};
  return (purr__staged_results_t){.rows = rows_at(purr__symmetric_at(base->workspace, plan, 0, PURR__SYM_SLOTS),
                                                  plan->layer.hidden_size, PURR__ROWS_SLOT)};
}

static purr__gemm_params_t gate_up_params(const purr__forward_call_t *call, const purr__turn_t *turn,
                                          const purr__staged_weights_t *weights, const purr__table_t *table) {
  const purr__call_t *base = &call->base;
  const purr_plan_t *plan = base->plan;
  const int64_t inner = plan->layer.intermediate_size, shared = plan->layer.shared_intermediate_size;
  purr__gemm_params_t params = {
      .num_problems = shared > 0 ? 2 : 1, .status = purr__staged_status(plan, table), .turn = *turn};
  purr__gemm_t *routed = &params.problem[0], *common = &params.problem[1];
  *routed = routed_problem(plan, table);
  routed->a = plan->layer.num_ranks == 1 ? rows_at(call->x.data, call->x.row_stride, PURR__ROWS_TOKEN)
                                         : purr__staged_rows_of_ranks(base, PURR__SYM_TOKENS, PURR__ROWS_TOKEN);
  routed->b[0] = weights->gate;
  routed->b[1] = weights->up;
  routed->c = rows_at(workspace_at(base, PURR__WS_RING_A), inner, PURR__ROWS_DENSE);
  routed->n = (int32_t)inner;
  routed->k = (int32_t)plan->layer.hidden_size;
  routed->swiglu_limit = plan->layer.swiglu_limit;
  *common = (purr__gemm_t){.num_rows = base->num_tokens, .num_experts = 1, .top_k = 1};
  common->a = rows_at(call->x.data, call->x.row_stride, PURR__ROWS_DENSE);
  common->b[0] = weights->shared_gate;
  common->b[1] = weights->shared_up;
  common->c = rows_at(workspace_at(base, PURR__WS_SHARED_A), shared, PURR__ROWS_DENSE);
  common->n = (int32_t)shared;
  common->k = routed->k;
  common->swiglu_limit = routed->swiglu_limit;
  if (purr__stages_have(plan->stages, PURR__STAGE_ACTIVATION)) {
    routed->saved[0] = rows_at(workspace_at(base, PURR__WS_RING_GATE), inner, PURR__ROWS_DENSE);
    routed->saved[1] = rows_at(workspace_at(base, PURR__WS_RING_UP), inner, PURR__ROWS_DENSE);
    routed->num_saved_rows = plan->max_rows;
  } else if (call->saved != NULL) {
    routed->saved[0] = rows_at(purr__saved_at(call->saved, plan, PURR__SAVED_GATE), inner, PURR__ROWS_DENSE);
    routed->saved[1] = rows_at(purr__saved_at(call->saved, plan, PURR__SAVED_UP), inner, PURR__ROWS_DENSE);
    routed->num_saved_rows = plan->kept_rows;
    common->saved[0] = rows_at(purr__saved_at(call->saved, plan, PURR__SAVED_SHARED_GATE), shared, PURR__ROWS_DENSE);
    common->saved[1] = rows_at(purr__saved_at(call->saved, plan, PURR__SAVED_SHARED_UP), shared, PURR__ROWS_DENSE);
    common->num_saved_rows = base->num_tokens;
  }
  return params;
}

static purr__gemm_params_t down_params(const purr__forward_call_t *call, const purr__turn_t *turn,
                                       const purr__staged_weights_t *weights, const purr__table_t *table) {
  const purr__call_t *base = &call->base;
  const purr_plan_t *plan = base->plan;
  const int64_t hidden = plan->layer.hidden_size, inner = plan->layer.intermediate_size;
  const int64_t shared = plan->layer.shared_intermediate_size;
  purr__gemm_params_t params = {
      .num_problems = shared > 0 ? 2 : 1, .status = purr__staged_status(plan, table), .turn = *turn};
  purr__gemm_t *routed = &params.problem[0], *common = &params.problem[1];
  *routed = routed_problem(plan, table);
  routed->a = rows_at(workspace_at(base, PURR__WS_RING_A), inner, PURR__ROWS_DENSE);
  routed->b[0] = weights->down;
  const purr__staged_results_t results = purr__staged_results_of(call);
  routed->c = results.rows;
  routed->slot_weights = results.slot_weights;
  routed->slot_weights_stride = results.slot_weights_stride;
  routed->n = (int32_t)hidden;
  routed->k = (int32_t)inner;
  *common = (purr__gemm_t){.num_rows = base->num_tokens, .num_experts = 1, .top_k = 1};
  common->a = rows_at(workspace_at(base, PURR__WS_SHARED_A), shared, PURR__ROWS_DENSE);
  common->b[0] = weights->shared_down;
  common->c = rows_at(workspace_at(base, PURR__WS_SHARED_OUT), hidden, PURR__ROWS_DENSE);
  common->n = (int32_t)hidden;
  common->k = (int32_t)shared;
  return params;
}

/* Launches the kernel that loads through the copy engine where there is one, else the other. `maps` are those of the
 * weights; a's are made here for down, where it lies in the workspace. */
static purr_status_t launch_gemm(const purr__call_t *call, const purr__kernel_t *plain, const purr__kernel_t *tma,
                                 const purr__gemm_params_t *params, const purr__gemm_maps_t *const maps[2], bool maps_a,
                                 purr_error_t *err) {
  const purr_plan_t *plan = call->plan;
  purr__launch_t launch = {.grid = {(uint32_t)plan->device->num_sms, 1, 1}, .stream = call->stream};
  if (tma != NULL) launch.grid[0] = (uint32_t)purr__max(2, launch.grid[0] & ~1u); /* its blocks come in pairs */
  if (tma == NULL) return purr__kernel_launch(plain, &launch, params, err);
  purr__gemm_tma_params_t own = {.gemm = *params};
  for (int p = 0; p < params->num_problems; p++) {
    const purr__gemm_t *gemm = &params->problem[p];
    own.maps[p] = *maps[p];
    const int64_t rows = p == 0 ? plan->max_rows : call->num_tokens;
    if (!maps_a || rows == 0) continue;
    purr_status_t status = purr__staged_encode_map(plan->device, &own.maps[p].a, gemm->a.data, gemm->k, rows, 0,
                                                   gemm->a.row_stride, 0, PURR__MAP_ROWS_A, err);
    if (status != PURR_STATUS_OK) return status;
  }
  return purr__kernel_launch(tma, &launch, &own, err);
}

/* ---- the sum ---- */

int64_t purr__staged_sum_blocks(const purr__call_t *call) {
  const purr_plan_t *plan = call->plan;
  return purr__slot_sum_blocks(call->num_tokens, plan->layer.hidden_size, plan->device->num_sms,
                               !purr__plan_sums_in_down(plan));
}

static purr__slot_sum_params_t sum_params(const purr__forward_call_t *call, const purr__turn_t *turn,
                                          const purr__staged_weights_t *weights, const purr__table_t *table) {
  const purr__call_t *base = &call->base;
  const purr_plan_t *plan = base->plan;
  const int64_t hidden = plan->layer.hidden_size;
  return (purr__slot_sum_params_t){
      .ids = purr__staged_ids(&call->topk_ids, base->num_tokens),
      .topk_weights = (const float *)call->topk_weights.data,
      .weights_row_stride = call->topk_weights.row_stride,
      .weights_column_stride = call->topk_weights.column_stride,
      .slots = purr__plan_sums_in_down(plan)
                   ? NULL
                   : purr__symmetric_at(base->workspace, plan, base->workspace->group->rank, PURR__SYM_SLOTS),
      .slots_row_stride = hidden,
      .shared = plan->layer.shared_intermediate_size > 0 ? workspace_at(base, PURR__WS_SHARED_OUT) : NULL,
      .shared_row_stride = hidden,
      .shared_gate = weights->shared_expert_gate,
      .x = call->x.data,
      .x_row_stride = call->x.row_stride,
      .out = call->output.data,
      .out_row_stride = call->output.row_stride,
      .hidden = (int32_t)hidden,
      .top_k = (int32_t)plan->layer.top_k,
      .status = purr__staged_status(plan, table),
      .expert_count = table->expert_count,
      .num_experts = plan->num_local_experts,
      .turn = purr__staged_turn_at(turn, PURR__TURN_LAST)};
}

purr_status_t purr__staged_sum(const purr__forward_call_t *call, const purr__turn_t *turn,
                               const purr__staged_weights_t *weights, const purr__table_t *table, purr_error_t *err) {
  const purr__call_t *base = &call->base;
  purr__slot_sum_params_t params = sum_params(call, turn, weights, table);
  const purr__launch_t launch = {.grid = {(uint32_t)purr__staged_sum_blocks(base), 1, 1}, .stream = base->stream};
  if (purr__stages_have(base->plan->stages, PURR__STAGE_COMBINE)) {
    purr_status_t status = purr__staged_stage_combine(call, &params, err);
    if (status != PURR_STATUS_OK) return status;
    params.hidden = 0; /* nothing is left but to tell the result and to end the turn */
  }
  return purr__kernel_launch(base->plan->kernels.slot_sum, &launch, &params, err);
}

/* ---- the calls ---- */

purr__table_t purr__staged_table_of(const purr__forward_call_t *call) {
  const purr_plan_t *plan = call->base.plan;
  if (call->schedule != NULL) return purr__table_at(plan, call->schedule->table_memory);
  return purr__table_at(plan, call->saved != NULL ? purr__saved_at(call->saved, plan, PURR__SAVED_SCHEDULE)
                                                  : workspace_at(&call->base, PURR__WS_SCHEDULE));
}

/* The timeline of the staged backend is its launches. The shared expert's tiles are part of the routed ones'. */
static purr_status_t launched(const purr__forward_call_t *call, int kind, purr_error_t *err) {
  return purr__trace_launched(call->trace, kind, call->base.stream, err);
}

purr_status_t purr__staged_keep_schedule(const purr__forward_call_t *call, purr_error_t *err) {
  const purr_plan_t *plan = call->base.plan;
  if (call->schedule == NULL || call->saved == NULL) return PURR_STATUS_OK;
  return purr__device_copy(plan->device, purr__saved_at(call->saved, plan, PURR__SAVED_SCHEDULE),
                           call->schedule->table_memory, plan->table_bytes, call->base.stream, err);
}

static purr_status_t enqueue_forward(const purr__forward_call_t *call, purr_error_t *err) {
  const purr__call_t *base = &call->base;
  const purr_plan_t *plan = base->plan;
  const purr__staged_weights_t *weights = call->prepared_weights;
  const purr__table_t table = purr__staged_table_of(call);
  const bool has_peers = plan->layer.num_ranks > 1;
  purr__device_status_t *found = purr__staged_status(plan, &table);
  const bool begins_with_exchange = has_peers || call->schedule != NULL;
  const purr__turn_t turn =
      purr__staged_turn(base, begins_with_exchange ? purr__staged_exchange_blocks(base) : purr__staged_num_chunks(base),
                        purr__staged_sum_blocks(base));
  purr_status_t status = purr__trace_launches_start(call->trace, base->stream, err);
  if (status == PURR_STATUS_OK && begins_with_exchange)
    status = purr__staged_exchange(base, &turn, &call->topk_ids, &call->x, err);
  if (status == PURR_STATUS_OK && begins_with_exchange) status = launched(call, PURR__TRACE_EXCHANGE, err);
  if (status == PURR_STATUS_OK && has_peers)
    status = purr__staged_barrier(base, &turn, 0, call->schedule != NULL ? found : NULL, err);
  if (status == PURR_STATUS_OK && has_peers) status = launched(call, PURR__TRACE_WAIT_PEER, err);
  if (status == PURR_STATUS_OK && call->schedule == NULL)
    status = purr__staged_build_table(base, &turn, true, false, &call->topk_ids, &table, NULL, err);
  else if (status == PURR_STATUS_OK)
    status = purr__staged_keep_schedule(call, err);
  if (status == PURR_STATUS_OK) status = launched(call, PURR__TRACE_SCHEDULE, err);
  if (status != PURR_STATUS_OK) return purr__staged_end_turn(base, status);
  const purr__gemm_params_t gate_up = gate_up_params(call, &turn, weights, &table);
  const purr__gemm_params_t down = down_params(call, &turn, weights, &table);
  const bool has_stage_gemm = purr__stages_have(plan->stages, PURR__STAGE_GROUPED_GEMM);
  if (!has_stage_gemm)
    status = launch_gemm(base, plan->kernels.gate_up, plan->kernels.gate_up_tma, &gate_up,
                         (const purr__gemm_maps_t *const[]){&weights->gate_up_maps, &weights->shared_gate_up_maps},
                         false, err);
  if (status == PURR_STATUS_OK && purr__stages_have(plan->stages, PURR__STAGE_ACTIVATION))
    status = purr__staged_stage_activation(call, &gate_up, &table, err);
  if (status == PURR_STATUS_OK) status = launched(call, PURR__TRACE_GATE_UP, err);
  if (status == PURR_STATUS_OK && has_stage_gemm)
    status = purr__staged_stage_gemm(call, &down, &down.problem[0].b[0], &down.problem[0].c, err);
  else if (status == PURR_STATUS_OK)
    status =
        launch_gemm(base, plan->kernels.down, plan->kernels.down_tma, &down,
                    (const purr__gemm_maps_t *const[]){&weights->down_maps, &weights->shared_down_maps}, true, err);
  if (status == PURR_STATUS_OK) status = launched(call, PURR__TRACE_DOWN, err);
  if (status == PURR_STATUS_OK && has_peers) status = purr__staged_barrier(base, &turn, 0, found, err);
  if (status == PURR_STATUS_OK && has_peers) status = launched(call, PURR__TRACE_WAIT_PEER, err);
  if (status == PURR_STATUS_OK) status = purr__staged_sum(call, &turn, weights, &table, err);
  if (status == PURR_STATUS_OK) status = launched(call, PURR__TRACE_SLOT_SUM, err);
  if (status != PURR_STATUS_OK) return purr__staged_end_turn(base, status);
  return purr__result_mirrored(base->result, base->stream, err);
}

/* The device is entered, and the caller's stream and tensors belong to it. */
static purr_status_t check_places(const purr__forward_call_t *call, purr_error_t *err) {
  purr__device_t *device = call->base.plan->device;
  const struct {
    const purr__view_t *view;
    const char *name;
  } tensors[] = {
      {&call->x, "x"}, {&call->topk_ids, "topk_ids"}, {&call->topk_weights, "topk_weights"}, {&call->output, "output"}};
  purr_status_t status = purr__staged_check_stream(&call->base, err);
  for (int i = 0; i < 4 && status == PURR_STATUS_OK && call->base.num_tokens > 0; i++)
    status = purr__device_check_pointer(device, tensors[i].view->data, tensors[i].name, err);
  return status;
}

purr_status_t purr__staged_run_forward(const purr__forward_call_t *call,
                                       purr_status_t (*enqueue)(const purr__forward_call_t *call, purr_error_t *err),
                                       purr_error_t *err) {
  purr__device_t *device = call->base.plan->device;
  if (call->saved != NULL && purr__stages_are_in_forward(call->base.plan))
    return purr__fail(err, PURR_STATUS_UNSUPPORTED,
                      "layer '%s' has kernels of Triton's, of which no backward is known: nothing can be saved for one",
                      call->base.plan->name);
  purr_status_t status = purr__device_enter(device, err);
  if (status != PURR_STATUS_OK) return status;
  status = check_places(call, err);
  if (status == PURR_STATUS_OK) status = purr__staged_start_call(&call->base, err);
  if (status == PURR_STATUS_OK && call->saved != NULL) call->saved->filled = false;
  if (status == PURR_STATUS_OK)
    status = purr__result_mirror(call->base.result, device, call->base.plan->num_local_experts,
                                 call->base.plan->layer.num_experts, call->base.workspace->group->rank,
                                 call->base.stream, err);
  if (status == PURR_STATUS_OK) status = enqueue(call, err);
  purr__device_leave(device);
  if (status == PURR_STATUS_OK && call->saved != NULL) {
    call->saved->plan_hash = call->base.plan->hash;
    call->saved->num_tokens = call->base.num_tokens;
    call->saved->filled = true;
  }
  return status;
}

purr_status_t purr__staged_forward(const purr__forward_call_t *call, purr_error_t *err) {
  return purr__staged_run_forward(call, enqueue_forward, err);
}

static purr_status_t enqueue_schedule(const purr__schedule_call_t *call, const purr__table_t *table,
                                      const purr__unit_order_t *order, purr_error_t *err) {
  const purr__call_t *base = &call->base;
  const bool has_peers = base->plan->layer.num_ranks > 1;
  const int32_t chunks = purr__staged_num_chunks(base);
  const purr__turn_t turn =
      purr__staged_turn(base, has_peers ? purr__staged_exchange_blocks(base) : chunks, has_peers ? 1 : chunks);
  purr_status_t status = PURR_STATUS_OK;
  if (has_peers) status = purr__staged_exchange(base, &turn, &call->topk_ids, NULL, err);
  if (status == PURR_STATUS_OK && has_peers) status = purr__staged_barrier(base, &turn, 0, NULL, err);
  if (status == PURR_STATUS_OK)
    status = purr__staged_build_table(base, &turn, false, false, &call->topk_ids, table, order, err);
  /* The next call overwrites the ids that another rank may still read. */
  if (status == PURR_STATUS_OK && has_peers)
    status = purr__staged_barrier(base, &turn, PURR__TURN_LAST, purr__staged_status(base->plan, table), err);
  return purr__staged_end_turn(base, status);
}

purr_status_t purr__staged_run_schedule(const purr__schedule_call_t *call, const purr__unit_order_t *order,
                                        purr_error_t *err) {
  purr__device_t *device = call->base.plan->device;
  purr_status_t status = purr__device_enter(device, err);
  if (status != PURR_STATUS_OK) return status;
  const purr__table_t table = purr__table_at(call->base.plan, call->schedule->table_memory);
  status = purr__staged_check_stream(&call->base, err);
  if (status == PURR_STATUS_OK && call->base.num_tokens > 0)
    status = purr__device_check_pointer(device, call->topk_ids.data, "topk_ids", err);
  if (status == PURR_STATUS_OK) status = purr__staged_start_call(&call->base, err);
  if (status == PURR_STATUS_OK) status = enqueue_schedule(call, &table, order, err);
  purr__device_leave(device);
  return status;
}

purr_status_t purr__staged_build_schedule(const purr__schedule_call_t *call, purr_error_t *err) {
  return purr__staged_run_schedule(call, NULL, err);
}

purr_status_t purr__staged_backward(const purr__backward_call_t *call, purr_error_t *err) {
  return purr__fail(err, PURR_STATUS_UNSUPPORTED,
                    "layer '%s' is planned for the %s backend, which runs forward alone; plan it with backend "
                    "'host' for backward",
                    call->base.plan->name, purr__backend_name(call->base.plan->backend));
}

const purr__backend_t purr__staged_backend = {.name = "staged",
                                              .build_schedule = purr__staged_build_schedule,
                                              .forward = purr__staged_forward,
                                              .backward = purr__staged_backward,
                                              .prepare_weights = purr__staged_prepare_weights,
                                              .release_weights = purr__staged_release_weights,
                                              .prepare_workspace = purr__staged_prepare_workspace,
                                              .is_asynchronous = true,
                                              .traces = PURR__TRACES_LAUNCHES};
