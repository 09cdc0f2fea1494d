/* Reads a cubin, NVIDIA's ELF image of compiled kernels, without the driver: what it was compiled for and what each
 * kernel needs. Nothing in the file is trusted; every offset is checked, and time and memory are bounded by its size.
 *
 * The format is not documented as a whole; what is read here is stable from CUDA 12 to 13 (ELF ABI versions 7 and 8).
 */
#ifndef PURR_CUBIN_H
#define PURR_CUBIN_H

#include "base/base.h"

#define PURR__CUBIN_MAX_BYTES ((uint64_t)256 << 20)
#define PURR__CUBIN_MAX_KERNELS 4096

/* What code is compiled for: sm_90, sm_90a (this compute capability alone) or sm_100f (its family). */
typedef struct purr__arch {
  int number;  /* 90 is compute capability 9.0, 120 is 12.0 */
  char suffix; /* 'a', 'f' or 0 */
} purr__arch_t;

/* "sm_90a"; false for anything else. */
bool purr__arch_parse(const char *text, purr__arch_t *out_arch);
#define PURR__ARCH_TEXT_BYTES 16
const char *purr__arch_print(purr__arch_t arch, char text[PURR__ARCH_TEXT_BYTES]);
#define PURR__ARCH_TEXT(arch) purr__arch_print(arch, (char[PURR__ARCH_TEXT_BYTES]){0})
/* Whether a device of this compute capability runs such code. */
bool purr__arch_fits(purr__arch_t arch, int cc_major, int cc_minor);
/* Shared memory that a block can have on the best device that runs an image for this architecture. */
int purr__arch_most_shared_bytes(purr__arch_t arch);
/* Whether `arch` is the better choice where both fit: a, then f, then the higher minor version. */
bool purr__arch_is_better(purr__arch_t arch, purr__arch_t than);

typedef struct purr__cubin_kernel {
  const char *name;             /* the entry, inside the image */
  int registers;                /* of a thread */
  int static_shared_bytes;      /* without what the driver reserves */
  int stack_bytes;              /* of a thread: spilled registers and local arrays */
  int num_spills;               /* instructions that store or reload a spilled register; -1 = the image does not say */
  int exact_threads[3];         /* .reqntid: the only block shape that can be launched; 0 = not given */
  int most_threads;             /* .maxntid: threads of a block; 0 = not given */
  int cluster[3];               /* the cluster shape that is compiled in; 0 = none */
  int num_params, params_bytes; /* the sum of their sizes, without the gaps that the toolkit chooses */
  uint64_t code_bytes;
  uint64_t info_offset, info_bytes; /* its records, for purr__cubin_param */
} purr__cubin_kernel_t;

typedef struct purr__cubin {
  const unsigned char *data; /* the caller's */
  uint64_t bytes;
  purr__arch_t arch;
  int toolkit; /* 13000 = CUDA 13.0, 0 = not said */
  int num_kernels;
  purr__cubin_kernel_t *kernels; /* [num_kernels] */
} purr__cubin_t;

/* Parses an image that stays where it is; `name` stands for it in the sentence.
 * Returns: OK, PACKAGE (not a cubin, damaged, cut short), OUT_OF_HOST_MEMORY. On failure nothing is kept. */
purr_status_t purr__cubin_parse(purr_context_t *context, const void *data, uint64_t bytes, const char *name,
                                purr__cubin_t *out_cubin, purr_error_t *err);
void purr__cubin_free(purr_context_t *context, purr__cubin_t *cubin);

const purr__cubin_kernel_t *purr__cubin_find(const purr__cubin_t *cubin, const char *name);

/* Where the parameter of a kernel lies in its parameter memory; false past the last. */
bool purr__cubin_param(const purr__cubin_t *cubin, const purr__cubin_kernel_t *kernel, int param_idx, int *out_offset,
                       int *out_bytes);

#endif
