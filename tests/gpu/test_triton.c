/* Kernels that Triton compiled, on an H100 or H200: the arguments of every kind, clusters, warps with roles, scratch,
 * graphs, and two stages of a layer. tests/gpu/compare_triton.py holds the same kernels against Triton's own launches.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/raw_driver.h"
#include "support/main.h"

#define DATA PURR_TEST_DATA "/triton/"
#define PACKAGE DATA "3.6.0/package"

static purr_error_t err;
static purr_context_t *context;
static purr__device_t *device;

/* ---- memory ---- */

static void *to_device(const void *data, uint64_t bytes) {
  void *memory = NULL;
  CU_ASSERT_EQUAL_FATAL(purr__device_allocate(device, bytes, "a test", &memory, &err), PURR_STATUS_OK);
  if (data != NULL) CU_ASSERT_EQUAL(purr__device_copy(device, memory, data, bytes, NULL, &err), PURR_STATUS_OK);
  if (data == NULL) CU_ASSERT_EQUAL(purr__device_fill(device, memory, 0xFF, bytes, NULL, &err), PURR_STATUS_OK);
  CU_ASSERT_EQUAL(purr__device_synchronize(device, NULL, &err), PURR_STATUS_OK);
  return memory;
}

static void from_device(void *data, const void *memory, uint64_t bytes) {
  CU_ASSERT_EQUAL(purr__device_synchronize(device, NULL, &err), PURR_STATUS_OK);
  CU_ASSERT_EQUAL(purr__device_copy(device, data, memory, bytes, NULL, &err), PURR_STATUS_OK);
  CU_ASSERT_EQUAL(purr__device_synchronize(device, NULL, &err), PURR_STATUS_OK);
}

static purr_launcher_t *open_launcher(const char *path, const char *name, const char *signature) {
  purr_kernel_desc_t desc = PURR_KERNEL_DESC_INIT;
  purr_kernel_t *kernel = NULL;
  purr_launcher_t *launcher = NULL;
  desc.path = path;
  desc.name = name;
  desc.signature = signature;
  purr_status_t status = purr_kernel_open(context, &desc, &kernel, &err);
  if (status == PURR_STATUS_OK) status = purr_launcher_create(kernel, device->ordinal, &launcher, &err);
  if (status != PURR_STATUS_OK) fprintf(stderr, "%s: %s\n", path, err.message);
  CU_ASSERT_PTR_NOT_NULL_FATAL(launcher);
  purr_kernel_destroy(kernel);
  return launcher;
}

/* ---- the vector add ---- */

enum { N = 100000 };
static float x[N], y[N], sum[N];

/* out = x * scale + y by one fused multiply-add each, whatever else the kernel was compiled for. */
static void add_with(const char *path, const char *signature, int32_t n, int shift) {
  purr_launcher_t *launcher = open_launcher(path, "add_kernel", signature);
  char *device_x = to_device(x, sizeof x), *device_y = to_device(y, sizeof y), *out = to_device(NULL, sizeof sum);
  const int first = shift / (int)sizeof(float);
  ASSERT_OK(purr_launcher_set_pointer(launcher, 0, device_x + shift, &err));
  ASSERT_OK(purr_launcher_set_pointer(launcher, 1, device_y + shift, &err));
  ASSERT_OK(purr_launcher_set_pointer(launcher, 2, out + shift, &err));
  ASSERT_OK(purr_launcher_set_real(launcher, 3, 0.1, &err));
  ASSERT_OK(purr_launcher_set_integer(launcher, 4, n, &err));
  if (signature != NULL) ASSERT_OK(purr_launcher_set_grid(launcher, ((uint32_t)n + 1023) / 1024, 1, 1, &err));
  ASSERT_OK(purr_launcher_launch(launcher, NULL, &err));
  from_device(sum, out, sizeof sum);
  int num_wrong = 0;
  for (int i = 0; i < N; i++) {
    const bool is_written = i >= first && i < first + n;
    const float wanted = fmaf(x[i], 0.1f, y[i]);
    num_wrong += is_written ? memcmp(&sum[i], &wanted, sizeof wanted) != 0 : !isnan(sum[i]);
  }
  CU_ASSERT_EQUAL(num_wrong, 0);
  if (num_wrong > 0) fprintf(stderr, "%s: %d of %d are wrong\n", path, num_wrong, N);
  purr__device_release(device, device_x, sizeof x);
  purr__device_release(device, device_y, sizeof y);
  purr__device_release(device, out, sizeof sum);
  purr_launcher_destroy(launcher);
}

static void vector_adds(void) {
  static const char signature[] = "x=*fp32:16, y=*fp32:16, out=*fp32:16, scale=fp32, n=i32:16, BLOCK=1024";
  static const char *const folders[] = {"3.2.0/add", "3.2.0/add_cluster", "3.4.0/add",         "3.4.0/add_overlap",
                                        "3.6.0/add", "3.6.0/add_cluster", "3.6.0/add_overlap", "3.6.0/add_cooperative",
                                        "3.9.0/add", "3.9.0/add_cluster"};
  for (int i = 0; i < N; i++) x[i] = (float)sin(i), y[i] = (float)cos(3.0 * i);
  for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
    char path[256];
    snprintf(path, sizeof path, DATA "%s", folders[i]);
    add_with(path, signature, 65536, 0);
  }
  add_with(PACKAGE, NULL, 65536, 0); /* each another variant */
  add_with(PACKAGE, NULL, 65537, 0);
  add_with(PACKAGE, NULL, 65536, 4);
  add_with(PACKAGE, NULL, 1, 0);
}

static void a_graph_replays_a_launch(void) {
  purr_kernel_desc_t desc = PURR_KERNEL_DESC_INIT;
  purr_kernel_t *kernel = NULL; /* stays as long as the graph */
  purr_launcher_t *launcher = NULL;
  desc.path = PACKAGE;
  desc.name = "add_kernel";
  REQUIRE_OK(purr_kernel_open(context, &desc, &kernel, &err));
  REQUIRE_OK(purr_launcher_create(kernel, device->ordinal, &launcher, &err));
  float *device_x = to_device(x, sizeof x), *device_y = to_device(y, sizeof y), *out = to_device(NULL, sizeof sum);
  const purr_plan_t only_device = {.device = device};
  const raw_driver_t raw = raw_driver_of(&only_device);
  CUstream stream = NULL;
  void *graph = NULL, *exec = NULL;
  const float *pointers[] = {device_x, device_y, out};
  for (int i = 0; i < 3; i++) ASSERT_OK(purr_launcher_set_pointer(launcher, i, pointers[i], &err));
  ASSERT_OK(purr_launcher_set_real(launcher, 3, 0.1, &err));
  ASSERT_OK(purr_launcher_set_integer(launcher, 4, N, &err));
  ASSERT_OK(purr__device_enter(device, &err));
  CU_ASSERT_EQUAL_FATAL(device->driver->cuda.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), 0);
  CU_ASSERT_EQUAL_FATAL(raw.begin_capture(stream, 0), 0);
  ASSERT_OK(purr_launcher_launch(launcher, stream, &err));
  CU_ASSERT_EQUAL_FATAL(raw.end_capture(stream, &graph), 0);
  CU_ASSERT_EQUAL_FATAL(raw.instantiate(&exec, graph, 0), 0);
  purr_launcher_destroy(launcher); /* the graph has its own copy of the arguments */
  for (int round = 0; round < 3; round++) {
    ASSERT_OK(purr__device_fill(device, out, 0xFF, sizeof sum, stream, &err));
    CU_ASSERT_EQUAL(raw.launch(exec, stream), 0);
    ASSERT_OK(purr__device_synchronize(device, stream, &err));
    from_device(sum, out, sizeof sum);
    int num_wrong = 0;
    for (int i = 0; i < N; i++) num_wrong += sum[i] != fmaf(x[i], 0.1f, y[i]);
    CU_ASSERT_EQUAL(num_wrong, 0);
  }
  raw.destroy_exec(exec);
  raw.destroy_graph(graph);
  device->driver->cuda.cuStreamDestroy(stream);
  purr__device_leave(device);
  purr_kernel_destroy(kernel);
  purr__device_release(device, device_x, sizeof x);
  purr__device_release(device, device_y, sizeof y);
  purr__device_release(device, out, sizeof sum);
}

/* ---- descriptors, warps with roles ---- */

static uint16_t fp16_of_small(int value) { /* -8 .. 8 */
  static const uint16_t table[] = {0, 0x3C00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700, 0x4800};
  return (uint16_t)(table[abs(value)] | (value < 0 ? 0x8000 : 0));
}

static float fp32_of_fp16(uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  const float magnitude =
      exponent == 0 ? ldexpf((float)fraction, -24) : ldexpf((float)(1024 + fraction), exponent - 25);
  return half & 0x8000 ? -magnitude : magnitude;
}

enum { M = 200, NN = 136, K = 328, STRIDE = 336 };

/* Whole numbers, so that every order of the sums gives the same bits. */
static void product_with(const char *path, const char *name, const char *signature) {
  static uint16_t a[M * STRIDE], b[NN * STRIDE], c[M * NN];
  purr_launcher_t *launcher = open_launcher(path, name, signature);
  for (int i = 0; i < M * STRIDE; i++) a[i] = fp16_of_small(i * 7 % 5 - 2);
  for (int i = 0; i < NN * STRIDE; i++) b[i] = fp16_of_small(i * 11 % 3 - 1);
  void *device_a = to_device(a, sizeof a), *device_b = to_device(b, sizeof b), *device_c = to_device(NULL, sizeof c);
  const purr_tensor_t tensors[] = {
      {sizeof(purr_tensor_t), PURR_DTYPE_FP16, 2, 0, device_a, NULL, {M, K}, {STRIDE, 1}, NULL},
      {sizeof(purr_tensor_t), PURR_DTYPE_FP16, 2, 0, device_b, NULL, {NN, K}, {STRIDE, 1}, NULL},
      {sizeof(purr_tensor_t), PURR_DTYPE_FP16, 2, 0, device_c, NULL, {M, NN}, {0}, NULL}};
  const int64_t sizes[] = {M, NN, K};
  for (int i = 0; i < 3; i++) ASSERT_OK(purr_launcher_set_tensor(launcher, i, &tensors[i], 0, &err));
  for (int i = 0; i < 3; i++) ASSERT_OK(purr_launcher_set_integer(launcher, 3 + i, sizes[i], &err));
  if (signature != NULL) ASSERT_OK(purr_launcher_set_grid(launcher, (M + 63) / 64, (NN + 63) / 64, 1, &err));
  ASSERT_OK(purr_launcher_launch(launcher, NULL, &err));
  from_device(c, device_c, sizeof c);
  int num_wrong = 0;
  for (int i = 0; i < M; i++)
    for (int j = 0; j < NN; j++) {
      int wanted = 0;
      for (int k = 0; k < K; k++) wanted += ((i * STRIDE + k) * 7 % 5 - 2) * ((j * STRIDE + k) * 11 % 3 - 1);
      num_wrong += fp32_of_fp16(c[i * NN + j]) != (float)wanted;
    }
  CU_ASSERT_EQUAL(num_wrong, 0);
  if (num_wrong > 0) fprintf(stderr, "%s: %d of %d are wrong\n", path, num_wrong, M * NN);
  purr__device_release(device, device_a, sizeof a);
  purr__device_release(device, device_b, sizeof b);
  purr__device_release(device, device_c, sizeof c);
  purr_launcher_destroy(launcher);
}

static void products(void) {
  static const char signature[] =
      "tensordesc<fp16[64, 64]>, tensordesc<fp16[64, 64]>, tensordesc<fp16[64, 64]>, i32, i32, i32";
  product_with(DATA "3.4.0/matmul", NULL, signature);
  product_with(DATA "3.9.0/matmul", NULL, signature);
  product_with(PACKAGE, "matmul_kernel", NULL);
  product_with(PACKAGE, "specialized_kernel", NULL);
}

static void scratch(void) {
  enum { ROWS = 100, COLUMNS = 160 };
  static float in[ROWS * COLUMNS], out[ROWS * COLUMNS];
  for (int i = 0; i < ROWS * COLUMNS; i++) in[i] = (float)i;
  purr_launcher_t *launcher = open_launcher(PACKAGE, "copy_kernel", NULL);
  void *device_in = to_device(in, sizeof in), *device_out = to_device(NULL, sizeof out), *memory;
  purr_launcher_info_t info = {.struct_size = sizeof info};
  ASSERT_OK(purr_launcher_set_pointer(launcher, 0, device_in, &err));
  ASSERT_OK(purr_launcher_set_pointer(launcher, 1, device_out, &err));
  ASSERT_OK(purr_launcher_set_integer(launcher, 2, ROWS, &err));
  ASSERT_OK(purr_launcher_set_integer(launcher, 3, COLUMNS, &err));
  ASSERT_OK(purr_launcher_query(launcher, &info, &err));
  CU_ASSERT(info.scratch_bytes > 0);
  ASSERT_STATUS(PURR_STATUS_BUFFER_TOO_SMALL, purr_launcher_launch(launcher, NULL, &err));
  memory = to_device(NULL, info.scratch_bytes);
  ASSERT_OK(purr_launcher_set_scratch(launcher, memory, info.scratch_bytes, &err));
  ASSERT_OK(purr_launcher_launch(launcher, NULL, &err));
  from_device(out, device_out, sizeof out);
  CU_ASSERT_EQUAL(memcmp(in, out, sizeof in), 0);
  purr__device_release(device, memory, info.scratch_bytes);
  purr__device_release(device, device_in, sizeof in);
  purr__device_release(device, device_out, sizeof out);
  purr_launcher_destroy(launcher);
}

/* ---- stages of a layer ---- */

enum { TOKENS = 300, HIDDEN = 256, INNER = 136, EXPERTS = 8, TOP_K = 2 };

static double rounded(double value) { return (double)purr__fp32_from_bf16(purr__bf16_from_fp32((float)value)); }

/* The layer in double with the contract's rounding points, and this activation. */
static void reference(const test_problem_t *p, double alpha, double offset, double limit, double *out) {
  static double a[INNER];
  memset(out, 0, TOKENS * HIDDEN * sizeof *out);
  for (int64_t t = 0; t < TOKENS; t++)
    for (int64_t slot = t * TOP_K; slot < (t + 1) * TOP_K; slot++) {
      const int64_t e = p->ids[slot];
      if (e < 0) continue;
      for (int64_t i = 0; i < INNER; i++) {
        double g = 0.0, u = 0.0;
        for (int64_t h = 0; h < HIDDEN; h++) {
          const double token = (double)purr__fp32_from_bf16(p->x[t * HIDDEN + h]);
          g += token * (double)purr__fp32_from_bf16(p->gate[(e * INNER + i) * HIDDEN + h]);
          u += token * (double)purr__fp32_from_bf16(p->up[(e * INNER + i) * HIDDEN + h]);
        }
        g = rounded(g), u = rounded(u);
        if (limit > 0.0) g = fmin(g, limit), u = fmax(fmin(u, limit), -limit);
        a[i] = rounded(g / (1.0 + exp(-alpha * g)) * (u + offset));
      }
      for (int64_t h = 0; h < HIDDEN; h++) {
        double sum_y = 0.0;
        for (int64_t i = 0; i < INNER; i++)
          sum_y += a[i] * (double)purr__fp32_from_bf16(p->down[(e * HIDDEN + h) * INNER + i]);
        out[t * HIDDEN + h] += (double)p->topk_weights[slot] * rounded(sum_y);
      }
    }
}

static double error_of(const purr__bf16_t *got, const double *wanted) {
  double difference = 0.0, norm = 0.0;
  for (int64_t i = 0; i < TOKENS * HIDDEN; i++) {
    const double d = (double)purr__fp32_from_bf16(got[i]) - wanted[i];
    difference += d * d;
    norm += wanted[i] * wanted[i];
  }
  return sqrt(difference / norm);
}

typedef struct run_of_layer {
  purr_status_t status; /* of the result */
  uint64_t launches;
} run_of_layer_t;

/* The call as a graph, replayed. */
static purr_status_t replay_forward(const purr_plan_t *plan, purr_workspace_t *workspace, purr_forward_args_t args) {
  const raw_driver_t raw = raw_driver_of(plan);
  void *stream = NULL, *graph = NULL, *exec = NULL;
  purr_status_t status = purr_stream_create(plan, &stream, &err);
  CU_ASSERT_EQUAL_FATAL(status, PURR_STATUS_OK);
  args.stream = stream;
  ASSERT_OK(purr_forward(plan, workspace, &args, &err)); /* what is made once is there */
  ASSERT_OK(purr__device_fill(device, args.output->data, 0xFF, TOKENS * HIDDEN * 2, stream, &err));
  ASSERT_OK(purr_stream_synchronize(plan, stream, &err));
  ASSERT_OK(purr__device_enter(device, &err));
  CU_ASSERT_EQUAL_FATAL(raw.begin_capture(stream, 0), 0);
  status = purr_forward(plan, workspace, &args, &err);
  CU_ASSERT_EQUAL_FATAL(raw.end_capture(stream, &graph), 0);
  CU_ASSERT_EQUAL_FATAL(raw.instantiate(&exec, graph, 0), 0);
  for (int i = 0; i < 3; i++) CU_ASSERT_EQUAL(raw.launch(exec, stream), 0);
  ASSERT_OK(purr_stream_synchronize(plan, stream, &err));
  raw.destroy_exec(exec);
  raw.destroy_graph(graph);
  purr__device_leave(device);
  purr_stream_destroy(plan, stream);
  return status;
}

enum { PLAIN, AS_GRAPH, HELD }; /* HELD: another call owns the workspace */

/* One forward of the problem by a layer of these YAML lines; a fatal failure where it cannot be made. */
static run_of_layer_t run_layer(const test_problem_t *p, const char *lines, int how, purr__bf16_t *out) {
  char yaml[1024];
  snprintf(yaml, sizeof yaml,
           "hidden_size: %d\nintermediate_size: %d\nnum_experts: %d\ntop_k: %d\nmax_tokens: %d\nbackend: staged\n%s",
           HIDDEN, INNER, EXPERTS, TOP_K, TOKENS, lines);
  purr_config_t *config = NULL;
  purr_plan_t *plan = NULL;
  purr_weights_t *weights = NULL;
  purr_workspace_t *workspace = NULL;
  purr_result_t *result = NULL;
  const uint64_t x_bytes = TOKENS * HIDDEN * 2, weight_bytes = EXPERTS * INNER * HIDDEN * 2;
  void *gate = to_device(p->gate, weight_bytes), *up = to_device(p->up, weight_bytes);
  void *down = to_device(p->down, weight_bytes), *tokens = to_device(p->x, x_bytes), *output = to_device(NULL, x_bytes);
  void *ids = to_device(p->ids, TOKENS * TOP_K * 8), *scales = to_device(p->topk_weights, TOKENS * TOP_K * 4);
  const purr_tensor_t gate_tensor = {
      sizeof(purr_tensor_t), PURR_DTYPE_BF16, 3, 0, gate, NULL, {EXPERTS, INNER, HIDDEN}, {0}, NULL};
  const purr_tensor_t down_tensor = {
      sizeof(purr_tensor_t), PURR_DTYPE_BF16, 3, 0, down, NULL, {EXPERTS, HIDDEN, INNER}, {0}, NULL};
  purr_tensor_t up_tensor = gate_tensor;
  up_tensor.data = up;
  const purr_tensor_t x_tensor = {sizeof x_tensor, PURR_DTYPE_BF16, 2, 0, tokens, NULL, {TOKENS, HIDDEN}, {0}, NULL};
  const purr_tensor_t ids_tensor = {sizeof x_tensor, PURR_DTYPE_INT64, 2, 0, ids, NULL, {TOKENS, TOP_K}, {0}, NULL};
  const purr_tensor_t scales_tensor = {
      sizeof x_tensor, PURR_DTYPE_FP32, 2, 0, scales, NULL, {TOKENS, TOP_K}, {0}, NULL};
  purr_tensor_t output_tensor = x_tensor;
  output_tensor.data = output;
  purr_weights_desc_t tensors = PURR_WEIGHTS_DESC_INIT;
  tensors.gate = &gate_tensor, tensors.up = &up_tensor, tensors.down = &down_tensor;
  purr_status_t status = purr_config_parse(context, yaml, strlen(yaml), NULL, &config, &err);
  if (status == PURR_STATUS_OK) status = purr_plan_create(context, config, NULL, &plan, &err);
  if (status == PURR_STATUS_OK) status = purr_weights_create(plan, &tensors, &weights, &err);
  if (status == PURR_STATUS_OK) status = purr_workspace_create(plan, NULL, NULL, &workspace, &err);
  if (status == PURR_STATUS_OK) status = purr_result_create(context, &result, &err);
  purr_forward_args_t args = PURR_FORWARD_ARGS_INIT;
  args.weights = weights, args.x = &x_tensor, args.topk_ids = &ids_tensor, args.topk_weights = &scales_tensor;
  args.output = &output_tensor, args.result = result;
  purr_counters_t before = {.struct_size = sizeof before}, after = before;
  purr_context_query_counters(context, &before, NULL);
  if (status == PURR_STATUS_OK && how == HELD) {
    purr__device_rank_header_t *header = purr__symmetric_at(workspace, plan, 0, PURR__SYM_HEADER);
    const uint64_t word = UINT64_C(0xABCDEF) << 40 | UINT64_C(1) << 28 | 5;
    ASSERT_OK(purr_memory_copy(plan, &header->turn, &word, sizeof word, &err));
  }
  if (status == PURR_STATUS_OK)
    status = how == AS_GRAPH ? replay_forward(plan, workspace, args) : purr_forward(plan, workspace, &args, &err);
  purr_context_query_counters(context, &after, NULL);
  if (status != PURR_STATUS_OK) fprintf(stderr, "%s: %s\n", purr_status_name(status), err.message);
  CU_ASSERT_EQUAL_FATAL(status, PURR_STATUS_OK);
  from_device(out, output, x_bytes);
  purr_result_info_t info = {.struct_size = sizeof info};
  ASSERT_OK(purr_result_query(result, &info, &err));
  purr_result_destroy(result);
  purr_workspace_destroy(workspace);
  purr_weights_destroy(weights);
  purr_plan_destroy(plan);
  purr_config_destroy(config);
  void *const memory[] = {gate, up, down, tokens, output, ids, scales};
  const uint64_t bytes[] = {weight_bytes, weight_bytes,       weight_bytes,      x_bytes,
                            x_bytes,      TOKENS * TOP_K * 8, TOKENS * TOP_K * 4};
  for (int i = 0; i < 7; i++) purr__device_release(device, memory[i], bytes[i]);
  return (run_of_layer_t){info.status, after.num_launches - before.num_launches};
}

static void stages_of_a_layer(void) {
  static const struct {
    const char *lines;
    double alpha, offset, limit;
    unsigned launches;
  } cases[] = {
      {"", 1.0, 0.0, 0.0, 4},
      {"kernels:\n  activation: swiglu_kernel\n", 1.0, 0.0, 0.0, 5},
      {"swiglu_limit: 0.5\nkernels:\n  activation: swiglu_kernel\n", 1.0, 0.0, 0.5, 5},
      {"swiglu_limit: 7\nkernels:\n  activation: gpt_oss_kernel\n", 1.702, 1.0, 7.0, 5},
      {"kernels:\n  activation: swiglu_kernel\n  grouped_gemm: grouped_gemm_kernel\n", 1.0, 0.0, 0.0, 6},
      {"swiglu_limit: 7\nkernels:\n  activation: gpt_oss_kernel\n  grouped_gemm: grouped_gemm_kernel\n", 1.702, 1.0,
       7.0, 6},
      {"kernels:\n  combine: combine_kernel\n", 1.0, 0.0, 0.0, 5},
      {"kernels:\n  activation: swiglu_kernel\n  grouped_gemm: grouped_gemm_kernel\n  combine: combine_kernel\n", 1.0,
       0.0, 0.0, 7},
  };
  static purr__bf16_t out[TOKENS * HIDDEN], again[TOKENS * HIDDEN], untouched[TOKENS * HIDDEN];
  static double wanted[TOKENS * HIDDEN];
  test_problem_t *p = test_random(7, TOKENS, HIDDEN, INNER, EXPERTS, TOP_K, 0, false);
  p->ids[5] = -1;
  memset(untouched, 0xFF, sizeof untouched);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    reference(p, cases[i].alpha, cases[i].offset, cases[i].limit, wanted);
    const run_of_layer_t first = run_layer(p, cases[i].lines, PLAIN, out);
    const run_of_layer_t second = run_layer(p, cases[i].lines, AS_GRAPH, again);
    const double error = error_of(out, wanted);
    fprintf(stderr, "  %llu launches, relative error %.2e against double\n", (unsigned long long)first.launches, error);
    CU_ASSERT_EQUAL(first.status, PURR_STATUS_OK);
    CU_ASSERT_EQUAL(second.status, PURR_STATUS_OK);
    CU_ASSERT_EQUAL(first.launches, cases[i].launches);
    CU_ASSERT(error <= 2e-3); /* the last rounding, which the reference lacks, is 1.7e-3 */
    CU_ASSERT_EQUAL(memcmp(out, again, sizeof out), 0);
    p->ids[9] += EXPERTS; /* no expert: nothing is written */
    CU_ASSERT_EQUAL(run_layer(p, cases[i].lines, PLAIN, out).status, PURR_STATUS_BAD_ROUTE);
    CU_ASSERT_EQUAL(memcmp(out, untouched, sizeof out), 0);
    p->ids[9] -= EXPERTS;
    CU_ASSERT_EQUAL(run_layer(p, cases[i].lines, HELD, out).status, PURR_STATUS_BUSY);
    CU_ASSERT_EQUAL(memcmp(out, untouched, sizeof out), 0);
  }
  /* The host backend's layer is the same one. */
  const test_run_t run = {.inference = true};
  test_outcome_t *host = test_layer_run(p, &run);
  reference(p, 1.0, 0.0, 0.0, wanted);
  const double host_error = error_of(host->output, wanted);
  run_layer(p, cases[4].lines, PLAIN, out);
  int num_different = 0;
  for (int i = 0; i < TOKENS * HIDDEN; i++) num_different += out[i] != host->output[i];
  fprintf(stderr, "  the host: %.2e; %d of %d outputs differ from it\n", host_error, num_different, TOKENS * HIDDEN);
  CU_ASSERT(host_error <= 2e-3);
  test_outcome_free(host);
  test_problem_free(p);
}

int main(void) {
  purr_package_t *stages = NULL;
  unsetenv("PURR_TEST_BACKEND"); /* what is held against them is the host's */
  if (purr_context_create(NULL, &context, &err) != PURR_STATUS_OK) return 1;
  if (purr__device_get(context, 0, &device, &err) != PURR_STATUS_OK || device->cc_major != 9 || device->cc_minor != 0) {
    fprintf(stderr, "skipped: no H100 or H200: %s\n", err.message);
    purr_context_destroy(context);
    return PURR_TEST_SKIPPED;
  }
  if (purr_package_open(context, DATA "3.6.0/stages", &stages, &err) != PURR_STATUS_OK ||
      purr_context_add_package(context, stages, &err) != PURR_STATUS_OK) {
    fprintf(stderr, "%s\n", err.message);
    return 1;
  }
  purr_package_destroy(stages);
  const int code = purr_test_main("Triton on a GPU", (purr_test_t[]){{"vector adds", vector_adds},
                                                                     {"a graph", a_graph_replays_a_launch},
                                                                     {"products", products},
                                                                     {"scratch", scratch},
                                                                     {"stages of a layer", stages_of_a_layer},
                                                                     {0}});
  purr_context_destroy(context);
  return code;
}
