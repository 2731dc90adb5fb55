/*
 * placement/placement_pick.c - which of the cold tokens that a query selected come up, where they
 * are more than a step takes; see placement_internal.h. Concurrency: one thread per placement.
 * Failure: none.
 */
#include "placement/placement_internal.h"

static uint32_t count_of(const struct placement_pick *pick, uint32_t position)
{
    return pick->counts ? pick->counts[position] : 0;
}

static bool is_wanted(const struct placement *p, const struct placement_pick *pick,
                      uint32_t position)
{
    return !p->hot[position] && !placement_is_forced(p, position) &&
           count_of(pick, position) >= pick->least;
}

/* So many have a higher count. */
static uint32_t above(const struct placement *p, const struct placement_pick *pick,
                      const uint32_t *selected, uint32_t n, uint32_t count)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; i++)
        found += is_wanted(p, pick, selected[i]) && count_of(pick, selected[i]) > count;
    return found;
}

struct placement_pick placement_pick(const struct placement *p, const uint32_t *selected,
                                     uint32_t n, const uint32_t *counts, uint32_t least,
                                     uint32_t rate)
{
    struct placement_pick pick = {.counts = counts, .least = least};
    uint32_t low = 0, high = 0, wanted = 0;
    for (uint32_t i = 0; i < n; i++)
        if (is_wanted(p, &pick, selected[i])) {
            uint32_t count = count_of(&pick, selected[i]);
            high = count > high ? count : high;
            wanted++;
        }
    if (wanted <= rate)
        return pick;
    while (low < high) { /* the lowest count that at most `rate` are above */
        uint32_t middle = low + (high - low) / 2;
        if (above(p, &pick, selected, n, middle) <= rate)
            high = middle;
        else
            low = middle + 1;
    }
    uint32_t better = above(p, &pick, selected, n, low);
    for (uint32_t i = 0; i < n; i++)
        pick.equal += is_wanted(p, &pick, selected[i]) && count_of(&pick, selected[i]) == low;
    pick.least = low;
    pick.left = rate - better;
    pick.first = (uint32_t)((uint64_t)p->step * pick.left % pick.equal);
    return pick;
}

bool placement_picks(const struct placement *p, struct placement_pick *pick, uint32_t position)
{
    if (!is_wanted(p, pick, position))
        return false;
    if (!pick->equal || count_of(pick, position) > pick->least)
        return true;
    return (pick->seen++ + pick->equal - pick->first) % pick->equal < pick->left;
}
