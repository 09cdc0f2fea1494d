/* How the files of a package take keys and values from JSON, strictly: a repeated or unknown key, a missing one, a
 * value of another type or out of range stops the reader with a sentence. */
#ifndef PURR_PACKAGE_KEYS_H
#define PURR_PACKAGE_KEYS_H

#include "base/json.h"
#include "package/sha256.h"

/* Takes a key out of `keys` (NULL-terminated), each at most once; its index, -1 at the object's end or on failure. The
 * first `num_required` must be there. `seen` has a bit for each key and starts as 0. */
int purr__take_key(purr__json_t *json, const char *const *keys, int num_required, unsigned *seen);
/* 1 to capacity - 1 characters that `is_allowed` accepts. */
bool purr__take_text(purr__json_t *json, const char *what, bool (*is_allowed)(const char *), char *out,
                     uint64_t capacity);
/* The same of a string whose event was taken already. */
bool purr__get_text(purr__json_t *json, const char *what, bool (*is_allowed)(const char *), char *out,
                    uint64_t capacity);
bool purr__take_int(purr__json_t *json, const char *what, int min, int max, int *out);
/* Entry `idx` of an array of `count`, or its end where idx is count; a sentence about the length otherwise. */
bool purr__take_item(purr__json_t *json, const char *what, int idx, int count, purr__json_event_t *out_event);
bool purr__take_ints(purr__json_t *json, const char *what, int count, int min, int max, int *out);
bool purr__take_bool(purr__json_t *json, const char *what, bool *out);
bool purr__take_digest(purr__json_t *json, unsigned char digest[PURR__SHA256_BYTES]);

/* Letters, digits, '.', '_', '-' and '$'; the printable characters of ASCII. */
bool purr__is_entry_name(const char *text);
bool purr__is_printable(const char *text);

/* Room for one more element in an array that doubles; OUT_OF_HOST_MEMORY also stops the reader. */
bool purr__grow(purr_context_t *context, purr__json_t *json, void **array, int count, uint64_t element_bytes);

#endif
