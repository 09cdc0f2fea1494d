/* Ranks that wait for one that leaves the group are told at once; ranks that leave with their calls on the way spoil
 * nothing; and streams in which ranks would wait for each other are refused. All on one device or, with
 * PURR_TEST_DEVICES, on several in turn; on the backend that PURR_TEST_BACKEND names, else staged. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/raw_driver.h"

enum { HIDDEN = 64, INNER = 64, EXPERTS = 12, TOP_K = 2, TOKENS = 10, MAX_RANKS = 4, TIMEOUT_MS = 120000 };

/* Nobody waited for the timeout, whatever the machine does meanwhile. */
#define SOON_SECONDS 30.0

typedef struct member {
  test_rank_t rank;
  int idx;
  pthread_t thread;
  purr_status_t status;
  purr_result_info_t info;
  purr_error_t err;
} member_t;

static purr_context_t *context;
static test_problem_t *problem;
static test_run_t run;
static purr_group_t *groups[MAX_RANKS];
static member_t members[MAX_RANKS];
static int num_ranks;
static pthread_barrier_t ready;

static void on_all(void *(*work)(void *)) {
  for (int r = 0; r < num_ranks; r++) pthread_create(&members[r].thread, NULL, work, &members[r]);
  for (int r = 0; r < num_ranks; r++) pthread_join(members[r].thread, NULL);
}

static void *create_objects(void *arg) {
  member_t *member = arg;
  test_rank_prepare(&member->rank);
  member->status = test_rank_create_objects(&member->rank, &member->err);
  if (member->status == PURR_STATUS_OK) member->status = test_device_upload(&member->rank, &member->err);
  return NULL;
}

static void *destroy_objects(void *arg) {
  member_t *member = arg;
  test_rank_destroy_objects(&member->rank);
  test_rank_free(&member->rank);
  return NULL;
}

static bool start(int ranks, int64_t timeout_ms) {
  num_ranks = ranks;
  run = (test_run_t){
      .backend = test_backend(), .inference = true, .int32_ids = true, .max_tokens = TOKENS, .ranks = ranks};
  context = NULL;
  problem = test_random(43, ranks * TOKENS, HIDDEN, INNER, EXPERTS, TOP_K, 0, false);
  const purr_group_desc_t desc = {sizeof desc, ranks, timeout_ms};
  if (purr_context_create(NULL, &context, NULL) != PURR_STATUS_OK ||
      purr_group_create_local(context, &desc, groups, NULL) != PURR_STATUS_OK)
    return false;
  pthread_barrier_init(&ready, NULL, (unsigned)ranks);
  for (int r = 0; r < ranks; r++)
    members[r] = (member_t){.rank = {.problem = problem,
                                     .run = &run,
                                     .context = context,
                                     .plan = raw_plan_on(context, problem, &run, timeout_ms, r % test_num_devices()),
                                     .group = groups[r],
                                     .first_token = r * TOKENS,
                                     .tokens = TOKENS,
                                     .first_expert = r * EXPERTS / ranks,
                                     .experts = EXPERTS / ranks},
                            .idx = r,
                            .err = PURR_ERROR_INIT};
  on_all(create_objects);
  bool is_ready = true;
  for (int r = 0; r < ranks; r++) {
    if (members[r].status != PURR_STATUS_OK) fprintf(stderr, "rank %d: %s\n", r, members[r].err.message);
    is_ready = is_ready && members[r].status == PURR_STATUS_OK;
  }
  CU_ASSERT(is_ready);
  return is_ready;
}

static void leave(int rank) {
  purr_group_destroy(groups[rank]);
  groups[rank] = NULL;
}

static void stop(void) {
  on_all(destroy_objects);
  for (int r = 0; r < num_ranks; r++) {
    leave(r);
    purr_plan_destroy((purr_plan_t *)(uintptr_t)members[r].rank.plan);
  }
  pthread_barrier_destroy(&ready);
  purr_context_destroy(context);
  test_problem_free(problem);
}

static purr_status_t enqueue(member_t *member, void *stream) {
  member->rank.forward.stream = stream;
  member->err = (purr_error_t)PURR_ERROR_INIT;
  return member->status = purr_forward(member->rank.plan, member->rank.workspace, &member->rank.forward, &member->err);
}

static void finish(member_t *member) {
  if (member->status == PURR_STATUS_OK)
    member->status = purr_stream_synchronize(member->rank.plan, member->rank.forward.stream, &member->err);
  member->info = (purr_result_info_t){.struct_size = sizeof member->info};
  if (member->status == PURR_STATUS_OK)
    member->status = purr_result_query(member->rank.result, &member->info, &member->err);
  if (member->status == PURR_STATUS_OK) member->status = member->info.status;
}

static void *step(void *arg) {
  member_t *member = arg;
  enqueue(member, member->rank.stream);
  finish(member);
  return NULL;
}

static void expect_all(purr_status_t status) {
  for (int r = 0; r < num_ranks; r++) {
    if (members[r].status != status)
      fprintf(stderr, "rank %d: %s: %s\n", r, purr_status_name(members[r].status), members[r].err.message);
    CU_ASSERT_EQUAL(members[r].status, status);
  }
}

static double seconds_since(uint64_t begin) { return (double)(purr__now_ns() - begin) / 1e9; }

/* ---- one leaves, the others wait ---- */

static bool takes_workspace_along;

/* Rank 1 leaves while the others wait. They are in a barrier by then, or come to it later: half of them wait first. */
static void *wait_or_leave(void *arg) {
  member_t *member = arg;
  if (member->idx == 1) {
    usleep(100000);
    if (takes_workspace_along) {
      purr_workspace_destroy(member->rank.workspace);
      member->rank.workspace = NULL;
    }
    leave(1);
    return NULL;
  }
  if (member->idx == 2) usleep(300000);
  return step(arg);
}

static void expect_left(int rank) {
  member_t *member = &members[rank];
  CU_ASSERT_EQUAL(member->status, PURR_STATUS_PEER_FAILED);
  CU_ASSERT_EQUAL(member->err.rank, 1);
  CU_ASSERT_PTR_NOT_NULL(strstr(member->err.message, "rank 1 "));
  CU_ASSERT_PTR_NOT_NULL(strstr(member->err.message, "left the group"));
}

static void the_others_are_told(void) {
  for (int ranks = 2; ranks <= MAX_RANKS; ranks++) {
    takes_workspace_along = ranks == 3;
    if (!start(ranks, TIMEOUT_MS)) return;
    on_all(step);
    expect_all(PURR_STATUS_OK);
    const uint64_t begin = purr__now_ns();
    on_all(wait_or_leave);
    CU_ASSERT(seconds_since(begin) < SOON_SECONDS);
    for (int r = 0; r < ranks; r++)
      if (r != 1) expect_left(r);
    purr_error_t err = PURR_ERROR_INIT;
    ASSERT_STATUS(PURR_STATUS_PEER_FAILED, purr_group_query_status(groups[0], &err));
    CU_ASSERT_EQUAL(err.rank, 1);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "rank 1 left the group while others waited for it"));
    purr_counters_t counters = {.struct_size = sizeof counters};
    CU_ASSERT_EQUAL(purr_context_query_counters(context, &counters, NULL), PURR_STATUS_OK);
    CU_ASSERT_EQUAL(counters.num_timeouts, 0);
    stop();
  }
}

/* A replay waits like a call. The leaving rank's own thread captures meanwhile, in the mode that forbids most. */
static void replays_are_told(void) {
  if (!start(2, TIMEOUT_MS)) return;
  on_all(step);
  expect_all(PURR_STATUS_OK);
  member_t *member = &members[0], *other = &members[1];
  const raw_driver_t own = raw_driver_of(member->rank.plan), *raw = &own;
  void *graph = NULL, *exec = NULL, *empty = NULL;
  CU_ASSERT_EQUAL_FATAL(purr__device_enter(raw->device, NULL), PURR_STATUS_OK);
  CU_ASSERT_EQUAL(raw->begin_capture(member->rank.stream, 1), CUDA_SUCCESS);
  CU_ASSERT_EQUAL(enqueue(member, member->rank.stream), PURR_STATUS_OK);
  CU_ASSERT_EQUAL(raw->end_capture(member->rank.stream, &graph), CUDA_SUCCESS);
  CU_ASSERT_EQUAL_FATAL(raw->instantiate(&exec, graph, 0), CUDA_SUCCESS);
  const uint64_t begin = purr__now_ns();
  CU_ASSERT_EQUAL(raw->launch(exec, member->rank.stream), CUDA_SUCCESS);
  purr__device_leave(raw->device);
  usleep(50000);
  CU_ASSERT_EQUAL_FATAL(purr__device_enter(other->rank.plan->device, NULL), PURR_STATUS_OK);
  CU_ASSERT_EQUAL(raw->begin_capture(other->rank.stream, 0), CUDA_SUCCESS);
  leave(1);
  CU_ASSERT_EQUAL(raw->end_capture(other->rank.stream, &empty), CUDA_SUCCESS);
  purr__device_leave(other->rank.plan->device);
  finish(member);
  CU_ASSERT(seconds_since(begin) < SOON_SECONDS);
  expect_left(0);
  raw->destroy_exec(exec);
  raw->destroy_graph(graph);
  if (empty != NULL) raw->destroy_graph(empty);
  stop();
}

/* ---- all leave, with calls on the way ---- */

static void *step_and_leave(void *arg) {
  member_t *member = arg;
  pthread_barrier_wait(&ready);
  if (member->idx % 2 == 1) usleep((unsigned)(member->idx * 2000));
  for (int i = 0; i < 3 && member->status == PURR_STATUS_OK; i++) enqueue(member, member->rank.stream);
  leave(member->idx);
  finish(member);
  return NULL;
}

/* Every rank comes to every call: whoever leaves first, all succeed. */
static void calls_on_the_way_succeed(void) {
  for (int round = 0; round < (test_is_emulated() ? 6 : 60); round++) {
    if (!start(2 + round % 3, TIMEOUT_MS)) return;
    const uint64_t begin = purr__now_ns();
    on_all(step_and_leave);
    CU_ASSERT(seconds_since(begin) < SOON_SECONDS);
    expect_all(PURR_STATUS_OK);
    stop();
  }
}

/* ---- streams ---- */

static void expect_refused(member_t *member, void *stream, const char *words) {
  CU_ASSERT_EQUAL(enqueue(member, stream), PURR_STATUS_INVALID_ARGUMENT);
  if (strstr(member->err.message, words) == NULL) fprintf(stderr, "not '%s': %s\n", words, member->err.message);
  CU_ASSERT_PTR_NOT_NULL(strstr(member->err.message, words));
}

/* One thread makes the calls of all ranks: on one device they must be in different streams, and none in the default
 * one, by whatever name. What was refused leaves everything as it was. */
static void streams_that_ranks_share(void) {
  if (!start(2, TIMEOUT_MS)) return;
  const bool is_shared = test_num_devices() == 1;
  void *const legacy = (void *)(uintptr_t)CU_STREAM_LEGACY, *const own = (void *)(uintptr_t)CU_STREAM_PER_THREAD;
  for (int i = 0; i < 3 && is_shared; i++) {
    expect_refused(&members[0], NULL, "was given the default stream");
    expect_refused(&members[0], legacy, "was given the default stream");
    const int first = i % 2;
    member_t *early = &members[first], *late = &members[1 - first];
    void *stream = i == 2 ? own : early->rank.stream;
    char words[96];
    snprintf(words, sizeof words, "rank %d was given the stream in which rank %d, on the same device, waits for it",
             1 - first, first);
    CU_ASSERT_EQUAL(enqueue(early, stream), PURR_STATUS_OK);
    expect_refused(late, stream, words);
    CU_ASSERT_EQUAL(enqueue(late, late->rank.stream), PURR_STATUS_OK);
    finish(early);
    finish(late);
    expect_all(PURR_STATUS_OK);
  }
  /* A stream goes from one rank to the other, between two calls. */
  for (int i = 0; i < 2 && is_shared; i++) {
    CU_ASSERT_EQUAL(enqueue(&members[0], members[i].rank.stream), PURR_STATUS_OK);
    CU_ASSERT_EQUAL(enqueue(&members[1], members[1 - i].rank.stream), PURR_STATUS_OK);
    finish(&members[0]);
    finish(&members[1]);
    expect_all(PURR_STATUS_OK);
  }
  on_all(step);
  expect_all(PURR_STATUS_OK);
  stop();
}

/* ---- a rank that comes too late ---- */

static int64_t short_timeout_ms(void) { return test_is_emulated() ? 1000 : 300; }

static void *step_late(void *arg) {
  if (((member_t *)arg)->idx == 1) usleep(5000u * (unsigned)short_timeout_ms());
  return step(arg);
}

static void a_late_rank_hears_what_it_did(void) {
  if (!start(2, short_timeout_ms())) return;
  on_all(step_late);
  expect_all(PURR_STATUS_PEER_FAILED);
  CU_ASSERT_PTR_NOT_NULL(strstr(members[0].err.message, "rank 1 did not come"));
  CU_ASSERT_PTR_NOT_NULL(strstr(members[1].err.message, "the others gave up waiting for this rank, 1"));
  purr_error_t err = PURR_ERROR_INIT;
  ASSERT_STATUS(PURR_STATUS_PEER_FAILED, purr_group_query_status(groups[0], &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "rank 1 did not come"));
  ASSERT_STATUS(PURR_STATUS_PEER_FAILED, purr_group_query_status(groups[1], &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "the others gave up waiting for this rank, 1"));
  stop();
}

int main(void) {
  setenv("PURR_TEST_BACKEND", "staged", 0);
  return test_layer_main("ranks that leave a group on a GPU",
                         (purr_test_t[]){{"the others are told", the_others_are_told},
                                         {"replays are told", replays_are_told},
                                         {"calls on the way succeed", calls_on_the_way_succeed},
                                         {"streams that ranks share", streams_that_ranks_share},
                                         {"a late rank hears what it did", a_late_rank_hears_what_it_did},
                                         {0}});
}
