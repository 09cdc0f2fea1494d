#include "package/manifest.h"

#include "base/number.h"
#include "package/keys.h"
#include "package/triton_spec.h"

/* ---- shapes ---- */

const char *purr__dim_name(purr__dim_t dim) {
  static const char *const names[] = {
#define PURR__DIM(name, text) text,
      PURR__DIMS(PURR__DIM)
#undef PURR__DIM
  };
  return names[dim];
}

bool purr__shape_rule_parse(const char *text, purr__shape_rule_t *out_rule) {
  static const char *const ops[] = {" % ", " <= ", " >= "};
  for (purr__dim_t dim = 0; dim < PURR__NUM_DIMS; dim++) {
    uint64_t length = strlen(purr__dim_name(dim));
    for (int i = 0; i < 3 && strncmp(text, purr__dim_name(dim), length) == 0; i++) {
      if (strncmp(text + length, ops[i], strlen(ops[i])) != 0) continue;
      const char *value = text + length + strlen(ops[i]);
      *out_rule = (purr__shape_rule_t){.dim = dim, .op = ops[i][1]};
      return purr__number_parse_integer(value, strlen(value), &out_rule->value) == PURR__NUMBER_GOOD &&
             out_rule->value > 0;
    }
  }
  return false;
}

const purr__shape_rule_t *purr__shape_broken_rule(const purr__manifest_kernel_t *kernel, const purr__shape_t *shape) {
  for (int i = 0; i < kernel->num_rules; i++) {
    const purr__shape_rule_t *rule = &kernel->rules[i];
    int64_t value = shape->dims[rule->dim];
    bool holds = rule->op == '%'   ? value % rule->value == 0
                 : rule->op == '<' ? value <= rule->value
                                   : value >= rule->value;
    if (!holds) return rule;
  }
  return NULL;
}

/* ---- rules ---- */

static bool take_rules(purr__json_t *json, purr__manifest_kernel_t *kernel) {
  if (!purr__json_take(json, PURR__JSON_ARRAY_BEGIN, "shapes")) return false;
  for (;;) {
    purr__json_event_t event = purr__json_next(json);
    if (event == PURR__JSON_ARRAY_END) return true;
    char text[64], shown[64];
    bool is_short = event == PURR__JSON_STRING && !json->escaped && json->token_length < sizeof text;
    if (is_short) {
      memcpy(text, json->token, json->token_length);
      text[json->token_length] = '\0';
    }
    if (event == PURR__JSON_FAILED) return false;
    if (kernel->num_rules == PURR__MAX_SHAPE_RULES) {
      purr__json_fail(json, "shapes has more than %d rules", PURR__MAX_SHAPE_RULES);
      return false;
    }
    if (!is_short || !purr__shape_rule_parse(text, &kernel->rules[kernel->num_rules])) {
      purr__json_fail(json, "\"%s\" is no rule about a shape; allowed is for example \"hidden_size %% 8\"",
                      purr__printable(shown, sizeof shown, json->token, json->token_length));
      return false;
    }
    kernel->num_rules++;
  }
}

/* ---- kernels and images ---- */

typedef struct reader {
  purr_context_t *context;
  purr__json_t json;
  purr__manifest_t *manifest;
} reader_t;

static purr_status_t stop(reader_t *r, purr_status_t status) { return r->json.status = status; }

static bool read_kernel(reader_t *r, purr__manifest_kernel_t *kernel) {
  purr__json_t *json = &r->json;
  enum { ENTRY, ROLE, THREADS, SHARED, CLUSTER, TILE, PARAMS_VERSION, PARAMS_BYTES, SHAPES, TRITON };
  static const char *const keys[] = {"entry",          "role",         "threads", "shared_bytes", "cluster", "tile",
                                     "params_version", "params_bytes", "shapes",  "triton",       NULL};
  unsigned seen = 0;
  for (;;) {
    switch (purr__take_key(json, keys, TRITON, &seen)) {
      case ENTRY:
        purr__take_text(json, "entry", purr__is_entry_name, kernel->entry, sizeof kernel->entry);
        break;
      case ROLE:
        purr__take_text(json, "role", purr__package_file_is_plain, kernel->role, sizeof kernel->role);
        break;
      case THREADS:
        purr__take_int(json, "threads", 1, 1024, &kernel->threads);
        break;
      case SHARED:
        purr__take_int(json, "shared_bytes", 0, 1 << 20, &kernel->shared_bytes);
        break;
      case CLUSTER:
        purr__take_ints(json, "cluster", 3, 1, 16, kernel->cluster);
        break;
      case TILE:
        purr__take_ints(json, "tile", 2, 0, 65536, kernel->tile);
        break;
      case PARAMS_VERSION:
        purr__take_int(json, "params_version", 0, INT32_MAX, &kernel->params_version);
        break;
      case PARAMS_BYTES:
        purr__take_int(json, "params_bytes", 0, 32764, &kernel->params_bytes);
        break;
      case SHAPES:
        take_rules(json, kernel);
        break;
      case TRITON:
        if (r->manifest->format < 2)
          purr__json_fail(json, "the key \"triton\" needs format 2, this manifest has format %d", r->manifest->format);
        else
          purr__triton_spec_read(r->context, json, &kernel->triton);
        break;
      default:
        return json->status == PURR_STATUS_OK;
    }
  }
}

static purr_status_t add_kernel(reader_t *r) {
  purr__manifest_t *m = r->manifest;
  if (m->num_kernels == PURR__MANIFEST_MAX_KERNELS)
    return purr__json_fail(&r->json, "there are more than %d kernels", PURR__MANIFEST_MAX_KERNELS);
  if (!purr__grow(r->context, &r->json, (void **)&m->kernels, m->num_kernels, sizeof *m->kernels))
    return r->json.status;
  purr__manifest_kernel_t *kernel = &m->kernels[m->num_kernels++];
  *kernel = (purr__manifest_kernel_t){.image_idx = m->num_images};
  if (read_kernel(r, kernel) && kernel->triton != NULL && strcmp(kernel->role, "triton") != 0)
    purr__json_fail(&r->json, "%s has the key \"triton\" and role \"%s\"; kernels of Triton's have role \"triton\"",
                    kernel->entry, kernel->role);
  return r->json.status;
}

static purr_status_t read_image(reader_t *r, purr__manifest_image_t *image) {
  enum { FILE_NAME, ARCH, SHA256, KERNELS };
  static const char *const keys[] = {"file", "arch", "sha256", "kernels", NULL};
  unsigned seen = 0;
  char arch[PURR__ARCH_TEXT_BYTES];
  for (;;) {
    switch (purr__take_key(&r->json, keys, 4, &seen)) {
      case FILE_NAME:
        purr__take_text(&r->json, "file (a name within the package, without folders)", purr__package_file_is_plain,
                        image->file, sizeof image->file);
        break;
      case ARCH:
        if (purr__take_text(&r->json, "arch", purr__is_printable, arch, sizeof arch) &&
            !purr__arch_parse(arch, &image->arch))
          purr__json_fail(&r->json, "arch is \"%s\"; allowed is for example \"sm_90a\"", arch);
        break;
      case SHA256:
        purr__take_digest(&r->json, image->sha256);
        break;
      case KERNELS:
        if (!purr__json_take(&r->json, PURR__JSON_ARRAY_BEGIN, "kernels")) break;
        for (;;) {
          purr__json_event_t event = purr__json_next(&r->json);
          if (event == PURR__JSON_ARRAY_END || event == PURR__JSON_FAILED) break;
          if (event != PURR__JSON_OBJECT_BEGIN)
            purr__json_fail(&r->json, "a kernel is %s; allowed is an object", purr__json_event_name(event));
          else
            add_kernel(r);
        }
        break;
      default:
        return r->json.status;
    }
  }
}

static purr_status_t read_images(reader_t *r) {
  purr__manifest_t *m = r->manifest;
  if (!purr__json_take(&r->json, PURR__JSON_ARRAY_BEGIN, "images")) return r->json.status;
  for (;;) {
    purr__json_event_t event = purr__json_next(&r->json);
    if (event == PURR__JSON_ARRAY_END || event == PURR__JSON_FAILED) return r->json.status;
    if (event != PURR__JSON_OBJECT_BEGIN)
      return purr__json_fail(&r->json, "an image is %s; allowed is an object", purr__json_event_name(event));
    if (m->num_images == PURR__MANIFEST_MAX_IMAGES)
      return purr__json_fail(&r->json, "there are more than %d images", PURR__MANIFEST_MAX_IMAGES);
    if (!purr__grow(r->context, &r->json, (void **)&m->images, m->num_images, sizeof *m->images)) return r->json.status;
    m->images[m->num_images] = (purr__manifest_image_t){.arch = {0, 0}};
    if (read_image(r, &m->images[m->num_images]) != PURR_STATUS_OK) return r->json.status;
    m->num_images++;
  }
}

/* ---- rules between entries ---- */

static bool is_same_arch(purr__arch_t a, purr__arch_t b) { return a.number == b.number && a.suffix == b.suffix; }

static purr_status_t check_entries(const purr__manifest_t *m, const char *name, purr_error_t *err) {
  for (int i = 0; i < m->num_images; i++)
    for (int j = 0; j < i; j++)
      if (strcmp(m->images[i].file, m->images[j].file) == 0)
        return purr__fail(err, PURR_STATUS_PACKAGE, "%s: the file %s stands in two images", name, m->images[i].file);
  for (int i = 0; i < m->num_kernels; i++) {
    const purr__manifest_kernel_t *kernel = &m->kernels[i];
    for (int j = 0; j < i; j++) /* Triton names all variants of a kernel alike, and gives each an image of its own. */
      if (strcmp(kernel->entry, m->kernels[j].entry) == 0 &&
          (kernel->triton == NULL || kernel->image_idx == m->kernels[j].image_idx) &&
          is_same_arch(m->images[kernel->image_idx].arch, m->images[m->kernels[j].image_idx].arch))
        return purr__fail(err, PURR_STATUS_PACKAGE, "%s: two kernels for %s have the one name %s", name,
                          PURR__ARCH_TEXT(m->images[kernel->image_idx].arch), kernel->entry);
    if (kernel->cluster[0] * kernel->cluster[1] * kernel->cluster[2] > 16)
      return purr__fail(err, PURR_STATUS_PACKAGE, "%s: the cluster of %s has %d blocks; allowed are 16", name,
                        kernel->entry, kernel->cluster[0] * kernel->cluster[1] * kernel->cluster[2]);
    const purr__arch_t arch = m->images[kernel->image_idx].arch;
    if (kernel->shared_bytes > purr__arch_most_shared_bytes(arch))
      return purr__fail(err, PURR_STATUS_PACKAGE,
                        "%s: %s wants %d bytes of dynamic shared memory; a block has at most %d on devices that run %s "
                        "images",
                        name, kernel->entry, kernel->shared_bytes, purr__arch_most_shared_bytes(arch),
                        PURR__ARCH_TEXT(arch));
  }
  return PURR_STATUS_OK;
}

/* ---- the whole ---- */

static purr_status_t read_format(reader_t *r) {
  int64_t format = 0;
  purr__json_take(&r->json, PURR__JSON_OBJECT_BEGIN, "the manifest");
  purr__json_event_t event = purr__json_next(&r->json);
  if (event == PURR__JSON_FAILED) return r->json.status;
  if (event != PURR__JSON_KEY || !purr__json_is(&r->json, "format"))
    return purr__json_fail(&r->json, "the first key of a manifest must be \"format\"");
  if (!purr__json_take_integer(&r->json, "format", 1, INT32_MAX, &format)) return r->json.status;
  r->manifest->format = (int)format;
  if (format > PURR__MANIFEST_FORMAT)
    return stop(r, purr__fail(r->json.err, PURR_STATUS_INCOMPATIBLE_BINARY,
                              "%s has format %lld, but libpurr %s reads formats up to %d; use a newer library",
                              r->json.name, (long long)format, purr_version_string(), PURR__MANIFEST_FORMAT));
  return PURR_STATUS_OK;
}

static purr_status_t read_manifest(reader_t *r) {
  enum { FORMAT, NAME, PRODUCER, IMAGES };
  static const char *const keys[] = {"format", "name", "producer", "images", NULL};
  purr__manifest_t *m = r->manifest;
  unsigned seen = 1u << FORMAT;
  if (read_format(r) != PURR_STATUS_OK) return r->json.status;
  for (int key; (key = purr__take_key(&r->json, keys, 4, &seen)) >= 0;) {
    if (key == NAME) purr__take_text(&r->json, "name", purr__package_file_is_plain, m->name, sizeof m->name);
    if (key == PRODUCER && purr__take_text(&r->json, "producer", purr__is_printable, m->producer, sizeof m->producer) &&
        strstr(m->producer, "-dirty") != NULL)
      purr__json_fail(&r->json, "producer is \"%s\": what was made from unrecorded sources is not accepted",
                      m->producer);
    if (key == IMAGES) read_images(r);
  }
  purr__json_next(&r->json); /* the end, or a sentence about what comes behind */
  if (r->json.status != PURR_STATUS_OK) return r->json.status;
  return check_entries(m, r->json.name, r->json.err);
}

purr_status_t purr__manifest_parse(purr_context_t *context, const char *text, uint64_t bytes, const char *name,
                                   purr__manifest_t *out_manifest, purr_error_t *err) {
  *out_manifest = (purr__manifest_t){0};
  if (bytes > PURR__MANIFEST_MAX_BYTES)
    return purr__fail(err, PURR_STATUS_PACKAGE, "%s has %llu bytes; allowed are %llu", name, (unsigned long long)bytes,
                      (unsigned long long)PURR__MANIFEST_MAX_BYTES);
  reader_t reader = {.context = context, .manifest = out_manifest};
  purr__json_begin(&reader.json, text, bytes, name, err);
  reader.json.failure = PURR_STATUS_PACKAGE;
  purr_status_t status = read_manifest(&reader);
  if (status != PURR_STATUS_OK) {
    purr__manifest_free(context, out_manifest);
    return status;
  }
  purr__sha256(text, bytes, out_manifest->sha256);
  return PURR_STATUS_OK;
}

void purr__manifest_free(purr_context_t *context, purr__manifest_t *manifest) {
  for (int i = 0; i < manifest->num_kernels; i++) purr__triton_spec_free(context, manifest->kernels[i].triton);
  purr__release(context, manifest->kernels);
  purr__release(context, manifest->images);
  *manifest = (purr__manifest_t){0};
}
