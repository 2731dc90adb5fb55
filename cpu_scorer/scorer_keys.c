/*
 * cpu_scorer/scorer_keys.c - a query of a policy that evaluates FP16 keys on the CPU: h2o and
 * oracle look at all of them (mass_table.h), prefetch at a part of the columns of all of them
 * (kv/partial.h), leoam at those of the chunks that its bounds name (chunk_table.h).
 *
 * Hot keys are the first half of their entries. Cold ones come over the link with every query:
 * READ_KEYS commands fill the windows behind the staging arena one after the other, up to
 * KV_KEY_WINDOWS on their way while the scoring threads evaluate the hot blocks and then the
 * windows that have arrived. Windows are given again when they have been evaluated. What came over
 * is counted as link_key by its completions. The query is open meanwhile, so that nothing of the
 * tables moves. Who calls it: scorer_query.c and, for completions, scorer_agent.c; data thread
 * alone. Failure: a query that fails waits until no command of it is out any more, since the agent
 * may still be writing into a window.
 */
#include "cpu_scorer/scorer_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/stage_trace.h"
#include "cpu_scorer/chunk_table.h"
#include "cpu_scorer/mass_table.h"
#include "kv/partial.h"
#include "kv/plane.h"

#define RANGES_MAX                                                                                 \
    (KV_KEY_WINDOW_BYTES /                                                                         \
     KV_PAGE_BYTES)     /* of a window: each has a page at least                 \
                                           */
#define PIECE_SLOTS 64u /* of one range: a job's item */

enum window_state { WINDOW_FREE, WINDOW_READING, WINDOW_THERE };

struct key_window {
    enum window_state state;
    uint64_t tag;
    uint32_t n_ranges;
    uint64_t bytes; /* of their pages */
    struct key_range ranges[RANGES_MAX];
};

/* Keys that lie one after the other. */
struct key_piece {
    const uint16_t *keys;
    uint32_t slot, n;
};

enum key_job { JOB_NONE, JOB_HOT, JOB_WINDOW };

struct key_eval {
    struct mass_table *mass;    /* NULL: leoam */
    struct chunk_table *chunks; /* of leoam */
    /* of prefetch, whose masses are of parts of keys; NULL: of whole ones */
    uint16_t *columns;        /* [n_sequences][n_layers][n_kv_heads][partial dims] */
    float *partial_query;     /* [n_heads][partial dims] */
    uint32_t key_halves;      /* of a key in the plane */
    struct key_range *ranges; /* of the query: [ranges_max] */
    uint32_t n_ranges;
    uint32_t next_range, next_slot; /* what is to be read next */
    uint64_t bytes_left;            /* of it, about */
    uint64_t n_hot;                 /* leoam: hot candidates */
    struct key_window windows[KV_KEY_WINDOWS];
    uint32_t next_read, next_work; /* windows are used in turn */
    uint32_t n_open;               /* READ_KEYS without their completion */
    int status;                    /* of those */
    enum key_job job;              /* in the pool's hands */
    bool hot_done;
    /* what the pool's job reads */
    struct scorer *scorer;
    uint32_t n_blocks, sequence, layer, list;
    struct key_piece *pieces; /* [pieces_max] */
    uint32_t n_pieces;
};

/* ---- life ---------------------------------------------------------------------------------- */

static uint32_t pieces_max(const struct scorer_config *c)
{
    uint32_t key_bytes = kv_plane_key_bytes(&c->geometry, c->policy);
    return c->key_window_bytes / (key_bytes * PIECE_SLOTS) + RANGES_MAX + 1;
}

/* Ranges of a query: a stripe's, or candidates' that do not lie together. */
static uint32_t ranges_max(const struct scorer *p)
{
    uint32_t chunked = p->config.ctx_tokens + 1;
    return p->config.policy == KV_POLICY_LEOAM && p->cold.n_stripes ? chunked
                                                                    : p->cold.n_stripes + 1;
}

static uint64_t columns_of_all(const struct scorer_config *c)
{
    return (uint64_t)c->n_sequences * c->geometry.n_layers * c->geometry.n_kv_heads *
           kv_partial_dims(&c->geometry);
}

int keys_create(struct scorer *p)
{
    const struct scorer_config *c = &p->config;
    if (!kv_policy_reads_keys(c->policy))
        return 0;
    struct key_eval *e = p->keys = calloc(1, sizeof *e);
    if (!e)
        return HILL_E_NOMEM;
    e->scorer = p;
    e->key_halves = kv_plane_key_bytes(&c->geometry, c->policy) / 2;
    e->ranges = calloc(ranges_max(p), sizeof *e->ranges);
    e->pieces = calloc(pieces_max(c), sizeof *e->pieces);
    if (!e->ranges || !e->pieces)
        return HILL_E_NOMEM;
    if (c->policy == KV_POLICY_LEOAM)
        return chunk_table_create(&e->chunks, &c->geometry, c->mass, c->ctx_tokens, c->n_sequences);
    struct kv_geometry g = c->geometry;
    if (c->policy == KV_POLICY_PREFETCH) {
        g = kv_partial_geometry(&c->geometry);
        e->columns = calloc(columns_of_all(c), sizeof *e->columns);
        e->partial_query = calloc((size_t)g.n_heads * g.head_dim, sizeof *e->partial_query);
        if (!e->columns || !e->partial_query)
            return HILL_E_NOMEM;
    }
    return mass_table_create(&e->mass, &g, c->mass, c->ctx_tokens, c->n_sequences);
}

void keys_destroy(struct scorer *p)
{
    if (!p->keys)
        return;
    mass_table_destroy(p->keys->mass);
    chunk_table_destroy(p->keys->chunks);
    free(p->keys->columns);
    free(p->keys->partial_query);
    free(p->keys->ranges);
    free(p->keys->pieces);
    free(p->keys);
    p->keys = NULL;
}

void keys_begin(struct scorer *p, struct sequence *s)
{
    if (p->keys && p->keys->mass)
        mass_table_clear(p->keys->mass, s->index);
}

/* ---- parts of keys -------------------------------------------------------------------------- */

static uint16_t *columns_of(const struct scorer *p, uint32_t sequence, uint32_t layer)
{
    uint64_t each = (uint64_t)p->config.geometry.n_kv_heads * kv_partial_dims(&p->config.geometry);
    return p->keys->columns + scorer_list(p, sequence, layer) * each;
}

/* The first keys of a layer say which columns are kept, for the drive's plane too. */
void keys_look(struct scorer *p, struct sequence *s, const struct record_append *r)
{
    uint32_t n = r->n_tokens < KV_PARTIAL_TOKENS ? r->n_tokens : KV_PARTIAL_TOKENS;
    if (p->keys && p->keys->columns && r->first == 0 && p->append_done == 0)
        kv_partial_columns(&p->config.geometry, (const uint16_t *)(const void *)(r + 1),
                           p->hkm.entry_bytes / 2, n, columns_of(p, s->index, r->header.layer));
}

bool keys_fill_plane(struct scorer *p, struct sequence *s, uint32_t layer, uint32_t n,
                     const uint8_t *entries, const uint32_t *positions, uint8_t *plane)
{
    uint32_t key_bytes = p->keys ? 2 * p->keys->key_halves : 0;
    if (!p->keys || !p->keys->columns || key_bytes == 2 * kv_key_dims(&p->config.geometry))
        return false;
    const uint16_t *columns = columns_of(p, s->index, layer);
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *entry =
            positions
                ? hkm_entry(&p->hkm, hkm_slot(hkm_location(&p->hkm, s->index, layer, positions[i])))
                : entries + (uint64_t)i * p->hkm.entry_bytes;
        kv_partial_key(&p->config.geometry, columns, (const uint16_t *)(const void *)entry,
                       (uint16_t *)(void *)(plane + (uint64_t)i * key_bytes));
    }
    return true;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

void keys_append(struct scorer *p, struct sequence *s, uint32_t layer, uint32_t first, uint32_t n,
                 const uint8_t *entries)
{
    if (p->keys && p->keys->chunks)
        chunk_table_append(p->keys->chunks, s->index, layer, first, n,
                           (const uint16_t *)(const void *)entries, p->hkm.entry_bytes / 2);
}

/* ---- what is to be read --------------------------------------------------------------------- */

/* The used part of each of the list's stripes, up to its last committed slot. */
static void list_stripes(struct scorer *p, struct key_eval *e)
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

static int slot_order(const void *a, const void *b)
{
    uint32_t x = ((const struct key_range *)a)->first_slot;
    uint32_t y = ((const struct key_range *)b)->first_slot;
    return x < y ? -1 : x > y;
}

/* Do b's pages follow a's, or begin in them? Then one range costs no more than two. */
static bool pages_meet(const struct scorer *p, const struct key_range *a, const struct key_range *b)
{
    uint64_t key_bytes = kv_plane_key_bytes(&p->config.geometry, p->config.policy);
    uint64_t end = (a->first_slot % p->cold.stripe_slots + a->n_slots) * key_bytes;
    uint64_t start = b->first_slot % p->cold.stripe_slots * key_bytes;
    return a->first_slot / p->cold.stripe_slots == b->first_slot / p->cold.stripe_slots &&
           start / KV_PAGE_BYTES <= (end + KV_PAGE_BYTES - 1) / KV_PAGE_BYTES;
}

/* Runs of the candidates' cold slots, by position; true: that is the order of their slots too. */
static bool list_runs(struct scorer *p, struct key_eval *e, struct scorer_candidates *c)
{
    bool ascending = true;
    uint32_t n_chunks, end = 0; /* of the last run */
    const uint32_t *chunks = chunk_table_chunks(e->chunks, &n_chunks);
    e->n_ranges = 0;
    for (uint32_t i = 0; i < n_chunks * KV_CHUNK_FINE; i++) {
        uint32_t position = chunks[i / KV_CHUNK_FINE] * KV_CHUNK_FINE + i % KV_CHUNK_FINE;
        if (!chunk_table_wants(e->chunks, position))
            continue;
        uint32_t word = hkm_location(&p->hkm, e->sequence, e->layer, position);
        uint32_t slot = hkm_slot(word);
        c->hot += hkm_tag(word) == HKM_HOT;
        if (hkm_tag(word) != HKM_COLD)
            continue;
        c->cold++;
        if (e->n_ranges && slot == end && slot % p->cold.stripe_slots) {
            e->ranges[e->n_ranges - 1].n_slots++;
        } else {
            ascending = ascending && slot >= end;
            e->ranges[e->n_ranges++] = (struct key_range){slot, 1};
        }
        end = slot + 1;
    }
    return ascending;
}

/* The candidates' cold slots, as few ranges as their pages allow. */
static void list_candidates(struct scorer *p, struct key_eval *e, struct scorer_candidates *c)
{
    bool ascending = list_runs(p, e, c);
    uint32_t n = e->n_ranges;
    if (!ascending)
        qsort(e->ranges, n, sizeof *e->ranges, slot_order);
    e->n_ranges = n > 0;
    for (uint32_t i = 1; i < n; i++) {
        struct key_range *last = &e->ranges[e->n_ranges - 1], *next = &e->ranges[i];
        uint32_t end = last->first_slot + last->n_slots;
        if (pages_meet(p, last, next)) {
            c->between += next->first_slot - end;
            last->n_slots = next->first_slot + next->n_slots - last->first_slot;
        } else {
            e->ranges[e->n_ranges++] = *next;
        }
    }
    c->runs += e->n_ranges;
}

/* How many of `left` slots from `slot` on fit `room` bytes of whole pages. */
static uint32_t slots_that_fit(const struct scorer *p, uint32_t slot, uint32_t left, uint64_t room)
{
    uint32_t key_bytes = kv_plane_key_bytes(&p->config.geometry, p->config.policy);
    uint64_t at = (uint64_t)(slot % p->cold.stripe_slots) * key_bytes % KV_PAGE_BYTES;
    uint64_t fit = room > at ? (room / KV_PAGE_BYTES * KV_PAGE_BYTES - at) / key_bytes : 0;
    return fit < left ? (uint32_t)fit : left;
}

static uint64_t range_pages(const struct scorer *p, const struct key_range *r)
{
    uint32_t key_bytes = kv_plane_key_bytes(&p->config.geometry, p->config.policy);
    return kv_key_pages((uint64_t)(r->first_slot % p->cold.stripe_slots) * key_bytes, r->n_slots,
                        key_bytes);
}

/* How much of a window is used: half of what is left, within its size. */
static uint64_t window_room(const struct scorer *p, const struct key_eval *e)
{
    uint64_t most = p->config.key_window_bytes, half = e->bytes_left / 2;
    uint64_t room = half > KV_KEY_LAST_BYTES ? half : KV_KEY_LAST_BYTES;
    return room < most ? room : most;
}

/* Fill the window's ranges from what is left; where the reading goes on is in *range and *slot.
 * Returns the bytes of their pages. */
static uint64_t fill_window(struct scorer *p, struct key_eval *e, struct key_window *w,
                            uint32_t most, uint32_t *range, uint32_t *slot)
{
    uint64_t used = 0, room = window_room(p, e);
    w->n_ranges = 0;
    while (*range < e->n_ranges && w->n_ranges < most) {
        const struct key_range *r = &e->ranges[*range];
        uint32_t left = r->n_slots - *slot, first = r->first_slot + *slot;
        uint32_t n = slots_that_fit(p, first, left, room - used);
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
    return used;
}

/* Have the next window filled, when it is free and something is left: 1, 0, or an error. */
static int push_read(struct scorer *p, const struct record_query *q)
{
    struct key_eval *e = p->keys;
    struct key_window *w = &e->windows[e->next_read];
    struct shm_ring_end *ring = &p->io.rings[RING_COMMAND];
    uint32_t range = e->next_range, slot = e->next_slot;
    if (e->status || range == e->n_ranges || w->state != WINDOW_FREE)
        return 0;
    uint32_t most = (shm_ring_payload_max(ring) - (uint32_t)sizeof(struct record_read_keys)) /
                    (uint32_t)sizeof(struct key_range);
    uint64_t used = fill_window(p, e, w, most < RANGES_MAX ? most : RANGES_MAX, &range, &slot);
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
    w->bytes = used;
    e->next_read = (e->next_read + 1) % KV_KEY_WINDOWS;
    e->next_range = range;
    e->next_slot = slot;
    e->bytes_left -= used < e->bytes_left ? used : e->bytes_left;
    e->n_open++;
    return 1;
}

void keys_complete(struct scorer *p, const struct record_completion *c)
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
        scorer_fail(p, &p->sequences[p->query.sequence], c->status,
                    "reading keys of layer %u from the drive", p->query.layer);
        return;
    }
}

/* ---- attention before the first query -------------------------------------------------------- */

bool keys_weighed(const struct sequence *s, const struct layer_state *l)
{
    return s->settings.policy != KV_POLICY_H2O || l->weighed >= s->prompt_tokens;
}

void keys_take_mass(struct scorer *p, const struct record_mass *r)
{
    struct sequence *s = &p->sequences[r->header.sequence];
    struct layer_state *l = &s->layers[r->header.layer];
    if (s->state != SEQUENCE_ACTIVE || s->status || s->leaving)
        return;
    if (s->settings.policy != KV_POLICY_H2O || r->status || r->first != l->weighed ||
        r->n_tokens > s->prompt_tokens - l->weighed || r->n_tokens > l->appended - l->weighed) {
        scorer_fail(p, s, HILL_E_PROTOCOL,
                    "attention of tokens %u..%u of layer %u came after that of %u of the "
                    "prompt's %u (%u were appended)",
                    r->first, r->first + r->n_tokens - 1, r->header.layer, l->weighed,
                    s->prompt_tokens, l->appended);
        return;
    }
    mass_table_add(p->keys->mass, s->index, r->header.layer, r->first, r->n_tokens,
                   (const float *)(const void *)(r + 1));
    l->weighed += r->n_tokens;
}

void keys_read_mass(const struct scorer *p, const struct sequence *s, uint32_t layer,
                    uint32_t first, uint32_t n, float *mass)
{
    mass_table_read(p->keys->mass, s->index, layer, first, n, mass);
}

/* ---- evaluating ----------------------------------------------------------------------------- */

static void run_hot(void *context, uint32_t first, uint32_t end)
{
    const struct key_eval *e = context;
    const struct scorer *p = e->scorer;
    for (uint32_t i = first; i < end; i++) {
        uint32_t slot = p->blocks[i] * KV_HOT_BLOCK_TOKENS;
        mass_table_keys(e->mass, (const uint16_t *)(const void *)hkm_entry(&p->hkm, slot),
                        p->hkm.entry_bytes / 2, KV_HOT_BLOCK_TOKENS, &p->hkm.positions[slot]);
    }
}

/* The hot one at a position, and those behind it in the chunk that lie behind it: how many. */
static uint32_t hot_run(const struct key_eval *e, uint32_t position, uint32_t *slot)
{
    const struct scorer *p = e->scorer;
    uint32_t n = 0, end = (position / KV_CHUNK_FINE + 1) * KV_CHUNK_FINE;
    for (; position + n < end && chunk_table_wants(e->chunks, position + n); n++) {
        uint32_t word = hkm_location(&p->hkm, e->sequence, e->layer, position + n);
        if (hkm_tag(word) != HKM_HOT || (n && hkm_slot(word) != *slot + n))
            break;
        *slot = n ? *slot : hkm_slot(word);
    }
    return n;
}

/* The hot ones of candidates: items are chunks. */
static void run_hot_chunks(void *context, uint32_t first, uint32_t end)
{
    const struct key_eval *e = context;
    const struct scorer *p = e->scorer;
    uint32_t n_chunks;
    const uint32_t *chunks = chunk_table_chunks(e->chunks, &n_chunks);
    for (uint32_t i = first; i < end; i++)
        for (uint32_t j = 0, n; j < KV_CHUNK_FINE; j += n + (n == 0)) {
            uint32_t slot, positions[KV_CHUNK_FINE];
            n = hot_run(e, chunks[i] * KV_CHUNK_FINE + j, &slot);
            for (uint32_t k = 0; k < n; k++)
                positions[k] = chunks[i] * KV_CHUNK_FINE + j + k;
            if (n)
                chunk_table_keys(e->chunks,
                                 (const uint16_t *)(const void *)hkm_entry(&p->hkm, slot),
                                 p->hkm.entry_bytes / 2, n, positions);
        }
}

/* The same of parts of keys. */
static void run_hot_parts(void *context, uint32_t first, uint32_t end)
{
    const struct key_eval *e = context;
    const struct scorer *p = e->scorer;
    const uint16_t *columns = columns_of(p, e->sequence, e->layer);
    uint16_t part[KV_MAX_KEY_DIMS / 2];
    for (uint32_t i = first; i < end; i++)
        for (uint32_t j = 0; j < KV_HOT_BLOCK_TOKENS; j++) {
            uint32_t slot = p->blocks[i] * KV_HOT_BLOCK_TOKENS + j;
            if (p->hkm.positions[slot] == HKM_NO_POSITION)
                continue;
            kv_partial_key(&p->config.geometry, columns,
                           (const uint16_t *)(const void *)hkm_entry(&p->hkm, slot), part);
            mass_table_keys(e->mass, part, e->key_halves, 1, &p->hkm.positions[slot]);
        }
}

static void run_pieces(void *context, uint32_t first, uint32_t end)
{
    const struct key_eval *e = context;
    const struct scorer *p = e->scorer;
    uint32_t positions[PIECE_SLOTS];
    for (uint32_t i = first; i < end; i++) {
        const struct key_piece *piece = &e->pieces[i];
        for (uint32_t j = 0; j < piece->n; j++) /* COLD_NONE is beyond any query */
            positions[j] = cold_map_position(&p->cold, e->list, (uint64_t)piece->slot + j);
        if (e->mass)
            mass_table_keys(e->mass, piece->keys, e->key_halves, piece->n, positions);
        else
            chunk_table_keys(e->chunks, piece->keys, kv_key_dims(&p->config.geometry), piece->n,
                             positions);
    }
}

/* The window's keys as pieces. */
static void list_pieces(struct scorer *p, struct key_eval *e, uint32_t window)
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

static void start_job(struct scorer *p, struct key_eval *e, enum key_job job)
{
    struct work_job work = {.context = e};
    uint64_t key_bytes = 2 * kv_key_dims(&p->config.geometry);
    if (job == JOB_WINDOW) {
        list_pieces(p, e, e->next_work);
        work.run = run_pieces;
        work.n = e->n_pieces;
        work.bytes = e->windows[e->next_work].bytes;
    } else if (e->mass) {
        work.run = e->columns ? run_hot_parts : run_hot;
        work.n = e->n_blocks;
        work.bytes = e->n_blocks * KV_HOT_BLOCK_TOKENS * key_bytes;
    } else {
        work.run = run_hot_chunks;
        chunk_table_chunks(e->chunks, &work.n);
        work.bytes = e->n_hot * key_bytes;
    }
    score_pool_start_work(p->pool, &work, p->io.bell);
    e->job = job;
}

static void end_job(struct scorer *p, struct sequence *s, struct key_eval *e)
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

int keys_step(struct scorer *p, struct sequence *s, const struct record_query *q)
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

int keys_back(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    (void)s;
    (void)q;
    return p->keys->n_open == 0 ? 1 : p->agent_status;
}

static uint64_t bytes_of_ranges(const struct scorer *p, const struct key_eval *e)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < e->n_ranges; i++)
        sum += range_pages(p, &e->ranges[i]);
    return sum;
}

/* By their bounds, whose keys are looked at: nothing can be asked of the drive before. */
static void search_chunks(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    struct key_eval *e = p->keys;
    int64_t start = clock_now_ns();
    STAGE_BEGIN_AT(bounds, &q->header);
    chunk_table_begin(e->chunks, p->pool, s->index, q->header.layer, &s->settings,
                      (const float *)(const void *)(q + 1), q->n_tokens);
    e->n_hot = s->stats.candidates.hot;
    list_candidates(p, e, &s->stats.candidates);
    e->n_hot = s->stats.candidates.hot - e->n_hot;
    e->bytes_left = bytes_of_ranges(p, e);
    STAGE_END(bounds, kv_bounds_bytes(&p->config.geometry, q->n_tokens));
    s->stats.bounds_ns += clock_now_ns() - start;
}

void keys_query(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    struct key_eval *e = p->keys;
    const float *query = (const float *)(const void *)(q + 1);
    e->sequence = s->index;
    e->layer = q->header.layer;
    e->list = scorer_list(p, s->index, q->header.layer);
    e->next_range = e->next_slot = e->next_read = e->next_work = 0;
    e->bytes_left = 0;
    e->status = 0;
    e->job = JOB_NONE;
    e->hot_done = false;
    e->n_open = 0; /* the query before waited for its own, unless the agent is lost */
    for (uint32_t i = 0; i < KV_KEY_WINDOWS; i++)
        e->windows[i].state = WINDOW_FREE;
    if (e->chunks) {
        search_chunks(p, s, q);
        return;
    }
    list_stripes(p, e);
    e->bytes_left = bytes_of_ranges(p, e);
    e->n_blocks = hkm_blocks(&p->hkm, s->index, q->header.layer, p->blocks,
                             p->config.ctx_tokens / KV_HOT_BLOCK_TOKENS + 2);
    if (e->columns) {
        kv_partial_query(&p->config.geometry, columns_of(p, s->index, q->header.layer), query,
                         e->partial_query);
        query = e->partial_query;
    }
    mass_table_begin(e->mass, query, q->n_tokens);
}

static enum mass_rank rank_of(const struct sequence *s, const struct record_query *q)
{
    if (s->settings.policy != KV_POLICY_H2O)
        return MASS_OF_QUERY;
    return q->kind == QUERY_AHEAD ? MASS_OF_ALL_AHEAD : MASS_OF_ALL;
}

int keys_finish(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    struct key_eval *e = p->keys;
    int64_t start = clock_now_ns();
    STAGE_BEGIN_AT(merge, &q->header);
    uint32_t count, wanted = q->n_tokens;
    int rc = e->mass ? mass_table_finish(e->mass, p->pool, s->index, q->header.layer,
                                         q->header.step, rank_of(s, q), p->scores)
                     : chunk_table_finish(e->chunks, p->pool, p->scores);
    count = e->mass ? mass_table_count(e->mass) : chunk_table_count(e->chunks, &wanted);
    if (rc)
        scorer_fail(p, s, rc, "%u of %u keys of layer %u were evaluated", count, wanted,
                    q->header.layer);
    else
        rc = kv_selector_add_run(p->selector, 0, p->scores, q->n_tokens);
    STAGE_END(merge, (uint64_t)q->n_tokens * sizeof(uint16_t));
    s->stats.merge_ns += clock_now_ns() - start;
    return rc;
}

uint64_t keys_private_bytes(const struct scorer *p)
{
    if (!p->keys)
        return 0;
    return sizeof *p->keys + ranges_max(p) * sizeof(struct key_range) +
           pieces_max(&p->config) * sizeof(struct key_piece) +
           (p->keys->columns ? columns_of_all(&p->config) * sizeof(uint16_t) : 0) +
           (p->keys->mass ? mass_table_bytes(p->keys->mass) : chunk_table_bytes(p->keys->chunks));
}
