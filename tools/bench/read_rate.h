/*
 * tools/bench/read_rate.h - how fast this machine's memory is read: wide loads that are summed up.
 *
 * Who calls it: bench_score.c (loop by loop), bench_decode.c (the rate that limits a step).
 * Concurrency: the loops are parts of bench_parallel. Failure: none.
 */
#pragma once

#include <stdint.h>

#include "tools/bench/harness.h"

#define READ_RATE_THREADS_MAX 64u

/* What the threads of a loop read; each sums up its share, whole blocks of 512 bytes. */
struct read_area {
    const uint8_t *memory; /* [bytes], aligned to 64 */
    uint64_t bytes;
    uint64_t sums[READ_RATE_THREADS_MAX]; /* kept, so that no read is left out */
};

struct read_loop {
    const char *name; /* "AVX2" */
    bench_part *part; /* its context is a struct read_area */
};

/* Those that this CPU has, at most READ_LOOPS_MAX, the widest last. How many. */
#define READ_LOOPS_MAX 3u
uint32_t read_loops(struct read_loop out[READ_LOOPS_MAX]);

/* Thread t's share of the bytes, whole 512-byte blocks; the last takes the rest. */
void read_area_share(uint64_t bytes, uint32_t t, uint32_t n_threads, uint64_t *from, uint64_t *to);

/* Bytes a second of the fastest loop, each run once. */
double read_rate(struct read_area *area, uint32_t n_threads);
