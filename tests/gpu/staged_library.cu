/* SPDX-License-Identifier: Apache-2.0
 *
 * The staged forward of one rank as a library, for bench_staged.py: dense tensors, memory of its own for the rest. */
#include <stdio.h>

#include <new>
#include <vector>

#include "staged.cuh"
#include "trace.h"

namespace {

template <typename T>
T *allocate(int64_t count) {
  void *memory = nullptr;
  return cudaMalloc(&memory, (size_t)(count > 0 ? count : 1) * sizeof(T)) == cudaSuccess ? static_cast<T *>(memory)
                                                                                         : nullptr;
}

}  // namespace

extern "C" {

/* x [T, H], gate_up [E, 2I, H], down [E, H, I], shared_gate_up [2S, H], shared_down [H, S], out [T, H] BF16; ids int64
 * and weights fp32 [T, K]. */
void *staged_create(int64_t T, int64_t H, int64_t I, int64_t E, int64_t K, int64_t S, const void *x, const void *ids,
                    const void *weights, char *gate_up, const void *down, char *shared_gate_up, const void *shared_down,
                    void *out) {
  staged::Layer *l = new (std::nothrow) staged::Layer();
  if (l == nullptr) return nullptr;
  const int64_t rows = staged::max_rows(T, K, E, 1);
  l->num_tokens = l->max_tokens = T;
  l->hidden = H;
  l->intermediate = I;
  l->shared_intermediate = S;
  l->num_experts = (int)E;
  l->top_k = (int)K;
  l->num_ranks = 1;
  cudaDeviceGetAttribute(&l->num_sms, cudaDevAttrMultiProcessorCount, 0);
  l->ids = {ids, nullptr, nullptr, T, K, 1, 1, 0};
  l->topk_weights = static_cast<const float *>(weights);
  l->weights_row_stride = K;
  l->weights_column_stride = 1;
  l->x = {const_cast<void *>(x), nullptr, H, 0, 0};
  l->y = {allocate<uint16_t>(T * K * H), nullptr, H, 0, 0};
  l->gate = {gate_up, nullptr, 2 * I * H, H};
  l->up = {gate_up + I * H * 2, nullptr, 2 * I * H, H};
  l->down = {down, nullptr, H * I, I};
  if (S > 0) {
    l->shared_gate = {shared_gate_up, nullptr, 0, H};
    l->shared_up = {shared_gate_up + S * H * 2, nullptr, 0, H};
    l->shared_down = {shared_down, nullptr, 0, S};
    l->shared_a = allocate<uint16_t>(T * S);
    l->shared_out = allocate<uint16_t>(T * H);
  }
  l->out = out;
  l->out_row_stride = H;
  l->table.header = allocate<purr__device_table_header_t>(1);
  l->table.expert_count = allocate<int32_t>(E);
  l->table.expert_begin = allocate<int32_t>(E + 1);
  l->table.tile_begin = allocate<int32_t>(E + 1);
  l->table.tile_expert = allocate<int32_t>(rows / PURR__SEGMENT_ROWS + staged::max_unit_tiles(T, K, E));
  l->table.row_rank = allocate<int32_t>(rows);
  l->table.row_slot = allocate<int32_t>(rows);
  const int chunks = purr__schedule_chunks(T * K, 1);
  l->chunk_count = allocate<int32_t>(chunks * E);
  l->chunk_bad = allocate<int32_t>(chunks);
  l->status = allocate<purr__device_status_t>(1);
  l->a = allocate<uint16_t>(rows * I);
  l->units = allocate<purr__unit_t>(staged::max_units(*l));
  l->sync = reinterpret_cast<purr__unit_sync_t *>(allocate<int32_t>(staged::num_sync_words(*l)));
  l->score = allocate<float>(T);
  l->x_ring = allocate<uint16_t>(rows * H);
  return l;
}

/* The kernels that staged_run takes, by number; NULL past the last. */
const char *staged_kernels_name(int kernels) { return staged::kernels_name(kernels); }

/* Returns the number of launches, or minus the CUDA error. */
int staged_run(void *layer, void *stream, int kernels, int stages) {
  staged::Layer *l = static_cast<staged::Layer *>(layer);
  l->kernels = kernels;
  l->stages = stages;
  int num_launches = 0;
  cudaError_t error = staged::forward(*l, static_cast<cudaStream_t>(stream), &num_launches);
  return error == cudaSuccess ? num_launches : -(int)error;
}

/* One forward of the megakernel with its timeline, kernels/trace.h, written to a file. Returns 0 on success. */
int staged_trace(void *layer, void *stream, const char *path) {
  staged::Layer *l = static_cast<staged::Layer *>(layer);
  purr__trace_header_t header = {};
  header.magic = PURR__TRACE_MAGIC;
  header.layout = PURR__TRACE_LAYOUT;
  header.tracks_per_block = PURR__TRACE_TRACKS_PER_BLOCK;
  header.num_tracks = header.tracks_per_block * (uint32_t)l->num_sms;
  header.events_per_track = 8192;
  const size_t tracks = header.num_tracks * sizeof(purr__trace_track_t);
  const size_t bytes =
      sizeof header + tracks + (size_t)header.num_tracks * header.events_per_track * sizeof(purr__trace_event_t);
  std::vector<char> host(bytes);
  char *device = nullptr;
  if (cudaMalloc(&device, bytes) != cudaSuccess) return 1;
  cudaMemset(device, 0, bytes);
  cudaMemcpy(device, &header, sizeof header, cudaMemcpyHostToDevice);
  l->trace = device;
  for (l->kernels = staged::kMega; l->kernels < staged::kNumKernels; l->kernels++) {
    const staged::ForwardVariant &variant = staged::kVariants[l->kernels - staged::kMega];
    if (variant.traces && !variant.peers) break;
  }
  l->stages = staged::kAll;
  int num_launches = 0;
  cudaError_t error = staged::forward(*l, static_cast<cudaStream_t>(stream), &num_launches);
  l->trace = nullptr;
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error == cudaSuccess) error = cudaMemcpy(host.data(), device, bytes, cudaMemcpyDeviceToHost);
  cudaFree(device);
  FILE *file = error == cudaSuccess ? fopen(path, "wb") : nullptr;
  if (file == nullptr) return 1;
  const bool written = fwrite(host.data(), 1, bytes, file) == bytes;
  return fclose(file) == 0 && written ? 0 : 1;
}

void staged_destroy(void *layer) {
  staged::Layer *l = static_cast<staged::Layer *>(layer);
  for (void *p : {(void *)l->y.data, l->shared_a, l->shared_out, (void *)l->table.header, (void *)l->table.expert_count,
                  (void *)l->table.expert_begin, (void *)l->table.tile_begin, (void *)l->table.tile_expert,
                  (void *)l->table.row_rank, (void *)l->table.row_slot, (void *)l->chunk_count, (void *)l->chunk_bad,
                  (void *)l->status, l->a, (void *)l->units, (void *)l->sync, (void *)l->score, l->x_ring})
    cudaFree(p);
  delete l;
}
}
