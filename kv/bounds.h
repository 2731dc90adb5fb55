/*
 * kv/bounds.h - bounds of keys in chunks, and how many tokens may matter by them: what leoam ranks
 * by.
 *
 * Chunks are of positions, so that nothing depends on where a key lies: coarse ones of
 * KV_CHUNK_COARSE tokens, each of fine ones of KV_CHUNK_FINE. A chunk's abstract is the least and
 * the largest value of each key dimension over its tokens (FP16, [least | largest][key dims]). With
 * a query it bounds the product of every key of the chunk: sum over d of max(q_d least_d, q_d
 * largest_d). Queries are as for digests (kv/score.h): a group's sum, of length 1 for importance
 * norm; heads combine as there. Source: LeoAM (chunk abstracts, adaptive chunks), as the paper's
 * baseline describes it.
 * Who calls it: the scorer. Concurrency: pure functions.
 */
#ifndef HILL_KV_BOUNDS_H
#define HILL_KV_BOUNDS_H

#include <math.h>
#include <stdint.h>

#include "kv/geometry.h"
#include "kv/mass.h"
#include "kv/select.h"

#define KV_CHUNK_FINE   16u
#define KV_CHUNK_COARSE 64u
/* Tokens whose keys are looked at, for each token that may be selected: bounds are loose. */
#define KV_CANDIDATES_PER_TOKEN 2u

/* The geometry of the products: one query head a KV head. */
static inline struct kv_geometry kv_bounds_geometry(const struct kv_geometry *g)
{
    return (struct kv_geometry){g->n_layers, g->n_kv_heads, g->n_kv_heads, g->head_dim};
}

/* FP16 values of a chunk's abstract. */
static inline uint32_t kv_bounds_halves(const struct kv_geometry *g)
{
    return 2 * kv_key_dims(g);
}

/* Bytes of the abstracts of one (sequence, layer) of a context. */
uint64_t kv_bounds_bytes(const struct kv_geometry *g, uint32_t ctx_tokens);

/* Take n keys (FP16 [n][stride_halfs]) into an abstract; first: it holds none yet. What is no
 * number counts as +-65504. */
void kv_bounds_add(const struct kv_geometry *g, const uint16_t *keys, uint64_t stride_halfs,
                   uint32_t n, int first, uint16_t *abstract);

/* Of q [n_heads][head_dim]: what keys are multiplied with, [n_kv_heads][kv_mass_head], and its
 * positive and negative parts, each of that size (for kv_mass_ops.logits of kv_bounds_geometry). */
void kv_bounds_query(const struct kv_geometry *g, uint32_t importance, const float *q, float *whole,
                     float *positive, float *negative);

/* One product a KV head [n_kv_heads] -> the token's (or chunk's) value. */
float kv_bounds_combine(const struct kv_geometry *g, uint32_t importance, const float *products);

/* Tokens to look at so that k of n can be selected: those that are not forced. */
static inline uint32_t kv_bounds_candidates(const struct kv_selection_settings *s, uint32_t n)
{
    uint64_t k = kv_budget_tokens(s, n), forced = (uint64_t)s->sinks + s->window;
    uint64_t most = n > forced ? n - forced : 0;
    uint64_t wanted = k > forced ? (k - forced) * KV_CANDIDATES_PER_TOKEN : 0;
    return (uint32_t)(wanted < most ? wanted : most);
}

/* A value as a score for kv_selector: monotone, sign, 6 bits of exponent (2^-24 .. 2^40), 9 bits of
 * mantissa; above 0, which is for tokens that were not looked at. */
static inline uint16_t kv_bounds_score16(float value)
{
    float size = fabsf(value);
    uint32_t bits, low = (127u - 24u) << 23;
    memcpy(&bits, &size, sizeof bits);
    bits = size >= 0x1p-24f ? (bits - low) >> 14 : 0; /* NaN: 0 */
    bits = bits > 0x7ffe ? 0x7ffe : bits;
    return (uint16_t)(value < 0 ? 0x7fffu - bits : 0x8000u + bits);
}

#endif
