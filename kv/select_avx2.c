/*
 * kv/select_avx2.c - counting and listing scores from a threshold on, sixteen at a time.
 *
 * Called by select.c, where the CPU has AVX2. Pure functions.
 */
#include <stdbool.h>
#include <string.h>

#include "kv/select_lanes.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET  __attribute__((target("avx2")))
#define LANES   16u
#define COUNTED (1u << 19) /* scores, of which a 16-bit lane counts at most 2^14 */

/* All bits of the lanes whose score is `least` or more. */
TARGET static inline __m256i from_least(const uint16_t *scores, __m256i least)
{
    __m256i v = _mm256_loadu_si256((const void *)scores);
    return _mm256_cmpeq_epi16(_mm256_max_epu16(v, least), v);
}

/* Sum of the 16-bit lanes, unsigned. */
TARGET static inline uint32_t sum_of(__m256i lanes)
{
    __m256i low = _mm256_and_si256(lanes, _mm256_set1_epi32(0xffff));
    __m256i sums = _mm256_add_epi32(low, _mm256_srli_epi32(lanes, 16));
    uint32_t of[8], sum = 0;
    memcpy(of, &sums, sizeof of);
    for (uint32_t i = 0; i < 8; i++)
        sum += of[i];
    return sum;
}

TARGET uint32_t kv_select_count_avx2(const uint16_t *scores, uint32_t n, uint16_t least)
{
    const __m256i lanes = _mm256_set1_epi16((short)least);
    uint32_t i = 0, count = 0;
    while (n - i >= 2 * LANES) {
        uint32_t end = n - i < COUNTED ? n / (2 * LANES) * (2 * LANES) : i + COUNTED;
        __m256i a = _mm256_setzero_si256(), b = a;
        for (; i < end; i += 2 * LANES) { /* all bits are -1 */
            a = _mm256_sub_epi16(a, from_least(scores + i, lanes));
            b = _mm256_sub_epi16(b, from_least(scores + i + LANES, lanes));
        }
        count += sum_of(a) + sum_of(b);
    }
    for (; i < n; i++)
        count += scores[i] >= least;
    return count;
}

TARGET uint32_t kv_select_list_avx2(const uint16_t *scores, uint32_t first, uint32_t end,
                                    uint16_t least, uint32_t skip, uint32_t *positions)
{
    const __m256i lanes = _mm256_set1_epi16((short)least);
    uint32_t p = first, n = 0;
    for (; end - p >= LANES; p += LANES) {
        uint32_t bits = (uint32_t)_mm256_movemask_epi8(from_least(scores + p, lanes));
        for (bits &= 0x55555555u; bits; bits &= bits - 1) { /* two a lane */
            uint32_t at = p + (uint32_t)__builtin_ctz(bits) / 2;
            bool left_out = skip > 0 && scores[at] == least;
            positions[n] = at; /* has room: after one that is left out, newer ones come */
            skip -= left_out;
            n += !left_out;
        }
    }
    for (; p < end; p++) {
        bool left_out = skip > 0 && scores[p] == least;
        if (scores[p] >= least && !left_out)
            positions[n++] = p;
        skip -= left_out;
    }
    return n;
}

/* All lanes of a group have its highest; size: 2 to 16. */
TARGET static inline __m256i spread_highest(__m256i v, uint32_t size)
{
    v = _mm256_max_epu16(v, _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(v, 0xb1), 0xb1));
    if (size > 2)
        v = _mm256_max_epu16(v, _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(v, 0x4e), 0x4e));
    if (size > 4)
        v = _mm256_max_epu16(v, _mm256_shuffle_epi32(v, 0x4e));
    if (size > 8)
        v = _mm256_max_epu16(v, _mm256_permute2x128_si256(v, v, 1));
    return v;
}

TARGET uint32_t kv_select_groups_avx2(const uint16_t *scores, uint32_t first, uint32_t end,
                                      uint32_t size, uint16_t most, uint16_t *ranks)
{
    const __m256i cap = _mm256_set1_epi16((short)most);
    uint32_t step = size < LANES ? LANES : size, p = first;
    for (; end - p >= step; p += step) {
        __m256i v = _mm256_loadu_si256((const void *)(scores + p));
        for (uint32_t i = LANES; i < step; i += LANES)
            v = _mm256_max_epu16(v, _mm256_loadu_si256((const void *)(scores + p + i)));
        v = _mm256_min_epu16(spread_highest(v, size < LANES ? size : LANES), cap);
        for (uint32_t i = 0; i < step; i += LANES)
            _mm256_storeu_si256((void *)(ranks + p + i), v);
    }
    return p;
}

#endif
