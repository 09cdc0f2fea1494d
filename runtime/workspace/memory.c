#include "workspace/memory.h"

#include "driver/driver.h"

purr_status_t purr__memory_allocate(const purr_plan_t *plan, uint64_t bytes, const char *what, void **out_memory,
                                    purr_error_t *err) {
  *out_memory = NULL;
  if (plan->device != NULL) return purr__device_allocate(plan->device, bytes, what, out_memory, err);
  *out_memory = purr__allocate(plan->object.context, bytes);
  return *out_memory != NULL ? PURR_STATUS_OK : purr__fail_memory(err, what, bytes);
}

void purr__memory_release(const purr_plan_t *plan, void *memory, uint64_t bytes) {
  if (plan->device != NULL)
    purr__device_release(plan->device, memory, bytes);
  else
    purr__release(plan->object.context, memory);
}

purr_status_t purr__memory_copy(const purr_plan_t *plan, void *to, const void *from, uint64_t bytes,
                                purr_error_t *err) {
  if (plan->device == NULL) {
    if (bytes > 0) memcpy(to, from, bytes);
    return PURR_STATUS_OK;
  }
  purr_status_t status = purr__device_copy(plan->device, to, from, bytes, NULL, err);
  return status == PURR_STATUS_OK ? purr__device_synchronize(plan->device, NULL, err) : status;
}

/* ---- public ---- */

purr_status_t purr_memory_allocate(const purr_plan_t *plan, uint64_t bytes, void **out_memory, purr_error_t *err) {
  if (out_memory == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_memory is NULL");
  *out_memory = NULL;
  purr_status_t status = purr__check(plan, PURR__PLAN, err);
  return status == PURR_STATUS_OK ? purr__memory_allocate(plan, bytes, "a buffer", out_memory, err) : status;
}

purr_status_t purr_memory_copy(const purr_plan_t *plan, void *to, const void *from, uint64_t bytes, purr_error_t *err) {
  purr_status_t status = purr__check(plan, PURR__PLAN, err);
  if (status != PURR_STATUS_OK) return status;
  if (bytes > 0 && (to == NULL || from == NULL))
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s is NULL, but bytes is %llu", to == NULL ? "to" : "from",
                      (unsigned long long)bytes);
  return purr__memory_copy(plan, to, from, bytes, err);
}

void purr_memory_release(const purr_plan_t *plan, void *memory, uint64_t bytes) {
  if (memory != NULL && purr__check(plan, PURR__PLAN, NULL) == PURR_STATUS_OK)
    purr__memory_release(plan, memory, bytes);
}

purr_status_t purr_stream_synchronize(const purr_plan_t *plan, void *stream, purr_error_t *err) {
  purr_status_t status = purr__check(plan, PURR__PLAN, err);
  if (status != PURR_STATUS_OK || plan->device == NULL) return status;
  return purr__device_synchronize(plan->device, stream, err);
}

/* The first work of a stream may have to wait for what runs on the device: were that a kernel of a rank that waits for
 * this one, both would wait until the group's timeout. So a stream has had work when the caller gets it. Entered. */
static purr_status_t use_once(purr__device_t *device, CUstream stream, purr_error_t *err) {
  CUevent event;
  purr_status_t status = PURR__CUDA(device, err, cuEventCreate, (&event, 0), "creating an event");
  if (status != PURR_STATUS_OK) return status;
  status = PURR__CUDA(device, err, cuEventRecord, (event, stream), "using a new stream");
  if (status == PURR_STATUS_OK) status = purr__device_synchronize(device, stream, err);
  (void)device->driver->cuda.cuEventDestroy(event);
  return status;
}

purr_status_t purr_stream_create(const purr_plan_t *plan, void **out_stream, purr_error_t *err) {
  if (out_stream == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_stream is NULL");
  *out_stream = NULL;
  purr_status_t status = purr__check(plan, PURR__PLAN, err);
  if (status != PURR_STATUS_OK || plan->device == NULL) return status;
  status = purr__device_enter(plan->device, err);
  if (status != PURR_STATUS_OK) return status;
  CUstream stream = NULL;
  const int mode = purr__device_allow_capture(plan->device);
  status = PURR__CUDA(plan->device, err, cuStreamCreateWithPriority, (&stream, CU_STREAM_NON_BLOCKING, 0),
                      "creating a stream");
  if (status == PURR_STATUS_OK) {
    status = use_once(plan->device, stream, err);
    if (status != PURR_STATUS_OK) (void)plan->device->driver->cuda.cuStreamDestroy(stream);
  }
  purr__device_restore_capture(plan->device, mode);
  purr__device_leave(plan->device);
  if (status == PURR_STATUS_OK) *out_stream = stream;
  return status;
}

void purr_stream_destroy(const purr_plan_t *plan, void *stream) {
  if (stream == NULL || purr__check(plan, PURR__PLAN, NULL) != PURR_STATUS_OK || plan->device == NULL) return;
  if (purr__device_enter(plan->device, NULL) != PURR_STATUS_OK) return;
  const int mode = purr__device_allow_capture(plan->device);
  (void)plan->device->driver->cuda.cuStreamDestroy(stream);
  purr__device_restore_capture(plan->device, mode);
  purr__device_leave(plan->device);
}
