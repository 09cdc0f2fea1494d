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
#define PURR_KERNEL_ROLE(role, params, shapes) using of_##role = params;
#include "kernels/roles.def"
#undef PURR_KERNEL_ROLE

/* The quantiser is written in PTX itself: it cannot be compiled for the host. */
extern "C" void purr_quantize_mxfp8(of_quantize_mxfp8) { machine::fail("there is no emulation of PTX"); }

#define PURR_KERNEL(entry, role, source, target, arch, threads, shared_bytes, cluster, tile_m, tile_n) \
  extern "C" void entry(of_##role);
#include "kernels/kernels.def"
#undef PURR_KERNEL

#define PURR_OLDER(entry)                           \
  extern "C" void entry##_800(purr__gemm_params_t); \
  extern "C" void entry##_890(purr__gemm_params_t);
PURR_OLDER(purr_gate_up)
PURR_OLDER(purr_down)
#undef PURR_OLDER

namespace machine {

const Kernel *find_kernel(const char *name, int cc) {
#define OLDER(entry, params) kernel<params, entry##_800>(#entry, 1), kernel<params, entry##_890>(#entry, 1)
  static const Kernel older[] = {OLDER(purr_gate_up, purr__gemm_params_t), OLDER(purr_down, purr__gemm_params_t)};
#undef OLDER
  const int variant = cc == 80 ? 0 : cc == 86 || cc == 89 || cc == 120 ? 1 : -1;
  for (size_t i = 0; i < sizeof older / sizeof older[0] && variant >= 0; i++)
    if ((int)(i % 2) == variant && strcmp(older[i].name, name) == 0) return &older[i];
  static const Kernel kernels[] = {
#define PURR_KERNEL(entry, role, source, target, arch, threads, shared_bytes, cluster, tile_m, tile_n) \
  kernel<of_##role, entry>(#entry, cluster),
#include "kernels/kernels.def"
#undef PURR_KERNEL
  };
  for (const Kernel &one : kernels)
    if (strcmp(one.name, name) == 0) return &one;
  return nullptr;
}

}  // namespace machine
