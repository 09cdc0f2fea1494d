/* Many threads, many contexts, and fork. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/allocator.h"
#include "support/main.h"
#include "support/rank.h"

static purr_error_t err; /* of the main thread */

static test_problem_t *problem; /* read by all threads */
static test_outcome_t *expected;
static const test_run_t run = {.max_tokens = 8};

static purr_status_t make_plan(purr_context_t *context, const test_run_t *how, purr_plan_t **out_plan) {
  const purr_layer_desc_t layer = test_layer_desc(problem, how);
  purr_config_t *config = NULL;
  purr_status_t status = purr_config_create(context, &layer, &config, NULL);
  if (status == PURR_STATUS_OK) status = purr_plan_create(context, config, NULL, out_plan, NULL);
  purr_config_destroy(config);
  return status;
}

static purr_context_t *make_context(uint32_t num_threads) {
  const purr_context_desc_t desc = {.struct_size = sizeof desc, .num_threads = num_threads};
  purr_context_t *context = NULL;
  purr_context_create(&desc, &context, NULL);
  return context;
}

/* Both passes of a layer from nothing but a context and a plan; true when all bits are right. */
static bool layer_is_exact(purr_context_t *context, const purr_plan_t *plan) {
  test_rank_t rank = {.problem = problem, .run = &run, .context = context, .plan = plan};
  test_rank_prepare(&rank);
  bool exact = test_rank_create_objects(&rank, NULL) == PURR_STATUS_OK;
  exact = exact && test_rank_forward(&rank, NULL) == PURR_STATUS_OK && test_rank_forward_equals(&rank, expected);
  exact = exact && test_rank_backward(&rank, NULL) == PURR_STATUS_OK && test_rank_backward_equals(&rank, expected);
  exact = exact && test_rank_canaries_intact(&rank);
  test_rank_destroy_objects(&rank);
  test_rank_free(&rank);
  return exact;
}

static bool works_from_nothing(uint32_t num_threads) {
  purr_context_t *context = make_context(num_threads);
  purr_plan_t *plan = NULL;
  const bool exact =
      context != NULL && make_plan(context, &run, &plan) == PURR_STATUS_OK && layer_is_exact(context, plan);
  purr_plan_destroy(plan);
  purr_context_destroy(context);
  return exact;
}

/* ---- B41: first use from many threads at once ---- */

enum { NUM_THREADS = 16 };

static pthread_barrier_t start;

typedef struct first_use {
  test_rank_t rank;
  purr_status_t status;
} first_use_t;

static void *use_first(void *arg) {
  first_use_t *use = arg;
  pthread_barrier_wait(&start);
  use->status = test_rank_create_objects(&use->rank, NULL);
  if (use->status == PURR_STATUS_OK) use->status = test_rank_forward(&use->rank, NULL);
  if (use->status == PURR_STATUS_OK) use->status = test_rank_backward(&use->rank, NULL);
  return NULL;
}

/* What must come out is computed afterwards where nothing has used the library before. */
static bool first_use_is_exact(void) {
  purr_context_t *context = make_context(4);
  purr_plan_t *plan = NULL;
  bool exact = make_plan(context, &run, &plan) == PURR_STATUS_OK;
  pthread_t threads[NUM_THREADS];
  first_use_t *uses = calloc(NUM_THREADS, sizeof *uses);
  pthread_barrier_init(&start, NULL, NUM_THREADS);
  for (int i = 0; i < NUM_THREADS; i++) {
    uses[i].rank = (test_rank_t){.problem = problem, .run = &run, .context = context, .plan = plan};
    test_rank_prepare(&uses[i].rank);
    pthread_create(&threads[i], NULL, use_first, &uses[i]);
  }
  for (int i = 0; i < NUM_THREADS; i++) pthread_join(threads[i], NULL);
  if (expected == NULL) expected = test_layer_run(problem, &run);
  for (int i = 0; i < NUM_THREADS; i++) {
    exact = exact && uses[i].status == PURR_STATUS_OK && test_rank_forward_equals(&uses[i].rank, expected) &&
            test_rank_backward_equals(&uses[i].rank, expected);
    test_rank_destroy_objects(&uses[i].rank);
    test_rank_free(&uses[i].rank);
  }
  pthread_barrier_destroy(&start);
  free(uses);
  purr_plan_destroy(plan);
  purr_context_destroy(context);
  return exact;
}

/* In this process the library has been used before; the processes that b41_fresh_processes starts come here first. */
static void b41_fresh_contexts(void) {
  for (int round = 0; round < 5; round++) CU_ASSERT_TRUE(first_use_is_exact());
}

static const char *program; /* argv[0] */

static void b41_fresh_processes(void) {
  for (int round = 0; round < 5; round++) {
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
#ifdef PURR_TEST_EMULATOR
      execlp(PURR_TEST_EMULATOR, PURR_TEST_EMULATOR, program, "first-use", (char *)NULL);
#else
      execl("/proc/self/exe", program, "first-use", (char *)NULL);
#endif
      _exit(127);
    }
    int status = -1;
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

/* ---- many contexts ---- */

static void *live_apart(void *arg) {
  bool *exact = arg;
  *exact = true;
  for (int i = 0; i < 4; i++) *exact = *exact && works_from_nothing(1 + (uint32_t)i % 3);
  return NULL;
}

static void many_contexts(void) {
  pthread_t threads[8];
  bool exact[8];
  for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, live_apart, &exact[i]);
  for (int i = 0; i < 8; i++) {
    pthread_join(threads[i], NULL);
    CU_ASSERT_TRUE(exact[i]);
  }
}

/* ---- two threads in one workspace ---- */

typedef struct contender {
  test_rank_t rank;
  int num_good, num_busy;
  bool wrong;
} contender_t;

static void *contend(void *arg) {
  contender_t *c = arg;
  pthread_barrier_wait(&start);
  for (int i = 0; i < 400 && c->num_good < 50; i++) {
    purr_error_t own = PURR_ERROR_INIT;
    test_rank_poison(&c->rank);
    purr_status_t status = test_rank_forward(&c->rank, &own);
    const bool forward = status == PURR_STATUS_OK;
    if (forward) {
      c->wrong = c->wrong || !test_rank_forward_equals(&c->rank, expected);
      status = test_rank_backward(&c->rank, &own);
    }
    if (status == PURR_STATUS_OK) {
      c->wrong = c->wrong || !test_rank_backward_equals(&c->rank, expected);
      c->num_good++;
    } else {
      c->wrong = c->wrong || status != PURR_STATUS_BUSY || strstr(own.message, "workspace") == NULL;
      if (!forward) c->wrong = c->wrong || !test_rank_untouched(&c->rank);
      c->num_busy++;
    }
  }
  return NULL;
}

static void busy_workspace(void) {
  purr_context_t *context = make_context(2);
  purr_plan_t *plan = NULL;
  REQUIRE_OK(make_plan(context, &run, &plan));
  purr_workspace_t *workspace = NULL;
  REQUIRE_OK(purr_workspace_create(plan, NULL, NULL, &workspace, &err));
  contender_t contenders[2] = {0};
  pthread_t threads[2];
  pthread_barrier_init(&start, NULL, 2);
  for (int i = 0; i < 2; i++) {
    contenders[i].rank =
        (test_rank_t){.problem = problem, .run = &run, .context = context, .plan = plan, .workspace = workspace};
    test_rank_prepare(&contenders[i].rank);
    ASSERT_OK(test_rank_create_objects(&contenders[i].rank, &err));
    pthread_create(&threads[i], NULL, contend, &contenders[i]);
  }
  for (int i = 0; i < 2; i++) {
    pthread_join(threads[i], NULL);
    CU_ASSERT_FALSE(contenders[i].wrong);
    if (i == 1) contenders[i].rank.workspace = NULL;
  }
  CU_ASSERT_TRUE(contenders[0].num_good + contenders[1].num_good > 0);
  for (int i = 0; i < 2; i++) {
    test_rank_destroy_objects(&contenders[i].rank);
    test_rank_free(&contenders[i].rank);
  }
  pthread_barrier_destroy(&start);
  purr_plan_destroy(plan);
  purr_context_destroy(context);
}

/* With two ranks one call waits for the other rank, so that it is sure to be in flight: of two calls in rank 0's
 * workspace exactly one is refused, and the other ends exactly once rank 1 has come. */
typedef struct waiter {
  test_rank_t *rank;
  purr_forward_args_t args;
  purr_status_t status;
  _Atomic bool *refused;
} waiter_t;

static void *wait_for_peer(void *arg) {
  waiter_t *w = arg;
  purr_error_t own = PURR_ERROR_INIT;
  w->status = purr_forward(w->rank->plan, w->rank->workspace, &w->args, &own);
  if (w->status == PURR_STATUS_BUSY) *w->refused = true;
  return NULL;
}

static void *create_objects(void *arg) {
  const purr_status_t status = test_rank_create_objects(arg, NULL);
  return status == PURR_STATUS_OK ? NULL : arg;
}

static void busy_while_waiting(void) {
  static const test_run_t two = {.ranks = 2};
  test_outcome_t *outcome = test_layer_run(problem, &two);
  purr_context_t *context = make_context(1);
  purr_plan_t *plan = NULL;
  purr_group_t *groups[2];
  const purr_group_desc_t desc = {sizeof desc, 2, 60000};
  REQUIRE_OK(make_plan(context, &two, &plan));
  REQUIRE_OK(purr_group_create_local(context, &desc, groups, &err));
  test_rank_t ranks[2];
  pthread_t threads[2];
  for (int r = 0; r < 2; r++) {
    const int64_t begin = problem->tokens * r / 2;
    ranks[r] = (test_rank_t){.problem = problem,
                             .run = &two,
                             .context = context,
                             .plan = plan,
                             .group = groups[r],
                             .first_token = begin,
                             .tokens = problem->tokens * (r + 1) / 2 - begin,
                             .first_expert = problem->experts / 2 * r,
                             .experts = problem->experts / 2};
    test_rank_prepare(&ranks[r]);
    pthread_create(&threads[r], NULL, create_objects, &ranks[r]);
  }
  for (int r = 0; r < 2; r++) {
    void *failed;
    pthread_join(threads[r], &failed);
    CU_ASSERT_PTR_NULL_FATAL(failed);
  }
  for (int round = 0; round < 20; round++) {
    _Atomic bool refused = false;
    waiter_t waiters[2];
    for (int i = 0; i < 2; i++) {
      waiters[i] = (waiter_t){&ranks[0], ranks[0].forward, PURR_STATUS_INTERNAL, &refused};
      if (i == 1) waiters[i].args.saved = NULL;
      waiters[i].args.result = NULL; /* one result is for one call at a time */
    }
    test_rank_poison(&ranks[0]);
    test_rank_poison(&ranks[1]);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, wait_for_peer, &waiters[i]);
    while (!refused) usleep(100);
    ASSERT_OK(test_rank_forward(&ranks[1], &err));
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    CU_ASSERT_TRUE((waiters[0].status == PURR_STATUS_OK && waiters[1].status == PURR_STATUS_BUSY) ||
                   (waiters[1].status == PURR_STATUS_OK && waiters[0].status == PURR_STATUS_BUSY));
    for (int r = 0; r < 2; r++) CU_ASSERT_TRUE(test_rank_forward_equals(&ranks[r], outcome));
  }
  for (int r = 0; r < 2; r++) {
    test_rank_destroy_objects(&ranks[r]);
    test_rank_free(&ranks[r]);
    purr_group_destroy(groups[r]);
  }
  purr_plan_destroy(plan);
  purr_context_destroy(context);
  test_outcome_free(outcome);
}

/* ---- readers beside a running call ---- */

typedef struct reader {
  purr_context_t *context;
  purr_result_t *result;
  _Atomic bool stop;
  bool wrong;
} reader_t;

static void *read_on(void *arg) {
  reader_t *r = arg;
  while (!r->stop) {
    purr_result_info_t info = {.struct_size = sizeof info};
    purr_counters_t counters = {.struct_size = sizeof counters};
    int64_t counts[8];
    r->wrong = r->wrong || purr_result_query(r->result, &info, NULL) != PURR_STATUS_OK;
    r->wrong = r->wrong || (info.status != PURR_STATUS_OK && info.status != PURR_STATUS_NOT_READY);
    r->wrong = r->wrong || info.num_rows_done < 0 || info.num_rows_done > 2 * problem->tokens * problem->top_k;
    r->wrong = r->wrong || purr_context_query_counters(r->context, &counters, NULL) != PURR_STATUS_OK;
    const purr_status_t status = purr_result_tokens_per_expert(r->result, counts, problem->experts, NULL);
    r->wrong = r->wrong || (status != PURR_STATUS_OK && status != PURR_STATUS_NOT_READY);
    if (status == PURR_STATUS_OK) {
      int64_t sum = 0;
      for (int64_t e = 0; e < problem->experts; e++) sum += counts[e];
      r->wrong = r->wrong || sum != problem->tokens * problem->top_k;
    }
  }
  return NULL;
}

static void readers_beside_a_call(void) {
  purr_context_t *context = make_context(2);
  purr_plan_t *plan = NULL;
  REQUIRE_OK(make_plan(context, &run, &plan));
  test_rank_t rank = {.problem = problem, .run = &run, .context = context, .plan = plan};
  test_rank_prepare(&rank);
  REQUIRE_OK(test_rank_create_objects(&rank, &err));
  REQUIRE_OK(test_rank_forward(&rank, &err));
  reader_t readers[3];
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) {
    readers[i].context = context;
    readers[i].result = rank.result;
    readers[i].stop = readers[i].wrong = false;
    pthread_create(&threads[i], NULL, read_on, &readers[i]);
  }
  for (int i = 0; i < 50; i++) {
    ASSERT_OK(test_rank_forward(&rank, &err));
    ASSERT_OK(test_rank_backward(&rank, &err));
  }
  for (int i = 0; i < 3; i++) {
    readers[i].stop = true;
    pthread_join(threads[i], NULL);
    CU_ASSERT_FALSE(readers[i].wrong);
  }
  test_rank_destroy_objects(&rank);
  test_rank_free(&rank);
  purr_plan_destroy(plan);
  purr_context_destroy(context);
}

/* ---- the log ---- */

typedef struct log_sink {
  atomic_int num_lines, num_bad;
  purr_context_t *context; /* set before anything is logged */
} log_sink_t;

/* Comes from any thread, never under a lock: it may call the library itself. */
static void take_line(void *user, int32_t level, const char *message) {
  log_sink_t *sink = user;
  sink->num_lines++;
  if (level < PURR_LOG_ERROR || level > PURR_LOG_DEBUG || message[0] == '\0' || strchr(message, '\n') != NULL)
    sink->num_bad++;
  purr_counters_t counters = {.struct_size = sizeof counters};
  if (purr_context_query_counters(sink->context, &counters, NULL) != PURR_STATUS_OK) sink->num_bad++;
  purr_result_t *result = NULL;
  if (purr_result_create(sink->context, &result, NULL) != PURR_STATUS_OK) sink->num_bad++;
  purr_result_destroy(result);
}

static void *log_often(void *arg) {
  log_sink_t *sink = arg;
  pthread_barrier_wait(&start);
  for (int i = 0; i < 20; i++) {
    purr_plan_t *plan = NULL;
    if (make_plan(sink->context, &run, &plan) != PURR_STATUS_OK || !layer_is_exact(sink->context, plan))
      sink->num_bad++;
    purr_plan_destroy(plan);
  }
  return NULL;
}

static void log_from_many_threads(void) {
  log_sink_t sink = {0};
  const purr_context_desc_t desc = {
      .struct_size = sizeof desc, .num_threads = 2, .log = take_line, .log_user = &sink, .log_level = PURR_LOG_DEBUG};
  purr_context_t *context = NULL;
  REQUIRE_OK(purr_context_create(&desc, &context, &err));
  sink.context = context;
  pthread_t threads[8];
  pthread_barrier_init(&start, NULL, 8);
  for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, log_often, &sink);
  for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&start);
  CU_ASSERT_EQUAL(sink.num_bad, 0);
  CU_ASSERT_TRUE(sink.num_lines >= 8 * 20); /* each plan says what was chosen */
  purr_context_destroy(context);
}

/* ---- B57: fork ---- */

/* Runs `child` in a fork; true when it returns true. Only one thread lives there. */
static bool in_a_fork(bool (*child)(void *arg), void *arg) {
  fflush(NULL);
  const pid_t pid = fork();
  if (pid == 0) _exit(child(arg) ? 0 : 1);
  int status = -1;
  return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool child_starts_afresh(void *arg) {
  (void)arg;
  return works_from_nothing(1);
}

/* Looking around before the fork keeps the child free: version, statuses, a config that was checked and destroyed. */
static void b57_parent_looks_around(void) {
  CU_ASSERT_EQUAL(purr_version(), PURR_VERSION);
  purr_context_t *context = make_context(2);
  purr_config_t *config = NULL;
  ASSERT_OK(purr_config_load(context, PURR_SOURCE_DIR "/configs/qwen3_30b.yaml", &config, &err));
  purr_config_destroy(config);
  purr_context_destroy(context);
  CU_ASSERT_TRUE(in_a_fork(child_starts_afresh, NULL));
}

/* The child may not use what it inherited, which every call says at once; destroying it does nothing; and a context of
 * its own works beside it. (Every function of the interface is tried in test_every_function.) */
static bool child_inherits(void *arg) {
  test_rank_t *rank = arg;
  purr_error_t own = PURR_ERROR_INIT;
  bool good = test_rank_forward(rank, &own) == PURR_STATUS_FORKED && strstr(own.message, "fork") != NULL;
  good = good && test_rank_backward(rank, NULL) == PURR_STATUS_FORKED && test_rank_untouched(rank);
  test_rank_destroy_objects(rank);
  purr_plan_destroy((purr_plan_t *)(uintptr_t)rank->plan);
  purr_context_destroy(rank->context);
  return good && works_from_nothing(1);
}

static void b57_parent_runs_first(void) {
  purr_context_t *context = make_context(4);
  purr_plan_t *plan = NULL;
  REQUIRE_OK(make_plan(context, &run, &plan));
  test_rank_t rank = {.problem = problem, .run = &run, .context = context, .plan = plan};
  test_rank_prepare(&rank);
  REQUIRE_OK(test_rank_create_objects(&rank, &err));
  for (int i = 0; i < 3; i++) {
    ASSERT_OK(test_rank_forward(&rank, &err));
    ASSERT_OK(test_rank_backward(&rank, &err));
    CU_ASSERT_TRUE(test_rank_forward_equals(&rank, expected));
    CU_ASSERT_TRUE(test_rank_backward_equals(&rank, expected));
    test_rank_poison(&rank);
    CU_ASSERT_TRUE(in_a_fork(child_inherits, &rank));
  }
  test_rank_destroy_objects(&rank);
  test_rank_free(&rank);
  purr_plan_destroy(plan);
  purr_context_destroy(context);
}

int main(int argc, char **argv) {
  program = argv[0];
  problem = test_fixture_f(7, 32, 16, 4, 2, 16);
  if (argc > 1) { /* a fresh process of b41_fresh_processes */
    const bool exact = first_use_is_exact();
    test_outcome_free(expected);
    test_problem_free(problem);
    return exact ? 0 : 1;
  }
  expected = test_layer_run(problem, &run);
  if (expected->status != PURR_STATUS_OK) return 1;
  const int code = purr_test_main("threads, contexts and fork",
                                  (purr_test_t[]){{"B41 first use in a fresh context", b41_fresh_contexts},
                                                  {"B41 first use in a fresh process", b41_fresh_processes},
                                                  {"many contexts", many_contexts},
                                                  {"two threads in one workspace", busy_workspace},
                                                  {"a call that waits is busy", busy_while_waiting},
                                                  {"readers beside a call", readers_beside_a_call},
                                                  {"log lines from many threads", log_from_many_threads},
                                                  {"B57 the parent looks around", b57_parent_looks_around},
                                                  {"B57 the parent runs first", b57_parent_runs_first},
                                                  {0}});
  test_outcome_free(expected);
  test_problem_free(problem);
  return code;
}
