/*
 * tests/chaos/tally.h - what rounds of chaos took: counts, medians, 99th percentiles.
 *
 * Who calls it: chaos.c. Failure: no memory ends the process. Concurrency: one thread.
 */
#ifndef TESTS_CHAOS_TALLY_H
#define TESTS_CHAOS_TALLY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define VICTIMS            4u /* workers in the order of the status: GPU worker, scorer, agent */
#define VICTIM_COORDINATOR 3u

/* ACTION_STOP of a coordinator: it goes on after a while; ACTION_HANG: it never does. */
enum action { ACTION_KILL, ACTION_STOP, ACTION_HANG, ACTIONS };
enum phase { PHASE_PREFILL, PHASE_DECODE, PHASE_IDLE, PHASES };

const char *worker_name(uint32_t worker);
const char *action_name(enum action action);

/* A round. Times from the signal on; negative: it was not seen. */
struct sample {
    uint32_t worker;
    enum action action;
    enum phase phase;
    double detected_ms, started_ms, ready_ms;
};

/* What the pipeline holds while it is idle. */
struct held {
    uint32_t descriptors, files, logs, segments; /* logs: of tokens */
};

static inline bool held_more(const struct held *now, const struct held *before)
{
    return now->descriptors > before->descriptors || now->files > before->files ||
           now->logs > before->logs || now->segments > before->segments;
}

struct numbers {
    double *values;
    uint32_t n, room;
};

struct cell {
    uint32_t rounds;
    struct numbers detected, started, loading, pause; /* loading: from started to ready */
};

struct tally {
    struct cell cells[VICTIMS][ACTIONS][PHASES];
    uint32_t n_without_stats; /* answers whose statistics died with the scorer */
};

void tally_add(struct tally *tally, const struct sample *sample);
/* A request's pause in that round. */
void tally_add_pause(struct tally *tally, const struct sample *sample, double pause_ms);
void tally_print_table(struct tally *tally, FILE *to);
/* "cells":[...] without braces around it; every value is there, so that runs can be summed up. */
void tally_print_json(struct tally *tally, FILE *to);
void tally_finish(struct tally *tally);

#endif
