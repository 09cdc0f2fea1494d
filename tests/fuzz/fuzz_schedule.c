/* Any routing: the table is what its definition says, on every rank; a bad id is found, and the schedule can be used
 * again afterwards. */
#include "fuzz.h"
#include "schedule/table.h"

enum { MAX_RANKS = 4, MAX_TOKENS = 64, MAX_TOP_K = 8 };

static purr_plan_t *make_plan(fuzz_input_t *input) {
  const int num_ranks = 1 + fuzz_take(input) % MAX_RANKS;
  const purr_layer_desc_t layer = {.struct_size = sizeof layer,
                                   .hidden_size = 8,
                                   .intermediate_size = 8,
                                   .num_ranks = num_ranks,
                                   .num_experts = num_ranks * (1 + fuzz_take(input) % 8),
                                   .top_k = 1 + fuzz_take(input) % MAX_TOP_K,
                                   .max_tokens = MAX_TOKENS,
                                   .backend = PURR_BACKEND_HOST};
  purr_config_t *config = NULL;
  purr_plan_t *plan = NULL;
  purr_error_t err = PURR_ERROR_INIT;
  const purr_status_t status = purr_config_create(fuzz_context(), &layer, &config, &err);
  if (status != PURR_STATUS_OK)
    fuzz_check_error(status, &err);
  else
    FUZZ_CHECK(purr_plan_create(fuzz_context(), config, NULL, &plan, NULL) == PURR_STATUS_OK);
  purr_config_destroy(config);
  return plan;
}

/* For each expert, its slots in the order (rank, token, slot), then padding to a multiple of 64. */
static void check_table(const purr_plan_t *plan, int rank, const int32_t *const *ids, const int64_t *num_tokens,
                        const purr_schedule_view_t *view) {
  int64_t row = 0, num_rows = 0;
  for (int64_t e = 0; e < plan->num_local_experts; e++) {
    FUZZ_CHECK(view->expert_begin[e] == row);
    int64_t count = 0;
    for (int r = 0; r < plan->layer.num_ranks; r++)
      for (int64_t slot = 0; slot < num_tokens[r] * plan->layer.top_k; slot++)
        if (ids[r][slot] == rank * plan->num_local_experts + e) {
          FUZZ_CHECK(view->row_rank[row + count] == r && view->row_slot[row + count] == slot);
          count++;
        }
    FUZZ_CHECK(view->expert_count[e] == count);
    num_rows += count;
    for (; count % 64 != 0; count++) FUZZ_CHECK(view->row_rank[row + count] == -1 && view->row_slot[row + count] == -1);
    row += count;
  }
  FUZZ_CHECK(view->expert_begin[plan->num_local_experts] == row && view->num_padded_rows == row);
  FUZZ_CHECK(view->num_rows == num_rows && row <= plan->max_rows);
}

static void check_every_rank(const purr_plan_t *plan, const int32_t *const *ids, const int64_t *num_tokens) {
  for (int rank = 0; rank < plan->layer.num_ranks; rank++) {
    void *memory = NULL;
    if (posix_memalign(&memory, PURR__MEMORY_ALIGNMENT, plan->table_bytes) != 0) abort();
    memset(memory, 0xFF, plan->table_bytes);
    const purr__table_t table = purr__table_at(plan, memory);
    purr__table_build(plan, rank, ids, num_tokens, &table);
    const purr_schedule_view_t view = {.num_rows = table.header->num_rows,
                                       .num_padded_rows = table.header->num_padded_rows,
                                       .expert_count = table.expert_count,
                                       .expert_begin = table.expert_begin,
                                       .row_rank = table.row_rank,
                                       .row_slot = table.row_slot};
    check_table(plan, rank, ids, num_tokens, &view);
    free(memory);
  }
}

static purr_status_t build(const purr_plan_t *plan, purr_schedule_t *schedule, purr_workspace_t *workspace,
                           int32_t *ids, int64_t num_tokens) {
  const purr_tensor_t topk_ids = {.struct_size = sizeof topk_ids,
                                  .dtype = PURR_DTYPE_INT32,
                                  .num_dims = 2,
                                  .data = ids,
                                  .shape = {num_tokens, plan->layer.top_k}};
  purr_error_t err = PURR_ERROR_INIT;
  const purr_status_t status = purr_schedule_build(schedule, workspace, &topk_ids, NULL, &err);
  if (status != PURR_STATUS_OK) fuzz_check_error(status, &err);
  return status;
}

/* One rank, through the public interface: first with one id that may be bad, then with the good ones. */
static void check_public(const purr_plan_t *plan, int32_t *ids, int64_t num_tokens, int32_t other_id) {
  purr_schedule_t *schedule = NULL;
  purr_workspace_t *workspace = NULL;
  FUZZ_CHECK(purr_schedule_create(plan, &schedule, NULL) == PURR_STATUS_OK);
  FUZZ_CHECK(purr_workspace_create(plan, NULL, NULL, &workspace, NULL) == PURR_STATUS_OK);
  if (num_tokens > 0) {
    const int64_t place = (uint32_t)other_id % (num_tokens * plan->layer.top_k);
    const int32_t good_id = ids[place];
    ids[place] = other_id;
    const bool is_good = other_id >= -1 && other_id < plan->layer.num_experts;
    FUZZ_CHECK(build(plan, schedule, workspace, ids, num_tokens) == (is_good ? PURR_STATUS_OK : PURR_STATUS_BAD_ROUTE));
    ids[place] = good_id;
  }
  FUZZ_CHECK(build(plan, schedule, workspace, ids, num_tokens) == PURR_STATUS_OK);
  purr_schedule_view_t view = {.struct_size = sizeof view};
  FUZZ_CHECK(purr_schedule_get_view(schedule, &view, NULL) == PURR_STATUS_OK);
  check_table(plan, 0, (const int32_t *const[]){ids}, &num_tokens, &view);
  purr_schedule_destroy(schedule);
  purr_workspace_destroy(workspace);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  const uint64_t held_bytes = fuzz_held_bytes();
  fuzz_input_t input = {data, num_bytes};
  purr_plan_t *plan = make_plan(&input);
  if (plan == NULL) return 0;
  int32_t *ids[MAX_RANKS];
  int64_t num_tokens[MAX_RANKS];
  for (int r = 0; r < plan->layer.num_ranks; r++) {
    num_tokens[r] = fuzz_take(&input) % (MAX_TOKENS + 1);
    const int64_t num_slots = num_tokens[r] * plan->layer.top_k;
    ids[r] = fuzz_allocate((size_t)num_slots * sizeof **ids);
    for (int64_t i = 0; i < num_slots; i++) ids[r][i] = fuzz_take(&input) % (int32_t)(plan->layer.num_experts + 1) - 1;
  }
  check_every_rank(plan, (const int32_t *const *)ids, num_tokens);
  if (plan->layer.num_ranks == 1) {
    int32_t other_id = 0;
    for (size_t i = 0; i < sizeof other_id; i++) ((uint8_t *)&other_id)[i] = fuzz_take(&input);
    check_public(plan, ids[0], num_tokens[0], other_id);
  }
  for (int r = 0; r < plan->layer.num_ranks; r++) free(ids[r]);
  purr_plan_destroy(plan);
  FUZZ_CHECK(fuzz_held_bytes() == held_bytes);
  return 0;
}
