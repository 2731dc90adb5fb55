/*
 * cpu_scorer/tiers.h - the tables of one epoch: where each KV entry is, in every tier.
 *
 * What: the hot pool and its location words (hkm.h), the map of the cold pool (cold_map.h), digests
 * of cold tokens (cached_digests.h), the GPU's slot table (placement/gpu_slots.h) and the staging
 * arena, with what of the arena nobody has reserved. A list is one (sequence, layer). Who calls it:
 * every module of the data thread. Failure: codes at create; nothing else fails.
 */
#pragma once

#include "cpu_scorer/cached_digests.h"
#include "cpu_scorer/cold_map.h"
#include "cpu_scorer/hkm.h"
#include "cpu_scorer/kept.h"
#include "cpu_scorer/scorer.h"
#include "placement/gpu_slots.h"

struct tiers {
    struct hkm hkm;
    struct gpu_slots gpu;
    struct cold_map cold;
    struct cached_digests digests; /* of cold tokens */
    struct shm_arena *staging;     /* the epoch's; slots are taken and given here alone */
    uint32_t staging_unreserved;   /* slots that no sequence has set aside */
    bool adopted; /* the hot pool is an earlier epoch's: its sequences can be taken up */
};

/* As hkm_init; HILL_E_NOMEM. */
int tiers_create(struct tiers *t, const struct scorer_config *config, const struct scorer_io *io,
                 struct hill_why *why);
void tiers_destroy(struct tiers *t);
uint64_t tiers_private_bytes(const struct tiers *t);

/* The sequence is to lend n hot blocks for every layer to digests of its cold tokens: it lends
 * more, as far as blocks are unreserved, or takes back what is too much, with what is in it. In
 * whole units (cached_digests.h), so that a few blocks of all n may be missing. */
void tiers_lend(struct tiers *t, uint32_t sequence, uint32_t n);

/* What the GPU and the hot pool hold of a sequence goes back; or what the cold pool holds. */
void tiers_release_near(struct tiers *t, uint32_t sequence);
void tiers_release_cold(struct tiers *t, uint32_t sequence);

static inline struct kept *tiers_kept(const struct tiers *t, uint32_t sequence)
{
    return (struct kept *)(void *)(t->hkm.kept + (size_t)sequence * KV_KEPT_BYTES);
}

static inline uint32_t tiers_list(const struct tiers *t, uint32_t sequence, uint32_t layer)
{
    return hkm_list_index(&t->hkm, sequence, layer);
}

/* What it has on one drive (cold_map.h). */
static inline uint32_t tiers_part(const struct tiers *t, uint32_t sequence, uint32_t layer,
                                  uint32_t drive)
{
    return cold_map_part(&t->cold, tiers_list(t, sequence, layer), drive);
}

/* What each layer of it has set aside: hot blocks; stripes on a drive. */
static inline uint32_t tiers_blocks(const struct tiers *t, uint32_t sequence)
{
    return t->hkm.lists[tiers_list(t, sequence, 0)].limit;
}

static inline uint32_t tiers_stripes(const struct tiers *t, uint32_t sequence, uint32_t drive)
{
    return t->cold.lists[tiers_part(t, sequence, 0, drive)].n_stripes;
}
