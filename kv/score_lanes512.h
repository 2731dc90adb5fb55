/*
 * kv/score_lanes512.h - the integer score on 512-bit vectors, but for the inner product's step.
 *
 * Included by score_avx512.c and score_avx512vnni.c alone, which define before:
 *   TARGET           the target attribute;
 *   step(acc, k, q)  acc + sums of four neighbouring products of signed bytes, per 32-bit lane,
 *                    beside a constant of q;
 *   surplus(q)       the sum of all lanes of that constant.
 * A pair is one head of one token. Sixteen pairs that follow one another in memory go together:
 * their accumulators are added up across lanes by a transposition. When sixteen tokens have all
 * their products, these are transposed once more, and shifting, combining and mapping to 16 bits
 * work on sixteen tokens at once. So the digests are read once and strictly in memory order, which
 * is what the hardware's prefetchers want (prefetching in software made it slower: `make bench`).
 * Loads are masked to a head's own bytes. Heads of 8, 16 and 32 dimensions lie several to a vector
 * where tokens fill whole vectors. Sums of integers have no order, so the result is that of
 * kv_score_reference, for damaged exponents too. Concurrency: pure functions.
 */
#ifndef HILL_KV_SCORE_LANES512_H
#define HILL_KV_SCORE_LANES512_H

#include <immintrin.h>
#include <string.h>

#include "kv/score.h"

#define INLINE TARGET static inline __attribute__((always_inline))
#define GROUP  16u /* tokens, and pairs, that go together */

struct call {
    const struct kv_geometry *geometry;
    const struct kv_query *query;
    uint32_t pattern_bytes; /* a multiple of 64; 0: pairs one to a vector */
    int32_t surplus[KV_MAX_KV_HEADS];
    int32_t products[GROUP * KV_MAX_KV_HEADS + GROUP]; /* [token][head] of the group */
    int8_t pattern[KV_MAX_KV_HEADS * 32]; /* the query as it lies beside the keys' vectors */
};

/* ---- sums across lanes ---------------------------------------------------------------------- */

INLINE __m512i add_unpacked32(__m512i a, __m512i b)
{
    return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}

INLINE __m512i add_unpacked64(__m512i a, __m512i b)
{
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

INLINE __m512i add_quarters(__m512i a, __m512i b)
{
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

/* Lane i: the sum of all lanes of v[i]. */
INLINE __m512i sums_of_16(__m512i v[16])
{
    const __m512i order = _mm512_setr_epi32(0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        v[i] = add_unpacked32(v[i], v[i + 8]);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        v[i] = add_unpacked64(v[i], v[i + 4]);
    return _mm512_permutexvar_epi32(
        order, add_quarters(add_quarters(v[0], v[2]), add_quarters(v[1], v[3])));
}

/* Lanes 2i, 2i + 1: the sums of the low and of the high half of v[i]. */
INLINE __m512i sums_of_8(__m512i v[8])
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        v[i] = add_unpacked32(v[i], v[i + 4]);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        v[i] = add_unpacked64(v[i], v[i + 2]);
    return _mm512_permutexvar_epi32(order, add_quarters(v[0], v[1]));
}

/* Lanes 4i ... 4i + 3: the sums of the quarters of v[i]. */
INLINE __m512i sums_of_4(__m512i v[4])
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(
        order, add_unpacked64(add_unpacked32(v[0], v[2]), add_unpacked32(v[1], v[3])));
}

/* Lanes 8i ... 8i + 7: the sums of the lanes of v[i], two and two. */
INLINE __m512i sums_of_2(__m512i v[2])
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_add_epi32(
        _mm512_permutex2var_epi32(v[0], even, v[1]),
        _mm512_permutex2var_epi32(v[0], _mm512_or_si512(even, _mm512_set1_epi32(1)), v[1]));
}

/* ---- sixteen pairs -------------------------------------------------------------------------- */

INLINE __m512i load_tail(const int8_t *p, uint32_t n)
{
    return _mm512_maskz_loadu_epi8(((__mmask64)1 << n) - 1, p);
}

INLINE __m512i pair_lanes(const int8_t *k, const int8_t *q, uint32_t head_dim)
{
    __m512i sum = _mm512_setzero_si512();
    uint32_t i = 0;
    for (; i + 64 <= head_dim; i += 64)
        sum = step(sum, _mm512_loadu_si512(k + i), _mm512_loadu_si512(q + i));
    if (i < head_dim)
        sum = step(sum, load_tail(k + i, head_dim - i), load_tail(q + i, head_dim - i));
    return sum;
}

/* The first pair's head is `head`. */
INLINE __m512i products_wide(const struct call *c, const int8_t *k, uint32_t head)
{
    uint32_t head_dim = c->geometry->head_dim, n_heads = c->geometry->n_kv_heads;
    __m512i sums[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        sums[i] =
            pair_lanes(k + (uint64_t)i * head_dim, c->query->mantissas + head * head_dim, head_dim);
        head = head + 1 == n_heads ? 0 : head + 1;
    }
    return sums_of_16(sums);
}

/* `at`: where in the pattern the first pair lies. */
INLINE __m512i pattern_lanes(const struct call *c, const int8_t *k, uint32_t *at)
{
    __m512i q = _mm512_loadu_si512(c->pattern + *at);
    *at = *at + 64 == c->pattern_bytes ? 0 : *at + 64;
    return step(_mm512_setzero_si512(), _mm512_loadu_si512(k), q);
}

INLINE __m512i products_narrow(const struct call *c, const int8_t *k, uint32_t at)
{
    uint32_t head_dim = c->geometry->head_dim;
    __m512i sums[8];
    if (head_dim == 8) {
        sums[0] = pattern_lanes(c, k, &at);
        sums[1] = pattern_lanes(c, k + 64, &at);
        return sums_of_2(sums);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        sums[i] = pattern_lanes(c, k + (ptrdiff_t)i * 64, &at);
    if (head_dim == 16)
        return sums_of_4(sums);
#pragma GCC unroll 4
    for (int i = 4; i < 8; i++)
        sums[i] = pattern_lanes(c, k + (ptrdiff_t)i * 64, &at);
    return sums_of_8(sums);
}

/* The products of n tokens, from k on, into c->products. */
INLINE void multiply_group(struct call *c, const int8_t *k, uint32_t n)
{
    uint32_t head_dim = c->geometry->head_dim, n_heads = c->geometry->n_kv_heads;
    uint32_t pairs = n * n_heads, bytes = GROUP * head_dim;
    int8_t last[GROUP * KV_MAX_HEAD_DIM];
    for (uint32_t pair = 0; pair < pairs; pair += GROUP, k += bytes) {
        __m512i products;
        if (pairs - pair < GROUP) { /* no load beyond the call's bytes */
            memset(last, 0, bytes);
            memcpy(last, k, (size_t)(pairs - pair) * head_dim);
            k = last; /* the loop ends after it */
        }
        if (c->pattern_bytes)
            products = products_narrow(c, k, pair * head_dim % c->pattern_bytes);
        else
            products = products_wide(c, k, pair % n_heads);
        _mm512_storeu_si512(c->products + pair, products);
    }
}

/* ---- exponents, terms, scores --------------------------------------------------------------- */

/* The exponent bytes of heads *first .. *first + 3 (with h among them, as many as there are) of
 * each token, one token a lane. Nothing is read beyond the group's own bytes. */
INLINE __m512i exponents_of(const uint8_t *exponents, uint32_t n, uint32_t n_heads, uint32_t h,
                            uint32_t *first)
{
    __mmask16 some = (__mmask16)(0xffffu >> (GROUP - n));
    *first = 0;
    if (n_heads == 1)
        return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(some, exponents));
    if (n_heads == 2)
        return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, exponents));
    if (n_heads == 3) {
        uint32_t words[GROUP] = {0};
        for (uint32_t t = 0; t < n; t++)
            words[t] = exponents[3 * t] | (uint32_t)exponents[3 * t + 1] << 8 |
                       (uint32_t)exponents[3 * t + 2] << 16;
        return _mm512_loadu_si512(words);
    }
    __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    *first = h + 4 <= n_heads ? h : n_heads - 4;
    return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), some,
                                       _mm512_mullo_epi32(lane, _mm512_set1_epi32((int)n_heads)),
                                       exponents + *first, 1);
}

struct terms { /* of tokens 0-7 and 8-15, int64 */
    __m512i low, high;
};

INLINE struct terms terms_of(__m512i products, __m512i exponents, uint32_t byte, uint32_t shift)
{
    __m512i bits = _mm512_and_si512(_mm512_srl_epi32(exponents, _mm_cvtsi32_si128((int)(8 * byte))),
                                    _mm512_set1_epi32(255));
    bits = _mm512_and_si512(_mm512_add_epi32(bits, _mm512_set1_epi32((int)shift)),
                            _mm512_set1_epi32(63));
    return (struct terms){
        _mm512_sllv_epi64(_mm512_cvtepi32_epi64(_mm512_castsi512_si256(products)),
                          _mm512_cvtepu32_epi64(_mm512_castsi512_si256(bits))),
        _mm512_sllv_epi64(_mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(products, 1)),
                          _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(bits, 1)))};
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

/* Four heads' products, from `from` on: by[j] holds head j, a token a lane. */
INLINE void four_heads(const int32_t *from, uint32_t n_heads, __m512i by[4])
{
    __m512i v[4];
#pragma GCC unroll 4
    for (uint32_t t = 0; t < 4; t++) {
        __m256i low = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128((const void *)(from + t * n_heads))),
            _mm_loadu_si128((const void *)(from + (t + 4) * n_heads)), 1);
        __m256i high = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128((const void *)(from + (t + 8) * n_heads))),
            _mm_loadu_si128((const void *)(from + (t + 12) * n_heads)), 1);
        v[t] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
    __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]);
    __m512i c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    by[0] = _mm512_unpacklo_epi64(a, c);
    by[1] = _mm512_unpackhi_epi64(a, c);
    by[2] = _mm512_unpacklo_epi64(b, d);
    by[3] = _mm512_unpackhi_epi64(b, d);
}

INLINE struct terms combined(struct terms a, struct terms b, bool largest)
{
    if (largest)
        return (struct terms){_mm512_max_epi64(a.low, b.low), _mm512_max_epi64(a.high, b.high)};
    return (struct terms){_mm512_add_epi64(a.low, b.low), _mm512_add_epi64(a.high, b.high)};
}

/* The scores of the n tokens whose products are there. */
INLINE void combine_group(const struct call *c, const uint8_t *exponents, uint32_t n,
                          uint16_t *scores)
{
    uint32_t n_heads = c->geometry->n_kv_heads, first;
    bool largest = c->query->importance != KV_IMPORTANCE_SUM;
    __m512i none = largest ? _mm512_set1_epi64(INT64_MIN) : _mm512_setzero_si512();
    struct terms all = {none, none};
    for (uint32_t h = 0; h < n_heads; h += 4) {
        __m512i by[4], bytes = exponents_of(exponents, n, n_heads, h, &first);
        four_heads(c->products + h, n_heads, by);
#pragma GCC unroll 4
        for (uint32_t j = 0; j < 4; j++) {
            if (h + j >= n_heads)
                break;
            __m512i product = _mm512_sub_epi32(by[j], _mm512_set1_epi32(c->surplus[h + j]));
            all = combined(all, terms_of(product, bytes, h + j - first, c->query->shifts[h + j]),
                           largest);
        }
    }
    __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(score16_of_8(all.low)),
                                           score16_of_8(all.high), 1);
    _mm256_mask_storeu_epi16(scores, (__mmask16)(0xffffu >> (GROUP - n)), both);
}

/* Several heads to a vector, where a head's bytes divide the vector's and vectors and tokens come
 * out even. */
INLINE void lay_pattern(struct call *c)
{
    uint32_t dims = kv_key_dims(c->geometry), head_dim = c->geometry->head_dim;
    c->pattern_bytes = 0;
    if ((head_dim != 8 && head_dim != 16 && head_dim != 32) || (dims % 64 != 0 && 64 % dims != 0))
        return;
    c->pattern_bytes = dims < 64 ? 64 : dims;
    for (uint32_t at = 0; at < c->pattern_bytes; at += dims)
        memcpy(c->pattern + at, c->query->mantissas, dims);
}

INLINE void score_lanes512(const struct kv_geometry *geometry, const struct kv_query *query,
                           const int8_t *mantissas, const uint8_t *exponents, uint32_t n,
                           uint16_t *scores)
{
    uint64_t dims = kv_key_dims(geometry);
    struct call c; /* not cleared: what is read of it has been written */
    c.geometry = geometry;
    c.query = query;
    lay_pattern(&c);
    for (uint32_t h = 0; h < geometry->n_kv_heads; h++)
        c.surplus[h] = surplus(query->mantissas + h * geometry->head_dim, geometry->head_dim);
    if (n < GROUP || geometry->n_kv_heads % 4 != 0)
        memset(c.products, 0, sizeof(c.products)); /* lanes without a token are computed too */
    for (uint32_t done = 0; done < n; done += GROUP) {
        uint32_t some = n - done < GROUP ? n - done : GROUP;
        multiply_group(&c, mantissas + done * dims, some);
        combine_group(&c, exponents + (uint64_t)done * geometry->n_kv_heads, some, scores + done);
    }
}

#endif
