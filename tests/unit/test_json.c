/* The JSON reader: the events it hands out, and what it refuses. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "support/main.h"

/* One letter an event: { } [ ] k(ey) s(tring) n(umber) t f 0 (null) $ (end) ! (failed). */
static const char letters[] = "!{}[]ksntf0$";

static purr_status_t events_of(const char *text, uint64_t length, char *out, size_t capacity, purr_error_t *err) {
  purr__json_t json;
  purr__json_begin(&json, text, length, "test", err);
  size_t used = 0;
  for (purr__json_event_t event = PURR__JSON_KEY; event != PURR__JSON_END && event != PURR__JSON_FAILED;) {
    event = purr__json_next(&json);
    if (used + 1 < capacity) out[used++] = letters[event];
  }
  out[used] = '\0';
  return json.status;
}

static void hands_out_events(void) {
  static const struct {
    const char *text, *events;
  } cases[] = {
      {"{}", "{}$"},
      {" [ ] \n", "[]$"},
      {"null", "0$"},
      {"-0.5e+10", "n$"},
      {"0", "n$"},
      {"\"\"", "s$"},
      {"[1,\"a\",true,false,null,{},[]]", "[nstf0{}[]]$"},
      {"{\"a\":{\"b\":[{\"c\":1}]},\"d\":2}", "{k{k[{kn}]}kn}$"},
      {"\t{ \"a\" : 1 ,\r\n \"b\" : [ 2 , 3 ] }", "{knk[nn]}$"},
      {"[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\uD83D\\uDE00\"]", "[s]$"},
      {"[\"\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80 0123456789 0123456789\"]", "[s]$"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char events[64];
    purr_error_t err;
    ASSERT_OK(events_of(cases[i].text, strlen(cases[i].text), events, sizeof events, &err));
    CU_ASSERT_STRING_EQUAL(events, cases[i].events);
  }
}

static void refuses_what_is_not_json(void) {
  static const struct {
    const char *text;
    int line, column;
  } cases[] = {
      {"", 1, 1},
      {" ", 1, 2},
      {"{", 1, 2},
      {"[", 1, 2},
      {"[1", 1, 3},
      {"[1,", 1, 4},
      {"[1,]", 1, 4},
      {"[,1]", 1, 2},
      {"[1 2]", 1, 4},
      {"{\"a\":1,}", 1, 8},
      {"{\"a\"}", 1, 5},
      {"{\"a\":}", 1, 6},
      {"{a:1}", 1, 2},
      {"{1:1}", 1, 2},
      {"{\"a\":1 \"b\":2}", 1, 8},
      {"[1}", 1, 3},
      {"{\"a\":1]", 1, 7},
      {"[]]", 1, 3},
      {"{} {}", 1, 4},
      {"nul", 1, 1},
      {"tru e", 1, 1},
      {"True", 1, 1},
      {"NaN", 1, 1},
      {"Infinity", 1, 1},
      {"+1", 1, 1},
      {"01", 1, 2},
      {"-", 1, 2},
      {"1.", 1, 3},
      {".5", 1, 1},
      {"1e", 1, 3},
      {"1e+", 1, 4},
      {"0x10", 1, 2},
      {"\"a", 1, 3},
      {"'a'", 1, 1},
      {"\"\t\"", 1, 2},
      {"\"\n\"", 1, 2},
      {"\"\\x\"", 1, 2},
      {"\"\\u12\"", 1, 2},
      {"\"\\u12G4\"", 1, 2},
      {"\"\\uD800\"", 1, 2},
      {"\"\\uDC00\"", 1, 2},
      {"\"\\uD800\\u0041\"", 1, 2},
      {"\"\\", 1, 2},
      {"[\n\n  @", 3, 3},
      {"// a\n1", 1, 1},
      {"\xEF\xBB\xBF{}", 1, 1},
      /* bad UTF-8: a lone continuation, overlong, a surrogate, beyond U+10FFFF, cut short, old five-byte form */
      {"\"\x80\"", 1, 2},
      {"\"\xC0\xAF\"", 1, 2},
      {"\"\xC1\xBF\"", 1, 2},
      {"\"\xE0\x80\xAF\"", 1, 2},
      {"\"\xF0\x80\x80\xAF\"", 1, 2},
      {"\"\xED\xA0\x80\"", 1, 2},
      {"\"\xF4\x90\x80\x80\"", 1, 2},
      {"\"\xE2\x82\"", 1, 2},
      {"\"\xF8\x88\x80\x80\x80\"", 1, 2},
      {"\"\xFF\"", 1, 2},
      {"\"\xE2\x82", 1, 2},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char events[64];
    purr_error_t err;
    ASSERT_STATUS(PURR_STATUS_CHECKPOINT, events_of(cases[i].text, strlen(cases[i].text), events, sizeof events, &err));
    if (err.line != cases[i].line || err.column != cases[i].column) fprintf(stderr, "case %zu: %s\n", i, err.message);
    CU_ASSERT_EQUAL(err.line, cases[i].line);
    CU_ASSERT_EQUAL(err.column, cases[i].column);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "test:"));
  }
  /* A NUL inside and at the end is no space. */
  char events[16];
  purr_error_t err;
  ASSERT_STATUS(PURR_STATUS_CHECKPOINT, events_of("[1,\0 2]", 7, events, sizeof events, &err));
  ASSERT_STATUS(PURR_STATUS_CHECKPOINT, events_of("[1]\0", 4, events, sizeof events, &err));
  ASSERT_STATUS(PURR_STATUS_CHECKPOINT, events_of("\"a\0b\"", 5, events, sizeof events, &err));
}

/* Every cut of a good text is refused: nothing is read beyond the length. (The address sanitizer sees a read too far.)
 */
static void refuses_every_cut(void) {
  static const char whole[] =
      "{\"a\\u00e9\":[1.5e-3,true,{\"b\":null}],\"\xE2\x82\xAC\":\"\\uD83D\\uDE00 0123456789\"}";
  for (size_t length = 0; length < sizeof whole - 1; length++) {
    char *copy = malloc(length + 1), events[64];
    memcpy(copy, whole, length);
    char *exact = realloc(copy, length > 0 ? length : 1);
    purr_error_t err = PURR_ERROR_INIT;
    CU_ASSERT_EQUAL(events_of(exact, length, events, sizeof events, &err), PURR_STATUS_CHECKPOINT);
    free(exact);
  }
}

static void limits_depth(void) {
  char text[2 * PURR__JSON_MAX_DEPTH + 4] = "", events[2 * PURR__JSON_MAX_DEPTH + 8];
  memset(text, '[', PURR__JSON_MAX_DEPTH);
  memset(text + PURR__JSON_MAX_DEPTH, ']', PURR__JSON_MAX_DEPTH);
  purr_error_t err;
  ASSERT_OK(events_of(text, strlen(text), events, sizeof events, &err));
  memset(text, '[', PURR__JSON_MAX_DEPTH + 1);
  ASSERT_STATUS(PURR_STATUS_CHECKPOINT, events_of(text, strlen(text), events, sizeof events, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "64 levels"));
}

static void decodes_strings(void) {
  static const struct {
    const char *text, *content;
  } cases[] = {
      {"\"plain\"", "plain"},
      {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t"},
      {"\"\\u0041\\u00e9\\u20AC\\uD83D\\uDE00\"", "A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"},
      {"\"num\\u005fexperts\"", "num_experts"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char out[64];
    purr__json_t json;
    purr__json_begin(&json, cases[i].text, strlen(cases[i].text), "test", NULL);
    CU_ASSERT_EQUAL(purr__json_next(&json), PURR__JSON_STRING);
    uint64_t length = purr__json_decode(&json, out);
    CU_ASSERT_EQUAL(length, strlen(cases[i].content));
    CU_ASSERT(length <= json.token_length);
    CU_ASSERT(memcmp(out, cases[i].content, length) == 0);
    CU_ASSERT_TRUE(purr__json_is(&json, cases[i].content));
    CU_ASSERT_FALSE(purr__json_is(&json, "num_expert"));
    CU_ASSERT_FALSE(purr__json_is(&json, ""));
  }
}

static void reads_integers(void) {
  static const struct {
    const char *text;
    bool good;
    int64_t value;
  } cases[] = {
      {"7", true, 7},
      {"0", true, 0},
      {"-3", true, -3},
      {"100", true, 100},
      {"101", false, 0},
      {"-4", false, 0},
      {"7.0", false, 0},
      {"1e1", false, 0},
      {"\"7\"", false, 0},
      {"null", false, 0},
      {"true", false, 0},
      {"[7]", false, 0},
      {"9223372036854775808", false, 0},
      {"-9223372036854775809", false, 0},
      {"18446744073709551623", false, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    purr__json_t json;
    purr_error_t err = PURR_ERROR_INIT;
    int64_t value = 0;
    purr__json_begin(&json, cases[i].text, strlen(cases[i].text), "test", &err);
    CU_ASSERT_EQUAL(purr__json_take_integer(&json, "size", -3, 100, &value), cases[i].good);
    if (cases[i].good) CU_ASSERT_EQUAL(value, cases[i].value);
    if (!cases[i].good) CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "allowed are whole numbers from -3 to 100"));
  }
}

static void skips_values_and_keeps_errors(void) {
  static const char text[] = "{\"a\":[{\"b\":[1,{}]},2],\"c\":3,\"d\":4 5}";
  purr__json_t json;
  purr_error_t err = PURR_ERROR_INIT;
  purr__json_begin(&json, text, sizeof text - 1, "test", &err);
  int64_t value = 0;
  CU_ASSERT_TRUE(purr__json_take(&json, PURR__JSON_OBJECT_BEGIN, "it"));
  CU_ASSERT_EQUAL(purr__json_next(&json), PURR__JSON_KEY);
  purr__json_skip(&json);
  CU_ASSERT_EQUAL(purr__json_next(&json), PURR__JSON_KEY);
  CU_ASSERT_TRUE(purr__json_is(&json, "c"));
  CU_ASSERT_TRUE(purr__json_take_integer(&json, "c", 0, 9, &value));
  CU_ASSERT_EQUAL(value, 3);
  CU_ASSERT_EQUAL(purr__json_next(&json), PURR__JSON_KEY);
  purr__json_skip(&json);
  for (int i = 0; i < 3; i++) CU_ASSERT_EQUAL(purr__json_next(&json), PURR__JSON_FAILED);
  char first[sizeof err.message];
  memcpy(first, err.message, sizeof first);
  CU_ASSERT_EQUAL(purr__json_fail(&json, "another"), PURR_STATUS_CHECKPOINT);
  CU_ASSERT_STRING_EQUAL(err.message, first);
}

int main(void) {
  return purr_test_main("json", (purr_test_t[]){{"hands out events", hands_out_events},
                                                {"refuses what is not JSON", refuses_what_is_not_json},
                                                {"refuses every cut", refuses_every_cut},
                                                {"limits depth", limits_depth},
                                                {"decodes strings", decodes_strings},
                                                {"reads integers", reads_integers},
                                                {"skips values and keeps errors", skips_values_and_keeps_errors},
                                                {0}});
}
