/*
 * gpu_worker/away.h - a request over the important tokens of a stored prefix for its whole answer:
 * the others stay away from decode, too (--prefix-unimportant never).
 *
 * What: the entries that selected.h has chosen are the sequence's first ones in the tiers, in each
 * layer those of other tokens, as many in all; the prompt's own follow, then the answer's. So a
 * token has its position as ever, and its entry's index is that less the tokens that stay away
 * (request_index). Nothing is read or computed after the first token. How many entries there will
 * be is known before SEQ_BEGIN says so: it follows from the length of what the store has. Not with
 * a session to be saved at the end, nor for a model with windows, whose layers take other numbers
 * of tokens. What is chosen follows from the store, so an attempt after a death chooses the same;
 * where the store has less by then, it makes other tokens, which the coordinator notices. Such a
 * request leaves nothing: its entries are no prefill's over all tokens. Who calls it: requests and
 * the schedule. Concurrency: the data loop's thread. Failure: as of selected.h; of the store in the
 * middle: the request begins again, over all of its prefix.
 */
#pragma once

#include <stdbool.h>

#include "base/error.h"

struct request;
struct worker;

/* Do tokens stay away, where this worker's model allows it? Said once where it does not. */
bool away_is_asked(const struct worker *w);
void away_note_windows(const struct worker *w);

/* Before SEQ_BEGIN: r->holds_chosen and r->n_away, and the store's hit for selected_begin. */
int away_plan(struct request *r, struct hill_why *why);
/* After SEQ_READY the prefix turns out to be one for this, which the tiers were thought to have:
 * the sequence is to begin again. */
bool away_comes_late(const struct request *r);
/* The prompt's last unit is appended. */
void away_end(struct request *r);
/* It goes on behind its prompt, as an attempt before has left it. */
void away_resume(struct request *r);
