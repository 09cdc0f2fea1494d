/* purr doctor: says what works on this machine, what does not, and what to do about it. */
#include <stdlib.h>

#include "program.h"

static const help_t help = {
    .command = "doctor",
    .usage = "[--json]",
    .about =
        "Says what works on this machine, what does not and what to do about it: library, driver, devices\n"
        "and the access between them, kernel packages, and the kernels that each device can run (they are\n"
        "loaded for it). A machine without a GPU is fine: the host backend runs there. Exit code 1 when there\n"
        "is a problem, such as a driver that is too old or a damaged package.",
    .example =
        "  purr doctor\n"
        "  PURR_PACKAGE_PATH=/opt/kernels purr doctor --json",
};

/* The variables that decide what the library and the driver find. */
static const char *const variables[] = {"PURR_PACKAGE_PATH",         "PURR_LOG",        "PURR_NUM_THREADS",
                                        "CUDA_VISIBLE_DEVICES",      "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES",
                                        "NVIDIA_DRIVER_CAPABILITIES"};

static void print_variables(void) {
  for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
    if (getenv(variables[i]) != NULL) printf("variable  %s=%s\n", variables[i], getenv(variables[i]));
}

/* The text is made once: a diagnosis loads kernels. */
static int diagnose(purr_context_t *context, bool json) {
  enum { CAPACITY = 1 << 20 };
  char *text = malloc(CAPACITY);
  if (text == NULL) return fail("doctor", "free some memory", "memory ran out");
  purr_error_t err = PURR_ERROR_INIT;
  int32_t num_problems = 0;
  int32_t format = json ? PURR_FORMAT_JSON : PURR_FORMAT_TEXT;
  purr_status_t status = purr_context_diagnose(context, format, text, CAPACITY, NULL, &num_problems, &err);
  if (status == PURR_STATUS_OK) {
    if (!json) print_variables();
    fputs(text, stdout);
  }
  free(text);
  if (status != PURR_STATUS_OK) return fail_call("doctor", NULL, &err);
  return num_problems > 0 ? EXIT_CHECK_FAILED : EXIT_GOOD;
}

int cmd_doctor(int argc, char **argv) {
  bool json = false;
  const option_t table[] = {{.name = "json", .kind = OPTION_FLAG, .value = &json, .help = "print one JSON object"},
                            {0}};
  int code = options_parse(&help, table, argc, argv, NULL, 0);
  if (code != OPTIONS_GO_ON) return code;
  purr_context_t *context;
  purr_error_t err = PURR_ERROR_INIT;
  bool bad_variable = false;
  if (purr_context_create(NULL, &context, &err) != PURR_STATUS_OK) {
    /* A finding like any other: the rest is told without the variables that the library refuses. */
    bad_variable = true;
    fail_call("doctor", "correct or unset the environment variable", &err);
    unsetenv("PURR_NUM_THREADS");
    unsetenv("PURR_LOG");
    err = (purr_error_t)PURR_ERROR_INIT;
    if (purr_context_create(NULL, &context, &err) != PURR_STATUS_OK) return fail_call("doctor", NULL, &err);
  }
  code = diagnose(context, json);
  purr_context_destroy(context);
  return bad_variable && code == EXIT_GOOD ? EXIT_CHECK_FAILED : code;
}
