/* purr config: checks a layer config, or makes one from a checkpoint, and prints it. */
#include "program.h"

static const help_t help = {
    .command = "config",
    .usage = "CONFIG | --from-checkpoint DIR [--layer N] [--json]",
    .about =
        "Checks a layer config and prints it with all its keys, or makes the config of a checkpoint's MoE\n"
        "layer. What is printed can be used as a config. A wrong config is an error with file:line:column,\n"
        "what was found and what is allowed.",
    .example =
        "  purr config configs/qwen3_30b.yaml\n"
        "  purr config --from-checkpoint Qwen3-30B-A3B --layer 3 > layer.yaml",
};

typedef struct config_options {
  const char *config_path, *checkpoint_path;
  int64_t layer_idx; /* -1 = the first MoE layer */
  bool json;
} config_options_t;

static purr_status_t describe_config(const void *config, int32_t format, char *buffer, uint64_t capacity,
                                     uint64_t *out_length, purr_error_t *err) {
  return purr_config_describe(config, format, buffer, capacity, out_length, err);
}

static int show_file(purr_context_t *context, const config_options_t *options) {
  purr_config_t *config;
  purr_error_t err = PURR_ERROR_INIT;
  if (purr_config_load(context, options->config_path, &config, &err) != PURR_STATUS_OK)
    return fail_call("config", "configs/schema.yaml explains every key", &err);
  int code = print_description("config", describe_config, config, options->json);
  purr_config_destroy(config);
  return code;
}

static int show_checkpoint(purr_context_t *context, const config_options_t *options) {
  purr_checkpoint_t *checkpoint;
  purr_config_t *config;
  purr_error_t err = PURR_ERROR_INIT;
  if (purr_checkpoint_open(context, options->checkpoint_path, &checkpoint, &err) != PURR_STATUS_OK)
    return fail_call("config", "DIR holds config.json beside model.safetensors or model.safetensors.index.json", &err);
  purr_status_t status = purr_checkpoint_create_config(checkpoint, options->layer_idx, &config, &err);
  int code;
  if (status == PURR_STATUS_OK)
    code = print_description("config", describe_config, config, options->json);
  else
    code = fail_call("config", "--layer N chooses a layer that has experts", &err);
  purr_config_destroy(config);
  purr_checkpoint_destroy(checkpoint);
  return code;
}

int cmd_config(int argc, char **argv) {
  config_options_t options = {.layer_idx = -1};
  const option_t table[] = {
      {.name = "from-checkpoint",
       .kind = OPTION_TEXT,
       .value = &options.checkpoint_path,
       .metavar = "DIR",
       .help = "make the config of a layer of this safetensors checkpoint"},
      {.name = "layer",
       .kind = OPTION_INT,
       .value = &options.layer_idx,
       .metavar = "N",
       .min = 0,
       .max = 100000,
       .help = "decoder layer of the checkpoint (default: its first MoE layer)"},
      {.name = "json", .kind = OPTION_FLAG, .value = &options.json, .help = "print one JSON object instead of YAML"},
      {0}};
  int code = options_parse(&help, table, argc, argv, &options.config_path, 1);
  if (code != OPTIONS_GO_ON) return code;
  const char *next = "for example: purr config configs/qwen3_30b.yaml";
  if (options.config_path == NULL && options.checkpoint_path == NULL)
    return fail("config", next, "a CONFIG or --from-checkpoint is needed");
  if (options.config_path != NULL && options.checkpoint_path != NULL)
    return fail("config", next, "CONFIG is checked, --from-checkpoint makes one: both were given");
  if (options.layer_idx >= 0 && options.checkpoint_path == NULL)
    return fail("config", "add --from-checkpoint DIR, or leave --layer away", "--layer names a layer of a checkpoint");
  purr_context_t *context;
  purr_error_t err = PURR_ERROR_INIT;
  if (purr_context_create(NULL, &context, &err) != PURR_STATUS_OK)
    return fail_call("config", "correct or unset the environment variable", &err);
  code = options.config_path != NULL ? show_file(context, &options) : show_checkpoint(context, &options);
  purr_context_destroy(context);
  return code;
}
