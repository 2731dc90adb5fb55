/*
 * gpu_worker/step.h - one decode step of some requests: for each layer all rows' queries and
 * entries out, their selections in, one launch.
 *
 * Where queries are guessed (proto/hill.proto, Speculate) those of the next layer go out with a
 * layer's own entries, before its launch, so that the scorer works on them meanwhile. A guess that
 * is attended to is answered by the next layer's turn, or earlier: the answer is kept until then.
 *
 * Where no row's selections depend on its queries all layers are asked for before the first one
 * (step_ahead.c), and the step is one launch and one wait.
 *
 * Every QUERY of a layer is pushed before an answer is waited for; answers are taken in any order
 * and released as soon as they are copied, also while there is no room for a further query: the
 * scorer never waits for us while we wait for it. What goes wrong with one row (its selection's
 * status, a stale staging slot, cancelled, no answer in time) is kept in its member; the row goes
 * on with nothing to attend to and its results are not used. Who calls it: the schedule. Failure:
 * step_run returns what concerns all rows: the device, the rings, an epoch to be left; the step is
 * abandoned then. Concurrency: one thread.
 */
#pragma once

#include "gpu_worker/engine.h"
#include "proto/records.h"

struct request;
struct worker;

struct step_member {
    struct request *request;
    uint32_t query_id, ahead_id; /* of known queries query_id is the first layer's */
    bool waiting, listed;        /* in this layer: the query is out; its selection was taken */
    bool ahead; /* a query of the next layer is out, whose selection is attended to */
    struct record_selection
        *early; /* its selection, when it came before that layer's turn, or NULL */
    int rc;     /* why this row's request ends, or 0 */
    struct hill_why why;
    uint32_t n_given; /* uploads that the device reads in this layer */
    bool known;       /* all its lists were asked for before the first layer (step_ahead.c) */
    uint32_t n_known; /* of these the answers that have come */
};

struct step {
    struct step_member members[ENGINE_SEQUENCES_MAX];
    uint32_t n_members, layer;
    uint32_t *slots;               /* [gpu_slots] */
    struct engine_upload *uploads; /* [gpu_slots] */
    struct selected_upload *given; /* [n_sequences][gpu_slots], by member */
};

/* Tables whose size follows from the configuration; HILL_E_NOMEM. */
int step_make_tables(struct step *step, uint32_t gpu_slots, uint32_t n_sequences,
                     struct hill_why *why);
void step_free_tables(struct step *step);

/* The newest token of each of w->step.members[0 .. n_members - 1] (their requests set) goes through
 * the layers. Rows whose rc is 0 have logits and have said STEP_END. */
int step_run(struct worker *w, struct hill_why *why);
/* A whole SELECTION of this epoch. False when nobody waits for it. */
bool step_take_selection(struct worker *w, const struct record_selection *selection);
/* No row's answer will come: those that wait have failed with code. */
void step_fail_waiting(struct worker *w, int code, const char *text);
