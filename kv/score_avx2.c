/*
 * kv/score_avx2.c - the integer score with AVX2, bit-equal to kv_score_reference.
 *
 * |q| as unsigned bytes times sign(k, q) as signed bytes is q * k (maddubs): a pair of products is
 * at most 2 * 127 * 127 = 32258, so the 16-bit sums never saturate. A digest holds no -128
 * (kv/digest.c), whose sign could not be flipped. Integer sums have no order, so nothing depends on
 * how lanes are added up. No load goes beyond a head's own bytes: the rest of a head dimension that
 * is no multiple of 32 is taken in steps of 16, 8 and 1. Concurrency: pure functions. On other
 * machines it is the reference.
 */
#include "kv/score.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

int kv_score_has_avx2(void)
{
    return __builtin_cpu_supports("avx2") ? 1 : 0;
}

AVX2 static inline __m256i products32(__m256i q, __m256i k)
{
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(k, q));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

AVX2 static inline __m128i products16(__m128i q, __m128i k)
{
    __m128i pairs = _mm_maddubs_epi16(_mm_abs_epi8(q), _mm_sign_epi8(k, q));
    return _mm_madd_epi16(pairs, _mm_set1_epi16(1));
}

AVX2 static inline int32_t sum_lanes(__m128i four)
{
    __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, _MM_SHUFFLE(1, 0, 3, 2)));
    __m128i one = _mm_add_epi32(two, _mm_shuffle_epi32(two, _MM_SHUFFLE(2, 3, 0, 1)));
    return _mm_cvtsi128_si32(one);
}

AVX2 static inline int32_t head_product(const int8_t *q, const int8_t *k, uint32_t head_dim)
{
    __m256i wide = _mm256_setzero_si256();
    uint32_t i = 0;
    for (; i + 32 <= head_dim; i += 32)
        wide = _mm256_add_epi32(wide, products32(_mm256_loadu_si256((const void *)(q + i)),
                                                 _mm256_loadu_si256((const void *)(k + i))));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    if (i + 16 <= head_dim) {
        four = _mm_add_epi32(four, products16(_mm_loadu_si128((const void *)(q + i)),
                                              _mm_loadu_si128((const void *)(k + i))));
        i += 16;
    }
    if (i + 8 <= head_dim) {
        four = _mm_add_epi32(four, products16(_mm_loadl_epi64((const void *)(q + i)),
                                              _mm_loadl_epi64((const void *)(k + i))));
        i += 8;
    }
    int32_t sum = sum_lanes(four);
    for (; i < head_dim; i++)
        sum += (int32_t)q[i] * k[i];
    return sum;
}

AVX2 void kv_score_avx2(const struct kv_geometry *g, const struct kv_query *query,
                        const int8_t *mantissas, const uint8_t *exponents, uint32_t n,
                        uint16_t *scores)
{
    uint32_t dims = kv_key_dims(g);
    for (uint32_t t = 0; t < n; t++) {
        const int8_t *k = mantissas + (uint64_t)t * dims;
        const uint8_t *e = exponents + (uint64_t)t * g->n_kv_heads;
        uint64_t sum = 0;
        int64_t maximum = INT64_MIN;
        for (uint32_t h = 0; h < g->n_kv_heads; h++) {
            int32_t product =
                head_product(query->mantissas + h * g->head_dim, k + h * g->head_dim, g->head_dim);
            uint64_t term = (uint64_t)(int64_t)product << ((e[h] + query->shifts[h]) & 63u);
            sum += term;
            maximum = (int64_t)term > maximum ? (int64_t)term : maximum;
        }
        scores[t] = kv_score16(query->importance == KV_IMPORTANCE_MAX ? maximum : (int64_t)sum);
    }
}

#else

int kv_score_has_avx2(void)
{
    return 0;
}

void kv_score_avx2(const struct kv_geometry *g, const struct kv_query *query,
                   const int8_t *mantissas, const uint8_t *exponents, uint32_t n, uint16_t *scores)
{
    kv_score_reference(g, query, mantissas, exponents, n, scores);
}

#endif
