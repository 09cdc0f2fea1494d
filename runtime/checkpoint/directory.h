/* The tensors of a checkpoint: one entry each, found by name. Entries and names live in a few large blocks, so that a
 * checkpoint of 200,000 tensors costs about 30 MB and a few hundred allocations. */
#ifndef PURR_DIRECTORY_H
#define PURR_DIRECTORY_H

#include "base/base.h"

#define PURR__MAX_TENSORS 262144  /* of all shards; Kimi-K2 with FP8 scales has 140,000 */
#define PURR__MAX_TENSOR_NAME 256 /* bytes */

typedef struct purr__entry {
  uint64_t begin, num_bytes; /* of the data, from the start of its file */
  int64_t shape[4];          /* the first four dimensions */
  int32_t num_dims;
  int32_t dtype;    /* PURR_DTYPE_*; NONE for a type that Purr has no use for */
  int32_t file_idx; /* shard */
  int32_t name_length;
  _Atomic(void *) aligned; /* a copy of the data, made when it was first asked for and its address was odd */
  bool is_indexed;         /* the weight_map has named it */
  char name[];             /* terminated, without control characters */
} purr__entry_t;

typedef struct purr__directory {
  purr_context_t *context;
  purr__entry_t **entries; /* after sort: in name order */
  int64_t num_entries, capacity;
  struct purr__block *blocks;
} purr__directory_t;

/* A new, zeroed entry; `name` need not be terminated. Fails for a name that is empty, too long or not printable, or
 * when there are too many; `file` is for the message. */
purr_status_t purr__directory_add(purr__directory_t *table, const char *file, const char *name, uint64_t name_length,
                                  purr__entry_t **out_entry, purr_error_t *err);
typedef bool (*purr__entry_before_fn)(const purr__entry_t *a, const purr__entry_t *b);
/* Sorts entries [first, end): stable, O(n log n) whatever the order, O(n) when it is right already. */
purr_status_t purr__directory_sort(purr__directory_t *table, int64_t first, purr__entry_before_fn before,
                                   purr_error_t *err);
bool purr__entry_before_by_name(const purr__entry_t *a, const purr__entry_t *b);
/* NULL when there is none. The table is in name order. */
purr__entry_t *purr__directory_find(const purr__directory_t *table, const char *name, uint64_t name_length);
/* Of the entries that stand close to `name`, the one that shares most with it at its two ends; NULL in an empty table.
 */
const purr__entry_t *purr__directory_nearest(const purr__directory_t *table, const char *name);
void purr__directory_free(purr__directory_t *table);

/* Names from files, cut to fit into a message. Use within one expression: purr__shown(entry->name).text */
typedef struct purr__shown {
  char text[132];
} purr__shown_t;
purr__shown_t purr__shown(const char *name);
/* "[64, 128]", "[]" for a scalar. */
purr__shown_t purr__shown_shape(const int64_t *shape, int32_t num_dims);

#endif
