/* The library's memory, through the context's hooks. A 64-byte header in front of each block remembers its size, so
 * that the caller's release hook gets it back. */
#include <stdlib.h>

#include "base/context.h"

#define HEADER_BYTES 64u

void *purr__allocate(purr_context_t *context, uint64_t bytes) {
  uint64_t total;
  if (!purr__add(bytes, HEADER_BYTES, &total)) return NULL;
  char *block = context->allocator.allocate(context->allocator.user, total, HEADER_BYTES);
  if (block == NULL) return NULL;
  memcpy(block, &total, sizeof total);
  uint64_t now = atomic_fetch_add_explicit(&context->host_bytes, total, memory_order_relaxed) + total;
  unsigned long long peak = atomic_load_explicit(&context->host_bytes_peak, memory_order_relaxed);
  while (now > peak && !atomic_compare_exchange_weak_explicit(&context->host_bytes_peak, &peak, now,
                                                              memory_order_relaxed, memory_order_relaxed)) {
  }
  return block + HEADER_BYTES;
}

void *purr__allocate_zeroed(purr_context_t *context, uint64_t bytes) {
  void *memory = purr__allocate(context, bytes);
  if (memory != NULL) memset(memory, 0, bytes);
  return memory;
}

void *purr__reallocate(purr_context_t *context, void *memory, uint64_t bytes) {
  void *grown = purr__allocate(context, bytes);
  if (grown == NULL || memory == NULL) return grown;
  uint64_t total;
  memcpy(&total, (char *)memory - HEADER_BYTES, sizeof total);
  uint64_t old_bytes = total - HEADER_BYTES;
  memcpy(grown, memory, old_bytes < bytes ? old_bytes : bytes);
  purr__release(context, memory);
  return grown;
}

void purr__release(purr_context_t *context, void *memory) {
  if (memory == NULL) return;
  char *block = (char *)memory - HEADER_BYTES;
  uint64_t total;
  memcpy(&total, block, sizeof total);
  atomic_fetch_sub_explicit(&context->host_bytes, total, memory_order_relaxed);
  context->allocator.release(context->allocator.user, block, total);
}

char *purr__duplicate(purr_context_t *context, const char *text) {
  uint64_t bytes = strlen(text) + 1;
  char *copy = purr__allocate(context, bytes);
  if (copy != NULL) memcpy(copy, text, bytes);
  return copy;
}

bool purr__multiply(uint64_t a, uint64_t b, uint64_t *out) {
  return !__builtin_mul_overflow(a, b, out) && *out <= INT64_MAX;
}

bool purr__add(uint64_t a, uint64_t b, uint64_t *out) {
  return !__builtin_add_overflow(a, b, out) && *out <= INT64_MAX;
}
