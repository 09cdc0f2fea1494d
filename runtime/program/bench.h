/* What the files of purr bench share: the layer that is timed, the clock, and what was measured. */
#ifndef PURR_PROGRAM_BENCH_H
#define PURR_PROGRAM_BENCH_H

#include "layer.h"

enum { MAX_CONFIGS = 64 };

typedef struct bench_options {
  const char *config_paths[MAX_CONFIGS];
  const char *shapes_text, *routing_text, *devices_text;
  device_list_t devices;
  int64_t num_tokens; /* 0 = the config's max_tokens */
  int64_t num_repeats, num_warmups, seed, num_threads, num_ranks;
  int backend, precision; /* indices into backend_names and precision_names; precision -1 = as in the config */
  double dense_tflops, copy_tb_per_s; /* the ceilings; 0 = not known */
  bool saved, graph, json;
} bench_options_t;

/* ---- GPU time (bench_gpu.c) ----
 * A stream of its own on one device, for each rank. Functions that return an exit code print what is wrong. */
typedef struct gpu gpu_t;

/* Enqueues, or with the host backend does, what is timed; returns an exit code. */
typedef int (*work_fn)(void *arg);

int gpu_open(gpu_t **out_gpu, const char *command, int device);
void gpu_close(gpu_t *gpu);
const char *gpu_name(const gpu_t *gpu);
void *gpu_stream(const gpu_t *gpu);
/* False where the device cannot hold a stream back: launches are then part of the time. */
bool gpu_hides_launches(const gpu_t *gpu);
/* Device memory of any size above 0; copies between it and the host, which return when they are done. */
int gpu_allocate(gpu_t *gpu, uint64_t bytes, uint64_t *out_address);
void gpu_release(gpu_t *gpu, uint64_t address);
int gpu_copy(gpu_t *gpu, uint64_t to, uint64_t from, uint64_t bytes);
/* One run of the work of all ranks, which start together: from an empty L2, with all launches enqueued before. The time
 * of the rank that takes longest. */
int gpu_time(gpu_t *const *gpus, int64_t num_gpus, work_fn work, void *arg, double *out_s);
/* What enqueueing costs the host while the GPUs are busy, for one rank: the median of many calls. */
int gpu_host_time(gpu_t *const *gpus, int64_t num_gpus, work_fn work, void *arg, double *out_s);
/* Bytes read and written by a large copy, in TB/s; NAN when there is no room for one. */
int gpu_copy_rate(gpu_t *gpu, double *out_tb_per_s);
/* Captures the work as a graph, in place of the one before; gpu_replay enqueues it. */
int gpu_capture(gpu_t *gpu, work_fn work, void *arg);
int gpu_replay(gpu_t *gpu);

/* ---- the layer (bench_layer.c) ---- */
typedef struct bench_rank {
  purr_plan_t *plan;
  purr_group_t *group; /* NULL when R = 1, and once the rank has left */
  purr_weights_t *weights;
  purr_workspace_t *workspace;
  purr_saved_t *saved;
  purr_result_t *result;
  placed_t placed[16];
  int num_placed;
  purr_tensor_t x, topk_ids, topk_weights, output; /* of all tokens, in the backend's memory */
  gpu_t *gpu;                                      /* not owned; NULL: the host backend */
  purr_status_t status;                            /* of the last call */
  purr_error_t err;
} bench_rank_t;

typedef struct bench_layer {
  const char *path;
  purr_context_t *context; /* not owned */
  purr_config_t *config;
  purr_layer_desc_t shape;
  purr_plan_info_t info; /* of a rank */
  int64_t num_ranks;
  bench_rank_t *ranks;
  int64_t num_tokens; /* the most that a call of all ranks brings */
  int64_t *ids;       /* [num_tokens, K] the routing of the moment, host memory */
  float *slot_weights;
} bench_layer_t;

int bench_layer_open(bench_layer_t *layer, purr_context_t *context, const char *path, const bench_options_t *options);
/* Memory, weights and tokens. */
int bench_layer_fill(bench_layer_t *layer, const bench_options_t *options);
int bench_layer_route(bench_layer_t *layer, double exponent, uint64_t seed);
/* One forward of the first `num_tokens` tokens, which the ranks share; and one rank's part of it, on a GPU. */
int bench_layer_forward(const bench_layer_t *layer, int64_t num_tokens, bool saved);
int bench_layer_forward_rank(const bench_layer_t *layer, int64_t rank_idx, int64_t num_tokens, bool saved);
/* One forward that must succeed, and the launches of a rank. */
int bench_layer_try(const bench_layer_t *layer, int64_t num_tokens, bool saved, int64_t *out_num_launches);
void bench_layer_close(bench_layer_t *layer);

/* ---- what was measured, and its reports (bench_report.c) ---- */
typedef struct measurement {
  char routing[32];
  bool saved, is_small_batch;
  int64_t num_tokens, num_launches;
  double median_s, min_s, max_s;
  double host_s; /* of one call, NAN where the call is the work itself */
  double flops;
  int64_t num_rows, num_executed_rows; /* of the routed experts: useful, and with the padding of tiles */
  int64_t num_experts;                 /* that have rows */
  double weight_bytes;                 /* of those, and of the shared expert */
} measurement_t;

enum { MAX_MEASUREMENTS = 8 };
typedef struct bench_shape {
  const bench_layer_t *layer;
  measurement_t measurements[MAX_MEASUREMENTS];
  int num_measurements;
} bench_shape_t;

typedef struct bench_report {
  const bench_options_t *options;
  double dense_tflops, copy_tb_per_s; /* NAN = not known */
  const gpu_t *gpu;                   /* of rank 0; NULL: the host */
  json_t json;
  bool has_begun;
} bench_report_t;

/* In this order; each shape is printed as soon as it is done. */
void bench_report_shape(bench_report_t *report, const bench_shape_t *shape);
void bench_report_end(bench_report_t *report);

#endif
