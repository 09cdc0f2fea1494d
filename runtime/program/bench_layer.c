/* The layer that purr bench times: its ranks, with everything in the memory of their backend. Random weights of a few
 * MiB are repeated until all are filled, so that a layer of any size is there in seconds. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "random.h"

static const char *const next_memory =
    "take a smaller config or fewer --tokens; configs/bench holds slices of large models";

int bench_layer_open(bench_layer_t *layer, purr_context_t *context, const char *path, const bench_options_t *options) {
  purr_error_t err = PURR_ERROR_INIT;
  char next[160];
  *layer = (bench_layer_t){.path = path, .context = context, .num_ranks = options->num_ranks};
  layer->shape.struct_size = sizeof layer->shape;
  layer->info.struct_size = sizeof layer->info;
  snprintf(next, sizeof next, "check the config with: purr config %.120s", path);
  if (purr_config_load(context, path, &layer->config, &err) != PURR_STATUS_OK ||
      purr_config_get_layer(layer->config, &layer->shape, &err) != PURR_STATUS_OK)
    return fail_call("bench", next, &err);
  layer->num_tokens = options->num_tokens > 0 ? options->num_tokens : layer->shape.max_tokens;
  layer->ranks = calloc((size_t)layer->num_ranks, sizeof *layer->ranks);
  if (layer->ranks == NULL) return fail("bench", "take fewer --ranks", "memory ran out");
  purr_plan_desc_t desc = PURR_PLAN_DESC_INIT;
  desc.num_ranks = (int32_t)layer->num_ranks;
  desc.backend = options->backend;
  desc.precision = options->precision + 1;
  desc.max_tokens = (layer->num_tokens + layer->num_ranks - 1) / layer->num_ranks;
  for (int64_t r = 0; r < layer->num_ranks; r++) {
    desc.device = device_of_rank(&options->devices, r) + 1;
    if (purr_plan_create(context, layer->config, &desc, &layer->ranks[r].plan, &err) != PURR_STATUS_OK ||
        purr_plan_query(layer->ranks[r].plan, &layer->info, &err) != PURR_STATUS_OK)
      return fail_call("bench", next_of(err.status, layer->num_ranks), &err);
    if (options->devices.count > 0 && layer->info.backend == PURR_BACKEND_HOST)
      return devices_fail_host("bench", "--devices", context, layer->config, desc);
  }
  return EXIT_GOOD;
}

/* Tokens are split as evenly as they can be, in order. */
static int64_t first_token_of(const bench_layer_t *layer, int64_t num_tokens, int64_t rank) {
  return num_tokens / layer->num_ranks * rank + num_tokens % layer->num_ranks * rank / layer->num_ranks;
}

/* ------------------------------------------------------------------------------------------------------------ memory
 */

static purr_status_t place(bench_rank_t *rank, uint64_t bytes, void **out_memory, purr_error_t *err) {
  purr_status_t status = purr_memory_allocate(rank->plan, bytes, out_memory, err);
  if (status == PURR_STATUS_OK) rank->placed[rank->num_placed++] = (placed_t){*out_memory, bytes};
  return status;
}

/* Normal numbers of the given deviation. The period is no multiple of a row: neighbouring experts and rows differ. */
static purr_status_t fill(const bench_rank_t *rank, uint16_t *to, int64_t count, uint64_t seed, int stream,
                          double deviation, purr_error_t *err) {
  enum { PERIOD = (1 << 22) + 1000 };
  int64_t filled = count < PERIOD ? count : PERIOD;
  uint16_t *block = malloc((size_t)filled * sizeof *block);
  if (block == NULL) {
    err->status = PURR_STATUS_OUT_OF_HOST_MEMORY;
    snprintf(err->message, sizeof err->message, "there is no memory for %lld random numbers", (long long)filled);
    return err->status;
  }
  fill_normal(block, filled, seed, stream, (float)deviation);
  purr_status_t status = purr_memory_copy(rank->plan, to, block, (uint64_t)filled * sizeof *block, err);
  free(block);
  while (status == PURR_STATUS_OK && filled < count) {
    const int64_t more = filled < count - filled ? filled : count - filled;
    status = purr_memory_copy(rank->plan, to + filled, to, (uint64_t)more * sizeof *to, err);
    filled += more;
  }
  return status;
}

/* A BF16 tensor of generated numbers; sizes after `size0` may be left out as 0. */
static purr_status_t make(bench_rank_t *rank, purr_tensor_t *out_tensor, int64_t size0, int64_t size1, int64_t size2,
                          uint64_t seed, int stream, double deviation, purr_error_t *err) {
  *out_tensor = tensor_of(PURR_DTYPE_BF16, NULL, size0, size1, size2);
  const int64_t count = tensor_count(out_tensor);
  purr_status_t status = place(rank, (uint64_t)count * 2, &out_tensor->data, err);
  return status == PURR_STATUS_OK ? fill(rank, out_tensor->data, count, seed, stream, deviation, err) : status;
}

static purr_status_t make_weights(const bench_layer_t *layer, bench_rank_t *rank, uint64_t seed, purr_error_t *err) {
  const purr_layer_desc_t *shape = &layer->shape;
  const int64_t E = shape->num_experts / layer->num_ranks, H = shape->hidden_size, I = shape->intermediate_size,
                S = shape->shared_intermediate_size;
  const double of_hidden = 1.0 / sqrt((double)H), of_inner = 1.0 / sqrt((double)I);
  purr_tensor_t gate_up, down, shared[NUM_SHARED];
  purr_weights_desc_t desc = PURR_WEIGHTS_DESC_INIT;
  desc.gate_up = &gate_up;
  desc.down = &down;
  purr_status_t status = make(rank, &gate_up, E, 2 * I, H, seed, RANDOM_GATE_UP, of_hidden, err);
  if (status == PURR_STATUS_OK) status = make(rank, &down, E, H, I, seed, RANDOM_DOWN, of_inner, err);
  if (status == PURR_STATUS_OK && S > 0) {
    desc.shared_gate = &shared[SHARED_GATE];
    desc.shared_up = &shared[SHARED_UP];
    desc.shared_down = &shared[SHARED_DOWN];
    status = make(rank, &shared[SHARED_GATE], S, H, 0, seed, RANDOM_SHARED_GATE, of_hidden, err);
    if (status == PURR_STATUS_OK)
      status = make(rank, &shared[SHARED_UP], S, H, 0, seed, RANDOM_SHARED_UP, of_hidden, err);
    if (status == PURR_STATUS_OK)
      status = make(rank, &shared[SHARED_DOWN], H, S, 0, seed, RANDOM_SHARED_DOWN, 1.0 / sqrt((double)S), err);
  }
  if (status == PURR_STATUS_OK && shape->shared_gate == PURR_SHARED_GATE_SIGMOID) {
    desc.shared_expert_gate = &shared[SHARED_EXPERT_GATE];
    status = make(rank, &shared[SHARED_EXPERT_GATE], 1, H, 0, seed, RANDOM_SHARED_EXPERT_GATE, of_hidden, err);
  }
  return status == PURR_STATUS_OK ? purr_weights_create(rank->plan, &desc, &rank->weights, err) : status;
}

/* Each rank has room for all tokens: which are its own depends on how many a call brings. */
static purr_status_t make_tokens(const bench_layer_t *layer, bench_rank_t *rank, uint64_t seed, purr_error_t *err) {
  const int64_t T = layer->num_tokens, H = layer->shape.hidden_size, K = layer->shape.top_k;
  rank->topk_ids = tensor_of(PURR_DTYPE_INT64, NULL, T, K, 0);
  rank->topk_weights = tensor_of(PURR_DTYPE_FP32, NULL, T, K, 0);
  rank->output = tensor_of(PURR_DTYPE_BF16, NULL, T, H, 0);
  purr_status_t status = make(rank, &rank->x, T, H, 0, seed, RANDOM_X, 1.0, err);
  if (status == PURR_STATUS_OK) status = place(rank, (uint64_t)(T * H) * sizeof(uint16_t), &rank->output.data, err);
  if (status == PURR_STATUS_OK) status = place(rank, (uint64_t)(T * K) * sizeof(int64_t), &rank->topk_ids.data, err);
  if (status == PURR_STATUS_OK) status = place(rank, (uint64_t)(T * K) * sizeof(float), &rank->topk_weights.data, err);
  return status;
}

/* ------------------------------------------------------------------------------------------------ all ranks at once
 */

typedef struct step {
  bench_layer_t *layer;
  purr_status_t (*run)(const struct step *step, int64_t rank_idx, bench_rank_t *rank);
  uint64_t seed;      /* of fill_rank */
  bool saved;         /* also of forward */
  int64_t num_tokens; /* of forward, over all ranks */
  bool wants_results;
} step_t;

static void run_rank(void *arg, int64_t rank_idx) {
  const step_t *step = arg;
  bench_rank_t *rank = &step->layer->ranks[rank_idx];
  rank->err = (purr_error_t)PURR_ERROR_INIT;
  rank->status = step->run(step, rank_idx, rank);
  if (rank->status == PURR_STATUS_OK) return;
  purr_group_destroy(rank->group); /* the other ranks need not wait for this one */
  rank->group = NULL;
}

/* The rank that failed by itself says more than those that waited for it. */
static int report_ranks(const bench_layer_t *layer) {
  const bench_rank_t *failed = NULL;
  for (int64_t r = layer->num_ranks - 1; r >= 0; r--) {
    const bench_rank_t *rank = &layer->ranks[r];
    if (rank->status == PURR_STATUS_OK) continue;
    if (failed == NULL || rank->status != PURR_STATUS_PEER_FAILED || failed->status == PURR_STATUS_PEER_FAILED)
      failed = rank;
  }
  return failed == NULL ? EXIT_GOOD : fail_call("bench", next_of(failed->status, layer->num_ranks), &failed->err);
}

static int run_ranks(step_t *step, const char *label) {
  if (step->layer->num_ranks == 1)
    run_rank(step, 0);
  else if (!run_together(step->layer->num_ranks, run_rank, step, label, NULL))
    return fail("bench", "take fewer --ranks", "%lld threads, one for each rank, could not be started",
                (long long)step->layer->num_ranks);
  return report_ranks(step->layer);
}

static purr_status_t fill_rank(const step_t *step, int64_t rank_idx, bench_rank_t *rank) {
  (void)rank_idx;
  purr_status_t status = make_weights(step->layer, rank, step->seed, &rank->err);
  if (status == PURR_STATUS_OK) status = make_tokens(step->layer, rank, step->seed, &rank->err);
  if (status == PURR_STATUS_OK)
    status = purr_workspace_create(rank->plan, rank->group, NULL, &rank->workspace, &rank->err);
  if (status == PURR_STATUS_OK && step->saved)
    status = purr_saved_create(rank->plan, NULL, 0, &rank->saved, &rank->err);
  if (status == PURR_STATUS_OK) status = purr_result_create(step->layer->context, &rank->result, &rank->err);
  return status;
}

static int make_group(bench_layer_t *layer) {
  if (layer->num_ranks == 1) return EXIT_GOOD;
  purr_error_t err = PURR_ERROR_INIT;
  purr_group_desc_t desc = PURR_GROUP_DESC_INIT;
  desc.num_ranks = (int32_t)layer->num_ranks;
  desc.timeout_ms = layer->shape.timeout_ms;
  purr_group_t **groups = calloc((size_t)layer->num_ranks, sizeof *groups);
  if (groups == NULL) return fail("bench", "take fewer --ranks", "memory ran out");
  purr_status_t status = purr_group_create_local(layer->context, &desc, groups, &err);
  for (int64_t r = 0; r < layer->num_ranks; r++) layer->ranks[r].group = groups[r];
  free(groups);
  return status == PURR_STATUS_OK ? EXIT_GOOD : fail_call("bench", "take fewer --ranks", &err);
}

int bench_layer_fill(bench_layer_t *layer, const bench_options_t *options) {
  const purr_plan_info_t *info = &layer->info;
  const uint64_t num_slots = (uint64_t)(layer->num_tokens * layer->shape.top_k);
  const uint64_t needed =
      (uint64_t)layer->num_ranks *
      (info->weight_bytes + info->workspace_bytes + info->symmetric_bytes + (options->saved ? info->saved_bytes : 0) +
       4 * (uint64_t)(layer->num_tokens * layer->shape.hidden_size));
  const uint64_t available = available_memory();
  if (info->backend == PURR_BACKEND_HOST && available != 0 && needed > available)
    return fail("bench", next_memory, "%s needs %s on the host, %s are available", layer->path, BYTES_TEXT(needed),
                BYTES_TEXT(available));
  layer->ids = malloc(num_slots * sizeof *layer->ids);
  layer->slot_weights = malloc(num_slots * sizeof *layer->slot_weights);
  if (layer->ids == NULL || layer->slot_weights == NULL) return fail("bench", next_memory, "memory ran out");
  int code = make_group(layer);
  step_t step = {.layer = layer, .run = fill_rank, .seed = (uint64_t)options->seed, .saved = options->saved};
  return code == EXIT_GOOD ? run_ranks(&step, "preparing") : code;
}

/* -------------------------------------------------------------------------------------------------------------- work
 */

int bench_layer_route(bench_layer_t *layer, double exponent, uint64_t seed) {
  layer_t drawn = {.command = "bench",
                   .shape = layer->shape,
                   .num_tokens = layer->num_tokens,
                   .topk_ids = layer->ids,
                   .topk_weights = layer->slot_weights};
  int code = route_generate(&drawn, exponent, seed);
  if (code != EXIT_GOOD) return code;
  const uint64_t num_slots = (uint64_t)(layer->num_tokens * layer->shape.top_k);
  purr_error_t err = PURR_ERROR_INIT;
  purr_status_t status = PURR_STATUS_OK;
  for (int64_t r = 0; r < layer->num_ranks && status == PURR_STATUS_OK; r++) {
    const bench_rank_t *rank = &layer->ranks[r];
    status = purr_memory_copy(rank->plan, rank->topk_ids.data, layer->ids, num_slots * sizeof *layer->ids, &err);
    if (status == PURR_STATUS_OK)
      status = purr_memory_copy(rank->plan, rank->topk_weights.data, layer->slot_weights,
                                num_slots * sizeof *layer->slot_weights, &err);
  }
  return status == PURR_STATUS_OK ? EXIT_GOOD : fail_call("bench", NULL, &err);
}

static void *stream_of(const bench_rank_t *rank) { return rank->gpu != NULL ? gpu_stream(rank->gpu) : NULL; }

/* Rows `first` and on of a tensor of rows. */
static purr_tensor_t rows_of(const purr_tensor_t *tensor, int64_t element_bytes, int64_t first, int64_t count) {
  purr_tensor_t rows = *tensor;
  rows.data = (char *)rows.data + first * rows.shape[1] * element_bytes;
  rows.shape[0] = count;
  return rows;
}

static purr_status_t forward_rank(const step_t *step, int64_t rank_idx, bench_rank_t *rank) {
  const int64_t first = first_token_of(step->layer, step->num_tokens, rank_idx);
  const int64_t count = first_token_of(step->layer, step->num_tokens, rank_idx + 1) - first;
  const purr_tensor_t x = rows_of(&rank->x, 2, first, count), topk_ids = rows_of(&rank->topk_ids, 8, first, count),
                      topk_weights = rows_of(&rank->topk_weights, 4, first, count),
                      output = rows_of(&rank->output, 2, first, count);
  purr_forward_args_t args = PURR_FORWARD_ARGS_INIT;
  args.weights = rank->weights;
  args.x = &x;
  args.topk_ids = &topk_ids;
  args.topk_weights = &topk_weights;
  args.output = &output;
  args.saved = step->saved ? rank->saved : NULL;
  args.result = step->wants_results ? rank->result : NULL;
  args.stream = stream_of(rank);
  return purr_forward(rank->plan, rank->workspace, &args, &rank->err);
}

/* A GPU call only enqueues, so one thread makes those of all ranks; on the host each waits for the others. */
int bench_layer_forward(const bench_layer_t *layer, int64_t num_tokens, bool saved) {
  step_t step = {.layer = (bench_layer_t *)(uintptr_t)layer, .run = forward_rank, .saved = saved};
  step.num_tokens = num_tokens;
  if (layer->info.backend == PURR_BACKEND_HOST) return run_ranks(&step, "forward");
  for (int64_t r = 0; r < layer->num_ranks; r++) {
    const int code = bench_layer_forward_rank(layer, r, num_tokens, saved);
    if (code != EXIT_GOOD) return code;
  }
  return EXIT_GOOD;
}

int bench_layer_forward_rank(const bench_layer_t *layer, int64_t rank_idx, int64_t num_tokens, bool saved) {
  step_t step = {.layer = (bench_layer_t *)(uintptr_t)layer, .run = forward_rank, .saved = saved};
  step.num_tokens = num_tokens;
  run_rank(&step, rank_idx);
  const bench_rank_t *rank = &layer->ranks[rank_idx];
  return rank->status == PURR_STATUS_OK ? EXIT_GOOD
                                        : fail_call("bench", next_of(rank->status, layer->num_ranks), &rank->err);
}

static purr_status_t try_rank(const step_t *step, int64_t rank_idx, bench_rank_t *rank) {
  purr_result_info_t info = {.struct_size = sizeof info};
  purr_status_t status = forward_rank(step, rank_idx, rank);
  if (status == PURR_STATUS_OK) status = purr_stream_synchronize(rank->plan, stream_of(rank), &rank->err);
  if (status == PURR_STATUS_OK) status = purr_result_query(rank->result, &info, &rank->err);
  return status == PURR_STATUS_OK ? info.status : status;
}

int bench_layer_try(const bench_layer_t *layer, int64_t num_tokens, bool saved, int64_t *out_num_launches) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_counters_t before = {.struct_size = sizeof before}, after = before;
  step_t step = {.layer = (bench_layer_t *)(uintptr_t)layer, .run = try_rank, .saved = saved, .wants_results = true};
  step.num_tokens = num_tokens;
  if (purr_context_query_counters(layer->context, &before, &err) != PURR_STATUS_OK)
    return fail_call("bench", NULL, &err);
  int code = run_ranks(&step, "forward");
  if (code == EXIT_GOOD && purr_context_query_counters(layer->context, &after, &err) != PURR_STATUS_OK)
    code = fail_call("bench", NULL, &err);
  *out_num_launches = (int64_t)(after.num_launches - before.num_launches) / layer->num_ranks;
  return code;
}

void bench_layer_close(bench_layer_t *layer) {
  for (int64_t r = 0; layer->ranks != NULL && r < layer->num_ranks; r++) {
    bench_rank_t *rank = &layer->ranks[r];
    purr_result_destroy(rank->result);
    purr_saved_destroy(rank->saved);
    purr_workspace_destroy(rank->workspace);
    purr_weights_destroy(rank->weights);
    while (rank->num_placed > 0) {
      const placed_t *placed = &rank->placed[--rank->num_placed];
      purr_memory_release(rank->plan, placed->memory, placed->bytes);
    }
    purr_group_destroy(rank->group);
    purr_plan_destroy(rank->plan);
  }
  free(layer->ranks);
  free(layer->ids);
  free(layer->slot_weights);
  purr_config_destroy(layer->config);
}
