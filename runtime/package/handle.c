/* The public side of kernel packages. */
#include "package/describe.h"

struct purr_package {
  purr__object_t object;
  purr__package_t *package;
};

purr__package_t *purr__package_of(const purr_package_t *handle) { return handle->package; }

static void handle_free(void *object) { purr__package_release(((purr_package_t *)object)->package); }

static purr_status_t make_handle(purr_context_t *context, purr__package_t *package, purr_package_t **out_package,
                                 purr_error_t *err) {
  void *object;
  purr_status_t status = purr__object_create(context, PURR__PACKAGE, sizeof(purr_package_t), handle_free, &object, err);
  if (status != PURR_STATUS_OK) {
    purr__package_release(package);
    return status;
  }
  *out_package = object;
  (*out_package)->package = package;
  return PURR_STATUS_OK;
}

purr_status_t purr_package_open(purr_context_t *context, const char *path, purr_package_t **out_package,
                                purr_error_t *err) {
  if (out_package == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_package is NULL");
  *out_package = NULL;
  purr_status_t status = purr__check(context, PURR__CONTEXT, err);
  if (status != PURR_STATUS_OK) return status;
  if (path == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "path is NULL");
  purr__package_t *package;
  status = purr__package_open(context, path, &package, err);
  return status == PURR_STATUS_OK ? make_handle(context, package, out_package, err) : status;
}

purr_status_t purr_package_open_memory(purr_context_t *context, const void *data, uint64_t num_bytes, const char *name,
                                       purr_package_t **out_package, purr_error_t *err) {
  if (out_package == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_package is NULL");
  *out_package = NULL;
  purr_status_t status = purr__check(context, PURR__CONTEXT, err);
  if (status != PURR_STATUS_OK) return status;
  if (data == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "data is NULL");
  purr__package_t *package;
  status = purr__package_open_memory(context, data, num_bytes, name != NULL ? name : "package", &package, err);
  return status == PURR_STATUS_OK ? make_handle(context, package, out_package, err) : status;
}

purr_status_t purr_package_describe(const purr_package_t *package, int32_t format, char *buffer, uint64_t capacity,
                                    uint64_t *out_length, purr_error_t *err) {
  purr_status_t status = purr__check(package, PURR__PACKAGE, err);
  if (status == PURR_STATUS_OK) status = purr__check_format(format, err);
  if (status != PURR_STATUS_OK) return status;
  purr__text_t text = {.context = package->object.context};
  purr__describe_package(package->package, format, &text);
  return purr__text_deliver(&text, buffer, capacity, out_length, err);
}

void purr_package_destroy(purr_package_t *package) { purr__object_release(package); }

purr_status_t purr_context_add_package(purr_context_t *context, purr_package_t *package, purr_error_t *err) {
  purr_status_t status = purr__check(context, PURR__CONTEXT, err);
  if (status == PURR_STATUS_OK) status = purr__check(package, PURR__PACKAGE, err);
  if (status != PURR_STATUS_OK) return status;
  if (package->object.context != context)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "package %s was opened in another context",
                      package->package->manifest.name);
  return purr__packages_add(context, package->package, err);
}

purr_status_t purr_cubin_describe(purr_context_t *context, const char *path, int32_t format, char *buffer,
                                  uint64_t capacity, uint64_t *out_length, purr_error_t *err) {
  purr_status_t status = purr__check(context, PURR__CONTEXT, err);
  if (status == PURR_STATUS_OK) status = purr__check_format(format, err);
  if (status != PURR_STATUS_OK) return status;
  if (path == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "path is NULL");
  unsigned char *data;
  uint64_t bytes;
  purr__cubin_t cubin = {0};
  status = purr__read_file(context, path, PURR__CUBIN_MAX_BYTES, &data, &bytes, err);
  if (status == PURR_STATUS_OK) status = purr__cubin_parse(context, data, bytes, path, &cubin, err);
  if (status == PURR_STATUS_OK) {
    purr__text_t text = {.context = context};
    purr__describe_cubin(&cubin, path, format, &text);
    status = purr__text_deliver(&text, buffer, capacity, out_length, err);
  }
  purr__cubin_free(context, &cubin);
  purr__release(context, data);
  return status;
}
