/* Streams: what the host asked for, in order, and the thread that does it. */
#include "fake_cuda/engine.h"

#include <string.h>
#include <time.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "grid.h"

namespace {

using machine::Grid;
using machine::Machine;

struct Event {
  uint64_t asked = 0, done = 0; /* how often it was recorded, on the host and in fact */
  uint64_t ns = 0;
};

struct Work {
  enum Kind { kCopy, kSet, kLaunch, kRecord, kWaitEvent, kWaitValue } kind;
  explicit Work(Kind kind_) : kind(kind_) {}
  void *to = nullptr;
  const void *from = nullptr; /* an event or a word too */
  size_t bytes = 0;
  uint32_t value = 0;
  uint64_t count = 0; /* of the event, as it was when it was asked for */
  std::shared_ptr<Grid> grid;
};

struct Graph {
  std::vector<Work> work;
};

struct Stream {
  std::deque<Work> work;
  bool is_launched = false; /* the first one's kernel */
  std::shared_ptr<Graph> capture;
};

struct Engine {
  std::mutex mutex;
  std::condition_variable more, done;
  std::unique_ptr<Machine> machine;
  std::map<const void *, Stream> streams;
  std::map<const void *, Event> events;
  std::map<const void *, std::shared_ptr<Graph>> captured; /* events recorded in a capture */
  bool has_failed = false;
};

Engine *engine; /* never freed: its thread runs until the process ends */

std::shared_ptr<Grid> copy_of(const Grid &from) {
  auto grid = std::make_shared<Grid>();
  grid->kernel = from.kernel;
  grid->params = from.params;
  grid->device = from.device;
  grid->grid = from.grid;
  grid->block = from.block;
  grid->cluster = from.cluster;
  grid->shared_bytes = from.shared_bytes;
  return grid;
}

/* Does the first work of a stream as far as it can be done; true when it is over. */
bool advance(Stream &stream) {
  Work &work = stream.work.front();
  switch (work.kind) {
    case Work::kCopy:
      memmove(work.to, work.from, work.bytes);
      return true;
    case Work::kSet:
      if (work.count == 4) /* bytes of an element */
        for (size_t i = 0; i < work.bytes / 4; i++) static_cast<uint32_t *>(work.to)[i] = work.value;
      else
        memset(work.to, (int)work.value, work.bytes);
      return true;
    case Work::kRecord: {
      Event &event = engine->events[work.from];
      event.done = work.count;
      event.ns = machine::nanoseconds();
      return true;
    }
    case Work::kWaitEvent:
      return engine->events[work.from].done >= work.count;
    case Work::kWaitValue:
      return (int32_t)(*static_cast<const volatile uint32_t *>(work.from) - work.value) >= 0;
    case Work::kLaunch:
      if (engine->has_failed) return true;
      if (!stream.is_launched) engine->machine->add(work.grid);
      stream.is_launched = !work.grid->is_done();
      if (work.grid->is_done() && !work.grid->failure.empty()) engine->has_failed = true;
      return work.grid->is_done();
  }
  return true;
}

void run() {
  std::unique_lock<std::mutex> lock(engine->mutex);
  for (;;) {
    bool waits = false, advanced = false;
    for (auto &entry : engine->streams)
      while (!entry.second.work.empty()) {
        if (!advance(entry.second)) {
          waits = true;
          break;
        }
        entry.second.work.pop_front();
        entry.second.is_launched = false;
        advanced = true;
      }
    if (advanced) engine->done.notify_all();
    lock.unlock();
    if (engine->machine->is_busy()) {
      engine->machine->run();
    } else if (waits) {
      const timespec while_host_works = {0, 50000};
      nanosleep(&while_host_works, nullptr);
    }
    lock.lock();
    if (!waits && !engine->machine->is_busy()) engine->more.wait_for(lock, std::chrono::milliseconds(2));
  }
}

void add(void *stream, Work work) {
  std::lock_guard<std::mutex> lock(engine->mutex);
  Stream &to = engine->streams[stream];
  if (to.capture != nullptr)
    to.capture->work.push_back(std::move(work));
  else
    to.work.push_back(std::move(work));
  engine->more.notify_one();
}

bool is_over(const Stream &stream) { return stream.work.empty(); }

}  // namespace

void engine_start(int num_sms, uint32_t seed) {
  engine = new Engine;
  engine->machine = std::make_unique<Machine>(num_sms, seed);
  std::thread(run).detach();
}

int engine_blocks_per_sm(unsigned threads, size_t shared_bytes) {
  return Machine::blocks_per_sm(threads, shared_bytes);
}

int engine_cluster_of(const char *name) {
  const machine::Kernel *kernel = machine::find_kernel(name, 0);
  return kernel != nullptr ? (int)kernel->cluster : 1;
}

void engine_copy(void *stream, void *to, const void *from, size_t bytes) {
  Work work(Work::kCopy);
  work.to = to;
  work.from = from;
  work.bytes = bytes;
  add(stream, std::move(work));
}

void engine_set(void *stream, void *to, uint32_t value, size_t count, int element_bytes) {
  Work work(Work::kSet);
  work.to = to;
  work.value = value;
  work.bytes = count * (size_t)element_bytes;
  work.count = (uint64_t)element_bytes;
  add(stream, std::move(work));
}

int engine_launch(void *stream, int device, const engine_launch_t *launch, void **params) {
  const machine::Kernel *kernel = machine::find_kernel(launch->kernel, launch->cc);
  if (kernel == nullptr) return ENGINE_UNKNOWN_KERNEL;
  auto grid = std::make_shared<Grid>();
  grid->kernel = kernel;
  grid->params = kernel->copy_params(params);
  grid->device = device;
  grid->grid = {launch->grid[0], launch->grid[1], launch->grid[2]};
  grid->block = {launch->block[0], launch->block[1], launch->block[2]};
  grid->cluster = launch->cluster[0] > 0 ? launch->cluster[0] : kernel->cluster;
  grid->shared_bytes = launch->shared_bytes;
  const int resident = engine->machine->num_sms() * Machine::blocks_per_sm(grid->block.count(), grid->shared_bytes);
  if (grid->grid.count() == 0 || grid->block.count() == 0 || grid->grid.x % grid->cluster != 0 || resident == 0 ||
      (int)grid->cluster > engine->machine->num_sms())
    return ENGINE_INVALID;
  if (launch->is_cooperative && (int)grid->grid.count() > resident) return ENGINE_TOO_LARGE;
  Work work(Work::kLaunch);
  work.grid = std::move(grid);
  add(stream, std::move(work));
  return ENGINE_OK;
}

void engine_record(void *stream, void *event) {
  std::unique_lock<std::mutex> lock(engine->mutex);
  Stream &of = engine->streams[stream];
  if (of.capture != nullptr) {
    engine->captured[event] = of.capture;
    return;
  }
  engine->captured.erase(event);
  Work work(Work::kRecord);
  work.from = event;
  work.count = ++engine->events[event].asked;
  lock.unlock();
  add(stream, std::move(work));
}

void engine_wait_event(void *stream, void *event) {
  std::unique_lock<std::mutex> lock(engine->mutex);
  const auto captured = engine->captured.find(event);
  if (captured != engine->captured.end()) { /* a graph's work is done in the order in which it was asked for */
    engine->streams[stream].capture = captured->second;
    return;
  }
  Work work(Work::kWaitEvent);
  work.from = event;
  work.count = engine->events[event].asked;
  lock.unlock();
  add(stream, std::move(work));
}

void engine_wait_value(void *stream, const void *word, uint32_t value) {
  Work work(Work::kWaitValue);
  work.from = word;
  work.value = value;
  add(stream, std::move(work));
}

void engine_capture(void *stream) {
  std::lock_guard<std::mutex> lock(engine->mutex);
  engine->streams[stream].capture = std::make_shared<Graph>();
}

int engine_is_capturing(const void *stream) {
  std::lock_guard<std::mutex> lock(engine->mutex);
  const auto found = engine->streams.find(stream);
  return found != engine->streams.end() && found->second.capture != nullptr;
}

void *engine_end_capture(void *stream) {
  std::lock_guard<std::mutex> lock(engine->mutex);
  const std::shared_ptr<Graph> graph = engine->streams[stream].capture;
  if (graph == nullptr) return nullptr;
  for (auto &entry : engine->streams)
    if (entry.second.capture == graph) entry.second.capture = nullptr;
  for (auto i = engine->captured.begin(); i != engine->captured.end();)
    i = i->second == graph ? engine->captured.erase(i) : std::next(i);
  return new Graph(*graph);
}

void engine_launch_graph(void *stream, const void *graph) {
  for (const Work &work : static_cast<const Graph *>(graph)->work) {
    Work again = work;
    if (work.grid != nullptr) again.grid = copy_of(*work.grid);
    add(stream, std::move(again));
  }
}

void *engine_copy_graph(const void *graph) { return new Graph(*static_cast<const Graph *>(graph)); }

void engine_destroy_graph(void *graph) { delete static_cast<Graph *>(graph); }

int engine_synchronize(void *stream) {
  std::unique_lock<std::mutex> lock(engine->mutex);
  engine->done.wait(lock, [&] { return is_over(engine->streams[stream]); });
  return engine->has_failed ? ENGINE_FAILED : ENGINE_OK;
}

int engine_is_idle(void *stream) {
  std::lock_guard<std::mutex> lock(engine->mutex);
  return is_over(engine->streams[stream]);
}

void engine_wait_for_kernels(int device) {
  const auto is_there = [&](const Work &work) { return work.kind == Work::kLaunch && work.grid->device == device; };
  std::unique_lock<std::mutex> lock(engine->mutex);
  engine->done.wait(lock, [&] {
    for (const auto &entry : engine->streams)
      if (std::any_of(entry.second.work.begin(), entry.second.work.end(), is_there)) return false;
    return true;
  });
}

int engine_event_synchronize(void *event) {
  std::unique_lock<std::mutex> lock(engine->mutex);
  const uint64_t asked = engine->events[event].asked;
  engine->done.wait(lock, [&] { return engine->events[event].done >= asked; });
  return engine->has_failed ? ENGINE_FAILED : ENGINE_OK;
}

int engine_event_is_done(void *event) {
  std::lock_guard<std::mutex> lock(engine->mutex);
  return engine->events[event].done >= engine->events[event].asked;
}

float engine_elapsed_ms(void *start, void *end) {
  std::lock_guard<std::mutex> lock(engine->mutex);
  return (float)((double)(engine->events[end].ns - engine->events[start].ns) * 1e-6);
}

/* A stream's work goes on to its end after its handle is gone. */
void engine_forget(void *handle) {
  std::unique_lock<std::mutex> lock(engine->mutex);
  engine->done.wait(lock, [&] { return is_over(engine->streams[handle]); });
  engine->streams.erase(handle);
  engine->events.erase(handle);
  engine->captured.erase(handle);
}

int engine_failed(void) {
  std::lock_guard<std::mutex> lock(engine->mutex);
  return engine->has_failed;
}
