#include "support/checkpoint.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool folder_create(folder_t *folder) {
  const char *parent = getenv("TMPDIR");
  snprintf(folder->path, sizeof folder->path, "%s/purr-test-XXXXXX", parent != NULL && parent[0] ? parent : "/tmp");
  return mkdtemp(folder->path) != NULL;
}

void folder_remove(const folder_t *folder) {
  DIR *dir = opendir(folder->path);
  if (dir == NULL) return;
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
    if (entry->d_name[0] != '.') unlink(folder_path(folder, entry->d_name));
  closedir(dir);
  rmdir(folder->path);
}

const char *folder_path(const folder_t *folder, const char *name) {
  static char paths[4][768];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", folder->path, name);
  return path;
}

bool folder_write(const folder_t *folder, const char *name, const void *data, size_t num_bytes) {
  FILE *file = fopen(folder_path(folder, name), "wb");
  if (file == NULL) return false;
  bool good = num_bytes == 0 || fwrite(data, 1, num_bytes, file) == num_bytes;
  return fclose(file) == 0 && good;
}

bool folder_write_text(const folder_t *folder, const char *name, const char *text) {
  return folder_write(folder, name, text, strlen(text));
}

void writer_add(writer_t *writer, const char *name, const char *dtype, int num_dims, const int64_t *shape,
                const void *data, size_t num_bytes) {
  writer->header = realloc(writer->header, writer->header_length + strlen(name) + 256);
  writer->data = realloc(writer->data, writer->data_bytes + num_bytes + 1);
  if (writer->header == NULL || writer->data == NULL) abort();
  char *text = writer->header + writer->header_length;
  text +=
      sprintf(text, "%c\"%s\": {\"dtype\": \"%s\", \"shape\": [", writer->header_length > 0 ? ',' : '{', name, dtype);
  for (int i = 0; i < num_dims; i++) text += sprintf(text, i > 0 ? ", %lld" : "%lld", (long long)shape[i]);
  text += sprintf(text, "], \"data_offsets\": [%zu, %zu]}", writer->data_bytes, writer->data_bytes + num_bytes);
  writer->header_length = (size_t)(text - writer->header);
  if (num_bytes > 0) memcpy(writer->data + writer->data_bytes, data, num_bytes);
  writer->data_bytes += num_bytes;
}

static void put_length(unsigned char *out, uint64_t length) {
  for (int i = 0; i < 8; i++) out[i] = (unsigned char)(length >> (8 * i));
}

unsigned char *writer_finish(writer_t *writer, size_t shift, size_t *out_bytes) {
  size_t length = writer->header_length > 0 ? writer->header_length + 1 : 2;
  size_t padded = (8 + length + 15) / 16 * 16 - 8 + shift;
  *out_bytes = 8 + padded + writer->data_bytes;
  unsigned char *file = malloc(*out_bytes);
  if (file == NULL) abort();
  put_length(file, padded);
  memset(file + 8, ' ', padded);
  if (writer->header_length > 0) {
    memcpy(file + 8, writer->header, writer->header_length);
    file[8 + writer->header_length] = '}';
    memcpy(file + 8 + padded, writer->data, writer->data_bytes);
  } else {
    memcpy(file + 8, "{}", 2);
  }
  free(writer->header);
  free(writer->data);
  *writer = (writer_t){0};
  return file;
}

bool writer_write(writer_t *writer, const folder_t *folder, const char *name, size_t shift) {
  size_t num_bytes;
  unsigned char *file = writer_finish(writer, shift, &num_bytes);
  bool good = folder_write(folder, name, file, num_bytes);
  free(file);
  return good;
}

unsigned char *file_from_header(const char *header, size_t header_length, size_t data_bytes, size_t *out_bytes) {
  *out_bytes = 8 + header_length + data_bytes;
  unsigned char *file = calloc(1, *out_bytes);
  if (file == NULL) abort();
  put_length(file, header_length);
  memcpy(file + 8, header, header_length);
  return file;
}
