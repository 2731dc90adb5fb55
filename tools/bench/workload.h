/*
 * tools/bench/workload.h - real KV: a model's file, a real text, a number of tokens, and the
 * session that the text's prompt has left.
 *
 * What: a name like "qwen0.5b-16384-moby" stands for a model (a file in $HILL_MODELS or the models'
 * cache folder; hill-ref lies in this repository), a length and a text: moby (Moby Dick) and lines
 * (LongEval) in $BENCH_DATA (bench_data_file), code (C sources of this repository), heldout
 * (models/heldout.txt). The text's first tokens are read once by the pipeline, with everything in
 * DRAM, into a session that is saved before the first decode step: such a session restores under
 * every policy and selection, but for h2o, which needs one with its sums of attention: its own.
 * Sessions stay in build/bench/sessions ($BENCH_SESSIONS); one is used when its header says that it
 * is of this model file (size and identity), of this length and of this policy, else it is made
 * again.
 * Who calls it: bench_policies.c, bench_ablation.c, point.c; bench_models.c finds its files with
 * it. Concurrency: one thread. Failure: what is not there is said in `missing`, for a figure to go
 * on without it; the rest is bench_fail().
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kv/geometry.h"

struct workload {
    char name[64],
        missing[640]; /* missing: what is not there, and where it was looked for; or "" */
    char model[512];  /* its path */
    char text[16];
    uint32_t tokens;
    struct kv_geometry geometry;
    uint64_t model_bytes, model_identity;
};

/* bench_fail for a name that is none. */
void workload_open(struct workload *w, const char *name);

/* The file of the session under a policy. */
void workload_session_file(const struct workload *w, const char *policy, char path[256]);
/* Is it there, of this model, length and policy? */
bool workload_has_session(const struct workload *w, const char *policy);
/* Write the bytes of the text's first tokens, for programs that read text. False: as below. */
bool workload_write_text(struct workload *w, const char *path);
/* Make it unless it is there, with a pipeline of its own (none may run). False: the text is not
 * there or too short, and `missing` says so. */
bool workload_make_session(struct workload *w, const char *policy);
