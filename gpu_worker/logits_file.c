/*
 * gpu_worker/logits_file.c - logits into a file. See logits_file.h.
 */
#include "gpu_worker/logits_file.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"

#define STEP_NAME   "HILL_TEST_LOGITS"
#define PROMPT_NAME "HILL_TEST_PROMPT_LOGITS"

static void add(const struct worker *w, const char *name)
{
    const char *path = getenv(name);
    FILE *file = path ? fopen(path, "ab") : NULL;
    if (path && (!file || fwrite(w->logits, sizeof *w->logits, w->hparams.n_vocab, file) !=
                              w->hparams.n_vocab))
        log_warn("%s: writing %s failed", name, path);
    if (file && fclose(file) != 0)
        log_warn("%s: writing %s failed", name, path);
}

void logits_file_step(const struct worker *w)
{
    add(w, STEP_NAME);
}

bool logits_file_wants_prompt(void)
{
    return getenv(PROMPT_NAME) != NULL;
}

int logits_file_prompt(struct worker *w, uint32_t first, uint32_t n_tokens, struct hill_why *why)
{
    int rc = 0;
    for (uint32_t i = first; !rc && logits_file_wants_prompt() && i < n_tokens; i++) {
        rc = engine_prefill_logits_of(w->engine, i, w->logits, why);
        if (!rc)
            add(w, PROMPT_NAME);
        if (!rc)
            rc = worker_waiting(w, why);
    }
    return rc;
}
