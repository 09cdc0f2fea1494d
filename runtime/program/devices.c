/* --devices: which GPU each rank uses. */
#include <stdlib.h>
#include <string.h>

#include "program.h"

static const char *const next_list = "give GPU numbers from 0 with commas between them, such as --devices 0,1";

int devices_parse(const char *command, const char *text, device_list_t *out_devices) {
  *out_devices = (device_list_t){0};
  for (const char *at = text; at != NULL;) {
    char *end;
    const long number = strtol(at, &end, 10);
    if (*at < '0' || *at > '9' || (*end != ',' && *end != '\0') || number > MAX_DEVICE_NUMBER)
      return fail(command, next_list, "--devices takes GPU numbers from 0 to %d, not '%.64s'", MAX_DEVICE_NUMBER, text);
    if (out_devices->count == MAX_DEVICES)
      return fail(command, next_list, "--devices '%.64s' names more than %d GPUs", text, MAX_DEVICES);
    out_devices->numbers[out_devices->count++] = (int32_t)number;
    at = *end == ',' ? end + 1 : NULL;
  }
  return EXIT_GOOD;
}

int devices_check_ranks(const char *command, const device_list_t *devices, int64_t num_ranks) {
  if (devices->count <= num_ranks) return EXIT_GOOD;
  return fail(command, "raise --ranks, or name fewer GPUs", "--devices names %d GPUs for %lld rank%s", devices->count,
              (long long)num_ranks, num_ranks == 1 ? "" : "s");
}

int32_t device_of_rank(const device_list_t *devices, int64_t rank) {
  return devices->count > 0 ? devices->numbers[rank % devices->count] : 0;
}

const char *devices_text(char *buffer, size_t capacity, const device_list_t *devices, int64_t num_ranks) {
  size_t length = 0;
  buffer[0] = '\0';
  for (int64_t r = 0; r < num_ranks && length < capacity; r++)
    length +=
        (size_t)snprintf(buffer + length, capacity - length, "%s%d", r > 0 ? ", " : "", device_of_rank(devices, r));
  return buffer;
}

void devices_write_json(json_t *json, const device_list_t *devices, int64_t num_ranks, bool is_on_gpu) {
  if (!is_on_gpu) {
    json_text(json, "devices", NULL);
    return;
  }
  json_begin(json, "devices", '[');
  for (int64_t r = 0; r < num_ranks; r++) json_int(json, NULL, device_of_rank(devices, r));
  json_end(json, ']');
}

int devices_fail_host(const char *command, const char *option, purr_context_t *context, const purr_config_t *config,
                      purr_plan_desc_t desc) {
  char next[160];
  snprintf(next, sizeof next, "leave %s out, or change what keeps the layer from GPUs; purr doctor says what works",
           option);
  purr_error_t err = PURR_ERROR_INIT;
  purr_plan_t *plan = NULL;
  purr_layer_desc_t layer = {.struct_size = sizeof layer};
  if (desc.backend == PURR_BACKEND_AUTO && purr_config_get_layer(config, &layer, &err) == PURR_STATUS_OK)
    desc.backend = layer.backend;
  if (desc.backend == PURR_BACKEND_HOST)
    return fail(command, next, "%s names a GPU, but backend 'host', which uses none, was asked for", option);
  desc.backend = PURR_BACKEND_STAGED; /* by name, so that it says why not */
  if (purr_plan_create(context, config, &desc, &plan, &err) != PURR_STATUS_OK) return fail_call(command, next, &err);
  purr_plan_destroy(plan);
  return fail(command, next, "%s names a GPU, but the host runs this layer", option);
}
