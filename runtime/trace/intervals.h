/* Sets of instants, as intervals. */
#ifndef PURR_INTERVALS_H
#define PURR_INTERVALS_H

#include "base/base.h"

typedef struct purr__interval {
  int64_t begin, end;
} purr__interval_t;

/* Merge sort from the bottom up, stable; `scratch` is as large as `items`. */
typedef bool (*purr__before_fn)(const void *a, const void *b);
void purr__sort(void *items, void *scratch, int64_t num, size_t item_bytes, purr__before_fn before);

/* Turns intervals in any order into the same instants by disjoint ones in order; returns their number. */
int64_t purr__intervals_unite(purr__interval_t *intervals, purr__interval_t *scratch, int64_t num);

/* Lengths of disjoint intervals in order, and of what two such sets have in common. */
int64_t purr__intervals_length(const purr__interval_t *intervals, int64_t num);
int64_t purr__intervals_common(const purr__interval_t *a, int64_t num_a, const purr__interval_t *b, int64_t num_b);

#endif
