/* The rules that a layer's numbers obey, wherever they come from. */
#include <stdio.h>

#include "config/config.h"
#include "config/yaml.h"

void purr__layer_fill_defaults(purr_layer_desc_t *layer) {
  for (int i = 0; i < PURR__NUM_KEYS; i++) {
    const purr__key_t *key = &purr__keys[i];
    if (key->default_value != 0 && purr__key_get(key, layer) == 0) purr__key_set(key, layer, key->default_value);
  }
  layer->swiglu_limit += 0.0f; /* -0 is 0: equal layers are equal to the byte */
}

static bool is_placed(const purr__places_t *places, int key_idx) {
  return places != NULL && places->at[key_idx].line > 0;
}

/* Fails for a key, with its place where it has one. */
PURR__PRINTF(4, 5)
static purr_status_t fail_key(const purr__places_t *places, int key_idx, purr_error_t *err, const char *format, ...) {
  char sentence[sizeof err->message];
  va_list args;
  va_start(args, format);
  vsnprintf(sentence, sizeof sentence, format, args);
  va_end(args);
  if (!is_placed(places, key_idx)) return purr__fail(err, PURR_STATUS_CONFIG, "%s", sentence);
  return purr__yaml_fail(err, places->source, places->at[key_idx].line, places->at[key_idx].column, "%s", sentence);
}

/* Each number on its own. */
static purr_status_t check_ranges(const purr_layer_desc_t *layer, const purr__places_t *places, purr_error_t *err) {
  char allowed[256];
  for (int i = 0; i < PURR__NUM_KEYS; i++) {
    const purr__key_t *key = &purr__keys[i];
    if (key->num_bytes == 0 || key->kind == PURR__KEY_REAL) continue;
    int64_t value = purr__key_get(key, layer);
    bool is_absent = i == PURR__KEY_SHARED_INTERMEDIATE_SIZE && value == 0;
    if (!is_absent && !purr__key_allows(key, value))
      return fail_key(places, i, err, "%s is %lld; allowed is %s", key->path, (long long)value,
                      purr__key_allowed(allowed, sizeof allowed, key));
  }
  float limit = layer->swiglu_limit;
  if (!(limit >= 0.0f) || limit - limit != 0.0f)
    return fail_key(places, PURR__KEY_SWIGLU_LIMIT, err, "swiglu_limit is %s; allowed is %s",
                    limit < 0.0f ? "negative" : "not finite",
                    purr__key_allowed(allowed, sizeof allowed, &purr__keys[PURR__KEY_SWIGLU_LIMIT]));
  return PURR_STATUS_OK;
}

static purr_status_t check_mxfp8(const purr_layer_desc_t *layer, const purr__places_t *places, purr_error_t *err) {
  static const int keys[] = {PURR__KEY_HIDDEN_SIZE, PURR__KEY_INTERMEDIATE_SIZE};
  if (layer->precision != PURR_PRECISION_MXFP8) return PURR_STATUS_OK;
  for (int i = 0; i < 2; i++) {
    int64_t value = purr__key_get(&purr__keys[keys[i]], layer);
    if (value % 32 != 0)
      return fail_key(
          places, keys[i], err,
          "%s is %lld; with precision mxfp8 it must be a multiple of 32, the length of a block with one scale",
          purr__keys[keys[i]].path, (long long)value);
  }
  return PURR_STATUS_OK;
}

/* The worst case of one step on one rank must fit 32-bit row numbers: every slot of every rank comes here, and each
 * local expert's rows are padded up. */
static purr_status_t check_rows(const purr_layer_desc_t *layer, const purr__places_t *places, purr_error_t *err) {
  int64_t num_slots = layer->max_tokens * layer->top_k * layer->num_ranks;
  int64_t num_pads = layer->num_experts / layer->num_ranks * (PURR__ROW_ALIGNMENT - 1);
  if (num_slots + num_pads <= INT32_MAX) return PURR_STATUS_OK;
  int key = is_placed(places, PURR__KEY_MAX_TOKENS) ? PURR__KEY_MAX_TOKENS : PURR__KEY_TOP_K;
  return fail_key(
      places, key, err,
      "max_tokens %lld * top_k %lld * num_ranks %d with %lld rows of padding makes %lld rows a step; allowed "
      "are at most %d",
      (long long)layer->max_tokens, (long long)layer->top_k, layer->num_ranks, (long long)num_pads,
      (long long)(num_slots + num_pads), INT32_MAX);
}

purr_status_t purr__layer_check_at(const purr_layer_desc_t *layer, const purr__places_t *places, purr_error_t *err) {
  purr_status_t status = check_ranges(layer, places, err);
  if (status == PURR_STATUS_OK) status = check_mxfp8(layer, places, err);
  if (status != PURR_STATUS_OK) return status;
  if (layer->num_experts % layer->num_ranks != 0) {
    int key = is_placed(places, PURR__KEY_NUM_RANKS) ? PURR__KEY_NUM_RANKS : PURR__KEY_NUM_EXPERTS;
    return fail_key(places, key, err,
                    "num_experts %lld is not divisible by num_ranks %d; every rank holds the same number of experts",
                    (long long)layer->num_experts, layer->num_ranks);
  }
  if (layer->shared_gate != PURR_SHARED_GATE_NONE && layer->shared_intermediate_size == 0)
    return fail_key(
        places, PURR__KEY_SHARED_GATE, err,
        "shared_expert.gate is sigmoid, but there is no shared expert; give shared_expert.intermediate_size");
  if (layer->minibatch_rows > 0 && layer->macrobatch_rows > 0 && layer->macrobatch_rows < 2 * layer->minibatch_rows)
    return fail_key(places, PURR__KEY_MACROBATCH_ROWS, err,
                    "macrobatch_rows is %lld; the ring holds at least two minibatches of minibatch_rows %lld, that is "
                    "%lld rows",
                    (long long)layer->macrobatch_rows, (long long)layer->minibatch_rows,
                    (long long)(2 * layer->minibatch_rows));
  return check_rows(layer, places, err);
}

purr_status_t purr__layer_check(const purr_layer_desc_t *layer, purr_error_t *err) {
  return purr__layer_check_at(layer, NULL, err);
}
