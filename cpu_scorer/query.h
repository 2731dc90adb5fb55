/*
 * cpu_scorer/query.h - one query, from its record to its answer.
 *
 *     AWAIT   its N tokens are placed, what of them goes cold at once is committed, and (h2o) the
 *             prompt's sums of attention have come
 *     SCORE   when its turn has come, the evaluator gives every token a score
 *     SELECT  the budgeted tokens, hashed
 *     PLAN    GPU slots; what is to be brought
 *     GATHER  staging slots; what is not in staging is fetched and copied
 *     ANSWER  SELECTION goes out; then the trace, and what moves up
 *
 * What: a query is an object; query_step does what can be done now and never waits. full skips
 * SCORE. QUERY_AHEAD has no answer. A READ (for a saved session, a prompt after kept tokens, the
 * prefix store, a damaged entry) goes AWAIT, PLAN, GATHER, ANSWER: the last n of its N tokens into
 * the sequence's staging slots, not scored, selected, moved or counted as a hit.
 * Several may be in flight, each in a place of its own (query_rows.h).
 * Who calls it: query_rows.h, which has the rows in flight. Failure: the answer carries the status;
 * only an interruption leaves a query unanswered (a new epoch asks again).
 */
#pragma once

#include "base/stage_trace.h"
#include "cpu_scorer/answer.h"
#include "cpu_scorer/demotion.h"

enum query_phase {
    QUERY_NONE,
    QUERY_AWAIT,
    QUERY_SCORE,
    QUERY_SELECT,
    QUERY_PLAN,
    QUERY_GATHER,
    QUERY_ANSWER,
};

enum query_what { QUERY_SELECTS, QUERY_READS, QUERY_READS_MASS };

struct query {
    uint32_t place; /* among the rows in flight, and of what the evaluator has of it */
    enum query_phase phase;
    enum query_what what;
    struct record_header header;
    uint32_t id, kind; /* enum query_kind */
    uint32_t n_tokens; /* N */
    uint32_t n_read;   /* of a READ: the last of them */
    bool ahead;        /* the same: the newest READ's entries are still to be read */
    uint64_t request_id;
    const float *vector; /* FP32 [n_heads][head_dim] */
    float *own_vector;   /* a copy of the record's: the ring's bytes are given back */
    struct sequence *sequence;
    struct kv_selector *selector;
    struct answer answer;
    bool released;       /* what earlier selections held and has been read is free */
    bool begun;          /* in SCORE: the evaluator has it */
    bool drive_is_left;  /* in SCORE: this host's part is done */
    bool in_turn;        /* in GATHER: the rows before it have what they wait for under way */
    int status;          /* negative: what the answer says */
    int64_t deadline_ns; /* of its phase */
    int64_t due_ns;      /* a modelled CPU is busy until then; 0: it is not waited for */
    int64_t gather_began_ns;
    struct stage_span answer_span, gather_span;
};

/* The queries of an epoch (query_rows.h). */
struct queries {
    struct core *core;
    struct agent *agent;
    struct demotions *demotions;
    struct evaluator *evaluator;
    struct query *rows; /* [core->config.rows] places, given in turn */
    uint32_t first, n;  /* in flight: n of them, the oldest in place `first` */
    bool look;          /* the ring may have one that goes along */
    uint32_t taken;     /* answered one right after another: as many as a step can have rows */
};

int query_create(struct query *q, struct core *core, struct agent *agent); /* HILL_E_NOMEM */
void query_destroy(struct query *q);
uint64_t query_private_bytes(const struct scorer_config *c);

/* A record becomes a query: bytes long, the vector included. */
void query_begin(struct queries *qs, struct query *q, const struct record_query *r, uint32_t bytes);
void query_begin_reading(struct queries *qs, struct query *q, const struct record_read *r);
/* One step of the phase that it is in, QUERY_NONE when it is over. 1: something was done, 0: it
 * waits; negative: the loop ends. */
int query_step(struct queries *qs, struct query *q);

/* In GATHER, once: staging slots for what is to be brought. 0, or an error. */
int query_place(struct core *c, struct query *q);

/* Has every token of an awaited query been placed? */
bool query_has_tokens(const struct query *q);
/* Would a query of these tokens leave AWAIT? They are placed, and nothing of them is on its way. */
bool query_may_pass(const struct core *c, const struct sequence *s, uint32_t layer,
                    uint32_t n_tokens);
