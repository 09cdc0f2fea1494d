/* The public functions about packages, cubins and the machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/context.h"
#include "base/json.h"
#include "support/fake_cuda.h"
#include "support/main.h"
#include "support/package.h"

typedef purr_status_t (*describe_fn)(const void *object, int32_t format, char *buffer, uint64_t capacity,
                                     uint64_t *out_length, purr_error_t *err);

static purr_status_t describe_package(const void *object, int32_t format, char *buffer, uint64_t capacity,
                                      uint64_t *out_length, purr_error_t *err) {
  return purr_package_describe(object, format, buffer, capacity, out_length, err);
}

typedef struct path {
  purr_context_t *context;
  const char *path;
} path_t;

static purr_status_t describe_cubin(const void *object, int32_t format, char *buffer, uint64_t capacity,
                                    uint64_t *out_length, purr_error_t *err) {
  const path_t *cubin = object;
  return purr_cubin_describe(cubin->context, cubin->path, format, buffer, capacity, out_length, err);
}

static int32_t num_problems;
static purr_status_t diagnose(const void *object, int32_t format, char *buffer, uint64_t capacity, uint64_t *out_length,
                              purr_error_t *err) {
  purr_context_t *context = (purr_context_t *)(uintptr_t)object;
  return purr_context_diagnose(context, format, buffer, capacity, out_length, &num_problems, err);
}

static char description[1 << 16];

/* Describes in both formats: the length is right, JSON is JSON. Leaves the text in `description`. */
static const char *describe(describe_fn function, const void *object) {
  purr_error_t err = PURR_ERROR_INIT;
  for (int32_t format = PURR_FORMAT_JSON; format >= PURR_FORMAT_TEXT; format--) {
    uint64_t length = 0;
    ASSERT_OK(function(object, format, NULL, 0, &length, &err));
    ASSERT_STATUS(PURR_STATUS_BUFFER_TOO_SMALL, function(object, format, description, length, &length, &err));
    ASSERT_OK(function(object, format, description, sizeof description, &length, &err));
    CU_ASSERT_EQUAL(strlen(description), length);
    CU_ASSERT_EQUAL(description[length - 1], '\n');
    if (format == PURR_FORMAT_JSON) {
      purr__json_t json;
      purr__json_begin(&json, description, length, "description", &err);
      purr__json_skip(&json);
      CU_ASSERT_EQUAL(purr__json_next(&json), PURR__JSON_END);
      if (json.status != PURR_STATUS_OK) fprintf(stderr, "%s\n%s\n", err.message, description);
    }
  }
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, function(object, 2, NULL, 0, NULL, &err));
  return description;
}

static bool says(const char *text, const char *what) {
  if (strstr(text, what) == NULL) fprintf(stderr, "'%s' is not in:\n%s\n", what, text);
  return strstr(text, what) != NULL;
}

static void describes_packages(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = fake_cuda_context();
  test_folder_t folder = test_folder_make();
  test_package_fill(&folder, "small", "sm_90a");
  purr_package_t *package;
  REQUIRE_OK(purr_package_open(context, folder.path, &package, &err));
  const char *text = describe(describe_package, package);
  CU_ASSERT(says(text, "package small\n"));
  CU_ASSERT(says(text, "3 kernels in 1 images"));
  CU_ASSERT(says(text, "shared_sum  sum    sm_90a       128         12           16 + 0      0       0"));
  ASSERT_OK(purr_package_verify(package, &err));

  test_folder_write_text(&folder, "kernels.sm_90a.cubin", "not a cubin");
  text = describe(describe_package, package);
  CU_ASSERT(says(text, "  problem: "));
  CU_ASSERT(says(text, "kernels.sm_90a.cubin is not a cubin: it starts with 'not a cu'"));
  CU_ASSERT(says(text, "vector_add  add    sm_90a       128          ?            ? + 0      ?       ?"));
  ASSERT_STATUS(PURR_STATUS_PACKAGE, purr_package_verify(package, &err));
  purr_context_destroy(context); /* the package keeps it */
  ASSERT_STATUS(PURR_STATUS_PACKAGE, purr_package_verify(package, &err));
  purr_package_destroy(package);
  test_folder_remove(&folder);
}

static void describes_cubins(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = fake_cuda_context();
  char path[512];
  snprintf(path, sizeof path, "%s/cubins/kernels.sm_90.cubin", PURR_TEST_DATA);
  path_t cubin = {context, path};
  const char *text = describe(describe_cubin, &cubin);
  CU_ASSERT(says(text, "  for      sm_90\n  made by  CUDA 13.0\n"));
  CU_ASSERT(says(text, "cluster_rank    up to 32"));
  snprintf(path, sizeof path, "%s/cubins/spill.sm_90a.cuda_12_4.cubin", PURR_TEST_DATA);
  text = describe(describe_cubin, &cubin);
  CU_ASSERT(says(text, "spill   up to 1024         32              0    312       ?"));
  cubin.path = "/etc/passwd";
  ASSERT_STATUS(PURR_STATUS_PACKAGE, describe_cubin(&cubin, 0, NULL, 0, NULL, &err));
  cubin.path = "/nonexistent";
  ASSERT_STATUS(PURR_STATUS_IO, describe_cubin(&cubin, 0, NULL, 0, NULL, &err));
  purr_context_destroy(context);
}

static void refuses_wrong_arguments(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = fake_cuda_context(), *other = fake_cuda_context();
  test_folder_t folder = test_folder_make();
  test_package_fill(&folder, "p", "sm_90");
  purr_package_t *package = (purr_package_t *)context;
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_package_open(context, NULL, &package, &err));
  CU_ASSERT_PTR_NULL(package);
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_package_open(NULL, folder.path, &package, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_package_open(context, folder.path, NULL, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_package_open_memory(context, NULL, 5, NULL, &package, &err));
  ASSERT_STATUS(PURR_STATUS_PACKAGE, purr_package_open_memory(context, "hello", 5, NULL, &package, &err));
  CU_ASSERT(says(err.message, "package has 5 bytes"));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_package_verify(NULL, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_cubin_describe(context, NULL, 0, NULL, 0, NULL, &err));
  REQUIRE_OK(purr_package_open(context, folder.path, &package, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_context_add_package(other, package, &err));
  CU_ASSERT_STRING_EQUAL(err.message, "package p was opened in another context");
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_context_add_package(context, NULL, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_context_add_package(context, (purr_package_t *)context, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_context_diagnose(NULL, 0, NULL, 0, NULL, NULL, &err));
  purr_package_destroy(NULL);
  purr_package_destroy(package);
  purr_context_destroy(other);
  purr_context_destroy(context);
  test_folder_remove(&folder);
}

static void diagnoses_machines(void) {
  purr_error_t err = PURR_ERROR_INIT;
  test_folder_t folder = test_folder_make();
  test_package_fill(&folder, "p", "sm_90");

  /* No driver, no package: nothing is wrong. */
  purr_context_t *context;
  REQUIRE_OK(purr_context_create(NULL, &context, &err));
  context->driver_library = "libcuda-that-is-not-there.so.1";
  const char *text = describe(diagnose, context);
  CU_ASSERT(says(text, "host      works, "));
  CU_ASSERT(says(text, "driver    none: there is no CUDA driver (libcuda-that-is-not-there.so.1"));
  CU_ASSERT(says(text, "packages  none\n  looked in PURR_PACKAGE_PATH (not set) and in "));
  CU_ASSERT(says(text, "problems  none\n"));
  CU_ASSERT_EQUAL(num_problems, 0);
  purr_context_destroy(context);

  /* Two devices, a package for one. */
  fake_cuda_t *fake = fake_cuda_open();
  fake->num_devices = 2;
  fake->cc[1] = 80;
  setenv("PURR_PACKAGE_PATH", folder.path, 1);
  context = fake_cuda_context();
  text = describe(diagnose, context);
  CU_ASSERT(says(text, "driver    works, CUDA 13.0\n"));
  CU_ASSERT(says(text, "  p (purr tests): 3 kernels for sm_90\n    in /"));
  CU_ASSERT(says(text, "  device 0  Fake GPU A, compute capability 9.0, 132 SMs, 1.00 GiB, at 0000:01:00.0\n"));
  CU_ASSERT(says(text, "    reaches   1\n    kernels   3 loaded: fault (sm_90), sum (sm_90), add (sm_90)\n"));
  CU_ASSERT(says(
      text, "problems\n  1. no package has kernels for device 1 (Fake GPU B, sm_80), so only the host backend runs"));
  CU_ASSERT_EQUAL(num_problems, 1);
  purr_context_destroy(context);

  /* An old driver and a damaged package. */
  fake = fake_cuda_open();
  fake->driver_version = 12020;
  test_folder_write_text(&folder, "manifest.json", "{}");
  context = fake_cuda_context();
  text = describe(diagnose, context);
  CU_ASSERT(says(text, "driver    cannot be used, see below\n"));
  CU_ASSERT(says(text, "packages  cannot be used, see below\n"));
  CU_ASSERT(says(text, "  1. driver too old: "));
  CU_ASSERT(says(text, "manifest.json:1:2: the first key of a manifest must be \"format\""));
  CU_ASSERT_EQUAL(num_problems, 2);
  unsetenv("PURR_PACKAGE_PATH");
  purr_context_destroy(context);
  test_folder_remove(&folder);
}

int main(void) {
  return purr_test_main("package, public", (purr_test_t[]){{"describes packages", describes_packages},
                                                           {"describes cubins", describes_cubins},
                                                           {"refuses wrong arguments", refuses_wrong_arguments},
                                                           {"diagnoses machines", diagnoses_machines},
                                                           {0}});
}
