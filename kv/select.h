/*
 * kv/select.h - how many tokens a query may attend to, and which.
 *
 * Budget: k = clamp(ceil(alpha * N) or budget, min(N, sinks + window), N), the forced tokens (the
 * first `sinks`, the newest `window`) included; while N < exact_below, where a selection saves
 * nothing, k = N. Selection: forced tokens, then the highest scores; ties go to the newer token.
 * Under a granularity above 1, half of the unforced budget (rounded up) goes to the highest scores,
 * the rest to the highest ranks: a token's rank is the highest score among the aligned group of
 * positions in which it lies.
 * The result depends on scores alone, never on the order in which they arrive. Scores arrive in any
 * order, from several threads' blocks one after another (kv_selector_add is called by one thread),
 * each position exactly once: a second score of a position or a missing one is an error, not a
 * guess [I5]. Cost: O(N) per query: two histograms of 256 counts (high byte, low byte), no sort.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum kv_policy { /* numbers are part of the record format */
                 KV_POLICY_HILLINFER = 0,
                 KV_POLICY_FULL = 1,
                 KV_POLICY_H2O = 2,      /* attention mass of all queries so far */
                 KV_POLICY_ORACLE = 3,   /* attention mass of this query: a limit for comparisons */
                 KV_POLICY_LEOAM = 4,    /* keys of the chunks with the highest bounds */
                 KV_POLICY_PREFETCH = 5, /* attention mass by a part of the keys' columns */
                 KV_POLICY_HOST_DIGEST = 6, /* as hillinfer; the host scores all digests */
                 KV_POLICY_COUNT
};

const char *kv_policy_name(uint32_t policy);          /* NULL: unknown */
int kv_policy_parse(const char *name, uint32_t *out); /* HILL_E_INVALID: unknown */

struct kv_selection_settings {
    double alpha;    /* (0, 1] */
    uint32_t budget; /* tokens; 0: use alpha */
    uint32_t sinks, window;
    uint32_t policy;     /* enum kv_policy */
    uint32_t importance; /* enum kv_importance */
    /* of a context of fewer tokens all are selected; 0: never for that reason */
    uint16_t exact_below;
    uint16_t granularity; /* tokens, a power of two; 0 as 1: each token for itself */
};

#define KV_GRANULARITY_MAX 64u

/* The most of exact_below: 16 bits of files and records hold it. */
#define KV_EXACT_BELOW_MAX UINT16_MAX

/* HILL_E_INVALID: alpha outside (0, 1], a number that is too large or unknown, or a granularity
 * that is no power of two. */
int kv_selection_check(const struct kv_selection_settings *s, struct hill_why *why);

/* k for a context of n tokens; policy full: n. ceil(alpha * n) is that of the decimal alpha
 * the user wrote (0.07 of 100 is 7, although 0.07 * 100 is above 7 in FP64); alpha to 7 decimals is
 * exact. */
uint32_t kv_budget_tokens(const struct kv_selection_settings *s, uint32_t n);

/* Layers whose attention goes over a window, the newest tokens: nothing is selected there. */
struct kv_layer_windows {
    uint32_t tokens;       /* with the query's own; 0: no layer has a window */
    uint32_t global_every; /* layers i with (i + 1) % n == 0 have none */
};
/* Tokens of a query's selection in a windowed layer that covers n; where the layer has no window,
 * 0 (of no tokens: n is at least 1). */
uint32_t kv_window_tokens(const struct kv_layer_windows *w, uint32_t layer, uint32_t n);
/* Does the selection of a layer follow from n alone, so that neither scores nor the query are
 * needed? Not where the policy keeps sums of what its queries attend to, or reads keys anyway. */
bool kv_selection_is_known(const struct kv_selection_settings *s, const struct kv_layer_windows *w,
                           uint32_t layer, uint32_t n);
/* The most that a query of any layer selects while the context grows to n tokens: more than k(n)
 * where n is at least exact_below. What staging and GPU slots are reserved for. */
uint32_t kv_most_tokens(const struct kv_selection_settings *s, const struct kv_layer_windows *w,
                        uint32_t n);

struct kv_selector;

/* HILL_E_INVALID: max_tokens is 0 or above KV_MAX_TOKENS; HILL_E_NOMEM. */
int kv_selector_create(struct kv_selector **out, uint32_t max_tokens);
/* No vector instructions from now on: the same selection, more slowly. For tests. */
void kv_selector_plain(struct kv_selector *selector);
void kv_selector_destroy(struct kv_selector *selector);

/* Bytes that a selector for max_tokens takes (part of M_0's tables). */
uint64_t kv_selector_bytes(uint32_t max_tokens);

/* Start a query over positions 0 .. n - 1. HILL_E_INVALID: n above max_tokens, or settings that
 * kv_selection_check refuses. */
int kv_selector_begin(struct kv_selector *selector, const struct kv_selection_settings *s,
                      uint32_t n);

/* Scores of `count` tokens. HILL_E_PROTOCOL: a position >= n, or scored twice. */
int kv_selector_add(struct kv_selector *selector, const uint32_t *positions, const uint16_t *scores,
                    uint32_t count);

/* The same for `count` positions that follow one another, first ... first + count - 1: a copy. */
int kv_selector_add_run(struct kv_selector *selector, uint32_t first, const uint16_t *scores,
                        uint32_t count);

/* How many of the n have a score. */
uint32_t kv_selector_scored(const struct kv_selector *selector);

/* Scores by position, after a finish with scores and until the next begin: for traces. */
const uint16_t *kv_selector_scores(const struct kv_selector *selector);

/* The selected positions, ascending, into positions[k]; returns k, or HILL_E_PROTOCOL when a token
 * has no score (policy full needs none). */
int64_t kv_selector_finish(struct kv_selector *selector, uint32_t *positions);
