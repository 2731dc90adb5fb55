/*
 * base/clock.h - monotonic time in nanoseconds, and deadlines made of it.
 * A deadline is an absolute monotonic time in ns; CLOCK_NEVER never passes.
 * Concurrency: stateless.
 */
#pragma once

#include <stdint.h>
#include <time.h>

#define CLOCK_NEVER  INT64_MAX
#define CLOCK_MS(ms) ((int64_t)(ms)*1000000)

static inline int64_t clock_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline int64_t clock_deadline_ms(int64_t ms)
{
    return clock_now_ns() + CLOCK_MS(ms);
}
