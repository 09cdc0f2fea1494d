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

/* The kernel of this role, and of this name where it is not NULL. */
static purr_status_t find_kernel(const purr_plan_t *plan, const purr__kernels_t *kernels, const char *role,
                                 const char *entry, size_t params_bytes, const purr__kernel_t **out_kernel,
                                 purr_error_t *err) {
  const purr__shape_t shape = shape_of(plan);
  const purr__kernel_need_t need = {.role = role,
                                    .params_version = PURR__KERNEL_LAYOUT,
                                    .params_bytes = (int)params_bytes,
                                    .shape = &shape,
                                    .entry = entry};
  return purr__kernels_find(kernels, &need, out_kernel, err);
}

/* The kernels of the staged backend. Those that need the copy engine may be missing. */
static purr_status_t find_staged_kernels(purr_plan_t *plan, const purr__kernels_t *kernels, purr_error_t *err) {
  const struct {
    const char *role;
    size_t params_bytes;
    const purr__kernel_t **kernel;
    bool is_optional;
  } needs[] = {
      {"schedule", sizeof(purr__schedule_params_t), &plan->kernels.schedule, false},
      {"schedule_count", sizeof(purr__schedule_params_t), &plan->kernels.schedule_count, false},
      {"schedule_place", sizeof(purr__schedule_params_t), &plan->kernels.schedule_place, false},
      {"gate_up", sizeof(purr__gemm_params_t), &plan->kernels.gate_up, false},
      {"down", sizeof(purr__gemm_params_t), &plan->kernels.down, false},
      {"slot_sum", sizeof(purr__slot_sum_params_t), &plan->kernels.slot_sum, false},
      {"exchange", sizeof(purr__exchange_params_t), &plan->kernels.exchange, false},
      {"barrier", sizeof(purr__barrier_params_t), &plan->kernels.barrier, false},
      {"gate_up_tma", sizeof(purr__gemm_tma_params_t), &plan->kernels.gate_up_tma, true},
      {"down_tma", sizeof(purr__gemm_tma_params_t), &plan->kernels.down_tma, true},
  };
  for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++) {
    purr_status_t status = find_kernel(plan, kernels, needs[i].role, NULL, needs[i].params_bytes, needs[i].kernel,
                                       needs[i].is_optional ? NULL : err);
    if (status != PURR_STATUS_OK && needs[i].is_optional) {
      *needs[i].kernel = NULL;
      continue;
    }
    if (status == PURR_STATUS_OK) status = check_pin(plan, *needs[i].kernel, err);
    if (status != PURR_STATUS_OK) return status;
  }
  return PURR_STATUS_OK;
}

/* ---- mega: which variant ---- */

#define ANY_ROWS INT64_MAX
static const struct choice {
  const char *role;
  int64_t most_rows;
  const char *entry, *why;
} choices[] = {
#define PURR_FORWARD_CHOICE(role, most_rows, entry, why) {#role, most_rows, #entry, why},
#include "plan/forward_choice.def"
#undef PURR_FORWARD_CHOICE
};
enum { NUM_CHOICES = sizeof choices / sizeof choices[0] };

static bool needs_peers(const purr_plan_t *plan) {
  return plan->layer.num_ranks > 1 || plan->layer.macrobatch_rows > 0; /* which asks for a ring */
}

/* What the variant has to be. */
static const char *forward_role(const purr_plan_t *plan) { return needs_peers(plan) ? "forward_peers" : "forward"; }

/* Rows of an expert in the mean, when every rank has max_tokens. */
static int64_t mean_rows(const purr_plan_t *plan) {
  const purr_layer_desc_t *layer = &plan->layer;
  return (layer->num_ranks * layer->max_tokens * layer->top_k + layer->num_experts - 1) / layer->num_experts;
}

static const struct choice *choose_forward(const purr_plan_t *plan) {
  int i = 0; /* every role has a row for all at its end */
  while (strcmp(choices[i].role, forward_role(plan)) != 0 || choices[i].most_rows < mean_rows(plan)) i++;
  return &choices[i];
}

/* The choice in words, after it was made. */
static void set_forward_reason(purr_plan_t *plan, const struct choice *choice) {
  char rows[32] = "any number of";
  if (choice->most_rows != ANY_ROWS) snprintf(rows, sizeof rows, "up to %lld", (long long)choice->most_rows);
  snprintf(plan->forward_reason, sizeof plan->forward_reason,
           "tiles of up to %d rows; row %d of %d in the table, for %s%s rows an expert (%lld here): %s",
           plan->kernels.forward.tile_rows, (int)(choice - choices) + 1, NUM_CHOICES,
           needs_peers(plan) ? "several ranks or a ring, and " : "", rows, (long long)mean_rows(plan), choice->why);
}

/* ---- mega ---- */

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

static purr_status_t find_mega_kernel(const purr_plan_t *plan, const char *role, const char *entry, size_t params_bytes,
                                      const purr__kernel_t **out_kernel, purr_error_t *err) {
  const purr__kernels_t *kernels = NULL;
  purr_status_t status = purr__kernels_get(plan->device, &kernels, err);
  if (status == PURR_STATUS_OK) status = find_kernel(plan, kernels, role, entry, params_bytes, out_kernel, err);
  return status == PURR_STATUS_OK ? check_pin(plan, *out_kernel, err) : status;
}

/* Rows of a variant's largest tile, as its manifest says. */
static purr_status_t get_tile_rows(const purr__kernel_t *kernel, int32_t *out_rows, purr_error_t *err) {
  *out_rows = kernel->entry->tile[0];
  if (*out_rows >= 8 && *out_rows <= PURR__UNIT_MAX_ROWS && *out_rows % 8 == 0) return PURR_STATUS_OK;
  return purr__fail(err, PURR_STATUS_PACKAGE,
                    "package '%s' says that tiles of %.64s have %d rows; the forward megakernel has a multiple of 8 up "
                    "to %d",
                    kernel->package->manifest.name, kernel->entry->entry, *out_rows, PURR__UNIT_MAX_ROWS);
}

purr_status_t purr__plan_take_forward(purr_plan_t *plan, const char *entry, purr_error_t *err) {
  const char *role = forward_role(plan);
  char traced_role[64];
  snprintf(traced_role, sizeof traced_role, "%s_traced", role);
  const size_t bytes = sizeof(purr__forward_params_t);
  purr__mega_variant_t forward = {0};
  purr_status_t status = find_mega_kernel(plan, role, entry, bytes, &forward.kernel, err);
  if (status == PURR_STATUS_OK) status = get_tile_rows(forward.kernel, &forward.tile_rows, err);
  if (status != PURR_STATUS_OK) return status;
  /* One twin serves all variants: its bits are theirs. */
  if (find_mega_kernel(plan, traced_role, NULL, bytes, &forward.traced, NULL) != PURR_STATUS_OK ||
      get_tile_rows(forward.traced, &forward.traced_tile_rows, NULL) != PURR_STATUS_OK)
    forward.traced = NULL;
  plan->kernels.forward = forward;
  return PURR_STATUS_OK;
}

/* Takes the megakernel, after the staged kernels have been found. */
static purr_status_t try_mega(purr_plan_t *plan, purr_error_t *err) {
  const struct choice *choice = choose_forward(plan);
  purr_status_t status = purr__plan_take_forward(plan, choice->entry, err);
  if (status == PURR_STATUS_OK)
    status = find_mega_kernel(plan, "unit_list", NULL, sizeof(purr__schedule_params_t), &plan->kernels.unit_list, err);
  if (status != PURR_STATUS_OK) return status;
  set_forward_reason(plan, choice);
  plan->backend = PURR_BACKEND_MEGA;
  return PURR_STATUS_OK;
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
  const bool is_auto = plan->layer.backend == PURR_BACKEND_AUTO;
  purr_status_t status = plan->layer.backend == PURR_BACKEND_MEGA ? check_mega(plan, err) : PURR_STATUS_OK;
  if (status == PURR_STATUS_OK) status = try_staged(plan, device_idx, is_auto ? &why : err);
  /* Only where it is asked for: `auto` does not take it yet. */
  if (status == PURR_STATUS_OK && plan->layer.backend == PURR_BACKEND_MEGA) {
    status = try_mega(plan, err);
    if (status == PURR_STATUS_OK)
      set_reason(plan, "asked for, on %s (compute capability %d.%d), kernel %.64s", plan->device->name,
                 plan->device->cc_major, plan->device->cc_minor, plan->kernels.forward.kernel->entry->entry);
    return status;
  }
  if (status == PURR_STATUS_OK) {
    const bool is_triton = purr__stages_have(plan->stages, PURR__STAGE_GROUPED_GEMM);
    set_reason(plan, "%s on %s (compute capability %d.%d), %s GEMMs",
               is_auto ? "auto: the fastest there is" : "asked for", plan->device->name, plan->device->cc_major,
               plan->device->cc_minor,
               is_triton                           ? "Triton"
               : plan->kernels.gate_up_tma != NULL ? "wgmma"
                                                   : "mma.sync");
    return PURR_STATUS_OK;
  }
  /* Whatever keeps a GPU from serving the layer, the host can; only what was asked for by name must not be replaced. */
  const bool breaks_pin = status == PURR_STATUS_INCOMPATIBLE_BINARY && plan->texts.package_digest[0] != '\0';
  if (!is_auto || breaks_pin || status == PURR_STATUS_OUT_OF_HOST_MEMORY || status == PURR_STATUS_FORKED) {
    if (is_auto) purr__fail_copy(err, &why);
    return status;
  }
  /* A GPU that does not serve the layer because something is broken must not go unnoticed. */
  if (status != PURR_STATUS_NO_DEVICE && status != PURR_STATUS_UNSUPPORTED)
    purr__log(plan->object.context, PURR_LOG_WARNING, "layer '%s' runs on the host: %s", plan->name, why.message);
  plan->device = NULL;
  plan->kernels = (purr__plan_kernels_t){0};
  set_reason(plan, "auto: %s", why.message);
  plan->backend = PURR_BACKEND_HOST;
  return PURR_STATUS_OK;
}
