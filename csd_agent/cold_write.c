/*
 * csd_agent/cold_write.c - demotion: entries and digests (in a pool of keys: their keys once more)
 * written to flash by whole pages; see cold_pool.h.
 *
 * Slots are packed, so that the first and the last page of a write may hold other slots' bytes, and
 * the first and the last group of digests other slots' lanes. Where those come from: the stripe's
 * copy of the pages (tail_pages) when slots arrive in order, zeros when a page was never written
 * since the claim, else flash. The planes of a stripe share no page. Slots that lie anywhere are
 * written by cold_reuse.c.
 */
#include <stdlib.h>
#include <string.h>

#include "csd_agent/cold_state.h"

#include "base/fault.h"

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
    uint64_t whole_from, whole_to; /* all bytes between are new; others need what is there */
};

static int flush(struct writer *w)
{
    int status = csd_drive_transfer(w->pool->drive, w->extents, w->n_extents, w->why);

    for (uint32_t i = 0; status == 0 && i < w->n_extents; i++)
        w->cost->flash_write_bytes += w->extents[i].bytes;
    w->n_extents = 0;
    w->used = 0;
    FAULT_POINT(csd_agent, demote, chunk);
    return status;
}

/* Fill memory with the page as it is now. */
static int load_page(struct writer *w, const struct target *t, uint64_t page, uint8_t *memory)
{
    const struct tail_pages *tail = &w->stripe->tails[t->plane];
    if (page >= tail->offset && page < tail->offset + tail->bytes) {
        memcpy(memory, tail->pages + (page - tail->offset), CSD_ALIGN);
        return 0;
    }
    if (!bit_test(t->pages, (page - t->region) / CSD_ALIGN)) {
        memset(memory, 0, CSD_ALIGN);
        return 0;
    }
    struct csd_extent extent = {.offset = page, .memory = memory, .bytes = CSD_ALIGN};
    int status = csd_drive_transfer(w->pool->drive, &extent, 1, w->why);
    if (status == 0)
        w->cost->flash_read_bytes += CSD_ALIGN;
    return status;
}

/* Keep a copy of the last pages when slots that follow will write to them again; a copy that the
 * write went over is true no more. */
static int keep_tail(struct writer *w, const struct target *t, uint64_t first, uint64_t end,
                     const uint8_t *memory)
{
    struct tail_pages *tail = &w->stripe->tails[t->plane];
    uint64_t from = page_floor(t->whole_to), bytes = end - from;

    if (t->whole_to == end) {
        if (tail->offset < end && first < tail->offset + tail->bytes)
            tail->bytes = 0;
        return 0;
    }
    if (bytes > tail->room) {
        free(tail->pages);
        *tail = (struct tail_pages){.pages = malloc(bytes)};
        if (!tail->pages)
            return hill_fail(w->why, HILL_E_NOMEM, "no memory for %llu pages",
                             (unsigned long long)(bytes / CSD_ALIGN));
        tail->room = bytes;
    }
    tail->offset = from;
    tail->bytes = bytes;
    memcpy(tail->pages, memory + (from - first), bytes);
    return 0;
}

/* Make room for a range's covering pages in the chunk, with what is there and stays; *memory: where
 * t->at is, to be filled. */
static int open_target(struct writer *w, const struct target *t, uint8_t **memory)
{
    uint64_t first = page_floor(t->at), end = page_ceil(t->at + t->bytes);
    uint8_t *pages = w->pool->bounce + w->used;
    int status = 0;

    for (uint64_t page = first; status == 0 && page < end; page += CSD_ALIGN)
        if (page < t->whole_from || page + CSD_ALIGN > t->whole_to)
            status = load_page(w, t, page, pages + (page - first));
    *memory = pages + (t->at - first);
    return status;
}

/* The range is filled: it is part of the chunk. */
static int close_target(struct writer *w, const struct target *t)
{
    uint64_t first = page_floor(t->at), end = page_ceil(t->at + t->bytes);
    uint8_t *pages = w->pool->bounce + w->used;

    for (uint64_t page = first; page < end; page += CSD_ALIGN)
        bit_set(t->pages, (page - t->region) / CSD_ALIGN);
    w->extents[w->n_extents++] =
        (struct csd_extent){.offset = first, .memory = pages, .bytes = end - first, .write = true};
    w->used += end - first;
    return keep_tail(w, t, first, end, pages);
}

/* Slots that a chunk may have so that its pages and groups, borders included, fit the bounce
 * buffer. */
static uint32_t chunk_slots(const struct pool_layout *layout)
{
    const struct kv_geometry *g = &layout->geometry;
    uint32_t plane =
        kv_digest_bytes(g) > layout->key_bytes ? kv_digest_bytes(g) : layout->key_bytes;
    return (BOUNCE_BYTES - 2 * PLANE_COUNT * CSD_ALIGN - 2 * kv_group_bytes(g)) /
           (kv_entry_bytes(g) + plane);
}

/* n slots of the demote, the first of them `slot`: digests, lane by lane where groups are partly
 * theirs. */
static int add_digests(struct writer *w, const struct cold_demote *d, uint32_t slot, uint32_t n)
{
    const struct pool_layout *layout = &w->pool->layout;
    const struct kv_geometry *g = &layout->geometry;
    uint64_t group = kv_group_bytes(g),
             region = pool_digest_at(layout, slot / layout->stripe_slots);
    uint32_t within = slot % layout->stripe_slots, lane = within % KV_GROUP_TOKENS;
    uint64_t at = region + within / KV_GROUP_TOKENS * group;
    uint64_t bytes = kv_groups_touched(within, n) * group;
    struct target t = {PLANE_DIGESTS,
                       region,
                       w->stripe->digest_pages,
                       at,
                       bytes,
                       lane ? at + group : at,
                       (lane + n) % KV_GROUP_TOKENS ? at + bytes - group : at + bytes};
    uint8_t *memory;

    int status = open_target(w, &t, &memory);
    if (status != 0)
        return status;
    kv_digest_copy(g, memory, lane,
                   d->digests + (slot / KV_GROUP_TOKENS - d->first_slot / KV_GROUP_TOKENS) * group,
                   lane, n);
    return close_target(w, &t);
}

/* n items of a plane that needs nothing of what is there, so far apart in memory. */
static int add_items(struct writer *w, struct target t, const uint8_t *from, uint64_t stride,
                     uint32_t n)
{
    uint64_t item = t.bytes / n;
    uint8_t *memory;

    t.whole_from = t.at;
    t.whole_to = t.at + t.bytes;
    int status = open_target(w, &t, &memory);
    if (status != 0)
        return status;
    for (uint32_t i = 0; i < n; i++)
        memcpy(memory + i * item, from + i * stride, item);
    return close_target(w, &t);
}

/* Their keys, out of their entries; parts of keys have come in the place of digests. */
static int add_keys(struct writer *w, const struct cold_demote *d, uint32_t slot, uint32_t n)
{
    const struct pool_layout *layout = &w->pool->layout;
    bool whole = pool_has_keys(layout);
    uint64_t stride = whole ? kv_entry_bytes(&layout->geometry) : layout->key_bytes;
    struct target t = {.plane = PLANE_KEYS,
                       .region = pool_key_at(layout, slot - slot % layout->stripe_slots),
                       .pages = w->stripe->key_pages,
                       .at = pool_key_at(layout, slot),
                       .bytes = (uint64_t)n * layout->key_bytes};
    const uint8_t *from = whole ? d->entries : d->digests;

    return add_items(w, t, from + (slot - d->first_slot) * stride, stride, n);
}

static int add_entries(struct writer *w, const struct cold_demote *d, uint32_t slot, uint32_t n)
{
    const struct pool_layout *layout = &w->pool->layout;
    uint64_t entry_bytes = kv_entry_bytes(&layout->geometry);
    struct target t = {.plane = PLANE_ENTRIES,
                       .region = pool_entry_at(layout, slot - slot % layout->stripe_slots),
                       .pages = w->stripe->entry_pages,
                       .at = pool_entry_at(layout, slot),
                       .bytes = n * entry_bytes};

    return add_items(w, t, d->entries + (slot - d->first_slot) * entry_bytes, entry_bytes, n);
}

static int write_chunk(struct writer *w, const struct cold_demote *d, uint32_t slot, uint32_t n)
{
    int status = w->pool->layout.key_bytes ? add_keys(w, d, slot, n) : add_digests(w, d, slot, n);
    if (status == 0)
        status = add_entries(w, d, slot, n);
    return status == 0 ? flush(w) : status;
}

static uint32_t slot_of(const struct cold_demote *d, uint32_t i)
{
    return d->slots ? d->slots[i] : d->first_slot + i;
}

/* Named slots: in stripes of (sequence, layer), none committed, ascending. */
static int check_scattered(const struct cold_pool *pool, const struct cold_demote *d,
                           struct hill_why *why)
{
    const struct pool_layout *layout = &pool->layout;

    for (uint32_t i = 0; i < d->n_slots; i++) {
        uint32_t slot = d->slots[i], stripe = slot / layout->stripe_slots;
        if (stripe >= layout->n_stripes || !pool->stripes[stripe] ||
            pool->directory->stripes[stripe].sequence != d->sequence ||
            pool->directory->stripes[stripe].layer != d->layer)
            return hill_fail(why, HILL_E_PROTOCOL,
                             "slot %u to be written is in no stripe of sequence %u, layer %u", slot,
                             d->sequence, d->layer);
        if (pool_slot_valid(pool->directory, slot))
            return hill_fail(why, HILL_E_PROTOCOL, "slot %u to be written is committed", slot);
        if (i > 0 && slot <= d->slots[i - 1])
            return hill_fail(why, HILL_E_PROTOCOL, "slots to be written are not in order");
    }
    return 0;
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

static void note_written(struct cold_pool *pool, const struct cold_demote *d)
{
    uint32_t slots = pool->layout.stripe_slots,
             entry_bytes = kv_entry_bytes(&pool->layout.geometry);

    for (uint32_t i = 0; i < d->n_slots; i++) {
        struct cold_stripe *stripe = pool->stripes[slot_of(d, i) / slots];
        uint32_t at = slot_of(d, i) % slots;
        stripe->positions[at] = d->positions[i];
        stripe->checksums[at] =
            pool_entry_checksum(d->entries + (uint64_t)i * entry_bytes, entry_bytes);
        bit_set(stripe->written, at);
        if (at + 1 == slots)
            cold_stripe_drop_tails(stripe);
    }
}

static int write_consecutive(struct cold_pool *pool, const struct cold_demote *demote,
                             struct cold_cost *cost, struct hill_why *why)
{
    struct writer w = {.pool = pool, .cost = cost, .why = why};
    uint32_t chunk = chunk_slots(&pool->layout);
    int status = check_demote(pool, demote, why);

    if (status == 0)
        status = cold_stripe_claim(pool, demote->first_slot / pool->layout.stripe_slots,
                                   demote->sequence, demote->layer, demote->stripe_order, &w.stripe,
                                   why);
    if (status != 0)
        return status;
    uint32_t end = demote->first_slot + demote->n_slots;
    for (uint32_t slot = demote->first_slot, n; status == 0 && slot < end; slot += n) {
        n = end - slot;
        if (n > chunk) { /* whole groups where it can be */
            uint32_t over = (slot + chunk) % KV_GROUP_TOKENS;
            n = chunk > over ? chunk - over : chunk;
        }
        status = write_chunk(&w, demote, slot, n);
    }
    if (status != 0)
        cold_stripe_drop_tails(w.stripe); /* they may be ahead of flash */
    return status;
}

int cold_pool_demote(struct cold_pool *pool, const struct cold_demote *demote,
                     struct cold_cost *cost, struct hill_why *why)
{
    int status;

    FAULT_POINT(csd_agent, demote, taken);
    if (demote->slots) {
        status = check_scattered(pool, demote, why);
        if (status == 0)
            status = cold_write_scattered(pool, demote, cost, why);
    } else {
        status = write_consecutive(pool, demote, cost, why);
    }
    FAULT_POINT(csd_agent, demote, written);
    if (status == 0)
        note_written(pool, demote);
    FAULT_POINT(csd_agent, demote, noted);
    return status;
}
