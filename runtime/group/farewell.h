/* What a rank that leaves tells the devices of the others. */
#ifndef PURR_GROUP_FAREWELL_H
#define PURR_GROUP_FAREWELL_H

#include "driver/driver.h"
#include "group/group.h"
#include "kernels/layout.h"

/* Page-locked, one for each rank: what it reads of a rank's head, and what it writes there. */
typedef struct purr__farewell {
  purr__device_rank_header_t seen;
  int32_t told;
} purr__farewell_t;

/* Ranks whose barriers wait for this one on a device, now or later, stop waiting. First this rank's own calls in the
 * workspace come to their end, of which num_barriers barriers are known of, and all ranks get behind the barriers that
 * it came to: a barrier that all have come to succeeds. That takes some microseconds, or what is left of the calls;
 * when nothing moves for some seconds it is not waited for any longer. Nothing is told where the group is broken
 * already, or the device lost. */
void purr__farewell(const purr_group_t *group, const purr__symmetric_t *block, purr__device_t *device,
                    uint64_t num_barriers, purr__farewell_t *pinned);

#endif
