/* Statuses, error structs, and structs of other versions. */
#include <errno.h>
#include <stdio.h>

#include "base/base.h"

/* base.h wraps the functions that are defined here. */
#undef purr__fail
#undef purr__fail_at
#undef purr__fail_rank
#undef purr__fail_errno
#undef purr__fail_memory

uint32_t purr_version(void) { return PURR_VERSION; }

#define PURR__TEXT2(x) #x
#define PURR__TEXT(x) PURR__TEXT2(x)
const char *purr_version_string(void) {
  return PURR__TEXT(PURR_VERSION_MAJOR) "." PURR__TEXT(PURR_VERSION_MINOR) "." PURR__TEXT(PURR_VERSION_PATCH);
}

const char *purr_status_name(purr_status_t status) {
  switch (status) {
#define PURR_STATUS(name, number, text) \
  case number:                          \
    return #name;
#include "purr_status.def"
#undef PURR_STATUS
    default:
      return "UNKNOWN";
  }
}

const char *purr_status_text(purr_status_t status) {
  switch (status) {
#define PURR_STATUS(name, number, text) \
  case number:                          \
    return text;
#include "purr_status.def"
#undef PURR_STATUS
    default:
      return "a status that this version of the library does not know";
  }
}

/* A caller who zeroed the struct and set nothing gets the layout of version 0.1. */
#define PURR__ERROR_BYTES_0_1 536u

/* A message that was cut must not end inside a UTF-8 character. */
static void end_at_character(char *message) {
  size_t length = strlen(message), begin = length;
  while (begin > 0 && ((unsigned char)message[begin - 1] & 0xC0) == 0x80) begin--;
  if (begin == 0) return;
  unsigned char lead = (unsigned char)message[begin - 1];
  size_t needed = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
  if (length - (begin - 1) < needed) message[begin - 1] = '\0';
}

static purr_status_t fail(purr_error_t *err, purr_error_t own, const char *format, va_list args) {
  if (err == NULL) return own.status;
  own.struct_size = err->struct_size ? err->struct_size : PURR__ERROR_BYTES_0_1;
  /* An older caller may have less room for the message: what is written always ends inside its struct. */
  uint32_t bytes = own.struct_size < sizeof own ? own.struct_size : (uint32_t)sizeof own;
  const uint32_t head = offsetof(purr_error_t, message);
  size_t room = bytes > head ? bytes - head : 1;
  if (vsnprintf(own.message, room, format, args) >= (int)room) end_at_character(own.message);
  memcpy(err, &own, bytes);
  return own.status;
}

purr_status_t purr__fail(purr_error_t *err, purr_status_t status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fail(err, (purr_error_t){.status = status, .rank = -1}, format, args);
  va_end(args);
  return status;
}

purr_status_t purr__fail_at(purr_error_t *err, purr_status_t status, int line, int column, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fail(err, (purr_error_t){.status = status, .rank = -1, .line = line, .column = column}, format, args);
  va_end(args);
  return status;
}

purr_status_t purr__fail_rank(purr_error_t *err, purr_status_t status, int rank, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fail(err, (purr_error_t){.status = status, .rank = rank}, format, args);
  va_end(args);
  return status;
}

purr_status_t purr__fail_errno(purr_error_t *err, purr_status_t status, int error_number, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fail(err, (purr_error_t){.status = status, .native_code = error_number, .rank = -1}, format, args);
  va_end(args);
  return status;
}

static void fail_with(purr_error_t *err, purr_error_t own, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fail(err, own, format, args);
  va_end(args);
}

void purr__fail_copy(purr_error_t *err, const purr_error_t *own) { fail_with(err, *own, "%s", own->message); }

purr_status_t purr__fail_memory(purr_error_t *err, const char *what, uint64_t bytes) {
  return purr__fail(err, PURR_STATUS_OUT_OF_HOST_MEMORY, "%s needs %llu bytes of host memory, which could not be had",
                    what, (unsigned long long)bytes);
}

/* No public struct comes near it: a larger struct_size was never set, and its tail is not there to be read. */
#define MAX_STRUCT_BYTES 65536u

/* struct_size is the first member of every public struct. */
static purr_status_t get_struct_size(const void *callers, const char *name, uint32_t *out_bytes, purr_error_t *err) {
  if (callers == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s is NULL", name);
  memcpy(out_bytes, callers, sizeof *out_bytes);
  if (*out_bytes < 2 * sizeof(uint32_t) || *out_bytes > MAX_STRUCT_BYTES)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "%s has the struct_size %u; set it to sizeof the struct (the _INIT macros do)", name, *out_bytes);
  return PURR_STATUS_OK;
}

purr_status_t purr__read_struct(void *own, uint32_t own_bytes, const void *callers, const char *name,
                                purr_error_t *err) {
  uint32_t bytes = 0;
  purr_status_t status = get_struct_size(callers, name, &bytes, err);
  if (status != PURR_STATUS_OK) return status;
  for (uint32_t i = own_bytes; i < bytes; i++)
    if (((const unsigned char *)callers)[i] != 0)
      return purr__fail(err, PURR_STATUS_INCOMPATIBLE_STRUCT,
                        "%s has %u bytes and a non-zero byte at offset %u; libpurr %s knows the first %u: the caller "
                        "was built against a newer header",
                        name, bytes, i, purr_version_string(), own_bytes);
  uint32_t known = bytes < own_bytes ? bytes : own_bytes;
  memcpy(own, callers, known);
  memset((char *)own + known, 0, own_bytes - known);
  return PURR_STATUS_OK;
}

purr_status_t purr__check_reserved(int64_t reserved, const char *name, purr_error_t *err) {
  if (reserved == 0) return PURR_STATUS_OK;
  return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s has reserved = %lld; it must be 0", name,
                    (long long)reserved);
}

purr_status_t purr__write_struct(void *callers, const void *own, uint32_t own_bytes, const char *name,
                                 purr_error_t *err) {
  uint32_t bytes = 0;
  purr_status_t status = get_struct_size(callers, name, &bytes, err);
  if (status != PURR_STATUS_OK) return status;
  uint32_t known = bytes < own_bytes ? bytes : own_bytes;
  memcpy((char *)callers + sizeof bytes, (const char *)own + sizeof bytes, known - sizeof bytes);
  return PURR_STATUS_OK;
}
