#include "package/keys.h"

#include "package/manifest.h"

static bool is_plain_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

bool purr__package_file_is_plain(const char *file) {
  if (file[0] == '\0' || file[0] == '.') return false;
  while (is_plain_char(*file)) file++;
  return *file == '\0';
}

bool purr__is_entry_name(const char *text) {
  while (is_plain_char(*text) || *text == '$') text++;
  return *text == '\0';
}

bool purr__is_printable(const char *text) {
  while (*text >= ' ' && *text <= '~') text++;
  return *text == '\0';
}

int purr__take_key(purr__json_t *json, const char *const *keys, int num_required, unsigned *seen) {
  purr__json_event_t event = purr__json_next(json);
  if (event != PURR__JSON_KEY) {
    for (int i = 0; event == PURR__JSON_OBJECT_END && i < num_required; i++)
      if ((*seen >> i & 1) == 0) {
        purr__json_fail(json, "the key \"%s\" is missing", keys[i]);
        break;
      }
    return -1;
  }
  for (int i = 0; keys[i] != NULL; i++) {
    if (!purr__json_is(json, keys[i])) continue;
    if (*seen >> i & 1) {
      purr__json_fail(json, "the key \"%s\" is repeated", keys[i]);
      return -1;
    }
    *seen |= 1u << i;
    return i;
  }
  char shown[64];
  purr__json_fail(json, "the key \"%s\" is unknown",
                  purr__printable(shown, sizeof shown, json->token, json->token_length));
  return -1;
}

bool purr__get_text(purr__json_t *json, const char *what, bool (*is_allowed)(const char *), char *out,
                    uint64_t capacity) {
  char shown[64];
  if (!json->escaped && json->token_length > 0 && json->token_length < capacity) {
    memcpy(out, json->token, json->token_length);
    out[json->token_length] = '\0';
    if (memchr(out, '\0', json->token_length) == NULL && is_allowed(out)) return true;
  }
  purr__json_fail(json, "%s is \"%s\"; allowed are 1 to %llu plain characters", what,
                  purr__printable(shown, sizeof shown, json->token, json->token_length),
                  (unsigned long long)capacity - 1);
  return false;
}

bool purr__take_text(purr__json_t *json, const char *what, bool (*is_allowed)(const char *), char *out,
                     uint64_t capacity) {
  return purr__json_take(json, PURR__JSON_STRING, what) && purr__get_text(json, what, is_allowed, out, capacity);
}

bool purr__take_int(purr__json_t *json, const char *what, int min, int max, int *out) {
  int64_t value = 0;
  if (!purr__json_take_integer(json, what, min, max, &value)) return false;
  *out = (int)value;
  return true;
}

bool purr__take_item(purr__json_t *json, const char *what, int idx, int count, purr__json_event_t *out_event) {
  *out_event = purr__json_next(json);
  if (*out_event == PURR__JSON_FAILED) return false;
  const bool is_end = *out_event == PURR__JSON_ARRAY_END;
  if (is_end == (idx == count)) return true;
  if (is_end)
    purr__json_fail(json, "%s has %d entries; it needs %d", what, idx, count);
  else
    purr__json_fail(json, "%s has more than %d entries", what, count);
  return false;
}

bool purr__take_ints(purr__json_t *json, const char *what, int count, int min, int max, int *out) {
  purr__json_event_t event;
  if (!purr__json_take(json, PURR__JSON_ARRAY_BEGIN, what)) return false;
  for (int i = 0; i < count; i++) {
    int64_t value;
    if (!purr__take_item(json, what, i, count, &event) || !purr__json_get_integer(json, event, what, min, max, &value))
      return false;
    out[i] = (int)value;
  }
  return purr__take_item(json, what, count, count, &event);
}

bool purr__take_bool(purr__json_t *json, const char *what, bool *out) {
  purr__json_event_t event = purr__json_next(json);
  if (event == PURR__JSON_FAILED) return false;
  if (event != PURR__JSON_TRUE && event != PURR__JSON_FALSE) {
    purr__json_fail(json, "%s is %s; allowed are true and false", what, purr__json_event_name(event));
    return false;
  }
  *out = event == PURR__JSON_TRUE;
  return true;
}

bool purr__take_digest(purr__json_t *json, unsigned char digest[PURR__SHA256_BYTES]) {
  if (!purr__json_take(json, PURR__JSON_STRING, "sha256")) return false;
  bool is_good = json->token_length == 2 * PURR__SHA256_BYTES;
  for (int i = 0; is_good && i < 2 * PURR__SHA256_BYTES; i++) {
    char c = json->token[i];
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    is_good = digit >= 0;
    digest[i / 2] = (unsigned char)(digest[i / 2] << 4 | (digit & 15));
  }
  if (!is_good) purr__json_fail(json, "sha256 is not 64 lower-case hexadecimal digits");
  return is_good;
}

bool purr__grow(purr_context_t *context, purr__json_t *json, void **array, int count, uint64_t element_bytes) {
  if (count > 0 && (count & (count - 1)) != 0) return true;
  uint64_t bytes = (count == 0 ? 1 : 2 * (uint64_t)count) * element_bytes;
  void *grown = purr__reallocate(context, *array, bytes);
  if (grown == NULL) {
    json->status = purr__fail_memory(json->err, json->name, bytes);
    return false;
  }
  *array = grown;
  return true;
}
