/* Timelines: from buffers made by hand to exact text, what hostile buffers get, and the host backend's own. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "support/allocator.h"
#include "support/fake_cuda.h"
#include "support/main.h"
#include "support/rank.h"
#include "trace/intervals.h"
#include "trace/trace.h"

static purr_error_t err;
static purr_test_allocator_t memory;
static purr_context_t *context;

static void set_up(void) {
  purr_test_allocator_init(&memory);
  const purr_context_desc_t desc = {.struct_size = sizeof desc, .num_threads = 3, .host_allocator = &memory.hooks};
  CU_ASSERT_EQUAL_FATAL(purr_context_create(&desc, &context, &err), PURR_STATUS_OK);
}

static void tear_down(void) {
  purr_context_destroy(context);
  CU_ASSERT_EQUAL(memory.num_live, 0);
  CU_ASSERT_EQUAL(memory.num_wrong, 0);
}

/* ---- buffers as a kernel would leave them ---- */

enum { TRACKS_PER_BLOCK = PURR__TRACE_TRACKS_PER_BLOCK };

typedef struct buffer {
  purr__trace_header_t *header;
  purr__trace_track_t *tracks;
  purr__trace_event_t *events;
  uint64_t bytes;
} buffer_t;

static buffer_t make_buffer(uint32_t num_blocks, uint32_t events_per_track) {
  buffer_t buffer;
  const uint32_t num_tracks = num_blocks * TRACKS_PER_BLOCK;
  buffer.bytes =
      sizeof *buffer.header + num_tracks * (sizeof *buffer.tracks + (uint64_t)events_per_track * sizeof *buffer.events);
  buffer.header = aligned_alloc(64, (buffer.bytes + 63) / 64 * 64);
  memset(buffer.header, 0xFF, buffer.bytes);
  *buffer.header = (purr__trace_header_t){.magic = PURR__TRACE_MAGIC,
                                          .layout = PURR__TRACE_LAYOUT,
                                          .num_tracks = num_tracks,
                                          .tracks_per_block = TRACKS_PER_BLOCK,
                                          .events_per_track = events_per_track};
  buffer.tracks = (purr__trace_track_t *)(buffer.header + 1);
  buffer.events = (purr__trace_event_t *)(buffer.tracks + num_tracks);
  memset(buffer.tracks, 0, num_tracks * sizeof *buffer.tracks);
  return buffer;
}

/* Clock 2 GHz, another offset on every SM; the timeline begins at 5 000 000 ns. */
#define START_NS 5000000u
static uint64_t clock_of(uint32_t sm, uint64_t ns) { return 1000000u * (sm + 1) + 2 * ns; }

static purr__trace_track_t *add_track(buffer_t *buffer, uint32_t block, uint32_t lane, uint32_t sm, uint32_t role,
                                      uint64_t begin_ns, uint64_t end_ns) {
  purr__trace_track_t *track = &buffer->tracks[block * TRACKS_PER_BLOCK + lane];
  *track = (purr__trace_track_t){.clock_begin = clock_of(sm, begin_ns),
                                 .ns_begin = START_NS + begin_ns,
                                 .clock_end = clock_of(sm, end_ns),
                                 .ns_end = START_NS + end_ns,
                                 .processor = sm,
                                 .block = block,
                                 .role = role};
  return track;
}

static void add_event(buffer_t *buffer, purr__trace_track_t *track, uint16_t kind, uint64_t begin_ns, uint64_t end_ns,
                      int32_t expert, int32_t row, int32_t column, int16_t rank) {
  const uint64_t idx = (uint64_t)(track - buffer->tracks) * buffer->header->events_per_track + track->num_events++;
  buffer->events[idx] = (purr__trace_event_t){.begin = clock_of(track->processor, begin_ns),
                                              .end = clock_of(track->processor, end_ns),
                                              .kind = kind,
                                              .rank = rank,
                                              .expert = expert,
                                              .row = row,
                                              .column = column};
}

/* Two SMs: one gathers and computes, one pulls. Inner events come before the one around them, as a kernel ends them. */
static buffer_t small_buffer(void) {
  buffer_t buffer = make_buffer(3, 8);
  purr__trace_track_t *track = add_track(&buffer, 0, 1, 7, PURR__TRACE_ROLE_CONSUMER_0, 0, 10000);
  add_event(&buffer, track, PURR__TRACE_WAIT_FULL, 1500, 2000, -1, -1, -1, -1);
  add_event(&buffer, track, PURR__TRACE_GATE_UP, 1000, 6000, 3, 0, 256, -1);
  add_event(&buffer, track, PURR__TRACE_EPILOGUE, 6000, 7000, 3, 0, 256, -1);
  track = add_track(&buffer, 0, 0, 7, PURR__TRACE_ROLE_LOADER, 100, 9000);
  add_event(&buffer, track, PURR__TRACE_GATHER, 500, 2000, 3, 0, -1, -1);
  track = add_track(&buffer, 2, 0, 2, PURR__TRACE_ROLE_PULLER, 0, 8000);
  add_event(&buffer, track, PURR__TRACE_PULL, 5000, 8000, 3, 64, -1, 1);
  return buffer;
}

static purr_status_t read_one(const buffer_t *buffer, purr__timeline_t *timeline) {
  const purr__trace_image_t image = {buffer->header, buffer->bytes, 0, 0};
  return purr__timeline_read(context, &image, 1, timeline, &err);
}

/* The text of one form; to be freed. */
static char *write_form(const purr__timeline_t *timeline, int32_t format) {
  purr__text_t text = {.context = context};
  purr_status_t status = PURR_STATUS_OK;
  if (format == PURR_TRACE_PERFETTO)
    purr__timeline_add_perfetto(&text, timeline);
  else if (format == PURR_TRACE_SVG)
    status = purr__timeline_add_svg(&text, timeline, &err);
  else
    status = purr__timeline_add_summary(&text, timeline, format == PURR_TRACE_JSON, &err);
  CU_ASSERT_EQUAL_FATAL(status, PURR_STATUS_OK);
  CU_ASSERT_FATAL(!text.failed);
  char *copy = strdup(text.data);
  purr__text_free(&text);
  return copy;
}

static void expect_text(const char *got, const char *expected) {
  if (strcmp(got, expected) != 0) fprintf(stderr, "---- got\n%s---- expected\n%s----\n", got, expected);
  CU_ASSERT_STRING_EQUAL(got, expected);
}

static bool has(const char *text, const char *part) {
  const bool found = strstr(text, part) != NULL;
  if (!found) fprintf(stderr, "'%s' is not in:\n%.2000s\n", part, text);
  return found;
}

/* ---- the forms, to the letter ---- */

static void perfetto_is_exact(void) {
  buffer_t buffer = small_buffer();
  purr__timeline_t timeline;
  ASSERT_OK(read_one(&buffer, &timeline));
  timeline.layer = "a \"layer\"";
  char *text = write_form(&timeline, PURR_TRACE_PERFETTO);
  expect_text(
      text,
      "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"layer\":\"a "
      "\\\"layer\\\"\",\"dropped_events\":0},\"traceEvents\":[\n"
      "{\"ph\":\"X\",\"name\":\"forward\",\"cat\":\"call\",\"pid\":1,\"tid\":1,\"ts\":0.000,\"dur\":10.000},\n"
      "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":2,\"tid\":2,\"args\":{\"name\":\"rank 0\"}},\n"
      "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":2,\"tid\":2,\"args\":{\"sort_index\":0}},\n"
      "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":2,\"tid\":2,\"args\":{\"name\":\"SM 002 block 2 pull\"}},\n"
      "{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":2,\"tid\":2,\"args\":{\"sort_index\":2}},\n"
      "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":2,\"tid\":3,\"args\":{\"name\":\"SM 007 block 0 loader\"}},\n"
      "{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":2,\"tid\":3,\"args\":{\"sort_index\":3}},\n"
      "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":2,\"tid\":4,\"args\":{\"name\":\"SM 007 block 0 consumer 0\"}},\n"
      "{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":2,\"tid\":4,\"args\":{\"sort_index\":4}},\n"
      "{\"ph\":\"X\",\"name\":\"pull\",\"cat\":\"communication\",\"pid\":2,\"tid\":2,\"ts\":5.000,\"dur\":3.000,"
      "\"args\":{\"expert\":3,\"row\":64,\"rank\":1}},\n"
      "{\"ph\":\"X\",\"name\":\"gather\",\"cat\":\"load\",\"pid\":2,\"tid\":3,\"ts\":0.500,\"dur\":1.500,"
      "\"args\":{\"expert\":3,\"row\":0}},\n"
      "{\"ph\":\"X\",\"name\":\"gate-up\",\"cat\":\"compute\",\"pid\":2,\"tid\":4,\"ts\":1.000,\"dur\":5.000,"
      "\"args\":{\"expert\":3,\"row\":0,\"column\":256}},\n"
      "{\"ph\":\"X\",\"name\":\"wait: data\",\"cat\":\"wait\",\"pid\":2,\"tid\":4,\"ts\":1.500,\"dur\":0.500},\n"
      "{\"ph\":\"X\",\"name\":\"epilogue\",\"cat\":\"epilogue\",\"pid\":2,\"tid\":4,\"ts\":6.000,\"dur\":1.000,"
      "\"args\":{\"expert\":3,\"row\":0,\"column\":256}}\n"
      "]}\n");
  free(text);
  purr__timeline_free(&timeline);
  free(buffer.header);
}

static void summary_is_exact(void) {
  buffer_t buffer = small_buffer();
  purr__timeline_t timeline;
  ASSERT_OK(read_one(&buffer, &timeline));
  timeline.layer = "small";
  char *text = write_form(&timeline, PURR_TRACE_JSON);
  /* SM 7 works from 0.5 us, when it gathers, to 7 us: idle 3.5. SM 2 works from 5 to 8 us: idle 7. Two of the three
   * microseconds of pulling lie beside a product or an epilogue. */
  expect_text(text,
              "{\n  \"layer\": \"small\",\n  \"num_ranks\": 1,\n  \"total_ns\": 10000,\n  \"num_processors\": 2,\n"
              "  \"num_tracks\": 3,\n  \"num_events\": 5,\n  \"num_dropped_events\": 0,\n"
              "  \"num_unfinished_tracks\": 0,\n  \"timers_disagree\": false,\n  \"kinds\": {\n"
              "    \"gather\": {\"group\": \"load\", \"num\": 1, \"ns\": 1500, \"longest_ns\": 1500},\n"
              "    \"gate-up\": {\"group\": \"compute\", \"num\": 1, \"ns\": 4500, \"longest_ns\": 5000},\n"
              "    \"epilogue\": {\"group\": \"epilogue\", \"num\": 1, \"ns\": 1000, \"longest_ns\": 1000},\n"
              "    \"wait: data\": {\"group\": \"wait\", \"num\": 1, \"ns\": 500, \"longest_ns\": 500},\n"
              "    \"pull\": {\"group\": \"communication\", \"num\": 1, \"ns\": 3000, \"longest_ns\": 3000}\n"
              "  },\n  \"compute_share\": 0.225000,\n  \"idle_share\": 0.525000,\n  \"tail_share\": 0.250000,\n"
              "  \"tail_ns\": 3000,\n  \"ranks\": [\n"
              "    {\"rank\": 0, \"num_processors\": 2, \"compute_ns\": 5500, \"communication_ns\": 3000, "
              "\"hidden_communication_ns\": 2000}\n  ],\n  \"processors\": [\n"
              "    {\"rank\": 0, \"number\": 2, \"compute_ns\": 0, \"idle_ns\": 7000, \"done_ns\": 8000},\n"
              "    {\"rank\": 0, \"number\": 7, \"compute_ns\": 4500, \"idle_ns\": 3500, \"done_ns\": 7000}\n"
              "  ]\n}\n");
  free(text);
  text = write_form(&timeline, PURR_TRACE_TEXT);
  CU_ASSERT(has(text, "Timeline of layer small: 10.0 us, 1 rank, 2 SMs, 5 events on 3 tracks\n"));
  CU_ASSERT(has(text, "  gate-up           compute                1       4.5 us    15.0 %       5.0 us\n"));
  CU_ASSERT(has(text, "  idle          52.5 %  of the SMs' time; from 35.0 % to 70.0 % of one\n"));
  CU_ASSERT(has(text, "the first is done 3.0 us before the end\n"));
  CU_ASSERT_PTR_NULL(strstr(text, "Incomplete"));
  free(text);
  purr__timeline_free(&timeline);
  free(buffer.header);
}

/* ---- the picture ---- */

/* Every element is closed by its own name, attributes are quoted, nothing is outside ASCII and known entities. */
static bool is_well_formed(const char *xml) {
  char open[16][16];
  int depth = 0;
  for (const char *c = xml; *c != '\0';) {
    if (*c != '<') {
      if (*c == '&' && strncmp(c, "&amp;", 5) != 0 && strncmp(c, "&lt;", 4) != 0) return false;
      if (*c == '>' || (depth == 0 && *c != '\n')) return false;
      c++;
      continue;
    }
    const bool closes = c[1] == '/';
    c += closes ? 2 : 1;
    const size_t length = strspn(c, "abcdefghijklmnopqrstuvwxyz");
    if (length == 0 || length > 15) return false;
    const char *name = c;
    c += length;
    bool in_quotes = false;
    for (; *c != '\0' && (in_quotes || *c != '>'); c++) {
      if (*c == '"') in_quotes = !in_quotes;
      if (*c == '<') return false;
    }
    if (*c != '>') return false;
    if (closes) {
      if (depth == 0 || strncmp(open[--depth], name, length) != 0 || open[depth][length] != '\0') return false;
    } else if (c[-1] != '/') {
      if (depth == 16) return false;
      memcpy(open[depth], name, length);
      open[depth++][length] = '\0';
    }
    c++;
  }
  return depth == 0;
}

static void picture_is_well_formed(void) {
  buffer_t buffer = small_buffer();
  purr__timeline_t timeline;
  ASSERT_OK(read_one(&buffer, &timeline));
  timeline.layer = "<a & \"b\"\n";
  char *text = write_form(&timeline, PURR_TRACE_SVG);
  CU_ASSERT(is_well_formed(text));
  CU_ASSERT(has(text, "&lt;a &amp; \"b\" </text>"));
  CU_ASSERT(has(text, "forward: 10 us, 1 rank, 2 SMs, 5 events</text>"));
  CU_ASSERT(has(text, ">SM 2</text>"));
  CU_ASSERT(has(text, ">gate-up</text>"));
  CU_ASSERT_PTR_NULL(strstr(text, ">slot sum</text>")); /* the legend has what occurs */
  /* 1000 to 1500 and 2000 to 6000 of 10000 ns, on 1400 pixels behind 84. */
  CU_ASSERT(has(text, "<path stroke=\"#2f6fb5\" stroke-width=\"28\" d=\"M224 "));
  CU_ASSERT(has(text, "h70M364 "));
  CU_ASSERT(has(text, "h560\"/>"));
  free(text);
  purr__timeline_free(&timeline);
  free(buffer.header);
}

/* As many tracks and events as a large GPU makes. */
static buffer_t large_buffer(uint32_t num_sms, uint32_t tiles) {
  uint64_t random = 1;
  buffer_t buffer = make_buffer(num_sms, 4 * tiles);
  for (uint32_t sm = 0; sm < num_sms; sm++) {
    purr__trace_track_t *loader = add_track(&buffer, sm, 0, sm, PURR__TRACE_ROLE_LOADER, 0, 10000u * tiles);
    purr__trace_track_t *consumers[2];
    for (uint32_t c = 0; c < 2; c++)
      consumers[c] = add_track(&buffer, sm, 1 + c, sm, PURR__TRACE_ROLE_CONSUMER_0 + c, 0, 10000u * tiles);
    uint64_t at = test_random_bits(&random) % 3000;
    for (uint32_t tile = 0; tile < tiles; tile++) {
      const uint64_t length = 5000 + test_random_bits(&random) % 4000;
      const uint16_t kind = tile < tiles / 2 ? PURR__TRACE_GATE_UP : PURR__TRACE_DOWN;
      add_event(&buffer, loader, tile % 3 ? PURR__TRACE_LOAD : PURR__TRACE_GATHER, at, at + length / 2, 0, 0, 0, -1);
      for (int c = 0; c < 2; c++) {
        add_event(&buffer, consumers[c], PURR__TRACE_WAIT_FULL, at + 100, at + 600, -1, -1, -1, -1);
        add_event(&buffer, consumers[c], kind, at, at + length, 0, 0, 0, -1);
        add_event(&buffer, consumers[c], PURR__TRACE_EPILOGUE, at + length, at + length + 700, 0, 0, 0, -1);
      }
      at += length + 700;
    }
  }
  return buffer;
}

static void picture_is_bounded(void) {
  const uint32_t tiles[] = {40, 900};
  for (int i = 0; i < 2; i++) {
    buffer_t buffer = large_buffer(132, tiles[i]);
    purr__timeline_t timeline;
    ASSERT_OK(read_one(&buffer, &timeline));
    timeline.layer = "large";
    char *text = write_form(&timeline, PURR_TRACE_SVG);
    CU_ASSERT(is_well_formed(text));
    CU_ASSERT(strlen(text) > 20000 && strlen(text) < 1200000);
    const char *path = getenv("PURR_TEST_PICTURE"); /* to look at it */
    FILE *file = path != NULL && i == 0 ? fopen(path, "w") : NULL;
    if (file != NULL) {
      fputs(text, file);
      fclose(file);
    }
    free(text);
    purr__timeline_free(&timeline);
    free(buffer.header);
  }
}

/* ---- clocks ---- */

static void clocks_become_one_time(void) {
  buffer_t buffer = make_buffer(2, 4);
  /* 1 GHz and 1.5 GHz; the second one's clock has counted long. */
  buffer.tracks[0] =
      (purr__trace_track_t){.clock_begin = 100, .ns_begin = 9000, .clock_end = 1100, .ns_end = 10000, .num_events = 1};
  buffer.events[0] = (purr__trace_event_t){.begin = 600, .end = 700, .kind = PURR__TRACE_DOWN, .rank = -1};
  const uint64_t late = (uint64_t)1 << 62;
  buffer.tracks[4] = (purr__trace_track_t){.clock_begin = late,
                                           .ns_begin = 9500,
                                           .clock_end = late + 3000,
                                           .ns_end = 11500,
                                           .processor = 1,
                                           .block = 1,
                                           .num_events = 1};
  buffer.events[16] =
      (purr__trace_event_t){.begin = late + 300, .end = late + 450, .kind = PURR__TRACE_DOWN, .rank = -1};
  purr__timeline_t timeline;
  ASSERT_OK(read_one(&buffer, &timeline));
  CU_ASSERT_EQUAL(timeline.length, 2500);
  CU_ASSERT_EQUAL(timeline.num_lanes, 2);
  CU_ASSERT_EQUAL(timeline.lanes[0].spans[0].begin, 500);
  CU_ASSERT_EQUAL(timeline.lanes[0].spans[0].end, 600);
  CU_ASSERT_EQUAL(timeline.lanes[1].spans[0].begin, 700);
  CU_ASSERT_EQUAL(timeline.lanes[1].spans[0].end, 800);
  purr__timeline_free(&timeline);
  /* Both anchors of the first in one tick: it takes the other's pace. */
  buffer.tracks[0].ns_end = 9000;
  ASSERT_OK(read_one(&buffer, &timeline));
  CU_ASSERT_EQUAL(timeline.lanes[0].spans[0].begin, 250);
  purr__timeline_free(&timeline);
  free(buffer.header);
}

static void ranks_stand_on_one_timeline(void) {
  buffer_t a = small_buffer(), b = small_buffer();
  for (uint32_t t = 0; t < b.header->num_tracks; t++)
    if (b.tracks[t].clock_begin != 0) {
      b.tracks[t].ns_begin += 4000;
      b.tracks[t].ns_end += 4000;
    }
  purr__trace_image_t images[2] = {{b.header, b.bytes, 1, 0}, {a.header, a.bytes, 0, 0}};
  purr__timeline_t timeline;
  ASSERT_OK(purr__timeline_read(context, images, 2, &timeline, &err));
  CU_ASSERT_EQUAL(timeline.length, 14000);
  CU_ASSERT_FALSE(timeline.was_aligned);
  CU_ASSERT_EQUAL(timeline.num_processors, 4);
  CU_ASSERT_EQUAL(timeline.lanes[0].rank, 0);
  CU_ASSERT_EQUAL(timeline.lanes[0].spans[0].begin, 5000);
  CU_ASSERT_EQUAL(timeline.lanes[3].rank, 1);
  CU_ASSERT_EQUAL(timeline.lanes[3].spans[0].begin, 9000);
  char *text = write_form(&timeline, PURR_TRACE_SVG);
  CU_ASSERT(is_well_formed(text));
  CU_ASSERT(has(text, ">rank 1</text>"));
  free(text);
  purr__timeline_free(&timeline);

  /* Two devices whose timers have nothing in common: both begin at 0, and that is said. */
  images[0].device = 1;
  for (uint32_t t = 0; t < b.header->num_tracks; t++)
    if (b.tracks[t].clock_begin != 0) {
      b.tracks[t].ns_begin += (uint64_t)1 << 60;
      b.tracks[t].ns_end += (uint64_t)1 << 60;
    }
  ASSERT_OK(purr__timeline_read(context, images, 2, &timeline, &err));
  CU_ASSERT(timeline.was_aligned);
  CU_ASSERT_EQUAL(timeline.length, 10000);
  CU_ASSERT_EQUAL(timeline.lanes[3].spans[0].begin, 5000);
  text = write_form(&timeline, PURR_TRACE_TEXT);
  CU_ASSERT(has(text, "The devices' timers disagree"));
  free(text);
  purr__timeline_free(&timeline);
  /* On one device that cannot be. */
  images[0].device = 0;
  ASSERT_STATUS(PURR_STATUS_INVALID_STATE, purr__timeline_read(context, images, 2, &timeline, &err));
  free(a.header);
  free(b.header);
}

/* ---- what lies within each other ---- */

static void segments_are_the_innermost(void) {
  buffer_t buffer = make_buffer(1, 16);
  purr__trace_track_t *track = add_track(&buffer, 0, 0, 0, PURR__TRACE_ROLE_BLOCK, 0, 1000);
  add_event(&buffer, track, PURR__TRACE_WAIT_FULL, 100, 200, -1, -1, -1, -1);
  add_event(&buffer, track, PURR__TRACE_WAIT_EMPTY, 200, 300, -1, -1, -1, -1);
  add_event(&buffer, track, PURR__TRACE_GATE_UP, 100, 500, -1, -1, -1, -1); /* begins with its first wait */
  add_event(&buffer, track, PURR__TRACE_TASK, 0, 600, -1, -1, -1, -1);
  add_event(&buffer, track, PURR__TRACE_DOWN, 550, 800, -1, -1, -1, -1); /* reaches out of the task */
  add_event(&buffer, track, PURR__TRACE_DOWN, 900, 900, -1, -1, -1, -1); /* lasts for nothing */
  purr__timeline_t timeline;
  ASSERT_OK(read_one(&buffer, &timeline));
  const purr__segment_t expected[] = {{0, 100, PURR__TRACE_TASK},         {100, 200, PURR__TRACE_WAIT_FULL},
                                      {200, 300, PURR__TRACE_WAIT_EMPTY}, {300, 500, PURR__TRACE_GATE_UP},
                                      {500, 550, PURR__TRACE_TASK},       {550, 800, PURR__TRACE_DOWN}};
  const purr__lane_t *lane = &timeline.lanes[0];
  CU_ASSERT_EQUAL(lane->num_segments, 6);
  for (int i = 0; i < 6 && i < lane->num_segments; i++) {
    CU_ASSERT_EQUAL(lane->segments[i].begin, expected[i].begin);
    CU_ASSERT_EQUAL(lane->segments[i].end, expected[i].end);
    CU_ASSERT_EQUAL(lane->segments[i].kind, expected[i].kind);
  }
  purr__timeline_free(&timeline);
  free(buffer.header);
}

static void intervals_are_sets(void) {
  purr__interval_t a[] = {{50, 60}, {0, 10}, {10, 20}, {55, 58}, {59, 70}}, b[] = {{5, 15}, {58, 100}}, scratch[5];
  const int64_t num = purr__intervals_unite(a, scratch, 5);
  CU_ASSERT_EQUAL(num, 2);
  CU_ASSERT(a[0].begin == 0 && a[0].end == 20 && a[1].begin == 50 && a[1].end == 70);
  CU_ASSERT_EQUAL(purr__intervals_length(a, num), 40);
  CU_ASSERT_EQUAL(purr__intervals_common(a, num, b, 2), 22);
  CU_ASSERT_EQUAL(purr__intervals_common(a, num, b, 0), 0);
  CU_ASSERT_EQUAL(purr__intervals_unite(a, scratch, 0), 0);
}

/* ---- what is missing, and what is wrong ---- */

static void loss_is_reported(void) {
  buffer_t buffer = small_buffer();
  buffer.tracks[1].num_dropped = 17;
  add_track(&buffer, 1, 0, 9, PURR__TRACE_ROLE_LOADER, 0, 100)->clock_end = 0;
  purr__timeline_t timeline;
  ASSERT_OK(read_one(&buffer, &timeline));
  CU_ASSERT_EQUAL(timeline.num_dropped, 17);
  CU_ASSERT_EQUAL(timeline.num_unfinished, 1);
  CU_ASSERT_EQUAL(timeline.num_lanes, 3);
  char *text = write_form(&timeline, PURR_TRACE_TEXT);
  CU_ASSERT(
      has(text, "Incomplete: 17 events found no room; ask for more (purr_trace_desc_t.events_per_track, --events).\n"));
  CU_ASSERT(has(text, "Incomplete: 1 tracks have no end and were left out; the call was cut short.\n"));
  free(text);
  text = write_form(&timeline, PURR_TRACE_SVG);
  CU_ASSERT(has(text, "; incomplete: 17 events and 1 tracks are missing"));
  free(text);
  text = write_form(&timeline, PURR_TRACE_PERFETTO);
  CU_ASSERT(has(text, "\"dropped_events\":17}"));
  free(text);
  purr__timeline_free(&timeline);
  free(buffer.header);
}

static void expect_damaged(const buffer_t *buffer, const char *what) {
  purr__timeline_t timeline;
  ASSERT_STATUS(PURR_STATUS_INVALID_STATE, read_one(buffer, &timeline));
  CU_ASSERT(has(err.message, what));
  CU_ASSERT(has(err.message, "rank 0"));
}

static void damage_is_refused(void) {
  buffer_t b = small_buffer();
  purr__trace_track_t *track = &b.tracks[1];
  purr__trace_event_t *event = &b.events[8];
#define DAMAGED(place, value, what)          \
  do {                                       \
    const __typeof__(place) before_ = place; \
    place = value;                           \
    expect_damaged(&b, what);                \
    place = before_;                         \
  } while (0)
  DAMAGED(b.header->magic, 0, "does not begin as a trace does");
  DAMAGED(b.header->layout, 99, "another version's");
  DAMAGED(b.header->num_tracks, UINT32_MAX, "do not fit");
  DAMAGED(b.header->events_per_track, UINT32_MAX, "do not fit");
  DAMAGED(b.bytes, b.bytes - 1, "do not fit");
  DAMAGED(b.bytes, 10, "does not begin as a trace does");
  DAMAGED(track->num_events, 9, "more events than room");
  DAMAGED(track->role, PURR__NUM_TRACE_ROLES, "unknown role");
  DAMAGED(track->clock_end, track->clock_begin - 1, "ends before it begins");
  DAMAGED(track->ns_end, track->ns_begin - 1, "ends before it begins");
  DAMAGED(track->ns_end, UINT64_MAX, "lasts for hours");
  DAMAGED(event->kind, PURR__NUM_TRACE_KINDS, "unknown kind");
  DAMAGED(event->end, event->begin - 1, "outside its track");
  DAMAGED(event->begin, track->clock_begin - 1, "outside its track");
  DAMAGED(event->end, track->clock_end + 1, "outside its track");
  DAMAGED(b.header->num_tracks, 0, "nothing was recorded");
#undef DAMAGED
  purr__timeline_t timeline;
  ASSERT_OK(read_one(&b, &timeline));
  purr__timeline_free(&timeline);
  free(b.header);
}

/* Any bytes: an error, or a timeline that can be written. */
static void garbage_does_no_harm(void) {
  uint64_t random = 42;
  int num_read = 0;
  for (int i = 0; i < 20000; i++) {
    buffer_t buffer = small_buffer();
    const uint64_t first = i % 2 ? sizeof *buffer.header : 0; /* half of them get past the header */
    for (int j = 0; j < 1 + i % 5; j++) {
      unsigned char *bytes = (unsigned char *)buffer.header;
      const uint64_t at = first + test_random_bits(&random) % (buffer.bytes - first);
      const unsigned byte = i % 3 ? (unsigned)test_random_bits(&random) : bytes[at] ^ 1u << i % 8;
      bytes[at] = (unsigned char)(byte & 0xFF);
    }
    purr__timeline_t timeline;
    const purr_status_t status = read_one(&buffer, &timeline);
    if (status == PURR_STATUS_OK) {
      num_read++;
      for (int32_t format = PURR_TRACE_TEXT; format <= PURR_TRACE_SVG && i % 16 == 0; format++)
        free(write_form(&timeline, format));
      purr__timeline_free(&timeline);
    } else {
      CU_ASSERT_EQUAL(status, PURR_STATUS_INVALID_STATE);
    }
    free(buffer.header);
  }
  CU_ASSERT(num_read > 100);
}

/* ---- the host backend ---- */

static test_problem_t *problem;

static void run_ranks(int num_ranks, int32_t precision) {
  const test_run_t run = {.max_tokens = 64, .precision = precision, .inference = true};
  problem = test_random(3, 40, 64, 32, 4, 2, 32, true);
  purr_config_t *config = NULL;
  purr_plan_t *plan = NULL;
  purr_layer_desc_t layer = test_layer_desc(problem, &run);
  ASSERT_OK(purr_config_create(context, &layer, &config, &err));
  const purr_plan_desc_t desc = {.struct_size = sizeof desc, .num_ranks = num_ranks};
  ASSERT_OK(purr_plan_create(context, config, &desc, &plan, &err));
  purr_trace_t *trace = NULL;
  ASSERT_OK(purr_trace_create(plan, NULL, &trace, &err));
  uint64_t length;
  ASSERT_STATUS(PURR_STATUS_INVALID_STATE,
                purr_trace_write((const purr_trace_t *[]){trace}, 1, PURR_TRACE_TEXT, NULL, 0, &length, &err));
  CU_ASSERT(has(err.message, "nothing was recorded"));
  if (num_ranks == 1) {
    test_rank_t rank = {.problem = problem, .run = &run, .context = context, .plan = plan};
    test_rank_prepare(&rank);
    ASSERT_OK(test_rank_create_objects(&rank, &err));
    ASSERT_OK(test_rank_forward(&rank, &err));
    const uint64_t output_bytes = (uint64_t)(rank.tensor.output.shape[0] * 64) * 2;
    void *before = malloc(output_bytes);
    memcpy(before, rank.tensor.output.data, output_bytes);
    test_rank_poison(&rank);
    rank.forward.trace = trace;
    for (int i = 0; i < 2; i++) ASSERT_OK(test_rank_forward(&rank, &err)); /* the second overwrites the first */
    CU_ASSERT_EQUAL(memcmp(before, rank.tensor.output.data, output_bytes), 0);
    free(before);
    test_rank_destroy_objects(&rank);
    test_rank_free(&rank);
    for (int32_t format = PURR_TRACE_TEXT; format <= PURR_TRACE_SVG; format++) {
      const purr_trace_t *traces[] = {trace};
      ASSERT_OK(purr_trace_write(traces, 1, format, NULL, 0, &length, &err));
      char *text = malloc(length + 1);
      ASSERT_STATUS(PURR_STATUS_BUFFER_TOO_SMALL, purr_trace_write(traces, 1, format, text, length, NULL, &err));
      ASSERT_OK(purr_trace_write(traces, 1, format, text, length + 1, &length, &err));
      CU_ASSERT_EQUAL(strlen(text), length);
      for (int i = 0; i < 7; i++)
        CU_ASSERT(has(text, ((const char *[]){"gather", "gate-up", "down", "shared gate-up", "shared down", "slot sum",
                                              precision == PURR_PRECISION_MXFP8 ? "quantize" : "schedule"})[i]));
      if (format == PURR_TRACE_SVG) CU_ASSERT(is_well_formed(text));
      free(text);
    }
  }
  purr_trace_destroy(trace);
  purr_plan_destroy(plan);
  purr_config_destroy(config);
  test_problem_free(problem);
}

static void host_records(void) {
  run_ranks(1, PURR_PRECISION_BF16);
  run_ranks(1, PURR_PRECISION_MXFP8);
  run_ranks(2, PURR_PRECISION_BF16);
}

static void misuse_is_refused(void) {
  const test_run_t run = {.max_tokens = 8, .inference = true};
  problem = test_fixture_f(5, 32, 16, 4, 2, 0);
  purr_config_t *config;
  purr_plan_t *plan;
  purr_layer_desc_t layer = test_layer_desc(problem, &run);
  ASSERT_OK(purr_config_create(context, &layer, &config, &err));
  ASSERT_OK(purr_plan_create(context, config, NULL, &plan, &err));
  uint64_t bytes = 0, more = 0;
  purr_trace_desc_t desc = PURR_TRACE_DESC_INIT;
  ASSERT_OK(purr_trace_query(plan, NULL, &bytes, &err));
  desc.events_per_track = 2;
  ASSERT_OK(purr_trace_query(plan, &desc, &more, &err));
  CU_ASSERT_EQUAL(more, 64 + 3 * (64 + 2 * 32));
  CU_ASSERT(bytes > more);
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_trace_query(plan, NULL, NULL, &err));
  purr_trace_t *trace = NULL;
  desc.events_per_track = -1;
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_trace_create(plan, &desc, &trace, &err));
  desc.events_per_track = ((int64_t)1 << 20) + 1;
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_trace_create(plan, &desc, &trace, &err));
  desc.events_per_track = 2;
  desc.memory = aligned_alloc(256, 1024);
  desc.bytes = more - 1;
  ASSERT_STATUS(PURR_STATUS_BUFFER_TOO_SMALL, purr_trace_create(plan, &desc, &trace, &err));
  CU_ASSERT_PTR_NULL(trace);
  desc.bytes = 1024;
  desc.memory = (char *)desc.memory + 64;
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_trace_create(plan, &desc, &trace, &err));
  desc.memory = (char *)desc.memory - 64;
  ASSERT_OK(purr_trace_create(plan, &desc, &trace, &err));

  /* Room for two events a thread: the others are counted. */
  test_rank_t rank = {.problem = problem, .run = &run, .context = context, .plan = plan};
  test_rank_prepare(&rank);
  ASSERT_OK(test_rank_create_objects(&rank, &err));
  rank.forward.trace = trace;
  ASSERT_OK(test_rank_forward(&rank, &err));
  const purr_trace_t *twice[] = {trace, trace};
  char text[8192];
  ASSERT_OK(purr_trace_write(twice, 1, PURR_TRACE_TEXT, text, sizeof text, NULL, &err));
  CU_ASSERT(has(text, "found no room"));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_trace_write(twice, 2, PURR_TRACE_TEXT, text, 1, NULL, &err));
  CU_ASSERT(has(err.message, "both of rank 0"));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_trace_write(twice, 0, PURR_TRACE_TEXT, text, 1, NULL, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_trace_write(NULL, 1, PURR_TRACE_TEXT, text, 1, NULL, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_trace_write(twice, 1, 4, text, sizeof text, NULL, &err));
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, purr_trace_write(twice, 1, -1, text, sizeof text, NULL, &err));
  rank.forward.trace = (purr_trace_t *)plan; /* another handle */
  ASSERT_STATUS(PURR_STATUS_INVALID_ARGUMENT, test_rank_forward(&rank, &err));
  purr_trace_destroy(NULL);
  purr_trace_destroy(trace);
  free(desc.memory);
  test_rank_destroy_objects(&rank);
  test_rank_free(&rank);
  purr_plan_destroy(plan);
  purr_config_destroy(config);
  test_problem_free(problem);
}

/* ---- on a driver without a GPU ---- */

/* As much of a plan as a trace looks at. */
static purr_plan_t *plan_on_fake(int backend, const char *name) {
  purr_context_t *other = fake_cuda_context();
  purr__device_t *device = NULL;
  void *object = NULL;
  CU_ASSERT_EQUAL_FATAL(purr__device_get(other, 0, &device, &err), PURR_STATUS_OK);
  CU_ASSERT_EQUAL_FATAL(purr__object_create(other, PURR__PLAN, sizeof(purr_plan_t), NULL, &object, &err),
                        PURR_STATUS_OK);
  purr_plan_t *plan = object;
  plan->device = device;
  plan->backend = backend;
  plan->name = name;
  return plan;
}

static void drop_plan(purr_plan_t *plan) {
  purr_context_t *other = plan->object.context;
  purr__object_release(plan);
  purr_context_destroy(other);
}

static void launches_are_recorded(void) {
  fake_cuda_t *fake = fake_cuda_open();
  purr_plan_t *plan = plan_on_fake(PURR_BACKEND_STAGED, "launches");
  purr__device_t *device = plan->device;
  purr_trace_t *trace = NULL;
  uint64_t bytes = 1;
  ASSERT_OK(purr_trace_query(plan, NULL, &bytes, &err));
  CU_ASSERT_EQUAL(bytes, 0);
  for (int fails = 0; fails < 17; fails++) {
    fake->failing_call = "cuEventCreate";
    fake->failing_result = CUDA_ERROR_OUT_OF_MEMORY;
    fake->failing_after = fails;
    CU_ASSERT_NOT_EQUAL(purr_trace_create(plan, NULL, &trace, &err), PURR_STATUS_OK);
    CU_ASSERT_PTR_NULL(trace);
    CU_ASSERT_EQUAL(fake->num_events, 0);
  }
  fake->failing_call = NULL;
  REQUIRE_OK(purr_trace_create(plan, NULL, &trace, &err));
  trace->rank = 0;
  char text[16384];
  const purr_trace_t *traces[] = {trace};
  ASSERT_STATUS(PURR_STATUS_INVALID_STATE, purr_trace_write(traces, 1, PURR_TRACE_TEXT, text, sizeof text, NULL, &err));
  ASSERT_OK(purr__device_enter(device, &err));
  for (int i = 0; i < 2; i++) { /* the second call replaces the first */
    ASSERT_OK(purr__trace_launches_start(trace, NULL, &err));
    ASSERT_OK(purr__trace_launched(trace, PURR__TRACE_SCHEDULE, NULL, &err));
    ASSERT_OK(purr__trace_launched(trace, PURR__TRACE_GATE_UP, NULL, &err));
  }
  ASSERT_OK(purr__trace_launches_start(NULL, NULL, &err));
  ASSERT_OK(purr__trace_launched(NULL, PURR__TRACE_DOWN, NULL, &err));
  purr__device_leave(device);
  ASSERT_OK(purr_trace_write(traces, 1, PURR_TRACE_TEXT, text, sizeof text, NULL, &err));
  CU_ASSERT(has(text, "Timeline of layer launches: 1000.0 us, 1 rank, 1 stream, 2 events on 1 track\n"));
  CU_ASSERT(has(text, "  schedule          other                  1    1000.0 us   100.0 %"));
  ASSERT_OK(purr_trace_write(traces, 1, PURR_TRACE_PERFETTO, text, sizeof text, NULL, &err));
  CU_ASSERT(has(text, "{\"name\":\"stream 0\"}"));
  ASSERT_OK(purr_trace_write(traces, 1, PURR_TRACE_SVG, text, sizeof text, NULL, &err));
  CU_ASSERT(has(text, ">stream 0</text>"));
  /* More than there is room for: the last ones are left out. */
  ASSERT_OK(purr__device_enter(device, &err));
  ASSERT_OK(purr__trace_launches_start(trace, NULL, &err));
  for (int i = 0; i < 40; i++) ASSERT_OK(purr__trace_launched(trace, PURR__TRACE_DOWN, NULL, &err));
  purr__device_leave(device);
  ASSERT_OK(purr_trace_write(traces, 1, PURR_TRACE_TEXT, text, sizeof text, NULL, &err));
  CU_ASSERT(has(text, "16 events on 1 track"));
  fake->failing_call = "cuEventElapsedTime"; /* a call that has not ended */
  fake->failing_result = CUDA_ERROR_NOT_READY;
  fake->failing_after = 0;
  CU_ASSERT_NOT_EQUAL(purr_trace_write(traces, 1, PURR_TRACE_TEXT, text, sizeof text, NULL, &err), PURR_STATUS_OK);
  fake->failing_call = NULL;
  purr_trace_destroy(trace);
  CU_ASSERT_EQUAL(fake->num_events, 0);
  CU_ASSERT_EQUAL(fake->num_unsafe_calls, 0);
  CU_ASSERT_EQUAL(fake->num_pushed, 0);
  drop_plan(plan);
}

/* A kernel's buffer in device memory, which is ordinary memory here. */
static void device_memory_is_fetched(void) {
  fake_cuda_t *fake = fake_cuda_open();
  purr_plan_t *plan = plan_on_fake(PURR_BACKEND_HOST, "device"); /* as any whose threads record */
  purr__device_t *device = plan->device;
  void *memory_of_kernel = NULL;
  purr_trace_desc_t desc = PURR_TRACE_DESC_INIT;
  desc.events_per_track = 8;
  purr_trace_t *trace = NULL;
  REQUIRE_OK(purr_trace_create(plan, &desc, &trace, &err));
  ASSERT_OK(purr__device_enter(device, &err));
  ASSERT_STATUS(PURR_STATUS_UNSUPPORTED, purr__trace_start(trace, fake->num_sms + 1, NULL, &memory_of_kernel, &err));
  ASSERT_OK(purr__trace_start(trace, fake->num_sms, NULL, &memory_of_kernel, &err));
  purr__device_leave(device);
  trace->rank = 3;
  buffer_t made = small_buffer(), buffer = {.header = memory_of_kernel};
  buffer.tracks = (purr__trace_track_t *)(buffer.header + 1);
  buffer.events = (purr__trace_event_t *)(buffer.tracks + buffer.header->num_tracks);
  memcpy(buffer.tracks, made.tracks, made.header->num_tracks * sizeof *made.tracks);
  memcpy(buffer.events, made.events, made.header->num_tracks * 8 * sizeof *made.events);
  free(made.header);
  char text[8192];
  const purr_trace_t *traces[] = {trace};
  ASSERT_OK(purr_trace_write(traces, 1, PURR_TRACE_JSON, text, sizeof text, NULL, &err));
  CU_ASSERT(has(text, "\"num_events\": 5"));
  CU_ASSERT(has(text, "{\"rank\": 3, \"number\": 7, \"compute_ns\": 4500, \"idle_ns\": 3500, \"done_ns\": 7000}"));
  ASSERT_OK(purr__device_enter(device, &err));
  ASSERT_OK(purr__trace_start(trace, 1, NULL, &memory_of_kernel, &err)); /* the next call begins with nothing */
  purr__device_leave(device);
  ASSERT_STATUS(PURR_STATUS_INVALID_STATE, purr_trace_write(traces, 1, PURR_TRACE_JSON, text, sizeof text, NULL, &err));
  purr_trace_destroy(trace);
  CU_ASSERT_EQUAL(fake->num_allocations, 0);
  drop_plan(plan);
}

int main(void) {
  return purr_test_main("trace", (purr_test_t[]){
                                     {"a context", set_up},
                                     {"the file for Perfetto is exact", perfetto_is_exact},
                                     {"the summary is exact", summary_is_exact},
                                     {"the picture is well-formed", picture_is_well_formed},
                                     {"the picture is bounded", picture_is_bounded},
                                     {"clocks become one time", clocks_become_one_time},
                                     {"ranks stand on one timeline", ranks_stand_on_one_timeline},
                                     {"segments are the innermost", segments_are_the_innermost},
                                     {"intervals are sets", intervals_are_sets},
                                     {"loss is reported", loss_is_reported},
                                     {"damage is refused", damage_is_refused},
                                     {"garbage does no harm", garbage_does_no_harm},
                                     {"the host backend records", host_records},
                                     {"misuse is refused", misuse_is_refused},
                                     {"launches are recorded", launches_are_recorded},
                                     {"device memory is fetched", device_memory_is_fetched},
                                     {"nothing is kept", tear_down},
                                     {0},
                                 });
}
