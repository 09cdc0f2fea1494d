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

typedef enum kind {
  KIND_UNKNOWN,
  KIND_PACKAGE,
  KIND_TRITON,
  KIND_CUBIN,
  KIND_CHECKPOINT,
  KIND_CONFIG,
  KIND_FOLDERS
} kind_t;
static const char *const kind_names[] = {"nothing",      "a package",      "a Triton kernel",    "a cubin",
                                         "a checkpoint", "a layer config", "a folder of folders"};

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

static bool ends_with(const char *text, const char *end) {
  size_t length = strlen(text), end_length = strlen(end);
  return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* Whether a file has the keys that Triton writes into a kernel's metadata; others' .json are no sign of it. */
static bool is_metadata(const char *folder, const char *name) {
  char path[4096], text[16384];
  struct stat info;
  if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path) return false;
  if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return false;
  FILE *file = fopen(path, "rb");
  if (file == NULL) return false;
  text[fread(text, 1, sizeof text - 1, file)] = '\0';
  fclose(file);
  return strstr(text, "\"num_warps\"") != NULL && strstr(text, "\"target\"") != NULL;
}

/* What a folder holds, as far as the names tell. */
typedef struct contents {
  bool has_manifest, has_cubin, has_metadata, has_checkpoint;
  bool has_folder;
} contents_t;

static contents_t contents_of(const char *folder) {
  contents_t found = {.has_manifest = has_file(folder, "manifest.json"),
                      .has_checkpoint = has_file(folder, "config.json")};
  DIR *directory = opendir(folder);
  if (directory == NULL) return found;
  for (const struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    const char *name = entry->d_name;
    char path[4096];
    struct stat info;
    if (ends_with(name, ".cubin")) found.has_cubin = true;
    if (ends_with(name, ".safetensors") || ends_with(name, ".safetensors.index.json")) found.has_checkpoint = true;
    if (ends_with(name, ".json") && is_metadata(folder, name)) found.has_metadata = true;
    if (name[0] != '.' && (size_t)snprintf(path, sizeof path, "%s/%s", folder, name) < sizeof path)
      found.has_folder = found.has_folder || (stat(path, &info) == 0 && S_ISDIR(info.st_mode));
  }
  closedir(directory);
  return found;
}

/* The first folder by name inside of one that could be inspected, as Triton's cache and a build of packages have them;
 * "" where there is none. */
static void find_inner(const char *folder, char inner[256]) {
  DIR *directory = opendir(folder);
  inner[0] = '\0';
  if (directory == NULL) return;
  for (const struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    const char *name = entry->d_name;
    char path[4096];
    if (name[0] == '.' || strlen(name) >= 256 || (inner[0] != '\0' && strcmp(name, inner) > 0)) continue;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path) continue;
    const contents_t found = contents_of(path);
    if (found.has_manifest || found.has_cubin || found.has_metadata || found.has_checkpoint)
      snprintf(inner, 256, "%s", name);
  }
  closedir(directory);
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
  const contents_t found = contents_of(path);
  if (found.has_manifest) return (guess_t){KIND_PACKAGE, "it is a folder with a manifest.json"};
  if (found.has_cubin) return (guess_t){KIND_TRITON, "it is a folder with cubins and without a manifest.json"};
  if (found.has_metadata && !found.has_checkpoint)
    return (guess_t){KIND_TRITON, "it is a folder with a .json that Triton writes beside a cubin"};
  if (found.has_folder && !found.has_checkpoint) return (guess_t){KIND_FOLDERS, "it is a folder of folders"};
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

/* One folder at a time: which of them is meant, nobody knows. */
static int refuse_folders(const char *path) {
  static const char sought[] =
      "a manifest.json (a package), NAME.json with NAME.cubin (a Triton kernel), config.json or *.safetensors (a "
      "checkpoint)";
  char inner[256];
  find_inner(path, inner);
  if (inner[0] == '\0')
    return fail("inspect", "give a folder that holds one of them",
                "%s holds folders, but nothing to inspect; looked for was %s", path, sought);
  return fail("inspect", "give one of its folders",
              "%s holds folders to inspect, such as %s, but is none itself; looked for was %s", path, inner, sought);
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
  if (guess.kind == KIND_FOLDERS) return refuse_folders(path);
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
