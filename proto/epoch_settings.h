/*
 * proto/epoch_settings.h - what all processes of an epoch agree on: one struct, and Configure on
 * the wire.
 *
 * What: everything a worker needs to enter an epoch (proto/party.h) and to do its work in it. The
 * coordinator fills it from options and a model (coordinator/settings.h) and embeds it; Configure
 * carries it; workers, replays and tests read it back here and nowhere else. Ownership: the texts
 * belong to whoever filled the struct: after epoch_settings_read to the message. Failure:
 * HILL_E_INVALID with the numbers. Concurrency: pure functions.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/csd_model.h"
#include "kv/plan.h"
#include "proto/hill.pb-c.h"
#include "proto/layout.h"

#define EPOCH_THREADS_MAX 1024u

/* One of several drives, as the scorer is told of it. */
struct epoch_drive {
    bool attached;
    uint64_t cap_bytes; /* of its pool */
    double speed;       /* bytes of FP16 KV a second, against the others'; 0: not known */
};

struct epoch_settings {
    uint64_t run_id;      /* of the run folder: part of the segments' names */
    uint32_t epoch;       /* from 1 */
    uint32_t tiers_epoch; /* in which the hot segment was made: below epoch, and it is kept */

    struct kv_plan_input plan; /* model's shape, context, sequences, selection (a request may bring
                                  its own); placement_bytes and cold_slots do not travel */
    const char *model_path;
    const char *device; /* OpenCL device: its number or part of its name; empty: the first */
    uint32_t threads;   /* of each process, scoring or OpenCL; at most EPOCH_THREADS_MAX */

    uint64_t hot_cap_bytes;    /* M_0 */
    uint64_t hot_bytes;        /* payload of the hot segment */
    uint64_t gpu_kv_cap_bytes; /* --gpu-kv-mb */
    uint32_t gpu_slots;        /* entries that a (sequence, layer) has on the GPU */
    uint32_t staging_slots;    /* entries that the staging arena holds */
    double gpu_drop; /* 0 .. 1: of a query's tokens, not kept on the GPU for the next one */

    bool csd_attached;
    bool csd_plain;                 /* it is only read until it is empty, by the host's CPU alone */
    const char *csd_url;            /* of the agent: "file:PATH", "tcp://HOST:PORT" */
    const char *csd_device;         /* of a file: drive: OpenCL device, or host (also: empty) */
    const char *csd_key, *csd_peer; /* of tcp: files with the own key and the drive's public one */
    bool csd_cast;                  /* --csd-digests cast: FP16 keys lie there, and no digests */
    uint64_t csd_dram_bytes;        /* --csd-dram-mb: of digests that the agent keeps in memory */
    uint64_t cold_cap_bytes;        /* of the pool's file; 0: no cold pool */
    uint32_t block_tokens;          /* slots of a Score Block; to RECORD_STRIPE_SLOTS_MAX */
    struct csd_model csd_model;
    uint32_t csd_drives; /* places for drives; 0: one, and what csd_ says above is all of it */
    uint32_t csd_drive;  /* whose agent is told; what csd_ says above is of this one */
    struct epoch_drive drives[LAYOUT_DRIVES_MAX]; /* of several: the scorer's */

    double beta;    /* wanted hot / cold entries, M_c / M_s; 0: everything hot that M_0 allows */
    bool beta_auto; /* beta follows what the scorer tells of its stages */
    /* Share of the tokens that the host is to score if it has no entry and all their digests
     * (cpu_scorer/hot_share.h), above 1: all; 0: sequences do not lend hot blocks to digests. */
    double host_scores;
    Hill__Placement placement;
    double pin; /* bkp: the newest share locked hot; negative: the selection's alpha */
    Hill__Speculate speculate;
    uint32_t exact_layers; /* the first layers, whose queries are not guessed; 0 means 1 */
    Hill__Simd simd;

    const char *trace_path; /* of the scorer's KV trace, absolute; empty: none */
    bool trace_scores;      /* with every token's score */
    const char *prefix_dir; /* of the prefix store on a disk, absolute; empty: none */
    uint64_t prefix_bytes;  /* its cap */
    double prefix_share;    /* of a stored prefix, loaded before the first token; 0: all of it */
    uint64_t prefix_cache_bytes;     /* memory for what was loaded so and may be again; 0: none */
    uint64_t prefix_gpu_cache_bytes; /* the same of the device's memory */
    bool prefix_away;                /* what is not loaded then takes no part in decode either */
    const char *record_path;         /* of the recording of the rings, absolute; empty: none */
};

/* What the sizes and offsets of the rings follow from. */
struct layout_input epoch_layout(const struct epoch_settings *s);
/* Places for drives. */
static inline uint32_t epoch_drives(const struct epoch_settings *s)
{
    return s->csd_drives > 1 ? s->csd_drives : 1;
}
/* Of a slot in the cold pool's plane of keys; 0: the plane is of digests. */
uint32_t epoch_key_bytes(const struct epoch_settings *s);
/* Can the processes work with these numbers together? (proto_validate has seen each alone.) */
int epoch_settings_check(const struct epoch_settings *s, struct hill_why *why);
/* Out of a validated Configure, checked. */
int epoch_settings_read(struct epoch_settings *out, const Hill__Configure *c, struct hill_why *why);

/* A Configure message; its parts point at each other and into the settings. */
struct epoch_wire {
    Hill__Message message;
    Hill__Configure configure;
    Hill__Selection selection;
    Hill__CsdModel csd_model;
    Hill__Drive drives[LAYOUT_DRIVES_MAX], *drive_list[LAYOUT_DRIVES_MAX];
};
void epoch_settings_to_wire(struct epoch_wire *out, const struct epoch_settings *s);

void selection_to_wire(Hill__Selection *out, const struct kv_selection_settings *selection);
struct kv_selection_settings selection_from_wire(const Hill__Selection *in);

/* Names of the choices, as a person types them ("avx2", "bkp", "verify"); and back: HILL_E_INVALID
 * when there is none of that name. */
const char *epoch_simd_name(Hill__Simd simd);
const char *epoch_speculate_name(Hill__Speculate speculate);
int epoch_simd_parse(const char *name, Hill__Simd *out);
int epoch_speculate_parse(const char *name, Hill__Speculate *out);
int epoch_placement_parse(const char *name, Hill__Placement *out);
