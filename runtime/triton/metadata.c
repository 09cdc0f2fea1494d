#include "triton/metadata.h"

#include <stdio.h>

#include "package/keys.h"

/* The keys that are read; all others are passed over. */
enum {
  NAME,
  NUM_WARPS,
  NUM_CTAS,
  SHARED,
  TARGET,
  NUM_REQUIRED,
  CLUSTER_DIMS = NUM_REQUIRED,
  VERSION,
  COOPERATIVE,
  OVERLAP,
  SCRATCH_BYTES,
  SCRATCH_ALIGN,
  PROFILE_BYTES,
  DESCRIPTORS,
  INSTRUMENTATION,
  WARP_SIZE,
  TENSOR_MEMORY,
  NUM_KEYS
};
static const char *const keys[NUM_KEYS] = {"name",
                                           "num_warps",
                                           "num_ctas",
                                           "shared",
                                           "target",
                                           "cluster_dims",
                                           "triton_version",
                                           "launch_cooperative_grid",
                                           "launch_pdl",
                                           "global_scratch_size",
                                           "global_scratch_align",
                                           "profile_scratch_size",
                                           "tensordesc_meta",
                                           "instrumentation_mode",
                                           "warp_size",
                                           "tmem_size"};

typedef struct reader {
  purr_context_t *context;
  purr__json_t json;
  purr__triton_metadata_t *metadata;
  int raw_cluster[3];
  int tensor_memory; /* columns of a block */
  unsigned seen;
} reader_t;

/* An integer, or null for the least that it may be. */
static void take_int_or_null(purr__json_t *json, const char *what, int min, int max, int *out) {
  int64_t value = min;
  const purr__json_event_t event = purr__json_next(json);
  if (event != PURR__JSON_NULL && !purr__json_get_integer(json, event, what, min, max, &value)) return;
  *out = (int)value;
}

/* It is compiled in, and no GPU that is known of has another. */
static void take_warp_size(purr__json_t *json, const char *what) {
  int warp_size;
  purr__take_int(json, what, 32, 32, &warp_size);
}

static void read_target(reader_t *r) {
  purr__json_t *json = &r->json;
  char backend[32] = "", shown[64];
  int arch = 0;
  if (!purr__json_take(json, PURR__JSON_OBJECT_BEGIN, "target")) return;
  for (;;) {
    const purr__json_event_t event = purr__json_next(json);
    if (event == PURR__JSON_FAILED) return;
    if (event == PURR__JSON_OBJECT_END) break;
    if (purr__json_is(json, "backend"))
      purr__take_text(json, "target.backend", purr__is_printable, backend, sizeof backend);
    else if (purr__json_is(json, "arch")) {
      const purr__json_event_t value = purr__json_next(json);
      if (value == PURR__JSON_STRING && strcmp(backend, "cuda") != 0) continue; /* AMD's: "gfx942" */
      int64_t number;
      if (!purr__json_get_integer(json, value, "target.arch", 10, 999, &number)) return;
      arch = (int)number;
    } else if (purr__json_is(json, "warp_size") && strcmp(backend, "cuda") == 0)
      take_warp_size(json, "target.warp_size");
    else
      purr__json_skip(json);
  }
  if (strcmp(backend, "cuda") != 0)
    purr__json_fail(json, "target.backend is \"%s\"; allowed is \"cuda\"",
                    purr__printable(shown, sizeof shown, backend, strlen(backend)));
  else if (arch == 0)
    purr__json_fail(json, "the key \"arch\" of target is missing");
  r->metadata->arch = arch;
}

/* One entry of tensordesc_meta, whose keys are Triton's. */
static void read_descriptor(purr__json_t *json, int idx, purr__triton_argument_t *descriptor) {
  bool has_block = false, has_type = false, has_swizzle = false, is_im2col = false;
  char why[200];
  descriptor->has_map = true;
  for (;;) {
    const purr__json_event_t event = purr__json_next(json);
    if (event == PURR__JSON_FAILED) return;
    if (event == PURR__JSON_OBJECT_END) break;
    if (purr__json_is(json, "swizzle"))
      has_swizzle = purr__take_int(json, "swizzle", 0, 3, &descriptor->swizzle);
    else if (purr__json_is(json, "elem_size"))
      purr__take_int(json, "elem_size", 1, 8, &descriptor->element_bytes);
    else if (purr__json_is(json, "elem_type"))
      has_type = purr__take_int(json, "elem_type", 0, 15, &descriptor->element_type);
    else if (purr__json_is(json, "fp4_padded"))
      purr__take_bool(json, "fp4_padded", &descriptor->is_fp4_padded);
    else if (purr__json_is(json, "is_im2col"))
      purr__take_bool(json, "is_im2col", &is_im2col);
    else if (purr__json_is(json, "block_size")) {
      if (!purr__json_take(json, PURR__JSON_ARRAY_BEGIN, "block_size")) return;
      for (has_block = true;;) {
        const purr__json_event_t extent = purr__json_next(json);
        int64_t value;
        if (extent == PURR__JSON_ARRAY_END) break;
        if (extent != PURR__JSON_FAILED && descriptor->rank == PURR__TRITON_MAX_RANK) {
          purr__json_fail(json, "block_size has more than %d dimensions", PURR__TRITON_MAX_RANK);
          return;
        }
        if (!purr__json_get_integer(json, extent, "block_size", 1, 65536, &value)) return;
        descriptor->block[descriptor->rank++] = (int32_t)value;
      }
    } else
      purr__json_skip(json);
  }
  if (is_im2col)
    purr__json_fail_as(json, PURR_STATUS_UNSUPPORTED, "a descriptor is of the im2col kind; only tiled ones are known");
  else if (!has_block || descriptor->rank == 0 || descriptor->element_bytes == 0 || !has_type || !has_swizzle)
    purr__json_fail(json, "a descriptor of tensordesc_meta lacks %s",
                    descriptor->element_bytes == 0        ? "\"elem_size\""
                    : !has_block || descriptor->rank == 0 ? "\"block_size\""
                    : !has_type                           ? "\"elem_type\""
                                                          : "\"swizzle\"");
  else if (!purr__triton_map_is_possible(descriptor, false, why, sizeof why))
    purr__json_fail(json, "descriptor %d of tensordesc_meta: %s", idx, why);
}

static void read_descriptors(reader_t *r) {
  purr__json_t *json = &r->json;
  purr__triton_metadata_t *m = r->metadata;
  const purr__json_event_t first = purr__json_next(json);
  if (first == PURR__JSON_NULL || first == PURR__JSON_FAILED) return;
  if (first != PURR__JSON_ARRAY_BEGIN) {
    purr__json_fail(json, "tensordesc_meta is %s; allowed are an array and null", purr__json_event_name(first));
    return;
  }
  for (;;) {
    const purr__json_event_t event = purr__json_next(json);
    if (event == PURR__JSON_ARRAY_END || event == PURR__JSON_FAILED) return;
    if (m->num_descriptors == PURR__TRITON_MAX_ARGUMENTS) {
      purr__json_fail(json, "there are more than %d descriptors", PURR__TRITON_MAX_ARGUMENTS);
      return;
    }
    if (event != PURR__JSON_NULL && event != PURR__JSON_OBJECT_BEGIN) {
      purr__json_fail(json, "a descriptor is %s; allowed are an object and null", purr__json_event_name(event));
      return;
    }
    if (!purr__grow(r->context, json, (void **)&m->descriptors, m->num_descriptors, sizeof *m->descriptors)) return;
    purr__triton_argument_t *descriptor = &m->descriptors[m->num_descriptors++];
    *descriptor = (purr__triton_argument_t){.kind = PURR__TRITON_DESCRIPTOR, .divisible_by = 1};
    if (event == PURR__JSON_OBJECT_BEGIN) read_descriptor(json, m->num_descriptors - 1, descriptor);
  }
}

static void read_value(reader_t *r, int key) {
  purr__json_t *json = &r->json;
  purr__triton_metadata_t *m = r->metadata;
  char text[32];
  switch (key) {
    case NAME:
      purr__take_text(json, "name", purr__is_entry_name, m->name, sizeof m->name);
      break;
    case NUM_WARPS:
      purr__take_int(json, "num_warps", 1, 32, &m->num_warps);
      break;
    case NUM_CTAS:
      purr__take_int(json, "num_ctas", 1, 16, &m->num_ctas);
      break;
    case SHARED:
      purr__take_int(json, "shared", 0, 1 << 20, &m->shared_bytes);
      break;
    case TARGET:
      read_target(r);
      break;
    case CLUSTER_DIMS:
      purr__take_ints(json, "cluster_dims", 3, 1, 16, r->raw_cluster);
      break;
    case VERSION:
      if (purr__take_text(json, "triton_version", purr__is_printable, m->version_text, sizeof m->version_text) &&
          !purr__triton_version_parse(m->version_text, &m->version))
        purr__json_fail(json, "triton_version is \"%s\"; allowed is for example \"3.6.0\", from 3.2 on",
                        m->version_text);
      break;
    case COOPERATIVE:
      purr__take_bool(json, "launch_cooperative_grid", &m->is_cooperative);
      break;
    case OVERLAP:
      purr__take_bool(json, "launch_pdl", &m->may_overlap);
      break;
    case SCRATCH_BYTES:
      take_int_or_null(json, "global_scratch_size", 0, 1 << 30, &m->scratch_bytes);
      break;
    case SCRATCH_ALIGN:
      take_int_or_null(json, "global_scratch_align", 1, 1 << 16, &m->scratch_align);
      break;
    case PROFILE_BYTES:
      take_int_or_null(json, "profile_scratch_size", 0, 1 << 30, &m->profile_bytes);
      break;
    case DESCRIPTORS:
      read_descriptors(r);
      break;
    case INSTRUMENTATION: {
      const purr__json_event_t event = purr__json_next(json);
      if (event == PURR__JSON_STRING && json->token_length > 0)
        purr__json_fail_as(json, PURR_STATUS_UNSUPPORTED,
                           "the kernel was compiled with instrumentation_mode \"%s\", whose data only Triton can "
                           "provide; compile it without",
                           purr__printable(text, sizeof text, json->token, json->token_length));
      else
        purr__json_skip_rest(json, event);
      break;
    }
    case WARP_SIZE:
      take_warp_size(json, "warp_size");
      break;
    case TENSOR_MEMORY:
      take_int_or_null(json, "tmem_size", 0, 512, &r->tensor_memory);
      break;
    default:
      purr__json_skip(json);
  }
}

static void read_keys(reader_t *r) {
  purr__json_t *json = &r->json;
  if (!purr__json_take(json, PURR__JSON_OBJECT_BEGIN, "Triton's metadata")) return;
  for (;;) {
    const purr__json_event_t event = purr__json_next(json);
    if (event == PURR__JSON_FAILED || event == PURR__JSON_OBJECT_END) return;
    int key = 0;
    while (key < NUM_KEYS && !purr__json_is(json, keys[key])) key++;
    if (key < NUM_KEYS && (r->seen >> key & 1) != 0) {
      purr__json_fail(json, "the key \"%s\" is repeated", keys[key]);
      return;
    }
    if (key < NUM_KEYS) r->seen |= 1u << key;
    read_value(r, key);
  }
}

static bool has(const reader_t *r, int key) { return (r->seen >> key & 1) != 0; }

static purr_status_t fail_missing(reader_t *r) {
  char names[128];
  int length = 0, count = 0;
  for (int key = 0; key < NUM_REQUIRED; key++)
    if (!has(r, key))
      length += snprintf(names + length, sizeof names - (size_t)length, "%s\"%s\"", count++ > 0 ? ", " : "", keys[key]);
  if (count == 0) return PURR_STATUS_OK;
  return r->json.status = purr__fail(r->json.err, PURR_STATUS_PACKAGE,
                                     "%s is not what Triton writes beside a cubin: the key%s %s %s missing",
                                     r->json.name, count > 1 ? "s" : "", names, count > 1 ? "are" : "is");
}

/* What follows from all keys together. */
static purr_status_t finish(reader_t *r) {
  purr__triton_metadata_t *m = r->metadata;
  /* Up to 3.5 the compiler chose how blocks form a cluster and wrote it down; later they lie along x. */
  const bool has_dims = has(r, CLUSTER_DIMS) && m->num_ctas > 1;
  for (int i = 0; i < 3; i++) m->cluster[i] = has_dims ? r->raw_cluster[i] : i == 0 ? m->num_ctas : 1;
  const int blocks = m->cluster[0] * m->cluster[1] * m->cluster[2];
  if (blocks != m->num_ctas)
    return purr__fail(r->json.err, PURR_STATUS_PACKAGE, "%s: cluster_dims is %d x %d x %d, but num_ctas is %d",
                      r->json.name, m->cluster[0], m->cluster[1], m->cluster[2], m->num_ctas);
  if (m->scratch_align == 0) m->scratch_align = 1;
  if ((m->scratch_align & (m->scratch_align - 1)) != 0)
    return purr__fail(r->json.err, PURR_STATUS_PACKAGE, "%s: global_scratch_align is %d; allowed are powers of two",
                      r->json.name, m->scratch_align);
  if (r->tensor_memory > 0 && (m->arch < 100 || m->arch >= 120))
    return purr__fail(r->json.err, PURR_STATUS_PACKAGE,
                      "%s: tmem_size is %d, but target.arch is %d, which has no tensor memory; allowed is 0",
                      r->json.name, r->tensor_memory, m->arch);
  if (m->profile_bytes > 0)
    return purr__fail(
        r->json.err, PURR_STATUS_UNSUPPORTED,
        "%s: the kernel was compiled for a profiler and wants %d bytes a block for it; compile it without",
        r->json.name, m->profile_bytes);
  m->num_hidden = (has(r, SCRATCH_BYTES) ? 1 : 0) + (has(r, PROFILE_BYTES) ? 1 : 0);
  if (m->version == 0) {
    m->version = 302;
    memcpy(m->version_text, "3.2", 4);
  }
  return PURR_STATUS_OK;
}

purr_status_t purr__triton_metadata_parse(purr_context_t *context, const char *text, uint64_t bytes, const char *name,
                                          purr__triton_metadata_t *out_metadata, purr_error_t *err) {
  *out_metadata = (purr__triton_metadata_t){.num_ctas = 1};
  reader_t r = {.context = context, .metadata = out_metadata, .raw_cluster = {1, 1, 1}};
  purr__json_begin(&r.json, text, bytes, name, err);
  r.json.failure = PURR_STATUS_PACKAGE;
  read_keys(&r);
  if (r.json.status == PURR_STATUS_OK) purr__json_next(&r.json); /* the end, or a sentence about what comes behind */
  purr_status_t status = r.json.status;
  if (status == PURR_STATUS_OK) status = fail_missing(&r);
  if (status == PURR_STATUS_OK) status = finish(&r);
  if (status != PURR_STATUS_OK) purr__triton_metadata_free(context, out_metadata);
  return status;
}

void purr__triton_metadata_free(purr_context_t *context, purr__triton_metadata_t *metadata) {
  purr__release(context, metadata->descriptors);
  *metadata = (purr__triton_metadata_t){0};
}
