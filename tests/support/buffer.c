#include "support/buffer.h"

#include <stdlib.h>
#include <string.h>

#define CANARY_BYTES 4096
#define CANARY 0xA5

static int64_t num_bytes(const test_buffer_t *b) { return b->rows * b->row_stride * b->element_bytes; }

test_buffer_t test_buffer_create(int64_t rows, int64_t columns, int64_t gap, int64_t element_bytes) {
  test_buffer_t b = {NULL, rows, columns, columns + gap, element_bytes};
  const size_t bytes = (size_t)(num_bytes(&b) + 2 * CANARY_BYTES);
  b.block = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  memset(b.block, CANARY, bytes);
  return b;
}

void test_buffer_free(test_buffer_t *b) {
  free(b->block);
  b->block = NULL;
}

char *test_buffer_data(const test_buffer_t *b) { return b->block + CANARY_BYTES; }

char *test_buffer_row(const test_buffer_t *b, int64_t row) {
  return test_buffer_data(b) + row * b->row_stride * b->element_bytes;
}

void test_buffer_set(const test_buffer_t *b, const void *from) {
  const int64_t bytes = b->columns * b->element_bytes;
  for (int64_t r = 0; r < b->rows; r++) memcpy(test_buffer_row(b, r), (const char *)from + r * bytes, (size_t)bytes);
}

void test_buffer_get(const test_buffer_t *b, void *to) {
  const int64_t bytes = b->columns * b->element_bytes;
  for (int64_t r = 0; r < b->rows; r++) memcpy((char *)to + r * bytes, test_buffer_row(b, r), (size_t)bytes);
}

void test_buffer_poison(const test_buffer_t *b) {
  for (int64_t r = 0; r < b->rows; r++)
    memset(test_buffer_row(b, r), TEST_POISON, (size_t)(b->columns * b->element_bytes));
}

static bool all_bytes(const char *bytes, int64_t num, int value) {
  for (int64_t i = 0; i < num; i++)
    if ((unsigned char)bytes[i] != value) return false;
  return true;
}

bool test_buffer_canaries_intact(const test_buffer_t *b) {
  bool intact =
      all_bytes(b->block, CANARY_BYTES, CANARY) && all_bytes(test_buffer_data(b) + num_bytes(b), CANARY_BYTES, CANARY);
  const int64_t used = b->columns * b->element_bytes, row = b->row_stride * b->element_bytes;
  for (int64_t r = 0; r < b->rows; r++) intact = intact && all_bytes(test_buffer_row(b, r) + used, row - used, CANARY);
  return intact;
}

bool test_buffer_untouched(const test_buffer_t *b) {
  for (int64_t r = 0; r < b->rows; r++)
    if (!all_bytes(test_buffer_row(b, r), b->columns * b->element_bytes, TEST_POISON)) return false;
  return true;
}

purr_tensor_t test_buffer_matrix(const test_buffer_t *b, int32_t dtype) {
  return (purr_tensor_t){.struct_size = sizeof(purr_tensor_t),
                         .dtype = dtype,
                         .num_dims = 2,
                         .data = test_buffer_data(b),
                         .shape = {b->rows, b->columns},
                         .stride = {b->row_stride, 1}};
}

purr_tensor_t test_buffer_experts(const test_buffer_t *b, int32_t dtype, int64_t experts) {
  const int64_t rows = b->rows / experts;
  return (purr_tensor_t){.struct_size = sizeof(purr_tensor_t),
                         .dtype = dtype,
                         .num_dims = 3,
                         .data = test_buffer_data(b),
                         .shape = {experts, rows, b->columns},
                         .stride = {rows * b->row_stride, b->row_stride, 1}};
}
