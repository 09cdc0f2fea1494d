/* purr launch: runs one kernel that Triton compiled, on made or given data, and times it. */
#include "launch.h"

#include <stdlib.h>
#include <string.h>

static const help_t help = {
    .command = "launch",
    .usage = "PATH --arg NAME=VALUE ... [options]",
    .about =
        "Runs one kernel that Triton compiled: once to see what it writes, then again and again to time it. PATH is\n"
        "a package made by kernels/triton/export.py, or a .json of Triton's with its .cubin, or a folder of those.\n"
        "\n"
        "purr inspect PATH shows the arguments. A VALUE is\n"
        "  4096, -1, 0.5, true        a number; for a constant it chooses among the variants\n"
        "  rand:128x64                a tensor of that shape and of the argument's type, normal random numbers;\n"
        "                             also zeros:, ones: and arange:, and with a type: rand:4096:fp16\n"
        "  FILE.safetensors:NAME      a tensor of a file\n"
        "Pointers and tensor descriptors take tensors. Of the variants the most special one that takes the values\n"
        "is launched. Scratch memory is given where the kernel wants some.",
    .example =
        "  purr launch my_kernels --kernel add_kernel --arg x_ptr=rand:4096 --arg y_ptr=rand:4096 \\\n"
        "    --arg out_ptr=zeros:4096 --arg scale=0.5 --arg n=4096\n"
        "  purr launch ~/.triton/cache/FOLDER --signature \"x=*fp32, out=*fp32, n=i32\" --grid 4 \\\n"
        "    --arg x=in.safetensors:x --arg out=zeros:4096 --arg n=4096 --output out.safetensors",
};

enum { MAX_VALUES = 256, MAX_REPEATS = 10000 };

typedef struct launch {
  launch_options_t options;
  purr_context_t *context;
  purr_kernel_t *kernel;
  purr_launcher_t *launcher;
  gpu_t *gpu;
  launch_value_t values[MAX_VALUES];
  purr_checkpoint_t *files[MAX_VALUES];
  int num_values;
  uint32_t grid[3]; /* 0: that of the package */
  uint64_t scratch;
  purr_launcher_info_t info;
  double *times; /* [num_repeats] sorted */
  FILE *output;
  bool output_is_new;
} launch_t;

/* ---- the kernel and its values ---- */

static int open_kernel(launch_t *launch, const char *path) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_kernel_desc_t desc = PURR_KERNEL_DESC_INIT;
  desc.path = path;
  desc.name = launch->options.kernel;
  desc.signature = launch->options.signature;
  if (purr_context_create(NULL, &launch->context, &err) != PURR_STATUS_OK)
    return fail_call("launch", "correct or unset the environment variable", &err);
  if (purr_kernel_open(launch->context, &desc, &launch->kernel, &err) != PURR_STATUS_OK)
    return fail_call("launch", "purr inspect PATH shows what is there", &err);
  launch->num_values = purr_kernel_num_arguments(launch->kernel);
  if (launch->num_values > MAX_VALUES)
    return fail("launch", NULL, "the kernel has %d arguments; allowed are %d", launch->num_values, MAX_VALUES);
  for (int32_t i = 0; i < launch->num_values; i++) {
    launch->values[i].index = i;
    launch->values[i].argument.struct_size = sizeof launch->values[i].argument;
    if (purr_kernel_get_argument(launch->kernel, i, &launch->values[i].argument, &err) != PURR_STATUS_OK)
      return fail_call("launch", NULL, &err);
  }
  return EXIT_GOOD;
}

static int take_args(launch_t *launch) {
  for (int i = 0; i < launch->options.args.count; i++) {
    const char *text = launch->options.args.items[i], *equals = strchr(text, '=');
    char name[128];
    int32_t index;
    purr_error_t err = PURR_ERROR_INIT;
    if (equals == NULL || equals == text || (size_t)(equals - text) >= sizeof name)
      return fail("launch", "for example: --arg n=4096", "--arg takes NAME=VALUE, not '%.100s'", text);
    snprintf(name, sizeof name, "%.*s", (int)(equals - text), text);
    if (purr_kernel_find_argument(launch->kernel, name, &index, &err) != PURR_STATUS_OK)
      return fail_call("launch", "purr inspect PATH --kernel NAME shows the arguments", &err);
    launch_value_t *value = &launch->values[index];
    if (value->text != NULL) return fail("launch", "give each argument once", "argument '%s' is given twice", name);
    value->text = equals + 1;
    const int code = launch_value_parse(value, launch->context, &launch->options, &launch->files[index]);
    if (code != EXIT_GOOD) return code;
  }
  return EXIT_GOOD;
}

/* Three whole numbers, as many as a launch may have. */
static int read_grid(launch_t *launch) {
  const char *text = launch->options.grid;
  if (text == NULL) return EXIT_GOOD;
  const char *at = text;
  for (int i = 0; i < 3; i++) {
    char *end = NULL;
    const unsigned long long side = *at >= '0' && *at <= '9' ? strtoull(at, &end, 10) : 0;
    const bool goes_on = end != NULL && *end == ',' && i < 2;
    if (side == 0 || side > (i == 0 ? INT32_MAX : 65535) || (*end != '\0' && !goes_on))
      return fail("launch", "for example: --grid 4 or --grid 8,2,1",
                  "--grid takes up to three whole numbers, x to 2147483647, y and z to 65535, not '%.64s'", text);
    launch->grid[i] = (uint32_t)side;
    if (!goes_on) break;
    at = end + 1;
  }
  for (int i = 1; i < 3; i++) launch->grid[i] = launch->grid[i] > 0 ? launch->grid[i] : 1;
  return EXIT_GOOD;
}

/* What is wrong with the command line is said before what is wrong with the machine. */
static int check_values(const launch_t *launch) {
  int code = EXIT_GOOD;
  for (int i = 0; i < launch->num_values && code == EXIT_GOOD; i++) code = launch_value_check(&launch->values[i]);
  return code;
}

/* Tensors to the device, and all values to the launcher. */
static int place_values(launch_t *launch) {
  int code = EXIT_GOOD;
  for (int i = 0; i < launch->num_values && code == EXIT_GOOD; i++) {
    launch_value_t *value = &launch->values[i];
    if (value->text == NULL) continue;
    if (value->is_tensor) {
      code = gpu_allocate(launch->gpu, value->bytes, &value->address);
      if (code == EXIT_GOOD)
        code = gpu_copy(launch->gpu, value->address, (uint64_t)(uintptr_t)value->tensor.data, value->bytes);
    }
    if (code == EXIT_GOOD) code = launch_value_set(value, launch->launcher);
  }
  return code;
}

static int bind(launch_t *launch) {
  purr_error_t err = PURR_ERROR_INIT;
  if (purr_launcher_create(launch->kernel, (int32_t)launch->options.device, &launch->launcher, &err) != PURR_STATUS_OK)
    return fail_call("launch", "purr doctor says what works on this machine", &err);
  int code = gpu_open(&launch->gpu, "launch", (int)launch->options.device);
  if (code == EXIT_GOOD) code = place_values(launch);
  if (code != EXIT_GOOD) return code;
  const uint32_t *grid = launch->grid;
  if (grid[0] > 0 && purr_launcher_set_grid(launch->launcher, grid[0], grid[1], grid[2], &err) != PURR_STATUS_OK)
    return fail_call("launch", NULL, &err);
  launch->info.struct_size = sizeof launch->info;
  if (purr_launcher_query(launch->launcher, &launch->info, &err) != PURR_STATUS_OK)
    return fail_call("launch", "purr inspect PATH --kernel NAME shows the arguments; --grid sets the grid", &err);
  if (launch->info.scratch_bytes == 0) return EXIT_GOOD;
  code = gpu_allocate(launch->gpu, launch->info.scratch_bytes, &launch->scratch);
  if (code == EXIT_GOOD && purr_launcher_set_scratch(launch->launcher, (void *)(uintptr_t)launch->scratch,
                                                     launch->info.scratch_bytes, &err) != PURR_STATUS_OK)
    code = fail_call("launch", NULL, &err);
  return code;
}

/* ---- running ---- */

static int enqueue(void *arg) {
  launch_t *launch = arg;
  purr_error_t err = PURR_ERROR_INIT;
  return purr_launcher_launch(launch->launcher, gpu_stream(launch->gpu), &err) == PURR_STATUS_OK
             ? EXIT_GOOD
             : fail_call("launch", NULL, &err);
}

/* What the first launch wrote. */
static int fetch(launch_t *launch) {
  for (int i = 0; i < launch->num_values; i++) {
    launch_value_t *value = &launch->values[i];
    if (!value->is_tensor) continue;
    value->after = malloc(value->bytes);
    if (value->after == NULL) return fail("launch", "give smaller tensors", "memory ran out");
    const int code = gpu_copy(launch->gpu, (uint64_t)(uintptr_t)value->after, value->address, value->bytes);
    if (code != EXIT_GOOD) return code;
    value->is_changed = memcmp(value->after, value->tensor.data, value->bytes) != 0;
  }
  return EXIT_GOOD;
}

static int compare_reals(const void *a, const void *b) {
  const double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

static int run(launch_t *launch) {
  const int64_t num_repeats = launch->options.num_repeats;
  double unused;
  int code = enqueue(launch);
  if (code == EXIT_GOOD) code = fetch(launch);
  launch->times = calloc((size_t)num_repeats + 1, sizeof *launch->times);
  if (launch->times == NULL) return fail("launch", "free some memory", "memory ran out");
  for (int64_t i = 0; i < launch->options.num_warmups && code == EXIT_GOOD; i++)
    code = gpu_time(&launch->gpu, 1, enqueue, launch, &unused);
  for (int64_t i = 0; i < num_repeats && code == EXIT_GOOD; i++)
    code = gpu_time(&launch->gpu, 1, enqueue, launch, &launch->times[i]);
  qsort(launch->times, (size_t)num_repeats, sizeof *launch->times, compare_reals);
  return code;
}

/* ---- the report ---- */

static void report_json(const launch_t *launch) {
  const purr_launcher_info_t *info = &launch->info;
  const int64_t num = launch->options.num_repeats;
  json_t json = {.file = stdout};
  json_begin(&json, NULL, '{');
  json_text(&json, "device", gpu_name(launch->gpu));
  json_int(&json, "variant", info->variant);
  json_begin(&json, "grid", '[');
  for (int i = 0; i < 3; i++) json_int(&json, NULL, info->grid[i]);
  json_end(&json, ']');
  json_int(&json, "threads", info->num_threads);
  json_int(&json, "registers", info->num_registers);
  json_int(&json, "shared_bytes", info->shared_bytes);
  json_int(&json, "scratch_bytes", (int64_t)info->scratch_bytes);
  json_begin(&json, "arguments", '[');
  for (int i = 0; i < launch->num_values; i++) {
    const launch_value_t *value = &launch->values[i];
    char hash[24];
    json_begin(&json, NULL, '{');
    json_text(&json, "name", value->argument.name);
    json_text(&json, "type", value->argument.type);
    json_text(&json, "value", value->text);
    if (value->is_tensor) {
      snprintf(hash, sizeof hash, "%016llx", (unsigned long long)hash_memory(value->after, value->bytes));
      json_bool(&json, "changed", value->is_changed);
      json_text(&json, "hash", hash);
    }
    json_end(&json, '}');
  }
  json_end(&json, ']');
  json_real(&json, "median_s", num > 0 ? launch->times[num / 2] : 0.0);
  json_real(&json, "min_s", num > 0 ? launch->times[0] : 0.0);
  json_real(&json, "max_s", num > 0 ? launch->times[num - 1] : 0.0);
  json_int(&json, "repeats", num);
  json_end(&json, '}');
}

static void report_text(const launch_t *launch, const char *path) {
  const purr_launcher_info_t *info = &launch->info;
  const int64_t num = launch->options.num_repeats;
  printf("%s on %s\n  variant   %d of the kernel: %u threads a block, %d registers, %s of shared memory\n", path,
         gpu_name(launch->gpu), info->variant, info->num_threads, info->num_registers, BYTES_TEXT(info->shared_bytes));
  printf("  grid      %u x %u x %u blocks", info->grid[0], info->grid[1], info->grid[2]);
  if (info->cluster[0] * info->cluster[1] * info->cluster[2] > 1)
    printf(" in clusters of %u x %u x %u", info->cluster[0], info->cluster[1], info->cluster[2]);
  printf("\n");
  if (info->scratch_bytes > 0) printf("  scratch   %s\n", BYTES_TEXT(info->scratch_bytes));
  printf("\n");
  table_t table = {.alignment = "llll"};
  table_add(&table, "argument"), table_add(&table, "type"), table_add(&table, "value");
  table_add(&table, "after the first launch");
  for (int i = 0; i < launch->num_values; i++) {
    const launch_value_t *value = &launch->values[i];
    const char *unset = value->argument.constant != NULL ? value->argument.constant : "-";
    table_add(&table, "%s", value->argument.name), table_add(&table, "%s", value->argument.type);
    table_add(&table, "%s", value->text != NULL ? value->text : unset);
    if (!value->is_tensor)
      table_add(&table, "%s", "");
    else if (value->is_changed)
      table_add(&table, "written, hash %016llx", (unsigned long long)hash_memory(value->after, value->bytes));
    else
      table_add(&table, "unchanged");
  }
  table_print(&table, stdout);
  if (num > 0)
    printf("\n  time      %s, the median of %lld (%s to %s), L2 flushed\n", TIME_TEXT(launch->times[num / 2]),
           (long long)num, TIME_TEXT(launch->times[0]), TIME_TEXT(launch->times[num - 1]));
}

static int write_output(launch_t *launch) {
  named_tensor_t tensors[MAX_VALUES];
  int num_tensors = 0;
  for (int i = 0; i < launch->num_values; i++) {
    const launch_value_t *value = &launch->values[i];
    if (!value->is_tensor) continue;
    named_tensor_t *tensor = &tensors[num_tensors++];
    *tensor = (named_tensor_t){value->argument.name, value->tensor};
    tensor->tensor.data = value->after;
  }
  FILE *file = launch->output;
  launch->output = NULL;
  return write_safetensors("launch", file, launch->options.output_path, tensors, num_tensors);
}

/* ---- the command ---- */

static int launch_all(launch_t *launch, const char *path) {
  int code = open_kernel(launch, path);
  if (code == EXIT_GOOD) code = take_args(launch);
  if (code == EXIT_GOOD) code = check_values(launch);
  if (code == EXIT_GOOD) code = read_grid(launch);
  if (code == EXIT_GOOD && launch->options.output_path != NULL) {
    for (int i = 0; i < launch->num_values; i++) {
      const char *text = launch->values[i].text, *colon = text != NULL ? strrchr(text, ':') : NULL;
      char read[4096];
      if (launch->files[i] == NULL || colon == NULL) continue;
      snprintf(read, sizeof read, "%.*s", (int)(colon - text), text);
      if (is_same_file(launch->options.output_path, read))
        return fail("launch", "write elsewhere", "--output %.200s is a file that is read", launch->options.output_path);
    }
    launch->output = open_output("launch", launch->options.output_path, &launch->output_is_new);
    if (launch->output == NULL) return EXIT_BAD_INPUT;
  }
  if (code == EXIT_GOOD) code = bind(launch);
  if (code == EXIT_GOOD) code = run(launch);
  if (code == EXIT_GOOD && launch->output != NULL) code = write_output(launch);
  if (code != EXIT_GOOD) return code;
  if (launch->options.json)
    report_json(launch);
  else
    report_text(launch, path);
  return EXIT_GOOD;
}

static void close_all(launch_t *launch) {
  if (launch->output != NULL) {
    fclose(launch->output);
    if (launch->output_is_new) remove(launch->options.output_path);
  }
  for (int i = 0; i < launch->num_values && i < MAX_VALUES; i++) {
    launch_value_t *value = &launch->values[i];
    if (launch->gpu != NULL) gpu_release(launch->gpu, value->address);
    purr_checkpoint_destroy(launch->files[i]);
    free(value->owned);
    free(value->after);
  }
  if (launch->gpu != NULL) gpu_release(launch->gpu, launch->scratch);
  purr_launcher_destroy(launch->launcher);
  gpu_close(launch->gpu);
  free(launch->times);
  purr_kernel_destroy(launch->kernel);
  purr_context_destroy(launch->context);
}

int cmd_launch(int argc, char **argv) {
  static launch_t launch; /* large; all zero */
  launch_options_t *o = &launch.options;
  const char *path;
  o->num_repeats = 20;
  o->num_warmups = 3;
  const option_t table[] = {{.name = "kernel",
                             .kind = OPTION_TEXT,
                             .value = &o->kernel,
                             .metavar = "NAME",
                             .help = "which kernel of the package"},
                            {.name = "arg",
                             .kind = OPTION_LIST,
                             .value = &o->args,
                             .metavar = "NAME=VALUE",
                             .help = "an argument, by its name or number; once for each"},
                            {.name = "grid",
                             .kind = OPTION_TEXT,
                             .value = &o->grid,
                             .metavar = "X,Y,Z",
                             .help = "programs, where the package has no rule or another grid is wanted"},
                            {.name = "signature",
                             .kind = OPTION_TEXT,
                             .value = &o->signature,
                             .metavar = "TYPES",
                             .help = "the arguments of Triton's own files, such as\n\"x=*fp32:16, n=i32, BLOCK=1024\""},
                            {.name = "output",
                             .kind = OPTION_TEXT,
                             .value = &o->output_path,
                             .metavar = "FILE",
                             .help = "write all tensors, as the first launch left them, to a safetensors file"},
                            {.name = "repeats",
                             .kind = OPTION_INT,
                             .value = &o->num_repeats,
                             .metavar = "N",
                             .max = MAX_REPEATS,
                             .help = "timed launches (default: 20)"},
                            {.name = "warmups",
                             .kind = OPTION_INT,
                             .value = &o->num_warmups,
                             .metavar = "N",
                             .max = MAX_REPEATS,
                             .help = "launches before those (default: 3)"},
                            {.name = "seed",
                             .kind = OPTION_INT,
                             .value = &o->seed,
                             .metavar = "N",
                             .max = INT32_MAX,
                             .help = "of random tensors"},
                            {.name = "device",
                             .kind = OPTION_INT,
                             .value = &o->device,
                             .metavar = "N",
                             .max = 1023,
                             .help = "CUDA device number"},
                            {.name = "json", .kind = OPTION_FLAG, .value = &o->json, .help = "print one JSON object"},
                            {0}};
  int code = options_parse(&help, table, argc, argv, &path, 1);
  if (code != OPTIONS_GO_ON) return code;
  if (path == NULL) return fail("launch", "for example: purr launch my_kernels --arg n=4096", "a PATH is needed");
  code = launch_all(&launch, path);
  close_all(&launch);
  return code;
}
