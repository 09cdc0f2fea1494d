/* The public schedule: make, build, look, print. */
#include "schedule/schedule.h"

#include "result/mirror.h"
#include "workspace/memory.h"

static void schedule_free(void *object) {
  purr_schedule_t *schedule = object;
  purr__memory_release(schedule->plan, schedule->table_memory, schedule->plan->table_bytes);
  purr__release(schedule->object.context, schedule->mirror);
  purr__release(schedule->object.context, schedule->ids);
  purr__object_release(schedule->plan);
}

static purr_status_t allocate(purr_schedule_t *schedule, purr_error_t *err) {
  const purr_plan_t *plan = schedule->plan;
  purr_context_t *context = plan->object.context;
  const uint64_t ids_bytes = plan->saved[PURR__SAVED_IDS].bytes;
  purr_status_t status = purr__memory_allocate(plan, plan->table_bytes, "the schedule", &schedule->table_memory, err);
  if (status != PURR_STATUS_OK) return status;
  if (plan->device != NULL) {
    schedule->mirror = purr__allocate(context, plan->table_bytes);
    return schedule->mirror != NULL ? status : purr__fail_memory(err, "the schedule's mirror", plan->table_bytes);
  }
  schedule->ids = purr__allocate(context, ids_bytes);
  return schedule->ids != NULL ? status : purr__fail_memory(err, "the schedule's ids", ids_bytes);
}

purr_status_t purr_schedule_create(const purr_plan_t *plan, purr_schedule_t **out_schedule, purr_error_t *err) {
  if (out_schedule == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_schedule is NULL");
  *out_schedule = NULL;
  purr_status_t status = purr__check(plan, PURR__PLAN, err);
  if (status != PURR_STATUS_OK) return status;
  void *object;
  status =
      purr__object_create(plan->object.context, PURR__SCHEDULE, sizeof(purr_schedule_t), schedule_free, &object, err);
  if (status != PURR_STATUS_OK) return status;
  purr_schedule_t *schedule = object;
  purr__object_retain(plan);
  schedule->plan = plan;
  status = allocate(schedule, err);
  if (status != PURR_STATUS_OK) {
    purr__object_release(schedule);
    return status;
  }
  *out_schedule = schedule;
  return PURR_STATUS_OK;
}

/* The built table in host memory. A device's table is fetched, which waits for the building. */
static purr_status_t get_table(const purr_schedule_t *schedule, purr__table_t *out_table, purr_error_t *err) {
  purr_status_t status = purr__check(schedule, PURR__SCHEDULE, err);
  if (status != PURR_STATUS_OK) return status;
  const purr_plan_t *plan = schedule->plan;
  if (!schedule->built)
    return purr__fail(err, PURR_STATUS_INVALID_STATE,
                      "the schedule has not been built; call purr_schedule_build first");
  if (plan->device == NULL) {
    *out_table = purr__table_at(plan, schedule->table_memory);
    return PURR_STATUS_OK;
  }
  status = purr__device_synchronize(plan->device, schedule->stream, err);
  if (status == PURR_STATUS_OK)
    status = purr__memory_copy(plan, schedule->mirror, schedule->table_memory, plan->table_bytes, err);
  if (status != PURR_STATUS_OK) return status;
  const purr__device_status_t *found =
      (const void *)((const char *)schedule->mirror + plan->table[PURR__TABLE_STATUS].offset);
  status = purr__fail_found(err, found, plan->layer.num_experts, schedule->rank);
  purr_schedule_t *counted = (purr_schedule_t *)(uintptr_t)schedule; /* nothing that a reader sees changes */
  if (status == PURR_STATUS_OK) counted->is_counted = false;
  if (status == PURR_STATUS_BAD_ROUTE && !atomic_exchange_explicit(&counted->is_counted, true, memory_order_relaxed))
    purr__count(schedule->object.context, PURR__COUNT_BAD_ROUTES, 1);
  if (status != PURR_STATUS_OK) return status;
  *out_table = purr__table_at(plan, schedule->mirror);
  return PURR_STATUS_OK;
}

purr_status_t purr_schedule_get_view(const purr_schedule_t *schedule, purr_schedule_view_t *out_view,
                                     purr_error_t *err) {
  purr__table_t table;
  purr_status_t status = get_table(schedule, &table, err);
  if (status != PURR_STATUS_OK) return status;
  const purr_schedule_view_t own = {.struct_size = sizeof own,
                                    .num_ranks = schedule->plan->layer.num_ranks,
                                    .num_local_experts = schedule->plan->num_local_experts,
                                    .num_rows = table.header->num_rows,
                                    .num_padded_rows = table.header->num_padded_rows,
                                    .expert_count = table.expert_count,
                                    .expert_begin = table.expert_begin,
                                    .row_rank = table.row_rank,
                                    .row_slot = table.row_slot};
  return purr__write_struct(out_view, &own, sizeof own, "out_view", err);
}

static void describe_text(const purr_schedule_t *schedule, const purr__table_t *table, purr__text_t *text) {
  const int64_t top_k = schedule->plan->layer.top_k;
  purr__text_add(text, "%lld rows of %lld experts (%lld with padding); rows as rank:token/slot\n",
                 (long long)table->header->num_rows, (long long)table->header->num_local_experts,
                 (long long)table->header->num_padded_rows);
  for (int64_t e = 0; e < table->header->num_local_experts; e++) {
    purr__text_add(text, "expert %lld  rows %d..%d  %d used ", (long long)e, table->expert_begin[e],
                   table->expert_begin[e + 1], table->expert_count[e]);
    for (int64_t i = 0; i < table->expert_count[e]; i++) {
      const int64_t row = table->expert_begin[e] + i;
      purr__text_add(text, " %d:%lld/%lld", table->row_rank[row], (long long)(table->row_slot[row] / top_k),
                     (long long)(table->row_slot[row] % top_k));
    }
    purr__text_add(text, "\n");
  }
}

static void describe_numbers(purr__text_t *text, const char *name, const int32_t *values, int64_t num) {
  purr__text_add(text, ",\"%s\":[", name);
  for (int64_t i = 0; i < num; i++) purr__text_add(text, i ? ",%d" : "%d", values[i]);
  purr__text_add(text, "]");
}

static void describe_json(const purr_schedule_t *schedule, const purr__table_t *table, purr__text_t *text) {
  const purr__table_header_t *header = table->header;
  purr__text_add(text, "{\"top_k\":%lld,\"num_rows\":%lld,\"num_padded_rows\":%lld",
                 (long long)schedule->plan->layer.top_k, (long long)header->num_rows,
                 (long long)header->num_padded_rows);
  describe_numbers(text, "expert_count", table->expert_count, header->num_local_experts);
  describe_numbers(text, "expert_begin", table->expert_begin, header->num_local_experts + 1);
  describe_numbers(text, "row_rank", table->row_rank, header->num_padded_rows);
  describe_numbers(text, "row_slot", table->row_slot, header->num_padded_rows);
  purr__text_add(text, "}\n");
}

purr_status_t purr_schedule_describe(const purr_schedule_t *schedule, int32_t format, char *buffer, uint64_t capacity,
                                     uint64_t *out_length, purr_error_t *err) {
  purr__table_t table;
  purr_status_t status = get_table(schedule, &table, err);
  if (status != PURR_STATUS_OK) return status;
  if (format != PURR_FORMAT_TEXT && format != PURR_FORMAT_JSON)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "format is %d; allowed are 0 (text) and 1 (JSON)", format);
  purr__text_t text = {.context = schedule->object.context};
  if (format == PURR_FORMAT_TEXT)
    describe_text(schedule, &table, &text);
  else
    describe_json(schedule, &table, &text);
  return purr__text_deliver(&text, buffer, capacity, out_length, err);
}

void purr_schedule_destroy(purr_schedule_t *schedule) { purr__object_release(schedule); }
