/*
 * prefix/chunk_file.h - the files of a prefix store in its folder: DIR/chunks.index says which
 * tokens each slot holds and how their entries came about, DIR/chunks.data has the entries.
 *
 * What: reading, checking and writing. Layout, all numbers little endian:
 *     chunks.index   struct chunk_file_header, filled up to CHUNK_FILE_HEAD; then a struct
 *                    chunk_record a slot (all zero: the slot is free)
 *     chunks.data    slot_bytes a slot: [layer][token] entries, K then V of all KV heads in FP16
 * A record is 512 bytes, which a disk writes whole or not at all, with a checksum of its own and
 * one of its slot's entries; it is cleared before the slot is written over and written after it.
 * So whenever a process is killed a slot is whole or free, without a flush; after a power cut a
 * checksum says what did not arrive. A parent is named by slot and stamp, and no two chunks ever
 * have one stamp. Two locks: the coordinator's on chunks.index, so that a second pipeline is
 * refused as it starts, and the GPU worker's on chunks.data, so that a successor waits for one that
 * is about to die. Who calls it: this folder; the coordinator (chunk_file_hold). Concurrency: one
 * caller. Failure: HILL_E_DAMAGED (no such file's format or version, a wrong checksum: why names
 * the file and the field), HILL_E_INVALID (of another model, a cap that holds no chunk),
 * HILL_E_BUSY (another pipeline's), what errno says. Nothing is used before it is checked.
 */
#pragma once

#include "base/error.h"
#include "prefix/chunk_tree.h"

#define CHUNK_FILE_MAGIC   UINT64_C(0x3158465052504c48) /* "HLPRPFX1" */
#define CHUNK_FILE_VERSION 2u                           /* 1: another rank */
#define CHUNK_FILE_HEAD    4096u
#define CHUNK_LAYERS_MAX   1024u
#define CHUNK_ENTRY_MAX    (1u << 18)
#define CHUNK_POSITION_MAX (1u << 24)

/* Whose entries they are. */
struct chunk_terms {
    uint64_t model_bytes, model_identity; /* model/gguf.h */
    uint32_t n_layers, entry_bytes, n_vocab, reserved;
};

struct chunk_file_header {
    uint64_t magic;
    uint32_t version, header_bytes;
    struct chunk_terms terms;
    uint64_t checksum; /* xxHash64 of all before it */
};

struct chunk_record {
    uint64_t stamp, parent_stamp; /* 0: free; 0: it begins a text */
    uint64_t settings, owner, entries_checksum;
    double rank, cost;
    uint32_t slot, parent; /* its own, so that a record in a wrong place is none */
    uint32_t first, n, n_plain, uses;
    uint32_t tokens[CHUNK_TOKENS];
    uint8_t reserved[168];
    uint64_t checksum; /* of all before it */
};

_Static_assert(sizeof(struct chunk_terms) == 32, "file format");
_Static_assert(sizeof(struct chunk_file_header) == 56, "file format");
_Static_assert(sizeof(struct chunk_record) == 512, "file format: a sector");

struct chunk_file {
    int index_fd, data_fd; /* -1: not open */
    char dir[4096];
    struct chunk_terms terms;
    uint64_t slot_bytes;
    uint32_t n_slots; /* that the cap has room for */
};

/* Of a chunk of n tokens; a slot has room for CHUNK_TOKENS, in whole pages. */
uint64_t chunk_entries_bytes(const struct chunk_terms *terms, uint32_t n);
uint64_t chunk_slot_bytes(const struct chunk_terms *terms);
/* What a cap has room for, with the records. */
uint32_t chunk_slots_of(const struct chunk_terms *terms, uint64_t cap_bytes);

/* For the life of a pipeline: the folder (made where it is not there) holds a store of these terms,
 * or an empty one from now on, and it is this process's. *fd: the lock, to be closed. */
int chunk_file_hold(const char *dir, const struct chunk_terms *terms, uint64_t cap_bytes, int *fd,
                    struct hill_why *why);

/* Its files, which are cut to the cap. Waits some seconds for a process that has them still. */
int chunk_file_open(struct chunk_file *file, const char *dir, const struct chunk_terms *terms,
                    uint64_t cap_bytes, struct hill_why *why);
void chunk_file_close(struct chunk_file *file); /* also after a failed open */

/* The record of a slot as a chunk, and its parent's stamp. 1; 0: it is free; HILL_E_DAMAGED. */
int chunk_file_read_record(struct chunk_file *file, uint32_t slot, struct chunk *out,
                           uint64_t *parent_stamp, struct hill_why *why);
/* Slots that the index has room for: beyond them all are free. */
uint32_t chunk_file_records(const struct chunk_file *file);
int chunk_file_write_record(struct chunk_file *file, uint32_t slot, const struct chunk *chunk,
                            uint64_t parent_stamp, struct hill_why *why);
int chunk_file_clear_record(struct chunk_file *file, uint32_t slot, struct hill_why *why);

/* Whole slots up to the end of the data's file; holes count. */
uint32_t chunk_file_written(const struct chunk_file *file);

/* All entries of a chunk, chunk_entries_bytes, checked. A slot that was written has its whole room
 * on the disk, however short its chunk, where the file system can reserve it. */
int chunk_file_read(struct chunk_file *file, uint32_t slot, const struct chunk *chunk,
                    void *entries, struct hill_why *why);
int chunk_file_write(struct chunk_file *file, uint32_t slot, const void *entries, uint64_t bytes,
                     struct hill_why *why);
uint64_t chunk_checksum(uint64_t stamp, const void *entries, uint64_t bytes);

/* Of any file of the folder: "DOING prefix store DIR/NAME failed", with errno; bytes are written
 * whole, or that is said; room that the file system cannot reserve is no failure. */
int chunk_file_failed(const char *doing, const char *dir, const char *name, struct hill_why *why);
int chunk_file_reserve_at(int fd, uint64_t at, uint64_t bytes, const char *dir, const char *name,
                          struct hill_why *why);
int chunk_file_write_at(int fd, uint64_t at, const void *from, uint64_t bytes, const char *dir,
                        const char *name, struct hill_why *why);
