/*
 * cpu_scorer/moves.h - what moves up and down between queries.
 *
 * What: each layer of a sequence has a placement of its own, of the kind that the scorer was told
 * (placement/placement.h), unless that is recency. It is told which entries each answered query had
 * to upload or named in the hot pool, since what the GPU has kept costs nothing wherever else it
 * lies, and orders a batch of moves; nothing new is ordered before that batch is over, it only
 * counts meanwhile. By recency, a layer over its target has its oldest hot tokens moved down.
 *
 * Moving up is done right after the answer: what the query has just fetched (the agent has checked
 * it) lies in staging until the sequence's next query. It is copied from there into hot slots and
 * digested, the words flip, and a RELEASE tells the agent that the cold slots do not count any
 * more. The drive reads nothing for it, and the copies stay in the cold pool.
 *
 * Moving down follows: an entry whose copy is still in the cold pool by COMMIT of that slot and the
 * flip, at once; the others by DEMOTE, completion, COMMIT and flip (demotion.h), MOVES_TOGETHER in
 * a record: one that waits for that is hot, and stays so if it is to come up again. Until all is
 * down a layer has more hot tokens than its target; the reservation has a block for that, and where
 * it is used up nothing comes up. So M_0 is never exceeded.
 *
 * What a write costs against a fetch is read off the drive's completions (agent_write_cost) and
 * told to the placements: an entry comes up for one without a copy only when it saves more. The
 * records decide, not the clock: a replay of a recording moves the same.
 *
 * Words flip here and in demotions_pump alone, both only while no query of theirs is scored [I4];
 * COMMIT, RELEASE and AGENT_QUERY share an ordered ring. Who calls it: the data thread's loop,
 * queries, and whatever begins or ends a sequence.
 * Failure: what finds no room stays where it is, and the placement is told so.
 */
#pragma once

#include "cpu_scorer/answer.h"
#include "cpu_scorer/demotion.h"

/* Where something is cold and queries choose, what they choose decides what is hot. */
bool moves_wants_placement(const struct core *c, const struct sequence *s);
/* A sequence begins: its placements and tables, when it has such. HILL_E_NOMEM. */
int moves_begin(const struct core *c, struct sequence *s);
/* The placements of a sequence that has tokens already; its words say where these are. The first
 * layer with fewer than `least` tokens and all behind it are told nothing yet. HILL_E_NOMEM. */
int moves_recover(const struct core *c, struct sequence *s, uint32_t least);
/* It is over: everything but what is in flight. */
void moves_end(const struct core *c, struct sequence *s);
uint64_t moves_bounced(const struct core *c, const struct sequence *s);

/* A cold entry, whose bytes these are, becomes hot; the agent is to be told that its cold slot does
 * not count. That slot, now a copy; COLD_NONE: the position is not cold, or there is no room. */
uint32_t moves_bring_up(struct core *c, const struct sequence *s, uint32_t layer, uint32_t position,
                        const void *entry);
/* Copies on drives that are being left are nobody's: their entries are written anew where they go
 * down. */
void moves_leave_drives(struct core *c, const struct sequence *s);
/* A query of this layer has been answered, and what it had to upload from the drive lies in
 * staging. What pays moves up out of there. The answer's `positions` are used up. */
void moves_note(struct demotions *d, struct sequence *s, uint32_t layer, struct answer *a);
/* Go on with all sequences' moves. Only while no query is scored. 1: something moved, 0: nothing
 * did. */
int moves_pump(struct demotions *d);
