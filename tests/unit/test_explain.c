/* The plan's explanation: the computation it shows, and that its bytes are those of the layout. */
#include <stdio.h>
#include <stdlib.h>

#include "plan/plan.h"
#include "support/main.h"

#define CONFIGS PURR_SOURCE_DIR "/configs"

static purr_context_t *context;

static purr_plan_t *make_plan(const char *yaml, const purr_plan_desc_t *desc) {
  purr_error_t err;
  purr_config_t *config = NULL;
  purr_plan_t *plan = NULL;
  bool is_path = strchr(yaml, '\n') == NULL;
  ASSERT_OK(is_path ? purr_config_load(context, yaml, &config, &err)
                    : purr_config_parse(context, yaml, strlen(yaml), NULL, &config, &err));
  CU_ASSERT_PTR_NOT_NULL_FATAL(config);
  ASSERT_OK(purr_plan_create(context, config, desc, &plan, &err));
  CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
  purr_config_destroy(config);
  return plan;
}

static char *describe(const purr_plan_t *plan, int32_t format) {
  purr_error_t err;
  uint64_t length = 0, again = 0;
  ASSERT_OK(purr_plan_describe(plan, format, NULL, 0, &length, &err));
  char *text = malloc(length + 1);
  ASSERT_STATUS(PURR_STATUS_BUFFER_TOO_SMALL, purr_plan_describe(plan, format, text, length, &again, &err));
  CU_ASSERT_EQUAL(again, length);
  ASSERT_OK(purr_plan_describe(plan, format, text, length + 1, NULL, &err));
  CU_ASSERT_EQUAL(strlen(text), length);
  return text;
}

static void check_says(const char *text, const char *expected) {
  if (strstr(text, expected) == NULL) fprintf(stderr, "'%s' is not in:\n%s", expected, text);
  CU_ASSERT_PTR_NOT_NULL(strstr(text, expected));
}

/* The bytes of the line with this name in the table of memory; -1 without one. */
static int64_t bytes_of(const char *text, const char *name) {
  char line[128];
  snprintf(line, sizeof line, "  %s  ", name);
  const char *table = strstr(text, "\nMemory of one rank"), *found = table != NULL ? strstr(table, line) : NULL;
  return found != NULL ? strtoll(found + strlen(line), NULL, 10) : -1;
}

/* The published figure: 2368 rows for Kimi-K2 on 148 SMs, twice that backward. */
static void two_waves_of_kimi_k2(void) {
  purr_plan_desc_t desc = PURR_PLAN_DESC_INIT;
  desc.num_sms = 148;
  desc.backend = PURR_BACKEND_HOST;
  purr_plan_t *plan = make_plan(CONFIGS "/kimi_k2.yaml", &desc);
  char *text = describe(plan, PURR_FORMAT_TEXT), *json = describe(plan, PURR_FORMAT_JSON);
  check_says(text, "2 * SMs * tile_m * tile_n / N");
  check_says(text, "2 * 148 * 128 * 256 / 4096 = 2368 rows");
  check_says(text, "2 * 148 * 128 * 256 / 2048 = 4736 rows");
  check_says(text, "Backend: host\n  asked for\n");
  check_says(json, "\"computation\": \"2 * 148 * 128 * 256 / 4096\", \"min_rows\": 2368");
  check_says(json, "\"computation\": \"2 * 148 * 128 * 256 / 2048\", \"min_rows\": 4736");
  const int64_t h = 7168, i = 2048, e = 384, k = 8, t = 4096, s = 2048;
  CU_ASSERT_EQUAL(bytes_of(text, "routed experts"), e * 3 * i * h * 2);
  CU_ASSERT_EQUAL(bytes_of(text, "shared expert"), 3 * s * h * 2);
  CU_ASSERT_EQUAL(bytes_of(text, "weights"), (e * i + s) * 3 * h * 2);
  CU_ASSERT_EQUAL(bytes_of(text, "combine buffer"), t * k * h * 2);
  CU_ASSERT_EQUAL(bytes_of(text, "gates"), plan->max_rows * i * 2);
  CU_ASSERT_EQUAL(bytes_of(text, "shared ups"), t * s * 2);
  CU_ASSERT_EQUAL(bytes_of(text, "ring of tokens"), plan->macrobatch_rows * h * 2);
  CU_ASSERT_EQUAL(bytes_of(text, "tokens"), -1); /* one rank copies none */
  free(text);
  free(json);
  purr_plan_destroy(plan);
}

/* Every region with bytes has its line, and the groups' lines are the numbers of purr_plan_query. */
static void every_byte_is_listed(void) {
  purr_error_t err;
  purr_plan_desc_t desc = PURR_PLAN_DESC_INIT;
  desc.num_ranks = 4;
  desc.backend = PURR_BACKEND_HOST;
  purr_plan_t *plan = make_plan(
      "hidden_size: 256\nintermediate_size: 128\nnum_experts: 8\ntop_k: 2\nmax_tokens: 1000\nmacrobatch_rows: 512\n"
      "shared_expert:\n  intermediate_size: 64\n  gate: sigmoid\n",
      &desc);
  purr_plan_info_t info = {.struct_size = sizeof info};
  ASSERT_OK(purr_plan_query(plan, &info, &err));
  char *text = describe(plan, PURR_FORMAT_TEXT), *json = describe(plan, PURR_FORMAT_JSON), part[160];
  const struct {
    const char *title, *json_name;
    const purr__region_t *regions;
    int num_regions;
    uint64_t bytes;
  } blocks[] = {
      {"symmetric memory, which other ranks read and write", "symmetric_bytes", plan->sym, PURR__NUM_SYM_REGIONS,
       info.symmetric_bytes},
      {"workspace, shared by layers", "workspace_bytes", plan->ws, PURR__NUM_WS_REGIONS, info.workspace_bytes},
      {"saved, one for each step until its backward", "saved_bytes", plan->saved, PURR__NUM_SAVED_REGIONS,
       info.saved_bytes},
      {"schedule, in the workspace and in each saved", "schedule_bytes", plan->table, PURR__NUM_TABLE_REGIONS,
       info.schedule_bytes}};
  int num_listed = 0;
  for (int i = 0; i < 4; i++) {
    CU_ASSERT_EQUAL(bytes_of(text, blocks[i].title), (int64_t)blocks[i].bytes);
    snprintf(part, sizeof part, "\n  \"%s\": %llu,", blocks[i].json_name, (unsigned long long)blocks[i].bytes);
    check_says(json, part);
    for (int j = 0; j < blocks[i].num_regions; j++) {
      const purr__region_t *region = &blocks[i].regions[j];
      if (region->name == NULL) continue;
      num_listed += region->bytes > 0;
      snprintf(part, sizeof part, "  %s  ", region->name);
      if (region->bytes > 0) check_says(text, part);
      snprintf(part, sizeof part, "{\"name\": \"%s\", \"offset\": %llu, \"bytes\": %llu}", region->name,
               (unsigned long long)region->offset, (unsigned long long)region->bytes);
      check_says(json, part);
    }
  }
  CU_ASSERT_PTR_NULL(strstr(json, "(null)"));
  CU_ASSERT_TRUE(num_listed >= 39); /* this layer has every part but those of MXFP8 */
  CU_ASSERT_EQUAL(bytes_of(text, "ring, its buffers together"), (int64_t)info.ring_bytes);
  CU_ASSERT_EQUAL(bytes_of(text, "shared expert"), 3 * 64 * 256 * 2 + 256 * 2);
  CU_ASSERT_EQUAL(bytes_of(text, "in all, with one saved"),
                  (int64_t)(info.weight_bytes + info.symmetric_bytes + info.workspace_bytes + info.saved_bytes));
  check_says(text, "on 4 ranks");
  check_says(text, "2 on each rank");
  check_says(text, "with a sigmoid gate");
  check_says(text, "4 * 1000 * 2 = 8000 slots");
  free(text);
  free(json);
  purr_plan_destroy(plan);
}

/* What is kept, and why a minibatch has its rows. */
static void reasons(void) {
  static const struct {
    const char *keys, *says[3];
  } cases[] = {
      {"activation_memory: full\n", {"g and u of all ", "nothing is computed again"}},
      {"activation_memory: none\n", {"g and u of no row; backward computes all "}},
      /* 512 bytes a row of g and u: room for 1024 rows, two macrobatches of 512 */
      {"activation_memory: 600KiB\nmacrobatch_rows: 512\n",
       {"g and u of the first 1024 rows, 524288 bytes: 2 of 17 macrobatches", "the others again"}},
      {"minibatch_rows: 128\nmacrobatch_rows: 512\n", {"taken: 128, as the config says"}},
      {"macrobatch_rows: 512\n", {"taken: 256, half of the macrobatch", "the ring holds 512 rows"}},
      {"minibatch_rows: 4096\nmax_tokens: 512\n", {"taken: 768, half of the macrobatch"}},
      {"max_tokens: 1000000\nmacrobatch_rows: 1280000\n",
       {"2 * 130 * 128 * 256 / 256 = 33280 rows with N = min(2I, H); taken: 33280\n",
        "2 * 130 * 128 * 256 / 128 = 66560 rows with N = min(I, H); taken: 66560\n"}},
      {"num_ranks: 2\nnum_comm_sms: 16\n", {"Communication: the threads of each rank move its rows themselves"}},
      {"swiglu_limit: 7\n", {"swiglu_limit       7\n"}}};
  purr_plan_desc_t desc = PURR_PLAN_DESC_INIT;
  desc.num_sms = 130;
  desc.backend = PURR_BACKEND_HOST;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char yaml[512];
    snprintf(yaml, sizeof yaml, "hidden_size: 256\nintermediate_size: 128\nnum_experts: 8\ntop_k: 2\n%s",
             cases[i].keys);
    purr_plan_t *plan = make_plan(yaml, &desc);
    char *text = describe(plan, PURR_FORMAT_TEXT);
    for (int j = 0; j < 3 && cases[i].says[j] != NULL; j++) check_says(text, cases[i].says[j]);
    free(text);
    purr_plan_destroy(plan);
  }
}

static void wrong_arguments(void) {
  purr_error_t err;
  purr_plan_desc_t desc = PURR_PLAN_DESC_INIT;
  desc.backend = PURR_BACKEND_HOST;
  purr_plan_t *plan = make_plan(CONFIGS "/qwen3_30b.yaml", &desc);
  char text[8];
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_plan_describe(NULL, 0, text, sizeof text, NULL, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_plan_describe(plan, 2, text, sizeof text, NULL, &err));
  ASSERT_STATUS(PURR_STATUS_BUFFER_TOO_SMALL, purr_plan_describe(plan, 0, text, sizeof text, NULL, &err));
  purr_plan_destroy(plan);
}

int main(void) {
  if (purr_context_create(NULL, &context, NULL) != PURR_STATUS_OK) return 1;
  int code = purr_test_main("explain", (purr_test_t[]){{"two waves of Kimi-K2", two_waves_of_kimi_k2},
                                                       {"every byte is listed", every_byte_is_listed},
                                                       {"reasons", reasons},
                                                       {"wrong arguments", wrong_arguments},
                                                       {0}});
  purr_context_destroy(context);
  return code;
}
