/* Kernel packages: opened, checked, searched for, and loaded onto a device.
 *
 * A package is trusted to be what its manifest says only as far as it was checked: every image is read once, held
 * against its SHA-256 and against the manifest's words about it, and only then given to the driver. */
#ifndef PURR_PACKAGE_H
#define PURR_PACKAGE_H

#include <pthread.h>

#include "driver/driver.h"
#include "package/manifest.h"
#include "package/source.h"

/* ---- one package (package.c) ---- */

/* Shared by the public handle and by the context's list. Does not keep the context alive. */
typedef struct purr__package {
  atomic_int num_refs;
  purr_context_t *context;
  purr__package_source_t source;
  purr__manifest_t manifest;
  purr__driver_t *driver; /* of the libraries, once there is one */
  CUlibrary *libraries;   /* [num_images] NULL until loaded; guarded by the list's mutex */
} purr__package_t;

/* Opens a folder or a tar and reads its manifest; the images are not read yet.
 * Returns: OK, IO, PACKAGE, INCOMPATIBLE_BINARY (a newer format), OUT_OF_HOST_MEMORY. */
purr_status_t purr__package_open(purr_context_t *context, const char *path, purr__package_t **out_package,
                                 purr_error_t *err);
purr_status_t purr__package_open_memory(purr_context_t *context, const void *data, uint64_t bytes, const char *name,
                                        purr__package_t **out_package, purr_error_t *err);
void purr__package_retain(purr__package_t *package);
void purr__package_release(purr__package_t *package);

/* An image in memory, checked. */
typedef struct purr__package_image {
  unsigned char *data;
  purr__cubin_t cubin;
} purr__package_image_t;

/* Reads an image and holds it against the manifest: hash, architecture, and for every kernel entry, block size, cluster
 * and parameters.
 * Returns: OK, IO, PACKAGE, MISSING_KERNEL, INCOMPATIBLE_BINARY (another architecture), OUT_OF_HOST_MEMORY. */
purr_status_t purr__package_read_image(const purr__package_t *package, int image_idx, purr__package_image_t *out_image,
                                       purr_error_t *err);
void purr__package_free_image(const purr__package_t *package, purr__package_image_t *image);

/* Reads and checks every image. */
purr_status_t purr__package_verify(const purr__package_t *package, purr_error_t *err);

/* ---- the packages of a context (search.c) ---- */

/* The context's list, in the order of preference: those added by the caller, then those of PURR_PACKAGE_PATH, then
 * those beside the library. A path names a package, or a folder of packages (folders and *.purr files), which are then
 * taken by name; folders without a manifest.json are none of them. Opened by the first call, and fixed from then on; no
 * device is touched. One bad package spoils the list, so that nothing is left out in silence. Returns: as
 * purr__package_open. */
enum { PURR__MAX_PASSED_OVER = 16 };
typedef struct purr__package_list {
  int count;
  purr__package_t *packages[256];
  int num_passed_over; /* folders among packages that are none: the first few, for the diagnosis */
  char *passed_over[PURR__MAX_PASSED_OVER];
} purr__package_list_t;
purr_status_t purr__packages_get(purr_context_t *context, const purr__package_list_t **out_list, purr_error_t *err);
/* Puts a package behind those added before. INVALID_STATE once the list was used. */
purr_status_t purr__packages_add(purr_context_t *context, purr__package_t *package, purr_error_t *err);

/* The folder of packages that belongs to the library: purr/packages beside libpurr.so. False where the library's own
 * absolute path is not known. */
bool purr__packages_installed_folder(char *path, uint64_t capacity);

/* ---- kernels on a device (kernels.c) ---- */

typedef struct purr__kernel {
  const purr__manifest_kernel_t *entry;
  purr__package_t *package;
  purr__arch_t arch;
  purr__device_t *device;
  CUfunction function; /* NULL where the kernel cannot run here; `unusable` says why */
  char unusable[200];
  int max_shared_bytes; /* dynamic shared memory that a launch may ask for */
  int num_registers, stack_bytes, static_shared_bytes;
  bool has_own_cluster; /* the cluster shape is compiled in */
} purr__kernel_t;

typedef struct purr__kernels {
  purr__device_t *device;
  const purr__package_list_t *packages;
  int num_kernels;
  purr__kernel_t *kernels; /* [num_kernels] the better choice first */
} purr__kernels_t;

/* Every kernel of the context's packages that fits the device, loaded and ready: after it no launch loads anything. The
 * first call on a device does the work, others wait for it. */
purr_status_t purr__kernels_get(purr__device_t *device, const purr__kernels_t **out_kernels, purr_error_t *err);

/* Fills a kernel whose entry, arch and device are set: finds it in a library, lets it use what the device has, and
 * loads it. `file` stands for the library in the sentence. A kernel that needs more than the device has stays without a
 * function, and that is no failure. Entered. */
purr_status_t purr__kernel_load(purr__kernel_t *kernel, CUlibrary library, const char *file, purr_error_t *err);

/* What a caller of a kernel was compiled for. */
typedef struct purr__kernel_need {
  const char *role;
  int params_version, params_bytes;
  const purr__shape_t *shape; /* NULL = any */
  const char *entry;          /* this one of the role alone; NULL = any */
} purr__kernel_need_t;

/* The best kernel for a role: the earlier package, then the better architecture, then the one that stands later in its
 * manifest. MISSING_KERNEL or, where there are only some for other architectures, INCOMPATIBLE_BINARY say why none
 * does. */
purr_status_t purr__kernels_find(const purr__kernels_t *kernels, const purr__kernel_need_t *need,
                                 const purr__kernel_t **out_kernel, purr_error_t *err);

/* Enqueues a kernel on its device (entered). `launch` gives grid, stream and flags; name and cluster come from the
 * manifest, and so do threads and shared_bytes where they are 0.
 * @param params  the kernel's one parameter struct, of its params_bytes; NULL when it has none. */
purr_status_t purr__kernel_launch(const purr__kernel_t *kernel, const purr__launch_t *launch, const void *params,
                                  purr_error_t *err);
/* The same for any parameters: an address for each that the image declares. */
purr_status_t purr__kernel_launch_list(const purr__kernel_t *kernel, const purr__launch_t *launch,
                                       const void *const *params, purr_error_t *err);

#endif
