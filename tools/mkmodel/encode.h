/*
 * tools/mkmodel/encode.h - floats into a GGUF tensor type, rounded to the nearest representable
 * value.
 *
 * Who calls it: build.c, row by row. Cannot fail: callers pass whole blocks (shape_check) and
 * finite values. Concurrency: stateless.
 */
#ifndef HILL_MKMODEL_ENCODE_H
#define HILL_MKMODEL_ENCODE_H

#include <stddef.h>
#include <stdint.h>

#include "model/gguf.h"

/* Items of one block (1 but for Q8_0: 32), and the bytes of one. */
uint32_t encode_block_items(enum gguf_tensor_type type);
uint32_t encode_block_bytes(enum gguf_tensor_type type);

/* "f32", "f16", "bf16", "q8_0". */
const char *encode_type_name(enum gguf_tensor_type type);

/* Encode count floats (a multiple of the block) into out; returns the bytes written. */
size_t encode_row(enum gguf_tensor_type type, const float *values, size_t count, uint8_t *out);

/* IEEE half, ties to even, overflow to infinity. */
uint16_t encode_f16(float value);
/* The upper half of a float, ties to even; value is not NaN. */
uint16_t encode_bf16(float value);

#endif
