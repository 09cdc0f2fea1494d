/* A rank that leaves writes into the heads of the others' symmetric memory, on a stream of its own beside whatever they
 * run: kernels/staged/meet_ranks.cuh listens there. */
#include "group/farewell.h"

#include <time.h>

#define PATIENCE_NS 5000000000ull /* without any progress */
#define NAP_NS 20000
#define TURN_LEFT_MASK ((1ull << PURR__TURN_LEFT_BITS) - 1)

typedef struct farewell {
  const purr_group_t *group;
  const purr__symmetric_t *block;
  purr__device_t *device;
  purr__farewell_t *pinned;
  CUstream stream;
} farewell_t;

static void nap(void) { nanosleep(&(struct timespec){0, NAP_NS}, NULL); }

/* It is the first thing in a rank's part. */
static char *head_of(const farewell_t *f, int rank) { return f->group->ops->address(f->block, rank); }

/* False where it cannot be read. Streams that share a hardware queue wait for each other, and a barrier may spin in
 * that of this stream: it is not waited for. */
static bool read_head(const farewell_t *f, int rank) {
  purr__device_rank_header_t *seen = &f->pinned->seen;
  const uint64_t begin_ns = purr__now_ns();
  if (purr__device_copy(f->device, seen, head_of(f, rank), sizeof *seen, f->stream, NULL) != PURR_STATUS_OK)
    return false;
  CUresult state;
  while ((state = f->device->driver->cuda.cuStreamQuery(f->stream)) == CUDA_ERROR_NOT_READY &&
         purr__now_ns() - begin_ns < PATIENCE_NS)
    nap();
  return state == CUDA_SUCCESS;
}

/* Reads a rank's head until it has come to so many barriers and, if wanted, no call runs; false where there is nobody
 * to be told. */
static bool wait_for(const farewell_t *f, int rank, uint64_t num_barriers, bool is_idle) {
  const purr__device_rank_header_t *seen = &f->pinned->seen;
  uint64_t last_turn = 0, last_epoch = 0, since_ns = purr__now_ns();
  for (;;) {
    if (!read_head(f, rank) || seen->broken != 0 || seen->told != 0) return false;
    const bool has_ended = !is_idle || (seen->turn & TURN_LEFT_MASK) == 0;
    const uint64_t now_ns = purr__now_ns();
    if (seen->turn != last_turn || seen->epoch != last_epoch) since_ns = now_ns;
    last_turn = seen->turn;
    last_epoch = seen->epoch;
    if ((has_ended && seen->epoch >= num_barriers) || now_ns - since_ns >= PATIENCE_NS) return true;
    nap();
  }
}

static void tell(const farewell_t *f, uint64_t num_barriers) {
  if (!wait_for(f, f->group->rank, num_barriers, true)) return;
  const uint64_t epoch = f->pinned->seen.epoch;
  f->pinned->told = 1 + f->group->rank;
  for (int r = 0; r < f->group->num_ranks; r++)
    if (r != f->group->rank && wait_for(f, r, epoch, false))
      (void)purr__device_copy(f->device, head_of(f, r) + offsetof(purr__device_rank_header_t, told), &f->pinned->told,
                              sizeof f->pinned->told, f->stream, NULL);
  (void)purr__device_synchronize(f->device, f->stream, NULL); /* before the memory may go */
}

void purr__farewell(const purr_group_t *group, const purr__symmetric_t *block, purr__device_t *device,
                    uint64_t num_barriers, purr__farewell_t *pinned) {
  farewell_t f = {.group = group, .block = block, .device = device, .pinned = pinned};
  if (purr__device_enter(device, NULL) != PURR_STATUS_OK) return;
  const purr__cuda_t *cuda = &device->driver->cuda;
  const int mode = purr__device_allow_capture(device);
  if (cuda->cuStreamCreateWithPriority(&f.stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS) {
    tell(&f, num_barriers);
    (void)cuda->cuStreamDestroy(f.stream);
  }
  purr__device_restore_capture(device, mode);
  purr__device_leave(device);
}
