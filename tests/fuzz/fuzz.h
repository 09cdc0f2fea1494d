/* What the fuzz targets share. A target is one function: it gets any bytes, feeds them to the library, and aborts when
 * something that must always hold does not. Linked with libFuzzer it searches for such bytes (PURR_FUZZ); linked with
 * replay.c, in every ordinary build, it goes through the inputs found so far. */
#ifndef PURR_FUZZ_H
#define PURR_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes);

#define FUZZ_CHECK(condition)                                                        \
  do {                                                                               \
    if (!(condition)) {                                                              \
      fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                                       \
    }                                                                                \
  } while (0)

/* One context for the whole process, on the calling thread alone. */
static inline purr_context_t *fuzz_context(void) {
  static purr_context_t *context;
  if (context == NULL) {
    purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
    desc.num_threads = 1;
    FUZZ_CHECK(purr_context_create(&desc, &context, NULL) == PURR_STATUS_OK);
  }
  return context;
}

/* Memory that the library holds: the same after an input as before, or something leaks. */
static inline uint64_t fuzz_held_bytes(void) {
  purr_counters_t counters = {.struct_size = sizeof counters};
  FUZZ_CHECK(purr_context_query_counters(fuzz_context(), &counters, NULL) == PURR_STATUS_OK);
  return counters.host_bytes;
}

/* A failed call says one sentence, in UTF-8 without control characters whatever the input holds. */
static inline void fuzz_check_error(purr_status_t status, const purr_error_t *err) {
  FUZZ_CHECK(status == err->status && status != PURR_STATUS_OK && status != PURR_STATUS_INTERNAL);
  const size_t length = strlen(err->message);
  FUZZ_CHECK(length > 0 && length < sizeof err->message);
  char printable[4 * sizeof err->message];
  FUZZ_CHECK(strcmp(purr__printable(printable, sizeof printable, err->message, length), err->message) == 0);
  FUZZ_CHECK(err->line >= 0 && err->column >= 0);
}

/* The input, taken from the front; zero once it is used up. */
typedef struct fuzz_input {
  const uint8_t *data;
  size_t num_bytes;
} fuzz_input_t;

static inline uint8_t fuzz_take(fuzz_input_t *input) {
  if (input->num_bytes == 0) return 0;
  input->num_bytes--;
  return *input->data++;
}

/* Memory of exactly this size, so that the address sanitizer sees a byte too many. */
static inline void *fuzz_allocate(size_t num_bytes) {
  void *memory = malloc(num_bytes > 0 ? num_bytes : 1);
  FUZZ_CHECK(memory != NULL);
  return memory;
}

#endif
