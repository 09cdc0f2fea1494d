/* A config as text: YAML that reads back as the same layer, and JSON. Both follow the table of keys. */
#include "base/number.h"
#include "config/config.h"

/* The word that stands for the value of a key, or NULL. */
static const char *word_for(const purr__key_t *key, int64_t value) {
  for (int i = 0; i < 4 && key->words[i].word != NULL; i++)
    if (key->words[i].value == value) return key->words[i].word;
  return NULL;
}

static const char *digest_or_any(const purr__texts_t *texts) {
  return texts->package_digest[0] != '\0' ? texts->package_digest : "any";
}

static void add_kernel(purr__text_t *text, const purr__key_t *key, const purr__texts_t *texts, const char *quote) {
  purr__texts_t own = *texts;
  const char *name = purr__key_kernel(key, &own);
  purr__text_add(text, "%s%s%s", quote, name[0] != '\0' ? name : "none", quote);
}

static bool is_absent(const purr__key_t *key, const purr__texts_t *texts, const purr_layer_desc_t *layer) {
  bool is_kernel = key == &purr__keys[PURR__KEY_KERNELS] || key->block == PURR__KEY_KERNELS;
  bool is_shared = key == &purr__keys[PURR__KEY_SHARED_EXPERT] || key->block == PURR__KEY_SHARED_EXPERT;
  bool is_mxfp8 = key == &purr__keys[PURR__KEY_MXFP8] || key->block == PURR__KEY_MXFP8;
  bool says_mxfp8 = layer->precision == PURR_PRECISION_MXFP8 || layer->mxfp8_scale_rule != 0 ||
                    layer->mxfp8_activation_granularity != 0 || layer->mxfp8_weight_granularity != 0;
  return (is_shared && layer->shared_intermediate_size == 0) || (is_mxfp8 && !says_mxfp8) ||
         (is_kernel && !purr__texts_have_kernels(texts));
}

/* ---- YAML ---- */

static void write_number(purr__text_t *text, const purr__key_t *key, int64_t value) {
  static const char *const units[] = {"", "KiB", "MiB", "GiB"};
  int unit = 0;
  while (key->kind == PURR__KEY_BYTES && unit < 3 && value % 1024 == 0) {
    value /= 1024;
    unit++;
  }
  purr__text_add(text, "%lld%s", (long long)value, units[unit]);
}

static void write_value(purr__text_t *text, const purr_config_t *config, const purr__key_t *key) {
  if (key->kind == PURR__KEY_TEXT) {
    purr__text_add_json_string(text, config->texts.name); /* which is YAML too */
  } else if (key->kind == PURR__KEY_DIGEST) {
    purr__text_add(text, "%s", digest_or_any(&config->texts));
  } else if (key->kind == PURR__KEY_KERNEL) {
    add_kernel(text, key, &config->texts, "");
  } else if (key->kind == PURR__KEY_REAL) {
    purr__text_add_fp32(text, config->layer.swiglu_limit);
  } else {
    int64_t value = purr__key_get(key, &config->layer);
    const char *word = word_for(key, value);
    if (word != NULL)
      purr__text_add(text, "%s", word);
    else
      write_number(text, key, value);
  }
}

static void write_yaml(purr__text_t *text, const purr_config_t *config) {
  enum { COMMENT_COLUMN = 32 };
  for (int i = 0; i < PURR__NUM_KEYS; i++) {
    const purr__key_t *key = &purr__keys[i];
    if (is_absent(key, &config->texts, &config->layer)) continue;
    uint64_t line_begin = text->length;
    purr__text_add(text, "%s%s:", key->block < 0 ? "" : "  ", key->name);
    if (key->kind != PURR__KEY_BLOCK) {
      purr__text_add(text, " ");
      write_value(text, config, key);
    }
    int width = (int)(text->length - line_begin);
    purr__text_add(text, "%*s  # %s\n", width < COMMENT_COLUMN ? COMMENT_COLUMN - width : 0, "", key->meaning);
  }
}

/* ---- JSON ---- */

/* The keys of a block, one a line. A block that is absent is null. */
static void add_json_keys(purr__text_t *text, int block, const purr__texts_t *texts, const purr_layer_desc_t *layer,
                          int indent) {
  bool is_first = true;
  for (int i = 0; i < PURR__NUM_KEYS; i++) {
    const purr__key_t *key = &purr__keys[i];
    if (key->block != block) continue;
    purr__text_add(text, "%s\n%*s\"%s\": ", is_first ? "" : ",", indent, "", key->name);
    is_first = false;
    if (is_absent(key, texts, layer)) {
      purr__text_add(text, "null");
    } else if (key->kind == PURR__KEY_BLOCK) {
      purr__text_add(text, "{");
      add_json_keys(text, i, texts, layer, indent + 2);
      purr__text_add(text, "\n%*s}", indent, "");
    } else if (key->kind == PURR__KEY_TEXT) {
      purr__text_add_json_string(text, texts->name);
    } else if (key->kind == PURR__KEY_DIGEST) {
      purr__text_add_json_string(text, digest_or_any(texts));
    } else if (key->kind == PURR__KEY_KERNEL) {
      add_kernel(text, key, texts, "\"");
    } else if (key->kind == PURR__KEY_REAL) {
      purr__text_add_fp32(text, layer->swiglu_limit);
    } else {
      int64_t value = purr__key_get(key, layer);
      const char *word = word_for(key, value);
      if (word != NULL)
        purr__text_add_json_string(text, word);
      else
        purr__text_add(text, "%lld", (long long)value);
    }
  }
}

void purr__layer_add_json(purr__text_t *text, const purr__texts_t *texts, const purr_layer_desc_t *layer, int indent) {
  purr__text_add(text, "{");
  add_json_keys(text, -1, texts, layer, indent + 2);
  purr__text_add(text, "\n%*s}", indent, "");
}

/* ---- public ---- */

purr_status_t purr_config_describe(const purr_config_t *config, int32_t format, char *buffer, uint64_t capacity,
                                   uint64_t *out_length, purr_error_t *err) {
  purr_status_t status = purr__check(config, PURR__CONFIG, err);
  if (status != PURR_STATUS_OK) return status;
  if (format != PURR_FORMAT_TEXT && format != PURR_FORMAT_JSON)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "format is %d; allowed are %d (text) and %d (JSON)", format,
                      PURR_FORMAT_TEXT, PURR_FORMAT_JSON);
  purr__text_t text = {.context = config->object.context};
  if (format == PURR_FORMAT_TEXT) {
    write_yaml(&text, config);
  } else {
    purr__layer_add_json(&text, &config->texts, &config->layer, 0);
    purr__text_add(&text, "\n");
  }
  return purr__text_deliver(&text, buffer, capacity, out_length, err);
}

purr_status_t purr_config_write(const purr_config_t *config, char *buffer, uint64_t capacity, uint64_t *out_length,
                                purr_error_t *err) {
  return purr_config_describe(config, PURR_FORMAT_TEXT, buffer, capacity, out_length, err);
}
