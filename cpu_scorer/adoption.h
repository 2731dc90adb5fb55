/*
 * cpu_scorer/adoption.h - sequences of an earlier epoch are taken up again.
 *
 * What: a scorer that starts over a hot segment which an earlier one laid out looks at what that
 * one had noted of each sequence (kept.h). A sequence whose words, checks and entries are whole up
 * to its newest step, but for a few damaged entries (damage.h), has its blocks and stripes set
 * aside again and is DORMANT; so is one that has no step yet, with what there is of its prompt:
 * layer after layer, up to the first token that is nowhere. All others are freed. A SEQ_BEGIN of
 * the same request says how many tokens it can go on with: what is newer is dropped, the agent is
 * told which cold slots count (ADOPT), and with its last completion the sequence is as it was at
 * the end of that step, but for damaged entries, which the GPU worker brings, and for steps from a
 * damaged decoded token on, which are made again. What selections depend on is the same then: which
 * tokens there are. What answers do not depend on begins anew: what the GPU holds, counts of the
 * placement, copies in the cold pool. Who calls it: the data thread's loop, and admission. Failure:
 * the sequence is freed and its request begins anew; no entry is used that its check does not fit.
 */
#pragma once

#include "cpu_scorer/moves.h"

/* Once, before the first record: who is DORMANT, and who is freed. */
void adoption_find(struct core *c);

/* Can this SEQ_BEGIN take up what the slot holds? As of which step; NULL: its prompt alone. */
bool adoption_fits(const struct core *c, const struct sequence *s, const struct record_seq_begin *r,
                   const struct kept_step **step);
/* Everything on this side is as it was then, or has at most so many tokens of the prompt; s has
 * been started for the request. On to ADOPTING. HILL_E_NOMEM. */
int adoption_begin(struct core *c, struct sequence *s, const struct kept_step *step, uint32_t most);

/* Do the sequence's damaged entries take less time to make again than the whole sequence? True
 * without damage. */
bool adoption_pays(const struct core *c, const struct sequence *s);
/* What SEQ_READY says of it. */
void adoption_answer(const struct core *c, const struct sequence *s, struct record_seq_ready *out);

/* Completions of ADOPT. */
void adoption_listen(struct agent *a);
/* Commands of an ADOPTING sequence: 1: the agent has all its slots; 0: not yet, *moved: some went
 * out; negative: it has not. */
int adoption_pump(struct agent *a, struct sequence *s, bool *moved);

/* What is noted of a sequence that has been admitted with so much in each layer. */
struct kept_plan adoption_plan(const struct sequence *s, uint32_t blocks,
                               const uint32_t stripes[LAYOUT_DRIVES_MAX]);
/* What a later epoch is to find: what the sequence has set aside now. */
void adoption_note(const struct core *c, struct sequence *s);
