/* The kernels that the machine knows: those of the package, compiled for the host. */
#include <string.h>

#include "cuda.h"
#include "grid.h"
#include "kernels/layout.h"

namespace {

using machine::Kernel;

template <typename Params, void (*kEntry)(Params)>
constexpr Kernel kernel(const char *name, unsigned cluster) {
  return {name,
          [](void **params) -> std::shared_ptr<void> {
            void *copy = aligned_alloc(alignof(Params) < 64 ? 64 : alignof(Params), (sizeof(Params) + 63) / 64 * 64);
            memcpy(copy, params[0], sizeof(Params));
            return std::shared_ptr<void>(copy, free);
          },
          [](const void *params) { kEntry(*static_cast<const Params *>(params)); }, cluster};
}

}  // namespace

/* What kernels of a role are given. */
#define OF_schedule_count purr__schedule_params_t
#define OF_schedule_place purr__schedule_params_t
#define OF_unit_list purr__schedule_params_t
#define OF_gate_up purr__gemm_params_t
#define OF_down purr__gemm_params_t
#define OF_gate_up_promoted purr__gemm_params_t
#define OF_down_promoted purr__gemm_params_t
#define OF_gate_up_tma purr__gemm_tma_params_t
#define OF_down_tma purr__gemm_tma_params_t
#define OF_gate_up_tma_promoted purr__gemm_tma_params_t
#define OF_down_tma_promoted purr__gemm_tma_params_t
#define OF_forward purr__forward_params_t
#define OF_forward_traced purr__forward_params_t
#define OF_forward_promoted purr__forward_params_t
#define OF_forward_promoted_traced purr__forward_params_t
#define OF_slot_sum purr__slot_sum_params_t
#define OF_exchange purr__exchange_params_t
#define OF_barrier purr__barrier_params_t

/* The quantiser is written in PTX itself: it cannot be compiled for the host. */
#define OF_quantize_mxfp8 void *
extern "C" void purr_quantize_mxfp8(void *) { machine::fail("there is no emulation of PTX"); }

#define PURR_KERNEL(entry, role, source, target, arch, threads, shared_bytes, cluster, tile_m, tile_n) \
  extern "C" void entry(OF_##role);
#include "kernels/kernels.def"
#undef PURR_KERNEL

namespace machine {

const Kernel *find_kernel(const char *name) {
  static const Kernel kernels[] = {
#define PURR_KERNEL(entry, role, source, target, arch, threads, shared_bytes, cluster, tile_m, tile_n) \
  kernel<OF_##role, entry>(#entry, cluster),
#include "kernels/kernels.def"
#undef PURR_KERNEL
  };
  for (const Kernel &one : kernels)
    if (strcmp(one.name, name) == 0) return &one;
  return nullptr;
}

}  // namespace machine
