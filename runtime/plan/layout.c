/* The byte layouts of a plan: the routing table, what peers reach, what a call needs of its own, what is kept. */
#include "kernels/layout.h"
#include "plan/plan.h"
#include "plan/stages.h"
#include "plan/units.h"

#define HEADER_REGION_BYTES 256

/* Appends a region of a*b*c*element_bytes to a block whose size so far is *total. */
static bool add_region(purr__region_t *region, uint64_t *total, const char *name, int64_t a, int64_t b, int64_t c,
                       uint64_t element_bytes) {
  uint64_t bytes;
  if (!purr__multiply((uint64_t)a, (uint64_t)b, &bytes) || !purr__multiply(bytes, (uint64_t)c, &bytes) ||
      !purr__multiply(bytes, element_bytes, &bytes))
    return false;
  *region = (purr__region_t){.name = name, .offset = *total, .bytes = bytes};
  uint64_t end;
  if (!purr__add(*total, bytes, &end) || !purr__add(end, PURR__MEMORY_ALIGNMENT - 1, &end)) return false;
  *total = end / PURR__MEMORY_ALIGNMENT * PURR__MEMORY_ALIGNMENT;
  return true;
}

/* What the lines of a layout have in common. A region that a backend does not use stays empty, without a name. */
#define TABLE(region, name, a, bytes) \
  fits = fits && add_region(&plan->table[PURR__TABLE_##region], &plan->table_bytes, name, a, 1, 1, bytes)
#define SYM(region, name, a, b, bytes) \
  fits = fits && add_region(&plan->sym[PURR__SYM_##region], &plan->sym_bytes, name, a, b, 1, bytes)
#define WS(region, name, a, b, c, bytes) \
  fits = fits && add_region(&plan->ws[PURR__WS_##region], &plan->ws_bytes, name, a, b, c, bytes)
#define SAVED(region, name, a, b, bytes) \
  fits = fits && add_region(&plan->saved[PURR__SAVED_##region], &plan->saved_bytes, name, a, b, 1, bytes)

static bool lay_out_table(purr_plan_t *plan) {
  bool fits = true;
  TABLE(HEADER, "header", HEADER_REGION_BYTES, 1);
  TABLE(EXPERT_COUNT, "rows of each expert", plan->num_local_experts, sizeof(int32_t));
  TABLE(EXPERT_BEGIN, "first row of each expert", plan->num_local_experts + 1, sizeof(int32_t));
  TABLE(ROW_RANK, "source rank of each row", plan->max_rows, sizeof(int32_t));
  TABLE(ROW_SLOT, "source slot of each row", plan->max_rows, sizeof(int32_t));
  if (plan->backend == PURR_BACKEND_HOST) return fits;
  TABLE(STATUS, "how the building went", HEADER_REGION_BYTES, 1);
  TABLE(TILE_BEGIN, "first tile of each expert", plan->num_local_experts + 1, sizeof(int32_t));
  int64_t tiles = plan->max_rows / PURR__SEGMENT_ROWS;
  if (plan->backend == PURR_BACKEND_MEGA) tiles = purr__max(tiles, purr__unit_most_tiles(plan));
  TABLE(TILE_EXPERT, "expert of each tile", tiles, sizeof(int32_t));
  return fits;
}

bool purr__plan_sums_in_down(const purr_plan_t *plan) {
  const purr_layer_desc_t *layer = &plan->layer;
  return plan->backend != PURR_BACKEND_HOST && layer->num_ranks == 1 && layer->top_k == 1 &&
         layer->shared_intermediate_size == 0 && !purr__stages_have(plan->stages, PURR__STAGE_GROUPED_GEMM) &&
         !purr__stages_have(plan->stages, PURR__STAGE_COMBINE);
}

static bool lay_out_symmetric(purr_plan_t *plan) {
  const purr_layer_desc_t *layer = &plan->layer;
  const int64_t tokens = layer->max_tokens, top_k = layer->top_k, hidden = layer->hidden_size;
  const int64_t peers_tokens = layer->num_ranks > 1 ? tokens : 0;
  bool fits = true;
  SYM(HEADER, "header", HEADER_REGION_BYTES, 1, 1);
  SYM(BARRIER, "barrier words", plan->backend != PURR_BACKEND_HOST ? layer->num_ranks : 0, 1, sizeof(uint64_t));
  SYM(IDS, "expert ids", tokens, top_k, sizeof(int32_t));
  SYM(TOPK_WEIGHTS, "router weights", tokens, top_k, sizeof(float));
  SYM(TOKENS, "tokens", peers_tokens, hidden, 2);
  SYM(D_OUTPUT, "output gradients", peers_tokens, hidden, 2);
  SYM(SLOTS, "combine buffer", purr__plan_sums_in_down(plan) ? 0 : tokens * top_k, hidden, 2);
  SYM(D_TOPK_WEIGHTS, "router gradients", tokens, top_k, sizeof(float));
  return fits;
}

static bool lay_out_host(purr_plan_t *plan) {
  const purr_layer_desc_t *layer = &plan->layer;
  const int64_t tokens = layer->max_tokens, hidden = layer->hidden_size, inner = layer->intermediate_size;
  const int64_t shared = layer->shared_intermediate_size, ring = plan->macrobatch_rows;
  const int64_t minibatch = purr__max(purr__max_minibatch(ring, plan->minibatch_rows),
                                      purr__max_minibatch(ring, plan->minibatch_rows_backward));
  const bool mxfp8 = layer->precision == PURR_PRECISION_MXFP8;
  const bool sigmoid_gate = layer->shared_gate == PURR_SHARED_GATE_SIGMOID;
  /* With one macrobatch no expert is ever cut by its boundary. */
  const int64_t carry_experts = plan->max_rows > ring ? 1 : 0;
  bool fits = true;
  WS(SCHEDULE, "schedule", (int64_t)plan->table_bytes, 1, 1, 1);
  WS(RANKS, "rank list", layer->num_ranks, sizeof(void *) + sizeof(int64_t), 1, 1);
  WS(TASKS, "task list", 3 * plan->num_local_experts + 3, PURR__TASK_BYTES, 1, 1);
  const uint64_t ring_begin = plan->ws_bytes;
  WS(RING_X, "ring of tokens", ring, hidden, 1, 2);
  WS(RING_Y, "ring of results", ring, hidden, 1, 2);
  WS(RING_A, "ring of activations", ring, inner, 1, 2);
  WS(RING_GATE, "ring of gates", ring, inner, 1, 2);
  WS(RING_UP, "ring of ups", ring, inner, 1, 2);
  WS(RING_D_OUTPUT, "ring of output gradients", ring, hidden, 1, 2);
  WS(RING_D_GATE, "ring of gate gradients", ring, inner, 1, 2);
  WS(RING_D_UP, "ring of up gradients", ring, inner, 1, 2);
  plan->ring_bytes = plan->ws_bytes - ring_begin;
  WS(MINIBATCH_D_A, "activation gradients of a minibatch", minibatch, inner, 1, sizeof(float));
  WS(QUANT_ROWS, "quantised rows of a minibatch", mxfp8 ? minibatch : 0, purr__max(hidden, 2 * inner), 1, 2);
  WS(QUANT_WEIGHTS, "quantised weights of an expert", mxfp8 ? 2 : 0, inner, hidden, 2);
  WS(WGRAD_CARRY, "weight gradients carried over", carry_experts * 3, inner, hidden, sizeof(float));
  WS(SHARED_GATE, "shared gates", tokens, shared, 1, 2);
  WS(SHARED_UP, "shared ups", tokens, shared, 1, 2);
  WS(SHARED_A, "shared activations", tokens, shared, 1, 2);
  WS(SHARED_OUT, "shared results", shared ? tokens : 0, hidden, 1, 2);
  WS(SHARED_D_A, "shared activation gradients", tokens, shared, 1, sizeof(float));
  WS(SHARED_D_GATE, "shared gate gradients", tokens, shared, 1, 2);
  WS(SHARED_D_UP, "shared up gradients", tokens, shared, 1, 2);
  WS(SHARED_SCORE, "shared gate scores", sigmoid_gate ? tokens : 0, 2, 1, sizeof(float));
  WS(SHARED_D_X, "shared token gradients before the gate's", sigmoid_gate ? tokens : 0, hidden, 1, sizeof(float));
  return fits;
}

/* The staged backend has no ring: the activations of all rows of a step are there at once. The megakernel needs all
 * that the staged kernels need, and its own; it can do with a ring. */
static bool lay_out_gpu(purr_plan_t *plan) {
  const purr_layer_desc_t *layer = &plan->layer;
  const int64_t tokens = layer->max_tokens, shared = layer->shared_intermediate_size;
  const int64_t chunks = layer->num_ranks * (int64_t)purr__schedule_chunks(tokens * layer->top_k, layer->num_ranks);
  const bool is_mega = plan->backend == PURR_BACKEND_MEGA;
  const int64_t ring_rows = is_mega ? purr__ring_rows(plan) : 0, ring = ring_rows > 0 ? ring_rows : plan->max_rows;
  bool fits = true;
  WS(SCHEDULE, "schedule", (int64_t)plan->table_bytes, 1, 1, 1);
  WS(CHUNK_COUNT, "counts of the schedule's parts", chunks, plan->num_local_experts, 1, sizeof(int32_t));
  WS(CHUNK_BAD, "bad ids of the schedule's parts", chunks, 1, 1, sizeof(int32_t));
  WS(RING_A, "activations", ring, layer->intermediate_size, 1, 2);
  if (purr__stages_have(plan->stages, PURR__STAGE_ACTIVATION)) { /* between a product and that kernel */
    WS(RING_GATE, "gates", plan->max_rows, layer->intermediate_size, 1, 2);
    WS(RING_UP, "ups", plan->max_rows, layer->intermediate_size, 1, 2);
  }
  WS(STAGE_SCRATCH, "scratch of the stages' kernels", purr__stages_scratch_bytes(plan->stages), 1, 1, 1);
  WS(SHARED_A, "shared activations", tokens, shared, 1, 2);
  WS(SHARED_OUT, "shared results", shared ? tokens : 0, layer->hidden_size, 1, 2);
  if (!is_mega) return fits;
  int64_t units, sync_words;
  purr__unit_room(plan, &units, &sync_words);
  WS(UNITS, "list of units", units, sizeof(purr__unit_t), 1, 1);
  WS(UNIT_SYNC, "where blocks meet", sync_words, sizeof(int32_t), 1, 1);
  WS(RING_X, "gathered tokens", ring, layer->hidden_size, 1, 2);
  if (ring_rows > 0) plan->ring_bytes = plan->ws[PURR__WS_RING_X].bytes + plan->ws[PURR__WS_RING_A].bytes;
  WS(SHARED_SCORE, "shared gate scores", layer->shared_gate == PURR_SHARED_GATE_SIGMOID ? tokens : 0, 1, 1,
     sizeof(float));
  return fits;
}

static bool lay_out_saved(purr_plan_t *plan) {
  const purr_layer_desc_t *layer = &plan->layer;
  const int64_t tokens = layer->max_tokens, inner = layer->intermediate_size;
  const int64_t shared = layer->shared_intermediate_size;
  bool fits = true;
  if (purr__stages_are_in_forward(plan)) return true; /* nothing can be saved: purr__staged_run_forward */
  SAVED(SCHEDULE, "schedule", (int64_t)plan->table_bytes, 1, 1);
  SAVED(IDS, "expert ids", tokens, layer->top_k, sizeof(int32_t));
  SAVED(GATE, "gates", plan->kept_rows, inner, 2);
  SAVED(UP, "ups", plan->kept_rows, inner, 2);
  SAVED(SHARED_GATE, "shared gates", tokens, shared, 2);
  SAVED(SHARED_UP, "shared ups", tokens, shared, 2);
  return fits;
}

static bool count_weight_bytes(purr_plan_t *plan) {
  const purr_layer_desc_t *layer = &plan->layer;
  uint64_t routed, common;
  if (!purr__multiply((uint64_t)(6 * plan->num_local_experts * layer->intermediate_size), (uint64_t)layer->hidden_size,
                      &routed) ||
      !purr__multiply((uint64_t)(6 * layer->shared_intermediate_size), (uint64_t)layer->hidden_size, &common) ||
      !purr__add(routed, common, &plan->weight_bytes))
    return false;
  if (layer->shared_gate == PURR_SHARED_GATE_SIGMOID) plan->weight_bytes += 2 * (uint64_t)layer->hidden_size;
  return true;
}

bool purr__plan_lay_out(purr_plan_t *plan) {
  plan->table_bytes = plan->sym_bytes = plan->ws_bytes = plan->saved_bytes = 0;
  return lay_out_table(plan) && lay_out_symmetric(plan) &&
         (plan->backend == PURR_BACKEND_HOST ? lay_out_host(plan) : lay_out_gpu(plan)) && lay_out_saved(plan) &&
         count_weight_bytes(plan);
}
