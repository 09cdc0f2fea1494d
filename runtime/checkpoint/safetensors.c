#include "checkpoint/safetensors.h"

#include "base/json.h"

/* Types that have no place in a layer or in tools are known by size alone: a file that holds some can still be read. */
static const struct {
  const char *name;
  int32_t dtype;
  uint32_t bits;
} types[] = {
    {"BF16", PURR_DTYPE_BF16, 16},   {"F32", PURR_DTYPE_FP32, 32},        {"F16", PURR_DTYPE_FP16, 16},
    {"F64", PURR_DTYPE_FP64, 64},    {"F8_E4M3", PURR_DTYPE_E4M3, 8},     {"F8_E5M2", PURR_DTYPE_E5M2, 8},
    {"F8_E8M0", PURR_DTYPE_E8M0, 8}, {"I64", PURR_DTYPE_INT64, 64},       {"I32", PURR_DTYPE_INT32, 32},
    {"I16", PURR_DTYPE_INT16, 16},   {"I8", PURR_DTYPE_INT8, 8},          {"U64", PURR_DTYPE_UINT64, 64},
    {"U32", PURR_DTYPE_UINT32, 32},  {"U16", PURR_DTYPE_UINT16, 16},      {"U8", PURR_DTYPE_UINT8, 8},
    {"BOOL", PURR_DTYPE_BOOL, 8},    {"F8_E4M3FNUZ", PURR_DTYPE_NONE, 8}, {"F8_E5M2FNUZ", PURR_DTYPE_NONE, 8},
    {"F6_E2M3", PURR_DTYPE_NONE, 6}, {"F6_E3M2", PURR_DTYPE_NONE, 6},     {"F4", PURR_DTYPE_NONE, 4},
    {"C64", PURR_DTYPE_NONE, 64},
};
enum { NUM_TYPES = sizeof types / sizeof types[0], MAX_DIMS = 64 };

const char *purr__safetensors_dtype_name(int32_t dtype) {
  for (int i = 0; i < NUM_TYPES; i++)
    if (dtype != PURR_DTYPE_NONE && types[i].dtype == dtype) return types[i].name;
  return "unknown";
}

static purr_status_t read_dtype(purr__json_t *json, purr__entry_t *entry, uint32_t *out_bits) {
  if (!purr__json_take(json, PURR__JSON_STRING, "dtype")) return json->status;
  for (int i = 0; i < NUM_TYPES; i++)
    if (purr__json_is(json, types[i].name)) {
      entry->dtype = types[i].dtype;
      *out_bits = types[i].bits;
      return PURR_STATUS_OK;
    }
  char found[64];
  return purr__json_fail(json, "tensor '%s' has dtype '%s'; known are BF16, F32, F8_E4M3, U8 and so on",
                         purr__shown(entry->name).text,
                         purr__printable(found, sizeof found, json->token, json->token_length));
}

static purr_status_t read_shape(purr__json_t *json, purr__entry_t *entry, uint64_t *out_elements) {
  if (!purr__json_take(json, PURR__JSON_ARRAY_BEGIN, "shape")) return json->status;
  *out_elements = 1;
  for (purr__json_event_t event; (event = purr__json_next(json)) != PURR__JSON_ARRAY_END; entry->num_dims++) {
    int64_t size;
    if (!purr__json_get_integer(json, event, "a size in shape", 0, INT64_MAX, &size)) return json->status;
    if (entry->num_dims == MAX_DIMS)
      return purr__json_fail(json, "tensor '%s' has more than %d dimensions", purr__shown(entry->name).text, MAX_DIMS);
    if (entry->num_dims < 4) entry->shape[entry->num_dims] = size;
    if (!purr__multiply(*out_elements, (uint64_t)size, out_elements))
      return purr__json_fail(json, "the shape of tensor '%s' multiplies to more than 2^63-1 elements",
                             purr__shown(entry->name).text);
  }
  return PURR_STATUS_OK;
}

static purr_status_t read_offsets(purr__json_t *json, int64_t *out_begin, int64_t *out_end) {
  if (purr__json_take(json, PURR__JSON_ARRAY_BEGIN, "data_offsets") &&
      purr__json_take_integer(json, "the begin of data_offsets", 0, INT64_MAX, out_begin) &&
      purr__json_take_integer(json, "the end of data_offsets", 0, INT64_MAX, out_end))
    purr__json_take(json, PURR__JSON_ARRAY_END, "a third number in data_offsets");
  return json->status;
}

/* What a tensor's three fields say must agree, and its data must lie in the file. */
static purr_status_t check_tensor(purr__json_t *json, purr__entry_t *entry, uint32_t element_bits, uint64_t elements,
                                  int64_t begin, int64_t end, uint64_t data_begin, uint64_t data_bytes) {
  uint64_t bits;
  if (begin > end)
    return purr__json_fail(json, "tensor '%s' ends at byte %lld of the data, before it begins at byte %lld",
                           purr__shown(entry->name).text, (long long)end, (long long)begin);
  if ((uint64_t)end > data_bytes)
    return purr__json_fail(json,
                           "tensor '%s' ends at byte %lld of the data, of which the file has %llu: it is cut short",
                           purr__shown(entry->name).text, (long long)end, (unsigned long long)data_bytes);
  if (!purr__multiply(elements, element_bits, &bits) || bits % 8 != 0)
    return purr__json_fail(json, "tensor '%s' has %llu elements of %u bits: too many, or no whole number of bytes",
                           purr__shown(entry->name).text, (unsigned long long)elements, element_bits);
  entry->num_bytes = (uint64_t)(end - begin);
  if (bits / 8 != entry->num_bytes)
    return purr__json_fail(json, "tensor '%s' of shape %s needs %llu bytes, its data_offsets give it %llu",
                           purr__shown(entry->name).text, purr__shown_shape(entry->shape, entry->num_dims).text,
                           (unsigned long long)bits / 8, (unsigned long long)entry->num_bytes);
  entry->begin = data_begin + (uint64_t)begin;
  return PURR_STATUS_OK;
}

/* Reads the description of a tensor, the value behind its name. */
static purr_status_t read_tensor(purr__json_t *json, purr__entry_t *entry, uint64_t data_begin, uint64_t data_bytes) {
  static const char *const fields[] = {"dtype", "shape", "data_offsets"};
  if (!purr__json_take(json, PURR__JSON_OBJECT_BEGIN, "the description of a tensor")) return json->status;
  bool seen[3] = {false};
  uint32_t element_bits = 0;
  uint64_t elements = 0;
  int64_t begin = 0, end = 0;
  for (purr__json_event_t event; (event = purr__json_next(json)) == PURR__JSON_KEY;) {
    int field = 0;
    while (field < 3 && !purr__json_is(json, fields[field])) field++;
    char found[64];
    if (field == 3)
      return purr__json_fail(json, "tensor '%s' has the field '%s'; known are dtype, shape and data_offsets",
                             purr__shown(entry->name).text,
                             purr__printable(found, sizeof found, json->token, json->token_length));
    if (seen[field])
      return purr__json_fail(json, "tensor '%s' has two %s", purr__shown(entry->name).text, fields[field]);
    seen[field] = true;
    purr_status_t status = field == 0   ? read_dtype(json, entry, &element_bits)
                           : field == 1 ? read_shape(json, entry, &elements)
                                        : read_offsets(json, &begin, &end);
    if (status != PURR_STATUS_OK) return status;
  }
  for (int field = 0; field < 3 && json->status == PURR_STATUS_OK; field++)
    if (!seen[field])
      return purr__json_fail(json, "tensor '%s' has no %s", purr__shown(entry->name).text, fields[field]);
  if (json->status != PURR_STATUS_OK) return json->status;
  return check_tensor(json, entry, element_bits, elements, begin, end, data_begin, data_bytes);
}

/* `__metadata__` is free text for people: checked for its form, not kept. */
static purr_status_t read_metadata(purr__json_t *json) {
  if (!purr__json_take(json, PURR__JSON_OBJECT_BEGIN, "__metadata__")) return json->status;
  while (purr__json_next(json) == PURR__JSON_KEY)
    if (!purr__json_take(json, PURR__JSON_STRING, "a value of __metadata__")) break;
  return json->status;
}

static bool before_by_place(const purr__entry_t *a, const purr__entry_t *b) {
  return a->begin != b->begin ? a->begin < b->begin : a->num_bytes < b->num_bytes;
}

/* The tensors, in order of their data, must cover it from the first byte to the last, each byte once. */
static purr_status_t check_places(purr__directory_t *table, int64_t first, uint64_t data_begin, uint64_t file_bytes,
                                  const char *file, purr_error_t *err) {
  purr_status_t status = purr__directory_sort(table, first, before_by_place, err);
  if (status != PURR_STATUS_OK) return status;
  uint64_t covered = data_begin;
  for (int64_t i = first; i < table->num_entries; i++) {
    const purr__entry_t *entry = table->entries[i];
    if (entry->begin < covered)
      return purr__fail(err, PURR_STATUS_CHECKPOINT, "%s: the data of tensor '%.100s' overlaps that of '%.100s'", file,
                        purr__shown(entry->name).text, purr__shown(table->entries[i - 1]->name).text);
    if (entry->begin > covered)
      return purr__fail(err, PURR_STATUS_CHECKPOINT,
                        "%s: %llu bytes in front of tensor '%s' at byte %llu of the data belong to no tensor", file,
                        (unsigned long long)(entry->begin - covered), purr__shown(entry->name).text,
                        (unsigned long long)(entry->begin - data_begin));
    covered += entry->num_bytes;
  }
  if (covered != file_bytes)
    return purr__fail(err, PURR_STATUS_CHECKPOINT, "%s: the last %llu bytes belong to no tensor", file,
                      (unsigned long long)(file_bytes - covered));
  return PURR_STATUS_OK;
}

static purr_status_t read_header(purr__directory_t *table, purr__json_t *json, uint64_t data_begin, uint64_t data_bytes,
                                 int32_t file_idx) {
  bool has_metadata = false;
  if (!purr__json_take(json, PURR__JSON_OBJECT_BEGIN, "the header")) return json->status;
  while (purr__json_next(json) == PURR__JSON_KEY) {
    if (purr__json_is(json, "__metadata__")) {
      if (has_metadata) return purr__json_fail(json, "there are two __metadata__");
      has_metadata = true;
      if (read_metadata(json) != PURR_STATUS_OK) return json->status;
      continue;
    }
    char decoded[6 * PURR__MAX_TENSOR_NAME];
    const char *name = json->token;
    uint64_t name_length = json->token_length;
    if (json->escaped && name_length <= sizeof decoded) {
      name_length = purr__json_decode(json, decoded);
      name = decoded;
    }
    purr__entry_t *entry;
    json->status = purr__directory_add(table, json->name, name, name_length, &entry, json->err);
    if (json->status != PURR_STATUS_OK) return json->status;
    entry->file_idx = file_idx;
    if (read_tensor(json, entry, data_begin, data_bytes) != PURR_STATUS_OK) return json->status;
  }
  purr__json_take(json, PURR__JSON_END, "what comes behind the header");
  return json->status;
}

purr_status_t purr__safetensors_parse(purr__directory_t *table, const char *data, uint64_t num_bytes,
                                      uint64_t file_bytes, const char *file, int32_t file_idx, uint64_t *headers_bytes,
                                      purr_error_t *err) {
  enum { LENGTH_BYTES = 8 };
  if (file_bytes < LENGTH_BYTES || num_bytes < LENGTH_BYTES)
    return purr__fail(err, PURR_STATUS_CHECKPOINT, "%s has %llu bytes; a safetensors file has at least 10", file,
                      (unsigned long long)file_bytes);
  uint64_t header_bytes = 0;
  for (int i = LENGTH_BYTES - 1; i >= 0; i--) header_bytes = header_bytes << 8 | (unsigned char)data[i];
  if (header_bytes > PURR__MAX_HEADER_BYTES)
    return purr__fail(err, PURR_STATUS_CHECKPOINT,
                      "%s: the header would have %llu bytes; allowed are %u: this is no safetensors file, or too large",
                      file, (unsigned long long)header_bytes, PURR__MAX_HEADER_BYTES);
  if (header_bytes > file_bytes - LENGTH_BYTES || header_bytes > num_bytes - LENGTH_BYTES)
    return purr__fail(err, PURR_STATUS_CHECKPOINT,
                      "%s: the header has %llu bytes, the file only %llu behind its length: it is cut short", file,
                      (unsigned long long)header_bytes, (unsigned long long)(file_bytes - LENGTH_BYTES));
  if (header_bytes == 0 || data[LENGTH_BYTES] != '{')
    return purr__fail(err, PURR_STATUS_CHECKPOINT,
                      "%s: the header does not begin with '{': this is no safetensors file", file);
  *headers_bytes += header_bytes;
  if (*headers_bytes > PURR__MAX_HEADERS_BYTES)
    return purr__fail(err, PURR_STATUS_CHECKPOINT, "%s: the headers of all shards have more than the %u bytes allowed",
                      file, PURR__MAX_HEADERS_BYTES);
  uint64_t data_begin = LENGTH_BYTES + header_bytes;
  int64_t first = table->num_entries;
  purr__json_t json;
  purr__json_begin(&json, data + LENGTH_BYTES, header_bytes, file, err);
  purr_status_t status = read_header(table, &json, data_begin, file_bytes - data_begin, file_idx);
  return status != PURR_STATUS_OK ? status : check_places(table, first, data_begin, file_bytes, file, err);
}
