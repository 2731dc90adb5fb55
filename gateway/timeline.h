/*
 * gateway/timeline.h - where the time of one token went: stage events as spans and a critical path.
 *
 * What: of the events of all processes (base/stage_trace.h) those of one sequence's newest whole
 * step, from its first query to the next step's, and what others do meanwhile: rows of the same
 * step, and prompts. At every moment the path goes through what the step waits for: the GPU worker
 * where it works itself, else the scorer where it computes, else the drive, else whoever waits for
 * an answer on its way. Pure. Who calls it: job_looks.c. Concurrency:
 * one thread. Failure: events beyond the bound and those without memory are left out; without a
 * whole step the JSON is null.
 */
#pragma once

#include "base/stage_trace.h"
#include "gateway/text_buffer.h"

#define TIMELINE_EVENTS_MAX 131072u /* 5 MiB */
#define TIMELINE_SPANS_MAX  4096u   /* of one step */

struct timeline {
    struct stage_event *events; /* owned */
    size_t n, room;
};

/* As a TraceAnswer has them. */
void timeline_add(struct timeline *t, const void *events, size_t bytes);
/* Only the events that began in [from_ns, end_ns) stay. */
void timeline_keep(struct timeline *t, int64_t from_ns, int64_t end_ns);
struct timeline_of {
    uint64_t request; /* whose step it is */
    uint32_t sequence;
    bool others; /* with what other requests do within the step, else that is time in between */
};
void timeline_write(struct text_buffer *out, const struct timeline *t,
                    const struct timeline_of *of);
void timeline_finish(struct timeline *t);
