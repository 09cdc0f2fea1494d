/* The packages of a context and what became of them, for the files of package/ only. */
#ifndef PURR_PACKAGE_LIST_H
#define PURR_PACKAGE_LIST_H

#include "package/package.h"

typedef struct purr__packages {
  purr_context_t *context;
  pthread_mutex_t mutex; /* guards all below; held while packages are opened and kernels are loaded */
  bool is_open;          /* the list is complete */
  purr__package_list_t list;
  int num_devices;
  _Atomic(purr__kernels_t *) *kernels; /* [num_devices] NULL until loaded */
} purr__packages_t;

purr_status_t purr__packages_part(purr_context_t *context, purr__packages_t **out_packages, purr_error_t *err);
void purr__kernels_free(purr_context_t *context, purr__kernels_t *kernels);

#endif
