/*
 * tools/eval/table_picture.c - the table as a picture (tables.h: table_draw), drawn by gnuplot.
 *
 * gnuplot is a child that reads its commands from a pipe; the picture is written beside its place
 * and renamed, so that a gnuplot that fails leaves the old one.
 */
#include "tools/eval/tables.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Rows that are one line of the picture: all but the amount is the same. */
static bool same_line(const struct setting *a, const struct setting *b)
{
    return strcmp(a->name, b->name) == 0 && a->pipeline == b->pipeline &&
           a->selection.importance == b->selection.importance;
}

static bool first_of_line(const struct table *t, uint32_t row)
{
    for (uint32_t i = 0; i < row; i++)
        if (same_line(t->rows[i].setting, t->rows[row].setting))
            return false;
    return true;
}

static void print_name(const struct table *t, const struct setting *s, FILE *to)
{
    const struct matrix_pipeline *p = &t->matrix->pipelines[s->pipeline];
    fputs(s->name, to);
    if (setting_has_digests(s)) {
        fprintf(to, ", INT%s, %s", p->score_bits, setting_importance(s));
        if (strcmp(p->speculate, "off") != 0)
            fprintf(to, ", speculate %s", p->speculate);
    }
}

static double value_of(const struct table_row *row, bool perplexity)
{
    return perplexity ? row->perplexity : 100 * row->accuracy;
}

/* Returns the number of points. */
static unsigned print_points(const struct table *t, const struct setting *line, bool perplexity,
                             FILE *to)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < t->matrix->n_rows; i++) {
        const struct table_row *row = &t->rows[i];
        double x = perplexity ? row->selected_text : row->selected, y = value_of(row, perplexity);
        if (!same_line(row->setting, line) || isnan(y) || !(x > 0))
            continue;
        if (to)
            fprintf(to, "%.6g %.6g\n", x, y);
        n++;
    }
    return n;
}

static void write_panel(const struct table *t, bool perplexity, FILE *to)
{
    const char *before = "plot ";
    fprintf(to, "set ylabel '%s'\n%s\n", perplexity ? "perplexity" : "right answers, %",
            perplexity ? "set yrange [*:*]" : "set yrange [-5:105]");
    for (uint32_t i = 0; i < t->matrix->n_rows; i++)
        if (first_of_line(t, i) && print_points(t, t->rows[i].setting, perplexity, NULL)) {
            fprintf(to, "%s'-' smooth unique with linespoints pointtype 7 title '", before);
            print_name(t, t->rows[i].setting, to);
            fputs("'", to);
            before = ", ";
        }
    fputs("\n", to);
    for (uint32_t i = 0; i < t->matrix->n_rows; i++)
        if (first_of_line(t, i) && print_points(t, t->rows[i].setting, perplexity, to))
            fputs("e\n", to);
}

static bool has_points(const struct table *t, bool perplexity)
{
    for (uint32_t i = 0; i < t->matrix->n_rows; i++)
        if (print_points(t, t->rows[i].setting, perplexity, NULL))
            return true;
    return false;
}

/* In gnuplot's single quotes a quote is written twice. */
static void print_quoted(const char *text, FILE *to)
{
    fputc('\'', to);
    for (; *text; text++)
        if (*text == '\'')
            fputs("''", to);
        else if ((unsigned char)*text >= ' ')
            fputc(*text, to);
    fputc('\'', to);
}

void table_write_plot(const struct table *t, const char *title, const char *path, FILE *to)
{
    bool accuracy = has_points(t, false), perplexity = has_points(t, true);
    unsigned panels = (unsigned)accuracy + (unsigned)perplexity;
    fprintf(to, "set terminal svg noenhanced size %u,480 background 'white'\nset output ",
            panels > 1 ? 1280 : 720);
    print_quoted(path, to);
    fprintf(to, "\nset logscale x 2\nset grid\nset key below\n"
                "set xlabel 'tokens a query attends to (mean)'\n");
    if (panels > 1) {
        fputs("set multiplot layout 1,2 title ", to);
        print_quoted(title, to);
    } else {
        fputs("set title ", to);
        print_quoted(title, to);
    }
    fputc('\n', to);
    if (accuracy)
        write_panel(t, false, to);
    if (perplexity)
        write_panel(t, true, to);
    fputs(panels > 1 ? "unset multiplot\n" : "", to);
}

static bool have_gnuplot(void)
{
    const char *path = getenv("PATH");
    char place[4096];
    while (path && *path) {
        size_t n = strcspn(path, ":");
        if (snprintf(place, sizeof place, "%.*s/gnuplot", (int)n, path) < (int)sizeof place &&
            access(place, X_OK) == 0)
            return true;
        path += n + (path[n] == ':');
    }
    return false;
}

int table_draw(const struct table *t, const char *title, const char *path, struct hill_why *why)
{
    char fresh[4096];
    if (snprintf(fresh, sizeof fresh, "%s.new", path) >= (int)sizeof fresh)
        return hill_fail(why, HILL_E_INVALID, "the picture's path is too long");
    if (!have_gnuplot())
        return hill_fail(why, HILL_E_UNSUPPORTED, "no picture: gnuplot is not installed");
    if (!has_points(t, false) && !has_points(t, true))
        return hill_fail(why, HILL_E_UNSUPPORTED, "no picture: there is no result yet");
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    sigaction(SIGPIPE, &ignore, &before); /* a gnuplot that dies is an error, not our death */
    FILE *to = popen("gnuplot", "w");
    int status = -1;
    if (to) {
        table_write_plot(t, title, fresh, to);
        status = pclose(to);
    }
    sigaction(SIGPIPE, &before, NULL);
    if (status != 0 || rename(fresh, path) != 0) {
        int code = status == 0 ? hill_from_errno(errno) : HILL_E_IO;
        unlink(fresh);
        return hill_fail(why, code, "gnuplot could not draw %s", path);
    }
    return 0;
}
