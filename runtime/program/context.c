/* The context of a command that runs layers. */
#include <pthread.h>
#include <string.h>

#include "program.h"

/* Every rank makes a plan, and has the same to say: a line that was just printed is not printed again. */
static void print_line(void *user, int32_t level, const char *message) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  static char last[1024];
  static const char *const names[] = {"", "error", "warning", "info", "debug"};
  pthread_mutex_lock(&mutex);
  if (strcmp(last, message) != 0)
    fprintf(stderr, "purr %s: %s: %s\n", (const char *)user, names[level >= 1 && level <= 4 ? level : 0], message);
  snprintf(last, sizeof last, "%s", message);
  pthread_mutex_unlock(&mutex);
}

int make_context(const char *command, int64_t num_threads, purr_context_t **out_context) {
  purr_error_t err = PURR_ERROR_INIT;
  purr_context_desc_t desc = PURR_CONTEXT_DESC_INIT;
  desc.num_threads = (uint32_t)num_threads;
  desc.log = print_line;
  desc.log_user = (void *)(uintptr_t)command; /* which is only read */
  if (purr_context_create(&desc, out_context, &err) == PURR_STATUS_OK) return EXIT_GOOD;
  return fail_call(command, "look at --threads, and at PURR_NUM_THREADS and PURR_LOG in the environment", &err);
}
