/*
 * kv/score_avx2.c - the integer score with AVX2, bit-equal to kv_score_reference.
 *
 * A word of a group's sixteen tokens is two vectors (kv/group.h), a query's word goes into every
 * lane. |k| as unsigned bytes times q, negated where k is negative, as signed bytes is q * k
 * (maddubs): a pair of products is at most 2 * 128 * 127 = 32512, so the 16-bit sums never
 * saturate; nibbles are unsigned already, and their bias times the query's sum is taken off each
 * product. A query's digest holds no -128 (kv/digest.c), which could not be negated. Integer sums
 * have no order; products, terms and sums stay in a token's lane. Concurrency: pure functions. On
 * other machines it is the reference.
 */
#include <stdbool.h>
#include <string.h>

#include "kv/score.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

int kv_score_has_avx2(void)
{
    return __builtin_cpu_supports("avx2") ? 1 : 0;
}

struct products { /* of tokens 0-7 and 8-15 */
    __m256i low, high;
};

AVX2 static inline __m256i step(__m256i sums, __m256i k, __m256i q)
{
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(k), _mm256_sign_epi8(q, k));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

/* Nibbles: four products are at most 4 * 15 * 127 = 7620. */
AVX2 static inline __m256i step4(__m256i sums, __m256i k, __m256i q, __m256i r)
{
    const __m256i nibbles = _mm256_set1_epi8(15);
    __m256i low = _mm256_and_si256(k, nibbles);
    __m256i high = _mm256_and_si256(_mm256_srli_epi32(k, 4), nibbles);
    __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(low, q), _mm256_maddubs_epi16(high, r));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

AVX2 static inline __m256i word_of(const int8_t *q) /* in every lane */
{
    int32_t bytes;
    memcpy(&bytes, q, sizeof bytes);
    return _mm256_set1_epi32(bytes);
}

/* Of one head, on top of `start`. */
AVX2 static inline __attribute__((always_inline)) struct products
products_of(const uint8_t *k, const int8_t *q, uint32_t n_words, int32_t start, uint32_t bits)
{
    struct products sums = {_mm256_set1_epi32(start), _mm256_set1_epi32(start)};
    for (uint32_t w = 0; w < n_words; w++, k += 64) {
        __m256i low = _mm256_loadu_si256((const void *)k);
        __m256i high = _mm256_loadu_si256((const void *)(k + 32));
        __m256i all = word_of(q);
        if (bits == 8) {
            sums.low = step(sums.low, low, all);
            sums.high = step(sums.high, high, all);
        } else {
            __m256i next = word_of(q + 4);
            sums.low = step4(sums.low, low, all, next);
            sums.high = step4(sums.high, high, all, next);
        }
        q += 32 / bits;
    }
    return sums;
}

/* What biased nibbles of keys make too much of a term of n words. */
static int32_t start_of(const int8_t *q, uint32_t n, uint32_t bits)
{
    int32_t sum = 0;
    for (uint32_t i = 0; bits == 4 && i < n; i++)
        sum += q[i];
    return -KV_NIBBLE_BIAS * sum;
}

/* Four tokens' terms on top of those of the heads before. */
AVX2 static inline __m256i combined(__m256i all, __m128i products, __m128i bits, __m256i offset,
                                    bool largest)
{
    __m256i terms = _mm256_sllv_epi64(_mm256_cvtepi32_epi64(products), _mm256_cvtepu32_epi64(bits));
    terms = _mm256_sub_epi64(terms, offset);
    if (largest)
        return _mm256_blendv_epi8(all, terms, _mm256_cmpgt_epi64(terms, all));
    return _mm256_add_epi64(all, terms);
}

/* Eight tokens' terms of a head: all[0] and all[1], four each. */
AVX2 static inline void combine8(__m256i all[2], __m256i products, const uint8_t *exponents,
                                 uint32_t shift, int64_t offset, bool largest)
{
    __m256i less = _mm256_set1_epi64x(offset);
    __m256i bits = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)exponents));
    bits = _mm256_and_si256(_mm256_add_epi32(bits, _mm256_set1_epi32((int)shift)),
                            _mm256_set1_epi32(63));
    all[0] = combined(all[0], _mm256_castsi256_si128(products), _mm256_castsi256_si128(bits), less,
                      largest);
    all[1] = combined(all[1], _mm256_extracti128_si256(products, 1),
                      _mm256_extracti128_si256(bits, 1), less, largest);
}

AVX2 void kv_largest_avx2(const struct kv_group_head *keys, const int8_t *q, uint8_t shift,
                          int64_t *largest)
{
    int32_t start = start_of(q, keys->n_words * (32 / keys->bits), keys->bits);
    struct products p = keys->bits == 8 ? products_of(keys->words, q, keys->n_words, start, 8)
                                        : products_of(keys->words, q, keys->n_words, start, 4);
    __m256i all[4];
    for (uint32_t i = 0; i < 4; i++)
        all[i] = _mm256_loadu_si256((const void *)(largest + 4 * i));
    combine8(all, p.low, keys->exponents, shift, 0, true);
    combine8(all + 2, p.high, keys->exponents + 8, shift, 0, true);
    for (uint32_t i = 0; i < 4; i++)
        _mm256_storeu_si256((void *)(largest + 4 * i), all[i]);
}

struct call {
    const struct kv_geometry *geometry;
    const struct kv_query *query;
    uint32_t terms;
    const int8_t *words; /* the query's, [terms][head words] */
    int32_t start[KV_MAX_HEADS];
    int8_t room[KV_QUERY_WORDS_ROOM];
};

/* The first n scores of a group. */
AVX2 static inline __attribute__((always_inline)) void
score_group(const struct call *c, const uint8_t *group, uint32_t n, uint16_t *scores, uint32_t bits)
{
    const struct kv_geometry *g = c->geometry;
    bool largest = c->query->importance != KV_IMPORTANCE_SUM;
    __m256i none = largest ? _mm256_set1_epi64x(INT64_MIN) : _mm256_setzero_si256();
    __m256i all[4] = {none, none, none, none};
    const uint8_t *k = group + kv_group_mantissas_at(g), *exponents = group;
    const int8_t *q = c->words;
    uint32_t n_words = kv_head_words(g), share = c->terms / g->n_kv_heads;
    int64_t values[KV_GROUP_TOKENS];
    for (uint32_t t = 0, next = share; t < c->terms; t++) {
        if (t == next) { /* the next KV head's */
            k += 64 * n_words;
            exponents += KV_GROUP_TOKENS;
            next += share;
        }
        struct products p = products_of(k, q, n_words, c->start[t], bits);
        int64_t offset = c->query->offsets ? c->query->offsets[t] : 0;
        combine8(all, p.low, exponents, c->query->shifts[t], offset, largest);
        combine8(all + 2, p.high, exponents + 8, c->query->shifts[t], offset, largest);
        q += n_words * (32 / bits);
    }
    for (uint32_t i = 0; i < 4; i++)
        _mm256_storeu_si256((void *)(values + 4 * i), all[i]);
    for (uint32_t t = 0; t < n; t++)
        scores[t] = kv_score16(values[t]);
}

/* bits: a constant, for the compiler. */
AVX2 static inline __attribute__((always_inline)) void score_groups(const struct call *c,
                                                                    const uint8_t *groups,
                                                                    uint32_t n, uint16_t *scores,
                                                                    uint32_t bits)
{
    uint32_t bytes = kv_group_bytes(c->geometry);
    for (uint32_t done = 0; done < n; done += KV_GROUP_TOKENS, groups += bytes)
        score_group(c, groups, n - done < KV_GROUP_TOKENS ? n - done : KV_GROUP_TOKENS,
                    scores + done, bits);
}

AVX2 void kv_score_avx2(const struct kv_geometry *g, const struct kv_query *query,
                        const uint8_t *groups, uint32_t n, uint16_t *scores)
{
    uint32_t bits = kv_digest_bits(g), head = kv_head_words(g) * kv_word_dims(g);
    struct call c; /* not cleared: what is read of it has been written */
    c.geometry = g;
    c.query = query;
    c.terms = kv_query_terms(g, query->importance);
    c.words = kv_query_words(g, c.terms, query->mantissas, c.room);
    for (uint32_t t = 0; t < c.terms; t++)
        c.start[t] = start_of(c.words + t * head, head, bits);
    if (bits == 8)
        score_groups(&c, groups, n, scores, 8);
    else
        score_groups(&c, groups, n, scores, 4);
}

#endif
