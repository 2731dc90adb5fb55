/*
 * prefix/drive_store.h - the prefix store on the drive: what finished requests have computed, for
 * runs to come (chunk_tree.h with the files of chunk_file.h).
 *
 * What: opened, it has all chunks whose records are whole, whose parents are there and that the cap
 * has room for. A chunk is written after its parent and removed before it. Entries are checked when
 * they are read: a damaged chunk is named, once, and dropped with all that follows it; then it is a
 * miss like any other. Where nothing more can be written (a full disk) the store says so once, goes
 * on with the slots that it has and makes room in those. Who calls it: the GPU worker. Concurrency:
 * one thread; calls read and write files. Failure: codes as documented.
 */
#ifndef HILL_PREFIX_DRIVE_STORE_H
#define HILL_PREFIX_DRIVE_STORE_H

#include "prefix/chunk_file.h"

struct drive_store {
    struct chunk_tree tree;
    struct chunk_file file;
    uint64_t stamp;     /* of the last chunk */
    uint32_t n_dropped; /* records that were found of no use at the start */
    bool full;          /* said: the disk takes no more */
    bool said;          /* something could not be written */
    uint64_t n_evicted;
};

/* A chunk that was found; another may have its slot when it is read. */
struct drive_chunk {
    uint32_t slot;
    uint64_t stamp;
};

/* Codes of chunk_file_open, HILL_E_NOMEM. */
int drive_store_open(struct drive_store *store, const char *dir, const struct chunk_terms *terms,
                     uint64_t cap_bytes, struct hill_why *why);
void drive_store_close(struct drive_store *store);

/* As chunk_tree_find; chunks [n / CHUNK_TOKENS + 1]. HILL_E_NOMEM. */
int drive_store_find(const struct drive_store *store, const struct chunk_query *query,
                     struct chunk_hit *hit, struct drive_chunk *chunks);
/* Its entries: [layer][chunk's n] into room for a slot. *n: tokens of the chunk. HILL_E_WOULD_BLOCK:
 * it has gone meanwhile; HILL_E_DAMAGED, or what errno says: it is dropped with what follows it. */
int drive_store_read(struct drive_store *store, struct drive_chunk chunk, void *entries,
                     uint32_t *n, double *cost, struct hill_why *why);
/* It was of use: it counts for what goes first. */
void drive_store_use(struct drive_store *store, struct drive_chunk chunk);

/* Is a chunk there that does what `wanted` would, behind `parent` (stamp 0: at the beginning)? Stamp
 * 0: no. */
struct drive_chunk drive_store_same(const struct drive_store *store, struct drive_chunk parent,
                                    const struct chunk *wanted);
/* Write one behind `parent`: tokens, n, n_plain, first, settings, owner and cost are the caller's,
 * entries [layer][n]. Stamp 0: there is no room, its parent has gone, or it could not be written
 * (said once). */
struct drive_chunk drive_store_put(struct drive_store *store, struct drive_chunk parent,
                                   const struct chunk *chunk, const void *entries);

#endif
