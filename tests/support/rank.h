/* One rank of a layer as a caller would drive it: its tensors between canaries, its objects, and the arguments of both
 * passes, ready to be called or to be spoiled first. */
#ifndef PURR_TEST_RANK_H
#define PURR_TEST_RANK_H

#include "support/buffer.h"
#include "support/layer.h"

#define TEST_NUM_WEIGHTS 8

enum { TEST_D_GATE, TEST_D_UP, TEST_D_DOWN, TEST_D_S_GATE, TEST_D_S_UP, TEST_D_S_DOWN, TEST_D_Z, TEST_NUM_GRADIENTS };

/* Points into itself: not to be copied once it was prepared. */
typedef struct test_rank {
  /* Set before prepare. */
  const test_problem_t *problem;
  const test_run_t *run;
  purr_context_t *context;
  const purr_plan_t *plan;
  purr_group_t *group; /* NULL with one rank */
  int64_t first_token, tokens, first_expert, experts;

  test_buffer_t x, ids, topk_weights, d_output, output, d_x, d_topk_weights, gradient[TEST_NUM_GRADIENTS];
  struct {
    purr_tensor_t x, ids, topk_weights, d_output, output, d_x, d_topk_weights, gradient[TEST_NUM_GRADIENTS];
    purr_tensor_t gate_up, gate, up, down, s_gate, s_up, s_down, z;
  } tensor;
  /* On a GPU: see device.h. */
  void *device_blocks[4], *device_weights[TEST_NUM_WEIGHTS];
  uint64_t device_weight_bytes[TEST_NUM_WEIGHTS];
  void *stream;

  void *packed;
  void **pointers[3];
  purr_weights_desc_t weights_desc, gradients;

  purr_workspace_t *workspace;
  purr_weights_t *weights;
  purr_saved_t *saved;
  purr_result_t *result;
  purr_schedule_t *schedule;
  purr_forward_args_t forward;
  purr_backward_args_t backward;
} test_rank_t;

/* The layer that a problem and a run describe. */
purr_layer_desc_t test_layer_desc(const test_problem_t *problem, const test_run_t *run);

/* Makes buffers, tensors and arguments, and poisons what a call writes. Takes all of the problem when `tokens` and
 * `experts` are 0. */
void test_rank_prepare(test_rank_t *rank);
/* Makes the objects that are not there yet and puts them into the arguments. Collective. */
purr_status_t test_rank_create_objects(test_rank_t *rank, purr_error_t *err);
void test_rank_destroy_objects(test_rank_t *rank);
/* Frees what prepare made. */
void test_rank_free(test_rank_t *rank);

/* Poisons what both passes write; with accumulate the gradients get their initial value. */
void test_rank_poison(test_rank_t *rank);
bool test_rank_canaries_intact(const test_rank_t *rank);
/* No output of either pass was written since it was poisoned. */
bool test_rank_untouched(const test_rank_t *rank);

purr_status_t test_rank_forward(test_rank_t *rank, purr_error_t *err);
purr_status_t test_rank_backward(test_rank_t *rank, purr_error_t *err);

/* Whether the rank's outputs of forward, and of backward, have the bits that `expected` has for it. Gradients of the
 * shared expert are compared with one rank only. */
bool test_rank_forward_equals(const test_rank_t *rank, const test_outcome_t *expected);
bool test_rank_backward_equals(const test_rank_t *rank, const test_outcome_t *expected);

/* One element of a gradient buffer, whatever its type. */
float test_rank_gradient(const test_buffer_t *buffer, int64_t row, int64_t column);

#endif
