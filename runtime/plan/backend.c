/* Which backend serves a layer, and the device and kernels it uses. Whatever was not taken, `purr plan` says why. */
#include <stdio.h>

#include "kernels/layout.h"
#include "package/package.h"
#include "plan/plan.h"
#include "plan/stages.h"

const char *purr__backend_name(int32_t backend) {
  switch (backend) {
    case PURR_BACKEND_HOST:
      return "host";
    case PURR_BACKEND_STAGED:
      return "staged";
    case PURR_BACKEND_MEGA:
      return "mega";
    default:
      return "auto";
  }
}

/* ---- long sums ---- */

/* Tensor cores truncate when they add to an accumulator. Up to so many products that stays within 0.1 % of exact sums
 * with the same rounding points; beyond, partial sums are promoted to FP32 registers, which costs speed. */
#define MOST_UNPROMOTED_PRODUCTS 2048

static int64_t longest_sum(const purr_plan_t *plan) {
  const purr_layer_desc_t *layer = &plan->layer;
  return purr__max(purr__max(layer->hidden_size, layer->intermediate_size), layer->shared_intermediate_size);
}

#define SUMS_BYTES 128

/* How the GEMMs of a GPU backend add, and why. */
static const char *describe_sums(const purr_plan_t *plan, char text[SUMS_BYTES]) {
  const long long longest = longest_sum(plan);
  if (plan->kernels.promotes)
    snprintf(text, SUMS_BYTES, "promoted to FP32 every %d products: sums have up to %lld, more than %d",
             PURR__PROMOTED_K, longest, MOST_UNPROMOTED_PRODUCTS);
  else
    snprintf(text, SUMS_BYTES, "not promoted: sums have up to %lld products, no more than %d", longest,
             MOST_UNPROMOTED_PRODUCTS);
  return text;
}

/* ---- staged ---- */

static purr__shape_t shape_of(const purr_plan_t *plan) {
  const purr_layer_desc_t *layer = &plan->layer;
  return (purr__shape_t){.dims = {[PURR__DIM_HIDDEN_SIZE] = layer->hidden_size,
                                  [PURR__DIM_INTERMEDIATE_SIZE] = layer->intermediate_size,
                                  [PURR__DIM_SHARED_INTERMEDIATE_SIZE] = layer->shared_intermediate_size,
                                  [PURR__DIM_NUM_EXPERTS] = layer->num_experts,
                                  [PURR__DIM_TOP_K] = layer->top_k,
                                  [PURR__DIM_MAX_TOKENS] = layer->max_tokens,
                                  [PURR__DIM_NUM_RANKS] = layer->num_ranks}};
}

/* A pinned package: no kernel may come from another. */
static purr_status_t check_pin(const purr_plan_t *plan, const purr__kernel_t *kernel, purr_error_t *err) {
  char digest[PURR__SHA256_TEXT_BYTES];
  purr__sha256_print(kernel->package->manifest.sha256, digest);
  if (plan->texts.package_digest[0] == '\0' || strcmp(digest, plan->texts.package_digest) == 0) return PURR_STATUS_OK;
  return purr__fail(err, PURR_STATUS_INCOMPATIBLE_BINARY,
                    "layer '%s' pins package_digest %.16s..., but kernel %.64s comes from package '%s' with %.16s...; "
                    "install the pinned package, or change the pin",
                    plan->name, plan->texts.package_digest, kernel->entry->entry, kernel->package->manifest.name,
                    digest);
}

/* The kernels of the staged backend. Those that need the copy engine may be missing. */
static purr_status_t find_staged_kernels(purr_plan_t *plan, const purr__kernels_t *kernels, purr_error_t *err) {
  const purr__shape_t shape = shape_of(plan);
  const bool promotes = longest_sum(plan) > MOST_UNPROMOTED_PRODUCTS;
  plan->kernels.promotes = promotes;
  const struct {
    const char *role;
    uint64_t params_bytes;
    const purr__kernel_t **kernel;
    bool is_optional;
  } needs[] = {
      {"schedule_count", sizeof(purr__schedule_params_t), &plan->kernels.schedule_count, false},
      {"schedule_place", sizeof(purr__schedule_params_t), &plan->kernels.schedule_place, false},
      {promotes ? "gate_up_promoted" : "gate_up", sizeof(purr__gemm_params_t), &plan->kernels.gate_up, false},
      {promotes ? "down_promoted" : "down", sizeof(purr__gemm_params_t), &plan->kernels.down, false},
      {"slot_sum", sizeof(purr__slot_sum_params_t), &plan->kernels.slot_sum, false},
      {"exchange", sizeof(purr__exchange_params_t), &plan->kernels.exchange, false},
      {"barrier", sizeof(purr__barrier_params_t), &plan->kernels.barrier, false},
      {promotes ? "gate_up_tma_promoted" : "gate_up_tma", sizeof(purr__gemm_tma_params_t), &plan->kernels.gate_up_tma,
       true},
      {promotes ? "down_tma_promoted" : "down_tma", sizeof(purr__gemm_tma_params_t), &plan->kernels.down_tma, true},
  };
  for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++) {
    const purr__kernel_need_t need = {needs[i].role, PURR__KERNEL_LAYOUT, (int)needs[i].params_bytes, &shape};
    purr_status_t status = purr__kernels_find(kernels, &need, needs[i].kernel, needs[i].is_optional ? NULL : err);
    if (status != PURR_STATUS_OK && needs[i].is_optional) {
      *needs[i].kernel = NULL;
      continue;
    }
    if (status == PURR_STATUS_OK) status = check_pin(plan, *needs[i].kernel, err);
    if (status != PURR_STATUS_OK) return status;
  }
  return PURR_STATUS_OK;
}

/* ---- mega ---- */

/* The variants, by the roles of their kernels. [promotes][has peers or a ring] */
typedef struct variant {
  const char *role, *traced_role;
  int32_t tile_rows, traced_tile_rows;
} variant_t;
static const variant_t variants[2][2] = {
    {{"forward", "forward_traced", 208, 208}, {"forward_peers", "forward_peers_traced", 208, 208}},
    {{"forward_promoted", "forward_promoted_traced", 176, 128},
     {"forward_promoted_peers", "forward_promoted_peers_traced", 176, 128}}};

/* What the megakernel does not serve, on whatever device. */
static purr_status_t check_mega(const purr_plan_t *plan, purr_error_t *err) {
  const purr_layer_desc_t *layer = &plan->layer;
  /* The writers keep a row's rank and slot in one number. */
  const int64_t slots = layer->max_tokens * layer->top_k;
  if ((int64_t)layer->num_ranks << purr__num_bits(slots) > (int64_t)INT32_MAX + 1)
    return purr__fail(err, PURR_STATUS_UNSUPPORTED,
                      "backend 'mega' numbers slots and ranks in 31 bits, layer '%s' has %lld slots on %d ranks; use "
                      "'auto' or 'staged'",
                      plan->name, (long long)slots, layer->num_ranks);
  /* The kernel numbers the rows of all tiles, full or not, in 32 bits, and may count a little past the last. */
  const int64_t most_rows = plan->max_rows + plan->num_local_experts * PURR__UNIT_MAX_ROWS + (1 << 20);
  if (most_rows > INT32_MAX)
    return purr__fail(err, PURR_STATUS_UNSUPPORTED,
                      "backend 'mega' counts rows in 32 bits, layer '%s' may have %lld; use 'auto' or 'staged'",
                      plan->name, (long long)most_rows);
  return PURR_STATUS_OK;
}

/* Takes the megakernel, after the staged kernels have been found. */
static purr_status_t try_mega(purr_plan_t *plan, purr_error_t *err) {
  const bool has_peers = plan->layer.num_ranks > 1 || plan->layer.macrobatch_rows > 0;
  const variant_t *chosen = &variants[plan->kernels.promotes][has_peers];
  const purr__shape_t shape = shape_of(plan);
  purr__mega_variant_t *variant = &plan->kernels.forward;
  *variant = (purr__mega_variant_t){.tile_rows = chosen->tile_rows, .traced_tile_rows = chosen->traced_tile_rows};
  const struct {
    const char *role;
    int params_bytes;
    const purr__kernel_t **kernel;
    bool is_optional;
  } needs[] = {{chosen->role, sizeof(purr__forward_params_t), &variant->kernel, false},
               {"unit_list", sizeof(purr__schedule_params_t), &plan->kernels.unit_list, false},
               {chosen->traced_role, sizeof(purr__forward_params_t), &variant->traced, true}};
  const purr__kernels_t *kernels = NULL;
  purr_status_t status = purr__kernels_get(plan->device, &kernels, err);
  for (size_t i = 0; i < sizeof needs / sizeof needs[0] && status == PURR_STATUS_OK; i++) {
    const purr__kernel_need_t need = {needs[i].role, PURR__KERNEL_LAYOUT, needs[i].params_bytes, &shape};
    status = purr__kernels_find(kernels, &need, needs[i].kernel, needs[i].is_optional ? NULL : err);
    if (status == PURR_STATUS_OK) status = check_pin(plan, *needs[i].kernel, err);
    if (status != PURR_STATUS_OK && needs[i].is_optional) {
      *needs[i].kernel = NULL;
      status = PURR_STATUS_OK;
    }
  }
  if (status == PURR_STATUS_OK) plan->backend = PURR_BACKEND_MEGA;
  return status;
}

static purr_status_t try_staged(purr_plan_t *plan, int device_idx, purr_error_t *err) {
  if (plan->layer.precision != PURR_PRECISION_BF16)
    return purr__fail(err, PURR_STATUS_UNSUPPORTED,
                      "no GPU backend has MXFP8 kernels yet; layer '%s' runs on backend 'host'", plan->name);
  purr__device_t *device = NULL;
  const purr__kernels_t *kernels = NULL;
  purr_status_t status = purr__device_get(plan->object.context, device_idx, &device, err);
  if (status == PURR_STATUS_OK) status = purr__kernels_get(device, &kernels, err);
  if (status == PURR_STATUS_OK) status = find_staged_kernels(plan, kernels, err);
  if (status == PURR_STATUS_OK) status = purr__stages_find(plan, device, &plan->stages, err);
  if (status != PURR_STATUS_OK) return status;
  plan->device = device;
  plan->backend = PURR_BACKEND_STAGED;
  return PURR_STATUS_OK;
}

/* ---- the choice ---- */

PURR__PRINTF(2, 3)
static void set_reason(purr_plan_t *plan, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(plan->backend_reason, sizeof plan->backend_reason, format, args);
  va_end(args);
}

purr_status_t purr__plan_choose_backend(purr_plan_t *plan, int device_idx, purr_error_t *err) {
  purr_error_t why = PURR_ERROR_INIT;
  /* Kernels for stages belong to one backend, and no other may take the layer over in silence. */
  if (purr__stages_are_named(plan)) {
    const int32_t wanted = plan->layer.backend;
    if (wanted == PURR_BACKEND_HOST || wanted == PURR_BACKEND_MEGA)
      return purr__fail(err, PURR_STATUS_UNSUPPORTED,
                        "layer '%s' names kernels of Triton's, which only the staged backend runs, not backend '%s'; "
                        "leave the block kernels out, or use backend 'staged'",
                        plan->name, purr__backend_name(wanted));
    plan->layer.backend = PURR_BACKEND_STAGED;
  }
  switch (plan->layer.backend) {
    case PURR_BACKEND_HOST:
      set_reason(plan, "asked for");
      plan->backend = PURR_BACKEND_HOST;
      return PURR_STATUS_OK;
    default:
      break;
  }
  char sums[SUMS_BYTES];
  const bool is_auto = plan->layer.backend == PURR_BACKEND_AUTO;
  purr_status_t status = plan->layer.backend == PURR_BACKEND_MEGA ? check_mega(plan, err) : PURR_STATUS_OK;
  if (status == PURR_STATUS_OK) status = try_staged(plan, device_idx, is_auto ? &why : err);
  /* Only where it is asked for: `auto` does not take it yet. */
  if (status == PURR_STATUS_OK && plan->layer.backend == PURR_BACKEND_MEGA) {
    status = try_mega(plan, err);
    if (status == PURR_STATUS_OK)
      set_reason(plan, "asked for, on %s (compute capability %d.%d), kernel %.64s, %s", plan->device->name,
                 plan->device->cc_major, plan->device->cc_minor, plan->kernels.forward.kernel->entry->entry,
                 describe_sums(plan, sums));
    return status;
  }
  if (status == PURR_STATUS_OK) {
    const bool is_triton = purr__stages_have(plan->stages, PURR__STAGE_GROUPED_GEMM);
    set_reason(plan, "%s on %s (compute capability %d.%d), %s GEMMs%s%s",
               is_auto ? "auto: the fastest there is" : "asked for", plan->device->name, plan->device->cc_major,
               plan->device->cc_minor,
               is_triton                           ? "Triton"
               : plan->kernels.gate_up_tma != NULL ? "wgmma"
                                                   : "mma.sync",
               is_triton ? "" : ", ", is_triton ? "" : describe_sums(plan, sums));
    return PURR_STATUS_OK;
  }
  /* Whatever keeps a GPU from serving the layer, the host can; only what was asked for by name must not be replaced. */
  const bool breaks_pin = status == PURR_STATUS_INCOMPATIBLE_BINARY && plan->texts.package_digest[0] != '\0';
  if (!is_auto || breaks_pin || status == PURR_STATUS_OUT_OF_HOST_MEMORY || status == PURR_STATUS_FORKED) {
    if (is_auto) purr__fail_copy(err, &why);
    return status;
  }
  plan->device = NULL;
  plan->kernels = (purr__plan_kernels_t){0};
  set_reason(plan, "auto: %s", why.message);
  plan->backend = PURR_BACKEND_HOST;
  return PURR_STATUS_OK;
}
