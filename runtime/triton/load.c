/* A kernel's variants on a device. */
#include <stdio.h>

#include "triton/kernel.h"

static purr_status_t load_library(purr_kernel_t *kernel, int variant_idx, purr__device_t *device, purr_error_t *err) {
  const purr__triton_variant_t *variant = &kernel->variants[variant_idx];
  purr__package_image_t read = {.data = variant->image};
  purr_status_t status = PURR_STATUS_OK;
  if (kernel->libraries[variant_idx] != NULL) return PURR_STATUS_OK;
  if (variant->image == NULL) status = purr__package_read_image(kernel->package, variant->image_idx, &read, err);
  if (status != PURR_STATUS_OK) return status;
  CUlibrary library = NULL;
  kernel->driver = device->driver;
  status = PURR__CUDA(device, err, cuLibraryLoadData, (&library, read.data, NULL, NULL, 0, NULL, NULL, 0),
                      "loading %.280s", variant->file);
  if (variant->image == NULL) purr__package_free_image(kernel->package, &read);
  if (status == PURR_STATUS_OK) kernel->libraries[variant_idx] = library;
  return status;
}

static purr_status_t load_variant(purr_kernel_t *kernel, int variant_idx, purr__device_t *device,
                                  purr__kernel_t *loaded, purr_error_t *err) {
  const purr__triton_variant_t *variant = &kernel->variants[variant_idx];
  *loaded =
      (purr__kernel_t){.entry = &variant->entry, .package = kernel->package, .arch = variant->arch, .device = device};
  if (!purr__arch_fits(variant->arch, device->cc_major, device->cc_minor)) {
    snprintf(loaded->unusable, sizeof loaded->unusable,
             "it is compiled for %s, the device is of compute capability %d.%d", PURR__ARCH_TEXT(variant->arch),
             device->cc_major, device->cc_minor);
    return PURR_STATUS_OK;
  }
  purr_status_t status = load_library(kernel, variant_idx, device, err);
  if (status == PURR_STATUS_OK) status = purr__kernel_load(loaded, kernel->libraries[variant_idx], variant->file, err);
  if (status == PURR_STATUS_OK && loaded->function != NULL && variant->spec->is_cooperative &&
      !device->can_launch_cooperative) {
    loaded->function = NULL;
    snprintf(loaded->unusable, sizeof loaded->unusable, "it needs a cooperative launch, which the device has not");
  }
  return status;
}

/* Some variant must run. */
static purr_status_t check_any(const purr_kernel_t *kernel, const purr__device_t *device, const purr__kernel_t *loaded,
                               purr_error_t *err) {
  int fitting = -1;
  for (int i = 0; i < kernel->num_variants; i++) {
    if (loaded[i].function != NULL) return PURR_STATUS_OK;
    if (fitting < 0 && purr__arch_fits(kernel->variants[i].arch, device->cc_major, device->cc_minor)) fitting = i;
  }
  if (fitting >= 0)
    return purr__fail(err, PURR_STATUS_UNSUPPORTED, "kernel %.100s (%.120s) cannot run on device %d (%s): %s",
                      kernel->name, kernel->variants[fitting].file, device->ordinal, device->name,
                      loaded[fitting].unusable);
  return purr__fail(
      err, PURR_STATUS_INCOMPATIBLE_BINARY,
      "kernel %.100s has no variant for device %d (%s, compute capability %d.%d); %.120s, for example, is "
      "for %s",
      kernel->name, device->ordinal, device->name, device->cc_major, device->cc_minor, kernel->variants[0].file,
      PURR__ARCH_TEXT(kernel->variants[0].arch));
}

static purr_status_t load_all(purr_kernel_t *kernel, purr__device_t *device, purr__kernel_t **out_loaded,
                              purr_error_t *err) {
  purr_context_t *context = kernel->object.context;
  const uint64_t bytes = (uint64_t)kernel->num_variants * sizeof **out_loaded;
  purr__kernel_t *loaded = purr__allocate_zeroed(context, bytes);
  if (loaded == NULL) return purr__fail_memory(err, "the variants of a kernel", bytes);
  purr_status_t status = purr__device_enter(device, err);
  if (status == PURR_STATUS_OK) {
    const int mode = purr__device_allow_capture(device);
    for (int i = 0; i < kernel->num_variants && status == PURR_STATUS_OK; i++)
      status = load_variant(kernel, i, device, &loaded[i], err);
    purr__device_restore_capture(device, mode);
    purr__device_leave(device);
  }
  if (status == PURR_STATUS_OK) status = check_any(kernel, device, loaded, err);
  if (status == PURR_STATUS_OK)
    *out_loaded = loaded;
  else
    purr__release(context, loaded);
  return status;
}

static purr_status_t make_tables(purr_kernel_t *kernel, const purr__driver_t *driver, purr_error_t *err) {
  purr_context_t *context = kernel->object.context;
  if (kernel->loaded != NULL) return PURR_STATUS_OK;
  const uint64_t library_bytes = (uint64_t)kernel->num_variants * sizeof *kernel->libraries;
  const uint64_t loaded_bytes = (uint64_t)driver->num_devices * sizeof *kernel->loaded;
  if (kernel->libraries == NULL) kernel->libraries = purr__allocate_zeroed(context, library_bytes);
  if (kernel->libraries == NULL) return purr__fail_memory(err, "a kernel's libraries", library_bytes);
  kernel->loaded = purr__allocate_zeroed(context, loaded_bytes);
  return kernel->loaded != NULL ? PURR_STATUS_OK : purr__fail_memory(err, "a kernel's devices", loaded_bytes);
}

purr_status_t purr__triton_load(purr_kernel_t *kernel, purr__device_t *device, const purr__kernel_t **out_loaded,
                                purr_error_t *err) {
  *out_loaded = NULL;
  pthread_mutex_lock(&kernel->mutex);
  purr_status_t status = make_tables(kernel, device->driver, err);
  if (status == PURR_STATUS_OK && kernel->loaded[device->ordinal] == NULL)
    status = load_all(kernel, device, &kernel->loaded[device->ordinal], err);
  if (status == PURR_STATUS_OK) *out_loaded = kernel->loaded[device->ordinal];
  pthread_mutex_unlock(&kernel->mutex);
  return status;
}

void purr__triton_unload(purr_kernel_t *kernel) {
  purr_context_t *context = kernel->object.context;
  if (kernel->driver != NULL) {
    purr__device_t *any = &kernel->driver->devices[0];
    const int mode = purr__device_allow_capture(any);
    for (int i = 0; i < kernel->num_variants; i++)
      if (kernel->libraries[i] != NULL) (void)kernel->driver->cuda.cuLibraryUnload(kernel->libraries[i]);
    purr__device_restore_capture(any, mode);
    for (int d = 0; d < kernel->driver->num_devices && kernel->loaded != NULL; d++)
      purr__release(context, kernel->loaded[d]);
  }
  purr__release(context, kernel->loaded);
  purr__release(context, kernel->libraries);
}
