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

namespace machine {

const Kernel *find_kernel(const char *name) {
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
