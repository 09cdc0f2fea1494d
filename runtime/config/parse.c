/* From YAML entries to a layer: each key known, once, in its place, with a value of its kind. */
#include <stdio.h>

#include "base/number.h"
#include "config/config.h"
#include "config/yaml.h"

typedef struct parse {
  purr_layer_desc_t *layer;
  purr__texts_t *texts;
  purr__places_t *places;
  int block; /* the key of the block that is being read, -1 at the top */
  struct {
    int line, column; /* of the key itself; 0 until it comes */
  } key_at[PURR__NUM_KEYS];
} parse_t;

enum { QUOTE_CAPACITY = 56 }; /* untrusted text in a message */

#define FAIL_AT_KEY(p, entry, err, ...) \
  purr__yaml_fail(err, (p)->places->source, (entry)->key_line, (entry)->key_column, __VA_ARGS__)

/* ---- keys ---- */

static purr_status_t fail_unknown_key(const parse_t *p, const purr__yaml_entry_t *entry, purr_error_t *err) {
  char quote[QUOTE_CAPACITY], names[256] = "";
  purr__printable(quote, sizeof quote, entry->key, entry->key_length);
  const char *block = p->block < 0 ? "" : purr__keys[p->block].name;
  const char *dot = p->block < 0 ? "" : ".";
  int nearest = purr__key_nearest(p->block, entry->key, entry->key_length);
  if (nearest >= 0) {
    const purr__key_t *key = &purr__keys[nearest];
    char place[64] = "";
    if (key->block != p->block && key->block < 0)
      snprintf(place, sizeof place, " It belongs at the top level.");
    else if (key->block != p->block)
      snprintf(place, sizeof place, " It belongs in the block '%s:'.", purr__keys[key->block].name);
    return FAIL_AT_KEY(p, entry, err, "unknown key '%s%s%s'; did you mean '%s'?%s", block, dot, quote, key->path,
                       place);
  }
  uint64_t used = 0;
  for (int i = 0; i < PURR__NUM_KEYS; i++)
    if (purr__keys[i].block == p->block && used < sizeof names)
      used += (uint64_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", purr__keys[i].name);
  return FAIL_AT_KEY(p, entry, err, "unknown key '%s%s%s'; allowed here are %s", block, dot, quote, names);
}

static purr_status_t find_key(parse_t *p, const purr__yaml_entry_t *entry, int *out_key, purr_error_t *err) {
  int i = purr__key_find(p->block, entry->key, entry->key_length);
  if (i < 0) return fail_unknown_key(p, entry, err);
  if (p->key_at[i].line > 0)
    return FAIL_AT_KEY(p, entry, err, "key '%s' is on line %d and again on line %d; keep one of them",
                       purr__keys[i].path, p->key_at[i].line, entry->key_line);
  p->key_at[i].line = entry->key_line;
  p->key_at[i].column = entry->key_column;
  p->places->at[i].line = entry->line;
  p->places->at[i].column = entry->column;
  *out_key = i;
  return PURR_STATUS_OK;
}

/* ---- values ---- */

static bool is_null(const purr__yaml_entry_t *entry) {
  static const char *const spellings[] = {"", "~", "null", "Null", "NULL"};
  if (entry->kind != PURR__YAML_PLAIN) return false;
  for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++)
    if (strlen(spellings[i]) == entry->value_length && memcmp(spellings[i], entry->value, entry->value_length) == 0)
      return true;
  return false;
}

/* The one sentence for every value that its key does not take. */
static purr_status_t fail_value(const parse_t *p, const purr__yaml_entry_t *entry, const purr__key_t *key,
                                purr_error_t *err) {
  char quote[QUOTE_CAPACITY], found[QUOTE_CAPACITY + 32], allowed[256];
  purr__printable(quote, sizeof quote, entry->value_length > 0 ? entry->value : "", entry->value_length);
  if (entry->kind == PURR__YAML_BLOCK)
    snprintf(found, sizeof found, "is a nested block");
  else if (entry->kind == PURR__YAML_LIST)
    snprintf(found, sizeof found, "is a list");
  else if (entry->kind == PURR__YAML_QUOTED)
    snprintf(found, sizeof found, "is the quoted text \"%s\"", quote);
  else if (entry->value_length == 0)
    snprintf(found, sizeof found, "has no value");
  else
    snprintf(found, sizeof found, "is '%s'", quote);
  return purr__yaml_fail(err, p->places->source, entry->line, entry->column, "%s %s; allowed is %s", key->path, found,
                         purr__key_allowed(allowed, sizeof allowed, key));
}

static bool parse_word(const purr__key_t *key, const purr__yaml_entry_t *entry, int64_t *out_value) {
  for (int i = 0; i < 4 && key->words[i].word != NULL; i++)
    if (strlen(key->words[i].word) == entry->value_length &&
        memcmp(key->words[i].word, entry->value, entry->value_length) == 0) {
      *out_value = key->words[i].value;
      return true;
    }
  return false;
}

/* A number in quotes is text. The words' own values are not numbers that a file may write. */
static bool parse_number(const purr__key_t *key, const purr__yaml_entry_t *entry, int64_t *out_value) {
  if (entry->kind != PURR__YAML_PLAIN) return false;
  purr__number_t number = PURR__NUMBER_MALFORMED;
  if (key->kind == PURR__KEY_INTEGER)
    number = purr__number_parse_integer(entry->value, entry->value_length, out_value);
  else if (key->kind == PURR__KEY_BYTES)
    number = purr__number_parse_bytes(entry->value, entry->value_length, out_value);
  return number == PURR__NUMBER_GOOD && *out_value >= key->min && purr__key_allows(key, *out_value);
}

static bool parse_name(const purr__yaml_entry_t *entry, char out_name[64]) {
  if (entry->value_length < 1 || entry->value_length > 63) return false;
  /* What printing would have to change does not fit a name. */
  char printed[256];
  purr__printable(printed, sizeof printed, entry->value, entry->value_length);
  if (strlen(printed) != entry->value_length || memcmp(printed, entry->value, entry->value_length) != 0) return false;
  memcpy(out_name, entry->value, entry->value_length);
  out_name[entry->value_length] = '\0';
  return true;
}

static bool parse_digest(const purr__yaml_entry_t *entry, char out_digest[65]) {
  if (entry->value_length == 3 && memcmp(entry->value, "any", 3) == 0) {
    out_digest[0] = '\0';
    return true;
  }
  if (entry->value_length != 64) return false;
  for (int i = 0; i < 64; i++) {
    const char c = entry->value[i];
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
  }
  memcpy(out_digest, entry->value, 64);
  out_digest[64] = '\0';
  return true;
}

static bool parse_kernel(const purr__yaml_entry_t *entry, char out_name[64]) {
  if (entry->value_length < 1 || entry->value_length > 63) return false;
  for (uint64_t i = 0; i < entry->value_length; i++) {
    const char c = entry->value[i];
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '_' ||
          c == '-'))
      return false;
  }
  const bool is_none = entry->value_length == 4 && memcmp(entry->value, "none", 4) == 0;
  memcpy(out_name, entry->value, entry->value_length);
  out_name[is_none ? 0 : entry->value_length] = '\0';
  return true;
}

static bool parse_value(parse_t *p, const purr__yaml_entry_t *entry, const purr__key_t *key) {
  if (key->kind == PURR__KEY_BLOCK) return entry->kind == PURR__YAML_BLOCK;
  if ((entry->kind != PURR__YAML_PLAIN && entry->kind != PURR__YAML_QUOTED) || is_null(entry)) return false;
  if (key->kind == PURR__KEY_TEXT) return parse_name(entry, p->texts->name);
  if (key->kind == PURR__KEY_KERNEL)
    return entry->kind == PURR__YAML_PLAIN && parse_kernel(entry, purr__key_kernel(key, p->texts));
  if (key->kind == PURR__KEY_DIGEST) return parse_digest(entry, p->texts->package_digest);
  if (key->kind == PURR__KEY_REAL) {
    float *field = &p->layer->swiglu_limit; /* the only real key */
    return entry->kind == PURR__YAML_PLAIN &&
           purr__number_parse_fp32(entry->value, entry->value_length, field) == PURR__NUMBER_GOOD && *field >= 0.0f;
  }
  int64_t value;
  if (!parse_word(key, entry, &value) && !parse_number(key, entry, &value)) return false;
  purr__key_set(key, p->layer, value);
  return true;
}

/* ---- the whole ---- */

/* A block's required keys, once it is over. */
static purr_status_t check_required(const parse_t *p, int block, int line, int column, purr_error_t *err) {
  char allowed[256];
  for (int i = 0; i < PURR__NUM_KEYS; i++) {
    const purr__key_t *key = &purr__keys[i];
    if (key->block == block && key->required && p->key_at[i].line == 0)
      return purr__yaml_fail(err, p->places->source, line, column, "the required key '%s' is missing; allowed is %s",
                             key->path, purr__key_allowed(allowed, sizeof allowed, key));
  }
  return PURR_STATUS_OK;
}

/* The library's own product has its activation inside. */
static purr_status_t check_kernels(const parse_t *p, purr_error_t *err) {
  const int key_idx = PURR__KEY_KERNELS_GROUPED_GEMM;
  if (p->texts->grouped_gemm[0] == '\0' || p->texts->activation[0] != '\0') return PURR_STATUS_OK;
  return purr__yaml_fail(err, p->places->source, p->key_at[key_idx].line, p->key_at[key_idx].column,
                         "kernels.grouped_gemm is '%s', but kernels.activation is none; it needs one, such as "
                         "swiglu_kernel of kernels/triton/stages.py",
                         p->texts->grouped_gemm);
}

static purr_status_t visit(void *user, const purr__yaml_entry_t *entry, purr_error_t *err) {
  parse_t *p = user;
  if (entry->kind == PURR__YAML_END) {
    int block = p->block;
    p->block = purr__keys[block].block;
    return check_required(p, block, p->key_at[block].line, p->key_at[block].column, err);
  }
  int key_idx = -1;
  purr_status_t status = find_key(p, entry, &key_idx, err);
  if (status != PURR_STATUS_OK) return status;
  if (!parse_value(p, entry, &purr__keys[key_idx])) return fail_value(p, entry, &purr__keys[key_idx], err);
  if (entry->kind == PURR__YAML_BLOCK) p->block = key_idx;
  return PURR_STATUS_OK;
}

/* Of a long path the end says more. */
static void name_source(purr__places_t *places, const char *path) {
  enum { LONGEST = 100 };
  uint64_t length = strlen(path), cut = length > LONGEST ? length - LONGEST : 0;
  strcpy(places->source, cut > 0 ? "..." : "");
  uint64_t used = strlen(places->source);
  purr__printable(places->source + used, sizeof places->source - used, path + cut, length - cut);
}

purr_status_t purr__layer_parse(const char *text, uint64_t num_bytes, const char *source, purr_layer_desc_t *out_layer,
                                purr__texts_t *out_texts, purr__places_t *out_places, purr_error_t *err) {
  *out_layer = (purr_layer_desc_t)PURR_LAYER_DESC_INIT;
  *out_places = (purr__places_t){{0}, {{0, 0}}};
  name_source(out_places, source);
  *out_texts = (purr__texts_t){.name = "layer"};
  parse_t p = {.layer = out_layer, .texts = out_texts, .places = out_places, .block = -1};
  purr_status_t status = purr__yaml_read(text, num_bytes, out_places->source, visit, &p, err);
  if (status == PURR_STATUS_OK) status = check_required(&p, -1, 1, 1, err);
  if (status != PURR_STATUS_OK) return status;
  purr__layer_fill_defaults(out_layer);
  status = purr__layer_check_at(out_layer, out_places, err);
  return status == PURR_STATUS_OK ? check_kernels(&p, err) : status;
}
