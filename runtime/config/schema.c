/* The table of keys and what can be read off it. */
#include "config/schema.h"

#include <stdio.h>

#include "config/config.h"

#define FIELD(field) .offset = offsetof(purr_layer_desc_t, field), .num_bytes = sizeof((purr_layer_desc_t *)0)->field
#define TOP(key_name) .path = #key_name, .name = #key_name, .block = -1
#define SHARED(key_name) .path = "shared_expert." #key_name, .name = #key_name, .block = PURR__KEY_SHARED_EXPERT
#define MXFP8(key_name) .path = "mxfp8." #key_name, .name = #key_name, .block = PURR__KEY_MXFP8
#define KERNELS(key_name) .path = "kernels." #key_name, .name = #key_name, .block = PURR__KEY_KERNELS
#define MOST_ROWS (INT32_MAX / PURR__ROW_ALIGNMENT * PURR__ROW_ALIGNMENT)

const purr__key_t purr__keys[PURR__NUM_KEYS] = {
    [PURR__KEY_NAME] = {TOP(name), .kind = PURR__KEY_TEXT, .meaning = "what messages and tables call the layer"},
    [PURR__KEY_HIDDEN_SIZE] = {TOP(hidden_size), .kind = PURR__KEY_INTEGER, FIELD(hidden_size), .required = true,
                               .min = 8, .max = 1 << 20, .multiple = 8, .elsewhere = "d_model n_embd dim",
                               .meaning = "H, features of a token"},
    [PURR__KEY_INTERMEDIATE_SIZE] = {TOP(intermediate_size), .kind = PURR__KEY_INTEGER, FIELD(intermediate_size),
                                     .required = true, .min = 8, .max = 1 << 20, .multiple = 8,
                                     .elsewhere = "moe_intermediate_size moe_ffn_hidden_size ffn_hidden_size",
                                     .meaning = "I, features inside one routed expert"},
    [PURR__KEY_NUM_EXPERTS] = {TOP(num_experts), .kind = PURR__KEY_INTEGER, FIELD(num_experts), .required = true,
                               .min = 1, .max = PURR__MAX_EXPERTS, .elsewhere = "n_routed_experts num_local_experts",
                               .meaning = "E, routed experts over all ranks"},
    [PURR__KEY_TOP_K] = {TOP(top_k), .kind = PURR__KEY_INTEGER, FIELD(top_k), .required = true, .min = 1, .max = 64,
                         .elsewhere = "num_experts_per_tok num_experts_per_token moe_router_topk moe_topk",
                         .meaning = "K, slots of a token"},
    [PURR__KEY_SHARED_EXPERT] = {TOP(shared_expert), .kind = PURR__KEY_BLOCK, .elsewhere = "shared_experts",
                                 .meaning = "an expert that every token takes, always BF16"},
    [PURR__KEY_SHARED_INTERMEDIATE_SIZE] = {SHARED(intermediate_size), .kind = PURR__KEY_INTEGER,
                                            FIELD(shared_intermediate_size), .required = true, .min = 8, .max = 1 << 20,
                                            .multiple = 8,
                                            .elsewhere = "shared_expert_intermediate_size shared_intermediate_size",
                                            .meaning = "S, features inside the shared expert"},
    [PURR__KEY_SHARED_GATE] = {SHARED(gate), .kind = PURR__KEY_WORD, FIELD(shared_gate),
                               .words = {{"none", PURR_SHARED_GATE_NONE}, {"sigmoid", PURR_SHARED_GATE_SIGMOID}},
                               .elsewhere = "shared_gate", .meaning = "factor on its output: none or sigmoid(x . w)"},
    [PURR__KEY_SWIGLU_LIMIT] = {TOP(swiglu_limit), .kind = PURR__KEY_REAL, FIELD(swiglu_limit),
                                .meaning = "clamp of g and u before SwiGLU, 0 for none"},
    [PURR__KEY_PRECISION] = {TOP(precision), .kind = PURR__KEY_WORD, FIELD(precision),
                             .words = {{"bf16", PURR_PRECISION_BF16}, {"mxfp8", PURR_PRECISION_MXFP8}},
                             .elsewhere = "dtype torch_dtype", .meaning = "of the routed experts' products"},
    [PURR__KEY_MXFP8] = {TOP(mxfp8), .kind = PURR__KEY_BLOCK, .meaning = "how precision mxfp8 scales"},
    [PURR__KEY_MXFP8_SCALE_RULE] = {MXFP8(scale_rule), .kind = PURR__KEY_WORD, FIELD(mxfp8_scale_rule),
                                    .words = {{"rceil", PURR_SCALE_RULE_RCEIL}, {"floor", PURR_SCALE_RULE_FLOOR}},
                                    .meaning =
                                        "the power of two of a block: rceil never saturates, floor is the OCP text"},
    [PURR__KEY_MXFP8_ACTIVATIONS] = {MXFP8(activation_granularity), .kind = PURR__KEY_WORD,
                                     FIELD(mxfp8_activation_granularity),
                                     .words = {{"1x32", PURR_GRANULARITY_1X32}, {"1x128", PURR_GRANULARITY_1X128}},
                                     .meaning = "values of a token or gradient row that share a scale"},
    [PURR__KEY_MXFP8_WEIGHTS] = {MXFP8(weight_granularity), .kind = PURR__KEY_WORD, FIELD(mxfp8_weight_granularity),
                                 .words = {{"1x32", PURR_GRANULARITY_1X32},
                                           {"32x32", PURR_GRANULARITY_32X32},
                                           {"1x128", PURR_GRANULARITY_1X128},
                                           {"128x128", PURR_GRANULARITY_128X128}},
                                 .meaning = "values of a weight matrix that share a scale"},
    [PURR__KEY_BACKEND] = {TOP(backend), .kind = PURR__KEY_WORD, FIELD(backend),
                           .words = {{"auto", PURR_BACKEND_AUTO},
                                     {"host", PURR_BACKEND_HOST},
                                     {"staged", PURR_BACKEND_STAGED},
                                     {"mega", PURR_BACKEND_MEGA}},
                           .meaning = "auto takes the fastest that fits"},
    [PURR__KEY_PACKAGE_DIGEST] = {TOP(package_digest), .kind = PURR__KEY_DIGEST,
                                  .meaning = "SHA-256 of the manifest that GPU kernels must come from"},
    [PURR__KEY_KERNELS] = {TOP(kernels), .kind = PURR__KEY_BLOCK,
                           .meaning = "stages that kernels of Triton's stand in for"},
    [PURR__KEY_KERNELS_ACTIVATION] = {KERNELS(activation), .kind = PURR__KEY_KERNEL,
                                      .meaning = "a from g and u, in place of SwiGLU"},
    [PURR__KEY_KERNELS_GROUPED_GEMM] = {KERNELS(grouped_gemm), .kind = PURR__KEY_KERNEL,
                                        .meaning = "the products of the routed experts; needs activation too"},
    [PURR__KEY_KERNELS_COMBINE] = {KERNELS(combine), .kind = PURR__KEY_KERNEL, .meaning = "the sum over slots"},
    [PURR__KEY_KERNELS_QUANTISE] = {KERNELS(quantise), .kind = PURR__KEY_KERNEL,
                                    .meaning = "BF16 to MXFP8, what purr_mxfp8_quantize_on runs"},
    [PURR__KEY_MAX_TOKENS] = {TOP(max_tokens), .kind = PURR__KEY_INTEGER, FIELD(max_tokens), .min = 1, .max = INT32_MAX,
                              .default_value = PURR__DEFAULT_MAX_TOKENS,
                              .meaning = "most tokens of one rank in one call"},
    [PURR__KEY_NUM_RANKS] = {TOP(num_ranks), .kind = PURR__KEY_INTEGER, FIELD(num_ranks), .min = 1, .max = 4096,
                             .default_value = 1,
                             .elsewhere = "ep_size expert_model_parallel_size expert_parallel_size world_size",
                             .meaning = "R, ranks that share the experts; divides num_experts"},
    [PURR__KEY_TIMEOUT_MS] = {TOP(timeout_ms), .kind = PURR__KEY_INTEGER, FIELD(timeout_ms), .min = 1, .max = INT32_MAX,
                              .default_value = PURR__DEFAULT_TIMEOUT_MS,
                              .meaning = "longest wait for another rank, in milliseconds"},
    [PURR__KEY_ACTIVATION_MEMORY] = {TOP(activation_memory), .kind = PURR__KEY_BYTES, FIELD(activation_memory),
                                     .min = 1, .max = INT64_MAX, .words = {{"full", 0}, {"none", -1}},
                                     .meaning = "bytes of g and u kept for backward; the rest is computed again"},
    [PURR__KEY_MINIBATCH_ROWS] = {TOP(minibatch_rows), .kind = PURR__KEY_INTEGER, FIELD(minibatch_rows),
                                  .min = PURR__ROW_ALIGNMENT, .max = MOST_ROWS, .multiple = PURR__ROW_ALIGNMENT,
                                  .words = {{"auto", 0}},
                                  .meaning = "rows that are computed while the next ones travel"},
    [PURR__KEY_MACROBATCH_ROWS] = {TOP(macrobatch_rows), .kind = PURR__KEY_INTEGER, FIELD(macrobatch_rows),
                                   .min = 2 * PURR__ROW_ALIGNMENT, .max = MOST_ROWS, .multiple = PURR__ROW_ALIGNMENT,
                                   .words = {{"auto", 0}}, .meaning = "rows of the ring, at least two minibatches"},
    [PURR__KEY_NUM_COMM_SMS] = {TOP(num_comm_sms), .kind = PURR__KEY_INTEGER, FIELD(num_comm_sms), .min = 1,
                                .max = 1024, .words = {{"auto", 0}},
                                .meaning = "SMs that move rows between ranks; none when num_ranks is 1"},
};

/* ---- names ---- */

int purr__key_find(int block, const char *name, uint64_t length) {
  for (int i = 0; i < PURR__NUM_KEYS; i++)
    if (purr__keys[i].block == block && strlen(purr__keys[i].name) == length &&
        memcmp(purr__keys[i].name, name, length) == 0)
      return i;
  return -1;
}

/* Whether `name` is one of the words of a space-separated list. */
static bool is_listed(const char *list, const char *name, uint64_t length) {
  while (list != NULL && *list != '\0') {
    uint64_t word = strcspn(list, " ");
    if (word == length && memcmp(list, name, length) == 0) return true;
    list += word;
    list += strspn(list, " ");
  }
  return false;
}

/* How one reads a key at a glance: without case, and "-" for "_". */
static char folded(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 'a' - 'A') : c == '-' ? '_' : c; }

/* Letters to insert, remove, replace or swap with their neighbour to get from one name to the other. Names too long for
 * a key are far from everything. */
static int edit_distance(const char *a, uint64_t a_length, const char *b, uint64_t b_length) {
  enum { LONGEST = 48 };
  int row[3][LONGEST + 1]; /* the distances of the last two prefixes of `a`, and of this one */
  if (a_length > LONGEST || b_length > LONGEST) return INT32_MAX;
  for (int j = 0; j <= (int)b_length; j++) row[0][j] = j;
  for (int i = 1; i <= (int)a_length; i++) {
    int *now = row[i % 3], *last = row[(i + 2) % 3], *before_last = row[(i + 1) % 3];
    now[0] = i;
    for (int j = 1; j <= (int)b_length; j++) {
      bool same = folded(a[i - 1]) == folded(b[j - 1]);
      int best = last[j - 1] + (same ? 0 : 1);
      if (last[j] + 1 < best) best = last[j] + 1;
      if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
      bool swapped = i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) && folded(a[i - 2]) == folded(b[j - 1]);
      if (swapped && before_last[j - 2] + 1 < best) best = before_last[j - 2] + 1;
      now[j] = best;
    }
  }
  return row[a_length % 3][b_length];
}

int purr__key_nearest(int block, const char *name, uint64_t length) {
  int nearest = -1, nearest_cost = 0;
  for (int i = 0; i < PURR__NUM_KEYS; i++) {
    const purr__key_t *key = &purr__keys[i];
    if (is_listed(key->elsewhere, name, length) || is_listed(key->path, name, length)) return i;
    uint64_t key_length = strlen(key->name);
    int distance = edit_distance(name, length, key->name, key_length);
    if (distance > (int)key_length / 3) continue; /* too much is wrong: no guess */
    int cost = 2 * distance + (key->block == block ? 0 : 1);
    if (nearest < 0 || cost < nearest_cost) {
      nearest = i;
      nearest_cost = cost;
    }
  }
  return nearest;
}

/* ---- values ---- */

char *purr__key_kernel(const purr__key_t *key, purr__texts_t *texts) {
  return key == &purr__keys[PURR__KEY_KERNELS_ACTIVATION]     ? texts->activation
         : key == &purr__keys[PURR__KEY_KERNELS_GROUPED_GEMM] ? texts->grouped_gemm
         : key == &purr__keys[PURR__KEY_KERNELS_COMBINE]      ? texts->combine
                                                              : texts->quantise;
}

bool purr__texts_have_kernels(const purr__texts_t *texts) {
  return texts->activation[0] != '\0' || texts->grouped_gemm[0] != '\0' || texts->combine[0] != '\0' ||
         texts->quantise[0] != '\0';
}

/* "a, b or c": the words of a key; "a and b": the keys of a block. */
static uint64_t list_items(char *out, uint64_t capacity, const purr__key_t *key) {
  const char *items[PURR__NUM_KEYS];
  int num_items = 0;
  for (int i = 0; i < 4 && key->words[i].word != NULL; i++) items[num_items++] = key->words[i].word;
  for (int i = 0; key->kind == PURR__KEY_BLOCK && i < PURR__NUM_KEYS; i++)
    if (purr__keys[i].block == key - purr__keys) items[num_items++] = purr__keys[i].name;
  if (key->kind == PURR__KEY_INTEGER || key->kind == PURR__KEY_BYTES) items[num_items++] = "";
  const char *last = key->kind == PURR__KEY_BLOCK ? " and " : " or ";
  uint64_t used = 0;
  for (int i = 0; i < num_items && used < capacity; i++)
    used += (uint64_t)snprintf(out + used, capacity - used, "%s%s",
                               i == 0               ? ""
                               : i == num_items - 1 ? last
                                                    : ", ",
                               items[i]);
  return used < capacity ? used : capacity - 1;
}

const char *purr__key_allowed(char *out, uint64_t capacity, const purr__key_t *key) {
  static const char block[] = "a nested block with the keys ";
  uint64_t used = (uint64_t)snprintf(out, capacity, "%s", key->kind == PURR__KEY_BLOCK ? block : "");
  used += list_items(out + used, capacity - used, key);
  char *rest = out + used;
  capacity -= used;
  if (key->kind == PURR__KEY_TEXT)
    snprintf(rest, capacity, "text of 1 to 63 printable bytes");
  else if (key->kind == PURR__KEY_KERNEL)
    snprintf(rest, capacity, "none, or the name of a Triton kernel, 1 to 63 letters, digits, '.', '_' and '-'");
  else if (key->kind == PURR__KEY_DIGEST)
    snprintf(rest, capacity, "any, or the 64 hexadecimal digits of a manifest's SHA-256, as purr inspect shows them");
  else if (key->kind == PURR__KEY_INTEGER && key->multiple > 1)
    snprintf(rest, capacity, "a plain decimal integer, a multiple of %lld from %lld to %lld", (long long)key->multiple,
             (long long)key->min, (long long)key->max);
  else if (key->kind == PURR__KEY_INTEGER)
    snprintf(rest, capacity, "a plain decimal integer from %lld to %lld", (long long)key->min, (long long)key->max);
  else if (key->kind == PURR__KEY_BYTES)
    snprintf(rest, capacity, "a plain decimal number of bytes from 1, with or without a unit, such as 512MiB or 8GiB");
  else if (key->kind == PURR__KEY_REAL)
    snprintf(rest, capacity, "0 for none, or a positive decimal number such as 7 or 1.5e1 in the range of float32");
  return out;
}

bool purr__key_allows(const purr__key_t *key, int64_t value) {
  for (int i = 0; i < 4 && key->words[i].word != NULL; i++)
    if (key->words[i].value == value) return true;
  if (key->kind != PURR__KEY_INTEGER && key->kind != PURR__KEY_BYTES) return false;
  return value >= key->min && value <= key->max && (key->multiple < 2 || value % key->multiple == 0);
}

int64_t purr__key_get(const purr__key_t *key, const purr_layer_desc_t *layer) {
  const char *field = (const char *)layer + key->offset;
  int32_t narrow;
  int64_t wide;
  if (key->num_bytes == sizeof wide) return memcpy(&wide, field, sizeof wide), wide;
  return memcpy(&narrow, field, sizeof narrow), narrow;
}

void purr__key_set(const purr__key_t *key, purr_layer_desc_t *layer, int64_t value) {
  char *field = (char *)layer + key->offset;
  int32_t narrow = (int32_t)value;
  if (key->num_bytes == sizeof value)
    memcpy(field, &value, sizeof value);
  else
    memcpy(field, &narrow, sizeof narrow);
}
