/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches the staged forward of one rank from plain numbers and pointers: for the tests and the benchmark, without the
 * runtime. The order and the parameters are those that the runtime uses. */
#ifndef PURR_TESTS_GPU_STAGED_CUH
#define PURR_TESTS_GPU_STAGED_CUH

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <string.h>

#include "layout.h"

extern "C" {
__global__ void purr_schedule_count(const __grid_constant__ purr__schedule_params_t params);
__global__ void purr_schedule_place(const __grid_constant__ purr__schedule_params_t params);
__global__ void purr_gate_up(const __grid_constant__ purr__gemm_params_t params);
__global__ void purr_down(const __grid_constant__ purr__gemm_params_t params);
__global__ void purr_gate_up_wgmma(const __grid_constant__ purr__gemm_tma_params_t params);
__global__ void purr_down_wgmma(const __grid_constant__ purr__gemm_tma_params_t params);
__global__ void purr_slot_sum(const __grid_constant__ purr__slot_sum_params_t params);
}

namespace staged {

enum Stage {
  kSchedule = 1,
  kGateUp = 2,
  kDown = 4,
  kSharedGateUp = 8,
  kSharedDown = 16,
  kSlotSum = 32,
  kTogether = 64, /* the shared expert's tiles in the launches of the routed ones */
  kAll = 127
};

/* Everything one rank needs for a forward. */
struct Layer {
  int64_t num_tokens, max_tokens, hidden, intermediate, shared_intermediate;
  int32_t num_experts, top_k, num_ranks, rank;
  float swiglu_limit;
  int32_t use_wgmma;
  int32_t stages; /* Stage bits */
  int32_t num_sms;
  purr__ids_t ids;
  const purr__ids_t *sources; /* R > 1 */
  const float *topk_weights;
  int64_t weights_row_stride, weights_column_stride;
  purr__rows_t x, y; /* y: the combine buffer(s) */
  purr__weight_t gate, up, down, shared_gate, shared_up, shared_down;
  const void *shared_expert_gate;
  void *out;
  int64_t out_row_stride;
  void *saved_gate, *saved_up; /* bf16 [num_saved_rows, I], NULL = not wanted */
  int64_t num_saved_rows;
  /* workspace */
  purr__device_table_t table;
  purr__device_status_t *status;
  int32_t *chunk_count, *chunk_bad;
  purr__tensor_map_t *expert_maps; /* device [3][E_l]: gate, up, down; for weights by pointer with wgmma */
  void *a;                         /* bf16 [max rows, I] */
  void *shared_a, *shared_out;     /* bf16 [T, S], [T, H] */
  float *score;
};

inline int64_t max_rows(int64_t max_tokens, int64_t top_k, int64_t num_experts, int64_t num_ranks) {
  int64_t slots = max_tokens * top_k * num_ranks, experts = num_experts / num_ranks;
  int64_t segments = slots < experts ? slots : experts;
  return (slots + segments * (PURR__SEGMENT_ROWS - 1) + PURR__SEGMENT_ROWS - 1) / PURR__SEGMENT_ROWS *
         PURR__SEGMENT_ROWS;
}

inline int kernel_shared_bytes(const char *name, int arch) {
#define PURR_KERNEL(entry, role, source, target, arch_, threads, shared_bytes, cluster, tile_m, tile_n) \
  if (arch == arch_ && strcmp(name, #entry) == 0) return shared_bytes;
#include "kernels.def"
#undef PURR_KERNEL
  return -1;
}

template <typename Kernel, typename Params>
cudaError_t launch(Kernel kernel, dim3 grid, int threads, int shared_bytes, const Params &params, cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  if (shared_bytes > 48 * 1024)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  kernel<<<grid, threads, shared_bytes, stream>>>(params);
  return cudaGetLastError();
}

inline purr__gemm_t routed(const Layer &l, bool down) {
  purr__gemm_t g = {};
  g.expert_count = l.table.expert_count;
  g.expert_begin = l.table.expert_begin;
  g.tile_begin = l.table.tile_begin;
  g.tile_expert = l.table.tile_expert;
  g.row_rank = l.table.row_rank;
  g.row_slot = l.table.row_slot;
  g.num_experts = l.num_experts / l.num_ranks;
  g.top_k = l.top_k;
  const purr__rows_t a = {l.a, nullptr, l.intermediate, PURR__ROWS_DENSE, 0};
  if (!down) {
    g.a = l.x;
    if (g.a.by_rank != nullptr) g.a.data = nullptr; /* the ranks' addresses are those of row 0 */
    g.a.placement = PURR__ROWS_TOKEN;
    g.b[0] = l.gate;
    g.b[1] = l.up;
    g.c = a;
    g.saved[0] = {l.saved_gate, nullptr, l.intermediate, PURR__ROWS_DENSE, 0};
    g.saved[1] = {l.saved_up, nullptr, l.intermediate, PURR__ROWS_DENSE, 0};
    g.num_saved_rows = l.num_saved_rows;
    g.n = (int)l.intermediate;
    g.k = (int)l.hidden;
    g.swiglu_limit = l.swiglu_limit;
  } else {
    g.a = a;
    g.b[0] = l.down;
    g.c = l.y;
    if (g.c.by_rank != nullptr) g.c.data = nullptr;
    g.c.placement = PURR__ROWS_SLOT;
    g.n = (int)l.hidden;
    g.k = (int)l.intermediate;
  }
  return g;
}

inline purr__gemm_t shared_expert(const Layer &l, bool down) {
  purr__gemm_t g = {};
  g.num_rows = l.num_tokens;
  g.num_experts = 1;
  g.top_k = 1;
  const purr__rows_t a = {l.shared_a, nullptr, l.shared_intermediate, PURR__ROWS_DENSE, 0};
  if (!down) {
    g.a = l.x;
    if (l.x.by_rank != nullptr) g.a.by_rank = nullptr;
    g.a.placement = PURR__ROWS_DENSE;
    g.b[0] = l.shared_gate;
    g.b[1] = l.shared_up;
    g.c = a;
    g.n = (int)l.shared_intermediate;
    g.k = (int)l.hidden;
    g.swiglu_limit = l.swiglu_limit;
  } else {
    g.a = a;
    g.b[0] = l.shared_down;
    g.c = {l.shared_out, nullptr, l.hidden, PURR__ROWS_DENSE, 0};
    g.n = (int)l.hidden;
    g.k = (int)l.shared_intermediate;
  }
  return g;
}

/* A BF16 matrix for the copy engine; see purr__gemm_maps_t. depth 0: two dimensions. */
inline cudaError_t make_map(purr__tensor_map_t *map, const void *data, int64_t k, int64_t rows, int64_t depth,
                            int64_t row_stride, int64_t depth_stride, int box_rows) {
  static PFN_cuTensorMapEncodeTiled_v12000 encode = nullptr;
  if (encode == nullptr) {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    if (error != cudaSuccess || found == nullptr) return error != cudaSuccess ? error : cudaErrorNotSupported;
    encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
  }
  const cuuint64_t size[3] = {(cuuint64_t)k, (cuuint64_t)rows, (cuuint64_t)depth};
  const cuuint64_t stride[2] = {(cuuint64_t)row_stride * 2, (cuuint64_t)depth_stride * 2};
  const cuuint32_t box[3] = {PURR__MAP_STAGE_K, (cuuint32_t)box_rows, 1}, step[3] = {1, 1, 1};
  CUresult result =
      encode(reinterpret_cast<CUtensorMap *>(map), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, depth > 0 ? 3 : 2,
             const_cast<void *>(data), size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

inline cudaError_t make_maps(purr__gemm_maps_t *maps, const purr__gemm_t &g, bool down, int64_t a_rows,
                             const purr__tensor_map_t *const *by_expert) {
  cudaError_t error = cudaSuccess;
  for (int w = 0; w < (down ? 1 : 2) && error == cudaSuccess; w++) {
    maps->b_by_expert[w] = by_expert[w];
    const int64_t expert_stride = g.b[w].expert_stride > 0 ? g.b[w].expert_stride : g.n * g.b[w].row_stride;
    if (by_expert[w] == nullptr)
      error = make_map(&maps->b[w], g.b[w].data, g.k, g.n, g.num_experts, g.b[w].row_stride, expert_stride,
                       PURR__MAP_ROWS_B);
  }
  if (down && error == cudaSuccess && a_rows > 0)
    error = make_map(&maps->a, g.a.data, g.k, a_rows, 0, g.a.row_stride, 0, PURR__MAP_ROWS_A);
  return error;
}

inline cudaError_t launch_gemm(const Layer &l, bool down, const purr__gemm_params_t &params, cudaStream_t stream) {
  int device = 0, major = 0, minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  const int arch = major * 10 + minor;
  if (l.use_wgmma) {
    purr__gemm_tma_params_t tma = {};
    tma.gemm = params;
    for (int p = 0; p < params.num_problems; p++) {
      const purr__gemm_t &g = params.problem[p];
      const bool is_routed = g.tile_begin != nullptr;
      const int El = g.num_experts;
      const purr__tensor_map_t *by_expert[2] = {};
      if (is_routed && g.b[0].by_expert != nullptr) {
        by_expert[0] = l.expert_maps + (down ? 2 * El : 0);
        by_expert[1] = l.expert_maps + El;
      }
      const int64_t a_rows = is_routed ? max_rows(l.max_tokens, l.top_k, l.num_experts, l.num_ranks) : g.num_rows;
      cudaError_t error = make_maps(&tma.maps[p], g, down, a_rows, by_expert);
      if (error != cudaSuccess) return error;
    }
    const int blocks = l.num_sms / 2 * 2; /* clusters of two */
    return down ? launch(purr_down_wgmma, blocks, 384, kernel_shared_bytes("purr_down_wgmma", arch), tma, stream)
                : launch(purr_gate_up_wgmma, blocks, 384, kernel_shared_bytes("purr_gate_up_wgmma", arch), tma, stream);
  }
  return down ? launch(purr_down, l.num_sms, 256, kernel_shared_bytes("purr_down", arch), params, stream)
              : launch(purr_gate_up, l.num_sms, 256, kernel_shared_bytes("purr_gate_up", arch), params, stream);
}

/* Puts the stages of one forward on the stream; adds the number of launches to *num_launches. */
inline cudaError_t forward(const Layer &l, cudaStream_t stream, int *num_launches) {
  cudaError_t error = cudaSuccess;
  if (l.stages & kSchedule) {
    purr__schedule_params_t p = {};
    p.own = l.ids;
    p.sources = l.sources;
    p.num_ranks = l.num_ranks;
    p.chunks_per_rank = purr__schedule_chunks(l.max_tokens * l.top_k, l.num_ranks);
    p.top_k = l.top_k;
    p.num_experts = l.num_experts;
    p.num_local_experts = l.num_experts / l.num_ranks;
    p.first_expert = l.rank * p.num_local_experts;
    p.chunk_count = l.chunk_count;
    p.chunk_bad = l.chunk_bad;
    p.table = l.table;
    p.status = l.status;
    const int blocks = p.num_ranks * p.chunks_per_rank, threads = PURR__SCHEDULE_WARPS * 32;
    const int shared = (int)purr__schedule_shared_bytes(p.num_local_experts, PURR__SCHEDULE_WARPS);
    if ((error = launch(purr_schedule_count, blocks, threads, shared, p, stream)) != cudaSuccess) return error;
    if ((error = launch(purr_schedule_place, blocks, threads, shared, p, stream)) != cudaSuccess) return error;
    *num_launches += 2;
  }
  for (int down = 0; down < 2; down++) {
    const bool has_shared = l.shared_intermediate > 0 && (l.stages & (down ? kSharedDown : kSharedGateUp));
    purr__gemm_params_t p = {};
    p.status = l.status;
    if (has_shared) p.problem[p.num_problems++] = shared_expert(l, down);
    if (has_shared && !(l.stages & kTogether)) {
      if ((error = launch_gemm(l, down, p, stream)) != cudaSuccess) return error;
      ++*num_launches;
      p.num_problems = 0;
    }
    if (l.stages & (down ? kDown : kGateUp)) p.problem[p.num_problems++] = routed(l, down);
    if (p.num_problems == 0) continue;
    if ((error = launch_gemm(l, down, p, stream)) != cudaSuccess) return error;
    ++*num_launches;
  }
  if ((l.stages & kSlotSum) && l.num_tokens > 0) {
    purr__slot_sum_params_t p = {};
    p.ids = l.ids;
    p.topk_weights = l.topk_weights;
    p.weights_row_stride = l.weights_row_stride;
    p.weights_column_stride = l.weights_column_stride;
    p.slots = l.y.data;
    p.slots_row_stride = l.y.row_stride;
    if (l.shared_intermediate > 0) {
      p.shared = l.shared_out;
      p.shared_row_stride = l.hidden;
      p.shared_gate = l.shared_expert_gate;
    }
    p.x = l.x.data;
    p.x_row_stride = l.x.row_stride;
    p.score = l.score;
    p.out = l.out;
    p.out_row_stride = l.out_row_stride;
    p.hidden = (int)l.hidden;
    p.top_k = l.top_k;
    p.status = l.status;
    const dim3 grid((unsigned)l.num_tokens,
                    (unsigned)((l.hidden + PURR__SLOT_SUM_COLUMNS - 1) / PURR__SLOT_SUM_COLUMNS));
    if ((error = launch(purr_slot_sum, grid, 256, 0, p, stream)) != cudaSuccess) return error;
    ++*num_launches;
  }
  return cudaSuccess;
}

}  // namespace staged

#endif
