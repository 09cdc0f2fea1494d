/* SPDX-License-Identifier: Apache-2.0
 *
 * One function per PTX instruction. Names follow the instruction; where memory order matters they spell it: ld_acquire,
 * arrive_release. No kernel holds inline assembly of its own. */
#ifndef PURR_KERNELS_PTX_CUH
#define PURR_KERNELS_PTX_CUH

#include <stdint.h>

/* The host's pass over a .cu file sees everything. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define PURR_HAS_MBARRIER 1
#define PURR_HAS_CLUSTERS 1
#endif
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PURR_HAS_WGMMA 1
#endif

namespace ptx {

__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
  return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* The dynamic shared memory of the block. */
template <typename T, int kAlignment = 16>
__device__ __forceinline__ T *dynamic_shared() {
  extern __shared__ __align__(kAlignment) char memory[];
  return reinterpret_cast<T *>(memory);
}

/* ------------------------------------------------------------------------------------- asynchronous copies, sm_80 */

/* Copies 16 bytes to shared memory, past L1. With `valid` false nothing is read and zeros are written. */
__device__ __forceinline__ void cp_async_16_zfill(uint32_t shared, const void *global, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Waits until at most `kPending` groups of this thread are under way. */
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/* ---------------------------------------------------------------------------------------- warp matrix math, sm_80 */

/* Four 8x8 matrices of 16-bit elements: lane l gives the address of row l mod 8 of matrix l / 8. */
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

/* d[16 x 8] += a[16 x 16] . b[8 x 16]^T, BF16 operands, FP32 accumulation. */
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ------------------------------------------------------------------------------------------------- memory of a device
 */

__device__ __forceinline__ void red_add_release_gpu(int32_t *address, int32_t value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ int32_t ld_acquire_gpu(const int32_t *address) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

/* --------------------------------------------------------------------------------------------- memory between ranks */

__device__ __forceinline__ void st_release_sys(uint64_t *address, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

__device__ __forceinline__ uint64_t ld_acquire_sys(const uint64_t *address) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ uint64_t global_timer_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  return ns;
}

/* For timelines: not ordered with memory accesses. */
__device__ __forceinline__ uint64_t global_timer_ns_unordered() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}
__device__ __forceinline__ uint64_t clock_64() { return clock64(); }
__device__ __forceinline__ uint32_t clock_32() { return (uint32_t)clock(); }

__device__ __forceinline__ uint32_t sm_id() {
  uint32_t sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  return sm;
}

/* ------------------------------------------------------------------------------------------------- math, elements */

__device__ __forceinline__ float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float rcp_approx(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* A NaN on either side gives NaN. */
__device__ __forceinline__ float min_nan(float a, float b) {
  float c;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}

__device__ __forceinline__ float max_nan(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}

/* Two BF16, `low` in the low half, rounded to nearest even. */
__device__ __forceinline__ uint32_t pack_bf16x2(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ __forceinline__ float low_bf16(uint32_t packed) { return __uint_as_float(packed << 16); }
__device__ __forceinline__ float high_bf16(uint32_t packed) { return __uint_as_float(packed & 0xFFFF0000u); }

/* A value that the compiler may not compute with before this point. */
__device__ __forceinline__ void hold_back(int &value) { asm volatile("" : "+r"(value)); }
__device__ __forceinline__ void hold_back(float &value) { asm volatile("" : "+f"(value)::"memory"); }

/* -------------------------------------------------------------------------------------------------- global memory */

/* 16 bytes that are read once: do not keep them in L1. */
__device__ __forceinline__ uint4 ld_16_streaming(const void *global) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(global));
  return v;
}

__device__ __forceinline__ void prefetch_l2(const void *global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

/* Shared memory of the block. */
__device__ __forceinline__ int ld_acquire_shared(const int *address) {
  int value;
  asm volatile("ld.acquire.cta.shared::cta.s32 %0, [%1];" : "=r"(value) : "r"(shared_address(address)) : "memory");
  return value;
}

__device__ __forceinline__ void red_add_release_shared(int *address, int value) {
  asm volatile("red.release.cta.shared::cta.add.s32 [%0], %1;" ::"r"(shared_address(address)), "r"(value) : "memory");
}

__device__ __forceinline__ void st_16(void *global, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ __forceinline__ uint4 ld_shared_16(uint32_t shared) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared)
               : "memory");
  return v;
}

#ifdef PURR_HAS_MBARRIER
/* Four 8x8 matrices of 16-bit elements to shared memory: lane l gives the address of row l mod 8 of matrix l / 8. */
__device__ __forceinline__ void stmatrix_x4(uint32_t shared, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}

/* The same, each matrix transposed on its way. */
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t shared, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}

/* ----------------------------------------------------------------------------------------------- mbarriers, sm_90 */

__device__ __forceinline__ void mbarrier_init(uint64_t *barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

/* Makes barrier initialisation visible to the block's other threads and to the asynchronous units. */
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive_release(uint64_t *barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/* Arrives at the same barrier of block `rank` of the cluster. Orders this thread's accesses for its own block only:
 * what the other block learns is that they are over. A release at cluster scope would cost a memory barrier each time.
 */
__device__ __forceinline__ void mbarrier_arrive_release_cta_at(uint64_t *barrier, uint32_t rank) {
  asm volatile(
      "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1;"
      "mbarrier.arrive.release.cta.shared::cluster.b64 _, [remote]; }" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

/* Arrives once all earlier cp.async of this thread have completed; takes one of the expected arrivals. */
__device__ __forceinline__ void cp_async_mbarrier_arrive_noinc(uint64_t *barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/* Arrives, and makes the phase wait for `bytes` more from the copy engine. */
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t *barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

/* One box of a matrix to shared memory; its bytes are counted on the barrier. Coordinates fastest first. */
__device__ __forceinline__ void tma_load_2d(void *shared, const void *map, uint64_t *barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
          "r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
      : "memory");
}

__device__ __forceinline__ void tma_load_3d(void *shared, const void *map, uint64_t *barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}

/* The same to the same place in each block of the cluster that `blocks` has a bit for; counted on the barrier of each.
 */
__device__ __forceinline__ void tma_load_3d_multicast(void *shared, const void *map, uint64_t *barrier, int x, int y,
                                                      int z, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "h"(blocks)
      : "memory");
}

__device__ __forceinline__ void tma_load_2d_multicast(void *shared, const void *map, uint64_t *barrier, int x, int y,
                                                      uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "h"(blocks)
      : "memory");
}

__device__ __forceinline__ void tma_load_5d(void *shared, const void *map, uint64_t *barrier, int x, int y, int z,
                                            int w, int v) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v)
      : "memory");
}

/* Before the first use of a map that was copied to global memory: another may have stood there before. */
__device__ __forceinline__ void fence_proxy_tensormap_acquire_sys(const void *map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory");
}

/* Waits until the phase with this parity has completed. */
__device__ __forceinline__ void mbarrier_wait_acquire(uint64_t *barrier, uint32_t parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "WAIT: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra WAIT;\n"
      "DONE: }" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

/* The same without waiting: whether it has completed. */
__device__ __forceinline__ bool mbarrier_test_acquire(uint64_t *barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{ .reg .pred done; mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 done, [%1], %2;"
      "selp.u32 %0, 1, 0, done; }"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

/* `count` of the expected arrivals. */
__device__ __forceinline__ void mbarrier_arrive_release(uint64_t *barrier, uint32_t count) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
               : "memory");
}

/* 16 bytes to the same place in block `rank` of the cluster, counted on the same barrier there. */
__device__ __forceinline__ void st_async_16(void *shared, uint64_t *barrier, uint32_t rank, int4 v) {
  asm volatile(
      "{ .reg .b32 to, counted; mapa.shared::cluster.u32 to, %0, %2; mapa.shared::cluster.u32 counted, %1, %2;"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [to], {%3, %4, %5, %6}, [counted]; }" ::"r"(
          shared_address(shared)),
      "r"(shared_address(barrier)), "r"(rank), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
      : "memory");
}

/* Orders this thread's ordinary accesses to global memory before later ones of the copy engine, and the other way. */
__device__ __forceinline__ void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

__device__ __forceinline__ uint32_t cluster_block_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/* All threads of the cluster meet. */
__device__ __forceinline__ void cluster_sync_acq_rel() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Orders this thread's view of shared memory, as ordinary accesses and cp.async wrote it, before later reads by the
 * tensor cores (the async proxy). */
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#endif

#ifdef PURR_HAS_WGMMA
/* ---------------------------------------------------------------------------------- warpgroup matrix math, sm_90a */

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/* Waits until at most `kPending` groups of this warpgroup are under way. */
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/* Operand tile in shared memory: rows of 128 bytes along K, 16-byte chunks swizzled by row mod 8, 8-row groups 1024
 * bytes apart, base at a multiple of 1024. */
__device__ __forceinline__ uint64_t wgmma_descriptor_128b(uint32_t shared) {
  return (uint64_t)((shared & 0x3FFFF) >> 4) | ((uint64_t)1 << 16) | ((uint64_t)(1024 >> 4) << 32) |
         ((uint64_t)1 << 62);
}
#endif

}  // namespace ptx

#endif
