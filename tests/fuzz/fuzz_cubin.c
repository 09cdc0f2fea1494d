/* Any bytes as a compiled GPU image: refused with one sentence, or all that is said about its kernels lies inside. */
#include "fuzz.h"
#include "package/cubin.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  const uint64_t held_bytes = fuzz_held_bytes();
  purr__cubin_t cubin;
  purr_error_t err = PURR_ERROR_INIT;
  const purr_status_t status = purr__cubin_parse(fuzz_context(), data, num_bytes, "fuzz", &cubin, &err);
  if (status != PURR_STATUS_OK) {
    fuzz_check_error(status, &err);
    FUZZ_CHECK(fuzz_held_bytes() == held_bytes);
    return 0;
  }
  FUZZ_CHECK(cubin.num_kernels >= 0 && cubin.num_kernels <= PURR__CUBIN_MAX_KERNELS);
  for (int i = 0; i < cubin.num_kernels; i++) {
    const purr__cubin_kernel_t *kernel = &cubin.kernels[i];
    const uint8_t *name = (const uint8_t *)kernel->name;
    FUZZ_CHECK(name >= data && memchr(name, '\0', num_bytes - (size_t)(name - data)) != NULL);
    FUZZ_CHECK(kernel->info_offset <= num_bytes && kernel->info_bytes <= num_bytes - kernel->info_offset);
    FUZZ_CHECK(purr__cubin_find(&cubin, kernel->name) != NULL);
    for (int p = -1; p <= kernel->num_params; p++) {
      int offset, bytes;
      purr__cubin_param(&cubin, kernel, p, &offset, &bytes);
    }
  }
  purr__cubin_free(fuzz_context(), &cubin);
  FUZZ_CHECK(fuzz_held_bytes() == held_bytes);
  return 0;
}
