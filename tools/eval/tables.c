/* tools/eval/tables.c - see tables.h. */
#include "tools/eval/tables.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- counting ------------------------------------------------------------------------------ */

static struct table_column *column_of(struct table *t, const struct item *item)
{
    for (uint32_t i = 0; i < t->n_columns; i++)
        if (t->columns[i].is_text == item->is_text && strcmp(t->columns[i].name, item->group) == 0)
            return &t->columns[i];
    return NULL;
}

/* Tasks in the order in which they come, then texts. */
static int make_columns(struct table *t, const struct item_list *items)
{
    t->columns = calloc(items->count ? items->count : 1, sizeof *t->columns);
    if (!t->columns)
        return HILL_E_NOMEM;
    for (int texts = 0; texts < 2; texts++)
        for (size_t i = 0; i < items->count; i++) {
            const struct item *item = &items->items[i];
            if (item->is_text != texts)
                continue;
            struct table_column *column = column_of(t, item);
            if (!column) {
                column = &t->columns[t->n_columns++];
                *column = (struct table_column){.name = item->group, .is_text = item->is_text};
                *(item->is_text ? &t->n_texts : &t->n_tasks) += 1;
            }
            column->n_items++;
        }
    return 0;
}

static void count_row(struct table *t, struct table_row *row, const struct subject *subject,
                      const struct item_list *items, struct results *results)
{
    double selected[2] = {0, 0}; /* tasks, texts */
    uint64_t n[2] = {0, 0};
    for (size_t i = 0; i < items->count; i++) {
        struct job job = {&items->items[i], row->setting};
        const struct result *result = results_find(results, results_key(subject, &job));
        if (!result)
            continue;
        struct table_cell *cell = &row->cells[column_of(t, job.item) - t->columns];
        cell->n++;
        cell->right += result->right;
        cell->logprob += result->logprob;
        cell->n_scored += result->n_scored;
        selected[job.item->is_text] += result->selected;
        n[job.item->is_text]++;
    }
    row->selected_text = n[1] ? selected[1] / (double)n[1] : NAN;
    row->selected = n[0] ? selected[0] / (double)n[0] : t->n_tasks ? NAN : row->selected_text;
}

static double accuracy_of(const struct table_cell *cell)
{
    return cell->n ? (double)cell->right / cell->n : NAN;
}

static double perplexity_of(double logprob, uint64_t n_scored)
{
    return n_scored ? exp(-logprob / (double)n_scored) : NAN;
}

static void sum_row(const struct table *t, struct table_row *row)
{
    double accuracy = 0, logprob = 0;
    uint64_t n_scored = 0;
    for (uint32_t i = 0; i < t->n_columns; i++) {
        if (!t->columns[i].is_text)
            accuracy += accuracy_of(&row->cells[i]);
        logprob += row->cells[i].logprob;
        n_scored += row->cells[i].n_scored;
    }
    row->accuracy = t->n_tasks ? accuracy / t->n_tasks : NAN;
    row->perplexity = perplexity_of(logprob, n_scored);
    row->worst = NAN;
}

/* Only where both have the whole task. */
static void compare_row(const struct table *t, struct table_row *row, const struct table_row *full)
{
    for (uint32_t i = 0; i < t->n_tasks; i++) {
        if (row->cells[i].n != t->columns[i].n_items || full->cells[i].n != t->columns[i].n_items)
            continue;
        double change = 100 * (accuracy_of(&row->cells[i]) - accuracy_of(&full->cells[i]));
        if (isnan(row->worst) || change < row->worst)
            row->worst = change;
    }
}

static bool is_full(const struct setting *s)
{
    return !s->window_only && s->selection.policy == KV_POLICY_FULL;
}

int table_build(struct table *t, const struct subject *subject, const struct item_list *items,
                const struct matrix *matrix, struct results *results, struct hill_why *why)
{
    *t = (struct table){.matrix = matrix};
    bool room = make_columns(t, items) == 0 && (t->rows = calloc(matrix->n_rows, sizeof *t->rows));
    const struct table_row *full = NULL;
    for (uint32_t i = 0; room && i < matrix->n_rows; i++) {
        struct table_row *row = &t->rows[i];
        row->setting = &matrix->rows[i];
        row->cells = calloc(t->n_columns ? t->n_columns : 1, sizeof *row->cells);
        room = row->cells != NULL;
        if (room) {
            count_row(t, row, subject, items, results);
            sum_row(t, row);
            full = is_full(row->setting) ? row : full;
        }
    }
    if (!room) {
        table_free(t);
        return hill_fail(why, HILL_E_NOMEM, "out of memory for the table");
    }
    for (uint32_t i = 0; full && i < matrix->n_rows; i++)
        if (&t->rows[i] != full)
            compare_row(t, &t->rows[i], full);
    return 0;
}

void table_free(struct table *t)
{
    for (uint32_t i = 0; t->rows && i < t->matrix->n_rows; i++)
        free(t->rows[i].cells);
    free(t->rows);
    free(t->columns);
    *t = (struct table){0};
}

/* ---- markdown ------------------------------------------------------------------------------ */

static void print_number(FILE *to, const char *format, double value)
{
    if (isnan(value))
        fputs(" - |", to);
    else
        fprintf(to, format, value);
}

static void print_cell(FILE *to, const struct table_column *column, const struct table_cell *cell)
{
    if (cell->n == 0) {
        fputs(" - |", to);
        return;
    }
    if (column->is_text)
        fprintf(to, " %.4g", perplexity_of(cell->logprob, cell->n_scored));
    else
        fprintf(to, " %.1f", 100 * accuracy_of(cell));
    if (cell->n != column->n_items)
        fprintf(to, " (%u of %u)", cell->n, column->n_items);
    fputs(" |", to);
}

static void print_head(const struct table *t, FILE *to)
{
    fputs("| policy | attends to | importance | score bits | speculate |", to);
    for (uint32_t i = 0; i < t->n_columns; i++)
        fprintf(to, t->columns[i].is_text ? " %s, perplexity (%u) |" : " %s, %% (%u) |",
                t->columns[i].name, t->columns[i].n_items);
    fputs(t->n_tasks ? " mean, % | worst against full, points |" : "", to);
    fputs(" mean selected tokens |\n|---|---:|---|---|---|", to);
    for (uint32_t i = 0; i < t->n_columns + 1 + (t->n_tasks ? 2 : 0); i++)
        fputs("---:|", to);
    fputc('\n', to);
}

static void print_row(const struct table *t, const struct table_row *row, FILE *to)
{
    const struct setting *s = row->setting;
    const struct matrix_pipeline *p = &t->matrix->pipelines[s->pipeline];
    bool digests = setting_has_digests(s);
    fprintf(to, "| %s | %s | %s | %s | %s |", s->name, s->amount,
            digests ? setting_importance(s) : "-", digests ? p->score_bits : "-",
            digests ? p->speculate : "-");
    for (uint32_t i = 0; i < t->n_columns; i++)
        print_cell(to, &t->columns[i], &row->cells[i]);
    if (t->n_tasks) {
        print_number(to, " %.1f |", 100 * row->accuracy);
        print_number(to, " %+.1f |", row->worst);
    }
    print_number(to, " %.0f |", row->selected);
    fputc('\n', to);
}

int table_print(const struct table *t, FILE *to, struct hill_why *why)
{
    print_head(t, to);
    for (uint32_t i = 0; i < t->matrix->n_rows; i++)
        print_row(t, &t->rows[i], to);
    if (fflush(to) != 0 || ferror(to))
        return hill_fail(why, HILL_E_IO, "the table could not be written");
    return 0;
}
