/* Any bytes as the memory that two ranks' kernels wrote their timelines to: refused with one sentence, or read to spans
 * in order that every form can write. */
#include "fuzz.h"
#include "trace/trace.h"

static void check_lane(const purr__timeline_t *timeline, const purr__lane_t *lane) {
  int64_t at = 0;
  FUZZ_CHECK(lane->role < PURR__NUM_TRACE_ROLES);
  FUZZ_CHECK(lane->processor_idx >= 0 && lane->processor_idx < timeline->num_processors);
  FUZZ_CHECK(lane->num_segments <= 2 * lane->num_spans);
  for (int64_t i = 0; i < lane->num_spans; i++) {
    const purr__span_t *span = &lane->spans[i];
    FUZZ_CHECK(span->kind >= 0 && span->kind < PURR__NUM_TRACE_KINDS);
    FUZZ_CHECK(span->begin >= at && span->begin <= span->end && span->end <= timeline->length);
    at = span->begin;
  }
  at = 0;
  for (int64_t i = 0; i < lane->num_segments; i++) {
    FUZZ_CHECK(lane->segments[i].begin >= at && lane->segments[i].begin < lane->segments[i].end);
    at = lane->segments[i].end;
  }
}

static void write_all(const purr__timeline_t *timeline) {
  for (int form = PURR_TRACE_TEXT; form <= PURR_TRACE_SVG; form++) {
    purr__text_t text = {.context = fuzz_context()};
    purr_status_t status = PURR_STATUS_OK;
    if (form == PURR_TRACE_PERFETTO)
      purr__timeline_add_perfetto(&text, timeline);
    else if (form == PURR_TRACE_SVG)
      status = purr__timeline_add_svg(&text, timeline, NULL);
    else
      status = purr__timeline_add_summary(&text, timeline, form == PURR_TRACE_JSON, NULL);
    FUZZ_CHECK(status == PURR_STATUS_OK && !text.failed && text.length > 0);
    purr__text_free(&text);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  const uint64_t held_bytes = fuzz_held_bytes();
  const size_t half = num_bytes / 2 / 8 * 8; /* as aligned as the structs want it */
  purr__trace_image_t images[2];
  for (int i = 0; i < 2; i++) {
    void *memory = fuzz_allocate(half);
    memcpy(memory, data + (size_t)i * half, half);
    images[i] = (purr__trace_image_t){.memory = memory, .bytes = half, .rank = i, .device = i};
  }
  for (int num_images = 1; num_images <= 2; num_images++) {
    purr__timeline_t timeline;
    purr_error_t err = PURR_ERROR_INIT;
    const purr_status_t status = purr__timeline_read(fuzz_context(), images, num_images, &timeline, &err);
    if (status == PURR_STATUS_OK) {
      for (int64_t i = 0; i < timeline.num_lanes; i++) check_lane(&timeline, &timeline.lanes[i]);
      write_all(&timeline);
      purr__timeline_free(&timeline);
    } else {
      fuzz_check_error(status, &err);
    }
  }
  for (int i = 0; i < 2; i++) free((void *)images[i].memory);
  FUZZ_CHECK(fuzz_held_bytes() == held_bytes);
  return 0;
}
