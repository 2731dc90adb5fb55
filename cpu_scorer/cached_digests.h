/*
 * cpu_scorer/cached_digests.h - digests of cold tokens in the host's memory (host-digest), up to a
 * cap that is part of M_0.
 *
 * What: frames of one group of digests each (kv/group.h), and which of its sixteen lanes are here.
 * A lane is here when its cold slot's newest digest is: from the DEMOTE that wrote it on, or since
 * a query has read it from flash. A slot's digest changes by a DEMOTE alone, so nothing ever has to
 * be taken back for being old. Which groups have a frame: the first that ask, until a sequence of
 * theirs is over. A query reads all groups of a layer, so one that made room for another would be
 * gone again before it is read. Who calls it: evaluate_host.c. Concurrency: the data thread; `fill`
 * by a query's threads, each for groups of its own. Failure: without a frame a group is read from
 * flash.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kv/group.h"

#define CACHED_NONE UINT32_MAX
#define CACHED_ALL  0xffffu /* lanes */

struct cached_digests {
    struct kv_geometry geometry;
    uint32_t n_groups; /* of the cold pool */
    uint32_t n_frames, n_free;
    uint32_t *frame_of; /* [n_groups] CACHED_NONE: none */
    uint32_t *group_of; /* [n_frames] */
    uint32_t *free;     /* [n_frames] the last is given first */
    uint16_t *lanes;    /* [n_frames] bits */
    uint8_t *groups;    /* [n_frames][kv_group_bytes] */
};

/* All of it within cap_bytes; a cap below the tables' own size is no cache. HILL_E_NOMEM. */
int cached_digests_create(struct cached_digests *c, const struct kv_geometry *g, uint32_t n_groups,
                          uint64_t cap_bytes);
void cached_digests_destroy(struct cached_digests *c); /* of a zeroed struct, too */
uint64_t cached_digests_bytes(const struct cached_digests *c);

/* A frame for the group, if one is free and it has none. */
void cached_digests_want(struct cached_digests *c, uint32_t group);
void cached_digests_drop(struct cached_digests *c, uint32_t group);

/* A slot is being written with token `index` of `from`. */
void cached_digests_put(struct cached_digests *c, uint32_t slot, const uint8_t *from,
                        uint64_t index);
/* A group has been read from flash, where these lanes are right; others that are here stay. */
void cached_digests_fill(struct cached_digests *c, uint32_t group, uint32_t lanes,
                         const uint8_t *from);

/* Which lanes of a group are here; 0: none. */
static inline uint32_t cached_digests_lanes(const struct cached_digests *c, uint32_t group)
{
    return c->n_frames && c->frame_of[group] != CACHED_NONE ? c->lanes[c->frame_of[group]] : 0;
}

/* Groups behind one another in memory, from the group's frame on. */
static inline const uint8_t *cached_digests_at(const struct cached_digests *c, uint32_t group)
{
    return c->groups + (uint64_t)c->frame_of[group] * kv_group_bytes(&c->geometry);
}
