/*
 * cpu_scorer/scorer_query.c - one query: score, merge, select, gather, answer.
 *
 * Steps: wait until the N tokens are placed and committed; digest the query; relay it to the agent
 * and score the hot blocks meanwhile; merge what arrives; select; give GPU slots; fetch cold
 * entries and copy hot ones into staging, or name them where they lie; answer. From the relay to
 * the last score nothing of the tables moves: append ring and commits are left alone
 * (architecture 3.1, the consistent cut). Every wait drains the agent's rings, watches the control
 * plane and has a deadline. Failure: the answer carries the status; only an interruption leaves a
 * query unanswered (a new epoch asks again).
 */
#include "cpu_scorer/scorer_internal.h"

#include <string.h>

#include "base/busy_until.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/stage_trace.h"
#include "kv/plane.h"

/* DRAM gives at least so many entries to one thread while the drive gives one. */
#define COPIES_PER_FETCH 2u

/* A wait of one query: look, then sleep. step() is 1 done, 0 not yet, negative: failed. A request
 * that has failed ends the wait at once, unless despite_failure says that it must be seen through.
 */
static int wait_for(struct scorer *p, struct sequence *s, const struct record_query *q,
                    wait_step *step, bool despite_failure)
{
    int64_t deadline = clock_now_ns() + p->config.agent_deadline_ns;
    for (;;) {
        uint32_t seen = shm_doorbell_read(p->io.bell);
        int moved = agent_pump(p);
        if (moved < 0)
            return moved;
        int rc = step(p, s, q);
        if (rc)
            return rc < 0 ? rc : 0;
        if (s->status && !despite_failure)
            return s->status;
        if (moved)
            continue;
        if (clock_now_ns() >= deadline) {
            scorer_fail(p, s, HILL_E_TIMEOUT, "answering a query of layer %u", q->header.layer);
            return HILL_E_TIMEOUT;
        }
        rc = scorer_pause(p, seen, true);
        if (rc)
            return rc;
    }
}

/* ---- before the relay --------------------------------------------------------------------- */

/* The N tokens are all placed, what of them goes cold at once is committed, and h2o has what its
 * prompt attended to. */
static int tokens_there(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    const struct layer_state *l = &s->layers[q->header.layer];
    uint64_t request = s->request_id;
    for (;;) {
        bool come = l->appended >= q->n_tokens && keys_weighed(s, l);
        if (come && l->uncommitted == 0)
            return 1;
        int commits = agent_pump_commits(p);
        int appends = come ? 0 : append_pump(p);
        if (commits < 0 || appends < 0)
            return commits < 0 ? commits : appends;
        if (s->state != SEQUENCE_ACTIVE || s->request_id != request || s->leaving)
            return HILL_E_PROTOCOL; /* it ended while its query was waiting */
        if (s->status)
            return s->status;
        if (!commits && !appends) {
            /* append may be waiting for room: hot slots free up by moves, ring credits by the agent
             */
            agent_pump_moves(p);
            return 0;
        }
    }
}

static int check_query(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    if (s->state != SEQUENCE_ACTIVE || s->request_id != q->request_id || s->leaving)
        return HILL_E_PROTOCOL; /* of a request that is over; its slot may be another's by now */
    if (s->status)
        return s->status;
    if (q->n_tokens > s->max_tokens || kv_budget_tokens(&s->settings, q->n_tokens) > s->k_max) {
        scorer_fail(p, s, HILL_E_PROTOCOL, "a query covers %u tokens of at most %u", q->n_tokens,
                    s->max_tokens);
        return HILL_E_PROTOCOL;
    }
    if (q->kind != QUERY_EXACT && !p->config.speculates) {
        scorer_fail(p, s, HILL_E_PROTOCOL, "a query of layer %u is a guess", q->header.layer);
        return HILL_E_PROTOCOL;
    }
    return 0;
}

int query_await_tokens(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    int rc = check_query(p, s, q);
    if (rc)
        return rc;
    ahead_release(p, s, q);
    return wait_for(p, s, q, tokens_there, false);
}

/* ---- scoring ------------------------------------------------------------------------------ */

static int push_agent_query(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    const struct kv_geometry *g = &p->config.geometry;
    uint32_t bytes = (uint32_t)sizeof(struct record_agent_query) + kv_query_bytes(g);
    void *payload;
    int rc = shm_ring_reserve(&p->io.rings[RING_COMMAND], bytes, &payload);
    if (rc)
        return rc == HILL_E_PEER_GONE || rc == HILL_E_WOULD_BLOCK ? 0 : rc;
    struct record_agent_query *r = payload;
    *r = (struct record_agent_query){.header = q->header,
                                     .query_id = q->query_id,
                                     .importance = s->settings.importance,
                                     .block_tokens = p->config.block_tokens,
                                     .expected = p->query.cold_expected};
    memcpy(r + 1, p->query_mantissas, kv_key_dims(g));
    memcpy((uint8_t *)(r + 1) + kv_key_dims(g), p->query_shifts, g->n_kv_heads);
    shm_ring_publish(&p->io.rings[RING_COMMAND], RECORD_AGENT_QUERY, bytes);
    agent_sent(p);
    p->query.relayed_ns = clock_now_ns();
    return 1;
}

static uint32_t start_hot_scoring(struct scorer *p, struct sequence *s,
                                  const struct record_query *q)
{
    uint32_t max = p->config.ctx_tokens / KV_HOT_BLOCK_TOKENS + 2;
    struct score_job job = {.geometry = &p->config.geometry,
                            .query = {p->query_mantissas, p->query_shifts, s->settings.importance},
                            .digests = p->hkm.digests,
                            .blocks = p->blocks,
                            .scores = p->scores,
                            .copies_follow = !s->reads_hot};
    job.n_blocks = hkm_blocks(&p->hkm, s->index, q->header.layer, p->blocks, max);
    score_pool_start(p->pool, &job, p->io.bell);
    return job.n_blocks;
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
static int add_block(struct scorer *p, const uint32_t *block, const uint16_t *scores,
                     uint32_t n_tokens)
{
    uint32_t positions[KV_HOT_BLOCK_TOKENS], n = 0, run = 0;
    uint16_t others[KV_HOT_BLOCK_TOKENS];
    if (block[0] < n_tokens) { /* HKM_NO_POSITION is not */
        run = leading_run(block);
        uint32_t covered = n_tokens - block[0] < run ? n_tokens - block[0] : run;
        int rc = kv_selector_add_run(p->selector, block[0], scores, covered);
        if (rc || run == KV_HOT_BLOCK_TOKENS)
            return rc;
    }
    for (uint32_t j = run; j < KV_HOT_BLOCK_TOKENS; j++) {
        if (block[j] >= n_tokens)
            continue;
        positions[n] = block[j];
        others[n++] = scores[j];
    }
    return kv_selector_add(p->selector, positions, others, n);
}

static int add_hot_scores(struct scorer *p, uint32_t n_blocks, uint32_t n_tokens)
{
    int rc = 0;
    for (uint32_t i = 0; i < n_blocks && rc == 0; i++)
        rc = add_block(p, &p->hkm.positions[(uint64_t)p->blocks[i] * KV_HOT_BLOCK_TOKENS],
                       p->scores + (uint64_t)i * KV_HOT_BLOCK_TOKENS, n_tokens);
    return rc;
}

static int hot_scored(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    (void)s;
    (void)q;
    return score_pool_done(p->pool);
}

/* This thread's part of the job; between chunks it drains the agent's rings, so that the agent
 * never waits for room while it scores. */
static int score_own_share(struct scorer *p)
{
    while (score_pool_work(p->pool)) {
        int rc = agent_pump(p);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int cold_scored(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    const struct query_state *state = &p->query;
    if (state->status)
        return state->status;
    if (!state->cold_done)
        return 0;
    if (state->cold_scored == state->cold_expected)
        return 1;
    scorer_fail(p, s, HILL_E_PROTOCOL, "the drive scored %u of %u slots of layer %u",
                state->cold_scored, state->cold_expected, q->header.layer);
    return HILL_E_PROTOCOL;
}

static int modelled_cpu_done(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    (void)s;
    (void)q;
    return clock_now_ns() >= p->query.hot_due_ns;
}

/* A modelled CPU (base/csd_model.h) would still be scoring what has been scored since `start`:
 * sleep what is left. */
static int wait_for_modelled_cpu(struct scorer *p, struct sequence *s, const struct record_query *q,
                                 int64_t start, uint64_t tokens)
{
    if (!(p->config.cpu_gb_per_s > 0))
        return 0;
    int64_t took = busy_until_time(tokens * p->hkm.entry_bytes, p->config.cpu_gb_per_s);
    int64_t real = score_pool_last_ns(p->pool);
    s->stats.score_hot_ns += took > real ? took - real : 0;
    p->query.hot_due_ns = start + took;
    int rc = wait_for(p, s, q, modelled_cpu_done, false);
    p->query.hot_due_ns = 0;
    return rc;
}

/* Relay, score, merge. The query is open only in here. */
static int score_everything(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    int rc = 0;
    if (p->query.cold_expected && (rc = wait_for(p, s, q, push_agent_query, false)) != 0)
        return rc;
    STAGE_BEGIN_AT(score_hot, &q->header);
    int64_t start = clock_now_ns(), began = start;
    uint32_t n_blocks = start_hot_scoring(p, s, q);
    rc = score_own_share(p);
    if (rc == 0)
        rc = wait_for(p, s, q, hot_scored, false);
    score_pool_wait(p->pool); /* when interrupted: nobody reads the tables after this */
    if (rc)
        return rc;
    STAGE_END(score_hot,
              (uint64_t)n_blocks * KV_HOT_BLOCK_TOKENS * kv_digest_bytes(&p->config.geometry));
    s->stats.score_hot_ns += score_pool_last_ns(p->pool);
    start = clock_now_ns();
    STAGE_BEGIN_AT(merge, &q->header);
    rc = add_hot_scores(p, n_blocks, q->n_tokens);
    STAGE_END(merge, (uint64_t)n_blocks * KV_HOT_BLOCK_TOKENS * sizeof(uint16_t));
    s->stats.merge_ns += clock_now_ns() - start;
    if (rc) {
        scorer_fail(p, s, rc, "the hot pool holds a token of layer %u twice", q->header.layer);
        return rc;
    }
    uint32_t hot = hkm_hot_tokens(&p->hkm, s->index, q->header.layer);
    rc = wait_for_modelled_cpu(p, s, q, began, hot);
    if (rc == 0 && p->query.cold_expected) {
        STAGE_BEGIN_AT(score_cold, &q->header);
        rc = wait_for(p, s, q, cold_scored, false);
        STAGE_END(score_cold, (uint64_t)p->query.cold_scored * sizeof(struct score_tuple));
        s->stats.score_cold_ns += p->query.cold_done_ns - p->query.relayed_ns;
    }
    return rc;
}

/* The same by FP16 keys on this CPU. */
static int evaluate_keys(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    keys_query(p, s, q);
    p->query.relayed_ns = p->query.cold_done_ns = clock_now_ns();
    STAGE_BEGIN_AT(score_hot, &q->header);
    int rc = wait_for(p, s, q, keys_step, false);
    score_pool_wait(p->pool); /* when it failed: nobody reads the tables after this */
    if (rc && rc != HILL_E_CANCELLED)
        wait_for(p, s, q, keys_back, true);
    STAGE_END(score_hot, (uint64_t)q->n_tokens * kv_key_dims(&p->config.geometry) * 2);
    s->stats.score_cold_ns += p->query.cold_done_ns - p->query.relayed_ns;
    return rc ? rc : keys_finish(p, s, q);
}

static int score_query(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    bool keys = kv_policy_reads_keys(s->settings.policy);
    if (!keys)
        kv_digest_query(&p->config.geometry, s->settings.importance,
                        (const float *)(const void *)(q + 1), p->query_mantissas, p->query_shifts);
    p->query = (struct query_state){
        .open = true,
        .query_id = q->query_id,
        .sequence = s->index,
        .layer = q->header.layer,
        .cold_expected = p->cold.lists[scorer_list(p, s->index, q->header.layer)].committed};
    p->query.relayed_ns = p->query.cold_done_ns = clock_now_ns();
    int rc = keys ? evaluate_keys(p, s, q) : score_everything(p, s, q);
    p->query.open = false;
    return rc;
}

/* ---- selecting ---------------------------------------------------------------------------- */

static void hash_selection(struct sequence *s, const struct record_query *q,
                           const uint32_t *positions, uint32_t k)
{
    uint32_t head[2] = {q->header.step, q->header.layer};
    XXH64_update(s->hash, head, sizeof head);
    XXH64_update(s->hash, positions, (size_t)k * sizeof *positions);
}

/* Positions of the selection, ascending, in p->positions: k, or an error. What is attended to is
 * hashed. */
static int64_t select_tokens(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    int rc = kv_selector_begin(p->selector, &s->settings, q->n_tokens);
    if (rc == 0 && s->settings.policy != KV_POLICY_FULL)
        rc = score_query(p, s, q);
    if (rc)
        return rc;
    int64_t start = clock_now_ns();
    STAGE_BEGIN_AT(select, &q->header);
    int64_t k = kv_selector_finish(p->selector, p->positions); /* <= k_max <= gpu_slots */
    STAGE_END(select, k < 0 ? 0 : (uint64_t)k * sizeof *p->positions);
    s->stats.merge_ns += clock_now_ns() - start;
    if (k < 0) {
        scorer_fail(p, s, (int)k, "%u of %u tokens of layer %u were scored",
                    kv_selector_scored(p->selector), q->n_tokens, q->header.layer);
        return k;
    }
    s->stats.guess_queries += q->kind != QUERY_EXACT;
    if (q->kind == QUERY_AHEAD)
        return k;
    hash_selection(s, q, p->positions, (uint32_t)k);
    s->stats.budget = (uint32_t)k;
    s->stats.queries++;
    return k;
}

/* ---- places --------------------------------------------------------------------------------- */

/* What is hot is read where it lies, when the GPU worker can; the rest takes GPU slots. Returns the
 * number of uploads. What the GPU keeps of an entry that has moved up since gives way in time. */
static int64_t give_places(struct scorer *p, struct sequence *s, uint32_t layer, uint32_t k)
{
    uint32_t list = scorer_list(p, s->index, layer), n = 0;
    if (!s->reads_hot)
        return gpu_slots_select(&p->gpu, list, p->positions, k, p->slots);
    uint32_t *others = p->missed; /* told anew after the answer */
    for (uint32_t i = 0; i < k; i++)
        if (hkm_tag(hkm_location(&p->hkm, s->index, layer, p->positions[i])) != HKM_HOT)
            others[n++] = p->positions[i];
    int64_t n_uploads = gpu_slots_select(&p->gpu, list, others, n, p->slots);
    p->n_in_place = k - n;
    for (uint32_t i = k; n_uploads >= 0 && i-- > 0;) { /* from behind: the others move up */
        uint32_t word = hkm_location(&p->hkm, s->index, layer, p->positions[i]);
        p->slots[i] = hkm_tag(word) == HKM_HOT ? SELECTED_HOT | hkm_slot(word) : p->slots[--n];
    }
    return n_uploads;
}

/* What the GPU is to forget of this selection, now that the answer names its slots: `--gpu-keep`.
 * The answer's slots are read before the next query's uploads overwrite them. */
static void forget_places(struct scorer *p, uint32_t list, uint32_t n_tokens)
{
    if (p->config.gpu_drop > 0)
        gpu_slots_keep(&p->gpu, list, n_tokens - (uint32_t)(p->config.gpu_drop * n_tokens));
}

/* ---- gathering ---------------------------------------------------------------------------- */

int scorer_bring(struct scorer *p, const struct sequence *s, uint32_t layer, uint32_t position,
                 uint32_t staging)
{
    uint32_t word = hkm_location(&p->hkm, s->index, layer, position);
    if (hkm_tag(word) == HKM_COLD)
        p->late[p->n_late++] = (struct fetch_item){hkm_slot(word), position, staging,
                                                   shm_arena_generation(p->io.staging, staging)};
    else if (hkm_tag(word) == HKM_HOT)
        p->copies[p->n_copies++] = (struct copy_item){shm_arena_slot(p->io.staging, staging),
                                                      hkm_entry(&p->hkm, hkm_slot(word))};
    else
        return HILL_E_DAMAGED; /* a selected token is in some tier, always */
    return 0;
}

/* Staging slots for the uploads; the cold ones as fetch items, the hot ones counted; what no guess
 * has brought is to be brought. */
static int plan_uploads(struct scorer *p, struct sequence *s, const struct record_query *q,
                        uint32_t k, uint32_t n_uploads)
{
    bool verified = s->guess.there;
    int rc = ahead_take_staging(p, s, k, n_uploads);
    for (uint32_t i = 0, upload = 0; rc == 0 && i < k; i++) {
        if (!(p->slots[i] & GPU_SLOTS_UPLOAD))
            continue;
        uint32_t staging = s->held[0].staging[upload], position = p->positions[i];
        uint32_t word = hkm_location(&p->hkm, s->index, q->header.layer, position);
        if (!p->filled || !p->filled[upload])
            rc = scorer_bring(p, s, q->header.layer, position, staging);
        if (p->filled && hkm_tag(word) == HKM_COLD)
            p->fetches[p->n_fetches++] = (struct fetch_item){
                hkm_slot(word), position, staging, shm_arena_generation(p->io.staging, staging)};
        upload++;
    }
    if (rc)
        return rc;
    if (!p->filled)
        p->n_fetches = p->n_late; /* the same array */
    s->stats.late_fetches += verified ? p->n_late : 0;
    s->stats.cold.hits += p->n_fetches;
    s->stats.hot_copied += n_uploads - p->n_fetches;
    s->stats.hot.hits += n_uploads - p->n_fetches + p->n_in_place;
    return 0;
}

static int push_fetches(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    struct shm_ring_end *ring = &p->io.rings[RING_COMMAND];
    struct query_state *state = &p->query;
    uint32_t most = (shm_ring_payload_max(ring) - (uint32_t)sizeof(struct record_fetch)) /
                    (uint32_t)sizeof(struct fetch_item);
    (void)s;
    most = most < LAYOUT_FETCH_ITEMS_MAX ? most : LAYOUT_FETCH_ITEMS_MAX;
    while (state->fetches_sent < p->n_late) {
        uint32_t n = p->n_late - state->fetches_sent;
        n = n < most ? n : most;
        uint32_t bytes = (uint32_t)(sizeof(struct record_fetch) + n * sizeof(struct fetch_item));
        void *payload;
        int rc = shm_ring_reserve(ring, bytes, &payload);
        if (rc)
            return rc == HILL_E_PEER_GONE || rc == HILL_E_WOULD_BLOCK ? p->agent_status : rc;
        struct record_fetch *record = payload;
        state->fetch_last_tag = agent_tag(p);
        if (!state->fetch_first_tag)
            state->fetch_first_tag = state->fetch_last_tag;
        *record = (struct record_fetch){
            .header = q->header, .tag = state->fetch_last_tag, .n_entries = n};
        memcpy(record + 1, p->late + state->fetches_sent, n * sizeof(struct fetch_item));
        shm_ring_publish(ring, RECORD_FETCH, bytes);
        agent_sent(p);
        state->fetches_sent += n;
        state->fetches_open++;
    }
    return 1;
}

/* Do the drive's fetches take longer than one thread's copies? It is the slower by several times.
 */
static bool drive_is_slower(const struct scorer *p)
{
    return p->query.fetches_open && p->n_copies <= COPIES_PER_FETCH * p->n_late;
}

/* The hot ones into their staging slots, on all scoring threads: they are read from all over the
 * hot pool. While the drive is the slower one this thread does it alone, and leaves the other CPUs
 * to the agent, which has just been woken. */
static void copy_hot(struct scorer *p, struct sequence *s)
{
    struct copy_job job = {.items = p->copies, .bytes = p->hkm.entry_bytes, .n = p->n_copies};
    if (s->reads_hot && p->n_copies == 0)
        return;
    int64_t start = clock_now_ns();
    if (drive_is_slower(p)) {
        for (uint32_t i = 0; i < job.n; i++)
            memcpy(job.items[i].to, job.items[i].from, job.bytes);
    } else {
        score_pool_start_copy(p->pool, &job, NULL);
        score_pool_wait(p->pool);
    }
    s->stats.copy_hot_ns += clock_now_ns() - start;
}

/* Also after one has failed: a slot that the agent may still write to must not be given to others.
 */
static int fetches_back(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    (void)s;
    (void)q;
    return p->query.fetches_open == 0 ? 1 : p->agent_status;
}

/* What was noted, into staging. */
static int bring(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    int rc = wait_for(p, s, q, push_fetches, true);
    if (rc == 0)
        copy_hot(p, s);
    if (rc == 0 || p->query.fetches_open)
        rc = wait_for(p, s, q, fetches_back, true);
    if (rc == 0)
        rc = p->query.status;
    if (rc == 0 && p->query.fetched != p->n_late) {
        rc = HILL_E_PROTOCOL;
        scorer_fail(p, s, rc, "the drive fetched %u of %u entries", p->query.fetched, p->n_late);
    }
    return rc;
}

static int gather(struct scorer *p, struct sequence *s, const struct record_query *q, uint32_t k,
                  uint32_t n_uploads)
{
    int rc = plan_uploads(p, s, q, k, n_uploads);
    if (rc) {
        scorer_fail(p, s, rc, "taking %u staging slots for layer %u", n_uploads, q->header.layer);
        return rc;
    }
    rc = bring(p, s, q);
    if (p->query.fetches_open)
        s->held[0].n_staging = 0; /* lost with the agent, until the next epoch */
    return rc;
}

/* A guess that is to be verified: everything but an answer. */
static int gather_ahead(struct scorer *p, struct sequence *s, const struct record_query *q,
                        uint32_t k)
{
    int64_t start = clock_now_ns();
    int rc = ahead_plan(p, s, q, k);
    if (rc)
        scorer_fail(p, s, rc, "taking staging slots for a guess of layer %u", q->header.layer);
    else
        rc = bring(p, s, q);
    if (rc)
        ahead_lose(p, s);
    else
        ahead_keep(s, q);
    s->stats.fetch_ns += clock_now_ns() - start;
    return rc;
}

int query_stage(struct scorer *p, struct sequence *s, const struct record_query *q, uint32_t n)
{
    struct holding *h = &s->held[0];
    int rc = query_await_tokens(p, s, q);
    if (!rc)
        rc = shm_arena_take(p->io.staging, n, h->staging);
    if (rc)
        return rc;
    h->n_staging = n;
    for (uint32_t i = 0; !rc && i < n; i++)
        rc = scorer_bring(p, s, q->header.layer, q->n_tokens - n + i, h->staging[i]);
    if (!rc)
        rc = bring(p, s, q);
    if (p->query.fetches_open)
        h->n_staging = 0; /* lost with the agent, until the next epoch */
    return rc;
}

int query_push(struct scorer *p, struct sequence *s, const struct record_query *q, wait_step *push)
{
    return wait_for(p, s, q, push, true);
}

/* ---- answering ---------------------------------------------------------------------------- */

static int answer_room(struct scorer *p, uint32_t bytes, void **payload)
{
    int rc = shm_ring_reserve(&p->io.rings[RING_SELECTION], bytes, payload);
    return rc == HILL_E_WOULD_BLOCK ? 0 : rc ? rc : 1;
}

static uint32_t answer_bytes(const struct scorer *p)
{
    return (uint32_t)(sizeof(struct record_selection) +
                      p->n_selected * sizeof(struct selected_item) +
                      p->n_uploads * sizeof(struct selected_upload));
}

static int push_answer(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    void *payload;
    int rc = answer_room(p, answer_bytes(p), &payload);
    if (rc != 1)
        return rc;
    struct record_selection *answer = payload;
    struct selected_item *items = (struct selected_item *)(answer + 1);
    struct selected_upload *uploads = (struct selected_upload *)(items + p->n_selected);
    *answer = (struct record_selection){.header = q->header,
                                        .query_id = q->query_id,
                                        .n_selected = p->n_selected,
                                        .n_uploads = p->n_uploads,
                                        .status = p->answer_status};
    for (uint32_t i = 0, u = 0; i < p->n_selected; i++) {
        uint32_t slot = p->slots[i] & ~GPU_SLOTS_UPLOAD;
        items[i] = (struct selected_item){p->positions[i], slot};
        if (p->slots[i] & GPU_SLOTS_UPLOAD) {
            uint32_t staging = s->held[0].staging[u];
            uploads[u++] = (struct selected_upload){
                staging, shm_arena_generation(p->io.staging, staging), slot, 0};
        }
    }
    if (p->n_uploads) /* a device with memory of its own copies them while others are scored */
        shm_ring_publish(&p->io.rings[RING_SELECTION], RECORD_SELECTION, answer_bytes(p));
    else
        shm_ring_stage(&p->io.rings[RING_SELECTION], RECORD_SELECTION, answer_bytes(p));
    return 1;
}

/* Go past a query of `layer` that has been answered, if it wants an answer. The rows of a step ask
 * together and their worker goes on when it has all answers: it is woken once, unless what comes
 * next is of another layer (a guess, which is worked at while the worker computes) or takes long
 * (scorer_pause). */
static int go_past_query(struct scorer *p, uint32_t layer)
{
    struct shm_ring_end *ring = &p->io.rings[RING_QUERY];
    uint32_t type, bytes;
    const void *payload;
    shm_ring_skip(ring);
    int rc = shm_ring_peek(ring, &type, &payload, &bytes);
    if (rc || type != RECORD_QUERY || bytes < sizeof(struct record_query) ||
        ((const struct record_query *)payload)->header.layer != layer)
        shm_ring_flush(&p->io.rings[RING_SELECTION]);
    return rc == HILL_E_WOULD_BLOCK || rc == HILL_E_PEER_GONE ? 0 : rc;
}

/* Everything between the query and its answer; the numbers of the answer are left in p. */
static int work_out(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    uint32_t list = scorer_list(p, s->index, q->header.layer);
    int rc = query_await_tokens(p, s, q);
    int64_t k = rc ? rc : select_tokens(p, s, q);
    if (k < 0)
        return (int)k;
    int64_t start = clock_now_ns();
    if (q->kind == QUERY_AHEAD)
        return gather_ahead(p, s, q, (uint32_t)k);
    ahead_compare(s, q, p->positions, (uint32_t)k);
    int64_t n_uploads = give_places(p, s, q->header.layer, (uint32_t)k);
    if (n_uploads < 0)
        return (int)n_uploads; /* admission counted the slots */
    forget_places(p, list, q->n_tokens);
    STAGE_BEGIN_AT(gather, &q->header);
    rc = gather(p, s, q, (uint32_t)k, (uint32_t)n_uploads);
    STAGE_END(gather, (uint64_t)n_uploads * p->hkm.entry_bytes);
    if (rc) {
        gpu_slots_clear(&p->gpu, list); /* what was to be uploaded is not there */
        return rc;
    }
    s->stats.fetch_ns += clock_now_ns() - start;
    s->stats.gpu.hits += (uint64_t)(k - n_uploads) - p->n_in_place;
    s->held[0].reading = p->n_in_place > 0; /* no word has flipped since they were looked up */
    s->held[0].layer = q->header.layer;
    p->n_selected = (uint32_t)k;
    p->n_uploads = (uint32_t)n_uploads;
    return 0;
}

/* The selection into the KV trace, after the answer: it must not wait for a disk. p->slots becomes
 * the trace's words. */
static void trace_answer(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    for (uint32_t i = 0; i < p->n_selected; i++) {
        uint32_t word = hkm_location(&p->hkm, s->index, q->header.layer, p->positions[i]);
        p->slots[i] = p->positions[i] | (hkm_tag(word) == HKM_COLD ? TRACE_COLD : 0) |
                      (p->slots[i] & (GPU_SLOTS_UPLOAD | SELECTED_HOT) ? 0 : TRACE_GPU);
    }
    bool scored = p->io.trace_scores && s->settings.policy != KV_POLICY_FULL;
    struct trace_query query = {.request = s->request_id,
                                .sequence = s->index,
                                .step = q->header.step,
                                .layer = q->header.layer,
                                .n_tokens = q->n_tokens,
                                .n_selected = p->n_selected,
                                .words = p->slots,
                                .scores = scored ? kv_selector_scores(p->selector) : NULL};
    int rc = trace_query(p->io.trace, &query);
    if (rc == 0)
        return;
    log_error("writing the KV trace failed: %s; going on without one", hill_strerror(rc));
    p->io.trace = NULL;
}

/* What the answer uploads or names in the hot pool. */
static uint32_t list_missed(struct scorer *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_selected; i++)
        if (p->slots[i] & (GPU_SLOTS_UPLOAD | SELECTED_HOT))
            p->missed[n++] = p->positions[i];
    return n;
}

static int answer_query(struct scorer *p, const struct record_query *q)
{
    struct sequence *s = &p->sequences[q->header.sequence];
    const struct record_query head = *q; /* the record is gone when it has been answered */
    STAGE_BEGIN_AT(answer, &q->header);
    p->n_selected = p->n_uploads = p->n_in_place = p->n_fetches = p->n_late = p->n_copies = 0;
    p->query = (struct query_state){.sequence = s->index, .layer = q->header.layer};
    p->answer_status = work_out(p, s, q);
    if (p->answer_status == HILL_E_CANCELLED)
        return HILL_E_CANCELLED;
    if (q->kind == QUERY_AHEAD) {
        STAGE_END(answer, 0);
        /* if it has failed, the exact query's answer will say so */
        return go_past_query(p, head.header.layer);
    }
    int rc = wait_for(p, s, q, push_answer, true);
    STAGE_END(answer, answer_bytes(p));
    if (rc == HILL_E_CANCELLED)
        return rc;
    int damaged = go_past_query(p, head.header.layer);
    if (rc == 0 && p->answer_status == 0) { /* else: a GPU worker that is gone needs no answer */
        uint32_t n_missed = list_missed(p);
        if (p->io.trace) /* where entries were, not where they go */
            trace_answer(p, s, &head);
        moves_note(p, s, head.header.layer, p->missed, n_missed);
    }
    return damaged;
}

/* The GPU worker has read what the sequence's last selection named. */
static void take_reads_done(struct scorer *p, const struct record_reads_done *r)
{
    struct sequence *s = &p->sequences[r->header.sequence];
    if (s->request_id == r->request_id)
        ahead_reads_done(s);
}

/* The record at the ring's head: 1 taken, 0 there is none. */
static int take_record(struct scorer *p)
{
    struct shm_ring_end *ring = &p->io.rings[RING_QUERY];
    uint32_t type, bytes;
    const void *payload;
    int rc = shm_ring_peek(ring, &type, &payload, &bytes);
    if (rc)
        return rc == HILL_E_WOULD_BLOCK || rc == HILL_E_PEER_GONE ? 0 : rc;
    bool accepted = scorer_accept(p, type, payload, bytes);
    if (accepted && type == RECORD_QUERY) {
        rc = answer_query(p, payload);
    } else {
        if (accepted && type == RECORD_READS_DONE)
            take_reads_done(p, payload);
        else if (accepted && type == RECORD_READ)
            rc = read_answer(p, payload);
        shm_ring_release(ring);
        shm_ring_flush(&p->io.rings[RING_SELECTION]); /* in case answers waited for it */
    }
    if (rc)
        return rc;
    p->hooks.work_done(p->hooks.context, 1);
    return 1;
}

/* As many as a step can have rows, one right after another: what is to move waits for the last. */
int query_pump(struct scorer *p)
{
    int rc = 1, taken = 0;
    while (rc > 0 && taken < (int)p->config.n_sequences) {
        rc = take_record(p);
        taken += rc > 0 ? 1 : 0;
    }
    return rc < 0 ? rc : taken > 0;
}
