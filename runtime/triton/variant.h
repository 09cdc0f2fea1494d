/* One compiled form of a Triton kernel: an image, what a manifest or Triton's metadata says of it, and the list of its
 * parameters, held against what the image itself declares. */
#ifndef PURR_TRITON_VARIANT_H
#define PURR_TRITON_VARIANT_H

#include "package/package.h"
#include "triton/metadata.h"

/* Where a parameter's bytes come from. A descriptor argument is many parameters; the tail belongs to no argument. */
typedef enum purr__triton_source {
  PURR__TRITON_FROM_VALUE,
  PURR__TRITON_FROM_MAP,
  PURR__TRITON_FROM_BASE,
  PURR__TRITON_FROM_SHAPE,     /* dimension `dim`, of 4 or 8 bytes */
  PURR__TRITON_FROM_STRIDE,    /* likewise, in elements */
  PURR__TRITON_FROM_NAN_FLAG,  /* what is read outside is NaN */
  PURR__TRITON_FROM_TF32_FLAG, /* FP32 is rounded to TF32 on the way */
  PURR__TRITON_FROM_SCRATCH,
  PURR__TRITON_FROM_NOTHING, /* a NULL */
} purr__triton_source_t;

typedef struct purr__triton_param {
  purr__triton_source_t source;
  int argument_idx, dim, bytes;
} purr__triton_param_t;

typedef struct purr__triton_variant {
  purr__manifest_kernel_t entry; /* threads, shared memory, cluster; its `triton` belongs to whom it came from */
  purr__triton_spec_t *spec;     /* the package's, or own_spec */
  purr__triton_spec_t *own_spec;
  purr__arch_t arch;
  char file[300];       /* for messages */
  int image_idx;        /* of the kernel's package; -1: the image is here */
  unsigned char *image; /* own */
  uint64_t image_bytes;
  int registers, stack_bytes, static_shared_bytes;
  int num_params, num_hidden, num_descriptors;
  purr__triton_param_t *params; /* [num_params] */
  int num_promises;             /* constants and divisibilities: the more, the more special the variant */
} purr__triton_variant_t;

/* From a kernel of a package whose manifest has its arguments; reads and checks the image.
 * Returns: OK, IO, PACKAGE, MISSING_KERNEL, INCOMPATIBLE_BINARY, OUT_OF_HOST_MEMORY. */
purr_status_t purr__triton_variant_of_package(purr__triton_variant_t *variant, const purr__package_t *package,
                                              int kernel_idx, purr_error_t *err);
/* From Triton's metadata and an image, which the variant takes over, on failure too.
 * @param signature  see purr_kernel_desc_t; NULL: the image says how many bytes each argument has, and nobody more.
 * @param grid       three rules, or NULL. */
purr_status_t purr__triton_variant_of_metadata(purr_context_t *context, purr__triton_variant_t *variant,
                                               const purr__triton_metadata_t *metadata, unsigned char *image,
                                               uint64_t image_bytes, const char *file, const char *signature,
                                               const char *const *grid, purr_error_t *err);
void purr__triton_variant_free(purr_context_t *context, purr__triton_variant_t *variant);

/* Arguments from "x_ptr=*fp32:16, n=i32, BLOCK=1024": types with what they are divisible by, or constants, each with or
 * without a name. `descriptors` are those of the metadata. Appends to spec->arguments. */
purr_status_t purr__triton_signature_parse(purr_context_t *context, const char *signature,
                                           const purr__triton_metadata_t *metadata, purr__triton_spec_t *spec,
                                           purr_error_t *err);

#endif
