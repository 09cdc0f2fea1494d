/* How much memory this process can still take. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "layer.h"

/* The number after `key` in a file of "key number" lines, or the file's first number for an empty key; UINT64_MAX when
 * there is none ("max" means no limit). */
static uint64_t read_number(const char *path, const char *key) {
  uint64_t number = UINT64_MAX;
  char line[256];
  FILE *file = fopen(path, "r");
  if (file == NULL) return number;
  while (number == UINT64_MAX && fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, key, strlen(key)) != 0) continue;
    const char *text = line + strlen(key);
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    if (end == text) break;
    number = value;
  }
  fclose(file);
  return number;
}

/* What a control group leaves: its limit less what is in use and cannot be dropped. */
static uint64_t group_memory(const char *limit_path, const char *usage_path, const char *stat_path,
                             const char *cache_key) {
  uint64_t limit = read_number(limit_path, ""), usage = read_number(usage_path, ""),
           cache = read_number(stat_path, cache_key);
  if (limit == UINT64_MAX || usage == UINT64_MAX) return UINT64_MAX;
  if (cache != UINT64_MAX) usage = usage > cache ? usage - cache : 0;
  return limit > usage ? limit - usage : 0;
}

static uint64_t lesser(uint64_t a, uint64_t b) { return a < b ? a : b; }

uint64_t available_memory(void) {
  uint64_t bytes = read_number("/proc/meminfo", "MemAvailable:");
  if (bytes != UINT64_MAX) {
    bytes *= 1024;
  } else {
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page_bytes > 0) bytes = (uint64_t)pages * (uint64_t)page_bytes;
  }
  bytes = lesser(bytes, group_memory("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current",
                                     "/sys/fs/cgroup/memory.stat", "inactive_file "));
  bytes = lesser(
      bytes, group_memory("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
                          "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file "));
  return bytes == UINT64_MAX ? 0 : bytes;
}
