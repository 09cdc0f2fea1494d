/* The host backend's GEMMs against OpenBLAS sgemm, on the per-expert problems of a layer.
 *
 *   bench_host_gemm [--tokens N,N,...] [--pairs N] [--isa NAME]
 *                   [--experts E] [--top-k K] [--hidden H] [--intermediate I]
 *
 * Defaults are qwen3_30b with 256 tokens. OpenBLAS works on FP32 copies made beforehand, once with its own threads
 * inside each call and once with single-threaded calls in parallel; the ratio is against the faster of the two, the
 * median over alternating runs. An OpenBLAS older than the CPU may take it for an old one: the core it chose is
 * printed, and OPENBLAS_CORETYPE=SkylakeX, say, sets another.
 */
#include <stdio.h>
#include <stdlib.h>

#include "backends/host/math.h"

#ifdef PURR_BENCH_OPENBLAS
enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
void cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc);
void openblas_set_num_threads(int num_threads);
char *openblas_get_config(void);
char *openblas_get_corename(void);
#endif

typedef struct shape {
  int64_t num_experts, top_k, hidden, intermediate;
} shape_t;

/* One GEMM of every expert: c[m, n] = a.b, with m (or k, for weight gradients) the rows of the expert. */
typedef struct product {
  const char *name;
  int64_t n, k; /* for weight gradients: the sizes of c */
  bool a_transposed, b_transposed;
} product_t;

typedef struct problems {
  int64_t num;
  purr__gemm_t *gemms;  /* BF16 operands */
  const float **a, **b; /* FP32 copies */
  float **c;
  product_t product;
} problems_t;

static uint64_t random_state = 88172645463325252u;

static uint32_t next_random(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (uint32_t)(random_state >> 32);
}

static void *allocate(int64_t bytes) {
  void *memory = aligned_alloc(64, (size_t)purr__round_up(bytes + 1, 64));
  if (memory == NULL) {
    fprintf(stderr, "bench_host_gemm: no memory for %lld bytes\n", (long long)bytes);
    exit(2);
  }
  return memory;
}

/* The same numbers as BF16 and FP32. */
static void fill(purr__bf16_t *narrow, float *wide, int64_t num) {
  for (int64_t i = 0; i < num; i++) {
    narrow[i] = purr__bf16_from_fp32((float)(int32_t)next_random() * 0x1p-33f);
    wide[i] = purr__fp32_from_bf16(narrow[i]);
  }
}

static void run_ours(purr_context_t *context, const problems_t *problems) {
  purr__host_gemm(context, problems->gemms, problems->num);
}

#ifdef PURR_BENCH_OPENBLAS
static void run_one_openblas(void *arg, int64_t i) {
  const problems_t *problems = arg;
  const purr__gemm_t *gemm = &problems->gemms[i];
  const product_t *product = &problems->product;
  int m = (int)gemm->m, n = (int)gemm->n, k = (int)gemm->segment[0].k;
  if (m == 0 || n == 0) return;
  cblas_sgemm(ROW_MAJOR, product->a_transposed ? TRANSPOSED : PLAIN, product->b_transposed ? TRANSPOSED : PLAIN, m, n,
              k, 1.0f, problems->a[i], product->a_transposed ? m : k, problems->b[i], product->b_transposed ? k : n,
              0.0f, problems->c[i], n);
}

static void run_openblas_threads(purr_context_t *context, const problems_t *problems) {
  openblas_set_num_threads(purr__num_threads(context));
  for (int64_t i = 0; i < problems->num; i++) run_one_openblas((void *)(uintptr_t)problems, i);
}

static void run_openblas_parallel(purr_context_t *context, const problems_t *problems) {
  openblas_set_num_threads(1);
  purr__parallel_for(context, problems->num, run_one_openblas, (void *)(uintptr_t)problems);
}
#endif

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values, int num) {
  qsort(values, (size_t)num, sizeof *values, compare);
  return num % 2 == 1 ? values[num / 2] : (values[num / 2 - 1] + values[num / 2]) / 2;
}

static double seconds_of(void (*run)(purr_context_t *, const problems_t *), purr_context_t *context,
                         const problems_t *problems) {
  uint64_t start = purr__now_ns();
  run(context, problems);
  return (double)(purr__now_ns() - start) * 1e-9;
}

static void measure(purr_context_t *context, const problems_t *problems, int64_t num_tokens, int num_pairs) {
  enum { MAX_PAIRS = 99 };
  double flops = 0, ours[MAX_PAIRS];
  for (int64_t i = 0; i < problems->num; i++)
    flops +=
        2.0 * (double)problems->gemms[i].m * (double)problems->gemms[i].n * (double)problems->gemms[i].segment[0].k;
  if (num_pairs > MAX_PAIRS) num_pairs = MAX_PAIRS;
  printf("%6lld  %-24s", (long long)num_tokens, problems->product.name);
#ifdef PURR_BENCH_OPENBLAS
  double threads[MAX_PAIRS], parallel[MAX_PAIRS], ratios[MAX_PAIRS];
  for (int p = -1; p < num_pairs; p++) { /* the first only warms up */
    int i = p < 0 ? 0 : p;
    ours[i] = seconds_of(run_ours, context, problems);
    threads[i] = seconds_of(run_openblas_threads, context, problems);
    parallel[i] = seconds_of(run_openblas_parallel, context, problems);
    ratios[i] = (threads[i] < parallel[i] ? threads[i] : parallel[i]) / ours[i];
  }
  printf("%10.1f %10.1f %10.1f %9.2f\n", flops / median(ours, num_pairs) * 1e-9,
         flops / median(threads, num_pairs) * 1e-9, flops / median(parallel, num_pairs) * 1e-9,
         median(ratios, num_pairs));
#else
  for (int p = -1; p < num_pairs; p++) ours[p < 0 ? 0 : p] = seconds_of(run_ours, context, problems);
  printf("%10.1f\n", flops / median(ours, num_pairs) * 1e-9);
#endif
  fflush(stdout);
}

/* All experts' GEMMs of one kind. weights: [experts][n * k]; rows: [num_rows][max(n, k)] of activations. */
static void bench_product(purr_context_t *context, const shape_t *shape, product_t product, const int64_t *rows_of,
                          int64_t num_tokens, const purr__bf16_t *weights, const float *wide_weights, int num_pairs) {
  int64_t num_rows = num_tokens * shape->top_k, n = product.n, k = product.k;
  bool is_gradient = product.a_transposed; /* c[n, k] = p[rows, n]^T . q[rows, k] */
  purr__bf16_t *p = allocate(num_rows * k * 2), *q = allocate(num_rows * n * 2);
  float *wide_p = allocate(num_rows * k * 4), *wide_q = allocate(num_rows * n * 4);
  fill(p, wide_p, num_rows * k);
  fill(q, wide_q, num_rows * n);
  int64_t num_results = is_gradient ? shape->num_experts * n * k : num_rows * n;
  float *ours = allocate(num_results * 4), *theirs = allocate(num_results * 4);
  memset(ours, 0, (size_t)num_results * 4);
  memset(theirs, 0, (size_t)num_results * 4);

  problems_t problems = {.num = shape->num_experts, .product = product};
  problems.gemms = allocate(problems.num * (int64_t)sizeof *problems.gemms);
  problems.a = allocate(problems.num * (int64_t)sizeof *problems.a);
  problems.b = allocate(problems.num * (int64_t)sizeof *problems.b);
  problems.c = allocate(problems.num * (int64_t)sizeof *problems.c);
  for (int64_t e = 0, row = 0; e < problems.num; row += rows_of[e++]) {
    purr__gemm_t gemm = {.num_segments = 1};
    if (is_gradient) {
      gemm.m = n, gemm.n = k, gemm.segment[0].k = rows_of[e];
      gemm.segment[0].a = (purr__operand_t){q + row * n, PURR_DTYPE_BF16, 1, n};
      gemm.segment[0].b = (purr__operand_t){p + row * k, PURR_DTYPE_BF16, 1, k};
      gemm.c = ours + e * n * k, gemm.c_dtype = PURR_DTYPE_FP32, gemm.c_row_stride = k;
      problems.a[e] = wide_q + row * n, problems.b[e] = wide_p + row * k, problems.c[e] = theirs + e * n * k;
    } else {
      gemm.m = rows_of[e], gemm.n = n, gemm.segment[0].k = k;
      gemm.segment[0].a = (purr__operand_t){p + row * k, PURR_DTYPE_BF16, k, 1};
      gemm.segment[0].b = (purr__operand_t){weights + e * n * k, PURR_DTYPE_BF16, product.b_transposed ? k : 1,
                                            product.b_transposed ? 1 : n};
      gemm.c = (purr__bf16_t *)ours + row * n, gemm.c_dtype = PURR_DTYPE_BF16, gemm.c_row_stride = n;
      problems.a[e] = wide_p + row * k, problems.b[e] = wide_weights + e * n * k, problems.c[e] = theirs + row * n;
    }
    problems.gemms[e] = gemm;
  }
  measure(context, &problems, num_tokens, num_pairs);
  void *memory[] = {p, q, wide_p, wide_q, ours, theirs, problems.gemms, problems.a, problems.b, problems.c};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
}

static void bench_tokens(purr_context_t *context, const shape_t *shape, int64_t num_tokens, const purr__bf16_t *weights,
                         const float *wide_weights, int num_pairs) {
  int64_t *rows_of = allocate(shape->num_experts * (int64_t)sizeof *rows_of);
  memset(rows_of, 0, (size_t)shape->num_experts * sizeof *rows_of);
  for (int64_t i = 0; i < num_tokens * shape->top_k; i++) rows_of[next_random() % (uint32_t)shape->num_experts]++;
  int64_t h = shape->hidden, i = shape->intermediate;
  const product_t products[] = {
      {"gate and up (NT)", 2 * i, h, false, true}, {"down (NT)", h, i, false, true},
      {"d_a of down (NN)", i, h, false, false},    {"d_x of gate and up (NN)", h, 2 * i, false, false},
      {"d_down (TN)", h, i, true, false},
  };
  for (size_t j = 0; j < sizeof products / sizeof *products; j++)
    bench_product(context, shape, products[j], rows_of, num_tokens, weights, wide_weights, num_pairs);
  free(rows_of);
}

int main(int argc, char **argv) {
  shape_t shape = {128, 8, 2048, 768};
  const char *tokens = "256";
  int num_pairs = 11;
  for (int i = 1; i + 1 < argc; i += 2) {
    int64_t value = atoll(argv[i + 1]);
    if (strcmp(argv[i], "--tokens") == 0) tokens = argv[i + 1];
    if (strcmp(argv[i], "--experts") == 0) shape.num_experts = value;
    if (strcmp(argv[i], "--top-k") == 0) shape.top_k = value;
    if (strcmp(argv[i], "--hidden") == 0) shape.hidden = value;
    if (strcmp(argv[i], "--intermediate") == 0) shape.intermediate = value;
    if (strcmp(argv[i], "--pairs") == 0) num_pairs = (int)value;
    if (strcmp(argv[i], "--isa") == 0 && !purr__host_set_isa(argv[i + 1])) return 2;
  }
  purr_context_t *context = NULL;
  if (purr_context_create(NULL, &context, NULL) != PURR_STATUS_OK) return 2;
  printf("E %lld, K %lld, H %lld, I %lld; %s, %d threads; medians of %d\n", (long long)shape.num_experts,
         (long long)shape.top_k, (long long)shape.hidden, (long long)shape.intermediate, purr__host_isa(),
         purr__num_threads(context), num_pairs);
#ifdef PURR_BENCH_OPENBLAS
  printf("%s, core %s\n%6s  %-24s%10s %10s %10s %9s\n", openblas_get_config(), openblas_get_corename(), "tokens",
         "GFLOP/s", "purr", "openblas", "its calls", "ratio");
  printf("%6s  %-24s%10s %10s %10s\n", "", "", "", "", "in parallel");
#else
  printf("%6s  %-24s%10s   (built without OpenBLAS)\n", "tokens", "GFLOP/s", "purr");
#endif
  int64_t num_weights = shape.num_experts * 2 * shape.intermediate * shape.hidden;
  purr__bf16_t *weights = allocate(num_weights * 2);
  float *wide_weights = allocate(num_weights * 4);
  fill(weights, wide_weights, num_weights);
  for (const char *next = tokens; next != NULL; next = strchr(next, ',')) {
    if (*next == ',') next++;
    bench_tokens(context, &shape, atoll(next), weights, wide_weights, num_pairs);
  }
  free(weights);
  free(wide_weights);
  purr_context_destroy(context);
  return 0;
}
