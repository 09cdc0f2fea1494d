/* What `run` and `verify` share: one MoE layer on R ranks of this process, its tokens, weights and gradients. */
#ifndef PURR_PROGRAM_LAYER_H
#define PURR_PROGRAM_LAYER_H

#include "program.h"

/* ---- threads with progress (tasks.c) ----
 * While the tasks run, the calling thread shows `label` and the fraction done on stderr: on a terminal after a second,
 * elsewhere as a line every ten seconds. */
typedef void (*task_fn)(void *arg, int64_t task_idx);
typedef double (*fraction_fn)(void *arg); /* 0..1; NULL where only the time is known */
/* All tasks at once, each on a thread of its own, so that they may wait for each other. False, and nothing was run,
 * when the threads cannot be had. */
bool run_together(int64_t num_tasks, task_fn task, void *arg, const char *label, fraction_fn fraction);
/* The tasks spread over the CPUs; they must not wait for each other. */
void run_spread(int64_t num_tasks, task_fn task, void *arg, const char *label);

/* ---- memory (memory.c) ----
 * Bytes that this process can still take: what the machine and the control group have free; 0 when unknown. */
uint64_t available_memory(void);

/* ---- tensors (tensors.c) ---- */
float float_from_bf16(uint16_t value);
uint16_t bf16_from_float(float value);
const char *dtype_name(int32_t dtype);
/* A contiguous tensor; sizes after `rows` may be left out as 0. */
purr_tensor_t tensor_of(int32_t dtype, const void *data, int64_t size0, int64_t size1, int64_t size2);
int64_t tensor_count(const purr_tensor_t *tensor);
bool tensor_same_shape(const purr_tensor_t *a, const purr_tensor_t *b);
const char *shape_text(char *buffer, size_t capacity, const purr_tensor_t *tensor); /* "[96, 4]" */
#define SHAPE_TEXT(tensor) shape_text((char[96]){0}, 96, tensor)
/* Element `idx` of a contiguous tensor, whatever its alignment; tensor_is_number says for which types. */
bool tensor_is_number(const purr_tensor_t *tensor);
double tensor_element(const purr_tensor_t *tensor, int64_t idx);
/* FNV-1a over 64-bit little-endian words, the last one filled up with zeros; hash ^= hash >> 29 after each product, so
 * that what differs in a word's high bits comes to low ones as well. */
uint64_t hash_memory(const void *memory, uint64_t bytes);

typedef struct named_tensor {
  const char *name;
  purr_tensor_t tensor;
} named_tensor_t;
/* The decoder layer that a safetensors file says it was captured from, in its metadata; -1 where it does not. It is a
 * default for --layer, nothing more: the library checks the file itself. */
int64_t captured_layer(const char *path);
/* Whether `path` is that file, by whatever name, or a file in that folder. */
bool is_same_file(const char *path, const char *file_or_folder);
/* Opens a file for write_safetensors before the work whose result it gets; its content is kept until then.
 * `out_is_new` says that there was none. */
FILE *open_output(const char *command, const char *path, bool *out_is_new);
/* Writes and closes; returns an exit code. */
int write_safetensors(const char *command, FILE *file, const char *path, const named_tensor_t *tensors,
                      int num_tensors);

/* ---- the layer (layer.c) ---- */
typedef struct layer_options {
  const char *checkpoint_path; /* NULL = generated weights */
  const char *devices_text;    /* NULL = GPU 0, where there is one */
  int64_t layer_idx;           /* -1 = the first MoE layer */
  int64_t num_ranks;           /* 0 = as in the config */
  int64_t num_threads;         /* 0 = the library's default */
  int backend, precision;      /* indices into backend_names and precision_names; precision -1 = as in the config */
  bool forward_suffices;       /* a backend that runs forward alone will do */
} layer_options_t;
#define LAYER_OPTIONS_INIT \
  { .layer_idx = -1, .precision = -1 }

/* The entries of `options` that both subcommands have. */
#define LAYER_OPTION_ENTRIES(o)                                                                      \
  {.name = "checkpoint",                                                                             \
   .kind = OPTION_TEXT,                                                                              \
   .value = &(o).checkpoint_path,                                                                    \
   .metavar = "DIR",                                                                                 \
   .help = "take the weights from a safetensors checkpoint"},                                        \
      {.name = "layer",                                                                              \
       .kind = OPTION_INT,                                                                           \
       .value = &(o).layer_idx,                                                                      \
       .metavar = "N",                                                                               \
       .min = 0,                                                                                     \
       .max = 100000,                                                                                \
       .help = "decoder layer of the checkpoint (default: its first MoE layer)"},                    \
      {.name = "ranks",                                                                              \
       .kind = OPTION_INT,                                                                           \
       .value = &(o).num_ranks,                                                                      \
       .metavar = "R",                                                                               \
       .min = 1,                                                                                     \
       .max = 1024,                                                                                  \
       .help = "expert-parallel ranks in this process (default: as in the config)"},                 \
      {.name = "devices",                                                                            \
       .kind = OPTION_TEXT,                                                                          \
       .value = &(o).devices_text,                                                                   \
       .metavar = "LIST",                                                                            \
       .help =                                                                                       \
           "GPUs of the ranks, dealt in turn: with 0,1 ranks 0, 2, ... use GPU 0 and ranks 1, 3,\n"  \
           "... GPU 1 (default: GPU 0 for all, where there is one)"},                                \
      {.name = "threads",                                                                            \
       .kind = OPTION_INT,                                                                           \
       .value = &(o).num_threads,                                                                    \
       .metavar = "N",                                                                               \
       .min = 1,                                                                                     \
       .max = 1024,                                                                                  \
       .help = "threads of the host backend (default: PURR_NUM_THREADS, else all CPUs)"},            \
      {.name = "backend",                                                                            \
       .kind = OPTION_CHOICE,                                                                        \
       .value = &(o).backend,                                                                        \
       .choices = backend_names,                                                                     \
       .help = "what runs it (default: as in the config)"},                                          \
  {                                                                                                  \
    .name = "precision", .kind = OPTION_CHOICE, .value = &(o).precision, .choices = precision_names, \
    .help = "precision of the routed experts (default: as in the config)"                            \
  }

/* The tensors of the shared expert, in the order of shared_names. */
enum { SHARED_GATE, SHARED_UP, SHARED_DOWN, SHARED_EXPERT_GATE, NUM_SHARED };

struct layer;

/* A copy of a tensor in the backend's memory. */
typedef struct placed {
  void *memory;
  uint64_t bytes;
} placed_t;

typedef struct rank {
  purr_plan_t *plan; /* of its GPU; not owned */
  int64_t first_token, num_tokens;
  placed_t placed[16]; /* weights and tokens on a GPU */
  int num_placed;
  void *stream;                                    /* of its own, since ranks may share a device */
  purr_tensor_t x, topk_ids, topk_weights, output; /* of forward, where its backend has them */
  purr_group_t *group;                             /* NULL when R = 1, and once the rank has left */
  purr_checkpoint_layer_t *checkpoint_layer;
  purr_weights_t *weights;
  purr_workspace_t *workspace;
  purr_saved_t *saved;
  purr_result_t *result;
  purr_trace_t *trace;         /* of the next forwards; NULL = none */
  float *d_shared[NUM_SHARED]; /* gradients summed over this rank's tokens; NULL = absent or not wanted */
  purr_result_info_t forward, backward;
  purr_status_t status; /* of the last call */
  purr_error_t err;
} rank_t;

typedef struct layer {
  const char *command;
  purr_context_t *context;
  purr_config_t *config;
  purr_checkpoint_t *checkpoint;
  device_list_t devices;
  purr_plan_t *plans[MAX_DEVICES]; /* one for each entry of the list, one at least */
  purr_layer_desc_t shape;
  purr_plan_info_t info;
  int64_t layer_idx;
  bool limits_tokens; /* a config file set max_tokens */
  rank_t *ranks;
  int64_t num_ranks, num_tokens;
  struct layer_block *blocks; /* all memory of the arrays below */
  /* All ranks' tokens; a rank's part is a run of rows. The backward arrays are NULL without backward. */
  uint16_t *x, *output, *d_output, *d_x;
  int64_t *topk_ids;
  float *topk_weights, *d_topk_weights;
  /* All experts; a rank's part is a run of experts. The weights are NULL with a checkpoint. */
  uint16_t *gate_up, *down, *shared[NUM_SHARED];
  float *d_gate_up, *d_down;
  int64_t *tokens_per_expert; /* after a forward */
} layer_t;

/* In this order; each prints what is wrong and returns an exit code. layer_close always. */
int layer_open(layer_t *layer, const char *command, const char *config_path, const layer_options_t *options);
/* Plans for num_tokens in all, refuses what does not fit into memory, and allocates. With backward the host serves
 * where the chosen backend runs forward alone, unless that suffices: then d_x stays NULL. */
int layer_allocate(layer_t *layer, const layer_options_t *options, int64_t num_tokens, bool backward);
/* Fills an array of one of the streams of random.h with normal numbers. */
void fill_normal(uint16_t *values, int64_t count, uint64_t seed, int stream, float deviation);
/* Weights of a normal distribution scaled by 1/sqrt(fan-in); nothing to do with a checkpoint. */
void layer_generate_weights(layer_t *layer, uint64_t seed);
/* Makes the ranks. x and the routing may be filled before or after. */
int layer_prepare(layer_t *layer);
int layer_forward(layer_t *layer);
int layer_backward(layer_t *layer);
void layer_close(layer_t *layer);
/* Elements of a shared tensor, 0 when the layer has none. */
int64_t layer_shared_count(const layer_t *layer, int shared_idx);

/* ---- the backend's memory (device.c) ---- */
/* Moves a tensor of host memory to the backend's: allocates, copies, and lets `tensor` describe the copy. */
purr_status_t place_tensor(const layer_t *layer, rank_t *rank, purr_tensor_t *tensor, purr_error_t *err);
/* Copies a placed tensor back. */
purr_status_t fetch_tensor(const layer_t *layer, const rank_t *rank, const purr_tensor_t *tensor, void *to,
                           purr_error_t *err);
void release_placed(rank_t *rank);

/* ---- routings (route.c) ---- */
typedef enum routing_kind { ROUTING_UNIFORM, ROUTING_ZIPF, ROUTING_CHECKPOINT, ROUTING_FILE } routing_kind_t;
typedef struct routing {
  routing_kind_t kind;
  double exponent;  /* ROUTING_ZIPF */
  const char *path; /* ROUTING_FILE */
} routing_t;
/* Reads uniform, zipf:S, checkpoint or a file's name; returns an exit code. */
int routing_parse(const char *command, const char *text, routing_t *out_routing);
/* Opens a file of captured tensors. */
int open_tensors(const layer_t *layer, const char *path, purr_checkpoint_t **out_file);
/* Finds NAME or input.NAME; false when there is neither. */
bool find_input(const purr_checkpoint_t *file, const char *name, purr_tensor_t *out_tensor);
/* Fill layer->topk_ids and topk_weights; return an exit code. */
int route_generate(layer_t *layer, double exponent, uint64_t seed);
int route_from_checkpoint(layer_t *layer);
int route_from_file(layer_t *layer, const purr_checkpoint_t *file, const char *path);
/* Reads the tensor NAME or input.NAME, [T, H] in BF16 or what is rounded to it. */
int rows_from_file(const layer_t *layer, const purr_checkpoint_t *file, const char *path, const char *name,
                   uint16_t *values);

#endif
