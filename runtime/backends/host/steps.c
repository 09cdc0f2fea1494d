/* The steps of a minibatch that both passes take, and the final sum. */
#include "backends/host/pass.h"

/* ---- the timeline ---- */

typedef struct traced_job {
  purr_trace_t *trace;
  int kind;
  purr__task_fn task;
  void *arg;
} traced_job_t;

static void record(purr_trace_t *trace, int worker_idx, int kind, uint64_t start_ns, int64_t task_idx) {
  purr__trace_record(trace, worker_idx,
                     &(purr__trace_event_t){.begin = start_ns,
                                            .end = purr__now_ns(),
                                            .kind = (uint16_t)kind,
                                            .rank = -1,
                                            .expert = -1,
                                            .row = (int32_t)task_idx,
                                            .column = -1});
}

static void run_traced(void *arg, int64_t task_idx, int worker_idx) {
  const traced_job_t *job = arg;
  const uint64_t start_ns = purr__now_ns();
  job->task(job->arg, task_idx);
  record(job->trace, worker_idx, job->kind, start_ns, task_idx);
}

void purr__pass_parallel(const purr__pass_t *pass, int kind, int64_t num_tasks, purr__task_fn task, void *arg) {
  traced_job_t job = {pass->trace, kind, task, arg};
  if (pass->trace != NULL)
    purr__parallel_for_workers(pass->context, num_tasks, run_traced, &job);
  else
    purr__parallel_for(pass->context, num_tasks, task, arg);
}

void purr__pass_record(const purr__pass_t *pass, int kind, uint64_t start_ns) {
  if (pass->trace != NULL) record(pass->trace, 0, kind, start_ns, -1);
}

/* ---- rows ---- */

#define ROWS_PER_TASK 32

typedef struct rows_task {
  purr__pass_t *pass;
  int64_t begin, end; /* rows of the table */
  purr__bf16_t *ring; /* at row `begin` */
  purr__pull_what_t what;
} rows_task_t;

static int64_t num_row_tasks(int64_t num_rows) { return (num_rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK; }

static void pull_rows(void *arg, int64_t task_idx) {
  const rows_task_t *task = arg;
  const purr__pass_t *pass = task->pass;
  const int64_t hidden = pass->plan->layer.hidden_size, top_k = pass->plan->layer.top_k;
  const int64_t begin = task->begin + task_idx * ROWS_PER_TASK;
  for (int64_t row = begin; row < purr__min(begin + ROWS_PER_TASK, task->end); row++) {
    purr__bf16_t *to = task->ring + (row - task->begin) * hidden;
    const int rank = pass->table.row_rank[row];
    if (rank < 0) {
      memset(to, 0, (size_t)hidden * sizeof *to);
      continue;
    }
    const purr__source_t source = purr__source_of(pass, rank);
    const int64_t token = pass->table.row_slot[row] / top_k;
    const purr__bf16_t *from = task->what == PURR__PULL_X ? source.x + token * source.x_stride
                                                          : source.d_output + token * source.d_output_stride;
    memcpy(to, from, (size_t)hidden * sizeof *to);
  }
}

/* On one rank nothing travels. */
static int pull_kind(const purr__pass_t *pass) {
  return pass->group->num_ranks > 1 ? PURR__TRACE_PULL : PURR__TRACE_GATHER;
}

void purr__step_pull(purr__pass_t *pass, const purr__minibatch_t *minibatch, purr__pull_what_t what) {
  const int64_t hidden = pass->plan->layer.hidden_size;
  const int region = what == PURR__PULL_X ? PURR__WS_RING_X : PURR__WS_RING_D_OUTPUT;
  rows_task_t task = {pass, minibatch->begin, minibatch->end, purr__ring_at(pass, region, hidden, minibatch), what};
  const int64_t num_rows = minibatch->end - minibatch->begin;
  purr__pass_parallel(pass, pull_kind(pass), num_row_tasks(num_rows), pull_rows, &task);
  purr__count(pass->context, PURR__COUNT_DISPATCH_BYTES, (uint64_t)(num_rows * hidden) * sizeof(purr__bf16_t));
  purr__pass_lap(pass, PURR_PHASE_DISPATCH);
}

static void push_rows(void *arg, int64_t task_idx) {
  const rows_task_t *task = arg;
  const purr__pass_t *pass = task->pass;
  const int64_t hidden = pass->plan->layer.hidden_size;
  const int64_t begin = task->begin + task_idx * ROWS_PER_TASK;
  for (int64_t row = begin; row < purr__min(begin + ROWS_PER_TASK, task->end); row++) {
    const int rank = pass->table.row_rank[row];
    if (rank < 0) continue;
    purr__bf16_t *to = purr__source_of(pass, rank).slots + pass->table.row_slot[row] * hidden;
    memcpy(to, task->ring + (row - task->begin) * hidden, (size_t)hidden * sizeof *to);
  }
}

void purr__step_push(purr__pass_t *pass, const purr__minibatch_t *minibatch) {
  const int64_t hidden = pass->plan->layer.hidden_size;
  rows_task_t task = {.pass = pass,
                      .begin = minibatch->begin,
                      .end = minibatch->end,
                      .ring = purr__ring_at(pass, PURR__WS_RING_Y, hidden, minibatch)};
  const int64_t num_rows = minibatch->end - minibatch->begin;
  purr__pass_parallel(pass, PURR__TRACE_PUSH, num_row_tasks(num_rows), push_rows, &task);
  purr__count(pass->context, PURR__COUNT_COMBINE_BYTES, (uint64_t)(num_rows * hidden) * sizeof(purr__bf16_t));
  purr__pass_lap(pass, PURR_PHASE_COMBINE);
}

void purr__step_gate_up(purr__pass_t *pass, const purr__minibatch_t *minibatch, const purr__bf16_t *x,
                        purr__bf16_t *gate, purr__bf16_t *up) {
  const int64_t hidden = pass->plan->layer.hidden_size, inner = pass->plan->layer.intermediate_size;
  const purr__view_t *const weights[2] = {&pass->weights->gate, &pass->weights->up};
  purr__bf16_t *const results[2] = {gate, up};
  purr__batch_t batch = purr__batch_start(pass);
  int64_t row = minibatch->begin, expert = 0;
  purr__run_t run;
  while (purr__table_next_run(&pass->table, minibatch->end, &row, &expert, &run)) {
    const int64_t offset = run.begin - minibatch->begin;
    for (int i = 0; i < 2; i++)
      purr__batch_add(&batch, (purr__gemm_t){.m = run.end - run.begin,
                                             .n = inner,
                                             .num_segments = 1,
                                             .segment = {{.a = purr__rows(x + offset * hidden, hidden),
                                                          .b = purr__batch_weight(&batch, weights[i], run.expert, inner,
                                                                                  hidden, PURR_SCALE_ALONG_ROW, i),
                                                          .k = hidden}},
                                             .c = results[i] + offset * inner,
                                             .c_dtype = PURR_DTYPE_BF16,
                                             .c_row_stride = inner,
                                             .trace = pass->trace,
                                             .trace_kind = PURR__TRACE_GATE_UP,
                                             .expert = (int32_t)run.expert});
    purr__batch_end_expert(&batch);
  }
  purr__batch_finish(&batch);
}

typedef struct swiglu_task {
  const purr__bf16_t *gate, *up;
  purr__bf16_t *a;
  int64_t num_elements;
  float limit;
} swiglu_task_t;

#define ELEMENTS_PER_TASK 16384

static void swiglu(void *arg, int64_t task_idx) {
  const swiglu_task_t *task = arg;
  const int64_t begin = task_idx * ELEMENTS_PER_TASK;
  purr__host_swiglu(task->gate + begin, task->up + begin, purr__min(ELEMENTS_PER_TASK, task->num_elements - begin),
                    task->limit, task->a + begin);
}

void purr__step_swiglu(const purr__pass_t *pass, int kind, const purr__bf16_t *gate, const purr__bf16_t *up,
                       int64_t num_elements, purr__bf16_t *a) {
  swiglu_task_t task = {gate, up, a, num_elements, pass->plan->layer.swiglu_limit};
  purr__pass_parallel(pass, kind, (num_elements + ELEMENTS_PER_TASK - 1) / ELEMENTS_PER_TASK, swiglu, &task);
}

typedef struct sum_task {
  purr__pass_t *pass;
  const purr__bf16_t *base, *slots;
  bool weighted;
  const purr__view_t *out;
} sum_task_t;

#define MAX_TOP_K 64

static void sum_tokens(void *arg, int64_t task_idx) {
  const sum_task_t *task = arg;
  const purr__pass_t *pass = task->pass;
  const int64_t hidden = pass->plan->layer.hidden_size, top_k = pass->plan->layer.top_k;
  const int64_t begin = task_idx * ROWS_PER_TASK;
  for (int64_t t = begin; t < purr__min(begin + ROWS_PER_TASK, pass->num_tokens); t++) {
    const purr__bf16_t *rows[MAX_TOP_K];
    float weights[MAX_TOP_K];
    for (int64_t k = 0; k < top_k; k++) {
      const bool dropped = pass->ids[t * top_k + k] < 0;
      rows[k] = dropped ? NULL : task->slots + (t * top_k + k) * hidden;
      weights[k] = 0.0f;
      if (task->weighted && !dropped)
        weights[k] =
            ((const float *)
                 pass->topk_weights->data)[t * pass->topk_weights->row_stride + k * pass->topk_weights->column_stride];
    }
    purr__host_slot_sum(task->base != NULL ? task->base + t * hidden : NULL, rows, task->weighted ? weights : NULL,
                        (int)top_k, hidden, (purr__bf16_t *)task->out->data + t * task->out->row_stride);
  }
}

void purr__sum_slots(purr__pass_t *pass, const purr__bf16_t *base, bool weighted, const purr__view_t *out) {
  sum_task_t task = {pass, base, purr__source_of(pass, pass->group->rank).slots, weighted, out};
  purr__pass_parallel(pass, PURR__TRACE_SLOT_SUM, num_row_tasks(pass->num_tokens), sum_tokens, &task);
  purr__pass_lap(pass, PURR_PHASE_SUM);
}
