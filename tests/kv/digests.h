/* tests/kv/digests.h - a token's digest of all heads: mantissas [key dims], exponents
 * [n_kv_heads]. */
#pragma once

#include "kv/group.h"

static inline void kv_digest_put(const struct kv_geometry *g, uint8_t *groups, uint64_t index,
                                 const int8_t *mantissas, const uint8_t *exponents)
{
    for (uint32_t h = 0; h < g->n_kv_heads; h++)
        kv_digest_put_head(g, groups, index, h, mantissas + (uint64_t)h * g->head_dim,
                           exponents[h]);
}

static inline void kv_digest_get(const struct kv_geometry *g, const uint8_t *groups, uint64_t index,
                                 int8_t *mantissas, uint8_t *exponents)
{
    for (uint32_t h = 0; h < g->n_kv_heads; h++)
        exponents[h] =
            kv_digest_get_head(g, groups, index, h, mantissas + (uint64_t)h * g->head_dim);
}
