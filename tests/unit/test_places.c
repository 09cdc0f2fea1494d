/* What a GPU plan is given must be on its device: objects made for another device, whose hash is the same, memory of
 * the host, and memory of another device. On a fake driver with two devices; skipped in a build without GPU kernels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "support/fake_cuda.h"
#include "support/main.h"

enum { T = 16, K = 2, E = 4, H = 128, I = 64, S = 64, BYTES = 1 << 20, NUM_TENSORS = 8 };

static purr_error_t err;
static purr_context_t *context;
static purr_config_t *config;

/* Everything that one device, or the host, has of the layer. */
typedef struct place {
  purr_plan_t *plan;
  void *memory;
  purr_workspace_t *workspace;
  purr_weights_t *weights;
  purr_schedule_t *schedule;
  purr_saved_t *saved;
  purr_trace_t *trace;
} place_t;

enum { FIRST, SECOND, HOST, NUM_PLACES };
static place_t places[NUM_PLACES];

enum { GATE, UP, DOWN, SHARED_GATE, SHARED_UP, SHARED_DOWN, SHARED_EXPERT_GATE, PACKED };
static const char *const names[NUM_TENSORS] = {
    "gate", "up", "down", "shared_gate", "shared_up", "shared_down", "shared_expert_gate", "gate_up"};

static purr_tensor_t tensor_at(char *data, int num_dims, int64_t a, int64_t b, int64_t c) {
  return (purr_tensor_t){.struct_size = sizeof(purr_tensor_t),
                         .dtype = PURR_DTYPE_BF16,
                         .num_dims = num_dims,
                         .data = data,
                         .shape = {a, b, c}};
}

/* The weights, one behind the other; gate and up as one tensor where it is the packed one that is wanted. */
static purr_weights_desc_t describe_weights(char *memory, bool is_packed, purr_tensor_t tensors[NUM_TENSORS]) {
  static const int64_t shapes[NUM_TENSORS][3] = {{E, I, H}, {E, I, H}, {E, H, I}, {S, H, 0},
                                                 {S, H, 0}, {H, S, 0}, {1, H, 0}, {E, 2 * I, H}};
  for (int i = 0; i < NUM_TENSORS; i++) {
    const int64_t *shape = shapes[i];
    tensors[i] = tensor_at(memory, shape[2] > 0 ? 3 : 2, shape[0], shape[1], shape[2]);
    if (i < PACKED - 1) memory += shape[0] * shape[1] * (shape[2] > 0 ? shape[2] : 1) * 2;
  }
  tensors[PACKED].data = tensors[GATE].data;
  return (purr_weights_desc_t){.struct_size = sizeof(purr_weights_desc_t),
                               .gate_up = is_packed ? &tensors[PACKED] : NULL,
                               .gate = is_packed ? NULL : &tensors[GATE],
                               .up = is_packed ? NULL : &tensors[UP],
                               .down = &tensors[DOWN],
                               .shared_gate = &tensors[SHARED_GATE],
                               .shared_up = &tensors[SHARED_UP],
                               .shared_down = &tensors[SHARED_DOWN],
                               .shared_expert_gate = &tensors[SHARED_EXPERT_GATE]};
}

static purr_status_t open_place(place_t *place, int32_t backend, int device) {
  const purr_plan_desc_t desc = {.struct_size = sizeof desc, .backend = backend, .device = device + 1};
  purr_status_t status = purr_plan_create(context, config, &desc, &place->plan, &err);
  if (status != PURR_STATUS_OK) return status;
  purr_tensor_t tensors[NUM_TENSORS];
  status = purr_memory_allocate(place->plan, BYTES, &place->memory, &err);
  if (status != PURR_STATUS_OK) return status;
  const purr_weights_desc_t weights = describe_weights(place->memory, false, tensors);
  status = purr_weights_create(place->plan, &weights, &place->weights, &err);
  if (status == PURR_STATUS_OK) status = purr_workspace_create(place->plan, NULL, NULL, &place->workspace, &err);
  if (status == PURR_STATUS_OK) status = purr_schedule_create(place->plan, &place->schedule, &err);
  if (status == PURR_STATUS_OK) status = purr_saved_create(place->plan, NULL, 0, &place->saved, &err);
  if (status == PURR_STATUS_OK) status = purr_trace_create(place->plan, NULL, &place->trace, &err);
  return status;
}

static purr_status_t open_all(int32_t backend) {
  err = (purr_error_t)PURR_ERROR_INIT;
  fake_cuda_open()->num_devices = 2;
  context = fake_cuda_context();
  const purr_layer_desc_t layer = {.struct_size = sizeof layer,
                                   .hidden_size = H,
                                   .intermediate_size = I,
                                   .num_experts = E,
                                   .top_k = K,
                                   .max_tokens = T,
                                   .shared_intermediate_size = S,
                                   .shared_gate = PURR_SHARED_GATE_SIGMOID};
  memset(places, 0, sizeof places);
  purr_status_t status = purr_config_create(context, &layer, &config, &err);
  if (status == PURR_STATUS_OK) status = open_place(&places[FIRST], backend, 0);
  if (status == PURR_STATUS_OK) status = open_place(&places[SECOND], backend, 1);
  if (status == PURR_STATUS_OK) status = open_place(&places[HOST], PURR_BACKEND_HOST, -1);
  return status;
}

static void close_all(void) {
  for (int i = 0; i < NUM_PLACES; i++) {
    place_t *place = &places[i];
    purr_trace_destroy(place->trace);
    purr_saved_destroy(place->saved);
    purr_schedule_destroy(place->schedule);
    purr_workspace_destroy(place->workspace);
    purr_weights_destroy(place->weights);
    if (place->memory != NULL) purr_memory_release(place->plan, place->memory, BYTES);
    purr_plan_destroy(place->plan);
  }
  purr_config_destroy(config);
  purr_context_destroy(context);
}

static bool says(const char *words) {
  if (strstr(err.message, words) != NULL) return true;
  fprintf(stderr, "'%s' is not in: %s\n", words, err.message);
  return false;
}

#define ASSERT_REFUSED(words, call)                    \
  do {                                                 \
    ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, call); \
    CU_ASSERT(says(words));                            \
  } while (0)

/* ---- objects ---- */

/* The arguments of a forward at a place; x and the like behind the weights. */
typedef struct call {
  purr_tensor_t x, ids, scores, output;
  purr_forward_args_t args;
} call_t;

static void make_call(const place_t *place, call_t *call) {
  char *at = (char *)place->memory + BYTES / 2;
  call->x = tensor_at(at, 2, T, H, 0);
  call->output = tensor_at(at + T * H * 2, 2, T, H, 0);
  call->ids = tensor_at(at + 2 * T * H * 2, 2, T, K, 0);
  call->scores = tensor_at(at + 2 * T * H * 2 + T * K * 4, 2, T, K, 0);
  call->ids.dtype = PURR_DTYPE_INT32;
  call->scores.dtype = PURR_DTYPE_FP32;
  call->args = (purr_forward_args_t){.struct_size = sizeof call->args,
                                     .weights = place->weights,
                                     .x = &call->x,
                                     .topk_ids = &call->ids,
                                     .topk_weights = &call->scores,
                                     .output = &call->output};
}

static const char *const where[NUM_PLACES] = {"device 0 (Fake GPU A)", "device 1 (Fake GPU B)", "the host"};

static void objects_of_another_place(int32_t backend) {
  REQUIRE_OK(open_all(backend));
  purr_plan_info_t info[2] = {{.struct_size = sizeof info[0]}, {.struct_size = sizeof info[1]}};
  REQUIRE_OK(purr_plan_query(places[FIRST].plan, &info[0], &err));
  REQUIRE_OK(purr_plan_query(places[SECOND].plan, &info[1], &err));
  CU_ASSERT_EQUAL(info[0].hash, info[1].hash); /* or ranks could not agree */
  for (int p = 0; p < NUM_PLACES; p++) {
    call_t call;
    make_call(&places[p], &call);
    if (p == HOST) memset(call.ids.data, 0, T * K * 4);
    REQUIRE_OK(purr_schedule_build(places[p].schedule, places[p].workspace, &call.ids, NULL, &err));
  }
  for (int here = 0; here < NUM_PLACES; here++)
    for (int there = 0; there < NUM_PLACES; there++) {
      const place_t *mine = &places[here], *other = &places[there];
      if (here == there) continue;
      char both[128], words[160];
      snprintf(both, sizeof both, "made for %s, but the plan is for %s", where[there], where[here]);
      call_t call;
      const struct {
        const char *name;
        const void *object;
        size_t at; /* in the call's arguments */
      } objects[] = {{"the weights", other->weights, offsetof(purr_forward_args_t, weights)},
                     {"the schedule", other->schedule, offsetof(purr_forward_args_t, schedule)},
                     {"saved", other->saved, offsetof(purr_forward_args_t, saved)},
                     {"the trace", other->trace, offsetof(purr_forward_args_t, trace)}};
      for (size_t i = 0; i < sizeof objects / sizeof objects[0]; i++) {
        make_call(mine, &call);
        memcpy((char *)&call.args + objects[i].at, &objects[i].object, sizeof objects[i].object);
        snprintf(words, sizeof words, "%s: %s", objects[i].name, both);
        ASSERT_REFUSED(words, purr_forward(mine->plan, mine->workspace, &call.args, &err));
      }
      make_call(mine, &call);
      snprintf(words, sizeof words, "the workspace: %s", both);
      ASSERT_REFUSED(words, purr_forward(mine->plan, other->workspace, &call.args, &err));
      ASSERT_REFUSED(words, purr_schedule_build(mine->schedule, other->workspace, &call.ids, NULL, &err));
      const purr_backward_args_t backward = {.struct_size = sizeof backward,
                                             .weights = mine->weights,
                                             .saved = other->saved,
                                             .x = &call.x,
                                             .topk_weights = &call.scores,
                                             .d_output = &call.output};
      snprintf(words, sizeof words, "saved: %s", both);
      ASSERT_REFUSED(words, purr_backward(mine->plan, mine->workspace, &backward, &err));
    }
  /* Its mirror would be left to a driver that may go before it. */
  purr_context_t *foreign = NULL;
  purr_result_t *result = NULL;
  REQUIRE_OK(purr_context_create(NULL, &foreign, &err));
  REQUIRE_OK(purr_result_create(foreign, &result, &err));
  call_t call;
  make_call(&places[FIRST], &call);
  call.args.result = result;
  ASSERT_REFUSED("the result and the plan belong to different contexts",
                 purr_forward(places[FIRST].plan, places[FIRST].workspace, &call.args, &err));
  purr_result_destroy(result);
  purr_context_destroy(foreign);
  close_all();
}

static void objects_staged(void) { objects_of_another_place(PURR_BACKEND_STAGED); }
static void objects_mega(void) { objects_of_another_place(PURR_BACKEND_MEGA); }

/* ---- memory ---- */

static const char on_host[] = "which is host memory; it must be on device 0 (Fake GPU A)";
static const char on_second[] = "which is memory of device 1; it must be on device 0 (Fake GPU A)";

static void expect_weights_refused(const purr_weights_desc_t *desc, const char *name, const char *words) {
  purr_weights_t *weights = NULL;
  ASSERT_REFUSED(words, purr_weights_create(places[FIRST].plan, desc, &weights, &err));
  CU_ASSERT_EQUAL(strncmp(err.message, name, strlen(name)), 0);
  CU_ASSERT_PTR_NULL(weights);
}

static void weights_of_another_place(int32_t backend) {
  REQUIRE_OK(open_all(backend));
  char *wrong[2] = {places[HOST].memory, places[SECOND].memory};
  for (int w = 0; w < 2; w++)
    for (int i = 0; i < NUM_TENSORS; i++) {
      const char *words = w == 0 ? on_host : on_second;
      char name[64];
      purr_tensor_t tensors[NUM_TENSORS];
      const purr_weights_desc_t desc = describe_weights(places[FIRST].memory, i == PACKED, tensors);
      char *right = tensors[i].data;
      tensors[i].data = wrong[w];
      snprintf(name, sizeof name, "weights.%s is at", names[i]);
      expect_weights_refused(&desc, name, words);
      if (tensors[i].num_dims < 3) continue;
      void *pointers[E];
      for (int e = 0; e < E; e++) pointers[e] = right + e * tensors[i].shape[1] * tensors[i].shape[2] * 2;
      tensors[i].data = NULL;
      tensors[i].pointers = pointers;
      purr_weights_t *weights = NULL;
      ASSERT_OK(purr_weights_create(places[FIRST].plan, &desc, &weights, &err));
      purr_weights_destroy(weights);
      for (int e = 0; e < E; e++) {
        void *good = pointers[e];
        pointers[e] = wrong[w];
        snprintf(name, sizeof name, "weights.%s.pointers[%d] is at", names[i], e);
        expect_weights_refused(&desc, name, words);
        pointers[e] = good;
      }
    }
  close_all();
}

static void weights_staged(void) { weights_of_another_place(PURR_BACKEND_STAGED); }
static void weights_mega(void) { weights_of_another_place(PURR_BACKEND_MEGA); }

static void blocks_of_another_place(void) {
  REQUIRE_OK(open_all(PURR_BACKEND_MEGA));
  const purr_plan_t *plan = places[FIRST].plan;
  uint64_t trace_bytes = 0;
  REQUIRE_OK(purr_trace_query(plan, NULL, &trace_bytes, &err));
  const uint64_t bytes = trace_bytes > 8 << 20 ? trace_bytes : 8 << 20;
  for (int w = 0; w < 3; w++) {
    void *memory = NULL;
    const purr_plan_t *owner = places[w == 0 ? HOST : w == 1 ? SECOND : FIRST].plan;
    REQUIRE_OK(purr_memory_allocate(owner, bytes + 256, &memory, &err));
    void *aligned = (void *)(((uintptr_t)memory + 255) & ~(uintptr_t)255);
    const purr_workspace_desc_t workspace_desc = {
        .struct_size = sizeof workspace_desc, .bytes = bytes, .memory = aligned};
    const purr_trace_desc_t trace_desc = {.struct_size = sizeof trace_desc, .memory = aligned, .bytes = bytes};
    purr_workspace_t *workspace = NULL;
    purr_saved_t *saved = NULL;
    purr_trace_t *trace = NULL;
    if (w == 2) {
      ASSERT_OK(purr_workspace_create(plan, NULL, &workspace_desc, &workspace, &err));
      ASSERT_OK(purr_saved_create(plan, aligned, bytes, &saved, &err));
      ASSERT_OK(purr_trace_create(plan, &trace_desc, &trace, &err));
    } else {
      const char *words = w == 0 ? on_host : on_second;
      ASSERT_REFUSED(words, purr_workspace_create(plan, NULL, &workspace_desc, &workspace, &err));
      CU_ASSERT(says("the workspace memory is at"));
      ASSERT_REFUSED(words, purr_saved_create(plan, aligned, bytes, &saved, &err));
      CU_ASSERT(says("the saved memory is at"));
      ASSERT_REFUSED(words, purr_trace_create(plan, &trace_desc, &trace, &err));
      CU_ASSERT(says("the trace memory is at"));
      CU_ASSERT(workspace == NULL && saved == NULL && trace == NULL);
    }
    purr_workspace_destroy(workspace);
    purr_saved_destroy(saved);
    purr_trace_destroy(trace);
    purr_memory_release(owner, memory, bytes + 256);
  }
  close_all();
}

int main(void) {
  const purr_status_t status = open_all(PURR_BACKEND_MEGA);
  close_all();
  if (status == PURR_STATUS_MISSING_KERNEL) {
    fprintf(stderr, "skipped: %s\n", err.message);
    return PURR_TEST_SKIPPED;
  }
  return purr_test_main("places", (purr_test_t[]){{"objects of another place, staged", objects_staged},
                                                  {"objects of another place, mega", objects_mega},
                                                  {"weights of another place, staged", weights_staged},
                                                  {"weights of another place, mega", weights_mega},
                                                  {"blocks of another place", blocks_of_another_place},
                                                  {0}});
}
