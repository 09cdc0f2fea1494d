/* One MoE layer of a checkpoint as weights: BF16 tensors stay where they are mapped, FP8 tensors and those at odd
 * addresses become copies in one block of the layer's own. */
#include <stdio.h>

#include "base/bf16.h"
#include "checkpoint/matrix.h"
#include "config/config.h"

struct purr_checkpoint_layer {
  purr__object_t object;
  const purr_checkpoint_t *checkpoint;      /* retained */
  purr_tensor_t tensors[PURR__ROLE_ROUTER]; /* by role; num_dims 0 where the layer has none */
  purr_tensor_t router_weight, router_bias;
  purr_router_desc_t router;
  purr_error_t router_error; /* why there is no router: found while loading, told when it is asked for */
  void **pointers;           /* [3][E_l], per-expert addresses of gate, up and down; of gate_up and down when packed */
  char *block;               /* the copies */
  float *router_block;
};

/* Where a matrix comes from, and the address to fill in. */
typedef struct piece {
  purr__matrix_t matrix;
  const char *data, *scales;
  void **out_address;
  uint16_t *copy; /* NULL = used in place */
} piece_t;

static void layer_free(void *object) {
  purr_checkpoint_layer_t *layer = object;
  purr__release(layer->object.context, layer->pointers);
  purr__release(layer->object.context, layer->block);
  purr__release(layer->object.context, layer->router_block);
  purr__object_release(layer->checkpoint);
}

/* ---- weights ---- */

typedef struct loading {
  const purr_checkpoint_t *checkpoint;
  const purr__model_t *model;
  purr__naming_t naming;
  const char *needed_by;
  int64_t first_expert, num_experts; /* of the rank */
  purr_checkpoint_layer_t *layer;
  piece_t *pieces;
  int64_t num_pieces;
} loading_t;

static purr_status_t add_piece(loading_t *loading, purr__role_t role, int64_t expert, void **out_address,
                               purr_error_t *err) {
  piece_t *piece = &loading->pieces[loading->num_pieces];
  purr_status_t status = purr__matrix_find(loading->checkpoint, loading->model, &loading->naming, role, expert,
                                           loading->needed_by, &piece->matrix, err);
  if (status == PURR_STATUS_OK)
    status = purr__checkpoint_data(loading->checkpoint, piece->matrix.entry, &piece->data, err);
  if (status == PURR_STATUS_OK && piece->matrix.scales != NULL)
    status = purr__checkpoint_data(loading->checkpoint, piece->matrix.scales, &piece->scales, err);
  piece->out_address = out_address;
  loading->num_pieces++;
  return status;
}

/* Finds every matrix of one role, and shapes the tensor that hands it out. */
static purr_status_t add_role(loading_t *loading, purr__role_t role, purr_error_t *err) {
  if (!purr__naming_has(loading->model, &loading->naming, role)) return PURR_STATUS_OK;
  purr_checkpoint_layer_t *layer = loading->layer;
  purr_tensor_t *tensor = &layer->tensors[role];
  const piece_t *first = &loading->pieces[loading->num_pieces];
  int64_t num_experts = loading->num_experts;
  *tensor = (purr_tensor_t){.struct_size = sizeof *tensor, .dtype = PURR_DTYPE_BF16, .num_dims = 2};
  if (!purr__role_is_routed(role)) {
    purr_status_t status = add_piece(loading, role, 0, &tensor->data, err);
    if (status != PURR_STATUS_OK) return status;
    tensor->shape[0] = first->matrix.num_rows;
    tensor->shape[1] = first->matrix.num_cols;
    return PURR_STATUS_OK;
  }
  void **pointers = layer->pointers + (role == PURR__ROLE_GATE_UP ? 0 : role - PURR__ROLE_GATE) * num_experts;
  for (int64_t expert = 0; expert < num_experts; expert++) {
    purr_status_t status = add_piece(loading, role, loading->first_expert + expert, &pointers[expert], err);
    if (status != PURR_STATUS_OK) return status;
  }
  tensor->num_dims = 3;
  tensor->pointers = pointers;
  tensor->shape[0] = num_experts;
  tensor->shape[1] = first->matrix.num_rows;
  tensor->shape[2] = first->matrix.num_cols;
  return PURR_STATUS_OK;
}

static bool usable_in_place(const piece_t *piece) {
  return piece->matrix.scales == NULL &&
         (uintptr_t)(piece->data + piece->matrix.byte_offset) % PURR__DATA_ALIGNMENT == 0;
}

static void convert_piece(void *arg, int64_t task_idx) {
  const piece_t *piece = (const piece_t *)arg + task_idx;
  if (piece->copy != NULL) purr__matrix_convert(&piece->matrix, piece->data, piece->scales, piece->copy);
}

/* With every matrix found: makes the copies and fills in the addresses. */
static purr_status_t place_pieces(loading_t *loading, purr_error_t *err) {
  enum { COPY_ALIGNMENT = 64 };
  purr_context_t *context = loading->checkpoint->object.context;
  int64_t copy_bytes = 0;
  for (int64_t i = 0; i < loading->num_pieces; i++) {
    const purr__matrix_t *matrix = &loading->pieces[i].matrix;
    if (!usable_in_place(&loading->pieces[i]))
      copy_bytes += purr__round_up(matrix->num_rows * matrix->num_cols * 2, COPY_ALIGNMENT);
  }
  if (copy_bytes > 0) {
    loading->layer->block = purr__allocate(context, (uint64_t)copy_bytes);
    if (loading->layer->block == NULL) return purr__fail_memory(err, loading->needed_by, (uint64_t)copy_bytes);
  }
  char *copy = loading->layer->block;
  for (int64_t i = 0; i < loading->num_pieces; i++) {
    piece_t *piece = &loading->pieces[i];
    if (usable_in_place(piece)) {
      *piece->out_address = (void *)(uintptr_t)(piece->data + piece->matrix.byte_offset);
      continue;
    }
    piece->copy = (uint16_t *)(void *)copy;
    *piece->out_address = copy;
    copy += purr__round_up(piece->matrix.num_rows * piece->matrix.num_cols * 2, COPY_ALIGNMENT);
  }
  if (copy_bytes > 0) purr__parallel_for(context, loading->num_pieces, convert_piece, loading->pieces);
  return PURR_STATUS_OK;
}

static purr_status_t load_weights(loading_t *loading, purr_error_t *err) {
  purr_context_t *context = loading->checkpoint->object.context;
  uint64_t pointer_bytes = (uint64_t)loading->num_experts * 3 * sizeof(void *);
  loading->layer->pointers = purr__allocate_zeroed(context, pointer_bytes);
  if (loading->layer->pointers == NULL) return purr__fail_memory(err, "the experts' addresses", pointer_bytes);
  uint64_t piece_bytes = ((uint64_t)loading->num_experts * 3 + 4) * sizeof(piece_t);
  loading->pieces = purr__allocate_zeroed(context, piece_bytes);
  if (loading->pieces == NULL) return purr__fail_memory(err, "the list of matrices", piece_bytes);
  purr_status_t status = PURR_STATUS_OK;
  for (int role = 0; role < PURR__ROLE_ROUTER && status == PURR_STATUS_OK; role++)
    status = add_role(loading, (purr__role_t)role, err);
  if (status == PURR_STATUS_OK) status = place_pieces(loading, err);
  purr__release(context, loading->pieces);
  return status;
}

/* ---- router ---- */

/* Reads a tensor of the router as FP32, exactly. */
static purr_status_t load_router_tensor(const loading_t *loading, purr__role_t role, float *out, purr_tensor_t *tensor,
                                        purr_error_t *err) {
  purr__wanted_t wanted;
  purr__entry_t *entry;
  const char *data;
  purr__naming_want(loading->model, &loading->naming, role, 0, &wanted);
  purr_status_t status = purr__tensor_require(loading->checkpoint, &wanted, loading->needed_by, &entry, err);
  if (status != PURR_STATUS_OK) return status;
  if (entry->dtype != PURR_DTYPE_BF16 && entry->dtype != PURR_DTYPE_FP32)
    return purr__fail(err, PURR_STATUS_CHECKPOINT, "%s: tensor '%s' has a type other than BF16 and F32",
                      purr__checkpoint_file(loading->checkpoint, entry), purr__shown(entry->name).text);
  status = purr__checkpoint_data(loading->checkpoint, entry, &data, err);
  if (status != PURR_STATUS_OK) return status;
  *tensor = (purr_tensor_t){.struct_size = sizeof *tensor,
                            .dtype = PURR_DTYPE_FP32,
                            .num_dims = wanted.num_dims,
                            .data = out,
                            .shape = {wanted.shape[0], wanted.shape[1]}};
  int64_t num = wanted.shape[0] * (wanted.num_dims > 1 ? wanted.shape[1] : 1);
  if (entry->dtype == PURR_DTYPE_FP32) {
    memcpy(out, data, (size_t)num * sizeof *out);
    return PURR_STATUS_OK;
  }
  for (int64_t i = 0; i < num; i++) {
    purr__bf16_t value;
    memcpy(&value, data + i * (int64_t)sizeof value, sizeof value);
    out[i] = purr__fp32_from_bf16(value);
  }
  return PURR_STATUS_OK;
}

static purr_status_t load_router(loading_t *loading, purr_error_t *err) {
  const purr__model_t *model = loading->model;
  purr_checkpoint_layer_t *layer = loading->layer;
  int64_t num_weights = purr__round_up(model->num_experts * model->hidden_size, 16);
  uint64_t bytes = (uint64_t)(num_weights + model->num_experts) * sizeof(float);
  layer->router = model->router;
  layer->router_block = purr__allocate(loading->checkpoint->object.context, bytes);
  if (layer->router_block == NULL) return purr__fail_memory(err, "the router", bytes);
  purr_error_t *own = &layer->router_error;
  purr_status_t status =
      load_router_tensor(loading, PURR__ROLE_ROUTER, layer->router_block, &layer->router_weight, own);
  if (status == PURR_STATUS_OK && model->has_router_bias)
    load_router_tensor(loading, PURR__ROLE_ROUTER_BIAS, layer->router_block + num_weights, &layer->router_bias, own);
  return PURR_STATUS_OK;
}

/* ---- the public functions ---- */

purr_status_t purr_checkpoint_create_config(const purr_checkpoint_t *checkpoint, int64_t layer,
                                            purr_config_t **out_config, purr_error_t *err) {
  if (out_config == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_config is NULL");
  *out_config = NULL;
  purr__model_t model;
  purr_layer_desc_t desc;
  purr_config_t *config;
  purr_status_t status = purr__check(checkpoint, PURR__CHECKPOINT, err);
  if (status == PURR_STATUS_OK) status = purr__model_read(checkpoint, &model, err);
  if (status == PURR_STATUS_OK) status = purr__model_resolve_layer(checkpoint, &model, &layer, err);
  if (status == PURR_STATUS_OK) status = purr__model_get_layer(checkpoint, &model, &desc, err);
  if (status == PURR_STATUS_OK) status = purr_config_create(checkpoint->object.context, &desc, &config, err);
  if (status != PURR_STATUS_OK) return status;
  snprintf(config->texts.name, sizeof config->texts.name, "%s layer %lld", model.type, (long long)layer);
  *out_config = config;
  return PURR_STATUS_OK;
}

static purr_status_t load_layer(const purr_checkpoint_t *checkpoint, const purr__model_t *model, int64_t layer_idx,
                                int32_t rank, int32_t num_ranks, purr_checkpoint_layer_t **out_layer,
                                purr_error_t *err) {
  void *object;
  purr_status_t status = purr__object_create(checkpoint->object.context, PURR__CHECKPOINT_LAYER,
                                             sizeof(purr_checkpoint_layer_t), layer_free, &object, err);
  if (status != PURR_STATUS_OK) return status;
  purr_checkpoint_layer_t *layer = object;
  layer->checkpoint = checkpoint;
  purr__object_retain(checkpoint);
  layer->router_error = (purr_error_t)PURR_ERROR_INIT;
  char needed_by[32];
  snprintf(needed_by, sizeof needed_by, "layer %lld", (long long)layer_idx);
  int64_t num_experts = model->num_experts / num_ranks;
  loading_t loading = {.checkpoint = checkpoint,
                       .model = model,
                       .needed_by = needed_by,
                       .first_expert = num_experts * rank,
                       .num_experts = num_experts,
                       .layer = layer};
  purr__naming_find(checkpoint, model, layer_idx, &loading.naming);
  status = load_weights(&loading, err);
  if (status == PURR_STATUS_OK) status = load_router(&loading, err);
  if (status != PURR_STATUS_OK)
    purr__object_release(layer);
  else
    *out_layer = layer;
  return status;
}

purr_status_t purr_checkpoint_load_layer(const purr_checkpoint_t *checkpoint, int64_t layer, int32_t rank,
                                         int32_t num_ranks, purr_checkpoint_layer_t **out_layer, purr_error_t *err) {
  if (out_layer == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_layer is NULL");
  *out_layer = NULL;
  purr__model_t model;
  purr_layer_desc_t desc;
  purr_status_t status = purr__check(checkpoint, PURR__CHECKPOINT, err);
  if (status != PURR_STATUS_OK) return status;
  if (num_ranks < 1 || rank < 0 || rank >= num_ranks)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "rank is %d and num_ranks %d; num_ranks must be at least 1 and rank from 0 to num_ranks - 1",
                      rank, num_ranks);
  status = purr__model_read(checkpoint, &model, err);
  if (status == PURR_STATUS_OK) status = purr__model_resolve_layer(checkpoint, &model, &layer, err);
  if (status == PURR_STATUS_OK) status = purr__model_get_layer(checkpoint, &model, &desc, err);
  if (status != PURR_STATUS_OK) return status;
  if (model.num_experts % num_ranks != 0)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "the checkpoint's %lld experts are not divisible by num_ranks %d", (long long)model.num_experts,
                      num_ranks);
  return load_layer(checkpoint, &model, layer, rank, num_ranks, out_layer, err);
}

purr_status_t purr_checkpoint_layer_get_weights(const purr_checkpoint_layer_t *layer, purr_weights_desc_t *out_weights,
                                                purr_error_t *err) {
  purr_status_t status = purr__check(layer, PURR__CHECKPOINT_LAYER, err);
  if (status != PURR_STATUS_OK) return status;
  const purr_tensor_t *tensors[PURR__ROLE_ROUTER];
  for (int role = 0; role < PURR__ROLE_ROUTER; role++)
    tensors[role] = layer->tensors[role].num_dims > 0 ? &layer->tensors[role] : NULL;
  purr_weights_desc_t own = {.struct_size = sizeof own,
                             .gate_up = tensors[PURR__ROLE_GATE_UP],
                             .gate = tensors[PURR__ROLE_GATE],
                             .up = tensors[PURR__ROLE_UP],
                             .down = tensors[PURR__ROLE_DOWN],
                             .shared_gate = tensors[PURR__ROLE_SHARED_GATE],
                             .shared_up = tensors[PURR__ROLE_SHARED_UP],
                             .shared_down = tensors[PURR__ROLE_SHARED_DOWN],
                             .shared_expert_gate = tensors[PURR__ROLE_SHARED_EXPERT_GATE]};
  return purr__write_struct(out_weights, &own, sizeof own, "out_weights", err);
}

purr_status_t purr_checkpoint_layer_get_router(const purr_checkpoint_layer_t *layer, purr_router_desc_t *out_router,
                                               purr_tensor_t *out_weight, purr_tensor_t *out_bias, purr_error_t *err) {
  purr_status_t status = purr__check(layer, PURR__CHECKPOINT_LAYER, err);
  if (status != PURR_STATUS_OK) return status;
  if (out_router == NULL || out_weight == NULL || out_bias == NULL)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s is NULL",
                      out_router == NULL   ? "out_router"
                      : out_weight == NULL ? "out_weight"
                                           : "out_bias");
  if (layer->router_error.status != PURR_STATUS_OK)
    return purr__fail(err, layer->router_error.status, "%s", layer->router_error.message);
  status = purr__write_struct(out_router, &layer->router, sizeof layer->router, "out_router", err);
  if (status == PURR_STATUS_OK)
    status = purr__write_struct(out_weight, &layer->router_weight, sizeof layer->router_weight, "out_weight", err);
  if (status == PURR_STATUS_OK)
    status = purr__write_struct(out_bias, &layer->router_bias, sizeof layer->router_bias, "out_bias", err);
  return status;
}

void purr_checkpoint_layer_destroy(purr_checkpoint_layer_t *layer) { purr__object_release(layer); }
