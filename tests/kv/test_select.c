/*
 * The budget rule by hand, and the selection against a brute-force sort.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv/geometry.h"
#include "kv/select.h"

#define SEED 424242u
#define MAX  700u

static struct kv_selection_settings settings(double alpha, uint32_t budget, uint32_t sinks,
                                             uint32_t window)
{
    return (struct kv_selection_settings){
        .alpha = alpha, .budget = budget, .sinks = sinks, .window = window};
}

static uint32_t budget_of(double alpha, uint32_t budget, uint32_t sinks, uint32_t window,
                          uint32_t n)
{
    struct kv_selection_settings s = settings(alpha, budget, sinks, window);
    return kv_budget_tokens(&s, n);
}

static void budgets_worked_by_hand(void **state)
{
    (void)state;
    assert_int_equal(budget_of(0.1, 0, 0, 0, 10), 1);
    assert_int_equal(budget_of(0.1, 0, 0, 0, 11), 2);
    assert_int_equal(budget_of(0.07, 0, 0, 0, 100), 7);  /* 0.07 * 100 > 7 in FP64 */
    assert_int_equal(budget_of(0.29, 0, 0, 0, 100), 29); /* 0.29 * 100 < 29 in FP64 */
    assert_int_equal(budget_of(0.2, 0, 4, 32, 1000), 200);
    assert_int_equal(budget_of(0.2, 0, 4, 32, 100), 36); /* the forced tokens */
    assert_int_equal(budget_of(0.2, 0, 4, 32, 20), 20);  /* no more than there are */
    assert_int_equal(budget_of(1.0, 0, 4, 32, 12345), 12345);
    assert_int_equal(budget_of(0.2, 512, 4, 32, 32768), 512);
    assert_int_equal(budget_of(1.0, 10, 4, 32, 32768), 36);
    assert_int_equal(budget_of(1e-12, 0, 0, 0, 5), 1);
    assert_int_equal(budget_of(0.5, 0, 4, 32, 0), 0);
    assert_int_equal(budget_of(0.5, 0, KV_MAX_TOKENS, KV_MAX_TOKENS, 77), 77);
}

static uint32_t exact_below_of(uint32_t exact_below, uint32_t policy, double alpha, uint32_t budget,
                               uint32_t n)
{
    struct kv_selection_settings s = settings(alpha, budget, 4, 32);
    s.exact_below = exact_below;
    s.policy = policy;
    assert_int_equal(kv_selection_check(&s, NULL), 0);
    return kv_budget_tokens(&s, n);
}

static void short_contexts_are_exact_under_every_policy(void **state)
{
    (void)state;
    for (uint32_t policy = 0; policy < KV_POLICY_COUNT; policy++) {
        bool full = policy == KV_POLICY_FULL;
        assert_int_equal(exact_below_of(2048, policy, 0.2, 0, 1), 1);
        assert_int_equal(exact_below_of(2048, policy, 0.2, 0, 2047), 2047);
        assert_int_equal(exact_below_of(2048, policy, 0.2, 0, 2048), full ? 2048 : 410);
        assert_int_equal(exact_below_of(2048, policy, 0.2, 0, 2049), full ? 2049 : 410);
        assert_int_equal(exact_below_of(2048, policy, 0.01, 0, 2047), 2047);
        assert_int_equal(exact_below_of(2048, policy, 0.01, 0, 2048), full ? 2048 : 36);
        assert_int_equal(exact_below_of(2048, policy, 0.2, 500, 2047), 2047);
        assert_int_equal(exact_below_of(2048, policy, 0.2, 500, 2049), full ? 2049 : 500);
        assert_int_equal(exact_below_of(2048, policy, 0.2, 9000, 2049), 2049);
        assert_int_equal(exact_below_of(0, policy, 0.2, 0, 2047), full ? 2047 : 410);
        assert_int_equal(exact_below_of(1, policy, 0.2, 0, 2047), full ? 2047 : 410);
    }
}

/* Of all lengths on the way; where exact_below decides, one more than any query needs. */
static void what_is_reserved_covers_the_exact_part(void **state)
{
    (void)state;
    const struct kv_layer_windows none = {0, 0}, windows = {3000, 3};
    struct kv_selection_settings s = settings(0.1, 0, 4, 32);
    s.exact_below = 2048;
    assert_int_equal(kv_most_tokens(&s, &none, 100), 100);
    assert_int_equal(kv_most_tokens(&s, &none, 2047), 2047);
    assert_int_equal(kv_most_tokens(&s, &none, 2048), 2048);
    assert_int_equal(kv_most_tokens(&s, &none, 2049), 2048);
    assert_int_equal(kv_most_tokens(&s, &none, 20480), 2048);
    assert_int_equal(kv_most_tokens(&s, &none, 30000), 3000);
    assert_int_equal(kv_most_tokens(&s, &windows, 20480), 2999);
    for (uint32_t n = 1, most = 0; n < 30000; n++) {
        most = kv_budget_tokens(&s, n) > most ? kv_budget_tokens(&s, n) : most;
        assert_true(kv_most_tokens(&s, &none, n) >= most);
        assert_true(kv_most_tokens(&s, &none, n) <= most + 1);
    }
}

static void exact_contexts_need_no_scores(void **state)
{
    (void)state;
    struct kv_selector *selector;
    struct kv_selection_settings s = settings(0.1, 0, 1, 1);
    uint32_t positions[64];
    s.exact_below = 50;
    assert_int_equal(kv_selector_create(&selector, 64), 0);
    assert_int_equal(kv_selector_begin(selector, &s, 49), 0);
    assert_int_equal(kv_selector_finish(selector, positions), 49);
    for (uint32_t i = 0; i < 49; i++)
        assert_int_equal(positions[i], i);
    assert_int_equal(kv_selector_begin(selector, &s, 50), 0);
    assert_int_equal(kv_selector_finish(selector, positions), HILL_E_PROTOCOL);
    kv_selector_destroy(selector);
}

/* every alpha of four decimals, against the same in whole numbers */
static void decimal_alphas_have_no_rounding_error(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1,     7,     10,     999,     1000,
                                       10000, 32768, 131072, 9999999, 1u << 24};
    for (uint64_t a = 1; a <= 10000; a++) {
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            uint64_t exact = (a * lengths[i] + 9999) / 10000;
            assert_int_equal(budget_of((double)a / 10000.0, 0, 0, 0, lengths[i]), exact);
        }
    }
}

static void settings_out_of_range_are_refused(void **state)
{
    (void)state;
    struct hill_why why;
    static const double bad[] = {0.0, -0.1, 1.0000001, 2.0, NAN, INFINITY};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct kv_selection_settings s = settings(bad[i], 0, 4, 32);
        assert_int_equal(kv_selection_check(&s, &why), HILL_E_INVALID);
        assert_non_null(strstr(why.text, "alpha"));
    }
    struct kv_selection_settings good = settings(1.0, 0, 4, 32), s;
    assert_int_equal(kv_selection_check(&good, &why), 0);
#define REFUSED(member, value)                                                                     \
    s = good;                                                                                      \
    s.member = value;                                                                              \
    assert_int_equal(kv_selection_check(&s, &why), HILL_E_INVALID)
    REFUSED(budget, KV_MAX_TOKENS + 1);
    REFUSED(sinks, KV_MAX_TOKENS + 1);
    REFUSED(window, UINT32_MAX);
    REFUSED(policy, KV_POLICY_COUNT);
    REFUSED(importance, 99);
    REFUSED(granularity, 3);
    REFUSED(granularity, 128);
    s = good;
    s.granularity = 64;
    assert_int_equal(kv_selection_check(&s, &why), 0);
}

static void policies_go_by_name(void **state)
{
    (void)state;
    uint32_t policy = 9;
    assert_int_equal(kv_policy_parse("full", &policy), 0);
    assert_int_equal(policy, KV_POLICY_FULL);
    assert_int_equal(kv_policy_parse("hillinfer", &policy), 0);
    assert_int_equal(policy, KV_POLICY_HILLINFER);
    assert_int_equal(kv_policy_parse("h2o", &policy), 0);
    assert_int_equal(policy, KV_POLICY_H2O);
    assert_int_equal(kv_policy_parse("oracle", &policy), 0);
    assert_int_equal(policy, KV_POLICY_ORACLE);
    assert_int_equal(kv_policy_parse("prefetch", &policy), 0);
    assert_int_equal(policy, KV_POLICY_PREFETCH);
    assert_int_equal(kv_policy_parse("leoam", &policy), 0);
    assert_int_equal(policy, KV_POLICY_LEOAM);
    assert_int_equal(kv_policy_parse("fullest", &policy), HILL_E_INVALID);
    assert_string_equal(kv_policy_name(KV_POLICY_FULL), "full");
    assert_null(kv_policy_name(KV_POLICY_COUNT));
}

/* ---- selection ---------------------------------------------------------------------------- */

struct ranked {
    uint32_t position, forced;
    uint16_t score;
};

static int by_rank(const void *a, const void *b) /* forced, then score, then the newer */
{
    const struct ranked *x = a, *y = b;
    if (x->forced != y->forced)
        return x->forced ? -1 : 1;
    if (!x->forced && x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->position > y->position ? -1 : 1;
}

static void check_against_sort(const struct kv_selection_settings *s, const uint16_t *scores,
                               uint32_t n, const uint32_t *selected, int64_t k)
{
    struct ranked ranked[MAX];
    uint8_t in[MAX] = {0};
    for (uint32_t p = 0; p < n; p++)
        ranked[p] = (struct ranked){p, p < s->sinks || p + s->window >= n, scores[p]};
    qsort(ranked, n, sizeof(ranked[0]), by_rank);
    int64_t forced = 0, first = k;
    while (forced < k && ranked[forced].forced)
        forced++;
    if (s->granularity > 1 && k < n) { /* the others: as good as the best token beside them */
        first = forced + (k - forced + 1) / 2;
        for (int64_t i = first; i < n; i++) {
            uint32_t group = ranked[i].position / s->granularity;
            for (uint32_t p = 0; p < n; p++)
                if (p / s->granularity == group && scores[p] > ranked[i].score)
                    ranked[i].score = scores[p];
            if (ranked[i].score == UINT16_MAX)
                ranked[i].score--;
        }
        qsort(ranked + first, (size_t)(n - first), sizeof(ranked[0]), by_rank);
    }
    for (int64_t i = 0; i < k; i++)
        in[ranked[i].position] = 1;
    for (int64_t i = 0; i < k; i++) {
        assert_true(i == 0 || selected[i] > selected[i - 1]);
        assert_true(selected[i] < n && in[selected[i]]);
    }
}

static void feed_shuffled(struct kv_selector *selector, const uint16_t *scores, uint32_t n)
{
    uint32_t order[MAX];
    uint16_t shuffled[MAX];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = (uint32_t)rand() % (i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t i = 0; i < n; i++)
        shuffled[i] = scores[order[i]];
    for (uint32_t done = 0; done < n;) {
        uint32_t count = 1 + (uint32_t)rand() % (n - done);
        assert_int_equal(kv_selector_add(selector, order + done, shuffled + done, count), 0);
        done += count;
        assert_int_equal(kv_selector_scored(selector), done);
    }
}

/* runs of random length, in random order */
static void feed_runs(struct kv_selector *selector, const uint16_t *scores, uint32_t n)
{
    uint32_t first[MAX], count[MAX], runs = 0, scored = 0;
    for (uint32_t at = 0; at < n; at += count[runs++]) {
        uint32_t most = n - at;
        first[runs] = at;
        count[runs] = 1 + (uint32_t)rand() % (rand() % 2 || most < 90 ? most : 90);
    }
    assert_int_equal(kv_selector_add_run(selector, n, scores, 0), 0);
    while (runs > 0) {
        uint32_t i = (uint32_t)rand() % runs--;
        assert_int_equal(kv_selector_add_run(selector, first[i], scores + first[i], count[i]), 0);
        scored += count[i];
        assert_int_equal(kv_selector_scored(selector), scored);
        first[i] = first[runs];
        count[i] = count[runs];
    }
}

static void selection_equals_a_sort_in_any_order_of_arrival(void **state)
{
    (void)state;
    static const uint32_t spreads[] = {1, 2, 5, 300, 65536};
    struct kv_selector *selector;
    uint16_t scores[MAX];
    uint32_t selected[MAX];
    print_message("seed %u\n", SEED);
    srand(SEED);
    assert_int_equal(kv_selector_create(&selector, MAX), 0);
    for (int round = 0; round < 10000; round++) {
        if (round == 5000)
            kv_selector_plain(selector); /* as on a CPU without AVX2 */
        uint32_t n = (uint32_t)rand() % (round % 2 ? MAX + 1 : 60), spread = spreads[round % 5];
        struct kv_selection_settings s =
            settings((1 + rand() % 1000) / 1000.0, rand() % 3 ? 0 : 1 + (uint32_t)rand() % MAX,
                     (uint32_t)rand() % 6, (uint32_t)rand() % 40);
        s.granularity = (uint16_t)(rand() % 2 ? 0 : 1 << rand() % 7);
        for (uint32_t p = 0; p < n; p++)
            scores[p] = (uint16_t)(65535u - (uint32_t)rand() % spread * (spread == 300 ? 97u : 1u));
        assert_int_equal(kv_selector_begin(selector, &s, n), 0);
        if (round % 3)
            feed_shuffled(selector, scores, n);
        else
            feed_runs(selector, scores, n);
        int64_t k = kv_selector_finish(selector, selected);
        assert_int_equal(k, kv_budget_tokens(&s, n));
        check_against_sort(&s, scores, n, selected, k);
    }
    kv_selector_destroy(selector);
}

/* More than a 16-bit counter in each lane could count; of one score the newest are in. */
static void millions_of_equal_scores(void **state)
{
    (void)state;
    const uint32_t n = (1u << 22) + 37;
    const struct kv_selection_settings s = settings(0.5, 0, 0, 0);
    uint16_t *scores = malloc(n * sizeof *scores);
    uint32_t *selected = malloc(n * sizeof *selected);
    memset(scores, 0xff, n * sizeof *scores);
    for (uint32_t i = 0; i < 2; i++) {
        struct kv_selector *selector;
        assert_int_equal(kv_selector_create(&selector, n), 0);
        if (i == 1)
            kv_selector_plain(selector);
        assert_int_equal(kv_selector_begin(selector, &s, n), 0);
        assert_int_equal(kv_selector_add_run(selector, 0, scores, n), 0);
        int64_t k = kv_selector_finish(selector, selected);
        assert_int_equal(k, (n + 1) / 2);
        for (uint32_t j = 0; j < k; j++)
            assert_int_equal(selected[j], n - k + j);
        kv_selector_destroy(selector);
    }
    free(scores);
    free(selected);
}

/* By hand: half of the six are the best three, 2, 11 and 4; the others stand beside 2. */
static void groups_come_with_their_best_token(void **state)
{
    (void)state;
    static const uint16_t scores[16] = {1, 1, 90, 1, 70, 1, 1, 1, 1, 1, 1, 80, 60, 1, 1, 1};
    static const uint32_t alone[] = {2, 4, 11, 12, 14, 15}, groups[] = {0, 1, 2, 3, 4, 11};
    struct kv_selector *selector;
    struct kv_selection_settings s = settings(1, 6, 0, 0);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t selected[16], in = 0;
        s.granularity = i ? 4 : 1;
        assert_int_equal(kv_selector_create(&selector, 16), 0);
        assert_int_equal(kv_selector_begin(selector, &s, 16), 0);
        assert_int_equal(kv_selector_add_run(selector, 0, scores, 16), 0);
        assert_int_equal(kv_selector_finish(selector, selected), 6);
        for (uint32_t j = 0; j < 6; j++)
            in |= 1u << selected[j];
        for (uint32_t j = 0; j < 6; j++)
            assert_true(in >> (i ? groups : alone)[j] & 1);
        for (uint32_t p = 0; p < 16; p++) /* for traces */
            assert_int_equal(kv_selector_scores(selector)[p], scores[p]);
        kv_selector_destroy(selector);
    }
}

static void missing_and_double_scores_are_errors(void **state)
{
    (void)state;
    struct kv_selector *selector;
    struct kv_selection_settings s = settings(0.5, 0, 1, 1);
    const uint32_t positions[] = {3, 1, 0, 2, 4};
    const uint16_t scores[] = {5, 4, 3, 2, 1};
    uint32_t selected[5];
    assert_int_equal(kv_selector_create(&selector, 5), 0);
    assert_int_equal(kv_selector_begin(selector, &s, 6), HILL_E_INVALID);
    assert_int_equal(kv_selector_begin(selector, &s, 5), 0);
    assert_int_equal(kv_selector_add(selector, positions, scores, 4), 0);
    assert_int_equal(kv_selector_finish(selector, selected), HILL_E_PROTOCOL);
    assert_int_equal(kv_selector_add(selector, positions, scores, 1), HILL_E_PROTOCOL);
    assert_int_equal(kv_selector_begin(selector, &s, 4), 0);
    assert_int_equal(kv_selector_add(selector, positions + 4, scores, 1), HILL_E_PROTOCOL);
    assert_int_equal(kv_selector_begin(selector, &s, 5), 0);
    assert_int_equal(kv_selector_add(selector, positions, scores, 5), 0);
    assert_int_equal(kv_selector_finish(selector, selected), 3); /* 0, 4 and the best: 3 */
    assert_int_equal(selected[1], 3);
    kv_selector_destroy(selector);
    kv_selector_destroy(NULL);
}

static void runs_that_overlap_or_do_not_fit_are_errors(void **state)
{
    (void)state;
    struct kv_selector *selector;
    struct kv_selection_settings s = settings(0.5, 0, 1, 1);
    static const uint16_t scores[300];
    const uint32_t last = 199;
    assert_int_equal(kv_selector_create(&selector, 200), 0);
    for (uint32_t from = 0; from < 200; from++) {
        assert_int_equal(kv_selector_begin(selector, &s, 200), 0);
        assert_int_equal(kv_selector_add_run(selector, from, scores, 200 - from), 0);
        assert_int_equal(kv_selector_add(selector, &last, scores, 1), HILL_E_PROTOCOL);
        assert_int_equal(kv_selector_add_run(selector, from, scores, 1), HILL_E_PROTOCOL);
        assert_int_equal(kv_selector_add_run(selector, 0, scores, from + 1), HILL_E_PROTOCOL);
        assert_int_equal(kv_selector_begin(selector, &s, 200), 0);
        assert_int_equal(kv_selector_add_run(selector, from, scores, 201 - from), HILL_E_PROTOCOL);
        assert_int_equal(kv_selector_add_run(selector, from, scores, UINT32_MAX), HILL_E_PROTOCOL);
        assert_int_equal(kv_selector_add_run(selector, 201 + from, scores, 0), HILL_E_PROTOCOL);
        assert_int_equal(kv_selector_scored(selector), 0);
    }
    kv_selector_destroy(selector);
}

static void policy_full_selects_all_without_scores(void **state)
{
    (void)state;
    struct kv_selector *selector;
    struct kv_selection_settings s = settings(0.1, 0, 1, 1);
    uint32_t selected[9];
    s.policy = KV_POLICY_FULL;
    assert_int_equal(kv_selector_create(&selector, 9), 0);
    assert_int_equal(kv_selector_begin(selector, &s, 9), 0);
    assert_int_equal(kv_selector_finish(selector, selected), 9);
    for (uint32_t i = 0; i < 9; i++)
        assert_int_equal(selected[i], i);
    kv_selector_destroy(selector);
}

static void a_selector_of_impossible_size_is_refused(void **state)
{
    (void)state;
    struct kv_selector *selector;
    assert_int_equal(kv_selector_create(&selector, 0), HILL_E_INVALID);
    assert_null(selector);
    assert_int_equal(kv_selector_create(&selector, KV_MAX_TOKENS + 1), HILL_E_INVALID);
    assert_true(kv_selector_bytes(1000) >= 1000 * 2 + 1000 / 8);
}

static void windows_bound_a_selection(void **state)
{
    (void)state;
    /* every third layer attends to all; a window of 10 tokens is 9 and the query's own */
    const struct kv_layer_windows windows = {10, 3}, none = {0, 0};
    const struct kv_selection_settings small = settings(0.01, 5, 1, 2);
    const struct kv_selection_settings large = settings(0.01, 50, 1, 2);
    const uint32_t expected[6] = {9, 9, 0, 9, 9, 0};
    for (uint32_t layer = 0; layer < 6; layer++) {
        assert_int_equal(kv_window_tokens(&windows, layer, 100), expected[layer]);
        assert_int_equal(kv_window_tokens(&windows, layer, 4), expected[layer] ? 4 : 0);
        assert_int_equal(kv_window_tokens(&none, layer, 100), 0);
    }
    assert_int_equal(kv_most_tokens(&small, &windows, 100), 9);
    assert_int_equal(kv_most_tokens(&small, &windows, 7), 7);
    assert_int_equal(kv_most_tokens(&large, &windows, 100), 50);
    assert_int_equal(kv_most_tokens(&small, &none, 100), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_bound_a_selection),
        cmocka_unit_test(budgets_worked_by_hand),
        cmocka_unit_test(short_contexts_are_exact_under_every_policy),
        cmocka_unit_test(what_is_reserved_covers_the_exact_part),
        cmocka_unit_test(exact_contexts_need_no_scores),
        cmocka_unit_test(decimal_alphas_have_no_rounding_error),
        cmocka_unit_test(settings_out_of_range_are_refused),
        cmocka_unit_test(policies_go_by_name),
        cmocka_unit_test(selection_equals_a_sort_in_any_order_of_arrival),
        cmocka_unit_test(millions_of_equal_scores),
        cmocka_unit_test(groups_come_with_their_best_token),
        cmocka_unit_test(missing_and_double_scores_are_errors),
        cmocka_unit_test(runs_that_overlap_or_do_not_fit_are_errors),
        cmocka_unit_test(policy_full_selects_all_without_scores),
        cmocka_unit_test(a_selector_of_impossible_size_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
