#include "support/main.h"

#include <CUnit/Basic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int purr_test_main(const char *suite_name, const purr_test_t *tests) {
  if (CU_initialize_registry() != CUE_SUCCESS) return 1;
  CU_pSuite suite = CU_add_suite(suite_name, NULL, NULL);
  const char *only = getenv("PURR_TEST_ONLY");
  for (const purr_test_t *test = tests; suite != NULL && test->name != NULL; test++)
    if ((only == NULL || strstr(test->name, only) != NULL) && CU_add_test(suite, test->name, test->run) == NULL) {
      fprintf(stderr, "%s: test '%s' could not be added: %s\n", suite_name, test->name, CU_get_error_msg());
      return 1;
    }
  if (suite == NULL) return 1;
  CU_basic_set_mode(CU_BRM_VERBOSE);
  CU_basic_run_tests();
  unsigned failures = CU_get_number_of_failures() + CU_get_number_of_suites_failed();
  CU_cleanup_registry();
  return failures > 76 ? 76 : (int)failures; /* 77 means skipped */
}
