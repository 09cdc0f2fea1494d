#include "support/folder.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

test_folder_t test_folder_make(void) {
  test_folder_t folder;
  const char *base = getenv("TMPDIR");
  snprintf(folder.path, sizeof folder.path, "%.200s/purr-test-XXXXXX", base != NULL ? base : "/tmp");
  if (mkdtemp(folder.path) == NULL) abort();
  return folder;
}

static void remove_tree(const char *path) {
  DIR *folder = opendir(path);
  for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    char full[1024];
    struct stat info;
    snprintf(full, sizeof full, "%s/%s", path, entry->d_name);
    if (lstat(full, &info) == 0 && S_ISDIR(info.st_mode))
      remove_tree(full);
    else
      unlink(full);
  }
  if (folder != NULL) closedir(folder);
  rmdir(path);
}

void test_folder_remove(const test_folder_t *folder) { remove_tree(folder->path); }

const char *test_folder_path(const test_folder_t *folder, const char *name) {
  static char paths[4][512];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", folder->path, name);
  return path;
}

void test_folder_write(const test_folder_t *folder, const char *name, const void *data, uint64_t bytes) {
  FILE *file = fopen(test_folder_path(folder, name), "wb");
  if (file == NULL || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) abort();
}

void test_folder_write_text(const test_folder_t *folder, const char *name, const char *text) {
  test_folder_write(folder, name, text, strlen(text));
}

test_folder_t test_folder_add(const test_folder_t *folder, const char *name) {
  test_folder_t inner;
  snprintf(inner.path, sizeof inner.path, "%s", test_folder_path(folder, name));
  if (mkdir(inner.path, 0700) != 0) abort();
  return inner;
}

unsigned char *test_read_file(const char *path, uint64_t *out_bytes) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    fprintf(stderr, "%s is missing\n", path);
    abort();
  }
  fseek(file, 0, SEEK_END);
  long bytes = ftell(file);
  rewind(file);
  unsigned char *data = malloc((size_t)bytes + 1);
  *out_bytes = fread(data, 1, (size_t)bytes, file);
  fclose(file);
  return data;
}
