/*
 * tests/kv/half.h - what the bits of an FP16 are in double, worked from the definition. Infinities
 * and NaN are the largest finite value, as the product takes them.
 */
#pragma once

#include <math.h>
#include <stdint.h>

static inline double half_value(uint16_t bits)
{
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    if (exponent == 31) {
        exponent = 30;
        mantissa = 1023;
    }
    double size = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return bits & 0x8000 ? -size : size;
}
