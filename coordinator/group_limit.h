/*
 * coordinator/group_limit.h - does what a pipeline is to have fit into its control group's limit?
 *
 * What: pure arithmetic over bytes. The hot pool and the cache of a prefix store are the host's
 * memory, and so are the weights, the GPU's KV and its cache of that store where the device works
 * in that; one with memory of its own has them there, of which no group has anything. That is asked
 * only where it decides, since it takes another process: a driver may crash. Who calls it:
 * settings.c. Concurrency: one thread. Failure: HILL_E_NOMEM, with a line that names the options
 * and the group.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct group_limit {
    uint64_t weights, hot, gpu_kv, prefix_cache, prefix_gpu_cache;
    uint64_t room;     /* of the tightest group; UINT64_MAX: none has a limit */
    uint64_t held;     /* of a killed pipeline, taken over or removed before anything is made */
    const char *group; /* its folder */
    /* Has the device memory of its own? Called once at most. */
    bool (*own_memory)(const void *context);
    const void *context;
};

int group_limit_check(const struct group_limit *limit, struct hill_why *why);
