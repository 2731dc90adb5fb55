/*
 * placement/placement_lru.c - a cache: every selected cold token comes up, the least recently
 * selected token goes down for it.
 *
 * Tokens in play are in a list, the least recent at its head. A step counts as one instant: tokens
 * that are hit become recent before any token comes up, and nothing that the step selected goes
 * down. Cost: O(selected + moves).
 */
#include "placement/placement_internal.h"

#include <stdlib.h>
#include <string.h>

struct own {
    uint32_t *next, *prev; /* [max_tokens + 1]; the last is the list's own node */
    uint32_t *used;        /* [max_tokens]: step of the last selection */
};

static uint64_t own_bytes(const struct placement_settings *s)
{
    return sizeof(struct own) + ((uint64_t)s->max_tokens + 1) * 3 * sizeof(uint32_t);
}

static int create(struct placement *p)
{
    uint32_t max = p->settings.max_tokens;
    struct own *own = p->own = calloc(1, sizeof *own);
    if (own == NULL)
        return HILL_E_NOMEM;
    own->next = calloc(max + 1, sizeof *own->next);
    own->prev = calloc(max + 1, sizeof *own->prev);
    own->used = calloc(max, sizeof *own->used);
    if (!own->next || !own->prev || !own->used)
        return HILL_E_NOMEM;
    own->next[max] = own->prev[max] = max;
    return 0;
}

static void destroy(struct placement *p)
{
    struct own *own = p->own;
    if (own == NULL)
        return;
    free(own->next);
    free(own->prev);
    free(own->used);
    free(own);
}

static void enter(struct placement *p, uint32_t position)
{
    struct own *own = p->own;
    uint32_t end = p->settings.max_tokens, last = own->prev[end];
    own->next[last] = position;
    own->prev[position] = last;
    own->next[position] = end;
    own->prev[end] = position;
}

static void leave(struct placement *p, uint32_t position)
{
    struct own *own = p->own;
    own->next[own->prev[position]] = own->next[position];
    own->prev[own->next[position]] = own->prev[position];
}

static void watch(struct placement *p, const uint32_t *selected, uint32_t n)
{
    struct own *own = p->own;
    for (uint32_t i = 0; i < n; i++) {
        own->used[selected[i]] = p->step;
        if (p->hot[selected[i]] && !placement_is_forced(p, selected[i])) {
            leave(p, selected[i]);
            enter(p, selected[i]);
        }
    }
}

static uint32_t victim(struct placement *p)
{
    uint32_t first = ((struct own *)p->own)->next[p->settings.max_tokens];
    return first == p->settings.max_tokens ? PLACEMENT_NONE : first;
}

static int step(struct placement *p, const uint32_t *selected, uint32_t n, const uint16_t *scores,
                uint32_t rate)
{
    const struct own *own = p->own;
    int rc = 0;
    (void)scores;
    for (uint32_t i = 0; i < n && rate && rc == 0; i++) {
        if (p->hot[selected[i]] || placement_is_forced(p, selected[i]))
            continue;
        if (p->n_hot >= p->capacity) {
            uint32_t down = victim(p);
            if (down == PLACEMENT_NONE || own->used[down] == p->step)
                break;
            rc = placement_demote(p, down);
        }
        if (rc == 0)
            rc = placement_promote(p, selected[i]);
        rate--;
    }
    return rc;
}

static void trimmed(struct placement *p)
{
    struct own *own = p->own;
    memset(own->used + p->n_tokens, 0, (p->settings.max_tokens - p->n_tokens) * sizeof *own->used);
}

const struct placement_ops placement_lru_ops = {.name = "lru",
                                                .bytes = own_bytes,
                                                .create = create,
                                                .destroy = destroy,
                                                .enter = enter,
                                                .leave = leave,
                                                .trimmed = trimmed,
                                                .watch = watch,
                                                .step = step,
                                                .victim = victim};
