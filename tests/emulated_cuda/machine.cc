#include "machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <stdexcept>

#include "cuda.h"
#include "grid.h"

/* Where the compiler put what kernels declare __shared__. */
extern "C" char __start_block_shared[], __stop_block_shared[];
/* There is always something. */
static int first_word __attribute__((section("block_shared"), used));

namespace machine {

Thread *current;

namespace {

constexpr size_t kStackBytes = 96 << 10, kProcessorThreads = 2048, kProcessorSharedBytes = 228 << 10;
constexpr int kMaxDevices = 8, kPoison = 0xCB;
constexpr uint32_t kMaxNap = 32; /* passes */

struct Failure {}; /* unwinds a fiber */

uint32_t random_state = 1;
Block *statics_of; /* whose __shared__ lies at its place */

/* Windows of shared memory are used again. */
std::vector<char *> free_windows;

char *take_window() {
  if (free_windows.empty()) {
    void *memory = mmap(nullptr, kWindowBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return static_cast<char *>(memory);
  }
  char *window = free_windows.back();
  free_windows.pop_back();
  return window;
}

/* Stacks too. */
struct StackPool {
  static std::vector<void *> &free() {
    static std::vector<void *> list;
    return list;
  }
  boost::context::stack_context allocate() {
    void *memory = nullptr;
    if (free().empty()) {
      memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) throw std::bad_alloc();
    } else {
      memory = free().back();
      free().pop_back();
    }
    boost::context::stack_context context;
    context.size = kStackBytes;
    context.sp = static_cast<char *>(memory) + kStackBytes;
    return context;
  }
  void deallocate(boost::context::stack_context &context) noexcept {
    free().push_back(static_cast<char *>(context.sp) - context.size);
  }
};

size_t statics_bytes() { return (size_t)(__stop_block_shared - __start_block_shared); }

void bring_statics(Block *block) {
  if (statics_of == block) return;
  if (statics_of != nullptr) memcpy(statics_of->statics.data(), __start_block_shared, statics_bytes());
  memcpy(__start_block_shared, block->statics.data(), statics_bytes());
  statics_of = block;
}

Dim unflatten(unsigned i, const Dim &size) { return {i % size.x, i / size.x % size.y, i / size.x / size.y}; }

uint32_t lane_of(const Thread &thread) { return 1u << thread.rank % 32; }

void leave(Thread &thread) {
  thread.is_done = true;
  thread.warp->can_run &= ~lane_of(thread);
  thread.warp->alive--;
  thread.block->alive--;
  thread.block->cluster->alive--;
  /* Barriers wait for those only that are alive. */
  if (thread.block->arrived > 0) wake(*thread.block, thread.block);
  if (thread.block->cluster->arrived > 0) wake(*thread.block->cluster, thread.block->cluster);
}

void start_thread(Block *block, unsigned rank) {
  Thread *self = &block->threads[rank];
  self->block = block;
  self->rank = (int)rank;
  self->index = unflatten(rank, block->grid->block);
  self->warp = &block->warps[rank / 32];
  self->warp->alive++;
  self->warp->can_run |= lane_of(*self);
  self->warpgroup = &block->warpgroups[rank / 128];
  self->fiber = boost::context::fiber(std::allocator_arg, StackPool(), [self](boost::context::fiber &&scheduler) {
    self->scheduler = std::move(scheduler);
    try {
      self->block->grid->kernel->call(self->block->grid->params.get());
    } catch (const Failure &) {
    }
    leave(*self);
    return std::move(self->scheduler);
  });
}

std::unique_ptr<Block> make_block(Grid &grid, Cluster *cluster, unsigned i, int rank, int sm) {
  auto block = std::make_unique<Block>();
  block->grid = &grid;
  block->cluster = cluster;
  block->index = unflatten(i, grid.grid);
  block->rank = rank;
  block->sm = sm;
  block->window = take_window();
  memset(block->window, kPoison, kDynamicOffset + grid.shared_bytes);
  block->statics.assign(statics_bytes(), (char)kPoison);
  const unsigned threads = grid.block.count();
  block->warps.resize((threads + 31) / 32);
  block->warpgroups.resize((threads + 127) / 128);
  block->alive = (int)threads;
  cluster->alive += (int)threads;
  block->threads = std::vector<Thread>(threads);
  for (unsigned t = 0; t < threads; t++) start_thread(block.get(), t);
  return block;
}

}  // namespace

uint32_t random() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 17;
  random_state ^= random_state << 5;
  return random_state;
}

void yield() {
  current->scheduler = std::move(current->scheduler).resume();
  if (!current->block->grid->failure.empty()) throw Failure();
}

void maybe_yield() {
  if (random() % 8 == 0) yield();
}

void polled(const void *at, uint64_t value) {
  const bool is_same = current->polled == at && current->polled_value == value;
  current->polled = at;
  current->polled_value = value;
  current->num_polls = is_same ? current->num_polls + 1 : 0;
  if (current->num_polls > 2) current->warp->sleep = std::min(current->num_polls, kMaxNap);
}

void wait(const char *what, const void *at, uint64_t value) {
  current->wait = {what, at, value};
  current->warp->can_run &= ~lane_of(*current);
  yield();
}

void wake(Block &block, size_t first, size_t num, const void *at) {
  for (size_t i = first; i < std::min(first + num, block.threads.size()); i++) {
    Thread &thread = block.threads[i];
    if (thread.is_done || thread.wait.what == nullptr || thread.wait.at != at) continue;
    thread.wait = {};
    thread.warp->can_run |= lane_of(thread);
  }
}

void wake(Block &block, const void *at) { wake(block, 0, block.threads.size(), at); }

void wake(Cluster &cluster, const void *at) {
  for (Block *block : cluster.blocks) wake(*block, at);
}

void fail(const char *format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  Grid *grid = current->block->grid;
  if (grid->failure.empty()) {
    char where[128];
    snprintf(where, sizeof where, "block %u, thread %d: ", current->block->index.x, current->rank);
    grid->failure = std::string(grid->kernel->name) + ", " + where + text;
  }
  throw Failure();
}

uint64_t nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

const Dim &block_dim() { return current->block->grid->block; }
const Dim &grid_dim() { return current->block->grid->grid; }

void do_later(std::function<void()> work) { current->block->cluster->engine.push_back(std::move(work)); }

/* ---- the processors ---- */

Machine::Machine(int num_sms, uint32_t seed)
    : num_sms_(num_sms), processors_(kMaxDevices, std::vector<Processor>((size_t)num_sms)) {
  random_state = seed * 2654435761u | 1;
}

bool Machine::Processor::has_room(unsigned more_threads, size_t more_bytes) const {
  return threads + more_threads <= kProcessorThreads && shared_bytes + more_bytes + 1024 <= kProcessorSharedBytes;
}

int Machine::blocks_per_sm(unsigned threads, size_t bytes) {
  int num = 0;
  Processor p;
  for (; p.has_room(threads, bytes); num++) {
    p.threads += threads;
    p.shared_bytes += bytes + 1024;
  }
  return num;
}

void Machine::add(std::shared_ptr<Grid> grid) { grids_.push_back(std::move(grid)); }

/* Blocks of a cluster sit on processors next to each other. */
void Machine::start_blocks(Grid &grid) {
  std::vector<Processor> &sms = processors_[(size_t)grid.device];
  while (grid.next_block < grid.grid.count()) {
    const unsigned first = random() % (unsigned)num_sms_ / grid.cluster * grid.cluster;
    int at = -1;
    for (unsigned i = 0; i < (unsigned)num_sms_ && at < 0; i += grid.cluster) {
      const unsigned sm = (first + i) % (unsigned)num_sms_;
      bool fits = sm + grid.cluster <= (unsigned)num_sms_;
      for (unsigned b = 0; b < grid.cluster && fits; b++)
        fits = sms[sm + b].has_room(grid.block.count(), grid.shared_bytes);
      if (fits) at = (int)sm;
    }
    if (at < 0) return;
    auto cluster = std::make_unique<Cluster>();
    for (unsigned b = 0; b < grid.cluster; b++) {
      Processor &sm = sms[(size_t)at + b];
      sm.threads += grid.block.count();
      sm.shared_bytes += grid.shared_bytes + 1024;
      cluster->blocks.push_back(make_block(grid, cluster.get(), grid.next_block + b, (int)b, at + (int)b).release());
    }
    grid.next_block += grid.cluster;
    grid.clusters.push_back(std::move(cluster));
  }
}

void Machine::end_cluster(Grid &grid, size_t i) {
  for (Block *block : grid.clusters[i]->blocks) {
    Processor &sm = processors_[(size_t)grid.device][(size_t)block->sm];
    sm.threads -= grid.block.count();
    sm.shared_bytes -= grid.shared_bytes + 1024;
    free_windows.push_back(block->window);
    if (statics_of == block) statics_of = nullptr;
    delete block;
  }
  grid.clusters.erase(grid.clusters.begin() + (ptrdiff_t)i);
}

void Machine::run_cluster(Grid &grid, Cluster &cluster) {
  /* The copy engine does some of what it has to, in any order. */
  for (size_t left = cluster.engine.size(); left > 0; left--) {
    if (random() % 2 == 0) continue;
    const size_t i = random() % cluster.engine.size();
    std::function<void()> work = std::move(cluster.engine[i]);
    cluster.engine.erase(cluster.engine.begin() + (ptrdiff_t)i);
    current = &cluster.blocks[0]->threads[0]; /* in whose name it fails */
    try {
      work();
    } catch (const Failure &) {
    }
  }
  for (Block *block : cluster.blocks) {
    if (block->alive == 0) continue;
    bring_statics(block);
    const size_t num_warps = block->warps.size(), first = random() % num_warps;
    for (size_t w = 0; w < num_warps; w++) {
      const size_t warp = (first + w) % num_warps;
      Warp &running = block->warps[warp];
      if (running.alive == 0 || random() % 8 == 0) continue;
      if (running.sleep > 0 && grid.failure.empty()) {
        running.sleep--;
        continue;
      }
      if (random() % 4096 == 0) running.sleep = random() % 512; /* now and then one falls far behind the others */
      for (unsigned lane = 0; lane < 32 && warp * 32 + lane < block->threads.size(); lane++) {
        Thread &thread = block->threads[warp * 32 + lane];
        if (thread.is_done || ((running.can_run >> lane & 1) == 0 && grid.failure.empty())) continue;
        current = &thread;
        thread.fiber = std::move(thread.fiber).resume();
      }
    }
  }
}

/* Every thread waits for another one, nothing is under way, and no other kernel can change that. */
bool Machine::is_stuck(const Grid &grid) const {
  for (const auto &cluster : grid.clusters) {
    if (!cluster->engine.empty()) return false;
    for (const Block *block : cluster->blocks)
      for (const Warp &warp : block->warps)
        if (warp.can_run != 0) return false;
  }
  return !grid.clusters.empty();
}

std::string Machine::whereabouts(const Grid &grid) {
  std::string text;
  for (const auto &cluster : grid.clusters)
    for (const Block *block : cluster->blocks) {
      const Wait *last = nullptr;
      for (const Thread &thread : block->threads) {
        const Wait &wait = thread.wait;
        if (thread.is_done || wait.what == nullptr ||
            (last != nullptr && wait.what == last->what && wait.at == last->at))
          continue;
        last = &wait;
        char line[160];
        const ptrdiff_t offset = static_cast<const char *>(wait.at) - block->window - (ptrdiff_t)kDynamicOffset;
        snprintf(line, sizeof line, "\n  block %u (SM %d) from thread %d on: %s at %td, %llu", block->index.x,
                 block->sm, thread.rank, wait.what, offset, (unsigned long long)wait.value);
        text += line;
      }
    }
  return text;
}

void Machine::run() {
  for (int pass = 0; pass < 16; pass++) {
    /* A kernel's blocks begin when all of earlier kernels on the device have. */
    bool waits[kMaxDevices] = {};
    for (const auto &grid : grids_) {
      if (waits[grid->device]) continue;
      start_blocks(*grid);
      waits[grid->device] = grid->next_block < grid->grid.count();
    }
    for (const auto &grid : grids_) {
      for (size_t i = 0; i < grid->clusters.size(); i++) run_cluster(*grid, *grid->clusters[i]);
      for (size_t i = grid->clusters.size(); i-- > 0;)
        if (grid->clusters[i]->alive == 0 && grid->clusters[i]->engine.empty()) end_cluster(*grid, i);
      if (!grid->failure.empty()) {
        for (const auto &cluster : grid->clusters) cluster->engine.clear();
        grid->next_block = grid->grid.count();
      } else if (is_stuck(*grid)) {
        grid->failure = std::string(grid->kernel->name) + ": all threads wait, for ever:" + whereabouts(*grid);
      }
      if (grid->is_done() && !grid->failure.empty()) fprintf(stderr, "emulated GPU: %s\n", grid->failure.c_str());
    }
    grids_.erase(std::remove_if(grids_.begin(), grids_.end(), [](const auto &g) { return g->is_done(); }),
                 grids_.end());
  }
}

}  // namespace machine
