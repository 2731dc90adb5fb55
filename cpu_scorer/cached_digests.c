/* cpu_scorer/cached_digests.c - see cached_digests.h. */
#include "cpu_scorer/cached_digests.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/huge_pages.h"

#define GROUPS CACHED_BLOCK_GROUPS

_Static_assert(GROUPS == 4 && KV_GROUP_TOKENS == 16, "a block's slots are the bits of four words");
_Static_assert(sizeof(struct cached_owner) == KV_CACHED_OWNER_BYTES, "the plan's");

/* ---- life ----------------------------------------------------------------------------------- */

static bool is_lent(const struct cached_digests *c)
{
    return c->config.n_owners > 0;
}

static uint64_t frame_bytes(const struct kv_geometry *g)
{
    return (uint64_t)GROUPS * kv_group_bytes(g);
}

static uint64_t index_bytes(const struct cached_digests_config *f)
{
    return (uint64_t)f->n_blocks * KV_CACHED_BLOCK_BYTES +
           (uint64_t)f->n_lists * KV_CACHED_LIST_BYTES +
           (uint64_t)f->n_owners * KV_CACHED_OWNER_BYTES;
}

/* How many frames there can be. */
static uint32_t most_frames(const struct cached_digests *c)
{
    const struct cached_digests_config *f = &c->config;
    uint64_t index = index_bytes(f), each = frame_bytes(&f->geometry) + KV_CACHED_FRAME_BYTES;
    uint64_t n = f->cap_bytes > index ? (f->cap_bytes - index) / each : 0;
    if (f->n_blocks == 0 || f->n_lists == 0)
        return 0;
    if (is_lent(c))
        return c->n_units * c->unit.n_frames;
    return n < f->n_blocks ? (uint32_t)n : f->n_blocks;
}

static int create_tables(struct cached_digests *c)
{
    const struct cached_digests_config *f = &c->config;
    c->frame_of = malloc(f->n_blocks * sizeof *c->frame_of);
    c->list_of = calloc(c->n_frames, sizeof *c->list_of);
    c->next = calloc(c->n_frames, sizeof *c->next);
    c->used = calloc(f->n_lists, sizeof *c->used);
    c->here = calloc((size_t)c->n_frames * GROUPS, sizeof *c->here);
    if (!c->frame_of || !c->list_of || !c->next || !c->used || !c->here)
        return HILL_E_NOMEM;
    memset(c->frame_of, 0xff, f->n_blocks * sizeof *c->frame_of);
    return 0;
}

static int create_units(struct cached_digests *c)
{
    c->owners = calloc(c->config.n_owners, sizeof *c->owners);
    c->unit_owner = malloc(c->n_units * sizeof *c->unit_owner);
    c->unit_blocks = calloc((size_t)c->n_units * c->unit.n_blocks, sizeof *c->unit_blocks);
    if (!c->owners || !c->unit_owner || !c->unit_blocks)
        return HILL_E_NOMEM;
    memset(c->unit_owner, 0xff, c->n_units * sizeof *c->unit_owner);
    for (uint32_t i = 0; i < c->config.n_owners; i++)
        c->owners[i].free = CACHED_NONE;
    return 0;
}

/* Frames are given in order, so that blocks lie behind one another. */
static void add_frames(struct cached_digests *c, struct cached_owner *owner, uint32_t first,
                       uint32_t n)
{
    for (uint32_t i = n; i-- > 0; owner->free = first + i)
        c->next[first + i] = owner->free;
    owner->n += n;
}

static int create_frames(struct cached_digests *c)
{
    c->frames = huge_pages_take(c->n_frames * frame_bytes(&c->config.geometry), &c->pages_bytes);
    if (!c->frames)
        return HILL_E_NOMEM;
    add_frames(c, &c->own, 0, c->n_frames);
    return 0;
}

int cached_digests_create(struct cached_digests *c, const struct cached_digests_config *config)
{
    struct kv_lent_unit unit = kv_lent_unit(&config->geometry);
    *c = (struct cached_digests){.config = *config,
                                 .unit = unit,
                                 .own.free = CACHED_NONE,
                                 .n_units = config->n_hot_blocks / unit.n_blocks};
    c->n_frames = most_frames(c);
    if (c->n_frames == 0)
        return 0;
    int rc = create_tables(c);
    if (rc)
        return rc;
    return is_lent(c) ? create_units(c) : create_frames(c);
}

void cached_digests_destroy(struct cached_digests *c)
{
    free(c->frame_of);
    free(c->list_of);
    free(c->next);
    free(c->used);
    free(c->here);
    free(c->owners);
    free(c->unit_owner);
    free(c->unit_blocks);
    huge_pages_give(c->frames, c->pages_bytes);
    *c = (struct cached_digests){0};
}

uint64_t cached_digests_bytes(const struct cached_digests *c)
{
    uint64_t units = c->n_units * (1ull + c->unit.n_blocks) * sizeof(uint32_t);
    uint64_t frames = is_lent(c) ? units : c->n_frames * frame_bytes(&c->config.geometry);
    return c->n_frames
               ? index_bytes(&c->config) + c->n_frames * (uint64_t)KV_CACHED_FRAME_BYTES + frames
               : 0;
}

/* ---- where groups lie ----------------------------------------------------------------------- */

/* *n: groups of the frame, from this one on, that follow one another in memory. */
static uint8_t *lent_group(const struct cached_digests *c, uint32_t frame, uint32_t group,
                           uint32_t *n)
{
    const uint32_t *blocks = &c->unit_blocks[frame / c->unit.n_frames * c->unit.n_blocks];
    uint32_t at = frame % c->unit.n_frames * GROUPS + group, near = c->unit.n_blocks * GROUPS;
    uint64_t bytes = kv_group_bytes(&c->config.geometry);
    *n = GROUPS - group;
    if (at < near)
        return c->config.hot_digests +
               (blocks[at / GROUPS] * (uint64_t)GROUPS + at % GROUPS) * bytes;
    at -= near;
    uint32_t within = at % c->unit.groups, left = c->unit.groups - within;
    *n = left < *n ? left : *n;
    return c->config.hot_entries + within * bytes +
           blocks[at / c->unit.groups] * (uint64_t)KV_HOT_BLOCK_TOKENS *
               kv_entry_bytes(&c->config.geometry);
}

static uint8_t *group_at(const struct cached_digests *c, uint32_t frame, uint32_t group,
                         uint32_t *n)
{
    if (is_lent(c))
        return lent_group(c, frame, group, n);
    *n = GROUPS - group;
    return c->frames + ((uint64_t)frame * GROUPS + group) * kv_group_bytes(&c->config.geometry);
}

const uint8_t *cached_digests_at(const struct cached_digests *c, uint32_t block, uint32_t group,
                                 uint32_t *n)
{
    return group_at(c, c->frame_of[block], group, n);
}

/* ---- whose frames are ----------------------------------------------------------------------- */

static struct cached_owner *owner_of(struct cached_digests *c, uint32_t list)
{
    return is_lent(c) ? &c->owners[list / (c->config.n_lists / c->config.n_owners)] : &c->own;
}

/* How many frames a list has at most. */
static uint32_t frames_for(struct cached_digests *c, uint32_t list)
{
    uint32_t n = owner_of(c, list)->n, lists = c->config.n_lists;
    if (is_lent(c))
        lists /= c->config.n_owners;
    else if (!c->config.shares)
        return n;
    return n / lists + (list % lists < n % lists);
}

void cached_digests_want(struct cached_digests *c, uint32_t block, uint32_t list)
{
    if (!c->n_frames || (cached_digests_has(c, block) && c->list_of[c->frame_of[block]] == list))
        return;
    cached_digests_drop(c, block); /* of a list that is over */
    struct cached_owner *owner = owner_of(c, list);
    if (owner->free == CACHED_NONE || c->used[list] >= frames_for(c, list))
        return;
    uint32_t frame = owner->free;
    owner->free = c->next[frame];
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
    struct cached_owner *owner = owner_of(c, c->list_of[frame]);
    c->used[c->list_of[frame]]--;
    c->next[frame] = owner->free;
    owner->free = frame;
    c->frame_of[block] = CACHED_NONE;
}

/* ---- hot blocks ----------------------------------------------------------------------------- */

void cached_digests_lend(struct cached_digests *c, uint32_t owner, const uint32_t *blocks)
{
    while (c->unit_owner[c->next_unit] != CACHED_NONE) /* as many units as hot blocks to lend */
        c->next_unit = (c->next_unit + 1) % c->n_units;
    c->unit_owner[c->next_unit] = owner;
    memcpy(&c->unit_blocks[(uint64_t)c->next_unit * c->unit.n_blocks], blocks,
           c->unit.n_blocks * sizeof *blocks);
    add_frames(c, &c->owners[owner], c->next_unit * c->unit.n_frames, c->unit.n_frames);
}

uint32_t cached_digests_lent(const struct cached_digests *c, uint32_t owner)
{
    return is_lent(c) && c->n_frames ? c->owners[owner].n / c->unit.n_frames * c->unit.n_blocks : 0;
}

/* Frames of units that are nobody's hold nothing, and are not free either. */
static void forget_units(struct cached_digests *c, struct cached_owner *owner)
{
    for (uint32_t i = 0; i < c->config.n_blocks; i++) {
        uint32_t frame = c->frame_of[i];
        if (frame == CACHED_NONE || c->unit_owner[frame / c->unit.n_frames] != CACHED_NONE)
            continue;
        c->used[c->list_of[frame]]--;
        c->frame_of[i] = CACHED_NONE;
    }
    uint32_t *link = &owner->free;
    while (*link != CACHED_NONE)
        if (c->unit_owner[*link / c->unit.n_frames] == CACHED_NONE)
            *link = c->next[*link];
        else
            link = &c->next[*link];
}

void cached_digests_take_back(struct cached_digests *c, uint32_t owner, uint32_t n_blocks,
                              void (*give_back)(void *context, uint32_t block), void *context)
{
    uint32_t n = (n_blocks + c->unit.n_blocks - 1) / c->unit.n_blocks;
    if (cached_digests_lent(c, owner) == 0)
        return;
    for (uint32_t unit = 0; n > 0 && unit < c->n_units; unit++) {
        if (c->unit_owner[unit] != owner)
            continue;
        c->unit_owner[unit] = CACHED_NONE;
        c->owners[owner].n -= c->unit.n_frames;
        for (uint32_t i = 0; i < c->unit.n_blocks; i++)
            give_back(context, c->unit_blocks[(uint64_t)unit * c->unit.n_blocks + i]);
        n--;
    }
    forget_units(c, &c->owners[owner]);
}

/* ---- digests -------------------------------------------------------------------------------- */

void cached_digests_put(struct cached_digests *c, uint32_t slot, const uint8_t *from,
                        uint64_t index)
{
    uint32_t block = slot / KV_HOT_BLOCK_TOKENS, lane = slot % KV_GROUP_TOKENS;
    uint32_t group = slot % KV_HOT_BLOCK_TOKENS / KV_GROUP_TOKENS, n;
    if (!cached_digests_has(c, block))
        return;
    uint32_t frame = c->frame_of[block];
    kv_digest_copy(&c->config.geometry, group_at(c, frame, group, &n), lane, from, index, 1);
    c->here[(uint64_t)frame * GROUPS + group] |= (uint16_t)(1u << lane);
}

void cached_digests_fill(struct cached_digests *c, uint32_t group, uint32_t lanes,
                         const uint8_t *from)
{
    uint32_t block = group / GROUPS;
    if (!cached_digests_has(c, block))
        return;
    uint32_t frame = c->frame_of[block];
    uint16_t *here = &c->here[(uint64_t)frame * GROUPS + group % GROUPS];
    uint32_t lacking = lanes & ~(uint32_t)*here, n;
    uint8_t *to = group_at(c, frame, group % GROUPS, &n);
    if (*here == 0)
        memcpy(to, from, kv_group_bytes(&c->config.geometry));
    else
        for (uint32_t lane = 0; lane < KV_GROUP_TOKENS; lane++)
            if (lacking >> lane & 1)
                kv_digest_copy(&c->config.geometry, to, lane, from, lane, 1);
    *here |= (uint16_t)lacking;
}
