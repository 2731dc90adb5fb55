/*
 * csd_agent/cold_adopt.c - slots that an earlier agent had committed count again; see cold_pool.h.
 *
 * What lies on flash is looked at before anything of it counts: each entry has the checksum that
 * the scorer has kept, and the digest beside it is the one that its key makes, or the key the
 * entry's. So one that has changed while no agent was there is found as well, though nothing has
 * kept a checksum of it. From then on its page has one (csd_drive_seal). Of parts of keys
 * (kv/partial.h) the scorer alone knows the columns: each value must be one of its head's, in their
 * order. A damaged slot stays free, and the others count: the scorer leaves that one out and asks
 * again, until all that it asks for is there. A page that cannot be read fails the command instead:
 * queries would read it with its neighbours', and a write of a part of it would read it first. The
 * request begins anew.
 */
#include <stdlib.h>
#include <string.h>

#include "csd_agent/cold_state.h"

/* ---- what lies there ---- */

/* The file's bytes from .. to - 1, whole pages. */
static int read_pages(struct cold_pool *pool, uint64_t from, uint64_t to, uint8_t *memory,
                      struct hill_why *why)
{
    const struct csd_extent extent = {.offset = from, .memory = memory, .bytes = to - from};
    return csd_drive_transfer(pool->drive, &extent, 1, why);
}

static int damaged(const struct cold_adopt *a, const struct adopt_item *item, const char *what,
                   struct hill_why *why)
{
    return hill_fail(why, HILL_E_DAMAGED,
                     "position %u of sequence %u, layer %u in cold slot %u: the %s is damaged",
                     item->position, a->sequence, a->layer, item->slot, what);
}

/* Pages of digests (or keys) and of entries of some slots that follow one another, as they lie. */
struct look {
    uint64_t keys_from, keys_to, entries_from, entries_to; /* bytes of the file */
    uint8_t *keys, *entries;
};

/* The group of the slot, or its key; and the next one. */
static uint64_t key_at(const struct pool_layout *l, uint32_t slot)
{
    return pool_read_at(l, l->key_bytes ? slot : slot / KV_GROUP_TOKENS * KV_GROUP_TOKENS);
}

static uint64_t key_end(const struct pool_layout *l, uint32_t slot)
{
    return key_at(l, slot) + (l->key_bytes ? l->key_bytes : kv_group_bytes(&l->geometry));
}

static int read_look(struct cold_pool *pool, uint32_t first, uint32_t last, struct look *look,
                     struct hill_why *why)
{
    const struct pool_layout *l = &pool->layout;
    look->keys_from = page_floor(key_at(l, first));
    look->keys_to = page_ceil(key_end(l, last));
    look->entries_from = page_floor(pool_entry_at(l, first));
    look->entries_to = page_ceil(pool_entry_at(l, last) + kv_entry_bytes(&l->geometry));
    look->keys = pool->bounce;
    look->entries = pool->bounce + (look->keys_to - look->keys_from);
    int status = read_pages(pool, look->keys_from, look->keys_to, look->keys, why);
    return status ? status
                  : read_pages(pool, look->entries_from, look->entries_to, look->entries, why);
}

/* Is it the entry's key, or a part of it? */
static bool is_key_of(const struct pool_layout *l, const uint16_t *entry, const uint8_t *key)
{
    const struct kv_geometry *g = &l->geometry;
    uint32_t kept = l->key_bytes / 2 / g->n_kv_heads;
    for (uint32_t h = 0; h < g->n_kv_heads; h++) {
        const uint16_t *head = entry + (uint64_t)h * g->head_dim, *end = head + g->head_dim;
        for (uint32_t i = 0; i < kept; i++) {
            uint16_t value;
            memcpy(&value, key + 2 * ((uint64_t)h * kept + i), sizeof value);
            while (head < end && *head != value)
                head++;
            if (head == end)
                return false;
            head++;
        }
    }
    return true;
}

static int check_slot(const struct cold_pool *pool, const struct cold_adopt *a,
                      const struct adopt_item *item, const struct look *look, uint8_t *scratch,
                      struct hill_why *why)
{
    const struct pool_layout *l = &pool->layout;
    const struct kv_geometry *g = &l->geometry;
    const uint8_t *entry = look->entries + (pool_entry_at(l, item->slot) - look->entries_from);
    if (pool_entry_checksum(entry, kv_entry_bytes(g)) != item->checksum)
        return damaged(a, item, "entry", why);
    const uint8_t *key = look->keys + (key_at(l, item->slot) - look->keys_from);
    if (l->key_bytes)
        return is_key_of(l, (const uint16_t *)(const void *)entry, key)
                   ? 0
                   : damaged(a, item, "key", why);
    bool fits = kv_digest_is_of(g, (const uint16_t *)(const void *)entry, key,
                                item->slot % KV_GROUP_TOKENS, scratch);
    return fits ? 0 : damaged(a, item, "digest", why);
}

/* As many items as a look has room for, from `from` on; the one after the last. */
static uint32_t items_that_fit(const struct cold_pool *pool, const struct cold_adopt *a,
                               uint32_t from)
{
    uint64_t each = kv_entry_bytes(&pool->layout.geometry) + pool_read_bytes(&pool->layout);
    uint64_t room = BOUNCE_BYTES - 4 * CSD_ALIGN - 2 * kv_group_bytes(&pool->layout.geometry);
    uint64_t slots = room / each;
    uint32_t i = from + 1;
    while (i < a->n_items && a->items[i].slot - a->items[from].slot < slots)
        i++;
    return i;
}

/* Committed already, by a command before this one. */
static bool is_adopted(const struct cold_pool *pool, const struct adopt_item *item)
{
    return cold_pool_position(pool, item->slot) == item->position;
}

/* What is whole of items from .. to - 1 counts; the first one that is not is named. */
static int take_looked(struct cold_pool *pool, const struct cold_adopt *a, uint32_t from,
                       uint32_t to, uint8_t *scratch, struct cold_adopted *out,
                       struct hill_why *why)
{
    struct cold_stripe *state = pool->stripes[a->stripe];
    struct look look;
    int status = read_look(pool, a->items[from].slot, a->items[to - 1].slot, &look, why);
    if (status != 0)
        return status;
    for (uint32_t i = from; i < to; i++) {
        const struct adopt_item *item = &a->items[i];
        uint32_t at = item->slot % pool->layout.stripe_slots;
        bool first = out->bad_position == COLD_NO_POSITION;
        if (is_adopted(pool, item))
            continue;
        if (check_slot(pool, a, item, &look, scratch, first ? why : NULL)) {
            out->bad_position = first ? item->position : out->bad_position;
            continue;
        }
        state->positions[at] = item->position;
        state->checksums[at] = item->checksum;
        cold_commit_slot(pool, cold_owner(pool, a->sequence, a->layer), item->slot);
        out->n++;
    }
    csd_drive_seal(pool->drive, look.keys_from, look.keys_to - look.keys_from, look.keys);
    return 0;
}

static int take_whole(struct cold_pool *pool, const struct cold_adopt *a, struct cold_adopted *out,
                      struct hill_why *why)
{
    uint8_t *scratch = calloc(1, kv_group_bytes(&pool->layout.geometry));
    int status = scratch ? 0 : hill_fail(why, HILL_E_NOMEM, "no memory to look at adopted slots");
    for (uint32_t from = 0, to; status == 0 && from < a->n_items; from = to) {
        to = from + 1;
        if (is_adopted(pool, &a->items[from]))
            continue;
        to = items_that_fit(pool, a, from);
        status = take_looked(pool, a, from, to, scratch, out, why);
    }
    free(scratch);
    return status == 0 && out->bad_position != COLD_NO_POSITION ? HILL_E_DAMAGED : status;
}

/* ---- the command ---- */

static int check_adopt(const struct cold_pool *pool, const struct cold_adopt *a,
                       struct hill_why *why)
{
    uint32_t slots = pool->layout.stripe_slots;

    if (!pool->kept)
        return hill_fail(why, HILL_E_DAMAGED, "the cold pool has been made anew");
    if (a->stripe >= pool->layout.n_stripes)
        return hill_fail(why, HILL_E_PROTOCOL, "stripe %u to be adopted is none", a->stripe);
    for (uint32_t i = 0; i < a->n_items; i++) {
        uint32_t slot = a->items[i].slot;
        const struct cold_stripe *state = pool->stripes[a->stripe];
        if (slot / slots != a->stripe)
            return hill_fail(why, HILL_E_PROTOCOL, "slot %u to be adopted is not in stripe %u",
                             slot, a->stripe);
        if (is_adopted(pool, &a->items[i]))
            continue; /* the stripe is this list's, as cold_stripe_claim will say */
        if (pool_slot_valid(pool->directory, slot) ||
            (state && bit_test(state->written, slot % slots)))
            return hill_fail(why, HILL_E_PROTOCOL, "slot %u to be adopted is in use", slot);
    }
    return 0;
}

/* What lies in the stripe's pages is not known: none is made up of zeros. */
static void distrust_pages(const struct cold_pool *pool, struct cold_stripe *state)
{
    memset(state->digest_pages, 0xff, pool->layout.digest_stripe_bytes / CSD_ALIGN / 64 * 8 + 8);
    memset(state->key_pages, 0xff, pool->layout.key_stripe_bytes / CSD_ALIGN / 64 * 8 + 8);
    memset(state->entry_pages, 0xff, pool->layout.entry_stripe_bytes / CSD_ALIGN / 64 * 8 + 8);
}

int cold_pool_adopt(struct cold_pool *pool, const struct cold_adopt *a,
                    struct cold_adopted *adopted, struct hill_why *why)
{
    struct cold_stripe *state;

    *adopted = (struct cold_adopted){.bad_position = COLD_NO_POSITION};
    int status = check_adopt(pool, a, why);
    if (status == 0)
        status =
            cold_stripe_claim(pool, a->stripe, a->sequence, a->layer, a->stripe_order, &state, why);
    if (status != 0)
        return status;
    distrust_pages(pool, state);
    return take_whole(pool, a, adopted, why);
}
