/*
 * kv/score_avx512.c - the integer score with AVX-512 (F, BW, VL, CD), bit-equal to
 * kv_score_reference; see score_lanes512.h.
 *
 * |k| as unsigned bytes times q, negated where k is negative, as signed bytes is q * k: a pair of
 * products is at most 2 * 128 * 127 = 32512, so the 16-bit sums never saturate. A query's digest
 * holds no -128 (kv/digest.c), which could not be negated. Concurrency: pure functions. On other
 * machines it is the reference.
 */
#include <stdbool.h>

#include "kv/score.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512cd")))

#define SURPLUS8 0

TARGET static inline __attribute__((always_inline)) __m512i step(__m512i sums, __m512i k, __m512i q)
{
    __m512i signed_q = _mm512_mask_sub_epi8(q, _mm512_movepi8_mask(k), _mm512_setzero_si512(), q);
    __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(k), signed_q);
    return _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}

/* four products of nibbles are at most 4 * 15 * 127 = 7620 */
TARGET static inline __attribute__((always_inline)) __m512i
step4(__m512i sums, __m512i low, __m512i high, __m512i q, __m512i r)
{
    __m512i pairs = _mm512_add_epi16(_mm512_maddubs_epi16(low, q), _mm512_maddubs_epi16(high, r));
    return _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}

#include "kv/score_lanes512.h"

int kv_score_has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
}

TARGET void kv_score_avx512(const struct kv_geometry *g, const struct kv_query *query,
                            const uint8_t *groups, uint32_t n, uint16_t *scores)
{
    score_lanes512(g, query, groups, n, scores);
}

TARGET void kv_largest_avx512(const struct kv_geometry *g, const struct kv_query *query,
                              const struct kv_group_steps *of, int64_t (*largest)[KV_GROUP_TOKENS])
{
    largest_lanes512(g, query, of, largest);
}

#endif
