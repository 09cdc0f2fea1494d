/* The numbers that callers were compiled with: layout.def against this compiler's view of purr.h. A difference means
 * that programs built against an earlier header would break. */
#include "purr.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "support/main.h"

typedef struct struct_row {
  const char *name;
  size_t frozen, actual;
} struct_row_t;

static const struct_row_t structs[] = {
#define PURR_STRUCT(type, bytes) {#type, bytes, sizeof(type)},
#define PURR_FIELD(type, field, offset, bytes)
#define PURR_CONSTANT(name, value)
#include "layout.def"
#undef PURR_STRUCT
#undef PURR_FIELD
#undef PURR_CONSTANT
};

typedef struct field_row {
  const char *type, *name;
  size_t frozen_offset, frozen_bytes, offset, bytes;
} field_row_t;

static const field_row_t fields[] = {
#define PURR_STRUCT(type, bytes)
#define PURR_FIELD(type, field, offset, bytes) \
  {#type, #field, offset, bytes, offsetof(type, field), sizeof(((type *)0)->field)},
#define PURR_CONSTANT(name, value)
#include "layout.def"
#undef PURR_STRUCT
#undef PURR_FIELD
#undef PURR_CONSTANT
};

typedef struct constant_row {
  const char *name;
  int frozen, actual;
} constant_row_t;

static const constant_row_t constants[] = {
#define PURR_STRUCT(type, bytes)
#define PURR_FIELD(type, field, offset, bytes)
#define PURR_CONSTANT(name, value) {#name, value, (int)name},
#include "layout.def"
#undef PURR_STRUCT
#undef PURR_FIELD
#undef PURR_CONSTANT
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void sizes_are_frozen(void) {
  for (size_t i = 0; i < COUNT(structs); i++) {
    if (structs[i].frozen != structs[i].actual)
      fprintf(stderr, "sizeof(%s) is %zu, frozen at %zu\n", structs[i].name, structs[i].actual, structs[i].frozen);
    CU_ASSERT_EQUAL(structs[i].actual, structs[i].frozen);
  }
}

static void offsets_are_frozen(void) {
  for (size_t i = 0; i < COUNT(fields); i++) {
    const field_row_t *field = &fields[i];
    if (field->offset != field->frozen_offset || field->bytes != field->frozen_bytes)
      fprintf(stderr, "%s.%s is %zu bytes at %zu, frozen as %zu bytes at %zu\n", field->type, field->name, field->bytes,
              field->offset, field->frozen_bytes, field->frozen_offset);
    CU_ASSERT_EQUAL(field->offset, field->frozen_offset);
    CU_ASSERT_EQUAL(field->bytes, field->frozen_bytes);
  }
}

static void constants_are_frozen(void) {
  for (size_t i = 0; i < COUNT(constants); i++) {
    if (constants[i].frozen != constants[i].actual)
      fprintf(stderr, "%s is %d, frozen at %d\n", constants[i].name, constants[i].actual, constants[i].frozen);
    CU_ASSERT_EQUAL(constants[i].actual, constants[i].frozen);
  }
}

/* Every struct begins with struct_size and has no padding. A field that a later version put into padding would be read
 * from bytes that an older caller never set. */
static void structs_have_no_padding(void) {
  size_t end = 0;
  for (size_t i = 0; i < COUNT(fields); i++) {
    const field_row_t *field = &fields[i];
    bool is_first = i == 0 || strcmp(field->type, fields[i - 1].type) != 0;
    bool is_last = i + 1 == COUNT(fields) || strcmp(field->type, fields[i + 1].type) != 0;
    if (is_first) {
      end = 0;
      CU_ASSERT_STRING_EQUAL(field->name, "struct_size");
      CU_ASSERT_EQUAL(field->bytes, 4);
    }
    if (field->offset != end)
      fprintf(stderr, "%s has %zu bytes of padding before %s\n", field->type, field->offset - end, field->name);
    CU_ASSERT_EQUAL(field->offset, end);
    end = field->offset + field->bytes;
    for (size_t j = 0; is_last && j < COUNT(structs); j++) {
      if (strcmp(structs[j].name, field->type) != 0) continue;
      if (structs[j].actual != end) fprintf(stderr, "%s has padding at its end\n", field->type);
      CU_ASSERT_EQUAL(structs[j].actual, end);
    }
  }
}

int main(void) {
  return purr_test_main("layout", (purr_test_t[]){
                                      {"sizes are frozen", sizes_are_frozen},
                                      {"offsets are frozen", offsets_are_frozen},
                                      {"constants are frozen", constants_are_frozen},
                                      {"structs have no padding", structs_have_no_padding},
                                      {0},
                                  });
}
