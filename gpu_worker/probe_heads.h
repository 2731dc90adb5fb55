/*
 * gpu_worker/probe_heads.h - which KV heads of each layer stand for all when important tokens are
 * looked for.
 *
 * What: the last tokens of a text of some thousand (probe_text.txt: Moby-Dick, 1851) are computed
 * over those before; each KV head ranks these by what its queries attend to. The heads whose
 * highest fifth has most in common with that of all heads together are chosen, layer by layer. The
 * same model has the same heads on every run of one device. Who calls it: stored.c, once for a
 * store: the choice is kept with the keys that follow from it (prefix/chunk_keys.h). Takes as long
 * as a prompt of PROBE_PAST tokens. Failure: HILL_E_UNSUPPORTED (the text has too few tokens),
 * HILL_E_TOO_LONG (more than the context), HILL_E_NOSPACE (--gpu-kv-mb), HILL_E_NOMEM, the
 * engine's.
 */
#pragma once

#include <stdint.h>

#include "base/error.h"

struct worker;

#define PROBE_PAST  1024u
#define PROBE_ASKED 64u
#define PROBE_TOP   0.2

/* heads [n_layers][n_probes], ascending in each layer. The engine is configured, and no prompt is
 * under way. */
int probe_heads_choose(struct worker *w, uint32_t n_probes, uint16_t *heads, struct hill_why *why);

/* Of n_heads heads the n_probes whose highest fifth of n tokens has most in common with that of all
 * of them together: sums [n_heads][n]. Of two that are equal the lower one. HILL_E_NOMEM. */
int probe_heads_compare(const float *sums, uint32_t n_heads, uint32_t n, uint32_t n_probes,
                        uint16_t *heads);
