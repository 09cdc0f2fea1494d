/* Opening a checkpoint, and its tensors by name.
 *
 * Files are mapped read-only and stay open. A file that somebody cuts short while it is mapped cannot be read past its
 * new end: the system stops the reader with SIGBUS, as with every mapping. So each use of a tensor checks the size
 * first, which leaves only a cut in the middle of a call; keep a checkpoint unchanged while it is open. */
#include "checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "checkpoint/safetensors.h"

#define CONFIG_NAME "config.json"
#define SINGLE_NAME "model.safetensors"
#define INDEX_NAME "model.safetensors.index.json"

/* O_NONBLOCK: opening a FIFO that nobody writes to must not wait. */
#define OPEN_FLAGS (O_RDONLY | O_CLOEXEC | O_NONBLOCK)

/* ---- files ---- */

purr__label_t purr__label(const char *folder, const char *name) {
  enum { SHOWN = 140 };
  uint64_t folder_length = strlen(folder), name_length = strlen(name);
  uint64_t room = name_length < SHOWN ? SHOWN - name_length : 0;
  const char *tail = folder_length > room ? folder + (folder_length - room) : folder;
  char joined[SHOWN + NAME_MAX + 8];
  snprintf(joined, sizeof joined, "%s%s%s%s", tail > folder ? "..." : "", tail, name_length > 0 ? "/" : "", name);
  purr__label_t label;
  purr__printable(label.text, sizeof label.text, joined, strlen(joined));
  return label;
}

/* "LABEL WHAT: the reason in errno". */
static purr_status_t fail_file(purr_error_t *err, const char *label, const char *what) {
  int error_number = errno;
  char reason[128];
  return purr__fail_errno(err, PURR_STATUS_IO, error_number, "%s %s: %s", label, what,
                          strerror_r(error_number, reason, sizeof reason));
}

static bool is_plain_name(const char *name) {
  return name[0] != '\0' && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strchr(name, '/') == NULL;
}

/* Opens `name` inside the folder; *out_fd is -1 if there is no such file. A link may lead to another file of the
 * folder, or to where the Hugging Face cache keeps the contents of its snapshots/REVISION folders; elsewhere it is
 * refused. */
static purr_status_t open_inside(int folder, const char *name, const char *label, int *out_fd, purr_error_t *err) {
  static const char cache[] = "../../blobs/";
  *out_fd = openat(folder, name, OPEN_FLAGS | O_NOFOLLOW);
  if (*out_fd < 0 && errno == ELOOP) {
    char target[PATH_MAX];
    ssize_t length = readlinkat(folder, name, target, sizeof target - 1);
    target[length < 0 ? 0 : length] = '\0';
    const char *file = strncmp(target, cache, sizeof cache - 1) == 0 ? target + sizeof cache - 1 : target;
    if (is_plain_name(file)) *out_fd = openat(folder, target, OPEN_FLAGS | O_NOFOLLOW);
    if (!is_plain_name(file) || (*out_fd < 0 && errno == ELOOP))
      return purr__fail(err, PURR_STATUS_CHECKPOINT,
                        "%s is a link to '%s'; links may lead to a file in the folder or in ../../blobs", label,
                        purr__shown(target).text);
  }
  return *out_fd >= 0 || errno == ENOENT ? PURR_STATUS_OK : fail_file(err, label, "cannot be opened");
}

/* Size of a regular file, which is all that is read here. */
static purr_status_t query_size(int fd, const char *label, uint64_t *out_bytes, purr_error_t *err) {
  struct stat info;
  if (fstat(fd, &info) != 0) return fail_file(err, label, "cannot be examined");
  if (!S_ISREG(info.st_mode)) return purr__fail(err, PURR_STATUS_IO, "%s is not a regular file", label);
  *out_bytes = (uint64_t)info.st_size;
  return PURR_STATUS_OK;
}

/* Reads a whole file of at most `limit` bytes; *out_text is the caller's to release. */
static purr_status_t read_text(purr_context_t *context, int fd, const char *label, uint64_t limit, char **out_text,
                               uint64_t *out_bytes, purr_error_t *err) {
  *out_text = NULL;
  uint64_t num_bytes, done = 0;
  purr_status_t status = query_size(fd, label, &num_bytes, err);
  if (status != PURR_STATUS_OK) return status;
  if (num_bytes > limit)
    return purr__fail(err, PURR_STATUS_CHECKPOINT, "%s has %llu bytes; allowed are %llu", label,
                      (unsigned long long)num_bytes, (unsigned long long)limit);
  char *text = purr__allocate(context, num_bytes);
  if (text == NULL) return purr__fail_memory(err, label, num_bytes);
  while (done < num_bytes) {
    ssize_t count = pread(fd, text + done, num_bytes - done, (off_t)done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      status = count < 0 ? fail_file(err, label, "cannot be read")
                         : purr__fail(err, PURR_STATUS_IO, "%s became shorter while it was read", label);
      purr__release(context, text);
      return status;
    }
    done += (uint64_t)count;
  }
  *out_text = text;
  *out_bytes = num_bytes;
  return PURR_STATUS_OK;
}

/* ---- shards ---- */

/* Maps the shard whose fd is set, and reads its header. */
static purr_status_t map_shard(purr_checkpoint_t *checkpoint, int32_t shard_idx, uint64_t *headers_bytes,
                               purr_error_t *err) {
  purr__shard_t *shard = &checkpoint->shards[shard_idx];
  const char *label = shard->label.text;
  purr_status_t status = query_size(shard->fd, label, &shard->num_bytes, err);
  if (status != PURR_STATUS_OK) return status;
  if (shard->num_bytes > 0) {
    void *data = mmap(NULL, shard->num_bytes, PROT_READ, MAP_PRIVATE, shard->fd, 0);
    if (data == MAP_FAILED) return fail_file(err, label, "cannot be mapped");
    shard->data = data;
  }
  uint64_t before = *headers_bytes;
  status = purr__safetensors_parse(&checkpoint->tensors, shard->data, shard->num_bytes, shard->num_bytes, label,
                                   shard_idx, headers_bytes, err);
  /* The header has been read for good: its pages need not stay in memory beside those of the other shards. */
  if (status == PURR_STATUS_OK) madvise((void *)(uintptr_t)shard->data, *headers_bytes - before, MADV_DONTNEED);
  return status;
}

static purr_status_t sort_tensors(purr_checkpoint_t *checkpoint, purr_error_t *err) {
  purr__directory_t *tensors = &checkpoint->tensors;
  purr_status_t status = purr__directory_sort(tensors, 0, purr__entry_before_by_name, err);
  for (int64_t i = 1; i < tensors->num_entries && status == PURR_STATUS_OK; i++) {
    const purr__entry_t *a = tensors->entries[i - 1], *b = tensors->entries[i];
    if (strcmp(a->name, b->name) != 0) continue;
    status = purr__fail(err, PURR_STATUS_CHECKPOINT, "%s: tensor '%s' is there twice; the other one is in %s",
                        purr__checkpoint_file(checkpoint, b), purr__shown(b->name).text,
                        a->file_idx == b->file_idx ? "the same file" : purr__checkpoint_file(checkpoint, a));
  }
  return status;
}

static purr_status_t make_shards(purr_checkpoint_t *checkpoint, const char *name, int fd, purr_error_t *err) {
  checkpoint->shards = purr__allocate_zeroed(checkpoint->object.context, sizeof *checkpoint->shards);
  if (checkpoint->shards == NULL) return purr__fail_memory(err, "the list of shards", sizeof *checkpoint->shards);
  checkpoint->num_shards = 1;
  snprintf(checkpoint->shards->name, sizeof checkpoint->shards->name, "%s", name);
  checkpoint->shards->label = purr__label(checkpoint->path, name);
  checkpoint->shards->fd = fd;
  return PURR_STATUS_OK;
}

static purr_status_t open_single(purr_checkpoint_t *checkpoint, const char *name, int fd, purr_error_t *err) {
  uint64_t headers_bytes = 0;
  purr_status_t status = make_shards(checkpoint, name, fd, err);
  if (status != PURR_STATUS_OK) {
    close(fd);
    return status;
  }
  status = map_shard(checkpoint, 0, &headers_bytes, err);
  return status == PURR_STATUS_OK ? sort_tensors(checkpoint, err) : status;
}

/* A shard that is not there is no error yet: who runs one layer need not have fetched the others. */
static purr_status_t open_shards(purr_checkpoint_t *checkpoint, int folder, const char *index_label,
                                 purr_error_t *err) {
  uint64_t headers_bytes = 0;
  int32_t num_present = 0;
  purr_status_t status = PURR_STATUS_OK;
  for (int32_t i = 0; i < checkpoint->num_shards && status == PURR_STATUS_OK; i++) {
    purr__shard_t *shard = &checkpoint->shards[i];
    status = open_inside(folder, shard->name, shard->label.text, &shard->fd, err);
    if (status != PURR_STATUS_OK || shard->fd < 0) continue;
    num_present++;
    status = map_shard(checkpoint, i, &headers_bytes, err);
  }
  if (status == PURR_STATUS_OK && num_present == 0)
    return purr__fail(err, PURR_STATUS_IO, "%s names %d shards, of which none is there; the first is '%s'", index_label,
                      checkpoint->num_shards, purr__shown(checkpoint->shards[0].name).text);
  return status == PURR_STATUS_OK ? sort_tensors(checkpoint, err) : status;
}

/* The index is read twice, before and after the shards, so that it need not be in memory beside their headers. */
static purr_status_t open_sharded(purr_checkpoint_t *checkpoint, int folder, int index_fd, purr_error_t *err) {
  purr_context_t *context = checkpoint->object.context;
  purr__label_t label = purr__label(checkpoint->path, INDEX_NAME);
  char *text = NULL;
  uint64_t num_bytes;
  purr_status_t status = read_text(context, index_fd, label.text, PURR__MAX_INDEX_JSON_BYTES, &text, &num_bytes, err);
  if (status == PURR_STATUS_OK) status = purr__index_read_shards(checkpoint, text, num_bytes, label.text, err);
  purr__release(context, text);
  if (status == PURR_STATUS_OK) status = open_shards(checkpoint, folder, label.text, err);
  if (status != PURR_STATUS_OK) return status;
  status = read_text(context, index_fd, label.text, PURR__MAX_INDEX_JSON_BYTES, &text, &num_bytes, err);
  if (status == PURR_STATUS_OK) status = purr__index_check(checkpoint, text, num_bytes, label.text, err);
  purr__release(context, text);
  return status;
}

static purr_status_t read_config(purr_checkpoint_t *checkpoint, int folder, purr_error_t *err) {
  purr__label_t label = purr__label(checkpoint->path, CONFIG_NAME);
  int fd;
  purr_status_t status = open_inside(folder, CONFIG_NAME, label.text, &fd, err);
  if (status != PURR_STATUS_OK || fd < 0) return status;
  status = read_text(checkpoint->object.context, fd, label.text, PURR__MAX_CONFIG_JSON_BYTES, &checkpoint->config,
                     &checkpoint->config_bytes, err);
  close(fd);
  if (status != PURR_STATUS_OK) return status;
  purr__json_t json;
  purr__json_begin(&json, checkpoint->config, checkpoint->config_bytes, label.text, err);
  if (purr__json_take(&json, PURR__JSON_OBJECT_BEGIN, "the file")) {
    purr__json_skip_rest(&json, PURR__JSON_OBJECT_BEGIN);
    purr__json_take(&json, PURR__JSON_END, "what comes behind the object");
  }
  return json.status;
}

/* As the Hugging Face loader does: the single file first, else the index. */
static purr_status_t open_folder(purr_checkpoint_t *checkpoint, int folder, purr_error_t *err) {
  purr_status_t status = read_config(checkpoint, folder, err);
  if (status != PURR_STATUS_OK) return status;
  int fd;
  status = open_inside(folder, SINGLE_NAME, purr__label(checkpoint->path, SINGLE_NAME).text, &fd, err);
  if (status != PURR_STATUS_OK) return status;
  if (fd >= 0) return open_single(checkpoint, SINGLE_NAME, fd, err);
  status = open_inside(folder, INDEX_NAME, purr__label(checkpoint->path, INDEX_NAME).text, &fd, err);
  if (status != PURR_STATUS_OK) return status;
  if (fd < 0)
    return purr__fail(err, PURR_STATUS_IO, "%s has neither " SINGLE_NAME " nor " INDEX_NAME,
                      purr__label(checkpoint->path, "").text);
  status = open_sharded(checkpoint, folder, fd, err);
  close(fd);
  return status;
}

/* ---- the object ---- */

static void checkpoint_free(void *object) {
  purr_checkpoint_t *checkpoint = object;
  purr_context_t *context = checkpoint->object.context;
  for (int32_t i = 0; i < checkpoint->num_shards; i++) {
    purr__shard_t *shard = &checkpoint->shards[i];
    if (shard->data != NULL) munmap((void *)(uintptr_t)shard->data, shard->num_bytes);
    if (shard->fd >= 0) close(shard->fd);
  }
  purr__release(context, checkpoint->shards);
  purr__directory_free(&checkpoint->tensors);
  purr__directory_free(&checkpoint->absent);
  purr__release(context, checkpoint->config);
  purr__release(context, checkpoint->path);
}

static purr_status_t open_path(purr_checkpoint_t *checkpoint, purr_error_t *err) {
  int fd = open(checkpoint->path, OPEN_FLAGS);
  struct stat info;
  if (fd < 0 || fstat(fd, &info) != 0) {
    purr_status_t status = fail_file(err, purr__label(checkpoint->path, "").text, "cannot be opened");
    if (fd >= 0) close(fd);
    return status;
  }
  if (!S_ISDIR(info.st_mode)) return open_single(checkpoint, "", fd, err);
  purr_status_t status = open_folder(checkpoint, fd, err);
  close(fd);
  return status;
}

purr_status_t purr_checkpoint_open(purr_context_t *context, const char *path, purr_checkpoint_t **out_checkpoint,
                                   purr_error_t *err) {
  if (out_checkpoint == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_checkpoint is NULL");
  *out_checkpoint = NULL;
  purr_status_t status = purr__check(context, PURR__CONTEXT, err);
  if (status != PURR_STATUS_OK) return status;
  if (path == NULL || path[0] == '\0')
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "path is %s", path == NULL ? "NULL" : "empty");
  void *object;
  status = purr__object_create(context, PURR__CHECKPOINT, sizeof(purr_checkpoint_t), checkpoint_free, &object, err);
  if (status != PURR_STATUS_OK) return status;
  purr_checkpoint_t *checkpoint = object;
  checkpoint->tensors.context = checkpoint->absent.context = context;
  checkpoint->path = purr__duplicate(context, path);
  status = checkpoint->path != NULL ? open_path(checkpoint, err) : purr__fail_memory(err, "the path", strlen(path) + 1);
  if (status != PURR_STATUS_OK)
    purr__object_release(checkpoint);
  else
    *out_checkpoint = checkpoint;
  return status;
}

void purr_checkpoint_destroy(purr_checkpoint_t *checkpoint) { purr__object_release(checkpoint); }

/* ---- tensors ---- */

int64_t purr_checkpoint_num_tensors(const purr_checkpoint_t *checkpoint) {
  return purr__check(checkpoint, PURR__CHECKPOINT, NULL) == PURR_STATUS_OK ? checkpoint->tensors.num_entries : 0;
}

const char *purr_checkpoint_tensor_name(const purr_checkpoint_t *checkpoint, int64_t index) {
  if (index < 0 || index >= purr_checkpoint_num_tensors(checkpoint)) return NULL;
  return checkpoint->tensors.entries[index]->name;
}

const char *purr__checkpoint_file(const purr_checkpoint_t *checkpoint, const purr__entry_t *entry) {
  return checkpoint->shards[entry->file_idx].label.text;
}

purr_status_t purr__checkpoint_lookup(const purr_checkpoint_t *checkpoint, const char *name, const char *needed_by,
                                      purr__entry_t **out_entry, purr_error_t *err) {
  uint64_t length = strlen(name);
  *out_entry = purr__directory_find(&checkpoint->tensors, name, length);
  if (*out_entry != NULL) return PURR_STATUS_OK;
  purr__label_t label = purr__label(checkpoint->path, "");
  const purr__entry_t *absent = purr__directory_find(&checkpoint->absent, name, length);
  if (absent != NULL)
    return purr__fail(err, PURR_STATUS_CHECKPOINT,
                      "%s: the tensor '%s' that %s needs is in the shard '%s', which is not in the folder", label.text,
                      purr__shown(name).text, needed_by, purr__shown(checkpoint->shards[absent->file_idx].name).text);
  const purr__entry_t *nearest = purr__directory_nearest(&checkpoint->tensors, name);
  return purr__fail(err, PURR_STATUS_CHECKPOINT, "%s: %s needs the tensor '%s', which is not there; %s%s%s", label.text,
                    needed_by, purr__shown(name).text,
                    nearest != NULL ? "the nearest name is '" : "there is none at all",
                    nearest != NULL ? purr__shown(nearest->name).text : "", nearest != NULL ? "'" : "");
}

purr_status_t purr__checkpoint_data(const purr_checkpoint_t *checkpoint, const purr__entry_t *entry,
                                    const char **out_data, purr_error_t *err) {
  const purr__shard_t *shard = &checkpoint->shards[entry->file_idx];
  uint64_t num_bytes;
  purr_status_t status = query_size(shard->fd, shard->label.text, &num_bytes, err);
  if (status != PURR_STATUS_OK) return status;
  if (num_bytes != shard->num_bytes)
    return purr__fail(err, PURR_STATUS_CHECKPOINT,
                      "%s had %llu bytes when it was opened and has %llu now; open the checkpoint again",
                      shard->label.text, (unsigned long long)shard->num_bytes, (unsigned long long)num_bytes);
  *out_data = shard->data + entry->begin;
  return PURR_STATUS_OK;
}

/* A copy at an aligned address, made once and kept with the checkpoint. Two threads may both make one: the first stays.
 */
static purr_status_t align_data(const purr_checkpoint_t *checkpoint, purr__entry_t *entry, const char **data,
                                purr_error_t *err) {
  void *aligned = atomic_load_explicit(&entry->aligned, memory_order_acquire);
  if (aligned == NULL) {
    void *copy = purr__allocate(checkpoint->object.context, entry->num_bytes);
    if (copy == NULL) return purr__fail_memory(err, "an aligned copy of the tensor", entry->num_bytes);
    memcpy(copy, *data, entry->num_bytes);
    if (atomic_compare_exchange_strong_explicit(&entry->aligned, &aligned, copy, memory_order_acq_rel,
                                                memory_order_acquire))
      aligned = copy;
    else
      purr__release(checkpoint->object.context, copy);
  }
  *data = aligned;
  return PURR_STATUS_OK;
}

purr_status_t purr_checkpoint_find(const purr_checkpoint_t *checkpoint, const char *name, purr_tensor_t *out_tensor,
                                   purr_error_t *err) {
  purr_status_t status = purr__check(checkpoint, PURR__CHECKPOINT, err);
  if (status != PURR_STATUS_OK) return status;
  if (name == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "name is NULL");
  purr__entry_t *entry;
  status = purr__checkpoint_lookup(checkpoint, name, "the caller", &entry, err);
  if (status != PURR_STATUS_OK) return status;
  if (entry->num_dims > 4 || entry->dtype == PURR_DTYPE_NONE)
    return purr__fail(err, PURR_STATUS_UNSUPPORTED, "%s: tensor '%s' has %s", purr__checkpoint_file(checkpoint, entry),
                      purr__shown(name).text,
                      entry->num_dims > 4 ? "more than 4 dimensions" : "a type that Purr cannot hand out");
  const char *data;
  status = purr__checkpoint_data(checkpoint, entry, &data, err);
  if (status == PURR_STATUS_OK && (uintptr_t)data % PURR__DATA_ALIGNMENT != 0 && entry->num_bytes > 0)
    status = align_data(checkpoint, entry, &data, err);
  if (status != PURR_STATUS_OK) return status;
  purr_tensor_t own = {.struct_size = sizeof own,
                       .dtype = entry->dtype,
                       .num_dims = entry->num_dims > 0 ? entry->num_dims : 1,
                       .data = (void *)(uintptr_t)data};
  memcpy(own.shape, entry->shape, sizeof own.shape);
  if (entry->num_dims == 0) own.shape[0] = 1;
  return purr__write_struct(out_tensor, &own, sizeof own, "out_tensor", err);
}
