/*
 * cpu_scorer/query_records.h - what leaves the scorer of a query that is done: the record that
 * answers it, and its line of the KV trace.
 *
 * Who calls it: query.c. Failure: query_push says whether the selection ring has room; a trace that
 * cannot be written is logged and ended.
 */
#pragma once

#include "cpu_scorer/query.h"

/* SELECTION, ENTRIES or MASS, as the query asks for. 1: sent; 0: no room now; negative: the ring is
 * of no use any more. A SELECTION without uploads is only staged: query.c flushes it. */
int query_push(struct queries *qs, const struct query *q);
uint32_t query_selection_bytes(const struct query *q);

/* Do the query's tokens get scores? Not where all of them, or a window, are selected anyway. */
bool query_is_evaluated(const struct core *c, const struct query *q);

/* The selection into the KV trace, after the answer: it must not wait for a disk. */
void query_trace(struct core *c, struct query *q);
