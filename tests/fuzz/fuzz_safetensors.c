/* Any bytes as a safetensors file: refused with one sentence, or every tensor lies inside the file, has the size that
 * its type and shape say, and overlaps no other. */
#include "checkpoint/safetensors.h"
#include "fuzz.h"
#include "tensor/tensor.h"

static bool before(const purr__entry_t *a, const purr__entry_t *b) { return a->begin < b->begin; }

static void check_entries(purr__directory_t *table, uint64_t file_bytes) {
  FUZZ_CHECK(purr__directory_sort(table, 0, before, NULL) == PURR_STATUS_OK);
  uint64_t end = 8;
  for (int64_t i = 0; i < table->num_entries; i++) {
    const purr__entry_t *entry = table->entries[i];
    FUZZ_CHECK(entry->begin >= end && entry->begin <= file_bytes && entry->num_bytes <= file_bytes - entry->begin);
    end = entry->begin + entry->num_bytes;
    FUZZ_CHECK(entry->name_length > 0 && (size_t)entry->name_length == strlen(entry->name));
    const uint64_t element_bytes = (uint64_t)purr__dtype_bytes(entry->dtype);
    if (entry->num_dims > 4 || element_bytes == 0) continue; /* only counted, never read */
    uint64_t wanted = element_bytes;
    for (int d = 0; d < entry->num_dims; d++) {
      FUZZ_CHECK(entry->shape[d] >= 0);
      FUZZ_CHECK(purr__multiply(wanted, (uint64_t)entry->shape[d], &wanted));
    }
    FUZZ_CHECK(entry->num_bytes == wanted);
  }
  FUZZ_CHECK(purr__directory_sort(table, 0, purr__entry_before_by_name, NULL) == PURR_STATUS_OK);
  for (int64_t i = 0; i < table->num_entries; i++) {
    purr__entry_t *entry = table->entries[i];
    FUZZ_CHECK(purr__directory_find(table, entry->name, (uint64_t)entry->name_length) == entry);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  const uint64_t held_bytes = fuzz_held_bytes();
  purr__directory_t table = {.context = fuzz_context()};
  purr_error_t err = PURR_ERROR_INIT;
  uint64_t headers_bytes = 0;
  const purr_status_t status =
      purr__safetensors_parse(&table, (const char *)data, num_bytes, num_bytes, "fuzz", 0, &headers_bytes, &err);
  if (status == PURR_STATUS_OK) {
    FUZZ_CHECK(headers_bytes <= num_bytes);
    check_entries(&table, num_bytes);
  } else {
    FUZZ_CHECK(status == PURR_STATUS_CHECKPOINT);
    fuzz_check_error(status, &err);
  }
  purr__directory_free(&table);
  FUZZ_CHECK(fuzz_held_bytes() == held_bytes);
  return 0;
}
