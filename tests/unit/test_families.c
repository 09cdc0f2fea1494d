/* Every model family: tiny checkpoints in its naming, BF16 and FP8, read back element by element; its config.json with
 * defaults; its router; and what the messages say when something is not as it should be. */
#include "checkpoint/family.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bf16.h"
#include "base/json.h"
#include "support/allocator.h"
#include "support/checkpoint.h"
#include "support/main.h"

enum { E = 4, H = 40, I = 24, S = 48 };

typedef enum storage { BF16, FP8_FP32, FP8_BF16, MXFP8_U8, MXFP8_E8M0, BLOCK_E8M0 } storage_t;

/* One way to write a checkpoint. */
typedef struct variant {
  const char *config;
  const char *module;         /* in decoder layer 1 */
  const char *projections[3]; /* NULL = packed */
  const char *shared;         /* NULL = none */
  bool has_shared_gate, has_bias;
  storage_t storage;
  int block_rows, block_cols; /* of FP8 */
  size_t shift;               /* of the data in the file */
  bool is_sharded;
  const char *only_without; /* a tensor to leave out */
  const char *renamed, *new_name;
  const char *reshaped, *retyped;
} variant_t;

#define GATE_UP_DOWN \
  { "gate_proj", "up_proj", "down_proj" }
#define SIZES "\"hidden_size\": 40, \"num_experts_per_tok\": 2, \"num_hidden_layers\": 2, "
#define QWEN3 "{" SIZES "\"model_type\": \"qwen3_moe\", \"moe_intermediate_size\": 24, \"num_experts\": 4}"
#define QWEN3_QUANTIZED(block)                                                               \
  "{" SIZES                                                                                  \
  "\"model_type\": \"qwen3_moe\", \"moe_intermediate_size\": 24, \"num_local_experts\": 4, " \
  "\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": " block "}}"
#define QWEN2                                                                          \
  "{" SIZES                                                                            \
  "\"model_type\": \"qwen2_moe\", \"moe_intermediate_size\": 24, \"num_experts\": 4, " \
  "\"shared_expert_intermediate_size\": 48}"
#define DEEPSEEK(type)                                           \
  "{" SIZES "\"model_type\": \"" type                            \
  "\", \"moe_intermediate_size\": 24, \"n_routed_experts\": 4, " \
  "\"n_shared_experts\": 2, \"first_k_dense_replace\": 1, \"n_group\": 2, \"topk_group\": 1}"
#define MIXTRAL "{" SIZES "\"model_type\": \"mixtral\", \"intermediate_size\": 24, \"num_local_experts\": 4}"
#define OLMOE "{" SIZES "\"model_type\": \"olmoe\", \"intermediate_size\": 24, \"num_experts\": 4}"

/* ---- the content ---- */

static uint32_t hash(uint32_t role, uint32_t expert, int64_t row, int64_t col) {
  uint32_t x = role * 7919u + expert * 104729u + (uint32_t)row * 1299709u + (uint32_t)col * 15485863u + 1u;
  x = (x ^ (x >> 15)) * 2246822519u;
  return x ^ (x >> 13);
}

enum { ROLE_GATE, ROLE_UP, ROLE_DOWN, ROLE_SHARED = 10, ROLE_SHARED_GATE = 20, ROLE_ROUTER, ROLE_BIAS };

static double scale_value(storage_t storage, int role, int expert, int64_t row, int64_t col, uint8_t *code) {
  uint32_t random = hash((uint32_t)role + 100, (uint32_t)expert, row, col);
  if (storage == FP8_FP32) return (double)(float)(0.001 + (double)(random % 1000) * 0.0137);
  if (storage == FP8_BF16)
    return (double)purr__fp32_from_bf16(purr__bf16_from_fp32((float)(0.5 + (double)(random % 1000) * 0.01)));
  *code = (uint8_t)(random % 7 == 0 ? random % 16 == 0 ? 255 : random % 4 : 120 + random % 12);
  return *code == 255 ? (double)NAN : ldexp(1.0, *code - 127);
}

static double e4m3_value(uint8_t code) {
  int exponent = code >> 3 & 15, fraction = code & 7;
  if ((code & 0x7F) == 0x7F) return (double)NAN;
  double magnitude = exponent > 0 ? ldexp(8.0 + fraction, exponent - 10) : ldexp(fraction, -9);
  return code & 0x80 ? -magnitude : magnitude;
}

/* What must come out of the loader, as BF16 bits. */
static uint16_t expected_bits(const variant_t *variant, int role, int expert, int64_t row, int64_t col) {
  uint32_t random = hash((uint32_t)role, (uint32_t)expert, row, col);
  if (variant->storage == BF16) return (uint16_t)(random >> 8);
  uint8_t unused;
  double scale =
      scale_value(variant->storage, role, expert, row / variant->block_rows, col / variant->block_cols, &unused);
  return purr__bf16_from_fp32((float)(e4m3_value((uint8_t)(random >> 8)) * scale)); /* exact before the float */
}

/* ---- writing ---- */

static void add(writer_t writers[2], const variant_t *variant, const char *name, const char *dtype, int num_dims,
                const int64_t *shape, const void *data, size_t num_bytes) {
  int64_t own_shape[3] = {0};
  memcpy(own_shape, shape, (size_t)num_dims * sizeof *shape);
  if (variant->only_without != NULL && strcmp(name, variant->only_without) == 0) return;
  if (variant->renamed != NULL && strcmp(name, variant->renamed) == 0) name = variant->new_name;
  if (variant->retyped != NULL && strcmp(name, variant->retyped) == 0) dtype = strcmp(dtype, "F32") ? "F16" : "I32";
  if (variant->reshaped != NULL && strcmp(name, variant->reshaped) == 0) {
    own_shape[num_dims - 2] *= 2;
    own_shape[num_dims - 1] /= 2;
  }
  writer_add(&writers[variant->is_sharded && strstr(name, "down") != NULL], name, dtype, num_dims, own_shape, data,
             num_bytes);
}

/* A matrix per expert, or all experts in one tensor when `num` > 0. In the packed gate_up, rows of gate come first. */
static void add_matrix(writer_t writers[2], const variant_t *variant, const char *name, int role, int expert, int num,
                       int64_t rows, int64_t cols) {
  int parts = num > 0 && role == ROLE_GATE ? 2 : 1;
  int64_t part_rows = rows / parts, count = num > 0 ? num : 1;
  size_t element = variant->storage == BF16 ? 2 : 1;
  unsigned char *data = calloc((size_t)(count * rows * cols), element);
  for (int64_t s = 0; s < count; s++)
    for (int64_t r = 0; r < rows; r++)
      for (int64_t c = 0; c < cols; c++) {
        uint32_t random = hash((uint32_t)(role + r / part_rows), (uint32_t)(num > 0 ? s : expert), r % part_rows, c);
        unsigned char *at = data + (size_t)((s * rows + r) * cols + c) * element;
        at[0] = (unsigned char)(random >> 8);
        if (element == 2) at[1] = (unsigned char)(random >> 16);
      }
  const int64_t shape[3] = {num, rows, cols};
  const int64_t *own = num > 0 ? shape : shape + 1;
  int num_dims = num > 0 ? 3 : 2;
  add(writers, variant, name, variant->storage == BF16 ? "BF16" : "F8_E4M3", num_dims, own, data,
      (size_t)(count * rows * cols) * element);
  free(data);
  if (variant->storage == BF16) return;

  static const char *const dtypes[] = {"", "F32", "BF16", "U8", "F8_E8M0", "F8_E8M0"};
  size_t scale_bytes = variant->storage == FP8_FP32 ? 4 : variant->storage == FP8_BF16 ? 2 : 1;
  int64_t part_scales = (part_rows + variant->block_rows - 1) / variant->block_rows;
  int64_t scale_rows = parts * part_scales, scale_cols = (cols + variant->block_cols - 1) / variant->block_cols;
  unsigned char *scales = calloc((size_t)(count * scale_rows * scale_cols), scale_bytes);
  for (int64_t s = 0; s < count; s++)
    for (int64_t r = 0; r < scale_rows; r++)
      for (int64_t c = 0; c < scale_cols; c++) {
        uint8_t code = 0;
        float value = (float)scale_value(variant->storage, role + (int)(r / part_scales), num > 0 ? (int)s : expert,
                                         r % part_scales, c, &code);
        uint16_t half = purr__bf16_from_fp32(value);
        const void *from = scale_bytes == 4 ? (const void *)&value : scale_bytes == 2 ? (const void *)&half : &code;
        memcpy(scales + (size_t)((s * scale_rows + r) * scale_cols + c) * scale_bytes, from, scale_bytes);
      }
  char scale_name[160];
  snprintf(scale_name, sizeof scale_name, "%s%s", name, variant->storage == MXFP8_U8 ? "_scale" : "_scale_inv");
  const int64_t scale_shape[3] = {num, scale_rows, scale_cols};
  add(writers, variant, scale_name, dtypes[variant->storage], num_dims, num > 0 ? scale_shape : scale_shape + 1, scales,
      (size_t)(count * scale_rows * scale_cols) * scale_bytes);
  free(scales);
}

static float router_value(int64_t row, int64_t col) {
  return (float)((int)(hash(ROLE_ROUTER, 0, row, col) % 255) - 127);
}

static void write_checkpoint(const folder_t *folder, const variant_t *variant) {
  writer_t writers[2] = {{0}};
  char name[128];
  const char *module = variant->module;
  if (variant->projections[0] == NULL) {
    snprintf(name, sizeof name, "%sexperts.gate_up_proj", module);
    add_matrix(writers, variant, name, ROLE_GATE, 0, E, 2 * I, H);
    snprintf(name, sizeof name, "%sexperts.down_proj", module);
    add_matrix(writers, variant, name, ROLE_DOWN, 0, E, H, I);
  }
  for (int e = 0; variant->projections[0] != NULL && e < E; e++)
    for (int p = 0; p < 3; p++) {
      snprintf(name, sizeof name, "%sexperts.%d.%s.weight", module, e, variant->projections[p]);
      add_matrix(writers, variant, name, p, e, 0, p == ROLE_DOWN ? H : I, p == ROLE_DOWN ? I : H);
    }
  static const char *const shared_projections[] = GATE_UP_DOWN;
  for (int p = 0; variant->shared != NULL && p < 3; p++) {
    snprintf(name, sizeof name, "%s%s.%s.weight", module, variant->shared, shared_projections[p]);
    add_matrix(writers, variant, name, ROLE_SHARED + p, 0, 0, p == ROLE_DOWN ? H : S, p == ROLE_DOWN ? S : H);
  }
  variant_t plain = *variant;
  plain.storage = BF16;
  if (variant->has_shared_gate) {
    snprintf(name, sizeof name, "%sshared_expert_gate.weight", module);
    add_matrix(writers, &plain, name, ROLE_SHARED_GATE, 0, 0, 1, H);
  }
  float bias[E];
  uint16_t router[E * H];
  for (int64_t i = 0; i < E * H; i++) router[i] = purr__bf16_from_fp32(router_value(i / H, i % H));
  for (int e = 0; e < E; e++) bias[e] = (float)e - 0.125f;
  snprintf(name, sizeof name, "%sgate.weight", module);
  add(writers, variant, name, "BF16", 2, (int64_t[]){E, H}, router, sizeof router);
  snprintf(name, sizeof name, "%sgate.e_score_correction_bias", module);
  if (variant->has_bias) add(writers, variant, name, "F32", 1, (int64_t[]){E}, bias, sizeof bias);

  CU_ASSERT(folder_write_text(folder, "config.json", variant->config));
  if (!variant->is_sharded) {
    CU_ASSERT(writer_write(&writers[0], folder, "model.safetensors", variant->shift));
    return;
  }
  CU_ASSERT(folder_write_text(folder, "model.safetensors.index.json",
                              "{\"weight_map\": {\"model.layers.1.mlp.gate.weight\": \"1.safetensors\", "
                              "\"model.layers.1.mlp.experts.0.down_proj.weight\": \"2.safetensors\"}}"));
  CU_ASSERT(writer_write(&writers[0], folder, "1.safetensors", variant->shift));
  CU_ASSERT(writer_write(&writers[1], folder, "2.safetensors", variant->shift));
}

/* ---- reading back ---- */

static int num_wrong_elements(const variant_t *variant, const uint16_t *data, int role, int expert, int64_t rows,
                              int64_t cols) {
  int wrong = (uintptr_t)data % 16 != 0;
  for (int64_t i = 0; i < rows * cols; i++)
    wrong += data[i] != expected_bits(variant, role, expert, i / cols, i % cols);
  return wrong;
}

static int num_wrong_matrix(const variant_t *variant, const purr_tensor_t *tensor, int role, int64_t rows,
                            int64_t cols) {
  if (tensor == NULL || tensor->dtype != PURR_DTYPE_BF16 || tensor->num_dims != 2 || tensor->shape[0] != rows ||
      tensor->shape[1] != cols)
    return -1;
  return num_wrong_elements(variant, tensor->data, role, 0, rows, cols);
}

static void check_experts(const variant_t *variant, const purr_weights_desc_t *weights, int first, int num) {
  bool is_packed = variant->projections[0] == NULL;
  CU_ASSERT_FATAL((weights->gate_up != NULL) == is_packed && (weights->gate != NULL) == !is_packed &&
                  (weights->up != NULL) == !is_packed && weights->down != NULL);
  const purr_tensor_t *gate = is_packed ? weights->gate_up : weights->gate;
  CU_ASSERT(gate->dtype == PURR_DTYPE_BF16 && gate->num_dims == 3 && gate->shape[0] == num &&
            gate->shape[1] == (is_packed ? 2 * I : I) && gate->shape[2] == H);
  CU_ASSERT(weights->down->shape[0] == num && weights->down->shape[1] == H && weights->down->shape[2] == I);
  for (int e = 0; e < num; e++) {
    const uint16_t *gate_data = gate->pointers[e];
    const uint16_t *up_data = is_packed ? gate_data + I * H : weights->up->pointers[e];
    CU_ASSERT_EQUAL(num_wrong_elements(variant, gate_data, ROLE_GATE, first + e, I, H), 0);
    CU_ASSERT_EQUAL(num_wrong_elements(variant, up_data, ROLE_UP, first + e, I, H), 0);
    CU_ASSERT_EQUAL(num_wrong_elements(variant, weights->down->pointers[e], ROLE_DOWN, first + e, H, I), 0);
  }
}

static void check_layer(const variant_t *variant, const purr_checkpoint_t *checkpoint, int32_t rank,
                        int32_t num_ranks) {
  purr_error_t err;
  purr_checkpoint_layer_t *layer = NULL;
  purr_weights_desc_t weights = PURR_WEIGHTS_DESC_INIT;
  REQUIRE_OK(purr_checkpoint_load_layer(checkpoint, 1, rank, num_ranks, &layer, &err));
  REQUIRE_OK(purr_checkpoint_layer_get_weights(layer, &weights, &err));
  check_experts(variant, &weights, E / num_ranks * rank, E / num_ranks);
  if (variant->shared != NULL) {
    CU_ASSERT_EQUAL(num_wrong_matrix(variant, weights.shared_gate, ROLE_SHARED, S, H), 0);
    CU_ASSERT_EQUAL(num_wrong_matrix(variant, weights.shared_up, ROLE_SHARED + 1, S, H), 0);
    CU_ASSERT_EQUAL(num_wrong_matrix(variant, weights.shared_down, ROLE_SHARED + 2, H, S), 0);
  } else {
    CU_ASSERT(weights.shared_gate == NULL && weights.shared_up == NULL && weights.shared_down == NULL);
  }
  variant_t plain = *variant;
  plain.storage = BF16;
  if (variant->has_shared_gate)
    CU_ASSERT_EQUAL(num_wrong_matrix(&plain, weights.shared_expert_gate, ROLE_SHARED_GATE, 1, H), 0);
  CU_ASSERT(variant->has_shared_gate || weights.shared_expert_gate == NULL);

  purr_router_desc_t router = {.struct_size = sizeof router};
  purr_tensor_t weight = {.struct_size = sizeof weight}, bias = {.struct_size = sizeof bias};
  ASSERT_OK(purr_checkpoint_layer_get_router(layer, &router, &weight, &bias, &err));
  int wrong = 0;
  for (int64_t i = 0; i < E * H; i++) wrong += ((const float *)weight.data)[i] != router_value(i / H, i % H);
  CU_ASSERT_EQUAL(wrong, 0);
  CU_ASSERT_EQUAL(bias.num_dims, variant->has_bias);
  for (int e = 0; variant->has_bias && e < E; e++) CU_ASSERT_EQUAL(((const float *)bias.data)[e], (float)e - 0.125f);
  purr_checkpoint_layer_destroy(layer);
}

static purr_context_t *make_context(purr_test_allocator_t *memory) {
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  purr_test_allocator_init(memory);
  desc.num_threads = 2;
  desc.host_allocator = &memory->hooks;
  purr_context_t *context = NULL;
  purr_error_t err = PURR_ERROR_INIT;
  ASSERT_OK(purr_context_create(&desc, &context, &err));
  return context;
}

static void check_variants(const variant_t *variants, size_t num_variants) {
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  for (size_t i = 0; i < num_variants; i++) {
    folder_t folder;
    CU_ASSERT_FATAL(folder_create(&folder));
    write_checkpoint(&folder, &variants[i]);
    purr_error_t err;
    purr_checkpoint_t *checkpoint = NULL;
    ASSERT_OK(purr_checkpoint_open(context, folder.path, &checkpoint, &err));
    for (int32_t num_ranks = 1; checkpoint != NULL && num_ranks <= E; num_ranks *= 2)
      for (int32_t rank = 0; rank < num_ranks; rank++) check_layer(&variants[i], checkpoint, rank, num_ranks);
    char text[16384];
    uint64_t length;
    ASSERT_OK(purr_checkpoint_describe(checkpoint, PURR_FORMAT_TEXT, text, sizeof text, &length, &err));
    const char *part = strstr(text, "\nlayer 1: 4 experts, "); /* layer 0 is dense, or its tensors are missing */
    CU_ASSERT_PTR_NOT_NULL_FATAL(part);
    CU_ASSERT_PTR_NULL(strstr(part, "missing"));
    ASSERT_OK(purr_checkpoint_describe(checkpoint, PURR_FORMAT_JSON, text, sizeof text, &length, &err));
    purr__json_t json;
    purr__json_begin(&json, text, length, "description", &err);
    purr__json_skip(&json);
    CU_ASSERT_EQUAL(purr__json_next(&json), PURR__JSON_END);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "{\"layer\": 1, \"moe\": true"));
    purr_checkpoint_destroy(checkpoint);
    folder_remove(&folder);
  }
  purr_context_destroy(context);
  CU_ASSERT_EQUAL(memory.num_live, 0);
  CU_ASSERT_EQUAL(memory.num_wrong, 0);
}

static const char mlp[] = "model.layers.1.mlp.";

static void reads_every_family(void) {
  const variant_t variants[] = {
      {.config = QWEN3, .module = mlp, .projections = GATE_UP_DOWN},
      {.config = QWEN3, .module = mlp},
      {.config = QWEN3, .module = "layers.1.mlp.", .projections = GATE_UP_DOWN},
      {.config = QWEN3, .module = mlp, .projections = GATE_UP_DOWN, .shift = 1},
      {.config = QWEN3, .module = mlp, .projections = GATE_UP_DOWN, .shift = 8, .is_sharded = true},
      {.config = QWEN3, .module = mlp, .shift = 8},
      {.config = QWEN2, .module = mlp, .projections = GATE_UP_DOWN, .shared = "shared_expert", .has_shared_gate = true},
      {.config = QWEN2, .module = mlp, .shared = "shared_expert", .has_shared_gate = true, .shift = 3},
      {.config = DEEPSEEK("deepseek_v2"), .module = mlp, .projections = GATE_UP_DOWN, .shared = "shared_experts"},
      {.config = DEEPSEEK("deepseek_v3"),
       .module = mlp,
       .projections = GATE_UP_DOWN,
       .shared = "shared_experts",
       .has_bias = true},
      {.config = DEEPSEEK("deepseek_v3"), .module = mlp, .shared = "shared_experts", .has_bias = true},
      {.config = DEEPSEEK("kimi_k2"),
       .module = mlp,
       .projections = GATE_UP_DOWN,
       .shared = "shared_experts",
       .has_bias = true},
      {.config = DEEPSEEK("glm4_moe"),
       .module = mlp,
       .projections = GATE_UP_DOWN,
       .shared = "shared_experts",
       .has_bias = true},
      {.config = MIXTRAL, .module = "model.layers.1.block_sparse_moe.", .projections = {"w1", "w3", "w2"}},
      {.config = MIXTRAL, .module = mlp},
      {.config = OLMOE, .module = mlp, .projections = GATE_UP_DOWN},
      {.config = OLMOE, .module = mlp},
  };
  check_variants(variants, sizeof variants / sizeof variants[0]);
}

static void turns_fp8_into_bf16(void) {
  const variant_t variants[] = {
      {.config = QWEN3_QUANTIZED("[16, 16]"),
       .module = mlp,
       .projections = GATE_UP_DOWN,
       .storage = FP8_FP32,
       .block_rows = 16,
       .block_cols = 16},
      {.config = QWEN3_QUANTIZED("[16, 16]"), .module = mlp, .storage = FP8_FP32, .block_rows = 16, .block_cols = 16},
      {.config = QWEN3_QUANTIZED("[40, 40]"),
       .module = mlp,
       .projections = GATE_UP_DOWN,
       .storage = FP8_FP32,
       .block_rows = 40,
       .block_cols = 40,
       .shift = 1},
      {.config = QWEN3_QUANTIZED("[16, 32]"),
       .module = mlp,
       .projections = GATE_UP_DOWN,
       .storage = FP8_BF16,
       .block_rows = 16,
       .block_cols = 32,
       .is_sharded = true},
      {.config = QWEN3,
       .module = mlp,
       .projections = GATE_UP_DOWN,
       .storage = FP8_FP32,
       .block_rows = 128,
       .block_cols = 128},
      {.config = QWEN3,
       .module = mlp,
       .projections = GATE_UP_DOWN,
       .storage = FP8_BF16,
       .block_rows = 1,
       .block_cols = 128},
      {.config = DEEPSEEK("deepseek_v3"),
       .module = mlp,
       .projections = GATE_UP_DOWN,
       .shared = "shared_experts",
       .has_bias = true,
       .storage = FP8_FP32,
       .block_rows = 128,
       .block_cols = 128},
      {.config = QWEN3_QUANTIZED("[16, 16]"),
       .module = mlp,
       .projections = GATE_UP_DOWN,
       .storage = BLOCK_E8M0,
       .block_rows = 16,
       .block_cols = 16},
      {.config = QWEN3,
       .module = mlp,
       .projections = GATE_UP_DOWN,
       .storage = MXFP8_U8,
       .block_rows = 1,
       .block_cols = 32},
      {.config = QWEN3, .module = mlp, .storage = MXFP8_E8M0, .block_rows = 1, .block_cols = 32, .shift = 5},
      {.config = QWEN3_QUANTIZED("[1, 32]"),
       .module = mlp,
       .projections = GATE_UP_DOWN,
       .storage = MXFP8_U8,
       .block_rows = 1,
       .block_cols = 32},
      {.config = QWEN3_QUANTIZED("[128, 128]"),
       .module = mlp,
       .projections = GATE_UP_DOWN,
       .storage = MXFP8_E8M0,
       .block_rows = 1,
       .block_cols = 32},
      {.config = DEEPSEEK("glm4_moe"),
       .module = mlp,
       .projections = GATE_UP_DOWN,
       .shared = "shared_experts",
       .has_bias = true,
       .storage = MXFP8_U8,
       .block_rows = 1,
       .block_cols = 32},
  };
  check_variants(variants, sizeof variants / sizeof variants[0]);
}

/* ---- what is missing or wrong ---- */

static void says_what_it_looked_for(void) {
#define EXPERT2 "model.layers.1.mlp.experts.2.up_proj.weight"
#define BASE .config = QWEN3, .module = mlp, .projections = GATE_UP_DOWN
#define BASE_FP8 BASE, .storage = FP8_FP32, .block_rows = 128, .block_cols = 128
  const struct {
    variant_t variant;
    const char *parts[3];
  } cases[] = {
      {{BASE, .only_without = EXPERT2},
       {"layer 1 needs the tensor '" EXPERT2 "'", "is not there", "nearest name is '"}},
      {{BASE, .renamed = EXPERT2, .new_name = "model.layers.1.mlp.experts.2.up_proj.wieght"},
       {"'" EXPERT2 "'", "nearest name is 'model.layers.1.mlp.experts.2.up_proj.wieght'"}},
      {{BASE, .reshaped = EXPERT2}, {"'" EXPERT2 "' has shape [48, 20]", "layer 1 needs [24, 40]"}},
      {{BASE, .retyped = EXPERT2}, {"'" EXPERT2 "' has dtype F16", "needs BF16, or F8_E4M3 with scales"}},
      {{.config = QWEN3, .module = mlp, .reshaped = "model.layers.1.mlp.experts.down_proj"},
       {"'model.layers.1.mlp.experts.down_proj' has shape [4, 80, 12]", "needs [4, 40, 24]"}},
      {{.config = QWEN3, .module = mlp, .only_without = "model.layers.1.mlp.experts.gate_up_proj"},
       {"'model.layers.1.mlp.experts.gate_up_proj', which is not there"}},
      {{BASE_FP8, .only_without = EXPERT2 "_scale_inv"}, {"'" EXPERT2 "_scale_inv'", "is not there"}},
      {{BASE_FP8, .retyped = EXPERT2 "_scale_inv"}, {"_scale_inv' have dtype I32; allowed are F32, BF16, F8_E8M0, U8"}},
      {{.config = QWEN3_QUANTIZED("[16, 16]"),
        .module = mlp,
        .projections = GATE_UP_DOWN,
        .storage = FP8_FP32,
        .block_rows = 128,
        .block_cols = 128},
       {"_scale_inv' has shape [1, 1]", "needs [2, 3] for blocks of 16 by 16"}},
      {{BASE, .storage = MXFP8_U8, .block_rows = 1, .block_cols = 8},
       {"_scale' has shape [24, 5]", "[1, 1] for blocks of 128 by 128, or [24, 2] for blocks of 1 by 32"}},
      {{.config = QWEN2, .module = mlp, .projections = GATE_UP_DOWN, .shared = "shared_expert"},
       {"'model.layers.1.mlp.shared_expert_gate.weight'"}},
      {{.config = QWEN2, .module = mlp, .projections = GATE_UP_DOWN},
       {"'model.layers.1.mlp.shared_expert.gate_proj.weight'"}},
      {{.config = QWEN3, .module = "transformer.h.1.moe.", .projections = GATE_UP_DOWN},
       {"'model.layers.1.mlp.experts.0.gate_proj.weight'", "nearest name is 'transformer.h.1.moe.experts.0.gate_proj"}},
  };
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    folder_t folder;
    CU_ASSERT_FATAL(folder_create(&folder));
    write_checkpoint(&folder, &cases[i].variant);
    purr_error_t err;
    purr_checkpoint_t *checkpoint = NULL;
    purr_status_t status = purr_checkpoint_open(context, folder.path, &checkpoint, &err);
    if (status == PURR_STATUS_OK) {
      purr_checkpoint_layer_t *layer = (purr_checkpoint_layer_t *)1;
      long long live = memory.num_live;
      ASSERT_STATUS(PURR_STATUS_CHECKPOINT, purr_checkpoint_load_layer(checkpoint, 1, 0, 1, &layer, &err));
      CU_ASSERT_PTR_NULL(layer);
      CU_ASSERT_EQUAL(memory.num_live, live);
    }
    for (int j = 0; j < 3 && cases[i].parts[j] != NULL; j++) {
      if (strstr(err.message, cases[i].parts[j]) == NULL)
        fprintf(stderr, "case %zu: '%s' does not say '%s'\n", i, err.message, cases[i].parts[j]);
      CU_ASSERT_PTR_NOT_NULL(strstr(err.message, cases[i].parts[j]));
    }
    char text[16384];
    uint64_t length;
    if (status == PURR_STATUS_OK) {
      ASSERT_OK(purr_checkpoint_describe(checkpoint, PURR_FORMAT_TEXT, text, sizeof text, &length, &err));
      CU_ASSERT_PTR_NOT_NULL(strstr(strstr(text, "\nlayer 1"), "missing: "));
    }
    purr_checkpoint_destroy(checkpoint);
    folder_remove(&folder);
  }
  purr_context_destroy(context);
  CU_ASSERT_EQUAL(memory.num_live, 0);
}

/* A layer without its router can be run with ids from elsewhere; only who asks for the router is told. */
static void loads_without_a_router(void) {
  static const struct {
    const char *without, *part;
  } cases[] = {
      {"model.layers.1.mlp.gate.weight", "'model.layers.1.mlp.gate.weight'"},
      {"model.layers.1.mlp.gate.e_score_correction_bias", "'model.layers.1.mlp.gate.e_score_correction_bias'"}};
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  for (size_t i = 0; i < 2; i++) {
    folder_t folder;
    CU_ASSERT_FATAL(folder_create(&folder));
    variant_t variant = {.config = DEEPSEEK("deepseek_v3"),
                         .module = mlp,
                         .projections = GATE_UP_DOWN,
                         .shared = "shared_experts",
                         .has_bias = true,
                         .only_without = cases[i].without};
    write_checkpoint(&folder, &variant);
    purr_error_t err;
    purr_checkpoint_t *checkpoint = NULL;
    purr_checkpoint_layer_t *layer = NULL;
    REQUIRE_OK(purr_checkpoint_open(context, folder.path, &checkpoint, &err));
    REQUIRE_OK(purr_checkpoint_load_layer(checkpoint, -1, 0, 1, &layer, &err));
    purr_router_desc_t router = {.struct_size = sizeof router};
    purr_tensor_t weight = {.struct_size = sizeof weight}, bias = {.struct_size = sizeof bias};
    ASSERT_STATUS(PURR_STATUS_CHECKPOINT, purr_checkpoint_layer_get_router(layer, &router, &weight, &bias, &err));
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, cases[i].part));
    CU_ASSERT_PTR_NULL(weight.data);
    purr_checkpoint_layer_destroy(layer);
    purr_checkpoint_destroy(checkpoint);
    folder_remove(&folder);
  }
  purr_context_destroy(context);
}

/* ---- config.json ---- */

/* A checkpoint with this config.json and no tensors. */
static purr_checkpoint_t *checkpoint_of(purr_context_t *context, const folder_t *folder, const char *config) {
  purr_error_t err;
  purr_checkpoint_t *checkpoint = NULL;
  CU_ASSERT(folder_write_text(folder, "config.json", config));
  CU_ASSERT(folder_write(folder, "model.safetensors", "\2\0\0\0\0\0\0\0{}", 10));
  ASSERT_OK(purr_checkpoint_open(context, folder->path, &checkpoint, &err));
  return checkpoint;
}

#define ROUTER(the_scoring, groups, top_groups, top, norm, factor, epsilon) \
  { sizeof(purr_router_desc_t), PURR_ROUTER_##the_scoring, groups, top_groups, top, norm, factor, epsilon }

/* What each family's Hugging Face class takes for a key that is not there, and what a real file's keys mean. */
static void knows_defaults_and_routers(void) {
  static const struct {
    const char *config;
    int64_t hidden, inner, num_experts, top_k, shared, num_layers;
    const char *layers; /* m = MoE, d = dense, for the first layers */
    bool has_bias;
    purr_router_desc_t router;
  } cases[] = {
      {"{\"model_type\": \"qwen2_moe\"}", 2048, 1408, 60, 4, 5632, 24, "mmm", false,
       ROUTER(SOFTMAX, 1, 1, 1, 0, 1.0f, 0.0f)},
      {"{\"model_type\": \"qwen3_moe\"}", 2048, 768, 128, 8, 0, 24, "mmm", false,
       ROUTER(SOFTMAX, 1, 1, 1, 0, 1.0f, 0.0f)},
      {"{\"model_type\": \"qwen3_moe\", \"norm_topk_prob\": true, \"decoder_sparse_step\": 2, "
       "\"mlp_only_layers\": [3, 1000], \"num_local_experts\": 16, \"num_experts\": 16}",
       2048, 768, 16, 8, 0, 24,
       "dmddd"
       "m",
       false, ROUTER(SOFTMAX, 1, 1, 1, 1, 1.0f, 0.0f)},
      {"{\"model_type\": \"deepseek_v2\", \"num_experts_per_tok\": 6, \"n_group\": 8, \"topk_group\": 3, "
       "\"routed_scaling_factor\": 16.0, \"n_shared_experts\": null, \"moe_layer_freq\": 2}",
       4096, 1407, 64, 6, 0, 32, "mdmd", false, ROUTER(SOFTMAX, 1, 1, 1, 0, 16.0f, 1e-20f)},
      {"{\"model_type\": \"deepseek_v2\", \"num_experts_per_tok\": 6, \"n_group\": 8, \"topk_group\": 3, "
       "\"topk_method\": \"group_limited_greedy\", \"n_routed_experts\": 160, \"moe_intermediate_size\": 1536, "
       "\"first_k_dense_replace\": 1}",
       4096, 1536, 160, 6, 3072, 32, "dmm", false, ROUTER(SOFTMAX, 8, 3, 1, 0, 1.0f, 1e-20f)},
      {"{\"model_type\": \"deepseek_v2\", \"num_experts_per_tok\": 6, \"norm_topk_prob\": true, "
       "\"routed_scaling_factor\": 16.0}",
       4096, 1407, 64, 6, 2814, 32, "mm", false, ROUTER(SOFTMAX, 1, 1, 1, 1, 1.0f, 1e-20f)},
      {"{\"model_type\": \"deepseek_v2\", \"num_experts_per_tok\": 1, \"norm_topk_prob\": true, "
       "\"routed_scaling_factor\": 16.0}",
       4096, 1407, 64, 1, 2814, 32, "mm", false, ROUTER(SOFTMAX, 1, 1, 1, 0, 16.0f, 1e-20f)},
      {"{\"model_type\": \"deepseek_v3\"}", 7168, 2048, 256, 8, 2048, 61, "dddm", true,
       ROUTER(SIGMOID, 8, 4, 2, 1, 2.5f, 1e-20f)},
      {"{\"model_type\": \"kimi_k2\", \"n_routed_experts\": 384, \"n_group\": 1, \"topk_group\": 1, "
       "\"first_k_dense_replace\": 1, \"routed_scaling_factor\": 2.827, \"scoring_func\": \"sigmoid\", "
       "\"topk_method\": \"noaux_tc\", \"hidden_act\": \"silu\"}",
       7168, 2048, 384, 8, 2048, 61, "dmm", true, ROUTER(SIGMOID, 1, 1, 2, 1, 2.827f, 1e-20f)},
      {"{\"model_type\": \"mixtral\"}", 4096, 14336, 8, 2, 0, 32, "mm", false, ROUTER(SOFTMAX, 1, 1, 1, 1, 1.0f, 0.0f)},
      {"{\"model_type\": \"olmoe\"}", 2048, 2048, 64, 8, 0, 16, "mm", false, ROUTER(SOFTMAX, 1, 1, 1, 0, 1.0f, 0.0f)},
      {"{\"model_type\": \"glm4_moe\"}", 4096, 1408, 128, 8, 1408, 46, "dmm", true,
       ROUTER(SIGMOID, 1, 1, 2, 1, 1.0f, 1e-20f)},
  };
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  folder_t folder;
  CU_ASSERT_FATAL(folder_create(&folder));
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    purr_checkpoint_t *checkpoint = checkpoint_of(context, &folder, cases[i].config);
    purr__model_t model;
    purr_error_t err;
    ASSERT_OK(purr__model_read(checkpoint, &model, &err));
    CU_ASSERT_EQUAL(model.hidden_size, cases[i].hidden);
    CU_ASSERT_EQUAL(model.intermediate_size, cases[i].inner);
    CU_ASSERT_EQUAL(model.num_experts, cases[i].num_experts);
    CU_ASSERT_EQUAL(model.top_k, cases[i].top_k);
    CU_ASSERT_EQUAL(model.shared_intermediate_size, cases[i].shared);
    CU_ASSERT_EQUAL(model.num_layers, cases[i].num_layers);
    CU_ASSERT_EQUAL(model.has_router_bias, cases[i].has_bias);
    CU_ASSERT(memcmp(&model.router, &cases[i].router, sizeof model.router) == 0);
    for (int64_t layer = 0; cases[i].layers[layer] != '\0'; layer++)
      CU_ASSERT_EQUAL(purr__model_is_moe(&model, layer), cases[i].layers[layer] == 'm');
    CU_ASSERT_FALSE(purr__model_is_moe(&model, -1));
    CU_ASSERT_FALSE(purr__model_is_moe(&model, model.num_layers));
    purr_checkpoint_destroy(checkpoint);
  }
  folder_remove(&folder);
  purr_context_destroy(context);
  CU_ASSERT_EQUAL(memory.num_live, 0);
}

static void refuses_wrong_configs(void) {
#define Q "{\"model_type\": \"qwen3_moe\", "
#define D "{\"model_type\": \"deepseek_v3\", "
  static const struct {
    const char *config;
    purr_status_t status;
    const char *part;
  } cases[] = {
      {"{}", PURR_STATUS_CHECKPOINT, "no model_type"},
      {"{\"model_type\": \"llama\"}", PURR_STATUS_UNSUPPORTED, "model_type is 'llama'; known are qwen2_moe, qwen3_moe"},
      {"{\"model_type\": 7}", PURR_STATUS_CHECKPOINT, "model_type is a number"},
      {"{\"model_type\": \"mixtral\", \"model_type\": \"olmoe\"}", PURR_STATUS_CHECKPOINT, "model_type is there twice"},
      {Q "\"hidden_size\": \"128\"}", PURR_STATUS_CHECKPOINT, "hidden_size is a string"},
      {Q "\"hidden_size\": 128.0}", PURR_STATUS_CHECKPOINT, "hidden_size is 128.0"},
      {Q "\"hidden_size\": 0}", PURR_STATUS_CHECKPOINT, "hidden_size is 0"},
      {Q "\"hidden_size\": -8}", PURR_STATUS_CHECKPOINT, "hidden_size is -8"},
      {Q "\"hidden_size\": 4294967424}", PURR_STATUS_CHECKPOINT, "hidden_size is 4294967424"},
      {Q "\"hidden_size\": 128, \"hidden\\u005fsize\": 128}", PURR_STATUS_CHECKPOINT, "hidden_size is there twice"},
      {Q "\"hidden_size\": 100}", PURR_STATUS_UNSUPPORTED, "Purr cannot run this layer: hidden_size is 100"},
      {Q "\"num_experts\": 8, \"num_local_experts\": 16}", PURR_STATUS_CHECKPOINT, "num_local_experts is 16, but"},
      {Q "\"num_experts\": 1048576}", PURR_STATUS_UNSUPPORTED, "num_experts is 1048576"},
      {Q "\"num_experts_per_tok\": 129}", PURR_STATUS_CHECKPOINT, "num_experts_per_tok is 129; allowed are 1 to"},
      {Q "\"hidden_act\": \"gelu\"}", PURR_STATUS_UNSUPPORTED, "hidden_act is 'gelu'; Purr can run silu"},
      {Q "\"norm_topk_prob\": 1}", PURR_STATUS_CHECKPOINT, "norm_topk_prob is a number; allowed are false, true"},
      {Q "\"decoder_sparse_step\": 0}", PURR_STATUS_CHECKPOINT, "decoder_sparse_step is 0"},
      {Q "\"decoder_sparse_step\": 25}", PURR_STATUS_CHECKPOINT, "none of the model's 24 decoder layers"},
      {Q "\"mlp_only_layers\": 3}", PURR_STATUS_CHECKPOINT, "mlp_only_layers is a number"},
      {Q "\"mlp_only_layers\": [-1]}", PURR_STATUS_CHECKPOINT, "mlp_only_layers is -1"},
      {Q "\"num_hidden_layers\": 1025}", PURR_STATUS_CHECKPOINT, "num_hidden_layers is 1025"},
      {Q "\"swiglu_limit\": -1.0}", PURR_STATUS_CHECKPOINT, "swiglu_limit is -1.0"},
      {Q "\"swiglu_limit\": 1e400}", PURR_STATUS_CHECKPOINT, "swiglu_limit is 1e400"},
      {Q "\"quantization_config\": []}", PURR_STATUS_CHECKPOINT, "quantization_config is an array"},
      {Q "\"quantization_config\": {\"weight_block_size\": [0, 128]}}", PURR_STATUS_CHECKPOINT,
       "weight_block_size is 0"},
      {Q "\"quantization_config\": {\"weight_block_size\": [128]}}", PURR_STATUS_CHECKPOINT,
       "weight_block_size is ']'"},
      {Q "\"quantization_config\": {\"weight_block_size\": [1, 2], \"weight_block_size\": [1, 2]}}",
       PURR_STATUS_CHECKPOINT, "the same key twice"},
      {D "\"n_group\": 7}", PURR_STATUS_CHECKPOINT, "n_group must divide the 256 experts"},
      {D "\"n_group\": 0}", PURR_STATUS_CHECKPOINT, "n_group is 0"},
      {D "\"topk_group\": 9}", PURR_STATUS_CHECKPOINT, "topk_group 9"},
      {D "\"n_group\": 128, \"topk_group\": 3}", PURR_STATUS_CHECKPOINT, "too small to choose 8 experts"},
      {D "\"n_group\": 256, \"topk_group\": 256}", PURR_STATUS_CHECKPOINT, "too small"},
      {D "\"topk_method\": \"magic\"}", PURR_STATUS_UNSUPPORTED, "topk_method is 'magic'"},
      {D "\"scoring_func\": \"tanh\"}", PURR_STATUS_UNSUPPORTED, "scoring_func is 'tanh'"},
      {D "\"routed_scaling_factor\": \"2.5\"}", PURR_STATUS_CHECKPOINT, "routed_scaling_factor is a string"},
      {D "\"mlp_bias\": true}", PURR_STATUS_UNSUPPORTED, "mlp_bias is true"},
      {D "\"first_k_dense_replace\": 61}", PURR_STATUS_CHECKPOINT, "none of the model's 61"},
      {"{\"model_type\": \"deepseek_v2\"}", PURR_STATUS_CHECKPOINT, "num_experts_per_tok is 0"},
  };
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  folder_t folder;
  CU_ASSERT_FATAL(folder_create(&folder));
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    purr_checkpoint_t *checkpoint = checkpoint_of(context, &folder, cases[i].config);
    purr_config_t *config = (purr_config_t *)1;
    purr_checkpoint_layer_t *layer = (purr_checkpoint_layer_t *)1;
    purr_error_t err;
    ASSERT_STATUS(cases[i].status, purr_checkpoint_load_layer(checkpoint, -1, 0, 1, &layer, &err));
    ASSERT_STATUS(cases[i].status, purr_checkpoint_create_config(checkpoint, -1, &config, &err));
    CU_ASSERT(config == NULL && layer == NULL);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "config.json"));
    if (strstr(err.message, cases[i].part) == NULL)
      fprintf(stderr, "case %zu: '%s' does not say '%s'\n", i, err.message, cases[i].part);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, cases[i].part));
    purr_checkpoint_destroy(checkpoint);
  }
  folder_remove(&folder);
  purr_context_destroy(context);
  CU_ASSERT_EQUAL(memory.num_live, 0);
}

static void chooses_layers(void) {
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  folder_t folder;
  CU_ASSERT_FATAL(folder_create(&folder));
  purr_checkpoint_t *checkpoint =
      checkpoint_of(context, &folder, "{\"model_type\": \"deepseek_v3\", \"swiglu_limit\": 7.5}");
  static const struct {
    int64_t layer;
    const char *part;
  } bad[] = {{0, "layer 0 is dense; the first with experts is 3"},
             {2, "is dense"},
             {61, "layer is 61; allowed are 0 to 60"},
             {-2, "layer is -2"},
             {INT64_MAX, "allowed are 0 to 60"},
             {INT64_MIN, "allowed are 0 to 60"}};
  purr_error_t err;
  purr_config_t *config = NULL;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_checkpoint_create_config(checkpoint, bad[i].layer, &config, &err));
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, bad[i].part));
  }
  ASSERT_OK(purr_checkpoint_create_config(checkpoint, -1, &config, &err));
  char yaml[4096];
  uint64_t length;
  ASSERT_OK(purr_config_write(config, yaml, sizeof yaml, &length, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(yaml, "deepseek_v3 layer 3"));
  purr_layer_desc_t desc = PURR_LAYER_DESC_INIT;
  ASSERT_OK(purr_config_get_layer(config, &desc, &err));
  CU_ASSERT_EQUAL(desc.swiglu_limit, 7.5f);
  purr_config_destroy(config);
  purr_checkpoint_destroy(checkpoint);
  folder_remove(&folder);
  purr_context_destroy(context);
}

int main(void) {
  return purr_test_main("families", (purr_test_t[]){{"reads every family", reads_every_family},
                                                    {"turns FP8 into BF16", turns_fp8_into_bf16},
                                                    {"says what it looked for", says_what_it_looked_for},
                                                    {"loads without a router", loads_without_a_router},
                                                    {"knows defaults and routers", knows_defaults_and_routers},
                                                    {"refuses wrong configs", refuses_wrong_configs},
                                                    {"chooses layers", chooses_layers},
                                                    {0}});
}
