/* The plan in words: what was chosen and why, and where every byte of one rank goes. */
#include "base/number.h"
#include "package/package.h"
#include "plan/plan.h"
#include "plan/stages.h"
#include "plan/units.h"

/* ---- what both forms need ---- */

/* One direction's minibatch; N is the narrower of the outputs of its grouped GEMMs. */
typedef struct pass {
  const char *name, *narrower;
  int64_t columns, min_rows, rows;
} pass_t;

static void get_passes(const purr_plan_t *plan, pass_t passes[2]) {
  const int64_t hidden = plan->layer.hidden_size, inner = plan->layer.intermediate_size;
  passes[0] = (pass_t){"forward", "min(2I, H)", purr__min(2 * inner, hidden), plan->min_minibatch_rows_forward,
                       plan->minibatch_rows};
  passes[1] = (pass_t){"backward", "min(I, H)", purr__min(inner, hidden), plan->min_minibatch_rows_backward,
                       plan->minibatch_rows_backward};
}

/* The backends of GPUs run forward alone. */
static bool has_backward(const purr_plan_t *plan) { return plan->backend == PURR_BACKEND_HOST; }

/* The two-wave formula with its numbers. */
static void add_computation(purr__text_t *text, const purr_plan_t *plan, const pass_t *pass) {
  purr__text_add(text, "2 * %d * %d * %d / %lld", plan->num_sms, plan->tile_m, plan->tile_n, (long long)pass->columns);
}

static int64_t num_macrobatches(const purr_plan_t *plan, int64_t num_rows) {
  return (num_rows + plan->macrobatch_rows - 1) / plan->macrobatch_rows;
}

static uint64_t shared_weight_bytes(const purr_layer_desc_t *layer) {
  const uint64_t gate = layer->shared_gate == PURR_SHARED_GATE_SIGMOID ? 2 * (uint64_t)layer->hidden_size : 0;
  return 6 * (uint64_t)layer->shared_intermediate_size * (uint64_t)layer->hidden_size + gate;
}

/* A block of memory and the regions in it. */
typedef struct block {
  const char *title, *json_name;
  uint64_t bytes;
  const purr__region_t *regions;
  int num_regions;
} block_t;
enum { NUM_BLOCKS = 4 };

static void get_blocks(const purr_plan_t *plan, block_t blocks[NUM_BLOCKS]) {
  blocks[0] =
      (block_t){plan->layer.num_ranks > 1 ? "symmetric memory, which other ranks read and write" : "symmetric memory",
                "symmetric", plan->sym_bytes, plan->sym, PURR__NUM_SYM_REGIONS};
  blocks[1] = (block_t){"workspace, shared by layers", "workspace", plan->ws_bytes, plan->ws, PURR__NUM_WS_REGIONS};
  blocks[2] = (block_t){"saved, one for each step until its backward", "saved", plan->saved_bytes, plan->saved,
                        PURR__NUM_SAVED_REGIONS};
  blocks[3] = (block_t){"schedule, in the workspace and in each saved", "schedule", plan->table_bytes, plan->table,
                        PURR__NUM_TABLE_REGIONS};
}

/* ---- text ---- */

static void add_shape(purr__text_t *text, const purr_plan_t *plan) {
  const purr_layer_desc_t *layer = &plan->layer;
  const bool has_peers = layer->num_ranks > 1;
  purr__text_add(text, "Layer %s in %s on %d rank%s\n\n", plan->name,
                 layer->precision == PURR_PRECISION_MXFP8 ? "mxfp8" : "bf16", layer->num_ranks, has_peers ? "s" : "");
  purr__text_add(text, "  H  hidden_size        %8lld\n", (long long)layer->hidden_size);
  purr__text_add(text, "  I  intermediate_size  %8lld\n", (long long)layer->intermediate_size);
  purr__text_add(text, "  E  num_experts        %8lld", (long long)layer->num_experts);
  if (has_peers) purr__text_add(text, "   %lld on each rank", (long long)plan->num_local_experts);
  purr__text_add(text, "\n  K  top_k              %8lld\n", (long long)layer->top_k);
  if (layer->shared_intermediate_size > 0)
    purr__text_add(text, "  S  shared expert      %8lld   %s\n", (long long)layer->shared_intermediate_size,
                   layer->shared_gate == PURR_SHARED_GATE_SIGMOID ? "with a sigmoid gate" : "without a gate");
  if (layer->swiglu_limit > 0) {
    purr__text_add(text, "  L  swiglu_limit       ");
    purr__text_add_fp32(text, layer->swiglu_limit);
    purr__text_add(text, "\n");
  }
  purr__text_add(text, "  T  max_tokens         %8lld%s\n\n", (long long)layer->max_tokens,
                 has_peers ? "   from each rank" : "");
}

/* The variant of the megakernel. */
static void add_forward(purr__text_t *text, const purr_plan_t *plan) {
  if (plan->backend != PURR_BACKEND_MEGA) return;
  const purr__mega_variant_t *forward = &plan->kernels.forward;
  purr__text_add(text, "  %s: %s\n", forward->kernel->entry->entry, plan->forward_reason);
  if (forward->traced == NULL)
    purr__text_add(text, "  no kernel of the package writes a timeline of it\n");
  else
    purr__text_add(text, "  a timeline is written by %s, which gives the same bits in tiles of up to %d rows\n",
                   forward->traced->entry->entry, forward->traced_tile_rows);
}

static void add_rows(purr__text_t *text, const purr_plan_t *plan) {
  const purr_layer_desc_t *layer = &plan->layer;
  purr__text_add(text,
                 "Rows: at most %lld in one call\n"
                 "  %d * %lld * %lld = %lld slots (R * T * K), each of %lld experts padded to a multiple of %d\n\n",
                 (long long)plan->max_rows, layer->num_ranks, (long long)layer->max_tokens, (long long)layer->top_k,
                 (long long)(layer->num_ranks * layer->max_tokens * layer->top_k), (long long)plan->num_local_experts,
                 PURR__ROW_ALIGNMENT);
}

/* Why a minibatch has other rows than two waves. */
static const char *why_these_rows(const purr_plan_t *plan, const pass_t *pass) {
  const int64_t half = plan->macrobatch_rows / 2 / PURR__ROW_ALIGNMENT * PURR__ROW_ALIGNMENT;
  if (pass->rows == half && pass->rows < purr__max(pass->min_rows, plan->layer.minibatch_rows))
    return ", half of the macrobatch";
  if (plan->layer.minibatch_rows > 0) return ", as the config says";
  return pass->rows == pass->min_rows ? "" : ", the next multiple of 64";
}

static void add_batches(purr__text_t *text, const purr_plan_t *plan) {
  const purr__batches_t batches = purr__plan_batches(plan);
  if (batches.ring_rows == 0) {
    purr__text_add(text, "Minibatch, macrobatch: none, there is room for all rows of a call at once\n");
    return;
  }
  pass_t passes[2];
  get_passes(plan, passes);
  purr__text_add(text, "Minibatch: two full waves of SMs need 2 * SMs * tile_m * tile_n / N rows\n");
  for (int i = 0; i < (has_backward(plan) ? 2 : 1); i++) {
    const pass_t *pass = &passes[i];
    purr__text_add(text, "  %-8s  ", pass->name);
    add_computation(text, plan, pass);
    purr__text_add(text, " = %lld rows with N = %s; taken: ", (long long)pass->min_rows, pass->narrower);
    if (batches.tile_rows > 0)
      purr__text_add(text, "%lld, %lld tiles of %d\n", (long long)batches.minibatch_rows,
                     (long long)batches.minibatch_rows / batches.tile_rows, batches.tile_rows);
    else
      purr__text_add(text, "%lld%s\n", (long long)pass->rows, why_these_rows(plan, pass));
  }
  if (batches.tile_rows > 0) {
    purr__text_add(text, "Macrobatch: the ring holds %lld rows, %lld tiles of %d, each free again when it is done\n",
                   (long long)batches.ring_rows, (long long)batches.ring_rows / batches.tile_rows, batches.tile_rows);
    return;
  }
  const int64_t num_batches = num_macrobatches(plan, plan->max_rows);
  purr__text_add(text, "Macrobatch: the ring holds %lld rows, %lld macrobatch%s at most in one call\n",
                 (long long)plan->macrobatch_rows, (long long)num_batches, num_batches == 1 ? "" : "es");
}

static void add_communication(purr__text_t *text, const purr_plan_t *plan) {
  const purr_layer_desc_t *layer = &plan->layer;
  purr__text_add(text, "Communication: ");
  if (layer->num_ranks == 1)
    purr__text_add(text, "no SM is set aside, nothing travels on one rank\n%s\n",
                   purr__plan_sums_in_down(plan)
                       ? "Combine: one slot a token and nothing to add, so that down writes the "
                         "output itself, without a combine buffer\n"
                       : "");
  else if (plan->backend == PURR_BACKEND_HOST)
    purr__text_add(text, "the threads of each rank move its rows themselves\n\n");
  else if (plan->backend == PURR_BACKEND_STAGED)
    purr__text_add(text, "no SM is set aside, each kernel reaches the other ranks' memory itself\n\n");
  else if (layer->num_comm_sms > 0)
    purr__text_add(text, "%lld SMs pull rows of all ranks, as the config says, in pairs\n\n",
                   (long long)(layer->num_comm_sms + 1) / 2 * 2);
  else
    purr__text_add(text, "%d SMs pull rows of all ranks, none where all ranks are on one device\n\n",
                   PURR__NUM_PULL_SMS);
}

static void add_kept(purr__text_t *text, const purr_plan_t *plan) {
  const int64_t kept = plan->kept_rows, replayed = plan->max_rows - kept;
  const uint64_t bytes = plan->saved[PURR__SAVED_GATE].bytes + plan->saved[PURR__SAVED_UP].bytes;
  purr__text_add(text, "Kept for backward: ");
  if (purr__stages_are_in_forward(plan)) {
    purr__text_add(text, "nothing; of the kernels of Triton's that the config names no backward is known\n\n");
    return;
  }
  purr__text_add(text, "g and u of ");
  if (kept == 0)
    purr__text_add(text, "no row");
  else
    purr__text_add(text, "%s %lld rows, %llu bytes", replayed == 0 ? "all" : "the first", (long long)kept,
                   (unsigned long long)bytes);
  if (!has_backward(plan))
    purr__text_add(text, ", in calls that are given a saved; backend %s runs no backward yet\n\n",
                   purr__backend_name(plan->backend));
  else if (kept == 0)
    purr__text_add(text, "; backward computes all %lld rows' g and u again\n\n", (long long)replayed);
  else if (replayed == 0)
    purr__text_add(text, "; nothing is computed again\n\n");
  else
    purr__text_add(text,
                   ": %lld of %lld macrobatches\n"
                   "  where a call has more rows, backward computes g and u of the others again, %lld rows at most\n\n",
                   (long long)num_macrobatches(plan, kept), (long long)num_macrobatches(plan, plan->max_rows),
                   (long long)replayed);
}

static void add_bytes_line(purr__text_t *text, int indent, const char *name, uint64_t bytes) {
  enum { NAME_COLUMNS = 54 };
  purr__text_add(text, "%*s%-*s %15llu   ", indent, "", NAME_COLUMNS - indent, name, (unsigned long long)bytes);
  purr__text_add_bytes(text, bytes);
  purr__text_add(text, "\n");
}

static void add_memory(purr__text_t *text, const purr_plan_t *plan) {
  const purr_layer_desc_t *layer = &plan->layer;
  const uint64_t shared = shared_weight_bytes(layer);
  block_t blocks[NUM_BLOCKS];
  get_blocks(plan, blocks);
  purr__text_add(text, "Memory of one rank %51s\n", "bytes");
  add_bytes_line(text, 2, "weights", plan->weight_bytes);
  add_bytes_line(text, 4, "routed experts", plan->weight_bytes - shared);
  if (shared > 0) add_bytes_line(text, 4, "shared expert", shared);
  for (int i = 0; i < NUM_BLOCKS; i++) {
    if (blocks[i].bytes == 0) continue; /* of what cannot be saved */
    add_bytes_line(text, 2, blocks[i].title, blocks[i].bytes);
    for (int j = 0; j < blocks[i].num_regions; j++) {
      const purr__region_t *region = &blocks[i].regions[j];
      const bool in_ring =
          plan->ring_bytes > 0 && blocks[i].regions == plan->ws && j >= PURR__WS_RING_X && j <= PURR__WS_RING_D_UP;
      if (in_ring && j == PURR__WS_RING_X) add_bytes_line(text, 4, "ring, its buffers together", plan->ring_bytes);
      if (region->bytes > 0) add_bytes_line(text, in_ring ? 6 : 4, region->name, region->bytes);
    }
  }
  add_bytes_line(text, 2, plan->saved_bytes > 0 ? "in all, with one saved" : "in all",
                 plan->weight_bytes + plan->sym_bytes + plan->ws_bytes + plan->saved_bytes);
  purr__text_add(text, "  Not counted: the caller's own tensors, gradients among them.\n");
}

static void explain(purr__text_t *text, const purr_plan_t *plan) {
  add_shape(text, plan);
  purr__text_add(text, "Backend: %s\n  %s\n", purr__backend_name(plan->backend), plan->backend_reason);
  add_forward(text, plan);
  purr__text_add(text, "\n");
  add_rows(text, plan);
  add_batches(text, plan);
  add_communication(text, plan);
  add_kept(text, plan);
  add_memory(text, plan);
}

/* ---- JSON ---- */

static void add_json_int(purr__text_t *text, const char *name, int64_t value) {
  purr__text_add(text, "  \"%s\": %lld,\n", name, (long long)value);
}

static void add_json_pass(purr__text_t *text, const purr_plan_t *plan, const pass_t *pass, bool is_last) {
  purr__text_add(text, "    \"%s\": {\"columns\": %lld, \"computation\": \"", pass->name, (long long)pass->columns);
  add_computation(text, plan, pass);
  purr__text_add(text, "\", \"min_rows\": %lld, \"rows\": %lld}%s\n", (long long)pass->min_rows, (long long)pass->rows,
                 is_last ? "" : ",");
}

static void add_json_block(purr__text_t *text, const block_t *block, bool is_last) {
  purr__text_add(text, "    \"%s\": [\n", block->json_name);
  const char *separator = "";
  for (int i = 0; i < block->num_regions; i++) {
    const purr__region_t *region = &block->regions[i];
    if (region->name == NULL) continue; /* a part that other backends have */
    purr__text_add(text, "%s      {\"name\": \"%s\", \"offset\": %llu, \"bytes\": %llu}", separator, region->name,
                   (unsigned long long)region->offset, (unsigned long long)region->bytes);
    separator = ",\n";
  }
  purr__text_add(text, "\n    ]%s\n", is_last ? "" : ",");
}

/* Null where it is negative: the backend has no such thing. */
static void add_json_count(purr__text_t *text, const char *name, int64_t count) {
  if (count >= 0)
    add_json_int(text, name, count);
  else
    purr__text_add(text, "  \"%s\": null,\n", name);
}

static void add_json_batches(purr__text_t *text, const purr_plan_t *plan) {
  const purr__batches_t batches = purr__plan_batches(plan);
  const bool is_mega = plan->backend == PURR_BACKEND_MEGA, is_cut = batches.ring_rows > 0;
  const int num_passes = has_backward(plan) ? 2 : 1;
  pass_t passes[2];
  get_passes(plan, passes);
  passes[0].rows = batches.minibatch_rows;
  if (is_cut) {
    purr__text_add(text, "  \"minibatch\": {\n    \"num_sms\": %d,\n    \"tile_m\": %d,\n    \"tile_n\": %d,\n",
                   plan->num_sms, plan->tile_m, plan->tile_n);
    for (int i = 0; i < num_passes; i++) add_json_pass(text, plan, &passes[i], i == num_passes - 1);
    purr__text_add(text, "  },\n");
  } else {
    purr__text_add(text, "  \"minibatch\": null,\n");
  }
  add_json_count(text, "macrobatch_rows", is_cut ? batches.ring_rows : -1);
  add_json_count(text, "num_macrobatches", is_cut && !is_mega ? num_macrobatches(plan, plan->max_rows) : -1);
  int64_t num_comm_sms = 0;
  if (is_mega && plan->layer.num_ranks > 1)
    num_comm_sms = plan->layer.num_comm_sms > 0 ? (plan->layer.num_comm_sms + 1) / 2 * 2 : PURR__NUM_PULL_SMS;
  add_json_count(text, "num_comm_sms", plan->backend == PURR_BACKEND_HOST ? -1 : num_comm_sms);
}

static void explain_json(purr__text_t *text, const purr_plan_t *plan) {
  block_t blocks[NUM_BLOCKS];
  get_blocks(plan, blocks);
  purr__text_add(text, "{\n  \"layer\": ");
  purr__layer_add_json(text, &plan->texts, &plan->layer, 2);
  purr__text_add(text, ",\n  \"backend\": \"%s\",\n  \"backend_reason\": ", purr__backend_name(plan->backend));
  purr__text_add_json_string(text, plan->backend_reason);
  if (plan->backend == PURR_BACKEND_MEGA) {
    purr__text_add(text, ",\n  \"forward_kernel\": \"%s\",\n  \"forward_kernel_reason\": ",
                   plan->kernels.forward.kernel->entry->entry);
    purr__text_add_json_string(text, plan->forward_reason);
  }
  purr__text_add(text, ",\n  \"hash\": \"%016llx\",\n", (unsigned long long)plan->hash);
  add_json_int(text, "num_local_experts", plan->num_local_experts);
  add_json_int(text, "max_rows", plan->max_rows);
  add_json_batches(text, plan);
  add_json_int(text, "kept_rows", plan->kept_rows);
  add_json_count(text, "replayed_rows", has_backward(plan) ? plan->max_rows - plan->kept_rows : -1);
  add_json_int(text, "weight_bytes", (int64_t)plan->weight_bytes);
  add_json_int(text, "shared_weight_bytes", (int64_t)shared_weight_bytes(&plan->layer));
  add_json_int(text, "symmetric_bytes", (int64_t)plan->sym_bytes);
  add_json_int(text, "combine_bytes", (int64_t)plan->sym[PURR__SYM_SLOTS].bytes);
  add_json_int(text, "workspace_bytes", (int64_t)plan->ws_bytes);
  add_json_int(text, "ring_bytes", (int64_t)plan->ring_bytes);
  add_json_int(text, "saved_bytes", (int64_t)plan->saved_bytes);
  add_json_int(text, "schedule_bytes", (int64_t)plan->table_bytes);
  purr__text_add(text, "  \"regions\": {\n");
  for (int i = 0; i < NUM_BLOCKS; i++) add_json_block(text, &blocks[i], i == NUM_BLOCKS - 1);
  purr__text_add(text, "  }\n}\n");
}

/* ---- public ---- */

purr_status_t purr_plan_describe(const purr_plan_t *plan, int32_t format, char *buffer, uint64_t capacity,
                                 uint64_t *out_length, purr_error_t *err) {
  purr_status_t status = purr__check(plan, PURR__PLAN, err);
  if (status != PURR_STATUS_OK) return status;
  if (format != PURR_FORMAT_TEXT && format != PURR_FORMAT_JSON)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "format is %d; allowed are %d (text) and %d (JSON)", format,
                      PURR_FORMAT_TEXT, PURR_FORMAT_JSON);
  purr__text_t text = {.context = plan->object.context};
  if (format == PURR_FORMAT_TEXT)
    explain(&text, plan);
  else
    explain_json(&text, plan);
  return purr__text_deliver(&text, buffer, capacity, out_length, err);
}
