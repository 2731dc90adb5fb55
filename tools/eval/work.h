/*
 * tools/eval/work.h - what is still to be asked, pipeline by pipeline, with progress on stderr.
 *
 * Items come one after another, each under every setting, so that a run that is stopped has
 * compared whole items. Where several pipelines are needed, they take turns with as many prompts as
 * have room in the sessions' folder. A request that fails is said on stderr and counted; the rest
 * goes on, and the next run asks it again. Progress: on a terminal one line that is rewritten,
 * elsewhere a line a tenth. Who calls it: main.c. Failure: as asker.h and own_pipeline.h; what was
 * answered is in the results file. Concurrency: one thread.
 */
#pragma once

#include "tools/eval/own_pipeline.h"
#include "tools/eval/results.h"

struct work {
    const struct subject *subject;
    const struct item_list *items;
    const struct matrix *matrix;
    struct results *results;
    struct sessions sessions;
    unsigned parallel;
    bool quiet;
    /* one of the two */
    const char *run_dir;                 /* a running pipeline; NULL: one of our own */
    struct own_pipeline_order own_order; /* but for its kind */
    /* what came of it */
    size_t n_known, n_asked, n_failed;
};

int work_run(struct work *work, struct hill_why *why);
