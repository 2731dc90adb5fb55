/*
 * tools/bench/picture.h - line and bar charts of a figure, as SVG, by gnuplot.
 *
 * What: series of points with a name each; those called `predicted` are dashed, in the colour of
 * the series before. With categories the points of all series stand side by side as bars, x being
 * the number of the category. The picture is benchmarks-NAME.svg in PICTURE_FOLDER of the
 * environment (tools/bench/run sets it to docs, or to build/bench for a smoke run), by a temporary
 * name, so that a failure leaves the old one.
 * Who calls it: the figures. Concurrency: one at a time. Failure: picture_write answers false where
 * gnuplot is missing or fails; the figure goes on without.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PICTURE_SERIES_MAX     32u
#define PICTURE_POINTS_MAX     32u
#define PICTURE_CATEGORIES_MAX 16u

struct picture_series {
    char name[48];
    bool predicted;
    uint32_t n;
    double x[PICTURE_POINTS_MAX], y[PICTURE_POINTS_MAX];
};

struct picture {
    const char *name; /* "policies-length" */
    const char *title, *x_label, *y_label;
    bool log_x, log_y;
    double y_max; /* of the axis; 0: as the points want it */
    uint32_t n_categories;
    const char *categories[PICTURE_CATEGORIES_MAX];
    uint32_t n_series;
    struct picture_series series[PICTURE_SERIES_MAX];
};

/* A series, empty. Beyond PICTURE_SERIES_MAX: bench_fail. */
struct picture_series *picture_add(struct picture *picture, const char *name, bool predicted);
void picture_point(struct picture_series *series, double x, double y);

bool picture_write(const struct picture *picture);

/* picture_write and, where there is one now, a line of Markdown on stdout that shows it. */
void picture_show(const struct picture *picture);
