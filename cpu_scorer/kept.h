/*
 * cpu_scorer/kept.h - what of a sequence outlives the scorer, beside its words and entries.
 *
 * What: in the hot segment, for each sequence: whose it is, what was set aside for it, and its
 * newest whole steps, each with the selection hash as it stood then. A step is noted when its
 * STEP_END is taken: a copy of some 120 bytes. The newest eight are there, because tokens of the
 * last steps may be lost with the GPU worker that made them. Everything carries a checksum, so a
 * write that a kill has torn is none, and the steps before it stand [I25].
 * Who calls it: the scorer's data thread. Failure: what does not fit its checksum is not there.
 */
#pragma once

#include <stddef.h>

#include "base/hash_state.h"
#include "cpu_scorer/hot_share.h"
#include "kv/plan.h"

#define KEPT_STEPS 8u

/* No padding: all of it is in the checksum. */
struct kept_plan {
    struct kv_selection_settings settings;
    double beta; /* of struct hot_share, as the rest */
    uint32_t sinks, window, limit;
    uint32_t adapts, copies;
    uint32_t blocks, stripes[LAYOUT_DRIVES_MAX]; /* set aside for each layer, on each drive */
    uint32_t prompt_tokens, max_tokens;
    uint32_t past_tokens; /* of the prompt: all layers have these before one has more; 0: none */
    uint32_t reserved;    /* 0 */
};

struct kept_step {
    uint32_t step, n_tokens;
    struct hash_state selection_hash;
    uint64_t check;
};

struct kept {
    _Atomic uint64_t identity; /* of the request; 0: nothing is kept */
    uint64_t check;            /* of the plan */
    struct kept_plan plan;
    struct kept_step steps[KEPT_STEPS]; /* by step */
};

_Static_assert(offsetof(struct kept_plan, reserved) == 92 && sizeof(struct kept_plan) == 96,
               "hot segment layout, without padding");
_Static_assert(offsetof(struct kept_step, selection_hash) == 8 &&
                   offsetof(struct kept_step, check) == 8 + sizeof(struct hash_state) &&
                   sizeof(struct kept_step) == 120,
               "hot segment layout, without padding");
_Static_assert(sizeof(struct kept) <= KV_KEPT_BYTES, "hot segment layout");

/* A sequence begins, with no steps; identity 0: it is not kept. */
void kept_begin(struct kept *k, uint64_t identity, const struct kept_plan *plan);
/* What is set aside for it has changed; its steps stay. A kill in the middle costs the sequence. */
void kept_replan(struct kept *k, const struct kept_plan *plan);
void kept_end(struct kept *k);
/* So many tokens are placed in every layer, and the selection hash is that of all steps up to this.
 */
void kept_note(struct kept *k, uint32_t step, uint32_t n_tokens, const XXH64_state_t *hash);

/* Whose it is and what was set aside; 0: nobody's, or it is damaged. */
uint64_t kept_read(const struct kept *k, struct kept_plan *plan);
/* The newest whole step with min to max tokens; NULL: none. */
const struct kept_step *kept_newest(const struct kept *k, uint32_t min, uint32_t max);
/* Steps with more tokens are forgotten. */
void kept_cut(struct kept *k, uint32_t n_tokens);
