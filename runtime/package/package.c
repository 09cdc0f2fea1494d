/* Opens a package and holds its images against its manifest. */
#include "package/package.h"

#include <stdio.h>

#include "base/context.h"

#define MANIFEST_FILE "manifest.json"

/* ---- life ---- */

static void unload_images(purr__package_t *package) {
  if (package->driver == NULL) return;
  purr__device_t *any = &package->driver->devices[0];
  int mode = purr__device_allow_capture(any);
  for (int i = 0; i < package->manifest.num_images; i++)
    if (package->libraries[i] != NULL) (void)package->driver->cuda.cuLibraryUnload(package->libraries[i]);
  purr__device_restore_capture(any, mode);
}

static void package_free(purr__package_t *package) {
  purr_context_t *context = package->context;
  unload_images(package);
  purr__release(context, package->libraries);
  purr__manifest_free(context, &package->manifest);
  purr__package_source_close(&package->source);
  purr__release(context, package);
}

void purr__package_retain(purr__package_t *package) {
  atomic_fetch_add_explicit(&package->num_refs, 1, memory_order_relaxed);
}

void purr__package_release(purr__package_t *package) {
  if (package != NULL && atomic_fetch_sub_explicit(&package->num_refs, 1, memory_order_acq_rel) == 1)
    package_free(package);
}

static purr_status_t read_manifest(purr__package_t *package, purr_error_t *err) {
  char name[400];
  unsigned char *text = NULL;
  uint64_t bytes;
  snprintf(name, sizeof name, "%.380s/" MANIFEST_FILE, package->source.name);
  purr_status_t status =
      purr__package_source_read(&package->source, MANIFEST_FILE, PURR__MANIFEST_MAX_BYTES, &text, &bytes, err);
  if (status != PURR_STATUS_OK) return status;
  status = purr__manifest_parse(package->context, (const char *)text, bytes, name, &package->manifest, err);
  purr__release(package->context, text);
  if (status != PURR_STATUS_OK) return status;
  uint64_t libraries_bytes = (uint64_t)(package->manifest.num_images + 1) * sizeof(CUlibrary);
  package->libraries = purr__allocate_zeroed(package->context, libraries_bytes);
  return package->libraries != NULL ? PURR_STATUS_OK
                                    : purr__fail_memory(err, "a package's table of libraries", libraries_bytes);
}

static purr_status_t package_create(purr_context_t *context, purr__package_t **out_package, purr_error_t *err) {
  purr__package_t *package = purr__allocate_zeroed(context, sizeof *package);
  if (package == NULL) return purr__fail_memory(err, "a package", sizeof *package);
  package->num_refs = 1;
  package->context = context;
  package->source = (purr__package_source_t){.context = context, .fd = -1};
  *out_package = package;
  return PURR_STATUS_OK;
}

static purr_status_t finish_open(purr__package_t *package, purr_status_t status, purr__package_t **out_package,
                                 purr_error_t *err) {
  if (status == PURR_STATUS_OK) status = read_manifest(package, err);
  if (status == PURR_STATUS_OK)
    *out_package = package;
  else
    purr__package_release(package);
  return status;
}

purr_status_t purr__package_open(purr_context_t *context, const char *path, purr__package_t **out_package,
                                 purr_error_t *err) {
  *out_package = NULL;
  purr__package_t *package;
  purr_status_t status = package_create(context, &package, err);
  if (status != PURR_STATUS_OK) return status;
  return finish_open(package, purr__package_source_open(context, path, &package->source, err), out_package, err);
}

purr_status_t purr__package_open_memory(purr_context_t *context, const void *data, uint64_t bytes, const char *name,
                                        purr__package_t **out_package, purr_error_t *err) {
  *out_package = NULL;
  purr__package_t *package;
  purr_status_t status = package_create(context, &package, err);
  if (status != PURR_STATUS_OK) return status;
  return finish_open(package, purr__package_source_open_memory(context, data, bytes, name, &package->source, err),
                     out_package, err);
}

/* ---- the image against the manifest ---- */

#define FAIL(...) purr__fail(err, PURR_STATUS_PACKAGE, __VA_ARGS__)

static purr_status_t check_hash(const purr__manifest_image_t *image, const char *path, const unsigned char *data,
                                uint64_t bytes, purr_error_t *err) {
  unsigned char digest[PURR__SHA256_BYTES];
  purr__sha256(data, bytes, digest);
  if (memcmp(digest, image->sha256, sizeof digest) == 0) return PURR_STATUS_OK;
  char found[PURR__SHA256_TEXT_BYTES], wanted[PURR__SHA256_TEXT_BYTES];
  purr__sha256_print(digest, found);
  purr__sha256_print(image->sha256, wanted);
  return FAIL("%s is not the file that the manifest names: its SHA-256 is %.16s..., the manifest says %.16s...", path,
              found, wanted);
}

static purr_status_t check_arch(const purr__manifest_image_t *image, const char *path, const purr__cubin_t *cubin,
                                purr_error_t *err) {
  /* A family image of an older toolkit looks like a plain one. */
  bool same_suffix = (image->arch.suffix == 'a') == (cubin->arch.suffix == 'a');
  if (image->arch.number == cubin->arch.number && same_suffix) return PURR_STATUS_OK;
  return purr__fail(err, PURR_STATUS_INCOMPATIBLE_BINARY, "%s is compiled for %s, but the manifest says %s", path,
                    PURR__ARCH_TEXT(cubin->arch), PURR__ARCH_TEXT(image->arch));
}

static purr_status_t fail_missing(purr_context_t *context, const purr__cubin_t *cubin, const char *path,
                                  const char *entry, purr_error_t *err) {
  purr__text_t names = {.context = context};
  for (int i = 0; i < cubin->num_kernels && i < 8; i++)
    purr__text_add(&names, "%s%s", i > 0 ? ", " : "", cubin->kernels[i].name);
  char shown[200] = "none";
  if (names.length > 0) purr__printable(shown, sizeof shown, names.data, names.length);
  purr__text_free(&names);
  return purr__fail(err, PURR_STATUS_MISSING_KERNEL, "%s has no kernel named %.128s; it has: %s", path, entry, shown);
}

static purr_status_t check_kernel(purr_context_t *context, const purr__manifest_kernel_t *kernel,
                                  const purr__cubin_t *cubin, const char *path, purr_error_t *err) {
  const purr__cubin_kernel_t *found = purr__cubin_find(cubin, kernel->entry);
  if (found == NULL) return fail_missing(context, cubin, path, kernel->entry, err);
  const int *exact = found->exact_threads;
  if (exact[0] != 0 && (exact[0] != kernel->threads || exact[1] != 1 || exact[2] != 1))
    return FAIL("%s: kernel %.128s is compiled for blocks of %d x %d x %d threads, but the manifest says %d", path,
                kernel->entry, exact[0], exact[1], exact[2], kernel->threads);
  if (exact[0] == 0 && found->most_threads != 0 && kernel->threads != found->most_threads)
    return FAIL("%s: kernel %.128s is compiled for blocks of %d threads, but the manifest says %d", path, kernel->entry,
                found->most_threads, kernel->threads);
  if (found->cluster[0] != 0 && memcmp(found->cluster, kernel->cluster, sizeof found->cluster) != 0)
    return FAIL("%s: kernel %.128s is compiled for clusters of %d x %d x %d blocks, but the manifest says %d x %d x %d",
                path, kernel->entry, found->cluster[0], found->cluster[1], found->cluster[2], kernel->cluster[0],
                kernel->cluster[1], kernel->cluster[2]);
  if (found->params_bytes != kernel->params_bytes)
    return FAIL("%s: kernel %.128s takes %d bytes of parameters, but the manifest says %d", path, kernel->entry,
                found->params_bytes, kernel->params_bytes);
  return PURR_STATUS_OK;
}

purr_status_t purr__package_read_image(const purr__package_t *package, int image_idx, purr__package_image_t *out_image,
                                       purr_error_t *err) {
  *out_image = (purr__package_image_t){0};
  const purr__manifest_t *manifest = &package->manifest;
  const purr__manifest_image_t *image = &manifest->images[image_idx];
  char path[400];
  snprintf(path, sizeof path, "%.260s/%s", package->source.name, image->file);
  uint64_t bytes;
  purr_status_t status =
      purr__package_source_read(&package->source, image->file, PURR__CUBIN_MAX_BYTES, &out_image->data, &bytes, err);
  /* The sentence about a file that is no cubin says more than one about its hash. */
  if (status == PURR_STATUS_OK)
    status = purr__cubin_parse(package->context, out_image->data, bytes, path, &out_image->cubin, err);
  if (status == PURR_STATUS_OK) status = check_hash(image, path, out_image->data, bytes, err);
  if (status == PURR_STATUS_OK) status = check_arch(image, path, &out_image->cubin, err);
  for (int i = 0; status == PURR_STATUS_OK && i < manifest->num_kernels; i++)
    if (manifest->kernels[i].image_idx == image_idx)
      status = check_kernel(package->context, &manifest->kernels[i], &out_image->cubin, path, err);
  if (status != PURR_STATUS_OK) purr__package_free_image(package, out_image);
  return status;
}

void purr__package_free_image(const purr__package_t *package, purr__package_image_t *image) {
  purr__cubin_free(package->context, &image->cubin);
  purr__release(package->context, image->data);
  *image = (purr__package_image_t){0};
}

purr_status_t purr__package_verify(const purr__package_t *package, purr_error_t *err) {
  for (int i = 0; i < package->manifest.num_images; i++) {
    purr__package_image_t image;
    purr_status_t status = purr__package_read_image(package, i, &image, err);
    if (status != PURR_STATUS_OK) return status;
    purr__package_free_image(package, &image);
  }
  return PURR_STATUS_OK;
}
