/* What every stage stands on: statuses, memory, objects, structs of other versions, text, log, worker threads, clock.
 * Internal names start with purr__ and are never exported. */
#ifndef PURR_BASE_H
#define PURR_BASE_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "purr.h"

#define PURR__PRINTF(format_idx, first_idx) __attribute__((format(printf, format_idx, first_idx)))

/* ---- errors (error.c) ----
 * Each writes `err` (if any) and returns `status`, so that a failure is one line: return purr__fail(err, ...). */
purr_status_t purr__fail(purr_error_t *err, purr_status_t status, const char *format, ...) PURR__PRINTF(3, 4);
purr_status_t purr__fail_at(purr_error_t *err, purr_status_t status, int line, int column, const char *format, ...)
    PURR__PRINTF(5, 6);
purr_status_t purr__fail_rank(purr_error_t *err, purr_status_t status, int rank, const char *format, ...)
    PURR__PRINTF(4, 5);
purr_status_t purr__fail_errno(purr_error_t *err, purr_status_t status, int error_number, const char *format, ...)
    PURR__PRINTF(4, 5);
/* Hands a failure on that was written to an error struct of the library's own. */
void purr__fail_copy(purr_error_t *err, const purr_error_t *own);
/* The one sentence for every failed allocation; `what` names the thing. */
purr_status_t purr__fail_memory(purr_error_t *err, const char *what, uint64_t bytes);
/* The calls return their own `status`. Said this way, the compiler knows that a failure is not OK, and does not doubt,
 * where a function is inlined, that the out parameters of a success were written. */
static inline purr_status_t purr__failed(purr_status_t returned, purr_status_t status) {
  (void)returned;
  return status;
}
#define purr__fail(err, status, ...) purr__failed(purr__fail(err, status, __VA_ARGS__), status)
#define purr__fail_at(err, status, ...) purr__failed(purr__fail_at(err, status, __VA_ARGS__), status)
#define purr__fail_rank(err, status, ...) purr__failed(purr__fail_rank(err, status, __VA_ARGS__), status)
#define purr__fail_errno(err, status, ...) purr__failed(purr__fail_errno(err, status, __VA_ARGS__), status)
#define purr__fail_memory(...) purr__failed(purr__fail_memory(__VA_ARGS__), PURR_STATUS_OUT_OF_HOST_MEMORY)

/* ---- structs of other versions (error.c) ----
 * read: copies the caller's struct into `own`, zero-filling what an older caller does not have; refuses a non-zero
 * unknown tail. write: fills the caller's struct as far as its struct_size reaches. `name` is for the message. */
purr_status_t purr__read_struct(void *own, uint32_t own_bytes, const void *callers, const char *name,
                                purr_error_t *err);
/* INVALID_ARGUMENT unless a reserved field of the struct `name` is zero: only then can it get a meaning later. */
purr_status_t purr__check_reserved(int64_t reserved, const char *name, purr_error_t *err);
purr_status_t purr__write_struct(void *callers, const void *own, uint32_t own_bytes, const char *name,
                                 purr_error_t *err);

/* ---- objects (context.c) ----
 * Every handle starts with one. A child retains its parents, so destroy works in any order. */
typedef enum purr__kind {
  PURR__CONTEXT = 0x50555200,
  PURR__CONFIG,
  PURR__GROUP,
  PURR__PLAN,
  PURR__WEIGHTS,
  PURR__WORKSPACE,
  PURR__SAVED,
  PURR__RESULT,
  PURR__SCHEDULE,
  PURR__CHECKPOINT,
  PURR__CHECKPOINT_LAYER,
  PURR__PACKAGE,
  PURR__TRACE,
  PURR__KERNEL,
  PURR__LAUNCHER,
} purr__kind_t;

typedef struct purr__object {
  purr__kind_t kind;
  atomic_int num_refs;
  purr_context_t *context;    /* retained, except by the context itself */
  void (*free)(void *object); /* frees what the object holds; its own memory and `context` are freed after it */
} purr__object_t;

/* Allocates a zeroed object of `bytes` with one reference and retains its context. `free` may be NULL. */
purr_status_t purr__object_create(purr_context_t *context, purr__kind_t kind, uint64_t bytes, void (*free)(void *),
                                  void **out_object, purr_error_t *err);
void purr__object_retain(const void *object);
/* Drops a reference; NULL, and any handle inherited through fork, are left alone. */
void purr__object_release(const void *object);
/* First line of every public function: the handle is there, of this kind, and not inherited through fork. */
purr_status_t purr__check(const void *object, purr__kind_t kind, purr_error_t *err);

/* ---- parts (context.c) ----
 * What a later stage keeps once for the whole context. Whoever asks first makes it; others wait for that one. When it
 * cannot be made, nothing is kept and the next caller tries again. `free` runs when the context goes, last part first;
 * `create` must not log and must not ask for its own part. */
typedef enum purr__part {
  PURR__PART_DRIVER,   /* purr__driver_t */
  PURR__PART_PACKAGES, /* purr__packages_t */
  PURR__NUM_PARTS
} purr__part_t;
typedef purr_status_t (*purr__part_create_fn)(purr_context_t *context, void **out_part, purr_error_t *err);
purr_status_t purr__context_part(purr_context_t *context, purr__part_t part, purr__part_create_fn create,
                                 void (*free)(void *part), void **out_part, purr_error_t *err);

/* ---- memory (memory.c) ----
 * All of the library's memory comes through the context's hooks, 64-byte aligned. */
void *purr__allocate(purr_context_t *context, uint64_t bytes); /* not cleared; NULL when out of memory */
void *purr__allocate_zeroed(purr_context_t *context, uint64_t bytes);
void *purr__reallocate(purr_context_t *context, void *memory, uint64_t bytes); /* keeps the content */
void purr__release(purr_context_t *context, void *memory);                     /* NULL is fine */
char *purr__duplicate(purr_context_t *context, const char *text);
/* a*b and a+b; false when they do not fit in 63 bits, so that sizes stay valid as int64 too. */
bool purr__multiply(uint64_t a, uint64_t b, uint64_t *out);
bool purr__add(uint64_t a, uint64_t b, uint64_t *out);
static inline int64_t purr__round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
static inline int64_t purr__min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t purr__max(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- text (text.c) ----
 * A growing string. A failed allocation is remembered and reported once, by deliver. */
typedef struct purr__text {
  purr_context_t *context;
  char *data;
  uint64_t length, capacity;
  bool failed;
} purr__text_t;
void purr__text_add(purr__text_t *text, const char *format, ...) PURR__PRINTF(2, 3);
void purr__text_add_json_string(purr__text_t *text, const char *value); /* quoted and escaped */
/* 1234567 bytes as "1.18 MiB". */
void purr__text_add_bytes(purr__text_t *text, uint64_t bytes);
/* Ends a purr_*_describe: copies to the caller's buffer (see purr_config_write) and frees the text. */
purr_status_t purr__text_deliver(purr__text_t *text, char *buffer, uint64_t capacity, uint64_t *out_length,
                                 purr_error_t *err);
void purr__text_free(purr__text_t *text);
/* Copies untrusted text for a message: control characters become \xNN, what does not fit is cut at a character and ends
 * in "...". Returns `out`, terminated. */
const char *purr__printable(char *out, uint64_t capacity, const char *text, uint64_t length);

/* ---- log (context.c) ---- */
bool purr__log_enabled(const purr_context_t *context, int level);
void purr__log(const purr_context_t *context, int level, const char *format, ...) PURR__PRINTF(3, 4);

/* ---- counters (context.c) ---- */
typedef enum purr__counter {
  PURR__COUNT_FORWARD,
  PURR__COUNT_BACKWARD,
  PURR__COUNT_ROWS,
  PURR__COUNT_TIMEOUTS,
  PURR__COUNT_BAD_ROUTES,
  PURR__COUNT_DISPATCH_BYTES,
  PURR__COUNT_COMBINE_BYTES,
  PURR__COUNT_LAUNCHES,
  PURR__NUM_COUNTERS
} purr__counter_t;
void purr__count(purr_context_t *context, purr__counter_t counter, uint64_t amount);

/* ---- worker threads (threads.c) ----
 * Runs task(arg, i) for every i in [0, num_tasks), on the calling thread and on the context's workers, and returns when
 * all are done. Which thread runs which task is not fixed: a task's result must not depend on it. Calls from several
 * threads at once share the workers. A task must not wait for another task. */
typedef void (*purr__task_fn)(void *arg, int64_t task_idx);
void purr__parallel_for(purr_context_t *context, int64_t num_tasks, purr__task_fn task, void *arg);
/* The same for tasks that want to know who runs them: 0 is the calling thread, the workers are 1 .. num_threads - 1. A
 * worker runs one task at a time; two callers are both 0. */
typedef void (*purr__worker_task_fn)(void *arg, int64_t task_idx, int worker_idx);
void purr__parallel_for_workers(purr_context_t *context, int64_t num_tasks, purr__worker_task_fn task, void *arg);
int purr__num_threads(const purr_context_t *context);
/* Hardware queues of a device in this process: streams beyond them wait for each other. */
int purr__num_device_queues(const purr_context_t *context);

/* ---- clock (threads.c) ---- */
uint64_t purr__now_ns(void); /* monotonic */

#endif
