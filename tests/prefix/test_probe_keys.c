/*
 * tests/prefix/test_probe_keys.c - keys in four bits: every value within half a step of what it
 * was, whatever the other columns and tokens hold. HILL_TEST_SEED draws others.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "prefix/probe_keys.h"

enum { ROUNDS = 200, COLUMNS_MOST = 300, TOKENS_MOST = 64 };

static uint64_t state;

static uint32_t draw(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static double number(uint16_t half)
{
    uint32_t exponent = half >> 10 & 31, fraction = half & 0x3ff;
    double x = exponent ? ldexp(1024 + fraction, (int)exponent - 25) : ldexp(fraction, -24);
    return half & 0x8000 ? -x : x;
}

/* A column of some bias and spread; some are the same in all tokens. */
static void fill_column(uint16_t *keys, uint32_t n_tokens, uint32_t n_columns, uint32_t c)
{
    float bias = (float)draw(2001) / 10 - 100, spread = (float)(draw(4) ? draw(1000) : 0) / 100;
    for (uint32_t t = 0; t < n_tokens; t++)
        keys[t * n_columns + c] = half_from_float(bias + spread * ((float)draw(2001) / 1000 - 1));
}

static void check_column(const uint16_t *keys, const uint16_t *back, uint32_t n_tokens,
                         uint32_t n_columns, uint32_t c)
{
    double least = INFINITY, most = -INFINITY, largest = 0;
    for (uint32_t t = 0; t < n_tokens; t++) {
        double x = number(keys[t * n_columns + c]);
        least = fmin(least, x);
        most = fmax(most, x);
        largest = fmax(largest, fabs(x));
    }
    double step = (most - least) / 15;
    for (uint32_t t = 0; t < n_tokens; t++) {
        double x = number(keys[t * n_columns + c]), y = number(back[t * n_columns + c]);
        assert_true(fabs(x - y) <= step / 2 + (largest + most - least) / 1024 + 1e-6);
        assert_true(step > 0 || x == y);
    }
}

static void half_a_step_at_most(void **unused)
{
    static uint16_t keys[TOKENS_MOST * COLUMNS_MOST], back[TOKENS_MOST * COLUMNS_MOST + 1];
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t n_tokens = 1 + draw(TOKENS_MOST), n = 1 + draw(COLUMNS_MOST);
        uint64_t bytes = probe_keys_bytes(n_tokens, n);
        uint8_t *packed = malloc(bytes); /* of this size, for the sanitizer */
        for (uint32_t c = 0; c < n; c++)
            fill_column(keys, n_tokens, n, c);
        memset(back, 0xff, sizeof back);
        probe_keys_pack(keys, n_tokens, n, packed);
        probe_keys_unpack(packed, n_tokens, n, back);
        for (uint32_t c = 0; c < n; c++)
            check_column(keys, back, n_tokens, n, c);
        assert_int_equal(back[n_tokens * n], 0xffff); /* nothing behind them */
        free(packed);
    }
}

/* The widest range that FP16 has, and what is no number: a value of the column's, and no other
 * column's trouble. */
static void odd_values_stay_in_their_column(void **unused)
{
    (void)unused;
    enum { TOKENS = 8, COLUMNS = 3 };
    uint16_t keys[TOKENS * COLUMNS], back[TOKENS * COLUMNS];
    uint8_t packed[4 * COLUMNS + TOKENS * 2];
    assert_int_equal(probe_keys_bytes(TOKENS, COLUMNS), sizeof packed);
    for (uint32_t t = 0; t < TOKENS; t++) {
        keys[t * COLUMNS] = t % 2 ? half_from_float(65504) : half_from_float(-65504);
        keys[t * COLUMNS + 1] = t == 3 ? 0x7e00 : half_from_float((float)t);
        keys[t * COLUMNS + 2] = 0x7e00;
    }
    probe_keys_pack(keys, TOKENS, COLUMNS, packed);
    probe_keys_unpack(packed, TOKENS, COLUMNS, back);
    for (uint32_t i = 0; i < TOKENS * COLUMNS; i++)
        assert_int_not_equal(back[i] & 0x7c00, 0x7c00); /* a number, and finite */
    for (uint32_t t = 0; t < TOKENS; t++) {
        assert_true(fabs(number(back[t * COLUMNS]) - (t % 2 ? 65504 : -65504)) < 100);
        assert_true(fabs(number(back[t * COLUMNS + 1]) - (t == 3 ? 0 : t)) <= 7.0 / 30 + 0.01);
        assert_int_equal(back[t * COLUMNS + 2], 0);
    }
}

int main(void)
{
    const char *seed = getenv("HILL_TEST_SEED");
    state = seed ? strtoull(seed, NULL, 0) : 16;
    printf("HILL_TEST_SEED=%llu\n", (unsigned long long)state);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_a_step_at_most),
        cmocka_unit_test(odd_values_stay_in_their_column),
    };
    return cmocka_run_group_tests_name("probe_keys", tests, NULL, NULL);
}
