/*
 * cpu_scorer/evaluate_chunks.c - leoam: FP16 keys of the chunks that bounds name, worked out on the
 * CPU; see evaluator.h and chunk_table.h.
 *
 * A query first searches its bounds, on the threads; nothing can be asked of the drive before. The
 * candidates' cold keys are read in as few ranges as their pages allow.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "cpu_scorer/chunk_table.h"
#include "cpu_scorer/key_reader.h"

struct chunk_evaluator {
    struct key_reader reader;
    struct chunk_table *table;
};

static struct chunk_evaluator *of(const void *e)
{
    return (struct chunk_evaluator *)(void *)e; /* an evaluator, a reader: its first member */
}

static void append(struct evaluator *base, const struct sequence *s, uint32_t layer, uint32_t first,
                   uint32_t n, const uint8_t *entries)
{
    chunk_table_append(of(base)->table, s->index, layer, first, n,
                       (const uint16_t *)(const void *)entries,
                       base->core->tiers.hkm.entry_bytes / 2);
}

/* The tokens of the chunk that is being filled are the newest, which are hot. */
static int adopt(struct evaluator *base, const struct sequence *s)
{
    const struct core *c = base->core;
    for (uint32_t layer = 0; layer < c->config.geometry.n_layers; layer++) {
        uint32_t n = s->layers[layer].appended;
        int64_t whole = chunk_table_adopt(of(base)->table, s->index, layer, n);
        if (whole < 0)
            return (int)whole;
        for (uint32_t p = (uint32_t)whole; p < n; p++) {
            uint32_t word = core_location(c, s, layer, p);
            if (hkm_tag(word) != HKM_HOT)
                return HILL_E_UNSUPPORTED;
            append(base, s, layer, p, 1, hkm_entry(&c->tiers.hkm, hkm_slot(word)));
        }
    }
    return 0;
}

/* ---- what is to be read --------------------------------------------------------------------- */

static int slot_order(const void *a, const void *b)
{
    uint32_t x = ((const struct key_range *)a)->first_slot;
    uint32_t y = ((const struct key_range *)b)->first_slot;
    return x < y ? -1 : x > y;
}

/* Do b's pages follow a's, or begin in them? Then one range costs no more than two. */
static bool pages_meet(const struct key_reader *r, const struct key_range *a,
                       const struct key_range *b)
{
    uint32_t slots = r->base.core->tiers.cold.stripe_slots;
    uint64_t end = key_reader_offset(r, a->first_slot) + (uint64_t)a->n_slots * r->key_bytes;
    uint64_t start = key_reader_offset(r, b->first_slot);
    return a->first_slot / slots == b->first_slot / slots &&
           start / KV_PAGE_BYTES <= (end + KV_PAGE_BYTES - 1) / KV_PAGE_BYTES;
}

/* Runs of the candidates' cold slots, by position; true: that is the order of their slots too. */
static bool list_runs(struct chunk_evaluator *e, struct scorer_candidates *c)
{
    struct key_reader *r = &e->reader;
    const struct core *core = r->base.core;
    const struct query *q = r->query;
    bool ascending = true;
    uint32_t n_chunks, end = 0; /* of the last run */
    const uint32_t *chunks = chunk_table_chunks(e->table, &n_chunks);
    for (uint32_t i = 0; i < n_chunks * KV_CHUNK_FINE; i++) {
        uint32_t position = chunks[i / KV_CHUNK_FINE] * KV_CHUNK_FINE + i % KV_CHUNK_FINE;
        if (!chunk_table_wants(e->table, position))
            continue;
        uint32_t word = core_location(core, q->sequence, q->header.layer, position);
        uint32_t slot = hkm_slot(word);
        c->hot += hkm_tag(word) == HKM_HOT;
        if (hkm_tag(word) != HKM_COLD)
            continue;
        c->cold++;
        if (r->n_ranges && slot == end && slot % core->tiers.cold.stripe_slots) {
            r->ranges[r->n_ranges - 1].n_slots++;
        } else {
            ascending = ascending && slot >= end;
            r->ranges[r->n_ranges++] = (struct key_range){slot, 1};
        }
        end = slot + 1;
    }
    return ascending;
}

/* The candidates' cold slots, as few ranges as their pages allow. */
static void list_candidates(struct chunk_evaluator *e, struct scorer_candidates *c)
{
    struct key_reader *r = &e->reader;
    bool ascending = list_runs(e, c);
    uint32_t n = r->n_ranges;
    if (!ascending)
        qsort(r->ranges, n, sizeof *r->ranges, slot_order);
    r->n_ranges = n > 0;
    for (uint32_t i = 1; i < n; i++) {
        struct key_range *last = &r->ranges[r->n_ranges - 1], *next = &r->ranges[i];
        uint32_t end = last->first_slot + last->n_slots;
        if (pages_meet(r, last, next)) {
            c->between += next->first_slot - end;
            last->n_slots = next->first_slot + next->n_slots - last->first_slot;
        } else {
            r->ranges[r->n_ranges++] = *next;
        }
    }
    c->runs += r->n_ranges;
}

/* ---- evaluating ----------------------------------------------------------------------------- */

static void evaluate(struct key_reader *r, const void *keys, uint32_t n, uint32_t slot,
                     const uint32_t *positions)
{
    (void)slot;
    chunk_table_keys(of(r)->table, keys, kv_key_dims(&r->base.core->config.geometry), n, positions);
}

/* The hot one at a position, and those behind it in the chunk that lie behind it: how many. */
static uint32_t hot_run(const struct chunk_evaluator *e, uint32_t position, uint32_t *slot)
{
    const struct query *q = e->reader.query;
    uint32_t n = 0, end = (position / KV_CHUNK_FINE + 1) * KV_CHUNK_FINE;
    for (; position + n < end && chunk_table_wants(e->table, position + n); n++) {
        uint32_t word =
            core_location(e->reader.base.core, q->sequence, q->header.layer, position + n);
        if (hkm_tag(word) != HKM_HOT || (n && hkm_slot(word) != *slot + n))
            break;
        *slot = n ? *slot : hkm_slot(word);
    }
    return n;
}

/* The hot ones of candidates: items are chunks. */
static void run_hot(void *context, uint32_t first, uint32_t end)
{
    const struct chunk_evaluator *e = context;
    const struct hkm *hkm = &e->reader.base.core->tiers.hkm;
    uint32_t n_chunks;
    const uint32_t *chunks = chunk_table_chunks(e->table, &n_chunks);
    for (uint32_t i = first; i < end; i++)
        for (uint32_t j = 0, n; j < KV_CHUNK_FINE; j += n + (n == 0)) {
            uint32_t slot, positions[KV_CHUNK_FINE];
            n = hot_run(e, chunks[i] * KV_CHUNK_FINE + j, &slot);
            for (uint32_t k = 0; k < n; k++)
                positions[k] = chunks[i] * KV_CHUNK_FINE + j + k;
            if (n)
                chunk_table_keys(e->table, (const uint16_t *)(const void *)hkm_entry(hkm, slot),
                                 hkm->entry_bytes / 2, n, positions);
        }
}

/* ---- a query -------------------------------------------------------------------------------- */

static void begin(struct evaluator *base, struct query *q)
{
    struct chunk_evaluator *e = of(base);
    const struct core *c = base->core;
    struct scorer_stats *stats = &q->sequence->stats;
    int64_t start = clock_now_ns();
    key_reader_begin(&e->reader, q);
    STAGE_BEGIN_AT(bounds, &q->header);
    chunk_table_begin(e->table, c->pool, q->sequence->index, q->header.layer,
                      &q->sequence->settings, q->vector, q->n_tokens);
    uint64_t before = stats->candidates.hot;
    list_candidates(e, &stats->candidates);
    STAGE_END(bounds, kv_bounds_bytes(&c->config.geometry, q->n_tokens));
    stats->bounds_ns += clock_now_ns() - start;
    e->reader.hot = (struct work_job){.run = run_hot,
                                      .context = e,
                                      .bytes = (stats->candidates.hot - before) * 2 *
                                               kv_key_dims(&c->config.geometry)};
    chunk_table_chunks(e->table, &e->reader.hot.n);
    key_reader_start(&e->reader);
}

static int scores_of(struct key_reader *r, const struct query *q, uint32_t *count, uint32_t *wanted)
{
    (void)q;
    int rc = chunk_table_finish(of(r)->table, r->base.core->pool, r->scores);
    *count = chunk_table_count(of(r)->table, wanted);
    return rc;
}

/* ---- life ----------------------------------------------------------------------------------- */

static int create(struct evaluator **out, struct core *core, struct agent *agent)
{
    const struct scorer_config *c = &core->config;
    struct chunk_evaluator *e = calloc(1, sizeof *e);
    if (!e)
        return HILL_E_NOMEM;
    e->reader.base = (struct evaluator){&evaluate_chunks, core, agent};
    *out = &e->reader.base;
    /* candidates that do not lie together are a range each */
    int rc = key_reader_create(&e->reader, core->tiers.cold.n_stripes ? c->ctx_tokens + 1 : 1,
                               evaluate, scores_of);
    return rc ? rc
              : chunk_table_create(&e->table, &c->geometry, c->mass, c->ctx_tokens, c->n_sequences,
                                   core->tiers.hkm.states, core->tiers.hkm.header->state_bytes);
}

static void destroy(struct evaluator *base)
{
    struct chunk_evaluator *e = of(base);
    chunk_table_destroy(e->table);
    key_reader_destroy(&e->reader);
    free(e);
}

static uint64_t private_bytes(const struct evaluator *base)
{
    return key_reader_bytes(&of(base)->reader) + chunk_table_bytes(of(base)->table);
}

const struct evaluator_ops evaluate_chunks = {.create = create,
                                              .destroy = destroy,
                                              .bytes = private_bytes,
                                              .adopt = adopt,
                                              .append = append,
                                              .begin = begin,
                                              .step = key_reader_step,
                                              .settle = key_reader_settle,
                                              .finish = key_reader_finish};
