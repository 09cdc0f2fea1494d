#include "package/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- regular files ---- */

static purr_status_t fail_open(purr_error_t *err, const char *path, const char *file) {
  int number = errno;
  const char *slash = file[0] != '\0' ? "/" : "";
  if (number == ELOOP)
    return purr__fail(err, PURR_STATUS_PACKAGE, "%s%s%s is a link; a package holds its files itself", path, slash,
                      file);
  return purr__fail_errno(err, number == ENOENT && file[0] != '\0' ? PURR_STATUS_PACKAGE : PURR_STATUS_IO, number,
                          "%s%s%s could not be opened: %s", path, slash, file, PURR__ERRNO_TEXT(number));
}

/* Reads bytes [offset, offset + bytes) of an open file. */
static purr_status_t read_exactly(int fd, unsigned char *to, uint64_t bytes, uint64_t offset, const char *path,
                                  purr_error_t *err) {
  for (uint64_t done = 0; done < bytes;) {
    ssize_t got = pread(fd, to + done, bytes - done, (off_t)(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return purr__fail_errno(err, PURR_STATUS_IO, errno, "%s could not be read: %s", path, PURR__ERRNO_TEXT(errno));
    if (got == 0)
      return purr__fail(err, PURR_STATUS_IO, "%s ended at byte %llu while it was read; %llu were expected", path,
                        (unsigned long long)(offset + done), (unsigned long long)(offset + bytes));
    done += (uint64_t)got;
  }
  return PURR_STATUS_OK;
}

static purr_status_t allocate_for_file(purr_context_t *context, const char *path, uint64_t bytes, uint64_t max_bytes,
                                       unsigned char **out_data, purr_error_t *err) {
  if (bytes > max_bytes)
    return purr__fail(err, PURR_STATUS_PACKAGE, "%s has %llu bytes; allowed are %llu", path, (unsigned long long)bytes,
                      (unsigned long long)max_bytes);
  *out_data = purr__allocate(context, bytes + 1);
  return *out_data != NULL ? PURR_STATUS_OK : purr__fail_memory(err, path, bytes + 1);
}

static purr_status_t read_open_file(purr_context_t *context, int fd, const char *path, uint64_t max_bytes,
                                    unsigned char **out_data, uint64_t *out_bytes, purr_error_t *err) {
  struct stat info;
  if (fstat(fd, &info) != 0)
    return purr__fail_errno(err, PURR_STATUS_IO, errno, "%s could not be looked at: %s", path, PURR__ERRNO_TEXT(errno));
  if (!S_ISREG(info.st_mode)) return purr__fail(err, PURR_STATUS_PACKAGE, "%s is not a regular file", path);
  unsigned char *data = NULL;
  purr_status_t status = allocate_for_file(context, path, (uint64_t)info.st_size, max_bytes, &data, err);
  if (status == PURR_STATUS_OK) status = read_exactly(fd, data, (uint64_t)info.st_size, 0, path, err);
  if (status != PURR_STATUS_OK) {
    purr__release(context, data);
    return status;
  }
  *out_data = data;
  *out_bytes = (uint64_t)info.st_size;
  return PURR_STATUS_OK;
}

/* O_NONBLOCK: a pipe must not stop us before we see that it is one. */
#define READ_FLAGS (O_RDONLY | O_CLOEXEC | O_NONBLOCK)

purr_status_t purr__read_file(purr_context_t *context, const char *path, uint64_t max_bytes, unsigned char **out_data,
                              uint64_t *out_bytes, purr_error_t *err) {
  *out_data = NULL;
  *out_bytes = 0;
  int fd = open(path, READ_FLAGS);
  if (fd < 0) return fail_open(err, path, "");
  purr_status_t status = read_open_file(context, fd, path, max_bytes, out_data, out_bytes, err);
  close(fd);
  return status;
}

/* ---- tar ---- */

enum {
  TAR_BLOCK = 512,
  TAR_NAME = 0,
  TAR_SIZE = 124,
  TAR_CHECKSUM = 148,
  TAR_TYPE = 156,
  TAR_MAGIC = 257,
  TAR_PREFIX = 345
};

static purr_status_t check_range(const purr__package_source_t *source, uint64_t bytes, uint64_t offset,
                                 purr_error_t *err) {
  if (offset <= source->bytes && bytes <= source->bytes - offset) return PURR_STATUS_OK;
  return purr__fail(err, PURR_STATUS_PACKAGE, "%s has %llu bytes, but a file in it ends at byte %llu: it is cut short",
                    source->name, (unsigned long long)source->bytes, (unsigned long long)(offset + bytes));
}

/* Reads bytes that are in range. */
static purr_status_t read_tar(const purr__package_source_t *source, void *to, uint64_t bytes, uint64_t offset,
                              purr_error_t *err) {
  if (source->copy == NULL) return read_exactly(source->fd, to, bytes, offset, source->name, err);
  memcpy(to, source->copy + offset, bytes);
  return PURR_STATUS_OK;
}

/* Octal digits, then a blank or NUL. */
static bool read_octal(const unsigned char *field, int length, uint64_t *out) {
  *out = 0;
  int i = 0;
  while (i < length && field[i] == ' ') i++;
  if (i == length || field[i] < '0' || field[i] > '7') return false;
  for (; i < length && field[i] >= '0' && field[i] <= '7'; i++) *out = *out * 8 + (uint64_t)(field[i] - '0');
  return i == length || field[i] == ' ' || field[i] == '\0';
}

static bool has_good_checksum(const unsigned char header[TAR_BLOCK]) {
  uint64_t wanted, sum = 0;
  for (int i = 0; i < TAR_BLOCK; i++) sum += i >= TAR_CHECKSUM && i < TAR_CHECKSUM + 8 ? ' ' : header[i];
  return read_octal(header + TAR_CHECKSUM, 8, &wanted) && wanted == sum;
}

static bool is_zero_block(const unsigned char *block) {
  for (int i = 0; i < TAR_BLOCK; i++)
    if (block[i] != 0) return false;
  return true;
}

/* Adds the member whose header is at *offset and moves behind its content. */
static purr_status_t add_member(purr__package_source_t *source, const unsigned char *header, uint64_t *offset,
                                purr_error_t *err) {
  uint64_t bytes;
  char name[101] = {0}, shown[128];
  memcpy(name, header + TAR_NAME, 100);
  purr__printable(shown, sizeof shown, name, strlen(name));
  if (memcmp(header + TAR_MAGIC, "ustar", 5) != 0 || !has_good_checksum(header) ||
      !read_octal(header + TAR_SIZE, 12, &bytes))
    return purr__fail(err, PURR_STATUS_PACKAGE,
                      "%s: what stands at byte %llu is no tar header; a package is a folder or a tar (ustar) of one",
                      source->name, (unsigned long long)*offset);
  const char *plain = strncmp(name, "./", 2) == 0 ? name + 2 : name;
  char type = (char)header[TAR_TYPE];
  *offset += TAR_BLOCK;
  if (type == '5' && *plain == '\0') return PURR_STATUS_OK; /* the folder that was packed */
  if (type != '0' && type != '\0')
    return purr__fail(err, PURR_STATUS_PACKAGE,
                      "%s holds '%s' of type '%c'; allowed are regular files (pack with tar --format=ustar)",
                      source->name, shown, type > ' ' && type <= '~' ? type : '?');
  if (*plain == '\0' || header[TAR_PREFIX] != 0 || strchr(plain, '/') != NULL)
    return purr__fail(err, PURR_STATUS_PACKAGE, "%s holds a file in a folder ('%s'); a package has none", source->name,
                      shown);
  if (source->num_members == PURR__PACKAGE_MAX_FILES)
    return purr__fail(err, PURR_STATUS_PACKAGE, "%s holds more than %d files", source->name, PURR__PACKAGE_MAX_FILES);
  for (int i = 0; i < source->num_members; i++)
    if (strcmp(source->members[i].name, plain) == 0)
      return purr__fail(err, PURR_STATUS_PACKAGE, "%s holds '%s' twice", source->name, shown);
  purr_status_t status = check_range(source, bytes, *offset, err);
  if (status != PURR_STATUS_OK) return status;
  purr__package_member_t *member = &source->members[source->num_members++];
  memcpy(member->name, plain, strlen(plain) + 1);
  member->offset = *offset;
  member->bytes = bytes;
  *offset += (bytes + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
  return PURR_STATUS_OK;
}

static purr_status_t index_tar(purr__package_source_t *source, purr_error_t *err) {
  uint64_t table_bytes = PURR__PACKAGE_MAX_FILES * sizeof(purr__package_member_t);
  source->members = purr__allocate(source->context, table_bytes);
  if (source->members == NULL) return purr__fail_memory(err, "the list of a package's files", table_bytes);
  for (uint64_t offset = 0; offset < source->bytes;) {
    unsigned char header[TAR_BLOCK];
    purr_status_t status = check_range(source, TAR_BLOCK, offset, err);
    if (status == PURR_STATUS_OK) status = read_tar(source, header, TAR_BLOCK, offset, err);
    if (status == PURR_STATUS_OK && is_zero_block(header)) return PURR_STATUS_OK;
    if (status == PURR_STATUS_OK) status = add_member(source, header, &offset, err);
    if (status != PURR_STATUS_OK) return status;
  }
  return PURR_STATUS_OK;
}

static purr_status_t read_member(const purr__package_source_t *source, const purr__package_member_t *member,
                                 const char *path, uint64_t max_bytes, unsigned char **out_data, purr_error_t *err) {
  unsigned char *data = NULL;
  purr_status_t status = check_range(source, member->bytes, member->offset, err);
  if (status == PURR_STATUS_OK) status = allocate_for_file(source->context, path, member->bytes, max_bytes, &data, err);
  if (status == PURR_STATUS_OK) status = read_tar(source, data, member->bytes, member->offset, err);
  if (status != PURR_STATUS_OK) {
    purr__release(source->context, data);
    return status;
  }
  *out_data = data;
  return PURR_STATUS_OK;
}

/* ---- opening and reading ---- */

static purr_status_t name_source(purr_context_t *context, const char *name, purr__package_source_t *out_source,
                                 purr_error_t *err) {
  *out_source = (purr__package_source_t){.context = context, .fd = -1};
  out_source->name = purr__duplicate(context, name);
  return out_source->name != NULL ? PURR_STATUS_OK : purr__fail_memory(err, "a package's name", strlen(name) + 1);
}

purr_status_t purr__package_source_open(purr_context_t *context, const char *path, purr__package_source_t *out_source,
                                        purr_error_t *err) {
  purr_status_t status = name_source(context, path, out_source, err);
  if (status != PURR_STATUS_OK) return status;
  struct stat info = {0};
  out_source->fd = open(path, READ_FLAGS);
  if (out_source->fd < 0)
    status = fail_open(err, path, "");
  else if (fstat(out_source->fd, &info) != 0)
    status =
        purr__fail_errno(err, PURR_STATUS_IO, errno, "%s could not be looked at: %s", path, PURR__ERRNO_TEXT(errno));
  else if (S_ISDIR(info.st_mode))
    out_source->is_folder = true;
  else if (!S_ISREG(info.st_mode))
    status = purr__fail(err, PURR_STATUS_PACKAGE, "%s is neither a folder nor a regular file", path);
  out_source->bytes = (uint64_t)info.st_size;
  if (status == PURR_STATUS_OK && !out_source->is_folder) status = index_tar(out_source, err);
  if (status != PURR_STATUS_OK) purr__package_source_close(out_source);
  return status;
}

purr_status_t purr__package_source_open_memory(purr_context_t *context, const void *data, uint64_t bytes,
                                               const char *name, purr__package_source_t *out_source,
                                               purr_error_t *err) {
  purr_status_t status = name_source(context, name, out_source, err);
  if (status != PURR_STATUS_OK) return status;
  out_source->bytes = bytes;
  out_source->copy = purr__allocate(context, bytes + 1);
  if (out_source->copy == NULL) status = purr__fail_memory(err, "the copy of a package", bytes + 1);
  if (status == PURR_STATUS_OK) {
    memcpy(out_source->copy, data, bytes);
    status = index_tar(out_source, err);
  }
  if (status != PURR_STATUS_OK) purr__package_source_close(out_source);
  return status;
}

void purr__package_source_close(purr__package_source_t *source) {
  if (source->fd >= 0) close(source->fd);
  purr__release(source->context, source->members);
  purr__release(source->context, source->copy);
  purr__release(source->context, source->name);
  *source = (purr__package_source_t){.fd = -1};
}

purr_status_t purr__package_source_read(const purr__package_source_t *source, const char *name, uint64_t max_bytes,
                                        unsigned char **out_data, uint64_t *out_bytes, purr_error_t *err) {
  char path[400];
  snprintf(path, sizeof path, "%.260s/%.128s", source->name, name);
  *out_data = NULL;
  *out_bytes = 0;
  if (source->is_folder) {
    int fd = openat(source->fd, name, READ_FLAGS | O_NOFOLLOW);
    if (fd < 0) return fail_open(err, source->name, name);
    purr_status_t status = read_open_file(source->context, fd, path, max_bytes, out_data, out_bytes, err);
    close(fd);
    return status;
  }
  for (int i = 0; i < source->num_members; i++)
    if (strcmp(source->members[i].name, name) == 0) {
      purr_status_t status = read_member(source, &source->members[i], path, max_bytes, out_data, err);
      if (status == PURR_STATUS_OK) *out_bytes = source->members[i].bytes;
      return status;
    }
  return purr__fail(err, PURR_STATUS_PACKAGE, "%s holds no %s", source->name, name);
}
