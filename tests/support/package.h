/* Kernel packages for tests: folders of the images under tests/data/cubins with a manifest. */
#ifndef PURR_TEST_PACKAGE_H
#define PURR_TEST_PACKAGE_H

#include "support/folder.h"

/* Writes an image of the test data into a package folder under another name or the same. */
void test_package_add_image(const test_folder_t *folder, const char *image, const char *file);

/* One image of a manifest. `kernels` is the JSON of its kernels; see test_package_kernel. `sha256` NULL = the file's.
 */
typedef struct test_image {
  const char *file, *arch, *kernels, *sha256;
} test_image_t;

/* The JSON of a kernel; valid until the eighth next call. */
const char *test_package_kernel(const char *entry, const char *role, int threads, int shared_bytes, int cluster,
                                int params_bytes);
/* Writes manifest.json; `images` ends with an empty entry. */
void test_package_write_manifest(const test_folder_t *folder, const char *name, const test_image_t *images);

/* A copy of a package, in whose manifest the occurrence of `old` with this number is `new`, with -1 each is; `new` has
 * at most twice the length. */
test_folder_t test_package_copy(const char *package, const char *old, const char *new, int occurrence);

/* A folder with one package: vector_add, shared_sum and fault for `arch` ("sm_80", "sm_90", "sm_90a", "sm_100f"). */
void test_package_fill(const test_folder_t *folder, const char *name, const char *arch);

#endif
