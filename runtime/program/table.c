/* Aligned tables, small bars, and numbers as people read them. Plain text unless a terminal looks at it. */
#include <langinfo.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program.h"

void table_add(table_t *table, const char *format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (table->num_cells == table->capacity) {
    int64_t capacity = table->capacity ? 2 * table->capacity : 64;
    char **cells = realloc(table->cells, (size_t)capacity * sizeof *cells);
    if (cells == NULL) return; /* a cell less; nothing depends on it */
    table->cells = cells;
    table->capacity = capacity;
  }
  table->cells[table->num_cells++] = strdup(text);
}

/* Characters that a terminal shows: UTF-8 continuation bytes and colour sequences take no room. */
static int shown_width(const char *text) {
  int width = 0;
  for (; *text != '\0'; text++) {
    if (*text == '\033') {
      while (*text != '\0' && *text != 'm') text++;
      if (*text == '\0') break;
    } else if (((unsigned char)*text & 0xC0) != 0x80) {
      width++;
    }
  }
  return width;
}

void table_print(table_t *table, FILE *file) {
  int64_t num_columns = (int64_t)strlen(table->alignment);
  int widths[32] = {0};
  for (int64_t i = 0; i < table->num_cells; i++) {
    int width = shown_width(table->cells[i] ? table->cells[i] : "");
    if (width > widths[i % num_columns]) widths[i % num_columns] = width;
  }
  int num_spaces = 0; /* owed before the next text; never printed at the end of a line */
  for (int64_t i = 0; i < table->num_cells; i++) {
    const char *cell = table->cells[i] ? table->cells[i] : "";
    int64_t column = i % num_columns;
    int padding = widths[column] - shown_width(cell);
    bool is_right = table->alignment[column] == 'r';
    num_spaces += 2 + (is_right ? padding : 0);
    if (*cell != '\0') {
      fprintf(file, "%*s%s", num_spaces, "", cell);
      num_spaces = 0;
    }
    if (!is_right) num_spaces += padding;
    if (column == num_columns - 1) {
      fprintf(file, "\n");
      num_spaces = 0;
    }
    free(table->cells[i]);
  }
  free(table->cells);
  *table = (table_t){.alignment = table->alignment};
}

const char *bar_text(char *buffer, size_t capacity, double value, double maximum, int width) {
  static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  bool has_blocks = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
  int length = maximum > 0 ? (int)lround(8.0 * width * value / maximum) : 0;
  if (length == 0 && value > 0) length = 1; /* something is not nothing */
  int num_full = has_blocks ? length / 8 : (length + 7) / 8;
  size_t used = 0;
  buffer[0] = '\0';
  for (int i = 0; i < num_full && used + 4 < capacity; i++)
    used += (size_t)snprintf(buffer + used, capacity - used, "%s", has_blocks ? "█" : "#");
  if (has_blocks && used + 4 < capacity) snprintf(buffer + used, capacity - used, "%s", eighths[length % 8]);
  return buffer;
}

const char *bytes_text(char *buffer, size_t capacity, uint64_t bytes) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = (double)bytes;
  int unit = 0;
  for (; value >= 1024.0 && unit < 6; unit++) value /= 1024.0;
  snprintf(buffer, capacity, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  return buffer;
}

const char *time_text(char *buffer, size_t capacity, double seconds) {
  if (seconds >= 100.0)
    snprintf(buffer, capacity, "%.0f s", seconds);
  else if (seconds >= 1.0)
    snprintf(buffer, capacity, "%.2f s", seconds);
  else if (seconds >= 1e-3)
    snprintf(buffer, capacity, "%.2f ms", seconds * 1e3);
  else
    snprintf(buffer, capacity, "%.1f us", seconds * 1e6);
  return buffer;
}

const char *count_text(char *buffer, size_t capacity, int64_t count) {
  char digits[32];
  snprintf(digits, sizeof digits, "%lld", (long long)count);
  size_t length = strlen(digits), used = 0;
  for (size_t i = 0; i < length && used + 2 < capacity; i++) {
    buffer[used++] = digits[i];
    size_t rest = length - 1 - i;
    if (rest > 0 && rest % 3 == 0 && digits[i] != '-' && length > 4) buffer[used++] = ' ';
  }
  buffer[used] = '\0';
  return buffer;
}

const char *colour_text(FILE *file, colour_t colour) {
  static const char *const sequences[] = {"\033[0m", "\033[1m", "\033[31m", "\033[32m"};
  const char *no_color = getenv("NO_COLOR"); /* https://no-color.org: any value that is not empty */
  if ((no_color != NULL && *no_color != '\0') || !isatty(fileno(file))) return "";
  return sequences[colour];
}
