/* A Triton kernel: its variants, and where they are loaded. */
#ifndef PURR_TRITON_KERNEL_H
#define PURR_TRITON_KERNEL_H

#include <pthread.h>

#include "triton/variant.h"

#define PURR__TRITON_MAX_VARIANTS 1024

struct purr_kernel {
  purr__object_t object;
  char name[128];
  char source[300]; /* where it came from */
  purr__package_t *package;
  int num_variants;
  purr__triton_variant_t *variants; /* [num_variants] as they stand in the package */
  pthread_mutex_t mutex;            /* guards what is below */
  purr__driver_t *driver;           /* of the libraries, once there is one */
  CUlibrary *libraries;             /* [num_variants] NULL until loaded */
  purr__kernel_t **loaded;          /* [num_devices] of each device NULL, or [num_variants], then fixed */
};

/* Opens a kernel of a package that is open; see purr_kernel_open. */
purr_status_t purr__kernel_open_in(purr_context_t *context, purr__package_t *package, const char *name,
                                   purr_kernel_t **out_kernel, purr_error_t *err);

/* The kernel's variants on a device, in the order of `variants`; one without a function does not run there, and
 * `unusable` says why. Loads what the device can run on the first call for it; others wait for that one. */
purr_status_t purr__triton_load(purr_kernel_t *kernel, purr__device_t *device, const purr__kernel_t **out_loaded,
                                purr_error_t *err);
void purr__triton_unload(purr_kernel_t *kernel);

/* What the arguments of all variants have in common: count, names and constants' places. */
static inline const purr__triton_spec_t *purr__triton_spec(const purr_kernel_t *kernel) {
  return kernel->variants[0].spec;
}

#endif
