/* One MoE layer on R ranks of this process. The arrays hold all tokens and all experts; each rank works on its run of
 * token rows and its run of experts, on a thread of its own. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layer.h"
#include "random.h"

/* ------------------------------------------------------------------------------------------------------------ open */

typedef struct shape_field {
  const char *name;
  size_t offset;
} shape_field_t;

static const shape_field_t shape_fields[] = {
    {"hidden_size", offsetof(purr_layer_desc_t, hidden_size)},
    {"intermediate_size", offsetof(purr_layer_desc_t, intermediate_size)},
    {"num_experts", offsetof(purr_layer_desc_t, num_experts)},
    {"top_k", offsetof(purr_layer_desc_t, top_k)},
    {"shared_intermediate_size", offsetof(purr_layer_desc_t, shared_intermediate_size)},
};

static int check_same_shape(const layer_t *layer, const char *config_path, const purr_layer_desc_t *found) {
  const char *next = "correct the config, or leave it away: the checkpoint says the shape itself";
  for (size_t i = 0; i < sizeof shape_fields / sizeof shape_fields[0]; i++) {
    int64_t wanted, got;
    memcpy(&wanted, (const char *)&layer->shape + shape_fields[i].offset, sizeof wanted);
    memcpy(&got, (const char *)found + shape_fields[i].offset, sizeof got);
    if (wanted != got)
      return fail(layer->command, next, "%s has %s: %lld, the checkpoint has %lld", config_path, shape_fields[i].name,
                  (long long)wanted, (long long)got);
  }
  if (layer->shape.shared_gate != found->shared_gate)
    return fail(layer->command, next, "%s has a shared expert %s a sigmoid gate, the checkpoint's is %s one",
                config_path, layer->shape.shared_gate ? "with" : "without", found->shared_gate ? "with" : "without");
  return EXIT_GOOD;
}

/* The number of the layer that is taken where none is named: the first of which a config can be made. */
static void find_layer(layer_t *layer) {
  enum { MOST_LAYERS = 1 << 16 };
  for (int64_t idx = 0; idx < MOST_LAYERS && layer->layer_idx < 0; idx++) {
    purr_config_t *config = NULL;
    if (purr_checkpoint_create_config(layer->checkpoint, idx, &config, NULL) == PURR_STATUS_OK) layer->layer_idx = idx;
    purr_config_destroy(config);
  }
}

static int open_checkpoint(layer_t *layer, const char *config_path, const char *checkpoint_path) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_config_t *own_config = NULL;
  purr_layer_desc_t own = PURR_LAYER_DESC_INIT;
  if (purr_checkpoint_open(layer->context, checkpoint_path, &layer->checkpoint, &err) != PURR_STATUS_OK)
    return fail_call(layer->command, "--checkpoint takes a folder with config.json and model.safetensors (or shards)",
                     &err);
  if (purr_checkpoint_create_config(layer->checkpoint, layer->layer_idx, &own_config, &err) != PURR_STATUS_OK)
    return fail_call(layer->command, "name a layer that has experts with --layer N", &err);
  find_layer(layer);
  if (layer->config == NULL) {
    layer->config = own_config;
    return EXIT_GOOD;
  }
  int code = EXIT_GOOD;
  if (purr_config_get_layer(own_config, &own, &err) != PURR_STATUS_OK)
    code = fail_call(layer->command, NULL, &err);
  else
    code = check_same_shape(layer, config_path, &own);
  purr_config_destroy(own_config);
  return code;
}

int layer_open(layer_t *layer, const char *command, const char *config_path, const layer_options_t *options) {
  purr_error_t err = PURR_ERROR_INIT;
  *layer = (layer_t){.command = command, .layer_idx = options->layer_idx};
  layer->shape = (purr_layer_desc_t)PURR_LAYER_DESC_INIT;
  const int created = make_context(command, options->num_threads, &layer->context);
  if (created != EXIT_GOOD) return created;
  if (config_path != NULL) {
    char next[160];
    snprintf(next, sizeof next, "check the config with: purr config %.120s", config_path);
    if (purr_config_load(layer->context, config_path, &layer->config, &err) != PURR_STATUS_OK)
      return fail_call(command, next, &err);
    if (purr_config_get_layer(layer->config, &layer->shape, &err) != PURR_STATUS_OK)
      return fail_call(command, next, &err);
    layer->limits_tokens = true;
  }
  if (options->checkpoint_path != NULL) {
    int code = open_checkpoint(layer, config_path, options->checkpoint_path);
    if (code != EXIT_GOOD) return code;
  }
  if (purr_config_get_layer(layer->config, &layer->shape, &err) != PURR_STATUS_OK)
    return fail_call(command, NULL, &err);
  if (options->num_ranks != 0) layer->shape.num_ranks = (int32_t)options->num_ranks;
  layer->num_ranks = layer->shape.num_ranks;
  layer->ranks = calloc((size_t)layer->num_ranks, sizeof *layer->ranks);
  if (layer->ranks == NULL) return fail(command, "take fewer --ranks", "memory ran out");
  int code = devices_parse(command, options->devices_text, &layer->devices);
  return code == EXIT_GOOD ? devices_check_ranks(command, &layer->devices, layer->num_ranks) : code;
}

/* -------------------------------------------------------------------------------------------------------- allocate */

typedef struct layer_block {
  struct layer_block *next;
} layer_block_t;

int64_t layer_shared_count(const layer_t *layer, int shared_idx) {
  const purr_layer_desc_t *shape = &layer->shape;
  if (shared_idx != SHARED_EXPERT_GATE) return shape->shared_intermediate_size * shape->hidden_size;
  return shape->shared_gate == PURR_SHARED_GATE_SIGMOID ? shape->hidden_size : 0;
}

/* One list of arrays serves twice: with `measures` their bytes are counted, without they are allocated. */
typedef struct allocation {
  layer_t *layer;
  bool measures, failed;
  uint64_t bytes;
} allocation_t;

static void *add_array(allocation_t *allocation, void *out_array, int64_t count, size_t element_bytes) {
  enum { ALIGNMENT = 256 };
  uint64_t bytes = ((uint64_t)count * element_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + ALIGNMENT;
  allocation->bytes += bytes;
  if (allocation->measures || allocation->failed) return NULL;
  layer_block_t *block = aligned_alloc(ALIGNMENT, bytes);
  if (block == NULL) {
    allocation->failed = true;
    return NULL;
  }
  block->next = allocation->layer->blocks;
  allocation->layer->blocks = block;
  void *array = (char *)block + ALIGNMENT;
  memcpy(out_array, &array, sizeof array);
  return array;
}

/* An array that a pass writes: full of NaN, so that an element left out is seen, and touched, so that the time of a
 * pass does not hold that of getting its memory. */
static void add_result(allocation_t *allocation, void *out_array, int64_t count, size_t element_bytes) {
  void *array = add_array(allocation, out_array, count, element_bytes);
  if (array != NULL) memset(array, 0xFF, (size_t)count * element_bytes);
}

static void add_arrays(allocation_t *allocation, bool backward) {
  layer_t *layer = allocation->layer;
  const purr_layer_desc_t *shape = &layer->shape;
  int64_t num_values = layer->num_tokens * shape->hidden_size, num_slots = layer->num_tokens * shape->top_k;
  int64_t num_expert_values = shape->num_experts * shape->intermediate_size * shape->hidden_size;
  add_array(allocation, &layer->x, num_values, sizeof *layer->x);
  add_result(allocation, &layer->output, num_values, sizeof *layer->output);
  add_array(allocation, &layer->topk_ids, num_slots, sizeof *layer->topk_ids);
  add_array(allocation, &layer->topk_weights, num_slots, sizeof *layer->topk_weights);
  add_array(allocation, &layer->tokens_per_expert, shape->num_experts, sizeof *layer->tokens_per_expert);
  if (layer->checkpoint == NULL) {
    add_array(allocation, &layer->gate_up, 2 * num_expert_values, sizeof *layer->gate_up);
    add_array(allocation, &layer->down, num_expert_values, sizeof *layer->down);
    for (int i = 0; i < NUM_SHARED; i++)
      if (layer_shared_count(layer, i) > 0)
        add_array(allocation, &layer->shared[i], layer_shared_count(layer, i), sizeof *layer->shared[i]);
  }
  if (!backward) return;
  add_array(allocation, &layer->d_output, num_values, sizeof *layer->d_output);
  add_result(allocation, &layer->d_x, num_values, sizeof *layer->d_x);
  add_result(allocation, &layer->d_topk_weights, num_slots, sizeof *layer->d_topk_weights);
  add_result(allocation, &layer->d_gate_up, 2 * num_expert_values, sizeof *layer->d_gate_up);
  add_result(allocation, &layer->d_down, num_expert_values, sizeof *layer->d_down);
  for (int64_t r = 0; r < layer->num_ranks; r++)
    for (int i = 0; i < NUM_SHARED; i++)
      if (layer_shared_count(layer, i) > 0)
        add_result(allocation, &layer->ranks[r].d_shared[i], layer_shared_count(layer, i), sizeof(float));
}

/* Tokens are split as evenly as they can be, in order. */
static int64_t first_token_of(const layer_t *layer, int64_t rank) {
  return layer->num_tokens / layer->num_ranks * rank + layer->num_tokens % layer->num_ranks * rank / layer->num_ranks;
}

/* A plan for each GPU of the list. What differs between them, if anything does, the ranks find out when they meet. */
static int make_plans(layer_t *layer, const layer_options_t *options, int backend) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_plan_desc_t desc = PURR_PLAN_DESC_INIT;
  int64_t tokens_per_rank = (layer->num_tokens + layer->num_ranks - 1) / layer->num_ranks;
  if (layer->limits_tokens && tokens_per_rank > layer->shape.max_tokens)
    return fail(layer->command, "take fewer --tokens or more --ranks, or raise max_tokens in the config",
                "%lld tokens with R = %lld are %lld a rank, the config allows max_tokens: %lld",
                (long long)layer->num_tokens, (long long)layer->num_ranks, (long long)tokens_per_rank,
                (long long)layer->shape.max_tokens);
  desc.num_ranks = (int32_t)layer->num_ranks;
  desc.backend = backend;
  desc.precision = options->precision + 1;
  desc.max_tokens = tokens_per_rank > 0 ? tokens_per_rank : 1;
  const int num_plans = layer->devices.count > 0 ? layer->devices.count : 1;
  for (int i = 0; i < num_plans; i++) {
    desc.device = layer->devices.count > 0 ? layer->devices.numbers[i] + 1 : 0;
    if (purr_plan_create(layer->context, layer->config, &desc, &layer->plans[i], &err) != PURR_STATUS_OK)
      return fail_call(layer->command, next_of(err.status, layer->num_ranks), &err);
    purr_plan_info_t info = {.struct_size = sizeof info};
    if (purr_plan_query(layer->plans[i], &info, &err) != PURR_STATUS_OK) return fail_call(layer->command, NULL, &err);
    if (layer->devices.count > 0 && info.backend == PURR_BACKEND_HOST)
      return devices_fail_host(layer->command, "--devices", layer->context, layer->config, desc);
    if (i == 0) layer->info = info;
  }
  for (int64_t r = 0; r < layer->num_ranks; r++) layer->ranks[r].plan = layer->plans[r % num_plans];
  return EXIT_GOOD;
}

static void drop_plans(layer_t *layer) {
  for (int i = 0; i < MAX_DEVICES; i++) {
    purr_plan_destroy(layer->plans[i]);
    layer->plans[i] = NULL;
  }
}

/* Plans whose backend runs what is wanted. */
static int choose_plans(layer_t *layer, const layer_options_t *options, bool *backward) {
  int code = make_plans(layer, options, options->backend);
  if (code != EXIT_GOOD || !*backward || layer->info.supports_backward) return code;
  if (options->forward_suffices) {
    *backward = false;
    return EXIT_GOOD;
  }
  if (options->backend != PURR_BACKEND_AUTO)
    return fail(layer->command, "leave --backend away, or leave --backward away", "the %s backend runs forward alone",
                backend_names[layer->info.backend]);
  if (layer->devices.count > 0)
    return fail(layer->command, "leave --devices away, or leave --backward away",
                "--devices names GPUs, but the %s backend runs forward alone, and the host would run this layer",
                backend_names[layer->info.backend]);
  drop_plans(layer);
  return make_plans(layer, options, PURR_BACKEND_HOST);
}

int layer_allocate(layer_t *layer, const layer_options_t *options, int64_t num_tokens, bool backward) {
  layer->num_tokens = num_tokens;
  int code = choose_plans(layer, options, &backward);
  if (code != EXIT_GOOD) return code;

  allocation_t allocation = {.layer = layer, .measures = true};
  add_arrays(&allocation, backward);
  const purr_plan_info_t *info = &layer->info;
  uint64_t rank_bytes = info->workspace_bytes + info->symmetric_bytes + (backward ? info->saved_bytes : 0);
  uint64_t needed = allocation.bytes + (uint64_t)layer->num_ranks * rank_bytes, available = available_memory();
  const char *next =
      layer->checkpoint == NULL
          ? "take fewer --tokens or a smaller config (configs/bench holds slices of large models), or --checkpoint DIR "
            "--layer N: a checkpoint's weights are mapped, not copied"
          : "take fewer --tokens or a --layer of a smaller checkpoint";
  if (available != 0 && needed > available)
    return fail(layer->command, next, "this layer needs %s with %lld tokens and R = %lld, %s are available",
                BYTES_TEXT(needed), (long long)num_tokens, (long long)layer->num_ranks, BYTES_TEXT(available));

  allocation = (allocation_t){.layer = layer};
  add_arrays(&allocation, backward);
  if (allocation.failed)
    return fail(layer->command, next, "memory ran out: %s are needed", BYTES_TEXT(allocation.bytes));
  for (int64_t r = 0; r < layer->num_ranks; r++) {
    layer->ranks[r].first_token = first_token_of(layer, r);
    layer->ranks[r].num_tokens = first_token_of(layer, r + 1) - layer->ranks[r].first_token;
  }
  return EXIT_GOOD;
}

/* -------------------------------------------------------------------------------------------------------- generate */

typedef struct filling {
  uint16_t *values;
  int64_t count;
  uint64_t key;
  float deviation;
} filling_t;

enum { VALUES_PER_TASK = 1 << 16 };

static void fill_part(void *arg, int64_t task_idx) {
  const filling_t *filling = arg;
  int64_t begin = task_idx * VALUES_PER_TASK, end = begin + VALUES_PER_TASK;
  if (end > filling->count) end = filling->count;
  for (int64_t i = begin; i < end; i++)
    filling->values[i] = bf16_from_float(random_normal(filling->key, (uint64_t)i) * filling->deviation);
}

void fill_normal(uint16_t *values, int64_t count, uint64_t seed, int stream, float deviation) {
  filling_t filling = {values, count, random_key(seed, (uint64_t)stream), deviation};
  run_spread((count + VALUES_PER_TASK - 1) / VALUES_PER_TASK, fill_part, &filling, "generating data");
}

static float fan_in_deviation(int64_t fan_in) { return (float)(1.0 / sqrt((double)fan_in)); }

void layer_generate_weights(layer_t *layer, uint64_t seed) {
  if (layer->checkpoint != NULL) return;
  const purr_layer_desc_t *shape = &layer->shape;
  int64_t count = shape->num_experts * shape->intermediate_size * shape->hidden_size;
  fill_normal(layer->gate_up, 2 * count, seed, RANDOM_GATE_UP, fan_in_deviation(shape->hidden_size));
  fill_normal(layer->down, count, seed, RANDOM_DOWN, fan_in_deviation(shape->intermediate_size));
  for (int i = 0; i < NUM_SHARED; i++)
    if (layer->shared[i] != NULL)
      fill_normal(layer->shared[i], layer_shared_count(layer, i), seed, RANDOM_SHARED_GATE + i,
                  fan_in_deviation(i == SHARED_DOWN ? shape->shared_intermediate_size : shape->hidden_size));
}

/* ----------------------------------------------------------------------------------------------------------- ranks */

/* The tensor structs behind a purr_weights_desc_t. */
typedef struct weight_tensors {
  purr_tensor_t gate_up, down, shared[NUM_SHARED];
  purr_weights_desc_t desc;
} weight_tensors_t;

/* Describes a rank's part of arrays over all experts, and its arrays of the shared expert (NULL = absent). */
static void describe_weights(const layer_t *layer, int64_t rank, int32_t dtype, const void *gate_up, const void *down,
                             const void *const *shared, weight_tensors_t *out) {
  const purr_layer_desc_t *shape = &layer->shape;
  int64_t H = shape->hidden_size, I = shape->intermediate_size, S = shape->shared_intermediate_size;
  int64_t num_local = shape->num_experts / layer->num_ranks;
  int64_t element_bytes = dtype == PURR_DTYPE_BF16 ? 2 : 4, first_value = rank * num_local * I * H * element_bytes;
  out->desc = (purr_weights_desc_t)PURR_WEIGHTS_DESC_INIT;
  out->gate_up = tensor_of(dtype, (const char *)gate_up + 2 * first_value, num_local, 2 * I, H);
  out->down = tensor_of(dtype, (const char *)down + first_value, num_local, H, I);
  out->desc.gate_up = &out->gate_up;
  out->desc.down = &out->down;
  if (shared[SHARED_GATE] != NULL) {
    out->shared[SHARED_GATE] = tensor_of(dtype, shared[SHARED_GATE], S, H, 0);
    out->shared[SHARED_UP] = tensor_of(dtype, shared[SHARED_UP], S, H, 0);
    out->shared[SHARED_DOWN] = tensor_of(dtype, shared[SHARED_DOWN], H, S, 0);
    out->desc.shared_gate = &out->shared[SHARED_GATE];
    out->desc.shared_up = &out->shared[SHARED_UP];
    out->desc.shared_down = &out->shared[SHARED_DOWN];
  }
  if (shared[SHARED_EXPERT_GATE] != NULL) {
    out->shared[SHARED_EXPERT_GATE] = tensor_of(dtype, shared[SHARED_EXPERT_GATE], 1, H, 0);
    out->desc.shared_expert_gate = &out->shared[SHARED_EXPERT_GATE];
  }
}

/* The weights where the backend wants them. */
static purr_status_t place_weights(const layer_t *layer, rank_t *rank, const purr_weights_desc_t *desc) {
  const purr_tensor_t *const from[] = {desc->gate_up,     desc->gate,      desc->up,          desc->down,
                                       desc->shared_gate, desc->shared_up, desc->shared_down, desc->shared_expert_gate};
  enum { NUM_TENSORS = sizeof from / sizeof from[0] };
  purr_tensor_t own[NUM_TENSORS];
  const purr_tensor_t *placed[NUM_TENSORS] = {NULL};
  purr_status_t status = PURR_STATUS_OK;
  for (int i = 0; i < NUM_TENSORS && status == PURR_STATUS_OK; i++) {
    if (from[i] == NULL) continue;
    own[i] = *from[i];
    placed[i] = &own[i];
    status = place_tensor(layer, rank, &own[i], &rank->err);
  }
  if (status != PURR_STATUS_OK) return status;
  const purr_weights_desc_t at = {sizeof at, 0,         placed[0], placed[1], placed[2],
                                  placed[3], placed[4], placed[5], placed[6], placed[7]};
  return purr_weights_create(rank->plan, &at, &rank->weights, &rank->err);
}

static purr_status_t create_weights(const layer_t *layer, int64_t rank_idx, rank_t *rank) {
  weight_tensors_t tensors;
  purr_weights_desc_t loaded = PURR_WEIGHTS_DESC_INIT;
  const purr_weights_desc_t *desc = &tensors.desc;
  if (layer->checkpoint == NULL) {
    const void *shared[NUM_SHARED] = {layer->shared[0], layer->shared[1], layer->shared[2], layer->shared[3]};
    describe_weights(layer, rank_idx, PURR_DTYPE_BF16, layer->gate_up, layer->down, shared, &tensors);
  } else {
    purr_status_t status = purr_checkpoint_load_layer(layer->checkpoint, layer->layer_idx, (int32_t)rank_idx,
                                                      (int32_t)layer->num_ranks, &rank->checkpoint_layer, &rank->err);
    if (status == PURR_STATUS_OK)
      status = purr_checkpoint_layer_get_weights(rank->checkpoint_layer, &loaded, &rank->err);
    if (status != PURR_STATUS_OK) return status;
    desc = &loaded;
  }
  return place_weights(layer, rank, desc);
}

/* The tensors of forward, and room for them where the backend is not the host. */
static purr_status_t place_tokens(const layer_t *layer, rank_t *rank) {
  const int64_t T = rank->num_tokens, H = layer->shape.hidden_size, K = layer->shape.top_k;
  rank->x = tensor_of(PURR_DTYPE_BF16, layer->x + rank->first_token * H, T, H, 0);
  rank->topk_ids = tensor_of(PURR_DTYPE_INT64, layer->topk_ids + rank->first_token * K, T, K, 0);
  rank->topk_weights = tensor_of(PURR_DTYPE_FP32, layer->topk_weights + rank->first_token * K, T, K, 0);
  rank->output = tensor_of(PURR_DTYPE_BF16, layer->output + rank->first_token * H, T, H, 0);
  purr_tensor_t *const tensors[] = {&rank->x, &rank->topk_ids, &rank->topk_weights, &rank->output};
  purr_status_t status = PURR_STATUS_OK;
  for (int i = 0; i < 4 && status == PURR_STATUS_OK; i++) status = place_tensor(layer, rank, tensors[i], &rank->err);
  return status;
}

static purr_status_t create_rank(const layer_t *layer, int64_t rank_idx, rank_t *rank) {
  purr_status_t status = purr_stream_create(rank->plan, &rank->stream, &rank->err);
  if (status == PURR_STATUS_OK) status = create_weights(layer, rank_idx, rank);
  if (status == PURR_STATUS_OK) status = place_tokens(layer, rank);
  if (status == PURR_STATUS_OK)
    status = purr_workspace_create(rank->plan, rank->group, NULL, &rank->workspace, &rank->err);
  if (status == PURR_STATUS_OK && layer->d_x != NULL)
    status = purr_saved_create(rank->plan, NULL, 0, &rank->saved, &rank->err);
  if (status == PURR_STATUS_OK) status = purr_result_create(layer->context, &rank->result, &rank->err);
  return status;
}

/* Waits for the call and takes its outcome: a GPU backend only enqueues it. */
static purr_status_t finish_call(rank_t *rank, purr_result_info_t *out_info) {
  *out_info = (purr_result_info_t){.struct_size = sizeof *out_info};
  purr_status_t status = purr_stream_synchronize(rank->plan, rank->stream, &rank->err);
  if (status == PURR_STATUS_OK) status = purr_result_query(rank->result, out_info, &rank->err);
  return status == PURR_STATUS_OK ? out_info->status : status;
}

static purr_status_t forward_rank(const layer_t *layer, int64_t rank_idx, rank_t *rank) {
  const int64_t num_local = layer->shape.num_experts / layer->num_ranks;
  purr_forward_args_t args = PURR_FORWARD_ARGS_INIT;
  args.weights = rank->weights;
  args.x = &rank->x;
  args.topk_ids = &rank->topk_ids;
  args.topk_weights = &rank->topk_weights;
  args.output = &rank->output;
  args.saved = rank->saved;
  args.result = rank->result;
  args.stream = rank->stream;
  args.trace = rank->trace;
  purr_status_t status = purr_forward(rank->plan, rank->workspace, &args, &rank->err);
  if (status == PURR_STATUS_OK) status = finish_call(rank, &rank->forward);
  if (status == PURR_STATUS_OK)
    status = purr_result_tokens_per_expert(rank->result, layer->tokens_per_expert + rank_idx * num_local, num_local,
                                           &rank->err);
  if (status == PURR_STATUS_OK)
    status = fetch_tensor(layer, rank, &rank->output, layer->output + rank->first_token * layer->shape.hidden_size,
                          &rank->err);
  return status;
}

static purr_status_t backward_rank(const layer_t *layer, int64_t rank_idx, rank_t *rank) {
  const purr_layer_desc_t *shape = &layer->shape;
  int64_t T = rank->num_tokens, H = shape->hidden_size, K = shape->top_k;
  purr_tensor_t x = tensor_of(PURR_DTYPE_BF16, layer->x + rank->first_token * H, T, H, 0),
                topk_weights = tensor_of(PURR_DTYPE_FP32, layer->topk_weights + rank->first_token * K, T, K, 0),
                d_output = tensor_of(PURR_DTYPE_BF16, layer->d_output + rank->first_token * H, T, H, 0),
                d_x = tensor_of(PURR_DTYPE_BF16, layer->d_x + rank->first_token * H, T, H, 0),
                d_topk_weights = tensor_of(PURR_DTYPE_FP32, layer->d_topk_weights + rank->first_token * K, T, K, 0);
  const void *d_shared[NUM_SHARED] = {rank->d_shared[0], rank->d_shared[1], rank->d_shared[2], rank->d_shared[3]};
  weight_tensors_t gradients;
  describe_weights(layer, rank_idx, PURR_DTYPE_FP32, layer->d_gate_up, layer->d_down, d_shared, &gradients);
  purr_backward_args_t args = PURR_BACKWARD_ARGS_INIT;
  args.weights = rank->weights;
  args.saved = rank->saved;
  args.x = &x;
  args.topk_weights = &topk_weights;
  args.d_output = &d_output;
  args.d_x = &d_x;
  args.d_topk_weights = &d_topk_weights;
  args.d_weights = &gradients.desc;
  args.result = rank->result;
  args.stream = rank->stream;
  purr_status_t status = purr_backward(rank->plan, rank->workspace, &args, &rank->err);
  return status == PURR_STATUS_OK ? finish_call(rank, &rank->backward) : status;
}

/* -------------------------------------------------------------------------------------------------- all ranks at once
 */

typedef struct step {
  layer_t *layer;
  purr_status_t (*run)(const layer_t *layer, int64_t rank_idx, rank_t *rank);
} step_t;

static void run_rank(void *arg, int64_t rank_idx) {
  const step_t *step = arg;
  rank_t *rank = &step->layer->ranks[rank_idx];
  rank->err = (purr_error_t)PURR_ERROR_INIT;
  rank->status = step->run(step->layer, rank_idx, rank);
  if (rank->status == PURR_STATUS_OK) return;
  purr_group_destroy(rank->group); /* the other ranks need not wait for this one */
  rank->group = NULL;
}

static double rows_fraction(void *arg) {
  const layer_t *layer = ((const step_t *)arg)->layer;
  int64_t num_rows = 0, num_done = 0;
  for (int64_t r = 0; r < layer->num_ranks; r++) {
    purr_result_info_t info = {.struct_size = sizeof info};
    if (layer->ranks[r].result == NULL) continue;
    if (purr_result_query(layer->ranks[r].result, &info, NULL) != PURR_STATUS_OK) continue;
    num_rows += info.num_rows;
    num_done += info.num_rows_done;
  }
  return num_rows > 0 ? (double)num_done / (double)num_rows : 0.0;
}

static int run_step(layer_t *layer, const char *label, fraction_fn fraction,
                    purr_status_t (*run)(const layer_t *, int64_t, rank_t *)) {
  step_t step = {layer, run};
  if (!run_together(layer->num_ranks, run_rank, &step, label, fraction))
    return fail(layer->command, "take fewer --ranks", "%lld threads, one for each rank, could not be started",
                (long long)layer->num_ranks);
  /* The rank that failed by itself says more than those that waited for it. */
  const rank_t *failed = NULL;
  for (int64_t r = layer->num_ranks - 1; r >= 0; r--) {
    const rank_t *rank = &layer->ranks[r];
    if (rank->status == PURR_STATUS_OK) continue;
    if (failed == NULL || rank->status != PURR_STATUS_PEER_FAILED || failed->status == PURR_STATUS_PEER_FAILED)
      failed = rank;
  }
  if (failed == NULL) return EXIT_GOOD;
  return fail_call(layer->command, next_of(failed->status, layer->num_ranks), &failed->err);
}

int layer_prepare(layer_t *layer) {
  if (layer->num_ranks > 1) {
    purr_error_t err = PURR_ERROR_INIT;
    purr_group_desc_t desc = PURR_GROUP_DESC_INIT;
    desc.num_ranks = (int32_t)layer->num_ranks;
    desc.timeout_ms = layer->shape.timeout_ms;
    purr_group_t **groups = calloc((size_t)layer->num_ranks, sizeof *groups);
    if (groups == NULL) return fail(layer->command, "take fewer --ranks", "memory ran out");
    purr_status_t status = purr_group_create_local(layer->context, &desc, groups, &err);
    for (int64_t r = 0; r < layer->num_ranks; r++) layer->ranks[r].group = groups[r];
    free(groups);
    if (status != PURR_STATUS_OK) return fail_call(layer->command, "take fewer --ranks", &err);
  }
  return run_step(layer, "preparing", NULL, create_rank);
}

int layer_forward(layer_t *layer) { return run_step(layer, "forward", rows_fraction, forward_rank); }

int layer_backward(layer_t *layer) { return run_step(layer, "backward", rows_fraction, backward_rank); }

void layer_close(layer_t *layer) {
  for (int64_t r = 0; layer->ranks != NULL && r < layer->num_ranks; r++) {
    rank_t *rank = &layer->ranks[r];
    purr_trace_destroy(rank->trace);
    purr_result_destroy(rank->result);
    purr_saved_destroy(rank->saved);
    purr_workspace_destroy(rank->workspace);
    purr_weights_destroy(rank->weights);
    release_placed(rank);
    purr_stream_destroy(rank->plan, rank->stream);
    purr_checkpoint_layer_destroy(rank->checkpoint_layer);
    purr_group_destroy(rank->group);
  }
  free(layer->ranks);
  while (layer->blocks != NULL) {
    layer_block_t *next = layer->blocks->next;
    free(layer->blocks);
    layer->blocks = next;
  }
  drop_plans(layer);
  purr_checkpoint_destroy(layer->checkpoint);
  purr_config_destroy(layer->config);
  purr_context_destroy(layer->context);
}
