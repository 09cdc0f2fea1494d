/* Work on one device: its primary context, memory, copies, launches. */
#include "base/context.h"
#include "driver/driver.h"

/* ---- the primary context ---- */

static purr_status_t fail_lost(purr__driver_t *driver, purr_error_t *err) {
  int ordinal = atomic_load(&driver->lost_ordinal), result = atomic_load(&driver->lost_result);
  const char *text = NULL;
  if (driver->cuda.cuGetErrorString(result, &text) != CUDA_SUCCESS || text == NULL) text = "no description";
  return purr__fail_errno(err, PURR_STATUS_DEVICE_LOST, result,
                          "device %d (%s) was lost in an earlier call: %s (%d); destroy the context, and use the "
                          "device again from a new process",
                          ordinal, driver->devices[ordinal].name, text, result);
}

static purr_status_t retain_primary(purr__device_t *device, purr_error_t *err) {
  purr_status_t status = PURR_STATUS_OK;
  pthread_mutex_lock(&device->mutex);
  if (device->primary == NULL) {
    CUcontext primary;
    status =
        PURR__CUDA(device, err, cuDevicePrimaryCtxRetain, (&primary, device->handle), "taking the primary context");
    if (status == PURR_STATUS_OK) atomic_store_explicit(&device->primary, primary, memory_order_release);
  }
  pthread_mutex_unlock(&device->mutex);
  return status;
}

purr_status_t purr__device_enter(purr__device_t *device, purr_error_t *err) {
  if (purr__driver_is_lost(device->driver)) return fail_lost(device->driver, err);
  CUcontext primary = atomic_load_explicit(&device->primary, memory_order_acquire);
  if (primary == NULL) {
    purr_status_t status = retain_primary(device, err);
    if (status != PURR_STATUS_OK) return status;
    primary = atomic_load_explicit(&device->primary, memory_order_acquire);
  }
  return PURR__CUDA(device, err, cuCtxPushCurrent, (primary), "making the context current");
}

void purr__device_leave(purr__device_t *device) {
  CUcontext popped;
  (void)device->driver->cuda.cuCtxPopCurrent(&popped); /* fails only where the driver is gone */
}

int purr__device_allow_capture(purr__device_t *device) {
  int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  (void)device->driver->cuda.cuThreadExchangeStreamCaptureMode(&mode);
  return mode;
}

void purr__device_restore_capture(purr__device_t *device, int mode) {
  (void)device->driver->cuda.cuThreadExchangeStreamCaptureMode(&mode);
}

/* ---- memory ---- */

#define MEMORY_ALIGNMENT 256u

static void count_device_bytes(purr_context_t *context, uint64_t bytes) {
  unsigned long long now = atomic_fetch_add_explicit(&context->device_bytes, bytes, memory_order_relaxed) + bytes;
  unsigned long long peak = atomic_load_explicit(&context->device_bytes_peak, memory_order_relaxed);
  while (now > peak && !atomic_compare_exchange_weak_explicit(&context->device_bytes_peak, &peak, now,
                                                              memory_order_relaxed, memory_order_relaxed)) {
  }
}

static purr_status_t allocate_from_hook(purr__device_t *device, uint64_t bytes, const char *what, void **out_memory,
                                        purr_error_t *err) {
  const purr_device_allocator_t *hook = &device->driver->context->device_allocator;
  void *memory = hook->allocate(hook->user, device->ordinal, bytes, MEMORY_ALIGNMENT);
  if (memory == NULL)
    return purr__fail(err, PURR_STATUS_OUT_OF_DEVICE_MEMORY,
                      "%s needs %llu bytes on device %d (%s), which the device_allocator did not give", what,
                      (unsigned long long)bytes, device->ordinal, device->name);
  if ((uintptr_t)memory % MEMORY_ALIGNMENT != 0) {
    hook->release(hook->user, device->ordinal, memory, bytes);
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "the device_allocator gave address %p for %s, which is not a multiple of %u", memory, what,
                      MEMORY_ALIGNMENT);
  }
  *out_memory = memory;
  return PURR_STATUS_OK;
}

static purr_status_t allocate_from_driver(purr__device_t *device, uint64_t bytes, const char *what, void **out_memory,
                                          purr_error_t *err) {
  CUdeviceptr address;
  CUresult result = device->driver->cuda.cuMemAlloc(&address, bytes);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    size_t available = 0, total = 0;
    (void)device->driver->cuda.cuMemGetInfo(&available, &total);
    return purr__fail_errno(err, PURR_STATUS_OUT_OF_DEVICE_MEMORY, result,
                            "%s needs %llu bytes on device %d (%s), where %llu of %llu are free", what,
                            (unsigned long long)bytes, device->ordinal, device->name, (unsigned long long)available,
                            (unsigned long long)total);
  }
  purr_status_t status = purr__device_check(device, result, "cuMemAlloc", err, "allocating %llu bytes for %s",
                                            (unsigned long long)bytes, what);
  if (status == PURR_STATUS_OK) *out_memory = (void *)(uintptr_t)address;
  return status;
}

static purr_status_t allocate_once(purr__device_t *device, uint64_t bytes, const char *what, void **out_memory,
                                   purr_error_t *err) {
  return device->driver->context->device_allocator.allocate != NULL
             ? allocate_from_hook(device, bytes, what, out_memory, err)
             : allocate_from_driver(device, bytes, what, out_memory, err);
}

purr_status_t purr__device_allocate(purr__device_t *device, uint64_t bytes, const char *what, void **out_memory,
                                    purr_error_t *err) {
  *out_memory = NULL;
  if (bytes == 0) return PURR_STATUS_OK;
  purr_context_t *context = device->driver->context;
  purr_status_t status = purr__device_enter(device, err);
  if (status != PURR_STATUS_OK) return status;
  int mode = purr__device_allow_capture(device);
  status = allocate_once(device, bytes, what, out_memory, err);
  if (status == PURR_STATUS_OUT_OF_DEVICE_MEMORY) {
    purr__device_free_parked(device);
    status = allocate_once(device, bytes, what, out_memory, err);
  }
  purr__device_restore_capture(device, mode);
  purr__device_leave(device);
  if (status == PURR_STATUS_OK) count_device_bytes(context, bytes);
  return status;
}

purr_status_t purr__device_allocate_pinned(purr__device_t *device, uint64_t bytes, void **out_memory,
                                           purr_error_t *err) {
  *out_memory = NULL;
  void *memory = NULL;
  purr_status_t status = purr__device_enter(device, err);
  if (status != PURR_STATUS_OK) return status;
  int mode = purr__device_allow_capture(device);
  status =
      PURR__CUDA(device, err, cuMemHostAlloc, (&memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                 "allocating %llu bytes of page-locked memory", (unsigned long long)bytes);
  purr__device_restore_capture(device, mode);
  purr__device_leave(device);
  if (status == PURR_STATUS_OK) *out_memory = memory;
  return status;
}

/* ---- stream work ---- */

/* The default stream is used where objects are made, which other threads may do while one captures. A call's own work
 * is enqueued as it is: it becomes part of the capture. */
static int allow_capture_by_default_stream(purr__device_t *device, CUstream stream) {
  return stream == NULL ? purr__device_allow_capture(device) : -1;
}

static void restore_capture_by_default_stream(purr__device_t *device, int mode) {
  if (mode >= 0) purr__device_restore_capture(device, mode);
}

purr_status_t purr__device_copy(purr__device_t *device, void *to, const void *from, uint64_t bytes, CUstream stream,
                                purr_error_t *err) {
  if (bytes == 0) return PURR_STATUS_OK;
  purr_status_t status = purr__device_enter(device, err);
  if (status != PURR_STATUS_OK) return status;
  const int mode = allow_capture_by_default_stream(device, stream);
  status =
      PURR__CUDA(device, err, cuMemcpyAsync, ((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, stream),
                 "copying %llu bytes", (unsigned long long)bytes);
  restore_capture_by_default_stream(device, mode);
  purr__device_leave(device);
  return status;
}

purr_status_t purr__device_fill(purr__device_t *device, void *to, unsigned char value, uint64_t bytes, CUstream stream,
                                purr_error_t *err) {
  if (bytes == 0) return PURR_STATUS_OK;
  purr_status_t status = purr__device_enter(device, err);
  if (status != PURR_STATUS_OK) return status;
  const int mode = allow_capture_by_default_stream(device, stream);
  status = PURR__CUDA(device, err, cuMemsetD8Async, ((CUdeviceptr)(uintptr_t)to, value, bytes, stream),
                      "filling %llu bytes", (unsigned long long)bytes);
  restore_capture_by_default_stream(device, mode);
  purr__device_leave(device);
  return status;
}

purr_status_t purr__device_synchronize(purr__device_t *device, CUstream stream, purr_error_t *err) {
  purr_status_t status = purr__device_enter(device, err);
  if (status != PURR_STATUS_OK) return status;
  const int mode = purr__device_allow_capture(device);
  status = PURR__CUDA(device, err, cuStreamSynchronize, (stream), "waiting for a stream");
  purr__device_restore_capture(device, mode);
  purr__device_leave(device);
  return status;
}

/* ---- peers and the caller's things ---- */

purr_status_t purr__device_enable_peer(purr__device_t *device, purr__device_t *peer, purr_error_t *err) {
  if (device == peer) return PURR_STATUS_OK;
  int can = 0;
  purr_status_t status = PURR__CUDA(device, err, cuDeviceCanAccessPeer, (&can, device->handle, peer->handle),
                                    "asking for access to device %d", peer->ordinal);
  if (status == PURR_STATUS_OK && !can)
    status = purr__fail(err, PURR_STATUS_UNSUPPORTED,
                        "device %d (%s) cannot reach the memory of device %d (%s): no NVLink or PCIe peer access",
                        device->ordinal, device->name, peer->ordinal, peer->name);
  if (status == PURR_STATUS_OK) status = purr__device_enter(peer, err); /* so that its primary context exists */
  if (status != PURR_STATUS_OK) return status;
  purr__device_leave(peer);
  status = purr__device_enter(device, err);
  if (status != PURR_STATUS_OK) return status;
  const int mode = purr__device_allow_capture(device);
  CUresult result = device->driver->cuda.cuCtxEnablePeerAccess(peer->primary, 0);
  purr__device_restore_capture(device, mode);
  if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
    status = purr__device_check(device, result, "cuCtxEnablePeerAccess", err, "opening the memory of device %d",
                                peer->ordinal);
  purr__device_leave(device);
  return status;
}

purr_status_t purr__device_check_stream(purr__device_t *device, CUstream stream, purr_error_t *err) {
  if ((uintptr_t)stream <= CU_STREAM_PER_THREAD) return PURR_STATUS_OK;
  CUcontext owner;
  purr_status_t status = PURR__CUDA(device, err, cuStreamGetCtx, (stream, &owner), "looking at the stream");
  if (status == PURR_STATUS_OK && owner != device->primary)
    status = purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                        "the stream belongs to another context than the primary one of device %d (%s); create it with "
                        "that device current",
                        device->ordinal, device->name);
  return status;
}

purr_status_t purr__device_check_pointer(purr__device_t *device, const void *address, const char *name,
                                         purr_error_t *err) {
  int ordinal = -1;
  uint32_t memory_type = 0, is_managed = 0;
  int attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void *values[] = {&memory_type, &is_managed, &ordinal};
  purr_status_t status =
      PURR__CUDA(device, err, cuPointerGetAttributes, (3, attributes, values, (CUdeviceptr)(uintptr_t)address),
                 "looking at the address of %s", name);
  if (status != PURR_STATUS_OK || is_managed) return status;
  if (memory_type != CU_MEMORYTYPE_DEVICE)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "%s is at %p, which is host memory; it must be on device %d (%s)", name, address, device->ordinal,
                      device->name);
  if (ordinal != device->ordinal)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "%s is at %p, which is memory of device %d; it must be on device %d (%s)", name, address, ordinal,
                      device->ordinal, device->name);
  return PURR_STATUS_OK;
}

purr_status_t purr__device_check_reach(purr__device_t *device, const void *address, const char *name,
                                       purr_error_t *err) {
  int can_reach_all = 0;
  uint32_t memory_type = 0, is_managed = 0;
  int attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void *values[] = {&memory_type, &is_managed};
  purr_status_t status =
      PURR__CUDA(device, err, cuPointerGetAttributes, (2, attributes, values, (CUdeviceptr)(uintptr_t)address),
                 "looking at the address of %s", name);
  if (status != PURR_STATUS_OK || memory_type != 0 || is_managed != 0) return status;
  status = PURR__CUDA(device, err, cuDeviceGetAttribute,
                      (&can_reach_all, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, device->handle),
                      "asking whether the device reaches host memory");
  if (status != PURR_STATUS_OK || can_reach_all != 0) return status;
  return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                    "%s is at %p, which is host memory that device %d (%s) cannot reach", name, address,
                    device->ordinal, device->name);
}

/* ---- launch ---- */

purr_status_t purr__device_launch(purr__device_t *device, CUfunction function, const purr__launch_t *launch,
                                  const void *const *params, purr_error_t *err) {
  if (launch->grid[0] == 0 || launch->grid[1] == 0 || launch->grid[2] == 0) return PURR_STATUS_OK;
  CUlaunchAttribute attributes[4];
  unsigned num_attributes = 0;
  if (launch->is_cooperative)
    attributes[num_attributes++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
  if (launch->cluster[0] != 0)
    attributes[num_attributes++] =
        (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                            .value.clusterDim = {launch->cluster[0], launch->cluster[1], launch->cluster[2]}};
  if (launch->spreads_clusters)
    attributes[num_attributes++] =
        (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
                            .value.clusterSchedulingPolicyPreference = CU_CLUSTER_SCHEDULING_POLICY_SPREAD};
  if (launch->may_overlap)
    attributes[num_attributes++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                                       .value.programmaticStreamSerializationAllowed = 1};
  const CUlaunchConfig config = {.gridDimX = launch->grid[0],
                                 .gridDimY = launch->grid[1],
                                 .gridDimZ = launch->grid[2],
                                 .blockDimX = launch->threads,
                                 .blockDimY = 1,
                                 .blockDimZ = 1,
                                 .sharedMemBytes = launch->shared_bytes,
                                 .hStream = launch->stream,
                                 .attrs = attributes,
                                 .numAttrs = num_attributes};
  /* The driver only reads the parameters, but its prototype does not say so. */
  purr_status_t status =
      PURR__CUDA(device, err, cuLaunchKernelEx, (&config, function, (void **)(uintptr_t)params, NULL),
                 "launching %s with %u x %u x %u blocks of %u threads and %u bytes of shared memory", launch->name,
                 launch->grid[0], launch->grid[1], launch->grid[2], launch->threads, launch->shared_bytes);
  if (status == PURR_STATUS_OK) purr__count(device->driver->context, PURR__COUNT_LAUNCHES, 1);
  return status;
}
