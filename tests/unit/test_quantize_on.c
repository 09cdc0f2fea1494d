/* purr_mxfp8_quantize_on without a GPU: the package of this build on fake devices of every architecture, what is
 * launched, and what is refused. Skipped in a build without GPU kernels. (Results: tests/gpu/test_quantize_mxfp8.c.) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/layout.h"
#include "package/package.h"
#include "plan/plan.h"
#include "support/fake_cuda.h"
#include "support/main.h"

static purr_error_t err;
static fake_cuda_t *fake;
static purr_context_t *context;
static purr_plan_t *plan;

/* A plan for a fake device of this compute capability, with the package that PURR_PACKAGE_PATH names. */
static purr_status_t open_plan(int32_t backend, int cc) {
  const purr_layer_desc_t layer = {.struct_size = sizeof layer,
                                   .hidden_size = 8,
                                   .intermediate_size = 8,
                                   .num_experts = 1,
                                   .top_k = 1,
                                   .backend = backend};
  return fake_cuda_plan(&layer, NULL, cc, &fake, &context, &plan, &err);
}

static void close_plan(void) {
  purr_plan_destroy(plan);
  purr_context_destroy(context);
}

/* ---- tensors: [3, 300, 288] in one piece of fake device memory ---- */

enum { SLICES = 3, ROWS = 300, COLUMNS = 288, NUM = SLICES * ROWS * COLUMNS, MEMORY_BYTES = 4 * NUM };

static char *memory;
static purr_scales_t scales;
static purr_tensor_t source, destination;

static void make_tensors(int32_t layout) {
  scales = (purr_scales_t){.struct_size = sizeof scales, .layout = layout, .data = memory + 3 * NUM};
  source = (purr_tensor_t){.struct_size = sizeof source,
                           .dtype = PURR_DTYPE_BF16,
                           .num_dims = 3,
                           .data = memory,
                           .shape = {SLICES, ROWS, COLUMNS}};
  destination = source;
  destination.dtype = PURR_DTYPE_E4M3;
  destination.data = memory + 2 * NUM;
  destination.scales = &scales;
}

static purr_status_t quantize(void *stream) {
  return purr_mxfp8_quantize_on(plan, &source, PURR_SCALE_RULE_RCEIL, &destination, stream, &err);
}

/* ---- tests ---- */

static void an_image_for_every_architecture(void) {
  static const int ccs[] = {80, 86, 89, 90, 100, 103, 120};
  for (size_t i = 0; i < sizeof ccs / sizeof ccs[0]; i++) {
    const purr_status_t status = open_plan(PURR_BACKEND_STAGED, ccs[i]);
    if (status != PURR_STATUS_OK && ccs[i] >= 100) { /* an older nvcc does not know it, and the build says so */
      fprintf(stderr, "  left out: %s\n", err.message);
      close_plan();
      continue;
    }
    CU_ASSERT_EQUAL_FATAL(status, PURR_STATUS_OK);
    const purr__kernel_need_t need = {.role = "quantize_mxfp8",
                                      .params_version = PURR__KERNEL_LAYOUT,
                                      .params_bytes = sizeof(purr__quantize_mxfp8_params_t)};
    const purr__kernels_t *kernels;
    const purr__kernel_t *kernel;
    purr__package_image_t image;
    int offset, bytes;
    REQUIRE_OK(purr__kernels_get(plan->device, &kernels, &err));
    REQUIRE_OK(purr__kernels_find(kernels, &need, &kernel, &err));
    CU_ASSERT_EQUAL(kernel->arch.number, ccs[i]);
    REQUIRE_OK(purr__package_read_image(kernel->package, kernel->entry->image_idx, &image, &err));
    const purr__cubin_kernel_t *found = purr__cubin_find(&image.cubin, "purr_quantize_mxfp8");
    CU_ASSERT_PTR_NOT_NULL_FATAL(found);
    CU_ASSERT_TRUE(purr__cubin_param(&image.cubin, found, 0, &offset, &bytes));
    CU_ASSERT_EQUAL(offset, 0);
    CU_ASSERT_EQUAL(bytes, (int)sizeof(purr__quantize_mxfp8_params_t));
    CU_ASSERT_FALSE(purr__cubin_param(&image.cubin, found, 1, &offset, &bytes));
    CU_ASSERT_EQUAL(found->exact_threads[0], PURR__QUANTIZE_GROUP_ROWS * 32);
    CU_ASSERT_EQUAL(found->stack_bytes, 0);
    CU_ASSERT_EQUAL(found->static_shared_bytes, 0);
    CU_ASSERT(found->registers <= 42);
    purr__package_free_image(kernel->package, &image);
    close_plan();
  }
}

/* A config may pin the package: then no other one serves, not even by falling back to the host. */
static void a_pinned_package(void) {
  static const char shape[] =
      "hidden_size: 8\nintermediate_size: 8\nnum_experts: 1\ntop_k: 1\nbackend: auto\npackage_digest: ";
  REQUIRE_OK(open_plan(PURR_BACKEND_STAGED, 90));
  char right[PURR__SHA256_TEXT_BYTES], text[256];
  purr__sha256_print(plan->kernels.gate_up->package->manifest.sha256, right);
  for (int i = 0; i < 2; i++) {
    char pin[PURR__SHA256_TEXT_BYTES];
    memcpy(pin, right, sizeof pin);
    if (i == 1) pin[63] = pin[63] == '0' ? '1' : '0';
    snprintf(text, sizeof text, "%s%s\n", shape, pin);
    purr_config_t *config = NULL;
    purr_plan_t *pinned = NULL;
    REQUIRE_OK(purr_config_parse(context, text, strlen(text), NULL, &config, &err));
    ASSERT_STATUS(i == 0 ? PURR_STATUS_OK : PURR_STATUS_INCOMPATIBLE_BINARY,
                  purr_plan_create(context, config, NULL, &pinned, &err));
    if (i == 1) CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "pins package_digest"));
    if (i == 0) CU_ASSERT_EQUAL(pinned->backend, PURR_BACKEND_STAGED);
    purr_plan_destroy(pinned);
    purr_config_destroy(config);
  }
  close_plan();
}

static void one_launch_and_nothing_else(void) {
  REQUIRE_OK(open_plan(PURR_BACKEND_STAGED, 90));
  void *block, *stream;
  REQUIRE_OK(purr_memory_allocate(plan, MEMORY_BYTES, &block, &err));
  REQUIRE_OK(purr_stream_create(plan, &stream, &err));
  memory = block;
  for (int32_t layout = 0; layout < 2; layout++) {
    make_tensors(layout);
    const int num_launches = fake->num_launches, num_allocations = fake->num_allocations, num_pushed = fake->num_pushed;
    ASSERT_OK(quantize(stream));
    CU_ASSERT_EQUAL_FATAL(fake->num_launches, num_launches + 1);
    CU_ASSERT_EQUAL(fake->num_allocations, num_allocations);
    CU_ASSERT_EQUAL(fake->num_pushed, num_pushed);
    const fake_launch_t *launch = &fake->launches[num_launches];
    CU_ASSERT_STRING_EQUAL(launch->kernel, "purr_quantize_mxfp8");
    CU_ASSERT_EQUAL(launch->grid[0], 2); /* 288 columns; with tiles 384 */
    CU_ASSERT_EQUAL(launch->grid[1], 16);
    CU_ASSERT_EQUAL(launch->grid[2], SLICES);
    CU_ASSERT_EQUAL(launch->block[0], 256);
    CU_ASSERT_PTR_EQUAL(launch->stream, stream);
    source.shape[1] = destination.shape[1] = 0;
    ASSERT_OK(quantize(stream)); /* nothing to do */
    CU_ASSERT_EQUAL(fake->num_launches, num_launches + 1);
  }
  purr_stream_destroy(plan, stream);
  purr_memory_release(plan, block, MEMORY_BYTES);
  close_plan();
}

/* Any number of rows: groups come in sixteens, up to what a grid has. */
static void row_groups(void) {
  static const int64_t expected[][2] = {{1, 16},          {1024, 16},       {1025, 32},       {16384, 256},
                                        {4192256, 65504}, {4192257, 65520}, {1 << 30, 65520}, {INT64_MAX / 2, 65520}};
  for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
    CU_ASSERT_EQUAL(purr__quantize_row_groups(expected[i][0]), expected[i][1]);
}

static void what_a_device_does_not_take(void) {
  REQUIRE_OK(open_plan(PURR_BACKEND_STAGED, 90));
  void *block;
  REQUIRE_OK(purr_memory_allocate(plan, MEMORY_BYTES, &block, &err));
  memory = block;
  const int num_launches = fake->num_launches;
#define REFUSED(status, text, ...)                     \
  do {                                                 \
    make_tensors(0);                                   \
    __VA_ARGS__;                                       \
    ASSERT_STATUS(status, quantize(NULL));             \
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, text)); \
  } while (0)
  static uint8_t host[NUM * 2];
  void *pointers[SLICES] = {memory, memory, memory};
  REFUSED(PURR_STATUS_UNSUPPORTED, "granularity 32x32 along rows", scales.granularity = PURR_GRANULARITY_32X32);
  REFUSED(PURR_STATUS_UNSUPPORTED, "1x32 along columns", scales.axis = PURR_SCALE_ALONG_COLUMN);
  REFUSED(PURR_STATUS_UNSUPPORTED, "source is FP32", source.dtype = PURR_DTYPE_FP32);
  REFUSED(PURR_STATUS_UNSUPPORTED, "rows of 12 elements",
          (source.shape[2] = destination.shape[2] = 12, source.stride[2] = destination.stride[2] = 1,
           source.stride[1] = destination.stride[1] = 16, source.stride[0] = destination.stride[0] = 16 * ROWS));
  REFUSED(PURR_STATUS_UNSUPPORTED, "pointer array", (source.pointers = pointers, source.data = NULL));
  REFUSED(PURR_STATUS_INVALID_ARGUMENT, "multiple of 16", source.data = memory + 8);
  REFUSED(PURR_STATUS_INVALID_ARGUMENT, "multiple of 8", destination.data = memory + 2 * NUM + 4);
  REFUSED(PURR_STATUS_INVALID_ARGUMENT, "source is at", source.data = host);
  REFUSED(PURR_STATUS_INVALID_ARGUMENT, "destination is at", destination.data = host);
  REFUSED(PURR_STATUS_INVALID_ARGUMENT, "destination.scales is at", scales.data = host);
  REFUSED(PURR_STATUS_BUFFER_TOO_SMALL, "destination.scales", scales.data_bytes = 100);
  REFUSED(PURR_STATUS_INVALID_ARGUMENT, "no scales", destination.scales = NULL);
  CU_ASSERT_EQUAL(fake->num_launches, num_launches);
  CU_ASSERT_EQUAL(fake->num_pushed, 0);
  purr_memory_release(plan, block, MEMORY_BYTES);
  close_plan();
}

/* A plan of the host backend: the host's quantiser, with all that it takes. */
static void on_the_host(void) {
  REQUIRE_OK(open_plan(PURR_BACKEND_HOST, 90));
  memory = aligned_alloc(64, MEMORY_BYTES);
  char *expected = aligned_alloc(64, MEMORY_BYTES);
  CU_ASSERT_FATAL(memory != NULL && expected != NULL);
  for (int i = 0; i < MEMORY_BYTES; i++) memory[i] = (char)((unsigned)i * 7919u >> 3);
  memcpy(expected, memory, MEMORY_BYTES);
  make_tensors(1);
  scales.granularity = PURR_GRANULARITY_32X32;
  ASSERT_OK(quantize(NULL));
  char *const own = memory;
  memory = expected;
  make_tensors(1);
  scales.granularity = PURR_GRANULARITY_32X32;
  ASSERT_OK(purr_mxfp8_quantize(context, &source, PURR_SCALE_RULE_RCEIL, &destination, &err));
  CU_ASSERT_EQUAL(memcmp(own, expected, MEMORY_BYTES), 0);
  free(own);
  free(expected);
  close_plan();
}

int main(void) {
  return fake_cuda_test_main("quantising on a device",
                             (purr_test_t[]){{"an image for every architecture", an_image_for_every_architecture},
                                             {"a pinned package", a_pinned_package},
                                             {"one launch and nothing else", one_launch_and_nothing_else},
                                             {"row groups", row_groups},
                                             {"what a device does not take", what_a_device_does_not_take},
                                             {"on the host", on_the_host},
                                             {0}});
}
