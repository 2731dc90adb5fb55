/*
 * tests/cpu_scorer/test_cached_digests.c - random writes, reads and drops against arrays that know
 * neither frames nor groups' bytes (HILL_TEST_SEED): what is said to be here is a slot's newest
 * digest, and the cap is kept. In hot blocks that are lent: and no other hot block changes.
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

enum { BLOCKS = 10, LISTS = 3, GROUPS = BLOCKS * 4, SLOTS = GROUPS * 16, DIMS = 2 * 6 };

static const struct kv_geometry geometry = {1, 4, 2, 6};

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

static uint32_t count_free(const struct cached_digests *c, uint32_t first)
{
    uint32_t n = 0;
    for (; first != CACHED_NONE; first = c->next[first])
        n++;
    return n;
}

static uint32_t frames_free(const struct cached_digests *c)
{
    uint32_t n = c->n_frames ? count_free(c, c->own.free) : 0;
    for (uint32_t i = 0; i < c->config.n_owners; i++)
        n += count_free(c, c->owners[i].free);
    return n;
}

static uint32_t frames_in_all(const struct cached_digests *c)
{
    uint32_t n = c->own.n;
    for (uint32_t i = 0; i < c->config.n_owners; i++)
        n += c->owners[i].n;
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
        uint32_t n, group = slot % 64 / 16;
        const uint8_t *groups = cached_digests_at(c, slot / 64, group, &n);
        assert_in_range(n, 1, 4 - group);
        kv_digest_get(&geometry, groups, slot % 16, mantissas, exponents);
        assert_memory_equal(mantissas, flash[slot].mantissas, DIMS);
        assert_memory_equal(exponents, flash[slot].exponents, 2);
    }
    assert_int_equal(frames_taken(c) + frames_free(c), frames_in_all(c));
}

static uint64_t cap_of(uint32_t n_frames)
{
    return BLOCKS * KV_CACHED_BLOCK_BYTES + LISTS * KV_CACHED_LIST_BYTES +
           n_frames * (uint64_t)(4 * kv_group_bytes(&geometry) + KV_CACHED_FRAME_BYTES);
}

static int create(struct cached_digests *c, bool shares, uint64_t cap)
{
    const struct cached_digests_config config = {.geometry = geometry,
                                                 .n_blocks = BLOCKS,
                                                 .n_lists = LISTS,
                                                 .shares = shares,
                                                 .cap_bytes = cap};
    return cached_digests_create(c, &config);
}

/* Anything but a loan, once. */
static void use_at_random(struct cached_digests *c)
{
    uint32_t group = draw(GROUPS), what = draw(10);
    if (what < 4) {
        write_slot(c, draw(SLOTS));
    } else if (what < 8) {
        if (draw(2))
            cached_digests_want(c, group / 4, draw(c->config.n_lists));
        read_group(c, group, draw(0x10000));
    } else {
        cached_digests_drop(c, group / 4);
    }
}

static void test_random_use_equals_the_arrays(void **unused)
{
    const uint32_t frames[] = {0, 1, 4, BLOCKS, 2 * BLOCKS};
    (void)unused;
    draws_seed(1811);
    for (uint32_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        struct cached_digests c;
        uint64_t cap = cap_of(frames[i]) + draw(90);
        assert_int_equal(create(&c, false, cap), 0);
        assert_int_equal(c.n_frames, frames[i] < BLOCKS ? frames[i] : BLOCKS);
        assert_true(cached_digests_bytes(&c) <= cap);
        for (uint32_t n = 0; n < 3000; n++) {
            use_at_random(&c);
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
    assert_int_equal(create(&c, true, cap_of(0)), 0);
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
    assert_int_equal(create(&c, false, cap_of(2)), 0);
    for (uint32_t b = 0; b < 3; b++) {
        cached_digests_want(&c, b, b % LISTS);
        for (uint32_t lane = 0; lane < 64; lane++)
            write_slot(&c, b * 64 + lane);
    }
    assert_true(cached_digests_here(&c, 0) == UINT64_MAX);
    assert_true(cached_digests_here(&c, 1) == UINT64_MAX);
    assert_false(cached_digests_has(&c, 2));
    uint32_t n;
    const uint8_t *half = cached_digests_at(&c, 0, 2, &n);
    assert_int_equal(n, 2);
    assert_ptr_equal(cached_digests_at(&c, 1, 0, &n), half + 2 * kv_group_bytes(&geometry));
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
    assert_int_equal(create(&c, true, cap_of(2 * LISTS)), 0);
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

/* ---- hot blocks ----------------------------------------------------------------------------- */

enum { HOT = 22, OWNERS = 2, OWNER_LISTS = 3 };

/* The hot pool's planes, and which blocks are lent. */
static struct hot {
    uint8_t *digests, *entries;
    uint64_t digest_bytes, entry_bytes; /* of a block */
    bool lent[HOT];
} hot;

static void hot_begin(void)
{
    hot = (struct hot){.digest_bytes = 4 * kv_group_bytes(&geometry),
                       .entry_bytes = 64 * (uint64_t)kv_entry_bytes(&geometry)};
    hot.digests = aligned_alloc(64, HOT * hot.digest_bytes);
    hot.entries = aligned_alloc(64, HOT * hot.entry_bytes);
    memset(hot.digests, 0xa5, HOT * hot.digest_bytes);
    memset(hot.entries, 0xa5, HOT * hot.entry_bytes);
}

static void hot_end(void)
{
    free(hot.digests);
    free(hot.entries);
}

static void wipe(uint8_t *plane, uint64_t bytes, uint32_t block)
{
    memset(plane + block * bytes, 0xa5, bytes);
}

static void give_back(void *context, uint32_t block)
{
    (void)context;
    assert_true(hot.lent[block]);
    hot.lent[block] = false;
    wipe(hot.digests, hot.digest_bytes, block);
    wipe(hot.entries, hot.entry_bytes, block);
}

/* False: not enough are left. */
static bool lend(struct cached_digests *c, uint32_t owner)
{
    uint32_t blocks[KV_LENT_UNIT_MAX], n = 0;
    for (uint32_t tries = 0; n < c->unit.n_blocks && tries < 100 * HOT; tries++) {
        uint32_t block = draw(HOT);
        bool taken = hot.lent[block];
        for (uint32_t i = 0; i < n; i++)
            taken |= blocks[i] == block;
        if (!taken)
            blocks[n++] = block;
    }
    if (n < c->unit.n_blocks)
        return false;
    for (uint32_t i = 0; i < n; i++)
        hot.lent[blocks[i]] = true;
    cached_digests_lend(c, owner, blocks);
    return true;
}

static void check_plane(const uint8_t *plane, uint64_t bytes)
{
    for (uint32_t block = 0; block < HOT; block++)
        for (uint64_t i = 0; !hot.lent[block] && i < bytes; i++)
            assert_int_equal(plane[block * bytes + i], 0xa5);
}

static void check_hot(const struct cached_digests *c)
{
    uint32_t lent = 0;
    check_plane(hot.digests, hot.digest_bytes);
    check_plane(hot.entries, hot.entry_bytes);
    for (uint32_t block = 0; block < HOT; block++)
        lent += hot.lent[block];
    assert_int_equal(lent, cached_digests_lent(c, 0) + cached_digests_lent(c, 1));
}

static struct cached_digests begin_lent(uint64_t seed)
{
    struct cached_digests c;
    draws_seed(seed);
    hot_begin();
    const struct cached_digests_config config = {.geometry = geometry,
                                                 .n_blocks = BLOCKS,
                                                 .n_lists = OWNERS * OWNER_LISTS,
                                                 .hot_digests = hot.digests,
                                                 .hot_entries = hot.entries,
                                                 .n_hot_blocks = HOT,
                                                 .n_owners = OWNERS};
    assert_int_equal(cached_digests_create(&c, &config), 0);
    return c;
}

static void end_lent(struct cached_digests *c)
{
    check_hot(c);
    cached_digests_destroy(c);
    hot_end();
}

/* Entries of 48 bytes, and 320 bytes for the digests of sixteen: where 64 entries lie nine of these
 * groups fit, so that four blocks hold 13 frames, of which some lie in two blocks. */
static void test_lent_blocks_alone_change(void **unused)
{
    (void)unused;
    struct cached_digests c = begin_lent(1812);
    assert_int_equal(c.unit.n_blocks, 4);
    assert_int_equal(c.unit.n_frames, 13);
    for (uint32_t n = 0; n < 6000; n++) {
        uint32_t what = draw(200), owner = draw(OWNERS);
        if (what < 3)
            lend(&c, owner);
        else if (what == 3)
            cached_digests_take_back(&c, owner, 1 + draw(HOT), give_back, NULL);
        else
            use_at_random(&c);
        check(&c);
        if (n % 50 == 0)
            check_hot(&c);
    }
    end_lent(&c);
}

/* The seventh frame begins with the ninth group of the first block's entries, and goes on in the
 * second block. */
static void test_a_frame_may_lie_in_two_blocks(void **unused)
{
    (void)unused;
    struct cached_digests c = begin_lent(1814);
    assert_true(lend(&c, 0));
    for (uint32_t b = 0; b < BLOCKS; b++)
        cached_digests_want(&c, b, b % OWNER_LISTS);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        write_slot(&c, slot);
    for (uint32_t b = 0, n; b < BLOCKS; b++) {
        assert_true(cached_digests_here(&c, b) == UINT64_MAX);
        cached_digests_at(&c, b, 0, &n);
        assert_int_equal(n, b == 6 ? 1 : b == 8 ? 2 : 4);
    }
    check(&c);
    end_lent(&c);
}

/* Each owner has the frames of what it has lent, an equal part for each of its lists; taken back,
 * they are gone, and what was in them. */
static void test_owners_have_what_they_lend(void **unused)
{
    (void)unused;
    struct cached_digests c = begin_lent(1813);
    cached_digests_want(&c, 0, 0);
    assert_false(cached_digests_has(&c, 0));
    assert_true(lend(&c, 1));
    cached_digests_want(&c, 0, 0); /* a list of the other one */
    assert_false(cached_digests_has(&c, 0));
    uint32_t has = 0, each = (c.unit.n_frames + OWNER_LISTS - 1) / OWNER_LISTS;
    for (uint32_t b = 0; b < BLOCKS; b++) {
        cached_digests_want(&c, b, OWNER_LISTS);
        has += cached_digests_has(&c, b);
    }
    assert_int_equal(has, each);
    write_slot(&c, 5);
    assert_true(is_here(&c, 5));
    cached_digests_take_back(&c, 0, HOT, give_back, NULL); /* has none */
    assert_true(is_here(&c, 5));
    cached_digests_take_back(&c, 1, 1, give_back, NULL); /* a whole unit */
    assert_int_equal(cached_digests_lent(&c, 1), 0);
    assert_int_equal(frames_taken(&c), 0);
    end_lent(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_use_equals_the_arrays),
        cmocka_unit_test(test_a_small_cap_is_no_cache),
        cmocka_unit_test(test_blocks_stay_until_they_are_dropped),
        cmocka_unit_test(test_lists_share_the_frames),
        cmocka_unit_test(test_lent_blocks_alone_change),
        cmocka_unit_test(test_a_frame_may_lie_in_two_blocks),
        cmocka_unit_test(test_owners_have_what_they_lend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
