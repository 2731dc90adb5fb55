/*
 * base/busy_until.h - a modelled resource as a busy-until clock: one queue, served in order.
 *
 * What: a resource (a drive's flash, a link) is free from some time on; what is asked of it starts
 * then, or when its input starts to come if that is later, and never ends before its input has.
 * Stages of one transfer so run at the same time, and take what the slowest of them takes. Times
 * are nanoseconds of whatever clock the caller uses; the caller does the real work at once and
 * sleeps what is left. Who calls it: csd_agent/device_model.c, gpu_worker/gpu_link.c.
 * Concurrency: stateless. Failure: none.
 */
#ifndef HILL_BASE_BUSY_UNTIL_H
#define HILL_BASE_BUSY_UNTIL_H

#include <math.h>
#include <stdint.h>

/* How long bytes take; GB/s are bytes a nanosecond. */
static inline int64_t busy_until_time(uint64_t bytes, double gb_per_s)
{
    return (int64_t)ceil((double)bytes / gb_per_s);
}

/* Serve `ns` of work whose input comes from input_start to input_end, on a resource that is busy
 * until *free_at; busy_ns counts. Returns the end; *start: when it began. */
static inline int64_t busy_until_serve(int64_t *free_at, uint64_t *busy_ns, int64_t input_start,
                                       int64_t input_end, int64_t ns, int64_t *start)
{
    *start = *free_at > input_start ? *free_at : input_start;
    *busy_ns += (uint64_t)ns;
    *free_at = *start + ns > input_end ? *start + ns : input_end;
    return *free_at;
}

#endif
