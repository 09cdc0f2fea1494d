/* base/: statuses, error structs, structs of other versions, objects, memory, text, log, environment, fork. */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/context.h"
#include "support/allocator.h"
#include "support/main.h"

/* A context with the test allocator, no workers. */
static purr_context_t *context_with(purr_test_allocator_t *memory) {
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  desc.num_threads = 1;
  desc.host_allocator = &memory->hooks;
  purr_context_t *context = NULL;
  purr_error_t err = PURR_ERROR_INIT;
  ASSERT_OK(purr_context_create(&desc, &context, &err));
  return context;
}

static void assert_all_released(purr_test_allocator_t *memory) {
  CU_ASSERT_EQUAL(memory->num_live, 0);
  CU_ASSERT_EQUAL(memory->live_bytes, 0);
  CU_ASSERT_EQUAL(memory->num_wrong, 0);
}

/* ---- statuses ---- */

static void statuses_have_names(void) {
  static const purr_status_t statuses[] = {
#define PURR_STATUS(name, number, text) number,
#include "purr_status.def"
#undef PURR_STATUS
  };
  const size_t num_statuses = sizeof statuses / sizeof statuses[0];
  for (size_t i = 0; i < num_statuses; i++) {
    CU_ASSERT_STRING_NOT_EQUAL(purr_status_name(statuses[i]), "UNKNOWN");
    CU_ASSERT(strlen(purr_status_text(statuses[i])) > 0);
    for (size_t j = 0; j < i; j++)
      CU_ASSERT_STRING_NOT_EQUAL(purr_status_name(statuses[i]), purr_status_name(statuses[j]));
  }
  CU_ASSERT_STRING_EQUAL(purr_status_name(PURR_STATUS_BAD_ROUTE), "BAD_ROUTE");
  CU_ASSERT_STRING_EQUAL(purr_status_name(-1), "UNKNOWN");
  CU_ASSERT_STRING_EQUAL(purr_status_name(12345), "UNKNOWN");
}

static void version_is_the_headers(void) {
  char text[32];
  CU_ASSERT_EQUAL(purr_version(), PURR_VERSION);
  snprintf(text, sizeof text, "%d.%d.%d", PURR_VERSION_MAJOR, PURR_VERSION_MINOR, PURR_VERSION_PATCH);
  CU_ASSERT_STRING_EQUAL(purr_version_string(), text);
}

/* ---- error structs ---- */

static void error_carries_its_fields(void) {
  purr_error_t err = PURR_ERROR_INIT;
  CU_ASSERT_EQUAL(purr__fail_at(&err, PURR_STATUS_CONFIG, 14, 9, "x.yaml:14:9: found %d", 3), PURR_STATUS_CONFIG);
  CU_ASSERT_EQUAL(err.status, PURR_STATUS_CONFIG);
  CU_ASSERT_EQUAL(err.line, 14);
  CU_ASSERT_EQUAL(err.column, 9);
  CU_ASSERT_EQUAL(err.rank, -1);
  CU_ASSERT_STRING_EQUAL(err.message, "x.yaml:14:9: found 3");
  CU_ASSERT_EQUAL(purr__fail_rank(&err, PURR_STATUS_PEER_FAILED, 5, "rank 5"), PURR_STATUS_PEER_FAILED);
  CU_ASSERT_EQUAL(err.rank, 5);
  CU_ASSERT_EQUAL(err.line, 0);
  CU_ASSERT_EQUAL(purr__fail_errno(&err, PURR_STATUS_IO, 2, "gone"), PURR_STATUS_IO);
  CU_ASSERT_EQUAL(err.native_code, 2);
  CU_ASSERT_EQUAL(err.rank, -1);
  CU_ASSERT_EQUAL(err.struct_size, sizeof err);
  CU_ASSERT_EQUAL(purr__fail(NULL, PURR_STATUS_IO, "nobody listens"), PURR_STATUS_IO);
  purr_error_t zeroed = {0};
  purr__fail(&zeroed, PURR_STATUS_IO, "a struct of zeros is one of version 0.1");
  CU_ASSERT_STRING_EQUAL(zeroed.message, "a struct of zeros is one of version 0.1");
}

/* Whatever the size a caller knows, nothing beyond it is touched and the message is terminated inside. */
static void error_fits_any_size(void) {
  char text[800];
  memset(text, 'x', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  union {
    purr_error_t err;
    unsigned char bytes[sizeof(purr_error_t) + 64];
  } callers;
  for (uint32_t size = 4; size <= sizeof callers.bytes; size += 4) {
    memset(&callers, 0xEE, sizeof callers);
    callers.err.struct_size = size;
    CU_ASSERT_EQUAL(purr__fail(&callers.err, PURR_STATUS_IO, "%s", text), PURR_STATUS_IO);
    CU_ASSERT_EQUAL(callers.err.struct_size, size);
    uint32_t written = size < sizeof(purr_error_t) ? size : (uint32_t)sizeof(purr_error_t);
    uint32_t intact = 0;
    for (uint32_t i = written; i < sizeof callers.bytes; i++) intact += callers.bytes[i] == 0xEE;
    CU_ASSERT_EQUAL(intact, sizeof callers.bytes - written);
    if (size >= 8) CU_ASSERT_EQUAL(callers.err.status, PURR_STATUS_IO);
    if (written > offsetof(purr_error_t, message)) {
      uint32_t room = written - (uint32_t)offsetof(purr_error_t, message);
      CU_ASSERT_EQUAL(strnlen(callers.err.message, room), room - 1);
    }
  }
}

static void cut_message_stays_utf8(void) {
  /* 3 bytes each; at 512 bytes the last one that fits whole ends at 510. Two shorter lead-ins move the cut through it.
   */
  char text[900];
  for (size_t lead_in = 0; lead_in < 3; lead_in++) {
    memset(text, 'a', lead_in);
    for (size_t i = lead_in; i + 3 < sizeof text; i += 3) memcpy(text + i, "\xE2\x82\xAC", 4);
    purr_error_t err = PURR_ERROR_INIT;
    purr__fail(&err, PURR_STATUS_IO, "%s", text);
    CU_ASSERT_EQUAL(strlen(err.message), lead_in + (511 - lead_in) / 3 * 3);
    CU_ASSERT_EQUAL(strncmp(err.message, text, strlen(err.message)), 0);
  }
}

/* ---- structs of other versions ---- */

typedef struct sample {
  uint32_t struct_size;
  int32_t a;
  int64_t b;
  void *c;
} sample_t;

static void read_struct_takes_any_version(void) {
  purr_error_t err = PURR_ERROR_INIT;
  union {
    sample_t sample;
    unsigned char bytes[sizeof(sample_t) + 24];
  } callers;
  sample_t own;
  for (uint32_t size = 8; size <= sizeof callers.bytes; size++) {
    memset(&callers, 0, sizeof callers);
    callers.sample = (sample_t){size, -7, INT64_C(0x1122334455667788), &err};
    uint32_t known = size < sizeof own ? size : (uint32_t)sizeof own;
    sample_t expected = {0};
    memcpy(&expected, &callers, known);
    if (size < sizeof own) memset(callers.bytes + size, 0xEE, sizeof callers.bytes - size); /* must not be read */
    memset(&own, 0x55, sizeof own);
    ASSERT_OK(purr__read_struct(&own, sizeof own, &callers, "sample", &err));
    CU_ASSERT_EQUAL(memcmp(&own, &expected, sizeof own), 0);
  }
  for (uint32_t i = sizeof own; i < sizeof callers.bytes; i++) {
    memset(&callers, 0, sizeof callers);
    callers.sample.struct_size = sizeof callers.bytes;
    callers.bytes[i] = 1;
    ASSERT_STATUS(PURR_STATUS_INCOMPATIBLE_STRUCT, purr__read_struct(&own, sizeof own, &callers, "sample", &err));
    char offset[32];
    snprintf(offset, sizeof offset, "offset %u", i);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, offset));
  }
}

static void struct_size_must_be_set(void) {
  purr_error_t err = PURR_ERROR_INIT;
  static const uint32_t sizes[] = {0, 1, 4, 7, 65537, 0xA5A5A5A5u, UINT32_MAX};
  sample_t callers = {0}, own;
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    callers.struct_size = sizes[i];
    ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr__read_struct(&own, sizeof own, &callers, "sample", &err));
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "struct_size"));
    ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr__write_struct(&callers, &own, sizeof own, "sample", &err));
  }
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr__read_struct(&own, sizeof own, NULL, "sample", &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr__write_struct(NULL, &own, sizeof own, "sample", &err));
}

static void write_struct_stays_inside(void) {
  purr_error_t err = PURR_ERROR_INIT;
  const sample_t own = {sizeof own, -7, INT64_C(0x1122334455667788), &err};
  union {
    sample_t sample;
    unsigned char bytes[sizeof(sample_t) + 24];
  } callers, expected;
  for (uint32_t size = 8; size <= sizeof callers.bytes; size++) {
    memset(&callers, 0xEE, sizeof callers);
    callers.sample.struct_size = size;
    expected = callers;
    memcpy(expected.bytes + 4, (const char *)&own + 4, (size < sizeof own ? size : sizeof own) - 4);
    ASSERT_OK(purr__write_struct(&callers, &own, sizeof own, "sample", &err));
    CU_ASSERT_EQUAL(memcmp(&callers, &expected, sizeof callers), 0);
  }
}

/* ---- objects ---- */

typedef struct child {
  purr__object_t object;
  struct child *parent;
  int *num_freed;
} child_t;

static void child_free(void *object) {
  child_t *child = object;
  ++*child->num_freed;
  purr__object_release(child->parent);
}

static child_t *child_of(purr_context_t *context, child_t *parent, int *num_freed) {
  purr_error_t err = PURR_ERROR_INIT;
  void *object = NULL;
  ASSERT_OK(purr__object_create(context, PURR__PLAN, sizeof(child_t), child_free, &object, &err));
  child_t *child = object;
  child->parent = parent;
  child->num_freed = num_freed;
  if (parent != NULL) purr__object_retain(parent);
  return child;
}

/* context <- grandparent <- parent <- child, let go in each of the 24 orders. */
static void destroy_works_in_any_order(void) {
  for (int order = 0; order < 256; order++) {
    int first = order & 3, second = order >> 2 & 3, third = order >> 4 & 3, fourth = order >> 6;
    if ((1 << first | 1 << second | 1 << third | 1 << fourth) != 15) continue;
    purr_test_allocator_t memory;
    purr_test_allocator_init(&memory);
    int num_freed = 0;
    const void *objects[4];
    purr_context_t *context = context_with(&memory);
    child_t *grandparent = child_of(context, NULL, &num_freed);
    child_t *parent = child_of(context, grandparent, &num_freed);
    objects[0] = context;
    objects[1] = grandparent;
    objects[2] = parent;
    objects[3] = child_of(context, parent, &num_freed);
    purr__object_release(objects[first]);
    purr__object_release(objects[second]);
    purr__object_release(objects[third]);
    CU_ASSERT(memory.num_live > 0);
    purr__object_release(objects[fourth]);
    CU_ASSERT_EQUAL(num_freed, 3);
    assert_all_released(&memory);
  }
  purr__object_release(NULL);
  purr_context_destroy(NULL);
}

static void handles_are_checked(void) {
  purr_test_allocator_t memory;
  purr_test_allocator_init(&memory);
  purr_context_t *context = context_with(&memory);
  purr_error_t err = PURR_ERROR_INIT;
  ASSERT_OK(purr__check(context, PURR__CONTEXT, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr__check(context, PURR__PLAN, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "plan"));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr__check(NULL, PURR__CHECKPOINT_LAYER, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "checkpoint layer"));
  purr_context_destroy(context);
  assert_all_released(&memory);
}

/* ---- memory ---- */

static void context_desc_is_checked(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  purr_context_t *context = (purr_context_t *)&err;
  purr_test_allocator_t memory;
  purr_test_allocator_init(&memory);
  desc.host_allocator = &memory.hooks;
  memory.hooks.release = NULL;
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_context_create(&desc, &context, &err));
  CU_ASSERT_PTR_NULL(context);
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "release"));
  purr_test_allocator_init(&memory);
  desc.num_threads = 1025;
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_context_create(&desc, &context, &err));
  desc.num_threads = 1;
  desc.log_level = 5;
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_context_create(&desc, &context, &err));
  desc.log_level = -1;
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_context_create(&desc, &context, &err));
  desc.log_level = 0;
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_context_create(&desc, NULL, &err));
  CU_ASSERT_EQUAL(memory.num_calls, 0);
}

/* Every allocation of a context's life fails once: a clean status, nothing left behind, and the next try works. */
static void each_allocation_may_fail(void) {
  purr_error_t err = PURR_ERROR_INIT;
  int num_failures = 0;
  for (int for_good = 0; for_good < 2; for_good++)
    for (long long fail_at = 1;; fail_at++) {
      purr_test_allocator_t memory;
      purr_test_allocator_init(&memory);
      memory.fail_at = fail_at;
      memory.fail_for_good = for_good;
      purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
      desc.host_allocator = &memory.hooks;
      desc.num_threads = 3;
      purr_context_t *context = (purr_context_t *)&err;
      void *object = NULL;
      purr_status_t status = purr_context_create(&desc, &context, &err);
      if (status != PURR_STATUS_OK) CU_ASSERT_PTR_NULL(context);
      if (status == PURR_STATUS_OK)
        status = purr__object_create(context, PURR__PLAN, sizeof(purr__object_t), NULL, &object, &err);
      purr__text_t text = {context, NULL, 0, 0, false};
      if (status == PURR_STATUS_OK) {
        for (int i = 0; i < 300; i++) purr__text_add(&text, "%d bottles of milk ", i); /* grows twice */
        uint64_t length = 77;
        status = purr__text_deliver(&text, NULL, 0, &length, &err);
        CU_ASSERT_EQUAL(length == 77, status != PURR_STATUS_OK);
      }
      bool failed = memory.num_calls >= fail_at;
      CU_ASSERT_EQUAL(status, failed ? PURR_STATUS_OUT_OF_HOST_MEMORY : PURR_STATUS_OK);
      if (failed) CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "bytes of host memory"));
      num_failures += failed;
      purr__object_release(object);
      purr_context_destroy(context);
      assert_all_released(&memory);
      if (!failed) break;
    }
  CU_ASSERT(num_failures >= 2 * 5); /* context, pool, object, text, and text grown */
}

static void counters_follow_memory(void) {
  purr_test_allocator_t memory;
  purr_test_allocator_init(&memory);
  purr_context_t *context = context_with(&memory);
  purr_error_t err = PURR_ERROR_INIT;
  purr_counters_t before = {.struct_size = sizeof before}, during = before, after = before;
  ASSERT_OK(purr_context_query_counters(context, &before, &err));
  void *block = purr__allocate(context, 100000);
  CU_ASSERT_EQUAL((uintptr_t)block % 64, 0);
  ASSERT_OK(purr_context_query_counters(context, &during, &err));
  CU_ASSERT(during.host_bytes >= before.host_bytes + 100000);
  CU_ASSERT(during.host_bytes <= before.host_bytes + 100000 + 64);
  block = purr__reallocate(context, block, 200000);
  purr__release(context, block);
  purr__release(context, NULL);
  ASSERT_OK(purr_context_query_counters(context, &after, &err));
  CU_ASSERT_EQUAL(after.host_bytes, before.host_bytes);
  CU_ASSERT(after.host_bytes_peak >= during.host_bytes + 200000);
  purr__count(context, PURR__COUNT_ROWS, 40);
  purr__count(context, PURR__COUNT_ROWS, 2);
  ASSERT_OK(purr_context_query_counters(context, &after, &err));
  CU_ASSERT_EQUAL(after.num_rows, 42);
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_context_query_counters(context, NULL, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_context_query_counters(NULL, &after, &err));
  purr_context_destroy(context);
  assert_all_released(&memory);
}

static void reallocate_keeps_the_content(void) {
  purr_test_allocator_t memory;
  purr_test_allocator_init(&memory);
  purr_context_t *context = context_with(&memory);
  char *block = purr__duplicate(context, "purr");
  block = purr__reallocate(context, block, 5000);
  CU_ASSERT_STRING_EQUAL(block, "purr");
  block = purr__reallocate(context, block, 5);
  CU_ASSERT_STRING_EQUAL(block, "purr");
  purr__release(context, block);
  unsigned char *zeroed = purr__allocate_zeroed(context, 1000);
  int num_zeros = 0;
  for (int i = 0; i < 1000; i++) num_zeros += zeroed[i] == 0;
  CU_ASSERT_EQUAL(num_zeros, 1000);
  purr__release(context, zeroed);
  CU_ASSERT_PTR_NULL(purr__allocate(context, UINT64_MAX - 10));
  purr_context_destroy(context);
  assert_all_released(&memory);
}

static void sizes_do_not_wrap(void) {
  uint64_t out;
  CU_ASSERT(purr__multiply(1u << 31, 1u << 31, &out) && out == UINT64_C(1) << 62);
  CU_ASSERT(!purr__multiply(UINT64_C(1) << 32, UINT64_C(1) << 31, &out));
  CU_ASSERT(!purr__multiply(UINT64_C(1) << 32, UINT64_C(1) << 32, &out));
  CU_ASSERT(purr__add(INT64_MAX - 1, 1, &out) && out == INT64_MAX);
  CU_ASSERT(!purr__add(INT64_MAX, 1, &out));
  CU_ASSERT(!purr__add(UINT64_MAX, 1, &out));
  CU_ASSERT_EQUAL(purr__round_up(0, 64), 0);
  CU_ASSERT_EQUAL(purr__round_up(1, 64), 64);
  CU_ASSERT_EQUAL(purr__round_up(64, 64), 64);
}

/* ---- text ---- */

static void text_is_delivered(void) {
  purr_test_allocator_t memory;
  purr_test_allocator_init(&memory);
  purr_context_t *context = context_with(&memory);
  purr_error_t err = PURR_ERROR_INIT;
  char buffer[8] = "intact";
  uint64_t length = 0;
  for (uint64_t capacity = 0; capacity <= 6; capacity++) {
    purr__text_t text = {context, NULL, 0, 0, false};
    purr__text_add(&text, "%s", "hello");
    length = 0;
    memset(buffer, 'z', sizeof buffer);
    ASSERT_STATUS(capacity < 6 ? PURR_STATUS_BUFFER_TOO_SMALL : PURR_STATUS_OK,
                  purr__text_deliver(&text, buffer, capacity, &length, &err));
    CU_ASSERT_EQUAL(length, 5);
    CU_ASSERT_EQUAL(buffer[capacity], 'z');
  }
  CU_ASSERT_STRING_EQUAL(buffer, "hello\0z");
  purr__text_t text = {context, NULL, 0, 0, false};
  ASSERT_OK(purr__text_deliver(&text, buffer, sizeof buffer, NULL, &err)); /* nothing was added */
  CU_ASSERT_STRING_EQUAL(buffer, "");
  purr_context_destroy(context);
  assert_all_released(&memory);
}

static void text_formats(void) {
  purr_test_allocator_t memory;
  purr_test_allocator_init(&memory);
  purr_context_t *context = context_with(&memory);
  purr__text_t text = {context, NULL, 0, 0, false};
  purr__text_add_json_string(&text, "a\"b\\c\n\x01\xE2\x82\xAC");
  purr__text_add(&text, " ");
  purr__text_add_bytes(&text, 1023);
  purr__text_add(&text, " ");
  purr__text_add_bytes(&text, 1237320);
  purr__text_add(&text, " ");
  purr__text_add_bytes(&text, UINT64_MAX);
  CU_ASSERT_STRING_EQUAL(text.data, "\"a\\\"b\\\\c\\u000a\\u0001\xE2\x82\xAC\" 1023 B 1.18 MiB 16.00 EiB");
  purr__text_free(&text);
  purr_context_destroy(context);
  assert_all_released(&memory);
}

static void untrusted_text_is_made_printable(void) {
  char out[32];
  CU_ASSERT_STRING_EQUAL(purr__printable(out, sizeof out, "plain \xE2\x82\xAC", 9), "plain \xE2\x82\xAC");
  CU_ASSERT_STRING_EQUAL(purr__printable(out, sizeof out, "\x1B[2J\n\x7F", 6), "\\x1B[2J\\x0A\\x7F");
  CU_ASSERT_STRING_EQUAL(purr__printable(out, sizeof out, "\xC2\x9B\xFF\xE2\x82", 5), "\\xC2\\x9B\\xFF\\xE2\\x82");
  CU_ASSERT_STRING_EQUAL(purr__printable(out, sizeof out, "a\0b", 3), "a\\x00b");
  for (uint64_t capacity = 4; capacity <= sizeof out; capacity++) {
    memset(out, 'z', sizeof out);
    purr__printable(out, capacity, "\xE2\x82\xAC\x01\xE2\x82\xAC\x01\xE2\x82\xAC\x01\xE2\x82\xAC\x01", 16);
    uint64_t length = strnlen(out, sizeof out);
    CU_ASSERT(length < capacity);
    CU_ASSERT(length == 28 || strcmp(out + length - 3, "...") == 0);
    CU_ASSERT(capacity == sizeof out || out[capacity] == 'z');
  }
}

/* ---- log and environment ---- */

typedef struct log_record {
  purr_context_t *context;
  int num_lines, level;
  char line[128];
} log_record_t;

/* Calls back into the library: a sink that does must not hang. */
static void record_log(void *user, int32_t level, const char *message) {
  log_record_t *record = user;
  purr_counters_t counters = {.struct_size = sizeof counters};
  if (record->context != NULL) purr_context_query_counters(record->context, &counters, NULL);
  record->num_lines++;
  record->level = level;
  snprintf(record->line, sizeof record->line, "%s", message);
}

static void log_reaches_the_sink(void) {
  log_record_t record = {0};
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  desc.num_threads = 1;
  desc.log = record_log;
  desc.log_user = &record;
  purr_error_t err = PURR_ERROR_INIT;
  unsetenv("PURR_LOG");
  REQUIRE_OK(purr_context_create(&desc, &record.context, &err));
  record.num_lines = 0;
  purr__log(record.context, PURR_LOG_INFO, "too detailed");
  CU_ASSERT_EQUAL(record.num_lines, 0);
  purr__log(record.context, PURR_LOG_WARNING, "%d lives left", 9);
  CU_ASSERT_EQUAL(record.num_lines, 1);
  CU_ASSERT_EQUAL(record.level, PURR_LOG_WARNING);
  CU_ASSERT_STRING_EQUAL(record.line, "9 lives left");
  CU_ASSERT(!purr__log_enabled(record.context, PURR_LOG_DEBUG));
  purr_context_destroy(record.context);

  setenv("PURR_LOG", "debug", 1);
  record.context = NULL;
  REQUIRE_OK(purr_context_create(&desc, &record.context, &err));
  CU_ASSERT(purr__log_enabled(record.context, PURR_LOG_DEBUG));
  purr_context_destroy(record.context);
  static const char *const nonsense[] = {"chatty", "Debug", "4", "info\n"};
  for (size_t i = 0; i < sizeof nonsense / sizeof nonsense[0]; i++) {
    setenv("PURR_LOG", nonsense[i], 1);
    ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_context_create(&desc, &record.context, &err));
    CU_ASSERT_PTR_NULL(record.context);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "the environment variable PURR_LOG is '"));
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "allowed are error, warning, info and debug"));
  }
  setenv("PURR_LOG", "", 1); /* as not set */
  REQUIRE_OK(purr_context_create(&desc, &record.context, &err));
  CU_ASSERT(!purr__log_enabled(record.context, PURR_LOG_INFO));
  purr_context_destroy(record.context);
  unsetenv("PURR_LOG");
}

static void threads_come_from_the_environment(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = NULL;
  unsetenv("PURR_NUM_THREADS");
  REQUIRE_OK(purr_context_create(NULL, &context, &err));
  int num_cpus = purr__num_threads(context);
  CU_ASSERT(num_cpus >= 1);
  purr_context_destroy(context);
  static const char *const good[] = {"7", ""};
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    setenv("PURR_NUM_THREADS", good[i], 1);
    REQUIRE_OK(purr_context_create(NULL, &context, &err));
    CU_ASSERT_EQUAL(purr__num_threads(context), i == 0 ? 7 : num_cpus);
    purr_context_destroy(context);
  }
  static const char *const nonsense[] = {"0", "-1", "4x", " 3", "99999999999999999999", "0x10", "1025"};
  for (size_t i = 0; i < sizeof nonsense / sizeof nonsense[0]; i++) {
    setenv("PURR_NUM_THREADS", nonsense[i], 1);
    ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_context_create(NULL, &context, &err));
    CU_ASSERT_PTR_NULL(context);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "the environment variable PURR_NUM_THREADS is '"));
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, nonsense[i]));
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "allowed are 1 to 1024"));
  }
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  desc.num_threads = 3; /* what the caller says comes first */
  REQUIRE_OK(purr_context_create(&desc, &context, &err));
  CU_ASSERT_EQUAL(purr__num_threads(context), 3);
  purr_context_destroy(context);
  unsetenv("PURR_NUM_THREADS");
}

/* ---- fork ---- */

static void touch(void *arg, int64_t task_idx) { ((int *)arg)[task_idx] = 1; }

/* 0 when the child sees what it must, else the number of the first surprise. */
static int in_the_child(purr_context_t *inherited, const void *object) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_counters_t counters = {.struct_size = sizeof counters};
  if (purr_context_query_counters(inherited, &counters, &err) != PURR_STATUS_FORKED) return 1;
  if (err.status != PURR_STATUS_FORKED || strstr(err.message, "fork") == NULL) return 2;
  if (purr__check(object, PURR__PLAN, &err) != PURR_STATUS_FORKED) return 3;
  purr__object_release(object);
  purr_context_destroy(inherited);
  purr_context_destroy(inherited); /* still nothing */
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  desc.num_threads = 1;
  purr_context_t *own = NULL;
  if (purr_context_create(&desc, &own, &err) != PURR_STATUS_OK) return 4;
  if (purr_context_query_counters(own, &counters, &err) != PURR_STATUS_OK) return 5;
  purr_context_destroy(own);
  return 0;
}

static void fork_is_noticed(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_test_allocator_t memory;
  purr_test_allocator_init(&memory);
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  desc.host_allocator = &memory.hooks;
  desc.num_threads = 2;
  purr_context_t *context = NULL;
  REQUIRE_OK(purr_context_create(&desc, &context, &err));
  void *object = NULL;
  REQUIRE_OK(purr__object_create(context, PURR__PLAN, sizeof(purr__object_t), NULL, &object, &err));
  int touched[8] = {0};
  purr__parallel_for(context, 8, touch, touched); /* there are workers, which the child does not have */
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) _exit(in_the_child(context, object));
  int child_status = -1;
  CU_ASSERT_EQUAL(waitpid(child, &child_status, 0), child);
  CU_ASSERT(WIFEXITED(child_status));
  CU_ASSERT_EQUAL(WEXITSTATUS(child_status), 0);
  ASSERT_OK(purr__check(object, PURR__PLAN, &err)); /* the parent did not notice */
  purr__parallel_for(context, 8, touch, touched);
  purr__object_release(object);
  purr_context_destroy(context);
  assert_all_released(&memory);
}

int main(void) {
  return purr_test_main("base", (purr_test_t[]){
                                    {"statuses have names", statuses_have_names},
                                    {"the version is the header's", version_is_the_headers},
                                    {"an error carries its fields", error_carries_its_fields},
                                    {"an error fits a struct of any size", error_fits_any_size},
                                    {"a cut message stays UTF-8", cut_message_stays_utf8},
                                    {"a struct of any version is read", read_struct_takes_any_version},
                                    {"struct_size must be set", struct_size_must_be_set},
                                    {"writing a struct stays inside it", write_struct_stays_inside},
                                    {"destroy works in any order", destroy_works_in_any_order},
                                    {"handles are checked", handles_are_checked},
                                    {"a context's desc is checked", context_desc_is_checked},
                                    {"each allocation may fail", each_allocation_may_fail},
                                    {"the counters follow memory", counters_follow_memory},
                                    {"reallocate keeps the content", reallocate_keeps_the_content},
                                    {"sizes do not wrap", sizes_do_not_wrap},
                                    {"a text is delivered", text_is_delivered},
                                    {"a text is formatted", text_formats},
                                    {"untrusted text is made printable", untrusted_text_is_made_printable},
                                    {"log lines reach the sink", log_reaches_the_sink},
                                    {"threads come from the environment", threads_come_from_the_environment},
                                    {"fork is noticed", fork_is_noticed},
                                    {0},
                                });
}
