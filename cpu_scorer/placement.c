/* cpu_scorer/placement.c - see placement.h. */
#include "cpu_scorer/placement.h"

#include <math.h>

#include "kv/plan.h"

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t blocks_of(uint32_t tokens)
{
    return tokens / KV_HOT_BLOCK_TOKENS + (tokens % KV_HOT_BLOCK_TOKENS != 0);
}

uint32_t placement_hot_target(const struct placement *p, uint32_t n)
{
    if (!(p->beta > 0))
        return smaller(p->limit, n);
    double share = ceil((double)n * (p->beta / (1 + p->beta)));
    uint32_t forced = (uint32_t)fmin((double)p->sinks + p->window, n);
    uint32_t hot = share < n ? (uint32_t)share : n;
    return smaller(p->limit, hot > forced ? hot : forced);
}

void placement_cold_range(const struct placement *p, uint32_t prompt, uint32_t *from, uint32_t *to)
{
    uint32_t hot = placement_hot_target(p, prompt);
    uint32_t sinks = smaller(p->sinks, hot);
    *from = sinks;
    *to = prompt - (hot - sinks);
}

/* One block above the target lets entries wait for their way down while new ones come. */
static int plan_with_cold(struct placement *p, const struct placement_room *room,
                          uint32_t max_tokens, uint32_t *blocks, struct hill_why *why)
{
    uint32_t free_each = room->unreserved / room->n_layers;
    uint32_t share = room->hot_blocks / room->n_layers / room->n_sequences;
    uint32_t forced = (uint32_t)fmin((double)p->sinks + p->window, max_tokens);
    uint32_t least = blocks_of(forced) + 1, all = blocks_of(max_tokens);
    if (all < least)
        least = all;
    if (free_each < least)
        return hill_fail(why, HILL_E_TOO_LONG,
                         "cannot take the request: its sinks and window need %u hot blocks per "
                         "layer and %u are free; raise --hot-mb",
                         least, free_each);
    p->limit = max_tokens;
    uint32_t want = blocks_of(placement_hot_target(p, max_tokens)) + 1;
    want = smaller(want, all);
    uint32_t most = smaller(free_each, share > least ? share : least);
    *blocks = smaller(want, most);
    p->limit = *blocks == all ? max_tokens : (*blocks - 1) * KV_HOT_BLOCK_TOKENS;
    return 0;
}

int placement_plan(struct placement *p, const struct placement_room *room, uint32_t max_tokens,
                   uint32_t *blocks_per_layer, uint32_t *stripes_per_layer, struct hill_why *why)
{
    *stripes_per_layer = 0;
    if (!room->cold_pool) {
        *blocks_per_layer = blocks_of(max_tokens);
        p->limit = max_tokens;
        p->beta = 0;
        if ((uint64_t)*blocks_per_layer * room->n_layers > room->unreserved)
            return hill_fail(why, HILL_E_TOO_LONG,
                             "cannot take a request of %u tokens without a CSD: %u hot blocks per "
                             "layer needed, %u free; raise --hot-mb or attach a CSD",
                             max_tokens, *blocks_per_layer, room->unreserved / room->n_layers);
        return 0;
    }
    int rc = plan_with_cold(p, room, max_tokens, blocks_per_layer, why);
    if (rc)
        return rc;
    uint32_t cold =
        room->keep_copies ? max_tokens : max_tokens - placement_hot_target(p, max_tokens);
    *stripes_per_layer = cold / room->stripe_slots + (cold % room->stripe_slots != 0);
    if ((uint64_t)*stripes_per_layer * room->n_layers > room->free_stripes)
        return hill_fail(why, HILL_E_TOO_LONG,
                         "cannot take a request of %u tokens: %u cold tokens per layer need %u "
                         "stripes each, %u are free for %u layers; raise --cold-mb",
                         max_tokens, cold, *stripes_per_layer, room->free_stripes, room->n_layers);
    return 0;
}
