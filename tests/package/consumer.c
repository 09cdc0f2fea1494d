/* A user's program: parses a layer, plans it, prints the plan. Also valid C++. */
#include <purr.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  const char *text =
      "num_experts: 128\n"
      "top_k: 8\n"
      "hidden_size: 2048\n"
      "intermediate_size: 768\n";
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_t *context = NULL;
  purr_config_t *config = NULL;
  purr_plan_t *plan = NULL;
  purr_plan_info_t info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  if (purr_context_create(NULL, &context, &err) != PURR_STATUS_OK ||
      purr_config_parse(context, text, strlen(text), "consumer", &config, &err) != PURR_STATUS_OK ||
      purr_plan_create(context, config, NULL, &plan, &err) != PURR_STATUS_OK ||
      purr_plan_query(plan, &info, &err) != PURR_STATUS_OK) {
    fprintf(stderr, "%s: %s\n", purr_status_name(err.status), err.message);
    return 1;
  }
  if (purr_version() != PURR_VERSION || info.num_local_experts != 128) return 1;
  printf("libpurr %s, %lld experts\n", purr_version_string(), (long long)info.num_local_experts);
  purr_plan_destroy(plan);
  purr_config_destroy(config);
  purr_context_destroy(context);
  return 0;
}
