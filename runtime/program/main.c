/* The program `purr`: its table of subcommands and its messages. */
#include <locale.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"

typedef struct command {
  const char *name;
  const char *summary;
  int (*run)(int argc, char **argv);
} command_t;

static const command_t commands[] = {
    {"run", "run a layer on real or generated tokens and show what it did", cmd_run},
    {"verify", "check a layer of a checkpoint against captured tensors", cmd_verify},
    {"bench", "time a layer: TFLOP/s, launches, host time, small batches", cmd_bench},
    {"trace", "show what each SM or thread does during one forward, and draw it", cmd_trace},
    {"plan", "explain a layer: shapes, memory, minibatch, backend; runs nothing", cmd_plan},
    {"config", "check a layer config, or make one from a checkpoint", cmd_config},
    {"launch", "run one kernel that Triton compiled, and time it", cmd_launch},
    {"inspect", "say what a package, cubin, checkpoint or config holds", cmd_inspect},
    {"doctor", "say what works on this machine and what to do about the rest", cmd_doctor},
};
enum { NUM_COMMANDS = sizeof commands / sizeof commands[0] };

/* -------------------------------------------------------------------------------------------------------- messages */

static void print_message(const char *command, const char *next, const char *message) {
  fflush(stdout); /* what it was about stands before it */
  fprintf(stderr, "purr%s%s: %s%s%s%s\n", command ? " " : "", command ? command : "", colour_text(stderr, COLOUR_RED),
          "error: ", colour_text(stderr, COLOUR_NONE), message);
  if (next != NULL) fprintf(stderr, "  %s\n", next);
}

int fail(const char *command, const char *next, const char *format, ...) {
  char message[2048];
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  print_message(command, next, message);
  return EXIT_BAD_INPUT;
}

int fail_call(const char *command, const char *next, const purr_error_t *err) {
  return fail(command, next, "%s (%s)", err->message, purr_status_name(err->status));
}

const char *next_of(purr_status_t status, int64_t num_ranks) {
  switch (status) {
    case PURR_STATUS_BAD_ROUTE:
      return "correct topk_ids; -1 drops a slot";
    case PURR_STATUS_CHECKPOINT:
      return "name another --layer, or get the whole checkpoint";
    case PURR_STATUS_OUT_OF_HOST_MEMORY:
      return "take fewer --tokens";
    case PURR_STATUS_OUT_OF_DEVICE_MEMORY:
      return num_ranks > 1 ? "take fewer --tokens, or more GPUs with --devices"
                           : "take fewer --tokens, or share the experts out among several GPUs: --ranks and --devices";
    case PURR_STATUS_MISSING_KERNEL:
    case PURR_STATUS_INCOMPATIBLE_BINARY:
    case PURR_STATUS_PACKAGE:
      return "purr doctor lists packages and what GPUs they serve (PURR_PACKAGE_PATH adds some); --backend auto takes "
             "what there is";
    case PURR_STATUS_NO_DEVICE:
      return "purr doctor lists the GPUs; without one, --backend host or auto runs it";
    case PURR_STATUS_PEER_FAILED:
    case PURR_STATUS_PEER_MISMATCH:
      if (num_ranks > 1) return "try again with --ranks 1";
      return "purr doctor says what works on this machine";
    case PURR_STATUS_CONFIG:
    case PURR_STATUS_UNSUPPORTED:
      return "change --ranks, --backend, --precision or the config";
    default:
      return "purr doctor says what works on this machine";
  }
}

/* Edits (insert, remove, replace) that turn one word into the other. */
static size_t edit_distance(const char *a, const char *b) {
  enum { LONGEST = 64 };
  size_t num_a = strlen(a), num_b = strlen(b), row[LONGEST + 1];
  if (num_a > LONGEST || num_b > LONGEST) return SIZE_MAX;
  for (size_t j = 0; j <= num_b; j++) row[j] = j;
  for (size_t i = 1; i <= num_a; i++) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= num_b; j++) {
      size_t above = row[j], best = diagonal + (a[i - 1] != b[j - 1]);
      if (above + 1 < best) best = above + 1;
      if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
      diagonal = above;
      row[j] = best;
    }
  }
  return row[num_b];
}

const char *nearest_name(const char *word, const char *const *names) {
  const char *nearest = NULL;
  size_t nearest_distance = strlen(word) / 3 + 2; /* nearer than this: a third of the letters and one more may differ */
  for (; *names != NULL; names++) {
    size_t distance = edit_distance(word, *names);
    if (distance < nearest_distance) {
      nearest = *names;
      nearest_distance = distance;
    }
  }
  return nearest;
}

/* ------------------------------------------------------------------------------------------------------------ main */

static void print_help(FILE *file) {
  fprintf(file,
          "usage: purr COMMAND [options]\n"
          "\n"
          "Runs, checks and explains fused Mixture-of-Experts layers.\n"
          "\n");
  for (int i = 0; i < NUM_COMMANDS; i++) fprintf(file, "  %-8s  %s\n", commands[i].name, commands[i].summary);
  fprintf(file,
          "\n"
          "  purr help COMMAND  shows a command's options and examples\n"
          "  purr --version     shows the version\n"
          "\n"
          "example:\n"
          "  purr plan configs/qwen3_30b.yaml\n"
          "  purr run configs/qwen3_30b.yaml --tokens 64 --routing zipf:1.0\n"
          "\n"
          "exit codes: 0 good, 1 a check failed, 2 bad usage or input\n");
}

static const command_t *find_command(const char *name) {
  for (int i = 0; i < NUM_COMMANDS; i++)
    if (strcmp(commands[i].name, name) == 0) return &commands[i];
  return NULL;
}

static int fail_unknown_command(const char *name) {
  const char *names[NUM_COMMANDS + 2] = {"help"};
  for (int i = 0; i < NUM_COMMANDS; i++) names[i + 1] = commands[i].name;
  const char *nearest = nearest_name(name, names);
  if (nearest == NULL) return fail(NULL, "see the commands with: purr --help", "'%s' is not a command", name);
  return fail(NULL, "see the commands with: purr --help", "'%s' is not a command; did you mean '%s'?", name, nearest);
}

static int run_program(int argc, char **argv) {
  if (argc < 2) {
    print_help(stderr);
    return EXIT_BAD_INPUT;
  }
  const char *name = argv[1];
  bool wants_help = strcmp(name, "help") == 0;
  if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || (wants_help && argc < 3)) {
    print_help(stdout);
    return EXIT_GOOD;
  }
  if (strcmp(name, "--version") == 0) {
    printf("purr %s\n", purr_version_string());
    return EXIT_GOOD;
  }
  if (wants_help) name = argv[2];
  const command_t *command = find_command(name);
  if (command == NULL) return fail_unknown_command(name);
  char help_option[] = "--help";
  char *help_argv[] = {argv[wants_help ? 2 : 1], help_option, NULL};
  return wants_help ? command->run(2, help_argv) : command->run(argc - 1, argv + 1);
}

int main(int argc, char **argv) {
  setlocale(LC_CTYPE, ""); /* only to learn whether the terminal knows UTF-8; numbers keep their point */
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* --ranks share a device, and each needs a hardware queue of it */
  int code = run_program(argc, argv);
  if (fflush(stdout) != 0 || ferror(stdout)) {
    if (code == EXIT_GOOD)
      code = fail(NULL, "free some space or write elsewhere", "standard output could not be written");
  }
  return code;
}
