/*
 * bench/formula.h - what a policy must read, move and score for a query, and how long a modelled
 * drive takes for it: pure functions.
 *
 * What: a query is one (sequence, layer) of a decode step over `tokens` entries, `cold` of which
 * lie on the drive. A policy evaluates what is cold in its own way, then the selected entries that
 * the GPU lacks come up: `fetched` from the drive, `copied` from DRAM. Bytes are those of the
 * payload, in whole entries and digests; that an entry fills whole pages is the figures' own
 * choice of shape (point.h). Times are those of base/csd_model.h's figures, worked out from the
 * description in csd_agent/README.md and not from its code: of one command the slowest of its
 * stages, commands of a query one after the other, queries of a layer's rows one after the other,
 * nothing else waited for. Sources: the paper's 4.2 to 4.4 and 5.2 (what each policy does); Eq. 2
 * (evaluation, then transfer). Who calls it: the figures "policies" and "ablation";
 * tests/bench/test_formula.c compares with numbers worked by hand. Concurrency: none. Failure:
 * formula_policy answers FORMULA_NONE for a policy that has no formula.
 */
#ifndef HILL_BENCH_FORMULA_H
#define HILL_BENCH_FORMULA_H

#include "base/csd_model.h"

enum formula_policy {
    FORMULA_NONE,
    FORMULA_FULL,      /* evaluates nothing, attends to everything */
    FORMULA_HILLINFER, /* the drive scores digests and sends scores */
    FORMULA_KEYS,      /* every cold FP16 key comes to the host, with every query: h2o, oracle */
    FORMULA_CHUNKS,    /* of chunks whose bounds promise enough the cold keys come: leoam */
};

enum formula_policy formula_policy(const char *name);

struct formula_shape {
    double entry_bytes;  /* K and V of a token in a layer, FP16 */
    double key_bytes;    /* K alone */
    double digest_bytes; /* INT8 mantissas and exponents */
    double block_tokens; /* scores in a Score Block */
};

struct formula_query {
    double tokens, cold;    /* entries of the layer; those on the drive */
    double keys;            /* formula_cold_keys */
    double fetched, copied; /* selected ones that the GPU lacks: on the drive, in DRAM */
};

struct formula_bytes {
    double link_key, link_score, link_kv; /* from the drive to the host */
    double flash_read, gpu_upload;
};

/* Cold keys that come to the host with a query of a policy that evaluates FP16 keys there; 0 with
 * the others. `selected` and `forced` (sinks and window) of the query's budget. leoam looks at
 * FORMULA_CANDIDATES tokens for each that it may choose, as many of them cold as of all tokens. */
#define FORMULA_CANDIDATES 2.0
double formula_cold_keys(enum formula_policy policy, double tokens, double cold, double selected,
                         double forced);

/* Of one query. */
struct formula_bytes formula_bytes(enum formula_policy policy, const struct formula_shape *shape,
                                   const struct formula_query *query);

/* Entries that `full` fetches with a query, the mean of `steps` steps: all that is cold in the
 * first one, then all but those that the GPU keeps (`kept` of the layer's, cold ones). */
double formula_full_fetched(double cold, double kept, double steps);

/* Seconds from a query to its selection that a modelled drive takes: evaluation, then fetch. */
struct formula_times {
    double evaluate, fetch;
};
struct formula_times formula_times(enum formula_policy policy, const struct formula_shape *shape,
                                   const struct csd_model *model,
                                   const struct formula_query *query);

/* What the processors need for a step, measured without a drive, in seconds. */
struct formula_native {
    double compute;  /* of the step: all but the waits for selections */
    double evaluate; /* of a query: scoring on the CPU what the CPU scores */
    double select;   /* of a query: merging and selecting */
    double other; /* of a query: wake-ups, and what must be worked out before keys are asked for */
};

/* Seconds of a step of `rows` sequences through `layers` layers: compute, and for each query the
 * slower of both evaluations, the selection, the fetch and what else there is; the GPU link's time
 * for a layer's last row, when the model has one (the other rows' uploads are on their way while
 * that one is evaluated). */
double formula_step(const struct formula_native *native, const struct formula_times *times,
                    const struct formula_bytes *bytes, const struct csd_model *model, bool gpu_link,
                    double rows, double layers);

#endif
