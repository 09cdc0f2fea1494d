/* Copies happen when they are asked for, kernels never. */
#include <string.h>

#include "fake_cuda/engine.h"

void engine_start(int num_sms, uint32_t seed) {
  (void)num_sms;
  (void)seed;
}

int engine_blocks_per_sm(unsigned threads, size_t shared_bytes) {
  (void)threads;
  (void)shared_bytes;
  return 1;
}

int engine_cluster_of(const char *kernel) {
  (void)kernel;
  return 1;
}

void engine_copy(void *stream, void *to, const void *from, size_t bytes) {
  (void)stream;
  memcpy(to, from, bytes);
}

void engine_set(void *stream, void *to, uint32_t value, size_t count, int element_bytes) {
  (void)stream;
  if (element_bytes == 1)
    memset(to, (int)value, count);
  else
    for (size_t i = 0; i < count; i++) ((uint32_t *)to)[i] = value;
}

int engine_launch(void *stream, int device, const engine_launch_t *launch, void **params) {
  (void)stream;
  (void)device;
  (void)params;
  return launch->grid[0] == 0 || launch->grid[1] == 0 || launch->grid[2] == 0 ? ENGINE_INVALID : ENGINE_OK;
}

void engine_record(void *stream, void *event) {
  (void)stream;
  (void)event;
}

void engine_wait_event(void *stream, void *event) {
  (void)stream;
  (void)event;
}

int engine_is_capturing(const void *stream) {
  (void)stream;
  return 0;
}

int engine_synchronize(void *stream) {
  (void)stream;
  return ENGINE_OK;
}

int engine_is_idle(void *stream) {
  (void)stream;
  return 1;
}

void engine_wait_for_kernels(int device) { (void)device; }

int engine_event_synchronize(void *event) {
  (void)event;
  return ENGINE_OK;
}

int engine_event_is_done(void *event) {
  (void)event;
  return 1;
}

float engine_elapsed_ms(void *start, void *end) {
  (void)start;
  (void)end;
  return 1.0f;
}

void engine_forget(void *stream_or_event) { (void)stream_or_event; }

int engine_failed(void) { return 0; }
