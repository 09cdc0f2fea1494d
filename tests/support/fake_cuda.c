#include "support/fake_cuda.h"

#include <dlfcn.h>
#include <stdio.h>
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

purr_status_t fake_cuda_plan(const purr_layer_desc_t *layer, const purr_plan_desc_t *desc, int cc,
                             fake_cuda_t **out_fake, purr_context_t **out_context, purr_plan_t **out_plan,
                             purr_error_t *err) {
  purr_config_t *config = NULL;
  *out_plan = NULL;
  *err = (purr_error_t)PURR_ERROR_INIT;
  *out_fake = fake_cuda_open();
  (*out_fake)->cc[0] = cc;
  *out_context = fake_cuda_context();
  purr_status_t status = purr_config_create(*out_context, layer, &config, err);
  if (status == PURR_STATUS_OK) status = purr_plan_create(*out_context, config, desc, out_plan, err);
  purr_config_destroy(config);
  return status;
}

int fake_cuda_test_main(const char *suite, const purr_test_t *tests) {
  const purr_layer_desc_t layer = {.struct_size = sizeof layer,
                                   .hidden_size = 64,
                                   .intermediate_size = 64,
                                   .num_experts = 1,
                                   .top_k = 1,
                                   .backend = PURR_BACKEND_STAGED};
  fake_cuda_t *fake;
  purr_context_t *context;
  purr_plan_t *plan;
  purr_error_t err;
  const purr_status_t status = fake_cuda_plan(&layer, NULL, 90, &fake, &context, &plan, &err);
  purr_plan_destroy(plan);
  purr_context_destroy(context);
  if (status != PURR_STATUS_MISSING_KERNEL) return purr_test_main(suite, tests);
  fprintf(stderr, "skipped: %s\n", err.message);
  return PURR_TEST_SKIPPED;
}
