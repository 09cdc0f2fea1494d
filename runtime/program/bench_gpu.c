/* GPU time, measured with the CUDA driver itself: events around the work, the L2 flushed in front of it, and the stream
 * held back until all of it is enqueued, so that no launch is waited for. */
#include <dlfcn.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

/* ------------------------------------------------------------------------------------------------------- the driver */

/* What is called of the driver, by the names that libcuda.so.1 exports. */
#define CUDA_FUNCTIONS(X)                                                                                            \
  X(cuInit, "cuInit", (unsigned flags))                                                                              \
  X(cuGetErrorString, "cuGetErrorString", (int result, const char **text))                                           \
  X(cuDeviceGet, "cuDeviceGet", (int *device, int ordinal))                                                          \
  X(cuDeviceGetName, "cuDeviceGetName", (char *name, int capacity, int device))                                      \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (void **context, int device))                              \
  X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (int device))                                         \
  X(cuCtxSetCurrent, "cuCtxSetCurrent", (void *context))                                                             \
  X(cuMemAlloc, "cuMemAlloc_v2", (uint64_t * address, size_t bytes))                                                 \
  X(cuMemFree, "cuMemFree_v2", (uint64_t address))                                                                   \
  X(cuMemHostAlloc, "cuMemHostAlloc", (void **memory, size_t bytes, unsigned flags))                                 \
  X(cuMemFreeHost, "cuMemFreeHost", (void *memory))                                                                  \
  X(cuMemsetD8Async, "cuMemsetD8Async", (uint64_t to, unsigned char value, size_t bytes, void *stream))              \
  X(cuMemcpyAsync, "cuMemcpyAsync", (uint64_t to, uint64_t from, size_t bytes, void *stream))                        \
  X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (uint64_t to, uint64_t from, size_t bytes, void *stream))             \
  X(cuStreamCreate, "cuStreamCreate", (void **stream, unsigned flags))                                               \
  X(cuStreamDestroy, "cuStreamDestroy_v2", (void *stream))                                                           \
  X(cuStreamSynchronize, "cuStreamSynchronize", (void *stream))                                                      \
  X(cuStreamWaitValue32, "cuStreamWaitValue32_v2", (void *stream, uint64_t address, uint32_t value, unsigned flags)) \
  X(cuEventCreate, "cuEventCreate", (void **event, unsigned flags))                                                  \
  X(cuEventDestroy, "cuEventDestroy_v2", (void *event))                                                              \
  X(cuEventRecord, "cuEventRecord", (void *event, void *stream))                                                     \
  X(cuEventElapsedTime, "cuEventElapsedTime", (float *milliseconds, void *begin, void *end))                         \
  X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (void *stream, int mode))                                       \
  X(cuStreamEndCapture, "cuStreamEndCapture", (void *stream, void **graph))                                          \
  X(cuGraphInstantiate, "cuGraphInstantiateWithFlags", (void **exec, void *graph, unsigned long long flags))         \
  X(cuGraphLaunch, "cuGraphLaunch", (void *exec, void *stream))                                                      \
  X(cuGraphExecDestroy, "cuGraphExecDestroy", (void *exec))                                                          \
  X(cuGraphDestroy, "cuGraphDestroy", (void *graph))

typedef struct cuda {
#define MEMBER(name, symbol, params) int(*name) params;
  CUDA_FUNCTIONS(MEMBER)
#undef MEMBER
} cuda_t;

enum { FLUSH_BYTES = 256 << 20 }; /* several times any L2 */
enum { HELD_NS = 2000000 };       /* how long the stream is held: also a pause for the card, which is power-limited */
enum { COPY_BYTES = 1 << 30, NUM_COPIES = 11 };
enum { NUM_ROUNDS = 8, CALLS_PER_ROUND = 16 }; /* of host time; a round stays below what a stream can queue, 1024 */
enum { HOST_PORTABLE = 1, HOST_DEVICEMAP = 2, STREAM_NON_BLOCKING = 1, WAIT_GEQ = 0, CAPTURE_THREAD_LOCAL = 1 };

struct gpu {
  cuda_t cuda;
  const char *command; /* that uses it, for messages */
  char name[96];
  int device;
  void *context, *stream, *begin, *end, *graph_exec;
  uint64_t flush;             /* device memory */
  _Atomic uint32_t *released; /* page-locked: the stream goes on when it has come to `held` */
  uint32_t held;
  bool can_hold;
};

static int fail_cuda(const gpu_t *gpu, const char *call, int result) {
  const char *text = NULL;
  if (gpu->cuda.cuGetErrorString(result, &text) != 0 || text == NULL) text = "no description";
  return fail(gpu->command, "purr doctor says what works on this machine", "%s: %s (%d)", call, text, result);
}

/* One driver call on this one's device: the exit code. */
#define CUDA(gpu, name, ...) \
  check((gpu), #name, ((gpu)->cuda.cuCtxSetCurrent((gpu)->context), (gpu)->cuda.name(__VA_ARGS__)))
static int check(const gpu_t *gpu, const char *call, int result) {
  return result == 0 ? EXIT_GOOD : fail_cuda(gpu, call, result);
}

static int load(const char *command, cuda_t *cuda) {
  static const struct {
    const char *symbol;
    size_t offset;
  } functions[] = {
#define ENTRY(name, symbol, params) {symbol, offsetof(cuda_t, name)},
      CUDA_FUNCTIONS(ENTRY)
#undef ENTRY
  };
  const char *next = "install NVIDIA's driver for CUDA 12.4 or newer; purr doctor says what works on this machine";
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); /* the one that libpurr uses */
  if (library == NULL) return fail(command, next, "there is no CUDA driver: %s", dlerror());
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    void *address = dlsym(library, functions[i].symbol);
    if (address == NULL) return fail(command, next, "the CUDA driver has no %s", functions[i].symbol);
    memcpy((char *)cuda + functions[i].offset, &address, sizeof address);
  }
  return EXIT_GOOD;
}

int gpu_open(gpu_t **out_gpu, const char *command, int device) {
  gpu_t *gpu = *out_gpu = calloc(1, sizeof *gpu);
  if (gpu == NULL) return fail(command, "free some memory", "memory ran out");
  gpu->command = command;
  int code = load(command, &gpu->cuda);
  if (code != EXIT_GOOD) return code;
  void *flag = NULL;
  code = CUDA(gpu, cuInit, 0);
  if (code == EXIT_GOOD) code = CUDA(gpu, cuDeviceGet, &gpu->device, device);
  if (code == EXIT_GOOD) code = CUDA(gpu, cuDeviceGetName, gpu->name, sizeof gpu->name, gpu->device);
  if (code == EXIT_GOOD) code = CUDA(gpu, cuDevicePrimaryCtxRetain, &gpu->context, gpu->device);
  if (code == EXIT_GOOD) code = CUDA(gpu, cuCtxSetCurrent, gpu->context);
  if (code == EXIT_GOOD) code = CUDA(gpu, cuStreamCreate, &gpu->stream, STREAM_NON_BLOCKING);
  if (code == EXIT_GOOD) code = CUDA(gpu, cuEventCreate, &gpu->begin, 0);
  if (code == EXIT_GOOD) code = CUDA(gpu, cuEventCreate, &gpu->end, 0);
  if (code == EXIT_GOOD) code = CUDA(gpu, cuMemAlloc, &gpu->flush, FLUSH_BYTES);
  if (code == EXIT_GOOD) code = CUDA(gpu, cuMemHostAlloc, &flag, sizeof *gpu->released, HOST_PORTABLE | HOST_DEVICEMAP);
  if (code != EXIT_GOOD) return code;
  gpu->released = flag;
  atomic_init(gpu->released, 0);
  /* Asked with a value that is there: where the device cannot do it, the call says so and nothing is enqueued. */
  gpu->can_hold = gpu->cuda.cuStreamWaitValue32(gpu->stream, (uintptr_t)gpu->released, 0, WAIT_GEQ) == 0;
  return CUDA(gpu, cuStreamSynchronize, gpu->stream);
}

static void drop_graph(gpu_t *gpu) {
  if (gpu->graph_exec != NULL) gpu->cuda.cuGraphExecDestroy(gpu->graph_exec);
  gpu->graph_exec = NULL;
}

void gpu_close(gpu_t *gpu) {
  if (gpu == NULL) return;
  if (gpu->context != NULL) {
    gpu->cuda.cuCtxSetCurrent(gpu->context);
    drop_graph(gpu);
    if (gpu->released != NULL) gpu->cuda.cuMemFreeHost((void *)gpu->released);
    if (gpu->flush != 0) gpu->cuda.cuMemFree(gpu->flush);
    if (gpu->end != NULL) gpu->cuda.cuEventDestroy(gpu->end);
    if (gpu->begin != NULL) gpu->cuda.cuEventDestroy(gpu->begin);
    if (gpu->stream != NULL) gpu->cuda.cuStreamDestroy(gpu->stream);
    gpu->cuda.cuCtxSetCurrent(NULL);
    gpu->cuda.cuDevicePrimaryCtxRelease(gpu->device);
  }
  free(gpu);
}

const char *gpu_name(const gpu_t *gpu) { return gpu->name; }
void *gpu_stream(const gpu_t *gpu) { return gpu->stream; }
bool gpu_hides_launches(const gpu_t *gpu) { return gpu->can_hold; }

int gpu_allocate(gpu_t *gpu, uint64_t bytes, uint64_t *out_address) {
  *out_address = 0;
  return CUDA(gpu, cuMemAlloc, out_address, bytes);
}

void gpu_release(gpu_t *gpu, uint64_t address) {
  if (address != 0) gpu->cuda.cuMemFree(address);
}

int gpu_copy(gpu_t *gpu, uint64_t to, uint64_t from, uint64_t bytes) {
  int code = CUDA(gpu, cuMemcpyAsync, to, from, bytes, gpu->stream);
  return code == EXIT_GOOD ? CUDA(gpu, cuStreamSynchronize, gpu->stream) : code;
}

/* ------------------------------------------------------------------------------------------------------------ timing
 */

static double seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int compare_reals(const void *a, const void *b) {
  const double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

static double median_of(double *values, int count) {
  qsort(values, (size_t)count, sizeof *values, compare_reals);
  return values[count / 2];
}

/* What is enqueued after this runs once release is called. */
static int hold(gpu_t *gpu) {
  if (!gpu->can_hold) return EXIT_GOOD;
  return CUDA(gpu, cuStreamWaitValue32, gpu->stream, (uintptr_t)gpu->released, ++gpu->held, WAIT_GEQ);
}

static void release(gpu_t *gpu) { atomic_store(gpu->released, gpu->held); }

static int flush(gpu_t *gpu) {
  return CUDA(gpu, cuMemsetD8Async, gpu->flush, (unsigned char)(0x5A + gpu->held), FLUSH_BYTES, gpu->stream);
}

static int hold_all(gpu_t *const *gpus, int64_t num_gpus) {
  int code = EXIT_GOOD;
  for (int64_t i = 0; i < num_gpus && code == EXIT_GOOD; i++) code = hold(gpus[i]);
  return code;
}

/* Also after a failure: nothing may wait for ever. */
static int release_all(gpu_t *const *gpus, int64_t num_gpus, int code) {
  for (int64_t i = 0; i < num_gpus; i++) release(gpus[i]);
  for (int64_t i = 0; i < num_gpus && code == EXIT_GOOD; i++)
    code = CUDA(gpus[i], cuStreamSynchronize, gpus[i]->stream);
  return code;
}

/* One rank's flush belongs to what is held back; several might flush while others have begun, so they flush before. */
static int flush_all(gpu_t *const *gpus, int64_t num_gpus) {
  int code = EXIT_GOOD;
  for (int64_t i = 0; i < num_gpus && code == EXIT_GOOD; i++) code = flush(gpus[i]);
  for (int64_t i = 0; i < num_gpus && code == EXIT_GOOD; i++)
    code = CUDA(gpus[i], cuStreamSynchronize, gpus[i]->stream);
  return code;
}

int gpu_time(gpu_t *const *gpus, int64_t num_gpus, work_fn work, void *arg, double *out_s) {
  int code = num_gpus > 1 ? flush_all(gpus, num_gpus) : EXIT_GOOD;
  if (code == EXIT_GOOD) code = hold_all(gpus, num_gpus);
  if (code == EXIT_GOOD && num_gpus == 1) code = flush(gpus[0]);
  for (int64_t i = 0; i < num_gpus && code == EXIT_GOOD; i++)
    code = CUDA(gpus[i], cuEventRecord, gpus[i]->begin, gpus[i]->stream);
  if (code == EXIT_GOOD) code = work(arg);
  for (int64_t i = 0; i < num_gpus && code == EXIT_GOOD; i++)
    code = CUDA(gpus[i], cuEventRecord, gpus[i]->end, gpus[i]->stream);
  if (code == EXIT_GOOD) nanosleep(&(struct timespec){0, HELD_NS}, NULL);
  code = release_all(gpus, num_gpus, code);
  *out_s = 0.0;
  for (int64_t i = 0; i < num_gpus && code == EXIT_GOOD; i++) {
    float milliseconds = 0.0f;
    code = CUDA(gpus[i], cuEventElapsedTime, &milliseconds, gpus[i]->begin, gpus[i]->end);
    if (1e-3 * (double)milliseconds > *out_s) *out_s = 1e-3 * (double)milliseconds;
  }
  return code;
}

int gpu_host_time(gpu_t *const *gpus, int64_t num_gpus, work_fn work, void *arg, double *out_s) {
  double times[NUM_ROUNDS * CALLS_PER_ROUND];
  int num_times = 0, code = EXIT_GOOD;
  for (int round = 0; round < NUM_ROUNDS && code == EXIT_GOOD; round++) {
    code = hold_all(gpus, num_gpus);
    for (int i = 0; i < CALLS_PER_ROUND && code == EXIT_GOOD; i++) {
      const double begin = seconds_now();
      code = work(arg);
      times[num_times++] = (seconds_now() - begin) / (double)num_gpus;
    }
    code = release_all(gpus, num_gpus, code);
  }
  if (code == EXIT_GOOD) *out_s = median_of(times, num_times);
  return code;
}

typedef struct copy {
  gpu_t *gpu;
  uint64_t from, to;
} copy_t;

static int copy_once(void *arg) {
  const copy_t *copy = arg;
  return CUDA(copy->gpu, cuMemcpyDtoDAsync, copy->to, copy->from, COPY_BYTES, copy->gpu->stream);
}

int gpu_copy_rate(gpu_t *gpu, double *out_tb_per_s) {
  copy_t copy = {.gpu = gpu};
  double times[NUM_COPIES];
  int code = EXIT_GOOD;
  *out_tb_per_s = NAN;
  if (gpu->cuda.cuMemAlloc(&copy.from, COPY_BYTES) == 0 && gpu->cuda.cuMemAlloc(&copy.to, COPY_BYTES) == 0) {
    for (int i = 0; i < NUM_COPIES && code == EXIT_GOOD; i++) code = gpu_time(&gpu, 1, copy_once, &copy, &times[i]);
    if (code == EXIT_GOOD) *out_tb_per_s = 2e-12 * COPY_BYTES / median_of(times, NUM_COPIES);
  }
  if (copy.from != 0) gpu->cuda.cuMemFree(copy.from);
  if (copy.to != 0) gpu->cuda.cuMemFree(copy.to);
  return code;
}

/* ------------------------------------------------------------------------------------------------------------ graphs
 */

int gpu_capture(gpu_t *gpu, work_fn work, void *arg) {
  void *graph = NULL;
  drop_graph(gpu);
  int code = CUDA(gpu, cuStreamBeginCapture, gpu->stream, CAPTURE_THREAD_LOCAL);
  if (code != EXIT_GOOD) return code;
  code = work(arg);
  const int result = gpu->cuda.cuStreamEndCapture(gpu->stream, &graph); /* also after a failure */
  if (code == EXIT_GOOD) code = check(gpu, "cuStreamEndCapture", result);
  if (code == EXIT_GOOD) code = CUDA(gpu, cuGraphInstantiate, &gpu->graph_exec, graph, 0);
  if (graph != NULL) gpu->cuda.cuGraphDestroy(graph);
  return code;
}

int gpu_replay(gpu_t *gpu) { return CUDA(gpu, cuGraphLaunch, gpu->graph_exec, gpu->stream); }
