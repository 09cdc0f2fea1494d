/* The context's fields, for the files of base/ only. */
#ifndef PURR_CONTEXT_H
#define PURR_CONTEXT_H

#include <sys/types.h>

#include "base/base.h"

struct purr__pool;

struct purr_context {
  purr__object_t object;
  pid_t pid; /* of the process that created it; another one inherited it through fork */
  purr_allocator_t allocator;
  purr_log_fn log;
  void *log_user;
  int log_level;
  int num_threads;
  struct purr__pool *pool;
  atomic_ullong counters[PURR__NUM_COUNTERS];
  atomic_ullong host_bytes, host_bytes_peak;
};

purr_status_t purr__pool_create(purr_context_t *context, struct purr__pool **out_pool, purr_error_t *err);
void purr__pool_destroy(purr_context_t *context, struct purr__pool *pool);

#endif
