/* The layer that purr bench times: one rank, with everything in the backend's memory. Random weights of a few MiB are
 * repeated until all are filled, so that a layer of any size is there in seconds. */
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
  *layer = (bench_layer_t){.path = path, .context = context};
  layer->shape.struct_size = sizeof layer->shape;
  layer->info.struct_size = sizeof layer->info;
  snprintf(next, sizeof next, "check the config with: purr config %.120s", path);
  if (purr_config_load(context, path, &layer->config, &err) != PURR_STATUS_OK ||
      purr_config_get_layer(layer->config, &layer->shape, &err) != PURR_STATUS_OK)
    return fail_call("bench", next, &err);
  layer->num_tokens = options->num_tokens > 0 ? options->num_tokens : layer->shape.max_tokens;
  purr_plan_desc_t desc = PURR_PLAN_DESC_INIT;
  desc.num_ranks = 1;
  desc.backend = options->backend;
  desc.precision = options->precision + 1;
  desc.device = (int32_t)options->device + 1;
  desc.max_tokens = layer->num_tokens;
  if (purr_plan_create(context, layer->config, &desc, &layer->plan, &err) != PURR_STATUS_OK ||
      purr_plan_query(layer->plan, &layer->info, &err) != PURR_STATUS_OK)
    return fail_call("bench", "change --backend, --device, --precision or the config; purr doctor says what works",
                     &err);
  return EXIT_GOOD;
}

/* ------------------------------------------------------------------------------------------------------------ memory
 */

static purr_status_t place(bench_layer_t *layer, uint64_t bytes, void **out_memory, purr_error_t *err) {
  purr_status_t status = purr_memory_allocate(layer->plan, bytes, out_memory, err);
  if (status == PURR_STATUS_OK) layer->placed[layer->num_placed++] = (placed_t){*out_memory, bytes};
  return status;
}

/* Normal numbers of the given deviation. The period is no multiple of a row: neighbouring experts and rows differ. */
static purr_status_t fill(const bench_layer_t *layer, uint16_t *to, int64_t count, uint64_t seed, int stream,
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
  purr_status_t status = purr_memory_copy(layer->plan, to, block, (uint64_t)filled * sizeof *block, err);
  free(block);
  while (status == PURR_STATUS_OK && filled < count) {
    const int64_t more = filled < count - filled ? filled : count - filled;
    status = purr_memory_copy(layer->plan, to + filled, to, (uint64_t)more * sizeof *to, err);
    filled += more;
  }
  return status;
}

/* A BF16 tensor of generated numbers; sizes after `size0` may be left out as 0. */
static purr_status_t make(bench_layer_t *layer, purr_tensor_t *out_tensor, int64_t size0, int64_t size1, int64_t size2,
                          uint64_t seed, int stream, double deviation, purr_error_t *err) {
  *out_tensor = tensor_of(PURR_DTYPE_BF16, NULL, size0, size1, size2);
  const int64_t count = tensor_count(out_tensor);
  purr_status_t status = place(layer, (uint64_t)count * 2, &out_tensor->data, err);
  return status == PURR_STATUS_OK ? fill(layer, out_tensor->data, count, seed, stream, deviation, err) : status;
}

static purr_status_t make_weights(bench_layer_t *layer, uint64_t seed, purr_error_t *err) {
  const purr_layer_desc_t *shape = &layer->shape;
  const int64_t E = shape->num_experts, H = shape->hidden_size, I = shape->intermediate_size,
                S = shape->shared_intermediate_size;
  const double of_hidden = 1.0 / sqrt((double)H), of_inner = 1.0 / sqrt((double)I);
  purr_tensor_t gate_up, down, shared[NUM_SHARED];
  purr_weights_desc_t desc = PURR_WEIGHTS_DESC_INIT;
  desc.gate_up = &gate_up;
  desc.down = &down;
  purr_status_t status = make(layer, &gate_up, E, 2 * I, H, seed, RANDOM_GATE_UP, of_hidden, err);
  if (status == PURR_STATUS_OK) status = make(layer, &down, E, H, I, seed, RANDOM_DOWN, of_inner, err);
  if (status == PURR_STATUS_OK && S > 0) {
    desc.shared_gate = &shared[SHARED_GATE];
    desc.shared_up = &shared[SHARED_UP];
    desc.shared_down = &shared[SHARED_DOWN];
    status = make(layer, &shared[SHARED_GATE], S, H, 0, seed, RANDOM_SHARED_GATE, of_hidden, err);
    if (status == PURR_STATUS_OK)
      status = make(layer, &shared[SHARED_UP], S, H, 0, seed, RANDOM_SHARED_UP, of_hidden, err);
    if (status == PURR_STATUS_OK)
      status = make(layer, &shared[SHARED_DOWN], H, S, 0, seed, RANDOM_SHARED_DOWN, 1.0 / sqrt((double)S), err);
  }
  if (status == PURR_STATUS_OK && shape->shared_gate == PURR_SHARED_GATE_SIGMOID) {
    desc.shared_expert_gate = &shared[SHARED_EXPERT_GATE];
    status = make(layer, &shared[SHARED_EXPERT_GATE], 1, H, 0, seed, RANDOM_SHARED_EXPERT_GATE, of_hidden, err);
  }
  return status == PURR_STATUS_OK ? purr_weights_create(layer->plan, &desc, &layer->weights, err) : status;
}

static purr_status_t make_tokens(bench_layer_t *layer, uint64_t seed, purr_error_t *err) {
  const int64_t T = layer->num_tokens, H = layer->shape.hidden_size, K = layer->shape.top_k;
  layer->topk_ids = tensor_of(PURR_DTYPE_INT64, NULL, T, K, 0);
  layer->topk_weights = tensor_of(PURR_DTYPE_FP32, NULL, T, K, 0);
  layer->output = tensor_of(PURR_DTYPE_BF16, NULL, T, H, 0);
  purr_status_t status = make(layer, &layer->x, T, H, 0, seed, RANDOM_X, 1.0, err);
  if (status == PURR_STATUS_OK) status = place(layer, (uint64_t)(T * H) * sizeof(uint16_t), &layer->output.data, err);
  if (status == PURR_STATUS_OK) status = place(layer, (uint64_t)(T * K) * sizeof(int64_t), &layer->topk_ids.data, err);
  if (status == PURR_STATUS_OK)
    status = place(layer, (uint64_t)(T * K) * sizeof(float), &layer->topk_weights.data, err);
  return status;
}

int bench_layer_fill(bench_layer_t *layer, const bench_options_t *options) {
  const purr_plan_info_t *info = &layer->info;
  const uint64_t num_slots = (uint64_t)(layer->num_tokens * layer->shape.top_k);
  const uint64_t needed = info->weight_bytes + info->workspace_bytes + info->symmetric_bytes +
                          (options->saved ? info->saved_bytes : 0) +
                          4 * (uint64_t)(layer->num_tokens * layer->shape.hidden_size);
  const uint64_t available = available_memory();
  if (info->backend == PURR_BACKEND_HOST && available != 0 && needed > available)
    return fail("bench", next_memory, "%s needs %s on the host, %s are available", layer->path, BYTES_TEXT(needed),
                BYTES_TEXT(available));
  layer->ids = malloc(num_slots * sizeof *layer->ids);
  layer->slot_weights = malloc(num_slots * sizeof *layer->slot_weights);
  if (layer->ids == NULL || layer->slot_weights == NULL) return fail("bench", next_memory, "memory ran out");
  purr_error_t err = PURR_ERROR_INIT;
  purr_status_t status = make_weights(layer, (uint64_t)options->seed, &err);
  if (status == PURR_STATUS_OK) status = make_tokens(layer, (uint64_t)options->seed, &err);
  if (status == PURR_STATUS_OK) status = purr_workspace_create(layer->plan, NULL, NULL, &layer->workspace, &err);
  if (status == PURR_STATUS_OK && options->saved) status = purr_saved_create(layer->plan, NULL, 0, &layer->saved, &err);
  if (status == PURR_STATUS_OK) status = purr_result_create(layer->context, &layer->result, &err);
  return status == PURR_STATUS_OK ? EXIT_GOOD : fail_call("bench", next_memory, &err);
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
  purr_status_t status =
      purr_memory_copy(layer->plan, layer->topk_ids.data, layer->ids, num_slots * sizeof *layer->ids, &err);
  if (status == PURR_STATUS_OK)
    status = purr_memory_copy(layer->plan, layer->topk_weights.data, layer->slot_weights,
                              num_slots * sizeof *layer->slot_weights, &err);
  return status == PURR_STATUS_OK ? EXIT_GOOD : fail_call("bench", NULL, &err);
}

static void *stream_of(const bench_layer_t *layer) { return layer->gpu != NULL ? gpu_stream(layer->gpu) : NULL; }

static int forward(const bench_layer_t *layer, int64_t num_tokens, bool saved, purr_result_t *result) {
  purr_tensor_t x = layer->x, topk_ids = layer->topk_ids, topk_weights = layer->topk_weights, output = layer->output;
  x.shape[0] = topk_ids.shape[0] = topk_weights.shape[0] = output.shape[0] = num_tokens;
  purr_error_t err = PURR_ERROR_INIT;
  purr_forward_args_t args = PURR_FORWARD_ARGS_INIT;
  args.weights = layer->weights;
  args.x = &x;
  args.topk_ids = &topk_ids;
  args.topk_weights = &topk_weights;
  args.output = &output;
  args.saved = saved ? layer->saved : NULL;
  args.result = result;
  args.stream = stream_of(layer);
  if (purr_forward(layer->plan, layer->workspace, &args, &err) == PURR_STATUS_OK) return EXIT_GOOD;
  return fail_call("bench", "purr doctor says what works on this machine", &err);
}

int bench_layer_forward(const bench_layer_t *layer, int64_t num_tokens, bool saved) {
  return forward(layer, num_tokens, saved, NULL);
}

int bench_layer_try(const bench_layer_t *layer, int64_t num_tokens, bool saved, int64_t *out_num_launches) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_counters_t before = {.struct_size = sizeof before}, after = before;
  purr_result_info_t info = {.struct_size = sizeof info};
  purr_status_t status = purr_context_query_counters(layer->context, &before, &err);
  if (status != PURR_STATUS_OK) return fail_call("bench", NULL, &err);
  int code = forward(layer, num_tokens, saved, layer->result);
  if (code != EXIT_GOOD) return code;
  status = purr_stream_synchronize(layer->plan, stream_of(layer), &err);
  if (status == PURR_STATUS_OK) status = purr_context_query_counters(layer->context, &after, &err);
  if (status == PURR_STATUS_OK) status = purr_result_query(layer->result, &info, &err);
  if (status == PURR_STATUS_OK) status = info.status;
  *out_num_launches = (int64_t)(after.num_launches - before.num_launches);
  return status == PURR_STATUS_OK ? EXIT_GOOD : fail_call("bench", "this is a bug: please report it", &err);
}

void bench_layer_close(bench_layer_t *layer) {
  purr_result_destroy(layer->result);
  purr_saved_destroy(layer->saved);
  purr_workspace_destroy(layer->workspace);
  purr_weights_destroy(layer->weights);
  while (layer->num_placed > 0) {
    const placed_t *placed = &layer->placed[--layer->num_placed];
    purr_memory_release(layer->plan, placed->memory, placed->bytes);
  }
  free(layer->ids);
  free(layer->slot_weights);
  purr_plan_destroy(layer->plan);
  purr_config_destroy(layer->config);
}
