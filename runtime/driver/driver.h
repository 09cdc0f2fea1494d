/* The CUDA driver: found at run time, one table of functions and one list of devices a context.
 *
 * Nothing here runs before somebody asks for a GPU: a context that never does opens no device file and may be forked.
 * All of it may be used from any thread. Primary contexts are shared with the rest of the process and are never reset.
 */
#ifndef PURR_DRIVER_H
#define PURR_DRIVER_H

#include <pthread.h>

#include "base/base.h"
#include "driver/cuda_api.h"

typedef struct purr__cuda {
#define PURR_DRIVER_SYMBOL(name, version, params) CUresult(*name) params;
#include "driver/driver_symbols.def"
#undef PURR_DRIVER_SYMBOL
} purr__cuda_t;

typedef struct purr__device purr__device_t;
typedef struct purr__parked purr__parked_t;

typedef struct purr__driver {
  purr_context_t *context;
  void *library;
  purr__cuda_t cuda;
  int version; /* as CUDA counts: 13000 is 13.0 */
  int num_devices;
  purr__device_t *devices; /* [num_devices] */
  atomic_int lost_result;  /* the first CUresult that made a device unusable, 0 = none */
  atomic_int lost_ordinal;
} purr__driver_t;

struct purr__device {
  purr__driver_t *driver;
  int ordinal;
  CUdevice handle;
  char name[96];
  char pci_bus_id[32];
  CUuuid uuid;
  int cc_major, cc_minor; /* compute capability */
  int num_sms;
  int max_threads_per_block;
  int max_shared_bytes; /* of one block, static and dynamic together, after opting in */
  int l2_bytes;
  int compute_mode;
  bool can_launch_cooperative, can_launch_clusters, has_virtual_memory;
  uint64_t total_bytes;
  pthread_mutex_t mutex; /* held while the primary context is retained, and for what follows it */
  _Atomic(CUcontext) primary;
  int num_sharing;        /* ranks that share the device with another rank */
  purr__parked_t *parked; /* what is to be freed when there are none */
  uint64_t parked_bytes;
  pthread_mutex_t freeing; /* held while that is freed, which may take long; taken before `mutex` */
};

/* ---- finding it (driver.c) ---- */

/* The driver, loaded and initialised by the first caller. NO_DEVICE says in one sentence what is missing, too old or
 * broken, and what to do; native_code is then ENOENT where there is no driver at all. FORKED where the driver was
 * already in use before this process was forked. */
purr_status_t purr__driver_get(purr_context_t *context, purr__driver_t **out_driver, purr_error_t *err);

/* A device by its number, or with -1 the one whose context is current on this thread, else device 0. */
purr_status_t purr__device_get(purr_context_t *context, int ordinal, purr__device_t **out_device, purr_error_t *err);

/* OK for CUDA_SUCCESS; else writes "WHAT on device N (NAME): CALL: the driver's sentence (ITS NAME, number)", with the
 * number in native_code, and returns the status for it. A fault that the device does not survive marks the driver lost:
 * from then on every purr__device_enter is refused. `device` is where the call was made. */
purr_status_t purr__device_check(purr__device_t *device, CUresult result, const char *call, purr_error_t *err,
                                 const char *what, ...) PURR__PRINTF(5, 6);

/* One driver call with its check: PURR__CUDA(device, err, cuEventRecord, (event, stream), "recording an event"). */
#define PURR__CUDA(device, err, name, args, ...) \
  purr__device_check((device), (device)->driver->cuda.name args, #name, (err), __VA_ARGS__)

/* Whether nothing but destroying the context is possible any more. */
static inline bool purr__driver_is_lost(const purr__driver_t *driver) {
  return atomic_load_explicit(&driver->lost_result, memory_order_relaxed) != 0;
}

/* ---- using a device (device.c; parking.c) ---- */

/* Makes the device's primary context current, retaining it on first use; leave restores what was current before.
 * Calls nest. On failure nothing was pushed. */
purr_status_t purr__device_enter(purr__device_t *device, purr_error_t *err);
void purr__device_leave(purr__device_t *device);

/* Around calls that allocate, free, load, open a peer, make or end a stream, wait, ask for an event or use the default
 * stream: a capture in global mode by another thread must not be broken by them, nor this thread's own by what a call
 * makes on first use. Returns the mode to go back to. What is below does so by itself, but for purr__device_launch. */
int purr__device_allow_capture(purr__device_t *device);
void purr__device_restore_capture(purr__device_t *device, int mode);

/* Device memory, from the context's device hook or the driver, 256-byte aligned, not cleared. 0 bytes give NULL. */
purr_status_t purr__device_allocate(purr__device_t *device, uint64_t bytes, const char *what, void **out_memory,
                                    purr_error_t *err);
void purr__device_release(purr__device_t *device, void *memory, uint64_t bytes);

/* Page-locked host memory that every device reads and writes at the same address. */
purr_status_t purr__device_allocate_pinned(purr__device_t *device, uint64_t bytes, void **out_memory,
                                           purr_error_t *err);
void purr__device_release_pinned(purr__device_t *device, void *memory);

/* Around the time that a rank shares the device with another one: what is released meanwhile is freed later
 * (parking.c). */
void purr__device_share(purr__device_t *device);
void purr__device_unshare(purr__device_t *device);
/* Frees it now, which may take as long as ranks wait for each other. */
void purr__device_free_parked(purr__device_t *device);

/* Copies between any two places that the device can reach, in stream order. Entered or not. */
purr_status_t purr__device_copy(purr__device_t *device, void *to, const void *from, uint64_t bytes, CUstream stream,
                                purr_error_t *err);
purr_status_t purr__device_fill(purr__device_t *device, void *to, unsigned char value, uint64_t bytes, CUstream stream,
                                purr_error_t *err);
purr_status_t purr__device_synchronize(purr__device_t *device, CUstream stream, purr_error_t *err);

/* Lets kernels of `device` read and write memory of `peer`; both may be the same. */
purr_status_t purr__device_enable_peer(purr__device_t *device, purr__device_t *peer, purr_error_t *err);

/* INVALID_ARGUMENT unless `stream` belongs to the device's primary context; the default streams do. Entered. */
purr_status_t purr__device_check_stream(purr__device_t *device, CUstream stream, purr_error_t *err);
/* INVALID_ARGUMENT unless `address` is memory of this device, or managed; `name` stands for it in the sentence. */
purr_status_t purr__device_check_pointer(purr__device_t *device, const void *address, const char *name,
                                         purr_error_t *err);

/* INVALID_ARGUMENT where `address` is host memory that the device cannot reach: not page-locked, on a device that has
 * no access to what is not. Entered. */
purr_status_t purr__device_check_reach(purr__device_t *device, const void *address, const char *name,
                                       purr_error_t *err);

/* How a kernel is started. */
typedef struct purr__launch {
  const char *name; /* for messages */
  uint32_t grid[3]; /* with a 0 in it nothing is launched */
  uint32_t threads;
  uint32_t cluster[3];   /* 0 = none, or the one that is compiled in */
  uint32_t shared_bytes; /* dynamic */
  bool spreads_clusters; /* over the SMs of the device, as Triton's are; needs a cluster */
  bool is_cooperative;   /* all blocks resident at once, or refused */
  bool may_overlap;      /* may start before the kernel in front of it ends; it waits for it itself */
  CUstream stream;
} purr__launch_t;

/* Enqueues a kernel. Entered.
 * @param params  an address for each parameter that the image declares. */
purr_status_t purr__device_launch(purr__device_t *device, CUfunction function, const purr__launch_t *launch,
                                  const void *const *params, purr_error_t *err);

#endif
