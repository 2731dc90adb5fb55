/*
 * gpu_worker/past.h - entries of tokens before a prompt, on their way from the scorer to the
 * device.
 *
 * What: the prompt's tokens are computed over entries that the scorer keeps, wherever they lie. For
 * each layer in turn they are asked for in position order (READ, answered by ENTRIES in staging), a
 * window at a time, and given to the engine (engine_prefill_past). Two windows are alive together,
 * so the next one, also of the next layer, comes while the device computes; both fit into the
 * staging slots of one selection, and never more of the past is held. Who calls it: requests and
 * the schedule. Concurrency: the data loop's thread. Failure: the request ends.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/records.h"

struct request;
struct worker;

/* Of a request whose r->n_past tokens have their entries; the engine's prefill has begun. */
int past_open(struct request *r, struct hill_why *why);
/* Ask for what is next, give the engine what has come. 1 it moved on, 0 it waits, or an error. */
int past_pump(struct request *r, struct hill_why *why);
/* Is all of the layer's past on the device? Then its units can be queued; without a past they
 * always can. */
bool past_is_there(const struct request *r, uint32_t layer);
/* A whole ENTRIES record of this epoch. False when nobody waits for it. */
bool past_take_entries(struct worker *w, const struct record_entries *entries);
void past_drop(struct request *r); /* of a request without one, too */
