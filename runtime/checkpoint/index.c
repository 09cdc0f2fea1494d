/* model.safetensors.index.json: {"metadata": ..., "weight_map": {"TENSOR": "SHARD.safetensors", ...}}. */
#include <stdio.h>

#include "base/json.h"
#include "checkpoint/checkpoint.h"

typedef purr_status_t (*pair_fn)(purr_checkpoint_t *checkpoint, purr__json_t *json, const char *tensor,
                                 uint64_t tensor_length, const char *shard);

/* A shard is a plain file name: nothing that could lead out of the folder. */
static purr_status_t read_shard_name(purr__json_t *json, char out_name[256]) {
  static const char ending[] = ".safetensors";
  if (!purr__json_take(json, PURR__JSON_STRING, "a shard in weight_map")) return json->status;
  uint64_t length = 0;
  char decoded[6 * 256];
  if (json->token_length <= sizeof decoded) length = purr__json_decode(json, decoded);
  bool good = length >= sizeof ending && length < 256 && memchr(decoded, '/', length) == NULL &&
              memchr(decoded, '\0', length) == NULL &&
              memcmp(decoded + length - (sizeof ending - 1), ending, sizeof ending - 1) == 0;
  if (!good) {
    char found[100];
    return purr__json_fail(json, "the shard '%s' is no plain file name that ends in %s",
                           purr__printable(found, sizeof found, json->token, json->token_length), ending);
  }
  memcpy(out_name, decoded, length);
  out_name[length] = '\0';
  return PURR_STATUS_OK;
}

static purr_status_t read_weight_map(purr_checkpoint_t *checkpoint, purr__json_t *json, pair_fn pair) {
  if (!purr__json_take(json, PURR__JSON_OBJECT_BEGIN, "weight_map")) return json->status;
  for (int64_t num = 0; purr__json_next(json) == PURR__JSON_KEY; num++) {
    if (num == PURR__MAX_TENSORS)
      return purr__json_fail(json, "weight_map has more than %d tensors, the most allowed", PURR__MAX_TENSORS);
    char decoded[6 * PURR__MAX_TENSOR_NAME], shard[256];
    if (json->token_length > sizeof decoded)
      return purr__json_fail(json, "a tensor name in weight_map has more than %d bytes", PURR__MAX_TENSOR_NAME);
    uint64_t length = purr__json_decode(json, decoded);
    if (read_shard_name(json, shard) != PURR_STATUS_OK) return json->status;
    if (pair(checkpoint, json, decoded, length, shard) != PURR_STATUS_OK) return json->status;
  }
  return json->status;
}

static purr_status_t read_index(purr_checkpoint_t *checkpoint, const char *text, uint64_t num_bytes, const char *label,
                                pair_fn pair, purr_error_t *err) {
  purr__json_t json;
  bool has_map = false;
  purr__json_begin(&json, text, num_bytes, label, err);
  if (!purr__json_take(&json, PURR__JSON_OBJECT_BEGIN, "the index")) return json.status;
  while (purr__json_next(&json) == PURR__JSON_KEY) {
    if (!purr__json_is(&json, "weight_map")) {
      purr__json_skip(&json);
      continue;
    }
    if (has_map) return purr__json_fail(&json, "there are two weight_map");
    has_map = true;
    if (read_weight_map(checkpoint, &json, pair) != PURR_STATUS_OK) return json.status;
  }
  purr__json_take(&json, PURR__JSON_END, "what comes behind the index");
  if (json.status == PURR_STATUS_OK && !has_map) return purr__json_fail(&json, "there is no weight_map");
  return json.status;
}

/* ---- before the shards are read ---- */

/* Where `name` stands or belongs in the sorted list. */
static int32_t find_shard(const purr_checkpoint_t *checkpoint, const char *name, bool *out_found) {
  int32_t low = 0, high = checkpoint->num_shards;
  *out_found = false;
  while (low < high) {
    int32_t middle = (low + high) / 2;
    int order = strcmp(checkpoint->shards[middle].name, name);
    if (order == 0) {
      *out_found = true;
      return middle;
    }
    if (order < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static purr_status_t collect_shard(purr_checkpoint_t *checkpoint, purr__json_t *json, const char *tensor,
                                   uint64_t tensor_length, const char *name) {
  (void)tensor;
  (void)tensor_length;
  bool found;
  int32_t at = find_shard(checkpoint, name, &found);
  if (found) return PURR_STATUS_OK;
  int32_t num = checkpoint->num_shards;
  if (num == PURR__MAX_SHARDS) return purr__json_fail(json, "there are more than %d shards", PURR__MAX_SHARDS);
  if ((num & (num - 1)) == 0) { /* full at each power of two */
    uint64_t bytes = (num > 0 ? 2 * (uint64_t)num : 1) * sizeof(purr__shard_t);
    purr__shard_t *shards = purr__reallocate(checkpoint->object.context, checkpoint->shards, bytes);
    if (shards == NULL) return json->status = purr__fail_memory(json->err, "the list of shards", bytes);
    checkpoint->shards = shards;
  }
  purr__shard_t *shard = &checkpoint->shards[at];
  memmove(shard + 1, shard, (uint64_t)(num - at) * sizeof *shard);
  *shard = (purr__shard_t){.fd = -1, .label = purr__label(checkpoint->path, name)};
  snprintf(shard->name, sizeof shard->name, "%s", name);
  checkpoint->num_shards++;
  return PURR_STATUS_OK;
}

purr_status_t purr__index_read_shards(purr_checkpoint_t *checkpoint, const char *text, uint64_t num_bytes,
                                      const char *label, purr_error_t *err) {
  purr_status_t status = read_index(checkpoint, text, num_bytes, label, collect_shard, err);
  if (status == PURR_STATUS_OK && checkpoint->num_shards == 0)
    return purr__fail(err, PURR_STATUS_CHECKPOINT, "%s: weight_map is empty", label);
  return status;
}

/* ---- behind ---- */

static purr_status_t check_tensor(purr_checkpoint_t *checkpoint, purr__json_t *json, const char *tensor,
                                  uint64_t tensor_length, const char *shard) {
  char shown[100];
  bool found;
  int32_t shard_idx = find_shard(checkpoint, shard, &found);
  if (!found) return purr__json_fail(json, "the index changed while it was read");
  purr__entry_t *entry = purr__directory_find(&checkpoint->tensors, tensor, tensor_length);
  if (entry == NULL && checkpoint->shards[shard_idx].fd < 0) {
    if (checkpoint->tensors.num_entries + checkpoint->absent.num_entries >= PURR__MAX_TENSORS)
      return purr__json_fail(json, "there are more than %d tensors, the most allowed", PURR__MAX_TENSORS);
    json->status = purr__directory_add(&checkpoint->absent, json->name, tensor, tensor_length, &entry, json->err);
    if (json->status == PURR_STATUS_OK) entry->file_idx = shard_idx;
    return json->status;
  }
  if (entry == NULL || entry->file_idx != shard_idx)
    return purr__json_fail(json, "tensor '%s' should be in '%.100s', but is %s%.100s",
                           purr__printable(shown, sizeof shown, tensor, tensor_length), shard,
                           entry == NULL ? "not there" : "in ",
                           entry == NULL ? "" : checkpoint->shards[entry->file_idx].name);
  if (entry->is_indexed)
    return purr__json_fail(json, "tensor '%s' is in weight_map twice",
                           purr__printable(shown, sizeof shown, tensor, tensor_length));
  entry->is_indexed = true;
  return PURR_STATUS_OK;
}

purr_status_t purr__index_check(purr_checkpoint_t *checkpoint, const char *text, uint64_t num_bytes, const char *label,
                                purr_error_t *err) {
  purr_status_t status = read_index(checkpoint, text, num_bytes, label, check_tensor, err);
  if (status != PURR_STATUS_OK) return status;
  purr__directory_t *absent = &checkpoint->absent;
  status = purr__directory_sort(absent, 0, purr__entry_before_by_name, err);
  for (int64_t i = 1; i < absent->num_entries && status == PURR_STATUS_OK; i++)
    if (strcmp(absent->entries[i - 1]->name, absent->entries[i]->name) == 0)
      status = purr__fail(err, PURR_STATUS_CHECKPOINT, "%s: tensor '%s' is in weight_map twice", label,
                          purr__shown(absent->entries[i]->name).text);
  return status;
}
