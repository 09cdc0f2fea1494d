/* The parsed layer config: the numbers, and where each was written. */
#ifndef PURR_CONFIG_H
#define PURR_CONFIG_H

#include "base/base.h"

#define PURR__DEFAULT_MAX_TOKENS 4096
#define PURR__DEFAULT_TIMEOUT_MS 600000
#define PURR__ROW_ALIGNMENT 64 /* expert segments, minibatches and macrobatches start at multiples of it */

struct purr_config {
  purr__object_t object;
  purr_layer_desc_t layer; /* defaults filled in */
  char name[64];           /* the `name` key, else "layer" */
};

/* The cross-field rules of a layer (divisibility, ranges, pairs that belong together), shared by every way to make a
 * config and by the plan after its overrides. `err` names the field; CONFIG on failure. */
purr_status_t purr__layer_check(const purr_layer_desc_t *layer, purr_error_t *err);

#endif
