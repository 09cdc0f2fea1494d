#include "triton/variant.h"

#include <stdio.h>

#include "triton/grid.h"

/* ---- the parameters ---- */

#define MOST_INFO_BYTES (1 << 18)
#define MOST_HIDDEN 2 /* global scratch, and from 3.5 on that of a profiler */

typedef struct builder {
  purr_context_t *context;
  purr__triton_variant_t *variant;
  const purr__cubin_t *cubin;
  const purr__cubin_kernel_t *kernel;
  purr_error_t *err;
} builder_t;

/* The bytes of the image's next parameter; 0 past the last. */
static int next_bytes(const builder_t *b) {
  int offset, bytes;
  return purr__cubin_param(b->cubin, b->kernel, b->variant->num_params, &offset, &bytes) ? bytes : 0;
}

static purr_status_t fail_size(const builder_t *b, int argument_idx, int bytes, int found) {
  const purr__triton_argument_t *argument = &b->variant->spec->arguments[argument_idx];
  if (found == 0)
    return purr__fail(b->err, PURR_STATUS_PACKAGE,
                      "%s: kernel %.100s has %d parameters, but argument %d ('%s', %s) would be another one",
                      b->variant->file, b->kernel->name, b->kernel->num_params, argument_idx, argument->name,
                      argument->type);
  return purr__fail(b->err, PURR_STATUS_PACKAGE,
                    "%s: parameter %d of kernel %.100s has %d bytes, but argument %d ('%s', %s) needs %d there",
                    b->variant->file, b->variant->num_params, b->kernel->name, found, argument_idx, argument->name,
                    argument->type, bytes);
}

/* Adds `count` parameters, one for each dimension. */
static purr_status_t add_params(builder_t *b, purr__triton_source_t source, int argument_idx, int count, int bytes) {
  for (int dim = 0; dim < count; dim++) {
    const int found = next_bytes(b);
    if (found != bytes) return fail_size(b, argument_idx, bytes, found);
    b->variant->params[b->variant->num_params++] =
        (purr__triton_param_t){.source = source, .argument_idx = argument_idx, .dim = dim, .bytes = bytes};
  }
  return PURR_STATUS_OK;
}

static purr_status_t add_descriptor(builder_t *b, int argument_idx) {
  const purr__triton_argument_t *argument = &b->variant->spec->arguments[argument_idx];
  const int rank = argument->rank;
  purr_status_t status;
  if (argument->has_map) {
    status = add_params(b, PURR__TRITON_FROM_MAP, argument_idx, 1, PURR__TRITON_MAP_BYTES);
    b->variant->num_descriptors++;
  } else {
    status = add_params(b, PURR__TRITON_FROM_BASE, argument_idx, 1, 8);
    if (status == PURR_STATUS_OK) status = add_params(b, PURR__TRITON_FROM_SHAPE, argument_idx, rank, 8);
    if (status == PURR_STATUS_OK) status = add_params(b, PURR__TRITON_FROM_STRIDE, argument_idx, rank, 8);
    /* 3.4 has no flags, 3.5 the first, 3.7 both. */
    if (status == PURR_STATUS_OK && next_bytes(b) == 1)
      status = add_params(b, PURR__TRITON_FROM_NAN_FLAG, argument_idx, 1, 1);
    if (status == PURR_STATUS_OK && next_bytes(b) == 1)
      status = add_params(b, PURR__TRITON_FROM_TF32_FLAG, argument_idx, 1, 1);
  }
  if (status == PURR_STATUS_OK) status = add_params(b, PURR__TRITON_FROM_SHAPE, argument_idx, rank, 4);
  return status == PURR_STATUS_OK ? add_params(b, PURR__TRITON_FROM_STRIDE, argument_idx, rank, 8) : status;
}

static purr_status_t add_argument(builder_t *b, int argument_idx) {
  const purr__triton_argument_t *argument = &b->variant->spec->arguments[argument_idx];
  if (argument->constant != PURR__TRITON_NO_CONSTANT) return PURR_STATUS_OK;
  if (argument->kind == PURR__TRITON_DESCRIPTOR) return add_descriptor(b, argument_idx);
  return add_params(b, PURR__TRITON_FROM_VALUE, argument_idx, 1, purr__triton_argument_bytes(argument));
}

/* What stands behind the arguments is Triton's own. */
static purr_status_t add_hidden(builder_t *b) {
  purr__triton_variant_t *v = b->variant;
  const int num_hidden = b->kernel->num_params - v->num_params;
  if (num_hidden > MOST_HIDDEN)
    return purr__fail(b->err, PURR_STATUS_PACKAGE,
                      "%s: kernel %.100s has %d parameters behind its %d arguments; known are up to %d (scratch memory "
                      "of the kernel and of a profiler): an argument is missing, or the kernel is instrumented",
                      v->file, b->kernel->name, num_hidden, v->spec->num_arguments, MOST_HIDDEN);
  for (int i = 0; i < num_hidden; i++) {
    const int bytes = next_bytes(b);
    if (bytes != 8)
      return purr__fail(b->err, PURR_STATUS_PACKAGE,
                        "%s: parameter %d of kernel %.100s, behind its arguments, has %d bytes; known are pointers of "
                        "8: an argument is missing",
                        v->file, v->num_params, b->kernel->name, bytes);
    v->params[v->num_params++] =
        (purr__triton_param_t){.source = i == 0 ? PURR__TRITON_FROM_SCRATCH : PURR__TRITON_FROM_NOTHING, .bytes = 8};
  }
  v->num_hidden = num_hidden;
  if (v->spec->scratch_bytes > 0 && num_hidden == 0)
    return purr__fail(b->err, PURR_STATUS_PACKAGE,
                      "%s: kernel %.100s wants %d bytes of scratch memory a block, but has no parameter for it",
                      v->file, b->kernel->name, v->spec->scratch_bytes);
  return PURR_STATUS_OK;
}

static void count_promises(purr__triton_variant_t *v) {
  for (int i = 0; i < v->spec->num_arguments; i++) {
    const purr__triton_argument_t *argument = &v->spec->arguments[i];
    v->num_promises += argument->constant != PURR__TRITON_NO_CONSTANT ? 2 : argument->divisible_by > 1;
  }
}

/* Integers that are set later count as `unknown`, each a little more than the one before. */
typedef struct names {
  const purr__triton_spec_t *spec;
  int64_t unknown;
} names_t;

static bool knows_name(const void *user, const char *name, uint64_t length, int64_t *out_value) {
  const names_t *names = user;
  for (int i = 0; i < names->spec->num_arguments; i++) {
    const purr__triton_argument_t *argument = &names->spec->arguments[i];
    if (strlen(argument->name) != length || memcmp(argument->name, name, length) != 0) continue;
    const bool is_constant = argument->constant != PURR__TRITON_NO_CONSTANT;
    *out_value = is_constant ? argument->constant_integer : names->unknown + i;
    return is_constant ? argument->constant == PURR__TRITON_CONSTANT_INTEGER
                       : argument->kind == PURR__TRITON_NUMBER && argument->element->class != PURR__TRITON_FLOAT;
  }
  return false;
}

static bool knows_nothing(const void *user, const char *name, uint64_t length, int64_t *out_value) {
  (void)user, (void)name, (void)length, (void)out_value;
  return false;
}

/* Whether a rule has a value for some integers: what divides by 0 for one of them may not for others. */
static bool has_value(const purr__triton_spec_t *spec, const char *rule, char *why, uint64_t capacity) {
  static const int64_t unknown[] = {1, 2, 129, 4099, 1000003};
  int64_t value;
  for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
    const names_t names = {.spec = spec, .unknown = unknown[i]};
    if (purr__grid_evaluate(rule, knows_name, &names, &value, why, capacity)) return true;
    if (strcmp(why, "it divides by 0") != 0) return false;
  }
  return false;
}

/* Whether the rules of the grid can be read, know their names, and are not always 0. */
static purr_status_t check_grid(const builder_t *b) {
  char why[160];
  int64_t value;
  const purr__triton_spec_t *spec = b->variant->spec;
  for (int i = 0; i < 3; i++) {
    const char *rule = spec->grid[i];
    if (rule[0] == '\0' && spec->grid[0][0] == '\0') continue;
    if (!has_value(spec, rule, why, sizeof why))
      return purr__fail(b->err, PURR_STATUS_PACKAGE, "%s: side %d of the grid is \"%.80s\": %s", b->variant->file, i,
                        rule, why);
    if (purr__grid_evaluate(rule, knows_nothing, NULL, &value, why, sizeof why) && value < 1)
      return purr__fail(b->err, PURR_STATUS_PACKAGE,
                        "%s: side %d of the grid is \"%.80s\", with which nothing ever runs", b->variant->file, i,
                        rule);
  }
  return PURR_STATUS_OK;
}

/* From 3.6 on a cluster is compiled in; before, the launch makes it. */
static purr_status_t check_cluster(const builder_t *b) {
  enum { FIRST_COMPILED_IN = 306 };
  const int *cluster = b->variant->entry.cluster;
  if (b->variant->spec->version < FIRST_COMPILED_IN || b->kernel->cluster[0] != 0 ||
      cluster[0] * cluster[1] * cluster[2] == 1)
    return PURR_STATUS_OK;
  return purr__fail(b->err, PURR_STATUS_PACKAGE,
                    "%s: kernel %.100s is to run in clusters of %d x %d x %d blocks, but is not compiled for clusters, "
                    "as Triton %s would have done",
                    b->variant->file, b->kernel->name, cluster[0], cluster[1], cluster[2],
                    b->variant->spec->version_text);
}

/* Everything but the arguments is known: lists the parameters and holds them against the image. */
static purr_status_t list_params(builder_t *b) {
  purr__triton_variant_t *v = b->variant;
  if (b->kernel->info_bytes > MOST_INFO_BYTES) /* they are searched again and again */
    return purr__fail(b->err, PURR_STATUS_PACKAGE,
                      "%s: the attributes of kernel %.100s have %llu bytes; allowed are %d", v->file, b->kernel->name,
                      (unsigned long long)b->kernel->info_bytes, MOST_INFO_BYTES);
  const uint64_t bytes = (uint64_t)(b->kernel->num_params + 1) * sizeof *v->params;
  v->params = purr__allocate_zeroed(b->context, bytes);
  if (v->params == NULL) return purr__fail_memory(b->err, "the parameters of a kernel", bytes);
  purr_status_t status = PURR_STATUS_OK;
  for (int i = 0; i < v->spec->num_arguments && status == PURR_STATUS_OK; i++) status = add_argument(b, i);
  if (status == PURR_STATUS_OK) status = add_hidden(b);
  if (status == PURR_STATUS_OK) status = check_grid(b);
  if (status == PURR_STATUS_OK) status = check_cluster(b);
  count_promises(v);
  v->registers = b->kernel->registers;
  v->stack_bytes = b->kernel->stack_bytes;
  v->static_shared_bytes = b->kernel->static_shared_bytes;
  return status;
}

/* ---- from a package ---- */

purr_status_t purr__triton_variant_of_package(purr__triton_variant_t *variant, const purr__package_t *package,
                                              int kernel_idx, purr_error_t *err) {
  const purr__manifest_kernel_t *entry = &package->manifest.kernels[kernel_idx];
  const purr__manifest_image_t *image = &package->manifest.images[entry->image_idx];
  *variant = (purr__triton_variant_t){
      .entry = *entry, .spec = entry->triton, .arch = image->arch, .image_idx = entry->image_idx};
  snprintf(variant->file, sizeof variant->file, "%.160s/%s", package->source.name, image->file);
  purr__package_image_t read;
  purr_status_t status = purr__package_read_image(package, entry->image_idx, &read, err);
  if (status != PURR_STATUS_OK) return status;
  builder_t b = {.context = package->context,
                 .variant = variant,
                 .cubin = &read.cubin,
                 .kernel = purr__cubin_find(&read.cubin, entry->entry),
                 .err = err};
  status = list_params(&b);
  purr__package_free_image(package, &read);
  return status;
}

/* ---- from Triton's metadata ---- */

static purr_status_t add_unnamed(builder_t *b, const purr__triton_metadata_t *metadata) {
  purr__triton_spec_t *spec = b->variant->own_spec;
  const int num_params = b->kernel->num_params - metadata->num_hidden;
  int num_maps = 0;
  if (num_params < 0 || num_params > 32 * PURR__TRITON_MAX_ARGUMENTS)
    return purr__fail(
        b->err, PURR_STATUS_PACKAGE, "%s: kernel %.100s has %d parameters, but Triton %s adds %d behind the arguments",
        b->variant->file, b->kernel->name, b->kernel->num_params, metadata->version_text, metadata->num_hidden);
  const uint64_t bytes = (uint64_t)(num_params + 1) * sizeof *spec->arguments;
  spec->arguments = purr__allocate_zeroed(b->context, bytes);
  if (spec->arguments == NULL) return purr__fail_memory(b->err, "the arguments of a kernel", bytes);
  for (int p = 0; p < num_params; p++) {
    int offset;
    purr__triton_argument_t *argument = &spec->arguments[spec->num_arguments];
    *argument = (purr__triton_argument_t){.kind = PURR__TRITON_ANY, .divisible_by = 1};
    if (!purr__cubin_param(b->cubin, b->kernel, p, &offset, &argument->bytes))
      return purr__fail(b->err, PURR_STATUS_PACKAGE, "%s: kernel %.100s does not describe its parameter %d",
                        b->variant->file, b->kernel->name, p);
    if (argument->bytes < 1 || argument->bytes > PURR__TRITON_MAP_BYTES)
      return purr__fail(b->err, PURR_STATUS_PACKAGE,
                        "%s: parameter %d of kernel %.100s has %d bytes; Triton's have 1 to %d", b->variant->file, p,
                        b->kernel->name, argument->bytes, PURR__TRITON_MAP_BYTES);
    while (num_maps < metadata->num_descriptors && !metadata->descriptors[num_maps].has_map) num_maps++;
    if (argument->bytes == PURR__TRITON_MAP_BYTES && num_maps < metadata->num_descriptors) {
      *argument = metadata->descriptors[num_maps++];
      p += 2 * argument->rank; /* its shape and strides */
    }
    snprintf(argument->name, sizeof argument->name, "%d", spec->num_arguments);
    if (argument->kind == PURR__TRITON_ANY)
      snprintf(argument->type, sizeof argument->type, "%d bytes", argument->bytes);
    else
      snprintf(argument->type, sizeof argument->type, "tensordesc of %d dimensions", argument->rank);
    spec->num_arguments++;
  }
  return PURR_STATUS_OK;
}

/* Triton's words about the launch against the image's. */
static purr_status_t check_image(const builder_t *b, const purr__triton_metadata_t *m) {
  const char *file = b->variant->file;
  const int *threads = b->kernel->exact_threads, *cluster = b->kernel->cluster;
  if (b->cubin->arch.number != m->arch)
    return purr__fail(b->err, PURR_STATUS_INCOMPATIBLE_BINARY, "%s is compiled for %s, but Triton's metadata says %d",
                      file, PURR__ARCH_TEXT(b->cubin->arch), m->arch);
  if (threads[0] != 0 && (threads[0] != 32 * m->num_warps || threads[1] != 1 || threads[2] != 1))
    return purr__fail(
        b->err, PURR_STATUS_PACKAGE,
        "%s: kernel %.100s is compiled for blocks of %d x %d x %d threads, but num_warps is %d (%d threads)", file,
        b->kernel->name, threads[0], threads[1], threads[2], m->num_warps, 32 * m->num_warps);
  if (cluster[0] != 0 && memcmp(cluster, m->cluster, sizeof m->cluster) != 0)
    return purr__fail(b->err, PURR_STATUS_PACKAGE,
                      "%s: kernel %.100s is compiled for clusters of %d x %d x %d blocks, but Triton's metadata says "
                      "%d x %d x %d",
                      file, b->kernel->name, cluster[0], cluster[1], cluster[2], m->cluster[0], m->cluster[1],
                      m->cluster[2]);
  if (m->shared_bytes > purr__arch_most_shared_bytes(b->cubin->arch))
    return purr__fail(
        b->err, PURR_STATUS_PACKAGE,
        "%s: kernel %.100s wants %d bytes of dynamic shared memory; a block has at most %d on devices that "
        "run %s images",
        file, b->kernel->name, m->shared_bytes, purr__arch_most_shared_bytes(b->cubin->arch),
        PURR__ARCH_TEXT(b->cubin->arch));
  return PURR_STATUS_OK;
}

static purr_status_t fill_spec(builder_t *b, const purr__triton_metadata_t *m, const char *signature,
                               const char *const *grid) {
  purr__triton_variant_t *v = b->variant;
  purr__triton_spec_t *spec = v->spec = v->own_spec = purr__allocate_zeroed(b->context, sizeof *spec);
  if (spec == NULL) return purr__fail_memory(b->err, "the arguments of a kernel", sizeof *spec);
  snprintf(spec->kernel, sizeof spec->kernel, "%.127s", m->name);
  memcpy(spec->version_text, m->version_text, sizeof spec->version_text);
  spec->version = m->version;
  spec->is_cooperative = m->is_cooperative;
  spec->may_overlap = m->may_overlap;
  spec->scratch_bytes = m->scratch_bytes;
  spec->scratch_align = m->scratch_align;
  for (int i = 0; grid != NULL && i < 3; i++) {
    if (strlen(grid[i]) >= sizeof spec->grid[i])
      return purr__fail(b->err, PURR_STATUS_INVALID_ARGUMENT, "side %d of the grid has %zu characters; allowed are %zu",
                        i, strlen(grid[i]), sizeof spec->grid[i] - 1);
    memcpy(spec->grid[i], grid[i], strlen(grid[i]) + 1);
  }
  v->entry = (purr__manifest_kernel_t){.threads = 32 * m->num_warps,
                                       .shared_bytes = m->shared_bytes,
                                       .cluster = {m->cluster[0], m->cluster[1], m->cluster[2]},
                                       .params_bytes = b->kernel->params_bytes,
                                       .triton = spec};
  memcpy(v->entry.entry, m->name, sizeof v->entry.entry);
  memcpy(v->entry.role, "triton", sizeof "triton");
  return signature != NULL ? purr__triton_signature_parse(b->context, signature, m, spec, b->err) : add_unnamed(b, m);
}

purr_status_t purr__triton_variant_of_metadata(purr_context_t *context, purr__triton_variant_t *variant,
                                               const purr__triton_metadata_t *metadata, unsigned char *image,
                                               uint64_t image_bytes, const char *file, const char *signature,
                                               const char *const *grid, purr_error_t *err) {
  *variant = (purr__triton_variant_t){.image_idx = -1, .image = image, .image_bytes = image_bytes};
  snprintf(variant->file, sizeof variant->file, "%.290s", file);
  purr__cubin_t cubin;
  purr_status_t status = purr__cubin_parse(context, image, image_bytes, variant->file, &cubin, err);
  if (status != PURR_STATUS_OK) return status;
  variant->arch = cubin.arch;
  builder_t b = {.context = context,
                 .variant = variant,
                 .cubin = &cubin,
                 .kernel = purr__cubin_find(&cubin, metadata->name),
                 .err = err};
  if (b.kernel == NULL)
    status =
        purr__fail(err, PURR_STATUS_MISSING_KERNEL, "%s has no kernel named %.128s, which Triton's metadata promises",
                   variant->file, metadata->name);
  if (status == PURR_STATUS_OK) status = check_image(&b, metadata);
  if (status == PURR_STATUS_OK) status = fill_spec(&b, metadata, signature, grid);
  if (status == PURR_STATUS_OK) status = list_params(&b);
  purr__cubin_free(context, &cubin);
  return status;
}

void purr__triton_variant_free(purr_context_t *context, purr__triton_variant_t *variant) {
  purr__release(context, variant->params);
  purr__release(context, variant->image);
  purr__triton_spec_free(context, variant->own_spec);
  *variant = (purr__triton_variant_t){0};
}
