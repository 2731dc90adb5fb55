/* gpu_worker/sampler.c - see sampler.h. */
#include "gpu_worker/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GREEDY_PART 64u

int sampler_init(struct sampler *s, uint32_t n_vocab)
{
    memset(s, 0, sizeof *s);
    s->n_vocab = n_vocab;
    s->candidates = calloc(n_vocab, sizeof *s->candidates);
    s->penalised = calloc(n_vocab, sizeof *s->penalised);
    if (s->candidates && s->penalised)
        return 0;
    sampler_finish(s);
    return HILL_E_NOMEM;
}

void sampler_finish(struct sampler *s)
{
    free(s->candidates);
    free(s->penalised);
    memset(s, 0, sizeof *s);
}

/* The finaliser of splitmix64 (Steele, Lea, Flood 2014): every output bit depends on every input
 * bit. */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

double sampler_random(uint64_t seed, uint64_t position)
{
    return (double)(mix(mix(seed) ^ position) >> 11) * 0x1p-53;
}

/* A token counts once however often it occurs; a penalty makes positive logits smaller and negative
 * ones more so. */
static const float *penalise(struct sampler *s, const float *logits, const uint32_t *history,
                             uint64_t n)
{
    if (s->settings.repeat_penalty == 1.0f)
        return logits;
    memcpy(s->penalised, logits, sizeof *logits * s->n_vocab);
    uint64_t start = n > SAMPLER_PENALTY_TOKENS ? n - SAMPLER_PENALTY_TOKENS : 0;
    for (uint64_t i = start; i < n; i++) {
        uint32_t token = history[i];
        if (token >= s->n_vocab)
            continue;
        float logit = logits[token];
        s->penalised[token] =
            logit <= 0 ? logit * s->settings.repeat_penalty : logit / s->settings.repeat_penalty;
    }
    return s->penalised;
}

static uint32_t pick_greedy(const float *logits, uint32_t n)
{
    uint32_t best = 0, i = 0;
    for (; i + GREEDY_PART <= n; i += GREEDY_PART) {
        int any = 0; /* a sum that the compiler makes of vectors: most parts have no better one */
        float highest = logits[best];
        for (uint32_t j = 0; j < GREEDY_PART; j++)
            any |= logits[i + j] > highest;
        for (uint32_t j = 0; any && j < GREEDY_PART; j++)
            best = logits[i + j] > logits[best] ? i + j : best;
    }
    for (; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

/* The same of those that are allowed. */
static uint32_t pick_greedy_of(const float *logits, uint32_t n, const struct sampler_filter *filter)
{
    uint32_t best = SAMPLER_NO_TOKEN;
    for (uint32_t i = 0; i < n; i++)
        if ((best == SAMPLER_NO_TOKEN || logits[i] > logits[best]) &&
            filter->allows(filter->context, i))
            best = i;
    return best;
}

/* Higher logits first, then lower ids. */
static int compare(const void *a, const void *b)
{
    const struct sampler_candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : x->token > y->token;
}

static void sift_down(struct sampler_candidate *heap, uint32_t n, uint32_t at)
{
    for (;;) {
        uint32_t worst = at, left = 2 * at + 1;
        for (uint32_t child = left; child < n && child <= left + 1; child++)
            if (compare(&heap[child], &heap[worst]) > 0)
                worst = child;
        if (worst == at)
            return;
        struct sampler_candidate moved = heap[at];
        heap[at] = heap[worst];
        heap[worst] = moved;
        at = worst;
    }
}

static bool allowed(const struct sampler_filter *filter, uint32_t token)
{
    return !filter || filter->allows(filter->context, token);
}

/* The k best allowed tokens, sorted, as sorting all of them would give: a heap with the worst of
 * the k best at its root takes one look at most tokens, where sorting a vocabulary takes longer
 * than a decode step. Returns how many there are. */
static uint32_t take_best(struct sampler_candidate *c, const float *logits, uint32_t n, uint32_t k,
                          const struct sampler_filter *filter)
{
    uint32_t i = 0, taken = 0;
    for (; i < n && taken < k; i++)
        if (allowed(filter, i))
            c[taken++] = (struct sampler_candidate){i, logits[i], 0};
    if (i < n)
        for (uint32_t at = k / 2; at-- > 0;)
            sift_down(c, k, at);
    for (; i < n; i++) {
        struct sampler_candidate next = {i, logits[i], 0};
        if (compare(&next, &c[0]) < 0 && allowed(filter, i)) {
            c[0] = next;
            sift_down(c, k, 0);
        }
    }
    qsort(c, taken, sizeof *c, compare);
    return taken;
}

/* Probabilities of the first n candidates (sorted) at a temperature. */
static void soften(struct sampler_candidate *c, uint32_t n, float temperature)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        c[i].probability = expf((c[i].logit - c[0].logit) / temperature);
        sum += c[i].probability;
    }
    for (uint32_t i = 0; i < n; i++)
        c[i].probability = (float)(c[i].probability / sum);
}

/* The smallest head of the candidates whose probabilities reach top_p; at least one. */
static uint32_t cut_top_p(struct sampler_candidate *c, uint32_t n, float top_p)
{
    if (top_p >= 1.0f)
        return n;
    double sum = 0;
    soften(c, n, 1.0f);
    for (uint32_t i = 0; i < n; i++) {
        sum += c[i].probability;
        if (sum >= top_p)
            return i + 1;
    }
    return n;
}

/* Those at least min_p times as likely as the first. */
static uint32_t cut_min_p(struct sampler_candidate *c, uint32_t n, float min_p)
{
    if (min_p <= 0.0f)
        return n;
    float least = c[0].logit + logf(min_p);
    uint32_t kept = 1;
    while (kept < n && c[kept].logit >= least)
        kept++;
    return kept;
}

uint32_t sampler_pick(struct sampler *s, const float *logits, const uint32_t *history,
                      uint64_t n_history, uint64_t position, const struct sampler_filter *filter)
{
    const struct sampler_settings *set = &s->settings;
    logits = penalise(s, logits, history, n_history);
    if (set->temperature <= 0.0f)
        return filter ? pick_greedy_of(logits, s->n_vocab, filter)
                      : pick_greedy(logits, s->n_vocab);
    struct sampler_candidate *c = s->candidates;
    uint32_t n = set->top_k && set->top_k < s->n_vocab ? set->top_k : s->n_vocab;
    n = take_best(c, logits, s->n_vocab, n, filter);
    if (!n)
        return SAMPLER_NO_TOKEN;
    n = cut_top_p(c, n, set->top_p);
    n = cut_min_p(c, n, set->min_p);
    soften(c, n, set->temperature);
    double at = sampler_random(set->seed, position), sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += c[i].probability;
        if (at < sum)
            return c[i].token;
    }
    return c[n - 1].token; /* the sum fell short of 1 by rounding */
}

bool sampler_has_numbers(const float *logits, uint32_t n_vocab)
{
    int wrong = 0, some = 0; /* sums that the compiler makes of vectors */
    for (uint32_t i = 0; i < n_vocab; i++) {
        wrong |= !(logits[i] < INFINITY);
        some |= logits[i] > -INFINITY;
    }
    return some && !wrong;
}

int sampler_logprob(const float *logits, uint32_t n_vocab, uint32_t token, double *out)
{
    double highest = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n_vocab; i++)
        if (logits[i] > highest)
            highest = logits[i];
    for (uint32_t i = 0; i < n_vocab; i++)
        sum += exp(logits[i] - highest);
    *out = logits[token] - highest - log(sum);
    return isfinite(*out) ? 0 : HILL_E_DAMAGED;
}
