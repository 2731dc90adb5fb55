/*
 * gpu_worker/step_internal.h - what a step (step.c) and one that is asked for ahead (step_ahead.c)
 * are made of: rows' records out, their selections in (step_rows.c). See step.h.
 */
#pragma once

#include "gpu_worker/request.h"

/* ---- step_rows.c ---- */

/* Keep a row's failure for the end of the step; what concerns all is returned. */
int step_row_failed(const struct worker *w, struct step_member *m, int rc,
                    const struct hill_why *why);
/* The device has read staging: it must have been what the selection said all the time [I10]. */
int step_confirm_uploads(struct worker *w, struct step_member *m, struct hill_why *why);
uint32_t step_query_bytes(const struct worker *w); /* of one with vectors */
/* Room for a QUERY of a layer, all but its vectors filled in. */
int step_reserve_query(struct worker *w, const struct step_member *m, uint32_t layer,
                       enum query_kind kind, struct record_query **out, struct hill_why *why);
/* Room for an APPEND of the row's entry of a layer, which follows the record. */
int step_reserve_append(struct worker *w, const struct step_member *m, uint32_t layer,
                        struct record_append **out, struct hill_why *why);
/* `push` of every row that has not failed, shown with one doorbell. A row's failure is kept; what
 * concerns all is returned. */
int step_push_rows(struct worker *w,
                   int (*push)(struct worker *, struct step_member *, struct hill_why *),
                   struct hill_why *why);
/* Until no row waits and the modelled link is done; the wait counts as idle. */
int step_await(struct worker *w, struct hill_why *why);
/* The row's attention in a layer goes over what the selection names. */
int step_use_selection(struct worker *w, struct step_member *m, uint32_t layer,
                       const struct record_selection *s, struct hill_why *why);

/* ---- step_ahead.c ---- */

/* Before the first layer: every row's selections of all layers, where none depends on a query.
 * launched: the step is on its way, whole; else the rows whose lists are there are `known`, and
 * layers follow one by one. False: no row goes on, or *rc is not 0. */
bool step_ask_ahead(struct worker *w, bool *launched, int *rc, struct hill_why *why);
/* The row's new entries of all layers, after such a launch. */
int step_push_entries(struct worker *w, struct step_member *m, struct hill_why *why);
