/* The config: what loads, what is refused with which words, and that hostile text costs neither time nor memory. */
#include <dirent.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/number.h"
#include "config/config.h"
#include "config/yaml.h"
#include "support/allocator.h"
#include "support/main.h"

#define CONFIGS PURR_SOURCE_DIR "/configs"
#define GOOD "hidden_size: 256\nintermediate_size: 128\nnum_experts: 8\ntop_k: 2\n"

static purr_context_t *context;

/* ---- helpers ---- */

static purr_status_t parse_bytes(const char *text, uint64_t num_bytes, purr_layer_desc_t *out_layer,
                                 purr_error_t *err) {
  purr_config_t *config = (purr_config_t *)1;
  purr_status_t status = purr_config_parse(context, text, num_bytes, "t.yaml", &config, err);
  if (status != PURR_STATUS_OK) {
    CU_ASSERT_PTR_NULL(config);
    return status;
  }
  *out_layer = (purr_layer_desc_t)PURR_LAYER_DESC_INIT;
  status = purr_config_get_layer(config, out_layer, err);
  purr_config_destroy(config);
  return status;
}

static purr_status_t parse(const char *text, purr_layer_desc_t *out_layer, purr_error_t *err) {
  return parse_bytes(text, strlen(text), out_layer, err);
}

/* Refused with CONFIG, and the message is "t.yaml:LINE:COLUMN: ..." with every word of `words` (separated by '|'). */
static void check_refused_bytes(const char *text, uint64_t num_bytes, int line, int column, const char *words) {
  purr_layer_desc_t layer;
  purr_error_t err;
  char place[64];
  ASSERT_STATUS(PURR_STATUS_CONFIG, parse_bytes(text, num_bytes, &layer, &err));
  snprintf(place, sizeof place, "t.yaml:%d:%d: ", line, column);
  bool is_right = strncmp(err.message, place, strlen(place)) == 0 && err.line == line && err.column == column;
  char copy[256], *rest = NULL;
  snprintf(copy, sizeof copy, "%s", words);
  for (char *word = strtok_r(copy, "|", &rest); word != NULL; word = strtok_r(NULL, "|", &rest))
    is_right = is_right && strstr(err.message, word) != NULL;
  if (!is_right) fprintf(stderr, "expected %s...%s\n     got %s\n", place, words, err.message);
  CU_ASSERT_TRUE(is_right);
}

static void check_refused(const char *text, int line, int column, const char *words) {
  check_refused_bytes(text, strlen(text), line, column, words);
}

/* A whole file in a fresh block, with a NUL behind it. */
static char *read_file(const char *path, uint64_t *out_bytes) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) return NULL;
  char *text = calloc(1, 1 << 16);
  *out_bytes = fread(text, 1, (1 << 16) - 1, file);
  fclose(file);
  return text;
}

static void count_yaml_files(const char *folder, int *out_count) {
  DIR *dir = opendir(folder);
  *out_count = 0;
  if (dir == NULL) return;
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    const char *dot = strrchr(entry->d_name, '.');
    if (dot != NULL && strcmp(dot, ".yaml") == 0) (*out_count)++;
  }
  closedir(dir);
}

/* ---- what loads ---- */

static void loads_the_smallest(void) {
  purr_error_t err;
  purr_layer_desc_t layer;
  REQUIRE_OK(parse(GOOD, &layer, &err));
  purr_layer_desc_t expected = PURR_LAYER_DESC_INIT;
  expected.hidden_size = 256;
  expected.intermediate_size = 128;
  expected.num_experts = 8;
  expected.top_k = 2;
  expected.max_tokens = 4096;
  expected.num_ranks = 1;
  expected.timeout_ms = 600000;
  CU_ASSERT_EQUAL(memcmp(&layer, &expected, sizeof layer), 0);
}

static void loads_every_key(void) {
  purr_error_t err;
  purr_layer_desc_t layer;
  REQUIRE_OK(
      parse("\xEF\xBB\xBF---\r\n# comment\r\nname: 'a \"b\" \\ c'\r\nshared_expert:\r\n  gate: \"sigmoid\"\r\n"
            "  intermediate_size: 72\r\nhidden_size: 64\nintermediate_size: 96\n\"num_experts\": 12\ntop_k: 64\n"
            "precision: mxfp8\nmxfp8:\n  weight_granularity: 128x128\n  scale_rule: floor\nmax_tokens: 17\nbackend: "
            "staged\nswiglu_limit: 7.5\nactivation_memory: 3MiB\n"
            "minibatch_rows: 128\nmacrobatch_rows: 320\nnum_comm_sms: 16\nnum_ranks: 4\ntimeout_ms: 250\n...\n",
            &layer, &err));
  purr_layer_desc_t expected = {.struct_size = sizeof expected,
                                .precision = PURR_PRECISION_MXFP8,
                                .hidden_size = 64,
                                .intermediate_size = 96,
                                .num_experts = 12,
                                .top_k = 64,
                                .max_tokens = 17,
                                .shared_intermediate_size = 72,
                                .shared_gate = PURR_SHARED_GATE_SIGMOID,
                                .backend = PURR_BACKEND_STAGED,
                                .swiglu_limit = 7.5f,
                                .num_ranks = 4,
                                .minibatch_rows = 128,
                                .macrobatch_rows = 320,
                                .num_comm_sms = 16,
                                .activation_memory = 3 << 20,
                                .timeout_ms = 250,
                                .mxfp8_scale_rule = PURR_SCALE_RULE_FLOOR,
                                .mxfp8_weight_granularity = PURR_GRANULARITY_128X128};
  CU_ASSERT_EQUAL(memcmp(&layer, &expected, sizeof layer), 0);
}

static void loads_the_given_configs(void) {
  static const struct {
    const char *path;
    int64_t h, i, e, k, s, t;
  } known[] = {{"qwen3_30b", 2048, 768, 128, 8, 0, 4096},
               {"qwen3_235b", 4096, 1536, 128, 8, 0, 4096},
               {"deepseek_v2_lite", 2048, 1408, 64, 6, 2816, 4096},
               {"deepseek_v3", 7168, 2048, 256, 8, 2048, 4096},
               {"kimi_k2", 7168, 2048, 384, 8, 2048, 4096},
               {"mixtral_8x7b", 4096, 14336, 8, 2, 0, 4096},
               {"glm_4_5_air", 4096, 1408, 128, 8, 1408, 4096},
               {"schema", 2048, 1408, 64, 6, 2816, 4096},
               {"bench/kimi_k2_slice", 7168, 2048, 48, 8, 2048, 2048},
               {"bench/kimi_ep64_rank", 7168, 2048, 6, 1, 0, 16384},
               {"bench/qwen3_30b", 2048, 768, 128, 8, 0, 8192},
               {"bench/deepseek_v2_lite", 2048, 1408, 64, 6, 2816, 8192},
               {"bench/mixtral_8x7b", 4096, 14336, 8, 2, 0, 4096}};
  enum { NUM_KNOWN = sizeof known / sizeof known[0] };
  purr_error_t err;
  for (int i = 0; i < NUM_KNOWN; i++) {
    char path[512];
    purr_config_t *config;
    purr_layer_desc_t layer = PURR_LAYER_DESC_INIT;
    snprintf(path, sizeof path, CONFIGS "/%s.yaml", known[i].path);
    REQUIRE_OK(purr_config_load(context, path, &config, &err));
    ASSERT_OK(purr_config_get_layer(config, &layer, &err));
    CU_ASSERT_EQUAL(layer.hidden_size, known[i].h);
    CU_ASSERT_EQUAL(layer.intermediate_size, known[i].i);
    CU_ASSERT_EQUAL(layer.num_experts, known[i].e);
    CU_ASSERT_EQUAL(layer.top_k, known[i].k);
    CU_ASSERT_EQUAL(layer.shared_intermediate_size, known[i].s);
    CU_ASSERT_EQUAL(layer.max_tokens, known[i].t);
    const char *slash = strrchr(known[i].path, '/'), *stem = slash != NULL ? slash + 1 : known[i].path;
    if (strcmp(stem, "schema") != 0) CU_ASSERT_STRING_EQUAL(config->texts.name, stem);
    purr_config_destroy(config);
  }
  int num_top, num_bench;
  count_yaml_files(CONFIGS, &num_top);
  count_yaml_files(CONFIGS "/bench", &num_bench);
  CU_ASSERT_EQUAL(num_top + num_bench, NUM_KNOWN);
}

/* The commented schema has every key, each at its default where it has one. */
static void schema_file_is_complete(void) {
  purr_error_t err;
  uint64_t num_bytes;
  char *text = read_file(CONFIGS "/schema.yaml", &num_bytes), line[96];
  CU_ASSERT_PTR_NOT_NULL_FATAL(text);
  for (int i = 0; i < PURR__NUM_KEYS; i++) {
    snprintf(line, sizeof line, "\n%s%s:", purr__keys[i].block < 0 ? "" : "  ", purr__keys[i].name);
    if (strstr(text, line) == NULL) fprintf(stderr, "configs/schema.yaml lacks %s\n", purr__keys[i].path);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, line));
  }
  purr_layer_desc_t layer, defaults;
  REQUIRE_OK(parse(text, &layer, &err));
  REQUIRE_OK(
      parse("hidden_size: 2048\nintermediate_size: 1408\nnum_experts: 64\ntop_k: 6\n"
            "shared_expert:\n  intermediate_size: 2816\n",
            &defaults, &err));
  CU_ASSERT_EQUAL(memcmp(&layer, &defaults, sizeof layer), 0);
  free(text);
}

/* ---- what is refused ---- */

/* Every file of configs/bad beside the exact message that it must give. */
static void refuses_the_bad_configs(void) {
  DIR *dir = opendir(CONFIGS "/bad");
  CU_ASSERT_PTR_NOT_NULL_FATAL(dir);
  int num_files = 0;
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    char path[512], message_path[512];
    char *dot = strrchr(entry->d_name, '.');
    if (dot == NULL || strcmp(dot, ".yaml") != 0) continue;
    num_files++;
    snprintf(path, sizeof path, CONFIGS "/bad/%s", entry->d_name);
    snprintf(message_path, sizeof message_path, CONFIGS "/bad/%.*s.txt", (int)(dot - entry->d_name), entry->d_name);
    uint64_t num_bytes = 0, message_bytes = 0;
    char *text = read_file(path, &num_bytes), *message = read_file(message_path, &message_bytes);
    if (text == NULL || message == NULL) fprintf(stderr, "%s: no message beside it\n", path);
    CU_ASSERT_TRUE_FATAL(text != NULL && message != NULL);
    message[strcspn(message, "\n")] = '\0';
    purr_error_t err;
    purr_config_t *config;
    ASSERT_STATUS(PURR_STATUS_CONFIG, purr_config_parse(context, text, num_bytes, entry->d_name, &config, &err));
    CU_ASSERT_PTR_NULL(config);
    CU_ASSERT_TRUE(err.line > 0 && err.column > 0);
    if (strcmp(err.message, message) != 0) fprintf(stderr, "expected %s\n     got %s\n", message, err.message);
    CU_ASSERT_STRING_EQUAL(err.message, message);
    free(text);
    free(message);
  }
  closedir(dir);
  CU_ASSERT_TRUE(num_files >= 80);
}

/* Bug report B51: unknown keys dropped in silence. */
static void b51_unknown_keys(void) {
  check_refused(GOOD "num_expert: 16\n", 5, 1, "'num_expert'|did you mean 'num_experts'?");
  check_refused("hidden_size: 256\nTop_K: 2\n", 2, 1, "'Top_K'|did you mean 'top_k'?");
  check_refused(GOOD "gate: none\n", 5, 1, "'gate'|'shared_expert.gate'|belongs in the block 'shared_expert:'");
  check_refused(GOOD "shared_expert:\n  top_k: 2\n", 6, 3, "'shared_expert.top_k'|'top_k'|belongs at the top level");
  check_refused(GOOD "shared_expert:\n  shared_expert:\n    precision : mxfp8\n", 6, 3,
                "'shared_expert.shared_expert'");
  check_refused(GOOD "foo:\n", 5, 1, "'foo'|allowed here are name, hidden_size");
  check_refused(GOOD "tokens_max: 1\n", 5, 1, "'tokens_max'|allowed here are");
  check_refused(GOOD "macrobtach-rows: 128\n", 5, 1, "did you mean 'macrobatch_rows'?");
  check_refused(GOOD "shared_expert.gate: none\n", 5, 1, "belongs in the block 'shared_expert:'");
  purr_error_t err;
  purr_layer_desc_t layer;
  ASSERT_OK(parse(GOOD, &layer, &err));
}

static void check_limit(const char *text, float expected) {
  char yaml[256];
  purr_error_t err;
  purr_layer_desc_t layer = PURR_LAYER_DESC_INIT;
  snprintf(yaml, sizeof yaml, GOOD "swiglu_limit: %s\n", text);
  ASSERT_OK(parse(yaml, &layer, &err));
  if (layer.swiglu_limit != expected || signbit(layer.swiglu_limit))
    fprintf(stderr, "%s became %a, expected %a\n", text, (double)layer.swiglu_limit, (double)expected);
  CU_ASSERT_TRUE(layer.swiglu_limit == expected && !signbit(layer.swiglu_limit));
}

/* Bug report B53: numbers taken for text, cut to fewer bits, or read by the locale. */
static void check_numbers(void) {
  static const char *const good_limits[] = {"1e5", "1.0e5", "1E+5", "100000", "+1e5", "1000000e-1"};
  for (size_t i = 0; i < sizeof good_limits / sizeof good_limits[0]; i++) check_limit(good_limits[i], 100000.0f);
  check_limit(".5", 0.5f);
  check_limit("7.", 7.0f);
  check_limit("-0.0", 0.0f);
  check_limit("0e999", 0.0f);
  check_limit("16777217", 16777216.0f);            /* ties to even */
  check_limit("16777217.0000000001", 16777218.0f); /* just above the tie */
  check_limit("1e-45", 0x1p-149f);
  check_limit("3.4028235e38", 0x1.fffffep127f);
  static const char *const bad_limits[] = {"1e400", "\"\"",  "~",     "abc",  "",    "1e", ".",     "1.5.2", "0x10",
                                           ".inf",  "1e-60", "\"7\"", "true", "1_0", "7f", "1e+-2", "3.5e38"};
  for (size_t i = 0; i < sizeof bad_limits / sizeof bad_limits[0]; i++) {
    char yaml[256];
    snprintf(yaml, sizeof yaml, GOOD "swiglu_limit: %s\n", bad_limits[i]);
    check_refused(yaml, 5, bad_limits[i][0] ? 15 : 14, "swiglu_limit|0 for none, or a positive decimal number");
  }
  static const char *const bad_integers[] = {"+8",         "8.0",
                                             "1e1",        "1_000",
                                             "0x10",       "\" 8 x\"",
                                             "4294967304", "9223372036854775808",
                                             "-1",         "18446744073709551624",
                                             "010",        "8_0",
                                             "\"8\"",      "~",
                                             "[8]",        "",
                                             "true",       "8 x",
                                             "-08",        "0",
                                             "4097",       "auto"};
  for (size_t i = 0; i < sizeof bad_integers / sizeof bad_integers[0]; i++) {
    char yaml[256];
    snprintf(yaml, sizeof yaml, "hidden_size: 256\nintermediate_size: 128\nnum_experts: %s\ntop_k: 2\n",
             bad_integers[i]);
    check_refused(yaml, 3, bad_integers[i][0] ? 14 : 13, "num_experts|a plain decimal integer from 1 to 4096");
  }
}

/* The same where the decimal point is a comma. Such a locale is made when the machine has only its source. */
static void numbers_do_not_depend_on_the_locale(void) {
  static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "nl_NL.UTF-8", "ru_RU.UTF-8"};
  char folder[] = "/tmp/purr-locale-XXXXXX", command[256];
  const char *found = NULL;
  for (size_t i = 0; found == NULL && i < sizeof names / sizeof names[0]; i++) found = setlocale(LC_ALL, names[i]);
  bool made = found == NULL && mkdtemp(folder) != NULL;
  if (made) {
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >%s/log 2>&1", folder, folder);
    if (system(command) == 0 && setenv("LOCPATH", folder, 1) == 0) found = setlocale(LC_ALL, names[0]);
  }
  if (found == NULL) {
    fprintf(stderr, "no locale with a decimal comma here; not tested\n");
  } else {
    char half[16];
    snprintf(half, sizeof half, "%.1f", 0.5);
    CU_ASSERT_STRING_EQUAL(half, "0,5"); /* the locale is in force */
    check_numbers();
    purr_error_t err;
    purr_config_t *config;
    char text[16384];
    purr_layer_desc_t layer = PURR_LAYER_DESC_INIT;
    layer.hidden_size = layer.intermediate_size = layer.num_experts = layer.top_k = 8;
    layer.swiglu_limit = 0.1f;
    ASSERT_OK(purr_config_create(context, &layer, &config, &err));
    ASSERT_OK(purr_config_write(config, text, sizeof text, NULL, &err));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\nswiglu_limit: 0.1 "));
    purr_plan_t *plan;
    ASSERT_OK(purr_plan_create(context, config, NULL, &plan, &err));
    ASSERT_OK(purr_plan_describe(plan, PURR_FORMAT_TEXT, text, sizeof text, NULL, &err));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, " 3.00 KiB\n")); /* the weights */
    purr_plan_destroy(plan);
    purr_config_destroy(config);
    snprintf(half, sizeof half, "%.1f", 0.5);
    CU_ASSERT_STRING_EQUAL(half, "0,5"); /* and still is: the caller's locale is left alone */
  }
  setlocale(LC_ALL, "C");
  unsetenv("LOCPATH");
  snprintf(command, sizeof command, "rm -r %s", folder);
  if (made && system(command) != 0) fprintf(stderr, "%s is left behind\n", folder);
}

/* Bug report B55: repeated keys and odd documents. */
static void b55_odd_documents(void) {
  check_refused("num_experts: 8\nnum_experts: 16\n", 2, 1, "'num_experts'|on line 1|line 2");
  check_refused(GOOD "shared_expert:\n  gate: none\n  gate: none\n", 7, 3, "'shared_expert.gate'|on line 6|line 7");
  check_refused(GOOD "\"num_\\x65xperts\": 8\n", 5, 1, "'num_experts'|on line 3|line 5");
  check_refused("<<: *base\n" GOOD, 1, 1, "merge key");
  check_refused("\"<<\": 1\n" GOOD, 1, 1, "merge key");
  check_refused("", 1, 1, "empty");
  check_refused("\xEF\xBB\xBF", 1, 1, "empty");
  check_refused("# a comment\n\n", 1, 1, "empty");
  check_refused("8\n", 1, 1, "single value");
  check_refused(GOOD "---\n" GOOD, 5, 1, "second document");
  check_refused(GOOD "...\n---\n" GOOD, 6, 1, "second document");
  check_refused(GOOD "...\n" GOOD, 6, 1, "not valid YAML");
  check_refused("- " GOOD, 1, 1, "list");
  check_refused(GOOD "shared_expert:\n\tgate: none\n", 6, 1, "tab");
  check_refused("\xFF\xFE" GOOD, 1, 1, "UTF-16");
  check_refused("\xFE\xFF" GOOD, 1, 1, "UTF-16");
  check_refused("a: &x 1\n", 1, 4, "anchor '&x'");
  check_refused("&x a: 1\n", 1, 1, "anchor '&x'");
  check_refused("hidden_size: !!int 8\n", 1, 14, "tag");
  check_refused("hidden_size: ! 8\n", 1, 14, "tag");
  check_refused("!t\nhidden_size: 8\n", 1, 1, "tag");
  check_refused("%TAG ! tag:x,2000:\n---\n" GOOD, 1, 1, "directives");
  check_refused("{hidden_size: 8}", 1, 1, "flow style");
  check_refused("top_k: 2: 3\n", 1, 9, "not valid YAML: mapping values are not allowed");
  check_refused_bytes(GOOD "\0junk", sizeof GOOD + 4, 5, 1, "NUL");
  purr_error_t err;
  purr_layer_desc_t layer;
  ASSERT_OK(parse("\xEF\xBB\xBF" GOOD, &layer, &err));
}

/* Bug report S05: experts that the ranks cannot share evenly, in a file, in numbers and after an override. */
static void s05_uneven_split(void) {
  check_refused(GOOD "num_ranks: 3\n", 5, 12, "num_experts 8|num_ranks 3|not divisible");
  purr_error_t err;
  purr_config_t *config;
  purr_layer_desc_t layer = PURR_LAYER_DESC_INIT;
  layer.hidden_size = layer.intermediate_size = 64;
  layer.num_experts = 6;
  layer.top_k = 2;
  layer.num_ranks = 4;
  ASSERT_STATUS(PURR_STATUS_CONFIG, purr_config_create(context, &layer, &config, &err));
  CU_ASSERT_STRING_EQUAL(err.message,
                         "num_experts 6 is not divisible by num_ranks 4; every rank holds the same number of experts");
  CU_ASSERT_EQUAL(err.line, 0);
  layer.num_ranks = 6;
  REQUIRE_OK(purr_config_create(context, &layer, &config, &err));
  purr_config_destroy(config);
  REQUIRE_OK(purr_config_parse(context, GOOD, strlen(GOOD), "t.yaml", &config, &err));
  layer = config->layer;
  layer.num_ranks = 3;
  ASSERT_STATUS(PURR_STATUS_CONFIG, purr__layer_check_at(&layer, &config->places, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "t.yaml:3:14: num_experts 8 is not divisible by num_ranks 3"));
  purr_config_destroy(config);
}

static void check_rule(bool is_good, void (*change)(purr_layer_desc_t *layer, int64_t value), int64_t value) {
  purr_error_t err;
  purr_config_t *config;
  purr_layer_desc_t layer = PURR_LAYER_DESC_INIT;
  layer.hidden_size = layer.intermediate_size = 64;
  layer.num_experts = layer.top_k = 8;
  change(&layer, value);
  ASSERT_STATUS(is_good ? PURR_STATUS_OK : PURR_STATUS_CONFIG, purr_config_create(context, &layer, &config, &err));
  CU_ASSERT_EQUAL(config != NULL, is_good);
  purr_config_destroy(config);
}

#define SETTER(field) \
  static void set_##field(purr_layer_desc_t *layer, int64_t value) { layer->field = (__typeof__(layer->field))value; }
SETTER(hidden_size)
SETTER(precision)
SETTER(backend)
SETTER(top_k)
SETTER(max_tokens)
SETTER(shared_intermediate_size)
SETTER(shared_gate)
SETTER(activation_memory)
SETTER(minibatch_rows)
SETTER(swiglu_limit)
SETTER(timeout_ms)

static void set_mxfp8_intermediate_size(purr_layer_desc_t *layer, int64_t value) {
  layer->precision = PURR_PRECISION_MXFP8;
  layer->intermediate_size = value;
}

static void set_macrobatch_rows(purr_layer_desc_t *layer, int64_t value) {
  layer->minibatch_rows = 128;
  layer->macrobatch_rows = value;
}

static void set_lone_macrobatch_rows(purr_layer_desc_t *layer, int64_t value) { layer->macrobatch_rows = value; }

static void set_swiglu_limit_special(purr_layer_desc_t *layer, int64_t value) {
  layer->swiglu_limit = value == 0 ? NAN : INFINITY;
}

/* The rules for numbers that come without a file. */
static void rules_of_numbers(void) {
  check_rule(false, set_hidden_size, 0);
  check_rule(false, set_hidden_size, 12);
  check_rule(true, set_hidden_size, 8);
  check_rule(false, set_hidden_size, (1 << 20) + 8);
  check_rule(false, set_hidden_size, -8);
  check_rule(false, set_precision, 2);
  check_rule(false, set_backend, -1);
  check_rule(true, set_backend, PURR_BACKEND_MEGA);
  check_rule(true, set_top_k, 64); /* more than the 8 experts: a token may name one twice */
  check_rule(false, set_top_k, 65);
  check_rule(true, set_max_tokens, (INT32_MAX - 8 * 63) / 8);
  check_rule(false, set_max_tokens, (INT32_MAX - 8 * 63) / 8 + 1);
  check_rule(false, set_max_tokens, INT64_MAX);
  check_rule(true, set_shared_intermediate_size, 24); /* BF16 always, whatever the precision */
  check_rule(false, set_shared_intermediate_size, 20);
  check_rule(false, set_shared_gate, PURR_SHARED_GATE_SIGMOID); /* without a shared expert */
  check_rule(true, set_activation_memory, -1);
  check_rule(false, set_activation_memory, -2);
  check_rule(true, set_minibatch_rows, 64);
  check_rule(false, set_minibatch_rows, 32);
  check_rule(true, set_macrobatch_rows, 256);
  check_rule(false, set_macrobatch_rows, 192);
  check_rule(true, set_lone_macrobatch_rows, 128);
  check_rule(false, set_lone_macrobatch_rows, 64); /* has no room for two minibatches of any size */
  check_rule(false, set_swiglu_limit, -1);
  check_rule(false, set_swiglu_limit_special, 0);
  check_rule(false, set_swiglu_limit_special, 1);
  check_rule(false, set_timeout_ms, -1);
  check_rule(true, set_mxfp8_intermediate_size, 32);
  check_rule(false, set_mxfp8_intermediate_size, 40);
}

/* ---- hostile text ---- */

/* Refused within the second and a few MiB, with a terminated message. */
static void check_hostile(const char *name, const char *head, const char *unit, uint64_t num_bytes) {
  char *text = malloc(num_bytes + strlen(unit));
  uint64_t used = strlen(head);
  memcpy(text, head, used);
  for (; used < num_bytes; used += strlen(unit)) memcpy(text + used, unit, strlen(unit));
  purr_error_t err;
  purr_layer_desc_t layer;
  uint64_t begin = purr__now_ns();
  ASSERT_STATUS(PURR_STATUS_CONFIG, parse_bytes(text, num_bytes, &layer, &err));
  double seconds = (double)(purr__now_ns() - begin) * 1e-9;
  if (seconds > 1.0) fprintf(stderr, "%s took %.2f s\n", name, seconds);
  CU_ASSERT_TRUE(seconds <= 1.0);
  CU_ASSERT_TRUE(strlen(err.message) < sizeof err.message - 1);
  for (const char *c = err.message; *c; c++) CU_ASSERT_TRUE_FATAL((unsigned char)*c >= 0x20);
  free(text);
}

static void hostile_text(void) {
  const uint64_t most = PURR__YAML_MAX_BYTES;
  check_hostile("too long", "", "#", most + 1);
  check_hostile("nested flow lists", "", "[", most);
  check_hostile("nested flow lists as a value", "hidden_size: ", "[", most);
  check_hostile("nested flow lists by line", "hidden_size: ", "[\n", most);
  check_hostile("nested flow mappings", "", "{a: ", most);
  check_hostile("nested lists", "", "- ", most);
  check_hostile("nested complex keys", "", "? ", most);
  check_hostile("colons", "", ":", most);
  check_hostile("keys", "", "a: 1\n", most);
  check_hostile("known keys", "", "top_k: 2\n", most);
  check_hostile("a long key", "", "k", most);
  check_hostile("a long key with control characters", "\"", "\\e", most);
  check_hostile("a long value", "hidden_size: ", "9", most);
  check_hostile("a long number", "swiglu_limit: ", "1", most);
  check_hostile("a long name", "name: ", "n", most);
  check_hostile("a long quoted name", "name: \"", "\\n", most);
  check_hostile("a long literal block", "name: |\n", "  a\n", most);
  check_hostile("a value of many lines", "name: a\n", " b\n", most);
  check_hostile("comments", "", "#\n", most);
  check_hostile("blank lines", "", "\n", most);
  check_hostile("spaces", "", " ", most);
  check_hostile("tabs", "", "\t", most);
  check_hostile("directives", "", "%TAG !a! b\n", most);
  check_hostile("documents", "", "---\n", most);
  check_hostile("document ends", "", "...\n", most);
  check_hostile("anchors", "", "&a ", most);
  check_hostile("aliases", "", "*a ", most);
  check_hostile("tags", "", "!a ", most);
  check_hostile("invalid UTF-8", "name: ", "\xC3", most);
  check_hostile("line separators", "name: ", "\xE2\x80\xA8", most);
  /* Blocks within blocks, each one column further in: 1 MiB holds about 1400. */
  char *text = malloc(most), *end = text;
  for (int depth = 0; end - text + depth + 3 < (int64_t)most; depth++) end += sprintf(end, "%*sa:\n", depth, "");
  check_refused_bytes(text, (uint64_t)(end - text), 1, 1, "unknown key 'a'");
  free(text);
}

static purr_status_t accept_all(void *user, const purr__yaml_entry_t *entry, purr_error_t *err) {
  (void)err;
  *(int *)user += entry->kind == PURR__YAML_END ? 0 : 1;
  return PURR_STATUS_OK;
}

/* The reader's own limit, for whoever lets blocks nest. */
static void yaml_depth_limit(void) {
  purr_error_t err;
  char text[512] = "";
  int num_entries = 0;
  for (int depth = 0; depth < PURR__YAML_MAX_DEPTH; depth++)
    sprintf(text + strlen(text), "%*sa:%s\n", depth, "", depth == PURR__YAML_MAX_DEPTH - 1 ? " 1" : "");
  ASSERT_OK(purr__yaml_read(text, strlen(text), "t", accept_all, &num_entries, &err));
  CU_ASSERT_EQUAL(num_entries, PURR__YAML_MAX_DEPTH);
  text[strlen(text) - 2] = '\n';
  sprintf(text + strlen(text), "%*sa: 1\n", PURR__YAML_MAX_DEPTH, "");
  ASSERT_STATUS(PURR_STATUS_CONFIG, purr__yaml_read(text, strlen(text), "t", accept_all, &num_entries, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "nested too deep; allowed are 8 levels"));
  ASSERT_STATUS(PURR_STATUS_CONFIG, purr__yaml_read("a: []", 5, "t", accept_all, &num_entries, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "lists are not accepted"));
}

/* Every cut and every single changed byte of a good file: an answer, no crash (the sanitizer builds watch). */
static void damaged_text(void) {
  static const char whole[] = "name: \"a\"\n" GOOD
                              "shared_expert:\n  intermediate_size: 64\n  gate: none\n"
                              "swiglu_limit: 7.0\nactivation_memory: 8GiB\n";
  static const char bytes[] = "\0\t\n\r :-#[]{}*&!%|>'\"@\\~0a\x7F\x80\xC3\xFF";
  purr_error_t err;
  purr_layer_desc_t layer;
  char text[sizeof whole];
  int num_good = 0;
  for (uint64_t i = 0; i < sizeof whole; i++) {
    memcpy(text, whole, sizeof whole);
    num_good += parse_bytes(text, i, &layer, &err) == PURR_STATUS_OK;
    for (uint64_t j = 0; i < sizeof whole - 1 && j < sizeof bytes - 1; j++) {
      text[i] = bytes[j];
      err = (purr_error_t)PURR_ERROR_INIT;
      purr_status_t status = parse_bytes(text, sizeof whole - 1, &layer, &err);
      CU_ASSERT_TRUE(status == PURR_STATUS_OK || (status == PURR_STATUS_CONFIG && err.line > 0 && err.column > 0));
    }
  }
  CU_ASSERT_TRUE(num_good > 10 && num_good < (int)sizeof whole / 2);
}

/* ---- files, round trips, memory ---- */

static void long_and_hostile_file_names(void) {
  purr_error_t err;
  purr_config_t *config;
  char name[4000];
  memset(name, 'x', sizeof name);
  strcpy(name + sizeof name - 12, "/kimi\n.yaml");
  const char *text = GOOD "foo: 1\n";
  ASSERT_STATUS(PURR_STATUS_CONFIG, purr_config_parse(context, text, strlen(text), name, &config, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "xxx/kimi\\x0A.yaml:5:1: unknown key 'foo'"));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "num_comm_sms")); /* the end of the sentence is there */
  ASSERT_STATUS(PURR_STATUS_CONFIG, purr_config_parse(context, text, strlen(text), NULL, &config, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "config:5:1: "));
}

static void files(void) {
  purr_error_t err;
  purr_config_t *config = (purr_config_t *)1;
  ASSERT_STATUS(PURR_STATUS_IO, purr_config_load(context, "/nowhere/layer.yaml", &config, &err));
  CU_ASSERT_PTR_NULL(config);
  CU_ASSERT_STRING_EQUAL(err.message, "'/nowhere/layer.yaml' could not be opened: No such file or directory");
  CU_ASSERT_TRUE(err.native_code > 0);
  ASSERT_STATUS(PURR_STATUS_IO, purr_config_load(context, PURR_SOURCE_DIR, &config, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "is not a regular file"));
  ASSERT_STATUS(PURR_STATUS_IO, purr_config_load(context, "/dev/zero", &config, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_config_load(context, NULL, &config, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_config_load(context, "x", NULL, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_config_load(NULL, "x", &config, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_config_parse(context, NULL, 5, "t", &config, &err));
  ASSERT_STATUS(PURR_STATUS_CONFIG, purr_config_parse(context, NULL, 0, "t", &config, &err));

  char path[] = "/tmp/purr-config-XXXXXX";
  int file = mkstemp(path);
  CU_ASSERT_TRUE_FATAL(file >= 0);
  char *text = malloc(PURR__YAML_MAX_BYTES);
  memset(text, '#', PURR__YAML_MAX_BYTES);
  memcpy(text, GOOD, strlen(GOOD));
  ssize_t written = write(file, text, PURR__YAML_MAX_BYTES);
  CU_ASSERT_EQUAL(written, PURR__YAML_MAX_BYTES);
  REQUIRE_OK(purr_config_load(context, path, &config, &err)); /* exactly the limit */
  purr_config_destroy(config);
  written = write(file, "#", 1);
  CU_ASSERT_EQUAL(written, 1);
  ASSERT_STATUS(PURR_STATUS_CONFIG, purr_config_load(context, path, &config, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "allowed are at most 1048576"));
  close(file);
  unlink(path);
  CU_ASSERT_EQUAL(mkfifo(path, 0600), 0);
  ASSERT_STATUS(PURR_STATUS_IO, purr_config_load(context, path, &config, &err)); /* at once, without a writer */
  unlink(path);
  free(text);
}

#define DIGEST "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void check_round_trip(const purr_layer_desc_t *layer) {
  purr_error_t err;
  purr_config_t *config;
  purr_layer_desc_t before = PURR_LAYER_DESC_INIT, after = PURR_LAYER_DESC_INIT;
  char text[4096];
  uint64_t length = 0, again = 0;
  REQUIRE_OK(purr_config_create(context, layer, &config, &err));
  ASSERT_OK(purr_config_get_layer(config, &before, &err));
  ASSERT_OK(purr_config_write(config, NULL, 0, &length, &err));
  ASSERT_STATUS(PURR_STATUS_BUFFER_TOO_SMALL, purr_config_write(config, text, length, &again, &err));
  CU_ASSERT_EQUAL(again, length);
  ASSERT_OK(purr_config_write(config, text, length + 1, NULL, &err));
  CU_ASSERT_EQUAL(strlen(text), length);
  purr_config_destroy(config);
  REQUIRE_OK(parse(text, &after, &err));
  CU_ASSERT_EQUAL(memcmp(&before, &after, sizeof before), 0);
}

static void write_and_read_back(void) {
  static const float limits[] = {0.1f, 7.0f, 1e5f, 0x1.fffffep127f, 0x1p-149f, 0x1.234568p-3f, 123456792.0f};
  static const int64_t memories[] = {0, -1, 1, 1000, 1024, 1536, 1 << 20, (int64_t)8 << 30, INT64_MAX};
  purr_layer_desc_t layer = {.struct_size = sizeof layer,
                             .hidden_size = 64,
                             .intermediate_size = 96,
                             .num_experts = 12,
                             .top_k = 3,
                             .shared_intermediate_size = 8,
                             .shared_gate = PURR_SHARED_GATE_SIGMOID,
                             .precision = PURR_PRECISION_MXFP8,
                             .mxfp8_activation_granularity = PURR_GRANULARITY_1X128,
                             .backend = PURR_BACKEND_HOST,
                             .max_tokens = 7,
                             .num_ranks = 3,
                             .minibatch_rows = 64,
                             .macrobatch_rows = 128,
                             .num_comm_sms = 2,
                             .timeout_ms = 1};
  for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
    layer.swiglu_limit = limits[i];
    check_round_trip(&layer);
  }
  for (size_t i = 0; i < sizeof memories / sizeof memories[0]; i++) {
    layer.activation_memory = memories[i];
    check_round_trip(&layer);
  }
  layer.shared_intermediate_size = layer.shared_gate = 0;
  check_round_trip(&layer);

  purr_error_t err;
  purr_config_t *config;
  char text[4096];
  const char *named = GOOD "name: 'a \"b\" \\ # c'\npackage_digest: " DIGEST "\n";
  REQUIRE_OK(purr_config_parse(context, named, strlen(named), NULL, &config, &err));
  ASSERT_OK(purr_config_write(config, text, sizeof text, NULL, &err));
  purr_config_destroy(config);
  REQUIRE_OK(purr_config_parse(context, text, strlen(text), NULL, &config, &err));
  CU_ASSERT_STRING_EQUAL(config->texts.name, "a \"b\" \\ # c");
  CU_ASSERT_STRING_EQUAL(config->texts.package_digest, DIGEST);
  purr_config_destroy(config);
}

/* The keys as JSON, in the words of the YAML. */
static void describe_as_json(void) {
  static const char expected[] =
      "{\n  \"name\": \"a \\\"b\\\"\",\n  \"hidden_size\": 256,\n  \"intermediate_size\": 128,\n"
      "  \"num_experts\": 8,\n  \"top_k\": 2,\n  \"shared_expert\": {\n    \"intermediate_size\": 64,\n"
      "    \"gate\": \"sigmoid\"\n  },\n  \"swiglu_limit\": 0.5,\n  \"precision\": \"bf16\",\n  \"mxfp8\": null,\n  "
      "\"backend\": "
      "\"auto\",\n  \"package_digest\": \"any\",\n  \"kernels\": null,\n"
      "  \"max_tokens\": 4096,\n  \"num_ranks\": 1,\n  \"timeout_ms\": 600000,\n  \"activation_memory\": 1048576,\n"
      "  \"minibatch_rows\": \"auto\",\n  \"macrobatch_rows\": 128,\n  \"num_comm_sms\": \"auto\"\n}\n";
  static const char yaml[] = GOOD
      "name: 'a \"b\"'\nshared_expert:\n  gate: sigmoid\n  intermediate_size: 64\n"
      "swiglu_limit: .5\nactivation_memory: 1MiB\nmacrobatch_rows: 128\n";
  purr_error_t err;
  purr_config_t *config;
  char json[1024], written[4096], text[4096];
  REQUIRE_OK(purr_config_parse(context, yaml, sizeof yaml - 1, NULL, &config, &err));
  ASSERT_OK(purr_config_describe(config, PURR_FORMAT_JSON, json, sizeof json, NULL, &err));
  CU_ASSERT_STRING_EQUAL(json, expected);
  ASSERT_OK(purr_config_describe(config, PURR_FORMAT_TEXT, text, sizeof text, NULL, &err));
  ASSERT_OK(purr_config_write(config, written, sizeof written, NULL, &err));
  CU_ASSERT_STRING_EQUAL(text, written);
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_config_describe(config, 2, json, sizeof json, NULL, &err));
  purr_config_destroy(config);
  REQUIRE_OK(purr_config_parse(context, GOOD, sizeof GOOD - 1, NULL, &config, &err));
  ASSERT_OK(purr_config_describe(config, PURR_FORMAT_JSON, json, sizeof json, NULL, &err));
  CU_ASSERT_PTR_NOT_NULL(strstr(json, "  \"shared_expert\": null,\n"));
  purr_config_destroy(config);
}

static void memory_runs_out(void) {
  purr_error_t err;
  purr_test_allocator_t memory;
  purr_test_allocator_init(&memory);
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  desc.host_allocator = &memory.hooks;
  desc.num_threads = 1;
  purr_context_t *small;
  purr_config_t *config;
  REQUIRE_OK(purr_context_create(&desc, &small, &err));
  long long num_live = memory.num_live;
  for (int i = 1; i <= 2; i++) { /* the text of the file, the object */
    config = (purr_config_t *)1;
    memory.fail_at = memory.num_calls + i;
    ASSERT_STATUS(PURR_STATUS_OUT_OF_HOST_MEMORY, purr_config_load(small, CONFIGS "/qwen3_30b.yaml", &config, &err));
    CU_ASSERT_PTR_NULL(config);
    CU_ASSERT_EQUAL(memory.num_live, num_live);
  }
  REQUIRE_OK(purr_config_load(small, CONFIGS "/qwen3_30b.yaml", &config, &err));
  CU_ASSERT_EQUAL(memory.num_live, num_live + 1);
  memory.fail_at = memory.num_calls + 1;
  uint64_t length;
  ASSERT_STATUS(PURR_STATUS_OUT_OF_HOST_MEMORY, purr_config_write(config, NULL, 0, &length, &err));
  purr_context_destroy(small);
  purr_config_destroy(config);
  CU_ASSERT_EQUAL(memory.num_live, 0);
  CU_ASSERT_EQUAL(memory.num_wrong, 0);
}

/* The handle checks, and a caller with an older struct. */
static void handles_and_structs(void) {
  purr_error_t err;
  purr_config_t *config;
  purr_layer_desc_t layer = PURR_LAYER_DESC_INIT;
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_config_get_layer(NULL, &layer, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_config_create(context, NULL, &config, &err));
  layer.hidden_size = layer.intermediate_size = layer.num_experts = layer.top_k = 8;
  layer.struct_size = offsetof(purr_layer_desc_t, max_tokens);
  layer.max_tokens = -5; /* beyond what this caller knows */
  REQUIRE_OK(purr_config_create(context, &layer, &config, &err));
  CU_ASSERT_EQUAL(config->layer.max_tokens, 4096);
  ASSERT_OK(purr_config_get_layer(config, &layer, &err));
  CU_ASSERT_EQUAL(layer.max_tokens, -5);
  CU_ASSERT_EQUAL(layer.struct_size, offsetof(purr_layer_desc_t, max_tokens));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_config_get_layer(config, NULL, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_config_get_layer((purr_config_t *)(void *)context, &layer, &err));
  purr_config_destroy(config);
  purr_config_destroy(NULL);
  struct {
    purr_layer_desc_t known;
    uint64_t unknown;
  } newer = {PURR_LAYER_DESC_INIT, 1};
  newer.known.struct_size = sizeof newer;
  ASSERT_STATUS(PURR_STATUS_INCOMPATIBLE_STRUCT, purr_config_create(context, &newer.known, &config, &err));
  CU_ASSERT_PTR_NULL(config);
}

int main(void) {
  if (purr_context_create(NULL, &context, NULL) != PURR_STATUS_OK) return 1;
  int code = purr_test_main("config",
                            (purr_test_t[]){{"the smallest config loads with defaults", loads_the_smallest},
                                            {"every key loads", loads_every_key},
                                            {"the given configs load", loads_the_given_configs},
                                            {"schema.yaml has every key at its default", schema_file_is_complete},
                                            {"configs/bad give their messages", refuses_the_bad_configs},
                                            {"B51 unknown keys", b51_unknown_keys},
                                            {"B53 numbers", check_numbers},
                                            {"B53 numbers under a decimal comma", numbers_do_not_depend_on_the_locale},
                                            {"B55 repeated keys and odd documents", b55_odd_documents},
                                            {"S05 uneven split", s05_uneven_split},
                                            {"rules of numbers", rules_of_numbers},
                                            {"hostile text", hostile_text},
                                            {"depth limit", yaml_depth_limit},
                                            {"damaged text", damaged_text},
                                            {"long and hostile file names", long_and_hostile_file_names},
                                            {"files", files},
                                            {"write and read back", write_and_read_back},
                                            {"describe as JSON", describe_as_json},
                                            {"memory runs out", memory_runs_out},
                                            {"handles and structs", handles_and_structs},
                                            {0}});
  purr_context_destroy(context);
  return code;
}
