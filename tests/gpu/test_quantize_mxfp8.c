/* The MXFP8 quantiser on a GPU: every byte as the host writes it, for all BF16 patterns, special blocks, layouts,
 * strides and odd shapes. Both sides start from the same poisoned blocks with canaries and gaps, and the whole blocks
 * are compared, so that a byte written where none should be is seen. Prints the bandwidth unless --quick is given; with
 * --triton the quantiser is that of kernels/triton/stages.py. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "plan/plan.h"
#include "support/main.h"

static purr_context_t *context;
static purr_plan_t *plan;
static purr_error_t err;
static bool is_quick;

/* ---- data ---- */

static uint64_t random_state = 0x9E3779B97F4A7C15u;
static uint32_t next_random(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (uint32_t)(random_state >> 32);
}

typedef uint16_t (*fill_fn)(int64_t index);

/* Any magnitude, one neighbourhood a block, with some zeros: the first element of a block sets its exponent. */
static uint16_t any_magnitude(int64_t index) {
  static uint32_t exponent;
  const uint32_t bits = next_random();
  if (index % 32 == 0) exponent = bits >> 8 & 0xFF;
  const uint32_t below = bits >> 16 & 15;
  if (bits % 37 == 0) return (uint16_t)(bits & 0x8000u);
  return (uint16_t)((bits & 0x807F) | (exponent > below ? (exponent - below) % 255 : 0) << 7);
}

/* What activations look like. */
static uint16_t like_activations(int64_t index) {
  (void)index;
  const uint32_t bits = next_random();
  return (uint16_t)((bits & 0x807F) | (127 - (uint32_t)__builtin_ctz(bits >> 8 | 1u << 20)) << 7);
}

static uint16_t every_pattern(int64_t index) { return (uint16_t)index; }
static uint16_t every_pattern_apart(int64_t index) { return (uint16_t)(index * 2053); }

/* For each exponent, blocks led by a number with it, filled with all mantissas and signs of the 20 exponents below:
 * every tie, denormal element and underflow at every scale. */
enum { BELOW = 20, BLOCKS_PER_EXPONENT = (BELOW * 256 + 30) / 31 };
static uint16_t every_rounding(int64_t index) {
  const int64_t block = index / 32, place = index % 32, exponent = block / BLOCKS_PER_EXPONENT % 255;
  if (place == 0) return (uint16_t)(exponent << 7 | block % 128);
  const int64_t which = block % BLOCKS_PER_EXPONENT * 31 + place - 1;
  const int64_t own = exponent - which / 256 % BELOW;
  return (uint16_t)((which & 128) << 8 | (own > 0 ? own : 0) << 7 | (which & 127));
}

/* ---- one case: both sides from the same start ---- */

enum { CANARY = 512, POISON = 0xA5, BLOCK_MAJOR = 2 };

typedef struct shape {
  int64_t num_slices, num_rows, num_columns, source_gap, elements_gap;
  int32_t layout; /* PURR_SCALE_LAYOUT_*, or BLOCK_MAJOR: plain, [blocks, rows] */
} shape_t;

/* What is written: elements or scales, here and on the device. */
typedef struct block {
  uint8_t *host, *back, *device;
  uint64_t bytes;
} block_t;

static block_t block_create(uint64_t bytes) {
  block_t b = {.bytes = bytes + 2 * CANARY};
  void *device;
  b.host = malloc(b.bytes);
  b.back = malloc(b.bytes);
  if (b.host == NULL || b.back == NULL || purr_memory_allocate(plan, b.bytes, &device, NULL) != PURR_STATUS_OK) abort();
  b.device = device;
  memset(b.host, POISON, b.bytes);
  if (purr_memory_copy(plan, b.device, b.host, b.bytes, NULL) != PURR_STATUS_OK) abort();
  return b;
}

static void block_free(block_t *b) {
  free(b->host);
  free(b->back);
  purr_memory_release(plan, b->device, b->bytes);
}

/* Compares the block as the device left it with the host's; false with the first difference printed. */
static bool block_is_equal(block_t *b, const char *what, const shape_t *shape, int32_t rule) {
  if (purr_memory_copy(plan, b->back, b->device, b->bytes, NULL) != PURR_STATUS_OK) abort();
  for (uint64_t i = 0; i < b->bytes; i++)
    if (b->back[i] != b->host[i]) {
      fprintf(stderr, "%s: byte %lld is %02x, on the host %02x ([%lld, %lld, %lld], layout %d, rule %d)\n", what,
              (long long)i - CANARY, b->back[i], b->host[i], (long long)shape->num_slices, (long long)shape->num_rows,
              (long long)shape->num_columns, shape->layout, rule);
      return false;
    }
  return true;
}

static purr_tensor_t tensor_of(const shape_t *shape, int32_t dtype, int64_t gap, void *data) {
  purr_tensor_t tensor = {.struct_size = sizeof tensor, .dtype = dtype, .num_dims = 3, .data = data};
  const int64_t row_stride = shape->num_columns + gap;
  const int64_t dims[] = {shape->num_slices, shape->num_rows, shape->num_columns};
  const int64_t strides[] = {shape->num_rows * row_stride, row_stride, 1};
  memcpy(tensor.shape, dims, sizeof dims);
  memcpy(tensor.stride, strides, sizeof strides);
  return tensor;
}

static bool quantizes_as_the_host(const shape_t *shape, int32_t rule, fill_fn fill) {
  const int64_t source_elements = shape->num_slices * shape->num_rows * (shape->num_columns + shape->source_gap);
  const uint64_t source_bytes = (uint64_t)source_elements * 2;
  uint16_t *source = malloc(source_bytes);
  void *device_source;
  if (source == NULL || purr_memory_allocate(plan, source_bytes, &device_source, NULL) != PURR_STATUS_OK) abort();
  memset(source, 0xFF, source_bytes); /* NaN in the gaps */
  const purr_tensor_t src = tensor_of(shape, PURR_DTYPE_BF16, shape->source_gap, source);
  int64_t index = 0;
  for (int64_t s = 0; s < shape->num_slices; s++)
    for (int64_t r = 0; r < shape->num_rows; r++)
      for (int64_t c = 0; c < shape->num_columns; c++)
        source[s * src.stride[0] + r * src.stride[1] + c] = fill(index++);
  if (purr_memory_copy(plan, device_source, source, source_bytes, NULL) != PURR_STATUS_OK) abort();

  purr_scales_t scales = PURR_SCALES_INIT;
  scales.layout = shape->layout == BLOCK_MAJOR ? PURR_SCALE_LAYOUT_PLAIN : shape->layout;
  if (shape->layout == BLOCK_MAJOR) {
    scales.outer_stride = 1;
    scales.block_stride = shape->num_rows;
  }
  purr_tensor_t dst = tensor_of(shape, PURR_DTYPE_E4M3, shape->elements_gap, NULL), device_src = src;
  dst.scales = &scales;
  purr_scales_info_t info = {.struct_size = sizeof info};
  if (purr_scales_query(context, &dst, &info, NULL) != PURR_STATUS_OK) abort();
  block_t elements = block_create((uint64_t)(shape->num_slices * dst.stride[0])), bytes = block_create(info.num_bytes);

  dst.data = elements.host + CANARY;
  scales.data = bytes.host + CANARY;
  purr_status_t status = purr_mxfp8_quantize(context, &src, rule, &dst, &err);
  device_src.data = device_source;
  dst.data = elements.device + CANARY;
  scales.data = bytes.device + CANARY;
  if (status == PURR_STATUS_OK) status = purr_mxfp8_quantize_on(plan, &device_src, rule, &dst, NULL, &err);
  if (status != PURR_STATUS_OK) fprintf(stderr, "%s: %s\n", purr_status_name(status), err.message);
  const bool is_equal = status == PURR_STATUS_OK && block_is_equal(&elements, "elements", shape, rule) &&
                        block_is_equal(&bytes, "scales", shape, rule);
  block_free(&elements);
  block_free(&bytes);
  purr_memory_release(plan, device_source, source_bytes);
  free(source);
  return is_equal;
}

static void check_shape(shape_t shape, fill_fn fill) {
  for (int32_t rule = 0; rule < 2; rule++)
    for (shape.layout = 0; shape.layout < 3; shape.layout++) CU_ASSERT_TRUE(quantizes_as_the_host(&shape, rule, fill));
}

/* ---- tests ---- */

static void all_patterns(void) {
  check_shape((shape_t){1, 64, 1024, 0, 0, 0}, every_pattern);
  check_shape((shape_t){1, 64, 1024, 0, 0, 0}, every_pattern_apart);
}

static void all_roundings(void) { check_shape((shape_t){1, 255, BLOCKS_PER_EXPONENT * 32, 0, 0, 0}, every_rounding); }

static void shapes(void) {
  static const int64_t rows[] = {1, 3, 8, 31, 128, 129, 1025},
                       columns[] = {8, 24, 32, 40, 128, 136, 256, 264, 288, 1408};
  for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
    for (size_t c = 0; c < sizeof columns / sizeof columns[0]; c++)
      if (!is_quick || (r + c) % 3 == 0)
        check_shape(
            (shape_t){1 + (int64_t)(r + c) % 3, rows[r], columns[c], (int64_t)(r % 3) * 8, (int64_t)(c % 3) * 8, 0},
            any_magnitude);
  check_shape((shape_t){2, 0, 64, 0, 0, 0}, any_magnitude);
}

/* More rows than a launch has row groups for. */
static void many_rows(void) {
  if (is_quick) return;
  check_shape((shape_t){1, 600001, 8, 0, 0, 0}, any_magnitude);
}

static void activations(void) { check_shape((shape_t){1, is_quick ? 40 : 300, 7168, 0, 0, 0}, like_activations); }

/* Blocks with known bytes (B13, B19): a block is `first` and 31 times `rest`, at each place in turn. */
static void special_blocks(void) {
  static const struct {
    uint16_t first, rest;
    int32_t rule;
    uint8_t scale, first_element, rest_element;
  } cases[] = {
      {0x0080, 0x0080, 0, 0, 0x40, 0x40},                                         /* 2^-126 */
      {0x0080, 0x0080, 1, 0, 0x40, 0x40},   {0x0001, 0x0001, 0, 0, 0x08, 0x08},   /* 2^-133 */
      {0x0001, 0x0001, 1, 0, 0x08, 0x08},   {0x3F80, 0x0001, 0, 119, 0x78, 0x00}, /* 1.0 and 2^-133 */
      {0x3F80, 0x8001, 1, 119, 0x78, 0x80}, {0x0000, 0x0000, 0, 0, 0x00, 0x00},
      {0x8000, 0x8000, 0, 0, 0x00, 0x00},   /* -0 */
      {0x3F80, 0x8000, 0, 119, 0x78, 0x80}, /* 1.0 and -0 */
      {0x43F0, 0x3F80, 1, 127, 0x7E, 0x38}, /* 480 saturates under floor */
      {0x43F0, 0x3F80, 0, 128, 0x77, 0x30}, /* and is 240 under rceil */
      {0x43E0, 0x3F80, 0, 127, 0x7E, 0x38}, /* 448 */
      {0x43E1, 0x3F80, 0, 128, 0x76, 0x30}, /* 450 */
      {0xC3FF, 0x3F80, 1, 127, 0xFE, 0x38}, /* -510 */
      {0x7F7F, 0x3F80, 0, 247, 0x78, 0x00}, /* the largest BF16, just below 2^128 */
      {0x7F7F, 0xBF80, 1, 246, 0x7E, 0x80}, {0x7F80, 0x3F80, 0, 255, 0x7F, 0x7F}, /* Inf */
      {0xFF80, 0x0000, 1, 255, 0x7F, 0x7F}, {0x7FC0, 0x3F80, 0, 255, 0x7F, 0x7F}, /* NaN */
      {0xFF81, 0x0000, 1, 255, 0x7F, 0x7F},
  };
  enum { NUM_CASES = sizeof cases / sizeof cases[0], COLUMNS = 32 };
  uint16_t source[32][COLUMNS];
  uint8_t elements[32][COLUMNS], scales_back[32];
  void *memory;
  REQUIRE_OK(purr_memory_allocate(plan, sizeof source + sizeof elements + 32, &memory, &err));
  uint8_t *device = memory;
  const purr_scales_t scales = {.struct_size = sizeof scales, .data = device + sizeof source + sizeof elements};
  const shape_t shape = {1, 32, COLUMNS, 0, 0, 0};
  const purr_tensor_t src = tensor_of(&shape, PURR_DTYPE_BF16, 0, device);
  purr_tensor_t dst = tensor_of(&shape, PURR_DTYPE_E4M3, 0, device + sizeof source);
  dst.scales = &scales;
  for (int i = 0; i < NUM_CASES; i++) {
    for (int r = 0; r < 32; r++)
      for (int c = 0; c < COLUMNS; c++) source[r][c] = c == r ? cases[i].first : cases[i].rest;
    ASSERT_OK(purr_memory_copy(plan, device, source, sizeof source, &err));
    ASSERT_OK(purr_mxfp8_quantize_on(plan, &src, cases[i].rule, &dst, NULL, &err));
    ASSERT_OK(purr_memory_copy(plan, elements, dst.data, sizeof elements, &err));
    ASSERT_OK(purr_memory_copy(plan, scales_back, scales.data, sizeof scales_back, &err));
    int num_wrong = 0;
    for (int r = 0; r < 32; r++) {
      num_wrong += scales_back[r] != cases[i].scale;
      for (int c = 0; c < COLUMNS; c++)
        num_wrong += elements[r][c] != (c == r ? cases[i].first_element : cases[i].rest_element);
    }
    if (num_wrong > 0)
      fprintf(stderr, "case %d: scale %d, elements %02x and %02x\n", i, scales_back[0], elements[0][0], elements[0][1]);
    CU_ASSERT_EQUAL(num_wrong, 0);
  }
  purr_memory_release(plan, memory, sizeof source + sizeof elements + 32);
}

/* Captured once, replayed with other data in place. */
static void graph_replay(void) {
  enum { ROWS = 40, COLUMNS = 288, NUM = ROWS * COLUMNS, BYTES = NUM + ROWS * 9 };
  CUresult (*begin_capture)(CUstream, int), (*end_capture)(CUstream, void **);
  CUresult (*instantiate)(void **, void *, unsigned long long), (*launch)(void *, CUstream);
  const struct {
    const char *name;
    void *function;
  } functions[] = {{"cuStreamBeginCapture_v2", &begin_capture},
                   {"cuStreamEndCapture", &end_capture},
                   {"cuGraphInstantiateWithFlags", &instantiate},
                   {"cuGraphLaunch", &launch}};
  for (size_t i = 0; i < 4; i++) {
    void *address = dlsym(plan->device->driver->library, functions[i].name);
    CU_ASSERT_PTR_NOT_NULL_FATAL(address);
    memcpy(functions[i].function, &address, sizeof address);
  }
  static uint16_t source[NUM];
  static uint8_t expected[BYTES], back[BYTES];
  void *memory, *stream, *graph, *runnable;
  REQUIRE_OK(purr_memory_allocate(plan, sizeof source + BYTES, &memory, &err));
  REQUIRE_OK(purr_stream_create(plan, &stream, &err));
  const shape_t shape = {1, ROWS, COLUMNS, 0, 0, 0};
  uint8_t *out = (uint8_t *)memory + sizeof source;
  purr_scales_t scales = {.struct_size = sizeof scales, .data = out + NUM};
  purr_tensor_t src = tensor_of(&shape, PURR_DTYPE_BF16, 0, memory), dst = tensor_of(&shape, PURR_DTYPE_E4M3, 0, out);
  dst.scales = &scales;
  REQUIRE_OK(purr__device_enter(plan->device, &err));
  CU_ASSERT_EQUAL(begin_capture(stream, 0), 0);
  ASSERT_OK(purr_mxfp8_quantize_on(plan, &src, 0, &dst, stream, &err));
  CU_ASSERT_EQUAL(end_capture(stream, &graph), 0);
  CU_ASSERT_EQUAL_FATAL(instantiate(&runnable, graph, 0), 0);
  scales.data = expected + NUM;
  src.data = source;
  dst.data = expected;
  for (int step = 0; step < 3; step++) {
    for (int i = 0; i < NUM; i++) source[i] = any_magnitude(i);
    ASSERT_OK(purr_mxfp8_quantize(context, &src, 0, &dst, &err));
    ASSERT_OK(purr_memory_copy(plan, memory, source, sizeof source, &err));
    CU_ASSERT_EQUAL(launch(runnable, stream), 0);
    ASSERT_OK(purr_stream_synchronize(plan, stream, &err));
    ASSERT_OK(purr_memory_copy(plan, back, out, BYTES, &err));
    CU_ASSERT_EQUAL(memcmp(back, expected, BYTES), 0);
  }
  purr__device_leave(plan->device);
  purr_stream_destroy(plan, stream);
  purr_memory_release(plan, memory, sizeof source + BYTES);
}

static void host_memory_is_refused(void) {
  static uint16_t source[32];
  static uint8_t elements[32], scale[1];
  const purr_scales_t scales = {.struct_size = sizeof scales, .data = scale};
  const shape_t shape = {1, 1, 32, 0, 0, 0};
  const purr_tensor_t src = tensor_of(&shape, PURR_DTYPE_BF16, 0, source);
  purr_tensor_t dst = tensor_of(&shape, PURR_DTYPE_E4M3, 0, elements);
  dst.scales = &scales;
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_mxfp8_quantize_on(plan, &src, 0, &dst, NULL, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "source is at"));
}

/* ---- bandwidth ---- */

static void bandwidth(void) {
  if (is_quick) return;
  enum { REPEATS = 40 };
  static const int64_t sizes[][2] = {{16384, 7168}, {65536, 2048}, {49152, 1408}, {2048, 7168}};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
    for (int32_t layout = 0; layout < 2; layout++) {
      const shape_t shape = {1, sizes[i][0], sizes[i][1], 0, 0, layout};
      const uint64_t num = (uint64_t)(sizes[i][0] * sizes[i][1]);
      void *memory, *copy;
      REQUIRE_OK(purr_memory_allocate(plan, num * 4, &memory, &err));
      REQUIRE_OK(purr_memory_allocate(plan, num * 2, &copy, &err));
      REQUIRE_OK(purr__device_fill(plan->device, memory, 0x3C, num * 4, NULL, &err));
      purr_scales_t scales = {.struct_size = sizeof scales, .layout = layout, .data = (uint8_t *)memory + num * 3};
      const purr_tensor_t src = tensor_of(&shape, PURR_DTYPE_BF16, 0, memory);
      purr_tensor_t dst = tensor_of(&shape, PURR_DTYPE_E4M3, 0, (uint8_t *)memory + num * 2);
      dst.scales = &scales;
      double seconds[2];
      for (int is_copy = 0; is_copy < 2; is_copy++) {
        uint64_t begin_ns = 0;
        for (int n = -5; n < REPEATS; n++) {
          if (n == 0) {
            ASSERT_OK(purr_stream_synchronize(plan, NULL, &err));
            begin_ns = purr__now_ns();
          }
          ASSERT_OK(is_copy ? purr__device_copy(plan->device, copy, memory, num * 2, NULL, &err)
                            : purr_mxfp8_quantize_on(plan, &src, 0, &dst, NULL, &err));
        }
        ASSERT_OK(purr_stream_synchronize(plan, NULL, &err));
        seconds[is_copy] = (double)(purr__now_ns() - begin_ns) * 1e-9 / REPEATS;
      }
      const double rate = (double)num * (3 + 1 / 32.0) / seconds[0] * 1e-12,
                   copy_rate = (double)num * 4 / seconds[1] * 1e-12;
      printf("  [%lld, %lld] %s: %.1f us, %.2f TB/s, %.2f of 4.18; a copy of the source %.2f TB/s\n",
             (long long)sizes[i][0], (long long)sizes[i][1], layout == 0 ? "plain" : "tiles", seconds[0] * 1e6, rate,
             rate / 4.18, copy_rate);
      purr_memory_release(plan, memory, num * 4);
      purr_memory_release(plan, copy, num * 2);
    }
}

static purr_status_t open_plan(bool is_triton, purr_config_t **config) {
  static const char layer[] =
      "hidden_size: 8\nintermediate_size: 8\nnum_experts: 1\ntop_k: 1\nbackend: staged\n"
      "kernels:\n  quantise: quantise_kernel\n";
  const uint64_t bytes = is_triton ? sizeof layer - 1 : (uint64_t)(strstr(layer, "kernels:") - layer);
  purr_package_t *package = NULL;
  err = (purr_error_t)PURR_ERROR_INIT;
  purr_status_t status = purr_context_create(NULL, &context, &err);
  if (status == PURR_STATUS_OK && is_triton)
    status = purr_package_open(context, PURR_TEST_DATA "/triton/3.6.0/stages", &package, &err);
  if (status == PURR_STATUS_OK && is_triton) status = purr_context_add_package(context, package, &err);
  purr_package_destroy(package);
  if (status == PURR_STATUS_OK) status = purr_config_parse(context, layer, bytes, NULL, config, &err);
  return status == PURR_STATUS_OK ? purr_plan_create(context, *config, NULL, &plan, &err) : status;
}

int main(int argc, char **argv) {
  bool is_triton = false;
  for (int i = 1; i < argc; i++) {
    is_quick = is_quick || strcmp(argv[i], "--quick") == 0;
    is_triton = is_triton || strcmp(argv[i], "--triton") == 0;
  }
  purr_config_t *config = NULL;
  const purr_status_t status = open_plan(is_triton, &config);
  if (status != PURR_STATUS_OK) {
    fprintf(stderr, "skipped: %s\n", err.message);
    return status == PURR_STATUS_NO_DEVICE || status == PURR_STATUS_MISSING_KERNEL ||
                   status == PURR_STATUS_INCOMPATIBLE_BINARY
               ? PURR_TEST_SKIPPED
               : 1;
  }
  const int failures =
      purr_test_main("MXFP8 quantiser on a GPU", (purr_test_t[]){{"B13, B19: special blocks", special_blocks},
                                                                 {"all BF16 patterns", all_patterns},
                                                                 {"all roundings at every scale", all_roundings},
                                                                 {"B21: shapes, strides and padding", shapes},
                                                                 {"more rows than row groups", many_rows},
                                                                 {"activations", activations},
                                                                 {"graph replay", graph_replay},
                                                                 {"host memory is refused", host_memory_is_refused},
                                                                 {"bandwidth", bandwidth},
                                                                 {0}});
  purr_plan_destroy(plan);
  purr_config_destroy(config);
  purr_context_destroy(context);
  return failures;
}
