/* tools/bench/picture.c - see picture.h. */
#include "tools/bench/picture.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/bench/harness.h"

struct picture_series *picture_add(struct picture *picture, const char *name, bool predicted)
{
    if (picture->n_series == PICTURE_SERIES_MAX)
        bench_fail("picture %s has more than %u series", picture->name, PICTURE_SERIES_MAX);
    struct picture_series *s = &picture->series[picture->n_series++];
    *s = (struct picture_series){.predicted = predicted};
    snprintf(s->name, sizeof s->name, "%s", name);
    return s;
}

void picture_point(struct picture_series *series, double x, double y)
{
    if (series->n == PICTURE_POINTS_MAX)
        bench_fail("series %s has more than %u points", series->name, PICTURE_POINTS_MAX);
    series->x[series->n] = x;
    series->y[series->n++] = y;
}

static void write_data(FILE *f, const struct picture *p)
{
    for (uint32_t i = 0; i < p->n_series; i++) {
        fprintf(f, "$series%u << END\n", i);
        for (uint32_t j = 0; j < p->series[i].n; j++)
            fprintf(f, "%.9g %.9g\n", p->series[i].x[j], p->series[i].y[j]);
        fprintf(f, "END\n");
    }
}

/* Lines, or of n series the bars of one, beside those of the others around each category. */
static void write_style(FILE *f, const struct picture *p, uint32_t series, uint32_t n, uint32_t at,
                        uint32_t colour)
{
    bool predicted = p->series[series].predicted;
    double width = 0.8 / n;
    if (p->n_categories)
        fprintf(f, "using ($1+%.9g):2:(%.9g) with boxes lc %u fs solid 0.7",
                (at + 0.5) * width - 0.4, width, colour);
    else
        fprintf(f, "with linespoints lc %u lw 1.5 pt %u ps %s dt %u", colour, colour + 3,
                predicted ? "0" : "0.7", predicted ? 2 : 1);
}

static void write_plot(FILE *f, const struct picture *p)
{
    const char *comma = "plot ";
    uint32_t colour = 0, n = 0, at = 0;
    for (uint32_t i = 0; i < p->n_series; i++)
        n += p->series[i].n > 0;
    for (uint32_t i = 0; i < p->n_series; i++) {
        const struct picture_series *s = &p->series[i];
        if (!s->predicted)
            colour++;
        if (s->n == 0)
            continue;
        fprintf(f, "%s$series%u ", comma, i);
        write_style(f, p, i, n, at++, colour);
        fprintf(f, " title \"%s\"", s->name);
        comma = ", ";
    }
    fprintf(f, "\n");
}

static void write_axes(FILE *f, const struct picture *p)
{
    fprintf(f, "set title \"%s\" noenhanced\nset xlabel \"%s\"\nset ylabel \"%s\"\n", p->title,
            p->x_label, p->y_label);
    fprintf(f, "%s%sset yrange [%s:", p->log_x ? "set logscale x 2\n" : "",
            p->log_y ? "set logscale y\n" : "", p->log_y ? "*" : "0");
    if (p->y_max > 0)
        fprintf(f, "%.9g", p->y_max);
    fprintf(f, "]\n");
    for (uint32_t i = 0; i < p->n_categories; i++)
        fprintf(f, "set xtics %s(\"%s\" %u)\n", i ? "add " : "", p->categories[i], i);
    if (p->n_categories)
        fprintf(f, "set xrange [-0.5:%g]\n", p->n_categories - 0.5);
}

bool picture_write(const struct picture *picture)
{
    const char *folder = getenv("PICTURE_FOLDER");
    char path[512], part[520];
    bool any = false;
    for (uint32_t i = 0; i < picture->n_series; i++)
        any = any || picture->series[i].n > 0;
    if (!any)
        return false;
    snprintf(path, sizeof path, "%s/benchmarks-%s.svg", folder && *folder ? folder : "build/bench",
             picture->name);
    snprintf(part, sizeof part, "%s.part", path);
    FILE *f = popen("gnuplot >/dev/null", "w");
    if (!f)
        return false;
    void (*was)(int) = signal(SIGPIPE, SIG_IGN); /* where there is no gnuplot nobody reads */
    fprintf(f, "set terminal svg size 720,440 background rgb 'white' enhanced font 'sans,12'\n");
    fprintf(f, "set output '%s'\nset encoding utf8\nset grid\nset key outside right\n", part);
    write_axes(f, picture);
    write_data(f, picture);
    write_plot(f, picture);
    bool written = pclose(f) == 0 && rename(part, path) == 0;
    signal(SIGPIPE, was);
    if (!written) {
        fprintf(stderr, "picture %s was not made: gnuplot is missing or failed\n", picture->name);
        remove(part);
    }
    return written;
}

void picture_show(const struct picture *picture)
{
    if (picture_write(picture))
        printf("\n![%s](benchmarks-%s.svg)\n", picture->title, picture->name);
}
