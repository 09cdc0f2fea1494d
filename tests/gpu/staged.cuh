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

#include <algorithm>

#include "layout.h"

extern "C" {
__global__ void purr_schedule_count(const __grid_constant__ purr__schedule_params_t params);
__global__ void purr_schedule_place(const __grid_constant__ purr__schedule_params_t params);
__global__ void purr_schedule(const __grid_constant__ purr__schedule_params_t params);
__global__ void purr_gate_up(const __grid_constant__ purr__gemm_params_t params);
__global__ void purr_down(const __grid_constant__ purr__gemm_params_t params);
__global__ void purr_gate_up_wgmma(const __grid_constant__ purr__gemm_tma_params_t params);
__global__ void purr_down_wgmma(const __grid_constant__ purr__gemm_tma_params_t params);
__global__ void purr_slot_sum(const __grid_constant__ purr__slot_sum_params_t params);
#define PURR_FORWARD_VARIANT(entry, role, tile_rows, stages, slots, traces, peers, shared_bytes) \
  __global__ void entry(const __grid_constant__ purr__forward_params_t params);
#include "sm90a/forward_variants.def"
#undef PURR_FORWARD_VARIANT
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

/* Which kernels multiply: from kMega on, the variants of the forward megakernel in the order of their table. */
enum Kernels { kMma = 0, kWgmma = 1, kMega = 2 };

struct ForwardVariant {
  const char *entry;
  void (*kernel)(const purr__forward_params_t);
  int tile_rows;
  bool traces, peers;
  int shared_bytes;
};
constexpr ForwardVariant kVariants[] = {
#define PURR_FORWARD_VARIANT(entry, role, tile_rows, stages, slots, traces, peers, shared_bytes) \
  {#entry, entry, tile_rows, traces, peers, shared_bytes},
#include "sm90a/forward_variants.def"
#undef PURR_FORWARD_VARIANT
};
constexpr int kNumKernels = kMega + sizeof kVariants / sizeof kVariants[0];
constexpr int kLeastTileRows = 16;

/* "mma", "wgmma", "forward_208"; NULL past the last. */
inline const char *kernels_name(int32_t kernels) {
  static const char *const names[] = {"mma", "wgmma"};
  if (kernels < 0 || kernels >= kNumKernels) return nullptr;
  return kernels < kMega ? names[kernels] : kVariants[kernels - kMega].entry + strlen("purr_");
}

/* Variants of the megakernel for one rank, without a timeline. */
inline bool is_checked(int32_t kernels) {
  return !kVariants[kernels - kMega].traces && !kVariants[kernels - kMega].peers;
}

/* Everything one rank needs for a forward. */
struct Layer {
  int64_t num_tokens, max_tokens, hidden, intermediate, shared_intermediate;
  int32_t num_experts, top_k, num_ranks, rank;
  float swiglu_limit;
  int32_t kernels; /* Kernels */
  int32_t stages;  /* Stage bits */
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
  void *saved_gate, *saved_up;               /* bf16 [num_saved_rows, I], NULL = not wanted */
  void *saved_shared_gate, *saved_shared_up; /* bf16 [T, S], with the former */
  int64_t num_saved_rows;
  /* workspace */
  purr__device_table_t table;
  purr__device_status_t *status;
  int32_t *chunk_count, *chunk_bad;
  purr__tensor_map_t *expert_maps; /* device [3][E_l]: gate, up, down; for weights by pointer with wgmma */
  void *a;                         /* bf16 [max rows, I] */
  void *shared_a, *shared_out;     /* bf16 [T, S], [T, H] */
  float *score;
  purr__unit_t *units; /* of the megakernel: [max_units] */
  void *x_ring;        /* bf16 [max rows, H] */
  void *trace;         /* kernels/trace.h, NULL = none */
  purr__unit_sync_t *sync;
  int32_t up_first;
  purr__tensor_map_t *unit_maps; /* device [2][E_l]: gate-up, down; for weights by pointer */
};

/* Whether down writes the output itself: purr__plan_sums_in_down. */
inline bool sums_in_down(const Layer &l) { return l.num_ranks == 1 && l.top_k == 1 && l.shared_intermediate == 0; }

/* Where results go. */
inline purr__rows_t results(const Layer &l) {
  if (sums_in_down(l)) return {l.out, nullptr, l.out_row_stride, PURR__ROWS_SLOT, 0};
  purr__rows_t y = l.y;
  if (y.by_rank != nullptr) y.data = nullptr; /* the ranks' addresses are those of row 0 */
  y.placement = PURR__ROWS_SLOT;
  return y;
}

/* The megakernel's order of work. */
inline purr__unit_order_t unit_order(const Layer &l) {
  if (l.kernels < kMega) return {};
  purr__unit_order_t order = {};
  order.units = l.units;
  order.sync = l.sync;
  order.tile_rows = kVariants[l.kernels - kMega].tile_rows;
  auto pairs = [](int64_t n) { return (int32_t)((n + 2 * PURR__UNIT_WEIGHT_ROWS - 1) / (2 * PURR__UNIT_WEIGHT_ROWS)); };
  order.gate_up_pairs = pairs(2 * l.intermediate);
  order.down_pairs = pairs(l.hidden);
  order.num_tokens = (int32_t)l.num_tokens;
  if (l.shared_intermediate > 0) {
    order.shared_gate_up_pairs = pairs(2 * l.shared_intermediate);
    order.num_shared_tiles = (int32_t)((l.num_tokens + order.tile_rows - 1) / order.tile_rows);
  }
  return order;
}

inline int64_t max_rows(int64_t max_tokens, int64_t top_k, int64_t num_experts, int64_t num_ranks) {
  int64_t slots = max_tokens * top_k * num_ranks, experts = num_experts / num_ranks;
  int64_t segments = slots < experts ? slots : experts;
  return (slots + segments * (PURR__SEGMENT_ROWS - 1) + PURR__SEGMENT_ROWS - 1) / PURR__SEGMENT_ROWS *
         PURR__SEGMENT_ROWS;
}

/* Of experts, whose last may be short, and of the shared one. */
inline int64_t max_unit_tiles(int64_t max_tokens, int64_t top_k, int64_t num_experts) {
  return max_tokens * top_k / kLeastTileRows + num_experts + 1;
}
inline int64_t max_shared_tiles(int64_t max_tokens) { return (max_tokens + kLeastTileRows - 1) / kLeastTileRows; }
inline int64_t max_units(const Layer &l) {
  const int64_t tiles = max_unit_tiles(l.max_tokens, l.top_k, l.num_experts), shared = max_shared_tiles(l.max_tokens);
  return tiles * ((2 * l.intermediate + 255) / 256 + (l.hidden + 255) / 256) +
         shared * ((2 * l.shared_intermediate + 255) / 256 + (l.hidden + 255) / 256);
}
inline int64_t num_sync_words(const Layer &l) {
  return (int64_t)(sizeof(purr__unit_sync_t) / 4) +
         4 * (max_unit_tiles(l.max_tokens, l.top_k, l.num_experts) + max_shared_tiles(l.max_tokens));
}

inline int kernel_shared_bytes(const char *name, int arch) {
#define PURR_KERNEL(entry, role, source, target, arch_, threads, shared_bytes, cluster, tile_m, tile_n) \
  if (arch == arch_ && strcmp(name, #entry) == 0) return shared_bytes;
#include "kernels.def"
#undef PURR_KERNEL
  return -1;
}

inline int compute_capability() {
  int device = 0, major = 0, minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return major * 10 + minor;
}

template <typename Kernel, typename Params>
cudaError_t launch(Kernel kernel, dim3 grid, int threads, int shared_bytes, const Params &params, cudaStream_t stream,
                   int cluster = 1) {
  cudaError_t error = cudaSuccess;
  if (shared_bytes > 48 * 1024)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = (unsigned)cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3((unsigned)threads);
  config.dynamicSmemBytes = (size_t)shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = cluster > 1;
  return cudaLaunchKernelEx(&config, kernel, params);
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
    if (g.a.by_rank != nullptr) g.a.data = nullptr;
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
    g.c = results(l);
    if (sums_in_down(l)) g.slot_weights = l.topk_weights;
    g.slot_weights_stride = l.weights_row_stride;
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

/* A BF16 tensor for the copy engine; sizes and boxes in elements, strides in bytes, fastest first. */
inline cudaError_t encode_map(purr__tensor_map_t *map, const void *data, int rank, const cuuint64_t *size,
                              const cuuint64_t *stride, const cuuint32_t *box) {
  static PFN_cuTensorMapEncodeTiled_v12000 encode = nullptr;
  if (encode == nullptr) {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    if (error != cudaSuccess || found == nullptr) return error != cudaSuccess ? error : cudaErrorNotSupported;
    encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
  }
  const cuuint32_t step[5] = {1, 1, 1, 1, 1};
  CUresult result =
      encode(reinterpret_cast<CUtensorMap *>(map), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, const_cast<void *>(data),
             size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/* A BF16 matrix; see purr__gemm_maps_t. depth 0: two dimensions. */
inline cudaError_t make_map(purr__tensor_map_t *map, const void *data, int64_t k, int64_t rows, int64_t depth,
                            int64_t row_stride, int64_t depth_stride, int box_rows) {
  const cuuint64_t size[3] = {(cuuint64_t)k, (cuuint64_t)rows, (cuuint64_t)depth};
  const cuuint64_t stride[2] = {(cuuint64_t)row_stride * 2, (cuuint64_t)depth_stride * 2};
  const cuuint32_t box[3] = {PURR__MAP_STAGE_K, (cuuint32_t)box_rows, 1};
  return encode_map(map, data, depth > 0 ? 3 : 2, size, stride, box);
}

/* Gate and up with their rows interleaved by eights; see purr__forward_params_t. */
inline cudaError_t make_interleaved_map(purr__tensor_map_t *map, const void *gate, const void *up, int64_t k, int64_t n,
                                        int64_t depth, int64_t row_stride, int64_t depth_stride, int32_t *up_first) {
  const char *g = static_cast<const char *>(gate), *u = static_cast<const char *>(up);
  *up_first = u < g;
  const cuuint64_t size[5] = {(cuuint64_t)k, PURR__MAP_ROWS_INTERLEAVED, 2, (cuuint64_t)n / PURR__MAP_ROWS_INTERLEAVED,
                              (cuuint64_t)depth};
  const cuuint64_t row = (cuuint64_t)row_stride * 2;
  const cuuint64_t stride[4] = {row, (cuuint64_t)(u < g ? g - u : u - g), row * PURR__MAP_ROWS_INTERLEAVED,
                                (cuuint64_t)depth_stride * 2};
  const cuuint32_t box[5] = {PURR__MAP_STAGE_K, PURR__MAP_ROWS_INTERLEAVED, 2,
                             PURR__UNIT_WEIGHT_ROWS / 2 / PURR__MAP_ROWS_INTERLEAVED, 1};
  return encode_map(map, u < g ? u : g, 5, size, stride, box);
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
  const int arch = compute_capability();
  if (l.kernels == kWgmma) {
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
    const int blocks = l.num_sms / 2 * 2;                      /* clusters of two */
    auto kernel = down ? purr_down_wgmma : purr_gate_up_wgmma; /* which have as much shared memory */
    return launch(kernel, blocks, 384, kernel_shared_bytes("purr_down_wgmma", arch), tma, stream);
  }
  auto kernel = down ? purr_down : purr_gate_up;
  return launch(kernel, l.num_sms, 256, kernel_shared_bytes("purr_down", arch), params, stream);
}

inline purr__slot_sum_params_t sum_params(const Layer &l) {
  purr__slot_sum_params_t p = {};
  p.ids = l.ids;
  p.topk_weights = l.topk_weights;
  p.weights_row_stride = l.weights_row_stride;
  p.weights_column_stride = l.weights_column_stride;
  p.slots = sums_in_down(l) ? nullptr : l.y.data;
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
  p.num_experts = l.num_experts;
  p.expert_count = l.table.expert_count;
  return p;
}

inline cudaError_t launch_mega(const Layer &l, cudaStream_t stream) {
  purr__forward_params_t p = {};
  const int64_t H = l.hidden, I = l.intermediate, S = l.shared_intermediate, T = l.num_tokens;
  const int64_t rows = max_rows(l.max_tokens, l.top_k, l.num_experts, 1);
  cudaError_t error = cudaSuccess;
  auto keep = [&](cudaError_t e) {
    if (error == cudaSuccess) error = e;
  };
  auto make_rows = [&](purr__tensor_map_t(&maps)[2], const void *data, int64_t k, int64_t num, int64_t stride) {
    keep(make_map(&maps[0], data, k, num, 0, stride, 0, PURR__MAP_ROWS_TOKENS));
    keep(make_map(&maps[1], data, k, num, 0, stride, 0, PURR__MAP_ROWS_MANY_TOKENS));
  };
  if (T > 0) {
    make_rows(p.x_ring, l.x_ring, H, rows, H);
    make_rows(p.x_tokens, l.x.data, H, T, l.x.row_stride);
  }
  if (T > 0) make_rows(p.a, l.a, I, rows, I);
  if (l.gate.by_expert == nullptr) {
    keep(make_interleaved_map(&p.gate_up, l.gate.data, l.up.data, H, I, l.num_experts, l.gate.row_stride,
                              l.gate.expert_stride, &p.up_first));
    keep(make_map(&p.down, l.down.data, I, H, l.num_experts, l.down.row_stride, l.down.expert_stride,
                  PURR__UNIT_WEIGHT_ROWS));
  } else {
    p.gate_up_by_expert = l.unit_maps;
    p.up_first = l.up_first;
    p.down_by_expert = l.unit_maps + l.num_experts;
  }
  if (S > 0 && T > 0) {
    make_rows(p.shared_a, l.shared_a, S, T, S);
    keep(make_interleaved_map(&p.shared_gate_up, l.shared_gate.data, l.shared_up.data, H, S, 1, H, S * H,
                              &p.shared_up_first));
    keep(make_map(&p.shared_down, l.shared_down.data, S, H, 1, S, S * H, PURR__UNIT_WEIGHT_ROWS));
  }
  if (error != cudaSuccess) return error;
  p.order = unit_order(l);
  p.table = l.table;
  p.x = l.x;
  p.x.placement = PURR__ROWS_TOKEN;
  p.x_rows = {l.x_ring, nullptr, H, PURR__ROWS_DENSE, 0};
  p.a_rows = {l.a, nullptr, I, PURR__ROWS_DENSE, 0};
  p.shared_a_rows = {l.shared_a, nullptr, S, PURR__ROWS_DENSE, 0};
  p.saved[0] = {l.saved_gate, nullptr, I, PURR__ROWS_DENSE, 0};
  p.saved[1] = {l.saved_up, nullptr, I, PURR__ROWS_DENSE, 0};
  p.shared_saved[0] = {l.saved_shared_gate, nullptr, S, PURR__ROWS_DENSE, 0};
  p.shared_saved[1] = {l.saved_shared_up, nullptr, S, PURR__ROWS_DENSE, 0};
  p.num_saved_rows = l.num_saved_rows;
  p.y = results(l);
  if (sums_in_down(l)) p.slot_weights = l.topk_weights;
  p.slot_weights_stride = l.weights_row_stride;
  p.shared_out = {l.shared_out, nullptr, H, PURR__ROWS_DENSE, 0};
  p.intermediate = (int)I;
  p.shared_intermediate = (int)S;
  p.swiglu_limit = l.swiglu_limit;
  p.timeout_ns = 2000000000;
  p.hidden = (int)H;
  p.num_experts = l.num_experts;
  p.top_k = l.top_k;
  p.status = l.status;
  p.trace = l.trace;
  const ForwardVariant &variant = kVariants[l.kernels - kMega];
  error = cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, variant.shared_bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute cooperative = {};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((unsigned)(l.num_sms / 2 * 2));
  config.blockDim = dim3(384);
  config.dynamicSmemBytes = (size_t)variant.shared_bytes;
  config.stream = stream;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, variant.kernel, p);
}

/* Puts the stages of one forward on the stream; adds the number of launches to *num_launches. */
inline cudaError_t forward(const Layer &l, cudaStream_t stream, int *num_launches) {
  cudaError_t error = cudaSuccess;
  if (l.stages & kSchedule) {
    purr__schedule_params_t p = {};
    p.own = l.ids;
    p.sources = l.sources;
    p.num_ranks = l.num_ranks;
    const int64_t most_tokens = l.num_ranks > 1 ? l.max_tokens : l.num_tokens;
    const purr__schedule_shape_t shape = purr__schedule_shape(
        most_tokens * l.top_k, l.num_ranks, l.num_experts / l.num_ranks,
        compute_capability() >= 90 ? PURR__SCHEDULE_TOGETHER_BLOCKS : 1, 48 << 10 /* without asking for more */);
    p.chunks_per_rank = shape.chunks_per_rank;
    p.num_pieces = shape.num_pieces;
    p.top_k = l.top_k;
    p.num_experts = l.num_experts;
    p.num_local_experts = l.num_experts / l.num_ranks;
    p.first_expert = l.rank * p.num_local_experts;
    p.chunk_count = l.chunk_count;
    p.chunk_bad = l.chunk_bad;
    p.table = l.table;
    p.status = l.status;
    p.order = unit_order(l);
    if (p.order.units != nullptr) p.order.num_sync_words = (int)num_sync_words(l);
    const int blocks = p.num_ranks * p.chunks_per_rank, threads = PURR__SCHEDULE_WARPS * 32;
    const int shared = (int)shape.shared_bytes;
    if (shape.is_together) {
      error = launch(purr_schedule, blocks, PURR__SCHEDULE_TOGETHER_WARPS * 32, shared, p, stream, blocks);
    } else {
      error = launch(purr_schedule_count, blocks, threads, shared, p, stream);
      if (error == cudaSuccess) error = launch(purr_schedule_place, blocks, threads, shared, p, stream);
    }
    if (error != cudaSuccess) return error;
    *num_launches += shape.is_together ? 1 : 2;
  }
  if (l.kernels >= kMega) {
    if ((l.stages | kTogether) != kAll) return cudaSuccess;
    ++*num_launches;
    if ((error = launch_mega(l, stream)) != cudaSuccess) return error;
  }
  for (int down = 0; down < 2 && l.kernels < kMega; down++) {
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
    const purr__slot_sum_params_t p = sum_params(l);
    const dim3 grid((unsigned)purr__slot_sum_blocks(l.num_tokens, l.hidden, l.num_sms, !sums_in_down(l)));
    if ((error = launch(purr_slot_sum, grid, 256, 0, p, stream)) != cudaSuccess) return error;
    ++*num_launches;
  }
  return cudaSuccess;
}

}  // namespace staged

#endif
