/* The driver and package layers on a real GPU: what the image says and what the driver says agree, launches compute,
 * and faults, forks, captures and busy devices are survived. Uses the small kernels of tests/data/cubins. */
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/context.h"
#include "package/package.h"
#include "support/main.h"
#include "support/package.h"

static test_folder_t folder;

/* A context that uses the test package alone. */
static purr_context_t *make_context(void) {
  purr_context_t *context;
  setenv("PURR_PACKAGE_PATH", folder.path, 1);
  purr_status_t status = purr_context_create(NULL, &context, NULL);
  unsetenv("PURR_PACKAGE_PATH");
  return status == PURR_STATUS_OK ? context : NULL;
}

static purr_status_t look_up(purr_context_t *context, const char *role, int params_bytes,
                             const purr__kernel_t **out_kernel, purr_error_t *err) {
  purr__device_t *device;
  const purr__kernels_t *kernels;
  purr__kernel_need_t need = {.role = role, .params_version = 1, .params_bytes = params_bytes};
  *out_kernel = NULL;
  purr_status_t status = purr__device_get(context, 0, &device, err);
  if (status == PURR_STATUS_OK) status = purr__kernels_get(device, &kernels, err);
  if (status == PURR_STATUS_OK) status = purr__kernels_find(kernels, &need, out_kernel, err);
  if (status != PURR_STATUS_OK) fprintf(stderr, "%s: %s\n", role, err->message);
  return status;
}

static const purr__kernel_t *find(purr_context_t *context, const char *role, int params_bytes, purr_error_t *err) {
  const purr__kernel_t *kernel;
  CU_ASSERT_EQUAL(look_up(context, role, params_bytes, &kernel, err), PURR_STATUS_OK);
  return kernel;
}

/* ---- the image and the driver agree ---- */

static void attributes_as_in_the_image(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = make_context();
  purr__device_t *device;
  const purr__kernels_t *kernels;
  REQUIRE_OK(purr__device_get(context, 0, &device, &err));
  REQUIRE_OK(purr__kernels_get(device, &kernels, &err));
  CU_ASSERT_EQUAL(kernels->num_kernels, 6);
  for (int i = 0; i < kernels->num_kernels; i++) {
    const purr__kernel_t *kernel = &kernels->kernels[i];
    purr__package_image_t image;
    REQUIRE_OK(purr__package_read_image(kernel->package, kernel->entry->image_idx, &image, &err));
    const purr__cubin_kernel_t *found = purr__cubin_find(&image.cubin, kernel->entry->entry);
    CU_ASSERT_EQUAL(found->registers, kernel->num_registers);
    CU_ASSERT_EQUAL(found->static_shared_bytes, kernel->static_shared_bytes);
    CU_ASSERT_EQUAL(found->stack_bytes, kernel->stack_bytes);
    CU_ASSERT_EQUAL(found->cluster[0] != 0, kernel->has_own_cluster);
    fprintf(stderr, "  %s: %d registers, %d static bytes, %d stack bytes\n", kernel->entry->entry,
            kernel->num_registers, kernel->static_shared_bytes, kernel->stack_bytes);
    purr__package_free_image(kernel->package, &image);
  }
  purr_context_destroy(context);
}

/* ---- launches ---- */

static void adds_vectors(void) {
  enum { COUNT = 10000 };
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = make_context();
  const purr__kernel_t *kernel = find(context, "add", 32, &err);
  if (kernel == NULL) return;
  static float a[COUNT], b[COUNT], out[COUNT];
  for (int i = 0; i < COUNT; i++) {
    a[i] = (float)i;
    b[i] = 0.25f * (float)(i % 7);
  }
  void *memory[3];
  for (int i = 0; i < 3; i++) REQUIRE_OK(purr__device_allocate(kernel->device, sizeof a, "a vector", &memory[i], &err));
  REQUIRE_OK(purr__device_enter(kernel->device, &err));
  REQUIRE_OK(purr__device_fill(kernel->device, memory[0], 0xff, sizeof a, NULL, &err));
  REQUIRE_OK(purr__device_copy(kernel->device, memory[1], a, sizeof a, NULL, &err));
  REQUIRE_OK(purr__device_copy(kernel->device, memory[2], b, sizeof b, NULL, &err));
  struct {
    void *out, *a, *b;
    int count;
  } params = {memory[0], memory[1], memory[2], COUNT};
  purr__launch_t launch = {.grid = {(COUNT + 127) / 128, 1, 1}, .may_overlap = true};
  ASSERT_OK(purr__kernel_launch(kernel, &launch, &params, &err));
  ASSERT_OK(purr__device_copy(kernel->device, out, memory[0], sizeof out, NULL, &err));
  ASSERT_OK(purr__device_synchronize(kernel->device, NULL, &err));
  int num_wrong = 0;
  for (int i = 0; i < COUNT; i++) num_wrong += out[i] != a[i] + b[i];
  CU_ASSERT_EQUAL(num_wrong, 0);
  ASSERT_OK(purr__device_check_pointer(kernel->device, memory[0], "out", &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr__device_check_pointer(kernel->device, out, "out", &err));
  fprintf(stderr, "  %s\n", err.message);
  ASSERT_OK(purr__device_check_stream(kernel->device, NULL, &err));
  purr__device_leave(kernel->device);
  for (int i = 0; i < 3; i++) purr__device_release(kernel->device, memory[i], sizeof a);
  purr_context_destroy(context);
}

/* B47: 16 static bytes; the limit is the device's, the static bytes included. */
static void shared_memory_to_the_last_byte(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = make_context();
  const purr__kernel_t *kernel = find(context, "sum", 16, &err);
  if (kernel == NULL) return;
  void *out;
  REQUIRE_OK(purr__device_allocate(kernel->device, 4, "a sum", &out, &err));
  REQUIRE_OK(purr__device_enter(kernel->device, &err));
  const int last = kernel->device->max_shared_bytes - 16;
  const int sizes[] = {49136, 49137, 49152, 49153, last, last + 1};
  for (int i = 0; i < 6; i++) {
    struct {
      void *out;
      int bytes;
    } params = {out, sizes[i]};
    purr__launch_t launch = {.grid = {1, 1, 1}, .shared_bytes = (uint32_t)sizes[i]};
    purr_status_t status = purr__kernel_launch(kernel, &launch, &params, &err);
    CU_ASSERT_EQUAL(status, sizes[i] > last ? PURR_STATUS_UNSUPPORTED : PURR_STATUS_OK);
    if (status != PURR_STATUS_OK) {
      fprintf(stderr, "  %s\n", err.message);
      continue;
    }
    unsigned sum = 0, expected = 0;
    ASSERT_OK(purr__device_copy(kernel->device, &sum, out, 4, NULL, &err));
    ASSERT_OK(purr__device_synchronize(kernel->device, NULL, &err));
    for (int k = 0; k < sizes[i]; k++) expected += (unsigned char)(k * 31 + 7);
    CU_ASSERT_EQUAL(sum, expected);
  }
  purr__device_leave(kernel->device);
  purr__device_release(kernel->device, out, 4);
  purr_context_destroy(context);
}

static void clusters(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = make_context();
  const purr__kernel_t *kernel = find(context, "cluster", 8, &err);
  if (kernel == NULL) return;
  void *out;
  int ranks[8] = {0};
  REQUIRE_OK(purr__device_allocate(kernel->device, sizeof ranks, "ranks", &out, &err));
  REQUIRE_OK(purr__device_enter(kernel->device, &err));
  purr__launch_t launch = {.grid = {8, 1, 1}, .is_cooperative = true, .may_overlap = true};
  ASSERT_OK(purr__kernel_launch(kernel, &launch, &out, &err));
  launch.grid[0] = 7; /* not a multiple of the cluster: the driver refuses it, and says so */
  ASSERT_STATUS(PURR_STATUS_CUDA, purr__kernel_launch(kernel, &launch, &out, &err));
  fprintf(stderr, "  %s\n", err.message);
  ASSERT_OK(purr__device_copy(kernel->device, ranks, out, sizeof ranks, NULL, &err));
  ASSERT_OK(purr__device_synchronize(kernel->device, NULL, &err));
  for (int i = 0; i < 8; i++) CU_ASSERT_EQUAL(ranks[i], i % 2);
  purr__device_leave(kernel->device);
  purr__device_release(kernel->device, out, sizeof ranks);
  purr_context_destroy(context);
}

/* ---- what must not wait or break ---- */

/* B49: with a kernel running that waits for the host, the first launch of another one does not wait for it. */
static void first_launch_beside_a_busy_kernel(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = make_context();
  const purr__kernel_t *spin = find(context, "spin", 16, &err), *add = find(context, "add", 32, &err);
  if (spin == NULL || add == NULL) return;
  volatile int *words;
  void *pinned;
  CUstream busy, other;
  REQUIRE_OK(purr__device_allocate_pinned(spin->device, 64, &pinned, &err));
  words = pinned;
  words[0] = words[1] = 0;
  REQUIRE_OK(purr__device_enter(spin->device, &err));
  REQUIRE_OK(
      PURR__CUDA(spin->device, &err, cuStreamCreateWithPriority, (&busy, CU_STREAM_NON_BLOCKING, 0), "a stream"));
  REQUIRE_OK(
      PURR__CUDA(spin->device, &err, cuStreamCreateWithPriority, (&other, CU_STREAM_NON_BLOCKING, 0), "a stream"));
  struct {
    void *flag, *out;
  } spin_params = {pinned, (char *)pinned + 4};
  struct {
    void *out, *a, *b;
    int count;
  } add_params = {(char *)pinned + 8, (char *)pinned + 12, (char *)pinned + 16, 1};
  ((float *)pinned)[3] = 1.5f;
  ((float *)pinned)[4] = 2.0f;
  uint64_t begin = purr__now_ns();
  purr__launch_t launch = {.grid = {1, 1, 1}, .stream = busy, .threads = 1};
  ASSERT_OK(purr__kernel_launch(spin, &launch, &spin_params, &err));
  launch = (purr__launch_t){.grid = {1, 1, 1}, .stream = other};
  ASSERT_OK(purr__kernel_launch(add, &launch, &add_params, &err));
  ASSERT_OK(purr__device_synchronize(add->device, other, &err));
  CU_ASSERT_EQUAL(((volatile float *)pinned)[2], 3.5f);
  CU_ASSERT_EQUAL(words[1], 0); /* the other still runs */
  words[0] = 1;
  ASSERT_OK(purr__device_synchronize(spin->device, busy, &err));
  CU_ASSERT_EQUAL(words[1], 1);
  CU_ASSERT((purr__now_ns() - begin) / 1000000 < 10000);
  spin->device->driver->cuda.cuStreamDestroy(busy);
  spin->device->driver->cuda.cuStreamDestroy(other);
  purr__device_leave(spin->device);
  purr__device_release_pinned(spin->device, pinned);
  purr_context_destroy(context);
}

/* Another thread captures in global mode: allocating, freeing, loading and destroying do not break it. */
static void *work_beside_a_capture(void *arg) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = make_context();
  const purr__kernel_t *kernel = find(context, "add", 32, &err);
  void *memory = NULL, *pinned = NULL;
  if (kernel != NULL) {
    ASSERT_OK(purr__device_allocate(kernel->device, 1 << 20, "x", &memory, &err));
    ASSERT_OK(purr__device_allocate_pinned(kernel->device, 4096, &pinned, &err));
    purr__device_release(kernel->device, memory, 1 << 20);
    purr__device_release_pinned(kernel->device, pinned);
  }
  purr_context_destroy(context);
  return arg;
}

static void captures_stay_whole(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = make_context();
  const purr__kernel_t *kernel = find(context, "spin", 16, &err);
  if (kernel == NULL) return;
  purr__device_t *device = kernel->device;
  CUresult (*begin_capture)(CUstream, int), (*end_capture)(CUstream, void **);
  void *address = dlsym(device->driver->library, "cuStreamBeginCapture_v2");
  memcpy(&begin_capture, &address, sizeof address);
  address = dlsym(device->driver->library, "cuStreamEndCapture");
  memcpy(&end_capture, &address, sizeof address);
  CUstream stream;
  void *graph = NULL;
  int words[2] = {1, 0};
  struct {
    void *flag, *out;
  } params = {words, words};
  REQUIRE_OK(purr__device_enter(device, &err));
  REQUIRE_OK(PURR__CUDA(device, &err, cuStreamCreateWithPriority, (&stream, CU_STREAM_NON_BLOCKING, 0), "a stream"));
  CU_ASSERT_EQUAL(begin_capture(stream, 0), 0);
  purr__launch_t launch = {.grid = {1, 1, 1}, .stream = stream};
  ASSERT_OK(purr__kernel_launch(kernel, &launch, &params, &err));
  ASSERT_OK(purr__device_check_stream(device, stream, &err));
  pthread_t thread;
  pthread_create(&thread, NULL, work_beside_a_capture, NULL);
  pthread_join(thread, NULL);
  ASSERT_OK(purr__kernel_launch(kernel, &launch, &params, &err));
  CU_ASSERT_EQUAL(end_capture(stream, &graph), 0);
  CU_ASSERT_PTR_NOT_NULL(graph);
  device->driver->cuda.cuStreamDestroy(stream);
  purr__device_leave(device);
  purr_context_destroy(context);
}

/* ---- processes; each before or in a child, since a fault stays with the process ---- */

static int in_child(int (*run)(void)) {
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    int code = run();
    fflush(NULL);
    _exit(code);
  }
  int code = -1;
  waitpid(child, &code, 0);
  return code;
}

/* Run before this process touches the driver. */
static int lose_the_device(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = make_context();
  const purr__kernel_t *kernel;
  void *memory = NULL;
  if (look_up(context, "fault", 0, &kernel, &err) != PURR_STATUS_OK ||
      purr__device_allocate(kernel->device, 100, "x", &memory, &err) != PURR_STATUS_OK)
    return 1;
  if (purr__device_enter(kernel->device, &err) != PURR_STATUS_OK) return 2;
  purr__launch_t launch = {.grid = {1, 1, 1}};
  if (purr__kernel_launch(kernel, &launch, NULL, &err) != PURR_STATUS_OK) return 3;
  if (purr__device_synchronize(kernel->device, NULL, &err) != PURR_STATUS_DEVICE_LOST) return 4;
  fprintf(stderr, "  %s\n", err.message);
  if (err.native_code != CUDA_ERROR_ILLEGAL_ADDRESS) return 5;
  purr__device_leave(kernel->device);
  if (purr__device_enter(kernel->device, &err) != PURR_STATUS_DEVICE_LOST) return 6;
  fprintf(stderr, "  %s\n", err.message);
  purr__device_release(kernel->device, memory, 100);
  purr_context_destroy(context);
  return 0;
}

static int fault_code;
static void a_fault_leaves_only_destroy(void) { CU_ASSERT_EQUAL(fault_code, 0); }

/* A context of its own in the child of a process that uses the driver. */
static int use_after_fork(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = make_context();
  purr__device_t *device;
  purr_status_t status = purr__device_get(context, 0, &device, &err);
  fprintf(stderr, "  %s: %s\n", purr_status_name(status), err.message);
  purr_context_destroy(context);
  return status == PURR_STATUS_FORKED ? 0 : 1;
}

static void a_child_is_told(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = make_context();
  CU_ASSERT_PTR_NOT_NULL(find(context, "add", 32, &err));
  CU_ASSERT_EQUAL(in_child(use_after_fork), 0);
  CU_ASSERT_PTR_NOT_NULL(find(context, "add", 32, &err));
  purr_context_destroy(context);
}

/* What the driver itself says of an image for another architecture, past our own check. */
static void an_image_for_another_architecture(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = make_context();
  purr__device_t *device;
  REQUIRE_OK(purr__device_get(context, 0, &device, &err));
  static const char *const files[] = {"kernels.sm_80.cubin", "kernels.sm_100f.cubin"};
  for (int i = 0; i < 2; i++) {
    char path[512];
    unsigned char *data;
    uint64_t bytes;
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    snprintf(path, sizeof path, "%s/cubins/%s", PURR_TEST_DATA, files[i]);
    REQUIRE_OK(purr__read_file(context, path, PURR__CUBIN_MAX_BYTES, &data, &bytes, &err));
    REQUIRE_OK(purr__device_enter(device, &err));
    purr_status_t status = PURR__CUDA(device, &err, cuLibraryLoadData, (&library, data, NULL, NULL, 0, NULL, NULL, 0),
                                      "loading %s", files[i]);
    if (status == PURR_STATUS_OK)
      status = PURR__CUDA(device, &err, cuLibraryGetKernel, (&kernel, library, "vector_add"), "finding a kernel");
    if (status == PURR_STATUS_OK)
      status = PURR__CUDA(device, &err, cuKernelGetFunction, (&function, kernel), "loading a kernel of %s", files[i]);
    CU_ASSERT_EQUAL(status, PURR_STATUS_INCOMPATIBLE_BINARY);
    fprintf(stderr, "  %s\n", err.message);
    purr__device_leave(device);
    purr__release(context, data);
  }
  purr_context_destroy(context);
}

static void fill_package(void) {
  char kernels[2048];
  snprintf(kernels, sizeof kernels, "%s, %s, %s, %s, %s", test_package_kernel("vector_add", "add", 128, 0, 1, 32),
           test_package_kernel("shared_sum", "sum", 128, 0, 1, 16), test_package_kernel("fault", "fault", 1, 0, 1, 0),
           test_package_kernel("spin", "spin", 1, 0, 1, 16),
           test_package_kernel("cluster_rank", "cluster", 32, 0, 2, 8));
  char spill[512];
  strcpy(spill, test_package_kernel("spill", "spill", 1024, 0, 1, 16));
  test_package_add_image(&folder, "kernels.sm_90.cubin", "kernels.sm_90.cubin");
  test_package_add_image(&folder, "spill.sm_90.cubin", "spill.sm_90.cubin");
  test_package_write_manifest(
      &folder, "gpu-test",
      (test_image_t[]){
          {"kernels.sm_90.cubin", "sm_90", kernels, NULL}, {"spill.sm_90.cubin", "sm_90", spill, NULL}, {0}});
}

/* In a child, so that this process stays untouched: 0 = a device of compute capability 9.x. */
static int look_for_device(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = make_context();
  purr__device_t *device;
  purr_status_t status = purr__device_get(context, 0, &device, &err);
  int code = status == PURR_STATUS_OK && device->cc_major == 9 ? 0 : 1;
  if (status != PURR_STATUS_OK) fprintf(stderr, "skipped: %s\n", err.message);
  purr_context_destroy(context);
  return code;
}

int main(void) {
  folder = test_folder_make();
  fill_package();
  int failures = PURR_TEST_SKIPPED;
  if (in_child(look_for_device) == 0) {
    fault_code = in_child(lose_the_device);
    failures =
        purr_test_main("driver on a GPU",
                       (purr_test_t[]){{"a sticky fault", a_fault_leaves_only_destroy},
                                       {"attributes as in the image", attributes_as_in_the_image},
                                       {"adds vectors", adds_vectors},
                                       {"B47: shared memory to the last byte", shared_memory_to_the_last_byte},
                                       {"clusters", clusters},
                                       {"B49: first launch beside a busy kernel", first_launch_beside_a_busy_kernel},
                                       {"B59: captures of other threads stay whole", captures_stay_whole},
                                       {"B45: an image for another architecture", an_image_for_another_architecture},
                                       {"B57: a child is told", a_child_is_told},
                                       {0}});
  }
  test_folder_remove(&folder);
  return failures;
}
