/* The two reports of purr run: a page for people, and JSON. */
#include <inttypes.h>

#include "run.h"

static const char *const hash_names[NUM_HASHES] = {"output", "d_x", "d_topk_weights", "grad.experts.gate_up_proj",
                                                   "grad.experts.down_proj"};

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
  if (layer->layer_idx >= 0) {
    table_add(&table, "decoder layer");
    table_add(&table, "%" PRId64, layer->layer_idx);
  }
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
  if (layer->info.backend != PURR_BACKEND_HOST) {
    table_add(&table, layer->num_ranks == 1 ? "GPU" : "GPU of each rank");
    table_add(&table, "%s", DEVICES_TEXT(&layer->devices, layer->num_ranks));
  }
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

/* A time, and its share of the pass where it is a part of it. */
static void add_time_cells(table_t *table, const pass_t *pass, uint64_t ns, bool is_part) {
  double share = is_part && pass->median.total_ns > 0 ? 100.0 * (double)ns / (double)pass->median.total_ns : -1.0;
  table_add(table, "%s", ns > 0 ? TIME_TEXT(1e-9 * (double)ns) : "-");
  if (ns > 0 && share >= 0.0)
    table_add(table, "%.0f %%", share);
  else
    table_add(table, "%s", "");
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
    for (int i = 0; i < num_passes; i++) add_time_cells(&table, passes[i], passes[i]->median.phase_ns[phase], true);
  }
  table_add(&table, "total");
  for (int i = 0; i < num_passes; i++) add_time_cells(&table, passes[i], passes[i]->median.total_ns, true);
  table_add(&table, "TFLOP/s");
  for (int i = 0; i < num_passes; i++) {
    table_add(&table, "%.4g", tflops(passes[i]));
    table_add(&table, "%s", "");
  }
  if (num_repeats > 1) {
    table_add(&table, "fastest");
    for (int i = 0; i < num_passes; i++) add_time_cells(&table, passes[i], passes[i]->infos[0].total_ns, false);
    table_add(&table, "slowest");
    for (int i = 0; i < num_passes; i++)
      add_time_cells(&table, passes[i], passes[i]->infos[num_repeats - 1].total_ns, false);
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
  const bool is_on_host = run->layer.info.backend == PURR_BACKEND_HOST;
  if (!is_on_host) {
    table_add(&table, "library, all ranks, peak on GPUs");
    table_add(&table, "%s", BYTES_TEXT(run->counters.device_bytes_peak));
  }
  table_add(&table, is_on_host ? "library, all ranks, peak" : "library, all ranks, peak on the host");
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

void run_print(const run_t *run) {
  print_layer(run);
  print_tokens_per_expert(run);
  print_times(run);
  print_memory_and_hashes(run);
}

/* ------------------------------------------------------------------------------------------------------------- JSON */

/* Only the host times the phases of a call. */
static void write_json_pass(json_t *json, const char *key, const pass_t *pass, int64_t num_repeats, bool has_phases) {
  json_begin(json, key, '{');
  json_real(json, "median_s", 1e-9 * (double)pass->median.total_ns);
  json_real(json, "min_s", 1e-9 * (double)pass->infos[0].total_ns);
  json_real(json, "max_s", 1e-9 * (double)pass->infos[num_repeats - 1].total_ns);
  json_real(json, "flops", pass->flops);
  json_real(json, "tflops_per_s", tflops(pass));
  json_int(json, "num_rows", pass->median.num_rows);
  json_int(json, "num_replayed_rows", pass->median.num_replayed_rows);
  if (has_phases) {
    json_begin(json, "phases_s", '{');
    for (int phase = 0; phase < PURR_NUM_PHASES && purr_phase_name(phase) != NULL; phase++)
      json_real(json, purr_phase_name(phase), 1e-9 * (double)pass->median.phase_ns[phase]);
    json_end(json, '}');
  } else {
    json_text(json, "phases_s", NULL);
  }
  json_end(json, '}');
}

void run_write_json(const run_t *run) {
  const layer_t *layer = &run->layer;
  const purr_layer_desc_t *shape = &layer->shape;
  const run_options_t *options = &run->options;
  json_t json = {.file = stdout};
  char name[64];
  json_begin(&json, NULL, '{');
  json_text(&json, "version", purr_version_string());
  json_text(&json, "config", options->config_path);
  json_text(&json, "checkpoint", options->layer.checkpoint_path);
  if (layer->layer_idx >= 0)
    json_int(&json, "layer_idx", layer->layer_idx);
  else
    json_text(&json, "layer_idx", NULL); /* generated */
  json_text(&json, "input", options->input_path);
  json_text(&json, "backend", backend_names[layer->info.backend]);
  json_text(&json, "precision", precision_names[layer->info.precision]);
  json_int(&json, "num_ranks", layer->num_ranks);
  devices_write_json(&json, &layer->devices, layer->num_ranks, layer->info.backend != PURR_BACKEND_HOST);
  json_int(&json, "num_threads", options->layer.num_threads); /* 0 = the library's default */
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
  const bool is_on_host = layer->info.backend == PURR_BACKEND_HOST;
  write_json_pass(&json, "forward", &run->forward, options->num_repeats, is_on_host);
  if (options->backward) write_json_pass(&json, "backward", &run->backward, options->num_repeats, is_on_host);
  memory_line_t lines[NUM_MEMORY_LINES];
  list_memory(run, lines);
  json_begin(&json, "memory_of_a_rank", '{');
  for (int i = 0; i < NUM_MEMORY_LINES; i++) json_int(&json, lines[i].key, (int64_t)lines[i].bytes);
  json_end(&json, '}');
  json_int(&json, "library_peak_bytes", (int64_t)run->counters.host_bytes_peak);
  json_int(&json, "library_peak_device_bytes", (int64_t)run->counters.device_bytes_peak);
  json_begin(&json, "hashes", '{');
  for (int i = 0; i < (options->backward ? NUM_HASHES : 1); i++) {
    snprintf(name, sizeof name, "%016" PRIx64, run->hashes[i]);
    json_text(&json, hash_names[i], name);
  }
  json_end(&json, '}');
  json_text(&json, "output", options->output_path);
  json_end(&json, '}');
}
