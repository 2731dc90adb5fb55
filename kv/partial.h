/*
 * kv/partial.h - a part of the columns of each KV head's keys: what prefetch evaluates.
 *
 * The columns with the largest sums of |k| over the first KV_PARTIAL_TOKENS keys of a layer; the
 * partial key [n_kv_heads][kv_partial_dims] has them in ascending order, the partial query too, and
 * is scaled so that kv_mass_query divides by the whole head's sqrt(head_dim). Source: InfiniGen
 * (partial keys). It keeps 3 of 10 columns by |q| + |k| after the prefill, of weights that were
 * rotated so that few columns matter. Here weights are as they are, and the drive's plane of keys
 * is written as the keys come; 3 of 10 columns then lose nearly all answers of the reference model,
 * half of them few, and |q| in the sums finds less than |k| alone (docs/policies.md). Figure
 * "policies" has both beside one another: HILL_TEST_FEW_COLUMNS=1 is 3 of 10. The variable is read
 * at a process's start and must be the same in all of them, else their planes differ in size. Who
 * calls it: the scorer. Concurrency: pure functions but for that.
 */
#pragma once

#include <stdint.h>

#include "kv/geometry.h"

#define KV_PARTIAL_TOKENS 64u

/* Columns of a head that are kept: half of them, or 3 of 10; one at least. */
uint32_t kv_partial_dims(const struct kv_geometry *g);

/* The same model with heads of that many columns. */
static inline struct kv_geometry kv_partial_geometry(const struct kv_geometry *g)
{
    return (struct kv_geometry){g->n_layers, g->n_heads, g->n_kv_heads, kv_partial_dims(g)};
}

/* columns [n_kv_heads][kv_partial_dims], of n keys (FP16 [n][stride_halfs]). Of equal sums the
 * lower column is in. What is no number counts as 65504. */
void kv_partial_columns(const struct kv_geometry *g, const uint16_t *keys, uint64_t stride_halfs,
                        uint32_t n, uint16_t *columns);

/* A key's kept columns. */
void kv_partial_key(const struct kv_geometry *g, const uint16_t *columns, const uint16_t *key,
                    uint16_t *out);

/* q [n_heads][head_dim] -> out [n_heads][kv_partial_dims]. */
void kv_partial_query(const struct kv_geometry *g, const uint16_t *columns, const float *q,
                      float *out);
