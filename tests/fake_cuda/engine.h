/* What does the work of the fake driver's streams. Two engines have these functions: immediate.c, which copies at once
 * and launches nothing, and emulated_cuda/engine.cc, devices on which kernels run. */
#ifndef PURR_FAKE_ENGINE_H
#define PURR_FAKE_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct engine_launch {
  const char *kernel;
  unsigned grid[3], block[3], cluster[3], shared_bytes;
  int is_cooperative;
  int cc; /* compute capability of the device: major * 10 + minor */
} engine_launch_t;

/* As the driver's results. */
enum { ENGINE_OK = 0, ENGINE_INVALID = 1, ENGINE_UNKNOWN_KERNEL = 500, ENGINE_FAILED = 719, ENGINE_TOO_LARGE = 720 };

void engine_start(int num_sms, uint32_t seed);
int engine_blocks_per_sm(unsigned threads, size_t shared_bytes);
int engine_cluster_of(const char *kernel); /* blocks, as its source says */

/* Work goes to the end of a stream: any pointer stands for one. `device` is where kernels run. */
void engine_copy(void *stream, void *to, const void *from, size_t bytes);
void engine_set(void *stream, void *to, uint32_t value, size_t count, int element_bytes);
int engine_launch(void *stream, int device, const engine_launch_t *launch, void **params);
void engine_record(void *stream, void *event);
void engine_wait_event(void *stream, void *event);
void engine_wait_value(void *stream, const void *word, uint32_t value);

/* From here to the end what goes to the stream is kept, not done: returned as a graph. Streams that wait for an event
 * of a captured stream are captured with it. */
void engine_capture(void *stream);
int engine_is_capturing(const void *stream);
void *engine_end_capture(void *stream);
void engine_launch_graph(void *stream, const void *graph);
void *engine_copy_graph(const void *graph);
void engine_destroy_graph(void *graph);

/* For the host. ENGINE_FAILED once a kernel failed. */
int engine_synchronize(void *stream);
int engine_is_idle(void *stream);
void engine_wait_for_kernels(int device); /* all that have been launched there */
int engine_event_synchronize(void *event);
int engine_event_is_done(void *event);
float engine_elapsed_ms(void *start, void *end);
void engine_forget(void *stream_or_event);
int engine_failed(void);

#ifdef __cplusplus
}
#endif

#endif
