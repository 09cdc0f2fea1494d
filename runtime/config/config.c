/* The config object: made from a file, from text or from numbers. */
#include "config/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/yaml.h"

/* ---- making one ---- */

static purr_status_t create(purr_context_t *context, const purr_config_t *content, purr_config_t **out_config,
                            purr_error_t *err) {
  void *object;
  purr_status_t status = purr__object_create(context, PURR__CONFIG, sizeof **out_config, NULL, &object, err);
  if (status != PURR_STATUS_OK) return status;
  purr_config_t *config = object;
  config->layer = content->layer;
  config->texts = content->texts;
  config->places = content->places;
  *out_config = config;
  return PURR_STATUS_OK;
}

static purr_status_t begin(purr_context_t *context, purr_config_t **out_config, purr_error_t *err) {
  if (out_config == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_config is NULL");
  *out_config = NULL;
  return purr__check(context, PURR__CONTEXT, err);
}

purr_status_t purr_config_parse(purr_context_t *context, const char *text, uint64_t num_bytes, const char *name,
                                purr_config_t **out_config, purr_error_t *err) {
  purr_status_t status = begin(context, out_config, err);
  if (status != PURR_STATUS_OK) return status;
  if (text == NULL && num_bytes > 0)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "text is NULL, but num_bytes is %llu",
                      (unsigned long long)num_bytes);
  purr_config_t content;
  status = purr__layer_parse(text != NULL ? text : "", num_bytes, name != NULL ? name : "config", &content.layer,
                             &content.texts, &content.places, err);
  return status == PURR_STATUS_OK ? create(context, &content, out_config, err) : status;
}

purr_status_t purr_config_create(purr_context_t *context, const purr_layer_desc_t *layer, purr_config_t **out_config,
                                 purr_error_t *err) {
  purr_status_t status = begin(context, out_config, err);
  if (status != PURR_STATUS_OK) return status;
  purr_config_t content = {.texts = {.name = "layer"}};
  status = purr__read_struct(&content.layer, sizeof content.layer, layer, "purr_layer_desc_t", err);
  if (status == PURR_STATUS_OK) status = purr__check_reserved(content.layer.reserved, "purr_layer_desc_t", err);
  if (status != PURR_STATUS_OK) return status;
  content.layer.struct_size = sizeof content.layer;
  purr__layer_fill_defaults(&content.layer);
  status = purr__layer_check(&content.layer, err);
  return status == PURR_STATUS_OK ? create(context, &content, out_config, err) : status;
}

static purr_status_t fail_file(purr_error_t *err, const char *path, const char *what) {
  int error_number = errno;
  char reason[128];
  return purr__fail_errno(err, PURR_STATUS_IO, error_number, "'%s' could not be %s: %s", path, what,
                          strerror_r(error_number, reason, sizeof reason));
}

/* Reads what an open file holds, one byte past the limit at most: the parser then says that it is too long. */
static purr_status_t read_file(int file, const char *path, char *text, uint64_t capacity, uint64_t *out_bytes,
                               purr_error_t *err) {
  uint64_t used = 0;
  while (used < capacity) {
    ssize_t count = read(file, text + used, capacity - used);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail_file(err, path, "read");
    if (count == 0) break;
    used += (uint64_t)count;
  }
  *out_bytes = used;
  return PURR_STATUS_OK;
}

purr_status_t purr_config_load(purr_context_t *context, const char *path, purr_config_t **out_config,
                               purr_error_t *err) {
  purr_status_t status = begin(context, out_config, err);
  if (status != PURR_STATUS_OK) return status;
  if (path == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "path is NULL");
  char shown[192];
  purr__printable(shown, sizeof shown, path, strlen(path));
  /* Not blocking: a named pipe in place of the file must not hang the caller. */
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) return fail_file(err, shown, "opened");
  struct stat info;
  char *text = NULL;
  uint64_t num_bytes = 0;
  if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
    status = purr__fail(err, PURR_STATUS_IO, "'%s' is not a regular file", shown);
  } else {
    uint64_t capacity = (uint64_t)purr__min(info.st_size, PURR__YAML_MAX_BYTES) + 1;
    text = purr__allocate(context, capacity);
    status = text != NULL ? read_file(file, shown, text, capacity, &num_bytes, err)
                          : purr__fail_memory(err, "the config file", capacity);
  }
  close(file);
  if (status == PURR_STATUS_OK) status = purr_config_parse(context, text, num_bytes, path, out_config, err);
  purr__release(context, text);
  return status;
}

void purr_config_destroy(purr_config_t *config) { purr__object_release(config); }

/* ---- reading it back ---- */

purr_status_t purr_config_get_layer(const purr_config_t *config, purr_layer_desc_t *out_layer, purr_error_t *err) {
  purr_status_t status = purr__check(config, PURR__CONFIG, err);
  if (status != PURR_STATUS_OK) return status;
  return purr__write_struct(out_layer, &config->layer, sizeof config->layer, "out_layer", err);
}
