/* The worker threads of the host backend, and the clock.
 *
 * parallel_for publishes a job in a list; the calling thread and idle workers take task numbers from it until none is
 * left. The caller always works itself, so a job finishes even if no worker ever comes, and jobs of several callers
 * cannot block each other. Workers start at the first job that can use them: a context that only parses never has any.
 */
#include <pthread.h>
#include <time.h>

#include "base/context.h"

typedef struct job {
  purr__worker_task_fn task;
  void *arg;
  int64_t num_tasks;
  atomic_llong next_task;
  int num_workers; /* inside this job now; guarded by the pool's mutex */
  struct job *next;
} job_t;

typedef struct worker {
  pthread_t thread;
  struct purr__pool *pool;
  int idx; /* from 1; 0 stands for the caller of a job */
} worker_t;

struct purr__pool {
  pthread_mutex_t mutex;
  pthread_cond_t work_came, worker_left;
  job_t *jobs;
  bool stopping;
  int num_started, max_workers;
  worker_t *workers;
};

static bool has_tasks(const job_t *job) {
  return atomic_load_explicit(&job->next_task, memory_order_relaxed) < job->num_tasks;
}

static void run_tasks(job_t *job, int worker_idx) {
  for (;;) {
    int64_t task_idx = atomic_fetch_add_explicit(&job->next_task, 1, memory_order_relaxed);
    if (task_idx >= job->num_tasks) return;
    job->task(job->arg, task_idx, worker_idx);
  }
}

static void *worker_main(void *arg) {
  const worker_t *worker = arg;
  struct purr__pool *pool = worker->pool;
  pthread_mutex_lock(&pool->mutex);
  while (!pool->stopping) {
    job_t *job = pool->jobs;
    while (job != NULL && !has_tasks(job)) job = job->next;
    if (job == NULL) {
      pthread_cond_wait(&pool->work_came, &pool->mutex);
      continue;
    }
    job->num_workers++;
    pthread_mutex_unlock(&pool->mutex);
    run_tasks(job, worker->idx);
    pthread_mutex_lock(&pool->mutex);
    job->num_workers--;
    pthread_cond_broadcast(&pool->worker_left);
  }
  pthread_mutex_unlock(&pool->mutex);
  return NULL;
}

purr_status_t purr__pool_create(purr_context_t *context, struct purr__pool **out_pool, purr_error_t *err) {
  int max_workers = context->num_threads - 1;
  uint64_t bytes = sizeof(struct purr__pool) + (uint64_t)max_workers * sizeof(worker_t);
  struct purr__pool *pool = purr__allocate_zeroed(context, bytes);
  if (pool == NULL) return purr__fail_memory(err, "the worker pool", bytes);
  pthread_mutex_init(&pool->mutex, NULL);
  pthread_cond_init(&pool->work_came, NULL);
  pthread_cond_init(&pool->worker_left, NULL);
  pool->max_workers = max_workers;
  pool->workers = (worker_t *)(pool + 1);
  *out_pool = pool;
  return PURR_STATUS_OK;
}

void purr__pool_destroy(purr_context_t *context, struct purr__pool *pool) {
  pthread_mutex_lock(&pool->mutex);
  pool->stopping = true;
  pthread_cond_broadcast(&pool->work_came);
  pthread_mutex_unlock(&pool->mutex);
  for (int i = 0; i < pool->num_started; i++) pthread_join(pool->workers[i].thread, NULL);
  pthread_cond_destroy(&pool->worker_left);
  pthread_cond_destroy(&pool->work_came);
  pthread_mutex_destroy(&pool->mutex);
  purr__release(context, pool);
}

void purr__parallel_for_workers(purr_context_t *context, int64_t num_tasks, purr__worker_task_fn task, void *arg) {
  struct purr__pool *pool = context->pool;
  if (num_tasks <= 1 || pool->max_workers == 0) {
    for (int64_t i = 0; i < num_tasks; i++) task(arg, i, 0);
    return;
  }
  job_t job = {.task = task, .arg = arg, .num_tasks = num_tasks};
  pthread_mutex_lock(&pool->mutex);
  /* A thread that cannot be started is no error: the work is then shared by fewer. */
  while (pool->num_started < pool->max_workers) {
    worker_t *worker = &pool->workers[pool->num_started];
    *worker = (worker_t){.pool = pool, .idx = pool->num_started + 1};
    if (pthread_create(&worker->thread, NULL, worker_main, worker) != 0) break;
    pool->num_started++;
  }
  job.next = pool->jobs;
  pool->jobs = &job;
  pthread_cond_broadcast(&pool->work_came);
  pthread_mutex_unlock(&pool->mutex);

  run_tasks(&job, 0);

  pthread_mutex_lock(&pool->mutex);
  while (job.num_workers > 0) pthread_cond_wait(&pool->worker_left, &pool->mutex);
  job_t **link = &pool->jobs;
  while (*link != &job) link = &(*link)->next;
  *link = job.next;
  pthread_mutex_unlock(&pool->mutex);
}

typedef struct plain_job {
  purr__task_fn task;
  void *arg;
} plain_job_t;

static void run_plain(void *arg, int64_t task_idx, int worker_idx) {
  const plain_job_t *job = arg;
  (void)worker_idx;
  job->task(job->arg, task_idx);
}

void purr__parallel_for(purr_context_t *context, int64_t num_tasks, purr__task_fn task, void *arg) {
  plain_job_t job = {task, arg};
  purr__parallel_for_workers(context, num_tasks, run_plain, &job);
}

int purr__num_threads(const purr_context_t *context) { return context->num_threads; }

uint64_t purr__now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
