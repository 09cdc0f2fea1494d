/* The schedule object: a routing table with the ids it was built from. */
#ifndef PURR_SCHEDULE_H
#define PURR_SCHEDULE_H

#include "schedule/table.h"

struct purr_schedule {
  purr__object_t object;
  const purr_plan_t *plan; /* retained */
  void *table_memory;      /* plan->table_bytes of the backend's memory */
  void *mirror;            /* GPU: the table in host memory, as it was last looked at */
  void *stream;            /* GPU: where it was built last */
  int32_t *ids;            /* host: [max_tokens, K] of this rank, as gathered */
  bool built;
  atomic_bool is_counted; /* GPU: that it holds a bad id is in the context's counters */
  int64_t num_tokens;     /* T of this rank when it was built */
  int rank;               /* this one */
};

#endif
