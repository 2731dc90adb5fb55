/*
 * model/blocks.c - what is in a block of each tensor type. See blocks.h.
 */
#include "model/blocks.h"

#include <assert.h>
#include <string.h>

#include "base/half.h"

/* The blocks as they lie in a file. Every member is a byte or an array of bytes, or sits at an
 * even offset; blocks themselves may lie anywhere and are copied before they are looked at. */
struct block_q4_0 {
    uint16_t d;
    uint8_t codes[16];
};
struct block_q4_1 {
    uint16_t d, min;
    uint8_t codes[16];
};
struct block_q5_0 {
    uint16_t d;
    uint8_t high[4], codes[16];
};
struct block_q5_1 {
    uint16_t d, min;
    uint8_t high[4], codes[16];
};
struct block_q8_0 {
    uint16_t d;
    int8_t codes[32];
};
struct block_q2_k {
    uint8_t scales[16], codes[64];
    uint16_t d, dmin;
};
struct block_q3_k {
    uint8_t high[32], codes[64], scales[12];
    uint16_t d;
};
struct block_q4_k {
    uint16_t d, dmin;
    uint8_t scales[12], codes[128];
};
struct block_q5_k {
    uint16_t d, dmin;
    uint8_t scales[12], high[32], codes[128];
};
struct block_q6_k {
    uint8_t low[128], high[64];
    int8_t scales[16];
    uint16_t d;
};
struct block_iq4_xs {
    uint16_t d, scales_high;
    uint8_t scales_low[4], codes[128];
};
static_assert(sizeof(struct block_q4_0) == 18, "Q4_0 and IQ4_NL: 4.5 bits a value");
static_assert(sizeof(struct block_q4_1) == 20, "Q4_1: 5 bits a value");
static_assert(sizeof(struct block_q5_0) == 22, "Q5_0: 5.5 bits a value");
static_assert(sizeof(struct block_q5_1) == 24, "Q5_1: 6 bits a value");
static_assert(sizeof(struct block_q8_0) == 34, "Q8_0: 8.5 bits a value");
static_assert(sizeof(struct block_q2_k) == 84, "Q2_K: 2.625 bits a value");
static_assert(sizeof(struct block_q3_k) == 110, "Q3_K: 3.4375 bits a value");
static_assert(sizeof(struct block_q4_k) == 144, "Q4_K: 4.5 bits a value");
static_assert(sizeof(struct block_q5_k) == 176, "Q5_K: 5.5 bits a value");
static_assert(sizeof(struct block_q6_k) == 210, "Q6_K: 6.5625 bits a value");
static_assert(sizeof(struct block_iq4_xs) == 136, "IQ4_XS: 4.25 bits a value");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF numbers are little endian");

/* ---- the table ------------------------------------------------------------------------------ */

static const int8_t iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

#define PLAIN(t, size)                                                                             \
    {                                                                                              \
        .type = GGUF_TENSOR_##t, .name = #t, .items = 1, .bytes = (size)                           \
    }
#define SMALL(t, in_file, n_bits, zero_code, sign)                                                 \
    {                                                                                              \
        .type = GGUF_TENSOR_##t, .name = #t, .items = 32, .bytes = sizeof(struct in_file),         \
        .bits = (n_bits), .sub_items = 32, .zero = (zero_code), .min_sign = (sign)                 \
    }
#define SUPER(t, in_file, n_bits, sub, zero_code, sign)                                            \
    {                                                                                              \
        .type = GGUF_TENSOR_##t, .name = #t, .items = 256, .bytes = sizeof(struct in_file),        \
        .bits = (n_bits), .sub_items = (sub), .zero = (zero_code), .min_sign = (sign),             \
        .byte_scales = true                                                                        \
    }

static const struct block_format formats[] = {
    PLAIN(F32, 4),
    PLAIN(F16, 2),
    PLAIN(BF16, 2),
    SMALL(Q4_0, block_q4_0, 4, 8, 0),
    SMALL(Q4_1, block_q4_1, 4, 0, 1),
    SMALL(Q5_0, block_q5_0, 5, 16, 0),
    SMALL(Q5_1, block_q5_1, 5, 0, 1),
    SMALL(Q8_0, block_q8_0, 8, 128, 0),
    SUPER(Q2_K, block_q2_k, 2, 16, 0, -1),
    SUPER(Q3_K, block_q3_k, 3, 16, 4, 0),
    SUPER(Q4_K, block_q4_k, 4, 32, 0, -1),
    SUPER(Q5_K, block_q5_k, 5, 32, 0, -1),
    SUPER(Q6_K, block_q6_k, 6, 16, 32, 0),
    {.type = GGUF_TENSOR_IQ4_NL,
     .name = "IQ4_NL",
     .items = 32,
     .bytes = sizeof(struct block_q4_0),
     .bits = 4,
     .sub_items = 32,
     .table = iq4_levels},
    {.type = GGUF_TENSOR_IQ4_XS,
     .name = "IQ4_XS",
     .items = 256,
     .bytes = sizeof(struct block_iq4_xs),
     .bits = 4,
     .sub_items = 32,
     .byte_scales = true,
     .table = iq4_levels},
};

const struct block_format *block_format(uint32_t type)
{
    for (unsigned i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].type == type)
            return &formats[i];
    return NULL;
}

const char *block_type_name(uint32_t type)
{
    static const char *const others[] = {
        [4] = "Q4_2",    [5] = "Q4_3",      [9] = "Q8_1",      [15] = "Q8_K",     [16] = "IQ2_XXS",
        [17] = "IQ2_XS", [18] = "IQ3_XXS",  [19] = "IQ1_S",    [21] = "IQ3_S",    [22] = "IQ2_S",
        [24] = "I8",     [25] = "I16",      [26] = "I32",      [27] = "I64",      [28] = "F64",
        [29] = "IQ1_M",  [31] = "Q4_0_4_4", [32] = "Q4_0_4_8", [33] = "Q4_0_8_8", [34] = "TQ1_0",
        [35] = "TQ2_0",  [39] = "MXFP4"};
    const struct block_format *format = block_format(type);
    if (format)
        return format->name;
    return type < sizeof others / sizeof *others && others[type] ? others[type] : "unknown";
}

/* ---- taking a block apart ------------------------------------------------------------------- */

/* 32 codes in 16 bytes: the low nibbles, then the high ones. */
static void take_nibbles(const uint8_t *from, uint32_t half, uint8_t *out)
{
    for (uint32_t i = 0; i < half; i++) {
        out[i] = from[i] & 15;
        out[i + half] = from[i] >> 4;
    }
}

static void add_high_bits(const uint8_t high[4], uint8_t *codes)
{
    for (uint32_t i = 0; i < 32; i++)
        codes[i] |= (uint8_t)((high[i / 8] >> i % 8 & 1) << 4);
}

/* Q2_K and Q3_K: value 128 n + 32 j + l has bits 2j of byte 32 n + l. */
static void take_pairs(const uint8_t codes[64], uint8_t *out)
{
    for (uint32_t i = 0; i < 256; i++)
        out[i] = codes[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
}

/* Q4_K and Q5_K: eight scales and eight mins of 6 bits in 12 bytes. */
static void take_six_bits(const uint8_t from[12], struct block_parts *out)
{
    for (uint32_t s = 0; s < 4; s++) {
        out->scale[s] = (int8_t)(from[s] & 63);
        out->min[s] = from[s + 4] & 63;
        out->scale[s + 4] = (int8_t)((from[s + 8] & 15) | (from[s] >> 6) << 4);
        out->min[s + 4] = (uint8_t)(from[s + 8] >> 4 | (from[s + 4] >> 6) << 4);
    }
}

static void split_q2_k(const struct block_q2_k *b, struct block_parts *out)
{
    out->d = b->d;
    out->dmin = b->dmin;
    for (uint32_t s = 0; s < 16; s++) {
        out->scale[s] = (int8_t)(b->scales[s] & 15);
        out->min[s] = b->scales[s] >> 4;
    }
    take_pairs(b->codes, out->codes);
}

/* Sixteen scales of 6 bits less 32: low nibbles in eight bytes, the rest two bits each in four. */
static void split_q3_k(const struct block_q3_k *b, struct block_parts *out)
{
    out->d = b->d;
    for (uint32_t s = 0; s < 16; s++) {
        uint32_t low = s < 8 ? b->scales[s] & 15 : b->scales[s - 8] >> 4;
        uint32_t high = b->scales[8 + s % 4] >> (s / 4 * 2) & 3;
        out->scale[s] = (int8_t)((int)(low | high << 4) - 32);
    }
    take_pairs(b->codes, out->codes);
    for (uint32_t i = 0; i < 256; i++)
        out->codes[i] |= (uint8_t)((b->high[i % 32] >> (i / 32) & 1) << 2);
}

static void split_q4_k(const struct block_q4_k *b, struct block_parts *out)
{
    out->d = b->d;
    out->dmin = b->dmin;
    take_six_bits(b->scales, out);
    for (uint32_t j = 0; j < 4; j++)
        take_nibbles(b->codes + 32 * j, 32, out->codes + 64 * j);
}

static void split_q5_k(const struct block_q5_k *b, struct block_parts *out)
{
    out->d = b->d;
    out->dmin = b->dmin;
    take_six_bits(b->scales, out);
    for (uint32_t j = 0; j < 4; j++)
        take_nibbles(b->codes + 32 * j, 32, out->codes + 64 * j);
    for (uint32_t i = 0; i < 256; i++)
        out->codes[i] |= (uint8_t)((b->high[i % 32] >> (i / 32) & 1) << 4);
}

/* Value 128 n + 32 j + l: nibble j / 2 of low byte 64 n + 32 (j % 2) + l, bits 2j of high byte
 * 32 n + l. */
static void split_q6_k(const struct block_q6_k *b, struct block_parts *out)
{
    out->d = b->d;
    memcpy(out->scale, b->scales, sizeof b->scales);
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t n = i / 128, j = i / 32 % 4, l = i % 32;
        uint32_t low = b->low[64 * n + 32 * (j % 2) + l] >> (j / 2 * 4) & 15;
        out->codes[i] = (uint8_t)(low | (b->high[32 * n + l] >> 2 * j & 3) << 4);
    }
}

static void split_iq4_xs(const struct block_iq4_xs *b, struct block_parts *out)
{
    out->d = b->d;
    for (uint32_t s = 0; s < 8; s++) {
        uint32_t low = b->scales_low[s / 2] >> (s % 2 * 4) & 15, high = b->scales_high >> 2 * s & 3;
        out->scale[s] = (int8_t)((int)(low | high << 4) - 32);
        take_nibbles(b->codes + 16 * s, 16, out->codes + 32 * s);
    }
}

/* The types of one sub-block: all begin with d, and some have a min. */
static void split_small(const struct block_format *f, const uint8_t *block, struct block_parts *out)
{
    const uint8_t *at = block + (f->min_sign ? 4 : 2);
    memcpy(&out->d, block, 2);
    if (f->min_sign)
        memcpy(&out->dmin, block + 2, 2);
    out->scale[0] = 1;
    out->min[0] = 1;
    if (f->bits == 8) {
        for (uint32_t i = 0; i < 32; i++)
            out->codes[i] = at[i] ^ 0x80;
        return;
    }
    take_nibbles(at + (f->bits == 5 ? 4 : 0), 16, out->codes);
    if (f->bits == 5)
        add_high_bits(at, out->codes);
}

void block_split(const struct block_format *format, const uint8_t *block, struct block_parts *out)
{
    union {
        struct block_q2_k q2_k;
        struct block_q3_k q3_k;
        struct block_q4_k q4_k;
        struct block_q5_k q5_k;
        struct block_q6_k q6_k;
        struct block_iq4_xs iq4_xs;
    } b;
    static_assert(sizeof b <= BLOCK_BYTES_MAX, "what callers reserve for a block");
    out->dmin = 0;
    if (format->items == 32) {
        split_small(format, block, out);
        return;
    }
    memcpy(&b, block, format->bytes);
    switch (format->type) {
    case GGUF_TENSOR_Q2_K:
        split_q2_k(&b.q2_k, out);
        break;
    case GGUF_TENSOR_Q3_K:
        split_q3_k(&b.q3_k, out);
        break;
    case GGUF_TENSOR_Q4_K:
        split_q4_k(&b.q4_k, out);
        break;
    case GGUF_TENSOR_Q5_K:
        split_q5_k(&b.q5_k, out);
        break;
    case GGUF_TENSOR_Q6_K:
        split_q6_k(&b.q6_k, out);
        break;
    default:
        split_iq4_xs(&b.iq4_xs, out);
    }
}

/* ---- values --------------------------------------------------------------------------------- */

static void floats_of_block(const struct block_format *f, const uint8_t *block, float *out)
{
    struct block_parts p;
    block_split(f, block, &p);
    float d = half_to_float(p.d), dmin = half_to_float(p.dmin);
    for (uint32_t i = 0; i < f->items; i++) {
        uint32_t sub = i / f->sub_items;
        int level = f->table ? f->table[p.codes[i]] : p.codes[i] - f->zero;
        float value = d * (float)p.scale[sub] * (float)level;
        if (f->min_sign > 0)
            value += dmin * (float)p.min[sub];
        else if (f->min_sign < 0)
            value -= dmin * (float)p.min[sub];
        out[i] = value;
    }
}

void block_floats(const struct block_format *format, const uint8_t *data, uint64_t n, float *out)
{
    if (format->type == GGUF_TENSOR_F32) {
        memcpy(out, data, n * sizeof *out);
        return;
    }
    if (format->bits) {
        for (uint64_t i = 0; i < n / format->items; i++)
            floats_of_block(format, data + i * format->bytes, out + i * format->items);
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        uint16_t stored;
        memcpy(&stored, data + 2 * i, sizeof stored);
        out[i] = format->type == GGUF_TENSOR_F16 ? half_to_float(stored)
                                                 : half_float_of((uint32_t)stored << 16);
    }
}
