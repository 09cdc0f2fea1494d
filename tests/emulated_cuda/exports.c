/* The driver as programs and tests find it by name, without cuGetProcAddress: what they call beside the library, graphs
 * and streams that wait for a word among it. A graph does its work in the order in which it was captured. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "driver/cuda_api.h"
#include "fake_cuda/engine.h"

#define EXPORT __attribute__((visibility("default")))

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, uint64_t flags, int *symbol_status);

/* The library's own functions of the driver under the names that a real one exports them by. */
#define FORWARD(symbol, name, params, args)                  \
  EXPORT CUresult symbol params;                             \
  CUresult symbol params {                                   \
    CUresult(*own) params;                                   \
    void *found_ = NULL;                                     \
    int status_;                                             \
    cuGetProcAddress_v2(#name, &found_, 13000, 0, &status_); \
    if (found_ == NULL) return CUDA_ERROR_NOT_FOUND;         \
    memcpy(&own, &found_, sizeof own);                       \
    return own args;                                         \
  }

FORWARD(cuInit, cuInit, (unsigned flags), (flags))
FORWARD(cuGetErrorString, cuGetErrorString, (CUresult error, const char **text), (error, text))
FORWARD(cuDeviceGet, cuDeviceGet, (CUdevice * device, int ordinal), (device, ordinal))
FORWARD(cuDeviceGetName, cuDeviceGetName, (char *name, int capacity, CUdevice device), (name, capacity, device))
FORWARD(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device), (context, device))
FORWARD(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, (CUdevice device), (device))
FORWARD(cuMemAlloc_v2, cuMemAlloc, (CUdeviceptr * address, size_t bytes), (address, bytes))
FORWARD(cuMemFree_v2, cuMemFree, (CUdeviceptr address), (address))
FORWARD(cuMemHostAlloc, cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags), (memory, bytes, flags))
FORWARD(cuMemFreeHost, cuMemFreeHost, (void *memory), (memory))
FORWARD(cuMemsetD8Async, cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream),
        (to, value, bytes, stream))
FORWARD(cuMemcpyAsync, cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
        (to, from, bytes, stream))
FORWARD(cuMemcpyDtoDAsync_v2, cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
        (to, from, bytes, stream))
FORWARD(cuStreamCreateWithPriority, cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority),
        (stream, flags, priority))
FORWARD(cuStreamDestroy_v2, cuStreamDestroy, (CUstream stream), (stream))
FORWARD(cuStreamSynchronize, cuStreamSynchronize, (CUstream stream), (stream))
FORWARD(cuEventCreate, cuEventCreate, (CUevent * event, unsigned flags), (event, flags))
FORWARD(cuEventDestroy_v2, cuEventDestroy, (CUevent event), (event))
FORWARD(cuEventRecord, cuEventRecord, (CUevent event, CUstream stream), (event, stream))
FORWARD(cuEventElapsedTime, cuEventElapsedTime, (float *milliseconds, CUevent begin, CUevent end),
        (milliseconds, begin, end))
FORWARD(push_context, cuCtxPushCurrent, (CUcontext context), (context))
FORWARD(pop_context, cuCtxPopCurrent, (CUcontext * context), (context))

EXPORT CUresult cuCtxSetCurrent(CUcontext context);
EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags);
EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
EXPORT CUresult cuStreamEndCapture(CUstream stream, void **graph);
EXPORT CUresult cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags);
EXPORT CUresult cuGraphLaunch(void *exec, CUstream stream);
EXPORT CUresult cuGraphExecDestroy(void *exec);
EXPORT CUresult cuGraphDestroy(void *graph);
EXPORT CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr word, uint32_t value, unsigned flags);

CUresult cuCtxSetCurrent(CUcontext context) {
  CUcontext before;
  pop_context(&before);
  return context != NULL ? push_context(context) : CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
  (void)mode;
  engine_capture(stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, void **graph) {
  *graph = engine_end_capture(stream);
  return *graph != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
  (void)flags;
  *exec = engine_copy_graph(graph);
  return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(void *exec, CUstream stream) {
  engine_launch_graph(stream, exec);
  return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(void *exec) { return cuGraphDestroy(exec); }

CUresult cuGraphDestroy(void *graph) {
  engine_destroy_graph(graph);
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr word, uint32_t value, unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE; /* at least */
  engine_wait_value(stream, (const void *)(uintptr_t)word, value);
  return CUDA_SUCCESS;
}
