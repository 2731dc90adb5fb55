/*
 * csd_agent/cold_pool.c - stripes and their owners, commit, trim, directory; see cold_pool.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "csd_agent/cold_state.h"

#include "base/fault.h"
#include "base/grow.h"

/* ---- stripes ---- */

void cold_stripe_drop_tails(struct cold_stripe *stripe)
{
    for (uint32_t p = 0; p < PLANE_COUNT; p++) {
        free(stripe->tails[p].pages);
        stripe->tails[p] = (struct tail_pages){.pages = NULL};
    }
}

void cold_stripe_destroy(struct cold_stripe *stripe)
{
    if (!stripe)
        return;
    cold_stripe_drop_tails(stripe);
    free(stripe->written);
    free(stripe->digest_pages);
    free(stripe->key_pages);
    free(stripe->entry_pages);
    free(stripe->positions);
    free(stripe->checksums);
    free(stripe);
}

static uint64_t *bitmap_create(uint64_t bits)
{
    return calloc(bits / 64 + 1, sizeof(uint64_t)); /* 0 bits too */
}

static struct cold_stripe *stripe_create(const struct pool_layout *layout)
{
    struct cold_stripe *stripe = calloc(1, sizeof *stripe);

    if (!stripe)
        return NULL;
    stripe->written = bitmap_create(layout->stripe_slots);
    stripe->digest_pages = bitmap_create(layout->digest_stripe_bytes / CSD_ALIGN);
    stripe->key_pages = bitmap_create(layout->key_stripe_bytes / CSD_ALIGN);
    stripe->entry_pages = bitmap_create(layout->entry_stripe_bytes / CSD_ALIGN);
    stripe->positions = calloc(layout->stripe_slots, sizeof(uint32_t));
    stripe->checksums = calloc(layout->stripe_slots, sizeof(uint32_t));
    if (stripe->written && stripe->digest_pages && stripe->key_pages && stripe->entry_pages &&
        stripe->positions && stripe->checksums)
        return stripe;
    cold_stripe_destroy(stripe);
    return NULL;
}

void cold_mark_dirty(struct cold_pool *pool, uint32_t stripe)
{
    if (pool->is_dirty[stripe])
        return;
    pool->is_dirty[stripe] = 1;
    pool->dirty[(pool->dirty_first + pool->n_dirty) % pool->layout.n_stripes] = stripe;
    pool->n_dirty++;
}

/* Insert by order; HILL_E_PROTOCOL when the order is taken. */
static int owner_insert(struct cold_pool *pool, struct cold_owner *owner, uint32_t stripe,
                        uint32_t order, struct hill_why *why)
{
    uint32_t at = owner->n_stripes;

    while (at > 0 && pool->directory->stripes[owner->stripes[at - 1]].order >= order)
        at--;
    if (at < owner->n_stripes && pool->directory->stripes[owner->stripes[at]].order == order)
        return hill_fail(why, HILL_E_PROTOCOL, "stripe %u has the order %u of stripe %u", stripe,
                         order, owner->stripes[at]);
    if (!GROW(owner->stripes, owner->capacity, owner->n_stripes + 1))
        return hill_fail(why, HILL_E_NOMEM, "no memory for %u stripes", owner->n_stripes + 1);
    memmove(owner->stripes + at + 1, owner->stripes + at,
            (owner->n_stripes - at) * sizeof *owner->stripes);
    owner->stripes[at] = stripe;
    owner->n_stripes++;
    return 0;
}

int cold_stripe_claim(struct cold_pool *pool, uint32_t stripe, uint32_t sequence, uint32_t layer,
                      uint32_t order, struct cold_stripe **out, struct hill_why *why)
{
    const struct pool_stripe *record = &pool->directory->stripes[stripe];

    *out = pool->stripes[stripe];
    if (*out) {
        if (record->sequence == sequence && record->layer == layer && record->order == order)
            return 0;
        return hill_fail(why, HILL_E_PROTOCOL,
                         "stripe %u belongs to sequence %u, layer %u as number %u, not to "
                         "sequence %u, layer %u as number %u",
                         stripe, record->sequence, record->layer, record->order, sequence, layer,
                         order);
    }
    struct cold_stripe *created = stripe_create(&pool->layout);
    if (!created)
        return hill_fail(why, HILL_E_NOMEM, "no memory for stripe %u", stripe);
    int status = owner_insert(pool, cold_owner(pool, sequence, layer), stripe, order, why);
    if (status != 0) {
        cold_stripe_destroy(created);
        return status;
    }
    pool_stripe_claim(pool->directory, stripe, sequence, layer, order);
    pool->stripes[stripe] = *out = created;
    cold_mark_dirty(pool, stripe);
    return 0;
}

/* ---- commit, release ---- */

/* Take a slot out of those that wait for their commit; a slot named twice is not there any more. */
static int take_written(struct cold_pool *pool, uint32_t sequence, uint32_t layer, uint32_t slot,
                        struct hill_why *why)
{
    uint32_t slots = pool->layout.stripe_slots, stripe = slot / slots;

    if (stripe >= pool->layout.n_stripes || !pool->stripes[stripe])
        return hill_fail(why, HILL_E_PROTOCOL, "slot %u to be committed is not in use", slot);
    const struct pool_stripe *record = &pool->directory->stripes[stripe];
    if (record->sequence != sequence || record->layer != layer)
        return hill_fail(why, HILL_E_PROTOCOL,
                         "slot %u to be committed belongs to sequence %u, layer %u", slot,
                         record->sequence, record->layer);
    if (!bit_test(pool->stripes[stripe]->written, slot % slots))
        return hill_fail(why, HILL_E_PROTOCOL,
                         "slot %u to be committed is not written or committed already", slot);
    bit_clear(pool->stripes[stripe]->written, slot % slots);
    return 0;
}

void cold_commit_slot(struct cold_pool *pool, struct cold_owner *owner, uint32_t slot)
{
    uint32_t slots = pool->layout.stripe_slots, stripe = slot / slots, at = slot % slots;
    struct cold_stripe *state = pool->stripes[stripe];

    pool_slot_set(pool->directory, slot, state->positions[at], state->checksums[at]);
    owner->committed++;
    if (at + 1 > state->used)
        state->used = at + 1;
    cold_mark_dirty(pool, stripe);
}

int cold_pool_commit(struct cold_pool *pool, uint32_t sequence, uint32_t layer,
                     const uint32_t *slots, uint32_t n_slots, struct hill_why *why)
{
    uint32_t per_stripe = pool->layout.stripe_slots;

    for (uint32_t i = 0; i < n_slots; i++) {
        int status = take_written(pool, sequence, layer, slots[i], why);
        if (status != 0) {
            while (i-- > 0)
                bit_set(pool->stripes[slots[i] / per_stripe]->written, slots[i] % per_stripe);
            return status;
        }
    }
    for (uint32_t i = 0; i < n_slots; i++) {
        cold_commit_slot(pool, cold_owner(pool, sequence, layer), slots[i]);
        FAULT_POINT(csd_agent, commit, begun);
    }
    FAULT_POINT(csd_agent, commit, done);
    return 0;
}

/* Take a slot out of those that count; its owner's count is the caller's to change. */
static int take_committed(struct cold_pool *pool, uint32_t sequence, uint32_t layer, uint32_t slot,
                          struct hill_why *why)
{
    uint32_t stripe = slot / pool->layout.stripe_slots;

    if (cold_pool_position(pool, slot) == COLD_NO_POSITION)
        return hill_fail(why, HILL_E_PROTOCOL, "slot %u to be released is not committed", slot);
    const struct pool_stripe *record = &pool->directory->stripes[stripe];
    if (record->sequence != sequence || record->layer != layer)
        return hill_fail(why, HILL_E_PROTOCOL,
                         "slot %u to be released belongs to sequence %u, layer %u", slot,
                         record->sequence, record->layer);
    pool_slot_clear(pool->directory, slot);
    return 0;
}

int cold_pool_release(struct cold_pool *pool, uint32_t sequence, uint32_t layer,
                      const uint32_t *slots, uint32_t n_slots, struct hill_why *why)
{
    uint32_t per_stripe = pool->layout.stripe_slots;

    for (uint32_t i = 0; i < n_slots; i++) {
        int status = take_committed(pool, sequence, layer, slots[i], why);
        FAULT_POINT(csd_agent, release, begun);
        if (status == 0)
            continue;
        while (i-- > 0) {
            const struct cold_stripe *state = pool->stripes[slots[i] / per_stripe];
            pool_slot_set(pool->directory, slots[i], state->positions[slots[i] % per_stripe],
                          state->checksums[slots[i] % per_stripe]);
        }
        return status;
    }
    for (uint32_t i = 0; i < n_slots; i++) {
        bit_set(pool->stripes[slots[i] / per_stripe]->written, slots[i] % per_stripe);
        cold_mark_dirty(pool, slots[i] / per_stripe);
    }
    cold_owner(pool, sequence, layer)->committed -= n_slots;
    FAULT_POINT(csd_agent, release, done);
    return 0;
}

/* ---- trim ---- */

void cold_pool_trim(struct cold_pool *pool, uint32_t sequence)
{
    for (uint32_t layer = 0; layer < pool->layout.geometry.n_layers; layer++) {
        struct cold_owner *owner = cold_owner(pool, sequence, layer);
        for (uint32_t i = 0; i < owner->n_stripes; i++) {
            uint32_t stripe = owner->stripes[i];
            pool_stripe_free(pool->directory, stripe);
            csd_drive_free_stripe(pool->drive, stripe);
            cold_stripe_destroy(pool->stripes[stripe]);
            pool->stripes[stripe] = NULL;
            cold_mark_dirty(pool, stripe);
        }
        owner->n_stripes = 0;
        owner->committed = 0;
    }
    FAULT_POINT(csd_agent, trim, done);
}

/* ---- what is there ---- */

uint64_t cold_pool_slot_bytes(const struct cold_pool *pool)
{
    const struct pool_layout *l = &pool->layout;
    return kv_entry_bytes(&l->geometry) + pool_read_bytes(l);
}

const struct pool_layout *cold_pool_layout(const struct cold_pool *pool)
{
    return &pool->layout;
}

void cold_pool_limit_dram(struct cold_pool *pool, uint64_t bytes)
{
    csd_drive_limit_dram(pool->drive, bytes);
}

void cold_pool_describe(const struct cold_pool *pool, char *text, size_t size)
{
    char uuid[POOL_UUID_TEXT];
    csd_drive_describe(pool->drive, text, size);
    size_t used = strlen(text);
    if (used < size)
        snprintf(text + used, size - used, ", pool %s",
                 pool_uuid_print(uuid, pool->directory->identity.uuid));
}

int cold_pool_lost(const struct cold_pool *pool, struct hill_why *why)
{
    return csd_drive_lost(pool->drive, why);
}

uint32_t cold_pool_position(const struct cold_pool *pool, uint32_t slot)
{
    uint32_t slots = pool->layout.stripe_slots, stripe = slot / slots;

    if (stripe >= pool->layout.n_stripes || !pool->stripes[stripe] ||
        !pool_slot_valid(pool->directory, slot))
        return COLD_NO_POSITION;
    return pool->stripes[stripe]->positions[slot % slots];
}

uint32_t cold_pool_committed(const struct cold_pool *pool, uint32_t sequence, uint32_t layer)
{
    return cold_owner(pool, sequence, layer)->committed;
}

/* ---- directory ---- */

int cold_pool_write_directory(struct cold_pool *pool, struct hill_why *why)
{
    struct csd_extent extent = {.memory = pool->directory_pages, .write = true};

    if (pool->n_dirty == 0)
        return 0;
    uint32_t stripe = pool->dirty[pool->dirty_first];
    extent.bytes =
        pool_directory_encode(pool->directory, stripe, pool->directory_pages, &extent.offset);
    FAULT_POINT(csd_agent, directory, writing);
    int status = csd_drive_transfer(pool->drive, &extent, 1, why);
    FAULT_POINT(csd_agent, directory, written);
    if (status != 0)
        return status;
    pool->is_dirty[stripe] = 0;
    pool->dirty_first = (pool->dirty_first + 1) % pool->layout.n_stripes;
    pool->n_dirty--;
    return 1;
}
