/*
 * tools/mkmodel/encode.h - floats into a GGUF tensor type, rounded to the nearest representable
 * value; of types below Q8_0, to the nearest code of scales that suffice.
 *
 * Who calls it: build.c, row by row. Cannot fail: callers pass whole blocks (shape_check) and
 * finite values. Concurrency: stateless.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/blocks.h"
#include "model/gguf.h"

/* "f32", "q4_k", ...: encode_type takes what --type offers. */
enum gguf_tensor_type encode_type(const char *name);
const char *encode_type_name(enum gguf_tensor_type type);

/* Does a row of a few distinct values, like the wired model's, come back as it was? */
bool encode_is_exact(enum gguf_tensor_type type);

/* Encode count floats (a multiple of the block) into out; returns the bytes written. */
size_t encode_row(enum gguf_tensor_type type, const float *values, size_t count, uint8_t *out);
