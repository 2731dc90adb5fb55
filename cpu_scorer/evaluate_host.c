/*
 * cpu_scorer/evaluate_host.c - host-digest: the digests of hillinfer, all scored by the CPU; see
 * evaluator.h.
 *
 * Cold tokens' digests lie on the drive as hillinfer's do, and come over the link with every query
 * (key_reader.h), but for those that a cache of the host has (cached_digests.h). So the scores, and
 * the selection, are hillinfer's; only the place where cold tokens are scored is another, and with
 * it what crosses the link. It is what a host with a plain SSD can do. Cached groups are scored
 * with the hot blocks, while the first windows are on their way.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cpu_scorer/evaluate_digest.h"
#include "cpu_scorer/key_reader.h"
#include "cpu_scorer/key_sample.h"

/* Cached groups of a block that follow one another. */
struct cached_run {
    uint32_t group, n;
};

struct host_evaluator {
    struct key_reader reader;
    void *digest_bytes; /* of the query: kv_query_put */
    struct kv_query digest;
    struct cached_run *runs; /* of the query: [runs_max] */
    uint32_t n_runs, n_cached;
    _Atomic uint32_t scored; /* tokens of the query; relaxed: the pool's end orders it */
    bool all_scored;         /* a modelled CPU is waited for */
};

static struct host_evaluator *of(const void *e)
{
    return (
        struct host_evaluator *)(void *)e; /* an evaluator, a reader, a context: its first member */
}

static struct cached_digests *cache_of(const struct host_evaluator *e)
{
    return &e->reader.base.core->tiers.digests;
}

static uint32_t runs_max(const struct core *c)
{
    return c->config.ctx_tokens + 1; /* each has a token that counts */
}

/* ---- tokens --------------------------------------------------------------------------------- */

/* What sequences have that rest or are over gives room to those that run. */
static void open_sequence(struct evaluator *base, const struct sequence *s)
{
    struct cached_digests *cache = &base->core->tiers.digests;
    for (uint32_t i = 0; i < cache->config.n_blocks && cache->n_frames; i++) {
        const struct sequence *owner = digest_owner(base->core, i);
        if (!owner || (owner != s && owner->state == SEQUENCE_RESTING))
            cached_digests_drop(cache, i);
    }
}

static void make_plane(struct evaluator *base, const struct sequence *s, uint32_t layer,
                       const struct plane_source *from, uint8_t *plane)
{
    struct cached_digests *cache = &base->core->tiers.digests;
    digest_plane(base, s, layer, from, plane);
    for (uint32_t i = 0; i < from->n; i++) {
        uint32_t slot = from->slots ? from->slots[i] : from->slot + i;
        cached_digests_want(cache, slot / KV_HOT_BLOCK_TOKENS,
                            tiers_list(&base->core->tiers, s->index, layer));
        cached_digests_put(cache, slot, plane, from->slot % KV_GROUP_TOKENS + i);
    }
}

/* ---- scoring: the pool's threads ------------------------------------------------------------ */

/* n tokens, one block's at most. */
static void score_tokens(struct host_evaluator *e, const uint8_t *groups, uint32_t n,
                         const uint32_t *positions)
{
    const struct scorer_config *c = &e->reader.base.core->config;
    const struct query *q = e->reader.query;
    uint16_t scores[KV_HOT_BLOCK_TOKENS];
    uint32_t scored = 0;
    c->score(&c->geometry, &e->digest, groups, n, scores);
    for (uint32_t i = 0; i < n; i++)
        if (positions[i] < q->n_tokens) { /* COLD_NONE and HKM_NO_POSITION are not */
            e->reader.scores[positions[i]] = scores[i];
            scored++;
        }
    atomic_fetch_add_explicit(&e->scored, scored, memory_order_relaxed /* see the struct */);
}

static void run_cached(struct host_evaluator *e, const struct cached_run *run)
{
    uint32_t positions[KV_HOT_BLOCK_TOKENS], n = run->n * KV_GROUP_TOKENS, together;
    const uint8_t *groups = cached_digests_at(cache_of(e), run->group / CACHED_BLOCK_GROUPS,
                                              run->group % CACHED_BLOCK_GROUPS,
                                              &together); /* the whole run: nothing is lent */
    cold_map_positions(&e->reader.base.core->tiers.cold, e->reader.list,
                       run->group * KV_GROUP_TOKENS, n, positions);
    score_tokens(e, groups, n, positions);
}

/* Items are the hot blocks, then the cached runs. */
static void run_near(void *context, uint32_t first, uint32_t end)
{
    struct host_evaluator *e = of(context);
    const struct hkm *hkm = &e->reader.base.core->tiers.hkm;
    uint64_t block_bytes =
        (uint64_t)KV_HOT_BLOCK_TOKENS * kv_digest_bytes(&e->reader.base.core->config.geometry);
    uint32_t n_blocks = e->reader.hot.n - e->n_runs;
    for (uint32_t i = first; i < end; i++) {
        if (i >= n_blocks) {
            run_cached(e, &e->runs[i - n_blocks]);
            continue;
        }
        uint32_t block = e->reader.blocks[i];
        score_tokens(e, hkm->digests + block * block_bytes, KV_HOT_BLOCK_TOKENS,
                     &hkm->positions[(uint64_t)block * KV_HOT_BLOCK_TOKENS]);
    }
}

/* What has come from flash. */
static void evaluate(struct key_reader *r, const void *keys, uint32_t n, uint32_t slot,
                     const uint32_t *positions)
{
    struct host_evaluator *e = of(r);
    score_tokens(e, keys, n, positions);
    for (uint32_t i = 0; cache_of(e)->n_frames && i < n; i += KV_GROUP_TOKENS) {
        uint32_t lanes = 0;
        for (uint32_t j = 0; j < KV_GROUP_TOKENS; j++)
            lanes |= (uint32_t)(positions[i + j] != COLD_NONE) << j;
        cached_digests_fill(cache_of(e), (slot + i) / KV_GROUP_TOKENS, lanes,
                            (const uint8_t *)keys + (uint64_t)i * r->key_bytes);
    }
}

/* ---- a query -------------------------------------------------------------------------------- */

#define GROUP_ALL ((1u << KV_GROUP_TOKENS) - 1)

enum group_place { GROUP_EMPTY, GROUP_CACHED, GROUP_ON_FLASH };

/* Where the digests of a group's tokens that count are. */
static enum group_place place_of(const struct host_evaluator *e, uint32_t group)
{
    const struct cold_map *cold = &e->reader.base.core->tiers.cold;
    uint32_t here = (uint32_t)(cached_digests_here(cache_of(e), group / CACHED_BLOCK_GROUPS) >>
                               group % CACHED_BLOCK_GROUPS * KV_GROUP_TOKENS) &
                    GROUP_ALL;
    enum group_place place = GROUP_EMPTY;
    for (uint32_t i = 0; i < KV_GROUP_TOKENS; i++) {
        if (cold_map_position(cold, e->reader.list, (uint64_t)group * KV_GROUP_TOKENS + i) ==
            COLD_NONE)
            continue;
        place = GROUP_CACHED;
        if (!(here >> i & 1))
            return GROUP_ON_FLASH;
        if (here == GROUP_ALL)
            break;
    }
    return place;
}

static void add_cached(struct host_evaluator *e, uint32_t group)
{
    struct cached_run *last = e->n_runs ? &e->runs[e->n_runs - 1] : NULL;
    e->n_cached++;
    if (last && last->group + last->n == group && group % CACHED_BLOCK_GROUPS)
        last->n++;
    else
        e->runs[e->n_runs++] = (struct cached_run){group, 1};
}

static void add_read(struct host_evaluator *e, uint32_t group)
{
    struct key_reader *r = &e->reader;
    uint32_t slot = group * KV_GROUP_TOKENS;
    struct key_range *last = r->n_ranges ? &r->ranges[r->n_ranges - 1] : NULL;
    bool borders = slot % r->base.core->tiers.cold.stripe_slots == 0;
    cached_digests_want(cache_of(e), group / CACHED_BLOCK_GROUPS, r->list);
    if (last && last->first_slot + last->n_slots == slot && !borders)
        last->n_slots += KV_GROUP_TOKENS;
    else
        r->ranges[r->n_ranges++] = (struct key_range){slot, KV_GROUP_TOKENS};
}

static void list_stripe(struct key_reader *r, uint32_t first_slot, uint32_t n)
{
    struct host_evaluator *e = of(r);
    uint32_t first = first_slot / KV_GROUP_TOKENS, end = first + kv_groups_touched(0, n);
    for (uint32_t group = first; group < end; group++) {
        enum group_place place = place_of(e, group);
        if (place == GROUP_CACHED)
            add_cached(e, group);
        else if (place == GROUP_ON_FLASH)
            add_read(e, group);
    }
}

static void begin(struct evaluator *base, struct query *q)
{
    struct host_evaluator *e = of(base);
    const struct kv_geometry *g = &base->core->config.geometry;
    e->digest = key_sample_query(base->core, q->sequence, q->header.layer, q->vector, q->n_tokens,
                                 e->digest_bytes);
    e->all_scored = false;
    atomic_store_explicit(&e->scored, 0, memory_order_relaxed /* see the struct */);
    e->n_runs = e->n_cached = 0;
    key_reader_begin(&e->reader, q);
    key_reader_each_stripe(&e->reader, list_stripe);
    key_reader_list_blocks(&e->reader, run_near);
    e->reader.hot.bytes = (uint64_t)e->reader.hot.n * KV_HOT_BLOCK_TOKENS * kv_digest_bytes(g) +
                          (uint64_t)e->n_cached * kv_group_bytes(g);
    e->reader.hot.n += e->n_runs;
    key_reader_start(&e->reader);
}

/* A modelled CPU (base/csd_model.h) would still be scoring for so long: all tokens, since the query
 * began. */
static void model_cpu(const struct host_evaluator *e, struct query *q)
{
    struct core *c = e->reader.base.core;
    q->due_ns = device_charge(&c->device, DEVICE_CPU, core_charged_kv(c, q->n_tokens),
                              device_at(e->reader.began_ns))
                    .due;
}

static int step(struct evaluator *base, struct query *q)
{
    struct host_evaluator *e = of(base);
    int rc = e->all_scored ? EVALUATOR_DONE : key_reader_step(base, q);
    if (rc != EVALUATOR_DONE)
        return rc;
    if (!e->all_scored)
        model_cpu(e, q);
    e->all_scored = true;
    if (q->due_ns && clock_now_ns() < q->due_ns)
        return EVALUATOR_WAITS;
    q->due_ns = 0;
    return EVALUATOR_DONE;
}

static int settle(struct evaluator *base, struct query *q)
{
    q->due_ns = 0;
    return key_reader_settle(base, q);
}

static int scores_of(struct key_reader *r, const struct query *q, uint32_t *count, uint32_t *wanted)
{
    (void)wanted;
    *count = atomic_load_explicit(&of(r)->scored, memory_order_relaxed /* see the struct */);
    return *count == q->n_tokens ? 0 : HILL_E_PROTOCOL;
}

/* ---- life ----------------------------------------------------------------------------------- */

static int create(struct evaluator **out, struct core *core, struct agent *agent)
{
    struct host_evaluator *e = calloc(1, sizeof *e);
    if (!e)
        return HILL_E_NOMEM;
    e->reader.base = (struct evaluator){&evaluate_host, core, agent};
    *out = &e->reader.base;
    e->digest_bytes = calloc(kv_query_bytes_max(&core->config.geometry), 1);
    e->runs = calloc(runs_max(core), sizeof *e->runs);
    if (!e->digest_bytes || !e->runs)
        return HILL_E_NOMEM;
    return key_reader_create(&e->reader, runs_max(core), evaluate, scores_of);
}

static void destroy(struct evaluator *base)
{
    struct host_evaluator *e = of(base);
    key_reader_destroy(&e->reader);
    free(e->digest_bytes);
    free(e->runs);
    free(e);
}

static uint64_t private_bytes(const struct evaluator *base)
{
    const struct host_evaluator *e = of(base);
    return key_reader_bytes(&e->reader) + runs_max(base->core) * sizeof *e->runs +
           kv_query_bytes_max(&base->core->config.geometry);
}

const struct evaluator_ops evaluate_host = {.create = create,
                                            .destroy = destroy,
                                            .bytes = private_bytes,
                                            .mends = true,
                                            .open = open_sequence,
                                            .adopt = digest_adopt,
                                            .look = digest_look,
                                            .plane = make_plane,
                                            .begin = begin,
                                            .step = step,
                                            .settle = settle,
                                            .finish = key_reader_finish};
