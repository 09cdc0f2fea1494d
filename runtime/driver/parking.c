/* Memory that is given back later. cuMemFree and cuMemFreeHost return when the device is idle, and until then other
 * calls of the process wait for them. Where ranks share a device, one's kernel may be waiting there for another: were
 * that one to free anything meanwhile, both would wait until the group's timeout. So what is freed on a device that is
 * shared is parked, until it no longer is, an allocation finds no memory, or it has come to a sixteenth of all there
 * is.
 */
#include "base/context.h"
#include "driver/driver.h"

struct purr__parked {
  purr__parked_t *next;
  void *memory;
  uint64_t bytes;
  bool is_pinned;
};

static void free_now(purr__device_t *device, void *memory, uint64_t bytes, bool is_pinned) {
  purr_context_t *context = device->driver->context;
  const purr__cuda_t *cuda = &device->driver->cuda;
  const purr_device_allocator_t *hook = &context->device_allocator;
  /* On a lost device too: the hook's owner wants its memory back, and the driver's refusal does no harm. */
  const bool entered = cuda->cuCtxPushCurrent(device->primary) == CUDA_SUCCESS;
  const int mode = purr__device_allow_capture(device);
  if (is_pinned)
    (void)cuda->cuMemFreeHost(memory);
  else if (hook->release != NULL)
    hook->release(hook->user, device->ordinal, memory, bytes);
  else
    (void)cuda->cuMemFree((CUdeviceptr)(uintptr_t)memory);
  purr__device_restore_capture(device, mode);
  if (entered) purr__device_leave(device);
  if (!is_pinned) atomic_fetch_sub_explicit(&context->device_bytes, bytes, memory_order_relaxed);
}

/* False where there is no need to, or no memory for the note of it. */
static bool park(purr__device_t *device, void *memory, uint64_t bytes, bool is_pinned) {
  purr_context_t *context = device->driver->context;
  purr__parked_t *parked = NULL;
  pthread_mutex_lock(&device->mutex);
  if (device->num_sharing > 0 && device->parked_bytes + bytes <= device->total_bytes / 16)
    parked = purr__allocate_zeroed(context, sizeof *parked);
  if (parked != NULL) {
    *parked = (purr__parked_t){device->parked, memory, bytes, is_pinned};
    device->parked = parked;
    device->parked_bytes += bytes;
  }
  pthread_mutex_unlock(&device->mutex);
  return parked != NULL;
}

static void release(purr__device_t *device, void *memory, uint64_t bytes, bool is_pinned) {
  if (memory != NULL && !park(device, memory, bytes, is_pinned)) free_now(device, memory, bytes, is_pinned);
}

void purr__device_release(purr__device_t *device, void *memory, uint64_t bytes) {
  release(device, memory, bytes, false);
}

void purr__device_release_pinned(purr__device_t *device, void *memory) { release(device, memory, 0, true); }

void purr__device_free_parked(purr__device_t *device) {
  pthread_mutex_lock(&device->freeing);
  pthread_mutex_lock(&device->mutex);
  purr__parked_t *parked = device->parked;
  device->parked = NULL;
  device->parked_bytes = 0;
  pthread_mutex_unlock(&device->mutex);
  for (purr__parked_t *next; parked != NULL; parked = next) {
    next = parked->next;
    free_now(device, parked->memory, parked->bytes, parked->is_pinned);
    purr__release(device->driver->context, parked);
  }
  pthread_mutex_unlock(&device->freeing);
}

void purr__device_share(purr__device_t *device) {
  pthread_mutex_lock(&device->mutex);
  device->num_sharing++;
  pthread_mutex_unlock(&device->mutex);
}

void purr__device_unshare(purr__device_t *device) {
  pthread_mutex_lock(&device->mutex);
  const bool was_last = --device->num_sharing == 0;
  pthread_mutex_unlock(&device->mutex);
  if (was_last) purr__device_free_parked(device);
}
