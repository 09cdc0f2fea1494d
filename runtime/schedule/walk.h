/* The order of work of one pass: which minibatch is dispatched, computed and combined when. The host backend interprets
 * it literally; the megakernels must do the same work in an order that respects the same dependencies.
 *
 * Macrobatch q is rows q*M .. (q+1)*M-1 of the table, M = plan->macrobatch_rows; row r lives in ring row r mod M. A
 * macrobatch is cut into minibatches at multiples of the minibatch size, moved to an expert's boundary where one is
 * within a quarter of it. Forward walks macrobatches in descending order, so that the rows that backward needs first
 * are the last ones computed; backward walks them in ascending order. Minibatches ascend inside.
 *
 * The first half of minibatch n+1 (dispatch, and in forward gate-up) precedes the second half of minibatch n, unless
 * its ring rows are still those of n. */
#ifndef PURR_WALK_H
#define PURR_WALK_H

#include "schedule/table.h"

typedef struct purr__minibatch {
  int64_t macrobatch;
  int64_t begin, end;   /* rows of the table, multiples of 64 */
  bool ends_macrobatch; /* the last minibatch of its macrobatch */
} purr__minibatch_t;

typedef enum purr__step_kind {
  PURR__STEP_FIRST_HALF,  /* forward: dispatch, gate-up; backward: dispatch, replay, data gradients */
  PURR__STEP_SECOND_HALF, /* forward: down, combine; backward: combine */
} purr__step_kind_t;

typedef struct purr__step {
  purr__step_kind_t kind;
  purr__minibatch_t minibatch;
} purr__step_t;

typedef struct purr__walk {
  const purr__table_t *table;
  int64_t macrobatch_rows, minibatch_rows;
  bool descending;
  int64_t macrobatch, row; /* where the next minibatch begins */
  bool has_next;
  purr__minibatch_t next;
  int num_waiting; /* minibatches whose first half was handed out and whose second was not: 0 to 2 */
  purr__minibatch_t waiting[2];
} purr__walk_t;

void purr__walk_start(purr__walk_t *walk, const purr__table_t *table, int64_t macrobatch_rows, int64_t minibatch_rows,
                      bool descending);
/* The next step; false when the pass is done. */
bool purr__walk_next(purr__walk_t *walk, purr__step_t *out_step);

#endif
