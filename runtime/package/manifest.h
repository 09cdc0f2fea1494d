/* The manifest of a kernel package, manifest.json: which images there are and what each kernel in them needs and
 * serves.
 *
 *   {"format": 1, "name": "purr-staged", "producer": "purr 0.1.0",
 *    "images": [{"file": "grouped_gemm.sm_90.cubin", "arch": "sm_90", "sha256": "9f86...", "kernels": [
 *      {"entry": "purr_gate_up", "role": "gate_up", "threads": 256, "shared_bytes": 196608, "cluster": [1, 1, 1],
 *       "tile": [128, 256], "params_version": 1, "params_bytes": 560, "shapes": ["hidden_size % 8"]}]}]}
 *
 * `format` comes first, so that a newer manifest is known before anything new in it is met. Every other key may come in
 * any order; all are required, unknown and repeated ones are refused. Format 2 adds to a kernel that Triton compiled
 * the key "triton" (package/triton_spec.h). The package's own rules are checked here; whether
 * the images are what the manifest says is checked when they are read (package.h). */
#ifndef PURR_MANIFEST_H
#define PURR_MANIFEST_H

#include "package/cubin.h"
#include "package/sha256.h"

#define PURR__MANIFEST_FORMAT 2        /* the newest that is read */
#define PURR__MANIFEST_FORMAT_LAYERS 1 /* all that a package needs whose kernels are for layers alone */
#define PURR__MANIFEST_MAX_BYTES ((uint64_t)4 << 20)
#define PURR__MANIFEST_MAX_IMAGES 1024
#define PURR__MANIFEST_MAX_KERNELS 4096

/* The dimensions of a layer that a kernel may be particular about. */
#define PURR__DIMS(DIM)                                     \
  DIM(HIDDEN_SIZE, "hidden_size")                           \
  DIM(INTERMEDIATE_SIZE, "intermediate_size")               \
  DIM(SHARED_INTERMEDIATE_SIZE, "shared_intermediate_size") \
  DIM(NUM_EXPERTS, "num_experts")                           \
  DIM(TOP_K, "top_k")                                       \
  DIM(MAX_TOKENS, "max_tokens")                             \
  DIM(NUM_RANKS, "num_ranks")
typedef enum purr__dim {
#define PURR__DIM(name, text) PURR__DIM_##name,
  PURR__DIMS(PURR__DIM)
#undef PURR__DIM
      PURR__NUM_DIMS
} purr__dim_t;

typedef struct purr__shape {
  int64_t dims[PURR__NUM_DIMS];
} purr__shape_t;

/* One word of "shapes": a dimension, % (is a multiple of), <= or >=, and a number. */
typedef struct purr__shape_rule {
  purr__dim_t dim;
  char op; /* '%', '<' or '>' */
  int64_t value;
} purr__shape_rule_t;
#define PURR__MAX_SHAPE_RULES 8

typedef struct purr__manifest_kernel {
  char entry[256];
  char role[64];
  int image_idx;
  int threads;      /* of a block */
  int shared_bytes; /* dynamic; 0 also where the launch decides */
  int cluster[3];
  int tile[2];                      /* rows and columns of one tile; 0 where it has none */
  int params_version, params_bytes; /* of the one struct it takes; see kernels/layout.h */
  int num_rules;
  purr__shape_rule_t rules[PURR__MAX_SHAPE_RULES];
  struct purr__triton_spec *triton; /* NULL: not from Triton, and takes one parameter struct */
} purr__manifest_kernel_t;

typedef struct purr__manifest_image {
  char file[128];
  purr__arch_t arch;
  unsigned char sha256[PURR__SHA256_BYTES];
} purr__manifest_image_t;

typedef struct purr__manifest {
  int format;
  char name[64], producer[128];
  unsigned char sha256[PURR__SHA256_BYTES]; /* of the manifest's own bytes: what a layer config may pin */
  int num_images, num_kernels;
  purr__manifest_image_t *images;   /* [num_images] */
  purr__manifest_kernel_t *kernels; /* [num_kernels], in the manifest's order */
} purr__manifest_t;

/* Reads a manifest; `name` stands for the file in the sentence.
 * Returns: OK, PACKAGE, INCOMPATIBLE_BINARY (a newer format), OUT_OF_HOST_MEMORY. On failure nothing is kept. */
purr_status_t purr__manifest_parse(purr_context_t *context, const char *text, uint64_t bytes, const char *name,
                                   purr__manifest_t *out_manifest, purr_error_t *err);
void purr__manifest_free(purr_context_t *context, purr__manifest_t *manifest);

/* A file name that cannot lead out of a package: letters, digits, '.', '_' and '-', not starting with '.'. */
bool purr__package_file_is_plain(const char *file);

const char *purr__dim_name(purr__dim_t dim);
/* "hidden_size % 8"; false for anything else. */
bool purr__shape_rule_parse(const char *text, purr__shape_rule_t *out_rule);
/* The first rule that the shape breaks, NULL where the kernel serves it. */
const purr__shape_rule_t *purr__shape_broken_rule(const purr__manifest_kernel_t *kernel, const purr__shape_t *shape);

#endif
