/* A matrix as a caller would hold it: 4 KiB canaries on both sides and, if wanted, gaps between its rows. */
#ifndef PURR_TEST_BUFFER_H
#define PURR_TEST_BUFFER_H

#include <stdbool.h>

#include "purr.h"

#define TEST_POISON 0xFF /* NaN in BF16, FP32, E4M3 and E8M0; -1 as an id */

typedef struct test_buffer {
  char *block;
  int64_t rows, columns, row_stride, element_bytes;
} test_buffer_t;

test_buffer_t test_buffer_create(int64_t rows, int64_t columns, int64_t gap, int64_t element_bytes);
void test_buffer_free(test_buffer_t *buffer);

char *test_buffer_data(const test_buffer_t *buffer);
char *test_buffer_row(const test_buffer_t *buffer, int64_t row);
/* Copies all rows from or to [rows, columns] without gaps. */
void test_buffer_set(const test_buffer_t *buffer, const void *from);
void test_buffer_get(const test_buffer_t *buffer, void *to);
/* Poisons the rows, leaving the gaps as canaries. */
void test_buffer_poison(const test_buffer_t *buffer);

bool test_buffer_canaries_intact(const test_buffer_t *buffer);
/* Whether nothing was written since it was poisoned. */
bool test_buffer_untouched(const test_buffer_t *buffer);

purr_tensor_t test_buffer_matrix(const test_buffer_t *buffer, int32_t dtype);
/* [experts, rows, columns] of a buffer of experts * rows rows. */
purr_tensor_t test_buffer_experts(const test_buffer_t *buffer, int32_t dtype, int64_t experts);

#endif
