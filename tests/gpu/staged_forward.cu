/* SPDX-License-Identifier: Apache-2.0
 *
 * The staged forward's kernels against what they must compute: the host's routing table byte for byte, fixture F bit
 * for bit, float64 with the contract's rounding points, equal bits over batches and group sizes. Needs a GPU; exits 77
 * without one. Usage:
 *   staged_forward             everything
 *   staged_forward --quick     small sizes only, for compute-sanitizer
 *   staged_forward --unfilled  the same with memory that nothing wrote before, for its initcheck
 *
 * Every buffer is otherwise filled with 0xFF before use. Each has 4 KiB canaries on both sides. */
#include <cuda_bf16.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "purr.h"
#include "staged.cuh"

namespace {

using staged::Layer;

void check_cuda(cudaError_t error, const char *what, int line) {
  if (error == cudaSuccess) return;
  printf("line %d: %s: %s\n", line, what, cudaGetErrorString(error));
  exit(2);
}
#define CUDA(call) check_cuda(call, #call, __LINE__)

int num_failures = 0, num_checks = 0;
void expect(bool good, const std::string &what) {
  num_checks++;
  if (good) return;
  num_failures++;
  printf("FAIL %s\n", what.c_str());
}

/* ------------------------------------------------------------------------------------------------------------- memory
 */

constexpr size_t kCanary = 4096;
bool fill_buffers = true;

struct Buffer {
  char *base = nullptr;
  size_t bytes = 0;

  Buffer() = default;
  explicit Buffer(size_t n) : bytes(n) {
    CUDA(cudaMalloc(&base, n + 2 * kCanary));
    CUDA(cudaMemset(base, 0xA5, kCanary));
    CUDA(cudaMemset(data() + n, 0xA5, kCanary));
    poison();
  }
  Buffer(const Buffer &) = delete;
  Buffer &operator=(Buffer &&other) {
    std::swap(base, other.base);
    std::swap(bytes, other.bytes);
    return *this;
  }
  Buffer(Buffer &&other) { *this = std::move(other); }
  ~Buffer() { cudaFree(base); }

  char *data() const { return base + kCanary; }
  void poison() {
    if (fill_buffers) CUDA(cudaMemset(data(), 0xFF, bytes));
  }
  bool intact() const {
    std::vector<unsigned char> edge(kCanary);
    for (int side = 0; side < 2; side++) {
      CUDA(cudaMemcpy(edge.data(), side == 0 ? base : data() + bytes, kCanary, cudaMemcpyDeviceToHost));
      for (unsigned char c : edge)
        if (c != 0xA5) return false;
    }
    return true;
  }
  template <typename T>
  void upload(const std::vector<T> &v) {
    CUDA(cudaMemcpy(data(), v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  template <typename T>
  std::vector<T> download(size_t count) const {
    std::vector<T> v(count);
    CUDA(cudaMemcpy(v.data(), data(), count * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
  }
};

uint16_t bf16(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FC0;
  return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
float fp32(uint16_t b) {
  uint32_t bits = (uint32_t)b << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = state += 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
  }
  int below(int n) { return (int)(next() % (uint64_t)n); }
  float uniform() { return (float)(next() >> 40) / 16777216.0f; }
};

/* Normal-like numbers of the given deviation, on the device: weights can be gigabytes. */
__global__ void fill_random(uint16_t *data, int64_t num, uint64_t seed, float deviation) {
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < num; i += (int64_t)gridDim.x * blockDim.x) {
    uint64_t z = seed + (uint64_t)i * 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    float sum = 0; /* of four uniforms: variance 1/3 */
    for (int j = 0; j < 4; j++) sum += (float)(z >> (16 * j) & 0xFFFF) / 65536.0f - 0.5f;
    __nv_bfloat16 b = __float2bfloat16(sum * 1.7320508f * deviation);
    data[i] = *reinterpret_cast<uint16_t *>(&b);
  }
}

/* ---------------------------------------------------------------------------------------------------- float64
 * reference
 *
 * One warp an element. */

enum Reference {
  kExact,   /* float64, nothing rounded */
  kRounded, /* float64 sums, the contract's rounding points */
  kChain    /* the rounding points, and each sum one FP32 chain of fused multiply-adds: what rounding alone costs */
};

__device__ double bf16_to_double(uint16_t b) { return (double)__uint_as_float((uint32_t)b << 16); }
__device__ double round_bf16(double d) {
  __nv_bfloat16 b = __double2bfloat16(d);
  return bf16_to_double(*reinterpret_cast<uint16_t *>(&b));
}
__device__ double warp_sum(double v) {
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, d);
  return v;
}
template <Reference kMode>
__device__ double dot(const double *a, const uint16_t *a16, const uint16_t *b, int64_t n) {
  if (kMode == kChain) {
    float chain = 0;
    for (int64_t i = 0; i < n; i++) chain = fmaf(a ? (float)a[i] : bf16_to_double(a16[i]), bf16_to_double(b[i]), chain);
    return chain;
  }
  double sum = 0;
  for (int64_t i = threadIdx.x % 32; i < n; i += 32) sum += (a ? a[i] : bf16_to_double(a16[i])) * bf16_to_double(b[i]);
  return warp_sum(sum);
}

/* a [tokens][slots][n]: slot K is the shared expert. */
template <Reference kMode>
__global__ void reference_gate_up(Layer l, const int64_t *tokens, double *a, int64_t width) {
  const int64_t i = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, token = tokens[blockIdx.y];
  const int slot = blockIdx.z;
  const bool shared = slot == l.top_k;
  const int64_t n = shared ? l.shared_intermediate : l.intermediate;
  if (i >= n) return;
  int64_t id = 0;
  if (!shared) {
    const int64_t at = token * l.ids.row_stride + slot * l.ids.column_stride;
    id = l.ids.is_int64 ? static_cast<const int64_t *>(l.ids.data)[at] : static_cast<const int32_t *>(l.ids.data)[at];
    if (id < 0) return;
  }
  const purr__weight_t wg = shared ? l.shared_gate : l.gate, wu = shared ? l.shared_up : l.up;
  const uint16_t *x = static_cast<const uint16_t *>(l.x.data) + token * l.x.row_stride;
  const uint16_t *g_row = (const uint16_t *)(wg.by_expert ? wg.by_expert[id] : wg.data);
  const uint16_t *u_row = (const uint16_t *)(wu.by_expert ? wu.by_expert[id] : wu.data);
  if (!wg.by_expert) g_row += id * wg.expert_stride;
  if (!wu.by_expert) u_row += id * wu.expert_stride;
  double g = dot<kMode>(nullptr, x, g_row + i * wg.row_stride, l.hidden),
         u = dot<kMode>(nullptr, x, u_row + i * wu.row_stride, l.hidden);
  if (kMode != kExact) g = round_bf16(g), u = round_bf16(u);
  if (l.swiglu_limit > 0) {
    double limit = l.swiglu_limit;
    g = g > limit ? limit : g;
    u = u > limit ? limit : u < -limit ? -limit : u;
  }
  double value = g / (1 + exp(-g)) * u;
  if (kMode != kExact) value = round_bf16(value);
  if (threadIdx.x % 32 == 0) a[(blockIdx.y * (int64_t)(l.top_k + 1) + slot) * width + i] = value;
}

template <Reference kMode>
__global__ void reference_down(Layer l, const int64_t *tokens, const double *a, int64_t width, double *out) {
  const int64_t h = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, token = tokens[blockIdx.y];
  if (h >= l.hidden) return;
  double sum = 0;
  a += blockIdx.y * (int64_t)(l.top_k + 1) * width;
  if (l.shared_intermediate > 0) {
    sum = dot<kMode>(a + l.top_k * width, nullptr, (const uint16_t *)l.shared_down.data + h * l.shared_down.row_stride,
                     l.shared_intermediate);
    if (kMode != kExact) sum = round_bf16(sum);
    if (l.shared_expert_gate != nullptr) {
      const uint16_t *x = static_cast<const uint16_t *>(l.x.data) + token * l.x.row_stride;
      double z = 1 / (1 + exp(-dot<kMode>(nullptr, x, (const uint16_t *)l.shared_expert_gate, l.hidden)));
      sum *= z;
      if (kMode != kExact) sum = round_bf16(sum);
    }
  }
  for (int k = 0; k < l.top_k; k++) {
    const int64_t at = token * l.ids.row_stride + k * l.ids.column_stride;
    int64_t id =
        l.ids.is_int64 ? static_cast<const int64_t *>(l.ids.data)[at] : static_cast<const int32_t *>(l.ids.data)[at];
    if (id < 0) continue;
    const uint16_t *row = (const uint16_t *)(l.down.by_expert ? l.down.by_expert[id] : l.down.data);
    if (!l.down.by_expert) row += id * l.down.expert_stride;
    double y = dot<kMode>(a + k * width, nullptr, row + h * l.down.row_stride, l.intermediate);
    if (kMode != kExact) y = round_bf16(y);
    const float weight = l.topk_weights[token * l.weights_row_stride + k * l.weights_column_stride];
    sum = kMode == kChain ? fmaf(weight, (float)y, (float)sum) : sum + y * weight;
  }
  if (kMode != kExact) sum = round_bf16(sum);
  if (threadIdx.x % 32 == 0) out[blockIdx.y * l.hidden + h] = sum;
}

/* -------------------------------------------------------------------------------------------------------------- a case
 */

struct Shape {
  int64_t T, H, I, E, K, S;
};

enum Odd {                /* what a case does out of the ordinary */
           kInt64 = 1,    /* ids as int64 */
           kStrided = 2,  /* every stride larger than it need be; gate and up in one tensor */
           kPointers = 4, /* weights by pointer */
           kGated = 8,    /* sigmoid gate on the shared expert */
           kSave = 16,    /* g and u wanted */
           kApart = 32,   /* the shared expert in launches of its own */
};

/* Variants that no plan takes by itself are checked at small sizes alone. */
bool is_chosen(int kernels) {
  bool chosen = kernels < staged::kMega;
#define PURR_FORWARD_CHOICE(role, most_rows, entry, why) \
  chosen |= strcmp(#entry + strlen("purr_"), staged::kernels_name(kernels)) == 0;
#include "plan/forward_choice.def"
#undef PURR_FORWARD_CHOICE
  return chosen;
}

struct Case {
  Shape shape;
  int odd;
  Layer layer = {};
  std::vector<int64_t> ids;
  std::vector<float> weights;
  Buffer d_ids, d_weights, x, gate, up, down, shared_gate, shared_up, shared_down, expert_gate, out;
  Buffer a, y, shared_a, shared_out, score, saved_gate, saved_up, saved_shared, table, chunks, status, pointers[3],
      maps, units, sync, unit_maps, x_ring;
  int64_t x_stride, out_stride, id_stride, id_first;
  int num_launches = 0;

  Case(Shape s, int odd_, int wgmma, int num_ranks = 1, int rank = 0, int64_t max_tokens = 0) : shape(s), odd(odd_) {
    const int64_t El = s.E / num_ranks, wide = odd & kStrided ? 1 : 0;
    if (max_tokens == 0) max_tokens = s.T;
    x_stride = s.H + 64 * wide;
    out_stride = s.H + 8 * wide;
    id_stride = wide ? s.K + 2 : s.K;
    id_first = wide;
    const int64_t rows = staged::max_rows(max_tokens, s.K, s.E, num_ranks) + 64;
    d_ids = Buffer((size_t)(s.T * id_stride + 4) * (odd & kInt64 ? 8 : 4));
    d_weights = Buffer((size_t)(s.T * id_stride + 4) * 4);
    x = Buffer((size_t)(s.T * x_stride) * 2 + 16);
    out = Buffer((size_t)(s.T * out_stride) * 2 + 16);
    /* Strided: gate and up are one tensor [E_l, 2I, H + 8]. */
    const int64_t w_row = s.H + 8 * wide;
    gate = Buffer((size_t)(El * s.I * w_row * (1 + wide)) * 2 + 16);
    if (!wide) up = Buffer((size_t)(El * s.I * s.H) * 2);
    down = Buffer((size_t)(El * s.H * (s.I + 16 * wide)) * 2);
    if (s.S > 0) {
      shared_gate = Buffer((size_t)(s.S * s.H) * 2);
      shared_up = Buffer((size_t)(s.S * s.H) * 2);
      shared_down = Buffer((size_t)(s.S * s.H) * 2);
      shared_a = Buffer((size_t)(s.T * s.S) * 2 + 16);
      shared_out = Buffer((size_t)(s.T * s.H) * 2 + 16);
      if (odd & kGated) expert_gate = Buffer((size_t)s.H * 2);
    }
    score = Buffer((size_t)s.T * 4 + 4);
    a = Buffer((size_t)(rows * s.I) * 2);
    y = Buffer((size_t)(s.T * s.K * s.H) * 2 + 16);
    if (odd & kSave) {
      saved_gate = Buffer((size_t)(rows * s.I) * 2);
      saved_up = Buffer((size_t)(rows * s.I) * 2);
      saved_shared = Buffer((size_t)(s.T * s.S) * 4 + 16);
    }
    const int64_t max_tiles =
        wgmma < staged::kMega ? rows / PURR__SEGMENT_ROWS : staged::max_unit_tiles(max_tokens, s.K, s.E);
    table = Buffer(64 + (size_t)(El * 3 + 2 + 2 * rows + max_tiles) * 4);
    const int chunks_per_rank = purr__schedule_chunks(max_tokens * s.K, num_ranks);
    chunks = Buffer((size_t)(num_ranks * chunks_per_rank * (El + 1)) * 4);
    status = Buffer(sizeof(purr__device_status_t));

    Layer &l = layer;
    l.num_tokens = s.T;
    l.max_tokens = max_tokens;
    l.hidden = s.H;
    l.intermediate = s.I;
    l.shared_intermediate = s.S;
    l.num_experts = (int)s.E;
    l.top_k = (int)s.K;
    l.num_ranks = num_ranks;
    l.rank = rank;
    l.kernels = wgmma;
    l.stages = staged::kAll & ~(odd & kApart ? staged::kTogether : 0);
    CUDA(cudaDeviceGetAttribute(&l.num_sms, cudaDevAttrMultiProcessorCount, 0));
    l.ids = {
        d_ids.data() + id_first * (odd & kInt64 ? 8 : 4), nullptr, nullptr, s.T, id_stride, 1, odd & kInt64 ? 1 : 0, 0};
    l.topk_weights = reinterpret_cast<float *>(d_weights.data()) + id_first;
    l.weights_row_stride = id_stride;
    l.weights_column_stride = 1;
    l.x = {x.data(), nullptr, x_stride, 0, 0};
    l.y = {y.data(), nullptr, s.H, 0, 0};
    l.gate = {gate.data(), nullptr, s.I * w_row * (1 + wide), w_row};
    l.up = {wide ? gate.data() + s.I * w_row * 2 : up.data(), nullptr, l.gate.expert_stride, w_row};
    l.down = {down.data(), nullptr, s.H * (s.I + 16 * wide), s.I + 16 * wide};
    if (odd & kPointers) {
      purr__weight_t *weight[3] = {&l.gate, &l.up, &l.down};
      for (int w = 0; w < 3; w++) {
        std::vector<const char *> at((size_t)El);
        for (int64_t e = 0; e < El; e++)
          at[(size_t)e] = static_cast<const char *>(weight[w]->data) + e * weight[w]->expert_stride * 2;
        pointers[w] = Buffer((size_t)El * 8);
        pointers[w].upload(at);
        if (maps.base == nullptr) {
          maps = Buffer((size_t)(3 * El) * sizeof(purr__tensor_map_t));
          l.expert_maps = reinterpret_cast<purr__tensor_map_t *>(maps.data());
        }
        std::vector<purr__tensor_map_t> map((size_t)El);
        const int64_t n = w == 2 ? s.H : s.I, k = w == 2 ? s.I : s.H;
        for (int64_t e = 0; e < El; e++)
          CUDA(staged::make_map(&map[(size_t)e], at[(size_t)e], k, n, 1, weight[w]->row_stride,
                                n * weight[w]->row_stride, PURR__MAP_ROWS_B));
        CUDA(cudaMemcpy(l.expert_maps + w * El, map.data(), map.size() * sizeof map[0], cudaMemcpyHostToDevice));
        if (w == 1 && wgmma >= staged::kMega) {
          std::vector<purr__tensor_map_t> own((size_t)(2 * El));
          unit_maps = Buffer(own.size() * sizeof own[0]);
          for (int64_t e = 0; e < El; e++) {
            const char *g = static_cast<const char *>(gate.data()) + e * weight[0]->expert_stride * 2;
            CUDA(staged::make_interleaved_map(&own[(size_t)e], g, at[(size_t)e], s.H, s.I, 1, weight[w]->row_stride,
                                              s.I * weight[w]->row_stride, &l.up_first));
            CUDA(staged::make_map(&own[(size_t)(El + e)],
                                  static_cast<const char *>(l.down.data) + e * l.down.expert_stride * 2, s.I, s.H, 1,
                                  l.down.row_stride, s.H * l.down.row_stride, PURR__UNIT_WEIGHT_ROWS));
          }
          unit_maps.upload(own);
          l.unit_maps = reinterpret_cast<purr__tensor_map_t *>(unit_maps.data());
        }
        weight[w]->by_expert = reinterpret_cast<const void *const *>(pointers[w].data());
        weight[w]->data = nullptr;
      }
    }
    if (s.S > 0) {
      l.shared_gate = {shared_gate.data(), nullptr, 0, s.H};
      l.shared_up = {shared_up.data(), nullptr, 0, s.H};
      l.shared_down = {shared_down.data(), nullptr, 0, s.S};
      l.shared_a = shared_a.data();
      l.shared_out = shared_out.data();
      if (odd & kGated) l.shared_expert_gate = expert_gate.data();
    }
    l.out = out.data();
    l.out_row_stride = out_stride;
    if (odd & kSave) {
      l.saved_gate = saved_gate.data();
      l.saved_up = saved_up.data();
      l.num_saved_rows = rows;
      l.saved_shared_gate = saved_shared.data();
      l.saved_shared_up = saved_shared.data() + s.T * s.S * 2;
    }
    char *at = table.data();
    l.table.header = reinterpret_cast<purr__device_table_header_t *>(at);
    l.table.expert_count = reinterpret_cast<int32_t *>(at + 64);
    l.table.expert_begin = l.table.expert_count + El;
    l.table.tile_begin = l.table.expert_begin + El + 1;
    l.table.tile_expert = l.table.tile_begin + El + 1;
    l.table.row_rank = l.table.tile_expert + max_tiles;
    l.table.row_slot = l.table.row_rank + rows;
    l.chunk_bad = reinterpret_cast<int32_t *>(chunks.data());
    l.chunk_count = l.chunk_bad + num_ranks * chunks_per_rank;
    l.status = reinterpret_cast<purr__device_status_t *>(status.data());
    l.a = a.data();
    l.score = reinterpret_cast<float *>(score.data());
    if (wgmma >= staged::kMega) {
      units = Buffer((size_t)staged::max_units(l) * sizeof(purr__unit_t));
      sync = Buffer((size_t)staged::num_sync_words(l) * 4);
      x_ring = Buffer((size_t)(rows * s.H) * 2);
      l.x_ring = x_ring.data();
      l.units = reinterpret_cast<purr__unit_t *>(units.data());
      l.sync = reinterpret_cast<purr__unit_sync_t *>(sync.data());
    }
  }

  std::vector<const Buffer *> buffers() const {
    return {&d_ids,        &d_weights,   &x,           &gate,     &up,    &down,   &shared_gate,
            &shared_up,    &shared_down, &expert_gate, &out,      &a,     &y,      &shared_a,
            &shared_out,   &score,       &saved_gate,  &saved_up, &table, &chunks, &status,
            &saved_shared, &units,       &sync,        &x_ring};
  }

  void set_routes(const std::vector<int64_t> &new_ids, const std::vector<float> &new_weights) {
    ids = new_ids;
    weights = new_weights;
    const size_t total = d_weights.bytes / 4;
    std::vector<int32_t> i32(total, -77);
    std::vector<int64_t> i64(total, -77);
    std::vector<float> w(total, NAN);
    for (int64_t t = 0; t < shape.T; t++)
      for (int64_t k = 0; k < shape.K; k++) {
        size_t to = (size_t)(t * id_stride + k + id_first), from = (size_t)(t * shape.K + k);
        i32[to] = (int32_t)ids[from];
        i64[to] = ids[from];
        w[to] = ids[from] == -1 ? NAN : weights[from]; /* the weight of a dropped slot is never read */
      }
    if (odd & kInt64)
      d_ids.upload(i64);
    else
      d_ids.upload(i32);
    d_weights.upload(w);
  }

  void randomize(uint64_t seed) {
    auto fill = [&](Buffer &b, float deviation) {
      if (b.bytes >= 2)
        fill_random<<<2048, 256>>>((uint16_t *)b.data(), (int64_t)b.bytes / 2, seed++ * 0x51ED2701u, deviation);
    };
    fill(x, 1);
    fill(gate, 1 / sqrtf((float)shape.H));
    fill(up, 1 / sqrtf((float)shape.H));
    fill(down, 1 / sqrtf((float)shape.I));
    fill(shared_gate, 1 / sqrtf((float)shape.H));
    fill(shared_up, 1 / sqrtf((float)shape.H));
    fill(shared_down, shape.S ? 1 / sqrtf((float)shape.S) : 0);
    fill(expert_gate, 1 / sqrtf((float)shape.H));
    CUDA(cudaDeviceSynchronize());
  }

  void run() {
    for (Buffer *b : {&out, &a, &y, &shared_a, &shared_out, &score, &saved_gate, &saved_up, &table, &chunks, &status})
      if (b->base) b->poison();
    num_launches = 0;
    CUDA(staged::forward(layer, 0, &num_launches));
    CUDA(cudaDeviceSynchronize());
  }

  void check_canaries(const std::string &name) {
    for (const Buffer *b : buffers())
      if (b->base) expect(b->intact(), name + ": a canary was overwritten");
    if (!(odd & kStrided)) return;
    std::vector<uint16_t> o = out.download<uint16_t>((size_t)(shape.T * out_stride));
    bool gaps = true;
    for (int64_t t = 0; t < shape.T; t++)
      for (int64_t h = shape.H; h < out_stride; h++) gaps &= o[(size_t)(t * out_stride + h)] == 0xFFFF;
    expect(gaps, name + ": the gap between rows was written");
  }

  std::vector<uint16_t> output() const {
    std::vector<uint16_t> all = out.download<uint16_t>((size_t)(shape.T * out_stride)), packed;
    for (int64_t t = 0; t < shape.T; t++)
      packed.insert(packed.end(), all.begin() + t * out_stride, all.begin() + t * out_stride + shape.H);
    return packed;
  }
  purr__device_status_t device_status() const { return status.download<purr__device_status_t>(1)[0]; }

  /* The table against count, prefix-sum, place on the host. all_ids: one vector for each rank. */
  void check_table(const std::string &name, const std::vector<std::vector<int64_t>> &all_ids) {
    const int El = layer.num_experts / layer.num_ranks, first = layer.rank * El;
    std::vector<std::vector<std::pair<int, int>>> expert((size_t)El);
    for (size_t r = 0; r < all_ids.size(); r++)
      for (size_t s = 0; s < all_ids[r].size(); s++)
        if (all_ids[r][s] >= first && all_ids[r][s] < first + El)
          expert[(size_t)(all_ids[r][s] - first)].push_back({(int)r, (int)s});
    const int tile_rows = layer.kernels < staged::kMega ? PURR__TILE_ROWS : staged::unit_order(layer).tile_rows;
    std::vector<int32_t> count, begin = {0}, tiles = {0}, tile_expert, rank, slot;
    int64_t used = 0;
    for (auto &rows : expert) {
      count.push_back((int)rows.size());
      used += (int64_t)rows.size();
      for (auto &row : rows) rank.push_back(row.first), slot.push_back(row.second);
      while (rank.size() % 64) rank.push_back(-1), slot.push_back(-1);
      begin.push_back((int)rank.size());
      tiles.push_back(tiles.back() + ((int)rows.size() + tile_rows - 1) / tile_rows);
      tile_expert.resize((size_t)tiles.back(), (int)begin.size() - 2);
    }
    const purr__device_table_header_t want = {used, (int64_t)rank.size(), El, {0, 0, 0, 0, 0}};
    auto got = table.download<purr__device_table_header_t>(1)[0];
    expect(memcmp(&want, &got, sizeof want) == 0, name + ": table header");
    auto same = [&](const int32_t *at, const std::vector<int32_t> &v) {
      std::vector<int32_t> device(v.size());
      CUDA(cudaMemcpy(device.data(), at, v.size() * 4, cudaMemcpyDeviceToHost));
      return device == v;
    };
    expect(same(layer.table.expert_count, count), name + ": expert_count");
    expect(same(layer.table.expert_begin, begin), name + ": expert_begin");
    expect(same(layer.table.tile_begin, tiles), name + ": tile_begin");
    expect(same(layer.table.tile_expert, tile_expert), name + ": tile_expert");
    expect(same(layer.table.row_rank, rank), name + ": row_rank");
    expect(same(layer.table.row_slot, slot), name + ": row_slot");
    purr__device_status_t st = device_status();
    expect(st.status == 0 && st.num_rows == used && st.num_padded_rows == (int64_t)rank.size(), name + ": status");
  }

  /* Relative L2 errors on `num` tokens, against float64 with and without the rounding points. */
  void check_accuracy(const std::string &name, int64_t num) {
    std::vector<int64_t> tokens;
    for (int64_t i = 0; i < num && i < shape.T; i++)
      tokens.push_back(num >= shape.T ? i : i * (shape.T - 1) / (num - 1));
    if (tokens.empty()) return;
    const int64_t n = (int64_t)tokens.size(), width = shape.I > shape.S ? shape.I : shape.S;
    Buffer d_tokens((size_t)n * 8), da((size_t)(n * (shape.K + 1) * width) * 8), dout((size_t)(n * shape.H) * 8);
    d_tokens.upload(tokens);
    const std::vector<uint16_t> o = out.download<uint16_t>((size_t)(shape.T * out_stride));
    const dim3 up_grid((unsigned)((width + 7) / 8), (unsigned)n, (unsigned)(shape.K + (shape.S > 0)));
    const dim3 down_grid((unsigned)((shape.H + 7) / 8), (unsigned)n);
    const int64_t *t = (const int64_t *)d_tokens.data();
    double *a = (double *)da.data(), *result = (double *)dout.data();
    std::vector<double> want[3];
    for (int mode = kExact; mode <= kChain; mode++) {
      if (mode == kExact) reference_gate_up<kExact><<<up_grid, 256>>>(layer, t, a, width);
      if (mode == kExact) reference_down<kExact><<<down_grid, 256>>>(layer, t, a, width, result);
      if (mode == kRounded) reference_gate_up<kRounded><<<up_grid, 256>>>(layer, t, a, width);
      if (mode == kRounded) reference_down<kRounded><<<down_grid, 256>>>(layer, t, a, width, result);
      if (mode == kChain) reference_gate_up<kChain><<<up_grid, 256>>>(layer, t, a, width);
      if (mode == kChain) reference_down<kChain><<<down_grid, 256>>>(layer, t, a, width, result);
      CUDA(cudaDeviceSynchronize());
      want[mode] = dout.download<double>((size_t)(n * shape.H));
    }
    double difference[3] = {}, norm[3] = {}, error[3];
    for (int64_t i = 0; i < n; i++)
      for (int64_t h = 0; h < shape.H; h++) {
        const size_t at = (size_t)(i * shape.H + h);
        const double got = fp32(o[(size_t)(tokens[(size_t)i] * out_stride + h)]);
        const double d[3] = {got - want[kExact][at], got - want[kRounded][at], want[kChain][at] - want[kRounded][at]};
        for (int m = 0; m < 3; m++) difference[m] += d[m] * d[m];
        for (int m = 0; m < 3; m++)
          norm[m] += want[m == kExact ? kExact : kRounded][at] * want[m == kExact ? kExact : kRounded][at];
      }
    for (int m = 0; m < 3; m++) {
      error[m] = norm[m] > 0 ? sqrt(difference[m] / norm[m]) : sqrt(difference[m]);
      if (!(error[m] == error[m])) error[m] = 1e9;
    }
    printf("%-64s %s error to float64 with rounding points %.3e (an FP32 chain: %.3e), without %.3e, launches %d\n",
           name.c_str(), staged::kernels_name(layer.kernels), error[kRounded], error[kChain], error[kExact],
           num_launches);
    /* The rounding points magnify what tensor cores lose (kernels/sums.cuh) and what an FP32 chain rounds. */
    expect(error[kRounded] <= 1e-3 && error[kExact] <= 5e-3, name + ": accuracy");
  }
};

std::vector<int64_t> random_ids(Random &random, Shape s, const char *how) {
  std::vector<int64_t> ids;
  std::vector<float> cumulative; /* Zipf(1) */
  float total = 0;
  for (int64_t e = 0; e < s.E; e++) cumulative.push_back(total += 1.0f / (float)(e + 1));
  for (int64_t i = 0; i < s.T * s.K; i++) {
    int64_t id = random.below((int)s.E);
    if (how[0] == 'z') {
      float at = random.uniform() * total;
      for (id = 0; id < s.E - 1 && cumulative[(size_t)id] < at; id++) {
      }
    }
    if (how[0] == 'o') id = s.E - 1;
    if (how[0] == 'd' && random.below(4) == 0) id = -1;
    if (how[0] == 'n') id = -1;
    ids.push_back(id);
  }
  return ids;
}
std::vector<float> random_weights(Random &random, Shape s) {
  std::vector<float> w;
  for (int64_t i = 0; i < s.T * s.K; i++) w.push_back(random.uniform() - 0.25f);
  return w;
}

void test_random(Shape s, int odd, const char *how, int wgmma, float limit, int64_t num_tokens) {
  char name[160];
  snprintf(name, sizeof name, "T%ld H%ld I%ld E%ld K%ld S%ld %s odd %d limit %g", (long)s.T, (long)s.H, (long)s.I,
           (long)s.E, (long)s.K, (long)s.S, how, odd, limit);
  Random random = {(uint64_t)(s.T * 7919 + s.H + odd)};
  Case c(s, odd, wgmma);
  c.layer.swiglu_limit = limit;
  c.randomize(random.next());
  c.set_routes(random_ids(random, s, how), random_weights(random, s));
  c.run();
  c.check_table(name, {c.ids});
  c.check_canaries(name);
  c.check_accuracy(name, num_tokens);
  std::vector<uint16_t> once = c.output();
  c.run();
  expect(once == c.output(), std::string(name) + ": other bits the second time");
}

/* ----------------------------------------------------------------------------------------------------------- fixture F
 */

float scaler(int64_t e) { return (float)(e % 8 + 1); }

void load_fixture(Case &c) {
  const Shape &s = c.shape;
  static const float V[4] = {-2, -1, 1, 2};
  std::vector<uint16_t> x((size_t)(s.T * c.x_stride), 0xFFFF);
  for (int64_t t = 0; t < s.T; t++)
    for (int64_t h = 0; h < s.H; h++) x[(size_t)(t * c.x_stride + h)] = bf16(h == 0 ? 1 : V[(t + h) % 4]);
  c.x.upload(x);
  const int64_t El = s.E / c.layer.num_ranks, first = c.layer.rank * El;
  auto matrices = [&](int64_t experts, int64_t n, const purr__weight_t &wg, const purr__weight_t &wu,
                      const purr__weight_t &wd, Buffer &bg, Buffer &bu, Buffer &bd, std::function<float(int64_t)> m) {
    std::vector<uint16_t> g(bg.bytes / 2, 0xFFFF), u(bu.base ? bu.bytes / 2 : 0, 0xFFFF), d(bd.bytes / 2, 0xFFFF);
    std::vector<uint16_t> &u_in = bu.base ? u : g;
    const int64_t u_first = bu.base ? 0 : n * wg.row_stride;
    for (int64_t e = 0; e < experts; e++)
      for (int64_t i = 0; i < n; i++)
        for (int64_t h = 0; h < s.H; h++) {
          g[(size_t)(e * wg.expert_stride + i * wg.row_stride + h)] = bf16(h == 0 ? 32.0f : 0);
          u_in[(size_t)(u_first + e * wu.expert_stride + i * wu.row_stride + h)] = bf16(h == i % s.H ? 1.0f : 0);
          d[(size_t)(e * wd.expert_stride + h * wd.row_stride + i)] = bf16(h == i ? m(e) / 32 : 0);
        }
    bg.upload(g);
    if (bu.base) bu.upload(u);
    bd.upload(d);
  };
  matrices(El, s.I, c.layer.gate, c.layer.up, c.layer.down, c.gate, c.up, c.down,
           [&](int64_t e) { return scaler(first + e); });
  if (s.S > 0)
    matrices(1, s.S, c.layer.shared_gate, c.layer.shared_up, c.layer.shared_down, c.shared_gate, c.shared_up,
             c.shared_down, [](int64_t) { return 16.0f; });
}

bool fixture_exact(const Case &c, int64_t *bad_token) {
  static const float V[4] = {-2, -1, 1, 2};
  const Shape &s = c.shape;
  std::vector<uint16_t> o = c.output();
  for (int64_t t = 0; t < s.T; t++) {
    float routed = 0;
    for (int64_t k = 0; k < s.K; k++) {
      int64_t id = c.ids[(size_t)(t * s.K + k)];
      if (id >= 0) routed += c.weights[(size_t)(t * s.K + k)] * scaler(id);
    }
    for (int64_t h = 0; h < s.H; h++) {
      float x = h == 0 ? 1 : V[(t + h) % 4], want = (h < s.I ? routed * x : 0) + (h < s.S ? 16 * x : 0);
      if (fp32(o[(size_t)(t * s.H + h)]) != want || o[(size_t)(t * s.H + h)] == 0x8000) {
        *bad_token = t;
        return false;
      }
    }
  }
  return true;
}

void test_fixture(const char *name, Shape s, int odd, int wgmma, const std::vector<int64_t> &ids,
                  const std::vector<float> &weights) {
  Case c(s, odd, wgmma);
  load_fixture(c);
  c.set_routes(ids, weights);
  int64_t bad = -1;
  for (int twice = 0; twice < 2; twice++) {
    c.run();
    bool exact = fixture_exact(c, &bad);
    expect(exact,
           std::string("fixture F ") + name + " " + staged::kernels_name(wgmma) + " token " + std::to_string(bad));
    c.check_canaries(name);
    c.check_table(name, {c.ids});
  }
}

void test_fixtures(int wgmma) {
  auto with = [&](int64_t T, int64_t K, int64_t S = 0, int64_t H = 256, int64_t I = 128, int64_t E = 8) {
    return Shape{T, H, I, E, K, S};
  };
  for (int64_t T : {1, 3, 64, 130, 300}) {
    std::vector<int64_t> ids;
    std::vector<float> w;
    for (int64_t t = 0; t < T; t++) {
      ids.push_back(t % 8), ids.push_back((t + 3) % 8);
      w.push_back(0.5f), w.push_back(0.25f);
    }
    test_fixture("default", with(T, 2), 0, wgmma, ids, w);
    test_fixture("B23 strides", with(T, 2), kStrided | kInt64, wgmma, ids, w);
    test_fixture("S03 shared", with(T, 2, 128), kApart, wgmma, ids, w);
    test_fixture("shared, other S", with(T, 2, 72), kSave, wgmma, ids, w);
    test_fixture("B21 sizes", with(T, 2, 0, 288, 160), kPointers, wgmma, ids, w);
    std::vector<int64_t> one(ids.size(), 7);
    test_fixture("B03 all to one", with(T, 2), 0, wgmma, one, w);
  }
  test_fixture("B05", with(3, 2), 0, wgmma, {-1, -1, 3, -1, -1, 5}, {0.5f, 0.5f, 0.5f, 0.25f, 1, 0.25f});
  test_fixture("B33", with(2, 4), 0, wgmma, {7, 6, 5, 4, 4, 5, 6, 7}, {1, 0.5f, 0.25f, 0.125f, 0.125f, 0.25f, 0.5f, 1});
  for (auto &counts : std::vector<std::vector<int>>{
           {128, 130, 65, 0, 0, 0, 0, 0}, {1, 0, 127, 1, 129, 0, 63, 2}, {65, 0, 130, 0, 0, 0, 0, 128}}) {
    std::vector<int> left = counts;
    std::vector<int64_t> ids;
    for (bool any = true; any;) {
      any = false;
      for (int e = 0; e < 8; e++)
        if (left[(size_t)e] > 0) left[(size_t)e]--, ids.push_back(e), any = true;
    }
    test_fixture("B09 counts", with((int64_t)ids.size(), 1), 0, wgmma, ids, std::vector<float>(ids.size(), 1));
  }
  { /* B25: sums in FP32, in slot order */
    Case c(with(5, 8, 0, 256, 128, 64), 0, wgmma);
    load_fixture(c);
    std::vector<int64_t> ids;
    std::vector<float> w;
    for (int t = 0; t < 5; t++)
      for (int k = 0; k < 8; k++) ids.push_back(8 * k), w.push_back(k == 0 ? 256.0f : 1.0f);
    c.set_routes(ids, w);
    c.run();
    expect(fp32(c.output()[0]) == 264, "B25: FP32 sum over slots");
  }
  { /* B07: a NaN weight stays in its token; the same expert in each slot counts each time */
    Case c(with(8, 4), 0, wgmma);
    load_fixture(c);
    std::vector<int64_t> ids;
    std::vector<float> w(32, 0.25f);
    for (int i = 0; i < 32; i++) ids.push_back(i % 4 * 2);
    c.set_routes(ids, w);
    c.run();
    std::vector<uint16_t> clean = c.output();
    for (int k = 0; k < 4; k++) ids[(size_t)(20 + k)] = 0, w[(size_t)(20 + k)] = NAN;
    c.set_routes(ids, w);
    c.run();
    std::vector<uint16_t> dirty = c.output();
    bool rest = true, row = true;
    for (size_t i = 0; i < dirty.size(); i++) {
      if (i / 256 == 5)
        row &= i % 256 >= 128 || isnan(fp32(dirty[i]));
      else
        rest &= dirty[i] == clean[i];
    }
    expect(rest && row, "B07: NaN weight");
    for (int k = 0; k < 4; k++) ids[(size_t)(20 + k)] = 2, w[(size_t)(20 + k)] = 0.25f;
    c.set_routes(ids, w);
    c.run();
    int64_t bad;
    expect(fixture_exact(c, &bad), "B07: one expert in every slot");
    /* A NaN in x stays in its token too. */
    std::vector<uint16_t> x = c.x.download<uint16_t>(8 * 256), o = c.output();
    x[3 * 256 + 17] = 0x7FC0;
    c.x.upload(x);
    c.run();
    dirty = c.output();
    rest = true;
    for (size_t i = 0; i < dirty.size(); i++)
      rest &= i / 256 == 3 ? (i % 256 >= 128 || isnan(fp32(dirty[i]))) : dirty[i] == o[i];
    expect(rest, "NaN in x");
  }
}

/* ----------------------------------------------------------------------------------------------------------- bad
 * routes */

void test_bad_routes(int wgmma) {
  for (int odd : {0, (int)kInt64})
    for (int64_t bad : {(int64_t)-2, (int64_t)8, (int64_t)2147483647, (int64_t)1 << 32, INT64_MIN}) {
      if (!odd && (bad > INT32_MAX || bad < INT32_MIN)) continue;
      Case c({2000, 256, 128, 8, 2, 128}, odd, wgmma);
      load_fixture(c);
      std::vector<int64_t> ids;
      std::vector<float> w(4000, 0.5f);
      for (int i = 0; i < 4000; i++) ids.push_back(i % 8);
      std::vector<int64_t> wrong = ids;
      wrong[3] = wrong[2222] = wrong[3999] = bad;
      c.set_routes(wrong, w);
      c.run();
      purr__device_status_t s = c.device_status();
      std::string name = "bad id " + std::to_string(bad);
      expect(s.status == PURR_STATUS_BAD_ROUTE && s.rank == 0 && s.token == 1 && s.slot == 1 && s.expert == bad,
             name + ": status");
      bool untouched = true;
      for (const Buffer *b : {&c.out, &c.y, &c.a, &c.table, &c.shared_out, &c.shared_a})
        for (unsigned char byte : b->download<unsigned char>(b->bytes)) untouched &= byte == 0xFF;
      expect(untouched, name + ": something was written");
      c.check_canaries(name);
      c.set_routes(ids, w);
      c.run();
      int64_t token = -1;
      expect(fixture_exact(c, &token), name + ": the good call after it");
    }
}

/* ----------------------------------------------------------------------------------------------------------- equal
 * bits */

/* A token's output has the same bits alone and in any batch. */
void test_batches(Shape s, int wgmma) {
  Random random = {4242};
  Case all(s, kGated, wgmma);
  all.randomize(99);
  all.set_routes(random_ids(random, s, "uniform"), random_weights(random, s));
  all.run();
  const std::vector<uint16_t> want = all.output(), x = all.x.download<uint16_t>((size_t)(s.T * s.H));
  for (int64_t T : {(int64_t)1, (int64_t)7, (int64_t)65, (int64_t)200}) {
    if (T > s.T) continue;
    Case part({T, s.H, s.I, s.E, s.K, s.S}, kGated, wgmma);
    part.randomize(99);
    std::vector<int64_t> picked, ids;
    std::vector<float> w;
    std::vector<uint16_t> px;
    for (int64_t t = 0; t < T; t++) {
      int64_t from = random.below((int)s.T);
      picked.push_back(from);
      for (int64_t k = 0; k < s.K; k++) {
        ids.push_back(all.ids[(size_t)(from * s.K + k)]);
        w.push_back(all.weights[(size_t)(from * s.K + k)]);
      }
      px.insert(px.end(), x.begin() + from * s.H, x.begin() + (from + 1) * s.H);
    }
    part.x.upload(px);
    part.set_routes(ids, w);
    part.run();
    const std::vector<uint16_t> got = part.output();
    bool same = true;
    for (int64_t t = 0; t < T; t++)
      same &= memcmp(&got[(size_t)(t * s.H)], &want[(size_t)(picked[(size_t)t] * s.H)], (size_t)s.H * 2) == 0;
    expect(same, "a batch of " + std::to_string(T) + ": other bits");
  }
}

/* R ranks on one device, driven in turn: the bits of one rank with all experts. */
void test_ranks(int num_ranks, int wgmma) {
  const Shape s = {150, 288, 160, 12, 3, 96};
  Random random = {77};
  std::vector<std::unique_ptr<Case>> ranks;
  std::vector<std::vector<int64_t>> all_ids;
  std::vector<int64_t> num_tokens;
  for (int r = 0; r < num_ranks; r++) num_tokens.push_back(r == 1 ? 0 : s.T - 23 * r);
  for (int r = 0; r < num_ranks; r++) {
    Shape mine = s;
    mine.T = num_tokens[(size_t)r];
    ranks.emplace_back(new Case(mine, kGated, wgmma, num_ranks, r, s.T));
    ranks[(size_t)r]->randomize(5);
    fill_random<<<64, 256>>>((uint16_t *)ranks[(size_t)r]->x.data(), mine.T * s.H, 1000 + (uint64_t)r, 1);
    std::vector<int64_t> ids = random_ids(random, mine, "dropped");
    ranks[(size_t)r]->set_routes(ids, random_weights(random, mine));
    all_ids.push_back(ids);
  }
  /* Each rank's weights are its part of the whole. */
  Case whole({1, s.H, s.I, s.E, s.K, s.S}, kGated, wgmma);
  whole.randomize(5);
  const int64_t El = s.E / num_ranks;
  std::vector<purr__ids_t> sources;
  std::vector<char *> x_by_rank, y_by_rank;
  for (int r = 0; r < num_ranks; r++) {
    Case &c = *ranks[(size_t)r];
    CUDA(cudaMemcpy(c.gate.data(), whole.gate.data() + r * El * s.I * s.H * 2, (size_t)(El * s.I * s.H) * 2,
                    cudaMemcpyDefault));
    CUDA(cudaMemcpy(c.up.data(), whole.up.data() + r * El * s.I * s.H * 2, (size_t)(El * s.I * s.H) * 2,
                    cudaMemcpyDefault));
    CUDA(cudaMemcpy(c.down.data(), whole.down.data() + r * El * s.I * s.H * 2, (size_t)(El * s.I * s.H) * 2,
                    cudaMemcpyDefault));
    for (auto pair :
         {std::make_pair(&c.shared_gate, &whole.shared_gate), std::make_pair(&c.shared_up, &whole.shared_up),
          std::make_pair(&c.shared_down, &whole.shared_down), std::make_pair(&c.expert_gate, &whole.expert_gate)})
      CUDA(cudaMemcpy(pair.first->data(), pair.second->data(), pair.first->bytes, cudaMemcpyDefault));
    sources.push_back(c.layer.ids);
    x_by_rank.push_back(c.x.data());
    y_by_rank.push_back(c.y.data());
  }
  Buffer counts((size_t)num_ranks * 8), d_sources(sources.size() * sizeof(purr__ids_t)), xs(sources.size() * 8),
      ys(sources.size() * 8);
  counts.upload(num_tokens);
  for (int r = 0; r < num_ranks; r++) {
    sources[(size_t)r].num_tokens_at = reinterpret_cast<int64_t *>(counts.data()) + r;
    sources[(size_t)r].num_tokens = -1;
  }
  d_sources.upload(sources);
  xs.upload(x_by_rank);
  ys.upload(y_by_rank);
  const int first_half =
      staged::kSchedule | staged::kGateUp | staged::kDown | staged::kSharedGateUp | staged::kSharedDown;
  for (int stages : {first_half, (int)staged::kSlotSum})
    for (int r = 0; r < num_ranks; r++) {
      Case &c = *ranks[(size_t)r];
      c.layer.sources = reinterpret_cast<purr__ids_t *>(d_sources.data());
      c.layer.x.by_rank = reinterpret_cast<void *const *>(xs.data());
      c.layer.y.by_rank = reinterpret_cast<void *const *>(ys.data());
      c.layer.stages = stages;
      CUDA(staged::forward(c.layer, 0, &c.num_launches));
    }
  CUDA(cudaDeviceSynchronize());
  for (int r = 0; r < num_ranks; r++) {
    Case &c = *ranks[(size_t)r];
    std::string name = std::to_string(num_ranks) + " ranks, rank " + std::to_string(r);
    c.check_table(name, all_ids);
    c.check_canaries(name);
    Case alone(c.shape, kGated, wgmma);
    alone.randomize(5);
    alone.set_routes(c.ids, c.weights);
    CUDA(cudaMemcpy(alone.x.data(), c.x.data(), c.x.bytes, cudaMemcpyDefault));
    for (auto pair :
         {std::make_pair(&alone.gate, &whole.gate), std::make_pair(&alone.up, &whole.up),
          std::make_pair(&alone.down, &whole.down), std::make_pair(&alone.shared_gate, &whole.shared_gate),
          std::make_pair(&alone.shared_up, &whole.shared_up), std::make_pair(&alone.shared_down, &whole.shared_down),
          std::make_pair(&alone.expert_gate, &whole.expert_gate)})
      CUDA(cudaMemcpy(pair.first->data(), pair.second->data(), pair.first->bytes, cudaMemcpyDefault));
    alone.run();
    expect(alone.output() == c.output(), name + ": other bits than one rank");
  }
}

/* 32-bit offsets must not be enough: T * K * H just around 2^31. */
void test_large_offsets(int64_t T, int wgmma) {
  Case c({T, 7168, 128, 8, 8, 0}, 0, wgmma);
  load_fixture(c);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < T * 8; i++) ids.push_back(i % 8);
  c.set_routes(ids, std::vector<float>((size_t)T * 8, 0.125f));
  c.run();
  int64_t bad = -1;
  expect(fixture_exact(c, &bad), "B11: T " + std::to_string(T) + " token " + std::to_string(bad));
  c.check_canaries("B11");
}

}  // namespace

int main(int argc, char **argv) {
  int first_kernels = 0;
  if (argc > 1 && strcmp(argv[argc - 1], "--mega") == 0) {
    first_kernels = staged::kMega;
    argc--;
  }
  const bool quick = argc > 1;
  if (argc > 2 || (quick && strcmp(argv[1], "--quick") != 0 && strcmp(argv[1], "--unfilled") != 0)) {
    printf("usage: staged_forward [--quick | --unfilled] [--mega]\n");
    return 2;
  }
  fill_buffers = !quick || strcmp(argv[1], "--unfilled") != 0;
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
    printf("skipped: no GPU\n");
    return 77;
  }
  cudaDeviceProp properties;
  CUDA(cudaGetDeviceProperties(&properties, 0));
  const int has_wgmma = properties.major == 9 && properties.minor == 0;
  printf("%s, sm_%d%d\n", properties.name, properties.major, properties.minor);

  for (int wgmma = first_kernels; wgmma <= (has_wgmma ? staged::kNumKernels - 1 : staged::kMma); wgmma++) {
    if (wgmma >= staged::kMega && !staged::is_checked(wgmma)) continue;
    test_random({37, 288, 160, 8, 2, 96}, kInt64 | (fill_buffers ? kStrided : 0) | kGated | kSave, "dropped", wgmma,
                0.7f, 1000);
    test_random({70, 8, 8, 4, 3, 8}, kPointers, "uniform", wgmma, 0, 1000);
    test_random({70, 2184, 136, 3, 2, 2056}, kGated | kSave, "uniform", wgmma, 0, 1000); /* sums in parts, one short */
    if (quick) {
      test_random({150, 200, 136, 3, 2, 0}, kSave, "uniform", wgmma, 0, 1000);
      test_random({150, 200, 136, 3, 1, 0}, fill_buffers ? kStrided : 0, "dropped", wgmma, 0, 1000);
      test_random({0, 256, 128, 8, 2, 64}, 0, "uniform", wgmma, 0, 1);
      if (wgmma < staged::kMega) test_ranks(3, wgmma);
      continue;
    }
    test_random({0, 256, 128, 8, 2, 64}, 0, "uniform", wgmma, 0, 1);
    test_random({1, 2048, 768, 128, 8, 0}, 0, "uniform", wgmma, 0, 1000);
    test_random({300, 264, 1000, 5, 2, 1032}, kApart, "one", wgmma, 0, 1000);
    test_random({301, 1016, 264, 384, 6, 0}, kInt64, "zipf", wgmma, 0, 1000);
    test_random({33, 512, 256, 16, 4, 128}, kGated, "none", wgmma, 0, 1000);
    test_random({2031, 520, 264, 12, 1, 0}, kStrided | kInt64, "dropped", wgmma, 0, 1000);
    test_random({777, 768, 512, 48, 16, 512}, kStrided | kGated | kApart, "dropped", wgmma, 2.0f, 1000);
    test_fixtures(wgmma);
    test_bad_routes(wgmma);
    test_batches({517, 520, 328, 12, 4, 200}, wgmma);
    test_batches({150, 2312, 1096, 2, 2, 1032}, wgmma); /* sums have the same parts, wherever in a tile a row lies */
    for (int R : {2, 3, 4, 6})
      if (wgmma < staged::kMega) test_ranks(R, wgmma);
    if (!is_chosen(wgmma)) continue;
    test_random({2048, 7168, 2048, 48, 8, 2048}, kGated, "uniform", wgmma, 0, 24);
    test_random({16384, 7168, 2048, 6, 1, 0}, 0, "uniform", wgmma, 0, 24);
    test_random({8192, 2048, 768, 128, 8, 0}, kSave, "zipf", wgmma, 0, 24);
    test_random({8192, 2048, 1408, 64, 6, 2816}, 0, "uniform", wgmma, 0, 24);
    test_random({4096, 4096, 14336, 8, 2, 0}, 0, "uniform", wgmma, 0, 24);
    test_large_offsets(wgmma == staged::kMma ? 37449 : 37450, wgmma);
  }
  printf("%d passed, %d failed\n", num_checks - num_failures, num_failures);
  return num_failures != 0;
}
