/*
 * tests/gpu_worker/engine_run.h - drive an engine without a scorer: all entries are kept on the
 * host and every step attends over all of them (or over a layer's window), in slots of the test's
 * choosing.
 */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_worker/engine.h"

/* How the entries of an upload lie in staging: side by side downwards; RUN_PIECE of them upwards,
 * the next piece before them (capacity: a multiple of it); none beside the next (capacity: no
 * multiple of 7). */
#define RUN_PIECE 50u
enum run_order { RUN_DOWN, RUN_IN_PIECES, RUN_SCATTERED };

struct engine_run {
    struct engine *engine;
    struct model_hparams hp;
    uint32_t capacity, entry_bytes, n_tokens;
    uint8_t **entries;  /* [n_layers][capacity][entry bytes] */
    uint32_t *slot_of;  /* [capacity]: where the entry of a position lies on the GPU */
    uint32_t *uploaded; /* [n_layers]: positions below are in their slots */
    float *q, *logits;
    enum run_order order;
    uint8_t *staging; /* [capacity], stride bytes each */
    uint64_t stride;
    struct engine_upload *uploads; /* [capacity] */
    uint8_t *hot; /* NULL, or where every other entry is read in place: [n_layers][capacity], from
                     RUN_HOT_OFFSET on */
    uint32_t *slots; /* [capacity] of a layer's list */
    float *masses;   /* NULL, or [n_layers][capacity]: what a prompt attends to is summed */
    float *whole;    /* NULL, or [capacity][n_vocab]: logits of all tokens of a prompt */
};

#define RUN_HOT_OFFSET 192u

#define RUN_CHECK(call)                                                                            \
    do {                                                                                           \
        int rc_ = (call);                                                                          \
        if (rc_) {                                                                                 \
            fprintf(stderr, "%s: %d %s\n", #call, rc_, why.text);                                  \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

void run_init(struct engine_run *run, struct engine *engine, uint32_t batch, uint32_t capacity);

void run_finish(struct engine_run *run);

/* run->logits: of the last token. */
void run_prefill(struct engine_run *run, const uint32_t *tokens, uint32_t n);

/* Entries first .. first + count - 1 of a layer by way of staging, in the run's order. */
void run_upload(struct engine_run *run, uint32_t layer, uint32_t first, uint32_t count);

/* From now on every other entry is read in place. */
void run_read_in_place(struct engine_run *run);

void run_step(struct engine_run *run, uint32_t token);

uint32_t run_greedy(const struct engine_run *run);
