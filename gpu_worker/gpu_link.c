/* gpu_worker/gpu_link.c - see gpu_link.h. */
#include "gpu_worker/gpu_link.h"

#include "base/busy_until.h"
#include "gpu_worker/worker.h"

void gpu_link_set(struct gpu_link *link, const struct csd_model *model)
{
    link->on = model->on;
    link->gb_per_s = model->on ? model->gpu_link : 0;
}

uint64_t gpu_link_charge(struct gpu_link *link, uint64_t bytes, int64_t now_ns)
{
    uint64_t busy_ns = 0;
    int64_t start;
    if (link->on && bytes)
        busy_until_serve(&link->free_at, &busy_ns, now_ns, now_ns,
                         busy_until_time(bytes, link->gb_per_s), &start);
    return busy_ns;
}

int gpu_link_wait(struct worker *w, struct hill_why *why)
{
    while (clock_now_ns() < w->gpu_link.free_at) {
        uint32_t seen = dataplane_seen(&w->plane);
        int rc = worker_waiting(w, why);
        if (rc)
            return rc;
        dataplane_sleep(&w->plane, seen, w->gpu_link.free_at);
    }
    return 0;
}
