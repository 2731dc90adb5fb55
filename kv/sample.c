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

/* products: with a group's tokens, of which those in `counts` count; first_sample: its first. */
static void note(struct reach *reach, const int32_t products[KV_GROUP_TOKENS],
                 const uint8_t *exponents, uint8_t shift, uint32_t first_sample,
                 const bool counts[KV_GROUP_TOKENS])
{
    for (uint32_t i = 0; i < KV_GROUP_TOKENS; i++) {
        int64_t term = (int64_t)products[i] * ((int64_t)1 << ((exponents[i] + shift) & 31u));
        if (first_sample + i < KV_SAMPLE_FIRST)
            reach->first[first_sample + i] = term;
        else if (counts[i] && term > reach->other)
            reach->other = term;
    }
}

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

/* What the terms of one KV head reach. */
static void look_at_head(const struct kv_geometry *g, const struct kv_query *query,
                         const int8_t *words, const uint8_t *groups, uint32_t head,
                         const struct taken *of, struct reach *reaches)
{
    kv_products_fn *products_of = kv_score_has_avx2() ? kv_products_avx2 : kv_products_reference;
    uint32_t share = kv_query_terms(g, query->importance) / g->n_kv_heads;
    uint32_t n_words = kv_head_words(g), term_bytes = n_words * kv_word_dims(g);
    const uint8_t *group = groups;
    for (uint32_t t = 0; t < share; t++)
        reaches[t].other = INT64_MIN;
    for (uint32_t at = 0; at < of->count; at += KV_GROUP_TOKENS, group += kv_group_bytes(g)) {
        const uint8_t *k = group + kv_group_mantissas_at(g) + (uint64_t)head * n_words * 64;
        bool counts[KV_GROUP_TOKENS], any = false;
        for (uint32_t i = 0; i < KV_GROUP_TOKENS; i++)
            any |= counts[i] = is_taken(of, at + i);
        for (uint32_t t = 0; any && t < share; t++) {
            uint32_t term = head * share + t;
            int32_t products[KV_GROUP_TOKENS];
            products_of(k, words + (uint64_t)term * term_bytes, n_words, kv_digest_bits(g),
                        products);
            note(&reaches[t], products, group + head * KV_GROUP_TOKENS, query->shifts[term], at,
                 counts);
        }
    }
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
