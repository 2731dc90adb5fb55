/*
 * kv/geometry.h - what a KV entry is, and how many bytes it takes.
 *
 * A KV entry is the key and value of one token in one layer, FP16:
 *     K [n_kv_heads][head_dim], then V [n_kv_heads][head_dim].
 * Its digest, which is all that scoring reads: INT8 or INT4 mantissas [n_kv_heads][head_dim] and
 * one exponent byte per KV head (kv/score.h); how digests lie: kv/group.h.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define KV_MAX_LAYERS   1024u
#define KV_MAX_HEADS    1024u
#define KV_MAX_KV_HEADS 256u
#define KV_MAX_HEAD_DIM 512u
/* of a key's KV heads, and of a query's heads; shift window 24 + |m_q m_k| 14 bits + this many
 * products must stay below 63 bits, see score.h */
#define KV_MAX_KEY_DIMS 65536u
#define KV_MAX_TOKENS   (1u << 24)

struct kv_geometry {
    uint32_t n_layers, n_heads, n_kv_heads, head_dim;
    uint32_t digest_bits; /* of a key's mantissa: 8 or 4 (--score-bits); 0 means 8 */
};

/* HILL_E_INVALID when a member is 0 or above its maximum, n_heads is no multiple of n_kv_heads,
 * n_heads * head_dim > KV_MAX_KEY_DIMS, or digest_bits is none of those. */
int kv_geometry_check(const struct kv_geometry *g, struct hill_why *why);

static inline uint32_t
kv_key_dims(const struct kv_geometry *g) /* values of one key over all KV heads */
{
    return g->n_kv_heads * g->head_dim;
}

static inline uint32_t kv_digest_bits(const struct kv_geometry *g)
{
    return g->digest_bits == 0 ? 8 : g->digest_bits;
}

static inline bool kv_geometry_equal(const struct kv_geometry *a, const struct kv_geometry *b)
{
    return a->n_layers == b->n_layers && a->n_heads == b->n_heads &&
           a->n_kv_heads == b->n_kv_heads && a->head_dim == b->head_dim &&
           kv_digest_bits(a) == kv_digest_bits(b);
}

static inline uint32_t kv_entry_bytes(const struct kv_geometry *g)
{
    return 4u * kv_key_dims(g);
}
