/* purr_checkpoint_describe: what a checkpoint holds, layer by layer, and what is missing. */
#include <stdio.h>

#include "base/number.h"
#include "checkpoint/matrix.h"
#include "checkpoint/safetensors.h"

#define MAX_LISTED_TENSORS 1000
#define MAX_LISTED_PROBLEMS 4
#define MAX_PROBLEMS 16 /* of one layer; then the rest of it is not looked at */

static const char *const role_names[PURR__NUM_ROLES] = {
    "gate_up", "gate",       "up", "down", "shared_gate", "shared_up", "shared_down", "shared_expert_gate",
    "router",  "router_bias"};

/* The tensors of one role in one layer. Plain numbers without padding, so that equal layers are equal
 * bytes. */
typedef struct row {
  int64_t num_tensors, num_bytes; /* scales included */
  int64_t shape[3], num_dims;
  int64_t dtype, scale_dtype;     /* of the first; MIXED where others differ */
  int64_t block_rows, block_cols; /* 0 without scales */
} row_t;
enum { MIXED = -1 };

typedef struct summary {
  row_t rows[PURR__NUM_ROLES];
  int64_t is_moe, num_problems;
  char problems[MAX_LISTED_PROBLEMS][512];
} summary_t;

typedef struct report {
  const purr_checkpoint_t *checkpoint;
  bool has_model;
  purr__model_t model;
  purr_error_t model_error;
  purr__text_t text;
} report_t;

/* ---- looking ---- */

static void add_tensor(row_t *row, const purr__matrix_t *matrix) {
  const purr__entry_t *entry = matrix->entry, *scales = matrix->scales;
  int64_t dtype = entry->dtype, scale_dtype = scales != NULL ? scales->dtype : PURR_DTYPE_NONE;
  if (row->num_tensors == 0) {
    row->dtype = dtype;
    row->scale_dtype = scale_dtype;
    row->num_dims = entry->num_dims;
    memcpy(row->shape, entry->shape, sizeof row->shape);
    row->block_rows = matrix->block_rows;
    row->block_cols = matrix->block_cols;
  } else if (dtype != row->dtype || scale_dtype != row->scale_dtype || matrix->block_rows != row->block_rows ||
             matrix->block_cols != row->block_cols) {
    row->dtype = MIXED;
  }
  row->num_tensors++;
  row->num_bytes += (int64_t)(entry->num_bytes + (scales != NULL ? scales->num_bytes : 0));
}

static purr_status_t find_tensor(const report_t *report, const purr__naming_t *naming, purr__role_t role,
                                 int64_t expert, const char *needed_by, purr__matrix_t *out_matrix, purr_error_t *err) {
  const purr__model_t *model = &report->model;
  if (role < PURR__ROLE_ROUTER)
    return purr__matrix_find(report->checkpoint, model, naming, role, expert, needed_by, out_matrix, err);
  purr__wanted_t wanted;
  purr__entry_t *entry = NULL;
  purr__naming_want(model, naming, role, 0, &wanted);
  purr_status_t status = purr__tensor_require(report->checkpoint, &wanted, needed_by, &entry, err);
  *out_matrix = (purr__matrix_t){.entry = entry};
  return status;
}

static void look_at_layer(const report_t *report, int64_t layer, summary_t *summary) {
  memset(summary, 0, sizeof *summary);
  summary->is_moe = purr__model_is_moe(&report->model, layer);
  if (!summary->is_moe) return;
  purr__naming_t naming;
  purr__naming_find(report->checkpoint, &report->model, layer, &naming);
  char needed_by[32];
  snprintf(needed_by, sizeof needed_by, "layer %lld", (long long)layer);
  for (int role = 0; role < PURR__NUM_ROLES; role++) {
    if (!purr__naming_has(&report->model, &naming, (purr__role_t)role)) continue;
    bool is_single = !purr__role_is_routed((purr__role_t)role) || naming.is_packed;
    int64_t num_tensors = is_single ? 1 : report->model.num_experts;
    for (int64_t expert = 0; expert < num_tensors && summary->num_problems < MAX_PROBLEMS; expert++) {
      purr__matrix_t matrix;
      purr_error_t err = PURR_ERROR_INIT;
      if (find_tensor(report, &naming, (purr__role_t)role, expert, needed_by, &matrix, &err) == PURR_STATUS_OK)
        add_tensor(&summary->rows[role], &matrix);
      else if (summary->num_problems++ < MAX_LISTED_PROBLEMS)
        memcpy(summary->problems[summary->num_problems - 1], err.message, sizeof err.message);
    }
  }
}

static int64_t layer_bytes(const summary_t *summary) {
  int64_t num_bytes = 0;
  for (int role = 0; role < PURR__NUM_ROLES; role++) num_bytes += summary->rows[role].num_bytes;
  return num_bytes;
}

static int64_t num_listed(const summary_t *summary) { return purr__min(summary->num_problems, MAX_LISTED_PROBLEMS); }

static uint64_t tensor_bytes(const purr_checkpoint_t *checkpoint) {
  uint64_t num_bytes = 0;
  for (int64_t i = 0; i < checkpoint->tensors.num_entries; i++) num_bytes += checkpoint->tensors.entries[i]->num_bytes;
  return num_bytes;
}

/* ---- text ---- */

static void add_dtype(purr__text_t *text, const row_t *row) {
  if (row->dtype == MIXED) {
    purr__text_add(text, "mixed");
    return;
  }
  purr__text_add(text, "%s", purr__safetensors_dtype_name((int32_t)row->dtype));
  if (row->scale_dtype != PURR_DTYPE_NONE)
    purr__text_add(text, ", %s scales %lldx%lld", purr__safetensors_dtype_name((int32_t)row->scale_dtype),
                   (long long)row->block_rows, (long long)row->block_cols);
}

static void add_layers_text(report_t *report, int64_t first, int64_t last, const summary_t *summary) {
  purr__text_t *text = &report->text;
  purr__text_add(text, first == last ? "\nlayer %lld" : "\nlayers %lld to %lld, each", (long long)first,
                 (long long)last);
  if (!summary->is_moe) {
    purr__text_add(text, ": dense\n");
    return;
  }
  purr__text_add(text, ": %lld experts, ", (long long)report->model.num_experts);
  purr__text_add_bytes(text, (uint64_t)layer_bytes(summary));
  purr__text_add(text, "\n  %-18s %7s  %-22s %12s  %s\n", "role", "tensors", "shape", "bytes", "type");
  for (int role = 0; role < PURR__NUM_ROLES; role++) {
    const row_t *row = &summary->rows[role];
    if (row->num_tensors == 0) continue;
    purr__text_add(text, "  %-18s %7lld  %-22s %12lld  ", role_names[role], (long long)row->num_tensors,
                   purr__shown_shape(row->shape, (int32_t)row->num_dims).text, (long long)row->num_bytes);
    add_dtype(text, row);
    purr__text_add(text, "\n");
  }
  for (int64_t i = 0; i < num_listed(summary); i++) purr__text_add(text, "  missing: %s\n", summary->problems[i]);
  if (summary->num_problems > MAX_LISTED_PROBLEMS)
    purr__text_add(text, "  missing: %lld more%s\n", (long long)summary->num_problems - MAX_LISTED_PROBLEMS,
                   summary->num_problems == MAX_PROBLEMS ? " at least" : "");
}

static void add_model_text(report_t *report) {
  const purr__model_t *model = &report->model;
  const purr_router_desc_t *router = &model->router;
  purr__text_t *text = &report->text;
  int64_t num_moe = 0;
  for (int64_t layer = 0; layer < model->num_layers; layer++) num_moe += purr__model_is_moe(model, layer);
  purr__text_add(text, "model      %s, %lld decoder layers, %lld with experts%s%s\n", model->type,
                 (long long)model->num_layers, (long long)num_moe,
                 model->quantization[0] != '\0' ? ", quantised: " : "", model->quantization);
  purr__text_add(text, "layer      hidden %lld, expert %lld, %lld experts, top %lld", (long long)model->hidden_size,
                 (long long)model->intermediate_size, (long long)model->num_experts, (long long)model->top_k);
  if (model->shared_intermediate_size > 0)
    purr__text_add(text, ", shared expert %lld%s", (long long)model->shared_intermediate_size,
                   model->has_shared_gate ? " with sigmoid gate" : "");
  if (model->swiglu_limit > 0.0f) {
    purr__text_add(text, ", swiglu_limit ");
    purr__text_add_fp32(text, model->swiglu_limit);
  }
  purr__text_add(text, "\nrouter     %s%s", router->scoring == PURR_ROUTER_SIGMOID ? "sigmoid" : "softmax",
                 model->has_router_bias ? " with a bias for choosing" : "");
  if (router->num_groups > 1)
    purr__text_add(text, ", %d of %d groups by %s", router->num_top_groups, router->num_groups,
                   router->group_top == 2 ? "their two best" : "their best");
  purr__text_add(text, "%s, times ", router->normalize ? ", normalised" : "");
  purr__text_add_fp32(text, router->scaling);
  purr__text_add(text, "\n");
}

static void describe_text(report_t *report) {
  const purr_checkpoint_t *checkpoint = report->checkpoint;
  purr__text_t *text = &report->text;
  purr__text_add(text, "checkpoint %s\n", purr__label(checkpoint->path, "").text);
  int32_t num_present = 0;
  for (int32_t i = 0; i < checkpoint->num_shards; i++) num_present += checkpoint->shards[i].fd >= 0;
  purr__text_add(text, "files      %d of %d, %lld tensors, ", num_present, checkpoint->num_shards,
                 (long long)checkpoint->tensors.num_entries);
  purr__text_add_bytes(text, tensor_bytes(checkpoint));
  purr__text_add(text, "\n");
  for (int32_t i = 0; i < checkpoint->num_shards; i++)
    if (checkpoint->shards[i].fd < 0)
      purr__text_add(text, "missing    %s\n", purr__shown(checkpoint->shards[i].name).text);
  if (!report->has_model) {
    purr__text_add(text, "model      unknown: %s\n\n", report->model_error.message);
    for (int64_t i = 0; i < purr__min(checkpoint->tensors.num_entries, MAX_LISTED_TENSORS); i++) {
      const purr__entry_t *entry = checkpoint->tensors.entries[i];
      purr__text_add(text, "  %-48s %-8s %-24s %12llu\n", purr__shown(entry->name).text,
                     purr__safetensors_dtype_name(entry->dtype), purr__shown_shape(entry->shape, entry->num_dims).text,
                     (unsigned long long)entry->num_bytes);
    }
    if (checkpoint->tensors.num_entries > MAX_LISTED_TENSORS)
      purr__text_add(text, "  and %lld more\n", (long long)checkpoint->tensors.num_entries - MAX_LISTED_TENSORS);
    return;
  }
  add_model_text(report);
  int64_t next;
  for (int64_t first = 0; first < report->model.num_layers;
       first = next) { /* one paragraph for layers that are alike */
    summary_t summary, other;
    look_at_layer(report, first, &summary);
    for (next = first + 1; next < report->model.num_layers; next++) {
      look_at_layer(report, next, &other);
      if (memcmp(&summary, &other, sizeof summary) != 0) break;
    }
    add_layers_text(report, first, next - 1, &summary);
  }
}

/* ---- JSON ---- */

static void add_string(purr__text_t *text, const char *key, const char *value) {
  purr__text_add(text, "\"%s\": ", key);
  purr__text_add_json_string(text, value);
}

static void add_shape_json(purr__text_t *text, const int64_t *shape, int64_t num_dims) {
  purr__text_add(text, "\"shape\": [");
  for (int64_t i = 0; i < num_dims; i++) purr__text_add(text, "%s%lld", i > 0 ? ", " : "", (long long)shape[i]);
  purr__text_add(text, "]");
}

static void add_model_json(report_t *report) {
  const purr__model_t *model = &report->model;
  const purr_router_desc_t *router = &model->router;
  purr__text_t *text = &report->text;
  purr__text_add(text, "  \"model\": {");
  add_string(text, "type", model->type);
  purr__text_add(text, ", ");
  add_string(text, "quantization", model->quantization);
  purr__text_add(text,
                 ", \"num_layers\": %lld, \"hidden_size\": %lld, \"intermediate_size\": %lld, \"num_experts\": %lld, "
                 "\"top_k\": %lld, \"shared_intermediate_size\": %lld, \"shared_gate\": %s, \"swiglu_limit\": ",
                 (long long)model->num_layers, (long long)model->hidden_size, (long long)model->intermediate_size,
                 (long long)model->num_experts, (long long)model->top_k, (long long)model->shared_intermediate_size,
                 model->has_shared_gate ? "\"sigmoid\"" : "null");
  purr__text_add_fp32(text, model->swiglu_limit);
  purr__text_add(text,
                 ",\n    \"router\": {\"scoring\": \"%s\", \"bias\": %s, \"num_groups\": %d, \"num_top_groups\": %d, "
                 "\"group_top\": %d, \"normalize\": %s, \"scaling\": ",
                 router->scoring == PURR_ROUTER_SIGMOID ? "sigmoid" : "softmax",
                 model->has_router_bias ? "true" : "false", router->num_groups, router->num_top_groups,
                 router->group_top, router->normalize ? "true" : "false");
  purr__text_add_fp32(text, router->scaling);
  purr__text_add(text, "}},\n");
}

static void add_layer_json(report_t *report, int64_t layer, const summary_t *summary) {
  purr__text_t *text = &report->text;
  purr__text_add(text, "    {\"layer\": %lld, \"moe\": %s, \"bytes\": %lld, \"num_missing\": %lld, \"missing\": [",
                 (long long)layer, summary->is_moe ? "true" : "false", (long long)layer_bytes(summary),
                 (long long)summary->num_problems);
  for (int64_t i = 0; i < num_listed(summary); i++) {
    purr__text_add(text, i > 0 ? ", " : "");
    purr__text_add_json_string(text, summary->problems[i]);
  }
  purr__text_add(text, "], \"tensors\": [");
  const char *separator = "";
  for (int role = 0; role < PURR__NUM_ROLES; role++) {
    const row_t *row = &summary->rows[role];
    if (row->num_tensors == 0) continue;
    purr__text_add(text, "%s\n      {\"role\": \"%s\", \"num_tensors\": %lld, ", separator, role_names[role],
                   (long long)row->num_tensors);
    add_shape_json(text, row->shape, row->num_dims);
    purr__text_add(text, ", \"dtype\": \"%s\"",
                   row->dtype == MIXED ? "mixed" : purr__safetensors_dtype_name((int32_t)row->dtype));
    if (row->scale_dtype != PURR_DTYPE_NONE)
      purr__text_add(text, ", \"scale_dtype\": \"%s\", \"scale_block\": [%lld, %lld]",
                     purr__safetensors_dtype_name((int32_t)row->scale_dtype), (long long)row->block_rows,
                     (long long)row->block_cols);
    purr__text_add(text, ", \"bytes\": %lld}", (long long)row->num_bytes);
    separator = ",";
  }
  purr__text_add(text, "]}%s\n", layer + 1 < report->model.num_layers ? "," : "");
}

static void add_tensors_json(report_t *report) {
  const purr__directory_t *tensors = &report->checkpoint->tensors;
  purr__text_t *text = &report->text;
  int64_t num = purr__min(tensors->num_entries, MAX_LISTED_TENSORS);
  purr__text_add(text, "  \"model\": null,\n  ");
  add_string(text, "model_error", report->model_error.message);
  purr__text_add(text, ",\n  \"num_tensors_not_listed\": %lld,\n  \"tensors\": [\n",
                 (long long)(tensors->num_entries - num));
  for (int64_t i = 0; i < num; i++) {
    const purr__entry_t *entry = tensors->entries[i];
    purr__text_add(text, "    {");
    add_string(text, "name", entry->name);
    purr__text_add(text, ", \"dtype\": \"%s\", ", purr__safetensors_dtype_name(entry->dtype));
    add_shape_json(text, entry->shape, purr__min(entry->num_dims, 4));
    purr__text_add(text, ", \"bytes\": %llu}%s\n", (unsigned long long)entry->num_bytes, i + 1 < num ? "," : "");
  }
  purr__text_add(text, "  ]\n}\n");
}

static void describe_json(report_t *report) {
  const purr_checkpoint_t *checkpoint = report->checkpoint;
  purr__text_t *text = &report->text;
  purr__text_add(text, "{\n  ");
  add_string(text, "path", purr__label(checkpoint->path, "").text);
  purr__text_add(text, ",\n  \"files\": [");
  for (int32_t i = 0; i < checkpoint->num_shards; i++) {
    const purr__shard_t *shard = &checkpoint->shards[i];
    purr__text_add(text, "%s{", i > 0 ? ", " : "");
    add_string(text, "name", purr__shown(shard->name).text);
    purr__text_add(text, ", \"present\": %s, \"bytes\": %llu}", shard->fd >= 0 ? "true" : "false",
                   (unsigned long long)shard->num_bytes);
  }
  purr__text_add(text, "],\n  \"num_tensors\": %lld,\n  \"tensor_bytes\": %llu,\n",
                 (long long)checkpoint->tensors.num_entries, (unsigned long long)tensor_bytes(checkpoint));
  if (!report->has_model) {
    add_tensors_json(report);
    return;
  }
  add_model_json(report);
  purr__text_add(text, "  \"layers\": [\n");
  for (int64_t layer = 0; layer < report->model.num_layers; layer++) {
    summary_t summary;
    look_at_layer(report, layer, &summary);
    add_layer_json(report, layer, &summary);
  }
  purr__text_add(text, "  ]\n}\n");
}

purr_status_t purr_checkpoint_describe(const purr_checkpoint_t *checkpoint, int32_t format, char *buffer,
                                       uint64_t capacity, uint64_t *out_length, purr_error_t *err) {
  purr_status_t status = purr__check(checkpoint, PURR__CHECKPOINT, err);
  if (status != PURR_STATUS_OK) return status;
  if (format != PURR_FORMAT_TEXT && format != PURR_FORMAT_JSON)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "format is %d; allowed are 0 (text) and 1 (JSON)", format);
  report_t report = {
      .checkpoint = checkpoint, .model_error = PURR_ERROR_INIT, .text = {.context = checkpoint->object.context}};
  report.has_model = purr__model_read(checkpoint, &report.model, &report.model_error) == PURR_STATUS_OK;
  if (format == PURR_FORMAT_TEXT)
    describe_text(&report);
  else
    describe_json(&report);
  return purr__text_deliver(&report.text, buffer, capacity, out_length, err);
}
