/*
 * placement/placement.h - placements: which entries of one (sequence, layer) are hot.
 *
 * What: a placement keeps a tier for every position, watches what each query selects, and answers
 * with the entries to move. It moves nothing itself. One struct placement per (sequence, layer).
 *     recency the newest are hot and nothing comes up
 *     bkp     what the product made of the paper's pools: aged hit counts, swaps that must save
 *             more drive time than they cost (placement_bkp.c)
 *     paper   bidirectional KV pools as the paper writes them (4.2; placement_paper.c)
 *     lru     every selected cold token comes up, the least recently selected goes down
 *     lfu     the same, the least often selected goes down
 *     score   offline: the hot tier follows the scores of the current step (the paper's naive
 *             placement)
 *     belady  offline: the furthest next use goes down, and what is needed later than that is not
 *             brought up (bypass): the most hits that any placement can have that brings up only
 *             what a query has just selected
 * A copy: an entry that has moved up may still lie below. It never changes, so going down again
 * writes nothing while its slot has not been given away. Who has one the caller says (`copies`).
 * Rules that hold for all: the forced tokens (first `sinks`, newest `window`) are hot; at most
 * `capacity` tokens are hot; new tokens start hot; a step promotes and demotes equal volumes unless
 * there is free room, and promotes at most `rate` tokens. Live that is at most
 * PLACEMENT_LIVE_RATE a layer and step, of what the GPU lacked, and none while a batch of moves is
 * under way: so lru, lfu and paper bring up the best of what a query selected, not all of it.
 * The order of calls for one query is placement_append (the query's new tokens), placement_step
 * (what it selected). Hits are counted against the placement before the step's moves. Who calls it:
 * the scorer after each query; hill-kvtrace, bench. Concurrency: one thread per placement.
 * Ownership: the caller owns what it passes in; moves belong to the placement and are valid until
 * its next call. Failure: HILL_E_NOMEM, HILL_E_INVALID; the tables are whole after either.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "kv/geometry.h"

enum placement_kind {
    PLACEMENT_RECENCY, /* from here on live ones: the numbers of Placement in proto/hill.proto */
    PLACEMENT_BKP,
    PLACEMENT_PAPER,
    PLACEMENT_LRU,
    PLACEMENT_LFU,
    PLACEMENT_SCORE, /* from here on those of a replay alone */
    PLACEMENT_BELADY,
    PLACEMENT_COUNT
};
#define PLACEMENT_LIVE_COUNT PLACEMENT_SCORE

#define PLACEMENT_BOUNCE_STEPS 16u /* up again within that many steps after going down: a bounce */
#define PLACEMENT_NEVER        UINT32_MAX
#define PLACEMENT_LOST         (UINT32_MAX - 1) /* in `copies`: its slot is another's now */
#define PLACEMENT_COST_MAX     64.0             /* misses */
/* A token whose count is a miss above another's saves some four fetches before it goes down again
 * (docs/decisions/placement.md), so a write that takes as long as a fetch counts as much of a miss.
 */
#define PLACEMENT_WRITE_SHARE 0.25
/* The live scorer keeps a copy for one of so many cold entries. Fewer are fewer bytes in each
 * query's stream over the digests, but more entries that must be written when they go down, each
 * with its group (docs/decisions/cold-copies.md). On real KV half are all of them. */
#define PLACEMENT_COPIES_PART 2u
#define PLACEMENT_LIVE_RATE   32u /* promotions that the live scorer takes after one query */

/* What Belady knows: the selections of the steps to come, in order. */
struct placement_future {
    uint32_t n_steps;
    const uint32_t *n_tokens;        /* [n_steps] */
    const uint32_t *n_selected;      /* [n_steps] */
    const uint32_t *const *selected; /* [n_steps][n_selected[step]], ascending */
};

struct placement_settings {
    uint32_t max_tokens;    /* at most KV_MAX_TOKENS */
    uint32_t sinks, window; /* forced, as in kv_selection_settings */
    uint32_t rate; /* promotions per step; 0: no limit, for bkp 1/64 of the tokens (at least 16) */
    /* bkp and paper */
    double alpha; /* (0, 1]: the fraction with the highest counts is not demoted for a promotion; of
                     bkp for nothing, as far as it fits in half of what is not pinned */
    double pin;   /* [0, 1]: the newest fraction that is locked hot; at most a sixteenth of the
                     capacity, of paper half of it */
    /* bkp alone */
    uint32_t half_life;  /* steps in which a count loses half its weight, 1 .. 256 */
    double margin;       /* misses by which a token must beat its victim */
    uint32_t rest_steps; /* a token that has been moved stays at least so long */
    double write_cost;   /* misses by which it must beat, besides, a victim that is to be written */
    const uint32_t *copies; /* [max_tokens], the caller's, who changes it between calls: from
                               PLACEMENT_LOST on for a hot entry that has no copy; NULL: none has */
    const struct placement_future *future; /* belady; read by placement_create only */
};

/* Defaults for everything but max_tokens and future. */
struct placement_settings placement_defaults(void);

struct placement_stats {
    uint64_t steps;
    uint64_t hits_hot, hits_cold; /* selected entries that were not forced */
    uint64_t promoted;
    uint64_t demoted;     /* to make room for promotions and for new tokens */
    uint64_t placed_cold; /* tokens of an append that never were hot (a prompt's) */
    uint64_t bounced;
};

struct placement_moves {
    const uint32_t *promoted, *demoted; /* positions */
    uint32_t n_promoted, n_demoted;
};

struct placement;

/* "recency", "bkp", "paper", "lru", "lfu", "score", "belady"; NULL / HILL_E_INVALID when
 * unknown. */
const char *placement_name(enum placement_kind kind);
int placement_parse(const char *name, enum placement_kind *out);

/* HILL_E_INVALID: an unknown kind, or settings out of range; HILL_E_NOMEM. */
int placement_create(struct placement **out, enum placement_kind kind,
                     const struct placement_settings *settings, struct hill_why *why);
void placement_destroy(struct placement *placement); /* NULL allowed */

/* Bytes that a placement takes for its tables (part of M_0's tables). */
uint64_t placement_bytes(enum placement_kind kind, const struct placement_settings *settings);

/* What the live scorer keeps for one sequence that is placed so: in each layer a placement and, for
 * every position, the cold slot that still holds a copy (u32); by recency nothing. Part of M_0's
 * tables. */
uint64_t placement_live_bytes(enum placement_kind kind, uint32_t n_layers, uint32_t max_tokens);

/* `count` new tokens, hot; from now on at most `capacity` are (raised to the forced ones' number).
 * moves: what goes down for it. The first append of a sequence is its prompt: sinks and
 * newest are hot, the others are placed cold without being moves. O(count + demotions), amortised.
 * HILL_E_INVALID: beyond max_tokens. */
int placement_append(struct placement *placement, uint32_t count, uint32_t capacity,
                     struct placement_moves *moves);

/* One query selected `selected` (ascending, below the number of tokens). scores: of all tokens,
 * needed by the score placement alone (NULL: HILL_E_INVALID for it). rate: promotions that the
 * caller can take at this step, 0: the settings' alone. bkp: O(n_selected + moves), amortised. */
int placement_step(struct placement *placement, const uint32_t *selected, uint32_t n_selected,
                   const uint16_t *scores, uint32_t rate, struct placement_moves *moves);

/* Like placement_step, but nothing moves: the caller's last moves are still under way. */
int placement_watch(struct placement *placement, const uint32_t *selected, uint32_t n_selected);

/* bkp: what writing an entry costs is measured while it runs: see write_cost (at most 64). */
void placement_set_write_cost(struct placement *placement, double misses);

/* The tier of a position below placement_tokens. */
bool placement_is_hot(const struct placement *placement, uint32_t position);
uint32_t placement_tokens(const struct placement *placement);
uint32_t placement_hot_tokens(const struct placement *placement);

/* Say where an entry really is (a move was given up, tables were recovered): no move, not counted.
 * May leave more than the capacity hot until the next append. HILL_E_INVALID: no such position. */
int placement_place(struct placement *placement, uint32_t position, bool hot);

/* Keep the first n_tokens (none: 0). A token that becomes one of the window stays where it is. */
int placement_trim(struct placement *placement, uint32_t n_tokens);

const struct placement_stats *placement_stats(const struct placement *placement);
