/* tools/mkmodel/encode_half.c - see encode_half.h. */
#include "tools/mkmodel/encode_half.h"

#include <math.h>
#include <string.h>

static uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

uint16_t encode_f16(float value)
{
    const uint32_t bits = float_bits(value);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) /* 65520, the first value that rounds beyond the largest half */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude <
        0x38800000) /* below 2^-14: a multiple of 2^-24, rounded by the FPU's ties-to-even */
        return (uint16_t)(sign | (uint16_t)rint(ldexp(fabs((double)value), 24)));
    const uint32_t rounded = magnitude + 0x0fff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((rounded >> 13) - (112u << 10)));
}

uint16_t encode_bf16(float value)
{
    const uint32_t bits = float_bits(value);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
