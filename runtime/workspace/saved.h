/* What one forward keeps for its backward. */
#ifndef PURR_SAVED_H
#define PURR_SAVED_H

#include "plan/plan.h"

struct purr_saved {
  purr__object_t object;
  const purr_plan_t *plan; /* retained: it says what memory this is */
  char *memory;
  uint64_t bytes;
  bool owns_memory;
  /* Set by the forward that filled it. */
  bool filled;
  uint64_t plan_hash;
  int64_t num_tokens;
};

static inline void *purr__saved_at(const purr_saved_t *saved, const purr_plan_t *plan, int region) {
  return saved->memory + plan->saved[region].offset;
}

#endif
