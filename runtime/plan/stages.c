#include "plan/stages.h"

#include "plan/plan.h"
#include "triton/launcher.h"

enum { MAX_ARGUMENTS = 40, MAX_PARAMS = MAX_ARGUMENTS + 4 };

typedef struct stage {
  purr_launcher_t *launcher; /* a prototype: launches are made of copies. It keeps the kernel */
  int num_arguments;
  int value_of[MAX_ARGUMENTS]; /* PURR__STAGE_*, -1 for constants */
  uint32_t num_programs;       /* where the kernel has no rule for its grid */
  int64_t scratch_bytes;       /* of a launch of so many programs, room to align it included */
  int64_t scratch_align;
} stage_t;

struct purr__stages {
  stage_t stage[PURR__NUM_STAGES];
};

static const struct {
  const char *name;
  uint64_t values; /* that it is given, a bit for each */
} stages_info[PURR__NUM_STAGES] = {
#define BIT(name) ((uint64_t)1 << PURR__STAGE_##name)
#define COMMON (BIT(status) | BIT(turn) | BIT(turn_owner))
    [PURR__STAGE_ACTIVATION] = {.name = "activation",
                                .values =
                                    COMMON | BIT(rows) | BIT(gate) | BIT(up) | BIT(out) | BIT(columns) | BIT(limit)},
    [PURR__STAGE_GROUPED_GEMM] = {.name = "grouped_gemm",
                                  .values = COMMON | BIT(a) | BIT(a_stride) | BIT(a_divisor) | BIT(slot) | BIT(b) |
                                            BIT(b_expert_stride) | BIT(b_stride) | BIT(c) | BIT(c_stride) |
                                            BIT(c_scatter) | BIT(expert_begin) | BIT(expert_count) | BIT(tile_begin) |
                                            BIT(tile_expert) | BIT(num_experts) | BIT(n) | BIT(k)},
    [PURR__STAGE_COMBINE] = {.name = "combine",
                             .values = COMMON | BIT(ids) | BIT(ids_stride) | BIT(ids_step) | BIT(weights) |
                                       BIT(weights_stride) | BIT(weights_step) | BIT(slots) | BIT(slots_stride) |
                                       BIT(out) | BIT(out_stride) | BIT(num_tokens) | BIT(top_k) | BIT(hidden)},
    [PURR__STAGE_QUANTISE] = {.name = "quantise",
                              .values = BIT(source) | BIT(source_row_stride) | BIT(source_slice_stride) |
                                        BIT(elements) | BIT(elements_row_stride) | BIT(elements_slice_stride) |
                                        BIT(scales) | BIT(scales_slice_stride) | BIT(scales_outer_stride) |
                                        BIT(scales_block_stride) | BIT(num_slices) | BIT(num_rows) | BIT(num_columns) |
                                        BIT(num_scale_rows) | BIT(num_scale_blocks) | BIT(scale_layout) |
                                        BIT(scale_rule)},
};
static_assert(PURR__NUM_STAGE_VALUES <= 64, "a bit for each value");

static const struct {
  const char *name;
  char kind;
} values_info[PURR__NUM_STAGE_VALUES] = {
#define P 'P'
#define I 'I'
#define R 'R'
#define VALUE(name, kind) {#name, kind},
    PURR__STAGE_VALUES(VALUE)
#undef VALUE
#undef P
#undef I
#undef R
};

/* ---- finding ---- */

const char *purr__stage_kernel(const purr_plan_t *plan, purr__stage_kind_t kind) {
  const char *const names[PURR__NUM_STAGES] = {[PURR__STAGE_ACTIVATION] = plan->texts.activation,
                                               [PURR__STAGE_GROUPED_GEMM] = plan->texts.grouped_gemm,
                                               [PURR__STAGE_COMBINE] = plan->texts.combine,
                                               [PURR__STAGE_QUANTISE] = plan->texts.quantise};
  return names[kind];
}

bool purr__stages_are_named(const purr_plan_t *plan) {
  bool any = false;
  for (int i = 0; i < PURR__NUM_STAGES; i++) any = any || purr__stage_kernel(plan, (purr__stage_kind_t)i)[0] != '\0';
  return any;
}

bool purr__stages_are_in_forward(const purr_plan_t *plan) {
  bool any = false;
  for (int i = 0; i < PURR__NUM_STAGES; i++)
    any = any || (i != PURR__STAGE_QUANTISE && purr__stage_kernel(plan, (purr__stage_kind_t)i)[0] != '\0');
  return any;
}

/* Writes "status, turn, ...". */
static void list_values(uint64_t values, purr__text_t *text) {
  bool is_first = true;
  for (int v = 0; v < PURR__NUM_STAGE_VALUES; v++) {
    if ((values >> v & 1) == 0) continue;
    purr__text_add(text, "%s%s", is_first ? "" : ", ", values_info[v].name);
    is_first = false;
  }
}

static purr_status_t fail_argument(purr_context_t *context, const char *kernel, purr__stage_kind_t kind,
                                   const char *argument, purr_error_t *err) {
  purr__text_t text = {.context = context};
  list_values(stages_info[kind].values, &text);
  purr_status_t status =
      purr__fail(err, PURR_STATUS_UNSUPPORTED,
                 "kernel %.64s wants an argument '%.64s', which the stage %s does not give; it gives %s", kernel,
                 argument, stages_info[kind].name, text.data != NULL ? text.data : "others");
  purr__text_free(&text);
  return status;
}

/* Which value each argument gets. An argument may be a constant in some variants and not in others. */
static purr_status_t match_arguments(stage_t *stage, const purr_kernel_t *kernel, purr__stage_kind_t kind,
                                     purr_error_t *err) {
  stage->num_arguments = purr__triton_spec(kernel)->num_arguments;
  if (stage->num_arguments > MAX_ARGUMENTS)
    return purr__fail(err, PURR_STATUS_UNSUPPORTED, "kernel %.64s has %d arguments; a stage's kernel has up to %d",
                      kernel->name, stage->num_arguments, MAX_ARGUMENTS);
  for (int i = 0; i < stage->num_arguments; i++) {
    const char *name = purr__triton_spec(kernel)->arguments[i].name;
    bool is_constant = true;
    for (int v = 0; v < kernel->num_variants; v++)
      is_constant = is_constant && kernel->variants[v].spec->arguments[i].constant != PURR__TRITON_NO_CONSTANT;
    stage->value_of[i] = -1;
    for (int v = 0; v < PURR__NUM_STAGE_VALUES; v++)
      if ((stages_info[kind].values >> v & 1) != 0 && strcmp(values_info[v].name, name) == 0) stage->value_of[i] = v;
    if (stage->value_of[i] < 0 && !is_constant)
      return fail_argument(kernel->object.context, kernel->name, kind, name, err);
  }
  return PURR_STATUS_OK;
}

/* Scratch memory comes from the workspace, which has to know how many programs there are. */
static const char *cannot_give(const purr__triton_variant_t *variant, purr__stage_kind_t kind) {
  const bool has_scratch = variant->spec->scratch_bytes > 0;
  if (variant->num_descriptors > 0) return "tensor descriptors";
  if (has_scratch && kind == PURR__STAGE_QUANTISE) return "scratch memory, and no workspace goes with that stage";
  if (has_scratch && variant->spec->grid[0][0] != '\0')
    return "scratch memory for a grid of its own rule; leave the rule out";
  return variant->num_params > MAX_PARAMS ? "too many parameters" : NULL;
}

/* What only a caller of a single kernel can give. */
static purr_status_t check_variants(const purr_kernel_t *kernel, purr__stage_kind_t kind, purr_error_t *err) {
  for (int i = 0; i < kernel->num_variants; i++) {
    const purr__triton_variant_t *variant = &kernel->variants[i];
    const char *what = cannot_give(variant, kind);
    if (what != NULL)
      return purr__fail(err, PURR_STATUS_UNSUPPORTED,
                        "kernel %.64s (%.160s) cannot stand in for the stage %s: it wants %s", kernel->name,
                        variant->file, stages_info[kind].name, what);
  }
  return PURR_STATUS_OK;
}

/* A constant PROGRAMS_PER_SM of the kernel; 1 without. */
static uint32_t programs_per_sm(const purr_launcher_t *launcher) {
  const purr__triton_spec_t *spec = launcher->kernel->variants[launcher->order[0]].spec;
  for (int i = 0; i < spec->num_arguments; i++) {
    const purr__triton_argument_t *argument = &spec->arguments[i];
    if (strcmp(argument->name, "PROGRAMS_PER_SM") == 0 && argument->constant == PURR__TRITON_CONSTANT_INTEGER &&
        argument->constant_integer >= 1 && argument->constant_integer <= 32)
      return (uint32_t)argument->constant_integer;
  }
  return 1;
}

static bool has_kernel(const purr__package_t *package, const char *name) {
  for (int i = 0; i < package->manifest.num_kernels; i++)
    if (package->manifest.kernels[i].triton != NULL && strcmp(package->manifest.kernels[i].triton->kernel, name) == 0)
      return true;
  return false;
}

/* The first package that has it, as with all kernels; a pin goes for these too. */
static purr_status_t find_package(const purr_plan_t *plan, const char *name, purr__stage_kind_t kind,
                                  purr__package_t **out_package, purr_error_t *err) {
  const purr__package_list_t *list;
  purr_status_t status = purr__packages_get(plan->object.context, &list, err);
  if (status != PURR_STATUS_OK) return status;
  *out_package = NULL;
  for (int p = 0; p < list->count && *out_package == NULL; p++)
    if (has_kernel(list->packages[p], name)) *out_package = list->packages[p];
  if (*out_package == NULL)
    return purr__fail(
        err, PURR_STATUS_MISSING_KERNEL,
        "layer '%s' names kernel '%s' for its %s, which is in none of the %d packages of this context; add "
        "its package to the context or to PURR_PACKAGE_PATH",
        plan->name, name, stages_info[kind].name, list->count);
  char digest[PURR__SHA256_TEXT_BYTES];
  purr__sha256_print((*out_package)->manifest.sha256, digest);
  if (plan->texts.package_digest[0] == '\0' || strcmp(digest, plan->texts.package_digest) == 0) return PURR_STATUS_OK;
  return purr__fail(err, PURR_STATUS_INCOMPATIBLE_BINARY,
                    "layer '%s' pins package_digest %.16s..., but kernel '%s' comes from package '%s' with %.16s...",
                    plan->name, plan->texts.package_digest, name, (*out_package)->manifest.name, digest);
}

/* For the variant that wants most. */
static void measure_scratch(stage_t *stage, const purr_kernel_t *kernel) {
  for (int i = 0; i < kernel->num_variants; i++) {
    const purr__triton_variant_t *variant = &kernel->variants[i];
    const int *cluster = variant->entry.cluster;
    const int64_t blocks = (int64_t)stage->num_programs * cluster[0] * cluster[1] * cluster[2];
    const int64_t bytes = variant->spec->scratch_bytes * blocks; /* below 2^30 * 2^18 * 2^4 */
    stage->scratch_bytes = purr__max(stage->scratch_bytes, bytes);
    if (bytes > 0) stage->scratch_align = purr__max(stage->scratch_align, variant->spec->scratch_align);
  }
  if (stage->scratch_align > (int64_t)PURR__MEMORY_ALIGNMENT) stage->scratch_bytes += stage->scratch_align;
}

static purr_status_t find_stage(const purr_plan_t *plan, purr__device_t *device, purr__stage_kind_t kind,
                                const char *name, stage_t *stage, purr_error_t *err) {
  purr__package_t *package;
  purr_kernel_t *kernel = NULL;
  if (name[0] == '\0') return PURR_STATUS_OK;
  purr_status_t status = find_package(plan, name, kind, &package, err);
  if (status == PURR_STATUS_OK) status = purr__kernel_open_in(plan->object.context, package, name, &kernel, err);
  if (status == PURR_STATUS_OK) status = match_arguments(stage, kernel, kind, err);
  if (status == PURR_STATUS_OK) status = check_variants(kernel, kind, err);
  if (status == PURR_STATUS_OK) status = purr_launcher_create(kernel, device->ordinal, &stage->launcher, err);
  if (status == PURR_STATUS_OK) stage->num_programs = (uint32_t)device->num_sms * programs_per_sm(stage->launcher);
  if (status == PURR_STATUS_OK) measure_scratch(stage, kernel);
  purr_kernel_destroy(kernel);
  return status;
}

static purr_status_t check_layer(const purr_plan_t *plan, purr_error_t *err) {
  const char *what = plan->layer.precision != PURR_PRECISION_BF16                       ? "MXFP8"
                     : plan->layer.shared_intermediate_size > 0                         ? "a shared expert"
                     : plan->texts.grouped_gemm[0] != '\0' && plan->layer.num_ranks > 1 ? "more than one rank"
                                                                                        : NULL;
  if (what == NULL) return PURR_STATUS_OK;
  return purr__fail(err, PURR_STATUS_UNSUPPORTED, "layer '%s' has %s, which its kernels of Triton's do not serve",
                    plan->name, what);
}

purr_status_t purr__stages_find(const purr_plan_t *plan, purr__device_t *device, purr__stages_t **out_stages,
                                purr_error_t *err) {
  *out_stages = NULL;
  if (!purr__stages_are_named(plan)) return PURR_STATUS_OK;
  purr_status_t status = purr__stages_are_in_forward(plan) ? check_layer(plan, err) : PURR_STATUS_OK;
  if (status != PURR_STATUS_OK) return status;
  purr__stages_t *stages = purr__allocate_zeroed(plan->object.context, sizeof *stages);
  if (stages == NULL) return purr__fail_memory(err, "the kernels of stages", sizeof *stages);
  for (int i = 0; i < PURR__NUM_STAGES && status == PURR_STATUS_OK; i++)
    status = find_stage(plan, device, (purr__stage_kind_t)i, purr__stage_kernel(plan, (purr__stage_kind_t)i),
                        &stages->stage[i], err);
  if (status == PURR_STATUS_OK)
    *out_stages = stages;
  else
    purr__stages_free(plan->object.context, stages);
  return status;
}

void purr__stages_free(purr_context_t *context, purr__stages_t *stages) {
  if (stages == NULL) return;
  for (int i = 0; i < PURR__NUM_STAGES; i++) purr_launcher_destroy(stages->stage[i].launcher);
  purr__release(context, stages);
}

bool purr__stages_have(const purr__stages_t *stages, purr__stage_kind_t kind) {
  return stages != NULL && stages->stage[kind].launcher != NULL;
}

int64_t purr__stages_scratch_bytes(const purr__stages_t *stages) {
  int64_t bytes = 0;
  for (int i = 0; stages != NULL && i < PURR__NUM_STAGES; i++) bytes = purr__max(bytes, stages->stage[i].scratch_bytes);
  return bytes;
}

/* ---- launching ---- */

purr_status_t purr__stage_launch(const purr__stages_t *stages, purr__stage_kind_t kind,
                                 const purr__stage_value_t values[PURR__NUM_STAGE_VALUES], void *scratch, void *stream,
                                 purr_error_t *err) {
  const stage_t *stage = &stages->stage[kind];
  purr__triton_value_t set[MAX_ARGUMENTS];
  uint64_t slots[MAX_PARAMS];
  const void *params[MAX_PARAMS + 1];
  purr_launcher_t own = *stage->launcher;
  own.values = set;
  own.slots = slots;
  own.params = params;
  own.leaves_constants_open = true;
  for (int i = 0; i < stage->num_arguments; i++) {
    const int v = stage->value_of[i];
    memset(&set[i], 0, offsetof(purr__triton_value_t, bytes));
    if (v < 0) continue;
    switch (values_info[v].kind) {
      case 'P':
        set[i].set = PURR__TRITON_SET_POINTER;
        set[i].address = (uintptr_t)values[v].pointer;
        break;
      case 'I':
        set[i].set = PURR__TRITON_SET_INTEGER;
        set[i].integer = values[v].integer;
        break;
      default:
        set[i].set = PURR__TRITON_SET_REAL;
        set[i].real = values[v].real;
    }
  }
  const purr__triton_spec_t *spec = own.kernel->variants[own.order[0]].spec;
  if (spec->grid[0][0] == '\0') {
    own.has_grid = true;
    own.grid[0] = stage->num_programs;
    own.grid[1] = own.grid[2] = 1;
  }
  if (stage->scratch_bytes > 0) {
    const int64_t past = (int64_t)((uintptr_t)scratch % (uintptr_t)stage->scratch_align);
    const int64_t skipped = past > 0 ? stage->scratch_align - past : 0;
    own.scratch = (char *)scratch + skipped;
    own.scratch_bytes = (uint64_t)(stage->scratch_bytes - skipped);
  }
  return purr__launcher_launch(&own, stream, err);
}
