/*
 * cpu_scorer/query.h - one query, from its record to its answer.
 *
 *     AWAIT   its N tokens are placed, what of them goes cold at once is committed, and (h2o) the
 *             prompt's sums of attention have come
 *     SCORE   the sequence's evaluator gives every token a score
 *     SELECT  the budgeted tokens, hashed
 *     GATHER  GPU slots, staging slots; what is not in staging is fetched and copied
 *     ANSWER  SELECTION goes out; then the trace, and what moves up
 *
 * What: a query is an object; query_step does what can be done now and never waits. full skips
 * SCORE. QUERY_AHEAD has no answer. A READ of a session goes AWAIT, GATHER, ANSWER: the last n of
 * its N tokens into the sequence's staging slots, not scored, selected, moved or counted as a hit.
 * Its record stays at the head of its ring until it has been answered, so one is in flight at a
 * time; the object does not rely on that, but for the selector and the evaluator, of which there
 * is one each.
 * Who calls it: scorer.c. Failure: the answer carries the status; only an interruption leaves a
 * query unanswered (a new epoch asks again).
 */
#ifndef HILL_CPU_SCORER_QUERY_H
#define HILL_CPU_SCORER_QUERY_H

#include "base/stage_trace.h"
#include "cpu_scorer/answer.h"
#include "cpu_scorer/demotion.h"

enum query_phase { QUERY_NONE, QUERY_AWAIT, QUERY_SCORE, QUERY_SELECT, QUERY_GATHER, QUERY_ANSWER };

enum query_what { QUERY_SELECTS, QUERY_READS, QUERY_READS_MASS };

struct query {
    enum query_phase phase;
    enum query_what what;
    struct record_header header;
    uint32_t id, kind; /* enum query_kind */
    uint32_t n_tokens; /* N */
    uint32_t n_read;   /* of a READ: the last of them */
    bool ahead;        /* the same: the newest READ's entries are still to be read */
    uint64_t request_id;
    const float *vector; /* [n_heads][head_dim], in the ring: until SELECT */
    struct sequence *sequence;
    struct kv_selector *selector;
    struct answer answer;
    int status;          /* negative: what the answer says */
    int64_t deadline_ns; /* of its phase */
    int64_t due_ns;      /* a modelled CPU is busy until then; 0: it is not waited for */
    int64_t worked_ns;   /* of the scoring threads, before SCORE */
    int64_t gather_began_ns;
    struct stage_span answer_span, gather_span;
};

/* The queries of an epoch. */
struct queries {
    struct core *core;
    struct agent *agent;
    struct demotions *demotions;
    struct evaluator *evaluator;
    struct query query;
    uint32_t taken; /* answered one right after another: as many as a step can have rows */
};

int queries_create(struct queries *qs, struct core *core, struct agent *agent,
                   struct demotions *demotions, struct evaluator *evaluator);
void queries_destroy(struct queries *qs);
uint64_t queries_private_bytes(const struct scorer_config *c);

/* Go on with the query, or take the next one. 1, 0 (it waits, or there is none), or an error. */
int queries_pump(struct queries *qs);

/* Has every token of an awaited query been placed? */
bool query_has_tokens(const struct query *q);

#endif
