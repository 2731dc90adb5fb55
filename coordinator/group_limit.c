/* coordinator/group_limit.c - see group_limit.h. */
#include "coordinator/group_limit.h"

#include <stdio.h>

#define MIB 1048576.0

int group_limit_check(const struct group_limit *g, struct hill_why *why)
{
    char device[128] = "";
    uint64_t room = g->room < UINT64_MAX - g->held ? g->room + g->held : UINT64_MAX;
    if (g->weights + g->hot + g->gpu_kv <= room)
        return 0;
    bool own = g->own_memory(g->context);
    if (own && g->hot <= room)
        return 0;
    if (!own)
        snprintf(device, sizeof device, "weights of %.0f MiB, --gpu-kv-mb %.0f and ",
                 (double)g->weights / MIB, (double)g->gpu_kv / MIB);
    return hill_fail(why, HILL_E_NOMEM,
                     "%s--hot-mb %.0f do not fit into the %.0f MiB that the memory limit of "
                     "%.200s leaves",
                     device, (double)g->hot / MIB, (double)room / MIB, g->group);
}
