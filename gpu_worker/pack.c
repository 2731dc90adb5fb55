/*
 * gpu_worker/pack.c - rows of a GGUF tensor into a panel. See pack.h.
 */
#include "gpu_worker/pack.h"

#include <string.h>

#define LANES 16u

/* Bytes of what a block begins with, and of the scales before each 32 codes. */
static uint32_t head_bytes(const struct block_format *f)
{
    return f->min_sign ? 2 * LANES * 2 : LANES * 2;
}

static uint32_t scale_bytes(const struct block_format *f)
{
    if (!f->byte_scales)
        return 0;
    return f->sub_items == 16 || f->min_sign ? 2 * LANES : LANES;
}

static uint32_t part_bytes(const struct block_format *f)
{
    return scale_bytes(f) + 64 * f->bits;
}

static uint32_t packed_block_bytes(const struct block_format *f)
{
    return head_bytes(f) + f->items / 32 * part_bytes(f);
}

uint64_t pack_panel_bytes(const struct block_format *f, uint32_t k)
{
    uint64_t bytes =
        f->bits ? (uint64_t)k / f->items * packed_block_bytes(f) : (uint64_t)k * LANES * f->bytes;
    return (bytes + 63) / 64 * 64;
}

/* ---- codes of 32 values of a lane ---- */

/* Bits `first` .. of each of four codes, in a word. */
static uint32_t four_codes(const uint8_t *codes, uint32_t first, uint32_t mask)
{
    uint32_t word;
    memcpy(&word, codes, 4);
    return word >> first & mask;
}

static void add_word(uint8_t *vectors, uint32_t vector, uint32_t lane, uint32_t word)
{
    uint8_t *to = vectors + 64 * vector + 4 * lane;
    uint32_t old;
    memcpy(&old, to, 4);
    old |= word;
    memcpy(to, &old, 4);
}

static void add_codes(uint32_t bits, const uint8_t codes[32], uint32_t lane, uint8_t *out)
{
    uint32_t low = bits == 8 ? 8 : bits >= 4 ? 4 : 2;
    uint32_t mask = low == 8 ? 0xffffffffu : low == 4 ? 0x0f0f0f0fu : 0x03030303u;
    uint8_t *high = out + 64 * low;
    for (uint32_t g = 0; g < 8; g++) {
        const uint8_t *four = codes + 4 * g;
        add_word(out, g % low, lane, four_codes(four, 0, mask) << (g / low * low));
        if (bits - low == 1)
            add_word(high, 0, lane, four_codes(four, low, 0x01010101u) << g);
        else if (bits - low == 2)
            add_word(high, g % 2, lane, four_codes(four, low, 0x03030303u) << (g / 2 * 2));
    }
}

/* ---- scales ---- */

static void put_half(uint8_t *to, uint32_t lane, uint16_t half)
{
    memcpy(to + 2 * lane, &half, 2);
}

static void add_head(const struct block_format *f, const struct block_parts *p, uint32_t lane,
                     uint8_t *out)
{
    put_half(out, lane, p->d);
    if (f->min_sign)
        put_half(out + 2 * LANES, lane, p->dmin);
}

/* Those of the i-th 32 values of a block. */
static void add_scales(const struct block_format *f, const struct block_parts *p, uint32_t i,
                       uint32_t lane, uint8_t *out)
{
    if (f->byte_scales && f->sub_items == 16) {
        for (uint32_t s = 2 * i; s < 2 * i + 2; s++)
            out[s % 2 * LANES + lane] =
                (uint8_t)(f->min_sign ? p->scale[s] | p->min[s] << 4 : p->scale[s]);
    } else if (f->byte_scales) {
        out[lane] = (uint8_t)p->scale[i];
        if (f->min_sign)
            out[LANES + lane] = p->min[i];
    }
}

/* ---- panels ---- */

static void pack_values(const struct block_format *f, uint32_t k, const uint8_t *const rows[16],
                        uint8_t *out)
{
    for (uint32_t lane = 0; lane < LANES; lane++)
        for (uint32_t i = 0; rows[lane] && i < k; i++)
            memcpy(out + ((uint64_t)i * LANES + lane) * f->bytes,
                   rows[lane] + (uint64_t)i * f->bytes, f->bytes);
}

void pack_panel(const struct block_format *f, uint32_t k, const uint8_t *const rows[16],
                uint8_t *out)
{
    memset(out, 0, pack_panel_bytes(f, k));
    if (!f->bits) {
        pack_values(f, k, rows, out);
        return;
    }
    for (uint32_t b = 0; b < k / f->items; b++, out += packed_block_bytes(f))
        for (uint32_t lane = 0; lane < LANES; lane++) {
            if (!rows[lane])
                continue;
            struct block_parts parts;
            block_split(f, rows[lane] + (uint64_t)b * f->bytes, &parts);
            add_head(f, &parts, lane, out);
            for (uint32_t i = 0; i < f->items / 32; i++) {
                uint8_t *part = out + head_bytes(f) + i * part_bytes(f);
                add_scales(f, &parts, i, lane, part);
                add_codes(f->bits, parts.codes + 32 * i, lane, part + scale_bytes(f));
            }
        }
}
