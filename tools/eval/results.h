/*
 * tools/eval/results.h - the results file: a JSON object a line for each item under each setting,
 * and what makes a run go on.
 *
 * A result's key is a hash of the model, the setting and the item: what is in the file is not asked
 * again, whatever order or subset the next run has. A line is written whole and synced before the
 * next request's is; a last line without its end (a killed writer) is cut off at the next start.
 * The file is locked while it is open. Who calls it: main.c, work.c; tables.c looks up. Failure:
 * HILL_E_DAMAGED with file and line for a line that is no result; HILL_E_BUSY when another run has
 * it; HILL_E_IO. Concurrency: one thread.
 */
#pragma once

#include "tools/eval/asker.h"

struct result {
    uint64_t key;
    bool right;
    double logprob;
    uint32_t n_scored, selected;
    char commit[24]; /* of the hill-eval that asked; "": unknown */
};

struct results;

int results_open(struct results **out, const char *path, struct hill_why *why);
void results_close(struct results *results); /* NULL allowed */

uint64_t results_key(const struct subject *subject, const struct job *job);
/* NULL: not there. The pointer holds until the next results_add. */
const struct result *results_find(struct results *results, uint64_t key);
size_t results_count(const struct results *results);

/* Grade the answer and append it to the file. */
int results_add(struct results *results, uint64_t key, const struct job *job,
                const struct answer *answer, struct hill_why *why);
