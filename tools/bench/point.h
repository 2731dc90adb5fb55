/*
 * tools/bench/point.h - one measured point of a figure about policies: the running pipeline at a
 * context length, with a number of sequences in a step, on a modelled drive, the real one or none.
 *
 * What: either real KV (workload.h), or a model of random weights that has many bytes of KV for few
 * weights (2 layers, 8 KV heads x 128: an entry of 4096 bytes, as Llama-3-8B and Qwen-7B with GQA
 * have it, and 3 M parameters), so that the drive decides and prompts are quick. A session is made
 * once; every row restores it, one after the other, while those before decode; what is measured is
 * the last row: its steps are those in which all rows decode (that the others still do at its end
 * is checked). point_run measures once and keeps nothing (comparison.h keeps its rounds).
 * point_get is for random weights: of a short point, the middle one of three pipelines, and a
 * result is kept in a file (build/bench/points), with the options that made it, so that a figure
 * can be cut to some points and resumed.
 *
 * Drives: POINT_MODELLED is the device model's times over a pool in memory (BENCH_POOL_DIR, default
 * /dev/shm: what lies below must be faster than the model, or its times are not the model's), and a
 * GPU that has memory of its own: hot entries are copied to it, not read in place. POINT_NATIVE is
 * the file system of --folder and reading in place where the device can. POINT_NONE has everything
 * hot, and the GPU of POINT_MODELLED: what the processors alone need.
 *
 * Who calls it: comparison.c, policy_bytes.c. Concurrency: one point at a time. Failure:
 * bench_fail; what was started and written is stopped and removed at exit.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/bench/harness.h"
#include "tools/bench/workload.h"
#include "kv/geometry.h"
#include "placement/placement.h"

#define POINT_LAYERS   2u
#define POINT_KV_HEADS 8u
#define POINT_HEAD_DIM 128u
#define POINT_ALPHA    0.2
#define POINT_BETA     0.1
#define POINT_MODEL    "2 layers, 8 KV heads x 128 (entries of 4096 bytes), width 256, FFN 512"

enum point_drive { POINT_MODELLED, POINT_NATIVE, POINT_NONE };

struct point {
    const struct workload *kv; /* NULL: random weights */
    const char *policy;
    uint32_t tokens, rows, steps;
    enum point_drive drive;
    const char *csd_model; /* of POINT_MODELLED */
    const char *options;   /* further ones, before what is usual here; "": none */
    const char *label;     /* what they make of it, for names; "": nothing */
    const char *hook;      /* a variable HILL_TEST_* that is set for it; NULL: none */
};

/* Of the last row unless said otherwise. Times of a step are medians, so that a hiccup of the
 * machine does not count; the rest is a step's mean unless said otherwise. busy: of the modelled
 * drive, by its own counters, in a step of all rows: of one row alone what came on top of a
 * restored request of one step; of several what was counted while all of them decoded. */
struct point_result {
    double step_ms, idle_ms; /* idle: waiting for selections */
    double bounds_ms, score_hot_ms, merge_ms, fetch_ms;
    double score_cpu_ms;                                          /* of all scoring threads */
    double link_key, link_score, link_kv, flash_read, gpu_upload; /* bytes */
    double gpu_hits, hot_hits, cold_hits;                         /* of one query */
    double hot, cold;                                             /* entries of a layer */
    double ever_cold;                                      /* entries of all layers and rows */
    double candidates_hot, candidates_cold, between, runs; /* of one query; leoam's */
    double busy_flash_ms, busy_dram_ms, busy_score_ms, busy_link_ms; /* a step */
    double late_step_ms;        /* how long the real work took beyond the modelled time; as busy */
    double written;             /* bytes of pages, entries' and the directory's, of the whole run */
    double all_flash, all_link; /* bytes of all rows: the others' while all of them decoded */
    double hot_share, cold_share; /* of all rows' entries, and of what they selected */
    double beta, late_ms;         /* of the drive: of the whole run, prompts included */
    double whole_ms;              /* restoring or prefilling all rows, and the steps */
    bool gpu_link;                /* the model's is applied */
    char commit[64];
};

/* The folder, the programs, the random-weight model. */
void point_prepare(const struct bench_options *o);

/* Once, and not kept; its session must be there. false: the pipeline does not come up with these
 * options, or does not take all rows at once; stderr has the reason. */
bool point_run(const struct point *p, struct point_result *result);
/* Everything that decides what is measured, but for the program: what is asked for, and of what is
 * not what the environment or the program's defaults say. */
void point_settings(const struct point *p, char *out, size_t room);
/* MiB of M_0 (--hot-mb) that a share of the entries of all rows fills with what else lies in it
 * (kv/plan.h), the placement's tables too; guesses: with staging for them. */
double point_hot_mb(const struct point *p, enum placement_kind placement, double share,
                    double alpha, bool guesses);
/* beta that Eq. 4 predicts for a point, out of rates measured just now (hillctl profile); bounded:
 * by what M_0 holds. */
double point_predicted_beta(const struct point *p, double *bounded);

/* Measured now, with progress, or, when it is not asked for or $RESUME is set, loaded; false: it is
 * not asked for and there is none. */
bool point_get(const struct point *p, struct point_result *result);
/* So many points will be got, for the progress. */
void point_expect(uint32_t n);

/* A line: at which commits the points that were got were measured, and how many each. */
void point_print_commits(void);

/* "full 4096 x 1, modelled drive"; returns out. */
const char *point_name(const struct point *p, char out[128]);

/* Names of the policies that the coordinator accepts, n of them, hillinfer first. */
#define POINT_POLICIES_MAX 16u
uint32_t point_policies(char names[POINT_POLICIES_MAX][24]);

/* Does the coordinator's --help offer this value of an option that is one of several? */
bool point_offers(const char *option, const char *value);

/* The default of --csd-model in full, or $CSD_MODEL. */
const char *point_csd_model(void);
/* Of the random-weight model. */
struct kv_geometry point_geometry(void);

/* Is this point asked for? $POINTS: words "[POLICY:]LENGTHxBATCH"; without it all are. */
bool point_asked(const char *policy, uint32_t tokens, uint32_t rows);
