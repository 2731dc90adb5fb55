/*
 * cpu_scorer/pipeline_keys.c - a query of a policy that evaluates FP16 keys on the CPU: h2o and
 * oracle.
 *
 * Hot keys are the first half of their entries. Cold ones come over the link with every query:
 * READ_KEYS commands fill the windows behind the staging arena one after the other, up to
 * KV_KEY_WINDOWS on their way while the scoring threads evaluate the hot blocks and then the
 * windows that have arrived. Windows are given again when they have been evaluated. What came over
 * is counted as link_key by its completions. The query is open meanwhile, so that nothing of the
 * tables moves. Who calls it: pipeline_query.c and, for completions, pipeline_agent.c; data thread
 * alone. Failure: a query that fails waits until no command of it is out any more, since the agent
 * may still be writing into a window.
 */
#include "cpu_scorer/pipeline_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/stage_trace.h"
#include "cpu_scorer/mass_table.h"
#include "kv/plane.h"

#define RANGES_MAX (KV_KEY_WINDOW_BYTES / KV_PAGE_BYTES) /* of a window: each has a page at least  \
                                                          */
#define PIECE_SLOTS 64u                                  /* of one range: a job's item */

enum window_state { WINDOW_FREE, WINDOW_READING, WINDOW_THERE };

struct key_window {
    enum window_state state;
    uint64_t tag;
    uint32_t n_ranges;
    struct key_range ranges[RANGES_MAX];
};

/* Keys that lie one after the other. */
struct key_piece {
    const uint16_t *keys;
    uint32_t slot, n;
};

enum key_job { JOB_NONE, JOB_HOT, JOB_WINDOW };

struct key_eval {
    struct mass_table *mass;
    struct key_range *ranges; /* of the query: [ranges_max] */
    uint32_t ranges_max, n_ranges;
    uint32_t next_range, next_slot; /* what is to be read next */
    struct key_window windows[KV_KEY_WINDOWS];
    uint32_t next_read, next_work; /* windows are used in turn */
    uint32_t n_open;               /* READ_KEYS without their completion */
    int status;                    /* of those */
    enum key_job job;              /* in the pool's hands */
    bool hot_done;
    /* what the pool's job reads */
    struct pipeline *pipeline;
    uint32_t n_blocks, list;
    struct key_piece *pieces; /* [pieces_max] */
    uint32_t n_pieces;
};

/* ---- life ---------------------------------------------------------------------------------- */

static uint32_t pieces_max(const struct pipeline_config *c)
{
    uint32_t key_bytes = kv_plane_key_bytes(&c->geometry, c->policy);
    return c->key_window_bytes / (key_bytes * PIECE_SLOTS) + RANGES_MAX + 1;
}

int keys_create(struct pipeline *p)
{
    const struct pipeline_config *c = &p->config;
    if (!kv_policy_reads_keys(c->policy))
        return 0;
    struct key_eval *e = p->keys = calloc(1, sizeof *e);
    if (!e)
        return HILL_E_NOMEM;
    e->pipeline = p;
    e->ranges_max = p->cold.n_stripes + 1;
    e->ranges = calloc(e->ranges_max, sizeof *e->ranges);
    e->pieces = calloc(pieces_max(c), sizeof *e->pieces);
    if (!e->ranges || !e->pieces)
        return HILL_E_NOMEM;
    return mass_table_create(&e->mass, &c->geometry, c->mass, c->ctx_tokens, c->n_sequences);
}

void keys_destroy(struct pipeline *p)
{
    if (!p->keys)
        return;
    mass_table_destroy(p->keys->mass);
    free(p->keys->ranges);
    free(p->keys->pieces);
    free(p->keys);
    p->keys = NULL;
}

void keys_begin(struct pipeline *p, struct sequence *s)
{
    if (p->keys)
        mass_table_clear(p->keys->mass, s->index);
}

/* ---- what is to be read --------------------------------------------------------------------- */

/* The used part of each of the list's stripes, up to its last committed slot. */
static void list_stripes(struct pipeline *p, struct key_eval *e)
{
    const struct cold_list *l = &p->cold.lists[e->list];
    uint32_t slots = p->cold.stripe_slots;
    e->n_ranges = 0;
    if (l->committed == 0)
        return;
    for (uint32_t s = l->first; s != COLD_NONE; s = p->cold.stripes[s].next) {
        uint32_t n = s == l->current ? l->used : slots;
        while (n && cold_map_position(&p->cold, e->list, (uint64_t)s * slots + n - 1) == COLD_NONE)
            n--;
        if (n)
            e->ranges[e->n_ranges++] = (struct key_range){s * slots, n};
        if (s == l->current)
            break;
    }
}

/* How many of `left` slots from `slot` on fit `room` bytes of whole pages. */
static uint32_t slots_that_fit(const struct pipeline *p, uint32_t slot, uint32_t left,
                               uint64_t room)
{
    uint32_t key_bytes = kv_plane_key_bytes(&p->config.geometry, p->config.policy);
    uint64_t at = (uint64_t)(slot % p->cold.stripe_slots) * key_bytes % KV_PAGE_BYTES;
    uint64_t fit = room > at ? (room / KV_PAGE_BYTES * KV_PAGE_BYTES - at) / key_bytes : 0;
    return fit < left ? (uint32_t)fit : left;
}

static uint64_t range_pages(const struct pipeline *p, const struct key_range *r)
{
    uint32_t key_bytes = kv_plane_key_bytes(&p->config.geometry, p->config.policy);
    return kv_key_pages((uint64_t)(r->first_slot % p->cold.stripe_slots) * key_bytes, r->n_slots,
                        key_bytes);
}

/* Fill the window's ranges from what is left; where the reading goes on is in *range and *slot. */
static void fill_window(struct pipeline *p, struct key_eval *e, struct key_window *w, uint32_t most,
                        uint32_t *range, uint32_t *slot)
{
    uint64_t used = 0;
    w->n_ranges = 0;
    while (*range < e->n_ranges && w->n_ranges < most) {
        const struct key_range *r = &e->ranges[*range];
        uint32_t left = r->n_slots - *slot, first = r->first_slot + *slot;
        uint32_t n = slots_that_fit(p, first, left, p->config.key_window_bytes - used);
        if (n == 0)
            break;
        w->ranges[w->n_ranges] = (struct key_range){first, n};
        used += range_pages(p, &w->ranges[w->n_ranges++]);
        *slot += n;
        if (n == left) {
            ++*range;
            *slot = 0;
        }
    }
}

/* Have the next window filled, when it is free and something is left: 1, 0, or an error. */
static int push_read(struct pipeline *p, const struct record_query *q)
{
    struct key_eval *e = p->keys;
    struct key_window *w = &e->windows[e->next_read];
    struct shm_ring_end *ring = &p->io.rings[RING_COMMAND];
    uint32_t range = e->next_range, slot = e->next_slot;
    if (e->status || range == e->n_ranges || w->state != WINDOW_FREE)
        return 0;
    uint32_t most = (shm_ring_payload_max(ring) - (uint32_t)sizeof(struct record_read_keys)) /
                    (uint32_t)sizeof(struct key_range);
    fill_window(p, e, w, most < RANGES_MAX ? most : RANGES_MAX, &range, &slot);
    uint32_t bytes =
        (uint32_t)(sizeof(struct record_read_keys) + w->n_ranges * sizeof(struct key_range));
    void *payload;
    int rc = shm_ring_reserve(ring, bytes, &payload);
    if (rc)
        return rc == HILL_E_PEER_GONE || rc == HILL_E_WOULD_BLOCK ? p->agent_status : rc;
    struct record_read_keys *record = payload;
    w->tag = agent_tag(p);
    *record = (struct record_read_keys){
        .header = q->header, .tag = w->tag, .window = e->next_read, .n_ranges = w->n_ranges};
    memcpy(record + 1, w->ranges, w->n_ranges * sizeof *w->ranges);
    shm_ring_publish(ring, RECORD_READ_KEYS, bytes);
    agent_sent(p);
    w->state = WINDOW_READING;
    e->next_read = (e->next_read + 1) % KV_KEY_WINDOWS;
    e->next_range = range;
    e->next_slot = slot;
    e->n_open++;
    return 1;
}

void keys_complete(struct pipeline *p, const struct record_completion *c)
{
    struct key_eval *e = p->keys;
    for (uint32_t i = 0; e && i < KV_KEY_WINDOWS; i++) {
        struct key_window *w = &e->windows[i];
        if (w->state != WINDOW_READING || w->tag != c->tag)
            continue;
        w->state = WINDOW_THERE;
        e->n_open--;
        p->query.cold_done_ns = clock_now_ns();
        if (!c->status || e->status)
            return;
        e->status = c->status;
        pipeline_fail(p, &p->sequences[p->query.sequence], c->status,
                      "reading keys of layer %u from the drive", p->query.layer);
        return;
    }
}

/* ---- evaluating ----------------------------------------------------------------------------- */

static void run_hot(void *context, uint32_t first, uint32_t end)
{
    const struct key_eval *e = context;
    const struct pipeline *p = e->pipeline;
    for (uint32_t i = first; i < end; i++) {
        uint32_t slot = p->blocks[i] * KV_HOT_BLOCK_TOKENS;
        mass_table_keys(e->mass, (const uint16_t *)(const void *)hkm_entry(&p->hkm, slot),
                        p->hkm.entry_bytes / 2, KV_HOT_BLOCK_TOKENS, &p->hkm.positions[slot]);
    }
}

static void run_pieces(void *context, uint32_t first, uint32_t end)
{
    const struct key_eval *e = context;
    const struct pipeline *p = e->pipeline;
    uint32_t positions[PIECE_SLOTS];
    for (uint32_t i = first; i < end; i++) {
        const struct key_piece *piece = &e->pieces[i];
        for (uint32_t j = 0; j < piece->n; j++) /* COLD_NONE is beyond any query */
            positions[j] = cold_map_position(&p->cold, e->list, (uint64_t)piece->slot + j);
        mass_table_keys(e->mass, piece->keys, p->hkm.key_dims, piece->n, positions);
    }
}

/* The window's keys as pieces. */
static void list_pieces(struct pipeline *p, struct key_eval *e, uint32_t window)
{
    const struct key_window *w = &e->windows[window];
    uint32_t key_bytes = kv_plane_key_bytes(&p->config.geometry, p->config.policy);
    const uint8_t *pages = p->io.key_windows + (uint64_t)window * p->config.key_window_bytes;
    e->n_pieces = 0;
    for (uint32_t i = 0; i < w->n_ranges; i++) {
        const struct key_range *r = &w->ranges[i];
        const uint8_t *at =
            pages + (uint64_t)(r->first_slot % p->cold.stripe_slots) * key_bytes % KV_PAGE_BYTES;
        for (uint32_t j = 0; j < r->n_slots; j += PIECE_SLOTS) {
            uint32_t left = r->n_slots - j;
            e->pieces[e->n_pieces++] =
                (struct key_piece){(const uint16_t *)(const void *)(at + (uint64_t)j * key_bytes),
                                   r->first_slot + j, left < PIECE_SLOTS ? left : PIECE_SLOTS};
        }
        pages += range_pages(p, r);
    }
}

static void start_job(struct pipeline *p, struct key_eval *e, enum key_job job)
{
    bool hot = job == JOB_HOT;
    uint32_t bytes =
        hot ? KV_HOT_BLOCK_TOKENS * p->hkm.entry_bytes / 2 : p->config.key_window_bytes;
    if (!hot)
        list_pieces(p, e, e->next_work);
    uint32_t n = hot ? e->n_blocks : e->n_pieces;
    struct work_job work = {.run = hot ? run_hot : run_pieces,
                            .context = e,
                            .n = n,
                            .bytes = hot ? (uint64_t)bytes * n : bytes};
    score_pool_start_work(p->pool, &work, p->io.bell);
    e->job = job;
}

static void end_job(struct pipeline *p, struct sequence *s, struct key_eval *e)
{
    if (e->job == JOB_HOT) {
        e->hot_done = true;
        s->stats.score_hot_ns += score_pool_last_ns(p->pool);
    } else {
        e->windows[e->next_work].state = WINDOW_FREE;
        e->next_work = (e->next_work + 1) % KV_KEY_WINDOWS;
    }
    e->job = JOB_NONE;
}

int keys_step(struct pipeline *p, struct sequence *s, const struct record_query *q)
{
    struct key_eval *e = p->keys;
    for (;;) {
        int rc = push_read(p, q);
        if (rc == 0 && e->status)
            rc = e->status;
        if (rc < 0)
            return rc;
        if (e->job != JOB_NONE) {
            bool more =
                score_pool_work(p->pool); /* a chunk: the agent's rings are drained between */
            if (!more && !score_pool_done(p->pool))
                return 0; /* the last helper rings */
            if (!more)
                end_job(p, s, e);
            else if ((rc = agent_pump(p)) < 0)
                return rc;
        } else if (!e->hot_done) {
            start_job(p, e, JOB_HOT);
        } else if (e->windows[e->next_work].state == WINDOW_THERE) {
            start_job(p, e, JOB_WINDOW);
        } else if (rc == 0) {
            return e->n_open == 0 && e->next_range == e->n_ranges;
        }
    }
}

int keys_back(struct pipeline *p, struct sequence *s, const struct record_query *q)
{
    (void)s;
    (void)q;
    return p->keys->n_open == 0 ? 1 : p->agent_status;
}

void keys_query(struct pipeline *p, struct sequence *s, const struct record_query *q)
{
    struct key_eval *e = p->keys;
    e->list = pipeline_list(p, s->index, q->header.layer);
    e->next_range = e->next_slot = e->next_read = e->next_work = 0;
    e->status = 0;
    e->job = JOB_NONE;
    e->hot_done = false;
    for (uint32_t i = 0; i < KV_KEY_WINDOWS; i++)
        e->windows[i].state = WINDOW_FREE; /* the query before waited for its own */
    list_stripes(p, e);
    e->n_blocks = hkm_blocks(&p->hkm, s->index, q->header.layer, p->blocks,
                             p->config.ctx_tokens / KV_HOT_BLOCK_TOKENS + 2);
    mass_table_begin(e->mass, (const float *)(const void *)(q + 1), q->n_tokens);
}

int keys_finish(struct pipeline *p, struct sequence *s, const struct record_query *q)
{
    struct key_eval *e = p->keys;
    int64_t start = clock_now_ns();
    STAGE_BEGIN_AT(merge, &q->header);
    int rc = mass_table_finish(e->mass, p->pool, s->index, q->header.layer, q->header.step,
                               s->settings.policy == KV_POLICY_H2O, p->scores);
    if (rc)
        pipeline_fail(p, s, rc, "%u of %u keys of layer %u were evaluated",
                      mass_table_count(e->mass), q->n_tokens, q->header.layer);
    else
        rc = kv_selector_add_run(p->selector, 0, p->scores, q->n_tokens);
    STAGE_END(merge, (uint64_t)q->n_tokens * sizeof(uint16_t));
    s->stats.merge_ns += clock_now_ns() - start;
    return rc;
}

uint64_t keys_private_bytes(const struct pipeline *p)
{
    const struct pipeline_config *c = &p->config;
    uint64_t row = kv_mass_row(&c->geometry), lists = (uint64_t)p->cold.n_lists;
    uint64_t blocks = c->ctx_tokens / KV_MASS_BLOCK + 1;
    if (!p->keys)
        return 0;
    return sizeof *p->keys + p->keys->ranges_max * sizeof(struct key_range) +
           pieces_max(c) * sizeof(struct key_piece) +
           4 * (c->ctx_tokens * (row + 1) + (2 * blocks + 1) * row +
                kv_mass_query_floats(&c->geometry) + lists * (c->ctx_tokens + 1));
}
