/* The language of the rules for a Triton kernel's grid. */
#include <stdio.h>
#include <string.h>

#include "support/main.h"
#include "triton/grid.h"

static bool look_up(const void *user, const char *name, uint64_t length, int64_t *out_value) {
  (void)user;
  *out_value = 1000;
  return length == 1 && name[0] == 'n';
}

static void grid_rules(void) {
  static const struct {
    const char *rule;
    int64_t value;
  } good[] = {{"1", 1},
              {" cdiv( n , 64 ) ", 16},
              {"n + 2 * 3", 1006},
              {"(n + 2) * 3", 3006},
              {"n / 3", 333},
              {"-n / 3", -334},
              {"n % 7", 6},
              {"-n % 7", 1},
              {"--5", 5},
              {"min(n, 2) + max(n, 2000)", 2002},
              {"cdiv(-7, 2)", -3},
              {"10 - 3 - 2", 5}};
  static const struct {
    const char *rule, *text;
  } bad[] = {{"", "was expected"},
             {"n n", "belongs to nothing"},
             {"m", "'m' is no integer argument"},
             {"n / 0", "divides by 0"},
             {"n % (n - n)", "divides by 0"},
             {"9223372036854775807 + 1", "leaves 64 bits"},
             {"9223372036854775808", "no number of 64 bits"},
             {"4611686018427387904 * 2", "leaves 64 bits"},
             {"pow(2, 3)", "'pow' is no function"},
             {"cdiv(1)", "',' was expected"},
             {"(1", "')' was expected"},
             {"1 + ", "was expected"},
             {"((((((((((((((((((((((((((((((((((1))))))))))))))))))))))))))))))))))", "nests more"},
             {"----------------------------------------1", "nests more"},
             {"1; 2", "belongs to nothing"}};
  char why[160];
  int64_t value;
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    CU_ASSERT(purr__grid_evaluate(good[i].rule, look_up, NULL, &value, why, sizeof why));
    if (value != good[i].value) fprintf(stderr, "%s is %lld\n", good[i].rule, (long long)value);
    CU_ASSERT_EQUAL(value, good[i].value);
  }
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    CU_ASSERT_FALSE(purr__grid_evaluate(bad[i].rule, look_up, NULL, &value, why, sizeof why));
    if (strstr(why, bad[i].text) == NULL) fprintf(stderr, "%s: %s\n", bad[i].rule, why);
    CU_ASSERT_PTR_NOT_NULL(strstr(why, bad[i].text));
  }
}

int main(void) { return purr_test_main("grids", (purr_test_t[]){{"rules", grid_rules}, {0}}); }
