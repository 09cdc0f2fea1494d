/* From a layer to every number that does not depend on data: minibatch, macrobatch, kept rows, byte layouts. */
#include <stdio.h>

#include "plan/plan.h"

#include "driver/driver.h"
#include "kernels/layout.h"
#include "package/package.h"
#include "plan/stages.h"
#include "plan/units.h"

#define DEFAULT_NUM_SMS 132 /* an H200 */
#define TILE_M 128
#define TILE_N 256
#define RING_BUDGET_BYTES (512ll << 20)

/* ---- batches ---- */

/* Rows for two full waves: every SM gets two tiles of a grouped GEMM with N columns. */
static int64_t two_waves(int64_t num_sms, int64_t columns) {
  return (2 * num_sms * TILE_M * TILE_N + columns - 1) / columns;
}

static void choose_batches(purr_plan_t *plan) {
  const purr_layer_desc_t *layer = &plan->layer;
  const int64_t hidden = layer->hidden_size, inner = layer->intermediate_size;
  plan->min_minibatch_rows_forward = two_waves(plan->num_sms, purr__min(2 * inner, hidden));
  plan->min_minibatch_rows_backward = two_waves(plan->num_sms, purr__min(inner, hidden));
  int64_t forward = layer->minibatch_rows, backward = layer->minibatch_rows;
  if (layer->minibatch_rows == 0) {
    forward = purr__round_up(plan->min_minibatch_rows_forward, PURR__ROW_ALIGNMENT);
    backward = purr__round_up(plan->min_minibatch_rows_backward, PURR__ROW_ALIGNMENT);
  }

  int64_t macrobatch = layer->macrobatch_rows;
  if (macrobatch == 0) {
    const int64_t row_bytes = 2 * (3 * hidden + 5 * inner);
    macrobatch = RING_BUDGET_BYTES / row_bytes / PURR__ROW_ALIGNMENT * PURR__ROW_ALIGNMENT;
    macrobatch = purr__max(macrobatch, 2 * purr__max(forward, backward));
  }
  macrobatch = purr__min(macrobatch, purr__max(plan->max_rows, 2 * PURR__ROW_ALIGNMENT));
  /* Dispatch of one minibatch hides behind the other: a ring holds two at least, where there are that many rows. */
  const int64_t largest = macrobatch / 2 / PURR__ROW_ALIGNMENT * PURR__ROW_ALIGNMENT;
  plan->macrobatch_rows = macrobatch;
  plan->minibatch_rows = purr__min(forward, largest);
  plan->minibatch_rows_backward = purr__min(backward, largest);
}

purr__batches_t purr__plan_batches(const purr_plan_t *plan) {
  switch (plan->backend) {
    case PURR_BACKEND_HOST:
      return (purr__batches_t){plan->minibatch_rows, plan->macrobatch_rows, 0};
    case PURR_BACKEND_MEGA: {
      const int32_t tile_rows = plan->kernels.forward.tile_rows;
      const purr__unit_order_t order = purr__unit_order_of(plan, plan->layer.max_tokens, tile_rows);
      if (order.ring_tiles == 0) return (purr__batches_t){0};
      return (purr__batches_t){(int64_t)order.minibatch_tiles * tile_rows, (int64_t)order.ring_tiles * tile_rows,
                               tile_rows};
    }
    default:
      return (purr__batches_t){0};
  }
}

static void choose_kept_rows(purr_plan_t *plan) {
  const int64_t budget = plan->layer.activation_memory;
  const int64_t row_bytes = 4 * plan->layer.intermediate_size;
  if (purr__stages_are_in_forward(plan))
    plan->kept_rows = 0; /* nothing can be saved: purr__staged_run_forward */
  else if (budget == 0 || budget / row_bytes >= plan->max_rows)
    plan->kept_rows = plan->max_rows;
  else if (budget < 0)
    plan->kept_rows = 0;
  else
    plan->kept_rows = budget / row_bytes / plan->macrobatch_rows * plan->macrobatch_rows;
}

/* FNV-1a over what all ranks must agree on. */
static uint64_t hash_of(const purr_plan_t *plan) {
  const purr_layer_desc_t *layer = &plan->layer;
  uint32_t limit_bits;
  memcpy(&limit_bits, &layer->swiglu_limit, sizeof limit_bits);
  const int64_t values[] = {PURR_VERSION,
                            layer->precision,
                            layer->hidden_size,
                            layer->intermediate_size,
                            layer->num_experts,
                            layer->top_k,
                            layer->max_tokens,
                            layer->shared_intermediate_size,
                            layer->shared_gate,
                            plan->backend,
                            (int64_t)limit_bits,
                            layer->num_ranks,
                            plan->minibatch_rows,
                            plan->minibatch_rows_backward,
                            plan->macrobatch_rows,
                            plan->kept_rows,
                            layer->mxfp8_scale_rule,
                            layer->mxfp8_activation_granularity,
                            layer->mxfp8_weight_granularity};
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < sizeof values; i++) hash = (hash ^ ((const unsigned char *)values)[i]) * 0x100000001b3u;
  for (int i = 0; i < PURR__NUM_STAGES; i++)
    for (const char *c = purr__stage_kernel(plan, (purr__stage_kind_t)i); *c != '\0'; c++)
      hash = (hash ^ (unsigned char)*c) * 0x100000001b3u + (uint64_t)i;
  return hash;
}

/* ---- public ---- */

static void plan_free(void *object) {
  const purr_plan_t *plan = object;
  purr__stages_free(plan->object.context, plan->stages);
}

static purr_status_t apply_overrides(purr_layer_desc_t *layer, const purr_plan_desc_t *desc,
                                     const purr__places_t *places, purr_error_t *err) {
  if (desc->num_ranks < 0 || desc->max_tokens < 0 || desc->num_sms < 0 || desc->num_sms > 65536)
    return purr__fail(
        err, PURR_STATUS_INVALID_ARGUMENT,
        "purr_plan_desc_t has num_ranks %d, max_tokens %lld, num_sms %d; none is negative, num_sms at most "
        "65536",
        desc->num_ranks, (long long)desc->max_tokens, desc->num_sms);
  if (desc->num_ranks > 0) layer->num_ranks = desc->num_ranks;
  if (desc->max_tokens > 0) layer->max_tokens = desc->max_tokens;
  if (desc->backend != PURR_BACKEND_AUTO) layer->backend = desc->backend;
  if (desc->precision != 0) layer->precision = desc->precision - 1;
  return purr__layer_check_at(layer, places, err);
}

purr_status_t purr_plan_create(purr_context_t *context, const purr_config_t *config, const purr_plan_desc_t *desc,
                               purr_plan_t **out_plan, purr_error_t *err) {
  if (out_plan == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_plan is NULL");
  *out_plan = NULL;
  purr_status_t status = purr__check(context, PURR__CONTEXT, err);
  if (status == PURR_STATUS_OK) status = purr__check(config, PURR__CONFIG, err);
  if (status != PURR_STATUS_OK) return status;
  purr_plan_desc_t own = PURR_PLAN_DESC_INIT;
  if (desc != NULL) {
    status = purr__read_struct(&own, sizeof own, desc, "purr_plan_desc_t", err);
    if (status != PURR_STATUS_OK) return status;
  }
  purr_layer_desc_t layer = config->layer;
  status = apply_overrides(&layer, &own, &config->places, err);
  if (status != PURR_STATUS_OK) return status;

  void *object;
  status = purr__object_create(context, PURR__PLAN, sizeof(purr_plan_t), plan_free, &object, err);
  if (status != PURR_STATUS_OK) return status;
  purr_plan_t *plan = object;
  plan->layer = layer;
  plan->texts = config->texts;
  plan->name = plan->texts.name;
  plan->tile_m = TILE_M;
  plan->tile_n = TILE_N;
  plan->num_local_experts = layer.num_experts / layer.num_ranks;
  const int64_t num_slots = layer.num_ranks * layer.max_tokens * layer.top_k;
  const int64_t num_pads = (PURR__ROW_ALIGNMENT - 1) * purr__min(plan->num_local_experts, num_slots);
  plan->max_rows = purr__round_up(num_slots + num_pads, PURR__ROW_ALIGNMENT);
  /* The check of the layer allows rows up to INT32_MAX, and the table's row numbers are 32-bit. */
  plan->max_rows = purr__min(plan->max_rows, INT32_MAX / PURR__ROW_ALIGNMENT * PURR__ROW_ALIGNMENT);
  status = purr__plan_choose_backend(plan, own.device - 1, err);
  if (status == PURR_STATUS_OK) {
    plan->num_sms = own.num_sms ? own.num_sms : plan->device != NULL ? plan->device->num_sms : DEFAULT_NUM_SMS;
    choose_batches(plan);
    choose_kept_rows(plan);
    if (!purr__plan_lay_out(plan))
      status = purr__fail(err, PURR_STATUS_CONFIG, "layer '%s' needs more than 2^63 bytes", plan->name);
  }
  if (status != PURR_STATUS_OK) {
    purr__object_release(plan);
    return status;
  }
  plan->hash = hash_of(plan);
  const purr__batches_t batches = purr__plan_batches(plan);
  purr__log(context, PURR_LOG_INFO,
            "plan: layer '%s', backend %s (%s), minibatch %lld rows, macrobatch %lld rows, %lld of %lld rows kept",
            plan->name, purr__backend_name(plan->backend), plan->backend_reason, (long long)batches.minibatch_rows,
            (long long)batches.ring_rows, (long long)plan->kept_rows, (long long)plan->max_rows);
  if (plan->backend == PURR_BACKEND_MEGA)
    purr__log(context, PURR_LOG_INFO, "plan: layer '%s', kernel %s: %s", plan->name,
              plan->kernels.forward.kernel->entry->entry, plan->forward_reason);
  *out_plan = plan;
  return PURR_STATUS_OK;
}

purr_status_t purr_plan_query(const purr_plan_t *plan, purr_plan_info_t *out_info, purr_error_t *err) {
  purr_status_t status = purr__check(plan, PURR__PLAN, err);
  if (status != PURR_STATUS_OK) return status;
  const purr__batches_t batches = purr__plan_batches(plan);
  const purr_plan_info_t own = {.struct_size = sizeof own,
                                .backend = plan->backend,
                                .precision = plan->layer.precision,
                                .num_ranks = plan->layer.num_ranks,
                                .num_local_experts = plan->num_local_experts,
                                .max_tokens = plan->layer.max_tokens,
                                .max_rows = plan->max_rows,
                                .minibatch_rows = batches.minibatch_rows,
                                .macrobatch_rows = batches.ring_rows,
                                .min_minibatch_rows_forward = plan->min_minibatch_rows_forward,
                                .min_minibatch_rows_backward = plan->min_minibatch_rows_backward,
                                .kept_rows = plan->kept_rows,
                                .weight_bytes = plan->weight_bytes,
                                .workspace_bytes = plan->ws_bytes,
                                .ring_bytes = plan->ring_bytes,
                                .symmetric_bytes = plan->sym_bytes,
                                .combine_bytes = plan->sym[PURR__SYM_SLOTS].bytes,
                                .saved_bytes = plan->saved_bytes,
                                .schedule_bytes = plan->table_bytes,
                                .hash = plan->hash,
                                .supports_backward = plan->backend == PURR_BACKEND_HOST,
                                .tile_rows = plan->backend == PURR_BACKEND_HOST   ? 1
                                             : plan->backend == PURR_BACKEND_MEGA ? 8
                                                                                  : PURR__TILE_ROWS};
  return purr__write_struct(out_info, &own, sizeof own, "out_info", err);
}

void purr_plan_destroy(purr_plan_t *plan) { purr__object_release(plan); }
