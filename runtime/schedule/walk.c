#include "schedule/walk.h"

/* The expert boundary nearest to `target` within the slack, else `target`. Boundaries ascend: a binary search finds the
 * first one at or after the lower end. */
static int64_t snap(const purr__walk_t *walk, int64_t target) {
  const int32_t *boundary = walk->table->expert_begin;
  const int64_t reach = purr__minibatch_slack(walk->minibatch_rows);
  int64_t low = 0, high = walk->table->header->num_local_experts + 1;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (boundary[middle] < target - reach)
      low = middle + 1;
    else
      high = middle;
  }
  int64_t best = target, best_distance = reach + 1;
  for (; low <= walk->table->header->num_local_experts && boundary[low] <= target + reach; low++) {
    int64_t distance = boundary[low] < target ? target - boundary[low] : boundary[low] - target;
    if (distance < best_distance) {
      best = boundary[low];
      best_distance = distance;
    }
  }
  return best;
}

/* Cuts the next minibatch off, into walk->next. */
static void advance(purr__walk_t *walk) {
  const int64_t num_rows = walk->table->header->num_padded_rows;
  const int64_t num_macrobatches = (num_rows + walk->macrobatch_rows - 1) / walk->macrobatch_rows;
  walk->has_next = walk->macrobatch >= 0 && walk->macrobatch < num_macrobatches;
  if (!walk->has_next) return;
  const int64_t macrobatch_end = purr__min((walk->macrobatch + 1) * walk->macrobatch_rows, num_rows);
  int64_t end = macrobatch_end;
  if (macrobatch_end - walk->row > purr__max_minibatch(walk->macrobatch_rows, walk->minibatch_rows))
    end = snap(walk, walk->row + walk->minibatch_rows);
  walk->next = (purr__minibatch_t){walk->macrobatch, walk->row, end, end == macrobatch_end};
  walk->row = end;
  if (end == macrobatch_end) {
    walk->macrobatch += walk->descending ? -1 : 1;
    walk->row = walk->macrobatch * walk->macrobatch_rows;
  }
}

void purr__walk_start(purr__walk_t *walk, const purr__table_t *table, int64_t macrobatch_rows, int64_t minibatch_rows,
                      bool descending) {
  *walk = (purr__walk_t){
      .table = table, .macrobatch_rows = macrobatch_rows, .minibatch_rows = minibatch_rows, .descending = descending};
  const int64_t num_rows = table->header->num_padded_rows;
  if (descending) walk->macrobatch = (num_rows + macrobatch_rows - 1) / macrobatch_rows - 1;
  walk->row = walk->macrobatch * macrobatch_rows;
  advance(walk);
}

static bool share_ring_rows(const purr__walk_t *walk, const purr__minibatch_t *a, const purr__minibatch_t *b) {
  int64_t a_begin = a->begin - a->macrobatch * walk->macrobatch_rows, a_end = a_begin + a->end - a->begin;
  int64_t b_begin = b->begin - b->macrobatch * walk->macrobatch_rows, b_end = b_begin + b->end - b->begin;
  return a_begin < b_end && b_begin < a_end;
}

bool purr__walk_next(purr__walk_t *walk, purr__step_t *out_step) {
  bool start_next =
      walk->has_next &&
      (walk->num_waiting == 0 || (walk->num_waiting == 1 && !share_ring_rows(walk, &walk->waiting[0], &walk->next)));
  if (start_next) {
    *out_step = (purr__step_t){PURR__STEP_FIRST_HALF, walk->next};
    walk->waiting[walk->num_waiting++] = walk->next;
    advance(walk);
    return true;
  }
  if (walk->num_waiting == 0) return false;
  *out_step = (purr__step_t){PURR__STEP_SECOND_HALF, walk->waiting[0]};
  walk->waiting[0] = walk->waiting[1];
  walk->num_waiting--;
  return true;
}
