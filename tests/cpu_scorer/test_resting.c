/*
 * tests/cpu_scorer/test_resting.c - a sequence that has ended and rests: later requests go on with
 * its first tokens, however many, and every answer is the oracle's; what is in the way gives its
 * room. HILL_TEST_SEED draws other lengths. See pipeline_rig.h.
 */
#include "tests/cpu_scorer/pipeline_rig.h"
#include "tests/rounds.h"

static const struct kv_selection_settings settings = {
    .alpha = 0.1, .sinks = 4, .window = 16, .policy = KV_POLICY_HILLINFER};

enum { ROUNDS = TEST_ROUNDS(30) };

static uint64_t state;

static uint32_t draw(uint32_t below)
{
    return (uint32_t)rig_random(&state, below);
}

/* SEQ_BEGIN of another request on the slot, that goes on with the first n_after tokens of q's. The
 * answer stays peeked. q becomes that request. */
static const struct record_seq_ready *ask(struct rig_request *q, uint64_t after, uint32_t n_after,
                                          uint32_t prompt, uint32_t max)
{
    struct record_seq_begin begin = {.request_id = ++q->request_id,
                                     .prompt_tokens = prompt,
                                     .max_tokens = max,
                                     .alpha = settings.alpha,
                                     .sinks = settings.sinks,
                                     .window = settings.window,
                                     .policy = q->settings.policy,
                                     .reads_hot = q->rig->reads_hot,
                                     .identity = q->request_id,
                                     .after = after,
                                     .after_tokens = n_after};
    q->step = 0;
    begin.header = gpu_header(q, 0);
    gpu_push(q->rig, RING_APPEND, RECORD_SEQ_BEGIN, &begin, sizeof begin);
    return gpu_wait(q->rig, RECORD_SEQ_READY);
}

/* It is refused. */
static void is_busy(struct rig_request *q, uint64_t after, uint32_t n_after, uint32_t prompt,
                    uint32_t max)
{
    assert_int_equal(ask(q, after, n_after, prompt, max)->status, HILL_E_BUSY);
    shm_ring_release(&q->rig->gpu[RING_SELECTION]);
}

/* It begins; false: anew. */
static bool go_on(struct rig_request *q, uint64_t after, uint32_t n_after, uint32_t prompt,
                  uint32_t max)
{
    const struct record_seq_ready *ready = ask(q, after, n_after, prompt, max);
    if (ready->status)
        fail_msg("%u tokens, at most %u: %s", prompt, max, hill_strerror(ready->status));
    assert_int_equal(ready->header.step, 0);
    bool there = ready->kept_tokens > 0;
    assert_true(!there || ready->kept_tokens == n_after);
    shm_ring_release(&q->rig->gpu[RING_SELECTION]);
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++)
        q->appended[layer] = there ? n_after : 0;
    q->n = prompt;
    q->n_reading = 0;
    XXH64_reset(q->hash, 0);
    return there;
}

static struct scorer_stats end(struct rig_request *q, bool keep, int status)
{
    struct record_seq_end record = {
        .header = gpu_header(q, 0), .request_id = q->request_id, .status = status, .keep = keep};
    gpu_push(q->rig, RING_APPEND, RECORD_SEQ_END, &record, sizeof record);
    gpu_wait(q->rig, RECORD_SEQ_STATS);
    struct scorer_stats stats = q->rig->stats;
    shm_ring_release(&q->rig->gpu[RING_SELECTION]);
    return stats;
}

static struct rig_request *open_slot(struct rig *r, uint32_t sequence)
{
    struct rig_request *q = calloc(1, sizeof *q);
    q->rig = r;
    q->sequence = sequence;
    q->request_id = 1000 * (sequence + 1);
    q->random = 4711 + sequence;
    q->settings = settings;
    q->check = true;
    q->hash = XXH64_createState();
    return q;
}

/* Prompt and steps; the selections are the oracle's. */
static void live(struct rig_request *q, uint32_t steps)
{
    gpu_prefill(q);
    for (uint32_t i = 0; i < steps; i++)
        assert_int_equal(gpu_decode(q), 0);
}

static const struct rig_options places[] = {
    {.csd = false},
    {.csd = false, .reads_hot = true},
    {.csd = true, .beta = 0.25},
    {.csd = true, .beta = 0.6, .placement = PLACEMENT_BKP, .pin = 0.05},
    {.csd = true, .beta = 0.6, .placement = PLACEMENT_BKP, .pin = 0.05, .reads_hot = true},
    {.csd = true, .beta = 0.6, .placement = PLACEMENT_BKP, .pin = 0.05, .hot_blocks = 30},
    {.csd = true, .beta = 0.1, .n_stripes = 15},
    {.csd = true, .beta = 0.6, .placement = PLACEMENT_BKP, .pin = 0.05, .speculates = true},
    {.csd = true, .beta = 0.25, .digest_cache_bytes = 25000},
    {.csd = true, .beta = 9, .host_scores = 1, .hot_blocks = 40},
    {.csd = true, .beta = 9, .host_scores = 1, .hot_blocks = 40, .placement = PLACEMENT_BKP},
};

/* One sequence after the other, each with any number of the tokens before. */
static void test_any_part_is_gone_on_with(void **unused)
{
    (void)unused;
    const char *seed = getenv("HILL_TEST_SEED");
    state = seed ? strtoull(seed, NULL, 10) : 7;
    printf("HILL_TEST_SEED=%llu\n", (unsigned long long)state);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct rig *r = rig_start(&places[i]);
        struct rig_request *q = open_slot(r, 0);
        uint32_t kept = 0, reused = 0;
        for (int round = 0; round < ROUNDS; round++) {
            uint32_t n_after = kept ? 1 + draw(kept) : 0, steps = draw(12);
            if (draw(3) == 0 && n_after < kept)
                n_after = kept; /* as most do */
            if (n_after > 700)
                n_after = 1 + draw(100);
            uint32_t prompt = n_after + 1 + draw(draw(3) ? 40 : 150);
            uint32_t max = prompt + steps + draw(40);
            bool there = go_on(q, kept ? q->request_id : 0, n_after, prompt, max);
            assert_true(kept || !there);
            reused += there;
            live(q, steps);
            struct scorer_stats stats = end(q, true, draw(5) ? 0 : HILL_E_CANCELLED);
            assert_true(stats.selection_hash == XXH64_digest(q->hash));
            assert_int_equal(stats.kept_tokens, q->n);
            kept = q->n;
        }
        printf("place %zu: %u of %d went on\n", i, reused, ROUNDS);
        /* nobody is in the way; in the narrow places a longer request may find no room beside what
         * it would go on with: copies and cut slots take room of their own */
        bool narrow = places[i].hot_blocks || places[i].n_stripes;
        assert_true(narrow ? reused >= (ROUNDS - 1) * 9 / 10 : reused == ROUNDS - 1);
        end(q, false, 0);
        gpu_free(q);
        rig_stop(r);
    }
}

/* A sequence that grows beyond its part of M_0 lends the blocks that its entries leave. */
static void test_who_grows_beyond_m_0_lends(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 9, .host_scores = 1, .hot_blocks = 42};
    struct rig *r = rig_start(&o);
    struct rig_request *q = open_slot(r, 0);
    assert_false(go_on(q, 0, 0, 420, 440)); /* all of the 7 blocks a layer that it may have */
    live(q, 3);
    struct scorer_stats stats = end(q, true, 0);
    assert_int_equal(stats.kept_tokens, 423);
    assert_int_equal(stats.near_tokens, 0);
    assert_true(go_on(q, q->request_id, 423, 700, 760)); /* 12 blocks of tokens */
    live(q, 20);
    stats = end(q, true, 0);
    assert_true(stats.near_tokens > 0);
    assert_true(go_on(q, q->request_id, 100, 120, 200)); /* most of it is cut */
    live(q, 3);
    end(q, true, 0);
    assert_true(go_on(q, q->request_id, 123, 400, 420));
    live(q, 3);
    end(q, false, 0);
    gpu_free(q);
    rig_stop(r);
}

/* Two slots and room for little more than one of them: who comes gets it. */
static void test_what_rests_gives_its_room(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = false, .hot_blocks = 33};
    struct rig *r = rig_start(&o);
    struct rig_request *a = open_slot(r, 0), *b = open_slot(r, 1);
    assert_false(go_on(a, 0, 0, 300, 320)); /* 5 blocks a layer of 11 */
    live(a, 3);
    assert_int_equal(end(a, true, 0).kept_tokens, 303);
    assert_false(go_on(b, 0, 0, 300, 320)); /* beside it */
    live(b, 3);
    assert_int_equal(end(b, true, 0).kept_tokens, 303);
    assert_true(go_on(a, a->request_id, 303, 310, 360)); /* one block more */
    live(a, 3);
    assert_int_equal(end(a, true, 0).kept_tokens, 313);
    /* grows into the other's room */
    assert_true(go_on(a, a->request_id, 313, 330, 600));
    live(a, 2);
    assert_int_equal(end(a, true, 0).kept_tokens, 332);
    assert_false(go_on(b, b->request_id, 303, 310, 350)); /* which is gone; and so is a's now */
    live(b, 2);
    assert_false(go_on(a, a->request_id, 310, 311, 320));
    live(a, 2);
    end(a, false, 0);
    end(b, false, 0);
    gpu_free(a);
    gpu_free(b);
    rig_stop(r);
}

/* Who finds no room beside the one that runs, whatever rests would go: nothing does. Neither for a
 * slot of its own, nor on the slot of what rests, nor going on with that; nor for want of staging.
 */
static void test_who_is_refused_takes_nothing_away(void **unused)
{
    (void)unused;
    static const struct rig_options narrow[] = {
        {.csd = false, .hot_blocks = 33, .n_sequences = 3}, /* 11 blocks a layer */
        {.csd = true, .beta = 0.1, .n_stripes = 4 * RIG_LAYERS, .n_sequences = 3},
        {.csd = true, .beta = 0.25, .staging = 80, .n_sequences = 3},
        {.csd = true,
         .beta = 0.1,
         .n_stripes = 4 * RIG_LAYERS,
         .n_sequences = 3,
         .policy = KV_POLICY_HOST_DIGEST,
         .digest_cache_bytes = 1u << 20},
    };
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++) {
        struct rig *r = rig_start(&narrow[i]);
        struct rig_request *a = open_slot(r, 0), *b = open_slot(r, 1), *c = open_slot(r, 2);
        a->settings.policy = b->settings.policy = c->settings.policy =
            narrow[i].policy ? narrow[i].policy : settings.policy;
        assert_false(go_on(b, 0, 0, 500, 550));
        live(b, 2);
        assert_false(go_on(a, 0, 0, 100, 110));
        live(a, 2);
        uint64_t kept = a->request_id;
        assert_int_equal(end(a, true, 0).kept_tokens, 102);
        is_busy(c, 0, 0, 600, 640);
        end(c, false, HILL_E_BUSY);
        is_busy(a, 0, 0, 600, 640);
        end(a, false, HILL_E_BUSY);
        is_busy(a, kept, 102, 600, 640);
        end(a, false, HILL_E_BUSY);
        assert_true(go_on(a, kept, 102, 105, 110));
        live(a, 2);
        assert_int_equal(gpu_decode(b), 0);
        struct scorer_stats stats = end(a, true, 0);
        assert_int_equal(stats.kept_tokens, 107);
        assert_int_equal(stats.link_key_bytes, 0); /* what M_0 has of its digests is there still */
        end(b, false, 0);
        assert_false(go_on(c, 0, 0, 600, 640)); /* now it fits, if need be in the room of a */
        live(c, 2);
        end(c, false, 0);
        gpu_free(a);
        gpu_free(b);
        gpu_free(c);
        rig_stop(r);
    }
}

/* Another request's, more tokens than there are, one that was not to be kept, one that failed. */
static void test_what_is_not_there_begins_anew(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct rig *r = rig_start(&o);
    struct rig_request *q = open_slot(r, 0);
    go_on(q, 0, 0, 100, 120);
    live(q, 2);
    assert_int_equal(end(q, true, 0).kept_tokens, 102);
    assert_false(go_on(q, q->request_id + 5, 100, 110, 120));
    live(q, 2);
    assert_int_equal(end(q, true, 0).kept_tokens, 112);
    assert_false(go_on(q, q->request_id, 113, 120, 130));
    live(q, 2);
    assert_int_equal(end(q, false, 0).kept_tokens, 0);
    assert_false(go_on(q, q->request_id, 100, 120, 130));
    live(q, 2);
    assert_int_equal(end(q, true, HILL_E_TIMEOUT).kept_tokens, 0);
    assert_false(go_on(q, q->request_id, 100, 120, 130));
    live(q, 2);
    end(q, false, 0);
    gpu_free(q);
    rig_stop(r);
}

/* More is cut than the rings have room for at once, so the first RELEASE's answer comes before the
 * cut is over. */
static void test_a_cut_that_the_agent_refuses_begins_anew(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.1};
    struct rig *r = rig_start(&o);
    struct rig_request *q = open_slot(r, 0);
    go_on(q, 0, 0, 880, 890);
    live(q, 2);
    assert_int_equal(end(q, true, 0).kept_tokens, 882);
    atomic_store_explicit(&r->agent->bad_release, true, memory_order_relaxed);
    assert_false(go_on(q, q->request_id, 10, 40, 60));
    live(q, 4);
    assert_int_equal(end(q, true, 0).kept_tokens, 44);
    assert_true(go_on(q, q->request_id, 20, 40, 60));
    live(q, 4);
    end(q, false, 0);
    assert_int_equal(atomic_load_explicit(&r->n_failures, memory_order_relaxed), 0);
    gpu_free(q);
    rig_stop(r);
}

/* Cancelled while it is taken up, and in mid-prompt: what was whole stays. */
static void test_a_cancelled_one_keeps_what_is_whole(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct rig *r = rig_start(&o);
    struct rig_request *q = open_slot(r, 0);
    go_on(q, 0, 0, 200, 260);
    live(q, 4);
    assert_int_equal(end(q, true, 0).kept_tokens, 204);
    assert_true(go_on(q, q->request_id, 150, 260, 300));
    for (uint32_t layer = 0; layer < 2; layer++)
        gpu_append(q, layer, 20 - 10 * layer); /* the last layer has none of them */
    assert_int_equal(end(q, true, HILL_E_CANCELLED).kept_tokens, 150);
    assert_true(go_on(q, q->request_id, 150, 180, 200));
    live(q, 4);
    end(q, false, 0);
    gpu_free(q);
    rig_stop(r);
}

/* A short request goes on with a long one's first tokens, of which its share comes up. A long one
 * follows, whose newest tokens are hot as well: with those together more than a layer's blocks. */
static void test_a_long_prompt_finds_room_behind_a_short_one(void **unused)
{
    (void)unused;
    enum { LONG = 880, SHORT = 520 };
    static const struct rig_options narrow[] = {
        {.csd = true, .beta = 0.4, .placement = PLACEMENT_BKP},
        {.csd = true, .beta = 0.4, .placement = PLACEMENT_BKP, .reads_hot = true},
        {.csd = true, .beta = 0.4, .placement = PLACEMENT_BKP, .adapts = true, .hot_blocks = 12},
        {.csd = true, .beta = 0.4},
    };
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++) {
        struct rig *r = rig_start(&narrow[i]);
        struct rig_request *q = open_slot(r, 0);
        go_on(q, 0, 0, LONG, LONG + 10);
        live(q, 4);
        assert_int_equal(end(q, true, 0).kept_tokens, LONG + 4);
        for (int round = 0; round < 3; round++) {
            assert_true(go_on(q, q->request_id, SHORT, SHORT + 1, SHORT + 41));
            live(q, 40);
            assert_int_equal(end(q, true, 0).kept_tokens, SHORT + 41);
            assert_true(go_on(q, q->request_id, SHORT + 1, LONG, LONG + 10));
            live(q, 4);
            assert_int_equal(end(q, true, 0).kept_tokens, LONG + 4);
        }
        end(q, false, 0);
        gpu_free(q);
        rig_stop(r);
    }
}

/* A pool as it is planned for one sequence: one stripe a layer, in which there is room for what was
 * cut beside all of the next request's. */
static void test_what_was_cut_lies_in_the_same_stripe(void **unused)
{
    (void)unused;
    static const struct rig_options one[] = {
        {.csd = true, .beta = 0.1, .n_stripes = RIG_LAYERS},
        {.csd = true, .beta = 0.6, .placement = PLACEMENT_BKP, .n_stripes = RIG_LAYERS},
    };
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        struct rig *r = rig_start(&one[i]);
        struct rig_request *q = open_slot(r, 0);
        assert_false(go_on(q, 0, 0, 100, 110));
        live(q, 4);
        for (int round = 0; round < 4; round++) {
            assert_int_equal(end(q, true, 0).kept_tokens, q->n);
            assert_true(go_on(q, q->request_id, 90, 100, 110));
            live(q, 4);
        }
        end(q, false, 0);
        gpu_free(q);
        rig_stop(r);
    }
}

static void drain_one(struct rig *r, uint32_t drive, bool over)
{
    uint32_t told = atomic_load_explicit(&r->n_drained, memory_order_acquire);
    int64_t deadline = clock_deadline_ms(60000);
    rig_drain_drive(r, drive);
    while (atomic_load_explicit(&r->n_drained, memory_order_acquire) == told) {
        assert_true(clock_now_ns() < deadline);
        usleep(200);
    }
    assert_int_equal(r->drained.over, over);
    assert_int_equal(r->drained.left == 0, over);
}

/* One of two drives is to be left, where one sequence rests and one decodes, with one stripe a
 * layer on the first drive and two on the other. What rests goes only where the other one's entries
 * have a place then: in its stripe and one that is free. */
static void test_what_rests_goes_only_with_a_drive_that_goes(void **unused)
{
    (void)unused;
    for (uint32_t spare = 0; spare < 2; spare++) {
        struct rig_options o = {.csd = true, .beta = 0.25, .n_drives = 2, .speeds = {1, 3}};
        o.drive_stripes[0] = (2 + spare) * RIG_LAYERS;
        o.hot_blocks = 6 * RIG_LAYERS; /* not for all tokens of one */
        struct rig *r = rig_start(&o);
        struct rig_request *a = open_slot(r, 0), *b = open_slot(r, 1);
        assert_false(go_on(a, 0, 0, 400, 500));
        live(a, 3);
        assert_int_equal(end(a, true, 0).kept_tokens, 403);
        assert_false(go_on(b, 0, 0, 400, 500));
        live(b, 3);
        drain_one(r, 1, spare == 1);
        assert_int_equal(gpu_decode(b), 0);
        assert_true(end(b, false, 0).drives[0].tokens > 0);
        assert_int_equal(go_on(a, a->request_id, 403, 410, 500), spare == 0);
        live(a, 2);
        assert_int_equal(end(a, true, 0).kept_tokens, 412);
        if (spare == 0)
            drain_one(r, 1, true);
        assert_int_equal(go_on(a, a->request_id, 412, 420, 500), spare == 1);
        live(a, 2);
        end(a, false, 0);
        assert_int_equal(atomic_load_explicit(&r->n_failures, memory_order_relaxed), 0);
        gpu_free(a);
        gpu_free(b);
        rig_stop(r);
    }
}

/* The only drive, or each of two, has been emptied, and its agent is gone. What ends from then on
 * rests, all of it hot, and is gone on with, also where more is cut than the drive had slots for.
 */
static void test_what_ends_after_the_last_drive_rests(void **unused)
{
    (void)unused;
    for (uint32_t n_drives = 1; n_drives <= 2; n_drives++) {
        struct rig_options o = {.csd = true, .beta = 0.25, .n_drives = n_drives};
        o.n_stripes = n_drives == 1 ? 2 * RIG_LAYERS : 0;
        struct rig *r = rig_start(&o);
        struct rig_request *q = open_slot(r, 0);
        assert_false(go_on(q, 0, 0, 400, 500));
        live(q, 3);
        for (uint32_t d = 0; d < n_drives; d++) {
            drain_one(r, d, true);
            atomic_store_explicit(&r->agents[d]->silent, true, memory_order_relaxed);
        }
        assert_int_equal(gpu_decode(q), 0);
        assert_int_equal(end(q, true, 0).kept_tokens, 404);
        assert_true(go_on(q, q->request_id, 300, 880, 890));
        live(q, 4);
        struct scorer_stats stats = end(q, true, 0);
        assert_int_equal(stats.kept_tokens, 884);
        assert_int_equal(stats.cold.tokens, 0);
        assert_true(go_on(q, q->request_id, 100, 120, 130));
        live(q, 4);
        assert_int_equal(end(q, false, 0).cold.tokens, 0);
        assert_int_equal(atomic_load_explicit(&r->n_failures, memory_order_relaxed), 0);
        gpu_free(q);
        rig_stop(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_part_is_gone_on_with),
        cmocka_unit_test(test_who_grows_beyond_m_0_lends),
        cmocka_unit_test(test_what_rests_gives_its_room),
        cmocka_unit_test(test_what_rests_goes_only_with_a_drive_that_goes),
        cmocka_unit_test(test_what_ends_after_the_last_drive_rests),
        cmocka_unit_test(test_who_is_refused_takes_nothing_away),
        cmocka_unit_test(test_what_is_not_there_begins_anew),
        cmocka_unit_test(test_a_cut_that_the_agent_refuses_begins_anew),
        cmocka_unit_test(test_a_cancelled_one_keeps_what_is_whole),
        cmocka_unit_test(test_a_long_prompt_finds_room_behind_a_short_one),
        cmocka_unit_test(test_what_was_cut_lies_in_the_same_stripe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
