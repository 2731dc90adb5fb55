/*
 * cpu_scorer/scorer_append.c - the append ring: sequences begin, grow, step and end.
 *
 * A record that cannot be taken yet (no credits, no free slot) stays at the head of the ring and is
 * looked at again at the next turn; the GPU worker then waits for credits. What waits for the drive
 * does not: a SEQ_END whose sequence has demotions under way, and a SEQ_BEGIN whose slot or room is
 * still being cleared up, are kept with their sequence and answered later, while the records of
 * other sequences go on. The sequence's own are not in question: its worker sends none before the
 * answer, but for a SEQ_END that takes the SEQ_BEGIN back.
 * An APPEND may be taken in parts (append_done). Each token is placed once: hot, or
 * straight into a DEMOTE record. Concurrency and failure: as scorer.h says.
 */
#include "cpu_scorer/scorer_internal.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "kv/plane.h"

#define RECORDS_PER_TURN 16 /* then the agent's rings are looked at again */

/* ---- end ---------------------------------------------------------------------------------- */

void append_close(struct scorer *p, struct sequence *s)
{
    if (s->state != SEQUENCE_ACTIVE)
        return;
    ahead_release_all(p, s);
    s->leaving = false;
    p->staging_unreserved += s->staging_max;
    for (uint32_t layer = 0; layer < p->config.geometry.n_layers; layer++)
        gpu_slots_clear(&p->gpu, scorer_list(p, s->index, layer));
    moves_end(p, s);
    hkm_release(&p->hkm, s->index);
    s->state = SEQUENCE_ENDING;
}

void append_free(struct scorer *p, struct sequence *s)
{
    for (uint32_t layer = 0; layer < p->config.geometry.n_layers; layer++)
        cold_map_release(&p->cold, scorer_list(p, s->index, layer));
    s->state = SEQUENCE_FREE;
}

/* Nothing more can be asked of a lost agent; its stripes stay taken until the next epoch. */
static void end_without_agent(struct scorer *p, struct sequence *s)
{
    agent_forget(p, s);
    if (s->cold_used)
        s->state = SEQUENCE_FREE;
    else
        append_free(p, s);
}

/* One that has been closed gives its stripes back. */
static int clear_up(struct scorer *p, struct sequence *s)
{
    if (s->state != SEQUENCE_ENDING && s->state != SEQUENCE_TRIMMING)
        return 0;
    if (p->agent_status) {
        end_without_agent(p, s);
        return 1;
    }
    if (s->state == SEQUENCE_TRIMMING || s->demotes)
        return 0;
    if (!s->cold_used)
        append_free(p, s);
    else if (agent_trim(p, s) == 0)
        s->state = SEQUENCE_TRIMMING;
    else
        return 0;
    return 1;
}

/* The middle of the steps' imbalances, to a percent. */
static double median_imbalance(const struct sequence *s)
{
    uint32_t seen = 0, i = 0;
    while (i < 100 && (seen += s->balance.counts[i]) * 2 < s->stats.steps)
        i++;
    return s->stats.steps ? (i + 0.5) / 100 : 0;
}

/* The tiers as they stand, beside what is counted as it happens. */
static void fill_stats(struct scorer *p, struct sequence *s)
{
    struct scorer_stats *stats = &s->stats;
    const struct scorer_config *c = &p->config;
    uint64_t entry = p->hkm.entry_bytes, hot = 0, cold = 0, gpu = 0;
    for (uint32_t layer = 0; layer < c->geometry.n_layers; layer++) {
        uint32_t list = scorer_list(p, s->index, layer);
        hot += hkm_hot_tokens(&p->hkm, s->index, layer);
        cold += p->cold.lists[list].committed;
        gpu += gpu_slots_resident(&p->gpu, list);
    }
    stats->request_id = s->request_id;
    stats->imbalance = median_imbalance(s);
    stats->selection_hash = XXH64_digest(s->hash);
    stats->beta = cold ? (double)hot / (double)cold : -1;
    stats->gpu.tokens = gpu;
    stats->gpu.bytes = gpu * entry;
    stats->gpu.cap_bytes = c->gpu_cap_bytes;
    stats->hot.tokens = hot;
    stats->hot.bytes = hot * (entry + kv_digest_bytes(&c->geometry));
    stats->hot.cap_bytes = c->hot_cap_bytes;
    stats->cold.tokens = cold;
    stats->cold.bytes = cold * (entry + kv_digest_bytes(&c->geometry));
    stats->cold.cap_bytes = c->csd ? c->cold_cap_bytes : 0;
    stats->dropped_records = p->dropped_records;
    stats->bounced = moves_bounced(p, s);
}

uint32_t scorer_live_stats(struct scorer *p, struct scorer_stats *out, uint32_t max)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->config.n_sequences && n < max; i++) {
        if (p->sequences[i].state != SEQUENCE_ACTIVE)
            continue;
        fill_stats(p, &p->sequences[i]);
        out[n++] = p->sequences[i].stats;
    }
    return n;
}

static void finish_stats(struct scorer *p, struct sequence *s)
{
    fill_stats(p, s);
    log_debug("request %llu: control bytes of the agent's rings so far: %llu",
              (unsigned long long)s->request_id, (unsigned long long)p->control_bytes);
    log_debug("request %llu: %llu of %llu demotions took the slots of copies",
              (unsigned long long)s->request_id, (unsigned long long)s->stats.reused,
              (unsigned long long)s->stats.demoted);
}

static bool has_credits(struct scorer *p, uint32_t bytes)
{
    return shm_ring_credits(&p->io.rings[RING_SELECTION]) >= bytes;
}

/* 1: the sequence is over and its worker told so; 0: no credits. */
static int answer_end(struct scorer *p, struct sequence *s, const struct record_seq_end *r,
                      bool ours)
{
    struct record_seq_stats answer = {.header = r->header, .request_id = r->request_id};
    if (!has_credits(p, sizeof answer))
        return 0;
    if (ours) {
        finish_stats(p, s);
        p->hooks.stats(p->hooks.context, &s->stats);
        if (p->io.trace && trace_flush(p->io.trace))
            log_error("writing the KV trace failed");
        append_close(p, s);
    }
    shm_ring_push(&p->io.rings[RING_SELECTION], RECORD_SEQ_STATS, &answer, sizeof answer);
    return 1;
}

static int answer_ready(struct scorer *p, const struct record_seq_ready *answer)
{
    if (!has_credits(p, sizeof *answer))
        return 0;
    shm_ring_push(&p->io.rings[RING_SELECTION], RECORD_SEQ_READY, answer, sizeof *answer);
    return 1;
}

/* Every SEQ_BEGIN has its answer: its worker counts them. */
static int take_begin_back(struct scorer *p, struct sequence *s)
{
    struct record_seq_ready answer = {.header = s->begin.header, .status = HILL_E_CANCELLED};
    if (s->begin_held && !answer_ready(p, &answer))
        return 0;
    s->begin_held = false;
    return 1;
}

/* Stats wait for the demotions under way, so that what they wrote is counted. */
static int take_seq_end(struct scorer *p, const struct record_seq_end *r)
{
    struct sequence *s = &p->sequences[r->header.sequence];
    bool ours = s->state == SEQUENCE_ACTIVE && s->request_id == r->request_id && !s->leaving;
    if (!take_begin_back(p, s))
        return 0;
    if (!ours || !s->demotes || p->agent_status)
        return answer_end(p, s, r, ours);
    ahead_reads_done(s); /* so that its demotions come to an end */
    s->leaving = true;
    s->end = *r;
    return 1;
}

/* ---- begin -------------------------------------------------------------------------------- */

static int reserve_tiers(struct scorer *p, struct sequence *s, uint32_t blocks, uint32_t stripes)
{
    if (hkm_reserve(&p->hkm, s->index, blocks))
        return HILL_E_TOO_LONG;
    for (uint32_t layer = 0; layer < p->config.geometry.n_layers; layer++)
        if (cold_map_reserve(&p->cold, scorer_list(p, s->index, layer), stripes))
            return HILL_E_TOO_LONG; /* hot_share_plan counted them: cannot be, and is undone by end
                                     */
    return 0;
}

/* For a selection of k tokens; where queries are guessed two of them are alive at a time. */
static uint32_t staging_of(const struct scorer *p, uint32_t k)
{
    return p->config.speculates ? 2 * k : k;
}

static int check_caps(struct scorer *p, const struct sequence *s, struct hill_why *why)
{
    uint32_t k = kv_budget_tokens(&s->settings, s->max_tokens), staged = staging_of(p, k);
    if (p->agent_status)
        return hill_fail(why, p->agent_status, "the CSD agent does not answer");
    if (!kv_policy_served(p->config.policy, s->settings.policy))
        return hill_fail(why, HILL_E_UNSUPPORTED, "this pipeline is set up for policy %s, not %s",
                         kv_policy_name(p->config.policy), kv_policy_name(s->settings.policy));
    if (s->max_tokens > p->config.ctx_tokens)
        return hill_fail(why, HILL_E_TOO_LONG, "%u tokens are beyond the context of %u",
                         s->max_tokens, p->config.ctx_tokens);
    if (k > p->config.gpu_slots)
        return hill_fail(why, HILL_E_TOO_LONG,
                         "%u selected tokens per layer are beyond the GPU's %u slots; raise "
                         "--gpu-kv-mb or lower the budget",
                         k, p->config.gpu_slots);
    if (staged > p->staging_unreserved)
        return hill_fail(why, staged > p->io.staging->slot_count ? HILL_E_TOO_LONG : HILL_E_BUSY,
                         "%u selected tokens are beyond the %u staging slots left; raise --hot-mb "
                         "or lower the budget",
                         staged, p->staging_unreserved);
    return 0;
}

/* Where something is cold and queries choose, what they choose decides what is hot. */
static bool wants_policy(const struct scorer *p, const struct sequence *s)
{
    return p->config.placement == SCORER_BKP && p->config.csd && s->share.beta > 0 &&
           s->settings.policy != KV_POLICY_FULL;
}

static int plan_tiers(struct scorer *p, struct sequence *s, uint32_t *blocks, uint32_t *stripes,
                      struct hill_why *why)
{
    const struct scorer_config *c = &p->config;
    struct hot_share_room room = {.n_layers = c->geometry.n_layers,
                                  .n_sequences = c->n_sequences,
                                  .hot_blocks = p->hkm.n_blocks,
                                  .unreserved = p->hkm.n_unreserved,
                                  .stripes = p->cold.n_stripes,
                                  .free_stripes = p->cold.n_free,
                                  .stripe_slots = p->cold.stripe_slots,
                                  .cold_pool = c->csd};
    s->share = (struct hot_share){.beta = c->beta,
                                  .adapts = c->adapts,
                                  .sinks = s->settings.sinks,
                                  .window = s->settings.window};
    room.wants_copies = wants_policy(p, s);
    int rc = hot_share_plan(&s->share, &room, s->max_tokens, blocks, stripes, why);
    if (rc == 0 && room.wants_copies && !s->share.copies)
        log_info("request %llu: placed by recency: the cold pool has no room for copies of what "
                 "moves up",
                 (unsigned long long)s->request_id);
    return rc;
}

/* Set everything that a request needs aside, or nothing. */
static int admit(struct scorer *p, struct sequence *s, struct hill_why *why)
{
    uint32_t blocks, stripes;
    int rc = check_caps(p, s, why);
    if (rc == 0)
        rc = plan_tiers(p, s, &blocks, &stripes, why);
    if (rc == 0 && s->share.copies && (rc = moves_begin(p, s)) != 0)
        hill_fail(why, rc, "no memory for the placement of %u tokens", s->max_tokens);
    if (rc)
        return rc;
    rc = reserve_tiers(p, s, blocks, stripes);
    if (rc) {
        moves_end(p, s);
        hkm_release(&p->hkm, s->index);
        append_free(p, s);
        return hill_fail(why, rc, "the tiers have no room");
    }
    s->k_max = kv_budget_tokens(&s->settings, s->max_tokens);
    s->staging_max = staging_of(p, s->k_max);
    p->staging_unreserved -= s->staging_max;
    return 0;
}

static void start_sequence(struct scorer *p, struct sequence *s, const struct record_seq_begin *r)
{
    s->status = 0;
    s->request_id = r->request_id;
    s->prompt_tokens = r->prompt_tokens;
    s->max_tokens = r->max_tokens;
    s->settings = (struct kv_selection_settings){.alpha = r->alpha,
                                                 .budget = r->budget,
                                                 .sinks = r->sinks,
                                                 .window = r->window,
                                                 .policy = r->policy,
                                                 .importance = r->importance};
    memset(s->layers, 0, p->config.geometry.n_layers * sizeof *s->layers);
    memset(&s->stats, 0, sizeof s->stats);
    memset(&s->balance, 0, sizeof s->balance);
    XXH64_reset(s->hash, 0);
    s->cold_used = s->moves_wanted = false;
    ahead_begin(p, s);
    s->reads_hot = r->reads_hot;
    s->first_tag = p->next_tag;
    keys_begin(p, s);
    s->trim_tag = 0;
    s->staging_max = s->k_max = 0;
}

static void place_prompt(struct sequence *s)
{
    hot_share_cold_range(&s->share, s->prompt_tokens, &s->cold_from, &s->cold_to);
    log_info("request %llu: %u of %u prompt tokens per layer hot (beta %.3g), room for %u hot",
             (unsigned long long)s->request_id, s->prompt_tokens - (s->cold_to - s->cold_from),
             s->prompt_tokens, s->share.beta, s->share.limit);
}

/* Does one still give back what it held? */
static bool any_ending(const struct scorer *p)
{
    for (uint32_t i = 0; i < p->config.n_sequences; i++)
        if (p->sequences[i].leaving || p->sequences[i].state == SEQUENCE_ENDING ||
            p->sequences[i].state == SEQUENCE_TRIMMING)
            return true;
    return false;
}

static void say_where_hot(const struct scorer *p, const struct sequence *s,
                          struct record_seq_ready *answer)
{
    if (!s->reads_hot)
        return;
    answer->hot_offset = (uint32_t)(p->hkm.header->entries_offset / 64); /* a multiple of it */
    answer->hot_entries = p->hkm.n_blocks * KV_HOT_BLOCK_TOKENS;
}

/* 1: answered; 0: not yet. HILL_E_BUSY says that others have to end first: none of them is ending
 * already. */
static int begin_sequence(struct scorer *p, struct sequence *s, const struct record_seq_begin *r)
{
    struct record_seq_ready answer = {.header = r->header};
    struct hill_why why = {""};
    if (s->state != SEQUENCE_FREE || !has_credits(p, sizeof answer))
        return 0;
    start_sequence(p, s, r);
    answer.status = admit(p, s, &why);
    if (answer.status == HILL_E_BUSY && any_ending(p))
        return 0;
    if (answer.status == HILL_E_BUSY) {
        log_debug("request %llu waits: %s", (unsigned long long)s->request_id, why.text);
    } else if (answer.status) {
        scorer_fail(p, s, answer.status, "%s", why.text);
    } else {
        s->state = SEQUENCE_ACTIVE;
        place_prompt(s);
        say_where_hot(p, s, &answer);
    }
    shm_ring_push(&p->io.rings[RING_SELECTION], RECORD_SEQ_READY, &answer, sizeof answer);
    return 1;
}

static int take_seq_begin(struct scorer *p, const struct record_seq_begin *r)
{
    struct sequence *s = &p->sequences[r->header.sequence];
    if (!take_begin_back(p, s))
        return 0;
    if (!s->leaving)
        append_close(p, s); /* another is there and was never ended */
    if (!begin_sequence(p, s, r)) {
        s->begin = *r;
        s->begin_held = true;
    }
    return 1;
}

int append_pump_endings(struct scorer *p)
{
    int moved = 0;
    for (uint32_t i = 0; i < p->config.n_sequences; i++) {
        struct sequence *s = &p->sequences[i];
        if (s->leaving && (s->demotes == 0 || p->agent_status))
            moved |= answer_end(p, s, &s->end, true);
        moved |= clear_up(p, s);
    }
    for (uint32_t i = 0; i < p->config.n_sequences; i++) {
        struct sequence *s = &p->sequences[i];
        if (s->begin_held && begin_sequence(p, s, &s->begin)) {
            s->begin_held = false;
            moved = 1;
        }
    }
    return moved;
}

/* A SEQ_BEGIN that makes no sense is answered all the same, where it says whose it is. */
static int refuse_begin(struct scorer *p, const void *payload, uint32_t bytes)
{
    struct record_seq_ready answer = {.status = HILL_E_PROTOCOL};
    if (bytes < sizeof answer.header)
        return 1;
    memcpy(&answer.header, payload, sizeof answer.header);
    return answer.header.epoch == p->config.epoch ? answer_ready(p, &answer) : 1;
}

/* ---- tokens ------------------------------------------------------------------------------- */

/* Place tokens of one kind from `position` on; returns how many were taken. */
static uint32_t place_some(struct scorer *p, struct sequence *s, uint32_t layer, uint32_t position,
                           uint32_t n, const uint8_t *entries)
{
    bool cold = position >= s->cold_from && position < s->cold_to;
    uint32_t border = cold ? s->cold_to : position < s->cold_from ? s->cold_from : UINT32_MAX;
    if (border - position < n)
        n = border - position;
    if (cold) {
        n = agent_demote_entries(p, s, layer, position, n, entries);
        s->layers[layer].uncommitted += n;
        return n;
    }
    uint32_t taken = hkm_append(&p->hkm, s->index, layer, position, n, entries);
    if (taken < n)
        s->moves_wanted = true; /* full until something goes down */
    return taken;
}

static int take_append(struct scorer *p, const struct record_append *r)
{
    struct sequence *s = &p->sequences[r->header.sequence];
    struct layer_state *l = &s->layers[r->header.layer];
    if (s->state != SEQUENCE_ACTIVE || s->status || s->leaving)
        return 1;
    if (p->append_done == 0 &&
        (r->first != l->appended || r->n_tokens > s->max_tokens - l->appended)) {
        scorer_fail(p, s, HILL_E_PROTOCOL,
                    "tokens %u..%u of layer %u were appended after %u of at most %u", r->first,
                    r->first + r->n_tokens - 1, r->header.layer, l->appended, s->max_tokens);
        return 1;
    }
    const uint8_t *entries = (const uint8_t *)(r + 1);
    int moved = 0;
    keys_look(p, s, r);
    while (p->append_done < r->n_tokens) {
        uint32_t taken = place_some(p, s, r->header.layer, r->first + p->append_done,
                                    r->n_tokens - p->append_done,
                                    entries + (uint64_t)p->append_done * p->hkm.entry_bytes);
        if (taken == 0)
            return moved ? -1 : 0;
        keys_append(p, s, r->header.layer, r->first + p->append_done, taken,
                    entries + (uint64_t)p->append_done * p->hkm.entry_bytes);
        moved = 1;
        p->append_done += taken;
        l->appended += taken;
    }
    return 1;
}

/* A decode step is over: how far apart its two sides were. */
static void note_balance(struct sequence *s)
{
    struct step_balance *b = &s->balance;
    int64_t cpu = s->stats.score_hot_ns + s->stats.copy_hot_ns;
    int64_t csd = s->stats.score_cold_ns + s->stats.fetch_cold_ns;
    double a = (double)(cpu - b->cpu_ns), c = (double)(csd - b->csd_ns);
    b->cpu_ns = cpu;
    b->csd_ns = csd;
    if (!(a > 0 && c > 0))
        return; /* one side alone, or a prompt's end */
    b->counts[(int)(100 * fabs(a - c) / fmax(a, c))]++;
    s->stats.steps++;
}

static int take_step_end(struct scorer *p, const struct record_step_end *r)
{
    struct sequence *s = &p->sequences[r->header.sequence];
    if (s->state != SEQUENCE_ACTIVE || s->status)
        return 1;
    for (uint32_t layer = 0; layer < p->config.geometry.n_layers; layer++)
        if (s->layers[layer].appended != r->n_tokens) {
            scorer_fail(p, s, HILL_E_PROTOCOL, "step %u ends with %u tokens, layer %u was given %u",
                        r->header.step, r->n_tokens, layer, s->layers[layer].appended);
            return 1;
        }
    note_balance(s);
    s->moves_wanted = true;
    return 1;
}

/* 1: the record is done, 0: it waits, -1: it moved on and waits. */
static int take_record(struct scorer *p, uint32_t type, const void *payload, uint32_t bytes)
{
    if (!p->append_checked) {
        p->append_refused = !scorer_accept(p, type, payload, bytes);
        p->append_checked = true;
    }
    if (p->append_refused)
        return type == RECORD_SEQ_BEGIN ? refuse_begin(p, payload, bytes) : 1;
    switch (type) {
    case RECORD_SEQ_BEGIN:
        return take_seq_begin(p, payload);
    case RECORD_PROMPT:
        return 1; /* for the recording alone */
    case RECORD_RESUME:
        read_take_resume(p, payload);
        return 1;
    case RECORD_APPEND:
        return take_append(p, payload);
    case RECORD_MASS:
        keys_take_mass(p, payload);
        return 1;
    case RECORD_STEP_END:
        return take_step_end(p, payload);
    case RECORD_SEQ_END:
        return take_seq_end(p, payload);
    default:
        p->dropped_records++;
        return 1;
    }
}

int append_pump(struct scorer *p)
{
    struct shm_ring_end *ring = &p->io.rings[RING_APPEND];
    int moved = 0;
    for (int i = 0; i < RECORDS_PER_TURN; i++) {
        uint32_t type, bytes;
        const void *payload;
        int rc = shm_ring_peek(ring, &type, &payload, &bytes);
        if (rc == HILL_E_WOULD_BLOCK || rc == HILL_E_PEER_GONE)
            break; /* a new GPU worker comes with a new epoch */
        if (rc)
            return rc;
        rc = take_record(p, type, payload, bytes);
        if (rc != 1)
            return moved || rc < 0;
        p->append_done = 0;
        p->append_checked = false;
        shm_ring_release(ring);
        p->hooks.work_done(p->hooks.context, 1);
        moved = 1;
    }
    return moved;
}
