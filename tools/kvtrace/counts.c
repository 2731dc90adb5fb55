/* tools/kvtrace/counts.c - see counts.h. */
#include "tools/kvtrace/counts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kv/select.h"

#define BARS_MAX    1000u
#define PLOT_WIDTH  1000.0
#define PLOT_HEIGHT 320.0
#define LEFT        60.0
#define TOP         40.0

enum { IMPORTANT, SECONDARY, UNIMPORTANT };

struct ranking { /* scratch for one query */
    struct kv_selector *selector;
    uint32_t *all, *best; /* [n_tokens] */
};

/* The `budget` best of n by score, ascending by position, into r->best; how many, or a code. */
static int64_t find_best(struct ranking *r, const uint16_t *scores, uint32_t n, uint32_t budget)
{
    struct kv_selection_settings s = {.alpha = 1, .budget = budget};
    if (budget == 0)
        return 0;
    int rc = kv_selector_begin(r->selector, &s, n);
    if (rc == 0)
        rc = kv_selector_add(r->selector, r->all, scores, n);
    return rc ? rc : kv_selector_finish(r->selector, r->best);
}

static int take_query(struct counts *c, struct ranking *r, const uint16_t *scores, uint32_t n)
{
    uint32_t fifth = (n + 4) / 5;
    int64_t above = find_best(r, scores, n, n - fifth);
    /* all but the lowest fifth are secondary at least */
    for (uint32_t i = 0; i < n; i++)
        c->of[i][UNIMPORTANT]++;
    for (int64_t i = 0; i < above; i++) {
        c->of[r->best[i]][UNIMPORTANT]--;
        c->of[r->best[i]][SECONDARY]++;
    }
    int64_t top = above < 0 ? above : find_best(r, scores, n, fifth < n ? fifth : 0);
    for (int64_t i = 0; i < top; i++) {
        c->of[r->best[i]][SECONDARY]--;
        c->of[r->best[i]][IMPORTANT]++;
    }
    c->n_queries++;
    return top < 0 ? (int)top : 0;
}

static int take_records(struct counts *c, struct ranking *r, struct trace_file *file, int64_t layer,
                        struct hill_why *why)
{
    for (uint32_t i = 0; i < trace_file_count(file); i++) {
        const struct trace_record *record = trace_file_record(file, i);
        const uint32_t *words;
        const uint16_t *scores;
        if (layer >= 0 && record->layer != layer)
            continue;
        int rc = trace_file_read(file, i, &words, &scores, why);
        if (rc)
            return rc;
        if (scores == NULL)
            return hill_fail(why, HILL_E_INVALID, "cannot count in %s: record %u has no scores",
                             trace_file_path(file), i);
        rc = take_query(c, r, scores, record->n_tokens);
        if (rc)
            return hill_fail(why, rc, "cannot rank the scores of record %u in %s", i,
                             trace_file_path(file));
    }
    return 0;
}

int counts_take(struct counts *out, struct trace_file *file, int64_t layer, struct hill_why *why)
{
    struct ranking r = {0};
    int rc = 0;
    *out = (struct counts){0};
    for (uint32_t i = 0; i < trace_file_count(file); i++)
        if (trace_file_record(file, i)->n_tokens > out->n_tokens)
            out->n_tokens = trace_file_record(file, i)->n_tokens;
    if (out->n_tokens == 0)
        return 0;
    out->of = calloc(out->n_tokens, sizeof *out->of);
    r.all = calloc(out->n_tokens, sizeof *r.all);
    r.best = calloc(out->n_tokens, sizeof *r.best);
    if (!out->of || !r.all || !r.best || kv_selector_create(&r.selector, out->n_tokens))
        rc = hill_fail(why, HILL_E_NOMEM, "cannot count in %s: out of memory",
                       trace_file_path(file));
    for (uint32_t i = 0; rc == 0 && i < out->n_tokens; i++)
        r.all[i] = i;
    if (rc == 0)
        rc = take_records(out, &r, file, layer, why);
    kv_selector_destroy(r.selector);
    free(r.all);
    free(r.best);
    if (rc)
        counts_free(out);
    return rc;
}

void counts_free(struct counts *counts)
{
    free(counts->of);
    *counts = (struct counts){0};
}

int counts_print(const struct counts *counts, FILE *to)
{
    fputs("position\timportant\tsecondary\tunimportant\n", to);
    for (uint32_t i = 0; i < counts->n_tokens; i++)
        fprintf(to, "%u\t%u\t%u\t%u\n", i, counts->of[i][IMPORTANT], counts->of[i][SECONDARY],
                counts->of[i][UNIMPORTANT]);
    return ferror(to) ? HILL_E_IO : 0;
}

/* ---- the drawing -------------------------------------------------------------------------- */

static const struct {
    const char *name, *colour;
} classes[] = {
    {"important (top 20 %)", "#c0392b"},
    {"secondary", "#f5c26b"},
    {"unimportant (bottom 20 %)", "#9fb8cc"},
};

static void draw_text(FILE *f, double x, double y, const char *anchor, const char *text)
{
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    for (; *text; text++) {
        if (*text == '<' || *text == '>' || *text == '&')
            fprintf(f, "&#%d;", *text);
        else if ((unsigned char)*text >= ' ')
            fputc(*text, f);
    }
    fputs("</text>\n", f);
}

/* The counts of classes 0 to `most` as one area, a step for each `group` of tokens. */
static void draw_area(FILE *f, const struct counts *c, unsigned most, uint32_t group,
                      double highest)
{
    double base = TOP + PLOT_HEIGHT;
    fprintf(f, "<path fill=\"%s\" d=\"M%.0f %.0f", classes[most].colour, LEFT, base);
    for (uint32_t from = 0, to; from < c->n_tokens; from = to) {
        double sum = 0;
        to = group < c->n_tokens - from ? from + group : c->n_tokens;
        for (uint32_t i = from; i < to; i++)
            for (unsigned k = 0; k <= most; k++)
                sum += c->of[i][k];
        fprintf(f, "V%.2fH%.2f", base - PLOT_HEIGHT * sum / (to - from) / highest,
                LEFT + PLOT_WIDTH * to / c->n_tokens);
    }
    fprintf(f, "V%.0fZ\"/>\n", base);
}

static void draw(FILE *f, const struct counts *c, const char *title)
{
    uint32_t highest = 1, group = (c->n_tokens + BARS_MAX - 1) / BARS_MAX;
    char text[64];
    for (uint32_t i = 0; i < c->n_tokens; i++) {
        uint32_t all = c->of[i][0] + c->of[i][1] + c->of[i][2];
        highest = all > highest ? all : highest;
    }
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" "
            "fill=\"white\"/>\n",
            LEFT + PLOT_WIDTH + 20, TOP + PLOT_HEIGHT + 60);
    draw_text(f, LEFT, 20, "start", title);
    for (unsigned k = 3; k-- > 0;) /* each covers what lies below it of the one before */
        draw_area(f, c, k, group, highest);
    draw_text(f, LEFT - 6, TOP + PLOT_HEIGHT, "end", "0");
    snprintf(text, sizeof text, "%u", highest);
    draw_text(f, LEFT - 6, TOP + 10, "end", text);
    draw_text(f, LEFT, TOP + PLOT_HEIGHT + 18, "start", "position 0");
    snprintf(text, sizeof text, "%u", c->n_tokens ? c->n_tokens - 1 : 0);
    draw_text(f, LEFT + PLOT_WIDTH, TOP + PLOT_HEIGHT + 18, "end", text);
    for (unsigned k = 0; k < 3; k++) {
        double x = LEFT + 220 * k;
        fprintf(f, "<rect x=\"%.0f\" y=\"%.0f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x,
                TOP + PLOT_HEIGHT + 34, classes[k].colour);
        draw_text(f, x + 18, TOP + PLOT_HEIGHT + 44, "start", classes[k].name);
    }
    fputs("</svg>\n", f);
}

int counts_draw(const struct counts *counts, const char *title, const char *path,
                struct hill_why *why)
{
    FILE *f = fopen(path, "w");
    if (f == NULL)
        return hill_fail(why, hill_from_errno(errno), "cannot write %s: %s", path, strerror(errno));
    errno = 0;
    draw(f, counts, title);
    int bad = ferror(f);
    if (fclose(f) || bad)
        return hill_fail(why, hill_from_errno(errno ? errno : EIO), "cannot write %s: %s", path,
                         strerror(errno ? errno : EIO));
    return 0;
}
