/*
 * prefix/run_cache.h - runs of stored prefixes that stay on the device (--prefix-gpu-cache-mb) and
 * in memory (--prefix-cache-mb), those of most worth.
 *
 * What: a run is some neighbours' entries of one layer (prefix/chunk_keys.h). A use counts by its
 * importance: the share of the layer's attention that the run's tokens have had from the queries
 * that use it. A run's worth is the sum over its uses while it is here, so importance times
 * frequency of what stays; one that comes has its one use, as nothing is kept of those that are not
 * here. Half of a worth is left after as many uses of any runs as four times the cache holds,
 * because a document of yesterday is worth less than one of today. A run's name has the stamp of
 * its chunk, which no other chunk gets: what the store drops is not found any more, and goes by its
 * worth.
 * Two levels, either of which may be missing: the device and memory. Invariants:
 *   - A run is in one place, of one of the levels: the two exclude each other.
 *   - A run that was read, or was of use in memory, goes to the device where that has room or a
 *     victim of less worth. One that was read and did not get there goes to memory, where that has
 *     room or a victim of less worth, or stays away.
 *   - The device's victim goes down: into the place of the run that has come from memory; for one
 *     that was read, into memory where that has room or a victim of less worth still, or it is
 *     gone. A victim of memory is gone.
 *   - A run changes its place in run_cache_put alone. What run_cache_use has found stays where it
 *     is until then, so uses of several runs may be answered before the first of them is read.
 * A victim is found as Valkey does it: of some drawn ones the one of least worth; an order of all
 * would cost more than it brings. So the runs of most worth are on the device as far as draws find
 * the others. Who calls it: gpu_worker. Concurrency: one thread. Failure: HILL_E_NOMEM,
 * HILL_E_INVALID (a level's cap holds no run), and what the device says: the runs that were to be
 * moved are not found any more.
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

/* A run's entries into a slot of the device, or out of one: that is over when these return. */
struct run_device {
    int (*write)(void *context, uint32_t slot, const void *entries, struct hill_why *why);
    int (*read)(void *context, uint32_t slot, void *entries, struct hill_why *why);
    void *context;
};

struct run_cache_terms {
    uint32_t run_bytes;
    bool by_age; /* a run's worth is when it was last of use, and nothing else (LRU, of the drawn
                    ones); for comparisons */
    /* Of all that a level takes, its tables (which are in memory) included. 0: there is none. */
    uint64_t memory_bytes, device_bytes;
    struct run_device device;
};

int run_cache_open(struct run_cache **out, const struct run_cache_terms *terms);
void run_cache_close(struct run_cache *cache); /* NULL allowed */

uint32_t run_cache_room(const struct run_cache *cache);   /* runs in memory, at most */
uint32_t run_cache_slots(const struct run_cache *cache);  /* runs on the device, at most */
uint64_t run_cache_bytes(const struct run_cache *cache);  /* of memory */
uint64_t run_cache_raised(const struct run_cache *cache); /* runs that went from memory up */

/* Until the next put or drop. */
struct run_place {
    const void *entries; /* in memory; NULL: on the device, in this slot */
    uint32_t slot;
};

/* A use of this importance, 0 .. 1. true: it is there. */
bool run_cache_use(struct run_cache *cache, const struct run_name *name, double importance,
                   struct run_place *place);
/* Is it there? No use of it. */
bool run_cache_has(const struct run_cache *cache, const struct run_name *name);
/* After a use: one that was not there comes with the entries that were read for it, of which a
 * copy is kept, or not; one that was in memory may go up. Nothing for one on the device. */
int run_cache_put(struct run_cache *cache, const struct run_name *name, double importance,
                  const void *entries, struct hill_why *why);
/* Its entries are wrong: they are not found any more. Nothing, if they are not there. */
void run_cache_drop(struct run_cache *cache, const struct run_name *name);
