/* The instructions of kernels/ptx.cuh, kernels/bulk.cuh and kernels/sm90a/wgmma.cuh on the emulated machine, under the
 * same names. What an instruction starts and somebody waits for later happens as late as it may, or at any time before:
 * who reads too early, or frees what is still read, is found out. */
#ifndef PURR_EMULATED_PTX_H
#define PURR_EMULATED_PTX_H

/* In place of the real ones. */
#define PURR_KERNELS_PTX_CUH
#define PURR_KERNELS_BULK_CUH
#define PURR_KERNELS_SM90A_WGMMA_CUH
#define PURR_HAS_MBARRIER 1
#define PURR_HAS_CLUSTERS 1
#define PURR_HAS_WGMMA 1

#include "grid.h"

namespace machine {

/* An mbarrier: 8 bytes of shared memory. */
struct Barrier {
  int64_t tx : 26;      /* bytes that are still to come */
  int64_t pending : 14; /* arrivals that are */
  uint64_t expected : 14;
  uint64_t phase : 1;
  uint64_t magic : 9;

  static constexpr unsigned kMagic = 0x155;
  static Barrier &at(void *address);
  void arrive(int count);
  void complete(int64_t bytes);

 private:
  void end_of_phase();
};

char *of_block(const void *shared, int block); /* the same place in that block of the cluster */
void tensor_load(const void *map, void *shared, uint64_t *barrier, const int (&at)[5], int rank, unsigned blocks);
void multiply_groups(int pending);
void matrices(const char *what, uint32_t shared, uint32_t (&r)[4], bool stores, bool transposed);
void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
void copy_now(const std::vector<Copy> &copies);
void copy_pending(std::vector<std::vector<Copy>> &groups, int pending);
uint32_t to_bf16(float x);

}  // namespace machine

namespace ptx {

using machine::current;

inline uint32_t shared_address(const void *pointer) {
  const ptrdiff_t at = static_cast<const char *>(pointer) - current->block->window;
  if (at < 0 || at >= (ptrdiff_t)machine::kWindowBytes) machine::fail("an address that is not of shared memory");
  return (uint32_t)at;
}
inline char *from_shared(uint32_t address) {
  if (address < machine::kDynamicOffset || address >= machine::kDynamicOffset + current->block->grid->shared_bytes)
    machine::fail("address %u lies outside of the block's shared memory", address);
  return current->block->window + address;
}

template <typename T, int kAlignment = 16>
inline T *dynamic_shared() {
  return reinterpret_cast<T *>(current->block->window + machine::kDynamicOffset);
}

/* ---- asynchronous copies of a thread ---- */

inline void cp_async_16_zfill(uint32_t shared, const void *global, bool valid) {
  current->copies.push_back({from_shared(shared), global, valid ? 16u : 0u, valid ? 0u : 16u});
}
inline void cp_async_commit() {
  current->copy_groups.push_back(std::move(current->copies));
  current->copies.clear();
}
template <int kPending>
inline void cp_async_wait() {
  machine::maybe_yield();
  machine::copy_pending(current->copy_groups, kPending);
}

/* ---- matrices of a warp ---- */

inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t shared) { machine::matrices("ldmatrix", shared, r, false, false); }
inline void stmatrix_x4(uint32_t shared, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  uint32_t r[4] = {r0, r1, r2, r3};
  machine::matrices("stmatrix", shared, r, true, false);
}
inline void stmatrix_x4_trans(uint32_t shared, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  uint32_t r[4] = {r0, r1, r2, r3};
  machine::matrices("stmatrix.trans", shared, r, true, true);
}
inline void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  machine::mma(d, a, b0, b1);
}

/* ---- words in memory ---- */

template <typename T>
inline T load_word(const T *address) {
  machine::yield(); /* who asks again and again lets the others go on */
  const T value = *(const volatile T *)address;
  machine::polled(address, (uint64_t)value);
  return value;
}
inline void red_add_release_gpu(int32_t *address, int32_t value) {
  machine::maybe_yield();
  *address += value;
}
inline int32_t ld_acquire_gpu(const int32_t *address) { return load_word(address); }
inline void st_release_sys(uint64_t *address, uint64_t value) {
  machine::maybe_yield();
  *address = value;
}
inline uint64_t ld_acquire_sys(const uint64_t *address) { return load_word(address); }
inline int ld_acquire_shared(const int *address) { return load_word(address); }
inline void red_add_release_shared(int *address, int value) {
  machine::maybe_yield();
  *address += value;
}
inline uint64_t global_timer_ns() { return machine::nanoseconds(); }
inline uint64_t global_timer_ns_unordered() { return machine::nanoseconds(); }
inline uint64_t clock_64() { return machine::nanoseconds(); }
inline uint32_t clock_32() { return (uint32_t)machine::nanoseconds(); }
inline uint32_t sm_id() { return (uint32_t)current->block->sm; }

/* ---- elements ---- */

inline float ex2_approx(float x) { return exp2f(x); }
inline float rcp_approx(float x) { return 1.0f / x; }
inline float min_nan(float a, float b) { return isnan(a) || isnan(b) ? NAN : fminf(a, b); }
inline float max_nan(float a, float b) { return isnan(a) || isnan(b) ? NAN : fmaxf(a, b); }
inline uint32_t pack_bf16x2(float low, float high) { return machine::to_bf16(low) | machine::to_bf16(high) << 16; }
inline float low_bf16(uint32_t packed) { return __uint_as_float(packed << 16); }
inline float high_bf16(uint32_t packed) { return __uint_as_float(packed & 0xFFFF0000u); }
template <typename T>
inline void hold_back(T &) {}

/* ---- 16 bytes ---- */

inline uint4 ld_16_streaming(const void *global) { return *static_cast<const uint4 *>(global); }
inline void prefetch_l2(const void *) {}
inline void st_16(void *global, uint4 v) { *static_cast<uint4 *>(global) = v; }
inline uint4 ld_shared_16(uint32_t shared) { return *reinterpret_cast<const uint4 *>(from_shared(shared)); }

/* ---- mbarriers ---- */

inline void mbarrier_init(uint64_t *barrier, uint32_t arrivals) {
  machine::Barrier b = {};
  b.pending = b.expected = arrivals;
  b.magic = machine::Barrier::kMagic;
  memcpy(barrier, &b, sizeof b);
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive_release(uint64_t *barrier, uint32_t count = 1) {
  machine::maybe_yield();
  machine::Barrier::at(barrier).arrive((int)count);
}
inline void mbarrier_arrive_release_cta_at(uint64_t *barrier, uint32_t rank) {
  machine::maybe_yield();
  machine::Barrier::at(machine::of_block(barrier, (int)rank)).arrive(1);
}
inline void mbarrier_arrive_expect_tx(uint64_t *barrier, uint32_t bytes) {
  machine::maybe_yield();
  machine::Barrier &b = machine::Barrier::at(barrier);
  b.tx += bytes;
  b.arrive(1);
}
inline void cp_async_mbarrier_arrive_noinc(uint64_t *barrier) {
  machine::do_later([barrier, copies = std::move(current->copies)] {
    machine::copy_now(copies);
    machine::Barrier::at(barrier).arrive(1);
  });
  current->copies.clear();
}
inline void mbarrier_wait_acquire(uint64_t *barrier, uint32_t parity) {
  const machine::Barrier &b = machine::Barrier::at(barrier);
  machine::maybe_yield();
  machine::wait_until("an mbarrier", &b, parity, [&b, parity] { return b.phase != parity; });
}
inline bool mbarrier_test_acquire(uint64_t *barrier, uint32_t parity) {
  machine::yield();
  return machine::Barrier::at(barrier).phase != parity;
}
inline void st_async_16(void *shared, uint64_t *barrier, uint32_t rank, int4 v) {
  char *to = machine::of_block(shared, (int)rank), *counted = machine::of_block(barrier, (int)rank);
  machine::do_later([=] {
    memcpy(to, &v, sizeof v);
    machine::Barrier::at(counted).complete(16);
  });
}

/* ---- the copy engine ---- */

inline void tma_load_2d(void *shared, const void *map, uint64_t *barrier, int x, int y) {
  machine::tensor_load(map, shared, barrier, {x, y, 0, 0, 0}, 2, 0);
}
inline void tma_load_3d(void *shared, const void *map, uint64_t *barrier, int x, int y, int z) {
  machine::tensor_load(map, shared, barrier, {x, y, z, 0, 0}, 3, 0);
}
inline void tma_load_5d(void *shared, const void *map, uint64_t *barrier, int x, int y, int z, int w, int v) {
  machine::tensor_load(map, shared, barrier, {x, y, z, w, v}, 5, 0);
}
inline void tma_load_2d_multicast(void *shared, const void *map, uint64_t *barrier, int x, int y, uint16_t blocks) {
  machine::tensor_load(map, shared, barrier, {x, y, 0, 0, 0}, 2, blocks);
}
inline void tma_load_3d_multicast(void *shared, const void *map, uint64_t *barrier, int x, int y, int z,
                                  uint16_t blocks) {
  machine::tensor_load(map, shared, barrier, {x, y, z, 0, 0}, 3, blocks);
}
inline void fence_proxy_tensormap_acquire_sys(const void *) {}
inline void bulk_load(void *shared, const void *global, uint32_t bytes, uint64_t *barrier) {
  if (((uintptr_t)global | bytes | shared_address(shared)) % 16 != 0) machine::fail("bulk_load is not of 16 bytes");
  machine::do_later([=] {
    memcpy(shared, global, bytes);
    machine::Barrier::at(barrier).complete(bytes);
  });
}
inline void bulk_store(void *global, const void *shared, uint32_t bytes) {
  if (((uintptr_t)global | bytes | shared_address(shared)) % 16 != 0) machine::fail("bulk_store is not of 16 bytes");
  current->bulk_stores.push_back({global, shared, bytes, 0});
}
inline void bulk_commit() {
  current->bulk_groups.push_back(std::move(current->bulk_stores));
  current->bulk_stores.clear();
}
template <int kPending>
inline void bulk_wait_read() {
  machine::maybe_yield();
  machine::copy_pending(current->bulk_groups, kPending);
}
template <int kPending>
inline void bulk_wait() {
  bulk_wait_read<kPending>();
}
inline void fence_proxy_async_global() { machine::maybe_yield(); }
inline void fence_proxy_async_shared() {}

/* ---- clusters ---- */

inline uint32_t cluster_block_rank() { return (uint32_t)current->block->rank; }
void cluster_sync_acq_rel();

/* ---- the tensor cores of a warpgroup ---- */

void set_registers(int count);
template <int kRegisters>
inline void setmaxnreg_inc() {
  set_registers(kRegisters);
}
template <int kRegisters>
inline void setmaxnreg_dec() {
  set_registers(kRegisters);
}
inline void wgmma_fence() {}
inline void wgmma_commit() {
  current->groups.push_back(std::move(current->wgmmas));
  current->wgmmas.clear();
}
template <int kPending>
inline void wgmma_wait() {
  machine::multiply_groups(kPending);
}
inline uint64_t wgmma_descriptor_128b(uint32_t shared) {
  if (shared % 1024 != 0) machine::fail("an operand of wgmma begins at %u, not at a multiple of 1024", shared);
  return (shared & 0x3FFFF) >> 4;
}
template <int kN>
inline void wgmma_m64nNk16_bf16(float *d, uint64_t a, uint64_t b, bool accumulate) {
  current->wgmmas.push_back({d, a, b, kN, accumulate});
}

}  // namespace ptx

#endif
