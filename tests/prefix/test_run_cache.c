/*
 * tests/prefix/test_run_cache.c - runs of stored prefixes in memory: the bytes of the right run or
 * none, never more than the cap, and what is of use often stays where the least recently used goes.
 * HILL_TEST_SEED draws others.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prefix/run_cache.h"
#include "tests/draws.h"
#include "tests/rounds.h"

enum { RUN = 96, NAMES = 300, OPERATIONS = TEST_ROUNDS(50000) };

/* The i-th of all names; neighbours differ in one field alone. */
static struct run_name name(uint32_t i)
{
    return (struct run_name){.stamp = 1 + i / 6, .layer = i / 2 % 3, .run = i % 2};
}

static const uint8_t *entries_of(uint32_t i)
{
    static uint8_t entries[RUN];
    for (uint32_t b = 0; b < RUN; b++)
        entries[b] = (uint8_t)(i * 7 + b * (1 + i / 256));
    return entries;
}

static struct run_cache *open_for(uint32_t runs, bool by_age)
{
    struct run_cache *cache;
    for (uint64_t cap = 300;; cap += RUN / 2) {
        assert_int_equal(run_cache_open(&cache, cap, RUN, by_age), 0);
        if (run_cache_room(cache) == runs)
            return cache;
        run_cache_close(cache);
    }
}

static bool use(struct run_cache *cache, uint32_t i, double importance)
{
    struct run_name n = name(i);
    const void *there = run_cache_use(cache, &n, importance);
    if (there)
        assert_memory_equal(there, entries_of(i), RUN);
    return there;
}

/* As a request does: used, and put where it had to be read. */
static bool hits(struct run_cache *cache, uint32_t i, double importance)
{
    struct run_name n = name(i);
    bool hit = use(cache, i, importance);
    if (!hit)
        run_cache_put(cache, &n, importance, entries_of(i));
    return hit;
}

static void the_cap_holds(void **unused)
{
    (void)unused;
    struct run_cache *cache;
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t run = 1 + draw(5000);
        uint64_t cap = draw(200000);
        int rc = run_cache_open(&cache, cap, run, draw(2));
        if (rc) {
            assert_int_equal(rc, HILL_E_INVALID);
            assert_true(cap < run + 400); /* one run and its tables */
            continue;
        }
        assert_true(run_cache_bytes(cache) <= cap);
        assert_true(run_cache_room(cache) > 0);
        run_cache_close(cache);
    }
}

/* The oracle: what was ever put, and nothing is told apart by less than its whole name. */
static void the_right_bytes_or_none(void **unused)
{
    (void)unused;
    for (uint32_t rule = 0; rule < 2; rule++) {
        struct run_cache *cache = open_for(40 + draw(100), rule);
        bool put[NAMES] = {false};
        uint32_t n_put = 0, n_hits = 0, found = 0;
        for (uint32_t o = 0; o < OPERATIONS; o++) {
            uint32_t i = draw(draw(2) ? NAMES : NAMES / 8);
            double importance = draw(1000) / 1000.0;
            struct run_name n = name(i);
            if (draw(50) == 0) {
                run_cache_drop(cache, &n);
                assert_false(use(cache, i, importance));
                put[i] = false;
                continue;
            }
            if (draw(2)) {
                bool there = use(cache, i, importance);
                assert_true(put[i] || !there);
                assert_true(there || !put[i] || n_put > run_cache_room(cache));
                n_hits += there;
                continue;
            }
            run_cache_put(cache, &n, importance, entries_of(i));
            n_put += !put[i];
            put[i] = true;
        }
        for (uint32_t i = 0; i < NAMES; i++) { /* what was dropped last has left room */
            struct run_name n = name(i);
            run_cache_put(cache, &n, 0, entries_of(i));
        }
        for (uint32_t i = 0; i < NAMES; i++)
            found += use(cache, i, 0);
        assert_true(n_hits > 0);
        assert_int_equal(found, run_cache_room(cache)); /* full, and of each one copy */
        run_cache_close(cache);
    }
}

/* Rounds of requests that use some runs again and many once: what share of the former is found? */
static double found_again(bool by_age)
{
    struct run_cache *cache = open_for(64, by_age);
    uint32_t found = 0, asked = 0, other = 100;
    for (uint32_t round = 0; round < 60; round++) {
        for (uint32_t i = 0; i < 32; i++) {
            found += hits(cache, i, 0.02);
            asked++;
        }
        for (uint32_t i = 0; i < 150; i++, other = other + 1 < NAMES ? other + 1 : 100)
            hits(cache, other, 0.002);
    }
    run_cache_close(cache);
    return (double)found / asked;
}

static void importance_times_frequency_stays(void **unused)
{
    (void)unused;
    double important = found_again(false), recent = found_again(true);
    printf("found again: by importance and frequency %.2f, by age %.2f\n", important, recent);
    assert_true(important > 0.95);
    assert_true(recent < 0.2);
}

static void yesterday_goes(void **unused)
{
    (void)unused;
    struct run_cache *cache = open_for(64, false);
    uint32_t left = 0, today = 0;
    for (uint32_t round = 0; round < 50; round++)
        for (uint32_t i = 0; i < 64; i++)
            hits(cache, i, 0.1);
    for (uint32_t round = 0; round < 100; round++)
        for (uint32_t i = 0; i < 60; i++)
            hits(cache, 100 + i, 0.1);
    for (uint32_t i = 0; i < 64; i++)
        left += use(cache, i, 0);
    for (uint32_t i = 0; i < 60; i++)
        today += use(cache, 100 + i, 0);
    assert_int_equal(today, 60);
    assert_true(left <= 4);
    run_cache_close(cache);
}

int main(void)
{
    draws_seed(20261123);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cap_holds),
        cmocka_unit_test(the_right_bytes_or_none),
        cmocka_unit_test(importance_times_frequency_stays),
        cmocka_unit_test(yesterday_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
