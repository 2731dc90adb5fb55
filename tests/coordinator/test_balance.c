/*
 * Tests of coordinator/balance.[ch] against numbers worked by hand.
 *
 * Rates A: f_c = 8, f_s = 4, B_c = 16, B_s = 2, alpha = 1/4 (bytes per second; powers of two, so
 * that doubles are exact).
 *     CPU path, seconds per byte:  1/8 + (1/4)/16 = 8/64 + 1/64 = 9/64
 *     CSD path, seconds per byte:  1/4 + (1/4)/2  = 2/8  + 1/8  = 3/8 = 24/64
 *     beta = (24/64) / (9/64) = 8/3
 *     Eq. 4: B_c f_c (B_s + alpha f_s) / (B_s f_s (B_c + alpha f_c))
 *          = 16*8*(2+1) / (2*4*(16+2)) = 384/144 = 8/3
 * Rates B, the SmartSSD of the paper's hardware (GB/s): f_c = 20, f_s = 3.2, B_c = 25, B_s = 3,
 * alpha = 0.2.
 *     Eq. 4: 25*20*(3 + 0.64) / (3*3.2*(25 + 4)) = 500*3.64 / (9.6*29) = 1820/278.4 = 6.537356...
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "coordinator/balance.h"

static const struct balance_rates A = {.f_c = 8, .f_s = 4, .B_c = 16, .B_s = 2};
static const struct balance_rates B = {.f_c = 20e9, .f_s = 3.2e9, .B_c = 25e9, .B_s = 3e9};
static const double alpha_A = 0.25, alpha_B = 0.2;

/* With the same share of both sides. */
static int beta_of(double *beta, const struct balance_rates *rates, double alpha,
                   struct hill_why *why)
{
    return balance_beta(beta, rates, alpha, alpha, why);
}

static void assert_close(double value, double expected)
{
    if (!(fabs(value - expected) <= 1e-12 * fabs(expected)))
        fail_msg("%.17g is not %.17g", value, expected);
}

static void test_beta_of_eq_4(void **state)
{
    (void)state;
    double beta;
    assert_int_equal(beta_of(&beta, &A, alpha_A, NULL), 0);
    assert_close(beta, 8.0 / 3.0);
    assert_int_equal(beta_of(&beta, &B, alpha_B, NULL), 0);
    assert_close(beta, 1820.0 / 278.4);
}

/* Rates A's drive beside one of twice its speed, one that is not known, and one that scores as fast
 * as A's and sends nothing in no time: speeds 1 / (3/8), 2 / (3/8) and 1 / (1/4), together 12 = 4.5
 * of A's. */
static void test_several_drives_are_one_of_their_speeds_sum(void **state)
{
    (void)state;
    const struct balance_drive drives[] = {{4, 2}, {8, 4}, {0, 0}, {4, 1e300}};
    struct balance_rates rates = A;
    double speeds[4], beta;
    assert_int_equal(balance_drives(&rates, speeds, drives, 4, alpha_A, NULL), 0);
    assert_close(speeds[0], 8.0 / 3);
    assert_close(speeds[1], 16.0 / 3);
    assert_true(speeds[2] == 0);
    assert_close(speeds[3], 4);
    assert_int_equal(beta_of(&beta, &rates, alpha_A, NULL), 0);
    assert_close(beta, 1.0 / 12 / (9.0 / 64));
    assert_int_equal(balance_drives(&rates, speeds, drives, 1, alpha_A, NULL), 0);
    assert_close(rates.f_s, 4); /* one drive is itself */
    assert_close(rates.B_s, 2);
    assert_int_equal(balance_drives(&rates, speeds, drives + 2, 1, alpha_A, NULL), HILL_E_INVALID);
}

/* Eq. 2 of M_c = beta GB and M_s = 1 GB. */
static void test_beta_makes_both_paths_take_equally_long(void **state)
{
    (void)state;
    double beta;
    assert_int_equal(beta_of(&beta, &B, alpha_B, NULL), 0);
    assert_close(beta * 1e9 / B.f_c + alpha_B * beta * 1e9 / B.B_c,
                 1e9 / B.f_s + alpha_B * 1e9 / B.B_s);
}

/* Eq. 2 without a hot entry: the CPU scores the share s of 1 GB, the drive the others, and all that
 * is selected comes from the drive. */
static void test_what_the_host_scores_by_digests_balances_both_sides(void **state)
{
    (void)state;
    double s;
    const struct balance_rates slow_host = {.f_c = 1e9, .f_s = 3.2e9, .B_c = 25e9, .B_s = 3e9};
    assert_int_equal(balance_host_scores(&s, &slow_host, alpha_B, NULL), 0);
    assert_true(s > 0.2 && s < 0.4);
    assert_close(s * 1e9 / slow_host.f_c,
                 (1 - s) * 1e9 / slow_host.f_s + alpha_B * 1e9 / slow_host.B_s);
    /* a host that scores everything before the drive has fetched */
    assert_int_equal(balance_host_scores(&s, &B, 0.9, NULL), 0);
    assert_close(s * 1e9 / B.f_c, (1 - s) * 1e9 / B.f_s + 0.9 * 1e9 / B.B_s);
    assert_true(s > 1);
    assert_int_equal(balance_host_scores(&s, &B, 1.1, NULL), HILL_E_INVALID);
    assert_int_equal(balance_host_scores(&s, &B, NAN, NULL), HILL_E_INVALID);
}

/* Rates A: scoring a byte of 4.75 - 1 entries takes the drive 0.9375, fetching alpha of one alpha /
 * B_s. Where they are not there yet, they must save half as much again. */
static void test_digests_pay_where_scoring_takes_the_drive_longer_than_fetching(void **state)
{
    (void)state;
    struct balance_rates rates = A;
    assert_true(balance_digests_pay(&rates, 0.9, 0.9, 4.75, false));
    rates.B_s = 0.4;                                                   /* alpha * 2.5 */
    assert_true(balance_digests_pay(&rates, 0.4, 0.34, 4.75, true));   /* 0.925 */
    assert_false(balance_digests_pay(&rates, 0.4, 0.36, 4.75, true));  /* 0.95 */
    assert_true(balance_digests_pay(&rates, 0.3, 0.19, 4.75, false));  /* 0.919 */
    assert_false(balance_digests_pay(&rates, 0.3, 0.21, 4.75, false)); /* 0.956 */
    rates.f_s = 8; /* what scores faster saves less */
    assert_false(balance_digests_pay(&rates, 0.3, 0.19, 4.75, true));
}

/* M = 110, beta = 8/3: M_c = 110 * 8/11 = 80, M_s = 30. M_0 = 80 is just enough; with M_0 = 22 only
 * M_c = 22 is hot, M_s = 88 and beta = 1/4. */
static void test_bound_of_eq_3(void **state)
{
    static const struct {
        double M, M_0, wanted;
    } cases[] = {{110, 80.0001, 8.0 / 3.0},
                 {110, 22, 0.25},
                 {110, 0, 0},
                 {0, 0, 8.0 / 3.0},
                 {110, 1e9, 8.0 / 3.0}};
    (void)state;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        double beta;
        assert_int_equal(beta_of(&beta, &A, alpha_A, NULL), 0);
        assert_int_equal(balance_bound(&beta, beta, cases[i].M, cases[i].M_0, NULL), 0);
        assert_close(beta, cases[i].wanted);
    }
}

static void test_invalid_rates_are_refused(void **state)
{
    (void)state;
    const double bad[] = {0, -1, NAN, INFINITY, -INFINITY};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++)
        for (unsigned field = 0; field < 4; field++) {
            struct balance_rates r = A;
            double *fields[] = {&r.f_c, &r.f_s, &r.B_c, &r.B_s}, out = 42;
            struct hill_why why = {{0}};
            *fields[field] = bad[i];
            assert_int_equal(beta_of(&out, &r, alpha_A, &why), HILL_E_INVALID);
            assert_true(out == 42 && why.text[0]);
        }
}

static void test_shares_above_one_and_negative_bytes_are_refused(void **state)
{
    (void)state;
    double out;
    assert_int_equal(beta_of(&out, &A, 1, NULL), 0);
    assert_int_equal(beta_of(&out, &A, nextafter(1, 2), NULL), HILL_E_INVALID);
    assert_int_equal(balance_bound(&out, 1, -1, 1, NULL), HILL_E_INVALID);
    assert_int_equal(balance_bound(&out, 1, 1, -1, NULL), HILL_E_INVALID);
    assert_int_equal(balance_bound(&out, 1, NAN, 1, NULL), HILL_E_INVALID);
    assert_int_equal(balance_bound(&out, 1, 1, INFINITY, NULL), HILL_E_INVALID);
}

static void test_rates_whose_quotient_overflows_are_refused(void **state)
{
    (void)state;
    struct balance_rates r = {.f_c = 1e300, .f_s = 1e-300, .B_c = 1e300, .B_s = 1e-300};
    double out;
    assert_int_equal(beta_of(&out, &r, 0.5, NULL), HILL_E_INVALID);
}

/* Rates A, of the hot bytes 1/2 sent, of the cold ones 1/8: CSD path 1/4 + (1/8)/2 = 5/16, CPU path
 * 1/8 + (1/2)/16 = 5/32: beta 2. Nothing sent: f_c / f_s = 2. The same share: Eq. 4. */
static void test_each_side_has_a_share_of_its_own(void **state)
{
    (void)state;
    double beta;
    assert_int_equal(balance_beta(&beta, &A, 0.5, 0.125, NULL), 0);
    assert_true(beta == 2);
    assert_int_equal(balance_beta(&beta, &A, 0, 0, NULL), 0);
    assert_true(beta == 2);
    assert_int_equal(balance_beta(&beta, &A, 1.5, 0, NULL), HILL_E_INVALID);
    assert_int_equal(balance_beta(&beta, &A, 0, -0.1, NULL), HILL_E_INVALID);
    assert_int_equal(balance_beta(&beta, &A, NAN, 0, NULL), HILL_E_INVALID);
}

/* beta 3 of 100 bytes: 75 hot; 60 may be: 60 / 40. */
static void test_any_beta_is_bound(void **state)
{
    (void)state;
    double beta;
    assert_int_equal(balance_bound(&beta, 3, 100, 60, NULL), 0);
    assert_true(beta == 1.5);
    assert_int_equal(balance_bound(&beta, 3, 100, 75, NULL), 0);
    assert_true(beta == 3);
    assert_int_equal(balance_bound(&beta, 0, 100, 75, NULL), HILL_E_INVALID);
}

static void test_a_window_gives_the_median_of_its_last_samples(void **state)
{
    const double first[] = {3, 1, 1000, 2, 5, 6, 7, 8};
    struct balance_window w = {0};
    (void)state;
    for (unsigned i = 0; i < BALANCE_WINDOW - 1; i++)
        balance_window_add(&w, first[i]);
    assert_true(balance_window_median(&w, 7.5) == 7.5); /* not full */
    balance_window_add(&w, NAN);
    balance_window_add(&w, -1);
    assert_true(balance_window_median(&w, 7.5) == 7.5); /* these do not count */
    balance_window_add(&w, 4);
    assert_true(balance_window_median(&w, 7.5) == 5); /* of 1 2 3 4 5 6 7 8 1000 */
    balance_window_add(&w, 2000);
    assert_true(balance_window_median(&w, 7.5) ==
                6); /* of 1 2 4 5 6 7 8 1000 2000: the 3 is gone */
    balance_window_add(&w, 0);
    assert_true(balance_window_median(&w, 7.5) == 6); /* of 0 2 4 5 6 7 8 1000 2000 */
}

/* Half the way as a ratio: from 1 to 1.44 it is 1.2. From 1 to 4 half the way is 2: bounded
 * to 1.25; down as well. Within a twentieth: none. */
static void test_a_step_is_half_the_way_and_bounded(void **state)
{
    (void)state;
    assert_true(fabs(balance_follow(1, 1.44) - 1.2) < 1e-12);
    assert_true(fabs(balance_follow(1.44, 1) - 1.2) < 1e-12);
    assert_true(fabs(balance_follow(1, 4) - 1.25) < 1e-12);
    assert_true(fabs(balance_follow(4, 1) - 3.2) < 1e-12);
    assert_true(balance_follow(1, 1.049) == 1);
    assert_true(balance_follow(1, 0.96) == 1);
    assert_true(balance_follow(1, INFINITY) == 1 && balance_follow(1, NAN) == 1);
}

/* The drive's flash goes from 2.9 to 1.0 GB/s and back, as rates B say; samples are taken every
 * fourth of 64 steps, with noise of +-4 % and every seventh wild. beta must get within 10 % of the
 * new Eq. 4 in time, never turn back while it is on its way, and never pass it by more than 10 %.
 */
static void follow_a_change(double from, double to, uint64_t *random)
{
    struct balance_rates before = {.f_c = 20, .f_s = from, .B_c = 25, .B_s = from};
    struct balance_rates after = before;
    struct balance_window f_s = {0}, B_s = {0};
    double beta, goal, last;
    after.f_s = after.B_s = to;
    assert_int_equal(beta_of(&beta, &before, 0.2, NULL), 0);
    assert_int_equal(beta_of(&goal, &after, 0.2, NULL), 0);
    double direction = goal > beta ? 1 : -1;
    for (unsigned i = 0; i < BALANCE_WINDOW; i++) {
        balance_window_add(&f_s, from);
        balance_window_add(&B_s, from);
    }
    last = beta;
    for (unsigned i = 0; i < 64 / 4; i++) {
        *random = *random * 6364136223846793005u + 1442695040888963407u;
        double noise = 1 + 0.04 * ((double)(*random >> 40) / (1 << 23) - 1);
        balance_window_add(&f_s, i % 7 == 3 ? to * 20 : to * noise);
        balance_window_add(&B_s, i % 7 == 5 ? to / 20 : to * noise);
        struct balance_rates now = before;
        double target;
        now.f_s = balance_window_median(&f_s, from);
        now.B_s = balance_window_median(&B_s, from);
        assert_int_equal(beta_of(&target, &now, 0.2, NULL), 0);
        beta = balance_follow(beta, target);
        if (fabs(last / goal - 1) > 0.1)
            assert_true((beta - last) * direction >= 0);
        assert_true(beta / last <= BALANCE_STEP_MAX * 1.000001 &&
                    last / beta <= BALANCE_STEP_MAX * 1.000001);
        assert_true(direction > 0 ? beta <= goal * 1.1 : beta >= goal / 1.1);
        last = beta;
    }
    assert_true(fabs(beta / goal - 1) < 0.1);
}

static void test_beta_follows_a_step_change_without_oscillation(void **state)
{
    (void)state;
    uint64_t random = 1;
    for (int i = 0; i < 100; i++) {
        follow_a_change(2.9, 1.0, &random);
        follow_a_change(1.0, 2.9, &random);
    }
}

/* beta 3 leaves the drive a quarter: of 200 us it saves 50, which is what asking costs. */
static void test_a_drive_has_a_part_when_that_saves_more_than_asking(void **state)
{
    (void)state;
    assert_false(balance_drive_pays(3, 199e-6, true));
    assert_true(balance_drive_pays(3, 201e-6, true));
    assert_false(balance_drive_pays(3, 399e-6, false));
    assert_true(balance_drive_pays(3, 401e-6, false));
    assert_true(balance_drive_pays(0.01, 102e-6, false));
    assert_false(balance_drive_pays(1e6, 10, true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_drive_has_a_part_when_that_saves_more_than_asking),
        cmocka_unit_test(test_beta_of_eq_4),
        cmocka_unit_test(test_several_drives_are_one_of_their_speeds_sum),
        cmocka_unit_test(test_beta_makes_both_paths_take_equally_long),
        cmocka_unit_test(test_what_the_host_scores_by_digests_balances_both_sides),
        cmocka_unit_test(test_digests_pay_where_scoring_takes_the_drive_longer_than_fetching),
        cmocka_unit_test(test_bound_of_eq_3),
        cmocka_unit_test(test_each_side_has_a_share_of_its_own),
        cmocka_unit_test(test_any_beta_is_bound),
        cmocka_unit_test(test_a_window_gives_the_median_of_its_last_samples),
        cmocka_unit_test(test_a_step_is_half_the_way_and_bounded),
        cmocka_unit_test(test_beta_follows_a_step_change_without_oscillation),
        cmocka_unit_test(test_invalid_rates_are_refused),
        cmocka_unit_test(test_shares_above_one_and_negative_bytes_are_refused),
        cmocka_unit_test(test_rates_whose_quotient_overflows_are_refused),
    };
    return cmocka_run_group_tests_name("balance", tests, NULL, NULL);
}
