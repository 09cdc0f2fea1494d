/* Count, prefix-sum, place: integer work only, no sort. */
#include "schedule/table.h"

purr__table_t purr__table_at(const purr_plan_t *plan, void *memory) {
  char *base = memory;
  return (purr__table_t){
      .header = (void *)(base + plan->table[PURR__TABLE_HEADER].offset),
      .expert_count = (void *)(base + plan->table[PURR__TABLE_EXPERT_COUNT].offset),
      .expert_begin = (void *)(base + plan->table[PURR__TABLE_EXPERT_BEGIN].offset),
      .row_rank = (void *)(base + plan->table[PURR__TABLE_ROW_RANK].offset),
      .row_slot = (void *)(base + plan->table[PURR__TABLE_ROW_SLOT].offset),
      .tile_begin = (void *)(base + plan->table[PURR__TABLE_TILE_BEGIN].offset),
      .tile_expert = (void *)(base + plan->table[PURR__TABLE_TILE_EXPERT].offset),
  };
}

void purr__table_build(const purr_plan_t *plan, int rank, const int32_t *const *ids, const int64_t *num_tokens,
                       const purr__table_t *table) {
  const int64_t num_experts = plan->num_local_experts, top_k = plan->layer.top_k;
  const int64_t first_expert = rank * num_experts;

  memset(table->expert_count, 0, (size_t)num_experts * sizeof(int32_t));
  for (int r = 0; r < plan->layer.num_ranks; r++)
    for (int64_t slot = 0; slot < num_tokens[r] * top_k; slot++) {
      int64_t expert = ids[r][slot] - first_expert;
      if (expert >= 0 && expert < num_experts) table->expert_count[expert]++;
    }

  int64_t num_rows = 0, begin = 0;
  for (int64_t e = 0; e < num_experts; e++) {
    table->expert_begin[e] = (int32_t)begin;
    num_rows += table->expert_count[e];
    begin += purr__round_up(table->expert_count[e], PURR__ROW_ALIGNMENT);
  }
  table->expert_begin[num_experts] = (int32_t)begin;

  /* While placing, expert_count[e] counts up again from 0: it is the next free row of the expert's segment. */
  memset(table->expert_count, 0, (size_t)num_experts * sizeof(int32_t));
  for (int r = 0; r < plan->layer.num_ranks; r++)
    for (int64_t slot = 0; slot < num_tokens[r] * top_k; slot++) {
      int64_t expert = ids[r][slot] - first_expert;
      if (expert < 0 || expert >= num_experts) continue;
      int64_t row = table->expert_begin[expert] + table->expert_count[expert]++;
      table->row_rank[row] = r;
      table->row_slot[row] = (int32_t)slot;
    }
  for (int64_t e = 0; e < num_experts; e++)
    for (int64_t row = table->expert_begin[e] + table->expert_count[e]; row < table->expert_begin[e + 1]; row++)
      table->row_rank[row] = table->row_slot[row] = -1;

  *table->header =
      (purr__table_header_t){.num_rows = num_rows, .num_padded_rows = begin, .num_local_experts = num_experts};
}

bool purr__table_next_run(const purr__table_t *table, int64_t end, int64_t *row, int64_t *expert,
                          purr__run_t *out_run) {
  const int64_t num_experts = table->header->num_local_experts;
  for (; *expert < num_experts && *row < end; ++*expert) {
    int64_t used_begin = table->expert_begin[*expert];
    int64_t used_end = used_begin + table->expert_count[*expert];
    if (used_end <= *row || used_begin == used_end) continue;
    int64_t run_begin = purr__max(*row, used_begin), run_end = purr__min(end, used_end);
    if (run_begin >= end) return false;
    *out_run = (purr__run_t){*expert, run_begin, run_end, run_begin == used_begin, run_end == used_end};
    *row = run_end;
    return true;
  }
  return false;
}
