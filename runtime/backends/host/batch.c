/* Grouped GEMMs over experts, and what MXFP8 does to their operands. */
#include "backends/host/pass.h"
#include "mxfp8/blocks.h"

_Static_assert(sizeof(purr__gemm_t) <= PURR__TASK_BYTES, "the task list of the workspace is too small");

static bool is_mxfp8(const purr__pass_t *pass) { return pass->plan->layer.precision == PURR_PRECISION_MXFP8; }

purr__batch_t purr__batch_start(purr__pass_t *pass) {
  return (purr__batch_t){.pass = pass, .problems = purr__workspace_at(pass->workspace, pass->plan, PURR__WS_TASKS)};
}

void purr__batch_add(purr__batch_t *batch, purr__gemm_t problem) { batch->problems[batch->num_problems++] = problem; }

void purr__batch_finish(purr__batch_t *batch) {
  purr__host_gemm(batch->pass->context, batch->problems, batch->num_problems);
  batch->num_problems = 0;
}

void purr__batch_end_expert(purr__batch_t *batch) {
  if (is_mxfp8(batch->pass)) purr__batch_finish(batch);
}

/* ---- operands ---- */

/* What quantising and reading back gives. */
static void quantize(purr__pass_t *pass, const purr__bf16_t *from, int64_t from_stride, purr__bf16_t *to, int64_t rows,
                     int64_t columns, int32_t granularity, int32_t along) {
  const purr__mxfp8_matrix_t matrix = {.granularity = granularity,
                                       .axis = along,
                                       .rule = pass->plan->layer.mxfp8_scale_rule,
                                       .src_dtype = PURR_DTYPE_BF16,
                                       .dst_dtype = PURR_DTYPE_BF16,
                                       .src = from,
                                       .dst = to,
                                       .src_stride = from_stride,
                                       .dst_stride = columns,
                                       .num_rows = rows,
                                       .num_columns = columns};
  const uint64_t start_ns = purr__pass_clock(pass);
  purr__mxfp8_convert(pass->context, &matrix, 1);
  purr__pass_record(pass, PURR__TRACE_QUANTIZE, start_ns); /* of all threads, told by the caller */
}

purr__operand_t purr__batch_weight(purr__batch_t *batch, const purr__view_t *view, int64_t expert, int64_t rows,
                                   int64_t columns, int32_t along, int scratch_idx) {
  purr__pass_t *pass = batch->pass;
  const purr__bf16_t *data = purr__weight(view, expert);
  int64_t stride = view->row_stride;
  if (is_mxfp8(pass)) {
    purr__bf16_t *scratch = purr__workspace_at(pass->workspace, pass->plan, PURR__WS_QUANT_WEIGHTS);
    scratch += scratch_idx * rows * columns;
    quantize(pass, data, stride, scratch, rows, columns, pass->plan->layer.mxfp8_weight_granularity, along);
    data = scratch;
    stride = columns;
  }
  return along == PURR_SCALE_ALONG_ROW ? purr__rows(data, stride) : purr__columns(data, stride);
}

const purr__bf16_t *purr__quantize_rows(purr__pass_t *pass, const purr__bf16_t *rows, int64_t num_rows, int64_t columns,
                                        purr__bf16_t *to) {
  if (!is_mxfp8(pass)) return rows;
  quantize(pass, rows, columns, to, num_rows, columns, pass->plan->layer.mxfp8_activation_granularity,
           PURR_SCALE_ALONG_ROW);
  return to;
}

void purr__quantize_tokens(purr__pass_t *pass, purr__bf16_t *rows, int64_t num_rows, int64_t columns) {
  if (is_mxfp8(pass))
    quantize(pass, rows, columns, rows, num_rows, columns, PURR_GRANULARITY_1X32, PURR_SCALE_ALONG_COLUMN);
}
