/* Objects over time: memory of the caller, workspaces shared by layers, steps kept at once and taken back in any order,
 * parts of a backward that nobody wants, and handles destroyed in any order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/allocator.h"
#include "support/main.h"
#include "support/rank.h"

/* ---- a layer of its own in a shared context ---- */

static purr_error_t err;
static purr_test_allocator_t memory;
static purr_context_t *context;

typedef struct layer {
  test_run_t run;
  test_problem_t *problem;
  test_outcome_t *expected;
  purr_config_t *config;
  purr_plan_t *plan;
  test_rank_t rank;
} layer_t;

static void open_context(void) {
  purr_test_allocator_init(&memory);
  const purr_context_desc_t desc = {.struct_size = sizeof desc, .num_threads = 2, .host_allocator = &memory.hooks};
  CU_ASSERT_EQUAL_FATAL(purr_context_create(&desc, &context, &err), PURR_STATUS_OK);
}

static void close_context(void) {
  purr_context_destroy(context);
  CU_ASSERT_EQUAL(memory.num_live, 0);
  CU_ASSERT_EQUAL(memory.num_wrong, 0);
}

/* Takes the problem over. */
static void open_layer(layer_t *layer, test_problem_t *problem, const test_run_t *run) {
  *layer = (layer_t){.run = *run, .problem = problem};
  layer->expected = test_layer_run(problem, &layer->run);
  CU_ASSERT_EQUAL_FATAL(layer->expected->status, PURR_STATUS_OK);
  const purr_layer_desc_t desc = test_layer_desc(problem, &layer->run);
  CU_ASSERT_EQUAL_FATAL(purr_config_create(context, &desc, &layer->config, &err), PURR_STATUS_OK);
  CU_ASSERT_EQUAL_FATAL(purr_plan_create(context, layer->config, NULL, &layer->plan, &err), PURR_STATUS_OK);
  layer->rank = (test_rank_t){.problem = problem, .run = &layer->run, .context = context, .plan = layer->plan};
  test_rank_prepare(&layer->rank);
}

static void close_layer(layer_t *layer) {
  test_rank_destroy_objects(&layer->rank);
  test_rank_free(&layer->rank);
  purr_plan_destroy(layer->plan);
  purr_config_destroy(layer->config);
  test_problem_free(layer->problem);
  test_outcome_free(layer->expected);
}

static purr_plan_info_t info_of(const layer_t *layer) {
  purr_plan_info_t info = {.struct_size = sizeof info};
  ASSERT_OK(purr_plan_query(layer->plan, &info, &err));
  return info;
}

static void expect_exact(layer_t *layer) {
  test_rank_poison(&layer->rank);
  ASSERT_OK(test_rank_forward(&layer->rank, &err));
  ASSERT_OK(test_rank_backward(&layer->rank, &err));
  CU_ASSERT_TRUE(test_rank_forward_equals(&layer->rank, layer->expected));
  CU_ASSERT_TRUE(test_rank_backward_equals(&layer->rank, layer->expected));
  CU_ASSERT_TRUE(test_rank_canaries_intact(&layer->rank));
}

/* ---- memory of the caller ---- */

static void expect_words(const char *word, const char *other_word) {
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, word));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, other_word));
}

static void callers_memory(void) {
  open_context();
  layer_t layer;
  open_layer(&layer, test_fixture_f(5, 32, 16, 4, 2, 16), &(test_run_t){0});
  const purr_plan_info_t info = info_of(&layer);
  /* One row, so that its canaries stand right behind the last byte. 4 KiB alignment comes with the buffer. */
  test_buffer_t own = test_buffer_create(1, (int64_t)info.workspace_bytes, 0, 1);
  test_buffer_t kept = test_buffer_create(1, (int64_t)info.saved_bytes, 0, 1);
  test_buffer_poison(&own);
  test_buffer_poison(&kept);
  purr_workspace_desc_t desc = PURR_WORKSPACE_DESC_INIT;
  purr_workspace_t *workspace = (purr_workspace_t *)(void *)&layer;
  purr_saved_t *saved = (purr_saved_t *)(void *)&layer;
  char text[32];
  snprintf(text, sizeof text, "%llu", (unsigned long long)info.workspace_bytes);
  desc.memory = test_buffer_data(&own);
  desc.bytes = info.workspace_bytes - 1;
  ASSERT_STATUS(PURR_STATUS_BUFFER_TOO_SMALL, purr_workspace_create(layer.plan, NULL, &desc, &workspace, &err));
  expect_words("workspace memory", text);
  CU_ASSERT_PTR_NULL(workspace);
  desc.bytes = info.workspace_bytes;
  for (int off = 1; off < 256; off *= 2) {
    desc.memory = test_buffer_data(&own) + off;
    ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_workspace_create(layer.plan, NULL, &desc, &workspace, &err));
    expect_words("workspace memory", "256-byte aligned");
    CU_ASSERT_PTR_NULL(workspace);
    saved = (purr_saved_t *)(void *)&layer;
    ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT,
                  purr_saved_create(layer.plan, test_buffer_data(&kept) + off, info.saved_bytes, &saved, &err));
    expect_words("saved memory", "256-byte aligned");
    CU_ASSERT_PTR_NULL(saved);
  }
  snprintf(text, sizeof text, "%llu", (unsigned long long)info.saved_bytes);
  saved = (purr_saved_t *)(void *)&layer;
  ASSERT_STATUS(PURR_STATUS_BUFFER_TOO_SMALL,
                purr_saved_create(layer.plan, test_buffer_data(&kept), info.saved_bytes - 1, &saved, &err));
  expect_words("saved memory", text);
  CU_ASSERT_PTR_NULL(saved);

  desc.memory = test_buffer_data(&own);
  REQUIRE_OK(purr_workspace_create(layer.plan, NULL, &desc, &layer.rank.workspace, &err));
  REQUIRE_OK(purr_saved_create(layer.plan, test_buffer_data(&kept), info.saved_bytes, &layer.rank.saved, &err));
  REQUIRE_OK(test_rank_create_objects(&layer.rank, &err));
  for (int i = 0; i < 2; i++) expect_exact(&layer);
  test_rank_destroy_objects(&layer.rank);
  CU_ASSERT_TRUE(test_buffer_canaries_intact(&own));
  CU_ASSERT_TRUE(test_buffer_canaries_intact(&kept));
  CU_ASSERT_FALSE(test_buffer_untouched(&own)); /* it was used */
  CU_ASSERT_FALSE(test_buffer_untouched(&kept));
  test_buffer_free(&own);
  test_buffer_free(&kept);
  close_layer(&layer);
  close_context();
}

/* What the plan says is what is allocated, up to the objects themselves; and a call allocates nothing. */
static void memory_of(int32_t precision) {
  open_context();
  layer_t layer;
  open_layer(&layer, test_fixture_f(50, 64, 32, 4, 2, 16),
             &(test_run_t){.minibatch = 64, .macrobatch = 128, .precision = precision});
  const purr_plan_info_t info = info_of(&layer);
  long long before = memory.live_bytes;
  REQUIRE_OK(purr_workspace_create(layer.plan, NULL, NULL, &layer.rank.workspace, &err));
  const long long workspace = memory.live_bytes - before - (long long)(info.workspace_bytes + info.symmetric_bytes);
  CU_ASSERT(workspace >= 0 && workspace < 2048);
  before = memory.live_bytes;
  REQUIRE_OK(purr_saved_create(layer.plan, NULL, 0, &layer.rank.saved, &err));
  const long long saved = memory.live_bytes - before - (long long)info.saved_bytes;
  CU_ASSERT(saved >= 0 && saved < 1024);
  before = memory.live_bytes;
  REQUIRE_OK(purr_schedule_create(layer.plan, &layer.rank.schedule, &err));
  const long long schedule = memory.live_bytes - before - (long long)info.schedule_bytes;
  CU_ASSERT(schedule >= 0 && schedule < 1024 + 50 * 2 * 4);
  REQUIRE_OK(test_rank_create_objects(&layer.rank, &err));
  const long long num_calls = memory.num_calls;
  ASSERT_OK(purr_schedule_build(layer.rank.schedule, layer.rank.workspace, &layer.rank.tensor.ids, NULL, &err));
  for (int i = 0; i < 2; i++) expect_exact(&layer);
  CU_ASSERT_EQUAL(memory.num_calls, num_calls);
  purr_counters_t counters = {.struct_size = sizeof counters};
  ASSERT_OK(purr_context_query_counters(context, &counters, &err));
  const long long live = memory.live_bytes, counted = (long long)counters.host_bytes;
  CU_ASSERT(counted <= live && live < counted + 4096); /* the context itself is not counted */
  close_layer(&layer);
  close_context();
}

static void memory_is_what_the_plan_says(void) {
  memory_of(PURR_PRECISION_BF16);
  memory_of(PURR_PRECISION_MXFP8);
}

/* ---- one workspace, two layers ---- */

/* It never grows (B39): too small for a plan is refused. */
static void shared_workspace(void) {
  open_context();
  layer_t layers[2];
  open_layer(&layers[0], test_fixture_f(5, 32, 16, 4, 2, 16), &(test_run_t){0});
  open_layer(&layers[1], test_fixture_f(37, 96, 64, 8, 3, 0), &(test_run_t){.minibatch = 64, .macrobatch = 128});
  const purr_plan_info_t small = info_of(&layers[0]), large = info_of(&layers[1]);
  CU_ASSERT_TRUE(small.workspace_bytes < large.workspace_bytes);
  const purr_workspace_desc_t descs[] = {
      {.struct_size = sizeof descs[0], .bytes = large.workspace_bytes, .symmetric_bytes = large.symmetric_bytes},
      {.struct_size = sizeof descs[0], .bytes = large.workspace_bytes},
      {.struct_size = sizeof descs[0], .symmetric_bytes = large.symmetric_bytes},
      {.struct_size = sizeof descs[0]}};
  for (int i = 3; i >= 0; i--) {
    purr_workspace_t *workspace = NULL;
    REQUIRE_OK(purr_workspace_create(layers[0].plan, NULL, &descs[i], &workspace, &err));
    for (int l = 0; l < 2; l++) {
      layers[l].rank.workspace = workspace;
      REQUIRE_OK(test_rank_create_objects(&layers[l].rank, &err));
    }
    for (int step = 0; step < 3; step++) {
      expect_exact(&layers[0]);
      if (i == 0) {
        expect_exact(&layers[1]);
      } else {
        test_rank_poison(&layers[1].rank);
        ASSERT_STATUS(PURR_STATUS_BUFFER_TOO_SMALL, test_rank_forward(&layers[1].rank, &err));
        expect_words("workspace was made for a smaller plan", "needs");
        CU_ASSERT_TRUE(test_rank_untouched(&layers[1].rank));
      }
    }
    /* Backward of a step may come after other layers have used the workspace. */
    if (i == 0) {
      for (int l = 0; l < 2; l++) {
        test_rank_poison(&layers[l].rank);
        ASSERT_OK(test_rank_forward(&layers[l].rank, &err));
      }
      for (int l = 1; l >= 0; l--) {
        ASSERT_OK(test_rank_backward(&layers[l].rank, &err));
        CU_ASSERT_TRUE(test_rank_backward_equals(&layers[l].rank, layers[l].expected));
      }
    }
    layers[0].rank.workspace = layers[1].rank.workspace = NULL;
    purr_workspace_destroy(workspace);
  }
  close_layer(&layers[0]);
  close_layer(&layers[1]);
  close_context();
}

static void creation_of_workspaces(void) {
  open_context();
  layer_t one, two;
  open_layer(&one, test_fixture_f(5, 32, 16, 4, 2, 0), &(test_run_t){0});
  open_layer(&two, test_fixture_f(5, 32, 16, 4, 2, 0), &(test_run_t){.ranks = 2});
  purr_group_t *groups[2];
  const purr_group_desc_t group_desc = {sizeof group_desc, 2, 1000};
  REQUIRE_OK(purr_group_create_local(context, &group_desc, groups, &err));
  purr_workspace_t *workspace;
#define REFUSED(plan, group, desc, word, other_word)                                                         \
  do {                                                                                                       \
    workspace = (purr_workspace_t *)(void *)&one;                                                            \
    ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_workspace_create(plan, group, desc, &workspace, &err)); \
    expect_words(word, other_word);                                                                          \
    CU_ASSERT_PTR_NULL(workspace);                                                                           \
  } while (0)
  REFUSED(NULL, NULL, NULL, "plan", "NULL");
  REFUSED((purr_plan_t *)(void *)context, NULL, NULL, "plan", "not a live");
  REFUSED(one.plan, (purr_group_t *)(void *)context, NULL, "group", "not a live");
  REFUSED(two.plan, NULL, NULL, "group has 1 ranks", "plan is for 2");
  REFUSED(one.plan, groups[0], NULL, "group has 2 ranks", "plan is for 1");
  const purr_workspace_desc_t unset = {0};
  REFUSED(one.plan, NULL, &unset, "purr_workspace_desc_t", "struct_size 0");
#undef REFUSED
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_workspace_create(one.plan, NULL, NULL, NULL, &err));
  expect_words("out_workspace", "NULL");
  /* A group, a plan and a workspace of different contexts do not go together. */
  purr_context_t *other = NULL;
  purr_group_t *foreign = NULL;
  purr_plan_t *foreign_plan = NULL;
  const purr_group_desc_t alone = {sizeof alone, 1, 0};
  REQUIRE_OK(purr_context_create(NULL, &other, &err));
  REQUIRE_OK(purr_group_create_local(other, &alone, &foreign, &err));
  workspace = (purr_workspace_t *)(void *)&one;
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_workspace_create(one.plan, foreign, NULL, &workspace, &err));
  expect_words("group", "different contexts");
  CU_ASSERT_PTR_NULL(workspace);
  REQUIRE_OK(purr_plan_create(other, one.config, NULL, &foreign_plan, &err)); /* a config is only numbers */
  REQUIRE_OK(purr_workspace_create(foreign_plan, foreign, NULL, &workspace, &err));
  REQUIRE_OK(test_rank_create_objects(&one.rank, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_forward(one.plan, workspace, &one.rank.forward, &err));
  expect_words("workspace", "different contexts");
  purr_workspace_destroy(workspace);
  purr_plan_destroy(foreign_plan);
  purr_group_destroy(foreign);
  purr_context_destroy(other);

  purr_saved_t *saved = (purr_saved_t *)(void *)&one;
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_saved_create(NULL, NULL, 0, &saved, &err));
  CU_ASSERT_PTR_NULL(saved);
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_saved_create(one.plan, NULL, 0, NULL, &err));
  expect_words("out_saved", "NULL");
  for (int r = 0; r < 2; r++) purr_group_destroy(groups[r]);
  close_layer(&one);
  close_layer(&two);
  close_context();
}

/* ---- parts of a backward ---- */

/* Every subset of the gradients: the given ones have the bits of a full backward, the others are not touched. */
static void parts_of_backward(void) {
  open_context();
  layer_t layer;
  test_problem_t *problem = test_random(7, 9, 32, 16, 4, 2, 16, true);
  open_layer(&layer, problem, &(test_run_t){.activation_memory = -1});
  test_rank_t *rank = &layer.rank;
  REQUIRE_OK(test_rank_create_objects(rank, &err));
  REQUIRE_OK(test_rank_forward(rank, &err));
  enum { NUM_PARTS = TEST_NUM_GRADIENTS + 2 };
  const purr_tensor_t **const slots[NUM_PARTS] = {&rank->gradients.gate,
                                                  &rank->gradients.up,
                                                  &rank->gradients.down,
                                                  &rank->gradients.shared_gate,
                                                  &rank->gradients.shared_up,
                                                  &rank->gradients.shared_down,
                                                  &rank->gradients.shared_expert_gate,
                                                  &rank->backward.d_x,
                                                  &rank->backward.d_topk_weights};
  const test_buffer_t *buffers[NUM_PARTS] = {[TEST_NUM_GRADIENTS] = &rank->d_x,
                                             [TEST_NUM_GRADIENTS + 1] = &rank->d_topk_weights};
  for (int i = 0; i < TEST_NUM_GRADIENTS; i++) buffers[i] = &rank->gradient[i];
  const purr_tensor_t *all[NUM_PARTS];
  void *whole[NUM_PARTS];
  test_rank_poison(rank);
  REQUIRE_OK(test_rank_backward(rank, &err));
  CU_ASSERT_TRUE(test_rank_backward_equals(rank, layer.expected));
  for (int i = 0; i < NUM_PARTS; i++) {
    all[i] = *slots[i];
    whole[i] = malloc((size_t)(buffers[i]->rows * buffers[i]->columns * buffers[i]->element_bytes));
    test_buffer_get(buffers[i], whole[i]);
  }
  for (unsigned subset = 0; subset < 1u << NUM_PARTS; subset++) {
    test_rank_poison(rank);
    for (int i = 0; i < NUM_PARTS; i++) *slots[i] = (subset >> i & 1) ? all[i] : NULL;
    rank->backward.d_weights = (subset & 127) == 0 && (subset & 128) ? NULL : &rank->gradients;
    ASSERT_OK(test_rank_backward(rank, &err));
    for (int i = 0; i < NUM_PARTS; i++) {
      const size_t bytes = (size_t)(buffers[i]->rows * buffers[i]->columns * buffers[i]->element_bytes);
      void *got = malloc(bytes);
      test_buffer_get(buffers[i], got);
      const bool right = (subset >> i & 1) ? memcmp(got, whole[i], bytes) == 0 : test_buffer_untouched(buffers[i]);
      if (!right) fprintf(stderr, "subset %x: part %d is wrong\n", subset, i);
      CU_ASSERT_TRUE(right);
      free(got);
    }
  }
  CU_ASSERT_TRUE(test_rank_canaries_intact(rank));
  for (int i = 0; i < NUM_PARTS; i++) free(whole[i]);
  close_layer(&layer);
  close_context();
}

/* ---- steps kept at once ---- */

enum { NUM_STEPS = 6 };

/* Pipelined microbatches: forwards of several steps first, then their backwards in any order, each twice. */
static void pipelined_steps(void) {
  for (int replay = 0; replay <= 1; replay++) {
    open_context();
    layer_t layers[NUM_STEPS]; /* the same layer with other tokens */
    for (int i = 0; i < NUM_STEPS; i++) {
      test_problem_t *problem = test_random(11, 7, 32, 16, 4, 2, 8, false); /* equal weights */
      test_problem_t *tokens = test_random(100 + (uint64_t)i, 7, 32, 16, 4, 2, 8, false);
      memcpy(problem->x, tokens->x, 7 * 32 * sizeof *problem->x);
      memcpy(problem->ids, tokens->ids, 7 * 2 * sizeof *problem->ids);
      memcpy(problem->topk_weights, tokens->topk_weights, 7 * 2 * sizeof *problem->topk_weights);
      test_problem_free(tokens);
      open_layer(&layers[i], problem, &(test_run_t){.activation_memory = replay ? -1 : 0});
    }
    /* One plan, one workspace, one set of weights; a saved of its own for each step. */
    REQUIRE_OK(test_rank_create_objects(&layers[0].rank, &err));
    for (int i = 1; i < NUM_STEPS; i++) {
      test_rank_t *rank = &layers[i].rank;
      rank->plan = layers[0].plan;
      rank->workspace = layers[0].rank.workspace;
      rank->weights = layers[0].rank.weights;
      REQUIRE_OK(test_rank_create_objects(rank, &err));
    }
    static const int orders[][NUM_STEPS] = {{0, 1, 2, 3, 4, 5}, {5, 4, 3, 2, 1, 0}, {3, 0, 5, 1, 4, 2}};
    for (size_t o = 0; o < sizeof orders / sizeof orders[0]; o++) {
      for (int i = 0; i < NUM_STEPS; i++) {
        test_rank_poison(&layers[i].rank);
        ASSERT_OK(test_rank_forward(&layers[i].rank, &err));
        CU_ASSERT_TRUE(test_rank_forward_equals(&layers[i].rank, layers[i].expected));
      }
      for (int again = 0; again < 2; again++)
        for (int i = 0; i < NUM_STEPS; i++) {
          layer_t *layer = &layers[orders[o][i]];
          test_rank_poison(&layer->rank);
          ASSERT_OK(test_rank_backward(&layer->rank, &err));
          CU_ASSERT_TRUE(test_rank_backward_equals(&layer->rank, layer->expected));
        }
    }
    /* A saved that is used for another step is that step's. */
    layers[1].rank.forward.saved = layers[0].rank.saved;
    layers[1].rank.backward.saved = layers[0].rank.saved;
    for (int i = 0; i < 20; i++) expect_exact(&layers[i % 2]);
    for (int i = 1; i < NUM_STEPS; i++) {
      layers[i].rank.workspace = NULL;
      layers[i].rank.weights = NULL;
    }
    for (int i = NUM_STEPS - 1; i >= 0; i--) close_layer(&layers[i]); /* the first has the plan of all */
    close_context();
  }
}

/* ---- destruction ---- */

typedef struct handle {
  const char *name;
  void **slot;
  void (*destroy)(void *handle);
} handle_t;

#define DESTROY(noun) \
  static void destroy_##noun(void *handle) { purr_##noun##_destroy(handle); }
DESTROY(context)
DESTROY(config)
DESTROY(plan)
DESTROY(group)
DESTROY(weights)
DESTROY(workspace)
DESTROY(saved)
DESTROY(schedule)
DESTROY(result)

static void any_order(void) {
  uint64_t seed = 2024;
  for (int round = 0; round < 300; round++) {
    open_context();
    layer_t layer;
    open_layer(&layer, test_fixture_f(3, 32, 16, 4, 2, 0), &(test_run_t){0});
    const purr_group_desc_t desc = {sizeof desc, 1, 0};
    test_rank_t *rank = &layer.rank;
    ASSERT_OK(purr_group_create_local(context, &desc, &rank->group, &err));
    ASSERT_OK(test_rank_create_objects(rank, &err));
    if (round % 3 == 0) expect_exact(&layer); /* worker threads run */
    void *plan = layer.plan;
    handle_t handles[] = {{"context", (void **)&context, destroy_context},
                          {"config", (void **)&layer.config, destroy_config},
                          {"plan", &plan, destroy_plan},
                          {"group", (void **)&rank->group, destroy_group},
                          {"weights", (void **)&rank->weights, destroy_weights},
                          {"workspace", (void **)&rank->workspace, destroy_workspace},
                          {"saved", (void **)&rank->saved, destroy_saved},
                          {"schedule", (void **)&rank->schedule, destroy_schedule},
                          {"result", (void **)&rank->result, destroy_result}};
    const int num = sizeof handles / sizeof handles[0];
    for (int i = num - 1; i > 0; i--) { /* a random order, the same on every machine */
      const int j = (int)(test_random_bits(&seed) % (uint64_t)(i + 1));
      const handle_t other = handles[i];
      handles[i] = handles[j];
      handles[j] = other;
    }
    for (int i = 0; i < num; i++) {
      handles[i].destroy(*handles[i].slot);
      *handles[i].slot = NULL;
    }
    rank->plan = layer.plan = NULL;
    CU_ASSERT_EQUAL(memory.num_live, 0);
    CU_ASSERT_EQUAL(memory.num_wrong, 0);
    close_layer(&layer); /* what is left is the caller's; destroying NULL does nothing */
    purr_context_destroy(context);
  }
}

/* Parents destroyed early (B63): their children work on. The plan is still needed, it is an argument. */
static void children_outlive_parents(void) {
  open_context();
  layer_t layer;
  open_layer(&layer, test_fixture_f(5, 32, 16, 4, 2, 16), &(test_run_t){.schedule_first = true});
  REQUIRE_OK(test_rank_create_objects(&layer.rank, &err));
  purr_config_destroy(layer.config);
  layer.config = NULL;
  purr_context_destroy(context);
  context = NULL;
  for (int i = 0; i < 2; i++) expect_exact(&layer);
  close_layer(&layer);
  CU_ASSERT_EQUAL(memory.num_live, 0);
  CU_ASSERT_EQUAL(memory.num_wrong, 0);
}

static void nothing_destroys_nothing(void) {
  purr_context_destroy(NULL);
  purr_config_destroy(NULL);
  purr_plan_destroy(NULL);
  purr_group_destroy(NULL);
  purr_weights_destroy(NULL);
  purr_workspace_destroy(NULL);
  purr_saved_destroy(NULL);
  purr_schedule_destroy(NULL);
  purr_result_destroy(NULL);
  purr_checkpoint_destroy(NULL);
  purr_checkpoint_layer_destroy(NULL);
  CU_PASS("nothing happened");
}

int main(void) {
  return purr_test_main("lifetimes", (purr_test_t[]){{"memory of the caller", callers_memory},
                                                     {"memory is what the plan says", memory_is_what_the_plan_says},
                                                     {"a workspace shared by two layers", shared_workspace},
                                                     {"creation of workspaces", creation_of_workspaces},
                                                     {"parts of a backward", parts_of_backward},
                                                     {"pipelined steps", pipelined_steps},
                                                     {"destruction in any order", any_order},
                                                     {"children outlive their parents", children_outlive_parents},
                                                     {"nothing destroys nothing", nothing_destroys_nothing},
                                                     {0}});
}
