/*
 * cpu_scorer/query_fetch.h - the entries of several rows in one command.
 *
 * What: rows whose FETCHes could go out in the same turn share one FETCH to each drive: the drive
 * reads all of it at once, sorted by slot, and is asked and answers once. Its completion is each
 * row's for its own part (answer.h); a status is none of theirs, and each asks again alone. Nothing
 * of a row is changed before there is room, so that more or fewer of them may be tried in a later
 * turn: a replay tries until those go together that went together. Who calls it: query_rows.c, data
 * thread alone. Failure: what does not fit one command, or finds no room in a ring, is not sent.
 */
#pragma once

#include "cpu_scorer/query.h"

/* Planned, with something to be fetched, and nothing of it is out? */
bool query_fetch_waits(const struct query *q);
/* All that n such rows of a layer have to fetch, one command to each drive: 1: it is out. 0: there
 * is no room for it now. Negative: it is more than one command, or the agent is lost; or a row has
 * found no staging slots, which cannot be, and fails. Only when it goes are they placed. */
int query_fetch_together(struct core *c, struct agent *a, struct query *const *rows, uint32_t n);
