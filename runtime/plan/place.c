/* Where a plan runs, and whether what a call is given is there too. */
#include <stdio.h>

#include "driver/driver.h"
#include "plan/plan.h"

enum { PLACE_BYTES = 160 };

static const char *name_place(const purr_plan_t *plan, char text[PLACE_BYTES]) {
  if (plan->device == NULL) return "the host";
  snprintf(text, PLACE_BYTES, "device %d (%s)", plan->device->ordinal, plan->device->name);
  return text;
}

purr_status_t purr__plan_check_place(const purr_plan_t *plan, const purr_plan_t *other, const char *thing,
                                     purr_error_t *err) {
  char mine[PLACE_BYTES], others[PLACE_BYTES];
  if (other->object.context != plan->object.context)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s and the plan belong to different contexts", thing);
  if (other->device == plan->device) return PURR_STATUS_OK;
  return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "%s: made for %s, but the plan is for %s", thing,
                    name_place(other, others), name_place(plan, mine));
}

purr_status_t purr__plan_check_memory(const purr_plan_t *plan, const void *memory, const char *name,
                                      purr_error_t *err) {
  if (plan->device == NULL || memory == NULL) return PURR_STATUS_OK;
  purr_status_t status = purr__device_enter(plan->device, err);
  if (status != PURR_STATUS_OK) return status;
  status = purr__device_check_pointer(plan->device, memory, name, err);
  purr__device_leave(plan->device);
  return status;
}
