/*
 * cpu_scorer/damage.h - entries of a sequence that are damaged, until they have been made again.
 *
 * What: an audit (adoption.h) has found that a few entries of a sequence are not what they were.
 * Their words name no place; the GPU worker is told of them (SEQ_READY) and makes each again: an
 * APPEND of one token. Until then no query reads them. What is here is sorted by position, then by
 * layer, the order in which they can be made: an entry follows from those of earlier tokens. Who
 * calls it: hkm.c, adoption.c (what the agent finds, too), requests.c, resting.c, intake.c,
 * query.c; data thread. Failure: none; what has no room is more damage than is worth it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/records.h"

#define DAMAGE_NONE UINT32_MAX

struct damage {
    uint32_t n;
    struct damaged_entry items[RECORD_DAMAGED_MAX];
};

/* False: there is no room. One that is known stays as it is. */
bool damage_add(struct damage *d, uint32_t layer, uint32_t position);
bool damage_has(const struct damage *d, uint32_t layer, uint32_t position);
void damage_remove(struct damage *d, uint32_t layer, uint32_t position);
/* Is one of the layer's first n_tokens among them? */
bool damage_below(const struct damage *d, uint32_t layer, uint32_t n_tokens);
/* The lowest position from this one on; DAMAGE_NONE. */
uint32_t damage_first(const struct damage *d, uint32_t position);
/* Those from this position on are not of the sequence any more. */
void damage_cut(struct damage *d, uint32_t position);

/* Costs; the unit: the time in which one entry is read back. docs/decisions/recovery.md has the
 * rule, and from which figures the costs are derived. */
#define DAMAGE_ROW         60u  /* a layer of one token alone */
#define DAMAGE_PROMPT_ROW  9u   /* a layer of one token of a prompt, */
#define DAMAGE_PROMPT_PAST 320u /* and one more for each so many tokens of the prompt */

/* Do the damaged entries take less time to make again than the whole sequence, its prompt and the
 * decoded tokens that stand, in all layers? */
bool damage_pays(const struct damage *d, uint32_t n_layers, uint32_t prompt_tokens,
                 uint32_t decoded_tokens);
