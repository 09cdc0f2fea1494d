/* The group interface: what every provider (ranks in one process, processes of one host, NCCL) gives to the rest. */
#ifndef PURR_GROUP_H
#define PURR_GROUP_H

#include "base/base.h"

struct purr__device;

/* A block of symmetric memory: one of the same size on every rank. */
typedef struct purr__symmetric purr__symmetric_t;

typedef struct purr__group_ops {
  const char *name;
  /* Collective. `device` is where this rank's part lies, NULL for host memory. All ranks give the same `bytes` and
   * `tag`; a difference is PEER_MISMATCH on all, a rank without memory OUT_OF_HOST_MEMORY or OUT_OF_DEVICE_MEMORY on
   * all. The memory is not cleared. */
  purr_status_t (*allocate)(purr_group_t *group, struct purr__device *device, uint64_t bytes, uint64_t tag,
                            purr__symmetric_t **out_block, purr_error_t *err);
  /* Collective, in place of allocate, for a rank that could not come so far: the others get `status`, with its rank. */
  void (*decline)(purr_group_t *group, purr_status_t status);
  /* Local. The memory of a rank stays readable until every rank has freed its handle. */
  void (*free)(purr_group_t *group, purr__symmetric_t *block);
  /* Where rank `rank`'s part of the block is, as this rank addresses it. */
  char *(*address)(const purr__symmetric_t *block, int rank);
  /* Collective: returns (host) or completes on the stream (device) when every rank has come; what a rank wrote before
   * is then visible to all. PEER_FAILED names the rank that did not come within the group's timeout, or that left. */
  purr_status_t (*barrier)(purr_group_t *group, void *stream, const char *site, purr_error_t *err);
  purr_status_t (*query_status)(purr_group_t *group, purr_error_t *err);
  /* Local. Where a device tells that a rank did not come: 1 + its number, page-locked memory that lives as long as the
   * group has members. NULL before there is symmetric memory on a device. */
  int32_t *(*broken_word)(purr_group_t *group);
  /* Local. The caller's handle ends; ranks that wait for this one, now or later, get PEER_FAILED at once: those on
   * devices too, where a part of the symmetric memory begins with a purr__device_rank_header_t. */
  void (*leave)(purr_group_t *group);
  /* Local. A call of this rank with so many barriers is about to be enqueued. INVALID_ARGUMENT when a rank on the same
   * device has given that stream to its call: the two would wait for each other. */
  purr_status_t (*start_call)(purr_group_t *group, purr__symmetric_t *block, void *stream, int num_barriers,
                              purr_error_t *err);
  /* Local. How many ranks, this one too, have their part on this one's device: such ranks need streams of their own. */
  int (*num_on_device)(const purr__symmetric_t *block, int rank);
} purr__group_ops_t;

struct purr_group {
  purr__object_t object;
  const purr__group_ops_t *ops;
  int rank, num_ranks;
  int64_t timeout_ms;
  atomic_ullong num_meetings; /* barriers that this rank has come to; the same on all ranks between two calls */
};

#endif
