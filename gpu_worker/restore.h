/*
 * gpu_worker/restore.h - a saved session instead of a prompt: its entries are read, not computed.
 *
 * What: opened when the scorer has answered SEQ_BEGIN, then read straight into APPEND records, as
 * prefill's are, a piece a turn, so that others decode in between; then the request is where the
 * saved one was: same step, same hashes, its newest token still to go through the layers. Who calls
 * it: requests and the schedule. Concurrency: the data loop's thread. Failure: as session/session.h
 * says; the request ends with it.
 */
#pragma once

#include <stdint.h>

#include "base/error.h"

struct request;

/* On to REQUEST_RESTORING. */
int restore_begin(struct request *r, struct hill_why *why);
/* Some records; after the last one on to REQUEST_DECODE. */
int restore_turn(struct request *r, struct hill_why *why);
/* What a turn of it may take: others wait so long for their step. A save's is as long. */
int64_t restore_turn_ns(void);
void restore_drop(struct request *r);
