/* Reads YAML through libyaml's events. The only file that knows libyaml. */
#include "config/yaml.h"

#include <stdio.h>
#include <yaml.h>

typedef struct reader {
  yaml_parser_t parser;
  const char *text; /* without the byte order mark */
  uint64_t num_bytes;
  const char *source;
  purr__yaml_visit_fn visit;
  void *user;
} reader_t;

/* ---- errors ---- */

purr_status_t purr__yaml_fail(purr_error_t *err, const char *source, int line, int column, const char *format, ...) {
  char sentence[sizeof err->message];
  va_list args;
  va_start(args, format);
  vsnprintf(sentence, sizeof sentence, format, args);
  va_end(args);
  return purr__fail_at(err, PURR_STATUS_CONFIG, line, column, "%s:%d:%d: %s", source, line, column, sentence);
}

static int line_of(yaml_mark_t mark) { return (int)mark.line + 1; }
static int column_of(yaml_mark_t mark) { return (int)mark.column + 1; }

#define FAIL_AT_MARK(reader, mark, err, ...) \
  purr__yaml_fail(err, (reader)->source, line_of(mark), column_of(mark), __VA_ARGS__)

static bool continues_character(char byte) { return ((unsigned char)byte & 0xC0) == 0x80; }

/* Fails at a byte of the text, for what libyaml does not see or does not place. */
static purr_status_t fail_at_byte(const reader_t *r, uint64_t offset, purr_error_t *err, const char *sentence) {
  int line = 1, column = 1;
  for (uint64_t i = 0; i < offset && i < r->num_bytes; i++)
    if (r->text[i] == '\n') {
      line++;
      column = 1;
    } else if (!continues_character(r->text[i]))
      column++;
  return purr__yaml_fail(err, r->source, line, column, "%s", sentence);
}

static bool is_tab_at(const reader_t *r, yaml_mark_t mark) {
  const char *at = r->text, *end = r->text + r->num_bytes;
  for (size_t line = 0; line < mark.line && at < end; line++) {
    const char *line_end = memchr(at, '\n', (size_t)(end - at));
    at = line_end == NULL ? end : line_end + 1;
  }
  for (size_t column = 0; column < mark.column && at < end; column++) {
    at++;
    while (at < end && continues_character(*at)) at++;
  }
  return at < end && *at == '\t';
}

static purr_status_t fail_as_parser(const reader_t *r, purr_error_t *err) {
  const yaml_parser_t *p = &r->parser;
  const char *problem = p->problem != NULL ? p->problem : "unknown problem";
  char sentence[256];
  if (p->error == YAML_MEMORY_ERROR) return purr__fail_memory(err, "the YAML parser", r->num_bytes);
  if (p->error == YAML_READER_ERROR) {
    snprintf(sentence, sizeof sentence, "not plain UTF-8 text: %s (0x%02x)", problem, (unsigned)p->problem_value);
    return fail_at_byte(r, p->problem_offset, err, sentence);
  }
  if (is_tab_at(r, p->problem_mark))
    return FAIL_AT_MARK(r, p->problem_mark, err, "found a tab; YAML is indented with spaces only");
  if (strcmp(problem, "could not find expected ':'") == 0)
    return FAIL_AT_MARK(r, p->context_mark, err, "found no ':'; a layer is written as lines of 'key: value'");
  if (p->context == NULL) return FAIL_AT_MARK(r, p->problem_mark, err, "not valid YAML: %s", problem);
  return FAIL_AT_MARK(r, p->problem_mark, err, "not valid YAML: %s, %s that begins on line %d", problem, p->context,
                      line_of(p->context_mark));
}

/* ---- text ---- */

/* What libyaml would pass over in silence: it ends at a NUL, it follows a byte order mark to UTF-16, and it compares
 * each directive with all others, which a long file of them would make slow. */
static purr_status_t check_text(reader_t *r, purr_error_t *err) {
  if (r->num_bytes > PURR__YAML_MAX_BYTES)
    return purr__yaml_fail(err, r->source, 1, 1, "the file has %llu bytes; allowed are at most %u",
                           (unsigned long long)r->num_bytes, PURR__YAML_MAX_BYTES);
  if (r->num_bytes >= 2 && (memcmp(r->text, "\xFF\xFE", 2) == 0 || memcmp(r->text, "\xFE\xFF", 2) == 0))
    return fail_at_byte(r, 0, err, "found a UTF-16 byte order mark; the file must be UTF-8");
  if (r->num_bytes >= 3 && memcmp(r->text, "\xEF\xBB\xBF", 3) == 0) {
    r->text += 3;
    r->num_bytes -= 3;
  }
  bool line_begins = true;
  for (uint64_t i = 0; i < r->num_bytes; i++) {
    if (r->text[i] == '\0') return fail_at_byte(r, i, err, "found a NUL byte; the file must be UTF-8 text");
    if (line_begins && r->text[i] == '%')
      return fail_at_byte(r, i, err, "found '%' at the start of a line; directives are not accepted");
    line_begins = r->text[i] == '\n' || r->text[i] == '\r';
  }
  return PURR_STATUS_OK;
}

/* ---- events ---- */

static const yaml_char_t *anchor_of(const yaml_event_t *event) {
  switch (event->type) {
    case YAML_SCALAR_EVENT:
      return event->data.scalar.anchor;
    case YAML_MAPPING_START_EVENT:
      return event->data.mapping_start.anchor;
    case YAML_SEQUENCE_START_EVENT:
      return event->data.sequence_start.anchor;
    default:
      return NULL;
  }
}

static const yaml_char_t *tag_of(const yaml_event_t *event) {
  switch (event->type) {
    case YAML_SCALAR_EVENT:
      return event->data.scalar.tag;
    case YAML_MAPPING_START_EVENT:
      return event->data.mapping_start.tag;
    case YAML_SEQUENCE_START_EVENT:
      return event->data.sequence_start.tag;
    default:
      return NULL;
  }
}

/* Takes the next event and refuses what no place of a document may have. On failure `event` holds nothing. */
static purr_status_t next_event(reader_t *r, yaml_event_t *event, purr_error_t *err) {
  if (!yaml_parser_parse(&r->parser, event)) {
    *event = (yaml_event_t){.type = YAML_NO_EVENT};
    return fail_as_parser(r, err);
  }
  purr_status_t status = PURR_STATUS_OK;
  yaml_mark_t mark = event->start_mark;
  char name[48];
  if (event->type == YAML_ALIAS_EVENT) {
    const char *alias = (const char *)event->data.alias.anchor;
    status = FAIL_AT_MARK(r, mark, err, "found the alias '*%s'; aliases are not accepted, write the value itself",
                          purr__printable(name, sizeof name, alias, strlen(alias)));
  } else if (anchor_of(event) != NULL) {
    const char *anchor = (const char *)anchor_of(event);
    status = FAIL_AT_MARK(r, mark, err, "found the anchor '&%s'; anchors are not accepted",
                          purr__printable(name, sizeof name, anchor, strlen(anchor)));
  } else if (tag_of(event) != NULL) {
    const char *tag = (const char *)tag_of(event);
    status = FAIL_AT_MARK(r, mark, err, "found the tag '%s'; tags are not accepted",
                          purr__printable(name, sizeof name, tag, strlen(tag)));
  } else if (event->type == YAML_MAPPING_START_EVENT && event->data.mapping_start.style == YAML_FLOW_MAPPING_STYLE) {
    status =
        FAIL_AT_MARK(r, mark, err, "found '{'; flow style is not accepted, write a block with one 'key: value' a line");
  }
  if (status != PURR_STATUS_OK) {
    yaml_event_delete(event);
    *event = (yaml_event_t){.type = YAML_NO_EVENT};
  }
  return status;
}

/* ---- structure ---- */

static purr_status_t read_block(reader_t *r, int depth, purr_error_t *err);

static purr_status_t check_key(reader_t *r, const yaml_event_t *key, purr_error_t *err) {
  if (key->type != YAML_SCALAR_EVENT)
    return FAIL_AT_MARK(r, key->start_mark, err, "found a %s as a key; a key is a word",
                        key->type == YAML_SEQUENCE_START_EVENT ? "list" : "block");
  if (key->data.scalar.length == 2 && memcmp(key->data.scalar.value, "<<", 2) == 0)
    return FAIL_AT_MARK(r, key->start_mark, err, "found the merge key '<<'; merging is not accepted, write all keys");
  return PURR_STATUS_OK;
}

static purr_status_t read_value(reader_t *r, const yaml_event_t *key, const yaml_event_t *value, int depth,
                                purr_error_t *err) {
  purr__yaml_entry_t entry = {.key_line = line_of(key->start_mark),
                              .key_column = column_of(key->start_mark),
                              .key = (const char *)key->data.scalar.value,
                              .key_length = key->data.scalar.length,
                              .line = line_of(value->start_mark),
                              .column = column_of(value->start_mark)};
  if (value->type == YAML_SCALAR_EVENT) {
    entry.kind = value->data.scalar.style == YAML_PLAIN_SCALAR_STYLE ? PURR__YAML_PLAIN : PURR__YAML_QUOTED;
    entry.value = (const char *)value->data.scalar.value;
    entry.value_length = value->data.scalar.length;
    return r->visit(r->user, &entry, err);
  }
  bool is_block = value->type == YAML_MAPPING_START_EVENT;
  entry.kind = is_block ? PURR__YAML_BLOCK : PURR__YAML_LIST;
  purr_status_t status = r->visit(r->user, &entry, err);
  if (status == PURR_STATUS_OK && !is_block)
    status = FAIL_AT_MARK(r, value->start_mark, err, "found a list; lists are not accepted");
  if (status == PURR_STATUS_OK) status = read_block(r, depth + 1, err);
  if (status == PURR_STATUS_OK) status = r->visit(r->user, &(purr__yaml_entry_t){.kind = PURR__YAML_END}, err);
  return status;
}

/* Reads the entries of a block whose start has been taken, up to its end. */
static purr_status_t read_block(reader_t *r, int depth, purr_error_t *err) {
  for (;;) {
    yaml_event_t key, value;
    purr_status_t status = next_event(r, &key, err);
    if (status != PURR_STATUS_OK) return status;
    if (key.type == YAML_MAPPING_END_EVENT) return PURR_STATUS_OK;
    if (depth > PURR__YAML_MAX_DEPTH)
      status = FAIL_AT_MARK(r, key.start_mark, err, "blocks are nested too deep; allowed are %d levels",
                            PURR__YAML_MAX_DEPTH);
    if (status == PURR_STATUS_OK) status = check_key(r, &key, err);
    if (status == PURR_STATUS_OK) status = next_event(r, &value, err);
    if (status == PURR_STATUS_OK) {
      status = read_value(r, &key, &value, depth, err);
      yaml_event_delete(&value);
    }
    yaml_event_delete(&key);
    if (status != PURR_STATUS_OK) return status;
  }
}

/* Takes the next event, which carries no memory where the caller expects it. */
static purr_status_t next_type(reader_t *r, yaml_event_type_t *out_type, yaml_mark_t *out_mark, purr_error_t *err) {
  yaml_event_t event;
  purr_status_t status = next_event(r, &event, err);
  if (status != PURR_STATUS_OK) return status;
  *out_type = event.type;
  *out_mark = event.start_mark;
  yaml_event_delete(&event);
  return PURR_STATUS_OK;
}

static purr_status_t read_stream(reader_t *r, purr_error_t *err) {
  yaml_event_type_t type;
  yaml_mark_t mark;
  purr_status_t status = next_type(r, &type, &mark, err); /* the start of the stream */
  if (status == PURR_STATUS_OK) status = next_type(r, &type, &mark, err);
  if (status != PURR_STATUS_OK) return status;
  if (type == YAML_STREAM_END_EVENT) return fail_at_byte(r, 0, err, "the file is empty; a layer's keys are needed");
  status = next_type(r, &type, &mark, err); /* the root of the document */
  if (status != PURR_STATUS_OK) return status;
  if (type != YAML_MAPPING_START_EVENT)
    return FAIL_AT_MARK(r, mark, err, "found a %s at the top; a layer is written as lines of 'key: value'",
                        type == YAML_SCALAR_EVENT ? "single value" : "list");
  status = read_block(r, 1, err);
  if (status == PURR_STATUS_OK) status = next_type(r, &type, &mark, err); /* the end of the document */
  if (status == PURR_STATUS_OK) status = next_type(r, &type, &mark, err);
  if (status == PURR_STATUS_OK && type != YAML_STREAM_END_EVENT)
    status = FAIL_AT_MARK(r, mark, err, "a second document begins here; allowed is one");
  return status;
}

purr_status_t purr__yaml_read(const char *text, uint64_t num_bytes, const char *source, purr__yaml_visit_fn visit,
                              void *user, purr_error_t *err) {
  reader_t r = {.text = text, .num_bytes = num_bytes, .source = source, .visit = visit, .user = user};
  purr_status_t status = check_text(&r, err);
  if (status != PURR_STATUS_OK) return status;
  if (!yaml_parser_initialize(&r.parser)) return purr__fail_memory(err, "the YAML parser", sizeof r.parser);
  yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
  yaml_parser_set_input_string(&r.parser, (const unsigned char *)r.text, r.num_bytes);
  status = read_stream(&r, err);
  yaml_parser_delete(&r.parser);
  return status;
}
