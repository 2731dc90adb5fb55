/*
 * kv/bounds.h - bounds of keys in chunks, and how many tokens may matter by them: what leoam looks
 * at.
 *
 * Chunks are of positions, so that nothing depends on where a key lies [I7]: coarse ones of
 * KV_CHUNK_COARSE tokens, each of fine ones of KV_CHUNK_FINE. A chunk's abstract is the least and
 * the largest value of each key dimension over its tokens (FP16, [least | largest][key dims]). With
 * a query head it bounds the product of every key of the chunk: sum over d of max(q_d least_d, q_d
 * largest_d). The attention mass of chunks, as if all their keys met their bounds, ranks them.
 * Source: LeoAM (chunk abstracts, adaptive chunks), as the paper's baseline describes it.
 * Who calls it: the scorer. Concurrency: pure functions.
 */
#pragma once

#include <stdint.h>

#include "kv/geometry.h"
#include "kv/mass.h"
#include "kv/select.h"

#define KV_CHUNK_FINE   16u
#define KV_CHUNK_COARSE 64u
/* Tokens whose keys are looked at, for each token that may be selected: bounds are loose. */
#define KV_CANDIDATES_PER_TOKEN 2u
/* Tokens of coarse chunks that are refined, for each token to be looked at. */
#define KV_REFINED_PER_CANDIDATE 2u

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

/* The positive and negative parts of a query that kv_mass_query prepared: kv_mass_ops.logits of the
 * positive ones with the largest values and of the negative ones with the least, added, are the
 * bound. */
void kv_bounds_query(const struct kv_geometry *g, const float *prepared, float *positive,
                     float *negative);

/* Tokens to look at so that k of n can be selected: those that are not forced. */
static inline uint32_t kv_bounds_candidates(const struct kv_selection_settings *s, uint32_t n)
{
    uint64_t k = kv_budget_tokens(s, n), forced = (uint64_t)s->sinks + s->window;
    uint64_t most = n > forced ? n - forced : 0;
    uint64_t wanted = k > forced ? (k - forced) * KV_CANDIDATES_PER_TOKEN : 0;
    return (uint32_t)(wanted < most ? wanted : most);
}
