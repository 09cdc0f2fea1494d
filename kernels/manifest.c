/* Writes the manifest of the package that the build makes, and refuses kernels that are not what the tables say.
 *
 *   purr_manifest OUT.json PRODUCER CUBIN...
 *
 * A cubin is named SOURCE.TARGET.cubin, with the source's slashes as underscores: staged_grouped_gemm.sm_90.cubin. What
 * is in it is told by kernels.def and roles.def; registers, threads, parameters and spills are read from the image. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/layout.h"
#include "package/package.h"

typedef struct row {
  const char *entry, *role, *source, *target;
  int threads, shared_bytes, cluster, tile_m, tile_n;
} row_t;

static const row_t rows[] = {
#define PURR_KERNEL(entry, role, source, target, arch, threads, shared_bytes, cluster, tile_m, tile_n) \
  {#entry, #role, source, target, threads, shared_bytes, cluster, tile_m, tile_n},
#include "kernels/kernels.def"
#undef PURR_KERNEL
};
enum { NUM_ROWS = sizeof rows / sizeof rows[0] };

static const struct role {
  const char *name;
  size_t params_bytes;
  const char *shapes;
} roles[] = {
#define PURR_KERNEL_ROLE(role, params, shapes) {#role, sizeof(params), shapes},
#include "kernels/roles.def"
#undef PURR_KERNEL_ROLE
};
enum { NUM_ROLES = sizeof roles / sizeof roles[0] };

static int fail(const char *format, ...) PURR__PRINTF(1, 2);
static int fail(const char *format, ...) {
  va_list args;
  va_start(args, format);
  fputs("purr_manifest: ", stderr);
  vfprintf(stderr, format, args);
  fputs("\n", stderr);
  va_end(args);
  return 1;
}

static const char *file_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash != NULL ? slash + 1 : path;
}

static bool is_image_of(const row_t *row, const char *file) {
  char expected[256];
  snprintf(expected, sizeof expected, "%s.%s.cubin", row->source, row->target);
  for (char *c = expected; *c != '\0'; c++)
    if (*c == '/') *c = '_';
  return strcmp(expected, file) == 0;
}

static const struct role *find_role(const char *name) {
  for (int i = 0; i < NUM_ROLES; i++)
    if (strcmp(roles[i].name, name) == 0) return &roles[i];
  return NULL;
}

/* The rules of a role as a JSON array. */
static int add_shapes(purr__text_t *text, const struct role *role) {
  purr__text_add(text, "[");
  for (const char *rest = role->shapes; *rest != '\0';) {
    char rule[64];
    size_t length = strcspn(rest, ",");
    purr__shape_rule_t parsed;
    snprintf(rule, sizeof rule, "%.*s", (int)length, rest);
    if (!purr__shape_rule_parse(rule, &parsed)) return fail("roles.def: '%s' of %s is no rule", rule, role->name);
    if (rest != role->shapes) purr__text_add(text, ", ");
    purr__text_add_json_string(text, rule);
    rest += length;
    rest += strspn(rest, ", ");
  }
  purr__text_add(text, "]");
  return 0;
}

static int add_kernel(purr__text_t *text, const row_t *row, const purr__cubin_t *cubin, const char *file) {
  const struct role *role = find_role(row->role);
  const purr__cubin_kernel_t *kernel = purr__cubin_find(cubin, row->entry);
  if (role == NULL) return fail("kernels.def: the role %s of %s is not in roles.def", row->role, row->entry);
  if (kernel == NULL) return fail("%s has no kernel %s, which kernels.def promises", file, row->entry);
  if (kernel->num_params != 1 || kernel->params_bytes != (int)role->params_bytes)
    return fail("%s: %s takes %d parameters of %d bytes, roles.def says one of %zu", file, row->entry,
                kernel->num_params, kernel->params_bytes, role->params_bytes);
  if (kernel->stack_bytes > 0 || kernel->num_spills != 0)
    return fail("%s: %s uses %d bytes of stack (%d spill instructions); give it fewer live values or more registers",
                file, row->entry, kernel->stack_bytes, kernel->num_spills);
  purr__text_add(
      text,
      "\n        {\"entry\": \"%s\", \"role\": \"%s\", \"threads\": %d, \"shared_bytes\": %d, \"cluster\": [%d, 1, "
      "1], \"tile\": [%d, %d],\n         \"params_version\": %d, \"params_bytes\": %zu, \"shapes\": ",
      row->entry, row->role, row->threads, row->shared_bytes, row->cluster, row->tile_m, row->tile_n,
      PURR__KERNEL_LAYOUT, role->params_bytes);
  if (add_shapes(text, role) != 0) return 1;
  purr__text_add(text, "}");
  return 0;
}

static int add_kernels(purr__text_t *text, const purr__cubin_t *cubin, const char *file) {
  int num_added = 0;
  for (int i = 0; i < NUM_ROWS; i++) {
    if (!is_image_of(&rows[i], file)) continue;
    if (num_added++ > 0) purr__text_add(text, ",");
    if (add_kernel(text, &rows[i], cubin, file) != 0) return 1;
  }
  if (num_added != cubin->num_kernels)
    return fail("%s holds %d kernels, kernels.def has %d rows for it", file, cubin->num_kernels, num_added);
  return 0;
}

static int add_image(purr_context_t *context, purr__text_t *text, const char *path) {
  purr_error_t err = PURR_ERROR_INIT;
  const char *file = file_name(path);
  unsigned char *data = NULL, digest[PURR__SHA256_BYTES];
  char digest_text[PURR__SHA256_TEXT_BYTES];
  uint64_t bytes;
  purr__cubin_t cubin = {0};
  purr_status_t status = purr__read_file(context, path, PURR__CUBIN_MAX_BYTES, &data, &bytes, &err);
  if (status == PURR_STATUS_OK) status = purr__cubin_parse(context, data, bytes, path, &cubin, &err);
  int failed = status == PURR_STATUS_OK ? 0 : fail("%s", err.message);
  if (!failed) {
    purr__sha256(data, bytes, digest);
    purr__sha256_print(digest, digest_text);
    purr__text_add(text, "\n    {\"file\": \"%s\", \"arch\": \"%s\",\n     \"sha256\": \"%s\",\n      \"kernels\": [",
                   file, PURR__ARCH_TEXT(cubin.arch), digest_text);
    failed = add_kernels(text, &cubin, file);
    purr__text_add(text, "]}");
  }
  purr__cubin_free(context, &cubin);
  purr__release(context, data);
  return failed;
}

/* The library must accept what is written here. */
static int write_manifest(purr_context_t *context, const purr__text_t *text, const char *path) {
  purr_error_t err = PURR_ERROR_INIT;
  purr__manifest_t manifest;
  if (text->failed) return fail("out of memory");
  if (purr__manifest_parse(context, text->data, text->length, path, &manifest, &err) != PURR_STATUS_OK)
    return fail("%s", err.message);
  purr__manifest_free(context, &manifest);
  FILE *file = fopen(path, "wb");
  if (file == NULL) return fail("%s cannot be written", path);
  bool is_written = fwrite(text->data, 1, text->length, file) == text->length;
  if (fclose(file) != 0 || !is_written) {
    remove(path);
    return fail("%s could not be written", path);
  }
  return 0;
}

int main(int argc, char **argv) {
  purr_context_t *context;
  if (argc < 4) return fail("usage: purr_manifest OUT.json PRODUCER CUBIN...");
  if (purr_context_create(NULL, &context, NULL) != PURR_STATUS_OK) return fail("out of memory");
  purr__text_t text = {.context = context};
  purr__text_add(&text, "{\n  \"format\": %d,\n  \"name\": \"purr\",\n  \"producer\": ", PURR__MANIFEST_FORMAT_LAYERS);
  purr__text_add_json_string(&text, argv[2]);
  purr__text_add(&text, ",\n  \"images\": [");
  int failed = 0;
  for (int i = 3; i < argc && !failed; i++) {
    if (i > 3) purr__text_add(&text, ",");
    failed = add_image(context, &text, argv[i]);
  }
  purr__text_add(&text, "\n  ]\n}\n");
  if (!failed) failed = write_manifest(context, &text, argv[1]);
  purr__text_free(&text);
  purr_context_destroy(context);
  return failed;
}
