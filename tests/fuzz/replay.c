/* Stands in for libFuzzer in ordinary builds: runs a target on every file of the folders that it is given. */
#include <dirent.h>
#include <sys/stat.h>

#include "fuzz.h"

static int num_inputs;

static void run_file(const char *path) {
  FILE *file = fopen(path, "rb");
  struct stat about;
  if (file == NULL || fstat(fileno(file), &about) != 0) {
    fprintf(stderr, "%s cannot be read\n", path);
    exit(1);
  }
  if (S_ISREG(about.st_mode)) {
    const size_t num_bytes = (size_t)about.st_size;
    uint8_t *data = fuzz_allocate(num_bytes);
    if (fread(data, 1, num_bytes, file) != num_bytes) {
      fprintf(stderr, "%s cannot be read whole\n", path);
      exit(1);
    }
    /* The last line before a crash names the input. */
    printf("%s\n", path);
    fflush(stdout);
    LLVMFuzzerTestOneInput(data, num_bytes);
    free(data);
    num_inputs++;
  }
  fclose(file);
}

int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    DIR *folder = opendir(argv[i]);
    if (folder == NULL) {
      fprintf(stderr, "%s is not a folder that can be read\n", argv[i]);
      return 1;
    }
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
      char path[4096];
      if (entry->d_name[0] == '.') continue;
      snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
      run_file(path);
    }
    closedir(folder);
  }
  printf("%d inputs\n", num_inputs);
  return num_inputs > 0 ? 0 : 1;
}
