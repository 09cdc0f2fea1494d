/* An allocator for tests: counts what lives, checks that release gets back what allocate gave, fails on demand.
 *
 *   purr_test_allocator_t memory;
 *   purr_test_allocator_init(&memory);
 *   purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
 *   desc.host_allocator = &memory.hooks;
 *   ...
 *   CU_ASSERT_EQUAL(memory.num_live, 0);
 *   CU_ASSERT_EQUAL(memory.num_wrong, 0);
 */
#ifndef PURR_TEST_ALLOCATOR_H
#define PURR_TEST_ALLOCATOR_H

#include <stdatomic.h>
#include <stdbool.h>

#include "purr.h"

typedef struct purr_test_allocator {
  purr_allocator_t hooks;
  atomic_llong num_calls; /* calls of allocate */
  atomic_llong num_live;  /* blocks not yet released */
  atomic_llong live_bytes;
  atomic_llong num_wrong; /* bad alignments asked for; releases of another size, of no block, or twice */
  long long fail_at;      /* the call of allocate that fails, from 1; 0 = none */
  bool fail_for_good;     /* and all later ones */
  bool keeps_released;    /* released blocks stay readable, so that a destroyed handle can be tried; see free_kept */
  _Atomic(void *) kept;
} purr_test_allocator_t;

void purr_test_allocator_init(purr_test_allocator_t *allocator);
/* Frees the blocks that were kept. */
void purr_test_allocator_free_kept(purr_test_allocator_t *allocator);

#endif
