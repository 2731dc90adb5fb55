/*
 * cpu_scorer/side_speeds.h - how fast the two sides of a query are: f_c, f_s, B_c, B_s.
 *
 * What: when no sequence is open, a synthetic one is filled with random entries, hot and cold, the
 * way a request's are (at most 32 MiB each), and rounds are timed: the drive scores its tokens
 * while the CPU scores its own, over and over until the drive has answered; then the drive fetches
 * a fifth of its entries into staging while the CPU copies as many there. So each side is measured
 * with the other one running: they share cores, memory and, with the drive's agent on this machine,
 * everything else; f_s and B_s contain the drive's latency at that size. Several drives are timed
 * before that, each query and fetch at two lengths, in up to three rounds. Medians of the rounds
 * and the distance between their quartiles are told; then the sequence is closed and trimmed. Who
 * calls it: scorer.c, after scorer_ask_profile. It is the one thing that waits in itself, since
 * nothing else runs. Bounded: filling takes at most half of the time given, and no round but the
 * first of its kind begins after its end. Failure: the result's status and text; an interruption
 * leaves the loop as everywhere.
 */
#pragma once

#include "cpu_scorer/query.h"
#include "cpu_scorer/requests.h"

struct side_speeds {
    struct core *core;
    struct agent *agent;
    struct demotions *demotions;
    struct evaluator *evaluator;
    struct requests *requests;
    struct query *query; /* lent; none is under way */
    int64_t limit_ns;    /* of what is asked for; 0: nothing is */
};

/* Measure what was asked for, when the sequences that are being cleared up are gone. 1, 0, or
 * HILL_E_CANCELLED. */
int side_speeds_pump(struct side_speeds *m);
