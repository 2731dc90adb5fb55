/*
 * gpu_worker/step_ahead.c - a step whose selections are known before it begins: all layers are
 * asked for at once, launched together and waited for once. See step.h.
 *
 * Below --exact-below, under policy full and in a layer with a window, a selection follows from the
 * number of tokens. Where that holds in all layers of all rows, and hot entries are read where they
 * lie, nothing has to be waited for between two layers. The scorer declines where an entry is not
 * in the hot pool: then the request asks layer by layer, from this step on. Concurrency: one
 * thread.
 */
#include "base/fault.h"
#include "base/stage_trace.h"
#include "gpu_worker/step_internal.h"

/* Do the row's selections depend on no query, and can they be named in place? */
static bool is_known(const struct worker *w, const struct request *r)
{
    const Hill__Selection *s = r->prefill->selection;
    const struct kv_selection_settings settings = {.policy = s->policy,
                                                   .exact_below = s->exact_below};
    uint32_t n_before = request_index(r, r->n_tokens - 1);
    if (!r->reads_hot || r->declined || w->settings.speculate != HILL__SPECULATE__SPECULATE_OFF)
        return false;
    for (uint32_t layer = 0; layer < w->hparams.n_layers; layer++)
        if (!kv_selection_is_known(&settings, &w->settings.plan.windows, layer, n_before))
            return false;
    return true;
}

static bool all_known(const struct worker *w)
{
    if (!engine_steps_ahead(w->engine))
        return false;
    for (uint32_t i = 0; i < w->step.n_members; i++)
        if (!is_known(w, w->step.members[i].request))
            return false;
    return true;
}

/* The row's queries of all layers, whose ids follow one another. */
static int push_known(struct worker *w, struct step_member *m, struct hill_why *why)
{
    m->query_id = w->next_query_id;
    m->known = m->waiting = true; /* before the first answer can come */
    for (uint32_t layer = 0; layer < w->hparams.n_layers; layer++) {
        struct record_query *query;
        STAGE_BEGIN(query, m->request->sequence, m->request->step, layer);
        int rc = step_reserve_query(w, m, layer, QUERY_KNOWN, &query, why);
        if (rc)
            return rc;
        dataplane_publish(&w->plane, w->plane.query, RECORD_QUERY, sizeof *query);
        FAULT_POINT(gpu_worker, query, pushed);
        STAGE_END(query, sizeof *query);
    }
    return 0;
}

/* Rows that have failed go along with nothing to attend to. */
static int fill_failed(struct worker *w, struct hill_why *why)
{
    int rc = 0;
    for (uint32_t i = 0; i < w->step.n_members; i++)
        for (uint32_t layer = 0; w->step.members[i].rc && !rc && layer < w->hparams.n_layers;
             layer++)
            rc = engine_step_attend(w->engine, layer, i, 0, NULL, why);
    return rc;
}

bool step_ask_ahead(struct worker *w, bool *launched, int *rc, struct hill_why *why)
{
    uint32_t alive = 0, known = 0;
    *launched = false;
    if (!all_known(w))
        return true;
    *rc = step_push_rows(w, push_known, why);
    if (!*rc)
        *rc = step_await(w, why);
    for (uint32_t i = 0; i < w->step.n_members; i++) {
        const struct step_member *m = &w->step.members[i];
        alive += !m->rc;
        known += !m->rc && m->known;
    }
    if (*rc || !alive || known < alive)
        return !*rc && alive;
    *rc = fill_failed(w, why);
    if (!*rc)
        *rc = engine_step_run_all(w->engine, why);
    *launched = !*rc;
    FAULT_POINT(gpu_worker, layer, launched);
    return *launched;
}

int step_push_entries(struct worker *w, struct step_member *m, struct hill_why *why)
{
    uint32_t row = (uint32_t)(m - w->step.members);
    int rc = 0;
    w->waiting = m->request;
    for (uint32_t layer = 0; !rc && layer < w->hparams.n_layers; layer++) {
        struct record_append *append;
        rc = step_reserve_append(w, m, layer, &append, why);
        if (!rc)
            rc = engine_step_entry(w->engine, layer, row, append + 1, why);
        if (rc)
            break;
        dataplane_publish(&w->plane, w->plane.append, RECORD_APPEND,
                          (uint32_t)sizeof *append + worker_entry_bytes(w));
        FAULT_POINT(gpu_worker, entry, pushed);
    }
    w->waiting = NULL;
    return rc;
}
