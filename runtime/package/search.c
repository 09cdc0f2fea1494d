/* Which packages a context uses, and where they are looked for. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/context.h"
#include "package/list.h"

#define MAX_PACKAGES 256
#define MAX_KERNELS 8192

/* ---- the context's part ---- */

/* Keeps the first packages, and nothing that was passed over. */
static void forget(purr__packages_t *packages, int num_kept) {
  purr__package_list_t *list = &packages->list;
  while (list->count > num_kept) purr__package_release(list->packages[--list->count]);
  while (list->num_passed_over > 0) purr__release(packages->context, list->passed_over[--list->num_passed_over]);
}

static void packages_free(void *part) {
  purr__packages_t *packages = part;
  for (int i = 0; i < packages->num_devices; i++) purr__kernels_free(packages->context, packages->kernels[i]);
  purr__release(packages->context, packages->kernels);
  forget(packages, 0);
  pthread_mutex_destroy(&packages->mutex);
  purr__release(packages->context, packages);
}

static purr_status_t packages_create(purr_context_t *context, void **out_part, purr_error_t *err) {
  purr__packages_t *packages = purr__allocate_zeroed(context, sizeof *packages);
  *out_part = packages;
  if (packages == NULL) return purr__fail_memory(err, "the list of packages", sizeof *packages);
  packages->context = context;
  pthread_mutex_init(&packages->mutex, NULL);
  return PURR_STATUS_OK;
}

purr_status_t purr__packages_part(purr_context_t *context, purr__packages_t **out_packages, purr_error_t *err) {
  void *part;
  purr_status_t status = purr__context_part(context, PURR__PART_PACKAGES, packages_create, packages_free, &part, err);
  *out_packages = part;
  return status;
}

/* ---- one place ---- */

static purr_status_t append(purr__package_list_t *list, purr__package_t *package, purr_error_t *err) {
  int num_kernels = package->manifest.num_kernels;
  for (int i = 0; i < list->count; i++) num_kernels += list->packages[i]->manifest.num_kernels;
  if (list->count == MAX_PACKAGES || num_kernels > MAX_KERNELS)
    return purr__fail(err, PURR_STATUS_PACKAGE,
                      "package %.256s is too much: allowed are %d packages and %d kernels in all", package->source.name,
                      MAX_PACKAGES, MAX_KERNELS);
  list->packages[list->count++] = package;
  return PURR_STATUS_OK;
}

static bool is_same(const struct stat *a, const struct stat *b) {
  return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Whether it is in the list, by this path or another. */
static bool is_listed(const purr__package_list_t *list, const purr__package_t *package) {
  struct stat info, other;
  if (fstat(package->source.fd, &info) != 0) return false;
  for (int i = 0; i < list->count; i++) {
    const int fd = list->packages[i]->source.fd; /* -1 in memory */
    if (fd >= 0 && fstat(fd, &other) == 0 && is_same(&info, &other)) return true;
  }
  return false;
}

/* A package that is found twice is listed once, at its first place. */
static purr_status_t open_package(purr__packages_t *packages, const char *path, purr_error_t *err) {
  purr__package_t *package;
  purr_status_t status = purr__package_open(packages->context, path, &package, err);
  const bool is_new = status == PURR_STATUS_OK && !is_listed(&packages->list, package);
  if (is_new) status = append(&packages->list, package, err);
  if (!is_new || status != PURR_STATUS_OK) purr__package_release(package);
  return status;
}

static bool is_folder(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool ends_with(const char *text, const char *end) {
  size_t length = strlen(text), end_length = strlen(end);
  return length > end_length && strcmp(text + length - end_length, end) == 0;
}

typedef struct names {
  int count;
  char names[MAX_PACKAGES][128];
} names_t;

static int compare_names(const void *a, const void *b) { return strcmp(a, b); }

static purr_status_t list_folder(const char *path, names_t *names, purr_error_t *err) {
  DIR *folder = opendir(path);
  if (folder == NULL)
    return purr__fail_errno(err, PURR_STATUS_IO, errno, "%s could not be listed: %s", path, PURR__ERRNO_TEXT(errno));
  purr_status_t status = PURR_STATUS_OK;
  for (struct dirent *entry; status == PURR_STATUS_OK && (entry = readdir(folder)) != NULL;) {
    char full[PATH_MAX];
    const char *name = entry->d_name;
    if (name[0] == '.' || strlen(name) >= sizeof names->names[0]) continue;
    if ((size_t)snprintf(full, sizeof full, "%s/%s", path, name) >= sizeof full) continue;
    if (!is_folder(full) && !ends_with(name, ".purr")) continue;
    if (names->count == MAX_PACKAGES)
      status = purr__fail(err, PURR_STATUS_PACKAGE, "%s holds more than %d packages", path, MAX_PACKAGES);
    else
      strcpy(names->names[names->count++], name);
  }
  closedir(folder);
  qsort(names->names, (size_t)names->count, sizeof names->names[0], compare_names);
  return status;
}

/* A folder among packages that has no manifest is somebody else's. */
static purr_status_t pass_over(purr__packages_t *packages, const char *path, purr_error_t *err) {
  purr__package_list_t *list = &packages->list;
  struct stat info, other;
  if (list->num_passed_over == PURR__MAX_PASSED_OVER) return PURR_STATUS_OK;
  const bool is_there = stat(path, &info) == 0;
  for (int i = 0; i < list->num_passed_over && is_there; i++)
    if (stat(list->passed_over[i], &other) == 0 && is_same(&info, &other)) return PURR_STATUS_OK;
  char *copy = purr__duplicate(packages->context, path);
  if (copy == NULL) return purr__fail_memory(err, "the list of packages", strlen(path) + 1);
  list->passed_over[list->num_passed_over++] = copy;
  return PURR_STATUS_OK;
}

static bool has_manifest(const char *path) {
  char full[PATH_MAX + 16];
  struct stat info;
  snprintf(full, sizeof full, "%s/manifest.json", path);
  return lstat(full, &info) == 0 || errno != ENOENT; /* one that cannot be looked at is not passed over */
}

/* A package, or a folder of packages. */
static purr_status_t open_place(purr__packages_t *packages, const char *path, purr_error_t *err) {
  char full[PATH_MAX];
  if (!is_folder(path) || has_manifest(path)) return open_package(packages, path, err);
  names_t *names = purr__allocate_zeroed(packages->context, sizeof *names);
  if (names == NULL) return purr__fail_memory(err, "the list of packages", sizeof *names);
  purr_status_t status = list_folder(path, names, err);
  for (int i = 0; status == PURR_STATUS_OK && i < names->count; i++) {
    snprintf(full, sizeof full, "%s/%s", path, names->names[i]);
    status =
        is_folder(full) && !has_manifest(full) ? pass_over(packages, full, err) : open_package(packages, full, err);
  }
  purr__release(packages->context, names);
  return status;
}

/* ---- all places ---- */

static purr_status_t open_path_variable(purr__packages_t *packages, purr_error_t *err) {
  const char *rest = packages->context->package_path;
  while (rest != NULL && *rest != '\0') {
    char path[PATH_MAX];
    size_t length = strcspn(rest, ":");
    if (length >= sizeof path)
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "PURR_PACKAGE_PATH holds a path of %llu characters",
                        (unsigned long long)length);
    memcpy(path, rest, length);
    path[length] = '\0';
    rest += length + (rest[length] == ':');
    if (length == 0) continue;
    if (path[0] != '/')
      return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT,
                        "PURR_PACKAGE_PATH holds '%.200s'; only absolute paths are taken", path);
    purr_status_t status = open_place(packages, path, err);
    if (status != PURR_STATUS_OK) return status;
  }
  return PURR_STATUS_OK;
}

bool purr__packages_installed_folder(char *path, uint64_t capacity) {
  Dl_info info;
  char real[PATH_MAX];
  if (dladdr((const void *)(uintptr_t)purr_version_string, &info) == 0 || info.dli_fname == NULL) return false;
  /* A relative name would make the answer depend on the working directory. */
  if (info.dli_fname[0] != '/' || realpath(info.dli_fname, real) == NULL) return false;
  *strrchr(real, '/') = '\0';
  return (uint64_t)snprintf(path, capacity, "%s/purr/packages", real) < capacity;
}

static purr_status_t open_all(purr__packages_t *packages, purr_error_t *err) {
  char installed[PATH_MAX];
  int num_added = packages->list.count;
  purr_status_t status = open_path_variable(packages, err);
  if (status == PURR_STATUS_OK && purr__packages_installed_folder(installed, sizeof installed) && is_folder(installed))
    status = open_place(packages, installed, err);
  packages->is_open = status == PURR_STATUS_OK;
  if (status != PURR_STATUS_OK) forget(packages, num_added);
  return status;
}

purr_status_t purr__packages_get(purr_context_t *context, const purr__package_list_t **out_list, purr_error_t *err) {
  *out_list = NULL;
  purr__packages_t *packages;
  purr_status_t status = purr__packages_part(context, &packages, err);
  if (status != PURR_STATUS_OK) return status;
  pthread_mutex_lock(&packages->mutex);
  if (!packages->is_open) status = open_all(packages, err);
  pthread_mutex_unlock(&packages->mutex);
  if (status == PURR_STATUS_OK) *out_list = &packages->list;
  return status;
}

purr_status_t purr__packages_add(purr_context_t *context, purr__package_t *package, purr_error_t *err) {
  purr__packages_t *packages;
  purr_status_t status = purr__packages_part(context, &packages, err);
  if (status != PURR_STATUS_OK) return status;
  pthread_mutex_lock(&packages->mutex);
  if (packages->is_open)
    status = purr__fail(err, PURR_STATUS_INVALID_STATE,
                        "package %s comes too late: the context has already looked for its kernels; add packages first",
                        package->manifest.name);
  else
    status = append(&packages->list, package, err);
  if (status == PURR_STATUS_OK) purr__package_retain(package);
  pthread_mutex_unlock(&packages->mutex);
  return status;
}
