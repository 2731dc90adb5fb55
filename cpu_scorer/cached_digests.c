/* cpu_scorer/cached_digests.c - see cached_digests.h. */
#include "cpu_scorer/cached_digests.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kv/plan.h"

int cached_digests_create(struct cached_digests *c, const struct kv_geometry *g, uint32_t n_groups,
                          uint64_t cap_bytes)
{
    uint64_t index = (uint64_t)n_groups * KV_CACHED_GROUP_BYTES;
    uint64_t frame = kv_group_bytes(g) + KV_CACHED_FRAME_BYTES;
    uint64_t frames = cap_bytes > index ? (cap_bytes - index) / frame : 0;
    *c = (struct cached_digests){.geometry = *g, .n_groups = n_groups};
    if (frames == 0 || n_groups == 0)
        return 0;
    c->n_frames = frames < n_groups ? (uint32_t)frames : n_groups;
    c->frame_of = malloc(n_groups * sizeof *c->frame_of);
    c->group_of = calloc(c->n_frames, sizeof *c->group_of);
    c->free = calloc(c->n_frames, sizeof *c->free);
    c->lanes = calloc(c->n_frames, sizeof *c->lanes);
    c->groups = aligned_alloc(KV_GROUP_ALIGN, (size_t)c->n_frames * kv_group_bytes(g));
    if (!c->frame_of || !c->group_of || !c->free || !c->lanes || !c->groups)
        return HILL_E_NOMEM;
    memset(c->frame_of, 0xff, n_groups * sizeof *c->frame_of);
    while (c->n_free < c->n_frames) { /* given in order, so that groups lie behind one another */
        c->free[c->n_free] = c->n_frames - 1 - c->n_free;
        c->n_free++;
    }
    return 0;
}

void cached_digests_destroy(struct cached_digests *c)
{
    free(c->frame_of);
    free(c->group_of);
    free(c->free);
    free(c->lanes);
    free(c->groups);
    *c = (struct cached_digests){0};
}

uint64_t cached_digests_bytes(const struct cached_digests *c)
{
    return c->n_frames
               ? (uint64_t)c->n_groups * KV_CACHED_GROUP_BYTES +
                     c->n_frames * (uint64_t)(kv_group_bytes(&c->geometry) + KV_CACHED_FRAME_BYTES)
               : 0;
}

void cached_digests_want(struct cached_digests *c, uint32_t group)
{
    if (c->n_free == 0 || c->frame_of[group] != CACHED_NONE)
        return;
    uint32_t frame = c->free[--c->n_free];
    c->frame_of[group] = frame;
    c->group_of[frame] = group;
    c->lanes[frame] = 0;
}

void cached_digests_drop(struct cached_digests *c, uint32_t group)
{
    uint32_t frame = c->n_frames ? c->frame_of[group] : CACHED_NONE;
    if (frame == CACHED_NONE)
        return;
    c->free[c->n_free++] = frame;
    c->frame_of[group] = CACHED_NONE;
}

static uint8_t *group_at(const struct cached_digests *c, uint32_t frame)
{
    return c->groups + (uint64_t)frame * kv_group_bytes(&c->geometry);
}

void cached_digests_put(struct cached_digests *c, uint32_t slot, const uint8_t *from,
                        uint64_t index)
{
    uint32_t group = slot / KV_GROUP_TOKENS, lane = slot % KV_GROUP_TOKENS;
    cached_digests_want(c, group);
    if (c->n_frames == 0 || c->frame_of[group] == CACHED_NONE)
        return;
    uint32_t frame = c->frame_of[group];
    kv_digest_copy(&c->geometry, group_at(c, frame), lane, from, index, 1);
    c->lanes[frame] |= (uint16_t)(1u << lane);
}

void cached_digests_fill(struct cached_digests *c, uint32_t group, uint32_t lanes,
                         const uint8_t *from)
{
    uint32_t frame = c->n_frames ? c->frame_of[group] : CACHED_NONE;
    if (frame == CACHED_NONE)
        return;
    uint32_t lacking = lanes & ~(uint32_t)c->lanes[frame];
    if (c->lanes[frame] == 0)
        memcpy(group_at(c, frame), from, kv_group_bytes(&c->geometry));
    else
        for (uint32_t lane = 0; lane < KV_GROUP_TOKENS; lane++)
            if (lacking >> lane & 1)
                kv_digest_copy(&c->geometry, group_at(c, frame), lane, from, lane, 1);
    c->lanes[frame] |= (uint16_t)lacking;
}
