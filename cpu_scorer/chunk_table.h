/*
 * cpu_scorer/chunk_table.h - bounds of the keys of all chunks, and which chunks' keys one query
 * looks at (leoam; kv/bounds.h).
 *
 * What: abstracts of fine and coarse chunks, kept as tokens are appended, wherever those go; the
 * fine ones in the hot segment, each with a check once it is whole, so that they outlive the
 * scorer. chunk_table_begin works out the attention mass of coarse chunks by their bounds; the best
 * ones are refined, and of their fine chunks those with the most mass by their bounds are
 * candidates, until there are enough tokens (kv_bounds_candidates). Ties go to the newer chunk.
 * Then keys of candidates come in any order (chunk_table_keys, by several threads, each position
 * once), and chunk_table_finish gives scores: the candidates' attention mass among themselves, 0
 * for the others. A chunk that is not whole below n_tokens is refined, or a candidate, without
 * being bounded: tokens beyond may have come already, and the search must not depend on when.
 * Memory: counted in M_0 (kv/plan.c). Who calls it: evaluate_chunks.c. Concurrency:
 * chunk_table_keys by the pool's threads between begin and finish, the rest by the data thread.
 * Failure: HILL_E_NOMEM at create; HILL_E_PROTOCOL when keys are missing.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "cpu_scorer/scoring.h"
#include "kv/bounds.h"

struct chunk_table;

/* states: of lists, stride bytes each (kv_plan_state_bytes). */
int chunk_table_create(struct chunk_table **out, const struct kv_geometry *g,
                       const struct kv_mass_ops *ops, uint32_t ctx_tokens, uint32_t n_sequences,
                       uint8_t *states, uint64_t stride);
void chunk_table_destroy(struct chunk_table *t);
uint64_t chunk_table_bytes(const struct chunk_table *t);

/* n entries (K first, entry_halfs apart) at positions from `first` on; in order, from 0. */
void chunk_table_append(struct chunk_table *t, uint32_t sequence, uint32_t layer, uint32_t first,
                        uint32_t n, const uint16_t *entries, uint32_t entry_halfs);

/* An earlier scorer's, of n_tokens: the whole chunks' abstracts are what they were. The tokens
 * behind them, from the position that is returned on, are to be appended again. Negative:
 * HILL_E_DAMAGED. */
int64_t chunk_table_adopt(struct chunk_table *t, uint32_t sequence, uint32_t layer,
                          uint32_t n_tokens);

/* q [n_heads][head_dim] over positions 0 .. n_tokens - 1. */
void chunk_table_begin(struct chunk_table *t, struct score_pool *pool, uint32_t sequence,
                       uint32_t layer, const struct kv_selection_settings *settings, const float *q,
                       uint32_t n_tokens);

/* The candidates' fine chunks, ascending: chunk c has positions c * KV_CHUNK_FINE on. */
const uint32_t *chunk_table_chunks(const struct chunk_table *t, uint32_t *n);
/* Candidates: tokens of those chunks below n_tokens that are not forced. */
bool chunk_table_wants(const struct chunk_table *t, uint32_t position);

/* n keys, FP16 [n][stride_halfs]; those that are no candidates are left out. */
void chunk_table_keys(struct chunk_table *t, const uint16_t *keys, uint64_t stride_halfs,
                      uint32_t n, const uint32_t *positions);

/* How many keys have come, of how many (tokens of candidates' chunks that are none count as come).
 */
uint32_t chunk_table_count(const struct chunk_table *t, uint32_t *wanted);

/* Scores [n_tokens] for the selector. */
int chunk_table_finish(struct chunk_table *t, struct score_pool *pool, uint16_t *scores);
