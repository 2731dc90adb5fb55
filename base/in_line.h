/*
 * base/in_line.h - a thread that waits without sleeping lets others have its CPU, and keeps its
 * place in line there.
 *
 * What: a waiter that looks at a word again and again yields between looks. Time in which another
 * thread has the CPU does not count as waiting: when that thread stops, this CPU goes on with the
 * waiter, where a sleeper had let the CPU fall asleep, which costs a virtual machine tens of
 * microseconds. A thread that does not stop is no part of this pipeline's step, and a sleeper gets
 * a CPU sooner than a waiter behind such a thread. So the wait is over then, too.
 *
 *     struct in_line line = in_line(for_ns);
 *     while (!there() && in_line_stand(&line))
 *         ;
 *
 * Concurrency: each waiter has its own struct.
 */
#pragma once

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

/* A yield that takes so long has let another thread run. */
#define IN_LINE_ANOTHER_NS 20000
/* The longest stretch of another thread that is taken for work of this pipeline; a thread that uses
 * its whole time slice has longer ones. */
#define IN_LINE_MOST_NS 2000000

struct in_line {
    int64_t now, until; /* monotonic ns */
};

/* for_ns: how long to wait with the CPU to oneself. */
static inline struct in_line in_line(int64_t for_ns)
{
    int64_t now = clock_now_ns();
    return (struct in_line){now, now + for_ns};
}

/* Yield once. False: the time is over, or another thread works on and on. */
static inline bool in_line_stand(struct in_line *line)
{
    int64_t before = clock_now_ns();
    sched_yield();
    line->now = clock_now_ns();
    int64_t away = line->now - before;
    if (away >= IN_LINE_ANOTHER_NS)
        line->until += away;
    return away < IN_LINE_MOST_NS && line->now < line->until;
}
