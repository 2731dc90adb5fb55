/*
 * placement/policy_internal.h - what the policies share: the table of tiers, and how they change it.
 *
 * The common part (policy.c) owns tiers, counts and statistics and calls the operations; a policy
 * changes tiers through policy_promote and policy_demote alone. "In play" is a hot token that is
 * not forced: only those can be demoted. Who calls it: the files of this folder.
 */
#ifndef HILL_POLICY_POLICY_INTERNAL_H
#define HILL_POLICY_POLICY_INTERNAL_H

#include "placement/policy.h"

#define POLICY_NONE UINT32_MAX

struct policy_ops {
    const char *name;
    bool needs_scores, needs_future;
    uint64_t (*bytes)(const struct policy_settings *settings);
    int (*create)(struct policy *policy); /* fills policy->own; destroy is called if it fails */
    void (*destroy)(struct policy *policy);
    /* a token comes into play or leaves it; NULL: not of interest */
    void (*enter)(struct policy *policy, uint32_t position);
    void (*leave)(struct policy *policy, uint32_t position);
    /* tokens from n_tokens on are gone; NULL: not of interest */
    void (*trimmed)(struct policy *policy);
    /* note a selection; called before step. NULL: not of interest */
    void (*watch)(struct policy *policy, const uint32_t *selected, uint32_t n);
    /* order moves, at most `rate` promotions */
    int (*step)(struct policy *policy, const uint32_t *selected, uint32_t n, const uint16_t *scores,
                uint32_t rate);
    /* the token in play that should go first, POLICY_NONE: none */
    uint32_t (*victim)(struct policy *policy);
};

extern const struct policy_ops policy_score_ops, policy_lru_ops, policy_lfu_ops, policy_bkp_ops,
    policy_belady_ops;

struct policy_list { /* of positions, grows */
    uint32_t *items;
    uint32_t count, room;
};

struct policy {
    const struct policy_ops *ops;
    struct policy_settings settings;
    uint32_t n_tokens, n_hot, capacity;
    uint32_t forced_from; /* positions below sinks and from here on are forced */
    uint32_t step;        /* of policy_step and policy_watch; the first is 1 */
    bool *hot;            /* [max_tokens] */
    uint32_t *moved;      /* [max_tokens]: step of the last move, 0: none */
    struct policy_list promoted, demoted;
    struct policy_stats stats;
    void *own; /* the policy's */
};

static inline bool policy_is_forced(const struct policy *p, uint32_t position)
{
    return position < p->settings.sinks || position >= p->forced_from;
}

/* Flip a tier, note the move and the statistics, and tell the policy (enter, leave).
 * HILL_E_NOMEM: nothing has changed. */
int policy_promote(struct policy *p, uint32_t position);
int policy_demote(struct policy *p, uint32_t position);

/* ---- a heap of positions, lowest key first (policy_heap.c) --------------------------------- */

struct policy_heap {
    uint64_t *keys;  /* [max]: of each position in the heap; ties: the lower position first */
    uint32_t *items; /* [max] */
    uint32_t *where; /* [max]: index in items, POLICY_NONE: not in the heap */
    uint32_t count, max;
};

int policy_heap_init(struct policy_heap *heap, uint32_t max);
void policy_heap_finish(struct policy_heap *heap);
/* Insert, or change the key of one that is there. */
void policy_heap_set(struct policy_heap *heap, uint32_t position, uint64_t key);
void policy_heap_remove(struct policy_heap *heap, uint32_t position); /* not there: nothing */
uint32_t policy_heap_top(const struct policy_heap *heap);             /* POLICY_NONE: empty */
static inline uint64_t policy_heap_bytes(uint32_t max)
{
    return (uint64_t)max * (sizeof(uint64_t) + 2 * sizeof(uint32_t));
}

#endif
