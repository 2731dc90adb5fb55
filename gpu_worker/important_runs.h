/*
 * gpu_worker/important_runs.h - which runs of tokens of a prefix are important: those whose tokens
 * are attended to most (pure).
 *
 * A run is so many neighbours that their entries fill whole pages of the disk
 * (prefix/chunk_keys.h): what is loaded with a token anyway takes part as well. The first run has
 * the sinks, the last ones the newest tokens; both are always there. Who calls it: whatever finds
 * important tokens in this folder, tests.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define IMPORTANT_LEAST  512u /* tokens, whatever the share */
#define IMPORTANT_NEWEST 32u

/* Runs of a prefix of n_tokens, of which a share is to be loaded. */
uint32_t important_runs(uint32_t n_tokens, uint32_t run_tokens, double share);
/* Of n tokens; a weight that is no number counts as 0. */
double important_mass(const float *mass, uint32_t n);
/* Of n_runs runs the `wanted` most important ones into out [wanted], ascending; mass [n_runs *
 * run_tokens] of each token. Of two that are equal the newer one. HILL_E_NOMEM. */
int important_choose(const float *mass, uint32_t n_runs, uint32_t run_tokens, uint32_t wanted,
                     uint32_t *out);
