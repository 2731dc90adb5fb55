/* kv/sample.c - see sample.h. */
#include "kv/sample.h"

#include <math.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define STEPS     64.0   /* of a logarithm */
#define MORE_MOST 0x1p48 /* units that it adds at most, of queries near zero */

#if defined(__x86_64__)
/* Sixteen products, two a lane; SSE2, which every x86-64 has. */
static inline __m128i sixteen(const int8_t *q, const int8_t *k)
{
    const __m128i zero = _mm_setzero_si128();
    __m128i a = _mm_loadu_si128((const void *)q), b = _mm_loadu_si128((const void *)k);
    __m128i a_sign = _mm_cmpgt_epi8(zero, a), b_sign = _mm_cmpgt_epi8(zero, b);
    return _mm_add_epi32(
        _mm_madd_epi16(_mm_unpacklo_epi8(a, a_sign), _mm_unpacklo_epi8(b, b_sign)),
        _mm_madd_epi16(_mm_unpackhi_epi8(a, a_sign), _mm_unpackhi_epi8(b, b_sign)));
}
#endif

static int32_t product(const int8_t *q, const int8_t *k, uint32_t n)
{
    uint32_t i = 0;
    int32_t sum = 0;
#if defined(__x86_64__)
    __m128i sums = _mm_setzero_si128();
    for (; i + 16 <= n; i += 16)
        sums = _mm_add_epi32(sums, sixteen(q + i, k + i));
    sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0x4e));
    sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0xb1));
    sum = _mm_cvtsi128_si32(sums);
#endif
    for (; i < n; i++)
        sum += q[i] * k[i];
    return sum;
}

/* Of n samples one in so many is taken. */
static uint32_t stride_of(uint32_t n)
{
    uint32_t stride = 1;
    while (n / stride > KV_SAMPLE_MOST)
        stride *= 2;
    return stride;
}

/* Keys of one KV head: the first tokens', and those of the others that are taken. */
struct keys {
    uint32_t n_first, n_others;
    int8_t mantissas[KV_SAMPLE_FIRST + KV_SAMPLE_MOST][KV_MAX_HEAD_DIM];
    uint8_t exponents[KV_SAMPLE_FIRST + KV_SAMPLE_MOST];
};

static void take_keys(const struct kv_geometry *g, const uint8_t *groups, uint32_t n_tokens,
                      uint32_t h, struct keys *out)
{
    uint32_t stride = stride_of(n_tokens / KV_SAMPLE_EVERY);
    out->n_first = n_tokens < KV_SAMPLE_FIRST ? n_tokens : KV_SAMPLE_FIRST;
    out->n_others = n_tokens / KV_SAMPLE_EVERY / stride;
    for (uint32_t i = 0; i < out->n_first + out->n_others; i++) {
        uint32_t sample =
            i < out->n_first ? i : KV_SAMPLE_FIRST + (i - out->n_first + 1) * stride - 1;
        out->exponents[i] = kv_digest_get_head(g, groups, sample, h, out->mantissas[i]);
    }
}

/* unit: the logit of a term of 1. */
static int64_t offset_of(const struct keys *keys, const int8_t *q, uint8_t shift, uint32_t head_dim,
                         double unit)
{
    int64_t first[KV_SAMPLE_FIRST], largest = INT64_MIN, other = INT64_MIN;
    double sum = 0.0;
    for (uint32_t i = 0; i < keys->n_first + keys->n_others; i++) {
        int64_t term = (int64_t)product(q, keys->mantissas[i], head_dim) *
                       ((int64_t)1 << ((keys->exponents[i] + shift) & 31u));
        largest = term > largest ? term : largest;
        if (i < keys->n_first)
            first[i] = term;
        else
            other = term > other ? term : other;
    }
    for (uint32_t i = 0; i < keys->n_first; i++)
        sum += exp((double)(first[i] - largest) * unit);
    if (keys->n_others)
        sum += exp((double)(other - largest) * unit);
    return largest + llrint(fmin(rint(log(sum) * STEPS) / STEPS / unit, MORE_MOST));
}

void kv_sample_offsets(const struct kv_geometry *g, const struct kv_query *query, int32_t exponent,
                       const uint8_t *groups, uint32_t n_tokens, int64_t *offsets)
{
    uint32_t terms = kv_query_terms(g, query->importance), share = terms / g->n_kv_heads;
    int32_t bias = kv_digest_bits(g) == 4 ? KV_KEY_EXP_BIAS4 : KV_KEY_EXP_BIAS;
    double unit = ldexp(1.0, exponent - bias) / sqrt(g->head_dim);
    struct keys keys;
    for (uint32_t t = 0; t < terms; t++) {
        if (t % share == 0)
            take_keys(g, groups, n_tokens, t / share, &keys);
        offsets[t] = n_tokens ? offset_of(&keys, query->mantissas + (uint64_t)t * g->head_dim,
                                          query->shifts[t], g->head_dim, unit)
                              : 0;
    }
}
