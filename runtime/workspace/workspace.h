/* Memory of a call: the rank's own (rings, scratch) and the symmetric part that peers reach. */
#ifndef PURR_WORKSPACE_H
#define PURR_WORKSPACE_H

#include "group/group.h"
#include "plan/plan.h"

struct purr_workspace {
  purr__object_t object;
  const purr_plan_t *plan; /* retained: the one it was made for, which says what memory this is */
  purr_group_t *group;     /* retained; the workspace makes one of its own when R = 1 and it is given none */
  char *memory;
  uint64_t bytes;
  bool owns_memory;
  purr__symmetric_t *symmetric;
  uint64_t symmetric_bytes;
  void *peers; /* GPU, R > 1: what kernels need of each rank; see backends/staged/peers.c */
  uint64_t peers_bytes;
  atomic_flag busy;   /* held while a call of the host backend runs, or one of a GPU is enqueued */
  uint32_t last_turn; /* GPU: ticket of the call enqueued last; see purr__turn_t */
};

/* Takes the busy word, after checking that the workspace is big enough for the plan and belongs to as many ranks. */
purr_status_t purr__workspace_acquire(purr_workspace_t *workspace, const purr_plan_t *plan, purr_error_t *err);
void purr__workspace_release(purr_workspace_t *workspace);

/* A region of this rank's own memory, and of a rank's symmetric memory. */
static inline void *purr__workspace_at(const purr_workspace_t *workspace, const purr_plan_t *plan, int region) {
  return workspace->memory + plan->ws[region].offset;
}
static inline void *purr__symmetric_at(const purr_workspace_t *workspace, const purr_plan_t *plan, int rank,
                                       int region) {
  return workspace->group->ops->address(workspace->symmetric, rank) + plan->sym[region].offset;
}

#endif
