#include "triton/describe.h"

#include <stdio.h>

static void add_argument_type(const purr__triton_argument_t *argument, char *out, uint64_t capacity) {
  if (argument->constant != PURR__TRITON_NO_CONSTANT)
    snprintf(out, capacity, "= %s", argument->constant_text);
  else if (argument->divisible_by > 1)
    snprintf(out, capacity, "%s, a multiple of %d", argument->type, argument->divisible_by);
  else
    snprintf(out, capacity, "%s", argument->type);
}

/* ---- text ---- */

/* The arguments as all variants have them, or "varies". */
static void describe_arguments(const purr_kernel_t *kernel, purr__text_t *text) {
  const purr__triton_spec_t *first = purr__triton_spec(kernel);
  int width = (int)strlen("argument");
  for (int i = 0; i < first->num_arguments; i++)
    width = (int)purr__max(width, (int64_t)strlen(first->arguments[i].name));
  purr__text_add(text, "\n  %3s  %-*s  %s\n", "", width, "argument", "type");
  for (int i = 0; i < first->num_arguments; i++) {
    char type[192], other[192];
    add_argument_type(&first->arguments[i], type, sizeof type);
    bool varies = false;
    for (int v = 1; v < kernel->num_variants && !varies; v++) {
      add_argument_type(&kernel->variants[v].spec->arguments[i], other, sizeof other);
      varies = strcmp(type, other) != 0;
    }
    purr__text_add(text, "  %3d  %-*s  %s%s\n", i, width, first->arguments[i].name, type,
                   varies ? "; other variants differ" : "");
  }
}

static void describe_variant(const purr_kernel_t *kernel, int idx, purr__text_t *text) {
  const purr__triton_variant_t *v = &kernel->variants[idx];
  const purr__triton_spec_t *spec = v->spec, *first = purr__triton_spec(kernel);
  purr__text_add(text, "\n  variant %d: %s, %s\n    compiled by  Triton %s\n", idx, PURR__ARCH_TEXT(v->arch), v->file,
                 spec->version_text);
  purr__text_add(text, "    block        %d threads (%d warps), %d registers, %d bytes of stack\n", v->entry.threads,
                 v->entry.threads / 32, v->registers, v->stack_bytes);
  purr__text_add(text, "    shared       %d bytes dynamic, %d static\n", v->entry.shared_bytes, v->static_shared_bytes);
  const int *cluster = v->entry.cluster;
  if (cluster[0] * cluster[1] * cluster[2] > 1)
    purr__text_add(text, "    cluster      %d x %d x %d blocks, which multiply the grid\n", cluster[0], cluster[1],
                   cluster[2]);
  if (spec->is_cooperative) purr__text_add(text, "    launch       cooperative: all blocks resident at once\n");
  if (spec->may_overlap) purr__text_add(text, "    launch       may start before the kernel in front of it ends\n");
  if (spec->scratch_bytes > 0)
    purr__text_add(text, "    scratch      %d bytes a block, at multiples of %d, from the caller\n",
                   spec->scratch_bytes, spec->scratch_align);
  purr__text_add(text, "    parameters   %d in the image, the last %d hidden\n", v->num_params, v->num_hidden);
  if (spec->grid[0][0] != '\0')
    purr__text_add(text, "    grid         [%s] x [%s] x [%s]\n", spec->grid[0], spec->grid[1], spec->grid[2]);
  else
    purr__text_add(text, "    grid         the caller's\n");
  for (int i = 0; idx > 0 && i < spec->num_arguments; i++) {
    char type[192], other[192];
    add_argument_type(&spec->arguments[i], type, sizeof type);
    add_argument_type(&first->arguments[i], other, sizeof other);
    if (strcmp(type, other) != 0) purr__text_add(text, "    %-11s  %s\n", spec->arguments[i].name, type);
  }
}

/* ---- JSON ---- */

static void add_argument_json(const purr__triton_argument_t *argument, purr__text_t *text) {
  purr__text_add(text, "{\"name\": ");
  purr__text_add_json_string(text, argument->name);
  purr__text_add(text, ", \"type\": ");
  purr__text_add_json_string(text, argument->type);
  purr__text_add(text, ", \"divisible_by\": %d, \"constant\": ", argument->divisible_by);
  if (argument->constant == PURR__TRITON_NO_CONSTANT || argument->constant == PURR__TRITON_CONSTANT_NONE)
    purr__text_add(text, "null");
  else if (argument->constant == PURR__TRITON_CONSTANT_INTEGER)
    purr__text_add(text, "%lld", (long long)argument->constant_integer);
  else
    purr__text_add_json_string(text, argument->constant_text);
  purr__text_add(text, ", \"is_parameter\": %s}", argument->constant == PURR__TRITON_NO_CONSTANT ? "true" : "false");
}

static void add_variant_json(const purr__triton_variant_t *v, purr__text_t *text) {
  const purr__triton_spec_t *spec = v->spec;
  purr__text_add(text, "{\"file\": ");
  purr__text_add_json_string(text, v->file);
  purr__text_add(text, ", \"arch\": \"%s\", \"triton_version\": ", PURR__ARCH_TEXT(v->arch));
  purr__text_add_json_string(text, spec->version_text);
  purr__text_add(text,
                 ", \"threads\": %d, \"shared_bytes\": %d, \"static_shared_bytes\": %d, \"registers\": %d, "
                 "\"stack_bytes\": %d, \"cluster\": [%d, %d, %d], \"cooperative\": %s, \"overlap\": %s, "
                 "\"scratch_bytes\": %d, \"scratch_align\": %d, \"num_parameters\": %d, \"num_hidden\": %d, \"grid\": ",
                 v->entry.threads, v->entry.shared_bytes, v->static_shared_bytes, v->registers, v->stack_bytes,
                 v->entry.cluster[0], v->entry.cluster[1], v->entry.cluster[2], spec->is_cooperative ? "true" : "false",
                 spec->may_overlap ? "true" : "false", spec->scratch_bytes, spec->scratch_align, v->num_params,
                 v->num_hidden);
  if (spec->grid[0][0] == '\0') {
    purr__text_add(text, "null");
  } else {
    for (int i = 0; i < 3; i++) {
      purr__text_add(text, i == 0 ? "[" : ", ");
      purr__text_add_json_string(text, spec->grid[i]);
    }
    purr__text_add(text, "]");
  }
  purr__text_add(text, ", \"arguments\": [");
  for (int i = 0; i < spec->num_arguments; i++) {
    purr__text_add(text, i > 0 ? ",\n    " : "\n    ");
    add_argument_json(&spec->arguments[i], text);
  }
  purr__text_add(text, "]}");
}

void purr__describe_triton(const purr_kernel_t *kernel, int32_t format, purr__text_t *text) {
  if (format == PURR_FORMAT_JSON) {
    purr__text_add(text, "{\"kind\": \"triton\", \"name\": ");
    purr__text_add_json_string(text, kernel->name);
    purr__text_add(text, ", \"path\": ");
    purr__text_add_json_string(text, kernel->source);
    purr__text_add(text, ", \"variants\": [");
    for (int i = 0; i < kernel->num_variants; i++) {
      purr__text_add(text, i > 0 ? ",\n  " : "\n  ");
      add_variant_json(&kernel->variants[i], text);
    }
    purr__text_add(text, "]}\n");
    return;
  }
  char shown[320];
  purr__text_add(text, "Triton kernel %s\n  from      %s\n  variants  %d\n", kernel->name,
                 purr__printable(shown, sizeof shown, kernel->source, strlen(kernel->source)), kernel->num_variants);
  describe_arguments(kernel, text);
  for (int i = 0; i < kernel->num_variants; i++) describe_variant(kernel, i, text);
}
