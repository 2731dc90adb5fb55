/*
 * test_modelled_commands.c - the command loop under a device model: the same answers, no earlier
 * than the modelled drive would have them, and no queue waits for another. Bounds are lower ones: a
 * busy machine makes nothing fail.
 */
#include "tests/csd_agent/commands_scene.h"

static const struct csd_model slow = {.on = true,
                                      .flash = 0.02,
                                      .write = 0.01,
                                      .link = 0.05,
                                      .gpu_link = 25,
                                      .score = 0.1,
                                      .latency_us = 500};

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* No sooner than this many nanoseconds after it came. */
static void expect_busy(const struct record_completion *c, double ns)
{
    if ((double)c->busy_ns < ns - 1)
        fail_msg("command %u took %llu ns, modelled %.0f", c->command,
                 (unsigned long long)c->busy_ns, ns);
}

static void test_each_command_takes_its_modelled_time(void **state)
{
    double latency = slow.latency_us * 1000;
    struct record_completion c;
    struct scene s;
    struct asked q;

    (void)state;
    random_seed(81);
    scene_prepare(&s, COLD_NO_POSITION);
    data_plane_set_model(&s.plane, &slow);
    scene_start(&s);
    s.m.stripes[0] = (struct model_stripe){true, 0, 0, 0};
    c = expect(&s, push_demote(&s, 0, 300), RECORD_DEMOTE, 0);
    assert_true(c.flash_write_bytes > 300 * kv_entry_bytes(&s.m.g));
    expect_busy(&c, latency + larger((double)c.flash_write_bytes / slow.write,
                                     (double)c.flash_write_bytes / slow.link));
    commit(&s, 0, 0, 0, 300);
    push_query(&s, &q, 0, 0, 64);
    c = collect(&s, &q, COLD_NO_POSITION);
    double kv = 300.0 * kv_entry_bytes(&s.m.g) / slow.score;
    expect_busy(&c, latency + larger((double)c.flash_read_bytes / slow.flash, kv));
    c = fetch_some(&s, 0, 0);
    assert_int_equal(c.count, 16);
    expect_busy(&c, latency + larger((double)c.link_kv_bytes / slow.flash,
                                     (double)c.link_kv_bytes / slow.link));
    scene_stop(&s);
    assert_true(s.plane.drive.counters.commands == 3);
    assert_true(s.plane.drive.counters.score_ns >= (uint64_t)kv);
    scene_start(&s);
    scene_close(&s);
}

/* INT8 digests, INT4 ones, FP16 keys that are cast for either; 11 query heads of a KV head, whose
 * terms the kernel for an FPGA takes in two passes. */
static void test_the_scorer_is_charged_the_bytes_that_it_takes(void **state)
{
    const uint32_t keys = 2 * 2 * 24;
    const struct {
        uint32_t key_bytes, bits, charged_bits, n_heads, passes;
    } pools[] = {{0, 8, 8, 4, 1},     {0, 4, 4, 4, 1},  {keys, 8, 16, 4, 1},
                 {keys, 4, 16, 4, 1}, {0, 8, 8, 16, 1}, {0, 8, 8, 22, 2}};

    (void)state;
    random_seed(88);
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++) {
        struct scene s;
        struct asked q;
        uint32_t rounds = 0;
        scene_prepare_as(&s, COLD_NO_POSITION, pools[i].key_bytes, pools[i].bits, pools[i].n_heads);
        data_plane_set_model(&s.plane, &slow);
        scene_start(&s);
        grow(&s, 0, 0, 300);
        for (uint32_t n = 0; n < 8; n++) {
            push_query(&s, &q, 0, 0, 64);
            collect(&s, &q, COLD_NO_POSITION);
            rounds += q.record.importance == KV_IMPORTANCE_HEADS ? pools[i].passes : 1;
        }
        scene_stop(&s);
        double ns =
            300.0 * rounds * kv_entry_bytes(&s.m.g) * pools[i].charged_bits / 8 / slow.score;
        double charged = (double)s.plane.drive.counters.score_ns;
        if (charged < ns || charged > ns + 8 * 300) /* each block's is rounded up */
            fail_msg("INT%u, %u bytes of keys, %u heads: %.0f ns, charged are %.0f", pools[i].bits,
                     pools[i].key_bytes, pools[i].n_heads, ns, charged);
        scene_start(&s);
        scene_close(&s);
        unlink(pool_path());
    }
}

/* Has the agent taken everything of the background ring? */
static void await_taken(struct scene *s)
{
    while (atomic_load_explicit(&s->ends[BACKGROUND].ring->tail, memory_order_acquire) !=
           s->ends[BACKGROUND].published) /* acquire: pairs with the agent's release of a record */
        usleep(200);
}

static void test_a_slow_demote_holds_nobody_else_up(void **state)
{
    struct csd_model crawling = slow;
    struct scene s;
    struct asked q;

    (void)state;
    random_seed(82);
    crawling.write = 0.00005; /* 600 slots with their digests: 2.8 s at least */
    scene_prepare(&s, COLD_NO_POSITION);
    data_plane_set_model(&s.plane, &crawling);
    scene_start(&s);
    s.m.stripes[0] = (struct model_stripe){true, 0, 0, 0};
    uint64_t demote = push_demote(&s, 0, 600);
    await_taken(&s);
    push_query(&s, &q, 1, 1, 64); /* of nothing */
    struct record_completion c = completion(&s);
    assert_int_equal(c.tag, q.record.query_id);
    c = expect(&s, demote, RECORD_DEMOTE, 0);
    expect_busy(&c, 600.0 * kv_entry_bytes(&s.m.g) / crawling.write);
    scene_close(&s);
}

/* Those that wait in the modelled flash for each other: no moment is the time of two of them. */
static void test_the_time_of_what_waits_is_counted_once(void **state)
{
    struct csd_model crawling = slow;
    struct wanted wanted[4];
    struct scene s;
    uint64_t busy_ns = 0;

    (void)state;
    random_seed(87);
    crawling.latency_us = 0;
    crawling.flash = 0.0005; /* a page: 8 ms */
    scene_prepare(&s, COLD_NO_POSITION);
    data_plane_set_model(&s.plane, &crawling);
    scene_start(&s);
    s.m.stripes[0] = (struct model_stripe){true, 0, 0, 0};
    expect(&s, push_demote(&s, 0, 300), RECORD_DEMOTE, 0);
    commit(&s, 0, 0, 0, 300);
    int64_t start = clock_now_ns();
    for (int i = 0; i < 4; i++)
        push_fetch(&s, &wanted[i], 0, 0);
    for (int i = 0; i < 4; i++)
        busy_ns += collect_fetch(&s, &wanted[i]).busy_ns;
    assert_true(busy_ns <= (uint64_t)(clock_now_ns() - start));
    assert_true(busy_ns >= 4 * 8000000);
    scene_close(&s);
}

static void test_background_work_waits_for_the_modelled_flash(void **state)
{
    struct csd_model crawling = slow;
    struct hill_why why = {""};
    struct scene s;
    struct asked q;

    (void)state;
    random_seed(83);
    crawling.latency_us = CSD_MODEL_LATENCY_US_MAX;
    crawling.write = 0.00001; /* it is busy for longer than this test lasts on any machine */
    scene_prepare(&s, COLD_NO_POSITION);
    data_plane_set_model(&s.plane, &crawling);
    s.m.stripes[0] = (struct model_stripe){true, 0, 0, 0};
    push_demote(&s, 0, 600);
    push_demote(&s, 600, 100);
    int64_t start = clock_now_ns();
    assert_int_equal(data_plane_turn(&s.plane), 1);
    assert_int_equal(data_plane_turn(&s.plane), 0); /* the other demote waits */
    assert_int_equal(data_plane_write_directory(&s.plane, &why), 0);
    assert_true(data_plane_next_ns(&s.plane) > start + CLOCK_MS(1000));
    push_query(&s, &q, 1, 1, 64); /* a command does not; this one has nothing to wait for */
    assert_int_equal(data_plane_turn(&s.plane), 1);
    assert_int_equal(completion(&s).tag, q.record.query_id);
    data_plane_set_model(&s.plane, &(struct csd_model){.on = false});
    assert_int_equal(data_plane_turn(&s.plane), 1); /* now it goes, but is answered in order */
    assert_int_equal(data_plane_turn(&s.plane), 0);
    const void *payload;
    uint32_t type, bytes;
    assert_int_equal(shm_ring_peek(&s.ends[COMPLETION], &type, &payload, &bytes),
                     HILL_E_WOULD_BLOCK);
    scene_start(&s);
    scene_close(&s);
}

static void test_a_trim_is_answered_after_the_demotes_it_took_along(void **state)
{
    struct scene s;
    uint64_t tags[6];

    (void)state;
    random_seed(84);
    scene_prepare(&s, COLD_NO_POSITION);
    data_plane_set_model(&s.plane, &slow);
    scene_start(&s);
    s.m.stripes[0] = (struct model_stripe){true, 0, 0, 0};
    for (uint32_t i = 0; i < 6; i++)
        tags[i] = push_demote(&s, i * 50, 50);
    trim(&s, 0);
    for (uint32_t i = 0; i < 6; i++)
        expect(&s, tags[i], RECORD_DEMOTE, 0);
    expect(&s, s.next_tag, RECORD_TRIM, 0);
    scene_close(&s);
}

static void random_commands(struct scene *s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t sequence = random_below(2), layer = random_below(2), what = random_below(100);
        if (what < 40)
            grow(s, sequence, layer, 1 + random_below(200));
        else if (what < 70)
            query(s, sequence, layer, 1 + random_below(300));
        else if (what < 97)
            fetch_some(s, sequence, layer);
        else {
            trim(s, sequence);
            expect(s, s->next_tag, RECORD_TRIM, 0);
        }
    }
}

/* Slow, fast, off, with little room for what is held: the answers are those of the oracle. */
static void test_answers_are_the_same_under_every_model(void **state)
{
    struct csd_model models[] = {slow, CSD_MODEL_SMARTSSD, {.on = false}, slow};
    struct scene s;

    (void)state;
    random_seed(85);
    scene_prepare(&s, COLD_NO_POSITION);
    s.plane.held_max = 700;
    for (int round = 0; round < 8; round++) {
        data_plane_set_model(&s.plane, &models[round % 4]);
        scene_start(&s);
        random_commands(&s, 12);
        scene_stop(&s);
    }
    scene_start(&s);
    scene_close(&s);
}

static void test_a_model_that_is_faster_than_the_machine_is_told(void **state)
{
    struct csd_model fast = {true, 1e5, 1e5, 1e5, 1e5, 1e5, 0};
    struct scene s;

    (void)state;
    random_seed(86);
    scene_prepare(&s, COLD_NO_POSITION);
    data_plane_set_model(&s.plane, &fast);
    scene_start(&s);
    grow(&s, 0, 0, 100);
    query(&s, 0, 0, 64);
    scene_stop(&s);
    assert_int_equal(s.plane.drive.counters.commands, 2);
    assert_int_equal(s.plane.drive.counters.late, 2);
    assert_true(s.plane.drive.counters.late_ns > s.plane.drive.counters.late_max_ns);
    scene_start(&s);
    scene_close(&s);
}

static void test_stopping_ends_a_wait_for_room(void **state)
{
    struct csd_model crawling = slow;
    struct scene s;
    struct asked q;

    (void)state;
    random_seed(87);
    scene_prepare(&s, COLD_NO_POSITION);
    scene_start(&s);
    for (int i = 0; i < 4; i++)
        grow(&s, 0, 0, MAX_COMMAND_SLOTS);
    scene_stop(&s);
    crawling.flash = 1e-7;
    crawling.latency_us = CSD_MODEL_LATENCY_US_MAX;
    s.plane.held_max = 700;
    data_plane_set_model(&s.plane, &crawling);
    scene_start(&s);
    push_query(&s, &q, 0, 0, 64);
    usleep(20000); /* it has scored what there is room for */
    int64_t began_ns = clock_now_ns();
    scene_stop(&s); /* the thread ends, though nothing is due for minutes */
    assert_true(clock_now_ns() - began_ns < CLOCK_MS(20000));
    assert_true(s.ended == HILL_E_CANCELLED || s.ended == 0);
    scene_start(&s);
    scene_close(&s);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_each_command_takes_its_modelled_time),
        TEST(test_the_scorer_is_charged_the_bytes_that_it_takes),
        TEST(test_a_slow_demote_holds_nobody_else_up),
        TEST(test_the_time_of_what_waits_is_counted_once),
        TEST(test_background_work_waits_for_the_modelled_flash),
        TEST(test_a_trim_is_answered_after_the_demotes_it_took_along),
        TEST(test_answers_are_the_same_under_every_model),
        TEST(test_a_model_that_is_faster_than_the_machine_is_told),
        TEST(test_stopping_ends_a_wait_for_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
