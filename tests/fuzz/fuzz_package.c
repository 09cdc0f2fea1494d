/* Any bytes as a kernel package in one file: refused with one sentence, or it can be checked and described. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  const uint64_t held_bytes = fuzz_held_bytes();
  purr_package_t *package;
  purr_error_t err = PURR_ERROR_INIT;
  purr_status_t status = purr_package_open_memory(fuzz_context(), data, num_bytes, "fuzz", &package, &err);
  if (status != PURR_STATUS_OK) {
    fuzz_check_error(status, &err);
    FUZZ_CHECK(package == NULL && fuzz_held_bytes() == held_bytes);
    return 0;
  }
  status = purr_package_verify(package, &err);
  if (status != PURR_STATUS_OK) fuzz_check_error(status, &err);
  uint64_t length;
  for (int32_t format = PURR_FORMAT_TEXT; format <= PURR_FORMAT_JSON; format++)
    FUZZ_CHECK(purr_package_describe(package, format, NULL, 0, &length, &err) == PURR_STATUS_OK && length > 0);
  purr_package_destroy(package);
  FUZZ_CHECK(fuzz_held_bytes() == held_bytes);
  return 0;
}
