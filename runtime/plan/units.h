/* The forward megakernel's units: how a layer is cut into them, and how much room their list needs. */
#ifndef PURR_UNITS_H
#define PURR_UNITS_H

#include "kernels/layout.h"
#include "plan/plan.h"

/* SMs that pull rows from other devices, where the layer leaves their number open: eight bring what NVLink can
 * (kernels/README.md, Transport). */
#define PURR__NUM_PULL_SMS 8

/* How the units of a call with `num_tokens` tokens are cut and ordered; without the addresses. */
purr__unit_order_t purr__unit_order_of(const purr_plan_t *plan, int64_t num_tokens, int32_t tile_rows);

/* Most tiles of routed experts in one call of the plan, with or without a timeline. */
int64_t purr__unit_most_tiles(const purr_plan_t *plan);

/* Rows of the megakernel's ring, or 0: all rows of a call have room. A ring is made for several ranks, and where the
 * layer asks for a macrobatch, which it is at least as large as. */
int64_t purr__ring_rows(const purr_plan_t *plan);

/* Most units, and most 32-bit words of purr__unit_sync_t and what follows it, in one call of the plan. */
void purr__unit_room(const purr_plan_t *plan, int64_t *out_num_units, int64_t *out_num_sync_words);

#endif
