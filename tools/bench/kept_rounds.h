/*
 * tools/bench/kept_rounds.h - rounds of a figure in a file, so that short quiet minutes can
 * complete it.
 *
 * What: a line of JSON is one round of one test: what was measured, with which settings, at which
 * commit, and each method's value, all measured one after the other. A round is written when it is
 * whole, so a figure that is ended loses the round that it was in, and a table has as many values
 * of each method. Rounds of other settings are not counted. Who calls it: bench_models.c,
 * comparison.c.
 * Concurrency: one figure at a time. Failure: bench_fail(); lines that are no such JSON are passed
 * over.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tools/bench/harness.h"

#define KEPT_METHODS_MAX 280u /* or of each method several measures */

/* One test: of what, and with which settings; both decide which rounds are its own. */
struct kept_test {
    const char *file; /* of the rounds */
    const char *name, *settings;
    uint32_t n_methods;
};

/* Append a round: a value of each method, with $BENCH_COMMIT. */
void kept_rounds_add(const struct kept_test *t, const double *values);

/* At most `most` rounds, the oldest first: samples [n_methods]. How many. commits, unless NULL:
 * those they were measured at, with ", " between them. */
uint32_t kept_rounds_load(const struct kept_test *t, uint32_t most, struct bench_samples *samples,
                          char commits[256]);

/* Adds those of `more`, written as above, that are not in `commits` yet; what finds no room is left
 * out. */
void kept_rounds_note_commits(char *commits, size_t room, const char *more);

/* Forget the rounds of a test, whatever their settings. */
void kept_rounds_drop(const struct kept_test *t);
