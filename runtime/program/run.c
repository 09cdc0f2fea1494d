/* purr run: one layer on real or generated tokens, and what it did. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "layer.h"
#include "random.h"

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

typedef struct run_options {
  layer_options_t layer;
  const char *config_path, *input_path, *routing_text, *output_path;
  int64_t num_tokens, num_repeats, seed;
  bool backward, json;
} run_options_t;

/* One pass of all repeats. Each entry is the slowest rank's: a pass is done when its last rank is. */
typedef struct pass {
  purr_result_info_t *infos; /* sorted by total_ns */
  purr_result_info_t median;
  double flops;
} pass_t;

typedef struct run {
  run_options_t options;
  routing_t routing;
  layer_t layer;
  purr_checkpoint_t *input, *routing_file;
  FILE *output;
  pass_t forward, backward;
  purr_counters_t counters;
  int64_t num_slots, max_tokens_per_expert, min_tokens_per_expert;
  uint64_t hashes[5];
} run_t;

static const char *const hash_names[] = {"output", "d_x", "d_topk_weights", "grad.experts.gate_up_proj",
                                         "grad.experts.down_proj"};
enum { NUM_HASHES = 5, DEFAULT_TOKENS = 512 };

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
  hashes[0] = hash_memory(layer->output, num_values * sizeof *layer->output);
  if (layer->d_x == NULL) return;
  hashes[1] = hash_memory(layer->d_x, num_values * sizeof *layer->d_x);
  hashes[2] =
      hash_memory(layer->d_topk_weights, (uint64_t)(layer->num_tokens * shape->top_k) * sizeof *layer->d_topk_weights);
  hashes[3] = hash_memory(layer->d_gate_up, 2 * num_expert_values * sizeof *layer->d_gate_up);
  hashes[4] = hash_memory(layer->d_down, num_expert_values * sizeof *layer->d_down);
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

/* ----------------------------------------------------------------------------------------------------------- report */

static double imbalance(const run_t *run) {
  double mean = (double)run->num_slots / (double)run->layer.shape.num_experts;
  return mean > 0 ? (double)run->max_tokens_per_expert / mean : 1.0;
}

static double tflops(const pass_t *pass) {
  return pass->median.total_ns > 0 ? pass->flops / (double)pass->median.total_ns * 1e-3 : 0.0;
}

static void print_title(const char *title) {
  printf("\n%s%s%s\n", colour_text(stdout, COLOUR_BOLD), title, colour_text(stdout, COLOUR_NONE));
}

static void print_layer(const run_t *run) {
  const layer_t *layer = &run->layer;
  const purr_layer_desc_t *shape = &layer->shape;
  const run_options_t *options = &run->options;
  table_t table = {.alignment = "ll"};
  printf("%slayer%s\n", colour_text(stdout, COLOUR_BOLD), colour_text(stdout, COLOUR_NONE));
  table_add(&table, "from");
  table_add(&table, "%s%s%s", options->config_path ? options->config_path : "",
            options->config_path && options->layer.checkpoint_path ? ", " : "",
            options->layer.checkpoint_path ? options->layer.checkpoint_path : "");
  table_add(&table, "routed experts");
  table_add(&table, "%" PRId64 " of hidden %" PRId64 ", intermediate %" PRId64 "; top %" PRId64, shape->num_experts,
            shape->hidden_size, shape->intermediate_size, shape->top_k);
  table_add(&table, "shared expert");
  if (shape->shared_intermediate_size > 0)
    table_add(&table, "intermediate %" PRId64 "%s", shape->shared_intermediate_size,
              shape->shared_gate ? ", sigmoid gate" : "");
  else
    table_add(&table, "none");
  table_add(&table, "runs on");
  table_add(&table, "%s backend, %s, %" PRId64 " rank%s", backend_names[layer->info.backend],
            precision_names[layer->info.precision], layer->num_ranks, layer->num_ranks == 1 ? "" : "s");
  table_add(&table, "tokens");
  if (run->input != NULL)
    table_add(&table, "%s from %s", COUNT_TEXT(layer->num_tokens), options->input_path);
  else
    table_add(&table, "%s generated, seed %" PRId64, COUNT_TEXT(layer->num_tokens), options->seed);
  table_print(&table, stdout);
}

static const char *routing_name(const run_t *run, char *buffer, size_t capacity) {
  switch (run->routing.kind) {
    case ROUTING_UNIFORM:
      return "uniform";
    case ROUTING_CHECKPOINT:
      return "checkpoint";
    case ROUTING_FILE:
      return run->routing.path;
    default:
      snprintf(buffer, capacity, "zipf:%g", run->routing.exponent);
      return buffer;
  }
}

static void print_tokens_per_expert(const run_t *run) {
  enum { MOST_BARS = 16, BAR_WIDTH = 40 };
  const layer_t *layer = &run->layer;
  int64_t num_experts = layer->shape.num_experts, group_size = (num_experts + MOST_BARS - 1) / MOST_BARS;
  int64_t sums[MOST_BARS] = {0}, highest = 0, num_dropped = layer->num_tokens * layer->shape.top_k - run->num_slots;
  char name[64], bar[4 * BAR_WIDTH + 8];
  for (int64_t e = 0; e < num_experts; e++) {
    int64_t *sum = &sums[e / group_size];
    *sum += layer->tokens_per_expert[e];
    if (*sum > highest) highest = *sum;
  }
  print_title("tokens per expert");
  printf("  routing %s: %s rows, %s dropped slots\n", routing_name(run, name, sizeof name), COUNT_TEXT(run->num_slots),
         COUNT_TEXT(num_dropped));
  printf("  min %s, mean %.1f, max %s, imbalance (max / mean) %.2f\n", COUNT_TEXT(run->min_tokens_per_expert),
         (double)run->num_slots / (double)num_experts, COUNT_TEXT(run->max_tokens_per_expert), imbalance(run));
  table_t table = {.alignment = "rrl"};
  for (int64_t first = 0; first < num_experts; first += group_size) {
    int64_t last = first + group_size < num_experts ? first + group_size - 1 : num_experts - 1;
    if (first == last)
      table_add(&table, "%" PRId64, first);
    else
      table_add(&table, "%" PRId64 "-%" PRId64, first, last);
    table_add(&table, "%s", COUNT_TEXT(sums[first / group_size]));
    table_add(&table, "%s", bar_text(bar, sizeof bar, (double)sums[first / group_size], (double)highest, BAR_WIDTH));
  }
  table_print(&table, stdout);
}

static void add_pass_cells(table_t *table, const pass_t *pass, uint64_t ns) {
  table_add(table, "%s", TIME_TEXT(1e-9 * (double)ns));
  table_add(table, "%.0f %%", pass->median.total_ns ? 100.0 * (double)ns / (double)pass->median.total_ns : 0.0);
}

static void print_times(const run_t *run) {
  const pass_t *passes[] = {&run->forward, &run->backward};
  int num_passes = run->options.backward ? 2 : 1;
  int64_t num_repeats = run->options.num_repeats;
  table_t table = {.alignment = num_passes == 2 ? "lrrrr" : "lrr"};
  print_title(num_repeats > 1 ? "time per phase, of the median repeat" : "time per phase");
  table_add(&table, "phase");
  for (int i = 0; i < num_passes; i++) {
    table_add(&table, i == 0 ? "forward" : "backward");
    table_add(&table, "share");
  }
  for (int phase = 0; phase < PURR_NUM_PHASES && purr_phase_name(phase) != NULL; phase++) {
    if (passes[0]->median.phase_ns[phase] == 0 && passes[1]->median.phase_ns[phase] == 0) continue;
    table_add(&table, "%s", purr_phase_name(phase));
    for (int i = 0; i < num_passes; i++) add_pass_cells(&table, passes[i], passes[i]->median.phase_ns[phase]);
  }
  table_add(&table, "total");
  for (int i = 0; i < num_passes; i++) add_pass_cells(&table, passes[i], passes[i]->median.total_ns);
  table_add(&table, "TFLOP/s");
  for (int i = 0; i < num_passes; i++) {
    table_add(&table, "%.4g", tflops(passes[i]));
    table_add(&table, "%s", "");
  }
  if (num_repeats > 1) {
    table_add(&table, "fastest");
    for (int i = 0; i < num_passes; i++) add_pass_cells(&table, passes[i], passes[i]->infos[0].total_ns);
    table_add(&table, "slowest");
    for (int i = 0; i < num_passes; i++) add_pass_cells(&table, passes[i], passes[i]->infos[num_repeats - 1].total_ns);
  }
  table_print(&table, stdout);
}

typedef struct memory_line {
  const char *name, *key;
  uint64_t bytes;
} memory_line_t;

enum { NUM_MEMORY_LINES = 5 };

static void list_memory(const run_t *run, memory_line_t *lines) {
  const purr_plan_info_t *info = &run->layer.info;
  lines[0] = (memory_line_t){"weights", "weight_bytes", info->weight_bytes};
  lines[1] = (memory_line_t){"workspace", "workspace_bytes", info->workspace_bytes};
  lines[2] = (memory_line_t){"symmetric", "symmetric_bytes", info->symmetric_bytes};
  lines[3] = (memory_line_t){"saved for backward", "saved_bytes", run->options.backward ? info->saved_bytes : 0};
  lines[4] = (memory_line_t){"schedule (inside)", "schedule_bytes", info->schedule_bytes};
}

static void print_memory_and_hashes(const run_t *run) {
  memory_line_t lines[NUM_MEMORY_LINES];
  list_memory(run, lines);
  table_t table = {.alignment = "lr"};
  print_title("memory of a rank");
  for (int i = 0; i < NUM_MEMORY_LINES; i++) {
    table_add(&table, "%s", lines[i].name);
    table_add(&table, "%s", BYTES_TEXT(lines[i].bytes));
  }
  table_add(&table, "library, all ranks, peak");
  table_add(&table, "%s", BYTES_TEXT(run->counters.host_bytes_peak));
  table_print(&table, stdout);

  table = (table_t){.alignment = "ll"};
  print_title("hash of the bits");
  for (int i = 0; i < (run->options.backward ? NUM_HASHES : 1); i++) {
    table_add(&table, "%s", hash_names[i]);
    table_add(&table, "%016" PRIx64, run->hashes[i]);
  }
  table_print(&table, stdout);
  if (run->options.output_path != NULL) printf("\nwritten: %s\n", run->options.output_path);
}

static void write_json_pass(json_t *json, const char *key, const pass_t *pass, int64_t num_repeats) {
  json_begin(json, key, '{');
  json_real(json, "median_s", 1e-9 * (double)pass->median.total_ns);
  json_real(json, "min_s", 1e-9 * (double)pass->infos[0].total_ns);
  json_real(json, "max_s", 1e-9 * (double)pass->infos[num_repeats - 1].total_ns);
  json_real(json, "flops", pass->flops);
  json_real(json, "tflops_per_s", tflops(pass));
  json_int(json, "num_rows", pass->median.num_rows);
  json_int(json, "num_replayed_rows", pass->median.num_replayed_rows);
  json_begin(json, "phases_s", '{');
  for (int phase = 0; phase < PURR_NUM_PHASES && purr_phase_name(phase) != NULL; phase++)
    json_real(json, purr_phase_name(phase), 1e-9 * (double)pass->median.phase_ns[phase]);
  json_end(json, '}');
  json_end(json, '}');
}

static void write_json(const run_t *run) {
  const layer_t *layer = &run->layer;
  const purr_layer_desc_t *shape = &layer->shape;
  const run_options_t *options = &run->options;
  json_t json = {.file = stdout};
  char name[64];
  json_begin(&json, NULL, '{');
  json_text(&json, "version", purr_version_string());
  json_text(&json, "config", options->config_path);
  json_text(&json, "checkpoint", options->layer.checkpoint_path);
  json_text(&json, "input", options->input_path);
  json_text(&json, "backend", backend_names[layer->info.backend]);
  json_text(&json, "precision", precision_names[layer->info.precision]);
  json_int(&json, "num_ranks", layer->num_ranks);
  json_int(&json, "seed", options->seed);
  json_int(&json, "num_repeats", options->num_repeats);
  json_begin(&json, "layer", '{');
  json_int(&json, "hidden_size", shape->hidden_size);
  json_int(&json, "intermediate_size", shape->intermediate_size);
  json_int(&json, "num_experts", shape->num_experts);
  json_int(&json, "top_k", shape->top_k);
  json_int(&json, "shared_intermediate_size", shape->shared_intermediate_size);
  json_text(&json, "shared_gate", shape->shared_gate ? "sigmoid" : "none");
  json_real(&json, "swiglu_limit", (double)shape->swiglu_limit);
  json_end(&json, '}');
  json_int(&json, "num_tokens", layer->num_tokens);
  json_text(&json, "routing", routing_name(run, name, sizeof name));
  json_int(&json, "num_dropped_slots", layer->num_tokens * shape->top_k - run->num_slots);
  json_begin(&json, "tokens_per_expert", '{');
  json_int(&json, "min", run->min_tokens_per_expert);
  json_real(&json, "mean", (double)run->num_slots / (double)shape->num_experts);
  json_int(&json, "max", run->max_tokens_per_expert);
  json_real(&json, "imbalance", imbalance(run));
  json_begin(&json, "counts", '[');
  for (int64_t e = 0; e < shape->num_experts; e++) json_int(&json, NULL, layer->tokens_per_expert[e]);
  json_end(&json, ']');
  json_end(&json, '}');
  write_json_pass(&json, "forward", &run->forward, options->num_repeats);
  if (options->backward) write_json_pass(&json, "backward", &run->backward, options->num_repeats);
  memory_line_t lines[NUM_MEMORY_LINES];
  list_memory(run, lines);
  json_begin(&json, "memory_of_a_rank", '{');
  for (int i = 0; i < NUM_MEMORY_LINES; i++) json_int(&json, lines[i].key, (int64_t)lines[i].bytes);
  json_end(&json, '}');
  json_int(&json, "library_peak_bytes", (int64_t)run->counters.host_bytes_peak);
  json_begin(&json, "hashes", '{');
  for (int i = 0; i < (options->backward ? NUM_HASHES : 1); i++) {
    snprintf(name, sizeof name, "%016" PRIx64, run->hashes[i]);
    json_text(&json, hash_names[i], name);
  }
  json_end(&json, '}');
  json_text(&json, "output", options->output_path);
  json_end(&json, '}');
}

/* ---------------------------------------------------------------------------------------------------------- command */

static int run_layer(run_t *run) {
  const run_options_t *options = &run->options;
  int64_t num_tokens;
  int code = layer_open(&run->layer, "run", options->config_path, &options->layer);
  if (code == EXIT_GOOD) code = find_num_tokens(run, &num_tokens);
  if (code == EXIT_GOOD) code = layer_allocate(&run->layer, &options->layer, num_tokens, options->backward);
  if (code == EXIT_GOOD && options->output_path != NULL) {
    run->output = open_output("run", options->output_path);
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
  if (code == EXIT_GOOD && options->json) write_json(&run);
  if (code == EXIT_GOOD && !options->json) {
    print_layer(&run);
    print_tokens_per_expert(&run);
    print_times(&run);
    print_memory_and_hashes(&run);
  }
  if (run.output != NULL) fclose(run.output);
  free(run.forward.infos);
  free(run.backward.infos);
  purr_checkpoint_destroy(run.input);
  purr_checkpoint_destroy(run.routing_file);
  layer_close(&run.layer);
  return code;
}
