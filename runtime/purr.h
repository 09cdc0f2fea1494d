/* SPDX-License-Identifier: Apache-2.0
 *
 * Purr: fused Mixture-of-Experts layers, forward and backward, behind a stable C ABI.
 *
 * This header is the authoritative text of the interface. The order below is the order of use:
 *
 *   context -> config -> group -> plan -> weights, workspace, saved -> (schedule) -> forward, backward -> result
 *
 * Words.  T tokens of this rank, K top-k, H hidden size, I routed intermediate size, S shared intermediate size,
 *         E experts, R ranks, E_l = E/R experts held by this rank. A slot is one (token, k) pair.
 *
 * Rules that hold for every function unless its comment says otherwise:
 *   Status    Every fallible function returns a purr_status_t. `err` is optional and caller-owned; it is written on
 *             failure only. On failure every `out_` object is NULL, nothing was changed, and all handles stay usable.
 *   Structs   Every struct starts with `struct_size` = sizeof of the caller's struct (use the PURR_*_INIT macros). Zero
 *             means "default" in every other field. A shorter struct of an older header is accepted; a longer one is
 *             accepted when the unknown tail is zero and refused with INCOMPATIBLE_STRUCT when it is not. A field named
 *             `reserved` of a struct that the library reads must be 0.
 *   Handles   Opaque. destroy(NULL) does nothing. A child keeps its parent alive: destroy in any order.
 *   Threads   A function may be called from any thread. "one thread" means: not two calls on that object at once.
 *   Together  "Collective": every rank of the group makes the call, in the same order. A rank whose call is refused
 *             before it starts (a bad argument, a wrong state, BUSY) has not come: the others wait for it, up to the
 *             group's timeout.
 *   Fork      After fork, every call on an inherited handle returns FORKED; destroy does nothing there.
 *   Memory    "device" is the memory of the backend that runs the plan: with the host backend that is ordinary memory.
 *   Overlap   What a call writes must not share memory with anything else that the call is given: output may not be x,
 *             nor d_x d_output. That is refused, as far as the addresses tell: tensors given as arrays of pointers, and
 *             the library's own objects, are not looked at. Tensors may interleave, as column halves of one matrix do.
 *             What is only read may overlap freely.
 *   Capture   On a GPU, forward, schedule_build and mxfp8_quantize_on can be captured into a CUDA graph. Whatever the
 *             library asks of the driver is safe beside captures in other threads, of any mode, on streams that do not
 *             wait for the legacy default stream (purr_stream_create makes such). The caller's own calls may not be: in
 *             the mode CU_STREAM_CAPTURE_MODE_GLOBAL, cuGraphInstantiate or cuMemAlloc in one thread ends the captures
 *             of all others. So where several threads work, as with the ranks of a local group, capture in the mode
 *             THREAD_LOCAL, or instantiate with cuThreadExchangeStreamCaptureMode set to RELAXED. All ranks capture the
 *             same calls; their replays, like calls, wait for each other, so all ranks launch theirs, each on a stream
 *             of its own.
 *   Never     The library never prints, exits, aborts, or changes process-wide state.
 */
#ifndef PURR_H
#define PURR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PURR_VERSION_MAJOR 0
#define PURR_VERSION_MINOR 1
#define PURR_VERSION_PATCH 0
#define PURR_VERSION (PURR_VERSION_MAJOR * 10000 + PURR_VERSION_MINOR * 100 + PURR_VERSION_PATCH)

#ifndef PURR_API
#if defined(__GNUC__)
#define PURR_API __attribute__((visibility("default")))
#else
#define PURR_API
#endif
#endif

/* ---------------------------------------------------------------------------------------------- status and errors */

/* A status; see purr_status.def for the numbers. A newer library may return numbers that this header does not name. */
typedef int32_t purr_status_t;

enum {
#define PURR_STATUS(name, number, text) PURR_STATUS_##name = number,
#include "purr_status.def"
#undef PURR_STATUS
};

/* What went wrong, in one sentence: what, where, got, allowed. Plain memory of the caller, for example on the stack. */
typedef struct purr_error {
  uint32_t struct_size; /* sizeof(purr_error_t); 0 is read as the size in version 0.1 */
  int32_t status;       /* the status that the call returned */
  int32_t native_code;  /* errno, CUresult or ncclResult_t behind it, 0 if none */
  int32_t rank;         /* rank that failed or was waited for, -1 if none */
  int32_t line;         /* line in a config or checkpoint file, from 1; 0 if none */
  int32_t column;       /* column there, from 1; 0 if none */
  char message[512];    /* UTF-8, always terminated, never ends in a newline */
} purr_error_t;
#define PURR_ERROR_INIT                         \
  {                                             \
    sizeof(purr_error_t), 0, 0, -1, 0, 0, { 0 } \
  }

/* Version of the loaded library, as PURR_VERSION.  Threads: any. Collective: no. Since 0.1. */
PURR_API uint32_t purr_version(void);

/* The same as text, for example "0.1.0". Static storage.  Threads: any. Collective: no. Since 0.1. */
PURR_API const char *purr_version_string(void);

/* Name of a status ("BAD_ROUTE"), "UNKNOWN" for a number the library does not know. Static storage. Since 0.1. */
PURR_API const char *purr_status_name(purr_status_t status);

/* What a status means, as half a sentence. Static storage.  Threads: any. Collective: no. Since 0.1. */
PURR_API const char *purr_status_text(purr_status_t status);

/* ------------------------------------------------------------------------------------------------------- constants */

/* Element types. The first block can be used in a layer; the second appears only in checkpoints. */
enum {
  PURR_DTYPE_NONE = 0,
  PURR_DTYPE_BF16 = 1,
  PURR_DTYPE_FP32 = 2,
  PURR_DTYPE_INT32 = 3,
  PURR_DTYPE_INT64 = 4,
  PURR_DTYPE_E4M3 = 5, /* OCP FP8 E4M3, no infinities */
  PURR_DTYPE_E8M0 = 6, /* OCP power-of-two scale */

  PURR_DTYPE_FP16 = 32,
  PURR_DTYPE_FP64 = 33,
  PURR_DTYPE_E5M2 = 34,
  PURR_DTYPE_INT8 = 35,
  PURR_DTYPE_UINT8 = 36,
  PURR_DTYPE_INT16 = 37,
  PURR_DTYPE_UINT16 = 38,
  PURR_DTYPE_UINT32 = 39,
  PURR_DTYPE_UINT64 = 40,
  PURR_DTYPE_BOOL = 41,
};

enum { PURR_PRECISION_BF16 = 0, PURR_PRECISION_MXFP8 = 1 };

/* AUTO takes the fastest backend that the device, the shape and the loaded packages allow. */
enum { PURR_BACKEND_AUTO = 0, PURR_BACKEND_HOST = 1, PURR_BACKEND_STAGED = 2, PURR_BACKEND_MEGA = 3 };

/* Gate of the shared expert: none, or sigmoid(x . w) as in Qwen2-MoE. */
enum { PURR_SHARED_GATE_NONE = 0, PURR_SHARED_GATE_SIGMOID = 1 };

/* Format of the purr_*_describe texts. */
enum { PURR_FORMAT_TEXT = 0, PURR_FORMAT_JSON = 1 };

enum { PURR_LOG_ERROR = 1, PURR_LOG_WARNING = 2, PURR_LOG_INFO = 3, PURR_LOG_DEBUG = 4 };

/* --------------------------------------------------------------------------------------------------------- context */

/* Holds the memory hooks, the log sink, the worker threads of the host backend and the counters. One a process is
 * enough. */
typedef struct purr_context purr_context_t;

/* Memory for the library's own objects. Both functions may be called from any thread at once. `allocate` returns memory
 * aligned to `alignment` (a power of two) or NULL; `release` gets what allocate returned and the same byte count. */
typedef struct purr_allocator {
  uint32_t struct_size;
  uint32_t reserved;
  void *(*allocate)(void *user, uint64_t bytes, uint64_t alignment);
  void (*release)(void *user, void *memory, uint64_t bytes);
  void *user;
} purr_allocator_t;

/* Device memory for what the library allocates on a GPU: workspaces, saved activations, symmetric memory. Both
 * functions may be called from any thread at once; the primary context of `device` is current then. Memory must be
 * usable on every stream at once; it is given back only when no call uses it any more. `allocate` returns an address at
 * a multiple of `alignment` (a power of two, at most 512) or NULL. */
typedef struct purr_device_allocator {
  uint32_t struct_size;
  uint32_t reserved;
  void *(*allocate)(void *user, int32_t device, uint64_t bytes, uint64_t alignment);
  void (*release)(void *user, int32_t device, void *memory, uint64_t bytes);
  void *user;
} purr_device_allocator_t;

/* Receives log lines: level PURR_LOG_*, one line without newline. Called from any thread, never under a lock. */
typedef void (*purr_log_fn)(void *user, int32_t level, const char *message);

typedef struct purr_context_desc {
  uint32_t struct_size;
  uint32_t num_threads; /* threads of the host backend; 0 = PURR_NUM_THREADS, else the CPUs available */
  const purr_allocator_t *host_allocator; /* NULL = malloc and free */
  purr_log_fn log;                        /* NULL = no log */
  void *log_user;
  int32_t log_level; /* the most detailed level delivered; 0 = PURR_LOG_WARNING */
  int32_t reserved;
  const purr_device_allocator_t *device_allocator; /* NULL = the driver's own */
} purr_context_desc_t;
#define PURR_CONTEXT_DESC_INIT \
  { sizeof(purr_context_desc_t), 0, NULL, NULL, NULL, 0, 0, NULL }

/* Totals since the context was created. On a GPU a call only enqueues, so its rows and its bad route are counted when
 * its outcome is read first: by purr_result_query or purr_result_tokens_per_expert, for each replay anew, or for a
 * schedule when it is looked at, once until it is seen to be good. A call whose outcome nobody reads is not seen here.
 * Every rank counts a bad route. */
typedef struct purr_counters {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t num_forward_calls;
  uint64_t num_backward_calls;
  uint64_t num_rows;       /* rows computed by routed experts, both passes; see below */
  uint64_t num_timeouts;   /* waits for a peer that ran out */
  uint64_t num_bad_routes; /* calls refused for an expert id out of range; see below */
  uint64_t dispatch_bytes; /* bytes pulled from peers and from this rank's own tokens; host backend */
  uint64_t combine_bytes;  /* bytes pushed home; host backend */
  uint64_t host_bytes;     /* host memory held by the library now */
  uint64_t host_bytes_peak;
  uint64_t device_bytes; /* device memory held by the library now, on all devices */
  uint64_t device_bytes_peak;
  uint64_t num_launches; /* kernels started on GPUs; replays of a captured call are not seen */
} purr_counters_t;

/* Creates a context.
 * @param desc  NULL = all defaults.
 * The environment variables PURR_NUM_THREADS, PURR_LOG and PURR_PACKAGE_PATH are read here and nowhere else; a value of
 * the first two that means nothing is INVALID_ARGUMENT. No GPU and no driver is touched: that happens in the first call
 * that needs one.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, INCOMPATIBLE_STRUCT, OUT_OF_HOST_MEMORY. Since 0.1. */
PURR_API purr_status_t purr_context_create(const purr_context_desc_t *desc, purr_context_t **out_context,
                                           purr_error_t *err);

/* Releases the caller's reference; the last child frees the context.  Threads: any. Collective: no. Since 0.1. */
PURR_API void purr_context_destroy(purr_context_t *context);

/* Reads the counters.
 * @param out_counters  set its struct_size first; fields beyond it are not written.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, FORKED. Since 0.1. */
PURR_API purr_status_t purr_context_query_counters(purr_context_t *context, purr_counters_t *out_counters,
                                                   purr_error_t *err);

/* ---------------------------------------------------------------------------------------------------------- config */

/* A checked layer description with the place each value came from. Immutable. */
typedef struct purr_config purr_config_t;

/* The layer, as numbers. The YAML keys have the same names; configs/schema.yaml documents each. */
typedef struct purr_layer_desc {
  uint32_t struct_size;
  int32_t precision;                    /* PURR_PRECISION_* */
  int64_t hidden_size;                  /* H */
  int64_t intermediate_size;            /* I */
  int64_t num_experts;                  /* E, over all ranks */
  int64_t top_k;                        /* K */
  int64_t max_tokens;                   /* largest T of a rank; 0 = 4096 */
  int64_t shared_intermediate_size;     /* S; 0 = no shared expert */
  int32_t shared_gate;                  /* PURR_SHARED_GATE_* */
  int32_t backend;                      /* PURR_BACKEND_* */
  float swiglu_limit;                   /* 0 = no clamp */
  int32_t num_ranks;                    /* R; 0 = 1 */
  int64_t minibatch_rows;               /* rows of one minibatch, a multiple of 64; 0 = chosen by the plan */
  int64_t macrobatch_rows;              /* rows of the ring, a multiple of 64, at least two minibatches; 0 = chosen */
  int64_t num_comm_sms;                 /* SMs that communicate when R > 1; 0 = chosen */
  int64_t activation_memory;            /* bytes kept for backward; 0 = all that can be needed, -1 = keep nothing */
  int64_t timeout_ms;                   /* longest wait for a peer; 0 = 600000 */
  int32_t mxfp8_scale_rule;             /* PURR_SCALE_RULE_* */
  int32_t mxfp8_activation_granularity; /* PURR_GRANULARITY_1X32 or _1X128: of x, a, dO, dG and dU along their rows */
  int32_t mxfp8_weight_granularity;     /* PURR_GRANULARITY_*; a square one serves both passes with the same bytes */
  int32_t reserved;
} purr_layer_desc_t;
#define PURR_LAYER_DESC_INIT \
  { sizeof(purr_layer_desc_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Reads a YAML layer config, strictly: anything unknown, repeated, of a wrong type or out of range is an error with
 * file:line:column, what was found, what is allowed and the nearest known key.
 * @param path  a regular file of at most 1 MiB.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, CONFIG, IO, OUT_OF_HOST_MEMORY, FORKED. Since 0.1. */
PURR_API purr_status_t purr_config_load(purr_context_t *context, const char *path, purr_config_t **out_config,
                                        purr_error_t *err);

/* The same from memory.
 * @param text, num_bytes  UTF-8 YAML, host memory, not kept.
 * @param name             stands for the file in messages; NULL = "config".
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, CONFIG, OUT_OF_HOST_MEMORY, FORKED. Since 0.1. */
PURR_API purr_status_t purr_config_parse(purr_context_t *context, const char *text, uint64_t num_bytes,
                                         const char *name, purr_config_t **out_config, purr_error_t *err);

/* The same from numbers, checked by the same rules.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, INCOMPATIBLE_STRUCT, CONFIG, OUT_OF_HOST_MEMORY, FORKED.
 * Since 0.1. */
PURR_API purr_status_t purr_config_create(purr_context_t *context, const purr_layer_desc_t *layer,
                                          purr_config_t **out_config, purr_error_t *err);

/* Reads the layer back, defaults filled in.
 * @param out_layer  set its struct_size first.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, FORKED. Since 0.1. */
PURR_API purr_status_t purr_config_get_layer(const purr_config_t *config, purr_layer_desc_t *out_layer,
                                             purr_error_t *err);

/* Writes the config as YAML that purr_config_parse accepts and that gives the same layer.
 * @param buffer, capacity  host memory for the text and its final NUL; NULL and 0 to ask for the length alone.
 * @param out_length        length of the text without the NUL; written also with BUFFER_TOO_SMALL.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, BUFFER_TOO_SMALL, OUT_OF_HOST_MEMORY, FORKED. Since 0.1.
 */
PURR_API purr_status_t purr_config_write(const purr_config_t *config, char *buffer, uint64_t capacity,
                                         uint64_t *out_length, purr_error_t *err);

/* The config as text: what purr_config_write writes, or a JSON object with the same keys and words.
 * @param format                        PURR_FORMAT_*
 * @param buffer, capacity, out_length  as in purr_config_write.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, BUFFER_TOO_SMALL, OUT_OF_HOST_MEMORY, FORKED. Since 0.1.
 */
PURR_API purr_status_t purr_config_describe(const purr_config_t *config, int32_t format, char *buffer,
                                            uint64_t capacity, uint64_t *out_length, purr_error_t *err);

/* Threads: any. Collective: no. Since 0.1. */
PURR_API void purr_config_destroy(purr_config_t *config);

/* --------------------------------------------------------------------------------------------------------- tensors */

/* Over how many rows and columns one scale value is known to repeat, "rows x columns" for blocks along a row. Scale
 * bytes are stored for every 32 elements whatever it is: it is a promise about their values. */
enum {
  PURR_GRANULARITY_1X32 = 0,    /* general MXFP8 */
  PURR_GRANULARITY_32X32 = 1,   /* square: the same elements serve blocks along rows and along columns */
  PURR_GRANULARITY_1X128 = 2,   /* along a column: 128x1 */
  PURR_GRANULARITY_128X128 = 3, /* square */
};

/* Which way a block of 32 runs in a matrix: 32 elements of one row (the last dimension), or of one column. */
enum { PURR_SCALE_ALONG_ROW = 0, PURR_SCALE_ALONG_COLUMN = 1 };

/* How scale bytes lie in memory, as a matrix [outer, blocks]: outer is the row, or the column with ALONG_COLUMN; blocks
 * counts groups of 32 along the axis, the last one possibly short.
 *   PLAIN       one byte a block, by strides
 *   TILE_128X4  what a block-scaled MMA of compute capability 10 reads: tiles of 128 outer x 4 blocks, 512 bytes each,
 *               tiles of one outer range adjacent; in its tile, (o, b) is byte (o mod 32) * 16 + (o div 32) * 4 + b.
 *               Padded to whole tiles; the padding is written as 0 and never read */
enum { PURR_SCALE_LAYOUT_PLAIN = 0, PURR_SCALE_LAYOUT_TILE_128X4 = 1 };

/* Scale metadata of a block-scaled tensor; NULL where a tensor has none. Byte s stands for 2^(s - 127), 255 for NaN. */
typedef struct purr_scales {
  uint32_t struct_size;
  int32_t format;       /* PURR_DTYPE_E8M0; 0 = that */
  int32_t block_length; /* elements of one block; 0 = 32, the only length of MXFP8 */
  int32_t axis;         /* PURR_SCALE_ALONG_* */
  int32_t granularity;  /* PURR_GRANULARITY_* */
  int32_t layout;       /* PURR_SCALE_LAYOUT_* */
  void *data;           /* the bytes; with TILE_128X4 at a multiple of 16 bytes */
  uint64_t data_bytes;  /* how many there are, checked before use; 0 = enough, not checked */
  int64_t slice_stride; /* bytes from one matrix of a 3-D tensor to the next; 0 = adjacent */
  int64_t outer_stride; /* PLAIN only: bytes from one outer index to the next, and from one block to the next; */
  int64_t block_stride; /* both 0 = [outer, blocks], blocks adjacent. [blocks, outer] is 1 and num_outer */
} purr_scales_t;
#define PURR_SCALES_INIT \
  { sizeof(purr_scales_t), 0, 0, 0, 0, 0, NULL, 0, 0, 0, 0 }

/* A tensor as the caller holds it. Nothing is copied and nothing is owned. */
typedef struct purr_tensor {
  uint32_t struct_size;
  int32_t dtype;         /* PURR_DTYPE_* */
  int32_t num_dims;      /* 1 to 4 */
  int32_t reserved;      /* 0 */
  void *data;            /* first element; NULL when `pointers` is used. Inputs are never written */
  void *const *pointers; /* host array [shape[0]] of the address of each slice of dimension 0; else NULL */
  int64_t shape[4];
  int64_t stride[4]; /* in elements, non-negative; all zero = contiguous, last dimension fastest; else none is zero in a
                        layer's tensors. The stride of a dimension of 1 is ignored, and stride[0] with `pointers`. The
                        last stride of a matrix is 1 */
  const purr_scales_t *scales;
} purr_tensor_t;

/* ----------------------------------------------------------------------------------------------------------- MXFP8 */

/* How a block's scale follows from its largest magnitude amax, which is taken from the input as it is. */
enum {
  PURR_SCALE_RULE_RCEIL = 0, /* the smallest power of two with amax / scale <= 448 */
  PURR_SCALE_RULE_FLOOR = 1, /* 2^(floor(log2(amax)) - 8), the OCP text; elements beyond 448 saturate */
};

/* What the scales of a tensor need. */
typedef struct purr_scales_info {
  uint32_t struct_size;
  int32_t reserved;
  int64_t num_slices;   /* matrices; 1 for a 2-D tensor */
  int64_t num_outer;    /* rows, or columns with ALONG_COLUMN */
  int64_t num_blocks;   /* blocks of 32 along the axis, the last one possibly short */
  int64_t slice_stride; /* in bytes, defaults filled in; outer_stride and block_stride are 0 with TILE_128X4 */
  int64_t outer_stride;
  int64_t block_stride;
  uint64_t num_bytes; /* from the first scale byte to the end of the last, padding included */
} purr_scales_info_t;

/* Sizes the scales of a tensor.
 * @param tensor    2-D, or 3-D with one matrix a slice; its shape and its scales are read, no data is needed.
 * @param out_info  set its struct_size first.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, INCOMPATIBLE_STRUCT, FORKED. Since 0.1. */
PURR_API purr_status_t purr_scales_query(purr_context_t *context, const purr_tensor_t *tensor,
                                         purr_scales_info_t *out_info, purr_error_t *err);

/* Quantises to MXFP8 on the host: round to nearest, ties to even, saturate at +-448. A block that holds a NaN or Inf
 * becomes NaN as a whole: scale byte 255, elements 0x7F. A block of zeros, -0 included, gets scale byte 0 and elements
 * 0x00. Tiny blocks get scale byte 0 and denormal elements. "Block" is what shares a scale: 32 or 128 elements, or the
 * square of the granularity; at the end of the matrix it may be short. The bytes do not depend on the number of
 * threads.
 * @param source       [rows, columns] or [slices, rows, columns], BF16 or FP32, host memory, any row stride.
 * @param rule         PURR_SCALE_RULE_*
 * @param destination  the same shape, E4M3, host memory, with scales; elements, scale bytes and the padding of tiles
 * are written, gaps between rows are not. Must not overlap the source. Threads: any; the work is shared by the
 * context's threads. Collective: no. Returns: OK, INVALID_ARGUMENT, INCOMPATIBLE_STRUCT, BUFFER_TOO_SMALL, FORKED.
 * Since 0.1. */
PURR_API purr_status_t purr_mxfp8_quantize(purr_context_t *context, const purr_tensor_t *source, int32_t rule,
                                           const purr_tensor_t *destination, purr_error_t *err);

/* Reads MXFP8 back: element * 2^(scale byte - 127). FP32 holds every such value exactly, except that 2^128 and above
 * become Inf (scale bytes from 247 on); BF16 does for scale bytes 3 to 246 and rounds to nearest even below.
 * @param source       E4M3 with scales, otherwise as in purr_mxfp8_quantize.
 * @param destination  the same shape, BF16 or FP32, host memory, any row stride. NaNs are written as 0x7FC0(0000).
 * Threads: any; the work is shared by the context's threads. Collective: no. Returns: OK, INVALID_ARGUMENT,
 * INCOMPATIBLE_STRUCT, BUFFER_TOO_SMALL, FORKED. Since 0.1. */
PURR_API purr_status_t purr_mxfp8_dequantize(purr_context_t *context, const purr_tensor_t *source,
                                             const purr_tensor_t *destination, purr_error_t *err);

/* Writes the scales of a tensor in another form: another layout, other strides, a finer granularity, and, where the
 * source's granularity is square, the other axis: one quantised copy of a weight then serves both passes.
 * @param tensor       shape and source scales; its elements are neither read nor needed.
 * @param destination  where to and how; must not overlap the source. Padding of tiles is written.
 * Threads: any; the work is shared by the context's threads. Collective: no. Returns: OK, INVALID_ARGUMENT,
 * INCOMPATIBLE_STRUCT, BUFFER_TOO_SMALL, FORKED. Since 0.1. */
PURR_API purr_status_t purr_scales_convert(purr_context_t *context, const purr_tensor_t *tensor,
                                           const purr_scales_t *destination, purr_error_t *err);

/* ---------------------------------------------------------------------------------------------------------- groups */

/* One rank's place in an expert-parallel group. Rank r holds experts r*E_l .. (r+1)*E_l-1. */
typedef struct purr_group purr_group_t;

typedef struct purr_group_desc {
  uint32_t struct_size;
  int32_t num_ranks;  /* R, at least 1 */
  int64_t timeout_ms; /* longest wait for a peer; 0 = 600000 */
} purr_group_desc_t;
#define PURR_GROUP_DESC_INIT \
  { sizeof(purr_group_desc_t), 0, 0 }

/* Makes a group of R ranks inside this process. Each rank is then driven by a thread of its own.
 * Where ranks share a GPU, one's kernels wait there for another's, and what waits for the whole GPU waits with them, up
 * to the timeout. So each rank has a stream of its own, and a stream that purr_stream_create did not make must have had
 * some work (an event, say) before its first call. The library frees memory of such a GPU when its ranks have destroyed
 * their workspaces; the caller's own cudaFree, cudaFreeHost, cudaDeviceSynchronize and module unloads come behind them,
 * or behind purr_group_destroy, which lets the others go.
 * @param out_groups  array [R]; receives the handle of each rank.
 * Threads: any. Collective: no, this one call makes all ranks. Returns: OK, INVALID_ARGUMENT, INCOMPATIBLE_STRUCT,
 * OUT_OF_HOST_MEMORY, FORKED. Since 0.1. */
PURR_API purr_status_t purr_group_create_local(purr_context_t *context, const purr_group_desc_t *desc,
                                               purr_group_t **out_groups, purr_error_t *err);

/* Health of the group: OK, or PEER_FAILED with the rank that did not come in err->rank. A broken group stays broken;
 * make a new one.  Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, PEER_FAILED, FORKED. Since 0.1. */
PURR_API purr_status_t purr_group_query_status(purr_group_t *group, purr_error_t *err);

/* This rank's number, 0..R-1 (0 for NULL).  Threads: any. Collective: no. Since 0.1. */
PURR_API int32_t purr_group_rank(const purr_group_t *group);

/* Number of ranks R (1 for NULL).  Threads: any. Collective: no. Since 0.1. */
PURR_API int32_t purr_group_num_ranks(const purr_group_t *group);

/* Leaves the group. Ranks that still wait for this one get PEER_FAILED at once, on GPUs too: so does a rank whose own
 * call was refused for its arguments release the others. What this rank has enqueued on a GPU still counts: the
 * function waits until that has ended, or has not moved for five seconds. (It does not see replays of a graph that have
 * not begun: finish those first.)  Threads: any. Collective: no. Since 0.1. */
PURR_API void purr_group_destroy(purr_group_t *group);

/* ------------------------------------------------------------------------------------------------------------ plan */

/* Everything decided before memory is touched: backend, device, tiles, minibatch, macrobatch, byte layout. Immutable;
 * may be shared by threads and by the ranks of a local group that are on one device. What is made for a plan serves
 * plans of equal hash on the same device. */
typedef struct purr_plan purr_plan_t;

typedef struct purr_plan_desc {
  uint32_t struct_size;
  int32_t num_sms;    /* SMs to plan for; 0 = those of the device, 132 where there is none */
  int32_t num_ranks;  /* R; 0 = as in the config */
  int32_t backend;    /* PURR_BACKEND_*; AUTO = as in the config */
  int32_t precision;  /* PURR_PRECISION_* + 1; 0 = as in the config */
  int32_t device;     /* CUDA device number + 1; 0 = the one whose context is current on this thread, else the first */
  int64_t max_tokens; /* 0 = as in the config */
} purr_plan_desc_t;
#define PURR_PLAN_DESC_INIT \
  { sizeof(purr_plan_desc_t), 0, 0, 0, 0, 0, 0 }

/* The plan in numbers. Byte counts are for one rank. */
typedef struct purr_plan_info {
  uint32_t struct_size;
  int32_t backend; /* the chosen one, never AUTO */
  int32_t precision;
  int32_t num_ranks;
  int64_t num_local_experts;
  int64_t max_tokens;
  int64_t max_rows;                   /* most rows of one step on this rank, padding included */
  int64_t minibatch_rows;             /* of forward; this and the next are 0 where the backend takes all rows at once */
  int64_t macrobatch_rows;            /* rows of the ring */
  int64_t min_minibatch_rows_forward; /* rows for two full waves of SMs */
  int64_t min_minibatch_rows_backward;
  int64_t kept_rows;         /* rows whose g and u are kept for backward; the others are replayed */
  uint64_t weight_bytes;     /* routed and shared weights */
  uint64_t workspace_bytes;  /* the rings and all else that a call needs of its own */
  uint64_t ring_bytes;       /* part of it */
  uint64_t symmetric_bytes;  /* memory that peers read and write: combine buffer, tokens, ids */
  uint64_t combine_bytes;    /* part of it; 0 where results need no buffer */
  uint64_t saved_bytes;      /* one purr_saved_t */
  uint64_t schedule_bytes;   /* one purr_schedule_t; also inside each workspace and each purr_saved_t */
  uint64_t hash;             /* equal on all ranks of a group */
  int32_t supports_backward; /* 1 = the backend runs backward too */
  int32_t tile_rows; /* rows of one tile of a grouped GEMM: the rows computed for an expert are a multiple of it */
} purr_plan_info_t;

/* Makes a plan.
 * @param desc  NULL = all as in the config.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, INCOMPATIBLE_STRUCT, CONFIG, UNSUPPORTED,
 * NO_DEVICE, OUT_OF_HOST_MEMORY, FORKED; where the config names kernels, or a GPU backend by name, also MISSING_KERNEL,
 * INCOMPATIBLE_BINARY, PACKAGE, IO, CUDA, DEVICE_LOST. Since 0.1. */
PURR_API purr_status_t purr_plan_create(purr_context_t *context, const purr_config_t *config,
                                        const purr_plan_desc_t *desc, purr_plan_t **out_plan, purr_error_t *err);

/* Reads the numbers; set out_info->struct_size first.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, FORKED. Since 0.1. */
PURR_API purr_status_t purr_plan_query(const purr_plan_t *plan, purr_plan_info_t *out_info, purr_error_t *err);

/* Explains the plan in words and tables, or as JSON: what was chosen and why.
 * @param format                        PURR_FORMAT_*
 * @param buffer, capacity, out_length  as in purr_config_write.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, BUFFER_TOO_SMALL, OUT_OF_HOST_MEMORY, FORKED. Since 0.1.
 */
PURR_API purr_status_t purr_plan_describe(const purr_plan_t *plan, int32_t format, char *buffer, uint64_t capacity,
                                          uint64_t *out_length, purr_error_t *err);

/* Threads: any. Collective: no. Since 0.1. */
PURR_API void purr_plan_destroy(purr_plan_t *plan);

/* --------------------------------------------------------------------------------------------------------- weights */

/* The weights of one rank, checked once. Holds addresses only: the caller may update the values in place between calls,
 * and keeps the memory alive. */
typedef struct purr_weights purr_weights_t;

/* Which tensors. All are device memory, as nn.Linear stores them, dtype BF16, the last stride 1, rows at 16-byte
 * multiples. Give either gate_up or both gate and up. The same struct names the gradients in purr_backward_args_t,
 * where the dtype is FP32 or BF16 and a NULL tensor is not computed. */
typedef struct purr_weights_desc {
  uint32_t struct_size;
  uint32_t reserved;
  const purr_tensor_t *gate_up;            /* [E_l, 2I, H], gate rows first */
  const purr_tensor_t *gate;               /* [E_l, I, H] */
  const purr_tensor_t *up;                 /* [E_l, I, H] */
  const purr_tensor_t *down;               /* [E_l, H, I] */
  const purr_tensor_t *shared_gate;        /* [S, H] */
  const purr_tensor_t *shared_up;          /* [S, H] */
  const purr_tensor_t *shared_down;        /* [H, S] */
  const purr_tensor_t *shared_expert_gate; /* [1, H] or [H]; with PURR_SHARED_GATE_SIGMOID only */
} purr_weights_desc_t;
#define PURR_WEIGHTS_DESC_INIT \
  { sizeof(purr_weights_desc_t), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }

/* Checks shapes, types, strides and, on a GPU, where the memory is against the plan, and remembers the addresses.
 * The descriptor and its tensor structs need not outlive the call; the tensors' memory must.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, INCOMPATIBLE_STRUCT, UNSUPPORTED, OUT_OF_HOST_MEMORY,
 * OUT_OF_DEVICE_MEMORY, CUDA, DEVICE_LOST, FORKED. Since 0.1. */
PURR_API purr_status_t purr_weights_create(const purr_plan_t *plan, const purr_weights_desc_t *desc,
                                           purr_weights_t **out_weights, purr_error_t *err);

/* Threads: any. Collective: no. Since 0.1. */
PURR_API void purr_weights_destroy(purr_weights_t *weights);

/* ------------------------------------------------------------------------------------------- MXFP8 on the plan's
 * device */

/* purr_mxfp8_quantize in the memory of the plan's backend, with the same bytes. On a GPU it only enqueues, one launch
 * for all slices, allocates nothing and can be captured in a graph. The GPU takes what its layers need: BF16,
 * granularity 1x32 along rows, either layout of the scales, columns a multiple of 8, rows of the source at multiples of
 * 16 bytes and of the destination at 8, slices one stride apart and at most 65535. Of the plan only the place counts,
 * not the shapes, and kernels.quantise of its config: a kernel of Triton's that is launched instead.
 * @param source, rule, destination  as in purr_mxfp8_quantize, device memory.
 * @param stream                     CUstream, NULL = the default stream; ignored by the host backend, which blocks.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, INCOMPATIBLE_STRUCT, BUFFER_TOO_SMALL, UNSUPPORTED,
 * MISSING_KERNEL, CUDA, DEVICE_LOST, FORKED. Since 0.1. */
PURR_API purr_status_t purr_mxfp8_quantize_on(const purr_plan_t *plan, const purr_tensor_t *source, int32_t rule,
                                              const purr_tensor_t *destination, void *stream, purr_error_t *err);

/* ---------------------------------------------------------------------------------------------------------- memory
 * For callers without a CUDA library of their own. Memory from anywhere else serves as well. */

/* Allocates memory of the plan's backend, not cleared.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY, CUDA,
 * DEVICE_LOST, FORKED. Since 0.1. */
PURR_API purr_status_t purr_memory_allocate(const purr_plan_t *plan, uint64_t bytes, void **out_memory,
                                            purr_error_t *err);

/* Copies between host memory and the backend's, or within either, and returns when it is done. Work that was enqueued
 * before on the legacy default stream is finished first; for another stream call purr_stream_synchronize.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, CUDA, DEVICE_LOST, FORKED. Since 0.1. */
PURR_API purr_status_t purr_memory_copy(const purr_plan_t *plan, void *to, const void *from, uint64_t bytes,
                                        purr_error_t *err);

/* Gives memory of purr_memory_allocate back; `bytes` is what was asked for. NULL does nothing.
 * Threads: any, with no call using it. Collective: no. Since 0.1. */
PURR_API void purr_memory_release(const purr_plan_t *plan, void *memory, uint64_t bytes);

/* Creates a stream that does not wait for the default one; NULL with the host backend, which blocks. It has had work
 * already: see purr_group_create_local.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, CUDA, DEVICE_LOST, FORKED. Since 0.1. */
PURR_API purr_status_t purr_stream_create(const purr_plan_t *plan, void **out_stream, purr_error_t *err);

/* Destroys a stream of purr_stream_create once its work is done. NULL does nothing.
 * Threads: any. Collective: no. Since 0.1. */
PURR_API void purr_stream_destroy(const purr_plan_t *plan, void *stream);

/* Waits until all work of the stream is done; returns at once with the host backend.
 * @param stream  CUstream, NULL = the default stream.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, CUDA, DEVICE_LOST, FORKED. Since 0.1. */
PURR_API purr_status_t purr_stream_synchronize(const purr_plan_t *plan, void *stream, purr_error_t *err);

/* ----------------------------------------------------------------------------------------- workspace, saved, result */

/* Rings, counters and symmetric memory. Layers may share one in stream order; overlapping use is refused with BUSY. On
 * a GPU that is found by the device, for replays of captured calls too: the call that comes while another one runs in
 * the workspace writes nothing, and its result says BUSY (with a schedule: purr_schedule_get_view does). Two graphs of
 * one capture must not run at once: they are one call. With R > 1 each rank finds out for itself, and the ranks that
 * were not busy wait for the one that was until they report PEER_FAILED. */
typedef struct purr_workspace purr_workspace_t;

typedef struct purr_workspace_desc {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t bytes;           /* at least this much, to serve other plans too; 0 = what this plan needs */
  uint64_t symmetric_bytes; /* likewise; all ranks give the same number */
  void *memory;             /* device memory of `bytes`, 256-byte aligned, or NULL to have it allocated. The symmetric
                               memory always comes from the group */
} purr_workspace_desc_t;
#define PURR_WORKSPACE_DESC_INIT \
  { sizeof(purr_workspace_desc_t), 0, 0, 0, NULL }

/* Creates the workspace of one rank; purr_plan_query says the sizes. When one rank has no memory for it, all fail
 * alike, with that rank in err->rank.
 * @param group  this rank's group handle; NULL when R = 1.
 * @param desc   NULL = all defaults.
 * Threads: any. Collective: yes. Returns: OK, INVALID_ARGUMENT, INCOMPATIBLE_STRUCT, BUFFER_TOO_SMALL, UNSUPPORTED,
 * OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY, PEER_FAILED, PEER_MISMATCH, CUDA, DEVICE_LOST, FORKED. Since 0.1. */
PURR_API purr_status_t purr_workspace_create(const purr_plan_t *plan, purr_group_t *group,
                                             const purr_workspace_desc_t *desc, purr_workspace_t **out_workspace,
                                             purr_error_t *err);

/* Threads: any, with no call in flight. Collective: no. Since 0.1. */
PURR_API void purr_workspace_destroy(purr_workspace_t *workspace);

/* What one forward keeps for its backward: the schedule, g and u. Many can be alive at once (pipelined microbatches).
 * A forward that overwrites one makes the earlier step's backward impossible. */
typedef struct purr_saved purr_saved_t;

/* Creates one; purr_plan_query says the size.
 * @param memory, bytes  device memory, 256-byte aligned, or NULL and 0 to have it allocated.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, BUFFER_TOO_SMALL, OUT_OF_HOST_MEMORY,
 * OUT_OF_DEVICE_MEMORY, CUDA, DEVICE_LOST, FORKED. Since 0.1. */
PURR_API purr_status_t purr_saved_create(const purr_plan_t *plan, void *memory, uint64_t bytes,
                                         purr_saved_t **out_saved, purr_error_t *err);

/* Threads: any, with no call in flight. Collective: no. Since 0.1. */
PURR_API void purr_saved_destroy(purr_saved_t *saved);

/* Outcome of one call: status, times, tokens per expert. */
typedef struct purr_result purr_result_t;

/* The phases that purr_result_info_t times. */
enum {
  PURR_PHASE_EXCHANGE = 0, /* ids, tokens and barriers between ranks */
  PURR_PHASE_SCHEDULE = 1, /* building the routing table */
  PURR_PHASE_SHARED = 2,   /* the shared expert */
  PURR_PHASE_DISPATCH = 3, /* pulling rows */
  PURR_PHASE_GATE_UP = 4,  /* gate and up GEMM with SwiGLU; in backward also their replay */
  PURR_PHASE_DOWN = 5,     /* down GEMM; in backward its data gradient with SwiGLU's */
  PURR_PHASE_DGRAD = 6,    /* data gradient of gate and up */
  PURR_PHASE_WGRAD = 7,    /* weight gradients */
  PURR_PHASE_COMBINE = 8,  /* pushing rows home */
  PURR_PHASE_SUM = 9,      /* the sum over slots */
  PURR_NUM_PHASES = 10,
};

typedef struct purr_result_info {
  uint32_t struct_size;
  int32_t status; /* NOT_READY while the call runs, then its final status */
  int32_t rank;   /* BAD_ROUTE: where the first bad id is; PEER_FAILED: who did not come; else -1 */
  int32_t reserved;
  int64_t token;             /* BAD_ROUTE: its token, else -1 */
  int64_t slot;              /* BAD_ROUTE: its slot, else -1 */
  int64_t expert;            /* BAD_ROUTE: the id found; between GPUs at most what fits in int32 */
  int64_t num_rows;          /* rows that this rank's experts compute in the call */
  int64_t num_rows_done;     /* how many are finished: progress, readable while the call runs */
  int64_t num_replayed_rows; /* backward: rows whose gate and up were computed again */
  uint64_t phase_ns[16];     /* wall time of each PURR_PHASE_*; phases that overlap are each counted */
  uint64_t total_ns;
} purr_result_info_t;

/* Creates a result; it can be used for any number of calls, one at a time; each call overwrites it, and so does each
 * replay of a captured call. Keep it, and its device, as long as a graph writes to it.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, OUT_OF_HOST_MEMORY, FORKED. Since 0.1. */
PURR_API purr_status_t purr_result_create(purr_context_t *context, purr_result_t **out_result, purr_error_t *err);

/* Reads the outcome without waiting; set out_info->struct_size first. The returned status is that of the query; the
 * call's own is out_info->status, its sentence goes to `err`.
 * Threads: any, also while the call runs. Collective: no. Returns: OK, INVALID_ARGUMENT, FORKED. Since 0.1. */
PURR_API purr_status_t purr_result_query(purr_result_t *result, purr_result_info_t *out_info, purr_error_t *err);

/* Tokens (slots) that each local expert of this rank got in the call.
 * @param out_counts  host int64 [num_counts]; num_counts = E_l of the call's plan.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, INVALID_STATE, NOT_READY, FORKED. Since 0.1. */
PURR_API purr_status_t purr_result_tokens_per_expert(purr_result_t *result, int64_t *out_counts, int64_t num_counts,
                                                     purr_error_t *err);

/* Name of a phase ("gate_up"), NULL outside 0..PURR_NUM_PHASES-1. Static storage.  Threads: any. Since 0.1. */
PURR_API const char *purr_phase_name(int32_t phase);

/* Threads: any, with no call in flight. Collective: no. Since 0.1. */
PURR_API void purr_result_destroy(purr_result_t *result);

/* ----------------------------------------------------------------------------------------------------------- trace */

/* The timeline of one forward: what each SM (on the host: each thread) did when. Memory that the kernel writes while it
 * runs; a call without one runs kernels that know nothing of it. The staged backend has the times of its launches
 * instead, and none for calls that are captured in a graph. */
typedef struct purr_trace purr_trace_t;

typedef struct purr_trace_desc {
  uint32_t struct_size;
  uint32_t reserved;
  int64_t events_per_track; /* events that find no room are counted, and lost; 0 = enough for most calls */
  void *memory;             /* device memory of `bytes`, 256-byte aligned, or NULL to have it allocated */
  uint64_t bytes;
} purr_trace_desc_t;
#define PURR_TRACE_DESC_INIT \
  { sizeof(purr_trace_desc_t), 0, 0, NULL, 0 }

/* Bytes of a trace; 0 with the staged backend, which needs none.
 * @param desc  NULL = all defaults.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, INCOMPATIBLE_STRUCT, UNSUPPORTED, BUFFER_TOO_SMALL,
 * FORKED. Since 0.1. */
PURR_API purr_status_t purr_trace_query(const purr_plan_t *plan, const purr_trace_desc_t *desc, uint64_t *out_bytes,
                                        purr_error_t *err);

/* Creates a trace, one for each rank. Each forward that it is given to overwrites it, and so does each replay of a
 * captured one.
 * @param desc  NULL = all defaults.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, INCOMPATIBLE_STRUCT, UNSUPPORTED (the plan's backend
 * records no timeline), BUFFER_TOO_SMALL, OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY, CUDA, FORKED. Since 0.1. */
PURR_API purr_status_t purr_trace_create(const purr_plan_t *plan, const purr_trace_desc_t *desc,
                                         purr_trace_t **out_trace, purr_error_t *err);

/* What purr_trace_write writes. */
enum {
  PURR_TRACE_TEXT = 0,     /* a table: time by kind, idle time, tail, hidden communication */
  PURR_TRACE_JSON = 1,     /* the same in numbers */
  PURR_TRACE_PERFETTO = 2, /* Trace Event Format, for ui.perfetto.dev */
  PURR_TRACE_SVG = 3,      /* a picture; its size is bounded */
};

/* Writes the timeline of the last forward, of all ranks whose traces are given together. Ranks on one device are on one
 * clock; those on several are as exact as the devices' timers agree, and made to begin together where these have
 * nothing in common, which the text says. Waits for nothing: synchronise the forward's stream before.
 * @param traces, num_traces            one for each rank, in any order, of one context; not all need be there.
 * @param format                        PURR_TRACE_*
 * @param buffer, capacity, out_length  as in purr_config_write.
 * Threads: any, with no call using the traces. Collective: no. Returns: OK, INVALID_ARGUMENT, INVALID_STATE (nothing
 * was recorded, or the memory is damaged), BUFFER_TOO_SMALL, OUT_OF_HOST_MEMORY, CUDA, DEVICE_LOST, FORKED. Since 0.1.
 */
PURR_API purr_status_t purr_trace_write(const purr_trace_t *const *traces, int32_t num_traces, int32_t format,
                                        char *buffer, uint64_t capacity, uint64_t *out_length, purr_error_t *err);

/* Keep a trace as long as a graph writes to it.  Threads: any, with no call in flight. Collective: no. Since 0.1. */
PURR_API void purr_trace_destroy(purr_trace_t *trace);

/* -------------------------------------------------------------------------------------------------------- schedule */

/* The routing table of one step: which (rank, token, slot) stands in which row. A forward builds its own when it is
 * given none; make one to look at it or to build it early. */
typedef struct purr_schedule purr_schedule_t;

/* The table, for reading. Host memory, owned by the schedule, valid until it is built again or destroyed. */
typedef struct purr_schedule_view {
  uint32_t struct_size;
  int32_t num_ranks;
  int64_t num_local_experts;
  int64_t num_rows;            /* rows in use, without padding */
  int64_t num_padded_rows;     /* length of row_rank and row_slot */
  const int32_t *expert_count; /* [E_l] rows of each local expert */
  const int32_t *expert_begin; /* [E_l + 1] first row of each expert's segment, multiples of 64 */
  const int32_t *row_rank;     /* [num_padded_rows] source rank, -1 in padding */
  const int32_t *row_slot;     /* [num_padded_rows] token * K + k on that rank, -1 in padding */
} purr_schedule_view_t;

/* Creates an empty schedule.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, OUT_OF_HOST_MEMORY, FORKED. Since 0.1. */
PURR_API purr_status_t purr_schedule_create(const purr_plan_t *plan, purr_schedule_t **out_schedule, purr_error_t *err);

/* Builds the table from all ranks' ids.
 * @param topk_ids  [T, K] INT32 or INT64, device, any row stride, -1 = dropped slot; read before the call returns.
 * @param stream    ignored by the host backend, which blocks.
 * Threads: one thread per schedule and per workspace. Collective: yes. Returns: OK, INVALID_ARGUMENT, BAD_ROUTE, BUSY,
 * PEER_FAILED, PEER_MISMATCH, FORKED. Since 0.1. */
PURR_API purr_status_t purr_schedule_build(purr_schedule_t *schedule, purr_workspace_t *workspace,
                                           const purr_tensor_t *topk_ids, void *stream, purr_error_t *err);

/* Looks at a built table; set out_view->struct_size first.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, INVALID_STATE, FORKED. Since 0.1. */
PURR_API purr_status_t purr_schedule_get_view(const purr_schedule_t *schedule, purr_schedule_view_t *out_view,
                                              purr_error_t *err);

/* Prints the table: a line for each expert with its rows as rank:token/slot, or JSON.
 * @param format                        PURR_FORMAT_*
 * @param buffer, capacity, out_length  as in purr_config_write.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, INVALID_STATE, BUFFER_TOO_SMALL, OUT_OF_HOST_MEMORY,
 * FORKED. Since 0.1. */
PURR_API purr_status_t purr_schedule_describe(const purr_schedule_t *schedule, int32_t format, char *buffer,
                                              uint64_t capacity, uint64_t *out_length, purr_error_t *err);

/* Threads: any, with no call in flight. Collective: no. Since 0.1. */
PURR_API void purr_schedule_destroy(purr_schedule_t *schedule);

/* ------------------------------------------------------------------------------------------------ forward, backward */

typedef struct purr_forward_args {
  uint32_t struct_size;
  uint32_t reserved;
  const purr_weights_t *weights;
  const purr_tensor_t *x;            /* [T, H] BF16, device, rows at 16-byte multiples */
  const purr_tensor_t *topk_ids;     /* [T, K] INT32 or INT64, device, -1 = dropped slot */
  const purr_tensor_t *topk_weights; /* [T, K] FP32, device; used as they are, any finite value */
  const purr_tensor_t *output;       /* [T, H] BF16, device, written */
  purr_schedule_t *schedule;         /* built before from the same ids, or NULL to build one inside */
  purr_saved_t *saved;               /* written for backward; NULL = inference */
  purr_result_t *result;             /* NULL = not wanted */
  void *stream;                      /* CUstream; ignored by the host backend, which blocks */
  purr_trace_t *trace;               /* gets the timeline of this call; NULL = none is recorded */
} purr_forward_args_t;
#define PURR_FORWARD_ARGS_INIT \
  { sizeof(purr_forward_args_t), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }

/* Runs the layer: output = bf16(shared + sum over k of topk_weights[k] * expert_k(x)).
 * T may be 0 and may differ from rank to rank, up to the plan's max_tokens. An expert id outside -1..E-1 is found while
 * running: then no rank writes its output, and every rank's result says BAD_ROUTE with rank, token and slot. The host
 * backend blocks, so its call returns that status too; GPU backends return OK and report in the result alone.
 * After INTERNAL in a result part of the output may be written. With several ranks a call may hold up to eight SMs
 * while it waits for the others: what these wait for must not need the whole device.
 * Threads: one thread per workspace, saved and result. Collective: yes. Returns: OK, INVALID_ARGUMENT,
 * INCOMPATIBLE_STRUCT, INVALID_STATE, BUFFER_TOO_SMALL, BUSY, BAD_ROUTE, PEER_FAILED, PEER_MISMATCH,
 * OUT_OF_HOST_MEMORY, UNSUPPORTED (of its trace, or saved with kernels that the config names), FORKED. Since 0.1. */
PURR_API purr_status_t purr_forward(const purr_plan_t *plan, purr_workspace_t *workspace,
                                    const purr_forward_args_t *args, purr_error_t *err);

/* Flags of purr_backward_args_t. */
enum {
  PURR_BACKWARD_ACCUMULATE = 1, /* add weight gradients to what is there (main-grad) instead of overwriting */
};

typedef struct purr_backward_args {
  uint32_t struct_size;
  uint32_t flags; /* PURR_BACKWARD_* */
  const purr_weights_t *weights;
  const purr_saved_t *saved;         /* of the forward of this step; stays valid, backward may be repeated */
  const purr_tensor_t *x;            /* as in that forward */
  const purr_tensor_t *topk_weights; /* as in that forward */
  const purr_tensor_t *d_output;     /* [T, H] BF16, device */
  const purr_tensor_t *d_x; /* [T, H] BF16, device, written; without the path through the router. May be NULL */
  const purr_tensor_t *d_topk_weights; /* [T, K] FP32, device, written; 0 for dropped slots. May be NULL */
  /* FP32 or BF16 tensors, written or added to. May be NULL, also in parts. Those of the shared expert are sums over
   * this rank's tokens: the caller reduces them. */
  const purr_weights_desc_t *d_weights;
  purr_result_t *result;
  void *stream;
} purr_backward_args_t;
#define PURR_BACKWARD_ARGS_INIT \
  { sizeof(purr_backward_args_t), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }

/* Runs the layer backward. Experts without rows get exact-zero gradients, or keep theirs with ACCUMULATE.
 * Threads: one thread per workspace and result. Collective: yes. Returns: OK, INVALID_ARGUMENT, INCOMPATIBLE_STRUCT,
 * INVALID_STATE, BUFFER_TOO_SMALL, BUSY, PEER_FAILED, PEER_MISMATCH, OUT_OF_HOST_MEMORY, FORKED. Since 0.1. */
PURR_API purr_status_t purr_backward(const purr_plan_t *plan, purr_workspace_t *workspace,
                                     const purr_backward_args_t *args, purr_error_t *err);

/* ------------------------------------------------------------------------------------------------------ checkpoints */

/* A safetensors checkpoint, single file or sharded, memory-mapped read-only. Nothing in it is trusted. */
typedef struct purr_checkpoint purr_checkpoint_t;

/* Opens a folder (config.json beside model.safetensors or model.safetensors.index.json) or one .safetensors file. The
 * files must stay as they are while the checkpoint is open. Shards that the index names and the folder lacks are an
 * error only when one of their tensors is needed. Links may lead inside the folder, or to the ../../blobs of the
 * Hugging Face cache. Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, CHECKPOINT, IO, OUT_OF_HOST_MEMORY,
 * FORKED. Since 0.1. */
PURR_API purr_status_t purr_checkpoint_open(purr_context_t *context, const char *path,
                                            purr_checkpoint_t **out_checkpoint, purr_error_t *err);

/* Number of tensors in all shards.  Threads: any. Collective: no. Since 0.1. */
PURR_API int64_t purr_checkpoint_num_tensors(const purr_checkpoint_t *checkpoint);

/* Name of a tensor, in name order; NULL outside 0..num_tensors-1. Lives as long as the checkpoint.
 * Threads: any. Collective: no. Since 0.1. */
PURR_API const char *purr_checkpoint_tensor_name(const purr_checkpoint_t *checkpoint, int64_t index);

/* Finds a tensor by name. Its data is host memory, 16-byte aligned (a copy where the file's is not), read-only, and
 * lives as long as the checkpoint.
 * @param out_tensor  set its struct_size first. Tensors of more than 4 dimensions are refused; a scalar has shape [1].
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, CHECKPOINT (no such name, or the file changed its size),
 * UNSUPPORTED, IO, OUT_OF_HOST_MEMORY, FORKED. Since 0.1. */
PURR_API purr_status_t purr_checkpoint_find(const purr_checkpoint_t *checkpoint, const char *name,
                                            purr_tensor_t *out_tensor, purr_error_t *err);

/* Lists what the checkpoint holds, as a table or JSON: files, model, and for each layer the tensors by role with
 * number, shape, type and bytes, and what is missing or wrong. Without a usable config.json: the tensors, at most 1000.
 * @param format                        PURR_FORMAT_*
 * @param buffer, capacity, out_length  as in purr_config_write.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, BUFFER_TOO_SMALL, OUT_OF_HOST_MEMORY, FORKED. Since 0.1.
 */
PURR_API purr_status_t purr_checkpoint_describe(const purr_checkpoint_t *checkpoint, int32_t format, char *buffer,
                                                uint64_t capacity, uint64_t *out_length, purr_error_t *err);

/* The layer config of a checkpoint's MoE layer, from its config.json; the families are Qwen2-MoE, Qwen3-MoE,
 * DeepSeek-V2 and V3, Kimi-K2, Mixtral, OLMoE and GLM-4-MoE.
 * @param layer  index of the decoder layer; -1 = the first MoE layer.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, CHECKPOINT, UNSUPPORTED, OUT_OF_HOST_MEMORY, FORKED.
 * Since 0.1. */
PURR_API purr_status_t purr_checkpoint_create_config(const purr_checkpoint_t *checkpoint, int64_t layer,
                                                     purr_config_t **out_config, purr_error_t *err);

/* Router of a checkpoint's MoE layers. */
enum { PURR_ROUTER_SOFTMAX = 0, PURR_ROUTER_SIGMOID = 1 };
typedef struct purr_router_desc {
  uint32_t struct_size;
  int32_t scoring;         /* PURR_ROUTER_* */
  int32_t num_groups;      /* expert groups for group-limited routing; 1 = none */
  int32_t num_top_groups;  /* groups that a token may use */
  int32_t group_top;       /* experts summed to score a group: 1 (maximum) or 2 */
  int32_t normalize;       /* 1 = the chosen weights are divided by their sum */
  float scaling;           /* factor on the weights after that */
  float normalize_epsilon; /* added to the sum */
} purr_router_desc_t;

/* One MoE layer of a checkpoint, as weights that purr_weights_create takes. BF16 tensors are used where they are
 * mapped; FP8 tensors with scales (blocks with factors as DeepSeek has them, or MXFP8) are turned into BF16 when
 * loaded. */
typedef struct purr_checkpoint_layer purr_checkpoint_layer_t;

/* Looks up every tensor of a layer and checks names, shapes and types against the checkpoint's own config.
 * @param layer            as in purr_checkpoint_create_config.
 * @param rank, num_ranks  whose experts.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, CHECKPOINT, UNSUPPORTED, IO, OUT_OF_HOST_MEMORY, FORKED.
 * Since 0.1. */
PURR_API purr_status_t purr_checkpoint_load_layer(const purr_checkpoint_t *checkpoint, int64_t layer, int32_t rank,
                                                  int32_t num_ranks, purr_checkpoint_layer_t **out_layer,
                                                  purr_error_t *err);

/* The layer's weights: host memory, BF16, valid as long as the layer handle.
 * @param out_weights  set its struct_size first.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, FORKED. Since 0.1. */
PURR_API purr_status_t purr_checkpoint_layer_get_weights(const purr_checkpoint_layer_t *layer,
                                                         purr_weights_desc_t *out_weights, purr_error_t *err);

/* The layer's router. CHECKPOINT when the checkpoint lacks its tensors, which a layer can be loaded without.
 * @param out_router  set its struct_size first.
 * @param out_weight  [E, H] FP32, host; valid as long as the layer handle. Set its struct_size first.
 * @param out_bias    [E] FP32 score correction bias used for choosing only; num_dims = 0 where there is none.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, CHECKPOINT, IO, FORKED. Since 0.1. */
PURR_API purr_status_t purr_checkpoint_layer_get_router(const purr_checkpoint_layer_t *layer,
                                                        purr_router_desc_t *out_router, purr_tensor_t *out_weight,
                                                        purr_tensor_t *out_bias, purr_error_t *err);

/* Threads: any. Collective: no. Since 0.1. */
PURR_API void purr_checkpoint_layer_destroy(purr_checkpoint_layer_t *layer);

/* Threads: any. Collective: no. Since 0.1. */
PURR_API void purr_checkpoint_destroy(purr_checkpoint_t *checkpoint);

/* ------------------------------------------------------------------------------------------------- kernel packages */

/* GPU kernels, compiled ahead of time: a folder or a tar (ustar) of cubins with a manifest.json, which says of each
 * kernel what it is for, what it was compiled for, what it needs and which shapes it serves. Nothing in a package is
 * trusted: links and paths are not followed, and an image goes to the driver only after its SHA-256, its architecture
 * and what it says of its kernels were found to be what the manifest says.
 *
 * A context uses, in this order: the packages added to it; those of PURR_PACKAGE_PATH (absolute paths with colons
 * between them, each a package or a folder of packages; ignored in a process with more rights than its caller); those
 * in purr/packages beside the library. The first package that has a kernel wins. In a folder of packages, folders
 * without a manifest.json are passed over; a package that is damaged is refused, and all others with it. */
typedef struct purr_package purr_package_t;

/* Opens a package and reads its manifest.
 * @param path  a folder or a tar file.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, IO, PACKAGE, INCOMPATIBLE_BINARY (the manifest is newer
 * than the library), OUT_OF_HOST_MEMORY, FORKED. Since 0.1. */
PURR_API purr_status_t purr_package_open(purr_context_t *context, const char *path, purr_package_t **out_package,
                                         purr_error_t *err);

/* The same from memory.
 * @param data, num_bytes  a tar, host memory, copied.
 * @param name             stands for the file in messages; NULL = "package".
 * Threads: any. Collective: no. Returns: as purr_package_open. Since 0.1. */
PURR_API purr_status_t purr_package_open_memory(purr_context_t *context, const void *data, uint64_t num_bytes,
                                                const char *name, purr_package_t **out_package, purr_error_t *err);

/* Reads every image and holds it against the manifest, the arguments of Triton's kernels included. No GPU is needed.
 * (What a device uses is checked when it is loaded, whether this was called or not.)
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, IO, PACKAGE, MISSING_KERNEL, INCOMPATIBLE_BINARY,
 * OUT_OF_HOST_MEMORY, FORKED. Since 0.1. */
PURR_API purr_status_t purr_package_verify(const purr_package_t *package, purr_error_t *err);

/* Prints what is in the package: for each kernel what the manifest says and, from its image, registers, shared memory,
 * stack and spills. An image that cannot be read is listed with the reason.
 * @param format                        PURR_FORMAT_*
 * @param buffer, capacity, out_length  as in purr_config_write.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, BUFFER_TOO_SMALL, OUT_OF_HOST_MEMORY, FORKED. Since 0.1.
 */
PURR_API purr_status_t purr_package_describe(const purr_package_t *package, int32_t format, char *buffer,
                                             uint64_t capacity, uint64_t *out_length, purr_error_t *err);

/* A context that uses the package keeps it.  Threads: any. Collective: no. Since 0.1. */
PURR_API void purr_package_destroy(purr_package_t *package);

/* Lets the context use a package, before those that it finds by itself and behind those added earlier.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, INVALID_STATE (the context has already looked for its
 * kernels), PACKAGE (too many), OUT_OF_HOST_MEMORY, FORKED. Since 0.1. */
PURR_API purr_status_t purr_context_add_package(purr_context_t *context, purr_package_t *package, purr_error_t *err);

/* Prints what one cubin was compiled for and what its kernels need, without a GPU.
 * @param path                                  the file
 * @param format, buffer, capacity, out_length  as in purr_package_describe.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, IO, PACKAGE, BUFFER_TOO_SMALL, OUT_OF_HOST_MEMORY,
 * FORKED. Since 0.1. */
PURR_API purr_status_t purr_cubin_describe(purr_context_t *context, const char *path, int32_t format, char *buffer,
                                           uint64_t capacity, uint64_t *out_length, purr_error_t *err);

/* --------------------------------------------------------------------------------------------------- Triton kernels
 * Kernels that the Triton compiler made (3.2 and newer), loaded and launched without Python. What can be checked is
 * checked, and said in a sentence, before a kernel runs: the arguments against their types and against the promises
 * that the kernel was compiled with, and all of it against the parameters that the binary itself declares.
 *
 *   open     purr_kernel_open: a package made by kernels/triton/export.py, which knows the names and types of
 * arguments, or the .json and .cubin that Triton leaves in its cache bind     purr_launcher_create: loads the kernel on
 * a device; then purr_launcher_set_* for each argument launch   purr_launcher_launch: enqueues, allocates nothing, can
 * be captured in a graph */

/* A Triton kernel with all its variants: types, promises, constants, architectures. Immutable. */
typedef struct purr_kernel purr_kernel_t;

/* Which kernel, and where from: `path`, `package`, or `metadata` and `cubin`. */
typedef struct purr_kernel_desc {
  uint32_t struct_size;
  uint32_t reserved;
  const char *path; /* a package; a <name>.json of Triton's with <name>.cubin beside it; a folder of those */
  const purr_package_t *package; /* an open one; may be destroyed after */
  const void *metadata;          /* the text of a <name>.json, host memory, not kept */
  uint64_t metadata_bytes;
  const void *cubin; /* its image, host memory, copied */
  uint64_t cubin_bytes;
  const char *name; /* of the Python function; NULL = the only one there is */
  /* The arguments, where no manifest names them, in order and with commas between: Triton's types, with what addresses
   * and integers are divisible by, or constants; each with or without a name, for example
   * "x=*fp32:16, n=i32, BLOCK=1024". NULL: only their sizes are known, and their names are their numbers. */
  const char *signature;
  /* The sides of the grid, where no manifest has them, all or none: sums of numbers and integer arguments with
   * + - * / % cdiv(a, b) min(a, b) max(a, b), for example "cdiv(n, BLOCK)". */
  const char *grid[3];
} purr_kernel_desc_t;
#define PURR_KERNEL_DESC_INIT                                                                     \
  {                                                                                               \
    sizeof(purr_kernel_desc_t), 0, NULL, NULL, NULL, 0, NULL, 0, NULL, NULL, { NULL, NULL, NULL } \
  }

/* Opens a kernel and checks every variant against its image. No GPU is needed.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, INCOMPATIBLE_STRUCT, IO, PACKAGE, MISSING_KERNEL,
 * INCOMPATIBLE_BINARY, UNSUPPORTED, OUT_OF_HOST_MEMORY, FORKED. Since 0.1. */
PURR_API purr_status_t purr_kernel_open(purr_context_t *context, const purr_kernel_desc_t *desc,
                                        purr_kernel_t **out_kernel, purr_error_t *err);

/* What an argument is. */
enum {
  PURR_ARGUMENT_UNKNOWN = 0,    /* so many bytes: of a kernel without manifest and signature */
  PURR_ARGUMENT_POINTER = 1,    /* set_pointer or set_tensor */
  PURR_ARGUMENT_INTEGER = 2,    /* set_integer; booleans are 0 and 1 */
  PURR_ARGUMENT_REAL = 3,       /* set_real */
  PURR_ARGUMENT_DESCRIPTOR = 4, /* set_tensor */
  PURR_ARGUMENT_CONSTANT = 5,   /* compiled in; setting it chooses among the variants */
  PURR_ARGUMENT_MAP = 6,        /* set_bytes: a CUtensorMap of the caller's */
};

typedef struct purr_kernel_argument {
  uint32_t struct_size;
  int32_t kind;         /* PURR_ARGUMENT_*, of the first variant that does not have it as a constant */
  const char *name;     /* lives as long as the kernel, and so do the next two */
  const char *type;     /* Triton's word: "*fp32" */
  const char *constant; /* of a CONSTANT: as text, of the first variant; else NULL */
  int32_t dtype;        /* PURR_DTYPE_* of the number, or of what a pointer or descriptor leads to; NONE if unknown */
  int32_t num_bytes;    /* of the parameter; 0 for descriptors and constants */
  int32_t divisible_by; /* the least that any variant promises */
  int32_t varies;       /* 1 = some variant has it as another type or, where this is no CONSTANT, as a constant */
} purr_kernel_argument_t;

/* Number of arguments of the Python function, constants included (0 for NULL).
 * Threads: any. Collective: no. Since 0.1. */
PURR_API int32_t purr_kernel_num_arguments(const purr_kernel_t *kernel);

/* Describes an argument; set out_argument->struct_size first.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, FORKED. Since 0.1. */
PURR_API purr_status_t purr_kernel_get_argument(const purr_kernel_t *kernel, int32_t index,
                                                purr_kernel_argument_t *out_argument, purr_error_t *err);

/* The number of an argument by its name.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT (there is none, with the nearest), FORKED. Since 0.1. */
PURR_API purr_status_t purr_kernel_find_argument(const purr_kernel_t *kernel, const char *name, int32_t *out_index,
                                                 purr_error_t *err);

/* Prints the kernel: arguments, and for each variant what it was compiled for, needs and was promised.
 * @param format                        PURR_FORMAT_*
 * @param buffer, capacity, out_length  as in purr_config_write.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, BUFFER_TOO_SMALL, OUT_OF_HOST_MEMORY, FORKED. Since 0.1.
 */
PURR_API purr_status_t purr_kernel_describe(const purr_kernel_t *kernel, int32_t format, char *buffer,
                                            uint64_t capacity, uint64_t *out_length, purr_error_t *err);

/* Launchers of it keep it alive. With the last of them it leaves the devices: its launches must have ended, and graphs
 * that hold one must be gone.  Threads: any. Collective: no. Since 0.1. */
PURR_API void purr_kernel_destroy(purr_kernel_t *kernel);

/* A kernel on one device, with the arguments of its next launch. They stay set from launch to launch. */
typedef struct purr_launcher purr_launcher_t;

/* Loads every variant of the kernel that the device can run, unless that was done before; launches then load nothing.
 * @param device  CUDA device number; -1 = the one whose context is current on this thread, else the first.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, INCOMPATIBLE_BINARY (compiled for other devices),
 * UNSUPPORTED (it needs more than the device has), IO, PACKAGE, NO_DEVICE, CUDA, DEVICE_LOST, OUT_OF_HOST_MEMORY,
 * FORKED. Since 0.1. */
PURR_API purr_status_t purr_launcher_create(purr_kernel_t *kernel, int32_t device, purr_launcher_t **out_launcher,
                                            purr_error_t *err);

/* Sets an argument to an address that the device can reach.
 * Threads: one thread per launcher. Collective: no. Returns: OK, INVALID_ARGUMENT (no variant takes it: the kind, NULL,
 * the alignment that was promised, or host memory; the argument keeps its value), CUDA, DEVICE_LOST, FORKED. Since 0.1.
 */
PURR_API purr_status_t purr_launcher_set_pointer(purr_launcher_t *launcher, int32_t index, const void *address,
                                                 purr_error_t *err);

/* Sets an integer or boolean argument, or says which constant is wanted. The value must fit the argument's type and be
 * a multiple of what was promised. Threads: one thread per launcher. Collective: no. Returns: OK, INVALID_ARGUMENT,
 * FORKED. Since 0.1. */
PURR_API purr_status_t purr_launcher_set_integer(purr_launcher_t *launcher, int32_t index, int64_t value,
                                                 purr_error_t *err);

/* Sets a floating-point argument, rounded to its type: fp32 to nearest, fp16 to nearest even, bf16 toward zero as
 * Triton itself does. Threads: one thread per launcher. Collective: no. Returns: OK, INVALID_ARGUMENT, FORKED. Since
 * 0.1. */
PURR_API purr_status_t purr_launcher_set_real(purr_launcher_t *launcher, int32_t index, double value,
                                              purr_error_t *err);

/* Sets an argument to bytes, exactly as many as its parameter has; nothing else is checked.
 * @param bytes  host memory, copied.
 * Threads: one thread per launcher. Collective: no. Returns: OK, INVALID_ARGUMENT, FORKED. Since 0.1. */
PURR_API purr_status_t purr_launcher_set_bytes(purr_launcher_t *launcher, int32_t index, const void *bytes,
                                               uint32_t num_bytes, purr_error_t *err);

/* Flags of purr_launcher_set_tensor, for descriptors. */
enum {
  PURR_DESCRIPTOR_NAN = 1,  /* what is read outside of the tensor is NaN, not 0 */
  PURR_DESCRIPTOR_TF32 = 2, /* fp32 elements are rounded to TF32 on the way */
};

/* Sets a pointer argument to a tensor's data, its element type checked, or a tensor descriptor, which the library
 * encodes (the last few of each argument are kept). The tensor struct is not kept, the memory must stay.
 * @param tensor  device memory, 1 to 4 dimensions; for a descriptor rows at multiples of 16 bytes, the last stride 1.
 * Threads: one thread per launcher. Collective: no. Returns: OK, INVALID_ARGUMENT, INCOMPATIBLE_STRUCT, CUDA,
 * DEVICE_LOST, FORKED. Since 0.1. */
PURR_API purr_status_t purr_launcher_set_tensor(purr_launcher_t *launcher, int32_t index, const purr_tensor_t *tensor,
                                                uint32_t flags, purr_error_t *err);

/* Forgets an argument's value.
 * Threads: one thread per launcher. Collective: no. Returns: OK, INVALID_ARGUMENT, FORKED. Since 0.1. */
PURR_API purr_status_t purr_launcher_unset(purr_launcher_t *launcher, int32_t index, purr_error_t *err);

/* Sets the grid in Triton's programs, as in kernel[grid]; clusters multiply it. It goes before the rule of the
 * manifest; three zeros go back to that. Threads: one thread per launcher. Collective: no. Returns: OK,
 * INVALID_ARGUMENT, FORKED. Since 0.1. */
PURR_API purr_status_t purr_launcher_set_grid(purr_launcher_t *launcher, uint32_t x, uint32_t y, uint32_t z,
                                              purr_error_t *err);

/* Gives the kernel its scratch memory, of which purr_launcher_query says how much a launch needs. It must be free for
 * the kernel from launch to end.
 * @param memory, bytes  device memory at a multiple of scratch_align; NULL and 0 = none.
 * Threads: one thread per launcher. Collective: no. Returns: OK, INVALID_ARGUMENT, FORKED. Since 0.1. */
PURR_API purr_status_t purr_launcher_set_scratch(purr_launcher_t *launcher, void *memory, uint64_t bytes,
                                                 purr_error_t *err);

/* What the next launch will be. */
typedef struct purr_launcher_info {
  uint32_t struct_size;
  int32_t device;
  int32_t variant;      /* its number in purr_kernel_describe, from 0 */
  uint32_t grid[3];     /* thread blocks, clusters counted in */
  uint32_t num_threads; /* of a block */
  uint32_t cluster[3];
  uint32_t shared_bytes;  /* dynamic */
  int32_t num_registers;  /* of a thread */
  uint64_t scratch_bytes; /* needed; 0 = none */
  uint32_t scratch_align;
  int32_t is_cooperative;
  int32_t may_overlap; /* programmatic dependent launch */
  int32_t reserved;
} purr_launcher_info_t;

/* Chooses the variant for the arguments as they are set, the most special one first, and says how it will be launched.
 * An argument that is not set stands for a constant that all variants agree on which take what is set (a better
 * architecture's may have its own); any other must be set.
 * @param out_info  set its struct_size first.
 * Threads: one thread per launcher. Collective: no. Returns: OK, INVALID_ARGUMENT, INVALID_STATE (an argument or the
 * grid is not set), FORKED. Since 0.1. */
PURR_API purr_status_t purr_launcher_query(purr_launcher_t *launcher, purr_launcher_info_t *out_info,
                                           purr_error_t *err);

/* Enqueues the kernel. A grid with a 0 in it is legal and launches nothing.
 * @param stream  CUstream of the launcher's device; NULL = the default stream.
 * Threads: one thread per launcher; several launchers of a kernel may launch at once. Collective: no. Returns: OK,
 * INVALID_ARGUMENT, INVALID_STATE, BUFFER_TOO_SMALL (scratch), CUDA, DEVICE_LOST, FORKED. Since 0.1. */
PURR_API purr_status_t purr_launcher_launch(purr_launcher_t *launcher, void *stream, purr_error_t *err);

/* What was enqueued or captured has its arguments; the kernel must stay for it: see purr_kernel_destroy.
 * Threads: any, with no call in flight. Collective: no. Since 0.1. */
PURR_API void purr_launcher_destroy(purr_launcher_t *launcher);

/* -------------------------------------------------------------------------------------------------------- diagnosis */

/* Looks at everything that GPU backends need, and says what works, what does not and what to do about it: library,
 * driver, devices, access between them, packages, the kernels of each device (which are loaded for it). A machine
 * without a GPU is no problem; a driver that is too old or a package that is damaged is one.
 * @param format, buffer, capacity, out_length  as in purr_package_describe.
 * @param out_num_problems                      may be NULL.
 * Threads: any. Collective: no. Returns: OK, INVALID_ARGUMENT, BUFFER_TOO_SMALL, OUT_OF_HOST_MEMORY, FORKED. Since 0.1.
 */
PURR_API purr_status_t purr_context_diagnose(purr_context_t *context, int32_t format, char *buffer, uint64_t capacity,
                                             uint64_t *out_length, int32_t *out_num_problems, purr_error_t *err);

#ifdef __cplusplus
}
#endif

#endif /* PURR_H */
