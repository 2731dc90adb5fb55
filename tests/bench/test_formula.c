/* tests/bench/test_formula.c - the prediction against numbers worked by hand on figures that are
 * easy to multiply: 4 KV heads of 4, so 64 bytes an entry, 32 a key, 20 a digest. (The bytes
 * themselves: tests/kv/test_policy_cost.c.) */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "tools/bench/formula.h"

#define BLOCK 10

/* 1000 tokens, 800 cold; of the selected 60 are brought from the drive */
static struct kv_cost_load load_of(uint32_t policy)
{
    return (struct kv_cost_load){
        .geometry = {2, 4, 4, 4},
        .selection = {.alpha = 0.2, .sinks = 4, .window = 16, .policy = policy},
        .hot = 200,
        .cold = 800,
        .fetched = 60};
}

/* bytes a nanosecond */
static const struct csd_model model = {
    .on = true, .flash = 2, .write = 1, .link = 4, .gpu_link = 16, .score = 5, .latency_us = 1};

static void assert_near(double value, double expected)
{
    if (fabs(value - expected) > 1e-9 * fabs(expected))
        fail_msg("%.15g, not %.15g", value, expected);
}

static void test_full_fetches_what_the_gpu_does_not_keep(void **unused)
{
    (void)unused;
    assert_near(formula_full_fetched(800, 200, 1), 800);
    assert_near(formula_full_fetched(800, 200, 4), 650); /* (800 + 3 * 600) / 4 */
    assert_near(formula_full_fetched(100, 200, 4), 25);  /* all of it stays */
}

static void test_hillinfer_takes_its_slowest_stage(void **unused)
{
    (void)unused;
    struct kv_cost_load load = load_of(KV_POLICY_HILLINFER);
    struct formula_times t = formula_times(&load, &model, BLOCK);
    /* 1000 ns; flash 800 * 20 / 2 = 8000, scoring 800 * 64 / 5; the last 10 scores 40 / 4 */
    assert_near(t.evaluate * 1e9, 1000 + 10240 + 10);
    assert_near(t.fetch * 1e9, 1000 + 1920); /* flash 3840 / 2, link 3840 / 4 */
    struct csd_model fast = model;
    fast.score = 10; /* now flash is the slowest */
    t = formula_times(&load, &fast, BLOCK);
    assert_near(t.evaluate * 1e9, 1000 + 8000 + 10);
}

static void test_keys_take_the_slower_of_flash_and_link(void **unused)
{
    (void)unused;
    struct kv_cost_load load = load_of(KV_POLICY_H2O);
    struct formula_times t = formula_times(&load, &model, BLOCK);
    assert_near(t.evaluate * 1e9, 1000 + 12800); /* 800 * 32 / 2 */
    struct csd_model narrow = model;
    narrow.link = 1;
    t = formula_times(&load, &narrow, BLOCK);
    assert_near(t.evaluate * 1e9, 1000 + 25600);
    assert_near(t.fetch * 1e9, 1000 + 3840);
}

/* The bytes that a drive would read for itself, over the link, but for what is cached. */
static void test_host_digest_reads_what_the_drive_would(void **unused)
{
    (void)unused;
    struct kv_cost_load load = load_of(KV_POLICY_HOST_DIGEST);
    struct formula_times t = formula_times(&load, &model, BLOCK);
    assert_near(t.evaluate * 1e9, 1000 + 8000); /* 800 * 20 / 2 */
    load.cached = 200;
    t = formula_times(&load, &model, BLOCK);
    assert_near(t.evaluate * 1e9, 1000 + 6000);
    load.cached = 800; /* nothing is asked of the drive but the entries */
    t = formula_times(&load, &model, BLOCK);
    assert_near(t.evaluate, 0);
    assert_near(t.fetch * 1e9, 1000 + 1920);
}

static void test_leoam_reads_candidates_in_runs(void **unused)
{
    (void)unused;
    struct kv_cost_load load = load_of(KV_POLICY_LEOAM);
    load.candidates_cold = 256; /* of 32 bytes; chunks are of 512, none begins a page */
    load.runs = 2;
    struct formula_times t = formula_times(&load, &model, BLOCK);
    assert_near(t.evaluate * 1e9, 1000 + 4096 + 4096); /* (256 * 32 + 2 * 4096) / 2 */
    assert_near(t.last, 1);                            /* less than a window's least */
    load.runs = 0;
    load.candidates_cold = 32768;
    assert_near(formula_times(&load, &model, BLOCK).last, 0.25); /* 256 KiB of 1 MiB */
}

static void test_what_is_not_asked_takes_no_time(void **unused)
{
    (void)unused;
    struct kv_cost_load load = load_of(KV_POLICY_FULL);
    assert_near(formula_times(&load, &model, BLOCK).evaluate, 0);
    for (uint32_t p = 0; p < KV_POLICY_COUNT; p++) {
        load = load_of(p);
        load.hot = 1000;
        load.cold = load.fetched = 0;
        struct formula_times t = formula_times(&load, &model, BLOCK);
        assert_near(t.evaluate + t.fetch, 0);
    }
}

static void test_a_step_is_compute_and_its_queries_one_after_another(void **unused)
{
    (void)unused;
    struct formula_native native = {.compute = 10, .evaluate = 1, .select = 0.5};
    struct formula_times times = {.evaluate = 3, .fetch = 2};
    assert_near(formula_step(&native, &times, 32e9, &model, false, 2, 4), 10 + 2 * 4 * 5.5);
    /* 32e9 bytes at 16 GB/s: 2 s for the last row of each of 4 layers */
    assert_near(formula_step(&native, &times, 32e9, &model, true, 2, 4), 10 + 2 * 4 * 5.5 + 8);
    native.other = 0.25;
    assert_near(formula_step(&native, &times, 32e9, &model, false, 2, 4), 10 + 2 * 4 * 5.75);
    native.other = 0;
    native.bounds = 0.5; /* before either begins to evaluate */
    assert_near(formula_step(&native, &times, 32e9, &model, false, 2, 4), 10 + 2 * 4 * 6);
    native.bounds = 0;
    times.last = 0.5; /* half a second of the CPU's when the last keys have come */
    assert_near(formula_step(&native, &times, 32e9, &model, false, 2, 4), 10 + 2 * 4 * 6);
    times.last = 0;
    native.evaluate = 7; /* the CPU is the slower one */
    assert_near(formula_step(&native, &times, 32e9, &model, false, 2, 4), 10 + 2 * 4 * 9.5);
}

static void test_a_kernel_scores_64_bytes_of_digests_a_beat(void **unused)
{
    (void)unused;
    struct kv_geometry g = {2, 8, 8, 128};
    /* 64 B * 0.25 GHz * 0.7 = 11.2 GB/s, below the port's 13.6; 4096 bytes for 1024 + 8 */
    assert_near(formula_scoring_rate(&g), 11.2 * 4096 / 1032);
    g.digest_bits = 4;
    assert_near(formula_scoring_rate(&g), 11.2 * 4096 / 520);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_fetches_what_the_gpu_does_not_keep),
        cmocka_unit_test(test_hillinfer_takes_its_slowest_stage),
        cmocka_unit_test(test_keys_take_the_slower_of_flash_and_link),
        cmocka_unit_test(test_host_digest_reads_what_the_drive_would),
        cmocka_unit_test(test_leoam_reads_candidates_in_runs),
        cmocka_unit_test(test_what_is_not_asked_takes_no_time),
        cmocka_unit_test(test_a_step_is_compute_and_its_queries_one_after_another),
        cmocka_unit_test(test_a_kernel_scores_64_bytes_of_digests_a_beat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
