/* Where the files of a package come from: a folder, a tar file, or a tar in memory. No path is ever followed: a file is
 * opened by its plain name within the folder that was opened first, and must be a regular file and no link. A tar holds
 * regular files alone, without folders (tar --format=ustar -cf p.tar -C FOLDER manifest.json a.cubin ...). */
#ifndef PURR_PACKAGE_SOURCE_H
#define PURR_PACKAGE_SOURCE_H

#include "base/base.h"

#define PURR__PACKAGE_MAX_FILES 2048

typedef struct purr__package_member {
  char name[101];
  uint64_t offset, bytes;
} purr__package_member_t;

typedef struct purr__package_source {
  purr_context_t *context;
  char *name; /* the path, or what the caller calls the memory */
  bool is_folder;
  int fd;              /* of the folder or the tar, -1 with memory */
  unsigned char *copy; /* of the caller's memory */
  uint64_t bytes;      /* of the tar */
  int num_members;
  purr__package_member_t *members; /* of the tar */
} purr__package_source_t;

/* Returns: OK, IO, PACKAGE, OUT_OF_HOST_MEMORY. On failure nothing stays open. */
purr_status_t purr__package_source_open(purr_context_t *context, const char *path, purr__package_source_t *out_source,
                                        purr_error_t *err);
purr_status_t purr__package_source_open_memory(purr_context_t *context, const void *data, uint64_t bytes,
                                               const char *name, purr__package_source_t *out_source, purr_error_t *err);
void purr__package_source_close(purr__package_source_t *source);

/* Reads a whole file of the package into memory that the caller releases. `name` is plain (manifest.h).
 * Returns: OK, IO, PACKAGE (not there, a link, too large), OUT_OF_HOST_MEMORY. */
purr_status_t purr__package_source_read(const purr__package_source_t *source, const char *name, uint64_t max_bytes,
                                        unsigned char **out_data, uint64_t *out_bytes, purr_error_t *err);

/* What errno's number means, in memory of the caller's block. */
#define PURR__ERRNO_TEXT(number) strerror_r(number, (char[96]){0}, 96)

/* Reads a regular file by its path, as above; the last part of the path may be a link. */
purr_status_t purr__read_file(purr_context_t *context, const char *path, uint64_t max_bytes, unsigned char **out_data,
                              uint64_t *out_bytes, purr_error_t *err);

#endif
