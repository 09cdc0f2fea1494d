/* Tensors of this program: their elements, shapes, hash, and the safetensors file they are written to. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "layer.h"

/* ---------------------------------------------------------------------------------------------------------- numbers */

float float_from_bf16(uint16_t value) {
  uint32_t bits = (uint32_t)value << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

uint16_t bf16_from_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (value != value) return 0x7FC0;
  return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16); /* to nearest, ties to even */
}

/* ---------------------------------------------------------------------------------------------------------- tensors */

static const struct {
  int32_t dtype;
  int32_t bytes;
  const char *name; /* as safetensors spells it */
} dtypes[] = {
    {PURR_DTYPE_BF16, 2, "BF16"},    {PURR_DTYPE_FP32, 4, "F32"},     {PURR_DTYPE_FP64, 8, "F64"},
    {PURR_DTYPE_INT32, 4, "I32"},    {PURR_DTYPE_INT64, 8, "I64"},    {PURR_DTYPE_FP16, 2, "F16"},
    {PURR_DTYPE_INT8, 1, "I8"},      {PURR_DTYPE_UINT8, 1, "U8"},     {PURR_DTYPE_INT16, 2, "I16"},
    {PURR_DTYPE_UINT16, 2, "U16"},   {PURR_DTYPE_UINT32, 4, "U32"},   {PURR_DTYPE_UINT64, 8, "U64"},
    {PURR_DTYPE_BOOL, 1, "BOOL"},    {PURR_DTYPE_E4M3, 1, "F8_E4M3"}, {PURR_DTYPE_E5M2, 1, "F8_E5M2"},
    {PURR_DTYPE_E8M0, 1, "F8_E8M0"},
};
enum { NUM_DTYPES = sizeof dtypes / sizeof dtypes[0] };

static int find_dtype(int32_t dtype) {
  for (int i = 0; i < NUM_DTYPES; i++)
    if (dtypes[i].dtype == dtype) return i;
  return -1;
}

const char *dtype_name(int32_t dtype) {
  int idx = find_dtype(dtype);
  return idx < 0 ? "an unknown type" : dtypes[idx].name;
}

purr_tensor_t tensor_of(int32_t dtype, const void *data, int64_t size0, int64_t size1, int64_t size2) {
  purr_tensor_t tensor = {.struct_size = sizeof tensor,
                          .dtype = dtype,
                          .num_dims = size2 > 0   ? 3
                                      : size1 > 0 ? 2
                                                  : 1,
                          .shape = {size0, size1, size2}};
  memcpy(&tensor.data, &data, sizeof data); /* the library promises not to write its inputs */
  return tensor;
}

int64_t tensor_count(const purr_tensor_t *tensor) {
  int64_t count = 1;
  for (int i = 0; i < tensor->num_dims; i++) count *= tensor->shape[i];
  return count;
}

bool tensor_same_shape(const purr_tensor_t *a, const purr_tensor_t *b) {
  if (a->num_dims != b->num_dims) return false;
  for (int i = 0; i < a->num_dims; i++)
    if (a->shape[i] != b->shape[i]) return false;
  return true;
}

const char *shape_text(char *buffer, size_t capacity, const purr_tensor_t *tensor) {
  size_t used = 0;
  for (int i = 0; i < tensor->num_dims && used < capacity; i++)
    used +=
        (size_t)snprintf(buffer + used, capacity - used, "%s%lld", i == 0 ? "[" : ", ", (long long)tensor->shape[i]);
  if (used < capacity) snprintf(buffer + used, capacity - used, "]");
  return buffer;
}

bool tensor_is_number(const purr_tensor_t *tensor) {
  return tensor->dtype == PURR_DTYPE_BF16 || tensor->dtype == PURR_DTYPE_FP32 || tensor->dtype == PURR_DTYPE_FP64;
}

double tensor_element(const purr_tensor_t *tensor, int64_t idx) {
  const char *data = tensor->data;
  switch (tensor->dtype) {
    case PURR_DTYPE_BF16: {
      uint16_t value;
      memcpy(&value, data + idx * 2, sizeof value);
      return (double)float_from_bf16(value);
    }
    case PURR_DTYPE_FP32: {
      float value;
      memcpy(&value, data + idx * 4, sizeof value);
      return (double)value;
    }
    default: {
      double value;
      memcpy(&value, data + idx * 8, sizeof value);
      return value;
    }
  }
}

uint64_t hash_memory(const void *memory, uint64_t bytes) {
  const unsigned char *data = memory;
  uint64_t hash = 0xCBF29CE484222325u;
  for (uint64_t at = 0; at < bytes; at += 8) {
    uint64_t word = 0;
    memcpy(&word, data + at, bytes - at < 8 ? bytes - at : 8);
    hash = (hash ^ word) * 0x100000001B3u;
    hash ^= hash >> 29; /* a product's high bits reach no low ones; by 32, sign bits would meet sign bits of FP32 */
  }
  return hash;
}

/* ------------------------------------------------------------------------------------------------------ safetensors */

/* The header of a safetensors file, a text of at most 1 MiB; NULL when it cannot be read. */
static char *read_header(const char *path) {
  enum { LONGEST = 1 << 20 };
  unsigned char length_bytes[8];
  FILE *file = fopen(path, "rb");
  char *header = NULL;
  if (file != NULL && fread(length_bytes, 1, 8, file) == 8) {
    uint64_t length = 0;
    for (int i = 0; i < 8; i++) length |= (uint64_t)length_bytes[i] << (8 * i);
    if (length <= LONGEST) header = calloc(1, length + 1);
    if (header != NULL && fread(header, 1, length, file) != length) header[0] = '\0';
  }
  if (file != NULL) fclose(file);
  return header;
}

int64_t captured_layer(const char *path) {
  static const char section[] = "\"__metadata__\"", key[] = "\"layer\"";
  int64_t layer = -1;
  char *header = read_header(path);
  char *at = header != NULL ? strstr(header, section) : NULL;
  if (at != NULL) {
    at += strlen(section);
    at[strcspn(at, "}")] = '\0'; /* its values are texts, so it holds no other braces */
    at = strstr(at, key);
  }
  if (at != NULL) {
    at += strlen(key);
    at += strspn(at, " :\"");
    if (*at >= '0' && *at <= '9') layer = strtoll(at, NULL, 10);
  }
  free(header);
  return layer <= 100000 ? layer : -1;
}

static bool is_file(const char *path, const struct stat *info) {
  struct stat other;
  return stat(path, &other) == 0 && other.st_dev == info->st_dev && other.st_ino == info->st_ino;
}

bool is_same_file(const char *path, const char *file_or_folder) {
  struct stat info;
  if (stat(path, &info) != 0) return false;
  if (is_file(file_or_folder, &info)) return true;
  DIR *folder = opendir(file_or_folder);
  bool found = false;
  for (const struct dirent *entry; folder != NULL && !found && (entry = readdir(folder)) != NULL;) {
    char name[4096];
    found =
        snprintf(name, sizeof name, "%s/%s", file_or_folder, entry->d_name) < (int)sizeof name && is_file(name, &info);
  }
  if (folder != NULL) closedir(folder);
  return found;
}

FILE *open_output(const char *command, const char *path, bool *out_is_new) {
  int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  *out_is_new = descriptor >= 0;
  if (descriptor < 0 && errno == EEXIST) descriptor = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
  if (file != NULL) return file;
  fail(command, "name a file in a folder that exists and can be written", "'%s' cannot be written: %s", path,
       strerror(errno));
  if (descriptor >= 0) close(descriptor);
  return NULL;
}

static uint64_t tensor_bytes(const purr_tensor_t *tensor) {
  return (uint64_t)tensor_count(tensor) * (uint64_t)dtypes[find_dtype(tensor->dtype)].bytes;
}

int write_safetensors(const char *command, FILE *file, const char *path, const named_tensor_t *tensors,
                      int num_tensors) {
  char *header = NULL;
  size_t header_bytes = 0;
  uint64_t offset = 0;
  FILE *text = open_memstream(&header, &header_bytes);
  bool good = text != NULL;
  for (int i = 0; good && i < num_tensors; i++) {
    const purr_tensor_t *tensor = &tensors[i].tensor;
    uint64_t end = offset + tensor_bytes(tensor);
    fprintf(text, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%llu,%llu]}", i == 0 ? '{' : ',',
            tensors[i].name, dtype_name(tensor->dtype), SHAPE_TEXT(tensor), (unsigned long long)offset,
            (unsigned long long)end);
    offset = end;
  }
  if (text != NULL) {
    fputc('}', text);
    while (ftell(text) % 8 != 0) fputc(' ', text); /* the data starts at a multiple of 8 */
    good = fclose(text) == 0;
  }
  if (good) {
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(header_bytes >> (8 * i));
    good = fwrite(length, 1, 8, file) == 8 && fwrite(header, 1, header_bytes, file) == header_bytes;
  }
  for (int i = 0; good && i < num_tensors; i++) {
    uint64_t bytes = tensor_bytes(&tensors[i].tensor);
    good = bytes == 0 || fwrite(tensors[i].tensor.data, 1, bytes, file) == bytes;
  }
  free(header);
  struct stat info;
  if (good) good = fflush(file) == 0 && fstat(fileno(file), &info) == 0;
  if (good && S_ISREG(info.st_mode)) good = ftruncate(fileno(file), ftell(file)) == 0; /* what was there before */
  good = !ferror(file) && good;
  if (fclose(file) != 0 || !good)
    return fail(command, "free some space or write elsewhere", "'%s' could not be written: %s", path, strerror(errno));
  return EXIT_GOOD;
}
