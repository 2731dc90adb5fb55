/*
 * prefix/drive_store.h - the prefix store on its disk: what finished requests have computed, for
 * runs to come (chunk_tree.h with the files of chunk_file.h).
 *
 * What: opened, it has all chunks whose records are whole, whose parents are there and that the cap
 * has room for. A chunk is written after its parent and removed before it, by a thread of the
 * store's (chunk_writer.h): a chunk that was put is found and read at once, out of the queue while
 * it is there; what could not be written is dropped at the next call, with what follows it. Entries
 * are checked when they are read: a damaged chunk is named, once, and dropped with all that follows
 * it; then it is a miss like any other. Where nothing more can be written (a full disk) the store
 * says so once, goes on with the slots that it has and makes room in those; now and then it tries
 * one more. Who calls it: the GPU worker. Concurrency: one thread calls; calls read files and write
 * none. Failure: codes as documented.
 */
#pragma once

#include "prefix/chunk_file.h"
#include "prefix/chunk_keys.h"
#include "prefix/chunk_writer.h"

/* Entries on their way to the disk: so much memory at most, or one chunk's. */
#define DRIVE_QUEUE_BYTES (UINT64_C(64) << 20)

/* A chunk that was found; another may have its slot when it is read. */
struct drive_chunk {
    uint32_t slot;
    uint64_t stamp;
};

/* On a full disk each so many chunks another slot is tried. */
#define DRIVE_FULL_TURNS 64u

/* A chunk that makes others needless; they go when it is written. */
#define DRIVE_COVERS_MAX 16u /* beyond: what is needless goes when it is its turn */
struct drive_cover {
    struct drive_chunk chunk;
    uint64_t job; /* as drive_store_done counts */
};

struct drive_store {
    struct chunk_tree tree;
    struct chunk_file file;  /* once the writer is there: its numbers are read, not changed */
    struct chunk_keys *keys; /* or NULL; the writer reads its shape and heads */
    struct chunk_writer *writer;
    uint64_t stamp;     /* of the last chunk */
    uint32_t n_dropped; /* records that were found of no use at the start */
    bool full;          /* said: the disk takes no more */
    uint32_t n_full;    /* slots that had been written then */
    uint32_t n_turns;   /* slots that were looked for since */
    bool said;          /* something could not be written */
    uint64_t n_evicted;
    struct drive_cover covers[DRIVE_COVERS_MAX];
    uint32_t n_covers;
};

/* Codes of chunk_file_open, HILL_E_NOMEM. */
int drive_store_open(struct drive_store *store, const char *dir, const struct chunk_terms *terms,
                     uint64_t cap_bytes, struct hill_why *why);
/* All that was put is written first. What has not been after DRIVE_END_MS is said: whoever wants
 * this process to end may not wait much longer (an orderly end gives a worker 5 s). */
#define DRIVE_END_MS 4000
void drive_store_close(struct drive_store *store);
/* Until it is. */
void drive_store_flush(struct drive_store *store);

/* As chunk_tree_find; chunks [n / CHUNK_TOKENS + 1]. HILL_E_NOMEM. */
int drive_store_find(struct drive_store *store, const struct chunk_query *query,
                     struct chunk_hit *hit, struct drive_chunk *chunks);
/* Its entries: [layer][chunk's n] into room for a slot. *n: tokens of the chunk.
 * HILL_E_WOULD_BLOCK: it has gone meanwhile; HILL_E_DAMAGED, or what errno says: it is dropped with
 * what follows it. */
int drive_store_read(struct drive_store *store, struct drive_chunk chunk, void *entries,
                     uint32_t *n, double *cost, struct hill_why *why);
/* What it took to compute it, in us; 0: it has gone. */
double drive_store_cost(const struct drive_store *store, struct drive_chunk chunk);
/* It was of use: it counts for what goes first. */
void drive_store_use(struct drive_store *store, struct drive_chunk chunk);

/* Is a chunk there that does what `wanted` would, behind `parent` (stamp 0: at the beginning)?
 * Stamp 0: no. */
struct drive_chunk drive_store_same(struct drive_store *store, struct drive_chunk parent,
                                    const struct chunk *wanted);
/* Write one behind `parent`: tokens, n, n_plain, first, settings, owner and cost are the caller's,
 * entries [layer][n]. Stamp 0: there is no room, in the store or in the queue, or its parent has
 * gone. */
struct drive_chunk drive_store_put(struct drive_store *store, struct drive_chunk parent,
                                   const struct chunk *chunk, const void *entries);

/* From now on chunks are written with their keys; before anything is put. The store owns them then;
 * their heads are chosen. */
void drive_store_keep_keys(struct drive_store *store, struct chunk_keys *keys);
/* The same of a chunk that was read whole, where it has none. No room in the queue: when it is read
 * next. */
void drive_store_add_keys(struct drive_store *store, struct drive_chunk chunk, const void *entries);

/* Has the queue room for one more? */
bool drive_store_takes(struct drive_store *store);
/* How much was given to the writer, and how much of it is done; whom it wakes (chunk_writer.h). */
uint64_t drive_store_given(struct drive_store *store);
uint64_t drive_store_done(struct drive_store *store);
void drive_store_wake(struct drive_store *store, void (*wake)(void *context), void *context);
