/* What a run did, for its reports. */
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

void run_print(const run_t *run); /* for people */
void run_write_json(const run_t *run);

#endif
