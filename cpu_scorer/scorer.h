/*
 * cpu_scorer/scorer.h - the scorer's data loop: records in, selections out.
 *
 * What: owns the hot pool's tables, the cold map, the GPU slot table and the staging arena of one
 * epoch of the data plane, and answers the GPU worker from them with the agent's help. One thread;
 * scoring threads only read digests. A scorer knows no process and no socket: main.c gives it
 * opened ring ends, mapped memory and hooks, and so do the tests. Invariants: docs/decode-step.md.
 * Failure: a request fails by the status of its SELECTION or SEQ_READY and the failure hook;
 * scorer_run returns only when interrupted (HILL_E_CANCELLED) or when a ring is damaged
 * (HILL_E_DAMAGED).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/csd_model.h"
#include "kv/geometry.h"
#include "kv/select.h"
#include "kv/mass.h"
#include "kv/score.h"
#include "placement/placement.h"
#include "placement/trace.h"
#include "proto/layout.h"
#include "shm/arena.h"
#include "shm/doorbell.h"
#include "shm/ring.h"

struct scorer_config {
    struct kv_geometry geometry;
    uint32_t epoch, ctx_tokens, n_sequences;
    struct kv_layer_windows windows; /* layers in which nothing is selected */
    uint32_t threads;                /* scoring threads */
    uint32_t rows;                   /* queries of a layer in flight; 0: 1 */
    uint32_t block_tokens;           /* n of a Score Block */
    uint32_t gpu_slots;              /* per (sequence, layer) */
    uint32_t hot_blocks;             /* blocks of 64 slots in the hot segment, at most */
    uint32_t demote_slots;           /* at most in one DEMOTE; lowered to what the ring takes */
    double beta, host_scores;        /* struct epoch_settings */
    bool adapts; /* beta may change while a sequence runs: it gets all the room it may have */
    enum placement_kind placement; /* a live one */
    bool speculates;               /* queries may be guesses */
    double pin;                    /* bkp, paper; negative: alpha */
    double gpu_drop; /* share of a query's tokens that the GPU does not keep for the next */
    double margin;   /* bkp: misses by which a token must beat its victim; 0: the default */
    uint64_t hot_cap_bytes, gpu_cap_bytes,
        cold_cap_bytes;               /* reported, enforced by the sizes given */
    struct csd_model csd_model;       /* at the beginning */
    bool csd;                         /* an agent with a cold pool is attached */
    uint32_t stripe_slots, n_stripes; /* of the cold pool; of several drives: numbers for each */
    uint32_t n_drives;                /* places for drives; 0: one, with all the stripes */
    struct {
        uint32_t n_stripes;      /* 0: no drive is there */
        double speed;            /* against the others'; all 0: not known */
    } drives[LAYOUT_DRIVES_MAX]; /* of several */
    /* cold slots that the hot segment has checks for, whatever drive is there; 0: the pool's */
    uint64_t cold_slots;
    bool drains; /* scorer_drain from the beginning */
    kv_score_fn *score;
    uint32_t policy;     /* enum kv_policy: what it was started with (kv_policy_served) */
    uint32_t importance; /* enum kv_importance: of the queries by which speeds are measured */
    const struct kv_mass_ops *mass; /* of a policy that evaluates FP16 keys */
    uint32_t key_window_bytes;      /* the same, and of host-digest */
    uint64_t digest_cache_bytes;    /* of cold digests in memory, at most */
    bool lends_digests;             /* these are in hot blocks that sequences lend */
    bool keeps;  /* what running sequences have is noted, so that a later epoch can take them up */
    bool adopts; /* the hot pool may be an earlier epoch's */
    int64_t agent_deadline_ns; /* for any answer of the agent (and of the GPU worker's draining) */
};

struct scorer_tier {
    uint64_t tokens, bytes, cap_bytes, hits;
};

/* Of leoam: tokens whose keys its queries looked at (guesses too), and how the cold ones' lay. */
struct scorer_candidates {
    uint64_t hot, cold;
    uint64_t runs;    /* of pages that READ_KEYS asked for */
    uint64_t between; /* cold slots of others between candidates in a run */
};

/* How often queries have chosen tokens, sinks and window not counted: a number for each passage. */
#define SCORER_PASSAGES       512u
#define SCORER_PASSAGE_TOKENS 8u /* at least */
struct scorer_passages {
    const uint32_t *chosen; /* [n]: (query, token) pairs; the sequence's */
    uint32_t n, tokens;     /* tokens: of a passage, a power of two */
    uint64_t queries;
};

/* proto's SequenceStats, without protobuf. */
struct scorer_stats {
    uint64_t request_id, selection_hash;
    uint32_t budget;
    double beta;
    struct scorer_tier gpu, hot, cold;
    uint64_t link_key_bytes, link_score_bytes, link_kv_bytes;
    uint64_t flash_read_bytes, flash_write_bytes;
    int64_t score_hot_ns, score_cold_ns, merge_ns, fetch_ns;
    int64_t score_cpu_ns;  /* of queries' evaluation, all scoring threads together */
    uint64_t scored_bytes; /* of digests and keys that these threads read for it */
    uint64_t near_tokens;  /* cold ones that hillinfer's queries found in the digests in memory */
    int64_t bounds_ns;     /* leoam: until it is known whose keys are looked at */
    struct scorer_candidates candidates;
    int64_t fetch_cold_ns; /* of fetch_ns, what the drive took for its commands */
    int64_t copy_hot_ns;   /* of fetch_ns, copying hot entries into staging */
    uint32_t steps;        /* whose two sides were compared */
    struct scorer_drive {
        uint64_t tokens;
        int64_t score_ns, fetch_ns;
    } drives[LAYOUT_DRIVES_MAX];
    uint32_t n_drives;   /* 0: there is one */
    double drive_spread; /* median over steps of (longest - shortest) / longest of their times */
    double imbalance;    /* median over them of |T_CPU - T_CSD| / the longer of the two */
    uint64_t hot_copied; /* of the hot hits: not read where they lie, but sent to the GPU */
    uint64_t promoted, demoted, bounced;
    uint64_t demoted_free; /* of the demoted: their copy was there, nothing was written */
    uint64_t reused;       /* of the demoted: written over copies of what has moved up */
    /* copies given away: for the sake of the drive's stream, for want of room */
    uint64_t given_stream, given_room;
    uint64_t ever_cold;                /* entries that went to the drive, however often each */
    uint64_t queries, dropped_records; /* of this attempt, as all that is counted */
    uint32_t kept_tokens;              /* at its end: their entries stay */
    /* of guesses; the counts of each layer, NULL: none, are the scorer's (holding.h) */
    uint64_t guess_queries, late_fetches;
    const uint64_t *guess_chosen, *guess_found; /* [n_layers] */
    uint32_t n_layers;
    struct scorer_passages passages;
};

/* The two sides of a query: bytes of FP16 KV per second, each with the other one running. */
struct scorer_rates {
    double f_c, f_s; /* scored by the CPU, by the drive */
    double B_c, B_s; /* copied from the hot pool into staging, brought there from the drive */
};

/* One drive's part of f_s and B_s. */
struct scorer_drive_rates {
    double f_s, B_s;
};

#define SCORER_PROFILE_NS INT64_C(500000000) /* how long a measurement takes, about */

struct scorer_profile {
    int status; /* 0, or why nothing was measured; then text says it */
    char text[240];
    struct scorer_rates median, spread; /* spread: between the quartiles, as a share */
    struct scorer_drive_rates drives[LAYOUT_DRIVES_MAX]; /* medians, of several */
    uint32_t n_drives;                                   /* 0: there is one */
    uint32_t rounds, hot_tokens, cold_tokens, fetch_tokens;
    int64_t took_ns;
};

/* How far the drive is from being used by nobody. */
struct scorer_drained {
    uint64_t moved, left;             /* entries: carried away so far, still on the drive */
    uint64_t moved_bytes, left_bytes; /* of entries alone */
    bool over;                        /* no sequence has anything there, nor will have */
};

struct scorer_hooks {
    void *context;
    /* True when the loop must be left: another Configure or the end. Called at every turn of every
     * wait. */
    bool (*interrupted)(void *context);
    /* NULL of what follows: nobody asks. */
    void (*stats)(void *context, const struct scorer_stats *stats);
    void (*failure)(void *context, int code, const char *text, uint64_t request_id);
    void (*work_done)(void *context, uint64_t count);
    void (*profiled)(void *context, const struct scorer_profile *profile);
    /* Nothing more can be carried away now; of the only drive, told once more when it is over. */
    void (*drained)(void *context, const struct scorer_drained *drained);
};

struct scorer_io {
    struct shm_ring_end *rings; /* [layout_rings], opened; the agents' are not used without a CSD */
    struct shm_doorbell *bell;  /* the scorer's */
    struct shm_arena *staging;  /* owned */
    uint8_t *key_windows;       /* [KV_KEY_WINDOWS][key_window_bytes]; NULL: none */
    void *hot;                  /* the hot segment's payload */
    uint64_t hot_bytes;
    struct trace_writer *trace; /* NULL: no KV trace */
    bool trace_scores;
};

struct scorer;

/* HILL_E_INVALID (caps too small, impossible sizes), HILL_E_NOMEM, HILL_E_IO. io's parts outlive
 * the scorer. */
int scorer_create(struct scorer **out, const struct scorer_config *config,
                  const struct scorer_io *io, const struct scorer_hooks *hooks,
                  struct hill_why *why);
void scorer_destroy(struct scorer *p);

/* Measure both sides when the sequences that are being cleared up are gone, for about limit_ns (0:
 * SCORER_PROFILE_NS); the hook `profiled` is told. HILL_E_BUSY there: a request runs. The data
 * thread alone (from a hook). */
void scorer_ask_profile(struct scorer *p, int64_t limit_ns);
/* Hot entries for each cold one: for sequences that begin from now on, and for those that run, are
 * placed by a policy and began with a beta that may change: more stays hot or comes up as it is
 * missed, or goes down a batch at a time. The data thread alone. */
void scorer_set_beta(struct scorer *p, double beta);
/* For sequences that begin from now on. The data thread alone. */
void scorer_set_host_scores(struct scorer *p, double share);
/* Of several drives: what each may take of what goes down from now on. The data thread alone. */
void scorer_set_speeds(struct scorer *p, const double speeds[LAYOUT_DRIVES_MAX]);

/* From now on nothing new is placed on the drive, and what lies there is carried away between
 * queries (drain.h); the hook `drained` is told. Of the only drive nothing undoes it but the next
 * epoch; one of several takes entries again where some have no place elsewhere. The data thread
 * alone. */
void scorer_drain(struct scorer *p, uint32_t drive);

/* The modelled CPU, from the next query on. */
void scorer_set_model(struct scorer *p, struct csd_model figures);

/* Serve until interrupted. */
int scorer_run(struct scorer *p);

/* Bytes of private memory that grow with context and pool (the selector, the cold map, buffers). */
uint64_t scorer_private_bytes(const struct scorer *p);
uint32_t scorer_hot_blocks(const struct scorer *p);
/* Of the running sequences as they stand, at most max; returns how many. The data thread alone. */
uint32_t scorer_live_stats(struct scorer *p, struct scorer_stats *out, uint32_t max);

struct hkm;
/* The tables, for tests. */
const struct hkm *scorer_tables(const struct scorer *p);
