/* What Triton leaves beside a cubin: <name>.json, as versions 3.2 to 3.9 write it. Keys that are not needed are passed
 * over, since every version brings others; those that a launch needs are required and named where they are missing.
 * What the file lacks (arguments, types, promises, the grid) a manifest or the caller adds. */
#ifndef PURR_TRITON_METADATA_H
#define PURR_TRITON_METADATA_H

#include "package/manifest.h"
#include "package/triton_spec.h"

#define PURR__TRITON_METADATA_MAX_BYTES ((uint64_t)1 << 20)

typedef struct purr__triton_metadata {
  char name[256]; /* of the entry in the image */
  char version_text[32];
  int version; /* 306 = 3.6; 302 where the file does not say: 3.2 is the last that did not */
  int arch;    /* 90 */
  int num_warps, num_ctas;
  int cluster[3];
  int shared_bytes; /* dynamic */
  int scratch_bytes, scratch_align;
  int profile_bytes;
  int num_hidden; /* pointers behind the arguments, by the keys that this version writes */
  bool is_cooperative, may_overlap;
  int num_descriptors;
  purr__triton_argument_t *descriptors; /* [num_descriptors] of the tensor descriptors in argument order; has_map false
                                           for one that the kernel takes apart itself */
} purr__triton_metadata_t;

/* Reads the file's text; `name` stands for it in the sentence.
 * Returns: OK, PACKAGE, OUT_OF_HOST_MEMORY. On failure nothing is kept. */
purr_status_t purr__triton_metadata_parse(purr_context_t *context, const char *text, uint64_t bytes, const char *name,
                                          purr__triton_metadata_t *out_metadata, purr_error_t *err);
void purr__triton_metadata_free(purr_context_t *context, purr__triton_metadata_t *metadata);

#endif
