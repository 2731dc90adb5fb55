/*
 * test_commands.c - the agent's command loop in a thread of its own, the test as scorer at the
 * other end of real rings. The score ring is tiny, so that nearly every query waits for credits.
 */
#include "tests/csd_agent/fixture.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "csd_agent/commands.h"

#define EPOCH           7u
#define STAGING_SLOTS   64u
#define SCORE_CAPACITY  1024u
#define INPUT_CAPACITY  (1u << 20)
#define ANSWER_CAPACITY 1024u

enum { COMMAND, BACKGROUND, SCORE, COMPLETION, RINGS };

static const uint32_t capacities[RINGS] = {INPUT_CAPACITY, INPUT_CAPACITY, SCORE_CAPACITY,
                                           ANSWER_CAPACITY};

struct scene {
    struct data_plane plane;
    struct model m;
    void *ring_memory[RINGS], *arena_memory;
    struct shm_ring_end ends[RINGS]; /* the scorer's */
    struct shm_doorbell agent_bell, scorer_bell;
    struct shm_arena staging;
    pthread_t thread;
    _Atomic bool stop;
    int ended; /* with what the loop ended */
    uint64_t next_tag;
};

/* ---- the agent's thread ---- */

static bool stop_asked(void *context)
{
    /* relaxed: a flag alone, nothing is published with it */
    return atomic_load_explicit(&((struct scene *)context)->stop, memory_order_relaxed);
}

static void *agent_main(void *context)
{
    struct scene *s = context;
    int status = 0;

    while (status >= 0 && !stop_asked(s)) {
        uint32_t seen = shm_doorbell_read(&s->agent_bell);
        status = data_plane_turn(&s->plane);
        if (status == 0)
            status = cold_pool_write_directory(s->plane.pool, NULL);
        if (status == 0)
            shm_doorbell_wait(&s->agent_bell, seen, clock_deadline_ms(50), 0);
    }
    s->ended = status;
    return NULL;
}

static void open_rings(struct scene *s)
{
    struct shm_ring_end *agent_ends[RINGS] = {&s->plane.command, &s->plane.background,
                                              &s->plane.score, &s->plane.completion};

    shm_doorbell_init(&s->agent_bell);
    shm_doorbell_init(&s->scorer_bell);
    for (int r = 0; r < RINGS; r++) {
        uint64_t bytes = shm_ring_bytes(capacities[r]);
        bool agent_produces = r >= SCORE;
        s->ring_memory[r] = aligned_alloc(64, (bytes + 63) / 64 * 64);
        assert_int_equal(shm_ring_init(s->ring_memory[r], capacities[r], UINT32_MAX - 3), 0);
        assert_int_equal(shm_ring_open(agent_ends[r], s->ring_memory[r], bytes, agent_produces,
                                       &s->agent_bell, &s->scorer_bell),
                         0);
        assert_int_equal(shm_ring_open(&s->ends[r], s->ring_memory[r], bytes, !agent_produces,
                                       &s->scorer_bell, &s->agent_bell),
                         0);
    }
}

static void scene_open(struct scene *s, uint32_t wrong_position)
{
    struct kv_geometry g = {2, 4, 2, 24};
    struct cold_pool_config config = {.url = pool_url(),
                                      .options = {.create = true, .batch_bytes = 20000},
                                      .geometry = g,
                                      .n_sequences = 2,
                                      .cap_bytes = 12u << 20,
                                      .fingerprint = 1};
    uint64_t bytes = shm_arena_bytes(STAGING_SLOTS, kv_entry_bytes(&g));

    memset(s, 0, sizeof *s);
    s->plane.geometry = g;
    s->plane.n_sequences = 2;
    s->plane.epoch = EPOCH;
    s->plane.wrong_position = wrong_position;
    s->plane.stopping = stop_asked;
    s->plane.stopping_context = s;
    assert_int_equal(cold_pool_open(&s->plane.pool, &config, NULL), 0);
    model_init(&s->m, cold_pool_layout(s->plane.pool), 2);
    s->arena_memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    memset(s->arena_memory, 0, bytes);
    assert_int_equal(shm_arena_init(s->arena_memory, STAGING_SLOTS, kv_entry_bytes(&g)), 0);
    assert_int_equal(shm_arena_view(&s->plane.staging, s->arena_memory, bytes), 0);
    assert_int_equal(shm_arena_own(&s->staging, s->arena_memory, bytes), 0);
    open_rings(s);
    assert_int_equal(pthread_create(&s->thread, NULL, agent_main, s), 0);
}

static void scene_stop(struct scene *s)
{
    atomic_store_explicit(&s->stop, true, memory_order_relaxed); /* a flag alone */
    shm_doorbell_ring(&s->agent_bell);
    pthread_join(s->thread, NULL);
}

static void scene_close(struct scene *s)
{
    scene_stop(s);
    data_plane_close(&s->plane);
    cold_pool_close(s->plane.pool);
    for (int r = 0; r < RINGS; r++) {
        shm_ring_close(&s->ends[r]);
        free(s->ring_memory[r]);
    }
    shm_arena_finish(&s->staging);
    free(s->arena_memory);
    model_free(&s->m);
}

/* ---- the scorer ---- */

static struct record_header header(uint32_t sequence, uint32_t layer)
{
    return (struct record_header){.epoch = EPOCH, .sequence = sequence, .layer = layer};
}

static void push(struct scene *s, int ring, uint32_t type, const void *record, uint32_t bytes)
{
    assert_int_equal(shm_ring_wait(&s->ends[ring], bytes, clock_deadline_ms(20000)), 0);
    assert_int_equal(shm_ring_push(&s->ends[ring], type, record, bytes), 0);
}

static struct record_completion completion(struct scene *s)
{
    struct record_completion out;
    const void *payload;
    uint32_t type, bytes;

    assert_int_equal(shm_ring_wait(&s->ends[COMPLETION], 0, clock_deadline_ms(20000)), 0);
    assert_int_equal(shm_ring_peek(&s->ends[COMPLETION], &type, &payload, &bytes), 0);
    assert_int_equal(type, RECORD_COMPLETION);
    assert_int_equal(bytes, sizeof out);
    memcpy(&out, payload, sizeof out);
    assert_int_equal(record_check(type, payload, bytes, &s->m.g, 2, NULL), 0);
    shm_ring_release(&s->ends[COMPLETION]);
    return out;
}

static void expect(struct scene *s, uint64_t tag, uint32_t command, int status)
{
    struct record_completion c = completion(s);

    assert_int_equal(c.tag, tag);
    assert_int_equal(c.command, command);
    assert_int_equal(c.status, status);
    assert_int_equal(c.header.epoch, EPOCH);
}

/* Write n new slots of a stripe; the completion is the caller's to await. */
static uint64_t push_demote(struct scene *s, uint32_t first, uint32_t n)
{
    const struct model_stripe *stripe = &s->m.stripes[first / s->m.stripe_slots];
    struct demote_parts parts;

    model_write(&s->m, first, n);
    record_demote_parts(&parts, &s->m.g, n);
    uint8_t *bytes = calloc(1, parts.total);
    struct record_demote *record = (struct record_demote *)(void *)bytes;
    *record = (struct record_demote){.header = header(stripe->sequence, stripe->layer),
                                     .tag = ++s->next_tag,
                                     .first_slot = first,
                                     .n_slots = n,
                                     .stripe_order = stripe->order};
    for (uint32_t i = 0; i < n; i++)
        memcpy(bytes + parts.positions + i * 4, &s->m.slots[first + i].position, 4);
    memcpy(bytes + parts.mantissas, s->m.mantissas + (size_t)first * kv_key_dims(&s->m.g),
           (size_t)n * kv_key_dims(&s->m.g));
    memcpy(bytes + parts.exponents, s->m.exponents + (size_t)first * s->m.g.n_kv_heads,
           (size_t)n * s->m.g.n_kv_heads);
    memcpy(bytes + parts.entries, s->m.entries + (size_t)first * kv_entry_bytes(&s->m.g),
           (size_t)n * kv_entry_bytes(&s->m.g));
    push(s, BACKGROUND, RECORD_DEMOTE, bytes, (uint32_t)parts.total);
    free(bytes);
    return s->next_tag;
}

static void commit(struct scene *s, uint32_t sequence, uint32_t layer, uint32_t first, uint32_t n)
{
    struct {
        struct record_commit record;
        uint32_t slots[MAX_COMMAND_SLOTS];
    } r = {.record = {.header = header(sequence, layer), .tag = ++s->next_tag, .n_slots = n}};

    for (uint32_t i = 0; i < n; i++) {
        r.slots[i] = first + i;
        s->m.slots[first + i].state = SLOT_COMMITTED;
    }
    push(s, COMMAND, RECORD_COMMIT, &r, (uint32_t)(sizeof r.record + n * 4));
    expect(s, s->next_tag, RECORD_COMMIT, 0);
}

/* Demote and commit the next n slots of (sequence, layer). */
static void grow(struct scene *s, uint32_t sequence, uint32_t layer, uint32_t n)
{
    uint32_t stripe = model_stripe_for(&s->m, sequence, layer, false);
    uint32_t first = stripe * s->m.stripe_slots, end = first + s->m.stripe_slots;

    while (first < end && s->m.slots[first].state != SLOT_FREE)
        first++;
    if (n > end - first)
        n = end - first;
    if (n == 0)
        return;
    uint64_t tag = push_demote(s, first, n);
    expect(s, tag, RECORD_DEMOTE, 0);
    commit(s, sequence, layer, first, n);
}

static void trim(struct scene *s, uint32_t sequence)
{
    struct record_trim record = {.header = header(sequence, 0), .tag = ++s->next_tag};
    push(s, COMMAND, RECORD_TRIM, &record, sizeof record);
    model_trim(&s->m, sequence);
}

struct asked {
    struct record_agent_query record;
    uint8_t digest[256];
};

static uint32_t push_query(struct scene *s, struct asked *q, uint32_t sequence, uint32_t layer,
                           uint32_t block_tokens)
{
    memset(q, 0, sizeof *q);
    q->record = (struct record_agent_query){.header = header(sequence, layer),
                                            .query_id = (uint32_t)++s->next_tag,
                                            .importance = random_below(KV_IMPORTANCE_COUNT),
                                            .block_tokens = block_tokens,
                                            .expected = model_committed(&s->m, sequence, layer)};
    random_mantissas((int8_t *)q->digest, kv_key_dims(&s->m.g));
    for (uint32_t h = 0; h < s->m.g.n_kv_heads; h++)
        q->digest[kv_key_dims(&s->m.g) + h] = (uint8_t)random_below(KV_QUERY_SHIFT_MAX + 1);
    uint32_t bytes = (uint32_t)sizeof q->record + kv_digest_bytes(&s->m.g);
    push(s, COMMAND, RECORD_AGENT_QUERY, q, bytes);
    return q->record.query_id;
}

/* Take Score Blocks until the query's completion is there; every committed slot is scored once,
 * rightly. */
static void collect(struct scene *s, const struct asked *q, uint32_t wrong_position)
{
    struct kv_query query = {(const int8_t *)q->digest, q->digest + kv_key_dims(&s->m.g),
                             q->record.importance};
    uint32_t n_slots = s->m.n_stripes * s->m.stripe_slots, count = 0;
    uint8_t *scored = calloc(n_slots, 1);
    const void *payload;
    uint32_t type, bytes;

    while (count < q->record.expected) {
        assert_int_equal(shm_ring_wait(&s->ends[SCORE], 0, clock_deadline_ms(20000)), 0);
        assert_int_equal(shm_ring_peek(&s->ends[SCORE], &type, &payload, &bytes), 0);
        assert_int_equal(type, RECORD_SCORE_BLOCK);
        assert_int_equal(record_check(type, payload, bytes, &s->m.g, 2, NULL), 0);
        const struct record_score_block *block = payload;
        const struct score_tuple *tuples = (const struct score_tuple *)(block + 1);
        assert_int_equal(block->query_id, q->record.query_id);
        assert_true(block->n > 0 && block->n <= q->record.block_tokens);
        for (uint32_t i = 0; i < block->n; i++) {
            uint32_t slot =
                block->stripe * s->m.stripe_slots + block->first_slot + tuples[i].slot_offset;
            assert_true(slot < n_slots && tuples[i].slot_offset < q->record.block_tokens);
            assert_false(scored[slot]);
            assert_int_equal(s->m.slots[slot].state, SLOT_COMMITTED);
            bool wrong = s->m.slots[slot].position == wrong_position;
            assert_int_equal(tuples[i].score, wrong ? 65535 : model_score(&s->m, &query, slot));
            scored[slot] = 1;
            count++;
        }
        shm_ring_release(&s->ends[SCORE]);
    }
    struct record_completion c = completion(s);
    assert_int_equal(c.tag, q->record.query_id);
    assert_int_equal(c.status, 0);
    assert_int_equal(c.count, count);
    assert_true(c.flash_read_bytes >= (uint64_t)count * kv_digest_bytes(&s->m.g));
    free(scored);
}

static void query(struct scene *s, uint32_t sequence, uint32_t layer, uint32_t block_tokens)
{
    struct asked q;
    push_query(s, &q, sequence, layer, block_tokens);
    collect(s, &q, COLD_NO_POSITION);
}

static void fetch_some(struct scene *s, uint32_t sequence, uint32_t layer)
{
    struct {
        struct record_fetch record;
        struct fetch_item items[16];
    } r = {.record = {.header = header(sequence, layer), .tag = ++s->next_tag}};
    uint32_t slots[16], n = 0, entry_bytes = kv_entry_bytes(&s->m.g);

    for (uint32_t tries = 0; tries < 3000 && n < 16; tries++) {
        uint32_t slot = random_below(s->m.n_stripes * s->m.stripe_slots);
        const struct model_stripe *stripe = &s->m.stripes[slot / s->m.stripe_slots];
        if (s->m.slots[slot].state != SLOT_COMMITTED || stripe->sequence != sequence ||
            stripe->layer != layer)
            continue;
        r.items[n++] = (struct fetch_item){slot, s->m.slots[slot].position, 0, 0};
    }
    if (n == 0)
        return;
    assert_int_equal(shm_arena_take(&s->staging, n, slots), 0);
    for (uint32_t i = 0; i < n; i++) {
        r.items[i].staging_slot = slots[i];
        r.items[i].generation = shm_arena_generation(&s->staging, slots[i]);
    }
    r.record.n_entries = n;
    push(s, COMMAND, RECORD_FETCH, &r, (uint32_t)(sizeof r.record + n * sizeof *r.items));
    struct record_completion c = completion(s);
    assert_int_equal(c.tag, r.record.tag);
    assert_int_equal(c.status, 0);
    assert_int_equal(c.count, n);
    assert_true(c.link_kv_bytes >= entry_bytes);
    for (uint32_t i = 0; i < n; i++)
        assert_memory_equal(shm_arena_slot(&s->staging, slots[i]),
                            s->m.entries + (size_t)r.items[i].cold_slot * entry_bytes, entry_bytes);
    shm_arena_give(&s->staging, n, slots);
}

/* ---- tests ---- */

static void test_random_commands_are_answered_rightly(void **state)
{
    struct scene s;

    (void)state;
    random_seed(21);
    scene_open(&s, COLD_NO_POSITION);
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t sequence = random_below(2), layer = random_below(2), what = random_below(100);
        if (what < 40)
            grow(&s, sequence, layer, 1 + random_below(random_below(2) ? MAX_COMMAND_SLOTS : 5));
        else if (what < 65)
            query(&s, sequence, layer, 1 + random_below(300));
        else if (what < 97)
            fetch_some(&s, sequence, layer);
        else {
            trim(&s, sequence);
            expect(&s, s.next_tag, RECORD_TRIM, 0);
        }
    }
    scene_close(&s);
}

static void test_a_trim_takes_queued_demotes_with_it(void **state)
{
    struct scene s;
    uint64_t tags[6];

    (void)state;
    random_seed(22);
    scene_open(&s, COLD_NO_POSITION);
    s.m.stripes[0] = (struct model_stripe){true, 0, 0, 0};
    for (uint32_t i = 0; i < 6; i++)
        tags[i] = push_demote(&s, i * 200, 200);
    trim(&s, 0);
    for (uint32_t i = 0; i < 6; i++)
        expect(&s, tags[i], RECORD_DEMOTE, 0);
    expect(&s, s.next_tag, RECORD_TRIM, 0);
    s.m.stripes[0] = (struct model_stripe){true, 1, 1, 0}; /* free for another sequence */
    expect(&s, push_demote(&s, 0, 5), RECORD_DEMOTE, 0);
    scene_close(&s);
}

static void test_bad_records_are_counted_and_answered(void **state)
{
    struct scene s;
    struct asked q;
    struct record_trim record = {.header = header(0, 0), .tag = 900};

    (void)state;
    random_seed(23);
    scene_open(&s, COLD_NO_POSITION);
    grow(&s, 0, 0, 30);
    record.header.epoch = EPOCH + 1;
    push(&s, COMMAND, RECORD_TRIM, &record, sizeof record); /* dropped: no answer */
    record.header = header(0, 0);
    push(&s, COMMAND, 4242, &record, sizeof record);
    push(&s, COMMAND, RECORD_TRIM, &record, 3);
    record.header = header(99, 0);
    push(&s, COMMAND, RECORD_TRIM, &record, sizeof record);
    expect(&s, 900, RECORD_TRIM, HILL_E_PROTOCOL);
    record.header = header(0, 0);
    record.tag = 901; /* on the wrong ring */
    push(&s, BACKGROUND, RECORD_TRIM, &record, sizeof record);
    expect(&s, 901, RECORD_TRIM, HILL_E_PROTOCOL);
    struct record_fetch fetch = {.header = header(0, 0), .tag = 902, .n_entries = UINT32_MAX};
    push(&s, COMMAND, RECORD_FETCH, &fetch, sizeof fetch);
    expect(&s, 902, RECORD_FETCH, HILL_E_PROTOCOL);
    push_query(&s, &q, 0, 0, 0); /* blocks of no tokens */
    expect(&s, q.record.query_id, RECORD_AGENT_QUERY, HILL_E_PROTOCOL);
    query(&s, 0, 0, 64); /* and nothing was lost */
    scene_stop(&s);
    assert_int_equal(s.plane.dropped, 1);
    assert_int_equal(s.plane.malformed, 6);
    scene_close(&s);
}

static void test_stopping_ends_a_wait_for_credits(void **state)
{
    struct scene s;
    struct asked q;

    (void)state;
    random_seed(24);
    scene_open(&s, COLD_NO_POSITION);
    for (int i = 0; i < 6; i++)
        grow(&s, 0, 0, MAX_COMMAND_SLOTS);
    push_query(&s, &q, 0, 0, 64);
    assert_int_equal(shm_ring_wait(&s.ends[SCORE], 0, clock_deadline_ms(20000)), 0);
    usleep(20000); /* nobody takes blocks: the ring is full by now */
    int64_t start = clock_now_ns();
    scene_stop(&s);
    assert_true(clock_now_ns() - start < CLOCK_MS(5000));
    assert_int_equal(s.ended, HILL_E_CANCELLED);
    atomic_store(&s.stop, false);
    pthread_create(&s.thread, NULL, agent_main, &s);
    scene_close(&s);
}

static void test_a_scorer_that_goes_away_ends_the_plane(void **state)
{
    struct scene s;

    (void)state;
    random_seed(25);
    scene_open(&s, COLD_NO_POSITION);
    grow(&s, 0, 0, 100);
    for (int r = 0; r < RINGS; r++)
        shm_ring_close(&s.ends[r]);
    pthread_join(s.thread, NULL);
    assert_int_equal(s.ended, HILL_E_PEER_GONE);
    pthread_create(&s.thread, NULL, agent_main, &s);
    scene_close(&s);
}

static void test_the_wrong_score_hook_spoils_one_token(void **state)
{
    struct scene s;
    struct asked q;

    (void)state;
    random_seed(26);
    scene_open(&s, 17);
    grow(&s, 0, 0, 50);
    push_query(&s, &q, 0, 0, 32);
    collect(&s, &q, 17);
    scene_close(&s);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_random_commands_are_answered_rightly),
        TEST(test_a_trim_takes_queued_demotes_with_it),
        TEST(test_bad_records_are_counted_and_answered),
        TEST(test_stopping_ends_a_wait_for_credits),
        TEST(test_a_scorer_that_goes_away_ends_the_plane),
        TEST(test_the_wrong_score_hook_spoils_one_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
