/* The hand-written PTX modules without a GPU: the source speaks of the parameters as kernels/layout.h has them. That
 * the modules assemble for every architecture, without spills, and take structs of these sizes is checked by the build.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/layout.h"
#include "support/folder.h"
#include "support/main.h"

typedef struct field {
  const char *name;
  size_t offset, bytes;
} field_t;

#define FIELD(type, name) \
  { #name, offsetof(type, name), sizeof(((type *)NULL)->name) }
static const field_t quantize_mxfp8[] = {
    FIELD(purr__quantize_mxfp8_params_t, source),
    FIELD(purr__quantize_mxfp8_params_t, elements),
    FIELD(purr__quantize_mxfp8_params_t, scales),
    FIELD(purr__quantize_mxfp8_params_t, num_rows),
    FIELD(purr__quantize_mxfp8_params_t, num_columns),
    FIELD(purr__quantize_mxfp8_params_t, source_row_stride),
    FIELD(purr__quantize_mxfp8_params_t, source_slice_stride),
    FIELD(purr__quantize_mxfp8_params_t, elements_row_stride),
    FIELD(purr__quantize_mxfp8_params_t, elements_slice_stride),
    FIELD(purr__quantize_mxfp8_params_t, scales_slice_stride),
    FIELD(purr__quantize_mxfp8_params_t, scales_outer_stride),
    FIELD(purr__quantize_mxfp8_params_t, scales_block_stride),
    FIELD(purr__quantize_mxfp8_params_t, num_scale_rows),
    FIELD(purr__quantize_mxfp8_params_t, num_scale_blocks),
    FIELD(purr__quantize_mxfp8_params_t, scale_layout),
    FIELD(purr__quantize_mxfp8_params_t, scale_rule),
};
enum { NUM_FIELDS = sizeof quantize_mxfp8 / sizeof quantize_mxfp8[0], MAX_FIELDS = 64 };

static const struct {
  const char *name;
  const field_t *fields;
  int num_fields;
  size_t bytes;
} modules[] = {{"quantize_mxfp8", quantize_mxfp8, NUM_FIELDS, sizeof(purr__quantize_mxfp8_params_t)}};
enum { NUM_MODULES = sizeof modules / sizeof modules[0] };

/* "// 24  s64  num_rows  ..." of the file's header. */
static bool read_table_row(const char *line, char *name, size_t *offset, size_t *bits) {
  return sscanf(line, "// %zu %*1[us]%zu %63[a-z0-9_]", offset, bits, name) == 3;
}

/* "ld.param.s64 num_rows, [params+24];" */
static bool read_load(const char *line, char *name, size_t *offset, size_t *bits) {
  return sscanf(line, " ld.param.%*1[us]%zu %63[a-z0-9_], [params+%zu];", bits, name, offset) == 3;
}

/* Every field is named once by the header and loaded once, from its offset and with its width. */
static void parameters_are_those_of_the_struct(void) {
  for (int m = 0; m < NUM_MODULES; m++) {
    char path[512], declared[64] = "";
    uint64_t bytes;
    int num_told[MAX_FIELDS] = {0}, num_loaded[MAX_FIELDS] = {0}, num_loads = 0;
    snprintf(path, sizeof path, "%s/ptx/%s.ptx", PURR_SOURCE_DIR, modules[m].name);
    unsigned char *data = test_read_file(path, &bytes);
    char *text = calloc(1, bytes + 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    memcpy(text, data, bytes);
    snprintf(declared, sizeof declared, ".b8 params[%zu])", modules[m].bytes);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, declared));
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
      char name[64];
      size_t offset, bits;
      const bool is_row = read_table_row(line, name, &offset, &bits), is_load = read_load(line, name, &offset, &bits);
      num_loads += strstr(line, "[params") != NULL;
      for (int f = 0; (is_row || is_load) && f < modules[m].num_fields; f++) {
        const field_t *field = &modules[m].fields[f];
        if (strcmp(field->name, name) != 0) continue;
        if (field->offset != offset || field->bytes * 8 != bits)
          fprintf(stderr, "%s: '%s': %s has %zu bits at %zu\n", path, line, name, field->bytes * 8, field->offset);
        CU_ASSERT_EQUAL(offset, field->offset);
        CU_ASSERT_EQUAL(bits, field->bytes * 8);
        num_told[f] += is_row;
        num_loaded[f] += is_load;
      }
    }
    for (int f = 0; f < modules[m].num_fields; f++) {
      CU_ASSERT_EQUAL(num_told[f], 1);
      CU_ASSERT_EQUAL(num_loaded[f], 1);
    }
    CU_ASSERT_EQUAL(num_loads, modules[m].num_fields);
    free(text);
    free(data);
  }
}

/* No field is left out of the lists above: each begins where the one before it ends. */
static void lists_are_complete(void) {
  for (int m = 0; m < NUM_MODULES; m++) {
    size_t end = 0;
    for (int f = 0; f < modules[m].num_fields; f++) {
      CU_ASSERT_EQUAL(modules[m].fields[f].offset, end);
      end += modules[m].fields[f].bytes;
    }
    CU_ASSERT_EQUAL(end, modules[m].bytes);
  }
}

int main(void) {
  return purr_test_main("PTX modules",
                        (purr_test_t[]){{"parameters are those of the struct", parameters_are_those_of_the_struct},
                                        {"lists are complete", lists_are_complete},
                                        {0}});
}
