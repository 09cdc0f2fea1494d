#include "tensor/apart.h"

/* Where an area lies, in bytes: slices of rows, each row without a hole. */
typedef struct span {
  uintptr_t begin, end; /* equal: nothing */
  uint64_t slice_stride, row_stride;
  uint64_t slice_width, row_width;
} span_t;

static span_t span_of(const purr__area_t *area) {
  const purr__view_t *view = area->view;
  const uint64_t element = (uint64_t)purr__dtype_bytes(view->dtype);
  span_t span = {0};
  if (view->pointers != NULL || area->num_slices == 0 || area->num_rows == 0 || area->num_columns == 0) return span;
  span.slice_stride = (uint64_t)view->slice_stride * element;
  span.row_stride = (uint64_t)view->row_stride * element;
  span.row_width = ((uint64_t)(area->num_columns - 1) * (uint64_t)view->column_stride + 1) * element;
  span.slice_width = (uint64_t)(area->num_rows - 1) * span.row_stride + span.row_width;
  span.begin = (uintptr_t)purr__view_slice(view, 0, (int64_t)element);
  span.end = span.begin + (uint64_t)(area->num_slices - 1) * span.slice_stride + span.slice_width;
  return span;
}

/* Whether pieces of a and of b, every `stride` bytes one of each, miss each other. */
static bool interleave(const span_t *a, const span_t *b, uint64_t stride, uint64_t width_a, uint64_t width_b) {
  if (stride == 0) return false;
  const uint64_t distance =
      b->begin >= a->begin ? (b->begin - a->begin) % stride : (stride - (a->begin - b->begin) % stride) % stride;
  return distance >= width_a && distance + width_b <= stride;
}

static bool are_apart(const span_t *a, const span_t *b) {
  if (a->begin == a->end || b->begin == b->end || a->end <= b->begin || b->end <= a->begin) return true;
  if (a->slice_stride == b->slice_stride && interleave(a, b, a->slice_stride, a->slice_width, b->slice_width))
    return true;
  /* By rows, where those of all slices stand in one grid. */
  return a->row_stride == b->row_stride && a->row_stride != 0 && a->slice_stride % a->row_stride == 0 &&
         b->slice_stride % b->row_stride == 0 && interleave(a, b, a->row_stride, a->row_width, b->row_width);
}

purr_status_t purr__check_apart(const purr__area_t *areas, int num_areas, purr_error_t *err) {
  for (int i = 0; i < num_areas; i++) {
    if (!areas[i].written) continue;
    const span_t written = span_of(&areas[i]);
    for (int j = 0; j < num_areas; j++) {
      if (j == i || (areas[j].written && j < i)) continue;
      const span_t other = span_of(&areas[j]);
      if (are_apart(&written, &other)) continue;
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                        "%s at %p to %p overlaps %s at %p to %p; what a call writes must not share memory with its "
                        "other tensors",
                        areas[i].name, (void *)written.begin, (void *)written.end, areas[j].name, (void *)other.begin,
                        (void *)other.end);
    }
  }
  return PURR_STATUS_OK;
}
