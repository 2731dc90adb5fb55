/*
 * csd_agent/cold_reuse.c - demotion into slots that are used again and lie anywhere in a layer's
 * stripes: their pages read, changed and written, all at once; see cold_pool.h.
 *
 * What: such a slot is the place of a copy whose entry has moved up. A group of digests is a page
 * or several, so most of what is written was there before. All pages of a demote (as many as the
 * bounce buffer holds) are listed, each once; those that are not written as a whole are filled:
 * from the stripe's tail (cold_state.h), with zeros when never written to, else from flash, by one
 * transfer; then digests or keys and entries are put in, and one transfer writes everything. Bytes
 * of other slots on these pages are written as they were, so a write that was cut short between two
 * pages has not harmed them. Who calls it: cold_write.c, which has checked the slots. Concurrency:
 * one thread. Failure: what the drive reports; the slots must not be committed then.
 */
#include <stdlib.h>
#include <string.h>

#include "csd_agent/cold_state.h"

#include "base/fault.h"

#define SLOTS_AT_ONCE 256u

/* A page on its way through the bounce buffer, at its number there. */
struct cold_page {
    uint64_t offset; /* in the file */
    uint64_t bit;    /* of its region's bitmap */
    uint64_t *bits;
    struct cold_stripe *stripe;
    enum plane plane;
    uint32_t covered; /* bytes that are new */
};

struct reuse {
    struct cold_pool *pool;
    const struct cold_demote *demote;
    struct cold_cost *cost;
    struct hill_why *why;
    uint32_t n_pages;
    uint32_t first_page;            /* of the plane that is being listed */
    uint8_t *digest[SLOTS_AT_ONCE]; /* where the slot's group starts, or its key */
    uint8_t *entry[SLOTS_AT_ONCE];
};

/* A range of flash within a plane of a slot's stripe. */
struct range {
    struct cold_stripe *stripe;
    enum plane plane;
    uint64_t region, at, bytes;
    uint64_t *bits;
    bool whole; /* all its bytes are new */
};

struct cold_page *cold_pages_create(void)
{
    return calloc(BOUNCE_PAGES, sizeof(struct cold_page));
}

static uint8_t *page_memory(const struct reuse *r, uint32_t page)
{
    return r->pool->bounce + (uint64_t)page * CSD_ALIGN;
}

static uint32_t bytes_within(const struct range *range, uint64_t page)
{
    uint64_t from = range->at > page ? range->at : page;
    uint64_t end = range->at + range->bytes;
    return (uint32_t)((end < page + CSD_ALIGN ? end : page + CSD_ALIGN) - from);
}

/* List the range's pages behind those of ranges below it in the same plane, each page once; returns
 * where its first byte will be. */
static uint8_t *list_range(struct reuse *r, const struct range *range)
{
    uint64_t first = page_floor(range->at);
    uint32_t at = r->n_pages;

    while (at > r->first_page && r->pool->pages[at - 1].offset >= first)
        at--;
    for (uint64_t page = first, i = at; page < range->at + range->bytes; page += CSD_ALIGN, i++) {
        struct cold_page *p = &r->pool->pages[i];
        if (i == r->n_pages) {
            *p = (struct cold_page){.offset = page,
                                    .bit = (page - range->region) / CSD_ALIGN,
                                    .bits = range->bits,
                                    .stripe = range->stripe,
                                    .plane = range->plane};
            r->n_pages++;
        }
        p->covered += range->whole ? bytes_within(range, page) : 0;
    }
    return page_memory(r, at) + (range->at - first);
}

static struct range digest_range(const struct reuse *r, uint32_t slot)
{
    const struct pool_layout *layout = &r->pool->layout;
    uint32_t stripe = slot / layout->stripe_slots, within = slot % layout->stripe_slots;
    struct cold_stripe *state = r->pool->stripes[stripe];

    if (layout->key_bytes)
        return (struct range){.stripe = state,
                              .plane = PLANE_KEYS,
                              .region = pool_key_at(layout, slot - within),
                              .at = pool_key_at(layout, slot),
                              .bytes = layout->key_bytes,
                              .bits = state->key_pages,
                              .whole = true};
    uint64_t group = kv_group_bytes(&layout->geometry), region = pool_digest_at(layout, stripe);
    return (struct range){.stripe = state,
                          .plane = PLANE_DIGESTS,
                          .region = region,
                          .at = region + within / KV_GROUP_TOKENS * group,
                          .bytes = group,
                          .bits = state->digest_pages};
}

static struct range entry_range(const struct reuse *r, uint32_t slot)
{
    const struct pool_layout *layout = &r->pool->layout;
    uint32_t within = slot % layout->stripe_slots;
    struct cold_stripe *state = r->pool->stripes[slot / layout->stripe_slots];

    return (struct range){.stripe = state,
                          .plane = PLANE_ENTRIES,
                          .region = pool_entry_at(layout, slot - within),
                          .at = pool_entry_at(layout, slot),
                          .bytes = kv_entry_bytes(&layout->geometry),
                          .bits = state->entry_pages,
                          .whole = true};
}

static void list_pages(struct reuse *r, const uint32_t *slots, uint32_t n)
{
    r->n_pages = r->first_page = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct range range = digest_range(r, slots[i]);
        r->digest[i] = list_range(r, &range);
    }
    r->first_page = r->n_pages;
    for (uint32_t i = 0; i < n; i++) {
        struct range range = entry_range(r, slots[i]);
        r->entry[i] = list_range(r, &range);
    }
}

/* ---- what is there ---- */

static uint8_t *tail_page(const struct cold_page *p)
{
    struct tail_pages *tail = &p->stripe->tails[p->plane];
    bool there = p->offset >= tail->offset && p->offset < tail->offset + tail->bytes;
    return there ? tail->pages + (p->offset - tail->offset) : NULL;
}

/* The page's bytes that stay, as far as memory knows; false: flash has them. */
static bool fill_page(const struct reuse *r, uint32_t page)
{
    const struct cold_page *p = &r->pool->pages[page];

    if (p->covered == CSD_ALIGN)
        return true;
    if (tail_page(p))
        memcpy(page_memory(r, page), tail_page(p), CSD_ALIGN);
    else if (!bit_test(p->bits, p->bit))
        memset(page_memory(r, page), 0, CSD_ALIGN);
    else
        return false;
    return true;
}

/* Put a page behind the extents, or to the last one when it goes on there. */
static uint32_t add_page(struct reuse *r, uint32_t page, uint32_t n_extents, bool write)
{
    struct csd_extent *last = n_extents ? &r->pool->extents[n_extents - 1] : NULL;
    uint64_t offset = r->pool->pages[page].offset;
    uint8_t *memory = page_memory(r, page);

    if (last && last->offset + last->bytes == offset &&
        (uint8_t *)last->memory + last->bytes == memory) {
        last->bytes += CSD_ALIGN;
        return n_extents;
    }
    r->pool->extents[n_extents] =
        (struct csd_extent){.offset = offset, .memory = memory, .bytes = CSD_ALIGN, .write = write};
    return n_extents + 1;
}

static int load_pages(struct reuse *r)
{
    uint32_t n_extents = 0, n_read = 0;
    int status = 0;

    for (uint32_t i = 0; i < r->n_pages; i++) {
        if (fill_page(r, i))
            continue;
        n_extents = add_page(r, i, n_extents, false);
        n_read++;
    }
    if (n_extents > 0)
        status = csd_drive_transfer(r->pool->drive, r->pool->extents, n_extents, r->why);
    if (status == 0)
        r->cost->flash_read_bytes += (uint64_t)n_read * CSD_ALIGN;
    return status;
}

/* ---- what is new ---- */

/* Items from .. from + n - 1 of the demote into their places. */
static void put_items(const struct reuse *r, uint32_t from, uint32_t n)
{
    const struct cold_demote *d = r->demote;
    const struct pool_layout *layout = &r->pool->layout;
    const struct kv_geometry *g = &layout->geometry;
    uint32_t entry_bytes = kv_entry_bytes(g), key_bytes = layout->key_bytes;
    bool key_of_entry = pool_has_keys(layout);

    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *entry = d->entries + (uint64_t)(from + i) * entry_bytes;
        memcpy(r->entry[i], entry, entry_bytes);
        if (key_bytes == 0) /* a stripe's slots are whole groups */
            kv_digest_copy(g, r->digest[i], d->slots[from + i] % KV_GROUP_TOKENS, d->digests,
                           d->first_slot % KV_GROUP_TOKENS + from + i, 1);
        else
            memcpy(r->digest[i],
                   key_of_entry ? entry : d->digests + (uint64_t)(from + i) * key_bytes, key_bytes);
    }
}

static int write_pages(struct reuse *r)
{
    uint32_t n_extents = 0;

    for (uint32_t i = 0; i < r->n_pages; i++)
        n_extents = add_page(r, i, n_extents, true);
    int status = csd_drive_transfer(r->pool->drive, r->pool->extents, n_extents, r->why);
    for (uint32_t i = 0; i < r->n_pages; i++) {
        const struct cold_page *p = &r->pool->pages[i];
        uint8_t *tail = tail_page(p);
        bit_set(p->bits, p->bit); /* failed: perhaps in part */
        if (tail && status == 0)
            memcpy(tail, page_memory(r, i), CSD_ALIGN);
        else if (tail)
            p->stripe->tails[p->plane].bytes = 0; /* what is on flash is not known */
    }
    if (status == 0)
        r->cost->flash_write_bytes += (uint64_t)r->n_pages * CSD_ALIGN;
    return status;
}

int cold_write_scattered(struct cold_pool *pool, const struct cold_demote *demote,
                         struct cold_cost *cost, struct hill_why *why)
{
    const struct kv_geometry *g = &pool->layout.geometry;
    struct reuse r = {.pool = pool, .demote = demote, .cost = cost, .why = why};
    uint64_t digest = pool->layout.key_bytes ? pool->layout.key_bytes : kv_group_bytes(g);
    uint64_t each = digest / CSD_ALIGN + kv_entry_bytes(g) / CSD_ALIGN + 4; /* pages, at most */
    uint32_t at_once =
        BOUNCE_PAGES / each < SLOTS_AT_ONCE ? (uint32_t)(BOUNCE_PAGES / each) : SLOTS_AT_ONCE;
    int status = 0;

    for (uint32_t from = 0, n; status == 0 && from < demote->n_slots; from += n) {
        n = demote->n_slots - from < at_once ? demote->n_slots - from : at_once;
        list_pages(&r, demote->slots + from, n);
        status = load_pages(&r);
        if (status == 0) {
            put_items(&r, from, n);
            FAULT_POINT(csd_agent, demote, pages);
            status = write_pages(&r);
        }
    }
    return status;
}
