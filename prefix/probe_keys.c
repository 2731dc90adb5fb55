/* prefix/probe_keys.c - see probe_keys.h. */
#include "prefix/probe_keys.h"

#include <string.h>

#include "base/half.h"

#define LEVELS  16u
#define AT_ONCE 64u /* columns: their levels stay in the processor's nearest cache */
#define LARGEST 65504.0f

/* Of what is beyond the largest FP16 that one: an infinity would take all of a softmax. */
static uint16_t half(float number)
{
    number = number > LARGEST ? LARGEST : number < -LARGEST ? -LARGEST : number;
    return half_from_float(number);
}

uint64_t probe_keys_bytes(uint32_t n_tokens, uint32_t n_columns)
{
    return 4ull * n_columns + (uint64_t)n_tokens * ((n_columns + 1) / 2);
}

static uint16_t read_half(const uint8_t *from, uint32_t i)
{
    uint16_t bits;
    memcpy(&bits, from + 2ull * i, sizeof bits);
    return bits;
}

static void pack_column(const uint16_t *keys, uint32_t n_tokens, uint32_t n_columns,
                        uint32_t column, uint8_t *to)
{
    float least = 0, most = 0;
    bool any = false;
    for (uint32_t t = 0; t < n_tokens; t++) {
        float x = half_to_float(keys[(uint64_t)t * n_columns + column]);
        if (x != x)
            continue;
        least = !any || x < least ? x : least;
        most = !any || x > most ? x : most;
        any = true;
    }
    const uint16_t kept[2] = {half(least), half((most - least) / (LEVELS - 1))};
    float step = half_to_float(kept[1]);
    uint8_t *nibbles = to + 4ull * n_columns + column / 2;
    memcpy(to + 2ull * column, &kept[0], 2);
    memcpy(to + 2ull * (n_columns + column), &kept[1], 2);
    for (uint32_t t = 0; t < n_tokens; t++) {
        float steps = (half_to_float(keys[(uint64_t)t * n_columns + column]) - least) / step + 0.5f;
        uint8_t n = steps >= LEVELS - 1 ? LEVELS - 1 : steps >= 1 ? (uint8_t)steps : 0;
        nibbles[(uint64_t)t * ((n_columns + 1) / 2)] |= (uint8_t)(n << (column % 2 * 4));
    }
}

void probe_keys_pack(const uint16_t *keys, uint32_t n_tokens, uint32_t n_columns, uint8_t *to)
{
    memset(to, 0, probe_keys_bytes(n_tokens, n_columns));
    for (uint32_t c = 0; c < n_columns; c++)
        pack_column(keys, n_tokens, n_columns, c, to);
}

static void unpack_columns(const uint8_t *from, uint32_t n_tokens, uint32_t n_columns,
                           uint32_t first, uint32_t n, uint16_t *keys)
{
    uint16_t levels[AT_ONCE][LEVELS];
    for (uint32_t c = 0; c < n; c++) {
        float least = half_to_float(read_half(from, first + c)),
              step = half_to_float(read_half(from, n_columns + first + c));
        for (uint32_t l = 0; l < LEVELS; l++)
            levels[c][l] = half(least + (float)l * step);
    }
    for (uint32_t t = 0; t < n_tokens; t++) {
        const uint8_t *nibbles =
            from + 4ull * n_columns + (uint64_t)t * ((n_columns + 1) / 2) + first / 2;
        uint16_t *to = keys + (uint64_t)t * n_columns + first;
        for (uint32_t c = 0; c < n; c++)
            to[c] = levels[c][nibbles[c / 2] >> (c % 2 * 4) & 15];
    }
}

void probe_keys_unpack(const uint8_t *from, uint32_t n_tokens, uint32_t n_columns, uint16_t *keys)
{
    for (uint32_t first = 0; first < n_columns; first += AT_ONCE) {
        uint32_t rest = n_columns - first;
        unpack_columns(from, n_tokens, n_columns, first, rest < AT_ONCE ? rest : AT_ONCE, keys);
    }
}
