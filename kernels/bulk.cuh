/* SPDX-License-Identifier: Apache-2.0
 *
 * Bulk copies between global and shared memory, sm_90: one function for each PTX instruction, as in ptx.cuh. They need
 * no tensor map and reach the memory of peers. Addresses and sizes are multiples of 16 bytes. */
#ifndef PURR_KERNELS_BULK_CUH
#define PURR_KERNELS_BULK_CUH

#include "ptx.cuh"

#ifdef PURR_HAS_MBARRIER
namespace ptx {

/* To shared memory; the bytes are counted on the barrier. */
__device__ __forceinline__ void bulk_load(void *shared, const void *global, uint32_t bytes, uint64_t *barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

/* From shared memory; belongs to the thread's open group. */
__device__ __forceinline__ void bulk_store(void *global, const void *shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared_address(shared)),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/* Waits until at most `kPending` groups of this thread still read shared memory. */
template <int kPending>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/* Waits until the stores of all groups of this thread but the last `kPending` are complete. */
template <int kPending>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace ptx
#endif

#endif
