/* A growing string for the texts that Purr hands out. */
#include <stdio.h>

#include "base/base.h"

static bool reserve(purr__text_t *text, uint64_t more) {
  if (text->failed) return false;
  if (text->length + more + 1 <= text->capacity) return true;
  uint64_t capacity = text->capacity ? text->capacity : 1024;
  while (capacity < text->length + more + 1) capacity *= 2;
  char *data = purr__reallocate(text->context, text->data, capacity);
  if (data == NULL) {
    text->failed = true;
    return false;
  }
  text->data = data;
  text->capacity = capacity;
  return true;
}

void purr__text_add(purr__text_t *text, const char *format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  int length = vsnprintf(NULL, 0, format, args);
  if (length >= 0 && reserve(text, (uint64_t)length)) {
    vsnprintf(text->data + text->length, (size_t)length + 1, format, again);
    text->length += (uint64_t)length;
  }
  va_end(again);
  va_end(args);
}

void purr__text_add_json_string(purr__text_t *text, const char *value) {
  purr__text_add(text, "\"");
  for (const unsigned char *c = (const unsigned char *)value; *c; c++) {
    if (*c == '"' || *c == '\\')
      purr__text_add(text, "\\%c", *c);
    else if (*c < 0x20)
      purr__text_add(text, "\\u%04x", *c);
    else
      purr__text_add(text, "%c", *c);
  }
  purr__text_add(text, "\"");
}

void purr__text_add_bytes(purr__text_t *text, uint64_t bytes) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = (double)bytes;
  int unit = 0;
  while (value >= 1024.0 && unit < 6) {
    value /= 1024.0;
    unit++;
  }
  purr__text_add(text, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
}

purr_status_t purr__text_deliver(purr__text_t *text, char *buffer, uint64_t capacity, uint64_t *out_length,
                                 purr_error_t *err) {
  purr_status_t status = PURR_STATUS_OK;
  if (text->failed)
    status = purr__fail_memory(err, "the text", text->capacity * 2);
  else if (out_length != NULL)
    *out_length = text->length;
  if (status == PURR_STATUS_OK && buffer != NULL) {
    if (capacity < text->length + 1)
      status = purr__fail(err, PURR_STATUS_BUFFER_TOO_SMALL, "the text needs %llu bytes, the buffer has %llu",
                          (unsigned long long)text->length + 1, (unsigned long long)capacity);
    else {
      if (text->length > 0) memcpy(buffer, text->data, text->length);
      buffer[text->length] = '\0';
    }
  }
  purr__text_free(text);
  return status;
}

void purr__text_free(purr__text_t *text) {
  purr__release(text->context, text->data);
  text->data = NULL;
  text->length = text->capacity = 0;
}
