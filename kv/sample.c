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

/* What the terms of one KV head reach. */
static void look_at_head(const struct kv_geometry *g, const struct kv_query *query,
                         const int8_t *words, const uint8_t *groups, uint32_t head,
                         const struct taken *of, struct reach *reaches)
{
    kv_largest_fn *raise = kv_score_has_avx2() ? kv_largest_avx2 : kv_largest_reference;
    uint32_t share = kv_query_terms(g, query->importance) / g->n_kv_heads;
    uint32_t n_words = kv_head_words(g), term_bytes = n_words * kv_word_dims(g);
    const int8_t *own_words = words + (uint64_t)head * share * term_bytes;
    const uint8_t *group = groups, *shifts = query->shifts + head * share;
    int64_t largest[KV_MAX_HEADS][KV_GROUP_TOKENS]; /* at each place of a group, but of borders */
    for (uint32_t t = 0; t < share; t++) {
        set_least(largest[t]);
        reaches[t].other = INT64_MIN;
    }
    for (uint32_t at = 0; at < of->count; at += KV_GROUP_TOKENS, group += kv_group_bytes(g)) {
        const struct kv_group_head keys = {
            group + kv_group_mantissas_at(g) + (uint64_t)head * n_words * 64,
            group + head * KV_GROUP_TOKENS, n_words, kv_digest_bits(g)};
        bool border = is_border(of, at);
        if (!border && !takes_any(of, at))
            continue;
        for (uint32_t t = 0; t < share; t++) {
            int64_t terms[KV_GROUP_TOKENS];
            if (border)
                set_least(terms);
            raise(&keys, own_words + t * term_bytes, shifts[t], border ? terms : largest[t]);
            if (border)
                note_border(&reaches[t], of, at, terms);
        }
    }
    for (uint32_t t = 0; t < share; t++)
        for (uint32_t i = 0; i < KV_GROUP_TOKENS; i++)
            if (takes_place(of, i) && largest[t][i] > reaches[t].other)
                reaches[t].other = largest[t][i];
}

void kv_sample_offsets(const struct kv_geometry *g, const struct kv_query *query, int32_t exponent,
                       const uint8_t *groups, uint32_t n_tokens, int64_t *offsets)
{
    uint32_t terms = kv_query_terms(g, query->importance), share = terms / g->n_kv_heads;
    int32_t bias = kv_digest_bits(g) == 4 ? KV_KEY_EXP_BIAS4 : KV_KEY_EXP_BIAS;
    double unit = ldexp(1.0, exponent - bias) / sqrt(g->head_dim);
    const struct taken of = {.count = kv_sample_count(n_tokens),
                             .n_first = n_tokens < KV_SAMPLE_FIRST ? n_tokens : KV_SAMPLE_FIRST,
                             .stride = stride_of(n_tokens / KV_SAMPLE_EVERY)};
    struct reach reaches[KV_MAX_HEADS];
    int8_t room[KV_QUERY_WORDS_ROOM];
    const int8_t *words = kv_query_words(g, terms, query->mantissas, room);
    for (uint32_t h = 0; h < g->n_kv_heads; h++) {
        look_at_head(g, query, words, groups, h, &of, reaches);
        for (uint32_t t = 0; t < share; t++)
            offsets[h * share + t] = n_tokens ? offset_of(&reaches[t], &of, unit) : 0;
    }
}
