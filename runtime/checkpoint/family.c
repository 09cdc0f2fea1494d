/* The model families, one row each, and the reading of config.json. The defaults of a row are those of the family's
 * Hugging Face configuration class, so that a key that a file leaves out means what it means there. */
#include "checkpoint/family.h"

#include <stdio.h>

#include "base/json.h"
#include "base/number.h"
#include "config/config.h"

/* ---- the keys of config.json that matter ---- */

typedef enum field {
  MODEL_TYPE,
  HIDDEN_SIZE,
  DENSE_SIZE,  /* intermediate_size: of the experts in families without dense layers */
  EXPERT_SIZE, /* moe_intermediate_size */
  NUM_EXPERTS,
  TOP_K,
  NUM_SHARED,  /* shared experts, each as large as a routed one */
  SHARED_SIZE, /* size of the one shared expert */
  NUM_LAYERS,
  FIRST_K_DENSE,
  LAYER_PERIOD,
  SPARSE_STEP,
  NUM_GROUPS,
  NUM_TOP_GROUPS,
  NORMALIZE,
  SCORING,
  METHOD,
  ACTIVATION,
  MLP_BIAS,
  NUM_INTEGERS,
  SCALING = NUM_INTEGERS,
  SWIGLU_LIMIT,
  DENSE_LAYERS,
  QUANTIZATION,
  NUM_FIELDS
} field_t;

enum { METHOD_GREEDY, METHOD_GROUP_MAX, METHOD_GROUP_TOP2 };

typedef struct word {
  const char *word;
  int64_t value;
} word_t;
static const word_t booleans[] = {{"false", 0}, {"true", 1}, {NULL, 0}};
static const word_t scorings[] = {{"softmax", PURR_ROUTER_SOFTMAX}, {"sigmoid", PURR_ROUTER_SIGMOID}, {NULL, 0}};
static const word_t methods[] = {
    {"greedy", METHOD_GREEDY}, {"group_limited_greedy", METHOD_GROUP_MAX}, {"noaux_tc", METHOD_GROUP_TOP2}, {NULL, 0}};
static const word_t activations[] = {{"silu", 0}, {"swish", 0}, {NULL, 0}};

/* Some fields are spelled in several ways: one family's class takes the other families' names too. */
static const struct {
  const char *name;
  field_t field;
  int64_t min, max;    /* of an integer */
  const word_t *words; /* or one of these */
} keys[] = {
    {"model_type", MODEL_TYPE, 0, 0, NULL},
    {"hidden_size", HIDDEN_SIZE, 1, 1 << 24, NULL},
    {"intermediate_size", DENSE_SIZE, 1, 1 << 24, NULL},
    {"moe_intermediate_size", EXPERT_SIZE, 1, 1 << 24, NULL},
    {"num_experts", NUM_EXPERTS, 1, 1 << 20, NULL},
    {"num_local_experts", NUM_EXPERTS, 1, 1 << 20, NULL},
    {"n_routed_experts", NUM_EXPERTS, 1, 1 << 20, NULL},
    {"num_experts_per_tok", TOP_K, 1, 1 << 20, NULL},
    {"n_shared_experts", NUM_SHARED, 0, 1 << 10, NULL},
    {"shared_expert_intermediate_size", SHARED_SIZE, 0, 1 << 24, NULL},
    {"num_hidden_layers", NUM_LAYERS, 1, PURR__MAX_LAYERS, NULL},
    {"first_k_dense_replace", FIRST_K_DENSE, 0, PURR__MAX_LAYERS, NULL},
    {"moe_layer_freq", LAYER_PERIOD, 1, PURR__MAX_LAYERS, NULL},
    {"decoder_sparse_step", SPARSE_STEP, 1, PURR__MAX_LAYERS, NULL},
    {"n_group", NUM_GROUPS, 1, 1 << 20, NULL},
    {"topk_group", NUM_TOP_GROUPS, 1, 1 << 20, NULL},
    {"norm_topk_prob", NORMALIZE, 0, 0, booleans},
    {"scoring_func", SCORING, 0, 0, scorings},
    {"topk_method", METHOD, 0, 0, methods},
    {"hidden_act", ACTIVATION, 0, 0, activations},
    {"mlp_bias", MLP_BIAS, 0, 0, booleans},
    {"routed_scaling_factor", SCALING, 0, 0, NULL},
    {"swiglu_limit", SWIGLU_LIMIT, 0, 0, NULL},
    {"mlp_only_layers", DENSE_LAYERS, 0, 0, NULL},
    {"quantization_config", QUANTIZATION, 0, 0, NULL},
};
enum { NUM_KEYS = sizeof keys / sizeof keys[0] };

/* ---- the families ---- */

struct purr__family {
  const char *types[3];       /* model_type */
  const char *modules[2];     /* name of the MoE block in a decoder layer; files of several ages differ */
  const char *projections[3]; /* of one expert: gate, up, down */
  const char *shared;         /* name of the shared expert, if the family has one */
  bool has_shared_gate;
  field_t expert_size; /* which key gives I */
  /* The two places where DeepSeek-V2 computes differently: it scales only what it has not normalised, and it normalises
   * only with K > 1. */
  bool scales_or_normalizes;
  float normalize_epsilon;
  int64_t defaults[NUM_INTEGERS];
  float default_scaling;
};

#define PROJECTIONS \
  { "gate_proj", "up_proj", "down_proj" }
#define COMMON [LAYER_PERIOD] = 1, [SPARSE_STEP] = 1, [NUM_GROUPS] = 1, [NUM_TOP_GROUPS] = 1

static const struct purr__family families[] = {
    {.types = {"qwen2_moe"},
     .modules = {"mlp"},
     .projections = PROJECTIONS,
     .shared = "shared_expert",
     .has_shared_gate = true,
     .expert_size = EXPERT_SIZE,
     .default_scaling = 1.0f,
     .defaults = {COMMON, [HIDDEN_SIZE] = 2048, [EXPERT_SIZE] = 1408, [SHARED_SIZE] = 5632, [NUM_EXPERTS] = 60,
                  [TOP_K] = 4, [NUM_LAYERS] = 24}},
    {.types = {"qwen3_moe"},
     .modules = {"mlp"},
     .projections = PROJECTIONS,
     .expert_size = EXPERT_SIZE,
     .default_scaling = 1.0f,
     .defaults =
         {COMMON, [HIDDEN_SIZE] = 2048, [EXPERT_SIZE] = 768, [NUM_EXPERTS] = 128, [TOP_K] = 8, [NUM_LAYERS] = 24}},
    {.types = {"deepseek_v2"},
     .modules = {"mlp"},
     .projections = PROJECTIONS,
     .shared = "shared_experts",
     .expert_size = EXPERT_SIZE,
     .scales_or_normalizes = true,
     .normalize_epsilon = 1e-20f,
     .default_scaling = 1.0f,
     .defaults = {COMMON, [HIDDEN_SIZE] = 4096, [EXPERT_SIZE] = 1407, [NUM_SHARED] = 2, [NUM_EXPERTS] = 64,
                  [NUM_LAYERS] = 32, [METHOD] = METHOD_GREEDY}},
    {.types = {"deepseek_v3", "kimi_k2"},
     .modules = {"mlp"},
     .projections = PROJECTIONS,
     .shared = "shared_experts",
     .expert_size = EXPERT_SIZE,
     .normalize_epsilon = 1e-20f,
     .default_scaling = 2.5f,
     .defaults = {[LAYER_PERIOD] = 1,
                  [SPARSE_STEP] = 1,
                  [HIDDEN_SIZE] = 7168,
                  [EXPERT_SIZE] = 2048,
                  [NUM_SHARED] = 1,
                  [NUM_EXPERTS] = 256,
                  [TOP_K] = 8,
                  [NUM_LAYERS] = 61,
                  [FIRST_K_DENSE] = 3,
                  [NUM_GROUPS] = 8,
                  [NUM_TOP_GROUPS] = 4,
                  [NORMALIZE] = 1,
                  [SCORING] = PURR_ROUTER_SIGMOID,
                  [METHOD] = METHOD_GROUP_TOP2}},
    {.types = {"mixtral"},
     .modules = {"block_sparse_moe", "mlp"},
     .projections = {"w1", "w3", "w2"},
     .expert_size = DENSE_SIZE,
     .default_scaling = 1.0f,
     .defaults = {COMMON, [HIDDEN_SIZE] = 4096, [DENSE_SIZE] = 14336, [NUM_EXPERTS] = 8, [TOP_K] = 2, [NUM_LAYERS] = 32,
                  [NORMALIZE] = 1}},
    {.types = {"olmoe"},
     .modules = {"mlp"},
     .projections = PROJECTIONS,
     .expert_size = DENSE_SIZE,
     .default_scaling = 1.0f,
     .defaults =
         {COMMON, [HIDDEN_SIZE] = 2048, [DENSE_SIZE] = 2048, [NUM_EXPERTS] = 64, [TOP_K] = 8, [NUM_LAYERS] = 16}},
    {.types = {"glm4_moe"},
     .modules = {"mlp"},
     .projections = PROJECTIONS,
     .shared = "shared_experts",
     .expert_size = EXPERT_SIZE,
     .normalize_epsilon = 1e-20f,
     .default_scaling = 1.0f,
     .defaults = {COMMON, [HIDDEN_SIZE] = 4096, [EXPERT_SIZE] = 1408, [NUM_SHARED] = 1, [NUM_EXPERTS] = 128,
                  [TOP_K] = 8, [NUM_LAYERS] = 46, [FIRST_K_DENSE] = 1, [NORMALIZE] = 1, [SCORING] = PURR_ROUTER_SIGMOID,
                  [METHOD] = METHOD_GROUP_TOP2}},
};
enum { NUM_FAMILIES = sizeof families / sizeof families[0], MAX_TYPES = 3 };

/* ---- reading ---- */

/* The file as it stands: which fields it has, and what they hold. */
typedef struct raw {
  bool has[NUM_FIELDS];
  int64_t integers[NUM_INTEGERS];
  float scaling, swiglu_limit;
} raw_t;

static purr_status_t read_type(purr__json_t *json, purr__model_t *model) {
  if (!purr__json_take(json, PURR__JSON_STRING, "model_type")) return json->status;
  char known[256] = "", found[32];
  for (int i = 0; i < NUM_FAMILIES; i++)
    for (int j = 0; j < MAX_TYPES && families[i].types[j] != NULL; j++) {
      const char *type = families[i].types[j];
      size_t used = strlen(known);
      snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "", type);
      if (!purr__json_is(json, type)) continue;
      model->family = &families[i];
      snprintf(model->type, sizeof model->type, "%s", type);
      return PURR_STATUS_OK;
    }
  return purr__json_fail_as(json, PURR_STATUS_UNSUPPORTED, "model_type is '%s'; known are %s",
                            purr__printable(found, sizeof found, json->token, json->token_length), known);
}

static purr_status_t read_word(purr__json_t *json, purr__json_event_t event, const char *key, const word_t *words,
                               int64_t *out_value) {
  bool is_boolean = words == booleans;
  char allowed[128] = "", found[64];
  for (int i = 0; words[i].word != NULL; i++) {
    bool same = is_boolean ? event == (words[i].value ? PURR__JSON_TRUE : PURR__JSON_FALSE)
                           : event == PURR__JSON_STRING && purr__json_is(json, words[i].word);
    if (same) {
      *out_value = words[i].value;
      return PURR_STATUS_OK;
    }
    size_t used = strlen(allowed);
    snprintf(allowed + used, sizeof allowed - used, "%s%s", used > 0 ? ", " : "", words[i].word);
  }
  if (event == PURR__JSON_STRING && !is_boolean)
    return purr__json_fail_as(json, PURR_STATUS_UNSUPPORTED, "%s is '%s'; Purr can run %s", key,
                              purr__printable(found, sizeof found, json->token, json->token_length), allowed);
  return purr__json_fail(json, "%s is %s; allowed are %s", key, purr__json_event_name(event), allowed);
}

static purr_status_t read_real(purr__json_t *json, purr__json_event_t event, const char *key, float *out_value) {
  char found[64];
  if (event == PURR__JSON_NUMBER &&
      purr__number_parse_fp32(json->token, json->token_length, out_value) == PURR__NUMBER_GOOD && *out_value >= 0.0f)
    return PURR_STATUS_OK;
  return purr__json_fail(json, "%s is %s; allowed are numbers from 0 that FP32 can hold", key,
                         event == PURR__JSON_NUMBER
                             ? purr__printable(found, sizeof found, json->token, json->token_length)
                             : purr__json_event_name(event));
}

static purr_status_t read_dense_layers(purr__json_t *json, purr__json_event_t event, const char *key,
                                       purr__model_t *model) {
  if (event != PURR__JSON_ARRAY_BEGIN)
    return purr__json_fail(json, "%s is %s; allowed is an array", key, purr__json_event_name(event));
  while ((event = purr__json_next(json)) != PURR__JSON_ARRAY_END) {
    int64_t layer;
    if (!purr__json_get_integer(json, event, "a layer in mlp_only_layers", 0, PURR__MAX_LAYERS - 1, &layer))
      return json->status;
    model->dense_layers[layer / 64] |= (uint64_t)1 << (layer % 64);
  }
  return PURR_STATUS_OK;
}

static purr_status_t read_quantization(purr__json_t *json, purr__json_event_t event, const char *key,
                                       purr__model_t *model) {
  if (event != PURR__JSON_OBJECT_BEGIN)
    return purr__json_fail(json, "%s is %s; allowed is an object", key, purr__json_event_name(event));
  bool has_method = false, has_block = false;
  while (purr__json_next(json) == PURR__JSON_KEY) {
    bool is_method = purr__json_is(json, "quant_method"), is_block = purr__json_is(json, "weight_block_size");
    if ((is_method && has_method) || (is_block && has_block))
      return purr__json_fail(json, "%s has the same key twice", key);
    has_method |= is_method;
    has_block |= is_block;
    event = purr__json_next(json);
    if (is_method && event == PURR__JSON_STRING) {
      purr__printable(model->quantization, sizeof model->quantization, json->token, json->token_length);
    } else if (is_block && event == PURR__JSON_ARRAY_BEGIN) {
      static const char what[] = "a size in weight_block_size";
      if (!purr__json_take_integer(json, what, 1, 1 << 24, &model->block_rows) ||
          !purr__json_take_integer(json, what, 1, 1 << 24, &model->block_cols) ||
          !purr__json_take(json, PURR__JSON_ARRAY_END, "a third size in weight_block_size"))
        return json->status;
    } else {
      purr__json_skip_rest(json, event);
    }
  }
  return json->status;
}

/* Reads the value of keys[i]. null means that the key is not there, except for the number of shared experts. */
static purr_status_t read_value(purr__json_t *json, int i, raw_t *raw, purr__model_t *model) {
  field_t field = keys[i].field;
  const char *key = keys[i].name;
  if (field == MODEL_TYPE) {
    raw->has[field] = true;
    return read_type(json, model);
  }
  int64_t value = 0;
  purr__json_event_t event = purr__json_next(json);
  if (event == PURR__JSON_FAILED) return json->status;
  if (event == PURR__JSON_NULL && field != NUM_SHARED) return PURR_STATUS_OK;
  bool had = raw->has[field];
  raw->has[field] = true;
  if (field == SCALING) return read_real(json, event, key, &raw->scaling);
  if (field == SWIGLU_LIMIT) return read_real(json, event, key, &raw->swiglu_limit);
  if (field == DENSE_LAYERS) return read_dense_layers(json, event, key, model);
  if (field == QUANTIZATION) return read_quantization(json, event, key, model);
  if (keys[i].words != NULL) {
    if (read_word(json, event, key, keys[i].words, &value) != PURR_STATUS_OK) return json->status;
  } else if (event != PURR__JSON_NULL) {
    if (!purr__json_get_integer(json, event, key, keys[i].min, keys[i].max, &value)) return json->status;
  }
  if (had && value != raw->integers[field])
    return purr__json_fail(json, "%s is %lld, but under another name the same key is %lld", key, (long long)value,
                           (long long)raw->integers[field]);
  raw->integers[field] = value;
  return PURR_STATUS_OK;
}

static purr_status_t read_keys(purr__json_t *json, raw_t *raw, purr__model_t *model) {
  bool seen[NUM_KEYS] = {false};
  if (!purr__json_take(json, PURR__JSON_OBJECT_BEGIN, "the file")) return json->status;
  while (purr__json_next(json) == PURR__JSON_KEY) {
    int i = 0;
    while (i < NUM_KEYS && !purr__json_is(json, keys[i].name)) i++;
    if (i == NUM_KEYS) {
      purr__json_skip(json);
      continue;
    }
    if (seen[i]) return purr__json_fail(json, "%s is there twice", keys[i].name);
    seen[i] = true;
    if (read_value(json, i, raw, model) != PURR_STATUS_OK) return json->status;
  }
  purr__json_take(json, PURR__JSON_END, "what comes behind the object");
  return json->status;
}

/* ---- from the file's words to a model ---- */

static purr_status_t check_router(const purr__model_t *model, const char *label, purr_error_t *err) {
  int64_t num_experts = model->num_experts, top_k = model->top_k;
  int64_t num_groups = model->router.num_groups, num_top_groups = model->router.num_top_groups;
  if (top_k < 1 || top_k > num_experts)
    return purr__fail(err, PURR_STATUS_CHECKPOINT,
                      "%s: num_experts_per_tok is %lld; allowed are 1 to the number of experts, %lld", label,
                      (long long)top_k, (long long)num_experts);
  if (num_experts % num_groups != 0 || num_top_groups > num_groups)
    return purr__fail(
        err, PURR_STATUS_CHECKPOINT,
        "%s: n_group is %lld and topk_group %lld; n_group must divide the %lld experts and be no less than "
        "topk_group",
        label, (long long)num_groups, (long long)num_top_groups, (long long)num_experts);
  int64_t group_size = num_experts / num_groups;
  if (top_k > num_top_groups * group_size || (num_groups > 1 && group_size < model->router.group_top))
    return purr__fail(
        err, PURR_STATUS_CHECKPOINT,
        "%s: %lld groups of %lld experts, of which a token uses %lld, are too small to choose %lld experts", label,
        (long long)num_groups, (long long)group_size, (long long)num_top_groups, (long long)top_k);
  return PURR_STATUS_OK;
}

static void set_router(const raw_t *raw, purr__model_t *model) {
  int64_t method = raw->integers[METHOD];
  float scaling = raw->has[SCALING] ? raw->scaling : model->family->default_scaling;
  bool normalize = raw->integers[NORMALIZE] != 0;
  if (model->family->scales_or_normalizes) {
    normalize = normalize && model->top_k > 1;
    if (normalize) scaling = 1.0f;
  }
  bool has_groups = method != METHOD_GREEDY;
  model->has_router_bias = method == METHOD_GROUP_TOP2;
  model->router = (purr_router_desc_t){
      .struct_size = sizeof model->router,
      .scoring = (int32_t)raw->integers[SCORING],
      .num_groups = has_groups ? (int32_t)raw->integers[NUM_GROUPS] : 1,
      .num_top_groups = has_groups ? (int32_t)raw->integers[NUM_TOP_GROUPS] : 1,
      .group_top = method == METHOD_GROUP_TOP2 ? 2 : 1,
      .normalize = normalize,
      .scaling = scaling,
      .normalize_epsilon = model->family->normalize_epsilon,
  };
}

static purr_status_t set_model(raw_t *raw, purr__model_t *model, const char *label, purr_error_t *err) {
  if (!raw->has[MODEL_TYPE]) return purr__fail(err, PURR_STATUS_CHECKPOINT, "%s: there is no model_type", label);
  const struct purr__family *family = model->family;
  for (int field = 0; field < NUM_INTEGERS; field++)
    if (!raw->has[field]) raw->integers[field] = family->defaults[field];
  if (raw->integers[MLP_BIAS])
    return purr__fail(err, PURR_STATUS_UNSUPPORTED, "%s: mlp_bias is true; Purr's experts have no biases", label);
  const int64_t *integers = raw->integers;
  model->hidden_size = integers[HIDDEN_SIZE];
  model->intermediate_size = integers[family->expert_size];
  model->num_experts = integers[NUM_EXPERTS];
  model->top_k = integers[TOP_K];
  if (family->shared != NULL)
    model->shared_intermediate_size = integers[SHARED_SIZE] + integers[NUM_SHARED] * model->intermediate_size;
  model->has_shared_gate = family->has_shared_gate && model->shared_intermediate_size > 0;
  model->num_layers = integers[NUM_LAYERS];
  model->first_k_dense = integers[FIRST_K_DENSE];
  model->layer_period = integers[LAYER_PERIOD];
  model->sparse_step = integers[SPARSE_STEP];
  model->swiglu_limit = raw->swiglu_limit;
  set_router(raw, model);
  return check_router(model, label, err);
}

purr_status_t purr__model_read(const purr_checkpoint_t *checkpoint, purr__model_t *out_model, purr_error_t *err) {
  *out_model = (purr__model_t){0};
  if (checkpoint->config == NULL)
    return purr__fail(err, PURR_STATUS_CHECKPOINT,
                      "%s has no config.json, which says what its layers are; give the folder of a whole checkpoint",
                      purr__label(checkpoint->path, "").text);
  purr__label_t label = purr__label(checkpoint->path, "config.json");
  raw_t raw = {0};
  purr__json_t json;
  purr__json_begin(&json, checkpoint->config, checkpoint->config_bytes, label.text, err);
  purr_status_t status = read_keys(&json, &raw, out_model);
  return status == PURR_STATUS_OK ? set_model(&raw, out_model, label.text, err) : status;
}

/* ---- layers ---- */

bool purr__model_is_moe(const purr__model_t *model, int64_t layer) {
  return layer >= 0 && layer < model->num_layers && layer >= model->first_k_dense && layer % model->layer_period == 0 &&
         (layer + 1) % model->sparse_step == 0 && (model->dense_layers[layer / 64] >> (layer % 64) & 1) == 0;
}

purr_status_t purr__model_resolve_layer(const purr_checkpoint_t *checkpoint, const purr__model_t *model, int64_t *layer,
                                        purr_error_t *err) {
  int64_t first = 0;
  while (first < model->num_layers && !purr__model_is_moe(model, first)) first++;
  if (first == model->num_layers)
    return purr__fail(err, PURR_STATUS_CHECKPOINT, "%s: none of the model's %lld decoder layers has experts",
                      purr__label(checkpoint->path, "config.json").text, (long long)model->num_layers);
  if (*layer == -1) *layer = first;
  if (*layer < 0 || *layer >= model->num_layers)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "layer is %lld; allowed are 0 to %lld, and -1 for the first with experts", (long long)*layer,
                      (long long)model->num_layers - 1);
  if (!purr__model_is_moe(model, *layer))
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "layer %lld is dense; the first with experts is %lld",
                      (long long)*layer, (long long)first);
  return PURR_STATUS_OK;
}

purr_status_t purr__model_get_layer(const purr_checkpoint_t *checkpoint, const purr__model_t *model,
                                    purr_layer_desc_t *out_layer, purr_error_t *err) {
  *out_layer =
      (purr_layer_desc_t){.struct_size = sizeof *out_layer,
                          .hidden_size = model->hidden_size,
                          .intermediate_size = model->intermediate_size,
                          .num_experts = model->num_experts,
                          .top_k = model->top_k,
                          .shared_intermediate_size = model->shared_intermediate_size,
                          .shared_gate = model->has_shared_gate ? PURR_SHARED_GATE_SIGMOID : PURR_SHARED_GATE_NONE,
                          .swiglu_limit = model->swiglu_limit};
  purr__layer_fill_defaults(out_layer);
  purr_error_t reason = PURR_ERROR_INIT;
  if (purr__layer_check(out_layer, &reason) == PURR_STATUS_OK) return PURR_STATUS_OK;
  return purr__fail(err, PURR_STATUS_UNSUPPORTED, "%s: Purr cannot run this layer: %s",
                    purr__label(checkpoint->path, "config.json").text, reason.message);
}

/* ---- names ---- */

static bool has_tensor(const purr_checkpoint_t *checkpoint, const char *module, const char *name) {
  char full[160];
  uint64_t length = (uint64_t)snprintf(full, sizeof full, "%s%s", module, name);
  return purr__directory_find(&checkpoint->tensors, full, length) != NULL ||
         purr__directory_find(&checkpoint->absent, full, length) != NULL;
}

static const char packed_gate_up[] = "experts.gate_up_proj", packed_down[] = "experts.down_proj";
static const char router[] = "gate.weight";

/* Files of a whole model begin with "model.", those of its base without; older and newer files of one family call the
 * block differently. The first spelling of which a tensor is there counts, so that messages name it. */
void purr__naming_find(const purr_checkpoint_t *checkpoint, const purr__model_t *model, int64_t layer,
                       purr__naming_t *out_naming) {
  static const char *const roots[] = {"model.", ""};
  char first_expert[64];
  snprintf(first_expert, sizeof first_expert, "experts.0.%s.weight", model->family->projections[0]);
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2 && model->family->modules[j] != NULL; j++) {
      purr__naming_t naming;
      snprintf(naming.module, sizeof naming.module, "%slayers.%lld.%s.", roots[i], (long long)layer,
               model->family->modules[j]);
      naming.is_packed =
          has_tensor(checkpoint, naming.module, packed_gate_up) || has_tensor(checkpoint, naming.module, packed_down);
      bool is_there = naming.is_packed || has_tensor(checkpoint, naming.module, first_expert) ||
                      has_tensor(checkpoint, naming.module, router);
      if (is_there || (i == 0 && j == 0)) *out_naming = naming;
      if (is_there) return;
    }
}

bool purr__naming_has(const purr__model_t *model, const purr__naming_t *naming, purr__role_t role) {
  switch (role) {
    case PURR__ROLE_GATE_UP:
      return naming->is_packed;
    case PURR__ROLE_GATE:
    case PURR__ROLE_UP:
      return !naming->is_packed;
    case PURR__ROLE_SHARED_GATE:
    case PURR__ROLE_SHARED_UP:
    case PURR__ROLE_SHARED_DOWN:
      return model->shared_intermediate_size > 0;
    case PURR__ROLE_SHARED_EXPERT_GATE:
      return model->has_shared_gate;
    case PURR__ROLE_ROUTER_BIAS:
      return model->has_router_bias;
    default:
      return true;
  }
}

void purr__naming_want(const purr__model_t *model, const purr__naming_t *naming, purr__role_t role, int64_t expert,
                       purr__wanted_t *out_wanted) {
  static const char *const shared_projections[] = {"gate_proj", "up_proj", "down_proj"};
  const int64_t hidden = model->hidden_size, inner = model->intermediate_size;
  const int64_t shared = model->shared_intermediate_size, num_experts = model->num_experts;
  const int64_t matrices[PURR__NUM_ROLES][2] = {
      [PURR__ROLE_GATE_UP] = {2 * inner, hidden},  [PURR__ROLE_GATE] = {inner, hidden},
      [PURR__ROLE_UP] = {inner, hidden},           [PURR__ROLE_DOWN] = {hidden, inner},
      [PURR__ROLE_SHARED_GATE] = {shared, hidden}, [PURR__ROLE_SHARED_UP] = {shared, hidden},
      [PURR__ROLE_SHARED_DOWN] = {hidden, shared}, [PURR__ROLE_SHARED_EXPERT_GATE] = {1, hidden},
      [PURR__ROLE_ROUTER] = {num_experts, hidden}, [PURR__ROLE_ROUTER_BIAS] = {num_experts, 0},
  };
  bool is_routed = purr__role_is_routed(role);
  purr__wanted_t wanted = {.num_dims = role == PURR__ROLE_ROUTER_BIAS ? 1 : 2};
  memcpy(wanted.shape, matrices[role], sizeof matrices[role]);
  if (is_routed && naming->is_packed)
    wanted = (purr__wanted_t){.num_dims = 3, .shape = {num_experts, matrices[role][0], matrices[role][1]}};

  char tail[64];
  if (is_routed && naming->is_packed)
    snprintf(tail, sizeof tail, "%s", role == PURR__ROLE_GATE_UP ? packed_gate_up : packed_down);
  else if (is_routed)
    snprintf(tail, sizeof tail, "experts.%lld.%s.weight", (long long)expert,
             model->family->projections[role - PURR__ROLE_GATE]);
  else if (role <= PURR__ROLE_SHARED_DOWN)
    snprintf(tail, sizeof tail, "%s.%s.weight", model->family->shared,
             shared_projections[role - PURR__ROLE_SHARED_GATE]);
  else if (role == PURR__ROLE_SHARED_EXPERT_GATE)
    snprintf(tail, sizeof tail, "shared_expert_gate.weight");
  else
    snprintf(tail, sizeof tail, "%s", role == PURR__ROLE_ROUTER ? router : "gate.e_score_correction_bias");
  snprintf(wanted.name, sizeof wanted.name, "%s%s", naming->module, tail);
  *out_wanted = wanted;
}
