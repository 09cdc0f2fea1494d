/* SPDX-License-Identifier: Apache-2.0
 *
 * How a kernel writes its timeline. A kernel is compiled twice, with Tracer<false> and with Tracer<true>: the first is
 * empty, every call of it compiles to nothing, so that an entry without tracing is the code that it would be without
 * this file.
 *
 *   trace::Tracer<kTrace> tracer(params.trace, lane, PURR__TRACE_ROLE_CONSUMER_0, threadIdx.x % 128 == 0);
 *   ...
 *   const auto mark = tracer.begin();
 *   ... the tile's product ...
 *   tracer.end(mark, PURR__TRACE_GATE_UP, expert, row, column);
 *   ...
 *   tracer.finish();   // on every way out of the role
 *
 * One thread of each (block, lane) is elected and writes alone; the others carry a null pointer. An event is two stores
 * of 16 bytes that nobody waits for. Events may lie within each other: the inner ones end first. */
#ifndef PURR_TRACE_CUH
#define PURR_TRACE_CUH

#include "ptx.cuh"
#include "trace.h"

namespace trace {

template <bool kOn>
class Tracer;

template <>
class Tracer<false> {
 public:
  struct Mark {};
  __device__ __forceinline__ Tracer(void *, int, int, bool) {}
  __device__ __forceinline__ Mark begin() const { return {}; }
  __device__ __forceinline__ void end(Mark, int, int = -1, int = -1, int = -1, int = -1) {}
  __device__ __forceinline__ void end_if_long(Mark, int, int = -1, int = -1, int = -1, int = -1) {}
  __device__ __forceinline__ void finish() {}
};

/* It lives in three registers, and a mark in one: consumers have none to give away. What else it needs, it finds again
 * from the kernel's parameters. */
template <>
class Tracer<true> {
 public:
  struct Mark {
    uint32_t clock; /* its low half: an event is shorter than two seconds */
  };

  /* Waits shorter than this are not worth an event: a pipeline has one for every stage. */
  static constexpr uint32_t kLongClocks = 256;

  /* `buffer` is the purr__trace_header_t, NULL = nothing is written. `lane` 0 .. tracks_per_block - 1 is a different
   * one for each elected thread of the block. */
  __device__ __forceinline__ Tracer(void *buffer, int lane, int role, bool elected)
      : buffer_(static_cast<purr__trace_header_t *>(buffer)), lane_(lane), next_(nullptr), left_(0) {
    if (!elected || buffer == nullptr) return;
    if (lane >= (int)buffer_->tracks_per_block || track_idx() >= buffer_->num_tracks) return;
    purr__trace_track_t *at = track();
    left_ = (int)buffer_->events_per_track;
    next_ = reinterpret_cast<purr__trace_event_t *>(tracks() + buffer_->num_tracks) + track_idx() * left_;
    at->processor = ptx::sm_id();
    at->block = block();
    at->role = role;
    at->ns_begin = ptx::global_timer_ns_unordered();
    at->clock_begin = ptx::clock_64();
  }

  /* A thread that is not elected reads the clock too: cheaper than to ask. */
  __device__ __forceinline__ Mark begin() const { return {ptx::clock_32()}; }

  __device__ __forceinline__ void end(Mark mark, int kind, int expert = -1, int row = -1, int column = -1,
                                      int rank = -1) {
    if (next_ != nullptr) write(mark, ptx::clock_64(), kind, expert, row, column, rank);
  }

  /* For waits. */
  __device__ __forceinline__ void end_if_long(Mark mark, int kind, int expert = -1, int row = -1, int column = -1,
                                              int rank = -1) {
    if (next_ == nullptr) return;
    const uint64_t now = ptx::clock_64();
    if ((uint32_t)now - mark.clock >= kLongClocks) write(mark, now, kind, expert, row, column, rank);
  }

  __device__ __forceinline__ void finish() {
    if (next_ == nullptr) return;
    purr__trace_track_t *at = track();
    at->num_events = buffer_->events_per_track - (left_ > 0 ? left_ : 0);
    at->num_dropped = left_ < 0 ? -left_ : 0;
    at->clock_end = ptx::clock_64();
    at->ns_end = ptx::global_timer_ns_unordered();
    next_ = nullptr;
  }

 private:
  static __device__ __forceinline__ uint32_t block() {
    return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  }
  __device__ __forceinline__ uint64_t track_idx() const {
    return (uint64_t)block() * buffer_->tracks_per_block + lane_;
  }
  __device__ __forceinline__ purr__trace_track_t *tracks() const {
    return reinterpret_cast<purr__trace_track_t *>(buffer_ + 1);
  }
  __device__ __forceinline__ purr__trace_track_t *track() const { return tracks() + track_idx(); }

  __device__ __forceinline__ void write(Mark mark, uint64_t end, int kind, int expert, int row, int column, int rank) {
    if (left_ > 0) {
      /* Two whole vectors: the compiler would make six stores of the struct. */
      ulonglong2 *at = reinterpret_cast<ulonglong2 *>(next_);
      __stcs(at, make_ulonglong2(end - ((uint32_t)end - mark.clock), end));
      __stcs(at + 1, make_ulonglong2((uint16_t)kind | (uint32_t)(uint16_t)rank << 16 | (uint64_t)(uint32_t)expert << 32,
                                     (uint32_t)row | (uint64_t)(uint32_t)column << 32));
      next_++;
    }
    left_--;
  }

  purr__trace_header_t *buffer_;
  int lane_;
  purr__trace_event_t *next_; /* NULL in a thread that writes nothing */
  int left_;                  /* events that still fit; below 0 those that did not */
};

}  // namespace trace

#endif
