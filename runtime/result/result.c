#include "result/result.h"

static void result_free(void *object) {
  purr_result_t *result = object;
  purr__result_drop_mirror(result);
  pthread_mutex_destroy(&result->mutex);
}

static void clear(purr_result_t *result, int32_t status) {
  result->info = (purr_result_info_t){.status = status, .rank = -1, .token = -1, .slot = -1};
  result->message[0] = '\0';
  result->is_mirrored = false;
  result->num_experts = 0;
  atomic_store_explicit(&result->num_rows_done, 0, memory_order_relaxed);
}

purr_status_t purr_result_create(purr_context_t *context, purr_result_t **out_result, purr_error_t *err) {
  if (out_result == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_result is NULL");
  *out_result = NULL;
  purr_status_t status = purr__check(context, PURR__CONTEXT, err);
  if (status != PURR_STATUS_OK) return status;
  void *object;
  status = purr__object_create(context, PURR__RESULT, sizeof(purr_result_t), result_free, &object, err);
  if (status != PURR_STATUS_OK) return status;
  purr_result_t *result = object;
  pthread_mutex_init(&result->mutex, NULL);
  clear(result, PURR_STATUS_NOT_READY);
  *out_result = result;
  return PURR_STATUS_OK;
}

purr_status_t purr_result_query(purr_result_t *result, purr_result_info_t *out_info, purr_error_t *err) {
  purr_status_t status = purr__check(result, PURR__RESULT, err);
  if (status != PURR_STATUS_OK) return status;
  pthread_mutex_lock(&result->mutex);
  purr__result_read_mirror(result);
  purr_result_info_t own = result->info;
  own.num_rows_done = atomic_load_explicit(&result->num_rows_done, memory_order_relaxed);
  if (own.status != PURR_STATUS_OK && own.status != PURR_STATUS_NOT_READY)
    purr__fail_rank(err, own.status, own.rank, "%s", result->message);
  pthread_mutex_unlock(&result->mutex);
  return purr__write_struct(out_info, &own, sizeof own, "out_info", err);
}

purr_status_t purr_result_tokens_per_expert(purr_result_t *result, int64_t *out_counts, int64_t num_counts,
                                            purr_error_t *err) {
  purr_status_t status = purr__check(result, PURR__RESULT, err);
  if (status != PURR_STATUS_OK) return status;
  if (out_counts == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_counts is NULL");
  pthread_mutex_lock(&result->mutex);
  purr__result_read_mirror(result);
  if (result->info.status == PURR_STATUS_NOT_READY)
    status = purr__fail(err, PURR_STATUS_NOT_READY, "the call that fills this result has not finished");
  else if (result->num_experts == 0)
    status = purr__fail(err, PURR_STATUS_INVALID_STATE, "the call ended before its routing table was built");
  else if (num_counts != result->num_experts)
    status = purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "num_counts is %lld; this rank has %lld experts",
                        (long long)num_counts, (long long)result->num_experts);
  else
    for (int64_t e = 0; e < num_counts; e++) out_counts[e] = result->tokens_per_expert[e];
  pthread_mutex_unlock(&result->mutex);
  return status;
}

const char *purr_phase_name(int32_t phase) {
  static const char *const names[PURR_NUM_PHASES] = {"exchange", "schedule", "shared", "dispatch", "gate_up",
                                                     "down",     "dgrad",    "wgrad",  "combine",  "sum"};
  return phase >= 0 && phase < PURR_NUM_PHASES ? names[phase] : NULL;
}

void purr_result_destroy(purr_result_t *result) { purr__object_release(result); }

/* ---- written by the call ---- */

void purr__result_start(purr_result_t *result) {
  if (result == NULL) return;
  pthread_mutex_lock(&result->mutex);
  clear(result, PURR_STATUS_NOT_READY);
  pthread_mutex_unlock(&result->mutex);
}

void purr__result_set_rows(purr_result_t *result, const int32_t *expert_count, int64_t num_experts, int64_t num_rows) {
  if (result == NULL) return;
  pthread_mutex_lock(&result->mutex);
  result->info.num_rows = num_rows;
  result->num_experts = num_experts;
  memcpy(result->tokens_per_expert, expert_count, (size_t)num_experts * sizeof *expert_count);
  pthread_mutex_unlock(&result->mutex);
}

void purr__result_add_rows_done(purr_result_t *result, int64_t num_rows) {
  if (result != NULL) atomic_fetch_add_explicit(&result->num_rows_done, num_rows, memory_order_relaxed);
}

void purr__result_add_replayed(purr_result_t *result, int64_t num_rows) {
  if (result == NULL) return;
  pthread_mutex_lock(&result->mutex);
  result->info.num_replayed_rows += num_rows;
  pthread_mutex_unlock(&result->mutex);
}

void purr__result_add_time(purr_result_t *result, int phase, uint64_t *since_ns) {
  if (result == NULL) return;
  const uint64_t now = purr__now_ns();
  pthread_mutex_lock(&result->mutex);
  result->info.phase_ns[phase] += now - *since_ns;
  pthread_mutex_unlock(&result->mutex);
  *since_ns = now;
}

void purr__result_set_bad_route(purr_result_t *result, int rank, int64_t token, int64_t slot, int64_t expert) {
  if (result == NULL) return;
  pthread_mutex_lock(&result->mutex);
  result->info.rank = rank;
  result->info.token = token;
  result->info.slot = slot;
  result->info.expert = expert;
  pthread_mutex_unlock(&result->mutex);
}

void purr__result_finish(purr_result_t *result, purr_status_t status, const purr_error_t *err, uint64_t total_ns) {
  if (result == NULL) return;
  pthread_mutex_lock(&result->mutex);
  result->info.status = status;
  result->info.total_ns = total_ns;
  if (status != PURR_STATUS_OK) {
    if (result->info.rank < 0) result->info.rank = err->rank;
    memcpy(result->message, err->message, sizeof result->message);
  }
  pthread_mutex_unlock(&result->mutex);
}
