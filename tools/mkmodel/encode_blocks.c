/* tools/mkmodel/encode_blocks.c - see encode_blocks.h. A block's parts are chosen first, for all
 * types alike (model/blocks.h says what they mean), and then laid down as the type has them.
 */
#include "tools/mkmodel/encode_blocks.h"

#include <math.h>
#include <string.h>

#include "base/half.h"

/* ---- choosing the parts ---- */

/* The largest scale of a sub-block, as its type stores it. */
static int largest_scale(const struct block_format *f)
{
    switch (f->type) {
    case GGUF_TENSOR_Q2_K:
        return 15;
    case GGUF_TENSOR_Q4_K:
    case GGUF_TENSOR_Q5_K:
        return 63;
    case GGUF_TENSOR_Q6_K:
        return 127;
    case GGUF_TENSOR_Q3_K:
    case GGUF_TENSOR_IQ4_XS:
        return 31;
    default:
        return 1; /* d alone */
    }
}

static int level_of(const struct block_format *f, uint32_t code)
{
    return f->table ? f->table[code] : (int)code - f->zero;
}

/* What code 0 and a step should be, so that all of a sub-block's values are within the codes. */
static void wish(const struct block_format *f, const float *values, float *step, float *low)
{
    uint32_t top = (1u << f->bits) - 1;
    float least = f->min_sign < 0 ? 0 : INFINITY, most = -INFINITY, largest = 0;
    for (uint32_t i = 0; i < f->sub_items; i++) {
        least = fminf(least, values[i]);
        most = fmaxf(most, values[i]);
        largest = fmaxf(largest, fabsf(values[i]));
    }
    *low = f->min_sign ? least : 0;
    *step = f->min_sign ? fmaxf(most - least, 0) / (float)top : largest / (float)level_of(f, top);
}

static uint8_t nearest_code(const struct block_format *f, float step, float low, float value)
{
    uint32_t best = 0;
    for (uint32_t code = 1; code < 1u << f->bits; code++) {
        float now = step * (float)level_of(f, code) + low - value;
        float before = step * (float)level_of(f, best) + low - value;
        if (fabsf(now) < fabsf(before))
            best = code;
    }
    return (uint8_t)best;
}

/* A multiple of a rounded unit, which may be a little too small for the largest. */
static int in_units(float value, float unit, int top)
{
    int units = unit > 0 ? (int)lrintf(value / unit) : 0;
    return units < top ? units : top;
}

static void choose_parts(const struct block_format *f, const float *values, struct block_parts *p)
{
    uint32_t subs = (uint32_t)f->items / f->sub_items;
    float steps[BLOCK_SUBS_MAX], lows[BLOCK_SUBS_MAX], step = 0, low = 0;
    int top = largest_scale(f);
    for (uint32_t s = 0; s < subs; s++) {
        wish(f, values + s * f->sub_items, &steps[s], &lows[s]);
        step = fmaxf(step, steps[s]);
        low = fabsf(lows[s]) > fabsf(low) ? lows[s] : low;
    }
    p->d = half_from_float(step / (float)top);
    p->dmin = half_from_float((float)f->min_sign * low / (float)top);
    float d = half_to_float(p->d), dmin = (float)f->min_sign * half_to_float(p->dmin);
    for (uint32_t s = 0; s < subs; s++) {
        p->scale[s] = (int8_t)(f->byte_scales ? in_units(steps[s], d, top) : 1);
        p->min[s] = (uint8_t)(f->byte_scales ? in_units(-lows[s], -dmin, top) : 1);
        float unit = d * (float)p->scale[s], offset = dmin * (float)p->min[s];
        for (uint32_t i = s * f->sub_items; i < (s + 1u) * f->sub_items; i++)
            p->codes[i] = nearest_code(f, unit, offset, values[i]);
    }
}

/* ---- laying them down ---- */

static void put_u16(uint8_t *to, uint16_t value)
{
    memcpy(to, &value, sizeof value);
}

/* 2 * half codes in half bytes: the low nibbles, then the high ones. */
static void put_nibbles(const uint8_t *codes, uint32_t half, uint8_t *to)
{
    for (uint32_t i = 0; i < half; i++)
        to[i] = (uint8_t)((codes[i] & 15) | codes[i + half] << 4);
}

/* A bit of each of 256 codes: bit i / 32 of byte i % 32. */
static void put_bit(const uint8_t *codes, uint32_t bit, uint8_t to[32])
{
    for (uint32_t i = 0; i < 256; i++)
        to[i % 32] |= (uint8_t)((codes[i] >> bit & 1) << (i / 32));
}

/* Value 128 n + 32 j + l: bits 2j of byte 32 n + l. */
static void put_pairs(const uint8_t *codes, uint32_t first, uint8_t to[64])
{
    for (uint32_t i = 0; i < 256; i++)
        to[i / 128 * 32 + i % 32] |= (uint8_t)((codes[i] >> first & 3) << (i / 32 % 4 * 2));
}

static void put_small(const struct block_format *f, const struct block_parts *p, uint8_t *out)
{
    uint8_t *at = out + (f->min_sign ? 4 : 2);
    put_u16(out, p->d);
    if (f->min_sign)
        put_u16(out + 2, p->dmin);
    for (uint32_t i = 0; f->bits == 5 && i < 32; i++)
        at[i / 8] |= (uint8_t)((p->codes[i] >> 4 & 1) << i % 8);
    put_nibbles(p->codes, 16, at + (f->bits == 5 ? 4 : 0));
}

static void put_q2_k(const struct block_parts *p, uint8_t *out)
{
    for (uint32_t s = 0; s < 16; s++)
        out[s] = (uint8_t)(p->scale[s] | p->min[s] << 4);
    put_pairs(p->codes, 0, out + 16);
    put_u16(out + 80, p->d);
    put_u16(out + 82, p->dmin);
}

static void put_q3_k(const struct block_parts *p, uint8_t *out)
{
    uint8_t *scales = out + 96;
    put_bit(p->codes, 2, out);
    put_pairs(p->codes, 0, out + 32);
    for (uint32_t s = 0; s < 16; s++) {
        uint32_t v = (uint32_t)(p->scale[s] + 32);
        scales[s % 8] |= (uint8_t)((v & 15) << (s / 8 * 4));
        scales[8 + s % 4] |= (uint8_t)(v >> 4 << (s / 4 * 2));
    }
    put_u16(out + 108, p->d);
}

/* Q4_K, and Q5_K with the fifth bits before the nibbles. */
static void put_q45_k(const struct block_format *f, const struct block_parts *p, uint8_t *out)
{
    uint8_t *scales = out + 4, *codes = out + 16;
    put_u16(out, p->d);
    put_u16(out + 2, p->dmin);
    for (uint32_t s = 0; s < 4; s++) {
        scales[s] = (uint8_t)(p->scale[s] | p->scale[s + 4] >> 4 << 6);
        scales[s + 4] = (uint8_t)(p->min[s] | p->min[s + 4] >> 4 << 6);
        scales[s + 8] = (uint8_t)((p->scale[s + 4] & 15) | p->min[s + 4] << 4);
    }
    if (f->bits == 5) {
        put_bit(p->codes, 4, codes);
        codes += 32;
    }
    for (uint32_t j = 0; j < 4; j++)
        put_nibbles(p->codes + 64 * j, 32, codes + 32 * j);
}

/* Value 128 n + 32 j + l: nibble j / 2 of low byte 64 n + 32 (j % 2) + l. */
static void put_q6_k(const struct block_parts *p, uint8_t *out)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t n = i / 128, j = i / 32 % 4, l = i % 32;
        out[64 * n + 32 * (j % 2) + l] |= (uint8_t)((p->codes[i] & 15) << (j / 2 * 4));
    }
    put_pairs(p->codes, 4, out + 128);
    memcpy(out + 192, p->scale, 16);
    put_u16(out + 208, p->d);
}

static void put_iq4_xs(const struct block_parts *p, uint8_t *out)
{
    uint32_t high = 0;
    put_u16(out, p->d);
    for (uint32_t s = 0; s < 8; s++) {
        uint32_t v = (uint32_t)(p->scale[s] + 32);
        out[4 + s / 2] |= (uint8_t)((v & 15) << (s % 2 * 4));
        high |= v >> 4 << 2 * s;
        put_nibbles(p->codes + 32 * s, 16, out + 8 + 16 * s);
    }
    put_u16(out + 2, (uint16_t)high);
}

void encode_block(const struct block_format *f, const float *values, uint8_t *out)
{
    struct block_parts p;
    choose_parts(f, values, &p);
    memset(out, 0, f->bytes);
    switch (f->type) { /* encode.c has Q8_0 */
    case GGUF_TENSOR_Q2_K:
        put_q2_k(&p, out);
        break;
    case GGUF_TENSOR_Q3_K:
        put_q3_k(&p, out);
        break;
    case GGUF_TENSOR_Q4_K:
    case GGUF_TENSOR_Q5_K:
        put_q45_k(f, &p, out);
        break;
    case GGUF_TENSOR_Q6_K:
        put_q6_k(&p, out);
        break;
    case GGUF_TENSOR_IQ4_XS:
        put_iq4_xs(&p, out);
        break;
    default:
        put_small(f, &p, out);
    }
}
