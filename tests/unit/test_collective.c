/* Calls that all ranks make together, when they go wrong on one rank: it has no memory, it makes another call, it uses
 * another workspace. Every rank then fails alike and at once, and the same ranks go on exactly. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "group/group.h"
#include "support/allocator.h"
#include "support/main.h"
#include "support/rank.h"

enum { RANKS = 2 };

/* ---- an allocator that fails in one thread alone ---- */

static _Thread_local long long thread_calls, thread_fail_at; /* fail_at counts from 1; 0 = never */

static void *allocate(void *user, uint64_t bytes, uint64_t alignment) {
  const purr_allocator_t *hooks = &((purr_test_allocator_t *)user)->hooks;
  return ++thread_calls == thread_fail_at ? NULL : hooks->allocate(hooks->user, bytes, alignment);
}

static void release(void *user, void *memory, uint64_t bytes) {
  const purr_allocator_t *hooks = &((purr_test_allocator_t *)user)->hooks;
  hooks->release(hooks->user, memory, bytes);
}

/* ---- two ranks ---- */

static purr_test_allocator_t memory;
static purr_context_t *context;
static purr_plan_t *plan;
static test_problem_t *problem;
static test_outcome_t *expected;
static const test_run_t run = {.ranks = RANKS};
static test_rank_t ranks[RANKS];

static bool set_up(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_config_t *config = NULL;
  purr_test_allocator_init(&memory);
  const purr_allocator_t hooks = {sizeof hooks, 0, allocate, release, &memory};
  const purr_context_desc_t desc = {.struct_size = sizeof desc, .num_threads = 1, .host_allocator = &hooks};
  problem = test_fixture_f(5, 32, 16, 4, 2, 16);
  expected = test_layer_run(problem, &run);
  const purr_layer_desc_t layer = test_layer_desc(problem, &run);
  const purr_group_desc_t group_desc = {sizeof group_desc, RANKS, 60000};
  purr_group_t *groups[RANKS] = {NULL};
  bool good = expected->status == PURR_STATUS_OK && purr_context_create(&desc, &context, &err) == PURR_STATUS_OK &&
              purr_config_create(context, &layer, &config, &err) == PURR_STATUS_OK &&
              purr_plan_create(context, config, NULL, &plan, &err) == PURR_STATUS_OK &&
              purr_group_create_local(context, &group_desc, groups, &err) == PURR_STATUS_OK;
  purr_config_destroy(config);
  CU_ASSERT_TRUE(good);
  for (int r = 0; r < RANKS && good; r++) {
    const int64_t begin = problem->tokens * r / RANKS, end = problem->tokens * (r + 1) / RANKS;
    ranks[r] = (test_rank_t){.problem = problem,
                             .run = &run,
                             .context = context,
                             .plan = plan,
                             .group = groups[r],
                             .first_token = begin,
                             .tokens = end - begin,
                             .first_expert = r * problem->experts / RANKS,
                             .experts = problem->experts / RANKS};
    test_rank_prepare(&ranks[r]);
  }
  return good;
}

static void tear_down(void) {
  for (int r = 0; r < RANKS; r++) {
    test_rank_destroy_objects(&ranks[r]);
    test_rank_free(&ranks[r]);
    purr_group_destroy(ranks[r].group);
  }
  purr_plan_destroy(plan);
  purr_context_destroy(context);
  test_problem_free(problem);
  test_outcome_free(expected);
  CU_ASSERT_EQUAL(memory.num_live, 0);
  CU_ASSERT_EQUAL(memory.num_wrong, 0);
}

/* What one rank's thread does, and how it ended. */
typedef struct job {
  test_rank_t *rank;
  purr_status_t (*call)(test_rank_t *rank, purr_error_t *err);
  long long fail_at; /* the allocation of this thread that fails */
  long long num_allocations;
  purr_status_t status;
  purr_error_t err;
} job_t;

static void *job_main(void *arg) {
  job_t *job = arg;
  job->err = (purr_error_t)PURR_ERROR_INIT;
  thread_calls = 0;
  thread_fail_at = job->fail_at;
  job->status = job->call(job->rank, &job->err);
  thread_fail_at = 0;
  job->num_allocations = thread_calls;
  return NULL;
}

/* Every rank makes its call in a thread of its own; none may take as long as a timeout. */
static void run_jobs(job_t jobs[RANKS]) {
  pthread_t threads[RANKS];
  struct timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (int r = 0; r < RANKS; r++) {
    jobs[r].rank = &ranks[r];
    pthread_create(&threads[r], NULL, job_main, &jobs[r]);
  }
  for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
  clock_gettime(CLOCK_MONOTONIC, &end);
  CU_ASSERT_TRUE(end.tv_sec - begin.tv_sec < 30);
}

static void expect_statuses(const char *what, const job_t jobs[RANKS], purr_status_t first, purr_status_t second) {
  const purr_status_t wanted[RANKS] = {first, second};
  for (int r = 0; r < RANKS; r++) {
    if (jobs[r].status != wanted[r])
      fprintf(stderr, "%s: rank %d got %s, expected %s: %s\n", what, r, purr_status_name(jobs[r].status),
              purr_status_name(wanted[r]), jobs[r].err.message);
    CU_ASSERT_EQUAL(jobs[r].status, wanted[r]);
  }
}

/* Both passes on both ranks, from poisoned outputs. */
static purr_status_t both_passes(test_rank_t *rank, purr_error_t *err) {
  purr_status_t status = test_rank_forward(rank, err);
  return status == PURR_STATUS_OK ? test_rank_backward(rank, err) : status;
}

static void expect_exact(const char *what) {
  for (int r = 0; r < RANKS; r++) test_rank_poison(&ranks[r]);
  job_t jobs[RANKS] = {{.call = both_passes}, {.call = both_passes}};
  run_jobs(jobs);
  expect_statuses(what, jobs, PURR_STATUS_OK, PURR_STATUS_OK);
  for (int r = 0; r < RANKS; r++) {
    CU_ASSERT_TRUE(test_rank_forward_equals(&ranks[r], expected));
    CU_ASSERT_TRUE(test_rank_backward_equals(&ranks[r], expected));
    CU_ASSERT_TRUE(test_rank_canaries_intact(&ranks[r]));
    CU_ASSERT_EQUAL(jobs[r].num_allocations, 0); /* a call allocates nothing: no rank can fail alone in it */
  }
}

/* ---- memory ---- */

static purr_status_t create_workspace(test_rank_t *rank, purr_error_t *err) {
  return purr_workspace_create(rank->plan, rank->group, NULL, &rank->workspace, err);
}

static void no_memory_on_one_rank(void) {
  for (int unlucky = 0; unlucky < RANKS && set_up(); unlucky++) {
    const long long num_live = memory.num_live;
    int num_failures = 0;
    for (long long n = 1;; n++) {
      job_t jobs[RANKS] = {{.call = create_workspace}, {.call = create_workspace}};
      jobs[unlucky].fail_at = n;
      run_jobs(jobs);
      if (jobs[unlucky].num_allocations < n) {
        expect_statuses("all memory there", jobs, PURR_STATUS_OK, PURR_STATUS_OK);
        break;
      }
      /* The table that all share may be made by either rank: it is this one's turn only when it came first. */
      num_failures++;
      expect_statuses("no memory", jobs, PURR_STATUS_OUT_OF_HOST_MEMORY, PURR_STATUS_OUT_OF_HOST_MEMORY);
      CU_ASSERT_EQUAL(jobs[1 - unlucky].err.rank, unlucky);
      for (int r = 0; r < RANKS; r++) {
        CU_ASSERT_PTR_NULL(ranks[r].workspace);
        purr_error_t err;
        ASSERT_OK(purr_group_query_status(ranks[r].group, &err));
      }
      CU_ASSERT_EQUAL(memory.num_live, num_live);
    }
    CU_ASSERT_TRUE(num_failures >= 3); /* the object, its own memory, its symmetric memory */
    job_t jobs[RANKS] = {{.call = test_rank_create_objects}, {.call = test_rank_create_objects}};
    run_jobs(jobs);
    expect_statuses("other objects", jobs, PURR_STATUS_OK, PURR_STATUS_OK);
    expect_exact("after no memory");
    tear_down();
  }
}

/* ---- calls that do not fit together ---- */

static purr_status_t backward_only(test_rank_t *rank, purr_error_t *err) { return test_rank_backward(rank, err); }

static purr_status_t build_schedule(test_rank_t *rank, purr_error_t *err) {
  return purr_schedule_build(rank->schedule, rank->workspace, &rank->tensor.ids, NULL, err);
}

static purr_status_t forward_with_schedule(test_rank_t *rank, purr_error_t *err) {
  purr_forward_args_t args = rank->forward;
  args.schedule = rank->schedule;
  return purr_forward(rank->plan, rank->workspace, &args, err);
}

static purr_workspace_t *other_workspace[RANKS];

static purr_status_t create_other_workspace(test_rank_t *rank, purr_error_t *err) {
  return purr_workspace_create(rank->plan, rank->group, NULL, &other_workspace[rank - ranks], err);
}

static purr_status_t forward_in_other_workspace(test_rank_t *rank, purr_error_t *err) {
  return purr_forward(rank->plan, other_workspace[rank - ranks], &rank->forward, err);
}

static void different_calls(void) {
  if (!set_up()) return;
  job_t creation[RANKS] = {{.call = test_rank_create_objects}, {.call = test_rank_create_objects}};
  run_jobs(creation);
  expect_statuses("creation", creation, PURR_STATUS_OK, PURR_STATUS_OK);
  job_t building[RANKS] = {{.call = build_schedule}, {.call = build_schedule}};
  run_jobs(building);
  expect_statuses("schedule", building, PURR_STATUS_OK, PURR_STATUS_OK);
  expect_exact("before");

  static const struct {
    const char *name;
    purr_status_t (*call)(test_rank_t *rank, purr_error_t *err);
  } calls[] = {{"forward", test_rank_forward},
               {"backward", backward_only},
               {"schedule", build_schedule},
               {"forward with a schedule", forward_with_schedule},
               {"creation of a workspace", create_other_workspace}};
  enum { NUM_CALLS = sizeof calls / sizeof calls[0] };
  for (int i = 0; i < NUM_CALLS; i++)
    for (int j = 0; j < NUM_CALLS; j++) {
      if (i == j) continue;
      char what[128];
      snprintf(what, sizeof what, "%s while the other rank does %s", calls[i].name, calls[j].name);
      job_t jobs[RANKS] = {{.call = calls[i].call}, {.call = calls[j].call}};
      for (int r = 0; r < RANKS; r++) test_rank_poison(&ranks[r]);
      run_jobs(jobs);
      expect_statuses(what, jobs, PURR_STATUS_PEER_MISMATCH, PURR_STATUS_PEER_MISMATCH);
      for (int r = 0; r < RANKS; r++) {
        CU_ASSERT_TRUE(test_rank_untouched(&ranks[r]));
        CU_ASSERT_PTR_NULL(other_workspace[r]);
      }
      /* A schedule that could not be built, and what a failed forward kept, are gone; the next step makes them new. */
      job_t again[RANKS] = {{.call = build_schedule}, {.call = build_schedule}};
      run_jobs(again);
      expect_statuses("schedule", again, PURR_STATUS_OK, PURR_STATUS_OK);
      expect_exact(what);
    }
  tear_down();
}

/* Two workspaces that every rank has, used at once: neither side may take the other's old words for an answer. */
static void different_workspaces(void) {
  if (!set_up()) return;
  job_t creation[RANKS] = {{.call = test_rank_create_objects}, {.call = test_rank_create_objects}};
  run_jobs(creation);
  expect_statuses("creation", creation, PURR_STATUS_OK, PURR_STATUS_OK);
  for (int used_before = 0; used_before < 2; used_before++) {
    job_t more[RANKS] = {{.call = create_other_workspace}, {.call = create_other_workspace}};
    run_jobs(more);
    expect_statuses("another workspace", more, PURR_STATUS_OK, PURR_STATUS_OK);
    if (used_before) {
      job_t use[RANKS] = {{.call = forward_in_other_workspace}, {.call = forward_in_other_workspace}};
      run_jobs(use);
      expect_statuses("use of it", use, PURR_STATUS_OK, PURR_STATUS_OK);
      expect_exact("first workspace");
    }
    for (int r = 0; r < RANKS; r++) test_rank_poison(&ranks[r]);
    job_t crossed[RANKS] = {{.call = test_rank_forward}, {.call = forward_in_other_workspace}};
    run_jobs(crossed);
    expect_statuses("crossed", crossed, PURR_STATUS_PEER_MISMATCH, PURR_STATUS_PEER_MISMATCH);
    for (int r = 0; r < RANKS; r++) CU_ASSERT_TRUE(test_rank_untouched(&ranks[r]));
    expect_exact("after crossing");
    for (int r = 0; r < RANKS; r++) purr_workspace_destroy(other_workspace[r]);
    memset(other_workspace, 0, sizeof other_workspace);
  }
  tear_down();
}

/* ---- S09: the largest group ---- */

enum { MAX_RANKS = 4096 };

static void *meet_three_times(void *arg) {
  purr_group_t *group = arg;
  for (int i = 0; i < 3; i++)
    if (group->ops->barrier(group, NULL, "S09", NULL) != PURR_STATUS_OK) return (void *)group;
  return NULL;
}

static void s09_largest_group(void) {
  purr_error_t err;
  purr_context_t *own = NULL;
  purr_group_t **groups = calloc(MAX_RANKS + 1, sizeof *groups);
  pthread_t *threads = calloc(MAX_RANKS, sizeof *threads);
  REQUIRE_OK(purr_context_create(NULL, &own, &err));
  purr_group_desc_t desc = {sizeof desc, MAX_RANKS + 1, 600000};
  groups[MAX_RANKS] = (purr_group_t *)own;
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_group_create_local(own, &desc, groups, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "4097"));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "4096"));
  CU_ASSERT_PTR_EQUAL(groups[MAX_RANKS], own); /* not written: the array is as long as the caller says, at most */
  groups[MAX_RANKS] = NULL;

  desc.num_ranks = MAX_RANKS;
  REQUIRE_OK(purr_group_create_local(own, &desc, groups, &err));
  for (int r = 0; r < MAX_RANKS; r++) {
    CU_ASSERT_EQUAL_FATAL(purr_group_rank(groups[r]), r);
    CU_ASSERT_EQUAL_FATAL(purr_group_num_ranks(groups[r]), MAX_RANKS);
  }
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 << 10);
  int num_threads = 0;
  while (num_threads < MAX_RANKS &&
         pthread_create(&threads[num_threads], &attributes, meet_three_times, groups[num_threads]) == 0)
    num_threads++;
  pthread_attr_destroy(&attributes);
  if (num_threads < MAX_RANKS) { /* a machine that allows fewer threads: those that wait are told at once */
    fprintf(stderr, "only %d threads of %d could be started; the ranks do not meet\n", num_threads, MAX_RANKS);
    for (int r = num_threads; r < MAX_RANKS; r++) purr_group_destroy(groups[r]);
  }
  for (int r = 0; r < num_threads; r++) {
    void *failed;
    pthread_join(threads[r], &failed);
    CU_ASSERT_EQUAL_FATAL(failed != NULL, num_threads < MAX_RANKS);
  }
  for (int r = 0; r < num_threads; r++) purr_group_destroy(groups[r]);
  purr_context_destroy(own);
  free(threads);
  free(groups);
}

int main(void) {
  return purr_test_main("collective calls", (purr_test_t[]){{"no memory on one rank", no_memory_on_one_rank},
                                                            {"different calls", different_calls},
                                                            {"different workspaces", different_workspaces},
                                                            {"S09 the largest group", s09_largest_group},
                                                            {0}});
}
