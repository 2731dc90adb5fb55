/*
 * placement/trace_replay.h - run a placement over a recorded trace.
 *
 * What: every (request, sequence, layer) of the trace is replayed on its own, with a placement that
 * starts at the first record's tokens as its prompt; results are added up. Hot capacity of n
 * tokens: ceil(hot * n). As in the live scorer the GPU's slot table stands in front: it keeps what
 * it has, and a placement hears only of the entries that the GPU lacked (and moves only those, but
 * for score). What the GPU lacked does not depend on the placement. What moves up leaves its copy
 * below, and goes down again without a write; of more copies than a part of what is cold
 * (copies_part) one is given away with each entry that is written, the oldest first. Not as live:
 * moves take no time, new tokens are told one by one, and the live scorer gives away copies of the
 * groups that have most (cpu_scorer/cold_map.h). Who calls it: hill-kvtrace, bench, tests.
 * Concurrency: one thread per file. Failure: codes of placement.h and trace.h; HILL_E_INVALID when
 * the placement needs scores that the trace lacks.
 */
#pragma once

#include "placement/placement.h"
#include "placement/trace.h"

struct trace_replay_settings {
    double hot;           /* (0, 1]: share of the tokens that may be hot */
    int64_t layer;        /* that layer alone; -1: all */
    uint32_t gpu_slots;   /* of the GPU, per (sequence, layer); 0: it keeps nothing */
    uint32_t copies_part; /* copies are kept for one of so many cold tokens; 0: all are */
    bool limits_all;      /* placement.rate is for all placements, as live; else for bkp alone */
    struct placement_settings placement; /* max_tokens and future are filled by the replay */
};

struct trace_replay_result {
    struct placement_stats stats; /* of what the GPU lacked */
    uint64_t gpu_hits;            /* selected entries that were not forced and that the GPU held */
    uint64_t uploads;             /* selected entries that it lacked, the forced ones too */
    uint64_t selected;            /* all */
    uint64_t written;             /* demotions of what had no copy; prompts not counted */
    uint64_t given_away;          /* copies, for the sake of the drive's stream */
    uint64_t copies;              /* in the stream, added up over queries */
    uint64_t cold;                /* tokens, the same */
    uint32_t streams;             /* (request, sequence, layer) */
    uint64_t queries;             /* records */
    uint64_t steps;               /* of the decode: distinct (request, sequence, step) */
    uint64_t n_last;              /* tokens at the end, the largest */
};

/* Settings for a trace: its sinks, window and alpha, pin = alpha, the GPU slots that the scorer has
 * when no cap is tight (the budget of the whole context, at least the longest selection), the rate
 * of the live scorer, defaults for the rest. */
struct trace_replay_settings trace_replay_defaults(const struct trace_file *file);

int trace_replay_run(struct trace_replay_result *out, struct trace_file *file,
                     enum placement_kind kind, const struct trace_replay_settings *settings,
                     struct hill_why *why);

/* Share of the unforced selected entries that the GPU lacked and that were hot; 1 when there were
 * none. */
double trace_replay_hit_rate(const struct trace_replay_result *result);

/* Share of all unforced selected entries that the GPU held or that were hot: what does not wait for
 * the drive. 1 when there were none. */
double trace_replay_near_rate(const struct trace_replay_result *result);
