/* What a manifest says of a kernel that Triton compiled, and Triton's own metadata lacks: the arguments of the Python
 * function with their types, promises and constants, and how the grid follows from them.
 *
 *   "triton": {"kernel": "add_kernel", "version": "3.6.0", "grid": ["cdiv(n, BLOCK)", "1", "1"],
 *     "arguments": [{"name": "x_ptr", "type": "*fp32", "divisible_by": 16}, {"name": "scale", "type": "fp32"},
 *                   {"name": "n", "type": "i32", "divisible_by": 16},
 *                   {"name": "BLOCK", "type": "constexpr", "constant": 1024}],
 *     "cooperative": false, "overlap": false, "scratch_bytes": 0, "scratch_align": 1}
 *
 * `kernel` is the name under which it is opened: its variants (other types, promises, constants, architectures) share
 * it. An argument with a `constant` was compiled in and is no parameter of the image; a "tensordesc<fp16[128, 64]>"
 * that the kernel reads through the copy engine has a `descriptor`: {"swizzle": 3, "element_bytes": 2, "element_type":
 * 6, "block": [128, 64], "fp4_padded": false}. Types are Triton's own words. `grid`, `divisible_by`, `constant` and
 * `descriptor` may be left out. */
#ifndef PURR_PACKAGE_TRITON_SPEC_H
#define PURR_PACKAGE_TRITON_SPEC_H

#include "base/json.h"

#define PURR__TRITON_MAX_ARGUMENTS 256
#define PURR__TRITON_MAX_RANK 5
#define PURR__TRITON_MAP_BYTES 128 /* of a CUtensorMap */

/* What a pointer points to, a descriptor describes, or a number is. */
typedef enum purr__triton_class {
  PURR__TRITON_UNKNOWN,
  PURR__TRITON_BOOL,
  PURR__TRITON_SIGNED,
  PURR__TRITON_UNSIGNED,
  PURR__TRITON_FLOAT,
} purr__triton_class_t;

typedef struct purr__triton_element {
  const char *name; /* "fp32" */
  purr__triton_class_t class;
  int bytes;
  int dtype; /* PURR_DTYPE_*, NONE where there is none */
} purr__triton_element_t;

typedef enum purr__triton_kind {
  PURR__TRITON_ANY,        /* of a kernel without a manifest: so many bytes, the caller knows what they are */
  PURR__TRITON_POINTER,    /* "*fp32" */
  PURR__TRITON_NUMBER,     /* "i32", "fp32" */
  PURR__TRITON_DESCRIPTOR, /* "tensordesc<fp16[128, 64]>" */
  PURR__TRITON_MAP,        /* "nvTmaDesc": a CUtensorMap that the caller encodes */
  PURR__TRITON_CONSTEXPR,  /* compiled in whatever it is */
} purr__triton_kind_t;

typedef enum purr__triton_constant {
  PURR__TRITON_NO_CONSTANT,
  PURR__TRITON_CONSTANT_NONE, /* Python's None */
  PURR__TRITON_CONSTANT_INTEGER,
  PURR__TRITON_CONSTANT_REAL,
  PURR__TRITON_CONSTANT_TEXT,
} purr__triton_constant_t;

typedef struct purr__triton_argument {
  char name[64];
  char type[96];
  purr__triton_kind_t kind;
  const purr__triton_element_t *element; /* of a pointer, number or descriptor; NULL where unknown */
  int bytes;                             /* of the parameter, for ANY; else 0 */
  int divisible_by;                      /* what the compiler was promised of an address or integer; 1 = nothing */
  purr__triton_constant_t constant;      /* with one the argument is no parameter */
  int64_t constant_integer;
  char constant_text[64]; /* as it stands in the manifest */
  int rank;               /* of a descriptor */
  int32_t block[PURR__TRITON_MAX_RANK];
  bool has_map; /* the descriptor is a CUtensorMap; else the kernel takes it apart itself */
  int32_t swizzle, element_bytes, element_type;
  bool is_fp4_padded;
} purr__triton_argument_t;

typedef struct purr__triton_spec {
  char kernel[128];
  char version_text[32]; /* "3.6.0" */
  int version;           /* 306 */
  int num_arguments;
  purr__triton_argument_t *arguments;
  char grid[3][160]; /* all "" where there is no rule */
  bool is_cooperative, may_overlap;
  int32_t scratch_bytes, scratch_align; /* of each block, before clusters multiply them */
} purr__triton_spec_t;

/* Reads the value of "triton". On failure `json` has stopped; what was read so far is in *out_spec, or NULL. */
void purr__triton_spec_read(purr_context_t *context, purr__json_t *json, purr__triton_spec_t **out_spec);
void purr__triton_spec_free(purr_context_t *context, purr__triton_spec_t *spec);

/* Fills kind, element, rank and block from a type; false where it is none. */
bool purr__triton_type_parse(const char *type, purr__triton_argument_t *argument);
/* "fp32"; NULL for none. */
const purr__triton_element_t *purr__triton_element_find(const char *name, uint64_t length);
#define PURR__TRITON_OLDEST 302
/* "3.6.0" as 306; false where it is none, or older than the oldest that is known. */
bool purr__triton_version_parse(const char *text, int *out_version);
/* The bytes of the parameter of an argument that is one parameter; 0 for descriptors. */
int purr__triton_argument_bytes(const purr__triton_argument_t *argument);
/* Whether what the compiler says of a descriptor is one that the copy engine knows, in keys of the manifest's or of
 * Triton's metadata; else `why` gets a sentence without its end: what, got, allowed. */
bool purr__triton_map_is_possible(const purr__triton_argument_t *descriptor, bool is_manifest, char *why,
                                  uint64_t capacity);
/* Whether it describes blocks of the argument's type, which has the same number of dimensions. */
bool purr__triton_map_fits(const purr__triton_argument_t *argument, const purr__triton_argument_t *descriptor,
                           char *why, uint64_t capacity);
/* Reads {"swizzle": ...} of a manifest. */
void purr__triton_descriptor_read(purr__json_t *json, purr__triton_argument_t *argument);

#endif
