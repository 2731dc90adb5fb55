/*
 * placement/placement_recency.c - the newest tokens are hot and nothing comes up: what the scorer
 * does with `--placement recency`. It moves least, and writes each token once.
 */
#include "placement/placement_internal.h"

struct own {
    uint32_t low; /* no token in play is below */
};

static uint64_t own_bytes(const struct placement_settings *s)
{
    (void)s;
    return sizeof(struct own);
}

static void enter(struct placement *p, uint32_t position)
{
    struct own *own = p->own;
    own->low = position < own->low ? position : own->low;
}

static int step(struct placement *p, const uint32_t *selected, uint32_t n, const uint16_t *scores,
                uint32_t rate)
{
    (void)p, (void)selected, (void)n, (void)scores, (void)rate;
    return 0;
}

static uint32_t victim(struct placement *p)
{
    struct own *own = p->own;
    while (own->low < p->forced_from && (own->low < p->settings.sinks || !p->hot[own->low]))
        own->low++;
    return own->low < p->forced_from ? own->low : PLACEMENT_NONE;
}

const struct placement_ops placement_recency_ops = {
    .name = "recency", .bytes = own_bytes, .enter = enter, .step = step, .victim = victim};
