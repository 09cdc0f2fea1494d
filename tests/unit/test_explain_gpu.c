/* What a plan says of the backends of GPUs: nothing that they do not have. On a fake driver; skipped in a build without
 * GPU kernels. */
#include <stdio.h>
#include <string.h>

#include "plan/plan.h"
#include "plan/units.h"
#include "support/fake_cuda.h"
#include "support/main.h"

#define LAYER "hidden_size: 256\nintermediate_size: 128\nnum_experts: 8\ntop_k: 2\n"

static purr_error_t err;
static purr_context_t *context;
static purr_plan_t *plan;
static char text[32768], json[32768];

static purr_status_t open_plan(const char *yaml, int32_t backend) {
  err = (purr_error_t)PURR_ERROR_INIT;
  fake_cuda_open();
  context = fake_cuda_context();
  plan = NULL;
  purr_config_t *config = NULL;
  purr_package_t *package = NULL;
  const purr_plan_desc_t desc = {.struct_size = sizeof desc, .backend = backend};
  purr_status_t status = purr_package_open(context, PURR_TEST_DATA "/triton/3.6.0/stages", &package, &err);
  if (status == PURR_STATUS_OK) status = purr_context_add_package(context, package, &err);
  if (status == PURR_STATUS_OK) status = purr_config_parse(context, yaml, strlen(yaml), NULL, &config, &err);
  if (status == PURR_STATUS_OK) status = purr_plan_create(context, config, &desc, &plan, &err);
  if (status == PURR_STATUS_OK) status = purr_plan_describe(plan, PURR_FORMAT_TEXT, text, sizeof text, NULL, &err);
  if (status == PURR_STATUS_OK) status = purr_plan_describe(plan, PURR_FORMAT_JSON, json, sizeof json, NULL, &err);
  purr_config_destroy(config);
  purr_package_destroy(package);
  return status;
}

static void close_plan(void) {
  purr_plan_destroy(plan);
  purr_context_destroy(context);
}

static void check(const char *where, const char *words, bool is_wanted) {
  const bool is_there = strstr(where, words) != NULL;
  if (is_there != is_wanted) fprintf(stderr, "'%s' is %s:\n%s", words, is_there ? "in" : "not in", where);
  CU_ASSERT_EQUAL(is_there, is_wanted);
}
#define SAYS(where, words) check(where, words, true)
#define SAYS_NOT(where, words) check(where, words, false)

static void staged(void) {
  REQUIRE_OK(open_plan(LAYER "num_ranks: 2\nmacrobatch_rows: 512\nnum_comm_sms: 16\n", PURR_BACKEND_STAGED));
  SAYS(text, "Minibatch, macrobatch: none, there is room for all rows of a call at once\n");
  SAYS(text, "Communication: no SM is set aside, each kernel reaches the other ranks' memory itself\n");
  SAYS(text, "Kept for backward: g and u of all ");
  SAYS(text, "in calls that are given a saved; backend staged runs no backward yet\n");
  SAYS_NOT(text, "ring");
  SAYS_NOT(text, "two full waves");
  SAYS_NOT(text, "computed again");
  SAYS(json,
       "\"minibatch\": null,\n  \"macrobatch_rows\": null,\n  \"num_macrobatches\": null,\n  \"num_comm_sms\": 0,\n");
  SAYS(json, "\"replayed_rows\": null,\n");
  SAYS(json, "\"ring_bytes\": 0,\n");
  purr_plan_info_t info = {.struct_size = sizeof info};
  ASSERT_OK(purr_plan_query(plan, &info, &err));
  CU_ASSERT_EQUAL(info.minibatch_rows, 0);
  CU_ASSERT_EQUAL(info.macrobatch_rows, 0);
  close_plan();
}

static void mega_without_a_ring(void) {
  REQUIRE_OK(open_plan(LAYER, PURR_BACKEND_MEGA));
  SAYS(text, "Minibatch, macrobatch: none, there is room for all rows of a call at once\n");
  SAYS(text, "Communication: no SM is set aside, nothing travels on one rank\n");
  SAYS(text, "backend mega runs no backward yet\n");
  SAYS(text, "\n    gathered tokens ");
  SAYS_NOT(text, "ring");
  SAYS(json, "\"macrobatch_rows\": null,\n");
  SAYS(json, "\"ring_bytes\": 0,\n");
  close_plan();
}

static void mega_with_a_ring(void) {
  static const struct {
    const char *keys, *communication, *json;
  } cases[] = {
      {"macrobatch_rows: 1024\n", "no SM is set aside, nothing travels on one rank\n", "\"num_comm_sms\": 0,\n"},
      {"macrobatch_rows: 1024\nnum_ranks: 2\n",
       "8 SMs pull rows of all ranks, none where all ranks are on one device\n", "\"num_comm_sms\": 8,\n"},
      {"macrobatch_rows: 1024\nnum_ranks: 2\nnum_comm_sms: 5\n", "6 SMs pull rows of all ranks, as the config says",
       "\"num_comm_sms\": 6,\n"}};
  for (int i = 0; i < 3; i++) {
    char yaml[256], words[160];
    snprintf(yaml, sizeof yaml, LAYER "%s", cases[i].keys);
    REQUIRE_OK(open_plan(yaml, PURR_BACKEND_MEGA));
    const int32_t tile_rows = plan->kernels.forward.tile_rows;
    const purr__unit_order_t order = purr__unit_order_of(plan, plan->layer.max_tokens, tile_rows);
    CU_ASSERT(order.ring_tiles > 0 && order.minibatch_tiles > 0);
    const int ring = order.ring_tiles * tile_rows, minibatch = order.minibatch_tiles * tile_rows;
    snprintf(words, sizeof words, "taken: %d, %d tiles of %d\n", minibatch, order.minibatch_tiles, tile_rows);
    SAYS(text, words);
    SAYS_NOT(text, "min(I, H)"); /* of backward */
    snprintf(words, sizeof words, "Macrobatch: the ring holds %d rows, %d tiles of %d,", ring, order.ring_tiles,
             tile_rows);
    SAYS(text, words);
    SAYS(text, cases[i].communication);
    SAYS(text, "\n    ring, its buffers together ");
    snprintf(words, sizeof words, "\"rows\": %d}\n  },\n  \"macrobatch_rows\": %d,\n  \"num_macrobatches\": null,\n",
             minibatch, ring);
    SAYS(json, words);
    SAYS(json, cases[i].json);
    purr_plan_info_t info = {.struct_size = sizeof info};
    ASSERT_OK(purr_plan_query(plan, &info, &err));
    CU_ASSERT_EQUAL(info.minibatch_rows, minibatch);
    CU_ASSERT_EQUAL(info.macrobatch_rows, ring);
    CU_ASSERT(info.ring_bytes > 0);
    close_plan();
  }
}

/* They refuse to save, so nothing is planned for it. */
static void kernels_of_tritons(void) {
  REQUIRE_OK(open_plan(LAYER "kernels:\n  activation: swiglu_kernel\n", PURR_BACKEND_AUTO));
  SAYS(text, "Kept for backward: nothing; of the kernels of Triton's that the config names no backward is known\n");
  SAYS_NOT(text, "saved, one for each step");
  SAYS_NOT(text, "with one saved");
  SAYS(json, "\"kept_rows\": 0,\n");
  SAYS(json, "\"saved_bytes\": 0,\n");
  SAYS(json, "\"saved\": [\n\n    ]");
  close_plan();
  REQUIRE_OK(open_plan(LAYER "kernels:\n  quantise: quantise_kernel\n", PURR_BACKEND_AUTO));
  SAYS(text, "Kept for backward: g and u of all "); /* no part of a forward */
  close_plan();
}

int main(void) {
  const purr_status_t status = open_plan(LAYER, PURR_BACKEND_MEGA);
  close_plan();
  if (status == PURR_STATUS_MISSING_KERNEL) {
    fprintf(stderr, "skipped: %s\n", err.message);
    return PURR_TEST_SKIPPED;
  }
  return purr_test_main("explain for GPUs", (purr_test_t[]){{"staged", staged},
                                                            {"mega without a ring", mega_without_a_ring},
                                                            {"mega with a ring", mega_with_a_ring},
                                                            {"kernels of Triton's", kernels_of_tritons},
                                                            {0}});
}
