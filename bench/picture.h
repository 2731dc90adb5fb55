/*
 * bench/picture.h - line charts of a figure, as SVG, by gnuplot.
 *
 * What: series of points with a name each; those called `predicted` are dashed, in the colour of
 * the series before. The picture goes to PICTURE_FOLDER of the environment (bench/run sets it to
 * docs, or to build/bench for a smoke run), by a temporary name, so that a failure leaves the old
 * one. Who calls it: the figures. Concurrency: one at a time. Failure: picture_write answers false
 * where gnuplot is missing or fails; the figure goes on without.
 */
#ifndef HILL_BENCH_PICTURE_H
#define HILL_BENCH_PICTURE_H

#include <stdbool.h>
#include <stdint.h>

#define PICTURE_SERIES_MAX 32u
#define PICTURE_POINTS_MAX 32u

struct picture_series {
    char name[48];
    bool predicted;
    uint32_t n;
    double x[PICTURE_POINTS_MAX], y[PICTURE_POINTS_MAX];
};

struct picture {
    const char *file; /* name without folder, "policies-length.svg" */
    const char *title, *x_label, *y_label;
    bool log_x, log_y;
    uint32_t n_series;
    struct picture_series series[PICTURE_SERIES_MAX];
};

/* A series, empty. Beyond PICTURE_SERIES_MAX: bench_fail. */
struct picture_series *picture_add(struct picture *picture, const char *name, bool predicted);
void picture_point(struct picture_series *series, double x, double y);

bool picture_write(const struct picture *picture);

#endif
