/*
 * prefix/chunk_keys.h - the keys by which important tokens of a stored prefix are found, and the
 * checksums that let some of its entries be read alone: DIR/chunks.keys, beside chunk_file.h's.
 *
 * What: of each layer a few KV heads are chosen once, the probe heads (gpu_worker/probe_heads.h);
 * the header says which. Layout, all numbers little endian:
 *     struct chunk_keys_header, [layer][probe] uint16_t KV head, filled up to whole pages; then a
 *     slot for each of the store's: checksums (below), filled up to whole pages, then keys
 *     [layer] of the probe heads' dimensions as columns, in four bits (prefix/probe_keys.h); some
 *     layers make a piece of eight pages or less, filled up to whole ones, since one layer's keys
 *     are less than a page
 * Checksums: uint64_t stamp of the chunk, one of all that follow, one of each layer's keys, then of
 * each layer's runs in chunks.data. A run is as few tokens as fill whole pages, or a whole chunk.
 * Only full chunks have keys. All of it follows from chunks.data: where it is not there, or not
 * what it should be, a chunk is read whole and its keys are written again. So nothing of it is
 * flushed, a stamp says whose keys they are, and a header of another choice or shape begins anew.
 * Who calls it: this folder, gpu_worker; the coordinator for sizes. Concurrency: one thread writes
 * while another reads; what is caught in between has a wrong checksum. Failure: HILL_E_NOMEM, what
 * errno says.
 */
#pragma once

#include "prefix/chunk_file.h"

#define CHUNK_KEYS_MAGIC   UINT64_C(0x3153594b504c4948) /* "HILPKYS1" */
#define CHUNK_KEYS_VERSION 2u
#define CHUNK_PROBES_MAX   16u

/* Of the model; n_probes of each layer's KV heads have their keys here. */
struct chunk_shape {
    uint32_t n_kv_heads, head_dim, n_probes, reserved;
};

struct chunk_keys_header {
    uint64_t magic;
    uint32_t version, header_bytes;
    struct chunk_terms terms;
    struct chunk_shape shape;
    uint64_t checksum; /* xxHash64 of all before it, then of the heads */
};

_Static_assert(sizeof(struct chunk_keys_header) == 72, "file format");

struct chunk_keys {
    int fd;      /* -1: not open */
    int data_fd; /* chunks.data, to be read in pieces: without reading ahead */
    char dir[4096];
    struct chunk_terms terms;
    struct chunk_shape shape;
    uint32_t run_tokens, n_runs; /* of a layer of a chunk */
    uint32_t piece_layers;       /* whose keys are read at once; the last piece may have fewer */
    uint64_t piece_bytes, head_bytes, sums_bytes, slot_bytes, data_slot_bytes;
    uint16_t *heads; /* [layer][n_probes]; NULL: not chosen yet */
};

/* How many heads are asked: one of ten, but at least one. */
uint32_t chunk_probes_of(uint32_t n_kv_heads);
/* Of a cap, what is left for chunks.data and its records beside the keys of as many chunks. */
uint64_t chunk_keys_leave(const struct chunk_terms *terms, const struct chunk_shape *shape,
                          uint64_t cap_bytes);

/* keys->heads stays NULL where the file is not there, or begins with another shape. HILL_E_INVALID:
 * a shape that fits no entry. */
int chunk_keys_open(struct chunk_keys *keys, const char *dir, const struct chunk_terms *terms,
                    const struct chunk_shape *shape, struct hill_why *why);
/* Chosen now: [layer][n_probes]. What the file had is gone. */
int chunk_keys_choose(struct chunk_keys *keys, const uint16_t *heads, struct hill_why *why);
/* Slots from n_slots on are gone: the store has no more. */
void chunk_keys_cut(const struct chunk_keys *keys, uint32_t n_slots);
void chunk_keys_close(struct chunk_keys *keys); /* also after a failed open */
void chunk_keys_remove(const char *dir);        /* the file, if there is one */

/* Keys and checksums of a full chunk: entries [layer][CHUNK_TOKENS][entry]. */
int chunk_keys_write(const struct chunk_keys *keys, uint32_t slot, uint64_t stamp,
                     const void *entries, struct hill_why *why);

/* The room for a slot's, where a short chunk has none. */
int chunk_keys_reserve(const struct chunk_keys *keys, uint32_t slot, struct hill_why *why);

/* Are the slot's of the chunk of that stamp? (What a kill has cut short is found by checksums.) */
bool chunk_keys_has(const struct chunk_keys *keys, uint32_t slot, uint64_t stamp);

/* Those of the chunk of that stamp are not what they should be: they count as nobody's, until they
 * are written again. Another chunk's, which have come into the slot meanwhile, stay. */
void chunk_keys_forget(const struct chunk_keys *keys, uint32_t slot, uint64_t stamp);

/* Where things lie: in chunks.keys, in chunks.keys, in chunks.data. */
uint64_t chunk_keys_sums_at(const struct chunk_keys *keys, uint32_t slot);
uint64_t chunk_keys_layer_at(const struct chunk_keys *keys, uint32_t slot, uint32_t layer);
uint64_t chunk_keys_run_at(const struct chunk_keys *keys, uint32_t slot, uint32_t layer,
                           uint32_t run);
uint64_t chunk_keys_layer_bytes(const struct chunk_keys *keys);
uint64_t chunk_keys_unpacked_bytes(const struct chunk_keys *keys); /* of a layer of a chunk */
static inline uint64_t chunk_keys_run_bytes(const struct chunk_keys *keys)
{
    return (uint64_t)keys->run_tokens * keys->terms.entry_bytes;
}

/* Are what was read the sums of the chunk of that stamp; and are these its keys, its run? */
bool chunk_keys_are_sums(const struct chunk_keys *keys, const void *sums, uint64_t stamp);
bool chunk_keys_fit(const struct chunk_keys *keys, const void *sums, uint32_t layer,
                    const void *layer_keys);
/* A layer's keys of a chunk, in FP16: [token][probe][head_dim]. */
void chunk_keys_unpack(const struct chunk_keys *keys, const void *layer_keys, uint16_t *to);
bool chunk_keys_run_fits(const struct chunk_keys *keys, const void *sums, uint32_t layer,
                         uint32_t run, const void *entries);
