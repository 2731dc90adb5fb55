/* gateway/timeline.c - see timeline.h. */
#include "gateway/timeline.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"

enum process { PROCESS_GPU, PROCESS_SCORER, PROCESS_DRIVE, PROCESS_COUNT };
static const char *const part_names[] = {"gpu_worker", "cpu_scorer", "csd_agent", "others"};

/* The stages' order is that of the processes. */
static enum process process_of(uint32_t stage)
{
    return stage < STAGE_answer        ? PROCESS_GPU
           : stage < STAGE_agent_score ? PROCESS_SCORER
                                       : PROCESS_DRIVE;
}

/* The highest of those that are under way is what the step waits for; 0: it does not. */
static unsigned rank_of(uint32_t stage)
{
    static const uint8_t ranks[STAGE_COUNT] = {
        [STAGE_prefill] = 6,     [STAGE_append] = 6, /* of other requests' prompts */
        [STAGE_query] = 6,       [STAGE_upload] = 6,         [STAGE_attend] = 6,
        [STAGE_logits] = 6,      [STAGE_bounds] = 5,         [STAGE_score_hot] = 5,
        [STAGE_merge] = 5,       [STAGE_select] = 5,         [STAGE_agent_score] = 4,
        [STAGE_agent_fetch] = 4, [STAGE_gather] = 3,         [STAGE_score_cold] = 3,
        [STAGE_answer] = 2,      [STAGE_await_selection] = 1};
    return ranks[stage];
}

void timeline_add(struct timeline *t, const void *events, size_t bytes)
{
    size_t n = bytes / sizeof *t->events;
    if (n > TIMELINE_EVENTS_MAX - t->n)
        n = TIMELINE_EVENTS_MAX - t->n;
    if (!GROW(t->events, t->room, t->n + n))
        return;
    if (n)
        memcpy(t->events + t->n, events, n * sizeof *t->events);
    t->n += n;
}

void timeline_keep(struct timeline *t, int64_t from_ns, int64_t end_ns)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++)
        if (t->events[i].start_ns >= from_ns && t->events[i].start_ns < end_ns)
            t->events[n++] = t->events[i];
    t->n = n;
}

void timeline_finish(struct timeline *t)
{
    free(t->events);
    *t = (struct timeline){0};
}

/* ---- the step -------------------------------------------------------------------------------- */

struct span {
    struct stage_event event;
    bool other; /* another request's */
    int64_t path_ns;
};

enum { PATH_OTHERS = PROCESS_COUNT, PATH_PARTS };

struct step {
    uint32_t number;
    int64_t start_ns, end_ns;
    struct span *spans; /* by their starts */
    size_t n, first;    /* first: the ones before it are over */
    int64_t path_ns[PATH_PARTS];
};

static const struct stage_event *first_query(const struct timeline *t, uint32_t sequence,
                                             uint32_t step)
{
    for (size_t i = 0; i < t->n; i++) {
        const struct stage_event *e = &t->events[i];
        if (e->stage == STAGE_query && e->sequence == sequence && e->step == step && !e->layer)
            return e;
    }
    return NULL;
}

/* The newest step after which there is another one. */
static bool find_step(const struct timeline *t, uint32_t sequence, struct step *out)
{
    uint32_t newest = 0;
    for (size_t i = 0; i < t->n; i++)
        if (t->events[i].stage == STAGE_query && t->events[i].sequence == sequence &&
            t->events[i].step > newest)
            newest = t->events[i].step;
    const struct stage_event *end = newest ? first_query(t, sequence, newest) : NULL,
                             *start = newest > 1 ? first_query(t, sequence, newest - 1) : NULL;
    if (!start || !end || end->start_ns <= start->start_ns)
        return false;
    *out =
        (struct step){.number = newest - 1, .start_ns = start->start_ns, .end_ns = end->start_ns};
    return true;
}

static int by_start(const void *a, const void *b)
{
    const struct stage_event *x = &((const struct span *)a)->event,
                             *y = &((const struct span *)b)->event;
    return x->start_ns != y->start_ns ? (x->start_ns > y->start_ns) - (x->start_ns < y->start_ns)
                                      : (x->stage > y->stage) - (x->stage < y->stage);
}

/* The GPU worker waits for all rows of a step together, and says so once, under the first one's
 * name. */
static bool is_wait(const struct stage_event *e)
{
    return e->stage == STAGE_await_selection || e->stage == STAGE_logits;
}

/* The first wait after the own query is of the own step, whatever steps others make after that. */
static const struct stage_event *first_wait(const struct timeline *t, const struct step *s)
{
    const struct stage_event *first = NULL;
    for (size_t i = 0; i < t->n; i++) {
        const struct stage_event *e = &t->events[i];
        if (is_wait(e) && e->start_ns >= s->start_ns && e->start_ns < s->end_ns &&
            (!first || e->start_ns < first->start_ns))
            first = e;
    }
    return first;
}

static bool is_shared(const struct stage_event *e, const struct stage_event *first)
{
    return first && is_wait(e) && e->sequence == first->sequence && e->step == first->step;
}

static bool is_own(const struct stage_event *e, uint32_t sequence, const struct step *s)
{
    return e->sequence == sequence && e->step == s->number && e->start_ns >= s->start_ns &&
           e->end_ns <= s->end_ns;
}

/* The part of it that lies within the step; none: false. */
static bool cut(struct stage_event *e, const struct step *s)
{
    e->start_ns = e->start_ns > s->start_ns ? e->start_ns : s->start_ns;
    e->end_ns = e->end_ns < s->end_ns ? e->end_ns : s->end_ns;
    return e->end_ns > e->start_ns;
}

static void take_span(struct step *s, const struct stage_event *e, bool other)
{
    if (s->n < TIMELINE_SPANS_MAX)
        s->spans[s->n++] = (struct span){*e, other, 0};
}

/* First its own, so that these are there whatever others do. */
static bool take_spans(const struct timeline *t, uint32_t sequence, bool others, struct step *s)
{
    const struct stage_event *first = first_wait(t, s);
    s->spans = malloc(TIMELINE_SPANS_MAX * sizeof *s->spans);
    for (size_t i = 0; s->spans && i < 2 * t->n; i++) {
        struct stage_event e = t->events[i % t->n];
        bool own = is_own(&e, sequence, s), shared = is_shared(&e, first);
        if (e.stage >= STAGE_COUNT || e.end_ns < e.start_ns)
            continue;
        if (i < t->n && own)
            take_span(s, &e, false);
        else if (i >= t->n && e.sequence != sequence && (others || shared) && cut(&e, s))
            take_span(s, &e, !shared);
    }
    if (s->n)
        qsort(s->spans, s->n, sizeof *s->spans, by_start);
    return s->n > 0;
}

/* ---- the path -------------------------------------------------------------------------------- */

static int by_time(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Of two that are under way: what the step waits for; then its own; then what has begun last. */
static bool goes_before(const struct span *span, unsigned rank, const struct span *best)
{
    unsigned other = rank_of(best->event.stage);
    return rank > other || (rank == other && span->other <= best->other);
}

/* Between two neighbouring borders the same spans are under way. */
static void add_piece(struct step *s, int64_t from_ns, int64_t to_ns)
{
    struct span *best = NULL;
    while (s->first < s->n && s->spans[s->first].event.end_ns <= from_ns)
        s->first++;
    for (size_t i = s->first; i < s->n && s->spans[i].event.start_ns <= from_ns; i++) {
        struct span *span = &s->spans[i];
        unsigned rank = span->event.end_ns >= to_ns ? rank_of(span->event.stage) : 0;
        if (rank && (!best || goes_before(span, rank, best)))
            best = span;
    }
    if (!best)
        return;
    best->path_ns += to_ns - from_ns;
    s->path_ns[best->other ? PATH_OTHERS : process_of(best->event.stage)] += to_ns - from_ns;
}

static void find_path(struct step *s)
{
    int64_t *borders = malloc(2 * s->n * sizeof *borders);
    if (!borders)
        return;
    for (size_t i = 0; i < s->n; i++) {
        borders[2 * i] = s->spans[i].event.start_ns;
        borders[2 * i + 1] = s->spans[i].event.end_ns;
    }
    qsort(borders, 2 * s->n, sizeof *borders, by_time);
    for (size_t i = 1; i < 2 * s->n; i++)
        if (borders[i] > borders[i - 1])
            add_piece(s, borders[i - 1], borders[i]);
    free(borders);
}

/* ---- writing --------------------------------------------------------------------------------- */

static void add_us(struct text_buffer *out, const char *name, int64_t ns)
{
    text_printf(out, "\"%s\":%.1f", name, (double)ns / 1e3);
}

static void write_step(struct text_buffer *out, const struct step *s, uint64_t request)
{
    int64_t rest_ns = s->end_ns - s->start_ns;
    text_printf(out, "{\"request\":%" PRIu64 ",\"step\":%" PRIu32 ",", request, s->number);
    add_us(out, "us", rest_ns);
    text_puts(out, ",\"path_us\":{");
    for (unsigned p = 0; p < PATH_PARTS; p++) {
        add_us(out, part_names[p], s->path_ns[p]);
        text_puts(out, ",");
        rest_ns -= s->path_ns[p];
    }
    add_us(out, "between", rest_ns);
    text_puts(out, "},\"spans\":[");
    for (size_t i = 0; i < s->n; i++) {
        const struct stage_event *e = &s->spans[i].event;
        text_printf(out, "%s{\"process\":\"%s\",\"stage\":\"%s\",\"layer\":%" PRIu32 ",",
                    i ? "," : "", part_names[process_of(e->stage)], stage_name(e->stage), e->layer);
        add_us(out, "at_us", e->start_ns - s->start_ns);
        text_puts(out, ",");
        add_us(out, "us", e->end_ns - e->start_ns);
        text_puts(out, ",");
        add_us(out, "path_us", s->spans[i].path_ns);
        text_printf(out, ",\"bytes\":%" PRIu64 "%s}", e->bytes,
                    s->spans[i].other ? ",\"other\":true" : "");
    }
    text_puts(out, "]}");
}

void timeline_write(struct text_buffer *out, const struct timeline *t, const struct timeline_of *of)
{
    struct step step;
    if (!find_step(t, of->sequence, &step)) {
        text_puts(out, "null");
        return;
    }
    if (take_spans(t, of->sequence, of->others, &step)) {
        find_path(&step);
        write_step(out, &step, of->request);
    } else {
        text_puts(out, "null");
    }
    free(step.spans);
}
