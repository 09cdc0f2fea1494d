#include "package/describe.h"

#include <stdio.h>

#include "package/triton_spec.h"

purr_status_t purr__check_format(int32_t format, purr_error_t *err) {
  if (format == PURR_FORMAT_TEXT || format == PURR_FORMAT_JSON) return PURR_STATUS_OK;
  return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                    "format is %d; allowed are PURR_FORMAT_TEXT and PURR_FORMAT_JSON", format);
}

/* ---- names from files ---- */

#define NAME_BYTES 160
static const char *name_text(const char *name, char text[NAME_BYTES]) {
  return purr__printable(text, NAME_BYTES, name, strlen(name));
}
#define NAME_TEXT(name) name_text(name, (char[NAME_BYTES]){0})

static void add_key_string(purr__text_t *text, const char *key, const char *value) {
  purr__text_add(text, "\"%s\": ", key);
  purr__text_add_json_string(text, NAME_TEXT(value));
}

static void add_toolkit(purr__text_t *text, int toolkit) {
  if (toolkit > 0) purr__text_add(text, "CUDA %d.%d", toolkit / 1000, toolkit % 1000 / 10);
}

/* ---- what an image says of a kernel ---- */

static void add_threads(purr__text_t *text, const purr__cubin_kernel_t *kernel) {
  char threads[32] = "any";
  const int *exact = kernel->exact_threads;
  if (exact[0] != 0)
    snprintf(threads, sizeof threads, "%dx%dx%d", exact[0], exact[1], exact[2]);
  else if (kernel->most_threads != 0)
    snprintf(threads, sizeof threads, "up to %d", kernel->most_threads);
  purr__text_add(text, "  %10s", threads);
}

static void add_spills(purr__text_t *text, const purr__cubin_kernel_t *kernel) {
  if (kernel->num_spills >= 0)
    purr__text_add(text, "  %6d", kernel->num_spills);
  else
    purr__text_add(text, "  %6s", "?");
}

static void add_cubin_kernel_json(purr__text_t *text, const purr__cubin_kernel_t *kernel) {
  purr__text_add(text, "\"registers\": %d, \"static_shared_bytes\": %d, \"stack_bytes\": %d, \"spill_instructions\": ",
                 kernel->registers, kernel->static_shared_bytes, kernel->stack_bytes);
  purr__text_add(text, kernel->num_spills >= 0 ? "%d" : "null", kernel->num_spills);
  purr__text_add(text, ", \"code_bytes\": %llu", (unsigned long long)kernel->code_bytes);
}

/* ---- a cubin ---- */

static int longest_name(const purr__cubin_t *cubin) {
  size_t longest = strlen("kernel");
  for (int i = 0; i < cubin->num_kernels; i++) {
    size_t length = strlen(NAME_TEXT(cubin->kernels[i].name));
    if (length > longest) longest = length;
  }
  return (int)longest;
}

static void describe_cubin_text(const purr__cubin_t *cubin, const char *path, purr__text_t *text) {
  int width = longest_name(cubin);
  purr__text_add(text, "cubin %s\n  for      %s\n  made by  ", path, PURR__ARCH_TEXT(cubin->arch));
  if (cubin->toolkit > 0)
    add_toolkit(text, cubin->toolkit);
  else
    purr__text_add(text, "unknown");
  purr__text_add(text, "\n  size     ");
  purr__text_add_bytes(text, cubin->bytes);
  purr__text_add(text, "\n\n  %-*s  %10s  %9s  %13s  %5s  %6s  %12s  %7s  %6s\n", width, "kernel", "threads",
                 "registers", "static shared", "stack", "spills", "parameters", "cluster", "code");
  for (int i = 0; i < cubin->num_kernels; i++) {
    const purr__cubin_kernel_t *kernel = &cubin->kernels[i];
    char params[32], cluster[32] = "-";
    snprintf(params, sizeof params, "%d (%d B)", kernel->num_params, kernel->params_bytes);
    if (kernel->cluster[0] != 0)
      snprintf(cluster, sizeof cluster, "%dx%dx%d", kernel->cluster[0], kernel->cluster[1], kernel->cluster[2]);
    purr__text_add(text, "  %-*s", width, NAME_TEXT(kernel->name));
    add_threads(text, kernel);
    purr__text_add(text, "  %9d  %13d  %5d", kernel->registers, kernel->static_shared_bytes, kernel->stack_bytes);
    add_spills(text, kernel);
    purr__text_add(text, "  %12s  %7s  %6llu\n", params, cluster, (unsigned long long)kernel->code_bytes);
  }
}

static void describe_cubin_json(const purr__cubin_t *cubin, const char *path, purr__text_t *text) {
  purr__text_add(text, "{\"kind\": \"cubin\", ");
  add_key_string(text, "path", path);
  purr__text_add(text, ", \"arch\": \"%s\", \"toolkit\": ", PURR__ARCH_TEXT(cubin->arch));
  purr__text_add(text, cubin->toolkit > 0 ? "\"%d.%d\"" : "null", cubin->toolkit / 1000, cubin->toolkit % 1000 / 10);
  purr__text_add(text, ", \"bytes\": %llu, \"kernels\": [", (unsigned long long)cubin->bytes);
  for (int i = 0; i < cubin->num_kernels; i++) {
    const purr__cubin_kernel_t *kernel = &cubin->kernels[i];
    purr__text_add(text, "%s\n  {", i > 0 ? "," : "");
    add_key_string(text, "name", kernel->name);
    purr__text_add(text, ", \"exact_threads\": [%d, %d, %d], \"most_threads\": %d, \"cluster\": [%d, %d, %d], ",
                   kernel->exact_threads[0], kernel->exact_threads[1], kernel->exact_threads[2], kernel->most_threads,
                   kernel->cluster[0], kernel->cluster[1], kernel->cluster[2]);
    purr__text_add(text, "\"num_params\": %d, \"params_bytes\": %d, ", kernel->num_params, kernel->params_bytes);
    add_cubin_kernel_json(text, kernel);
    purr__text_add(text, "}");
  }
  purr__text_add(text, "]}\n");
}

void purr__describe_cubin(const purr__cubin_t *cubin, const char *path, int32_t format, purr__text_t *text) {
  if (format == PURR_FORMAT_JSON)
    describe_cubin_json(cubin, path, text);
  else
    describe_cubin_text(cubin, path, text);
}

/* ---- a package ---- */

static void add_rules(const purr__manifest_kernel_t *kernel, const char *quote, purr__text_t *text) {
  for (int i = 0; i < kernel->num_rules; i++) {
    const purr__shape_rule_t *rule = &kernel->rules[i];
    purr__text_add(text, "%s%s%s %c%s %lld%s", i > 0 ? ", " : "", quote, purr__dim_name(rule->dim), rule->op,
                   rule->op == '%' ? "" : "=", (long long)rule->value, quote);
  }
}

/* What a kernel is asked for by: Triton's may have another entry in its image. */
static const char *name_of(const purr__manifest_kernel_t *kernel) {
  return kernel->triton != NULL ? kernel->triton->kernel : kernel->entry;
}

static void describe_kernel_text(const purr__manifest_kernel_t *kernel, purr__arch_t arch,
                                 const purr__cubin_kernel_t *found, const int widths[2], purr__text_t *text) {
  char shared[48];
  purr__text_add(text, "  %-*s  %-*s  %-7s  %7d", widths[0], name_of(kernel), widths[1], kernel->role,
                 PURR__ARCH_TEXT(arch), kernel->threads);
  if (found != NULL) {
    snprintf(shared, sizeof shared, "%d + %d", found->static_shared_bytes, kernel->shared_bytes);
    purr__text_add(text, "  %9d  %15s  %5d", found->registers, shared, found->stack_bytes);
    add_spills(text, found);
  } else {
    snprintf(shared, sizeof shared, "? + %d", kernel->shared_bytes);
    purr__text_add(text, "  %9s  %15s  %5s  %6s", "?", shared, "?", "?");
  }
  purr__text_add(text, "  %6d  ", kernel->params_bytes);
  if (kernel->tile[0] != 0)
    purr__text_add(text, "%3d x %-3d", kernel->tile[0], kernel->tile[1]);
  else
    purr__text_add(text, "%-9s", "-");
  purr__text_add(text, "  ");
  add_rules(kernel, "", text);
  if (kernel->triton != NULL) {
    purr__text_add(text, "%d arguments", kernel->triton->num_arguments);
    if (strcmp(name_of(kernel), kernel->entry) != 0) purr__text_add(text, ", entry %s", kernel->entry);
  }
  if (kernel->triton == NULL && kernel->num_rules == 0) purr__text_add(text, "any shape");
  purr__text_add(text, "\n");
}

static void add_triton_json(const purr__triton_spec_t *spec, purr__text_t *text) {
  purr__text_add(text, ", \"triton\": {\"kernel\": \"%s\", \"version\": \"%s\", \"arguments\": [", spec->kernel,
                 spec->version_text);
  for (int i = 0; i < spec->num_arguments; i++) {
    const purr__triton_argument_t *argument = &spec->arguments[i];
    purr__text_add(text, "%s{", i > 0 ? ", " : "");
    add_key_string(text, "name", argument->name);
    purr__text_add(text, ", ");
    add_key_string(text, "type", argument->type);
    purr__text_add(text, ", \"divisible_by\": %d, ", argument->divisible_by);
    if (argument->constant == PURR__TRITON_NO_CONSTANT)
      purr__text_add(text, "\"constant\": null}");
    else
      add_key_string(text, "constant", argument->constant_text), purr__text_add(text, "}");
  }
  purr__text_add(text, "]}");
}

static void describe_kernel_json(const purr__manifest_kernel_t *kernel, const purr__cubin_kernel_t *found,
                                 purr__text_t *text) {
  purr__text_add(text, "{");
  add_key_string(text, "name", name_of(kernel));
  purr__text_add(text, ", ");
  add_key_string(text, "entry", kernel->entry);
  purr__text_add(text, ", ");
  add_key_string(text, "role", kernel->role);
  purr__text_add(text,
                 ", \"threads\": %d, \"shared_bytes\": %d, \"cluster\": [%d, %d, %d], \"tile\": [%d, %d], "
                 "\"params_version\": %d, \"params_bytes\": %d, \"shapes\": [",
                 kernel->threads, kernel->shared_bytes, kernel->cluster[0], kernel->cluster[1], kernel->cluster[2],
                 kernel->tile[0], kernel->tile[1], kernel->params_version, kernel->params_bytes);
  add_rules(kernel, "\"", text);
  purr__text_add(text, "]");
  if (kernel->triton != NULL) add_triton_json(kernel->triton, text);
  if (found != NULL) {
    purr__text_add(text, ", ");
    add_cubin_kernel_json(text, found);
  }
  purr__text_add(text, "}");
}

static void measure(const purr__manifest_t *manifest, int widths[2]) {
  size_t entry = strlen("kernel"), role = strlen("role");
  for (int i = 0; i < manifest->num_kernels; i++) {
    if (strlen(name_of(&manifest->kernels[i])) > entry) entry = strlen(name_of(&manifest->kernels[i]));
    if (strlen(manifest->kernels[i].role) > role) role = strlen(manifest->kernels[i].role);
  }
  widths[0] = (int)entry;
  widths[1] = (int)role;
}

static void describe_image(const purr__package_t *package, int image_idx, int32_t format, const int widths[2],
                           purr__text_t *text, purr__text_t *problems) {
  const purr__manifest_t *manifest = &package->manifest;
  const purr__manifest_image_t *info = &manifest->images[image_idx];
  char digest[PURR__SHA256_TEXT_BYTES];
  purr_error_t err = PURR_ERROR_INIT;
  purr__package_image_t image;
  bool is_good = purr__package_read_image(package, image_idx, &image, &err) == PURR_STATUS_OK;
  bool is_json = format == PURR_FORMAT_JSON;
  if (is_json) {
    purr__sha256_print(info->sha256, digest);
    purr__text_add(text,
                   "%s\n  {\"file\": \"%s\", \"arch\": \"%s\", \"sha256\": \"%s\", \"bytes\": %llu, \"problem\": ",
                   image_idx > 0 ? "," : "", info->file, PURR__ARCH_TEXT(info->arch), digest,
                   (unsigned long long)image.cubin.bytes);
    if (is_good)
      purr__text_add(text, "null");
    else
      purr__text_add_json_string(text, err.message);
    purr__text_add(text, ", \"kernels\": [");
  } else if (!is_good) {
    purr__text_add(problems, "  problem: %s\n", err.message);
  }
  for (int k = 0, num_added = 0; k < manifest->num_kernels; k++) {
    const purr__manifest_kernel_t *kernel = &manifest->kernels[k];
    if (kernel->image_idx != image_idx) continue;
    const purr__cubin_kernel_t *found = is_good ? purr__cubin_find(&image.cubin, kernel->entry) : NULL;
    if (is_json) {
      purr__text_add(text, "%s\n    ", num_added++ > 0 ? "," : "");
      describe_kernel_json(kernel, found, text);
    } else {
      describe_kernel_text(kernel, info->arch, found, widths, text);
    }
  }
  if (is_json) purr__text_add(text, "]}");
  if (is_good) purr__package_free_image(package, &image);
}

void purr__describe_package(const purr__package_t *package, int32_t format, purr__text_t *text) {
  const purr__manifest_t *manifest = &package->manifest;
  char digest[PURR__SHA256_TEXT_BYTES];
  int widths[2];
  purr__text_t problems = {.context = text->context};
  purr__sha256_print(manifest->sha256, digest);
  measure(manifest, widths);
  if (format == PURR_FORMAT_JSON) {
    purr__text_add(text, "{\"kind\": \"package\", \"name\": \"%s\", ", manifest->name);
    add_key_string(text, "producer", manifest->producer);
    purr__text_add(text, ", ");
    add_key_string(text, "path", package->source.name);
    purr__text_add(text, ", \"format\": %d, \"sha256\": \"%s\", \"images\": [", manifest->format, digest);
  } else {
    purr__text_add(text,
                   "package %s\n  path      %s\n  producer  %s\n  manifest  format %d, SHA-256 %s\n  holds     %d "
                   "kernels in %d images\n\n",
                   manifest->name, NAME_TEXT(package->source.name), manifest->producer, manifest->format, digest,
                   manifest->num_kernels, manifest->num_images);
    purr__text_add(text, "  %-*s  %-*s  %-7s  %7s  %9s  %15s  %5s  %6s  %6s  %-9s  %s\n", widths[0], "kernel",
                   widths[1], "role", "for", "threads", "registers", "shared, dynamic", "stack", "spills", "params",
                   "tile", "serves");
  }
  for (int i = 0; i < manifest->num_images; i++) describe_image(package, i, format, widths, text, &problems);
  if (format == PURR_FORMAT_JSON)
    purr__text_add(text, "]}\n");
  else if (problems.length > 0)
    purr__text_add(text, "\n%s", problems.data);
  text->failed = text->failed || problems.failed;
  purr__text_free(&problems);
}
