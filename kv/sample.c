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

/* Which places of a group in the middle are taken: of each group the same ones, or none. */
static bool takes_place(const struct taken *of, uint32_t place)
{
    uint32_t stride = of->stride < KV_GROUP_TOKENS ? of->stride : KV_GROUP_TOKENS;
    return (place + KV_GROUP_TOKENS - KV_SAMPLE_FIRST + 1) % stride == 0;
}

/* A query over the sample. */
struct look {
    const struct kv_geometry *geometry;
    const struct kv_query *query;
    const uint8_t *groups;
    uint32_t terms;
    struct taken of;
    kv_largest_fn *raise;
    int64_t largest[KV_MAX_HEADS][KV_GROUP_TOKENS]; /* of each term at each place of some groups */
    struct reach reaches[KV_MAX_HEADS];             /* of each term */
};

/* Groups first, first + every, ... below end, into `largest`: in memory order, which is what the
 * hardware's prefetchers like, and the sample is seldom in a cache. */
static void look_at_groups(struct look *l, uint32_t first, uint32_t end, uint32_t every)
{
    struct kv_group_steps groups = {l->groups + (uint64_t)first * kv_group_bytes(l->geometry),
                                    first < end ? (end - first + every - 1) / every : 0, every};
    for (uint32_t t = 0; t < l->terms; t++)
        for (uint32_t i = 0; i < KV_GROUP_TOKENS; i++)
            l->largest[t][i] = INT64_MIN;
    l->raise(l->geometry, l->query, &groups, l->largest);
}

/* A group that has one of the first tokens, or fewer than sixteen that count. */
static void look_at_border(struct look *l, uint32_t group)
{
    uint32_t at = group * KV_GROUP_TOKENS;
    look_at_groups(l, group, group + 1, 1);
    for (uint32_t t = 0; t < l->terms; t++) {
        struct reach *reach = &l->reaches[t];
        for (uint32_t i = 0; i < KV_GROUP_TOKENS && at + i < l->of.count; i++) {
            if (at + i < KV_SAMPLE_FIRST)
                reach->first[at + i] = l->largest[t][i];
            else if (is_taken(&l->of, at + i) && l->largest[t][i] > reach->other)
                reach->other = l->largest[t][i];
        }
    }
}

/* Those between the borders that have a token that is taken: where the stride is more than a group,
 * not all have one. */
static void look_at_middle(struct look *l, uint32_t end)
{
    uint32_t every = l->of.stride > KV_GROUP_TOKENS ? l->of.stride / KV_GROUP_TOKENS : 1;
    look_at_groups(l, every, end, every);
    for (uint32_t t = 0; t < l->terms; t++)
        for (uint32_t i = 0; i < KV_GROUP_TOKENS; i++)
            if (takes_place(&l->of, i) && l->largest[t][i] > l->reaches[t].other)
                l->reaches[t].other = l->largest[t][i];
}

static void look_at_sample(struct look *l)
{
    uint32_t full = l->of.count / KV_GROUP_TOKENS;
    for (uint32_t t = 0; t < l->terms; t++)
        l->reaches[t].other = INT64_MIN;
    if (l->of.count > 0)
        look_at_border(l, 0);
    look_at_middle(l, full);
    if (full > 0 && l->of.count % KV_GROUP_TOKENS > 0)
        look_at_border(l, full);
}

void kv_sample_offsets(const struct kv_geometry *g, const struct kv_query *query, int32_t exponent,
                       const uint8_t *groups, uint32_t n_tokens, int64_t *offsets)
{
    int32_t bias = kv_digest_bits(g) == 4 ? KV_KEY_EXP_BIAS4 : KV_KEY_EXP_BIAS;
    double unit = ldexp(1.0, exponent - bias) / sqrt(g->head_dim);
    struct look l; /* not cleared: what is read of it has been written */
    l.geometry = g;
    l.query = query;
    l.groups = groups;
    l.terms = kv_query_terms(g, query->importance);
    l.raise = kv_largest_choose();
    l.of.count = kv_sample_count(n_tokens);
    l.of.n_first = n_tokens < KV_SAMPLE_FIRST ? n_tokens : KV_SAMPLE_FIRST;
    l.of.stride = stride_of(n_tokens / KV_SAMPLE_EVERY);
    look_at_sample(&l);
    for (uint32_t t = 0; t < l.terms; t++)
        offsets[t] = n_tokens ? offset_of(&l.reaches[t], &l.of, unit) : 0;
}
