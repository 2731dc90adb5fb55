/*
 * Placements by hand: small examples whose every move can be followed on paper.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "placement/placement.h"

static struct placement *make(enum placement_kind kind, uint32_t sinks, uint32_t window)
{
    struct placement_settings s = placement_defaults();
    struct placement *p;
    struct hill_why why;
    s.max_tokens = 1000;
    s.sinks = sinks;
    s.window = window;
    assert_int_equal(placement_create(&p, kind, &s, &why), 0);
    return p;
}

static struct placement_moves step(struct placement *p, uint32_t n, const uint32_t *selected)
{
    struct placement_moves moves;
    assert_int_equal(placement_step(p, selected, n, NULL, 0, &moves), 0);
    return moves;
}
#define STEP(p, ...) step(p, sizeof((uint32_t[]){__VA_ARGS__}) / 4, (const uint32_t[]){__VA_ARGS__})

static void append(struct placement *p, uint32_t count, uint32_t capacity)
{
    struct placement_moves moves;
    assert_int_equal(placement_append(p, count, capacity, &moves), 0);
}

static void assert_hot(const struct placement *p, const char *pattern)
{
    char is[64] = {0};
    for (uint32_t i = 0; i < placement_tokens(p); i++)
        is[i] = placement_is_hot(p, i) ? 'H' : '.';
    assert_string_equal(is, pattern);
}

static void a_prompt_keeps_sinks_and_newest_hot(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < PLACEMENT_BELADY; kind++) {
        struct placement *p = make(kind, 2, 3);
        append(p, 12, 6);
        assert_hot(p, "HH......HHHH");
        assert_int_equal(placement_stats(p)->placed_cold, 6);
        assert_int_equal(placement_stats(p)->demoted, 0);
        placement_destroy(p);
        p = make(kind, 2, 3);
        append(p, 12, 0); /* not less than the forced ones */
        assert_hot(p, "HH.......HHH");
        append(p, 1, 0);
        assert_hot(p, "HH........HHH");
        assert_int_equal(placement_stats(p)->demoted, 1);
        placement_destroy(p);
    }
}

static void lru_worked_by_hand(void **state)
{
    (void)state;
    struct placement *p = make(PLACEMENT_LRU, 0, 1);
    append(p, 8, 4);
    assert_hot(p, "....HHHH"); /* 7 is forced; recency: 4 5 6 */
    struct placement_moves m = STEP(p, 4, 7);
    assert_int_equal(m.n_promoted + m.n_demoted, 0); /* now 5 6 4 */
    m = STEP(p, 0, 7);
    assert_int_equal(m.n_promoted, 1);
    assert_int_equal(m.promoted[0], 0);
    assert_int_equal(m.demoted[0], 5);
    assert_hot(p, "H...H.HH"); /* 6 4 0 */
    STEP(p, 1, 2, 6);          /* 6 is hit first, so 4 and 0 go down */
    assert_hot(p, ".HH...HH");
    STEP(p, 0, 1, 2, 6); /* all that is in play was selected: nothing may go down for 0 */
    assert_hot(p, ".HH...HH");
    assert_int_equal(placement_stats(p)->hits_hot, 1 + 0 + 1 + 3);
    assert_int_equal(placement_stats(p)->hits_cold, 0 + 1 + 2 + 1);
    assert_int_equal(placement_stats(p)->bounced, 0);
    STEP(p, 0); /* down at step 3, up at step 5 */
    assert_int_equal(placement_stats(p)->bounced, 1);
    /* 3 never went down; its first promotion is given up, so the next one is no bounce either */
    STEP(p, 3);
    assert_int_equal(placement_stats(p)->bounced, 1);
    assert_int_equal(placement_place(p, 3, false), 0);
    STEP(p, 3);
    assert_true(placement_is_hot(p, 3));
    assert_int_equal(placement_stats(p)->bounced, 1);
    placement_destroy(p);
}

static void lfu_worked_by_hand(void **state)
{
    (void)state;
    struct placement *p = make(PLACEMENT_LFU, 0, 1);
    append(p, 6, 3);
    assert_hot(p, "...HHH");
    STEP(p, 3, 4);
    STEP(p, 3);
    STEP(p, 0); /* 3 twice, 4 once: 4 goes down */
    assert_hot(p, "H..H.H");
    STEP(p, 0, 3); /* 0 twice, 3 three times */
    STEP(p, 4);    /* 4 twice: up for 0 */
    assert_hot(p, "...HHH");
    STEP(p, 1); /* 4 and 3 (twice, three times): 4 goes down */
    assert_hot(p, ".H.H.H");
    placement_destroy(p);
}

/* Six are lacked at each step and two come up: by lfu the two that were selected most often, by lru
 * each in its turn. */
static void a_rate_takes_the_best(void **state)
{
    (void)state;
    struct placement_moves m;
    struct placement *p = make(PLACEMENT_LFU, 0, 0);
    append(p, 20, 4);
    assert_int_equal(placement_watch(p, (uint32_t[]){4, 9}, 2), 0);
    assert_int_equal(placement_step(p, (uint32_t[]){1, 2, 4, 7, 9, 11}, 6, NULL, 2, &m), 0);
    assert_int_equal(m.n_promoted, 2);
    assert_int_equal(m.promoted[0], 4);
    assert_int_equal(m.promoted[1], 9);
    placement_destroy(p);
    p = make(PLACEMENT_LRU, 0, 0);
    append(p, 20, 2);
    bool came_up[20] = {false};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(placement_step(p, (uint32_t[]){1, 2, 4, 7, 9, 11}, 6, NULL, 2, &m), 0);
        for (uint32_t j = 0; j < m.n_promoted; j++)
            came_up[m.promoted[j]] = true;
        assert_int_equal(m.n_promoted, 2);
        assert_int_equal(placement_append(p, 2, 2, &m), 0); /* they go down, as what is older */
    }
    assert_true(came_up[11] && came_up[1]);
    placement_destroy(p);
}

static void score_follows_the_scores(void **state)
{
    (void)state;
    static const uint16_t scores[] = {1, 9, 3, 9, 0, 5, 2, 0};
    const uint32_t selected[] = {1};
    struct placement *p = make(PLACEMENT_SCORE, 0, 1);
    struct placement_moves m;
    append(p, 8, 4);
    assert_hot(p, "....HHHH");
    assert_int_equal(placement_step(p, selected, 1, NULL, 0, &m), HILL_E_INVALID);
    assert_int_equal(placement_step(p, selected, 1, scores, 0, &m), 0);
    assert_hot(p, ".H.H.H.H"); /* 9, 9, 5 and the window */
    assert_int_equal(m.n_promoted, 2);
    assert_int_equal(m.n_demoted, 2);
    append(p, 1, 4); /* 7 leaves the window with the lowest score */
    assert_hot(p, ".H.H.H..H");
    placement_destroy(p);
}

static void bkp_pins_the_newest(void **state)
{
    (void)state;
    struct placement_settings s = placement_defaults();
    struct placement *p;
    struct hill_why why;
    uint32_t old[40];
    s.max_tokens = 1000;
    s.sinks = 1;
    s.window = 1;
    s.pin = 0.2;
    assert_int_equal(placement_create(&p, PLACEMENT_BKP, &s, &why), 0);
    for (uint32_t i = 0; i < 40; i++)
        old[i] = 1 + i;
    append(p, 100, 32); /* 69 .. 99 hot; pinned: 0, and of a fifth a sixteenth of 32: 98, 99 */
    assert_false(placement_is_hot(p, 68));
    for (unsigned i = 0; i < 20; i++)
        step(p, 40, old);
    assert_true(placement_is_hot(p, 0) && placement_is_hot(p, 98) && placement_is_hot(p, 99));
    assert_int_equal(placement_stats(p)->promoted, 29); /* for 69 .. 97 */
    assert_int_equal(placement_hot_tokens(p), 32);
    placement_destroy(p);
}

/* what was selected long ago loses to what is selected now */
static void bkp_forgets_an_old_favourite(void **state)
{
    (void)state;
    struct placement *p = make(PLACEMENT_BKP, 0, 1);
    append(p, 10, 3); /* 7 8 9 hot; the pin is a sixteenth of 3: none; 9 is forced */
    for (unsigned i = 0; i < 200; i++)
        STEP(p, 7, 8);
    assert_hot(p, ".......HHH");
    unsigned steps = 0;
    while (!placement_is_hot(p, 1) && steps < 100) {
        STEP(p, 1, 7);
        steps++;
    }
    assert_in_range(steps, 2, 20); /* not at once, and not after 200 steps */
    assert_hot(p, ".H.....H.H");
    placement_destroy(p);
}

/* one selection each in turn: the counts never differ by enough to pay for a move */
static void bkp_does_not_chase_a_cycle(void **state)
{
    (void)state;
    struct placement_settings s = placement_defaults();
    struct placement *p, *lru = make(PLACEMENT_LRU, 0, 1);
    struct hill_why why;
    s.max_tokens = 1000;
    s.window = s.sinks = 1;
    s.half_life = 32;
    s.margin = 2;
    assert_int_equal(placement_create(&p, PLACEMENT_BKP, &s, &why), 0);
    append(p, 40, 10);
    append(lru, 40, 10);
    for (uint32_t i = 0; i < 400; i++) {
        STEP(p, 1 + i % 38);
        STEP(lru, 1 + i % 38);
    }
    assert_int_equal(placement_stats(p)->promoted, 0);
    assert_in_range(placement_stats(lru)->promoted, 300, 400);
    placement_destroy(p);
    placement_destroy(lru);
}

/* 5 is chosen at every step; what goes down for it is the oldest that is pinned by nothing, but 3
 * of ten may be among the highest. */
static void paper_promotes_what_breaches_the_top(void **state)
{
    (void)state;
    struct placement_settings s = placement_defaults();
    struct placement *p;
    struct hill_why why;
    s.max_tokens = 1000;
    s.sinks = s.window = 0;
    s.alpha = 0.3;
    s.pin = 0.2;
    assert_int_equal(placement_create(&p, PLACEMENT_PAPER, &s, &why), 0);
    append(p, 10, 5);
    assert_hot(p, ".....HHHHH");
    assert_int_equal(STEP(p, 0, 1, 2, 3).n_promoted, 0); /* four have this count */
    struct placement_moves m = STEP(p, 2, 8);
    assert_int_equal(m.n_promoted, 1);
    assert_int_equal(m.promoted[0], 2);
    assert_int_equal(m.demoted[0], 5);
    assert_hot(p, "..H.."
                  ".HHHH");
    assert_int_equal(STEP(p, 8, 9).n_promoted, 0);
    placement_destroy(p);
}

static struct placement *make_paper(uint32_t sinks, uint32_t window)
{
    struct placement_settings s = placement_defaults();
    struct placement *p;
    s.max_tokens = 1000;
    s.sinks = sinks;
    s.window = window;
    s.alpha = 1;
    s.pin = 0.4;
    assert_int_equal(placement_create(&p, PLACEMENT_PAPER, &s, NULL), 0);
    return p;
}

/* Half of the capacity is pinned; when that grows, so does the pin, over tokens that were in play.
 */
static void paper_pins_what_a_grown_capacity_holds(void **state)
{
    (void)state;
    struct placement *p = make_paper(0, 0);
    append(p, 10, 5);
    assert_int_equal(STEP(p, 0).demoted[0], 5); /* 8 and 9 are pinned */
    append(p, 0, 6);
    STEP(p, 1);
    assert_hot(p, "HH...."
                  "HHHH");
    assert_int_equal(STEP(p, 2).demoted[0], 6);
    assert_int_equal(STEP(p, 3).n_promoted, 0); /* 7 is pinned now, and never was chosen */
    placement_destroy(p);
}

static void paper_pins_no_more_than_fits_beside_the_sinks(void **state)
{
    (void)state;
    struct placement *p = make_paper(8, 1);
    append(p, 20, 10);
    append(p, 1, 10);
    assert_int_equal(placement_hot_tokens(p), 10);
    placement_destroy(p);
}

static void recency_brings_nothing_up(void **state)
{
    (void)state;
    struct placement *p = make(PLACEMENT_RECENCY, 1, 1);
    struct placement_moves m;
    append(p, 10, 5);
    assert_hot(p, "H.....HHHH");
    assert_int_equal(STEP(p, 2, 3, 4).n_promoted, 0);
    assert_int_equal(placement_append(p, 2, 5, &m), 0);
    assert_int_equal(m.n_demoted, 2);
    assert_hot(p, "H.......HHHH");
    placement_destroy(p);
}

/* Of two that are never chosen the one with a copy goes down, though it is newer; for one without a
 * token must save more. */
static void bkp_spares_a_write(void **state)
{
    (void)state;
    uint32_t copies[1000];
    struct placement_settings s = placement_defaults();
    struct placement *p;
    struct hill_why why;
    s.max_tokens = 1000;
    s.sinks = s.window = 0;
    s.pin = s.margin = 0;
    s.rest_steps = 0;
    s.write_cost = 2.5;
    s.copies = copies;
    memset(copies, 0xff, sizeof copies);
    assert_int_equal(placement_create(&p, PLACEMENT_BKP, &s, &why), 0);
    append(p, 10, 5);
    assert_int_equal(STEP(p, 0).n_promoted, 0);
    assert_int_equal(STEP(p, 0).n_promoted, 0); /* two misses are less than a write */
    copies[8] = 77;
    copies[9] = PLACEMENT_LOST;
    for (int i = 0; i < 20; i++) /* until the queue is filled again */
        STEP(p, 5, 6, 7, 9);
    struct placement_moves m = STEP(p, 0);
    assert_int_equal(m.n_promoted, 1);
    assert_int_equal(m.demoted[0], 8);
    placement_set_write_cost(p, 1e9);
    assert_int_equal(STEP(p, 1).n_promoted, 0);
    placement_destroy(p);
}

static void a_rate_limits_promotions(void **state)
{
    (void)state;
    static uint32_t all[90];
    struct placement_moves m;
    for (uint32_t i = 0; i < 90; i++)
        all[i] = i;
    for (unsigned kind = PLACEMENT_BKP; kind < PLACEMENT_LIVE_COUNT; kind++) {
        if (kind == PLACEMENT_PAPER)
            continue; /* a count that most tokens have is not among the highest */
        struct placement *p = make(kind, 0, 0);
        append(p, 100, 10);
        append(p, 0, 60); /* free room: nobody needs to go down */
        assert_int_equal(placement_step(p, all, 90, NULL, 7, &m), 0);
        assert_int_equal(m.n_promoted, 7);
        assert_int_equal(m.n_demoted, 0);
        placement_destroy(p);
    }
}

static void a_shrunken_capacity_demotes(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < PLACEMENT_BELADY; kind++) {
        struct placement *p = make(kind, 1, 1);
        struct placement_moves m;
        append(p, 20, 20);
        assert_int_equal(placement_append(p, 0, 5, &m), 0);
        assert_int_equal(m.n_demoted, 15);
        assert_int_equal(placement_hot_tokens(p), 5);
        assert_true(placement_is_hot(p, 0) && placement_is_hot(p, 19));
        placement_destroy(p);
    }
}

static void watching_moves_nothing(void **state)
{
    (void)state;
    const uint32_t selected[] = {1, 2};
    struct placement *p = make(PLACEMENT_LRU, 0, 0);
    append(p, 10, 4);
    assert_int_equal(placement_watch(p, selected, 2), 0);
    assert_hot(p, "......HHHH");
    assert_int_equal(placement_stats(p)->hits_cold, 2);
    placement_destroy(p);
}

static void trim_and_place(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < PLACEMENT_BELADY; kind++) {
        struct placement *p = make(kind, 1, 2);
        append(p, 10, 6);
        assert_hot(p, "H....HHHHH");
        assert_int_equal(placement_place(p, 3, true), 0);
        assert_int_equal(placement_place(p, 6, false), 0);
        assert_int_equal(placement_place(p, 10, false), HILL_E_INVALID);
        assert_hot(p, "H..H.H.HHH");
        assert_int_equal(placement_trim(p, 8), 0);
        assert_hot(p, "H..H.H.H");
        assert_int_equal(placement_hot_tokens(p), 4);
        append(p, 3, 6);
        assert_int_equal(placement_hot_tokens(p), 6);
        assert_int_equal(placement_trim(p, 12), HILL_E_INVALID);
        assert_int_equal(placement_trim(p, 0), 0);
        assert_int_equal(placement_hot_tokens(p), 0);
        append(p, 4, 2);
        assert_hot(p, "H.HH"); /* the forced ones */
        placement_destroy(p);
    }
}

static void wrong_use_is_refused(void **state)
{
    (void)state;
    const uint32_t descending[] = {2, 1}, beyond[] = {10};
    struct placement_settings s = placement_defaults();
    struct placement *p;
    struct placement_moves m;
    struct hill_why why;
    assert_int_equal(placement_create(&p, PLACEMENT_BKP, &s, &why), HILL_E_INVALID); /* no tokens */
    s.max_tokens = 10;
    assert_int_equal(placement_create(&p, PLACEMENT_BELADY, &s, &why), HILL_E_INVALID);
    s.alpha = 0;
    assert_int_equal(placement_create(&p, PLACEMENT_BKP, &s, &why), HILL_E_INVALID);
    s.alpha = 0.1;
    assert_int_equal(placement_create(&p, PLACEMENT_BKP, &s, &why), 0);
    assert_int_equal(placement_append(p, 11, 5, &m), HILL_E_INVALID);
    assert_int_equal(placement_append(p, 10, 5, &m), 0);
    assert_int_equal(placement_append(p, 1, 5, &m), HILL_E_INVALID);
    assert_int_equal(placement_step(p, descending, 2, NULL, 0, &m), HILL_E_INVALID);
    assert_int_equal(placement_step(p, beyond, 1, NULL, 0, &m), HILL_E_INVALID);
    assert_int_equal(placement_stats(p)->steps, 0);
    placement_destroy(p);
    placement_destroy(NULL);
}

static void names_and_numbers_agree(void **state)
{
    (void)state;
    enum placement_kind kind;
    for (unsigned i = 0; i < PLACEMENT_COUNT; i++) {
        assert_int_equal(placement_parse(placement_name(i), &kind), 0);
        assert_int_equal(kind, i);
    }
    assert_int_equal(placement_parse("fifo", &kind), HILL_E_INVALID);
    assert_null(placement_name(PLACEMENT_COUNT));
}

/* the hit-rate table itself is 2 bytes a token; tiers, moves and queue are little more */
static void bkp_tables_are_small(void **state)
{
    (void)state;
    struct placement_settings s = placement_defaults();
    s.max_tokens = 131072;
    assert_true(placement_bytes(PLACEMENT_BKP, &s) <= 131072u * 8u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_keeps_sinks_and_newest_hot),
        cmocka_unit_test(lru_worked_by_hand),
        cmocka_unit_test(lfu_worked_by_hand),
        cmocka_unit_test(a_rate_takes_the_best),
        cmocka_unit_test(score_follows_the_scores),
        cmocka_unit_test(bkp_pins_the_newest),
        cmocka_unit_test(bkp_forgets_an_old_favourite),
        cmocka_unit_test(bkp_does_not_chase_a_cycle),
        cmocka_unit_test(paper_promotes_what_breaches_the_top),
        cmocka_unit_test(paper_pins_what_a_grown_capacity_holds),
        cmocka_unit_test(paper_pins_no_more_than_fits_beside_the_sinks),
        cmocka_unit_test(recency_brings_nothing_up),
        cmocka_unit_test(bkp_spares_a_write),
        cmocka_unit_test(a_rate_limits_promotions),
        cmocka_unit_test(a_shrunken_capacity_demotes),
        cmocka_unit_test(watching_moves_nothing),
        cmocka_unit_test(trim_and_place),
        cmocka_unit_test(wrong_use_is_refused),
        cmocka_unit_test(names_and_numbers_agree),
        cmocka_unit_test(bkp_tables_are_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
