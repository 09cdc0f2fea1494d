/* Checking the caller's tensors: what comes out of here can be used without another look. */
#ifndef PURR_TENSOR_H
#define PURR_TENSOR_H

#include "base/base.h"

/* Bytes of one element, 0 for an unknown type. */
int64_t purr__dtype_bytes(int32_t dtype);
/* "BF16"; "dtype 77" style numbers are the caller's to print. Static storage, "unknown" otherwise. */
const char *purr__dtype_name(int32_t dtype);

/* A checked view. A matrix is one slice. Element (r, c) of slice s is r * row_stride + c * column_stride elements after
 * purr__view_slice(s). */
typedef struct purr__view {
  char *data;
  void *const *pointers; /* per slice, else NULL */
  int32_t dtype;
  int64_t num_rows;
  int64_t slice_stride, row_stride, column_stride; /* elements */
  int64_t offset; /* elements from the start of each slice; the up half of a packed gate_up tensor has one */
} purr__view_t;

/* What a tensor must look like. */
typedef struct purr__tensor_rule {
  const char *name;      /* for messages, as the caller knows it: "x", "weights.down" */
  int32_t dtypes[2];     /* allowed types; 0 = unused */
  int num_dims;          /* 1 to 3 */
  int64_t shape[3];      /* -1 = any */
  int64_t row_alignment; /* rows and base at multiples of this many bytes; 0 = of the element */
  bool unit_column;      /* the last stride must be 1 */
  bool written;          /* no two elements may be one */
  bool may_repeat;       /* a stride may be 0, and others not */
} purr__tensor_rule_t;

/* Checks `tensor` against `rule`. A dimension of size 0 needs no data. On success out_view is complete. */
purr_status_t purr__tensor_check(const purr_tensor_t *tensor, const purr__tensor_rule_t *rule, purr__view_t *out_view,
                                 purr_error_t *err);

/* Whether no two of the elements coincide, each `unit` wide. A few layouts that interleave in odd ways are not seen to
 * be. */
bool purr__strides_are_distinct(const int64_t counts[], const int64_t strides[], int num_dims, int64_t unit);

static inline char *purr__view_slice(const purr__view_t *view, int64_t slice, int64_t element_bytes) {
  char *start =
      view->pointers != NULL ? view->pointers[slice] : view->data + slice * view->slice_stride * element_bytes;
  return start + view->offset * element_bytes;
}

#endif
