/*
 * cpu_scorer/query_rows.h - the rows of a layer in flight: which queries are worked at together.
 *
 * What: the rows of a step ask together. While the first is past AWAIT, those behind it in the ring
 * are begun, too (--rows-in-flight), if they are queries of the same layer, exact or guesses that
 * are attended to, of other sequences, and have their tokens: so the drive scores for a row, or
 * fetches, while this process is at another one. So are guesses of the layer behind: they are
 * scored beside this layer, and planned when their sequence's query of this layer is over. Anything
 * else waits in the ring until no query is in flight. FETCHes and answers leave in the order in
 * which the rows came; where rows are ready in the same turn theirs are one command
 * (query_fetch.h). The ring is looked at when a row has left AWAIT, has all its FETCHes out, or is
 * over, and at no other time: a replay must look as often (recording/recording.h). Who calls it:
 * scorer.c; data thread alone. Failure: as query.h; a row that fails is answered with its status,
 * the others go on.
 */
#pragma once

#include "cpu_scorer/query.h"

/* HILL_E_NOMEM. */
int queries_create(struct queries *qs, struct core *core, struct agent *agent,
                   struct demotions *demotions, struct evaluator *evaluator);
void queries_destroy(struct queries *qs);
uint64_t queries_private_bytes(const struct scorer_config *c);

/* Go on with the queries in flight, or take the next ones. 1, 0 (they wait, or there is none), or
 * an error. */
int queries_pump(struct queries *qs);

/* The one that waits for its tokens, NULL: none. */
const struct query *queries_awaited(const struct queries *qs);
/* Is one past AWAIT? Then nothing of the tables moves but what an answer brings up [I4]. */
bool queries_scored(const struct queries *qs);
/* When a modelled CPU is done with the first of them; 0: nobody waits for it. */
int64_t queries_due_ns(const struct queries *qs);
