/* coordinator/group_limit.c - see group_limit.h. */
#include "coordinator/group_limit.h"

#include <stdio.h>

#define MIB 1048576.0

int group_limit_check(const struct group_limit *g, struct hill_why *why)
{
    char device[192] = "", own[64] = "", cache[64] = "";
    uint64_t on_device = g->weights + g->gpu_kv + g->prefix_gpu_cache;
    uint64_t host = g->hot + g->prefix_cache;
    uint64_t room = g->room < UINT64_MAX - g->held ? g->room + g->held : UINT64_MAX;
    if (host + on_device <= room)
        return 0;
    bool alone = host > room; /* wherever the device has its memory */
    if (!alone && g->own_memory(g->context))
        return 0;
    if (g->prefix_gpu_cache)
        snprintf(own, sizeof own, ", --prefix-gpu-cache-mb %.0f",
                 (double)g->prefix_gpu_cache / MIB);
    if (!alone)
        snprintf(device, sizeof device, "weights of %.0f MiB, --gpu-kv-mb %.0f%s and ",
                 (double)g->weights / MIB, (double)g->gpu_kv / MIB, own);
    if (g->prefix_cache)
        snprintf(cache, sizeof cache, " and --prefix-cache-mb %.0f", (double)g->prefix_cache / MIB);
    return hill_fail(why, HILL_E_NOMEM,
                     "%s--hot-mb %.0f%s %s not fit into the %.0f MiB that the memory limit of "
                     "%.200s leaves",
                     device, (double)g->hot / MIB, cache, alone && !g->prefix_cache ? "does" : "do",
                     (double)room / MIB, g->group);
}
