/* The driver layer against a driver without a GPU: what is said when it is absent, old or broken, who is current when,
 * and what a fault does. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/context.h"
#include "driver/driver.h"
#include "support/fake_cuda.h"
#include "support/main.h"

/* ---- none, broken, too old ---- */

static void assert_driver_fails(const char *library, purr_status_t expected, const char *says) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context;
  REQUIRE_OK(purr_context_create(NULL, &context, &err));
  if (library != NULL) context->driver_library = library;
  purr__driver_t *driver;
  ASSERT_STATUS(expected, purr__driver_get(context, &driver, &err));
  CU_ASSERT_PTR_NULL(driver);
  if (strstr(err.message, says) == NULL) fprintf(stderr, "'%s' does not say '%s'\n", err.message, says);
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, says));
  purr_context_destroy(context);
}

static void says_what_is_missing(void) {
  assert_driver_fails("libcuda-that-is-not-there.so.1", PURR_STATUS_NO_DEVICE, "libcuda-that-is-not-there.so.1");
  assert_driver_fails("libm.so.6", PURR_STATUS_NO_DEVICE, "libm.so.6 is not a CUDA driver");
}

static void names_the_symbol_of_an_old_driver(void) {
  assert_driver_fails(PURR_FAKE_CUDA_11, PURR_STATUS_NO_DEVICE,
                      "is of CUDA 11.4 and has no cuGetProcAddress_v2, which CUDA 12.0 brought");
  fake_cuda_t *fake = fake_cuda_open();
  fake->driver_version = 12030;
  assert_driver_fails(PURR_FAKE_CUDA, PURR_STATUS_NO_DEVICE,
                      "is of CUDA 12.3 and has no cuKernelGetParamInfo, which CUDA 12.4 brought");
  /* A driver that has everything else, and that answers with success and no address. */
  fake->driver_version = 12080;
  fake->missing_symbol = "cuTensorMapEncodeTiled";
  assert_driver_fails(
      PURR_FAKE_CUDA, PURR_STATUS_NO_DEVICE,
      "has no cuTensorMapEncodeTiled, which CUDA 12.0 brought; install a driver for CUDA 12.4 or newer");
  CU_ASSERT_EQUAL(fake->num_inits, 0);
}

static void says_why_it_does_not_start(void) {
  fake_cuda_t *fake = fake_cuda_open();
  fake->num_devices = 0;
  assert_driver_fails(PURR_FAKE_CUDA, PURR_STATUS_NO_DEVICE, "CUDA_ERROR_NO_DEVICE, 100); check CUDA_VISIBLE_DEVICES");
  fake = fake_cuda_open();
  fake->failing_call = "cuInit";
  fake->failing_result = CUDA_ERROR_STUB_LIBRARY;
  assert_driver_fails(PURR_FAKE_CUDA, PURR_STATUS_NO_DEVICE, "stub");
  fake->failing_after = 0;
  fake->failing_result = CUDA_ERROR_NOT_INITIALIZED;
  assert_driver_fails(PURR_FAKE_CUDA, PURR_STATUS_FORKED, "before this process was forked");
  fake->failing_after = 0;
  fake->failing_call = "cuDeviceGetAttribute";
  fake->failing_result = CUDA_ERROR_INVALID_VALUE;
  assert_driver_fails(PURR_FAKE_CUDA, PURR_STATUS_CUDA,
                      "cuDeviceGetAttribute: fake driver text for 1 (CUDA_ERROR_INVALID_VALUE, 1)");
}

/* The same context works once the machine does. */
static void failed_load_can_be_repeated(void) {
  fake_cuda_t *fake = fake_cuda_open();
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = fake_cuda_context();
  purr__device_t *device;
  fake->num_devices = 0;
  ASSERT_STATUS(PURR_STATUS_NO_DEVICE, purr__device_get(context, 0, &device, &err));
  CU_ASSERT_EQUAL(err.native_code, CUDA_ERROR_NO_DEVICE);
  fake->num_devices = 2;
  ASSERT_OK(purr__device_get(context, 1, &device, &err));
  ASSERT_STATUS(PURR_STATUS_NO_DEVICE, purr__device_get(context, 2, &device, &err));
  CU_ASSERT_STRING_EQUAL(err.message, "device 2 is not there; the driver lists 2, numbered from 0");
  purr_context_destroy(context);
}

/* ---- devices and contexts ---- */

static void nothing_is_touched_before_a_gpu_is_asked_for(void) {
  fake_cuda_t *fake = fake_cuda_open();
  purr_context_t *context = fake_cuda_context();
  purr_counters_t counters = {.struct_size = sizeof counters};
  purr_context_query_counters(context, &counters, NULL);
  purr_context_destroy(context);
  CU_ASSERT_EQUAL(fake->num_calls, 0);
}

static void describes_the_devices(void) {
  fake_cuda_t *fake = fake_cuda_open();
  fake->num_devices = 2;
  fake->cc[1] = 103;
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = fake_cuda_context();
  purr__device_t *device;
  REQUIRE_OK(purr__device_get(context, 1, &device, &err));
  CU_ASSERT_EQUAL(device->driver->version, 13000);
  CU_ASSERT_EQUAL(device->driver->num_devices, 2);
  CU_ASSERT_STRING_EQUAL(device->name, "Fake GPU B");
  CU_ASSERT_STRING_EQUAL(device->pci_bus_id, "0000:02:00.0");
  CU_ASSERT_EQUAL(device->cc_major, 10);
  CU_ASSERT_EQUAL(device->cc_minor, 3);
  CU_ASSERT_EQUAL(device->num_sms, 132);
  CU_ASSERT_EQUAL(device->max_shared_bytes, 232448);
  CU_ASSERT_EQUAL(device->total_bytes, (uint64_t)1 << 30);
  CU_ASSERT_EQUAL(fake->num_contexts, 0); /* looking is not using */
  purr_context_destroy(context);
}

static void leaves_the_callers_context_current(void) {
  fake_cuda_t *fake = fake_cuda_open();
  fake->num_devices = 2;
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = fake_cuda_context();
  purr__device_t *first, *second, *current;
  REQUIRE_OK(purr__device_get(context, 0, &first, &err));
  REQUIRE_OK(purr__device_get(context, 1, &second, &err));
  REQUIRE_OK(purr__device_get(context, -1, &current, &err));
  CU_ASSERT_PTR_EQUAL(current, first); /* nothing is current: device 0 */
  REQUIRE_OK(purr__device_enter(second, &err));
  REQUIRE_OK(purr__device_get(context, -1, &current, &err));
  CU_ASSERT_PTR_EQUAL(current, second);
  REQUIRE_OK(purr__device_enter(first, &err));
  CU_ASSERT_EQUAL(fake->num_pushed, 2);
  CU_ASSERT_EQUAL(fake->num_contexts, 2);
  void *memory;
  ASSERT_OK(purr__device_allocate(second, 1000, "a test", &memory, &err));
  ASSERT_OK(purr__device_check_pointer(second, memory, "x", &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr__device_check_pointer(first, memory, "x", &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "memory of device 1; it must be on device 0"));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr__device_check_pointer(first, &err, "topk_ids", &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "topk_ids is at "));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "host memory"));
  purr__device_release(second, memory, 1000);
  purr__device_leave(first);
  purr__device_leave(second);
  CU_ASSERT_EQUAL(fake->num_pushed, 0);
  purr_context_destroy(context);
  CU_ASSERT_EQUAL(fake->num_contexts, 0);
  CU_ASSERT_EQUAL(fake->num_allocations, 0);
}

static void refuses_streams_of_other_contexts(void) {
  fake_cuda_t *fake = fake_cuda_open();
  fake->num_devices = 2;
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = fake_cuda_context();
  purr__device_t *first, *second;
  REQUIRE_OK(purr__device_get(context, 0, &first, &err));
  REQUIRE_OK(purr__device_get(context, 1, &second, &err));
  CUstream stream;
  REQUIRE_OK(purr__device_enter(second, &err));
  REQUIRE_OK(PURR__CUDA(second, &err, cuStreamCreateWithPriority, (&stream, CU_STREAM_NON_BLOCKING, 0), "a stream"));
  purr__device_leave(second);
  REQUIRE_OK(purr__device_enter(first, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr__device_check_stream(first, stream, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "primary one of device 0 (Fake GPU A)"));
  ASSERT_OK(purr__device_check_stream(first, NULL, &err));
  ASSERT_OK(purr__device_enter(second, &err));
  ASSERT_OK(purr__device_check_stream(second, stream, &err));
  purr__device_leave(second);
  purr__device_leave(first);
  purr_context_destroy(context);
}

/* ---- memory ---- */

static void memory_is_counted_and_its_end_has_a_sentence(void) {
  fake_cuda_t *fake = fake_cuda_open();
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = fake_cuda_context();
  purr__device_t *device;
  REQUIRE_OK(purr__device_get(context, 0, &device, &err));
  void *small, *large, *nothing = &err;
  REQUIRE_OK(purr__device_allocate(device, 1 << 20, "the workspace", &small, &err));
  ASSERT_STATUS(PURR_STATUS_OUT_OF_DEVICE_MEMORY,
                purr__device_allocate(device, (uint64_t)1 << 30, "the workspace", &large, &err));
  CU_ASSERT_PTR_NULL(large);
  CU_ASSERT_STRING_EQUAL(err.message,
                         "the workspace needs 1073741824 bytes on device 0 (Fake GPU A), where 1072693248 of "
                         "1073741824 are free");
  CU_ASSERT_EQUAL(err.native_code, CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_OK(purr__device_allocate(device, 0, "nothing", &nothing, &err));
  CU_ASSERT_PTR_NULL(nothing);
  purr_counters_t counters = {.struct_size = sizeof counters};
  purr_context_query_counters(context, &counters, NULL);
  CU_ASSERT_EQUAL(counters.device_bytes, 1 << 20);
  char back[4] = {0};
  ASSERT_OK(purr__device_fill(device, small, 7, 1 << 20, NULL, &err));
  ASSERT_OK(purr__device_copy(device, back, (char *)small + (1 << 20) - 4, 4, NULL, &err));
  CU_ASSERT_EQUAL(back[3], 7);
  purr__device_release(device, small, 1 << 20);
  purr_context_query_counters(context, &counters, NULL);
  CU_ASSERT_EQUAL(counters.device_bytes, 0);
  CU_ASSERT_EQUAL(counters.device_bytes_peak, 1 << 20);
  void *pinned;
  ASSERT_OK(purr__device_allocate_pinned(device, 4096, &pinned, &err));
  purr__device_release_pinned(device, pinned);
  purr_context_destroy(context);
  CU_ASSERT_EQUAL(fake->num_pinned, 0);
  CU_ASSERT_EQUAL(fake->num_unsafe_calls, 0);
}

static _Alignas(256) char hook_memory[1024];
static int hook_device = -1, hook_offset;
static uint64_t hook_released;
static void *hook_allocate(void *user, int32_t device, uint64_t bytes, uint64_t alignment) {
  CU_ASSERT_PTR_EQUAL(user, hook_memory);
  CU_ASSERT(alignment <= 512);
  hook_device = device;
  return bytes <= sizeof hook_memory ? hook_memory + hook_offset : NULL;
}
static void hook_release(void *user, int32_t device, void *memory, uint64_t bytes) {
  CU_ASSERT_PTR_EQUAL(user, hook_memory);
  CU_ASSERT_EQUAL(device, hook_device);
  CU_ASSERT_PTR_EQUAL(memory, hook_memory + hook_offset);
  hook_released += bytes;
}

/* To free waits for the device, where one rank's kernel may wait for another rank: who frees there does not. */
static void what_is_freed_on_a_shared_device_is_freed_later(void) {
  enum { MIB = 1 << 20 };
  fake_cuda_t *fake = fake_cuda_open(); /* of 1 GiB: 64 MiB may be parked */
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = fake_cuda_context();
  purr_counters_t counters = {.struct_size = sizeof counters};
  purr__device_t *device;
  void *memory[3], *pinned, *all;
  REQUIRE_OK(purr__device_get(context, 0, &device, &err));
  purr__device_share(device);
  purr__device_share(device);
  for (int i = 0; i < 3; i++) REQUIRE_OK(purr__device_allocate(device, 30 * MIB, "a buffer", &memory[i], &err));
  REQUIRE_OK(purr__device_allocate_pinned(device, 4096, &pinned, &err));
  purr__device_release(device, memory[0], 30 * MIB);
  purr__device_release_pinned(device, pinned);
  CU_ASSERT_EQUAL(fake->num_allocations, 3);
  CU_ASSERT_EQUAL(fake->num_pinned, 1);
  purr_context_query_counters(context, &counters, NULL);
  CU_ASSERT_EQUAL(counters.device_bytes, 90 * MIB);

  /* Where there is no memory left. */
  REQUIRE_OK(purr__device_allocate(device, 940 * (uint64_t)MIB, "all the rest", &all, &err));
  CU_ASSERT_EQUAL(fake->num_allocations, 3);
  CU_ASSERT_EQUAL(fake->num_pinned, 0);
  purr__device_release(device, all, 940 * (uint64_t)MIB); /* more than a sixteenth: at once */
  CU_ASSERT_EQUAL(fake->num_allocations, 2);

  /* When nobody shares the device any more. */
  purr__device_release(device, memory[1], 30 * MIB);
  purr__device_unshare(device);
  CU_ASSERT_EQUAL(fake->num_allocations, 2);
  purr__device_unshare(device);
  CU_ASSERT_EQUAL(fake->num_allocations, 1);
  purr__device_release(device, memory[2], 30 * MIB);
  CU_ASSERT_EQUAL(fake->num_allocations, 0);
  purr_context_query_counters(context, &counters, NULL);
  CU_ASSERT_EQUAL(counters.device_bytes, 0);
  purr_context_destroy(context);
  CU_ASSERT_EQUAL(fake->num_unsafe_calls, 0);
}

static void memory_comes_from_the_callers_hook(void) {
  fake_cuda_t *fake = fake_cuda_open();
  purr_error_t err = PURR_ERROR_INIT;
  purr_device_allocator_t hook = {sizeof hook, 0, hook_allocate, NULL, hook_memory};
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  desc.device_allocator = &hook;
  purr_context_t *context;
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_context_create(&desc, &context, &err));
  hook.release = hook_release;
  REQUIRE_OK(purr_context_create(&desc, &context, &err));
  context->driver_library = PURR_FAKE_CUDA;
  purr__device_t *device;
  REQUIRE_OK(purr__device_get(context, 0, &device, &err));
  void *memory;
  REQUIRE_OK(purr__device_allocate(device, 1000, "x", &memory, &err));
  CU_ASSERT_PTR_EQUAL(memory, hook_memory);
  purr__device_release(device, memory, 1000);
  CU_ASSERT_EQUAL(hook_released, 1000);
  ASSERT_STATUS(PURR_STATUS_OUT_OF_DEVICE_MEMORY, purr__device_allocate(device, 2000, "x", &memory, &err));
  CU_ASSERT_PTR_NULL(memory);
  hook_offset = 16;
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr__device_allocate(device, 100, "x", &memory, &err));
  CU_ASSERT_EQUAL(hook_released, 1100); /* handed back at once */
  CU_ASSERT_EQUAL(fake->num_allocations, 0);
  purr_context_destroy(context);
}

/* ---- faults ---- */

static void a_fault_leaves_only_destroy(void) {
  fake_cuda_t *fake = fake_cuda_open();
  fake->fault = CUDA_ERROR_ILLEGAL_ADDRESS;
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = fake_cuda_context();
  purr__device_t *device;
  REQUIRE_OK(purr__device_get(context, 0, &device, &err));
  void *memory;
  REQUIRE_OK(purr__device_allocate(device, 100, "x", &memory, &err));
  REQUIRE_OK(purr__device_enter(device, &err));
  struct {
    char unused[256];
  } kernel = {{0}};
  purr__launch_t launch = {.name = "k", .grid = {1, 1, 0}, .threads = 32};
  ASSERT_OK(purr__device_launch(device, (CUfunction)(void *)&kernel, &launch, NULL, &err));
  CU_ASSERT_EQUAL(fake->num_launches, 0); /* an empty grid is no launch */
  launch.grid[2] = 1;
  ASSERT_OK(purr__device_launch(device, (CUfunction)(void *)&kernel, &launch, NULL, &err));
  CU_ASSERT_EQUAL(fake->num_launches, 1);
  purr_counters_t counters = {.struct_size = sizeof counters};
  ASSERT_OK(purr_context_query_counters(context, &counters, &err));
  CU_ASSERT_EQUAL(counters.num_launches, 1);
  ASSERT_STATUS(PURR_STATUS_DEVICE_LOST, PURR__CUDA(device, &err, cuStreamSynchronize, (NULL), "waiting"));
  CU_ASSERT_EQUAL(err.native_code, CUDA_ERROR_ILLEGAL_ADDRESS);
  CU_ASSERT_STRING_EQUAL(err.message,
                         "waiting on device 0 (Fake GPU A): cuStreamSynchronize: fake driver text for 700 "
                         "(CUDA_ERROR_ILLEGAL_ADDRESS, 700)");
  purr__device_leave(device);
  int num_calls = fake->num_calls;
  void *more;
  ASSERT_STATUS(PURR_STATUS_DEVICE_LOST, purr__device_allocate(device, 100, "x", &more, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "device 0 (Fake GPU A) was lost in an earlier call"));
  CU_ASSERT_EQUAL(fake->num_calls, num_calls); /* the driver is left alone */
  purr__device_release(device, memory, 100);
  purr_context_destroy(context);
}

static void statuses_of_results(void) {
  fake_cuda_open();
  purr_error_t err = PURR_ERROR_INIT;
  static const struct {
    int result;
    purr_status_t status;
  } cases[] = {{1, PURR_STATUS_CUDA},
               {2, PURR_STATUS_OUT_OF_DEVICE_MEMORY},
               {46, PURR_STATUS_NO_DEVICE},
               {100, PURR_STATUS_NO_DEVICE},
               {200, PURR_STATUS_INCOMPATIBLE_BINARY},
               {209, PURR_STATUS_INCOMPATIBLE_BINARY},
               {218, PURR_STATUS_INCOMPATIBLE_BINARY},
               {701, PURR_STATUS_CUDA},
               {720, PURR_STATUS_CUDA},
               {912, PURR_STATUS_CUDA},
               {226, PURR_STATUS_DEVICE_LOST},
               {700, PURR_STATUS_DEVICE_LOST},
               {710, PURR_STATUS_DEVICE_LOST},
               {714, PURR_STATUS_DEVICE_LOST},
               {715, PURR_STATUS_DEVICE_LOST},
               {716, PURR_STATUS_DEVICE_LOST},
               {717, PURR_STATUS_DEVICE_LOST},
               {718, PURR_STATUS_DEVICE_LOST},
               {719, PURR_STATUS_DEVICE_LOST},
               {721, PURR_STATUS_DEVICE_LOST}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    purr_context_t *context = fake_cuda_context();
    purr__device_t *device;
    REQUIRE_OK(purr__device_get(context, 0, &device, &err));
    ASSERT_STATUS(cases[i].status, purr__device_check(device, cases[i].result, "cuCall", &err, "testing"));
    CU_ASSERT_EQUAL(err.native_code, cases[i].result);
    CU_ASSERT_EQUAL(purr__driver_is_lost(device->driver), cases[i].status == PURR_STATUS_DEVICE_LOST);
    purr_context_destroy(context);
  }
}

/* Every call of the driver that the first use makes may fail: nothing stays behind. */
static void failing_calls_leave_nothing_behind(void) {
  static const char *const calls[] = {"cuInit",
                                      "cuDeviceGetCount",
                                      "cuDeviceGet",
                                      "cuDeviceTotalMem",
                                      "cuDeviceGetAttribute",
                                      "cuDevicePrimaryCtxRetain",
                                      "cuCtxPushCurrent",
                                      "cuMemAlloc",
                                      "cuMemHostAlloc",
                                      "cuMemcpyAsync",
                                      "cuStreamCreateWithPriority"};
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    fake_cuda_t *fake = fake_cuda_open();
    fake->failing_call = calls[i];
    fake->failing_result = CUDA_ERROR_INVALID_VALUE;
    purr_error_t err = PURR_ERROR_INIT;
    purr_context_t *context = fake_cuda_context();
    purr__device_t *device;
    purr_status_t status = purr__device_get(context, 0, &device, &err);
    void *memory = NULL, *pinned = NULL;
    CUstream stream;
    if (status == PURR_STATUS_OK) status = purr__device_allocate(device, 64, "x", &memory, &err);
    if (status == PURR_STATUS_OK) status = purr__device_allocate_pinned(device, 64, &pinned, &err);
    if (status == PURR_STATUS_OK) status = purr__device_copy(device, pinned, memory, 64, NULL, &err);
    if (status == PURR_STATUS_OK && purr__device_enter(device, &err) == PURR_STATUS_OK) {
      status = PURR__CUDA(device, &err, cuStreamCreateWithPriority, (&stream, 0, 0), "creating a stream");
      purr__device_leave(device);
    }
    CU_ASSERT_NOT_EQUAL(status, PURR_STATUS_OK);
    CU_ASSERT(strlen(err.message) > 20);
    if (device != NULL) {
      purr__device_release(device, memory, 64);
      purr__device_release_pinned(device, pinned);
    }
    purr_context_destroy(context);
    CU_ASSERT_EQUAL(fake->num_contexts, 0);
    CU_ASSERT_EQUAL(fake->num_allocations, 0);
    CU_ASSERT_EQUAL(fake->num_pinned, 0);
    CU_ASSERT_EQUAL(fake->num_pushed, 0);
  }
}

/* ---- threads and forks ---- */

enum { NUM_THREADS = 16 };
static pthread_barrier_t barrier;
static void *first_use(void *arg) {
  purr_context_t *context = arg;
  purr__device_t *device;
  void *memory;
  pthread_barrier_wait(&barrier);
  purr_status_t status = purr__device_get(context, 0, &device, NULL);
  if (status == PURR_STATUS_OK) status = purr__device_allocate(device, 4096, "x", &memory, NULL);
  if (status == PURR_STATUS_OK) purr__device_release(device, memory, 4096);
  return (void *)(intptr_t)status;
}

static void first_use_from_many_threads(void) {
  fake_cuda_t *fake = fake_cuda_open();
  purr_context_t *context = fake_cuda_context();
  pthread_t threads[NUM_THREADS];
  pthread_barrier_init(&barrier, NULL, NUM_THREADS);
  for (int i = 0; i < NUM_THREADS; i++) pthread_create(&threads[i], NULL, first_use, context);
  for (int i = 0; i < NUM_THREADS; i++) {
    void *status;
    pthread_join(threads[i], &status);
    CU_ASSERT_EQUAL((intptr_t)status, PURR_STATUS_OK);
  }
  pthread_barrier_destroy(&barrier);
  CU_ASSERT_EQUAL(fake->num_inits, 1);
  CU_ASSERT_EQUAL(fake->num_contexts, 1); /* the primary context is retained once */
  purr_context_destroy(context);
  CU_ASSERT_EQUAL(fake->num_contexts, 0);
}

static void a_child_cannot_use_the_parents_context(void) {
  fake_cuda_t *fake = fake_cuda_open();
  purr_context_t *context = fake_cuda_context();
  purr__device_t *device;
  CU_ASSERT_EQUAL(purr__device_get(context, 0, &device, NULL), PURR_STATUS_OK);
  int num_calls = fake->num_calls;
  pid_t child = fork();
  if (child == 0) {
    purr_counters_t counters = {.struct_size = sizeof counters};
    bool refused = purr_context_query_counters(context, &counters, NULL) == PURR_STATUS_FORKED;
    purr_context_destroy(context);
    _exit(refused && fake->num_calls == num_calls ? 0 : 1); /* and the driver was not called */
  }
  int code;
  waitpid(child, &code, 0);
  CU_ASSERT_EQUAL(code, 0);
  purr_context_destroy(context);
}

int main(void) {
  return purr_test_main("driver",
                        (purr_test_t[]){{"no driver, or another library", says_what_is_missing},
                                        {"B49: an old driver", names_the_symbol_of_an_old_driver},
                                        {"a driver that does not start", says_why_it_does_not_start},
                                        {"a failed load can be repeated", failed_load_can_be_repeated},
                                        {"B57: nothing is touched early", nothing_is_touched_before_a_gpu_is_asked_for},
                                        {"devices", describes_the_devices},
                                        {"the caller's context stays current", leaves_the_callers_context_current},
                                        {"streams of other contexts", refuses_streams_of_other_contexts},
                                        {"device memory", memory_is_counted_and_its_end_has_a_sentence},
                                        {"freed on a shared device", what_is_freed_on_a_shared_device_is_freed_later},
                                        {"device memory from a hook", memory_comes_from_the_callers_hook},
                                        {"a sticky fault", a_fault_leaves_only_destroy},
                                        {"statuses of CUresults", statuses_of_results},
                                        {"failing driver calls", failing_calls_leave_nothing_behind},
                                        {"B41: first use from 16 threads", first_use_from_many_threads},
                                        {"B57: fork after first use", a_child_cannot_use_the_parents_context},
                                        {0}});
}
