/* tests/bench/test_formula.c - the byte formulas and the prediction against numbers worked by hand
 * on figures that are easy to multiply: 8 bytes an entry, 4 a key, 3 a digest. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "bench/formula.h"

static const struct formula_shape shape = {
    .entry_bytes = 8, .key_bytes = 4, .digest_bytes = 3, .block_tokens = 10};

/* 1000 tokens, 800 cold; of the selected 60 are brought from the drive and 20 from DRAM */
static const struct formula_query query = {
    .tokens = 1000, .cold = 800, .fetched = 60, .copied = 20};
static const struct formula_query key_query = {
    .tokens = 1000, .cold = 800, .keys = 800, .fetched = 60, .copied = 20};

/* bytes a nanosecond */
static const struct csd_model model = {
    .on = true, .flash = 2, .write = 1, .link = 4, .gpu_link = 16, .score = 5, .latency_us = 1};

static void assert_near(double value, double expected)
{
    if (fabs(value - expected) > 1e-9 * fabs(expected))
        fail_msg("%.15g, not %.15g", value, expected);
}

static void test_hillinfer_moves_scores_and_what_is_selected(void **unused)
{
    (void)unused;
    struct formula_bytes b = formula_bytes(FORMULA_HILLINFER, &shape, &query);
    assert_near(b.link_key, 0);
    assert_near(b.link_score, 3200); /* 800 * 4 */
    assert_near(b.link_kv, 480);     /* 60 * 8 */
    assert_near(b.flash_read, 2880); /* 800 * 3 + 480 */
    assert_near(b.gpu_upload, 640);  /* 80 * 8 */
}

static void test_keys_come_over_the_link_whole(void **unused)
{
    (void)unused;
    struct formula_bytes b = formula_bytes(FORMULA_KEYS, &shape, &key_query);
    assert_near(b.link_key, 3200); /* 800 * 4 */
    assert_near(b.link_score, 0);
    assert_near(b.link_kv, 480);
    assert_near(b.flash_read, 3680); /* both */
}

static void test_which_cold_keys_come(void **unused)
{
    (void)unused;
    assert_near(formula_cold_keys(FORMULA_KEYS, 1000, 800, 200, 40), 800);
    assert_near(formula_cold_keys(FORMULA_HILLINFER, 1000, 800, 200, 40), 0);
    assert_near(formula_cold_keys(FORMULA_FULL, 1000, 800, 1000, 40), 0);
    /* (200 - 40) * 2 = 320 of 960 tokens that are not forced: a third of 720 */
    assert_near(formula_cold_keys(FORMULA_CHUNKS, 1000, 720, 200, 40), 240);
    /* 2 * 560 are more than there are: all */
    assert_near(formula_cold_keys(FORMULA_CHUNKS, 1000, 720, 600, 40), 720);
    assert_near(formula_cold_keys(FORMULA_CHUNKS, 1000, 720, 40, 40), 0);
}

static void test_full_evaluates_nothing(void **unused)
{
    (void)unused;
    struct formula_query all = {.tokens = 1000, .cold = 800, .fetched = 600, .copied = 200};
    struct formula_bytes b = formula_bytes(FORMULA_FULL, &shape, &all);
    assert_near(b.link_key + b.link_score, 0);
    assert_near(b.link_kv, 4800);
    assert_near(b.flash_read, 4800);
    assert_near(b.gpu_upload, 6400);
}

static void test_full_fetches_what_the_gpu_does_not_keep(void **unused)
{
    (void)unused;
    assert_near(formula_full_fetched(800, 200, 1), 800);
    assert_near(formula_full_fetched(800, 200, 4), 650); /* (800 + 3 * 600) / 4 */
    assert_near(formula_full_fetched(100, 200, 4), 25);  /* all of it stays */
}

static void test_the_slowest_stage_of_a_command_decides(void **unused)
{
    (void)unused;
    struct formula_times t = formula_times(FORMULA_HILLINFER, &shape, &model, &query);
    /* 1000 ns; flash 2400 / 2 = 1200, scoring 6400 / 5 = 1280; the last 10 scores 40 / 4 */
    assert_near(t.evaluate * 1e9, 1000 + 1280 + 10);
    /* flash 480 / 2, link 480 / 4 */
    assert_near(t.fetch * 1e9, 1000 + 240);
    t = formula_times(FORMULA_KEYS, &shape, &model, &key_query);
    assert_near(t.evaluate * 1e9, 1000 + 1600); /* flash 3200 / 2 */
    t = formula_times(FORMULA_FULL, &shape, &model, &query);
    assert_near(t.evaluate, 0);
    struct csd_model fast = model;
    fast.score = 10; /* now flash is the slowest */
    t = formula_times(FORMULA_HILLINFER, &shape, &fast, &query);
    assert_near(t.evaluate * 1e9, 1000 + 1200 + 10);
}

static void test_what_is_not_asked_takes_no_time(void **unused)
{
    (void)unused;
    struct formula_query hot = {.tokens = 1000, .cold = 0, .fetched = 0, .copied = 50};
    for (enum formula_policy p = FORMULA_FULL; p <= FORMULA_CHUNKS; p++) {
        struct formula_times t = formula_times(p, &shape, &model, &hot);
        assert_near(t.evaluate + t.fetch, 0);
    }
}

static void test_a_step_is_compute_and_its_queries_one_after_another(void **unused)
{
    (void)unused;
    struct formula_native native = {.compute = 10, .evaluate = 1, .select = 0.5};
    struct formula_times times = {.evaluate = 3, .fetch = 2};
    struct formula_bytes bytes = {.gpu_upload = 32e9};
    assert_near(formula_step(&native, &times, &bytes, &model, false, 2, 4), 10 + 2 * 4 * 5.5);
    /* 32e9 bytes at 16 GB/s: 2 s for the last row of each of 4 layers */
    assert_near(formula_step(&native, &times, &bytes, &model, true, 2, 4), 10 + 2 * 4 * 5.5 + 8);
    native.other = 0.25;
    assert_near(formula_step(&native, &times, &bytes, &model, false, 2, 4), 10 + 2 * 4 * 5.75);
    native.other = 0;
    native.evaluate = 7; /* the CPU is the slower one */
    assert_near(formula_step(&native, &times, &bytes, &model, false, 2, 4), 10 + 2 * 4 * 9.5);
}

static void test_a_policy_without_a_formula_is_told(void **unused)
{
    (void)unused;
    assert_int_equal(formula_policy("hillinfer"), FORMULA_HILLINFER);
    assert_int_equal(formula_policy("h2o"), FORMULA_KEYS);
    assert_int_equal(formula_policy("something"), FORMULA_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hillinfer_moves_scores_and_what_is_selected),
        cmocka_unit_test(test_keys_come_over_the_link_whole),
        cmocka_unit_test(test_which_cold_keys_come),
        cmocka_unit_test(test_full_evaluates_nothing),
        cmocka_unit_test(test_full_fetches_what_the_gpu_does_not_keep),
        cmocka_unit_test(test_the_slowest_stage_of_a_command_decides),
        cmocka_unit_test(test_what_is_not_asked_takes_no_time),
        cmocka_unit_test(test_a_step_is_compute_and_its_queries_one_after_another),
        cmocka_unit_test(test_a_policy_without_a_formula_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
