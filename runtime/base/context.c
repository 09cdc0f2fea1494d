/* The context, the objects that live in it, the log and the counters. The only reader of environment variables. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "base/context.h"

/* ---- default hooks ---- */

static void *default_allocate(void *user, uint64_t bytes, uint64_t alignment) {
  (void)user;
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void default_release(void *user, void *memory, uint64_t bytes) {
  (void)user;
  (void)bytes;
  free(memory);
}

/* ---- environment ---- */

#define MAX_THREADS 1024
#define MAX_THREADS_TEXT "1024"

/* A plain decimal in 1..limit; 0 where the variable is not set, or holds something else. */
static int number_from_environment(const char *name, int limit) {
  const char *text = getenv(name);
  if (text == NULL || text[0] < '0' || text[0] > '9') return 0;
  char *end;
  long value = strtol(text, &end, 10);
  return *end == '\0' && value >= 1 && value <= limit ? (int)value : 0;
}

/* A variable that is set to nothing counts as not set; one with a value that means nothing is an error, since whoever
 * set it believes that it works. */
static purr_status_t fail_variable(const char *name, const char *allowed, purr_error_t *err) {
  char printable[64];
  const char *text = getenv(name);
  return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "the environment variable %s is '%s'; allowed are %s", name,
                    purr__printable(printable, sizeof printable, text, strlen(text)), allowed);
}

static bool is_set(const char *name) {
  const char *text = getenv(name);
  return text != NULL && text[0] != '\0';
}

static purr_status_t num_threads_from_environment(int *out_num_threads, purr_error_t *err) {
  *out_num_threads = number_from_environment("PURR_NUM_THREADS", MAX_THREADS);
  if (*out_num_threads != 0 || !is_set("PURR_NUM_THREADS")) return PURR_STATUS_OK;
  return fail_variable("PURR_NUM_THREADS", "1 to " MAX_THREADS_TEXT, err);
}

static purr_status_t log_level_from_environment(int *out_level, purr_error_t *err) {
  static const struct {
    const char *name;
    int level;
  } levels[] = {
      {"error", PURR_LOG_ERROR}, {"warning", PURR_LOG_WARNING}, {"info", PURR_LOG_INFO}, {"debug", PURR_LOG_DEBUG}};
  *out_level = 0;
  if (!is_set("PURR_LOG")) return PURR_STATUS_OK;
  for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
    if (strcmp(getenv("PURR_LOG"), levels[i].name) == 0) *out_level = levels[i].level;
  return *out_level != 0 ? PURR_STATUS_OK : fail_variable("PURR_LOG", "error, warning, info and debug", err);
}

/* Whose word decides which GPU code is loaded: not the caller's, in a process with more rights than its caller. */
static const char *package_path_from_environment(void) {
  const char *path = getauxval(AT_SECURE) ? NULL : getenv("PURR_PACKAGE_PATH");
  return path != NULL && path[0] != '\0' ? path : NULL;
}

static int num_available_cpus(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? (int)online : 1;
}

/* ---- context ---- */

static void context_free(void *object) {
  purr_context_t *context = object;
  for (int i = PURR__NUM_PARTS - 1; i >= 0; i--) {
    void *made = context->parts[i].made;
    if (made != NULL) context->parts[i].free(made);
    pthread_mutex_destroy(&context->parts[i].mutex);
  }
  if (context->pool != NULL) purr__pool_destroy(context, context->pool);
  purr__release(context, context->package_path);
}

purr_status_t purr_context_create(const purr_context_desc_t *desc, purr_context_t **out_context, purr_error_t *err) {
  if (out_context == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_context is NULL");
  *out_context = NULL;
  purr_context_desc_t own = PURR_CONTEXT_DESC_INIT;
  purr_allocator_t allocator = {sizeof allocator, 0, default_allocate, default_release, NULL};
  if (desc != NULL) {
    purr_status_t status = purr__read_struct(&own, sizeof own, desc, "purr_context_desc_t", err);
    if (status == PURR_STATUS_OK) status = purr__check_reserved(own.reserved, "purr_context_desc_t", err);
    if (status != PURR_STATUS_OK) return status;
  }
  if (own.host_allocator != NULL) {
    purr_status_t status = purr__read_struct(&allocator, sizeof allocator, own.host_allocator, "purr_allocator_t", err);
    if (status == PURR_STATUS_OK) status = purr__check_reserved(allocator.reserved, "purr_allocator_t", err);
    if (status != PURR_STATUS_OK) return status;
    if (allocator.allocate == NULL || allocator.release == NULL)
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                        "host_allocator has no %s function; give both allocate and release",
                        allocator.allocate == NULL ? "allocate" : "release");
  }
  purr_device_allocator_t device_allocator = {.struct_size = sizeof device_allocator};
  if (own.device_allocator != NULL) {
    purr_status_t status = purr__read_struct(&device_allocator, sizeof device_allocator, own.device_allocator,
                                             "purr_device_allocator_t", err);
    if (status == PURR_STATUS_OK)
      status = purr__check_reserved(device_allocator.reserved, "purr_device_allocator_t", err);
    if (status != PURR_STATUS_OK) return status;
    if (device_allocator.allocate == NULL || device_allocator.release == NULL)
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                        "device_allocator has no %s function; give both allocate and release",
                        device_allocator.allocate == NULL ? "allocate" : "release");
  }
  if (own.num_threads > MAX_THREADS)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "num_threads is %u; allowed are 0 (all CPUs) to %d",
                      own.num_threads, MAX_THREADS);
  if (own.log_level < 0 || own.log_level > PURR_LOG_DEBUG)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "log_level is %d; allowed are 0 to %d", own.log_level,
                      PURR_LOG_DEBUG);

  int environment_level = 0, num_threads = (int)own.num_threads;
  purr_status_t status = log_level_from_environment(&environment_level, err);
  if (status == PURR_STATUS_OK && num_threads == 0) status = num_threads_from_environment(&num_threads, err);
  if (status != PURR_STATUS_OK) return status;

  purr_context_t *context = allocator.allocate(allocator.user, sizeof *context, 64);
  if (context == NULL) return purr__fail_memory(err, "the context", sizeof *context);
  memset(context, 0, sizeof *context);
  context->object = (purr__object_t){.kind = PURR__CONTEXT, .num_refs = 1, .context = context, .free = context_free};
  context->pid = getpid();
  context->allocator = allocator;
  context->device_allocator = device_allocator;
  context->driver_library = "libcuda.so.1";
  for (int i = 0; i < PURR__NUM_PARTS; i++) pthread_mutex_init(&context->parts[i].mutex, NULL);
  context->log = own.log;
  context->log_user = own.log_user;
  context->log_level = environment_level > own.log_level ? environment_level : own.log_level;
  if (context->log_level == 0) context->log_level = PURR_LOG_WARNING;
  context->num_threads = num_threads != 0 ? num_threads : (int)purr__min(num_available_cpus(), MAX_THREADS);
  context->num_device_queues = number_from_environment("CUDA_DEVICE_MAX_CONNECTIONS", 32);
  if (context->num_device_queues == 0) context->num_device_queues = 8;
  status = purr__pool_create(context, &context->pool, err);
  const char *package_path = package_path_from_environment();
  if (status == PURR_STATUS_OK && package_path != NULL) {
    context->package_path = purr__duplicate(context, package_path);
    if (context->package_path == NULL)
      status = purr__fail_memory(err, "the copy of PURR_PACKAGE_PATH", strlen(package_path) + 1);
  }
  if (status != PURR_STATUS_OK) {
    purr__object_release(context);
    return status;
  }
  *out_context = context;
  return PURR_STATUS_OK;
}

void purr_context_destroy(purr_context_t *context) { purr__object_release(context); }

purr_status_t purr_context_query_counters(purr_context_t *context, purr_counters_t *out_counters, purr_error_t *err) {
  purr_status_t status = purr__check(context, PURR__CONTEXT, err);
  if (status != PURR_STATUS_OK) return status;
  purr_counters_t own = {.struct_size = sizeof own};
  own.num_forward_calls = context->counters[PURR__COUNT_FORWARD];
  own.num_backward_calls = context->counters[PURR__COUNT_BACKWARD];
  own.num_rows = context->counters[PURR__COUNT_ROWS];
  own.num_timeouts = context->counters[PURR__COUNT_TIMEOUTS];
  own.num_bad_routes = context->counters[PURR__COUNT_BAD_ROUTES];
  own.dispatch_bytes = context->counters[PURR__COUNT_DISPATCH_BYTES];
  own.combine_bytes = context->counters[PURR__COUNT_COMBINE_BYTES];
  own.host_bytes = context->host_bytes;
  own.host_bytes_peak = context->host_bytes_peak;
  own.device_bytes = context->device_bytes;
  own.device_bytes_peak = context->device_bytes_peak;
  own.num_launches = context->counters[PURR__COUNT_LAUNCHES];
  return purr__write_struct(out_counters, &own, sizeof own, "out_counters", err);
}

void purr__count(purr_context_t *context, purr__counter_t counter, uint64_t amount) {
  atomic_fetch_add_explicit(&context->counters[counter], amount, memory_order_relaxed);
}

/* ---- parts ---- */

purr_status_t purr__context_part(purr_context_t *context, purr__part_t part, purr__part_create_fn create,
                                 void (*free)(void *part), void **out_part, purr_error_t *err) {
  struct purr__context_part *slot = &context->parts[part];
  *out_part = atomic_load_explicit(&slot->made, memory_order_acquire);
  if (*out_part != NULL) return PURR_STATUS_OK;
  purr_status_t status = PURR_STATUS_OK;
  pthread_mutex_lock(&slot->mutex);
  *out_part = atomic_load_explicit(&slot->made, memory_order_relaxed);
  if (*out_part == NULL) {
    status = create(context, out_part, err);
    if (status == PURR_STATUS_OK) {
      slot->free = free;
      atomic_store_explicit(&slot->made, *out_part, memory_order_release);
    }
  }
  pthread_mutex_unlock(&slot->mutex);
  return status;
}

int purr__num_device_queues(const purr_context_t *context) { return context->num_device_queues; }

/* ---- objects ---- */

purr_status_t purr__object_create(purr_context_t *context, purr__kind_t kind, uint64_t bytes, void (*free)(void *),
                                  void **out_object, purr_error_t *err) {
  purr__object_t *object = purr__allocate_zeroed(context, bytes);
  if (object == NULL) return purr__fail_memory(err, "the object", bytes);
  object->kind = kind;
  object->num_refs = 1;
  object->context = context;
  object->free = free;
  purr__object_retain(context);
  *out_object = object;
  return PURR_STATUS_OK;
}

void purr__object_retain(const void *object) {
  purr__object_t *o = (purr__object_t *)(uintptr_t)object;
  atomic_fetch_add_explicit(&o->num_refs, 1, memory_order_relaxed);
}

void purr__object_release(const void *object) {
  purr__object_t *o = (purr__object_t *)(uintptr_t)object;
  if (o == NULL || o->context->pid != getpid()) return;
  if (atomic_fetch_sub_explicit(&o->num_refs, 1, memory_order_acq_rel) != 1) return;
  purr_context_t *context = o->context;
  if (o->free != NULL) o->free(o);
  o->kind = 0; /* a handle used after its end is then refused, as long as its memory is not reused */
  if ((void *)o == (void *)context) {
    context->allocator.release(context->allocator.user, context, sizeof *context);
    return;
  }
  purr__release(context, o);
  purr__object_release(context);
}

static const char *kind_name(purr__kind_t kind) {
  switch (kind) {
    case PURR__CONTEXT:
      return "context";
    case PURR__CONFIG:
      return "config";
    case PURR__GROUP:
      return "group";
    case PURR__PLAN:
      return "plan";
    case PURR__WEIGHTS:
      return "weights";
    case PURR__WORKSPACE:
      return "workspace";
    case PURR__SAVED:
      return "saved";
    case PURR__RESULT:
      return "result";
    case PURR__SCHEDULE:
      return "schedule";
    case PURR__PACKAGE:
      return "package";
    case PURR__TRACE:
      return "trace";
    case PURR__CHECKPOINT:
      return "checkpoint";
    case PURR__CHECKPOINT_LAYER:
      return "checkpoint layer";
    case PURR__KERNEL:
      return "kernel";
    case PURR__LAUNCHER:
      return "launcher";
  }
  return "object";
}

purr_status_t purr__check(const void *object, purr__kind_t kind, purr_error_t *err) {
  const purr__object_t *o = object;
  if (o == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "the %s handle is NULL", kind_name(kind));
  if (o->kind != kind)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "the %s handle is not a live %s", kind_name(kind),
                      kind_name(kind));
  if (o->context->pid != getpid())
    return purr__fail(err, PURR_STATUS_FORKED,
                      "the %s belongs to process %ld, this is its fork %ld; create a context of its own here",
                      kind_name(kind), (long)o->context->pid, (long)getpid());
  return PURR_STATUS_OK;
}

/* ---- log ---- */

bool purr__log_enabled(const purr_context_t *context, int level) {
  return context->log != NULL && level <= context->log_level;
}

void purr__log(const purr_context_t *context, int level, const char *format, ...) {
  if (!purr__log_enabled(context, level)) return;
  char line[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof line, format, args);
  va_end(args);
  context->log(context->log_user, level, line);
}
