/*
 * cpu_scorer/intake.h - the append ring: sequences begin, grow, step and end.
 *
 * What: each token is placed once: hot, or straight into a DEMOTE record. A record that cannot be
 * taken yet (no credits, no free slot) stays at the head of the ring and is looked at again at the
 * next turn; the GPU worker then waits for credits. An APPEND may be taken in parts. MASS, what a
 * prompt or session has attended to, is added to h2o's sums; RESUME lets a selection hash go on.
 * Who calls it: scorer.c. Failure: the request fails; a record of a failed one is dropped.
 */
#pragma once

#include "cpu_scorer/requests.h"

struct intake {
    struct core *core;
    struct demotions *demotions;
    struct evaluator *evaluator;
    struct requests *requests;
    /* the record at the ring's head */
    uint32_t done; /* tokens of an APPEND that are placed */
    bool checked, refused;
    bool looked; /* an APPEND's numbers are finite, and the evaluator has seen them */
};

/* 1, 0, or an error. */
int intake_pump(struct intake *in);
