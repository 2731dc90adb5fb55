/*
 * csd_agent/cold_keys.c - keys, or digests, of cold tokens for a host that evaluates them itself;
 * see cold_pool.h.
 *
 * The ranges' covering pages go straight from flash into the window, one range's after the other's,
 * as they lie: nothing is copied or looked at. Where a range's first key lies in its pages follows
 * from its slot (kv/plane.h). Digests are read in whole groups (kv/group.h), as if each slot had
 * its share of the group; they are not taken from the drive's DRAM: a plain SSD has none of them.
 */
#include <stdlib.h>

#include "csd_agent/cold_state.h"
#include "kv/plane.h"

_Static_assert(KV_PAGE_BYTES == CSD_ALIGN, "pages of windows are pages of transfers");

static int check_range(const struct cold_pool *pool, uint32_t sequence, uint32_t layer,
                       const struct key_range *range, struct hill_why *why)
{
    uint32_t slots = pool->layout.stripe_slots, stripe = range->first_slot / slots;
    uint32_t together = pool->layout.key_bytes ? 1 : KV_GROUP_TOKENS;
    uint64_t end = (uint64_t)range->first_slot % slots + range->n_slots;

    if (stripe >= pool->layout.n_stripes || !pool->stripes[stripe])
        return hill_fail(why, HILL_E_PROTOCOL, "slot %u to be read is not in use",
                         range->first_slot);
    const struct pool_stripe *record = &pool->directory->stripes[stripe];
    if (record->sequence != sequence || record->layer != layer)
        return hill_fail(why, HILL_E_PROTOCOL, "slot %u belongs to sequence %u, layer %u",
                         range->first_slot, record->sequence, record->layer);
    if (range->first_slot % together || range->n_slots % together)
        return hill_fail(why, HILL_E_PROTOCOL, "%u slots from %u on are no whole groups of digests",
                         range->n_slots, range->first_slot);
    if (end > (pool->stripes[stripe]->used + (uint64_t)together - 1) / together * together)
        return hill_fail(why, HILL_E_PROTOCOL, "%u slots from %u on are not all written",
                         range->n_slots, range->first_slot);
    return 0;
}

/* Extents of the ranges, or an error; *bytes: what they take together. */
static int plan_ranges(const struct cold_pool *pool, const struct cold_keys *keys,
                       struct csd_extent *extents, struct hill_why *why)
{
    uint64_t used = 0;

    for (uint32_t i = 0; i < keys->n_ranges; i++) {
        const struct key_range *range = &keys->ranges[i];
        int status = check_range(pool, keys->sequence, keys->layer, range, why);
        if (status != 0)
            return status;
        uint64_t at = pool_read_at(&pool->layout, range->first_slot);
        uint64_t bytes = kv_key_pages(at, range->n_slots, pool_read_bytes(&pool->layout));
        if (bytes > keys->window_bytes - used)
            return hill_fail(why, HILL_E_PROTOCOL, "%u ranges of keys do not fit a window",
                             keys->n_ranges);
        extents[i] = (struct csd_extent){
            .offset = page_floor(at), .memory = keys->window + used, .bytes = bytes};
        used += bytes;
    }
    return 0;
}

int cold_pool_read_keys(struct cold_pool *pool, const struct cold_keys *keys,
                        struct cold_cost *cost, struct hill_why *why)
{
    if (!keys->window)
        return hill_fail(why, HILL_E_PROTOCOL, "there are no windows for keys to be read into");
    struct csd_extent *extents = calloc(keys->n_ranges, sizeof *extents);
    int status =
        extents ? plan_ranges(pool, keys, extents, why)
                : hill_fail(why, HILL_E_NOMEM, "no memory for %u ranges of keys", keys->n_ranges);
    if (status == 0)
        status = csd_drive_transfer(pool->drive, extents, keys->n_ranges, why);
    for (uint32_t i = 0; status == 0 && i < keys->n_ranges; i++) {
        cost->flash_read_bytes += extents[i].bytes;
        cost->link_key_bytes += extents[i].bytes;
    }
    free(extents);
    return status;
}
