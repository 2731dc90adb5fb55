/*
 * tests/gpu_worker/test_sampler.c - the sampler against examples worked by hand, and its draws
 * against the distribution they are to follow.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "gpu_worker/sampler.h"

enum { VOCAB = 5 };
/* softmax of these is 0.5, 0.25, 0.125, 0.0625, 0.0625 */
static const float halves[VOCAB] = {4 * (float)M_LN2, 3 * (float)M_LN2, 2 * (float)M_LN2,
                                    (float)M_LN2, (float)M_LN2};

static struct sampler make(float temperature, uint32_t top_k, float top_p, float min_p,
                           uint64_t seed)
{
    struct sampler s;
    assert_int_equal(sampler_init(&s, VOCAB), 0);
    s.settings = (struct sampler_settings){temperature, top_k, top_p, min_p, 1.0f, seed};
    return s;
}

/* How often each token is drawn at 20000 positions. */
static void count_draws(struct sampler *s, const float *logits, uint32_t *counts)
{
    for (uint32_t i = 0; i < VOCAB; i++)
        counts[i] = 0;
    for (uint64_t position = 0; position < 20000; position++)
        counts[sampler_pick(s, logits, NULL, 0, position, NULL)]++;
}

/* Five standard deviations of a binomial count. */
static void assert_share(uint32_t count, double p)
{
    double sigma = sqrt(20000 * p * (1 - p));
    if (fabs(count - 20000 * p) > 5 * sigma)
        fail_msg("%u draws of 20000, expected share %g", count, p);
}

static void greedy_takes_the_first_of_equals(void **state)
{
    (void)state;
    const float logits[VOCAB] = {1, 3, -2, 3, 0};
    struct sampler s = make(0, 0, 1, 0, 1);
    assert_int_equal(sampler_pick(&s, logits, NULL, 0, 0, NULL), 1);
    sampler_finish(&s);
}

static void draws_follow_the_distribution(void **state)
{
    (void)state;
    uint32_t counts[VOCAB];
    struct sampler s = make(1, 0, 1, 0, 42);
    count_draws(&s, halves, counts);
    const double p[VOCAB] = {0.5, 0.25, 0.125, 0.0625, 0.0625};
    for (uint32_t i = 0; i < VOCAB; i++)
        assert_share(counts[i], p[i]);
    sampler_finish(&s);
}

/* At temperature 0.5 the odds are squared: 64 : 16 : 4 : 1 : 1 of 86. */
static void temperature_sharpens(void **state)
{
    (void)state;
    uint32_t counts[VOCAB];
    struct sampler s = make(0.5f, 0, 1, 0, 43);
    count_draws(&s, halves, counts);
    assert_share(counts[0], 64.0 / 86);
    assert_share(counts[1], 16.0 / 86);
    assert_share(counts[4], 1.0 / 86);
    sampler_finish(&s);
}

static void top_k_keeps_the_likeliest(void **state)
{
    (void)state;
    uint32_t counts[VOCAB];
    struct sampler s = make(1, 2, 1, 0, 44);
    count_draws(&s, halves, counts);
    assert_share(counts[0], 2.0 / 3);
    assert_int_equal(counts[0] + counts[1], 20000);
    sampler_finish(&s);
}

/* Of many tokens with few different logits exactly those come that fewer than k precede; equal ones
 * rank by id. */
static void top_k_of_many(void **state)
{
    enum { MANY = 1000, K = 37 };
    (void)state;
    static float logits[MANY];
    static uint32_t counts[MANY];
    struct sampler s;
    uint64_t random = 99;
    for (uint32_t i = 0; i < MANY; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        logits[i] = (float)(random >> 60);
    }
    assert_int_equal(sampler_init(&s, MANY), 0);
    s.settings = (struct sampler_settings){1000, K, 1, 0, 1, 48};
    for (uint64_t position = 0; position < 20000; position++)
        counts[sampler_pick(&s, logits, NULL, 0, position, NULL)]++;
    for (uint32_t i = 0; i < MANY; i++) {
        uint32_t before = 0;
        for (uint32_t j = 0; j < MANY; j++)
            before += logits[j] > logits[i] || (logits[j] == logits[i] && j < i);
        assert_int_equal(counts[i] > 0, before < K);
    }
    sampler_finish(&s);
}

/* 0.5 + 0.25 reach 0.7 with the second, 0.8 needs the third. */
static void top_p_keeps_the_smallest_head_that_reaches_p(void **state)
{
    (void)state;
    uint32_t counts[VOCAB];
    struct sampler s = make(1, 0, 0.7f, 0, 45);
    count_draws(&s, halves, counts);
    assert_int_equal(counts[2] + counts[3] + counts[4], 0);
    assert_true(counts[1] > 0);
    s.settings.top_p = 0.8f;
    count_draws(&s, halves, counts);
    assert_true(counts[2] > 0);
    assert_int_equal(counts[3] + counts[4], 0);
    s.settings.top_p = 0.0f;
    count_draws(&s, halves, counts);
    assert_int_equal(counts[0], 20000);
    sampler_finish(&s);
}

/* 0.2 times the likeliest is 0.1: three stay. Temperature comes after: it changes none of it. */
static void min_p_is_relative_and_before_temperature(void **state)
{
    (void)state;
    uint32_t counts[VOCAB];
    struct sampler s = make(3, 0, 1, 0.2f, 46);
    count_draws(&s, halves, counts);
    assert_true(counts[2] > 0);
    assert_int_equal(counts[3] + counts[4], 0);
    sampler_finish(&s);
}

/* 3 / 1.5 = 2 loses to 2.5; -1 * 1.5 = -1.5 loses to -1.2. A token counts once. */
static void penalty_lowers_what_was_said(void **state)
{
    (void)state;
    const float positive[VOCAB] = {3, 2.5f, 0, 0, 0}, negative[VOCAB] = {-1, -1.2f, -9, -9, -9};
    const uint32_t history[] = {0, 0, 0, 999};
    struct sampler s = make(0, 0, 1, 0, 1);
    s.settings.repeat_penalty = 1.5f;
    assert_int_equal(sampler_pick(&s, positive, history, 4, 0, NULL), 1);
    assert_int_equal(sampler_pick(&s, negative, history, 4, 0, NULL), 1);
    assert_int_equal(sampler_pick(&s, positive, NULL, 0, 0, NULL), 0);
    s.settings.repeat_penalty = 1.1f; /* 2.73 still wins; twice or three times would not */
    assert_int_equal(sampler_pick(&s, positive, history, 4, 0, NULL), 0);
    sampler_finish(&s);
}

static void penalty_forgets_after_64_tokens(void **state)
{
    (void)state;
    const float logits[VOCAB] = {3, 2.5f, 0, 0, 0};
    uint32_t history[65] = {0};
    struct sampler s = make(0, 0, 1, 0, 1);
    for (int i = 1; i < 65; i++)
        history[i] = 4;
    s.settings.repeat_penalty = 1.5f;
    assert_int_equal(sampler_pick(&s, logits, history, 65, 0, NULL), 0);
    assert_int_equal(sampler_pick(&s, logits, history, 64, 0, NULL), 1);
    sampler_finish(&s);
}

static void a_draw_depends_on_seed_and_position_only(void **state)
{
    (void)state;
    struct sampler a = make(1, 0, 1, 0, 7), b = make(1, 0, 1, 0, 7), other = make(1, 0, 1, 0, 8);
    uint32_t differing = 0;
    for (uint64_t position = 0; position < 100; position++) { /* b asks in another order */
        uint32_t from_b = sampler_pick(&b, halves, NULL, 0, 99 - position, NULL);
        assert_int_equal(sampler_pick(&a, halves, NULL, 0, 99 - position, NULL), from_b);
        (void)sampler_pick(&a, halves, NULL, 0, position, NULL);
        differing += sampler_pick(&other, halves, NULL, 0, 99 - position, NULL) != from_b;
    }
    assert_true(differing > 20);
    sampler_finish(&a);
    sampler_finish(&b);
    sampler_finish(&other);
}

static void log_probabilities_worked_by_hand(void **state)
{
    (void)state;
    double p;
    const float two[] = {1, 1}, odds[] = {0, logf(3), 1000 * -1.f}, far[] = {0, 1000};
    assert_int_equal(sampler_logprob(two, 2, 1, &p), 0);
    assert_float_equal(p, -0.693147180559945, 1e-12);
    assert_int_equal(sampler_logprob(odds, 3, 1, &p), 0);
    assert_float_equal(p, log(0.75), 1e-7);
    assert_int_equal(sampler_logprob(far, 2, 0, &p), 0); /* exp(-1000) is no double */
    assert_float_equal(p, -1000, 1e-9);
    assert_int_equal(sampler_logprob(far, 2, 1, &p), 0);
    assert_true(p == 0);
    const float wrong[] = {0, NAN, INFINITY};
    assert_int_equal(sampler_logprob(wrong, 2, 0, &p), HILL_E_DAMAGED);
    assert_int_equal(sampler_logprob(wrong + 1, 2, 1, &p), HILL_E_DAMAGED);
}

static void a_token_needs_numbers(void **state)
{
    enum { MANY = 70 };
    (void)state;
    float logits[MANY] = {0};
    assert_true(sampler_has_numbers(logits, MANY));
    const float wrong[] = {NAN, INFINITY};
    for (uint32_t i = 0; i < 2 * MANY; i++) {
        logits[i / 2] = wrong[i % 2];
        assert_false(sampler_has_numbers(logits, MANY));
        logits[i / 2] = -INFINITY;
        assert_int_equal(sampler_has_numbers(logits, MANY), i / 2 < MANY - 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_first_of_equals),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(temperature_sharpens),
        cmocka_unit_test(top_k_keeps_the_likeliest),
        cmocka_unit_test(top_k_of_many),
        cmocka_unit_test(top_p_keeps_the_smallest_head_that_reaches_p),
        cmocka_unit_test(min_p_is_relative_and_before_temperature),
        cmocka_unit_test(penalty_lowers_what_was_said),
        cmocka_unit_test(penalty_forgets_after_64_tokens),
        cmocka_unit_test(a_draw_depends_on_seed_and_position_only),
        cmocka_unit_test(log_probabilities_worked_by_hand),
        cmocka_unit_test(a_token_needs_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
