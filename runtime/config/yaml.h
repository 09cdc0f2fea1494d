/* The part of YAML that Purr reads: one document of nested `key: value` blocks. Everything that makes YAML surprising
 * is refused with its place: aliases, anchors, tags, directives, merge keys, flow style, several documents. The text's
 * meaning is the visitor's: nothing is stored, so a hostile file costs no more than the place where it goes wrong. */
#ifndef PURR_YAML_H
#define PURR_YAML_H

#include "base/base.h"

#define PURR__YAML_MAX_BYTES (1u << 20)
#define PURR__YAML_MAX_DEPTH 8

typedef enum purr__yaml_kind {
  PURR__YAML_PLAIN,  /* value without quotes; empty where there is none */
  PURR__YAML_QUOTED, /* value in quotes, or a literal or folded block of text */
  PURR__YAML_BLOCK,  /* a nested block: its entries follow, then an END */
  PURR__YAML_LIST,   /* never acceptable; the visitor says what is */
  PURR__YAML_END,    /* the nested block is over; there is no key */
} purr__yaml_kind_t;

/* One key with its value. Lines and columns count from 1, columns in characters. The texts are UTF-8, not terminated,
 * and gone after the visit. */
typedef struct purr__yaml_entry {
  purr__yaml_kind_t kind;
  int key_line, key_column;
  const char *key;
  uint64_t key_length;
  int line, column; /* of the value */
  const char *value;
  uint64_t value_length;
} purr__yaml_entry_t;

typedef purr_status_t (*purr__yaml_visit_fn)(void *user, const purr__yaml_entry_t *entry, purr_error_t *err);

/* Visits every entry in order and stops at the first failure. libyaml's own memory comes from malloc, not from the
 * context's hooks; it is at most a few times the longest value.
 * @param source  the file's name for messages, printable. */
purr_status_t purr__yaml_read(const char *text, uint64_t num_bytes, const char *source, purr__yaml_visit_fn visit,
                              void *user, purr_error_t *err);

/* Fails with CONFIG at a place in a file: "source:line:column: sentence". */
purr_status_t purr__yaml_fail(purr_error_t *err, const char *source, int line, int column, const char *format, ...)
    PURR__PRINTF(5, 6);

#endif
