/* The host backend's GEMM against its definition, written here as plain loops over fmaf: equal to the bit for every
 * form of operand, instruction set and number of threads. */
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "support/host_math.h"

static purr_context_t *context; /* five threads; others where a test says so */

static purr_context_t *context_of(uint32_t num_threads) {
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  desc.num_threads = num_threads;
  purr_context_t *created = NULL;
  if (purr_context_create(&desc, &created, NULL) != PURR_STATUS_OK) abort();
  return created;
}

/* ---- the definition ---- */

static float element_of(const purr__operand_t *x, int64_t row, int64_t k) {
  const int64_t at = row * x->row_stride + k * x->k_stride;
  if (x->dtype == PURR_DTYPE_FP32) return ((const float *)x->data)[at];
  return purr__fp32_from_bf16(((const purr__bf16_t *)x->data)[at]);
}

static float element_of_c(const purr__gemm_t *gemm, int64_t m, int64_t n) {
  const int64_t at = m * gemm->c_row_stride + n;
  if (gemm->c_dtype == PURR_DTYPE_FP32) return ((const float *)gemm->c)[at];
  return purr__fp32_from_bf16(((const purr__bf16_t *)gemm->c)[at]);
}

/* What the GEMM must write at (m, n), as FP32; c still holds what was there before. */
static float expected_element(const purr__gemm_t *gemm, int64_t m, int64_t n) {
  float sum = gemm->initial != NULL ? gemm->initial[m * gemm->initial_stride + n] : 0.0f;
  for (int s = 0; s < gemm->num_segments; s++)
    for (int64_t k = 0; k < gemm->segment[s].k; k++)
      sum = fmaf(element_of(&gemm->segment[s].a, m, k), element_of(&gemm->segment[s].b, n, k), sum);
  if (gemm->accumulate) sum = element_of_c(gemm, m, n) + sum;
  if (gemm->c_dtype == PURR_DTYPE_BF16) sum = purr__fp32_from_bf16(purr__bf16_from_fp32(sum));
  return purr__canonical_fp32(sum);
}

static float *expect(const purr__gemm_t *gemm) {
  float *expected = malloc((size_t)(gemm->m * gemm->n + 1) * sizeof *expected);
  CU_ASSERT_PTR_NOT_NULL_FATAL(expected);
  for (int64_t m = 0; m < gemm->m; m++)
    for (int64_t n = 0; n < gemm->n; n++) expected[m * gemm->n + n] = expected_element(gemm, m, n);
  return expected;
}

/* True if c holds `expected` to the bit, NaN in its one form. */
static bool holds(const purr__gemm_t *gemm, const float *expected) {
  for (int64_t m = 0; m < gemm->m; m++)
    for (int64_t n = 0; n < gemm->n; n++) {
      const float got = element_of_c(gemm, m, n), want = expected[m * gemm->n + n];
      if (purr__fp32_bits(got) == purr__fp32_bits(want)) continue;
      fprintf(stderr, "%s: m %lld n %lld k %lld + %lld: c[%lld][%lld] = %a, expected %a\n", purr__host_isa(),
              (long long)gemm->m, (long long)gemm->n, (long long)gemm->segment[0].k, (long long)gemm->segment[1].k,
              (long long)m, (long long)n, (double)got, (double)want);
      return false;
    }
  return true;
}

/* ---- random problems ---- */

typedef enum form { ROWS_OUTSIDE, ROWS_INSIDE, BOTH_STRIDED, NUM_FORMS } form_t;

/* A [rows, k] operand in memory that ends where it ends; whatever lies between its elements is NaN. */
static purr__operand_t operand_of(int64_t rows, int64_t k, int32_t dtype, form_t form, test_values_t values,
                                  uint64_t *random) {
  purr__operand_t x = {.dtype = dtype};
  const int64_t gap = (int64_t)(test_random_bits(random) % 3) * 5;
  if (form == ROWS_OUTSIDE) x.row_stride = k + gap, x.k_stride = 1;
  if (form == ROWS_INSIDE) x.row_stride = 1, x.k_stride = rows + gap;
  if (form == BOTH_STRIDED) x.row_stride = 3 * k + gap, x.k_stride = 3;
  const int64_t num = rows == 0 || k == 0 ? 0 : (rows - 1) * x.row_stride + (k - 1) * x.k_stride + 1;
  const size_t bytes = (size_t)num * (dtype == PURR_DTYPE_FP32 ? 4 : 2);
  void *data = malloc(bytes + (bytes == 0));
  CU_ASSERT_PTR_NOT_NULL_FATAL(data);
  memset(data, 0xFF, bytes);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < k; i++) {
      const float value = test_value(random, values);
      const int64_t at = r * x.row_stride + i * x.k_stride;
      if (dtype == PURR_DTYPE_FP32)
        ((float *)data)[at] = value;
      else
        ((purr__bf16_t *)data)[at] = purr__bf16_from_fp32(value);
    }
  x.data = data;
  return x;
}

typedef struct random_problem {
  purr__gemm_t gemm;
  float *initial;
  void *c, *c_before;
  size_t c_bytes;
} random_problem_t;

static random_problem_t problem_of(int64_t m, int64_t n, int64_t k, test_values_t values, uint64_t *random) {
  const uint64_t choice = test_random_bits(random);
  random_problem_t p = {.gemm = {.m = m, .n = n, .num_segments = 1 + (choice >> 10) % 2}};
  for (int s = 0; s < p.gemm.num_segments; s++) {
    const uint64_t form = choice >> (16 + 8 * s);
    p.gemm.segment[s].k = s == 0 ? k : (int64_t)(test_random_bits(random) % (uint64_t)(k + 2));
    for (int i = 0; i < 2; i++) {
      const int32_t dtype = (form >> i) % 2 == 0 ? PURR_DTYPE_BF16 : PURR_DTYPE_FP32;
      const form_t layout = (form_t)((form >> (2 + 3 * i)) % 8 % NUM_FORMS);
      const purr__operand_t x = operand_of(i == 0 ? m : n, p.gemm.segment[s].k, dtype, layout, values, random);
      *(i == 0 ? &p.gemm.segment[s].a : &p.gemm.segment[s].b) = x;
    }
  }
  p.gemm.accumulate = choice % 3 == 0;
  p.gemm.c_dtype = (choice >> 4) % 2 == 0 ? PURR_DTYPE_BF16 : PURR_DTYPE_FP32;
  p.gemm.c_row_stride = n + (int64_t)((choice >> 6) % 3);
  p.c_bytes = (size_t)(m * p.gemm.c_row_stride) * (p.gemm.c_dtype == PURR_DTYPE_BF16 ? 2 : 4);
  p.c = malloc(p.c_bytes + 1);
  p.c_before = malloc(p.c_bytes + 1);
  p.initial = malloc((size_t)(m * (n + 3) + 1) * sizeof(float));
  CU_ASSERT_FATAL(p.c != NULL && p.c_before != NULL && p.initial != NULL);
  for (int64_t i = 0; i < m * (n + 3); i++) p.initial[i] = test_value(random, values);
  for (int64_t i = 0; i < m * p.gemm.c_row_stride; i++) {
    const float value = test_value(random, values);
    if (p.gemm.c_dtype == PURR_DTYPE_BF16)
      ((purr__bf16_t *)p.c_before)[i] = purr__bf16_from_fp32(value);
    else
      ((float *)p.c_before)[i] = value;
  }
  p.gemm.c = p.c;
  switch ((choice >> 8) % 3) {
    case 0:
      break;
    case 1:
      p.gemm.initial = p.initial, p.gemm.initial_stride = n + 3;
      break;
    default: /* c itself, where it can be */
      if (p.gemm.c_dtype == PURR_DTYPE_FP32) p.gemm.initial = p.c, p.gemm.initial_stride = p.gemm.c_row_stride;
  }
  memcpy(p.c, p.c_before, p.c_bytes);
  return p;
}

static void free_problem(random_problem_t *p) {
  for (int s = 0; s < p->gemm.num_segments; s++) {
    free((void *)(uintptr_t)p->gemm.segment[s].a.data);
    free((void *)(uintptr_t)p->gemm.segment[s].b.data);
  }
  free(p->initial);
  free(p->c);
  free(p->c_before);
}

/* What lies between the rows of c stays as it was. */
static bool gaps_are_untouched(const random_problem_t *p) {
  const size_t element = p->gemm.c_dtype == PURR_DTYPE_BF16 ? 2 : 4;
  const size_t row = (size_t)p->gemm.c_row_stride * element, used = (size_t)p->gemm.n * element;
  for (size_t m = 0; m < (size_t)p->gemm.m; m++)
    if (memcmp((char *)p->c + m * row + used, (char *)p->c_before + m * row + used, row - used) != 0) return false;
  return true;
}

static void check_random_problem(int64_t m, int64_t n, int64_t k, test_values_t values, uint64_t seed) {
  random_problem_t p = problem_of(m, n, k, values, &seed);
  float *expected = expect(&p.gemm);
  static const char *const isas[] = {"baseline", "avx2", "avx512", "neon"};
  for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
    if (!purr__host_set_isa(isas[i])) continue;
    memcpy(p.c, p.c_before, p.c_bytes);
    purr__host_gemm(context, &p.gemm, 1);
    CU_ASSERT(holds(&p.gemm, expected));
    CU_ASSERT(gaps_are_untouched(&p));
  }
  CU_ASSERT(purr__host_set_isa("auto"));
  free(expected);
  free_problem(&p);
}

static void follows_the_definition(void) {
  static const int64_t sizes[] = {0, 1, 2, 3, 5, 7, 8, 13, 14, 15, 16, 17, 28, 31, 32, 33, 40, 63, 64, 65, 96, 97};
  const uint64_t num_sizes = sizeof sizes / sizeof *sizes;
  uint64_t random = 1;
  for (uint64_t i = 0; i < 300; i++) {
    const int64_t m = sizes[test_random_bits(&random) % num_sizes], n = sizes[test_random_bits(&random) % num_sizes];
    const int64_t k = sizes[test_random_bits(&random) % num_sizes];
    check_random_problem(m, n, k, (test_values_t)(i % 3), i);
  }
}

/* More than one tile, more than one piece of k in each of the buffers. */
static void follows_the_definition_when_large(void) {
  check_random_problem(200, 290, 20, TEST_WIDE, 1);
  check_random_problem(9, 40, 2100, TEST_NORMAL, 2);
  check_random_problem(97, 65, 90, TEST_WIDE, 3);
  check_random_problem(1, 513, 333, TEST_SPECIAL, 4);
  check_random_problem(193, 33, 680, TEST_NORMAL, 5);
}

/* Every number of rows that a block or a tile can have. */
static void takes_any_number_of_rows(void) {
  for (int64_t m = 1; m <= 100; m++) check_random_problem(m, 40, 5, TEST_NORMAL, (uint64_t)m);
}

/* ---- fused multiply-adds, one at a time ---- */

static uint32_t num_fused;

/* With k = 1 every element is one fma(a[m], b[n], initial[m][n]). */
static void check_fused(const float *a, const float *b, const float *initial, int64_t m, int64_t n, int32_t dtype) {
  float *c = malloc((size_t)(m * n) * sizeof *c);
  purr__bf16_t *narrow = malloc((size_t)(m + n) * sizeof *narrow);
  CU_ASSERT_FATAL(c != NULL && narrow != NULL);
  for (int64_t i = 0; i < m + n; i++) narrow[i] = purr__bf16_from_fp32(i < m ? a[i] : b[i - m]);
  purr__gemm_t gemm = {.m = m, .n = n, .num_segments = 1, .initial = initial, .initial_stride = n};
  const bool is_narrow = dtype == PURR_DTYPE_BF16;
  gemm.segment[0].k = 1;
  gemm.segment[0].a = (purr__operand_t){is_narrow ? (void *)narrow : (void *)(uintptr_t)a, dtype, 1, 1};
  gemm.segment[0].b = (purr__operand_t){is_narrow ? (void *)(narrow + m) : (void *)(uintptr_t)b, dtype, 1, 1};
  gemm.c = c, gemm.c_dtype = PURR_DTYPE_FP32, gemm.c_row_stride = n;
  float *expected = expect(&gemm);
  static const char *const isas[] = {"baseline", "avx2", "avx512", "neon"};
  for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
    if (!purr__host_set_isa(isas[i])) continue;
    memset(c, 0xFF, (size_t)(m * n) * sizeof *c);
    purr__host_gemm(context, &gemm, 1);
    CU_ASSERT(holds(&gemm, expected));
  }
  CU_ASSERT(purr__host_set_isa("auto"));
  num_fused += (uint32_t)(m * n);
  free(expected);
  free(narrow);
  free(c);
}

enum { FUSED_M = 256, FUSED_N = 256 };

/* An addend that makes fma(a, b, addend) hard: the product's opposite or near it, or a number half of whose last place
 * is the product or near it, so that the sum lies on or beside the middle of two floats; else anything. */
static float hard_addend(float a, float b, uint64_t *random) {
  const uint64_t bits = test_random_bits(random);
  const double product = (double)a * (double)b;
  const float near = (float)product;
  const int32_t nudge = (int32_t)(bits >> 8) % 3 - 1;
  switch (bits % 4) {
    case 0:
      return purr__fp32_from_bits(purr__fp32_bits(-near) + (uint32_t)nudge);
    case 1: {
      int exponent;
      if (frexp(product, &exponent) == 0.0) return 0.0f;
      /* A last place of 2^exponent, that is twice a power of two near the product, and any 24 bits above it. */
      const float addend = ldexpf((float)(0x800000 + (uint32_t)(bits >> 16) % 0x800000), exponent + nudge);
      return isfinite(addend) ? (bits >> 12 & 1) != 0 ? -addend : addend : 0.0f;
    }
    case 2:
      return near * purr__fp32_from_bits(0x3F800000u + (uint32_t)(bits >> 16) % 0x1000000u);
    default:
      return test_value(random, TEST_WIDE);
  }
}

static void fuses_exactly(void) {
  static float a[FUSED_M], b[FUSED_N], initial[FUSED_M * FUSED_N];
  uint64_t random = 7;
  for (int round = 0; round < 18; round++) {
    for (int i = 0; i < FUSED_M + FUSED_N; i++) {
      float *x = i < FUSED_M ? &a[i] : &b[i - FUSED_M];
      const uint64_t bits = test_random_bits(&random);
      if (round % 9 == 0) *x = test_value(&random, TEST_WIDE);
      if (round % 9 == 1) *x = test_random_normal(&random);
      if (round % 9 == 2) *x = ldexpf(1.0f + (float)(bits % 8) * 0x1p-23f, (int)(bits >> 8) % 20 - 10);
      /* Products around the smallest normal number and the smallest of all, and around the largest. */
      if (round % 9 == 3) *x = ldexpf(test_random_normal(&random), -63 - (int)(bits % 12));
      if (round % 9 == 4) *x = ldexpf(test_random_normal(&random), 62 + (int)(bits % 3));
      /* Few bits, as BF16 and E4M3 have, inside and just outside of the range where products are exact. */
      if (round % 9 == 5) *x = purr__fp32_from_bf16(purr__bf16_from_fp32(test_random_normal(&random)));
      if (round % 9 == 6) *x = ldexpf(1.0f + (float)(bits % 4096) * 0x1p-12f, (bits >> 20) % 2 == 0 ? -63 : 63);
      if (round % 9 == 7) *x = ldexpf(1.0f + (float)(bits % 2048) * 0x1p-11f, (bits >> 20) % 2 == 0 ? -63 : 63);
      if (round % 9 == 8) *x = ldexpf(1.0f + (float)(bits % 2048) * 0x1p-11f, (bits >> 20) % 2 == 0 ? -64 : 0);
    }
    for (int m = 0; m < FUSED_M; m++)
      for (int n = 0; n < FUSED_N; n++) initial[m * FUSED_N + n] = hard_addend(a[m], b[n], &random);
    check_fused(a, b, initial, FUSED_M, FUSED_N, round % 2 == 0 ? PURR_DTYPE_FP32 : PURR_DTYPE_BF16);
  }
  CU_ASSERT(num_fused >= 1000000);
}

static void special_operands_fuse_as_defined(void) {
  static const float a[] = {0.0f, -0.0f, 1.0f, -1.0f, INFINITY, -INFINITY, NAN, FLT_MAX, -FLT_MAX, FLT_MIN, 0x1p-149f};
  enum { NUM = sizeof a / sizeof *a };
  float initial[NUM * NUM];
  for (int i = 0; i < NUM; i++) {
    for (int j = 0; j < NUM * NUM; j++) initial[j] = a[i];
    check_fused(a, a, initial, NUM, NUM, PURR_DTYPE_FP32);
    check_fused(a, a, initial, NUM, NUM, PURR_DTYPE_BF16);
  }
}

/* ---- decisions ---- */

static void a_nan_stays_in_its_row_and_column(void) {
  enum { M = 21, N = 37, K = 50 };
  uint64_t random = 3;
  const purr__operand_t a = operand_of(M, K, PURR_DTYPE_BF16, ROWS_OUTSIDE, TEST_NORMAL, &random);
  const purr__operand_t b = operand_of(N, K, PURR_DTYPE_BF16, ROWS_INSIDE, TEST_NORMAL, &random);
  purr__bf16_t *values_a = (purr__bf16_t *)(uintptr_t)a.data, *values_b = (purr__bf16_t *)(uintptr_t)b.data;
  float clean[M][N], c[M][N];
  purr__gemm_t gemm = {.m = M, .n = N, .num_segments = 1, .segment = {{a, b, K}}};
  gemm.c = clean, gemm.c_dtype = PURR_DTYPE_FP32, gemm.c_row_stride = N;
  purr__host_gemm(context, &gemm, 1);
  for (int64_t i = 0; i < K; i++) values_b[20 * b.row_stride + i * b.k_stride] = 0;
  values_a[M / 2 * a.row_stride + 17] = 0xFFC1;                /* a NaN */
  values_b[(N - 1) * b.row_stride + 49 * b.k_stride] = 0x7F80; /* an infinity, in the last column */
  gemm.c = c;
  purr__host_gemm(context, &gemm, 1);
  for (int m = 0; m < M; m++)
    for (int n = 0; n < N; n++) {
      if (m != M / 2 && n == N - 1) {
        CU_ASSERT(isinf(c[m][n]));
        continue;
      }
      const uint32_t expected = m == M / 2 ? PURR__FP32_NAN : n == 20 ? 0 : purr__fp32_bits(clean[m][n]);
      CU_ASSERT_EQUAL(purr__fp32_bits(c[m][n]), expected);
    }
  free((void *)(uintptr_t)a.data);
  free((void *)(uintptr_t)b.data);
}

/* Without k the chain is what it starts with: +0, or a number that keeps its sign; NaN in its one form. */
static void an_empty_chain_is_its_start(void) {
  const float initial[3] = {-0.0f, purr__fp32_from_bits(0xFFA12345u), 2.5f};
  float c[3];
  memset(c, 0xFF, sizeof c);
  purr__gemm_t gemm = {.m = 1, .n = 3, .num_segments = 2, .c = c, .c_dtype = PURR_DTYPE_FP32, .c_row_stride = 3};
  for (int s = 0; s < 2; s++)
    gemm.segment[s].a.dtype = gemm.segment[s].b.dtype = PURR_DTYPE_BF16; /* no data: none is read */
  purr__host_gemm(context, &gemm, 1);
  for (int i = 0; i < 3; i++) CU_ASSERT_EQUAL(purr__fp32_bits(c[i]), 0);
  gemm.initial = initial, gemm.initial_stride = 3;
  purr__host_gemm(context, &gemm, 1);
  CU_ASSERT_EQUAL(purr__fp32_bits(c[0]), 0x80000000u);
  CU_ASSERT_EQUAL(purr__fp32_bits(c[1]), PURR__FP32_NAN);
  CU_ASSERT_EQUAL(c[2], 2.5f);
}

/* Offsets past 2^31 elements and 2^32 bytes in every operand; the pages between are never touched. */
static void strides_may_be_huge(void) {
  enum { M = 3, N = 2, K = 2 };
  const int64_t row_stride = 2500000003, k_stride = 1100000007, c_stride = 2200000009;
  const size_t bytes = (size_t)(M * row_stride + K * k_stride) * 4;
  char *memory[3];
  for (int i = 0; i < 3; i++) {
    memory[i] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory[i] == MAP_FAILED) {
      fprintf(stderr, "skipped: no %zu bytes of address space\n", bytes);
      while (i-- > 0) munmap(memory[i], bytes);
      return;
    }
  }
  const purr__operand_t a = {memory[0], PURR_DTYPE_BF16, row_stride, k_stride};
  const purr__operand_t b = {memory[1], PURR_DTYPE_FP32, row_stride, k_stride};
  for (int r = 0; r < M; r++)
    for (int k = 0; k < K; k++) {
      ((purr__bf16_t *)memory[0])[r * row_stride + k * k_stride] = purr__bf16_from_fp32((float)(1 + r + 4 * k));
      if (r < N) ((float *)memory[1])[r * row_stride + k * k_stride] = (float)(2 + r + 8 * k);
    }
  float *c = (float *)memory[2];
  for (int r = 0; r < M; r++) c[r * c_stride] = 0.5f;
  const purr__gemm_t gemm = {.m = M,
                             .n = N,
                             .num_segments = 1,
                             .segment = {{a, b, K}},
                             .initial = c,
                             .initial_stride = c_stride,
                             .c = c,
                             .c_dtype = PURR_DTYPE_FP32,
                             .c_row_stride = c_stride};
  purr__host_gemm(context, &gemm, 1);
  for (int m = 0; m < M; m++)
    for (int n = 0; n < N; n++)
      CU_ASSERT_EQUAL(c[m * c_stride + n], (float)((1 + m) * (2 + n) + (5 + m) * (10 + n)) + (n == 0 ? 0.5f : 0.0f));
  for (int i = 0; i < 3; i++) munmap(memory[i], bytes);
}

/* ---- threads, many problems, the caller's floating-point mode ---- */

static void threads_do_not_matter(void) {
  static const uint32_t num_threads[] = {1, 2, 5};
  for (uint64_t seed = 10; seed < 14; seed++) {
    uint64_t random = seed;
    random_problem_t p = problem_of(130, 290, 40, TEST_NORMAL, &random);
    float *expected = NULL;
    for (size_t i = 0; i < 3; i++) {
      purr_context_t *other = context_of(num_threads[i]);
      memcpy(p.c, p.c_before, p.c_bytes);
      if (expected == NULL) expected = expect(&p.gemm);
      purr__host_gemm(other, &p.gemm, 1);
      CU_ASSERT(holds(&p.gemm, expected));
      purr_context_destroy(other);
    }
    free(expected);
    free_problem(&p);
  }
}

/* As for a layer of many experts with uneven loads, some of them without any row. */
static void takes_many_problems(void) {
  enum { NUM = 1300 };
  static random_problem_t problems[NUM];
  static purr__gemm_t gemms[NUM];
  static float *expected[NUM];
  uint64_t random = 99;
  for (int i = 0; i < NUM; i++) {
    const int64_t m = (int64_t)(test_random_bits(&random) % 4 == 0 ? 0 : test_random_bits(&random) % 9);
    problems[i] = problem_of(i == 700 ? 300 : m, i % 11 == 0 ? 0 : 24, 17, TEST_NORMAL, &random);
    gemms[i] = problems[i].gemm;
    expected[i] = expect(&gemms[i]);
  }
  purr__host_gemm(context, gemms, NUM);
  for (int i = 0; i < NUM; i++) {
    CU_ASSERT(holds(&gemms[i], expected[i]));
    CU_ASSERT(gaps_are_untouched(&problems[i]));
    free(expected[i]);
    free_problem(&problems[i]);
  }
  purr__host_gemm(context, gemms, 0);
}

static void callers_rounding_does_not_matter(void) {
  uint64_t random = 5;
  random_problem_t p = problem_of(33, 70, 90, TEST_WIDE, &random);
  float *expected = expect(&p.gemm);
  fesetround(FE_UPWARD);
  purr__host_gemm(context, &p.gemm, 1);
  CU_ASSERT_EQUAL(fegetround(), FE_UPWARD);
  fesetround(FE_TONEAREST);
  CU_ASSERT(holds(&p.gemm, expected));
  free(expected);
  free_problem(&p);
}

static void instruction_sets_are_named(void) {
  const char *best = purr__host_isa();
  CU_ASSERT_FALSE(purr__host_set_isa("sse9"));
  CU_ASSERT_STRING_EQUAL(purr__host_isa(), best);
  CU_ASSERT(purr__host_set_isa("baseline"));
  CU_ASSERT_STRING_EQUAL(purr__host_isa(), "baseline");
  CU_ASSERT(purr__host_set_isa("auto"));
  CU_ASSERT_STRING_EQUAL(purr__host_isa(), best);
}

/* ---- the same on other machines ---- */

/* What came out once. Other compilers, instruction sets and machines must get the same. */
static void known_bits(void) {
  uint64_t random = 2024, hash = TEST_HASH_START;
  for (int values = 0; values < 3; values++)
    for (int i = 0; i < 12; i++) {
      random_problem_t p = problem_of(30 + i, 50 + 7 * i, 100 + 11 * i, (test_values_t)values, &random);
      purr__host_gemm(context, &p.gemm, 1);
      hash = test_hash(hash, p.c, p.c_bytes);
      free_problem(&p);
    }
  if (hash != 0x94237F82A5BE4A80u) fprintf(stderr, "%s: hash 0x%llX\n", purr__host_isa(), (unsigned long long)hash);
  CU_ASSERT_EQUAL(hash, 0x94237F82A5BE4A80u);
}

static void bits_are_known(void) { test_every_isa(known_bits); }

int main(void) {
  const purr_test_t tests[] = {
      {"random problems follow the definition", follows_the_definition},
      {"large problems follow the definition", follows_the_definition_when_large},
      {"any number of rows", takes_any_number_of_rows},
      {"a million hard fused multiply-adds", fuses_exactly},
      {"zeros, infinities, NaN and the ends of the range", special_operands_fuse_as_defined},
      {"a NaN stays in its row and column", a_nan_stays_in_its_row_and_column},
      {"an empty chain is its start", an_empty_chain_is_its_start},
      {"strides past 32 bits", strides_may_be_huge},
      {"1, 2 and 5 threads", threads_do_not_matter},
      {"many problems in one call", takes_many_problems},
      {"the caller's rounding mode", callers_rounding_does_not_matter},
      {"instruction sets by name", instruction_sets_are_named},
      {"known bits", bits_are_known},
      {0},
  };
  context = context_of(5);
  const int failures = purr_test_main("host gemm", tests);
  purr_context_destroy(context);
  return failures;
}
