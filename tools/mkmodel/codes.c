/* tools/mkmodel/codes.c - see codes.h. */
#include "tools/mkmodel/codes.h"

/* Generator of the octacode: x^3 + 2x^2 + x - 1 shifted, with a parity symbol. */
static const uint8_t octacode[4][8] = {
    {3, 1, 2, 1, 0, 0, 0, 1},
    {0, 3, 1, 2, 1, 0, 0, 1},
    {0, 0, 3, 1, 2, 1, 0, 1},
    {0, 0, 0, 3, 1, 2, 1, 1},
};

void code_match(uint32_t token, float *out)
{
    if (token >= 256) {
        const uint32_t axis = (token - 256) % CODE_MATCH_DIMS;
        for (uint32_t i = 0; i < CODE_MATCH_DIMS; i++)
            out[i] = 0;
        out[axis] = token - 256 < CODE_MATCH_DIMS ? 4 : -4;
        return;
    }
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t symbol = 0; /* of Z4; its base-4 digits are the byte's */
        for (uint32_t digit = 0; digit < 4; digit++)
            symbol += (token >> 2 * digit & 3) * octacode[digit][i];
        symbol &= 3;
        /* Gray map: 0 -> 00, 1 -> 01, 2 -> 11, 3 -> 10 */
        out[2 * i] = symbol >= 2 ? -1 : 1;
        out[2 * i + 1] = symbol == 1 || symbol == 2 ? -1 : 1;
    }
}

/* Product in GF(32) = GF(2)[x] / (x^5 + x^2 + 1). */
static uint32_t gf32_multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = 0; bit < 5; bit++) {
        if (b >> bit & 1)
            product ^= a;
        a = a << 1 ^ (a & 16 ? 0x25 : 0);
    }
    return product;
}

/* Tr(a) = a + a^2 + a^4 + a^8 + a^16, which is 0 or 1. */
static uint32_t gf32_trace(uint32_t a)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 5; i++) {
        sum ^= a;
        a = gf32_multiply(a, a);
    }
    return sum;
}

void code_out(uint32_t token, float *out)
{
    const uint32_t a = token & 31, b = token >> 5 & 31;
    for (uint32_t x = 0; x < CODE_OUT_DIMS; x++) {
        const uint32_t cube = gf32_multiply(x, gf32_multiply(x, x));
        const uint32_t bit = gf32_trace(gf32_multiply(a, x) ^ gf32_multiply(b, cube));
        out[x] = bit ? -1 : 1;
    }
}
