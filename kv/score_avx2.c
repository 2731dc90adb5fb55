/*
 * kv/score_avx2.c - the integer score with AVX2, bit-equal to kv_score_reference.
 *
 * A word of a group's sixteen tokens is two vectors (kv/group.h), a query's word goes into every
 * lane. |k| as unsigned bytes times q, negated where k is negative, as signed bytes is q * k
 * (maddubs): a pair of products is at most 2 * 128 * 127 = 32512, so the 16-bit sums never
 * saturate; nibbles are unsigned already, and their bias times the query's sum is taken off each
 * product. A query's digest holds no -128 (kv/digest.c), which could not be negated. A head's words
 * are read once for up to four of its terms. Integer sums have no order; products, terms and sums
 * stay in a token's lane. Concurrency: pure functions. On other machines it is the reference.
 */
#include <stdbool.h>
#include <string.h>

#include "kv/score_call.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

int kv_score_has_avx2(void)
{
    return __builtin_cpu_supports("avx2") ? 1 : 0;
}

#define INLINE         AVX2 static inline __attribute__((always_inline))
#define TERMS_TOGETHER 4u /* what the registers hold sums of */

/* ---- products ------------------------------------------------------------------------------- */

struct products { /* of tokens 0-7 and 8-15 */
    __m256i low, high;
};

/* A word of eight tokens, ready for any number of terms: |k| and k, or its nibbles. */
struct keys {
    __m256i a, b;
};

INLINE struct keys keys_at(const uint8_t *k, uint32_t bits)
{
    const __m256i nibbles = _mm256_set1_epi8(15);
    __m256i all = _mm256_loadu_si256((const void *)k);
    if (bits == 8)
        return (struct keys){_mm256_abs_epi8(all), all};
    return (struct keys){_mm256_and_si256(all, nibbles),
                         _mm256_and_si256(_mm256_srli_epi32(all, 4), nibbles)};
}

/* sums plus those of four or eight products. Four of nibbles are at most 4 * 15 * 127 = 7620. */
INLINE __m256i step(__m256i sums, struct keys keys, __m256i q, __m256i r, uint32_t bits)
{
    __m256i pairs;
    if (bits == 8)
        pairs = _mm256_maddubs_epi16(keys.a, _mm256_sign_epi8(q, keys.b));
    else
        pairs = _mm256_add_epi16(_mm256_maddubs_epi16(keys.a, q), _mm256_maddubs_epi16(keys.b, r));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

INLINE __m256i word_of(const int8_t *q) /* in every lane */
{
    int32_t bytes;
    memcpy(&bytes, q, sizeof bytes);
    return _mm256_set1_epi32(bytes);
}

/* Of n terms of a head, whose first one's words are q. n, bits: constants, for the compiler. */
INLINE void products_of(const struct score_call *c, const uint8_t *k, const int8_t *q, uint32_t n,
                        uint32_t bits, struct products out[TERMS_TOGETHER])
{
    const uint32_t n_words = c->n_words, term_bytes = c->term_bytes;
    struct products sums[TERMS_TOGETHER]; /* registers: every index is a constant */
#pragma GCC unroll 4
    for (uint32_t t = 0; t < n; t++)
        sums[t].low = sums[t].high = _mm256_setzero_si256();
    for (uint32_t w = 0; w < n_words; w++, k += 64, q += 32 / bits) {
        struct keys low = keys_at(k, bits), high = keys_at(k + 32, bits);
#pragma GCC unroll 4
        for (uint32_t t = 0; t < n; t++) {
            __m256i all = word_of(q + t * term_bytes);
            __m256i next = bits == 8 ? all : word_of(q + t * term_bytes + 4);
            sums[t].low = step(sums[t].low, low, all, next, bits);
            sums[t].high = step(sums[t].high, high, all, next, bits);
        }
    }
#pragma GCC unroll 4
    for (uint32_t t = 0; t < n; t++)
        out[t] = sums[t];
}

INLINE void products_together(const struct score_call *c, const uint8_t *k, const int8_t *q,
                              uint32_t n, uint32_t bits, struct products out[TERMS_TOGETHER])
{
    if (n == 1)
        products_of(c, k, q, 1, bits, out);
    else if (n == 2)
        products_of(c, k, q, 2, bits, out);
    else if (n == 3)
        products_of(c, k, q, 3, bits, out);
    else
        products_of(c, k, q, 4, bits, out);
}

/* ---- terms ---------------------------------------------------------------------------------- */

struct terms { /* int64, of tokens 0, 2, 4, 6 and 1, 3, 5, 7; then of 8, 10, ... and 9, 11, ... */
    __m256i of[4];
};

/* 2^exponent of eight tokens. */
INLINE __m256i factors_of(const uint8_t *exponents)
{
    __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)exponents));
    e = _mm256_min_epu32(e, _mm256_set1_epi32(KV_KEY_EXP_MAX));
    return _mm256_sllv_epi32(_mm256_set1_epi32(1), e);
}

INLINE __m256i largest_of(__m256i a, __m256i b)
{
    return _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi64(b, a));
}

/* Puts the terms of eight tokens, less `offset`, into all[0] and all[1]. */
INLINE void combine8(__m256i all[2], __m256i products, __m256i factors, int64_t offset,
                     bool largest)
{
    __m256i less = _mm256_set1_epi64x(offset);
    __m256i even = _mm256_sub_epi64(_mm256_mul_epi32(products, factors), less);
    __m256i odd = _mm256_sub_epi64(
        _mm256_mul_epi32(_mm256_srli_epi64(products, 32), _mm256_srli_epi64(factors, 32)), less);
    all[0] = largest ? largest_of(all[0], even) : _mm256_add_epi64(all[0], even);
    all[1] = largest ? largest_of(all[1], odd) : _mm256_add_epi64(all[1], odd);
}

/* A term's with one head of a group. */
INLINE void combine(const struct score_call *c, struct terms *all, struct products p,
                    const uint8_t *exponents, uint32_t t, int64_t offset, bool largest)
{
    __m256i surplus = _mm256_set1_epi32(c->surplus[t]);
    __m128i shift = _mm_cvtsi32_si128(c->shifts[t]);
    p.low = _mm256_sll_epi32(_mm256_sub_epi32(p.low, surplus), shift);
    p.high = _mm256_sll_epi32(_mm256_sub_epi32(p.high, surplus), shift);
    combine8(all->of, p.low, factors_of(exponents), offset, largest);
    combine8(all->of + 2, p.high, factors_of(exponents + 8), offset, largest);
}

/* The lane of number i of terms as they lie in memory. */
static uint32_t lane_of(uint32_t i)
{
    return i / 8 * 8 + i % 4 * 2 + i / 4 % 2;
}

INLINE struct terms all_are(int64_t value)
{
    __m256i all = _mm256_set1_epi64x(value);
    return (struct terms){{all, all, all, all}};
}

/* A group's terms, combined; or each of them, without its offset, raises its own `apart`, where
 * that is not NULL. bits: a constant, for the compiler. */
INLINE struct terms terms_of(const struct score_call *c, const uint8_t *group, uint32_t bits,
                             struct terms *apart)
{
    const uint8_t *k = group + kv_group_mantissas_at(c->geometry), *exponents = group;
    struct terms all = all_are(c->largest ? INT64_MIN : 0);
    for (uint32_t first = 0; first < c->terms; k += 64 * c->n_words, exponents += KV_GROUP_TOKENS) {
        struct products products[TERMS_TOGETHER];
        if (c->share == 1) {
            products_of(c, k, c->words + first * c->term_bytes, 1, bits, products);
            combine(c, apart ? &apart[first] : &all, products[0], exponents, first,
                    apart ? 0 : c->offsets[first], apart || c->largest);
            first++;
            continue;
        }
        for (uint32_t n, left = c->share; left > 0; left -= n, first += n) {
            n = left < TERMS_TOGETHER ? left : TERMS_TOGETHER;
            products_together(c, k, c->words + first * c->term_bytes, n, bits, products);
            for (uint32_t t = 0; t < n; t++)
                combine(c, apart ? &apart[first + t] : &all, products[t], exponents, first + t,
                        apart ? 0 : c->offsets[first + t], true);
        }
    }
    return all;
}

/* ---- a call --------------------------------------------------------------------------------- */

/* What biased nibbles of keys make too much of a term of n words. */
static int32_t surplus_of(const int8_t *q, uint32_t n, uint32_t bits)
{
    int32_t sum = 0;
    for (uint32_t i = 0; bits == 4 && i < n; i++)
        sum += q[i];
    return KV_NIBBLE_BIAS * sum;
}

static void make_call(struct score_call *c, const struct kv_geometry *g,
                      const struct kv_query *query, const uint8_t *end)
{
    score_call_make(c, g, query, end);
    for (uint32_t t = 0; t < c->terms; t++)
        c->surplus[t] = surplus_of(c->words + t * c->term_bytes, c->term_bytes, kv_digest_bits(g));
}

/* bits: a constant, for the compiler. */
INLINE void score_groups(const struct score_call *c, const uint8_t *groups, uint32_t n,
                         uint16_t *scores, uint32_t bits)
{
    uint32_t bytes = kv_group_bytes(c->geometry);
    for (uint32_t done = 0; done < n; done += KV_GROUP_TOKENS, groups += bytes) {
        struct terms all = terms_of(c, groups, bits, NULL);
        int64_t values[KV_GROUP_TOKENS];
        memcpy(values, &all, sizeof values);
        for (uint32_t i = 0; i < KV_GROUP_TOKENS; i++)
            if (done + lane_of(i) < n)
                scores[done + lane_of(i)] = kv_score16(values[i]);
    }
}

AVX2 void kv_score_avx2(const struct kv_geometry *g, const struct kv_query *query,
                        const uint8_t *groups, uint32_t n, uint16_t *scores)
{
    struct score_call c;
    if (n == 0)
        return;
    make_call(&c, g, query, score_call_end(g, groups, kv_groups_touched(0, n), 1));
    if (kv_digest_bits(g) == 8)
        score_groups(&c, groups, n, scores, 8);
    else
        score_groups(&c, groups, n, scores, 4);
}

AVX2 void kv_largest_avx2(const struct kv_geometry *g, const struct kv_query *query,
                          const struct kv_group_steps *of, int64_t (*largest)[KV_GROUP_TOKENS])
{
    uint64_t step = (uint64_t)of->every * kv_group_bytes(g);
    const uint8_t *group = of->groups;
    struct terms apart[KV_MAX_HEADS];
    struct score_call c;
    if (of->n == 0)
        return;
    make_call(&c, g, query, score_call_end(g, group, of->n, of->every));
    for (uint32_t t = 0; t < c.terms; t++)
        apart[t] = all_are(INT64_MIN);
    for (uint32_t i = 0; i < of->n; i++, group += step) {
        if (kv_digest_bits(g) == 8)
            terms_of(&c, group, 8, apart);
        else
            terms_of(&c, group, 4, apart);
    }
    for (uint32_t t = 0; t < c.terms; t++) {
        int64_t values[KV_GROUP_TOKENS];
        memcpy(values, &apart[t], sizeof values);
        for (uint32_t i = 0; i < KV_GROUP_TOKENS; i++)
            if (values[i] > largest[t][lane_of(i)])
                largest[t][lane_of(i)] = values[i];
    }
}

#endif
