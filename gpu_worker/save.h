/*
 * gpu_worker/save.h - a request's session into a file, between two of its steps or at its end.
 *
 * What: while a request is saved it takes no part in the decode steps; others go on. Its entries
 * come from the scorer, wherever they lie, some hundred at a time (READ; ENTRIES, MASS), into
 * buffers that a thread writes (session/session_writer.h); tokens, sampling and hashes are this
 * worker's own. A save that fails leaves the request as it was. Who calls it: requests and the
 * schedule. Concurrency: the data loop's thread.
 */
#pragma once

#include <stdbool.h>

#include "proto/envelope.h"
#include "proto/records.h"

struct request;
struct worker;
struct save;

/* A Save message: an order for the request's next step, or an answer that says why not. */
void save_take_order(struct worker *w, const Hill__Save *message);

/* Does the request, over or not, have to be saved before anything else happens to it? */
bool save_owed(const struct request *r);
/* A bounded piece of what is owed: 1 it moved on, 0 it waits for the scorer or the disk. The
 * outcome is told (Saved), or kept for Done when the session was to be saved at the end. Negative:
 * the request ends. */
int save_turn(struct request *r, struct hill_why *why);
bool save_reads(const struct request *r); /* a READ of it is not answered yet */
/* A whole ENTRIES record of this epoch. False when nobody waits for it. */
bool save_take_entries(struct worker *w, const struct record_entries *entries);
/* The same of a MASS record. */
bool save_take_masses(struct worker *w, const struct record_mass *masses);
/* The request is over: nothing of an unfinished save stays behind. */
void save_drop(struct request *r);
