/*
 * tools/kvtrace/counts.h - how often each token was important (the paper's Figure 8).
 *
 * What: in each query of a trace with scores, the highest 20 % of the tokens are important, the
 * lowest 20 % unimportant, the others secondary (ties: the newer token is the more important);
 * counted per position over all queries. Who calls it: hill-kvtrace, its tests. Concurrency: none.
 * Failure: codes of trace.h; HILL_E_INVALID when a record has no scores.
 */
#pragma once

#include <stdio.h>

#include "placement/trace.h"

struct counts {
    uint32_t n_tokens, n_queries;
    uint32_t (*of)[3]; /* [n_tokens]: important, secondary, unimportant */
};

/* layer: that one alone, -1: all. counts_free after success. */
int counts_take(struct counts *out, struct trace_file *file, int64_t layer, struct hill_why *why);
void counts_free(struct counts *counts);

/* Tab-separated: position, important, secondary, unimportant; with a line of names. */
int counts_print(const struct counts *counts, FILE *to);

/* A bar for each token (or for each of at most 1000 groups of tokens, their mean). */
int counts_draw(const struct counts *counts, const char *title, const char *path,
                struct hill_why *why);
