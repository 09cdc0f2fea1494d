/* The pull reader. What may come next is one small state; nesting is one bit a level. */
#include "base/json.h"

#include <stdio.h>

#include "base/number.h"

/* Values of purr__json_t.expected. */
enum {
  A_VALUE,      /* at the start, behind a key, behind a comma in an array */
  A_KEY,        /* behind a comma in an object */
  FIRST_OR_END, /* behind '{' or '[' */
  COMMA_OR_END, /* behind a value */
};

void purr__json_begin(purr__json_t *json, const char *text, uint64_t length, const char *name, purr_error_t *err) {
  *json = (purr__json_t){.name = name,
                         .err = err,
                         .failure = PURR_STATUS_CHECKPOINT,
                         .text = text,
                         .length = length,
                         .token = text,
                         .expected = A_VALUE};
}

static purr_status_t fail(purr__json_t *json, purr_status_t status, const char *format, va_list args) {
  if (json->status != PURR_STATUS_OK) return json->status;
  char sentence[400];
  vsnprintf(sentence, sizeof sentence, format, args);
  int line = 1, column = 1;
  for (uint64_t i = 0; i < json->token_position && i < json->length; i++) {
    column++;
    if (json->text[i] == '\n') {
      line++;
      column = 1;
    }
  }
  json->status = purr__fail_at(json->err, status, line, column, "%s:%d:%d: %s", json->name, line, column, sentence);
  return status;
}

purr_status_t purr__json_fail(purr__json_t *json, const char *format, ...) {
  va_list args;
  va_start(args, format);
  purr_status_t status = fail(json, json->failure, format, args);
  va_end(args);
  return status;
}

purr_status_t purr__json_fail_as(purr__json_t *json, purr_status_t status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  status = fail(json, status, format, args);
  va_end(args);
  return status;
}

const char *purr__json_event_name(purr__json_event_t event) {
  static const char *const names[] = {[PURR__JSON_FAILED] = "an error", [PURR__JSON_OBJECT_BEGIN] = "an object",
                                      [PURR__JSON_OBJECT_END] = "'}'",  [PURR__JSON_ARRAY_BEGIN] = "an array",
                                      [PURR__JSON_ARRAY_END] = "']'",   [PURR__JSON_KEY] = "a key",
                                      [PURR__JSON_STRING] = "a string", [PURR__JSON_NUMBER] = "a number",
                                      [PURR__JSON_TRUE] = "true",       [PURR__JSON_FALSE] = "false",
                                      [PURR__JSON_NULL] = "null",       [PURR__JSON_END] = "the end"};
  return names[event];
}

/* ---- characters ---- */

static bool at_end(const purr__json_t *json) { return json->position >= json->length; }

/* The character at the position; NUL, which is never allowed, at the end. */
static char peek(const purr__json_t *json) { return at_end(json) ? '\0' : json->text[json->position]; }

static char peek_past_space(purr__json_t *json) {
  for (;; json->position++) {
    char c = peek(json);
    if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return c;
  }
}

static bool refuse(purr__json_t *json, const char *allowed) {
  json->token_position = json->position;
  char found[16];
  if (at_end(json))
    purr__json_fail(json, "the text ends where %s must come", allowed);
  else
    purr__json_fail(json, "found '%s' where %s must come",
                    purr__printable(found, sizeof found, json->text + json->position, 1), allowed);
  return false;
}

static purr__json_event_t unexpected(purr__json_t *json, const char *allowed) {
  refuse(json, allowed);
  return PURR__JSON_FAILED;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* ---- strings ---- */

#define EACH_BYTE(x) ((x)*0x0101010101010101u)

/* Whether all of eight bytes are plain ASCII: no control character, quote, backslash or byte above 0x7F. */
static bool is_plain(const char *text) {
  uint64_t v;
  memcpy(&v, text, sizeof v);
  uint64_t quote = v ^ EACH_BYTE((uint64_t)'"'), backslash = v ^ EACH_BYTE((uint64_t)'\\');
  uint64_t special = (v - EACH_BYTE(0x20u)) | (quote - EACH_BYTE(1u)) | (backslash - EACH_BYTE(1u)) | v;
  return (special & EACH_BYTE(0x80u)) == 0;
}

/* Bytes of the well-formed UTF-8 character that begins at `text` (first byte above 0x7F), 0 if it is not one. */
static uint64_t utf8_bytes(const unsigned char *text, uint64_t length) {
  unsigned char lead = text[0];
  uint64_t bytes = lead >= 0xC2 && lead <= 0xDF ? 2 : lead >= 0xE0 && lead <= 0xEF ? 3 : 0;
  if (lead >= 0xF0 && lead <= 0xF4) bytes = 4;
  if (bytes == 0 || bytes > length) return 0;
  for (uint64_t i = 1; i < bytes; i++)
    if ((text[i] & 0xC0) != 0x80) return 0;
  bool overlong = (lead == 0xE0 && text[1] < 0xA0) || (lead == 0xF0 && text[1] < 0x90);
  bool surrogate = lead == 0xED && text[1] > 0x9F;
  bool too_large = lead == 0xF4 && text[1] > 0x8F;
  return overlong || surrogate || too_large ? 0 : bytes;
}

/* Four hexadecimal digits, or -1. */
static int hex4(const char *text, uint64_t length) {
  if (length < 4) return -1;
  int value = 0;
  for (int i = 0; i < 4; i++) {
    char c = text[i];
    int digit = is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

/* Reads the escape at text[0] = '\\'. Returns its length, 0 if it is none; `out_code` gets the code point. */
static uint64_t read_escape(const char *text, uint64_t length, uint32_t *out_code) {
  static const char letters[] = "\"\\/bfnrt", codes[] = "\"\\/\b\f\n\r\t";
  if (length < 2) return 0;
  if (text[1] != 'u') {
    const char *letter = text[1] != '\0' ? strchr(letters, text[1]) : NULL;
    if (letter == NULL) return 0;
    *out_code = (uint32_t)codes[letter - letters];
    return 2;
  }
  int high = hex4(text + 2, length - 2);
  if (high < 0 || (high >= 0xDC00 && high <= 0xDFFF)) return 0;
  *out_code = (uint32_t)high;
  if (high < 0xD800 || high > 0xDBFF) return 6;
  int low = length >= 12 && text[6] == '\\' && text[7] == 'u' ? hex4(text + 8, length - 8) : -1;
  if (low < 0xDC00 || low > 0xDFFF) return 0;
  *out_code = 0x10000u + ((uint32_t)(high - 0xD800) << 10) + (uint32_t)(low - 0xDC00);
  return 12;
}

/* Reads the string whose opening quote is at the position. */
static bool read_string(purr__json_t *json) {
  json->token_position = json->position++;
  json->token = json->text + json->position;
  json->escaped = false;
  uint64_t begin = json->position;
  for (;;) {
    while (json->length - json->position >= 8 && is_plain(json->text + json->position)) json->position += 8;
    if (at_end(json)) return refuse(json, "the closing quote of a string");
    unsigned char c = (unsigned char)json->text[json->position];
    uint64_t bytes = 1, left = json->length - json->position;
    if (c == '"') break;
    if (c == '\\') {
      uint32_t code;
      bytes = read_escape(json->text + json->position, left, &code);
      if (bytes == 0) return refuse(json, "a JSON escape (and a surrogate only in a pair)");
      json->escaped = true;
    } else if (c < 0x20) {
      return refuse(json, "a character that needs no escape");
    } else if (c >= 0x80) {
      bytes = utf8_bytes((const unsigned char *)json->text + json->position, left);
      if (bytes == 0) return refuse(json, "valid UTF-8");
    }
    json->position += bytes;
  }
  json->token_length = json->position++ - begin;
  return true;
}

static uint64_t write_utf8(char *out, uint32_t code) {
  if (code < 0x80) {
    out[0] = (char)code;
    return 1;
  }
  uint64_t bytes = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  static const unsigned lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  for (uint64_t i = bytes - 1; i > 0; i--, code >>= 6) out[i] = (char)(0x80 | (code & 0x3F));
  out[0] = (char)(lead[bytes] | code);
  return bytes;
}

uint64_t purr__json_decode(const purr__json_t *json, char *out) {
  uint64_t written = 0;
  for (uint64_t i = 0; i < json->token_length;) {
    if (json->token[i] != '\\') {
      out[written++] = json->token[i++];
      continue;
    }
    uint32_t code = 0;
    i += read_escape(json->token + i, json->token_length - i, &code);
    written += write_utf8(out + written, code);
  }
  return written;
}

bool purr__json_is(const purr__json_t *json, const char *text) {
  uint64_t length = strlen(text);
  if (!json->escaped) return json->token_length == length && memcmp(json->token, text, length) == 0;
  char decoded[256]; /* an escape is at most six times as long as what it stands for */
  if (json->token_length > sizeof decoded || json->token_length > 6 * length) return false;
  return purr__json_decode(json, decoded) == length && memcmp(decoded, text, length) == 0;
}

/* ---- other values ---- */

static bool read_digits(purr__json_t *json) {
  if (!is_digit(peek(json))) return refuse(json, "a digit");
  while (is_digit(peek(json))) json->position++;
  return true;
}

static bool read_number(purr__json_t *json) {
  json->token_position = json->position;
  json->token = json->text + json->position;
  json->escaped = false;
  uint64_t begin = json->position;
  if (peek(json) == '-') json->position++;
  if (peek(json) == '0') {
    json->position++;
    if (is_digit(peek(json))) return refuse(json, "no digit behind a leading 0");
  } else if (!read_digits(json)) {
    return false;
  }
  if (peek(json) == '.') {
    json->position++;
    if (!read_digits(json)) return false;
  }
  if (peek(json) == 'e' || peek(json) == 'E') {
    json->position++;
    if (peek(json) == '+' || peek(json) == '-') json->position++;
    if (!read_digits(json)) return false;
  }
  json->token_length = json->position - begin;
  return true;
}

static bool read_word(purr__json_t *json, const char *word) {
  uint64_t length = strlen(word);
  json->token_position = json->position;
  if (json->length - json->position < length || memcmp(json->text + json->position, word, length) != 0)
    return refuse(json, "a value");
  json->position += length;
  return true;
}

static purr__json_event_t open_container(purr__json_t *json, bool is_object) {
  json->token_position = json->position;
  if (json->depth == PURR__JSON_MAX_DEPTH) {
    purr__json_fail(json, "this is nested deeper than the %d levels allowed", PURR__JSON_MAX_DEPTH);
    return PURR__JSON_FAILED;
  }
  uint64_t bit = (uint64_t)1 << json->depth++;
  json->objects = is_object ? json->objects | bit : json->objects & ~bit;
  json->position++;
  json->expected = FIRST_OR_END;
  return is_object ? PURR__JSON_OBJECT_BEGIN : PURR__JSON_ARRAY_BEGIN;
}

static purr__json_event_t read_value(purr__json_t *json, char c) {
  json->expected = COMMA_OR_END;
  switch (c) {
    case '{':
      return open_container(json, true);
    case '[':
      return open_container(json, false);
    case '"':
      return read_string(json) ? PURR__JSON_STRING : PURR__JSON_FAILED;
    case 't':
      return read_word(json, "true") ? PURR__JSON_TRUE : PURR__JSON_FAILED;
    case 'f':
      return read_word(json, "false") ? PURR__JSON_FALSE : PURR__JSON_FAILED;
    case 'n':
      return read_word(json, "null") ? PURR__JSON_NULL : PURR__JSON_FAILED;
    default:
      if (c != '-' && !is_digit(c)) return unexpected(json, "a value");
      return read_number(json) ? PURR__JSON_NUMBER : PURR__JSON_FAILED;
  }
}

static purr__json_event_t read_key(purr__json_t *json, char c) {
  if (c != '"') return unexpected(json, json->expected == A_KEY ? "a key in quotes" : "a key in quotes or '}'");
  if (!read_string(json)) return PURR__JSON_FAILED;
  if (peek_past_space(json) != ':') return unexpected(json, "':'");
  json->position++;
  json->expected = A_VALUE;
  return PURR__JSON_KEY;
}

purr__json_event_t purr__json_next(purr__json_t *json) {
  if (json->status != PURR_STATUS_OK) return PURR__JSON_FAILED;
  char c = peek_past_space(json);
  bool in_object = json->depth > 0 && (json->objects >> (json->depth - 1) & 1) != 0;
  if (json->expected == COMMA_OR_END) {
    if (json->depth == 0) return at_end(json) ? PURR__JSON_END : unexpected(json, "the end of the text");
    if (c == ',') {
      json->position++;
      c = peek_past_space(json);
      json->expected = in_object ? A_KEY : A_VALUE;
    } else if (c != (in_object ? '}' : ']')) {
      return unexpected(json, in_object ? "',' or '}'" : "',' or ']'");
    }
  }
  bool may_end = json->expected == COMMA_OR_END || json->expected == FIRST_OR_END;
  if (may_end && c == (in_object ? '}' : ']')) {
    json->token_position = json->position++;
    json->depth--;
    json->expected = COMMA_OR_END;
    return in_object ? PURR__JSON_OBJECT_END : PURR__JSON_ARRAY_END;
  }
  return in_object && json->expected != A_VALUE ? read_key(json, c) : read_value(json, c);
}

/* ---- whole values ---- */

void purr__json_skip_rest(purr__json_t *json, purr__json_event_t event) {
  if (event != PURR__JSON_OBJECT_BEGIN && event != PURR__JSON_ARRAY_BEGIN) return;
  int outside = json->depth - 1;
  while (json->depth > outside && event != PURR__JSON_FAILED) event = purr__json_next(json);
}

void purr__json_skip(purr__json_t *json) { purr__json_skip_rest(json, purr__json_next(json)); }

bool purr__json_take(purr__json_t *json, purr__json_event_t event, const char *what) {
  purr__json_event_t found = purr__json_next(json);
  if (found == event) return true;
  if (found != PURR__JSON_FAILED)
    purr__json_fail(json, "%s is %s; allowed is %s", what, purr__json_event_name(found), purr__json_event_name(event));
  return false;
}

bool purr__json_get_integer(purr__json_t *json, purr__json_event_t event, const char *what, int64_t min, int64_t max,
                            int64_t *out_value) {
  if (event == PURR__JSON_FAILED) return false;
  char shown[40];
  if (event == PURR__JSON_NUMBER &&
      purr__number_parse_integer(json->token, json->token_length, out_value) == PURR__NUMBER_GOOD &&
      *out_value >= min && *out_value <= max)
    return true;
  const char *got = event == PURR__JSON_NUMBER ? purr__printable(shown, sizeof shown, json->token, json->token_length)
                                               : purr__json_event_name(event);
  purr__json_fail(json, "%s is %s; allowed are whole numbers from %lld to %lld", what, got, (long long)min,
                  (long long)max);
  return false;
}

bool purr__json_take_integer(purr__json_t *json, const char *what, int64_t min, int64_t max, int64_t *out_value) {
  return purr__json_get_integer(json, purr__json_next(json), what, min, max, out_value);
}
