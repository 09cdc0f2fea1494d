/* The outcome of GPU calls: how the device writes it. A replay of a captured call writes it again. */
#ifndef PURR_RESULT_MIRROR_H
#define PURR_RESULT_MIRROR_H

#include "kernels/layout.h"
#include "result/result.h"

/* A GPU call begins: from now on its outcome is what the device writes into the mirror. Entered. */
purr_status_t purr__result_mirror(purr_result_t *result, purr__device_t *device, int64_t num_experts,
                                  int64_t num_all_experts, int rank, CUstream stream, purr_error_t *err);
/* Everything of the call is enqueued, so what is timed ends here. Entered. */
purr_status_t purr__result_mirrored(purr_result_t *result, CUstream stream, purr_error_t *err);

/* The sentence and status of what a call found; OK where it found nothing. num_experts: E; rank: this one. */
purr_status_t purr__fail_found(purr_error_t *err, const purr__device_status_t *found, int64_t num_experts, int rank);
#endif
