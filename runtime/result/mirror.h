/* The outcome of GPU calls: how the device writes it. */
#ifndef PURR_RESULT_MIRROR_H
#define PURR_RESULT_MIRROR_H

#include "kernels/layout.h"
#include "result/result.h"

/* What a GPU call writes of its outcome: page-locked memory. A replay of a captured call writes it again. */
typedef struct purr__result_mirror {
  purr__device_status_t found;
  int32_t status; /* written last: NOT_READY until the call is done */
  int32_t expert_count[];
} purr__result_mirror_t;

/* A GPU call begins: from now on its outcome is what the device writes into the mirror. Entered. */
purr_status_t purr__result_mirror(purr_result_t *result, purr__device_t *device, int64_t num_experts,
                                  int64_t num_all_experts, CUstream stream, purr_error_t *err);
/* Everything of the call is enqueued. */
purr_status_t purr__result_mirrored(purr_result_t *result, CUstream stream, purr_error_t *err);
#endif
