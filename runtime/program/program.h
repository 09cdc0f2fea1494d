/* What the subcommands of `purr` share. The program stands on the public interface alone, as any user would: the only
 * header of the library that it includes is purr.h. */
#ifndef PURR_PROGRAM_H
#define PURR_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "purr.h"

#define PRINTF_LIKE(format_idx, first_idx) __attribute__((format(printf, format_idx, first_idx)))

/* Exit codes. */
enum { EXIT_GOOD = 0, EXIT_CHECK_FAILED = 1, EXIT_BAD_INPUT = 2 };

/* ---- subcommands: argv[0] is the subcommand's own name ---- */
int cmd_run(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_trace(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_config(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_launch(int argc, char **argv);
int cmd_doctor(int argc, char **argv);

/* ---- messages (main.c) ----
 * Prints "purr COMMAND: what" and, on a second line, what to do next; returns EXIT_BAD_INPUT. */
int fail(const char *command, const char *next, const char *format, ...) PRINTF_LIKE(3, 4);
/* The same for a failed call of the library. */
int fail_call(const char *command, const char *next, const purr_error_t *err);
/* What can be done about a layer's call or plan that failed so. */
const char *next_of(purr_status_t status, int64_t num_ranks);
/* The context of a command that runs layers, whose log goes to stderr (context.c). */
int make_context(const char *command, int64_t num_threads, purr_context_t **out_context);
/* The name in the NULL-terminated list that is nearest to `word`, NULL when none is near. */
const char *nearest_name(const char *word, const char *const *names);

/* ---- options (options.c) ----
 * A subcommand describes its options in a table; parsing, ranges and the --help text come from it:
 *
 *   int64_t num_sms = 0;
 *   bool json = false;
 *   const option_t options[] = {
 *       {.name = "sms", .kind = OPTION_INT, .value = &num_sms, .metavar = "N", .min = 1, .max = 1024, .help = "..."},
 *       {.name = "json", .kind = OPTION_FLAG, .value = &json, .help = "print one JSON object"},
 *       {0}};
 *   const char *config;
 *   int code = options_parse(&help, options, argc, argv, &config, 1);
 *   if (code != OPTIONS_GO_ON) return code;
 */
typedef enum option_kind {
  OPTION_FLAG,   /* bool: set to true */
  OPTION_INT,    /* int64_t within min..max, plain decimal */
  OPTION_REAL,   /* double within min_real..max_real */
  OPTION_TEXT,   /* const char * */
  OPTION_CHOICE, /* int: index into choices */
  OPTION_LIST,   /* option_list_t: may be given again and again */
} option_kind_t;

typedef struct option_list {
  const char *items[256];
  int count;
} option_list_t;

typedef struct option {
  const char *name; /* without the dashes */
  option_kind_t kind;
  void *value;         /* keeps what it holds when the option is not given */
  const char *metavar; /* stands for the value in the help; NULL with flags and choices */
  const char *help;    /* may hold newlines; ends without a full stop */
  int64_t min, max;
  double min_real, max_real;
  const char *const *choices; /* NULL-terminated */
} option_t;

typedef struct help {
  const char *command; /* "run" */
  const char *usage;   /* "CONFIG [options]" */
  const char *about;   /* a paragraph or two, broken into lines */
  const char *example; /* lines of commands, each indented by two spaces */
} help_t;

#define OPTIONS_GO_ON (-1)
/* Parses --name VALUE, --name=VALUE and the other words. `words` [max_words] receives those, NULL where there are
 * fewer. Returns OPTIONS_GO_ON, or the exit code when the subcommand is done: --help was asked for, or something is
 * wrong. */
int options_parse(const help_t *help, const option_t *options, int argc, char **argv, const char **words,
                  int max_words);

/* The choices of --backend and --precision, in the order of PURR_BACKEND_* and PURR_PRECISION_*. */
extern const char *const backend_names[];
extern const char *const precision_names[];

/* ---- descriptions (plan.c) ----
 * Prints what one of the purr_*_describe functions says, and returns an exit code. */
typedef purr_status_t (*describe_fn)(const void *object, int32_t format, char *buffer, uint64_t capacity,
                                     uint64_t *out_length, purr_error_t *err);
int print_description(const char *command, describe_fn describe, const void *object, bool json);

/* ---- tables and small charts (table.c) ---- */
typedef struct table {
  const char *alignment; /* a letter for each column: l or r */
  char **cells;
  int64_t num_cells, capacity;
} table_t;

/* `table` starts as {.alignment = "lrr"}; cells are added row by row, the titles first. */
void table_add(table_t *table, const char *format, ...) PRINTF_LIKE(2, 3);
/* Prints it indented by two spaces and frees the cells. */
void table_print(table_t *table, FILE *file);

/* A bar of at most `width` characters for `value` out of `maximum`, in blocks where the terminal knows UTF-8. */
const char *bar_text(char *buffer, size_t capacity, double value, double maximum, int width);
/* "1.18 MiB"; "12.3 ms"; "1 234 567". */
const char *bytes_text(char *buffer, size_t capacity, uint64_t bytes);
const char *time_text(char *buffer, size_t capacity, double seconds);
const char *count_text(char *buffer, size_t capacity, int64_t count);
#define BYTES_TEXT(bytes) bytes_text((char[32]){0}, 32, bytes)
#define TIME_TEXT(seconds) time_text((char[32]){0}, 32, seconds)
#define COUNT_TEXT(count) count_text((char[32]){0}, 32, count)

/* Colours for a stream: empty strings when it is not a terminal or NO_COLOR is set. */
typedef enum colour { COLOUR_NONE, COLOUR_BOLD, COLOUR_RED, COLOUR_GREEN } colour_t;
const char *colour_text(FILE *file, colour_t colour);

/* ---- JSON (json_out.c) ----
 * Writes one indented value to a file. `key` is NULL inside arrays and at the top. NaN and infinities become null. */
typedef struct json {
  FILE *file;
  int depth;
  bool has_items;
} json_t;

void json_begin(json_t *json, const char *key, char bracket); /* '{' or '[' */
void json_end(json_t *json, char bracket);                    /* '}' or ']'; ends the line after the last */
void json_int(json_t *json, const char *key, int64_t value);
void json_real(json_t *json, const char *key, double value);
void json_text(json_t *json, const char *key, const char *value); /* NULL becomes null */
void json_bool(json_t *json, const char *key, bool value);

/* ---- which GPU each rank uses (devices.c) ---- */
enum { MAX_DEVICES = 64, MAX_DEVICE_NUMBER = 1023 };
typedef struct device_list {
  int32_t numbers[MAX_DEVICES];
  int count; /* 0 = --devices was not given: all on GPU 0 */
} device_list_t;
/* Reads "0,1"; NULL gives an empty list. Returns an exit code, as the next does. */
int devices_parse(const char *command, const char *text, device_list_t *out_devices);
int devices_check_ranks(const char *command, const device_list_t *devices, int64_t num_ranks);
/* Ranks are dealt over the list in turn. */
int32_t device_of_rank(const device_list_t *devices, int64_t rank);
/* "0, 1, 0, 1": of each rank. */
const char *devices_text(char *buffer, size_t capacity, const device_list_t *devices, int64_t num_ranks);
#define DEVICES_TEXT(devices, num_ranks) devices_text((char[128]){0}, 128, devices, num_ranks)
/* The field "devices": null without a GPU. */
void devices_write_json(json_t *json, const device_list_t *devices, int64_t num_ranks, bool is_on_gpu);
/* GPUs were named, by --device or --devices, and the host was chosen: says why. */
int devices_fail_host(const char *command, const char *option, purr_context_t *context, const purr_config_t *config,
                      purr_plan_desc_t desc);

#endif
