/*
 * gpu_worker/mend.h - damaged entries of a request's prompt are computed again, one by one.
 *
 * What: the scorer's audit has found that single entries of a request that goes on are not what
 * they were (SEQ_READY). Keys and values of a token in a layer follow from its hidden state
 * there, and that from the entries of all tokens before it in the layers below, which are
 * there: so the token alone goes through the layers up to the highest damaged one, as a prompt
 * of one token after those before it (past.h), and each damaged entry of it goes to the scorer.
 * By position: what a later token attends to has been made by then. The bits are those of the
 * whole prompt [I8]. Who calls it: requests and the schedule. Concurrency: the data
 * loop's thread. Failure: the request ends; the coordinator begins it anew.
 */
#pragma once

#include "base/error.h"
#include "proto/records.h"

struct request;

/* What a SEQ_READY names. HILL_E_NOMEM. */
int mend_take(struct request *r, const struct record_seq_ready *record);
/* Before its first step: on to REQUEST_MENDING, where something is to be made. */
int mend_begin(struct request *r, struct hill_why *why);
/* A bounded piece; after the last one on to REQUEST_DECODE. */
int mend_turn(struct request *r, struct hill_why *why);
uint32_t mend_entries(const struct request *r); /* how many there are */
void mend_drop(struct request *r);              /* of a request without one, too */
