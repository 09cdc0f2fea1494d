/* The signature that a caller gives for a kernel without a manifest. */
#include <stdio.h>

#include "base/number.h"
#include "package/keys.h"
#include "triton/variant.h"

/* The length of the item at `text`: up to a comma outside of brackets. */
static uint64_t item_length(const char *text) {
  int depth = 0;
  uint64_t length = 0;
  for (; text[length] != '\0'; length++) {
    const char c = text[length];
    if (c == '<' || c == '[') depth++;
    if (c == '>' || c == ']') depth--;
    if (c == ',' && depth <= 0) break;
  }
  return length;
}

static void trim(const char **text, uint64_t *length) {
  while (*length > 0 && **text == ' ') (*text)++, (*length)--;
  while (*length > 0 && (*text)[*length - 1] == ' ') (*length)--;
}

static bool copy(char *out, uint64_t capacity, const char *text, uint64_t length) {
  if (length == 0 || length >= capacity) return false;
  memcpy(out, text, length);
  out[length] = '\0';
  return purr__is_printable(out);
}

/* A literal: None, True, False, a number. */
static bool parse_constant(const char *text, uint64_t length, purr__triton_argument_t *argument) {
  float real;
  argument->kind = PURR__TRITON_CONSTEXPR;
  memcpy(argument->type, "constexpr", 10);
  if (!copy(argument->constant_text, sizeof argument->constant_text, text, length)) return false;
  text = argument->constant_text;
  if (purr__number_parse_integer(text, length, &argument->constant_integer) == PURR__NUMBER_GOOD) {
    argument->constant = PURR__TRITON_CONSTANT_INTEGER;
  } else if (strcmp(text, "True") == 0 || strcmp(text, "False") == 0) {
    argument->constant = PURR__TRITON_CONSTANT_INTEGER;
    argument->constant_integer = text[0] == 'T';
  } else if (strcmp(text, "None") == 0) {
    argument->constant = PURR__TRITON_CONSTANT_NONE;
  } else if (purr__number_parse_fp32(text, length, &real) == PURR__NUMBER_GOOD) {
    argument->constant = PURR__TRITON_CONSTANT_REAL;
  } else {
    return false;
  }
  return true;
}

/* "*fp32:16" */
static bool parse_type(const char *text, uint64_t length, purr__triton_argument_t *argument) {
  int64_t divisible_by = 1;
  for (uint64_t i = length; i > 0; i--)
    if (text[i - 1] == ':') {
      if (purr__number_parse_integer(text + i, length - i, &divisible_by) != PURR__NUMBER_GOOD || divisible_by < 1 ||
          divisible_by > 1 << 20)
        return false;
      length = i - 1;
      break;
    }
  argument->divisible_by = (int)divisible_by;
  trim(&text, &length);
  return copy(argument->type, sizeof argument->type, text, length) &&
         purr__triton_type_parse(argument->type, argument) && argument->kind != PURR__TRITON_CONSTEXPR;
}

static purr_status_t parse_item(const char *text, uint64_t length, int idx, purr__triton_argument_t *argument,
                                purr_error_t *err) {
  char shown[80];
  const char *whole = text;
  const uint64_t whole_length = length;
  *argument = (purr__triton_argument_t){.divisible_by = 1};
  snprintf(argument->name, sizeof argument->name, "%d", idx);
  const char *equals = memchr(text, '=', length);
  bool is_good = true;
  if (equals != NULL) {
    const char *name = text;
    uint64_t name_length = (uint64_t)(equals - text);
    trim(&name, &name_length);
    is_good = copy(argument->name, sizeof argument->name, name, name_length);
    length -= (uint64_t)(equals + 1 - text);
    text = equals + 1;
  }
  trim(&text, &length);
  if (is_good && (parse_type(text, length, argument) || parse_constant(text, length, argument))) return PURR_STATUS_OK;
  return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                    "argument %d of the signature is \"%s\"; allowed is for example \"*fp32\", \"x=*fp32:16\", "
                    "\"n=i32\" or a constant such as \"BLOCK=1024\"",
                    idx, purr__printable(shown, sizeof shown, whole, whole_length));
}

/* Triton lists what it knows of descriptors in the order of the arguments. */
static purr_status_t take_descriptors(const purr__triton_metadata_t *metadata, purr__triton_spec_t *spec,
                                      purr_error_t *err) {
  int num_descriptors = 0;
  char why[200];
  for (int i = 0; i < spec->num_arguments; i++) {
    purr__triton_argument_t *argument = &spec->arguments[i];
    if (argument->kind != PURR__TRITON_DESCRIPTOR) continue;
    const purr__triton_argument_t *known =
        num_descriptors < metadata->num_descriptors ? &metadata->descriptors[num_descriptors] : NULL;
    num_descriptors++;
    if (known == NULL || !known->has_map) continue;
    if (known->rank != argument->rank)
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                        "argument %d of the signature is \"%s\", but the kernel's descriptor has %d dimensions", i,
                        argument->type, known->rank);
    if (!purr__triton_map_fits(argument, known, why, sizeof why))
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                        "argument %d of the signature is \"%s\", but descriptor %d of tensordesc_meta has %s", i,
                        argument->type, num_descriptors - 1, why);
    argument->has_map = true;
    argument->swizzle = known->swizzle;
    argument->element_bytes = known->element_bytes;
    argument->element_type = known->element_type;
    argument->is_fp4_padded = known->is_fp4_padded;
    memcpy(argument->block, known->block, sizeof argument->block);
  }
  if (metadata->num_descriptors != 0 && num_descriptors != metadata->num_descriptors)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                      "the signature has %d tensor descriptors, but the kernel was compiled with %d", num_descriptors,
                      metadata->num_descriptors);
  return PURR_STATUS_OK;
}

purr_status_t purr__triton_signature_parse(purr_context_t *context, const char *signature,
                                           const purr__triton_metadata_t *metadata, purr__triton_spec_t *spec,
                                           purr_error_t *err) {
  int most = 1;
  for (const char *c = signature; *c != '\0'; c++) most += *c == ',';
  if (most > PURR__TRITON_MAX_ARGUMENTS)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "the signature has about %d arguments; allowed are %d", most,
                      PURR__TRITON_MAX_ARGUMENTS);
  spec->arguments = purr__allocate_zeroed(context, (uint64_t)most * sizeof *spec->arguments);
  if (spec->arguments == NULL)
    return purr__fail_memory(err, "the arguments of a kernel", (uint64_t)most * sizeof *spec->arguments);
  if (signature[strspn(signature, " ")] == '\0') return PURR_STATUS_OK; /* none */
  for (const char *at = signature;;) {
    const uint64_t length = item_length(at);
    const int idx = spec->num_arguments++;
    purr_status_t status = parse_item(at, length, idx, &spec->arguments[idx], err);
    for (int i = 0; i < idx && status == PURR_STATUS_OK; i++)
      if (strcmp(spec->arguments[i].name, spec->arguments[idx].name) == 0)
        status = purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "two arguments of the signature are called '%s'",
                            spec->arguments[idx].name);
    if (status != PURR_STATUS_OK) return status;
    if (at[length] == '\0') break;
    at += length + 1;
  }
  return take_descriptors(metadata, spec, err);
}
