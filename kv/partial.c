/* kv/partial.c - see partial.h. */
#include "kv/partial.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

static bool few_columns;

/* Before main: it is the same for as long as the process runs. */
__attribute__((constructor)) static void read_hook(void)
{
    few_columns = getenv("HILL_TEST_FEW_COLUMNS") != NULL;
}

uint32_t kv_partial_dims(const struct kv_geometry *g)
{
    uint32_t kept = few_columns ? (3 * g->head_dim + 5) / 10 : g->head_dim / 2;
    return kept ? kept : 1;
}

/* |value| in units of 2^-24, which is exact; a sum of 64 of them fits 64 bits. */
static uint64_t size_units(uint16_t half)
{
    uint32_t bits = half & 0x7fffu, exponent;
    bits = bits > 0x7bffu ? 0x7bffu : bits;
    exponent = bits >> 10;
    return exponent ? (uint64_t)(1024u + (bits & 1023u)) << (exponent - 1) : bits;
}

void kv_partial_columns(const struct kv_geometry *g, const uint16_t *keys, uint64_t stride_halfs,
                        uint32_t n, uint16_t *columns)
{
    uint64_t sums[KV_MAX_HEAD_DIM];
    uint32_t kept = kv_partial_dims(g);
    for (uint32_t h = 0; h < g->n_kv_heads; h++, keys += g->head_dim, columns += kept) {
        bool in[KV_MAX_HEAD_DIM] = {false};
        uint32_t out = 0;
        for (uint32_t d = 0; d < g->head_dim; d++) {
            sums[d] = 0;
            for (uint32_t i = 0; i < n; i++)
                sums[d] += size_units(keys[i * stride_halfs + d]);
        }
        for (uint32_t k = 0; k < kept; k++) {
            uint32_t best = UINT32_MAX;
            for (uint32_t d = 0; d < g->head_dim; d++)
                if (!in[d] && (best == UINT32_MAX || sums[d] > sums[best]))
                    best = d;
            in[best] = true;
        }
        for (uint32_t d = 0; d < g->head_dim; d++)
            if (in[d])
                columns[out++] = (uint16_t)d;
    }
}

void kv_partial_key(const struct kv_geometry *g, const uint16_t *columns, const uint16_t *key,
                    uint16_t *out)
{
    uint32_t kept = kv_partial_dims(g);
    for (uint32_t h = 0; h < g->n_kv_heads; h++, key += g->head_dim, columns += kept)
        for (uint32_t k = 0; k < kept; k++)
            *out++ = key[columns[k]];
}

void kv_partial_query(const struct kv_geometry *g, const uint16_t *columns, const float *q,
                      float *out)
{
    uint32_t kept = kv_partial_dims(g), group = g->n_heads / g->n_kv_heads;
    float scale = sqrtf((float)kept) / sqrtf((float)g->head_dim);
    for (uint32_t h = 0; h < g->n_heads; h++, q += g->head_dim)
        for (uint32_t k = 0; k < kept; k++)
            *out++ = q[columns[(uint64_t)(h / group) * kept + k]] * scale;
}
