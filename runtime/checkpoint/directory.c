#include "checkpoint/directory.h"

#include <stdio.h>

#define BLOCK_BYTES (256u << 10)

typedef struct purr__block {
  struct purr__block *next;
  uint64_t used, capacity; /* of the bytes behind this struct */
} block_t;

static void *block_allocate(purr__directory_t *table, uint64_t bytes) {
  bytes = (bytes + 7) & ~(uint64_t)7;
  block_t *block = table->blocks;
  if (block == NULL || block->capacity - block->used < bytes) {
    block = purr__allocate(table->context, BLOCK_BYTES);
    if (block == NULL) return NULL;
    *block = (block_t){.next = table->blocks, .capacity = BLOCK_BYTES - sizeof *block};
    table->blocks = block;
  }
  void *memory = (char *)(block + 1) + block->used;
  block->used += bytes;
  return memory;
}

void purr__directory_free(purr__directory_t *table) {
  for (int64_t i = 0; i < table->num_entries; i++) purr__release(table->context, table->entries[i]->aligned);
  for (block_t *block = table->blocks; block != NULL;) {
    block_t *next = block->next;
    purr__release(table->context, block);
    block = next;
  }
  purr__release(table->context, table->entries);
}

static purr_status_t check_name(const char *file, const char *name, uint64_t length, purr_error_t *err) {
  char shown[4 * PURR__MAX_TENSOR_NAME + 4];
  if (length == 0 || length > PURR__MAX_TENSOR_NAME)
    return purr__fail(err, PURR_STATUS_CHECKPOINT, "%s: a tensor name has %llu bytes; allowed are 1 to %d", file,
                      (unsigned long long)length, PURR__MAX_TENSOR_NAME);
  uint64_t plain = 0;
  while (plain < length && name[plain] >= ' ' && name[plain] <= '~') plain++;
  if (plain < length && strlen(purr__printable(shown, sizeof shown, name, length)) != length) {
    purr__printable(shown, 128, name, length);
    return purr__fail(err, PURR_STATUS_CHECKPOINT, "%s: the tensor name '%s' has control characters", file, shown);
  }
  return PURR_STATUS_OK;
}

purr_status_t purr__directory_add(purr__directory_t *table, const char *file, const char *name, uint64_t name_length,
                                  purr__entry_t **out_entry, purr_error_t *err) {
  purr_status_t status = check_name(file, name, name_length, err);
  if (status != PURR_STATUS_OK) return status;
  if (table->num_entries == PURR__MAX_TENSORS)
    return purr__fail(err, PURR_STATUS_CHECKPOINT, "%s: the checkpoint has more than %d tensors, the most allowed",
                      file, PURR__MAX_TENSORS);
  if (table->num_entries == table->capacity) {
    int64_t capacity = table->capacity > 0 ? 2 * table->capacity : 64;
    uint64_t bytes = (uint64_t)capacity * sizeof(purr__entry_t *);
    purr__entry_t **entries = purr__reallocate(table->context, table->entries, bytes);
    if (entries == NULL) return purr__fail_memory(err, "the list of tensors", bytes);
    table->entries = entries;
    table->capacity = capacity;
  }
  purr__entry_t *entry = block_allocate(table, sizeof *entry + name_length + 1);
  if (entry == NULL) return purr__fail_memory(err, "the list of tensors", BLOCK_BYTES);
  memset(entry, 0, sizeof *entry);
  memcpy(entry->name, name, name_length);
  entry->name[name_length] = '\0';
  entry->name_length = (int32_t)name_length;
  table->entries[table->num_entries++] = entry;
  *out_entry = entry;
  return PURR_STATUS_OK;
}

/* ---- order ---- */

static int compare_names(const char *a, uint64_t a_length, const char *b, uint64_t b_length) {
  int order = memcmp(a, b, a_length < b_length ? a_length : b_length);
  return order != 0 ? order : (a_length > b_length) - (a_length < b_length);
}

bool purr__entry_before_by_name(const purr__entry_t *a, const purr__entry_t *b) {
  return compare_names(a->name, (uint64_t)a->name_length, b->name, (uint64_t)b->name_length) < 0;
}

/* Merge sort from the bottom up. Not qsort: its worst case and its memory are the C library's choice, and a hostile
 * file chooses the input. */
purr_status_t purr__directory_sort(purr__directory_t *table, int64_t first, purr__entry_before_fn before,
                                   purr_error_t *err) {
  int64_t num = table->num_entries - first;
  if (num < 2) return PURR_STATUS_OK;
  purr__entry_t **entries = table->entries + first;
  uint64_t bytes = (uint64_t)num * sizeof *entries;
  purr__entry_t **scratch = purr__allocate(table->context, bytes);
  if (scratch == NULL) return purr__fail_memory(err, "sorting the tensors", bytes);
  for (int64_t width = 1; width < num; width *= 2)
    for (int64_t begin = 0; begin + width < num; begin += 2 * width) {
      int64_t middle = begin + width, end = purr__min(begin + 2 * width, num);
      if (!before(entries[middle], entries[middle - 1])) continue;
      memcpy(scratch, entries + begin, (uint64_t)width * sizeof *entries);
      int64_t left = 0, right = middle, out = begin;
      while (left < width && right < end)
        entries[out++] = before(entries[right], scratch[left]) ? entries[right++] : scratch[left++];
      while (left < width) entries[out++] = scratch[left++];
    }
  purr__release(table->context, scratch);
  return PURR_STATUS_OK;
}

/* The first entry whose name is not before `name`. */
static int64_t lower_bound(const purr__directory_t *table, const char *name, uint64_t length) {
  int64_t low = 0, high = table->num_entries;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    const purr__entry_t *entry = table->entries[middle];
    if (compare_names(entry->name, (uint64_t)entry->name_length, name, length) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

purr__entry_t *purr__directory_find(const purr__directory_t *table, const char *name, uint64_t name_length) {
  int64_t place = lower_bound(table, name, name_length);
  if (place == table->num_entries) return NULL;
  purr__entry_t *entry = table->entries[place];
  return compare_names(entry->name, (uint64_t)entry->name_length, name, name_length) == 0 ? entry : NULL;
}

/* Whether two names differ in a number alone, where `front` and `back` characters agree: another expert's tensor. */
static bool is_sibling(const char *a, int64_t a_length, const char *b, int64_t b_length, int64_t front, int64_t back) {
  for (int64_t i = front; i < a_length - back; i++)
    if (a[i] < '0' || a[i] > '9') return false;
  for (int64_t i = front; i < b_length - back; i++)
    if (b[i] < '0' || b[i] > '9') return false;
  return true;
}

/* A typing error or another spelling changes one place inside a name: what remains in front and behind is the measure.
 * The same tensor of another expert is no help, unless nothing else comes near. Names alike in front stand close
 * together, so looking at the neighbours is enough. */
const purr__entry_t *purr__directory_nearest(const purr__directory_t *table, const char *name) {
  enum { NEIGHBOURS = 256, SIBLING_PENALTY = 8 };
  const purr__entry_t *nearest = NULL;
  int64_t length = (int64_t)strlen(name), best = INT64_MIN;
  int64_t place = lower_bound(table, name, (uint64_t)length);
  int64_t end = purr__min(place + NEIGHBOURS, table->num_entries);
  for (int64_t i = purr__max(place - NEIGHBOURS, 0); i < end; i++) {
    const purr__entry_t *entry = table->entries[i];
    int64_t shorter = purr__min(length, entry->name_length), front = 0, back = 0;
    while (front < shorter && name[front] == entry->name[front]) front++;
    while (front + back < shorter && name[length - 1 - back] == entry->name[entry->name_length - 1 - back]) back++;
    int64_t score = 2 * (front + back) - purr__max(length, entry->name_length);
    if (is_sibling(name, length, entry->name, entry->name_length, front, back)) score -= SIBLING_PENALTY;
    if (score > best) {
      nearest = entry;
      best = score;
    }
  }
  return nearest;
}

/* ---- messages ---- */

purr__shown_t purr__shown(const char *name) {
  purr__shown_t shown;
  purr__printable(shown.text, sizeof shown.text, name, strlen(name));
  return shown;
}

purr__shown_t purr__shown_shape(const int64_t *shape, int32_t num_dims) {
  purr__shown_t shown = {"["};
  int used = 1;
  for (int i = 0; i < num_dims && i < 4; i++)
    used +=
        snprintf(shown.text + used, sizeof shown.text - (size_t)used, i > 0 ? ", %lld" : "%lld", (long long)shape[i]);
  snprintf(shown.text + used, sizeof shown.text - (size_t)used, num_dims > 4 ? ", ...]" : "]");
  return shown;
}
