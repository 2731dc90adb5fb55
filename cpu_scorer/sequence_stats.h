/*
 * cpu_scorer/sequence_stats.h - what is said of a sequence: the tiers as they stand, beside what is
 * counted as it happens.
 *
 * Who calls it: requests.c at a sequence's end, scorer.c for heartbeats. Failure: none.
 */
#pragma once

#include "cpu_scorer/core.h"

/* s->stats, as of now. */
void sequence_stats_fill(const struct core *c, struct sequence *s);

/* See scorer_live_stats. */
uint32_t sequence_stats_live(struct core *c, struct scorer_stats *out, uint32_t max);
