/* purr trace: the timeline of one forward, as a table, a picture and a file for Perfetto. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

static const help_t help = {
    .command = "trace",
    .usage = "[CONFIG] [options]",
    .about =
        "Runs a layer forward and shows what each SM (on the host: each thread) did when. CONFIG,\n"
        "--checkpoint, tokens and routing are as in purr run. With --ranks all ranks stand on one timeline.\n"
        "The staged backend has one row for each rank: its kernels, one after the other.\n"
        "Recording costs a little time; the forwards of every other command know nothing of it.\n"
        "\n"
        "The table: `time` is of all tracks together, without what lies inside an event; an SM has a track\n"
        "for each role of its warps, so a loader's and a consumer's time overlap. `computing` and `idle` look\n"
        "at whole SMs: idle is when all tracks wait. `tail` is the time between an SM's last work and the end\n"
        "of the call: much of it means that the last tiles are too few or too long. Communication costs time\n"
        "only where nothing computes beside it.\n"
        "\n"
        "--svg draws a row for each SM, with a stripe for each role; on top, how many SMs compute (filled) and\n"
        "communicate (line): gaps in the fill are lost time, its right edge is the tail. Any browser opens it.\n"
        "--output writes the Trace Event Format: open https://ui.perfetto.dev, drop the file on the page (it\n"
        "stays in your browser); W and S zoom, A and D move, a click on an event shows expert, row and column.",
    .example =
        "  purr trace configs/qwen3_30b.yaml --tokens 64\n"
        "  purr trace configs/kimi_k2.yaml --tokens 2048 --output forward.json --svg forward.svg\n"
        "  purr trace configs/qwen3_30b.yaml --ranks 2 --tokens 256 --json",
};

/* A file that is written when all went well. */
typedef struct target {
  const char *option;
  const char *path; /* NULL = not wanted */
  int32_t format;
  FILE *file;
  bool is_new;
} target_t;

static int create_traces(layer_t *layer, int64_t num_events) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_trace_desc_t desc = PURR_TRACE_DESC_INIT;
  desc.events_per_track = num_events;
  for (int64_t r = 0; r < layer->num_ranks; r++)
    if (purr_trace_create(layer->ranks[r].plan, &desc, &layer->ranks[r].trace, &err) != PURR_STATUS_OK)
      return fail_call("trace", "change --backend, or --events", &err);
  return EXIT_GOOD;
}

/* The text of a format, to be freed; NULL after a message. */
static char *write_text(const layer_t *layer, int32_t format, uint64_t *out_length, int *out_code) {
  purr_error_t err = PURR_ERROR_INIT;
  const purr_trace_t **traces = calloc((size_t)layer->num_ranks, sizeof *traces);
  char *text = NULL;
  purr_status_t status = PURR_STATUS_OK;
  for (int64_t r = 0; traces != NULL && r < layer->num_ranks; r++) traces[r] = layer->ranks[r].trace;
  if (traces != NULL) status = purr_trace_write(traces, (int32_t)layer->num_ranks, format, NULL, 0, out_length, &err);
  if (traces != NULL && status == PURR_STATUS_OK) text = malloc(*out_length + 1);
  if (text != NULL)
    status = purr_trace_write(traces, (int32_t)layer->num_ranks, format, text, *out_length + 1, NULL, &err);
  free(traces);
  if (status == PURR_STATUS_OK && text != NULL) return text;
  *out_code = status == PURR_STATUS_OK ? fail("trace", "take fewer --events", "memory ran out")
                                       : fail_call("trace", NULL, &err);
  free(text);
  return NULL;
}

static int write_target(const layer_t *layer, target_t *target) {
  if (target->file == NULL) return EXIT_GOOD;
  uint64_t length = 0;
  int code = EXIT_GOOD;
  char *text = write_text(layer, target->format, &length, &code);
  if (text == NULL) return code;
  bool good = fwrite(text, 1, length, target->file) == length && fflush(target->file) == 0 &&
              (ftruncate(fileno(target->file), (off_t)length) == 0 || errno == EINVAL); /* a pipe has no length */
  free(text);
  if (fclose(target->file) != 0) good = false;
  target->file = NULL;
  return good ? EXIT_GOOD
              : fail("trace", "free some space or write elsewhere", "'%s' could not be written", target->path);
}

static int trace_layer(run_t *run, int64_t num_events, int64_t num_warmups, target_t *targets, int num_targets) {
  int code = run_open(run, "trace", false);
  if (code == EXIT_GOOD) code = create_traces(&run->layer, num_events);
  for (int i = 0; i < num_targets && code == EXIT_GOOD; i++) {
    if (targets[i].path == NULL) continue;
    code = run_check_output(run, targets[i].option, targets[i].path);
    for (int j = 0; j < i && code == EXIT_GOOD; j++)
      if (targets[j].path != NULL && is_same_file(targets[i].path, targets[j].path))
        code = fail("trace", "give each a file of its own", "--%s and --%s are one file", targets[j].option,
                    targets[i].option);
    if (code != EXIT_GOOD) break;
    targets[i].file = open_output("trace", targets[i].path, &targets[i].is_new);
    if (targets[i].file == NULL) code = EXIT_BAD_INPUT;
  }
  if (code == EXIT_GOOD) code = run_fill(run);
  /* Each forward overwrites the trace: the last one stays. */
  for (int64_t i = 0; i <= num_warmups && code == EXIT_GOOD; i++) code = layer_forward(&run->layer);
  for (int i = 0; i < num_targets && code == EXIT_GOOD; i++) code = write_target(&run->layer, &targets[i]);
  if (code != EXIT_GOOD) return code;
  uint64_t length;
  char *text = write_text(&run->layer, run->options.json ? PURR_TRACE_JSON : PURR_TRACE_TEXT, &length, &code);
  if (text != NULL) fputs(text, stdout);
  free(text);
  return code;
}

int cmd_trace(int argc, char **argv) {
  run_t run = {.options = {.layer = LAYER_OPTIONS_INIT, .num_tokens = -1, .num_repeats = 1}};
  run_options_t *options = &run.options;
  target_t targets[] = {{.option = "output", .format = PURR_TRACE_PERFETTO},
                        {.option = "svg", .format = PURR_TRACE_SVG}};
  enum { NUM_TARGETS = sizeof targets / sizeof targets[0] };
  int64_t num_events = 0, num_warmups = 1;
  const option_t table[] = {
      RUN_OPTION_ENTRIES(*options),
      {.name = "warmups",
       .kind = OPTION_INT,
       .value = &num_warmups,
       .metavar = "N",
       .max = 1000,
       .help = "forwards before the one that is shown (default: 1)"},
      {.name = "events",
       .kind = OPTION_INT,
       .value = &num_events,
       .metavar = "N",
       .min = 1,
       .max = 1 << 20,
       .help = "room for events of each track (default: enough for most layers)"},
      {.name = "output",
       .kind = OPTION_TEXT,
       .value = &targets[0].path,
       .metavar = "FILE",
       .help = "write the timeline for ui.perfetto.dev (JSON)"},
      {.name = "svg", .kind = OPTION_TEXT, .value = &targets[1].path, .metavar = "FILE", .help = "draw it"},
      {.name = "json",
       .kind = OPTION_FLAG,
       .value = &options->json,
       .help = "print the table's numbers as one JSON object"},
      {0}};
  int code = options_parse(&help, table, argc, argv, &options->config_path, 1);
  if (code != OPTIONS_GO_ON) return code;
  code = trace_layer(&run, num_events, num_warmups, targets, NUM_TARGETS);
  for (int i = 0; i < NUM_TARGETS; i++) {
    if (targets[i].file != NULL) fclose(targets[i].file);
    if (code != EXIT_GOOD && targets[i].is_new) unlink(targets[i].path);
  }
  run_close(&run);
  return code;
}
