/* base/threads.c: each task runs once, whoever asks and however many ask at once. */
#include <pthread.h>
#include <stdlib.h>

#include "base/base.h"
#include "support/allocator.h"
#include "support/main.h"

static purr_context_t *context_of(uint32_t num_threads) {
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  desc.num_threads = num_threads;
  purr_context_t *context = NULL;
  purr_error_t err = PURR_ERROR_INIT;
  ASSERT_OK(purr_context_create(&desc, &context, &err));
  return context;
}

/* Plain memory on purpose: what a task wrote must be visible to the caller, without atomics of its own. */
static void count_task(void *arg, int64_t task_idx) { ((int *)arg)[task_idx]++; }

static void each_task_runs_once(void) {
  static const int64_t counts[] = {0, 1, 2, 3, 64, 5000};
  for (uint32_t num_threads = 1; num_threads <= 5; num_threads++) {
    purr_context_t *context = context_of(num_threads);
    CU_ASSERT_EQUAL(purr__num_threads(context), (int)num_threads);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
      int *runs = calloc((size_t)counts[i] + 1, sizeof *runs);
      purr__parallel_for(context, counts[i], count_task, runs);
      int64_t num_right = 0;
      for (int64_t j = 0; j < counts[i]; j++) num_right += runs[j] == 1;
      CU_ASSERT_EQUAL(num_right, counts[i]);
      CU_ASSERT_EQUAL(runs[counts[i]], 0);
      free(runs);
    }
    purr_context_destroy(context);
  }
}

enum { NUM_CALLERS = 4, NUM_ROUNDS = 50, NUM_TASKS = 97 };

typedef struct caller {
  purr_context_t *context;
  pthread_barrier_t *start;
  int64_t num_wrong;
} caller_t;

static void *call_often(void *arg) {
  caller_t *caller = arg;
  pthread_barrier_wait(caller->start);
  for (int round = 0; round < NUM_ROUNDS; round++) {
    int runs[NUM_TASKS] = {0};
    purr__parallel_for(caller->context, NUM_TASKS, count_task, runs);
    for (int i = 0; i < NUM_TASKS; i++) caller->num_wrong += runs[i] != 1;
  }
  return NULL;
}

/* The very first jobs too: the workers are started by whoever comes first. */
static void callers_share_the_workers(void) {
  purr_context_t *context = context_of(3);
  pthread_barrier_t start;
  pthread_barrier_init(&start, NULL, NUM_CALLERS);
  pthread_t threads[NUM_CALLERS];
  caller_t callers[NUM_CALLERS];
  for (int i = 0; i < NUM_CALLERS; i++) {
    callers[i] = (caller_t){context, &start, 0};
    CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, call_often, &callers[i]), 0);
  }
  for (int i = 0; i < NUM_CALLERS; i++) {
    pthread_join(threads[i], NULL);
    CU_ASSERT_EQUAL(callers[i].num_wrong, 0);
  }
  pthread_barrier_destroy(&start);
  purr_context_destroy(context);
}

static void *live_and_die(void *arg) {
  caller_t *caller = arg;
  pthread_barrier_wait(caller->start);
  for (int round = 0; round < 10; round++) {
    purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
    desc.num_threads = 2;
    purr_context_t *context = NULL;
    caller->num_wrong += purr_context_create(&desc, &context, NULL) != PURR_STATUS_OK;
    int runs[8] = {0};
    purr__parallel_for(context, 8, count_task, runs);
    for (int i = 0; i < 8; i++) caller->num_wrong += runs[i] != 1;
    purr_context_destroy(context);
  }
  return NULL;
}

static void contexts_do_not_meet(void) {
  pthread_barrier_t start;
  pthread_barrier_init(&start, NULL, NUM_CALLERS);
  pthread_t threads[NUM_CALLERS];
  caller_t callers[NUM_CALLERS];
  for (int i = 0; i < NUM_CALLERS; i++) {
    callers[i] = (caller_t){NULL, &start, 0};
    CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, live_and_die, &callers[i]), 0);
  }
  for (int i = 0; i < NUM_CALLERS; i++) {
    pthread_join(threads[i], NULL);
    CU_ASSERT_EQUAL(callers[i].num_wrong, 0);
  }
  pthread_barrier_destroy(&start);
}

typedef struct shared_object {
  purr_context_t *context;
  void *object;
  pthread_barrier_t start;
} shared_object_t;

static void *retain_and_release(void *arg) {
  shared_object_t *shared = arg;
  pthread_barrier_wait(&shared->start);
  for (int i = 0; i < 1000; i++) {
    purr__object_retain(shared->object);
    purr__object_release(shared->object);
  }
  purr__object_release(shared->object);
  return NULL;
}

/* Several threads drop the last references at once: freed once, and the context with it. */
static void last_references_race(void) {
  purr_test_allocator_t memory;
  purr_test_allocator_init(&memory);
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  desc.num_threads = 1;
  desc.host_allocator = &memory.hooks;
  purr_error_t err = PURR_ERROR_INIT;
  shared_object_t shared;
  REQUIRE_OK(purr_context_create(&desc, &shared.context, &err));
  REQUIRE_OK(purr__object_create(shared.context, PURR__PLAN, sizeof(purr__object_t), NULL, &shared.object, &err));
  purr_context_destroy(shared.context);
  pthread_barrier_init(&shared.start, NULL, NUM_CALLERS);
  pthread_t threads[NUM_CALLERS];
  for (int i = 1; i < NUM_CALLERS; i++) purr__object_retain(shared.object);
  for (int i = 0; i < NUM_CALLERS; i++)
    CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, retain_and_release, &shared), 0);
  for (int i = 0; i < NUM_CALLERS; i++) pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&shared.start);
  CU_ASSERT_EQUAL(memory.num_live, 0);
  CU_ASSERT_EQUAL(memory.num_wrong, 0);
}

static void clock_goes_forward(void) {
  uint64_t last = purr__now_ns();
  for (int i = 0; i < 1000; i++) {
    uint64_t now = purr__now_ns();
    CU_ASSERT(now >= last);
    last = now;
  }
}

int main(void) {
  return purr_test_main("threads", (purr_test_t[]){
                                       {"each task runs once", each_task_runs_once},
                                       {"callers share the workers", callers_share_the_workers},
                                       {"contexts do not meet", contexts_do_not_meet},
                                       {"the last references race", last_references_race},
                                       {"the clock goes forward", clock_goes_forward},
                                       {0},
                                   });
}
