/* Opening checkpoints: the given real ones, folders with shards, what must be refused, and what stays on failure. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "support/allocator.h"
#include "support/checkpoint.h"
#include "support/main.h"

static const char qwen[] = PURR_TEST_DATA "/qwen3-moe", deepseek[] = PURR_TEST_DATA "/deepseek-v3";

static purr_context_t *make_context(purr_test_allocator_t *memory) {
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  purr_test_allocator_init(memory);
  desc.num_threads = 1;
  desc.host_allocator = &memory->hooks;
  purr_context_t *context = NULL;
  purr_error_t err = PURR_ERROR_INIT;
  ASSERT_OK(purr_context_create(&desc, &context, &err));
  return context;
}

static void end(purr_context_t *context, const purr_test_allocator_t *memory) {
  purr_context_destroy(context);
  CU_ASSERT_EQUAL(memory->num_live, 0);
  CU_ASSERT_EQUAL(memory->num_wrong, 0);
}

/* Opening must fail with a status and a sentence that has `part`; nothing may stay behind. */
#define ASSERT_REFUSED(expected, path, part)                                                                   \
  do {                                                                                                         \
    purr_checkpoint_t *refused_ = (purr_checkpoint_t *)1;                                                      \
    long long live_ = memory.num_live;                                                                         \
    ASSERT_STATUS(expected, purr_checkpoint_open(context, path, &refused_, &err));                             \
    CU_ASSERT_PTR_NULL(refused_);                                                                              \
    CU_ASSERT_EQUAL(memory.num_live, live_);                                                                   \
    if (strstr(err.message, part) == NULL)                                                                     \
      fprintf(stderr, "%s:%d: '%s' does not say '%s'\n", __FILE__, __LINE__, err.message, (const char *)part); \
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, part));                                                         \
  } while (0)

static void add_bytes(writer_t *writer, const char *name, int64_t num_bytes) {
  static const unsigned char data[64] = {1, 2, 3, 4, 5, 6, 7, 8};
  writer_add(writer, name, "U8", 1, &num_bytes, data, (size_t)num_bytes);
}

/* ---- the real ones ---- */

static void opens_the_real_checkpoints(void) {
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  static const struct {
    const char *path, *name;
    int64_t layer, num_tensors;
    purr_layer_desc_t desc;
    purr_router_desc_t router;
    bool has_bias;
  } cases[] = {
      {qwen,
       "qwen3_moe layer 1",
       1,
       117,
       {.hidden_size = 128, .intermediate_size = 64, .num_experts = 16, .top_k = 4},
       {.scoring = PURR_ROUTER_SOFTMAX,
        .num_groups = 1,
        .num_top_groups = 1,
        .group_top = 1,
        .normalize = 1,
        .scaling = 1.0f},
       false},
      {deepseek,
       "deepseek_v3 layer 1",
       -1,
       77,
       {.hidden_size = 128, .intermediate_size = 64, .num_experts = 16, .top_k = 4, .shared_intermediate_size = 128},
       {.scoring = PURR_ROUTER_SIGMOID,
        .num_groups = 4,
        .num_top_groups = 2,
        .group_top = 2,
        .normalize = 1,
        .scaling = 2.5f,
        .normalize_epsilon = 1e-20f},
       true},
  };
  for (size_t i = 0; i < 2; i++) {
    purr_error_t err;
    purr_checkpoint_t *checkpoint = NULL;
    REQUIRE_OK(purr_checkpoint_open(context, cases[i].path, &checkpoint, &err));
    CU_ASSERT_EQUAL(purr_checkpoint_num_tensors(checkpoint), cases[i].num_tensors);
    for (int64_t j = 1; j < cases[i].num_tensors; j++)
      CU_ASSERT(strcmp(purr_checkpoint_tensor_name(checkpoint, j - 1), purr_checkpoint_tensor_name(checkpoint, j)) < 0);
    CU_ASSERT_PTR_NULL(purr_checkpoint_tensor_name(checkpoint, -1));
    CU_ASSERT_PTR_NULL(purr_checkpoint_tensor_name(checkpoint, cases[i].num_tensors));

    purr_config_t *config = NULL;
    purr_layer_desc_t desc = PURR_LAYER_DESC_INIT;
    REQUIRE_OK(purr_checkpoint_create_config(checkpoint, cases[i].layer, &config, &err));
    ASSERT_OK(purr_config_get_layer(config, &desc, &err));
    CU_ASSERT_EQUAL(desc.hidden_size, cases[i].desc.hidden_size);
    CU_ASSERT_EQUAL(desc.intermediate_size, cases[i].desc.intermediate_size);
    CU_ASSERT_EQUAL(desc.num_experts, cases[i].desc.num_experts);
    CU_ASSERT_EQUAL(desc.top_k, cases[i].desc.top_k);
    CU_ASSERT_EQUAL(desc.shared_intermediate_size, cases[i].desc.shared_intermediate_size);
    CU_ASSERT_EQUAL(desc.shared_gate, PURR_SHARED_GATE_NONE);
    char yaml[4096];
    uint64_t length;
    ASSERT_OK(purr_config_write(config, yaml, sizeof yaml, &length, &err));
    CU_ASSERT_PTR_NOT_NULL(strstr(yaml, cases[i].name));
    purr_config_destroy(config);

    purr_checkpoint_layer_t *layer = NULL;
    REQUIRE_OK(purr_checkpoint_load_layer(checkpoint, cases[i].layer, 0, 1, &layer, &err));
    purr_router_desc_t router = {.struct_size = sizeof router};
    purr_tensor_t weight = {.struct_size = sizeof weight}, bias = {.struct_size = sizeof bias};
    ASSERT_OK(purr_checkpoint_layer_get_router(layer, &router, &weight, &bias, &err));
    purr_router_desc_t expected = cases[i].router;
    expected.struct_size = sizeof expected;
    CU_ASSERT(memcmp(&router, &expected, sizeof router) == 0);
    CU_ASSERT(weight.dtype == PURR_DTYPE_FP32 && weight.num_dims == 2 && weight.shape[0] == 16 &&
              weight.shape[1] == 128);
    CU_ASSERT_EQUAL(bias.num_dims, cases[i].has_bias ? 1 : 0);
    if (cases[i].has_bias) CU_ASSERT(bias.dtype == PURR_DTYPE_FP32 && bias.shape[0] == 16);
    purr_checkpoint_layer_destroy(layer);
    purr_checkpoint_destroy(checkpoint);
  }
  end(context, &memory);
}

/* Every rank count hands out the tensors of its experts, at the addresses that find gives. */
static void splits_experts_over_ranks(void) {
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  purr_error_t err;
  purr_checkpoint_t *checkpoint = NULL;
  REQUIRE_OK(purr_checkpoint_open(context, qwen, &checkpoint, &err));
  for (int32_t num_ranks = 1; num_ranks <= 16; num_ranks *= 2)
    for (int32_t rank = 0; rank < num_ranks; rank++) {
      purr_checkpoint_layer_t *layer = NULL;
      purr_weights_desc_t weights = PURR_WEIGHTS_DESC_INIT;
      REQUIRE_OK(purr_checkpoint_load_layer(checkpoint, 1, rank, num_ranks, &layer, &err));
      ASSERT_OK(purr_checkpoint_layer_get_weights(layer, &weights, &err));
      CU_ASSERT(weights.gate_up == NULL && weights.shared_gate == NULL && weights.shared_expert_gate == NULL);
      int64_t num_local = 16 / num_ranks;
      CU_ASSERT(weights.gate->shape[0] == num_local && weights.gate->shape[1] == 64 && weights.gate->shape[2] == 128);
      CU_ASSERT(weights.down->shape[0] == num_local && weights.down->shape[1] == 128 && weights.down->shape[2] == 64);
      const purr_tensor_t *tensors[] = {weights.gate, weights.up, weights.down};
      static const char *const projections[] = {"gate", "up", "down"};
      for (int64_t e = 0; e < num_local; e++)
        for (int p = 0; p < 3; p++) {
          char name[96];
          snprintf(name, sizeof name, "model.layers.1.mlp.experts.%d.%s_proj.weight", (int)(rank * num_local + e),
                   projections[p]);
          purr_tensor_t found = {.struct_size = sizeof found};
          ASSERT_OK(purr_checkpoint_find(checkpoint, name, &found, &err));
          CU_ASSERT_PTR_EQUAL(tensors[p]->pointers[e], found.data);
          CU_ASSERT_EQUAL((uintptr_t)found.data % 16, 0);
        }
      purr_checkpoint_layer_destroy(layer);
    }
  static const struct {
    int32_t rank, num_ranks;
    const char *message;
  } bad[] = {{0, 3, "16 experts are not divisible by num_ranks 3"},
             {0, 32, "not divisible"},
             {0, 0, "num_ranks 0"},
             {0, -1, "num_ranks -1"},
             {-1, 2, "rank is -1"},
             {2, 2, "rank is 2"}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    purr_checkpoint_layer_t *layer = (purr_checkpoint_layer_t *)1;
    ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT,
                  purr_checkpoint_load_layer(checkpoint, 1, bad[i].rank, bad[i].num_ranks, &layer, &err));
    CU_ASSERT_PTR_NULL(layer);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, bad[i].message));
  }
  purr_checkpoint_destroy(checkpoint);
  end(context, &memory);
}

static void reads_a_capture(void) {
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  purr_error_t err;
  purr_checkpoint_t *capture = NULL;
  REQUIRE_OK(purr_checkpoint_open(context, PURR_TEST_DATA "/qwen3-moe/capture.safetensors", &capture, &err));
  purr_tensor_t ids = {.struct_size = sizeof ids};
  ASSERT_OK(purr_checkpoint_find(capture, "input.topk_ids", &ids, &err));
  CU_ASSERT(ids.dtype == PURR_DTYPE_INT64 && ids.num_dims == 2 && ids.shape[0] == 96 && ids.shape[1] == 4);
  for (int i = 0; i < 96 * 4; i++)
    CU_ASSERT(((const int64_t *)ids.data)[i] >= 0 && ((const int64_t *)ids.data)[i] < 16);
  ASSERT_STATUS(PURR_STATUS_CHECKPOINT, purr_checkpoint_find(capture, "input.y", &ids, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "'input.y'"));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "nearest name is 'input.x'"));
  purr_config_t *config = NULL;
  ASSERT_STATUS(PURR_STATUS_CHECKPOINT, purr_checkpoint_create_config(capture, -1, &config, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "no config.json"));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_checkpoint_find(capture, NULL, &ids, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_checkpoint_find(capture, "input.x", NULL, &err));
  char text[4096];
  uint64_t length = 0;
  ASSERT_OK(purr_checkpoint_describe(capture, PURR_FORMAT_TEXT, text, sizeof text, &length, &err));
  CU_ASSERT_EQUAL(length, strlen(text));
  CU_ASSERT_PTR_NOT_NULL(strstr(text, "input.topk_ids"));
  ASSERT_STATUS(PURR_STATUS_BUFFER_TOO_SMALL,
                purr_checkpoint_describe(capture, PURR_FORMAT_TEXT, text, length, &length, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_checkpoint_describe(capture, 2, text, sizeof text, &length, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_checkpoint_describe(NULL, 0, text, sizeof text, &length, &err));
  ASSERT_OK(purr_checkpoint_describe(capture, PURR_FORMAT_JSON, text, sizeof text, &length, &err));
  purr__json_t json;
  purr__json_begin(&json, text, length, "description", &err);
  purr__json_skip(&json);
  CU_ASSERT_EQUAL(purr__json_next(&json), PURR__JSON_END);
  purr_checkpoint_destroy(capture);
  end(context, &memory);
}

/* ---- tensors at odd places ---- */

static void aligns_what_is_not(void) {
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  folder_t folder;
  CU_ASSERT_FATAL(folder_create(&folder));
  float values[12];
  for (int i = 0; i < 12; i++) values[i] = (float)i * 1.5f;
  for (size_t shift = 0; shift < 17; shift++) {
    purr_error_t err;
    writer_t writer = {0};
    writer_add(&writer, "a", "F32", 2, (int64_t[]){3, 4}, values, sizeof values);
    writer_add(&writer, "empty", "F32", 2, (int64_t[]){0, 4}, NULL, 0);
    writer_add(&writer, "scalar", "F32", 0, NULL, values + 7, 4);
    writer_add(&writer, "five", "U8", 5, (int64_t[]){1, 1, 1, 1, 1}, values, 1);
    writer_add(&writer, "nibbles", "F4", 1, (int64_t[]){2}, values, 1);
    CU_ASSERT_FATAL(writer_write(&writer, &folder, "t.safetensors", shift));
    purr_checkpoint_t *checkpoint = NULL;
    REQUIRE_OK(purr_checkpoint_open(context, folder_path(&folder, "t.safetensors"), &checkpoint, &err));
    purr_tensor_t a = {.struct_size = sizeof a}, again = {.struct_size = sizeof again},
                  other = {.struct_size = sizeof a};
    ASSERT_OK(purr_checkpoint_find(checkpoint, "a", &a, &err));
    CU_ASSERT_EQUAL((uintptr_t)a.data % 16, 0);
    CU_ASSERT(memcmp(a.data, values, sizeof values) == 0);
    ASSERT_OK(purr_checkpoint_find(checkpoint, "a", &again, &err));
    CU_ASSERT_PTR_EQUAL(a.data, again.data);
    ASSERT_OK(purr_checkpoint_find(checkpoint, "scalar", &other, &err));
    CU_ASSERT(other.num_dims == 1 && other.shape[0] == 1 && *(float *)other.data == values[7]);
    ASSERT_OK(purr_checkpoint_find(checkpoint, "empty", &other, &err));
    CU_ASSERT(other.num_dims == 2 && other.shape[0] == 0 && other.shape[1] == 4);
    ASSERT_STATUS(PURR_STATUS_UNSUPPORTED, purr_checkpoint_find(checkpoint, "five", &other, &err));
    ASSERT_STATUS(PURR_STATUS_UNSUPPORTED, purr_checkpoint_find(checkpoint, "nibbles", &other, &err));
    purr_checkpoint_destroy(checkpoint);
  }
  folder_remove(&folder);
  end(context, &memory);
}

static void notices_a_file_that_changed(void) {
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  folder_t folder;
  CU_ASSERT_FATAL(folder_create(&folder));
  purr_error_t err;
  writer_t writer = {0};
  add_bytes(&writer, "a", 64);
  CU_ASSERT_FATAL(writer_write(&writer, &folder, "t.safetensors", 0));
  purr_checkpoint_t *checkpoint = NULL;
  REQUIRE_OK(purr_checkpoint_open(context, folder_path(&folder, "t.safetensors"), &checkpoint, &err));
  purr_tensor_t tensor = {.struct_size = sizeof tensor};
  ASSERT_OK(purr_checkpoint_find(checkpoint, "a", &tensor, &err));
  CU_ASSERT_EQUAL_FATAL(truncate(folder_path(&folder, "t.safetensors"), 20), 0);
  ASSERT_STATUS(PURR_STATUS_CHECKPOINT, purr_checkpoint_find(checkpoint, "a", &tensor, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "when it was opened and has 20 now"));
  purr_checkpoint_destroy(checkpoint);
  folder_remove(&folder);
  end(context, &memory);
}

/* ---- folders ---- */

static void refuses_bad_places(void) {
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  folder_t folder;
  CU_ASSERT_FATAL(folder_create(&folder));
  purr_error_t err;
  ASSERT_REFUSED(PURR_STATUS_INVALID_ARGUMENT, NULL, "path is NULL");
  ASSERT_REFUSED(PURR_STATUS_INVALID_ARGUMENT, "", "path is empty");
  ASSERT_REFUSED(PURR_STATUS_IO, "/nonexistent/x", "cannot be opened");
  CU_ASSERT(err.native_code != 0);
  ASSERT_REFUSED(PURR_STATUS_IO, folder.path, "neither model.safetensors nor model.safetensors.index.json");
  ASSERT_REFUSED(PURR_STATUS_IO, "/dev/null", "not a regular file");
  CU_ASSERT_EQUAL_FATAL(mkfifo(folder_path(&folder, "fifo"), 0600), 0);
  ASSERT_REFUSED(PURR_STATUS_IO, folder_path(&folder, "fifo"), "not a regular file");
  CU_ASSERT(folder_write(&folder, "empty", NULL, 0));
  ASSERT_REFUSED(PURR_STATUS_CHECKPOINT, folder_path(&folder, "empty"), "has 0 bytes");
  ASSERT_REFUSED(PURR_STATUS_CHECKPOINT, PURR_TEST_DATA "/qwen3-moe/config.json", "no safetensors file");
  char long_path[5000];
  memset(long_path, 'a', sizeof long_path - 1);
  long_path[sizeof long_path - 1] = '\0';
  ASSERT_REFUSED(PURR_STATUS_IO, long_path, "cannot be opened");
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_checkpoint_open(context, qwen, NULL, &err));
  purr_checkpoint_t *checkpoint = (purr_checkpoint_t *)1;
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_checkpoint_open(NULL, qwen, &checkpoint, &err));
  CU_ASSERT_PTR_NULL(checkpoint);
  CU_ASSERT_EQUAL(purr_checkpoint_num_tensors(NULL), 0);
  CU_ASSERT_PTR_NULL(purr_checkpoint_tensor_name(NULL, 0));
  purr_checkpoint_destroy(NULL);
  purr_checkpoint_layer_destroy(NULL);
  folder_remove(&folder);
  end(context, &memory);
}

static void refuses_a_tensor_that_is_there_twice(void) {
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  folder_t folder;
  CU_ASSERT_FATAL(folder_create(&folder));
  purr_error_t err;
  static const char header[] =
      "{\"ab\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
      "\"\\u0061b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}";
  size_t num_bytes;
  unsigned char *file = file_from_header(header, sizeof header - 1, 2, &num_bytes);
  CU_ASSERT(folder_write(&folder, "t.safetensors", file, num_bytes));
  free(file);
  ASSERT_REFUSED(PURR_STATUS_CHECKPOINT, folder_path(&folder, "t.safetensors"), "tensor 'ab' is there twice");
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "the same file"));
  folder_remove(&folder);
  end(context, &memory);
}

#define INDEX(map) "{\"metadata\": {\"total_size\": 6}, \"weight_map\": " map "}"

static void opens_shards(void) {
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  folder_t folder;
  CU_ASSERT_FATAL(folder_create(&folder));
  purr_error_t err;
  writer_t writer = {0};
  add_bytes(&writer, "b", 3);
  add_bytes(&writer, "c", 1);
  CU_ASSERT(writer_write(&writer, &folder, "model-00001-of-00002.safetensors", 0));
  add_bytes(&writer, "a", 2);
  add_bytes(&writer, "d", 4);
  CU_ASSERT(writer_write(&writer, &folder, "model-00002-of-00002.safetensors", 0));
  CU_ASSERT(
      folder_write_text(&folder, "model.safetensors.index.json",
                        INDEX("{\"b\": \"model-00001-of-00002.safetensors\", \"a\": "
                              "\"model-00002-of-00002.safetensors\", \"c\": \"model-00001-of-00002.safetensors\"}")));
  purr_checkpoint_t *checkpoint = NULL;
  REQUIRE_OK(purr_checkpoint_open(context, folder.path, &checkpoint, &err));
  CU_ASSERT_EQUAL(purr_checkpoint_num_tensors(checkpoint), 4); /* d, which the index forgot, too */
  for (int i = 0; i < 4; i++) {
    static const int64_t sizes[] = {2, 3, 1, 4};
    char name[2] = {(char)('a' + i), '\0'};
    purr_tensor_t tensor = {.struct_size = sizeof tensor};
    CU_ASSERT_STRING_EQUAL(purr_checkpoint_tensor_name(checkpoint, i), name);
    ASSERT_OK(purr_checkpoint_find(checkpoint, name, &tensor, &err));
    CU_ASSERT_EQUAL(tensor.shape[0], sizes[i]);
    CU_ASSERT_EQUAL(*(const char *)tensor.data, 1);
  }
  purr_checkpoint_destroy(checkpoint);

  /* A shard that is not there: its tensors are missed only when somebody asks. */
  unlink(folder_path(&folder, "model-00002-of-00002.safetensors"));
  REQUIRE_OK(purr_checkpoint_open(context, folder.path, &checkpoint, &err));
  CU_ASSERT_EQUAL(purr_checkpoint_num_tensors(checkpoint), 2);
  purr_tensor_t tensor = {.struct_size = sizeof tensor};
  ASSERT_OK(purr_checkpoint_find(checkpoint, "b", &tensor, &err));
  ASSERT_STATUS(PURR_STATUS_CHECKPOINT, purr_checkpoint_find(checkpoint, "a", &tensor, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "in the shard 'model-00002-of-00002.safetensors', which is not"));
  char text[2048];
  uint64_t length;
  ASSERT_OK(purr_checkpoint_describe(checkpoint, PURR_FORMAT_TEXT, text, sizeof text, &length, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(text, "1 of 2"));
  CU_ASSERT_PTR_NOT_NULL(strstr(text, "missing    model-00002-of-00002.safetensors"));
  purr_checkpoint_destroy(checkpoint);
  unlink(folder_path(&folder, "model-00001-of-00002.safetensors"));
  ASSERT_REFUSED(PURR_STATUS_IO, folder.path, "of which none is there");
  folder_remove(&folder);
  end(context, &memory);
}

static void refuses_bad_indexes(void) {
  static const struct {
    const char *index, *message;
  } cases[] = {
      {INDEX("{\"a\": \"../x.safetensors\"}"), "no plain file name"},
      {INDEX("{\"a\": \"/etc/x.safetensors\"}"), "no plain file name"},
      {INDEX("{\"a\": \"sub\\/x.safetensors\"}"), "no plain file name"},
      {INDEX("{\"a\": \"..\"}"), "no plain file name"},
      {INDEX("{\"a\": \".safetensors\"}"), "no plain file name"},
      {INDEX("{\"a\": \"x.bin\"}"), "no plain file name"},
      {INDEX("{\"a\": \"\"}"), "no plain file name"},
      {INDEX("{\"a\": \"x\\u0000.safetensors\"}"), "no plain file name"},
      {INDEX("{\"a\": 1}"), "is a number"},
      {INDEX("{\"a\": null}"), "is null"},
      {INDEX("{}"), "weight_map is empty"},
      {INDEX("[]"), "weight_map is an array"},
      {"{}", "no weight_map"},
      {"[]", "the index is an array"},
      {INDEX("{\"a\": \"s.safetensors\"}, \"weight_map\": {}"), "two weight_map"},
      {INDEX("{\"a\": \"s.safetensors\"}") "x", "the end of the text"},
      {INDEX("{\"a\": \"s.safetensors\", \"a\": \"s.safetensors\"}"), "'a' is in weight_map twice"},
      {INDEX("{\"a\": \"s.safetensors\", \"z\": \"s.safetensors\"}"),
       "'z' should be in 's.safetensors', but is not there"},
      {INDEX("{\"a\": \"t.safetensors\"}"), "'a' should be in 't.safetensors', but is not there"},
      {INDEX("{\"a\": \"t.safetensors\", \"t\": \"s.safetensors\"}"),
       "'a' should be in 't.safetensors', but is in s.safetensors"},
      {INDEX("{\"a\": \"s.safetensors\", \"q\": \"gone.safetensors\", \"q\": \"gone.safetensors\"}"),
       "'q' is in weight_map twice"},
      {INDEX("{\"a\": \"s.safetensors\", \"u\": \"twice.safetensors\"}"), "tensor 'a' is there twice"},
      {INDEX("{\"a\": \"s.safetensors\", \"v\": \"bad.safetensors\"}"), "cut short"},
      {INDEX("{\"a\": \"link.safetensors\"}"), "links may lead"},
      {INDEX("{\"a\": \"chain.safetensors\"}"), "links may lead"},
      {INDEX("{\"a\": \"up.safetensors\"}"), "links may lead"},
      {INDEX("{\"a\": \"dir.safetensors\"}"), "not a regular file"},
  };
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  folder_t folder;
  CU_ASSERT_FATAL(folder_create(&folder));
  purr_error_t err;
  writer_t writer = {0};
  add_bytes(&writer, "a", 2);
  CU_ASSERT(writer_write(&writer, &folder, "s.safetensors", 0));
  add_bytes(&writer, "a", 2);
  add_bytes(&writer, "u", 2);
  CU_ASSERT(writer_write(&writer, &folder, "twice.safetensors", 0));
  add_bytes(&writer, "t", 2);
  CU_ASSERT(writer_write(&writer, &folder, "t.safetensors", 0));
  CU_ASSERT(folder_write(&folder, "bad.safetensors", "\x40\0\0\0\0\0\0\0{", 9));
  CU_ASSERT_EQUAL(symlink(PURR_TEST_DATA "/qwen3-moe/model.safetensors", folder_path(&folder, "link.safetensors")), 0);
  CU_ASSERT_EQUAL(symlink("link.safetensors", folder_path(&folder, "chain.safetensors")), 0);
  CU_ASSERT_EQUAL(symlink("../x.safetensors", folder_path(&folder, "up.safetensors")), 0);
  CU_ASSERT_EQUAL(mkdir(folder_path(&folder, "dir.safetensors"), 0700), 0);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    CU_ASSERT(folder_write_text(&folder, "model.safetensors.index.json", cases[i].index));
    purr_status_t expected = strstr(cases[i].message, "regular file") ? PURR_STATUS_IO : PURR_STATUS_CHECKPOINT;
    ASSERT_REFUSED(expected, folder.path, cases[i].message);
  }
  rmdir(folder_path(&folder, "dir.safetensors"));
  folder_remove(&folder);
  end(context, &memory);
}

/* Links inside the folder, and those of the Hugging Face cache: snapshots/REVISION/NAME -> ../../blobs/HASH. */
static void follows_the_links_of_the_cache(void) {
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  folder_t root, blobs, snapshots, revision;
  CU_ASSERT_FATAL(folder_create(&root));
  snprintf(blobs.path, sizeof blobs.path, "%.200s/blobs", root.path);
  snprintf(snapshots.path, sizeof snapshots.path, "%.200s/snapshots", root.path);
  snprintf(revision.path, sizeof revision.path, "%.200s/snapshots/abc", root.path);
  CU_ASSERT_FATAL(mkdir(blobs.path, 0700) == 0 && mkdir(snapshots.path, 0700) == 0 && mkdir(revision.path, 0700) == 0);
  purr_error_t err;
  writer_t writer = {0};
  add_bytes(&writer, "a", 2);
  CU_ASSERT(writer_write(&writer, &blobs, "0123", 0));
  CU_ASSERT_EQUAL(symlink("../../blobs/0123", folder_path(&revision, "model.safetensors")), 0);
  purr_checkpoint_t *checkpoint = NULL;
  ASSERT_OK(purr_checkpoint_open(context, revision.path, &checkpoint, &err));
  CU_ASSERT_EQUAL(purr_checkpoint_num_tensors(checkpoint), 1);
  purr_checkpoint_destroy(checkpoint);
  CU_ASSERT_EQUAL(rename(folder_path(&blobs, "0123"), folder_path(&revision, "here")), 0);
  unlink(folder_path(&revision, "model.safetensors"));
  CU_ASSERT_EQUAL(symlink("here", folder_path(&revision, "model.safetensors")), 0);
  ASSERT_OK(purr_checkpoint_open(context, revision.path, &checkpoint, &err));
  purr_checkpoint_destroy(checkpoint);
  static const char *const targets[] = {"../../blobs/../here", "../../blobs/..", "../../snapshots/abc/here", "../here"};
  for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
    unlink(folder_path(&revision, "model.safetensors"));
    CU_ASSERT_EQUAL(symlink(targets[i], folder_path(&revision, "model.safetensors")), 0);
    ASSERT_REFUSED(PURR_STATUS_CHECKPOINT, revision.path, "links may lead");
  }
  folder_remove(&revision);
  folder_remove(&snapshots);
  folder_remove(&blobs);
  folder_remove(&root);
  rmdir(root.path);
  end(context, &memory);
}

static void refuses_bad_config_files(void) {
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  folder_t folder;
  CU_ASSERT_FATAL(folder_create(&folder));
  purr_error_t err;
  writer_t writer = {0};
  add_bytes(&writer, "a", 2);
  CU_ASSERT(writer_write(&writer, &folder, "model.safetensors", 0));
  static const struct {
    const char *config, *message;
    int line, column;
  } cases[] = {{"", "the text ends", 1, 1},
               {"[]", "the file is an array", 1, 1},
               {"{\"a\": 1,}", "config.json:1:9: found '}'", 1, 9},
               {"{\n  \"a\": 1\n  \"b\": 2}", "config.json:3:3: found '\"'", 3, 3},
               {"{} {}", "the end of the text", 1, 4}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    CU_ASSERT(folder_write_text(&folder, "config.json", cases[i].config));
    ASSERT_REFUSED(PURR_STATUS_CHECKPOINT, folder.path, cases[i].message);
    CU_ASSERT_EQUAL(err.line, cases[i].line);
    CU_ASSERT_EQUAL(err.column, cases[i].column);
  }
  char *large = calloc(1, (1 << 20) + 1);
  CU_ASSERT(folder_write(&folder, "config.json", large, (1 << 20) + 1));
  free(large);
  ASSERT_REFUSED(PURR_STATUS_CHECKPOINT, folder.path, "allowed are 1048576");
  folder_remove(&folder);
  end(context, &memory);
}

/* ---- lifetime and failing memory ---- */

static void layers_outlive_their_checkpoint(void) {
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  purr_error_t err;
  purr_checkpoint_t *checkpoint = NULL;
  purr_checkpoint_layer_t *layer = NULL;
  REQUIRE_OK(purr_checkpoint_open(context, deepseek, &checkpoint, &err));
  REQUIRE_OK(purr_checkpoint_load_layer(checkpoint, 1, 1, 4, &layer, &err));
  purr_checkpoint_destroy(checkpoint);
  purr_context_destroy(context);
  purr_weights_desc_t weights = PURR_WEIGHTS_DESC_INIT;
  ASSERT_OK(purr_checkpoint_layer_get_weights(layer, &weights, &err));
  CU_ASSERT_EQUAL(weights.down->shape[0], 4);
  uint32_t sum = 0;
  for (int e = 0; e < 4; e++)
    for (int i = 0; i < 128 * 64; i++) sum += ((const uint16_t *)weights.down->pointers[e])[i];
  CU_ASSERT(sum != 0);
  purr_checkpoint_layer_destroy(layer);
  CU_ASSERT_EQUAL(memory.num_live, 0);
}

/* Fails the Nth allocation, once or from there on, until all goes well. */
static void survives_failing_memory(void) {
  folder_t folder;
  CU_ASSERT_FATAL(folder_create(&folder));
  writer_t writer = {0};
  add_bytes(&writer, "b", 3);
  CU_ASSERT(writer_write(&writer, &folder, "1.safetensors", 1));
  CU_ASSERT(folder_write_text(&folder, "model.safetensors.index.json",
                              INDEX("{\"b\": \"1.safetensors\", \"c\": \"2.safetensors\", \"d\": \"2.safetensors\"}")));
  for (int for_good = 0; for_good < 2; for_good++) {
    bool failed = true;
    for (int n = 1; failed; n++) {
      CU_ASSERT_FATAL(n < 500);
      purr_test_allocator_t memory;
      purr_context_t *context = make_context(&memory);
      purr_error_t err = PURR_ERROR_INIT;
      long long live = memory.num_live;
      memory.fail_at = memory.num_calls + n;
      memory.fail_for_good = for_good != 0;
      purr_checkpoint_t *checkpoint = NULL, *shards = NULL;
      purr_checkpoint_layer_t *layer = NULL;
      purr_config_t *config = NULL;
      purr_tensor_t tensor = {.struct_size = sizeof tensor};
      char text[16384];
      uint64_t length;
      purr_status_t status = purr_checkpoint_open(context, deepseek, &checkpoint, &err);
      if (status == PURR_STATUS_OK) status = purr_checkpoint_create_config(checkpoint, -1, &config, &err);
      if (status == PURR_STATUS_OK) status = purr_checkpoint_load_layer(checkpoint, -1, 0, 2, &layer, &err);
      if (status == PURR_STATUS_OK)
        status = purr_checkpoint_describe(checkpoint, PURR_FORMAT_JSON, text, sizeof text, &length, &err);
      if (status == PURR_STATUS_OK) status = purr_checkpoint_open(context, folder.path, &shards, &err);
      if (status == PURR_STATUS_OK) status = purr_checkpoint_find(shards, "b", &tensor, &err);
      failed = status != PURR_STATUS_OK;
      if (failed) CU_ASSERT_EQUAL(status, PURR_STATUS_OUT_OF_HOST_MEMORY);
      if (!failed) CU_ASSERT(n > 15); /* that many places could fail at least */
      purr_checkpoint_layer_destroy(layer);
      purr_config_destroy(config);
      purr_checkpoint_destroy(shards);
      purr_checkpoint_destroy(checkpoint);
      CU_ASSERT_EQUAL(memory.num_live, live);
      end(context, &memory);
    }
  }
  folder_remove(&folder);
}

int main(void) {
  return purr_test_main("checkpoint",
                        (purr_test_t[]){{"opens the real checkpoints", opens_the_real_checkpoints},
                                        {"splits experts over ranks", splits_experts_over_ranks},
                                        {"reads a capture", reads_a_capture},
                                        {"aligns what is not", aligns_what_is_not},
                                        {"notices a file that changed", notices_a_file_that_changed},
                                        {"refuses bad places", refuses_bad_places},
                                        {"refuses a tensor that is there twice", refuses_a_tensor_that_is_there_twice},
                                        {"opens shards", opens_shards},
                                        {"refuses bad indexes", refuses_bad_indexes},
                                        {"follows the links of the cache", follows_the_links_of_the_cache},
                                        {"refuses bad config files", refuses_bad_config_files},
                                        {"layers outlive their checkpoint", layers_outlive_their_checkpoint},
                                        {"survives failing memory", survives_failing_memory},
                                        {0}});
}
