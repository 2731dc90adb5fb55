/*
 * cpu_scorer/evaluate_digest.c - hillinfer: digests are scored where they lie; see evaluator.h.
 *
 * The query's digest goes to the drive; meanwhile the threads score the hot blocks, and the cold
 * ones whose digests are in M_0 (--digest-mb, cached_digests.h), which the drive is told to pass
 * over: a chunk between two looks at the agent's rings, so that the agent never waits for room.
 * These scores go into the selector while Score Blocks still arrive. A completion must name as many
 * slots as are committed; a score of a slot that is not ours or not committed is an error, never a
 * guess.
 */
#include "cpu_scorer/evaluate_digest.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cpu_scorer/key_sample.h"

#define TUPLES_AT_ONCE 512u

static struct digest_evaluator *of(struct evaluator *e)
{
    return (struct digest_evaluator *)(void *)e;
}

/* ---- tokens --------------------------------------------------------------------------------- */

int digest_adopt(struct evaluator *e, const struct sequence *s)
{
    return key_sample_adopt(e->core, s);
}

void digest_look(struct evaluator *e, const struct sequence *s, const struct record_append *r)
{
    key_sample_look(e->core, s, r);
}

void digest_plane(struct evaluator *e, const struct sequence *s, uint32_t layer,
                  const struct plane_source *from, uint8_t *plane)
{
    const struct hkm *hkm = &e->core->tiers.hkm;
    const struct kv_geometry *g = &e->core->config.geometry;
    uint32_t lane = from->slot % KV_GROUP_TOKENS;
    if (from->entries) {
        kv_digest_keys(g, (const uint16_t *)(const void *)from->entries, hkm->entry_bytes / 2,
                       from->n, plane, lane);
        return;
    }
    for (uint32_t i = 0; i < from->n; i++)
        kv_digest_copy(g, plane, lane + i, hkm->digests,
                       hkm_slot(core_location(e->core, s, layer, from->positions[i])), 1);
}

const struct sequence *digest_owner(const struct core *c, uint32_t block)
{
    const struct cold_map *cold = &c->tiers.cold;
    uint32_t part = cold->stripes[(uint64_t)block * KV_HOT_BLOCK_TOKENS / cold->stripe_slots].list;
    if (part == COLD_NONE)
        return NULL;
    const struct sequence *s = &c->sequences[part / cold->n_drives / c->config.geometry.n_layers];
    return s->state == SEQUENCE_FREE ? NULL : s;
}

/* What belongs to sequences that are over gives room; in lent blocks there is nothing of them. */
static void open_sequence(struct evaluator *base, const struct sequence *s)
{
    struct cached_digests *cache = &base->core->tiers.digests;
    bool own = cache->n_frames && !cache->config.n_owners;
    (void)s;
    for (uint32_t i = 0; own && i < cache->config.n_blocks; i++)
        if (!digest_owner(base->core, i))
            cached_digests_drop(cache, i);
}

/* A block gets its frame with its first slot: no other of its slots has an older digest on flash
 * alone. Slots of copies are written where they lie. */
static void make_plane(struct evaluator *base, const struct sequence *s, uint32_t layer,
                       const struct plane_source *from, uint8_t *plane)
{
    struct cached_digests *cache = &base->core->tiers.digests;
    digest_plane(base, s, layer, from, plane);
    for (uint32_t i = 0; cache->n_frames && i < from->n; i++) {
        uint32_t slot = from->slots ? from->slots[i] : from->slot + i;
        if (!from->slots && slot % KV_HOT_BLOCK_TOKENS == 0)
            cached_digests_want(cache, slot / KV_HOT_BLOCK_TOKENS,
                                tiers_list(&base->core->tiers, s->index, layer));
        cached_digests_put(cache, slot, plane, from->slot % KV_GROUP_TOKENS + i);
    }
}

/* ---- the drives ----------------------------------------------------------------------------- */

static struct agent *agent_of(const struct digest_row *row)
{
    return row->evaluator->base.agent;
}

struct digest_row *digest_open(struct digest_evaluator *e, struct query *q)
{
    const struct tiers *t = &e->base.core->tiers;
    struct digest_row *row = &e->rows[q->place];
    memset(row->drives, 0, sizeof row->drives);
    for (uint32_t d = 0; d < e->base.agent->n_drives; d++)
        row->drives[d].committed = row->drives[d].expected =
            t->cold.lists[tiers_part(t, q->sequence->index, q->header.layer, d)].committed;
    row->digest = key_sample_query(e->base.core, q->sequence, q->header.layer, q->vector,
                                   q->n_tokens, row->digest_bytes);
    row->query = q;
    row->cold_expected =
        cold_map_committed(&t->cold, tiers_list(t, q->sequence->index, q->header.layer));
    row->cold_scored = 0;
    row->n_near = row->near_tokens = 0;
    row->cold_done = false;
    row->status = 0;
    row->cold_ns = 0;
    row->relayed_ns = clock_now_ns();
    return row;
}

void digest_close(struct digest_row *row)
{
    row->query = NULL;
}

/* A block of 64 slots of a stripe, of which n are handed out, is the host's where the digests of
 * all its slots that count are in memory. */
static void look_at_block(struct digest_row *row, uint32_t drive, uint32_t stripe, uint32_t within,
                          uint32_t n)
{
    struct digest_drive *d = &row->drives[drive];
    const struct core *c = row->evaluator->base.core;
    const struct cached_digests *cache = &c->tiers.digests;
    const struct cold_map *cold = &c->tiers.cold;
    uint32_t of_stripe = cold->stripe_slots / KV_HOT_BLOCK_TOKENS;
    uint32_t block = stripe * of_stripe + within;
    uint64_t bit = (uint64_t)cold->stripes[stripe].order * of_stripe + within, counting;
    if (!cached_digests_has(cache, block) || row->n_near == core_blocks_max(c) ||
        bit / 64 >= RECORD_HOST_WORDS_MAX)
        return;
    counting = cold_map_counting(cold, block * KV_HOT_BLOCK_TOKENS, n);
    if (!counting || counting & ~cached_digests_here(cache, block))
        return;
    uint32_t tokens = (uint32_t)__builtin_popcountll(counting);
    row->near[row->n_near++] = block;
    row->near_tokens += tokens;
    row->cold_expected -= tokens;
    d->expected -= tokens;
    d->n_host_words = (uint32_t)(bit / 64) + 1; /* bits grow */
}

/* What the host scores of the cold tokens. */
static void list_near(struct digest_row *row)
{
    const struct tiers *t = &row->evaluator->base.core->tiers;
    const struct query *q = row->query;
    bool any = cached_digests_any(&t->digests, tiers_list(t, q->sequence->index, q->header.layer));
    for (uint32_t d = 0; any && d < agent_of(row)->n_drives; d++) {
        const struct cold_list *l =
            &t->cold.lists[tiers_part(t, q->sequence->index, q->header.layer, d)];
        bool more = l->current != COLD_NONE;
        for (uint32_t s = l->first; more; s = t->cold.stripes[s].next) {
            more = s != l->current;
            uint32_t used = more ? t->cold.stripe_slots : l->used;
            for (uint32_t i = 0; i * KV_HOT_BLOCK_TOKENS < used; i++) {
                uint32_t left = used - i * KV_HOT_BLOCK_TOKENS;
                look_at_block(row, d, s, i,
                              left < KV_HOT_BLOCK_TOKENS ? left : KV_HOT_BLOCK_TOKENS);
            }
        }
    }
}

/* Commands of rows in flight come out in an order that threads have a part in. A replay grants room
 * by size: no other command's is odd. */
static uint32_t odd(uint32_t bytes)
{
    return bytes | 1;
}

/* The bits of AGENT_QUERY. */
static void tell_near(const struct digest_row *e, uint32_t drive, uint64_t *words)
{
    const struct cold_map *cold = &e->evaluator->base.core->tiers.cold;
    uint32_t of_stripe = cold->stripe_slots / KV_HOT_BLOCK_TOKENS;
    memset(words, 0, e->drives[drive].n_host_words * sizeof *words);
    for (uint32_t i = 0; i < e->n_near; i++) {
        uint32_t stripe = e->near[i] / of_stripe;
        if (cold_map_drive_of(cold, stripe) != drive)
            continue;
        uint64_t bit = (uint64_t)cold->stripes[stripe].order * of_stripe + e->near[i] % of_stripe;
        words[bit / 64] |= (uint64_t)1 << bit % 64;
    }
}

static int relay_to(struct digest_row *e, uint32_t drive)
{
    const struct core *c = e->evaluator->base.core;
    const struct kv_geometry *g = &c->config.geometry;
    const struct query *q = e->query;
    uint32_t bytes = (uint32_t)sizeof(struct record_agent_query) +
                     kv_query_bytes(g, e->digest.importance) +
                     e->drives[drive].n_host_words * (uint32_t)sizeof(uint64_t);
    void *payload;
    int rc = agent_reserve(agent_of(e), drive, odd(bytes), &payload);
    if (rc != 1)
        return rc;
    struct record_agent_query *r = payload;
    *r = (struct record_agent_query){.header = q->header,
                                     .query_id = q->id,
                                     .importance = e->digest.importance,
                                     .block_tokens = c->config.block_tokens,
                                     .committed = e->drives[drive].committed,
                                     .expected = e->drives[drive].expected,
                                     .n_host_words = e->drives[drive].n_host_words};
    tell_near(e, drive, (uint64_t *)(void *)(r + 1));
    memcpy((uint64_t *)(void *)(r + 1) + r->n_host_words, e->digest_bytes,
           kv_query_bytes(g, e->digest.importance));
    agent_publish(agent_of(e), drive, RING_COMMAND, RECORD_AGENT_QUERY, bytes);
    e->drives[drive].relayed = true;
    e->relayed_ns = clock_now_ns();
    return 1;
}

int digest_relay(struct digest_row *e)
{
    for (uint32_t d = 0; d < agent_of(e)->n_drives; d++) {
        bool wanted = e->drives[d].expected && !e->drives[d].relayed;
        int rc = wanted ? relay_to(e, d) : 1;
        if (rc != 1)
            return rc;
    }
    return 1;
}

/* Is no drive's completion to come any more? */
static bool all_done(const struct digest_row *e)
{
    for (uint32_t d = 0; d < agent_of(e)->n_drives; d++)
        if (e->drives[d].expected && !e->drives[d].done)
            return false;
    return true;
}

/* Whose query this answers; NULL: of one that was given up. */
static struct digest_row *find_row(struct digest_evaluator *e, const struct record_header *header,
                                   uint64_t id)
{
    for (uint32_t i = 0; i < e->base.core->config.rows; i++) {
        const struct query *q = e->rows[i].query;
        if (q && q->id == id && q->header.sequence == header->sequence &&
            q->header.layer == header->layer)
            return &e->rows[i];
    }
    return NULL;
}

/* A drive scores one query after the other, and fetches between them: its time for this one is what
 * has passed since its last answer. */
static void count_time(struct digest_row *e, struct digest_drive *d,
                       const struct record_completion *r)
{
    const struct agent *a = agent_of(e);
    d->done_ns = a->lines[a->from].heard_ns;
    int64_t took = d->done_ns - agent_began(a, r, e->relayed_ns);
    e->query->sequence->stats.drives[a->from].score_ns += took;
    e->cold_ns = took > e->cold_ns ? took : e->cold_ns;
}

static void take_completion(void *context, const void *record)
{
    const struct record_completion *r = record;
    struct digest_row *e = find_row(context, &r->header, r->tag);
    if (!e)
        return;
    const struct query *q = e->query;
    struct core *c = e->evaluator->base.core;
    struct digest_drive *d = &e->drives[agent_of(e)->from];
    if (d->done || e->cold_done)
        return;
    d->done = true;
    count_time(e, d, r);
    e->cold_done = all_done(e);
    if (e->status)
        return;
    if (r->status)
        e->status = agent_status(r->status);
    else if (r->count != d->expected)
        e->status = HILL_E_PROTOCOL;
    if (e->status == HILL_E_ENTRY)
        core_fail(
            c, q->sequence, e->status,
            "the digests of layer %u are damaged in the cold pool (a page's checksum does not "
            "match); check the drive",
            q->header.layer);
    else if (e->status)
        core_fail(c, q->sequence, e->status,
                  "scoring layer %u on the drive: %s, after %u of %u slots", q->header.layer,
                  hill_strerror(e->status), r->count, d->expected);
}

static int add_tuples(const struct digest_row *e, const struct record_score_block *b)
{
    const struct score_tuple *tuples = (const struct score_tuple *)(b + 1);
    const struct tiers *t = &e->evaluator->base.core->tiers;
    const struct query *q = e->query;
    uint32_t list = tiers_list(t, q->sequence->index, q->header.layer);
    uint64_t base = cold_map_base(&t->cold, agent_of(e)->from);
    uint32_t positions[TUPLES_AT_ONCE];
    uint16_t scores[TUPLES_AT_ONCE];
    for (uint32_t done = 0; done < b->n;) {
        uint32_t n = b->n - done < TUPLES_AT_ONCE ? b->n - done : TUPLES_AT_ONCE;
        for (uint32_t i = 0; i < n; i++) {
            uint64_t in_stripe = (uint64_t)b->first_slot + tuples[done + i].slot_offset;
            positions[i] = in_stripe < t->cold.stripe_slots
                               ? cold_map_position(
                                     &t->cold, list,
                                     base + (uint64_t)b->stripe * t->cold.stripe_slots + in_stripe)
                               : COLD_NONE;
            scores[i] = tuples[done + i].score;
        }
        int rc = kv_selector_add(q->selector, positions, scores, n); /* refuses COLD_NONE */
        if (rc)
            return rc;
        done += n;
    }
    return 0;
}

static void take_scores(void *context, const void *record)
{
    struct digest_evaluator *all = context;
    const struct record_score_block *b = record;
    struct digest_row *e = find_row(all, &b->header, b->query_id);
    if (!e || e->status) {
        all->base.core->dropped_records++; /* of a query that was given up */
        return;
    }
    const struct query *q = e->query;
    int64_t start = clock_now_ns();
    int rc = add_tuples(e, b);
    if (rc) {
        e->status = rc;
        core_fail(all->base.core, q->sequence, rc,
                  "a Score Block of stripe %u scores a slot twice or a foreign one", b->stripe);
    }
    e->cold_scored += b->n;
    q->sequence->stats.merge_ns += clock_now_ns() - start;
}

/* ---- the hot blocks ------------------------------------------------------------------------- */

struct score_job digest_job(const struct digest_row *e, const uint32_t *blocks, uint32_t n_blocks,
                            uint16_t *scores)
{
    const struct core *c = e->evaluator->base.core;
    return (struct score_job){
        .geometry = &c->config.geometry,
        .query = e->digest,
        .digests = c->tiers.hkm.digests,
        .blocks = blocks,
        .n_blocks = n_blocks,
        .scores = scores,
    };
}

static void start_hot(struct digest_row *e)
{
    struct digest_evaluator *all = e->evaluator;
    struct core *c = all->base.core;
    const struct query *q = e->query;
    STAGE_BEGIN_AT(score_hot, &q->header);
    e->hot_span = stage_span_score_hot;
    e->hot_began_ns = clock_now_ns();
    e->n_blocks = hkm_blocks(&c->tiers.hkm, q->sequence->index, q->header.layer, all->blocks,
                             core_blocks_max(c));
    const struct score_job job = digest_job(e, all->blocks, e->n_blocks, all->scores);
    e->worked_ns = score_pool_worked_ns(c->pool);
    e->read_bytes = score_pool_read_bytes(c->pool);
    c->scored = q;
    score_pool_start(c->pool, &job, c->io.bell);
}

/* How many of a block's slots, from the first, hold positions that follow one another. */
static uint32_t leading_run(const uint32_t *block)
{
    uint32_t differences = 0, n = 1;
    for (uint32_t j = 0; j < KV_HOT_BLOCK_TOKENS; j++) /* without a branch: nearly always all do */
        differences |= block[j] ^ (block[0] + j);
    if (differences == 0)
        return KV_HOT_BLOCK_TOKENS;
    while (block[n] == block[0] + n)
        n++;
    return n;
}

/* The used slots of one scored block, by position, into the selector. Tokens from N on are there
 * when the append ring was ahead of the query ring; they are not covered. */
static int add_block(struct kv_selector *selector, const uint32_t *block, const uint16_t *scores,
                     uint32_t n_tokens)
{
    uint32_t positions[KV_HOT_BLOCK_TOKENS], n = 0, run = 0;
    uint16_t others[KV_HOT_BLOCK_TOKENS];
    if (block[0] < n_tokens) { /* HKM_NO_POSITION is not */
        run = leading_run(block);
        uint32_t covered = n_tokens - block[0] < run ? n_tokens - block[0] : run;
        int rc = kv_selector_add_run(selector, block[0], scores, covered);
        if (rc || run == KV_HOT_BLOCK_TOKENS)
            return rc;
    }
    for (uint32_t j = run; j < KV_HOT_BLOCK_TOKENS; j++) {
        if (block[j] >= n_tokens)
            continue;
        positions[n] = block[j];
        others[n++] = scores[j];
    }
    return kv_selector_add(selector, positions, others, n);
}

static int add_hot_scores(struct digest_row *e, struct query *q)
{
    const struct digest_evaluator *all = e->evaluator;
    const struct hkm *hkm = &all->base.core->tiers.hkm;
    int64_t start = clock_now_ns();
    int rc = 0;
    STAGE_BEGIN_AT(merge, &q->header);
    for (uint32_t i = 0; i < e->n_blocks && rc == 0; i++)
        rc = add_block(q->selector, &hkm->positions[(uint64_t)all->blocks[i] * KV_HOT_BLOCK_TOKENS],
                       all->scores + (uint64_t)i * KV_HOT_BLOCK_TOKENS, q->n_tokens);
    STAGE_END(merge, (uint64_t)e->n_blocks * KV_HOT_BLOCK_TOKENS * sizeof(uint16_t));
    q->sequence->stats.merge_ns += clock_now_ns() - start;
    if (rc)
        core_fail(all->base.core, q->sequence, rc, "the hot pool holds a token of layer %u twice",
                  q->header.layer);
    return rc;
}

/* ---- cold blocks whose digests are in memory ------------------------------------------------ */

static void score_block(const struct scorer_config *c, const struct digest_row *e, uint32_t block,
                        uint16_t *scores)
{
    const struct cached_digests *cache = &e->evaluator->base.core->tiers.digests;
    for (uint32_t group = 0, n; group < CACHED_BLOCK_GROUPS; group += n) {
        const uint8_t *digests = cached_digests_at(cache, block, group, &n);
        c->score(&c->geometry, &e->digest, digests, n * KV_GROUP_TOKENS,
                 scores + (uint64_t)group * KV_GROUP_TOKENS);
    }
}

/* The next block is read while one is scored: it lies anywhere, and the hardware's prefetchers end
 * with a page. */
static void fetch_ahead(const struct scorer_config *c, const struct digest_row *e, uint32_t block)
{
    const struct cached_digests *cache = &e->evaluator->base.core->tiers.digests;
    for (uint32_t group = 0, n; group < CACHED_BLOCK_GROUPS; group += n) {
        const uint8_t *digests = cached_digests_at(cache, block, group, &n);
        uint32_t bytes = n * kv_group_bytes(&c->geometry);
        for (uint32_t i = 0; i < bytes; i += KV_GROUP_ALIGN)
            __builtin_prefetch(digests + i, 0, 2);
    }
}

static void run_near(void *context, uint32_t first, uint32_t end)
{
    const struct digest_row *e = context;
    struct digest_evaluator *all = e->evaluator;
    const struct scorer_config *c = &all->base.core->config;
    for (uint32_t i = first; i < end; i++) {
        if (i + 1 < end)
            fetch_ahead(c, e, e->near[i + 1]);
        score_block(c, e, e->near[i], all->near_scores + (uint64_t)i * KV_HOT_BLOCK_TOKENS);
    }
}

static uint64_t near_bytes(const struct digest_row *e)
{
    return (uint64_t)e->n_near * KV_HOT_BLOCK_TOKENS *
           kv_digest_bytes(&e->evaluator->base.core->config.geometry);
}

static void start_near(struct digest_row *e, const struct query *q)
{
    struct core *c = e->evaluator->base.core;
    const struct work_job job = {run_near, e, e->n_near, near_bytes(e)};
    STAGE_BEGIN_AT(score_hot, &q->header);
    e->hot_span = stage_span_score_hot;
    score_pool_start_work(c->pool, &job, c->io.bell);
}

static int add_near_scores(struct digest_row *e, struct query *q)
{
    const struct digest_evaluator *all = e->evaluator;
    const struct cold_map *cold = &all->base.core->tiers.cold;
    uint32_t list = tiers_list(&all->base.core->tiers, q->sequence->index, q->header.layer);
    int64_t start = clock_now_ns();
    int rc = 0;
    STAGE_BEGIN_AT(merge, &q->header);
    for (uint32_t i = 0; i < e->n_near && rc == 0; i++) {
        uint32_t slot = e->near[i] * KV_HOT_BLOCK_TOKENS, positions[KV_HOT_BLOCK_TOKENS];
        cold_map_positions(cold, list, slot, KV_HOT_BLOCK_TOKENS, positions);
        rc = add_block(q->selector, positions, all->near_scores + (uint64_t)i * KV_HOT_BLOCK_TOKENS,
                       q->n_tokens);
    }
    STAGE_END(merge, (uint64_t)e->n_near * KV_HOT_BLOCK_TOKENS * sizeof(uint16_t));
    q->sequence->stats.merge_ns += clock_now_ns() - start;
    if (rc)
        core_fail(all->base.core, q->sequence, rc, "a cold slot of layer %u is scored twice",
                  q->header.layer);
    return rc;
}

/* A modelled CPU (base/csd_model.h) would still be scoring for so long. */
static void model_cpu(struct digest_row *e, struct query *q)
{
    struct core *c = e->evaluator->base.core;
    uint64_t tokens =
        hkm_hot_tokens(&c->tiers.hkm, q->sequence->index, q->header.layer) + e->near_tokens;
    struct device_span span = device_charge(&c->device, DEVICE_CPU, core_charged_kv(c, tokens),
                                            device_at(e->hot_began_ns));
    int64_t took = span.due - span.start, real = e->real_ns;
    q->sequence->stats.score_hot_ns += took > real ? took - real : 0;
    q->due_ns = span.due;
}

static int end_hot(struct digest_row *e, struct query *q)
{
    struct core *c = e->evaluator->base.core;
    const struct stage_span stage_span_score_hot = e->hot_span;
    STAGE_END(score_hot,
              (uint64_t)e->n_blocks * KV_HOT_BLOCK_TOKENS * kv_digest_bytes(&c->config.geometry));
    e->real_ns = score_pool_last_ns(c->pool);
    if (e->n_near)
        start_near(e, q); /* while the hot scores go into the selector */
    return add_hot_scores(e, q);
}

static int end_near(struct digest_row *e, struct query *q)
{
    struct core *c = e->evaluator->base.core;
    const struct stage_span stage_span_score_hot = e->hot_span;
    STAGE_END(score_hot, near_bytes(e));
    e->real_ns += score_pool_last_ns(c->pool);
    return add_near_scores(e, q);
}

/* Everything that the host scores is in the selector. */
static void end_host(struct digest_row *e, struct query *q)
{
    struct core *c = e->evaluator->base.core;
    q->sequence->stats.score_hot_ns += e->real_ns;
    q->sequence->stats.score_cpu_ns += score_pool_worked_ns(c->pool) - e->worked_ns;
    q->sequence->stats.scored_bytes += score_pool_read_bytes(c->pool) - e->read_bytes;
    if (q->kind != QUERY_AHEAD) /* which is not among the queries that are counted */
        q->sequence->stats.near_tokens += e->near_tokens;
    model_cpu(e, q);
    c->scored = NULL; /* the threads are another row's */
    q->drive_is_left = true;
}

/* ---- a query -------------------------------------------------------------------------------- */

static void begin(struct evaluator *base, struct query *q)
{
    struct core *c = base->core;
    if (!c->scored) /* else the threads are busy with another row */
        score_pool_expect(c->pool,
                          hkm_hot_tokens(&c->tiers.hkm, q->sequence->index, q->header.layer) *
                              kv_digest_bytes(&c->config.geometry));
    struct digest_row *row = digest_open(of(base), q);
    list_near(row);
    row->stage = DIGEST_RELAY;
}

static void start_cold(struct digest_row *e, const struct query *q)
{
    STAGE_BEGIN_AT(score_cold, &q->header);
    e->cold_span = stage_span_score_cold;
}

static int wait_for_cold(struct digest_row *e, struct query *q)
{
    if (!e->cold_expected)
        return EVALUATOR_DONE;
    if (e->status)
        return e->status;
    if (!e->cold_done)
        return EVALUATOR_WAITS;
    if (e->cold_scored != e->cold_expected) {
        core_fail(e->evaluator->base.core, q->sequence, HILL_E_PROTOCOL,
                  "the drive scored %u of %u slots of layer %u", e->cold_scored, e->cold_expected,
                  q->header.layer);
        return HILL_E_PROTOCOL;
    }
    const struct stage_span stage_span_score_cold = e->cold_span;
    STAGE_END(score_cold, (uint64_t)e->cold_scored * sizeof(struct score_tuple));
    q->sequence->stats.score_cold_ns += e->cold_ns;
    return EVALUATOR_DONE;
}

static int step(struct evaluator *base, struct query *q)
{
    struct digest_row *e = &of(base)->rows[q->place];
    int rc;
    switch (e->stage) {
    case DIGEST_RELAY:
        rc = e->cold_expected ? digest_relay(e) : 1;
        if (rc != 1)
            return rc;
        e->stage = DIGEST_THREADS; /* fall through */
    case DIGEST_THREADS:
        if (base->core->scored)
            return EVALUATOR_WAITS; /* an earlier row's hot blocks */
        start_hot(e);
        e->stage = DIGEST_HOT; /* fall through */
    case DIGEST_HOT:
        if (score_pool_work(base->core->pool))
            return EVALUATOR_WORKS;
        if (!score_pool_done(base->core->pool))
            return EVALUATOR_WAITS; /* the last helper rings */
        rc = end_hot(e, q);
        if (rc)
            return rc;
        e->stage = DIGEST_NEAR; /* fall through */
    case DIGEST_NEAR:
        if (e->n_near && score_pool_work(base->core->pool))
            return EVALUATOR_WORKS;
        if (e->n_near && !score_pool_done(base->core->pool))
            return EVALUATOR_WAITS;
        rc = e->n_near ? end_near(e, q) : 0;
        if (rc)
            return rc;
        end_host(e, q);
        e->stage = DIGEST_CPU; /* fall through */
    case DIGEST_CPU:
        if (q->due_ns && clock_now_ns() < q->due_ns)
            return EVALUATOR_WAITS;
        q->due_ns = 0;
        start_cold(e, q);
        e->stage = DIGEST_COLD; /* fall through */
    default:
        return wait_for_cold(e, q);
    }
}

/* Nobody reads the tables after this; what the drive still sends is dropped. */
static int settle(struct evaluator *base, struct query *q)
{
    if (base->core->scored == q) {
        score_pool_wait(base->core->pool);
        base->core->scored = NULL;
    }
    q->due_ns = 0;
    digest_close(&of(base)->rows[q->place]);
    return EVALUATOR_DONE;
}

static int finish(struct evaluator *base, struct query *q)
{
    digest_close(&of(base)->rows[q->place]);
    return 0;
}

/* ---- life ----------------------------------------------------------------------------------- */

static int create_rows(struct digest_evaluator *e)
{
    const struct scorer_config *c = &e->base.core->config;
    e->rows = calloc(c->rows, sizeof *e->rows);
    for (uint32_t i = 0; e->rows && i < c->rows; i++) {
        struct digest_row *row = &e->rows[i];
        row->evaluator = e;
        row->digest_bytes = calloc(kv_query_bytes_max(&c->geometry), 1);
        if (e->base.core->tiers.digests.n_frames)
            row->near = calloc(core_blocks_max(e->base.core), sizeof *row->near);
        if (!row->digest_bytes || (e->base.core->tiers.digests.n_frames && !row->near))
            return HILL_E_NOMEM;
    }
    return e->rows ? 0 : HILL_E_NOMEM;
}

static int create(struct evaluator **out, struct core *core, struct agent *agent)
{
    struct digest_evaluator *e = calloc(1, sizeof *e);
    if (!e)
        return HILL_E_NOMEM;
    e->base = (struct evaluator){&evaluate_digest, core, agent};
    *out = &e->base;
    e->blocks = calloc(core_blocks_max(core), sizeof *e->blocks);
    e->scores = calloc((size_t)core_blocks_max(core) * KV_HOT_BLOCK_TOKENS, sizeof *e->scores);
    agent_on(agent, RECORD_AGENT_QUERY, take_completion, e);
    agent_on(agent, RECORD_SCORE_BLOCK, take_scores, e);
    if (core->tiers.digests.n_frames)
        e->near_scores =
            calloc((size_t)core_blocks_max(core) * KV_HOT_BLOCK_TOKENS, sizeof *e->near_scores);
    if (!e->blocks || !e->scores || (core->tiers.digests.n_frames && !e->near_scores))
        return HILL_E_NOMEM;
    return create_rows(e);
}

static void destroy(struct evaluator *base)
{
    struct digest_evaluator *e = of(base);
    for (uint32_t i = 0; e->rows && i < base->core->config.rows; i++) {
        free(e->rows[i].digest_bytes);
        free(e->rows[i].near);
    }
    free(e->rows);
    free(e->near_scores);
    free(e->blocks);
    free(e->scores);
    free(e);
}

_Static_assert(sizeof(struct query) + sizeof(struct digest_row) <= KV_ROW_BYTES, "the plan's");

static uint64_t private_bytes(const struct evaluator *base)
{
    const struct core *c = base->core;
    uint64_t blocks = core_blocks_max(c), scores = KV_HOT_BLOCK_TOKENS * sizeof(uint16_t);
    uint64_t near = blocks * (scores + c->config.rows * sizeof(uint32_t));
    return blocks * (sizeof(uint32_t) + scores) +
           c->config.rows * (sizeof(struct digest_row) + kv_query_bytes_max(&c->config.geometry)) +
           (c->tiers.digests.n_frames ? near : 0);
}

const struct evaluator_ops evaluate_digest = {.create = create,
                                              .destroy = destroy,
                                              .bytes = private_bytes,
                                              .mends = true,
                                              .open = open_sequence,
                                              .adopt = digest_adopt,
                                              .look = digest_look,
                                              .plane = make_plane,
                                              .rows = UINT32_MAX,
                                              .begin = begin,
                                              .step = step,
                                              .settle = settle,
                                              .finish = finish};
