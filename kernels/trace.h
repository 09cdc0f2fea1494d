/* SPDX-License-Identifier: Apache-2.0
 *
 * The timeline of one call as its threads write it: header, tracks, events, in one block of memory. Plain C and CUDA
 * C++. A track is written by one thread alone, so there are no atomics; trace.cuh is the writer for kernels, the host
 * backend has one of its own, and runtime/trace reads both.
 *
 *   purr__trace_header_t
 *   purr__trace_track_t  [num_tracks]                    block b owns tracks_per_block of them from b *
 * tracks_per_block purr__trace_event_t  [num_tracks][events_per_track]
 *
 * The host writes the header once and clears the tracks before every call. Whoever reads this memory must trust none of
 * it: a call that was cut short leaves tracks without an end. */
#ifndef PURR_KERNELS_TRACE_H
#define PURR_KERNELS_TRACE_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define PURR__TRACE_MAGIC 0x43525450u /* "PTRC" */
#define PURR__TRACE_LAYOUT 1

enum {
#define PURR_TRACE_KIND(name, ...) PURR__TRACE_##name,
#include "trace.def"
  PURR__NUM_TRACE_KINDS
};

enum {
#define PURR_TRACE_ROLE(name, ...) PURR__TRACE_ROLE_##name,
#include "trace.def"
  PURR__NUM_TRACE_ROLES
};

/* Tracks of a block: what its warps do at the same time and want told apart. (On the host a block is a thread, with one
 * track.) */
#define PURR__TRACE_TRACKS_PER_BLOCK 4

typedef struct purr__trace_header {
  uint32_t magic, layout;
  uint32_t num_tracks, tracks_per_block, events_per_track;
  uint32_t reserved[11];
} purr__trace_header_t;

/* Two instants on both clocks tie a track's clock to nanoseconds. clock_begin == 0: nobody wrote the track.
 * clock_end == 0: its thread did not come to the end. */
typedef struct purr__trace_track {
  uint64_t clock_begin, ns_begin; /* before the first event: the clock of the events, and nanoseconds */
  uint64_t clock_end, ns_end;     /* after the last */
  uint32_t processor;             /* the SM; on the host the thread */
  uint32_t block, role;           /* PURR__TRACE_ROLE_* */
  uint32_t num_events;            /* that lie in memory */
  uint64_t num_dropped;           /* that came after events_per_track of them */
  uint64_t reserved;
} purr__trace_track_t;

/* What the numbers mean is the kind's: expert -1 = none or the shared one; row and column of the output tile, or the
 * first row and number of rows; -1 = says nothing. */
typedef struct purr__trace_event {
  uint64_t begin, end; /* the track's clock */
  uint16_t kind;       /* PURR__TRACE_* */
  int16_t rank;        /* the other rank of a transfer or of a wait for one; -1 = none */
  int32_t expert, row, column;
} purr__trace_event_t;

static_assert(sizeof(purr__trace_header_t) == 64, "layout");
static_assert(sizeof(purr__trace_track_t) == 64, "layout");
static_assert(sizeof(purr__trace_event_t) == 32, "layout");
static_assert(offsetof(purr__trace_event_t, kind) == 16, "layout");
static_assert(offsetof(purr__trace_track_t, processor) == 32, "layout");

#endif
