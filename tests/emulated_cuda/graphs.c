/* Functions of the driver that tests call by name: graphs, and streams that wait for a word. A graph does its work in
 * the order in which it was captured. */
#include "driver/cuda_api.h"
#include "fake_cuda/engine.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
EXPORT CUresult cuStreamEndCapture(CUstream stream, void **graph);
EXPORT CUresult cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags);
EXPORT CUresult cuGraphLaunch(void *exec, CUstream stream);
EXPORT CUresult cuGraphExecDestroy(void *exec);
EXPORT CUresult cuGraphDestroy(void *graph);
EXPORT CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr word, uint32_t value, unsigned flags);

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
