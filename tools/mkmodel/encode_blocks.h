/*
 * tools/mkmodel/encode_blocks.h - floats into a block of a quantised GGUF type.
 *
 * Scales are chosen by a block's largest values, codes are the nearest ones: files for tests, not
 * the best that a type can do. Who calls it: encode.c. Cannot fail: values are finite. Concurrency:
 * stateless.
 */
#pragma once

#include "model/blocks.h"

/* values [format->items] into out [format->bytes]. */
void encode_block(const struct block_format *format, const float *values, uint8_t *out);
