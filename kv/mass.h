/*
 * kv/mass.h - the exact attention mass of tokens, from FP16 keys: what h2o and oracle rank by.
 *
 * Mass of token t under one query: the sum over attention heads h of softmax_t(q_h . k_t /
 * sqrt(head_dim)), the softmax over all n tokens. Three passes: logits of each key into the row of
 * its position (rows [n][kv_mass_row]: one float a head, padded to whole vectors); the heads'
 * maxima; exponentials, sums and masses. Order: every dot product, exponential and sum is taken in
 * an order that follows from shapes and positions alone, blocks of KV_MASS_BLOCK positions one
 * after the other, so that the same keys give the same bits wherever they lie, in whatever order
 * they come, with any number of threads and on each of the paths (plain C, AVX2, AVX-512; no
 * contraction, no reassociation) [I7]. Halves that are no numbers count as the largest one, queries
 * that are none as 0. Source: H2O (accumulated attention); the paper's baselines.
 *
 * Who calls it: the scorer, blocks in parallel. Concurrency: pure functions.
 */
#pragma once

#include <stdint.h>
#include <string.h>

#include "kv/geometry.h"

#define KV_MASS_LANES 16u
#define KV_MASS_BLOCK 256u /* positions whose sums are taken together */

/* Floats of a token's row: heads, padded. */
static inline uint32_t kv_mass_row(const struct kv_geometry *g)
{
    return (g->n_heads + KV_MASS_LANES - 1) / KV_MASS_LANES * KV_MASS_LANES;
}

/* Floats of a head of a prepared query, and of the whole. */
static inline uint32_t kv_mass_head(const struct kv_geometry *g)
{
    return (g->head_dim + KV_MASS_LANES - 1) / KV_MASS_LANES * KV_MASS_LANES;
}

static inline uint64_t kv_mass_query_floats(const struct kv_geometry *g)
{
    return (uint64_t)g->n_heads * kv_mass_head(g);
}

/* q [n_heads][head_dim] after rotary embedding -> out [n_heads][kv_mass_head], divided by
 * sqrt(head_dim). */
void kv_mass_query(const struct kv_geometry *g, const float *q, float *out);

struct kv_mass_ops {
    const char *name; /* as kv_score_choose knows it */
    /* Logits of n keys (FP16 bits [n][stride_halfs], the key first) into the rows of their
     * positions; those from n_tokens on are skipped. query: kv_mass_query's, 64-byte aligned, as
     * rows are. What pads a row is 0. */
    void (*logits)(const struct kv_geometry *g, const float *query, const uint16_t *keys,
                   uint64_t stride_halfs, uint32_t n, const uint32_t *positions, uint32_t n_tokens,
                   float *rows);
    /* Of n consecutive rows: the maximum of each column into max [row]. */
    void (*maximum)(const float *rows, uint32_t row, uint32_t n, float *max);
    /* rows become exp(rows - max), their sums down a column go into sum [row]. */
    void (*weigh)(float *rows, uint32_t row, uint32_t n, const float *max, float *sum);
    /* mass [n] of n rows of weights: the sum over columns of weight * scale [row]. */
    void (*mass)(const float *rows, uint32_t row, uint32_t n, const float *scale, float *mass);
};

/* By the name of a scoring path ("auto", "reference", "avx2", "avx512", "avx512vnni"); NULL when
 * unknown or not on this CPU. */
const struct kv_mass_ops *kv_mass_choose(const char *name);

/* max [n_blocks][row] of kv_mass_ops.maximum -> the columns' maxima, into block 0. */
void kv_mass_merge_max(float *max, uint32_t row, uint32_t n_blocks);
/* sum [n_blocks][row] -> scale [row]: 1 / the columns' sums in block order; 0 for what pads. */
void kv_mass_merge_sum(const struct kv_geometry *g, const float *sum, uint32_t n_blocks,
                       float *scale);

/* A mass (or a sum of masses), 0 or more, as a score for kv_selector: monotone, 10 bits of
 * mantissa; below 2^-35 is 0, from 2^29 on the highest. */
static inline uint16_t kv_mass_score16(float mass)
{
    uint32_t bits, low = (127u - 35u) << 23;
    memcpy(&bits, &mass, sizeof bits);
    if (!(mass >= 0x1p-35f))
        return 0;
    bits = (bits - low) >> 13;
    return (uint16_t)(bits > 0xffff ? 0xffff : bits);
}
