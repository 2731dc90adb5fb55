/*
 * tools/bench/point_run.h - what point.c does for point_kept.c: a point's pipeline and its answer.
 * Concurrency and failure: point.h.
 */
#pragma once

#include <jansson.h>

#include "tools/bench/point.h"

/* The session of random weights, unless it is there. */
void point_make_session(const struct point *p);

/* The last row's JSON, and under "warm" what the drive had counted before it; the caller drops the
 * reference. */
json_t *point_answer(const struct point *p);
void point_read(json_t *answer, const struct point *p, struct point_result *result);
