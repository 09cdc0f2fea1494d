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
#include <deque>
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
  const char *what = nullptr;
  int arrived = 0;
  uint32_t generation = 0;
  void *operands[128];
};

struct Warp {
  Meeting meeting;
  int alive = 0;
  uint32_t sleep = 0; /* passes that it is left out of */
};

/* One wgmma of a thread: its accumulators, and the operands' descriptors. */
struct Wgmma {
  float *d;
  uint64_t a, b;
  int n;
  bool accumulate;
};

struct Warpgroup {
  Meeting meeting;
  int registers = 0; /* after setmaxnreg */
};

/* What a thread waits for. `is_over` is asked by the scheduler. */
struct Wait {
  const char *what = nullptr; /* NULL = it can go on */
  const void *at = nullptr;
  uint64_t value = 0;
  bool (*is_over)(const void *) = nullptr;
  const void *condition = nullptr;
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
  std::vector<Wgmma> wgmmas;             /* not committed */
  std::deque<std::vector<Wgmma>> groups; /* committed, not done */
  std::vector<Copy> copies;              /* cp.async, not committed */
  std::deque<std::vector<Copy>> copy_groups;
  std::deque<std::vector<Copy>> bulk_groups; /* stores of the copy engine */
  std::vector<Copy> bulk_stores;
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
  std::vector<std::unique_ptr<Thread>> threads;
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
uint32_t random();

/* The grid is given up, with this sentence: what hardware would answer with a fault or never. Does not return. */
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

template <typename Condition>
void wait_until(const char *what, const void *at, uint64_t value, Condition is_over) {
  while (!is_over()) {
    current->wait = {what, at, value, [](const void *c) { return (*static_cast<const Condition *>(c))(); }, &is_over};
    yield();
  }
  current->wait = {};
}

/* `operands` of this thread, number `slot` of `expected`; the last to come does the work for all. */
template <typename Work>
void meet(Meeting &meeting, const char *what, int slot, int expected, void *operands, Work work) {
  if (meeting.arrived > 0 && strcmp(meeting.what, what) != 0)
    fail("threads that must do one thing together do two: %s and %s", meeting.what, what);
  meeting.what = what;
  meeting.operands[slot] = operands;
  if (++meeting.arrived >= expected) {
    work(meeting.operands);
    meeting.arrived = 0;
    meeting.generation++;
    for (void *&o : meeting.operands) o = nullptr;
    return;
  }
  const uint32_t generation = meeting.generation;
  wait_until(what, &meeting, 0, [&] { return meeting.generation != generation; });
}

/* The copy engine does this some time from now. */
void do_later(std::function<void()> work);

uint64_t nanoseconds();

}  // namespace machine

#endif
