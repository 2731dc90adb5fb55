/*
 * tools/bench/policy_bytes.h - part of figure "policies": what each policy reads, moves and scores,
 * measured on random weights against formulas, and how long a step takes then.
 *
 * Who calls it: bench_policies.c. Points are measured one after the other; POINTS chooses some,
 * RESUME=1 keeps those that there are (tools/bench/README.md). Concurrency: one thread. Failure: as
 * point.h.
 */
#pragma once

#include "tools/bench/harness.h"

/* Measure what is asked for, and print the part of the section. After point_prepare. */
void policy_bytes(const struct bench_options *o);
