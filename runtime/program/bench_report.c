/* The two reports of purr bench: a page for people, and JSON. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "bench.h"

static double tflops(const measurement_t *measurement) { return 1e-12 * measurement->flops / measurement->median_s; }

static double weight_tb_per_s(const measurement_t *measurement) {
  return 1e-12 * measurement->weight_bytes / measurement->median_s;
}

static double executed_over_useful(const measurement_t *measurement) {
  return (double)measurement->num_executed_rows / (double)measurement->num_rows;
}

/* "qwen3_30b" of "configs/bench/qwen3_30b.yaml". */
static void layer_name(const bench_layer_t *layer, char *buffer, size_t capacity) {
  const char *slash = strrchr(layer->path, '/'), *name = slash != NULL ? slash + 1 : layer->path;
  const char *dot = strrchr(name, '.');
  snprintf(buffer, capacity, "%.*s", (int)(dot != NULL ? dot - name : (ptrdiff_t)strlen(name)), name);
}

/* ----------------------------------------------------------------------------------------------------------- a page */

static void print_beginning(const bench_report_t *report) {
  const bench_options_t *options = report->options;
  printf("%" PRId64 " runs after %" PRId64, options->num_repeats, options->num_warmups);
  if (report->gpu != NULL)
    printf(", L2 flushed, launches %s%s",
           gpu_hides_launches(report->gpu) ? "hidden" : "not hidden: no stream waits here",
           options->graph ? ", replays of a graph" : "");
  if (!isnan(report->copy_tb_per_s))
    printf("; copy %.2f TB/s%s", report->copy_tb_per_s, options->copy_tb_per_s > 0 ? " as given" : "");
  if (!isnan(report->dense_tflops)) printf("; dense %.4g TFLOP/s as given", report->dense_tflops);
  printf("\n");
}

static void print_layer(const bench_report_t *report, const bench_layer_t *layer) {
  const purr_layer_desc_t *shape = &layer->shape;
  const purr_plan_info_t *info = &layer->info;
  char name[128];
  layer_name(layer, name, sizeof name);
  printf("\n%s%s%s: %" PRId64 " experts of hidden %" PRId64 ", intermediate %" PRId64 "; top %" PRId64,
         colour_text(stdout, COLOUR_BOLD), name, colour_text(stdout, COLOUR_NONE), shape->num_experts,
         shape->hidden_size, shape->intermediate_size, shape->top_k);
  if (shape->shared_intermediate_size > 0) printf("; shared %" PRId64, shape->shared_intermediate_size);
  const bool is_on_gpu = info->backend != PURR_BACKEND_HOST;
  printf("\n  %s backend%s%s, %s", backend_names[info->backend], is_on_gpu ? " on " : "",
         is_on_gpu ? gpu_name(report->gpu) : "", precision_names[info->precision]);
  if (layer->num_ranks > 1) printf("; %" PRId64 " ranks", layer->num_ranks);
  if (is_on_gpu && (layer->num_ranks > 1 || report->options->devices.count > 0))
    printf("%s on GPU%s %s", layer->num_ranks > 1 ? "" : ";", layer->num_ranks > 1 ? "s" : "",
           DEVICES_TEXT(&report->options->devices, layer->num_ranks));
  printf("; weights%s %s, workspace %s, symmetric %s", layer->num_ranks > 1 ? " of each" : "",
         BYTES_TEXT(info->weight_bytes), BYTES_TEXT(info->workspace_bytes), BYTES_TEXT(info->symmetric_bytes));
  if (report->options->saved) printf(", saved %s", BYTES_TEXT(info->saved_bytes));
  printf("\n");
}

/* A dash where the ceiling is not known. */
static void add_fraction(table_t *table, double value) {
  if (isnan(value))
    table_add(table, "-");
  else
    table_add(table, "%.3f", value);
}

static void add_launch_cells(table_t *table, const measurement_t *measurement) {
  if (measurement->num_launches > 0)
    table_add(table, "%" PRId64, measurement->num_launches);
  else
    table_add(table, "-");
  table_add(table, "%s", isnan(measurement->host_s) ? "-" : TIME_TEXT(measurement->host_s));
}

static void add_time_cells(table_t *table, const measurement_t *measurement) {
  table_add(table, "%s", TIME_TEXT(measurement->median_s));
  table_add(table, "%s", TIME_TEXT(measurement->min_s));
  table_add(table, "%s", TIME_TEXT(measurement->max_s));
}

static void add_titles(table_t *table, const char *const *titles) {
  for (; *titles != NULL; titles++) table_add(table, "%s", *titles);
}

static void print_batches(const bench_report_t *report, const bench_shape_t *shape) {
  static const char *const titles[] = {"tokens",  "routing",  "saves",    "median",   "min",  "max",
                                       "TFLOP/s", "of dense", "executed", "launches", "host", NULL};
  table_t table = {.alignment = "rllrrrrrrrr"};
  add_titles(&table, titles);
  for (int i = 0; i < shape->num_measurements; i++) {
    const measurement_t *measurement = &shape->measurements[i];
    if (measurement->is_small_batch) continue;
    table_add(&table, "%" PRId64, measurement->num_tokens);
    table_add(&table, "%s", measurement->routing);
    table_add(&table, "%s", measurement->saved ? "yes" : "no");
    add_time_cells(&table, measurement);
    table_add(&table, "%.4g", tflops(measurement));
    add_fraction(&table, tflops(measurement) / report->dense_tflops);
    table_add(&table, "%.3f", executed_over_useful(measurement));
    add_launch_cells(&table, measurement);
  }
  table_print(&table, stdout);
}

static bool has_small_batches(const bench_shape_t *shape) {
  for (int i = 0; i < shape->num_measurements; i++)
    if (shape->measurements[i].is_small_batch) return true;
  return false;
}

static void print_small_batches(const bench_report_t *report, const bench_shape_t *shape) {
  static const char *const titles[] = {"tokens", "experts", "weights",  "median", "min", "max",
                                       "TB/s",   "of copy", "launches", "host",   NULL};
  table_t table = {.alignment = "rrrrrrrrrr"};
  add_titles(&table, titles);
  for (int i = 0; i < shape->num_measurements; i++) {
    const measurement_t *measurement = &shape->measurements[i];
    if (!measurement->is_small_batch) continue;
    table_add(&table, "%" PRId64, measurement->num_tokens);
    table_add(&table, "%" PRId64, measurement->num_experts);
    table_add(&table, "%s", BYTES_TEXT((uint64_t)measurement->weight_bytes));
    add_time_cells(&table, measurement);
    table_add(&table, "%.3g", weight_tb_per_s(measurement));
    add_fraction(&table, weight_tb_per_s(measurement) / report->copy_tb_per_s);
    add_launch_cells(&table, measurement);
  }
  table_print(&table, stdout);
}

/* ------------------------------------------------------------------------------------------------------------- JSON */

static void begin_json(bench_report_t *report) {
  json_t *json = &report->json;
  const bench_options_t *options = report->options;
  json_begin(json, NULL, '{');
  json_text(json, "version", purr_version_string());
  json_text(json, "device", report->gpu != NULL ? gpu_name(report->gpu) : NULL);
  json_int(json, "num_repeats", options->num_repeats);
  json_int(json, "num_warmups", options->num_warmups);
  json_int(json, "seed", options->seed);
  json_bool(json, "graph", options->graph);
  json_bool(json, "launches_hidden", report->gpu != NULL && gpu_hides_launches(report->gpu));
  json_real(json, "dense_tflops_per_s", report->dense_tflops);
  json_real(json, "copy_tb_per_s", report->copy_tb_per_s);
  json_begin(json, "layers", '[');
}

static void write_measurement(bench_report_t *report, const measurement_t *measurement) {
  json_t *json = &report->json;
  json_begin(json, NULL, '{');
  json_int(json, "num_tokens", measurement->num_tokens);
  json_text(json, "routing", measurement->routing);
  json_bool(json, "saved", measurement->saved);
  json_real(json, "median_s", measurement->median_s);
  json_real(json, "min_s", measurement->min_s);
  json_real(json, "max_s", measurement->max_s);
  json_real(json, "flops", measurement->flops);
  json_real(json, "tflops_per_s", tflops(measurement));
  json_real(json, "fraction_of_dense", tflops(measurement) / report->dense_tflops);
  json_int(json, "num_rows", measurement->num_rows);
  json_int(json, "num_executed_rows", measurement->num_executed_rows);
  json_int(json, "num_experts", measurement->num_experts);
  json_real(json, "weight_bytes", measurement->weight_bytes);
  json_real(json, "weight_tb_per_s", weight_tb_per_s(measurement));
  json_real(json, "fraction_of_copy", weight_tb_per_s(measurement) / report->copy_tb_per_s);
  json_int(json, "num_launches", measurement->num_launches);
  json_real(json, "host_s", measurement->host_s);
  json_end(json, '}');
}

static void write_shape(bench_report_t *report, const bench_shape_t *shape) {
  json_t *json = &report->json;
  const bench_layer_t *layer = shape->layer;
  const purr_layer_desc_t *desc = &layer->shape;
  char name[128];
  layer_name(layer, name, sizeof name);
  json_begin(json, NULL, '{');
  json_text(json, "name", name);
  json_text(json, "config", layer->path);
  json_text(json, "backend", backend_names[layer->info.backend]);
  json_text(json, "precision", precision_names[layer->info.precision]);
  json_int(json, "num_ranks", layer->num_ranks);
  devices_write_json(json, &report->options->devices, layer->num_ranks, layer->info.backend != PURR_BACKEND_HOST);
  json_int(json, "hidden_size", desc->hidden_size);
  json_int(json, "intermediate_size", desc->intermediate_size);
  json_int(json, "num_experts", desc->num_experts);
  json_int(json, "top_k", desc->top_k);
  json_int(json, "shared_intermediate_size", desc->shared_intermediate_size);
  json_int(json, "weight_bytes", (int64_t)layer->info.weight_bytes);
  json_int(json, "workspace_bytes", (int64_t)layer->info.workspace_bytes);
  json_int(json, "symmetric_bytes", (int64_t)layer->info.symmetric_bytes);
  json_int(json, "saved_bytes", (int64_t)layer->info.saved_bytes);
  json_begin(json, "measurements", '[');
  for (int i = 0; i < shape->num_measurements; i++) write_measurement(report, &shape->measurements[i]);
  json_end(json, ']');
  json_end(json, '}');
}

/* ----------------------------------------------------------------------------------------------------------- public */

void bench_report_shape(bench_report_t *report, const bench_shape_t *shape) {
  if (!report->has_begun) report->options->json ? begin_json(report) : print_beginning(report);
  report->has_begun = true;
  if (report->options->json) {
    write_shape(report, shape);
  } else {
    print_layer(report, shape->layer);
    print_batches(report, shape);
    if (has_small_batches(shape)) {
      printf("\n");
      print_small_batches(report, shape);
    }
  }
  fflush(stdout);
}

void bench_report_end(bench_report_t *report) {
  if (!report->options->json || !report->has_begun) return;
  json_end(&report->json, ']');
  json_end(&report->json, '}');
}
