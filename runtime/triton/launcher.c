/* A kernel on a device with its arguments: setting them, choosing the variant, launching it. */
#include <stdio.h>

#include "tensor/tensor.h"
#include "triton/grid.h"
#include "triton/launcher.h"

static void launcher_free(void *object) {
  purr_launcher_t *launcher = object;
  purr_context_t *context = launcher->object.context;
  purr__release(context, launcher->order);
  purr__release(context, launcher->values);
  purr__release(context, launcher->slots);
  purr__release(context, launcher->params);
  purr__release(context, launcher->maps);
  purr__release(context, launcher->next_map);
  purr__object_release(launcher->kernel);
}

/* ---- making one ---- */

/* Those that run here: for the better architecture first, then those that promise more. */
static void order_variants(purr_launcher_t *launcher) {
  const purr__triton_variant_t *variants = launcher->kernel->variants;
  for (int i = 0; i < launcher->kernel->num_variants; i++) {
    if (launcher->loaded[i].function == NULL) continue;
    int at = launcher->num_usable++;
    for (; at > 0; at--) {
      const purr__triton_variant_t *before = &variants[launcher->order[at - 1]];
      const bool is_better = purr__arch_is_better(variants[i].arch, before->arch);
      const bool is_worse = purr__arch_is_better(before->arch, variants[i].arch);
      if (is_worse || (!is_better && variants[i].num_promises <= before->num_promises)) break;
      launcher->order[at] = launcher->order[at - 1];
    }
    launcher->order[at] = i;
  }
}

static purr_status_t make_room(purr_launcher_t *launcher, purr_error_t *err) {
  purr_context_t *context = launcher->object.context;
  const purr_kernel_t *kernel = launcher->kernel;
  uint64_t most_params = 0, num_descriptors = 0;
  const uint64_t num_arguments = (uint64_t)purr__triton_spec(kernel)->num_arguments;
  for (int i = 0; i < kernel->num_variants; i++) {
    most_params = (uint64_t)purr__max((int64_t)most_params, kernel->variants[i].num_params);
    num_descriptors += (uint64_t)kernel->variants[i].num_descriptors;
  }
  const uint64_t map_bytes = num_arguments * MAPS_PER_ARGUMENT * sizeof *launcher->maps;
  launcher->order = purr__allocate_zeroed(context, (uint64_t)kernel->num_variants * sizeof *launcher->order);
  launcher->values = purr__allocate_zeroed(context, (num_arguments + 1) * sizeof *launcher->values);
  launcher->slots = purr__allocate_zeroed(context, (most_params + 1) * sizeof *launcher->slots);
  launcher->params = purr__allocate_zeroed(context, (most_params + 1) * sizeof *launcher->params);
  launcher->next_map = purr__allocate_zeroed(context, (num_arguments + 1) * sizeof *launcher->next_map);
  if (num_descriptors > 0) launcher->maps = purr__allocate_zeroed(context, map_bytes);
  const bool is_complete = launcher->order != NULL && launcher->values != NULL && launcher->slots != NULL &&
                           launcher->params != NULL && launcher->next_map != NULL &&
                           (num_descriptors == 0 || launcher->maps != NULL);
  return is_complete ? PURR_STATUS_OK : purr__fail_memory(err, "a launcher", map_bytes + most_params * 16);
}

purr_status_t purr_launcher_create(purr_kernel_t *kernel, int32_t device_idx, purr_launcher_t **out_launcher,
                                   purr_error_t *err) {
  if (out_launcher == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_launcher is NULL");
  *out_launcher = NULL;
  purr_status_t status = purr__check(kernel, PURR__KERNEL, err);
  if (status != PURR_STATUS_OK) return status;
  if (device_idx < -1)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "device is %d; allowed are -1 and device numbers", device_idx);
  purr__device_t *device;
  const purr__kernel_t *loaded;
  status = purr__device_get(kernel->object.context, device_idx, &device, err);
  if (status == PURR_STATUS_OK) status = purr__triton_load(kernel, device, &loaded, err);
  if (status != PURR_STATUS_OK) return status;
  void *object;
  status =
      purr__object_create(kernel->object.context, PURR__LAUNCHER, sizeof(purr_launcher_t), launcher_free, &object, err);
  if (status != PURR_STATUS_OK) return status;
  purr_launcher_t *launcher = object;
  purr__object_retain(kernel);
  launcher->kernel = kernel;
  launcher->device = device;
  launcher->loaded = loaded;
  status = make_room(launcher, err);
  if (status != PURR_STATUS_OK) {
    purr__object_release(launcher);
    return status;
  }
  order_variants(launcher);
  *out_launcher = launcher;
  return PURR_STATUS_OK;
}

void purr_launcher_destroy(purr_launcher_t *launcher) { purr__object_release(launcher); }

/* ---- arguments ---- */

static purr_status_t fail_argument(const purr_launcher_t *launcher, int index, const char *why, purr_error_t *err) {
  const purr__triton_argument_t *argument = &purr__triton_spec(launcher->kernel)->arguments[index];
  return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "argument %d ('%s') of kernel %.100s %s", index, argument->name,
                    launcher->kernel->name, why);
}

/* A host pointer would take the device with it. */
static purr_status_t check_reach(const purr_launcher_t *launcher, const void *address, const char *name,
                                 purr_error_t *err) {
  purr_status_t status = purr__device_enter(launcher->device, err);
  if (status != PURR_STATUS_OK) return status;
  status = purr__device_check_reach(launcher->device, address, name, err);
  purr__device_leave(launcher->device);
  return status;
}

static purr_status_t check_address(const purr_launcher_t *launcher, int32_t index, const purr__triton_value_t *value,
                                   purr_error_t *err) {
  char name[256];
  const bool has_address = value->set == PURR__TRITON_SET_POINTER || value->set == PURR__TRITON_SET_TENSOR;
  if (!has_address || value->address == 0 || value->address == launcher->values[index].address) return PURR_STATUS_OK;
  snprintf(name, sizeof name, "argument %d ('%s') of kernel %.100s", index,
           purr__triton_spec(launcher->kernel)->arguments[index].name, launcher->kernel->name);
  return check_reach(launcher, (const void *)(uintptr_t)value->address, name, err);
}

/* The argument is there, and some variant takes the value. */
static purr_status_t set_value(purr_launcher_t *launcher, int32_t index, const purr__triton_value_t *value,
                               purr_error_t *err) {
  const purr_kernel_t *kernel = launcher->kernel;
  const int count = purr__triton_spec(kernel)->num_arguments;
  if (index < 0 || index >= count)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "kernel %.100s has no argument %d; it has %d, counted from 0",
                      kernel->name, index, count);
  char why[PURR__TRITON_WHY_BYTES], first[PURR__TRITON_WHY_BYTES];
  for (int i = 0; i < launcher->num_usable; i++) {
    const purr__triton_spec_t *spec = kernel->variants[launcher->order[i]].spec;
    if (purr__triton_takes(&spec->arguments[index], value, why)) {
      purr_status_t status = check_address(launcher, index, value, err);
      if (status == PURR_STATUS_OK) launcher->values[index] = *value;
      return status;
    }
    /* The last one is the most general: its reason is the one that cannot be helped. */
    memcpy(first, why, sizeof first);
  }
  return fail_argument(launcher, index, first, err);
}

purr_status_t purr_launcher_set_pointer(purr_launcher_t *launcher, int32_t index, const void *address,
                                        purr_error_t *err) {
  purr_status_t status = purr__check(launcher, PURR__LAUNCHER, err);
  const purr__triton_value_t value = {.set = PURR__TRITON_SET_POINTER, .address = (uintptr_t)address};
  return status == PURR_STATUS_OK ? set_value(launcher, index, &value, err) : status;
}

purr_status_t purr_launcher_set_integer(purr_launcher_t *launcher, int32_t index, int64_t integer, purr_error_t *err) {
  purr_status_t status = purr__check(launcher, PURR__LAUNCHER, err);
  const purr__triton_value_t value = {.set = PURR__TRITON_SET_INTEGER, .integer = integer};
  return status == PURR_STATUS_OK ? set_value(launcher, index, &value, err) : status;
}

purr_status_t purr_launcher_set_real(purr_launcher_t *launcher, int32_t index, double real, purr_error_t *err) {
  purr_status_t status = purr__check(launcher, PURR__LAUNCHER, err);
  const purr__triton_value_t value = {.set = PURR__TRITON_SET_REAL, .real = real};
  return status == PURR_STATUS_OK ? set_value(launcher, index, &value, err) : status;
}

purr_status_t purr_launcher_set_bytes(purr_launcher_t *launcher, int32_t index, const void *bytes, uint32_t num_bytes,
                                      purr_error_t *err) {
  purr_status_t status = purr__check(launcher, PURR__LAUNCHER, err);
  if (status != PURR_STATUS_OK) return status;
  purr__triton_value_t value = {.set = PURR__TRITON_SET_BYTES, .num_bytes = num_bytes};
  if (bytes == NULL || num_bytes > sizeof value.bytes)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "bytes is %s, num_bytes %u; allowed are 1 to %zu bytes",
                      bytes == NULL ? "NULL" : "given", num_bytes, sizeof value.bytes);
  memcpy(value.bytes, bytes, num_bytes);
  return set_value(launcher, index, &value, err);
}

static purr_status_t value_of_tensor(const purr_tensor_t *tensor, uint32_t flags, purr__triton_value_t *out_value,
                                     purr_error_t *err) {
  purr_tensor_t own;
  if (tensor == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "tensor is NULL");
  purr_status_t status = purr__read_struct(&own, sizeof own, tensor, "purr_tensor_t", err);
  if (status == PURR_STATUS_OK) status = purr__check_reserved(own.reserved, "purr_tensor_t", err);
  if (status != PURR_STATUS_OK) return status;
  if (own.num_dims < 1 || own.num_dims > 4 || own.pointers != NULL || own.scales != NULL)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "the tensor has %d dimensions%s; a kernel takes 1 to 4, in one piece and without scales",
                      own.num_dims,
                      own.pointers != NULL ? " and is in pieces"
                      : own.scales != NULL ? " and scales"
                                           : "");
  if ((flags & ~(uint32_t)(PURR_DESCRIPTOR_NAN | PURR_DESCRIPTOR_TF32)) != 0)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "flags is %#x; known are PURR_DESCRIPTOR_NAN and _TF32",
                      flags);
  *out_value = (purr__triton_value_t){.set = PURR__TRITON_SET_TENSOR,
                                      .address = (uintptr_t)own.data,
                                      .dtype = own.dtype,
                                      .rank = own.num_dims,
                                      .flags = flags};
  bool is_contiguous = true;
  for (int i = 0; i < own.num_dims; i++) is_contiguous = is_contiguous && own.stride[i] == 0;
  int64_t stride = 1;
  for (int i = own.num_dims - 1; i >= 0; i--) {
    out_value->shape[i] = own.shape[i];
    out_value->stride[i] = is_contiguous ? stride : own.stride[i];
    if (own.shape[i] < 0 || (is_contiguous && __builtin_mul_overflow(stride, own.shape[i], &stride)))
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                        "the tensor's dimension %d is %lld, or all together too large", i, (long long)own.shape[i]);
  }
  return PURR_STATUS_OK;
}

purr_status_t purr_launcher_set_tensor(purr_launcher_t *launcher, int32_t index, const purr_tensor_t *tensor,
                                       uint32_t flags, purr_error_t *err) {
  purr__triton_value_t value;
  purr_status_t status = purr__check(launcher, PURR__LAUNCHER, err);
  if (status == PURR_STATUS_OK) status = value_of_tensor(tensor, flags, &value, err);
  return status == PURR_STATUS_OK ? set_value(launcher, index, &value, err) : status;
}

purr_status_t purr_launcher_unset(purr_launcher_t *launcher, int32_t index, purr_error_t *err) {
  purr_status_t status = purr__check(launcher, PURR__LAUNCHER, err);
  if (status != PURR_STATUS_OK) return status;
  const int count = purr__triton_spec(launcher->kernel)->num_arguments;
  if (index < 0 || index >= count)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "kernel %.100s has no argument %d; it has %d, counted from 0",
                      launcher->kernel->name, index, count);
  launcher->values[index].set = PURR__TRITON_UNSET;
  return PURR_STATUS_OK;
}

purr_status_t purr_launcher_set_grid(purr_launcher_t *launcher, uint32_t x, uint32_t y, uint32_t z, purr_error_t *err) {
  purr_status_t status = purr__check(launcher, PURR__LAUNCHER, err);
  if (status != PURR_STATUS_OK) return status;
  launcher->has_grid = x != 0 || y != 0 || z != 0;
  launcher->grid[0] = x;
  launcher->grid[1] = y;
  launcher->grid[2] = z;
  return PURR_STATUS_OK;
}

purr_status_t purr_launcher_set_scratch(purr_launcher_t *launcher, void *memory, uint64_t bytes, purr_error_t *err) {
  purr_status_t status = purr__check(launcher, PURR__LAUNCHER, err);
  if (status != PURR_STATUS_OK) return status;
  if ((memory == NULL) != (bytes == 0))
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "memory is %p, but bytes is %llu; give both or none", memory,
                      (unsigned long long)bytes);
  if (memory != NULL && memory != launcher->scratch) {
    char name[160];
    snprintf(name, sizeof name, "the scratch memory of kernel %.100s", launcher->kernel->name);
    status = check_reach(launcher, memory, name, err);
    if (status != PURR_STATUS_OK) return status;
  }
  launcher->scratch = memory;
  launcher->scratch_bytes = bytes;
  return PURR_STATUS_OK;
}

/* ---- what is launched ---- */

/* A launch, decided. */
typedef struct decision {
  const purr__triton_variant_t *variant;
  const purr__kernel_t *loaded;
  int variant_idx;
  uint32_t grid[3]; /* of blocks */
  uint64_t scratch_bytes;
} decision_t;

/* The first argument that is set to what the variant does not take; their number where it takes all. */
static int find_refusal(const purr_launcher_t *launcher, const purr__triton_spec_t *spec, char *why) {
  int i = 0;
  while (i < spec->num_arguments && (launcher->values[i].set == PURR__TRITON_UNSET ||
                                     purr__triton_takes(&spec->arguments[i], &launcher->values[i], why)))
    i++;
  return i;
}

/* The first argument that is not set and not compiled in. */
static int find_unset(const purr_launcher_t *launcher, const purr__triton_spec_t *spec) {
  int i = 0;
  while (i < spec->num_arguments &&
         (launcher->values[i].set != PURR__TRITON_UNSET || spec->arguments[i].constant != PURR__TRITON_NO_CONSTANT))
    i++;
  return i;
}

static bool is_same_constant(const purr__triton_argument_t *a, const purr__triton_argument_t *b) {
  if (a->constant != b->constant) return false;
  if (a->constant == PURR__TRITON_CONSTANT_INTEGER) return a->constant_integer == b->constant_integer;
  return strcmp(a->constant_text, b->constant_text) == 0;
}

/* The first argument that is not set and whose value decides between two variants. For a better architecture other
 * constants may have been chosen, but not for an argument that must be set elsewhere. */
static int find_choice(const purr_launcher_t *launcher, const purr__triton_variant_t *chosen,
                       const purr__triton_variant_t *other) {
  const bool is_same_arch = !purr__arch_is_better(chosen->arch, other->arch);
  int i = 0;
  for (; i < chosen->spec->num_arguments; i++) {
    const purr__triton_argument_t *a = &chosen->spec->arguments[i], *b = &other->spec->arguments[i];
    if (launcher->values[i].set != PURR__TRITON_UNSET) continue;
    if (a->constant != PURR__TRITON_NO_CONSTANT && b->constant == PURR__TRITON_NO_CONSTANT) break;
    if (is_same_arch && !is_same_constant(a, b)) break;
  }
  return i;
}

static purr_status_t fail_choice(const purr_launcher_t *launcher, int argument_idx, int chosen_idx, int other_idx,
                                 purr_error_t *err) {
  const purr__triton_variant_t *variants = launcher->kernel->variants;
  const purr__triton_argument_t *a = &variants[chosen_idx].spec->arguments[argument_idx];
  const purr__triton_argument_t *b = &variants[other_idx].spec->arguments[argument_idx];
  const bool is_constant = b->constant != PURR__TRITON_NO_CONSTANT;
  return purr__fail(err, PURR_STATUS_INVALID_STATE,
                    "kernel %.100s cannot be launched: argument %d ('%s') is not set; variant %d was compiled for %s, "
                    "variant %d %s %s",
                    launcher->kernel->name, argument_idx, a->name, chosen_idx, a->constant_text, other_idx,
                    is_constant ? "for" : "takes any", is_constant ? b->constant_text : b->type);
}

/* Whether all other variants that take what is set agree with this one about what is not. */
static purr_status_t check_unset(const purr_launcher_t *launcher, int chosen_idx, purr_error_t *err) {
  char why[PURR__TRITON_WHY_BYTES];
  const purr__triton_variant_t *variants = launcher->kernel->variants;
  const int num_arguments = variants[chosen_idx].spec->num_arguments;
  for (int v = 0; v < launcher->num_usable; v++) {
    const int idx = launcher->order[v];
    const int argument_idx = find_choice(launcher, &variants[chosen_idx], &variants[idx]);
    if (argument_idx < num_arguments && find_refusal(launcher, variants[idx].spec, why) == num_arguments)
      return fail_choice(launcher, argument_idx, chosen_idx, idx, err);
  }
  return PURR_STATUS_OK;
}

static purr_status_t choose(const purr_launcher_t *launcher, decision_t *decision, purr_error_t *err) {
  const purr_kernel_t *kernel = launcher->kernel;
  const int num_arguments = purr__triton_spec(kernel)->num_arguments;
  char why[PURR__TRITON_WHY_BYTES], sentence[PURR__TRITON_WHY_BYTES + 96] = "";
  int refused = 0;
  purr_status_t status = PURR_STATUS_INVALID_ARGUMENT;
  for (int v = 0; v < launcher->num_usable; v++) {
    const int idx = launcher->order[v];
    const purr__triton_spec_t *spec = kernel->variants[idx].spec;
    int i = find_refusal(launcher, spec, why);
    status = PURR_STATUS_INVALID_ARGUMENT;
    if (i == num_arguments) {
      i = find_unset(launcher, spec);
      if (i == num_arguments) {
        decision->variant = &kernel->variants[idx];
        decision->loaded = &launcher->loaded[idx];
        decision->variant_idx = idx;
        return launcher->leaves_constants_open ? PURR_STATUS_OK : check_unset(launcher, idx, err);
      }
      (void)purr__triton_takes(&spec->arguments[i], &launcher->values[i], why);
      status = PURR_STATUS_INVALID_STATE;
    }
    refused = idx;
    snprintf(sentence, sizeof sentence, "argument %d ('%s') %s", i, spec->arguments[i].name, why);
    /* It is missing whatever the other variants take. */
    if (status == PURR_STATUS_INVALID_STATE) break;
  }
  if (launcher->num_usable == 1 || status == PURR_STATUS_INVALID_STATE)
    return purr__fail(err, status, "kernel %.100s cannot be launched: %s", kernel->name, sentence);
  return purr__fail(err, status,
                    "none of the %d variants of kernel %.100s takes these arguments; of variant %d, the most "
                    "general one, %s",
                    launcher->num_usable, kernel->name, refused, sentence);
}

/* The integer arguments and constants, for the rule of the grid. */
typedef struct names {
  const purr__triton_spec_t *spec;
  const purr__triton_value_t *values;
} names_t;

static bool look_up(const void *user, const char *name, uint64_t length, int64_t *out_value) {
  const names_t *names = user;
  for (int i = 0; i < names->spec->num_arguments; i++) {
    const purr__triton_argument_t *argument = &names->spec->arguments[i];
    if (strlen(argument->name) != length || memcmp(argument->name, name, length) != 0) continue;
    const bool is_constant = argument->constant == PURR__TRITON_CONSTANT_INTEGER;
    *out_value = is_constant ? argument->constant_integer : names->values[i].integer;
    return is_constant || names->values[i].set == PURR__TRITON_SET_INTEGER;
  }
  return false;
}

static purr_status_t find_grid(const purr_launcher_t *launcher, decision_t *decision, purr_error_t *err) {
  static const char sides[3] = {'x', 'y', 'z'};
  const purr__triton_spec_t *spec = decision->variant->spec;
  const names_t names = {.spec = spec, .values = launcher->values};
  int64_t programs[3];
  char why[160];
  for (int i = 0; i < 3; i++) {
    programs[i] = launcher->grid[i];
    if (launcher->has_grid) continue;
    if (spec->grid[i][0] == '\0')
      return purr__fail(err, PURR_STATUS_INVALID_STATE,
                        "kernel %.100s has no rule for its grid; set it with purr_launcher_set_grid",
                        launcher->kernel->name);
    if (!purr__grid_evaluate(spec->grid[i], look_up, &names, &programs[i], why, sizeof why))
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "side %c of the grid of kernel %.100s is \"%s\": %s",
                        sides[i], launcher->kernel->name, spec->grid[i], why);
  }
  uint64_t num_programs = 1;
  const int *cluster = decision->variant->entry.cluster;
  for (int i = 0; i < 3; i++) {
    const int64_t most = i == 0 ? INT32_MAX : 65535;
    if (programs[i] < 0 || programs[i] > most / cluster[i])
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                        "side %c of the grid of kernel %.100s is %lld; allowed are 0 to %lld%s", sides[i],
                        launcher->kernel->name, (long long)programs[i], (long long)(most / cluster[i]),
                        cluster[i] > 1 ? ", since clusters multiply it" : "");
    decision->grid[i] = (uint32_t)(programs[i] * cluster[i]);
    num_programs = num_programs * (uint64_t)programs[i]; /* below 2^31 * 2^16 * 2^16 */
  }
  const uint64_t blocks = (uint64_t)(cluster[0] * cluster[1] * cluster[2]);
  if (!purr__multiply(num_programs, blocks * (uint64_t)spec->scratch_bytes, &decision->scratch_bytes))
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "the scratch memory of %llu programs of kernel %.100s is too large",
                      (unsigned long long)num_programs, launcher->kernel->name);
  return PURR_STATUS_OK;
}

static purr_status_t decide(const purr_launcher_t *launcher, decision_t *decision, purr_error_t *err) {
  purr_status_t status = choose(launcher, decision, err);
  return status == PURR_STATUS_OK ? find_grid(launcher, decision, err) : status;
}

purr_status_t purr_launcher_query(purr_launcher_t *launcher, purr_launcher_info_t *out_info, purr_error_t *err) {
  decision_t decision;
  purr_status_t status = purr__check(launcher, PURR__LAUNCHER, err);
  if (status == PURR_STATUS_OK) status = decide(launcher, &decision, err);
  if (status != PURR_STATUS_OK) return status;
  const purr__triton_variant_t *variant = decision.variant;
  const purr_launcher_info_t own = {
      .struct_size = sizeof own,
      .device = launcher->device->ordinal,
      .variant = decision.variant_idx,
      .grid = {decision.grid[0], decision.grid[1], decision.grid[2]},
      .num_threads = (uint32_t)variant->entry.threads,
      .cluster = {(uint32_t)variant->entry.cluster[0], (uint32_t)variant->entry.cluster[1],
                  (uint32_t)variant->entry.cluster[2]},
      .shared_bytes = (uint32_t)variant->entry.shared_bytes,
      .num_registers = decision.loaded->num_registers,
      .scratch_bytes = decision.scratch_bytes,
      .scratch_align = (uint32_t)variant->spec->scratch_align,
      .is_cooperative = variant->spec->is_cooperative,
      .may_overlap = variant->spec->may_overlap};
  return purr__write_struct(out_info, &own, sizeof own, "purr_launcher_info_t", err);
}

/* ---- launching ---- */

static bool is_same_tensor(const purr__triton_value_t *a, const purr__triton_value_t *b) {
  return a->address == b->address && a->dtype == b->dtype && a->rank == b->rank && a->flags == b->flags &&
         memcmp(a->shape, b->shape, sizeof a->shape) == 0 && memcmp(a->stride, b->stride, sizeof a->stride) == 0;
}

static purr_status_t find_map(purr_launcher_t *launcher, const decision_t *decision, int argument_idx,
                              const CUtensorMap **out_map, purr_error_t *err) {
  const purr__triton_value_t *value = &launcher->values[argument_idx];
  map_entry_t *entries = &launcher->maps[argument_idx * MAPS_PER_ARGUMENT];
  for (int i = 0; i < MAPS_PER_ARGUMENT; i++)
    if (entries[i].is_used && entries[i].variant_idx == decision->variant_idx &&
        is_same_tensor(&entries[i].value, value)) {
      *out_map = &entries[i].map;
      return PURR_STATUS_OK;
    }
  map_entry_t *entry = &entries[launcher->next_map[argument_idx]];
  launcher->next_map[argument_idx] = (launcher->next_map[argument_idx] + 1) % MAPS_PER_ARGUMENT;
  entry->is_used = false;
  const purr__triton_spec_t *spec = decision->variant->spec;
  purr_status_t status = purr__triton_encode(launcher->device, &spec->arguments[argument_idx], value, &entry->map, err);
  if (status != PURR_STATUS_OK) return status;
  entry->is_used = true;
  entry->variant_idx = decision->variant_idx;
  entry->value = *value;
  *out_map = &entry->map;
  return PURR_STATUS_OK;
}

/* An address for each parameter. */
static purr_status_t fill_params(purr_launcher_t *launcher, const decision_t *decision, purr_error_t *err) {
  const purr__triton_variant_t *variant = decision->variant;
  for (int p = 0; p < variant->num_params; p++) {
    const purr__triton_param_t *param = &variant->params[p];
    const purr__triton_argument_t *argument = &variant->spec->arguments[param->argument_idx];
    const purr__triton_value_t *value = &launcher->values[param->argument_idx];
    uint64_t *slot = &launcher->slots[p];
    const CUtensorMap *map;
    purr_status_t status;
    *slot = 0;
    launcher->params[p] = slot;
    switch (param->source) {
      case PURR__TRITON_FROM_VALUE:
        if (param->bytes > (int)sizeof *slot)
          launcher->params[p] = value->bytes; /* a map of the caller's */
        else
          purr__triton_write(argument, value, slot);
        break;
      case PURR__TRITON_FROM_MAP:
        status = find_map(launcher, decision, param->argument_idx, &map, err);
        if (status != PURR_STATUS_OK) return status;
        launcher->params[p] = map;
        break;
      case PURR__TRITON_FROM_BASE:
        *slot = value->address;
        break;
      case PURR__TRITON_FROM_SHAPE:
        *slot = (uint64_t)purr__triton_shape(argument, variant->spec->version, value, param->dim);
        break;
      case PURR__TRITON_FROM_STRIDE:
        *slot = (uint64_t)value->stride[param->dim];
        break;
      case PURR__TRITON_FROM_NAN_FLAG:
        *slot = (value->flags & PURR_DESCRIPTOR_NAN) != 0;
        break;
      case PURR__TRITON_FROM_TF32_FLAG:
        *slot = (value->flags & PURR_DESCRIPTOR_TF32) != 0;
        break;
      case PURR__TRITON_FROM_SCRATCH:
        *slot = decision->scratch_bytes > 0 ? (uintptr_t)launcher->scratch : 0;
        break;
      case PURR__TRITON_FROM_NOTHING:
        break;
    }
  }
  launcher->params[variant->num_params] = NULL;
  return PURR_STATUS_OK;
}

static purr_status_t check_scratch(const purr_launcher_t *launcher, const decision_t *decision, purr_error_t *err) {
  const int32_t align = decision->variant->spec->scratch_align;
  if (launcher->scratch_bytes < decision->scratch_bytes)
    return purr__fail(
        err, PURR_STATUS_BUFFER_TOO_SMALL,
        "this launch of kernel %.100s needs %llu bytes of scratch memory at a multiple of %d, it has %llu; "
        "give it with purr_launcher_set_scratch",
        launcher->kernel->name, (unsigned long long)decision->scratch_bytes, align,
        (unsigned long long)launcher->scratch_bytes);
  if (decision->scratch_bytes > 0 && (uintptr_t)launcher->scratch % (uintptr_t)align != 0)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "the scratch memory of kernel %.100s is at %p, but must be at a multiple of %d",
                      launcher->kernel->name, launcher->scratch, align);
  return PURR_STATUS_OK;
}

static purr_status_t enqueue(purr_launcher_t *launcher, const decision_t *decision, void *stream, purr_error_t *err) {
  const purr__manifest_kernel_t *entry = &decision->variant->entry;
  purr__launch_t launch = {.grid = {decision->grid[0], decision->grid[1], decision->grid[2]},
                           .threads = (uint32_t)entry->threads,
                           .shared_bytes = (uint32_t)entry->shared_bytes,
                           .is_cooperative = decision->variant->spec->is_cooperative,
                           .may_overlap = decision->variant->spec->may_overlap,
                           .stream = stream};
  if (entry->cluster[0] * entry->cluster[1] * entry->cluster[2] > 1) {
    for (int i = 0; i < 3; i++) launch.cluster[i] = (uint32_t)entry->cluster[i];
    launch.spreads_clusters = true;
  }
  purr_status_t status = purr__device_enter(launcher->device, err);
  if (status != PURR_STATUS_OK) return status;
  status = purr__device_check_stream(launcher->device, stream, err);
  if (status == PURR_STATUS_OK) status = fill_params(launcher, decision, err);
  if (status == PURR_STATUS_OK) status = purr__kernel_launch_list(decision->loaded, &launch, launcher->params, err);
  purr__device_leave(launcher->device);
  return status;
}

purr_status_t purr_launcher_launch(purr_launcher_t *launcher, void *stream, purr_error_t *err) {
  purr_status_t status = purr__check(launcher, PURR__LAUNCHER, err);
  return status == PURR_STATUS_OK ? purr__launcher_launch(launcher, stream, err) : status;
}

purr_status_t purr__launcher_launch(purr_launcher_t *launcher, void *stream, purr_error_t *err) {
  decision_t decision;
  purr_status_t status = decide(launcher, &decision, err);
  if (status == PURR_STATUS_OK) status = check_scratch(launcher, &decision, err);
  if (status != PURR_STATUS_OK || decision.grid[0] == 0 || decision.grid[1] == 0 || decision.grid[2] == 0)
    return status;
  return enqueue(launcher, &decision, stream, err);
}
