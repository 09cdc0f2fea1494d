/* Kernels of Triton's in place of a stage, on a fake driver: how the config names them, where they are found, what they
 * are refused for, and what a launch is given. */
#include <stdio.h>
#include <string.h>

#include "package/package.h"
#include "plan/plan.h"
#include "plan/stages.h"
#include "support/fake_cuda.h"
#include "support/main.h"
#include "support/package.h"

#define DATA PURR_TEST_DATA "/triton/3.6.0/"
#define GOOD "hidden_size: 256\nintermediate_size: 128\nnum_experts: 8\ntop_k: 2\n"
#define STAGES \
  "kernels:\n  activation: gpt_oss_kernel\n  grouped_gemm: grouped_gemm_kernel\n  combine: combine_kernel\n"
#define QUANTISE "kernels:\n  quantise: quantise_kernel\n"

static purr_error_t err;
static fake_cuda_t *fake;
static purr_context_t *context;

static void begin(const char *package_path) {
  purr_package_t *package = NULL;
  fake = fake_cuda_open();
  context = fake_cuda_context();
  CU_ASSERT_PTR_NOT_NULL_FATAL(context);
  if (package_path == NULL) return;
  ASSERT_OK(purr_package_open(context, package_path, &package, &err));
  ASSERT_OK(purr_context_add_package(context, package, &err));
  purr_package_destroy(package);
}

static void end(void) {
  purr_context_destroy(context);
  CU_ASSERT_EQUAL(fake->num_libraries, 0);
}

static purr_config_t *parse(const char *text) {
  purr_config_t *config = NULL;
  ASSERT_OK(purr_config_parse(context, text, strlen(text), NULL, &config, &err));
  CU_ASSERT_PTR_NOT_NULL_FATAL(config);
  return config;
}

static bool says(const char *text) {
  if (strstr(err.message, text) != NULL) return true;
  fprintf(stderr, "expected \"%s\" in: %s\n", text, err.message);
  return false;
}

static void a_config_names_kernels(void) {
  begin(NULL);
  purr_config_t *config = parse(GOOD STAGES);
  CU_ASSERT_STRING_EQUAL(config->texts.activation, "gpt_oss_kernel");
  CU_ASSERT_STRING_EQUAL(config->texts.grouped_gemm, "grouped_gemm_kernel");
  char text[8192];
  ASSERT_OK(purr_config_write(config, text, sizeof text, NULL, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(text, "kernels:"));
  purr_config_t *again = parse(text);
  CU_ASSERT_STRING_EQUAL(again->texts.activation, "gpt_oss_kernel");
  CU_ASSERT_STRING_EQUAL(again->texts.grouped_gemm, "grouped_gemm_kernel");
  ASSERT_OK(purr_config_describe(config, PURR_FORMAT_JSON, text, sizeof text, NULL, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"activation\": \"gpt_oss_kernel\""));
  purr_config_destroy(again);
  purr_config_destroy(config);
  config = parse(GOOD QUANTISE);
  CU_ASSERT_STRING_EQUAL(config->texts.quantise, "quantise_kernel");
  ASSERT_OK(purr_config_write(config, text, sizeof text, NULL, &err));
  again = parse(text);
  CU_ASSERT_STRING_EQUAL(again->texts.quantise, "quantise_kernel");
  purr_config_destroy(again);
  purr_config_destroy(config);
  ASSERT_STATUS(PURR_STATUS_CONFIG,
                purr_config_parse(context, GOOD "kernels:\n  quantize: quantise_kernel\n",
                                  sizeof GOOD "kernels:\n  quantize: quantise_kernel\n" - 1, NULL, &config, &err));
  CU_ASSERT(says("did you mean 'kernels.quantise'?"));
  config = parse(GOOD "kernels:\n  activation: none\n");
  CU_ASSERT_STRING_EQUAL(config->texts.activation, "");
  ASSERT_OK(purr_config_describe(config, PURR_FORMAT_JSON, text, sizeof text, NULL, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"kernels\": null"));
  purr_config_destroy(config);
  end();
}

/* Another activation is another layer: the host must not take it over in silence. */
static void no_other_backend_serves_them(void) {
  begin(NULL);
  purr_config_t *config = parse(GOOD STAGES);
  purr_plan_t *plan = NULL;
  const purr_plan_desc_t host = {.struct_size = sizeof host, .backend = PURR_BACKEND_HOST};
  ASSERT_STATUS(PURR_STATUS_UNSUPPORTED, purr_plan_create(context, config, &host, &plan, &err));
  CU_ASSERT(says("names kernels of Triton's, which only the staged backend runs"));
  const purr_plan_desc_t mega = {.struct_size = sizeof mega, .backend = PURR_BACKEND_MEGA};
  ASSERT_STATUS(PURR_STATUS_UNSUPPORTED, purr_plan_create(context, config, &mega, &plan, &err));
  CU_ASSERT(says("not backend 'mega'"));
  CU_ASSERT_NOT_EQUAL(purr_plan_create(context, config, NULL, &plan, &err), PURR_STATUS_OK);
  CU_ASSERT_PTR_NULL(plan);
  purr_config_destroy(config);
  end();
}

/* Looks for the stages of a layer as a plan would; the caller frees them. */
static purr_status_t find(const char *yaml, purr__stages_t **stages) {
  purr_config_t *config = parse(yaml);
  purr_plan_t plan = {.object = {.context = context}, .layer = config->layer, .texts = config->texts, .name = "test"};
  purr__device_t *device = NULL;
  purr_config_destroy(config);
  err = (purr_error_t)PURR_ERROR_INIT;
  purr_status_t status = purr__device_get(context, 0, &device, &err);
  return status == PURR_STATUS_OK ? purr__stages_find(&plan, device, stages, &err) : status;
}

static void kernels_that_do_not_do(void) {
  static const struct {
    const char *package, *yaml;
    purr_status_t status;
    const char *text;
  } cases[] = {
      {DATA "stages", GOOD STAGES, PURR_STATUS_OK, ""},
      {DATA "stages", GOOD, PURR_STATUS_OK, ""},
      {DATA "stages", GOOD "kernels:\n  activation: tanh_kernel\n", PURR_STATUS_MISSING_KERNEL,
       "layer 'test' names kernel 'tanh_kernel' for its activation, which is in none of the 1 packages"},
      {DATA "package", GOOD "kernels:\n  activation: add_kernel\n", PURR_STATUS_UNSUPPORTED,
       "kernel add_kernel wants an argument 'x_ptr', which the stage activation does not give; it gives status, turn, "
       "turn_owner, rows, gate, up, out, columns, limit"},
      {DATA "stages", GOOD "kernels:\n  activation: grouped_gemm_kernel\n", PURR_STATUS_UNSUPPORTED, "an argument 'a'"},
      {DATA "stages", GOOD STAGES "shared_expert:\n  intermediate_size: 64\n", PURR_STATUS_UNSUPPORTED,
       "has a shared expert"},
      {DATA "stages", GOOD STAGES "num_ranks: 2\n", PURR_STATUS_UNSUPPORTED, "has more than one rank"},
      {DATA "stages", GOOD "kernels:\n  activation: swiglu_kernel\nnum_ranks: 2\n", PURR_STATUS_OK, ""},
      {DATA "stages", GOOD "kernels:\n  combine: combine_kernel\nnum_ranks: 2\n", PURR_STATUS_OK, ""},
      {DATA "stages", GOOD QUANTISE "num_ranks: 2\nshared_expert:\n  intermediate_size: 64\n", PURR_STATUS_OK, ""},
      {DATA "stages", GOOD "kernels:\n  quantise: combine_kernel\n", PURR_STATUS_UNSUPPORTED,
       "kernel combine_kernel wants an argument 'ids', which the stage quantise does not give; it gives source, "
       "source_row_stride, source_slice_stride, elements"},
      {DATA "stages", GOOD "kernels:\n  combine: quantise_kernel\n", PURR_STATUS_UNSUPPORTED, "an argument 'source'"},
      {DATA "stages", GOOD STAGES "precision: mxfp8\n", PURR_STATUS_UNSUPPORTED, "has MXFP8"},
      {DATA "stages", GOOD STAGES "package_digest: 0123456789012345678901234567890123456789012345678901234567890123\n",
       PURR_STATUS_INCOMPATIBLE_BINARY, "pins package_digest 0123456789012345..."},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    begin(cases[i].package);
    purr__stages_t *stages = NULL;
    ASSERT_STATUS(cases[i].status, find(cases[i].yaml, &stages));
    CU_ASSERT(says(cases[i].text));
    CU_ASSERT(stages == NULL || cases[i].status == PURR_STATUS_OK);
    purr__stages_free(context, stages);
    end();
  }
  begin(DATA "stages");
  for (int i = 0; i < FAKE_CUDA_MAX_DEVICES; i++) fake->cc[i] = 80;
  purr__stages_t *stages = NULL;
  ASSERT_STATUS(PURR_STATUS_INCOMPATIBLE_BINARY, find(GOOD STAGES, &stages));
  CU_ASSERT(says("has no variant for device 0"));
  end();
}

static void *const ADDRESS = (void *)(uintptr_t)0x7f0000001000;

static void stages_are_launched(void) {
  begin(DATA "stages");
  purr__stages_t *stages = NULL;
  REQUIRE_OK(find(GOOD STAGES, &stages));
  CU_ASSERT(purr__stages_have(stages, PURR__STAGE_GROUPED_GEMM) && purr__stages_have(stages, PURR__STAGE_COMBINE));
  CU_ASSERT_FALSE(purr__stages_have(NULL, PURR__STAGE_ACTIVATION));
  purr__stage_value_t values[PURR__NUM_STAGE_VALUES];
  for (int i = 0; i < PURR__NUM_STAGE_VALUES; i++) values[i].pointer = (char *)ADDRESS + 16 * i;
  values[PURR__STAGE_columns].integer = 128;
  values[PURR__STAGE_limit].real = 7.0;
  values[PURR__STAGE_turn_owner].integer = INT64_C(0x123456789);
  const int bytes[] = {8, 8, 8, 8, 4, 4, 8, 8, 8, 8, 8, 0}; /* gate, up, out, rows, columns, limit, status, turn ... */
  memcpy(fake->param_bytes, bytes, sizeof bytes);
  ASSERT_OK(purr__stage_launch(stages, PURR__STAGE_ACTIVATION, values, NULL, NULL, &err));
  CU_ASSERT_EQUAL_FATAL(fake->num_launches, 1);
  CU_ASSERT_STRING_EQUAL(fake->launches[0].kernel, "swiglu_kernel"); /* the function; its constants are GPT-OSS's */
  CU_ASSERT_EQUAL(fake->launches[0].grid[0], 8 * 132);
  uint64_t word;
  memcpy(&word, fake->params[0], sizeof word);
  CU_ASSERT_EQUAL(word, (uintptr_t)ADDRESS + 16 * PURR__STAGE_gate);
  memcpy(&word, fake->params[3], sizeof word);
  CU_ASSERT_EQUAL(word, (uintptr_t)ADDRESS + 16 * PURR__STAGE_rows);
  int32_t columns;
  float limit;
  memcpy(&columns, fake->params[4], sizeof columns);
  memcpy(&limit, fake->params[5], sizeof limit);
  CU_ASSERT(columns == 128 && limit == 7.0f);
  memcpy(&word, fake->params[8], sizeof word);
  CU_ASSERT_EQUAL(word, UINT64_C(0x123456789));
  memset(fake->param_bytes, 0, sizeof fake->param_bytes);
  static const int integers[] = {PURR__STAGE_a_stride,    PURR__STAGE_a_divisor, PURR__STAGE_b_expert_stride,
                                 PURR__STAGE_b_stride,    PURR__STAGE_c_stride,  PURR__STAGE_c_scatter,
                                 PURR__STAGE_num_experts, PURR__STAGE_n,         PURR__STAGE_k};
  for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++) values[integers[i]].integer = 64;
  ASSERT_OK(purr__stage_launch(stages, PURR__STAGE_GROUPED_GEMM, values, NULL, NULL, &err));
  CU_ASSERT_EQUAL(fake->launches[1].grid[0], 132);
  CU_ASSERT_EQUAL(fake->launches[1].block[0], 256);
  static const int more[] = {PURR__STAGE_ids_stride,   PURR__STAGE_ids_step,     PURR__STAGE_weights_stride,
                             PURR__STAGE_weights_step, PURR__STAGE_slots_stride, PURR__STAGE_out_stride,
                             PURR__STAGE_num_tokens,   PURR__STAGE_top_k,        PURR__STAGE_hidden};
  for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) values[more[i]].integer = 16 * (int64_t)(i + 1);
  const int combine[] = {8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 4, 4, 4, 8, 8, 8, 0};
  memcpy(fake->param_bytes, combine, sizeof combine);
  ASSERT_OK(purr__stage_launch(stages, PURR__STAGE_COMBINE, values, NULL, NULL, &err));
  memset(fake->param_bytes, 0, sizeof fake->param_bytes);
  CU_ASSERT_STRING_EQUAL(fake->launches[2].kernel, "combine_kernel");
  memcpy(&word, fake->params[2], sizeof word);
  CU_ASSERT_EQUAL(word, 32); /* ids_step */
  memcpy(&columns, fake->params[12], sizeof columns);
  CU_ASSERT_EQUAL(columns, 144); /* hidden */
  /* A promise that a layer breaks is an error of the call, not a fault of the device. */
  values[PURR__STAGE_n].integer = 63;
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT,
                purr__stage_launch(stages, PURR__STAGE_GROUPED_GEMM, values, NULL, NULL, &err));
  CU_ASSERT(says("is 63, but the kernel was promised multiples of 8"));
  CU_ASSERT_EQUAL(fake->num_launches, 3);
  purr__stages_free(context, stages);
  end();
}

/* Kernels that want scratch memory: the workspace has it, at an address that suits them. */
static void scratch_memory(void) {
  enum { BLOCK_BYTES = 1280, ALIGN = 1024 };
  const test_folder_t folder = test_package_copy(DATA "stages", "\"scratch_bytes\": 0,\n      \"scratch_align\": 1",
                                                 "\"scratch_bytes\": 1280, \"scratch_align\": 1024", -1);
  begin(folder.path);
  purr__stages_t *stages = NULL;
  REQUIRE_OK(find(GOOD STAGES, &stages));
  const int64_t bytes = purr__stages_scratch_bytes(stages);
  CU_ASSERT_EQUAL(bytes, 8 * 132 * BLOCK_BYTES + ALIGN); /* the activation has most programs */
  CU_ASSERT_EQUAL(purr__stages_scratch_bytes(NULL), 0);
  purr__stage_value_t values[PURR__NUM_STAGE_VALUES];
  for (int i = 0; i < PURR__NUM_STAGE_VALUES; i++) values[i].pointer = (char *)ADDRESS + 16 * i;
  values[PURR__STAGE_columns].integer = 128;
  const int params[] = {8, 8, 8, 8, 4, 4, 8, 8, 8, 8, 8, 0};
  memcpy(fake->param_bytes, params, sizeof params);
  for (int shift = 0; shift < ALIGN; shift += 256) {
    char *scratch = (char *)ADDRESS + shift;
    ASSERT_OK(purr__stage_launch(stages, PURR__STAGE_ACTIVATION, values, scratch, NULL, &err));
    uint64_t given;
    memcpy(&given, fake->params[9], sizeof given); /* behind the arguments */
    CU_ASSERT_EQUAL(given % ALIGN, 0);
    CU_ASSERT(given >= (uintptr_t)scratch && given + 8 * 132 * BLOCK_BYTES <= (uintptr_t)scratch + (uint64_t)bytes);
  }
  memset(fake->param_bytes, 0, sizeof fake->param_bytes);
  purr__stages_free(context, stages);
  ASSERT_STATUS(PURR_STATUS_UNSUPPORTED, find(GOOD QUANTISE, &stages));
  CU_ASSERT(says("scratch memory, and no workspace goes with that stage"));
  end();
  test_folder_remove(&folder);
}

/* Constants that a stage does not give are the kernel's own affair: the most special variant's, also where others that
 * would do have other ones. */
static void constants_may_differ_between_variants(void) {
  const test_folder_t folder =
      test_package_copy(DATA "stages", "\"kernel\": \"gpt_oss_kernel\"", "\"kernel\": \"swiglu_kernel\"", -1);
  begin(folder.path);
  purr__stages_t *stages = NULL;
  REQUIRE_OK(find(GOOD "kernels:\n  activation: swiglu_kernel\n", &stages));
  purr__stage_value_t values[PURR__NUM_STAGE_VALUES];
  for (int i = 0; i < PURR__NUM_STAGE_VALUES; i++) values[i].pointer = (char *)ADDRESS + 16 * i;
  values[PURR__STAGE_columns].integer = 128;
  values[PURR__STAGE_limit].real = 7.0;
  ASSERT_OK(purr__stage_launch(stages, PURR__STAGE_ACTIVATION, values, NULL, NULL, &err));
  CU_ASSERT_EQUAL(fake->num_launches, 1);
  purr__stages_free(context, stages);
  end();
  test_folder_remove(&folder);
}

/* What purr_mxfp8_quantize_on gives is what the library's own kernel gets, after the same checks. */
static void quantising(void) {
  enum { SLICES = 3, ROWS = 300, COLUMNS = 288, NUM = SLICES * ROWS * COLUMNS };
  begin(DATA "stages");
  purr_plan_t plan = {.object = {.kind = PURR__PLAN, .context = context}};
  void *memory = NULL;
  REQUIRE_OK(find(GOOD QUANTISE, &plan.stages));
  REQUIRE_OK(purr__device_get(context, 0, &plan.device, &err));
  REQUIRE_OK(purr__device_allocate(plan.device, 4 * NUM, "a test", &memory, &err));
  purr_scales_t scales = {.struct_size = sizeof scales, .data = (char *)memory + 3 * NUM};
  purr_tensor_t source = {.struct_size = sizeof source,
                          .dtype = PURR_DTYPE_BF16,
                          .num_dims = 3,
                          .data = memory,
                          .shape = {SLICES, ROWS, COLUMNS}};
  purr_tensor_t destination = source;
  destination.dtype = PURR_DTYPE_E4M3;
  destination.data = (char *)memory + 2 * NUM;
  destination.scales = &scales;
  for (scales.layout = 0; scales.layout < 2; scales.layout++) {
    const int bytes[] = {8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 4, 4, 8, 8, 0};
    memcpy(fake->param_bytes, bytes, sizeof bytes);
    ASSERT_OK(purr_mxfp8_quantize_on(&plan, &source, PURR_SCALE_RULE_FLOOR, &destination, NULL, &err));
    memset(fake->param_bytes, 0, sizeof fake->param_bytes);
    CU_ASSERT_EQUAL_FATAL(fake->num_launches, scales.layout + 1);
    CU_ASSERT_STRING_EQUAL(fake->launches[scales.layout].kernel, "quantise_kernel");
    CU_ASSERT_EQUAL(fake->launches[scales.layout].grid[0], 8 * 132);
    const bool is_tiled = scales.layout == 1; /* 3 x 3 tiles a slice */
    const int64_t expected[] = {(intptr_t)source.data,
                                COLUMNS,
                                ROWS * COLUMNS,
                                (intptr_t)destination.data,
                                COLUMNS,
                                ROWS * COLUMNS,
                                (intptr_t)scales.data,
                                is_tiled ? 9 * 512 : ROWS * COLUMNS / 32,
                                is_tiled ? 3 * 512 : COLUMNS / 32,
                                is_tiled ? 0 : 1,
                                SLICES,
                                ROWS,
                                COLUMNS,
                                is_tiled ? 384 : ROWS,
                                is_tiled ? 12 : COLUMNS / 32};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
      CU_ASSERT_EQUAL(memcmp(fake->params[i], &expected[i], sizeof expected[i]), 0);
    const int32_t numbers[] = {scales.layout, PURR_SCALE_RULE_FLOOR};
    for (int i = 0; i < 2; i++) CU_ASSERT_EQUAL(memcmp(fake->params[15 + i], &numbers[i], sizeof numbers[i]), 0);
  }
  scales.layout = 0;
  source.dtype = PURR_DTYPE_FP32;
  ASSERT_STATUS(PURR_STATUS_UNSUPPORTED, purr_mxfp8_quantize_on(&plan, &source, 0, &destination, NULL, &err));
  CU_ASSERT(says("a device quantises BF16"));
  source.dtype = PURR_DTYPE_BF16;
  CU_ASSERT_EQUAL(fake->num_launches, 2);
  /* The stride of the one slice may be anything, whatever the kernel was promised. */
  const int64_t strides[] = {3, COLUMNS, 1};
  source.shape[0] = destination.shape[0] = 1;
  memcpy(source.stride, strides, sizeof strides);
  ASSERT_OK(purr_mxfp8_quantize_on(&plan, &source, 0, &destination, NULL, &err));
  CU_ASSERT_EQUAL(fake->num_launches, 3);
  purr__device_release(plan.device, memory, 4 * NUM);
  purr__stages_free(context, plan.stages);
  end();
}

int main(void) {
  return purr_test_main(
      "stages", (purr_test_t[]){{"a config names kernels", a_config_names_kernels},
                                {"no other backend serves them", no_other_backend_serves_them},
                                {"kernels that do not do", kernels_that_do_not_do},
                                {"stages are launched", stages_are_launched},
                                {"scratch memory", scratch_memory},
                                {"constants may differ between variants", constants_may_differ_between_variants},
                                {"quantising", quantising},
                                {0}});
}
