/* How a call's outcome reaches its result: copies at the end of the stream. */
#include "backends/staged/staged.h"

purr_status_t purr__staged_report(const purr__call_t *call, const purr__table_t *table, purr_error_t *err) {
  const purr_plan_t *plan = call->plan;
  purr_result_t *result = call->result;
  if (result == NULL) return PURR_STATUS_OK;
  purr__result_mirror_t *mirror = result->mirror;
  const purr__device_status_t *found = purr__staged_status(plan, table);
  purr_status_t status =
      purr__device_copy(plan->device, &mirror->found, found, sizeof mirror->found, call->stream, err);
  if (status == PURR_STATUS_OK)
    status = purr__device_copy(plan->device, mirror->expert_count, table->expert_count,
                               (uint64_t)plan->num_local_experts * sizeof(int32_t), call->stream, err);
  if (status == PURR_STATUS_OK)
    status = purr__device_copy(plan->device, &mirror->status, &found->status, sizeof mirror->status, call->stream, err);
  return status == PURR_STATUS_OK ? purr__result_mirrored(result, call->stream, err) : status;
}
