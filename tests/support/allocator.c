#include "support/allocator.h"

#include <stdlib.h>
#include <string.h>

/* Stands right in front of the block. */
typedef struct label {
  uint64_t magic, bytes, offset;
  void *next; /* of the kept blocks: where their memory begins */
} label_t;
#define LIVE UINT64_C(0x4c49564550555252)
#define DEAD UINT64_C(0x4445414450555252)

static void *allocate(void *user, uint64_t bytes, uint64_t alignment) {
  purr_test_allocator_t *allocator = user;
  long long call = atomic_fetch_add(&allocator->num_calls, 1) + 1;
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) allocator->num_wrong++;
  if (allocator->fail_at > 0 && (call == allocator->fail_at || (allocator->fail_for_good && call > allocator->fail_at)))
    return NULL;
  uint64_t offset = alignment > 64 ? alignment : 64;
  char *memory = aligned_alloc(offset, (offset + bytes + offset - 1) / offset * offset);
  if (memory == NULL) return NULL;
  label_t label = {LIVE, bytes, offset, NULL};
  memcpy(memory + offset - sizeof label, &label, sizeof label);
  memset(memory + offset, 0xA5, bytes); /* nothing may rely on fresh memory being zero */
  allocator->num_live++;
  allocator->live_bytes += (long long)bytes;
  return memory + offset;
}

static void release(void *user, void *block, uint64_t bytes) {
  purr_test_allocator_t *allocator = user;
  label_t label = {0};
  if (block != NULL) memcpy(&label, (char *)block - sizeof label, sizeof label);
  if (label.magic != LIVE || label.bytes != bytes) {
    allocator->num_wrong++;
    return;
  }
  allocator->num_live--;
  allocator->live_bytes -= (long long)bytes;
  char *memory = (char *)block - label.offset;
  label.magic = DEAD;
  if (allocator->keeps_released) label.next = atomic_exchange(&allocator->kept, block);
  memcpy((char *)block - sizeof label, &label, sizeof label);
  if (!allocator->keeps_released) free(memory);
}

void purr_test_allocator_free_kept(purr_test_allocator_t *allocator) {
  for (char *block = atomic_exchange(&allocator->kept, NULL); block != NULL;) {
    label_t label;
    memcpy(&label, block - sizeof label, sizeof label);
    free(block - label.offset);
    block = label.next;
  }
}

void purr_test_allocator_init(purr_test_allocator_t *allocator) {
  memset(allocator, 0, sizeof *allocator);
  allocator->hooks = (purr_allocator_t){sizeof(purr_allocator_t), 0, allocate, release, allocator};
}
