/*
 * kv/score_lanes512.h - the integer score on 512-bit vectors, but for the inner product's step.
 *
 * Included by score_avx512.c and score_avx512vnni.c alone, which define before:
 *   TARGET           the target attribute;
 *   step(acc, k, q)  acc + sums of four neighbouring products of signed bytes, per 32-bit lane,
 *                    and SURPLUS8 times the four bytes of q;
 *   step4(acc, low, high, q, r)  the same of unsigned bytes 0..15, low with q and high with r.
 * A group's vector holds a word of sixteen tokens (kv/group.h), and a query's word goes into every
 * lane: products, terms and scores of sixteen tokens stay in their lanes from the first byte to the
 * last. Groups are read once and strictly in memory order, which is what the hardware's prefetchers
 * want. Sums of integers have no order, so the result is that of kv_score_reference, for damaged
 * bytes too. Concurrency: pure functions.
 */
#pragma once

#include <immintrin.h>
#include <string.h>

#include "kv/score_call.h"

#define INLINE       TARGET static inline __attribute__((always_inline))
#define VECTOR_BYTES 64u

/* ---- products ------------------------------------------------------------------------------- */

INLINE __m512i word(const int8_t *q) /* in every lane */
{
    int32_t bytes;
    memcpy(&bytes, q, sizeof bytes);
    return _mm512_set1_epi32(bytes);
}

INLINE __m512i step_at(__m512i sums, const uint8_t *k, const int8_t *q, uint32_t bits)
{
    const __m512i nibbles = _mm512_set1_epi8(15);
    __m512i keys = _mm512_loadu_si512(k);
    if (bits == 8)
        return step(sums, keys, word(q));
    return step4(sums, _mm512_and_si512(keys, nibbles),
                 _mm512_and_si512(_mm512_srli_epi32(keys, 4), nibbles), word(q), word(q + 4));
}

/* Of one head, a token a lane. Four sums, because one would wait for itself. */
INLINE __m512i products(const uint8_t *k, const int8_t *q, uint32_t n_words, int32_t surplus,
                        uint32_t bits)
{
    __m512i a = _mm512_set1_epi32(-surplus), b = _mm512_setzero_si512(), c = b, d = b;
    uint32_t w = 0, dims = 32 / bits;
    for (; w + 4 <= n_words; w += 4, k += 4 * VECTOR_BYTES, q += 4 * dims) {
        a = step_at(a, k, q, bits);
        b = step_at(b, k + VECTOR_BYTES, q + dims, bits);
        c = step_at(c, k + 2 * VECTOR_BYTES, q + 2 * dims, bits);
        d = step_at(d, k + 3 * VECTOR_BYTES, q + 3 * dims, bits);
    }
    for (; w < n_words; w++, k += VECTOR_BYTES, q += dims)
        a = step_at(a, k, q, bits);
    return _mm512_add_epi32(_mm512_add_epi32(a, b), _mm512_add_epi32(c, d));
}

INLINE int32_t sum_of(const int8_t *q, uint32_t n)
{
    __m512i sums = _mm512_setzero_si512();
    for (uint32_t i = 0; i < n; i += 64) {
        __mmask64 mask = n - i < 64 ? ((__mmask64)1 << (n - i)) - 1 : ~(__mmask64)0;
        __m512i pairs =
            _mm512_maddubs_epi16(_mm512_set1_epi8(1), _mm512_maskz_loadu_epi8(mask, q + i));
        sums = _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
    }
    return _mm512_reduce_add_epi32(sums);
}

/* ---- terms, scores -------------------------------------------------------------------------- */

struct terms { /* in 64 bits, of tokens 0, 2, ... and 1, 3, ... */
    __m512i even, odd;
};

/* 2^exponent of a head's sixteen keys: in the lower halves of the lanes, as products are. */
INLINE struct terms factors_of(const uint8_t *exponents)
{
    __m128i most = _mm_set1_epi8(KV_KEY_EXP_MAX);
    __m128i e = _mm_min_epu8(_mm_loadu_si128((const void *)exponents), most);
    __m512i factors = _mm512_sllv_epi32(_mm512_set1_epi32(1), _mm512_cvtepu8_epi32(e));
    return (struct terms){factors, _mm512_srli_epi64(factors, 32)};
}

/* Products times powers of two; times the query's they fit into 32 bits (score_call.h). */
INLINE struct terms shifted(__m512i product, struct terms factors, int32_t shift)
{
    __m512i all = _mm512_sllv_epi32(product, _mm512_set1_epi32(shift));
    return (struct terms){_mm512_mul_epi32(all, factors.even),
                          _mm512_mul_epi32(_mm512_srli_epi64(all, 32), factors.odd)};
}

INLINE struct terms term_of(const struct score_call *c, __m512i product, struct terms factors,
                            uint32_t t)
{
    const __m512i less = _mm512_set1_epi64(c->offsets[t]);
    struct terms term = shifted(product, factors, c->shifts[t]);
    return (struct terms){_mm512_sub_epi64(term.even, less), _mm512_sub_epi64(term.odd, less)};
}

INLINE struct terms combined(struct terms a, struct terms b, bool largest)
{
    if (largest)
        return (struct terms){_mm512_max_epi64(a.even, b.even), _mm512_max_epi64(a.odd, b.odd)};
    return (struct terms){_mm512_add_epi64(a.even, b.even), _mm512_add_epi64(a.odd, b.odd)};
}

/* kv_score16 of eight values, each in 64 bits. */
INLINE __m512i score16_of_8(__m512i value)
{
    __m512i a = _mm512_abs_epi64(value); /* that of INT64_MIN is 2^63, read as unsigned */
    __m512i e = _mm512_sub_epi64(_mm512_set1_epi64(63), _mm512_lzcnt_epi64(a));
    __m512i nine = _mm512_set1_epi64(9), most = _mm512_set1_epi64(511);
    __m512i large =
        _mm512_or_si512(_mm512_slli_epi64(_mm512_sub_epi64(e, _mm512_set1_epi64(8)), 9),
                        _mm512_and_si512(_mm512_srlv_epi64(a, _mm512_sub_epi64(e, nine)), most));
    __m512i magnitude = _mm512_mask_blend_epi64(_mm512_cmpgt_epu64_mask(a, most), a, large);
    __m512i above = _mm512_add_epi64(_mm512_set1_epi64(0x8000), magnitude);
    __m512i below = _mm512_sub_epi64(_mm512_set1_epi64(0x7fff), magnitude);
    return _mm512_mask_blend_epi64(_mm512_cmplt_epi64_mask(value, _mm512_setzero_si512()), above,
                                   below);
}

INLINE __m256i scores_of(struct terms all)
{
    __m512i even = _mm512_and_si512(score16_of_8(all.even), _mm512_set1_epi64(0xffff));
    __m512i odd = _mm512_slli_epi64(score16_of_8(all.odd), 16);
    return _mm512_cvtepi64_epi32(_mm512_or_si512(even, odd));
}

/* ---- several terms of a head ---------------------------------------------------------------- */

#define TERMS_TOGETHER 8u
#define AHEAD_BYTES    4096u
#define TERMS_SLOW     5u /* so many products of a vector of keys take longer than reading it */

/* A head of a group, and the first of its terms. */
struct head {
    const uint8_t *k;
    struct terms factors;
    uint32_t first;
};

/* largest[0 .. 1]: a term's, even and odd. */
INLINE void keep_largest(__m512i largest[2], struct terms term)
{
    largest[0] = _mm512_max_epi64(largest[0], term.even);
    largest[1] = _mm512_max_epi64(largest[1], term.odd);
}

/* `all` with n terms of a head; or each term, without its offset, raises its own `largest`, where
 * that is not NULL. A vector of keys is read once for all terms, and each has a sum, from which the
 * surplus is taken last: a sum that starts with it is not kept in a register (GCC 12). n, bits, and
 * whether largest is NULL: constants, for the compiler. */
INLINE struct terms terms_together(const struct score_call *c, struct terms all,
                                   const struct head *h, uint32_t n, uint32_t bits,
                                   __m512i (*largest)[2])
{
    const uint8_t *k = h->k;
    const int8_t *q = c->words + h->first * c->term_bytes;
    const uint32_t n_words = c->n_words, term_bytes = c->term_bytes;
    __m512i sums[TERMS_TOGETHER]; /* registers: every index is a constant */
#pragma GCC unroll 8
    for (uint32_t t = 0; t < n; t++)
        sums[t] = _mm512_setzero_si512();
    for (uint32_t w = 0; w < n_words; w++, k += VECTOR_BYTES, q += 32 / bits) {
        const uint8_t *ahead = k + AHEAD_BYTES;
        if (n >= TERMS_SLOW)
            _mm_prefetch((const void *)(ahead < c->end ? ahead : c->end), _MM_HINT_T0);
#pragma GCC unroll 8
        for (uint32_t t = 0; t < n; t++)
            sums[t] = step_at(sums[t], k, q + t * term_bytes, bits);
    }
#pragma GCC unroll 8
    for (uint32_t t = 0; t < n; t++) {
        uint32_t at = h->first + t;
        sums[t] = _mm512_sub_epi32(sums[t], _mm512_set1_epi32(c->surplus[at]));
        if (largest)
            keep_largest(largest[at], shifted(sums[t], h->factors, c->shifts[at]));
        else
            all = combined(all, term_of(c, sums[t], h->factors, at), true);
    }
    return all;
}

INLINE struct terms terms_of(const struct score_call *c, struct terms all, const struct head *h,
                             uint32_t n, uint32_t bits, __m512i (*largest)[2])
{
    switch (n) {
#define CASE(N)                                                                                    \
    case N:                                                                                        \
        return terms_together(c, all, h, N, bits, largest)
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
        CASE(6);
        CASE(7);
        CASE(8);
#undef CASE
    default:
        return terms_together(c, all, h, 1, bits, largest);
    }
}

/* ---- a call --------------------------------------------------------------------------------- */

/* One term a head: its score for sixteen tokens; `largest`, NULL or not, as in terms_together. */
INLINE struct terms of_single_terms(const struct score_call *c, const uint8_t *group, uint32_t bits,
                                    __m512i (*largest)[2])
{
    const uint8_t *k = group + kv_group_mantissas_at(c->geometry);
    __m512i none = c->largest ? _mm512_set1_epi64(INT64_MIN) : _mm512_setzero_si512();
    struct terms all = {none, none};
    for (uint32_t t = 0; t < c->terms; t++, k += c->n_words * VECTOR_BYTES) {
        __m512i product =
            products(k, c->words + t * c->term_bytes, c->n_words, c->surplus[t], bits);
        struct terms factors = factors_of(group + t * KV_GROUP_TOKENS);
        if (largest)
            keep_largest(largest[t], shifted(product, factors, c->shifts[t]));
        else
            all = combined(all, term_of(c, product, factors, t), c->largest);
    }
    return all;
}

/* Several terms a head. */
INLINE struct terms of_several_terms(const struct score_call *c, const uint8_t *group,
                                     uint32_t bits, __m512i (*largest)[2])
{
    __m512i none = _mm512_set1_epi64(INT64_MIN);
    struct terms all = {none, none};
    struct head h = {.k = group + kv_group_mantissas_at(c->geometry)};
    for (; h.first < c->terms; h.k += c->n_words * VECTOR_BYTES, group += KV_GROUP_TOKENS) {
        h.factors = factors_of(group);
        for (uint32_t n, left = c->share; left > 0; left -= n, h.first += n) {
            n = left < TERMS_TOGETHER ? left : TERMS_TOGETHER;
            all = terms_of(c, all, &h, n, bits, largest);
        }
    }
    return all;
}

INLINE struct terms of_group(const struct score_call *c, const uint8_t *group, uint32_t bits,
                             __m512i (*largest)[2])
{
    return c->share == 1 ? of_single_terms(c, group, bits, largest)
                         : of_several_terms(c, group, bits, largest);
}

/* bits: a constant, for the compiler. */
INLINE void score_groups(const struct score_call *c, const uint8_t *groups, uint32_t n,
                         uint16_t *scores, uint32_t bits)
{
    uint32_t bytes = kv_group_bytes(c->geometry);
    for (; n >= KV_GROUP_TOKENS; n -= KV_GROUP_TOKENS, groups += bytes, scores += KV_GROUP_TOKENS)
        _mm256_storeu_si256((void *)scores, scores_of(of_group(c, groups, bits, NULL)));
    if (n > 0)
        _mm256_mask_storeu_epi16(scores, (__mmask16)((1u << n) - 1),
                                 scores_of(of_group(c, groups, bits, NULL)));
}

INLINE void make_call(struct score_call *c, const struct kv_geometry *geometry,
                      const struct kv_query *query, const uint8_t *end)
{
    int32_t one = kv_digest_bits(geometry) == 8 ? SURPLUS8 : KV_NIBBLE_BIAS;
    score_call_make(c, geometry, query, end);
    for (uint32_t t = 0; t < c->terms; t++)
        c->surplus[t] = one * sum_of(c->words + t * c->term_bytes, c->term_bytes);
}

INLINE void score_lanes512(const struct kv_geometry *geometry, const struct kv_query *query,
                           const uint8_t *groups, uint32_t n, uint16_t *scores)
{
    struct score_call c;
    if (n == 0)
        return;
    make_call(&c, geometry, query, score_call_end(geometry, groups, kv_groups_touched(0, n), 1));
    if (kv_digest_bits(geometry) == 8)
        score_groups(&c, groups, n, scores, 8);
    else
        score_groups(&c, groups, n, scores, 4);
}

/* ---- the largest of each term --------------------------------------------------------------- */

/* Tokens 0-7 and 8-15 from even and odd ones. */
INLINE struct terms in_order(__m512i even, __m512i odd)
{
    const __m512i low = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
    const __m512i high = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
    return (struct terms){_mm512_permutex2var_epi64(even, low, odd),
                          _mm512_permutex2var_epi64(even, high, odd)};
}

INLINE void largest_lanes512(const struct kv_geometry *geometry, const struct kv_query *query,
                             const struct kv_group_steps *of, int64_t (*largest)[KV_GROUP_TOKENS])
{
    uint64_t step = (uint64_t)of->every * kv_group_bytes(geometry);
    const uint8_t *group = of->groups;
    __m512i kept[KV_MAX_HEADS][2];
    struct score_call c;
    if (of->n == 0)
        return;
    make_call(&c, geometry, query, score_call_end(geometry, group, of->n, of->every));
    for (uint32_t t = 0; t < c.terms; t++)
        kept[t][0] = kept[t][1] = _mm512_set1_epi64(INT64_MIN);
    for (uint32_t i = 0; i < of->n; i++, group += step) {
        if (kv_digest_bits(geometry) == 8)
            of_group(&c, group, 8, kept);
        else
            of_group(&c, group, 4, kept);
    }
    for (uint32_t t = 0; t < c.terms; t++) {
        struct terms own = in_order(kept[t][0], kept[t][1]);
        _mm512_storeu_si512(largest[t], _mm512_max_epi64(_mm512_loadu_si512(largest[t]), own.even));
        _mm512_storeu_si512(largest[t] + 8,
                            _mm512_max_epi64(_mm512_loadu_si512(largest[t] + 8), own.odd));
    }
}
