/* Any text as the manifest of a kernel package: refused with one sentence, or its numbers are within their limits and
 * its files cannot lead out of the package. */
#include "fuzz.h"
#include "package/manifest.h"

static void check_manifest(const purr__manifest_t *manifest) {
  FUZZ_CHECK(manifest->num_images >= 0 && manifest->num_images <= PURR__MANIFEST_MAX_IMAGES);
  FUZZ_CHECK(manifest->num_kernels >= 0 && manifest->num_kernels <= PURR__MANIFEST_MAX_KERNELS);
  for (int i = 0; i < manifest->num_images; i++) FUZZ_CHECK(purr__package_file_is_plain(manifest->images[i].file));
  for (int i = 0; i < manifest->num_kernels; i++) {
    const purr__manifest_kernel_t *kernel = &manifest->kernels[i];
    FUZZ_CHECK(kernel->image_idx >= 0 && kernel->image_idx < manifest->num_images);
    FUZZ_CHECK(kernel->entry[0] != '\0' && memchr(kernel->entry, '\0', sizeof kernel->entry) != NULL);
    FUZZ_CHECK(kernel->num_rules >= 0 && kernel->num_rules <= PURR__MAX_SHAPE_RULES);
    FUZZ_CHECK(purr__shape_broken_rule(kernel, &(purr__shape_t){0}) == NULL || kernel->num_rules > 0);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  const uint64_t held_bytes = fuzz_held_bytes();
  purr__manifest_t manifest;
  purr_error_t err = PURR_ERROR_INIT;
  const purr_status_t status =
      purr__manifest_parse(fuzz_context(), (const char *)data, num_bytes, "fuzz", &manifest, &err);
  if (status == PURR_STATUS_OK) {
    check_manifest(&manifest);
    purr__manifest_free(fuzz_context(), &manifest);
  } else {
    fuzz_check_error(status, &err);
  }
  FUZZ_CHECK(fuzz_held_bytes() == held_bytes);
  return 0;
}
