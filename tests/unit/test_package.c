/* Kernel packages: opened from folders, tars and memory, held against their images, searched, loaded and launched on a
 * driver without a GPU. */
#include "package/package.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/context.h"
#include "support/allocator.h"
#include "support/fake_cuda.h"
#include "support/main.h"
#include "support/package.h"

static bool says(const purr_error_t *err, const char *what) {
  if (strstr(err->message, what) == NULL) fprintf(stderr, "'%s' does not say '%s'\n", err->message, what);
  return strstr(err->message, what) != NULL;
}

static purr_status_t open_and_verify(purr_context_t *context, const char *path, purr_error_t *err) {
  purr__package_t *package;
  purr_status_t status = purr__package_open(context, path, &package, err);
  if (status == PURR_STATUS_OK) status = purr__package_verify(package, err);
  purr__package_release(package);
  return status;
}

/* ---- forms of a package ---- */

static void make_tar(const test_folder_t *from, const char *options, const char *to) {
  char command[2048];
  snprintf(command, sizeof command, "tar %s -cf '%s' -C '%s' .", options, to, from->path);
  CU_ASSERT_EQUAL_FATAL(system(command), 0);
}

static void folder_tar_and_memory(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = fake_cuda_context();
  test_folder_t folder = test_folder_make(), package_folder = test_folder_add(&folder, "p");
  test_package_fill(&package_folder, "folder", "sm_90");
  ASSERT_OK(open_and_verify(context, package_folder.path, &err));
  const char *tar = test_folder_path(&folder, "p.purr");
  make_tar(&package_folder, "--format=ustar", tar);
  ASSERT_OK(open_and_verify(context, tar, &err));

  uint64_t bytes;
  unsigned char *data = test_read_file(tar, &bytes), *copy = malloc(bytes);
  memcpy(copy, data, bytes);
  purr__package_t *package;
  REQUIRE_OK(purr__package_open_memory(context, copy, bytes, "mem", &package, &err));
  memset(copy, 0, bytes); /* not kept */
  free(copy);
  ASSERT_OK(purr__package_verify(package, &err));
  CU_ASSERT_EQUAL(package->manifest.num_kernels, 3);
  purr__package_release(package);
  ASSERT_STATUS(PURR_STATUS_PACKAGE, purr__package_open_memory(context, data, bytes / 2, "mem", &package, &err));
  CU_ASSERT(says(&err, "it is cut short"));
  ASSERT_STATUS(PURR_STATUS_PACKAGE, purr__package_open_memory(context, "", 0, "mem", &package, &err));
  CU_ASSERT(says(&err, "mem holds no manifest.json"));
  /* Every prefix at a block, every byte of the headers changed: an answer. */
  for (uint64_t i = 0; i < bytes; i += 512)
    if (purr__package_open_memory(context, data, i, "mem", &package, &err) == PURR_STATUS_OK) {
      purr__package_verify(package, &err);
      purr__package_release(package);
    }
  for (uint64_t i = 0; i < 2048; i++) {
    unsigned char before = data[i];
    data[i] ^= 0x41;
    if (purr__package_open_memory(context, data, bytes, "mem", &package, &err) == PURR_STATUS_OK) {
      purr__package_verify(package, &err);
      purr__package_release(package);
    }
    data[i] = before;
  }
  free(data);

  make_tar(&package_folder, "--format=pax --pax-option=globexthdr.name=x,comment=y", tar);
  ASSERT_STATUS(PURR_STATUS_PACKAGE, open_and_verify(context, tar, &err));
  CU_ASSERT(says(&err, "of type 'g'; allowed are regular files (pack with tar --format=ustar)"));
  CU_ASSERT_EQUAL(symlink("/etc/passwd", test_folder_path(&package_folder, "link")), 0);
  make_tar(&package_folder, "--format=ustar", tar);
  ASSERT_STATUS(PURR_STATUS_PACKAGE, open_and_verify(context, tar, &err));
  CU_ASSERT(says(&err, "'./link' of type '2'"));
  unlink(test_folder_path(&package_folder, "link"));
  test_folder_add(&package_folder, "inner");
  make_tar(&package_folder, "--format=ustar", tar);
  ASSERT_STATUS(PURR_STATUS_PACKAGE, open_and_verify(context, tar, &err));
  CU_ASSERT(says(&err, "'./inner/' of type '5'"));
  test_folder_remove(&folder);
  purr_context_destroy(context);
}

/* ---- what must not be followed or trusted ---- */

static void no_way_out(void) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = fake_cuda_context();
  test_folder_t folder = test_folder_make(), package = test_folder_add(&folder, "p");
  ASSERT_STATUS(PURR_STATUS_IO, open_and_verify(context, test_folder_path(&folder, "absent"), &err));
  CU_ASSERT(says(&err, "absent could not be opened: No such file"));
  CU_ASSERT_EQUAL(err.native_code, 2);
  ASSERT_STATUS(PURR_STATUS_PACKAGE, open_and_verify(context, package.path, &err));
  CU_ASSERT(says(&err, "p/manifest.json could not be opened"));

  test_package_fill(&package, "p", "sm_90");
  const char *image = test_folder_path(&package, "kernels.sm_90.cubin"),
             *outside = test_folder_path(&folder, "outside");
  CU_ASSERT_EQUAL(rename(image, outside), 0);
  CU_ASSERT_EQUAL(symlink(outside, image), 0);
  ASSERT_STATUS(PURR_STATUS_PACKAGE, open_and_verify(context, package.path, &err));
  CU_ASSERT(says(&err, "p/kernels.sm_90.cubin is a link; a package holds its files itself"));
  unlink(image);
  ASSERT_STATUS(PURR_STATUS_PACKAGE, open_and_verify(context, package.path, &err));
  CU_ASSERT(says(&err, "p/kernels.sm_90.cubin could not be opened"));
  CU_ASSERT_EQUAL(mkfifo(image, 0600), 0); /* must not wait for a writer */
  ASSERT_STATUS(PURR_STATUS_PACKAGE, open_and_verify(context, package.path, &err));
  CU_ASSERT(says(&err, "kernels.sm_90.cubin is not a regular file"));
  unlink(image);
  mkdir(image, 0700);
  ASSERT_STATUS(PURR_STATUS_PACKAGE, open_and_verify(context, package.path, &err));
  rmdir(image);
  CU_ASSERT_EQUAL(truncate(outside, (off_t)300 << 20), 0);
  CU_ASSERT_EQUAL(rename(outside, image), 0);
  ASSERT_STATUS(PURR_STATUS_PACKAGE, open_and_verify(context, package.path, &err));
  CU_ASSERT(says(&err, "has 314572800 bytes; allowed are 268435456"));
  unlink(test_folder_path(&package, "manifest.json"));
  CU_ASSERT_EQUAL(symlink("/etc/passwd", test_folder_path(&package, "manifest.json")), 0);
  ASSERT_STATUS(PURR_STATUS_PACKAGE, open_and_verify(context, package.path, &err));
  CU_ASSERT(says(&err, "p/manifest.json is a link"));
  test_folder_remove(&folder);
  purr_context_destroy(context);
}

/* ---- images against the manifest ---- */

typedef struct mismatch {
  const char *image; /* of the test data; NULL = the text below */
  const char *text;
  const char *arch, *kernels, *sha256;
  purr_status_t status;
  const char *says;
} mismatch_t;

static void images_against_the_manifest(void) {
  static char kernels[12][512];
#define KERNEL(i, ...) strcpy(kernels[i], test_package_kernel(__VA_ARGS__))
  KERNEL(0, "vector_add", "add", 128, 0, 1, 32);
  KERNEL(1, "moe_fwd_missing", "add", 128, 0, 1, 32);
  KERNEL(2, "vector_add", "add", 256, 0, 1, 32);
  KERNEL(3, "exact_block", "x", 256, 0, 1, 12);
  KERNEL(4, "exact_block", "x", 64, 0, 1, 12);
  KERNEL(5, "vector_add", "add", 128, 0, 1, 28);
  KERNEL(6, "cluster_rank", "c", 32, 0, 4, 8);
  KERNEL(7, "cluster_rank", "c", 32, 0, 2, 8);
  KERNEL(8, "vector_add", "add", 64, 0, 1, 32);
#undef KERNEL
  const mismatch_t cases[] = {
      {"kernels.sm_80.cubin", NULL, "sm_90", kernels[0], NULL, PURR_STATUS_INCOMPATIBLE_BINARY,
       "/i is compiled for sm_80, but the manifest says sm_90"},
      {"kernels.sm_90.cubin", NULL, "sm_90a", kernels[0], NULL, PURR_STATUS_INCOMPATIBLE_BINARY,
       "/i is compiled for sm_90, but the manifest says sm_90a"},
      {"kernels.sm_90a.cubin", NULL, "sm_90", kernels[0], NULL, PURR_STATUS_INCOMPATIBLE_BINARY,
       "/i is compiled for sm_90a, but the manifest says sm_90"},
      {"kernels.sm_90.cubin", NULL, "sm_90", kernels[1], NULL, PURR_STATUS_MISSING_KERNEL,
       "/i has no kernel named moe_fwd_missing; it has: "},
      {NULL, "", "sm_90", kernels[0], NULL, PURR_STATUS_PACKAGE, "/i is empty; a cubin is an ELF file"},
      {NULL, "\177ELF", "sm_90", kernels[0], NULL, PURR_STATUS_PACKAGE, "cut short"},
      {"kernels.sm_90.cubin", NULL, "sm_90", kernels[0],
       "0000000000000000000000000000000000000000000000000000000000000000", PURR_STATUS_PACKAGE,
       "/i is not the file that the manifest names: its SHA-256 is "},
      {"kernels.sm_90.cubin", NULL, "sm_90", kernels[2], NULL, PURR_STATUS_PACKAGE,
       "kernel vector_add is compiled for blocks of 128 threads, but the manifest says 256"},
      {"exact_block.sm_80.cubin", NULL, "sm_80", kernels[3], NULL, PURR_STATUS_PACKAGE,
       "kernel exact_block is compiled for blocks of 128 x 1 x 1 threads, but the manifest says 256"},
      {"exact_block.sm_80.cuda_12_4.cubin", NULL, "sm_80", kernels[4], NULL, PURR_STATUS_PACKAGE,
       "128 x 1 x 1 threads, but the manifest says 64"},
      {"kernels.sm_90.cubin", NULL, "sm_90", kernels[5], NULL, PURR_STATUS_PACKAGE,
       "kernel vector_add takes 32 bytes of parameters, but the manifest says 28"},
      {"kernels.sm_90.cubin", NULL, "sm_90", kernels[6], NULL, PURR_STATUS_PACKAGE,
       "clusters of 2 x 1 x 1 blocks, but the manifest says 4 x 1 x 1"},
      {"kernels.sm_90.cubin", NULL, "sm_90", kernels[7], NULL, PURR_STATUS_OK, ""},
      {"kernels.sm_90.cubin", NULL, "sm_90", kernels[8], NULL, PURR_STATUS_PACKAGE,
       "kernel vector_add is compiled for blocks of 128 threads, but the manifest says 64"},
      {"kernels.sm_100f.cubin", NULL, "sm_100f", kernels[0], NULL, PURR_STATUS_OK, ""},
      {"kernels.sm_90a.cuda_12_4.cubin", NULL, "sm_90a", kernels[0], NULL, PURR_STATUS_OK, ""},
  };
  purr_context_t *context = fake_cuda_context();
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    purr_error_t err = PURR_ERROR_INIT;
    test_folder_t folder = test_folder_make();
    if (cases[i].image != NULL)
      test_package_add_image(&folder, cases[i].image, "i");
    else
      test_folder_write_text(&folder, "i", cases[i].text);
    test_package_write_manifest(&folder, "p",
                                (test_image_t[]){{"i", cases[i].arch, cases[i].kernels, cases[i].sha256}, {0}});
    ASSERT_STATUS(cases[i].status, open_and_verify(context, folder.path, &err));
    CU_ASSERT(says(&err, cases[i].says));
    test_folder_remove(&folder);
  }
  purr_context_destroy(context);
}

/* ---- where packages come from ---- */

static purr_context_t *context_with_path(const char *path) {
  if (path != NULL)
    setenv("PURR_PACKAGE_PATH", path, 1);
  else
    unsetenv("PURR_PACKAGE_PATH");
  purr_context_t *context = fake_cuda_context();
  unsetenv("PURR_PACKAGE_PATH");
  return context;
}

static void search_order(void) {
  purr_error_t err = PURR_ERROR_INIT;
  fake_cuda_t *fake = fake_cuda_open();
  test_folder_t folder = test_folder_make();
  test_folder_t a = test_folder_add(&folder, "a"), many = test_folder_add(&folder, "many"), added;
  test_folder_t z = test_folder_add(&many, "z"), b = test_folder_add(&many, "b");
  added = test_folder_add(&folder, "added");
  test_package_fill(&a, "path-package", "sm_90");
  test_package_fill(&b, "folder-b", "sm_80");
  test_package_fill(&z, "folder-z", "sm_90a");
  test_package_fill(&added, "added", "sm_90");
  make_tar(&a, "--format=ustar", test_folder_path(&many, "c.purr"));
  test_folder_write_text(&many, "README", "not a package");

  char path[8192];
  /* Found again by the same path, by another, or as one that was added, it is still one package. */
  CU_ASSERT_EQUAL(symlink(many.path, test_folder_path(&folder, "link")), 0);
  snprintf(path, sizeof path, "%s::%s:%s:%s/link:%s", many.path, a.path, many.path, folder.path, added.path);
  purr_context_t *context = context_with_path(path);
  purr__package_t *package;
  REQUIRE_OK(purr__package_open(context, added.path, &package, &err));
  REQUIRE_OK(purr__packages_add(context, package, &err));
  const purr__package_list_t *list;
  REQUIRE_OK(purr__packages_get(context, &list, &err));
  static const char *const names[] = {"added", "folder-b", "path-package", "folder-z", "path-package"};
  CU_ASSERT_EQUAL_FATAL(list->count, 5);
  for (int i = 0; i < 5; i++) CU_ASSERT_STRING_EQUAL(list->packages[i]->manifest.name, names[i]);
  ASSERT_STATUS(PURR_STATUS_INVALID_STATE, purr__packages_add(context, package, &err));
  CU_ASSERT(says(&err, "package added comes too late"));
  purr__package_release(package);
  CU_ASSERT_EQUAL(fake->num_calls, 0); /* B57: listing touches no device */
  purr_context_destroy(context);

  /* Never the working directory. */
  CU_ASSERT_EQUAL(chdir(folder.path), 0);
  context = context_with_path("many");
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr__packages_get(context, &list, &err));
  CU_ASSERT(says(&err, "PURR_PACKAGE_PATH holds 'many'; only absolute paths are taken"));
  CU_ASSERT_PTR_NULL(list);
  purr_context_destroy(context);
  context = context_with_path(NULL);
  ASSERT_OK(purr__packages_get(context, &list, &err));
  CU_ASSERT_EQUAL(list->count, 0);
  purr_context_destroy(context);
  CU_ASSERT_EQUAL(chdir("/"), 0);

  /* One that is not there, or is broken, is not passed over; a package added before stays. */
  context = context_with_path("/nonexistent/packages");
  ASSERT_STATUS(PURR_STATUS_IO, purr__packages_get(context, &list, &err));
  purr_context_destroy(context);
  test_folder_write_text(&b, "manifest.json", "{}");
  context = context_with_path(path);
  REQUIRE_OK(purr__package_open(context, added.path, &package, &err));
  REQUIRE_OK(purr__packages_add(context, package, &err));
  purr__package_release(package);
  ASSERT_STATUS(PURR_STATUS_PACKAGE, purr__packages_get(context, &list, &err));
  CU_ASSERT(says(&err, "many/b/manifest.json:1:2: the first key"));
  test_package_fill(&b, "folder-b", "sm_80");
  /* A folder beside packages that is none is passed over, and the others are there all the same. */
  test_folder_t other = test_folder_add(&many, "nothing");
  test_folder_write_text(&other, "readme.txt", "no package");
  ASSERT_OK(purr__packages_get(context, &list, &err));
  CU_ASSERT_EQUAL(list->count, 5);
  CU_ASSERT_EQUAL_FATAL(list->num_passed_over, 1);
  CU_ASSERT_STRING_EQUAL(list->passed_over[0], other.path);
  char text[8192];
  char words[8192];
  snprintf(words, sizeof words, "passed over, without a manifest.json: %s\n", other.path);
  ASSERT_OK(purr_context_diagnose(context, PURR_FORMAT_TEXT, text, sizeof text, NULL, NULL, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(text, words));
  snprintf(words, sizeof words, "\"passed_over\": [\"%s\"]", other.path);
  ASSERT_OK(purr_context_diagnose(context, PURR_FORMAT_JSON, text, sizeof text, NULL, NULL, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(text, words));
  purr_context_destroy(context);
  test_folder_remove(&folder);
}

/* ---- loading ---- */

static const purr__kernel_need_t need_add = {.role = "add", .params_version = 1, .params_bytes = 32};

static void loads_what_fits(void) {
  purr_error_t err = PURR_ERROR_INIT;
  fake_cuda_t *fake = fake_cuda_open();
  fake->num_devices = 3;
  fake->cc[1] = 86;
  fake->cc[2] = 120;
  test_folder_t folder = test_folder_make();
  char kernels[512];
  static const char *const images[] = {"kernels.sm_80.cubin", "kernels.sm_90.cubin", "kernels.sm_90a.cubin"};
  for (int i = 0; i < 3; i++) test_package_add_image(&folder, images[i], images[i]);
  strcpy(kernels, test_package_kernel("vector_add", "add", 128, 0, 1, 32));
  test_package_write_manifest(&folder, "p",
                              (test_image_t[]){{images[1], "sm_90", kernels, NULL},
                                               {images[2], "sm_90a", kernels, NULL},
                                               {images[0], "sm_80", kernels, NULL},
                                               {0}});
  purr_context_t *context = context_with_path(folder.path);
  purr__device_t *device;
  const purr__kernels_t *loaded, *again;
  const purr__kernel_t *kernel;
  REQUIRE_OK(purr__device_get(context, 0, &device, &err));
  REQUIRE_OK(purr__kernels_get(device, &loaded, &err));
  CU_ASSERT_EQUAL(loaded->num_kernels, 1); /* the better image alone */
  REQUIRE_OK(purr__kernels_find(loaded, &need_add, &kernel, &err));
  CU_ASSERT_STRING_EQUAL(PURR__ARCH_TEXT(kernel->arch), "sm_90a");
  CU_ASSERT_EQUAL(kernel->num_registers, 32);
  CU_ASSERT(fake->num_loads == 1 && fake->num_func_loads == 1);
  REQUIRE_OK(purr__kernels_get(device, &again, &err));
  CU_ASSERT_PTR_EQUAL(again, loaded);
  CU_ASSERT_EQUAL(fake->num_loads, 1);

  REQUIRE_OK(purr__device_get(context, 1, &device, &err));
  REQUIRE_OK(purr__kernels_get(device, &loaded, &err));
  REQUIRE_OK(purr__kernels_find(loaded, &need_add, &kernel, &err));
  CU_ASSERT_STRING_EQUAL(PURR__ARCH_TEXT(kernel->arch), "sm_80");
  CU_ASSERT(fake->num_loads == 2 && fake->num_func_loads == 2);

  REQUIRE_OK(purr__device_get(context, 2, &device, &err));
  REQUIRE_OK(purr__kernels_get(device, &loaded, &err));
  CU_ASSERT_EQUAL(loaded->num_kernels, 0);
  ASSERT_STATUS(PURR_STATUS_INCOMPATIBLE_BINARY, purr__kernels_find(loaded, &need_add, &kernel, &err));
  CU_ASSERT_PTR_NULL(kernel);
  CU_ASSERT(says(&err, "the packages have no add kernel for device 2 (Fake GPU C, sm_120); "));
  CU_ASSERT(says(&err, "/kernels.sm_90.cubin, for example, is for sm_90"));
  purr__kernel_need_t other = {.role = "gate_up"};
  ASSERT_STATUS(PURR_STATUS_MISSING_KERNEL, purr__kernels_find(loaded, &other, &kernel, &err));
  CU_ASSERT_STRING_EQUAL(err.message, "no gate_up kernel is in the 1 package of this context");
  purr_context_destroy(context);
  CU_ASSERT(fake->num_libraries == 0 && fake->num_contexts == 0);
  CU_ASSERT_EQUAL(fake->num_unsafe_calls, 0);

  context = context_with_path(NULL);
  REQUIRE_OK(purr__device_get(context, 0, &device, &err));
  REQUIRE_OK(purr__kernels_get(device, &loaded, &err));
  ASSERT_STATUS(PURR_STATUS_MISSING_KERNEL, purr__kernels_find(loaded, &need_add, &kernel, &err));
  CU_ASSERT(says(&err, "there is no kernel package: none was added, PURR_PACKAGE_PATH is not set"));
  purr_context_destroy(context);
  test_folder_remove(&folder);
}

static void earlier_package_and_later_row_win(void) {
  purr_error_t err = PURR_ERROR_INIT;
  fake_cuda_open();
  test_folder_t folder = test_folder_make(), first = test_folder_add(&folder, "1"),
                second = test_folder_add(&folder, "2");
  char kernels[1024];
  test_package_add_image(&first, "kernels.sm_90.cubin", "i");
  snprintf(kernels, sizeof kernels, "%s, %s", test_package_kernel("vector_add", "add", 128, 0, 1, 32),
           test_package_kernel("shared_sum", "add", 128, 0, 1, 16));
  test_package_write_manifest(&first, "first", (test_image_t[]){{"i", "sm_90", kernels, NULL}, {0}});
  test_package_fill(&second, "second", "sm_90a");
  purr_context_t *context = context_with_path(folder.path);
  purr__device_t *device;
  const purr__kernels_t *loaded;
  const purr__kernel_t *kernel;
  REQUIRE_OK(purr__device_get(context, 0, &device, &err));
  REQUIRE_OK(purr__kernels_get(device, &loaded, &err));
  CU_ASSERT_EQUAL(loaded->num_kernels, 3); /* fault from the second: the first has the others */
  CU_ASSERT_STRING_EQUAL(loaded->kernels[0].entry->entry, "shared_sum");
  CU_ASSERT_STRING_EQUAL(loaded->kernels[1].entry->entry, "vector_add");
  CU_ASSERT_STRING_EQUAL(loaded->kernels[2].entry->entry, "fault");
  CU_ASSERT_STRING_EQUAL(loaded->kernels[2].package->manifest.name, "second");
  /* The later row takes other parameters here, so the earlier one does. */
  REQUIRE_OK(purr__kernels_find(loaded, &need_add, &kernel, &err));
  CU_ASSERT_STRING_EQUAL(kernel->entry->entry, "vector_add");
  purr__kernel_need_t newer = {.role = "add", .params_version = 2, .params_bytes = 48};
  ASSERT_STATUS(PURR_STATUS_MISSING_KERNEL, purr__kernels_find(loaded, &newer, &kernel, &err));
  CU_ASSERT(says(&err,
                 "no add kernel does on device 0 (Fake GPU A): shared_sum (sm_90): its parameters are of layout 1 (16 "
                 "bytes), this library has layout 2 (48 bytes)"));
  purr_context_destroy(context);
  test_folder_remove(&folder);
}

static void shapes_and_limits(void) {
  purr_error_t err = PURR_ERROR_INIT;
  fake_cuda_t *fake = fake_cuda_open();
  fake->kernel_static_bytes = 16;
  test_folder_t folder = test_folder_make();
  char kernels[1024];
  test_package_add_image(&folder, "kernels.sm_90.cubin", "i");
  snprintf(kernels, sizeof kernels, "%s, %s", test_package_kernel("vector_add", "add", 128, 232433, 1, 32),
           "{\"entry\": \"shared_sum\", \"role\": \"sum\", \"threads\": 128, \"shared_bytes\": 232432, \"cluster\": "
           "[1, 1, 1], \"tile\": [0, 0], \"params_version\": 1, \"params_bytes\": 16, \"shapes\": [\"hidden_size % "
           "8\", \"top_k <= 16\"]}");
  test_package_write_manifest(&folder, "p", (test_image_t[]){{"i", "sm_90", kernels, NULL}, {0}});
  purr_context_t *context = context_with_path(folder.path);
  purr__device_t *device;
  const purr__kernels_t *loaded;
  const purr__kernel_t *kernel;
  REQUIRE_OK(purr__device_get(context, 0, &device, &err));
  REQUIRE_OK(purr__kernels_get(device, &loaded, &err));
  ASSERT_STATUS(PURR_STATUS_MISSING_KERNEL, purr__kernels_find(loaded, &need_add, &kernel, &err));
  CU_ASSERT(says(&err,
                 "vector_add (sm_90): it needs 232449 bytes of shared memory (232433 dynamic, 16 static), the device "
                 "allows 232448"));
  purr__shape_t shape = {{0}};
  shape.dims[PURR__DIM_HIDDEN_SIZE] = 4096;
  shape.dims[PURR__DIM_TOP_K] = 17;
  purr__kernel_need_t need = {.role = "sum", .params_version = 1, .params_bytes = 16, .shape = &shape};
  ASSERT_STATUS(PURR_STATUS_MISSING_KERNEL, purr__kernels_find(loaded, &need, &kernel, &err));
  CU_ASSERT(says(&err, "it serves top_k up to 16, this layer has 17"));
  shape.dims[PURR__DIM_TOP_K] = 16;
  REQUIRE_OK(purr__kernels_find(loaded, &need, &kernel, &err));

  /* B47: what a launch may ask for. */
  static const uint32_t sizes[] = {0, 49136, 49137, 49152, 49153, 102400, 232432, 232433};
  struct {
    void *out;
    int bytes;
  } params = {NULL, 0};
  REQUIRE_OK(purr__device_enter(device, &err));
  for (int i = 0; i < 8; i++) {
    purr__launch_t launch = {
        .grid = {2, 3, 4}, .shared_bytes = sizes[i], .may_overlap = true, .is_cooperative = i == 1};
    purr_status_t status = purr__kernel_launch(kernel, &launch, &params, &err);
    CU_ASSERT_EQUAL(status, sizes[i] == 232433 ? PURR_STATUS_UNSUPPORTED : PURR_STATUS_OK);
  }
  CU_ASSERT(says(&err,
                 "kernel shared_sum asks for 232433 bytes of dynamic shared memory; device 0 (Fake GPU A) allows "
                 "232432 besides the 16 static ones"));
  purr__device_leave(device);
  CU_ASSERT_EQUAL_FATAL(fake->num_launches, 7);
  CU_ASSERT_EQUAL(fake->launches[0].shared_bytes, 232432); /* the manifest's */
  CU_ASSERT_EQUAL(fake->launches[1].shared_bytes, 49136);
  CU_ASSERT_STRING_EQUAL(fake->launches[0].kernel, "shared_sum");
  CU_ASSERT(fake->launches[0].grid[2] == 4 && fake->launches[0].block[0] == 128 && fake->launches[0].num_params == 1);
  CU_ASSERT(fake->launches[0].may_overlap && !fake->launches[0].is_cooperative && fake->launches[1].is_cooperative);
  CU_ASSERT_EQUAL(fake->launches[0].cluster[0], 0);
  purr_context_destroy(context);
  test_folder_remove(&folder);
}

/* The first failure of a load says what and leaves the context able to try again. */
static void failing_loads(void) {
  static const char *const calls[] = {"cuLibraryLoadData",       "cuLibraryGetKernel",  "cuKernelGetAttribute",
                                      "cuKernelSetAttribute",    "cuKernelGetFunction", "cuFuncLoad",
                                      "cuDevicePrimaryCtxRetain"};
  test_folder_t folder = test_folder_make();
  test_package_fill(&folder, "p", "sm_90");
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    purr_error_t err = PURR_ERROR_INIT;
    fake_cuda_t *fake = fake_cuda_open();
    fake->failing_call = calls[i];
    fake->failing_result = i == 0 ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_ERROR_INVALID_VALUE;
    purr_context_t *context = context_with_path(folder.path);
    purr__device_t *device;
    const purr__kernels_t *loaded;
    REQUIRE_OK(purr__device_get(context, 0, &device, &err));
    ASSERT_STATUS(i == 0 ? PURR_STATUS_INCOMPATIBLE_BINARY : PURR_STATUS_CUDA,
                  purr__kernels_get(device, &loaded, &err));
    CU_ASSERT_PTR_NULL(loaded);
    CU_ASSERT(says(&err, calls[i]));
    if (i == 0) CU_ASSERT(says(&err, "kernels.sm_90.cubin (made with CUDA 13.0, the driver is of 13.0)"));
    fake->failing_call = NULL;
    ASSERT_OK(purr__kernels_get(device, &loaded, &err));
    CU_ASSERT_EQUAL(loaded->num_kernels, 3);
    purr_context_destroy(context);
    CU_ASSERT(fake->num_libraries == 0 && fake->num_contexts == 0 && fake->num_pushed == 0);
  }
  test_folder_remove(&folder);
}

/* Every allocation fails once, in turn: a status, nothing kept, and the next try works. */
static void failing_allocations(void) {
  test_folder_t folder = test_folder_make();
  test_package_fill(&folder, "p", "sm_90");
  fake_cuda_t *fake = fake_cuda_open();
  bool has_failed = true;
  for (int n = 1; has_failed && n < 200; n++) {
    purr_error_t err = PURR_ERROR_INIT;
    purr_test_allocator_t memory;
    purr_test_allocator_init(&memory);
    purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
    desc.host_allocator = &memory.hooks;
    purr_context_t *context;
    setenv("PURR_PACKAGE_PATH", folder.path, 1);
    REQUIRE_OK(purr_context_create(&desc, &context, &err));
    unsetenv("PURR_PACKAGE_PATH");
    context->driver_library = PURR_FAKE_CUDA;
    memory.fail_at = memory.num_calls + n;
    purr__device_t *device = NULL;
    const purr__kernels_t *loaded = NULL;
    for (int round = 0; round < 2; round++) {
      purr_status_t status = purr__device_get(context, 0, &device, &err);
      if (status == PURR_STATUS_OK) status = purr__kernels_get(device, &loaded, &err);
      has_failed = memory.num_calls >= memory.fail_at;
      if (round == 0) CU_ASSERT_EQUAL(status, has_failed ? PURR_STATUS_OUT_OF_HOST_MEMORY : PURR_STATUS_OK);
      if (round == 1) CU_ASSERT_EQUAL(status, PURR_STATUS_OK);
    }
    purr_context_destroy(context);
    CU_ASSERT(memory.num_live == 0 && memory.num_wrong == 0);
    CU_ASSERT(fake->num_libraries == 0 && fake->num_contexts == 0);
  }
  CU_ASSERT_FALSE(has_failed);
  test_folder_remove(&folder);
}

/* ---- B41 ---- */

enum { NUM_THREADS = 16, NUM_DEVICES = 4 };
static pthread_barrier_t barrier;
static purr_context_t *shared_context;

static void *first_use(void *arg) {
  purr__device_t *device;
  const purr__kernels_t *loaded;
  const purr__kernel_t *kernel;
  char params[32] = {0};
  purr__launch_t launch = {.grid = {1, 1, 1}};
  pthread_barrier_wait(&barrier);
  purr_status_t status = purr__device_get(shared_context, (int)(intptr_t)arg % NUM_DEVICES, &device, NULL);
  if (status == PURR_STATUS_OK) status = purr__kernels_get(device, &loaded, NULL);
  if (status == PURR_STATUS_OK) status = purr__kernels_find(loaded, &need_add, &kernel, NULL);
  if (status == PURR_STATUS_OK) status = purr__device_enter(device, NULL);
  if (status == PURR_STATUS_OK) {
    status = purr__kernel_launch(kernel, &launch, params, NULL);
    purr__device_leave(device);
  }
  return (void *)(intptr_t)status;
}

static void first_use_from_many_threads(void) {
  test_folder_t folder = test_folder_make();
  test_package_fill(&folder, "p", "sm_90");
  for (int round = 0; round < 10; round++) {
    fake_cuda_t *fake = fake_cuda_open();
    fake->num_devices = NUM_DEVICES;
    shared_context = context_with_path(folder.path);
    pthread_t threads[NUM_THREADS];
    pthread_barrier_init(&barrier, NULL, NUM_THREADS);
    for (intptr_t i = 0; i < NUM_THREADS; i++) pthread_create(&threads[i], NULL, first_use, (void *)i);
    for (int i = 0; i < NUM_THREADS; i++) {
      void *status;
      pthread_join(threads[i], &status);
      CU_ASSERT_EQUAL((intptr_t)status, PURR_STATUS_OK);
    }
    pthread_barrier_destroy(&barrier);
    CU_ASSERT_EQUAL(fake->num_loads, 1);                    /* one library serves all devices */
    CU_ASSERT_EQUAL(fake->num_func_loads, 3 * NUM_DEVICES); /* each kernel once on each */
    CU_ASSERT_EQUAL(fake->num_launches, NUM_THREADS);
    purr_context_destroy(shared_context);
    CU_ASSERT(fake->num_libraries == 0 && fake->num_contexts == 0);
  }
  test_folder_remove(&folder);
}

int main(void) {
  return purr_test_main("package",
                        (purr_test_t[]){{"folder, tar, memory", folder_tar_and_memory},
                                        {"S11: no way out, no endless wait", no_way_out},
                                        {"B45, S15: images against the manifest", images_against_the_manifest},
                                        {"where packages come from", search_order},
                                        {"B45: loads what fits the device", loads_what_fits},
                                        {"which kernel wins", earlier_package_and_later_row_win},
                                        {"B47: shapes, limits, launches", shapes_and_limits},
                                        {"failing loads", failing_loads},
                                        {"failing allocations", failing_allocations},
                                        {"B41: first use from 16 threads", first_use_from_many_threads},
                                        {0}});
}
