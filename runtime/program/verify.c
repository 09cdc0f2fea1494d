/* purr verify: a layer of a checkpoint against captured tensors, forward and backward. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layer.h"

static const help_t help = {
    .command = "verify",
    .usage = "[CONFIG] --checkpoint DIR --capture FILE [options]",
    .about =
        "Runs a layer of a checkpoint on captured inputs and compares what comes out with what was captured.\n"
        "Without CONFIG the layer is derived from the checkpoint.\n"
        "\n"
        "The capture is a safetensors file; its metadata may name the layer, then --layer is not needed.\n"
        "Read are input.x [T, hidden_size], input.topk_ids, input.topk_weights [T, top_k] and\n"
        "input.d_output [T, hidden_size]. Compared are, where present:\n"
        "  expect.output, expect.d_x (without the path through the router), expect.d_topk_weights,\n"
        "  expect.grad.experts.gate_up_proj [E, 2I, H] with gate first, expect.grad.experts.down_proj,\n"
        "  expect.grad.experts.3.gate_proj.weight (up_proj, down_proj; w1, w3, w2),\n"
        "  expect.grad.shared_experts.gate_proj.weight (up_proj, down_proj; shared_expert),\n"
        "  expect.grad.shared_expert_gate.weight\n"
        "A tensor passes when its relative L2 error is within the tolerance; NaN never passes.",
    .example =
        "  purr verify --checkpoint tests/data/qwen3-moe --layer 1 --capture "
        "tests/data/qwen3-moe/capture.safetensors\n"
        "  purr verify --checkpoint DeepSeek-V3 --capture layer3.safetensors --layer 3 --ranks 4 --json",
};

/* ----------------------------------------------------------------------------------------------------- what is
 * compared */

typedef struct comparison {
  const char *name; /* without "expect." */
  purr_tensor_t expected;
  double relative_l2, max_error;
  bool passed;
} comparison_t;

typedef struct verify_options {
  layer_options_t layer;
  const char *config_path, *capture_path;
  double tolerance; /* negative = by precision */
  bool json;
} verify_options_t;

typedef struct verify {
  verify_options_t options;
  layer_t layer;
  purr_checkpoint_t *capture;
  comparison_t *comparisons;
  int64_t num_comparisons;
  bool backward;
  double *d_shared[NUM_SHARED]; /* summed over ranks */
} verify_t;

static const char *const projection_names[][2] = {{"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}};

/* "gate_proj.weight" to SHARED_GATE and so on; -1 for anything else. */
static int find_projection(const char *name, bool allows_short) {
  for (int i = 0; i < 3; i++)
    for (int j = 0; j < (allows_short ? 2 : 1); j++) {
      size_t length = strlen(projection_names[i][j]);
      if (strncmp(name, projection_names[i][j], length) == 0 && strcmp(name + length, ".weight") == 0) return i;
    }
  return -1;
}

/* "3.gate_proj.weight" of an expert: which run of the gradients over all experts. */
static bool find_expert_gradient(const layer_t *layer, const char *name, purr_tensor_t *out) {
  int64_t H = layer->shape.hidden_size, I = layer->shape.intermediate_size;
  char *end;
  if (name[0] < '0' || name[0] > '9') return false;
  long long expert = strtoll(name, &end, 10);
  if (*end != '.' || expert >= layer->shape.num_experts) return false;
  int projection = find_projection(end + 1, true);
  if (projection < 0) return false;
  if (projection == SHARED_DOWN)
    *out = tensor_of(PURR_DTYPE_FP32, layer->d_down + expert * H * I, H, I, 0);
  else
    *out = tensor_of(PURR_DTYPE_FP32, layer->d_gate_up + (2 * expert + projection) * I * H, I, H, 0);
  return true;
}

static bool find_shared_gradient(const verify_t *verify, const char *name, purr_tensor_t *out) {
  const purr_layer_desc_t *shape = &verify->layer.shape;
  int64_t H = shape->hidden_size, S = shape->shared_intermediate_size;
  if (strcmp(name, "shared_expert_gate.weight") == 0) {
    if (layer_shared_count(&verify->layer, SHARED_EXPERT_GATE) == 0) return false;
    *out = tensor_of(PURR_DTYPE_FP64, verify->d_shared[SHARED_EXPERT_GATE], 1, H, 0);
    return true;
  }
  if (strncmp(name, "shared_expert", 13) != 0 || S == 0) return false;
  const char *rest = name + 13;
  if (*rest == 's') rest++;
  int projection = *rest == '.' ? find_projection(rest + 1, false) : -1;
  if (projection < 0) return false;
  *out = tensor_of(PURR_DTYPE_FP64, verify->d_shared[projection], projection == SHARED_DOWN ? H : S,
                   projection == SHARED_DOWN ? S : H, 0);
  return true;
}

/* The computed tensor that a name stands for; false for names that this layer does not have. */
static bool find_actual(const verify_t *verify, const char *name, purr_tensor_t *out) {
  const layer_t *layer = &verify->layer;
  const purr_layer_desc_t *shape = &layer->shape;
  int64_t T = layer->num_tokens, H = shape->hidden_size, I = shape->intermediate_size, E = shape->num_experts;
  if (strcmp(name, "output") == 0) {
    *out = tensor_of(PURR_DTYPE_BF16, layer->output, T, H, 0);
  } else if (strcmp(name, "d_x") == 0) {
    *out = tensor_of(PURR_DTYPE_BF16, layer->d_x, T, H, 0);
  } else if (strcmp(name, "d_topk_weights") == 0) {
    *out = tensor_of(PURR_DTYPE_FP32, layer->d_topk_weights, T, shape->top_k, 0);
  } else if (strcmp(name, "grad.experts.gate_up_proj") == 0) {
    *out = tensor_of(PURR_DTYPE_FP32, layer->d_gate_up, E, 2 * I, H);
  } else if (strcmp(name, "grad.experts.down_proj") == 0) {
    *out = tensor_of(PURR_DTYPE_FP32, layer->d_down, E, H, I);
  } else if (strncmp(name, "grad.experts.", 13) == 0) {
    return find_expert_gradient(layer, name + 13, out);
  } else if (strncmp(name, "grad.", 5) == 0) {
    return find_shared_gradient(verify, name + 5, out);
  } else {
    return false;
  }
  return true;
}

/* ------------------------------------------------------------------------------------------------------------ input */

static const char *next_capture = "see the names and shapes of a capture with: purr verify --help";

static const char *tensor_name(const verify_t *verify, int64_t idx) {
  return purr_checkpoint_tensor_name(verify->capture, idx);
}

/* Finds out T and whether backward is wanted. */
static int open_capture(verify_t *verify, int64_t *out_num_tokens) {
  const char *path = verify->options.capture_path;
  purr_tensor_t tensor;
  int code = open_tensors(&verify->layer, path, &verify->capture);
  if (code != EXIT_GOOD) return code;
  int64_t num_tensors = purr_checkpoint_num_tensors(verify->capture), num_expected = 0;
  for (int64_t i = 0; i < num_tensors; i++) {
    const char *name = tensor_name(verify, i);
    if (strncmp(name, "expect.", 7) != 0) {
      if (strncmp(name, "input.", 6) != 0) fprintf(stderr, "purr verify: note: %s is not used\n", name);
      continue;
    }
    num_expected++;
    if (strcmp(name, "expect.output") != 0) verify->backward = true;
  }
  if (num_expected == 0) return fail("verify", next_capture, "%s has no tensor named expect.*: nothing to check", path);
  if (!find_input(verify->capture, "x", &tensor) || tensor.num_dims != 2)
    return fail("verify", next_capture, "%s has no tensor input.x of shape [T, hidden_size]", path);
  *out_num_tokens = tensor.shape[0];
  verify->comparisons = calloc((size_t)num_expected, sizeof *verify->comparisons);
  if (verify->comparisons == NULL) return fail("verify", "free some memory", "memory ran out");
  return EXIT_GOOD;
}

static int fill_input(verify_t *verify) {
  layer_t *layer = &verify->layer;
  const char *path = verify->options.capture_path;
  int code = rows_from_file(layer, verify->capture, path, "x", layer->x);
  if (code == EXIT_GOOD) code = route_from_file(layer, verify->capture, path);
  if (code != EXIT_GOOD || !verify->backward) return code;
  for (int i = 0; i < NUM_SHARED; i++) {
    if (layer_shared_count(layer, i) == 0) continue;
    verify->d_shared[i] = calloc((size_t)layer_shared_count(layer, i), sizeof *verify->d_shared[i]);
    if (verify->d_shared[i] == NULL) return fail("verify", "free some memory", "memory ran out");
  }
  return rows_from_file(layer, verify->capture, path, "d_output", layer->d_output);
}

/* Every expect.* tensor has a counterpart of its shape. */
static int list_comparisons(verify_t *verify) {
  const char *path = verify->options.capture_path;
  for (int64_t i = 0; i < purr_checkpoint_num_tensors(verify->capture); i++) {
    purr_error_t err = PURR_ERROR_INIT;
    purr_tensor_t expected = {.struct_size = sizeof expected}, actual;
    const char *name = tensor_name(verify, i);
    if (strncmp(name, "expect.", 7) != 0) continue;
    if (!find_actual(verify, name + 7, &actual))
      return fail("verify", next_capture, "%s: %s is not something that this layer computes", path, name);
    if (actual.data == NULL && !verify->backward) continue; /* the report lists it as not checked */
    if (purr_checkpoint_find(verify->capture, name, &expected, &err) != PURR_STATUS_OK)
      return fail_call("verify", next_capture, &err);
    if (!tensor_is_number(&expected))
      return fail("verify", next_capture, "%s: %s is %s, allowed are BF16, F32 and F64", path, name,
                  dtype_name(expected.dtype));
    bool same_shape = tensor_same_shape(&expected, &actual);
    if (actual.shape[0] == 1 && expected.num_dims == 1) same_shape = expected.shape[0] == actual.shape[1];
    if (!same_shape)
      return fail("verify", next_capture, "%s: %s has shape %s, this layer computes %s", path, name,
                  SHAPE_TEXT(&expected), SHAPE_TEXT(&actual));
    verify->comparisons[verify->num_comparisons++] = (comparison_t){.name = name + 7, .expected = expected};
  }
  return EXIT_GOOD;
}

/* ---------------------------------------------------------------------------------------------------------- compare */

/* Each rank has summed over its own tokens. */
static void sum_shared_gradients(verify_t *verify) {
  const layer_t *layer = &verify->layer;
  for (int64_t r = 0; r < layer->num_ranks; r++)
    for (int i = 0; i < NUM_SHARED; i++)
      for (int64_t j = 0; verify->d_shared[i] != NULL && j < layer_shared_count(layer, i); j++)
        verify->d_shared[i][j] += (double)layer->ranks[r].d_shared[i][j];
}

static void compare(const purr_tensor_t *actual, double tolerance, comparison_t *comparison) {
  double error_square = 0.0, square = 0.0, max_error = 0.0;
  for (int64_t i = 0; i < tensor_count(actual); i++) {
    double expected = tensor_element(&comparison->expected, i), error = tensor_element(actual, i) - expected;
    error_square += error * error;
    square += expected * expected;
    if (!(fabs(error) <= max_error)) max_error = isnan(max_error) ? max_error : fabs(error); /* a NaN stays */
  }
  comparison->relative_l2 = error_square == 0.0 ? 0.0 : sqrt(error_square) / sqrt(square);
  comparison->max_error = max_error;
  comparison->passed = isfinite(square) && comparison->relative_l2 <= tolerance;
}

static bool is_inside(const purr_tensor_t *part, const purr_tensor_t *whole) {
  const char *begin = whole->data, *data = part->data;
  int64_t element_bytes = whole->dtype == PURR_DTYPE_BF16 ? 2 : whole->dtype == PURR_DTYPE_FP32 ? 4 : 8;
  return data >= begin && data < begin + tensor_count(whole) * element_bytes;
}

static const char *const checkable_names[] = {"output",
                                              "d_x",
                                              "d_topk_weights",
                                              "grad.experts.gate_up_proj",
                                              "grad.experts.down_proj",
                                              "grad.shared_experts.gate_proj.weight",
                                              "grad.shared_experts.up_proj.weight",
                                              "grad.shared_experts.down_proj.weight",
                                              "grad.shared_expert_gate.weight"};
enum { NUM_CHECKABLE = sizeof checkable_names / sizeof checkable_names[0] };

/* How much of a checkable tensor the capture leaves out: "" for nothing, NULL where the layer has no such tensor. */
static const char *what_is_missing(const verify_t *verify, int checkable_idx) {
  purr_tensor_t whole, part;
  int64_t num_checked = 0;
  if (!find_actual(verify, checkable_names[checkable_idx], &whole)) return NULL;
  if (whole.data == NULL) return "backward did not run";
  for (int64_t i = 0; i < verify->num_comparisons; i++)
    if (find_actual(verify, verify->comparisons[i].name, &part) && is_inside(&part, &whole))
      num_checked += tensor_count(&part);
  return num_checked == 0                     ? "not in the capture"
         : num_checked < tensor_count(&whole) ? "some experts are not in the capture"
                                              : "";
}

/* ----------------------------------------------------------------------------------------------------------- report */

static double pass_seconds(const verify_t *verify, bool backward) {
  uint64_t longest_ns = 0;
  for (int64_t r = 0; r < verify->layer.num_ranks; r++) {
    const rank_t *rank = &verify->layer.ranks[r];
    uint64_t ns = backward ? rank->backward.total_ns : rank->forward.total_ns;
    if (ns > longest_ns) longest_ns = ns;
  }
  return 1e-9 * (double)longest_ns;
}

static int64_t count_failed(const verify_t *verify) {
  int64_t num_failed = 0;
  for (int64_t i = 0; i < verify->num_comparisons; i++) num_failed += !verify->comparisons[i].passed;
  return num_failed;
}

static void print_report(const verify_t *verify) {
  const layer_t *layer = &verify->layer;
  const purr_layer_desc_t *shape = &layer->shape;
  printf("%s, layer %" PRId64 ", against %s\n", verify->options.layer.checkpoint_path, layer->layer_idx,
         verify->options.capture_path);
  printf("  %" PRId64 " tokens, hidden %" PRId64 ", %" PRId64 " experts of intermediate %" PRId64 ", top %" PRId64,
         layer->num_tokens, shape->hidden_size, shape->num_experts, shape->intermediate_size, shape->top_k);
  if (shape->shared_intermediate_size > 0) printf(", shared expert of %" PRId64, shape->shared_intermediate_size);
  printf("\n  %s backend, %s, %" PRId64 " rank%s", backend_names[layer->info.backend],
         precision_names[layer->info.precision], layer->num_ranks, layer->num_ranks == 1 ? "" : "s");
  if (layer->info.backend != PURR_BACKEND_HOST)
    printf(" on GPU%s %s", layer->num_ranks == 1 ? "" : "s", DEVICES_TEXT(&layer->devices, layer->num_ranks));
  printf("; forward %s", TIME_TEXT(pass_seconds(verify, false)));
  if (verify->backward) printf(", backward %s", TIME_TEXT(pass_seconds(verify, true)));
  printf("\n\n");

  table_t table = {.alignment = "llrrl"};
  static const char *const titles[] = {"tensor", "shape", "relative L2", "max error", "result"};
  for (int i = 0; i < 5; i++) table_add(&table, "%s", titles[i]);
  for (int64_t i = 0; i < verify->num_comparisons; i++) {
    const comparison_t *comparison = &verify->comparisons[i];
    table_add(&table, "%s", comparison->name);
    table_add(&table, "%s", SHAPE_TEXT(&comparison->expected));
    table_add(&table, "%.3e", comparison->relative_l2);
    table_add(&table, "%.3e", comparison->max_error);
    table_add(&table, "%s%s%s", colour_text(stdout, comparison->passed ? COLOUR_GREEN : COLOUR_RED),
              comparison->passed ? "pass" : "FAIL", colour_text(stdout, COLOUR_NONE));
  }
  table_print(&table, stdout);
  printf("\n");
  for (int i = 0; i < NUM_CHECKABLE; i++) {
    const char *missing = what_is_missing(verify, i);
    if (missing != NULL && *missing != '\0') printf("  not checked: %s (%s)\n", checkable_names[i], missing);
  }
  printf("  %" PRId64 " of %" PRId64 " tensors within %g\n", verify->num_comparisons - count_failed(verify),
         verify->num_comparisons, verify->options.tolerance);
}

static void write_json(const verify_t *verify) {
  const layer_t *layer = &verify->layer;
  const verify_options_t *options = &verify->options;
  json_t json = {.file = stdout};
  json_begin(&json, NULL, '{');
  json_text(&json, "version", purr_version_string());
  json_text(&json, "config", options->config_path);
  json_text(&json, "checkpoint", options->layer.checkpoint_path);
  json_int(&json, "layer_idx", layer->layer_idx);
  json_text(&json, "capture", options->capture_path);
  json_text(&json, "backend", backend_names[layer->info.backend]);
  json_text(&json, "precision", precision_names[layer->info.precision]);
  json_int(&json, "num_ranks", layer->num_ranks);
  devices_write_json(&json, &layer->devices, layer->num_ranks, layer->info.backend != PURR_BACKEND_HOST);
  json_int(&json, "num_tokens", layer->num_tokens);
  json_real(&json, "tolerance", options->tolerance);
  json_bool(&json, "passed", count_failed(verify) == 0);
  json_real(&json, "forward_s", pass_seconds(verify, false));
  if (verify->backward) json_real(&json, "backward_s", pass_seconds(verify, true));
  json_begin(&json, "tensors", '[');
  for (int64_t i = 0; i < verify->num_comparisons; i++) {
    const comparison_t *comparison = &verify->comparisons[i];
    json_begin(&json, NULL, '{');
    json_text(&json, "name", comparison->name);
    json_begin(&json, "shape", '[');
    for (int j = 0; j < comparison->expected.num_dims; j++) json_int(&json, NULL, comparison->expected.shape[j]);
    json_end(&json, ']');
    json_real(&json, "relative_l2", comparison->relative_l2);
    json_real(&json, "max_error", comparison->max_error);
    json_bool(&json, "passed", comparison->passed);
    json_end(&json, '}');
  }
  json_end(&json, ']');
  json_begin(&json, "not_checked", '[');
  for (int i = 0; i < NUM_CHECKABLE; i++) {
    const char *missing = what_is_missing(verify, i);
    if (missing != NULL && *missing != '\0') json_text(&json, NULL, checkable_names[i]);
  }
  json_end(&json, ']');
  json_end(&json, '}');
}

/* ---------------------------------------------------------------------------------------------------------- command */

static int check_layer(verify_t *verify) {
  verify_options_t *options = &verify->options;
  layer_t *layer = &verify->layer;
  int64_t num_tokens = 0;
  options->layer.forward_suffices = true;
  if (options->layer.layer_idx < 0) options->layer.layer_idx = captured_layer(options->capture_path);
  int code = layer_open(layer, "verify", options->config_path, &options->layer);
  if (code == EXIT_GOOD) code = open_capture(verify, &num_tokens);
  if (code == EXIT_GOOD) code = layer_allocate(layer, &options->layer, num_tokens, verify->backward);
  if (code == EXIT_GOOD && verify->backward && layer->d_x == NULL) {
    verify->backward = false;
    fprintf(stderr, "purr verify: note: the %s backend runs forward alone; --backend host checks the gradients too\n",
            backend_names[layer->info.backend]);
  }
  if (code == EXIT_GOOD) code = fill_input(verify);
  if (code == EXIT_GOOD) code = list_comparisons(verify);
  if (code == EXIT_GOOD) code = layer_prepare(layer);
  if (code == EXIT_GOOD) code = layer_forward(layer);
  if (code == EXIT_GOOD && verify->backward) code = layer_backward(layer);
  if (code != EXIT_GOOD) return code;

  if (options->tolerance < 0) options->tolerance = layer->info.precision == PURR_PRECISION_MXFP8 ? 0.08 : 0.01;
  if (verify->backward) sum_shared_gradients(verify);
  for (int64_t i = 0; i < verify->num_comparisons; i++) {
    purr_tensor_t actual;
    if (find_actual(verify, verify->comparisons[i].name, &actual))
      compare(&actual, options->tolerance, &verify->comparisons[i]);
  }
  if (options->json)
    write_json(verify);
  else
    print_report(verify);
  if (count_failed(verify) == 0) return EXIT_GOOD;
  fflush(stdout);
  fail("verify", "check that --layer is the captured layer; a looser bound can be set with --tolerance",
       "%" PRId64 " of %" PRId64 " tensors are not within %g", count_failed(verify), verify->num_comparisons,
       options->tolerance);
  return EXIT_CHECK_FAILED;
}

int cmd_verify(int argc, char **argv) {
  verify_t verify = {.options = {.layer = LAYER_OPTIONS_INIT, .tolerance = -1}};
  verify_options_t *options = &verify.options;
  const option_t table[] = {
      LAYER_OPTION_ENTRIES(options->layer),
      {.name = "capture",
       .kind = OPTION_TEXT,
       .value = &options->capture_path,
       .metavar = "FILE",
       .help = "captured tensors, a safetensors file"},
      {.name = "tolerance",
       .kind = OPTION_REAL,
       .value = &options->tolerance,
       .metavar = "X",
       .max_real = 1e6,
       .help = "largest relative L2 error (default: 0.01, with mxfp8 0.08)"},
      {.name = "json", .kind = OPTION_FLAG, .value = &options->json, .help = "print one JSON object"},
      {0}};
  int code = options_parse(&help, table, argc, argv, &options->config_path, 1);
  if (code != OPTIONS_GO_ON) return code;
  const char *next = "see an example with: purr verify --help";
  if (options->layer.checkpoint_path == NULL)
    code = fail("verify", next, "--checkpoint DIR is needed: it holds the weights");
  else if (options->capture_path == NULL)
    code = fail("verify", next, "--capture FILE is needed: it holds the tensors to compare with");
  else
    code = check_layer(&verify);
  for (int i = 0; i < NUM_SHARED; i++) free(verify.d_shared[i]);
  free(verify.comparisons);
  purr_checkpoint_destroy(verify.capture);
  layer_close(&verify.layer);
  return code;
}
