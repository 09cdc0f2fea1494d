/* What single instructions do. */
#include <math.h>
#include <string.h>

#include <algorithm>

#include "cuda.h"
#include "fake_cuda/tensor_map.h"
#include "grid.h"

namespace machine {

/* ---- threads together ---- */

int lanes_of(unsigned mask) { return std::min(__builtin_popcount(mask), current->warp->alive); }

void shuffle(unsigned mask, const char *what, Shuffled *own) {
  meet(current->warp->meeting, what, current->rank % 32, lanes_of(mask), own, [what](void **all) {
    for (int i = 0; i < 32; i++) {
      if (all[i] == nullptr) continue;
      Shuffled *lane = static_cast<Shuffled *>(all[i]);
      if (all[lane->from] == nullptr) fail("%s asks lane %d, which does not take part", what, lane->from);
      lane->result = static_cast<Shuffled *>(all[lane->from])->value;
    }
  });
}

/* ---- mbarriers ---- */

Barrier &Barrier::at(void *address) {
  Barrier *barrier = static_cast<Barrier *>(address);
  if (barrier->magic != kMagic) fail("no mbarrier was initialised there");
  return *barrier;
}

void Barrier::end_of_phase() {
  if (pending != 0 || tx != 0) return;
  phase ^= 1;
  pending = (int64_t)expected;
  wake(*current->block->cluster, this);
}

void Barrier::arrive(int count) {
  if (pending < count) fail("an mbarrier for %d arrivals got more in one phase", (int)expected);
  pending -= count;
  end_of_phase();
}

void Barrier::complete(int64_t bytes) {
  tx -= bytes;
  end_of_phase();
}

char *of_block(const void *shared, int block) {
  const Cluster &cluster = *current->block->cluster;
  if (block < 0 || block >= (int)cluster.blocks.size())
    fail("block %d of a cluster of %zu", block, cluster.blocks.size());
  return cluster.blocks[(size_t)block]->window + (static_cast<const char *>(shared) - current->block->window);
}

/* ---- copies ---- */

void copy_now(const std::vector<Copy> &copies) {
  for (const Copy &copy : copies) {
    memcpy(copy.to, copy.from, copy.bytes);
    memset(static_cast<char *>(copy.to) + copy.bytes, 0, copy.zeros);
  }
}

void copy_pending(std::vector<std::vector<Copy>> &groups, int pending) {
  for (; (int)groups.size() > pending; groups.erase(groups.begin())) copy_now(groups.front());
}

namespace {

/* One box: rows of the fastest dimension, one after the other, out of bounds zeros. */
void load_box(const fake_tensor_map_t &map, char *window, size_t offset, const std::array<int, 5> &begin) {
  size_t num = 1;
  for (int d = 1; d < map.rank; d++) num *= map.box[d];
  const size_t row_bytes = (size_t)map.box[0] * map.element_bytes;
  for (size_t r = 0; r < num; r++) {
    int64_t from = 0;
    bool inside = true;
    size_t left = r;
    for (int d = 1; d < map.rank; d++) {
      const int64_t at = begin[(size_t)d] + (int64_t)(left % map.box[d]);
      left /= map.box[d];
      inside = inside && at >= 0 && at < (int64_t)map.dims[d];
      from += at * (int64_t)map.strides[d - 1];
    }
    for (size_t b = 0; b < row_bytes; b += map.element_bytes) {
      const int64_t column = begin[0] + (int64_t)(b / map.element_bytes);
      size_t to = offset + r * row_bytes + b;
      if (map.swizzle == 3) to ^= (to >> 7 & 7) << 4;
      if (inside && column >= 0 && column < (int64_t)map.dims[0])
        memcpy(window + to, reinterpret_cast<const char *>(map.address) + from + column * map.element_bytes,
               map.element_bytes);
      else
        memset(window + to, 0, map.element_bytes);
    }
  }
}

}  // namespace

void tensor_load(const void *address, void *shared, uint64_t *barrier, const int (&at)[5], int rank, unsigned blocks) {
  maybe_yield();
  fake_tensor_map_t map;
  memcpy(&map, address, sizeof map);
  const size_t offset = ptx::shared_address(shared);
  if (map.magic != ~(uint64_t)0 || map.rank != rank) fail("no tensor map of %d dimensions", rank);
  if (map.swizzle != 0 && map.swizzle != 3) fail("swizzle %d is not emulated", map.swizzle);
  if (offset % (map.swizzle == 3 ? 1024 : 128) != 0) fail("a box begins at %zu, which the swizzle forbids", offset);
  size_t bytes = map.element_bytes;
  for (int d = 0; d < rank; d++) bytes *= map.box[d];
  if (offset + bytes > kDynamicOffset + current->block->grid->shared_bytes) fail("a box goes past shared memory");
  std::vector<std::pair<char *, char *>> targets; /* windows, and barriers */
  const size_t counted = ptx::shared_address(barrier);
  for (size_t b = 0; b < current->block->cluster->blocks.size(); b++) {
    char *window = current->block->cluster->blocks[b]->window;
    if (blocks == 0 ? window == current->block->window : (blocks >> b & 1) != 0)
      targets.emplace_back(window, window + counted);
  }
  const std::array<int, 5> begin = {at[0], at[1], at[2], at[3], at[4]};
  for (const auto &target : targets)
    do_later([=] {
      load_box(map, target.first, offset, begin);
      Barrier::at(target.second).complete((int64_t)bytes);
    });
}

/* ---- matrices ---- */

uint32_t to_bf16(float x) {
  const uint32_t bits = emulated_bits<uint32_t>(x);
  if (isnan(x)) return 0x7FFF;
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

namespace {

float from_bf16(uint16_t x) { return emulated_bits<float>((uint32_t)x << 16); }

/* As tensor cores add: toward zero. */
float add_products(float sum, double products) {
  const double exact = (double)sum + products;
  float rounded = (float)exact;
  if (fabs((double)rounded) > fabs(exact) && !isinf(rounded)) rounded = nextafterf(rounded, 0.0f);
  return rounded;
}

struct LaneMatrices {
  uint32_t shared;
  uint32_t *r;
};

struct LaneMma {
  float *d;
  const uint32_t *a;
  uint32_t b[2];
};

uint16_t half_of(uint32_t pair, int i) { return (uint16_t)(pair >> (16 * i)); }

}  // namespace

void matrices(const char *what, uint32_t shared, uint32_t (&r)[4], bool stores, bool transposed) {
  if (shared % 16 != 0) fail("%s at %u, not at a multiple of 16", what, shared);
  LaneMatrices own = {shared, r};
  meet(current->warp->meeting, what, current->rank % 32, 32, &own, [&](void **all) {
    for (int m = 0; m < 4; m++)
      for (int row = 0; row < 8; row++) {
        uint16_t *line =
            reinterpret_cast<uint16_t *>(ptx::from_shared(static_cast<LaneMatrices *>(all[m * 8 + row])->shared));
        for (int column = 0; column < 8; column++) {
          const int major = transposed ? column : row, minor = transposed ? row : column;
          uint32_t &pair = static_cast<LaneMatrices *>(all[major * 4 + minor / 2])->r[m];
          const int shift = minor % 2 * 16;
          if (stores)
            line[column] = (uint16_t)(pair >> shift);
          else
            pair = (pair & ~(0xFFFFu << shift)) | (uint32_t)line[column] << shift;
        }
      }
  });
}

void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  LaneMma own = {d, a, {b0, b1}};
  meet(current->warp->meeting, "mma", current->rank % 32, 32, &own, [](void **all) {
    float result[32][4];
    for (int lane = 0; lane < 32; lane++)
      for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double products = 0;
        for (int k = 0; k < 16; k++) {
          const LaneMma &of_a = *static_cast<LaneMma *>(all[row % 8 * 4 + k % 8 / 2]),
                        &of_b = *static_cast<LaneMma *>(all[column * 4 + k % 8 / 2]);
          products += (double)from_bf16(half_of(of_a.a[row / 8 + k / 8 * 2], k % 2)) *
                      (double)from_bf16(half_of(of_b.b[k / 8], k % 2));
        }
        result[lane][i] = add_products(static_cast<LaneMma *>(all[lane])->d[i], products);
      }
    for (int lane = 0; lane < 32; lane++)
      memcpy(static_cast<LaneMma *>(all[lane])->d, result[lane], sizeof result[lane]);
  });
}

namespace {

/* Rows of 16 elements along K of an operand in the 128-byte swizzle. */
void read_operand(const char *window, uint64_t descriptor, int rows, double *to, int row_step, int k_step) {
  const uint32_t start = (uint32_t)(descriptor & 0x3FFF) << 4;
  for (int row = 0; row < rows; row++)
    for (int k = 0; k < 16; k++) {
      uint32_t at = start + (uint32_t)(row * 128 + k * 2);
      at ^= (at >> 7 & 7) << 4;
      uint16_t bits;
      memcpy(&bits, window + at, sizeof bits);
      to[row * row_step + k * k_step] = (double)from_bf16(bits);
    }
}

/* The same instruction of the 128 threads of a warpgroup. */
void multiply(void **all, size_t group, size_t i) {
  auto of = [&](int thread) -> const Wgmma & { return static_cast<Thread *>(all[thread])->groups[group][i]; };
  const Wgmma first = of(0);
  for (int t = 1; t < 128; t++)
    if (of(t).a != first.a || of(t).b != first.b || of(t).n != first.n || of(t).accumulate != first.accumulate)
      fail("threads of a warpgroup give wgmma different operands");
  static double a[64 * 16], b[16 * 256], products[64 * 256];
  const int n = first.n;
  read_operand(current->block->window, first.a, 64, a, 16, 1);
  read_operand(current->block->window, first.b, n, b, 1, n);
  for (int row = 0; row < 64; row++) {
    double *sum = products + row * n;
    std::fill(sum, sum + n, 0.0);
    for (int k = 0; k < 16; k++)
      for (int column = 0; column < n; column++) sum[column] += a[row * 16 + k] * b[k * n + column];
  }
  for (int t = 0; t < 128; t++) {
    const Wgmma &own = of(t);
    for (int j = 0; j < n / 2; j++) {
      const int row = t / 32 * 16 + t % 32 / 4 + j / 2 % 2 * 8, column = j / 4 * 8 + t % 4 * 2 + j % 2;
      own.d[j] = add_products(own.accumulate ? own.d[j] : 0.0f, products[row * n + column]);
    }
  }
}

}  // namespace

void multiply_groups(int pending) {
  meet(current->warpgroup->meeting, "wgmma.wait_group", current->rank % 128, 128, current, [pending](void **all) {
    const size_t num = current->groups.size();
    for (int t = 0; t < 128; t++)
      if (static_cast<Thread *>(all[t])->groups.size() != num)
        fail("threads of a warpgroup have committed different numbers of groups");
    for (size_t left = num; left > (size_t)pending; left--) {
      for (size_t i = 0; i < current->groups[0].size(); i++) multiply(all, 0, i);
      for (int t = 0; t < 128; t++) {
        auto &groups = static_cast<Thread *>(all[t])->groups;
        groups.erase(groups.begin());
      }
    }
  });
}

}  // namespace machine

void __syncwarp(unsigned mask) {
  using namespace machine;
  meet(current->warp->meeting, "__syncwarp", current->rank % 32, lanes_of(mask), current, [](void **) {});
}

void __syncthreads() {
  machine::Block &block = *machine::current->block;
  const uint32_t generation = block.generation;
  block.arrived++;
  /* Threads that have ended count as if they had come. */
  machine::wait_until("__syncthreads", &block, 0, [&] {
    if (block.generation == generation && block.arrived >= block.alive) {
      block.arrived = 0;
      block.generation++;
      machine::wake(block, &block);
    }
    return block.generation != generation;
  });
}

namespace ptx {

void cluster_sync_acq_rel() {
  machine::Cluster &cluster = *machine::current->block->cluster;
  const uint32_t generation = cluster.generation;
  cluster.arrived++;
  machine::wait_until("barrier.cluster", &cluster, 0, [&] {
    if (cluster.generation == generation && cluster.arrived >= cluster.alive) {
      cluster.arrived = 0;
      cluster.generation++;
      machine::wake(cluster, &cluster);
    }
    return cluster.generation != generation;
  });
}

void set_registers(int count) {
  machine::Block &block = *machine::current->block;
  machine::current->warpgroup->registers = count;
  int sum = 0;
  bool all = true;
  for (const machine::Warpgroup &group : block.warpgroups) {
    sum += group.registers;
    all = all && group.registers != 0;
  }
  const int most = 65536 / ((int)block.threads.size()) / 8 * 8 * (int)block.warpgroups.size();
  if (all && sum > most)
    machine::fail("setmaxnreg: %d registers for each thread of the warpgroups together, %d are there", sum, most);
}

}  // namespace ptx
