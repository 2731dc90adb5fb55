/* tests/csd_agent/test_digest_cache.c - what is written at once may go on from one stripe to the
 * next, and from or to what is no digest: each stripe's pages must be the new ones. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "csd_agent/digest_cache.h"

#define STRIPES 3u
#define EACH    2u /* pages of a stripe's digests */
#define BEGIN   (4u * CSD_ALIGN)
#define PAGES   (STRIPES * EACH)

static uint8_t pages[(PAGES + 2) * CSD_ALIGN];

/* n pages from page `first` of all digests on, which may be one before them, with this byte. */
static void put(struct digest_cache *c, int first, uint32_t n, uint8_t byte)
{
    memset(pages, byte, n * CSD_ALIGN);
    digest_cache_put(c, (uint64_t)((int64_t)BEGIN + first * (int64_t)CSD_ALIGN), n * CSD_ALIGN,
                     pages);
}

/* The byte of a page that is here, -1: it is not. */
static int byte_of(struct digest_cache *c, uint32_t page)
{
    uint8_t got[CSD_ALIGN];
    if (!digest_cache_get(c, BEGIN + page * CSD_ALIGN, CSD_ALIGN, got))
        return -1;
    for (uint32_t i = 1; i < CSD_ALIGN; i++)
        assert_int_equal(got[i], got[0]);
    return got[0];
}

static void assert_pages(struct digest_cache *c, const int expected[PAGES])
{
    for (uint32_t page = 0; page < PAGES; page++)
        assert_int_equal(byte_of(c, page), expected[page]);
}

static void a_write_over_a_stripes_end_is_in_both(void **state)
{
    (void)state;
    const struct pool_layout layout = {
        .n_stripes = STRIPES, .digest_offset = BEGIN, .digest_stripe_bytes = EACH * CSD_ALIGN};
    struct digest_cache c;
    assert_int_equal(digest_cache_create(&c, &layout), 0);
    put(&c, 0, 1, 1); /* no room yet */
    assert_pages(&c, (const int[]){-1, -1, -1, -1, -1, -1});
    digest_cache_limit(&c, 1 << 20);
    for (uint32_t page = 0; page < PAGES; page++)
        put(&c, (int)page, 1, 1);
    put(&c, 1, 2, 2);
    assert_pages(&c, (const int[]){1, 2, 2, 1, 1, 1});
    put(&c, 1, 4, 3); /* all of the stripe between */
    assert_pages(&c, (const int[]){1, 3, 3, 3, 3, 1});
    put(&c, -1, 2, 4);        /* from what lies before */
    put(&c, PAGES - 1, 3, 5); /* to what lies behind */
    assert_pages(&c, (const int[]){4, 3, 3, 3, 3, 5});
    digest_cache_drop(&c, BEGIN + CSD_ALIGN, 2 * CSD_ALIGN);
    assert_pages(&c, (const int[]){4, -1, -1, 3, 3, 5});
    digest_cache_destroy(&c);
}

enum { BIG = PIECE_PAGES * 2 + 3 }; /* pages: two pieces and a part of one */

/* A range of pages, of one piece or several, is here when all of it is. */
static bool is_here(struct digest_cache *c, uint32_t first, uint32_t n)
{
    static uint8_t got[BIG * CSD_ALIGN];
    return digest_cache_get(c, BEGIN + first * CSD_ALIGN, n * CSD_ALIGN, got);
}

/* The cap counts pieces, not stripes; what the host scores goes, and only that. */
static void pieces_come_and_go_by_themselves(void **state)
{
    (void)state;
    const struct pool_layout layout = {
        .n_stripes = 2, .digest_offset = BEGIN, .digest_stripe_bytes = BIG * CSD_ALIGN};
    static uint8_t all[BIG * CSD_ALIGN];
    struct digest_cache c;
    assert_int_equal(digest_cache_create(&c, &layout), 0);
    digest_cache_limit(&c, (2 * PIECE_PAGES + 2) * CSD_ALIGN);
    digest_cache_put(&c, BEGIN, sizeof all, all);
    assert_true(is_here(&c, 0, 2 * PIECE_PAGES));
    assert_false(is_here(&c, 2 * PIECE_PAGES, 3)); /* it takes 3 pages */
    assert_int_equal(c.bytes, 2 * PIECE_PAGES * CSD_ALIGN);
    assert_int_equal(digest_cache_together(&c, BEGIN + 3 * CSD_ALIGN, sizeof all),
                     (PIECE_PAGES - 3) * CSD_ALIGN);
    digest_cache_pass(&c, 0, 1, PIECE_PAGES * CSD_ALIGN); /* no piece lies within */
    assert_true(is_here(&c, 0, 2 * PIECE_PAGES));
    digest_cache_pass(&c, 0, CSD_ALIGN, (2 * PIECE_PAGES - 1) * CSD_ALIGN); /* the second does */
    assert_true(is_here(&c, 0, PIECE_PAGES));
    assert_false(is_here(&c, PIECE_PAGES, 1));
    digest_cache_put(&c, BEGIN + 2 * PIECE_PAGES * CSD_ALIGN, 3 * CSD_ALIGN, all);
    assert_true(is_here(&c, 2 * PIECE_PAGES, 3)); /* there is room now */
    assert_false(is_here(&c, 0, BIG));
    digest_cache_free_stripe(&c, 0);
    assert_int_equal(c.bytes, 0);
    digest_cache_destroy(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_write_over_a_stripes_end_is_in_both),
        cmocka_unit_test(pieces_come_and_go_by_themselves),
    };
    return cmocka_run_group_tests_name("digest_cache", tests, NULL, NULL);
}
