/* purr run: one layer on real or generated tokens, and what it did. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "random.h"
#include "run.h"

static const help_t help = {
    .command = "run",
    .usage = "[CONFIG] [options]",
    .about =
        "Runs a layer, forward and with --backward also backward, and shows tokens per expert, time per\n"
        "phase, TFLOP/s, memory, and a hash of the results. CONFIG is a YAML file; with --checkpoint the\n"
        "layer is taken from the checkpoint. Equal options give equal bits, for any --ranks and --threads.\n"
        "\n"
        "Generated tokens and weights are normal, weights scaled by 1/sqrt(fan-in). Nothing is written but\n"
        "--output. The hash is FNV-1a over the result's 64-bit words.",
    .example =
        "  purr run configs/qwen3_30b.yaml --tokens 64 --backward\n"
        "  purr run configs/deepseek_v2_lite.yaml --routing zipf:1.0 --ranks 4 --json\n"
        "  purr run --checkpoint Qwen3-30B-A3B --layer 3 --input tokens.safetensors --output out.safetensors",
};

enum { DEFAULT_TOKENS = 512 };

/* ------------------------------------------------------------------------------------------------------------ input */

static int check_options(run_t *run) {
  run_options_t *options = &run->options;
  bool has_checkpoint = options->layer.checkpoint_path != NULL;
  if (options->config_path == NULL && !has_checkpoint)
    return fail("run", "for example: purr run configs/qwen3_30b.yaml --tokens 64",
                "a CONFIG or --checkpoint is needed");
  if (options->input_path != NULL && options->num_tokens >= 0)
    return fail("run", "leave one of them away", "--tokens generates tokens, --input reads them: both were given");
  if (!has_checkpoint && options->layer.layer_idx >= 0)
    return fail("run", "add --checkpoint DIR, or leave --layer away", "--layer names a layer of a checkpoint");
  if (options->routing_text == NULL) {
    run->routing.kind = has_checkpoint ? ROUTING_CHECKPOINT : ROUTING_UNIFORM;
    return EXIT_GOOD;
  }
  int code = routing_parse("run", options->routing_text, &run->routing);
  if (code == EXIT_GOOD && run->routing.kind == ROUTING_CHECKPOINT && !has_checkpoint)
    code = fail("run", "add --checkpoint DIR, or use --routing uniform", "--routing checkpoint needs a checkpoint");
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
    return fail("run",
                "known are x, topk_ids, topk_weights and d_output, also as input.x and so on; expect.* is skipped",
                "%s has a tensor %.100s, which is not an input%s%s%s", run->options.input_path, full_name,
                nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
  }
  return EXIT_GOOD;
}

/* Opens the files, and takes T from the first of: --tokens, the input, the routing, the default. */
static int find_num_tokens(run_t *run, int64_t *out_num_tokens) {
  const run_options_t *options = &run->options;
  purr_tensor_t tensor;
  *out_num_tokens = options->num_tokens;
  if (options->input_path != NULL) {
    int code = open_tensors(&run->layer, options->input_path, &run->input);
    if (code != EXIT_GOOD) return code;
    if (!find_input(run->input, "x", &tensor))
      return fail("run", "the file needs a tensor named x or input.x, [tokens, hidden_size] in BF16 or F32",
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

/* ------------------------------------------------------------------------------------------------------------- work */

static void hash_results(const layer_t *layer, uint64_t *hashes) {
  const purr_layer_desc_t *shape = &layer->shape;
  uint64_t num_values = (uint64_t)(layer->num_tokens * shape->hidden_size);
  uint64_t num_expert_values = (uint64_t)(shape->num_experts * shape->intermediate_size * shape->hidden_size);
  hashes[HASH_OUTPUT] = hash_memory(layer->output, num_values * sizeof *layer->output);
  if (layer->d_x == NULL) return;
  hashes[HASH_D_X] = hash_memory(layer->d_x, num_values * sizeof *layer->d_x);
  hashes[HASH_D_TOPK_WEIGHTS] =
      hash_memory(layer->d_topk_weights, (uint64_t)(layer->num_tokens * shape->top_k) * sizeof *layer->d_topk_weights);
  hashes[HASH_D_GATE_UP] = hash_memory(layer->d_gate_up, 2 * num_expert_values * sizeof *layer->d_gate_up);
  hashes[HASH_D_DOWN] = hash_memory(layer->d_down, num_expert_values * sizeof *layer->d_down);
}

static purr_result_info_t slowest(const layer_t *layer, bool backward) {
  purr_result_info_t all = {.struct_size = sizeof all};
  for (int64_t r = 0; r < layer->num_ranks; r++) {
    const purr_result_info_t *info = backward ? &layer->ranks[r].backward : &layer->ranks[r].forward;
    all.num_rows += info->num_rows;
    all.num_replayed_rows += info->num_replayed_rows;
    if (info->total_ns > all.total_ns) all.total_ns = info->total_ns;
    for (int i = 0; i < PURR_NUM_PHASES; i++)
      if (info->phase_ns[i] > all.phase_ns[i]) all.phase_ns[i] = info->phase_ns[i];
  }
  return all;
}

static int compare_totals(const void *a, const void *b) {
  uint64_t left = ((const purr_result_info_t *)a)->total_ns, right = ((const purr_result_info_t *)b)->total_ns;
  return (left > right) - (left < right);
}

static void finish_pass(pass_t *pass, int64_t num_repeats, double flops) {
  qsort(pass->infos, (size_t)num_repeats, sizeof *pass->infos, compare_totals);
  pass->median = pass->infos[num_repeats / 2];
  pass->flops = flops;
}

static int run_passes(run_t *run) {
  layer_t *layer = &run->layer;
  int64_t num_repeats = run->options.num_repeats;
  run->forward.infos = calloc((size_t)num_repeats, sizeof *run->forward.infos);
  run->backward.infos = calloc((size_t)num_repeats, sizeof *run->backward.infos);
  if (run->forward.infos == NULL || run->backward.infos == NULL)
    return fail("run", "take a smaller --repeat", "memory ran out");
  for (int64_t i = 0; i < num_repeats; i++) {
    uint64_t hashes[NUM_HASHES] = {0};
    int code = layer_forward(layer);
    if (code != EXIT_GOOD) return code;
    run->forward.infos[i] = slowest(layer, false);
    if (run->options.backward) {
      code = layer_backward(layer);
      if (code != EXIT_GOOD) return code;
      run->backward.infos[i] = slowest(layer, true);
    }
    hash_results(layer, hashes);
    if (i > 0 && memcmp(hashes, run->hashes, sizeof hashes) != 0) {
      fail("run", "this is a bug: please report it with this command line",
           "repeat %lld gave other bits than the first", (long long)i + 1);
      return EXIT_CHECK_FAILED;
    }
    memcpy(run->hashes, hashes, sizeof hashes);
  }
  return EXIT_GOOD;
}

static int summarize(run_t *run) {
  layer_t *layer = &run->layer;
  const purr_layer_desc_t *shape = &layer->shape;
  purr_error_t err = PURR_ERROR_INIT;
  run->min_tokens_per_expert = INT64_MAX;
  for (int64_t e = 0; e < shape->num_experts; e++) {
    int64_t count = layer->tokens_per_expert[e];
    run->num_slots += count;
    if (count > run->max_tokens_per_expert) run->max_tokens_per_expert = count;
    if (count < run->min_tokens_per_expert) run->min_tokens_per_expert = count;
  }
  double flops = 6.0 * (double)shape->hidden_size *
                 ((double)run->num_slots * (double)shape->intermediate_size +
                  (double)layer->num_tokens * (double)shape->shared_intermediate_size);
  finish_pass(&run->forward, run->options.num_repeats, flops);
  finish_pass(&run->backward, run->options.num_repeats, 2.0 * flops);
  run->counters.struct_size = sizeof run->counters;
  if (purr_context_query_counters(layer->context, &run->counters, &err) != PURR_STATUS_OK)
    return fail_call("run", NULL, &err);
  return EXIT_GOOD;
}

static int write_output(run_t *run) {
  const layer_t *layer = &run->layer;
  int64_t T = layer->num_tokens, H = layer->shape.hidden_size, K = layer->shape.top_k;
  const named_tensor_t tensors[] = {
      {"output", tensor_of(PURR_DTYPE_BF16, layer->output, T, H, 0)},
      {"topk_ids", tensor_of(PURR_DTYPE_INT64, layer->topk_ids, T, K, 0)},
      {"topk_weights", tensor_of(PURR_DTYPE_FP32, layer->topk_weights, T, K, 0)},
      {"d_x", tensor_of(PURR_DTYPE_BF16, layer->d_x, T, H, 0)},
      {"d_topk_weights", tensor_of(PURR_DTYPE_FP32, layer->d_topk_weights, T, K, 0)},
  };
  FILE *file = run->output;
  run->output = NULL;
  return write_safetensors("run", file, run->options.output_path, tensors, run->options.backward ? 5 : 3);
}

/* The output is written last, over whatever is there: not over what the run reads. */
static int check_output(const run_t *run) {
  const run_options_t *options = &run->options;
  const char *const read[] = {options->config_path, options->layer.checkpoint_path, options->input_path,
                              run->routing.kind == ROUTING_FILE ? run->routing.path : NULL};
  static const char *const what[] = {"the config", "a file of --checkpoint", "the file of --input",
                                     "the file of --routing"};
  for (int i = 0; i < 4; i++)
    if (read[i] != NULL && is_same_file(options->output_path, read[i]))
      return fail("run", "give --output another file", "--output %s is %s, which this run reads", options->output_path,
                  what[i]);
  return EXIT_GOOD;
}

/* ---------------------------------------------------------------------------------------------------------- command */

static int run_layer(run_t *run) {
  const run_options_t *options = &run->options;
  int64_t num_tokens;
  int code = layer_open(&run->layer, "run", options->config_path, &options->layer);
  if (code == EXIT_GOOD) code = find_num_tokens(run, &num_tokens);
  if (code == EXIT_GOOD) code = layer_allocate(&run->layer, &options->layer, num_tokens, options->backward);
  if (code == EXIT_GOOD && options->output_path != NULL) code = check_output(run);
  if (code == EXIT_GOOD && options->output_path != NULL) {
    run->output = open_output("run", options->output_path, &run->output_is_new);
    if (run->output == NULL) code = EXIT_BAD_INPUT;
  }
  if (code == EXIT_GOOD) code = fill_tokens(run);
  if (code == EXIT_GOOD) code = fill_routing(run);
  if (code != EXIT_GOOD) return code;
  layer_generate_weights(&run->layer, (uint64_t)options->seed);
  code = layer_prepare(&run->layer);
  if (code == EXIT_GOOD) code = run_passes(run);
  if (code == EXIT_GOOD) code = summarize(run);
  if (code == EXIT_GOOD && run->output != NULL) code = write_output(run);
  return code;
}

int cmd_run(int argc, char **argv) {
  run_t run = {.options = {.layer = LAYER_OPTIONS_INIT, .num_tokens = -1, .num_repeats = 1}};
  run_options_t *options = &run.options;
  const option_t table[] = {
      {.name = "tokens",
       .kind = OPTION_INT,
       .value = &options->num_tokens,
       .metavar = "N",
       .max = 1 << 24,
       .help = "generate N tokens, over all ranks (default: 512, or max_tokens if less)"},
      {.name = "input",
       .kind = OPTION_TEXT,
       .value = &options->input_path,
       .metavar = "FILE",
       .help = "read tokens x [N, hidden_size] from a safetensors file, and topk_ids,\n"
               "topk_weights and d_output where it has them (input.x and so on also work)"},
      {.name = "routing",
       .kind = OPTION_TEXT,
       .value = &options->routing_text,
       .metavar = "R",
       .help = "uniform, zipf:S (S = 0 is uniform), checkpoint (its own router), or a\n"
               "safetensors file with topk_ids and topk_weights (default: what --input\n"
               "has, else checkpoint with --checkpoint, else uniform)"},
      LAYER_OPTION_ENTRIES(options->layer),
      {.name = "backward", .kind = OPTION_FLAG, .value = &options->backward, .help = "run backward too"},
      {.name = "repeat",
       .kind = OPTION_INT,
       .value = &options->num_repeats,
       .metavar = "N",
       .min = 1,
       .max = 100000,
       .help = "run N times, show the median, check that the bits stay equal"},
      {.name = "seed",
       .kind = OPTION_INT,
       .value = &options->seed,
       .metavar = "N",
       .max = INT64_MAX,
       .help = "seed of what is generated (default: 0)"},
      {.name = "output",
       .kind = OPTION_TEXT,
       .value = &options->output_path,
       .metavar = "FILE",
       .help = "write output, topk_ids and topk_weights (and the gradients d_x and\n"
               "d_topk_weights) to a safetensors file"},
      {.name = "json", .kind = OPTION_FLAG, .value = &options->json, .help = "print one JSON object"},
      {0}};
  int code = options_parse(&help, table, argc, argv, &options->config_path, 1);
  if (code != OPTIONS_GO_ON) return code;
  code = check_options(&run);
  if (code == EXIT_GOOD) code = run_layer(&run);
  if (code == EXIT_GOOD) options->json ? run_write_json(&run) : run_print(&run);
  if (run.output != NULL) fclose(run.output);
  if (code != EXIT_GOOD && run.output_is_new) unlink(options->output_path);
  free(run.forward.infos);
  free(run.backward.infos);
  purr_checkpoint_destroy(run.input);
  purr_checkpoint_destroy(run.routing_file);
  layer_close(&run.layer);
  return code;
}
