/* Emulated GPUs: kernels compiled for the host run on them, each of their threads a fiber. One host thread runs all
 * fibers by turns, in an order that a seed decides: every instruction of namespace ptx is a point where another may go
 * on, and what the hardware does by itself (the copy engine, the tensor cores) happens at some later point. So a
 * missing wait, a wrong parity or count, or a circle of waits shows, on a machine without a GPU; where memory order
 * alone is wrong, or how long things take, does not.
 *
 * This header is for the kernels' instructions (cuda.h, ptx.h) and the machine itself; the driver uses engine.h. */
#ifndef PURR_EMULATED_MACHINE_H
#define PURR_EMULATED_MACHINE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <boost/context/fiber.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace machine {

struct Dim {
  unsigned x = 1, y = 1, z = 1;
  unsigned count() const { return x * y * z; }
};

struct Block;
struct Grid;

/* Where a number of threads do one thing together; each brings its operands and finds its results in them. */
struct Meeting {
  explicit Meeting(int num_slots_) : num_slots(num_slots_) {}
  const int num_slots;
  const char *what = nullptr;
  int arrived = 0;
  uint32_t generation = 0;
  void *operands[128] = {};
};

struct Warp {
  Meeting meeting{32};
  int alive = 0;
  uint32_t can_run = 0; /* its lanes that wait for nothing, a bit each */
  uint32_t sleep = 0;   /* passes that it is left out of */
};

/* One wgmma of a thread: its accumulators, and the operands' descriptors. */
struct Wgmma {
  float *d;
  uint64_t a, b;
  int n;
  bool accumulate;
};

struct Warpgroup {
  Meeting meeting{128};
  int registers = 0; /* after setmaxnreg */
};

/* What a thread waits for: whoever changes what lies `at` there wakes it (wake), and it looks again. */
struct Wait {
  const char *what = nullptr; /* NULL = it can go on */
  const void *at = nullptr;
  uint64_t value = 0;
};

struct Copy {
  void *to;
  const void *from;
  size_t bytes, zeros;
};

struct Thread {
  Block *block;
  Warp *warp;
  Warpgroup *warpgroup;
  Dim index; /* threadIdx */
  int rank;  /* in the block */
  bool is_done = false;
  Wait wait;
  boost::context::fiber fiber, scheduler;
  std::vector<Wgmma> wgmmas;              /* not committed */
  std::vector<std::vector<Wgmma>> groups; /* committed, not done */
  std::vector<Copy> copies;               /* cp.async, not committed */
  std::vector<std::vector<Copy>> copy_groups;
  std::vector<std::vector<Copy>> bulk_groups; /* stores of the copy engine */
  std::vector<Copy> bulk_stores;
  const void *polled = nullptr; /* the word in memory that it read last ... */
  uint64_t polled_value = 0;    /* ... what it found there, and how often in a row */
  uint32_t num_polls = 0;
};

struct Cluster {
  std::vector<Block *> blocks;
  int arrived = 0, alive = 0;
  uint32_t generation = 0;
  std::vector<std::function<void()>> engine; /* what the copy engine has yet to do */
};

struct Block {
  Grid *grid;
  Cluster *cluster;
  Dim index; /* blockIdx */
  int rank;  /* in the cluster */
  int sm;
  char *window; /* shared memory, static and dynamic */
  std::vector<char> statics;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  int arrived = 0, alive = 0; /* at __syncthreads */
  uint32_t generation = 0;
};

/* Shared memory of a block begins at address 0 of its window; dynamic memory behind what a launch keeps for itself. */
constexpr size_t kWindowBytes = 256 << 10, kDynamicOffset = 1024 + 512;

extern Thread *current; /* whose fiber runs */

/* Lets others go on; sometimes only, for what need not wait. */
void yield();
void maybe_yield();
/* After a read of a word in memory: a warp that finds the same there again and again is asked less and less often. */
void polled(const void *at, uint64_t value);
uint32_t random();

/* The grid is given up, with this sentence: what hardware would answer with a fault or never. Does not return. */
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The thread waits until it is woken, and again until `is_over`. */
void wait(const char *what, const void *at, uint64_t value);
template <typename Condition>
void wait_until(const char *what, const void *at, uint64_t value, Condition is_over) {
  while (!is_over()) wait(what, at, value);
}
/* Those that wait for what lies `at` there: threads of the block, of all blocks of the cluster, or `num` from `first`
 * on. */
void wake(Block &block, const void *at);
void wake(Cluster &cluster, const void *at);
void wake(Block &block, size_t first, size_t num, const void *at);

/* `operands` of this thread, number `slot` of `expected`; the last to come does the work for all. */
template <typename Work>
void meet(Meeting &meeting, const char *what, int slot, int expected, void *operands, Work work) {
  if (meeting.arrived > 0 && strcmp(meeting.what, what) != 0)
    fail("threads that must do one thing together do two: %s and %s", meeting.what, what);
  meeting.what = what;
  meeting.operands[slot] = operands;
  if (++meeting.arrived < expected) {
    const uint32_t generation = meeting.generation;
    wait_until(what, &meeting, 0, [&] { return meeting.generation != generation; });
    return;
  }
  work(meeting.operands);
  meeting.arrived = 0;
  meeting.generation++;
  for (int i = 0; i < meeting.num_slots; i++) meeting.operands[i] = nullptr;
  wake(*current->block, (size_t)(current->rank - slot), (size_t)meeting.num_slots, &meeting);
}

/* The copy engine does this some time from now. */
void do_later(std::function<void()> work);

uint64_t nanoseconds();

}  // namespace machine

#endif
