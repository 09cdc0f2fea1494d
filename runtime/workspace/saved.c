#include "workspace/saved.h"

#include "workspace/memory.h"

static void saved_free(void *object) {
  purr_saved_t *saved = object;
  if (saved->owns_memory) purr__memory_release(saved->plan, saved->memory, saved->bytes);
  purr__object_release(saved->plan);
}

purr_status_t purr_saved_create(const purr_plan_t *plan, void *memory, uint64_t bytes, purr_saved_t **out_saved,
                                purr_error_t *err) {
  if (out_saved == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_saved is NULL");
  *out_saved = NULL;
  purr_status_t status = purr__check(plan, PURR__PLAN, err);
  if (status != PURR_STATUS_OK) return status;
  if (memory != NULL && bytes < plan->saved_bytes)
    return purr__fail(err, PURR_STATUS_BUFFER_TOO_SMALL,
                      "the saved memory has %llu bytes, the plan needs %llu (purr_plan_query says so)",
                      (unsigned long long)bytes, (unsigned long long)plan->saved_bytes);
  if ((uintptr_t)memory % PURR__MEMORY_ALIGNMENT != 0)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "the saved memory is at %p; it must be %d-byte aligned",
                      memory, PURR__MEMORY_ALIGNMENT);
  status = purr__plan_check_memory(plan, memory, "the saved memory", err);
  if (status != PURR_STATUS_OK) return status;
  void *object;
  status = purr__object_create(plan->object.context, PURR__SAVED, sizeof(purr_saved_t), saved_free, &object, err);
  if (status != PURR_STATUS_OK) return status;
  purr_saved_t *saved = object;
  purr__object_retain(plan);
  saved->plan = plan;
  saved->memory = memory;
  saved->bytes = memory != NULL ? bytes : plan->saved_bytes;
  if (memory == NULL) {
    saved->owns_memory = true;
    status = purr__memory_allocate(plan, plan->saved_bytes, "the saved activations", (void **)&saved->memory, err);
    if (status != PURR_STATUS_OK) {
      purr__object_release(saved);
      return status;
    }
  }
  *out_saved = saved;
  return PURR_STATUS_OK;
}

void purr_saved_destroy(purr_saved_t *saved) { purr__object_release(saved); }
