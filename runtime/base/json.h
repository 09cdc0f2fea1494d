/* A strict pull reader for JSON (RFC 8259) over text in memory: it hands out one event after the other and builds
 * nothing.
 *
 * Why our own: the JSON libraries at hand build a tree first, which for a hostile file of a few MiB costs hundreds of
 * MiB before the first check of ours runs. This reader allocates nothing at all, so that the limits on what a file may
 * cost are set by the code that uses it.
 *
 * Refused: anything after the value, more than 64 levels, bad UTF-8, raw control characters, unknown escapes, lone
 * surrogates, leading zeros, trailing commas, comments, NaN. Repeated keys are for the caller to refuse: only he knows
 * which ones matter and how to tell without memory.
 *
 * The first error is written to `err` and stays: every later call returns FAILED, so a loop needs no checks of its own.
 */
#ifndef PURR_JSON_H
#define PURR_JSON_H

#include "base/base.h"

#define PURR__JSON_MAX_DEPTH 64

typedef enum purr__json_event {
  PURR__JSON_FAILED,
  PURR__JSON_OBJECT_BEGIN,
  PURR__JSON_OBJECT_END,
  PURR__JSON_ARRAY_BEGIN,
  PURR__JSON_ARRAY_END,
  PURR__JSON_KEY,
  PURR__JSON_STRING,
  PURR__JSON_NUMBER,
  PURR__JSON_TRUE,
  PURR__JSON_FALSE,
  PURR__JSON_NULL,
  PURR__JSON_END, /* the text is over, and was one whole value */
} purr__json_event_t;

/* Set by begin; the token fields are for reading after each event. */
typedef struct purr__json {
  const char *name; /* of the file, for messages */
  purr_error_t *err;
  purr_status_t status;  /* OK until something is wrong */
  purr_status_t failure; /* what it becomes then: CHECKPOINT, unless set to another after begin */

  /* The content of a KEY or STRING as it stands between its quotes, or the digits of a NUMBER. Points into the text. */
  const char *token;
  uint64_t token_length;
  bool escaped; /* it holds backslashes: use decode */

  const char *text;
  uint64_t length, position, token_position;
  uint64_t objects; /* one bit a level: set = object, clear = array */
  int depth;
  int expected;
} purr__json_t;

void purr__json_begin(purr__json_t *json, const char *text, uint64_t length, const char *name, purr_error_t *err);
purr__json_event_t purr__json_next(purr__json_t *json);
/* Passes over the value that comes next, however deep. */
void purr__json_skip(purr__json_t *json);
/* Goes on behind the value whose first event was `event`. */
void purr__json_skip_rest(purr__json_t *json, purr__json_event_t event);

/* Records "NAME:line:column: ..." about the current token and stops the reader. Returns `failure`. */
purr_status_t purr__json_fail(purr__json_t *json, const char *format, ...) PURR__PRINTF(2, 3);
/* The same with another status. */
purr_status_t purr__json_fail_as(purr__json_t *json, purr_status_t status, const char *format, ...) PURR__PRINTF(3, 4);

/* The next event must be `event`; `what` says in the message whose value it is. */
bool purr__json_take(purr__json_t *json, purr__json_event_t event, const char *what);
/* The value that began with `event` must be a plain integer in [min, max]. */
bool purr__json_get_integer(purr__json_t *json, purr__json_event_t event, const char *what, int64_t min, int64_t max,
                            int64_t *out_value);
/* The next value must be. */
bool purr__json_take_integer(purr__json_t *json, const char *what, int64_t min, int64_t max, int64_t *out_value);

/* Whether the current KEY or STRING is `text`, however it is escaped. */
bool purr__json_is(const purr__json_t *json, const char *text);
/* Writes the current KEY or STRING as UTF-8, without a NUL, to `out`, which holds at least token_length bytes; returns
 * how many it wrote. The text may hold U+0000. */
uint64_t purr__json_decode(const purr__json_t *json, char *out);
/* "a string", "an object" and so on. */
const char *purr__json_event_name(purr__json_event_t event);

#endif
