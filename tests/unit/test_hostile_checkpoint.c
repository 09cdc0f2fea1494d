/* What a checkpoint can cost at most: files made to be as expensive as the limits allow are refused (or described,
 * where they are legal) within a second and 100 MB. A program of its own, so that its memory is that of these files
 * alone. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "support/checkpoint.h"
#include "support/main.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(undefined_behavior_sanitizer)
#define IS_SANITIZED 1
#endif
#endif
#ifndef IS_SANITIZED
#define IS_SANITIZED 0
#endif
#ifdef PURR_TEST_EMULATOR
#define IS_EMULATED 1
#else
#define IS_EMULATED 0
#endif

#define MAX_BYTES 100000000
#define MAX_NS 1000000000

static purr_context_t *context;
static folder_t folder;

/* Of the processor, not of the wall: other programs on the machine must not make a test fail. */
static uint64_t cpu_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void check_cost(const char *what, uint64_t begin_ns) {
  uint64_t ns = cpu_ns() - begin_ns;
  purr_counters_t counters = {.struct_size = sizeof counters};
  purr_error_t err;
  ASSERT_OK(purr_context_query_counters(context, &counters, &err));
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  printf("\n    %-40s %4llu ms, peak of the hooks so far %3llu MB, of the process %3ld MB", what,
         (unsigned long long)ns / 1000000, (unsigned long long)counters.host_bytes_peak / 1000000,
         usage.ru_maxrss / 1000);
  CU_ASSERT(counters.host_bytes_peak < MAX_BYTES);
  if (IS_SANITIZED || IS_EMULATED) return; /* the time and the memory of the tool count too */
  CU_ASSERT(ns < MAX_NS);
  CU_ASSERT(usage.ru_maxrss * 1024 < MAX_BYTES);
}

static void refuse(const char *what, const char *path, const char *part) {
  purr_checkpoint_t *checkpoint = NULL;
  purr_error_t err;
  uint64_t begin_ns = cpu_ns();
  ASSERT_STATUS(PURR_STATUS_CHECKPOINT, purr_checkpoint_open(context, path, &checkpoint, &err));
  check_cost(what, begin_ns);
  if (strstr(err.message, part) == NULL) fprintf(stderr, "\n%s: '%s' does not say '%s'\n", what, err.message, part);
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, part));
}

/* ---- writing without much memory ---- */

static FILE *create(const char *name) {
  FILE *file = fopen(folder_path(&folder, name), "wb");
  if (file == NULL) abort();
  return file;
}

/* Ends a safetensors file whose first eight bytes were left free. */
static void end_header(FILE *file, size_t data_bytes) {
  uint64_t length = (uint64_t)ftell(file) - 8;
  for (size_t i = 0; i < data_bytes; i++) fputc(0, file);
  fseek(file, 0, SEEK_SET);
  for (int i = 0; i < 8; i++) fputc((int)(length >> (8 * i) & 255), file);
  fclose(file);
}

static void fill(FILE *file, const char *text, uint64_t until) {
  uint64_t length = strlen(text), at = (uint64_t)ftell(file);
  char block[4096];
  uint64_t block_length = sizeof block / length * length;
  for (uint64_t i = 0; i < block_length; i++) block[i] = text[i % length];
  for (; at + block_length <= until; at += block_length) fwrite(block, 1, block_length, file);
}

#define FULL (PURR__MAX_HEADER_BYTES + 8 - 200) /* room for an end */

static void expensive_headers_are_refused(void) {
  static const struct {
    const char *what, *begin, *filling, *end, *part;
  } cases[] = {
      {"16 MiB of opening brackets", "{\"a\":", "[", "", "the description of a tensor is an array"},
      {"16 MiB of brackets in the metadata", "{\"__metadata__\":{\"a\":", "[", "", "is an array"},
      {"a name of 16 MiB", "{\"", "a", "\":{}}", "bytes; allowed are 1 to 256"},
      {"a name of 16 MiB in escapes", "{\"", "\\u0061", "\":{}}", "bytes; allowed are 1 to 256"},
      {"16 MiB of metadata", "{\"__metadata__\":{\"a\":\"", "\xC3\xA9\\n", "\"}", "the text ends"},
      {"8 million dimensions", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1", ",1", "],\"data_offsets\":[0,2]}}",
       "more than 64 dimensions"},
      {"a number of 16 MiB", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1", "1", "],\"data_offsets\":[0,1]}}",
       "shape is 111"},
      {"16 MiB of space", "{", " ", "x", "found 'x'"},
      {"16 MiB of metadata keys", "{\"__metadata__\":{\"a\":\"\"", ",\"\":\"\"", "}", "the text ends"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    FILE *file = create("t.safetensors");
    fprintf(file, "12345678%s", cases[i].begin);
    fill(file, cases[i].filling, FULL);
    fputs(cases[i].end, file);
    end_header(file, 1);
    refuse(cases[i].what, folder_path(&folder, "t.safetensors"), cases[i].part);
  }
}

/* Names in falling order, so that sorting has work, `step` apart, so that shards interleave. */
static void write_tensors(const char *name, int first, int step, int pad, size_t junk) {
  FILE *file = create(name);
  fprintf(file, "12345678{");
  for (int i = first; ftell(file) < (long)FULL - 300; i += step)
    fprintf(file, "\"%0*d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},", pad, 999999 - i);
  fprintf(file, "\"z%s\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", name);
  end_header(file, junk);
}

static void expensive_tables_are_refused(void) {
  const char *path = folder_path(&folder, "t.safetensors");
  write_tensors("t.safetensors", 0, 1, 1, 0);
  refuse("too many tensors", path, "more than 262144 tensors");
  write_tensors("t.safetensors", 0, 1, 16, 1);
  refuse("250,000 tensors and a byte too much", path, "last 1 bytes");
  write_tensors("t.safetensors", 0, 1, PURR__MAX_TENSOR_NAME, 1);
  refuse("54,000 of the longest names and a byte too much", path, "last 1 bytes");
}

/* All that two full shards and a full index can hold; wrong at the very end. */
static void expensive_shards_are_refused(void) {
  for (int pad = 80; pad <= 240; pad += 160) {
    write_tensors("0.safetensors", 0, 2, pad, 0);
    write_tensors("1.safetensors", 1, 2, pad, 0);
    FILE *file = create("model.safetensors.index.json");
    fprintf(file, "{\"weight_map\": {\"z0.safetensors\":\"0.safetensors\",\"z1.safetensors\":\"1.safetensors\"");
    for (int i = 0; ftell(file) < (long)PURR__MAX_INDEX_JSON_BYTES - 400; i++)
      fprintf(file, ",\"absent%0*d\":\"2.safetensors\"", pad - 10, 999999 - i);
    fprintf(file, ",\"nothing\":\"0.safetensors\"}}");
    fclose(file);
    refuse("two full shards, a full index, one error", folder.path, pad == 80 ? "262144" : "'nothing' should be in");
  }
  remove(folder_path(&folder, "1.safetensors"));
}

static void expensive_indexes_are_refused(void) {
  static const struct {
    const char *what, *begin, *filling, *end, *part;
  } cases[] = {
      {"20 MiB of opening brackets", "{\"a\":", "[", "", "64 levels"},
      {"2 million pairs", "{\"weight_map\":{\"a\":\"0.safetensors\"", ",\"\":\"0.safetensors\"", "}}",
       "more than 262144"},
      {"a key of 20 MiB", "{\"", "a", "\":1}", "no weight_map"},
      {"a shard name of 20 MiB", "{\"weight_map\":{\"a\":\"", "a", ".safetensors\"}}", "no plain file name"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    FILE *file = create("model.safetensors.index.json");
    fputs(cases[i].begin, file);
    fill(file, cases[i].filling, PURR__MAX_INDEX_JSON_BYTES - 100);
    fputs(cases[i].end, file);
    fclose(file);
    refuse(cases[i].what, folder.path, cases[i].part);
  }
  FILE *file = create("model.safetensors.index.json");
  fprintf(file, "{\"weight_map\": {\"a\":\"0.safetensors\"");
  for (int i = 0; i < 200000; i++) fprintf(file, ",\"b%d\":\"%d.safetensors\"", i, 9999 - i % 5000);
  fprintf(file, "}}");
  fclose(file);
  refuse("5000 shards", folder.path, "more than 1024 shards");
  file = create("model.safetensors.index.json");
  fill(file, " ", PURR__MAX_INDEX_JSON_BYTES + 4096);
  fclose(file);
  refuse("an index that is too long", folder.path, "allowed are 20971520");
  remove(folder_path(&folder, "model.safetensors.index.json"));
}

static void expensive_configs_are_refused(void) {
  write_tensors("model.safetensors", 0, 1, 16, 0);
  static const struct {
    const char *what, *begin, *filling, *end, *part;
  } cases[] = {
      {"1 MiB of opening brackets", "{\"a\":", "[", "", "64 levels"},
      {"1 MiB of keys", "{\"a\":1", ",\"a\":1", "", "the text ends"},
      {"a key of 1 MiB", "{\"a", "a", "\":}", "a value"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    FILE *file = create("config.json");
    fputs(cases[i].begin, file);
    fill(file, cases[i].filling, PURR__MAX_CONFIG_JSON_BYTES - 100);
    fputs(cases[i].end, file);
    fclose(file);
    refuse(cases[i].what, folder.path, cases[i].part);
  }
  remove(folder_path(&folder, "config.json"));
}

/* A legal checkpoint that claims as many layers and experts as it may, and has none of them. */
static void an_expensive_description_is_cheap(void) {
  CU_ASSERT(folder_write_text(&folder, "config.json",
                              "{\"model_type\": \"deepseek_v3\", \"num_hidden_layers\": 1024, \"n_routed_experts\": "
                              "1048576, \"first_k_dense_replace\": 0}"));
  write_tensors("model.safetensors", 0, 1, 16, 0);
  purr_checkpoint_t *checkpoint = NULL;
  purr_error_t err;
  uint64_t begin_ns = cpu_ns(), length = 0;
  REQUIRE_OK(purr_checkpoint_open(context, folder.path, &checkpoint, &err));
  check_cost("opening 250,000 tensors", begin_ns);
  begin_ns = cpu_ns();
  ASSERT_OK(purr_checkpoint_describe(checkpoint, PURR_FORMAT_JSON, NULL, 0, &length, &err));
  check_cost("describing 1024 layers without tensors", begin_ns);
  CU_ASSERT(length > 1024 && length < 10000000);
  purr_checkpoint_layer_t *layer = NULL;
  begin_ns = cpu_ns();
  ASSERT_STATUS(PURR_STATUS_UNSUPPORTED, purr_checkpoint_load_layer(checkpoint, 7, 0, 1, &layer, &err));
  check_cost("loading a layer of a million experts", begin_ns);
  purr_checkpoint_destroy(checkpoint);
}

int main(void) {
  purr_error_t err = PURR_ERROR_INIT;
  if (!folder_create(&folder) || purr_context_create(NULL, &context, &err) != PURR_STATUS_OK) return 1;
  int failures = purr_test_main(
      "hostile checkpoints", (purr_test_t[]){{"expensive headers are refused", expensive_headers_are_refused},
                                             {"expensive tables are refused", expensive_tables_are_refused},
                                             {"expensive shards are refused", expensive_shards_are_refused},
                                             {"expensive indexes are refused", expensive_indexes_are_refused},
                                             {"expensive configs are refused", expensive_configs_are_refused},
                                             {"an expensive description is cheap", an_expensive_description_is_cheap},
                                             {0}});
  purr_context_destroy(context);
  folder_remove(&folder);
  return failures;
}
