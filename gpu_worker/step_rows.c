/* gpu_worker/step_rows.c - see step_internal.h. */
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/stage_trace.h"
#include "gpu_worker/step_internal.h"

/* Errors that are not about one row. */
static bool concerns_all(const struct worker *w, int rc)
{
    return rc == HILL_E_NODEV || rc == HILL_E_PEER_GONE || w->pending ||
           worker_link_stopping(w->link);
}

int step_row_failed(const struct worker *w, struct step_member *m, int rc,
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

int step_confirm_uploads(struct worker *w, struct step_member *m, struct hill_why *why)
{
    uint32_t n = m->n_given;
    m->n_given = 0;
    return dataplane_check_staged(&w->plane, given_to(w, m), n, why);
}

/* ---- queries out ---- */

uint32_t step_query_bytes(const struct worker *w)
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
                               known ? (uint32_t)sizeof **out : step_query_bytes(w), &payload,
                               worker_deadline(), why);
    if (rc)
        return rc;
    *out = payload;
    **out = (struct record_query){.header = request_header(r, layer),
                                  .query_id = w->next_query_id++,
                                  .kind = kind,
                                  .n_heads = known ? 0 : w->hparams.n_heads,
                                  .n_tokens = request_index(r, r->n_tokens - 1),
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
    **out = (struct record_append){.header = request_header(r, layer),
                                   .first = request_index(r, r->n_tokens - 1),
                                   .n_tokens = 1};
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
            rc = step_row_failed(w, m, rc, why);
    }
    dataplane_flush(&w->plane); /* also of the rows before one that ends the step */
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
    if (rc)
        return rc;
    m->n_given = n;
    m->request->upload_bytes += (uint64_t)n * worker_entry_bytes(w);
    return engine_step_upload(w->engine, layer, (uint32_t)(m - w->step.members), n, w->step.uploads,
                              why);
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
    int rc = check_items(w, items, s->n_selected, request_index(r, r->n_tokens - 1), why);
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
    r->attended_bytes += rc ? 0 : (uint64_t)(s->n_selected + 1) * worker_entry_bytes(w);
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

static int use_known(struct worker *w, struct step_member *m, const struct record_selection *s,
                     struct hill_why *why)
{
    uint32_t layer = m->n_known++;
    if (s->query_id != m->query_id + layer || s->n_uploads)
        return hill_fail(why, HILL_E_PROTOCOL,
                         "a selection of layer %u with %u uploads answers what was asked ahead for "
                         "layer %u",
                         s->header.layer, s->n_uploads, layer);
    return step_use_selection(w, m, layer, s, why);
}

/* The layers of a known step are answered in order, or the first is declined and with it all. */
static void take_known(struct worker *w, struct step_member *m, const struct record_selection *s)
{
    if (s->status == HILL_E_WOULD_BLOCK && m->n_known == 0) {
        m->request->declined = true;
        m->known = m->waiting = false; /* the other layers' answers are nobody's */
        return;
    }
    m->rc = use_known(w, m, s, &m->why);
    m->waiting = !m->rc && m->n_known < w->hparams.n_layers;
}

/* Is it one of the row's layers'? */
static bool is_known_answer(const struct worker *w, const struct step_member *m,
                            const struct record_selection *s)
{
    return m->waiting && m->known && s->query_id - m->query_id < w->hparams.n_layers;
}

bool step_take_selection(struct worker *w, const struct record_selection *selection)
{
    for (uint32_t i = 0; i < w->step.n_members; i++) {
        struct step_member *m = &w->step.members[i];
        if (m->ahead && !m->early && !m->rc && m->ahead_id == selection->query_id) {
            keep_early(m, selection);
            return true;
        }
        if (is_known_answer(w, m, selection)) {
            take_known(w, m, selection);
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
