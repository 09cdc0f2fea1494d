/* The option parser: a table in, values and a --help text out. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"

const char *const backend_names[] = {"auto", "host", "staged", "mega", NULL};
const char *const precision_names[] = {"bf16", "mxfp8", NULL};

static void join_choices(char *buffer, size_t capacity, const char *const *choices, const char *separator) {
  size_t length = 0;
  buffer[0] = '\0';
  for (; *choices != NULL && length < capacity; choices++) {
    int added = snprintf(buffer + length, capacity - length, "%s%s", length > 0 ? separator : "", *choices);
    length += (size_t)added;
  }
}

/* "--ranks N", "--json", "--backend auto|host". */
static void option_heading(char *buffer, size_t capacity, const option_t *option) {
  char choices[128];
  const char *value = option->metavar;
  if (value == NULL && option->choices != NULL) {
    join_choices(choices, sizeof choices, option->choices, "|");
    value = choices;
  }
  snprintf(buffer, capacity, "--%s%s%s", option->name, value ? " " : "", value ? value : "");
}

static void print_option_help(const char *heading, const char *text) {
  enum { COLUMN = 24 };
  int length = (int)strlen(heading);
  printf("  %s", heading);
  if (length + 2 >= COLUMN) {
    printf("\n");
    length = -2;
  }
  for (int indent = COLUMN - 2 - length; *text != '\0'; indent = COLUMN) {
    size_t line = strcspn(text, "\n");
    printf("%*s%.*s\n", indent, "", (int)line, text);
    text += line;
    if (*text == '\n') text++;
  }
}

static void print_help(const help_t *help, const option_t *options) {
  printf("usage: purr %s %s\n\n%s\n\noptions:\n", help->command, help->usage, help->about);
  for (const option_t *option = options; option->name != NULL; option++) {
    char heading[256];
    option_heading(heading, sizeof heading, option);
    print_option_help(heading, option->help);
  }
  print_option_help("--help", "show this text");
  printf("\nexample:\n%s\n", help->example);
}

static int fail_usage(const help_t *help, const char *message) {
  char next[128];
  snprintf(next, sizeof next, "see the options and an example with: purr %s --help", help->command);
  return fail(help->command, next, "%s", message);
}

static int fail_unknown_option(const help_t *help, const option_t *options, const char *name) {
  const char *names[64] = {"help"};
  for (size_t i = 0; options[i].name != NULL && i < 62; i++) names[i + 1] = options[i].name;
  const char *nearest = nearest_name(name, names);
  char message[256];
  snprintf(message, sizeof message,
           nearest ? "--%.64s is not an option; did you mean --%s?" : "--%.64s is not an option", name, nearest);
  return fail_usage(help, message);
}

static int parse_value(const help_t *help, const option_t *option, const char *text) {
  char message[512], choices[128], *end = NULL;
  errno = 0;
  switch (option->kind) {
    case OPTION_FLAG:
      *(bool *)option->value = true;
      return OPTIONS_GO_ON;
    case OPTION_TEXT:
      if (*text == '\0') break;
      *(const char **)option->value = text;
      return OPTIONS_GO_ON;
    case OPTION_LIST: {
      option_list_t *list = option->value;
      if (*text == '\0' || list->count == (int)(sizeof list->items / sizeof list->items[0])) break;
      list->items[list->count++] = text;
      return OPTIONS_GO_ON;
    }
    case OPTION_INT: {
      long long value = strtoll(text, &end, 10);
      bool is_plain = *text != '\0' && text[strspn(text, "-0123456789")] == '\0';
      if (!is_plain || *end != '\0' || errno != 0 || value < option->min || value > option->max) break;
      *(int64_t *)option->value = value;
      return OPTIONS_GO_ON;
    }
    case OPTION_REAL: {
      double value = strtod(text, &end);
      bool is_plain = *text != '\0' && text[strspn(text, "+-.eE0123456789")] == '\0';
      if (!is_plain || *end != '\0' || errno != 0 || !(value >= option->min_real && value <= option->max_real)) break;
      *(double *)option->value = value;
      return OPTIONS_GO_ON;
    }
    case OPTION_CHOICE:
      for (int i = 0; option->choices[i] != NULL; i++)
        if (strcmp(option->choices[i], text) == 0) {
          *(int *)option->value = i;
          return OPTIONS_GO_ON;
        }
      break;
  }
  if (option->kind == OPTION_INT)
    snprintf(message, sizeof message, "--%s takes a whole number from %lld to %lld, not '%.64s'", option->name,
             (long long)option->min, (long long)option->max, text);
  else if (option->kind == OPTION_REAL)
    snprintf(message, sizeof message, "--%s takes a number from %g to %g, not '%.64s'", option->name, option->min_real,
             option->max_real, text);
  else if (option->kind == OPTION_CHOICE) {
    join_choices(choices, sizeof choices, option->choices, ", ");
    snprintf(message, sizeof message, "--%s takes one of %s, not '%.64s'", option->name, choices, text);
  } else if (option->kind == OPTION_LIST && *text != '\0')
    snprintf(message, sizeof message, "--%s is given more than %d times", option->name,
             ((const option_list_t *)option->value)->count);
  else
    snprintf(message, sizeof message, "--%s takes %s, not an empty text", option->name, option->metavar);
  return fail_usage(help, message);
}

/* Parses the option at argv[*idx] and moves *idx to its last word. */
static int parse_option(const help_t *help, const option_t *options, int argc, char **argv, int *idx) {
  char name[64], message[256];
  const char *word = argv[*idx] + 2;
  size_t length = strcspn(word, "=");
  snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), word);
  const char *value = word[length] == '=' ? word + length + 1 : NULL;

  const option_t *option = options;
  while (option->name != NULL && strcmp(option->name, name) != 0) option++;
  if (option->name == NULL) return fail_unknown_option(help, options, name);
  if (option->kind == OPTION_FLAG) {
    if (value == NULL) return parse_value(help, option, "");
    snprintf(message, sizeof message, "--%s takes no value, got '%.64s'", name, value);
    return fail_usage(help, message);
  }
  if (value == NULL) {
    if (*idx + 1 >= argc) {
      char heading[256];
      option_heading(heading, sizeof heading, option);
      snprintf(message, sizeof message, "a value is missing: %.200s", heading);
      return fail_usage(help, message);
    }
    value = argv[++*idx];
  }
  return parse_value(help, option, value);
}

int options_parse(const help_t *help, const option_t *options, int argc, char **argv, const char **words,
                  int max_words) {
  for (int i = 0; i < max_words; i++) words[i] = NULL;
  for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      print_help(help, options);
      return EXIT_GOOD;
    }
  int num_words = 0;
  bool only_words = false;
  for (int i = 1; i < argc; i++) {
    const char *word = argv[i];
    char message[256];
    if (!only_words && strcmp(word, "--") == 0) {
      only_words = true;
    } else if (!only_words && strncmp(word, "--", 2) == 0) {
      int code = parse_option(help, options, argc, argv, &i);
      if (code != OPTIONS_GO_ON) return code;
    } else if (!only_words && word[0] == '-' && word[1] != '\0') {
      snprintf(message, sizeof message, "'%.64s' is not an option; options start with two dashes", word);
      return fail_usage(help, message);
    } else if (num_words < max_words) {
      words[num_words++] = word;
    } else {
      snprintf(message, sizeof message, "unexpected word '%.64s'; usage: purr %.32s %.100s", word, help->command,
               help->usage);
      return fail_usage(help, message);
    }
  }
  return OPTIONS_GO_ON;
}
