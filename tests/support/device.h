/* A test rank on a GPU: copies of its buffers and weights in device memory, brought there before a call and back after
 * it, canaries included. */
#ifndef PURR_TEST_DEVICE_H
#define PURR_TEST_DEVICE_H

#include "support/main.h"
#include "support/rank.h"

/* Which backend the layer tests run on: the host's, or the one that PURR_TEST_BACKEND names ("staged"). */
int32_t test_backend(void);
/* How many devices the ranks of a group are spread over: PURR_TEST_DEVICES, else 1. */
int test_num_devices(void);
/* Whether the devices are emulated, by PURR_TEST_EMULATED: what takes long is then done on a smaller scale. */
bool test_is_emulated(void);
/* The tests' backend can run this; others run on the host. */
bool test_backend_serves(const test_run_t *run);
/* purr_test_main for tests that run layers: skips them where the tests' backend has no device, and keeps the device
 * ready until the process ends. */
int test_layer_main(const char *suite, const purr_test_t *tests);

bool test_rank_is_on_device(const test_rank_t *rank);
/* Makes the device copies and points the tensors at them. Does nothing for a plan of the host backend. */
purr_status_t test_device_attach(test_rank_t *rank, purr_error_t *err);
void test_device_detach(test_rank_t *rank);
/* All buffers to the device, and back. */
purr_status_t test_device_upload(test_rank_t *rank, purr_error_t *err);
purr_status_t test_device_download(test_rank_t *rank, purr_error_t *err);

#endif
