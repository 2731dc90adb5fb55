/*
 * placement/placement_tiers.c - a token changes its tier: what every placement calls for a move;
 * see placement_internal.h. Concurrency: one thread per placement. Failure: HILL_E_NOMEM, and
 * nothing has changed.
 */
#include "base/grow.h"
#include "placement/placement_internal.h"

#include <stdlib.h>

static int note(struct placement_list *list, uint32_t position)
{
    if (!GROW(list->items, list->room, list->count + 1))
        return HILL_E_NOMEM;
    list->items[list->count++] = position;
    return 0;
}

int placement_promote(struct placement *p, uint32_t position)
{
    int rc = note(&p->promoted, position);
    if (rc)
        return rc;
    p->hot[position] = true;
    p->n_hot++;
    p->stats.promoted++;
    /* a cold token's last move, if any, was down */
    if (p->moved[position] && p->step - p->moved[position] <= PLACEMENT_BOUNCE_STEPS)
        p->stats.bounced++;
    p->moved[position] = p->step;
    if (p->ops->enter && !placement_is_forced(p, position))
        p->ops->enter(p, position);
    return 0;
}

int placement_demote(struct placement *p, uint32_t position)
{
    int rc = note(&p->demoted, position);
    if (rc)
        return rc;
    if (p->ops->leave && !placement_is_forced(p, position))
        p->ops->leave(p, position);
    p->hot[position] = false;
    p->n_hot--;
    p->stats.demoted++;
    p->moved[position] = p->step;
    return 0;
}
