/*
 * tools/eval/own_pipeline.h - a pipeline of hill-eval's own: started, waited for, ended in order.
 *
 * `hillinfer up` is a child; it gets SIGTERM from the kernel when hill-eval dies, however that
 * happens, and then ends the pipeline in order. Its run folder has a name made of the results
 * file's, so that the next run finds one that is still ending and waits for it; its log and its
 * cold pool lie in the folder RESULTS.pipeline, which is removed at the end. Failure: the
 * pipeline's own last error line, HILL_E_INVALID when it refused its options, HILL_E_TIMEOUT. Who
 * calls it: work.c. Concurrency: one thread.
 */
#pragma once

#include <sys/types.h>

#include "proto/options_hill.h"
#include "tools/eval/matrix.h"
#include "proto/client.h"

struct own_pipeline_order {
    const char *model, *results;
    const char *more; /* further options of `hillinfer up`, with spaces between them; NULL: none */
    uint32_t ctx_tokens;
    struct matrix_pipeline kind;
};

struct own_pipeline {
    pid_t pid; /* 0: none */
    char run_dir[HILL_PATH_BYTES], state_dir[HILL_PATH_BYTES], log[HILL_PATH_BYTES + 8];
};

/* Start and wait until it is ready; client is then connected to it. HILL_E_CANCELLED: a signal came
 * meanwhile. On failure nothing is left. */
int own_pipeline_start(struct own_pipeline *own, struct client *client,
                       const struct own_pipeline_order *order, struct hill_why *why);
/* Ends and waits; NULL-safe in that none is fine. */
void own_pipeline_stop(struct own_pipeline *own);
