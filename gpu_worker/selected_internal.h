/*
 * gpu_worker/selected_internal.h - what selected.c and selected_layers.c share. See selected.h.
 *
 * Layers are asked for in order, at most one ahead of the one that the engine computes: what of it
 * is important is looked for by guessed queries then (engine_prefill_guess), so that the drive reads
 * while the device computes. The first layers are asked for by their own queries.
 */
#pragma once

#include "gpu_worker/stored_internal.h"
#include "prefix/run_cache.h"
#include "prefix/span_reader.h"

#define SELECTED_EXACT_LAYERS 2u /* the first ones, whose guesses are the worst */

struct load {
    uint64_t job;
    int64_t due; /* of the modelled drive */
};

/* The past of a layer that was asked for. */
struct layer_past {
    uint32_t layer, n, *runs; /* runs [n], ascending */
    uint32_t *slots;          /* [n]: the device's, or ENGINE_NO_SLOT: in entries */
    uint8_t *entries;         /* [n][run] */
    float *mass;              /* [n_past] */
    double all_mass;          /* of them together; 0: all of it is taken, unasked */
    struct load load;
};

enum phase {
    PHASE_SUMS,  /* checksums of all chunks are read */
    PHASE_LAYER, /* the next layer is to begin */
    PHASE_ASK,   /* its queries are queued; what is important of it and of the next one? */
    PHASE_RUNS,  /* what is chosen is read */
    PHASE_GIVE,  /* ...and given to the engine */
};

struct selected {
    struct span_reader *reader;
    const struct chunk_keys *store;
    uint32_t n_past, n_chunks; /* tokens before the prompt, their chunks */
    uint32_t wanted;           /* runs of a layer without a window */
    bool loads_all;            /* HILL_TEST_IMPORTANT_LOAD */
    uint32_t ahead_from;       /* the first layer that is asked for ahead */
    enum phase phase;
    uint32_t layer, asked;     /* the one that the engine computes next; so many are asked for */
    uint32_t n_ahead;          /* of them a layer ahead */
    struct layer_past past[2]; /* of layer l in l % 2 */
    uint32_t given;            /* tokens of the layer that the engine has */
    uint8_t *sums;             /* [n_chunks][sums_bytes] */
    uint8_t *keys[2];          /* of piece i in i % 2: [n_chunks][piece_bytes] */
    uint16_t *probe;           /* of a layer: [n_past][probe][head_dim] */
    struct span *spans;        /* [max(n_chunks, runs)] of the load that is asked for */
    struct load sums_load, keys_load[2];
    int64_t waits_since; /* for the drive; 0: it does not */
    int64_t probe_ns, wait_ns;
};

static inline uint32_t selected_run_tokens(const struct request *r)
{
    return r->w->store->keys->run_tokens;
}

/* Checksums and the first keys are asked for. */
int selected_layers_begin(struct request *r, struct hill_why *why);
/* 1 it moved on, 0 it waits, or an error; HILL_E_DAMAGED as selected_pump says. */
int selected_layers_turn(struct request *r, struct hill_why *why);
/* What stays on the device need not stay where it is any more. */
void selected_layers_let_go(struct request *r);
