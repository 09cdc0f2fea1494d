/* Checking the caller's tensors. */
#include <stdio.h>

#include "tensor/tensor.h"

static const struct {
  int32_t dtype;
  int bytes;
  const char *name;
} dtypes[] = {
    {PURR_DTYPE_BF16, 2, "BF16"},     {PURR_DTYPE_FP32, 4, "FP32"},     {PURR_DTYPE_INT32, 4, "INT32"},
    {PURR_DTYPE_INT64, 8, "INT64"},   {PURR_DTYPE_E4M3, 1, "E4M3"},     {PURR_DTYPE_E8M0, 1, "E8M0"},
    {PURR_DTYPE_FP16, 2, "FP16"},     {PURR_DTYPE_FP64, 8, "FP64"},     {PURR_DTYPE_E5M2, 1, "E5M2"},
    {PURR_DTYPE_INT8, 1, "INT8"},     {PURR_DTYPE_UINT8, 1, "UINT8"},   {PURR_DTYPE_INT16, 2, "INT16"},
    {PURR_DTYPE_UINT16, 2, "UINT16"}, {PURR_DTYPE_UINT32, 4, "UINT32"}, {PURR_DTYPE_UINT64, 8, "UINT64"},
    {PURR_DTYPE_BOOL, 1, "BOOL"},
};

int64_t purr__dtype_bytes(int32_t dtype) {
  for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
    if (dtypes[i].dtype == dtype) return dtypes[i].bytes;
  return 0;
}

const char *purr__dtype_name(int32_t dtype) {
  for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
    if (dtypes[i].dtype == dtype) return dtypes[i].name;
  return "unknown";
}

/* "[8, 256, 128]"; in a rule, * stands for any size. */
static const char *shape_text(char *buffer, size_t capacity, const int64_t *shape, int num_dims, bool is_rule) {
  size_t length = (size_t)snprintf(buffer, capacity, "[");
  for (int i = 0; i < num_dims && length < capacity; i++) {
    if (is_rule && shape[i] < 0)
      length += (size_t)snprintf(buffer + length, capacity - length, "%s*", i ? ", " : "");
    else
      length += (size_t)snprintf(buffer + length, capacity - length, "%s%lld", i ? ", " : "", (long long)shape[i]);
  }
  if (length < capacity) snprintf(buffer + length, capacity - length, "]");
  return buffer;
}

static purr_status_t check_address(const purr__tensor_rule_t *rule, const void *address, int64_t alignment,
                                   purr_error_t *err) {
  if (address == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s has no data (NULL)", rule->name);
  if ((uintptr_t)address % (uintptr_t)alignment != 0)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s starts at address %p; it must be a multiple of %lld bytes",
                      rule->name, address, (long long)alignment);
  return PURR_STATUS_OK;
}

bool purr__strides_are_distinct(const int64_t counts[], const int64_t strides[], int num_dims, int64_t unit) {
  /* Ascending by stride, each must step over all that the smaller ones reach. */
  for (int d = 0; d < num_dims; d++)
    if (counts[d] == 0) return true;
  bool used[4] = {false};
  int64_t reach = unit;
  for (int i = 0; i < num_dims; i++) {
    int next = -1;
    for (int d = 0; d < num_dims; d++)
      if (!used[d] && (next < 0 || strides[d] < strides[next])) next = d;
    used[next] = true;
    if (counts[next] == 1) continue;
    if (strides[next] < reach) return false;
    reach += strides[next] * (counts[next] - 1);
  }
  return true;
}

purr_status_t purr__tensor_check(const purr_tensor_t *tensor, const purr__tensor_rule_t *rule, purr__view_t *out_view,
                                 purr_error_t *err) {
  purr_tensor_t own;
  purr_status_t status = purr__read_struct(&own, sizeof own, tensor, rule->name, err);
  if (status != PURR_STATUS_OK) return status;

  const int64_t element_bytes = purr__dtype_bytes(own.dtype);
  if (own.dtype == PURR_DTYPE_NONE || (own.dtype != rule->dtypes[0] && own.dtype != rule->dtypes[1]))
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s has dtype %s (%d); allowed: %s%s%s", rule->name,
                      purr__dtype_name(own.dtype), own.dtype, purr__dtype_name(rule->dtypes[0]),
                      rule->dtypes[1] ? ", " : "", rule->dtypes[1] ? purr__dtype_name(rule->dtypes[1]) : "");
  status = purr__check_reserved(own.reserved, rule->name, err);
  if (status != PURR_STATUS_OK) return status;
  if (own.scales != NULL)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s has scales; a %s tensor has none", rule->name,
                      purr__dtype_name(own.dtype));
  char found[96], wanted[96];
  bool shape_fits = own.num_dims == rule->num_dims;
  for (int i = 0; shape_fits && i < rule->num_dims; i++)
    shape_fits = own.shape[i] >= 0 && (rule->shape[i] < 0 || own.shape[i] == rule->shape[i]);
  if (!shape_fits)
    return purr__fail(
        err, PURR_STATUS_INVALID_ARGUMENT, "%s has shape %s; it must be %s", rule->name,
        shape_text(found, sizeof found, own.shape, own.num_dims < 0 || own.num_dims > 4 ? 0 : own.num_dims, false),
        shape_text(wanted, sizeof wanted, rule->shape, rule->num_dims, true));

  /* All strides zero: contiguous. */
  const int num_dims = rule->num_dims;
  bool contiguous = true;
  for (int i = 0; i < num_dims; i++) contiguous = contiguous && own.stride[i] == 0;
  if (contiguous) {
    int64_t stride = 1;
    for (int i = num_dims - 1; i >= 0; i--) {
      own.stride[i] = stride;
      if (__builtin_mul_overflow(stride, own.shape[i] > 0 ? own.shape[i] : 1, &stride))
        return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s has shape %s, more elements than fit in memory",
                          rule->name, shape_text(found, sizeof found, own.shape, num_dims, false));
    }
  }
  int64_t num_elements = 1, reach = 0;
  for (int i = 0; i < num_dims; i++) {
    if (own.stride[i] < 0)
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s has stride[%d] = %lld; strides are not negative",
                        rule->name, i, (long long)own.stride[i]);
    int64_t step;
    if (own.pointers != NULL && i == 0) continue;
    if (__builtin_mul_overflow(own.stride[i], own.shape[i] > 0 ? own.shape[i] - 1 : 0, &step) ||
        __builtin_add_overflow(reach, step, &reach) || reach > INT64_MAX / 16)
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s has stride[%d] = %lld, which reaches beyond 2^59 bytes",
                        rule->name, i, (long long)own.stride[i]);
  }
  for (int i = 0; i < num_dims; i++) num_elements = own.shape[i] == 0 ? 0 : num_elements;

  const int row_dim = num_dims - 2; /* -1 for a vector */
  const int64_t alignment = rule->row_alignment ? rule->row_alignment : element_bytes;
  if (rule->unit_column && own.stride[num_dims - 1] != 1 && own.shape[num_dims - 1] > 1)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s has stride[%d] = %lld; elements of a row must be adjacent",
                      rule->name, num_dims - 1, (long long)own.stride[num_dims - 1]);
  for (int i = 0; i <= row_dim; i++)
    if (!(own.pointers != NULL && i == 0) && own.shape[i] > 1 && own.stride[i] * element_bytes % alignment != 0)
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                        "%s has stride[%d] = %lld elements (%lld bytes); it must be a multiple of %lld bytes",
                        rule->name, i, (long long)own.stride[i], (long long)(own.stride[i] * element_bytes),
                        (long long)alignment);

  /* A forgotten stride rather than one row for all tokens: the copy engine takes no such tensor, so no backend does. */
  for (int i = 0; i < num_dims; i++)
    if (!rule->may_repeat && own.stride[i] == 0 && own.shape[i] > 1 && !(own.pointers != NULL && i == 0))
      return purr__fail(
          err, PURR_STATUS_INVALID_ARGUMENT,
          "%s has stride[%d] = 0 in a dimension of %lld; give every stride, or 0 for all where the tensor "
          "is contiguous",
          rule->name, i, (long long)own.shape[i]);
  /* The stride of a dimension of one may be anything; what is built on this need not care. */
  for (int i = num_dims - 1; i >= 0; i--)
    if (own.shape[i] <= 1 && !(own.pointers != NULL && i == 0))
      own.stride[i] = i == num_dims - 1 ? 1 : own.stride[i + 1] * (own.shape[i + 1] > 0 ? own.shape[i + 1] : 1);

  const int64_t counts[3] = {own.pointers != NULL ? 1 : own.shape[0], own.shape[1], own.shape[2]};
  if (rule->written && !purr__strides_are_distinct(counts, own.stride, num_dims, 1))
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "%s has shape %s with strides %s; it is written, and its elements would overlap", rule->name,
                      shape_text(found, sizeof found, own.shape, num_dims, false),
                      shape_text(wanted, sizeof wanted, own.stride, num_dims, false));

  if (own.pointers != NULL) {
    if (num_dims != 3)
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                        "%s has a pointer array; only tensors with an expert dimension may", rule->name);
    for (int64_t i = 0; num_elements > 0 && i < own.shape[0]; i++) {
      status = check_address(rule, own.pointers[i], alignment, err);
      if (status != PURR_STATUS_OK) return status;
    }
  } else if (num_elements > 0) {
    status = check_address(rule, own.data, alignment, err);
    if (status != PURR_STATUS_OK) return status;
  }

  *out_view = (purr__view_t){.data = own.data,
                             .pointers = own.pointers,
                             .dtype = own.dtype,
                             .num_rows = row_dim >= 0 ? own.shape[row_dim] : 1,
                             .slice_stride = num_dims == 3 ? own.stride[0] : 0,
                             .row_stride = row_dim >= 0 ? own.stride[row_dim] : 0,
                             .column_stride = own.stride[num_dims - 1]};
  return PURR_STATUS_OK;
}
