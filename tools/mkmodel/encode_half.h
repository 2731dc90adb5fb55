/*
 * tools/mkmodel/encode_half.h - a float as 16 bits.
 *
 * Who calls it: encode.c, encode_blocks.c. Cannot fail. Concurrency: stateless.
 */
#pragma once

#include <stdint.h>

/* IEEE half, ties to even, overflow to infinity. */
uint16_t encode_f16(float value);
/* The upper half of a float, ties to even; value is not NaN. */
uint16_t encode_bf16(float value);
