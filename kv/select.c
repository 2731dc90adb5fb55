/*
 * kv/select.c - the budget rule and the selection of the highest scores, without a sort.
 *
 * Scores are kept by position, so their order of arrival cannot matter. The threshold is the k-th
 * highest score of the tokens that are not forced; of the tokens at the threshold the newest are
 * in. With AVX2 it is found by halving the range of scores: sixteen counts of the scores from a
 * middle on, and a last pass lists them. Otherwise one pass counts high bytes, one the low bytes of
 * the high byte in which the k-th score lies; counts go to four tables in turn, because neighbours
 * often have the same high byte and an increment would wait for the one before, and which tokens
 * are in is found without a branch. Who calls it: the scorer's main thread. Concurrency: one thread
 * per selector. Failure: HILL_E_PROTOCOL for a position that is scored twice, out of range or
 * missing.
 */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kv/geometry.h"
#include "kv/score.h"
#include "kv/select.h"
#include "kv/select_lanes.h"

struct kv_selector {
    uint32_t max_tokens;
    uint32_t n, scored;
    uint32_t k, granularity;
    uint32_t forced_below, forced_from; /* forced: position < forced_below or >= forced_from */
    bool wide;                          /* this CPU has AVX2 */
    bool full;                          /* everything is selected, no score needed */
    uint16_t *scores, *ranks;           /* [max_tokens]; ranks: by groups */
    uint64_t *present;                  /* bitmap [max_tokens]: this position has a score */
};

static const char *const policy_names[KV_POLICY_COUNT] = {
    [KV_POLICY_HILLINFER] = "hillinfer",
    [KV_POLICY_FULL] = "full",
    [KV_POLICY_H2O] = "h2o",
    [KV_POLICY_ORACLE] = "oracle",
    [KV_POLICY_LEOAM] = "leoam",
    [KV_POLICY_PREFETCH] = "prefetch",
    [KV_POLICY_HOST_DIGEST] = "host-digest",
};

const char *kv_policy_name(uint32_t policy)
{
    return policy < KV_POLICY_COUNT ? policy_names[policy] : NULL;
}

int kv_policy_parse(const char *name, uint32_t *out)
{
    for (uint32_t i = 0; i < KV_POLICY_COUNT; i++) {
        if (strcmp(name, policy_names[i]) == 0) {
            *out = i;
            return 0;
        }
    }
    return HILL_E_INVALID;
}

int kv_selection_check(const struct kv_selection_settings *s, struct hill_why *why)
{
    if (!(s->alpha > 0.0 && s->alpha <= 1.0)) /* this way round NaN is refused too */
        return hill_fail(why, HILL_E_INVALID, "alpha is %g, not in (0, 1]", s->alpha);
    if (s->budget > KV_MAX_TOKENS)
        return hill_fail(why, HILL_E_INVALID, "budget is %u tokens, above %u", s->budget,
                         KV_MAX_TOKENS);
    if (s->sinks > KV_MAX_TOKENS)
        return hill_fail(why, HILL_E_INVALID, "sinks are %u tokens, above %u", s->sinks,
                         KV_MAX_TOKENS);
    if (s->window > KV_MAX_TOKENS)
        return hill_fail(why, HILL_E_INVALID, "window is %u tokens, above %u", s->window,
                         KV_MAX_TOKENS);
    if (s->granularity > KV_GRANULARITY_MAX || (s->granularity & (s->granularity - 1)) != 0)
        return hill_fail(why, HILL_E_INVALID, "granularity is %u tokens, no power of two up to %u",
                         s->granularity, KV_GRANULARITY_MAX);
    if (s->policy >= KV_POLICY_COUNT)
        return hill_fail(why, HILL_E_INVALID, "policy %u is unknown", s->policy);
    if (s->importance >= KV_IMPORTANCE_COUNT)
        return hill_fail(why, HILL_E_INVALID, "importance %u is unknown", s->importance);
    return 0;
}

/* ceil(alpha * n) as the user's decimal alpha means it. alpha and the product are each off by at
 * most 2^-53 of their value, so a product that close to a whole number is that number (0.07 * 100
 * is 7, not 8). */
static uint64_t alpha_tokens(double alpha, uint32_t n)
{
    double product = alpha * n, whole = nearbyint(product);
    if (fabs(product - whole) <= whole * 0x1p-51)
        return (uint64_t)whole;
    return (uint64_t)ceil(product);
}

/* Are all of n tokens selected whatever their scores, as policy full and exact_below say? */
static bool selects_all(const struct kv_selection_settings *s, uint32_t n)
{
    return s->policy == KV_POLICY_FULL || n < s->exact_below;
}

uint32_t kv_budget_tokens(const struct kv_selection_settings *s, uint32_t n)
{
    if (selects_all(s, n))
        return n;
    uint64_t k = s->budget != 0 ? s->budget : alpha_tokens(s->alpha, n);
    uint64_t forced = (uint64_t)s->sinks + s->window;
    if (k < forced)
        k = forced;
    return k < n ? (uint32_t)k : n;
}

uint32_t kv_window_tokens(const struct kv_layer_windows *w, uint32_t layer, uint32_t n)
{
    if (w->tokens < 2 || (layer + 1) % w->global_every == 0)
        return 0;
    return w->tokens - 1 < n ? w->tokens - 1 : n;
}

bool kv_selection_is_known(const struct kv_selection_settings *s, const struct kv_layer_windows *w,
                           uint32_t layer, uint32_t n)
{
    bool keeps_nothing = s->policy == KV_POLICY_FULL || s->policy == KV_POLICY_HILLINFER ||
                         s->policy == KV_POLICY_HOST_DIGEST;
    return kv_window_tokens(w, layer, n) || (keeps_nothing && selects_all(s, n));
}

uint32_t kv_most_tokens(const struct kv_selection_settings *s, const struct kv_layer_windows *w,
                        uint32_t n)
{
    uint32_t k = kv_budget_tokens(s, n), window = w->tokens ? w->tokens - 1 : 0;
    uint32_t exact = s->exact_below < n ? s->exact_below : n;
    window = window < n ? window : n;
    k = k > exact ? k : exact;
    return k > window ? k : window;
}

static uint64_t bitmap_words(uint32_t max_tokens)
{
    return ((uint64_t)max_tokens + 63) / 64;
}

uint64_t kv_selector_bytes(uint32_t max_tokens)
{
    return sizeof(struct kv_selector) + bitmap_words(max_tokens) * 8 + (uint64_t)max_tokens * 4;
}

int kv_selector_create(struct kv_selector **out, uint32_t max_tokens)
{
    *out = NULL;
    if (max_tokens == 0 || max_tokens > KV_MAX_TOKENS)
        return HILL_E_INVALID;
    struct kv_selector *selector = calloc(1, kv_selector_bytes(max_tokens));
    if (selector == NULL)
        return HILL_E_NOMEM;
    selector->max_tokens = max_tokens;
#if defined(__x86_64__)
    selector->wide = __builtin_cpu_supports("avx2");
#endif
    selector->present = (uint64_t *)(selector + 1);
    selector->scores = (uint16_t *)(selector->present + bitmap_words(max_tokens));
    selector->ranks = selector->scores + max_tokens;
    *out = selector;
    return 0;
}

void kv_selector_plain(struct kv_selector *selector)
{
    selector->wide = false;
}

void kv_selector_destroy(struct kv_selector *selector)
{
    free(selector);
}

int kv_selector_begin(struct kv_selector *selector, const struct kv_selection_settings *s,
                      uint32_t n)
{
    if (n > selector->max_tokens || kv_selection_check(s, NULL) != 0)
        return HILL_E_INVALID;
    selector->n = n;
    selector->scored = 0;
    selector->k = kv_budget_tokens(s, n);
    selector->granularity = s->granularity;
    selector->full = selects_all(s, n);
    selector->forced_below = s->sinks < n ? s->sinks : n;
    selector->forced_from = s->window < n ? n - s->window : 0;
    memset(selector->present, 0, bitmap_words(n) * 8);
    return 0;
}

int kv_selector_add(struct kv_selector *selector, const uint32_t *positions, const uint16_t *scores,
                    uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t position = positions[i];
        if (position >= selector->n)
            return HILL_E_PROTOCOL;
        uint64_t bit = (uint64_t)1 << (position % 64);
        if ((selector->present[position / 64] & bit) != 0)
            return HILL_E_PROTOCOL;
        selector->present[position / 64] |= bit;
        selector->scores[position] = scores[i];
        selector->scored++;
    }
    return 0;
}

/* The bits of the run [first, first + count) that lie in its word. */
static uint64_t run_bits(uint32_t first, uint32_t count)
{
    uint32_t room = 64 - first % 64;
    uint64_t bits = count >= 64 ? UINT64_MAX : ((uint64_t)1 << count) - 1;
    return (count < room ? bits : UINT64_MAX) << first % 64;
}

int kv_selector_add_run(struct kv_selector *selector, uint32_t first, const uint16_t *scores,
                        uint32_t count)
{
    if (first > selector->n || count > selector->n - first)
        return HILL_E_PROTOCOL;
    memcpy(selector->scores + first, scores, (size_t)count * sizeof(*scores));
    selector->scored += count;
    while (count > 0) {
        uint64_t bits = run_bits(first, count), *word = &selector->present[first / 64];
        uint32_t done = 64 - first % 64 < count ? 64 - first % 64 : count;
        if ((*word & bits) != 0)
            return HILL_E_PROTOCOL;
        *word |= bits;
        first += done;
        count -= done;
    }
    return 0;
}

const uint16_t *kv_selector_scores(const struct kv_selector *selector)
{
    return selector->scores;
}

uint32_t kv_selector_scored(const struct kv_selector *selector)
{
    return selector->scored;
}

/* Find the bucket from the top in which the wanted-th item lies; *wanted becomes its rank (1..) in
 * that bucket. */
static uint32_t bucket_of(const uint32_t counts[256], uint32_t *wanted)
{
    uint32_t bucket = 255;
    while (bucket > 0 && counts[bucket] < *wanted) {
        *wanted -= counts[bucket];
        bucket--;
    }
    return bucket;
}

/* How many of n scores have each high byte. */
static void count_high(const uint16_t *scores, uint32_t n, uint32_t counts[256])
{
    uint32_t tables[4][256] = {{0}}, i = 0;
    for (; i + 4 <= n; i += 4) {
        tables[0][scores[i] >> 8]++;
        tables[1][scores[i + 1] >> 8]++;
        tables[2][scores[i + 2] >> 8]++;
        tables[3][scores[i + 3] >> 8]++;
    }
    for (; i < n; i++)
        tables[0][scores[i] >> 8]++;
    for (uint32_t v = 0; v < 256; v++)
        counts[v] = tables[0][v] + tables[1][v] + tables[2][v] + tables[3][v];
}

/* How many of n scores with this high byte have each low byte. The others are counted too, where
 * nobody looks and spread out, so that there is neither a branch nor a wait. */
static void count_low(const uint16_t *scores, uint32_t n, uint32_t high, uint32_t counts[256])
{
    uint32_t table[256 + 64] = {0};
    for (uint32_t i = 0; i < n; i++)
        table[scores[i] >> 8 == high ? scores[i] & 255u : 256 + i % 64]++;
    memcpy(counts, table, 256 * sizeof(*counts));
}

#if defined(__x86_64__)
static uint16_t find_threshold_wide(const uint16_t *scores, uint32_t n, uint32_t wanted,
                                    uint32_t *ties_out)
{
    uint32_t low = 0, high = UINT16_MAX, from_low = n; /* wanted <= n */
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        uint32_t count = kv_select_count_avx2(scores, n, (uint16_t)middle);
        if (count >= wanted) {
            low = middle;
            from_low = count;
        } else {
            high = middle - 1;
        }
    }
    *ties_out = from_low - wanted;
    return (uint16_t)low;
}
#endif

/* The score of the wanted-th best unforced token, and how many older tokens of that very score stay
 * out. */
static uint16_t find_threshold(const struct kv_selector *selector, const uint16_t *scores,
                               uint32_t wanted, uint32_t *ties_out)
{
    scores += selector->forced_below;
    uint32_t n = selector->forced_from - selector->forced_below, counts[256];
#if defined(__x86_64__)
    if (selector->wide)
        return find_threshold_wide(scores, n, wanted, ties_out);
#endif
    count_high(scores, n, counts);
    uint32_t high = bucket_of(counts, &wanted);
    count_low(scores, n, high, counts);
    uint32_t low = bucket_of(counts, &wanted);
    *ties_out = counts[low] - wanted;
    return (uint16_t)(high << 8 | low);
}

/* The `wanted` best unforced positions by scores[position], ascending. wanted > 0. */
static void select_best(const struct kv_selector *selector, const uint16_t *scores, uint32_t wanted,
                        uint32_t *positions)
{
    uint32_t ties_out, taken = 0;
    uint16_t threshold = find_threshold(selector, scores, wanted, &ties_out);
    uint32_t p = selector->forced_below;
#if defined(__x86_64__)
    if (selector->wide) {
        kv_select_list_avx2(scores, p, selector->forced_from, threshold, ties_out, positions);
        return;
    }
#endif
    for (; ties_out > 0; p++) { /* the older tokens of that score stay out */
        uint16_t score = scores[p];
        ties_out -= score == threshold;
        positions[taken] = p; /* taken < wanted: newer tokens of that score are still to come */
        taken += score > threshold;
    }
    for (; taken < wanted; p++) {
        positions[taken] = p;
        taken += scores[p] >= threshold;
    }
}

/* Each unforced token's rank: the best score of its group, forced tokens included. */
static void rank_by_groups(const struct kv_selector *selector)
{
    const uint16_t *scores = selector->scores, most = UINT16_MAX - 1; /* above: of taken tokens */
    uint32_t size = selector->granularity, n = selector->n,
             first = selector->forced_below / 64 * 64;
#if defined(__x86_64__)
    if (selector->wide)
        first = kv_select_groups_avx2(scores, first, n, size, most, selector->ranks);
#endif
    for (; first < n; first += size) {
        uint32_t end = n - first < size ? n : first + size;
        uint16_t best = 0;
        for (uint32_t p = first; p < end; p++)
            best = scores[p] > best ? scores[p] : best;
        for (uint32_t p = first; p < end; p++)
            selector->ranks[p] = best < most ? best : most;
    }
}

/* Half of them, rounded up, by their own scores, the others by their groups'. */
static void select_groups(const struct kv_selector *selector, uint32_t wanted, uint32_t *positions)
{
    uint32_t own = wanted - wanted / 2;
    rank_by_groups(selector);
    select_best(selector, selector->scores, own, positions);
    for (uint32_t i = 0; i < own; i++)
        selector->ranks[positions[i]] = UINT16_MAX;
    select_best(selector, selector->ranks, wanted, positions);
}

static int64_t select_all(uint32_t n, uint32_t *positions)
{
    for (uint32_t p = 0; p < n; p++)
        positions[p] = p;
    return n;
}

int64_t kv_selector_finish(struct kv_selector *selector, uint32_t *positions)
{
    uint32_t n = selector->n, taken = 0;
    if (!selector->full && selector->scored != n)
        return HILL_E_PROTOCOL;
    if (selector->k == n)
        return select_all(n, positions);

    /* k < n and k >= sinks + window: the forced ranges do not overlap */
    uint32_t forced = selector->forced_below + (n - selector->forced_from);
    uint32_t wanted = selector->k - forced;
    for (uint32_t p = 0; p < selector->forced_below; p++)
        positions[taken++] = p;
    if (wanted > 0 && selector->granularity > 1)
        select_groups(selector, wanted, positions + taken);
    else if (wanted > 0)
        select_best(selector, selector->scores, wanted, positions + taken);
    taken += wanted;
    for (uint32_t p = selector->forced_from; p < n; p++)
        positions[taken++] = p;
    return taken;
}
