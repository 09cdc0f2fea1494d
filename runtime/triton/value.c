#include "triton/value.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#include "base/number.h"

PURR__PRINTF(2, 3)
static bool refuse(char why[PURR__TRITON_WHY_BYTES], const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(why, PURR__TRITON_WHY_BYTES, format, args);
  va_end(args);
  return false;
}

static const char *set_name(purr__triton_set_t set) {
  static const char *const names[] = {"nothing", "a pointer", "an integer", "a real number", "bytes", "a tensor"};
  return names[set];
}

static bool refuse_kind(char why[PURR__TRITON_WHY_BYTES], const purr__triton_argument_t *argument,
                        const purr__triton_value_t *value) {
  return refuse(why, "is of type %s, which does not take %s", argument->type, set_name(value->set));
}

/* ---- constants ---- */

static bool takes_constant(const purr__triton_argument_t *argument, const purr__triton_value_t *value, char *why) {
  float constant;
  bool is_equal = false;
  switch (argument->constant) {
    case PURR__TRITON_CONSTANT_INTEGER:
      is_equal = value->set == PURR__TRITON_SET_INTEGER && value->integer == argument->constant_integer;
      break;
    case PURR__TRITON_CONSTANT_REAL:
      is_equal = value->set == PURR__TRITON_SET_REAL &&
                 purr__number_parse_fp32(argument->constant_text, strlen(argument->constant_text), &constant) ==
                     PURR__NUMBER_GOOD &&
                 (float)value->real == constant;
      break;
    case PURR__TRITON_CONSTANT_NONE:
      is_equal = value->set == PURR__TRITON_SET_POINTER && value->address == 0;
      break;
    default:
      break;
  }
  if (is_equal) return true;
  if (value->set == PURR__TRITON_SET_INTEGER)
    return refuse(why, "was compiled in as %s, but is %lld", argument->constant_text, (long long)value->integer);
  return refuse(why, "was compiled in as %s; it takes that value alone, not %s", argument->constant_text,
                set_name(value->set));
}

/* ---- numbers and addresses ---- */

static bool takes_address(const purr__triton_argument_t *argument, uint64_t address, char *why) {
  if (address == 0)
    return refuse(why, "is a NULL pointer; Triton compiles a pointer that may be missing as a constant");
  if (address % (uint64_t)argument->divisible_by != 0)
    return refuse(why, "is at %#llx, but the kernel was promised addresses at multiples of %d bytes",
                  (unsigned long long)address, argument->divisible_by);
  return true;
}

/* The range of an integer of so many bytes. */
static bool takes_range(int bytes, bool is_signed, int64_t value, char *why) {
  int64_t min = 0, max = INT64_MAX;
  if (is_signed) min = bytes == 8 ? INT64_MIN : -((int64_t)1 << (8 * bytes - 1));
  if (bytes < 8) max = ((int64_t)1 << (8 * bytes - (is_signed ? 1 : 0))) - 1;
  if (value >= min && value <= max) return true;
  return refuse(why, "is %lld; allowed are %lld to %lld", (long long)value, (long long)min, (long long)max);
}

static bool takes_integer(const purr__triton_argument_t *argument, int64_t value, char *why) {
  const purr__triton_element_t *element = argument->element;
  if (argument->kind == PURR__TRITON_ANY) {
    if (argument->bytes != 1 && argument->bytes != 2 && argument->bytes != 4 && argument->bytes != 8)
      return refuse(why, "has %d bytes, which no integer has", argument->bytes);
    /* Signed or not: what fits either way. */
    if (argument->bytes == 8 || takes_range(argument->bytes, value < 0, value, why)) return true;
    return false;
  }
  if (element->class == PURR__TRITON_BOOL)
    return value == 0 || value == 1 || refuse(why, "is %lld; allowed are 0 and 1", (long long)value);
  if (!takes_range(element->bytes, element->class == PURR__TRITON_SIGNED, value, why)) return false;
  if (value % argument->divisible_by != 0)
    return refuse(why, "is %lld, but the kernel was promised multiples of %d", (long long)value,
                  argument->divisible_by);
  return true;
}

static bool takes_real(const purr__triton_argument_t *argument, double value, char *why) {
  const int bytes = purr__triton_argument_bytes(argument);
  if (bytes == 1 || (argument->kind == PURR__TRITON_ANY && bytes != 4 && bytes != 8))
    return refuse(why, "has %d bytes; a real number fits %s", bytes,
                  argument->kind == PURR__TRITON_ANY ? "4 (fp32) or 8 (fp64)" : "fp16, bf16, fp32 and fp64");
  const double most = bytes == 2 && argument->element->dtype == PURR_DTYPE_FP16 ? 65504.0
                      : bytes < 8                                               ? (double)FLT_MAX
                                                                                : DBL_MAX;
  if (isfinite(value) && fabs(value) > most)
    return refuse(why, "is %g, which %s cannot hold: its largest number is %g", value, argument->type, most);
  return true;
}

static bool takes_bytes(const purr__triton_argument_t *argument, uint32_t num_bytes, char *why) {
  const int bytes = purr__triton_argument_bytes(argument);
  if ((int)num_bytes == bytes) return true;
  if (bytes == 0) return refuse(why, "is of type %s, which does not take bytes", argument->type);
  return refuse(why, "has %d bytes, but %u were given", bytes, num_bytes);
}

/* ---- tensors ---- */

static const purr__triton_element_t *element_of_dtype(int dtype) {
  static const char *const names[] = {"bf16", "fp16", "fp32", "fp64", "i8", "i16",     "i32",  "i64",
                                      "u8",   "u16",  "u32",  "u64",  "i1", "fp8e4nv", "fp8e5"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    const purr__triton_element_t *element = purr__triton_element_find(names[i], strlen(names[i]));
    if (element->dtype == dtype) return element;
  }
  return NULL;
}

/* Integers of one size are the same to a kernel's memory. */
static bool is_same_element(const purr__triton_element_t *a, const purr__triton_element_t *b) {
  return a == b || a->dtype == b->dtype ||
         (a->bytes == b->bytes && a->class != PURR__TRITON_FLOAT && b->class != PURR__TRITON_FLOAT);
}

static bool takes_element(const purr__triton_argument_t *argument, int dtype, char *why) {
  const purr__triton_element_t *given = element_of_dtype(dtype);
  if (given == NULL) return refuse(why, "is a tensor of dtype %d, which no Triton type has", dtype);
  if (argument->element != NULL && !is_same_element(argument->element, given))
    return refuse(why, "is of type %s, but the tensor's elements are %s", argument->type, given->name);
  if (argument->has_map && given->bytes != argument->element_bytes)
    return refuse(why, "describes elements of %d bytes, but the tensor's are %s", argument->element_bytes, given->name);
  return true;
}

#define MAP_ADDRESS_ALIGNMENT 16
#define MAP_STRIDE_ALIGNMENT 16
#define MAP_MOST_STRIDE ((int64_t)1 << 40)

static bool takes_descriptor(const purr__triton_argument_t *argument, const purr__triton_value_t *value, char *why) {
  if (value->rank != argument->rank)
    return refuse(why, "describes %d dimensions, but the tensor has %d", argument->rank, value->rank);
  if (!takes_element(argument, value->dtype, why)) return false;
  const int bytes = argument->has_map ? argument->element_bytes : element_of_dtype(value->dtype)->bytes;
  if (value->address == 0) return refuse(why, "is a tensor without data");
  if (value->address % MAP_ADDRESS_ALIGNMENT != 0)
    return refuse(why, "is at %#llx; the copy engine takes addresses at multiples of %d bytes",
                  (unsigned long long)value->address, MAP_ADDRESS_ALIGNMENT);
  for (int i = 0; i < value->rank; i++) {
    if (value->shape[i] < 1 || value->shape[i] > INT32_MAX / 2)
      return refuse(why, "has an extent of %lld in dimension %d; allowed are 1 to %d", (long long)value->shape[i], i,
                    INT32_MAX / 2);
    const bool is_last = i == value->rank - 1;
    if (is_last && value->stride[i] != 1)
      return refuse(why, "has a stride of %lld in its last dimension; the copy engine takes 1",
                    (long long)value->stride[i]);
    if (!is_last && (value->stride[i] < 0 || value->stride[i] >= MAP_MOST_STRIDE / bytes ||
                     value->stride[i] * bytes % MAP_STRIDE_ALIGNMENT != 0))
      return refuse(why,
                    "has a stride of %lld elements of %d bytes in dimension %d; the copy engine takes multiples of %d "
                    "bytes below 2^40",
                    (long long)value->stride[i], bytes, i, MAP_STRIDE_ALIGNMENT);
  }
  if ((value->flags & PURR_DESCRIPTOR_TF32) != 0 && value->dtype != PURR_DTYPE_FP32)
    return refuse(why, "is to be rounded to TF32, but its elements are %s", element_of_dtype(value->dtype)->name);
  return true;
}

static bool takes_tensor(const purr__triton_argument_t *argument, const purr__triton_value_t *value, char *why) {
  if (argument->kind == PURR__TRITON_DESCRIPTOR) return takes_descriptor(argument, value, why);
  if (value->flags != 0) return refuse(why, "(%s) takes no flags: they are for descriptors", argument->type);
  if (argument->kind == PURR__TRITON_POINTER)
    return takes_element(argument, value->dtype, why) && takes_address(argument, value->address, why);
  if (argument->kind == PURR__TRITON_ANY && argument->bytes == 8) return takes_address(argument, value->address, why);
  return refuse_kind(why, argument, value);
}

/* ---- any ---- */

bool purr__triton_takes(const purr__triton_argument_t *argument, const purr__triton_value_t *value,
                        char why[PURR__TRITON_WHY_BYTES]) {
  if (value->set == PURR__TRITON_UNSET) return refuse(why, "(%s) is not set", argument->type);
  if (argument->constant != PURR__TRITON_NO_CONSTANT) return takes_constant(argument, value, why);
  const bool is_number = argument->kind == PURR__TRITON_NUMBER;
  const bool is_float = is_number && argument->element->class == PURR__TRITON_FLOAT;
  const bool is_any = argument->kind == PURR__TRITON_ANY;
  switch (value->set) {
    case PURR__TRITON_UNSET:
      break;
    case PURR__TRITON_SET_POINTER:
      if (argument->kind != PURR__TRITON_POINTER && !(is_any && argument->bytes == 8))
        return refuse_kind(why, argument, value);
      return takes_address(argument, value->address, why);
    case PURR__TRITON_SET_INTEGER:
      if (!(is_number && !is_float) && !is_any) return refuse_kind(why, argument, value);
      return takes_integer(argument, value->integer, why);
    case PURR__TRITON_SET_REAL:
      if (!is_float && !is_any) return refuse_kind(why, argument, value);
      return takes_real(argument, value->real, why);
    case PURR__TRITON_SET_BYTES:
      return takes_bytes(argument, value->num_bytes, why);
    case PURR__TRITON_SET_TENSOR:
      return takes_tensor(argument, value, why);
  }
  return false;
}

/* ---- as parameters ---- */

/* As Triton's own launcher makes them: fp16 rounded to nearest even, bf16 cut off. */
static void write_half(double value, int dtype, void *slot) {
  float narrow = (float)value;
  uint32_t bits;
  memcpy(&bits, &narrow, sizeof bits);
  uint16_t half = (uint16_t)(bits >> 16);
  if (dtype == PURR_DTYPE_FP16) {
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const double magnitude = fabs(value);
    if (isnan(value)) {
      half = sign | 0x7E00;
    } else if (isinf(value)) {
      half = sign | 0x7C00;
    } else {
      int exponent = -14;
      if (magnitude > 0) (void)frexp(magnitude, &exponent), exponent--;
      if (exponent < -14) exponent = -14;
      /* In units of the last place; a carry runs into the exponent by itself. */
      const double units = nearbyint(ldexp(magnitude, 10 - exponent));
      half = (uint16_t)(sign | (uint16_t)(((exponent + 14) << 10) + (int)units));
    }
  }
  memcpy(slot, &half, sizeof half);
}

void purr__triton_write(const purr__triton_argument_t *argument, const purr__triton_value_t *value, void *slot) {
  const int bytes = purr__triton_argument_bytes(argument);
  float narrow;
  switch (value->set) {
    case PURR__TRITON_SET_POINTER:
    case PURR__TRITON_SET_TENSOR:
      memcpy(slot, &value->address, sizeof value->address);
      break;
    case PURR__TRITON_SET_INTEGER: /* little-endian: the low bytes come first */
      memcpy(slot, &value->integer, (size_t)bytes);
      break;
    case PURR__TRITON_SET_REAL:
      narrow = (float)value->real;
      if (bytes == 8)
        memcpy(slot, &value->real, sizeof value->real);
      else if (bytes == 4)
        memcpy(slot, &narrow, sizeof narrow);
      else
        write_half(value->real, argument->element->dtype, slot);
      break;
    case PURR__TRITON_SET_BYTES:
      memcpy(slot, value->bytes, value->num_bytes);
      break;
    case PURR__TRITON_UNSET:
      break;
  }
}

/* ---- descriptors ---- */

enum { DATA_TYPE_TF32 = 11, L2_PROMOTION_128B = 2, FILL_ZERO = 0, FILL_NAN = 1 };

/* The compiler counts some element types other than the driver does. */
static int data_type_of(int element_type) {
  switch (element_type) {
    case 8:
      return 10;
    case 9:
      return 8;
    case 10:
      return 9;
    default:
      return element_type;
  }
}

/* Two 4-bit elements lie in a byte: 3.5 and 3.6 tell the kernel too how many there are, the others the copy engine
 * alone. */
int64_t purr__triton_shape(const purr__triton_argument_t *argument, int version, const purr__triton_value_t *value,
                           int dim) {
  const bool doubles = argument->is_fp4_padded && dim == value->rank - 1 && (version == 305 || version == 306);
  return doubles ? 2 * value->shape[dim] : value->shape[dim];
}

purr_status_t purr__triton_encode(purr__device_t *device, const purr__triton_argument_t *argument,
                                  const purr__triton_value_t *value, CUtensorMap *out_map, purr_error_t *err) {
  const int rank = value->rank;
  uint64_t size[PURR__TRITON_MAX_RANK], stride[PURR__TRITON_MAX_RANK], span = 1;
  uint32_t box[PURR__TRITON_MAX_RANK], step[PURR__TRITON_MAX_RANK];
  for (int i = 0; i < rank; i++) { /* the driver counts dimensions from the last */
    const int dim = rank - 1 - i;
    size[i] = (uint64_t)value->shape[dim] * (argument->is_fp4_padded && i == 0 ? 2 : 1);
    box[i] = (uint32_t)argument->block[dim];
    step[i] = 1;
    const uint64_t bytes = (uint64_t)value->stride[dim] * (uint64_t)argument->element_bytes;
    if (i > 0) stride[i - 1] = bytes;
    span += (size[i] - 1) * (i == 0 ? (uint64_t)argument->element_bytes : bytes);
  }
  const bool is_tf32 = (value->flags & PURR_DESCRIPTOR_TF32) != 0;
  purr_status_t status =
      PURR__CUDA(device, err, cuTensorMapEncodeTiled,
                 (out_map, is_tf32 ? DATA_TYPE_TF32 : data_type_of(argument->element_type), (uint32_t)rank,
                  (void *)(uintptr_t)value->address, size, stride, box, step, 0, argument->swizzle, L2_PROMOTION_128B,
                  (value->flags & PURR_DESCRIPTOR_NAN) != 0 ? FILL_NAN : FILL_ZERO),
                 "describing argument '%s' (%s) to the copy engine", argument->name, argument->type);
  /* Drivers up to 13.1 set a bit wrongly for small tensors; Triton clears it from 3.7 on, for good reasons. */
  if (status == PURR_STATUS_OK && device->driver->version <= 13010 && span < 128 * 1024)
    out_map->opaque[1] &= ~(1ull << 21);
  return status;
}
