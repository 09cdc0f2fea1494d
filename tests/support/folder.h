/* A folder that a test fills and that goes with its files. */
#ifndef PURR_TEST_FOLDER_H
#define PURR_TEST_FOLDER_H

#include <stdint.h>

typedef struct test_folder {
  char path[256];
} test_folder_t;

/* Makes an empty folder below the system's folder for temporary files. */
test_folder_t test_folder_make(void);
/* Removes it with its files and the folders in it. */
void test_folder_remove(const test_folder_t *folder);

/* "FOLDER/name", valid until the fourth next call. */
const char *test_folder_path(const test_folder_t *folder, const char *name);
void test_folder_write(const test_folder_t *folder, const char *name, const void *data, uint64_t bytes);
void test_folder_write_text(const test_folder_t *folder, const char *name, const char *text);
/* Makes a folder in it. */
test_folder_t test_folder_add(const test_folder_t *folder, const char *name);

/* A whole file, which must be there; the caller frees it. */
unsigned char *test_read_file(const char *path, uint64_t *out_bytes);

#endif
