/* Any text as a layer config: it is refused with one sentence, or it gives a layer that is written and read back as the
 * same, and that can be planned or is refused with one sentence too. */
#include "fuzz.h"

/* Writes a config as YAML; the caller frees it. */
static char *write_config(const purr_config_t *config, uint64_t *out_length) {
  FUZZ_CHECK(purr_config_write(config, NULL, 0, out_length, NULL) == PURR_STATUS_OK);
  char *text = fuzz_allocate(*out_length + 1);
  FUZZ_CHECK(purr_config_write(config, text, *out_length + 1, out_length, NULL) == PURR_STATUS_OK);
  FUZZ_CHECK(strlen(text) == *out_length);
  return text;
}

static void check_written(const purr_config_t *config) {
  purr_config_t *again = NULL;
  purr_layer_desc_t layer, layer_again;
  memset(&layer, 0, sizeof layer);
  memset(&layer_again, 0, sizeof layer_again);
  layer.struct_size = layer_again.struct_size = sizeof layer;
  uint64_t length, length_again;
  char *text = write_config(config, &length);
  FUZZ_CHECK(purr_config_parse(fuzz_context(), text, length, NULL, &again, NULL) == PURR_STATUS_OK);
  FUZZ_CHECK(purr_config_get_layer(config, &layer, NULL) == PURR_STATUS_OK);
  FUZZ_CHECK(purr_config_get_layer(again, &layer_again, NULL) == PURR_STATUS_OK);
  FUZZ_CHECK(memcmp(&layer, &layer_again, sizeof layer) == 0);
  char *text_again = write_config(again, &length_again);
  FUZZ_CHECK(length == length_again && memcmp(text, text_again, length) == 0);
  free(text_again);
  free(text);
  purr_config_destroy(again);
}

static void check_plan(const purr_config_t *config) {
  purr_plan_t *plan = NULL;
  purr_error_t err = PURR_ERROR_INIT;
  purr_plan_desc_t desc = PURR_PLAN_DESC_INIT;
  desc.backend = PURR_BACKEND_HOST;
  const purr_status_t status = purr_plan_create(fuzz_context(), config, &desc, &plan, &err);
  FUZZ_CHECK((status == PURR_STATUS_OK) == (plan != NULL));
  if (status != PURR_STATUS_OK) {
    fuzz_check_error(status, &err);
    return;
  }
  for (int32_t format = PURR_FORMAT_TEXT; format <= PURR_FORMAT_JSON; format++) {
    uint64_t length;
    FUZZ_CHECK(purr_plan_describe(plan, format, NULL, 0, &length, NULL) == PURR_STATUS_OK);
  }
  purr_plan_destroy(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  purr_context_t *context = fuzz_context();
  const uint64_t held_bytes = fuzz_held_bytes();
  purr_config_t *config = NULL;
  purr_error_t err = PURR_ERROR_INIT;
  const purr_status_t status = purr_config_parse(context, (const char *)data, num_bytes, "fuzz", &config, &err);
  FUZZ_CHECK((status == PURR_STATUS_OK) == (config != NULL));
  if (status == PURR_STATUS_OK) {
    check_written(config);
    check_plan(config);
    purr_config_destroy(config);
  } else {
    FUZZ_CHECK(status == PURR_STATUS_CONFIG);
    fuzz_check_error(status, &err);
  }
  FUZZ_CHECK(fuzz_held_bytes() == held_bytes);
  return 0;
}
