/* Threads that work while the calling thread shows how far they are. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "layer.h"

typedef struct team {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  enum { TEAM_WAITS, TEAM_RUNS, TEAM_CANCELLED } state;
  int64_t num_tasks, num_taken, num_done;
  task_fn task;
  void *arg;
} team_t;

static void *member_main(void *arg) {
  team_t *team = arg;
  pthread_mutex_lock(&team->mutex);
  int64_t task_idx = team->num_taken++;
  while (team->state == TEAM_WAITS) pthread_cond_wait(&team->changed, &team->mutex);
  bool runs = team->state == TEAM_RUNS;
  pthread_mutex_unlock(&team->mutex);
  if (runs) team->task(team->arg, task_idx);
  pthread_mutex_lock(&team->mutex);
  team->num_done++;
  pthread_cond_broadcast(&team->changed);
  pthread_mutex_unlock(&team->mutex);
  return NULL;
}

static double seconds_since(const struct timespec *start) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)(now.tv_sec - start->tv_sec) + 1e-9 * (double)(now.tv_nsec - start->tv_nsec);
}

/* Waits for the team; called and left with its mutex held. */
static void wait_with_progress(team_t *team, const char *label, fraction_fn fraction) {
  bool is_terminal = isatty(STDERR_FILENO), has_shown = false;
  double next_s = is_terminal ? 1.0 : 10.0;
  struct timespec start;
  clock_gettime(CLOCK_MONOTONIC, &start);
  while (team->num_done < team->num_tasks) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100000000;
    if (until.tv_nsec >= 1000000000) {
      until.tv_nsec -= 1000000000;
      until.tv_sec++;
    }
    pthread_cond_timedwait(&team->changed, &team->mutex, &until);
    double elapsed_s = seconds_since(&start);
    if (elapsed_s < next_s || team->num_done == team->num_tasks) continue;
    pthread_mutex_unlock(&team->mutex);
    char percent[16] = "";
    if (fraction != NULL) snprintf(percent, sizeof percent, "%3.0f %%, ", 100.0 * fraction(team->arg));
    fprintf(stderr, is_terminal ? "\r%s: %s%.0f s\033[K" : "%s: %s%.0f s\n", label, percent, elapsed_s);
    has_shown = true;
    next_s = elapsed_s + (is_terminal ? 0.2 : 10.0);
    pthread_mutex_lock(&team->mutex);
  }
  if (is_terminal && has_shown) fprintf(stderr, "\r\033[K");
}

bool run_together(int64_t num_tasks, task_fn task, void *arg, const char *label, fraction_fn fraction) {
  team_t team = {.mutex = PTHREAD_MUTEX_INITIALIZER,
                 .changed = PTHREAD_COND_INITIALIZER,
                 .num_tasks = num_tasks,
                 .task = task,
                 .arg = arg};
  pthread_t *threads = calloc((size_t)num_tasks + 1, sizeof *threads);
  int64_t num_threads = 0;
  while (threads != NULL && num_threads < num_tasks &&
         pthread_create(&threads[num_threads], NULL, member_main, &team) == 0)
    num_threads++;
  bool complete = threads != NULL && num_threads == num_tasks;

  pthread_mutex_lock(&team.mutex);
  team.state = complete ? TEAM_RUNS : TEAM_CANCELLED; /* nobody starts before all are there */
  pthread_cond_broadcast(&team.changed);
  if (complete) wait_with_progress(&team, label, fraction);
  pthread_mutex_unlock(&team.mutex);
  for (int64_t i = 0; i < num_threads; i++) pthread_join(threads[i], NULL);
  free(threads);
  return complete;
}

/* ---------------------------------------------------------------------------------------------------------- spread */

typedef struct spread {
  atomic_llong num_taken;
  int64_t num_tasks;
  task_fn task;
  void *arg;
} spread_t;

static void spread_main(void *arg, int64_t thread_idx) {
  spread_t *spread = arg;
  (void)thread_idx;
  for (;;) {
    int64_t task_idx = atomic_fetch_add(&spread->num_taken, 1);
    if (task_idx >= spread->num_tasks) return;
    spread->task(spread->arg, task_idx);
  }
}

static double spread_fraction(void *arg) {
  spread_t *spread = arg;
  double taken = (double)atomic_load(&spread->num_taken), total = (double)spread->num_tasks;
  return taken < total ? taken / total : 1.0;
}

void run_spread(int64_t num_tasks, task_fn task, void *arg, const char *label) {
  spread_t spread = {.num_tasks = num_tasks, .task = task, .arg = arg};
  long num_cpus = sysconf(_SC_NPROCESSORS_ONLN);
  int64_t num_threads = num_cpus < 1 ? 1 : num_cpus < 64 ? num_cpus : 64;
  if (num_threads > num_tasks) num_threads = num_tasks;
  if (num_threads == 0) return;
  if (!run_together(num_threads, spread_main, &spread, label, spread_fraction)) spread_main(&spread, 0);
}
