#include "support/package.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "package/sha256.h"

void test_package_add_image(const test_folder_t *folder, const char *image, const char *file) {
  char path[512];
  uint64_t bytes;
  snprintf(path, sizeof path, "%s/cubins/%s", PURR_TEST_DATA, image);
  unsigned char *data = test_read_file(path, &bytes);
  test_folder_write(folder, file, data, bytes);
  free(data);
}

const char *test_package_kernel(const char *entry, const char *role, int threads, int shared_bytes, int cluster,
                                int params_bytes) {
  static char texts[8][512];
  static int next;
  char *text = texts[next++ % 8];
  snprintf(text, sizeof texts[0],
           "{\"entry\": \"%s\", \"role\": \"%s\", \"threads\": %d, \"shared_bytes\": %d, \"cluster\": [%d, 1, 1], "
           "\"tile\": [0, 0], \"params_version\": 1, \"params_bytes\": %d, \"shapes\": []}",
           entry, role, threads, shared_bytes, cluster, params_bytes);
  return text;
}

void test_package_write_manifest(const test_folder_t *folder, const char *name, const test_image_t *images) {
  char text[8192];
  int length = snprintf(text, sizeof text,
                        "{\"format\": 1, \"name\": \"%s\", \"producer\": \"purr tests\", \"images\": [", name);
  for (int i = 0; images[i].file != NULL; i++) {
    char digest_text[PURR__SHA256_TEXT_BYTES] = "";
    if (images[i].sha256 == NULL) {
      unsigned char digest[PURR__SHA256_BYTES];
      uint64_t bytes;
      unsigned char *data = test_read_file(test_folder_path(folder, images[i].file), &bytes);
      purr__sha256(data, bytes, digest);
      purr__sha256_print(digest, digest_text);
      free(data);
    }
    length += snprintf(text + length, sizeof text - (size_t)length,
                       "%s{\"file\": \"%s\", \"arch\": \"%s\", \"sha256\": \"%s\", \"kernels\": [%s]}",
                       i > 0 ? ", " : "", images[i].file, images[i].arch,
                       images[i].sha256 != NULL ? images[i].sha256 : digest_text, images[i].kernels);
  }
  snprintf(text + length, sizeof text - (size_t)length, "]}");
  test_folder_write_text(folder, "manifest.json", text);
}

void test_package_fill(const test_folder_t *folder, const char *name, const char *arch) {
  char image[64], kernels[2048];
  snprintf(image, sizeof image, "kernels.%s.cubin", arch);
  snprintf(kernels, sizeof kernels, "%s, %s, %s", test_package_kernel("vector_add", "add", 128, 0, 1, 32),
           test_package_kernel("shared_sum", "sum", 128, 0, 1, 16), test_package_kernel("fault", "fault", 1, 0, 1, 0));
  test_package_add_image(folder, image, image);
  test_package_write_manifest(folder, name, (test_image_t[]){{image, arch, kernels, NULL}, {0}});
}

test_folder_t test_package_copy(const char *package, const char *old, const char *new, int occurrence) {
  const test_folder_t folder = test_folder_make();
  DIR *files = opendir(package);
  for (struct dirent *file; files != NULL && (file = readdir(files)) != NULL;) {
    char path[512];
    uint64_t bytes;
    if (file->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "%s/%s", package, file->d_name);
    unsigned char *data = test_read_file(path, &bytes);
    if (strcmp(file->d_name, "manifest.json") != 0) {
      test_folder_write(&folder, file->d_name, data, bytes);
    } else {
      char *edited = calloc(2, bytes + 1), *to = edited;
      int number = 0;
      for (uint64_t i = 0; i < bytes;) {
        bool is_here = bytes - i >= strlen(old) && memcmp(data + i, old, strlen(old)) == 0;
        if (is_here && number++ != occurrence && occurrence >= 0) is_here = false;
        if (is_here)
          to += sprintf(to, "%s", new);
        else
          *to++ = (char)data[i];
        i += is_here ? strlen(old) : 1;
      }
      test_folder_write_text(&folder, file->d_name, edited);
      free(edited);
    }
    free(data);
  }
  if (files != NULL) closedir(files);
  return folder;
}
