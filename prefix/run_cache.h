/*
 * prefix/run_cache.h - runs of stored prefixes that stay in memory, those of most worth
 * (--prefix-cache-mb).
 *
 * What: a run is some neighbours' entries of one layer (prefix/chunk_keys.h). A use counts by its
 * importance: the share of the layer's attention that the run's tokens have had from the queries
 * that use it. A run's worth is the sum over its uses while it is here, so importance times
 * frequency of what stays; one that comes has its one use, as nothing is kept of those that are not
 * here. Half of a worth is left after as many uses of any runs as four times the cache holds,
 * because a document of yesterday is worth less than one of today. A run that was read comes in the
 * place of one of less worth, or not at all. Whose turn it is to go is found as Valkey does it: of
 * some drawn ones the one of least worth; an order of all would cost more than it brings. A run's
 * name has the stamp of its chunk, which no other chunk gets: what the store drops is not found any
 * more, and goes by its worth. Who calls it: gpu_worker/selected.c. Concurrency: one thread.
 * Failure: HILL_E_NOMEM, HILL_E_INVALID (the cap holds no run).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct run_name {
    uint64_t stamp;      /* of the chunk */
    uint32_t layer, run; /* run: of the chunk's */
};

struct run_cache;

/* cap_bytes: of all that it takes, tables included. by_age: a run's worth is when it was last of
 * use, and nothing else (LRU, of the drawn ones); for comparisons. */
int run_cache_open(struct run_cache **out, uint64_t cap_bytes, uint32_t run_bytes, bool by_age);
void run_cache_close(struct run_cache *cache); /* NULL allowed */

uint32_t run_cache_room(const struct run_cache *cache); /* runs, at most */
uint64_t run_cache_bytes(const struct run_cache *cache);

/* A use of this importance, 0 .. 1. Its entries, until the next put; NULL: they are not there. */
const void *run_cache_use(struct run_cache *cache, const struct run_name *name, double importance);
/* Entries that were read for such a use; a copy is kept, or not. One that is there stays so. */
void run_cache_put(struct run_cache *cache, const struct run_name *name, double importance,
                   const void *entries);
/* Its entries are wrong: they are not found any more. Nothing, if they are not there. */
void run_cache_drop(struct run_cache *cache, const struct run_name *name);
