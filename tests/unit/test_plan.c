/* Plans of any layer that a config can describe, however large: made at once, sound, explained; and memory that nobody
 * has is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"
#include "support/layer.h"
#include "support/main.h"

static purr_error_t err;
static purr_context_t *context;

#define MOST_BYTES ((uint64_t)1 << 32) /* that this machine has in one piece, as far as the library sees */

/* A multiple of `unit` in unit..limit: the ends more often than the rest, powers of two, anything. */
static int64_t pick(uint64_t *seed, int64_t limit, int64_t unit) {
  const uint64_t bits = test_random_bits(seed);
  int64_t value = (int64_t)1 << (bits >> 8) % 40;
  if (bits % 5 == 0) value = limit;
  if (bits % 5 == 1) value = unit;
  if (bits % 5 == 2) value = 1 + (int64_t)((bits >> 8) % (uint64_t)limit);
  value = purr__min(value, limit) / unit * unit;
  return purr__max(value, unit);
}

static bool heads(uint64_t *seed) { return test_random_bits(seed) % 2 == 0; }

static purr_layer_desc_t pick_layer(uint64_t *seed) {
  const bool mxfp8 = heads(seed);
  purr_layer_desc_t layer = {.struct_size = sizeof layer, .backend = PURR_BACKEND_HOST};
  layer.precision = mxfp8 ? PURR_PRECISION_MXFP8 : PURR_PRECISION_BF16;
  layer.hidden_size = pick(seed, 1 << 20, mxfp8 ? 32 : 8);
  layer.intermediate_size = pick(seed, 1 << 20, mxfp8 ? 32 : 8);
  layer.num_ranks = (int32_t)pick(seed, 4096, 1);
  layer.num_experts = layer.num_ranks * pick(seed, PURR__MAX_EXPERTS / layer.num_ranks, 1);
  layer.top_k = pick(seed, 64, 1);
  const int64_t most_tokens = (INT32_MAX - 64 * layer.num_experts) / layer.top_k / layer.num_ranks;
  layer.max_tokens = pick(seed, purr__max(most_tokens, 1), 1);
  if (heads(seed)) layer.shared_intermediate_size = pick(seed, 1 << 20, 8);
  if (layer.shared_intermediate_size > 0 && heads(seed)) layer.shared_gate = PURR_SHARED_GATE_SIGMOID;
  if (heads(seed)) layer.minibatch_rows = pick(seed, INT32_MAX, 64);
  if (heads(seed)) layer.macrobatch_rows = pick(seed, INT32_MAX, 64);
  if (heads(seed)) layer.activation_memory = pick(seed, INT64_MAX, 1);
  if (test_random_bits(seed) % 8 == 0) layer.activation_memory = -1;
  return layer;
}

/* Regions lie one behind the other, aligned, inside the block. */
static bool layout_is_sound(const purr__region_t *regions, int num, uint64_t bytes) {
  uint64_t end = 0;
  for (int i = 0; i < num; i++) {
    if (regions[i].name == NULL) continue; /* of another backend */
    if (regions[i].offset < end || regions[i].offset % PURR__MEMORY_ALIGNMENT != 0) return false;
    end = regions[i].offset + regions[i].bytes;
  }
  return end <= bytes && bytes <= INT64_MAX;
}

static bool batches_are_sound(const purr_plan_t *plan) {
  const int64_t sizes[] = {plan->minibatch_rows, plan->minibatch_rows_backward};
  for (int i = 0; i < 2; i++)
    if (sizes[i] < 64 || sizes[i] % 64 != 0 || 2 * sizes[i] > plan->macrobatch_rows) return false;
  return plan->macrobatch_rows % 64 == 0 && plan->max_rows <= INT32_MAX && plan->kept_rows >= 0 &&
         plan->kept_rows <= plan->max_rows &&
         (plan->kept_rows == plan->max_rows || plan->kept_rows % plan->macrobatch_rows == 0);
}

static void any_layer(void) {
  static char text[1 << 16];
  uint64_t seed = 1, length;
  int num_plans = 0, num_refused = 0, num_huge = 0;
  for (int i = 0; i < 3000; i++) {
    const purr_layer_desc_t layer = pick_layer(&seed);
    const purr_plan_desc_t desc = {.struct_size = sizeof desc,
                                   .num_sms = heads(&seed) ? (int32_t)pick(&seed, 4096, 1) : 0};
    purr_config_t *config = NULL;
    purr_plan_t *plan = NULL;
    purr_status_t status = purr_config_create(context, &layer, &config, &err);
    if (status == PURR_STATUS_OK) status = purr_plan_create(context, config, &desc, &plan, &err);
    if (status != PURR_STATUS_OK) {
      CU_ASSERT_TRUE(status == PURR_STATUS_CONFIG || status == PURR_STATUS_UNSUPPORTED);
      CU_ASSERT_TRUE(strlen(err.message) > 20);
      CU_ASSERT_PTR_NULL(plan);
      num_refused++;
    } else {
      num_plans++;
      const bool sound = batches_are_sound(plan) && layout_is_sound(plan->ws, PURR__NUM_WS_REGIONS, plan->ws_bytes) &&
                         layout_is_sound(plan->sym, PURR__NUM_SYM_REGIONS, plan->sym_bytes) &&
                         layout_is_sound(plan->saved, PURR__NUM_SAVED_REGIONS, plan->saved_bytes) &&
                         layout_is_sound(plan->table, PURR__NUM_TABLE_REGIONS, plan->table_bytes);
      if (!sound) {
        purr_config_write(config, text, sizeof text, &length, NULL);
        fprintf(stderr, "no sound plan: minibatch %lld, macrobatch %lld, %lld rows\n%s",
                (long long)plan->minibatch_rows, (long long)plan->macrobatch_rows, (long long)plan->max_rows, text);
      }
      CU_ASSERT_TRUE(sound);
      ASSERT_OK(purr_plan_describe(plan, PURR_FORMAT_TEXT, text, sizeof text, &length, &err));
      ASSERT_OK(purr_plan_describe(plan, PURR_FORMAT_JSON, text, sizeof text, &length, &err));
      if (layer.num_ranks == 1 && plan->ws_bytes > MOST_BYTES) {
        purr_workspace_t *workspace = NULL;
        ASSERT_STATUS(PURR_STATUS_OUT_OF_HOST_MEMORY, purr_workspace_create(plan, NULL, NULL, &workspace, &err));
        num_huge++;
      }
    }
    purr_plan_destroy(plan);
    purr_config_destroy(config);
  }
  /* The layers were neither all absurd nor all small. */
  CU_ASSERT_TRUE(num_plans > 1000);
  CU_ASSERT_TRUE(num_refused > 100);
  CU_ASSERT_TRUE(num_huge > 10);
}

/* Overrides obey the same rules as the config. */
static void overrides(void) {
  const purr_layer_desc_t layer = {.struct_size = sizeof layer,
                                   .hidden_size = 64,
                                   .intermediate_size = 40,
                                   .num_experts = 6,
                                   .top_k = 2,
                                   .backend = PURR_BACKEND_HOST};
  purr_config_t *config = NULL;
  REQUIRE_OK(purr_config_create(context, &layer, &config, &err));
  static const struct {
    purr_plan_desc_t desc;
    const char *word;
  } wrong[] = {
      {{.num_ranks = 4}, "num_ranks 4"},
      {{.num_ranks = -1}, "num_ranks"},
      {{.num_ranks = INT32_MAX}, "num_ranks"},
      {{.max_tokens = -1}, "max_tokens"},
      {{.max_tokens = INT64_MAX}, "max_tokens"},
      {{.precision = PURR_PRECISION_MXFP8 + 1}, "40"},
      {{.precision = 77}, "precision"},
      {{.backend = 77}, "backend"},
      {{.num_sms = -5}, "num_sms"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    purr_plan_desc_t desc = wrong[i].desc;
    desc.struct_size = sizeof desc;
    purr_plan_t *plan = (purr_plan_t *)(void *)config;
    const purr_status_t status = purr_plan_create(context, config, &desc, &plan, &err);
    if (status == PURR_STATUS_OK || strstr(err.message, wrong[i].word) == NULL)
      fprintf(stderr, "override %zu: %s: %s\n", i, purr_status_name(status), err.message);
    CU_ASSERT_TRUE(status == PURR_STATUS_CONFIG || status == PURR_STATUS_INVALID_ARGUMENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, wrong[i].word));
    CU_ASSERT_PTR_NULL(plan);
  }
  purr_config_destroy(config);
}

static void *modest_allocate(void *user, uint64_t bytes, uint64_t alignment) {
  (void)user; /* a sanitizer's own allocator would rather stop the program than return NULL */
  return bytes <= MOST_BYTES ? aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment) : NULL;
}

static void modest_release(void *user, void *memory, uint64_t bytes) {
  (void)user;
  (void)bytes;
  free(memory);
}

int main(void) {
  const purr_allocator_t hooks = {sizeof hooks, 0, modest_allocate, modest_release, NULL};
  const purr_context_desc_t desc = {.struct_size = sizeof desc, .num_threads = 1, .host_allocator = &hooks};
  if (purr_context_create(&desc, &context, NULL) != PURR_STATUS_OK) return 1;
  const int code = purr_test_main("plans", (purr_test_t[]){{"any layer", any_layer}, {"overrides", overrides}, {0}});
  purr_context_destroy(context);
  return code;
}
