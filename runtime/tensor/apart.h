/* Whether the tensors of one call keep out of each other's memory. */
#ifndef PURR_APART_H
#define PURR_APART_H

#include "tensor/tensor.h"

/* A tensor of the call. */
typedef struct purr__area {
  const char *name; /* for messages, as in purr__tensor_rule_t */
  const purr__view_t *view;
  int64_t num_slices, num_rows, num_columns; /* the view may be of more */
  bool written;
} purr__area_t;

/* INVALID_ARGUMENT when a written tensor shares memory with another one. Tensors may interleave, row by row or slice by
 * slice, where their strides are equal; where they are not, overlapping ranges are taken for an overlap. Tensors with
 * an array of pointers are not looked at. */
purr_status_t purr__check_apart(const purr__area_t *areas, int num_areas, purr_error_t *err);

#endif
