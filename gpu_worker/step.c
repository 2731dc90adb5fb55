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

/* Errors that are not about one row. */
static bool concerns_all(const struct worker *w, int rc)
{
    return rc == HILL_E_NODEV || rc == HILL_E_PEER_GONE || w->pending ||
           worker_link_stopping(w->link);
}

/* Keep a row's failure for the end of the step; what concerns all is returned. */
static int row_failed(const struct worker *w, struct step_member *m, int rc,
                      const struct hill_why *why)
{
    if (concerns_all(w, rc))
        return rc;
    m->rc = rc;
    m->why = *why;
    m->waiting = false;
    return 0;
}

static struct selected_upload *given_to(const struct worker *w, const struct step_member *m)
{
    return w->step.given + (size_t)(m - w->step.members) * w->settings.gpu_slots;
}

/* The device has read staging: it must have been what the selection said all the time
 * [I10]. */
static int confirm_uploads(struct worker *w, struct step_member *m, struct hill_why *why)
{
    uint32_t n = m->n_given;
    m->n_given = 0;
    return dataplane_check_staged(&w->plane, given_to(w, m), n, why);
}

/* ---- queries out ---- */

static uint32_t query_bytes(const struct worker *w)
{
    return (uint32_t)sizeof(struct record_query) + 4 * w->hparams.n_heads * w->hparams.head_dim;
}

int step_reserve_query(struct worker *w, const struct step_member *m, uint32_t layer,
                       enum query_kind kind, struct record_query **out, struct hill_why *why)
{
    const struct request *r = m->request;
    bool known = kind == QUERY_KNOWN;
    void *payload = NULL;
    int rc = dataplane_reserve(&w->plane, w->plane.query,
                               known ? (uint32_t)sizeof **out : query_bytes(w), &payload,
                               worker_deadline(), why);
    if (rc)
        return rc;
    *out = payload;
    **out = (struct record_query){.header = request_header(r, layer),
                                  .query_id = w->next_query_id++,
                                  .kind = kind,
                                  .n_heads = known ? 0 : w->hparams.n_heads,
                                  .n_tokens = r->n_tokens - 1,
                                  .request_id = r->prefill->request_id};
    return 0;
}

int step_reserve_append(struct worker *w, const struct step_member *m, uint32_t layer,
                        struct record_append **out, struct hill_why *why)
{
    const struct request *r = m->request;
    uint32_t bytes = (uint32_t)sizeof **out + worker_entry_bytes(w);
    void *payload = NULL;
    int rc = dataplane_reserve(&w->plane, w->plane.append, bytes, &payload, worker_deadline(), why);
    if (rc)
        return rc;
    *out = payload;
    **out = (struct record_append){
        .header = request_header(r, layer), .first = r->n_tokens - 1, .n_tokens = 1};
    return 0;
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
        rc = confirm_uploads(w, m, why);
    if (rc)
        return rc;
    if (query) {
        m->query_id = query->query_id;
        m->waiting = true; /* before the answer can come */
        dataplane_publish(plane, plane->query, RECORD_QUERY, query_bytes(w));
        FAULT_POINT(gpu_worker, query, pushed);
    }
    dataplane_publish(plane, plane->append, RECORD_APPEND, append_bytes);
    FAULT_POINT(gpu_worker, entry, pushed);
    STAGE_END(query, (query ? query_bytes(w) : 0) + append_bytes);
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
    dataplane_publish(&w->plane, w->plane.query, RECORD_QUERY, query_bytes(w));
    STAGE_END(query, query_bytes(w));
    return 0;
}

int step_push_rows(struct worker *w,
                   int (*push)(struct worker *, struct step_member *, struct hill_why *),
                   struct hill_why *why)
{
    int rc = 0;
    dataplane_hold(&w->plane);
    for (uint32_t i = 0; !rc && i < w->step.n_members; i++) {
        struct step_member *m = &w->step.members[i];
        if (m->rc)
            continue;
        w->waiting = m->request;
        rc = push(w, m, why);
        w->waiting = NULL;
        if (rc)
            rc = row_failed(w, m, rc, why);
    }
    dataplane_flush(&w->plane); /* also of the rows before one that ends the step */
    return rc;
}

static int push_queries(struct worker *w, struct hill_why *why)
{
    for (uint32_t i = 0; i < w->step.n_members; i++)
        w->step.members[i].listed = w->step.members[i].known;
    int rc = step_push_rows(w, push_own, why);
    if (!rc && engine_guesses(w->engine, w->step.layer + 1))
        rc = step_push_rows(w, push_guess, why);
    return rc;
}

/* ---- selections in ---- */

/* The uploads' slots in staging, checked; the device copies them while it works on the layer. */
static int apply_uploads(struct worker *w, struct step_member *m, uint32_t layer,
                         const struct selected_upload *uploads, uint32_t n, struct hill_why *why)
{
    if (n == 0)
        return 0;
    if (n > w->settings.gpu_slots)
        return hill_fail(why, HILL_E_PROTOCOL, "%u uploads for %u GPU slots", n,
                         w->settings.gpu_slots);
    int rc = dataplane_check_staged(&w->plane, uploads, n, why);
    for (uint32_t i = 0; !rc && i < n; i++) {
        w->step.uploads[i] = (struct engine_upload){uploads[i].staging_slot, uploads[i].gpu_slot};
        given_to(w, m)[i] = uploads[i];
    }
    m->n_given = rc ? 0 : n;
    m->request->upload_bytes += (uint64_t)n * worker_entry_bytes(w);
    return rc ? rc
              : engine_step_upload(w->engine, layer, (uint32_t)(m - w->step.members), n,
                                   w->step.uploads, why);
}

/* What the modelled link to the GPU carries of a selection: its uploads, and what is read in place.
 */
static void charge_link(struct worker *w, struct step_member *m, const struct selected_item *items,
                        uint32_t n_selected, uint32_t n_uploads)
{
    uint64_t n = n_uploads;
    if (!w->model.figures.on)
        return;
    for (uint32_t i = 0; i < n_selected; i++)
        n += items[i].gpu_slot & SELECTED_HOT ? 1 : 0;
    n *= worker_entry_bytes(w);
    struct device_span span =
        device_charge(&w->model, DEVICE_GPU_LINK, n, device_at(clock_now_ns()));
    m->request->link_bytes += n;
    m->request->link_ns += (uint64_t)(span.due - span.start);
    w->link_due = span.due;
}

/* Positions ascend below N and slots lie in the table: what the attention relies on. */
static int check_items(const struct worker *w, const struct selected_item *items, uint32_t n,
                       uint32_t n_before, struct hill_why *why)
{
    if (n > w->settings.gpu_slots || n > n_before)
        return hill_fail(why, HILL_E_PROTOCOL, "a selection of %u entries of %u with %u GPU slots",
                         n, n_before, w->settings.gpu_slots);
    uint32_t hot_entries = engine_hot_entries(w->engine);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = items[i].gpu_slot,
                 most = slot & SELECTED_HOT ? hot_entries : w->settings.gpu_slots;
        if ((slot & ~SELECTED_HOT) >= most || items[i].position >= n_before ||
            (i && items[i].position <= items[i - 1].position))
            return hill_fail(
                why, HILL_E_PROTOCOL,
                "item %u of a selection (position %u, slot %x) is out of range or order", i,
                items[i].position, slot);
    }
    return 0;
}

int step_use_selection(struct worker *w, struct step_member *m, uint32_t layer,
                       const struct record_selection *s, struct hill_why *why)
{
    const struct selected_item *items = (const struct selected_item *)(s + 1);
    struct request *r = m->request;
    FAULT_POINT(gpu_worker, selection, taken);
    if (s->status)
        return hill_fail(why, s->status < 0 ? s->status : HILL_E_PROTOCOL,
                         "the scorer cannot select for layer %u: %s", layer,
                         hill_strerror(s->status));
    if (s->header.layer != layer || s->header.sequence != r->sequence)
        return hill_fail(why, HILL_E_PROTOCOL,
                         "a selection of sequence %u, layer %u answers a query of %u, %u",
                         s->header.sequence, s->header.layer, r->sequence, layer);
    int rc = check_items(w, items, s->n_selected, r->n_tokens - 1, why);
    STAGE_BEGIN(upload, r->sequence, r->step, layer);
    if (!rc)
        rc = apply_uploads(w, m, layer, (const struct selected_upload *)(items + s->n_selected),
                           s->n_uploads, why);
    STAGE_END(upload, (uint64_t)s->n_uploads * worker_entry_bytes(w));
    FAULT_POINT(gpu_worker, selection, uploaded);
    if (!rc)
        charge_link(w, m, items, s->n_selected, s->n_uploads);
    _Static_assert(SELECTED_HOT == ENGINE_HOT, "a slot is handed on as it is");
    for (uint32_t i = 0; !rc && i < s->n_selected; i++)
        w->step.slots[i] = items[i].gpu_slot;
    STAGE_BEGIN(attend, r->sequence, r->step, layer);
    if (!rc)
        rc = engine_step_attend(w->engine, layer, (uint32_t)(m - w->step.members), s->n_selected,
                                w->step.slots, why);
    STAGE_END(attend, (uint64_t)(s->n_selected + 1) * worker_entry_bytes(w));
    m->listed = rc == 0;
    return rc;
}

/* It is used in the next layer: the ring's record goes, a copy stays. */
static void keep_early(struct step_member *m, const struct record_selection *s)
{
    size_t bytes = sizeof *s + s->n_selected * sizeof(struct selected_item) +
                   s->n_uploads * sizeof(struct selected_upload);
    m->early = malloc(bytes);
    if (m->early)
        memcpy(m->early, s, bytes);
    else
        m->rc = hill_fail(&m->why, HILL_E_NOMEM, "no memory for a selection of %u entries",
                          s->n_selected);
}

bool step_take_selection(struct worker *w, const struct record_selection *selection)
{
    for (uint32_t i = 0; i < w->step.n_members; i++) {
        struct step_member *m = &w->step.members[i];
        if (m->ahead && !m->early && !m->rc && m->ahead_id == selection->query_id) {
            keep_early(m, selection);
            return true;
        }
        if (step_is_known_answer(w, m, selection)) {
            step_take_known(w, m, selection);
            return true;
        }
        if (!m->waiting || m->known || m->query_id != selection->query_id)
            continue;
        m->waiting = false;
        m->rc = step_use_selection(w, m, w->step.layer, selection, &m->why);
        return true;
    }
    return false;
}

/* How many rows still wait; those whose request was cancelled do not. */
static uint32_t count_waiting(struct worker *w)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->step.n_members; i++) {
        struct step_member *m = &w->step.members[i];
        if (m->waiting && m->request->cancelled) {
            m->waiting = false;
            m->rc = hill_fail(&m->why, HILL_E_CANCELLED, "cancelled during decode");
        }
        n += m->waiting ? 1 : 0;
    }
    return n;
}

void step_fail_waiting(struct worker *w, int code, const char *text)
{
    for (uint32_t i = 0; i < w->step.n_members; i++) {
        struct step_member *m = &w->step.members[i];
        if ((m->waiting || m->ahead) && !m->rc)
            m->rc = hill_fail(&m->why, code, "%s", text);
        m->waiting = false;
    }
}

static int await_selections(struct worker *w, struct hill_why *why)
{
    int64_t deadline = worker_deadline();
    for (;;) {
        uint32_t seen = dataplane_seen(&w->plane);
        int rc = worker_take_records(w, why);
        if (rc || !count_waiting(w))
            return rc;
        rc = worker_waiting(w, why);
        if (rc || !count_waiting(w))
            return rc;
        if (clock_now_ns() >= deadline)
            step_fail_waiting(w, HILL_E_TIMEOUT, "the scorer sent no SELECTION in time");
        else if (!dataplane_sleep(&w->plane, seen, deadline))
            (void)shm_ring_peer_alive(w->plane.selection); /* dead: the ring says so once empty */
    }
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

/* The layer is not launched before what was charged has crossed: the real upload happens meanwhile,
 * and only what is left is slept. */
static int wait_for_link(struct worker *w, struct hill_why *why)
{
    while (clock_now_ns() < w->link_due) {
        uint32_t seen = dataplane_seen(&w->plane);
        int rc = worker_waiting(w, why);
        if (rc)
            return rc;
        dataplane_sleep(&w->plane, seen, w->link_due);
    }
    return 0;
}

int step_await(struct worker *w, struct hill_why *why)
{
    int64_t start = clock_now_ns();
    const struct request *first = w->step.members[0].request; /* of all rows: they wait together */
    STAGE_BEGIN(await_selection, first->sequence, first->step, w->step.layer);
    int rc = await_selections(w, why);
    if (!rc)
        rc = wait_for_link(w, why);
    STAGE_END(await_selection, 0);
    int64_t waited = clock_now_ns() - start;
    for (uint32_t i = 0; i < w->step.n_members; i++)
        w->step.members[i].request->idle_ns += waited;
    return rc;
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
        int failed = whole ? step_push_entries(w, m, why) : confirm_uploads(w, m, why);
        if (!failed)
            failed = request_push_step_end(m->request, m->request->n_tokens, why);
        FAULT_POINT(gpu_worker, step, ended);
        if (failed)
            rc = row_failed(w, m, failed, why);
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
    }
    worker_unit_of_work(w);
    return rc;
}
