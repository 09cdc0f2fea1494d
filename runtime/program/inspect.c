/* purr inspect: says what a file holds, whatever it is that Purr reads. */
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "program.h"

static const help_t help = {
    .command = "inspect",
    .usage = "PATH [--kernel NAME] [--json]",
    .about =
        "Says what a file or folder holds. Nothing is run and no GPU is needed. PATH is one of\n"
        "  a kernel package   a folder with manifest.json, or a tar of one: its kernels with what they were\n"
        "                     compiled for, registers, shared memory, stack and spills; every image is checked\n"
        "                     against the manifest (exit code 1 when one is not what it says). Of a kernel that\n"
        "                     Triton compiled, --kernel shows the arguments and every variant\n"
        "  a Triton folder    NAME.json with NAME.cubin, as in Triton's cache, or that .json: how the kernel is\n"
        "                     launched, its parameters, those that Triton hides, and what the files do not tell\n"
        "  a cubin            the same of one image, without a manifest\n"
        "  a checkpoint       a folder with config.json or safetensors files, or one such file: per layer the\n"
        "                     experts, shapes, types, bytes, and what is missing\n"
        "  a layer config     *.yaml: the layer with all its keys",
    .example =
        "  purr inspect /usr/lib/purr/packages/purr\n"
        "  purr inspect grouped_gemm.sm_90a.cubin --json\n"
        "  purr inspect ~/.triton/cache/FOLDER\n"
        "  purr inspect Qwen3-30B-A3B",
};

typedef enum kind { KIND_UNKNOWN, KIND_PACKAGE, KIND_TRITON, KIND_CUBIN, KIND_CHECKPOINT, KIND_CONFIG } kind_t;
static const char *const kind_names[] = {"nothing", "a package",    "a Triton kernel",
                                         "a cubin", "a checkpoint", "a layer config"};

/* What a file or folder is taken for, and why: half a sentence. */
typedef struct guess {
  kind_t kind;
  const char *why;
} guess_t;

/* ---- what it is ---- */

static bool has_file(const char *folder, const char *name) {
  char path[4096];
  struct stat info;
  return (size_t)snprintf(path, sizeof path, "%s/%s", folder, name) < sizeof path && lstat(path, &info) == 0;
}

static bool ends_with(const char *text, const char *end);

/* Triton's cache has an image beside its metadata, and no manifest. */
static bool has_cubin(const char *folder) {
  DIR *directory = opendir(folder);
  bool found = false;
  if (directory == NULL) return false;
  for (const struct dirent *entry; !found && (entry = readdir(directory)) != NULL;)
    found = ends_with(entry->d_name, ".cubin");
  closedir(directory);
  return found;
}

static bool ends_with(const char *text, const char *end) {
  size_t length = strlen(text), end_length = strlen(end);
  return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* By its name, else by how it starts. */
static guess_t guess_file(const char *path) {
  static const struct {
    const char *end;
    guess_t guess;
  } ends[] = {{".safetensors", {KIND_CHECKPOINT, "its name ends in .safetensors"}},
              {".safetensors.index.json", {KIND_CHECKPOINT, "its name ends in .safetensors.index.json"}},
              {".json", {KIND_TRITON, "its name ends in .json, as Triton's metadata does"}},
              {".yaml", {KIND_CONFIG, "its name ends in .yaml"}},
              {".yml", {KIND_CONFIG, "its name ends in .yml"}},
              {".cubin", {KIND_CUBIN, "its name ends in .cubin"}},
              {".purr", {KIND_PACKAGE, "its name ends in .purr"}}};
  char head[512] = {0};
  FILE *file = fopen(path, "rb");
  if (file == NULL) return (guess_t){KIND_UNKNOWN, "it cannot be opened"};
  size_t length = fread(head, 1, sizeof head, file);
  fclose(file);
  for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
    if (ends_with(path, ends[i].end)) return ends[i].guess;
  if (length >= 4 && memcmp(head, "\177ELF", 4) == 0) return (guess_t){KIND_CUBIN, "it starts as an ELF file does"};
  if (length >= 262 && memcmp(head + 257, "ustar", 5) == 0)
    return (guess_t){KIND_PACKAGE, "it starts as a tar archive does"};
  return (guess_t){KIND_UNKNOWN,
                   "its name ends in none of .json, .yaml, .yml, .cubin, .purr and .safetensors, and it starts neither "
                   "as an ELF file does nor as a tar archive"};
}

static guess_t guess_of(const char *path, const struct stat *info) {
  if (S_ISREG(info->st_mode)) return guess_file(path);
  if (!S_ISDIR(info->st_mode)) return (guess_t){KIND_UNKNOWN, "it is no file and no folder"};
  if (has_file(path, "manifest.json")) return (guess_t){KIND_PACKAGE, "it is a folder with a manifest.json"};
  if (has_cubin(path)) return (guess_t){KIND_TRITON, "it is a folder with cubins and without a manifest.json"};
  /* Its reader says best what a checkpoint's folder lacks. */
  return (guess_t){KIND_CHECKPOINT, "it is a folder without a manifest.json and without cubins"};
}

/* ---- describing it ---- */

static purr_status_t describe_package(const void *package, int32_t format, char *buffer, uint64_t capacity,
                                      uint64_t *out_length, purr_error_t *err) {
  return purr_package_describe(package, format, buffer, capacity, out_length, err);
}

static purr_status_t describe_kernel(const void *kernel, int32_t format, char *buffer, uint64_t capacity,
                                     uint64_t *out_length, purr_error_t *err) {
  return purr_kernel_describe(kernel, format, buffer, capacity, out_length, err);
}

static int inspect_kernel(purr_context_t *context, const char *path, const char *name, bool json) {
  purr_kernel_t *kernel;
  purr_error_t err = PURR_ERROR_INIT;
  purr_kernel_desc_t desc = PURR_KERNEL_DESC_INIT;
  desc.path = path;
  desc.name = name;
  if (purr_kernel_open(context, &desc, &kernel, &err) != PURR_STATUS_OK)
    return fail_call("inspect", "kernels/triton/export.py makes packages of what Triton compiled", &err);
  int code = print_description("inspect", describe_kernel, kernel, json);
  if (code == EXIT_GOOD && !json) {
    purr_kernel_argument_t argument = {.struct_size = sizeof argument};
    if (purr_kernel_num_arguments(kernel) > 0 &&
        purr_kernel_get_argument(kernel, 0, &argument, NULL) == PURR_STATUS_OK && argument.name[0] == '0')
      printf(
          "\n  Triton's files do not tell names, types, promises and the grid: give a signature when the kernel is\n"
          "  opened, or make a package with kernels/triton/export.py\n");
  }
  purr_kernel_destroy(kernel);
  return code;
}

static int inspect_package(purr_context_t *context, const char *path, const char *name, bool json) {
  if (name != NULL) return inspect_kernel(context, path, name, json);
  purr_package_t *package;
  purr_error_t err = PURR_ERROR_INIT;
  if (purr_package_open(context, path, &package, &err) != PURR_STATUS_OK)
    return fail_call("inspect", "a package is a folder with manifest.json and the cubins it names, or a tar of one",
                     &err);
  int code = print_description("inspect", describe_package, package, json);
  if (code == EXIT_GOOD && purr_package_verify(package, &err) != PURR_STATUS_OK) {
    fail_call("inspect", "this package will not be loaded; get it again from where it came", &err);
    code = EXIT_CHECK_FAILED;
  }
  purr_package_destroy(package);
  return code;
}

typedef struct cubin {
  purr_context_t *context;
  const char *path;
} cubin_t;

static purr_status_t describe_cubin(const void *object, int32_t format, char *buffer, uint64_t capacity,
                                    uint64_t *out_length, purr_error_t *err) {
  const cubin_t *cubin = object;
  return purr_cubin_describe(cubin->context, cubin->path, format, buffer, capacity, out_length, err);
}

static purr_status_t describe_checkpoint(const void *checkpoint, int32_t format, char *buffer, uint64_t capacity,
                                         uint64_t *out_length, purr_error_t *err) {
  return purr_checkpoint_describe(checkpoint, format, buffer, capacity, out_length, err);
}

static int inspect_checkpoint(purr_context_t *context, const char *path, bool json) {
  purr_checkpoint_t *checkpoint;
  purr_error_t err = PURR_ERROR_INIT;
  if (purr_checkpoint_open(context, path, &checkpoint, &err) != PURR_STATUS_OK)
    return fail_call("inspect", "a folder is a package (manifest.json) or a checkpoint (safetensors files)", &err);
  int code = print_description("inspect", describe_checkpoint, checkpoint, json);
  purr_checkpoint_destroy(checkpoint);
  return code;
}

static purr_status_t describe_config(const void *config, int32_t format, char *buffer, uint64_t capacity,
                                     uint64_t *out_length, purr_error_t *err) {
  return purr_config_describe(config, format, buffer, capacity, out_length, err);
}

static int inspect_config(purr_context_t *context, const char *path, bool json) {
  purr_config_t *config;
  purr_error_t err = PURR_ERROR_INIT;
  if (purr_config_load(context, path, &config, &err) != PURR_STATUS_OK)
    return fail_call("inspect", "configs/schema.yaml explains every key", &err);
  int code = print_description("inspect", describe_config, config, json);
  purr_config_destroy(config);
  return code;
}

static int inspect_as(kind_t kind, purr_context_t *context, const char *path, const char *name, bool json) {
  switch (kind) {
    case KIND_PACKAGE:
      return inspect_package(context, path, name, json);
    case KIND_TRITON:
      return inspect_kernel(context, path, name, json);
    case KIND_CUBIN:
      return print_description("inspect", describe_cubin, &(cubin_t){context, path}, json);
    case KIND_CHECKPOINT:
      return inspect_checkpoint(context, path, json);
    default:
      return inspect_config(context, path, json);
  }
}

static int inspect(purr_context_t *context, const char *path, const char *name, bool json) {
  static const char next[] = "see what can be inspected with: purr inspect --help";
  struct stat info;
  if (stat(path, &info) != 0) return fail("inspect", next, "%s: %s", path, strerror(errno));
  const guess_t guess = guess_of(path, &info);
  if (guess.kind == KIND_UNKNOWN)
    return fail("inspect", next,
                "%s is neither a package, a Triton kernel, a cubin, a checkpoint nor a layer config: %s", path,
                guess.why);
  if (name != NULL && guess.kind != KIND_PACKAGE && guess.kind != KIND_TRITON)
    return fail("inspect", "leave --kernel out",
                "--kernel picks a Triton kernel of a package or folder, but %s is taken for %s, since %s", path,
                kind_names[guess.kind], guess.why);
  const int code = inspect_as(guess.kind, context, path, name, json);
  if (code == EXIT_BAD_INPUT) fprintf(stderr, "  it was taken for %s, since %s\n", kind_names[guess.kind], guess.why);
  return code;
}

int cmd_inspect(int argc, char **argv) {
  const char *path, *name = NULL;
  bool json = false;
  const option_t table[] = {{.name = "kernel",
                             .kind = OPTION_TEXT,
                             .value = &name,
                             .metavar = "NAME",
                             .help = "show one Triton kernel of the package, or folder, in full"},
                            {.name = "json", .kind = OPTION_FLAG, .value = &json, .help = "print one JSON object"},
                            {0}};
  int code = options_parse(&help, table, argc, argv, &path, 1);
  if (code != OPTIONS_GO_ON) return code;
  if (path == NULL) return fail("inspect", "for example: purr inspect Qwen3-30B-A3B", "a PATH is needed");
  purr_context_t *context;
  purr_error_t err = PURR_ERROR_INIT;
  if (purr_context_create(NULL, &context, &err) != PURR_STATUS_OK)
    return fail_call("inspect", "correct or unset the environment variable", &err);
  code = inspect(context, path, name, json);
  purr_context_destroy(context);
  return code;
}
