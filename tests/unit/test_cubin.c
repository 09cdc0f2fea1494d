/* The cubin reader, against images whose figures ptxas and NVIDIA's own tools print, and against damaged ones. */
#include "package/cubin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/folder.h"
#include "support/main.h"

static purr_context_t *context;

static unsigned char *read_image(const char *name, uint64_t *bytes) {
  char path[512];
  snprintf(path, sizeof path, "%s/cubins/%s", PURR_TEST_DATA, name);
  return test_read_file(path, bytes);
}

/* ---- architectures ---- */

static void architectures(void) {
  static const struct {
    const char *text;
    int number;
    char suffix;
  } good[] = {{"sm_80", 80, 0}, {"sm_90a", 90, 'a'}, {"sm_100f", 100, 'f'}, {"sm_121", 121, 0}};
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    purr__arch_t arch = {0, 'x'};
    CU_ASSERT(purr__arch_parse(good[i].text, &arch));
    CU_ASSERT_EQUAL(arch.number, good[i].number);
    CU_ASSERT_EQUAL(arch.suffix, good[i].suffix);
    CU_ASSERT_STRING_EQUAL(PURR__ARCH_TEXT(arch), good[i].text);
  }
  static const char *const bad[] = {"",        "sm_",   "sm_9", "sm_90b", "sm_90aa",
                                    "sm_9000", "SM_90", "90",   "sm_-90", "sm_90 "};
  purr__arch_t arch;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) CU_ASSERT_FALSE(purr__arch_parse(bad[i], &arch));
}

static bool fits(const char *text, int cc) {
  purr__arch_t arch = {0, 0};
  CU_ASSERT(purr__arch_parse(text, &arch));
  return purr__arch_fits(arch, cc / 10, cc % 10);
}

static bool is_better(const char *text, const char *than_text) {
  purr__arch_t arch = {0, 0}, than = {0, 0};
  purr__arch_parse(text, &arch);
  purr__arch_parse(than_text, &than);
  return purr__arch_is_better(arch, than);
}

static void what_runs_where(void) {
  CU_ASSERT(fits("sm_80", 80) && fits("sm_80", 86) && fits("sm_80", 89));
  CU_ASSERT_FALSE(fits("sm_80", 90) || fits("sm_86", 80) || fits("sm_90", 100) || fits("sm_90", 89));
  CU_ASSERT(fits("sm_90a", 90) && fits("sm_100a", 100) && fits("sm_103a", 103));
  CU_ASSERT_FALSE(fits("sm_100a", 103) || fits("sm_90a", 100) || fits("sm_80a", 86));
  CU_ASSERT(fits("sm_100f", 100) && fits("sm_100f", 103) && fits("sm_120", 121));
  CU_ASSERT_FALSE(fits("sm_100f", 120) || fits("sm_103f", 100) || fits("sm_100", 110));
  CU_ASSERT(is_better("sm_90a", "sm_90") && is_better("sm_86", "sm_80") && is_better("sm_100f", "sm_103"));
  CU_ASSERT_FALSE(is_better("sm_80", "sm_86") || is_better("sm_90", "sm_90a") || is_better("sm_90", "sm_90"));
}

/* ---- images ---- */

typedef struct expected {
  const char *file, *arch;
  int toolkit, num_kernels;
} expected_t;

static void figures_of_the_images(void) {
  static const expected_t expected[] = {{"kernels.sm_80.cubin", "sm_80", 13000, 4},
                                        {"kernels.sm_90.cubin", "sm_90", 13000, 5},
                                        {"kernels.sm_90a.cubin", "sm_90a", 13000, 5},
                                        {"kernels.sm_90a.cuda_12_4.cubin", "sm_90a", 12040, 5},
                                        {"kernels.sm_100f.cubin", "sm_100f", 13000, 5}};
  for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
    purr_error_t err = PURR_ERROR_INIT;
    purr__cubin_t cubin;
    uint64_t bytes;
    unsigned char *data = read_image(expected[i].file, &bytes);
    REQUIRE_OK(purr__cubin_parse(context, data, bytes, expected[i].file, &cubin, &err));
    CU_ASSERT_STRING_EQUAL(PURR__ARCH_TEXT(cubin.arch), expected[i].arch);
    CU_ASSERT_EQUAL(cubin.toolkit, expected[i].toolkit);
    CU_ASSERT_EQUAL(cubin.num_kernels, expected[i].num_kernels);

    const purr__cubin_kernel_t *add = purr__cubin_find(&cubin, "vector_add");
    const purr__cubin_kernel_t *sum = purr__cubin_find(&cubin, "shared_sum");
    const purr__cubin_kernel_t *fault = purr__cubin_find(&cubin, "fault");
    CU_ASSERT_PTR_NULL(purr__cubin_find(&cubin, "vector_ad"));
    CU_ASSERT_FATAL(add != NULL && sum != NULL && fault != NULL);
    CU_ASSERT(add->registers >= 8 && add->registers <= 16);
    CU_ASSERT_EQUAL(add->most_threads, 128);
    CU_ASSERT_EQUAL(add->exact_threads[0], 0);
    CU_ASSERT_EQUAL(add->static_shared_bytes, 0);
    CU_ASSERT_EQUAL(sum->static_shared_bytes, 16); /* the driver's own KiB is not the kernel's */
    CU_ASSERT_EQUAL(add->stack_bytes, 0);
    CU_ASSERT_EQUAL(add->num_spills, 0);
    CU_ASSERT_EQUAL(add->num_params, 1);
    CU_ASSERT_EQUAL(add->params_bytes, 32); /* sizeof the struct */
    CU_ASSERT_EQUAL(sum->params_bytes, 16);
    CU_ASSERT(add->code_bytes >= 128);
    CU_ASSERT_EQUAL(fault->num_params, 0);
    CU_ASSERT_EQUAL(fault->params_bytes, 0);
    CU_ASSERT_EQUAL(fault->most_threads, 0);
    int offset = -1, param_bytes = -1;
    CU_ASSERT(purr__cubin_param(&cubin, add, 0, &offset, &param_bytes));
    CU_ASSERT_EQUAL(offset, 0);
    CU_ASSERT_EQUAL(param_bytes, 32);
    CU_ASSERT_FALSE(purr__cubin_param(&cubin, add, 1, &offset, &param_bytes));
    const purr__cubin_kernel_t *cluster = purr__cubin_find(&cubin, "cluster_rank");
    CU_ASSERT_EQUAL(cluster != NULL, cubin.arch.number >= 90);
    if (cluster != NULL) CU_ASSERT(cluster->cluster[0] == 2 && cluster->cluster[1] == 1 && cluster->cluster[2] == 1);
    purr__cubin_free(context, &cubin);
    free(data);
  }
}

static void exact_blocks_and_parameters(void) {
  static const char *const files[] = {"exact_block.sm_80.cubin", "exact_block.sm_80.cuda_12_4.cubin"};
  for (int i = 0; i < 2; i++) {
    purr_error_t err = PURR_ERROR_INIT;
    purr__cubin_t cubin;
    uint64_t bytes;
    unsigned char *data = read_image(files[i], &bytes);
    REQUIRE_OK(purr__cubin_parse(context, data, bytes, files[i], &cubin, &err));
    const purr__cubin_kernel_t *kernel = &cubin.kernels[0];
    CU_ASSERT_EQUAL(cubin.num_kernels, 1);
    CU_ASSERT_STRING_EQUAL(kernel->name, "exact_block");
    CU_ASSERT(kernel->exact_threads[0] == 128 && kernel->exact_threads[1] == 1 && kernel->exact_threads[2] == 1);
    CU_ASSERT_EQUAL(kernel->num_params, 2);
    CU_ASSERT_EQUAL(kernel->params_bytes, 12);
    int offset, param_bytes;
    CU_ASSERT(purr__cubin_param(&cubin, kernel, 1, &offset, &param_bytes));
    CU_ASSERT_EQUAL(offset, 8);
    CU_ASSERT_EQUAL(param_bytes, 4);
    purr__cubin_free(context, &cubin);
    free(data);
  }
}

/* ptxas -v says: 312 bytes stack frame, 600 bytes spill stores, 624 bytes spill loads. */
static void spills(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr__cubin_t cubin;
  uint64_t bytes;
  unsigned char *data = read_image("spill.sm_90.cubin", &bytes);
  REQUIRE_OK(purr__cubin_parse(context, data, bytes, "spill", &cubin, &err));
  CU_ASSERT_EQUAL(cubin.kernels[0].stack_bytes, 312);
  CU_ASSERT_EQUAL(cubin.kernels[0].registers, 32);
  CU_ASSERT(cubin.kernels[0].num_spills > 100);
  purr__cubin_free(context, &cubin);
  free(data);
  data = read_image("spill.sm_90a.cuda_12_4.cubin", &bytes);
  REQUIRE_OK(purr__cubin_parse(context, data, bytes, "spill", &cubin, &err));
  CU_ASSERT(cubin.kernels[0].stack_bytes > 0);
  CU_ASSERT_EQUAL(cubin.kernels[0].num_spills, -1); /* that toolkit does not list them */
  purr__cubin_free(context, &cubin);
  free(data);
}

/* ---- what is no cubin ---- */

static void assert_refused(const void *data, uint64_t bytes, const char *says) {
  purr_error_t err = PURR_ERROR_INIT;
  purr__cubin_t cubin;
  ASSERT_STATUS(PURR_STATUS_PACKAGE, purr__cubin_parse(context, data, bytes, "x.cubin", &cubin, &err));
  if (strstr(err.message, says) == NULL) fprintf(stderr, "'%s' does not say '%s'\n", err.message, says);
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, says));
  CU_ASSERT_PTR_NULL(cubin.kernels);
}

static void other_files(void) {
  uint64_t bytes;
  assert_refused("", 0, "x.cubin is empty");
  assert_refused("hello\n", 6, "it starts with 'hello");
  assert_refused("\x50\xed\x55\xba and so on", 12, "is a fatbinary");
  unsigned char *data = read_image("kernels.sm_90.cubin", &bytes);
  assert_refused(data, 3, "not a cubin");
  assert_refused(data, 50, "cut short");
  assert_refused(data, 100, "its section table lies at byte");
  assert_refused(data, bytes / 2, "cut short");
  free(data);
  data = test_read_file("/proc/self/exe", &bytes);
  assert_refused(data, bytes, "not GPU code (machine 190)");
  free(data);
}

/* Every prefix, every single byte overwritten with several values, and random damage: an answer, no fault, no leak. */
static void damaged_images(void) {
  purr_counters_t before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
  purr_context_query_counters(context, &before, NULL);
  static const char *const files[] = {"kernels.sm_90a.cubin", "exact_block.sm_80.cuda_12_4.cubin"};
  for (int f = 0; f < 2; f++) {
    uint64_t bytes;
    unsigned char *data = read_image(files[f], &bytes), *copy = malloc(bytes);
    uint64_t random = 88172645463325252u;
    for (uint64_t round = 0; round < 6 * bytes; round++) {
      memcpy(copy, data, bytes);
      uint64_t length = bytes;
      if (round < bytes) {
        length = round;
      } else if (round < 4 * bytes) {
        static const unsigned char values[] = {0x00, 0xff, 0x7f};
        copy[round % bytes] = values[round / bytes - 1];
      } else {
        for (int i = 0; i < 8; i++) {
          random ^= random << 13;
          random ^= random >> 7;
          random ^= random << 17;
          copy[random % bytes] = (unsigned char)(random >> 32);
        }
      }
      unsigned char *exact = malloc(length + 1); /* so that a sanitizer sees a read past the end */
      unsigned char *end = memcpy(exact + 1, copy, length);
      purr__cubin_t cubin;
      if (purr__cubin_parse(context, end, length, "x", &cubin, NULL) == PURR_STATUS_OK) {
        int offset, param_bytes;
        for (int k = 0; k < cubin.num_kernels; k++)
          purr__cubin_param(&cubin, &cubin.kernels[k], 0, &offset, &param_bytes);
        purr__cubin_free(context, &cubin);
      }
      free(exact);
    }
    free(copy);
    free(data);
  }
  purr_context_query_counters(context, &after, NULL);
  CU_ASSERT_EQUAL(after.host_bytes, before.host_bytes);
  CU_ASSERT(after.host_bytes_peak < before.host_bytes + (4 << 20)); /* memory is bounded by the file's size */
}

/* 65535 sections that all cover the whole file cost no more than the file once. */
static void overlapping_sections(void) {
  enum { NUM_SECTIONS = 65535, BYTES = 64 + NUM_SECTIONS * 64 };
  uint64_t bytes;
  unsigned char *good = read_image("kernels.sm_80.cubin", &bytes), *data = calloc(1, BYTES);
  memcpy(data, good, 64);
  const uint64_t table = 64, all = BYTES;
  const uint16_t num_sections = NUM_SECTIONS, names = 0;
  memcpy(data + 40, &table, 8);
  memcpy(data + 60, &num_sections, 2);
  memcpy(data + 62, &names, 2);
  for (uint64_t i = 0; i < NUM_SECTIONS; i++) {
    const uint32_t type = i == 1 ? 2u : 0x70000000u;
    memcpy(data + 64 + i * 64 + 4, &type, 4);
    memcpy(data + 64 + i * 64 + 32, &all, 8);
  }
  assert_refused(data, BYTES, "x.cubin: ");
  free(data);
  free(good);
}

int main(void) {
  if (purr_context_create(NULL, &context, NULL) != PURR_STATUS_OK) return 1;
  int failures = purr_test_main("cubin", (purr_test_t[]){{"architectures by name", architectures},
                                                         {"what runs where", what_runs_where},
                                                         {"figures of real images", figures_of_the_images},
                                                         {"exact blocks, parameters", exact_blocks_and_parameters},
                                                         {"spills", spills},
                                                         {"B45: empty, cut short, host ELF", other_files},
                                                         {"S11: damaged images", damaged_images},
                                                         {"S11: overlapping sections", overlapping_sections},
                                                         {0}});
  purr_context_destroy(context);
  return failures;
}
