/*
 * placement/placement_paper.c - bidirectional KV pools as the paper writes them (4.2), to compare
 * with what the product made of them (placement_bkp.c).
 *
 * (1) The newest `pin` of the tokens are locked hot. (2) The hit-rate table counts, for every
 * token, how often it has been accessed; the top alpha fraction by count stays hot. (3) A selected
 * cold token whose count is among the top alpha comes up; the lowest-ranked hot token, the oldest
 * among equals, goes down for it. Nothing ages, and there is neither margin nor rate: the paper
 * names none; where the caller takes fewer, the highest counts come up (placement_pick). "Among the
 * top alpha" is strict: no more than alpha * N tokens have its count or a higher one. Where the pin
 * is more than the capacity holds, half of the capacity is pinned, or what fits beside the sinks.
 * New tokens may push down one of the top alpha, where everything hot that is not pinned is of
 * them. Live the table counts only what the GPU lacked, not every access. Cost: O((selected +
 * moves) * log N + counts) a step.
 */
#include "placement/placement_internal.h"

#include <math.h>

struct own {
    uint32_t *counts;           /* [max_tokens] */
    uint32_t *with, n_with;     /* [n_with]: so many tokens have this count; the last: or more */
    uint32_t pinned_from;       /* positions from here on are in no heap */
    struct placement_heap heap; /* of the tokens in play that are not pinned, lowest count first */
};

/* A query comes with a new token, so no more of a sequence's queries can have selected one. */
static uint32_t count_max(const struct placement_settings *s)
{
    return s->max_tokens;
}

static uint64_t own_bytes(const struct placement_settings *s)
{
    return sizeof(struct own) + (uint64_t)s->max_tokens * sizeof(uint32_t) +
           (count_max(s) + 1ull) * sizeof(uint32_t) + placement_heap_bytes(s->max_tokens);
}

static int create(struct placement *p)
{
    struct own *own = p->own;
    void *rest = own + 1;
    placement_heap_init(&own->heap, p->settings.max_tokens, &rest);
    own->counts = placement_table(&rest, p->settings.max_tokens, sizeof *own->counts);
    own->with = placement_table(&rest, count_max(&p->settings) + 1ull, sizeof *own->with);
    return 0;
}

static uint32_t pin_from(const struct placement *p)
{
    uint32_t sinks = p->settings.sinks, room = p->capacity > sinks ? p->capacity - sinks : 0;
    double pin = fmin(ceil(p->settings.pin * p->n_tokens), fmin(p->capacity / 2, room));
    uint32_t from = p->n_tokens - (uint32_t)fmin(pin, p->n_tokens);
    return from < p->forced_from ? from : p->forced_from;
}

static void enter(struct placement *p, uint32_t position)
{
    struct own *own = p->own;
    if (position < own->pinned_from)
        placement_heap_set(&own->heap, position, own->counts[position]);
}

static void leave(struct placement *p, uint32_t position)
{
    placement_heap_remove(&((struct own *)p->own)->heap, position);
}

/* What the pin has left behind may go down; what it has come back to (tokens were trimmed, the
 * capacity has grown) may not. */
static void move_pin(struct placement *p)
{
    struct own *own = p->own;
    uint32_t from = pin_from(p), at = own->pinned_from;
    for (own->pinned_from = from; at < from; at++)
        if (p->hot[at] && !placement_is_forced(p, at))
            enter(p, at);
    while (at > from)
        placement_heap_remove(&own->heap, --at);
}

static void watch(struct placement *p, const uint32_t *selected, uint32_t n)
{
    struct own *own = p->own;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t *count = &own->counts[selected[i]];
        if (*count == count_max(&p->settings))
            continue;
        if (*count)
            own->with[*count]--;
        own->with[++*count]++;
        own->n_with = *count > own->n_with ? *count : own->n_with;
        if (p->hot[selected[i]] && !placement_is_forced(p, selected[i]))
            enter(p, selected[i]);
    }
}

/* The lowest count that is among the top alpha. */
static uint32_t top_from(const struct placement *p)
{
    const struct own *own = p->own;
    uint32_t room = (uint32_t)ceil(p->settings.alpha * p->n_tokens), above = 0, count = own->n_with;
    while (count > 0 && above + own->with[count] <= room)
        above += own->with[count--];
    return count + 1;
}

static uint32_t victim(struct placement *p)
{
    move_pin(p);
    return placement_heap_top(&((struct own *)p->own)->heap);
}

static int step(struct placement *p, const uint32_t *selected, uint32_t n, const uint16_t *scores,
                uint32_t rate)
{
    struct own *own = p->own;
    uint32_t top = top_from(p);
    struct placement_pick pick = placement_pick(p, selected, n, own->counts, top, rate);
    int rc = 0;
    (void)scores;
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        uint32_t position = selected[i];
        if (!placement_picks(p, &pick, position))
            continue;
        if (p->n_hot >= p->capacity) {
            uint32_t down = victim(p);
            if (down == PLACEMENT_NONE || own->counts[down] >= top)
                break;
            rc = placement_demote(p, down);
        }
        if (rc == 0)
            rc = placement_promote(p, position);
    }
    return rc;
}

static void trimmed(struct placement *p)
{
    struct own *own = p->own;
    for (uint32_t i = p->n_tokens; i < p->settings.max_tokens; i++)
        if (own->counts[i]) {
            own->with[own->counts[i]]--;
            own->counts[i] = 0;
        }
    move_pin(p);
}

const struct placement_ops placement_paper_ops = {.name = "paper",
                                                  .bytes = own_bytes,
                                                  .create = create,
                                                  .enter = enter,
                                                  .leave = leave,
                                                  .trimmed = trimmed,
                                                  .watch = watch,
                                                  .step = step,
                                                  .victim = victim};
