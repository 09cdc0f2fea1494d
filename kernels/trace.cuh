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

template <>
class Tracer<true> {
 public:
  struct Mark {
    uint64_t clock;
  };

  /* Waits shorter than this are not worth an event: a pipeline has one for every stage. */
  static constexpr uint64_t kLongClocks = 256;

  /* `buffer` is the purr__trace_header_t, NULL = nothing is written. `lane` 0 .. tracks_per_block - 1 is a different
   * one for each elected thread of the block. */
  __device__ __forceinline__ Tracer(void *buffer, int lane, int role, bool elected) : track_(nullptr) {
    if (!elected || buffer == nullptr) return;
    const purr__trace_header_t *header = static_cast<const purr__trace_header_t *>(buffer);
    const uint64_t block = blockIdx.x + (uint64_t)gridDim.x * (blockIdx.y + (uint64_t)gridDim.y * blockIdx.z);
    const uint64_t idx = block * header->tracks_per_block + lane;
    if (lane >= (int)header->tracks_per_block || idx >= header->num_tracks) return;
    purr__trace_track_t *tracks =
        reinterpret_cast<purr__trace_track_t *>(static_cast<purr__trace_header_t *>(buffer) + 1);
    track_ = tracks + idx;
    capacity_ = header->events_per_track;
    events_ = reinterpret_cast<purr__trace_event_t *>(tracks + header->num_tracks) + idx * capacity_;
    num_ = 0;
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    track_->processor = sm;
    track_->block = (uint32_t)block;
    track_->role = role;
    track_->ns_begin = nanoseconds();
    track_->clock_begin = clock64();
  }

  /* A thread that is not elected reads the clock too: cheaper than to ask. */
  __device__ __forceinline__ Mark begin() const { return {(uint64_t)clock64()}; }

  __device__ __forceinline__ void end(Mark mark, int kind, int expert = -1, int row = -1, int column = -1,
                                      int rank = -1) {
    if (track_ != nullptr) write(mark.clock, clock64(), kind, expert, row, column, rank);
  }

  /* For waits. */
  __device__ __forceinline__ void end_if_long(Mark mark, int kind, int expert = -1, int row = -1, int column = -1,
                                              int rank = -1) {
    if (track_ == nullptr) return;
    const uint64_t now = clock64();
    if (now - mark.clock >= kLongClocks) write(mark.clock, now, kind, expert, row, column, rank);
  }

  __device__ __forceinline__ void finish() {
    if (track_ == nullptr) return;
    track_->num_events = num_ < capacity_ ? num_ : capacity_;
    track_->num_dropped = num_ < capacity_ ? 0 : num_ - capacity_;
    track_->clock_end = clock64();
    track_->ns_end = nanoseconds();
    track_ = nullptr;
  }

 private:
  static __device__ __forceinline__ uint64_t nanoseconds() {
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
  }

  __device__ __forceinline__ void write(uint64_t begin, uint64_t end, int kind, int expert, int row, int column,
                                        int rank) {
    if (num_ < capacity_) {
      /* Two whole vectors: the compiler would make six stores of the struct. */
      ulonglong2 *at = reinterpret_cast<ulonglong2 *>(events_ + num_);
      __stcs(at, make_ulonglong2(begin, end));
      __stcs(at + 1, make_ulonglong2((uint16_t)kind | (uint32_t)(uint16_t)rank << 16 | (uint64_t)(uint32_t)expert << 32,
                                     (uint32_t)row | (uint64_t)(uint32_t)column << 32));
    }
    num_++;
  }

  purr__trace_track_t *track_;
  purr__trace_event_t *events_;
  uint32_t num_, capacity_;
};

}  // namespace trace

#endif
