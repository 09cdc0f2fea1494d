/* A Triton kernel as people and programs read it, for the files of triton/ only. */
#ifndef PURR_TRITON_DESCRIBE_H
#define PURR_TRITON_DESCRIBE_H

#include "package/describe.h"
#include "triton/kernel.h"

void purr__describe_triton(const purr_kernel_t *kernel, int32_t format, purr__text_t *text);

#endif
