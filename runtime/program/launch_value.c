/* The values of purr launch: numbers, generated tensors, and tensors of a file. */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "launch.h"
#include "random.h"

static const char *const next = "see how values are written with: purr launch --help";

static int fail_value(const launch_value_t *value, const char *what) {
  return fail("launch", next, "argument '%s' (%s) is '%.100s': %s", value->argument.name, value->argument.type,
              value->text, what);
}

/* ---- element types ---- */

static const struct {
  const char *name; /* Triton's */
  int32_t dtype;
  uint64_t bytes;
} elements[] = {{"fp32", PURR_DTYPE_FP32, 4},  {"bf16", PURR_DTYPE_BF16, 2},    {"fp16", PURR_DTYPE_FP16, 2},
                {"fp64", PURR_DTYPE_FP64, 8},  {"i8", PURR_DTYPE_INT8, 1},      {"i16", PURR_DTYPE_INT16, 2},
                {"i32", PURR_DTYPE_INT32, 4},  {"i64", PURR_DTYPE_INT64, 8},    {"u8", PURR_DTYPE_UINT8, 1},
                {"u16", PURR_DTYPE_UINT16, 2}, {"u32", PURR_DTYPE_UINT32, 4},   {"u64", PURR_DTYPE_UINT64, 8},
                {"i1", PURR_DTYPE_BOOL, 1},    {"fp8e4nv", PURR_DTYPE_E4M3, 1}, {"fp8e5", PURR_DTYPE_E5M2, 1}};
enum { NUM_ELEMENTS = sizeof elements / sizeof elements[0] };

static uint64_t element_bytes(int32_t dtype) {
  for (int i = 0; i < NUM_ELEMENTS; i++)
    if (elements[i].dtype == dtype) return elements[i].bytes;
  return 0;
}

/* Half precision, to nearest even; the numbers that are made here are normal ones or 0. */
static uint16_t fp16_from_double(double value) {
  const uint16_t sign = value < 0 ? 0x8000 : 0;
  int exponent;
  value = fabs(value);
  if (value < 0x1p-14) return sign;
  const double fraction = frexp(value, &exponent); /* 0.5 .. 1 */
  return (uint16_t)(sign | (uint16_t)((exponent + 13) * 1024 + (int)nearbyint(fraction * 2048.0)));
}

static void write_element(int32_t dtype, void *data, int64_t idx, double value) {
  char *at = (char *)data + (uint64_t)idx * element_bytes(dtype);
  const int64_t integer = (int64_t)value;
  const float single = (float)value;
  uint16_t half;
  switch (dtype) {
    case PURR_DTYPE_FP32:
      memcpy(at, &single, sizeof single);
      break;
    case PURR_DTYPE_FP64:
      memcpy(at, &value, sizeof value);
      break;
    case PURR_DTYPE_BF16:
      half = bf16_from_float(single);
      memcpy(at, &half, sizeof half);
      break;
    case PURR_DTYPE_FP16:
      half = fp16_from_double(value);
      memcpy(at, &half, sizeof half);
      break;
    case PURR_DTYPE_E4M3:
      *at = value == 0.0 ? 0 : value == 1.0 ? 0x38 : (char)(integer & 0x3F);
      break;
    case PURR_DTYPE_E5M2:
      *at = value == 0.0 ? 0 : value == 1.0 ? 0x3C : (char)(integer & 0x3F);
      break;
    default: /* little-endian: the low bytes come first */
      memcpy(at, &integer, element_bytes(dtype));
  }
}

/* ---- generated tensors ---- */

enum { FILL_RAND, FILL_ZEROS, FILL_ONES, FILL_ARANGE };
static const char *const fills[] = {"rand", "zeros", "ones", "arange", NULL};

static bool is_real(int32_t dtype) {
  return dtype == PURR_DTYPE_FP32 || dtype == PURR_DTYPE_FP64 || dtype == PURR_DTYPE_BF16 || dtype == PURR_DTYPE_FP16;
}

static void fill_tensor(launch_value_t *value, int fill, uint64_t seed) {
  const int64_t count = tensor_count(&value->tensor);
  const int32_t dtype = value->tensor.dtype;
  const uint64_t key = random_key(seed, 100 + (uint64_t)value->index);
  for (int64_t i = 0; i < count; i++) {
    double element = 0.0;
    if (fill == FILL_ONES) element = 1.0;
    if (fill == FILL_ARANGE) element = (double)i;
    if (fill == FILL_RAND)
      element =
          is_real(dtype) ? (double)random_normal(key, (uint64_t)i) : (double)(random_bits(key, (uint64_t)i) & 0x3F);
    if (dtype == PURR_DTYPE_BOOL) element = (double)((int64_t)element & 1);
    write_element(dtype, value->owned, i, element);
  }
}

/* "128x64" behind the colon, and maybe ":fp16". */
static int parse_shape(launch_value_t *value, const char *text) {
  purr_tensor_t *tensor = &value->tensor;
  int64_t count = 1;
  for (;;) {
    char *end;
    errno = 0;
    const long long extent = strtoll(text, &end, 10);
    if (end == text || *text < '0' || *text > '9' || errno != 0 || extent < 1 || extent > INT32_MAX ||
        tensor->num_dims == 4 || __builtin_mul_overflow(count, (int64_t)extent, &count) || count > (int64_t)1 << 36)
      return fail_value(value, "a shape is 1 to 4 whole numbers with x between them, such as 128x64");
    tensor->shape[tensor->num_dims++] = extent;
    text = end;
    if (*text != 'x') break;
    text++;
  }
  tensor->dtype = value->argument.dtype;
  if (*text == ':') {
    tensor->dtype = PURR_DTYPE_NONE;
    for (int i = 0; i < NUM_ELEMENTS; i++)
      if (strcmp(elements[i].name, text + 1) == 0) tensor->dtype = elements[i].dtype;
    text = "";
  }
  if (*text != '\0') return fail_value(value, "behind the shape stands what is no element type");
  if (element_bytes(tensor->dtype) == 0)
    return fail_value(value, "the element type is not known; write it behind the shape, such as rand:4096:fp32");
  value->bytes = (uint64_t)count * element_bytes(tensor->dtype);
  return EXIT_GOOD;
}

static int generate(launch_value_t *value, int fill, const char *shape, uint64_t seed) {
  value->is_tensor = true;
  value->tensor = (purr_tensor_t){.struct_size = sizeof value->tensor};
  int code = parse_shape(value, shape);
  if (code != EXIT_GOOD) return code;
  value->owned = malloc(value->bytes);
  if (value->owned == NULL) return fail_value(value, "there is no memory for it");
  value->tensor.data = value->owned;
  fill_tensor(value, fill, seed);
  return EXIT_GOOD;
}

/* ---- tensors of a file ---- */

static int read_tensor(launch_value_t *value, purr_context_t *context, purr_checkpoint_t **out_file) {
  char path[4096];
  const char *colon = strrchr(value->text, ':');
  purr_error_t err = PURR_ERROR_INIT;
  if ((size_t)snprintf(path, sizeof path, "%.*s", (int)(colon - value->text), value->text) >= sizeof path)
    return fail_value(value, "the path is too long");
  value->is_tensor = true;
  value->tensor = (purr_tensor_t){.struct_size = sizeof value->tensor};
  if (purr_checkpoint_open(context, path, out_file, &err) != PURR_STATUS_OK ||
      purr_checkpoint_find(*out_file, colon + 1, &value->tensor, &err) != PURR_STATUS_OK)
    return fail_call("launch", next, &err);
  value->bytes = (uint64_t)tensor_count(&value->tensor) * element_bytes(value->tensor.dtype);
  return value->bytes > 0 ? EXIT_GOOD : fail_value(value, "the tensor is empty, or of a type that no kernel takes");
}

/* ---- numbers ---- */

static int parse_number(launch_value_t *value) {
  const char *text = value->text;
  const bool is_truth = strcmp(text, "true") == 0 || strcmp(text, "false") == 0;
  char *end;
  errno = 0;
  value->integer = is_truth ? text[0] == 't' : strtoll(text, &end, 10);
  value->is_integer = is_truth || (*text != '\0' && *end == '\0' && errno == 0);
  if (value->is_integer) return EXIT_GOOD;
  value->real = strtod(text, &end);
  return *text != '\0' && *end == '\0' ? EXIT_GOOD : fail_value(value, "it is no number");
}

static bool is_in_range(int32_t dtype, int64_t integer) {
  const bool is_signed = dtype == PURR_DTYPE_INT8 || dtype == PURR_DTYPE_INT16 || dtype == PURR_DTYPE_INT32;
  if (dtype == PURR_DTYPE_BOOL) return integer == 0 || integer == 1;
  if (dtype == PURR_DTYPE_INT64) return true;
  if (integer < 0 && !is_signed) return false;
  if (dtype == PURR_DTYPE_UINT64) return true;
  const int64_t limit = (int64_t)1 << (8 * element_bytes(dtype) - (is_signed ? 1 : 0));
  return integer < limit && integer >= -limit;
}

static int check_number(const launch_value_t *value) {
  const purr_kernel_argument_t *argument = &value->argument;
  char what[96];
  if (argument->kind == PURR_ARGUMENT_INTEGER && element_bytes(argument->dtype) > 0) {
    if (!value->is_integer) return fail_value(value, "it takes whole numbers of at most 64 bits");
    if (!is_in_range(argument->dtype, value->integer)) return fail_value(value, "its type does not hold that number");
    snprintf(what, sizeof what, "the kernel was promised multiples of %d", argument->divisible_by);
    if (value->integer % argument->divisible_by != 0) return fail_value(value, what);
  }
  const double most = argument->dtype == PURR_DTYPE_FP16   ? 65504.0
                      : argument->dtype == PURR_DTYPE_FP64 ? DBL_MAX
                                                           : (double)FLT_MAX;
  const double real = value->is_integer ? (double)value->integer : value->real;
  if (argument->kind == PURR_ARGUMENT_REAL && isfinite(real) && fabs(real) > most)
    return fail_value(value, "its type does not hold that number");
  return EXIT_GOOD;
}

static bool is_integer_type(int32_t dtype) {
  return !is_real(dtype) && dtype != PURR_DTYPE_E4M3 && dtype != PURR_DTYPE_E5M2;
}

static int check_tensor(const launch_value_t *value) {
  const purr_kernel_argument_t *argument = &value->argument;
  const int32_t given = value->tensor.dtype, wanted = argument->dtype;
  if (argument->kind == PURR_ARGUMENT_INTEGER || argument->kind == PURR_ARGUMENT_REAL ||
      argument->kind == PURR_ARGUMENT_CONSTANT)
    return fail_value(value, "it takes a number, not a tensor");
  /* Integers of one size are the same to a kernel's memory. */
  if (element_bytes(wanted) == 0 || given == wanted) return EXIT_GOOD;
  if (element_bytes(given) == element_bytes(wanted) && is_integer_type(given) && is_integer_type(wanted))
    return EXIT_GOOD;
  return fail_value(value, "the tensor's elements are of another type");
}

int launch_value_check(const launch_value_t *value) {
  const purr_kernel_argument_t *argument = &value->argument;
  if (argument->varies) return EXIT_GOOD; /* it depends on the variant */
  if (value->text != NULL) return value->is_tensor ? check_tensor(value) : check_number(value);
  if (argument->kind == PURR_ARGUMENT_CONSTANT) return EXIT_GOOD;
  return fail("launch", next, "argument '%s' (%s) is not set; give it with --arg %s=VALUE", argument->name,
              argument->type, argument->name);
}

/* ---- any ---- */

int launch_value_parse(launch_value_t *value, purr_context_t *context, const launch_options_t *options,
                       purr_checkpoint_t **out_file) {
  const char *colon = strchr(value->text, ':');
  for (int i = 0; colon != NULL && fills[i] != NULL; i++)
    if (strlen(fills[i]) == (size_t)(colon - value->text) && strncmp(fills[i], value->text, strlen(fills[i])) == 0)
      return generate(value, i, colon + 1, (uint64_t)options->seed);
  if (colon != NULL) return read_tensor(value, context, out_file);
  const int32_t kind = value->argument.kind;
  if (kind == PURR_ARGUMENT_POINTER || kind == PURR_ARGUMENT_DESCRIPTOR)
    return fail_value(value, "a tensor is rand:SHAPE, zeros:SHAPE, ones:SHAPE, arange:SHAPE or FILE.safetensors:NAME");
  return parse_number(value);
}

int launch_value_set(const launch_value_t *value, purr_launcher_t *launcher) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_status_t status;
  if (value->is_tensor) {
    purr_tensor_t tensor = value->tensor;
    tensor.data = (void *)(uintptr_t)value->address;
    status = purr_launcher_set_tensor(launcher, value->index, &tensor, 0, &err);
    return status == PURR_STATUS_OK ? EXIT_GOOD : fail_call("launch", next, &err);
  }
  if (value->is_integer && value->argument.kind != PURR_ARGUMENT_REAL)
    status = purr_launcher_set_integer(launcher, value->index, value->integer, &err);
  else
    status =
        purr_launcher_set_real(launcher, value->index, value->is_integer ? (double)value->integer : value->real, &err);
  return status == PURR_STATUS_OK ? EXIT_GOOD : fail_call("launch", next, &err);
}
