/*
 * placement/policy.h - placement policies: which entries of one (sequence, layer) are hot.
 *
 * What: a policy keeps a tier for every position, watches what each query selects, and answers with
 * the entries to move. It moves nothing itself. One struct policy per (sequence, layer).
 *     score   the hot tier follows the scores of the current step (the paper's naive placement)
 *     lru     every selected cold token comes up, the least recently selected goes down
 *     lfu     the same, the least often selected goes down
 *     bkp     bidirectional KV pools (paper, 4.2): newest tokens pinned, aged hit counts, swaps
 * that must pay (policy_bkp.c) belady  offline: the furthest next use goes down, and what is needed
 * later than that is not brought up (bypass): the most hits that any policy can have that brings up
 * only what a query has just selected Rules that hold for all: the forced tokens (first `sinks`,
 * newest `window`) are hot; at most `capacity` tokens are hot; new tokens start hot; a step
 * promotes and demotes equal volumes unless there is free room, and promotes at most `rate` tokens.
 * The order of calls for one query is policy_append (the query's new tokens), policy_step (what it
 * selected). Hits are counted against the placement before the step's moves. Who calls it: the
 * scorer after each query; hill-kvtrace, bench. Concurrency: one thread per policy. Ownership: the
 * caller owns what it passes in; moves belong to the policy and are valid until its next call.
 * Failure: HILL_E_NOMEM, HILL_E_INVALID; the tables are whole after either.
 */
#ifndef HILL_POLICY_POLICY_H
#define HILL_POLICY_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "kv/geometry.h"

enum policy_kind { POLICY_SCORE, POLICY_LRU, POLICY_LFU, POLICY_BKP, POLICY_BELADY, POLICY_COUNT };

#define POLICY_BOUNCE_STEPS 16u /* up again within that many steps after going down: a bounce */
#define POLICY_NEVER        UINT32_MAX
#define POLICY_LIVE_RATE    16u /* promotions that the live scorer takes after one query */

/* What Belady knows: the selections of the steps to come, in order. */
struct policy_future {
    uint32_t n_steps;
    const uint32_t *n_tokens;        /* [n_steps] */
    const uint32_t *n_selected;      /* [n_steps] */
    const uint32_t *const *selected; /* [n_steps][n_selected[step]], ascending */
};

struct policy_settings {
    uint32_t max_tokens;    /* at most KV_MAX_TOKENS */
    uint32_t sinks, window; /* forced, as in kv_selection_settings */
    uint32_t rate; /* promotions per step; 0: no limit, for bkp 1/64 of the tokens (at least 16) */
    /* bkp alone */
    double alpha;        /* (0, 1]: the fraction with the highest counts is never demoted, as far as
                            it fits in half of what is not pinned */
    double pin;          /* [0, 1]: the newest fraction that is locked hot, at most a sixteenth
                            of the capacity */
    uint32_t half_life;  /* steps in which a count loses half its weight, 1 .. 256 */
    double margin;       /* misses by which a token must beat its victim */
    uint32_t rest_steps; /* a token that has been moved stays at least so long */
    const struct policy_future *future; /* belady; read by policy_create only */
};

/* Defaults for everything but max_tokens and future. */
struct policy_settings policy_defaults(void);

struct policy_stats {
    uint64_t steps;
    uint64_t hits_hot, hits_cold; /* selected entries that were not forced */
    uint64_t promoted;
    uint64_t demoted;     /* to make room for promotions and for new tokens */
    uint64_t placed_cold; /* tokens of an append that never were hot (a prompt's) */
    uint64_t bounced;
};

struct policy_moves {
    const uint32_t *promoted, *demoted; /* positions */
    uint32_t n_promoted, n_demoted;
};

struct policy;

/* "score", "lru", "lfu", "bkp", "belady"; NULL / HILL_E_INVALID when unknown. */
const char *policy_name(enum policy_kind kind);
int policy_parse(const char *name, enum policy_kind *out);

int policy_create(struct policy **out, enum policy_kind kind,
                  const struct policy_settings *settings, struct hill_why *why);
void policy_destroy(struct policy *policy); /* NULL allowed */

/* Bytes that a policy takes for its tables (part of M_0's tables). */
uint64_t policy_bytes(enum policy_kind kind, const struct policy_settings *settings);

/* What the live scorer keeps for one sequence placed by bkp: in each layer a policy and, for every
 * position, the cold slot that still holds a copy (u32). Part of M_0's tables. */
uint64_t policy_live_bytes(uint32_t n_layers, uint32_t max_tokens);

/* `count` new tokens, hot; from now on at most `capacity` are (raised to the forced ones' number).
 * moves: what goes down for it. The first append of a sequence is its prompt: sinks and
 * newest are hot, the others are placed cold without being moves. O(count + demotions), amortised.
 * HILL_E_INVALID: beyond max_tokens. */
int policy_append(struct policy *policy, uint32_t count, uint32_t capacity,
                  struct policy_moves *moves);

/* One query selected `selected` (ascending, below the number of tokens). scores: of all tokens,
 * needed by the score policy alone (NULL: HILL_E_INVALID for it). rate: promotions that the caller
 * can take at this step, 0: the settings' alone. bkp: O(n_selected + moves), amortised. */
int policy_step(struct policy *policy, const uint32_t *selected, uint32_t n_selected,
                const uint16_t *scores, uint32_t rate, struct policy_moves *moves);

/* Like policy_step, but nothing moves: the caller's last moves are still under way. */
int policy_watch(struct policy *policy, const uint32_t *selected, uint32_t n_selected);

/* The tier of a position below policy_tokens. */
bool policy_is_hot(const struct policy *policy, uint32_t position);
uint32_t policy_tokens(const struct policy *policy);
uint32_t policy_hot_tokens(const struct policy *policy);

/* Say where an entry really is (a move was given up, tables were recovered): no move, not counted.
 * May leave more than the capacity hot until the next append. HILL_E_INVALID: no such position. */
int policy_place(struct policy *policy, uint32_t position, bool hot);

/* Keep the first n_tokens (none: 0). A token that becomes one of the window stays where it is. */
int policy_trim(struct policy *policy, uint32_t n_tokens);

const struct policy_stats *policy_stats(const struct policy *policy);

#endif
