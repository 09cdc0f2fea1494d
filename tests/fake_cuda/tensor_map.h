/* What a tensor map of the fake driver holds, in the 128 bytes of a real one. */
#ifndef PURR_FAKE_TENSOR_MAP_H
#define PURR_FAKE_TENSOR_MAP_H

#include <stdint.h>

typedef struct fake_tensor_map {
  uint64_t address;
  uint64_t magic;      /* all ones */
  uint64_t strides[4]; /* bytes, from the second dimension on */
  uint32_t dims[5];    /* elements, the fastest first */
  uint16_t box[5];
  uint8_t rank, element_bytes, swizzle, fill;
  uint8_t unused[38];
} fake_tensor_map_t;

#endif
