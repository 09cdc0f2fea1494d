/* Where tokens go: drawn at random, computed by a checkpoint's own router, or read from a file. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layer.h"
#include "random.h"

int routing_parse(const char *command, const char *text, routing_t *out_routing) {
  static const char *const names[] = {"uniform", "zipf:1.0", "checkpoint", NULL};
  const char *next =
      "use --routing uniform, zipf:1.0, checkpoint, or a safetensors file with topk_ids and topk_weights";
  *out_routing = (routing_t){.kind = ROUTING_FILE, .path = text};
  if (strcmp(text, "uniform") == 0) {
    out_routing->kind = ROUTING_UNIFORM;
  } else if (strcmp(text, "checkpoint") == 0) {
    out_routing->kind = ROUTING_CHECKPOINT;
  } else if (strncmp(text, "zipf:", 5) == 0) {
    char *end;
    out_routing->kind = ROUTING_ZIPF;
    out_routing->exponent = strtod(text + 5, &end);
    if (end == text + 5 || *end != '\0' || !(out_routing->exponent >= 0 && out_routing->exponent <= 10))
      return fail(command, next, "--routing zipf:S takes a number S from 0 to 10, not '%s'", text + 5);
  } else {
    FILE *file = fopen(text, "r");
    if (file != NULL) return fclose(file), EXIT_GOOD;
    const char *nearest = nearest_name(text, names);
    return fail(command, next, "--routing '%s' is neither a routing nor a file that can be read%s%s%s", text,
                nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
  }
  return EXIT_GOOD;
}

/* ------------------------------------------------------------------------------------------------ choosing experts */

/* The K experts with the highest keys, highest first; equal keys go to the lower id, NaN comes last. They are distinct
 * whatever the keys are; with K > E, which a layer may have, all come again once all were chosen. */
static void choose_top(const float *keys, int64_t num_experts, int64_t top_k, int64_t *out_ids, bool *taken) {
  for (int64_t k = 0; k < top_k; k++) {
    int64_t best = -1;
    if (k % num_experts == 0) memset(taken, 0, (size_t)num_experts * sizeof *taken);
    for (int64_t e = 0; e < num_experts; e++)
      if (!taken[e] && (best < 0 || keys[e] > keys[best] || (isnan(keys[best]) && !isnan(keys[e])))) best = e;
    taken[best] = true;
    out_ids[k] = best;
  }
}

static void softmax(float *values, int64_t count) {
  float maximum = values[0], sum = 0.0f;
  for (int64_t i = 1; i < count; i++) maximum = fmaxf(maximum, values[i]);
  for (int64_t i = 0; i < count; i++) {
    values[i] = expf(values[i] - maximum);
    sum += values[i];
  }
  for (int64_t i = 0; i < count; i++) values[i] /= sum;
}

/* --------------------------------------------------------------------------------------------------------- generated
 */

/* log of each expert's share: rank i of the order gets 1/i^exponent. Which expert has which rank is shuffled. */
static void zipf_log_shares(float *log_shares, int64_t num_experts, double exponent, uint64_t seed) {
  uint64_t key = random_key(seed, RANDOM_ROUTE_ORDER);
  for (int64_t e = 0; e < num_experts; e++) log_shares[e] = (float)(-exponent * log((double)(e + 1)));
  for (int64_t e = num_experts - 1; e > 0; e--) {
    int64_t other = (int64_t)(random_bits(key, (uint64_t)e) % (uint64_t)(e + 1));
    float share = log_shares[e];
    log_shares[e] = log_shares[other];
    log_shares[other] = share;
  }
}

int route_generate(layer_t *layer, double exponent, uint64_t seed) {
  int64_t E = layer->shape.num_experts, K = layer->shape.top_k;
  uint64_t route_key = random_key(seed, RANDOM_ROUTE), weight_key = random_key(seed, RANDOM_ROUTE_WEIGHT);
  float *log_shares = malloc((size_t)E * sizeof *log_shares), *keys = malloc((size_t)E * sizeof *keys);
  bool *taken = malloc((size_t)E * sizeof *taken);
  int code = EXIT_GOOD;
  if (log_shares == NULL || keys == NULL || taken == NULL) {
    code = fail(layer->command, "free some memory", "memory ran out");
  } else {
    zipf_log_shares(log_shares, E, exponent, seed);
    for (int64_t t = 0; t < layer->num_tokens; t++) {
      /* The top K of log-share + Gumbel noise is a draw of K experts without replacement. */
      for (int64_t e = 0; e < E; e++)
        keys[e] = log_shares[e] - (float)log(-log(random_uniform(route_key, (uint64_t)(t * E + e))));
      choose_top(keys, E, K, layer->topk_ids + t * K, taken);
      float *weights = layer->topk_weights + t * K;
      for (int64_t k = 0; k < K; k++) weights[k] = random_normal(weight_key, (uint64_t)(t * K + k));
      softmax(weights, K);
    }
  }
  free(log_shares);
  free(keys);
  free(taken);
  return code;
}

/* ------------------------------------------------------------------------------------------- a checkpoint's own router
 */

typedef struct router {
  purr_router_desc_t desc;
  const layer_t *layer;
  float *weight; /* [E, H] */
  float *bias;   /* [E]; zeros where the checkpoint has none */
  float *scores; /* [T, E] */
  float *keys;   /* [E], then the scores of the groups */
  bool *taken;   /* [E] */
} router_t;

/* In FP32, with eight sums that a compiler can keep in one register. */
static float dot(const uint16_t *x, const float *weight, int64_t count) {
  float sums[8] = {0}, sum = 0.0f;
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int j = 0; j < 8; j++) sums[j] += float_from_bf16(x[i + j]) * weight[i + j];
  for (int j = 0; j < 8; j++) sum += sums[j];
  for (; i < count; i++) sum += float_from_bf16(x[i]) * weight[i];
  return sum;
}

static void score_token(void *arg, int64_t token) {
  const router_t *router = arg;
  int64_t H = router->layer->shape.hidden_size, E = router->layer->shape.num_experts;
  float *scores = router->scores + token * E;
  for (int64_t e = 0; e < E; e++) scores[e] = dot(router->layer->x + token * H, router->weight + e * H, H);
  if (router->desc.scoring == PURR_ROUTER_SOFTMAX)
    softmax(scores, E);
  else
    for (int64_t e = 0; e < E; e++) scores[e] = 1.0f / (1.0f + expf(-scores[e]));
}

/* Experts outside the best groups get the lowest key. A group's score is its best key, or the sum of its best two. */
static void mask_groups(const router_t *router) {
  const purr_router_desc_t *desc = &router->desc;
  int64_t num_groups = desc->num_groups, group_size = router->layer->shape.num_experts / num_groups, best[2];
  int64_t num_best = desc->group_top >= 2 && group_size >= 2 ? 2 : 1;
  float *keys = router->keys, *group_scores = keys + router->layer->shape.num_experts;
  for (int64_t g = 0; g < num_groups; g++) {
    float *group_keys = keys + g * group_size;
    choose_top(group_keys, group_size, num_best, best, router->taken);
    group_scores[g] = group_keys[best[0]] + (num_best == 2 ? group_keys[best[1]] : 0.0f);
  }
  for (int64_t g = 0; g < num_groups; g++) {
    int64_t num_better = 0; /* as good with a lower number is better */
    for (int64_t other = 0; other < num_groups; other++)
      num_better += group_scores[other] > group_scores[g] || (group_scores[other] == group_scores[g] && other < g);
    if (num_better < desc->num_top_groups) continue;
    for (int64_t e = g * group_size; e < (g + 1) * group_size; e++) keys[e] = -FLT_MAX;
  }
}

static void route_token(const router_t *router, int64_t token) {
  const purr_router_desc_t *desc = &router->desc;
  int64_t E = router->layer->shape.num_experts, K = router->layer->shape.top_k;
  const float *scores = router->scores + token * E;
  int64_t *ids = router->layer->topk_ids + token * K;
  float *weights = router->layer->topk_weights + token * K, sum = 0.0f;
  for (int64_t e = 0; e < E; e++)
    router->keys[e] = scores[e] + router->bias[e]; /* the bias chooses, it does not weigh */
  if (desc->num_groups > 1) mask_groups(router);
  choose_top(router->keys, E, K, ids, router->taken);
  for (int64_t k = 0; k < K; k++) sum += scores[ids[k]];
  for (int64_t k = 0; k < K; k++) {
    float weight = scores[ids[k]];
    if (desc->normalize) weight /= sum + desc->normalize_epsilon;
    weights[k] = weight * desc->scaling;
  }
}

/* The router's numbers as FP32. */
static int read_router(const layer_t *layer, const purr_checkpoint_layer_t *checkpoint_layer, router_t *router) {
  const char *next = "use --routing uniform";
  int64_t H = layer->shape.hidden_size, E = layer->shape.num_experts;
  purr_error_t err = PURR_ERROR_INIT;
  purr_tensor_t weight = {.struct_size = sizeof weight}, bias = {.struct_size = sizeof bias};
  router->desc = (purr_router_desc_t){.struct_size = sizeof router->desc};
  if (purr_checkpoint_layer_get_router(checkpoint_layer, &router->desc, &weight, &bias, &err) != PURR_STATUS_OK)
    return fail_call(layer->command, next, &err);
  if (!tensor_is_number(&weight) || (bias.num_dims > 0 && !tensor_is_number(&bias)))
    return fail(layer->command, next, "the checkpoint's router is stored as %s, which is not BF16, F32 or F64",
                dtype_name(tensor_is_number(&weight) ? bias.dtype : weight.dtype));
  router->weight = malloc((size_t)(E * H) * sizeof *router->weight);
  router->bias = calloc((size_t)E, sizeof *router->bias);
  router->scores = malloc((size_t)(layer->num_tokens * E + 1) * sizeof *router->scores);
  router->keys = malloc((size_t)(2 * E) * sizeof *router->keys);
  router->taken = malloc((size_t)E * sizeof *router->taken);
  if (!router->weight || !router->bias || !router->scores || !router->keys || !router->taken)
    return fail(layer->command, "take fewer --tokens", "memory ran out");
  for (int64_t i = 0; i < E * H; i++) router->weight[i] = (float)tensor_element(&weight, i);
  if (bias.num_dims > 0)
    for (int64_t e = 0; e < E; e++) router->bias[e] = (float)tensor_element(&bias, e);
  return EXIT_GOOD;
}

int route_from_checkpoint(layer_t *layer) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_checkpoint_layer_t *checkpoint_layer = NULL;
  router_t router = {.layer = layer};
  if (layer->checkpoint == NULL)
    return fail(layer->command, "add --checkpoint DIR, or use --routing uniform",
                "--routing checkpoint needs a checkpoint");
  if (purr_checkpoint_load_layer(layer->checkpoint, layer->layer_idx, 0, 1, &checkpoint_layer, &err) != PURR_STATUS_OK)
    return fail_call(layer->command, "name a layer that has experts with --layer N", &err);
  int code = read_router(layer, checkpoint_layer, &router);
  if (code == EXIT_GOOD) {
    run_spread(layer->num_tokens, score_token, &router, "routing");
    for (int64_t t = 0; t < layer->num_tokens; t++) route_token(&router, t);
  }
  free(router.weight);
  free(router.bias);
  free(router.scores);
  free(router.keys);
  free(router.taken);
  purr_checkpoint_layer_destroy(checkpoint_layer);
  return code;
}

/* --------------------------------------------------------------------------------------------------------- from files
 */

int open_tensors(const layer_t *layer, const char *path, purr_checkpoint_t **out_file) {
  purr_error_t err = PURR_ERROR_INIT;
  if (purr_checkpoint_open(layer->context, path, out_file, &err) == PURR_STATUS_OK) return EXIT_GOOD;
  return fail_call(layer->command, "give a .safetensors file that can be read", &err);
}

bool find_input(const purr_checkpoint_t *file, const char *name, purr_tensor_t *out_tensor) {
  char input_name[64];
  snprintf(input_name, sizeof input_name, "input.%s", name);
  for (int i = 0; i < 2; i++) {
    *out_tensor = (purr_tensor_t){.struct_size = sizeof *out_tensor};
    if (purr_checkpoint_find(file, i == 0 ? name : input_name, out_tensor, NULL) == PURR_STATUS_OK) return true;
  }
  return false;
}

/* Finds [T, columns] of a type that is a number, or an id. */
static int find_rows(const layer_t *layer, const purr_checkpoint_t *file, const char *path, const char *name,
                     int64_t columns, bool is_id, purr_tensor_t *out_tensor) {
  const char *next = "see which tensors are read with: purr verify --help";
  if (!find_input(file, name, out_tensor)) return fail(layer->command, next, "%s has no tensor input.%s", path, name);
  bool is_good = is_id ? out_tensor->dtype == PURR_DTYPE_INT32 || out_tensor->dtype == PURR_DTYPE_INT64
                       : tensor_is_number(out_tensor);
  if (!is_good)
    return fail(layer->command, next, "%s: input.%s is %s, allowed are %s", path, name, dtype_name(out_tensor->dtype),
                is_id ? "I32 and I64" : "BF16, F32 and F64");
  if (out_tensor->num_dims != 2 || out_tensor->shape[0] != layer->num_tokens || out_tensor->shape[1] != columns)
    return fail(layer->command, next, "%s: input.%s has shape %s, this layer needs [%lld, %lld]", path, name,
                SHAPE_TEXT(out_tensor), (long long)layer->num_tokens, (long long)columns);
  return EXIT_GOOD;
}

int rows_from_file(const layer_t *layer, const purr_checkpoint_t *file, const char *path, const char *name,
                   uint16_t *values) {
  purr_tensor_t tensor;
  int code = find_rows(layer, file, path, name, layer->shape.hidden_size, false, &tensor);
  if (code != EXIT_GOOD) return code;
  for (int64_t i = 0; i < tensor_count(&tensor); i++) values[i] = bf16_from_float((float)tensor_element(&tensor, i));
  return EXIT_GOOD;
}

int route_from_file(layer_t *layer, const purr_checkpoint_t *file, const char *path) {
  purr_tensor_t ids, weights;
  int code = find_rows(layer, file, path, "topk_ids", layer->shape.top_k, true, &ids);
  if (code == EXIT_GOOD) code = find_rows(layer, file, path, "topk_weights", layer->shape.top_k, false, &weights);
  if (code != EXIT_GOOD) return code;
  for (int64_t i = 0; i < tensor_count(&ids); i++) {
    const char *data = ids.data;
    int32_t narrow;
    if (ids.dtype == PURR_DTYPE_INT64) {
      memcpy(&layer->topk_ids[i], data + i * 8, 8);
    } else {
      memcpy(&narrow, data + i * 4, 4);
      layer->topk_ids[i] = narrow;
    }
    layer->topk_weights[i] = (float)tensor_element(&weights, i);
  }
  return EXIT_GOOD;
}
