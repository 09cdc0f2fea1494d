/* Kernels that write a timeline of known events: every block waits for all others, then each of two warps makes events
 * that last `hold_ns` by the device's timer. */
#include "trace.cuh"

struct TraceWriterParams {
  void *trace;
  unsigned *arrived;
  uint64_t hold_ns;
  int num_events;
};

__device__ inline uint64_t now_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

template <bool kOn>
__device__ __forceinline__ void write_events(const TraceWriterParams &params) {
  const int warp = threadIdx.x / 32;
  trace::Tracer<kOn> tracer(params.trace, warp, warp == 0 ? PURR__TRACE_ROLE_LOADER : PURR__TRACE_ROLE_CONSUMER_0,
                            threadIdx.x % 32 == 0);
  const auto meeting = tracer.begin();
  if (threadIdx.x == 0) {
    atomicAdd(params.arrived, 1);
    while (*(volatile unsigned *)params.arrived < gridDim.x) {
    }
  }
  __syncthreads();
  tracer.end(meeting, PURR__TRACE_WAIT_PEER, -1, -1, -1, 5);
  for (int i = 0; i < params.num_events; i++) {
    const auto mark = tracer.begin();
    const uint64_t begin = now_ns();
    while (now_ns() - begin < params.hold_ns) {
    }
    const auto wait = tracer.begin();
    tracer.end_if_long(wait, PURR__TRACE_WAIT_FULL);
    tracer.end(mark, PURR__TRACE_GATE_UP, i, (int)blockIdx.x, warp);
  }
  tracer.finish();
}

extern "C" __global__ void trace_writer(const __grid_constant__ TraceWriterParams params) {
  write_events<true>(params);
}
extern "C" __global__ void trace_nothing(const __grid_constant__ TraceWriterParams params) {
  write_events<false>(params);
}
