/* What happens once in a process: the first use of devices by many threads at once, and a layer's first forward while a
 * kernel runs that ends only after it. Every round is a process of its own, this program started again. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/context.h"
#include "gpu/lane.h"
#include "support/package.h"

enum { NUM_THREADS = 16, SECONDS_OF_A_PROCESS = 120 };

/* Starts this program anew; 0 = its tests passed. `mode` is CUDA_MODULE_LOADING, NULL leaves it unset. */
static int run_process(const char *task, int num_devices, const char *mode) {
  char count[16];
  snprintf(count, sizeof count, "%d", num_devices);
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    if (mode != NULL)
      setenv("CUDA_MODULE_LOADING", mode, 1);
    else
      unsetenv("CUDA_MODULE_LOADING");
    execl("/proc/self/exe", "gpu_first_use", task, count, (char *)NULL);
    _exit(127);
  }
  int status = -1;
  if (waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- B41 ---- */

typedef struct starter {
  purr_context_t *context;
  const test_problem_t *problem;
  pthread_barrier_t *barrier;
  int device;
  const purr__kernels_t *kernels;
  bool exact;
} starter_t;

static int num_devices;

static void *first_use(void *arg) {
  starter_t *starter = arg;
  pthread_barrier_wait(starter->barrier);
  purr_plan_t *plan = raw_plan_on(starter->context, starter->problem, &plain_run, 0, starter->device);
  lane_t lane;
  if (plan == NULL || !start(&lane, starter->context, plan, starter->problem, starter->problem->tokens)) return NULL;
  poison(&lane);
  starter->exact = forward(&lane) == PURR_STATUS_OK && finish(&lane) == PURR_STATUS_OK && is_exact(&lane);
  if (purr__kernels_get(plan->device, &starter->kernels, NULL) != PURR_STATUS_OK) starter->kernels = NULL;
  CU_ASSERT_EQUAL(plan->device->ordinal, starter->device);
  stop(&lane);
  purr_plan_destroy(plan);
  return NULL;
}

static void sixteen_threads(void) {
  purr_context_t *context = NULL;
  test_problem_t *problem = test_fixture_f(16, 256, 128, 8, 2, 0);
  pthread_barrier_t barrier;
  starter_t starters[NUM_THREADS];
  pthread_t threads[NUM_THREADS];
  purr_error_t err;
  REQUIRE_OK(purr_context_create(NULL, &context, &err));
  pthread_barrier_init(&barrier, NULL, NUM_THREADS);
  for (int i = 0; i < NUM_THREADS; i++) {
    starters[i] = (starter_t){context, problem, &barrier, i % num_devices, NULL, false};
    pthread_create(&threads[i], NULL, first_use, &starters[i]);
  }
  for (int i = 0; i < NUM_THREADS; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < NUM_THREADS; i++) {
    CU_ASSERT_TRUE(starters[i].exact);
    /* Loaded once: all threads of a device were given the same kernels. */
    CU_ASSERT_PTR_NOT_NULL(starters[i].kernels);
    CU_ASSERT_PTR_EQUAL(starters[i].kernels, starters[i % num_devices].kernels);
  }
  pthread_barrier_destroy(&barrier);
  purr_context_destroy(context);
  test_problem_free(problem);
}

static void b41_fifty_processes(void) {
  const int num_processes = test_is_emulated() ? 2 : 50;
  int num_good = 0;
  for (int i = 0; i < num_processes; i++) num_good += run_process("first-use", num_devices, NULL) == 0;
  fprintf(stderr, "  %d of %d processes, %d threads on %d device%s\n", num_good, num_processes, NUM_THREADS,
          num_devices, num_devices == 1 ? "" : "s");
  CU_ASSERT_EQUAL(num_good, num_processes);
}

/* ---- B49 ---- */

/* A context with the spinning kernel alone. */
static purr_context_t *spin_context(const test_folder_t *folder) {
  static const char *const archs[] = {"sm_80", "sm_90", "sm_100f"};
  char files[3][32], kernel[512];
  test_image_t images[4] = {0};
  strcpy(kernel, test_package_kernel("spin", "spin", 1, 0, 1, 16));
  for (int i = 0; i < 3; i++) {
    snprintf(files[i], sizeof files[i], "kernels.%s.cubin", archs[i]);
    test_package_add_image(folder, files[i], files[i]);
    images[i] = (test_image_t){files[i], archs[i], kernel, NULL};
  }
  test_package_write_manifest(folder, "spin", images);
  const char *given = getenv("PURR_PACKAGE_PATH");
  char *layers = given != NULL ? strdup(given) : NULL;
  purr_context_t *context = NULL;
  setenv("PURR_PACKAGE_PATH", folder->path, 1);
  CU_ASSERT_EQUAL(purr_context_create(NULL, &context, NULL), PURR_STATUS_OK);
  if (layers != NULL)
    setenv("PURR_PACKAGE_PATH", layers, 1);
  else
    unsetenv("PURR_PACKAGE_PATH");
  free(layers);
  return context;
}

static const purr__kernel_t *find_spin(purr_context_t *context) {
  purr_error_t err = PURR_ERROR_INIT;
  purr__device_t *device;
  const purr__kernels_t *kernels;
  const purr__kernel_t *kernel = NULL;
  const purr__kernel_need_t need = {.role = "spin", .params_version = 1, .params_bytes = 16};
  purr_status_t status = purr__device_get(context, 0, &device, &err);
  if (status == PURR_STATUS_OK) status = purr__kernels_get(device, &kernels, &err);
  if (status == PURR_STATUS_OK) status = purr__kernels_find(kernels, &need, &kernel, &err);
  if (status != PURR_STATUS_OK) fprintf(stderr, "spin: %s\n", err.message);
  return status == PURR_STATUS_OK && kernel->function != NULL ? kernel : NULL;
}

/* The mode that the driver says it is in has to be the one that was asked for. */
static void check_mode(const purr__driver_t *driver) {
  enum { EAGER = 1, LAZY = 2 };
  CUresult (*get_mode)(int *) = NULL;
  void *address = dlsym(driver->library, "cuModuleGetLoadingMode");
  memcpy(&get_mode, &address, sizeof address);
  if (get_mode == NULL) return;
  int mode = 0;
  const char *wanted = getenv("CUDA_MODULE_LOADING");
  CU_ASSERT_EQUAL(get_mode(&mode), CUDA_SUCCESS);
  if (wanted != NULL) CU_ASSERT_EQUAL(mode, strcmp(wanted, "LAZY") == 0 ? LAZY : EAGER);
  fprintf(stderr, "  modules are loaded %s\n", mode == LAZY ? "lazily" : "eagerly");
}

/* The word that ends the spinning lies on the device and is set by a copy, on a stream of its own: the call may have to
 * wait for room beside the spinning kernel, so nothing on its stream can end that one. Emulated GPUs have no such
 * kernel; there a stream waits. */
static void first_forward_beside_a_busy_kernel(void) {
  purr_error_t err;
  test_folder_t folder = test_folder_make();
  purr_context_t *spinning = NULL;
  const purr__kernel_t *spin = NULL;
  if (!test_is_emulated()) {
    spinning = spin_context(&folder);
    spin = find_spin(spinning);
    CU_ASSERT_PTR_NOT_NULL_FATAL(spin);
  }
  scene_t scene;
  if (!open_scene(&scene, 16, 2)) return;
  lane_t *lane = &scene.lane;
  purr__device_t *device = scene.plan->device;
  check_mode(device->driver);
  poison(lane);
  void *busy = NULL, *third = NULL, *pinned = NULL, *flag = NULL;
  REQUIRE_OK(purr_stream_create(scene.plan, &busy, &err));
  REQUIRE_OK(purr_stream_create(scene.plan, &third, &err));
  REQUIRE_OK(purr__device_allocate_pinned(device, 64, &pinned, &err));
  REQUIRE_OK(purr_memory_allocate(scene.plan, 64, &flag, &err));
  volatile int *words = pinned; /* 0: what is copied to the flag; 1: set when the busy stream goes on */
  words[0] = words[1] = 0;
  ASSERT_OK(purr_memory_copy(scene.plan, flag, pinned, 64, &err));
  words[0] = 1;
  words[1] = -1;

  const uint64_t begin = purr__now_ns();
  REQUIRE_OK(purr__device_enter(device, &err));
  if (spin != NULL) {
    struct {
      void *flag, *out;
    } params = {flag, (char *)pinned + 4};
    const purr__launch_t launch = {.grid = {1, 1, 1}, .stream = busy, .threads = 1};
    REQUIRE_OK(purr__kernel_launch(spin, &launch, &params, &err));
  } else {
    CU_ASSERT_EQUAL(raw_wait(&lane->raw, busy, flag, 1), CUDA_SUCCESS);
    ASSERT_OK(purr__device_copy(device, (char *)pinned + 4, pinned, 4, busy, &err));
  }
  usleep(20000); /* it runs by now */
  CU_ASSERT_EQUAL(forward(lane), PURR_STATUS_OK);
  CU_ASSERT_EQUAL(words[1], -1); /* and still does */
  CU_ASSERT_EQUAL(device->driver->cuda.cuStreamQuery(busy), CUDA_ERROR_NOT_READY);
  const uint64_t issued = purr__now_ns() - begin;
  ASSERT_OK(purr__device_copy(device, flag, pinned, 4, third, &err));
  ASSERT_OK(purr__device_synchronize(device, third, &err));
  ASSERT_OK(purr__device_synchronize(device, busy, &err));
  const uint64_t took = purr__now_ns() - begin;
  purr__device_leave(device);
  CU_ASSERT_EQUAL(words[1], 1); /* 0: nobody set the flag, and the kernel gave up */
  CU_ASSERT(took < UINT64_C(10000000000));
  CU_ASSERT_EQUAL(finish(lane), PURR_STATUS_OK);
  CU_ASSERT(is_exact(lane));
  fprintf(stderr, "  issued after %.1f ms, the flag was seen after %.1f ms\n", (double)issued / 1e6,
          (double)took / 1e6);
  purr_memory_release(scene.plan, flag, 64);
  purr__device_release_pinned(device, pinned);
  purr_stream_destroy(scene.plan, third);
  purr_stream_destroy(scene.plan, busy);
  close_scene(&scene);
  purr_context_destroy(spinning);
  test_folder_remove(&folder);
}

static void b49_lazy(void) { CU_ASSERT_EQUAL(run_process("busy", 1, "LAZY"), 0); }
static void b49_unset(void) { CU_ASSERT_EQUAL(run_process("busy", 1, NULL), 0); }
static void b49_eager(void) { CU_ASSERT_EQUAL(run_process("busy", 1, "EAGER"), 0); }

/* ---- */

/* In a child, so that this process never touches the driver: the number of devices, 0 = none. */
static int count_devices(void) {
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    purr_error_t err = PURR_ERROR_INIT;
    purr_context_t *context = NULL;
    purr__device_t *device = NULL;
    purr_status_t status = purr_context_create(NULL, &context, &err);
    if (status == PURR_STATUS_OK) status = purr__device_get(context, 0, &device, &err);
    if (status != PURR_STATUS_OK) fprintf(stderr, "skipped: %s\n", err.message);
    const int count = status == PURR_STATUS_OK ? device->driver->num_devices : 0;
    purr_context_destroy(context);
    _exit(count);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

int main(int argc, char **argv) {
  setenv("PURR_TEST_BACKEND", "staged", 0);
  plain_run.backend = test_backend();
  if (argc == 3) {
    alarm(test_is_emulated() ? 0 : SECONDS_OF_A_PROCESS);
    unsetenv("PURR_TEST_ONLY");
    num_devices = atoi(argv[2]);
    return strcmp(argv[1], "busy") == 0
               ? purr_test_main("busy", (purr_test_t[]){{"first forward", first_forward_beside_a_busy_kernel}, {0}})
               : purr_test_main("first use", (purr_test_t[]){{"sixteen threads", sixteen_threads}, {0}});
  }
  num_devices = count_devices();
  if (num_devices == 0) return PURR_TEST_SKIPPED;
  return purr_test_main("first use of a GPU",
                        (purr_test_t[]){{"B41: first uses at once, in fresh processes", b41_fifty_processes},
                                        {"B49: beside a busy kernel, lazy loading", b49_lazy},
                                        {"B49: beside a busy kernel, loading as it is by itself", b49_unset},
                                        {"B49: beside a busy kernel, eager loading", b49_eager},
                                        {0}});
}
