/* Writes JSON. */
#include <math.h>

#include "program.h"

static void write_string(json_t *json, const char *value) {
  fputc('"', json->file);
  for (const unsigned char *c = (const unsigned char *)value; *c != '\0'; c++) {
    if (*c == '"' || *c == '\\')
      fprintf(json->file, "\\%c", *c);
    else if (*c < 0x20)
      fprintf(json->file, "\\u%04x", *c);
    else
      fputc(*c, json->file);
  }
  fputc('"', json->file);
}

static void begin_item(json_t *json, const char *key) {
  if (json->depth > 0) fprintf(json->file, "%s\n%*s", json->has_items ? "," : "", 2 * json->depth, "");
  json->has_items = true;
  if (key == NULL) return;
  write_string(json, key);
  fputs(": ", json->file);
}

void json_begin(json_t *json, const char *key, char bracket) {
  begin_item(json, key);
  fputc(bracket, json->file);
  json->depth++;
  json->has_items = false;
}

void json_end(json_t *json, char bracket) {
  json->depth--;
  if (json->has_items) fprintf(json->file, "\n%*s", 2 * json->depth, "");
  fputc(bracket, json->file);
  json->has_items = true;
  if (json->depth == 0) fputc('\n', json->file);
}

void json_int(json_t *json, const char *key, int64_t value) {
  begin_item(json, key);
  fprintf(json->file, "%lld", (long long)value);
}

void json_real(json_t *json, const char *key, double value) {
  begin_item(json, key);
  if (isfinite(value))
    fprintf(json->file, "%.9g", value);
  else
    fputs("null", json->file);
}

void json_text(json_t *json, const char *key, const char *value) {
  begin_item(json, key);
  if (value != NULL)
    write_string(json, value);
  else
    fputs("null", json->file);
}

void json_bool(json_t *json, const char *key, bool value) {
  begin_item(json, key);
  fputs(value ? "true" : "false", json->file);
}
