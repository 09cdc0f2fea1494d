/* The timeline as a picture: above, how many processors compute and how many communicate; below, a row for each
 * processor with a stripe for each of its tracks.
 *
 * Its size is bounded, whatever the number of events: a stripe is cut into cells of a pixel or a few, a cell has the
 * colour of what filled most of it, and equal cells that touch are one line. All lines of a colour are one path. */
#include "trace/trace.h"

enum {
  LEFT = 84,
  PLOT_WIDTH = 1400,
  RIGHT = 16,
  TOP = 84, /* title and legend */
  CHART_HEIGHT = 56,
  GAP = 22,
  AXIS_HEIGHT = 34,
  MOST_HEIGHT = 1600, /* of all stripes together, unless they would be too thin */
  MOST_LINES = 60000,
};
#define BACKGROUND 0xFF /* a cell in which nothing happens */

typedef struct picture {
  const purr__timeline_t *timeline;
  purr__text_t *text;
  int64_t length; /* ns, at least 1 */
  int cell;       /* pixels */
  int num_cells;
  int stripe_height, processor_gap;
  int *tops;                          /* [processors]: y of the first stripe */
  int bottom;                         /* of the last one */
  uint8_t *cells;                     /* [lanes][num_cells]: kinds */
  int64_t *filled;                    /* [kinds]: ns of one cell */
  int32_t *computing, *communicating; /* [PLOT_WIDTH]: processors */
} picture_t;

/* ---- cells ---- */

static int64_t cell_begin(const picture_t *picture, int cell) {
  return (int64_t)((double)picture->length * cell * picture->cell / PLOT_WIDTH);
}

/* What fills most of a cell, nothing included. Time passes for `*at`, which goes along the segments. */
static int cell_kind(const picture_t *picture, const purr__lane_t *lane, int cell, int64_t *at) {
  const int64_t begin = cell_begin(picture, cell), end = cell_begin(picture, cell + 1);
  int64_t rest = end - begin, most = 0;
  int kind = BACKGROUND;
  memset(picture->filled, 0, PURR__NUM_TRACE_KINDS * sizeof *picture->filled);
  while (*at < lane->num_segments && lane->segments[*at].end <= begin) ++*at;
  for (int64_t i = *at; i < lane->num_segments && lane->segments[i].begin < end; i++) {
    const purr__segment_t *segment = &lane->segments[i];
    const int64_t part = purr__min(segment->end, end) - purr__max(segment->begin, begin);
    rest -= part;
    picture->filled[segment->kind] += part;
    if (picture->filled[segment->kind] > most) {
      most = picture->filled[segment->kind];
      kind = segment->kind;
    }
  }
  return rest > most ? BACKGROUND : kind;
}

static int64_t fill_cells(picture_t *picture, int cell_pixels) {
  picture->cell = cell_pixels;
  picture->num_cells = PLOT_WIDTH / cell_pixels;
  int64_t num_lines = 0;
  for (int64_t l = 0; l < picture->timeline->num_lanes; l++) {
    uint8_t *cells = picture->cells + l * PLOT_WIDTH;
    int64_t at = 0;
    for (int c = 0; c < picture->num_cells; c++) {
      cells[c] = (uint8_t)cell_kind(picture, &picture->timeline->lanes[l], c, &at);
      num_lines += cells[c] != BACKGROUND && (c == 0 || cells[c] != cells[c - 1]);
    }
  }
  return num_lines;
}

/* ---- parts of the picture ---- */

/* Each rank has a chart above its rows. */
static void place_processors(picture_t *picture) {
  const purr__timeline_t *timeline = picture->timeline;
  int y = TOP;
  for (int64_t i = 0; i < timeline->num_processors; i++) {
    const purr__processor_t *processor = &timeline->processors[i];
    const bool is_first = i == 0, is_new_rank = is_first || processor->rank != timeline->processors[i - 1].rank;
    if (is_new_rank) y += (is_first ? 0 : GAP) + CHART_HEIGHT + GAP;
    picture->tops[i] = y;
    y += (int)processor->num_lanes * picture->stripe_height + picture->processor_gap;
  }
  picture->bottom = y;
}

static void add_time(purr__text_t *text, int64_t ns) {
  const struct {
    int64_t unit;
    const char *name;
  } units[] = {{1000000000, "s"}, {1000000, "ms"}, {1000, "us"}, {1, "ns"}};
  int i = 0;
  while (i < 3 && ns < units[i].unit) i++;
  const int64_t thousandths = (int64_t)((double)ns * 1000.0 / (double)units[i].unit + 0.5);
  purr__text_add(text, "%lld", (long long)(thousandths / 1000));
  if (thousandths % 1000 != 0) {
    int digits = 3, rest = (int)(thousandths % 1000);
    while (rest % 10 == 0) {
      rest /= 10;
      digits--;
    }
    purr__text_add(text, ".%0*d", digits, rest);
  }
  purr__text_add(text, " %s", units[i].name);
}

static void add_escaped(purr__text_t *text, const char *value) {
  for (; *value != '\0'; value++) switch (*value) {
      case '<':
        purr__text_add(text, "&lt;");
        break;
      case '&':
        purr__text_add(text, "&amp;");
        break;
      default: /* control characters are not XML, even escaped */
        purr__text_add(text, "%c", (unsigned char)*value < 0x20 ? ' ' : *value);
    }
}

static void add_head(const picture_t *picture, int height) {
  const purr__timeline_t *timeline = picture->timeline;
  purr__text_t *text = picture->text;
  const int width = LEFT + PLOT_WIDTH + RIGHT;
  purr__text_add(text,
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
                 "font-family=\"sans-serif\" font-size=\"11\">\n"
                 "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n"
                 "<text x=\"%d\" y=\"22\" font-size=\"15\" font-weight=\"bold\">",
                 width, height, width, height, LEFT);
  add_escaped(text, timeline->layer);
  purr__text_add(text, "</text>\n<text x=\"%d\" y=\"40\">forward: ", LEFT);
  add_time(text, timeline->length);
  purr__text_add(text, ", %d rank%s, %lld %ss, %lld events", timeline->num_ranks, timeline->num_ranks == 1 ? "" : "s",
                 (long long)timeline->num_processors, timeline->noun, (long long)timeline->num_spans);
  if (timeline->num_dropped > 0 || timeline->num_unfinished > 0)
    purr__text_add(text, "; incomplete: %llu events and %lld tracks are missing",
                   (unsigned long long)timeline->num_dropped, (long long)timeline->num_unfinished);
  if (timeline->was_aligned) purr__text_add(text, "; the devices' timers disagree, each begins at 0");
  purr__text_add(text, "</text>\n");
}

static void add_legend(const picture_t *picture) {
  purr__text_t *text = picture->text;
  bool occurs[PURR__NUM_TRACE_KINDS] = {false};
  for (int64_t i = 0; i < picture->timeline->num_lanes; i++)
    for (int64_t j = 0; j < picture->timeline->lanes[i].num_spans; j++)
      occurs[picture->timeline->lanes[i].spans[j].kind] = true;
  int x = LEFT;
  for (int kind = 0; kind < PURR__NUM_TRACE_KINDS; kind++) {
    if (!occurs[kind]) continue;
    const purr__trace_kind_info_t *info = &purr__trace_kinds[kind];
    purr__text_add(text,
                   "<rect x=\"%d\" y=\"52\" width=\"11\" height=\"11\" fill=\"%s\" stroke=\"#999999\" "
                   "stroke-width=\"0.5\"/><text x=\"%d\" y=\"61\">%s</text>\n",
                   x, info->colour, x + 15, info->label);
    x += 27 + 7 * (int)strlen(info->label);
  }
}

/* The smallest of 1, 2, 5, 10, ... that cuts the length into at most twelve. */
static int64_t tick_length(int64_t length) {
  int64_t tick = 1;
  for (int step = 0; length / tick > 12; step++) tick = step % 3 == 1 ? tick / 2 * 5 : tick * 2;
  return tick;
}

static void add_axis(const picture_t *picture, int bottom) {
  purr__text_t *text = picture->text;
  const int64_t tick = tick_length(picture->length);
  purr__text_add(text, "<path d=\"");
  for (int64_t t = 0; t <= picture->length; t += tick)
    purr__text_add(text, "M%d %dV%d", LEFT + (int)((double)PLOT_WIDTH * (double)t / (double)picture->length), TOP,
                   bottom + 5);
  purr__text_add(text, "\" fill=\"none\" stroke=\"#d8d8d8\"/>\n");
  for (int64_t t = 0; t <= picture->length; t += tick) {
    const int x = LEFT + (int)((double)PLOT_WIDTH * (double)t / (double)picture->length);
    purr__text_add(text, "<text x=\"%d\" y=\"%d\" text-anchor=\"%s\">", x, bottom + 18,
                   x > LEFT + PLOT_WIDTH - 24 ? "end" : "middle");
    add_time(text, t);
    purr__text_add(text, "</text>\n");
  }
}

/* One path for each kind: lines as high as a stripe. */
static void add_stripes(const picture_t *picture) {
  const purr__timeline_t *timeline = picture->timeline;
  purr__text_t *text = picture->text;
  for (int kind = 0; kind < PURR__NUM_TRACE_KINDS; kind++) {
    bool is_open = false;
    for (int64_t l = 0; l < timeline->num_lanes; l++) {
      const purr__lane_t *lane = &timeline->lanes[l];
      const uint8_t *cells = picture->cells + l * PLOT_WIDTH;
      int y = -1;
      for (int c = 0; c < picture->num_cells; c++) {
        if (cells[c] != kind) continue;
        const int first = c;
        while (c + 1 < picture->num_cells && cells[c + 1] == kind) c++;
        if (y < 0) /* twice the middle of the stripe: the picture is drawn in half pixels down */
          y = 2 * picture->tops[lane->processor_idx] +
              (2 * (int)(l - timeline->processors[lane->processor_idx].first_lane) + 1) * picture->stripe_height;
        if (!is_open)
          purr__text_add(text, "<path stroke=\"%s\" stroke-width=\"%d\" d=\"", purr__trace_kinds[kind].colour,
                         2 * picture->stripe_height);
        is_open = true;
        purr__text_add(text, "M%d %dh%d", LEFT + first * picture->cell, y, (c - first + 1) * picture->cell);
      }
    }
    if (is_open) purr__text_add(text, "\"/>\n");
  }
}

/* How many processors of a rank compute, and how many communicate, at each pixel. Returns whether any communicates. */
static bool count_work(picture_t *picture, int64_t first, int64_t end) {
  bool any = false;
  memset(picture->computing, 0, PLOT_WIDTH * sizeof *picture->computing);
  memset(picture->communicating, 0, PLOT_WIDTH * sizeof *picture->communicating);
  for (int64_t p = first; p < end; p++) {
    const purr__processor_t *processor = &picture->timeline->processors[p];
    for (int x = 0; x < PLOT_WIDTH; x++) {
      bool computes = false, communicates = false;
      for (int64_t l = processor->first_lane; l < processor->first_lane + processor->num_lanes; l++) {
        const uint8_t kind = picture->cells[l * PLOT_WIDTH + x / picture->cell];
        if (kind == BACKGROUND) continue;
        computes = computes || purr__trace_kinds[kind].group == PURR__TRACE_GROUP_COMPUTE;
        communicates = communicates || purr__trace_kinds[kind].group == PURR__TRACE_GROUP_COMMUNICATION;
      }
      picture->computing[x] += computes;
      picture->communicating[x] += communicates;
      any = any || communicates;
    }
  }
  return any;
}

static void add_curve(const picture_t *picture, const int32_t *counts, int64_t most, int top, const char *style) {
  const int bottom = top + CHART_HEIGHT;
  int last = bottom;
  purr__text_add(picture->text, "<path d=\"M%d %d", LEFT, bottom);
  for (int x = 0; x < PLOT_WIDTH; x++) {
    const int y = bottom - (int)(counts[x] * CHART_HEIGHT / most);
    if (y != last) purr__text_add(picture->text, "H%dV%d", LEFT + x, y);
    last = y;
  }
  purr__text_add(picture->text, "H%dV%d\" %s/>\n", LEFT + PLOT_WIDTH, bottom, style);
}

static void add_charts(picture_t *picture) {
  const purr__timeline_t *timeline = picture->timeline;
  purr__text_t *text = picture->text;
  for (int64_t first = 0, end; first < timeline->num_processors; first = end) {
    const int rank = timeline->processors[first].rank;
    const int top = picture->tops[first] - GAP - CHART_HEIGHT;
    for (end = first; end < timeline->num_processors && timeline->processors[end].rank == rank;) end++;
    const bool communicates = count_work(picture, first, end);
    add_curve(picture, picture->computing, end - first, top, "fill=\"#2f6fb5\" fill-opacity=\"0.55\"");
    if (communicates)
      add_curve(picture, picture->communicating, end - first, top,
                "fill=\"none\" stroke=\"#e0762f\" stroke-width=\"1.5\"");
    const struct {
      const char *style, *text;
    } lines[] = {{"fill=\"#2f6fb5\"", "computing"}, {"fill=\"#e0762f\"", "communic."}};
    purr__text_add(text, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" font-weight=\"bold\">rank %d</text>\n", LEFT - 6,
                   top + 10, rank);
    int y = top + 24;
    for (int i = 0; i < 1 + communicates; i++, y += 14)
      purr__text_add(text, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" %s>%s</text>\n", LEFT - 6, y, lines[i].style,
                     lines[i].text);
    purr__text_add(text, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" fill=\"#777777\">of %lld</text>\n", LEFT - 6, y,
                   (long long)(end - first));
  }
}

static void add_labels(const picture_t *picture) {
  const purr__timeline_t *timeline = picture->timeline;
  int last = -1000;
  for (int64_t i = 0; i < timeline->num_processors; i++) {
    const purr__processor_t *processor = &timeline->processors[i];
    const int y = picture->tops[i] + (int)processor->num_lanes * picture->stripe_height / 2 + 4;
    if (y < last + 12) continue; /* no room for it */
    last = y;
    purr__text_add(picture->text, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s %u</text>\n", LEFT - 6, y,
                   timeline->noun, processor->number);
  }
}

static void draw(picture_t *picture) {
  place_processors(picture);
  add_head(picture, picture->bottom + AXIS_HEIGHT);
  add_legend(picture);
  add_axis(picture, picture->bottom);
  add_charts(picture);
  purr__text_add(picture->text, "<g transform=\"scale(1 0.5)\" shape-rendering=\"crispEdges\" fill=\"none\">\n");
  add_stripes(picture);
  purr__text_add(picture->text, "</g>\n");
  add_labels(picture);
  purr__text_add(picture->text, "</svg>\n");
}

purr_status_t purr__timeline_add_svg(purr__text_t *text, const purr__timeline_t *timeline, purr_error_t *err) {
  purr_context_t *context = timeline->context;
  picture_t picture = {.timeline = timeline, .text = text, .length = purr__max(timeline->length, 1)};
  const int64_t height = MOST_HEIGHT / timeline->num_lanes;
  picture.stripe_height = height < 3 ? 3 : height > 14 ? 14 : (int)height;
  picture.processor_gap = picture.stripe_height > 5 ? 3 : 1;
  const uint64_t cell_bytes = (uint64_t)timeline->num_lanes * PLOT_WIDTH;
  picture.cells = purr__allocate(context, cell_bytes);
  picture.filled = purr__allocate(context, PURR__NUM_TRACE_KINDS * sizeof *picture.filled);
  picture.computing = purr__allocate(context, 2 * PLOT_WIDTH * sizeof *picture.computing);
  picture.tops = purr__allocate(context, (uint64_t)timeline->num_processors * sizeof *picture.tops);
  purr_status_t status = PURR_STATUS_OK;
  if (picture.cells == NULL || picture.filled == NULL || picture.computing == NULL || picture.tops == NULL) {
    status = purr__fail_memory(err, "the picture of a timeline", cell_bytes);
  } else {
    picture.communicating = picture.computing + PLOT_WIDTH;
    static const int cells[] = {1, 2, 4, 7, 14, 28, 56}; /* divisors of PLOT_WIDTH */
    int i = 0;
    while (fill_cells(&picture, cells[i]) > MOST_LINES && cells[i] < 56) i++;
    draw(&picture);
  }
  purr__release(context, picture.cells);
  purr__release(context, picture.filled);
  purr__release(context, picture.computing);
  purr__release(context, picture.tops);
  return status;
}
