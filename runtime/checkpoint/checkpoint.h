/* An open checkpoint: its files, mapped, its tensors by name, and the text of its config.json. */
#ifndef PURR_CHECKPOINT_H
#define PURR_CHECKPOINT_H

#include "checkpoint/directory.h"

#define PURR__MAX_SHARDS 1024
#define PURR__MAX_CONFIG_JSON_BYTES (1u << 20)
#define PURR__MAX_INDEX_JSON_BYTES (20u << 20) /* that of Kimi-K2 has 14 MB */
/* Weights must start at such addresses; data that does not is handed out as a copy. */
#define PURR__DATA_ALIGNMENT 16u

/* A path for messages: printable, and its beginning left out where it is long. */
typedef struct purr__label {
  char text[160];
} purr__label_t;
purr__label_t purr__label(const char *folder, const char *name);

typedef struct purr__shard {
  char name[256]; /* inside the folder; "" for a checkpoint that is one file */
  purr__label_t label;
  int fd; /* kept open to notice when the file changes its size; -1 = the index names it, but it is not there */
  const char *data;
  uint64_t num_bytes;
} purr__shard_t;

struct purr_checkpoint {
  purr__object_t object;
  char *path;   /* as the caller gave it */
  char *config; /* text of config.json, checked to be JSON; NULL where there is none */
  uint64_t config_bytes;
  purr__shard_t *shards; /* in name order */
  int32_t num_shards;
  purr__directory_t tensors; /* what the shards hold, in name order */
  purr__directory_t absent;  /* what the index places in shards that are not there, in name order */
};

/* The tensor, or CHECKPOINT with what is known about where it might be. `needed_by` says who asks: "layer 3". */
purr_status_t purr__checkpoint_lookup(const purr_checkpoint_t *checkpoint, const char *name, const char *needed_by,
                                      purr__entry_t **out_entry, purr_error_t *err);
const char *purr__checkpoint_file(const purr_checkpoint_t *checkpoint, const purr__entry_t *entry); /* for messages */
/* The data of a tensor, at any alignment; CHECKPOINT if its file was cut or grew after it was opened. */
purr_status_t purr__checkpoint_data(const purr_checkpoint_t *checkpoint, const purr__entry_t *entry,
                                    const char **out_data, purr_error_t *err);

/* ---- index.c: model.safetensors.index.json ---- */

/* Fills checkpoint->shards with the names in the weight_map. */
purr_status_t purr__index_read_shards(purr_checkpoint_t *checkpoint, const char *text, uint64_t num_bytes,
                                      const char *label, purr_error_t *err);
/* When the shards are read: every tensor must be in the shard that the weight_map says; those of shards that are not
 * there go into checkpoint->absent. */
purr_status_t purr__index_check(purr_checkpoint_t *checkpoint, const char *text, uint64_t num_bytes, const char *label,
                                purr_error_t *err);

#endif
