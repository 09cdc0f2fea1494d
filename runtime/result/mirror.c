/* The outcome of GPU calls, as the device writes it. */
#include "result/mirror.h"

purr_status_t purr__fail_bad_route(purr_error_t *err, int rank, int64_t token, int64_t slot, int64_t expert,
                                   int64_t num_experts) {
  return purr__fail_rank(
      err, PURR_STATUS_BAD_ROUTE, rank,
      "rank %d, token %lld, slot %lld has expert id %lld; allowed are 0 to %lld, and -1 for a dropped "
      "slot",
      rank, (long long)token, (long long)slot, (long long)expert, (long long)num_experts - 1);
}

purr_status_t purr__fail_found(purr_error_t *err, const purr__device_status_t *found, int64_t num_experts, int rank) {
  switch (found->status) {
    case PURR_STATUS_OK:
      return PURR_STATUS_OK;
    case PURR_STATUS_BAD_ROUTE:
      return purr__fail_bad_route(err, found->rank, found->token, found->slot, found->expert, num_experts);
    case PURR_STATUS_PEER_FAILED:
      if (found->rank == rank)
        return purr__fail_rank(err, PURR_STATUS_PEER_FAILED, rank,
                               "the others gave up waiting for this rank, %d, which came later than the group's "
                               "timeout allows; the group is broken, make a new one",
                               rank);
      return purr__fail_rank(err, PURR_STATUS_PEER_FAILED, found->rank,
                             "rank %d did not come within the group's timeout, or left the group; the group is broken, "
                             "make a new one",
                             found->rank);
    case PURR_STATUS_PEER_MISMATCH:
      return purr__fail_rank(err, PURR_STATUS_PEER_MISMATCH, found->rank,
                             "rank %d made another call or brought another layer; all ranks make the same calls in the "
                             "same order",
                             found->rank);
    case PURR_STATUS_BUSY:
      return purr__fail(err, PURR_STATUS_BUSY,
                        "the workspace was in use by a call on another stream; make the streams wait for each other, "
                        "or use one workspace for each call in flight");
    case PURR_STATUS_INTERNAL: /* purr__device_status_t says what the numbers are */
      return purr__fail(err, PURR_STATUS_INTERNAL,
                        "a block of the megakernel waited too long (site %d, word %lld: expected %lld, saw %lld); the "
                        "output is not written, and this is a fault of the library",
                        found->rank, (long long)found->token, (long long)found->slot, (long long)found->expert);
    default:
      return purr__fail(err, PURR_STATUS_INTERNAL, "the device reported status %d", found->status);
  }
}

void purr__result_drop_mirror(purr_result_t *result) {
  if (result->device == NULL) return;
  if (purr__device_enter(result->device, NULL) == PURR_STATUS_OK) {
    const purr__cuda_t *cuda = &result->device->driver->cuda;
    const int mode = purr__device_allow_capture(result->device);
    if (result->begun != NULL) cuda->cuEventDestroy(result->begun);
    if (result->done != NULL) cuda->cuEventDestroy(result->done);
    purr__device_restore_capture(result->device, mode);
    purr__device_leave(result->device);
  }
  purr__device_release_pinned(result->device, result->mirror);
  result->device = NULL;
  result->mirror = NULL;
  result->begun = result->done = NULL;
}

/* A mirror and events of this device. It has room for any layer: a captured call may still write to it when a larger
 * layer's comes. */
static purr_status_t make_room(purr_result_t *result, purr__device_t *device, purr_error_t *err) {
  const uint64_t bytes = sizeof(purr__outcome_t) + PURR__MAX_EXPERTS * sizeof(int32_t);
  if (result->device == device) return PURR_STATUS_OK;
  purr__result_drop_mirror(result);
  void *memory = NULL;
  purr_status_t status = purr__device_allocate_pinned(device, bytes, &memory, err);
  if (status != PURR_STATUS_OK) return status;
  result->device = device;
  result->mirror = memory;
  const int mode = purr__device_allow_capture(device);
  status = PURR__CUDA(device, err, cuEventCreate, (&result->begun, 0), "creating an event");
  if (status == PURR_STATUS_OK)
    status = PURR__CUDA(device, err, cuEventCreate, (&result->done, 0), "creating an event");
  purr__device_restore_capture(device, mode);
  if (status != PURR_STATUS_OK) purr__result_drop_mirror(result);
  return status;
}

purr_status_t purr__result_mirror(purr_result_t *result, purr__device_t *device, int64_t num_experts,
                                  int64_t num_all_experts, int rank, CUstream stream, purr_error_t *err) {
  if (result == NULL) return PURR_STATUS_OK;
  pthread_mutex_lock(&result->mutex);
  purr_status_t status = make_room(result, device, err);
  if (status == PURR_STATUS_OK) {
    int capture = 0;
    result->has_events = device->driver->cuda.cuStreamIsCapturing(stream, &capture) == CUDA_SUCCESS && capture == 0;
    result->mirror->status = PURR_STATUS_NOT_READY;
    result->mirror->reserved = 0;
    result->num_mirrored_experts = num_experts;
    result->num_all_experts = num_all_experts;
    result->rank = rank;
    result->is_mirrored = true;
    if (result->has_events)
      status = PURR__CUDA(device, err, cuEventRecord, (result->begun, stream), "recording an event");
  }
  pthread_mutex_unlock(&result->mutex);
  return status;
}

purr_status_t purr__result_mirrored(purr_result_t *result, CUstream stream, purr_error_t *err) {
  if (result == NULL || !result->has_events) return PURR_STATUS_OK;
  return PURR__CUDA(result->device, err, cuEventRecord, (result->done, stream), "recording an event");
}

/* A fault shows in the event; the sentence is the driver's. */
static void read_fault(purr_result_t *result) {
  purr_error_t err = PURR_ERROR_INIT;
  if (!result->has_events || purr__device_enter(result->device, &err) != PURR_STATUS_OK) return;
  const int mode = purr__device_allow_capture(result->device);
  const CUresult state = result->device->driver->cuda.cuEventQuery(result->done);
  purr__device_restore_capture(result->device, mode);
  if (state != CUDA_SUCCESS && state != CUDA_ERROR_NOT_READY) {
    result->info.status = purr__device_check(result->device, state, "cuEventQuery", &err, "the call");
    memcpy(result->message, err.message, sizeof result->message);
  }
  purr__device_leave(result->device);
}

static void read_time(purr_result_t *result) {
  float milliseconds = 0.0f;
  if (!result->has_events || purr__device_enter(result->device, NULL) != PURR_STATUS_OK) return;
  const purr__cuda_t *cuda = &result->device->driver->cuda;
  const int mode = purr__device_allow_capture(result->device);
  if (cuda->cuEventElapsedTime(&milliseconds, result->begun, result->done) == CUDA_SUCCESS)
    result->info.total_ns = (uint64_t)((double)milliseconds * 1e6);
  purr__device_restore_capture(result->device, mode);
  purr__device_leave(result->device);
}

/* An outcome is counted when it is read first: the device cannot reach the context's counters. `reserved`, which no
 * kernel looks at, marks that it was. The call's first kernel takes the mark away again, so each replay counts too, as
 * far as somebody reads its result. Both words change at once, or a replay that begins meanwhile would lose its own. */
static bool is_read_first(purr__outcome_t *mirror, int32_t status) {
  static_assert(offsetof(purr__outcome_t, reserved) == offsetof(purr__outcome_t, status) + 4, "one word of 8 bytes");
  int32_t unmarked[2] = {status, 0}, marked[2] = {status, 1};
  uint64_t before, after;
  memcpy(&before, unmarked, sizeof before);
  memcpy(&after, marked, sizeof after);
  return __atomic_compare_exchange_n((uint64_t *)(void *)&mirror->status, &before, after, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED);
}

void purr__result_read_mirror(purr_result_t *result) {
  if (!result->is_mirrored) return;
  purr__outcome_t *mirror = result->mirror;
  const int32_t status = *(const volatile int32_t *)&mirror->status;
  if (status == PURR_STATUS_NOT_READY) {
    read_fault(result);
    return;
  }
  atomic_thread_fence(memory_order_acquire);
  const purr__device_status_t *found = &mirror->found;
  result->info.status = status;
  result->info.rank = found->status == PURR_STATUS_INTERNAL ? -1 : found->rank; /* which holds the site then */
  result->info.token = found->token;
  result->info.slot = found->slot;
  result->info.expert = found->expert;
  result->info.num_rows = found->num_rows;
  atomic_store_explicit(&result->num_rows_done, found->num_rows, memory_order_relaxed);
  if (is_read_first(mirror, status)) {
    if (status == PURR_STATUS_OK)
      purr__count(result->object.context, PURR__COUNT_ROWS, (uint64_t)found->num_rows);
    else if (status == PURR_STATUS_BAD_ROUTE)
      purr__count(result->object.context, PURR__COUNT_BAD_ROUTES, 1);
  }
  purr_error_t err = PURR_ERROR_INIT;
  if (purr__fail_found(&err, found, result->num_all_experts, result->rank) != PURR_STATUS_OK)
    memcpy(result->message, err.message, sizeof result->message);
  result->num_experts = status == PURR_STATUS_OK ? result->num_mirrored_experts : 0;
  memcpy(result->tokens_per_expert, PURR__OUTCOME_COUNTS(mirror), (size_t)result->num_experts * sizeof(int32_t));
  read_time(result);
}
