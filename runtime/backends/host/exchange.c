/* How the ranks of a host group meet. At R = 1 the same code runs with one rank and copies no tokens. */
#include "backends/host/pass.h"

/* What each rank tells the others at the first meeting. */
typedef struct rank_header {
  uint64_t plan_hash;
  uint64_t epoch; /* of the meeting that this is for: a header of another one is not the answer to this call */
  int64_t num_tokens;
  int64_t kind;
  int64_t bad_token, bad_slot, bad_expert; /* its first id out of range; bad_token = -1: none */
} rank_header_t;

void purr__pass_start(purr__pass_t *pass, const purr__call_t *call) {
  *pass = (purr__pass_t){.context = call->plan->object.context,
                         .plan = call->plan,
                         .workspace = call->workspace,
                         .group = call->workspace->group,
                         .result = call->result,
                         .num_tokens = call->num_tokens,
                         .clock_ns = purr__now_ns()};
}

void purr__pass_lap(purr__pass_t *pass, int phase) { purr__result_add_time(pass->result, phase, &pass->clock_ns); }

static void *symmetric(const purr__pass_t *pass, int rank, int region) {
  return purr__symmetric_at(pass->workspace, pass->plan, rank, region);
}

/* ---- filling this rank's part ---- */

/* Copies the ids as int32 and notes the first one out of range. An id that does not fit in int32 is out of range too.
 */
static void gather_ids(const purr__pass_t *pass, const purr__view_t *view, rank_header_t *header) {
  const int64_t top_k = pass->plan->layer.top_k, num_experts = pass->plan->layer.num_experts;
  int32_t *ids = symmetric(pass, pass->group->rank, PURR__SYM_IDS);
  for (int64_t t = 0; t < pass->num_tokens; t++)
    for (int64_t k = 0; k < top_k; k++) {
      const int64_t at = t * view->row_stride + k * view->column_stride;
      const int64_t id =
          view->dtype == PURR_DTYPE_INT64 ? ((const int64_t *)view->data)[at] : ((const int32_t *)view->data)[at];
      if ((id < -1 || id >= num_experts) && header->bad_token < 0) {
        header->bad_token = t;
        header->bad_slot = k;
        header->bad_expert = id;
      }
      ids[t * top_k + k] = id < -1 || id >= num_experts ? -1 : (int32_t)id;
    }
}

static void gather_hidden(const purr__pass_t *pass, const purr__view_t *view, int region) {
  const int64_t hidden = pass->plan->layer.hidden_size;
  purr__bf16_t *rows = symmetric(pass, pass->group->rank, region);
  for (int64_t t = 0; t < pass->num_tokens; t++)
    memcpy(rows + t * hidden, (const purr__bf16_t *)view->data + t * view->row_stride,
           (size_t)hidden * sizeof(purr__bf16_t));
}

static void gather_topk_weights(const purr__pass_t *pass, const purr__view_t *view) {
  const int64_t top_k = pass->plan->layer.top_k;
  float *weights = symmetric(pass, pass->group->rank, PURR__SYM_TOPK_WEIGHTS);
  for (int64_t t = 0; t < pass->num_tokens; t++)
    for (int64_t k = 0; k < top_k; k++)
      weights[t * top_k + k] = ((const float *)view->data)[t * view->row_stride + k * view->column_stride];
}

/* ---- holding the headers against each other ---- */

static const char *pass_name(int64_t kind) {
  static const char *const names[] = {"nothing", "purr_schedule_build", "purr_forward",
                                      "purr_forward with a built schedule", "purr_backward"};
  return kind >= 1 && kind <= 4 ? names[kind] : names[0];
}

static purr_status_t compare_headers(const purr__pass_t *pass, purr_error_t *err) {
  const rank_header_t *own = symmetric(pass, pass->group->rank, PURR__SYM_HEADER);
  const rank_header_t *first = symmetric(pass, 0, PURR__SYM_HEADER);
  for (int r = 0; r < pass->group->num_ranks; r++) {
    const rank_header_t *header = symmetric(pass, r, PURR__SYM_HEADER);
    if (header->epoch != own->epoch)
      return purr__fail_rank(err, PURR_STATUS_PEER_MISMATCH, r,
                             "rank %d made another call, or this one in another workspace; all ranks make the same "
                             "calls in the same order",
                             r);
  }
  for (int r = 0; r < pass->group->num_ranks; r++) {
    const rank_header_t *header = symmetric(pass, r, PURR__SYM_HEADER);
    if (header->plan_hash != first->plan_hash)
      return purr__fail_rank(err, PURR_STATUS_PEER_MISMATCH, r,
                             "rank %d brought another layer than rank 0 (plan hash %016llx, rank 0 %016llx)", r,
                             (unsigned long long)header->plan_hash, (unsigned long long)first->plan_hash);
    if (header->kind != first->kind)
      return purr__fail_rank(
          err, PURR_STATUS_PEER_MISMATCH, r,
          "rank %d called %s while rank 0 called %s; all ranks make the same calls in the same order", r,
          pass_name(header->kind), pass_name(first->kind));
  }
  for (int r = 0; r < pass->group->num_ranks; r++) {
    const rank_header_t *header = symmetric(pass, r, PURR__SYM_HEADER);
    if (header->bad_token < 0) continue;
    purr__result_set_bad_route(pass->result, r, header->bad_token, header->bad_slot, header->bad_expert);
    purr__count(pass->context, PURR__COUNT_BAD_ROUTES, 1);
    return purr__fail_bad_route(err, r, header->bad_token, header->bad_slot, header->bad_expert,
                                pass->plan->layer.num_experts);
  }
  return PURR_STATUS_OK;
}

purr_status_t purr__exchange_begin(purr__pass_t *pass, purr__pass_kind_t kind, const purr__view_t *topk_ids,
                                   purr_error_t *err) {
  uint64_t start_ns = purr__pass_clock(pass);
  rank_header_t *header = symmetric(pass, pass->group->rank, PURR__SYM_HEADER);
  *header = (rank_header_t){.plan_hash = pass->plan->hash,
                            .epoch = pass->group->num_meetings + 1,
                            .num_tokens = pass->num_tokens,
                            .kind = kind,
                            .bad_token = -1,
                            .bad_slot = -1};
  if (topk_ids != NULL) gather_ids(pass, topk_ids, header);
  if (pass->group->num_ranks > 1) {
    if (pass->x != NULL) gather_hidden(pass, pass->x, PURR__SYM_TOKENS);
    if (pass->d_output != NULL) gather_hidden(pass, pass->d_output, PURR__SYM_D_OUTPUT);
    if (pass->d_output != NULL) gather_topk_weights(pass, pass->topk_weights);
  }
  purr__pass_record(pass, pass->group->num_ranks > 1 ? PURR__TRACE_EXCHANGE : PURR__TRACE_SCHEDULE, start_ns);
  start_ns = purr__pass_clock(pass);
  purr_status_t status = pass->group->ops->barrier(pass->group, NULL, pass_name(kind), err);
  if (status != PURR_STATUS_OK) return status;
  if (pass->group->num_ranks > 1) purr__pass_record(pass, PURR__TRACE_WAIT_PEER, start_ns);
  status = compare_headers(pass, err);
  /* Nobody may start the next call, and overwrite its header, while another still reads this one. */
  if (status != PURR_STATUS_OK) pass->group->ops->barrier(pass->group, NULL, pass_name(kind), NULL);
  purr__pass_lap(pass, PURR_PHASE_EXCHANGE);
  return status;
}

void purr__exchange_build_table(purr__pass_t *pass) {
  const uint64_t start_ns = purr__pass_clock(pass);
  const int num_ranks = pass->group->num_ranks;
  const int32_t **ids = purr__workspace_at(pass->workspace, pass->plan, PURR__WS_RANKS);
  int64_t *num_tokens = (int64_t *)(ids + num_ranks);
  for (int r = 0; r < num_ranks; r++) {
    ids[r] = symmetric(pass, r, PURR__SYM_IDS);
    num_tokens[r] = ((const rank_header_t *)symmetric(pass, r, PURR__SYM_HEADER))->num_tokens;
  }
  purr__table_build(pass->plan, pass->group->rank, ids, num_tokens, &pass->table);
  purr__pass_record(pass, PURR__TRACE_SCHEDULE, start_ns);
  purr__pass_lap(pass, PURR_PHASE_SCHEDULE);
}

purr_status_t purr__exchange_end(purr__pass_t *pass, purr_error_t *err) {
  const uint64_t start_ns = purr__pass_clock(pass);
  purr_status_t status = pass->group->ops->barrier(pass->group, NULL, "end of a pass", err);
  if (pass->group->num_ranks > 1) purr__pass_record(pass, PURR__TRACE_WAIT_PEER, start_ns);
  purr__pass_lap(pass, PURR_PHASE_EXCHANGE);
  return status;
}

purr__source_t purr__source_of(const purr__pass_t *pass, int rank) {
  const int64_t hidden = pass->plan->layer.hidden_size, top_k = pass->plan->layer.top_k;
  purr__source_t source = {.slots = symmetric(pass, rank, PURR__SYM_SLOTS),
                           .d_topk_weights = symmetric(pass, rank, PURR__SYM_D_TOPK_WEIGHTS)};
  if (pass->group->num_ranks > 1) {
    source.x = symmetric(pass, rank, PURR__SYM_TOKENS);
    source.d_output = symmetric(pass, rank, PURR__SYM_D_OUTPUT);
    source.topk_weights = symmetric(pass, rank, PURR__SYM_TOPK_WEIGHTS);
    source.x_stride = source.d_output_stride = hidden;
    source.topk_weights_row_stride = top_k;
    source.topk_weights_column_stride = 1;
    return source;
  }
  source.x = (const purr__bf16_t *)pass->x->data;
  source.x_stride = pass->x->row_stride;
  source.topk_weights = (const float *)pass->topk_weights->data;
  source.topk_weights_row_stride = pass->topk_weights->row_stride;
  source.topk_weights_column_stride = pass->topk_weights->column_stride;
  if (pass->d_output != NULL) {
    source.d_output = (const purr__bf16_t *)pass->d_output->data;
    source.d_output_stride = pass->d_output->row_stride;
  }
  return source;
}

purr_status_t purr__host_build_schedule(const purr__schedule_call_t *call, purr_error_t *err) {
  purr__pass_t pass;
  purr__pass_start(&pass, &call->base);
  purr_status_t status = purr__exchange_begin(&pass, PURR__PASS_SCHEDULE, &call->topk_ids, err);
  if (status != PURR_STATUS_OK) return status;
  pass.table = purr__table_at(pass.plan, call->schedule->table_memory);
  purr__exchange_build_table(&pass);
  memcpy(call->schedule->ids, symmetric(&pass, pass.group->rank, PURR__SYM_IDS),
         (size_t)(pass.num_tokens * pass.plan->layer.top_k) * sizeof(int32_t));
  return purr__exchange_end(&pass, err);
}

const purr__backend_t purr__host_backend = {.name = "host",
                                            .build_schedule = purr__host_build_schedule,
                                            .forward = purr__host_forward,
                                            .backward = purr__host_backward,
                                            .traces = PURR__TRACES_THREADS};
