/* One matrix of a layer as it stands in the checkpoint: BF16, or E4M3 with scales over blocks. */
#ifndef PURR_MATRIX_H
#define PURR_MATRIX_H

#include "checkpoint/family.h"

typedef struct purr__matrix {
  const purr__entry_t *entry, *scales; /* no scales for BF16 */
  uint64_t byte_offset, scale_offset;  /* of this matrix in the data of each: the expert's place in packed tensors */
  int64_t num_rows, num_cols;
  int64_t block_rows, block_cols; /* that share a scale */
  int64_t part_rows;              /* blocks start anew after so many rows: packed gate_up is two matrices */
} purr__matrix_t;

/* Finds the matrix of a role (and expert, where the role is routed), and checks names, shapes and types. `needed_by` is
 * for messages. */
purr_status_t purr__matrix_find(const purr_checkpoint_t *checkpoint, const purr__model_t *model,
                                const purr__naming_t *naming, purr__role_t role, int64_t expert, const char *needed_by,
                                purr__matrix_t *out_matrix, purr_error_t *err);

/* Looks up a tensor and requires its shape. */
purr_status_t purr__tensor_require(const purr_checkpoint_t *checkpoint, const purr__wanted_t *wanted,
                                   const char *needed_by, purr__entry_t **out_entry, purr_error_t *err);

/* Writes the matrix as BF16, rows close together. `data` and `scales` are those of the entries. With scales each
 * element is bf16(e4m3 * scale), the product in FP32. */
void purr__matrix_convert(const purr__matrix_t *matrix, const char *data, const char *scales, uint16_t *out);

#endif
