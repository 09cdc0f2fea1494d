/* The memory that a plan's backend computes in: the host's, or its device's. */
#ifndef PURR_WORKSPACE_MEMORY_H
#define PURR_WORKSPACE_MEMORY_H

#include "plan/plan.h"

/* `what` names it in a message. Aligned to PURR__MEMORY_ALIGNMENT on a device, to 64 bytes on the host; not cleared. */
purr_status_t purr__memory_allocate(const purr_plan_t *plan, uint64_t bytes, const char *what, void **out_memory,
                                    purr_error_t *err);
/* NULL is fine. */
void purr__memory_release(const purr_plan_t *plan, void *memory, uint64_t bytes);
/* Copies between any two places that the backend reaches, and waits until it is done. */
purr_status_t purr__memory_copy(const purr_plan_t *plan, void *to, const void *from, uint64_t bytes, purr_error_t *err);

#endif
