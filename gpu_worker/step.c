/* gpu_worker/step.c - see step.h. */
#include "gpu_worker/step.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/stage_trace.h"
#include "gpu_worker/step_internal.h"

int step_make_tables(struct step *step, uint32_t gpu_slots, uint32_t n_sequences,
                     struct hill_why *why)
{
    step_free_tables(step);
    step->slots = calloc(gpu_slots, sizeof *step->slots);
    step->uploads = calloc(gpu_slots, sizeof *step->uploads);
    step->given = calloc((size_t)n_sequences * gpu_slots, sizeof *step->given);
    if (step->slots && step->uploads && step->given)
        return 0;
    return hill_fail(why, HILL_E_NOMEM, "no memory for tables of %u slots", gpu_slots);
}

void step_free_tables(struct step *step)
{
    free(step->slots);
    free(step->uploads);
    free(step->given);
    *step = (struct step){0};
}

/* The layer's query is not sent when its guess is attended to. */
static bool is_exact(const struct worker *w)
{
    return w->settings.speculate != HILL__SPECULATE__SPECULATE_ON ||
           !engine_guesses(w->engine, w->step.layer);
}

/* The answer to what was asked a layer ago is due now. */
static int turn_to_guess(struct worker *w, struct step_member *m, struct hill_why *why)
{
    struct record_selection *early = m->early;
    m->query_id = m->ahead_id;
    m->waiting = !early;
    m->ahead = false;
    m->early = NULL;
    int rc = early ? step_use_selection(w, m, w->step.layer, early, why) : 0;
    free(early);
    return rc;
}

/* The row's entry, and its query unless it is known or has been guessed. */
static int push_own(struct worker *w, struct step_member *m, struct hill_why *why)
{
    struct dataplane *plane = &w->plane;
    struct request *r = m->request;
    uint32_t layer = w->step.layer, row = (uint32_t)(m - w->step.members);
    uint32_t append_bytes = (uint32_t)sizeof(struct record_append) + worker_entry_bytes(w);
    struct record_query *query = NULL;
    struct record_append *append;
    bool exact = !m->known && is_exact(w);
    int rc = exact ? step_reserve_query(w, m, layer, QUERY_EXACT, &query, why) : 0;
    if (!rc)
        rc = step_reserve_append(w, m, layer, &append, why);
    if (rc)
        return rc;
    STAGE_BEGIN(query, r->sequence, r->step, layer);
    rc = engine_step_query(w->engine, layer, row, query ? (float *)(query + 1) : NULL, append + 1,
                           why);
    if (!rc)
        rc = step_confirm_uploads(w, m, why);
    if (rc)
        return rc;
    if (query) {
        m->query_id = query->query_id;
        m->waiting = true; /* before the answer can come */
        dataplane_publish(plane, plane->query, RECORD_QUERY, step_query_bytes(w));
        FAULT_POINT(gpu_worker, query, pushed);
    }
    dataplane_publish(plane, plane->append, RECORD_APPEND, append_bytes);
    FAULT_POINT(gpu_worker, entry, pushed);
    STAGE_END(query, (query ? step_query_bytes(w) : 0) + append_bytes);
    return query || m->known ? 0 : turn_to_guess(w, m, why);
}

/* The guess of the row's next query. */
static int push_guess(struct worker *w, struct step_member *m, struct hill_why *why)
{
    uint32_t layer = w->step.layer + 1, row = (uint32_t)(m - w->step.members);
    bool attended = w->settings.speculate == HILL__SPECULATE__SPECULATE_ON;
    struct record_query *query;
    int rc =
        step_reserve_query(w, m, layer, attended ? QUERY_SPECULATIVE : QUERY_AHEAD, &query, why);
    STAGE_BEGIN(query, m->request->sequence, m->request->step, layer);
    if (!rc)
        rc = engine_step_guess(w->engine, layer, row, (float *)(query + 1), why);
    if (rc)
        return rc;
    m->ahead_id = query->query_id;
    m->ahead = attended;
    dataplane_publish(&w->plane, w->plane.query, RECORD_QUERY, step_query_bytes(w));
    STAGE_END(query, step_query_bytes(w));
    return 0;
}

static int push_queries(struct worker *w, struct hill_why *why)
{
    for (uint32_t i = 0; i < w->step.n_members; i++)
        w->step.members[i].listed = w->step.members[i].known && !w->step.members[i].rc;
    int rc = step_push_rows(w, push_own, why);
    if (!rc && engine_guesses(w->engine, w->step.layer + 1))
        rc = step_push_rows(w, push_guess, why);
    return rc;
}

/* ---- a step ---- */

/* The rows that have failed go along with nothing to attend to. False: no other is left. */
static bool fill_failed(struct worker *w, int *rc, struct hill_why *why)
{
    uint32_t alive = 0;
    for (uint32_t i = 0; i < w->step.n_members; i++)
        alive += w->step.members[i].rc ? 0 : 1;
    for (uint32_t i = 0; alive && !*rc && i < w->step.n_members; i++)
        if (!w->step.members[i].listed)
            *rc = engine_step_attend(w->engine, w->step.layer, i, 0, NULL, why);
    return alive > 0;
}

/* True when some row goes on to the next layer. */
static bool run_layer(struct worker *w, int *rc, struct hill_why *why)
{
    *rc = push_queries(w, why);
    if (!*rc)
        *rc = step_await(w, why);
    if (*rc || !fill_failed(w, rc, why))
        return false;
    if (!*rc)
        *rc = engine_step_run(w->engine, w->step.layer, why);
    FAULT_POINT(gpu_worker, layer, launched);
    return !*rc;
}

static int begin(struct worker *w, struct hill_why *why)
{
    struct engine_row rows[ENGINE_SEQUENCES_MAX];
    for (uint32_t i = 0; i < w->step.n_members; i++) {
        struct request *r = w->step.members[i].request;
        w->step.members[i] = (struct step_member){.request = r};
        rows[i] = (struct engine_row){r->sequence, r->tokens[r->n_tokens - 1], r->n_tokens - 1};
        r->step++;
    }
    return engine_step_begin(w->engine, w->step.n_members, rows, why);
}

/* Nothing reads the hot pool any more, also for rows that have failed: the scorer may be waiting
 * for that with room for what it was sent before their end. */
static int say_reads_done(struct worker *w, struct hill_why *why)
{
    int rc = 0;
    for (uint32_t i = 0; !rc && i < w->step.n_members; i++) {
        const struct request *r = w->step.members[i].request;
        if (!r->reads_hot)
            continue;
        struct record_reads_done done = {.header = request_header(r, 0),
                                         .request_id = r->prefill->request_id};
        rc = dataplane_push(&w->plane, w->plane.query, RECORD_READS_DONE, &done, sizeof done,
                            worker_deadline(), why);
    }
    return rc;
}

/* STEP_END of every row that has not failed; whole: after its entries of all layers. */
static int say_step_ends(struct worker *w, bool whole, struct hill_why *why)
{
    int rc = 0;
    for (uint32_t i = 0; !rc && i < w->step.n_members; i++) {
        struct step_member *m = &w->step.members[i];
        if (m->rc)
            continue;
        int failed = whole ? step_push_entries(w, m, why) : step_confirm_uploads(w, m, why);
        if (!failed)
            failed = request_push_step_end(m->request,
                                           request_index(m->request, m->request->n_tokens), why);
        FAULT_POINT(gpu_worker, step, ended);
        if (failed)
            rc = step_row_failed(w, m, failed, why);
    }
    return rc;
}

/* The device is done when the first logits are there. whole: it was launched in one piece. */
static int finish(struct worker *w, bool whole, struct hill_why *why)
{
    const struct request *first = w->step.members[0].request;
    STAGE_BEGIN(logits, first->sequence, first->step, w->hparams.n_layers);
    int rc = engine_step_logits(w->engine, 0, NULL, why); /* schedule.c takes them row by row */
    STAGE_END(logits, sizeof *w->logits * w->hparams.n_vocab);
    dataplane_hold(&w->plane);
    if (!rc)
        rc = say_reads_done(w, why);
    if (!rc)
        rc = say_step_ends(w, whole, why);
    dataplane_flush(&w->plane);
    return rc;
}

int step_run(struct worker *w, struct hill_why *why)
{
    uint64_t read_before = engine_weights_read(w->engine);
    int rc = begin(w, why);
    bool on = !rc, whole = false;
    w->step.layer = 0;
    if (on)
        on = step_ask_ahead(w, &whole, &rc, why);
    for (; on && !whole && w->step.layer < w->hparams.n_layers; w->step.layer++)
        on = run_layer(w, &rc, why);
    if (on)
        rc = finish(w, whole, why);
    else if (!rc && !(rc = engine_finish(w->engine, why))) /* every row has failed */
        rc = say_reads_done(w, why);
    for (uint32_t i = 0; i < w->step.n_members; i++) { /* late answers are nobody's */
        w->step.members[i].waiting = w->step.members[i].ahead = false;
        free(w->step.members[i].early);
        w->step.members[i].early = NULL;
        w->step.members[i].request->weights_read += engine_weights_read(w->engine) - read_before;
    }
    worker_unit_of_work(w);
    return rc;
}
