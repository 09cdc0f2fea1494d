/* Writes small checkpoints for tests: safetensors files, good ones and bad ones, and the folders around them. */
#ifndef PURR_TEST_CHECKPOINT_H
#define PURR_TEST_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* A folder of its own below the system's temporary one; remove deletes it with the files in it. */
typedef struct folder {
  char path[256];
} folder_t;
bool folder_create(folder_t *folder);
void folder_remove(const folder_t *folder);
/* "FOLDER/NAME", valid until the next call but three. */
const char *folder_path(const folder_t *folder, const char *name);
bool folder_write(const folder_t *folder, const char *name, const void *data, size_t num_bytes);
bool folder_write_text(const folder_t *folder, const char *name, const char *text);

/* A safetensors file being put together. */
typedef struct writer {
  char *header;
  size_t header_length;
  unsigned char *data;
  size_t data_bytes;
} writer_t;
void writer_add(writer_t *writer, const char *name, const char *dtype, int num_dims, const int64_t *shape,
                const void *data, size_t num_bytes);
/* The whole file in memory, the caller's to free; the header is padded with spaces until the data begins at a multiple
 * of 16, and then by `shift` more. */
unsigned char *writer_finish(writer_t *writer, size_t shift, size_t *out_bytes);
/* The same into a file. */
bool writer_write(writer_t *writer, const folder_t *folder, const char *name, size_t shift);

/* A file from any header text and data: for headers that lie. */
unsigned char *file_from_header(const char *header, size_t header_length, size_t data_bytes, size_t *out_bytes);

#endif
