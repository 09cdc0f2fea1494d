/* Opening a Triton kernel, and what can be asked of it. */
#include "triton/kernel.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>

#include "triton/describe.h"
#include "triton/grid.h"

static void kernel_free(void *object) {
  purr_kernel_t *kernel = object;
  purr_context_t *context = kernel->object.context;
  purr__triton_unload(kernel);
  for (int i = 0; i < kernel->num_variants; i++) purr__triton_variant_free(context, &kernel->variants[i]);
  purr__release(context, kernel->variants);
  purr__package_release(kernel->package);
  pthread_mutex_destroy(&kernel->mutex);
}

/* ---- variants belong together ---- */

static purr_status_t check_alike(const purr_kernel_t *kernel, int variant_idx, purr_error_t *err) {
  const purr__triton_spec_t *first = kernel->variants[0].spec, *other = kernel->variants[variant_idx].spec;
  if (first->num_arguments != other->num_arguments)
    return purr__fail(err, PURR_STATUS_PACKAGE, "kernel %.100s has %d arguments in %.100s, but %d in %.100s",
                      kernel->name, first->num_arguments, kernel->variants[0].file, other->num_arguments,
                      kernel->variants[variant_idx].file);
  for (int i = 0; i < first->num_arguments; i++)
    if (strcmp(first->arguments[i].name, other->arguments[i].name) != 0)
      return purr__fail(err, PURR_STATUS_PACKAGE,
                        "argument %d of kernel %.100s is called '%s' in %.100s, but '%s' in %.100s", i, kernel->name,
                        first->arguments[i].name, kernel->variants[0].file, other->arguments[i].name,
                        kernel->variants[variant_idx].file);
  return PURR_STATUS_OK;
}

static purr_status_t make_room(purr_kernel_t *kernel, int num_variants, purr_error_t *err) {
  const uint64_t bytes = (uint64_t)num_variants * sizeof *kernel->variants;
  kernel->variants = purr__allocate_zeroed(kernel->object.context, bytes);
  return kernel->variants != NULL ? PURR_STATUS_OK : purr__fail_memory(err, "the variants of a kernel", bytes);
}

/* ---- from a package ---- */

/* The only kernel's name, or the one that is asked for. */
static purr_status_t choose_name(purr_kernel_t *kernel, const char *wanted, int *out_count, purr_error_t *err) {
  const purr__manifest_t *manifest = &kernel->package->manifest;
  const char *first = NULL, *second = NULL;
  *out_count = 0;
  for (int i = 0; i < manifest->num_kernels; i++) {
    if (manifest->kernels[i].triton == NULL) continue;
    const char *name = manifest->kernels[i].triton->kernel;
    if (first == NULL) first = name;
    if (strcmp(name, first) != 0) second = name;
    if (strcmp(name, wanted != NULL ? wanted : first) == 0) ++*out_count;
  }
  if (first == NULL)
    return purr__fail(err, PURR_STATUS_MISSING_KERNEL,
                      "package %s has no kernel of Triton's; kernels/triton/export.py makes packages of them",
                      manifest->name);
  if (wanted == NULL && second != NULL)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "package %s has several kernels, '%.60s' and '%.60s' among them; say which", manifest->name,
                      first, second);
  if (*out_count == 0) {
    char shown[80];
    return purr__fail(err, PURR_STATUS_MISSING_KERNEL, "package %s has no kernel '%s'; it has '%.60s'%s",
                      manifest->name, purr__printable(shown, sizeof shown, wanted, strlen(wanted)), first,
                      second != NULL ? " and others" : "");
  }
  if (*out_count > PURR__TRITON_MAX_VARIANTS)
    return purr__fail(err, PURR_STATUS_PACKAGE, "package %s has %d variants of one kernel; allowed are %d",
                      manifest->name, *out_count, PURR__TRITON_MAX_VARIANTS);
  snprintf(kernel->name, sizeof kernel->name, "%.127s", wanted != NULL ? wanted : first);
  return PURR_STATUS_OK;
}

/* Takes the package over. */
static purr_status_t open_package(purr_kernel_t *kernel, const purr_kernel_desc_t *desc, purr__package_t *package,
                                  purr_error_t *err) {
  int count;
  kernel->package = package;
  snprintf(kernel->source, sizeof kernel->source, "%.290s", package->source.name);
  if (desc->signature != NULL || desc->grid[0] != NULL)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "a signature or a grid was given for package %s, whose manifest has its own",
                      package->manifest.name);
  purr_status_t status = choose_name(kernel, desc->name, &count, err);
  if (status == PURR_STATUS_OK) status = make_room(kernel, count, err);
  for (int i = 0; i < package->manifest.num_kernels && status == PURR_STATUS_OK; i++) {
    const purr__triton_spec_t *spec = package->manifest.kernels[i].triton;
    if (spec == NULL || strcmp(spec->kernel, kernel->name) != 0) continue;
    const int idx = kernel->num_variants++;
    status = purr__triton_variant_of_package(&kernel->variants[idx], package, i, err);
    if (status == PURR_STATUS_OK) status = check_alike(kernel, idx, err);
  }
  return status;
}

/* ---- from Triton's own files ---- */

/* One pair of metadata and image; takes the image over. */
static purr_status_t open_pair(purr_kernel_t *kernel, const purr_kernel_desc_t *desc, const char *text, uint64_t bytes,
                               unsigned char *image, uint64_t image_bytes, const char *name, const char *image_name,
                               purr_error_t *err) {
  purr_context_t *context = kernel->object.context;
  purr__triton_metadata_t metadata;
  const char *const *grid = desc->grid[0] != NULL ? desc->grid : NULL;
  purr_status_t status = make_room(kernel, 1, err);
  if (status == PURR_STATUS_OK) status = purr__triton_metadata_parse(context, text, bytes, name, &metadata, err);
  if (status != PURR_STATUS_OK) {
    purr__release(context, image);
    return status;
  }
  kernel->num_variants = 1;
  status = purr__triton_variant_of_metadata(context, &kernel->variants[0], &metadata, image, image_bytes, image_name,
                                            desc->signature, grid, err);
  if (status == PURR_STATUS_OK) snprintf(kernel->name, sizeof kernel->name, "%.127s", metadata.name);
  if (status == PURR_STATUS_OK && desc->name != NULL && strcmp(desc->name, metadata.name) != 0)
    status = purr__fail(err, PURR_STATUS_MISSING_KERNEL, "%.200s is of kernel '%.100s', not of '%.100s'", name,
                        metadata.name, desc->name);
  purr__triton_metadata_free(context, &metadata);
  return status;
}

static purr_status_t open_memory(purr_kernel_t *kernel, const purr_kernel_desc_t *desc, purr_error_t *err) {
  purr_context_t *context = kernel->object.context;
  if (desc->cubin == NULL || desc->cubin_bytes > PURR__CUBIN_MAX_BYTES ||
      desc->metadata_bytes > PURR__TRITON_METADATA_MAX_BYTES)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "metadata has %llu bytes and its cubin %llu; both are needed, with at most %llu and %llu",
                      (unsigned long long)desc->metadata_bytes,
                      (unsigned long long)(desc->cubin == NULL ? 0 : desc->cubin_bytes),
                      (unsigned long long)PURR__TRITON_METADATA_MAX_BYTES, (unsigned long long)PURR__CUBIN_MAX_BYTES);
  unsigned char *image = purr__allocate(context, desc->cubin_bytes + 1);
  if (image == NULL) return purr__fail_memory(err, "a kernel's image", desc->cubin_bytes + 1);
  memcpy(image, desc->cubin, desc->cubin_bytes);
  memcpy(kernel->source, "memory", sizeof "memory");
  return open_pair(kernel, desc, desc->metadata, desc->metadata_bytes, image, desc->cubin_bytes, "metadata", "cubin",
                   err);
}

/* The pair STEM.json and STEM.cubin in a folder. */
static purr_status_t open_stem(purr_kernel_t *kernel, const purr_kernel_desc_t *desc, const char *folder,
                               const char *stem, purr_error_t *err) {
  purr_context_t *context = kernel->object.context;
  purr__package_source_t source;
  unsigned char *text = NULL, *image = NULL;
  uint64_t bytes = 0, image_bytes = 0;
  char json[300], cubin[300], path[700], image_path[700];
  snprintf(json, sizeof json, "%.280s.json", stem);
  snprintf(cubin, sizeof cubin, "%.280s.cubin", stem);
  snprintf(path, sizeof path, "%.380s/%.280s", folder, json);
  snprintf(image_path, sizeof image_path, "%.380s/%.280s", folder, cubin);
  snprintf(kernel->source, sizeof kernel->source, "%.290s", path);
  purr_status_t status = purr__package_source_open(context, folder, &source, err);
  if (status != PURR_STATUS_OK) return status;
  status = purr__package_source_read(&source, json, PURR__TRITON_METADATA_MAX_BYTES, &text, &bytes, err);
  if (status == PURR_STATUS_OK)
    status = purr__package_source_read(&source, cubin, PURR__CUBIN_MAX_BYTES, &image, &image_bytes, err);
  if (status == PURR_STATUS_OK)
    status = open_pair(kernel, desc, (const char *)text, bytes, image, image_bytes, path, image_path, err);
  purr__release(context, text);
  purr__package_source_close(&source);
  return status;
}

static bool ends_with(const char *text, const char *end) {
  const size_t length = strlen(text), end_length = strlen(end);
  return length > end_length && strcmp(text + length - end_length, end) == 0;
}

/* No .json has its cubin beside it; `lonely` is one that lacks it, or "". */
static purr_status_t fail_stem(const char *folder, const char *wanted, const char *lonely, purr_error_t *err) {
  if (lonely[0] != '\0')
    return purr__fail(err, PURR_STATUS_PACKAGE,
                      "%.200s has %.100s.json, but no %.100s.cubin beside it, the image that Triton writes with it",
                      folder, lonely, lonely);
  return purr__fail(err, PURR_STATUS_PACKAGE,
                    "%.200s is neither a package (manifest.json) nor a folder of Triton's cache: it has no %.100s.json "
                    "with %.100s.cubin beside it",
                    folder, wanted != NULL ? wanted : "<name>", wanted != NULL ? wanted : "<name>");
}

/* Triton's cache folder of one compilation: the .json with a .cubin beside it. */
static purr_status_t find_stem(const char *folder, const char *wanted, char stem[256], purr_error_t *err) {
  DIR *directory = opendir(folder);
  int count = 0;
  char lonely[256] = "";
  if (directory == NULL) return purr__fail(err, PURR_STATUS_IO, "%.300s could not be opened as a folder", folder);
  for (const struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    char cubin[700], name[256];
    struct stat info;
    if (!ends_with(entry->d_name, ".json")) continue;
    const int length = (int)strlen(entry->d_name) - 5;
    snprintf(name, sizeof name, "%.*s", length < 250 ? length : 250, entry->d_name);
    if (wanted != NULL && ((int)strlen(wanted) != length || memcmp(wanted, entry->d_name, (size_t)length) != 0))
      continue;
    snprintf(cubin, sizeof cubin, "%.400s/%s.cubin", folder, name);
    if (stat(cubin, &info) != 0 || !S_ISREG(info.st_mode)) {
      /* Triton's lists of a cache entry's files are no kernels. The first by name, whatever the folder's order. */
      const bool is_list = strncmp(name, "__grp__", 7) == 0;
      if (!is_list && (lonely[0] == '\0' || strcmp(name, lonely) < 0)) snprintf(lonely, sizeof lonely, "%s", name);
      continue;
    }
    if (count++ == 0) snprintf(stem, 256, "%s", name);
  }
  closedir(directory);
  if (count == 1) return PURR_STATUS_OK;
  if (count == 0) return fail_stem(folder, wanted, lonely, err);
  return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%.200s has %d kernels of Triton's; give the name or the .json",
                    folder, count);
}

static purr_status_t open_path(purr_kernel_t *kernel, const purr_kernel_desc_t *desc, purr_error_t *err) {
  const char *path = desc->path;
  char text[1024], stem[256];
  struct stat info;
  if (stat(path, &info) != 0) return purr__fail(err, PURR_STATUS_IO, "%.300s is not there or cannot be read", path);
  if (S_ISREG(info.st_mode) && ends_with(path, ".json")) {
    const char *slash = strrchr(path, '/');
    const char *file = slash != NULL ? slash + 1 : path;
    const int length = (int)strlen(file) - 5;
    if (length > 250 || strlen(path) >= sizeof text || !purr__package_file_is_plain(file))
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                        "%.300s: the file's name has %d characters; allowed are 250 letters, digits, '.', '_' and '-'",
                        path, length + 5);
    snprintf(text, sizeof text, "%.*s", slash != NULL ? (int)(slash - path) + (slash == path) : 1,
             slash != NULL ? path : ".");
    snprintf(stem, sizeof stem, "%.*s", length, file);
    return open_stem(kernel, desc, text, stem, err);
  }
  if (S_ISDIR(info.st_mode)) {
    if ((size_t)snprintf(text, sizeof text, "%s/manifest.json", path) >= sizeof text)
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%.300s... is too long a path", path);
    if (lstat(text, &info) != 0) {
      purr_status_t status = find_stem(path, desc->name, stem, err);
      /* The file's stem is cut short where the name is long: the name itself is in the file. */
      purr_kernel_desc_t own = *desc;
      if (status == PURR_STATUS_OK) own.name = NULL;
      return status == PURR_STATUS_OK ? open_stem(kernel, &own, path, stem, err) : status;
    }
  }
  purr__package_t *package;
  purr_status_t status = purr__package_open(kernel->object.context, path, &package, err);
  return status == PURR_STATUS_OK ? open_package(kernel, desc, package, err) : status;
}

/* ---- public ---- */

static purr_status_t check_desc(const purr_kernel_desc_t *desc, purr_error_t *err) {
  const int num_sources = (desc->path != NULL) + (desc->package != NULL) + (desc->metadata != NULL);
  if (num_sources != 1)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "purr_kernel_desc_t has %d of path, package and metadata; exactly one is needed", num_sources);
  const int num_sides = (desc->grid[0] != NULL) + (desc->grid[1] != NULL) + (desc->grid[2] != NULL);
  if (num_sides != 0 && num_sides != 3)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "purr_kernel_desc_t has %d sides of a grid; allowed are 0 and 3", num_sides);
  return PURR_STATUS_OK;
}

static purr_status_t make_kernel(purr_context_t *context, purr_kernel_t **out_kernel, purr_error_t *err) {
  void *object;
  purr_status_t status = purr__object_create(context, PURR__KERNEL, sizeof(purr_kernel_t), kernel_free, &object, err);
  if (status != PURR_STATUS_OK) return status;
  *out_kernel = object;
  pthread_mutex_init(&(*out_kernel)->mutex, NULL);
  return PURR_STATUS_OK;
}

static purr_status_t finish_open(purr_kernel_t *kernel, purr_status_t status, purr_kernel_t **out_kernel) {
  if (status == PURR_STATUS_OK)
    *out_kernel = kernel;
  else
    purr__object_release(kernel);
  return status;
}

/* Keeps a package that others have open too. */
static purr_status_t open_package_in(purr_kernel_t *kernel, const purr_kernel_desc_t *desc, purr__package_t *package,
                                     purr_error_t *err) {
  if (package->context != kernel->object.context)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "package %s was opened in another context",
                      package->manifest.name);
  purr__package_retain(package);
  return open_package(kernel, desc, package, err);
}

purr_status_t purr_kernel_open(purr_context_t *context, const purr_kernel_desc_t *desc, purr_kernel_t **out_kernel,
                               purr_error_t *err) {
  if (out_kernel == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_kernel is NULL");
  *out_kernel = NULL;
  purr_kernel_desc_t own;
  purr_status_t status = purr__check(context, PURR__CONTEXT, err);
  if (status == PURR_STATUS_OK && desc == NULL) status = purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "desc is NULL");
  if (status == PURR_STATUS_OK) status = purr__read_struct(&own, sizeof own, desc, "purr_kernel_desc_t", err);
  if (status == PURR_STATUS_OK) status = purr__check_reserved(own.reserved, "purr_kernel_desc_t", err);
  if (status == PURR_STATUS_OK) status = check_desc(&own, err);
  if (status == PURR_STATUS_OK && own.package != NULL) status = purr__check(own.package, PURR__PACKAGE, err);
  if (status != PURR_STATUS_OK) return status;
  purr_kernel_t *kernel;
  status = make_kernel(context, &kernel, err);
  if (status != PURR_STATUS_OK) return status;
  if (own.package != NULL)
    status = open_package_in(kernel, &own, purr__package_of(own.package), err);
  else
    status = own.path != NULL ? open_path(kernel, &own, err) : open_memory(kernel, &own, err);
  return finish_open(kernel, status, out_kernel);
}

purr_status_t purr__kernel_open_in(purr_context_t *context, purr__package_t *package, const char *name,
                                   purr_kernel_t **out_kernel, purr_error_t *err) {
  const purr_kernel_desc_t desc = {.name = name};
  purr_kernel_t *kernel;
  *out_kernel = NULL;
  purr_status_t status = make_kernel(context, &kernel, err);
  return status == PURR_STATUS_OK ? finish_open(kernel, open_package_in(kernel, &desc, package, err), out_kernel)
                                  : status;
}

void purr_kernel_destroy(purr_kernel_t *kernel) { purr__object_release(kernel); }

int32_t purr_kernel_num_arguments(const purr_kernel_t *kernel) {
  return purr__check(kernel, PURR__KERNEL, NULL) == PURR_STATUS_OK ? purr__triton_spec(kernel)->num_arguments : 0;
}

static purr_status_t check_index(const purr_kernel_t *kernel, int32_t index, purr_error_t *err) {
  const int count = purr__triton_spec(kernel)->num_arguments;
  if (index >= 0 && index < count) return PURR_STATUS_OK;
  return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "kernel %.100s has no argument %d; it has %d, counted from 0",
                    kernel->name, index, count);
}

static int32_t kind_of(const purr__triton_argument_t *argument) {
  if (argument->constant != PURR__TRITON_NO_CONSTANT) return PURR_ARGUMENT_CONSTANT;
  switch (argument->kind) {
    case PURR__TRITON_POINTER:
      return PURR_ARGUMENT_POINTER;
    case PURR__TRITON_NUMBER:
      return argument->element->class == PURR__TRITON_FLOAT ? PURR_ARGUMENT_REAL : PURR_ARGUMENT_INTEGER;
    case PURR__TRITON_DESCRIPTOR:
      return PURR_ARGUMENT_DESCRIPTOR;
    case PURR__TRITON_MAP:
      return PURR_ARGUMENT_MAP;
    default:
      return PURR_ARGUMENT_UNKNOWN;
  }
}

purr_status_t purr_kernel_get_argument(const purr_kernel_t *kernel, int32_t index, purr_kernel_argument_t *out_argument,
                                       purr_error_t *err) {
  purr_status_t status = purr__check(kernel, PURR__KERNEL, err);
  if (status == PURR_STATUS_OK) status = check_index(kernel, index, err);
  if (status != PURR_STATUS_OK) return status;
  const purr__triton_argument_t *shown = NULL;
  int divisible_by = 0;
  bool varies = false;
  for (int i = 0; i < kernel->num_variants; i++) {
    const purr__triton_argument_t *argument = &kernel->variants[i].spec->arguments[index];
    if (argument->constant != PURR__TRITON_NO_CONSTANT) continue;
    if (shown == NULL) shown = argument;
    if (divisible_by == 0 || argument->divisible_by < divisible_by) divisible_by = argument->divisible_by;
  }
  if (shown == NULL) shown = &kernel->variants[0].spec->arguments[index];
  const int32_t kind = kind_of(shown);
  for (int i = 0; i < kernel->num_variants; i++) {
    const purr__triton_argument_t *argument = &kernel->variants[i].spec->arguments[index];
    varies = varies || kind_of(argument) != kind || strcmp(argument->type, shown->type) != 0;
  }
  const purr_kernel_argument_t own = {
      .struct_size = sizeof own,
      .kind = kind,
      .name = shown->name,
      .type = shown->type,
      .constant = kind == PURR_ARGUMENT_CONSTANT ? shown->constant_text : NULL,
      .dtype = shown->element != NULL ? shown->element->dtype : PURR_DTYPE_NONE,
      .num_bytes = kind == PURR_ARGUMENT_CONSTANT ? 0 : purr__triton_argument_bytes(shown),
      .divisible_by = divisible_by == 0 ? 1 : divisible_by,
      .varies = varies};
  return purr__write_struct(out_argument, &own, sizeof own, "purr_kernel_argument_t", err);
}

/* Letters that must change to get from one name to the other, as far as one sees at a glance. */
static int distance(const char *a, const char *b) {
  int same_start = 0, same_end = 0;
  const int a_length = (int)strlen(a), b_length = (int)strlen(b), shorter = a_length < b_length ? a_length : b_length;
  while (same_start < shorter && a[same_start] == b[same_start]) same_start++;
  while (same_end < shorter - same_start && a[a_length - 1 - same_end] == b[b_length - 1 - same_end]) same_end++;
  return (a_length > b_length ? a_length : b_length) - same_start - same_end;
}

purr_status_t purr_kernel_find_argument(const purr_kernel_t *kernel, const char *name, int32_t *out_index,
                                        purr_error_t *err) {
  purr_status_t status = purr__check(kernel, PURR__KERNEL, err);
  if (status != PURR_STATUS_OK) return status;
  if (name == NULL || out_index == NULL)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s is NULL", name == NULL ? "name" : "out_index");
  *out_index = -1;
  const purr__triton_spec_t *spec = purr__triton_spec(kernel);
  int nearest = -1, nearest_distance = (int)strlen(name) / 2 + 1;
  for (int i = 0; i < spec->num_arguments; i++) {
    if (strcmp(spec->arguments[i].name, name) == 0) {
      *out_index = i;
      return PURR_STATUS_OK;
    }
    const int now = distance(spec->arguments[i].name, name);
    if (now < nearest_distance) nearest_distance = now, nearest = i;
  }
  char shown[80];
  purr__printable(shown, sizeof shown, name, strlen(name));
  if (nearest >= 0)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "kernel %.100s has no argument '%s'; did you mean '%s'?",
                      kernel->name, shown, spec->arguments[nearest].name);
  return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "kernel %.100s has no argument '%s' among its %d", kernel->name,
                    shown, spec->num_arguments);
}

purr_status_t purr_kernel_describe(const purr_kernel_t *kernel, int32_t format, char *buffer, uint64_t capacity,
                                   uint64_t *out_length, purr_error_t *err) {
  purr_status_t status = purr__check(kernel, PURR__KERNEL, err);
  if (status == PURR_STATUS_OK) status = purr__check_format(format, err);
  if (status != PURR_STATUS_OK) return status;
  purr__text_t text = {.context = kernel->object.context};
  purr__describe_triton(kernel, format, &text);
  return purr__text_deliver(&text, buffer, capacity, out_length, err);
}
