/* purr bench: how fast a layer's forward is, on the shapes that speed is measured on or on any config. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

static const help_t help = {
    .command = "bench",
    .usage = "[CONFIG...] [options]",
    .about =
        "Times the forward pass of layers, from expert ids to output; without CONFIG of the five in\n"
        "configs/bench. Weights and tokens are random; T is the config's max_tokens, over all ranks.\n"
        "\n"
        "GPU time: the L2 is flushed before each run, and the stream is held back until all launches are\n"
        "enqueued, 2 ms at least; ranks start together, and the last to end counts. FLOPs are\n"
        "6 T K H I + 6 T H S. 'executed' counts the rows of whole tiles over the rows that tokens need.\n"
        "Launches and host time are of one call of a rank, while the GPU is busy. Small batches are held\n"
        "against memory: the bytes of the weights that they touch, per second. With the host backend the\n"
        "time of the call is taken.",
    .example =
        "  purr bench\n"
        "  purr bench --shapes qwen3_30b,mixtral_8x7b --routing zipf:1.0 --repeat 50 --dense 774\n"
        "  purr bench --shapes qwen3_30b --ranks 4 --devices 0,1\n"
        "  purr bench configs/qwen3_30b.yaml --tokens 2048 --backend host --json",
};

static const char *const shape_names[] = {"kimi_k2_slice",    "kimi_ep64_rank", "qwen3_30b",
                                          "deepseek_v2_lite", "mixtral_8x7b",   NULL};
enum { MAX_BENCH_RANKS = 30 }; /* as many as can share a GPU */
enum { NUM_SHAPES = sizeof shape_names / sizeof shape_names[0] - 1, PATH_BYTES = 4096 };

static const int64_t small_batches[] = {1, 8, 64};
enum { NUM_SMALL_BATCHES = sizeof small_batches / sizeof small_batches[0] };

typedef struct bench {
  bench_options_t options;
  routing_t routings[2];
  int num_routings;
  purr_context_t *context;
  gpu_t *gpus[MAX_BENCH_RANKS]; /* of the ranks; opened by the first layer that runs on GPUs */
  bench_report_t report;
} bench_t;

/* -------------------------------------------------------------------------------------------------------- configs */

/* configs/bench of the installed tree, of the source tree, or here. */
static int find_config(const char *name, char *path) {
  static const char *const folders[] = {"/../share/purr/configs/bench", "/../../configs/bench", "/../configs/bench"};
  char program[PATH_BYTES];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  program[length > 0 ? length : 0] = '\0';
  char *slash = strrchr(program, '/');
  if (slash != NULL) *slash = '\0';
  for (int i = 0; i < 3 && slash != NULL; i++)
    if (snprintf(path, PATH_BYTES, "%s%s/%s.yaml", program, folders[i], name) < PATH_BYTES && access(path, R_OK) == 0)
      return EXIT_GOOD;
  snprintf(path, PATH_BYTES, "configs/bench/%s.yaml", name);
  if (access(path, R_OK) == 0) return EXIT_GOOD;
  return fail("bench", "give a CONFIG", "there is no share/purr/configs/bench beside %s, and no configs/bench here",
              slash != NULL ? program : "the program");
}

/* The shapes of --shapes, all without it. */
static int choose_shapes(const char *text, bool *is_chosen) {
  const bool all = text == NULL || strcmp(text, "all") == 0;
  for (int i = 0; i < NUM_SHAPES; i++) is_chosen[i] = all;
  if (all) return EXIT_GOOD;
  while (*text != '\0') {
    char name[64];
    const size_t length = strcspn(text, ",");
    snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), text);
    int shape_idx = 0;
    while (shape_idx < NUM_SHAPES && strcmp(shape_names[shape_idx], name) != 0) shape_idx++;
    if (shape_idx == NUM_SHAPES) {
      const char *nearest = nearest_name(name, shape_names);
      return fail("bench",
                  "--shapes takes all, or some of kimi_k2_slice, kimi_ep64_rank, qwen3_30b, deepseek_v2_lite, "
                  "mixtral_8x7b with commas between them",
                  "'%s' is not a shape%s%s%s", name, nearest ? "; did you mean " : "", nearest ? nearest : "",
                  nearest ? "?" : "");
    }
    is_chosen[shape_idx] = true;
    text += length + (text[length] == ',');
  }
  return EXIT_GOOD;
}

static int choose_routings(bench_t *bench) {
  bench->routings[0] = (routing_t){.kind = ROUTING_UNIFORM};
  bench->routings[1] = (routing_t){.kind = ROUTING_ZIPF, .exponent = 1.0};
  bench->num_routings = 2;
  if (bench->options.routing_text == NULL) return EXIT_GOOD;
  bench->num_routings = 1;
  int code = routing_parse("bench", bench->options.routing_text, &bench->routings[0]);
  if (code == EXIT_GOOD && bench->routings[0].kind != ROUTING_UNIFORM && bench->routings[0].kind != ROUTING_ZIPF)
    code = fail("bench", "use --routing uniform or --routing zipf:1.0", "bench draws its routing, '%s' cannot be drawn",
                bench->options.routing_text);
  return code;
}

/* ------------------------------------------------------------------------------------------------------- measuring */

typedef struct work {
  const bench_t *bench;
  const bench_layer_t *layer;
  int64_t rank_idx; /* of call_rank */
  int64_t num_tokens;
  bool saved;
} work_t;

static int call_forward(void *arg) {
  const work_t *work = arg;
  return bench_layer_forward(work->layer, work->num_tokens, work->saved);
}

static int call_rank(void *arg) {
  const work_t *work = arg;
  return bench_layer_forward_rank(work->layer, work->rank_idx, work->num_tokens, work->saved);
}

static int replay_graphs(void *arg) {
  const work_t *work = arg;
  int code = EXIT_GOOD;
  for (int64_t r = 0; r < work->layer->num_ranks && code == EXIT_GOOD; r++) code = gpu_replay(work->bench->gpus[r]);
  return code;
}

static int capture_all(work_t *work) {
  int code = EXIT_GOOD;
  for (work->rank_idx = 0; work->rank_idx < work->layer->num_ranks && code == EXIT_GOOD; work->rank_idx++)
    code = gpu_capture(work->bench->gpus[work->rank_idx], call_rank, work);
  return code;
}

static bool is_on_gpu(const bench_layer_t *layer) { return layer->info.backend != PURR_BACKEND_HOST; }

static int time_once(work_fn run, work_t *work, double *out_s) {
  if (is_on_gpu(work->layer)) return gpu_time(work->bench->gpus, work->layer->num_ranks, run, work, out_s);
  struct timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  int code = run(work);
  clock_gettime(CLOCK_MONOTONIC, &end);
  *out_s = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
  return code;
}

static int compare_reals(const void *a, const void *b) {
  const double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

static int time_all(const bench_t *bench, work_fn run, work_t *work, measurement_t *out) {
  const int64_t num_repeats = bench->options.num_repeats;
  double *times = malloc((size_t)num_repeats * sizeof *times);
  if (times == NULL) return fail("bench", "take a smaller --repeat", "memory ran out");
  int code = EXIT_GOOD;
  for (int64_t i = -bench->options.num_warmups; i < num_repeats && code == EXIT_GOOD; i++)
    code = time_once(run, work, &times[i < 0 ? 0 : i]);
  if (code == EXIT_GOOD) {
    qsort(times, (size_t)num_repeats, sizeof *times, compare_reals);
    out->median_s = times[num_repeats / 2];
    out->min_s = times[0];
    out->max_s = times[num_repeats - 1];
  }
  free(times);
  return code;
}

/* What the layer must do and touch for the first tokens of the routing of the moment. */
static int count_work(const bench_layer_t *layer, measurement_t *out) {
  const purr_layer_desc_t *shape = &layer->shape;
  const double H = (double)shape->hidden_size, I = (double)shape->intermediate_size,
               S = (double)shape->shared_intermediate_size, T = (double)out->num_tokens;
  const int64_t tile = layer->info.tile_rows;
  int64_t *counts = calloc((size_t)shape->num_experts, sizeof *counts);
  if (counts == NULL) return fail("bench", "free some memory", "memory ran out");
  for (int64_t i = 0; i < out->num_tokens * shape->top_k; i++) counts[layer->ids[i]]++;
  for (int64_t e = 0; e < shape->num_experts; e++) {
    out->num_rows += counts[e];
    out->num_executed_rows += (counts[e] + tile - 1) / tile * tile;
    out->num_experts += counts[e] > 0;
  }
  free(counts);
  out->flops = 6.0 * H * ((double)out->num_rows * I + T * S);
  out->weight_bytes = 6.0 * H * ((double)out->num_experts * I + S);
  return EXIT_GOOD;
}

static int measure(bench_t *bench, const bench_layer_t *layer, const routing_t *routing, int64_t num_tokens, bool saved,
                   bench_shape_t *shape) {
  measurement_t *out = &shape->measurements[shape->num_measurements++];
  *out = (measurement_t){.saved = saved, .num_tokens = num_tokens, .host_s = NAN};
  if (routing->kind == ROUTING_UNIFORM)
    snprintf(out->routing, sizeof out->routing, "uniform");
  else
    snprintf(out->routing, sizeof out->routing, "zipf:%g", routing->exponent);
  work_t work = {.bench = bench, .layer = layer, .num_tokens = num_tokens, .saved = saved};
  work_fn run = bench->options.graph ? replay_graphs : call_forward;
  int code = count_work(layer, out);
  if (code == EXIT_GOOD) code = bench_layer_try(layer, num_tokens, saved, &out->num_launches);
  if (code == EXIT_GOOD && bench->options.graph) code = capture_all(&work);
  if (code == EXIT_GOOD) code = time_all(bench, run, &work, out);
  if (code == EXIT_GOOD && is_on_gpu(layer))
    code = gpu_host_time(bench->gpus, layer->num_ranks, run, &work, &out->host_s);
  return code;
}

static int measure_layer(bench_t *bench, bench_layer_t *layer, bench_shape_t *shape) {
  int code = EXIT_GOOD;
  for (int r = 0; r < bench->num_routings && code == EXIT_GOOD; r++) {
    const routing_t *routing = &bench->routings[r];
    code = bench_layer_route(layer, routing->exponent, (uint64_t)bench->options.seed);
    for (int saved = 0; saved <= (bench->options.saved ? 1 : 0) && code == EXIT_GOOD; saved++)
      code = measure(bench, layer, routing, layer->num_tokens, saved, shape);
    for (int i = 0; i < NUM_SMALL_BATCHES && r == 0 && code == EXIT_GOOD; i++) {
      if (small_batches[i] >= layer->num_tokens) continue;
      code = measure(bench, layer, routing, small_batches[i], false, shape);
      shape->measurements[shape->num_measurements - 1].is_small_batch = true;
    }
  }
  return code;
}

/* ---------------------------------------------------------------------------------------------------------- command */

/* What GPU layers are timed with; opened by the first of them. */
static int open_gpus(bench_t *bench, bench_layer_t *layer) {
  if (!is_on_gpu(layer)) {
    if (!bench->options.graph) return EXIT_GOOD;
    return fail("bench", "leave --graph away", "--graph captures GPU work, and %s runs on the host", layer->path);
  }
  int code = EXIT_GOOD;
  for (int64_t r = 0; r < layer->num_ranks && code == EXIT_GOOD; r++) {
    if (bench->gpus[r] == NULL) code = gpu_open(&bench->gpus[r], "bench", device_of_rank(&bench->options.devices, r));
    layer->ranks[r].gpu = bench->gpus[r];
  }
  if (code == EXIT_GOOD && isnan(bench->report.copy_tb_per_s))
    code = gpu_copy_rate(bench->gpus[0], &bench->report.copy_tb_per_s);
  bench->report.gpu = bench->gpus[0];
  return code;
}

static int bench_config(bench_t *bench, const char *path) {
  bench_layer_t layer;
  bench_shape_t shape = {.layer = &layer};
  int code = bench_layer_open(&layer, bench->context, path, &bench->options);
  if (code == EXIT_GOOD) code = open_gpus(bench, &layer);
  if (code == EXIT_GOOD) code = bench_layer_fill(&layer, &bench->options);
  if (code == EXIT_GOOD) code = measure_layer(bench, &layer, &shape);
  if (code == EXIT_GOOD) bench_report_shape(&bench->report, &shape);
  bench_layer_close(&layer);
  return code;
}

static int bench_shapes(bench_t *bench) {
  bool is_chosen[NUM_SHAPES];
  char path[PATH_BYTES];
  int code = choose_shapes(bench->options.shapes_text, is_chosen);
  for (int i = 0; i < NUM_SHAPES && code == EXIT_GOOD; i++) {
    if (!is_chosen[i]) continue;
    code = find_config(shape_names[i], path);
    if (code == EXIT_GOOD) code = bench_config(bench, path);
  }
  return code;
}

static int run_bench(bench_t *bench) {
  const bench_options_t *options = &bench->options;
  if (options->config_paths[0] != NULL && options->shapes_text != NULL)
    return fail("bench", "leave one of them away", "--shapes names ready configs, CONFIG others: both were given");
  int code = choose_routings(bench);
  if (code == EXIT_GOOD) code = devices_parse("bench", options->devices_text, &bench->options.devices);
  if (code == EXIT_GOOD) code = devices_check_ranks("bench", &options->devices, options->num_ranks);
  if (code != EXIT_GOOD) return code;
  bench->report = (bench_report_t){.options = options,
                                   .dense_tflops = options->dense_tflops > 0 ? options->dense_tflops : NAN,
                                   .copy_tb_per_s = options->copy_tb_per_s > 0 ? options->copy_tb_per_s : NAN,
                                   .json = {.file = stdout}};
  code = make_context("bench", options->num_threads, &bench->context);
  if (code != EXIT_GOOD) return code;
  if (options->config_paths[0] == NULL) {
    code = bench_shapes(bench);
  } else {
    for (int i = 0; i < MAX_CONFIGS && options->config_paths[i] != NULL && code == EXIT_GOOD; i++)
      code = bench_config(bench, options->config_paths[i]);
  }
  bench_report_end(&bench->report);
  for (int r = 0; r < MAX_BENCH_RANKS; r++) gpu_close(bench->gpus[r]);
  purr_context_destroy(bench->context);
  return code;
}

int cmd_bench(int argc, char **argv) {
  bench_t bench = {.options = {.precision = -1, .num_repeats = 20, .num_warmups = 3, .num_ranks = 1}};
  bench_options_t *options = &bench.options;
  const option_t table[] = {
      {.name = "shapes",
       .kind = OPTION_TEXT,
       .value = &options->shapes_text,
       .metavar = "LIST",
       .help = "all (default), or some of kimi_k2_slice, kimi_ep64_rank, qwen3_30b,\n"
               "deepseek_v2_lite, mixtral_8x7b with commas between them"},
      {.name = "tokens",
       .kind = OPTION_INT,
       .value = &options->num_tokens,
       .metavar = "N",
       .min = 1,
       .max = 1 << 24,
       .help = "T (default: max_tokens of the config)"},
      {.name = "routing",
       .kind = OPTION_TEXT,
       .value = &options->routing_text,
       .metavar = "R",
       .help = "uniform or zipf:S (default: uniform and zipf:1.0)"},
      {.name = "repeat",
       .kind = OPTION_INT,
       .value = &options->num_repeats,
       .metavar = "N",
       .min = 10,
       .max = 100000,
       .help = "runs that are timed, at least 10 (default: 20)"},
      {.name = "warmup",
       .kind = OPTION_INT,
       .value = &options->num_warmups,
       .metavar = "N",
       .max = 100000,
       .help = "runs before them (default: 3)"},
      {.name = "saved", .kind = OPTION_FLAG, .value = &options->saved, .help = "also time with saving for backward"},
      {.name = "graph",
       .kind = OPTION_FLAG,
       .value = &options->graph,
       .help = "time replays of a captured CUDA graph instead of calls"},
      {.name = "dense",
       .kind = OPTION_REAL,
       .value = &options->dense_tflops,
       .metavar = "TFLOPS",
       .max_real = 1e6,
       .help = "what a dense GEMM reaches here, to show fractions of it"},
      {.name = "copy",
       .kind = OPTION_REAL,
       .value = &options->copy_tb_per_s,
       .metavar = "TB/S",
       .max_real = 1e6,
       .help = "what a copy reaches, both ways counted (default: measured on a GPU)"},
      {.name = "backend",
       .kind = OPTION_CHOICE,
       .value = &options->backend,
       .choices = backend_names,
       .help = "what runs it (default: as in the config)"},
      {.name = "precision",
       .kind = OPTION_CHOICE,
       .value = &options->precision,
       .choices = precision_names,
       .help = "precision of the routed experts (default: as in the config)"},
      {.name = "ranks",
       .kind = OPTION_INT,
       .value = &options->num_ranks,
       .metavar = "R",
       .min = 1,
       .max = MAX_BENCH_RANKS,
       .help = "expert-parallel ranks that share experts and tokens (default: 1)"},
      {.name = "devices",
       .kind = OPTION_TEXT,
       .value = &options->devices_text,
       .metavar = "LIST",
       .help = "GPUs of the ranks, dealt in turn: with 0,1 ranks 0, 2, ... use GPU 0 and ranks 1, 3,\n"
               "... GPU 1 (default: GPU 0 for all, where there is one)"},
      {.name = "threads",
       .kind = OPTION_INT,
       .value = &options->num_threads,
       .metavar = "N",
       .min = 1,
       .max = 1024,
       .help = "threads of the host backend (default: PURR_NUM_THREADS, else all CPUs)"},
      {.name = "seed",
       .kind = OPTION_INT,
       .value = &options->seed,
       .metavar = "N",
       .max = INT64_MAX,
       .help = "seed of what is generated (default: 0)"},
      {.name = "json", .kind = OPTION_FLAG, .value = &options->json, .help = "print one JSON object"},
      {0}};
  int code = options_parse(&help, table, argc, argv, options->config_paths, MAX_CONFIGS);
  return code == OPTIONS_GO_ON ? run_bench(&bench) : code;
}
