/*
 * cpu_scorer/evaluator.h - how the tokens of a query get their scores: one table of functions for
 * every policy.
 *
 *     digest   hillinfer, and what full needs     digests, on both sides (evaluate_digest.c)
 *     host     host-digest      digests of all tokens, on the CPU (evaluate_host.c)
 *     mass     h2o, oracle      FP16 keys of all tokens, on the CPU (evaluate_mass.c)
 *     partial  prefetch         a part of the columns of all keys (evaluate_mass.c)
 *     chunks   leoam            keys of the chunks that bounds name (evaluate_chunks.c)
 *
 * What: a scorer has one evaluator, for the policy that it was started with; requests have that
 * policy, one that shares its tables, or full, whose queries are not evaluated. An evaluator sees
 * every token that is placed (append) and makes its plane for the cold pool; a query goes through
 * begin, step until that has said done, finish. From begin to finish nothing that the tables say of
 * the query's layer of its sequence moves; other answers may bring entries of theirs up [I4].
 * Who calls it: intake, demotions and queries; data thread alone. Failure: a query that fails, in
 * whichever step, is settled: nothing of it is out any more when settle has said done.
 */
#pragma once

#include "cpu_scorer/agent_port.h"

struct query;
struct evaluator;

enum evaluator_turn { /* of step and settle; negative: failed */
                      EVALUATOR_WAITS = 0,
                      EVALUATOR_DONE = 1,
                      EVALUATOR_WORKS = 2, /* step again after a look at the agent's rings */
};

/* n tokens that go down: entries one after the other, or, where that is NULL, hot ones at these
 * positions. They go into these cold slots, or, where that is NULL, those from `slot` on. The plane
 * begins with the group of the first one's slot (kv/group.h), and has them behind one another. */
struct plane_source {
    const uint8_t *entries;
    const uint32_t *positions, *slots;
    uint32_t n, slot;
};

struct evaluator_ops { /* what is NULL has nothing to do */
    /* HILL_E_NOMEM. What it asks of the agent comes back by agent_on. */
    int (*create)(struct evaluator **out, struct core *core, struct agent *agent);
    void (*destroy)(struct evaluator *e);
    uint64_t (*bytes)(const struct evaluator *e); /* private, part of M_0 */
    bool mends; /* nothing depends on when a token came: a single damaged one can be made again */

    /* A sequence is about to begin: its room is set aside. */
    void (*open)(struct evaluator *e, const struct sequence *s);
    /* It is an earlier scorer's, with the tokens that its layers have, as of its newest step: is
     * what is kept of them beside their entries (kv_plan_state_bytes) what it was then?
     * HILL_E_DAMAGED, HILL_E_UNSUPPORTED: it begins anew. */
    int (*adopt)(struct evaluator *e, const struct sequence *s);
    /* The tokens of this APPEND are all here, and none of them is placed yet. */
    void (*look)(struct evaluator *e, const struct sequence *s, const struct record_append *r);
    /* n tokens from position `first` on were placed, in order; entries [n][entry bytes] */
    void (*append)(struct evaluator *e, const struct sequence *s, uint32_t layer, uint32_t first,
                   uint32_t n, const uint8_t *entries);
    /* Write to `plane` what the cold pool keeps of these tokens beside their entries: groups of
     * digests, or keys [n][key_bytes]. NULL: the agent makes it. */
    void (*plane)(struct evaluator *e, const struct sequence *s, uint32_t layer,
                  const struct plane_source *from, uint8_t *plane);
    /* Sums of attention of a layer's tokens, mass [n]: taken in before the first query; read out to
     * be saved. */
    void (*add_mass)(struct evaluator *e, const struct sequence *s, uint32_t layer, uint32_t first,
                     uint32_t n, const float *mass);
    void (*read_mass)(const struct evaluator *e, const struct sequence *s, uint32_t layer,
                      uint32_t first, uint32_t n, float *mass);

    /* queries that may be between begin and finish at once: 0 means 1; UINT32_MAX: all rows in
     * flight */
    uint32_t rows;
    /* The query's tokens are all placed: start. */
    void (*begin)(struct evaluator *e, struct query *q);
    /* Do what can be done now: enum evaluator_turn, or a negative code: the query fails. */
    int (*step)(struct evaluator *e, struct query *q);
    /* After a failure: EVALUATOR_DONE when nothing of the query is out any more. */
    int (*settle)(struct evaluator *e, struct query *q);
    /* every token's score is in the query's selector. 0, or an error. */
    int (*finish)(struct evaluator *e, struct query *q);
};

struct evaluator { /* the first member of each one's own struct */
    const struct evaluator_ops *ops;
    struct core *core;
    struct agent *agent;
};

extern const struct evaluator_ops evaluate_digest, evaluate_host, evaluate_mass, evaluate_partial,
    evaluate_chunks;

/* For the policy of core->config. */
int evaluator_create(struct evaluator **out, struct core *core, struct agent *agent);
static inline void evaluator_destroy(struct evaluator *e)
{
    if (e)
        e->ops->destroy(e);
}
