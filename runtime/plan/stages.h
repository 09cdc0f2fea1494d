/* Kernels of Triton's that stand in for a stage. What a kernel of each stage is given, by the names of its arguments,
 * is written in kernels/triton/README.md; kernels take of it what they need. */
#ifndef PURR_PLAN_STAGES_H
#define PURR_PLAN_STAGES_H

#include "base/base.h"

struct purr_plan;
struct purr__forward_call;
struct purr__device;

/* PURR_STAGE_VALUE(name, kind): everything that a stage can be given; P a pointer, I an integer, R a real number. */
#define PURR__STAGE_VALUES(V) \
  V(status, P)                \
  V(turn, P)                  \
  V(turn_owner, I)            \
  V(rows, P)                  \
  V(gate, P)                  \
  V(up, P)                    \
  V(out, P)                   \
  V(columns, I)               \
  V(limit, R)                 \
  V(a, P)                     \
  V(a_stride, I)              \
  V(a_divisor, I)             \
  V(slot, P)                  \
  V(b, P)                     \
  V(b_expert_stride, I)       \
  V(b_stride, I)              \
  V(c, P)                     \
  V(c_stride, I)              \
  V(c_scatter, I)             \
  V(expert_begin, P)          \
  V(expert_count, P)          \
  V(tile_begin, P)            \
  V(tile_expert, P)           \
  V(num_experts, I)           \
  V(n, I)                     \
  V(k, I)                     \
  V(ids, P)                   \
  V(ids_stride, I)            \
  V(ids_step, I)              \
  V(weights, P)               \
  V(weights_stride, I)        \
  V(weights_step, I)          \
  V(slots, P)                 \
  V(slots_stride, I)          \
  V(out_stride, I)            \
  V(num_tokens, I)            \
  V(top_k, I)                 \
  V(hidden, I)                \
  V(source, P)                \
  V(source_row_stride, I)     \
  V(source_slice_stride, I)   \
  V(elements, P)              \
  V(elements_row_stride, I)   \
  V(elements_slice_stride, I) \
  V(scales, P)                \
  V(scales_slice_stride, I)   \
  V(scales_outer_stride, I)   \
  V(scales_block_stride, I)   \
  V(num_slices, I)            \
  V(num_rows, I)              \
  V(num_columns, I)           \
  V(num_scale_rows, I)        \
  V(num_scale_blocks, I)      \
  V(scale_layout, I)          \
  V(scale_rule, I)
enum {
#define PURR__STAGE_VALUE(name, kind) PURR__STAGE_##name,
  PURR__STAGE_VALUES(PURR__STAGE_VALUE)
#undef PURR__STAGE_VALUE
      PURR__NUM_STAGE_VALUES
};

/* A value for one launch; which member counts follows from its kind. */
typedef union purr__stage_value {
  const void *pointer;
  int64_t integer;
  double real;
} purr__stage_value_t;

typedef struct purr__stages purr__stages_t;

/* The kernels that the layer's config names, found in the context's packages and loaded; NULL where it names none.
 * Returns: OK, MISSING_KERNEL, INCOMPATIBLE_BINARY, UNSUPPORTED (the layer, or a kernel that wants something else),
 * IO, PACKAGE, CUDA, OUT_OF_HOST_MEMORY. */
purr_status_t purr__stages_find(const struct purr_plan *plan, struct purr__device *device, purr__stages_t **out_stages,
                                purr_error_t *err);
void purr__stages_free(purr_context_t *context, purr__stages_t *stages);

typedef enum purr__stage_kind {
  PURR__STAGE_ACTIVATION,
  PURR__STAGE_GROUPED_GEMM,
  PURR__STAGE_COMBINE,
  PURR__STAGE_QUANTISE, /* of no call in a workspace: purr_mxfp8_quantize_on */
  PURR__NUM_STAGES
} purr__stage_kind_t;

/* The name of the kernel that a config gives for a stage, "" for none. */
const char *purr__stage_kernel(const struct purr_plan *plan, purr__stage_kind_t kind);
/* Whether the config names any. */
bool purr__stages_are_named(const struct purr_plan *plan);
/* Whether it names one that a forward runs. */
bool purr__stages_are_in_forward(const struct purr_plan *plan);
/* NULL has none. */
bool purr__stages_have(const purr__stages_t *stages, purr__stage_kind_t kind);

/* What the kernels of a forward want of scratch memory, which one after the other uses; NULL wants none. */
int64_t purr__stages_scratch_bytes(const purr__stages_t *stages);

/* Enqueues a stage's kernel. Entered; any thread.
 * @param scratch  so much memory of the workspace; NULL outside of a forward. */
purr_status_t purr__stage_launch(const purr__stages_t *stages, purr__stage_kind_t kind,
                                 const purr__stage_value_t values[PURR__NUM_STAGE_VALUES], void *scratch, void *stream,
                                 purr_error_t *err);

#endif
