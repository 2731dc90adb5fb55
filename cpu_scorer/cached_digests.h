/*
 * cpu_scorer/cached_digests.h - digests of cold tokens in the host's memory, a part of M_0
 * (--digest-mb; hillinfer, host-digest).
 *
 * What: frames of 64 cold slots' digests each (four groups, kv/group.h), and which of these are
 * here. A slot's digest is here when its newest one is: from the DEMOTE that wrote it on, or since
 * a query has read it from flash. It changes by a DEMOTE alone, so nothing ever has to be taken
 * back for being old. Which blocks of slots have a frame: the first that ask, until what owned them
 * is over. A query reads all blocks of a layer, so one that made room for another would be gone
 * again before it is read.
 *
 * Where frames lie: in memory of their own, up to a cap (--digest-mb SIZE); or, of hillinfer, in
 * hot blocks that a sequence has lent (--digest-mb auto), for its own layers alone, each an equal
 * part: in units of a few blocks (kv_lent_unit), first in the place of the blocks' digests, then
 * in that of their entries. A frame may begin in one block and end in another; a group never does.
 *
 * Who calls it: tiers.c, which lends; evaluate_digest.c, evaluate_host.c. Concurrency: the data
 * thread; `fill` by a query's threads, each for groups of its own. Failure: a block without a frame
 * is the drive's.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kv/group.h"
#include "kv/plan.h"

#define CACHED_NONE         UINT32_MAX
#define CACHED_BLOCK_GROUPS (KV_HOT_BLOCK_TOKENS / KV_GROUP_TOKENS)

struct cached_digests_config {
    struct kv_geometry geometry;
    uint32_t n_blocks; /* of 64 slots, of the cold pool */
    uint32_t n_lists;
    /* In memory of its own, tables included; below the tables' own size there is no cache. */
    uint64_t cap_bytes;
    bool shares; /* each list has an equal part of the frames; else whoever comes first */
    /* Or in hot blocks: where the digests and the entries of all n_hot_blocks lie. n_owners: how
     * many sequences lend some; each has n_lists / n_owners lists. 0: memory of its own. */
    uint8_t *hot_digests, *hot_entries;
    uint32_t n_hot_blocks, n_owners;
};

struct cached_digests {
    struct cached_digests_config config;
    struct kv_lent_unit unit;
    uint32_t n_frames;  /* 0: there is no cache */
    uint32_t *frame_of; /* [n_blocks] CACHED_NONE: none */
    uint32_t *list_of;  /* [n_frames] whose it is */
    uint32_t *next;     /* [n_frames] of those of its owner that are free */
    uint16_t *here;     /* [n_frames][4] bits: slots of each group, which has one writer */
    uint32_t *used;     /* [n_lists] frames */
    struct cached_owner {
        uint32_t free;           /* its first free frame; CACHED_NONE: none */
        uint32_t n;              /* frames */
    } * owners, own;             /* [n_owners]; own: of the cache's own memory */
    uint32_t *unit_owner;        /* [units] CACHED_NONE: not lent */
    uint32_t *unit_blocks;       /* [units][unit.n_blocks] hot blocks */
    uint32_t n_units, next_unit; /* where a free one is looked for */
    uint8_t *frames;             /* [n_frames][4][kv_group_bytes], of its own */
    uint64_t pages_bytes;        /* what these take */
};

/* HILL_E_NOMEM. */
int cached_digests_create(struct cached_digests *c, const struct cached_digests_config *config);
void cached_digests_destroy(struct cached_digests *c); /* of a zeroed struct, too */
/* Without the hot blocks. */
uint64_t cached_digests_bytes(const struct cached_digests *c);

/* The owner lends a unit: unit.n_blocks hot blocks. */
void cached_digests_lend(struct cached_digests *c, uint32_t owner, const uint32_t *blocks);
/* It takes n_blocks back, in whole units, and what was in them is gone: give_back is called for
 * each block; what it has in all, if that is less. */
void cached_digests_take_back(struct cached_digests *c, uint32_t owner, uint32_t n_blocks,
                              void (*give_back)(void *context, uint32_t block), void *context);
/* Hot blocks that it has lent. */
uint32_t cached_digests_lent(const struct cached_digests *c, uint32_t owner);

/* The block is the list's now: a frame for it, if it has none, one is free and the list's part is
 * not full. */
void cached_digests_want(struct cached_digests *c, uint32_t block, uint32_t list);
void cached_digests_drop(struct cached_digests *c, uint32_t block);

/* A slot is being written with token `index` of `from`. */
void cached_digests_put(struct cached_digests *c, uint32_t slot, const uint8_t *from,
                        uint64_t index);
/* A group has been read from flash, where these lanes are right; others that are here stay. */
void cached_digests_fill(struct cached_digests *c, uint32_t group, uint32_t lanes,
                         const uint8_t *from);

static inline bool cached_digests_has(const struct cached_digests *c, uint32_t block)
{
    return c->n_frames && c->frame_of[block] != CACHED_NONE;
}

/* Has any block of the list a frame? */
static inline bool cached_digests_any(const struct cached_digests *c, uint32_t list)
{
    return c->n_frames && c->used[list] > 0;
}

/* Which slots of a block are here, as bits. */
static inline uint64_t cached_digests_here(const struct cached_digests *c, uint32_t block)
{
    if (!cached_digests_has(c, block))
        return 0;
    const uint16_t *here = &c->here[c->frame_of[block] * (uint64_t)CACHED_BLOCK_GROUPS];
    return here[0] | (uint64_t)here[1] << 16 | (uint64_t)here[2] << 32 | (uint64_t)here[3] << 48;
}

/* Groups of a block that has a frame, from `group` (0 to 3) on: *n, in as many as follow one
 * another in memory. */
const uint8_t *cached_digests_at(const struct cached_digests *c, uint32_t block, uint32_t group,
                                 uint32_t *n);
