/* Any text as what Triton writes beside a cubin, with any signature and any image: refused with one sentence, or a
 * kernel whose parameters are those of its image. The input is the metadata, the signature and the image, with a NUL
 * behind each of the first two; without an image it is that of a real kernel. The signature is tried as the rule of a
 * grid too. */
#include "fuzz.h"
#include "support/folder.h"
#include "triton/grid.h"
#include "triton/kernel.h"

static const uint8_t *take_text(const uint8_t **data, size_t *num_bytes, size_t *out_length) {
  const uint8_t *text = *data, *end = memchr(*data, '\0', *num_bytes);
  *out_length = end != NULL ? (size_t)(end - text) : *num_bytes;
  const size_t taken = end != NULL ? *out_length + 1 : *num_bytes;
  *data += taken;
  *num_bytes -= taken;
  return text;
}

static void check_kernel(const purr_kernel_t *kernel) {
  for (int i = 0; i < kernel->num_variants; i++) {
    const purr__triton_variant_t *variant = &kernel->variants[i];
    FUZZ_CHECK(variant->num_params >= variant->num_hidden && variant->num_hidden >= 0 && variant->num_hidden <= 2);
    for (int p = 0; p < variant->num_params; p++) {
      FUZZ_CHECK(variant->params[p].bytes >= 1 && variant->params[p].bytes <= PURR__TRITON_MAP_BYTES);
      FUZZ_CHECK(variant->params[p].argument_idx >= 0 &&
                 (variant->params[p].argument_idx < variant->spec->num_arguments || p >= variant->num_params - 2));
    }
  }
  char text[1 << 16];
  purr_error_t err = PURR_ERROR_INIT;
  const purr_status_t status = purr_kernel_describe(kernel, PURR_FORMAT_JSON, text, sizeof text, NULL, &err);
  FUZZ_CHECK(status == PURR_STATUS_OK || status == PURR_STATUS_BUFFER_TOO_SMALL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  static unsigned char *real;
  static uint64_t real_bytes;
  if (real == NULL) real = test_read_file(PURR_TEST_DATA "/triton/3.6.0/add/add_kernel.cubin", &real_bytes);
  purr_context_t *context = fuzz_context();
  const uint64_t held_bytes = fuzz_held_bytes();
  size_t metadata_length, signature_length;
  const uint8_t *metadata = take_text(&data, &num_bytes, &metadata_length);
  const uint8_t *given = take_text(&data, &num_bytes, &signature_length);
  char *signature = calloc(1, signature_length + 1), why[160];
  memcpy(signature, given, signature_length);
  int64_t value;
  if (!purr__grid_evaluate(signature, NULL, NULL, &value, why, sizeof why)) FUZZ_CHECK(why[0] != '\0');
  purr_kernel_t *kernel = NULL;
  purr_error_t err = PURR_ERROR_INIT;
  purr_kernel_desc_t desc = PURR_KERNEL_DESC_INIT;
  desc.metadata = metadata_length > 0 ? (const char *)metadata : "";
  desc.metadata_bytes = metadata_length;
  desc.cubin = num_bytes > 0 ? data : real;
  desc.cubin_bytes = num_bytes > 0 ? num_bytes : real_bytes;
  desc.signature = signature_length > 0 ? signature : NULL;
  const purr_status_t status = purr_kernel_open(context, &desc, &kernel, &err);
  if (status == PURR_STATUS_OK)
    check_kernel(kernel);
  else
    fuzz_check_error(status, &err);
  purr_kernel_destroy(kernel);
  free(signature);
  FUZZ_CHECK(fuzz_held_bytes() == held_bytes);
  return 0;
}
