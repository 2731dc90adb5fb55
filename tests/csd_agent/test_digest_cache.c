/* tests/csd_agent/test_digest_cache.c - what is written at once may go on from one stripe to the
 * next, and from or to what is no digest: each stripe's pages must be the new ones. What goes when
 * the cap is reached, and in which order. */
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

static uint8_t piece[PIECE_PAGES * CSD_ALIGN];

static void put_piece(struct digest_cache *c, uint32_t i)
{
    digest_cache_put(c, BEGIN + i * sizeof piece, sizeof piece, piece);
}

/* The pieces in memory, a bit each; a look at them with digest_cache_get would ask for them. */
static unsigned held(const struct digest_cache *c)
{
    unsigned bits = 0;
    for (uint32_t i = 0; i < c->layout.n_stripes * c->of_stripe; i++)
        bits |= (c->pieces[i].pages != NULL) << i;
    return bits;
}

/* The piece that was asked for longest ago goes first, whatever its place, also of pieces that one
 * query asked for; to make room, only a piece goes that is idle. */
static void the_piece_asked_for_longest_ago_goes_first(void **state)
{
    (void)state;
    const struct pool_layout layout = {
        .n_stripes = 4, .digest_offset = BEGIN, .digest_stripe_bytes = sizeof piece};
    struct digest_cache c;
    assert_int_equal(digest_cache_create(&c, &layout), 0);
    put_piece(&c, 3);
    assert_int_equal(held(&c), 0); /* a drive without DRAM */
    digest_cache_limit(&c, 3 * sizeof piece);
    put_piece(&c, 2);
    put_piece(&c, 0);
    put_piece(&c, 1);
    put_piece(&c, 2); /* a write asks for nothing */
    digest_cache_limit(&c, 2 * sizeof piece);
    assert_int_equal(held(&c), 1u << 0 | 1u << 1);
    assert_true(is_here(&c, 0, PIECE_PAGES)); /* 0 is newer than 1 */
    for (uint32_t query = 0; query < 4 * layout.n_stripes; query++)
        digest_cache_turn(&c);
    put_piece(&c, 3);
    assert_int_equal(held(&c), 1u << 0 | 1u << 1); /* not idle yet */
    digest_cache_turn(&c);
    assert_true(is_here(&c, 0, PIECE_PAGES));
    put_piece(&c, 3);
    assert_int_equal(held(&c), 1u << 0 | 1u << 3);
    put_piece(&c, 1); /* of this query is what is here */
    assert_int_equal(held(&c), 1u << 0 | 1u << 3);
    digest_cache_free_stripe(&c, 0);
    put_piece(&c, 1);
    digest_cache_limit(&c, sizeof piece);
    assert_int_equal(held(&c), 1u << 1);
    digest_cache_limit(&c, 0);
    assert_int_equal(c.bytes, 0);
    digest_cache_destroy(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_write_over_a_stripes_end_is_in_both),
        cmocka_unit_test(pieces_come_and_go_by_themselves),
        cmocka_unit_test(the_piece_asked_for_longest_ago_goes_first),
    };
    return cmocka_run_group_tests_name("digest_cache", tests, NULL, NULL);
}
