/* tests/cpu_scorer/test_hot_share.c - the placement rule and admission, against numbers worked by
 * hand. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "cpu_scorer/hot_share.h"

static void test_a_quarter_beta_keeps_a_fifth_hot(void **unused)
{
    (void)unused;
    struct hot_share p = {.beta = 0.25, .sinks = 4, .window = 32, .limit = 100000};
    assert_int_equal(hot_share_target(&p, 1000), 200);
    assert_int_equal(hot_share_target(&p, 1001), 201); /* ceil(200.2) */
    assert_int_equal(hot_share_target(&p, 100), 36);   /* sinks + window */
    assert_int_equal(hot_share_target(&p, 20), 20);
    p.limit = 150;
    assert_int_equal(hot_share_target(&p, 1000), 150); /* M_0 wins */
    p.beta = 0;
    assert_int_equal(hot_share_target(&p, 1000), 150);
    assert_int_equal(hot_share_target(&p, 140), 140);
}

static void test_sinks_and_the_newest_are_hot(void **unused)
{
    (void)unused;
    struct hot_share p = {.beta = 0.25, .sinks = 4, .window = 32, .limit = 100000};
    uint32_t from, to;
    hot_share_cold_range(&p, 1000, &from, &to);
    assert_int_equal(from, 4);
    assert_int_equal(to, 804); /* 200 hot: 4 sinks and the newest 196 */
    p.beta = 0;
    hot_share_cold_range(&p, 1000, &from, &to);
    assert_int_equal(from, to);
}

/* What is cold never has to come back: a longer sequence has at most one more hot token. */
static void test_the_target_grows_by_at_most_one(void **unused)
{
    (void)unused;
    static const double betas[] = {0, 0.01, 0.25, 1, 4, 100};
    for (uint32_t b = 0; b < 6; b++) {
        struct hot_share p = {.beta = betas[b], .sinks = 4, .window = 32, .limit = 700};
        for (uint32_t n = 0; n < 3000; n++) {
            uint32_t now = hot_share_target(&p, n), next = hot_share_target(&p, n + 1);
            assert_true(next == now || next == now + 1);
        }
    }
}

static void test_without_a_csd_everything_must_fit(void **unused)
{
    (void)unused;
    struct hot_share p = {.beta = 0.25, .sinks = 4, .window = 32};
    struct hot_share_room room = {
        .n_layers = 2, .n_sequences = 1, .hot_blocks = 10, .unreserved = 10};
    uint32_t blocks, stripes[LAYOUT_DRIVES_MAX];
    assert_int_equal(hot_share_plan(&p, &room, 320, &blocks, stripes, NULL), 0);
    assert_int_equal(blocks, 5);
    assert_int_equal(stripes[0], 0);
    assert_int_equal(hot_share_target(&p, 320), 320);
    assert_int_equal(hot_share_plan(&p, &room, 321, &blocks, stripes, NULL), HILL_E_TOO_LONG);
}

static struct hot_share_room two_tiers(uint32_t n_sequences, uint32_t blocks, uint32_t stripes)
{
    return (struct hot_share_room){.n_layers = 2,
                                   .n_sequences = n_sequences,
                                   .hot_blocks = blocks,
                                   .unreserved = blocks,
                                   .drives = {{stripes, stripes, 1}},
                                   .n_drives = 1,
                                   .stripe_slots = 256,
                                   .cold_pool = true};
}

static void test_the_cold_pool_takes_what_is_beyond(void **unused)
{
    (void)unused;
    struct hot_share p = {.beta = 0, .sinks = 4, .window = 32};
    struct hot_share_room room = two_tiers(1, 10, 8);
    uint32_t blocks, stripes[LAYOUT_DRIVES_MAX];
    /* five blocks each: four to fill (256 tokens), one to move through */
    assert_int_equal(hot_share_plan(&p, &room, 1000, &blocks, stripes, NULL), 0);
    assert_int_equal(blocks, 5);
    assert_int_equal(p.limit, 256);
    assert_int_equal(stripes[0], 3); /* 744 tokens */
    assert_int_equal(hot_share_plan(&p, &room, 256 + 1024 + 1, &blocks, stripes, NULL),
                     HILL_E_TOO_LONG);
    room = two_tiers(1, 2, 8); /* one block each: sinks and window need two */
    assert_int_equal(hot_share_plan(&p, &room, 1000, &blocks, stripes, NULL), HILL_E_TOO_LONG);
}

static void test_copies_where_there_is_room_for_them(void **unused)
{
    (void)unused;
    struct hot_share p = {.beta = 0.25, .sinks = 4, .window = 32};
    struct hot_share_room room = two_tiers(1, 40, 8);
    uint32_t blocks, stripes[LAYOUT_DRIVES_MAX];
    room.wants_copies = true;
    assert_int_equal(hot_share_plan(&p, &room, 1000, &blocks, stripes, NULL), 0);
    assert_true(p.copies);
    assert_int_equal(stripes[0], 4); /* 1000 */
    assert_int_equal(hot_share_plan(&p, &room, 1200, &blocks, stripes, NULL), 0);
    assert_false(p.copies);
    assert_int_equal(stripes[0], 4); /* 960 */
    room.wants_copies = false;
    assert_int_equal(hot_share_plan(&p, &room, 1000, &blocks, stripes, NULL), 0);
    assert_false(p.copies);
}

/* Whatever a sequence within its share reserves, all others get theirs. */
static void test_shares_do_not_depend_on_the_others(void **unused)
{
    (void)unused;
    static const uint32_t lengths[4] = {1000, 64, 1500, 700};
    for (int copies = 0; copies < 2; copies++) {
        struct hot_share_room room = two_tiers(4, 4 * 2 * 6, 4 * 2 * 6);
        room.wants_copies = copies;
        for (uint32_t i = 0; i < 4; i++) {
            struct hot_share p = {.beta = 0.25, .sinks = 4, .window = 32}, alone = p;
            struct hot_share_room empty = two_tiers(4, 4 * 2 * 6, 4 * 2 * 6);
            uint32_t blocks, stripes[LAYOUT_DRIVES_MAX], blocks_alone,
                stripes_alone[LAYOUT_DRIVES_MAX];
            empty.wants_copies = copies;
            assert_int_equal(hot_share_plan(&p, &room, lengths[i], &blocks, stripes, NULL), 0);
            assert_int_equal(
                hot_share_plan(&alone, &empty, lengths[i], &blocks_alone, stripes_alone, NULL), 0);
            assert_int_equal(blocks, blocks_alone);
            assert_int_equal(stripes[0], stripes_alone[0]);
            assert_int_equal(p.limit, alone.limit);
            assert_true(blocks <= 6 && stripes[0] <= 6);
            room.unreserved -= 2 * blocks;
            room.drives[0].free_stripes -= 2 * stripes[0];
        }
    }
}

static void test_beyond_its_share_a_sequence_takes_what_is_free_or_waits(void **unused)
{
    (void)unused;
    struct hot_share p = {.beta = 0.25, .sinks = 4, .window = 32};
    struct hot_share_room room = {
        .n_layers = 2, .n_sequences = 4, .hot_blocks = 40, .unreserved = 40};
    uint32_t blocks, stripes[LAYOUT_DRIVES_MAX];
    /* without a cold pool: a share is five blocks a layer, 320 tokens */
    assert_int_equal(hot_share_plan(&p, &room, 1280, &blocks, stripes, NULL), 0);
    assert_int_equal(blocks, 20);
    assert_int_equal(hot_share_plan(&p, &room, 1281, &blocks, stripes, NULL), HILL_E_TOO_LONG);
    room.unreserved = 38;
    assert_int_equal(hot_share_plan(&p, &room, 1280, &blocks, stripes, NULL), HILL_E_BUSY);
    room.unreserved = 10;
    assert_int_equal(hot_share_plan(&p, &room, 320, &blocks, stripes, NULL), 0);
    assert_int_equal(hot_share_plan(&p, &room, 321, &blocks, stripes, NULL), HILL_E_BUSY);
    /* with one: a share is three blocks and one stripe a layer */
    room = two_tiers(2, 12, 4);
    p = (struct hot_share){.beta = 0.25, .sinks = 4, .window = 32};
    assert_int_equal(hot_share_plan(&p, &room, 320, &blocks, stripes, NULL), 0);
    assert_int_equal(stripes[0], 1);
    assert_int_equal(hot_share_plan(&p, &room, 640, &blocks, stripes, NULL), 0);
    assert_int_equal(stripes[0], 2); /* the other's too */
    room.drives[0].free_stripes = 2;
    assert_int_equal(hot_share_plan(&p, &room, 640, &blocks, stripes, NULL), HILL_E_BUSY);
    room.drives[0].free_stripes = 4;
    room.unreserved = 2; /* sinks and window need two blocks a layer */
    assert_int_equal(hot_share_plan(&p, &room, 320, &blocks, stripes, NULL), HILL_E_BUSY);
    room.unreserved = 4;
    assert_int_equal(hot_share_plan(&p, &room, 320, &blocks, stripes, NULL), 0);
    assert_int_equal(blocks, 2);
}

/* One sequence, two layers: 40 blocks of a layer, four of which hold the digests of 19. */
static struct hot_share_room lending(void)
{
    struct hot_share_room room = two_tiers(1, 80, 400);
    room.lent_blocks = 4;
    room.lent_frames = 19;
    return room;
}

static void test_digests_take_the_place_of_entries_beyond_m_0(void **unused)
{
    (void)unused;
    /* of 100 blocks of tokens 23 are hot (and one is spare), so that the host scores 0.974 of all:
     * the digests of 75 blocks, and of one that is not full, fit in the other 16 of 40 */
    struct hot_share p = {.beta = 9, .scores = 1, .sinks = 4, .window = 32};
    struct hot_share_room room = lending();
    uint32_t blocks, stripes[LAYOUT_DRIVES_MAX];
    assert_int_equal(hot_share_plan(&p, &room, 6400, &blocks, stripes, NULL), 0);
    assert_int_equal(blocks, 24);
    assert_int_equal(p.lent, 16);
    assert_int_equal(p.all, 40);
    assert_int_equal(p.limit, 23 * 64);
    assert_int_equal(hot_share_target(&p, 6400), 23 * 64);
    /* a host that is through with all tokens long before the drive scores all: 22 hot blocks, and
     * the digests of the other 78 and of one that is not full */
    p.scores = 2;
    assert_int_equal(hot_share_plan(&p, &room, 6400, &blocks, stripes, NULL), 0);
    assert_int_equal(blocks, 23);
    assert_int_equal(p.lent, 17);
    p.scores = 1;
    /* all that M_0 has for 1000 blocks is too little, even with the fewest entries */
    assert_int_equal(hot_share_plan(&p, &room, 20000, &blocks, stripes, NULL), 0);
    assert_int_equal(blocks, 2);
    assert_int_equal(p.lent, 38);
}

static void test_nothing_is_lent_where_entries_fit_or_digests_do_not_pay(void **unused)
{
    (void)unused;
    struct hot_share p = {.beta = 9, .scores = 1, .sinks = 4, .window = 32};
    struct hot_share_room room = lending();
    uint32_t blocks, stripes[LAYOUT_DRIVES_MAX];
    assert_int_equal(hot_share_plan(&p, &room, 39 * 64, &blocks, stripes, NULL), 0);
    assert_true(p.lent == 0 && blocks > 35);
    p = (struct hot_share){.beta = 0.25, .scores = 1, .sinks = 4, .window = 32};
    assert_int_equal(hot_share_plan(&p, &room, 6400, &blocks, stripes, NULL), 0);
    assert_true(p.lent == 0 && blocks == 21); /* a fifth */
    p = (struct hot_share){.beta = 9, .sinks = 4, .window = 32};
    assert_int_equal(hot_share_plan(&p, &room, 6400, &blocks, stripes, NULL), 0);
    assert_true(p.lent == 0 && blocks == 40);
    p = (struct hot_share){.beta = 9, .scores = 1, .sinks = 4, .window = 32};
    room.lent_frames = 0;
    assert_int_equal(hot_share_plan(&p, &room, 6400, &blocks, stripes, NULL), 0);
    assert_true(p.lent == 0 && blocks == 40);
}

/* As Eq. 2 with three parts has it: the times of both sides, worked out from what was planned. */
static void test_the_host_scores_what_balances_both_sides(void **unused)
{
    (void)unused;
    const double f_c = 2, f_s = 3, B_c = 20, B_s = 6, alpha = 0.5;
    struct hot_share p = {.beta = (1 / f_s + alpha / B_s) / (1 / f_c + alpha / B_c),
                          .scores = (1 / f_s + alpha / B_s) / (1 / f_c + 1 / f_s),
                          .sinks = 4,
                          .window = 32};
    struct hot_share_room room = lending();
    uint32_t blocks, stripes[LAYOUT_DRIVES_MAX], tokens = 64000;
    room.hot_blocks = room.unreserved = 800;
    room.drives[0].stripes = room.drives[0].free_stripes = 1000;
    assert_int_equal(hot_share_plan(&p, &room, tokens, &blocks, stripes, NULL), 0);
    double hot = (double)p.limit / tokens;
    double scored = hot + (p.lent * 19 / 4 - 1) * 64.0 / tokens;
    double cpu = scored / f_c + alpha * hot / B_c;
    double drive = (1 - scored) / f_s + alpha * (1 - hot) / B_s;
    assert_true(p.lent > 0 && fabs(cpu - drive) < 0.02 * drive); /* whole blocks */
}

static void test_a_sequence_lends_no_more_than_is_left(void **unused)
{
    (void)unused;
    struct hot_share p = {.lent = 16, .all = 40};
    assert_int_equal(hot_share_lent(&p, 24), 16);
    assert_int_equal(hot_share_lent(&p, 20), 16);
    assert_int_equal(hot_share_lent(&p, 30), 10);
    assert_int_equal(hot_share_lent(&p, 41), 0);
}

static void test_stripes_follow_the_drives_shares(void **unused)
{
    (void)unused;
    struct hot_share p = {.beta = 0.25, .sinks = 4, .window = 32};
    struct hot_share_room room = two_tiers(1, 100, 8);
    uint32_t blocks, stripes[LAYOUT_DRIVES_MAX], most[LAYOUT_DRIVES_MAX] = {9, 9, 9};
    room.n_drives = 3;
    room.drives[0].share = 0.25;
    room.drives[2].share = 0.75;
    assert_true(hot_share_stripes(&room, most, 2048, stripes));
    assert_int_equal(stripes[0], 2);
    assert_int_equal(stripes[1], 0);
    assert_int_equal(stripes[2], 6);
    most[2] = 4; /* what it has no room for goes to the other */
    assert_true(hot_share_stripes(&room, most, 2048, stripes));
    assert_int_equal(stripes[0], 4);
    most[0] = most[1] = 1; /* as a last resort to one that should have nothing */
    assert_true(hot_share_stripes(&room, most, 1536, stripes));
    assert_int_equal(stripes[1], 1);
    assert_false(hot_share_stripes(&room, most, 1537, stripes));
    room.drives[2].stripes = room.drives[2].free_stripes = 4;
    assert_int_equal(hot_share_plan(&p, &room, 1280, &blocks, stripes, NULL),
                     0);             /* 1024 are cold */
    assert_int_equal(stripes[0], 2); /* two of a layer are what the other has */
    assert_int_equal(stripes[2], 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digests_take_the_place_of_entries_beyond_m_0),
        cmocka_unit_test(test_nothing_is_lent_where_entries_fit_or_digests_do_not_pay),
        cmocka_unit_test(test_the_host_scores_what_balances_both_sides),
        cmocka_unit_test(test_a_sequence_lends_no_more_than_is_left),
        cmocka_unit_test(test_stripes_follow_the_drives_shares),
        cmocka_unit_test(test_a_quarter_beta_keeps_a_fifth_hot),
        cmocka_unit_test(test_sinks_and_the_newest_are_hot),
        cmocka_unit_test(test_the_target_grows_by_at_most_one),
        cmocka_unit_test(test_without_a_csd_everything_must_fit),
        cmocka_unit_test(test_the_cold_pool_takes_what_is_beyond),
        cmocka_unit_test(test_copies_where_there_is_room_for_them),
        cmocka_unit_test(test_shares_do_not_depend_on_the_others),
        cmocka_unit_test(test_beyond_its_share_a_sequence_takes_what_is_free_or_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
