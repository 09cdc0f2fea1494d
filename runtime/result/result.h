/* The outcome of one call. Written by the call, read from any thread. */
#ifndef PURR_RESULT_H
#define PURR_RESULT_H

#include <pthread.h>

#include "config/config.h"
#include "driver/driver.h"

struct purr_result {
  purr__object_t object;
  pthread_mutex_t mutex; /* guards all but the progress */
  purr_result_info_t info;
  char message[512];
  int64_t num_experts;                          /* of this rank */
  int64_t num_all_experts;                      /* of the layer, for messages */
  int32_t tokens_per_expert[PURR__MAX_EXPERTS]; /* here, because a call allocates nothing: a rank must not fail alone */
  atomic_llong num_rows_done;
  /* Of GPU calls. */
  purr__device_t *device;
  struct purr__outcome *mirror; /* page-locked; see kernels/layout.h */
  int64_t num_mirrored_experts;
  int rank;         /* that made the last call */
  bool is_mirrored; /* the last call's outcome is in the mirror */
  bool has_events;  /* and it can be timed and watched: it was not captured */
  CUevent begun, done;
};

/* Every function takes NULL for "no result wanted". */

/* The call starts: clears what the last one left. */
void purr__result_start(purr_result_t *result);
/* What this rank's experts will compute. */
void purr__result_set_rows(purr_result_t *result, const int32_t *expert_count, int64_t num_experts, int64_t num_rows);
void purr__result_add_rows_done(purr_result_t *result, int64_t num_rows);
void purr__result_add_replayed(purr_result_t *result, int64_t num_rows);
/* Adds the time since *since_ns to a phase and moves *since_ns to now. */
void purr__result_add_time(purr_result_t *result, int phase, uint64_t *since_ns);
void purr__result_set_bad_route(purr_result_t *result, int rank, int64_t token, int64_t slot, int64_t expert);
/* The call ends with this status and sentence. */
void purr__result_finish(purr_result_t *result, purr_status_t status, const purr_error_t *err, uint64_t total_ns);

/* ---- mirror.c, for result.c ---- */
/* Takes what the device has written so far over into `info`. The mutex is held. */
void purr__result_read_mirror(purr_result_t *result);
void purr__result_drop_mirror(purr_result_t *result);

/* "rank 1, token 2, slot 0 has expert id 99; ...": the sentence of a BAD_ROUTE, for every backend. */
purr_status_t purr__fail_bad_route(purr_error_t *err, int rank, int64_t token, int64_t slot, int64_t expert,
                                   int64_t num_experts);

#endif
