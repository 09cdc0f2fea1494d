/* Driver calls that tests make and the library does not: graphs, and streams that wait for a word. */
#ifndef PURR_TEST_RAW_DRIVER_H
#define PURR_TEST_RAW_DRIVER_H

#include <dlfcn.h>
#include <string.h>

#include "driver/driver.h"
#include "kernels/layout.h"
#include "package/package.h"
#include "plan/plan.h"
#include "support/device.h"
#include "workspace/workspace.h"

typedef struct raw_driver {
  purr__device_t *device;
  CUresult (*begin_capture)(CUstream, int mode); /* mode 0 = global, 1 = of this thread */
  CUresult (*end_capture)(CUstream, void **graph);
  CUresult (*instantiate)(void **exec, void *graph, unsigned long long flags);
  CUresult (*launch)(void *exec, CUstream);
  CUresult (*destroy_exec)(void *exec);
  CUresult (*destroy_graph)(void *graph);
  CUresult (*wait_value)(CUstream, CUdeviceptr, uint32_t value, unsigned flags); /* flags 0 = at least */
} raw_driver_t;

/* The functions that this plan's driver has. */
static inline raw_driver_t raw_driver_of(const purr_plan_t *plan) {
  raw_driver_t raw = {.device = plan->device};
  const struct {
    const char *name;
    void *function;
  } wanted[] = {{"cuStreamBeginCapture_v2", &raw.begin_capture},   {"cuStreamEndCapture", &raw.end_capture},
                {"cuGraphInstantiateWithFlags", &raw.instantiate}, {"cuGraphLaunch", &raw.launch},
                {"cuGraphExecDestroy", &raw.destroy_exec},         {"cuGraphDestroy", &raw.destroy_graph},
                {"cuStreamWaitValue32_v2", &raw.wait_value}};
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
    void *address = dlsym(plan->device->driver->library, wanted[i].name);
    CU_ASSERT_PTR_NOT_NULL_FATAL(address);
    memcpy(wanted[i].function, &address, sizeof address);
  }
  return raw;
}

/* A word that streams wait for and the host sets. */
static inline volatile uint32_t *raw_gate_create(const raw_driver_t *raw) {
  void *word = NULL;
  CU_ASSERT_EQUAL_FATAL(purr__device_allocate_pinned(raw->device, 64, &word, NULL), PURR_STATUS_OK);
  *(volatile uint32_t *)word = 0;
  return word;
}

static inline void raw_gate_destroy(const raw_driver_t *raw, volatile uint32_t *gate) {
  purr__device_release_pinned(raw->device, (void *)(uintptr_t)gate);
}

/* The stream goes on once the gate holds `value` or more. */
static inline CUresult raw_wait(const raw_driver_t *raw, CUstream stream, volatile uint32_t *gate, uint32_t value) {
  if (purr__device_enter(raw->device, NULL) != PURR_STATUS_OK) return CUDA_ERROR_INVALID_CONTEXT;
  const CUresult result = raw->wait_value(stream, (CUdeviceptr)(uintptr_t)gate, value, 0);
  purr__device_leave(raw->device);
  return result;
}

/* A layer on a GPU, by its number. */
static inline purr_plan_t *raw_plan_on(purr_context_t *context, const test_problem_t *problem, const test_run_t *run,
                                       int64_t timeout_ms, int device) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_layer_desc_t layer = test_layer_desc(problem, run);
  if (timeout_ms != 0) layer.timeout_ms = timeout_ms;
  purr_config_t *config = NULL;
  purr_plan_t *plan = NULL;
  const purr_plan_desc_t desc = {.struct_size = sizeof desc, .device = device + 1};
  purr_status_t status = purr_config_create(context, &layer, &config, &err);
  if (status == PURR_STATUS_OK) status = purr_plan_create(context, config, &desc, &plan, &err);
  if (status != PURR_STATUS_OK) fprintf(stderr, "%s: %s\n", purr_status_name(status), err.message);
  purr_config_destroy(config);
  return plan;
}

/* A layer on the tests' GPU. */
static inline purr_plan_t *raw_plan(purr_context_t *context, const test_problem_t *problem, const test_run_t *run,
                                    int64_t timeout_ms) {
  return raw_plan_on(context, problem, run, timeout_ms, 0);
}

/* Fixture F's output for these inputs, in closed form. */
static inline void raw_fixture_output(const test_problem_t *p, int64_t tokens, const purr__bf16_t *x,
                                      const int32_t *ids, const float *weights, purr__bf16_t *out) {
  for (int64_t t = 0; t < tokens; t++) {
    float sum = 0.0f;
    for (int64_t k = 0; k < p->top_k; k++) {
      const int32_t id = ids[t * p->top_k + k];
      if (id >= 0) sum += weights[t * p->top_k + k] * (float)(id % 8 + 1);
    }
    for (int64_t h = 0; h < p->hidden; h++)
      out[t * p->hidden + h] =
          purr__bf16_from_fp32(h < p->inner ? sum * purr__fp32_from_bf16(x[t * p->hidden + h]) + 0.0f : 0.0f);
  }
}

#endif
