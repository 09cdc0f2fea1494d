/* B25: the sum over slots is made in FP32, and 40 equal calls give one pattern of bits while another stream keeps the
 * device busy. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/lane.h"

static int num_repeats(void) { return test_is_emulated() ? 5 : 40; }

/* ---- the other stream ---- */

/* Runs a layer of its own and fills memory until told to stop; the next round is enqueued before the last is waited
 * for, so that the stream does not run dry. */
typedef struct noise {
  scene_t scene;
  pthread_t thread;
  void *memory;
  uint64_t memory_bytes;
  atomic_bool is_enough;
  atomic_int num_rounds; /* enqueued */
} noise_t;

static void *make_noise(void *arg) {
  noise_t *noise = arg;
  purr_error_t err;
  lane_t *lane = &noise->scene.lane;
  purr__device_t *device = noise->scene.plan->device;
  const purr__cuda_t *cuda = &device->driver->cuda;
  CUevent done[2] = {NULL};
  CU_ASSERT_EQUAL(purr__device_enter(device, NULL), PURR_STATUS_OK);
  for (int i = 0; i < 2; i++) CU_ASSERT_EQUAL(cuda->cuEventCreate(&done[i], CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  for (int round = 0; !noise->is_enough; round++) {
    for (int i = 0; i < (test_is_emulated() ? 1 : 4); i++) {
      CU_ASSERT_EQUAL(forward(lane), PURR_STATUS_OK);
      ASSERT_OK(
          purr__device_fill(device, noise->memory, (unsigned char)i, noise->memory_bytes, lane->rank.stream, &err));
    }
    CU_ASSERT_EQUAL(cuda->cuEventRecord(done[round % 2], lane->rank.stream), CUDA_SUCCESS);
    noise->num_rounds++;
    if (round > 0) CU_ASSERT_EQUAL(cuda->cuEventSynchronize(done[(round + 1) % 2]), CUDA_SUCCESS);
  }
  CU_ASSERT_EQUAL(finish(lane), PURR_STATUS_OK);
  for (int i = 0; i < 2; i++) cuda->cuEventDestroy(done[i]);
  purr__device_leave(device);
  return NULL;
}

static bool start_noise(noise_t *noise) {
  const bool small = test_is_emulated();
  noise->memory_bytes = small ? 1 << 20 : 256 << 20;
  noise->is_enough = false;
  noise->num_rounds = 0;
  if (!open_scene_with(&noise->scene, NULL, test_random(3, small ? 8 : 1024, 256, 128, 8, 2, 0, false))) return false;
  if (purr_memory_allocate(noise->scene.plan, noise->memory_bytes, &noise->memory, NULL) != PURR_STATUS_OK)
    return false;
  pthread_create(&noise->thread, NULL, make_noise, noise);
  while (noise->num_rounds == 0) sched_yield();
  return true;
}

static void stop_noise(noise_t *noise) {
  noise->is_enough = true;
  pthread_join(noise->thread, NULL);
  purr_memory_release(noise->scene.plan, noise->memory, noise->memory_bytes);
  close_scene(&noise->scene);
}

static bool is_busy(const noise_t *noise) {
  purr__device_t *device = noise->scene.plan->device;
  if (purr__device_enter(device, NULL) != PURR_STATUS_OK) return false;
  const CUresult result = device->driver->cuda.cuStreamQuery(noise->scene.lane.rank.stream);
  purr__device_leave(device);
  return result == CUDA_ERROR_NOT_READY;
}

/* ---- the calls ---- */

/* The output's bits are those of the first call, each time; `exact`: and those of the closed form. */
static void repeat(const char *what, test_problem_t *problem, bool exact) {
  noise_t noise;
  scene_t scene;
  if (!open_scene_with(&scene, NULL, problem) || !start_noise(&noise)) {
    CU_FAIL("no memory");
    return;
  }
  lane_t *lane = &scene.lane;
  const size_t bytes = (size_t)num_values(lane) * 2;
  purr__bf16_t *first = malloc(bytes);
  int num_wrong = 0, num_beside = 0;
  for (int i = 0; i < num_repeats(); i++) {
    upload(lane);
    poison(lane);
    const bool was_busy = is_busy(&noise);
    CU_ASSERT_EQUAL(forward(lane), PURR_STATUS_OK);
    CU_ASSERT_EQUAL(finish(lane), PURR_STATUS_OK);
    num_beside += was_busy && is_busy(&noise);
    CU_ASSERT_FALSE(is_untouched(lane));
    if (i == 0) memcpy(first, lane->output, bytes);
    num_wrong += memcmp(lane->output, first, bytes) != 0;
    if (exact) num_wrong += !is_exact(lane);
  }
  fprintf(stderr, "  %s: %d of %d calls beside a busy stream, %d wrong\n", what, num_beside, num_repeats(), num_wrong);
  CU_ASSERT_EQUAL(num_wrong, 0);
  CU_ASSERT(num_beside > num_repeats() / 2);
  stop_noise(&noise);
  free(first);
  close_scene(&scene);
}

/* Fixture F with 64 experts, all slots to experts of multiplier 1; `expected` is what x = 1 becomes. */
static test_problem_t *slots_of_one(int64_t top_k, const float *weights, float expected) {
  test_problem_t *problem = test_fixture_f(test_is_emulated() ? 4 : 64, 256, 128, 64, top_k, 0);
  float sum = 0.0f;
  for (int64_t t = 0; t < problem->tokens; t++)
    for (int64_t k = 0; k < top_k; k++) {
      problem->ids[t * top_k + k] = 8 * k;
      problem->topk_weights[t * top_k + k] = weights[k];
      if (t == 0) sum += weights[k];
    }
  /* The closed form rounds once: raw_fixture_output expects the report's number. */
  CU_ASSERT_EQUAL(purr__fp32_from_bf16(purr__bf16_from_fp32(sum)), expected);
  return problem;
}

static void eight_slots(void) {
  repeat("eight slots", slots_of_one(8, (float[]){256, 1, 1, 1, 1, 1, 1, 1}, 264.0f), true);
}

static void cancellation(void) {
  repeat("cancellation", slots_of_one(3, (float[]){1.0f, 1.0f / 512, -1.0f}, 1.0f / 512), true);
}

/* Where the order of additions shows, which it does not in the exact ones. */
static void random_numbers(void) {
  const bool small = test_is_emulated();
  repeat("random numbers", test_random(11, small ? 8 : 512, 256, small ? 128 : 512, 16, 6, 0, false), false);
}

int main(void) {
  setenv("PURR_TEST_BACKEND", "staged", 0);
  plain_run.backend = test_backend();
  return test_layer_main("repeats on a GPU",
                         (purr_test_t[]){{"B25: eight slots beside a busy stream", eight_slots},
                                         {"B25: cancellation beside a busy stream", cancellation},
                                         {"B25: random numbers beside a busy stream", random_numbers},
                                         {0}});
}
