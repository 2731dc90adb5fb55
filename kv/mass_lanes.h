/*
 * kv/mass_lanes.h - the passes of kv/mass.h over vectors of 16 floats, compiled once for each path.
 *
 * The includer says which instructions there are (#pragma GCC target) and defines MASS_NAME (what
 * the path is called) and MASS_OPS (its table), and MASS_HALVES 0, 1 or 2: FP16 is widened by
 * integers, by F16C or by AVX-512. Every operation on a vector is IEEE's on each lane, so that all
 * paths agree bit for bit. Vectors go by pointer: passing them by value would depend on the path's
 * calling convention. Who includes it: mass.c, mass_avx2.c, mass_avx512.c.
 */
#include <string.h>

#if MASS_HALVES > 0
#include <immintrin.h>
#endif

#include "kv/mass.h"

typedef float lanes16 __attribute__((vector_size(64)));
typedef int32_t ints16 __attribute__((vector_size(64)));
typedef uint16_t halves16 __attribute__((vector_size(32)));
typedef float lanes8 __attribute__((vector_size(32)));
typedef float lanes4 __attribute__((vector_size(16)));

#define MASS_INLINE static inline __attribute__((always_inline))

/* 16 FP16 as floats. What is no number counts as the largest, +-65504. */
MASS_INLINE void widen(const uint16_t *halves, float *out)
{
    halves16 bits;
    memcpy(&bits, halves, sizeof bits);
    halves16 sign = bits & 0x8000, size = bits & 0x7fff;
    halves16 above = (halves16)(size > 0x7bff);
    size = (size & ~above) | (above & 0x7bff);
#if MASS_HALVES == 2
    _mm512_store_ps(out, _mm512_cvtph_ps((__m256i)(sign | size)));
#elif MASS_HALVES == 1
    halves16 both = sign | size;
    __m128i parts[2];
    memcpy(parts, &both, sizeof parts);
    _mm256_store_ps(out, _mm256_cvtph_ps(parts[0]));
    _mm256_store_ps(out + 8, _mm256_cvtph_ps(parts[1]));
#else
    ints16 wide = __builtin_convertvector(size, ints16) << 13;
    ints16 signs = __builtin_convertvector(sign, ints16) << 16;
    lanes16 value = (lanes16)wide * 0x1p112f; /* exponents are biased by 127 - 15 less */
    *(lanes16 *)out = (lanes16)((ints16)value | signs);
#endif
}

/* A key head as floats, padded with zeros. */
MASS_INLINE void widen_head(const uint16_t *halves, uint32_t head_dim, float *out)
{
    uint32_t i = 0;
    for (; i + 16 <= head_dim; i += 16)
        widen(halves + i, out + i);
    if (i < head_dim) {
        uint16_t rest[16] = {0};
        memcpy(rest, halves + i, (head_dim - i) * sizeof *rest);
        widen(rest, out + i);
    }
}

/* The 16 lanes as one sum: halves are added until one is left. */
MASS_INLINE float add_lanes(const lanes16 *v)
{
    lanes8 eight = __builtin_shufflevector(*v, *v, 0, 1, 2, 3, 4, 5, 6, 7) +
                   __builtin_shufflevector(*v, *v, 8, 9, 10, 11, 12, 13, 14, 15);
    lanes4 four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) +
                  __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

/* n a multiple of 16. */
MASS_INLINE float product(const float *q, const float *k, uint32_t n)
{
    lanes16 even = {0}, odd = {0};
    uint32_t i = 0;
    for (; i + 32 <= n; i += 32) {
        even += *(const lanes16 *)(q + i) * *(const lanes16 *)(k + i);
        odd += *(const lanes16 *)(q + i + 16) * *(const lanes16 *)(k + i + 16);
    }
    if (i < n)
        even += *(const lanes16 *)(q + i) * *(const lanes16 *)(k + i);
    even += odd;
    return add_lanes(&even);
}

static void mass_logits(const struct kv_geometry *g, const float *query, const uint16_t *keys,
                        uint64_t stride_halfs, uint32_t n, const uint32_t *positions,
                        uint32_t n_tokens, float *rows)
{
    uint32_t group = g->n_heads / g->n_kv_heads, head = kv_mass_head(g), row = kv_mass_row(g);
    _Alignas(64) float k[KV_MAX_HEAD_DIM];
    for (uint32_t i = 0; i < n; i++) {
        if (positions[i] >= n_tokens)
            continue;
        const uint16_t *key = keys + i * stride_halfs;
        float *out = rows + (uint64_t)positions[i] * row;
        const float *q = query;
        for (uint32_t h = 0; h < g->n_kv_heads; h++, key += g->head_dim) {
            widen_head(key, g->head_dim, k);
            for (uint32_t j = 0; j < group; j++, q += head)
                *out++ = product(q, k, head);
        }
        memset(out, 0, (row - g->n_heads) * sizeof *out);
    }
}

static void mass_maximum(const float *rows, uint32_t row, uint32_t n, float *max)
{
    for (uint32_t c = 0; c < row; c += 16) {
        lanes16 most = *(const lanes16 *)(rows + c);
        for (uint32_t i = 1; i < n; i++) {
            lanes16 v = *(const lanes16 *)(rows + (uint64_t)i * row + c);
            ints16 above = v > most;
            most = (lanes16)(((ints16)v & above) | ((ints16)most & ~above));
        }
        *(lanes16 *)(max + c) = most;
    }
}

/* exp of v <= 0; below -86 that of -86. Source: Cephes' expf, relative error below 2e-7. */
MASS_INLINE void exponential(lanes16 *v)
{
    const lanes16 least = (lanes16){0} - 86.0f, magic = (lanes16){0} + 12582912.0f;
    ints16 below = *v < least;
    lanes16 x = (lanes16)(((ints16)least & below) | ((ints16)*v & ~below));
    lanes16 shifted = x * 1.44269504f + magic; /* rounds to a whole number */
    ints16 power = (ints16)shifted - (ints16)magic;
    lanes16 whole = shifted - magic;
    lanes16 r = x - whole * 0.693359375f;
    r = r - whole * -2.12194440e-4f;
    lanes16 p = (lanes16){0} + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    lanes16 y = p * r * r + r + 1.0f;
    *v = (lanes16)((ints16)y + (power << 23));
}

static void mass_weigh(float *rows, uint32_t row, uint32_t n, const float *max, float *sum)
{
    for (uint32_t c = 0; c < row; c += 16) {
        lanes16 most = *(const lanes16 *)(max + c), total = {0};
        for (uint32_t i = 0; i < n; i++) {
            lanes16 *at = (lanes16 *)(rows + (uint64_t)i * row + c), v = *at - most;
            exponential(&v);
            *at = v;
            total += v;
        }
        *(lanes16 *)(sum + c) = total;
    }
}

static void mass_mass(const float *rows, uint32_t row, uint32_t n, const float *scale, float *mass)
{
    for (uint32_t i = 0; i < n; i++, rows += row) {
        lanes16 total = {0};
        for (uint32_t c = 0; c < row; c += 16)
            total += *(const lanes16 *)(rows + c) * *(const lanes16 *)(scale + c);
        mass[i] = add_lanes(&total);
    }
}

const struct kv_mass_ops MASS_OPS = {MASS_NAME, mass_logits, mass_maximum, mass_weigh, mass_mass};
