/*
 * tests/chaos/tally.h - what each round of chaos took, as JSON that tests/chaos/sum adds up.
 *
 * Who calls it: chaos.c. Failure: no memory ends the process. Concurrency: one thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "tests/chaos/asking.h"

#define VICTIMS            4u /* workers in the order of the status: GPU worker, scorer, agent */
#define VICTIM_COORDINATOR 3u

/* ACTION_STOP of a coordinator: it goes on after a while; ACTION_HANG: it never does. */
enum action { ACTION_KILL, ACTION_STOP, ACTION_HANG };
enum phase { PHASE_PREFILL, PHASE_DECODE, PHASE_IDLE };

const char *worker_name(uint32_t worker);
const char *action_name(enum action action);

/* A round. Times from the signal on; negative: it was not seen. */
struct sample {
    uint32_t worker;
    enum action action;
    enum phase phase;
    double detected_ms, started_ms, ready_ms;
    double round_ms;                /* from its first request until all is as before */
    double pauses_ms[REQUESTS_MAX]; /* of the requests that were under way */
    uint32_t n_pauses;
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

struct tally {
    struct sample *samples;
    uint32_t n, room;
    uint32_t n_without_stats; /* answers whose statistics died with the scorer */
};

void tally_add(struct tally *tally, const struct sample *sample);
/* "samples":[...] without braces around it: null is what was not seen. */
void tally_print_json(const struct tally *tally, FILE *to);
void tally_finish(struct tally *tally);
