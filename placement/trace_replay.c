/* placement/trace_replay.c - see trace_replay.h. */
#include "placement/trace_replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kv/select.h"
#include "placement/gpu_slots.h"

struct stream { /* the records of one (request, sequence, layer), in the order of the file */
    const uint32_t *records;
    uint32_t count, max_tokens;
};

struct selections { /* what the GPU lacked of a stream's */
    uint32_t *positions;
    uint32_t *n_tokens, *n_selected;
    const uint32_t **selected;
};

/* ---- streams ------------------------------------------------------------------------------ */

static int by_stream(const void *a, const void *b, void *context)
{
    const struct trace_file *file = context;
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const struct trace_record *x = trace_file_record(file, i), *y = trace_file_record(file, j);
    if (x->request != y->request)
        return x->request < y->request ? -1 : 1;
    if (x->sequence != y->sequence)
        return x->sequence < y->sequence ? -1 : 1;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return i < j ? -1 : i > j;
}

static bool same_stream(const struct trace_record *x, const struct trace_record *y)
{
    return x->request == y->request && x->sequence == y->sequence && x->layer == y->layer;
}

static bool same_request(const struct trace_record *x, const struct trace_record *y)
{
    return x->request == y->request && x->sequence == y->sequence;
}

/* ---- the GPU in front --------------------------------------------------------------------- */

struct front { /* the GPU's slots of one stream */
    struct gpu_slots table;
    void *memory;
    uint32_t *slots;
    uint32_t n_tokens; /* of the last record */
};

static int out_of_memory(const struct trace_file *file, struct hill_why *why)
{
    return hill_fail(why, HILL_E_NOMEM, "cannot replay %s: out of memory", trace_file_path(file));
}

static int front_create(struct front *f, uint32_t capacity)
{
    *f = (struct front){0};
    if (capacity == 0)
        return 0;
    f->memory = malloc(gpu_slots_bytes(1, capacity));
    f->slots = calloc(capacity, sizeof *f->slots);
    if (!f->memory || !f->slots)
        return HILL_E_NOMEM;
    gpu_slots_init(&f->table, f->memory, 1, capacity);
    return 0;
}

static void front_destroy(struct front *f)
{
    free(f->memory);
    free(f->slots);
}

/* Keep in `positions` what the GPU lacks of one selection; returns how many, or HILL_E_NOSPACE. */
static int64_t front_pass(struct front *f, const struct trace_record *r,
                          const struct placement_settings *placement, uint32_t *positions,
                          struct trace_replay_result *out)
{
    uint32_t lacked = 0,
             from = r->n_tokens > placement->window ? r->n_tokens - placement->window : 0;
    out->selected += r->n_selected;
    if (f->memory == NULL) {
        out->uploads += r->n_selected;
        return r->n_selected;
    }
    if (r->n_tokens < f->n_tokens) /* the scorer had started again, or had trimmed */
        gpu_slots_clear(&f->table, 0);
    f->n_tokens = r->n_tokens;
    int64_t uploads = gpu_slots_select(&f->table, 0, positions, r->n_selected, f->slots);
    if (uploads < 0)
        return uploads;
    out->uploads += (uint64_t)uploads;
    for (uint32_t i = 0; i < r->n_selected; i++) {
        uint32_t position = positions[i];
        if (f->slots[i] & GPU_SLOTS_UPLOAD)
            positions[lacked++] = position;
        else if (position >= placement->sinks && position < from)
            out->gpu_hits++;
    }
    return lacked;
}

static void free_selections(struct selections *s)
{
    free(s->positions);
    free(s->n_tokens);
    free(s->n_selected);
    free(s->selected);
}

static int allocate_selections(struct selections *s, const struct trace_file *file,
                               const struct stream *in)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < in->count; i++)
        total += trace_file_record(file, in->records[i])->n_selected;
    *s = (struct selections){.positions = calloc(total + 1, sizeof *s->positions),
                             .n_tokens = calloc(in->count, sizeof *s->n_tokens),
                             .n_selected = calloc(in->count, sizeof *s->n_selected),
                             .selected = calloc(in->count, sizeof *s->selected)};
    return s->positions && s->n_tokens && s->n_selected && s->selected ? 0 : HILL_E_NOMEM;
}

/* Read a stream's selections through the GPU's slots. */
static int load_selections(struct selections *s, struct trace_replay_result *out,
                           struct front *front, struct trace_file *file, const struct stream *in,
                           const struct trace_replay_settings *settings, struct hill_why *why)
{
    uint32_t *at = s->positions;
    for (uint32_t i = 0; i < in->count; i++) {
        const struct trace_record *r = trace_file_record(file, in->records[i]);
        const uint32_t *words;
        const uint16_t *scores;
        int rc = trace_file_read(file, in->records[i], &words, &scores, why);
        if (rc)
            return rc;
        for (uint32_t j = 0; j < r->n_selected; j++)
            at[j] = words[j] & TRACE_POSITION_MASK;
        int64_t lacked = front_pass(front, r, &settings->placement, at, out);
        if (lacked < 0)
            return hill_fail(why, HILL_E_INVALID,
                             "cannot replay %s: record %u selects %u entries, and the GPU has "
                             "%u slots",
                             trace_file_path(file), in->records[i], r->n_selected,
                             settings->gpu_slots);
        s->n_tokens[i] = r->n_tokens;
        s->n_selected[i] = (uint32_t)lacked;
        s->selected[i] = at;
        at += lacked;
    }
    return 0;
}

/* ---- copies ------------------------------------------------------------------------------- */

struct copies {      /* of what has moved up, below */
    uint32_t *since; /* [max_tokens]: the step; PLACEMENT_NEVER: there is none */
    uint32_t max_tokens, n, part;
};

static int copies_create(struct copies *c, uint32_t max_tokens, uint32_t part)
{
    *c = (struct copies){.max_tokens = max_tokens, .part = part};
    c->since = malloc(max_tokens * sizeof *c->since);
    if (c->since)
        memset(c->since, 0xff, max_tokens * sizeof *c->since);
    return c->since ? 0 : HILL_E_NOMEM;
}

static void give_away_oldest(struct copies *c)
{
    uint32_t oldest = 0;
    for (uint32_t i = 1; i < c->max_tokens; i++)
        if (c->since[i] < c->since[oldest])
            oldest = i;
    c->since[oldest] = PLACEMENT_NEVER;
    c->n--;
}

static void copies_move(struct copies *c, const struct placement *placement,
                        const struct placement_moves *moves, uint32_t step,
                        struct trace_replay_result *out)
{
    for (uint32_t i = 0; i < moves->n_demoted; i++) {
        uint32_t *since = &c->since[moves->demoted[i]];
        uint32_t cold = placement_tokens(placement) - placement_hot_tokens(placement);
        if (*since != PLACEMENT_NEVER) {
            *since = PLACEMENT_NEVER;
            c->n--;
            continue;
        }
        out->written++;
        if (c->part && c->n > cold / c->part) {
            give_away_oldest(c);
            out->given_away++;
        }
    }
    for (uint32_t i = 0; i < moves->n_promoted; i++, c->n++)
        c->since[moves->promoted[i]] = step;
}

static void copies_trim(struct copies *c, uint32_t n_tokens)
{
    for (uint32_t i = n_tokens; i < c->max_tokens; i++) {
        c->n -= c->since[i] != PLACEMENT_NEVER;
        c->since[i] = PLACEMENT_NEVER;
    }
}

/* ---- replay ------------------------------------------------------------------------------- */

struct run { /* of one placement over one stream */
    struct trace_file *file;
    const struct selections *selections;
    enum placement_kind kind;
    struct placement *placement;
    struct copies copies;
    struct trace_replay_result *out;
};

/* Step i, which is this record of the file. Only the score placement follows scores: the others
 * spare the reading. */
static int replay_record(struct run *run, uint32_t record, uint32_t i, double hot,
                         struct hill_why *why)
{
    const uint32_t *words;
    const uint16_t *scores = NULL;
    struct placement_moves moves;
    struct placement *p = run->placement;
    const struct selections *s = run->selections;
    uint32_t n = s->n_tokens[i];
    int rc =
        run->kind == PLACEMENT_SCORE ? trace_file_read(run->file, record, &words, &scores, why) : 0;
    if (rc)
        return rc;
    if (n < placement_tokens(p)) { /* the scorer had started again, or had trimmed */
        rc = placement_trim(p, n);
        copies_trim(&run->copies, n);
    }
    if (rc == 0)
        rc = placement_append(p, n - placement_tokens(p), (uint32_t)ceil(hot * n), &moves);
    if (rc == 0) {
        copies_move(&run->copies, p, &moves, i, run->out);
        rc = placement_step(p, s->selected[i], s->n_selected[i], scores, 0, &moves);
    }
    if (rc == HILL_E_INVALID)
        return hill_fail(why, rc,
                         "cannot replay %s: record %u has no scores, which this placement follows",
                         trace_file_path(run->file), record);
    if (rc)
        return out_of_memory(run->file, why);
    copies_move(&run->copies, p, &moves, i, run->out);
    run->out->copies += run->copies.n;
    run->out->cold += n - placement_hot_tokens(p);
    return 0;
}

static void add_stats(struct placement_stats *sum, const struct placement_stats *one)
{
    sum->steps += one->steps;
    sum->hits_hot += one->hits_hot;
    sum->hits_cold += one->hits_cold;
    sum->promoted += one->promoted;
    sum->demoted += one->demoted;
    sum->placed_cold += one->placed_cold;
    sum->bounced += one->bounced;
}

static int run_policy(struct trace_replay_result *out, struct trace_file *file,
                      const struct stream *in, const struct selections *s, enum placement_kind kind,
                      const struct trace_replay_settings *settings, struct hill_why *why)
{
    struct placement_settings placement_settings = settings->placement;
    const struct placement_future future = {.n_steps = in->count,
                                            .n_tokens = s->n_tokens,
                                            .n_selected = s->n_selected,
                                            .selected = s->selected};
    struct run run = {.file = file, .selections = s, .kind = kind, .out = out};
    if (copies_create(&run.copies, in->max_tokens, settings->copies_part))
        return out_of_memory(file, why);
    placement_settings.copies = run.copies.since;
    placement_settings.max_tokens = in->max_tokens;
    placement_settings.future = &future; /* only belady looks at it */
    if (kind != PLACEMENT_BKP && !settings->limits_all)
        placement_settings.rate = 0;
    int rc = placement_create(&run.placement, kind, &placement_settings, why);
    for (uint32_t i = 0; i < in->count && rc == 0; i++)
        rc = replay_record(&run, in->records[i], i, settings->hot, why);
    if (rc == 0)
        add_stats(&out->stats, placement_stats(run.placement));
    placement_destroy(run.placement);
    free(run.copies.since);
    return rc;
}

static int replay_stream(struct trace_replay_result *out, struct trace_file *file,
                         const struct stream *in, enum placement_kind kind,
                         const struct trace_replay_settings *settings, struct hill_why *why)
{
    struct selections selections = {0};
    struct front front;
    int rc = front_create(&front, settings->gpu_slots);
    if (rc == 0)
        rc = allocate_selections(&selections, file, in);
    rc = rc ? out_of_memory(file, why)
            : load_selections(&selections, out, &front, file, in, settings, why);
    if (rc == 0)
        rc = run_policy(out, file, in, &selections, kind, settings, why);
    free_selections(&selections);
    front_destroy(&front);
    return rc;
}

static uint32_t usual_gpu_slots(const struct trace_file *file)
{
    const struct trace_settings *t = trace_file_settings(file);
    struct kv_selection_settings selection = {.alpha = t->alpha > 0 && t->alpha <= 1 ? t->alpha : 1,
                                              .budget = t->budget,
                                              .sinks = t->sinks,
                                              .window = t->window};
    bool known = t->ctx_tokens && t->ctx_tokens <= KV_MAX_TOKENS && (t->alpha > 0 || t->budget) &&
                 kv_selection_check(&selection, NULL) == 0;
    uint32_t slots = known ? kv_budget_tokens(&selection, t->ctx_tokens) : 0;
    for (uint32_t i = 0; i < trace_file_count(file); i++)
        if (trace_file_record(file, i)->n_selected > slots)
            slots = trace_file_record(file, i)->n_selected;
    return slots;
}

struct trace_replay_settings trace_replay_defaults(const struct trace_file *file)
{
    const struct trace_settings *t = trace_file_settings(file);
    struct trace_replay_settings s = {.hot = 0.6,
                                      .layer = -1,
                                      .copies_part = PLACEMENT_COPIES_PART,
                                      .placement = placement_defaults()};
    s.gpu_slots = usual_gpu_slots(file);
    s.placement.rate = PLACEMENT_LIVE_RATE;
    s.placement.sinks = t->sinks;
    s.placement.window = t->window;
    if (t->alpha > 0 && t->alpha <= 1)
        s.placement.alpha = s.placement.pin = t->alpha;
    return s;
}

static int replay_all(struct trace_replay_result *out, struct trace_file *file, uint32_t *order,
                      enum placement_kind kind, const struct trace_replay_settings *settings,
                      struct hill_why *why)
{
    uint32_t count = trace_file_count(file);
    const struct trace_record *longest = NULL; /* the first layer of a request counts its steps */
    for (uint32_t from = 0, to; from < count; from = to) {
        const struct trace_record *first = trace_file_record(file, order[from]);
        struct stream stream = {.records = order + from};
        for (to = from; to < count; to++) {
            const struct trace_record *r = trace_file_record(file, order[to]);
            if (!same_stream(first, r))
                break;
            stream.count++;
            if (r->n_tokens > stream.max_tokens)
                stream.max_tokens = r->n_tokens;
        }
        if (settings->layer >= 0 && settings->layer != first->layer)
            continue;
        int rc = replay_stream(out, file, &stream, kind, settings, why);
        if (rc)
            return rc;
        out->streams++;
        out->queries += stream.count;
        if (longest == NULL || !same_request(longest, first))
            out->steps += stream.count;
        longest = first;
        if (stream.max_tokens > out->n_last)
            out->n_last = stream.max_tokens;
    }
    return 0;
}

int trace_replay_run(struct trace_replay_result *out, struct trace_file *file,
                     enum placement_kind kind, const struct trace_replay_settings *settings,
                     struct hill_why *why)
{
    uint32_t count = trace_file_count(file);
    *out = (struct trace_replay_result){0};
    if (!(settings->hot > 0 && settings->hot <= 1))
        return hill_fail(why, HILL_E_INVALID, "a hot share of %g is not in (0, 1]", settings->hot);
    uint32_t *order = calloc((size_t)count + 1, sizeof *order);
    if (order == NULL)
        return hill_fail(why, HILL_E_NOMEM, "cannot replay %s: out of memory",
                         trace_file_path(file));
    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    qsort_r(order, count, sizeof *order, by_stream, file);
    int rc = replay_all(out, file, order, kind, settings, why);
    free(order);
    return rc;
}

double trace_replay_hit_rate(const struct trace_replay_result *result)
{
    uint64_t all = result->stats.hits_hot + result->stats.hits_cold;
    return all ? (double)result->stats.hits_hot / (double)all : 1;
}

double trace_replay_near_rate(const struct trace_replay_result *result)
{
    const struct placement_stats *s = &result->stats;
    uint64_t near = result->gpu_hits + s->hits_hot, all = near + s->hits_cold;
    return all ? (double)near / (double)all : 1;
}
