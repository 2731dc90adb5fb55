/*
 * cpu_scorer/scorer_agent.c - the agent's side of the scorer: what is sent to it, and what
 * comes back.
 *
 * Moving an entry down: DEMOTE on the background ring (a copy of entry and digest), its completion
 * (the copy is on flash), COMMIT on the command ring and the location word's flip, then the hot
 * slot is free. The commit precedes every later query on the same ring, and both happen only while
 * no query is open: agent and scorer cut at the same place. An entry that has moved
 * up (scorer_moves.c) leaves its copy where it was; to go down again it needs the COMMIT alone.
 * Copies beyond what is kept (cold_map.h) give their slots to entries that go down without one: a
 * scattered DEMOTE, which the agent sees after the RELEASE of those slots.
 * Link accounting: every payload byte of
 * the agent's two rings is a Score Block's tuples (link_score), a fixed header or a completion
 * (control), or, being nothing of these, counted as link_key. A raw key that came over would show
 * there, as do those that READ_KEYS brings on purpose (its completions say how many bytes).
 * Failure: a command's error fails its request; an agent that is silent past the deadline with
 * commands open is given up until the next epoch. A peer seen gone is only silent: the coordinator
 * brings a new epoch.
 */
#include "cpu_scorer/scorer_internal.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"

#define TUPLES_AT_ONCE 512u

/* ---- commands ----------------------------------------------------------------------------- */

void agent_sent(struct scorer *p)
{
    if (p->commands_open++ == 0)
        p->agent_heard_ns = clock_now_ns();
}

uint64_t agent_tag(struct scorer *p)
{
    return p->next_tag++ << 8;
}

int agent_trim(struct scorer *p, struct sequence *s)
{
    struct shm_ring_end *ring = &p->io.rings[RING_COMMAND];
    void *payload;
    if (shm_ring_reserve(ring, sizeof(struct record_trim), &payload))
        return HILL_E_WOULD_BLOCK; /* gone: silent, see above */
    s->trim_tag = agent_tag(p);
    *(struct record_trim *)payload =
        (struct record_trim){.header = scorer_header(p, s->index, 0, 0), .tag = s->trim_tag};
    shm_ring_publish(ring, RECORD_TRIM, sizeof(struct record_trim));
    agent_sent(p);
    return 0;
}

static struct demote *free_demote(struct scorer *p)
{
    for (uint32_t i = 0; i < MAX_DEMOTES; i++)
        if (!p->demotes[i].used)
            return &p->demotes[i];
    return NULL;
}

static void drop_demote(struct scorer *p, struct demote *d)
{
    p->sequences[d->sequence].demotes--;
    p->n_demotes--;
    p->n_moves -= d->from_hot;
    d->used = false;
}

void agent_forget(struct scorer *p, struct sequence *s)
{
    for (uint32_t i = 0; i < MAX_DEMOTES; i++)
        if (p->demotes[i].used && p->demotes[i].sequence == s->index)
            drop_demote(p, &p->demotes[i]);
}

/* A DEMOTE record reserved in the background ring, its parts to be filled. */
struct demote_record {
    struct record_demote *record;
    struct demote_parts parts;
    struct demote *demote;
    uint32_t n, slot, order;
    bool scattered; /* into demote->slots */
};

/* Slots for up to n tokens: *scattered, into those of copies, where enough of them are spare for a
 * record of its own; else behind the others. */
static uint32_t demote_room(const struct scorer *p, uint32_t list, bool from_hot, uint32_t n,
                            bool *scattered)
{
    uint32_t spare = from_hot ? cold_map_spare(&p->cold, list) : 0;
    *scattered = spare > 0 && (spare >= n || spare >= MOVE_TOKENS_MIN);
    uint32_t room = *scattered ? spare : cold_map_room(&p->cold, list);
    if (*scattered && room > MOVES_DOWN)
        room = MOVES_DOWN;
    return n < room ? n : room;
}

static int reserve_demote(struct scorer *p, struct sequence *s, uint32_t layer, bool from_hot,
                          uint32_t n, struct demote_record *out)
{
    out->n = demote_room(p, scorer_list(p, s->index, layer), from_hot, n, &out->scattered);
    if (out->n > p->config.demote_slots)
        out->n = p->config.demote_slots;
    out->demote = free_demote(p);
    if (p->agent_status || out->n == 0 || !out->demote)
        return HILL_E_WOULD_BLOCK;
    /* which lane the first slot is in is known when slots are taken; the last needs most room */
    record_demote_parts(&out->parts, &p->config.geometry, KV_GROUP_TOKENS - 1, out->n);
    void *payload;
    uint64_t bytes = out->scattered ? out->parts.scattered_total : out->parts.total;
    int rc = shm_ring_reserve(&p->io.rings[RING_BACKGROUND], (uint32_t)bytes, &payload);
    if (rc)
        return rc;
    out->record = payload;
    return 0;
}

/* Slots of copies for hot positions; what they were copies of has none any more. */
static void take_copies(struct scorer *p, struct sequence *s, uint32_t layer, const uint32_t *hot,
                        struct demote_record *d)
{
    uint32_t lost[MOVES_DOWN], *slots = d->demote->slots;
    cold_map_reuse(&p->cold, scorer_list(p, s->index, layer), hot, d->n, slots, lost);
    for (uint32_t i = 0; i < d->n; i++)
        s->layers[layer].kept[lost[i]] = COLD_NONE;
    d->slot = slots[0];
    d->order = 0; /* of several stripes, which the agent knows */
}

/* Take the slots. hot: the positions, moved down; NULL: they are first_position and those after it,
 * on their way in. */
static void take_demote(struct scorer *p, struct sequence *s, uint32_t layer,
                        uint32_t first_position, const uint32_t *hot, struct demote_record *d)
{
    uint32_t list = scorer_list(p, s->index, layer);
    if (d->scattered)
        take_copies(p, s, layer, hot, d);
    else if (hot)
        cold_map_take_positions(&p->cold, list, hot, d->n, &d->slot, &d->order);
    else
        cold_map_take(&p->cold, list, first_position, d->n, &d->slot, &d->order);
    record_demote_parts(&d->parts, &p->config.geometry, d->slot, d->n);
    memset(d->record, 0, d->parts.entries); /* no padding and no lane carries old bytes */
    uint32_t *positions = (uint32_t *)((uint8_t *)d->record + d->parts.positions);
    for (uint32_t i = 0; i < d->n; i++)
        positions[i] = hot ? hot[i] : first_position + i;
    if (d->scattered)
        memcpy((uint8_t *)d->record + d->parts.total, d->demote->slots, d->n * sizeof(uint32_t));
}

static void publish_demote(struct scorer *p, struct sequence *s, uint32_t layer, bool from_hot,
                           struct demote_record *d)
{
    struct demote *demote = d->demote; /* its slots are there already */
    demote->tag = agent_tag(p) | (uint64_t)(demote - p->demotes);
    demote->sequence = s->index;
    demote->layer = layer;
    demote->first_slot = d->slot;
    demote->n = d->n;
    demote->used = true;
    demote->done = false;
    demote->from_hot = from_hot;
    demote->scattered = d->scattered;
    *d->record = (struct record_demote){.header = scorer_header(p, s->index, 0, layer),
                                        .tag = d->demote->tag,
                                        .first_slot = d->slot,
                                        .n_slots = d->n,
                                        .stripe_order = d->order,
                                        .scattered = d->scattered};
    shm_ring_publish(&p->io.rings[RING_BACKGROUND], RECORD_DEMOTE,
                     (uint32_t)(d->scattered ? d->parts.scattered_total : d->parts.total));
    p->n_demotes++;
    p->n_moves += from_hot;
    s->demotes++;
    s->cold_used = true;
    agent_sent(p);
}

uint32_t agent_demote_entries(struct scorer *p, struct sequence *s, uint32_t layer, uint32_t first,
                              uint32_t n, const uint8_t *entries)
{
    struct demote_record d;
    if (reserve_demote(p, s, layer, false, n, &d))
        return 0;
    take_demote(p, s, layer, first, NULL, &d);
    uint8_t *record = (uint8_t *)d.record;
    uint32_t entry_bytes = p->hkm.entry_bytes;
    memcpy(record + d.parts.entries, entries, (size_t)d.n * entry_bytes);
    if (!keys_fill_plane(p, s, layer, d.n, entries, NULL, record + d.parts.digests) &&
        !p->hkm.no_digests)
        kv_digest_keys(&p->config.geometry, (const uint16_t *)(const void *)entries,
                       entry_bytes / 2, d.n, record + d.parts.digests, d.slot % KV_GROUP_TOKENS);
    publish_demote(p, s, layer, false, &d);
    return d.n;
}

/* ---- demotions from hot ------------------------------------------------------------------- */

/* The oldest hot tokens above the sinks that follow one another: *first, and how many (at most
 * max). */
static uint32_t oldest_hot(struct scorer *p, struct sequence *s, uint32_t layer, uint32_t max,
                           uint32_t *first)
{
    struct layer_state *l = &s->layers[layer];
    uint32_t at = l->low > s->settings.sinks ? l->low : s->settings.sinks, n = 0;
    while (at < l->appended && hkm_tag(hkm_location(&p->hkm, s->index, layer, at)) != HKM_HOT)
        at++;
    *first = l->low = at;
    while (n < max && at + n < l->appended &&
           hkm_tag(hkm_location(&p->hkm, s->index, layer, at + n)) == HKM_HOT)
        n++;
    return n;
}

uint32_t agent_demote_hot(struct scorer *p, struct sequence *s, uint32_t layer,
                          const uint32_t *positions, uint32_t n)
{
    struct demote_record d;
    if (n == 0 || p->n_moves >= MOVES_OPEN_MAX || reserve_demote(p, s, layer, true, n, &d))
        return 0;
    take_demote(p, s, layer, 0, positions, &d);
    uint8_t *record = (uint8_t *)d.record;
    uint32_t entry_bytes = p->hkm.entry_bytes, lane = d.slot % KV_GROUP_TOKENS;
    for (uint32_t i = 0; i < d.n; i++) {
        uint32_t slot = hkm_slot(hkm_location(&p->hkm, s->index, layer, positions[i]));
        if (!p->hkm.no_digests)
            kv_digest_copy(&p->config.geometry, record + d.parts.digests, lane + i, p->hkm.digests,
                           slot, 1);
        memcpy(record + d.parts.entries + (uint64_t)i * entry_bytes, hkm_entry(&p->hkm, slot),
               entry_bytes);
    }
    keys_fill_plane(p, s, layer, d.n, NULL, positions, record + d.parts.digests);
    publish_demote(p, s, layer, true, &d);
    s->layers[layer].moving = d.n;
    return d.n;
}

static int move_down(struct scorer *p, struct sequence *s, uint32_t layer, uint32_t n)
{
    uint32_t first, positions[MOVES_DOWN];
    n = oldest_hot(p, s, layer, n < MOVES_DOWN ? n : MOVES_DOWN, &first);
    for (uint32_t i = 0; i < n; i++)
        positions[i] = first + i;
    return agent_demote_hot(p, s, layer, positions, n) > 0;
}

static int moves_of(struct scorer *p, struct sequence *s)
{
    int moved = 0;
    bool over = false;
    for (uint32_t layer = 0; layer < p->config.geometry.n_layers; layer++) {
        struct layer_state *l = &s->layers[layer];
        uint32_t hot = hkm_hot_tokens(&p->hkm, s->index, layer);
        uint32_t target = hot_share_target(&s->share, l->appended);
        if (hot < target + MOVE_TOKENS_MIN)
            continue;
        over = true;
        if (l->moving == 0 && p->n_moves < MOVES_OPEN_MAX)
            moved |= move_down(p, s, layer, hot - target);
    }
    s->moves_wanted = over;
    return moved;
}

int agent_pump_moves(struct scorer *p)
{
    int moved = 0;
    if (!p->config.csd || p->agent_status)
        return 0;
    for (uint32_t i = 0; i < p->config.n_sequences; i++) {
        struct sequence *s = &p->sequences[i];
        if (s->leaving)
            continue;
        if (s->state == SEQUENCE_ACTIVE && !s->status && s->moves_wanted &&
            p->n_moves < MOVES_OPEN_MAX && !s->kept)
            moved |= moves_of(p, s);
        else if (s->state == SEQUENCE_ACTIVE && !s->status && s->kept)
            moved |= moves_pump(p, s);
    }
    return moved;
}

/* ---- commits ------------------------------------------------------------------------------ */

int agent_push_slots(struct scorer *p, uint32_t type, uint32_t sequence, uint32_t layer,
                     const uint32_t *slots, uint32_t n)
{
    uint32_t bytes = (uint32_t)(sizeof(struct record_commit) + (uint64_t)n * sizeof(uint32_t));
    void *payload;
    int rc = shm_ring_reserve(&p->io.rings[RING_COMMAND], bytes, &payload);
    if (rc)
        return rc;
    struct record_header header = scorer_header(p, sequence, 0, layer);
    if (type == RECORD_COMMIT)
        *(struct record_commit *)payload =
            (struct record_commit){.header = header, .tag = agent_tag(p), .n_slots = n};
    else
        *(struct record_release *)payload =
            (struct record_release){.header = header, .tag = agent_tag(p), .n_slots = n};
    memcpy((uint8_t *)payload + sizeof(struct record_commit), slots, n * sizeof *slots);
    shm_ring_publish(&p->io.rings[RING_COMMAND], type, bytes);
    agent_sent(p);
    return 0;
}

static uint32_t slot_of(const struct demote *d, uint32_t i)
{
    return d->scattered ? d->slots[i] : d->first_slot + i;
}

static int push_commit(struct scorer *p, const struct demote *d)
{
    uint32_t slots[LAYOUT_COMMIT_SLOTS_MAX];
    for (uint32_t i = 0; i < d->n; i++)
        slots[i] = slot_of(d, i);
    return agent_push_slots(p, RECORD_COMMIT, d->sequence, d->layer, slots, d->n);
}

static void flip(struct scorer *p, const struct demote *d)
{
    struct sequence *s = &p->sequences[d->sequence];
    struct layer_state *l = &s->layers[d->layer];
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t slot = slot_of(d, i);
        cold_map_commit(&p->cold, scorer_list(p, d->sequence, d->layer), slot, 1);
        hkm_set_cold(&p->hkm, d->sequence, d->layer, cold_map_taken_position(&p->cold, slot), slot);
    }
    if (d->from_hot) {
        l->moving = 0;
        s->stats.demoted += d->n;
        s->stats.reused += d->scattered ? d->n : 0;
    } else {
        l->uncommitted -= d->n;
    }
}

int agent_pump_commits(struct scorer *p)
{
    int moved = 0;
    if (p->n_demotes == 0 || p->query.open)
        return 0;
    for (uint32_t i = 0; i < MAX_DEMOTES; i++) {
        struct demote *d = &p->demotes[i];
        if (!d->used || !d->done)
            continue;
        struct sequence *s = &p->sequences[d->sequence];
        if (s->state == SEQUENCE_ACTIVE && !s->status) {
            if (d->from_hot && scorer_reading(s, d->layer))
                continue; /* the hot slots would be free */
            if (push_commit(p, d))
                break; /* no credits now */
            flip(p, d);
        }
        drop_demote(p, d);
        moved = 1;
    }
    return moved;
}

/* ---- what comes back ---------------------------------------------------------------------- */

static void complete_query(struct scorer *p, const struct record_completion *c)
{
    struct query_state *q = &p->query;
    if (!q->open || c->tag != q->query_id || q->cold_done)
        return;
    q->cold_done = true;
    q->cold_done_ns = clock_now_ns();
    if (c->status)
        q->status = c->status;
    else if (c->count != q->cold_expected)
        q->status = HILL_E_PROTOCOL;
    if (q->status)
        scorer_fail(p, &p->sequences[q->sequence], q->status,
                    "scoring layer %u on the drive: %u of %u slots, first bad position %u",
                    q->layer, c->count, q->cold_expected, c->detail);
}

static void complete_fetch(struct scorer *p, const struct record_completion *c)
{
    struct query_state *q = &p->query;
    if (q->fetches_open == 0 || c->tag < q->fetch_first_tag || c->tag > q->fetch_last_tag)
        return;
    q->fetches_open--;
    q->fetched += c->count;
    if (c->status && !q->status) {
        q->status = c->status;
        scorer_fail(p, &p->sequences[q->sequence], q->status,
                    c->status == HILL_E_DAMAGED
                        ? "the entry of position %u in layer %u is damaged in the cold pool (its "
                          "checksum does not match); ask again, and check the drive"
                        : "the entry of position %u in layer %u cannot be read from the cold pool",
                    c->detail, q->layer);
    }
}

static void complete_demote(struct scorer *p, const struct record_completion *c)
{
    struct demote *d = &p->demotes[c->tag % 256 % MAX_DEMOTES];
    if (!d->used || d->tag != c->tag || d->done)
        return;
    d->done = true;
    if (!c->status && c->count == d->n)
        return;
    struct sequence *s = &p->sequences[d->sequence];
    if (s->state == SEQUENCE_ACTIVE)
        scorer_fail(p, s, c->status ? c->status : HILL_E_PROTOCOL,
                    "writing %u entries of layer %u to the cold pool", d->n, d->layer);
    drop_demote(p, d);
}

static void complete_trim(struct scorer *p, const struct record_completion *c)
{
    struct sequence *s = &p->sequences[c->header.sequence];
    if (s->state != SEQUENCE_TRIMMING || s->trim_tag != c->tag)
        return;
    if (c->status)
        log_error("freeing the cold stripes of sequence %u failed: %s; they are used again",
                  s->index, hill_strerror(c->status));
    append_free(p, s);
}

static void complete_commit(struct scorer *p, const struct record_completion *c)
{
    struct sequence *s = &p->sequences[c->header.sequence];
    if (c->status && s->state == SEQUENCE_ACTIVE && c->tag >> 8 >= s->first_tag)
        scorer_fail(p, s, c->status, "committing entries of layer %u in the cold pool",
                    c->header.layer);
}

static void take_completion(struct scorer *p, const struct record_completion *c)
{
    struct sequence *s = &p->sequences[c->header.sequence];
    if (p->commands_open)
        p->commands_open--;
    if (s->state == SEQUENCE_ACTIVE) {
        s->stats.flash_read_bytes += c->flash_read_bytes;
        s->stats.flash_write_bytes += c->flash_write_bytes;
        s->stats.link_key_bytes += c->link_key_bytes;
        s->stats.link_kv_bytes += c->command == RECORD_FETCH ? c->link_kv_bytes : 0;
        s->stats.fetch_cold_ns += c->command == RECORD_FETCH ? (int64_t)c->busy_ns : 0;
    }
    switch (c->command) {
    case RECORD_AGENT_QUERY:
        complete_query(p, c);
        break;
    case RECORD_FETCH:
        complete_fetch(p, c);
        break;
    case RECORD_READ_KEYS:
        keys_complete(p, c);
        break;
    case RECORD_DEMOTE:
        complete_demote(p, c);
        break;
    case RECORD_TRIM:
        complete_trim(p, c);
        break;
    default:
        complete_commit(p, c);
        break;
    }
}

/* Scores into the selector, by position. A slot that is not ours or not committed is an error,
 * never a guess. */
static int add_tuples(struct scorer *p, const struct record_score_block *b)
{
    const struct score_tuple *tuples = (const struct score_tuple *)(b + 1);
    uint32_t list = scorer_list(p, p->query.sequence, p->query.layer);
    uint32_t positions[TUPLES_AT_ONCE];
    uint16_t scores[TUPLES_AT_ONCE];
    for (uint32_t done = 0; done < b->n;) {
        uint32_t n = b->n - done < TUPLES_AT_ONCE ? b->n - done : TUPLES_AT_ONCE;
        for (uint32_t i = 0; i < n; i++) {
            uint64_t in_stripe = (uint64_t)b->first_slot + tuples[done + i].slot_offset;
            positions[i] =
                in_stripe < p->cold.stripe_slots
                    ? cold_map_position(&p->cold, list,
                                        (uint64_t)b->stripe * p->cold.stripe_slots + in_stripe)
                    : COLD_NONE;
            scores[i] = tuples[done + i].score;
        }
        int rc = kv_selector_add(p->selector, positions, scores, n); /* refuses COLD_NONE */
        if (rc)
            return rc;
        done += n;
    }
    return 0;
}

static void take_scores(struct scorer *p, const struct record_score_block *b)
{
    struct query_state *q = &p->query;
    struct sequence *s = &p->sequences[b->header.sequence];
    if (s->state == SEQUENCE_ACTIVE)
        s->stats.link_score_bytes += (uint64_t)b->n * sizeof(struct score_tuple);
    if (!q->open || b->query_id != q->query_id || b->header.sequence != q->sequence ||
        b->header.layer != q->layer || q->status) {
        p->dropped_records++; /* of a query that was given up */
        return;
    }
    int64_t start = clock_now_ns();
    int rc = add_tuples(p, b);
    if (rc) {
        q->status = rc;
        scorer_fail(p, s, rc, "a Score Block of stripe %u scores a slot twice or a foreign one",
                    b->stripe);
    }
    q->cold_scored += b->n;
    s->stats.merge_ns += clock_now_ns() - start;
}

/* Account for every byte of a record from the agent, whatever it is. */
static void count_link(struct scorer *p, uint32_t type, const void *payload, uint32_t bytes,
                       bool accepted)
{
    uint64_t known = 0;
    const struct record_score_block *b = payload;
    if (accepted && type == RECORD_COMPLETION)
        known = sizeof(struct record_completion);
    else if (accepted && type == RECORD_SCORE_BLOCK)
        known = sizeof *b + (uint64_t)b->n * sizeof(struct score_tuple);
    p->control_bytes += type == RECORD_SCORE_BLOCK && accepted ? sizeof *b : known;
    if (bytes <= known)
        return;
    /* nobody's in particular: every request under way is told */
    for (uint32_t i = 0; i < p->config.n_sequences; i++)
        if (p->sequences[i].state == SEQUENCE_ACTIVE)
            p->sequences[i].stats.link_key_bytes += bytes - known;
}

static int drain(struct scorer *p, enum layout_ring which)
{
    struct shm_ring_end *ring = &p->io.rings[which];
    uint32_t expected = which == RING_SCORE ? RECORD_SCORE_BLOCK : RECORD_COMPLETION;
    int moved = 0;
    for (;;) {
        uint32_t type, bytes;
        const void *payload;
        int rc = shm_ring_peek(ring, &type, &payload, &bytes);
        if (rc == HILL_E_WOULD_BLOCK || rc == HILL_E_PEER_GONE)
            return moved;
        if (rc)
            return rc;
        bool accepted = scorer_accept(p, type, payload, bytes) && type == expected;
        count_link(p, type, payload, bytes, accepted);
        p->agent_heard_ns = clock_now_ns();
        if (accepted && which == RING_SCORE)
            take_scores(p, payload);
        else if (accepted)
            take_completion(p, payload);
        shm_ring_release(ring);
        moved = 1;
    }
}

int agent_pump(struct scorer *p)
{
    if (!p->config.csd)
        return 0;
    int completions = drain(p, RING_COMPLETION);
    /* second: the scores of a query were published before its completion, so they are all there now
     */
    int scores = completions < 0 ? 0 : drain(p, RING_SCORE);
    if (completions < 0 || scores < 0)
        return completions < 0 ? completions : scores;
    return completions | scores;
}

void agent_check_deadline(struct scorer *p)
{
    if (!p->commands_open || p->agent_status ||
        clock_now_ns() < p->agent_heard_ns + p->config.agent_deadline_ns)
        return;
    p->agent_status = HILL_E_TIMEOUT;
    log_error("the CSD agent left %u commands unanswered for %lld ms; requests that need it fail "
              "until it is replaced",
              p->commands_open, (long long)(p->config.agent_deadline_ns / 1000000));
    for (uint32_t i = 0; i < p->config.n_sequences; i++) {
        struct sequence *s = &p->sequences[i];
        if (s->state == SEQUENCE_ACTIVE && p->cold.lists[scorer_list(p, i, 0)].n_stripes)
            scorer_fail(p, s, HILL_E_TIMEOUT, "waiting for the CSD agent");
    }
}
