/* purr plan: explains a layer before anything runs. */
#include <stdlib.h>

#include "program.h"

static const help_t help = {
    .command = "plan",
    .usage = "CONFIG [options]",
    .about =
        "Explains a layer: which backend runs it and why, minibatch and macrobatch with the computation\n"
        "behind them, what is kept for backward and what is computed again, and where every byte of one\n"
        "rank goes. Nothing is run, and no GPU is needed, except for a backend that needs one to choose kernels for.",
    .example =
        "  purr plan configs/kimi_k2.yaml --sms 148 --ranks 64\n"
        "  purr plan configs/qwen3_30b.yaml --max-tokens 16384 --json",
};

typedef struct plan_options {
  const char *config_path;
  int64_t num_sms, num_ranks, max_tokens, device; /* device -1 = the first, where there is one */
  int backend, precision; /* indices into backend_names and precision_names; precision -1 = as in the config */
  bool json;
} plan_options_t;

int print_description(const char *command, describe_fn describe, const void *object, bool json) {
  const int32_t format = json ? PURR_FORMAT_JSON : PURR_FORMAT_TEXT;
  purr_error_t err = PURR_ERROR_INIT;
  uint64_t length = 0;
  purr_status_t status = describe(object, format, NULL, 0, &length, &err);
  char *text = status == PURR_STATUS_OK ? malloc(length + 1) : NULL;
  if (text != NULL) status = describe(object, format, text, length + 1, NULL, &err);
  int code = EXIT_GOOD;
  if (status != PURR_STATUS_OK)
    code = fail_call(command, NULL, &err);
  else if (text == NULL)
    code = fail(command, "free some memory", "memory ran out");
  else
    fputs(text, stdout);
  free(text);
  return code;
}

static purr_status_t describe_plan(const void *plan, int32_t format, char *buffer, uint64_t capacity,
                                   uint64_t *out_length, purr_error_t *err) {
  return purr_plan_describe(plan, format, buffer, capacity, out_length, err);
}

static int make_plan(purr_context_t *context, const plan_options_t *options) {
  purr_config_t *config;
  purr_error_t err = PURR_ERROR_INIT;
  if (purr_config_load(context, options->config_path, &config, &err) != PURR_STATUS_OK)
    return fail_call("plan", "configs/schema.yaml explains every key", &err);
  purr_plan_desc_t desc = PURR_PLAN_DESC_INIT;
  desc.num_sms = (int32_t)options->num_sms;
  desc.num_ranks = (int32_t)options->num_ranks;
  desc.max_tokens = options->max_tokens;
  desc.device = (int32_t)options->device + 1;
  desc.backend = options->backend;
  desc.precision = options->precision + 1;
  purr_plan_t *plan;
  purr_plan_info_t info = {.struct_size = sizeof info};
  int code;
  if (purr_plan_create(context, config, &desc, &plan, &err) != PURR_STATUS_OK ||
      purr_plan_query(plan, &info, &err) != PURR_STATUS_OK)
    code = fail_call("plan",
                     err.status == PURR_STATUS_INVALID_ARGUMENT ? "see what can be changed with: purr plan --help"
                                                                : next_of(err.status, options->num_ranks),
                     &err);
  else if (options->device >= 0 && info.backend == PURR_BACKEND_HOST)
    code = devices_fail_host("plan", "--device", context, config, desc);
  else
    code = print_description("plan", describe_plan, plan, options->json);
  purr_plan_destroy(plan);
  purr_config_destroy(config);
  return code;
}

int cmd_plan(int argc, char **argv) {
  plan_options_t options = {.precision = -1, .device = -1};
  const option_t table[] = {
      {.name = "sms",
       .kind = OPTION_INT,
       .value = &options.num_sms,
       .metavar = "N",
       .min = 1,
       .max = 65536,
       .help = "SMs to plan for (default: those of the device, else 132)"},
      {.name = "device",
       .kind = OPTION_INT,
       .value = &options.device,
       .metavar = "N",
       .max = MAX_DEVICE_NUMBER,
       .help = "GPU of the rank that is explained (default: 0, where there is one); not for backend host"},
      {.name = "ranks",
       .kind = OPTION_INT,
       .value = &options.num_ranks,
       .metavar = "R",
       .min = 1,
       .max = 4096,
       .help = "expert-parallel ranks (default: as in the config)"},
      {.name = "max-tokens",
       .kind = OPTION_INT,
       .value = &options.max_tokens,
       .metavar = "N",
       .min = 1,
       .max = INT32_MAX,
       .help = "tokens that one rank brings to one call at most (default: as in the config)"},
      {.name = "backend",
       .kind = OPTION_CHOICE,
       .value = &options.backend,
       .choices = backend_names,
       .help = "what runs it (default: as in the config)"},
      {.name = "precision",
       .kind = OPTION_CHOICE,
       .value = &options.precision,
       .choices = precision_names,
       .help = "precision of the routed experts (default: as in the config)"},
      {.name = "json", .kind = OPTION_FLAG, .value = &options.json, .help = "print one JSON object"},
      {0}};
  int code = options_parse(&help, table, argc, argv, &options.config_path, 1);
  if (code != OPTIONS_GO_ON) return code;
  if (options.config_path == NULL)
    return fail("plan", "for example: purr plan configs/kimi_k2.yaml --sms 148", "a CONFIG is needed");
  purr_context_t *context;
  purr_error_t err = PURR_ERROR_INIT;
  if (purr_context_create(NULL, &context, &err) != PURR_STATUS_OK)
    return fail_call("plan", "correct or unset the environment variable", &err);
  code = make_plan(context, &options);
  purr_context_destroy(context);
  return code;
}
