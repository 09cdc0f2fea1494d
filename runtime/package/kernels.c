/* Loads the kernels that fit a device, chooses among them, and starts them. */
#include <stdio.h>

#include "base/context.h"
#include "package/list.h"

/* ---- which kernels ---- */

/* Whether a better copy of the same kernel is taken: from an earlier package, or in this one for a better
 * architecture. */
static bool is_superseded(const purr__package_list_t *list, int package_idx, int kernel_idx, purr__device_t *device) {
  const purr__manifest_t *own = &list->packages[package_idx]->manifest;
  const purr__manifest_kernel_t *kernel = &own->kernels[kernel_idx];
  for (int p = 0; p <= package_idx; p++) {
    const purr__manifest_t *manifest = &list->packages[p]->manifest;
    for (int k = 0; k < manifest->num_kernels; k++) {
      purr__arch_t arch = manifest->images[manifest->kernels[k].image_idx].arch;
      if (strcmp(manifest->kernels[k].entry, kernel->entry) == 0 && manifest->kernels[k].triton == NULL &&
          purr__arch_fits(arch, device->cc_major, device->cc_minor) &&
          (p < package_idx || purr__arch_is_better(arch, own->images[kernel->image_idx].arch)))
        return true;
    }
  }
  return false;
}

static purr__arch_t arch_of(const purr__package_t *package, const purr__manifest_kernel_t *kernel) {
  return package->manifest.images[kernel->image_idx].arch;
}

/* Fills the list with what is to be loaded, the better choice first. */
static purr_status_t choose_kernels(purr_context_t *context, purr__kernels_t *kernels, purr_error_t *err) {
  const purr__package_list_t *list = kernels->packages;
  purr__device_t *device = kernels->device;
  uint64_t most = 1;
  for (int p = 0; p < list->count; p++) most += (uint64_t)list->packages[p]->manifest.num_kernels;
  /* Those of Triton are loaded by whom they are opened for. */
  kernels->kernels = purr__allocate_zeroed(context, most * sizeof(purr__kernel_t));
  if (kernels->kernels == NULL) return purr__fail_memory(err, "the list of kernels", most * sizeof(purr__kernel_t));
  for (int p = 0; p < list->count; p++) {
    purr__package_t *package = list->packages[p];
    int first = kernels->num_kernels;
    for (int k = package->manifest.num_kernels - 1; k >= 0; k--) {
      const purr__manifest_kernel_t *entry = &package->manifest.kernels[k];
      purr__arch_t arch = arch_of(package, entry);
      if (entry->triton != NULL) continue;
      if (!purr__arch_fits(arch, device->cc_major, device->cc_minor) || is_superseded(list, p, k, device)) continue;
      int at = kernels->num_kernels++;
      for (; at > first && purr__arch_is_better(arch, kernels->kernels[at - 1].arch); at--)
        kernels->kernels[at] = kernels->kernels[at - 1];
      kernels->kernels[at] = (purr__kernel_t){.entry = entry, .package = package, .arch = arch, .device = device};
    }
  }
  return PURR_STATUS_OK;
}

/* ---- loading ---- */

/* The driver's library for an image: read, checked and handed over once in the life of the package. */
static purr_status_t load_image(purr__package_t *package, int image_idx, purr__device_t *device, purr_error_t *err) {
  if (package->libraries[image_idx] != NULL) return PURR_STATUS_OK;
  purr__package_image_t image;
  purr_status_t status = purr__package_read_image(package, image_idx, &image, err);
  if (status != PURR_STATUS_OK) return status;
  package->driver = device->driver;
  CUlibrary library = NULL;
  status =
      PURR__CUDA(device, err, cuLibraryLoadData, (&library, image.data, NULL, NULL, 0, NULL, NULL, 0),
                 "loading %.120s/%s (made with CUDA %d.%d, the driver is of %d.%d)", package->source.name,
                 package->manifest.images[image_idx].file, image.cubin.toolkit / 1000, image.cubin.toolkit % 1000 / 10,
                 device->driver->version / 1000, device->driver->version % 1000 / 10);
  purr__package_free_image(package, &image);
  if (status == PURR_STATUS_OK) package->libraries[image_idx] = library;
  return status;
}

/* Whether the device has what the kernel needs; else says what it lacks. */
static bool fits_limits(purr__kernel_t *kernel) {
  const purr__device_t *device = kernel->device;
  const purr__manifest_kernel_t *entry = kernel->entry;
  if (entry->threads > device->max_threads_per_block)
    snprintf(kernel->unusable, sizeof kernel->unusable, "it needs blocks of %d threads, the device allows %d",
             entry->threads, device->max_threads_per_block);
  else if (entry->shared_bytes + kernel->static_shared_bytes > device->max_shared_bytes)
    snprintf(kernel->unusable, sizeof kernel->unusable,
             "it needs %d bytes of shared memory (%d dynamic, %d static), the device allows %d",
             entry->shared_bytes + kernel->static_shared_bytes, entry->shared_bytes, kernel->static_shared_bytes,
             device->max_shared_bytes);
  else if (entry->cluster[0] * entry->cluster[1] * entry->cluster[2] > 1 && !device->can_launch_clusters)
    snprintf(kernel->unusable, sizeof kernel->unusable, "it runs in clusters, which the device has not");
  return kernel->unusable[0] == '\0';
}

static purr_status_t read_attributes(purr__kernel_t *kernel, CUkernel handle, purr_error_t *err) {
  int own_cluster_width = 0;
  const struct {
    int attribute, *value;
  } wanted[] = {{CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, &kernel->static_shared_bytes},
                {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, &kernel->stack_bytes},
                {CU_FUNC_ATTRIBUTE_NUM_REGS, &kernel->num_registers},
                {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, &own_cluster_width}};
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
    purr_status_t status =
        PURR__CUDA(kernel->device, err, cuKernelGetAttribute,
                   (wanted[i].value, wanted[i].attribute, handle, kernel->device->handle),
                   "reading attribute %d of kernel %.128s", wanted[i].attribute, kernel->entry->entry);
    if (status != PURR_STATUS_OK) return status;
  }
  kernel->has_own_cluster = own_cluster_width > 0;
  return PURR_STATUS_OK;
}

static purr_status_t set_attributes(purr__kernel_t *kernel, CUkernel handle, purr_error_t *err) {
  purr__device_t *device = kernel->device;
  const int *cluster = kernel->entry->cluster;
  /* All that the device has, whatever the manifest asks for: what a launch then uses is checked against it. */
  kernel->max_shared_bytes = device->max_shared_bytes - kernel->static_shared_bytes;
  purr_status_t status = PURR__CUDA(
      device, err, cuKernelSetAttribute,
      (CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel->max_shared_bytes, handle, device->handle),
      "allowing kernel %.128s %d bytes of dynamic shared memory", kernel->entry->entry, kernel->max_shared_bytes);
  if (status == PURR_STATUS_OK && cluster[0] * cluster[1] * cluster[2] > 8)
    status = PURR__CUDA(device, err, cuKernelSetAttribute,
                        (CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, handle, device->handle),
                        "allowing kernel %.128s a cluster of more than 8 blocks", kernel->entry->entry);
  return status;
}

purr_status_t purr__kernel_load(purr__kernel_t *kernel, CUlibrary library, const char *file, purr_error_t *err) {
  purr__device_t *device = kernel->device;
  CUkernel handle;
  purr_status_t status = PURR__CUDA(device, err, cuLibraryGetKernel, (&handle, library, kernel->entry->entry),
                                    "finding kernel %.128s of %.260s", kernel->entry->entry, file);
  if (status == PURR_STATUS_OK) status = read_attributes(kernel, handle, err);
  if (status != PURR_STATUS_OK || !fits_limits(kernel)) return status;
  CUfunction function;
  status = set_attributes(kernel, handle, err);
  if (status == PURR_STATUS_OK)
    status = PURR__CUDA(device, err, cuKernelGetFunction, (&function, handle), "loading kernel %.128s",
                        kernel->entry->entry);
  if (status == PURR_STATUS_OK)
    status = PURR__CUDA(device, err, cuFuncLoad, (function), "loading kernel %.128s", kernel->entry->entry);
  if (status == PURR_STATUS_OK) kernel->function = function;
  return status;
}

void purr__kernels_free(purr_context_t *context, purr__kernels_t *kernels) {
  if (kernels == NULL) return;
  purr__release(context, kernels->kernels);
  purr__release(context, kernels);
}

static purr_status_t load_kernels(purr__device_t *device, const purr__package_list_t *list,
                                  purr__kernels_t **out_kernels, purr_error_t *err) {
  purr_context_t *context = device->driver->context;
  purr__kernels_t *kernels = purr__allocate_zeroed(context, sizeof *kernels);
  if (kernels == NULL) return purr__fail_memory(err, "the kernels of a device", sizeof *kernels);
  kernels->device = device;
  kernels->packages = list;
  purr_status_t status = choose_kernels(context, kernels, err);
  bool entered = false;
  int mode = 0;
  if (status == PURR_STATUS_OK) {
    status = purr__device_enter(device, err);
    entered = status == PURR_STATUS_OK;
  }
  if (entered) mode = purr__device_allow_capture(device);
  for (int i = 0; status == PURR_STATUS_OK && i < kernels->num_kernels; i++) {
    purr__kernel_t *kernel = &kernels->kernels[i];
    status = load_image(kernel->package, kernel->entry->image_idx, device, err);
    if (status == PURR_STATUS_OK)
      status = purr__kernel_load(kernel, kernel->package->libraries[kernel->entry->image_idx],
                                 kernel->package->manifest.images[kernel->entry->image_idx].file, err);
  }
  if (entered) {
    purr__device_restore_capture(device, mode);
    purr__device_leave(device);
  }
  if (status == PURR_STATUS_OK)
    *out_kernels = kernels;
  else
    purr__kernels_free(context, kernels);
  return status;
}

static purr_status_t make_table(purr__packages_t *packages, purr__driver_t *driver, purr_error_t *err) {
  if (packages->kernels != NULL) return PURR_STATUS_OK;
  uint64_t bytes = (uint64_t)driver->num_devices * sizeof packages->kernels[0];
  packages->kernels = purr__allocate_zeroed(packages->context, bytes);
  if (packages->kernels == NULL) return purr__fail_memory(err, "the table of kernels", bytes);
  packages->num_devices = driver->num_devices;
  return PURR_STATUS_OK;
}

purr_status_t purr__kernels_get(purr__device_t *device, const purr__kernels_t **out_kernels, purr_error_t *err) {
  *out_kernels = NULL;
  purr_context_t *context = device->driver->context;
  purr__packages_t *packages;
  const purr__package_list_t *list;
  purr_status_t status = purr__packages_get(context, &list, err);
  if (status == PURR_STATUS_OK) status = purr__packages_part(context, &packages, err);
  if (status != PURR_STATUS_OK) return status;
  pthread_mutex_lock(&packages->mutex);
  status = make_table(packages, device->driver, err);
  if (status == PURR_STATUS_OK) {
    purr__kernels_t *kernels = packages->kernels[device->ordinal];
    if (kernels == NULL) {
      status = load_kernels(device, list, &kernels, err);
      packages->kernels[device->ordinal] = kernels;
    }
    *out_kernels = kernels;
  }
  pthread_mutex_unlock(&packages->mutex);
  return status;
}

/* ---- choosing ---- */

/* Why a loaded kernel does not do, in `why`; false where it does. */
static bool is_unfit(const purr__kernel_t *kernel, const purr__kernel_need_t *need, char *why, uint64_t capacity) {
  const purr__manifest_kernel_t *entry = kernel->entry;
  const purr__shape_rule_t *broken = need->shape != NULL ? purr__shape_broken_rule(entry, need->shape) : NULL;
  if (entry->params_version != need->params_version || entry->params_bytes != need->params_bytes)
    snprintf(why, capacity, "its parameters are of layout %d (%d bytes), this library has layout %d (%d bytes)",
             entry->params_version, entry->params_bytes, need->params_version, need->params_bytes);
  else if (kernel->function == NULL)
    snprintf(why, capacity, "%s", kernel->unusable);
  else if (broken != NULL)
    snprintf(why, capacity, "it serves %s %s %lld, this layer has %lld", purr__dim_name(broken->dim),
             broken->op == '%'   ? "multiples of"
             : broken->op == '<' ? "up to"
                                 : "from",
             (long long)broken->value, (long long)need->shape->dims[broken->dim]);
  else
    return false;
  return true;
}

static bool is_meant(const purr__manifest_kernel_t *kernel, const purr__kernel_need_t *need) {
  return strcmp(kernel->role, need->role) == 0 && (need->entry == NULL || strcmp(kernel->entry, need->entry) == 0);
}

/* None is loaded for the role. */
static purr_status_t fail_not_loaded(const purr__kernels_t *kernels, const purr__kernel_need_t *need,
                                     purr_error_t *err) {
  const char *entry = need->entry != NULL ? need->entry : "", *space = need->entry != NULL ? " " : "";
  const purr__device_t *device = kernels->device;
  const purr__package_list_t *list = kernels->packages;
  for (int p = 0; p < list->count; p++) {
    const purr__package_t *package = list->packages[p];
    for (int k = 0; k < package->manifest.num_kernels; k++)
      if (is_meant(&package->manifest.kernels[k], need) && package->manifest.kernels[k].triton == NULL)
        return purr__fail(
            err, PURR_STATUS_INCOMPATIBLE_BINARY,
            "the packages have no %s kernel%s%s for device %d (%s, sm_%d%d); %.128s/%s, for example, is for %s",
            need->role, space, entry, device->ordinal, device->name, device->cc_major, device->cc_minor,
            package->source.name, package->manifest.images[package->manifest.kernels[k].image_idx].file,
            PURR__ARCH_TEXT(arch_of(package, &package->manifest.kernels[k])));
  }
  if (list->count > 0)
    return purr__fail(err, PURR_STATUS_MISSING_KERNEL, "no %s kernel%s%s is in the %d package%s of this context",
                      need->role, space, entry, list->count, list->count > 1 ? "s" : "");
  char installed[256];
  if (!purr__packages_installed_folder(installed, sizeof installed)) snprintf(installed, sizeof installed, "unknown");
  return purr__fail(err, PURR_STATUS_MISSING_KERNEL,
                    "there is no kernel package: none was added, PURR_PACKAGE_PATH is %s, and beside the library (%s) "
                    "there is none",
                    device->driver->context->package_path != NULL ? "set but empty" : "not set", installed);
}

purr_status_t purr__kernels_find(const purr__kernels_t *kernels, const purr__kernel_need_t *need,
                                 const purr__kernel_t **out_kernel, purr_error_t *err) {
  *out_kernel = NULL;
  char why[224];
  const purr__kernel_t *refused = NULL;
  for (int i = 0; i < kernels->num_kernels; i++) {
    const purr__kernel_t *kernel = &kernels->kernels[i];
    if (!is_meant(kernel->entry, need)) continue;
    char unfit[224];
    if (!is_unfit(kernel, need, unfit, sizeof unfit)) {
      *out_kernel = kernel;
      return PURR_STATUS_OK;
    }
    if (refused == NULL) memcpy(why, unfit, sizeof why);
    if (refused == NULL) refused = kernel;
  }
  if (refused == NULL) return fail_not_loaded(kernels, need, err);
  return purr__fail(err, PURR_STATUS_MISSING_KERNEL, "no %s kernel does on device %d (%s): %.128s (%s): %s", need->role,
                    kernels->device->ordinal, kernels->device->name, refused->entry->entry,
                    PURR__ARCH_TEXT(refused->arch), why);
}

/* ---- starting ---- */

purr_status_t purr__kernel_launch_list(const purr__kernel_t *kernel, const purr__launch_t *launch,
                                       const void *const *params, purr_error_t *err) {
  const purr__manifest_kernel_t *entry = kernel->entry;
  purr__launch_t own = *launch;
  own.name = entry->entry;
  if (own.threads == 0) own.threads = (uint32_t)entry->threads;
  if (own.shared_bytes == 0) own.shared_bytes = (uint32_t)entry->shared_bytes;
  if (own.shared_bytes > (uint32_t)kernel->max_shared_bytes)
    return purr__fail(err, PURR_STATUS_UNSUPPORTED,
                      "kernel %.128s asks for %u bytes of dynamic shared memory; device %d (%s) allows %d besides the "
                      "%d static ones",
                      entry->entry, own.shared_bytes, kernel->device->ordinal, kernel->device->name,
                      kernel->max_shared_bytes, kernel->static_shared_bytes);
  if (!kernel->has_own_cluster && entry->cluster[0] * entry->cluster[1] * entry->cluster[2] > 1)
    for (int i = 0; i < 3; i++) own.cluster[i] = (uint32_t)entry->cluster[i];
  return purr__device_launch(kernel->device, kernel->function, &own, params, err);
}

purr_status_t purr__kernel_launch(const purr__kernel_t *kernel, const purr__launch_t *launch, const void *params,
                                  purr_error_t *err) {
  const void *const list[] = {params, NULL};
  return purr__kernel_launch_list(kernel, launch, list, err);
}
