/* csd_agent/digest_cache.c - see digest_cache.h. */
#include "csd_agent/digest_cache.h"

#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES ((uint64_t)PIECE_PAGES * CSD_ALIGN)

/* A piece that so many times as many queries as there are stripes have not asked for is of a
 * sequence that rests. */
#define QUERIES_IDLE 4u

_Static_assert(PIECE_PAGES <= 64, "a word has a bit for each page of a piece");

static uint64_t n_pieces(const struct digest_cache *c)
{
    return c->pieces ? (uint64_t)c->layout.n_stripes * c->of_stripe : 0;
}

/* The end of the queue at both sides: behind the newest piece, and before the oldest. */
static struct cached_piece *queue_end(const struct digest_cache *c)
{
    return &c->pieces[n_pieces(c)];
}

int digest_cache_create(struct digest_cache *c, const struct pool_layout *layout)
{
    *c = (struct digest_cache){.layout = *layout};
    c->of_stripe = (uint32_t)((layout->digest_stripe_bytes + PIECE_BYTES - 1) / PIECE_BYTES);
    c->pieces = calloc((size_t)layout->n_stripes * c->of_stripe + 1, sizeof *c->pieces);
    if (!c->pieces)
        return HILL_E_NOMEM;
    queue_end(c)->older = queue_end(c)->newer = queue_end(c);
    return 0;
}

static void leave_queue(struct cached_piece *p)
{
    p->older->newer = p->newer;
    p->newer->older = p->older;
}

/* The query asks for it: it is the newest. */
static void enter_queue(struct digest_cache *c, struct cached_piece *p)
{
    p->asked = c->query;
    p->newer = queue_end(c);
    p->older = p->newer->older;
    p->older->newer = p->newer->older = p;
}

/* Of a stripe's i-th piece. */
static uint64_t piece_bytes(const struct digest_cache *c, uint64_t i)
{
    uint64_t left = c->layout.digest_stripe_bytes - i * PIECE_BYTES;
    return left < PIECE_BYTES ? left : PIECE_BYTES;
}

static void let_go(struct digest_cache *c, struct cached_piece *p)
{
    if (!p->pages)
        return;
    free(p->pages);
    leave_queue(p);
    *p = (struct cached_piece){0};
    c->bytes -= piece_bytes(c, (uint64_t)(p - c->pieces) % c->of_stripe);
}

void digest_cache_destroy(struct digest_cache *c)
{
    for (uint64_t i = 0; i < n_pieces(c); i++)
        let_go(c, &c->pieces[i]);
    free(c->pieces);
    *c = (struct digest_cache){0};
}

void digest_cache_limit(struct digest_cache *c, uint64_t cap_bytes)
{
    c->cap_bytes = cap_bytes;
    while (c->bytes > c->cap_bytes)
        let_go(c, queue_end(c)->newer);
}

void digest_cache_free_stripe(struct digest_cache *c, uint32_t stripe)
{
    for (uint64_t i = 0; i < c->of_stripe; i++)
        let_go(c, &c->pieces[(uint64_t)stripe * c->of_stripe + i]);
}

void digest_cache_pass(struct digest_cache *c, uint32_t stripe, uint64_t first, uint64_t bytes)
{
    uint64_t i = (first + PIECE_BYTES - 1) / PIECE_BYTES;
    for (; i < c->of_stripe && i * PIECE_BYTES + piece_bytes(c, i) <= first + bytes; i++)
        let_go(c, &c->pieces[(uint64_t)stripe * c->of_stripe + i]);
}

void digest_cache_turn(struct digest_cache *c)
{
    c->query++;
}

/* Room for a piece that is not here. */
static bool take_in(struct digest_cache *c, struct cached_piece *p)
{
    uint64_t idle = (uint64_t)c->layout.n_stripes * QUERIES_IDLE;
    uint64_t bytes = piece_bytes(c, (uint64_t)(p - c->pieces) % c->of_stripe);
    while (c->bytes + bytes > c->cap_bytes) {
        struct cached_piece *oldest = queue_end(c)->newer;
        if (!oldest->pages || c->query - oldest->asked <= idle)
            return false; /* there is none, or all were asked for lately */
        let_go(c, oldest);
    }
    p->pages = aligned_alloc(CSD_ALIGN, bytes);
    if (!p->pages)
        return false;
    enter_queue(c, p);
    c->bytes += bytes;
    return true;
}

/* The first bytes of a range, as far as they are of one piece, or of no digests at all: then
 * *piece is NULL. What is written at once may go on from one stripe to the next. */
static uint64_t part_of(const struct digest_cache *c, uint64_t offset, uint64_t bytes,
                        struct cached_piece **piece, uint64_t *first_page)
{
    const struct pool_layout *l = &c->layout;
    uint64_t in_digests = offset - l->digest_offset;
    uint64_t stripe = in_digests / l->digest_stripe_bytes;
    uint64_t within = in_digests % l->digest_stripe_bytes, left;
    *piece = NULL;
    if (offset < l->digest_offset) {
        left = l->digest_offset - offset;
    } else if (stripe >= l->n_stripes) {
        left = bytes;
    } else {
        uint64_t i = within / PIECE_BYTES;
        *piece = &c->pieces[stripe * c->of_stripe + i];
        *first_page = within % PIECE_BYTES / CSD_ALIGN;
        left = i * PIECE_BYTES + piece_bytes(c, i) - within;
    }
    return bytes < left ? bytes : left;
}

static bool has_digests(const struct digest_cache *c)
{
    return c->pieces && !c->layout.key_bytes;
}

static uint64_t bits_of(uint64_t first_page, uint64_t bytes)
{
    uint64_t pages = bytes / CSD_ALIGN;
    return (pages < 64 ? ((uint64_t)1 << pages) - 1 : UINT64_MAX) << first_page;
}

/* A part of a range that is got: asked for, also where pages of it are missing. */
static bool get_part(struct digest_cache *c, struct cached_piece *p, uint64_t page, uint64_t bytes,
                     uint8_t *to)
{
    if (!p->pages)
        return false;
    leave_queue(p);
    enter_queue(c, p);
    if ((p->there & bits_of(page, bytes)) != bits_of(page, bytes))
        return false;
    if (to)
        memcpy(to, p->pages + page * CSD_ALIGN, bytes);
    return true;
}

static bool get_all(struct digest_cache *c, uint64_t offset, uint64_t bytes, uint8_t *to)
{
    bool all = true;
    for (uint64_t n, page = 0; bytes > 0; offset += n, bytes -= n) {
        struct cached_piece *p;
        n = part_of(c, offset, bytes, &p, &page);
        all = p && get_part(c, p, page, n, to) && all;
        to = to ? to + n : NULL;
    }
    return all;
}

uint64_t digest_cache_together(const struct digest_cache *c, uint64_t offset, uint64_t bytes)
{
    struct cached_piece *p;
    uint64_t page;
    return has_digests(c) && c->cap_bytes ? part_of(c, offset, bytes, &p, &page) : bytes;
}

bool digest_cache_get(struct digest_cache *c, uint64_t offset, uint64_t bytes, uint8_t *to)
{
    return has_digests(c) && get_all(c, offset, bytes, NULL) && get_all(c, offset, bytes, to);
}

void digest_cache_put(struct digest_cache *c, uint64_t offset, uint64_t bytes, const uint8_t *from)
{
    for (uint64_t n, page = 0; has_digests(c) && bytes > 0; offset += n, from += n, bytes -= n) {
        struct cached_piece *p;
        n = part_of(c, offset, bytes, &p, &page);
        if (!p || (!p->pages && !take_in(c, p)))
            continue;
        memcpy(p->pages + page * CSD_ALIGN, from, n);
        p->there |= bits_of(page, n);
    }
}

void digest_cache_drop(struct digest_cache *c, uint64_t offset, uint64_t bytes)
{
    for (uint64_t n, page = 0; has_digests(c) && bytes > 0; offset += n, bytes -= n) {
        struct cached_piece *p;
        n = part_of(c, offset, bytes, &p, &page);
        if (p)
            p->there &= ~bits_of(page, n);
    }
}
