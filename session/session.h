/*
 * session/session.h - a session's file: what a request needs to go on as if it had never stopped.
 *
 * What: reading the file and checking it; writing is session_writer.h's. Layout, all numbers little
 * endian, nothing aligned beyond its own size:
 *     struct session_header                      (its checksum covers all that precedes it)
 *     tokens   u32[n_tokens], u64 xxHash64
 *     for each layer: entries [n_entries][entry_bytes] in position order, u64 xxHash64;
 *                     of policy h2o then masses f32[n_entries], u64 xxHash64
 * The newest token has not been through the model yet, so n_entries = n_tokens - 1. An entry is K
 * then V of all KV heads in FP16, as it lies in the pools: hot or cold is not said, because
 * placement never changes a result; hit rates are left out for the same reason. A mass is the
 * attention that the entry's token has had from all queries so far, which h2o ranks by.
 * Who calls it: the coordinator (header, terms, tokens), the GPU worker (entries). Concurrency:
 * none; a file is one caller's. Failure: HILL_E_DAMAGED (not whole, not of this format or version:
 * why names the file and the field), HILL_E_INVALID (no such file; of another model or of other
 * settings: likewise), what errno says. Nothing of the file is used before the header's checksum
 * and the file's length were found right; entries are given out before the checksum of their layer
 * is known, and the read that ends the layer fails when it is wrong.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/hash_state.h"

#define SESSION_MAGIC        UINT64_C(0x3153534553484c48) /* "HLHSESS1" */
#define SESSION_VERSION      3u
#define SESSION_DEVICE_BYTES 64u
#define SESSION_CHECKSUM     sizeof(uint64_t)

/* Whatever decides what the next step computes, but for what the request itself brings. */
struct session_terms {
    uint64_t model_bytes, model_identity; /* gguf_identity */
    uint32_t n_layers, n_heads, n_kv_heads, head_dim;
    uint32_t n_embd, n_vocab;
    uint16_t policy;      /* kv/select.h */
    uint16_t exact_below; /* tokens; files from before it have 0 here */
    uint16_t importance;  /* kv/score.h */
    uint16_t granularity; /* tokens; files from before it have 0 here, which is 1 */
    double alpha;
    uint32_t budget, sinks, window;
    uint32_t score_bits;
    uint32_t speculate; /* --exact-layers under --speculate on; 0: no layer is guessed */
    uint32_t
        rope_choice; /* of the rotary factors, by -c (model/hparams.h); 0: there is no choice */
};

struct session_header {
    uint64_t magic;
    uint32_t version, header_bytes;
    uint64_t file_bytes;
    struct session_terms terms;
    /* the request's own */
    float temperature, top_p, min_p, repeat_penalty;
    uint32_t top_k, ignore_eos;
    uint64_t seed;
    uint32_t n_prompt; /* of n_tokens, how many were given */
    uint32_t n_tokens, n_entries, entry_bytes;
    uint32_t step; /* decode steps so far */
    /* entries of a layer that the scorer was first given: prefetch has chosen its columns by them
     */
    uint32_t first_append;
    struct hash_state selection_hash, logits_hash;
    char device[SESSION_DEVICE_BYTES]; /* on which logits and entries were computed */
    uint64_t checksum;                 /* xxHash64 of all before it */
};

_Static_assert(sizeof(struct session_terms) == 80, "file format");
_Static_assert(sizeof(struct session_header) == 440, "file format");

/* Fill in magic, version, sizes and checksum; the rest is the caller's. */
void session_seal(struct session_header *header);

/* Does it hold what its tokens have been attended to? */
bool session_has_masses(const struct session_terms *terms);
/* The whole file's bytes for these counts; offsets of its sections. */
uint64_t session_file_bytes(const struct session_header *header);
uint64_t session_layer_offset(const struct session_header *header, uint32_t layer);

/* Is the header right, in itself and for a file of so many bytes? */
int session_check(const struct session_header *header, uint64_t file_bytes, const char *path,
                  struct hill_why *why);

/* Was it saved under these terms? HILL_E_INVALID with the first that differs. Terms that the
 * policy does not use are not compared; before the first decode step (step 0) nothing has been
 * selected, and only the model's and the rotary factors' are. h2o needs a file with sums of
 * attention, which files of other policies do not have. */
int session_compare(const struct session_header *saved, const struct session_terms *here,
                    const char *path, struct hill_why *why);

struct session_file {
    int fd;
    char path[4096];
    struct session_header header;
    uint32_t layer, next; /* the entry that is read next */
    bool masses;          /* the layer's entries were read, its masses are next */
    bool pass_masses;
    XXH64_state_t *hash;
};

int session_open(struct session_file *file, const char *path, struct hill_why *why);
void session_close(struct session_file *file); /* once for each open; also after a failed one */

/* All of header.n_tokens; ids are below terms.n_vocab. */
int session_read_tokens(struct session_file *file, uint32_t *tokens, struct hill_why *why);
/* The next n entries of the layer that is read, which has them: layers in order, each from its
 * first entry to its last. */
int session_read_entries(struct session_file *file, uint32_t n, void *entries,
                         struct hill_why *why);
/* Layers that the caller has: the next entry is the first of layer n. Before any entry was read. */
void session_pass(struct session_file *file, uint32_t n);
/* Nobody wants the masses, where there are any: the read that ends a layer's entries reads them,
 * too, for their checksum. Before any entry was read. */
void session_pass_masses(struct session_file *file);
/* Where session_has_masses: the next n masses of a layer whose entries have been read. */
int session_read_masses(struct session_file *file, uint32_t n, float *masses, struct hill_why *why);
/* Have the kernel read what follows ahead of us. */
void session_read_ahead(const struct session_file *file, uint64_t bytes);
