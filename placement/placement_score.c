/*
 * placement/placement_score.c - the naive placement of the paper's motivation (4.2): the hot tier
 * strictly follows the scores of the current step: the forced tokens and the highest-scoring
 * others.
 *
 * Cost: O(N) per step; it is what BKP is measured against. Between steps (new tokens) the lowest
 * score of the last step goes first.
 */
#include "placement/placement_internal.h"

#include <stdlib.h>
#include <string.h>

#include "kv/select.h"

struct own {
    struct kv_selector *selector;
    uint16_t *last;      /* [max_tokens]: scores of the last step; 0 where there was none */
    uint32_t *positions; /* [max_tokens] */
    bool *wanted;        /* [max_tokens] */
};

static uint64_t own_bytes(const struct placement_settings *s)
{
    return sizeof(struct own) +
           (uint64_t)s->max_tokens * (sizeof(uint16_t) + sizeof(uint32_t) + sizeof(bool));
}

static int create(struct placement *p)
{
    uint32_t max = p->settings.max_tokens;
    struct own *own = p->own;
    void *rest = own + 1;
    own->positions = placement_table(&rest, max, sizeof *own->positions);
    own->last = placement_table(&rest, max, sizeof *own->last);
    own->wanted = placement_table(&rest, max, sizeof *own->wanted);
    return kv_selector_create(&own->selector, max);
}

static void destroy(struct placement *p)
{
    kv_selector_destroy(((struct own *)p->own)->selector);
}

/* Positions that the scores want hot, into own->wanted. */
static int find_wanted(struct placement *p, const uint16_t *scores)
{
    struct own *own = p->own;
    struct kv_selection_settings s = {.alpha = 1,
                                      .budget = p->capacity,
                                      .sinks = p->settings.sinks,
                                      .window = p->settings.window};
    for (uint32_t i = 0; i < p->n_tokens; i++)
        own->positions[i] = i;
    int rc = kv_selector_begin(own->selector, &s, p->n_tokens);
    if (rc == 0)
        rc = kv_selector_add(own->selector, own->positions, scores, p->n_tokens);
    int64_t n = rc ? rc : kv_selector_finish(own->selector, own->positions);
    if (n < 0)
        return (int)n;
    memset(own->wanted, 0, p->n_tokens * sizeof *own->wanted);
    for (int64_t i = 0; i < n; i++)
        own->wanted[own->positions[i]] = true;
    return 0;
}

/* Pairs of a wanted cold token and an unwanted hot one, newest first, swap. */
static int step(struct placement *p, const uint32_t *selected, uint32_t n, const uint16_t *scores,
                uint32_t rate)
{
    struct own *own = p->own;
    (void)selected;
    (void)n;
    memcpy(own->last, scores, p->n_tokens * sizeof *scores);
    int rc = find_wanted(p, scores);
    uint32_t down = p->n_tokens;
    for (uint32_t up = p->n_tokens; rc == 0 && rate && up-- > 0;) {
        if (p->hot[up] || !own->wanted[up])
            continue;
        if (p->n_hot >= p->capacity) {
            while (down > 0 && (!p->hot[down - 1] || own->wanted[down - 1]))
                down--;
            if (down == 0)
                break;
            rc = placement_demote(p, --down);
        }
        if (rc == 0)
            rc = placement_promote(p, up);
        rate--;
    }
    return rc;
}

static uint32_t victim(struct placement *p)
{
    const struct own *own = p->own;
    uint32_t worst = PLACEMENT_NONE;
    for (uint32_t i = p->settings.sinks; i < p->forced_from; i++)
        if (p->hot[i] && (worst == PLACEMENT_NONE || own->last[i] < own->last[worst]))
            worst = i;
    return worst;
}

static void trimmed(struct placement *p)
{
    struct own *own = p->own;
    memset(own->last + p->n_tokens, 0, (p->settings.max_tokens - p->n_tokens) * sizeof *own->last);
}

const struct placement_ops placement_score_ops = {.name = "score",
                                                  .needs_scores = true,
                                                  .bytes = own_bytes,
                                                  .create = create,
                                                  .destroy = destroy,
                                                  .trimmed = trimmed,
                                                  .step = step,
                                                  .victim = victim};
