/*
 * kv/score_avx2.c - the integer score with AVX2, bit-equal to kv_score_reference.
 *
 * |q| as unsigned bytes times sign(k, q) as signed bytes is q * k (maddubs): a pair of products is
 * at most 2 * 127 * 127 = 32258, so the 16-bit sums never saturate. A digest holds no -128
 * (kv/digest.c), whose sign could not be flipped. Integer sums have no order, so nothing depends on
 * how lanes are added up: eight heads' lanes by one transposition. No load goes beyond a head's own
 * bytes: the rest of a head dimension that is no multiple of 32 is taken in steps of 16, 8 and 1.
 * Concurrency: pure functions. On other machines it is the reference.
 */
#include "kv/score.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2  __attribute__((target("avx2")))
#define GROUP 8u /* tokens whose products are worked out before they are combined */

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

/* Lanes whose sum is the product of a pair: one head of one token. */
AVX2 static inline __m256i pair_lanes(const int8_t *q, const int8_t *k, uint32_t head_dim)
{
    __m256i wide = _mm256_setzero_si256();
    uint32_t i = 0;
    for (; i + 32 <= head_dim; i += 32)
        wide = _mm256_add_epi32(wide, products32(_mm256_loadu_si256((const void *)(q + i)),
                                                 _mm256_loadu_si256((const void *)(k + i))));
    if (i == head_dim)
        return wide;
    __m128i four = _mm_setzero_si128();
    if (i + 16 <= head_dim) {
        four = products16(_mm_loadu_si128((const void *)(q + i)),
                          _mm_loadu_si128((const void *)(k + i)));
        i += 16;
    }
    if (i + 8 <= head_dim) {
        four = _mm_add_epi32(four, products16(_mm_loadl_epi64((const void *)(q + i)),
                                              _mm_loadl_epi64((const void *)(k + i))));
        i += 8;
    }
    int32_t rest = 0;
    for (; i < head_dim; i++)
        rest += (int32_t)q[i] * k[i];
    four = _mm_add_epi32(four, _mm_cvtsi32_si128(rest));
    return _mm256_add_epi32(wide, _mm256_zextsi128_si256(four));
}

AVX2 static inline __m256i add_unpacked32(__m256i a, __m256i b)
{
    return _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}

AVX2 static inline __m256i add_unpacked64(__m256i a, __m256i b)
{
    return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

/* Lane i: the sum of all lanes of v[i]. */
AVX2 static inline __m256i sums_of_8(const __m256i v[8])
{
    __m256i a = add_unpacked64(add_unpacked32(v[0], v[4]), add_unpacked32(v[2], v[6]));
    __m256i b = add_unpacked64(add_unpacked32(v[1], v[5]), add_unpacked32(v[3], v[7]));
    __m256i all = _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                                   _mm256_permute2x128_si256(a, b, 0x31));
    return _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7));
}

/* The products of n pairs that follow one another in memory, the first of them of head 0; writes
 * up to the next multiple of eight. */
AVX2 static void multiply(const struct kv_geometry *g, const int8_t *q, const int8_t *k, uint32_t n,
                          int32_t *products)
{
    uint32_t head = 0;
    for (uint32_t pair = 0; pair < n; pair += 8) {
        __m256i lanes[8];
#pragma GCC unroll 8
        for (uint32_t i = 0; i < 8; i++) {
            lanes[i] = pair + i < n ? pair_lanes(q + head * g->head_dim,
                                                 k + (pair + i) * g->head_dim, g->head_dim)
                                    : _mm256_setzero_si256();
            head = head + 1 == g->n_kv_heads ? 0 : head + 1;
        }
        _mm256_storeu_si256((void *)(products + pair), sums_of_8(lanes));
    }
}

static uint16_t combine(const struct kv_geometry *g, const struct kv_query *query,
                        const int32_t *products, const uint8_t *exponents)
{
    uint64_t sum = 0;
    int64_t maximum = INT64_MIN;
    for (uint32_t h = 0; h < g->n_kv_heads; h++) {
        uint64_t term = (uint64_t)(int64_t)products[h] << ((exponents[h] + query->shifts[h]) & 63u);
        sum += term;
        maximum = (int64_t)term > maximum ? (int64_t)term : maximum;
    }
    return kv_score16(query->importance == KV_IMPORTANCE_SUM ? (int64_t)sum : maximum);
}

AVX2 void kv_score_avx2(const struct kv_geometry *g, const struct kv_query *query,
                        const int8_t *mantissas, const uint8_t *exponents, uint32_t n,
                        uint16_t *scores)
{
    int32_t products[GROUP * KV_MAX_KV_HEADS];
    uint64_t dims = kv_key_dims(g), heads = g->n_kv_heads;
    for (uint32_t done = 0; done < n; done += GROUP) {
        uint32_t some = n - done < GROUP ? n - done : GROUP;
        multiply(g, query->mantissas, mantissas + done * dims, some * g->n_kv_heads, products);
        for (uint32_t t = 0; t < some; t++)
            scores[done + t] =
                combine(g, query, products + t * heads, exponents + (done + t) * heads);
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
