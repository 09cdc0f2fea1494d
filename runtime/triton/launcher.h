/* The inside of a launcher, for stages that keep a prototype and launch copies of it from any thread. */
#ifndef PURR_TRITON_LAUNCHER_H
#define PURR_TRITON_LAUNCHER_H

#include "triton/kernel.h"
#include "triton/value.h"

/* The maps of one descriptor argument, so that a layer that goes round a few buffers encodes each once. */
#define MAPS_PER_ARGUMENT 4
typedef struct map_entry {
  CUtensorMap map;
  bool is_used;
  int variant_idx;
  purr__triton_value_t value; /* what it was made of */
} map_entry_t;

struct purr_launcher {
  purr__object_t object;
  purr_kernel_t *kernel;
  purr__device_t *device;
  const purr__kernel_t *loaded; /* [num_variants] */
  int *order;                   /* [num_usable] variants that run here, the most special first */
  int num_usable;
  purr__triton_value_t *values; /* [num_arguments] */
  uint32_t grid[3];
  bool has_grid;
  bool leaves_constants_open; /* what is not set may be any constant: of a stage's kernel those are its own affair */
  void *scratch;
  uint64_t scratch_bytes;
  /* Room for a launch: */
  uint64_t *slots;     /* [most params] */
  const void **params; /* [most params + 1] */
  map_entry_t *maps;   /* [num_arguments][MAPS_PER_ARGUMENT], NULL where no variant has descriptors */
  int *next_map;       /* [num_arguments] the entry to overwrite next */
};

/* purr_launcher_launch without looking at the handle: a copy of a launcher on the stack will do, with values, slots and
 * params of its own, where no variant has descriptors. */
purr_status_t purr__launcher_launch(purr_launcher_t *launcher, void *stream, purr_error_t *err);

#endif
