/*
 * placement/placement_cache.c - the two classic caches: every selected cold token comes up, and the
 * least recently (lru) or the least often (lfu) selected token goes down for it.
 *
 * lfu has perfect memory: counts are kept for hot and cold tokens and never age; ties: the least
 * recently selected, then the oldest. lru: a step counts as one instant: tokens that are hit become
 * recent before any token comes up. Nothing that the step selected goes down. Where more are
 * selected than a step takes, lfu brings up those with the highest counts; by lru, and among equal
 * counts, they take turns (placement_pick). Cost: O(selected * log N).
 */
#include "placement/placement_internal.h"

#include <string.h>

struct own {
    uint32_t *counts, *used;    /* [max_tokens]; used: step of the last selection */
    struct placement_heap heap; /* of the tokens in play */
    uint64_t entered;           /* so many have; lru: a token's key is its number */
};

static uint64_t own_bytes(const struct placement_settings *s)
{
    return sizeof(struct own) + (uint64_t)s->max_tokens * 2 * sizeof(uint32_t) +
           placement_heap_bytes(s->max_tokens);
}

static int create(struct placement *p)
{
    uint32_t max = p->settings.max_tokens;
    struct own *own = p->own;
    void *rest = own + 1;
    placement_heap_init(&own->heap, max, &rest);
    own->counts = placement_table(&rest, max, sizeof *own->counts);
    own->used = placement_table(&rest, max, sizeof *own->used);
    return 0;
}

static bool by_recency(const struct placement *p)
{
    return p->ops == &placement_lru_ops;
}

static void enter(struct placement *p, uint32_t position)
{
    struct own *own = p->own;
    uint64_t often = (uint64_t)own->counts[position] << 32 | own->used[position];
    placement_heap_set(&own->heap, position, by_recency(p) ? ++own->entered : often);
}

static void leave(struct placement *p, uint32_t position)
{
    placement_heap_remove(&((struct own *)p->own)->heap, position);
}

static void watch(struct placement *p, const uint32_t *selected, uint32_t n)
{
    struct own *own = p->own;
    for (uint32_t i = 0; i < n; i++) {
        own->used[selected[i]] = p->step;
        if (placement_is_forced(p, selected[i]))
            continue; /* it had no choice: not counted */
        own->counts[selected[i]]++;
        if (p->hot[selected[i]])
            enter(p, selected[i]);
    }
}

static uint32_t victim(struct placement *p)
{
    return placement_heap_top(&((struct own *)p->own)->heap);
}

/* The lowest that this step has not selected; those above it leave the heap for the moment and are
 * marked by being hot and not in it. By recency there is none after one that it has selected. */
static uint32_t unselected_victim(struct placement *p)
{
    struct own *own = p->own;
    uint32_t top = victim(p);
    while (top != PLACEMENT_NONE && own->used[top] == p->step) {
        if (by_recency(p))
            return PLACEMENT_NONE;
        placement_heap_remove(&own->heap, top);
        top = victim(p);
    }
    return top;
}

static int step(struct placement *p, const uint32_t *selected, uint32_t n, const uint16_t *scores,
                uint32_t rate)
{
    const uint32_t *counts = by_recency(p) ? NULL : ((struct own *)p->own)->counts;
    struct placement_pick pick = placement_pick(p, selected, n, counts, 0, rate);
    int rc = 0;
    (void)scores;
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        if (!placement_picks(p, &pick, selected[i]))
            continue;
        if (p->n_hot >= p->capacity) {
            uint32_t down = unselected_victim(p);
            if (down == PLACEMENT_NONE)
                break;
            rc = placement_demote(p, down);
        }
        if (rc == 0)
            rc = placement_promote(p, selected[i]);
    }
    for (uint32_t i = 0; i < n && !by_recency(p); i++)
        if (p->hot[selected[i]] && !placement_is_forced(p, selected[i]))
            enter(p, selected[i]);
    return rc;
}

static void trimmed(struct placement *p)
{
    struct own *own = p->own;
    uint32_t gone = p->settings.max_tokens - p->n_tokens;
    memset(own->counts + p->n_tokens, 0, gone * sizeof *own->counts);
    memset(own->used + p->n_tokens, 0, gone * sizeof *own->used);
}

#define CACHE_OPS                                                                                  \
    .bytes = own_bytes, .create = create, .enter = enter, .leave = leave, .trimmed = trimmed,      \
    .watch = watch, .step = step, .victim = victim

const struct placement_ops placement_lru_ops = {.name = "lru", CACHE_OPS};
const struct placement_ops placement_lfu_ops = {.name = "lfu", CACHE_OPS};
