/* A CUDA driver without a GPU: a shared library with the functions of driver_symbols.def, whose devices, faults and
 * counts a test sets and reads. Device memory is ordinary memory, copies happen at once, kernels do nothing but are
 * remembered. Point a context at it before it touches the driver:
 *
 *   fake_cuda_t *fake = fake_cuda_open();  // reset to the defaults
 *   fake->num_devices = 2;
 *   purr_context_t *context = fake_cuda_context(); // destroys like any other
 */
#ifndef PURR_FAKE_CUDA_H
#define PURR_FAKE_CUDA_H

#include <stdint.h>

#include "purr.h"
#include "support/main.h"

enum { FAKE_CUDA_MAX_DEVICES = 8, FAKE_CUDA_MAX_LAUNCHES = 256, FAKE_CUDA_MAX_PARAMS = 64 };

typedef struct fake_launch {
  char kernel[128];
  unsigned grid[3], block[3], cluster[3], shared_bytes;
  int is_cooperative, may_overlap, spreads_clusters;
  void *stream;
  int num_params;
} fake_launch_t;

typedef struct fake_encoding {
  int data_type, swizzle, l2_promotion, fill;
  unsigned rank;
  uint64_t address, dims[5], strides[4];
  unsigned box[5];
} fake_encoding_t;

typedef struct fake_cuda {
  /* Set by the test. */
  int driver_version;                    /* 13000 */
  const char *missing_symbol;            /* answered with success and NULL, as real drivers do */
  int num_devices;                       /* 1 */
  int cc[FAKE_CUDA_MAX_DEVICES];         /* 90 each: major * 10 + minor */
  int num_sms;                           /* 132 */
  int max_shared_bytes;                  /* of one block; 0: as its cc has, 232448 where that is 90 */
  uint64_t memory_bytes;                 /* of each device: 1 GiB */
  int has_peer_access;                   /* 1 */
  int reaches_host_memory;               /* 0: device memory, page-locked memory and nothing else */
  int kernel_static_bytes;               /* static shared memory of every kernel: 0 */
  const char *failing_call;              /* the function that fails ... */
  int failing_result;                    /* ... with this CUresult ... */
  int failing_after;                     /* ... after so many good calls of it */
  int param_bytes[FAKE_CUDA_MAX_PARAMS]; /* of the next launches' parameters, ends with a 0: they are kept in `params`
                                          */
  int fault; /* a CUresult: once a kernel was launched, every later call on the device answers it */

  /* Read by the test. */
  int num_calls; /* of any function but the error texts */
  int num_inits;
  int num_contexts;     /* primary contexts retained now */
  int num_pushed;       /* contexts on this thread's stack of the last caller */
  int num_unsafe_calls; /* that would break a graph capture of another thread */
  int num_allocations, num_pinned, num_libraries, num_streams, num_events; /* alive now */
  int num_loads;                                                           /* cuLibraryLoadData so far */
  int num_func_loads;                                                      /* cuFuncLoad so far */
  uint64_t allocated_bytes;                                                /* now */
  int num_launches;
  fake_launch_t launches[FAKE_CUDA_MAX_LAUNCHES];
  unsigned char params[FAKE_CUDA_MAX_PARAMS][128]; /* of the last launch */
  int num_encodings;                               /* tensor maps made so far */
  fake_encoding_t encoding;                        /* the last one */
} fake_cuda_t;

/* The library's state, reset. */
fake_cuda_t *fake_cuda_open(void);
/* A context whose driver is the fake one; NULL when it cannot be made. */
purr_context_t *fake_cuda_context(void);
/* Opens both and plans the layer on a device of compute capability `cc`. `desc` may be NULL. The context is made also
 * where the plan is not. */
purr_status_t fake_cuda_plan(const purr_layer_desc_t *layer, const purr_plan_desc_t *desc, int cc,
                             fake_cuda_t **out_fake, purr_context_t **out_context, purr_plan_t **out_plan,
                             purr_error_t *err);
/* purr_test_main for tests that need the package of this build: skips them where it has no GPU kernels. */
int fake_cuda_test_main(const char *suite, const purr_test_t *tests);

#endif
