/*
 * cpu_scorer/mass_table.h - the attention mass of one query's tokens, worked out on the scoring
 * threads (kv/mass.h).
 *
 * What: mass_table_begin takes a query; keys come in any order from anywhere (mass_table_keys, by
 * several threads, each position once); mass_table_finish turns the logits into masses and scores.
 * h2o ranks by the sum over all queries so far, this one included (mass_sums.h); oracle ranks by
 * this query's mass alone. Memory: counted in M_0 (kv/plan.c). Who calls it: evaluate_mass.c.
 * Concurrency: mass_table_keys by the pool's threads between begin and finish, the rest by the data
 * thread. Failure: HILL_E_NOMEM at create; HILL_E_PROTOCOL when tokens are missing.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "cpu_scorer/scoring.h"
#include "kv/mass.h"

struct mass_table;

/* HILL_E_NOMEM. */
int mass_table_create(struct mass_table **out, const struct kv_geometry *g,
                      const struct kv_mass_ops *ops, uint32_t ctx_tokens);
void mass_table_destroy(struct mass_table *t);
uint64_t mass_table_bytes(const struct mass_table *t);

/* q [n_heads][head_dim] over positions 0 .. n_tokens - 1. */
void mass_table_begin(struct mass_table *t, const float *q, uint32_t n_tokens);

/* n keys, FP16 [n][stride_halfs]; those at positions from n_tokens on are left out. */
void mass_table_keys(struct mass_table *t, const uint16_t *keys, uint64_t stride_halfs, uint32_t n,
                     const uint32_t *positions);

/* There is no key at this position: it has no mass. */
void mass_table_leave_out(struct mass_table *t, uint32_t position);

/* How many keys were there since begin, those left out among them. */
uint32_t mass_table_count(const struct mass_table *t);

/* Of sums over queries: those before this one, 0 from token n_before on; those with it go to after,
 * unless that is NULL. */
struct mass_ranking {
    const float *before;
    uint32_t n_before;
    float *after; /* [n_tokens] */
};

/* Scores [n_tokens] for the selector, by the sums with this query, or (ranking NULL) by its masses
 * alone. */
int mass_table_finish(struct mass_table *t, struct score_pool *pool,
                      const struct mass_ranking *ranking, uint16_t *scores);
