/* What a caller sets for an argument, and whether a variant takes it. */
#ifndef PURR_TRITON_VALUE_H
#define PURR_TRITON_VALUE_H

#include "driver/driver.h"
#include "triton/variant.h"

typedef enum purr__triton_set {
  PURR__TRITON_UNSET,
  PURR__TRITON_SET_POINTER,
  PURR__TRITON_SET_INTEGER,
  PURR__TRITON_SET_REAL,
  PURR__TRITON_SET_BYTES,
  PURR__TRITON_SET_TENSOR,
} purr__triton_set_t;

typedef struct purr__triton_value {
  purr__triton_set_t set;
  uint64_t address; /* POINTER; TENSOR: its first element */
  int64_t integer;
  double real;
  uint32_t num_bytes;
  _Alignas(8) unsigned char bytes[PURR__TRITON_MAP_BYTES];
  int dtype, rank; /* of a TENSOR */
  uint32_t flags;  /* PURR_DESCRIPTOR_* */
  int64_t shape[4], stride[4];
} purr__triton_value_t;

#define PURR__TRITON_WHY_BYTES 320

/* Whether the argument takes the value; else `why` gets half a sentence: what it needs and what it got. */
bool purr__triton_takes(const purr__triton_argument_t *argument, const purr__triton_value_t *value,
                        char why[PURR__TRITON_WHY_BYTES]);
/* Writes the value of an argument that takes it, as the parameter has it. Descriptors are not written here. */
void purr__triton_write(const purr__triton_argument_t *argument, const purr__triton_value_t *value, void *slot);

/* The map of a tensor for an argument that takes it, made by the driver.
 * Returns: OK, CUDA. */
purr_status_t purr__triton_encode(purr__device_t *device, const purr__triton_argument_t *argument,
                                  const purr__triton_value_t *value, CUtensorMap *out_map, purr_error_t *err);
/* The extent of a dimension as the kernel gets it. */
int64_t purr__triton_shape(const purr__triton_argument_t *argument, int version, const purr__triton_value_t *value,
                           int dim);

#endif
