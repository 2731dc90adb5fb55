/*
 * placement/placement_internal.h - what the placements share: the table of tiers, and how they
 * change it.
 *
 * The common part (placement.c) owns tiers, counts and statistics and calls the operations; a
 * placement changes tiers through placement_promote and placement_demote (placement_tiers.c) alone.
 * "In play" is a hot token that is not forced: only those can be demoted. Who calls it: the files
 * of this folder.
 */
#pragma once

#include <stddef.h>

#include "placement/placement.h"

#define PLACEMENT_NONE UINT32_MAX

struct placement_ops {
    const char *name;
    bool needs_scores, needs_future;
    /* of placement->own: a struct of its own and the tables behind it */
    uint64_t (*bytes)(const struct placement_settings *settings);
    /* own is zeroed: lays its tables out. NULL: there are none */
    int (*create)(struct placement *placement);
    void (*destroy)(struct placement *placement); /* what is not in own; NULL: nothing */
    /* a token comes into play or leaves it; NULL: not of interest */
    void (*enter)(struct placement *placement, uint32_t position);
    void (*leave)(struct placement *placement, uint32_t position);
    /* tokens from n_tokens on are gone; NULL: not of interest */
    void (*trimmed)(struct placement *placement);
    /* note a selection; called before step. NULL: not of interest */
    void (*watch)(struct placement *placement, const uint32_t *selected, uint32_t n);
    /* order moves, at most `rate` promotions */
    int (*step)(struct placement *placement, const uint32_t *selected, uint32_t n,
                const uint16_t *scores, uint32_t rate);
    /* the token in play that should go first, PLACEMENT_NONE: none */
    uint32_t (*victim)(struct placement *placement);
};

extern const struct placement_ops placement_score_ops, placement_recency_ops, placement_lru_ops,
    placement_lfu_ops, placement_paper_ops, placement_bkp_ops, placement_belady_ops;

struct placement_list { /* of positions, grows */
    uint32_t *items;
    uint32_t count, room;
};

struct placement {
    const struct placement_ops *ops;
    struct placement_settings settings;
    uint32_t n_tokens, n_hot, capacity;
    uint32_t forced_from; /* positions below sinks and from here on are forced */
    uint32_t step;        /* of placement_step and placement_watch; the first is 1 */
    bool *hot;            /* [max_tokens] */
    uint32_t *moved;      /* [max_tokens]: step of the last move, 0: none */
    struct placement_list promoted, demoted;
    struct placement_stats stats;
    void *own; /* the placement's */
};

static inline bool placement_is_forced(const struct placement *p, uint32_t position)
{
    return position < p->settings.sinks || position >= p->forced_from;
}

/* Flip a tier, note the move and the statistics, and tell the placement (enter, leave).
 * HILL_E_NOMEM: nothing has changed. */
int placement_promote(struct placement *p, uint32_t position);
int placement_demote(struct placement *p, uint32_t position);

/* n items of own's memory from *rest on, which goes past them: 8-byte items come first. */
static inline void *placement_table(void **rest, uint64_t n, size_t size)
{
    void *table = *rest;
    *rest = (char *)table + n * size;
    return table;
}

/* ---- who comes up (placement_pick.c) -----------------------------------------------------------
 */

struct placement_pick {
    const uint32_t *counts; /* NULL: all are equal */
    uint32_t least;         /* count */
    uint32_t equal, left;   /* so many have the least count, and so many of them come up; 0: all */
    uint32_t first, seen; /* of those that are equal: from which on, and how many were asked for */
};

/* Of the selected cold tokens with a count of `least` or more at most `rate`: those with the
 * highest counts, and of equal ones as many as are left, from a place that goes on with each step,
 * so that no position is always the first. O(n * log of the highest count), no memory. */
struct placement_pick placement_pick(const struct placement *p, const uint32_t *selected,
                                     uint32_t n, const uint32_t *counts, uint32_t least,
                                     uint32_t rate);
/* Is this one of them? Asked once for each of `selected`, in its order. */
bool placement_picks(const struct placement *p, struct placement_pick *pick, uint32_t position);

/* ---- a heap of positions, lowest key first (placement_heap.c) ---------------------------------
 */

struct placement_heap {
    uint64_t *keys;  /* [max]: of each position in the heap; ties: the lower position first */
    uint32_t *items; /* [max] */
    uint32_t *where; /* [max]: index in items, PLACEMENT_NONE: not in the heap */
    uint32_t count;
};

void placement_heap_init(struct placement_heap *heap, uint32_t max, void **rest);
/* Insert, or change the key of one that is there. */
void placement_heap_set(struct placement_heap *heap, uint32_t position, uint64_t key);
void placement_heap_remove(struct placement_heap *heap, uint32_t position); /* not there: nothing */
uint32_t placement_heap_top(const struct placement_heap *heap); /* PLACEMENT_NONE: empty */
static inline uint64_t placement_heap_bytes(uint32_t max)
{
    return (uint64_t)max * (sizeof(uint64_t) + 2 * sizeof(uint32_t));
}
