/* kv/sample.c - see sample.h. */
#include "kv/sample.h"

#include <math.h>
#include <stdbool.h>

#define STEPS     64.0   /* of a logarithm */
#define MORE_MOST 0x1p48 /* units that it adds at most, of queries near zero */

/* Of n samples one in so many is taken. */
static uint32_t stride_of(uint32_t n)
{
    uint32_t stride = 1;
    while (n / stride > KV_SAMPLE_MOST)
        stride *= 2;
    return stride;
}

/* Which samples count: the first ones, and of the others every stride-th. */
struct taken {
    uint32_t count, n_first, stride;
};

static bool is_taken(const struct taken *of, uint32_t sample)
{
    return sample < of->n_first ||
           (sample < of->count && (sample - KV_SAMPLE_FIRST + 1) % of->stride == 0);
}

/* What a term reaches: with each of the first tokens, and at most with the others. */
struct reach {
    int64_t first[KV_SAMPLE_FIRST], other;
};

/* unit: the logit of a term of 1. */
static int64_t offset_of(const struct reach *reach, const struct taken *of, double unit)
{
    int64_t largest = reach->other;
    double sum = 0.0;
    for (uint32_t i = 0; i < of->n_first; i++)
        largest = reach->first[i] > largest ? reach->first[i] : largest;
    for (uint32_t i = 0; i < of->n_first; i++)
        sum += exp((double)(reach->first[i] - largest) * unit);
    if (reach->other != INT64_MIN)
        sum += exp((double)(reach->other - largest) * unit);
    return largest + llrint(fmin(rint(log(sum) * STEPS) / STEPS / unit, MORE_MOST));
}

/* A group that has one of the first tokens, or fewer than sixteen that count. */
static bool is_border(const struct taken *of, uint32_t at)
{
    return at < KV_SAMPLE_FIRST || at + KV_GROUP_TOKENS > of->count;
}

static void note_border(struct reach *reach, const struct taken *of, uint32_t at,
                        const int64_t terms[KV_GROUP_TOKENS])
{
    for (uint32_t i = 0; i < KV_GROUP_TOKENS && at + i < of->count; i++) {
        if (at + i < KV_SAMPLE_FIRST)
            reach->first[at + i] = terms[i];
        else if (is_taken(of, at + i) && terms[i] > reach->other)
            reach->other = terms[i];
    }
}

static void set_least(int64_t terms[KV_GROUP_TOKENS])
{
    for (uint32_t i = 0; i < KV_GROUP_TOKENS; i++)
        terms[i] = INT64_MIN;
}

/* Which places of a group in the middle are taken: of each group the same ones, or none. */
static bool takes_place(const struct taken *of, uint32_t place)
{
    uint32_t stride = of->stride < KV_GROUP_TOKENS ? of->stride : KV_GROUP_TOKENS;
    return (place + KV_GROUP_TOKENS - KV_SAMPLE_FIRST + 1) % stride == 0;
}

static bool takes_any(const struct taken *of, uint32_t at)
{
    uint32_t place = 0;
    while (place < KV_GROUP_TOKENS && !is_taken(of, at + place))
        place++;
    return place < KV_GROUP_TOKENS;
}

/* A query over the sample. */
struct look {
    const struct kv_geometry *geometry;
    const struct kv_query *query;
    const int8_t *words; /* the query's (kv_query_words) */
    struct taken of;
    kv_largest_fn *raise;
    int64_t largest[KV_MAX_HEADS][KV_GROUP_TOKENS]; /* of each term at each place of a group, but of
                                                       borders */
    struct reach reaches[KV_MAX_HEADS];             /* of each term */
};

/* The terms of all heads with a group whose first token is sample `at`. */
static void look_at_group(struct look *l, const uint8_t *group, uint32_t at)
{
    const struct kv_geometry *g = l->geometry;
    uint32_t terms = kv_query_terms(g, l->query->importance), share = terms / g->n_kv_heads;
    uint32_t n_words = kv_head_words(g), term_bytes = n_words * kv_word_dims(g);
    const uint8_t *words = group + kv_group_mantissas_at(g);
    bool border = is_border(&l->of, at);
    for (uint32_t t = 0; t < terms; t++) {
        uint32_t head = t / share;
        const struct kv_group_head keys = {words + (uint64_t)head * n_words * 64,
                                           group + head * KV_GROUP_TOKENS, n_words,
                                           kv_digest_bits(g)};
        int64_t own[KV_GROUP_TOKENS];
        if (border)
            set_least(own);
        l->raise(&keys, l->words + (uint64_t)t * term_bytes, l->query->shifts[t],
                 border ? own : l->largest[t]);
        if (border)
            note_border(&l->reaches[t], &l->of, at, own);
    }
}

/* Groups in memory order: that is what the hardware's prefetchers like, and the sample is seldom in
 * a cache. */
static void look_at_sample(struct look *l, const uint8_t *groups)
{
    const struct kv_geometry *g = l->geometry;
    uint32_t terms = kv_query_terms(g, l->query->importance);
    for (uint32_t t = 0; t < terms; t++) {
        set_least(l->largest[t]);
        l->reaches[t].other = INT64_MIN;
    }
    for (uint32_t at = 0; at < l->of.count; at += KV_GROUP_TOKENS, groups += kv_group_bytes(g))
        if (is_border(&l->of, at) || takes_any(&l->of, at))
            look_at_group(l, groups, at);
    for (uint32_t t = 0; t < terms; t++)
        for (uint32_t i = 0; i < KV_GROUP_TOKENS; i++)
            if (takes_place(&l->of, i) && l->largest[t][i] > l->reaches[t].other)
                l->reaches[t].other = l->largest[t][i];
}

void kv_sample_offsets(const struct kv_geometry *g, const struct kv_query *query, int32_t exponent,
                       const uint8_t *groups, uint32_t n_tokens, int64_t *offsets)
{
    uint32_t terms = kv_query_terms(g, query->importance);
    int32_t bias = kv_digest_bits(g) == 4 ? KV_KEY_EXP_BIAS4 : KV_KEY_EXP_BIAS;
    double unit = ldexp(1.0, exponent - bias) / sqrt(g->head_dim);
    int8_t room[KV_QUERY_WORDS_ROOM];
    struct look l; /* not cleared: what is read of it has been written */
    l.geometry = g;
    l.query = query;
    l.words = kv_query_words(g, terms, query->mantissas, room);
    l.raise = kv_largest_choose();
    l.of.count = kv_sample_count(n_tokens);
    l.of.n_first = n_tokens < KV_SAMPLE_FIRST ? n_tokens : KV_SAMPLE_FIRST;
    l.of.stride = stride_of(n_tokens / KV_SAMPLE_EVERY);
    look_at_sample(&l, groups);
    for (uint32_t t = 0; t < terms; t++)
        offsets[t] = n_tokens ? offset_of(&l.reaches[t], &l.of, unit) : 0;
}
