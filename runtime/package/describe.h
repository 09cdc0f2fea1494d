/* Kernels as people and programs read them, for the files of package/ only. */
#ifndef PURR_PACKAGE_DESCRIBE_H
#define PURR_PACKAGE_DESCRIBE_H

#include "package/package.h"

void purr__describe_package(const purr__package_t *package, int32_t format, purr__text_t *text);
void purr__describe_cubin(const purr__cubin_t *cubin, const char *path, int32_t format, purr__text_t *text);

/* The package behind a handle. */
purr__package_t *purr__package_of(const purr_package_t *handle);

/* INVALID_ARGUMENT unless it is a PURR_FORMAT_*. */
purr_status_t purr__check_format(int32_t format, purr_error_t *err);

#endif
