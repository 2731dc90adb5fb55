/* csd_agent/digest_cache.c - see digest_cache.h. */
#include "csd_agent/digest_cache.h"

#include <stdlib.h>
#include <string.h>

/* A stripe that so many times as many queries as there are stripes have not asked for is of a
 * sequence that rests. */
#define QUERIES_IDLE 4u

static uint64_t pages_of(const struct digest_cache *c)
{
    return c->layout.digest_stripe_bytes / CSD_ALIGN;
}

/* What a stripe takes. */
static uint64_t stripe_bytes(const struct digest_cache *c)
{
    return c->layout.digest_stripe_bytes + (pages_of(c) + 63) / 64 * sizeof(uint64_t);
}

int digest_cache_create(struct digest_cache *c, const struct pool_layout *layout)
{
    *c = (struct digest_cache){.layout = *layout};
    c->stripes = calloc(layout->n_stripes, sizeof *c->stripes);
    return c->stripes ? 0 : HILL_E_NOMEM;
}

static void let_go(struct digest_cache *c, struct cached_stripe *s)
{
    if (!s->pages)
        return;
    free(s->pages);
    free(s->there);
    *s = (struct cached_stripe){.asked = s->asked};
    c->bytes -= stripe_bytes(c);
    c->full = false;
}

void digest_cache_destroy(struct digest_cache *c)
{
    for (uint32_t i = 0; c->stripes && i < c->layout.n_stripes; i++)
        let_go(c, &c->stripes[i]);
    free(c->stripes);
    *c = (struct digest_cache){0};
}

/* The one that was asked for longest ago. */
static struct cached_stripe *oldest(const struct digest_cache *c)
{
    struct cached_stripe *found = NULL;
    for (uint32_t i = 0; i < c->layout.n_stripes; i++) {
        struct cached_stripe *s = &c->stripes[i];
        if (s->pages && (!found || s->asked < found->asked))
            found = s;
    }
    return found;
}

void digest_cache_limit(struct digest_cache *c, uint64_t cap_bytes)
{
    c->cap_bytes = cap_bytes;
    c->full = false;
    while (c->bytes > c->cap_bytes)
        let_go(c, oldest(c));
}

void digest_cache_free_stripe(struct digest_cache *c, uint32_t stripe)
{
    let_go(c, &c->stripes[stripe]);
}

void digest_cache_turn(struct digest_cache *c)
{
    c->query++;
    c->full = false;
}

/* The stripe that the pages lie in, *page: the first of them within it; NULL: they are not of one
 * stripe's digests. */
static struct cached_stripe *find(const struct digest_cache *c, uint64_t offset, uint64_t bytes,
                                  uint64_t *page)
{
    const struct pool_layout *l = &c->layout;
    if (!c->stripes || l->key_bytes || offset < l->digest_offset)
        return NULL;
    uint64_t stripe = (offset - l->digest_offset) / l->digest_stripe_bytes;
    uint64_t within = (offset - l->digest_offset) % l->digest_stripe_bytes;
    if (stripe >= l->n_stripes || within + bytes > l->digest_stripe_bytes)
        return NULL;
    *page = within / CSD_ALIGN;
    return &c->stripes[stripe];
}

static bool is_there(const struct cached_stripe *s, uint64_t page)
{
    return (s->there[page / 64] >> (page % 64) & 1) != 0;
}

bool digest_cache_get(struct digest_cache *c, uint64_t offset, uint64_t bytes, uint8_t *to)
{
    uint64_t first;
    struct cached_stripe *s = find(c, offset, bytes, &first);
    if (!s)
        return false;
    s->asked = c->query;
    for (uint64_t i = 0; s->pages && i < bytes / CSD_ALIGN; i++)
        if (!is_there(s, first + i))
            return false;
    if (s->pages)
        memcpy(to, s->pages + first * CSD_ALIGN, bytes);
    return s->pages != NULL;
}

/* Room for a stripe that is not here. */
static bool take_in(struct digest_cache *c, struct cached_stripe *s)
{
    uint64_t idle = (uint64_t)c->layout.n_stripes * QUERIES_IDLE;
    if (c->full)
        return false; /* none gets idle before the next query */
    while (c->bytes + stripe_bytes(c) > c->cap_bytes) {
        struct cached_stripe *old = oldest(c);
        if (!old || c->query - old->asked <= idle) {
            c->full = true;
            return false;
        }
        let_go(c, old);
    }
    s->pages = aligned_alloc(CSD_ALIGN, c->layout.digest_stripe_bytes);
    s->there = calloc((pages_of(c) + 63) / 64, sizeof *s->there);
    if (!s->pages || !s->there) {
        free(s->pages);
        free(s->there);
        s->pages = NULL;
        s->there = NULL;
        return false;
    }
    s->asked = c->query;
    c->bytes += stripe_bytes(c);
    return true;
}

/* How much of the range is of one stripe's digests, or of none: what is written at once may go on
 * from one stripe to the next. */
static uint64_t part_of(const struct digest_cache *c, uint64_t offset, uint64_t bytes)
{
    const struct pool_layout *l = &c->layout;
    uint64_t left =
        offset < l->digest_offset
            ? l->digest_offset - offset
            : l->digest_stripe_bytes - (offset - l->digest_offset) % l->digest_stripe_bytes;
    return bytes < left ? bytes : left;
}

static void put_part(struct digest_cache *c, uint64_t offset, uint64_t bytes, const uint8_t *from)
{
    uint64_t first;
    struct cached_stripe *s = find(c, offset, bytes, &first);
    if (!s || (!s->pages && !take_in(c, s)))
        return;
    memcpy(s->pages + first * CSD_ALIGN, from, bytes);
    for (uint64_t page = first; page < first + bytes / CSD_ALIGN; page++)
        s->there[page / 64] |= (uint64_t)1 << (page % 64);
}

void digest_cache_put(struct digest_cache *c, uint64_t offset, uint64_t bytes, const uint8_t *from)
{
    for (uint64_t n; c->stripes && !c->layout.key_bytes && bytes > 0;
         offset += n, from += n, bytes -= n) {
        n = part_of(c, offset, bytes);
        put_part(c, offset, n, from);
    }
}

static void drop_part(struct digest_cache *c, uint64_t offset, uint64_t bytes)
{
    uint64_t first;
    struct cached_stripe *s = find(c, offset, bytes, &first);
    for (uint64_t page = first; s && s->pages && page < first + bytes / CSD_ALIGN; page++)
        s->there[page / 64] &= ~((uint64_t)1 << (page % 64));
}

void digest_cache_drop(struct digest_cache *c, uint64_t offset, uint64_t bytes)
{
    for (uint64_t n; c->stripes && !c->layout.key_bytes && bytes > 0; offset += n, bytes -= n) {
        n = part_of(c, offset, bytes);
        drop_part(c, offset, n);
    }
}
