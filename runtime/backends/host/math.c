/* Chooses the kernels for this CPU and hands them their work. */
#include "backends/host/math.h"

#include "backends/host/float_mode.h"
#include "backends/host/kernels.h"
#include "trace/trace.h"

static bool always_has(void) { return true; }

#if defined(__x86_64__)
static bool has_avx512(void) { return __builtin_cpu_supports("avx512f"); }

static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#endif

/* The best first. */
static const struct {
  const purr__host_kernels_t *kernels;
  bool (*cpu_has)(void);
} isas[] = {
#if defined(__x86_64__)
    {&purr__host_kernels_avx512, has_avx512},
    {&purr__host_kernels_avx2, has_avx2},
#elif defined(__aarch64__)
    {&purr__host_kernels_neon, always_has},
#endif
    {&purr__host_kernels_baseline, always_has},
};

/* Only ever a pointer to one of the read-only tables; threads that choose at the same time choose the same. */
static _Atomic(const purr__host_kernels_t *) chosen;

static const purr__host_kernels_t *choose_isa(const char *name) {
  for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
    if ((name == NULL || strcmp(name, isas[i].kernels->isa) == 0) && isas[i].cpu_has()) return isas[i].kernels;
  return NULL;
}

static const purr__host_kernels_t *kernels(void) {
  const purr__host_kernels_t *current = atomic_load_explicit(&chosen, memory_order_relaxed);
  if (current == NULL) {
    current = choose_isa(NULL);
    atomic_store_explicit(&chosen, current, memory_order_relaxed);
  }
  return current;
}

const char *purr__host_isa(void) { return kernels()->isa; }

bool purr__host_set_isa(const char *name) {
  const purr__host_kernels_t *wanted = choose_isa(strcmp(name, "auto") == 0 ? NULL : name);
  if (wanted != NULL) atomic_store_explicit(&chosen, wanted, memory_order_relaxed);
  return wanted != NULL;
}

/* ---- GEMM: problems cut into tiles, one task each ---- */

enum { MAX_PROBLEMS = 512, MIN_TILE_N = 32, TASKS_PER_THREAD = 4 };

typedef struct tiling {
  const purr__gemm_t *problems;
  int64_t num_problems, tile_n;
  int64_t first_task[MAX_PROBLEMS + 1]; /* of each problem, and the number of all */
} tiling_t;

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t count_tasks(tiling_t *tiling) {
  int64_t num_tasks = 0;
  for (int64_t i = 0; i < tiling->num_problems; i++) {
    const purr__gemm_t *gemm = &tiling->problems[i];
    tiling->first_task[i] = num_tasks;
    num_tasks += divide_up(gemm->m, PURR__TILE_M) * divide_up(gemm->n, tiling->tile_n);
  }
  tiling->first_task[tiling->num_problems] = num_tasks;
  return num_tasks;
}

static int64_t find_problem(const tiling_t *tiling, int64_t task_idx) {
  int64_t low = 0, high = tiling->num_problems; /* first_task[low] <= task_idx < first_task[high] */
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    if (tiling->first_task[middle] <= task_idx)
      low = middle;
    else
      high = middle;
  }
  return low;
}

static void run_tile(void *arg, int64_t task_idx, int worker_idx) {
  const tiling_t *tiling = arg;
  int64_t problem_idx = find_problem(tiling, task_idx), tile_idx = task_idx - tiling->first_task[problem_idx];
  const purr__gemm_t *gemm = &tiling->problems[problem_idx];
  /* Rows are cut evenly, so that no tile is left with a few; tiles of the same columns follow each other and share b.
   */
  int64_t num_row_tiles = divide_up(gemm->m, PURR__TILE_M);
  int64_t row_tile = tile_idx % num_row_tiles, column = tile_idx / num_row_tiles * tiling->tile_n;
  int64_t row = row_tile * gemm->m / num_row_tiles, end = (row_tile + 1) * gemm->m / num_row_tiles;
  const uint64_t start_ns = gemm->trace != NULL ? purr__now_ns() : 0;
  uint64_t saved = purr__float_mode_enter();
  kernels()->gemm_tile(gemm, row, end - row, column, purr__min(tiling->tile_n, gemm->n - column));
  purr__float_mode_leave(saved);
  if (gemm->trace != NULL)
    purr__trace_record(gemm->trace, worker_idx,
                       &(purr__trace_event_t){.begin = start_ns,
                                              .end = purr__now_ns(),
                                              .kind = (uint16_t)gemm->trace_kind,
                                              .rank = -1,
                                              .expert = gemm->expert,
                                              .row = (int32_t)row,
                                              .column = (int32_t)column});
}

void purr__host_gemm(purr_context_t *context, const purr__gemm_t *problems, int64_t num_problems) {
  int num_threads = purr__num_threads(context);
  for (int64_t first = 0; first < num_problems; first += MAX_PROBLEMS) {
    tiling_t tiling = {problems + first, purr__min(MAX_PROBLEMS, num_problems - first), PURR__TILE_N, {0}};
    int64_t num_tasks = count_tasks(&tiling);
    while (num_threads > 1 && num_tasks < TASKS_PER_THREAD * num_threads && tiling.tile_n > MIN_TILE_N) {
      tiling.tile_n /= 2;
      num_tasks = count_tasks(&tiling);
    }
    purr__parallel_for_workers(context, num_tasks, run_tile, &tiling);
  }
}

/* ---- rows of numbers ---- */

void purr__host_swiglu(const purr__bf16_t *g, const purr__bf16_t *u, int64_t num, float limit, purr__bf16_t *a) {
  uint64_t saved = purr__float_mode_enter();
  kernels()->swiglu(g, u, num, limit, a);
  purr__float_mode_leave(saved);
}

float purr__host_swiglu_backward(const purr__bf16_t *g, const purr__bf16_t *u, const float *d_a1, float weight,
                                 float limit, int64_t num, purr__bf16_t *d_gate, purr__bf16_t *d_up,
                                 purr__bf16_t *scaled_a) {
  uint64_t saved = purr__float_mode_enter();
  float d_weight = kernels()->swiglu_backward(g, u, d_a1, weight, limit, num, d_gate, d_up, scaled_a);
  purr__float_mode_leave(saved);
  return d_weight;
}

void purr__host_slot_sum(const purr__bf16_t *base, const purr__bf16_t *const *rows, const float *weights, int num_slots,
                         int64_t num, purr__bf16_t *out) {
  uint64_t saved = purr__float_mode_enter();
  kernels()->slot_sum(base, rows, weights, num_slots, num, out);
  purr__float_mode_leave(saved);
}

void purr__host_scale(const purr__bf16_t *in, float scale, int64_t num, purr__bf16_t *out) {
  uint64_t saved = purr__float_mode_enter();
  kernels()->scale(in, scale, num, out);
  purr__float_mode_leave(saved);
}

float purr__host_exp(float x) {
  uint64_t saved = purr__float_mode_enter();
  float e = kernels()->exp(x);
  purr__float_mode_leave(saved);
  return e;
}

float purr__host_sigmoid(float x) {
  uint64_t saved = purr__float_mode_enter();
  float s = kernels()->sigmoid(x);
  purr__float_mode_leave(saved);
  return s;
}
