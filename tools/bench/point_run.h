/*
 * tools/bench/point_run.h - what point.c and point_rows.c do for point_kept.c: a point's pipeline
 * and its answer.
 * Concurrency and failure: point.h.
 */
#pragma once

#include <stdio.h>

#include <jansson.h>

#include "tools/bench/point.h"

/* The session of random weights, unless it is there. */
void point_make_session(const struct point *p);

/* The last row's JSON, under "warm" what the drive had counted before it, under "rows" what
 * point_watch_rows gave; the caller drops the reference. NULL: as point_run's false. */
json_t *point_answer(const struct point *p);
void point_read(json_t *answer, const struct point *p, struct point_result *result);

/* While a command restores the last of `rows` and has it decode `steps` tokens: the pipeline's
 * status when all rows decode, and again near the end. */
json_t *point_watch_rows(FILE *command, uint32_t rows, uint32_t steps);

/* Parts of point_read. Of all rows: what the others did between the two looks of "rows" (of one row
 * there are none), beside what the answer says of the last one. */
void point_read_rows(json_t *answer, uint32_t layers, struct point_result *result);
/* Of a step: what the counters of the device model grew by in so many. before: NULL: from 0. */
void point_read_busy(json_t *drive, json_t *before, double steps, struct point_result *result);
double point_written(json_t *of);
