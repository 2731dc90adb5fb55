/*
 * kv/score_avx512vnni.c - the integer score with AVX-512 and VNNI, bit-equal to kv_score_reference;
 * see score_lanes512.h.
 *
 * vpdpbusd multiplies unsigned with signed bytes: (k + 128) * q, four at a time into 32 bits,
 * exact. What that is too much, 128 times the sum of q, is taken off each product.
 * Concurrency: pure functions. On other machines it is the reference.
 */
#include <stdbool.h>

#include "kv/score.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512cd,avx512vnni")))

#define SURPLUS8 128

TARGET static inline __attribute__((always_inline)) __m512i step(__m512i sums, __m512i k, __m512i q)
{
    return _mm512_dpbusd_epi32(sums, _mm512_xor_si512(k, _mm512_set1_epi8(-128)), q);
}

TARGET static inline __attribute__((always_inline)) __m512i
step4(__m512i sums, __m512i low, __m512i high, __m512i q, __m512i r)
{
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sums, low, q), high, r);
}

#include "kv/score_lanes512.h"

int kv_score_has_avx512vnni(void)
{
    return kv_score_has_avx512() && __builtin_cpu_supports("avx512vnni");
}

TARGET void kv_score_avx512vnni(const struct kv_geometry *g, const struct kv_query *query,
                                const uint8_t *groups, uint32_t n, uint16_t *scores)
{
    score_lanes512(g, query, groups, n, scores);
}

TARGET void kv_largest_avx512vnni(const struct kv_geometry *g, const struct kv_query *query,
                                  const struct kv_group_steps *of,
                                  int64_t (*largest)[KV_GROUP_TOKENS])
{
    largest_lanes512(g, query, of, largest);
}

#endif
