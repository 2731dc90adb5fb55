/*
 * tests/prefix/test_run_cache.c - runs of stored prefixes on the device and in memory: the bytes of
 * the right run or none, each in one place, never more than the caps; with one place a level, where
 * each run is against an oracle that follows the rule by decayed sums; with many, runs of most
 * worth are on the device; what is of use often stays where the least recently used goes.
 * HILL_TEST_SEED draws others.
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

#include "prefix/run_cache.h"
#include "tests/draws.h"
#include "tests/rounds.h"

enum { RUN = 96, NAMES = 300, OPERATIONS = TEST_ROUNDS(50000), SLOTS = 4096, AWAY = -1 };

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

/* ---- a device -------------------------------------------------------------------------------- */

static struct {
    uint8_t slots[SLOTS][RUN];
    bool written[SLOTS];
    uint32_t n_slots, fails_in; /* of the cache; calls from now on until one fails, or 0 */
} device;

static bool fails(void)
{
    return device.fails_in && --device.fails_in == 0;
}

static int write_run(void *context, uint32_t slot, const void *entries, struct hill_why *why)
{
    assert_ptr_equal(context, &device);
    assert_true(slot < device.n_slots);
    if (fails()) {
        memset(device.slots[slot], 0xee, RUN);
        return hill_fail(why, HILL_E_NODEV, "no device");
    }
    memcpy(device.slots[slot], entries, RUN);
    device.written[slot] = true;
    return 0;
}

static int read_run(void *context, uint32_t slot, void *entries, struct hill_why *why)
{
    assert_ptr_equal(context, &device);
    assert_true(slot < device.n_slots && device.written[slot]);
    if (fails())
        return hill_fail(why, HILL_E_NODEV, "no device");
    memcpy(entries, device.slots[slot], RUN);
    return 0;
}

static struct run_cache_terms terms_of(uint64_t memory_bytes, uint64_t device_bytes, bool by_age)
{
    return (struct run_cache_terms){.run_bytes = RUN,
                                    .by_age = by_age,
                                    .memory_bytes = memory_bytes,
                                    .device_bytes = device_bytes,
                                    .device = {write_run, read_run, &device}};
}

/* So many runs on the device and in memory. */
static struct run_cache *open_for(uint32_t slots, uint32_t room, bool by_age)
{
    struct run_cache *cache;
    uint64_t caps[2] = {0, 0};
    const uint32_t wanted[2] = {slots, room};
    for (int level = 0; level < 2; level++)
        for (uint32_t got = 0; got < wanted[level];) {
            caps[level] += RUN / 2;
            struct run_cache_terms t = terms_of(caps[1], caps[0], by_age);
            if (run_cache_open(&cache, &t))
                continue;
            got = level ? run_cache_room(cache) : run_cache_slots(cache);
            run_cache_close(cache);
        }
    if (room && slots) /* memory has what the cache itself takes */
        for (uint32_t got = slots + 1; got > slots;) {
            struct run_cache_terms t = terms_of(caps[1], caps[0], by_age);
            assert_int_equal(run_cache_open(&cache, &t), 0);
            got = run_cache_slots(cache);
            run_cache_close(cache);
            caps[0] -= got > slots ? RUN / 2 : 0;
        }
    struct run_cache_terms t = terms_of(caps[1], caps[0], by_age);
    assert_int_equal(run_cache_open(&cache, &t), 0);
    assert_int_equal(run_cache_slots(cache), slots);
    assert_int_equal(run_cache_room(cache), room);
    device.n_slots = slots;
    device.fails_in = 0;
    memset(device.written, 0, sizeof device.written);
    return cache;
}

enum { ON_DEVICE, IN_MEMORY };

/* Where it was found: its bytes are right. */
static int use(struct run_cache *cache, uint32_t i, double importance)
{
    struct run_name n = name(i);
    struct run_place at;
    bool there = run_cache_has(cache, &n);
    assert_int_equal(run_cache_use(cache, &n, importance, &at), there);
    if (!there)
        return AWAY;
    if (!at.entries)
        assert_true(at.slot < device.n_slots && device.written[at.slot]);
    assert_memory_equal(at.entries ? at.entries : device.slots[at.slot], entries_of(i), RUN);
    return at.entries ? IN_MEMORY : ON_DEVICE;
}

static int put(struct run_cache *cache, uint32_t i, double importance)
{
    struct run_name n = name(i);
    struct hill_why why = {""};
    return run_cache_put(cache, &n, importance, entries_of(i), &why);
}

/* As a request does: used, and put. */
static int hits(struct run_cache *cache, uint32_t i, double importance)
{
    int where = use(cache, i, importance);
    assert_int_equal(put(cache, i, importance), 0);
    return where;
}

static double any_importance(void)
{
    return (1 + draw(1u << 30)) / (double)(1u << 30);
}

/* ---- caps and bytes -------------------------------------------------------------------------- */

static void the_caps_hold(void **unused)
{
    (void)unused;
    struct run_cache *cache;
    for (uint32_t i = 0; i < 400; i++) {
        struct run_cache_terms t =
            terms_of(i % 4 == 1 ? 0 : 1 + draw(200000), i % 4 == 2 ? 0 : 1 + draw(200000), draw(2));
        t.run_bytes = 1 + draw(5000);
        int rc = run_cache_open(&cache, &t);
        uint64_t least = 2 * t.run_bytes + 400; /* a run, the spare one, and tables */
        if (rc) {
            assert_int_equal(rc, HILL_E_INVALID);
            assert_true((t.memory_bytes && t.memory_bytes < least) ||
                        (t.device_bytes && t.device_bytes < least));
            continue;
        }
        uint64_t slots = run_cache_slots(cache), room = run_cache_room(cache);
        assert_true(slots * t.run_bytes <= t.device_bytes);
        assert_true(room * t.run_bytes <= t.memory_bytes);
        assert_true(run_cache_bytes(cache) + slots * t.run_bytes <=
                    t.memory_bytes + t.device_bytes);
        assert_true((slots > 0) == (t.device_bytes > 0) && (room > 0) == (t.memory_bytes > 0));
        run_cache_close(cache);
    }
    struct run_cache_terms none = terms_of(0, 0, false);
    assert_int_equal(run_cache_open(&cache, &none), HILL_E_INVALID);
}

/* How many are there; no place has two of them, and no run two places. */
static uint32_t in_places_of_their_own(struct run_cache *cache)
{
    const void *places[NAMES];
    uint32_t found = 0;
    for (uint32_t i = 0; i < NAMES; i++) {
        struct run_name n = name(i);
        struct run_place at;
        if (!run_cache_use(cache, &n, 0, &at))
            continue;
        places[found] = at.entries ? at.entries : device.slots[at.slot];
        for (uint32_t p = 0; p < found; p++)
            assert_ptr_not_equal(places[p], places[found]);
        found++;
    }
    return found;
}

static void right_bytes_or_none(uint32_t slots, uint32_t room, bool by_age)
{
    struct run_cache *cache = open_for(slots, room, by_age);
    bool was_put[NAMES] = {false};
    uint32_t n_put = 0, n_hits[2] = {0, 0};
    for (uint32_t o = 0; o < OPERATIONS; o++) {
        uint32_t i = draw(draw(2) ? NAMES : NAMES / 8);
        double importance = draw(1000) / 1000.0;
        struct run_name n = name(i);
        if (draw(50) == 0) {
            run_cache_drop(cache, &n);
            assert_int_equal(use(cache, i, importance), AWAY);
            was_put[i] = false;
        } else if (draw(2)) {
            int where = use(cache, i, importance);
            assert_true(was_put[i] || where == AWAY);
            assert_true(where != AWAY || !was_put[i] || n_put > slots + room);
            if (where != AWAY)
                n_hits[where]++;
        } else {
            assert_int_equal(put(cache, i, importance), 0);
            n_put += !was_put[i];
            was_put[i] = true;
        }
    }
    for (uint32_t i = 0; i < NAMES; i++) /* what was dropped last has left room */
        assert_int_equal(put(cache, i, 0), 0);
    assert_int_equal(in_places_of_their_own(cache), slots + room);
    assert_true((n_hits[ON_DEVICE] > 0) == (slots > 0));
    assert_true((n_hits[IN_MEMORY] > 0) == (room > 0));
    assert_true((run_cache_raised(cache) > 0) == (slots && room));
    run_cache_close(cache);
}

/* The oracle: what was ever put, and nothing is told apart by less than its whole name. */
static void the_right_bytes_or_none(void **unused)
{
    (void)unused;
    for (uint32_t by_age = 0; by_age < 2; by_age++) {
        right_bytes_or_none(0, 40 + draw(100), by_age);
        right_bytes_or_none(40 + draw(100), 0, by_age);
        right_bytes_or_none(20 + draw(60), 20 + draw(60), by_age);
    }
}

/* What was to be moved when the device failed is not found; the rest is right, and all is used. */
static void a_device_that_fails(void **unused)
{
    (void)unused;
    uint32_t failed = 0;
    struct run_cache *cache = open_for(20, 20, false);
    for (uint32_t o = 0; o < 4000; o++) {
        uint32_t i = draw(100);
        double importance = any_importance();
        device.fails_in = draw(3) ? 0 : 1 + draw(2);
        use(cache, i, importance);
        int rc = put(cache, i, importance);
        assert_true(rc == 0 || rc == HILL_E_NODEV);
        failed += rc != 0;
        device.fails_in = 0;
        if (rc)
            assert_int_equal(use(cache, i, 0), AWAY);
    }
    assert_true(failed > 50);
    for (uint32_t i = 0; i < NAMES; i++)
        assert_int_equal(put(cache, i, 0), 0);
    assert_int_equal(in_places_of_their_own(cache), 40);
    run_cache_close(cache);
}

/* ---- which run is where ---------------------------------------------------------------------- */

/* With one place a level nothing is left to the draw. Worth: a sum that decays, no ranks. */
struct oracle {
    bool by_age;
    double now, half_life;
    struct oracle_run {
        bool there;
        uint32_t i;
        double worth, at; /* then */
    } level[2];
};

static double worth_now(const struct oracle *o, const struct oracle_run *r)
{
    return o->by_age ? r->at : r->worth * pow(0.5, (o->now - r->at) / o->half_life);
}

static bool comes_before(const struct oracle *o, const struct oracle_run *a,
                         const struct oracle_run *b)
{
    double x = worth_now(o, a), y = worth_now(o, b);
    return x > y || (o->by_age && x == y);
}

static int oracle_use(struct oracle *o, uint32_t i, double importance)
{
    o->now++;
    for (int l = 0; l < 2; l++) {
        struct oracle_run *r = &o->level[l];
        if (!r->there || r->i != i)
            continue;
        r->worth = (o->by_age ? 0 : worth_now(o, r)) + importance;
        r->at = o->now;
        return l;
    }
    return AWAY;
}

static void oracle_put(struct oracle *o, uint32_t i, double importance, const bool has[2])
{
    struct oracle_run *up = &o->level[ON_DEVICE], *low = &o->level[IN_MEMORY];
    struct oracle_run comes = {true, i, importance, o->now};
    if (up->there && up->i == i)
        return;
    bool was_low = low->there && low->i == i;
    if (was_low)
        comes = *low;
    if (has[ON_DEVICE] && (!up->there || comes_before(o, &comes, up))) {
        struct oracle_run falls = *up;
        *up = comes;
        if (was_low)
            *low = falls;
        else if (falls.there && has[IN_MEMORY] && (!low->there || comes_before(o, &falls, low)))
            *low = falls;
    } else if (!was_low && has[IN_MEMORY] && (!low->there || comes_before(o, &comes, low))) {
        *low = comes;
    }
}

static void as_the_oracle_says(bool on_device, bool in_memory, bool by_age)
{
    struct run_cache *cache = open_for(on_device, in_memory, by_age);
    const bool has[2] = {on_device, in_memory};
    struct oracle o = {.by_age = by_age, .half_life = 4.0 * (on_device + in_memory)};
    uint32_t seen[2] = {0, 0};
    for (uint32_t operation = 0; operation < OPERATIONS / 5; operation++) {
        uint32_t i = draw(5);
        double importance = any_importance() * (draw(3) ? 1 : 0.01);
        int wanted = oracle_use(&o, i, importance);
        assert_int_equal(use(cache, i, importance), wanted);
        if (wanted != AWAY)
            seen[wanted]++;
        if (draw(4) == 0)
            continue;
        assert_int_equal(put(cache, i, importance), 0);
        oracle_put(&o, i, importance, has);
    }
    assert_true((seen[ON_DEVICE] > 0) == on_device && (seen[IN_MEMORY] > 0) == in_memory);
    run_cache_close(cache);
}

static void each_is_where_the_rule_says(void **unused)
{
    (void)unused;
    for (uint32_t by_age = 0; by_age < 2; by_age++) {
        as_the_oracle_says(true, true, by_age);
        as_the_oracle_says(true, false, by_age);
        as_the_oracle_says(false, true, by_age);
    }
}

/* Of pairs, one on the device and one in memory: how many have more worth on the device? */
static void most_worth_is_on_the_device(void **unused)
{
    (void)unused;
    struct run_cache *cache = open_for(50, 100, false);
    double worth[NAMES] = {0}, at[NAMES] = {0}, now = 0, half_life = 4 * 150;
    uint32_t right = 0, pairs = 0;
    int where[NAMES];
    for (uint32_t o = 0; o < OPERATIONS / 2; o++) {
        uint32_t i = draw(1 + draw(NAMES));
        double importance = any_importance() * 0.1;
        now++;
        worth[i] = hits(cache, i, importance) == AWAY
                       ? importance
                       : worth[i] * pow(0.5, (now - at[i]) / half_life) + importance;
        at[i] = now;
    }
    for (uint32_t i = 0; i < NAMES; i++) {
        worth[i] *= pow(0.5, (now - at[i]) / half_life);
        where[i] = use(cache, i, 0);
    }
    for (uint32_t i = 0; i < NAMES; i++)
        for (uint32_t k = 0; k < NAMES; k++)
            if (where[i] == ON_DEVICE && where[k] == IN_MEMORY) {
                pairs++;
                right += worth[i] > worth[k];
            }
    assert_int_equal(pairs, 50 * 100);
    printf("more worth on the device than in memory: %.3f of pairs; %llu runs went up\n",
           (double)right / pairs, (unsigned long long)run_cache_raised(cache));
    assert_true(right > 0.9 * pairs);
    run_cache_close(cache);
}

/* What has come first is on the device; what is of more use later goes there out of memory. */
static void what_is_of_use_goes_up(void **unused)
{
    (void)unused;
    struct run_cache *cache = open_for(32, 40, false);
    uint32_t up = 0, there = 0;
    for (uint32_t i = 0; i < 64; i++)
        assert_int_equal(hits(cache, i, 0.5), AWAY);
    for (uint32_t round = 0; round < 40; round++)
        for (uint32_t i = 32; i < 64; i++)
            hits(cache, i, 0.5);
    for (uint32_t i = 0; i < 64; i++) {
        int where = use(cache, i, 0);
        up += i >= 32 && where == ON_DEVICE;
        there += where != AWAY;
    }
    assert_true(up >= 30);
    assert_int_equal(there, 64);
    run_cache_close(cache);
}

/* Rounds of requests that use some runs again and many once: what share of the former is found? */
static double found_again(uint32_t slots, bool by_age)
{
    struct run_cache *cache = open_for(slots, 64 - slots, by_age);
    uint32_t found = 0, asked = 0, other = 100;
    for (uint32_t round = 0; round < 60; round++) {
        for (uint32_t i = 0; i < 32; i++) {
            found += hits(cache, i, 0.02) != AWAY;
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
    for (uint32_t slots = 0; slots <= 64; slots += 32) {
        double important = found_again(slots, false), recent = found_again(slots, true);
        printf("found again: by importance and frequency %.2f, by age %.2f\n", important, recent);
        assert_true(important > 0.95);
        assert_true(recent < 0.2);
    }
}

static void yesterday(uint32_t slots)
{
    struct run_cache *cache = open_for(slots, 64 - slots, false);
    uint32_t left = 0, today = 0;
    for (uint32_t round = 0; round < 50; round++)
        for (uint32_t i = 0; i < 64; i++)
            hits(cache, i, 0.1);
    for (uint32_t round = 0; round < 100; round++)
        for (uint32_t i = 0; i < 60; i++)
            hits(cache, 100 + i, 0.1);
    for (uint32_t i = 0; i < 64; i++)
        left += use(cache, i, 0) != AWAY;
    for (uint32_t i = 0; i < 60; i++)
        today += use(cache, 100 + i, 0) != AWAY;
    assert_int_equal(today, 60);
    assert_true(left <= 4);
    run_cache_close(cache);
}

static void yesterday_goes(void **unused)
{
    (void)unused;
    for (uint32_t slots = 0; slots <= 64; slots += 32)
        yesterday(slots);
}

int main(void)
{
    draws_seed(20261123);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_caps_hold),
        cmocka_unit_test(the_right_bytes_or_none),
        cmocka_unit_test(a_device_that_fails),
        cmocka_unit_test(each_is_where_the_rule_says),
        cmocka_unit_test(most_worth_is_on_the_device),
        cmocka_unit_test(what_is_of_use_goes_up),
        cmocka_unit_test(importance_times_frequency_stays),
        cmocka_unit_test(yesterday_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
