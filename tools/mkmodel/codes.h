/*
 * tools/mkmodel/codes.h - two families of +-1 vectors that tell tokens apart.
 *
 * Match code, 16 dimensions: the Nordstrom-Robinson code, the Gray image of the octacode over Z4
 * (Hammons et al. 1994). 256 words, one per byte, any two at distance >= 6, so two different bytes
 * have cosine <= 0.25: the best that 16 dimensions allow for so many. Other tokens get a signed
 * axis, scaled to the same norm (cosine +-0.25 with bytes). Output code, 32 dimensions: words Tr(a
 * x + b x^3) over GF(32) (Gold functions); distances 12, 16 or 20, so cosine <= 0.25. Being +-1,
 * both survive F16, Q8_0 and INT8 digests unchanged. Concurrency: stateless.
 */
#pragma once

#include <stdint.h>

#define CODE_MATCH_DIMS   16u
#define CODE_MATCH_TOKENS (256u + 2 * CODE_MATCH_DIMS)
#define CODE_OUT_DIMS     32u
#define CODE_OUT_TOKENS   1024u

/* token < CODE_MATCH_TOKENS; out [16], squared norm 16. */
void code_match(uint32_t token, float *out);

/* token < CODE_OUT_TOKENS; out [32], squared norm 32. */
void code_out(uint32_t token, float *out);
