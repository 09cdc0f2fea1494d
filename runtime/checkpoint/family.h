/* What a config.json says about the MoE layers of a model, for the families that Purr knows, and how each family calls
 * its tensors. */
#ifndef PURR_FAMILY_H
#define PURR_FAMILY_H

#include "checkpoint/checkpoint.h"

#define PURR__MAX_LAYERS 1024

/* The model, defaults filled in and checked as far as it can be without the tensors. */
typedef struct purr__model {
  const struct purr__family *family;
  char type[32];         /* model_type */
  char quantization[32]; /* quantization_config.quant_method, "" without one */
  int64_t num_layers;    /* decoder layers, MoE and dense */
  int64_t hidden_size, intermediate_size, num_experts, top_k;
  int64_t shared_intermediate_size; /* 0 = no shared expert */
  bool has_shared_gate;
  float swiglu_limit;
  purr_router_desc_t router;
  bool has_router_bias;
  int64_t block_rows, block_cols; /* quantization_config.weight_block_size, 0 where it is not given */

  /* Which layers have experts; see purr__model_is_moe. */
  int64_t first_k_dense, layer_period, sparse_step;
  uint64_t dense_layers[PURR__MAX_LAYERS / 64]; /* mlp_only_layers */
} purr__model_t;

purr_status_t purr__model_read(const purr_checkpoint_t *checkpoint, purr__model_t *out_model, purr_error_t *err);
bool purr__model_is_moe(const purr__model_t *model, int64_t layer);
/* Turns -1 into the first MoE layer; INVALID_ARGUMENT for a layer that is not there or is dense. */
purr_status_t purr__model_resolve_layer(const purr_checkpoint_t *checkpoint, const purr__model_t *model, int64_t *layer,
                                        purr_error_t *err);
/* The layer for purr_config_create, checked by its rules; UNSUPPORTED where Purr cannot run it. */
purr_status_t purr__model_get_layer(const purr_checkpoint_t *checkpoint, const purr__model_t *model,
                                    purr_layer_desc_t *out_layer, purr_error_t *err);

/* ---- names ---- */

typedef enum purr__role {
  PURR__ROLE_GATE_UP, /* packed: all experts, gate rows first */
  PURR__ROLE_GATE,
  PURR__ROLE_UP,
  PURR__ROLE_DOWN,
  PURR__ROLE_SHARED_GATE,
  PURR__ROLE_SHARED_UP,
  PURR__ROLE_SHARED_DOWN,
  PURR__ROLE_SHARED_EXPERT_GATE,
  PURR__ROLE_ROUTER,
  PURR__ROLE_ROUTER_BIAS,
  PURR__NUM_ROLES,
} purr__role_t;

/* How one layer's tensors are called in this checkpoint. */
typedef struct purr__naming {
  char module[64]; /* "model.layers.3.mlp." */
  bool is_packed;  /* one tensor [E, ...] for all experts, as newer files have it */
} purr__naming_t;

void purr__naming_find(const purr_checkpoint_t *checkpoint, const purr__model_t *model, int64_t layer,
                       purr__naming_t *out_naming);
/* Whether a layer of this model and naming has tensors of the role, and whether one an expert. */
bool purr__naming_has(const purr__model_t *model, const purr__naming_t *naming, purr__role_t role);
static inline bool purr__role_is_routed(purr__role_t role) { return role <= PURR__ROLE_DOWN; }

/* A tensor that a layer must have. */
typedef struct purr__wanted {
  char name[128];
  int32_t num_dims;
  int64_t shape[3];
} purr__wanted_t;
/* `expert` counts for routed roles that are not packed. */
void purr__naming_want(const purr__model_t *model, const purr__naming_t *naming, purr__role_t role, int64_t expert,
                       purr__wanted_t *out_wanted);

#endif
