/* The safetensors header: what is read from good files, and that every lie is refused. Parsing is a pure function over
 * memory, so most tests need no file. */
#include "checkpoint/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "support/allocator.h"
#include "support/checkpoint.h"
#include "support/main.h"

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

/* Parses a copy that ends where the file ends, so that the address sanitizer sees any read behind it. */
static purr_status_t parse(purr__directory_t *table, const unsigned char *file, size_t num_bytes, purr_error_t *err) {
  uint64_t headers_bytes = 0;
  char *exact = malloc(num_bytes > 0 ? num_bytes : 1);
  memcpy(exact, file, num_bytes);
  purr_status_t status = purr__safetensors_parse(table, exact, num_bytes, num_bytes, "f", 3, &headers_bytes, err);
  free(exact);
  return status;
}

/* ---- good files ---- */

static void reads_what_a_writer_wrote(void) {
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  static const unsigned char data[256];
  writer_t writer = {0};
  writer_add(&writer, "matrix", "BF16", 2, (int64_t[]){3, 5}, data, 30);
  writer_add(&writer, "scalar", "F32", 0, NULL, data, 4);
  writer_add(&writer, "empty", "F8_E4M3", 3, (int64_t[]){4, 0, 7}, data, 0);
  writer_add(&writer, "tail", "U8", 1, (int64_t[]){1}, data, 1);
  writer_add(&writer, "many", "I64", 5, (int64_t[]){1, 2, 1, 2, 1}, data, 32);
  writer_add(&writer, "nibbles", "F4", 1, (int64_t[]){6}, data, 3);
  size_t num_bytes;
  unsigned char *file = writer_finish(&writer, 3, &num_bytes);
  purr__directory_t table = {.context = context};
  purr_error_t err;
  ASSERT_OK(parse(&table, file, num_bytes, &err));
  CU_ASSERT_EQUAL(table.num_entries, 6);
  ASSERT_OK(purr__directory_sort(&table, 0, purr__entry_before_by_name, &err));
  static const struct {
    const char *name;
    int32_t dtype, num_dims;
    uint64_t at, num_bytes; /* from the end of the header */
    int64_t shape[4];
  } expected[] = {
      {"empty", PURR_DTYPE_E4M3, 3, 34, 0, {4, 0, 7}},     {"many", PURR_DTYPE_INT64, 5, 35, 32, {1, 2, 1, 2}},
      {"matrix", PURR_DTYPE_BF16, 2, 0, 30, {3, 5}},       {"nibbles", PURR_DTYPE_NONE, 1, 67, 3, {6}},
      {"scalar", PURR_DTYPE_FP32, 0, 30, 4, {0, 0, 0, 0}}, {"tail", PURR_DTYPE_UINT8, 1, 34, 1, {1}},
  };
  uint64_t data_begin = num_bytes - 70;
  for (size_t i = 0; i < 6; i++) {
    const purr__entry_t *entry = table.entries[i];
    CU_ASSERT_STRING_EQUAL(entry->name, expected[i].name);
    CU_ASSERT_EQUAL(entry->dtype, expected[i].dtype);
    CU_ASSERT_EQUAL(entry->num_dims, expected[i].num_dims);
    CU_ASSERT_EQUAL(entry->begin, data_begin + expected[i].at);
    CU_ASSERT_EQUAL(entry->num_bytes, expected[i].num_bytes);
    CU_ASSERT_EQUAL(entry->file_idx, 3);
    CU_ASSERT(memcmp(entry->shape, expected[i].shape, sizeof entry->shape) == 0);
    CU_ASSERT_PTR_EQUAL(purr__directory_find(&table, expected[i].name, strlen(expected[i].name)), entry);
  }
  CU_ASSERT_PTR_NULL(purr__directory_find(&table, "matri", 5));
  CU_ASSERT_PTR_NULL(purr__directory_find(&table, "zzz", 3));
  CU_ASSERT_STRING_EQUAL(purr__directory_nearest(&table, "matrx")->name, "matrix");
  free(file);
  purr__directory_free(&table);
  purr_context_destroy(context);
  CU_ASSERT_EQUAL(memory.num_live, 0);
}

static void reads_odd_but_legal_headers(void) {
  static const struct {
    const char *header;
    size_t data_bytes;
    int64_t num_tensors;
  } cases[] = {
      {"{}", 0, 0},
      {"{ }       ", 0, 0},
      {"{\"__metadata__\":{}}", 0, 0},
      {"{\"__metadata__\":{\"format\":\"pt\",\"a\":\"\"},\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}"
       "}",
       2, 1},
      /* any order of fields, of tensors in the data, and several without bytes at one place */
      {"{\"b\":{\"data_offsets\":[2,4],\"dtype\":\"U8\",\"shape\":[2]},\"z\":{\"shape\":[0],\"dtype\":\"F32\","
       "\"data_offsets\":[2,2]},\"y\":{\"shape\":[0],\"dtype\":\"F32\",\"data_offsets\":[2,2]},"
       "\"a\":{\"shape\":[1],\"data_offsets\":[0,2],\"dtype\":\"BF16\"}}",
       4, 4},
      {"{\"\\u0061\\\"\":{\"dtype\":\"\\u00558\",\"sh\\u0061pe\":[1],\"data_offsets\":[0,1]}}", 1, 1},
      {"{\"a\":{\"dtype\":\"F64\",\"shape\":[0,9223372036854775807],\"data_offsets\":[0,0]}}", 0, 1},
  };
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    size_t num_bytes;
    unsigned char *file = file_from_header(cases[i].header, strlen(cases[i].header), cases[i].data_bytes, &num_bytes);
    purr__directory_t table = {.context = context};
    purr_error_t err;
    ASSERT_OK(parse(&table, file, num_bytes, &err));
    CU_ASSERT_EQUAL(table.num_entries, cases[i].num_tensors);
    purr__directory_free(&table);
    free(file);
  }
  purr_context_destroy(context);
}

/* ---- bad files ---- */

#define TENSOR(dtype, shape, offsets) \
  "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define PAIR(a, b) "{\"a\":{\"dtype\":\"U8\"," a "},\"b\":{\"dtype\":\"U8\"," b "}}"

static void refuses_headers_that_lie(void) {
  static const struct {
    const char *header;
    size_t data_bytes;
    const char *message;
  } cases[] = {
      /* offsets, shapes and sizes that do not agree */
      {TENSOR("U8", "[4]", "[4,0]"), 4, "before it begins"},
      {TENSOR("F32", "[1000,1000]", "[0,4]"), 4, "needs 4000000 bytes, its data_offsets give it 4"},
      {TENSOR("U8", "[8]", "[0,8]"), 4, "cut short"},
      {TENSOR("U8", "[4]", "[1,5]"), 4, "cut short"},
      {TENSOR("U8", "[0]", "[5,5]"), 4, "cut short"},
      {TENSOR("U8", "[4294967296,4294967296]", "[0,4]"), 4, "more than 2^63-1"},
      {TENSOR("U8", "[4294967296,2147483648]", "[0,4]"), 4, "more than 2^63-1"},
      {TENSOR("U8", "[4294967296,4294967296,0]", "[0,0]"), 0, "more than 2^63-1"},
      {TENSOR("F64", "[2305843009213693952]", "[0,0]"), 0, "too many"},
      {TENSOR("F32", "[1152921504606846976]", "[0,0]"), 0, "too many"},
      {TENSOR("F4", "[3]", "[0,1]"), 1, "no whole number of bytes"},
      {TENSOR("F32", "[]", "[0,8]"), 8, "needs 4 bytes"},
      {TENSOR("F32", "[0]", "[0,4]"), 4, "needs 0 bytes"},
      {TENSOR("U8", "[4]", "[0,18446744073709551616]"), 4, "data_offsets is 18446744073709551616"},
      {TENSOR("U8", "[4]", "[0,9223372036854775807]"), 4, "cut short"},
      {TENSOR("U8", "[18446744073709551615]", "[0,4]"), 4, "shape is 18446744073709551615"},
      {TENSOR("U8", "[-4]", "[0,4]"), 4, "shape is -4"},
      {TENSOR("U8", "[4]", "[-4,0]"), 4, "data_offsets is -4"},
      {TENSOR("U8", "[4.0]", "[0,4]"), 4, "shape is 4.0"},
      {TENSOR("U8", "[\"4\"]", "[0,4]"), 4, "shape is a string"},
      /* overlaps and holes */
      {PAIR("\"shape\":[3],\"data_offsets\":[0,3]", "\"shape\":[3],\"data_offsets\":[2,5]"), 5, "overlaps"},
      {PAIR("\"shape\":[4],\"data_offsets\":[0,4]", "\"shape\":[4],\"data_offsets\":[0,4]"), 4, "overlaps"},
      {PAIR("\"shape\":[4],\"data_offsets\":[0,4]", "\"shape\":[2],\"data_offsets\":[1,3]"), 4, "overlaps"},
      {PAIR("\"shape\":[4],\"data_offsets\":[0,4]", "\"shape\":[0],\"data_offsets\":[2,2]"), 4, "overlaps"},
      {PAIR("\"shape\":[2],\"data_offsets\":[0,2]", "\"shape\":[2],\"data_offsets\":[3,5]"), 5,
       "bytes in front of tensor"},
      {PAIR("\"shape\":[2],\"data_offsets\":[1,3]", "\"shape\":[2],\"data_offsets\":[3,5]"), 5,
       "bytes in front of tensor"},
      {PAIR("\"shape\":[2],\"data_offsets\":[0,2]", "\"shape\":[2],\"data_offsets\":[2,4]"), 5, "last 1 bytes"},
      {"{}", 1, "last 1 bytes"},
      /* fields */
      {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "has no dtype"},
      {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "has no shape"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "has no data_offsets"},
      {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "two dtype"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"sh\\u0061pe\":[1],\"data_offsets\":[0,1]}}", 1, "two shape"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1, "the field 'x'"},
      {TENSOR("U7", "[1]", "[0,1]"), 1, "dtype 'U7'"},
      {TENSOR("bf16", "[1]", "[0,2]"), 2, "dtype 'bf16'"},
      {"{\"a\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "dtype is a number"},
      {TENSOR("U8", "1", "[0,1]"), 1, "shape is a number"},
      {TENSOR("U8", "null", "[0,1]"), 1, "shape is null"},
      {TENSOR("U8", "[[1]]", "[0,1]"), 1, "shape is an array"},
      {TENSOR("U8", "[1]", "[0]"), 1, "data_offsets is ']'"},
      {TENSOR("U8", "[1]", "[0,1,1]"), 1, "data_offsets is a number"},
      {TENSOR("U8", "[1]", "[]"), 1, "data_offsets is ']'"},
      {TENSOR("U8", "[1]", "{}"), 1, "data_offsets is an object"},
      {"{\"a\":[]}", 0, "the description of a tensor is an array"},
      {"{\"a\":null}", 0, "the description of a tensor is null"},
      {"{\"__metadata__\":[]}", 0, "__metadata__ is an array"},
      {"{\"__metadata__\":{\"a\":1}}", 0, "a value of __metadata__ is a number"},
      {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "two __metadata__"},
      /* names */
      {"{\"\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "0 bytes"},
      {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "control characters"},
      {"{\"a\\n\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "a\\x0A"},
      {"{\"a\\u009b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "control characters"},
      /* form */
      {"[]", 0, "does not begin with '{'"},
      {" {}", 0, "does not begin with '{'"},
      {"{} {}", 0, "the end of the text"},
      {"{},", 0, "the end of the text"},
      {"{", 0, "the text ends"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}", 1, "the text ends"},
      {"{\"a", 0, "the text ends"},
      {"{\"\xFF\":{}}", 0, "valid UTF-8"},
  };
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  long long live = memory.num_live;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    size_t num_bytes;
    unsigned char *file = file_from_header(cases[i].header, strlen(cases[i].header), cases[i].data_bytes, &num_bytes);
    purr__directory_t table = {.context = context};
    purr_error_t err;
    ASSERT_STATUS(PURR_STATUS_CHECKPOINT, parse(&table, file, num_bytes, &err));
    if (strstr(err.message, cases[i].message) == NULL)
      fprintf(stderr, "case %zu: '%s' does not say '%s'\n", i, err.message, cases[i].message);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, cases[i].message));
    CU_ASSERT(strncmp(err.message, "f", 1) == 0); /* the file comes first */
    purr__directory_free(&table);
    free(file);
    CU_ASSERT_EQUAL(memory.num_live, live);
  }
  purr_context_destroy(context);
}

static void refuses_bad_lengths(void) {
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  static const struct {
    uint64_t length;
    const char *message;
  } cases[] = {{UINT64_MAX, "would have 18446744073709551615 bytes"},
               {UINT64_MAX - 7, "no safetensors file, or too large"},
               {(uint64_t)1 << 63, "no safetensors file, or too large"},
               {PURR__MAX_HEADER_BYTES + 1, "no safetensors file, or too large"},
               {PURR__MAX_HEADER_BYTES, "cut short"},
               {3, "cut short"},
               {0, "does not begin with '{'"},
               {1, "the text ends"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    unsigned char file[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    for (int j = 0; j < 8; j++) file[j] = (unsigned char)(cases[i].length >> (8 * j));
    purr__directory_t table = {.context = context};
    purr_error_t err;
    ASSERT_STATUS(PURR_STATUS_CHECKPOINT, parse(&table, file, sizeof file, &err));
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, cases[i].message));
    purr__directory_free(&table);
  }
  for (size_t num_bytes = 0; num_bytes < 8; num_bytes++) {
    purr__directory_t table = {.context = context};
    purr_error_t err;
    ASSERT_STATUS(PURR_STATUS_CHECKPOINT, parse(&table, (const unsigned char[8]){2}, num_bytes, &err));
  }
  purr_context_destroy(context);
}

/* A name of the longest allowed length, and one byte more; also where escapes make the text longer than the name. */
static void limits_names(void) {
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  for (int escaped = 0; escaped < 2; escaped++)
    for (size_t extra = 0; extra < 2; extra++) {
      char header[8 * PURR__MAX_TENSOR_NAME] = "{\"";
      for (size_t i = 0; i < PURR__MAX_TENSOR_NAME + extra; i++) strcat(header, escaped ? "\\u0061" : "a");
      strcat(header, "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}");
      size_t num_bytes;
      unsigned char *file = file_from_header(header, strlen(header), 0, &num_bytes);
      purr__directory_t table = {.context = context};
      purr_error_t err;
      ASSERT_STATUS(extra ? PURR_STATUS_CHECKPOINT : PURR_STATUS_OK, parse(&table, file, num_bytes, &err));
      if (!extra) CU_ASSERT_EQUAL(table.entries[0]->name_length, PURR__MAX_TENSOR_NAME);
      purr__directory_free(&table);
      free(file);
    }
  purr_context_destroy(context);
}

/* Every cut and many random changes of a good file: whatever is still accepted keeps its tensors inside the file. */
static void survives_damage(void) {
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  static const unsigned char data[64];
  writer_t writer = {0};
  writer_add(&writer, "model.layers.0.mlp.gate.weight", "BF16", 2, (int64_t[]){4, 4}, data, 32);
  writer_add(&writer, "b", "F32", 1, (int64_t[]){4}, data, 16);
  writer_add(&writer, "c", "I64", 2, (int64_t[]){2, 1}, data, 16);
  size_t num_bytes;
  unsigned char *file = writer_finish(&writer, 0, &num_bytes);
  for (size_t length = 0; length < num_bytes; length++) {
    purr__directory_t table = {.context = context};
    purr_error_t err = PURR_ERROR_INIT;
    CU_ASSERT_EQUAL(parse(&table, file, length, &err), PURR_STATUS_CHECKPOINT);
    purr__directory_free(&table);
  }
  uint32_t random = 12345;
  int num_accepted = 0;
  unsigned char *damaged = malloc(num_bytes);
  for (int round = 0; round < 20000; round++) {
    memcpy(damaged, file, num_bytes);
    for (int change = 0; change <= round % 3; change++) {
      random = random * 1664525u + 1013904223u;
      static const unsigned char digits[] = "0123456789,[]{}\":\\-e ";
      size_t at = (random >> 8) % num_bytes;
      damaged[at] = round % 2 ? digits[random % (sizeof digits - 1)] : (unsigned char)(random >> 24);
    }
    purr__directory_t table = {.context = context};
    purr_error_t err = PURR_ERROR_INIT;
    if (parse(&table, damaged, num_bytes, &err) == PURR_STATUS_OK) {
      num_accepted++;
      uint64_t covered = 0;
      for (int64_t i = 0; i < table.num_entries; i++) {
        const purr__entry_t *entry = table.entries[i];
        covered += entry->num_bytes;
        CU_ASSERT(entry->begin + entry->num_bytes <= num_bytes);
      }
      CU_ASSERT(covered < num_bytes);
    } else {
      CU_ASSERT(err.status == PURR_STATUS_CHECKPOINT && err.message[0] != '\0');
    }
    purr__directory_free(&table);
  }
  CU_ASSERT(num_accepted > 1000 && num_accepted < 19000); /* damage to the data alone is not seen, and need not be */
  free(damaged);
  free(file);
  purr_context_destroy(context);
  CU_ASSERT_EQUAL(memory.num_live, 0);
  CU_ASSERT_EQUAL(memory.num_wrong, 0);
}

/* ---- the table ---- */

static void sorts_any_order(void) {
  purr_test_allocator_t memory;
  purr_context_t *context = make_context(&memory);
  enum { NUM = 1000 };
  for (int order = 0; order < 3; order++) {
    purr__directory_t table = {.context = context};
    purr_error_t err;
    for (int i = 0; i < NUM; i++) {
      int key = order == 0 ? i : order == 1 ? NUM - 1 - i : i * 389 % NUM;
      char name[16];
      snprintf(name, sizeof name, "t%03d", key);
      purr__entry_t *entry;
      REQUIRE_OK(purr__directory_add(&table, "f", name, strlen(name), &entry, &err));
      entry->file_idx = key;
    }
    ASSERT_OK(purr__directory_sort(&table, 0, purr__entry_before_by_name, &err));
    for (int i = 0; i < NUM; i++) CU_ASSERT_EQUAL(table.entries[i]->file_idx, i);
    purr__directory_free(&table);
  }
  purr_context_destroy(context);
}

int main(void) {
  return purr_test_main("safetensors", (purr_test_t[]){{"reads what a writer wrote", reads_what_a_writer_wrote},
                                                       {"reads odd but legal headers", reads_odd_but_legal_headers},
                                                       {"S11 refuses headers that lie", refuses_headers_that_lie},
                                                       {"refuses bad lengths", refuses_bad_lengths},
                                                       {"limits names", limits_names},
                                                       {"survives damage", survives_damage},
                                                       {"sorts any order", sorts_any_order},
                                                       {0}});
}
