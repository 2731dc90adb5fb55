/*
 * gpu_worker/gpu_link.h - the modelled link from the host to the GPU: what a step's uploads would
 * take on it.
 *
 * What: with a device model (--csd-model, base/csd_model.h) every entry that a layer's attention
 * does not find in the GPU's own slots is charged to a busy-until clock at gpu_link GB/s when its
 * selection arrives, and the layer is not launched before the clock has run out: the real upload
 * happens meanwhile, and only what is left is slept. A device that shares the host's memory is then
 * taken for one with memory of its own: requests that begin under a model have hot entries copied
 * (no reads_hot), and what an older one reads in place is charged as well. Who calls it: step.c,
 * worker.c, request.c. Concurrency: the data loop's thread. Failure: a wait ends as every wait of
 * the worker does (worker_waiting).
 */
#ifndef HILL_GPU_WORKER_GPU_LINK_H
#define HILL_GPU_WORKER_GPU_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/csd_model.h"

struct worker;

struct gpu_link {
    bool on;
    double gb_per_s;
    int64_t free_at; /* the link is busy until then */
};

/* From now on; off: uploads take the time they take. */
void gpu_link_set(struct gpu_link *link, const struct csd_model *model);
/* Entries of `bytes` cross the link from now on. Returns the time they are charged, 0 without a
 * model. */
uint64_t gpu_link_charge(struct gpu_link *link, uint64_t bytes, int64_t now_ns);
/* Until all that was charged has crossed. 0, or what worker_waiting said. */
int gpu_link_wait(struct worker *w, struct hill_why *why);

#endif
