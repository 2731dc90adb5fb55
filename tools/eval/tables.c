/* tools/eval/tables.c - see tables.h. */
#include "tools/eval/tables.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"

/* ---- counting ------------------------------------------------------------------------------ */

/* Where results come from. */
struct evidence {
    const struct subject *subject;
    const struct item_list *items;
    struct results *results;
};

static struct table_column *column_of(struct table *t, const struct item *item, bool by_bytes)
{
    for (uint32_t i = 0; i < t->n_columns; i++)
        if (t->columns[i].is_text == item->is_text && t->columns[i].by_bytes == by_bytes &&
            strcmp(t->columns[i].name, item->group) == 0)
            return &t->columns[i];
    return NULL;
}

static void count_item(struct table *t, const struct item *item, bool by_bytes)
{
    struct table_column *column = column_of(t, item, by_bytes);
    if (!column) {
        column = &t->columns[t->n_columns++];
        *column = (struct table_column){
            .name = item->group, .is_text = item->is_text, .by_bytes = by_bytes};
        *(item->is_text ? &t->n_texts : &t->n_tasks) += 1;
    }
    column->n_items++;
}

/* Tasks in the order in which they come, then texts. No more columns than items: a multiple choice
 * has two and at least as many choices. */
static int make_columns(struct table *t, const struct item_list *items)
{
    t->columns = calloc(items->count ? items->count : 1, sizeof *t->columns);
    if (!t->columns)
        return HILL_E_NOMEM;
    for (int texts = 0; texts < 2; texts++)
        for (size_t i = 0; i < items->count; i++) {
            const struct item *item = &items->items[i];
            if (item->is_text != texts || item->choice)
                continue;
            count_item(t, item, false);
            if (item->is_choice)
                count_item(t, item, true);
        }
    return 0;
}

static const struct result *result_of(const struct evidence *e, const struct item *item,
                                      const struct setting *setting)
{
    struct job job = {item, setting};
    return results_find(e->results, results_key(e->subject, &job));
}

enum outcome { MISSING, WRONG, RIGHT };

/* first: of the question's choices. */
static enum outcome outcome_of_choices(const struct evidence *e, const struct item *first,
                                       const struct setting *setting, bool by_bytes)
{
    uint32_t best = 0;
    double most = -INFINITY;
    for (uint32_t i = 0; i < first->n_choices; i++) {
        const struct result *result = result_of(e, &first[i], setting);
        if (!result)
            return MISSING;
        double likely = by_bytes ? result->logprob / first[i].choice_bytes : result->logprob;
        if (likely > most) {
            most = likely;
            best = i;
        }
    }
    return best == first->gold ? RIGHT : WRONG;
}

static enum outcome outcome_of(const struct evidence *e, const struct item *item,
                               const struct setting *setting, bool by_bytes)
{
    if (item->is_choice)
        return outcome_of_choices(e, item, setting, by_bytes);
    const struct result *result = result_of(e, item, setting);
    return !result ? MISSING : result->right ? RIGHT : WRONG;
}

/* A question's or piece's part in one column. */
static void count_cell(struct table *t, struct table_row *row, const struct evidence *e,
                       const struct item *item, const struct setting *full, bool by_bytes)
{
    struct table_cell *cell = &row->cells[column_of(t, item, by_bytes) - t->columns];
    enum outcome here = outcome_of(e, item, row->setting, by_bytes),
                 there = full ? outcome_of(e, item, full, by_bytes) : MISSING;
    cell->n += here != MISSING;
    cell->right += here == RIGHT;
    cell->won += here == RIGHT && there == WRONG;
    cell->lost += here == WRONG && there == RIGHT;
}

/* What belongs to each result, a choice's too. */
static void count_sums(struct table *t, struct table_row *row, const struct evidence *e)
{
    double selected[2] = {0, 0}; /* tasks, texts */
    uint64_t n[2] = {0, 0};
    for (size_t i = 0; i < e->items->count; i++) {
        const struct item *item = &e->items->items[i];
        const struct result *result = result_of(e, item, row->setting);
        if (!result)
            continue;
        if (item->is_text) {
            struct table_cell *cell = &row->cells[column_of(t, item, false) - t->columns];
            cell->logprob += result->logprob;
            cell->n_scored += result->n_scored;
        }
        selected[item->is_text] += result->selected;
        n[item->is_text]++;
    }
    row->selected_text = n[1] ? selected[1] / (double)n[1] : NAN;
    row->selected = n[0] ? selected[0] / (double)n[0] : t->n_tasks ? NAN : row->selected_text;
}

static void count_row(struct table *t, struct table_row *row, const struct evidence *e,
                      const struct setting *full)
{
    for (size_t i = 0; i < e->items->count; i++) {
        const struct item *item = &e->items->items[i];
        if (item->choice)
            continue;
        count_cell(t, row, e, item, full, false);
        if (item->is_choice)
            count_cell(t, row, e, item, full, true);
    }
    count_sums(t, row, e);
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
    uint32_t n_means = 0;
    for (uint32_t i = 0; i < t->n_columns; i++) {
        if (!t->columns[i].is_text && !t->columns[i].by_bytes) {
            accuracy += accuracy_of(&row->cells[i]);
            n_means++;
        }
        logprob += row->cells[i].logprob;
        n_scored += row->cells[i].n_scored;
    }
    row->accuracy = n_means ? accuracy / n_means : NAN;
    row->perplexity = perplexity_of(logprob, n_scored);
    row->worst = NAN;
}

/* Only where both have the whole task. */
static void compare_row(const struct table *t, struct table_row *row, const struct table_row *full)
{
    for (uint32_t i = 0; i < t->n_tasks; i++) {
        if (t->columns[i].by_bytes || row->cells[i].n != t->columns[i].n_items ||
            full->cells[i].n != t->columns[i].n_items)
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

static const struct setting *find_full(const struct matrix *matrix)
{
    for (uint32_t i = 0; i < matrix->n_rows; i++)
        if (is_full(&matrix->rows[i]))
            return &matrix->rows[i];
    return NULL;
}

/* Of a row's results, by the commit that asked. */
static int count_commits(struct table *t, const struct evidence *e, const struct setting *setting)
{
    for (size_t i = 0; i < e->items->count; i++) {
        const struct result *result = result_of(e, &e->items->items[i], setting);
        size_t c = 0;
        if (!result)
            continue;
        while (c < t->n_commits && strcmp(t->commits[c].name, result->commit) != 0)
            c++;
        if (!GROW(t->commits, t->commits_room, c + 1))
            return HILL_E_NOMEM;
        if (c == t->n_commits) {
            t->commits[t->n_commits++] = (struct table_commit){.n = 0};
            memcpy(t->commits[c].name, result->commit, sizeof t->commits[c].name);
        }
        t->commits[c].n++;
    }
    return 0;
}

int table_build(struct table *t, const struct subject *subject, const struct item_list *items,
                const struct matrix *matrix, struct results *results, struct hill_why *why)
{
    const struct evidence evidence = {subject, items, results};
    const struct setting *full_setting = find_full(matrix);
    *t = (struct table){.matrix = matrix};
    bool room = make_columns(t, items) == 0 && (t->rows = calloc(matrix->n_rows, sizeof *t->rows));
    const struct table_row *full = NULL;
    for (uint32_t i = 0; room && i < matrix->n_rows; i++) {
        struct table_row *row = &t->rows[i];
        row->setting = &matrix->rows[i];
        row->cells = calloc(t->n_columns ? t->n_columns : 1, sizeof *row->cells);
        room = row->cells && count_commits(t, &evidence, row->setting) == 0;
        if (room) {
            count_row(t, row, &evidence, full_setting);
            sum_row(t, row);
            full = row->setting == full_setting ? row : full;
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
    free(t->commits);
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

static void print_name_head(FILE *to)
{
    fputs("| policy | attends to | importance | score bits | speculate |", to);
}

static void print_rule(FILE *to, uint32_t n_numbers)
{
    fputs("\n|---|---:|---|---|---|", to);
    for (uint32_t i = 0; i < n_numbers; i++)
        fputs("---:|", to);
    fputc('\n', to);
}

static const char *column_suffix(const struct table_column *column)
{
    return column->by_bytes ? ", by bytes" : "";
}

static void print_head(const struct table *t, FILE *to)
{
    print_name_head(to);
    for (uint32_t i = 0; i < t->n_columns; i++)
        fprintf(to, " %s%s, %s (%u) |", t->columns[i].name, column_suffix(&t->columns[i]),
                t->columns[i].is_text ? "perplexity" : "%", t->columns[i].n_items);
    fputs(t->n_tasks ? " mean, % | worst against full, points |" : "", to);
    fputs(" mean selected tokens |", to);
    print_rule(to, t->n_columns + 1 + (t->n_tasks ? 2 : 0));
}

static void print_name(const struct table *t, const struct setting *s, FILE *to)
{
    const struct matrix_pipeline *p = &t->matrix->pipelines[s->pipeline];
    bool digests = setting_has_digests(s);
    fprintf(to, "| %s | %s | %s | %s | %s |", s->name, s->amount,
            digests ? setting_importance(s) : "-", digests ? p->score_bits : "-",
            digests ? p->speculate : "-");
}

static void print_row(const struct table *t, const struct table_row *row, FILE *to)
{
    print_name(t, row->setting, to);
    for (uint32_t i = 0; i < t->n_columns; i++)
        print_cell(to, &t->columns[i], &row->cells[i]);
    if (t->n_tasks) {
        print_number(to, " %.1f |", 100 * row->accuracy);
        print_number(to, " %+.1f |", row->worst);
    }
    print_number(to, " %.0f |", row->selected);
    fputc('\n', to);
}

/* ---- pairs --------------------------------------------------------------------------------- */

double table_mcnemar(uint32_t won, uint32_t lost)
{
    double n = (double)won + lost, tail = 0;
    for (uint32_t i = 0; i <= (won < lost ? won : lost); i++) /* n over i, by 2^n */
        tail += exp(lgamma(n + 1) - lgamma(i + 1.0) - lgamma(n - i + 1) - n * log(2));
    return won == lost ? 1 : fmin(1, 2 * tail);
}

static void print_pairs(const struct table *t, FILE *to)
{
    fputs("\nAgainst full, item by item: won / lost, exact two-sided p of McNemar's test.\n\n", to);
    print_name_head(to);
    for (uint32_t i = 0; i < t->n_tasks; i++)
        fprintf(to, " %s%s |", t->columns[i].name, column_suffix(&t->columns[i]));
    print_rule(to, t->n_tasks);
    for (uint32_t r = 0; r < t->matrix->n_rows; r++) {
        if (is_full(t->rows[r].setting))
            continue;
        print_name(t, t->rows[r].setting, to);
        for (uint32_t i = 0; i < t->n_tasks; i++) {
            const struct table_cell *cell = &t->rows[r].cells[i];
            fprintf(to, " %u / %u, p %.3g |", cell->won, cell->lost,
                    table_mcnemar(cell->won, cell->lost));
        }
        fputc('\n', to);
    }
}

int table_print(const struct table *t, FILE *to, struct hill_why *why)
{
    print_head(t, to);
    for (uint32_t i = 0; i < t->matrix->n_rows; i++)
        print_row(t, &t->rows[i], to);
    if (t->n_tasks && t->matrix->n_rows > 1 && find_full(t->matrix))
        print_pairs(t, to);
    for (size_t i = 0; i < t->n_commits; i++)
        fprintf(to, "%s%s (%u)", i ? ", " : "\nCommits of hill-eval, with the results of each: ",
                t->commits[i].name[0] ? t->commits[i].name : "unknown", t->commits[i].n);
    if (t->n_commits)
        fputs(".\n", to);
    if (fflush(to) != 0 || ferror(to))
        return hill_fail(why, HILL_E_IO, "the table could not be written");
    return 0;
}
