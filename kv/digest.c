/*
 * kv/digest.c - FP16 keys and FP32 queries to INT8 (keys: or INT4) mantissas with power-of-two
 * exponents (kv/score.h).
 *
 * Keys are quantised in integers: an FP16 magnitude is a whole number of 2^-24 units (below 2^40),
 * so neither the rounding mode nor the compiler has a say in the result. Who calls it: the scorer
 * (a key once, when it is appended; a query once, before it is relayed). Concurrency: pure
 * functions. Failure: none; non-finite input has a defined value.
 */
#include <math.h>
#include <string.h>

#include "kv/score.h"

#define FP16_UNIT_EXP 24u /* an FP16 magnitude counts units of 2^-24 */
#define FP16_MAX_BITS 0x7bffu
#define FP16_INFINITY 0x7c00u
#define MANTISSA_MAX  127

struct precision {      /* of keys */
    uint64_t largest;   /* mantissa */
    uint32_t unit_bits; /* FP16 units below a mantissa at exponent byte 0 */
};

static const struct precision int8_keys = {MANTISSA_MAX, FP16_UNIT_EXP - KV_KEY_EXP_BIAS};
static const struct precision int4_keys = {7, FP16_UNIT_EXP - KV_KEY_EXP_BIAS4};

bool kv_halfs_are_finite(const uint16_t *halfs, uint64_t n)
{
    enum { AT_ONCE = 32 };
    uint64_t done = 0;
    uint16_t bad = 0;
    for (; done + AT_ONCE <= n && !bad; done += AT_ONCE)
        for (uint32_t i = 0; i < AT_ONCE; i++)
            bad |= (halfs[done + i] & FP16_INFINITY) == FP16_INFINITY;
    for (; done < n; done++)
        bad |= (halfs[done] & FP16_INFINITY) == FP16_INFINITY;
    return !bad;
}

/* Magnitude bits as they count: NaN 0, infinity the largest finite. Still ordered like magnitudes.
 */
static uint32_t fp16_magnitude_bits(uint16_t half)
{
    uint32_t bits = half & 0x7fffu;
    if (bits > FP16_INFINITY)
        return 0;
    return bits == FP16_INFINITY ? FP16_MAX_BITS : bits;
}

/* The magnitude in units of 2^-24. */
static uint64_t fp16_units(uint32_t bits)
{
    uint32_t exponent = bits >> 10;
    uint64_t fraction = bits & 0x3ffu;
    return exponent == 0 ? fraction : (fraction | 0x400u) << (exponent - 1);
}

/* round_half_even(units / 2^bits), at most `largest` */
static int32_t quantise_units(uint64_t units, uint32_t bits, uint64_t largest)
{
    uint64_t quotient = units >> bits;
    uint64_t rest = units & (((uint64_t)1 << bits) - 1);
    uint64_t half = (uint64_t)1 << (bits - 1);
    quotient += rest > half || (rest == half && (quotient & 1) != 0);
    return (int32_t)(quotient > largest ? largest : quotient);
}

/* The smallest byte 0..16 whose range holds units; 16 when none does. */
static uint8_t key_exponent_byte(const struct precision *p, uint64_t units)
{
    uint8_t byte = 0;
    while (byte < KV_KEY_EXP_MAX && units > p->largest << (p->unit_bits + byte))
        byte++;
    return byte;
}

static uint8_t digest_key_head(const struct precision *p, const uint16_t *k, uint32_t head_dim,
                               int8_t *mantissas)
{
    uint32_t largest = 0;
    for (uint32_t i = 0; i < head_dim; i++) {
        uint32_t bits = fp16_magnitude_bits(k[i]);
        largest = bits > largest ? bits : largest;
    }
    uint8_t byte = key_exponent_byte(p, fp16_units(largest));
    for (uint32_t i = 0; i < head_dim; i++) {
        int32_t m =
            quantise_units(fp16_units(fp16_magnitude_bits(k[i])), p->unit_bits + byte, p->largest);
        mantissas[i] = (int8_t)((k[i] & 0x8000u) != 0 ? -m : m);
    }
    return byte;
}

void kv_digest_keys(const struct kv_geometry *g, const uint16_t *k, uint64_t stride_halfs,
                    uint32_t n, uint8_t *groups, uint64_t first)
{
    const struct precision *p = kv_digest_bits(g) == 4 ? &int4_keys : &int8_keys;
    int8_t mantissas[KV_MAX_HEAD_DIM];
    for (uint32_t t = 0; t < n; t++) {
        const uint16_t *row = k + t * stride_halfs;
        for (uint32_t h = 0; h < g->n_kv_heads; h++) {
            uint8_t exponent = digest_key_head(p, row + h * g->head_dim, g->head_dim, mantissas);
            kv_digest_put_head(g, groups, first + t, h, mantissas, exponent);
        }
    }
}

/* 0 for what is not finite; without a branch. */
static inline float finite_or_0(float value)
{
    const uint32_t all_ones = 0x7f800000u; /* the exponent of what is not finite */
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits &= (bits & all_ones) == all_ones ? 0 : ~0u;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

/* FP32 additions in head order. An overflowing sum counts as 0 like any other non-finite value. */
static void sum_group(const float *q, uint32_t group, uint32_t head_dim, float *sums)
{
    for (uint32_t i = 0; i < head_dim; i++)
        sums[i] = finite_or_0(q[i]);
    for (uint32_t h = 1; h < group; h++)
        for (uint32_t i = 0; i < head_dim; i++)
            sums[i] += finite_or_0(q[(uint64_t)h * head_dim + i]);
    for (uint32_t i = 0; group > 1 && i < head_dim; i++)
        sums[i] = finite_or_0(sums[i]);
}

/* Length 1, so that no KV head is heard better because its query is longer; zero stays zero. The
 * squares of FP32 numbers neither overflow nor vanish in FP64. */
static void make_unit(float *head, uint32_t head_dim)
{
    double squares = 0.0;
    for (uint32_t i = 0; i < head_dim; i++)
        squares += (double)head[i] * (double)head[i];
    if (squares == 0.0)
        return;
    double length = sqrt(squares);
    for (uint32_t i = 0; i < head_dim; i++)
        head[i] = (float)((double)head[i] / length);
}

/* What keys are multiplied with for a term, before it is quantised. */
static void term_query(const struct kv_geometry *g, uint32_t importance, const float *q, uint32_t t,
                       float *head)
{
    uint32_t heads = g->n_heads / kv_query_terms(g, importance);
    sum_group(q + (uint64_t)t * heads * g->head_dim, heads, g->head_dim, head);
    if (importance == KV_IMPORTANCE_NORM)
        make_unit(head, g->head_dim);
}

#define EXP_OF_ZERO INT32_MIN

/* The smallest e with largest <= 127 * 2^e: 127 * 2^e is 127/128 of 2^(e + 7), and frexp's fraction
 * is exact. */
static int32_t query_exponent(float largest)
{
    int exponent;
    if (largest == 0.0f)
        return EXP_OF_ZERO;
    double fraction = frexp((double)largest, &exponent);
    return fraction <= 127.0 / 128.0 ? exponent - 7 : exponent - 6;
}

static int32_t query_head_exponent(const float *head, uint32_t head_dim)
{
    uint32_t most = 0; /* magnitudes of FP32 numbers are ordered like their bits */
    float largest;
    for (uint32_t i = 0; i < head_dim; i++) {
        uint32_t bits;
        memcpy(&bits, &head[i], sizeof bits);
        bits &= 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    memcpy(&largest, &most, sizeof largest);
    return query_exponent(largest);
}

/* Added and taken away again, it rounds an FP64 of less than 2^51 to an integer, half to even, as
 * rint() does; inline, where rint is a call on the plainest CPUs. */
#define ROUNDER 0x1.8p52

static void quantise_query_head(const float *head, uint32_t head_dim, int32_t exponent,
                                int8_t *mantissas)
{
    double scale = ldexp(1.0, -exponent); /* FP32's exponents are far within FP64's */
    for (uint32_t i = 0; i < head_dim; i++) {
        /* scaling by a power of two is exact in FP64, and so is the rounding to an integer */
        double m = (double)head[i] * scale + ROUNDER - ROUNDER;
        m = m < MANTISSA_MAX ? m : MANTISSA_MAX;
        m = m > -MANTISSA_MAX ? m : -MANTISSA_MAX;
        mantissas[i] = (int8_t)(int32_t)m;
    }
}

bool kv_digest_is_of(const struct kv_geometry *g, const uint16_t *k, const uint8_t *groups,
                     uint64_t index, uint8_t *scratch)
{
    int8_t is[KV_MAX_HEAD_DIM], made[KV_MAX_HEAD_DIM];
    kv_digest_keys(g, k, (uint64_t)g->n_kv_heads * g->head_dim, 1, scratch, 0);
    for (uint32_t h = 0; h < g->n_kv_heads; h++)
        if (kv_digest_get_head(g, groups, index, h, is) !=
                kv_digest_get_head(g, scratch, 0, h, made) ||
            memcmp(is, made, g->head_dim) != 0)
            return false;
    return true;
}

int32_t kv_digest_query(const struct kv_geometry *g, uint32_t importance, const float *q,
                        int8_t *mantissas, uint8_t *shifts)
{
    uint32_t terms = kv_query_terms(g, importance);
    int32_t exponents[KV_MAX_HEADS], largest = EXP_OF_ZERO;
    float head[KV_MAX_HEAD_DIM];
    for (uint32_t t = 0; t < terms; t++) {
        term_query(g, importance, q, t, head);
        exponents[t] = query_head_exponent(head, g->head_dim);
        largest = exponents[t] > largest ? exponents[t] : largest;
    }
    int32_t base = largest == EXP_OF_ZERO ? 0 : largest - KV_QUERY_SHIFT_MAX;
    for (uint32_t t = 0; t < terms; t++) {
        shifts[t] = (uint8_t)(exponents[t] > base ? exponents[t] - base : 0);
        term_query(g, importance, q, t, head);
        quantise_query_head(head, g->head_dim, base + shifts[t],
                            mantissas + (uint64_t)t * g->head_dim);
    }
    return base;
}
