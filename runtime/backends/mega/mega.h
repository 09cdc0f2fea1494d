/* The mega backend: the forward between the schedule and the sum over slots in one persistent launch, for H100 and
 * H200, BF16. The schedule, the exchange and barriers of ranks, the sum, results and turns are the staged backend's.
 *
 *   (exchange, barrier)         with other ranks: tokens and ids where all reach them
 *   count, place, (unit_list)   the routing table, and the list of units: what a pair of blocks does in one go
 *   forward                     gathers rows of x, of all ranks; gate-up, down; y goes to the ranks it belongs to
 *   (barrier)                   until all have come home
 *   slot_sum                    output = bf16(shared + sum of s * y)
 */
#ifndef PURR_MEGA_H
#define PURR_MEGA_H

#include "backends/staged/staged.h"

typedef struct purr__mega_weights {
  purr__staged_weights_t staged;
  purr__tensor_map_t gate_up, down, shared_gate_up, shared_down;
  const purr__tensor_map_t *gate_up_by_expert, *down_by_expert; /* device [E_l], or NULL */
  bool up_first, shared_up_first;                               /* the map begins with up */
  void *device_memory;
  uint64_t device_bytes;
} purr__mega_weights_t;

purr_status_t purr__mega_prepare_weights(purr_weights_t *weights, purr_error_t *err);
void purr__mega_release_weights(purr_weights_t *weights);

#endif
