/*
 * prefix/chunk_order.h - in which order a full chunk's entries lie on the drive: those of a layer
 * that were attended to most first, so that important tokens share pages (IMPRESS).
 *
 * What: order [CHUNK_TOKENS] of a layer: at place i lies the entry of the chunk's token order[i]. A
 * stored chunk is [layer][place] entries, then [layer][place] uint8_t order; a chunk with fewer
 * tokens has neither order nor another place for a token. A run of places that fills whole pages
 * is read for its most important token; the others beside it are the next important ones, while
 * neighbours in a text are what happens to stand there. Who calls it: drive_store.c, chunk_keys.c,
 * gpu_worker/selected.c. Pure. Failure: HILL_E_NOMEM where said.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "prefix/chunk_file.h"

/* As they stand in the text. */
void chunk_order_none(uint8_t *order);
/* By what each token was attended to, mass [CHUNK_TOKENS], the most first; of two that are equal
 * the earlier one; what is no number counts as 0. keeps_first: the chunk's first token stays at
 * place 0 (of a text's first chunk: everything attends to it). */
void chunk_order_by(const float *mass, bool keeps_first, uint8_t *order);
/* Is every token there once? */
bool chunk_order_is_whole(const uint8_t *order);

/* Behind a full chunk's entries: [layer][CHUNK_TOKENS]. */
static inline uint64_t chunk_order_bytes(const struct chunk_terms *terms)
{
    return (uint64_t)terms->n_layers * CHUNK_TOKENS;
}

/* entries [layer][CHUNK_TOKENS] as they stand in the text into `stored`, with their orders behind
 * them: chunk_stored_bytes. NULL: the text's order. */
void chunk_order_store(const struct chunk_terms *terms, const void *entries, const uint8_t *orders,
                       void *stored);
/* The other way round, in place. HILL_E_NOMEM; HILL_E_DAMAGED: an order is none. */
int chunk_order_restore(const struct chunk_terms *terms, void *stored);
