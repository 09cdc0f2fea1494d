/* The keys of a layer config, in one table: the reader, the checks, the suggestions and the writer all follow it. */
#ifndef PURR_SCHEMA_H
#define PURR_SCHEMA_H

#include "base/base.h"

typedef enum purr__key_kind {
  PURR__KEY_TEXT,    /* a name */
  PURR__KEY_DIGEST,  /* a SHA-256, 64 hexadecimal digits */
  PURR__KEY_KERNEL,  /* the name of a kernel that Triton compiled, or none */
  PURR__KEY_INTEGER, /* one of its words, or a plain decimal in range */
  PURR__KEY_BYTES,   /* the same, also with KiB, MiB or GiB */
  PURR__KEY_REAL,    /* a decimal number in range */
  PURR__KEY_WORD,    /* one of its words */
  PURR__KEY_BLOCK,   /* a nested block */
} purr__key_kind_t;

enum {
  PURR__KEY_NAME,
  PURR__KEY_HIDDEN_SIZE,
  PURR__KEY_INTERMEDIATE_SIZE,
  PURR__KEY_NUM_EXPERTS,
  PURR__KEY_TOP_K,
  PURR__KEY_SHARED_EXPERT,
  PURR__KEY_SHARED_INTERMEDIATE_SIZE,
  PURR__KEY_SHARED_GATE,
  PURR__KEY_SWIGLU_LIMIT,
  PURR__KEY_PRECISION,
  PURR__KEY_MXFP8,
  PURR__KEY_MXFP8_SCALE_RULE,
  PURR__KEY_MXFP8_ACTIVATIONS,
  PURR__KEY_MXFP8_WEIGHTS,
  PURR__KEY_BACKEND,
  PURR__KEY_PACKAGE_DIGEST,
  PURR__KEY_KERNELS,
  PURR__KEY_KERNELS_ACTIVATION,
  PURR__KEY_KERNELS_GROUPED_GEMM,
  PURR__KEY_KERNELS_COMBINE,
  PURR__KEY_KERNELS_QUANTISE,
  PURR__KEY_MAX_TOKENS,
  PURR__KEY_NUM_RANKS,
  PURR__KEY_TIMEOUT_MS,
  PURR__KEY_ACTIVATION_MEMORY,
  PURR__KEY_MINIBATCH_ROWS,
  PURR__KEY_MACROBATCH_ROWS,
  PURR__KEY_NUM_COMM_SMS,
  PURR__NUM_KEYS
};

/* The values that are not numbers. */
typedef struct purr__texts {
  char name[64];
  char package_digest[65]; /* "" where none is pinned */
  /* Kernels of Triton's that stand in for a stage, "" where none does: kernels/triton/README.md. */
  char activation[64], grouped_gemm[64], combine[64], quantise[64];
} purr__texts_t;

typedef struct purr__key {
  const char *path; /* as messages name it: "shared_expert.gate" */
  const char *name; /* as the file has it: "gate" */
  int block;        /* the key of the block that it belongs to; -1 at the top */
  purr__key_kind_t kind;
  bool required; /* within its block */
  /* Where purr_layer_desc_t has it; 4 or 8 bytes, none for names and blocks. */
  uint32_t offset, num_bytes;
  int64_t min, max, multiple;
  int64_t default_value; /* of a file without it, and of a 0 in purr_layer_desc_t */
  struct {
    const char *word;
    int64_t value;
  } words[4];
  const char *elsewhere; /* what other software calls it, separated by spaces */
  const char *meaning;
} purr__key_t;

extern const purr__key_t purr__keys[PURR__NUM_KEYS];

/* The key of this exact name in a block (-1 = top), or -1. */
int purr__key_find(int block, const char *name, uint64_t length);
/* The key that a wrong name in a block most likely means, at its own level first; -1 when none is near. */
int purr__key_nearest(int block, const char *name, uint64_t length);

/* "a plain decimal integer, a multiple of 8 from 8 to 1048576": completes "allowed is ...". */
const char *purr__key_allowed(char *out, uint64_t capacity, const purr__key_t *key);

/* Whether the number is one of the key's words, or, for kinds that are numbers, in range. */
bool purr__key_allows(const purr__key_t *key, int64_t value);

/* The text of a key of the kind KERNEL. */
char *purr__key_kernel(const purr__key_t *key, purr__texts_t *texts);
/* Whether a key of that kind has one. */
bool purr__texts_have_kernels(const purr__texts_t *texts);

/* The integer field of a layer. */
int64_t purr__key_get(const purr__key_t *key, const purr_layer_desc_t *layer);
void purr__key_set(const purr__key_t *key, purr_layer_desc_t *layer, int64_t value);

#endif
