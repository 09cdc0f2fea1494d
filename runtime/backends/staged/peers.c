/* The other ranks of a group, as the kernels see them: where each one's symmetric memory is, and where its ids are.
 * Made once for a workspace; layers of one group have these at the same offsets. */
#include "backends/staged/staged.h"

int purr__staged_num_on_device(const purr_workspace_t *workspace) {
  return workspace->group->ops->num_on_device(workspace->symmetric, workspace->group->rank);
}

/* Streams that share a hardware queue wait for each other, and a barrier would wait for ever: one queue for each rank,
 * and two for the copies beside them. */
static purr_status_t check_queues(const purr_workspace_t *workspace, purr_error_t *err) {
  const int num_ranks = purr__staged_num_on_device(workspace),
            num_queues = purr__num_device_queues(workspace->object.context);
  if (num_ranks == 1 || num_ranks + 2 <= num_queues) return PURR_STATUS_OK;
  return purr__fail(err, PURR_STATUS_UNSUPPORTED,
                    "%d ranks share a device, for which this process has %d hardware queues; they need %d: set "
                    "CUDA_DEVICE_MAX_CONNECTIONS (at most 32) before the process starts",
                    num_ranks, num_queues, num_ranks + 2);
}

/* A rank that waits for the others holds an SM, or as many as purr__staged_schedule_can_meet lets it, which no block
 * fits on that wants all of its shared memory; where blocks come in pairs, neither of two. The one that all wait for
 * must find room. */
static purr_status_t check_sms(const purr_workspace_t *workspace, purr_error_t *err) {
  const int num_ranks = purr__staged_num_on_device(workspace), num_sms = workspace->plan->device->num_sms;
  if (num_ranks == 1 || 2 * num_ranks <= num_sms) return PURR_STATUS_OK;
  return purr__fail(err, PURR_STATUS_UNSUPPORTED,
                    "%d ranks share a device that has %d SMs; they need %d, two each, or one could find no room while "
                    "the others wait for it",
                    num_ranks, num_sms, 2 * num_ranks);
}

purr_status_t purr__staged_prepare_workspace(purr_workspace_t *workspace, purr_error_t *err) {
  const purr_plan_t *plan = workspace->plan;
  const uint64_t num_ranks = (uint64_t)workspace->group->num_ranks;
  const uint64_t bytes = num_ranks * (sizeof(purr__ids_t) + sizeof(void *));
  if (num_ranks == 1) return PURR_STATUS_OK;
  purr_status_t status = check_queues(workspace, err);
  if (status == PURR_STATUS_OK) status = check_sms(workspace, err);
  if (status != PURR_STATUS_OK) return status;
  purr__ids_t *sources = purr__allocate_zeroed(plan->object.context, bytes);
  if (sources == NULL) return purr__fail_memory(err, "the list of ranks", bytes);
  char **ranks = (char **)(sources + num_ranks);
  for (uint64_t r = 0; r < num_ranks; r++) {
    ranks[r] = workspace->group->ops->address(workspace->symmetric, (int)r);
    char *header = ranks[r] + plan->sym[PURR__SYM_HEADER].offset;
    sources[r] = (purr__ids_t){.data = ranks[r] + plan->sym[PURR__SYM_IDS].offset,
                               .num_tokens_at = (int64_t *)(header + offsetof(purr__device_rank_header_t, num_tokens)),
                               .tag_at = (uint64_t *)(header + offsetof(purr__device_rank_header_t, tag)),
                               .column_stride = 1};
  }
  status = purr__device_allocate(plan->device, bytes, "the list of ranks", &workspace->peers, err);
  workspace->peers_bytes = bytes;
  if (status == PURR_STATUS_OK) status = purr__device_copy(plan->device, workspace->peers, sources, bytes, NULL, err);
  if (status == PURR_STATUS_OK) status = purr__device_synchronize(plan->device, NULL, err);
  purr__release(plan->object.context, sources);
  return status;
}

const purr__ids_t *purr__staged_sources(const purr_workspace_t *workspace) { return workspace->peers; }

void *const *purr__staged_ranks(const purr_workspace_t *workspace) {
  if (workspace->peers == NULL) return NULL;
  return (void *const *)((const purr__ids_t *)workspace->peers + workspace->group->num_ranks);
}

purr__device_rank_header_t *purr__staged_header(const purr__call_t *call) {
  return purr__symmetric_at(call->workspace, call->plan, call->workspace->group->rank, PURR__SYM_HEADER);
}

uint64_t purr__staged_tag(const purr__call_t *call, bool has_tokens) { return call->plan->hash + has_tokens; }

int64_t purr__staged_exchange_blocks(const purr__call_t *call) {
  if (call->plan->layer.num_ranks == 1) return 1;
  return purr__max(1, purr__min(purr__min(call->num_tokens, 4 * call->plan->device->num_sms), PURR__TURN_MAX_FIRST));
}

purr_status_t purr__staged_exchange(const purr__call_t *call, const purr__turn_t *turn, const purr__view_t *topk_ids,
                                    const purr__view_t *x, purr_error_t *err) {
  const purr_plan_t *plan = call->plan;
  const int rank = call->workspace->group->rank;
  const int64_t num_tokens = plan->layer.num_ranks > 1 ? call->num_tokens : 0;
  const purr__exchange_params_t params = {.ids = purr__staged_ids(topk_ids, num_tokens),
                                          .x = x != NULL ? x->data : NULL,
                                          .x_row_stride = x != NULL ? x->row_stride : 0,
                                          .tokens = purr__symmetric_at(call->workspace, plan, rank, PURR__SYM_TOKENS),
                                          .ids_out = purr__symmetric_at(call->workspace, plan, rank, PURR__SYM_IDS),
                                          .header = purr__staged_header(call),
                                          .tag = purr__staged_tag(call, x != NULL),
                                          .hidden = x != NULL ? (int32_t)plan->layer.hidden_size : 0,
                                          .top_k = (int32_t)plan->layer.top_k,
                                          .turn = purr__staged_turn_at(turn, PURR__TURN_FIRST)};
  const purr__launch_t launch = {.grid = {(uint32_t)purr__staged_exchange_blocks(call), 1, 1}, .stream = call->stream};
  return purr__kernel_launch(plan->kernels.exchange, &launch, &params, err);
}

purr__barrier_params_t purr__staged_barrier_params(const purr__call_t *call, const purr__turn_t *turn, int32_t place,
                                                   purr__device_status_t *found) {
  const purr_plan_t *plan = call->plan;
  purr_group_t *group = call->workspace->group;
  return (purr__barrier_params_t){.ranks = purr__staged_ranks(call->workspace),
                                  .words_offset = (int64_t)plan->sym[PURR__SYM_BARRIER].offset,
                                  .header = purr__staged_header(call),
                                  .status = found,
                                  .group_broken = group->ops->broken_word(group),
                                  .timeout_ns = group->timeout_ms * 1000000,
                                  .rank = group->rank,
                                  .num_ranks = group->num_ranks,
                                  .turn = purr__staged_turn_at(turn, place)};
}

purr_status_t purr__staged_barrier(const purr__call_t *call, const purr__turn_t *turn, int32_t place,
                                   purr__device_status_t *found, purr_error_t *err) {
  const purr__barrier_params_t params = purr__staged_barrier_params(call, turn, place, found);
  const purr__launch_t launch = {.grid = {1, 1, 1}, .stream = call->stream};
  return purr__kernel_launch(call->plan->kernels.barrier, &launch, &params, err);
}

purr_status_t purr__staged_check_stream(const purr__call_t *call, purr_error_t *err) {
  const purr_workspace_t *workspace = call->workspace;
  if ((uintptr_t)call->stream <= CU_STREAM_LEGACY && purr__staged_num_on_device(workspace) > 1)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "rank %d shares its device with another rank and was given the default stream; such ranks wait "
                      "for each other, so each needs a stream of its own (purr_stream_create)",
                      workspace->group->rank);
  if (workspace->group->num_ranks > 1) {
    purr_status_t status = workspace->group->ops->query_status(workspace->group, err);
    if (status != PURR_STATUS_OK) return status;
  }
  return purr__device_check_stream(call->plan->device, call->stream, err);
}

purr_status_t purr__staged_start_call(const purr__call_t *call, purr_error_t *err) {
  enum { NUM_BARRIERS = 2 }; /* of a forward, and of the building of a schedule */
  purr_group_t *group = call->workspace->group;
  if (group->num_ranks == 1) return PURR_STATUS_OK;
  return group->ops->start_call(group, call->workspace->symmetric, call->stream, NUM_BARRIERS, err);
}
