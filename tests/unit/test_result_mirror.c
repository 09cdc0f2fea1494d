/* What a GPU call leaves for its result, on a driver without a GPU: the test writes what the kernels would. The
 * sentences name what is allowed, each outcome is counted once, and nothing that is asked breaks a capture in another
 * thread. */
#include <string.h>

#include "result/mirror.h"
#include "support/fake_cuda.h"
#include "support/main.h"

enum { LOCAL_EXPERTS = 4, EXPERTS = 12 };

static fake_cuda_t *fake;
static purr_context_t *context;
static purr__device_t *device;
static purr_result_t *result;
static purr_error_t err;

static void set_up(void) {
  fake = fake_cuda_open();
  context = fake_cuda_context();
  CU_ASSERT_EQUAL_FATAL(purr__device_get(context, 0, &device, &err), PURR_STATUS_OK);
  CU_ASSERT_EQUAL_FATAL(purr_result_create(context, &result, &err), PURR_STATUS_OK);
}

static void tear_down(void) {
  purr_result_destroy(result);
  purr_context_destroy(context);
  CU_ASSERT_EQUAL(fake->num_events, 0);
  CU_ASSERT_EQUAL(fake->num_pinned, 0);
  CU_ASSERT_EQUAL(fake->num_unsafe_calls, 0);
}

static void begin_call(void) {
  purr__result_start(result);
  ASSERT_OK(purr__device_enter(device, &err));
  ASSERT_OK(purr__result_mirror(result, device, LOCAL_EXPERTS, EXPERTS, 0, NULL, &err));
  purr__device_leave(device);
}

/* What the first kernel of a call writes, a replay's too. */
static void begin_on_device(void) {
  result->mirror->status = PURR_STATUS_NOT_READY;
  result->mirror->reserved = 0;
}

static void end_on_device(const purr__device_status_t *found) {
  result->mirror->found = *found;
  result->mirror->status = found->status;
}

static purr_result_info_t query(void) {
  purr_result_info_t info = {.struct_size = sizeof info};
  err = (purr_error_t)PURR_ERROR_INIT;
  ASSERT_OK(purr_result_query(result, &info, NULL));
  purr_result_query(result, &info, &err);
  return info;
}

static purr_counters_t counters(void) {
  purr_counters_t now = {.struct_size = sizeof now};
  ASSERT_OK(purr_context_query_counters(context, &now, NULL));
  return now;
}

static const purr__device_status_t bad = {PURR_STATUS_BAD_ROUTE, 1, 7, 2, 99, 0, 0};
static const purr__device_status_t good = {PURR_STATUS_OK, -1, -1, -1, -1, 30, 64};

static void a_bad_route(void) {
  set_up();
  begin_call();
  CU_ASSERT_EQUAL(query().status, PURR_STATUS_NOT_READY);
  begin_on_device();
  CU_ASSERT_EQUAL(query().status, PURR_STATUS_NOT_READY);
  CU_ASSERT_EQUAL(counters().num_bad_routes, 0);
  end_on_device(&bad);
  const purr_result_info_t info = query();
  CU_ASSERT_EQUAL(info.status, PURR_STATUS_BAD_ROUTE);
  CU_ASSERT(info.rank == 1 && info.token == 7 && info.slot == 2 && info.expert == 99);
  CU_ASSERT_STRING_EQUAL(err.message,
                         "rank 1, token 7, slot 2 has expert id 99; allowed are 0 to 11, and -1 for a dropped slot");
  tear_down();
}

static void each_outcome_is_counted_once(void) {
  set_up();
  begin_call();
  begin_on_device();
  end_on_device(&bad);
  for (int i = 0; i < 3; i++) query();
  CU_ASSERT_EQUAL(counters().num_bad_routes, 1);
  for (int replay = 0; replay < 2; replay++) { /* the same outcome again, and never seen running */
    begin_on_device();
    end_on_device(&bad);
    query();
  }
  CU_ASSERT_EQUAL(counters().num_bad_routes, 3);
  CU_ASSERT_EQUAL(counters().num_rows, 0);
  begin_call();
  begin_on_device();
  end_on_device(&good);
  int64_t counts[LOCAL_EXPERTS];
  ASSERT_OK(purr_result_tokens_per_expert(result, counts, LOCAL_EXPERTS, &err));
  query();
  CU_ASSERT_EQUAL(counters().num_rows, 30);
  CU_ASSERT_EQUAL(counters().num_bad_routes, 3);
  begin_on_device();
  end_on_device(&bad);
  begin_on_device(); /* nobody read that one */
  end_on_device(&good);
  query();
  CU_ASSERT_EQUAL(counters().num_rows, 60);
  CU_ASSERT_EQUAL(counters().num_bad_routes, 3);
  tear_down();
}

int main(void) {
  return purr_test_main(
      "results of GPU calls",
      (purr_test_t[]){
          {"a bad route", a_bad_route}, {"each outcome is counted once", each_outcome_is_counted_once}, {0}});
}
