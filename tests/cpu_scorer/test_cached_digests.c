/*
 * tests/cpu_scorer/test_cached_digests.c - random writes, reads and drops against arrays that know
 * neither frames nor groups' bytes (HILL_TEST_SEED): what is said to be here is a slot's newest
 * digest, and the cap is kept.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_scorer/cached_digests.h"
#include "kv/plan.h"
#include "tests/draws.h"
#include "tests/kv/digests.h"

enum { BLOCKS = 10, LISTS = 3, GROUPS = BLOCKS * 4, SLOTS = GROUPS * 16, DIMS = 2 * 5 };

static const struct kv_geometry geometry = {1, 4, 2, 5};

/* Of each slot: its digest on flash, which is its newest. */
static struct {
    int8_t mantissas[DIMS];
    uint8_t exponents[2];
} flash[SLOTS];

static void draw_slot(uint32_t slot)
{
    for (uint32_t i = 0; i < DIMS; i++)
        flash[slot].mantissas[i] = (int8_t)((int)draw(255) - 127);
    for (uint32_t h = 0; h < 2; h++)
        flash[slot].exponents[h] = (uint8_t)draw(17);
}

/* A group as a query reads it: slots that do not count have noise. */
static void read_group(struct cached_digests *c, uint32_t group, uint32_t counts)
{
    uint8_t *bytes = malloc(kv_group_bytes(&geometry));
    for (uint32_t i = 0; i < kv_group_bytes(&geometry); i++)
        bytes[i] = (uint8_t)draw(256);
    for (uint32_t lane = 0; lane < 16; lane++)
        if (counts >> lane & 1)
            kv_digest_put(&geometry, bytes, lane, flash[group * 16 + lane].mantissas,
                          flash[group * 16 + lane].exponents);
    cached_digests_fill(c, group, counts, bytes);
    free(bytes);
}

static void write_slot(struct cached_digests *c, uint32_t slot)
{
    uint8_t record[1024];
    uint32_t lane = draw(40);
    assert_true(3 * kv_group_bytes(&geometry) <= sizeof record);
    memset(record, 0x55, sizeof record);
    draw_slot(slot);
    kv_digest_put(&geometry, record, lane, flash[slot].mantissas, flash[slot].exponents);
    cached_digests_put(c, slot, record, lane);
}

static uint32_t frames_taken(const struct cached_digests *c)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < BLOCKS; b++)
        n += cached_digests_has(c, b);
    return n;
}

static bool is_here(const struct cached_digests *c, uint32_t slot)
{
    return cached_digests_here(c, slot / 64) >> slot % 64 & 1;
}

static void check(const struct cached_digests *c)
{
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        int8_t mantissas[DIMS];
        uint8_t exponents[2];
        if (!is_here(c, slot))
            continue;
        kv_digest_get(&geometry, cached_digests_at(c, slot / 64), slot % 64, mantissas, exponents);
        assert_memory_equal(mantissas, flash[slot].mantissas, DIMS);
        assert_memory_equal(exponents, flash[slot].exponents, 2);
    }
    assert_int_equal(frames_taken(c) + c->n_free, c->n_frames);
}

static uint64_t cap_of(uint32_t n_frames)
{
    return BLOCKS * KV_CACHED_BLOCK_BYTES + LISTS * KV_CACHED_LIST_BYTES +
           n_frames * (uint64_t)(4 * kv_group_bytes(&geometry) + KV_CACHED_FRAME_BYTES);
}

static void test_random_use_equals_the_arrays(void **unused)
{
    const uint32_t frames[] = {0, 1, 4, BLOCKS, 2 * BLOCKS};
    (void)unused;
    draws_seed(1811);
    for (uint32_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        struct cached_digests c;
        uint64_t cap = cap_of(frames[i]) + draw(90);
        assert_int_equal(cached_digests_create(&c, &geometry, BLOCKS, LISTS, false, cap), 0);
        assert_int_equal(c.n_frames, frames[i] < BLOCKS ? frames[i] : BLOCKS);
        assert_true(cached_digests_bytes(&c) <= cap);
        for (uint32_t n = 0; n < 3000; n++) {
            uint32_t group = draw(GROUPS), what = draw(10);
            if (what < 4) {
                write_slot(&c, draw(SLOTS));
            } else if (what < 8) {
                if (draw(2))
                    cached_digests_want(&c, group / 4, draw(LISTS));
                read_group(&c, group, draw(0x10000));
            } else {
                cached_digests_drop(&c, group / 4);
            }
            check(&c);
        }
        cached_digests_destroy(&c);
    }
}

/* A cap that does not even hold the tables is none. */
static void test_a_small_cap_is_no_cache(void **unused)
{
    struct cached_digests c;
    (void)unused;
    assert_int_equal(cached_digests_create(&c, &geometry, BLOCKS, LISTS, true, cap_of(0)), 0);
    assert_int_equal(cached_digests_bytes(&c), 0);
    cached_digests_want(&c, 3, 0);
    write_slot(&c, 3 * 64 + 50);
    read_group(&c, 3 * 4, 0xffff);
    cached_digests_drop(&c, 3);
    assert_int_equal(cached_digests_here(&c, 3), 0);
    cached_digests_destroy(&c);
}

/* What came first stays while there is no room; what was dropped makes room. */
static void test_blocks_stay_until_they_are_dropped(void **unused)
{
    struct cached_digests c;
    (void)unused;
    assert_int_equal(cached_digests_create(&c, &geometry, BLOCKS, LISTS, false, cap_of(2)), 0);
    for (uint32_t b = 0; b < 3; b++) {
        cached_digests_want(&c, b, b % LISTS);
        for (uint32_t lane = 0; lane < 64; lane++)
            write_slot(&c, b * 64 + lane);
    }
    assert_true(cached_digests_here(&c, 0) == UINT64_MAX);
    assert_true(cached_digests_here(&c, 1) == UINT64_MAX);
    assert_false(cached_digests_has(&c, 2));
    assert_ptr_equal(cached_digests_at(&c, 1),
                     cached_digests_at(&c, 0) + 4 * kv_group_bytes(&geometry));
    cached_digests_drop(&c, 0);
    cached_digests_want(&c, 2, 0);
    write_slot(&c, 2 * 64 + 3);
    assert_int_equal(cached_digests_here(&c, 0), 0);
    assert_int_equal(cached_digests_here(&c, 2), 8);
    cached_digests_destroy(&c);
}

/* A list has no more than its part, which another one's blocks do not take. A block that another
 * list has now begins empty, and counts as that one's. */
static void test_lists_share_the_frames(void **unused)
{
    struct cached_digests c;
    (void)unused;
    assert_int_equal(cached_digests_create(&c, &geometry, BLOCKS, LISTS, true, cap_of(2 * LISTS)),
                     0);
    for (uint32_t b = 0; b < 4; b++)
        cached_digests_want(&c, b, 1);
    assert_true(cached_digests_has(&c, 0) && cached_digests_has(&c, 1));
    assert_false(cached_digests_has(&c, 2) || cached_digests_has(&c, 3));
    write_slot(&c, 7);
    cached_digests_want(&c, 0, 1);
    assert_int_equal(cached_digests_here(&c, 0), 1 << 7);
    cached_digests_want(&c, 0, 2);
    assert_true(cached_digests_has(&c, 0));
    assert_int_equal(cached_digests_here(&c, 0), 0);
    cached_digests_want(&c, 2, 1);
    assert_true(cached_digests_has(&c, 2));
    for (uint32_t b = 3; b < 6; b++)
        cached_digests_want(&c, b, 2);
    assert_true(cached_digests_has(&c, 3));
    assert_false(cached_digests_has(&c, 4) || cached_digests_has(&c, 5));
    check(&c);
    cached_digests_destroy(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_use_equals_the_arrays),
        cmocka_unit_test(test_a_small_cap_is_no_cache),
        cmocka_unit_test(test_blocks_stay_until_they_are_dropped),
        cmocka_unit_test(test_lists_share_the_frames),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
