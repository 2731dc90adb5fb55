/*
 * gpu_worker/logits_file.h - logits into a file, for comparisons with other engines.
 *
 * HILL_TEST_LOGITS=FILE gets those of each step, HILL_TEST_PROMPT_LOGITS=FILE those of every token
 * of a prompt, as prefill computes them; added to FILE, float [n_vocab]. Who calls it: requests.
 * Failure: a warning in the log; requests go on. Concurrency: the data loop's thread.
 */
#pragma once

#include <stdbool.h>

#include "gpu_worker/worker.h"

/* The logits in w->logits, of a step. */
void logits_file_step(const struct worker *w);
/* Are those of whole prompts wanted? Then engine_prefill_whole has to be called. */
bool logits_file_wants_prompt(void);
/* Of tokens first .. n_tokens - 1, when all units are done. w->logits is overwritten. Nothing where
 * none are wanted. */
int logits_file_prompt(struct worker *w, uint32_t first, uint32_t n_tokens, struct hill_why *why);
