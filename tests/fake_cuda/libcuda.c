/* The CUDA driver without a GPU; see support/fake_cuda.h. Functions keep the driver's own names as statics, and only
 * the few that a real libcuda.so.1 is asked for by name are exported. What goes to streams is done by the engine that
 * the library is linked with: at once, kernels excepted (immediate.c), or as a GPU does it (emulated_cuda/). */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/cuda_api.h"
#include "fake_cuda/engine.h"
#include "fake_cuda/tensor_map.h"
#include "support/fake_cuda.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT fake_cuda_t fake_cuda;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* ---- objects that are alive ---- */

typedef enum kind { MEMORY, PINNED, LIBRARY, KERNEL, STREAM, EVENT, NUM_KINDS } kind_t;

typedef struct thing {
  kind_t kind;
  char *data; /* memory, or a copy of a library's image */
  size_t bytes;
  int device;
  CUcontext context;
  char name[128];
  struct thing *library, *next;
} thing_t;

static thing_t *things;
static struct CUctx_st { int num_retained; } contexts[FAKE_CUDA_MAX_DEVICES];
/* POISON is NaN in BF16 and FP32, -1 as an id. */
enum { MAX_PUSHED = 16, POISON = 0xFF, MAX_POISONED = 64 << 20, TENSOR_MAP_BF16 = 9 };
static _Thread_local CUcontext pushed[MAX_PUSHED];
static _Thread_local int num_pushed;
static bool is_faulted;
static _Thread_local int capture_mode; /* global */

static int *count_of(kind_t kind) {
  switch (kind) {
    case MEMORY:
      return &fake_cuda.num_allocations;
    case PINNED:
      return &fake_cuda.num_pinned;
    case LIBRARY:
      return &fake_cuda.num_libraries;
    case STREAM:
      return &fake_cuda.num_streams;
    case EVENT:
      return &fake_cuda.num_events;
    default:
      return NULL;
  }
}

/* Of one block, after opting in. */
static int max_shared_bytes(int device) {
  const int cc = fake_cuda.cc[device];
  if (fake_cuda.max_shared_bytes > 0) return fake_cuda.max_shared_bytes;
  if (cc == 80 || cc == 87) return 163 << 10;
  return cc >= 90 && cc < 120 ? 227 << 10 : 99 << 10;
}

static CUcontext current(void) { return num_pushed > 0 ? pushed[num_pushed - 1] : NULL; }
static int current_device(void) { return (int)(current() - contexts); }

static thing_t *thing_make(kind_t kind, size_t bytes) {
  thing_t *thing = calloc(1, sizeof *thing);
  thing->kind = kind;
  thing->bytes = bytes;
  thing->data = bytes ? aligned_alloc(512, (bytes + 511) / 512 * 512) : NULL;
  if (kind == MEMORY) memset(thing->data, POISON, bytes < MAX_POISONED ? bytes : MAX_POISONED);
  thing->context = current();
  thing->device = current() ? current_device() : 0;
  thing->next = things;
  things = thing;
  if (count_of(kind)) ++*count_of(kind);
  return thing;
}

static thing_t *thing_find(kind_t kind, const void *handle) {
  for (thing_t *thing = things; thing != NULL; thing = thing->next)
    if (thing->kind == kind && (kind == MEMORY || kind == PINNED ? (const void *)thing->data : thing) == handle)
      return thing;
  return NULL;
}

static CUresult thing_drop(kind_t kind, const void *handle) {
  thing_t *thing = thing_find(kind, handle);
  if (thing == NULL) return CUDA_ERROR_INVALID_VALUE;
  thing_t **link = &things;
  while (*link != thing) link = &(*link)->next;
  *link = thing->next;
  if (count_of(kind)) --*count_of(kind);
  if (kind == MEMORY) fake_cuda.allocated_bytes -= thing->bytes;
  free(thing->data);
  free(thing);
  return CUDA_SUCCESS;
}

/* ---- faults ---- */

/* What the test wants `call` to answer, else `result`. */
static CUresult planned(const char *call) {
  fake_cuda.num_calls++;
  if (is_faulted && strcmp(call, "cuCtxPushCurrent") != 0 && strcmp(call, "cuCtxPopCurrent") != 0)
    return fake_cuda.fault;
  if (engine_failed()) return CUDA_ERROR_LAUNCH_FAILED;
  if (fake_cuda.failing_call == NULL || strcmp(fake_cuda.failing_call, call) != 0) return CUDA_SUCCESS;
  return fake_cuda.failing_after-- > 0 ? CUDA_SUCCESS : fake_cuda.failing_result;
}

/* Every function: under the lock, as planned, with a context current where the real one wants that. */
#define BEGIN(needs_context) BEGIN_AS(__func__, needs_context)
#define BEGIN_AS(name, needs_context)                                                                                  \
  pthread_mutex_lock(&mutex);                                                                                          \
  CUresult result = planned(name);                                                                                     \
  if (result == CUDA_SUCCESS && fake_cuda.num_inits == 0 && (needs_context) >= 0) result = CUDA_ERROR_NOT_INITIALIZED; \
  if (result == CUDA_SUCCESS && (needs_context) > 0 && current() == NULL) result = CUDA_ERROR_INVALID_CONTEXT;         \
  if (result == CUDA_SUCCESS) {
#define END                     \
  }                             \
  pthread_mutex_unlock(&mutex); \
  return result

/* For functions that wait: the lock is not held while they do. */
static CUresult before_wait(const char *call) {
  pthread_mutex_lock(&mutex);
  CUresult result = planned(call);
  if (result == CUDA_SUCCESS && fake_cuda.num_inits == 0) result = CUDA_ERROR_NOT_INITIALIZED;
  if (result == CUDA_SUCCESS && current() == NULL) result = CUDA_ERROR_INVALID_CONTEXT;
  pthread_mutex_unlock(&mutex);
  return result;
}

/* The default stream is one for each device. */
static void *queue_of(CUstream stream) { return stream != NULL ? (void *)stream : (void *)current(); }

/* Calls that would break another thread's graph capture in global mode. */
static void count_unsafe(void) {
  if (capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) fake_cuda.num_unsafe_calls++;
}

/* ---- the driver ---- */

static CUresult cuGetErrorName(CUresult error, const char **name) {
  static const struct {
    CUresult error;
    const char *name;
  } names[] = {
      {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
      {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
      {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
      {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
      {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
  };
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (names[i].error == error) {
      *name = names[i].name;
      return CUDA_SUCCESS;
    }
  *name = NULL;
  return CUDA_ERROR_INVALID_VALUE;
}

static CUresult cuGetErrorString(CUresult error, const char **text) {
  static _Thread_local char buffer[64];
  snprintf(buffer, sizeof buffer, "fake driver text for %d", error);
  *text = buffer;
  return CUDA_SUCCESS;
}

static CUresult cuInit(unsigned flags) {
  (void)flags;
  BEGIN(-1) {
    if (fake_cuda.num_devices == 0) result = CUDA_ERROR_NO_DEVICE;
    if (result == CUDA_SUCCESS) fake_cuda.num_inits++;
  }
  END;
}

EXPORT CUresult cuDriverGetVersion(int *version);
CUresult cuDriverGetVersion(int *version) {
  BEGIN(-1) { *version = fake_cuda.driver_version; }
  END;
}

static CUresult cuDeviceGetCount(int *count) {
  BEGIN(0) { *count = fake_cuda.num_devices; }
  END;
}

static CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  BEGIN(0) { *device = ordinal; }
  END;
}

static CUresult cuDeviceGetName(char *name, int capacity, CUdevice device) {
  BEGIN(0) { snprintf(name, (size_t)capacity, "Fake GPU %c", 'A' + device); }
  END;
}

static CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
  BEGIN(0) {
    switch (attribute) {
      case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = fake_cuda.cc[device] / 10;
        break;
      case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = fake_cuda.cc[device] % 10;
        break;
      case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = fake_cuda.num_sms;
        break;
      case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = 1024;
        break;
      case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = max_shared_bytes(device);
        break;
      case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
        *value = 50 << 20;
        break;
      case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
        *value = 0;
        break;
      case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
        *value = fake_cuda.reaches_host_memory;
        break;
      default:
        *value = 1;
    }
  }
  END;
}

static CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
  (void)device;
  BEGIN(0) { *bytes = fake_cuda.memory_bytes; }
  END;
}

static CUresult cuDeviceGetPCIBusId(char *text, int capacity, CUdevice device) {
  BEGIN(0) { snprintf(text, (size_t)capacity, "0000:%02x:00.0", device + 1); }
  END;
}

static CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  BEGIN(0) { memset(uuid, device + 1, sizeof *uuid); }
  END;
}

static CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  (void)device;
  (void)peer;
  BEGIN(0) { *can = fake_cuda.has_peer_access; }
  END;
}

/* ---- contexts ---- */

static CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  BEGIN(0) {
    *context = &contexts[device];
    contexts[device].num_retained++;
    fake_cuda.num_contexts++;
  }
  END;
}

static CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  BEGIN(0) {
    contexts[device].num_retained--;
    fake_cuda.num_contexts--;
  }
  END;
}

static CUresult cuCtxPushCurrent(CUcontext context) {
  BEGIN(0) {
    if (context == NULL || context->num_retained < 1 || num_pushed == MAX_PUSHED)
      result = CUDA_ERROR_INVALID_CONTEXT;
    else
      pushed[num_pushed++] = context;
    fake_cuda.num_pushed = num_pushed;
  }
  END;
}

static CUresult cuCtxPopCurrent(CUcontext *context) {
  BEGIN(1) {
    *context = pushed[--num_pushed];
    fake_cuda.num_pushed = num_pushed;
  }
  END;
}

static CUresult cuCtxGetCurrent(CUcontext *context) {
  BEGIN(0) { *context = current(); }
  END;
}

static CUresult cuCtxGetDevice(CUdevice *device) {
  BEGIN(1) { *device = current_device(); }
  END;
}

static CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  (void)peer;
  (void)flags;
  BEGIN(1) { count_unsafe(); }
  END;
}

/* ---- memory ---- */

static CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes) {
  BEGIN(1) {
    count_unsafe();
    if (fake_cuda.allocated_bytes + bytes > fake_cuda.memory_bytes) {
      result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
      *address = (CUdeviceptr)(uintptr_t)thing_make(MEMORY, bytes)->data;
      fake_cuda.allocated_bytes += bytes;
    }
  }
  END;
}

/* Memory is freed when the device is idle: as the real driver does. */
static void wait_for_kernels(void) {
  pthread_mutex_lock(&mutex);
  const int device = current() != NULL ? current_device() : -1;
  pthread_mutex_unlock(&mutex);
  if (device >= 0) engine_wait_for_kernels(device);
}

static CUresult cuMemFree(CUdeviceptr address) {
  wait_for_kernels();
  BEGIN(1) {
    count_unsafe();
    result = thing_drop(MEMORY, (const void *)(uintptr_t)address);
  }
  END;
}

static CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
  (void)flags;
  BEGIN(1) {
    count_unsafe();
    *memory = thing_make(PINNED, bytes)->data;
  }
  END;
}

static CUresult cuMemFreeHost(void *memory) {
  wait_for_kernels();
  BEGIN(1) {
    count_unsafe();
    result = thing_drop(PINNED, memory);
  }
  END;
}

static CUresult cuMemGetInfo(size_t *available, size_t *total) {
  BEGIN(1) {
    *total = fake_cuda.memory_bytes;
    *available = fake_cuda.memory_bytes - fake_cuda.allocated_bytes;
  }
  END;
}

/* What lies at an address. */
static const thing_t *thing_at(CUdeviceptr address) {
  const char *at = (const char *)(uintptr_t)address;
  const thing_t *thing = things;
  while (thing != NULL && !(thing->kind <= PINNED && at >= thing->data && at < thing->data + thing->bytes))
    thing = thing->next;
  return thing;
}

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream, bool *waits) {
  BEGIN_AS("cuMemcpyAsync", 1) {
    if (stream == NULL) count_unsafe();
    *waits = !engine_is_capturing(queue_of(stream)) && (thing_at(to) == NULL || thing_at(from) == NULL);
    engine_copy(queue_of(stream), (void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
  }
  END;
}

/* Copies from and to ordinary memory of the host are over when the call is. */
static CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  bool waits = false;
  const CUresult result = copy(to, from, bytes, stream, &waits);
  return result == CUDA_SUCCESS && waits ? (CUresult)engine_synchronize(queue_of(stream)) : result;
}

static CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  BEGIN(1) {
    if (stream == NULL) count_unsafe();
    engine_set(queue_of(stream), (void *)(uintptr_t)to, value, count, 1);
  }
  END;
}

static CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  BEGIN(1) { engine_set(queue_of(stream), (void *)(uintptr_t)to, value, count, 4); }
  END;
}

static CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **values, CUdeviceptr address) {
  BEGIN(1) {
    const thing_t *thing = thing_at(address);
    for (unsigned i = 0; i < count; i++) {
      int value = 0;
      if (attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE && thing != NULL)
        value = thing->kind == MEMORY ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) value = thing != NULL ? thing->device : -2;
      memcpy(values[i], &value, sizeof value);
    }
  }
  END;
}

/* ---- streams and events ---- */

static CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
  (void)flags;
  (void)priority;
  BEGIN(1) {
    count_unsafe();
    *stream = (CUstream)thing_make(STREAM, 0);
  }
  END;
}

static CUresult cuStreamDestroy(CUstream stream) {
  if (current() != NULL) engine_forget(stream);
  BEGIN(1) {
    count_unsafe();
    result = thing_drop(STREAM, stream);
  }
  END;
}

static CUresult cuStreamSynchronize(CUstream stream) {
  const CUresult result = before_wait(__func__);
  if (result == CUDA_SUCCESS) count_unsafe();
  return result == CUDA_SUCCESS ? (CUresult)engine_synchronize(queue_of(stream)) : result;
}

static CUresult cuStreamQuery(CUstream stream) {
  BEGIN(1) {
    if (!engine_is_idle(queue_of(stream))) result = CUDA_ERROR_NOT_READY;
  }
  END;
}

static CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  (void)flags;
  BEGIN(1) { engine_wait_event(queue_of(stream), event); }
  END;
}

static CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
  BEGIN(1) {
    const thing_t *thing = thing_find(STREAM, stream);
    *context = thing != NULL ? thing->context : current();
  }
  END;
}

static CUresult cuStreamIsCapturing(CUstream stream, int *capture_status) {
  BEGIN(1) { *capture_status = engine_is_capturing(queue_of(stream)) ? 1 : CU_STREAM_CAPTURE_STATUS_NONE; }
  END;
}

static CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
  BEGIN(0) {
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
  }
  END;
}

static CUresult cuEventCreate(CUevent *event, unsigned flags) {
  (void)flags;
  BEGIN(1) {
    count_unsafe();
    *event = (CUevent)thing_make(EVENT, 0);
  }
  END;
}

static CUresult cuEventDestroy(CUevent event) {
  BEGIN(1) {
    count_unsafe();
    result = thing_drop(EVENT, event);
  }
  END;
}

static CUresult cuEventRecord(CUevent event, CUstream stream) {
  BEGIN(1) { engine_record(queue_of(stream), event); }
  END;
}

static CUresult cuEventQuery(CUevent event) {
  BEGIN(1) {
    count_unsafe();
    if (!engine_event_is_done(event)) result = CUDA_ERROR_NOT_READY;
  }
  END;
}

static CUresult cuEventSynchronize(CUevent event) {
  const CUresult result = before_wait(__func__);
  return result == CUDA_SUCCESS ? (CUresult)engine_event_synchronize(event) : result;
}

static CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
  BEGIN(1) { *milliseconds = engine_elapsed_ms(start, end); }
  END;
}

/* ---- kernels ---- */

/* The length of an ELF image: where its section headers end. */
static size_t image_bytes(const char *image) {
  uint64_t section_offset;
  uint16_t section_bytes, num_sections;
  memcpy(&section_offset, image + 40, sizeof section_offset);
  memcpy(&section_bytes, image + 58, sizeof section_bytes);
  memcpy(&num_sections, image + 60, sizeof num_sections);
  return section_offset + (size_t)section_bytes * num_sections;
}

static CUresult cuLibraryLoadData(CUlibrary *library, const void *image, int *jit_options, void **jit_values,
                                  unsigned num_jit_options, int *library_options, void **library_values,
                                  unsigned num_library_options) {
  (void)jit_options;
  (void)jit_values;
  (void)num_jit_options;
  (void)library_options;
  (void)library_values;
  (void)num_library_options;
  BEGIN(0) {
    count_unsafe();
    fake_cuda.num_loads++;
    if (memcmp(image, "\177ELF", 4) != 0) {
      result = CUDA_ERROR_INVALID_IMAGE;
    } else {
      thing_t *thing = thing_make(LIBRARY, image_bytes(image));
      memcpy(thing->data, image, thing->bytes);
      *library = (CUlibrary)thing;
    }
  }
  END;
}

static CUresult cuLibraryUnload(CUlibrary library) {
  BEGIN(0) {
    count_unsafe();
    thing_t *next = NULL;
    for (thing_t *thing = things; thing != NULL; thing = next) {
      next = thing->next;
      if (thing->kind == KERNEL && (CUlibrary)thing->library == library) thing_drop(KERNEL, thing);
    }
    result = thing_drop(LIBRARY, library);
  }
  END;
}

static CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
  BEGIN(0) {
    thing_t *image = (thing_t *)library;
    char section[160];
    int length = snprintf(section, sizeof section, ".text.%s", name);
    if (memmem(image->data, image->bytes, section, (size_t)length + 1) == NULL) {
      result = CUDA_ERROR_NOT_FOUND;
    } else {
      thing_t *thing = thing_make(KERNEL, 0);
      thing->library = image;
      snprintf(thing->name, sizeof thing->name, "%s", name);
      *kernel = (CUkernel)thing;
    }
  }
  END;
}

static CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
  BEGIN(1) { *function = (CUfunction)kernel; }
  END;
}

static CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel kernel, CUdevice device) {
  (void)kernel;
  (void)device;
  BEGIN(0) {
    *value = 0;
    if (attribute == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES) *value = fake_cuda.kernel_static_bytes;
    if (attribute == CU_FUNC_ATTRIBUTE_NUM_REGS) *value = 32;
  }
  END;
}

static CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device) {
  (void)kernel;
  BEGIN(0) {
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES &&
        value + fake_cuda.kernel_static_bytes > max_shared_bytes(device))
      result = CUDA_ERROR_INVALID_VALUE;
  }
  END;
}

static CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *bytes) {
  (void)kernel;
  (void)index;
  (void)offset;
  (void)bytes;
  BEGIN(0) { result = CUDA_ERROR_INVALID_VALUE; }
  END;
}

static CUresult cuFuncLoad(CUfunction function) {
  (void)function;
  BEGIN(1) {
    count_unsafe();
    fake_cuda.num_func_loads++;
  }
  END;
}

static CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
  (void)extra;
  BEGIN(1) {
    const thing_t *kernel = (const thing_t *)function;
    fake_launch_t launch = {.grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                            .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
                            .shared_bytes = config->sharedMemBytes,
                            .stream = config->hStream,
                            .num_params = params != NULL};
    memcpy(launch.kernel, kernel->name, sizeof launch.kernel);
    for (unsigned i = 0; i < config->numAttrs; i++) {
      const CUlaunchAttribute *attribute = &config->attrs[i];
      if (attribute->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) launch.is_cooperative = attribute->value.cooperative;
      if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
        launch.may_overlap = attribute->value.programmaticStreamSerializationAllowed;
      if (attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE)
        launch.spreads_clusters =
            attribute->value.clusterSchedulingPolicyPreference == CU_CLUSTER_SCHEDULING_POLICY_SPREAD;
      if (attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
        launch.cluster[0] = attribute->value.clusterDim.x;
        launch.cluster[1] = attribute->value.clusterDim.y;
        launch.cluster[2] = attribute->value.clusterDim.z;
      }
    }
    for (int i = 0; params != NULL && i < FAKE_CUDA_MAX_PARAMS && fake_cuda.param_bytes[i] > 0; i++)
      memcpy(fake_cuda.params[i], params[i], (size_t)fake_cuda.param_bytes[i]);
    if (fake_cuda.num_launches < FAKE_CUDA_MAX_LAUNCHES) fake_cuda.launches[fake_cuda.num_launches] = launch;
    fake_cuda.num_launches++;
    is_faulted = fake_cuda.fault != 0;
    const engine_launch_t work = {.kernel = launch.kernel,
                                  .grid = {launch.grid[0], launch.grid[1], launch.grid[2]},
                                  .block = {launch.block[0], launch.block[1], launch.block[2]},
                                  .cluster = {launch.cluster[0], launch.cluster[1], launch.cluster[2]},
                                  .shared_bytes = launch.shared_bytes,
                                  .is_cooperative = launch.is_cooperative,
                                  .cc = fake_cuda.cc[current_device()]};
    result = (CUresult)engine_launch(queue_of(config->hStream), current_device(), &work, params);
  }
  END;
}

static CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *num_blocks, CUfunction function, int block_threads,
                                                            size_t dynamic_shared_bytes) {
  (void)function;
  BEGIN(1) { *num_blocks = engine_blocks_per_sm((unsigned)block_threads, dynamic_shared_bytes); }
  END;
}

static CUresult cuOccupancyMaxActiveClusters(int *num_clusters, CUfunction function, const CUlaunchConfig *config) {
  BEGIN(1) {
    const int per_sm = engine_blocks_per_sm(config->blockDimX, config->sharedMemBytes);
    *num_clusters = per_sm * fake_cuda.num_sms / engine_cluster_of(((const thing_t *)function)->name);
  }
  END;
}

static CUresult cuTensorMapEncodeTiled(CUtensorMap *map, int data_type, uint32_t rank, void *address,
                                       const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                                       const uint32_t *element_strides, int interleave, int swizzle, int l2_promotion,
                                       int out_of_bounds_fill) {
  (void)element_strides;
  (void)interleave;
  BEGIN(0) {
    fake_tensor_map_t shown = {.address = (uintptr_t)address,
                               .magic = ~0ull,
                               .rank = (uint8_t)rank,
                               .element_bytes = data_type == TENSOR_MAP_BF16 ? 2 : 4,
                               .swizzle = (uint8_t)swizzle,
                               .fill = (uint8_t)out_of_bounds_fill};
    for (uint32_t i = 0; i < rank && i < 5; i++) {
      shown.dims[i] = (uint32_t)dims[i];
      shown.box[i] = (uint16_t)box[i];
      if (i + 1 < rank) shown.strides[i] = strides[i];
    }
    _Static_assert(sizeof shown <= sizeof *map, "fits where the real one does");
    memset(map, 0, sizeof *map);
    memcpy(map, &shown, sizeof shown);
    fake_cuda.num_encodings++;
    fake_cuda.encoding = (fake_encoding_t){.data_type = data_type,
                                           .swizzle = swizzle,
                                           .l2_promotion = l2_promotion,
                                           .fill = out_of_bounds_fill,
                                           .rank = rank,
                                           .address = (uintptr_t)address};
    for (uint32_t i = 0; i < rank && i < 5; i++) {
      fake_cuda.encoding.dims[i] = dims[i];
      fake_cuda.encoding.box[i] = box[i];
      if (i + 1 < rank) fake_cuda.encoding.strides[i] = strides[i];
    }
  }
  END;
}

/* ---- the way in ---- */

static const struct {
  const char *name;
  int version;
  void *address;
} functions[] = {
#define PURR_DRIVER_SYMBOL(name, version, params) {#name, version, (void *)(uintptr_t)name},
#include "driver/driver_symbols.def"
#undef PURR_DRIVER_SYMBOL
};

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, uint64_t flags,
                                    int *symbol_status);
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, uint64_t flags,
                             int *symbol_status) {
  (void)flags;
  *function = NULL;
  *symbol_status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
    if (strcmp(functions[i].name, symbol) == 0) {
      if (fake_cuda.missing_symbol != NULL && strcmp(fake_cuda.missing_symbol, symbol) == 0) return CUDA_SUCCESS;
      if (cuda_version > fake_cuda.driver_version) {
        *symbol_status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        return CUDA_SUCCESS;
      }
      *function = functions[i].address;
      *symbol_status = CU_GET_PROC_ADDRESS_SUCCESS;
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_NOT_FOUND;
}

EXPORT void fake_cuda_reset(void);
void fake_cuda_reset(void) {
  fake_cuda = (fake_cuda_t){.driver_version = 13000,
                            .num_devices = 1,
                            .num_sms = 132,
                            .memory_bytes = (uint64_t)1 << 30,
                            .has_peer_access = 1};
  for (int i = 0; i < FAKE_CUDA_MAX_DEVICES; i++) fake_cuda.cc[i] = 90;
  memset(contexts, 0, sizeof contexts);
  is_faulted = false;
}

/* For programs that find this library as libcuda.so.1: FAKE_CUDA="devices=2 cc=80 version=11040". An emulated GPU asks
 * for few SMs, and takes a seed for the order in which its threads run. */
static __attribute__((constructor)) void set_up(void) {
  fake_cuda_reset();
  const char *text = getenv("FAKE_CUDA");
  int value, seed = 1;
  for (; text != NULL && *text != '\0'; text += strcspn(text, " ")) {
    text += strspn(text, " ");
    if (sscanf(text, "devices=%d", &value) == 1) fake_cuda.num_devices = value;
    if (sscanf(text, "version=%d", &value) == 1) fake_cuda.driver_version = value;
    if (sscanf(text, "memory_gib=%d", &value) == 1) fake_cuda.memory_bytes = (uint64_t)value << 30;
    if (sscanf(text, "sms=%d", &value) == 1) fake_cuda.num_sms = value;
    if (sscanf(text, "seed=%d", &value) == 1) seed = value;
    if (sscanf(text, "cc=%d", &value) == 1)
      for (int i = 0; i < FAKE_CUDA_MAX_DEVICES; i++) fake_cuda.cc[i] = value;
  }
  engine_start(fake_cuda.num_sms, (unsigned)seed);
}
