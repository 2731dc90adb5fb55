/*
 * gpu_worker/request_records.c - what a request tells scorer and coordinator on its way, whatever
 * it is doing; for request.c, restore.c, save.c and step.c. See request.h.
 */
#include "gpu_worker/request.h"

#include <string.h>

#include "base/fault.h"

#define PROGRESS_NS (150 * 1000000ll)

struct record_header request_header(const struct request *r, uint32_t layer)
{
    return (struct record_header){r->w->settings.epoch, r->sequence, r->step, layer};
}

/* Push a record of this request; its cancel ends the wait for room. */
int request_push(struct request *r, uint32_t type, const void *record, uint32_t bytes,
                 struct hill_why *why)
{
    struct worker *w = r->w;
    w->waiting = r;
    int rc =
        dataplane_push(&w->plane, w->plane.append, type, record, bytes, worker_deadline(), why);
    w->waiting = NULL;
    return rc;
}

void request_progress(struct request *r, uint32_t done)
{
    int64_t now = clock_now_ns();
    if (done < r->units && now < r->progress_ns + PROGRESS_NS)
        return;
    r->progress_ns = now;
    Hill__Progress progress = HILL__PROGRESS__INIT;
    progress.request_id = r->prefill->request_id;
    progress.units_done = r->units_before + done;
    progress.units_total = r->units_before + r->units + r->units_behind;
    progress.decoded_tokens = r->reused > r->n_plain ? r->reused - r->n_plain : 0;
    progress.selected = r->selected && !r->predicted;
    worker_link_send(r->w->link, &PROTO_MESSAGE(PROGRESS, progress, &progress));
}

int request_append_entries(struct request *r, uint32_t layer, uint32_t first, uint32_t n,
                           const void *entries, struct hill_why *why)
{
    struct dataplane *plane = &r->w->plane;
    uint32_t bytes = worker_entry_bytes(r->w);
    uint32_t at_once = layout_append_tokens_max(&plane->party.layout);
    for (uint32_t i = 0; i < n;) {
        uint32_t count = n - i < at_once ? n - i : at_once;
        uint32_t size = (uint32_t)sizeof(struct record_append) + count * bytes;
        void *payload;
        r->w->waiting = r;
        int rc = dataplane_reserve(plane, plane->append, size, &payload, worker_deadline(), why);
        r->w->waiting = NULL;
        if (rc)
            return rc;
        *(struct record_append *)payload = (struct record_append){
            .header = request_header(r, layer), .first = first + i, .n_tokens = count};
        memcpy((struct record_append *)payload + 1, (const uint8_t *)entries + (uint64_t)i * bytes,
               (uint64_t)count * bytes);
        shm_ring_publish(plane->append, RECORD_APPEND, size);
        i += count;
    }
    return 0;
}

static uint32_t mass_tokens_max(const struct request *r)
{
    return (shm_ring_payload_max(r->w->plane.append) - (uint32_t)sizeof(struct record_mass)) /
           (uint32_t)sizeof(float);
}

int request_push_read(struct request *r, uint32_t layer, struct record_read *read,
                      struct hill_why *why)
{
    struct worker *w = r->w;
    read->header = request_header(r, layer);
    read->read_id = w->next_query_id++;
    read->request_id = r->prefill->request_id;
    w->waiting = r;
    int rc = dataplane_push(&w->plane, w->plane.query, RECORD_READ, read, sizeof *read,
                            worker_deadline(), why);
    w->waiting = NULL;
    return rc;
}

uint32_t request_read_max(const struct request *r)
{
    struct kv_selection_settings settings = selection_from_wire(r->prefill->selection);
    return kv_budget_tokens(&settings, request_index(r, r->prompt + r->predict));
}

uint32_t request_mass_records(const struct request *r, uint32_t n_tokens)
{
    return (n_tokens + mass_tokens_max(r) - 1) / mass_tokens_max(r);
}

int request_reserve_mass(struct request *r, uint32_t layer, uint32_t first, uint32_t rest,
                         struct record_mass **out, struct hill_why *why)
{
    struct dataplane *plane = &r->w->plane;
    uint32_t most = mass_tokens_max(r);
    uint32_t n = rest < most ? rest : most;
    void *payload;
    r->w->waiting = r;
    int rc = dataplane_reserve(plane, plane->append, (uint32_t)(sizeof **out + n * sizeof(float)),
                               &payload, worker_deadline(), why);
    r->w->waiting = NULL;
    if (rc)
        return rc;
    *out = payload;
    **out = (struct record_mass){.header = request_header(r, layer), .first = first, .n_tokens = n};
    return 0;
}

void request_publish_mass(struct request *r, const struct record_mass *record)
{
    shm_ring_publish(r->w->plane.append, RECORD_MASS,
                     (uint32_t)(sizeof *record + record->n_tokens * sizeof(float)));
}

int request_push_step_end(struct request *r, uint32_t n_tokens, struct hill_why *why)
{
    struct record_step_end end = {.header = request_header(r, 0), .n_tokens = n_tokens};
    return request_push(r, RECORD_STEP_END, &end, sizeof end, why);
}

bool request_weighs(const struct request *r)
{
    return r->prefill->selection->policy == HILL__POLICY__POLICY_H2O;
}

void request_send_token(struct request *r, uint32_t token, double logprob)
{
    int64_t now = clock_now_ns();
    if (r->predicted && now - r->token_ns > r->longest_gap_ns)
        r->longest_gap_ns = now - r->token_ns;
    if (r->predicted)
        step_times_add(&r->times, now - r->token_ns, r->idle_ns - r->token_idle_ns);
    r->token_ns = now;
    r->token_idle_ns = r->idle_ns;
    Hill__Token body = HILL__TOKEN__INIT;
    body.request_id = r->prefill->request_id;
    body.index = r->predicted;
    body.token = token;
    body.logprob = logprob;
    struct hash_state state;
    hash_state_save(&state, r->hash);
    body.logits_state.data = (uint8_t *)&state;
    body.logits_state.len = sizeof state;
    worker_link_send(r->w->link, &PROTO_MESSAGE(TOKEN, token, &body));
    FAULT_POINT(gpu_worker, token, sent);
}
