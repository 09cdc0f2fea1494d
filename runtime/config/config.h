/* The parsed layer config: the numbers, and where each was written. */
#ifndef PURR_CONFIG_H
#define PURR_CONFIG_H

#include "base/base.h"
#include "config/schema.h"

#define PURR__DEFAULT_MAX_TOKENS 4096
#define PURR__DEFAULT_TIMEOUT_MS 600000
#define PURR__MAX_EXPERTS 4096
#define PURR__ROW_ALIGNMENT 64 /* expert segments, minibatches and macrobatches start at multiples of it */

/* Where the values of a config stand in its file. All zero for a config that was made from numbers. */
typedef struct purr__places {
  char source[128]; /* the file's name, printable */
  struct {
    int line, column; /* 0 where the file does not have the key */
  } at[PURR__NUM_KEYS];
} purr__places_t;

struct purr_config {
  purr__object_t object;
  purr_layer_desc_t layer; /* defaults filled in */
  purr__texts_t texts;     /* the name is "layer" where none is given */
  purr__places_t places;
};

/* Puts the defaults where a layer has zeros. */
void purr__layer_fill_defaults(purr_layer_desc_t *layer);

/* The rules of a layer (ranges, divisibility, pairs that belong together), shared by every way to make a config and by
 * the plan after its overrides. `err` names the key; CONFIG on failure. */
purr_status_t purr__layer_check(const purr_layer_desc_t *layer, purr_error_t *err);
/* The same with file:line:column in the message, where the key at fault has a place. `places` may be NULL. */
purr_status_t purr__layer_check_at(const purr_layer_desc_t *layer, const purr__places_t *places, purr_error_t *err);

/* Reads YAML into a layer that is complete and checked; see purr_config_parse. */
purr_status_t purr__layer_parse(const char *text, uint64_t num_bytes, const char *source, purr_layer_desc_t *out_layer,
                                purr__texts_t *out_texts, purr__places_t *out_places, purr_error_t *err);

/* The layer as a JSON object of its keys, in the words of the YAML. `indent` is that of the line it begins on. */
void purr__layer_add_json(purr__text_t *text, const purr__texts_t *texts, const purr_layer_desc_t *layer, int indent);

#endif
