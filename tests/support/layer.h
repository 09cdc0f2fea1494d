/* Runs a whole layer, forward and backward, on any number of ranks in this process, for the tests.
 *
 * Everything the layer could forget to write is poisoned: the context's allocator fills new memory with 0xFF, outputs
 * are filled with 0xFF and stand between 4 KiB canaries, and each run is done twice in the same workspace. */
#ifndef PURR_TEST_LAYER_H
#define PURR_TEST_LAYER_H

#include <stdbool.h>

#include "base/bf16.h"
#include "purr.h"

/* The global problem: all ranks' tokens and experts. Arrays are contiguous and owned. */
typedef struct test_problem {
  int64_t tokens, hidden, inner, experts, top_k, shared; /* shared = 0: none */
  bool shared_gate;                                      /* sigmoid gate on the shared expert */
  float swiglu_limit;
  purr__bf16_t *x, *d_output;               /* [T, H] */
  int64_t *ids;                             /* [T, K] */
  float *topk_weights;                      /* [T, K] */
  purr__bf16_t *gate, *up, *down;           /* [E, I, H], [E, I, H], [E, H, I] */
  purr__bf16_t *s_gate, *s_up, *s_down, *z; /* [S, H], [S, H], [H, S], [H] */
} test_problem_t;

/* How to run it. Zero means the default. */
typedef struct test_run {
  int ranks;                     /* 0 = 1 */
  const int64_t *tokens_of_rank; /* [ranks], summing to T; NULL = as even as possible */
  int32_t backend;               /* PURR_BACKEND_*; 0 = host */
  int threads;                   /* of the host backend; 0 = 2 */
  int64_t minibatch, macrobatch; /* rows */
  int64_t comm_sms;              /* as num_comm_sms of purr_layer_desc_t */
  int64_t activation_memory;     /* as in purr_layer_desc_t */
  int32_t precision, scale_rule, activation_granularity, weight_granularity;
  bool bf16_gradients; /* weight gradients in BF16 instead of FP32 */
  bool accumulate;     /* add to initial_gradient everywhere */
  float initial_gradient;
  bool int32_ids;
  bool packed;         /* one gate_up tensor */
  bool pointers;       /* per-expert pointer arrays */
  bool strided;        /* gaps in every row of x, ids, weights, output and gradients */
  bool schedule_first; /* build the schedule by itself, then run with it */
  bool inference;      /* forward only, nothing saved */
  int64_t max_tokens;  /* 0 = enough */
} test_run_t;

/* What came out, put together over the ranks: [T, ...] in token order, [E, ...] in expert order. Gradients are FP32
 * whatever their storage; those of the shared expert are summed over ranks in rank order. */
typedef struct test_outcome {
  purr_status_t status;
  purr_result_info_t info; /* of rank 0's forward, or the first failing call */
  purr_error_t err;
  purr__bf16_t *output, *d_x;
  float *d_topk_weights, *d_gate, *d_up, *d_down, *d_s_gate, *d_s_up, *d_s_down, *d_z;
  int64_t *tokens_per_expert;      /* [E] */
  int64_t num_replayed_rows;       /* over all ranks */
  bool canaries_intact, untouched; /* untouched: with a failure, no output was written */
} test_outcome_t;

/* Allocates a problem with all arrays zero. */
test_problem_t *test_problem_create(int64_t tokens, int64_t hidden, int64_t inner, int64_t experts, int64_t top_k,
                                    int64_t shared, bool shared_gate);
void test_problem_free(test_problem_t *problem);

/* Fixture F of the exact tests: "scaler experts", with the default routing. shared: S, or 0. */
test_problem_t *test_fixture_f(int64_t tokens, int64_t hidden, int64_t inner, int64_t experts, int64_t top_k,
                               int64_t shared);
/* Random normal data, weights scaled by 1/sqrt(fan-in), distinct experts per token. */
test_problem_t *test_random(uint64_t seed, int64_t tokens, int64_t hidden, int64_t inner, int64_t experts,
                            int64_t top_k, int64_t shared, bool shared_gate);
/* The next number of a small generator (splitmix64), and a standard normal. */
uint64_t test_random_bits(uint64_t *state);
float test_random_normal(uint64_t *state);

/* Runs on the tests' backend (device.h), or on the host. A backend without a backward pass gives the forward's outcome,
 * the host the rest. */
test_outcome_t *test_layer_run(const test_problem_t *problem, const test_run_t *run);
void test_outcome_free(test_outcome_t *outcome);

/* FNV-1a of all that came out but the shared expert's weight gradients, which depend on R by contract. */
uint64_t test_outcome_hash(const test_problem_t *problem, const test_outcome_t *outcome);

#endif
