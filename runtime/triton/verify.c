/* purr_package_verify: a package's images against its manifest, and what its Triton kernels say of their arguments
 * against those images. */
#include "package/describe.h"
#include "triton/variant.h"

purr_status_t purr_package_verify(const purr_package_t *handle, purr_error_t *err) {
  purr_status_t status = purr__check(handle, PURR__PACKAGE, err);
  if (status != PURR_STATUS_OK) return status;
  const purr__package_t *package = purr__package_of(handle);
  status = purr__package_verify(purr__package_of(handle), err);
  for (int i = 0; i < package->manifest.num_kernels && status == PURR_STATUS_OK; i++) {
    if (package->manifest.kernels[i].triton == NULL) continue;
    purr__triton_variant_t variant = {0};
    status = purr__triton_variant_of_package(&variant, package, i, err);
    purr__triton_variant_free(((const purr__object_t *)handle)->context, &variant);
  }
  return status;
}
