/*
 * cpu_scorer/resting.h - a sequence whose request has ended and whose entries stay, until another
 * request goes on with the first of them.
 *
 * What: at rest a sequence keeps its hot blocks, its cold stripes and its words, and gives back
 * staging, GPU slots and its note for a later epoch. Taken up, its reservation grows to what the
 * new request needs; tokens beyond those that it goes on with are cut, layer by layer from the
 * newest down: a hot one is dropped, a cold one released at the agent, its slot used again later.
 * The placement begins anew with what is where; checks get the new request's identity. Who calls
 * it: admission, and what begins or ends a sequence. Concurrency: the data thread. Failure: codes
 * as documented; the sequence is closed then and its request begins anew.
 */
#pragma once

#include "cpu_scorer/agent_port.h"

/* Tokens that are whole in every layer: of a sequence that may rest with this end; 0: it may
 * not. */
uint32_t resting_tokens(const struct core *c, const struct sequence *s,
                        const struct record_seq_end *end);
void resting_begin(struct core *c, struct sequence *s, uint32_t n_tokens);

/* Can the SEQ_BEGIN go on with it? */
bool resting_fits(const struct sequence *s, const struct record_seq_begin *r);
/* What it has, as room of its own: into a plan's room. */
void resting_add_room(const struct core *c, const struct sequence *s, struct hot_share_room *room);
/* To go on with n_tokens. Blocks and stripes a layer grow to these, and to what is there already;
 * HILL_E_BUSY: there are not so many, and nothing has changed. */
int resting_grow(struct core *c, struct sequence *s, uint32_t n_tokens, uint32_t *blocks,
                 uint32_t stripes[LAYOUT_DRIVES_MAX]);

/* Cut to n_tokens. 1: done, 0: the agent's ring is full, or an error of that ring. */
int resting_cut(struct core *c, struct agent *a, struct sequence *s, uint32_t n_tokens);
/* All is cut: placed as the plan of the new request says. HILL_E_NOMEM. */
int resting_end(struct core *c, struct sequence *s);
