/* What a subcommand runs: the layer, its tokens and its routing, from files or generated. */
#include <string.h>

#include "random.h"
#include "run.h"

enum { DEFAULT_TOKENS = 512 };

static int check_options(run_t *run, const char *command) {
  run_options_t *options = &run->options;
  bool has_checkpoint = options->layer.checkpoint_path != NULL;
  char next[96];
  snprintf(next, sizeof next, "for example: purr %s configs/qwen3_30b.yaml --tokens 64", command);
  if (options->config_path == NULL && !has_checkpoint) return fail(command, next, "a CONFIG or --checkpoint is needed");
  if (options->input_path != NULL && options->num_tokens >= 0)
    return fail(command, "leave one of them away", "--tokens generates tokens, --input reads them: both were given");
  if (!has_checkpoint && options->layer.layer_idx >= 0)
    return fail(command, "add --checkpoint DIR, or leave --layer away", "--layer names a layer of a checkpoint");
  if (options->routing_text == NULL) {
    run->routing.kind = has_checkpoint ? ROUTING_CHECKPOINT : ROUTING_UNIFORM;
    return EXIT_GOOD;
  }
  int code = routing_parse(command, options->routing_text, &run->routing);
  if (code == EXIT_GOOD && run->routing.kind == ROUTING_CHECKPOINT && !has_checkpoint)
    code = fail(command, "add --checkpoint DIR, or use --routing uniform", "--routing checkpoint needs a checkpoint");
  return code;
}

/* A tensor that is there and does nothing is a misspelt one, more often than not. What a capture holds to be compared
 * with is for verify. */
static int check_input_names(const run_t *run) {
  static const char *const known[] = {"x", "topk_ids", "topk_weights", "d_output", NULL};
  for (int64_t i = 0; i < purr_checkpoint_num_tensors(run->input); i++) {
    const char *full_name = purr_checkpoint_tensor_name(run->input, i), *name = full_name;
    if (strncmp(name, "expect.", 7) == 0) continue;
    if (strncmp(name, "input.", 6) == 0) name += 6;
    int known_idx = 0;
    while (known[known_idx] != NULL && strcmp(known[known_idx], name) != 0) known_idx++;
    if (known[known_idx] != NULL) continue;
    const char *nearest = nearest_name(name, known);
    return fail(run->layer.command,
                "known are x, topk_ids, topk_weights and d_output, also as input.x and so on; expect.* is skipped",
                "%s has a tensor %.100s, which is not an input%s%s%s", run->options.input_path, full_name,
                nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
  }
  return EXIT_GOOD;
}

/* Opens the files, and takes T from the first of: --tokens, the input, the routing, the default. */
static int find_num_tokens(run_t *run, int64_t *out_num_tokens) {
  const run_options_t *options = &run->options;
  const char *command = run->layer.command;
  purr_tensor_t tensor;
  *out_num_tokens = options->num_tokens;
  if (options->input_path != NULL) {
    int code = open_tensors(&run->layer, options->input_path, &run->input);
    if (code != EXIT_GOOD) return code;
    if (!find_input(run->input, "x", &tensor))
      return fail(command, "the file needs a tensor named x or input.x, [tokens, hidden_size] in BF16 or F32",
                  "%s has no tensor x", options->input_path);
    code = check_input_names(run);
    if (code != EXIT_GOOD) return code;
    *out_num_tokens = tensor.shape[0];
    if (options->routing_text == NULL && find_input(run->input, "topk_ids", &tensor))
      run->routing = (routing_t){.kind = ROUTING_FILE, .path = options->input_path};
  }
  if (run->routing.kind == ROUTING_FILE) {
    int code = open_tensors(&run->layer, run->routing.path, &run->routing_file);
    if (code != EXIT_GOOD) return code;
    if (*out_num_tokens < 0 && find_input(run->routing_file, "topk_ids", &tensor)) *out_num_tokens = tensor.shape[0];
  }
  if (*out_num_tokens < 0)
    *out_num_tokens = run->layer.shape.max_tokens < DEFAULT_TOKENS ? run->layer.shape.max_tokens : DEFAULT_TOKENS;
  return EXIT_GOOD;
}

static int fill_tokens(run_t *run) {
  layer_t *layer = &run->layer;
  const run_options_t *options = &run->options;
  uint64_t seed = (uint64_t)options->seed;
  int64_t count = layer->num_tokens * layer->shape.hidden_size;
  purr_tensor_t tensor;
  int code = EXIT_GOOD;
  if (run->input == NULL)
    fill_normal(layer->x, count, seed, RANDOM_X, 1.0f);
  else
    code = rows_from_file(layer, run->input, options->input_path, "x", layer->x);
  if (code != EXIT_GOOD || layer->d_output == NULL) return code;
  if (run->input == NULL || !find_input(run->input, "d_output", &tensor))
    fill_normal(layer->d_output, count, seed, RANDOM_D_OUTPUT, 1.0f);
  else
    code = rows_from_file(layer, run->input, options->input_path, "d_output", layer->d_output);
  return code;
}

static int fill_routing(run_t *run) {
  switch (run->routing.kind) {
    case ROUTING_CHECKPOINT:
      return route_from_checkpoint(&run->layer);
    case ROUTING_FILE:
      return route_from_file(&run->layer, run->routing_file, run->routing.path);
    default:
      return route_generate(&run->layer, run->routing.exponent, (uint64_t)run->options.seed);
  }
}

int run_open(run_t *run, const char *command, bool backward) {
  const run_options_t *options = &run->options;
  int64_t num_tokens;
  int code = check_options(run, command);
  if (code == EXIT_GOOD) code = layer_open(&run->layer, command, options->config_path, &options->layer);
  if (code == EXIT_GOOD) code = find_num_tokens(run, &num_tokens);
  if (code == EXIT_GOOD) code = layer_allocate(&run->layer, &options->layer, num_tokens, backward);
  return code;
}

int run_check_output(const run_t *run, const char *option, const char *path) {
  const run_options_t *options = &run->options;
  const char *const read[] = {options->config_path, options->layer.checkpoint_path, options->input_path,
                              run->routing.kind == ROUTING_FILE ? run->routing.path : NULL};
  static const char *const what[] = {"the config", "a file of --checkpoint", "the file of --input",
                                     "the file of --routing"};
  char next[64];
  snprintf(next, sizeof next, "give --%s another file", option);
  for (int i = 0; i < 4; i++)
    if (read[i] != NULL && is_same_file(path, read[i]))
      return fail(run->layer.command, next, "--%s %s is %s, which this run reads", option, path, what[i]);
  return EXIT_GOOD;
}

int run_fill(run_t *run) {
  int code = fill_tokens(run);
  if (code == EXIT_GOOD) code = fill_routing(run);
  if (code != EXIT_GOOD) return code;
  layer_generate_weights(&run->layer, (uint64_t)run->options.seed);
  return layer_prepare(&run->layer);
}

void run_close(run_t *run) {
  purr_checkpoint_destroy(run->input);
  purr_checkpoint_destroy(run->routing_file);
  layer_close(&run->layer);
}
