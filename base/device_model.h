/*
 * base/device_model.h - when a modelled device would be done: charge(resource, bytes) -> due.
 *
 * What: the drive's flash (reads and writes share it), its scorer, its link in each direction, the
 * link from the host to the GPU, and the host's CPU while it scores. Each is one queue, served in
 * order: it is free from some time on; what is asked of it starts then, or when its input starts to
 * come if that is later, and never ends before its input has. Stages of one transfer so run at the
 * same time (bytes flow on as they come) and take what the slowest of them takes, not their sum.
 * The caller does the real work at once and sleeps what is left. Times are nanoseconds of whatever
 * clock the caller uses. Who calls it: csd_agent (the drive), gpu_worker (its link), cpu_scorer
 * (its CPU), each with a model of its own. Concurrency: one thread per model; no clock, no waiting,
 * no I/O. Failure: none; base/csd_model.h checks the figures.
 */
#pragma once

#include <stdint.h>

#include "base/csd_model.h"

enum device_resource {
    DEVICE_FLASH_READ, /* these two share a queue */
    DEVICE_FLASH_WRITE,
    DEVICE_SCORE,   /* bytes: the FP16 K and V that the scored tokens stand for, at INT8 */
    DEVICE_DRAM,    /* the drive's, read */
    DEVICE_LINK_UP, /* to the host */
    DEVICE_LINK_DOWN,
    DEVICE_GPU_LINK, /* from the host to the GPU */
    DEVICE_CPU,      /* bytes: the FP16 K and V that the scored tokens stand for */
    DEVICE_RESOURCES
};

/* Zeroed: every resource takes no time. The owner sets the figures, also later: what is charged
 * from then on takes what they say. */
struct device_model {
    struct csd_model figures;
    int64_t free_at[DEVICE_RESOURCES]; /* a queue is busy until then; by the first that shares it */
    uint64_t busy_ns[DEVICE_RESOURCES]; /* modelled busy time, of each queue */
};

struct device_span {
    int64_t start, due;
};

/* What is there at a time, all of it. */
static inline struct device_span device_at(int64_t ns)
{
    return (struct device_span){ns, ns};
}

/* Charge bytes that come from input.start to input.due; returns when they are on their way and when
 * they are through: the input of the next stage. A resource that is not modelled answers its input.
 */
struct device_span device_charge(struct device_model *model, enum device_resource resource,
                                 uint64_t bytes, struct device_span input);
