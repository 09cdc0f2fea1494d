#include "plan/units.h"

/* Pairs of blocks, 128 weight rows each, that cover `rows` weight rows. */
static int64_t num_pairs(int64_t rows) {
  return (rows + 2 * PURR__UNIT_WEIGHT_ROWS - 1) / (2 * PURR__UNIT_WEIGHT_ROWS);
}

static int64_t num_tiles(int64_t rows, int64_t tile_rows) { return (rows + tile_rows - 1) / tile_rows; }

static int32_t largest_tile(const purr__mega_variant_t *variant) {
  return (int32_t)purr__max(variant->tile_rows, variant->traced != NULL ? variant->traced_tile_rows : 0);
}

static int32_t smallest_tile(const purr__mega_variant_t *variant) {
  return variant->traced != NULL ? (int32_t)purr__min(variant->tile_rows, variant->traced_tile_rows)
                                 : variant->tile_rows;
}

int64_t purr__ring_rows(const purr_plan_t *plan) {
  const bool is_wanted = plan->layer.num_ranks > 1 || plan->layer.macrobatch_rows > 0;
  if (!is_wanted || plan->macrobatch_rows >= plan->max_rows) return 0;
  return purr__max(plan->macrobatch_rows, 2 * largest_tile(&plan->kernels.forward));
}

purr__unit_order_t purr__unit_order_of(const purr_plan_t *plan, int64_t num_tokens, int32_t tile_rows) {
  const purr_layer_desc_t *layer = &plan->layer;
  const bool has_shared = layer->shared_intermediate_size > 0;
  const int64_t ring_tiles = purr__ring_rows(plan) / tile_rows;
  return (purr__unit_order_t){
      .tile_rows = tile_rows,
      .gate_up_pairs = (int32_t)num_pairs(2 * layer->intermediate_size),
      .shared_gate_up_pairs = (int32_t)num_pairs(2 * layer->shared_intermediate_size),
      .down_pairs = (int32_t)num_pairs(layer->hidden_size),
      .num_shared_tiles = has_shared ? (int32_t)num_tiles(num_tokens, tile_rows) : 0,
      .num_tokens = (int32_t)num_tokens,
      .minibatch_tiles = (int32_t)purr__min(purr__max(1, plan->minibatch_rows / tile_rows), ring_tiles / 2),
      .ring_tiles = (int32_t)ring_tiles,
  };
}

int64_t purr__unit_most_tiles(const purr_plan_t *plan) {
  /* Of each expert the last tile may be short. */
  const int64_t slots = plan->layer.num_ranks * plan->layer.max_tokens * plan->layer.top_k;
  return slots / smallest_tile(&plan->kernels.forward) + purr__min(slots, plan->num_local_experts);
}

void purr__unit_room(const purr_plan_t *plan, int64_t *out_num_units, int64_t *out_num_sync_words) {
  const purr__unit_order_t order =
      purr__unit_order_of(plan, plan->layer.max_tokens, smallest_tile(&plan->kernels.forward));
  const int64_t tiles = purr__unit_most_tiles(plan);
  *out_num_units = tiles * (order.gate_up_pairs + order.down_pairs) +
                   (int64_t)order.num_shared_tiles * (order.shared_gate_up_pairs + order.down_pairs);
  *out_num_sync_words = (int64_t)((sizeof(purr__unit_sync_t) +
                                   (uint64_t)(tiles + order.num_shared_tiles) * sizeof(purr__unit_tile_sync_t)) /
                                  sizeof(int32_t));
}
