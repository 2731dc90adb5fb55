/*
 * model/blocks.h - the tensor types of GGUF: how a row is cut into blocks, and what a block says.
 *
 * What: one table of all types that are read, and their reference arithmetic in plain C. A value of
 * a quantised type is
 *     F16(d) * scale[sub] * level(code)  +-  F16(dmin) * min[sub]
 * with a code of 2 to 8 bits, a level that is code - zero (IQ4: an entry of a table of 16), and a
 * scale of a byte for each sub-block of 16 or 32 values (types of one block of 32 values: 1).
 * Source: the block structures that ggml documents in its headers and in the `gguf` Python package.
 * Who calls it: gguf.c (sizes), gguf_values.c (rows in F32), gpu_worker (packing), mkmodel, tests.
 * Cannot fail: sizes are the caller's to check. Concurrency: stateless.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Numbers of the specification. */
enum gguf_tensor_type {
    GGUF_TENSOR_F32 = 0,
    GGUF_TENSOR_F16 = 1,
    GGUF_TENSOR_Q4_0 = 2,
    GGUF_TENSOR_Q4_1 = 3,
    GGUF_TENSOR_Q5_0 = 6,
    GGUF_TENSOR_Q5_1 = 7,
    GGUF_TENSOR_Q8_0 = 8,
    GGUF_TENSOR_Q2_K = 10,
    GGUF_TENSOR_Q3_K = 11,
    GGUF_TENSOR_Q4_K = 12,
    GGUF_TENSOR_Q5_K = 13,
    GGUF_TENSOR_Q6_K = 14,
    GGUF_TENSOR_IQ4_NL = 20,
    GGUF_TENSOR_IQ4_XS = 23,
    GGUF_TENSOR_BF16 = 30
};

#define BLOCK_ITEMS_MAX 256u
#define BLOCK_BYTES_MAX 256u
#define BLOCK_SUBS_MAX  16u

struct block_format {
    enum gguf_tensor_type type;
    const char *name;    /* "Q4_K" */
    uint16_t items;      /* values in a block; 1: not quantised */
    uint16_t bytes;      /* of a block */
    uint8_t bits;        /* of a code; 0: not quantised */
    uint8_t sub_items;   /* values that share a scale: 16 or 32 */
    uint8_t zero;        /* the code whose level is 0; IQ4: see table */
    int8_t min_sign;     /* the min is added (1), subtracted (-1), or there is none (0) */
    bool byte_scales;    /* sub-blocks have scales of their own: 256 values a block */
    const int8_t *table; /* [16] levels of the codes, or NULL: level = code - zero */
};

/* NULL: a type that is not read. */
const struct block_format *block_format(uint32_t type);
/* The name of any type of the specification, also of one that is not read; "unknown". */
const char *block_type_name(uint32_t type);
/* The types that are read, for messages and help: "F32, F16, ...". */
#define BLOCK_TYPES_READ                                                                           \
    "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL and "      \
    "IQ4_XS"

/* A block of a quantised type, taken apart. scale and min: 1 where a block is one sub-block. */
struct block_parts {
    uint16_t d, dmin; /* F16 as stored */
    int8_t scale[BLOCK_SUBS_MAX];
    uint8_t min[BLOCK_SUBS_MAX];
    uint8_t codes[BLOCK_ITEMS_MAX]; /* in the order of the values; Q8_0: the stored byte + 128 */
};
void block_split(const struct block_format *format, const uint8_t *block, struct block_parts *out);

/* n values (whole blocks) of any type in F32. d * scale is exact; its product with the level and
 * the sum with the min are rounded once each. */
void block_floats(const struct block_format *format, const uint8_t *data, uint64_t n, float *out);
