/* The context's fields, for the files of base/ only. */
#ifndef PURR_CONTEXT_H
#define PURR_CONTEXT_H

#include <pthread.h>
#include <sys/types.h>

#include "base/base.h"

struct purr__pool;

struct purr__context_part {
  pthread_mutex_t mutex; /* held while the part is being made */
  _Atomic(void *) made;
  void (*free)(void *part);
};

struct purr_context {
  purr__object_t object;
  pid_t pid; /* of the process that created it; another one inherited it through fork */
  purr_allocator_t allocator;
  purr_device_allocator_t device_allocator; /* its functions are NULL where the driver's own memory is used */
  purr_log_fn log;
  void *log_user;
  int log_level;
  int num_threads;
  int num_device_queues; /* hardware queues of a device in this process: CUDA_DEVICE_MAX_CONNECTIONS, else 8 */
  struct purr__pool *pool;
  atomic_ullong counters[PURR__NUM_COUNTERS];
  atomic_ullong host_bytes, host_bytes_peak;
  atomic_ullong device_bytes, device_bytes_peak;
  struct purr__context_part parts[PURR__NUM_PARTS];
  const char *driver_library; /* what dlopen is given for the CUDA driver */
  char *package_path;         /* PURR_PACKAGE_PATH, NULL where there is none or where it must not be trusted */
};

purr_status_t purr__pool_create(purr_context_t *context, struct purr__pool **out_pool, purr_error_t *err);
void purr__pool_destroy(purr_context_t *context, struct purr__pool *pool);

#endif
