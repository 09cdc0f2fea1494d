/* The variants of the forward megakernel give the same bits: outputs, and g and u that are kept, whichever of them the
 * plan takes, with a schedule that was built before and with a timeline too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/raw_driver.h"
#include "support/main.h"
#include "support/rank.h"
#include "workspace/saved.h"

typedef struct variant {
  const char *entry, *role;
  int tile_rows;
  bool traces, peers;
} variant_t;

static const variant_t variants[] = {
#define PURR_FORWARD_VARIANT(entry, role, tile_rows, stages, slots, traces, peers, shared_bytes) \
  {#entry, #role, tile_rows, traces, peers},
#include "kernels/sm90a/forward_variants.def"
#undef PURR_FORWARD_VARIANT
};
enum { NUM_VARIANTS = sizeof variants / sizeof variants[0] };

/* ---- what comes out of a forward ---- */

typedef struct bits {
  uint64_t output, kept, num_kept; /* hashes, and kept bytes that were written */
} bits_t;

static uint64_t hash_of(const purr__bf16_t *output, int64_t num) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (int64_t i = 0; i < num; i++) hash = (hash ^ output[i]) * 0x100000001b3u;
  return hash;
}

static const int kept_regions[] = {PURR__SAVED_GATE, PURR__SAVED_UP, PURR__SAVED_SHARED_GATE, PURR__SAVED_SHARED_UP};
enum { NUM_KEPT = sizeof kept_regions / sizeof kept_regions[0] };

/* Fills what will be kept with poison, or adds it to the hash. */
static void visit_kept(const test_rank_t *rank, bool poisons, bits_t *bits) {
  purr_error_t err;
  for (int i = 0; i < NUM_KEPT; i++) {
    const uint64_t bytes = rank->plan->saved[kept_regions[i]].bytes;
    if (bytes == 0) continue;
    void *device = purr__saved_at(rank->saved, rank->plan, kept_regions[i]);
    unsigned char *host = malloc(bytes);
    memset(host, TEST_POISON, bytes);
    ASSERT_OK(purr_memory_copy(rank->plan, poisons ? device : host, poisons ? host : device, bytes, &err));
    for (uint64_t b = 0; b < bytes && !poisons; b++) {
      bits->kept = (bits->kept ^ host[b]) * 0x100000001b3u;
      bits->num_kept += host[b] != TEST_POISON;
    }
    free(host);
  }
}

static purr_trace_t *open_trace(const purr_plan_t *plan) {
  purr_error_t err;
  purr_trace_t *trace = NULL;
  ASSERT_OK(purr_trace_create(plan, NULL, &trace, &err));
  return trace;
}

/* A forward with this variant; NULL: the one that the plan takes by itself. */
static bits_t run_variant(purr_context_t *context, const test_problem_t *problem, const test_run_t *run,
                          const char *entry, bool traces) {
  purr_error_t err = PURR_ERROR_INIT;
  bits_t bits = {.kept = 0xcbf29ce484222325u};
  purr_plan_t *plan = raw_plan(context, problem, run, 0);
  CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
  if (entry != NULL) {
    CU_ASSERT_EQUAL_FATAL(purr__plan_take_forward(plan, entry, &err), PURR_STATUS_OK);
    CU_ASSERT_STRING_EQUAL(plan->kernels.forward.kernel->entry->entry, entry);
    CU_ASSERT_TRUE_FATAL(purr__plan_lay_out(plan));
  }
  purr_trace_t *trace = traces ? open_trace(plan) : NULL;
  test_rank_t rank = {.problem = problem, .run = run, .context = context, .plan = plan};
  rank.tokens = problem->tokens;
  rank.experts = problem->experts;
  test_rank_prepare(&rank);
  CU_ASSERT_EQUAL_FATAL(test_rank_create_objects(&rank, &err), PURR_STATUS_OK);
  rank.forward.trace = trace;
  for (int i = 0; i < 2; i++) { /* the second finds what the first left in the workspace */
    test_rank_poison(&rank);
    visit_kept(&rank, true, NULL);
    ASSERT_OK(test_rank_forward(&rank, &err));
  }
  CU_ASSERT_TRUE(test_rank_canaries_intact(&rank));
  const int64_t num = problem->tokens * problem->hidden;
  purr__bf16_t *output = malloc((size_t)num * sizeof *output);
  test_buffer_get(&rank.output, output);
  bits.output = hash_of(output, num);
  free(output);
  visit_kept(&rank, false, &bits);
  test_rank_destroy_objects(&rank);
  test_rank_free(&rank);
  purr_trace_destroy(trace);
  purr_plan_destroy(plan);
  return bits;
}

/* All variants against the one that the plan takes by itself, whose hash is returned. */
static uint64_t compare(test_problem_t *problem, test_run_t run, const char *what) {
  run.backend = PURR_BACKEND_MEGA;
  purr_context_t *context = NULL;
  CU_ASSERT_EQUAL_FATAL(purr_context_create(NULL, &context, NULL), PURR_STATUS_OK);
  const bits_t expected = run_variant(context, problem, &run, NULL, false);
  CU_ASSERT(run.inference || expected.num_kept > 0);
  for (int i = 0; i < NUM_VARIANTS; i++) {
    const variant_t *v = &variants[i];
    if (v->peers) continue; /* peers: test_layer_bits */
    /* The twin with a timeline belongs to all: it runs in the room of the smallest tiles. A schedule keeps its own. */
    if (v->traces && run.schedule_first) continue;
    const char *entry = v->traces ? "purr_forward_16" : v->entry;
    const bits_t got = run_variant(context, problem, &run, entry, v->traces);
    if (memcmp(&got, &expected, sizeof got) != 0) fprintf(stderr, "%s: %s differs\n", what, v->entry);
    CU_ASSERT_EQUAL(got.output, expected.output);
    CU_ASSERT_EQUAL(got.kept, expected.kept);
  }
  purr_context_destroy(context);
  test_problem_free(problem);
  return expected.output;
}

/* ---- problems ---- */

/* Expert e gets about 1/(e + 1) of the slots; some slots are dropped. */
static void route_by_zipf(test_problem_t *p) {
  uint64_t state = 5;
  for (int64_t i = 0; i < p->tokens * p->top_k; i++) {
    const double at = (double)(test_random_bits(&state) >> 11) / 9007199254740992.0;
    double all = 0, sum = 0;
    for (int64_t e = 0; e < p->experts; e++) all += 1.0 / (double)(e + 1);
    int64_t e = 0;
    for (; e < p->experts - 1; e++)
      if ((sum += 1.0 / (double)(e + 1) / all) > at) break;
    p->ids[i] = i % 13 == 5 ? -1 : e;
  }
}

static void several_experts(void) { compare(test_random(1, 67, 200, 136, 5, 3, 0, false), (test_run_t){0}, "67"); }

static void zipf(void) {
  test_problem_t *p = test_random(2, 301, 72, 64, 9, 2, 0, false);
  route_by_zipf(p);
  compare(p, (test_run_t){0}, "Zipf");
}

/* Tiles of all heights, and more of them than an expert's rows have segments. */
static void one_expert_gets_all(void) {
  for (int first = 0; first < 2; first++) {
    test_problem_t *p = test_random(3, 301, 64, 40, 3, 1, 0, false);
    for (int64_t i = 0; i < p->tokens; i++) p->ids[i] = 1;
    compare(p, (test_run_t){.schedule_first = first, .inference = first}, "one expert");
  }
}

static void one_token(void) { compare(test_random(4, 1, 264, 136, 6, 2, 0, false), (test_run_t){0}, "T = 1"); }

static void a_shared_expert(void) {
  test_problem_t *p = test_random(6, 85, 136, 72, 4, 2, 104, true);
  p->swiglu_limit = 1.0f;
  compare(p, (test_run_t){.packed = true}, "shared expert");
}

/* Each of the three sums that can be long, at lengths that no stage and no chunk divides. */
static void long_sums(void) {
  test_problem_t *p = test_random(7, 29, 2312, 24, 3, 2, 0, false);
  route_by_zipf(p);
  compare(p, (test_run_t){0}, "long H");
  compare(test_random(8, 19, 40, 3128, 2, 1, 0, false), (test_run_t){0}, "long I");
  compare(test_random(9, 21, 72, 24, 2, 1, 2088, false), (test_run_t){0}, "long S");
  compare(test_random(10, 1, 2064, 136, 3, 2, 16, true), (test_run_t){0}, "T = 1, long");
  p = test_random(11, 163, 2056, 8, 2, 1, 0, false);
  for (int64_t i = 0; i < p->tokens; i++) p->ids[i] = 1;
  compare(p, (test_run_t){.inference = true}, "one expert, long");
}

/* S01: not only the same bits, but those of the closed form. */
static void exact_numbers(void) {
  enum { T = 130, H = 288, I = 160, K = 2 };
  test_problem_t *p = test_fixture_f(T, H, I, 8, K, 0);
  static int32_t ids[T * K];
  static purr__bf16_t exact[T * H];
  for (int i = 0; i < T * K; i++) ids[i] = (int32_t)p->ids[i];
  raw_fixture_output(p, T, p->x, ids, p->topk_weights, exact);
  CU_ASSERT_EQUAL(compare(p, (test_run_t){0}, "fixture F"), hash_of(exact, T * H));
}

int main(void) {
  setenv("PURR_TEST_BACKEND", "mega", 1);
  return test_layer_main("variants of the megakernel", (purr_test_t[]){{"S01: exact numbers", exact_numbers},
                                                                       {"several experts", several_experts},
                                                                       {"Zipf", zipf},
                                                                       {"one expert gets all", one_expert_gets_all},
                                                                       {"one token", one_token},
                                                                       {"a shared expert", a_shared_expert},
                                                                       {"long sums", long_sums},
                                                                       {0}});
}
