/*
 * gpu_worker/stored.h - what of a prompt the prefix store has, and what a request leaves there.
 *
 * What: when the scorer has answered SEQ_BEGIN, the store's longest prefix of the prompt, beyond
 * what the tiers keep of it, is read chunk by chunk into APPEND records, as prefill's are; the rest
 * is computed over it. A chunk is appended when all of it was found right, so whatever goes wrong,
 * the tokens before it stand and the others are computed. A request leaves the chunks that the
 * store lacks, after its first token and before its Done: their entries come from the scorer
 * (READ), wherever they lie; others decode meanwhile, and the next prompt waits, since it may begin
 * with the same tokens. A thread of the store's writes them; how long a slow disk may hold a
 * request: stored_leave.c. Which tokens are plain, and who takes the others: prefix/chunk_tree.h.
 * Who calls it: requests and the schedule. Concurrency: the data loop's thread. Failure: of the
 * store: a line, and it is computed, or not left; of scorer and rings: the request ends.
 */
#pragma once

#include "base/error.h"
#include "proto/records.h"

struct request;
struct shm_doorbell;
struct worker;

/* The store that Configure names; one that is open already stays. A failure leaves none. */
int stored_open(struct worker *w, struct hill_why *why);
void stored_close(struct worker *w); /* all that was left is written first */
/* Who is woken when a chunk is written: the epoch's bell, or nobody. */
void stored_listen(struct worker *w, struct shm_doorbell *bell);

/* r->stored has what the store has of the prompt beyond r->reused tokens; NULL: nothing. */
int stored_find(struct request *r, struct hill_why *why);
/* The first r->reused tokens are there, n_plain of them plain: the store's beyond them are read
 * (REQUEST_FETCHING), or what follows is computed. */
int stored_begin(struct request *r, uint32_t n_plain, struct hill_why *why);
/* Some chunks; after the last one on to the prefill. */
int stored_turn(struct request *r, struct hill_why *why);
/* Some chunks alone: 1 there are more, 0 that was all that is of use. */
int stored_take(struct request *r, struct hill_why *why);

/* Does a request leave something yet: its prompt after its first token, the rest when it is
 * over? */
bool stored_owes(const struct request *r);
/* A bounded piece of it: 1 it moved on, 0 it waits for the scorer. Negative: the request ends. */
int stored_leave(struct request *r, struct hill_why *why);
bool stored_reads(const struct request *r); /* a READ of it is not answered yet */
/* A whole ENTRIES record of this epoch. False when nobody waits for it. */
bool stored_take_entries(struct worker *w, const struct record_entries *entries);
void stored_drop(struct request *r);
/* The deadline, or sooner: when a request will have waited for the disk for long enough. */
int64_t stored_deadline(const struct worker *w, int64_t deadline);
