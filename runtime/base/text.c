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
  if (unit == 0) {
    purr__text_add(text, "%llu B", (unsigned long long)bytes);
  } else { /* not %.2f, whose point the caller's locale may make a comma */
    const unsigned long long hundredths = (unsigned long long)(value * 100.0 + 0.5);
    purr__text_add(text, "%llu.%02llu %s", hundredths / 100, hundredths % 100, units[unit]);
  }
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

/* Bytes of the UTF-8 character at `text`, 1 for a byte that begins none. */
static uint64_t character_bytes(const unsigned char *text, uint64_t length) {
  uint64_t bytes = text[0] >= 0xF0 ? 4 : text[0] >= 0xE0 ? 3 : text[0] >= 0xC0 ? 2 : 1;
  if (bytes > length) return 1;
  for (uint64_t i = 1; i < bytes; i++)
    if ((text[i] & 0xC0) != 0x80) return 1;
  return bytes;
}

const char *purr__printable(char *out, uint64_t capacity, const char *text, uint64_t length) {
  const unsigned char *in = (const unsigned char *)text;
  uint64_t used = 0, uncut = 0; /* uncut: where "..." still fits behind whole characters */
  for (uint64_t i = 0; i < length;) {
    uint64_t bytes = character_bytes(in + i, length - i);
    /* C0, DEL, and the C1 controls, which some terminals obey. */
    bool is_control = in[i] < 0x20 || in[i] == 0x7F || (in[i] == 0xC2 && bytes == 2 && in[i + 1] < 0xA0) ||
                      (in[i] >= 0x80 && bytes == 1);
    uint64_t needed = is_control ? 4 * bytes : bytes;
    if (used + needed + 1 > capacity) {
      memcpy(out + uncut, "...", 4);
      return out;
    }
    for (uint64_t j = 0; j < bytes; j++, i++) {
      if (is_control)
        used += (uint64_t)snprintf(out + used, 5, "\\x%02X", in[i]);
      else
        out[used++] = (char)in[i];
    }
    if (used + 4 <= capacity) uncut = used;
  }
  out[used] = '\0';
  return out;
}
