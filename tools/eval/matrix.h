/*
 * tools/eval/matrix.h - the settings that are compared: a row of the table each.
 *
 * From lists ("0.05,0.1") to rows: `full` once; every other policy with every alpha and every
 * budget; importances, score-bits and speculate one at a time, with the first of the others.
 * `window` is a limit, not a policy of the pipeline: sinks and the newest tokens alone, as many in
 * all as alpha or budget allow; like full it reads no score, so it is there once whatever the
 * score-bits. score-bits and speculate belong to a pipeline, the rest to a request. Who calls it:
 * main.c, asker.c, tables.c. Failure: HILL_E_INVALID or HILL_E_UNSUPPORTED, naming the word.
 * Concurrency: none.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "kv/select.h"
#include "proto/hill.pb-c.h"

#define MATRIX_WORD_MAX      16u
#define MATRIX_WORDS_MAX     32u
#define MATRIX_ROWS_MAX      4096u
#define MATRIX_OWN_PIPELINES 4u /* policies that have pipelines of their own */
#define MATRIX_PIPELINES_MAX (MATRIX_WORDS_MAX + MATRIX_OWN_PIPELINES)

struct matrix_words {
    char word[MATRIX_WORDS_MAX][MATRIX_WORD_MAX];
    uint32_t count;
};

struct setting {
    struct kv_selection_settings
        selection; /* window only: as the pipeline's, but for window and budget */
    bool window_only;
    uint32_t pipeline; /* which one it needs */
    char name[24];     /* "hillinfer", "window" */
    char amount[24];   /* "all", "5 %", "256, groups of 8" */
    char text[160];    /* everything that can change an answer: part of a result's key */
};

struct matrix_pipeline {
    char score_bits[MATRIX_WORD_MAX], speculate[MATRIX_WORD_MAX];
    uint32_t policy; /* what it is started with (kv_policy_served) */
};

struct matrix {
    struct setting *rows;
    uint32_t n_rows;
    struct matrix_pipeline pipelines[MATRIX_PIPELINES_MAX];
    uint32_t n_pipelines;
};

/* Do importance, the bits of digests and speculation change what it selects? */
bool setting_has_digests(const struct setting *s);

/* Lists as typed; NULL: an empty one. policies and importances may be "all". */
struct matrix_order {
    const char *policies, *alphas, *budgets, *importances, *score_bits, *speculate;
    uint32_t sinks, window;
    uint16_t granularity; /* of all rows that select */
};

int matrix_build(struct matrix *matrix, const struct matrix_order *order, struct hill_why *why);
void matrix_free(struct matrix *matrix);

const char *setting_importance(const struct setting *setting);

/* What a request of n_tokens (prompt and what follows) asks for. */
void setting_selection(const struct setting *setting, uint32_t n_tokens, Hill__Selection *out);
