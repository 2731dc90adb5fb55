/*
 * tools/eval/tables.h - results as a table (markdown) and as a picture (gnuplot, SVG).
 *
 * A row a setting, a column a task or text; a multiple choice has two: the choice whose tokens'
 * log-probabilities have the largest sum is the answer (lm-evaluation-harness: acc), and the one
 * with the largest sum divided by the choice's bytes (its acc_norm: by characters; the column is
 * "TASK, by bytes" and is left out of mean and worst). Of equal ones the first counts. A
 * question with a choice that has no result has none. Accuracy: right answers of those that are
 * there; perplexity: exp(-mean log-probability of the scored tokens). "worst": the task that
 * lost most against full, in percentage points. Below, each row against full item by item: won
 * (right, full was wrong), lost, and the exact two-sided p of McNemar's test. A cell whose items
 * are not all there says how many are. The last line names the commits of hill-eval that asked.
 * Who calls it: main.c. Failure: HILL_E_IO, HILL_E_NOMEM;
 * HILL_E_UNSUPPORTED from tables_draw: there is no gnuplot. Concurrency: none.
 */
#pragma once

#include <stdio.h>

#include "tools/eval/results.h"

struct table_column {
    const char *name;
    bool is_text, by_bytes;
    uint32_t n_items; /* questions, pieces */
};

struct table_cell {
    uint32_t n, right;  /* results that are there, those that are right */
    uint32_t won, lost; /* against full, of the items that both have */
    double logprob;
    uint64_t n_scored;
};

struct table_row {
    const struct setting *setting;
    struct table_cell *cells; /* [n_columns] */
    double accuracy;          /* mean over the tasks; NAN: one has no result */
    double perplexity;        /* over all texts; NAN */
    double selected;          /* mean of the tokens a query attended to at the end, over tasks
                                 (texts where there is no task); NAN */
    double selected_text;     /* the same over texts */
    double worst;             /* points against full; NAN */
};

struct table_commit {
    char name[24]; /* "": of results whose lines name no commit */
    uint32_t n;    /* results of the table's cells */
};

struct table {
    const struct matrix *matrix;
    struct table_column *columns;
    uint32_t n_columns, n_tasks, n_texts;
    struct table_row *rows; /* [matrix->n_rows] */
    struct table_commit *commits;
    size_t n_commits, commits_room;
};

int table_build(struct table *table, const struct subject *subject, const struct item_list *items,
                const struct matrix *matrix, struct results *results, struct hill_why *why);
void table_free(struct table *table);

/* Probability, when each of won + lost items is as likely won as lost, of a split at least as
 * uneven. */
double table_mcnemar(uint32_t won, uint32_t lost);

int table_print(const struct table *table, FILE *to, struct hill_why *why);

/* Accuracy (and, with texts, perplexity) against the tokens attended to, a line a policy. */
int table_draw(const struct table *table, const char *title, const char *path,
               struct hill_why *why);
/* What gnuplot is told: for tests. */
void table_write_plot(const struct table *table, const char *title, const char *path, FILE *to);
