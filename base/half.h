/*
 * base/half.h - IEEE binary16 ("FP16") and BF16 as bits, in plain C: not every compiler has types
 * for them.
 *
 * Who calls it: model/ (scales of quantised blocks), prefix/ (keys of probes), tools/mkmodel.
 * Cannot fail. Concurrency: stateless.
 */
#pragma once

#include <stdint.h>
#include <string.h>

static inline uint32_t half_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float half_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Exact. Subnormals are scaled from an integer, infinities and NaNs keep their payload. */
static inline float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31;
    uint32_t fraction = half & 0x3ff;
    if (exponent == 0)
        return half_float_of(sign | half_float_bits((float)fraction * 0x1p-24f));
    if (exponent == 31)
        return half_float_of(sign | 0x7f800000 | fraction << 13);
    return half_float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

/* To the nearest, ties to even; overflow to infinity, each NaN to the quiet one of its sign. */
static inline uint16_t half_from_float(float value)
{
    uint32_t bits = half_float_bits(value), magnitude = bits & 0x7fffffff;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) /* 65520, the first value that rounds beyond the largest half */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) /* below 2^-14: a sum with 0.5 is rounded to multiples of 2^-24 */
        return (uint16_t)(sign | (half_float_bits(half_float_of(magnitude) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | ((magnitude + 0x0fff + (magnitude >> 13 & 1) - (112u << 23)) >> 13));
}

/* The upper half of a float, ties to even; value is not NaN. */
static inline uint16_t bf16_from_float(float value)
{
    uint32_t bits = half_float_bits(value);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
