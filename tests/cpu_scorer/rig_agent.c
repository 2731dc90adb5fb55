/*
 * tests/cpu_scorer/rig_agent.c - the fake agent's answers, a function a record, and its thread.
 */
#include "tests/cpu_scorer/rig_agent.h"
#include "tests/kv/digests.h"

uint32_t rig_random(uint64_t *state, uint32_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % below;
}

static bool agent_stopping(struct rig_agent *a)
{
    return atomic_load_explicit(&a->stop, memory_order_acquire); /* pairs with rig_stop */
}

/* Push, waiting for credits. */
static void agent_push(struct rig_agent *a, enum layout_ring ring, uint32_t type,
                       const void *record, uint32_t bytes)
{
    while (!agent_stopping(a) &&
           shm_ring_push(&a->ends[ring], type, record, bytes) == HILL_E_WOULD_BLOCK)
        shm_doorbell_wait(a->bell, shm_doorbell_read(a->bell), clock_deadline_ms(1), 0);
}

static void agent_complete(struct rig_agent *a, const struct record_header *header, uint64_t tag,
                           uint32_t command, int32_t status, uint32_t count, uint32_t detail)
{
    struct record_completion c = {.header = *header,
                                  .tag = tag,
                                  .command = command,
                                  .status = status,
                                  .count = count,
                                  .detail = detail,
                                  .flash_read_bytes = 1000,
                                  .flash_write_bytes = 100,
                                  .link_kv_bytes = 10 * count,
                                  .busy_ns = command == RECORD_FETCH ? RIG_FETCH_NS * count : 0,
                                  .link_key_bytes = command == RECORD_READ_KEYS ? detail : 0};
    bool slow = atomic_load_explicit(&a->slow, memory_order_relaxed);
    if ((command == RECORD_DEMOTE && a->n_late < 8 && (slow || rig_random(&a->random, 2))) ||
        (command == RECORD_TRIM && slow)) {
        assert_true(a->n_late < 8);
        a->late[a->n_late++] = c;
        return;
    }
    agent_push(a, RING_COMPLETION, RECORD_COMPLETION, &c, sizeof c);
}

static void agent_send_late(struct rig_agent *a)
{
    while (a->n_late) {
        uint32_t i = rig_random(&a->random, a->n_late);
        struct record_completion c = a->late[i];
        a->late[i] = a->late[--a->n_late];
        agent_push(a, RING_COMPLETION, RECORD_COMPLETION, &c, sizeof c);
    }
}

static void agent_demote(struct rig_agent *a, const struct record_demote *r)
{
    const uint8_t *at = (const uint8_t *)r;
    struct demote_parts parts;
    record_demote_parts(&parts, &rig_geometry, r->first_slot, r->n_slots);
    const uint32_t *named = (const uint32_t *)(at + parts.total);
    assert_true(r->scattered ||
                r->first_slot / RIG_STRIPE == (r->first_slot + r->n_slots - 1) / RIG_STRIPE);
    if (!r->scattered)
        a->orders[r->first_slot / RIG_STRIPE] = r->stripe_order;
    for (uint32_t i = 0; i < r->n_slots; i++) {
        struct rig_slot *s = &a->slots[r->scattered ? named[i] : r->first_slot + i];
        /* only a copy of what has moved up is written over before it is trimmed, and what an
         * earlier epoch has left */
        assert_true((s->written == r->scattered || (a->keeps && r->scattered)) && !s->committed);
        assert_true(!r->scattered ||
                    (s->sequence == r->header.sequence && s->layer == r->header.layer));
        atomic_fetch_add_explicit(&a->reused, r->scattered, memory_order_relaxed); /* a count */
        *s = (struct rig_slot){.written = true,
                               .sequence = r->header.sequence,
                               .layer = r->header.layer,
                               .position = ((const uint32_t *)(at + parts.positions))[i]};
        memcpy(s->entry, at + parts.entries + i * RIG_ENTRY, RIG_ENTRY);
        if (a->key_bytes && a->key_bytes < 2 * RIG_DIMS) /* parts of keys */
            memcpy(s->mantissas, at + parts.digests + i * a->key_bytes, a->key_bytes);
        else
            kv_digest_get(&rig_geometry, at + parts.digests, r->first_slot % 16 + i, s->mantissas,
                          s->exponents);
    }
    agent_complete(a, &r->header, r->tag, RECORD_DEMOTE, 0, r->n_slots, 0);
}

static void agent_commit(struct rig_agent *a, const struct record_commit *r)
{
    const uint32_t *slots = (const uint32_t *)(r + 1);
    for (uint32_t i = 0; i < r->n_slots; i++) {
        assert_true(a->slots[slots[i]].written);
        assert_false(a->slots[slots[i]].committed);
        a->slots[slots[i]].committed = true;
    }
    agent_complete(a, &r->header, r->tag, RECORD_COMMIT, 0, r->n_slots, 0);
}

static void agent_release(struct rig_agent *a, const struct record_release *r)
{
    const uint32_t *slots = (const uint32_t *)(r + 1);
    if (atomic_exchange_explicit(&a->bad_release, false, memory_order_relaxed)) {
        agent_complete(a, &r->header, r->tag, RECORD_RELEASE, HILL_E_IO, 0, 0);
        return;
    }
    for (uint32_t i = 0; i < r->n_slots; i++) {
        struct rig_slot *s = &a->slots[slots[i]];
        assert_true(s->committed && s->sequence == r->header.sequence &&
                    s->layer == r->header.layer);
        s->committed = false;
    }
    agent_complete(a, &r->header, r->tag, RECORD_RELEASE, 0, r->n_slots, 0);
}

static uint16_t agent_score(struct rig_agent *a, const struct kv_query *query,
                            const struct rig_slot *s)
{
    uint16_t score;
    uint8_t group[1024];
    assert_true(kv_group_bytes(&rig_geometry) <= sizeof group);
    kv_digest_put(&rig_geometry, group, 0, s->mantissas, s->exponents);
    kv_score_reference(&rig_geometry, query, group, 1, &score);
    if (s->position == atomic_load_explicit(&a->wrong_score_position, memory_order_relaxed))
        score = 0xfff0;
    return score;
}

static uint32_t agent_begin_span(struct rig_agent *a, const struct record_header *h,
                                 uint32_t command)
{
    uint32_t i = a->n_spans < RIG_SPANS - 1 ? a->n_spans++ : RIG_SPANS - 1;
    a->spans[i] = (struct rig_span){command, h->sequence, h->layer, h->step, ++a->clock, 0};
    return i;
}

static void agent_end_query(struct rig_agent *a)
{
    const struct record_completion *c = &a->query_done;
    if (a->open_query == RIG_SPANS)
        return;
    a->spans[a->open_query].ended = ++a->clock;
    a->open_query = RIG_SPANS;
    agent_complete(a, &c->header, c->tag, RECORD_AGENT_QUERY, 0, c->count, 0);
}

/* The scorer has nothing to do but to hear of its queries: of all that are open at once. */
static bool agent_end_gathered(struct rig_agent *a)
{
    if (!a->n_gathered || !shm_doorbell_asleep(a->scorer))
        return false;
    for (uint32_t i = 0; i < a->n_gathered; i++) {
        void *room;
        assert_int_equal(shm_ring_reserve(&a->ends[RING_COMPLETION], sizeof a->gathered[i], &room),
                         0);
        memcpy(room, &a->gathered[i], sizeof a->gathered[i]);
        shm_ring_stage(&a->ends[RING_COMPLETION], RECORD_COMPLETION, sizeof a->gathered[i]);
    }
    shm_ring_flush(&a->ends[RING_COMPLETION]);
    a->n_gathered = 0;
    return true;
}

/* Does the host score it? */
static bool host_has(const struct rig_agent *a, const struct record_agent_query *r, uint32_t slot)
{
    uint32_t bit = (a->orders[slot / RIG_STRIPE] * RIG_STRIPE + slot % RIG_STRIPE) / 64;
    const uint64_t *words = (const uint64_t *)(r + 1);
    return bit / 64 < r->n_host_words && (words[bit / 64] >> bit % 64 & 1);
}

/* A Score Block is made wrong, or the completion lacks a slot: how many it lacks. */
static uint32_t tell_lie(struct rig_agent *a, struct record_score_block *b,
                         struct score_tuple *tuples)
{
    assert_true(b->n > 1);
    switch (atomic_exchange_explicit(&a->lie, RIG_TRUE, memory_order_relaxed)) {
    case RIG_SCORES_TWICE:
        tuples[b->n - 1] = tuples[0];
        break;
    case RIG_SCORES_FOREIGN:
        b->stripe = RIG_STRIPES - 1;
        break;
    case RIG_SCORES_FEWER:
        b->n--;
        break;
    case RIG_COUNTS_FEWER:
        return 1;
    default:
        break;
    }
    return 0;
}

static void agent_query(struct rig_agent *a, const struct record_agent_query *r)
{
    uint32_t rows = atomic_load_explicit(&a->rows, memory_order_relaxed);
    uint32_t span = agent_begin_span(a, &r->header, RECORD_AGENT_QUERY);
    struct kv_query query = kv_query_at(&rig_geometry, r->importance, record_agent_query_terms(r));
    uint32_t total = 0, left = 0, lacks = 0;
    atomic_store_explicit(&a->importance, r->importance, memory_order_relaxed);
    agent_end_query(a); /* the one before it */
    struct {
        struct record_score_block block;
        struct score_tuple tuples[RIG_STRIPE];
    } out;
    for (uint32_t base = 0; base < RIG_STRIPE * RIG_STRIPES; base += r->block_tokens) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < r->block_tokens; i++) {
            const struct rig_slot *s = &a->slots[base + i];
            if (!s->committed || s->sequence != r->header.sequence || s->layer != r->header.layer)
                continue;
            if (host_has(a, r, base + i))
                left++;
            else
                out.tuples[n++] = (struct score_tuple){(uint16_t)i, agent_score(a, &query, s)};
        }
        if (n == 0)
            continue;
        out.block = (struct record_score_block){.header = r->header,
                                                .query_id = r->query_id,
                                                .stripe = base / RIG_STRIPE,
                                                .first_slot = base % RIG_STRIPE,
                                                .n = n,
                                                .version = SCORE_BLOCK_VERSION,
                                                .planes = 1};
        if (atomic_load_explicit(&a->lie, memory_order_relaxed))
            lacks = tell_lie(a, &out.block, out.tuples);
        agent_push(a, RING_SCORE, RECORD_SCORE_BLOCK, &out,
                   (uint32_t)(sizeof out.block + out.block.n * sizeof out.tuples[0]));
        total += n;
    }
    assert_int_equal(total, r->expected);
    assert_int_equal(total + left, r->committed);
    atomic_fetch_add_explicit(&a->not_scored, left, memory_order_relaxed); /* a count */
    if (atomic_load_explicit(&a->gathers, memory_order_relaxed)) {
        a->spans[span].ended = ++a->clock;
        a->gathered[a->n_gathered++] = (struct record_completion){
            .header = r->header, .tag = r->query_id, .command = RECORD_AGENT_QUERY, .count = total};
        return;
    }
    a->query_done =
        (struct record_completion){.header = r->header, .tag = r->query_id, .count = total - lacks};
    a->open_query = span;
    if (++a->n_queries % (rows ? rows : 1) == 0)
        agent_end_query(a);
}

/* Its position. */
static uint32_t agent_fetch_item(struct rig_agent *a, const struct record_header *h,
                                 const struct fetch_item *item)
{
    const struct rig_slot *s = &a->slots[item->cold_slot];
    assert_true(s->committed && s->position == item->position);
    assert_true(s->sequence == h->sequence && s->layer == h->layer);
    assert_int_equal(shm_arena_generation(&a->staging, item->staging_slot), item->generation);
    memcpy(shm_arena_slot(&a->staging, item->staging_slot), s->entry, RIG_ENTRY);
    return s->position;
}

static void agent_fetch(struct rig_agent *a, const struct record_fetch *r)
{
    const struct fetch_item *item = (const struct fetch_item *)(r + 1);
    uint32_t damaged = atomic_load_explicit(&a->damaged_position, memory_order_relaxed);
    int32_t status = 0;
    for (uint32_t i = 0; i <= r->n_rows; i++) {
        struct record_header header = r->header;
        struct fetch_row row;
        uint32_t n = record_fetch_row(r, i, &row);
        header.sequence = row.sequence;
        header.step = row.step;
        uint32_t span = agent_begin_span(a, &header, RECORD_FETCH);
        for (; n-- > 0; item++)
            status = agent_fetch_item(a, &header, item) == damaged ? HILL_E_DAMAGED : status;
        a->spans[span].ended = ++a->clock;
    }
    if (atomic_load_explicit(&a->offline, memory_order_relaxed))
        status = HILL_E_NODEV;
    a->n_fetches++;
    a->n_fetched_rows += r->n_rows + 1;
    if (status && r->n_rows + 1 > a->damaged_rows)
        a->damaged_rows = r->n_rows + 1;
    agent_complete(a, &r->header, r->tag, RECORD_FETCH, status, r->n_entries, status ? damaged : 0);
}

/* Slots first .. last that are read: what is written of them is the sequence's. */
static void agent_check_range(const struct rig_agent *a, const struct record_read_keys *r,
                              uint32_t first, uint32_t last)
{
    assert_int_equal(first / RIG_STRIPE, last / RIG_STRIPE);
    for (uint32_t i = first; i <= last; i++)
        if (a->slots[i].written)
            assert_true(a->slots[i].sequence == r->header.sequence &&
                        a->slots[i].layer == r->header.layer);
}

/* One of first .. last is committed. */
static void agent_check_committed(const struct rig_agent *a, uint32_t first, uint32_t last)
{
    while (!a->slots[first].committed && first < last)
        first++;
    assert_true(a->slots[first].committed);
}

/* Groups of digests, of which each has a committed slot. */
static uint32_t agent_read_digests(const struct rig_agent *a, const struct record_read_keys *r)
{
    const struct key_range *ranges = (const struct key_range *)(r + 1);
    uint8_t *at = a->windows + r->window * a->window_bytes;
    uint32_t used = 0, group_bytes = kv_group_bytes(&rig_geometry);
    for (uint32_t i = 0; i < r->n_ranges; i++) {
        uint32_t first = ranges[i].first_slot, n = ranges[i].n_slots;
        uint32_t skip = first % RIG_STRIPE / 16 * group_bytes % 4096;
        assert_true(first % 16 == 0 && n % 16 == 0);
        agent_check_range(a, r, first, first + n - 1);
        memset(at + used + skip, 0x7f, n / 16 * group_bytes); /* what no slot of a group has */
        for (uint32_t j = 0; j < n; j++) {
            const struct rig_slot *s = &a->slots[first + j];
            if (j % 16 == 0)
                agent_check_committed(a, first + j, first + j + 15);
            if (s->written)
                kv_digest_put(&rig_geometry, at + used + skip, j, s->mantissas, s->exponents);
        }
        used += (skip + n / 16 * group_bytes + 4095) / 4096 * 4096;
    }
    assert_true(used <= a->window_bytes);
    return used;
}

/* Keys as the pool's plane has them: in pages of the file, a range's pages after the other's. */
static void agent_read_keys(struct rig_agent *a, const struct record_read_keys *r)
{
    const struct key_range *ranges = (const struct key_range *)(r + 1);
    uint8_t *at = a->windows + r->window * a->window_bytes;
    uint32_t used = a->key_bytes ? 0 : agent_read_digests(a, r), key_bytes = a->key_bytes;
    bool whole = key_bytes == 2 * RIG_DIMS;
    for (uint32_t i = 0; key_bytes && i < r->n_ranges; i++) {
        uint32_t first = ranges[i].first_slot, n = ranges[i].n_slots;
        uint32_t skip = first % RIG_STRIPE * key_bytes % 4096;
        agent_check_range(a, r, first, first + n - 1);
        agent_check_committed(a, first + n - 1, first / RIG_STRIPE * RIG_STRIPE + RIG_STRIPE - 1);
        for (uint32_t j = 0; j < n; j++) {
            const struct rig_slot *s = &a->slots[first + j];
            memcpy(at + used + skip + j * key_bytes, whole ? (const void *)s->entry : s->mantissas,
                   key_bytes);
        }
        used += (skip + n * key_bytes + 4095) / 4096 * 4096;
    }
    assert_true(used <= a->window_bytes);
    atomic_fetch_add_explicit(&a->reads, 1, memory_order_release);
    agent_complete(a, &r->header, r->tag, RECORD_READ_KEYS, 0, r->n_ranges, used);
}

/* What counted in an earlier epoch does again; the first slot that does not fit is named. */
static void agent_adopt(struct rig_agent *a, const struct record_adopt *r)
{
    const struct adopt_item *items = (const struct adopt_item *)(r + 1);
    uint32_t bad = a->claims ? a->claims : UINT32_MAX, n = 0;
    for (uint32_t i = 0; i < r->n_slots; i++) {
        struct rig_slot *s = &a->slots[items[i].slot];
        assert_int_equal(items[i].slot / RIG_STRIPE, r->stripe);
        a->orders[r->stripe] = r->stripe_order;
        assert_true(s->sequence == r->header.sequence && s->layer == r->header.layer);
        assert_int_equal(s->position, items[i].position);
        if (s->spoilt && bad == UINT32_MAX)
            bad = s->position;
        if (s->spoilt || s->committed)
            continue;
        s->written = s->committed = true;
        n++;
    }
    atomic_fetch_add_explicit(&a->adopts, 1, memory_order_relaxed);
    agent_complete(a, &r->header, r->tag, RECORD_ADOPT, bad == UINT32_MAX ? 0 : HILL_E_DAMAGED, n,
                   bad == UINT32_MAX ? 0 : bad);
}

static void agent_trim_sequence(struct rig_agent *a, const struct record_trim *r)
{
    for (uint32_t i = 0; i < a->n_late; i++) /* its own demotions are over by then */
        assert_true(a->late[i].header.sequence != r->header.sequence);
    for (uint32_t i = 0; i < RIG_STRIPE * RIG_STRIPES; i++)
        if (a->slots[i].sequence == r->header.sequence)
            a->slots[i].written = a->slots[i].committed = false;
    atomic_fetch_add_explicit(&a->trims, 1, memory_order_relaxed);
    if (atomic_load_explicit(&a->twice, memory_order_relaxed))
        agent_complete(a, &r->header, r->tag, RECORD_TRIM, 0, 0, 0);
    agent_complete(a, &r->header, r->tag, RECORD_TRIM, 0, 0, 0);
}

/* Take one record; false when there is none. */
static bool agent_take(struct rig_agent *a, enum layout_ring ring)
{
    uint32_t type, bytes;
    const void *payload;
    if (shm_ring_peek(&a->ends[ring], &type, &payload, &bytes))
        return false;
    assert_int_equal(record_check(type, payload, bytes, &rig_geometry, RIG_SEQUENCES_MAX, NULL), 0);
    if (type == RECORD_DEMOTE)
        agent_demote(a, payload);
    else if (type == RECORD_COMMIT)
        agent_commit(a, payload);
    else if (type == RECORD_RELEASE)
        agent_release(a, payload);
    else if (type == RECORD_AGENT_QUERY)
        agent_query(a, payload);
    else if (type == RECORD_FETCH)
        agent_fetch(a, payload);
    else if (type == RECORD_READ_KEYS)
        agent_read_keys(a, payload);
    else if (type == RECORD_ADOPT)
        agent_adopt(a, payload);
    else
        agent_trim_sequence(a, payload);
    shm_ring_release(&a->ends[ring]);
    return true;
}

/* A DEMOTE may write to slots that a RELEASE on the other ring frees, which was published before
 * it: once the DEMOTE is seen the RELEASE is there too, and goes first. */
static bool agent_take_background(struct rig_agent *a)
{
    uint32_t type, bytes;
    const void *payload;
    if (shm_ring_peek(&a->ends[RING_BACKGROUND], &type, &payload, &bytes))
        return false;
    while (agent_take(a, RING_COMMAND))
        continue;
    return agent_take(a, RING_BACKGROUND);
}

void *rig_agent_main(void *arg)
{
    struct rig_agent *a = arg;
    static const uint8_t key[100] = "raw key bytes";
    while (!agent_stopping(a)) {
        uint32_t seen = shm_doorbell_read(a->bell);
        bool moved = false;
        if (!atomic_load_explicit(&a->silent, memory_order_relaxed)) {
            if (atomic_exchange_explicit(&a->leak, false, memory_order_relaxed))
                agent_push(a, RING_COMPLETION, 99, key, sizeof key);
            moved = agent_take(a, RING_COMMAND);
            if (rig_random(&a->random, 3)) /* bulk waits for urgent work, and sometimes longer */
                moved |= agent_take_background(a);
            else
                moved = true;
        }
        if ((!rig_random(&a->random, 6) || !moved) &&
            !atomic_load_explicit(&a->slow, memory_order_relaxed))
            agent_send_late(a);
        if (!moved)
            moved = agent_end_gathered(a);
        atomic_store(&a->at_rest, !moved && !a->n_gathered);
        if (!moved)
            shm_doorbell_wait(a->bell, seen, clock_deadline_ms(a->n_gathered ? 1 : 5), 0);
        atomic_store(&a->at_rest, false);
    }
    return NULL;
}
