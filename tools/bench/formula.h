/*
 * tools/bench/formula.h - how long a modelled drive takes for a query under a policy, and what a
 * decode step takes then: pure functions over the byte formulas of kv/policy_cost.h.
 *
 * What: a query is one (sequence, layer) of a decode step. A policy evaluates what is cold in its
 * own way, then the selected entries that the GPU lacks come up. Times are those of
 * base/csd_model.h's figures, worked out from the description in docs/device-model.md and not from
 * its code: of one command the slowest of its stages, commands of a query one after the other,
 * queries of a layer's rows one after the other, nothing else waited for. Bytes are in whole
 * entries; that an entry fills whole pages is the figures' own choice of shape (point.h). Source:
 * the paper's Eq. 2 (evaluation, then transfer). Who calls it: the figure "policies";
 * tests/bench/test_formula.c compares with numbers worked by hand. Concurrency and failure: none.
 */
#pragma once

#include <stdbool.h>

#include "base/csd_model.h"
#include "kv/policy_cost.h"

/* Entries that `full` fetches with a query, the mean of `steps` steps: all that is cold in the
 * first one, then all but those that the GPU keeps (`kept` of the layer's, cold ones). */
double formula_full_fetched(double cold, double kept, double steps);

/* Seconds that a modelled drive takes for a query: evaluation, then fetch. block_tokens: scores in
 * a Score Block. */
struct formula_times {
    double evaluate, fetch;
    double last; /* share of keys that come last, and that the CPU evaluates after that */
};
struct formula_times formula_times(const struct kv_cost_load *load, const struct csd_model *model,
                                   double block_tokens);

/* What the processors need for a step, measured without a drive, in seconds. */
struct formula_native {
    double compute;  /* of the step: all but the waits for selections */
    double bounds;   /* of a query: what must be worked out before keys are asked for (leoam) */
    double evaluate; /* of a query: what the CPU evaluates while the drive does its part */
    double select;   /* of a query: merging and selecting */
    double other;    /* of a query: wake-ups */
};

/* Seconds of a step of `rows` sequences through `layers` layers: compute, and for each query the
 * bounds, the slower of both evaluations (the CPU's of what comes last behind the drive's), the
 * selection, the fetch and what else there is; the GPU
 * link's time for the upload_bytes of a layer's last row, when the model has one (the other rows'
 * uploads are on their way while that one is evaluated). */
double formula_step(const struct formula_native *native, const struct formula_times *times,
                    double upload_bytes, const struct csd_model *model, bool gpu_link, double rows,
                    double layers);

/* GB/s of FP16 K and V that a drive's kernel scores: 64 bytes of digests a beat at 250 MHz, at 70 %
 * of the beats, and no faster than a memory port was measured by others. It
 * is what `score=` of a device model says. */
#define FORMULA_BEAT_BYTES  64.0
#define FORMULA_CLOCK_MHZ   250.0
#define FORMULA_CLOCK_SHARE 0.7
#define FORMULA_PORT        13.6 /* GB/s */
double formula_scoring_rate(const struct kv_geometry *g);
