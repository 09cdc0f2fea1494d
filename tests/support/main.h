/* The one main of every test program: runs a table of tests, prints what failed, returns the number of failures.
 * (CU_get_error() stays 0 when an assertion fails, so it is never the exit code.)
 * PURR_TEST_ONLY=TEXT runs only those whose names hold TEXT.
 *
 *   static void adds_up(void) { CU_ASSERT_EQUAL(1 + 1, 2); }
 *   int main(void) { return purr_test_main("sums", (purr_test_t[]){{"1 + 1 is 2", adds_up}, {0}}); }
 */
#ifndef PURR_TEST_MAIN_H
#define PURR_TEST_MAIN_H

#include <CUnit/CUnit.h>

#include "purr.h"

#define PURR_TEST_SKIPPED 77

typedef struct purr_test {
  const char *name;
  void (*run)(void);
} purr_test_t;

/* `tests` ends with an empty entry. */
int purr_test_main(const char *suite, const purr_test_t *tests);

/* Asserts that a call returns `expected`; prints the call's own sentence when it does not. Uses a local `err`. */
#define ASSERT_STATUS(expected, call)                                                                               \
  do {                                                                                                              \
    err = (purr_error_t)PURR_ERROR_INIT;                                                                            \
    purr_status_t status_ = (call);                                                                                 \
    if (status_ != (expected))                                                                                      \
      fprintf(stderr, "%s:%d: %s: got %s, expected %s: %s\n", __FILE__, __LINE__, #call, purr_status_name(status_), \
              purr_status_name(expected), err.message);                                                             \
    CU_ASSERT_EQUAL(status_, (expected));                                                                           \
  } while (0)
#define ASSERT_OK(call) ASSERT_STATUS(PURR_STATUS_OK, call)

/* As ASSERT_OK, and leaves the test function on failure. */
#define REQUIRE_OK(call)                                                                                           \
  do {                                                                                                             \
    err = (purr_error_t)PURR_ERROR_INIT;                                                                           \
    purr_status_t required_ = (call);                                                                              \
    if (required_ != PURR_STATUS_OK) {                                                                             \
      fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, purr_status_name(required_), err.message); \
      CU_FAIL(#call);                                                                                              \
      return;                                                                                                      \
    }                                                                                                              \
  } while (0)

#endif
