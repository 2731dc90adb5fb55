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

#include "kv/score.h"

#define INLINE       TARGET static inline __attribute__((always_inline))
#define VECTOR_BYTES 64u

struct call {
    const struct kv_geometry *geometry;
    const struct kv_query *query;
    uint32_t terms, share; /* share: of a KV head */
    uint32_t n_words;      /* of a head */
    const int8_t *words;   /* the query's, [terms][head words] */
    int32_t surplus[KV_MAX_HEADS];
    int8_t room[KV_QUERY_WORDS_ROOM];
};

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

#define TERMS_TOGETHER 8u

/* Of n terms of one head, whose query words are term_bytes apart: a vector of keys is read once for
 * all of them, and each has a sum. n: a constant, for the compiler. */
INLINE void products_of_terms(const uint8_t *k, const int8_t *q, uint32_t n_words,
                              uint32_t term_bytes, const int32_t *surplus, uint32_t n,
                              uint32_t bits, __m512i *out)
{
    __m512i sums[TERMS_TOGETHER]; /* registers: every index is a constant */
#pragma GCC unroll 8
    for (uint32_t t = 0; t < n; t++)
        sums[t] = _mm512_set1_epi32(-surplus[t]);
    for (uint32_t w = 0; w < n_words; w++, k += VECTOR_BYTES, q += 32 / bits) {
#pragma GCC unroll 8
        for (uint32_t t = 0; t < n; t++)
            sums[t] = step_at(sums[t], k, q + t * term_bytes, bits);
    }
#pragma GCC unroll 8
    for (uint32_t t = 0; t < n; t++)
        out[t] = sums[t];
}

INLINE void products_together(const uint8_t *k, const int8_t *q, uint32_t n_words,
                              uint32_t term_bytes, const int32_t *surplus, uint32_t n,
                              uint32_t bits, __m512i *sums)
{
    switch (n) {
#define CASE(N)                                                                                    \
    case N:                                                                                        \
        products_of_terms(k, q, n_words, term_bytes, surplus, N, bits, sums);                      \
        break
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
        CASE(6);
        CASE(7);
        CASE(8);
#undef CASE
    default: /* 1 */
        sums[0] = products(k, q, n_words, surplus[0], bits);
    }
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

struct terms { /* of tokens 0-7 and 8-15, int64 */
    __m512i low, high;
};

/* Products times powers of two. */
INLINE struct terms shifted(__m512i product, const uint8_t *exponents, uint8_t shift)
{
    __m512i bits = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)exponents));
    bits =
        _mm512_and_si512(_mm512_add_epi32(bits, _mm512_set1_epi32(shift)), _mm512_set1_epi32(63));
    __m512i low = _mm512_sllv_epi64(_mm512_cvtepi32_epi64(_mm512_castsi512_si256(product)),
                                    _mm512_cvtepu32_epi64(_mm512_castsi512_si256(bits)));
    __m512i high = _mm512_sllv_epi64(_mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(product, 1)),
                                     _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(bits, 1)));
    return (struct terms){low, high};
}

INLINE struct terms term_of(const struct call *c, __m512i product, const uint8_t *exponents,
                            uint32_t t)
{
    const __m512i less = _mm512_set1_epi64(c->query->offsets ? c->query->offsets[t] : 0);
    struct terms term = shifted(product, exponents, c->query->shifts[t]);
    return (struct terms){_mm512_sub_epi64(term.low, less), _mm512_sub_epi64(term.high, less)};
}

INLINE struct terms combined(struct terms a, struct terms b, bool largest)
{
    if (largest)
        return (struct terms){_mm512_max_epi64(a.low, b.low), _mm512_max_epi64(a.high, b.high)};
    return (struct terms){_mm512_add_epi64(a.low, b.low), _mm512_add_epi64(a.high, b.high)};
}

/* kv_score16 of eight values. */
INLINE __m128i score16_of_8(__m512i value)
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
    return _mm512_cvtepi64_epi16(_mm512_mask_blend_epi64(
        _mm512_cmplt_epi64_mask(value, _mm512_setzero_si512()), above, below));
}

/* ---- a call --------------------------------------------------------------------------------- */

INLINE __m256i score_group(const struct call *c, const uint8_t *group, bool largest, uint32_t bits)
{
    uint32_t n_words = c->n_words, share = c->share, term_bytes = n_words * (32 / bits);
    const uint8_t *k = group + kv_group_mantissas_at(c->geometry), *exponents = group;
    const int8_t *q = c->words;
    __m512i none = largest ? _mm512_set1_epi64(INT64_MIN) : _mm512_setzero_si512();
    struct terms all = {none, none};
    for (uint32_t h = 0, t = 0; h < c->geometry->n_kv_heads; h++) {
        if (share == 1) {
            __m512i product = products(k, q, n_words, c->surplus[h], bits);
            all = combined(all, term_of(c, product, exponents, h), largest);
            q += term_bytes;
        }
        for (uint32_t n, left = share == 1 ? 0 : share; left > 0; left -= n) {
            __m512i sums[TERMS_TOGETHER];
            n = left < TERMS_TOGETHER ? left : TERMS_TOGETHER;
            products_together(k, q, n_words, term_bytes, c->surplus + t, n, bits, sums);
            for (uint32_t i = 0; i < n; i++, t++)
                all = combined(all, term_of(c, sums[i], exponents, t), largest);
            q += n * term_bytes;
        }
        k += n_words * VECTOR_BYTES;
        exponents += KV_GROUP_TOKENS;
    }
    return _mm256_inserti128_si256(_mm256_castsi128_si256(score16_of_8(all.low)),
                                   score16_of_8(all.high), 1);
}

/* kv_largest_fn. bits: a constant, for the compiler. */
INLINE void largest_of_bits(const struct kv_group_head *keys, const int8_t *q, uint8_t shift,
                            int64_t *largest, uint32_t bits)
{
    int32_t surplus =
        (bits == 8 ? SURPLUS8 : KV_NIBBLE_BIAS) * sum_of(q, keys->n_words * (32 / bits));
    __m512i product = products(keys->words, q, keys->n_words, surplus, bits);
    struct terms own = shifted(product, keys->exponents, shift);
    struct terms all = {_mm512_loadu_si512(largest), _mm512_loadu_si512(largest + 8)};
    all = combined(all, own, true);
    _mm512_storeu_si512(largest, all.low);
    _mm512_storeu_si512(largest + 8, all.high);
}

INLINE void largest_lanes512(const struct kv_group_head *keys, const int8_t *q, uint8_t shift,
                             int64_t *largest)
{
    if (keys->bits == 8)
        largest_of_bits(keys, q, shift, largest, 8);
    else
        largest_of_bits(keys, q, shift, largest, 4);
}

/* bits: a constant, for the compiler. */
INLINE void score_groups(const struct call *c, const uint8_t *groups, uint32_t n, uint16_t *scores,
                         uint32_t bits)
{
    uint32_t bytes = kv_group_bytes(c->geometry);
    bool largest = c->query->importance != KV_IMPORTANCE_SUM;
    for (; n >= KV_GROUP_TOKENS; n -= KV_GROUP_TOKENS, groups += bytes, scores += KV_GROUP_TOKENS)
        _mm256_storeu_si256((void *)scores, score_group(c, groups, largest, bits));
    if (n > 0)
        _mm256_mask_storeu_epi16(scores, (__mmask16)((1u << n) - 1),
                                 score_group(c, groups, largest, bits));
}

INLINE void score_lanes512(const struct kv_geometry *geometry, const struct kv_query *query,
                           const uint8_t *groups, uint32_t n, uint16_t *scores)
{
    uint32_t bits = kv_digest_bits(geometry);
    uint32_t head = kv_head_words(geometry) * kv_word_dims(geometry);
    struct call c; /* not cleared: what is read of it has been written */
    c.geometry = geometry;
    c.query = query;
    c.terms = kv_query_terms(geometry, query->importance);
    c.share = c.terms / geometry->n_kv_heads;
    c.n_words = kv_head_words(geometry);
    c.words = kv_query_words(geometry, c.terms, query->mantissas, c.room);
    for (uint32_t t = 0; t < c.terms; t++)
        c.surplus[t] = (bits == 8 ? SURPLUS8 : KV_NIBBLE_BIAS) * sum_of(c.words + t * head, head);
    if (bits == 8)
        score_groups(&c, groups, n, scores, 8);
    else
        score_groups(&c, groups, n, scores, 4);
}
