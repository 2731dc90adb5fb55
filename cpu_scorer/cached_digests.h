/*
 * cpu_scorer/cached_digests.h - digests of cold tokens in the host's memory, up to a cap that is
 * part of M_0 (--digest-mb; hillinfer, host-digest).
 *
 * What: frames of 64 cold slots' digests each (four groups, kv/group.h), and which of these are
 * here. A slot's digest is here when its newest one is: from the DEMOTE that wrote it on, or since
 * a query has read it from flash. It changes by a DEMOTE alone, so nothing ever has to be taken
 * back for being old. Which blocks of slots have a frame: the first that ask, until what owned them
 * is over. A query reads all blocks of a layer, so one that made room for another would be gone
 * again before it is read. Who calls it: evaluate_digest.c, evaluate_host.c. Concurrency: the data
 * thread; `fill` by a query's threads, each for groups of its own. Failure: a block without a frame
 * is the drive's.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kv/group.h"
#include "kv/plan.h"

#define CACHED_NONE UINT32_MAX

struct cached_digests {
    struct kv_geometry geometry;
    uint32_t n_blocks; /* of 64 slots, of the cold pool */
    uint32_t n_lists;
    bool shares; /* each list has an equal part of the frames */
    uint32_t n_frames, n_free;
    uint32_t *frame_of;   /* [n_blocks] CACHED_NONE: none */
    uint32_t *list_of;    /* [n_frames] whose it is */
    uint32_t *free;       /* [n_frames] the last is given first */
    uint32_t *used;       /* [n_lists] frames */
    uint16_t *here;       /* [n_frames][4] bits: slots of each group, which has one writer */
    uint8_t *frames;      /* [n_frames][4][kv_group_bytes] */
    uint64_t pages_bytes; /* what frames take */
};

/* All of it within cap_bytes; a cap below the tables' own size is no cache. shares: each of n_lists
 * has an equal part of it; else whoever comes first. HILL_E_NOMEM. */
int cached_digests_create(struct cached_digests *c, const struct kv_geometry *g, uint32_t n_blocks,
                          uint32_t n_lists, bool shares, uint64_t cap_bytes);
void cached_digests_destroy(struct cached_digests *c); /* of a zeroed struct, too */
uint64_t cached_digests_bytes(const struct cached_digests *c);

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

/* Which slots of a block are here, as bits. */
static inline uint64_t cached_digests_here(const struct cached_digests *c, uint32_t block)
{
    if (!cached_digests_has(c, block))
        return 0;
    const uint16_t *here = &c->here[c->frame_of[block] * (uint64_t)4];
    return here[0] | (uint64_t)here[1] << 16 | (uint64_t)here[2] << 32 | (uint64_t)here[3] << 48;
}

/* The digests of a block that has a frame. */
static inline const uint8_t *cached_digests_at(const struct cached_digests *c, uint32_t block)
{
    uint64_t groups = KV_HOT_BLOCK_TOKENS / KV_GROUP_TOKENS;
    return c->frames + c->frame_of[block] * groups * kv_group_bytes(&c->geometry);
}
