/* tests/cpu_scorer/test_placement.c - the placement rule and admission, against numbers worked by
 * hand. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "cpu_scorer/placement.h"

static void test_a_quarter_beta_keeps_a_fifth_hot(void **unused)
{
    (void)unused;
    struct placement p = {.beta = 0.25, .sinks = 4, .window = 32, .limit = 100000};
    assert_int_equal(placement_hot_target(&p, 1000), 200);
    assert_int_equal(placement_hot_target(&p, 1001), 201); /* ceil(200.2) */
    assert_int_equal(placement_hot_target(&p, 100), 36);   /* sinks + window */
    assert_int_equal(placement_hot_target(&p, 20), 20);
    p.limit = 150;
    assert_int_equal(placement_hot_target(&p, 1000), 150); /* M_0 wins */
    p.beta = 0;
    assert_int_equal(placement_hot_target(&p, 1000), 150);
    assert_int_equal(placement_hot_target(&p, 140), 140);
}

static void test_sinks_and_the_newest_are_hot(void **unused)
{
    (void)unused;
    struct placement p = {.beta = 0.25, .sinks = 4, .window = 32, .limit = 100000};
    uint32_t from, to;
    placement_cold_range(&p, 1000, &from, &to);
    assert_int_equal(from, 4);
    assert_int_equal(to, 804); /* 200 hot: 4 sinks and the newest 196 */
    p.beta = 0;
    placement_cold_range(&p, 1000, &from, &to);
    assert_int_equal(from, to);
}

/* What is cold never has to come back: a longer sequence has at most one more hot token. */
static void test_the_target_grows_by_at_most_one(void **unused)
{
    (void)unused;
    static const double betas[] = {0, 0.01, 0.25, 1, 4, 100};
    for (uint32_t b = 0; b < 6; b++) {
        struct placement p = {.beta = betas[b], .sinks = 4, .window = 32, .limit = 700};
        for (uint32_t n = 0; n < 3000; n++) {
            uint32_t now = placement_hot_target(&p, n), next = placement_hot_target(&p, n + 1);
            assert_true(next == now || next == now + 1);
        }
    }
}

static void test_without_a_csd_everything_must_fit(void **unused)
{
    (void)unused;
    struct placement p = {.beta = 0.25, .sinks = 4, .window = 32};
    struct placement_room room = {
        .n_layers = 2, .n_sequences = 1, .hot_blocks = 10, .unreserved = 10};
    uint32_t blocks, stripes;
    assert_int_equal(placement_plan(&p, &room, 320, &blocks, &stripes, NULL), 0);
    assert_int_equal(blocks, 5);
    assert_int_equal(stripes, 0);
    assert_int_equal(placement_hot_target(&p, 320), 320);
    assert_int_equal(placement_plan(&p, &room, 321, &blocks, &stripes, NULL), HILL_E_TOO_LONG);
}

static void test_the_cold_pool_takes_what_is_beyond(void **unused)
{
    (void)unused;
    struct placement p = {.beta = 0, .sinks = 4, .window = 32};
    struct placement_room room = {.n_layers = 2,
                                  .n_sequences = 1,
                                  .hot_blocks = 10,
                                  .unreserved = 10,
                                  .free_stripes = 8,
                                  .stripe_slots = 256,
                                  .cold_pool = true};
    uint32_t blocks, stripes;
    /* five blocks each: four to fill (256 tokens), one to move through */
    assert_int_equal(placement_plan(&p, &room, 1000, &blocks, &stripes, NULL), 0);
    assert_int_equal(blocks, 5);
    assert_int_equal(p.limit, 256);
    assert_int_equal(stripes, 3); /* 744 tokens */
    assert_int_equal(placement_plan(&p, &room, 256 + 1024 + 1, &blocks, &stripes, NULL),
                     HILL_E_TOO_LONG);
    room.unreserved = 2; /* one block each: sinks and window need two */
    assert_int_equal(placement_plan(&p, &room, 1000, &blocks, &stripes, NULL), HILL_E_TOO_LONG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_quarter_beta_keeps_a_fifth_hot),
        cmocka_unit_test(test_sinks_and_the_newest_are_hot),
        cmocka_unit_test(test_the_target_grows_by_at_most_one),
        cmocka_unit_test(test_without_a_csd_everything_must_fit),
        cmocka_unit_test(test_the_cold_pool_takes_what_is_beyond),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
