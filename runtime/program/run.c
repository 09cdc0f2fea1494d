/* purr run: one layer on real or generated tokens, and what it did. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
        "--output. The hash is FNV-1a over the result's 64-bit words, with hash ^= hash >> 29 after each.",
    .example =
        "  purr run configs/qwen3_30b.yaml --tokens 64 --backward\n"
        "  purr run configs/deepseek_v2_lite.yaml --routing zipf:1.0 --ranks 4 --json\n"
        "  purr run --checkpoint Qwen3-30B-A3B --layer 3 --input tokens.safetensors --output out.safetensors",
};

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
           "repeat %lld gave other hashes than the first", (long long)i + 1);
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

/* ---------------------------------------------------------------------------------------------------------- command */

static int run_layer(run_t *run) {
  const run_options_t *options = &run->options;
  int code = run_open(run, "run", options->backward);
  if (code == EXIT_GOOD && options->output_path != NULL) code = run_check_output(run, "output", options->output_path);
  if (code == EXIT_GOOD && options->output_path != NULL) {
    run->output = open_output("run", options->output_path, &run->output_is_new);
    if (run->output == NULL) code = EXIT_BAD_INPUT;
  }
  if (code == EXIT_GOOD) code = run_fill(run);
  if (code == EXIT_GOOD) code = run_passes(run);
  if (code == EXIT_GOOD) code = summarize(run);
  if (code == EXIT_GOOD && run->output != NULL) code = write_output(run);
  return code;
}

int cmd_run(int argc, char **argv) {
  run_t run = {.options = {.layer = LAYER_OPTIONS_INIT, .num_tokens = -1, .num_repeats = 1}};
  run_options_t *options = &run.options;
  const option_t table[] = {
      RUN_OPTION_ENTRIES(*options),
      {.name = "backward", .kind = OPTION_FLAG, .value = &options->backward, .help = "run backward too"},
      {.name = "repeat",
       .kind = OPTION_INT,
       .value = &options->num_repeats,
       .metavar = "N",
       .min = 1,
       .max = 100000,
       .help = "run N times, show the median, check that the hashes stay equal"},
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
  code = run_layer(&run);
  if (code == EXIT_GOOD) options->json ? run_write_json(&run) : run_print(&run);
  if (run.output != NULL) fclose(run.output);
  if (code != EXIT_GOOD && run.output_is_new) unlink(options->output_path);
  free(run.forward.infos);
  free(run.backward.infos);
  run_close(&run);
  return code;
}
