#include "package/triton_spec.h"

#include <stdio.h>

#include "base/number.h"
#include "package/keys.h"

/* ---- types ---- */

static const purr__triton_element_t elements[] = {
    {"i1", PURR__TRITON_BOOL, 1, PURR_DTYPE_BOOL},        {"u1", PURR__TRITON_BOOL, 1, PURR_DTYPE_BOOL},
    {"i8", PURR__TRITON_SIGNED, 1, PURR_DTYPE_INT8},      {"i16", PURR__TRITON_SIGNED, 2, PURR_DTYPE_INT16},
    {"i32", PURR__TRITON_SIGNED, 4, PURR_DTYPE_INT32},    {"i64", PURR__TRITON_SIGNED, 8, PURR_DTYPE_INT64},
    {"u8", PURR__TRITON_UNSIGNED, 1, PURR_DTYPE_UINT8},   {"u16", PURR__TRITON_UNSIGNED, 2, PURR_DTYPE_UINT16},
    {"u32", PURR__TRITON_UNSIGNED, 4, PURR_DTYPE_UINT32}, {"u64", PURR__TRITON_UNSIGNED, 8, PURR_DTYPE_UINT64},
    {"fp16", PURR__TRITON_FLOAT, 2, PURR_DTYPE_FP16},     {"bf16", PURR__TRITON_FLOAT, 2, PURR_DTYPE_BF16},
    {"fp32", PURR__TRITON_FLOAT, 4, PURR_DTYPE_FP32},     {"f32", PURR__TRITON_FLOAT, 4, PURR_DTYPE_FP32},
    {"fp64", PURR__TRITON_FLOAT, 8, PURR_DTYPE_FP64},     {"fp8e4nv", PURR__TRITON_FLOAT, 1, PURR_DTYPE_E4M3},
    {"fp8e5", PURR__TRITON_FLOAT, 1, PURR_DTYPE_E5M2},    {"fp8e4b15", PURR__TRITON_FLOAT, 1, PURR_DTYPE_NONE},
    {"fp8e4b8", PURR__TRITON_FLOAT, 1, PURR_DTYPE_NONE},  {"fp8e5b16", PURR__TRITON_FLOAT, 1, PURR_DTYPE_NONE},
};

const purr__triton_element_t *purr__triton_element_find(const char *name, uint64_t length) {
  for (size_t i = 0; i < sizeof elements / sizeof elements[0]; i++)
    if (strlen(elements[i].name) == length && memcmp(elements[i].name, name, length) == 0) return &elements[i];
  return NULL;
}

/* "fp16[128, 64]" and what may follow, such as a layout. */
static bool parse_descriptor(const char *text, purr__triton_argument_t *argument) {
  uint64_t length = strcspn(text, "[");
  argument->element = purr__triton_element_find(text, length);
  if (argument->element == NULL || text[length] != '[') return false;
  for (text += length + 1;;) {
    text += strspn(text, " ");
    const uint64_t digits = strspn(text, "0123456789");
    int64_t value;
    if (argument->rank == PURR__TRITON_MAX_RANK ||
        purr__number_parse_integer(text, digits, &value) != PURR__NUMBER_GOOD || value < 1 || value > 65536)
      return false;
    argument->block[argument->rank++] = (int32_t)value;
    text += digits;
    text += strspn(text, " ");
    if (*text == ']') return text[strlen(text) - 1] == '>';
    if (*text++ != ',') return false;
  }
}

bool purr__triton_type_parse(const char *type, purr__triton_argument_t *argument) {
  static const char descriptor[] = "tensordesc<";
  argument->element = NULL;
  argument->rank = 0;
  if (strcmp(type, "constexpr") == 0) {
    argument->kind = PURR__TRITON_CONSTEXPR;
    return true;
  }
  if (strcmp(type, "nvTmaDesc") == 0) {
    argument->kind = PURR__TRITON_MAP;
    return true;
  }
  if (strncmp(type, descriptor, sizeof descriptor - 1) == 0) {
    argument->kind = PURR__TRITON_DESCRIPTOR;
    return parse_descriptor(type + sizeof descriptor - 1, argument);
  }
  argument->kind = type[0] == '*' ? PURR__TRITON_POINTER : PURR__TRITON_NUMBER;
  if (type[0] == '*') type += type[1] == 'k' ? 2 : 1; /* *k: to constant memory */
  argument->element = purr__triton_element_find(type, strlen(type));
  /* Pointers to pointers and to types that a later version brings are addresses all the same. */
  return argument->element != NULL || argument->kind == PURR__TRITON_POINTER;
}

bool purr__triton_version_parse(const char *text, int *out_version) {
  int64_t major = 0, minor = 0;
  const uint64_t first = strcspn(text, ".");
  if (text[first] != '.') return false;
  const uint64_t second = strspn(text + first + 1, "0123456789");
  if (purr__number_parse_integer(text, first, &major) != PURR__NUMBER_GOOD ||
      purr__number_parse_integer(text + first + 1, second, &minor) != PURR__NUMBER_GOOD || major < 0 || major > 1000 ||
      minor > 99)
    return false;
  *out_version = (int)(major * 100 + minor);
  return *out_version >= PURR__TRITON_OLDEST;
}

int purr__triton_argument_bytes(const purr__triton_argument_t *argument) {
  switch (argument->kind) {
    case PURR__TRITON_ANY:
      return argument->bytes;
    case PURR__TRITON_POINTER:
      return 8;
    case PURR__TRITON_NUMBER:
      return argument->element->bytes;
    case PURR__TRITON_MAP:
      return PURR__TRITON_MAP_BYTES;
    default:
      return 0;
  }
}

/* ---- descriptors ---- */

/* What the compiler calls the copy engine's types, by number. */
enum { MAP_FP4_PADDED = 14, MOST_BOX = 256, BOX_ALIGN_BYTES = 16, MAP_SWIZZLE_128 = 3 };
static const struct {
  const char *name; /* NULL: no compiler writes it */
  int bytes;
} map_types[] = {{"u8", 1},   {"u16", 2},  {"u32", 4},  {"i32", 4},  {"u64", 8},  {"i64", 8}, {"fp16", 2}, {"fp32", 4},
                 {"fp32", 4}, {"fp64", 8}, {"bf16", 2}, {"fp32", 4}, {"fp32", 4}, {NULL, 0},  {"fp4", 1},  {NULL, 0}};

bool purr__triton_map_is_possible(const purr__triton_argument_t *descriptor, bool is_manifest, char *why,
                                  uint64_t capacity) {
  const int type = descriptor->element_type, bytes = descriptor->element_bytes, swizzle = descriptor->swizzle;
  const int inner = descriptor->rank > 0 ? descriptor->block[descriptor->rank - 1] * bytes : 0;
  const char *type_key = is_manifest ? "element_type" : "elem_type";
  const char *bytes_key = is_manifest ? "element_bytes" : "elem_size";
  const char *block_key = is_manifest ? "block" : "block_size";
  if (map_types[type].name == NULL)
    snprintf(why, capacity, "%s is %d; allowed are 0 to 12 and 14", type_key, type);
  else if (map_types[type].bytes != bytes)
    snprintf(why, capacity, "%s is %d (%s), but %s is %d; allowed with it is %d", type_key, type, map_types[type].name,
             bytes_key, bytes, map_types[type].bytes);
  else if (descriptor->is_fp4_padded != (type == MAP_FP4_PADDED))
    snprintf(why, capacity, "%s is %d (%s), but fp4_padded is %s; allowed are %d with true and all others with false",
             type_key, type, map_types[type].name, descriptor->is_fp4_padded ? "true" : "false", MAP_FP4_PADDED);
  else if (descriptor->is_fp4_padded && swizzle != MAP_SWIZZLE_128)
    snprintf(why, capacity, "swizzle is %d, but fp4_padded is true; allowed with it is %d", swizzle, MAP_SWIZZLE_128);
  else {
    for (int i = 0; i < descriptor->rank; i++)
      if (descriptor->block[i] > MOST_BOX) {
        snprintf(why, capacity, "%s has %d elements in dimension %d; the copy engine takes 1 to %d", block_key,
                 descriptor->block[i], i, MOST_BOX);
        return false;
      }
    if (inner % BOX_ALIGN_BYTES != 0)
      snprintf(why, capacity,
               "%s has %d bytes in its last dimension (%d elements of %d); the copy engine takes multiples of %d",
               block_key, inner, inner / bytes, bytes, BOX_ALIGN_BYTES);
    else if (swizzle > 0 && inner > 16 << swizzle)
      snprintf(why, capacity,
               "%s has %d bytes in its last dimension (%d elements of %d), but swizzle is %d; allowed with it are %d",
               block_key, inner, inner / bytes, bytes, swizzle, 16 << swizzle);
    else
      return true;
  }
  return false;
}

/* Integers of the size serve for all types: the copy engine moves bytes. */
static bool is_map_of(const purr__triton_element_t *element, int map_type) {
  const char *name = map_types[map_type].name;
  if (map_types[map_type].bytes != element->bytes) return false;
  return map_type <= 5 || map_type == MAP_FP4_PADDED || purr__triton_element_find(name, strlen(name)) == element ||
         (strcmp(name, "fp32") == 0 && element->dtype == PURR_DTYPE_FP32);
}

bool purr__triton_map_fits(const purr__triton_argument_t *argument, const purr__triton_argument_t *descriptor,
                           char *why, uint64_t capacity) {
  if (!is_map_of(argument->element, descriptor->element_type)) {
    snprintf(why, capacity, "elements of type %d (%s)", descriptor->element_type,
             map_types[descriptor->element_type].name);
    return false;
  }
  for (int i = 0; i < argument->rank; i++) {
    /* Two elements of FP4 lie in a byte of the type. A block is cut up where it is larger than an instruction's. */
    const bool is_packed = descriptor->is_fp4_padded && i == argument->rank - 1;
    const int64_t extent = (int64_t)argument->block[i] * (is_packed ? 2 : 1);
    if (descriptor->block[i] <= extent) continue;
    snprintf(why, capacity, "%d elements at a time in dimension %d", descriptor->block[i], i);
    return false;
  }
  return true;
}

/* ---- the value of "triton" ---- */

static bool is_name(const char *text) {
  for (; *text != '\0'; text++)
    if (!((*text >= 'a' && *text <= 'z') || (*text >= 'A' && *text <= 'Z') || (*text >= '0' && *text <= '9') ||
          *text == '_' || *text == '.'))
      return false;
  return true;
}

static void take_constant(purr__json_t *json, purr__triton_argument_t *argument) {
  const purr__json_event_t event = purr__json_next(json);
  char *text = argument->constant_text;
  const uint64_t capacity = sizeof argument->constant_text;
  switch (event) {
    case PURR__JSON_NULL:
      argument->constant = PURR__TRITON_CONSTANT_NONE;
      memcpy(text, "None", 5);
      return;
    case PURR__JSON_TRUE:
    case PURR__JSON_FALSE:
      argument->constant = PURR__TRITON_CONSTANT_INTEGER;
      argument->constant_integer = event == PURR__JSON_TRUE;
      memcpy(text, event == PURR__JSON_TRUE ? "True" : "False", event == PURR__JSON_TRUE ? 5 : 6);
      return;
    case PURR__JSON_NUMBER:
      if (!purr__get_text(json, "constant", purr__is_printable, text, capacity)) return;
      argument->constant =
          purr__number_parse_integer(text, strlen(text), &argument->constant_integer) == PURR__NUMBER_GOOD
              ? PURR__TRITON_CONSTANT_INTEGER
              : PURR__TRITON_CONSTANT_REAL;
      return;
    case PURR__JSON_STRING:
      if (purr__get_text(json, "constant", purr__is_printable, text, capacity))
        argument->constant = PURR__TRITON_CONSTANT_TEXT;
      return;
    default:
      purr__json_fail(json, "constant is %s; allowed are numbers, texts, true, false and null",
                      purr__json_event_name(event));
  }
}

void purr__triton_descriptor_read(purr__json_t *json, purr__triton_argument_t *argument) {
  enum { SWIZZLE, ELEMENT_BYTES, ELEMENT_TYPE, BLOCK, FP4_PADDED };
  static const char *const keys[] = {"swizzle", "element_bytes", "element_type", "block", "fp4_padded", NULL};
  unsigned seen = 0;
  argument->has_map = true;
  if (!purr__json_take(json, PURR__JSON_OBJECT_BEGIN, "descriptor")) return;
  for (;;) {
    switch (purr__take_key(json, keys, 5, &seen)) {
      case SWIZZLE:
        purr__take_int(json, "swizzle", 0, 3, &argument->swizzle);
        break;
      case ELEMENT_BYTES:
        purr__take_int(json, "element_bytes", 1, 8, &argument->element_bytes);
        break;
      case ELEMENT_TYPE:
        purr__take_int(json, "element_type", 0, 15, &argument->element_type);
        break;
      case BLOCK:
        if (!purr__json_take(json, PURR__JSON_ARRAY_BEGIN, "block")) return;
        for (argument->rank = 0;;) {
          const purr__json_event_t event = purr__json_next(json);
          int64_t extent;
          if (event == PURR__JSON_ARRAY_END && argument->rank > 0) break;
          if (argument->rank == PURR__TRITON_MAX_RANK) {
            purr__json_fail(json, "block has more than %d dimensions", PURR__TRITON_MAX_RANK);
            return;
          }
          if (!purr__json_get_integer(json, event, "an extent of block", 1, 65536, &extent)) return;
          argument->block[argument->rank++] = (int32_t)extent;
        }
        break;
      case FP4_PADDED:
        purr__take_bool(json, "fp4_padded", &argument->is_fp4_padded);
        break;
      default:
        return;
    }
  }
}

static void read_argument(purr__json_t *json, purr__triton_argument_t *argument) {
  enum { NAME, TYPE, DIVISIBLE_BY, CONSTANT, DESCRIPTOR };
  static const char *const keys[] = {"name", "type", "divisible_by", "constant", "descriptor", NULL};
  purr__triton_argument_t descriptor = {.has_map = false};
  unsigned seen = 0;
  for (bool more = true; more;) {
    switch (purr__take_key(json, keys, 2, &seen)) {
      case NAME:
        purr__take_text(json, "the name of an argument", is_name, argument->name, sizeof argument->name);
        break;
      case TYPE:
        if (purr__take_text(json, "type", purr__is_printable, argument->type, sizeof argument->type) &&
            !purr__triton_type_parse(argument->type, argument))
          purr__json_fail(json,
                          "type is \"%s\"; allowed are Triton's words, for example \"*fp32\", \"i32\", \"fp32\", "
                          "\"tensordesc<fp16[128, 64]>\" and \"constexpr\"",
                          argument->type);
        break;
      case DIVISIBLE_BY:
        purr__take_int(json, "divisible_by", 1, 1 << 20, &argument->divisible_by);
        break;
      case CONSTANT:
        take_constant(json, argument);
        break;
      case DESCRIPTOR:
        purr__triton_descriptor_read(json, &descriptor);
        break;
      default:
        more = false;
    }
  }
  if (json->status != PURR_STATUS_OK) return;
  if (argument->kind == PURR__TRITON_CONSTEXPR && argument->constant == PURR__TRITON_NO_CONSTANT)
    purr__json_fail(json, "argument %s is a constexpr without a constant", argument->name);
  if (!descriptor.has_map) return;
  if (argument->kind != PURR__TRITON_DESCRIPTOR || descriptor.rank != argument->rank) {
    purr__json_fail(json, "argument %s has a descriptor of %d dimensions, but its type is \"%s\"", argument->name,
                    descriptor.rank, argument->type);
    return;
  }
  char why[200];
  if (!purr__triton_map_is_possible(&descriptor, true, why, sizeof why)) {
    purr__json_fail(json, "the descriptor of argument %s: %s", argument->name, why);
    return;
  }
  if (!purr__triton_map_fits(argument, &descriptor, why, sizeof why)) {
    purr__json_fail(json, "argument %s is \"%s\", but its descriptor has %s", argument->name, argument->type, why);
    return;
  }
  argument->has_map = true;
  argument->swizzle = descriptor.swizzle;
  argument->element_bytes = descriptor.element_bytes;
  argument->element_type = descriptor.element_type;
  argument->is_fp4_padded = descriptor.is_fp4_padded;
  memcpy(argument->block, descriptor.block, sizeof argument->block); /* what one instruction moves; the type has more */
}

static void read_arguments(purr_context_t *context, purr__json_t *json, purr__triton_spec_t *spec) {
  if (!purr__json_take(json, PURR__JSON_ARRAY_BEGIN, "arguments")) return;
  for (;;) {
    const purr__json_event_t event = purr__json_next(json);
    if (event == PURR__JSON_ARRAY_END || event == PURR__JSON_FAILED) return;
    if (event != PURR__JSON_OBJECT_BEGIN) {
      purr__json_fail(json, "an argument is %s; allowed is an object", purr__json_event_name(event));
      return;
    }
    if (spec->num_arguments == PURR__TRITON_MAX_ARGUMENTS) {
      purr__json_fail(json, "there are more than %d arguments", PURR__TRITON_MAX_ARGUMENTS);
      return;
    }
    if (!purr__grow(context, json, (void **)&spec->arguments, spec->num_arguments, sizeof *spec->arguments)) return;
    purr__triton_argument_t *argument = &spec->arguments[spec->num_arguments++];
    *argument = (purr__triton_argument_t){.divisible_by = 1};
    read_argument(json, argument);
    for (int i = 0; i < spec->num_arguments - 1 && json->status == PURR_STATUS_OK; i++)
      if (strcmp(spec->arguments[i].name, argument->name) == 0)
        purr__json_fail(json, "two arguments have the one name %s", argument->name);
    if (json->status != PURR_STATUS_OK) return;
  }
}

static void read_grid(purr__json_t *json, purr__triton_spec_t *spec) {
  if (!purr__json_take(json, PURR__JSON_ARRAY_BEGIN, "grid")) return;
  purr__json_event_t event;
  for (int i = 0; i < 3; i++) {
    if (!purr__take_item(json, "grid", i, 3, &event)) return;
    if (event != PURR__JSON_STRING) {
      purr__json_fail(json, "a side of the grid is %s; allowed is a string", purr__json_event_name(event));
      return;
    }
    if (!purr__get_text(json, "a side of the grid", purr__is_printable, spec->grid[i], sizeof spec->grid[i])) return;
  }
  purr__take_item(json, "grid", 3, 3, &event);
}

void purr__triton_spec_read(purr_context_t *context, purr__json_t *json, purr__triton_spec_t **out_spec) {
  enum { KERNEL, VERSION, ARGUMENTS, COOPERATIVE, OVERLAP, SCRATCH_BYTES, SCRATCH_ALIGN, GRID };
  static const char *const keys[] = {"kernel",        "version",       "arguments", "cooperative", "overlap",
                                     "scratch_bytes", "scratch_align", "grid",      NULL};
  unsigned seen = 0;
  purr__triton_spec_t *spec = purr__allocate_zeroed(context, sizeof *spec);
  *out_spec = spec;
  if (spec == NULL) {
    json->status = purr__fail_memory(json->err, "the arguments of a kernel", sizeof *spec);
    return;
  }
  if (!purr__json_take(json, PURR__JSON_OBJECT_BEGIN, "triton")) return;
  for (;;) {
    switch (purr__take_key(json, keys, GRID, &seen)) {
      case KERNEL:
        purr__take_text(json, "kernel", purr__is_entry_name, spec->kernel, sizeof spec->kernel);
        break;
      case VERSION:
        if (purr__take_text(json, "version", purr__is_printable, spec->version_text, sizeof spec->version_text) &&
            !purr__triton_version_parse(spec->version_text, &spec->version))
          purr__json_fail(json, "version is \"%s\"; allowed is for example \"3.6.0\", from 3.2 on", spec->version_text);
        break;
      case ARGUMENTS:
        read_arguments(context, json, spec);
        break;
      case COOPERATIVE:
        purr__take_bool(json, "cooperative", &spec->is_cooperative);
        break;
      case OVERLAP:
        purr__take_bool(json, "overlap", &spec->may_overlap);
        break;
      case SCRATCH_BYTES:
        purr__take_int(json, "scratch_bytes", 0, 1 << 30, &spec->scratch_bytes);
        break;
      case SCRATCH_ALIGN:
        if (purr__take_int(json, "scratch_align", 1, 1 << 16, &spec->scratch_align) &&
            (spec->scratch_align & (spec->scratch_align - 1)) != 0)
          purr__json_fail(json, "scratch_align is %d; allowed are powers of two", spec->scratch_align);
        break;
      case GRID:
        read_grid(json, spec);
        break;
      default:
        return;
    }
  }
}

void purr__triton_spec_free(purr_context_t *context, purr__triton_spec_t *spec) {
  if (spec == NULL) return;
  purr__release(context, spec->arguments);
  purr__release(context, spec);
}
