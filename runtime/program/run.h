/* What `run` and `trace` share, and what a run did, for its reports. */
#ifndef PURR_PROGRAM_RUN_H
#define PURR_PROGRAM_RUN_H

#include "layer.h"

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

/* The results whose bits are hashed: the output, and with --backward the gradients. */
enum { HASH_OUTPUT, HASH_D_X, HASH_D_TOPK_WEIGHTS, HASH_D_GATE_UP, HASH_D_DOWN, NUM_HASHES };

typedef struct run {
  run_options_t options;
  routing_t routing;
  layer_t layer;
  purr_checkpoint_t *input, *routing_file;
  FILE *output;
  bool output_is_new; /* made by this run, which takes it away when it fails */
  pass_t forward, backward;
  purr_counters_t counters;
  int64_t num_slots, max_tokens_per_expert, min_tokens_per_expert;
  uint64_t hashes[NUM_HASHES];
} run_t;

/* The entries of `options` that say what is run. */
#define RUN_OPTION_ENTRIES(o)                                                                 \
  {.name = "tokens",                                                                          \
   .kind = OPTION_INT,                                                                        \
   .value = &(o).num_tokens,                                                                  \
   .metavar = "N",                                                                            \
   .max = 1 << 24,                                                                            \
   .help = "generate N tokens, over all ranks (default: 512, or max_tokens if less)"},        \
      {.name = "input",                                                                       \
       .kind = OPTION_TEXT,                                                                   \
       .value = &(o).input_path,                                                              \
       .metavar = "FILE",                                                                     \
       .help =                                                                                \
           "read tokens x [N, hidden_size] from a safetensors file, and topk_ids,\n"          \
           "topk_weights and d_output where it has them (input.x and so on also work)"},      \
      {.name = "routing",                                                                     \
       .kind = OPTION_TEXT,                                                                   \
       .value = &(o).routing_text,                                                            \
       .metavar = "R",                                                                        \
       .help =                                                                                \
           "uniform, zipf:S (S = 0 is uniform), checkpoint (its own router), or a\n"          \
           "safetensors file with topk_ids and topk_weights (default: what --input\n"         \
           "has, else checkpoint with --checkpoint, else uniform)"},                          \
      LAYER_OPTION_ENTRIES((o).layer), {                                                      \
    .name = "seed", .kind = OPTION_INT, .value = &(o).seed, .metavar = "N", .max = INT64_MAX, \
    .help = "seed of what is generated (default: 0)"                                          \
  }

/* ---- run_input.c; each prints what is wrong and returns an exit code, run_close always ---- */
/* Checks the options, opens the files and plans. */
int run_open(run_t *run, const char *command, bool backward);
/* An output is written last, over whatever is there: not over what the run reads. */
int run_check_output(const run_t *run, const char *option, const char *path);
/* Makes tokens, routing, weights and ranks. */
int run_fill(run_t *run);
void run_close(run_t *run);

/* ---- run_report.c ---- */
void run_print(const run_t *run); /* for people */
void run_write_json(const run_t *run);

#endif
