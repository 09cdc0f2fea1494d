/* The timeline of a forward: the memory that its threads write, and what is made of it. Recording follows
 * kernels/trace.h on every backend, so that one reader serves all. */
#ifndef PURR_TRACE_H
#define PURR_TRACE_H

#include "kernels/trace.h"
#include "plan/plan.h"

struct purr_trace {
  purr__object_t object;
  const purr_plan_t *plan; /* retained */
  char *memory;            /* of the plan's backend: kernels/trace.h */
  uint64_t bytes;
  bool owns_memory;
  uint32_t num_tracks, tracks_per_block, events_per_track;
  struct purr__trace_launches *launches; /* instead of memory, for a backend that records its launches */
  int rank;                              /* that the last call was for; -1: there was none */
};

/* How a backend records. */
typedef enum purr__trace_means {
  PURR__TRACES_NOTHING,
  PURR__TRACES_THREADS,  /* its threads write kernels/trace.h: purr__trace_start, and purr__trace_record on the host */
  PURR__TRACES_LAUNCHES, /* purr__trace_launches_start, purr__trace_launched */
} purr__trace_means_t;

/* ---- recording (trace.c) ---- */

/* Steps of a call that wants a timeline, by the backend: clears the tracks in stream order.
 * @param num_blocks  of the kernel that writes; each has tracks_per_block tracks.
 * @param out_buffer  what the kernel's Tracer takes. */
purr_status_t purr__trace_start(purr_trace_t *trace, int64_t num_blocks, void *stream, void **out_buffer,
                                purr_error_t *err);

/* Host: worker `worker_idx` has done something; only this worker may say so. The clock is purr__now_ns. */
void purr__trace_record(purr_trace_t *trace, int worker_idx, const purr__trace_event_t *event);

/* ---- recording launches (launches.c); a NULL trace does nothing. Entered ---- */
purr_status_t purr__trace_launches_start(purr_trace_t *trace, void *stream, purr_error_t *err);
/* What was enqueued since the start or the last such call is an event of `kind`. */
purr_status_t purr__trace_launched(purr_trace_t *trace, int kind, void *stream, purr_error_t *err);

purr_status_t purr__trace_launches_create(purr_trace_t *trace, purr_error_t *err);
void purr__trace_launches_free(purr_trace_t *trace);
/* Writes what a thread would have written, in so many bytes. All ranks count from the start of `first`, that of a rank
 * whose trace is made of launches too. */
uint64_t purr__trace_launches_bytes(void);
purr_status_t purr__trace_launches_read(const purr_trace_t *trace, const purr_trace_t *first, void *image,
                                        purr_error_t *err);

/* ---- reading (timeline.c) ---- */

/* One thing that a track did. Times are nanoseconds from the timeline's start. */
typedef struct purr__span {
  int64_t begin, end;
  int kind, rank; /* PURR__TRACE_*; the other rank or -1 */
  int32_t expert, row, column;
} purr__span_t;

/* A piece of a track with one kind: the innermost span's where spans lie within each other. */
typedef struct purr__segment {
  int64_t begin, end;
  int kind;
} purr__segment_t;

typedef struct purr__lane {
  int rank;
  int processor_idx; /* into the timeline's processors */
  uint32_t processor, block, role;
  purr__span_t *spans; /* by begin, outer ones first */
  int64_t num_spans;
  purr__segment_t *segments; /* by begin, none overlaps another */
  int64_t num_segments;
} purr__lane_t;

/* An SM, a thread of the host or a stream, of one rank: lanes first_lane .. first_lane + num_lanes - 1. */
typedef struct purr__processor {
  int rank;
  uint32_t number;
  int64_t first_lane, num_lanes;
} purr__processor_t;

typedef struct purr__timeline {
  purr_context_t *context;
  const char *layer; /* its name */
  const char *noun;  /* what a processor is: "SM", "thread" or "stream" */
  bool was_aligned;  /* clocks of devices that have nothing to do with each other were made to begin together */
  int num_ranks;
  int64_t length;      /* ns, of all ranks together */
  purr__lane_t *lanes; /* by rank, processor, block, track */
  int64_t num_lanes;
  purr__processor_t *processors;
  int64_t num_processors;
  int64_t num_spans;
  uint64_t num_dropped;   /* events that found no room */
  int64_t num_unfinished; /* tracks without an end, left out */
  purr__span_t *spans;    /* all of them, and */
  purr__segment_t *segments;
} purr__timeline_t;

/* One rank's memory, on the host. */
typedef struct purr__trace_image {
  const void *memory;
  uint64_t bytes;
  int rank;
  int device; /* its number, -1 for the host: which clocks are the same */
} purr__trace_image_t;

/* Holds everything against what is possible: INVALID_STATE says what is not, or that nothing was recorded. Frees by
 * purr__timeline_free. The images' memory is not needed afterwards. */
purr_status_t purr__timeline_read(purr_context_t *context, const purr__trace_image_t *images, int num_images,
                                  purr__timeline_t *out, purr_error_t *err);
void purr__timeline_free(purr__timeline_t *timeline);

/* ---- what the kinds are (timeline.c) ---- */
typedef enum purr__trace_group {
  PURR__TRACE_GROUP_COMPUTE,
  PURR__TRACE_GROUP_EPILOGUE,
  PURR__TRACE_GROUP_LOAD,
  PURR__TRACE_GROUP_COMMUNICATION,
  PURR__TRACE_GROUP_WAIT,
  PURR__TRACE_GROUP_OTHER,
  PURR__NUM_TRACE_GROUPS
} purr__trace_group_t;

typedef struct purr__trace_kind_info {
  const char *label, *colour; /* "gate-up", "#2f6fb5" */
  purr__trace_group_t group;
} purr__trace_kind_info_t;
extern const purr__trace_kind_info_t purr__trace_kinds[PURR__NUM_TRACE_KINDS];
extern const char *const purr__trace_groups[PURR__NUM_TRACE_GROUPS];
extern const char *const purr__trace_roles[PURR__NUM_TRACE_ROLES];

/* ---- writing ---- */
void purr__timeline_add_perfetto(purr__text_t *text, const purr__timeline_t *timeline);
purr_status_t purr__timeline_add_svg(purr__text_t *text, const purr__timeline_t *timeline, purr_error_t *err);
purr_status_t purr__timeline_add_summary(purr__text_t *text, const purr__timeline_t *timeline, bool json,
                                         purr_error_t *err);

/* 12345 ns as "12.345": microseconds, whatever the caller's locale. */
static inline void purr__text_add_us(purr__text_t *text, int64_t ns) {
  purr__text_add(text, "%lld.%03lld", (long long)(ns / 1000), (long long)(ns % 1000));
}

#endif
