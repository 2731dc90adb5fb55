/* tests/cpu_scorer/test_drain.c - the drive is emptied while requests decode: every answer is the
 * oracle's, what fits comes up, what does not stays of use, and it is told when nobody needs the
 * drive any more. */
#include "tests/cpu_scorer/pipeline_rig.h"

enum { PROMPT = 400, MAX = 700, BEFORE = 6 };

static uint32_t told(struct rig *r)
{
    return atomic_load_explicit(&r->n_drained, memory_order_acquire);
}

/* Nothing is asked for meanwhile. */
static void await_told(struct rig *r, uint32_t n)
{
    int64_t deadline = clock_deadline_ms(60000);
    while (told(r) < n) {
        assert_true(clock_now_ns() < deadline);
        usleep(200);
    }
}

/* All of them ask before one is answered: rows are in flight together, where they may be. */
static void decode_step(struct rig_request *const *q, uint32_t n_requests)
{
    struct rig_question asked[RIG_SEQUENCES];
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++) {
        for (uint32_t j = 0; j < n_requests; j++)
            gpu_ask(q[j], layer, q[j]->n, (q[j]->step + layer) % 2, &asked[j]);
        for (uint32_t j = 0; j < n_requests; j++)
            assert_int_equal(gpu_answer(q[j], layer, q[j]->n, &asked[j]), 0);
    }
    for (uint32_t j = 0; j < n_requests; j++) {
        q[j]->n++;
        gpu_step_end(q[j]);
    }
}

static void decode(struct rig_request *const *q, uint32_t n_requests, uint32_t steps)
{
    for (uint32_t i = 0; i < steps; i++)
        decode_step(q, n_requests);
}

/* A rig with requests that decode; all that has moved by now has arrived. */
static struct rig *start(const struct rig_options *o, struct rig_request *q[RIG_SEQUENCES])
{
    struct rig *r = rig_start(o);
    for (uint32_t i = 0; i < RIG_SEQUENCES; i++) {
        q[i] = gpu_begin(r, i, PROMPT, MAX, &usual, 0);
        gpu_prefill(q[i]);
    }
    decode(q, RIG_SEQUENCES, BEFORE);
    rig_settle(r);
    return r;
}

static struct scorer_stats end(struct rig_request *q)
{
    uint64_t hash = XXH64_digest(q->hash);
    struct scorer_stats stats = gpu_end(q);
    int64_t fetch_ns = 0;
    assert_int_equal(stats.selection_hash, hash);
    for (uint32_t d = 0; d < RIG_DRIVES; d++)
        fetch_ns += stats.drives[d].fetch_ns;
    assert_int_equal(fetch_ns, RIG_FETCH_NS * stats.cold.hits); /* none of what was carried */
    return stats;
}

static struct scorer_stats one_more(struct rig *r)
{
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &usual, 0);
    gpu_prefill(q);
    decode(&q, 1, 10);
    return end(q);
}

/* Decode until it is told; how many steps: some are left. */
static uint32_t decode_until_told(struct rig *r, struct rig_request *const *q, uint32_t n)
{
    uint32_t steps = 0;
    for (; told(r) < n && steps < MAX - PROMPT - BEFORE - 20; steps++)
        decode(q, RIG_SEQUENCES, 1);
    await_told(r, n);
    return steps;
}

static uint64_t entries(uint32_t steps)
{
    return (uint64_t)RIG_LAYERS * (PROMPT + BEFORE + steps);
}

/* M_0 holds all: everything comes up while both go on, and new requests have no use for the drive.
 */
static void drain_whole(const struct rig_options *o)
{
    struct rig_request *q[RIG_SEQUENCES];
    struct rig *r = start(o, q);
    rig_drain(r);
    uint32_t steps = decode_until_told(r, q, 1);
    assert_true(r->drained.over);
    assert_int_equal(r->drained.left, 0);
    assert_true(r->drained.moved > entries(0)); /* of both together, some four fifths were cold */
    assert_int_equal(r->drained.moved_bytes, r->drained.moved * RIG_ENTRY);
    decode(q, RIG_SEQUENCES, 10);
    for (uint32_t i = 0; i < RIG_SEQUENCES; i++) {
        struct scorer_stats stats = end(q[i]);
        assert_int_equal(stats.hot.tokens, entries(steps + 10));
        assert_int_equal(stats.cold.tokens, 0);
    }
    assert_int_equal(one_more(r).cold.tokens, 0);
    assert_int_equal(told(r), 1);
    assert_int_equal(r->staging.free_count, RIG_STAGING);
    assert_int_equal(atomic_load_explicit(&r->n_failures, memory_order_relaxed), 0);
    rig_stop(r);
}

static void test_all_comes_up_while_requests_decode(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    drain_whole(&o);
    o.placement = PLACEMENT_BKP;
    drain_whole(&o);
    o.reads_hot = true;
    drain_whole(&o);
    o.adapts = true;
    drain_whole(&o);
}

/* M_0 holds half of it: the newest are hot, the rest is selected from where it lies, new tokens
 * push older ones down; when one request has ended the other gets its blocks. */
static void drain_half(const struct rig_options *o)
{
    struct rig_request *q[RIG_SEQUENCES];
    struct rig *r = start(o, q);
    rig_drain(r);
    decode(q, RIG_SEQUENCES, 4);
    await_told(r, 1);
    assert_false(r->drained.over);
    assert_true(r->drained.left > 0 && r->drained.moved > 0);
    assert_int_equal(r->drained.left_bytes, r->drained.left * RIG_ENTRY);
    decode(q, RIG_SEQUENCES, 150);
    assert_int_equal(told(r), 1);
    struct scorer_stats stats = end(q[0]);
    assert_true(stats.cold.tokens > 0);
    decode(q + 1, 1, 20);
    stats = end(q[1]);
    await_told(r, 2);
    assert_true(r->drained.over);
    assert_int_equal(r->drained.left, 0);
    assert_int_equal(atomic_load_explicit(&r->n_failures, memory_order_relaxed), 0);
    assert_int_equal(r->staging.free_count, RIG_STAGING);
    rig_stop(r);
}

static void test_what_does_not_fit_stays_of_use(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25, .hot_blocks = 40};
    drain_half(&o);
    o.placement = PLACEMENT_BKP;
    drain_half(&o);
    o.reads_hot = true;
    drain_half(&o);
}

static void test_without_requests_it_is_over_at_once(void **unused)
{
    (void)unused;
    struct rig *r = rig_start(&(struct rig_options){.csd = true, .beta = 0.25});
    rig_drain(r);
    await_told(r, 1);
    assert_true(r->drained.over);
    assert_int_equal(r->drained.moved + r->drained.left, 0);
    rig_stop(r);
}

static void test_a_damaged_entry_stays_and_fails_nobody(void **unused)
{
    (void)unused;
    struct rig_request *q[RIG_SEQUENCES];
    struct rig *r = start(&(struct rig_options){.csd = true, .beta = 0.25}, q);
    atomic_store_explicit(&r->agent->damaged_position, 150, memory_order_relaxed);
    rig_drain(r);
    await_told(r, 1);
    assert_false(r->drained.over);
    assert_true(r->drained.left > 0);
    assert_int_equal(atomic_load_explicit(&r->n_failures, memory_order_relaxed), 0);
    for (uint32_t i = 0; i < RIG_SEQUENCES; i++)
        end(q[i]);
    await_told(r, 2);
    assert_true(r->drained.over);
    rig_stop(r);
}

/* All of it would fit M_0, but a part of the prompt is still to come, and goes down first. */
static void test_a_prompt_that_is_not_whole_keeps_its_room(void **unused)
{
    (void)unused;
    struct rig *r = rig_start(&(struct rig_options){.csd = true, .beta = 0.25});
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &usual, 0);
    gpu_append(q, 0, 4); /* the sinks, which are hot */
    rig_drain(r);
    await_told(r, 1);
    assert_false(r->drained.over);
    gpu_prefill(q);
    decode(&q, 1, BEFORE);
    await_told(r, 2);
    assert_true(r->drained.over);
    struct scorer_stats stats = end(q);
    assert_int_equal(stats.hot.tokens, entries(0));
    assert_int_equal(stats.cold.tokens, 0);
    rig_stop(r);
}

/* The agent falls silent with a batch out. A request that has nothing to do with it, and needs
 * every staging slot that it has set aside, goes on. */
static void test_what_a_lost_agent_keeps_nobody_lacks(void **unused)
{
    (void)unused;
    enum { ALL = 300 };
    const struct kv_selection_settings hot = {
        .alpha = 0.1, .sinks = 4, .window = ALL, .policy = KV_POLICY_HILLINFER};
    const struct kv_selection_settings few = {
        .alpha = 0.01, .sinks = 4, .window = 0, .policy = KV_POLICY_HILLINFER};
    const struct kv_layer_windows none = {.tokens = 0};
    struct rig_options o = {.csd = true, .beta = 0.25, .agent_deadline_ms = RIG_SOON};
    o.staging = kv_most_tokens(&hot, &none, ALL) + kv_most_tokens(&few, &none, MAX);
    struct rig *r = rig_start(&o);
    struct rig_request *a = gpu_begin(r, 0, ALL - 1, ALL, &hot, 0);
    struct rig_request *b = gpu_begin(r, 1, PROMPT, MAX, &few, 0);
    gpu_prefill(a);
    gpu_prefill(b);
    decode(&b, 1, BEFORE);
    atomic_store_explicit(&r->agent->silent, true, memory_order_relaxed);
    rig_drain(r);
    int64_t deadline = clock_deadline_ms(60000);
    while (atomic_load_explicit(&r->n_failures, memory_order_relaxed) == 0) {
        assert_true(clock_now_ns() < deadline);
        usleep(200);
    }
    decode(&a, 1, 1);
    end(a);
    gpu_end(b);
    assert_int_equal(atomic_load_explicit(&r->n_failures, memory_order_relaxed), 1);
    rig_stop(r);
}

/* The drive has as many slots as the longest context needs, none for copies. What has come up
 * leaves its slot to what goes down later, so that a layer gets back to its target. */
static void test_slots_of_what_came_up_are_used_again(void **unused)
{
    (void)unused;
    enum { LONGEST = 640, TARGET = 128 }; /* 512 cold: two stripes */
    struct rig *r =
        rig_start(&(struct rig_options){.csd = true, .beta = 0.25, .hot_blocks = 3 * RIG_LAYERS});
    struct rig_request *q = gpu_begin(r, 0, PROMPT, LONGEST, &usual, 0);
    gpu_prefill(q);
    rig_drain(r);
    await_told(r, 1);
    assert_int_equal(r->drained.left, RIG_LAYERS * (PROMPT - TARGET));
    assert_true(r->drained.moved > 0);
    decode(&q, 1, LONGEST - PROMPT);
    int64_t deadline = clock_deadline_ms(60000);
    do {
        assert_true(clock_now_ns() < deadline);
        gpu_step_end(q); /* a record, with which live statistics come */
        usleep(200);
    } while (atomic_load_explicit(&r->hot_now, memory_order_relaxed) >=
             RIG_LAYERS * (TARGET + 4)); /* so many over it are not moved */
    end(q);
    rig_stop(r);
}

/* ---- one of several ----------------------------------------------------------------------- */

enum { LEFT = 1 }; /* the drive that is left */

static uint32_t slots_there(const struct rig_agent *a)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < RIG_STRIPE * RIG_STRIPES; i++)
        n += a->slots[i].written || a->slots[i].committed;
    return n;
}

/* Its entries go to the others while both requests go on; then it is sent nothing any more, neither
 * by these nor by new ones. */
static void leave_one(const struct rig_options *o)
{
    struct rig_request *q[RIG_SEQUENCES];
    struct rig *r = start(o, q);
    assert_true(slots_there(r->agents[LEFT]) > 0);
    rig_drain_drive(r, LEFT);
    uint32_t steps = decode_until_told(r, q, 1);
    assert_true(r->drained.over);
    assert_int_equal(r->drained.left, 0);
    assert_true(r->drained.moved > 0);
    assert_int_equal(r->drained.moved_bytes, r->drained.moved * RIG_ENTRY);
    assert_int_equal(slots_there(r->agents[LEFT]), 0); /* every TRIM is answered */
    atomic_store_explicit(&r->agents[LEFT]->silent, true, memory_order_relaxed);
    decode(q, RIG_SEQUENCES, 10);
    for (uint32_t i = 0; i < RIG_SEQUENCES; i++) {
        struct scorer_stats stats = end(q[i]);
        assert_int_equal(stats.hot.tokens + stats.cold.tokens, entries(steps + 10));
        assert_true(stats.cold.tokens > stats.hot.tokens);
        assert_int_equal(stats.drives[LEFT].tokens, 0);
        assert_true(stats.drives[0].tokens > 0 && stats.drives[2].tokens > 0);
        assert_int_equal(stats.near_tokens > 0, o->host_scores > 0);
    }
    struct scorer_stats stats = one_more(r);
    assert_true(stats.cold.tokens > 0 && stats.drives[LEFT].tokens == 0);
    assert_int_equal(told(r), 1);
    assert_int_equal(r->staging.free_count, RIG_STAGING);
    assert_int_equal(atomic_load_explicit(&r->n_failures, memory_order_relaxed), 0);
    rig_stop(r);
}

/* What has lent hot blocks to digests takes them back: there is room for every entry. */
static void test_lent_blocks_are_for_what_comes_up(void **unused)
{
    (void)unused;
    static const struct rig_options places[] = {
        {.csd = true, .beta = 9, .host_scores = 1, .hot_blocks = 48},
        {.csd = true, .beta = 9, .host_scores = 1, .hot_blocks = 48, .rows = 2, .reads_hot = true},
        {.csd = true, /* the other drive has no room for this one's */
         .beta = 9,
         .host_scores = 1,
         .hot_blocks = 48,
         .n_drives = 2,
         .drive_stripes = {RIG_SEQUENCES * RIG_LAYERS, RIG_STRIPES},
         .speeds = {1, 2}},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct rig *r = rig_start(&places[i]);
        struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &usual, 0);
        gpu_prefill(q);
        decode(&q, 1, BEFORE);
        rig_settle(r);
        if (places[i].n_drives)
            rig_drain_drive(r, LEFT);
        else
            rig_drain(r);
        uint32_t steps = 0;
        for (; told(r) < 1 && steps < 100; steps++)
            decode(&q, 1, 1);
        await_told(r, 1);
        decode(&q, 1, 10);
        struct scorer_stats stats = end(q);
        assert_true(stats.near_tokens > 0);
        assert_int_equal(stats.hot.tokens + stats.cold.tokens, entries(steps + 10));
        assert_int_equal(places[i].n_drives ? stats.drives[LEFT].tokens : stats.cold.tokens, 0);
        assert_int_equal(r->drained.left, 0);
        assert_int_equal(atomic_load_explicit(&r->n_failures, memory_order_relaxed), 0);
        rig_stop(r);
    }
}

static void test_one_of_several_is_left_while_requests_decode(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25, .n_drives = 3, .speeds = {1, 2, 1}};
    leave_one(&o);
    o.placement = PLACEMENT_BKP;
    leave_one(&o);
    o.reads_hot = true;
    leave_one(&o);
    o.adapts = true;
    leave_one(&o);
    o.rows = 3;
    leave_one(&o);
    o.reads_hot = o.adapts = false;
    leave_one(&o);
    leave_one(&(struct rig_options){
        .csd = true, .beta = 9, .host_scores = 1, .n_drives = 3, .hot_blocks = 24});
}

/* Drives that answer no DEMOTE: no query waits for one. */
static void test_no_query_waits_for_what_goes_over(void **unused)
{
    (void)unused;
    struct rig_options o = {
        .csd = true, .beta = 0.25, .n_drives = 3, .rows = 3, .digest_cache_bytes = 25000};
    struct rig_request *q[RIG_SEQUENCES];
    struct rig *r = start(&o, q);
    for (uint32_t d = 0; d < 3; d++)
        atomic_store_explicit(&r->agents[d]->slow, true, memory_order_relaxed);
    rig_drain_drive(r, LEFT);
    decode(q, RIG_SEQUENCES, 40);
    for (uint32_t d = 0; d < 3; d++)
        atomic_store_explicit(&r->agents[d]->slow, false, memory_order_relaxed);
    decode_until_told(r, q, 1);
    assert_true(r->drained.over && r->drained.moved > 0);
    for (uint32_t i = 0; i < RIG_SEQUENCES; i++)
        end(q[i]);
    assert_int_equal(atomic_load_explicit(&r->n_failures, memory_order_relaxed), 0);
    rig_stop(r);
}

/* Slots of other drives that are written and do not count: what goes over is among them. */
static uint32_t slots_on_their_way(const struct rig *r)
{
    uint32_t n = 0;
    for (uint32_t d = 0; d < r->n_drives; d++)
        for (uint32_t i = 0; i < RIG_STRIPE * RIG_STRIPES; i++)
            n += d != LEFT && r->agents[d]->slots[i].written && !r->agents[d]->slots[i].committed;
    return n;
}

/* Of a scorer that ends while entries go over nothing is left but the hot segment and what the
 * drives have: in the next epoch the request goes on with all of its tokens. */
static void test_a_scorer_that_is_lost_while_entries_go_over_loses_nothing(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25, .n_drives = 3, .n_sequences = 1};
    struct rig_ready answer;
    struct rig_slot *slots[RIG_DRIVES];
    struct rig *r = rig_start(&o);
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &usual, 0);
    gpu_prefill(q);
    decode(&q, 1, BEFORE);
    for (uint32_t d = 0; d < r->n_drives; d++)
        atomic_store_explicit(&r->agents[d]->slow, true, memory_order_relaxed);
    rig_settle(r);
    uint32_t before = slots_on_their_way(r);
    rig_drain_drive(r, LEFT);
    int64_t deadline = clock_deadline_ms(60000);
    while (atomic_load_explicit(&r->ask_drain, memory_order_acquire)) {
        assert_true(clock_now_ns() < deadline);
        usleep(200);
    }
    rig_settle(r);
    assert_true(slots_on_their_way(r) > before);
    for (uint32_t d = 0; d < r->n_drives; d++)
        slots[d] = rig_take_slots(r, d);
    o.hot = rig_stop_keeping(r);
    r = rig_start(&o);
    for (uint32_t d = 0; d < r->n_drives; d++) {
        rig_give_slots(r, d, slots[d]);
        free(slots[d]);
    }
    gpu_go_on(q, r, PROMPT, MAX, q->n, q->n, &answer);
    assert_int_equal(answer.ready.status, 0);
    assert_int_equal(answer.ready.kept_tokens, q->n);
    assert_int_equal(answer.ready.n_damaged, 0);
    decode(&q, 1, 20);
    struct scorer_stats stats = end(q);
    assert_int_equal(stats.hot.tokens + stats.cold.tokens, entries(20));
    rig_stop(r);
}

/* The others have stripes for what they have, and M_0 blocks for what is hot: nothing moves, the
 * number of entries is told, and the drive takes new ones. When no request runs it is left. */
static void test_one_without_places_for_its_entries_stays(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25, .n_drives = 3, .hot_blocks = 40};
    for (uint32_t d = 0; d < 3; d++) /* of 700 tokens each of two requests has one a layer */
        o.drive_stripes[d] = RIG_SEQUENCES * RIG_LAYERS;
    struct rig_request *q[RIG_SEQUENCES];
    struct rig *r = start(&o, q);
    uint32_t before = slots_there(r->agents[LEFT]);
    rig_drain_drive(r, LEFT);
    await_told(r, 1);
    assert_false(r->drained.over);
    assert_true(r->drained.left > 0 && r->drained.left <= before);
    assert_int_equal(r->drained.moved, 0);
    assert_int_equal(r->drained.left_bytes, r->drained.left * RIG_ENTRY);
    decode(q, RIG_SEQUENCES, 150);
    rig_settle(r);
    assert_true(slots_there(r->agents[LEFT]) > before);
    for (uint32_t i = 0; i < RIG_SEQUENCES; i++)
        assert_true(end(q[i]).drives[LEFT].tokens > 0);
    rig_drain_drive(r, LEFT);
    await_told(r, 2);
    assert_true(r->drained.over);
    assert_int_equal(atomic_load_explicit(&r->n_failures, memory_order_relaxed), 0);
    rig_stop(r);
}

/* The other drive has no room, M_0 has: everything of this one comes up, the other's stays cold. */
static void test_where_others_have_no_room_it_comes_up(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true,
                            .beta = 0.25,
                            .n_drives = 2,
                            .drive_stripes = {RIG_SEQUENCES * RIG_LAYERS, RIG_STRIPES},
                            .speeds = {1, 2}};
    struct rig_request *q[RIG_SEQUENCES];
    struct rig *r = start(&o, q);
    rig_drain_drive(r, LEFT);
    decode_until_told(r, q, 1);
    assert_true(r->drained.over && r->drained.moved > 0);
    assert_int_equal(slots_there(r->agents[LEFT]), 0);
    decode(q, RIG_SEQUENCES, 10);
    for (uint32_t i = 0; i < RIG_SEQUENCES; i++) {
        struct scorer_stats stats = end(q[i]);
        assert_int_equal(stats.drives[LEFT].tokens, 0);
        assert_true(stats.drives[0].tokens > 0 && stats.hot.tokens > stats.cold.tokens);
    }
    rig_stop(r);
}

/* A part of a prompt has come when a drive is left. The rest has a place, though it was to go to
 * that drive. */
static void leave_in_prompt(const struct rig_options *o, bool comes_up)
{
    struct rig *r = rig_start(o);
    struct rig_request *q[RIG_SEQUENCES];
    for (uint32_t i = 0; i < RIG_SEQUENCES; i++)
        q[i] = gpu_begin(r, i, PROMPT, MAX, &usual, 0);
    for (uint32_t n = 0; n < 3; n++)
        gpu_append(q[0], 0, 24);
    rig_settle(r);
    rig_drain_drive(r, LEFT);
    rig_settle(r);
    for (uint32_t i = 0; i < RIG_SEQUENCES; i++)
        gpu_prefill(q[i]);
    decode(q, RIG_SEQUENCES, BEFORE);
    await_told(r, 1);
    assert_true(r->drained.over);
    for (uint32_t i = 0; i < RIG_SEQUENCES; i++) {
        struct scorer_stats stats = end(q[i]);
        assert_int_equal(stats.drives[LEFT].tokens, 0);
        assert_true((stats.hot.tokens > stats.cold.tokens) == comes_up);
        assert_int_equal(stats.hot.tokens + stats.cold.tokens, entries(0));
    }
    assert_int_equal(atomic_load_explicit(&r->n_failures, memory_order_relaxed), 0);
    rig_stop(r);
}

static void test_a_prompt_that_is_not_whole_finds_its_place(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25, .n_drives = 2, .speeds = {1, 2}};
    leave_in_prompt(&o, false);
    o.drive_stripes[0] = RIG_SEQUENCES * RIG_LAYERS; /* no room for it: what is left comes up */
    leave_in_prompt(&o, true);
    o.placement = PLACEMENT_BKP;
    leave_in_prompt(&o, true);
    o.adapts = true;
    leave_in_prompt(&o, true);
}

/* All of them go, the last one up, and come no more in this epoch. */
static void test_the_last_of_several_comes_up(void **unused)
{
    (void)unused;
    struct rig_request *q[RIG_SEQUENCES];
    struct rig *r = start(&(struct rig_options){.csd = true, .beta = 0.25, .n_drives = 3}, q);
    for (uint32_t d = 0; d < 3; d++) {
        rig_drain_drive(r, d);
        decode_until_told(r, q, d + 1);
        assert_true(r->drained.over);
        assert_int_equal(slots_there(r->agents[d]), 0);
    }
    decode(q, RIG_SEQUENCES, 5);
    for (uint32_t i = 0; i < RIG_SEQUENCES; i++)
        assert_int_equal(end(q[i]).cold.tokens, 0);
    assert_int_equal(one_more(r).cold.tokens, 0);
    rig_stop(r);
}

static void test_one_of_several_with_a_damaged_entry_stays(void **unused)
{
    (void)unused;
    struct rig_request *q[RIG_SEQUENCES];
    struct rig *r = start(&(struct rig_options){.csd = true, .beta = 0.25, .n_drives = 2}, q);
    uint32_t position = UINT32_MAX;
    for (uint32_t i = 0; position == UINT32_MAX; i++)
        if (r->agents[LEFT]->slots[i].committed)
            position = r->agents[LEFT]->slots[i].position;
    atomic_store_explicit(&r->agents[LEFT]->damaged_position, position, memory_order_relaxed);
    rig_drain_drive(r, LEFT);
    await_told(r, 1);
    assert_false(r->drained.over);
    assert_true(r->drained.left > 0);
    assert_int_equal(atomic_load_explicit(&r->n_failures, memory_order_relaxed), 0);
    for (uint32_t i = 0; i < RIG_SEQUENCES; i++)
        end(q[i]);
    rig_stop(r);
}

/* An earlier epoch's sequence that nobody asks for keeps no drive. */
static void leave_after_epoch(uint32_t n_drives)
{
    struct rig_options o = {.csd = true, .beta = 0.25, .n_drives = n_drives};
    struct rig_request *q[RIG_SEQUENCES];
    struct rig *r = start(&o, q);
    o.hot = rig_stop_keeping(r);
    for (uint32_t i = 0; i < RIG_SEQUENCES; i++)
        gpu_free(q[i]);
    r = rig_start(&o);
    for (uint32_t i = 0; i < RIG_SEQUENCES; i++)
        assert_true(scorer_tables(r->pipeline)->identities[i] != 0);
    rig_drain_drive(r, n_drives - 1);
    await_told(r, 1);
    assert_true(r->drained.over);
    assert_int_equal(r->drained.moved + r->drained.left, 0);
    rig_stop(r);
}

static void test_what_nobody_has_asked_for_keeps_no_drive(void **unused)
{
    (void)unused;
    leave_after_epoch(1);
    leave_after_epoch(3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lent_blocks_are_for_what_comes_up),
        cmocka_unit_test(test_one_of_several_is_left_while_requests_decode),
        cmocka_unit_test(test_no_query_waits_for_what_goes_over),
        cmocka_unit_test(test_a_scorer_that_is_lost_while_entries_go_over_loses_nothing),
        cmocka_unit_test(test_one_without_places_for_its_entries_stays),
        cmocka_unit_test(test_where_others_have_no_room_it_comes_up),
        cmocka_unit_test(test_a_prompt_that_is_not_whole_finds_its_place),
        cmocka_unit_test(test_the_last_of_several_comes_up),
        cmocka_unit_test(test_one_of_several_with_a_damaged_entry_stays),
        cmocka_unit_test(test_what_nobody_has_asked_for_keeps_no_drive),
        cmocka_unit_test(test_all_comes_up_while_requests_decode),
        cmocka_unit_test(test_what_does_not_fit_stays_of_use),
        cmocka_unit_test(test_a_prompt_that_is_not_whole_keeps_its_room),
        cmocka_unit_test(test_what_a_lost_agent_keeps_nobody_lacks),
        cmocka_unit_test(test_slots_of_what_came_up_are_used_again),
        cmocka_unit_test(test_without_requests_it_is_over_at_once),
        cmocka_unit_test(test_a_damaged_entry_stays_and_fails_nobody),
    };
    return cmocka_run_group_tests_name("drain", tests, NULL, NULL);
}
