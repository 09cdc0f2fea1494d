/* Any bytes as JSON (config.json, the index of a sharded checkpoint, manifests): the events end, keep their order, and
 * their tokens lie inside the text. */
#include "base/json.h"
#include "fuzz.h"

/* Reads everything, event by event; returns how many there were, -1 where the text is refused. */
static int64_t read_all(const char *text, size_t num_bytes, purr_error_t *err) {
  purr__json_t json;
  purr__json_begin(&json, text, num_bytes, "fuzz", err);
  int depth = 0;
  for (int64_t num_events = 0;; num_events++) {
    FUZZ_CHECK(num_events <= (int64_t)num_bytes + 1); /* each takes a byte at least */
    const purr__json_event_t event = purr__json_next(&json);
    depth += event == PURR__JSON_OBJECT_BEGIN || event == PURR__JSON_ARRAY_BEGIN;
    depth -= event == PURR__JSON_OBJECT_END || event == PURR__JSON_ARRAY_END;
    FUZZ_CHECK(depth >= 0 && depth <= PURR__JSON_MAX_DEPTH);
    if (event == PURR__JSON_FAILED) {
      FUZZ_CHECK(purr__json_next(&json) == PURR__JSON_FAILED && json.status == PURR_STATUS_CHECKPOINT);
      return -1;
    }
    if (event == PURR__JSON_END) {
      FUZZ_CHECK(depth == 0 && json.status == PURR_STATUS_OK);
      return num_events;
    }
    if (event != PURR__JSON_KEY && event != PURR__JSON_STRING) continue;
    FUZZ_CHECK(json.token >= text && json.token_length <= num_bytes - (size_t)(json.token - text));
    char *decoded = fuzz_allocate(json.token_length);
    const uint64_t length = purr__json_decode(&json, decoded);
    FUZZ_CHECK(length <= json.token_length && (json.escaped || memcmp(decoded, json.token, length) == 0));
    free(decoded);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  purr_error_t err = PURR_ERROR_INIT;
  const int64_t num_events = read_all((const char *)data, num_bytes, &err);
  if (num_events < 0) fuzz_check_error(PURR_STATUS_CHECKPOINT, &err);
  /* Passing over the whole agrees with reading it. */
  purr__json_t json;
  purr__json_begin(&json, (const char *)data, num_bytes, "fuzz", &err);
  purr__json_skip(&json);
  FUZZ_CHECK((purr__json_next(&json) == PURR__JSON_END) == (num_events >= 0));
  return 0;
}
