#include "trace/intervals.h"

void purr__sort(void *items, void *scratch, int64_t num, size_t item_bytes, purr__before_fn before) {
  char *from = items, *to = scratch;
  for (int64_t width = 1; width < num; width *= 2) {
    for (int64_t begin = 0; begin < num; begin += 2 * width) {
      const int64_t middle = purr__min(begin + width, num), end = purr__min(begin + 2 * width, num);
      int64_t left = begin, right = middle;
      for (int64_t i = begin; i < end; i++) {
        const bool takes_right = left == middle || (right < end && before(from + (size_t)right * item_bytes,
                                                                          from + (size_t)left * item_bytes));
        const int64_t taken = takes_right ? right++ : left++;
        memcpy(to + (size_t)i * item_bytes, from + (size_t)taken * item_bytes, item_bytes);
      }
    }
    char *other = from;
    from = to;
    to = other;
  }
  if (from != (char *)items && num > 0) memcpy(items, from, (size_t)num * item_bytes);
}

static bool begins_before(const void *a, const void *b) {
  return ((const purr__interval_t *)a)->begin < ((const purr__interval_t *)b)->begin;
}

int64_t purr__intervals_unite(purr__interval_t *intervals, purr__interval_t *scratch, int64_t num) {
  purr__sort(intervals, scratch, num, sizeof *intervals, begins_before);
  int64_t num_united = 0;
  for (int64_t i = 0; i < num; i++) {
    if (num_united > 0 && intervals[i].begin <= intervals[num_united - 1].end)
      intervals[num_united - 1].end = purr__max(intervals[num_united - 1].end, intervals[i].end);
    else
      intervals[num_united++] = intervals[i];
  }
  return num_united;
}

int64_t purr__intervals_length(const purr__interval_t *intervals, int64_t num) {
  int64_t length = 0;
  for (int64_t i = 0; i < num; i++) length += intervals[i].end - intervals[i].begin;
  return length;
}

int64_t purr__intervals_common(const purr__interval_t *a, int64_t num_a, const purr__interval_t *b, int64_t num_b) {
  int64_t length = 0;
  for (int64_t i = 0, j = 0; i < num_a && j < num_b;) {
    length += purr__max(0, purr__min(a[i].end, b[j].end) - purr__max(a[i].begin, b[j].begin));
    if (a[i].end < b[j].end)
      i++;
    else
      j++;
  }
  return length;
}
