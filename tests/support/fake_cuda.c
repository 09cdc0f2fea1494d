#include "support/fake_cuda.h"

#include <dlfcn.h>
#include <string.h>

#include "base/context.h"

fake_cuda_t *fake_cuda_open(void) {
  void *library = dlopen(PURR_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == NULL) return NULL;
  void (*reset)(void);
  void *address = dlsym(library, "fake_cuda_reset");
  memcpy(&reset, &address, sizeof reset);
  reset();
  fake_cuda_t *fake = dlsym(library, "fake_cuda");
  dlclose(library);
  return fake;
}

purr_context_t *fake_cuda_context(void) {
  purr_context_t *context;
  if (purr_context_create(NULL, &context, NULL) != PURR_STATUS_OK) return NULL;
  context->driver_library = PURR_FAKE_CUDA;
  return context;
}
