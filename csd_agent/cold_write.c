/*
 * csd_agent/cold_write.c - demotion: entries and digests (in a pool of keys: their keys once more)
 * written to flash by whole pages; see cold_pool.h.
 *
 * Slots are packed, so that the first and the last page of a write may hold other slots' bytes.
 * Where those come from: the stripe's copy of the page (tail_page) when slots arrive in order,
 * zeros when the page was never written since the claim, else flash. Writes of one page are never
 * in flight together: a plane that shares its first page with the plane before waits for it.
 */
#include <stdlib.h>
#include <string.h>

#include "csd_agent/cold_state.h"

/* One chunk of a demote on its way to flash. */
struct writer {
    struct cold_pool *pool;
    struct cold_stripe *stripe;
    struct cold_cost *cost;
    struct hill_why *why;
    struct csd_extent extents[PLANE_COUNT];
    uint32_t n_extents;
    uint64_t used; /* bytes of the bounce buffer */
};

/* A byte range of flash within one region (digests, keys or entries) of the stripe. */
struct target {
    enum plane plane;
    uint64_t region; /* where the region starts in the file */
    uint64_t *pages; /* the region's bitmap of pages written to */
    uint64_t at, bytes;
    uint32_t item, stride; /* source: items of a length, so far apart */
};

static uint64_t page_floor(uint64_t at)
{
    return at & ~(uint64_t)(CSD_ALIGN - 1);
}

static uint64_t page_ceil(uint64_t at)
{
    return page_floor(at + CSD_ALIGN - 1);
}

static int flush(struct writer *w)
{
    int status =
        w->pool->backend->ops->transfer(w->pool->backend, w->extents, w->n_extents, w->why);

    for (uint32_t i = 0; status == 0 && i < w->n_extents; i++)
        w->cost->flash_write_bytes += w->extents[i].bytes;
    w->n_extents = 0;
    w->used = 0;
    return status;
}

/* Fill memory with the page as it is now. */
static int load_page(struct writer *w, const struct target *t, uint64_t page, uint8_t *memory)
{
    for (uint32_t p = 0; p < PLANE_COUNT; p++) {
        if (w->stripe->tails[p].offset == page) {
            memcpy(memory, w->stripe->tails[p].page, CSD_ALIGN);
            return 0;
        }
    }
    if (!bit_test(t->pages, (page - t->region) / CSD_ALIGN)) {
        memset(memory, 0, CSD_ALIGN);
        return 0;
    }
    struct csd_extent extent = {.offset = page, .memory = memory, .bytes = CSD_ALIGN};
    int status = w->pool->backend->ops->transfer(w->pool->backend, &extent, 1, w->why);
    if (status == 0)
        w->cost->flash_read_bytes += CSD_ALIGN;
    return status;
}

/* Keep copies of border pages true: those that the write went over, and its own last one when it is
 * not full. */
static int keep_tails(struct writer *w, const struct target *t, uint64_t first, uint64_t end,
                      const uint8_t *memory)
{
    struct tail_page *own = &w->stripe->tails[t->plane];

    if (end != t->at + t->bytes) {
        if (!own->page)
            own->page = malloc(CSD_ALIGN);
        if (!own->page)
            return hill_fail(w->why, HILL_E_NOMEM, "no memory for a page");
        own->offset = end - CSD_ALIGN;
    } else if (own->offset >= first && own->offset < end) {
        own->offset = NO_TAIL;
    }
    for (uint32_t p = 0; p < PLANE_COUNT; p++) {
        struct tail_page *tail = &w->stripe->tails[p];
        if (tail->offset >= first && tail->offset < end)
            memcpy(tail->page, memory + (tail->offset - first), CSD_ALIGN);
    }
    return 0;
}

static void copy_items(uint8_t *to, const struct target *t, const uint8_t *source)
{
    if (t->item == t->stride)
        memcpy(to, source, t->bytes);
    else
        for (uint64_t at = 0; at < t->bytes; at += t->item, source += t->stride)
            memcpy(to + at, source, t->item);
}

/* Add a range to the chunk. */
static int compose(struct writer *w, const struct target *t, const void *source)
{
    uint64_t first = page_floor(t->at), end = page_ceil(t->at + t->bytes);
    int status = 0;

    for (uint32_t i = 0; status == 0 && i < w->n_extents; i++)
        if (w->extents[i].offset < end && first < w->extents[i].offset + w->extents[i].bytes)
            status = flush(w);
    uint8_t *memory = w->pool->bounce + w->used;
    if (status == 0 && t->at != first)
        status = load_page(w, t, first, memory);
    if (status == 0 && t->at + t->bytes != end && (end - CSD_ALIGN != first || t->at == first))
        status = load_page(w, t, end - CSD_ALIGN, memory + (end - CSD_ALIGN - first));
    if (status != 0)
        return status;
    copy_items(memory + (t->at - first), t, source);
    for (uint64_t page = first; page < end; page += CSD_ALIGN)
        bit_set(t->pages, (page - t->region) / CSD_ALIGN);
    w->extents[w->n_extents++] =
        (struct csd_extent){.offset = first, .memory = memory, .bytes = end - first, .write = true};
    w->used += end - first;
    return keep_tails(w, t, first, end, memory);
}

/* Slots that a chunk may have so that its pages, borders included, fit the bounce buffer. */
static uint32_t chunk_slots(const struct kv_geometry *g)
{
    return (BOUNCE_BYTES - 2 * PLANE_COUNT * CSD_ALIGN) / (2 * kv_entry_bytes(g));
}

/* Digests of slots [from, from + n) of the demote. */
static int write_digests(struct writer *w, const struct cold_demote *d, uint32_t from, uint32_t n)
{
    const struct pool_layout *layout = &w->pool->layout;
    uint32_t dims = kv_key_dims(&layout->geometry), heads = layout->geometry.n_kv_heads;
    uint32_t slot = d->first_slot + from;
    uint64_t within = slot % layout->stripe_slots;
    uint64_t digests = pool_digest_at(layout, slot / layout->stripe_slots);
    struct target mantissas = {PLANE_MANTISSAS,
                               digests,
                               w->stripe->digest_pages,
                               digests + within * dims,
                               (uint64_t)n * dims,
                               dims,
                               dims};
    struct target exponents = {PLANE_EXPONENTS,
                               digests,
                               w->stripe->digest_pages,
                               digests + pool_exponents_in_stripe(layout) + within * heads,
                               (uint64_t)n * heads,
                               heads,
                               heads};

    int status = compose(w, &mantissas, d->mantissas + (uint64_t)from * dims);
    return status == 0 ? compose(w, &exponents, d->exponents + (uint64_t)from * heads) : status;
}

/* Their keys, out of their entries. */
static int write_keys(struct writer *w, const struct cold_demote *d, uint32_t from, uint32_t n)
{
    const struct pool_layout *layout = &w->pool->layout;
    uint32_t entry_bytes = kv_entry_bytes(&layout->geometry), slot = d->first_slot + from;
    uint64_t at = pool_key_at(layout, slot);
    struct target keys = {PLANE_KEYS,
                          pool_key_at(layout, slot - slot % layout->stripe_slots),
                          w->stripe->key_pages,
                          at,
                          (uint64_t)n * layout->key_bytes,
                          layout->key_bytes,
                          entry_bytes};

    return compose(w, &keys, d->entries + (uint64_t)from * entry_bytes);
}

/* Write slots [from, from + n) of the demote. */
static int write_chunk(struct writer *w, const struct cold_demote *d, uint32_t from, uint32_t n)
{
    const struct pool_layout *layout = &w->pool->layout;
    uint32_t entry_bytes = kv_entry_bytes(&layout->geometry), slot = d->first_slot + from;
    struct target fp16 = {PLANE_ENTRIES,
                          pool_entry_at(layout, slot - slot % layout->stripe_slots),
                          w->stripe->entry_pages,
                          pool_entry_at(layout, slot),
                          (uint64_t)n * entry_bytes,
                          entry_bytes,
                          entry_bytes};

    int status = layout->key_bytes ? write_keys(w, d, from, n) : write_digests(w, d, from, n);
    if (status == 0)
        status = compose(w, &fp16, d->entries + (uint64_t)from * entry_bytes);
    return status == 0 ? flush(w) : status;
}

static int check_demote(const struct cold_pool *pool, const struct cold_demote *d,
                        struct hill_why *why)
{
    const struct pool_layout *layout = &pool->layout;
    uint32_t stripe = d->first_slot / layout->stripe_slots;

    if (stripe >= layout->n_stripes)
        return hill_fail(why, HILL_E_PROTOCOL, "slot %u lies outside the pool of %u stripes",
                         d->first_slot, layout->n_stripes);
    if (d->n_slots == 0 || d->n_slots > layout->stripe_slots - d->first_slot % layout->stripe_slots)
        return hill_fail(why, HILL_E_PROTOCOL, "%u slots from %u on are not in one stripe",
                         d->n_slots, d->first_slot);
    for (uint32_t i = 0; i < d->n_slots; i++)
        if (pool->stripes[stripe] && pool_slot_valid(pool->directory, d->first_slot + i))
            return hill_fail(why, HILL_E_PROTOCOL, "slot %u to be written is committed",
                             d->first_slot + i);
    return 0;
}

static void note_written(struct cold_pool *pool, struct cold_stripe *stripe,
                         const struct cold_demote *d)
{
    uint32_t within = d->first_slot % pool->layout.stripe_slots;
    uint32_t entry_bytes = kv_entry_bytes(&pool->layout.geometry);

    for (uint32_t i = 0; i < d->n_slots; i++) {
        stripe->positions[within + i] = d->positions[i];
        stripe->checksums[within + i] =
            pool_entry_checksum(d->entries + (uint64_t)i * entry_bytes, entry_bytes);
        bit_set(stripe->written, within + i);
    }
    if (within + d->n_slots == pool->layout.stripe_slots)
        cold_stripe_drop_tails(stripe);
}

int cold_pool_demote(struct cold_pool *pool, const struct cold_demote *demote,
                     struct cold_cost *cost, struct hill_why *why)
{
    struct writer w = {.pool = pool, .cost = cost, .why = why};
    uint32_t chunk = chunk_slots(&pool->layout.geometry);
    int status = check_demote(pool, demote, why);

    if (status == 0)
        status = cold_stripe_claim(pool, demote->first_slot / pool->layout.stripe_slots,
                                   demote->sequence, demote->layer, demote->stripe_order, &w.stripe,
                                   why);
    if (status != 0)
        return status;
    for (uint32_t from = 0; status == 0 && from < demote->n_slots; from += chunk) {
        uint32_t left = demote->n_slots - from;
        status = write_chunk(&w, demote, from, left < chunk ? left : chunk);
    }
    if (status != 0)
        cold_stripe_drop_tails(w.stripe); /* they may be ahead of flash */
    else
        note_written(pool, w.stripe, demote);
    return status;
}
