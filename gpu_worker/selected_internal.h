/*
 * gpu_worker/selected_internal.h - what selected.c and selected_layers.c share. See selected.h.
 *
 * A layer's past is chosen by the layer's own queries. While the layer before it computes, a part
 * of it is read ahead, so that the disk works while the device does. These are the most important
 * runs by guessed queries (engine_prefill_guess); nearly all of them are chosen. A guess takes a
 * second look at the keys: it is made where layers that were not guessed have waited longer for the
 * disk than a look takes. Of a layer that takes all of its past, all is read ahead. Answers do not
 * depend on what is.
 */
#pragma once

#include "gpu_worker/stored_internal.h"
#include "prefix/run_cache.h"
#include "prefix/span_reader.h"

#define SELECTED_UNGUESSED 2u /* the first layers: their inputs say least of their queries */

struct load {
    uint64_t job;
    int64_t due; /* of the modelled drive */
};

/* The past of a layer. */
struct layer_past {
    uint32_t layer, n, *runs; /* runs [n], ascending */
    uint32_t *slots;          /* [n]: the device's, or ENGINE_NO_SLOT: in entries */
    uint8_t *entries;         /* [n][run] */
    float *mass;              /* [n_past], of the last look at its keys */
    double all_mass;          /* of them together; 0: all of it is taken, unasked */
    struct load load;
    /* read ahead of the choice */
    bool guessed;                  /* by queries that were guessed: the device has its keys */
    uint32_t n_ahead, *ahead_runs; /* [n_ahead], ascending */
    uint8_t *ahead;                /* [n_ahead][run] */
    uint32_t *from;                /* [n]: of the i-th run in ahead, or NOT_AHEAD */
};
#define NOT_AHEAD UINT32_MAX

enum phase {
    PHASE_SUMS,   /* checksums of all chunks are read */
    PHASE_LAYER,  /* the next layer is to begin */
    PHASE_CHOOSE, /* its queries are queued; what do they choose? */
    PHASE_AHEAD,  /* what will the next layer's choose? */
    PHASE_RUNS,   /* what is chosen is read */
    PHASE_GIVE,   /* ...and given to the engine */
};

enum guessing { GUESSING_BY_TIME, GUESSING_OFF, GUESSING_ON };

struct selected {
    struct span_reader *reader;
    const struct chunk_keys *store;
    uint32_t n_past, n_chunks; /* tokens before the prompt, their chunks */
    uint32_t wanted;           /* runs of a layer without a window */
    bool loads_all;            /* HILL_TEST_IMPORTANT_LOAD */
    enum guessing guessing;
    enum phase phase;
    uint32_t layer;            /* the one that the engine computes next */
    struct layer_past past[2]; /* of layer l in l % 2 */
    uint32_t given;            /* tokens of the layer that the engine has */
    uint8_t *sums;             /* [n_chunks][sums_bytes] */
    uint8_t *keys[2];          /* of piece i in i % 2: [n_chunks][piece_bytes] */
    uint16_t *probe;           /* of a layer: [n_past][probe][head_dim] */
    struct span *spans;        /* [max(n_chunks, runs)] of the load that is asked for */
    struct load sums_load, keys_load[2];
    uint32_t n_looks, n_guessed; /* at keys; layers */
    uint32_t n_unguessed;        /* layers that were looked at, and not ahead */
    int64_t unguessed_wait_ns;   /* for what these chose */
    int64_t waits_since;         /* for the drive; 0: it does not */
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
