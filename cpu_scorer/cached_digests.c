/* cpu_scorer/cached_digests.c - see cached_digests.h. */
#include "cpu_scorer/cached_digests.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/huge_pages.h"

#define GROUPS (KV_HOT_BLOCK_TOKENS / KV_GROUP_TOKENS) /* of a block */

_Static_assert(GROUPS == 4 && KV_GROUP_TOKENS == 16, "a block's slots are the bits of four words");

static uint64_t frame_bytes(const struct kv_geometry *g)
{
    return (uint64_t)GROUPS * kv_group_bytes(g) + KV_CACHED_FRAME_BYTES;
}

static uint64_t index_bytes(uint32_t n_blocks, uint32_t n_lists)
{
    return (uint64_t)n_blocks * KV_CACHED_BLOCK_BYTES + (uint64_t)n_lists * KV_CACHED_LIST_BYTES;
}

int cached_digests_create(struct cached_digests *c, const struct kv_geometry *g, uint32_t n_blocks,
                          uint32_t n_lists, bool shares, uint64_t cap_bytes)
{
    uint64_t index = index_bytes(n_blocks, n_lists);
    uint64_t frames = cap_bytes > index ? (cap_bytes - index) / frame_bytes(g) : 0;
    *c = (struct cached_digests){
        .geometry = *g, .n_blocks = n_blocks, .n_lists = n_lists, .shares = shares};
    if (frames == 0 || n_blocks == 0 || n_lists == 0)
        return 0;
    c->n_frames = frames < n_blocks ? (uint32_t)frames : n_blocks;
    c->frame_of = malloc(n_blocks * sizeof *c->frame_of);
    c->list_of = calloc(c->n_frames, sizeof *c->list_of);
    c->free = calloc(c->n_frames, sizeof *c->free);
    c->used = calloc(n_lists, sizeof *c->used);
    c->here = calloc((size_t)c->n_frames * GROUPS, sizeof *c->here);
    c->frames =
        huge_pages_take((uint64_t)c->n_frames * GROUPS * kv_group_bytes(g), &c->pages_bytes);
    if (!c->frame_of || !c->list_of || !c->free || !c->used || !c->here || !c->frames)
        return HILL_E_NOMEM;
    memset(c->frame_of, 0xff, n_blocks * sizeof *c->frame_of);
    while (c->n_free < c->n_frames) { /* given in order, so that blocks lie behind one another */
        c->free[c->n_free] = c->n_frames - 1 - c->n_free;
        c->n_free++;
    }
    return 0;
}

void cached_digests_destroy(struct cached_digests *c)
{
    free(c->frame_of);
    free(c->list_of);
    free(c->free);
    free(c->used);
    free(c->here);
    huge_pages_give(c->frames, c->pages_bytes);
    *c = (struct cached_digests){0};
}

uint64_t cached_digests_bytes(const struct cached_digests *c)
{
    return c->n_frames
               ? index_bytes(c->n_blocks, c->n_lists) + c->n_frames * frame_bytes(&c->geometry)
               : 0;
}

/* How many frames a list has at most. */
static uint32_t frames_for(const struct cached_digests *c, uint32_t list)
{
    return c->shares ? c->n_frames / c->n_lists + (list < c->n_frames % c->n_lists) : c->n_frames;
}

void cached_digests_want(struct cached_digests *c, uint32_t block, uint32_t list)
{
    if (cached_digests_has(c, block) && c->list_of[c->frame_of[block]] == list)
        return;
    cached_digests_drop(c, block); /* of a list that is over */
    if (c->n_free == 0 || c->used[list] >= frames_for(c, list))
        return;
    uint32_t frame = c->free[--c->n_free];
    c->frame_of[block] = frame;
    c->list_of[frame] = list;
    memset(&c->here[(uint64_t)frame * GROUPS], 0, GROUPS * sizeof *c->here);
    c->used[list]++;
}

void cached_digests_drop(struct cached_digests *c, uint32_t block)
{
    if (!cached_digests_has(c, block))
        return;
    uint32_t frame = c->frame_of[block];
    c->used[c->list_of[frame]]--;
    c->free[c->n_free++] = frame;
    c->frame_of[block] = CACHED_NONE;
}

static uint8_t *frame_at(const struct cached_digests *c, uint32_t frame)
{
    return c->frames + (uint64_t)frame * GROUPS * kv_group_bytes(&c->geometry);
}

void cached_digests_put(struct cached_digests *c, uint32_t slot, const uint8_t *from,
                        uint64_t index)
{
    uint32_t block = slot / KV_HOT_BLOCK_TOKENS, lane = slot % KV_HOT_BLOCK_TOKENS;
    if (!cached_digests_has(c, block))
        return;
    uint32_t frame = c->frame_of[block];
    kv_digest_copy(&c->geometry, frame_at(c, frame), lane, from, index, 1);
    c->here[(uint64_t)frame * GROUPS + lane / KV_GROUP_TOKENS] |=
        (uint16_t)(1u << lane % KV_GROUP_TOKENS);
}

void cached_digests_fill(struct cached_digests *c, uint32_t group, uint32_t lanes,
                         const uint8_t *from)
{
    uint32_t block = group / GROUPS;
    if (!cached_digests_has(c, block))
        return;
    uint32_t frame = c->frame_of[block];
    uint16_t *here = &c->here[(uint64_t)frame * GROUPS + group % GROUPS];
    uint32_t lacking = lanes & ~(uint32_t)*here;
    uint8_t *to = frame_at(c, frame) + (uint64_t)(group % GROUPS) * kv_group_bytes(&c->geometry);
    if (*here == 0)
        memcpy(to, from, kv_group_bytes(&c->geometry));
    else
        for (uint32_t lane = 0; lane < KV_GROUP_TOKENS; lane++)
            if (lacking >> lane & 1)
                kv_digest_copy(&c->geometry, to, lane, from, lane, 1);
    *here |= (uint16_t)lacking;
}
