/* What the files of purr launch share: an argument as it is written on the command line, and its data. */
#ifndef PURR_PROGRAM_LAUNCH_H
#define PURR_PROGRAM_LAUNCH_H

#include "bench.h"

typedef struct launch_value {
  purr_kernel_argument_t argument;
  int32_t index;
  const char *text; /* as it was given; NULL: not set */
  bool is_integer;  /* a number: that one, else `real` */
  int64_t integer;
  double real;
  bool is_tensor;
  purr_tensor_t tensor; /* data: host memory, before the launch */
  uint64_t bytes;
  void *owned, *after; /* host memory: generated, and read back after the launch */
  uint64_t address;    /* device memory */
  bool is_changed;
} launch_value_t;

typedef struct launch_options {
  const char *kernel, *signature, *grid, *output_path;
  option_list_t args;
  int64_t device, seed, num_repeats, num_warmups;
  bool json;
} launch_options_t;

/* What "4096", "rand:128x64", "zeros:8:fp16" or "FILE.safetensors:NAME" stands for; makes or reads the data.
 * `file` stays open as long as the value is used. Returns an exit code. */
int launch_value_parse(launch_value_t *value, purr_context_t *context, const launch_options_t *options,
                       purr_checkpoint_t **out_file);
/* Whether the argument takes what it was given, as far as that can be said without a device. Returns an exit code. */
int launch_value_check(const launch_value_t *value);
/* Gives the value to the launcher; tensors have their address already. */
int launch_value_set(const launch_value_t *value, purr_launcher_t *launcher);

#endif
