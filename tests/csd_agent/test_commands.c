/*
 * test_commands.c - the agent's command loop in a thread of its own, the test as scorer at the
 * other end of real rings. The score ring is tiny, so that nearly every query waits for credits.
 */
#include "tests/csd_agent/commands_scene.h"

/* ---- tests ---- */

static void random_commands(void)
{
    struct scene s;

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

static void test_random_commands_are_answered_rightly(void **state)
{
    (void)state;
    random_seed(21);
    random_commands();
    scene_device = FIRST_OPENCL_DEVICE;
    random_commands();
    scene_device = NULL;
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

/* What a look at an empty command ring is followed by, once. */
struct late_pair {
    struct scene *s;
    uint32_t slot;
    struct prepared demote;
    bool armed;
};

static uint32_t publish_both(void *context, enum shm_ring_moment moment, uint32_t type,
                             const void *payload, uint32_t bytes)
{
    struct late_pair *late = context;

    (void)type;
    (void)payload;
    if (moment != SHM_RING_EMPTY || !late->armed)
        return bytes;
    struct {
        struct record_release record;
        uint32_t slot;
    } r = {.record = {.header = header(1, 0), .tag = 4000, .n_slots = 1}, .slot = late->slot};
    late->armed = false;
    push(late->s, COMMAND, RECORD_RELEASE, &r, sizeof r.record + 4);
    push(late->s, BACKGROUND, RECORD_DEMOTE, late->demote.bytes, late->demote.n_bytes);
    return bytes; /* the ring was empty */
}

/* A RELEASE and the DEMOTE that writes to its slots come on two rings, both after the agent has
 * looked at the first and before it looks at the second: the first goes before. */
static void test_a_release_goes_before_the_demote_that_follows_it(void **state)
{
    struct scene s;
    struct late_pair late = {.s = &s, .slot = 17};
    struct shm_ring_tap tap = {&late, publish_both};

    (void)state;
    random_seed(25);
    scene_open(&s, COLD_NO_POSITION);
    s.m.stripes[0] = (struct model_stripe){true, 1, 0, 0};
    expect(&s, push_demote(&s, 0, 40), RECORD_DEMOTE, 0);
    commit(&s, 1, 0, 0, 40);
    scene_stop(&s); /* the turns are the test's */
    late.demote = prepare_scattered(&s, &late.slot, 1);
    late.armed = true;
    s.plane.command->tap = &tap;
    for (int i = 0; i < 3; i++)
        assert_true(data_plane_turn(&s.plane) >= 0);
    s.plane.command->tap = NULL;
    assert_false(late.armed);
    free(late.demote.bytes);
    scene_start(&s);
    expect(&s, 4000, RECORD_RELEASE, 0);
    expect(&s, late.demote.tag, RECORD_DEMOTE, 0);
    commit(&s, 1, 0, late.slot, 1);
    query(&s, 1, 0, 64);
    scene_close(&s);
}

/* The same beside a trim of another sequence, which stands before both and looks at the background
 * ring. */
static void test_a_trim_leaves_demotes_that_wait_for_a_release(void **state)
{
    struct scene s;
    struct {
        struct record_release record;
        uint32_t slot;
    } r = {.record = {.header = header(1, 0), .tag = 4000, .n_slots = 1}, .slot = 17};

    (void)state;
    random_seed(26);
    scene_open(&s, COLD_NO_POSITION);
    s.m.stripes[0] = (struct model_stripe){true, 1, 0, 0};
    expect(&s, push_demote(&s, 0, 40), RECORD_DEMOTE, 0);
    commit(&s, 1, 0, 0, 40);
    scene_stop(&s); /* all three are there when it looks */
    struct prepared demote = prepare_scattered(&s, &r.slot, 1);
    push(&s, BACKGROUND, RECORD_DEMOTE, demote.bytes, demote.n_bytes);
    trim(&s, 0);
    uint64_t trimmed = s.next_tag;
    push(&s, COMMAND, RECORD_RELEASE, &r, sizeof r.record + 4);
    free(demote.bytes);
    scene_start(&s);
    expect(&s, trimmed, RECORD_TRIM, 0);
    expect(&s, 4000, RECORD_RELEASE, 0);
    expect(&s, demote.tag, RECORD_DEMOTE, 0);
    commit(&s, 1, 0, r.slot, 1);
    query(&s, 1, 0, 64);
    scene_close(&s);
}

/* Two sequences with entries, in stripes 0 and 1, and the agent's thread at rest. */
static void open_with_entries(struct scene *s, uint32_t n, uint32_t other)
{
    scene_open(s, COLD_NO_POSITION);
    s->m.stripes[0] = (struct model_stripe){true, 0, 0, 0};
    s->m.stripes[1] = (struct model_stripe){true, 1, 1, 0};
    grow(s, 0, 0, n);
    grow(s, 1, 1, other);
    scene_stop(s);
}

/* What several commands read is on its way together: each was begun while the one before it ran,
 * and each has its own answer, in its turn. */
static void test_the_next_commands_reads_begin_while_one_runs(void **state)
{
    struct scene s;
    struct asked q[4];
    struct wanted f[4];

    (void)state;
    random_seed(27);
    open_with_entries(&s, 400, 300);
    scene_start(&s);
    s.m.stripes[2] = (struct model_stripe){true, 1, 0, 0};
    grow(&s, 1, 0, 20);
    scene_stop(&s);
    push_query(&s, &q[0], 0, 0, 64);
    push_query(&s, &q[1], 1, 1, 50);
    push_fetch(&s, &f[0], 0, 0);
    push_fetch(&s, &f[1], 1, 1);
    push_fetch_of_two(&s, &f[2], 0, 1, 0);
    push_fetch(&s, &f[3], 0, 0);
    push_query(&s, &q[2], 1, 1, 64);
    push_query(&s, &q[3], 1, 1, 7);
    uint64_t demoted = push_demote(&s, 400, 30); /* nobody waits for it */
    scene_start(&s);
    collect(&s, &q[0], COLD_NO_POSITION);
    collect(&s, &q[1], COLD_NO_POSITION);
    for (int i = 0; i < 4; i++)
        collect_fetch(&s, &f[i]);
    collect(&s, &q[2], COLD_NO_POSITION);
    collect(&s, &q[3], COLD_NO_POSITION);
    expect(&s, demoted, RECORD_DEMOTE, 0);
    assert_int_equal(s.plane.read_ahead, 7);
    scene_close(&s);
}

/* A command that changes what lies there ends the look: what is behind it is read after it. */
static void test_nothing_is_read_ahead_of_a_change(void **state)
{
    struct scene s;
    struct asked q[4];
    struct wanted f[2];
    uint32_t slot = 33;

    (void)state;
    random_seed(28);
    open_with_entries(&s, 400, 300);
    struct {
        struct record_release record;
        uint32_t slot;
    } gone = {.record = {.header = header(0, 0), .tag = 5000, .n_slots = 1}, .slot = slot};
    struct {
        struct record_commit record;
        uint32_t slot;
    } back = {.record = {.header = header(0, 0), .tag = 5001, .n_slots = 1}, .slot = slot};
    push_query(&s, &q[0], 0, 0, 64);
    push(&s, COMMAND, RECORD_RELEASE, &gone, sizeof gone.record + 4);
    s.m.slots[slot].state = SLOT_WRITTEN; /* by then */
    push_query(&s, &q[1], 0, 0, 64);
    push_fetch(&s, &f[0], 0, 0);
    push(&s, COMMAND, RECORD_COMMIT, &back, sizeof back.record + 4);
    s.m.slots[slot].state = SLOT_COMMITTED;
    push_query(&s, &q[2], 0, 0, 64);
    push_fetch(&s, &f[1], 1, 1);
    struct record_trim trimmed = {.header = header(1, 0), .tag = 5002};
    push(&s, COMMAND, RECORD_TRIM, &trimmed, sizeof trimmed);
    push_query(&s, &q[3], 1, 1, 64); /* of entries that are gone then */
    scene_start(&s);
    collect(&s, &q[0], COLD_NO_POSITION);
    expect(&s, 5000, RECORD_RELEASE, 0);
    s.m.slots[slot].state = SLOT_WRITTEN;
    collect(&s, &q[1], COLD_NO_POSITION);
    collect_fetch(&s, &f[0]);
    expect(&s, 5001, RECORD_COMMIT, 0);
    s.m.slots[slot].state = SLOT_COMMITTED;
    collect(&s, &q[2], COLD_NO_POSITION);
    collect_fetch(&s, &f[1]);
    expect(&s, 5002, RECORD_TRIM, 0);
    expect(&s, q[3].record.query_id, RECORD_AGENT_QUERY, HILL_E_PROTOCOL);
    model_trim(&s.m, 1);
    query(&s, 0, 0, 64);
    assert_int_equal(s.plane.read_ahead, 2); /* the two that follow a query */
    scene_close(&s);
}

/* Each query is scored without what the host has, whichever part of it was read ahead. */
static void test_what_the_host_scores_is_passed_over(void **state)
{
    struct scene s;
    struct asked q[6];

    (void)state;
    random_seed(31);
    open_with_entries(&s, 500, 300);
    for (int round = 0; round < 20; round++) {
        uint32_t n = 1 + random_below(6);
        for (uint32_t i = 0; i < n; i++) {
            uint64_t host[HOST_WORDS_MAX];
            uint32_t words = random_host(host), which = random_below(2);
            push_query_part(&s, &q[i], which, which, 1 + random_below(100), host, words);
        }
        scene_start(&s);
        for (uint32_t i = 0; i < n; i++)
            collect(&s, &q[i], COLD_NO_POSITION);
        scene_stop(&s);
    }
    assert_true(s.plane.read_ahead > 10);
    scene_close(&s);
}

/* What was read ahead is nobody's when its command is not the one that was seen, or does not come:
 * `change` is what becomes of the record. */
static void read_in_vain(void (*change)(struct record_fetch *record), int status)
{
    struct scene s;
    struct asked q;
    struct wanted f;
    const void *payload;
    uint32_t type, bytes;

    random_seed(29);
    open_with_entries(&s, 20, 30);
    push_query(&s, &q, 0, 0, 64);
    push_fetch(&s, &f, 1, 1);
    assert_int_equal(data_plane_turn(&s.plane), 1);
    collect(&s, &q, COLD_NO_POSITION);
    assert_int_equal(s.plane.read_ahead, 1);
    assert_int_equal(shm_ring_peek(s.plane.command, &type, &payload, &bytes), 0);
    if (change) {
        change((struct record_fetch *)(uintptr_t)payload);
        assert_int_equal(data_plane_turn(&s.plane), 1);
        if (status != 0)
            expect(&s, f.record.tag, RECORD_FETCH, status);
        assert_true(data_plane_write_directory(&s.plane, NULL) >= 0);
    } else {
        s.plane.lost = HILL_E_PEER_GONE;
        assert_int_equal(data_plane_turn(&s.plane), HILL_E_PEER_GONE);
        assert_int_equal(shm_ring_peek(&s.ends[COMPLETION], &type, &payload, &bytes),
                         HILL_E_WOULD_BLOCK); /* and scene_close leaves no memory, says ASan */
    }
    scene_start(&s);
    if (change) { /* and nothing was lost */
        fetch_some(&s, 1, 1);
        query(&s, 0, 0, 64);
    }
    scene_close(&s);
    unlink(pool_path());
}

static void make_bad(struct record_fetch *record)
{
    record->n_entries = UINT32_MAX;
}

static void make_foreign(struct record_fetch *record)
{
    record->header.epoch++;
}

static void test_what_is_read_in_vain_is_dropped(void **state)
{
    (void)state;
    read_in_vain(make_bad, HILL_E_PROTOCOL);
    read_in_vain(make_foreign, 0); /* no answer */
    read_in_vain(NULL, 0);         /* the rings end */
}

/* Another process that maps the ring changes a record while it is carried out, at that moment of
 * another ring. */
struct meddler {
    enum shm_ring_moment moment;
    void (*change)(void *record);
    void *record;
};

static uint32_t meddle(void *context, enum shm_ring_moment moment, uint32_t type,
                       const void *payload, uint32_t bytes)
{
    struct meddler *m = context;

    (void)type;
    (void)payload;
    (void)bytes;
    if (moment == m->moment && m->change) {
        m->change(m->record);
        m->change = NULL;
    }
    return moment == SHM_RING_RESERVED;
}

static void *in_ring(struct shm_ring_end *end)
{
    const void *payload;
    uint32_t type, bytes;

    assert_int_equal(shm_ring_peek(end, &type, &payload, &bytes), 0);
    return (void *)(uintptr_t)payload;
}

static void spoil_query(void *record)
{
    memset(record, 0xff, sizeof(struct record_agent_query));
}

static void make_anothers(void *record)
{
    ((struct record_trim *)record)->header.sequence = 1;
}

static void test_what_was_checked_is_carried_out(void **state)
{
    struct scene s;
    struct asked q;
    struct meddler m = {.moment = SHM_RING_RESERVED, .change = spoil_query};
    struct shm_ring_tap tap = {&m, meddle};

    (void)state;
    random_seed(32);
    open_with_entries(&s, 400, 300);
    push_query(&s, &q, 0, 0, 64);
    m.record = in_ring(s.plane.command);
    s.plane.score->tap = &tap;
    scene_start(&s);
    collect(&s, &q, COLD_NO_POSITION);
    scene_stop(&s);
    assert_null(m.change);
    s.plane.score->tap = NULL;
    m.moment = SHM_RING_EMPTY;
    m.change = make_anothers;
    trim(&s, 0);
    m.record = in_ring(s.plane.command);
    s.plane.background->tap = &tap;
    scene_start(&s);
    expect(&s, s.next_tag, RECORD_TRIM, 0);
    scene_stop(&s);
    assert_null(m.change);
    s.plane.background->tap = NULL;
    scene_start(&s);
    query(&s, 1, 1, 64); /* it has its entries */
    grow(&s, 0, 0, 30);
    query(&s, 0, 0, 64);
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
    assert_true(clock_now_ns() - start < CLOCK_MS(30000));
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
        TEST(test_a_release_goes_before_the_demote_that_follows_it),
        TEST(test_a_trim_leaves_demotes_that_wait_for_a_release),
        TEST(test_the_next_commands_reads_begin_while_one_runs),
        TEST(test_nothing_is_read_ahead_of_a_change),
        TEST(test_what_the_host_scores_is_passed_over),
        TEST(test_what_is_read_in_vain_is_dropped),
        TEST(test_what_was_checked_is_carried_out),
        TEST(test_bad_records_are_counted_and_answered),
        TEST(test_stopping_ends_a_wait_for_credits),
        TEST(test_a_scorer_that_goes_away_ends_the_plane),
        TEST(test_the_wrong_score_hook_spoils_one_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
